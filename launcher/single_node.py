"""What torchrun's options for several nodes come to in this version, which runs one. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from ftrun.launcher.config import IgnoredOption, LaunchOptions
from ftrun.launcher.launch_options import Given, UsageError

RENDEZVOUS_BACKENDS = ("static", "c10d", "etcd", "etcd-v2")
"""Those that torch itself has (torch.distributed.elastic.rendezvous.registry)."""

_LOCAL_BACKENDS = ("static", "c10d")
"""Those that ask no other service; on one node both come to the same."""

_NO_RENDEZVOUS = "this version runs one node, whose workers need no rendezvous"


def check_nodes(options: LaunchOptions) -> None:
    """Refuse what would split a job into several that each believe to be the only one.

    Raises:
        UsageError: `--nnodes` allows more than one node.
    """
    if options.max_nodes > 1:
        asked = f"{options.min_nodes}:" if options.min_nodes != options.max_nodes else ""
        raise UsageError(
            f"--nnodes {asked}{options.max_nodes} asks for up to {options.max_nodes} nodes; this version of "
            "ftrun runs one node, and each node would run the whole job by itself. "
            "Use --nnodes 1 on one node, or torchrun for several."
        )


def find_ignored(given: Mapping[str, Given], options: LaunchOptions) -> tuple[IgnoredOption, ...]:
    """What was asked for and has no effect on one node; `given` is by field of `LaunchOptions`."""
    backend = options.rdzv_backend
    reasons = {
        "rdzv_backend": ""
        if options.standalone or backend in _LOCAL_BACKENDS
        else f"{_NO_RENDEZVOUS}: {backend} is not asked",
        "rdzv_conf": _NO_RENDEZVOUS if options.rdzv_conf else "",
        "node_rank": "this version runs one node, and that is node 0" if options.node_rank != 0 else "",
        "local_addr": "this version runs one node, whose workers meet at MASTER_ADDR",
        "start_method": ""
        if options.start_method == "spawn"
        else "every worker is a process of its own, never a fork of the agent",
        "monitor_interval": "the end of a worker is seen at once, not at the next look",
    }
    return tuple(
        IgnoredOption(given[name].where, reason)
        for name, reason in reasons.items()
        if reason and name in given
    )
