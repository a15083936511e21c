"""The agent's side of the health probe: one warm child that reads NVML, under deadlines. Judges nothing.

Whatever the child does, a reading or the reason why there is none comes within the deadline, and there is
never a second child while one that was killed is still there.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, TypeAlias

from ftrun.healthchecks.children import Survivor
from ftrun.healthchecks.probe_process import ProbeProcess, probe_command
from ftrun.healthchecks.reading import Lack, Missing, from_json
from ftrun.healthchecks.snapshots import NvmlSnapshot, failed_snapshot

Scope: TypeAlias = Literal["addresses", "memory", "usual", "thorough"]
"""See `ftrun.healthchecks.probe.SCOPES`."""


class _NoAnswerError(Exception):
    """The child gave no reading."""

    def __init__(self, lack: Lack, reason: str) -> None:
        super().__init__(reason)
        self.missing = Missing(lack, reason)


class Probe:
    """One child that reads NVML, started when it is first needed and again after it was lost.

    Its methods are for one thread, which has to live as long as the child is to: the kernel ends a child when
    the thread that has started it ends (PR_SET_PDEATHSIG).

    Args:
        root: where the node's file system is.
        command: run instead of the probe, see `ftrun.healthchecks.probe_process.probe_command`.
    """

    def __init__(self, root: str = "/", command: Sequence[str] | None = None) -> None:
        self._command = probe_command(root) if command is None else tuple(command)
        self._process: ProbeProcess | None = None
        self._survivor: Survivor | None = None
        self._survived_in = ""
        self._survived_at = 0.0

    def __enter__(self) -> Probe:
        """Nothing is started yet: see `start`."""
        return self

    def __exit__(self, *_: object) -> None:
        """As `close`."""
        self.close()

    @property
    def pid(self) -> int | None:
        """The child, also one that is stuck; None if there is none. It belongs to no round."""
        if self._process is not None:
            return self._process.pid
        return self._survivor.pid if self._survivor is not None and self.is_stuck else None

    @property
    def is_stuck(self) -> bool:
        """Whether a child that was killed is still there, because it hangs in the kernel."""
        if self._survivor is not None and not self._survivor.is_alive():
            self._survivor = None
        return self._survivor is not None

    def start(self) -> None:
        """Have a child, which initialises NVML and collects Xid events, unless there is one or one is stuck.

        Raises:
            OSError: the system does not allow another process.
        """
        if self._process is None and not self.is_stuck:
            self._process = ProbeProcess(self._command)

    def ask(self, deadline_s: float, scope: Scope = "usual") -> NvmlSnapshot:
        """A reading, or a snapshot whose `init` says why there is none.

        Returns after `deadline_s` + `ftrun.healthchecks.children.DEATH_S` seconds at the latest. A child that
        does not answer in time, dies or talks nonsense is killed; what the driver had reported before the
        reading began is in the snapshot even then. TIMEOUT there means that a call of NVML does not return;
        a child that did not get to call it is an ERROR, which says nothing of any GPU.
        """
        began = time.monotonic()
        reported: list[NvmlSnapshot] = []
        try:
            snapshot = self._ask(deadline_s, scope, reported)
        except _NoAnswerError as error:
            snapshot = failed_snapshot(began, error.missing)
        before = tuple(xid for partial in reported for xid in partial.xids)
        return replace(snapshot, xids=before + snapshot.xids)

    def close(self) -> None:
        """End the child, within `DEATH_S` seconds; one that hangs in the kernel is left behind."""
        if self._process is not None:
            self._end(self._process)

    def _ask(self, deadline_s: float, scope: Scope, reported: list[NvmlSnapshot]) -> NvmlSnapshot:
        deadline = time.monotonic() + deadline_s
        try:
            self.start()
        except OSError as error:
            raise _NoAnswerError(Lack.ERROR, f"no child can be started to ask NVML: {error}") from None
        process = self._process
        if process is None:
            raise self._still_stuck()
        try:
            process.request(scope)
            reported.append(_parse(process.read_line(deadline)))
            return _parse(process.read_line(deadline))
        except TimeoutError:
            raise self._overdue(process, deadline_s) from None
        except EOFError:
            raise self._ended(process) from None
        except ValueError as error:
            self._end(process)
            reason = f"what the child that asks NVML said is no reading: {error}"
            raise _NoAnswerError(Lack.ERROR, reason) from None

    def _overdue(self, process: ProbeProcess, deadline_s: float) -> _NoAnswerError:
        doing = self._end(process)
        left = f"; pid {process.pid}, a child, has outlived SIGKILL" if self._survivor is not None else ""
        if not doing:
            reason = f"NVML was not asked within {deadline_s:g} s: this node is overloaded{left}"
            return _NoAnswerError(Lack.ERROR, reason)
        reason = f"{doing} has not returned after {deadline_s:g} s: the GPU driver hangs or crawls{left}"
        return _NoAnswerError(Lack.TIMEOUT, reason)

    def _still_stuck(self) -> _NoAnswerError:
        hangs_s = time.monotonic() - self._survived_at
        what = self._survived_in or "a child that was to ask NVML"
        reason = f"{what} still hangs, {hangs_s:.0f} s after pid {self.pid} outlived SIGKILL"
        return _NoAnswerError(Lack.TIMEOUT if self._survived_in else Lack.ERROR, reason)

    def _ended(self, process: ProbeProcess) -> _NoAnswerError:
        code = process.wait_for_exit(timeout_s=0.1)
        complaint = process.complaint
        self._end(process)
        how = "" if code is None else f" with exit code {code}" if code >= 0 else f" by signal {-code}"
        reason = f"the child that asks NVML ended{how}"
        return _NoAnswerError(Lack.ERROR, f"{reason}: {complaint}" if complaint else reason)

    def _end(self, process: ProbeProcess) -> str:
        """End the child; returns what it was doing."""
        doing = process.doing
        self._process = None
        self._survivor = process.end()
        self._survived_in, self._survived_at = doing, time.monotonic()
        return doing


def _parse(line: bytes) -> NvmlSnapshot:
    try:
        return from_json(NvmlSnapshot, line.decode(errors="replace"))
    except (LookupError, RecursionError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from None
