"""What the exporter answers and writes; over a real port in tests/integration/test_metrics_scrape.py."""

from __future__ import annotations

import http.client
import json
import re
import socket
import threading
import time
import urllib.request
from dataclasses import replace
from pathlib import Path

import pytest

from ftrun.monitor import events as ev
from ftrun.monitor.exporter import Exporter
from ftrun.monitor.http_port import Request
from ftrun.monitor.levels import Levels
from ftrun.monitor.records import Record
from tests.monitor.test_metrics import LEVELS
from tests.monitor.test_present import FAILED, RUNNING
from tests.support.waiting import until

pytest.importorskip("prometheus_client", reason="the extra ftrun[metrics] is not installed")
from prometheus_client.openmetrics.parser import text_string_to_metric_families

OPENMETRICS = "application/openmetrics-text; version=1.0.0"


@pytest.fixture
def exporter() -> Exporter:
    """Of a run with one failure; its ranks have pages."""
    made = Exporter("r1", "n0")
    made.look_at(lambda: LEVELS, lambda: 199.0)
    for place, event in enumerate((*RUNNING, *FAILED)):
        made.observe(Record(1.7e9 + place, 100.0 + place, "n0", event))
    return made


def test_openmetrics_is_answered_to_who_asks_for_it(exporter: Exporter) -> None:
    """It passes the strict parser, and every sample has both common labels."""
    got = exporter.answer(Request("/metrics", OPENMETRICS))
    assert got.status == 200
    assert got.content_type.startswith("application/openmetrics-text")
    samples = [one for family in text_string_to_metric_families(got.body.decode()) for one in family.samples]
    assert {(one.labels["run"], one.labels["node"]) for one in samples} == {("r1", "n0")}
    plain = exporter.answer(Request("/metrics", ""))
    assert plain.content_type.startswith("text/plain")


def test_records_are_taken_when_somebody_asks(exporter: Exporter) -> None:
    """Those that have come since, too."""
    before = json.loads(exporter.answer(Request("/status", "")).body)
    assert (before["phase"], before["restarts"], before["exit_code"]) == ("joining", 1, None)
    exporter.observe(Record(1.7e9, 200.0, "n0", ev.RunEnded(0, "all ranks finished", 1, 9.0)))
    after = json.loads(exporter.answer(Request("/status", "")).body)
    assert (after["phase"], after["exit_code"]) == ("ended", 0)


def test_other_paths_are_not_found(exporter: Exporter) -> None:
    """The root says what there is."""
    assert exporter.answer(Request("/", "")).status == 200
    assert exporter.answer(Request("/metrics/x", "")).status == 404


def test_file_that_cannot_be_written_is_told_once_and_tried_again(exporter: Exporter, tmp_path: Path) -> None:
    """Its directory may come later."""
    warnings: list[str] = []
    told = threading.Event()

    def warn(reason: str) -> None:
        warnings.append(reason)
        told.set()

    path = tmp_path / "late" / "m.prom"
    exporter.begin(str(path), 0.0, warn)
    assert told.wait(30)
    path.parent.mkdir()
    until(path.exists, lambda: warnings, 30)
    exporter.close()
    assert len(warnings) == 1
    assert str(path) in warnings[0]
    assert [one.name for one in path.parent.iterdir()] == ["m.prom"]


def test_each_answer_says_when_it_was_made(exporter: Exporter) -> None:
    """An agent that was killed leaves a file whose values look like those of one that runs."""
    before = time.time()
    text = exporter.answer(Request("/metrics", "")).body.decode()
    [found] = re.findall(r"^ftrun_observed_timestamp_seconds\{.*\} (\S+)$", text, re.MULTILINE)
    assert before <= float(found) <= time.time()


def test_label_that_is_no_utf8_is_written_all_the_same(tmp_path: Path) -> None:
    """A path may hold any byte (PEP 383), in the common labels as in others."""
    made = Exporter("r\udcff", "n0")
    event = next(event for event in RUNNING if isinstance(event, ev.RunStarted))
    made.observe(Record(1.7e9, 100.0, "n0", replace(event, script="/data/\udcfe.py")))
    body = made.answer(Request("/metrics", "")).body.decode()
    assert 'run="r\\\\udcff"' in body
    assert "/data/\\\\udcfe.py" in body


def test_fault_of_ours_does_not_end_the_writing(exporter: Exporter, tmp_path: Path) -> None:
    """It is told once, and the file is written when it is over."""
    warnings: list[str] = []
    broken, told = [True], threading.Event()

    def levels() -> Levels:
        if broken[0]:
            raise ValueError("no such rank")
        return LEVELS

    def warn(reason: str) -> None:
        warnings.append(reason)
        told.set()

    exporter.look_at(levels, lambda: 1.0)
    path = tmp_path / "m.prom"
    exporter.begin(str(path), 0.0, warn)
    assert told.wait(30)
    broken[0] = False
    until(path.exists, lambda: warnings, 30)
    exporter.close()
    assert warnings == ["metrics cannot be kept up: ValueError: no such rank"]


def test_fault_in_an_answer_is_told_once(exporter: Exporter) -> None:
    """The client's connection is closed, the job goes on, and the next one gets its answer."""
    warnings: list[str] = []
    broken = [True]

    def turned_at() -> float:
        if broken[0]:
            raise ValueError("no such time")
        return 1.0

    exporter.look_at(lambda: LEVELS, turned_at)
    port = exporter.serve(socket.create_server(("127.0.0.1", 0)), warnings.append)
    url = f"http://127.0.0.1:{port}/metrics"
    for _ in range(2):
        with pytest.raises((OSError, http.client.HTTPException)):
            urllib.request.urlopen(url, timeout=10)
    until(lambda: warnings, lambda: "no warning", 10)
    broken[0] = False
    assert urllib.request.urlopen(url, timeout=10).status == 200
    exporter.close()
    assert warnings == ["a request could not be answered: ValueError: no such time"]
