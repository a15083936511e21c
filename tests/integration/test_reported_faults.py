"""A fault that only the script can see ends the round on all ranks, and training begins again."""

from __future__ import annotations

from pathlib import Path

from ftrun.monitor import events
from tests.support.run import WORKER, finish

TWO = ("--nproc-per-node", "2")
LONG_S = 60.0
REPORTS = """
from ftrun.monitor import client
client.heartbeat(7)
if restart_count == 0 and rank == 1:
    say("taken", client.report_fault("nan_loss", "the loss of step 7 is not a number"))
    {after}
if restart_count == 0:
    time.sleep(60)
"""


def test_reported_fault_is_the_cause_and_the_job_goes_on(tmp_path: Path) -> None:
    """The rank that reported is the culprit, its own words are the reason, and the next round finishes."""
    exit_code, run = finish(tmp_path, *TWO, WORKER, REPORTS.format(after="time.sleep(60)"), timeout_s=LONG_S)
    assert exit_code == 0, run.stderr
    assert "[r1 rc0] taken True" in run.stdout
    [asked] = run.events(events.RequestReceived)
    assert (asked.rank, asked.action) == (1, "ReportFault")
    [incident] = run.events(events.IncidentDiagnosed)
    assert (incident.incident_kind, incident.culprit_rank) == ("nan_loss", 1)
    assert incident.reasons[0] == "rank 1 reported nan_loss: the loss of step 7 is not a number"
    assert incident.collateral_ranks == (0,)


def test_rank_that_reports_and_raises_is_told_by_its_report(tmp_path: Path) -> None:
    """What it saw says more than the exception by which it then left."""
    script = REPORTS.format(after='raise ValueError("giving up")')
    exit_code, run = finish(tmp_path, *TWO, WORKER, script, timeout_s=LONG_S)
    assert exit_code == 0, run.stderr
    [incident] = run.events(events.IncidentDiagnosed)
    assert (incident.incident_kind, incident.culprit_rank) == ("nan_loss", 1)
