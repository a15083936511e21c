"""The values of the metrics, and that rules, dashboard and page use only what is exported."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from ftrun.monitor import events as ev
from ftrun.monitor import metrics_doc
from ftrun.monitor.incident import IncidentKind
from ftrun.monitor.levels import NO_LEVELS, Levels, RankLevel
from ftrun.monitor.metrics import COMMON_LABELS, METRICS, Kind, Sample, names, samples
from tests.monitor.test_present import FAILED, RUNNING, present

promql = pytest.importorskip("promql_parser", reason="promql-parser is a test requirement")

DOCS = Path(__file__).parents[2] / "docs"
LEVELS = Levels(
    200.0,
    (
        RankLevel(0, 0, 101, True, 40, 140, 110.0, 111.0, 199.0, None, None, "", "save"),
        RankLevel(1, 1, 102, False, 0, None, 110.0, None, None, None, None, "", ""),
    ),
)


def values(*events: ev.Event, levels: Levels = NO_LEVELS, now: float = 200.0) -> dict[str, float]:
    """By name and labels as Prometheus writes them."""
    found = samples(present((*RUNNING, *events)), levels, now - 2.5, now, 1.7e9 + now)
    return {written(one): one.value for one in found}


def written(one: Sample) -> str:
    labels = zip(one.metric.labels, one.labels, strict=True)
    return f"{one.metric.name}{{{','.join(f'{name}={text}' for name, text in labels)}}}"


def test_ranks_are_as_their_pages_say() -> None:
    """A rank without a step yet is as old as its script."""
    found = values(levels=LEVELS)
    assert found["ftrun_rank_up{rank=0}"] == 1
    assert found["ftrun_rank_up{rank=1}"] == 0
    assert found["ftrun_rank_steps_total{rank=0}"] == 40
    assert found["ftrun_rank_step{rank=0}"] == 140
    assert found["ftrun_rank_step{rank=1}"] == 0  # the round began from nothing, and the launcher knows
    assert found["ftrun_rank_progress_age_seconds{rank=0}"] == 1.0
    assert found["ftrun_rank_progress_age_seconds{rank=1}"] == 90.0


def test_one_phase_holds() -> None:
    """The others are there, with 0."""
    found = values()
    phases = {name: value for name, value in found.items() if name.startswith("ftrun_phase")}
    assert phases["ftrun_phase{phase=running}"] == 1
    assert sum(phases.values()) == 1
    assert len(phases) == 5
    assert "ftrun_exit_code{}" not in found
    assert values(ev.RunEnded(93, "futile", 1, 9.0))["ftrun_exit_code{}"] == 93
    assert found["ftrun_loop_age_seconds{}"] == 2.5
    assert found["ftrun_observed_timestamp_seconds{}"] == 1.7e9 + 200.0


def test_every_kind_of_incident_is_there_before_it_happens() -> None:
    """Else Prometheus would not see the first one as an increase."""
    found = values()
    assert all(found[f"ftrun_incidents_total{{kind={kind.value}}}"] == 0 for kind in IncidentKind)
    assert values(*FAILED)["ftrun_incidents_total{kind=killed}"] == 1
    assert found["ftrun_restarts_limit{}"] == 3


def test_recoveries_are_a_histogram() -> None:
    """Cumulative, with infinity last."""
    times = (0.2, 0.25, 7.0, 9999.0)
    done = [ev.RecoveryCompleted(n, "killed", 1, None, 0.1, 0.1, 0.1, s, None) for n, s in enumerate(times)]
    found = samples(present((*RUNNING, *done)), NO_LEVELS, 0.0, 0.0, 0.0)
    [one] = [sample for sample in found if sample.metric.name == "ftrun_recovery_seconds"]
    counts = dict(one.buckets)
    assert (counts[0.25], counts[0.5], counts[10.0], counts[1800.0], counts[float("inf")]) == (2, 2, 3, 3, 4)
    assert one.value == sum(times)


def test_names_follow_the_conventions() -> None:
    """Counters end in _total, and base units are in the names (prometheus.io/docs/practices/naming)."""
    assert all(one.name.startswith("ftrun_") for one in METRICS)
    assert all((one.kind is Kind.COUNTER) == one.name.endswith("_total") for one in METRICS)
    assert len({one.name for one in METRICS}) == len(METRICS)
    assert not any(set(one.labels) & set(COMMON_LABELS) for one in METRICS)


def test_page_ends_with_the_generated_table() -> None:
    """Exactly as `python -m ftrun.monitor.metrics_doc` prints it."""
    assert (DOCS / "metrics.md").read_text().endswith(metrics_doc.render())


LABELS = {name: {*COMMON_LABELS, *one.labels, "le"} for one in METRICS for name in one.series}
RULES = [
    rule for group in yaml.safe_load((DOCS / "alerts.yaml").read_text())["groups"] for rule in group["rules"]
]
BOARD = json.loads((DOCS / "grafana-dashboard.json").read_text())


def queries_of(board: dict[str, object]) -> Iterator[str]:
    """What the dashboard asks, with its variables filled in."""
    for panel in board["panels"]:  # type: ignore[attr-defined]
        for target in panel["targets"]:
            yield re.sub(r"\$(run|node)", ".*", target["expr"])
    for one in board["annotations"]["list"]:  # type: ignore[index]
        yield re.sub(r"\$run", ".*", one["expr"])


def selectors(node: object) -> Iterator[object]:
    """Every selector of an expression."""
    if isinstance(node, promql.VectorSelector):
        yield node
    for name in ("lhs", "rhs", "expr", "vector_selector", "vs"):
        inner = getattr(node, name, None)
        if inner is not None:
            yield from selectors(inner)
    for inner in getattr(node, "args", None) or ():
        yield from selectors(inner)


def check(expression: str) -> set[str]:
    """Names in an expression, after a look at its syntax, names and labels."""
    found = list(selectors(promql.parse(expression)))
    assert found, expression
    for one in found:
        assert one.name in names(), expression  # type: ignore[attr-defined]
        matchers = one.matchers.matchers  # type: ignore[attr-defined]
        assert {matcher.name for matcher in matchers} <= LABELS[one.name], expression  # type: ignore[attr-defined]
    return {one.name for one in found}  # type: ignore[attr-defined]


@pytest.mark.parametrize("rule", RULES, ids=[rule["alert"] for rule in RULES])
def test_rule_asks_for_what_is_exported(rule: dict[str, object]) -> None:
    """Its expression is PromQL, and its texts use labels that its result has."""
    expression = str(rule["expr"])
    known = check(expression)
    assert set(re.findall(r"ftrun_\w+", expression)) == known
    kept = set(re.findall(r"\$labels\.(\w+)", str(rule["annotations"])))
    first = re.search(r"\bby \(([^)]*)\)", expression)
    result = set(re.split(r",\s*", first[1])) if first else LABELS[next(iter(known))]
    assert kept <= result
    assert rule["labels"] in ({"severity": "info"}, {"severity": "warning"}, {"severity": "critical"})


def test_every_alert_is_in_the_page() -> None:
    """With its severity."""
    rows = re.findall(r"^\| (Ftrun\w+) \| (\w+) \|", (DOCS / "metrics.md").read_text(), re.MULTILINE)
    assert dict(rows) == {rule["alert"]: rule["labels"]["severity"] for rule in RULES}


@pytest.mark.parametrize("query", list(queries_of(BOARD)))
def test_dashboard_asks_for_what_is_exported(query: str) -> None:
    """Each query of each panel."""
    check(query)


def test_misspelt_name_is_found() -> None:
    """The tests above can fail."""
    with pytest.raises(AssertionError):
        check("increase(ftrun_incident_total[1h])")
    with pytest.raises(AssertionError):
        check('ftrun_round{rank="1"}')
    with pytest.raises(ValueError):
        check("sum by (run (ftrun_round)")


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool (Prometheus) is not installed")
def test_alerts_tell_a_recovered_fault_from_one_that_repeats() -> None:
    """Prometheus itself evaluates them over made-up histories; tests/support/alerts_test.yaml has those."""
    command = ["promtool", "test", "rules", str(DOCS.parent / "tests/support/alerts_test.yaml")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_has_a_history() -> None:
    """In the file for promtool, one in which it fires; it is checked where that is installed."""
    histories = yaml.safe_load((DOCS.parent / "tests/support/alerts_test.yaml").read_text())["tests"]
    fired = {one["alertname"] for test in histories for one in test["alert_rule_test"] if one["exp_alerts"]}
    assert fired == {rule["alert"] for rule in RULES}
