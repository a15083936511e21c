"""Finds a job in a store that no agent serves: a file that all nodes see, or an etcd with its v2 API.

Such a store outlives the job. Each host agent therefore begins an *epoch*, a number from 1 that all its keys
carry, and an agent only joins one whose host agent is seen to be alive, so that an id can be used again.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Sequence
from datetime import timedelta

from ftrun.launcher.endpoint import Endpoint
from ftrun.launcher.message_codec import encode
from ftrun.launcher.messages import Agent, Hello
from ftrun.launcher.store_board import Board
from ftrun.launcher.store_client import BackendError, Clock, StoreClient, StoreError, first_line
from ftrun.launcher.store_link import Link, NotYet, shake_hands
from ftrun.launcher.store_session import Session
from ftrun.launcher.store_setting import StoreSetting

_LOOK_EVERY_S = 0.2
_WATCH_S = 1.0
"""torch's EtcdStore cannot be woken from outside, so it is asked in pieces."""


class EtcdClient(StoreClient):
    """torch's EtcdStore: of a Store's methods it has set, get, add, check and wait."""

    def fetch(self, keys: Sequence[str]) -> list[bytes]:
        """One by one."""
        return [self.get(key) for key in keys]

    def delete(self, key: str) -> None:
        """It cannot."""

    def settle(self, key: str, value: str) -> bytes:
        """Who adds first is the winner; if it has died over that, the next one takes its place."""
        if self.add(f"{key}/claims", 1) != 1 and self.wait(key, _WATCH_S):
            return self.get(key)
        self.set(key, value)
        return value.encode()

    def wait(self, key: str, timeout_s: float) -> bool:
        """Whether the key is there, after at most `timeout_s`."""
        give_up_at = self._clock() + timeout_s

        def wait() -> bool:
            piece_s = max(0.001, min(_WATCH_S, give_up_at - self._clock()))
            try:
                self._store.wait([key], timedelta(seconds=piece_s))
            except LookupError:  # the time is over
                return False
            return True

        while not self._ask_until(self._clock() + _WATCH_S, wait):
            if self._clock() >= give_up_at:
                return False
        return True


def check_backend(setting: StoreSetting) -> None:
    """Look for what the backend needs.

    Raises:
        BackendError: it is not installed.
    """
    if setting.backend == "etcd-v2" and importlib.util.find_spec("etcd") is None:
        raise BackendError(
            "--rdzv-backend etcd-v2 needs the package python-etcd, which is not installed: "
            "pip install python-etcd (and an etcd server that still speaks the v2 API, --enable-v2)"
        )


def open_external(setting: StoreSetting, clock: Clock) -> StoreClient:
    """A connection to the file or the etcd.

    Raises:
        StoreError: it cannot be used.
    """
    return _open_etcd(setting, clock) if setting.backend == "etcd-v2" else _open_file(setting, clock)


def _open_file(setting: StoreSetting, clock: Clock) -> StoreClient:
    from torch.distributed import FileStore

    try:
        return StoreClient(FileStore(setting.host), clock)
    except RuntimeError as error:
        raise StoreError(f"{setting.host}: {first_line(error)}") from error


def _open_etcd(setting: StoreSetting, clock: Clock) -> StoreClient:
    from torch.distributed.elastic.rendezvous import RendezvousError, RendezvousParameters
    from torch.distributed.elastic.rendezvous.etcd_rendezvous_backend import create_backend

    refusals: type[Exception] = importlib.import_module("etcd").EtcdException
    endpoint = str(Endpoint(setting.host, setting.port))
    conf = {"read_timeout": str(int(setting.read_timeout_s)), **dict(setting.backend_conf)}
    try:
        _, store = create_backend(RendezvousParameters("etcd-v2", endpoint, "ftrun", 1, 1, **conf))
    except (RendezvousError, refusals, OSError, ValueError) as error:
        raise StoreError(first_line(error)) from error
    client = EtcdClient(store, clock)
    client.errors = (*StoreClient.errors, refusals)
    return client


class Pulse:
    """Whether an epoch's host agent is alive, as seen from here: its keep-alive counter moves."""

    def __init__(self, lost_after_s: float, clock: Clock) -> None:
        self._lost_after_s = lost_after_s
        self._clock = clock
        self._prefix = ""
        self._count: int | None = None
        self._moved_at = 0.0
        self.is_living = False
        """It has been seen to move, and not long ago."""
        self.is_dead = False
        """It has said that it ends, or has been looked at for long enough without a move."""

    def look(self, board: Board) -> None:
        """Raises StoreError if the store fails."""
        client, now = board.client, self._clock()
        host, count = board.key("host"), None
        if client.has([host]):
            count = int(client.get(board.key(f"alive/{client.get(host).decode()}")))
        if board.prefix != self._prefix:
            self._prefix, self._count, self._moved_at, self.is_living = board.prefix, count, now, False
        elif count != self._count:
            self._count, self._moved_at, self.is_living = count, now, True
        self.is_dead = now - self._moved_at >= self._lost_after_s or client.has([board.key("ended")])
        self.is_living = self.is_living and not self.is_dead


class ExternalConnector:
    """Looks for a living host agent of the job, or becomes it."""

    def __init__(
        self,
        session: Session,
        setting: StoreSetting,
        hello: Hello,
        agent: Agent,
        open_client: Callable[[], StoreClient],
    ) -> None:
        self._session = session
        self._setting = setting
        self._hello = hello
        self._agent = agent
        self._open = open_client
        self._root = f"ftrun/{hello.run_id if setting.has_run_id else 'none'}/"
        self._pulse = Pulse(setting.lost_after_s, session.clock)
        self._began_at = session.clock()

    def find(self) -> Link | None:
        """The job's place in the store, as soon as it is there; None if the session has ended.

        Raises:
            RefusedError: it belongs to another job.
        """
        client: StoreClient | None = None
        while not self._session.ended.is_set():
            try:
                client = client or self._session.adopt(self._open())
                return self._try(client)
            except NotYet as reason:
                self._session.tell_waiting(str(reason))
            except StoreError as error:
                self._session.tell_waiting(f"the store at {self._session.where} cannot be used: {error}")
                if client is not None:
                    self._session.drop(client)
                    client = None
            self._session.ended.wait(_LOOK_EVERY_S)
        return None

    def _try(self, client: StoreClient) -> Link:
        epoch = self._epoch(client)
        board = Board(client, f"{self._root}{epoch}/")
        if epoch > 0:
            self._pulse.look(board)
        if self._pulse.is_living:
            return self._join(board)
        if self._takes_over(client, epoch):
            return self._serve(client)
        raise NotYet(f"no host agent of this job is alive at {self._session.where}")

    def _epoch(self, client: StoreClient) -> int:
        return client.add(f"{self._root}epochs", 0)

    def _takes_over(self, client: StoreClient, epoch: int) -> bool:
        """Whichever node: one that never comes back must not be what all others wait for."""
        setting = self._setting
        if setting.is_host is not None:
            return setting.is_host
        if epoch > 0 and not self._pulse.is_dead:
            return False
        # Whoever won an earlier attempt and has not served since has died over it.
        attempt = int((self._session.clock() - self._began_at) / (2 * setting.lost_after_s))
        return client.add(f"{self._root}claims/{epoch}/{attempt}", 1) == 1

    def _serve(self, client: StoreClient) -> Link:
        board = Board(client, f"{self._root}{client.add(f'{self._root}epochs', 1)}/")
        board.beat(self._agent.incarnation)
        client.set(board.key("host"), self._agent.incarnation)
        board.announce(encode(self._hello))
        return self._link(board, self._hello, is_host=True)

    def _join(self, board: Board) -> Link:
        setting = self._setting
        hello = shake_hands(
            board,
            self._session.where,
            self._hello,
            self._agent,
            setting.has_run_id,
            setting.same_arguments,
            setting.lost_after_s,
        )
        return self._link(board, hello, is_host=False)

    def _link(self, board: Board, hello: Hello, is_host: bool) -> Link:
        pulse = Pulse(self._setting.lost_after_s, self._session.clock)

        def find_loss(seen: Board) -> str:
            where = self._session.where
            if seen.prefix != f"{self._root}{self._epoch(seen.client)}/":
                return f"another host agent has taken over at {where}"
            if not is_host:
                pulse.look(seen)
            return f"the host agent at {where} has ended or fallen silent" if pulse.is_dead else ""

        def open_client() -> StoreClient:
            return self._session.adopt(self._open())

        return Link(board, open_client, hello, is_host, find_loss, outlives_host=True)
