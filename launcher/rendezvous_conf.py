"""The keys of torchrun's --rdzv-conf: what each may be, and which have no effect. Pure.

Names and meaning are those of torch.distributed.elastic.rendezvous (`dynamic_rendezvous.create_handler`,
`c10d_rendezvous_backend`, `etcd_rendezvous_backend`, `static_tcp_rendezvous`, `RendezvousParameters`).
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ftrun.launcher.config import IgnoredOption
from ftrun.launcher.launch_options import UsageError

Pairs = tuple[tuple[str, str], ...]

LEAST_ATTEMPTS = 2
"""Missed keep-alives that make a node lost: a single one may only be late."""

_TRUE_WORDS = frozenset({"1", "true", "t", "yes", "y"})
_FALSE_WORDS = frozenset({"0", "false", "f", "no", "n"})
_STORE_TYPES = ("tcp", "file")


@dataclass(frozen=True, slots=True)
class RendezvousConf:
    """What --rdzv-conf says; fields are called like its keys. None for a key that is not there."""

    join_timeout: float | None = None
    """Seconds, as all times here."""
    last_call_timeout: float | None = None
    close_timeout: float | None = None
    read_timeout: float | None = None
    timeout: float | None = None
    keep_alive_interval: float | None = None
    keep_alive_max_attempt: int | None = None
    is_host: bool | None = None
    use_libuv: bool | None = None
    store_type: str | None = None
    protocol: str | None = None
    ssl_cert: str | None = None
    ssl_cert_key: str | None = None
    ca_cert: str | None = None


def _read_time(text: str) -> float:
    seconds = float(text)
    if not (math.isfinite(seconds) and seconds > 0):
        raise ValueError(text)
    return seconds


def _read_wait(text: str) -> float:
    return 0.0 if float(text) == 0 else _read_time(text)


def _read_attempts(text: str) -> int:
    count = int(text)
    if count < 1:
        raise ValueError(text)
    return count


def _read_truth(text: str) -> bool:
    word = text.lower()
    if word not in _TRUE_WORDS | _FALSE_WORDS:
        raise ValueError(text)
    return word in _TRUE_WORDS


def _read_store_type(text: str) -> str:
    word = text.strip().lower()
    if word not in _STORE_TYPES:
        raise ValueError(text)
    return word


@dataclass(frozen=True, slots=True)
class _Key:
    read: Callable[[str], object]
    expected: str
    backends: frozenset[str]
    """Those that read it."""


_ALL = frozenset({"static", "c10d", "etcd-v2"})
_ETCD = frozenset({"etcd-v2"})
_TIME = (_read_time, "a number of seconds above 0")
_TRUTH = (_read_truth, "1, true, yes, 0, false or no")
_TEXT = (str, "a text")

_KEYS: Mapping[str, _Key] = {
    "join_timeout": _Key(*_TIME, _ALL),
    "last_call_timeout": _Key(_read_wait, "a number of seconds, 0 or more", _ALL),
    "close_timeout": _Key(*_TIME, _ALL),
    "read_timeout": _Key(*_TIME, _ALL),
    "timeout": _Key(*_TIME, frozenset({"static"})),
    "keep_alive_interval": _Key(*_TIME, _ALL),
    "keep_alive_max_attempt": _Key(_read_attempts, "a whole number above 0", _ALL),
    "is_host": _Key(*_TRUTH, _ALL - {"static"}),
    "use_libuv": _Key(*_TRUTH, _ALL - _ETCD),
    "store_type": _Key(_read_store_type, "tcp or file", frozenset({"c10d"})),
    "protocol": _Key(*_TEXT, _ETCD),
    "ssl_cert": _Key(*_TEXT, _ETCD),
    "ssl_cert_key": _Key(*_TEXT, _ETCD),
    "ca_cert": _Key(*_TEXT, _ETCD),
}

_OTHER_REASONS = {
    "heartbeat_timeout": "keep_alive_interval and keep_alive_max_attempt say when a node is lost",
    "timeout": "only the static rendezvous reads it; the key for this one is join_timeout",
    "is_host": "with the static rendezvous the node of rank 0 is the host",
}
"""Keys of torch with no effect here, or not for each rendezvous."""


def read_conf(pairs: Pairs, backend: str) -> RendezvousConf:
    """Check and convert the keys that this rendezvous reads.

    Raises:
        UsageError: a value is not what its key takes; all of them are named.
    """
    values: dict[str, Any] = {}
    problems = []
    for name, text in pairs:
        key = _KEYS.get(name)
        if key is not None and backend in key.backends:
            try:
                values[name] = key.read(text)
            except ValueError:
                problems.append(f"{name}: found {text!r}, expected {key.expected}")
    if problems:
        raise UsageError(f"--rdzv-conf: {'; '.join(problems)}")
    return RendezvousConf(**values)


def find_ignored_keys(pairs: Pairs, backend: str, where: str) -> Iterator[IgnoredOption]:
    """Keys that this rendezvous does not read; `where` is the option as it was typed."""
    for name, text in pairs:
        key = _KEYS.get(name)
        if key is None or backend not in key.backends:
            yield IgnoredOption(f"{where} {name}", _why_ignored(name, backend))
        elif name == "keep_alive_max_attempt" and text.strip() == "1":
            reason = f"a keep-alive may be late, so a node is lost after {LEAST_ATTEMPTS} that are missed"
            yield IgnoredOption(f"{where} {name}=1", reason)


def _why_ignored(name: str, backend: str) -> str:
    if name in _OTHER_REASONS:
        return _OTHER_REASONS[name]
    if name in _KEYS:
        return f"it is only for --rdzv-backend {' and '.join(sorted(_KEYS[name].backends))}"
    known = sorted(other for other, key in _KEYS.items() if backend in key.backends)
    near = difflib.get_close_matches(name, known, n=1)
    return f"there is no such key; did you mean {near[0]}?" if near else f"expected one of {', '.join(known)}"
