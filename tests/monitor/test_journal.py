"""Appending to the journal and reading it back."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ftrun.monitor.events import Event, LogLocated, PreloadLearned
from ftrun.monitor.journal import Journal, JournalError, read


def open_journal(path: Path) -> Journal:
    errors: list[str] = []
    return Journal(path, "n0", lambda: 5.0, lambda: 1000.0, errors.append)


def events_in(path: Path) -> list[Event]:
    return [record.event for record in read(path)]


def test_appended_events_are_read_back_with_their_times(tmp_path: Path) -> None:
    """Records come back in order, stamped by the two clocks and the node."""
    path = tmp_path / "run/n0.jsonl"
    journal = open_journal(path)
    first = journal.append(LogLocated("/a"))
    journal.append(LogLocated("/b"), durable=True)
    journal.close()
    records = list(read(path))
    assert [record.event for record in records] == [LogLocated("/a"), LogLocated("/b")]
    assert records[0] == first
    assert (first.at, first.ts, first.node) == (5.0, 1000.0, "n0")


def test_journal_is_private(tmp_path: Path) -> None:
    """The directory is made 0700 and the file 0600, whatever the umask."""
    old = os.umask(0)
    try:
        open_journal(tmp_path / "run/n0.jsonl").close()
    finally:
        os.umask(old)
    assert (tmp_path / "run").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "run/n0.jsonl").stat().st_mode & 0o777 == 0o600


def test_second_agent_appends_after_the_first(tmp_path: Path) -> None:
    """A journal that exists is continued, not replaced."""
    path = tmp_path / "n0.jsonl"
    for name in ("/a", "/b"):
        journal = open_journal(path)
        journal.append(LogLocated(name))
        journal.close()
    assert events_in(path) == [LogLocated("/a"), LogLocated("/b")]


def test_torn_last_line_costs_one_record(tmp_path: Path) -> None:
    """What a killed agent left half-written is skipped, and the next agent's first record is whole."""
    path = tmp_path / "n0.jsonl"
    journal = open_journal(path)
    journal.append(LogLocated("/a"))
    journal.append(LogLocated("/lost"))
    journal.close()
    with path.open("rb+") as file:
        file.truncate(path.stat().st_size - 9)
    torn = read(path)
    assert [record.event for record in torn] == [LogLocated("/a")]
    assert torn.skipped == 1
    journal = open_journal(path)
    journal.append(LogLocated("/b"))
    journal.close()
    assert events_in(path) == [LogLocated("/a"), LogLocated("/b")]


def test_foreign_lines_are_skipped_and_counted(tmp_path: Path) -> None:
    """Garbage, invalid UTF-8, deep nesting and oversized lines do not stop the reader."""
    path = tmp_path / "n0.jsonl"
    journal = open_journal(path)
    journal.append(LogLocated("/a"))
    garbage = [b"hello", b"\xff\xfe", b"[1]", b"[" * 100_000, b"x" * (3 << 20)]
    with path.open("ab") as file:
        file.writelines(line + b"\n" for line in [*garbage, b""])
    journal.append(LogLocated("/b"))
    journal.close()
    reading = read(path)
    assert [record.event for record in reading] == [LogLocated("/a"), LogLocated("/b")]
    assert reading.skipped >= len(garbage)


_LIMITED = """
import resource, signal, sys
from pathlib import Path
from ftrun.monitor.events import LogLocated
from ftrun.monitor.journal import Journal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
errors = []
journal = Journal(Path(sys.argv[1]), "n0", lambda: 0.0, lambda: 0.0, errors.append)
soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (350, hard))
for index in range(8):
    journal.append(LogLocated(f"/{index}"), durable=True)
resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
journal.append(LogLocated("/after"))
print(journal.lost, len(errors))
"""


def test_full_disk_is_counted_reported_once_and_survived(tmp_path: Path) -> None:
    """Failing writes never raise; when space returns after a partial one, the next record is readable."""
    path = tmp_path / "n0.jsonl"
    done = subprocess.run(
        [sys.executable, "-c", _LIMITED, str(path)], capture_output=True, text=True, timeout=30, check=True
    )
    lost, reports = map(int, done.stdout.split())
    assert reports == 1
    assert lost > 1
    found = events_in(path)
    assert found[-1] == LogLocated("/after")
    assert len(found) == 9 - lost


@pytest.mark.parametrize("what", ["directory", "file"])
def test_symbolic_link_is_refused(tmp_path: Path, what: str) -> None:
    """Neither the run directory nor the journal may be a link to somewhere else."""
    real = tmp_path / "real"
    real.mkdir(mode=0o700)
    if what == "directory":
        (tmp_path / "run").symlink_to(real)
    else:
        (tmp_path / "run").mkdir(mode=0o700)
        (tmp_path / "run/n0.jsonl").symlink_to(real / "x")
    with pytest.raises(JournalError, match="symbolic link"):
        open_journal(tmp_path / "run/n0.jsonl")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
@pytest.mark.parametrize("what", ["run", "run/n0.jsonl"])
def test_foreign_owner_is_refused(tmp_path: Path, what: str) -> None:
    """A directory or file of another user's is not written to."""
    open_journal(tmp_path / "run/n0.jsonl").close()
    os.chown(tmp_path / what, 65534, 65534)
    with pytest.raises(JournalError, match="belongs to user 65534"):
        open_journal(tmp_path / "run/n0.jsonl")


def test_directory_that_others_can_write_is_refused_and_left_alone(tmp_path: Path) -> None:
    """A shared directory is refused with a remedy; its mode is not changed."""
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    with pytest.raises(JournalError, match="chmod go-w"):
        open_journal(shared / "n0.jsonl")
    assert shared.stat().st_mode & 0o7777 == 0o1777


def test_file_in_the_place_of_the_directory_is_refused(tmp_path: Path) -> None:
    """The message says what was found."""
    (tmp_path / "run").write_text("")
    with pytest.raises(JournalError, match="regular file"):
        open_journal(tmp_path / "run/n0.jsonl")


def test_pipe_in_the_place_of_the_journal_is_refused(tmp_path: Path) -> None:
    """A FIFO neither blocks the agent nor swallows the journal."""
    os.mkfifo(tmp_path / "n0.jsonl", 0o600)
    with pytest.raises(JournalError, match="special file"):
        open_journal(tmp_path / "n0.jsonl")


def test_each_event_is_one_write(tmp_path: Path) -> None:
    """Two writers of one file never mix their lines."""
    path = tmp_path / "n0.jsonl"
    first, second = open_journal(path), open_journal(path)
    for count in range(50):
        first.append(LogLocated("x" * count))
        second.append(PreloadLearned(count))
    reading = read(path)
    assert len(list(reading)) == 100
    assert reading.skipped == 0
    first.close()
    second.close()
