"""Whether an agent and the host agent that it has found belong to one job. Pure."""

from __future__ import annotations

from ftrun.launcher.messages import Hello


def find_mismatch(own: Hello, hosts: Hello, where: str, has_run_id: bool, same_arguments: bool) -> str:
    """Why this agent cannot take part, with both values and the remedy; "" if it can.

    `where` names the host agent's place. Run ids count if both have one (`has_run_id`: this agent has), and
    fingerprints if `same_arguments`.
    """
    if own.ftrun_version != hosts.ftrun_version:
        return (
            f"this node runs ftrun {own.ftrun_version} and the host agent at {where} runs ftrun "
            f"{hosts.ftrun_version}; install the same version on all nodes"
        )
    if has_run_id and hosts.run_id and own.run_id != hosts.run_id:
        return (
            f'this node belongs to job "{own.run_id}" and the host agent at {where} to job "{hosts.run_id}"; '
            "give all nodes of a job the same --rdzv-id, and each job an endpoint of its own"
        )
    if same_arguments and own.fingerprint != hosts.fingerprint:
        differ = "its arguments differ" if own.job == hosts.job else f"the host agent runs {hosts.job}"
        return (
            f"this node runs {own.job} (fingerprint {own.fingerprint}), but for the host agent at {where} "
            f"{differ} (fingerprint {hosts.fingerprint}); give all nodes the same command line, or set "
            "ftrun.rdzv.same_arguments: false if nodes are meant to get different arguments"
        )
    return ""
