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
from ftrun.launcher.preload import PreloadAdvice, analyse
from ftrun.launcher.slots import Slots, resolve
from ftrun.launcher.sources import read_source


@dataclass(frozen=True, slots=True)
class Start:
    """How worker processes of this job are started (the same for every one)."""

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
        SlotsError: the number of workers cannot be had.
    """
    options = config.launch
    slots = resolve(options.nproc_per_node, environ)
    entry = entry_of(options, sys.executable, environ.get("PYTHON_EXEC"))
    return Start(
        slots, entry, _advise(config, entry, environ), environment.of_every_worker(environ, slots.count)
    )


def _advise(config: Config, entry: Entry, environ: Mapping[str, str]) -> PreloadAdvice:
    mode = config.ftrun.standby.mode
    if mode == "off" or entry.cold_reason:
        reason = entry.cold_reason or "they are switched off (standby.mode)"
        return PreloadAdvice((), True, reason, may_learn=False)
    kind: Literal["script", "module"] = "module" if entry.kind == "module" else "script"
    search = [".", *filter(None, environ.get("PYTHONPATH", "").split(os.pathsep))]
    advice = analyse(read_source, entry.argv[0], kind, search)
    return advice.forced() if mode == "on" and advice.is_cold else advice
