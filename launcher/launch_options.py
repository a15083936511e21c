"""From the texts of torchrun's options to `LaunchOptions`: what each may be, and what may not be combined.

Pure. Where the texts come from is the work of `ftrun.launcher.options`.
"""

from __future__ import annotations

import math
import re
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from ftrun.launcher import streams
from ftrun.launcher.config import LaunchOptions
from ftrun.launcher.streams import StdMap

_T = TypeVar("_T")
_WORD = re.compile(r"[a-z][a-z0-9_]*", re.ASCII)
_ESCAPED_COMMA = "\0"


class UsageError(ValueError):
    """The command line, or the configuration it leads to, cannot be used; the message is for stderr."""


@dataclass(frozen=True, slots=True)
class Given:
    """The text of one option, and where it is from."""

    text: str
    where: str
    """Option as typed, or environment variable; begins messages."""
    is_typed: bool
    """From the command line, not from the environment."""

    @property
    def origin(self) -> str:
        """Where the text is from, for people."""
        return f"{'command line' if self.is_typed else 'environment'} {self.where}"

    def read(self, convert: Callable[[str], _T], expected: str) -> _T:
        """Convert the text.

        Raises:
            UsageError: `convert` raised ValueError.
        """
        try:
            return convert(self.text)
        except ValueError as error:
            reason = f" ({error})" if isinstance(error, _Reason) else ""
            raise UsageError(f"{self.where}: found {self.text!r}, expected {expected}{reason}") from None


class _Reason(ValueError):
    """Why a text was refused, where that says more than what was expected."""


def read_flag(text: str) -> bool:
    """Read a flag's environment variable as torchrun does: any whole number, 0 for off."""
    return bool(int(text))


def _read_nodes(text: str) -> tuple[int, int]:
    numbers = [int(part) for part in text.split(":")]
    if len(numbers) > 2 or not 0 < numbers[0] <= numbers[-1]:
        raise ValueError(text)
    return numbers[0], numbers[-1]


def _read_workers(text: str) -> str:
    try:
        count = int(text)
    except ValueError:
        if not _WORD.fullmatch(text):
            raise
        return text
    if count < 1:
        raise ValueError(text)
    return str(count)


def _read_pairs(text: str) -> tuple[tuple[str, str], ...]:
    if not text.strip():
        return ()
    pairs: dict[str, str] = {}
    for part in text.strip().split(","):
        key, _, value = (piece.strip() for piece in part.partition("="))
        if not key or not value:
            raise ValueError(text)
        pairs[key] = value
    return tuple(pairs.items())


def _read_ranks(text: str) -> frozenset[int] | None:
    if not text:
        return None
    ranks = frozenset(int(part) for part in text.split(","))
    if min(ranks) < 0:
        raise ValueError(text)
    return ranks


def _read_filters(text: str) -> tuple[str, ...]:
    parts = text.replace(",,", _ESCAPED_COMMA).split(",")
    return tuple(part.replace(_ESCAPED_COMMA, ",") for part in parts if part)


def _read_signals(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    for name in names:
        if name not in signal.Signals.__members__:
            raise _Reason(f"there is no signal {name!r}")
        if name in ("SIGKILL", "SIGSTOP"):
            raise _Reason(f"no process can handle {name}")
    return tuple(dict.fromkeys(names))


def _read_endpoint(text: str) -> str:
    host, colon, port = text.strip().rpartition(":")
    # It may be a path, or an IPv6 address without a port; who uses it looks closer.
    has_port = bool(colon) and "/" not in host and (":" not in host or host.endswith("]"))
    if has_port and not (port.isascii() and port.isdigit() and int(port) <= 65535):
        raise ValueError(text)
    return text


def _read_rank(text: str) -> int:
    rank = int(text)
    if rank < 0:
        raise ValueError(text)
    return rank


def _read_port(text: str) -> int:
    port = int(text)
    if not 0 <= port <= 65535:
        raise ValueError(text)
    return port


def _read_seconds(text: str) -> float:
    seconds = float(text)
    if not (math.isfinite(seconds) and seconds >= 0):
        raise ValueError(text)
    return seconds


_SECONDS = (_read_seconds, "a number of seconds, 0 or more")
_FLAG = (read_flag, "1 or 0")
_STREAMS = (StdMap.parse, streams.EXPECTED)
_TEXT = (str, "a text")

_READERS: Mapping[str, tuple[Callable[[str], object], str]] = {
    "nproc_per_node": (_read_workers, "a number above 0, auto, cpu, gpu or xpu"),
    "rdzv_backend": _TEXT,
    "rdzv_endpoint": (_read_endpoint, "HOST[:PORT] with a port from 0 to 65535"),
    "rdzv_id": _TEXT,
    "rdzv_conf": (_read_pairs, "KEY=VALUE,KEY=VALUE"),
    "standalone": _FLAG,
    "monitor_interval": _SECONDS,
    "start_method": _TEXT,
    "event_log_handler": _TEXT,
    "role": _TEXT,
    "is_module": _FLAG,
    "no_python": _FLAG,
    "run_path": _FLAG,
    "log_dir": _TEXT,
    "redirects": _STREAMS,
    "tee": _STREAMS,
    "local_ranks_filter": (_read_ranks, "local ranks such as 0,1,2"),
    "duplicate_stdout_filters": (_read_filters, "texts such as error,loss"),
    "duplicate_stderr_filters": (_read_filters, "texts such as error,loss"),
    "node_rank": (_read_rank, "a whole number, 0 or more"),
    "master_addr": _TEXT,
    "master_port": (_read_port, "a port from 0 to 65535"),
    "local_addr": _TEXT,
    "logs_specs": _TEXT,
    "numa_binding": _TEXT,
    "signals_to_handle": (_read_signals, "signals such as SIGTERM,SIGINT"),
    "shutdown_timeout": _SECONDS,
    "virtual_local_rank": _FLAG,
}
"""Field of `LaunchOptions` to what reads its text, and what is expected."""


def build_launch_options(
    given: Mapping[str, Given], max_restarts: int, command: tuple[str, ...]
) -> LaunchOptions:
    """Check and convert torchrun's options.

    Args:
        given: by field of `LaunchOptions`, "nnodes" for the number of nodes; absent ones keep their default.
        max_restarts: restarts of the job.
        command: training script and its arguments, or nothing.

    Raises:
        UsageError: a text is not what the option takes, or two options exclude each other.
    """
    settings: dict[str, Any] = {
        name: given[name].read(*reader) for name, reader in _READERS.items() if name in given
    }
    if "nnodes" in given:
        expected = "a number of nodes above 0, or MIN:MAX with MIN not above MAX"
        settings["min_nodes"], settings["max_nodes"] = given["nnodes"].read(_read_nodes, expected)
    script = command[0] if command else ""
    options = LaunchOptions(script, command[1:], max_restarts=max_restarts, **settings)
    # torchrun's --run-path wins over --no-python, and then --module is not looked at.
    if options.no_python and options.is_module and not options.run_path:
        raise UsageError("--no-python and --module exclude each other: a module needs Python; leave one out")
    return options
