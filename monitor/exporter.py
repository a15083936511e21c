"""Serves a node's metrics to Prometheus, and its status as JSON; writes them for node_exporter.

The agent only leaves its records in a queue; all else happens in threads of this module, so that nothing that
is asked for, and nothing that goes wrong, is in the agent's way. What the values are, `ftrun.monitor.metrics`
says. prometheus_client is imported by the first who asks.
"""

from __future__ import annotations

import json
import queue
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from ftrun.monitor.http_port import Answer, HttpPort, Request
from ftrun.monitor.levels import NO_LEVELS, Levels
from ftrun.monitor.metrics import COMMON_LABELS, METRICS, Kind, Sample, samples
from ftrun.monitor.plain import to_plain
from ftrun.monitor.present import Present, PresentFold
from ftrun.monitor.records import Record
from ftrun.monitor.status import make_status

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import Metric as Family

TAKE_EVERY_S = 1.0
"""Records do not wait longer in the queue, whether somebody asks or not."""
_LAST_WRITE_S = 2.0
"""Longest wait at the end for a file system that does not answer."""
_INDEX = b"ftrun: /metrics for Prometheus, /status for everyone else\n"


class Exporter:
    """The present of this node, for whoever asks.

    Args:
        run_id: a label of every metric.
        node: the other one.
    """

    def __init__(self, run_id: str, node: str) -> None:
        self._labels = (run_id, node)
        self._levels: Callable[[], Levels] = lambda: NO_LEVELS
        self._turned_at: Callable[[], float] = time.monotonic
        self._records: queue.SimpleQueue[Record] = queue.SimpleQueue()
        self._fold = PresentFold()
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._port: HttpPort | None = None
        self._has_failed = False
        self._writer: threading.Thread | None = None
        self._registry: CollectorRegistry | None = None

    def observe(self, record: Record) -> None:
        """Take a record; never waits. For the agent's thread."""
        self._records.put(record)

    def look_at(self, levels: Callable[[], Levels], turned_at: Callable[[], float]) -> None:
        """Ask these in this module's threads: what the ranks show, and when the agent's loop last turned."""
        self._levels, self._turned_at = levels, turned_at

    def serve(self, listener: socket.socket, on_warning: Callable[[str], None]) -> int:
        """Answer on a listening socket until `close`; returns its port. A fault of ours is told once."""

        def warn(error: BaseException) -> None:
            if not self._has_failed:
                self._has_failed = True
                on_warning(f"a request could not be answered: {type(error).__name__}: {error}")

        self._port = HttpPort(listener, self.answer, "ftrun-metrics", warn)
        return self._port.port

    def begin(self, path: str | None, interval_s: float, on_warning: Callable[[str], None]) -> None:
        """Keep up with the records, and write the metrics to `path` at each interval if there is one.

        A file that cannot be written is told to `on_warning` once and tried again; it is replaced as a whole.
        """
        self._writer = threading.Thread(
            target=self._run, args=(path, interval_s, on_warning), name="ftrun-exporter", daemon=True
        )
        self._writer.start()

    def close(self) -> None:
        """Write the file for the last time, with how the run ended, and close the port."""
        self._ended.set()
        if self._writer is not None:
            self._writer.join(_LAST_WRITE_S)
        if self._port is not None:
            self._port.stop()

    def answer(self, request: Request) -> Answer:
        """`/metrics` in the form that the client likes best, `/status` as JSON."""
        match request.path:
            case "/metrics":
                from prometheus_client.exposition import choose_encoder

                encode, content_type = choose_encoder(request.accept)
                return Answer(200, content_type, encode(self.registry))
            case "/status":
                with self._lock:
                    status = make_status(self._present(), self._levels(), time.monotonic(), time.time())
                    text = json.dumps(to_plain(status), indent=2)
                return Answer(200, "application/json", f"{text}\n".encode())
            case "/":
                return Answer(200, "text/plain; charset=utf-8", _INDEX)
        return Answer(404, "text/plain; charset=utf-8", _INDEX)

    @property
    def registry(self) -> CollectorRegistry:
        """What prometheus_client writes."""
        with self._lock:
            if self._registry is None:
                self._registry = _make_registry(self._collect)
            return self._registry

    def _collect(self) -> Iterator[Family]:
        with self._lock:
            now, now_ts = time.monotonic(), time.time()
            values = samples(self._present(), self._levels(), self._turned_at(), now, now_ts)
        return _families(values, self._labels)

    def _present(self) -> Present:
        """With all records that have come; under the lock."""
        while not self._records.empty():
            self._fold.take(self._records.get())
        return self._fold.now

    def _run(self, path: str | None, interval_s: float, on_warning: Callable[[str], None]) -> None:
        written_at, has_warned = -interval_s, False
        while True:
            is_last = self._ended.wait(TAKE_EVERY_S)
            try:
                with self._lock:
                    self._present()
                if path is not None and (is_last or time.monotonic() - written_at >= interval_s):
                    written_at = time.monotonic()
                    self._write(path)
            except Exception as error:  # whatever it is, the next turn may go well
                if not has_warned:
                    has_warned = True
                    on_warning(_complaint(path, error))
            if is_last:
                return

    def _write(self, path: str) -> None:
        from prometheus_client import write_to_textfile

        write_to_textfile(path, self.registry)


def _make_registry(collect: Callable[[], Iterator[Family]]) -> CollectorRegistry:
    from prometheus_client import CollectorRegistry
    from prometheus_client.registry import Collector

    class Values(Collector):
        def collect(self) -> Iterator[Family]:
            return collect()

    registry = CollectorRegistry()
    registry.register(Values())
    return registry


def _families(values: Sequence[Sample], common: Sequence[str]) -> Iterator[Family]:
    """In prometheus_client's form, each metric once."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

    for metric in METRICS:
        labels = (*COMMON_LABELS, *metric.labels)
        own = [one for one in values if one.metric is metric]
        if metric.kind is Kind.HISTOGRAM:
            histogram = HistogramMetricFamily(metric.name, metric.meaning, labels=labels)
            for one in own:
                buckets = [(_bound(bound), count) for bound, count in one.buckets]
                histogram.add_metric(_encodable([*common, *one.labels]), buckets, one.value)
            yield histogram
            continue
        form = CounterMetricFamily if metric.kind is Kind.COUNTER else GaugeMetricFamily
        family = form(metric.name, metric.meaning, labels=labels)
        for one in own:
            family.add_metric(_encodable([*common, *one.labels]), one.value)
        yield family


def _encodable(labels: Sequence[str]) -> list[str]:
    """Labels come from outside, as paths do, and may hold what is no UTF-8 (PEP 383)."""
    return [label.encode("utf-8", "backslashreplace").decode() for label in labels]


def _complaint(path: str | None, error: Exception) -> str:
    if isinstance(error, OSError):
        return f"metrics cannot be written to {path}: {error.strerror or error}"
    return f"metrics cannot be kept up: {type(error).__name__}: {error}"


def _bound(seconds: float) -> str:
    return "+Inf" if seconds == float("inf") else str(seconds)
