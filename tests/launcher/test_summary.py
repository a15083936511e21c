"""The account of a failed job."""

from __future__ import annotations

import re

from ftrun.launcher.summary import failure_summary
from ftrun.monitor.incident import ErrorRecord, Incident, IncidentKind, RankExit


def exited(rank: int, code: int, *, stopped: bool = False, **more: object) -> RankExit:
    return RankExit(rank, rank % 2, 100 + rank, code, 10.0 + rank, stopped, **more)  # type: ignore[arg-type]


def summary(culprit: RankExit, *collateral: RankExit, log_dir: str | None = None) -> str:
    reasons = (f"rank {culprit.rank} fell", "no OOM kill")
    incident = Incident(IncidentKind.KILLED, 0, "n0", culprit, reasons, "f", True, collateral)
    return failure_summary(
        "train.py", incident, binary="/bin/python", host="node-a", wall_offset_s=1.7e9, log_dir=log_dir
    )


def test_killed_rank_is_told_in_the_lines_that_tools_look_for() -> None:
    """Labels, exit code, pid and signal stand as torchrun prints them."""
    lines = summary(exited(3, -9)).split("\n")
    assert "failed (exitcode: -9) local_rank: 1 (pid: 103) of binary: /bin/python" in lines
    assert "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:" in lines
    assert "train.py FAILED" in lines
    assert "Root Cause (first observed failure):" in lines
    assert "  host      : node-a" in lines
    assert "  rank      : 3 (local_rank: 1)" in lines
    assert "  exitcode  : -9 (pid: 103)  (SIGKILL)" in lines
    assert "  error_file: <N/A>" in lines
    assert "  traceback : Signal 9 (SIGKILL) received by PID 103" in lines
    assert "  <NO_OTHER_FAILURES>" in lines
    assert any(re.fullmatch(r"  time      : \d{4}-\d\d-\d\d_\d\d:\d\d:\d\d\.\d{3}", line) for line in lines)


def test_root_cause_comes_before_the_others() -> None:
    """The first failure of the text is the one to look at."""
    text = summary(exited(1, 3), exited(0, 1))
    assert text.index("Root Cause") < text.index("exitcode  : 3 (pid: 101)") < text.index("Other failures:")
    assert text.index("Other failures:") < text.index("exitcode  : 1 (pid: 100)")
    assert "<NO_OTHER_FAILURES>" not in text


def test_other_failures_are_in_the_order_they_happened() -> None:
    """Numbered from 1, earliest first."""
    text = summary(exited(0, 3), exited(5, 1), exited(2, 1))
    assert text.index("[1]:") < text.index("(pid: 102)") < text.index("[2]:") < text.index("(pid: 105)")


def test_traceback_is_shown_in_full() -> None:
    """Every line of the exception's traceback is there, indented, with the error file."""
    frames = [f"  line {n}" for n in range(100)]
    traceback = "\n".join(["Traceback (most recent call last):", *frames, "ValueError: x"])
    record = ErrorRecord("ValueError", "x", traceback)
    lines = summary(exited(0, 1, error=record, error_file="/logs/error.json")).split("\n")
    start = lines.index("  traceback : Traceback (most recent call last):")
    assert lines[start + 1 : start + 102] == [*(f"    line {n}" for n in range(100)), "  ValueError: x"]
    assert "  error_file: /logs/error.json" in lines


def test_text_stands_in_for_a_missing_traceback() -> None:
    """An error file that holds only a text is shown by that text."""
    assert "  traceback : OSError: gone" in summary(exited(0, 1, error=ErrorRecord("OSError", "gone", "")))


def test_last_stderr_lines_are_shown_when_there_is_no_traceback() -> None:
    """What the rank said last is better than nothing."""
    text = summary(exited(0, 3, stderr_tail=tuple(f"err {n}" for n in range(50))))
    assert "the last lines of stderr:\n    err 30\n" in text
    assert "    err 49\n" in text


def test_silent_rank_says_so() -> None:
    """Neither traceback nor stderr is told as such."""
    assert "nothing was written to stderr" in summary(exited(0, 3))


def test_stopped_ranks_are_one_line_and_no_failures() -> None:
    """What the agent stopped is listed apart."""
    text = summary(exited(1, -9), exited(2, -15, stopped=True), exited(0, 0, stopped=True))
    assert "Stopped by the agent: ranks 0, 2" in text
    assert "<NO_OTHER_FAILURES>" in text
    assert "(pid: 102)" not in text


def test_reasons_and_log_directory_are_shown() -> None:
    """The diagnosis' sentences and the place of the logs are part of the account."""
    text = summary(exited(1, -9), log_dir="/logs/run")
    assert "  cause     : rank 1 fell\n  cause     : no OOM kill\n" in text
    assert "Logs: /logs/run" in text


def test_unknown_signal_has_a_name() -> None:
    """A real-time signal does not break the account."""
    assert "(signal 50)" in summary(exited(0, -50))


def test_border_is_as_wide_as_the_text_up_to_a_limit() -> None:
    """The frame never wraps a terminal line."""
    lines = summary(exited(0, 1, stderr_tail=("x" * 500,))).split("\n")
    borders = [line for line in lines if line and set(line) == {"="}]
    assert len(borders) == 2
    assert len(borders[0]) == 60
