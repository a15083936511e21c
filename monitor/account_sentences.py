"""The events of a run's account in words, for `ftrun.monitor.log`. Pure."""

from __future__ import annotations

from ftrun.monitor import account_events as ev
from ftrun.monitor.durations import plural, short
from ftrun.monitor.event import Event


def account_sentence(event: Event) -> str:
    """The event in words; "" if it is of another kind."""
    match event:
        case ev.RunConfigured():
            settings = zip(event.names, event.values, strict=False)
            return f"configured: {', '.join(f'{name} {value}' for name, value in settings) or 'nothing'}"
        case ev.LogsDropped():
            what = f"log files of {plural(len(event.paths), 'old round')} ({_mebibytes(event.freed_bytes)})"
            return f"removed {what}: the run directory may have {_mebibytes(event.limit_bytes)}"
        case ev.JournalReduced():
            size = f"{_mebibytes(event.size_bytes)}, and may have {_mebibytes(event.limit_bytes)}"
            return f"the run directory has {size}: no more details are journalled"
        case ev.MetricsServed():
            return f"metrics are at http://{event.host}:{event.port}/metrics"
        case ev.MetricsDegraded():
            return f"metrics: {event.reason}"
        case ev.ProgressObserved():
            return _progress_sentence(event)
        case ev.CheckpointSaved():
            step = "" if event.step is None else f" of step {event.step}"
            took = "" if event.blocking_s is None else f"; training stood still for {event.blocking_s:.2f} s"
            more = f" ({event.count} since the last that was told)" if event.count > 1 else ""
            return f"checkpoint{step} is saved: {event.path}{took}{more}"
    return ""


def _mebibytes(size: int) -> str:
    return f"{size / (1 << 20):.1f} MiB"


def _progress_sentence(event: ev.ProgressObserved) -> str:
    place = f"step {event.step}"
    if event.step is None:
        place = f"{plural(event.steps, 'step')} in round {event.round}"
    if event.steps_per_s is None:
        return f"{place}, the last {event.since_progress_s:.1f} s ago"
    pace = f"{event.steps_per_s:.3g} steps/s"
    if event.steps_per_s == 0:
        pace = f"none for {short(event.since_progress_s)}"
    if event.checkpoint_step is None and event.checkpoint_age_s is None:
        return f"{place}, {pace}"
    of_step = "" if event.checkpoint_step is None else f" at step {event.checkpoint_step}"
    ago = "" if event.checkpoint_age_s is None else f", {short(event.checkpoint_age_s)} ago"
    return f"{place}, {pace}; last checkpoint{of_step}{ago}"
