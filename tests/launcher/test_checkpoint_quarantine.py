"""A checkpoint that ends the rounds that begin from it is not used any more; one that does not is kept."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ftrun.launcher.checkpoint_choice import choose_common, trusted
from ftrun.launcher.checkpoint_quarantine import (
    Suspicion,
    TrustRules,
    begin_from,
    examine,
    explain_none_left,
    find_cleared,
    mark,
    suspect,
)
from ftrun.launcher.config import RestartConfig
from ftrun.launcher.messages import Agent, Join, Memory, SeenCheckpoint
from ftrun.launcher.model import Action, PastIncident
from ftrun.launcher.policy import decide
from ftrun.monitor.incident import ErrorRecord, Incident, IncidentKind, RankExit
from tests.support.cases import case_of

LOADER = '  File "/v/torch/distributed/checkpoint/state_dict_loader.py", line 281, in local_step\n'
CORRUPT = "PytorchStreamReader failed reading zip archive: failed finding central directory"
RULES = TrustRules()


def checkpoint(step: int, saved_ns: int = 0) -> SeenCheckpoint:
    """One of a job's checkpoints."""
    return SeenCheckpoint(f"/c/step-{step}", step, saved_ns or step)


def incident(
    kind: IncidentKind = IncidentKind.EXCEPTION,
    message: str = "bad weights",
    trace: str = "",
    has_progressed: bool = False,
    exit_code: int = 1,
    stderr: tuple[str, ...] = (),
    type_name: str = "RuntimeError",
) -> Incident:
    """A round that ended."""
    error = ErrorRecord(type_name, message, trace) if kind is IncidentKind.EXCEPTION else None
    culprit = RankExit(1, 1, 42, exit_code, 10.0, False, error, stderr_tail=stderr)
    return Incident(kind, 3, "n", culprit, (f"rank 1 raised {message}",), f"{kind}|{message}", has_progressed)


def joins(*offers: list[SeenCheckpoint], is_expected: bool = False) -> list[Join]:
    """What nodes see, newest first."""
    return [
        Join(
            Agent(f"n{place}", f"i{place}"),
            1,
            "h",
            1,
            has_checkpoint_dir=True,
            checkpoints=tuple(seen),
            is_resume_expected=is_expected or bool(seen),
        )
        for place, seen in enumerate(offers)
    ]


def of_round(step: int, **more: object) -> Memory:
    """Of a round that began from a checkpoint."""
    return replace(Memory(3, 3, resume=checkpoint(step)), **more)  # type: ignore[arg-type]


SUSPICIONS = {
    "segmentation fault": (incident(IncidentKind.SEGFAULT), "suspected"),
    "a diagnosis is sure of it": (replace(incident(IncidentKind.CHECKPOINT_LOAD), confidence=0.9), "proven"),
    "a diagnosis guesses it": (replace(incident(IncidentKind.CHECKPOINT_LOAD), confidence=0.6), "suspected"),
    "exception before progress": (incident(), "suspected"),
    "exception after progress": (incident(has_progressed=True), "suspected"),
    "exit code": (incident(IncidentKind.EXIT_CODE, exit_code=3), "suspected"),
    "abort": (incident(IncidentKind.ABORT), "suspected"),
    "hang before the first heartbeat": (incident(IncidentKind.HANG_INITIAL), "suspected"),
    "stall before progress": (incident(IncidentKind.STALL), "suspected"),
    "stall after progress": (incident(IncidentKind.STALL, has_progressed=True), "none"),
    "killed from outside": (incident(IncidentKind.KILLED), "none"),
    "killed below a shell": (incident(IncidentKind.EXIT_CODE, exit_code=137), "none"),
    "out of host memory": (incident(IncidentKind.HOST_OOM), "none"),
    "out of GPU memory": (incident(message="CUDA out of memory. Tried"), "none"),
    "lost node": (incident(IncidentKind.NODE_LOST), "none"),
    "preempted": (incident(IncidentKind.PREEMPTED), "none"),
    "workers not started": (incident(IncidentKind.START_FAILED), "none"),
    "unreachable": (incident(IncidentKind.UNREACHABLE), "none"),
    "wrong import": (incident(IncidentKind.IMPORT_OR_SYNTAX_ERROR), "none"),
    "communication": (incident(IncidentKind.COMMUNICATION_ERROR), "none"),
    "nothing known": (incident(IncidentKind.UNKNOWN), "none"),
    "other signal": (incident(IncidentKind.SIGNAL, exit_code=-15), "none"),
    "disk full": (incident(message="[Errno 28] No space left on device"), "none"),
    "port in use": (incident(message="Address already in use"), "none"),
    "data loader": (incident(message="DataLoader worker (pid 7) exited unexpectedly"), "none"),
    "corrupt, in DCP's loader": (incident(message=CORRUPT, trace=LOADER), "proven"),
    "corrupt, names the checkpoint": (incident(message=f"{CORRUPT}: /c/step-40/a.pt"), "proven"),
    "corrupt, another file": (incident(message=f"{CORRUPT}: /models/base.pt"), "suspected"),
    "corrupt, after progress": (incident(message=CORRUPT, trace=LOADER, has_progressed=True), "suspected"),
    "wrong size, in DCP's loader": (incident(message="Size mismatch", trace=LOADER), "suspected"),
    "corrupt on stderr": (
        incident(IncidentKind.EXIT_CODE, stderr=(LOADER, "pickle data was truncated")),
        "proven",
    ),
}


@pytest.mark.parametrize(("ended", "suspicion"), SUSPICIONS.values(), ids=SUSPICIONS)
def test_what_an_end_says_of_the_checkpoint(ended: Incident, suspicion: str) -> None:
    """Ends that cannot be its doing say nothing; damage that its loader reports proves it."""
    assert suspect(ended, checkpoint(40)) is Suspicion(suspicion)


def test_proof_quarantines_at_once() -> None:
    """And the reason says what was found."""
    memory, lost = examine(
        of_round(40), incident(message=CORRUPT, trace=LOADER), joins([checkpoint(40), checkpoint(20)]), RULES
    )
    assert lost is not None
    assert lost.checkpoint == checkpoint(40)
    assert lost.reason.startswith("it cannot be loaded: rank 1 raised PytorchStreamReader failed")
    assert trusted([checkpoint(40), checkpoint(20)], memory.quarantined) == (checkpoint(20),)


def test_second_suspicion_quarantines() -> None:
    """A kill in between neither counts nor forgets."""
    seen = joins([checkpoint(40), checkpoint(20)])
    memory, lost = examine(of_round(40), incident(), seen, RULES)
    assert (memory.resume_failures, lost) == (1, None)
    memory, lost = examine(memory, incident(IncidentKind.KILLED), seen, RULES)
    assert (memory.resume_failures, lost) == (1, None)
    memory, lost = examine(memory, incident(IncidentKind.SEGFAULT), seen, RULES)
    assert lost is not None
    assert lost.reason.startswith("2 rounds that began from it ended before the next one was complete")
    assert memory.resume_failures == 0


def test_next_checkpoint_restores_trust() -> None:
    """What has led to another whole checkpoint can be trained from."""
    memory, lost = examine(
        of_round(40, resume_failures=1), incident(), joins([checkpoint(60), checkpoint(40)]), RULES
    )
    assert (memory.resume_failures, lost) == (0, None)


def test_next_checkpoint_that_one_node_misses_does_not_count() -> None:
    """The next round would begin from the same one again."""
    seen = joins([checkpoint(60), checkpoint(40), checkpoint(20)], [checkpoint(40), checkpoint(20)])
    assert examine(of_round(40, resume_failures=1), incident(), seen, RULES)[1] is not None


def test_checkpoint_whose_time_differs_between_nodes_is_one() -> None:
    """Nodes with disks of their own have times of their own."""
    seen = joins([checkpoint(40, 111)], [checkpoint(40, 222)])
    segfault = incident(IncidentKind.SEGFAULT)
    memory, lost = examine(of_round(40, resume_failures=1), segfault, seen, RULES)
    assert lost is not None
    for join in seen:
        assert trusted(join.checkpoints, memory.quarantined) == ()


def test_checkpoint_that_is_saved_anew_is_trusted() -> None:
    """Training that was set back comes by the same step again."""
    seen = joins([checkpoint(40), checkpoint(20)])
    memory, _ = examine(of_round(40, resume_failures=1), incident(), seen, RULES)
    assert trusted([checkpoint(40)], memory.quarantined) == ()
    assert trusted([checkpoint(40, 999)], memory.quarantined) == (checkpoint(40, 999),)


@pytest.mark.parametrize(("max_failures", "ends"), [(0, None), (1, 1), (2, 2), (3, 3)])
def test_number_of_failures_is_configured(max_failures: int, ends: int | None) -> None:
    """0 quarantines only what is proven."""
    memory, count, seen = of_round(40), 0, joins([checkpoint(40), checkpoint(20)])
    for _ in range(6):
        memory, lost = examine(memory, incident(), seen, TrustRules(max_failures))
        count += 1
        if lost is not None:
            break
    assert (count if lost else None) == ends


def test_round_that_began_from_nothing_blames_nobody() -> None:
    """There is nothing to quarantine."""
    assert examine(Memory(3, 3), incident(), joins([]), RULES) == (Memory(3, 3), None)


def play(ends: list[Incident], steps: list[int], max_restarts: int = 10) -> tuple[list[int | None], str]:
    """Which steps the rounds began from, and why the job ended, as host agent and policy have it."""
    memory, began, config = Memory(), [], RestartConfig()
    for ended in ends:
        seen = joins([checkpoint(step) for step in steps])
        resume = choose_common([trusted(join.checkpoints, memory.quarantined) for join in seen])
        if resume is None and (why := explain_none_left(memory, seen, RULES)):
            return began, why
        memory = begin_from(replace(memory, round_number=memory.round_number + 1), resume)
        began.append(resume.step if resume else None)
        memory, lost = examine(memory, ended, seen, RULES)
        cleared = find_cleared(memory, ended) if lost is None else None
        seen_as = ended if lost is None else mark(ended, lost)
        seen_as = replace(seen_as, fingerprint=cleared.fingerprint) if cleared else seen_as
        decision = decide(case_of(seen_as, memory.history), max_restarts, config)
        if decision.action is Action.STOP:
            return began, decision.reason
        past = PastIncident(ended.kind, seen_as.fingerprint, ended.has_progressed)
        memory = replace(memory, history=(*memory.history, past))
    return began, ""


def test_damaged_checkpoints_are_passed_one_after_the_other() -> None:
    """Each costs one round, and the policy does not take the same error for a hopeless job."""
    corrupt = incident(message=CORRUPT, trace=LOADER)
    assert play([corrupt] * 9, [60, 40, 20])[0] == [60, 40, 20]
    assert "no checkpoint is left: /c/step-60, /c/step-40, /c/step-20" in play([corrupt] * 9, [60, 40, 20])[1]


def test_suspected_checkpoint_costs_two_rounds() -> None:
    """Then the one before is used, and training goes on from it."""
    ends = [incident(), incident(), incident(IncidentKind.KILLED, has_progressed=True)]
    assert play(ends, [60, 40])[0] == [60, 60, 40]


def test_script_that_fails_from_every_checkpoint_is_to_blame_itself() -> None:
    """A model that was changed, or data that is not there, does not cost all checkpoints their trust."""
    began, why = play([incident(message="Size mismatch")] * 9, [60, 40, 20])
    assert began == [60, 60, 40]
    assert "the same exception twice in a row" in why


def test_only_checkpoint_is_not_quarantined_for_an_exception_of_the_script() -> None:
    """There is none to begin from instead, and the next job needs it; damage that is proven still counts."""
    began, why = play([incident(message="data.bin is not there")] * 9, [60])
    assert began == [60, 60]
    assert "the same exception twice in a row" in why
    memory, lost = examine(of_round(60, resume_failures=1), incident(), joins([checkpoint(60)]), RULES)
    assert (memory.quarantined, memory.resume_failures, lost) == ((), 2, None)
    corrupt = incident(message=CORRUPT, trace=LOADER)
    assert examine(of_round(60), corrupt, joins([checkpoint(60)]), RULES)[1] is not None


@pytest.mark.parametrize(
    ("ended", "is_cleared"),
    [
        pytest.param(incident(), True, id="the same exception"),
        pytest.param(incident(message="something else"), False, id="another exception"),
        pytest.param(incident(has_progressed=True), False, id="after progress"),
        pytest.param(incident(message="CUDA out of memory. Tried"), False, id="nothing of a checkpoint's"),
    ],
)
def test_quarantined_checkpoint_is_cleared_by_the_same_end_of_an_older_one(
    ended: Incident, is_cleared: bool
) -> None:
    """What both bring before any progress is not the doing of either."""
    _, lost = examine(
        of_round(60, resume_failures=1), incident(), joins([checkpoint(60), checkpoint(40)]), RULES
    )
    assert lost is not None
    past = PastIncident(IncidentKind.EXCEPTION, mark(incident(), lost).fingerprint, False)
    found = find_cleared(of_round(40, history=(past,)), ended)
    assert (found is not None) == is_cleared
    assert found is None or (found.path, found.fingerprint) == ("/c/step-60", past.fingerprint)


def test_kills_never_cost_a_checkpoint_its_trust() -> None:
    """However often, and however early."""
    began, _ = play([incident(IncidentKind.KILLED)] * 10, [60, 40])
    assert began == [60] * 10


NONE_LEFT = {
    "no node has a directory": (Memory(), [Join(Agent("a", "i"), 1, "h", 1)], "fresh", ""),
    "never was one": (Memory(), joins([]), "fresh", ""),
    "never was one, and must be": (Memory(), joins([]), "stop", "checkpoint.if_none is stop"),
    "was one": (Memory(), joins([], is_expected=True), "fresh", "no checkpoint is whole any more, and"),
    "last round had one": (of_round(40), joins([]), "fresh", "no checkpoint is whole any more, and"),
    "was one on some nodes": (
        Memory(),
        [*joins([]), replace(joins([], is_expected=True)[0], agent=Agent("b", "i"))],
        "fresh",
        "no checkpoint is whole any more on b, and",
    ),
    "quarantined": (
        Memory(quarantined=("/c/step-40@4", "/c/step-40@5")),
        joins([]),
        "fresh",
        "no checkpoint is left: /c/step-40 cannot be used, and",
    ),
    "nothing in common": (
        Memory(),
        joins([checkpoint(40)], []),
        "fresh",
        "no checkpoint is seen by all nodes (n0: /c/step-40, n1: none), and",
    ),
}


@pytest.mark.parametrize(("memory", "seen", "if_none", "sentence"), NONE_LEFT.values(), ids=NONE_LEFT)
def test_job_never_starts_from_nothing_unseen(
    memory: Memory, seen: list[Join], if_none: str, sentence: str
) -> None:
    """Only where there never was a checkpoint; else the reason names what is wrong and what to do."""
    why = explain_none_left(memory, seen, TrustRules(if_none=if_none))
    assert sentence in why
    assert bool(why) == bool(sentence)
    assert not why or "checkpoint" in why


@dataclass(frozen=True)
class Round:
    """How one round of a random job ended."""

    ended: Incident
    saves: bool


KINDS = [kind for kind in IncidentKind if kind is not IncidentKind.UNKNOWN]
ROUNDS = st.lists(
    st.builds(
        lambda kind, is_corrupt, progressed, saves: Round(
            incident(
                kind,
                CORRUPT if is_corrupt else "odd",
                LOADER if is_corrupt else "",
                has_progressed=progressed or saves,
            ),
            saves,
        ),
        st.sampled_from(KINDS),
        st.booleans(),
        st.booleans(),
        st.booleans(),
    ),
    max_size=12,
)


@settings(max_examples=300)
@given(ROUNDS, st.integers(0, 4), st.integers(0, 3), st.booleans())
def test_choice_is_the_newest_that_is_trusted(
    rounds: list[Round], saved: int, max_failures: int, is_late: bool
) -> None:
    """Never a quarantined one, never an older one than need be, never nothing where there was something; and
    the same history gives the same choices.
    """
    rules = TrustRules(max_failures)
    memory, steps = Memory(), [20 * number for number in range(1, saved + 1)]
    for one in rounds:
        offer = [checkpoint(step) for step in sorted(steps, reverse=True)]
        seen = joins(offer, offer[1:] if is_late and len(offer) > 1 else offer)
        offers = [trusted(join.checkpoints, memory.quarantined) for join in seen]
        resume = choose_common(offers)
        left = [step for step in steps if all(checkpoint(step) in trusted_ones for trusted_ones in offers)]
        assert (resume.step if resume else None) == max(left, default=None)
        if resume is None:
            assert bool(explain_none_left(memory, seen, rules)) == bool(steps)
            if steps:
                break
        else:
            assert resume.identity not in memory.quarantined
        memory = begin_from(memory, resume)
        if one.saves:
            steps.append(max(steps, default=0) + 20)
            seen = joins(*[[checkpoint(step) for step in sorted(steps, reverse=True)]] * 2)
        before = memory
        memory, lost = examine(before, one.ended, seen, rules)
        assert (memory, lost) == examine(before, one.ended, seen, rules)
        assert set(before.quarantined) <= set(memory.quarantined)
        if lost is not None:
            assert resume is not None
            assert lost.checkpoint == resume
            assert suspect(one.ended, resume) is not Suspicion.NONE
            assert set(memory.quarantined) - set(before.quarantined) == {resume.identity}


@settings(max_examples=200)
@given(st.lists(st.sampled_from(["killed", "node_lost", "preempted", "host_oom"]), max_size=20))
def test_faults_of_the_machine_never_quarantine(kinds: list[str]) -> None:
    """Neither alone nor together."""
    memory = of_round(40)
    for kind in kinds:
        memory, lost = examine(memory, incident(IncidentKind(kind)), joins([checkpoint(40)]), RULES)
        assert (lost, memory.resume_failures) == (None, 0)
