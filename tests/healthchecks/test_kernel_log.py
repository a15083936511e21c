"""Xids in lines of the kernel log."""

from __future__ import annotations

import pytest

from ftrun.healthchecks.kernel_log import parse_xid
from ftrun.healthchecks.snapshots import XidEvent


def event(xid: int, pci_address: str = "0000:3b:00.0", seen_at: float = 5.0, **known: object) -> XidEvent:
    return XidEvent(xid, "", pci_address, seen_at, "kernel", **known)  # type: ignore[arg-type]


OFF_THE_BUS = "GPU has fallen off the bus."


@pytest.mark.parametrize(
    ("line", "found"),
    [
        (
            "NVRM: Xid (PCI:0000:3b:00): 79, pid=4242, name=python3, GPU has fallen off the bus.",
            event(79, pid=4242, process_name="python3", detail=OFF_THE_BUS),
        ),
        ("NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.", event(79, detail=OFF_THE_BUS)),
        ("NVRM: Xid (PCI:0000:3b:00): 79, pid=1122, " + OFF_THE_BUS, event(79, pid=1122, detail=OFF_THE_BUS)),
        (
            "NVRM: Xid (PCI:0000:3b:00): 13, pid='<unknown>', name=<unknown>, Graphics SM Warp Exception",
            event(13, detail="Graphics SM Warp Exception"),
        ),
        ("NVRM: Xid (PCI:0000:3b:00): 62, 21a7(2d10) 00000000", event(62, detail="21a7(2d10) 00000000")),
        ("NVRM: Xid (PCI:0000:3b:00): 61", event(61)),
        ("NVRM: Xid (PCI:0000:3b:00): 79, \n", event(79)),
        (
            "NVRM: Xid (PCI:0018:01:00): 149, NETIR_LINK_EVT Fatal XC0 i0 Link 09 (0x004505c6 0x00000000)",
            event(149, "0018:01:00.0", detail="NETIR_LINK_EVT Fatal XC0 i0 Link 09 (0x004505c6 0x00000000)"),
        ),
        (
            "NVRM: Xid (PCI:0000:3b:00 GPU-I:05): 94, pid=7194, Contained: CE User Channel (0x9).",
            event(94, gpu_instance=5, pid=7194, detail="Contained: CE User Channel (0x9)."),
        ),
        (
            "NVRM: Xid (PCI:0000:3b:00 GPU-I:01 GPU-CI:02): 13, pid=9, name=a, Graphics Exception",
            event(
                13, gpu_instance=1, compute_instance=2, pid=9, process_name="a", detail="Graphics Exception"
            ),
        ),
        (
            "NVRM: Xid (PCI:0000:3b:00): 45, pid=77, name=python3, Ch 00000001 caused by previous Xid 149",
            event(45, pid=77, process_name="python3", detail="Ch 00000001 caused by previous Xid 149"),
        ),
        (
            "NVRM: Xid (0000:03:00): 14, Channel 00000001",
            event(14, "0000:03:00.0", detail="Channel 00000001"),
        ),
        ("NVRM: Xid (0001:00): 6, PE0001", event(6, "0000:01:00.0", detail="PE0001")),
        ("NVRM: Xid (PCI:10000:E1:00): 79, gone", event(79, "10000:e1:00.0", detail="gone")),
        (
            "4,1532,98765432101,-;NVRM: Xid (PCI:0000:3b:00): 79, pid=1, name=x, " + OFF_THE_BUS,
            event(79, seen_at=98765.432101, pid=1, process_name="x", detail=OFF_THE_BUS),
        ),
        (
            "4,1532,98765432101,-,caller=T77;NVRM: Xid (PCI:0000:3b:00): 63, Row",
            event(63, seen_at=98765.432101, detail="Row"),
        ),
        (
            "[1231741.378609] NVRM: Xid (PCI:0000:3b:00): 43, ch",
            event(43, seen_at=1231741.378609, detail="ch"),
        ),
        ("[   12.500000][ T1234] NVRM: Xid (PCI:0000:3b:00): 43, ch", event(43, seen_at=12.5, detail="ch")),
        ("<4>[   12.500000] NVRM: Xid (PCI:0000:3b:00): 43, ch", event(43, seen_at=12.5, detail="ch")),
        ("kern  :warn  : [   12.500000] NVRM: Xid (PCI:0000:3b:00): 43", event(43, seen_at=12.5)),
        ("[Wed Jul 31 23:14:18 2024] NVRM: Xid (PCI:0000:3b:00): 43, ch", event(43, detail="ch")),
        ("Nov 30 03:00:01 node7 kernel: NVRM: Xid (PCI:0000:3b:00): 43, ch", event(43, detail="ch")),
        ("Nov  3 03:00:01 node7 kernel: [ 12.5] NVRM: Xid (PCI:0000:3b:00): 43, ch", event(43, detail="ch")),
        ("2024-07-31T23:14:18.1+00:00 n kernel: NVRM: Xid (PCI:0000:3b:00): 43", event(43)),
    ],
)
def test_all_forms_of_an_xid_are_read(line: str, found: XidEvent) -> None:
    """Old and new drivers, MIG, a process that is not known; with the kernel's stamp if the line has it."""
    assert parse_xid(line, seen_at=5.0) == found


@pytest.mark.parametrize(
    "line",
    [
        "",
        "4,1532,98765432101,-;NVRM: GPU at PCI:0000:3b:00: GPU-efbdfde9-5798-a6e7-4c46-12518fa15375",
        "NVRM: GPU 0000:3b:00.0: RmInitAdapter failed! (0x22:0x56:894)",
        "NVRM: Xid (PCI:0000:3b:00): ",
        "NVRM: Xid (PCI:0000:3b:00): gone, 79",
        "NVRM: Xid (PCI:3b): 79, gone",
        "NVRM: Xid (PCI:::): 79, gone",
        "nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 30 LTSSM Fault Up",
        "Nov 30 03:00:01 node7 train[77]: NVRM: Xid (PCI:0000:3b:00): 79, gone",
        "INFO the log said: NVRM: Xid (PCI:0000:3b:00): 79, gone",
        'audit: cmd="grep NVRM: Xid (PCI:0000:3b:00): 79, gone"',
    ],
)
def test_other_lines_are_no_xids(line: str) -> None:
    """Also those of a process that quotes one."""
    assert parse_xid(line, seen_at=5.0) is None
