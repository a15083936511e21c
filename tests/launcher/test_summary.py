"""The account of a failed job."""

from __future__ import annotations

import datetime
import re
from dataclasses import replace

import pytest

from ftrun.launcher.summary import failure_summary
from ftrun.monitor.incident import ErrorRecord, Host, Incident, IncidentKind, RankExit


def exited(rank: int, code: int, *, stopped: bool = False, **more: object) -> RankExit:
    return RankExit(rank, rank % 2, 100 + rank, code, 10.0 + rank, stopped, **more)  # type: ignore[arg-type]


def summary(culprit: RankExit, *collateral: RankExit, log_dir: str | None = None) -> str:
    reasons = (f"rank {culprit.rank} fell", "no OOM kill")
    return told(
        Incident(IncidentKind.KILLED, 0, "node-a", culprit, reasons, "f", True, collateral), log_dir=log_dir
    )


def told(incident: Incident, log_dir: str | None = None) -> str:
    """As node-a tells it."""
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


def time_line(ts: float) -> str:
    return f"  time      : {datetime.datetime.fromtimestamp(ts).isoformat('_', 'milliseconds')}"


def test_failure_on_another_node_is_shown_with_its_host_and_its_clock() -> None:
    """The reader looks at the right machine's log at the right time."""
    incident = Incident(
        IncidentKind.KILLED, 0, "node-b", exited(3, -9), ("r",), "f", True, wall_offset_s=1.5e9
    )
    lines = told(incident, "/logs").split("\n")
    assert "  host      : node-b" in lines
    assert time_line(1.5e9 + 13.0) in lines
    assert "Logs on node-a: /logs" in lines
    unknown = told(replace(incident, wall_offset_s=0.0)).split("\n")
    assert "  time      : <N/A>" in unknown


def test_other_failures_are_shown_with_their_own_hosts_node_by_node() -> None:
    """Times of two nodes do not make an order; the culprit's node comes first."""
    hosts = (Host("node-a", (0,), 1.0), Host("node-c", (4, 5), 1.6e9))
    collateral = (exited(5, 3), exited(4, 3), exited(0, 3), exited(2, 3))
    incident = Incident(
        IncidentKind.KILLED, 0, "node-b", exited(3, -9), ("r",), "f", True, collateral, 1.5e9, hosts
    )
    lines = told(incident).split("\n")
    starts = [lines.index(f"[{number}]:") for number in range(1, 5)]
    shown = [(lines[at + 1], lines[at + 2], lines[at + 3].split()[2]) for at in starts]
    assert shown == [
        (time_line(1.5e9 + 12.0), "  host      : node-b", "2"),
        (time_line(1.7e9 + 10.0), "  host      : node-a", "0"),
        (time_line(1.6e9 + 14.0), "  host      : node-c", "4"),
        (time_line(1.6e9 + 15.0), "  host      : node-c", "5"),
    ]


@pytest.mark.parametrize("kind", [kind for kind in IncidentKind if kind.is_of_node])
def test_node_is_the_root_cause_without_lines_of_a_rank(kind: IncidentKind) -> None:
    """Where no rank failed by itself none is shown as if it had."""
    stand_in = RankExit(4, 0, 0, 1, 0.0, is_stopped_by_agent=False)
    reasons = ("node node-b was lost: no keep-alive for 5.2 s", "it had ranks 4, 5")
    incident = Incident(kind, 0, "node-b", stand_in, reasons, "f", True, (exited(0, -15, stopped=True),))
    lines = told(incident).split("\n")
    assert lines[0] == "failed: node node-b was lost: no keep-alive for 5.2 s"
    assert lines[1] == "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:"
    root = lines.index("Root Cause (first observed failure):")
    assert lines[root + 1 : root + 5] == [
        "[0]:",
        "  cause     : node node-b was lost: no keep-alive for 5.2 s",
        "  cause     : it had ranks 4, 5",
        "  host      : node-b",
    ]
    assert "pid" not in "\n".join(lines)
    assert "Stopped by the agent: rank 0" in lines


def test_ranks_of_a_large_job_take_one_line() -> None:
    """Thousands of stopped ranks are a range, and what was left out of the message is said."""
    stopped = tuple(exited(rank, -15, stopped=True) for rank in range(1, 4096))
    incident = Incident(
        IncidentKind.KILLED, 0, "node-a", exited(0, -9), ("r",), "f", True, stopped, left_out=7
    )
    text = told(incident)
    assert "\nStopped by the agent: ranks 1-4095\nNot shown: 7 more ranks\n" in text
