"""Where the output of each round goes."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

import pytest

from ftrun.launcher.logs import LogOptions, LogsError, RankLogs, RoundLogs, RunLogs
from ftrun.launcher.logs_plugin import build_plugin
from ftrun.launcher.streams import StdMap

ENVS: dict[int, dict[str, str]] = {
    0: {"ROLE_NAME": "default", "RANK": "4", "LOCAL_RANK": "0"},
    1: {"ROLE_NAME": "default", "RANK": "5", "LOCAL_RANK": "0"},
}


class Logs:
    """A RunLogs in a temporary directory, with its warnings."""

    def __init__(self, path: Path, run_id: str = "job", **options: object) -> None:
        self.fallback_dir = path / "run"
        self.warnings: list[str] = []
        self.run = RunLogs(
            LogOptions(**options),  # type: ignore[arg-type]
            self.fallback_dir,
            run_id,
            self.warnings.append,
        )

    def round(self, number: int = 0, envs: Mapping[int, Mapping[str, str]] = ENVS) -> RoundLogs:
        return self.run.for_round(number, envs)

    def rank(self, local_rank: int = 0) -> RankLogs:
        return self.round().by_local_rank[local_rank]


def test_layout_is_torchruns_below_log_dir(tmp_path: Path) -> None:
    """<log-dir>/<run_id>_<random8>/attempt_<round>/<local_rank>/ holds the files."""
    logs = Logs(tmp_path, log_dir=str(tmp_path / "logs"), redirects=StdMap.parse("3"))
    rank = logs.round(7).by_local_rank[1]
    (run_dir,) = (tmp_path / "logs").iterdir()
    assert run_dir.name.startswith("job_")
    assert len(run_dir.name) == len("job_") + 8
    assert rank.stdout.file == str(run_dir / "attempt_7" / "1" / "stdout.log")
    assert rank.stderr.file == str(run_dir / "attempt_7" / "1" / "stderr.log")
    assert rank.error_file == run_dir / "attempt_7" / "1" / "error.json"
    assert rank.error_file.parent.is_dir()
    assert not rank.stdout.to_console
    assert rank.environment == {}


def test_without_log_dir_logs_lie_in_the_run_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No directory is made in $TMPDIR."""
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.setattr(tempfile, "tempdir", None)
    logs = Logs(tmp_path, tee=StdMap.parse("3"))
    assert logs.round(2).directory == logs.fallback_dir / "attempt_2"
    assert logs.rank().stdout.file == str(logs.fallback_dir / "attempt_0" / "0" / "stdout.log")
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize("run_id", ["../../etc/x", "a/b", ".hidden", "tab\tnul\0", "ü" * 10, "x" * 400])
def test_any_run_id_makes_one_directory_directly_below_log_dir(tmp_path: Path, run_id: str) -> None:
    """Characters that do not belong in a file name are replaced."""
    logs = Logs(tmp_path, run_id, log_dir=str(tmp_path / "logs"))
    assert logs.round().directory is not None
    assert [path.parent for path in (tmp_path / "logs").iterdir()] == [tmp_path / "logs"]


def test_an_existing_attempt_is_never_touched(tmp_path: Path) -> None:
    """A second and a third run in the same directory get directories of their own."""
    first = Logs(tmp_path, redirects=StdMap.parse("1"))
    for number in range(3):
        first.round(number)
    log = Path(first.fallback_dir / "attempt_0" / "0" / "stdout.log")
    log.write_text("first\n")
    second, third = Logs(tmp_path), Logs(tmp_path)
    assert [second.round(number).directory for number in range(2)] == [
        first.fallback_dir / "attempt_0.1",
        first.fallback_dir / "attempt_1.1",
    ]
    assert third.round(0).directory == first.fallback_dir / "attempt_0.2"
    assert log.read_text() == "first\n"


def test_dev_null_means_no_files_but_prefixes_and_error_files(tmp_path: Path) -> None:
    """With --log-dir /dev/null tee still has its prefix, redirected streams stay on the console."""
    logs = Logs(
        tmp_path,
        log_dir=os.devnull,
        tee=StdMap.parse("0:3"),
        redirects=StdMap.parse("1:3"),
        duplicate_stdout_filters=("x",),
    )
    teed, redirected = (logs.round().by_local_rank[rank] for rank in (0, 1))
    assert (teed.stdout.file, teed.stdout.to_console, teed.stdout.prefix) == (None, True, "[default0]:")
    assert (redirected.stdout.file, redirected.stdout.to_console) == (None, True)
    assert redirected.stdout.prefix is None
    assert not teed.stdout.has_filter
    assert teed.error_file == logs.fallback_dir / "attempt_0" / "0" / "error.json"


@pytest.mark.parametrize(
    ("redirects", "tee", "shown", "file", "to_console", "prefix"),
    [
        ("0", "0", None, False, True, None),
        ("0", "0", {1}, False, False, None),
        ("1", "0", None, True, False, None),
        ("0", "1", None, True, True, "[default0]:"),
        ("1", "1", None, True, True, "[default0]:"),
        ("0", "1", {1}, True, False, "[default0]:"),
        ("0", "1", {0}, True, True, "[default0]:"),
        ("2", "2", None, False, True, None),
    ],
)
def test_stdout_target(
    tmp_path: Path,
    redirects: str,
    tee: str,
    shown: set[int] | None,
    file: bool,
    to_console: bool,
    prefix: str | None,
) -> None:
    """Redirect, tee and the filter of local ranks combine as in torchrun."""
    stdout = (
        Logs(
            tmp_path,
            redirects=StdMap.parse(redirects),
            tee=StdMap.parse(tee),
            local_ranks_filter=None if shown is None else frozenset(shown),
        )
        .rank()
        .stdout
    )
    assert (stdout.file is not None, stdout.to_console, stdout.prefix) == (file, to_console, prefix)
    assert not stdout.keep_tail


def test_prefix_template(tmp_path: Path) -> None:
    """Role, global and local rank can be used; the local rank is the real one under --virtual-local-rank."""
    logs = Logs(
        tmp_path, tee=StdMap.parse("3"), prefix_template="<${role_name}/${rank}/${local_rank}/${other}> "
    )
    assert logs.rank(1).stderr.prefix == "<default/5/1/${other}> "


def test_filtered_files_are_shared_by_the_ranks_of_a_round(tmp_path: Path) -> None:
    """They lie in the attempt's directory, one for stdout and one for stderr."""
    logs = Logs(
        tmp_path,
        tee=StdMap.parse("3"),
        duplicate_stdout_filters=("loss",),
        duplicate_stderr_filters=("Error",),
    )
    ranks = logs.round().by_local_rank
    attempt = logs.fallback_dir / "attempt_0"
    assert {rank.stdout.filtered_file for rank in ranks.values()} == {str(attempt / "filtered_stdout.log")}
    assert ranks[0].stderr.filtered_file == str(attempt / "filtered_stderr.log")
    assert ranks[0].stdout.filters == ("loss",)
    assert ranks[0].stderr.filters == ("Error",)
    assert ranks[1].stderr.filtered_prefix == "[default1]:"


def test_a_log_dir_that_is_a_file_is_refused(tmp_path: Path) -> None:
    """The message names the option, what was found and what was expected."""
    (tmp_path / "file").write_text("")
    with pytest.raises(LogsError, match=r"--log-dir: .*is a file; expected a directory"):
        Logs(tmp_path, log_dir=str(tmp_path / "file"))
    with pytest.raises(LogsError, match="is a file"):
        Logs(tmp_path, log_dir=str(tmp_path / "file" / "below"))


def test_a_round_goes_on_without_log_files_when_its_directory_cannot_be_made(tmp_path: Path) -> None:
    """One warning, output on the console, and still a path for the error file."""
    (tmp_path / "run").write_text("in the way")
    logs = Logs(tmp_path, redirects=StdMap.parse("3"))
    round_logs = logs.round(4)
    assert round_logs.directory is None
    assert round_logs.by_local_rank[0].stdout.file is None
    assert round_logs.by_local_rank[0].stdout.to_console
    assert round_logs.by_local_rank[0].error_file == tmp_path / "run" / "attempt_4" / "0" / "error.json"
    assert len(logs.warnings) == 1
    assert "round 4 has no log files" in logs.warnings[0]


def test_an_unknown_plugin_is_refused_with_the_known_names(tmp_path: Path) -> None:
    """torch's own entry point is in the list."""
    with pytest.raises(LogsError, match=r"found 'nosuch', expected .*torchrun.logs_specs: one of .*default"):
        Logs(tmp_path, logs_specs="nosuch")


def test_the_default_plugin_is_ftruns_own_layout(tmp_path: Path) -> None:
    """--logs-specs default neither makes temporary directories nor deletes anything."""
    logs = Logs(tmp_path, logs_specs="default", tee=StdMap.parse("3"))
    assert logs.rank().stdout.file == str(logs.fallback_dir / "attempt_0" / "0" / "stdout.log")


@dataclass
class Destination:
    """Shaped like torch's LogsDest."""

    stdouts: dict[int, str]
    stderrs: dict[int, str]
    tee_stdouts: dict[int, str] = field(default_factory=dict)
    tee_stderrs: dict[int, str] = field(default_factory=dict)
    error_files: dict[int, str] = field(default_factory=dict)
    filtered_stdout: str = ""
    filtered_stderr: str = ""


class SampleSpecs:
    """A plug-in as a user would write it."""

    def __init__(self, log_dir: str, redirects: object, tee: object, local_ranks_filter: object) -> None:
        self.arguments = (log_dir, redirects, tee, local_ranks_filter)
        self.log_dir = log_dir

    def reify(self, envs: dict[int, dict[str, str]]) -> Destination:
        envs[1]["ADDED"] = "yes"
        envs[1]["TORCHELASTIC_ERROR_FILE"] = "somewhere"
        return Destination(
            stdouts={0: f"{self.log_dir}/out0", 1: ""},
            stderrs={0: os.devnull, 1: f"{self.log_dir}/err1"},
            tee_stdouts={0: f"{self.log_dir}/out0"},
            error_files={0: f"{self.log_dir}/error0", 1: os.devnull},
            filtered_stdout=f"{self.log_dir}/filtered",
        )


@pytest.fixture
def plugin_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Install the plug-in the way a package does: with an entry point in its metadata."""
    site = tmp_path / "site"
    info = site / "sample_specs-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: sample-specs\nVersion: 1\n")
    (info / "entry_points.txt").write_text(
        f"[torchrun.logs_specs]\nsample = {__name__}:SampleSpecs\nbroken = nosuchmodule:Specs\n"
    )
    monkeypatch.syspath_prepend(str(site))
    return site


@pytest.mark.usefixtures("plugin_path")
def test_a_plugins_answer_is_translated(tmp_path: Path) -> None:
    """Console, nowhere, file and tee mean the same as in torchrun; error files that it lacks get a place."""
    logs = Logs(tmp_path, logs_specs="sample", log_dir="/x", duplicate_stdout_filters=("a",))
    round_logs = logs.round(3)
    zero, one = round_logs.by_local_rank[0], round_logs.by_local_rank[1]
    assert round_logs.directory is None
    assert (zero.stdout.file, zero.stdout.to_console, zero.stdout.prefix) == ("/x/out0", True, "[default0]:")
    assert (zero.stderr.file, zero.stderr.to_console) == (None, False)
    assert (one.stdout.file, one.stdout.to_console, one.stdout.prefix) == (None, True, None)
    assert (one.stderr.file, one.stderr.to_console) == ("/x/err1", False)
    assert zero.stdout.filtered_file == "/x/filtered"
    assert zero.stderr.filtered_file is None
    assert zero.error_file == Path("/x/error0")
    assert one.error_file == logs.fallback_dir / "attempt_3" / "1" / "error.json"
    assert one.error_file.parent.is_dir()
    assert (zero.environment, one.environment) == ({}, {"ADDED": "yes"})
    assert not Path("/x").exists()


@pytest.mark.usefixtures("plugin_path")
def test_a_plugin_that_cannot_be_imported_is_named(tmp_path: Path) -> None:
    """It is imported with the first round, not before."""
    logs = Logs(tmp_path, logs_specs="broken")
    with pytest.raises(LogsError, match=r"--logs-specs: cannot import broken \(nosuchmodule:Specs\)"):
        logs.round()


def test_a_plugin_is_built_with_torchruns_arguments() -> None:
    """Streams are torch's own Std, alone or per local rank; the filter is a set."""
    from torch.distributed.elastic.multiprocessing import Std as TorchStd

    entry = metadata.EntryPoint("sample", f"{__name__}:SampleSpecs", "torchrun.logs_specs")
    plugin = build_plugin(entry, "/x", StdMap.parse("2"), StdMap.parse("0:1,10:3"), frozenset({0, 2}))
    assert isinstance(plugin, SampleSpecs)
    assert plugin.arguments == ("/x", TorchStd.ERR, {0: TorchStd.OUT, 10: TorchStd.ALL}, {0, 2})
    assert isinstance(plugin.arguments[1], TorchStd)
