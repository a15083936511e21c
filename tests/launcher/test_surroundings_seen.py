"""What is around after a failure: room on file systems and dumps, without ever waiting for a dead server."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from ftrun.launcher.surroundings import Look, Surroundings, read_space
from ftrun.monitor.flight_recorder import dump_file

DEADLINE_S = 30.0


def test_room_is_that_of_the_file_system(tmp_path: Path) -> None:
    """In bytes, as statvfs counts them for an ordinary user; of a missing directory, its parent's."""
    found = os.statvfs(tmp_path)
    space = read_space(str(tmp_path / "not" / "yet"), "checkpoints")
    assert space is not None
    assert (space.path, space.what) == (str(tmp_path / "not" / "yet"), "checkpoints")
    assert space.total_bytes == found.f_blocks * found.f_frsize
    assert 0 < space.free_bytes <= space.total_bytes
    assert not space.is_full


def test_room_where_there_is_no_directory_is_unknown(tmp_path: Path) -> None:
    """A file in the place of a directory, or a name that is too long, is nobody's failure here."""
    (tmp_path / "file").touch()
    assert read_space(str(tmp_path / "file" / "below"), "logs") is None
    assert read_space(str(tmp_path / ("x" * 300)), "logs") is None


def test_job_s_places_are_looked_at(tmp_path: Path) -> None:
    """Shared memory, logs and checkpoints; what is not known is left out."""
    surroundings = Surroundings({}, str(tmp_path))
    surroundings.look_for_room(str(tmp_path / "logs"))
    assert [space.what for space in surroundings.room(DEADLINE_S)] == ["shared memory", "logs", "checkpoints"]
    surroundings = Surroundings({}, None)
    surroundings.look_for_room("")
    assert [space.path for space in surroundings.room(DEADLINE_S)] == ["/dev/shm"]


def test_place_that_does_not_answer_hides_nothing_before_it() -> None:
    """What has come by the deadline is there, later looks wait for nobody, and the next one begins anew."""
    is_over = threading.Event()

    def hangs() -> Iterator[str]:
        yield "first"
        is_over.wait(DEADLINE_S)
        yield "second"

    look = Look[str]()
    look.begin(hangs())
    assert look.answers(0.0) in ((), ("first",))
    assert wait_for(look, ("first",))
    look.begin(iter(["of a second look"]))
    assert look.answers(0.0) == (), "what the first has seen is of another round"
    is_over.set()
    assert look.answers(DEADLINE_S) == ()
    look.begin(iter(["third"]))
    assert look.answers(DEADLINE_S) == ("third",)


def wait_for(look: Look[str], expected: tuple[str, ...]) -> bool:
    """Whether the look comes to that within the deadline."""
    return any(look.answers(0.01) == expected for _ in range(int(DEADLINE_S / 0.01)))


def test_dump_of_this_round_is_found_and_an_older_one_is_not(tmp_path: Path) -> None:
    """By the prefix that torch was given, with the rank appended; the newer variable comes first."""
    new, old = tmp_path / "new_", tmp_path / "old_"
    environ = {"TORCH_FR_DUMP_TEMP_FILE": str(new), "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": str(old)}
    assert dump_file(environ, 3, 0.0) == ""
    Path(f"{old}3").touch()
    os.utime(f"{old}3", (1000.0, 1000.0))
    assert dump_file(environ, 3, 1001.0) == ""
    assert dump_file(environ, 3, 999.0) == f"{old}3"
    Path(f"{new}3").touch()
    assert dump_file(environ, 3, 999.0) == f"{new}3"
    assert dump_file(environ, 4, 999.0) == ""
    surroundings = Surroundings(environ, None)
    surroundings.look_for_dumps([3, 4], 999.0)
    assert surroundings.dumps(DEADLINE_S) == {3: f"{new}3"}


def test_failure_of_a_job_that_has_used_up_all_threads_ends_no_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is told without what could not be looked at; a later look begins anew."""
    look = Look[str]()
    with monkeypatch.context() as full:
        full.setattr(threading.Thread, "start", refuse)
        look.begin(iter(["unseen"]))
    assert look.answers(0.0) == ()
    look.begin(iter(["seen"]))
    assert look.answers(DEADLINE_S) == ("seen",)


def refuse(thread: threading.Thread) -> None:
    """As Python does where the system gives no thread."""
    raise RuntimeError("can't start new thread")
