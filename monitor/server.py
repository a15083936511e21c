"""Serves the clients of nvidia-resiliency-ext: a socket per local rank, and one for control requests.

One thread does it all and waits for no client: one that is slow, silent or talks nonsense costs a little
memory and disturbs nobody. It passes on what ranks say and judges nothing. The public methods are for the
agent's thread.
"""

from __future__ import annotations

import os
import selectors
import signal
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from ftrun.monitor import heartbeats as hb
from ftrun.monitor import wire
from ftrun.monitor.connection import Connection, ConnectionGoneError
from ftrun.monitor.sessions import RankSessions
from ftrun.monitor.sockets import Listener, SocketPathError

RANK_VARIABLE = "FT_RANK_MONITOR_IPC_SOCKET"
LAUNCHER_VARIABLE = "FT_LAUNCHER_IPC_SOCKET"
MAX_IDLE = 32
"""Connections without a session, per socket. Another one closes the oldest."""

_LAUNCHER_SOCKET = "launcher.socket"
_DEAF_S = 1.0
"""Pause when no connection can be accepted, e.g. for want of descriptors; clients wait in the backlog."""
_CLOSE_S = 5.0
# A fault of this thread's own ends the process with the right signal only if that is not blocked.
_FAULTS = {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT}


class HeartbeatServers:
    """The sockets of one node, over all rounds."""

    def __init__(
        self,
        directory: Path,
        ranks: Iterable[int],
        timeouts: hb.Timeouts,
        settings: wire.ClientSettings,
        on_change: Callable[[int, hb.RankHeartbeats], None],
        on_control: Callable[[wire.ControlRequest], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Open the sockets and start the thread.

        Args:
            directory: where the sockets go; only this user may enter it. `close` removes it.
            ranks: the node's local ranks.
            timeouts: as configured, for each rank.
            settings: what else clients are told.
            on_change: called on the server's thread with a local rank and its new state, whenever a limit
                may now end earlier than before: at everything but a further heartbeat of a session.
            on_control: called on the server's thread, before the rank gets its answer. Both may only append
                to a queue or wake a descriptor.
            clock: monotonic seconds.

        Raises:
            SocketPathError: the directory's path is too long.
            OSError: a socket cannot be made.
        """
        self._directory = directory
        self._settings = settings
        self._on_change = on_change
        self._on_control = on_control
        self._clock = clock
        self._ranks = {local_rank: RankSessions(timeouts) for local_rank in ranks}
        self._lock = threading.Lock()
        """Guards `_ranks` and `_round`; the connections are the thread's own."""
        self._round = 0
        self._is_closing = False
        self._deaf_until: float | None = None
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._listeners: list[Listener] = []
        self._selector = selectors.DefaultSelector()
        try:
            for local_rank in self._ranks:
                self._listeners.append(Listener(self._path(local_rank), local_rank))
            self._listeners.append(Listener(directory / _LAUNCHER_SOCKET, None))
        except (OSError, SocketPathError):
            self._release()
            raise
        self._thread = threading.Thread(target=self._run, name="ftrun-heartbeats", daemon=True)
        self._thread.start()

    def environment(self, local_rank: int) -> dict[str, str]:
        """Variables by which the clients in a worker find the sockets."""
        return {
            RANK_VARIABLE: str(self._path(local_rank)),
            LAUNCHER_VARIABLE: str(self._directory / _LAUNCHER_SOCKET),
        }

    def snapshot(self) -> dict[int, hb.RankHeartbeats]:
        """The state of each local rank now."""
        with self._lock:
            return {local_rank: sessions.state for local_rank, sessions in self._ranks.items()}

    def begin_round(self) -> None:
        """Forget what the last round's workers said, but for limits and observations.

        For when they have ended and the new ones are not started yet.
        """
        with self._lock:
            self._round += 1
            for sessions in self._ranks.values():
                sessions.begin_round()
        self._wake()

    def close(self) -> None:
        """End the thread, and remove the sockets and their directory."""
        if not self._is_closing:
            self._is_closing = True
            self._wake()
            self._thread.join(_CLOSE_S)
            self._release()

    def _path(self, local_rank: int) -> Path:
        return self._directory / f"rank{local_rank}.socket"

    def _release(self) -> None:
        for listener in self._listeners:
            listener.close()
        self._selector.close()
        os.close(self._wake_read)
        os.close(self._wake_write)
        with suppress(OSError):
            self._directory.rmdir()

    def _wake(self) -> None:
        with suppress(BlockingIOError):  # then it is full of wake-ups already
            os.write(self._wake_write, b"\0")

    def _run(self) -> None:
        # Signals are for the agent's thread, whose wait they must interrupt.
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() - _FAULTS)
        self._selector.register(self._wake_read, selectors.EVENT_READ)
        self._listen(True)
        while not self._is_closing:
            self._turn()

    def _listen(self, is_listening: bool) -> None:
        for listener in self._listeners:
            if is_listening:
                self._selector.register(listener, selectors.EVENT_READ, listener)
            else:
                self._selector.unregister(listener)

    def _turn(self) -> None:
        timeout_s = None if self._deaf_until is None else max(0.0, self._deaf_until - self._clock())
        for key, mask in self._selector.select(timeout_s):
            match key.data:
                case Listener() as listener:
                    self._accept(listener)
                case (listener, connection):
                    if connection in listener.connections:  # not closed by what came before it in this turn
                        self._serve(listener, connection, mask)
                case None:
                    os.read(self._wake_read, 4096)
                    self._close_outdated()
                    self._restore_lost()
        if self._deaf_until is not None and self._clock() >= self._deaf_until:
            self._deaf_until = None
            self._listen(True)

    def _accept(self, listener: Listener) -> None:
        if self._deaf_until is not None:
            return
        try:
            accepted, _ = listener.socket.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        except OSError:
            self._deaf_until = self._clock() + _DEAF_S
            self._listen(False)
            return
        connection = Connection(accepted)
        if connection.peer.uid != os.geteuid():
            connection.close()
            return
        listener.connections[connection] = self._round
        self._selector.register(connection, selectors.EVENT_READ, (listener, connection))
        idle = [one for one in listener.connections if not self._has_session(listener, one)]
        if len(idle) > MAX_IDLE:
            self._drop(listener, idle[0])

    def _has_session(self, listener: Listener, connection: Connection) -> bool:
        return listener.local_rank is not None and connection in self._ranks[listener.local_rank]

    def _serve(self, listener: Listener, connection: Connection, mask: int) -> None:
        try:
            if mask & selectors.EVENT_WRITE:
                connection.flush()
            if mask & selectors.EVENT_READ:
                for content in connection.read():
                    self._take(listener, connection, content)
        except (ConnectionGoneError, wire.FrameTooLongError) as error:
            self._drop(listener, connection, str(error) if isinstance(error, wire.FrameTooLongError) else "")
            return
        wanted = selectors.EVENT_WRITE if connection.has_unsent else selectors.EVENT_READ
        if connection in listener.connections and wanted != mask:
            self._selector.modify(connection, wanted, (listener, connection))

    def _take(self, listener: Listener, connection: Connection, content: bytes) -> None:
        if listener.local_rank is None:
            self._take_control(connection, content)
            return
        with self._lock:
            if listener.connections[connection] != self._round:
                raise ConnectionGoneError("its round is over")
            sessions = self._ranks[listener.local_rank]
            before = sessions.state
            reply = self._answer(sessions, connection, content)
            after, surplus = sessions.state, sessions.surplus()
        if _is_news(before, after):
            self._on_change(listener.local_rank, after)
        if reply is not None:
            connection.send(wire.encode(reply, self._settings))
        if isinstance(surplus, Connection):
            self._drop(listener, surplus)

    def _answer(self, sessions: RankSessions, connection: Connection, content: bytes) -> hb.Reply | None:
        try:
            message = wire.decode(content)
        except wire.WireError as error:
            reply = sessions.refuse(str(error))
            return reply if sessions.needs_answer(connection) or not error.may_be_unanswered else None
        if isinstance(message, wire.Authkey):
            return hb.Ok()
        if isinstance(message, hb.Init) and not self._settings.skip_section_response:
            message = replace(message, is_fire_and_forget=False)
        answer = sessions.receive(connection, connection.peer.pid, message, self._clock())
        if isinstance(message, (hb.Heartbeat, hb.Section)) and not sessions.needs_answer(connection):
            return None
        return answer

    def _take_control(self, connection: Connection, content: bytes) -> None:
        try:
            request = wire.decode_control(content)
        except wire.WireError as error:  # the client takes the end of the connection for a failure
            raise ConnectionGoneError(str(error)) from error
        try:  # what is done about it may end the client: it is to have its answer before
            connection.send(wire.CONTROL_TAKEN)
        finally:
            self._on_control(request)

    def _drop(self, listener: Listener, connection: Connection, error: str = "") -> None:
        """Let go of a connection; `error` is what was wrong with it."""
        self._selector.unregister(connection)
        round_number = listener.connections.pop(connection)
        if listener.local_rank is not None:
            self._end_session(listener.local_rank, connection, round_number, error)
        connection.close()

    def _end_session(self, local_rank: int, connection: Connection, round_number: int, error: str) -> None:
        with self._lock:
            if round_number != self._round:
                return
            sessions = self._ranks[local_rank]
            before = sessions.state
            if error:
                sessions.refuse(error)
            sessions.drop(connection)
            after = sessions.state
        if _is_news(before, after):
            self._on_change(local_rank, after)

    def _close_outdated(self) -> None:
        for listener in self._listeners:
            for connection, round_number in list(listener.connections.items()):
                if round_number != self._round and listener.local_rank is not None:
                    self._drop(listener, connection)

    def _restore_lost(self) -> None:
        """Between rounds, since the next workers look for the sockets where the last ones did."""
        for listener in [one for one in self._listeners if one.is_lost() and not self._is_closing]:
            is_listening = self._deaf_until is None
            if is_listening:
                self._selector.unregister(listener)
            with suppress(OSError):
                listener.restore()
            if is_listening:
                self._selector.register(listener, selectors.EVENT_READ, listener)


def _is_news(before: hb.RankHeartbeats, after: hb.RankHeartbeats) -> bool:
    """Something has changed, and not only by a further heartbeat of the session."""
    is_beat = after.heartbeat_count > before.heartbeat_count
    is_further = is_beat and before.is_connected and before.last_heartbeat_at is not None
    return after is not before and not is_further
