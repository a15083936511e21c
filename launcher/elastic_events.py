"""torch elastic's status events for `--event-log-handler`, made from the journal's records.

The events are those of torchrun (`_construct_event` of torch.distributed.elastic.agent.server.api): the same
names and metadata, delivered through `torch.distributed.elastic.events`. They say more in four ways: the
timestamp is real, every round's workers get a final state, worker events carry exit code and pid, and the
agent's last event is FAILED when the job has failed. Host names are the journal's, which need no look-up.
"""

from __future__ import annotations

import json
import logging
import queue
import sys
import threading
import warnings
from collections.abc import Callable
from dataclasses import dataclass

from ftrun.launcher.config import LaunchOptions
from ftrun.monitor import events
from ftrun.monitor.records import Record

_FLUSH_S = 30.0
"""Longest wait at the end of a run for torch to be imported and the last events to be delivered."""

_log = logging.getLogger(__name__)


class ElasticEventsError(ValueError):
    """`--event-log-handler` names no handler."""


def observer(handler: str, options: LaunchOptions) -> Callable[[Record], None] | None:
    """What must see every record for its events to reach `handler`; None for "null", which drops them.

    Never blocks but for the record of the end of the run, which waits until all events are delivered.

    Raises:
        ElasticEventsError: torch has no such handler (asked only about names other than null and console,
            because that imports torch).
    """
    if handler == "null":
        return None
    if handler != "console":
        _check(handler)
    translation = Translation(options.role, options.rdzv_backend, options.training_script)
    delivery = _Delivery(handler)

    def observe(record: Record) -> None:
        for status in translation.take(record):
            delivery.put(status)
        if isinstance(record.event, events.RunEnded):
            delivery.finish()

    return observe


def _check(handler: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            from torch.distributed.elastic.events import get_logging_handler
        except (ImportError, OSError) as error:
            raise ElasticEventsError(
                f"--event-log-handler {handler}: torch's event handlers cannot be imported: {error}. "
                "Use null."
            ) from error
    try:
        get_logging_handler(handler)
    except KeyError:
        raise ElasticEventsError(
            f"--event-log-handler {handler}: there is no such handler; expected null, console or a name "
            "registered with torch.distributed.elastic.events."
        ) from None


@dataclass(frozen=True, slots=True)
class StatusEvent:
    """One event as torch elastic has it, without torch."""

    state: str
    is_of_worker: bool
    timestamp_ms: int
    """UTC epoch."""
    metadata: dict[str, str | int | float | bool | None]


class Translation:
    """Records of a run, in their order, to status events. Does no I/O."""

    def __init__(self, role: str, rdzv_backend: str, entry_point: str) -> None:
        self._role = role
        self._rdzv_backend = rdzv_backend
        self._entry_point = entry_point
        self._run_id = ""
        self._started_at: float | None = None
        self._joining_at: float | None = None
        self._world_size = 0
        self._nodes: tuple[str, ...] = ()
        self._restart_count = 0
        self._failures: list[tuple[Record, events.WorkerExited]] = []
        """Of the round, until it is known which of them was the cause."""

    def take(self, record: Record) -> list[StatusEvent]:
        """Status events that follow from `record`."""
        match record.event:
            case events.RunStarted(run_id=run_id):
                self._run_id = run_id
                self._started_at = self._joining_at = record.at
                return []
            case events.RoundClosed() as closed:
                return self._round(record, closed)
            case events.WorkerStarted() as started:
                return [self._worker(record, "START", started)]
            case events.WorkerExited() as exited:
                return self._exit(record, exited)
            case events.IncidentDiagnosed() as incident:
                return self._release_failures(incident)
            case events.RestartDecided() as decided:
                self._joining_at = record.at + decided.delay_s
                return []
            case events.RunEnded() as ended:
                return [*self._release_failures(None), self._end(record, ended)]
        return []

    def _round(self, record: Record, closed: events.RoundClosed) -> list[StatusEvent]:
        failures = self._release_failures(None)
        self._world_size, self._restart_count = closed.world_size, closed.restart_count
        self._nodes = closed.nodes
        since = record.at if self._joining_at is None else self._joining_at
        duration_ms = max(0.0, record.at - since) * 1000
        return [
            *failures,
            self._agent(record, "RENDEZVOUS", duration_ms=duration_ms),
            # Ranks come with the plan of the round: assigning them takes no time of its own.
            self._agent(record, "ASSIGN_WORKER_RANKS", duration_ms=0.0),
        ]

    def _exit(self, record: Record, exited: events.WorkerExited) -> list[StatusEvent]:
        if exited.is_stopped_by_agent:
            return [self._worker(record, "TERMINATED", exited)]
        if exited.exit_code == 0:
            return [self._worker(record, "SUCCEEDED", exited)]
        self._failures.append((record, exited))
        return []

    def _release_failures(self, incident: events.IncidentDiagnosed | None) -> list[StatusEvent]:
        failures, self._failures = self._failures, []
        return [
            self._worker(record, "FAILED", exited, _raw_error(exited, incident))
            for record, exited in failures
        ]

    def _end(self, record: Record, ended: events.RunEnded) -> StatusEvent:
        self._restart_count = ended.restart_count
        if ended.exit_code == 0:
            return self._agent(record, "SUCCEEDED")
        return self._agent(record, "FAILED", raw_error=ended.reason)

    def _agent(
        self, record: Record, state: str, raw_error: str | None = None, duration_ms: float | None = None
    ) -> StatusEvent:
        return self._status(record, state, None, {}, raw_error, duration_ms)

    def _worker(
        self,
        record: Record,
        state: str,
        worker: events.WorkerStarted | events.WorkerExited,
        raw_error: str | None = None,
    ) -> StatusEvent:
        exit_code = worker.exit_code if isinstance(worker, events.WorkerExited) else None
        details: dict[str, events.JsonValue] = {  # lists of one, because torchrun writes them so
            "local_rank": [worker.local_rank],
            "role_rank": [worker.rank],
            "role_world_size": [self._world_size],
            "exit_code": [exit_code],
            "worker_pid": [worker.pid],
        }
        return self._status(record, state, worker, details, raw_error, None)

    def _status(
        self,
        record: Record,
        state: str,
        worker: events.WorkerStarted | events.WorkerExited | None,
        details: dict[str, events.JsonValue],
        raw_error: str | None,
        duration_ms: float | None,
    ) -> StatusEvent:
        group_rank = self._nodes.index(record.node) if record.node in self._nodes else 0
        group = {"group_world_size": max(1, len(self._nodes)), "entry_point": self._entry_point}
        metadata: dict[str, str | int | float | bool | None] = {
            "run_id": self._run_id,
            "global_rank": None if worker is None else worker.rank,
            "group_rank": group_rank,
            "worker_id": None if worker is None else str(worker.pid),
            "role": self._role,
            "hostname": record.node,
            "state": state,
            "total_run_time": 0 if self._started_at is None else int(record.at - self._started_at),
            "rdzv_backend": self._rdzv_backend,
            "raw_error": raw_error,
            "metadata": json.dumps({**group, **details}),
            "agent_restarts": self._restart_count,
            "duration_ms": duration_ms,
        }
        return StatusEvent(state, worker is not None, int(record.ts * 1000), metadata)


def _raw_error(exited: events.WorkerExited, incident: events.IncidentDiagnosed | None) -> str:
    """JSON with a "message", as torchrun takes it from the worker's error file."""
    if incident is None:
        message = "<NONE>"
    elif exited.rank == incident.culprit_rank:
        message = "; ".join(incident.reasons)
    else:
        message = f"failed after rank {incident.culprit_rank}, which is the cause"
    return json.dumps({"message": message})


class _Delivery:
    """Hands events to torch in a thread of its own, and only when somebody imports torch anyway.

    An agent that imports torch early makes its workers wait for it, and an import in the agent's thread would
    stop its loop for seconds. Until then events wait in a queue.
    """

    def __init__(self, handler: str) -> None:
        self._handler = handler
        self._queue: queue.SimpleQueue[StatusEvent | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def put(self, status: StatusEvent) -> None:
        self._queue.put(status)
        if "torch" in sys.modules:
            self._start()

    def finish(self) -> None:
        """Deliver what is left; returns when that is done or has taken too long."""
        self._queue.put(None)
        self._start().join(_FLUSH_S)

    def _start(self) -> threading.Thread:
        if self._thread is None:
            self._thread = threading.Thread(target=self._deliver, name="ftrun-elastic-events", daemon=True)
            self._thread.start()
        return self._thread

    def _deliver(self) -> None:
        # Not catch_warnings: it is not safe beside the thread that imports torch for the store.
        warnings.filterwarnings("ignore", "The pynvml package is deprecated", FutureWarning)
        try:
            from torch.distributed.elastic.events import Event, EventSource, record
        except (ImportError, OSError) as error:
            _log.warning("--event-log-handler %s: no event is delivered: %s", self._handler, error)
            return
        while (status := self._queue.get()) is not None:
            source = EventSource.WORKER if status.is_of_worker else EventSource.AGENT
            name = f"torchelastic.worker.status.{status.state}"
            record(Event(name, source, status.timestamp_ms, dict(status.metadata)), self._handler)
