"""On a machine whose name server does not answer, a recovery does not wait for it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ftrun.monitor.events import RecoveryCompleted, StandbyReadied
from tests.support.run import WORKER, start

# In namespaces of its own: the loopback alone, and a name server on it that takes questions and says nothing.
SILENT = """
mount --make-rprivate / && echo 'nameserver 127.0.0.1' > "$0" && mount --bind "$0" /etc/resolv.conf
ip link set lo up
exec {python} -c '
import os, socket, sys
silent = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
silent.bind(("127.0.0.1", 53))
silent.set_inheritable(True)
os.execvp(sys.argv[1], sys.argv[1:])
' "$@"
"""
TRAIN = """
import torch.distributed as dist
from ftrun.monitor import client
dist.init_process_group("gloo")
client.heartbeat()
if restart_count == 0:
    wait_for("go")
    if rank == 1:
        die(signal.SIGKILL)
dist.barrier()
wait_for("end")
os._exit(0)  # torch now and then ends a busy process with SIGABRT
"""


def has_namespaces() -> bool:
    """Whether this user may make them, and look-ups of addresses go to the DNS at all."""
    if shutil.which("unshare") is None or shutil.which("ip") is None:
        return False
    return subprocess.run(["unshare", "-n", "-m", "true"], capture_output=True, timeout=10).returncode == 0


@pytest.mark.slow
@pytest.mark.skipif(not has_namespaces(), reason="needs root: network and mount namespaces")
def test_recovery_does_not_wait_for_a_silent_name_server(tmp_path: Path) -> None:
    """torch asks for the name of each store's address; the standbys have asked before they are needed."""
    script = SILENT.format(python=sys.executable)
    wrapper = ("unshare", "-n", "-m", "bash", "-c", script, str(tmp_path / "resolv.conf"))
    options = ("--nproc-per-node", "2", "--ft-set", "standby.min_free_memory=0")
    with start(tmp_path, *options, WORKER, TRAIN, wrapper=wrapper) as run:
        run.wait_for_event(StandbyReadied, count=2, timeout_s=120)
        (tmp_path / "go").touch()
        (recovery,) = run.wait_for_event(RecoveryCompleted, timeout_s=120)
        (tmp_path / "end").touch()
        assert run.wait(timeout_s=120) == 0, run.stderr
    assert recovery.total_s < 8.0  # one look-up in vain takes 10 s
