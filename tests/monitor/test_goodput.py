"""The goodput ledger: sums, and that it finds in a journal what the time really went into."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ftrun.monitor import events as ev
from ftrun.monitor.goodput import Bucket, Ledger, make_ledger
from ftrun.monitor.history import Run
from ftrun.monitor.lives import Life
from ftrun.monitor.merging import merge
from ftrun.monitor.node_times import segments_of
from ftrun.monitor.timeline import group
from tests.support.journals import JOURNALS, lives_of, recorded
from tests.support.simulated_journals import Journals, Part, Simulation, read

SECONDS = st.floats(0.0, 500.0, allow_nan=False).map(lambda seconds: round(seconds, 3))
PARTS = st.builds(
    Part,
    rendezvous_s=SECONDS,
    start_s=SECONDS,
    load_s=SECONDS,
    steps=st.integers(0, 50),
    step_s=st.floats(0.01, 5.0),
    kept=st.integers(0, 60),
    silent_s=st.one_of(st.just(0.0), SECONDS),
    stop_s=SECONDS,
    kind=st.sampled_from(["killed", "exception", "stall"]),
)
CLOCKS = st.floats(0.0, 1e9, allow_nan=False)
QUICK = settings(max_examples=150)


def run_of(lives: Sequence[Sequence[Life]], now_ts: float | None = None) -> Run:
    """The one run of these journals."""
    [members] = group(lives)
    return merge(members, now_ts)


def check_sums(run: Run) -> Ledger:
    """Every second of every node is in one bucket: rows without gap or overlap, as long as the run."""
    rows = segments_of(run)
    for row in rows.values():
        assert all(one.ended > one.began for one in row)
        assert all(left.ended == right.began for left, right in pairwise(row))
        if run.wall_s:
            assert (row[0].began, row[-1].ended) == (run.began, run.ended)
    ledger = make_ledger(run, rows)
    assert sum(ledger.total.values()) == pytest.approx(run.wall_s * len(run.nodes), rel=1e-3, abs=1e-6)
    for figure in (ledger.training, ledger.infrastructure):
        assert figure is None or -1e-9 <= figure <= 1 + 1e-9
    return ledger


@QUICK
@given(
    parts=st.lists(PARTS, min_size=1, max_size=5),
    clocks=st.lists(CLOCKS, min_size=1, max_size=4),
    ranks=st.integers(1, 3),
)
def test_ledger_finds_what_the_time_went_into(parts: list[Part], clocks: list[float], ranks: int) -> None:
    """Whatever happens, and however the nodes' clocks differ, each bucket is what was really spent."""
    nodes = [f"n{place}" for place in range(len(clocks))]
    journals = Simulation(nodes, ranks, dict(zip(nodes, clocks, strict=True))).run(parts)
    ledger = check_sums(run_of(journals.lives()))
    for bucket, truth_s in journals.truth.items():
        # The journal has microseconds, and a clock of 1e9 s has less.
        assert ledger.total[bucket] == pytest.approx(truth_s, abs=1e-3 + 1e-4 * len(parts) * len(nodes)), (
            bucket
        )


@QUICK
@given(data=st.data(), parts=st.lists(PARTS, min_size=2, max_size=4), count=st.integers(1, 3))
def test_sums_hold_for_whatever_is_left_of_the_journals(
    data: st.DataObject, parts: list[Part], count: int
) -> None:
    """Agents killed at any line, lines lost, nodes without a journal: no second is lost."""
    nodes = [f"n{place}" for place in range(count)]
    journals = Simulation(nodes, 2).run(parts)
    kept: list[list[str]] = []
    for lines in journals.lines.values():
        cut = lines[: data.draw(st.integers(0, len(lines)), label="cut")]
        lost = data.draw(st.sets(st.integers(0, max(0, len(cut) - 1)), max_size=5), label="lost")
        kept.append([line for place, line in enumerate(cut) if place not in lost])
    lives = [read(lines) for lines in kept]
    for members in group(lives):
        check_sums(merge(members))
        check_sums(merge(members, now_ts=data.draw(st.floats(0, 2e9), label="now")))


@pytest.mark.parametrize("name", recorded())
def test_sums_hold_for_recorded_journals(name: str) -> None:
    """Real runs, whole and as they were at every moment before."""
    check_sums(run_of(lives_of(JOURNALS / name)))
    texts = [path.read_text().splitlines() for path in sorted((JOURNALS / name).glob("*.jsonl"))]
    chooser = random.Random(1)
    for _ in range(30):
        cuts = [lines[: chooser.randint(0, len(lines))] for lines in texts]
        for members in group([read(lines) for lines in cuts]):
            check_sums(merge(members))


def ledger_of(journals: Journals) -> Ledger:
    return check_sums(run_of(journals.lives()))


def test_two_figures_of_a_run_with_one_failure() -> None:
    """Training goodput counts the steps that counted; infrastructure goodput all but the recovery."""
    first = Part(rendezvous_s=1, start_s=4, load_s=5, steps=50, step_s=1, kept=40, stop_s=2)
    last = Part(rendezvous_s=1, start_s=1, load_s=3, steps=60, step_s=1, kept=60)
    ledger = ledger_of(Simulation(["a", "b"], 2).run([first, last]))
    wall_s = 10 + 50 + 2 + 5 + 60
    assert ledger.asked_s == pytest.approx(2 * wall_s)
    assert ledger.training == pytest.approx(100 / wall_s, abs=1e-6)
    assert ledger.infrastructure == pytest.approx(1 - 7 / wall_s, abs=1e-6)


def test_job_without_a_step_has_no_infrastructure_goodput() -> None:
    """There was no recovery from anything, and nothing was up either."""
    assert run_figures("crash_loop") == (0.0, None)
    assert run_figures("import_error") == (0.0, None)


def run_figures(name: str) -> tuple[float | None, float | None]:
    ledger = check_sums(run_of(lives_of(JOURNALS / name)))
    return ledger.training, ledger.infrastructure


def test_nodes_wait_for_the_last_one() -> None:
    """The one that comes late is not there; the others wait for it; then they agree."""
    job = Simulation(["a", "b"], 1)
    started = ev.RunStarted("sim", "train.py", 0, 1, "given", 1, "0.1.0", "3.11")
    job.say("a", started)
    job.spend(Bucket.WAITING, 10)
    job.say("b", started)
    journals = job.run([Part(rendezvous_s=1)])
    del journals.lines["a"][1], journals.lines["b"][1]
    [of_a, of_b] = ledger_of(journals).by_node.values()
    assert (of_a[Bucket.WAITING], of_a[Bucket.RENDEZVOUS]) == pytest.approx((10, 1), abs=1e-3)
    assert (of_b[Bucket.DOWN], of_b[Bucket.RENDEZVOUS]) == pytest.approx((10, 1), abs=1e-3)


def test_memory_of_gpus_is_waited_for_before_workers_start() -> None:
    """What the agent says it waited is neither rendezvous nor start."""
    job = Simulation(["a"], 1)
    job.begin()
    job.spend(Bucket.HEALTH, 7)
    job.say("a", ev.GpuMemoryAwaited("gpu 0", 1 << 30, 7.0, True, ()))
    journals = job.run([Part()])
    del journals.lines["a"][2]
    assert ledger_of(journals).total[Bucket.HEALTH] == pytest.approx(7, abs=1e-3)


def test_checkpoint_blocks_training() -> None:
    """The time in which steps stand still for a save is neither productive nor redone."""
    job = Simulation(["a"], 2)
    journals = job.run([Part(steps=20, step_s=1.0, kept=20)])
    lines = journals.lines["a"]
    progressed = next(place for place, line in enumerate(lines) if "worker.exited" in line)
    at = 1000.0 + 0.1 + 1 + 2 + 12
    for rank, blocking_s in ((0, 2.0), (1, 2.5)):
        save = ev.CheckpointSaved(0, rank, "/c/step-10", 10, blocking_s)
        lines.insert(progressed, ev_line(save, at))
    ledger = ledger_of(journals)
    assert ledger.total[Bucket.CHECKPOINT] == pytest.approx(2.5, abs=1e-3)
    assert ledger.total[Bucket.PRODUCTIVE] == pytest.approx(17.5, abs=1e-3)


def ev_line(event: ev.Event, at: float) -> str:
    from ftrun.monitor.records import Record, to_json

    return to_json(Record(1.7e9 + at, at, "a", event))


def test_spare_and_replaced_node_are_not_asked_for() -> None:
    """One node leaves and a spare takes its place: neither its time before nor the other's after counts."""
    ledger = check_sums(run_of(lives_of(JOURNALS / "spare")))
    of_b, of_c = ledger.by_node["gpu-b"], ledger.by_node["gpu-c"]
    assert of_b[Bucket.ABSENT] > 20
    assert of_c[Bucket.SPARE] > 20
    assert of_c[Bucket.PRODUCTIVE] > 5
    assert ledger.asked_s < sum(ledger.total.values()) - 80


def test_peers_of_a_killed_agent_are_in_detection_until_they_know() -> None:
    """From the death of a node on, the others can make no step, and nobody knows for some seconds."""
    ledger = check_sums(run_of(lives_of(JOURNALS / "five_faults")))
    assert ledger.by_node["gpu-a"][Bucket.DETECTING] > ledger.by_node["gpu-b"][Bucket.DETECTING] + 2


def test_journals_are_of_real_runs() -> None:
    """The recordings are there."""
    assert {path.name for path in Path(JOURNALS).iterdir() if path.is_dir()} >= {
        "five_faults", "spare", "killed_agent", "crash_loop", "import_error",
    }  # fmt: skip


def stuck(step_s: float, silent_s: float) -> Ledger:
    """A job of one node whose rank dies of a timeout after so long without a step."""
    job = Simulation(["a"], 1)
    job.begin()
    job.say("a", ev.RoundClosed(0, 1, 0, "h", 20000, None, None, ("a",), ()))
    job.say("a", ev.WorkerStarted(0, 0, 0, 100, True, "warm"))
    job.spend(Bucket.STARTING, 1)
    job.say("a", ev.WorkerProgressed(0, 0, None, 0.0))
    job.spend(Bucket.PRODUCTIVE, 10 * step_s + silent_s)
    job.say("a", ev.WorkerExited(0, 0, 0, 100, 1, None, False, 11))
    job.say("a", ev.ProgressObserved(0, 11, None, silent_s))
    job.say("a", ev.RoundStopped(0, "failure", 0.0))
    job.say("a", ev.IncidentDiagnosed(0, "nccl_timeout", 0, 0, 100, 1, ("timeout",), "f", True, ()))
    return ledger_of(job.journals)


def test_silence_before_a_failure_is_detection() -> None:
    """A collective that waits for ten minutes before it fails: all but the step that was under way."""
    total = stuck(step_s=2.0, silent_s=600.0).total
    assert total[Bucket.DETECTING] == pytest.approx(598, abs=1e-3)
    assert total[Bucket.PRODUCTIVE] == pytest.approx(22, abs=1e-3)


def test_failure_in_the_midst_of_a_step_is_no_silence() -> None:
    """It was training until then."""
    total = stuck(step_s=2.0, silent_s=5.9).total
    assert total[Bucket.DETECTING] == 0
    assert total[Bucket.PRODUCTIVE] == pytest.approx(25.9, abs=1e-3)


def test_several_saves_of_one_record_block_as_long_as_all() -> None:
    """Frequent saves are told together."""
    job = Simulation(["a"], 1)
    journals = job.run([Part(steps=20, step_s=1.0, kept=20)])
    lines = journals.lines["a"]
    place = next(place for place, line in enumerate(lines) if "worker.exited" in line)
    saved = ev.CheckpointSaved(0, 0, "/c/step-12", 12, 0.5, age_s=1.5, count=4)
    lines.insert(place, ev_line(saved, 1000.0 + 0.1 + 1 + 2 + 14))
    assert ledger_of(journals).total[Bucket.CHECKPOINT] == pytest.approx(2.0, abs=1e-3)
