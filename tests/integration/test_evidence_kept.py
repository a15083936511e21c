"""What is known of a failure lies beside its logs, without the job's secrets."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner

from ftrun.monitor import events
from ftrun.monitor.ctl import main
from tests.support.run import WORKER, finish

TOKEN, KEY = "tok-5e7a8c1d2b", "key-0f9e8d7c6b"
LEAKS = """
from ftrun.monitor import client
for step in range(5):
    client.heartbeat(step)
if rank == 1:
    os.write(2, f"using {os.environ['MY_TOKEN']} and --api-key {sys.argv[3]}\\n".encode())
    with client.section("eval"):
        raise ValueError(f"{os.environ['MY_TOKEN']} was refused, password=abc")
time.sleep(60)
"""


def test_failure_leaves_its_evidence_and_no_secret(tmp_path: Path) -> None:
    """Times, steps, room and the exception are in a file that the journal names. The script's own output is
    shown as it is; what looks like a secret among variables and options is in nothing that ftrun writes.
    """
    exit_code, run = finish(
        tmp_path,
        *("--nproc-per-node", "2", "--max-restarts", "0"),
        WORKER,
        LEAKS,
        "--api-key",
        KEY,
        environment={"MY_TOKEN": TOKEN},
    )
    assert exit_code == 1
    [gathered] = run.events(events.EvidenceGathered)
    text = Path(gathered.file).read_text()
    evidence = json.loads(text)
    failed = evidence["exits"][1]
    assert (failed["rank"], failed["last_step"], failed["steps"]) == (1, 4, 5)
    assert 0 < failed["beat_age_s"] < failed["since_start_s"] < 60
    assert failed["error"]["message"] == "*** was refused, password=***"
    assert failed["stderr_tail"][0] == "using *** and --api-key ***"
    assert {space["what"] for space in evidence["spaces"]} == {"shared memory", "logs"}
    assert gathered.spaces[0].startswith("/dev/shm (shared memory) is")
    exits = {event.rank: event for event in run.events(events.WorkerExited)}
    assert (exits[1].last_step, exits[1].sections) == (4, ())
    journals = "".join(path.read_text() for path in (tmp_path / "run").glob("*.jsonl"))
    for secret in (TOKEN, KEY, "password=abc"):
        assert secret not in text
        assert secret not in journals
    assert TOKEN in run.stderr
    shown = CliRunner().invoke(main, ["show", "1", str(tmp_path / "run")])
    assert shown.exit_code == 0, shown.output
    words = " ".join(shown.output.split())
    assert "rank 1: ended" in words
    assert "last at step 4" in words
    assert "evidence of node" in words
    assert "* /dev/shm (shared memory) is" in words
    assert "ValueError: *** was refused" in words
    assert TOKEN not in shown.output
