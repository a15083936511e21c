"""Listening on a port that somebody asked for, and naming who has it when it is taken."""

from __future__ import annotations

import errno
import os
import socket
from typing import TypeAlias

# An address as socket.getaddrinfo gives it: IPv4, IPv6, or what an odd build of Python has for IPv6.
_Endpoint: TypeAlias = "tuple[str, int] | tuple[str, int, int, int] | tuple[int, bytes]"

_BACKLOG = 4096
"""A whole job connects at once; the kernel lowers it to net.core.somaxconn."""


class PortBusyError(Exception):
    """The port is taken by another process."""

    def __init__(self, address: str, port: int, holder: str | None) -> None:
        self.port = port
        self.holder = holder
        where = f"port {port} on {address or 'all addresses'}"
        by = holder or "a process that this user cannot see (root can: ss -ltnp)"
        super().__init__(
            f"{where} is taken by {by}; end that process, give another port, "
            "or give none and let ftrun choose a free one"
        )


def listen(address: str, port: int) -> socket.socket:
    """A listening socket on the address ("" = all of them) and port (0 = any free one), SO_REUSEADDR set.

    Raises:
        PortBusyError: Another process has the port.
        OSError: The address is not one of this machine, its name does not resolve, or the port is privileged.
    """
    refused: OSError | None = None
    for family, endpoint in _endpoints(address, port):
        try:
            return _listen(family, endpoint)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise PortBusyError(address, port, holder_of(port)) from error
            refused = refused or error
    raise refused or OSError(errno.EADDRNOTAVAIL, f"no address for {address!r}")


def _endpoints(address: str, port: int) -> list[tuple[int, _Endpoint]]:
    """What to try, in order: for all addresses one socket for both families, then IPv4 alone."""
    if not address:
        ipv4: list[tuple[int, _Endpoint]] = [(socket.AF_INET, ("0.0.0.0", port))]
        return [(socket.AF_INET6, ("::", port)), *ipv4] if socket.has_dualstack_ipv6() else ipv4
    found = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    return [(family, endpoint) for family, _, _, _, endpoint in found]


def _listen(family: int, endpoint: _Endpoint) -> socket.socket:
    server = socket.socket(family, socket.SOCK_STREAM)
    try:
        # A port of the round before may still have connections in TIME_WAIT.
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            server.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0 if endpoint[0] == "::" else 1)
        server.bind(endpoint)
        server.listen(_BACKLOG)
    except OSError:
        server.close()
        raise
    return server


def holder_of(port: int) -> str | None:
    """Who has the TCP port on this machine, "pid 123 (python train.py)"; None if that cannot be seen.

    A listener is named before a process whose outgoing connection happens to have the port.
    """
    import psutil  # 12 ms, and only needed when something is already wrong.

    try:
        connections = psutil.net_connections(kind="tcp")
    except (psutil.Error, OSError):
        return None
    holders = [c for c in connections if c.laddr and c.laddr.port == port and c.pid is not None]
    if not holders:
        return None
    holders.sort(key=lambda c: c.status != psutil.CONN_LISTEN)
    pid = holders[0].pid
    assert pid is not None
    try:
        command = _short_command(psutil.Process(pid).cmdline())
    except (psutil.Error, OSError):
        command = ""
    return f"pid {pid} ({command})" if command else f"pid {pid}"


def _short_command(argv: list[str]) -> str:
    """The program and its first argument that is no option; the rest may hold secrets."""
    if not argv:
        return ""
    argument = next((text for text in argv[1:] if not text.startswith("-")), "")
    return f"{os.path.basename(argv[0])} {argument}".strip()
