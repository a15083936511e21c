"""What was asked for about nodes and workers and has no effect, with the reason. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ftrun.launcher import scheduler
from ftrun.launcher.config import Config, IgnoredOption, LaunchOptions
from ftrun.launcher.launch_options import Given
from ftrun.launcher.rendezvous_conf import find_ignored_keys

_LOCAL_BACKENDS = ("static", "c10d")
"""Those that ask no other service; on one node both come to the same."""

_NO_RENDEZVOUS = "one node needs no rendezvous"


def find_ignored(
    given: Mapping[str, Given], config: Config, environ: Mapping[str, str]
) -> tuple[IgnoredOption, ...]:
    """Options, and variables of the scheduler, that change nothing.

    Args:
        given: by field of `LaunchOptions`, "nnodes" for the number of nodes.
        config: what it has come to.
        environ: the environment.
    """
    options = config.launch
    is_one_node = options.standalone or options.max_nodes + config.ftrun.world.spares == 1
    reasons = _reasons_on_one_node(options) if is_one_node else _reasons_on_several(given, options)
    reasons |= {
        "start_method": ""
        if options.start_method == "spawn"
        else "every worker is a process of its own, never a fork of the agent",
        "monitor_interval": "the end of a worker is seen at once, not at the next look",
    }
    found = [
        IgnoredOption(given[name].where, reason)
        for name, reason in reasons.items()
        if reason and name in given
    ]
    if not is_one_node and "rdzv_conf" in given:
        found += find_ignored_keys(options.rdzv_conf, options.rdzv_backend, given["rdzv_conf"].where)
    return (*found, *_find_unused_nodes(given, config, environ))


def _reasons_on_one_node(options: LaunchOptions) -> dict[str, str]:
    """By field; "" for what has an effect or says no more than what is done anyway."""
    backend = options.rdzv_backend
    is_asked = options.standalone or backend in _LOCAL_BACKENDS
    return {
        "nnodes": "--standalone means one node" if options.max_nodes > 1 else "",
        "rdzv_backend": "" if is_asked else f"{_NO_RENDEZVOUS}: {backend} is not asked",
        "rdzv_conf": _NO_RENDEZVOUS if options.rdzv_conf else "",
        "node_rank": "this node is the whole job, and that is node 0 (--nnodes asks for no more)"
        if options.node_rank != 0
        else "",
        "local_addr": "the workers of one node meet at MASTER_ADDR",
    }


def _reasons_on_several(given: Mapping[str, Given], options: LaunchOptions) -> dict[str, str]:
    backend = options.rdzv_backend
    if backend != "static":
        reason = f"only the static rendezvous reads it; with {backend} --rdzv-endpoint says where nodes meet"
        return {"master_addr": reason, "master_port": reason}
    is_range = options.min_nodes != options.max_nodes
    reasons = {
        "nnodes": f"the static rendezvous waits for all {options.max_nodes} nodes whatever MIN is; "
        "--rdzv-backend c10d can do with fewer"
        if is_range
        else ""
    }
    if "rdzv_endpoint" in given and options.rdzv_endpoint:
        reasons["master_addr"] = "--rdzv-endpoint says where the nodes meet"
    return reasons


def _find_unused_nodes(
    given: Mapping[str, Given], config: Config, environ: Mapping[str, str]
) -> Iterator[IgnoredOption]:
    """Nodes of a Slurm step that --nnodes does not make one job of; on purpose in some scripts."""
    count, options = scheduler.count_slurm_nodes(environ), config.launch
    if count is None or options.standalone:
        return
    if "nnodes" not in given and count > 1:
        yield IgnoredOption(
            f"the number of nodes that Slurm has given ({count})",
            "--nnodes is not given, so each node on which ftrun is started runs the whole job by itself; "
            f"for one job on all of them give --nnodes {count} and where they meet (--rdzv-backend c10d "
            "--rdzv-endpoint HOST:PORT)",
        )
