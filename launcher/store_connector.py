"""Finds a job's TCPStore at its endpoint, or serves it there: decides who is the host agent.

The host agent is who can listen at the endpoint's own address; nobody needs to know names for that. Where the
address is nobody's (a Kubernetes Service, a virtual IP), it is the first node of the given order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ftrun.launcher import store_tcp
from ftrun.launcher.endpoint import Address, Endpoint, NobodyAnswersError, Resolver
from ftrun.launcher.message_codec import MessageError, decode_hello, encode
from ftrun.launcher.messages import Agent, Hello
from ftrun.launcher.ports import PortBusyError, holder_of, listen
from ftrun.launcher.store_board import Board
from ftrun.launcher.store_client import StoreClient, StoreError
from ftrun.launcher.store_link import Link, NotYet, shake_hands
from ftrun.launcher.store_session import Session
from ftrun.launcher.store_setting import StoreSetting

_PREFIX = "ftrun/"
_CONNECT_S = 3.0
"""Longest wait for a TCP connection to one address."""
_SLOW_S = 5.0
"""A store that has not answered after that is told of."""
_GREETING_S = 20.0
"""Longest wait for a store to answer; torch itself waits 10 s for a name server that is not there."""
_HELLO_S = 2.0
"""From when a host agent serves its store to when it announces itself."""
_SERVE_AFTER_S = 3.0
"""The first node serves the store if nobody answers at the endpoint for so long."""
_PAUSES_S = (0.05, 0.1, 0.2, 0.5)
_LOOK_AGAIN_S = 2.0


class TcpConnector:
    """Looks for the store of one session."""

    def __init__(
        self, session: Session, setting: StoreSetting, hello: Hello, agent: Agent, resolver: Resolver
    ) -> None:
        self._session = session
        self._setting = setting
        self._hello = hello
        self._agent = agent
        self._resolver = resolver
        self._endpoint = Endpoint(setting.host, setting.port)
        self._unanswered_since: float | None = None
        self._silence = ""

    def find(self) -> Link | None:
        """The store, as soon as it is there; None if the session has ended.

        Raises:
            RefusedError: it belongs to another job.
        """
        tries = 0
        while not self._session.ended.is_set():
            try:
                return self._try()
            except NotYet as reason:
                self._session.tell_waiting(str(reason))
            self._session.ended.wait(_PAUSES_S[min(tries, len(_PAUSES_S) - 1)])
            tries += 1
        return None

    def _try(self) -> Link:
        is_host = self._setting.is_host
        if is_host:
            return self._serve()
        try:
            addresses = self._endpoint.resolve(self._resolver)
            if is_host is None and any(address.is_local for address in addresses):
                try:
                    return self._serve()
                except PortBusyError:
                    pass  # another agent of this machine serves it, or it is none; the greeting shows that
            return self._join(addresses)
        except NobodyAnswersError as error:
            if is_host is None and self._setting.rank_hint == 0 and self._is_unanswered_for_long():
                return self._serve_for_name()
            raise NotYet(str(error)) from error

    def _is_unanswered_for_long(self) -> bool:
        now = self._session.clock()
        if self._unanswered_since is None:
            self._unanswered_since = now
        return now - self._unanswered_since >= _SERVE_AFTER_S

    def _join(self, addresses: Sequence[Address]) -> Link:
        address = self._find_listener(addresses)
        self._unanswered_since = None
        where = str(self._endpoint)
        client = self._open(address)
        board, setting = Board(client, _PREFIX), self._setting
        try:
            hello = shake_hands(
                board,
                where,
                self._hello,
                self._agent,
                setting.has_run_id,
                setting.same_arguments,
                _HELLO_S,
            )
        except StoreError as error:
            self._session.drop(client)
            raise NotYet(f"the store at {where} failed: {error}") from error
        except NotYet:
            self._session.drop(client)
            raise
        return Link(board, lambda: self._connect(address.host), hello, is_host=False)

    def _find_listener(self, addresses: Sequence[Address]) -> Address:
        """The first address that accepts a connection; torch itself would retry a refused one for seconds."""
        reasons: dict[str, list[Address]] = {}
        timeout_s = min(_CONNECT_S, self._setting.read_timeout_s)
        for address in addresses:
            reason = address.try_connect(timeout_s)
            if not reason:
                return address
            reasons.setdefault(reason, []).append(address)
        told = [f"{self._endpoint.describe(those)} {reason}" for reason, those in reasons.items()]
        raise NobodyAnswersError("; ".join(told))

    def _open(self, address: Address) -> StoreClient:
        self._silence = ""
        look_at_s = min(_SLOW_S, self._setting.read_timeout_s / 2)

        def goes_on(waited_s: float) -> bool:
            nonlocal look_at_s
            if waited_s > look_at_s:
                look_at_s = waited_s + _LOOK_AGAIN_S
                if address.try_connect(_CONNECT_S):  # nobody listens any more; torch would go on trying
                    return False
                if not self._silence:
                    self._silence = self._explain_silence(address)
                    self._session.tell_waiting(self._silence)
            return not self._session.ended.is_set()

        try:
            return self._connect(address.host, goes_on)
        except store_tcp.SilentError as error:
            raise NotYet(self._silence or self._explain_silence(address)) from error
        except StoreError as error:
            raise NotYet(f"{self._endpoint} does not answer as a torch TCPStore: {error}") from error

    def _explain_silence(self, address: Address) -> str:
        holder = holder_of(self._setting.port) if address.is_local else None
        return (
            f"{self._endpoint} accepts connections but does not answer as a torch TCPStore: another program "
            f"may have the port ({holder or 'on that machine: ss -ltnp'}), its agent may be frozen, or this "
            "machine's name server does not answer"
        )

    def _connect(
        self, host: str, goes_on: Callable[[float], bool] | None = None, port: int | None = None
    ) -> StoreClient:
        session, read_timeout_s = self._session, self._setting.read_timeout_s
        client = store_tcp.connect(
            host,
            port or self._setting.port,
            min(_GREETING_S, read_timeout_s),
            read_timeout_s,
            session.clock,
            goes_on or (lambda _: not session.ended.is_set()),
        )
        return session.adopt(client)

    def _serve(self) -> Link:
        """Become the host agent.

        Raises:
            PortBusyError: the port is taken, and the role was not given.
        """
        setting = self._setting
        try:
            listener = listen(setting.host if self._endpoint.is_loopback else "", setting.port)
        except PortBusyError as error:
            if setting.is_host:
                raise NotYet(f"the store cannot be served: {error}") from error
            raise
        except OSError as error:
            raise NotYet(f"the store cannot be served at {self._endpoint}: {error.strerror}") from error
        host, port = listener.getsockname()[:2]
        try:
            self._session.server = store_tcp.serve(listener, setting.use_libuv)
            board = Board(self._connect(host, port=port), _PREFIX)
            board.announce(encode(self._hello))
        except StoreError as error:
            self._session.server = None
            raise NotYet(f"the store cannot be served at {self._endpoint}: {error}") from error
        return Link(board, lambda: self._connect(host, port=port), self._hello, is_host=True)

    def _serve_for_name(self) -> Link:
        """Become the host agent of an endpoint whose address is not this machine's."""
        try:
            link = self._serve()
        except PortBusyError as error:
            raise NotYet(f"nobody answers at {self._endpoint}, and here {error}") from error
        self._session.start("endpoint", self._look_for_rival)
        return link

    def _look_for_rival(self) -> None:
        """Step down if the endpoint turns out to lead to another host agent, which the other nodes find."""
        while not self._session.ended.wait(_LOOK_AGAIN_S):
            epoch = self._epoch_at_endpoint()
            if epoch == self._hello.epoch:
                return
            if epoch:
                self._session.lose(f"{self._endpoint} leads to another host agent: this one steps down")

    def _epoch_at_endpoint(self) -> str:
        """Which host agent the endpoint leads to; "" if to none that answers."""
        try:
            address = self._find_listener(self._endpoint.resolve(self._resolver))
            client = self._connect(address.host)
            try:
                text = Board(client, _PREFIX).read_hello(_HELLO_S)
                return decode_hello(text).epoch if text is not None else ""
            finally:
                self._session.drop(client)
        except (NobodyAnswersError, StoreError, MessageError):
            return ""
