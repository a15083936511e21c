"""Judges the growth of RDMA ports' event counters, and flapping links. Pure.

Counters grow from the load of the driver on, so only what was added while the job ran counts; a counter that
went back (cleared, driver loaded again) starts from its new value.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from ftrun.healthchecks.affinity import Affinity
from ftrun.healthchecks.host_snapshots import NetworkSnapshot, Nic, Port, value_in
from ftrun.healthchecks.nic import for_scope, port_name, port_of
from ftrun.healthchecks.result import Result, Status, Subject

_SECOND, _MINUTE, _HOUR = 1.0, 60.0, 3600.0


@dataclass(frozen=True, slots=True)
class CounterLimit:
    """How fast one counter may grow."""

    name: str
    limit: float
    """Growth that is still fine."""
    per_s: float | None
    """.. in so many seconds; None is any time: the whole span of the readings."""
    status: Status
    """When it grows faster."""
    meaning: str


LIMITS = (
    CounterLimit("symbol_error", 10, _SECOND, Status.DEGRADED, "bit errors on the link"),
    CounterLimit("link_error_recovery", 5, _MINUTE, Status.DEGRADED, "the link was trained again"),
    CounterLimit("port_rcv_errors", 10, _SECOND, Status.DEGRADED, "broken packets received"),
    CounterLimit("port_xmit_discards", 100, _SECOND, Status.DEGRADED, "packets dropped: congestion"),
    CounterLimit("local_ack_timeout_err", 1, _SECOND, Status.DEGRADED, "no acknowledgement from peers"),
    CounterLimit("roce_slow_restart", 10, _SECOND, Status.DEGRADED, "RoCE congestion control started over"),
    CounterLimit("excessive_buffer_overrun_errors", 0, None, Status.UNHEALTHY, "receive buffer overrun"),
    CounterLimit(
        "local_link_integrity_errors", 0, None, Status.UNHEALTHY, "the link's errors pass its limit"
    ),
    # NVSentinel calls this one fatal. It also grows when a peer dies, and a launcher sees peers die.
    CounterLimit("rnr_nak_retry_err", 0, None, Status.DEGRADED, "a peer was not ready to receive"),
    CounterLimit("no_completion_cmds", 0, None, Status.UNHEALTHY, "EFA commands that never completed"),
    CounterLimit("cmds_err", 10, _MINUTE, Status.DEGRADED, "EFA commands that failed"),
    CounterLimit("rx_drops", 100, _SECOND, Status.DEGRADED, "packets dropped by the EFA device"),
    CounterLimit("rdma_read_wr_err", 1, _SECOND, Status.DEGRADED, "EFA reads that failed"),
    CounterLimit("rdma_write_wr_err", 1, _SECOND, Status.DEGRADED, "EFA writes that failed"),
    CounterLimit("retrans_timeout_events", 1, _SECOND, Status.DEGRADED, "EFA retransmission time-outs"),
)
"""Limits of NVIDIA's NVSentinel for NICs; `status` as there unless a comment says otherwise."""

_LINK_DOWNED = "link_downed"
_SYMBOL_ERROR = "symbol_error"
NAMES = frozenset({limit.name for limit in LIMITS} | {_LINK_DOWNED})
"""The counters that are judged: what `NetworkReader` needs to read."""


@dataclass(frozen=True, slots=True)
class CounterThresholds:
    """When counters tell that a port is sick."""

    limits: tuple[CounterLimit, ...] = LIMITS
    flaps: int = 3
    """Times that the link went down over the readings at hand (gpud: 3 in 12 h)."""
    symbol_errors_per_hour: float = 120
    """Bit error rate 10^-12 of the InfiniBand specification (NVSentinel)."""
    symbol_error_readings: int = 3
    """So many intervals must have had errors: training a link gives one burst of them."""


def judge_counters(
    recent: Sequence[NetworkSnapshot],
    affinity: Affinity,
    thresholds: CounterThresholds = CounterThresholds(),
) -> tuple[Result, ...]:
    """Errors and flaps of each port and device that the newest reading has, over all readings (oldest first).

    With one reading alone there is no growth, and nothing is said.
    """
    if len(recent) < 2:
        return ()
    results: list[Result] = []
    for nic in recent[-1].nics:
        scope = affinity.scope(nic.key)
        found = list(_judge_series(nic, None, recent, thresholds))
        for port in nic.ports:
            found += _judge_series(nic, port, recent, thresholds)
        results += (for_scope(result, scope) for result in found)
    return tuple(results)


@dataclass(frozen=True, slots=True)
class _Series:
    """Values of one counter with the time of each."""

    points: tuple[tuple[float, int], ...]

    def steps(self) -> list[tuple[float, int]]:
        """Seconds and growth between neighbours; what went back has not grown."""
        pairs = pairwise(self.points)
        return [(after[0] - before[0], max(0, after[1] - before[1])) for before, after in pairs]

    def since(self, span_s: float) -> _Series:
        """The newest points that span `span_s` seconds or more; all if they do not."""
        if not self.points:
            return self
        newest = self.points[-1][0]
        starts = [index for index, point in enumerate(self.points) if newest - point[0] >= span_s]
        return _Series(self.points[max(starts, default=0) :])

    def growth(self) -> int:
        return sum(grown for _, grown in self.steps())

    def span_s(self) -> float:
        return self.points[-1][0] - self.points[0][0] if self.points else 0.0


def _judge_series(
    nic: Nic, port: Port | None, recent: Sequence[NetworkSnapshot], thresholds: CounterThresholds
) -> Iterator[Result]:
    subject = Subject("nic", port_name(nic, port) if port else nic.name)
    counters = port.counters if port else nic.counters
    series = {counter.name: _series(nic, port, counter.name, recent) for counter in counters}
    found = [
        *(
            _exceeded(limit, series[limit.name], subject)
            for limit in thresholds.limits
            if limit.name in series
        ),
        _symbol_errors(series.get(_SYMBOL_ERROR), subject, thresholds),
        _flaps(series.get(_LINK_DOWNED), subject, thresholds),
    ]
    bad = [result for result in found if result is not None]
    yield from bad
    if series and not bad:
        yield Result("nic.errors", Status.HEALTHY, subject, f"{len(series)} counters are quiet")


def _series(nic: Nic, port: Port | None, name: str, recent: Sequence[NetworkSnapshot]) -> _Series:
    points = []
    for snapshot in recent:
        then = snapshot.nic(nic.key)
        source = port_of(snapshot, nic.key, port.number) if port else then
        value = value_in(source.counters, name) if source else None
        if value is not None:
            points.append((snapshot.taken_at, value))
    return _Series(tuple(points))


def _exceeded(limit: CounterLimit, series: _Series, subject: Subject) -> Result | None:
    """The newest readings decide about rates, so that a port recovers; all of them about single events."""
    recent = series.since(limit.per_s) if limit.per_s else series
    span_s, growth = recent.span_s(), recent.growth()
    # Readings that are closer together than the unit do not make one event a rate.
    if growth <= limit.limit * (max(1.0, span_s / limit.per_s) if limit.per_s else 1):
        return None
    return Result(
        "nic.errors",
        limit.status,
        subject,
        f"{limit.name} grew by {growth} in {span_s:.0f} s: {limit.meaning}",
        _allowed(limit),
        "look at cable, transceiver and switch port; exchange the card if it goes on",
    )


def _allowed(limit: CounterLimit) -> str:
    unit = {_SECOND: "a second", _MINUTE: "a minute", _HOUR: "an hour"}.get(limit.per_s or 0)
    return f"at most {limit.limit:g} {unit}" if unit else f"at most {limit.limit:g}"


def _symbol_errors(series: _Series | None, subject: Subject, thresholds: CounterThresholds) -> Result | None:
    steps = series.steps() if series else []
    if series is None or sum(1 for _, grown in steps if grown) < thresholds.symbol_error_readings:
        return None
    # A shorter span than an hour is not blown up: so many errors must really have been.
    allowed = thresholds.symbol_errors_per_hour * max(1.0, series.span_s() / _HOUR)
    if series.growth() <= allowed:
        return None
    return Result(
        "nic.errors",
        Status.UNHEALTHY,
        subject,
        f"{_SYMBOL_ERROR} grew by {series.growth()} in {series.span_s():.0f} s: the link is bad",
        f"at most {thresholds.symbol_errors_per_hour:g} an hour",
        "exchange cable or transceiver",
    )


def _flaps(series: _Series | None, subject: Subject, thresholds: CounterThresholds) -> Result | None:
    """One loss of the link is a warning (it may be down now, which is another check's), several condemn."""
    growth = series.growth() if series else 0
    if series is None or not growth:
        return None
    return Result(
        "nic.flaps",
        Status.UNHEALTHY if growth >= thresholds.flaps else Status.DEGRADED,
        subject,
        f"the link went down {growth} times in {series.span_s():.0f} s",
        f"fewer than {thresholds.flaps} times",
        "look at cable, transceiver and switch port",
    )
