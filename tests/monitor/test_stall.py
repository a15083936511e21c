"""When the whole job is taken for hung, and what a healthy one may do without being so."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftrun.monitor.liveness import Rule, Verdict
from ftrun.monitor.rank_signs import Signs
from ftrun.monitor.stall import WORKING_IO_BYTES, StallState, begin_round, judge, next_judgement_at, observe
from ftrun.monitor.stall_limits import OUTSIDE_S, StallLimits, limit_now

AUTO = StallLimits()
WITH_INITIAL = StallLimits(initial_s=600.0)


@dataclass
class Job:
    """Ranks whose signs a test moves, watched once a second; a new one has made progress four times."""

    limits: StallLimits = AUTO
    ranks: int = 2
    warm_up: bool = True
    now: float = 1000.0
    state: StallState = field(default_factory=StallState)
    signs: dict[int, Signs] = field(default_factory=dict)
    verdicts: list[Verdict] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.signs = {rank: Signs(self.now, self.now, sampler_at=self.now) for rank in range(self.ranks)}
        self.look()
        if self.warm_up:
            for _ in range(5):
                self.step()
                self.look()

    def look(self, after_s: float = 1.0) -> Verdict | None:
        self.now += after_s
        for rank, one in self.signs.items():
            sampler_at = None if one.sampler_at is None else self.now
            self.signs[rank] = replace(one, at=self.now, sampler_at=sampler_at)
        self.state = observe(self.state, self.signs, self.now, 1.0)
        verdict = judge(self.state, self.now, self.limits)
        if verdict is not None:
            self.verdicts.append(verdict)
        return verdict

    def change(self, rank: int, **values: object) -> None:
        self.signs[rank] = replace(self.signs[rank], **values)  # type: ignore[arg-type]

    def add(self, rank: int, **amounts: float) -> None:
        one = self.signs[rank]
        self.change(rank, **{name: getattr(one, name) + amount for name, amount in amounts.items()})

    def step(self, ranks: Iterable[int] | None = None) -> None:
        for rank in self.signs if ranks is None else ranks:
            self.add(rank, progress_count=1, bytecode_changes=1)
            self.change(rank, last_progress_at=self.now)

    def quiet(self, seconds: float, **each_s: float) -> Verdict | None:
        """Look once a second for so long; `each_s` grows on rank 0 each second. The first verdict, if any."""
        count = len(self.verdicts)
        for _ in range(int(seconds)):
            self.add(0, **each_s)
            self.look()
        return self.verdicts[count] if len(self.verdicts) > count else None


def test_hung_job_is_found_within_the_floor() -> None:
    """A job that made steps and then shows nothing is condemned after the floor and not before."""
    job = Job()
    assert job.quiet(60) is None
    verdict = job.quiet(1)
    assert verdict is not None
    assert (verdict.rule, verdict.rank, verdict.limit_s) == (Rule.STALL, None, 60.0)
    assert verdict.silent_s == pytest.approx(61.0)
    assert "no rank has shown any sign of progress for 61.0 s" in verdict.sentence


def test_limit_follows_the_longest_quiet_time() -> None:
    """Quiet times after which the job went on stretch the limit: five times the longest."""
    job = Job()
    assert job.quiet(20) is None
    job.step()
    job.look()
    assert job.quiet(103) is None
    verdict = job.quiet(5)
    assert verdict is not None
    assert verdict.limit_s == pytest.approx(105.0)
    assert verdict.limit_origin == "learned: safety factor 5 x longest quiet time so far 21.0 s"


HEALTHY: dict[str, dict[str, float]] = {
    "steps that only one rank makes": {"progress_count": 1},
    "bytecode moves": {"bytecode_changes": 2},
    "checkpoint is written": {"io_bytes": 50e6},
    "slow storage": {"io_bytes": 100e3},
    "compiler in a child": {"children_cpu_s": 1.0},
    "data loaders at a tenth of a CPU": {"children_cpu_s": 0.1},
    "C code on other threads": {"other_threads_cpu_s": 1.0},
}


@pytest.mark.parametrize("each_s", HEALTHY.values(), ids=HEALTHY.keys())
def test_one_rank_at_work_keeps_all_alive(each_s: dict[str, float]) -> None:
    """One rank that shows one kind of sign is enough, while all others wait for it."""
    job = Job()
    assert job.quiet(1200, **each_s) is None


IDLE: dict[str, dict[str, float]] = {
    "nothing": {},
    "main thread spins in a collective": {"main_cpu_s": 1.0},
    "threads that wait for the GIL": {"other_threads_cpu_s": 0.02},
    "children that poll": {"children_cpu_s": 0.02},
    "metrics are written": {"io_bytes": 20e3},
}


@pytest.mark.parametrize("each_s", IDLE.values(), ids=IDLE.keys())
def test_housekeeping_is_no_progress(each_s: dict[str, float]) -> None:
    """What an idle process uses does not keep a hung job alive."""
    job = Job()
    assert job.quiet(65, **each_s) is not None


def test_unknown_sampler_makes_main_thread_count() -> None:
    """Without a sampler nobody knows whether Python moves, so the main thread's CPU time counts as work."""
    job = Job()
    job.change(0, sampler_at=None)
    assert job.quiet(300, main_cpu_s=1.0) is None
    assert job.quiet(65) is not None


def test_unreadable_io_makes_main_thread_count() -> None:
    """Without I/O counters a write would not be seen, so the main thread's CPU time counts as work."""
    job = Job()
    job.change(0, io_bytes=None)
    job.look()
    for _ in range(300):
        job.add(0, main_cpu_s=1.0)
        job.look()
    assert not job.verdicts


def test_no_limit_before_progress() -> None:
    """A slow start is no stall: without an initial timeout there is no limit until the first progress."""
    job = Job(warm_up=False)
    assert job.quiet(5000) is None
    assert next_judgement_at(job.state, job.limits) is None


def test_initial_timeout_holds_before_progress() -> None:
    """A job that never moves is found when the configured initial timeout is over."""
    job = Job(WITH_INITIAL, warm_up=False)
    assert job.quiet(600) is None
    verdict = job.quiet(1)
    assert verdict is not None
    assert (verdict.limit_s, verdict.limit_origin) == (
        600.0,
        "fault_tolerance.initial_rank_heartbeat_timeout: no rank has made progress yet",
    )


def test_first_step_teaches_nothing_yet() -> None:
    """After a single step nobody knows what a step looks like: the floor does not hold yet."""
    for limits, expected in ((AUTO, None), (WITH_INITIAL, 600.0)):
        job = Job(limits, warm_up=False)
        job.quiet(100)
        job.step()
        verdict = job.quiet(620)
        assert (verdict.limit_s if verdict else None) == expected


def test_slow_steps_are_learned_before_they_are_judged() -> None:
    """A job whose every step is 100 s of silence is never condemned for it."""
    job = Job(warm_up=False)
    for _ in range(20):
        job.step()
        job.look()
        assert job.quiet(100) is None
    assert limit_now(AUTO, job.state.learned, 0.0, True) is not None
    verdict = job.quiet(600)
    assert verdict is not None
    assert verdict.limit_s == pytest.approx(505.0, abs=6)


def test_long_work_between_few_steps_is_enough_to_learn() -> None:
    """A job with steps of minutes, at work all the time, is known well enough after one of them."""
    job = Job(warm_up=False)
    job.step()
    job.look()
    assert job.quiet(200, bytecode_changes=1) is None
    job.step()
    job.look()
    assert job.quiet(65) is not None


def test_ranks_that_step_at_different_looks_are_one_step() -> None:
    """Eight ranks that finish the same step one after the other have not shown eight intervals."""
    job = Job(ranks=8, warm_up=False)
    for rank in range(8):
        job.step([rank])
        job.look()
    assert job.state.learned.gap_count == 0


def test_quiet_time_before_a_failure_is_not_learned() -> None:
    """What is not followed by progress may have been the hang itself: the next round does not inherit it."""
    job = Job()
    job.quiet(50)
    job.add(1, bytecode_changes=1)
    job.look()
    limit = limit_now(AUTO, job.state.learned, job.state.longest_open_s, True)
    assert limit is not None
    assert limit.seconds > 250.0
    fresh = begin_round(job.state)
    assert (fresh.has_progressed, fresh.quiet_since, fresh.ranks) == (False, None, {})
    assert fresh.learned.longest_quiet_s < 3.0
    assert fresh.learned.is_enough


def test_learned_limit_survives_a_restart() -> None:
    """New workers are judged by what the job has shown before, as soon as they have made a step."""
    job = Job()
    job.quiet(30)
    job.step()
    job.look()
    again = Job(warm_up=False, state=begin_round(job.state), now=job.now + 5)
    assert again.quiet(1000) is None
    again.step()
    verdict = again.quiet(200)
    assert verdict is not None
    assert verdict.limit_s == pytest.approx(155.0, abs=6)


def test_scaled_floor_and_factor() -> None:
    """Floor and factor are the user's."""
    job = Job(StallLimits(floor_s=5.0, safety_factor=2.0))
    assert job.quiet(5) is None
    assert job.quiet(1) is not None


def test_stopped_observer_condemns_nobody() -> None:
    """Minutes in which the agent did not look are not quiet minutes."""
    job = Job()
    assert job.quiet(30) is None
    assert job.look(after_s=3600.0) is None
    assert job.quiet(28) is None
    assert job.quiet(3) is not None


def test_late_judgement_is_of_the_last_look() -> None:
    """Judging long after the last look does not count the time between."""
    job = Job()
    job.quiet(30)
    assert judge(job.state, job.now + 3600.0, AUTO) is None


def test_clock_that_goes_back_condemns_nobody() -> None:
    """After a jump back the quiet time goes on from the new now."""
    job = Job()
    job.quiet(30)
    assert job.look(after_s=-500.0) is None
    assert job.quiet(60) is None
    assert job.quiet(2) is not None


def test_look_that_reads_nothing_counts_as_none() -> None:
    """When no signs can be read at all, the job is not condemned for it."""
    job = Job()
    for _ in range(300):
        job.now += 1.0
        job.state = observe(job.state, {}, job.now, 1.0)
        assert judge(job.state, job.now, AUTO) is None


def test_rank_missing_from_some_looks_is_no_sign() -> None:
    """A rank that cannot be read now and then does not look new each time."""
    job = Job()
    for second in range(70):
        job.now += 1.0
        signs = {rank: replace(one, at=job.now) for rank, one in job.signs.items() if rank or second % 2}
        job.state = observe(job.state, signs, job.now, 1.0)
    assert judge(job.state, job.now, AUTO) is not None


def test_ended_ranks_are_no_hang() -> None:
    """A rank that has ended is neither alive nor hung; with all ended there is nothing to judge."""
    job = Job()
    job.change(0, is_alive=False)
    assert job.quiet(30) is None
    job.change(1, is_alive=False)
    assert job.quiet(100) is None


def test_work_of_an_ended_rank_is_no_sign() -> None:
    """Counters of a rank that has ended keep nobody alive; it is named, for others may wait for it."""
    job = Job()
    job.change(0, is_alive=False)
    verdict = job.quiet(65, io_bytes=1e9)
    assert verdict is not None
    assert "; rank 0 had ended before, with exit code 0" in verdict.sentence


def test_counter_that_falls_starts_anew() -> None:
    """When a busy child ends unseen, work after it is seen at once and not only beyond the old total."""
    job = Job()
    job.change(0, children_cpu_s=5000.0)
    job.look()
    job.change(0, children_cpu_s=10.0)
    assert job.quiet(300, children_cpu_s=0.5) is None


def test_short_stop_is_tolerated() -> None:
    """A debugger that stops all ranks for 5 s is no hang, and stretches no limit."""
    job = Job()
    for rank in job.signs:
        job.change(rank, process_state="T")
    assert job.quiet(5) is None
    job.step()
    job.look()
    limit = limit_now(AUTO, job.state.learned, 0.0, True)
    assert limit is not None
    assert limit.seconds == 60.0


OUTSIDE: dict[str, dict[str, object]] = {
    "child process": {"is_waiting_for_child": True},
    "main thread in fsync": {"process_state": "D"},
    "helper or descendant in fsync": {"is_in_disk_wait": True},
}


@pytest.mark.parametrize("signs", OUTSIDE.values(), ids=OUTSIDE.keys())
def test_wait_for_storage_or_a_child_has_a_limit_of_its_own(signs: dict[str, object]) -> None:
    """What is being done there is not seen, so one rank's wait keeps the whole job for half an hour."""
    job = Job()
    job.change(1, **signs)
    assert job.quiet(1800) is None
    verdict = job.quiet(2)
    assert verdict is not None
    assert (verdict.limit_s, verdict.limit_origin) == (
        OUTSIDE_S,
        "a rank waits for storage or a child process",
    )


def test_wait_for_a_child_does_not_stretch_the_limit() -> None:
    """After ten minutes of it a hang is found as soon as before."""
    job = Job()
    job.change(0, is_waiting_for_child=True)
    assert job.quiet(600) is None
    job.change(0, is_waiting_for_child=False)
    job.step()
    job.look()
    assert job.quiet(60) is None
    verdict = job.quiet(1)
    assert verdict is not None
    assert verdict.limit_s == 60.0


def test_fsync_that_is_awake_now_and_then_is_one_wait() -> None:
    """Every few looks the thread happens not to be in state D."""
    job = Job()
    for second in range(300):
        job.change(0, is_in_disk_wait=second % 5 != 0)
        assert job.look() is None


def test_single_look_at_a_thread_that_reads_a_page_is_no_wait() -> None:
    """A helper that touches the disk each few seconds does not hide a hang."""
    job = Job()
    verdict = None
    for second in range(62):
        job.change(0, is_in_disk_wait=second % 3 == 0)
        verdict = verdict or job.look()
    assert verdict is not None


def test_wait_that_is_over_hides_no_hang() -> None:
    """The child has ended, and nobody goes on: a few seconds later the limit is the learned one again."""
    job = Job()
    job.change(0, is_waiting_for_child=True)
    assert job.quiet(100) is None
    job.change(0, is_waiting_for_child=False)
    assert job.quiet(5) is None
    assert job.quiet(1) is not None


def test_wait_of_an_ended_rank_counts_no_more() -> None:
    """Its processes are gone."""
    job = Job()
    job.change(0, is_waiting_for_child=True, is_alive=False)
    assert job.quiet(61) is not None


def test_fixed_limit_holds_for_every_wait() -> None:
    """The user's number wins over what is known of the job."""
    job = Job(StallLimits(fixed_s=20.0))
    job.change(0, is_waiting_for_child=True)
    assert job.quiet(20) is None
    assert job.quiet(1) is not None


def test_culprit_is_named() -> None:
    """The verdict says for whom the others wait, when their signs tell."""
    job = Job()
    job.change(1, process_state="T")
    verdict = job.quiet(61)
    assert verdict is not None
    assert verdict.culprits == (1,)
    assert verdict.sentence.endswith("rank 1 is stopped by a signal or a debugger (state T)")


def test_next_judgement_is_when_the_limit_passes() -> None:
    """The time to look again is the end of the limit from now on."""
    job = Job()
    job.quiet(20)
    at = next_judgement_at(job.state, AUTO)
    assert at == pytest.approx(job.now + 40.0)


# Properties: whatever the ranks do and the clock shows.

CHANGES = st.sampled_from(
    [{}, {}, {}, {"bytecode_changes": 1}, {"io_bytes": WORKING_IO_BYTES}, {"progress_count": 1},
     {"other_threads_cpu_s": 0.3}, {"children_cpu_s": -5.0}, {"main_cpu_s": 1.0}]
)  # fmt: skip
LIFE = st.lists(st.tuples(st.floats(-2.0, 40.0), st.integers(0, 1), CHANGES), max_size=40)


def lived(life: list[tuple[float, int, Mapping[str, float]]]) -> Job:
    job = Job()
    for pause, rank, change in life:
        job.add(rank, **change)
        job.look(after_s=pause)
    return job


@given(LIFE)
def test_every_verdict_has_its_silence(life: list[tuple[float, int, Mapping[str, float]]]) -> None:
    """However signs, gaps and clock jumps fall, a job is condemned only after real quiet beyond the floor."""
    job = lived(life)
    for verdict in job.verdicts:
        assert verdict.silent_s > verdict.limit_s >= 60.0
    assert sum(max(0.0, pause) for pause, _, _ in life) > 60.0 or not job.verdicts


@given(LIFE, st.sampled_from([{"bytecode_changes": 1}, {"progress_count": 1}, {"io_bytes": 1e7}]))
def test_living_job_is_never_condemned(
    life: list[tuple[float, int, Mapping[str, float]]], sign: Mapping[str, float]
) -> None:
    """One sign each 50 s keeps the job alive for ever, after any history."""
    job = lived(life)
    job.add(0, bytecode_changes=1)
    job.look()
    job.verdicts.clear()
    for second in range(300):
        if second % 50 == 0:
            job.add(1, **sign)
        job.look()
    assert not job.verdicts


@given(LIFE)
def test_dead_job_is_always_found(life: list[tuple[float, int, Mapping[str, float]]]) -> None:
    """A job that shows nothing any more is condemned, at the latest after the limit that holds now."""
    job = lived(life)
    job.look()  # a window of CPU and I/O may still be open
    limit = limit_now(AUTO, job.state.learned, job.state.longest_open_s, job.state.has_progressed)
    assert limit is not None
    assert job.quiet(5 * limit.seconds + 70) is not None
