"""What `ftctl show` says of a node's evidence."""

from __future__ import annotations

from ftrun.monitor.detail import ExitRow
from ftrun.monitor.detail_text import signs_of
from ftrun.monitor.evidence_row import EvidenceRow, read_row, sentences

LINE = {
    "event": "evidence.gathered",
    "file": "/run/logs/attempt_0/evidence.json",
    "oom_kills": 1,
    "memory_limit_bytes": 2 << 30,
    "memory_some_percent": 62.5,
    "memory_full_percent": 40.0,
    "spaces": ["/dev/shm (shared memory) is full: 0 KiB of 64.0 MiB are free"],
    "resume_from": "/c/step-40",
    "recorder_files": ["/tmp/nccl_trace_rank_0"],
}


def test_everything_that_is_known_is_said() -> None:
    """What the kernel saw first, where the rest is last."""
    assert list(sentences(read_row(LINE, "a"))) == [
        "the kernel counted 1 OOM kill in the job's cgroup, below a limit of 2.0 GiB",
        "memory was short: some task waited for it in 62.5 % of the last 10 s, all in 40 %",
        "/dev/shm (shared memory) is full: 0 KiB of 64.0 MiB are free",
        "the round had begun from /c/step-40",
        "flight recorders have written /tmp/nccl_trace_rank_0",
        "all of it: /run/logs/attempt_0/evidence.json",
    ]


def test_line_of_another_version_is_read_as_far_as_it_goes() -> None:
    """What is missing, or of another type, is not known."""
    row = read_row({"event": "evidence.gathered", "oom_kills": "many", "spaces": [1, "x"]}, "a")
    assert row == EvidenceRow("a", "", 0, None, None, None, ("x",), "", ())
    assert list(sentences(row)) == ["x", "its file could not be written"]


def exit_row(**known: object) -> ExitRow:
    nothing = {"since_start_s": None, "last_step": None, "beat_age_s": None, "sections": ()}
    return ExitRow(1, "a", 1, 42, 1, "", False, True, 7, 9.0, **{**nothing, **known})  # type: ignore[arg-type]


def test_last_signs_of_a_rank_are_said_as_far_as_they_are_known() -> None:
    """An older journal has none of them."""
    assert signs_of(exit_row()) == ""
    assert signs_of(exit_row(last_step=47)) == "last at step 47"
    signs = signs_of(exit_row(since_start_s=65.0, last_step=47, beat_age_s=2.5, sections=("eval", "save")))
    assert signs.endswith("after its last sign of progress, in section eval / save")
    assert "last at step 47" in signs
