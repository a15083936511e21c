"""The exchange between an agent and the host agent over a c10d Store.

Each `connect` begins a session (`ftrun.launcher.store_session`) with threads of its own, which import torch,
find or serve the store, and post what they learn. Nothing here waits for them but `close`.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Collection
from dataclasses import replace
from functools import partial

from ftrun.launcher import store_external
from ftrun.launcher.endpoint import Endpoint, Resolver
from ftrun.launcher.exchange import Looking, Post, over
from ftrun.launcher.message_codec import encode
from ftrun.launcher.messages import Agent, Awaited, Hello, Message, Publication, StopOrder
from ftrun.launcher.store_board import Board
from ftrun.launcher.store_client import BackendError, Clock, StoreError, import_torch
from ftrun.launcher.store_connector import TcpConnector
from ftrun.launcher.store_external import ExternalConnector, open_external
from ftrun.launcher.store_link import RefusedError
from ftrun.launcher.store_session import Session
from ftrun.launcher.store_setting import StoreSetting
from ftrun.launcher.store_talk import Request, Talk

_JOIN_S = 1.0
"""At the end, for threads whose connections have been cut."""


class StoreExchange:
    """See `ftrun.launcher.exchange.Exchange`.

    Raises:
        BackendError: what the backend needs is not installed.
    """

    def __init__(
        self,
        setting: StoreSetting,
        hello: Hello,
        agent: Agent,
        post: Post,
        clock: Clock = time.monotonic,
        resolver: Resolver = socket.getaddrinfo,
    ) -> None:
        store_external.check_backend(setting)
        self._setting = setting
        self._hello = hello
        self._agent = agent
        self._post = post
        self._clock = clock
        self._resolver = resolver
        self._session: Session | None = None
        self._talk: Talk | None = None
        self._connects = 0

    @property
    def wanted_at(self) -> float | None:
        """When `check` is wanted (CLOCK_MONOTONIC, seconds)."""
        return None if self._session is None else self._session.wanted_at

    def connect(self) -> None:
        """Look for the store in the background, in a new session."""
        self.disconnect()
        setting = self._setting
        where = setting.host if setting.backend == "file" else str(Endpoint(setting.host, setting.port))
        silence_s = setting.lost_after_s - setting.keep_alive_interval_s
        session = Session(where, silence_s, self._post, self._clock)
        talk = Talk(session, self._agent, setting.keep_alive_interval_s)
        hello = self._hello  # each store that this agent serves is another one
        if self._connects:
            hello = replace(hello, epoch=f"{hello.epoch}.{self._connects}")
        self._connects += 1
        self._session, self._talk = session, talk
        session.start("store-find", partial(self._find, session, talk, hello))

    def disconnect(self) -> None:
        """End the session; threads that are stuck are left to themselves."""
        session, self._session, self._talk = self._session, None, None
        if session is not None:
            session.end()
            session.server = None  # the last reference: torch stops serving and frees the port

    def send(self, message: Message) -> None:
        """Put a message into the inbox.

        Raises:
            MessageError: it cannot be written as JSON.
        """
        self._put(partial(Board.send, text=encode(message)))

    def order_stop(self, sequence: int, order: StopOrder) -> None:
        """Set the round's stop key, unless somebody has."""
        self._put(partial(Board.stop, sequence=sequence, order=encode(order)))

    def publish(self, sequence: int, publication: Publication) -> None:
        """Set the round's plan key, after the stop key of the one before."""
        text, order = encode(publication), encode(over(self._agent))
        self._put(partial(Board.publish, sequence=sequence, text=text, over=order))

    def tell_awaited(self, sequence: int, awaited: Awaited) -> None:
        """Set the round's key for that."""
        self._put(partial(Board.tell_awaited, sequence=sequence, text=encode(awaited)))

    def _put(self, request: Request) -> None:
        if self._talk is not None:
            self._talk.put(request)

    def watch_beats(self, agents: Collection[Agent]) -> None:
        """Whose keep-alives to read."""
        if self._talk is not None:
            self._talk.watch([agent.incarnation for agent in agents])

    def check(self, now: float) -> None:
        """End the session if the store has not answered for too long."""
        if self._session is not None:
            self._session.check(now)

    def close(self, timeout_s: float) -> None:
        """Send what is left, end the session and wait for its threads."""
        session = self._session
        if session is not None and self._talk is not None:
            self._talk.drain(timeout_s)
            session.end()
            session.join(_JOIN_S)
        self.disconnect()

    def _find(self, session: Session, talk: Talk, hello: Hello) -> None:
        try:
            import_torch()
            session.post(Looking())
            connector = self._connector(session, hello)
            while (link := connector.find()) is not None:
                try:
                    return talk.begin(link)
                except StoreError as error:
                    session.server = None
                    session.tell_waiting(f"the store at {session.where} failed: {error}")
        except (BackendError, RefusedError) as error:
            session.refuse(str(error))

    def _connector(self, session: Session, hello: Hello) -> TcpConnector | ExternalConnector:
        setting = self._setting
        if setting.backend in ("file", "etcd-v2"):
            opener = partial(open_external, setting, self._clock)
            return ExternalConnector(session, setting, hello, self._agent, opener)
        return TcpConnector(session, setting, hello, self._agent, self._resolver)
