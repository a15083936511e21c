"""Which connection speaks for a rank: its sessions, by connection, and what the rank's state is by them.

Pure. One process may hold several sessions, since a restart inside the process often leaves the old client
behind: each keeps its own sections and is answered by them, and the rank is judged by the newest. When that
has ended, an older one counts again from its next message on, so that a client left behind condemns nobody. A
second process is refused as long as the first one has a session.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace

from ftrun.monitor import heartbeats as hb

MAX_SESSIONS = 8
"""Of one rank at once. A process that leaves more of them behind loses the oldest."""


class RankSessions:
    """All sessions of one rank. `peer` stands for a connection, `pid` for the process at its other end."""

    def __init__(self, timeouts: hb.Timeouts) -> None:
        self.state = hb.RankHeartbeats(timeouts=timeouts)
        """What the rank is judged by."""
        self._pid: int | None = None
        self._sessions: dict[Hashable, hb.RankHeartbeats] = {}
        """Each session's own state by peer, in the order of their beginning."""
        self._speaker: Hashable | None = None
        """The peer whose session `state` is; None if that has ended."""

    def __contains__(self, peer: Hashable) -> bool:
        return peer in self._sessions

    def needs_answer(self, peer: Hashable) -> bool:
        """The client at `peer` waits for an answer to each heartbeat and section."""
        return peer not in self._sessions or not self._sessions[peer].is_fire_and_forget

    def receive(self, peer: Hashable, pid: int, message: hb.Message, now: float) -> hb.Reply:
        """Take a message that came from `peer`; returns the answer to it."""
        if isinstance(message, hb.Init):
            return self._begin(peer, pid, message, now)
        if peer not in self._sessions:
            return self.refuse("the session is not initialized: InitMsg has to come first")
        if self._speaker is None:
            self._restore(peer)
        state, reply = hb.receive(self._sessions[peer], message, now)
        self._sessions[peer] = state
        if peer == self._speaker:
            self.state = state
        elif not isinstance(message, hb.Section):  # the process is alive, and its limits are the rank's
            self._set(hb.receive(self.state, message, now)[0])
        return reply

    def refuse(self, cause: str) -> hb.Refused:
        """The answer to something that cannot be taken; it is noted, and changes nothing else."""
        state, reply = hb.refuse(self.state, cause)
        self._set(state)
        return reply

    def drop(self, peer: Hashable) -> bool:
        """The connection is gone; returns whether the rank was judged by it."""
        self._sessions.pop(peer, None)
        if peer != self._speaker:
            return False
        self._speaker = None
        self.state = hb.disconnect(self.state)
        return True

    def begin_round(self) -> None:
        """Forget all sessions; see `heartbeats.next_round`."""
        self._sessions.clear()
        self._speaker = None
        self.state = hb.next_round(self.state)

    def surplus(self) -> Hashable | None:
        """The oldest session's peer if there are more than `MAX_SESSIONS`."""
        return next(iter(self._sessions)) if len(self._sessions) > MAX_SESSIONS else None

    def _begin(self, peer: Hashable, pid: int, message: hb.Init, now: float) -> hb.Reply:
        if self._sessions and pid != self._pid:
            return self.refuse(
                f"process {self._pid} is this rank's client already; process {pid} cannot be it too"
            )
        self._pid = pid
        self._sessions.pop(peer, None)
        self._speaker = peer
        state, reply = hb.receive(self.state, message, now)
        self._set(state)
        return reply

    def _restore(self, peer: Hashable) -> None:
        """Judge the rank by an older session again; what is the rank's and not the session's stays."""
        shared = self.state
        self._speaker = peer
        self._set(
            replace(
                self._sessions[peer],
                timeouts=shared.timeouts,
                observed=shared.observed,
                session_count=shared.session_count,
                heartbeat_count=shared.heartbeat_count,
                error_count=shared.error_count,
                last_error=shared.last_error,
            )
        )

    def _set(self, state: hb.RankHeartbeats) -> None:
        self.state = state
        if self._speaker is not None:
            self._sessions[self._speaker] = state
