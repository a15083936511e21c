"""Exit codes of ftrun: what each tells the scheduler. docs/slurm-kubernetes.md has the table."""

from __future__ import annotations

OK = 0
FAILED = 1
"""Workers failed and no restart is left or allowed."""
USAGE = 2
"""Bad command line or configuration."""
FUTILE = 93
"""The job cannot get better; 93 is also NVRx's `--ft-no-restart-exit-code` default."""
NODE_UNHEALTHY = 94
"""This node is not healthy; the job may go on without it."""
NO_RENDEZVOUS = 95
"""Rendezvous did not form."""

RESERVED = frozenset({OK, FAILED, USAGE, FUTILE, NODE_UNHEALTHY, NO_RENDEZVOUS})
"""A worker's own code is passed on unless it is one of these."""


def of_signal(signum: int) -> int:
    """The shell's convention: 128 + n."""
    return 128 + signum


def of_failure(worker_exit_code: int) -> int:
    """Code of a job whose root cause ended with `worker_exit_code` (as `subprocess` has it)."""
    if worker_exit_code < 0 or worker_exit_code in RESERVED:
        return FAILED
    return worker_exit_code
