"""Reads Xids out of lines of the kernel log, in all forms that drivers and tools give them. Pure."""

from __future__ import annotations

import re

from ftrun.healthchecks.snapshots import XidEvent

_PREFIX = re.compile(
    r"""
      \s*
    | \d+,\d+,(?P<microseconds>\d+),[^;]*;                         # a record of /dev/kmsg
    | (?:<\d+>)?                                                   # dmesg -r
      (?:\w+\s*:\w+\s*:\s*)?                                       # dmesg -x
      \[\s*(?P<seconds>\d+\.\d+)\] (?:\[\s*[CT]\d+\])? \s*         # dmesg
    | \[[^\]]+\]\s*                                                # dmesg -T
    | (?:\w{3}\s+\d+\s[\d:.]+ | \d+-\d+-\d+[T\s]\S+) \s \S+ \s     # syslog and journal: time, host
      kernel:\s* (?:\[\s*\d+\.\d+\]\s*)?
    """,
    re.VERBOSE,
)
"""What may stand before a message of the kernel; a line of a process that merely quotes one has other things.
Only the first of these and dmesg's own stamp are times of the monotonic clock that this host still has."""

_XID = re.compile(
    r"NVRM: Xid \((?:PCI:)?(?P<address>[0-9a-fA-F:.]+)(?P<instances>[^)]*)\): "
    r"(?P<xid>\d+)(?:, *(?P<detail>.*))?$"
)
_GPU_INSTANCE = re.compile(r"GPU-I:(\d+)")
_COMPUTE_INSTANCE = re.compile(r"GPU-CI:(\d+)")
_PROCESS = re.compile(r"pid=(?:(?P<pid>\d+)|'?<unknown>'?)(?:, name=(?P<name>[^,]*))?(?:, |$)")


def parse_xid(line: str, seen_at: float) -> XidEvent | None:
    """The Xid that a line of the kernel log reports; None if it reports none.

    Args:
        line: a record of /dev/kmsg, or a line as dmesg, syslog or the journal show it.
        seen_at: CLOCK_MONOTONIC, seconds, for lines without a stamp of that clock.
    """
    start = line.find("NVRM: Xid (")
    prefix = _PREFIX.fullmatch(line[:start]) if start >= 0 else None
    match = _XID.match(line[start:].rstrip()) if prefix is not None else None
    address = _sysfs_address(match["address"]) if match is not None else None
    if prefix is None or match is None or address is None:
        return None
    detail = match["detail"] or ""
    process = _PROCESS.match(detail)
    name = process["name"] or "" if process is not None else ""
    return XidEvent(
        xid=int(match["xid"]),
        uuid="",
        pci_address=address,
        seen_at=_stamp(prefix, seen_at),
        source="kernel",
        gpu_instance=_number(_GPU_INSTANCE.search(match["instances"])),
        compute_instance=_number(_COMPUTE_INSTANCE.search(match["instances"])),
        pid=int(process["pid"]) if process is not None and process["pid"] else None,
        process_name="" if name == "<unknown>" else name,
        detail=detail[process.end() :] if process is not None else detail,
    )


def _stamp(prefix: re.Match[str], seen_at: float) -> float:
    if prefix["microseconds"]:
        return int(prefix["microseconds"]) / 1e6
    return float(prefix["seconds"]) if prefix["seconds"] else seen_at


def _number(match: re.Match[str] | None) -> int | None:
    return int(match[1]) if match is not None else None


def _sysfs_address(address: str) -> str | None:
    """ "0000:3b:00.0" for "0000:3b:00"; the oldest drivers write no domain: "003b:00"."""
    parts = address.lower().partition(".")[0].split(":")
    if len(parts) == 2:
        parts.insert(0, "0")
    if len(parts) != 3 or not all(parts):
        return None
    domain, bus, device = (int(part, 16) for part in parts)
    return f"{domain:04x}:{bus:02x}:{device:02x}.0"
