"""Looks twice a second whether the main thread of this process runs Python, and says so on the page.

Runs in the worker, in a thread of its own that needs the GIL for a moment at each look: while somebody holds
it for good, there are no looks, and `sampler_at` on the page stands still.

How a look knows. Comparing frames and instruction offsets cannot tell a loop from a standstill: the GIL
changes hands at a few places only, so that `while not done: pass` is found at the same instruction at every
look. Instead the sampler leaves a *pending call* with the interpreter, which runs it on the main thread,
between two bytecodes, at the next loop iteration or function call there. If it has run by the next look, the
main thread has run bytecode in between. The call is libc's sem_post: no Python code and no allocation, so it
disturbs nothing wherever it happens.

What that tells, and what it cannot tell:

- A Python loop that only polls moves, however little it does. So does a long evaluation or import.
- A C call that has released the GIL (a collective, sleep, a file read, a large matrix product) does not
  move, whether it works or waits. The main thread's CPU time, also on the page, tells those two apart, but
  not where a call spins while it waits, as CUDA's do.
- A C call that keeps the GIL does not move, and there are no looks either.
- A Python signal handler is bytecode: a hung main thread that a timer's signals interrupt moves, if Python
  made the call that hangs, and can so run the handlers.

Why a bare thread, not `threading.Thread`: scripts join all of `threading.enumerate()`, compare
`active_count()` with 1, and profilers and debuggers hook into each `threading.Thread`. A bare thread is in
none of that, does not keep the interpreter alive, and is visible to `ps -L` and py-spy under its name. It
starts before the script does, because slow imports, too, are to be told from hangs.

Forks: the thread ends before each fork and starts again in the parent, so that no child is forked from a
process with one thread more than the script has (Python 3.12 and later warn of those, with reason). A child
has no sampler, and nothing of ours runs in it.

Cost: 2 us for a look, 0.1 ms of CPU with waking up (a busy virtual machine, Python 3.11): 0.02 % of a core.
A fork takes up to 0.7 ms longer there.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import signal
import time
from _thread import allocate_lock, get_ident, get_native_id, start_new_thread
from functools import partial

from ftrun.monitor.page_writer import PageWriter
from ftrun.monitor.stack_signal import STACKS_SIGNAL

SAMPLE_INTERVAL_S = 0.5
THREAD_NAME = "ftrun-sampler"
"""As the kernel knows it (/proc/<pid>/task/<tid>/comm), which holds 15 bytes."""

_PR_SET_NAME = 15
_SEMAPHORE_BYTES = 64
"""More than sem_t has anywhere: 32 with glibc on 64 bits."""
_PENDING_CALL = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
_STOP_TIMEOUT_S = 1.0
_GONE_POLL_S = 0.00005
_SYNCHRONOUS = {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT, signal.SIGTRAP}


_LEFT_TO_OTHERS = signal.valid_signals() - _SYNCHRONOUS - {STACKS_SIGNAL}
"""Python handles signals on the main thread only, which one that comes to another would not wake. The signal
for stacks is welcome all the same, if the main thread does not take it."""

# Has the main thread call a C function between two bytecodes; not zero if the queue of 32 places is full.
_add_pending_call = ctypes.pythonapi.Py_AddPendingCall


class MainThreadProbe:
    """Finds out whether the main thread has run bytecode since it was last asked."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None)
        self._libc.calloc.restype = ctypes.c_void_p
        # Never freed: the interpreter may run the pending call at any time, late in its own end too.
        self._semaphore = ctypes.c_void_p(self._libc.calloc(1, _SEMAPHORE_BYTES))
        self._libc.sem_init(self._semaphore, 0, 0)
        self._post = ctypes.cast(self._libc.sem_post, ctypes.c_void_p)
        self._is_pending = False

    def has_moved(self) -> bool:
        """Whether the last pending call has run; then leaves another one. The first answer is no."""
        has_moved = self._is_pending and self._libc.sem_trywait(self._semaphore) == 0
        if has_moved:
            self._is_pending = False
        if not self._is_pending:
            self._is_pending = _add_pending_call(self._post, self._semaphore) == 0
        return has_moved


class _Run:
    """One life of the thread, between two forks."""

    def __init__(self) -> None:
        self.stop = allocate_lock()
        self.stop.acquire()
        self.ended = allocate_lock()
        self.ended.acquire()
        self.tid = 0


class Sampler:
    """Samples the thread that creates it, which must be the main one, from `start` until `close`."""

    def __init__(self, page: PageWriter, interval_s: float = SAMPLE_INTERVAL_S) -> None:
        self._page = page
        self._interval_s = interval_s
        self._main_ident = get_ident()
        self._main_clock = time.pthread_getcpuclockid(self._main_ident)
        self._probe = MainThreadProbe()
        self._bytecode_changes = 0
        self._next_look_at = 0.0
        self._is_wanted = False
        self._run: _Run | None = None
        self._resume_call = _PENDING_CALL(self._resume_when_called)

    def start(self) -> None:
        """Begins to sample; goes on after forks, and ends by itself when the interpreter does."""
        self._is_wanted = True
        os.register_at_fork(before=self._park, after_in_child=self._forget)
        os.register_at_fork(after_in_parent=self._resume_beside_main)
        # As a pending call, left by C code, the thread starts after the fork is over: 3.13 counts the threads
        # at its very end, and any Python code here would already be between two bytecodes.
        resume = ctypes.cast(self._resume_call, ctypes.c_void_p)
        os.register_at_fork(after_in_parent=partial(_add_pending_call, resume, None))
        atexit.register(self.close)
        self._resume()

    def close(self) -> None:
        """Ends sampling for good, and says on the page that nobody samples any more."""
        if self._is_wanted:
            self._is_wanted = False
            self._park()
            self._page.mark_sampler(0)

    def look(self) -> None:
        """One look at the main thread, onto the page."""
        if self._probe.has_moved():
            self._bytecode_changes += 1
        self._page.mark_sample(self._bytecode_changes, time.clock_gettime(self._main_clock))

    def _resume_beside_main(self) -> None:
        """For a fork by another thread: nobody knows when the main thread next runs a pending call."""
        if get_ident() != self._main_ident:
            self._resume()

    def _resume_when_called(self, _: object) -> int:
        self._resume()
        return 0

    def _resume(self) -> None:
        if self._is_wanted and self._run is None:
            self._run = run = _Run()
            # The thread must have the signals blocked from its first moment on: one that came to it would run
            # no handler until the main thread wakes by itself.
            before = signal.pthread_sigmask(signal.SIG_BLOCK, _LEFT_TO_OTHERS)
            try:
                start_new_thread(self._sample, (run,))
            except RuntimeError:  # No thread is left to be had, or the interpreter ends: then without.
                self._is_wanted = False
                self._run = None
                self._page.mark_sampler(0)
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def _park(self) -> None:
        run, self._run = self._run, None
        if run is not None:
            run.stop.release()
            if run.ended.acquire(timeout=_STOP_TIMEOUT_S):
                _wait_until_gone(run.tid)

    def _forget(self) -> None:
        self._is_wanted = False
        self._run = None

    def _sample(self, run: _Run) -> None:
        try:
            run.tid = get_native_id()
            ctypes.CDLL(None).prctl(_PR_SET_NAME, THREAD_NAME.encode(), 0, 0, 0)
            self._page.mark_sampler(run.tid)
            while True:
                left_s = self._next_look_at - time.monotonic()
                if left_s <= 0:  # Before the question whether to end: forks in a row must not starve it.
                    self.look()
                    self._next_look_at = time.monotonic() + self._interval_s
                elif run.stop.acquire(timeout=left_s):
                    return
        finally:
            run.ended.release()


def _wait_until_gone(tid: int) -> None:
    """The kernel still counts a thread for a moment after it has run its last Python, and Python asks it."""
    deadline = time.monotonic() + _STOP_TIMEOUT_S
    with contextlib.suppress(OSError):
        while time.monotonic() < deadline:
            os.stat(f"/proc/self/task/{tid}")
            time.sleep(_GONE_POLL_S)
