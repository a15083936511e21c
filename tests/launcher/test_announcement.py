"""What an agent says of its configuration."""

from __future__ import annotations

from pathlib import Path

from ftrun.launcher.announcement import configured
from ftrun.launcher.options import parse


def told(*argv: str, **environ: str) -> dict[str, tuple[str, str]]:
    """Value and origin by name."""
    event = configured(parse([*argv, "train.py", "--api-key", "hunter2"], environ))
    return dict(zip(event.names, zip(event.values, event.origins, strict=True), strict=True))


def test_only_what_somebody_has_set_is_told() -> None:
    """Defaults are the version's, and the script's arguments are nobody's business."""
    assert told() == {}
    found = told("--nproc-per-node", "4")
    assert found == {"launch.nproc_per_node": ('"4"', "command line --nproc-per-node")}


def test_origin_is_told(tmp_path: Path) -> None:
    """A file with its line, a variable with its name."""
    (tmp_path / "c.yaml").write_text("ftrun:\n  stop:\n    kill_timeout: 7\n")
    found = told("--ft-config", str(tmp_path / "c.yaml"), PET_MAX_RESTARTS="5")
    assert found["ftrun.stop.kill_timeout"][0] == "7.0"
    assert "c.yaml" in found["ftrun.stop.kill_timeout"][1]
    assert found["ftrun.restart.max_restarts"] == ("5", "environment PET_MAX_RESTARTS")


def test_secrets_are_masked() -> None:
    """Of pairs by their names, in addresses, and the arguments of commands."""
    found = told(
        "--rdzv-conf", "auth_token=hunter2,timeout=30",
        "--ft-checkpoint-dir", "s3://me:hunter2@host/c",
        "--ft-set", "ftrun.health.command=['/bin/check', '--password', 'hunter2']",
    )  # fmt: skip
    assert found["launch.rdzv_conf"][0] == '{auth_token: "***", timeout: "30"}'
    assert "hunter2" not in str(found)
    assert found["ftrun.health.command"][0] == "/bin/check (2 arguments)"
