"""Judges network interfaces and bonds by what they were when the job began. Pure.

For RoCE and EFA the interface is where a lost link shows. On InfiniBand it is only IPoIB, and may be down.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from ftrun.healthchecks.affinity import Affinity, Scope
from ftrun.healthchecks.host_snapshots import Interface, LinkLayer, NetworkSnapshot
from ftrun.healthchecks.nic import confirmed, for_scope, readings_in_a_row, seen
from ftrun.healthchecks.result import Result, Status, Subject

_GOOD_STATES = {"up", "unknown", ""}
"""Drivers that do not tell say "unknown" (RFC 2863)."""


@dataclass(frozen=True, slots=True)
class InterfaceThresholds:
    """When a network interface is sick. "Readings" are consecutive ones, the newest included."""

    down_readings: int = 2
    missing_readings: int = 3
    carrier_changes: int = 2
    """More than so many over the readings at hand is flapping (NVSentinel); down and up again are two."""


def judge_interfaces(
    recent: Sequence[NetworkSnapshot],
    baseline: NetworkSnapshot | None,
    affinity: Affinity,
    job_interfaces: Collection[str] = (),
    thresholds: InterfaceThresholds = InterfaceThresholds(),
) -> tuple[Result, ...]:
    """State, speed, MTU and flaps of interfaces made of hardware, and of bonds of them.

    Args:
        recent: readings, oldest first, at least the newest one.
        baseline: as it was when the job began; None if the newest reading is that.
        affinity: made of the baseline.
        job_interfaces: named by the job itself (NCCL_SOCKET_IFNAME, GLOO_SOCKET_IFNAME, the store's address).
        thresholds: when to complain.
    """
    start = baseline or recent[-1]
    results: list[Result] = []
    for interface in start.interfaces:
        if interface.pci or interface.members or interface.name in job_interfaces:
            scope = _scope(interface, start, affinity, job_interfaces)
            found = _judge(interface, recent, thresholds)
            results += (for_scope(result, scope) for result in found)
    return tuple(results)


def _scope(
    interface: Interface, start: NetworkSnapshot, affinity: Affinity, job_interfaces: Collection[str]
) -> Scope:
    if interface.name in job_interfaces:
        return Scope.NODE
    if interface.bond:
        return Scope.OTHER  # the bond goes on without it
    names = {interface.name, *interface.members}
    scopes = {
        affinity.scope(nic.key)
        for nic in start.nics
        if names & set(nic.interfaces) and any(port.layer is not LinkLayer.INFINIBAND for port in nic.ports)
    }
    return next((scope for scope in (Scope.GPU, Scope.NODE) if scope in scopes), Scope.OTHER)


def _judge(
    start: Interface, recent: Sequence[NetworkSnapshot], thresholds: InterfaceThresholds
) -> Iterator[Result]:
    subject = Subject("nic", start.name)
    now = recent[-1].interface(start.name)
    if now is None:
        count = readings_in_a_row(recent, lambda snapshot: snapshot.interface(start.name) is None)
        status, observed = confirmed(count, thresholds.missing_readings), "gone"
        observed += seen(count, thresholds.missing_readings)
        remedy = "look for a driver that has failed (dmesg), or for who renamed it"
        yield Result("nic.interface", status, subject, observed, "there as at the job's begin", remedy)
        return
    yield _state(start, now, subject, recent, thresholds)
    if is_up(now):
        yield from _speed(start, now, subject)
        yield from _mtu(start, now, subject)
        yield from _members(start, now, subject, recent[-1])
    yield from _flaps(start.name, subject, recent, thresholds)


def _state(
    start: Interface,
    now: Interface,
    subject: Subject,
    recent: Sequence[NetworkSnapshot],
    thresholds: InterfaceThresholds,
) -> Result:
    observed = _describe(now)
    if is_up(now):
        return Result("nic.interface", Status.HEALTHY, subject, observed)
    if not is_up(start):
        why = f"{observed}; so it was when the job began"
        return Result("nic.interface", Status.SKIPPED, subject, why, is_persistent=True)

    def is_down(snapshot: NetworkSnapshot) -> bool:
        interface = snapshot.interface(start.name)
        return interface is None or not is_up(interface)

    count = readings_in_a_row(recent, is_down)
    remedy = (
        "bring it up again (ip link set .. up)"
        if now.is_up is False
        else "look at cable, transceiver and switch port"
    )
    status = confirmed(count, thresholds.down_readings)
    observed += seen(count, thresholds.down_readings)
    return Result("nic.interface", status, subject, observed, "up as at the job's begin", remedy)


def is_up(interface: Interface) -> bool:
    """It carries traffic, as far as its driver tells."""
    return (
        interface.operstate in _GOOD_STATES
        and interface.has_carrier is not False
        and interface.is_up is not False
    )


def _describe(interface: Interface) -> str:
    words = [interface.operstate or "state unknown"]
    words += ["switched off"] if interface.is_up is False else []
    words += ["no carrier"] if interface.has_carrier is False else []
    return ", ".join(words)


def _speed(start: Interface, now: Interface, subject: Subject) -> Iterator[Result]:
    if start.speed_mbps is None or now.speed_mbps is None:
        return
    observed = f"{now.speed_mbps} Mb/s"
    if now.speed_mbps >= start.speed_mbps:
        yield Result("nic.speed", Status.HEALTHY, subject, observed)
    else:
        expected = f"{start.speed_mbps} Mb/s as at the job's begin"
        remedy = "look at cable and transceiver, and at what the switch offers"
        yield Result("nic.speed", Status.DEGRADED, subject, observed, expected, remedy)


def _mtu(start: Interface, now: Interface, subject: Subject) -> Iterator[Result]:
    if start.mtu is not None and now.mtu is not None and now.mtu != start.mtu:
        remedy = "set it back: peers with another MTU drop the large packets"
        expected = f"{start.mtu} as at the job's begin"
        yield Result("nic.mtu", Status.DEGRADED, subject, f"MTU {now.mtu}", expected, remedy)


def _members(
    start: Interface, now: Interface, subject: Subject, snapshot: NetworkSnapshot
) -> Iterator[Result]:
    """A bond with a dead member is slower, and has no reserve."""
    if not start.members:
        return
    working = [
        name for name in now.members if (member := snapshot.interface(name)) is not None and is_up(member)
    ]
    lost = [name for name in start.members if name not in working]
    if lost:
        yield Result(
            "nic.bond",
            Status.DEGRADED,
            subject,
            f"without {', '.join(lost)}",
            f"all of {', '.join(start.members)}",
            "look at cable, transceiver and switch port of the lost member",
        )
    else:
        yield Result("nic.bond", Status.HEALTHY, subject, f"{len(working)} members work")


def _flaps(
    name: str, subject: Subject, recent: Sequence[NetworkSnapshot], thresholds: InterfaceThresholds
) -> Iterator[Result]:
    seen_counts = [
        interface.carrier_changes
        for snapshot in recent
        if (interface := snapshot.interface(name)) is not None and interface.carrier_changes is not None
    ]
    # A lower number than before is a driver that was loaded again, and starts from there.
    growth = sum(max(0, after - before) for before, after in pairwise(seen_counts))
    if growth > thresholds.carrier_changes:
        span_s = recent[-1].taken_at - recent[0].taken_at
        yield Result(
            "nic.flaps",
            Status.DEGRADED,
            subject,
            f"the carrier came or went {growth} times in {span_s:.0f} s",
            f"at most {thresholds.carrier_changes}",
            "look at cable and transceiver",
        )
