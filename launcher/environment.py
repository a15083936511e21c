"""What a worker finds in its environment and arguments: torchrun's contract. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from string import Template

from ftrun.launcher.config import LaunchOptions
from ftrun.launcher.model import Plan


def of_every_worker(environ: Mapping[str, str], local_world_size: int) -> dict[str, str]:
    """Environment with which worker processes are spawned, before it is known which rank they will be."""
    environment = dict(environ)
    if local_world_size > 1:
        environment.setdefault("OMP_NUM_THREADS", "1")
    environment.setdefault("PYTHONUNBUFFERED", "1")
    environment.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1")
    return environment


def of_rank(plan: Plan, local_rank: int, run_id: str, options: LaunchOptions) -> dict[str, str]:
    """Variables that make a worker one particular rank of one particular round."""
    ranks = plan.ranks
    environment = {
        "RANK": str(ranks.rank_of(local_rank)),
        "LOCAL_RANK": str(local_rank),
        "WORLD_SIZE": str(ranks.world_size),
        "LOCAL_WORLD_SIZE": str(ranks.local_world_size),
        "GROUP_RANK": str(ranks.group_rank),
        "GROUP_WORLD_SIZE": str(ranks.group_world_size),
        "ROLE_NAME": options.role,
        "ROLE_RANK": str(ranks.rank_of(local_rank)),
        "ROLE_WORLD_SIZE": str(ranks.world_size),
        "MASTER_ADDR": plan.master_addr,
        "MASTER_PORT": str(plan.master_port),
        "TORCHELASTIC_RESTART_COUNT": str(plan.restart_count),
        "TORCHELASTIC_MAX_RESTARTS": str(options.max_restarts),
        "TORCHELASTIC_RUN_ID": run_id,
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_SIGNALS_TO_HANDLE": ",".join(options.signals_to_handle),
    }
    if plan.resume_from is not None:
        environment["FTRUN_RESUME_FROM"] = plan.resume_from
    return environment


def virtual_local_rank(environ: Mapping[str, str], local_rank: int) -> dict[str, str]:
    """Variables for `--virtual-local-rank`: every worker sees its own GPU as device 0.

    Raises:
        ValueError: CUDA_VISIBLE_DEVICES lists fewer devices than there are local ranks.
    """
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return {"LOCAL_RANK": "0", "CUDA_VISIBLE_DEVICES": str(local_rank)}
    devices = [device.strip() for device in visible.split(",")]
    if local_rank >= len(devices):
        raise ValueError(
            f"--virtual-local-rank: local rank {local_rank} has no device in CUDA_VISIBLE_DEVICES={visible}; "
            f"start at most {len(devices)} workers on this node"
        )
    return {"LOCAL_RANK": "0", "CUDA_VISIBLE_DEVICES": devices[local_rank]}


def substitute(arguments: Sequence[str], local_rank: int, resume_from: str | None) -> tuple[str, ...]:
    """Replace `${local_rank}` and `${resume_from}` (empty at the first start) in the script's arguments."""
    values = {"local_rank": str(local_rank), "resume_from": resume_from or ""}
    return tuple(Template(argument).safe_substitute(values) for argument in arguments)


def named_interfaces(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Network interfaces that the job is told to use, by NCCL's and gloo's variables; () if it may choose.

    NCCL_SOCKET_IFNAME may also exclude ("^lo") or ask for exact names ("=eth0"); names may have a port.
    """
    names: list[str] = []
    for variable in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"):
        text = environ.get(variable, "").strip()
        if not text.startswith("^"):
            names += (name.strip().partition(":")[0] for name in text.removeprefix("=").split(","))
    return tuple(dict.fromkeys(filter(None, names)))
