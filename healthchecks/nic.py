"""Judges RDMA devices and their ports by what they were when the job began. Pure.

NICs near the job's GPUs (`affinity`) can be unhealthy; any other one is worth a warning at most. What was
down when the job began is down on purpose: second ports, storage cards, management. `nic_counters` judges
the event counters of ports, `netdev` their network interfaces and bonds, `pci` how they sit on the bus.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile

from ftrun.healthchecks.affinity import Affinity, Scope
from ftrun.healthchecks.host_snapshots import LinkLayer, NetworkSnapshot, Nic, Port
from ftrun.healthchecks.reading import SKIPPING, Missing, Value
from ftrun.healthchecks.result import Result, Status, Subject, as_warning

_SETTLING = {"INIT", "ARMED", "ACTIVE_DEFER"}
"""States of a port on its way to ACTIVE (IBA 14.2.5.6): the link is there, the subnet manager is not done."""


@dataclass(frozen=True, slots=True)
class NicThresholds:
    """When a NIC is sick. "Readings" are consecutive ones, the newest included."""

    down_readings: int = 2
    """One reading can meet a port between two states (NVRx condemns at once, NVSentinel after 3)."""
    settling_readings: int = 4
    """For INIT and ARMED: a restart of the subnet manager takes a minute."""
    missing_readings: int = 3
    """NVSentinel."""
    expected_nics: int | None = None
    """Devices for the job's traffic that must have an active port; None takes those of the job's begin."""
    expected_rate_gbps: float | None = None
    """Of each port near a GPU; None takes that of the job's begin."""


def judge_nics(
    recent: Sequence[NetworkSnapshot],
    baseline: NetworkSnapshot | None,
    affinity: Affinity,
    node: str,
    thresholds: NicThresholds = NicThresholds(),
) -> tuple[Result, ...]:
    """All checks of RDMA devices, one result per device or port and check.

    Args:
        recent: readings, oldest first, at least the newest one.
        baseline: as it was when the job began; None if the newest reading is that.
        affinity: made of the baseline.
        node: name of this node.
        thresholds: when to complain.
    """
    start = baseline or recent[-1]
    if not start.nics and not recent[-1].nics and thresholds.expected_nics is None:
        nothing = "no RDMA devices" if recent[-1].has_rdma else "no RDMA drivers here (class/infiniband)"
        return (Result("nic.present", Status.SKIPPED, Subject("node", node), nothing),)
    results = list(_count(recent[-1], affinity, node, thresholds))
    for nic in start.nics:
        scope = affinity.scope(nic.key)
        results += (
            for_scope(result, scope) for result in _judge_nic(nic, recent, start, affinity, thresholds)
        )
    return tuple(results)


def for_scope(result: Result, scope: Scope) -> Result:
    """The result as it counts: a NIC that serves no GPU of the job is worth a warning at most."""
    return as_warning(result, "serves no GPU of this job") if scope is Scope.OTHER else result


def readings_in_a_row(recent: Sequence[NetworkSnapshot], is_bad: Callable[[NetworkSnapshot], bool]) -> int:
    """How many of the newest readings are bad without a good one between them."""
    return sum(1 for _ in takewhile(is_bad, reversed(recent)))


def confirmed(count: int, needed: int) -> Status:
    """Unhealthy if seen often enough, else degraded."""
    return Status.UNHEALTHY if count >= needed else Status.DEGRADED


def seen(count: int, needed: int) -> str:
    """How sure that is: " in 3 readings", " in 1 of 2 readings"."""
    return f" in {count} readings" if count >= needed else f" in {count} of {needed} readings"


def _judge_nic(
    start: Nic,
    recent: Sequence[NetworkSnapshot],
    baseline: NetworkSnapshot,
    affinity: Affinity,
    thresholds: NicThresholds,
) -> Iterator[Result]:
    subject = Subject("nic", start.name)
    now = recent[-1].nic(start.key)
    if now is None:
        count = readings_in_a_row(recent, lambda snapshot: snapshot.nic(start.key) is None)
        yield Result(
            "nic.present",
            confirmed(count, thresholds.missing_readings),
            subject,
            f"gone{seen(count, thresholds.missing_readings)}{_place(start)}",
            "the devices of the job's begin",
            "look for a driver that has failed (dmesg), then reboot; reseat or replace the card",
        )
        return
    yield Result("nic.present", Status.HEALTHY, subject, f"there as {now.name}{_place(now)}")
    yield from _verbs(start, now, recent, thresholds)
    for port in start.ports:
        yield from _judge_port(start, port, recent, baseline, affinity, thresholds)


def _judge_port(
    nic: Nic,
    port: Port,
    recent: Sequence[NetworkSnapshot],
    baseline: NetworkSnapshot,
    affinity: Affinity,
    thresholds: NicThresholds,
) -> Iterator[Result]:
    subject = Subject("nic", port_name(nic, port))
    now = port_of(recent[-1], nic.key, port.number)
    if now is None:
        yield Result(
            "nic.state", Status.UNKNOWN, subject, "the port is gone while its device is there", "ACTIVE"
        )
        return
    if port.layer is LinkLayer.EFA:
        why = "the EFA driver calls every port active; its interface and its counters are judged"
        yield Result("nic.state", Status.SKIPPED, subject, why)
    elif not is_active(port) and not is_active(now):
        yield _down_before(nic, now, subject, baseline, affinity)
        return
    else:
        yield _state(nic, now, subject, recent, thresholds)
    if is_active(now):
        yield from _rate(port, now, subject, thresholds)
        yield from _gids(nic, port, now, subject, recent, thresholds)


def _state(
    nic: Nic, now: Port, subject: Subject, recent: Sequence[NetworkSnapshot], thresholds: NicThresholds
) -> Result:
    if isinstance(now.state, Missing):
        return Result("nic.state", Status.UNKNOWN, subject, str(now.state), "ACTIVE")
    observed = f"{now.state.value}, {_physical(now)}"
    if is_active(now):
        return Result("nic.state", Status.HEALTHY, subject, observed)
    count = readings_in_a_row(recent, lambda snapshot: not _is_active_in(snapshot, nic.key, now.number))
    is_settling = now.state.value in _SETTLING
    needed = thresholds.settling_readings if is_settling else thresholds.down_readings
    remedy = "look at the subnet manager" if is_settling else "look at cable, transceiver and switch port"
    return Result(
        "nic.state",
        confirmed(count, needed),
        subject,
        f"{observed}{seen(count, needed)}",
        "ACTIVE as at the job's begin",
        remedy,
    )


def _down_before(
    nic: Nic, now: Port, subject: Subject, baseline: NetworkSnapshot, affinity: Affinity
) -> Result:
    """A port that was not active when the job began: its peers tell whether it should have been."""
    if isinstance(now.state, Missing) and now.state.lack not in SKIPPING:
        return Result("nic.state", Status.UNKNOWN, subject, str(now.state), "ACTIVE")
    state = str(now.state) if isinstance(now.state, Missing) else f"{now.state.value}, {_physical(now)}"
    has_other_port = any(is_active(port) for port in nic.ports)
    peers = [
        peer.name
        for peer in baseline.nics
        if peer.key != nic.key
        and affinity.scope(peer.key) is affinity.scope(nic.key) is not Scope.OTHER
        and any(is_active(port) for port in peer.ports)
    ]
    if has_other_port or not peers:
        why = f"{state}; so it was when the job began"
        return Result("nic.state", Status.SKIPPED, subject, why, is_persistent=True)
    return Result(
        "nic.state",
        Status.DEGRADED,
        subject,
        f"{state} since before the job began",
        f"ACTIVE as {', '.join(peers[:4])}",
        "look at cable, transceiver and switch port",
        is_persistent=True,
    )


def _rate(start: Port, now: Port, subject: Subject, thresholds: NicThresholds) -> Iterator[Result]:
    if now.rate_gbps is None:
        return
    observed = f"{now.rate_gbps:g} Gb/s"
    wanted, before = thresholds.expected_rate_gbps, start.rate_gbps
    remedy = "look at cable and transceiver; a bad lane halves the rate"
    if wanted is not None and now.rate_gbps < wanted:
        was_so = before is not None and before < wanted
        yield Result(
            "nic.rate", Status.UNHEALTHY, subject, observed, f"{wanted:g} Gb/s", remedy, is_persistent=was_so
        )
    elif before is not None and now.rate_gbps < before:
        expected = f"{before:g} Gb/s as at the job's begin"
        yield Result("nic.rate", Status.DEGRADED, subject, observed, expected, remedy)
    else:
        yield Result("nic.rate", Status.HEALTHY, subject, observed)


def _gids(
    nic: Nic,
    start: Port,
    now: Port,
    subject: Subject,
    recent: Sequence[NetworkSnapshot],
    thresholds: NicThresholds,
) -> Iterator[Result]:
    """RoCE only: an active port without an address cannot be reached."""
    if now.layer is not LinkLayer.ETHERNET or now.has_gid is None:
        return
    if now.has_gid:
        yield Result("nic.gid", Status.HEALTHY, subject, "the port has a GID")
        return

    def lacks_gid(snapshot: NetworkSnapshot) -> bool:
        port = port_of(snapshot, nic.key, now.number)
        return port is not None and port.has_gid is False

    result = Result(
        "nic.gid",
        confirmed(readings_in_a_row(recent, lacks_gid), thresholds.down_readings),
        subject,
        "the GID table is empty",
        "at least one GID",
        "give the interface an IP address; without one RoCE has no address",
    )
    # Nobody gave it one before the job either.
    yield replace(result, status=Status.DEGRADED, is_persistent=True) if start.has_gid is False else result


def _verbs(
    start: Nic, now: Nic, recent: Sequence[NetworkSnapshot], thresholds: NicThresholds
) -> Iterator[Result]:
    if now.has_verbs is None or start.has_verbs is None:
        return
    subject = Subject("nic", now.name)
    if now.has_verbs:
        yield Result("nic.verbs", Status.HEALTHY, subject, "has its character device")
        return

    def lacks_verbs(snapshot: NetworkSnapshot) -> bool:
        nic = snapshot.nic(start.key)
        return nic is not None and nic.has_verbs is False

    count = readings_in_a_row(recent, lacks_verbs)
    yield Result(
        "nic.verbs",
        confirmed(count, thresholds.missing_readings) if start.has_verbs else Status.DEGRADED,
        subject,
        "no character device (class/infiniband_verbs)",
        "a /dev/infiniband/uverbs device",
        "load ib_uverbs, or reload the NIC's driver",
        is_persistent=not start.has_verbs,
    )


def _count(
    now: NetworkSnapshot, affinity: Affinity, node: str, thresholds: NicThresholds
) -> Iterator[Result]:
    if thresholds.expected_nics is None:
        return
    usable = [
        nic.name
        for nic in now.nics
        if affinity.scope(nic.key) is not Scope.OTHER and any(is_active(port) for port in nic.ports)
    ]
    is_enough = len(usable) >= thresholds.expected_nics
    yield Result(
        "nic.count",
        Status.HEALTHY if is_enough else Status.UNHEALTHY,
        Subject("node", node),
        f"{len(usable)} NICs of the job have an active port",
        f"{thresholds.expected_nics}",
        "" if is_enough else "look for devices that are missing or down",
    )


def is_active(port: Port) -> bool:
    """It carries traffic, as far as its driver tells."""
    return port.state == Value("ACTIVE")


def port_of(snapshot: NetworkSnapshot, key: str, number: int) -> Port | None:
    """That port in that reading."""
    nic = snapshot.nic(key)
    return next((port for port in nic.ports if port.number == number), None) if nic else None


def port_name(nic: Nic, port: Port) -> str:
    """ "mlx5_0", and "mlx5_0/2" for further ports."""
    return nic.name if port.number == 1 else f"{nic.name}/{port.number}"


def _is_active_in(snapshot: NetworkSnapshot, key: str, number: int) -> bool:
    port = port_of(snapshot, key, number)
    return port is not None and is_active(port)


def _physical(port: Port) -> str:
    return port.physical_state.value if isinstance(port.physical_state, Value) else "link unknown"


def _place(nic: Nic) -> str:
    if nic.pci is None:
        return ""
    return f" at {nic.pci.address}" + (f", slot {nic.pci.slot}" if nic.pci.slot else "")
