"""A process with an unmodified RankMonitorClient that does, line by line, what a test says on its stdin.

`python nvrx_client.py` answers each line with one: "ok", or the text of its RankMonitorClientError. The names
that a training script would import can be used, `client` is a RankMonitorClient, and `new_client()` gives
another.
"""

from __future__ import annotations

import sys

from nvidia_resiliency_ext.fault_tolerance import (
    RankMonitorClient,
    RankMonitorClientError,
    WorkloadAction,
    WorkloadControlRequest,
)


def new_client() -> RankMonitorClient:
    """Not initialized yet."""
    return RankMonitorClient()


names = {
    "client": new_client(),
    "new_client": new_client,
    "WorkloadAction": WorkloadAction,
    "WorkloadControlRequest": WorkloadControlRequest,
}
sys.stdout.write(f"ready {sys.modules['nvidia_resiliency_ext'].__file__}\n")
sys.stdout.flush()
for line in sys.stdin:
    try:
        exec(line, names)
        answer = "ok"
    except RankMonitorClientError as error:
        answer = f"{type(error).__name__}: {error}".replace("\n", " ")
    sys.stdout.write(answer + "\n")
    sys.stdout.flush()
