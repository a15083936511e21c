"""What a scheduler's variables say of this node: its place, the job's id, how many nodes there are. Pure.

The variables are those that srun(1) and sbatch(1) of Slurm and an Indexed Job of Kubernetes set.
"""

from __future__ import annotations

import re
from collections.abc import Mapping


def find_place(environ: Mapping[str, str]) -> int | None:
    """This node's place in the order of the job's nodes, counted from 0; None if no scheduler tells.

    A Slurm step of a single task tells nothing, since that task always is the first: jobs whose nodes are
    started one by one, each with a srun of its own, would have every node at place 0.
    """
    tasks = _number(environ, "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS")
    task = _number(environ, "SLURM_PROCID")
    if task is not None and (tasks is None or tasks > 1):
        # Tasks can be dealt out to the nodes in turns; nodes are numbered in the order of their list.
        is_one_per_node = tasks is None or tasks == count_slurm_nodes(environ)
        return task if is_one_per_node else _number(environ, "SLURM_NODEID")
    return _number(environ, "JOB_COMPLETION_INDEX")


def count_slurm_nodes(environ: Mapping[str, str]) -> int | None:
    """Nodes of this Slurm step, or of the allocation when this is no step; None outside of Slurm."""
    return _number(environ, "SLURM_STEP_NUM_NODES", "SLURM_NNODES", "SLURM_JOB_NUM_NODES")


def find_run_id(environ: Mapping[str, str], min_nodes: int, places: int) -> str | None:
    """An id that all nodes of this job are given alike and no other job has; None if no scheduler tells.

    Args:
        environ: the environment.
        min_nodes: the fewest nodes that the job can run on.
        places: the most nodes that it can use, spares included.
    """
    return _slurm_run_id(environ, min_nodes, places) or _kubernetes_run_id(environ)


def _slurm_run_id(environ: Mapping[str, str], min_nodes: int, places: int) -> str | None:
    """The smallest of step, allocation and array of jobs that can hold all nodes of the job.

    A step has an id of its own, and so tells jobs in one allocation apart, but a job may also be started with
    one step for each node. Likewise an allocation, where nodes are the members of an array of jobs.
    """
    job = environ.get("SLURM_JOB_ID", "")
    if not job or "SLURM_HET_SIZE" in environ:  # each component of such a job has ids of its own
        return None
    step, array = environ.get("SLURM_STEP_ID", ""), environ.get("SLURM_ARRAY_JOB_ID", "")
    step_nodes = _number(environ, "SLURM_STEP_NUM_NODES") or 0
    job_nodes = _number(environ, "SLURM_JOB_NUM_NODES", "SLURM_NNODES") or 0
    if step and step_nodes >= places:
        run_id = f"{job}.{step}"
    elif array and job_nodes < places:
        return f"{array}-array"
    elif job_nodes < min_nodes:
        return None
    else:
        run_id = job
    restarts = _number(environ, "SLURM_RESTART_COUNT")
    return f"{run_id}-restart{restarts}" if restarts else run_id


def _kubernetes_run_id(environ: Mapping[str, str]) -> str | None:
    """The name of the Indexed Job: pods are called <job>-<index>-<random> and their hosts <job>-<index>."""
    index = environ.get("JOB_COMPLETION_INDEX", "")
    if not index.isdecimal():
        return None
    match = re.fullmatch(rf"(.+)-{index}(?:-[a-z0-9]{{5}})?", environ.get("HOSTNAME", ""))
    return match[1] if match else None


def _number(environ: Mapping[str, str], *names: str) -> int | None:
    """The first of these variables that is a whole number."""
    texts = (environ.get(name, "") for name in names)
    return next((int(text) for text in texts if text.isascii() and text.isdigit()), None)
