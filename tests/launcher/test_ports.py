"""Listening on a port, and naming its holder when it is busy."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from ftrun.launcher.ports import PortBusyError, holder_of, listen


@pytest.mark.parametrize("address", ["127.0.0.1", "localhost", ""])
def test_listens_and_accepts(address: str) -> None:
    """The socket is bound, listening and closed on exec; port 0 means a free one."""
    with listen(address, 0) as server:
        assert not server.get_inheritable()
        with socket.create_connection(("127.0.0.1", server.getsockname()[1]), timeout=5):
            server.accept()[0].close()


def test_all_addresses_include_ipv6_where_there_is_one() -> None:
    """ "" serves both families with one socket."""
    if not socket.has_dualstack_ipv6():
        pytest.skip("no IPv6 on this machine")
    with listen("", 0) as server, socket.socket(socket.AF_INET6) as client:
        client.settimeout(5)
        client.connect(("::1", server.getsockname()[1]))


def test_port_of_closed_connections_can_be_taken_again() -> None:
    """Connections in TIME_WAIT do not hold the port between rounds."""
    with listen("127.0.0.1", 0) as server:
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port), timeout=5):
            server.accept()[0].close()
    listen("127.0.0.1", port).close()


_HOLD = "import socket; s = socket.create_server(('127.0.0.1', 0)); print(s.getsockname()[1]); input()"


def test_busy_port_names_its_holder_and_the_remedy(tmp_path: Path) -> None:
    """The message has the port, the process and what to do."""
    script = tmp_path / "hold.py"
    script.write_text(_HOLD)
    command = [sys.executable, "-u", str(script), "--token=secret"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            port = int(process.stdout.readline())
            with pytest.raises(PortBusyError) as caught:
                listen("127.0.0.1", port)
        finally:
            process.kill()
    message = str(caught.value)
    assert f"port {port}" in message
    assert f"pid {process.pid} ({os.path.basename(sys.executable)} {script})" in message
    assert "give another port" in message
    assert "secret" not in message
    assert caught.value.port == port


def test_all_addresses_are_busy_when_one_is() -> None:
    """A listener on one address keeps the port from being served on all of them."""
    with listen("127.0.0.1", 0) as server, pytest.raises(PortBusyError):
        listen("", server.getsockname()[1])


def test_free_port_has_no_holder() -> None:
    """Nobody is made up."""
    with listen("127.0.0.1", 0) as server:
        port = server.getsockname()[1]
        assert holder_of(port) is not None
    assert holder_of(port) is None


def test_foreign_address_is_no_busy_port() -> None:
    """An address that is not this machine's raises what the kernel says."""
    with pytest.raises(OSError, match="assign"):
        listen("192.0.2.1", 0)
