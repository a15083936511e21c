"""What is needed to start a worker process of this job, known before anything else is."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from ftrun.launcher import environment, standby
from ftrun.launcher.config import Config
from ftrun.launcher.entry import Entry, entry_of
from ftrun.launcher.launch_options import UsageError
from ftrun.launcher.nodes import RendezvousSetting, resolve_rendezvous
from ftrun.launcher.preload import PreloadAdvice, analyse
from ftrun.launcher.slots import Slots, resolve
from ftrun.launcher.sources import read_source


@dataclass(frozen=True, slots=True)
class Start:
    """How worker processes of this job are started (the same for every one)."""

    rendezvous: RendezvousSetting
    slots: Slots
    entry: Entry
    advice: PreloadAdvice
    environment: Mapping[str, str]

    @property
    def modules(self) -> tuple[str, ...]:
        """What the first standbys preload."""
        return () if self.advice.is_cold else self.advice.modules

    @property
    def may_learn(self) -> bool:
        """Whether later standbys may preload what the script turns out to import."""
        return self.advice.may_learn and not self.advice.is_cold

    def spawn(self, modules: Sequence[str], is_for_later: bool = False) -> standby.Standby:
        """Start one; main thread only."""
        return standby.spawn(self.entry.argv, self.environment, modules, is_for_later)


def plan_start(config: Config, environ: Mapping[str, str]) -> Start:
    """Read what the job says about its workers.

    Raises:
        UsageError: it cannot be run as asked, and every worker would find out by itself.
        SlotsError: the number of workers cannot be had.
    """
    options = config.launch
    if config.ftrun.metrics.is_wanted:
        _check_metrics()
    rendezvous = resolve_rendezvous(config, environ)
    entry = entry_of(options, sys.executable, environ.get("PYTHON_EXEC"))
    _check_entry(entry, environ)
    slots = resolve(options.nproc_per_node, environ)
    if options.virtual_local_rank:
        try:
            environment.virtual_local_rank(environ, slots.count - 1)
        except ValueError as error:
            raise UsageError(str(error)) from None
    return Start(
        rendezvous,
        slots,
        entry,
        _advise(config, entry, environ),
        environment.of_every_worker(environ, slots.count),
    )


def _check_metrics() -> None:
    """Refuse to begin without what metrics need."""
    # Imported here because only runs with metrics need it.
    from importlib import util

    if util.find_spec("prometheus_client") is None:
        raise UsageError(
            "metrics were asked for (--ft-metrics-port, --ft-metrics-file), and prometheus_client is not "
            "installed; run pip install 'ftrun[metrics]', or leave these options out"
        )


def _check_entry(entry: Entry, environ: Mapping[str, str]) -> None:
    """Refuse a program that is not there; one whose name depends on the rank is left to the workers."""
    name = entry.argv[0]
    if "$" in name:
        return
    if entry.kind == "script" and not os.path.exists(name):
        raise UsageError(
            f"the training script {name} does not exist (current directory: {os.getcwd()}). "
            "Give its path, or -m for a module, or --no-python for a program."
        )
    if entry.kind == "module" and not _can_find_package(name.partition(".")[0], environ):
        raise UsageError(
            f"-m {name}: there is no module {name.partition('.')[0]!r} in the current directory "
            f"({os.getcwd()}), in PYTHONPATH or installed for {sys.executable}."
        )


def _can_find_package(name: str, environ: Mapping[str, str]) -> bool:
    """Whether the workers will find a top-level module or package; imports nothing."""
    # Imported here because only runs with -m need it.
    from importlib import machinery, util

    if machinery.PathFinder.find_spec(name, _search_path(environ)) is not None:
        return True
    try:
        return util.find_spec(name) is not None
    except ValueError:  # no name, or a module without a specification, such as __main__: runpy explains it
        return True


def _search_path(environ: Mapping[str, str]) -> list[str]:
    """Where the workers look for modules before what is installed."""
    return [".", *filter(None, environ.get("PYTHONPATH", "").split(os.pathsep))]


def _advise(config: Config, entry: Entry, environ: Mapping[str, str]) -> PreloadAdvice:
    mode = config.ftrun.standby.mode
    if mode == "off" or entry.cold_reason:
        reason = entry.cold_reason or "they are switched off (standby.mode)"
        return PreloadAdvice((), True, reason, may_learn=False)
    kind: Literal["script", "module"] = "module" if entry.kind == "module" else "script"
    advice = analyse(read_source, entry.argv[0], kind, _search_path(environ))
    return advice.forced() if mode == "on" else advice
