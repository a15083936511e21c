"""Xids out of the kernel log as they come."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ftrun.healthchecks.kmsg import KernelLog

LINE = "4,{},{},-;NVRM: Xid (PCI:0000:3b:00): {}, pid=17, name=python, GPU has fallen off the bus.\n"


def test_only_what_comes_after_the_begin_is_read(tmp_path: Path) -> None:
    """What the log held before is older than the job."""
    path = tmp_path / "kmsg"
    path.write_text(LINE.format(1, 5_000_000, 48))
    log = KernelLog(str(path))
    assert log.is_readable
    assert log.read(9.0) == ()
    with path.open("a") as file:
        file.write("6,2,6000000,-;usb 1-1: new device\n" + LINE.format(3, 7_500_000, 79))
    [event] = log.read(9.0)
    assert (event.xid, event.pci_address, event.seen_at, event.pid) == (79, "0000:3b:00.0", 7.5, 17)
    assert log.read(9.0) == ()
    log.close()


def test_a_check_by_hand_reads_what_the_log_holds(tmp_path: Path) -> None:
    """There was no begin to read from."""
    path = tmp_path / "kmsg"
    path.write_text(LINE.format(1, 5_000_000, 48) + LINE.format(2, 6_000_000, 63))
    assert [event.xid for event in KernelLog(str(path), from_start=True).read(9.0)] == [48, 63]


def test_no_log_is_no_error(tmp_path: Path) -> None:
    """Containers have none, and others may not read it."""
    log = KernelLog(str(tmp_path / "none"))
    assert (log.is_readable, log.read(1.0)) == (False, ())


def test_the_real_log_is_read_without_waiting() -> None:
    """A reader of /dev/kmsg that is not asked not to wait waits for the next record."""
    if not os.access("/dev/kmsg", os.R_OK):
        pytest.skip("/dev/kmsg cannot be read here")
    log = KernelLog(from_start=True)
    if not log.is_readable:
        pytest.skip("the kernel log is for root here (dmesg_restrict)")
    log.read(1.0)
    assert log.is_readable
    assert log.read(2.0) == ()
    log.close()
