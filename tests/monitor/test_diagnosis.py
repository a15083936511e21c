"""Which failure is named as the root cause, and what it is called."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftrun.monitor.diagnosis import ECHO_WINDOW_S, diagnose
from ftrun.monitor.incident import ErrorRecord, Evidence, Incident, IncidentKind, RankExit
from ftrun.monitor.liveness import Rule, Verdict

GLOO = "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:4242"
WATCHDOG = "[rank0]:[E ProcessGroupNCCL.cpp:632] Watchdog caught collective operation timeout: WorkNCCL"


def error(
    type_name: str,
    message: str = "",
    *,
    at: float | None = None,
    bases: tuple[str, ...] = (),
    frame: str = "",
) -> ErrorRecord:
    return ErrorRecord(type_name, message, "Traceback ...", frame, bases, at)


def exited(
    rank: int,
    code: int,
    at: float = 10.0,
    record: ErrorRecord | None = None,
    *,
    is_stopped: bool = False,
    tail: tuple[str, ...] = (),
    rss: int = 0,
    steps: int = 0,
) -> RankExit:
    return RankExit(
        rank, rank, 100 + rank, code, at, is_stopped, record, stderr_tail=tail, max_rss_bytes=rss, steps=steps
    )


def incident(
    *exits: RankExit, oom_kills: int = 0, limit: int | None = None, progressed: bool = False
) -> Incident:
    return diagnose([Evidence("n0", 2, exits, progressed, oom_kills, limit)])


def test_earliest_failure_is_the_root_cause() -> None:
    """The rank that failed first is named, not the one with the lowest number."""
    found = incident(exited(0, 1, at=10.2), exited(1, 3, at=10.1))
    assert found.culprit.rank == 1
    assert [exit.rank for exit in found.collateral] == [0]
    assert found.round_number == 2


def test_time_of_the_exception_counts_before_time_of_the_exit() -> None:
    """A rank that took long to leave after its exception is still the first."""
    found = incident(
        exited(0, 1, at=10.0, record=error("KeyError", at=9.9)),
        exited(1, 1, at=12.0, record=error("ValueError", at=9.5)),
    )
    assert found.culprit.rank == 1


def test_ranks_stopped_by_the_agent_are_collateral() -> None:
    """What the agent did is no failure, even when it looks earlier."""
    found = incident(exited(0, -15, at=9.0, is_stopped=True), exited(1, 3, at=10.0), exited(2, 0, at=8.0))
    assert found.culprit.rank == 1
    assert [exit.rank for exit in found.collateral] == [0]


@pytest.mark.parametrize("exits", [(), (exited(0, 0),), (exited(0, 0), exited(1, -15, is_stopped=True))])
def test_nothing_failed_is_refused(exits: tuple[RankExit, ...]) -> None:
    """Without a failure there is no incident to make up."""
    with pytest.raises(ValueError, match="no rank failed"):
        incident(*exits)


@pytest.mark.parametrize("later_s", [0.003, ECHO_WINDOW_S - 0.1])
def test_echo_loses_to_a_failure_seen_shortly_after(later_s: float) -> None:
    """A peer notices the closed socket before the agent sees the exit of the rank that was killed."""
    found = incident(
        exited(0, 1, at=10.0, record=error("RuntimeError", GLOO, at=10.0)),
        exited(1, -9, at=10.0 + later_s),
    )
    assert (found.culprit.rank, found.kind) == (1, IncidentKind.KILLED)


def test_echo_does_not_lose_to_a_much_later_failure() -> None:
    """What comes after the window is another story."""
    found = incident(
        exited(0, 1, at=10.0, record=error("RuntimeError", GLOO)), exited(1, 3, at=10.1 + ECHO_WINDOW_S)
    )
    assert (found.culprit.rank, found.kind) == (0, IncidentKind.GLOO_PEER_LOST)


def test_an_own_failure_never_loses_to_an_earlier_seeming_one_of_communication() -> None:
    """Of two failures that are no echoes the first wins, whatever echoes lie between."""
    found = incident(
        exited(0, 1, at=10.0, record=error("DistBackendError", "x")),
        exited(1, 1, at=10.2, record=error("ValueError", "b")),
        exited(2, 1, at=10.1, record=error("KeyError", "a")),
    )
    assert found.culprit.rank == 2


def test_only_echoes_make_a_communication_error_of_the_first() -> None:
    """When nobody failed otherwise the connection itself is the incident."""
    found = incident(
        exited(0, 1, at=10.1, record=error("RuntimeError", GLOO)),
        exited(1, 1, at=10.0, record=error("DistNetworkError", "timed out")),
    )
    assert (found.culprit.rank, found.kind) == (1, IncidentKind.COMMUNICATION_ERROR)


def test_rank_that_ended_well_too_early_is_named_beside_its_echoes() -> None:
    """Nothing of its own failed, and yet the others waited for it; with another cause it says nothing."""
    echo = exited(0, 1, record=error("RuntimeError", GLOO))
    assert "rank 1 had ended well" in " ".join(incident(echo, exited(1, 0, at=9.9)).reasons)
    assert "ended well" not in " ".join(incident(echo, exited(1, 0), exited(2, 3)).reasons)
    assert "ended well" not in " ".join(incident(echo, exited(1, 0, is_stopped=True)).reasons)


def test_rank_slow_to_leave_after_its_exception_is_no_victim_of_the_stop() -> None:
    """A stopped rank whose exception is older than the stop is the cause; a younger one comes of the stop."""
    echo = exited(0, 1, at=10.0, record=error("RuntimeError", GLOO, at=9.9))
    slow = exited(1, -15, at=11.0, record=error("ValueError", "bad", at=9.8), is_stopped=True)
    assert incident(echo, slow).culprit is slow
    young = exited(1, 1, at=11.0, record=error("ValueError", "bad", at=10.1), is_stopped=True)
    assert incident(echo, young).culprit is echo


def test_crash_during_the_stop_explains_an_echo_but_no_other_failure() -> None:
    """A core dump takes time: the crashed rank may end after the agent began to stop because of its echo."""
    crash = exited(1, -11, at=11.0, is_stopped=True)
    echo = exited(0, 1, at=10.0, record=error("RuntimeError", GLOO))
    assert incident(echo, crash).kind is IncidentKind.SEGFAULT
    own = exited(0, 1, at=10.0, record=error("ValueError", "bad"))
    assert incident(own, crash).culprit is own


def test_oom_kill_during_the_stop_explains_an_echo() -> None:
    """Freeing a large process takes time, so its exit may come after the stop began."""
    killed = exited(1, -9, at=11.0, is_stopped=True)
    echo = exited(0, 1, at=10.0, record=error("RuntimeError", GLOO))
    assert incident(echo, killed, oom_kills=1).kind is IncidentKind.HOST_OOM
    assert incident(echo, killed).culprit is echo


def test_between_nodes_an_own_failure_wins_then_the_order_given() -> None:
    """Clocks of two nodes are not compared."""
    echo = Evidence("n0", 0, (exited(0, 1, at=1.0, record=error("RuntimeError", GLOO)),), False)
    own = Evidence("n1", 0, (exited(1, -9, at=90000.0),), True)
    late = Evidence("n2", 0, (exited(2, 3, at=5.0),), False)
    found = diagnose([echo, own, late])
    assert (found.node, found.culprit.rank, found.has_progressed) == ("n1", 1, True)
    assert {exit.rank for exit in found.collateral} == {0, 2}


SIGNAL_CASES = [
    (-9, 0, IncidentKind.KILLED, "from outside"),
    (-9, 1, IncidentKind.HOST_OOM, "memory ran out"),
    (-11, 0, IncidentKind.SEGFAULT, "SIGSEGV"),
    (-11, 1, IncidentKind.SEGFAULT, "SIGSEGV"),
    (-6, 0, IncidentKind.ABORT, "SIGABRT"),
    (-7, 0, IncidentKind.BUS_ERROR, "/dev/shm"),
    (-15, 0, IncidentKind.SIGNAL, "SIGTERM"),
    (-4, 0, IncidentKind.SIGNAL, "SIGILL"),
    (-50, 0, IncidentKind.SIGNAL, "signal 50"),
    (3, 0, IncidentKind.EXIT_CODE, "exit code 3"),
    (3, 1, IncidentKind.EXIT_CODE, "exit code 3"),
    (137, 0, IncidentKind.EXIT_CODE, "SIGKILL"),
    (137, 1, IncidentKind.HOST_OOM, "OOM kill"),
    (255, 0, IncidentKind.EXIT_CODE, "exit code 255"),
]


@pytest.mark.parametrize(("code", "oom_kills", "kind", "words"), SIGNAL_CASES)
def test_exit_codes_and_signals(code: int, oom_kills: int, kind: IncidentKind, words: str) -> None:
    """Each way to end without an exception has its kind and says so."""
    found = incident(exited(1, code), oom_kills=oom_kills)
    assert found.kind is kind
    assert words in " ".join(found.reasons)


@pytest.mark.parametrize(
    ("type_name", "bases", "kind"),
    [
        ("ImportError", (), IncidentKind.IMPORT_OR_SYNTAX_ERROR),
        ("ModuleNotFoundError", (), IncidentKind.IMPORT_OR_SYNTAX_ERROR),
        ("SyntaxError", (), IncidentKind.IMPORT_OR_SYNTAX_ERROR),
        ("IndentationError", (), IncidentKind.IMPORT_OR_SYNTAX_ERROR),
        ("TabError", (), IncidentKind.IMPORT_OR_SYNTAX_ERROR),
        ("NameError", (), IncidentKind.IMPORT_OR_SYNTAX_ERROR),
        ("UnboundLocalError", (), IncidentKind.IMPORT_OR_SYNTAX_ERROR),
        ("MyImportError", ("ImportError", "Exception"), IncidentKind.IMPORT_OR_SYNTAX_ERROR),
        ("MyImportError", ("Exception",), IncidentKind.EXCEPTION),
        ("AttributeError", ("Exception",), IncidentKind.EXCEPTION),
        ("RuntimeError", ("Exception",), IncidentKind.EXCEPTION),
        ("FileNotFoundError", ("OSError",), IncidentKind.EXCEPTION),
        ("DistStoreError", (), IncidentKind.COMMUNICATION_ERROR),
        ("DistributionError", (), IncidentKind.EXCEPTION),
    ],
)
def test_exceptions_by_type(type_name: str, bases: tuple[str, ...], kind: IncidentKind) -> None:
    """Types are recognised by their own name or a base's; a name that only looks like one is not."""
    assert incident(exited(0, 1, record=error(type_name, "x", bases=bases))).kind is kind


TRAINING = "/home/u/train.py"
SOCKET = "/usr/lib/python3.11/socket.py"
RENDEZVOUS = "/env/lib/python3.11/site-packages/torch/distributed/rendezvous.py"
DATA_LOADER = "/env/lib/python3.11/site-packages/torch/utils/data/dataloader.py"
HTTP_CLIENT = "/env/lib/python3.11/site-packages/urllib3/connection.py"


@pytest.mark.parametrize(
    ("frames", "is_echo"),
    [
        pytest.param((TRAINING, RENDEZVOUS), True, id="torch.distributed"),
        pytest.param((TRAINING, RENDEZVOUS, SOCKET), True, id="socket under torch.distributed"),
        pytest.param((TRAINING,), False, id="own code"),
        pytest.param((TRAINING, SOCKET), False, id="own code's socket"),
        pytest.param((RENDEZVOUS, TRAINING), False, id="own code called by torch.distributed"),
        pytest.param((TRAINING, HTTP_CLIENT, SOCKET), False, id="other library"),
        pytest.param((TRAINING, DATA_LOADER), False, id="other part of torch"),
        pytest.param((), False, id="no traceback"),
    ],
)
@pytest.mark.parametrize(
    "type_name", ["ConnectionResetError", "BrokenPipeError", "TimeoutError", "MyPeerError"]
)
def test_pythons_connection_errors_are_echoes_only_from_torch_distributed(
    type_name: str, frames: tuple[str, ...], is_echo: bool
) -> None:
    """A data server that is gone or a closed stdout is this rank's own failure, and the first stays it."""
    shown = "".join(f'  File "{path}", line 7, in f\n    call()\n' for path in frames)
    record = ErrorRecord(type_name, "server closed", shown, bases=("ConnectionError", "OSError"))
    found = incident(
        exited(0, 1, at=10.0, record=record), exited(1, 1, at=10.1, record=error("ValueError", "shape"))
    )
    assert found.culprit.rank == (1 if is_echo else 0)


def test_watchdog_that_died_of_its_own_gpu_is_no_echo() -> None:
    """A CUDA error on the rank itself outweighs the watchdog's words."""
    tail = (WATCHDOG, "CUDA error: an illegal memory access was encountered")
    found = incident(exited(0, -6, tail=tail), exited(1, 3, at=10.1))
    assert (found.culprit.rank, found.kind) == (0, IncidentKind.CUDA_ERROR)


@pytest.mark.parametrize(
    ("message", "oom_kills", "kind"),
    [
        ("DataLoader worker (pid 77) is killed by signal: Killed. ", 1, IncidentKind.HOST_OOM),
        ("DataLoader worker (pid(s) 77, 78) exited unexpectedly", 1, IncidentKind.HOST_OOM),
        ("DataLoader worker (pid 77) is killed by signal: Killed. ", 0, IncidentKind.DATA_LOADER),
        ("DataLoader worker (pid 77) is killed by signal: Bus error. ", 0, IncidentKind.BUS_ERROR),
        ("DataLoader worker (pid 77) is killed by signal: Terminated. ", 1, IncidentKind.DATA_LOADER),
        ("DataLoader is not iterable", 1, IncidentKind.EXCEPTION),
    ],
)
def test_data_loaders_that_died(message: str, oom_kills: int, kind: IncidentKind) -> None:
    """An exception about a dead data loader is called by what killed the loader."""
    assert incident(exited(0, 1, record=error("RuntimeError", message)), oom_kills=oom_kills).kind is kind


def test_out_of_memory_names_limit_and_size() -> None:
    """The sentence has the numbers that a person needs to choose a limit."""
    found = incident(exited(1, -9, rss=3 << 29), oom_kills=1, limit=2 << 30)
    assert found.reasons[0] == (
        "rank 1 (pid 101) was killed by SIGKILL because host memory ran out: the kernel counted 1 OOM kill "
        "in this cgroup, memory limit 2.0 GiB, largest resident size of rank 1 1.5 GiB"
    )


def test_exception_beside_an_oom_kill_mentions_it() -> None:
    """An OOM kill in the same round is told even when the cause is called otherwise."""
    found = incident(exited(0, 1, record=error("EOFError", "x")), oom_kills=2)
    assert found.kind is IncidentKind.EXCEPTION
    assert "2 OOM kills" in found.reasons[1]


def test_reasons_tell_what_where_and_who_fell_with_it() -> None:
    """The first sentence stands alone; the others add steps and collateral."""
    record = error("ValueError", "bad\nloss", frame="train.py:31 in step")
    found = incident(exited(1, 1, record=record, steps=17), exited(0, -15, is_stopped=True), progressed=True)
    assert found.reasons == (
        "rank 1 (pid 101) raised ValueError: bad loss (train.py:31 in step)",
        "it had done 17 steps in round 2",
        "1 other rank fell with it: 0",
    )
    assert found.has_progressed


def test_exception_wins_over_the_signal_of_the_way_out() -> None:
    """An interpreter that aborts after an uncaught exception failed by the exception."""
    assert incident(exited(0, -6, record=error("ValueError", "bad"))).kind is IncidentKind.EXCEPTION


def test_traceback_on_stderr_stands_in_for_a_missing_record() -> None:
    """Without an error file (--no-python) the last lines name the exception, also with torch's prefix."""
    lines = ("Traceback (most recent call last):", '  File "x.py", line 1', "ModuleNotFoundError: No module")
    assert incident(exited(0, 1, tail=lines)).kind is IncidentKind.IMPORT_OR_SYNTAX_ERROR
    prefixed = tuple(f"[rank0]: {line}" for line in lines)
    assert incident(exited(0, 1, tail=prefixed)).kind is IncidentKind.IMPORT_OR_SYNTAX_ERROR


def test_traceback_that_was_not_the_end_is_no_cause() -> None:
    """A logged traceback before a chosen exit code, or an error line without one, names no exception."""
    lines = ("Traceback (most recent call last):", "ValueError: handled")
    assert incident(exited(0, 5, tail=lines)).kind is IncidentKind.EXIT_CODE
    assert incident(exited(0, 1, tail=(*lines, "giving up"))).kind is IncidentKind.EXIT_CODE
    assert incident(exited(0, 1, tail=lines[1:])).kind is IncidentKind.EXIT_CODE


SAME = [
    ("loss is nan at step 17", "loss is nan at step 23009"),
    ("object at 0x7f1a2b3c", "object at 0x55d0"),
    ("cannot open /data/shard-00017.bin", "cannot open /data/shard-00203.bin"),
    ("cannot open /tmp/tmpab3xk_9z/x", "cannot open /tmp/tmpq9w8e7rt/x"),
    ("id 9f8b7c6d-1234-4abc-8def-001122334455 lost", "id 00aabbcc-9999-4abc-8def-99aa88bb77cc lost"),
    ("a  b\nc", "a b c"),
]


@pytest.mark.parametrize(("one", "other"), SAME)
def test_fingerprint_ignores_what_changes_from_run_to_run(one: str, other: str) -> None:
    """Numbers, addresses, ids and temporary names do not make another failure."""
    prints = [incident(exited(0, 1, record=error("ValueError", text))).fingerprint for text in (one, other)]
    assert prints[0] == prints[1]


def test_fingerprints_of_different_failures_differ() -> None:
    """Type, words, frame, signal and exit code each tell failures apart."""
    records = [
        error("ValueError", "bad loss"),
        error("KeyError", "bad loss"),
        error("ValueError", "bad face"),
        error("ValueError", "bad loss", frame="train.py:31 in step"),
        error("ValueError", "bad loss", frame="train.py:32 in step"),
    ]
    exits = [exited(0, 1, record=record) for record in records]
    exits += [exited(0, code) for code in (3, 4, -9, -11)]
    prints = [incident(exit).fingerprint for exit in exits]
    assert len(set(prints)) == len(prints)


def test_fingerprint_does_not_depend_on_rank_pid_or_time() -> None:
    """The same bug on another rank is the same failure."""
    first = incident(exited(0, 1, at=1.0, record=error("ValueError", "x")))
    second = incident(exited(5, 1, at=9.0, record=error("ValueError", "x")))
    assert first.fingerprint == second.fingerprint


ERRORS = (None, error("ValueError", "x", at=4.0), error("RuntimeError", GLOO), error("ImportError"))
EXIT = st.builds(
    exited,
    st.integers(0, 7),
    st.sampled_from([0, 1, 3, 137, -6, -9, -11, -15]),
    st.floats(0, 20),
    st.sampled_from(ERRORS),
    is_stopped=st.booleans(),
    tail=st.sampled_from([(), (WATCHDOG,), ("ValueError: x",)]),
)


@given(st.lists(EXIT, min_size=1, max_size=8, unique_by=lambda exit: exit.failed_at), st.integers(0, 2))
def test_diagnosis_is_total_and_ignores_the_order_of_ranks(exits: list[RankExit], oom_kills: int) -> None:
    """Any evidence with a failure gives one culprit that failed; the order of the ranks changes nothing."""
    if not any(exit.exit_code != 0 and not exit.is_stopped_by_agent for exit in exits):
        with pytest.raises(ValueError):
            incident(*exits, oom_kills=oom_kills)
        return
    found = incident(*exits, oom_kills=oom_kills)
    assert found.culprit in exits
    assert found.culprit.exit_code != 0
    assert found.reasons[0].startswith(f"rank {found.culprit.rank} ")
    again = incident(*reversed(exits), oom_kills=oom_kills)
    assert (again.culprit, again.kind) == (found.culprit, found.kind)
    assert again.fingerprint == found.fingerprint


HANG_CASES = [
    (Rule.INITIAL, IncidentKind.HANG_INITIAL),
    (Rule.STEADY, IncidentKind.HANG_STEADY),
    (Rule.SECTION, IncidentKind.HANG_SECTION),
    (Rule.OUT_OF_SECTION, IncidentKind.HANG_SECTION),
    (Rule.STALL, IncidentKind.STALL),
]


def hung(rule: Rule, rank: int | None, culprits: tuple[int, ...]) -> Incident:
    """The incident of a round of three ranks that the agent stopped for a hang."""
    verdict = Verdict(rule, rank, culprits, 3.2, 3.0, "fault_tolerance.rank_heartbeat_timeout", "it hangs")
    exits = (exited(0, -15, is_stopped=True), exited(1, -9, is_stopped=True), exited(2, 1))
    return diagnose([Evidence("node-a", 4, exits, True, hang=verdict)])


@pytest.mark.parametrize(("rule", "kind"), HANG_CASES, ids=lambda case: case.value)
def test_verdict_of_a_hang_is_the_incident_whatever_the_exits(rule: Rule, kind: IncidentKind) -> None:
    """How ranks ended after they were ended for a hang says nothing about its cause."""
    found = hung(rule, 1, (1,))
    assert (found.kind, found.culprit.rank, found.reasons[0]) == (kind, 1, "it hangs")
    assert [exit.rank for exit in found.collateral] == [0, 2]


def test_culprit_of_a_hang_is_the_rank_to_blame_before_the_one_whose_limit_passed() -> None:
    """The rank that waits for a hung one is often the first whose limit passes."""
    assert hung(Rule.STEADY, 0, (1,)).culprit.rank == 1
    assert hung(Rule.STEADY, 2, ()).culprit.rank == 2
