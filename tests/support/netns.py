"""Hosts on this machine, each with a network of its own, joined by one switch. Needs root.

A host is a network namespace with one interface, a name, its own /etc/hosts and /etc/resolv.conf, and its own
place for the names of agents. Hosts know each other's hardware addresses from the start, as if routers were
between them: a cable that is cut shows as silence, and nothing tells of it. Files and the clock are shared.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from ftrun.launcher.identity import lock_places
from tests.support.nodes import Job
from tests.support.run import Run, start

PORT = 29400
"""Of the rendezvous: no other program runs on these hosts."""
_PREFIX = "ftrun-test"
_ETC = Path("/etc/netns")
_INTERFACE = "eth0"
_SILENT = 99
"""Number of a host that is known and never answers."""

# As a wrapper of what follows: $0 is the host's name, $1 and $2 the lock directory to be seen and the host's.
_ENTER = 'hostname "$0" && mount --bind "$2" "$1" && shift 2 && exec "$@"'


def why_not() -> str:
    """Why there can be no hosts here; "" if there can."""
    if os.geteuid() != 0:
        return "needs root"
    if missing := [tool for tool in ("ip", "unshare", "hostname", "mount") if shutil.which(tool) is None]:
        return f"needs {', '.join(missing)}"
    name = f"{_PREFIX}-{os.getpid()}-{secrets.token_hex(3)}-probe"
    try:
        _ip("netns", "add", name)
    except subprocess.CalledProcessError as error:
        return f"needs network namespaces: {error.stderr.strip()}"
    try:
        _ip("-n", name, "link", "add", "br0", "type", "bridge")
        _ip("-n", name, "link", "add", "v0", "type", "veth", "peer", "name", "v1")
        subprocess.run(["ip", "netns", "exec", name, "unshare", "--uts", "true"], check=True, timeout=10)
    except subprocess.CalledProcessError as error:
        return f"needs bridges, virtual cables and host names: {error.stderr or error}"
    finally:
        _ip("netns", "del", name)
    return ""


def _ip(*words: str) -> str:
    """Run `ip`; raises CalledProcessError with what it said."""
    done = subprocess.run(["ip", *words], check=True, capture_output=True, text=True, timeout=10)
    return done.stdout


class Host:
    """One host of a `Network`."""

    def __init__(self, name: str, number: int, namespace: str, is_v6: bool, locks: Path) -> None:
        self.name = name
        self.number = number
        self.namespace = namespace
        self.address = _address(number, is_v6)
        self._locks = locks

    @property
    def wrapper(self) -> tuple[str, ...]:
        """What a command is put behind, to run on this host as the same process."""
        place = lock_places({})[0]
        place.mkdir(mode=0o700, exist_ok=True)
        enter = ("sh", "-c", _ENTER, self.name, str(place), str(self._locks))
        return ("ip", "netns", "exec", self.namespace, "unshare", "--uts", *enter)

    def run(self, *command: str) -> str:
        """Run a command on this host to its end; what it wrote to stdout."""
        done = subprocess.run(
            [*self.wrapper, *command], check=True, capture_output=True, text=True, timeout=30
        )
        return done.stdout

    def know(self, names: Mapping[str, str]) -> None:
        """Add name -> address to /etc/hosts, seen by what runs already too."""
        with (_ETC / self.namespace / "hosts").open("a") as file:
            file.writelines(f"{address} {name}\n" for name, address in names.items())

    def ip(self, *words: str) -> None:
        """Change this host's network."""
        _ip("-n", self.namespace, *words)

    def unplug(self) -> None:
        """Take the interface down, which programs on this host notice."""
        self.ip("link", "set", _INTERFACE, "down")

    def plug(self) -> None:
        """Take it up again."""
        self.ip("link", "set", _INTERFACE, "up")


class Network:
    """Some hosts on one switch; make it with `network`."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        self._directory = directory
        self._stack = stack
        self._run = f"{_PREFIX}-{os.getpid()}-{secrets.token_hex(3)}"
        self._switch = self._add_namespace("switch")
        _ip("-n", self._switch, "link", "add", "br0", "type", "bridge")
        _ip("-n", self._switch, "link", "set", "br0", "up")
        self.hosts: dict[str, Host] = {}

    def _add_namespace(self, name: str) -> str:
        namespace = f"{self._run}-{name}"
        _ip("netns", "add", namespace)
        self._stack.callback(_remove, namespace)
        return namespace

    def add(self, name: str, is_v6: bool = False) -> Host:
        """A further host; no other one knows its name, and its own name means the loopback, as on Debian."""
        number = len(self.hosts) + 1
        namespace = self._add_namespace(name)
        etc = _ETC / namespace
        etc.mkdir(parents=True)
        (etc / "hosts").write_text(f"127.0.0.1 localhost\n::1 localhost\n127.0.1.1 {name}\n")
        (etc / "resolv.conf").write_text("nameserver 127.0.0.1\n")  # where nothing listens: a quick no
        locks = self._directory / f"locks-{name}"
        locks.mkdir(mode=0o700, parents=True)
        host = Host(name, number, namespace, is_v6, locks)
        port, mac = f"port{number}", _mac(number)
        _ip("-n", self._switch, "link", "add", port, "type", "veth", "peer", "name", _INTERFACE)
        _ip("-n", self._switch, "link", "set", _INTERFACE, "address", mac, "netns", namespace)
        _ip("-n", self._switch, "link", "set", port, "master", "br0", "up")
        host.ip("link", "set", "lo", "up")
        host.ip("link", "set", _INTERFACE, "up")
        size = "64" if is_v6 else "24"
        nodad = ("nodad",) if is_v6 else ()
        host.ip("addr", "add", f"{host.address}/{size}", "dev", _INTERFACE, *nodad)
        self.hosts[name] = host
        for one in self.hosts.values():
            for other in self.hosts.values():
                if one is not other:
                    _introduce(one, other.address, other.number)
        return host

    def cut(self, host: Host) -> None:
        """Let everything that is sent to or from this host get lost, silently."""
        _ip("-n", self._switch, "link", "set", f"port{host.number}", "nomaster")

    def heal(self, host: Host) -> None:
        """Connect it again."""
        _ip("-n", self._switch, "link", "set", f"port{host.number}", "master", "br0")

    def silence_names(self) -> None:
        """From now on each host has a name server that never answers."""
        for host in self.hosts.values():
            address = _address(_SILENT, ":" in host.address)
            _introduce(host, address, _SILENT)
            (_ETC / host.namespace / "resolv.conf").write_text(f"nameserver {address}\n")


def _address(number: int, is_v6: bool) -> str:
    return f"fd00::{number}" if is_v6 else f"10.77.0.{number}"


def _mac(number: int) -> str:
    return f"02:00:00:00:00:{number:02x}"


def _introduce(host: Host, address: str, number: int) -> None:
    """The host need not ask who has the address."""
    host.ip("neigh", "replace", address, "lladdr", _mac(number), "dev", _INTERFACE, "nud", "permanent")


def _remove(namespace: str) -> None:
    """A namespace, with its interfaces; cables end with either of their ends."""
    shutil.rmtree(_ETC / namespace, ignore_errors=True)
    with contextlib.suppress(subprocess.CalledProcessError):
        _ip("netns", "del", namespace)


def _sweep() -> None:
    """Remove what test processes have left that were killed."""
    for name in _ip("netns", "list").split():
        owner = re.match(rf"{_PREFIX}-(\d+)-", name)
        if owner and not Path(f"/proc/{owner[1]}").exists():
            _remove(name)


@contextmanager
def network(directory: Path) -> Iterator[Network]:
    """A switch without hosts; whatever happens, nothing of it is left."""
    _sweep()
    with ExitStack() as stack:
        yield Network(directory, stack)


class HostJob(Job):
    """Agents of one job, each on a host; make it with `host_job`."""

    def start_on(
        self, host: Host, *more: str, environment: Mapping[str, str] | None = None, place: int | None = None
    ) -> Run:
        """Start an agent on a host; `place` is its rank among the nodes, if it is to be told."""
        directory = self.directory / f"agent{len(self.runs)}-{host.name}"
        rank = () if place is None else ("--node-rank", str(place))
        # gloo asks for the address of the host's name, which is the loopback here.
        own = {"D": str(self.directory), "GLOO_SOCKET_IFNAME": _INTERFACE, **(environment or {})}
        arguments = (*self._options, *rank, *more, *self._script)
        run = self._stack.enter_context(start(directory, *arguments, environment=own, wrapper=host.wrapper))
        self.runs.append(run)
        return run


@contextmanager
def host_job(directory: Path, endpoint: str, *options: str, script: Sequence[str]) -> Iterator[HostJob]:
    """A job that meets over c10d at an endpoint, with no agent yet."""
    meeting = ("--rdzv-backend", "c10d", "--rdzv-endpoint", endpoint, "--rdzv-id", "j")
    with ExitStack() as stack:
        yield HostJob(directory, (*meeting, *options), script, PORT, stack)
