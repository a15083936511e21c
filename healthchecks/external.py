"""Health checks that others wrote: a command, and NVRx's node health check daemon, both under a deadline."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Sequence

from ftrun.healthchecks import tether
from ftrun.healthchecks.children import Ended, run_child
from ftrun.healthchecks.result import Result, Status, Subject

NVHCD_ARGUMENTS = ("--no-slurm", "--group", "prolog", "epilog", "logs", "gpu")
"""What NVRx 0.7 asks the daemon's script to check."""
NVHCD_TIMEOUT_S = 60.0
"""NVRx's."""
_GRPC_START_S = 2.0
"""Importing grpc takes a while, and its own deadline should strike first: its message says more."""
_STATUS_BY_EXIT_CODE = {0: Status.HEALTHY, 1: Status.UNHEALTHY, 2: Status.UNKNOWN}
_MAX_OBSERVED = 300
_MAX_ANSWER_BYTES = 32 << 20
"""gRPC takes 4 MiB, each character of which JSON may write as six."""


def check_command(argv: Sequence[str], timeout_s: float, node: str) -> Result:
    """Run a command whose exit code tells: 0 healthy, 1 unhealthy, 2 could not tell, as `ftctl check` has it.

    Anything else (not found, killed, no answer in time) says nothing of the node and is unknown. The last
    line of its output is what was observed. It takes `timeout_s` + 0.2 seconds at the most.
    """
    subject, name = Subject("node", node), os.path.basename(argv[0])
    try:
        ended = run_child([sys.executable, "-I", "-S", tether.__file__, str(os.getpid()), *argv], timeout_s)
    except OSError as error:
        reason = f"{name} cannot be run: {error.strerror}"
        return Result("external.command", Status.UNKNOWN, subject, reason, "exit code 0")
    status = _STATUS_BY_EXIT_CODE.get(-1 if ended.exit_code is None else ended.exit_code, Status.UNKNOWN)
    remedy = "" if status is Status.HEALTHY else f"run {name} by hand"
    observed = f"{name}: {_last_line(ended.output) or _ending(ended, timeout_s)}"
    if status is Status.UNKNOWN and ended.exit_code != 2:
        observed = f"{name} {_ending(ended, timeout_s)}: {_last_line(ended.output)}".rstrip(": ")
    return Result("external.command", status, subject, observed, "exit code 0", remedy)


def check_nvhcd(
    endpoint: str,
    node: str,
    timeout_s: float = NVHCD_TIMEOUT_S,
    arguments: Sequence[str] = NVHCD_ARGUMENTS,
) -> Result:
    """Ask NVRx's daemon (`--ft-node-health-check-endpoint`) whether this node is fit.

    A daemon that cannot be reached is unknown; NVRx takes it for healthy. It takes `timeout_s` + 2.2 seconds
    at the most.

    Args:
        endpoint: path of its Unix socket, with or without "unix://".
        node: name of this node.
        timeout_s: of the call.
        arguments: for the daemon's script.
    """
    subject = Subject("node", node)
    target = endpoint if endpoint.startswith("unix:") else f"unix://{os.path.abspath(endpoint)}"
    argv = [sys.executable, "-m", "ftrun.healthchecks.nvhcd", target, str(timeout_s), *arguments]
    try:
        ended = run_child(argv, timeout_s + _GRPC_START_S, _MAX_ANSWER_BYTES)
    except OSError as error:
        reason = f"no child to ask it can be started: {error.strerror}"
        return Result("external.nvhcd", Status.UNKNOWN, subject, reason, "success")
    answer = _object(_last_line(ended.output, None))
    if answer is None:
        observed = f"no answer from {endpoint}: the child that asks {_ending(ended, timeout_s)}"
        return Result("external.nvhcd", Status.UNKNOWN, subject, observed, "success")
    status, observed = judge_answer(answer)
    remedy = "" if status is Status.HEALTHY else f"look at the log of the daemon behind {endpoint}"
    return Result("external.nvhcd", status, subject, _short(observed), "success", remedy)


def judge_answer(answer: dict[str, object]) -> tuple[Status, str]:
    """What the daemon's answer says of the node, and how it says it."""
    if "unreachable" in answer:
        return Status.UNKNOWN, f"cannot be reached: {answer['unreachable']}"
    output, error, exit_code = str(answer.get("output", "")), answer.get("error"), answer.get("exit_code")
    if answer.get("success") is not True:
        if not output and error and exit_code in (-1, 126, 127):
            # The script has not run, which is no news of the node.
            return Status.UNKNOWN, f"the daemon could not run its script: {error}"
        return Status.UNHEALTHY, f"exit code {exit_code}: {error or output or 'no output'}"
    if not output:
        return Status.HEALTHY, "success"
    details = _object(output)
    if details is None:
        return Status.UNKNOWN, f"success, but its output is no JSON object: {output}"
    if details.get("fail_count", 0) != 0:
        return Status.UNHEALTHY, f"{details['fail_count']} checks failed: {output}"
    return Status.HEALTHY, "success"


def _object(text: str) -> dict[str, object] | None:
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return data if isinstance(data, dict) else None


def _ending(ended: Ended, timeout_s: float) -> str:
    if ended.survivor is not None:
        return f"gave no answer within {timeout_s:g} s and cannot be killed (pid {ended.survivor.pid})"
    if ended.has_hung:
        return f"gave no answer within {timeout_s:g} s"
    if ended.exit_code is None:
        return "has ended, and its exit code was lost"
    if ended.exit_code < 0:
        return f"was killed by {_signal_name(-ended.exit_code)}"
    return f"ended with exit code {ended.exit_code}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _last_line(output: str, limit: int | None = _MAX_OBSERVED) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return lines[-1][:limit] if lines else ""


def _short(text: str) -> str:
    return text if len(text) <= _MAX_OBSERVED else f"{text[:_MAX_OBSERVED]}.."
