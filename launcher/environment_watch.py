"""Notices modules that read, while they are imported ahead, what the environment only has for a rank.

`RANK = int(os.environ.get("RANK", "0"))` in a library would make every rank that one of the standbys becomes
rank 0. Nothing of torch is exempt, nor need be: of the 2000 modules of torch 2.13 none reads these variables
when it is imported, nor does numpy. What C code reads with getenv is not seen.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager

_RANK_VARIABLES = frozenset(
    {"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "CUDA_VISIBLE_DEVICES"}
)  # the last one is set for a rank by --virtual-local-rank
_RANK_PREFIXES = ("MASTER_", "GROUP_", "ROLE_", "TORCHELASTIC_", "FT_", "FTRUN_")


def belongs_to_rank(variable: object) -> bool:
    """Whether a worker finds this variable, or its final value, only when it is told its rank."""
    return isinstance(variable, str) and (variable in _RANK_VARIABLES or variable.startswith(_RANK_PREFIXES))


@contextmanager
def watched_environment(note: Callable[[str, list[str]], None]) -> Iterator[None]:
    """Tells `note` each time that such a variable is looked up in os.environ, or set, until the end.

    Its arguments are the variable and the modules that are being imported, the reader first. Going through
    the whole environment does not count: libraries look for variables of their own prefix (as tqdm does).
    """
    original = type(os.environ)
    plain: type[MutableMapping[str, str]] = original
    listed: set[str] = set()

    def look_up(environ: MutableMapping[str, str], key: str) -> str:
        if key in listed:
            listed.discard(key)
        elif belongs_to_rank(key):
            note(key, _modules_being_imported())
        return plain.__getitem__(environ, key)

    def assign(environ: MutableMapping[str, str], key: str, value: str) -> None:
        if belongs_to_rank(key):
            note(key, _modules_being_imported())
        plain.__setitem__(environ, key, value)

    def go_through(environ: MutableMapping[str, str]) -> Iterator[str]:
        for key in plain.__iter__(environ):
            if belongs_to_rank(key):
                listed.add(key)  # its value is looked up next, by `items` or `dict`
            yield key

    methods = {"__getitem__": look_up, "__setitem__": assign, "__iter__": go_through}
    # In place, since other modules hold this very object.
    os.environ.__class__ = type("WatchedEnviron", (plain,), methods)
    try:
        yield
    finally:
        os.environ.__class__ = original


def _modules_being_imported() -> list[str]:
    names = []
    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_code.co_name == "<module>":
            names.append(str(frame.f_globals.get("__name__")))
        frame = frame.f_back
    return [name for name in names if name != "__main__"]
