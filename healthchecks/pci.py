"""Judges how GPUs and NICs sit on the PCI bus: whether they answer, width, speed and fatal errors. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from ftrun.healthchecks.affinity import Affinity
from ftrun.healthchecks.host_snapshots import NetworkSnapshot, PciDevice
from ftrun.healthchecks.nic import for_scope
from ftrun.healthchecks.result import Result, Status, Subject

_ALL_ONES = 0xFFFF
"""What the bus reads where nothing answers; no vendor has that number."""


def judge_nic_slots(
    now: NetworkSnapshot, baseline: NetworkSnapshot | None, affinity: Affinity
) -> tuple[Result, ...]:
    """The PCI side of each RDMA device.

    Args:
        now: the newest reading.
        baseline: as it was when the job began; None if `now` is that.
        affinity: made of the baseline.
    """
    results: list[Result] = []
    for nic in now.nics:
        if nic.pci is not None:
            before = (baseline or now).nic(nic.key)
            found = judge_device(
                "nic.pcie", Subject("nic", nic.name), nic.pci, before.pci if before else None
            )
            results += (for_scope(result, affinity.scope(nic.key)) for result in found)
    return tuple(results)


def judge_device(
    check: str, subject: Subject, now: PciDevice, baseline: PciDevice | None, judges_speed: bool = True
) -> Iterator[Result]:
    """One device, for any caller: results of name `check`.

    Args:
        check: name of the check.
        subject: whom it concerns.
        now: the newest reading.
        baseline: as it was when the job began; None if `now` is that.
        judges_speed: False for GPUs, whose links slow down when they idle.
    """
    start = baseline or now
    if now.config_vendor == _ALL_ONES:
        yield Result(
            check,
            Status.UNHEALTHY,
            subject,
            f"{_name(now)} reads as all ones: it does not answer any more",
            "its configuration space",
            "power the node off and on; reseat or replace the card if it comes back so",
        )
        return
    found = [
        *_link(check, subject, now, start, judges_speed),
        *_errors(check, subject, now, start),
    ]
    yield from found
    if not found:
        yield Result(check, Status.HEALTHY, subject, f"{_name(now)}: {_describe(now)}")


def _link(
    check: str, subject: Subject, now: PciDevice, start: PciDevice, judges_speed: bool
) -> Iterator[Result]:
    """Less than at the job's begin, or than the device can, which a slot may not offer."""
    for what, value, before, best, form in (
        ("width", now.link_width, start.link_width, now.link_width_max, "x{:g}"),
        ("speed", now.link_speed_gts, start.link_speed_gts, now.link_speed_max_gts, "{:g} GT/s"),
    ):
        if what == "speed" and not judges_speed:
            continue
        wanted = max((number for number in (before, best) if number is not None), default=None)
        if value is None or wanted is None or value >= wanted:
            continue
        was_so = before is not None and before <= value
        yield Result(
            check,
            Status.DEGRADED,
            subject,
            f"PCIe {what} {form.format(value)} of {_name(now)}",
            form.format(wanted),
            "reseat the card; a slot that has no more is fine" if was_so else "reseat or replace the card",
            is_persistent=was_so,
        )


def _errors(check: str, subject: Subject, now: PciDevice, start: PciDevice) -> Iterator[Result]:
    """Uncorrectable errors since the job's begin (AER); the driver may have recovered from them."""
    for kind, value, before in (
        ("fatal", now.fatal_errors, start.fatal_errors),
        ("not fatal", now.nonfatal_errors, start.nonfatal_errors),
    ):
        if value is not None and before is not None and value > before:
            yield Result(
                check,
                Status.DEGRADED,
                subject,
                f"{value - before} uncorrectable PCIe errors ({kind}) of {_name(now)}",
                "none while the job runs",
                "look for AER lines in dmesg; reseat or replace the card if it goes on",
            )


def _describe(device: PciDevice) -> str:
    width = f"x{device.link_width}" if device.link_width is not None else "width unknown"
    speed = f"{device.link_speed_gts:g} GT/s" if device.link_speed_gts is not None else "speed unknown"
    return f"{width}, {speed}"


def _name(device: PciDevice) -> str:
    return device.address + (f" (slot {device.slot})" if device.slot else "")
