"""Finds and builds the class that `--logs-specs NAME` names: torchrun's way to place logs elsewhere.

What it answers is put to use by `ftrun.launcher.logs`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol, cast

from ftrun.launcher.streams import StdMap

if TYPE_CHECKING:
    from importlib import metadata

ENTRY_POINT_GROUP = "torchrun.logs_specs"
OWN_SPECS = "default"
"""torch's own entry point; ftrun's layout is the same, without its temporary directories and deletions."""


class LogsError(ValueError):
    """The command line asks for logs that cannot be had: no usable directory, or no such plug-in."""


class LogsDestination(Protocol):
    """What a plug-in answers: torch's `LogsDest`. All maps are keyed by local rank."""

    stdouts: Mapping[int, str]
    """The text "" stands for the console, "/dev/null" for nowhere, all else is a file."""
    stderrs: Mapping[int, str]
    tee_stdouts: Mapping[int, str]
    """Names the streams that go to the console with a prefix, besides where `stdouts` puts them."""
    tee_stderrs: Mapping[int, str]
    error_files: Mapping[int, str]
    filtered_stdout: str
    filtered_stderr: str


class LogsPlugin(Protocol):
    """An object of a class derived from torch's `LogsSpecs`."""

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDestination:
        """Say where the logs of a round go; may change the workers' environments (per local rank)."""


def find_entry_point(name: str | None) -> metadata.EntryPoint | None:
    """Find the plug-in without importing it; None for ftrun's own layout.

    Raises:
        LogsError: there is none of that name; the message lists those that are installed.
    """
    if name is None or name == OWN_SPECS:
        return None
    # Reading the metadata of all installed packages takes tens of milliseconds that most runs need not spend.
    from importlib import metadata

    found = {entry.name: entry for entry in metadata.entry_points(group=ENTRY_POINT_GROUP)}
    if name not in found:
        known = ", ".join(sorted({OWN_SPECS, *found}))
        raise LogsError(
            f"--logs-specs: found {name!r}, expected an entry point of the group {ENTRY_POINT_GROUP}: "
            f"one of {known}"
        )
    return found[name]


def build_plugin(
    entry: metadata.EntryPoint,
    log_dir: str | None,
    redirects: StdMap,
    tee: StdMap,
    local_ranks_filter: frozenset[int] | None,
) -> LogsPlugin:
    """Import the plug-in's class, and torch with it, and build it with the arguments that torchrun passes.

    Raises:
        LogsError: it cannot be imported.
    """
    try:
        plugin_class = entry.load()
    except (ImportError, AttributeError) as error:
        raise LogsError(f"--logs-specs: cannot import {entry.name} ({entry.value}): {error}") from error
    plugin = plugin_class(
        log_dir=log_dir,
        redirects=_to_torch(redirects),
        tee=_to_torch(tee),
        local_ranks_filter=None if local_ranks_filter is None else set(local_ranks_filter),
    )
    return cast(LogsPlugin, plugin)


def _to_torch(streams: StdMap) -> object:
    from torch.distributed.elastic.multiprocessing import Std as TorchStd

    if not streams.by_rank:
        return TorchStd(int(streams.default))
    return {local_rank: TorchStd(int(std)) for local_rank, std in streams.by_rank}
