"""Where a rendezvous endpoint leads: its addresses, which of them are local, whether somebody listens.

Only forward look-ups of the endpoint's own name are made, and each time anew: a replacement for a lost node
may have another address.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

Resolver = Callable[..., Sequence[tuple[Any, ...]]]
"""socket.getaddrinfo, or what stands for it."""


class NobodyAnswersError(Exception):
    """There is no listener at the endpoint, or no way to it; a sentence."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A name or address (IPv6 without brackets) and a port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        """It is meant for this machine only. A name that merely resolves to the loopback here may not be."""
        return self.host == "localhost" or _is_loopback(self.host)

    def resolve(self, resolver: Resolver) -> list[Address]:
        """All its addresses, in the resolver's order.

        Raises:
            NobodyAnswersError: the name has none.
        """
        try:
            found = resolver(self.host, self.port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            raise NobodyAnswersError(f"cannot resolve {self.host} ({reason})") from error
        addresses = [Address(family, sockaddr) for family, _, _, _, sockaddr in found]
        if not addresses:
            raise NobodyAnswersError(f"cannot resolve {self.host} (it has no address)")
        return addresses

    def describe(self, addresses: Sequence[Address]) -> str:
        """The endpoint with what it resolved to, where that says more."""
        shown = ", ".join(address.host for address in addresses)
        return str(self) if shown == self.host else f"{self} ({shown})"


@dataclass(frozen=True, slots=True)
class Address:
    """One address of an endpoint."""

    family: int
    sockaddr: tuple[Any, ...]
    """As `socket.getaddrinfo` gives it."""

    @property
    def host(self) -> str:
        """The numeric address, with the interface if it is link-local."""
        return str(self.sockaddr[0])

    @property
    def is_local(self) -> bool:
        """It is one of this machine's own.

        Binding alone is no proof (net.ipv4.ip_nonlocal_bind): the kernel also has to see it as its own, which
        it shows by choosing it as the source of what is sent there. Nothing is sent.
        """
        if _is_loopback(self.host):
            return True
        own = (self.sockaddr[0], 0, *self.sockaddr[2:])
        try:
            with socket.socket(self.family, socket.SOCK_DGRAM) as bound:
                bound.bind(own)
            with socket.socket(self.family, socket.SOCK_DGRAM) as sender:
                sender.connect(self.sockaddr)
                return bool(sender.getsockname()[0] == own[0])
        except OSError:
            return False

    def try_connect(self, timeout_s: float) -> str:
        """Why no TCP connection can be made; "" if one can."""
        try:
            with socket.socket(self.family, socket.SOCK_STREAM) as line:
                line.settimeout(timeout_s)
                line.connect(self.sockaddr)
        except ConnectionRefusedError:
            return "refuses connections: no host agent there yet"
        except TimeoutError:
            return f"does not answer: no connection within {timeout_s:g} s"
        except OSError as error:
            return f"cannot be reached: {error.strerror or error}"
        return ""


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return False
