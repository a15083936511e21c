"""How the `ftrun` command ends."""

from __future__ import annotations

import subprocess
import sys

import pytest

LEAVES = """
import atexit, threading
from ftrun.launcher.cli import leave
atexit.register(print, "the interpreter ended")
if {has_thread}:
    threading.Thread(target=threading.Event().wait, daemon=True).start()
print("last words")
leave(95)
"""


@pytest.mark.parametrize("has_thread", [False, True])
def test_thread_that_is_stuck_does_not_outlive_or_change_the_end(has_thread: bool) -> None:
    """In C++ it would abort the process once the interpreter ends, so that is not waited for."""
    program = LEAVES.format(has_thread=has_thread)
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30)
    end = "" if has_thread else "the interpreter ended\n"
    assert (ended.returncode, ended.stdout, ended.stderr) == (95, f"last words\n{end}", "")


def test_reader_who_has_seen_enough_is_no_error() -> None:
    """`ftrun --ft-show-config | head` ends in silence."""
    command = [sys.executable, "-m", "ftrun.launcher", "--ft-show-config", "train.py"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as shown:
        assert shown.stdout is not None
        assert shown.stderr is not None
        shown.stdout.close()
        assert (shown.wait(30), shown.stderr.read()) == (0, b"")
