"""What Slurm and Kubernetes say of a node."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from ftrun.launcher.scheduler import count_slurm_nodes, find_place, find_run_id

STEP = {
    "SLURM_JOB_ID": "77",
    "SLURM_STEP_ID": "0",
    "SLURM_JOB_NUM_NODES": "4",
    "SLURM_NNODES": "4",
    "SLURM_STEP_NUM_NODES": "4",
    "SLURM_NTASKS": "4",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_PROCID": "2",
    "SLURM_NODEID": "2",
}
"""One of four nodes with a task each, as srun has it."""
STEP_OF_ONE = {
    **STEP,
    "SLURM_STEP_ID": "3",
    "SLURM_STEP_NUM_NODES": "1",
    "SLURM_STEP_NUM_TASKS": "1",
    "SLURM_NTASKS": "1",
    "SLURM_PROCID": "0",
    "SLURM_NODEID": "0",
}
"""The same job, started by a srun for each node."""
BATCH = {"SLURM_JOB_ID": "77", "SLURM_JOB_NUM_NODES": "4", "SLURM_NNODES": "4", "SLURM_PROCID": "0"}
INDEXED = {"JOB_COMPLETION_INDEX": "3", "HOSTNAME": "train-llm-3"}


@pytest.mark.parametrize(
    ("environ", "place"),
    [
        pytest.param({}, None, id="no scheduler"),
        pytest.param(STEP, 2, id="a task on each node"),
        pytest.param(
            {**STEP, "SLURM_PROCID": "5", "SLURM_STEP_NUM_TASKS": "8"}, 2, id="several tasks on each"
        ),
        pytest.param(STEP_OF_ONE, None, id="a step of its own for each node"),
        pytest.param({**STEP, "SLURM_PROCID": "x"}, None, id="garbage"),
        pytest.param({"SLURM_PROCID": "1"}, 1, id="nothing but the place"),
        pytest.param(INDEXED, 3, id="indexed job"),
        pytest.param({"JOB_COMPLETION_INDEX": ""}, None, id="empty"),
        pytest.param({**INDEXED, **STEP}, 2, id="both"),
    ],
)
def test_place_is_the_schedulers(environ: Mapping[str, str], place: int | None) -> None:
    """Ranks follow the scheduler's order wherever it says something about it."""
    assert find_place(environ) == place


@pytest.mark.parametrize(
    ("environ", "nodes", "run_id"),
    [
        pytest.param({}, (2, 2), None, id="no scheduler"),
        pytest.param(STEP, (4, 4), "77.0", id="the step is the job"),
        pytest.param({**STEP, "SLURM_STEP_ID": "1"}, (4, 4), "77.1", id="another step of the allocation"),
        pytest.param(STEP_OF_ONE, (4, 4), "77", id="a step for each node"),
        pytest.param(STEP_OF_ONE, (1, 4), "77", id="a step for each node of an elastic job"),
        pytest.param(BATCH, (4, 4), "77", id="no step"),
        pytest.param({**STEP, "SLURM_RESTART_COUNT": "2"}, (4, 4), "77.0-restart2", id="requeued"),
        pytest.param({**STEP, "SLURM_RESTART_COUNT": "0"}, (4, 4), "77.0", id="never requeued"),
        pytest.param({**STEP, "SLURM_HET_SIZE": "2"}, (4, 4), None, id="components with ids of their own"),
        pytest.param(STEP, (8, 8), None, id="several allocations"),
        pytest.param({**STEP, "SLURM_ARRAY_JOB_ID": "70"}, (8, 8), "70-array", id="members of an array"),
        pytest.param({**STEP, "SLURM_ARRAY_JOB_ID": "70"}, (4, 4), "77.0", id="an array of jobs"),
        pytest.param(INDEXED, (2, 2), "train-llm", id="indexed job"),
        pytest.param({**INDEXED, "HOSTNAME": "train-llm-3-x9z2k"}, (2, 2), "train-llm", id="name of the pod"),
        pytest.param({**INDEXED, "HOSTNAME": "gpu-node-17"}, (2, 2), None, id="network of the host"),
        pytest.param({**INDEXED, "JOB_COMPLETION_INDEX": "(.*"}, (2, 2), None, id="garbage"),
        pytest.param({"HOSTNAME": "a-0"}, (2, 2), None, id="no indexed job"),
    ],
)
def test_run_id_is_the_same_on_all_nodes_of_a_job_and_on_no_other(
    environ: Mapping[str, str], nodes: tuple[int, int], run_id: str | None
) -> None:
    """Two steps of an allocation differ, and the nodes of one job never do however they were started."""
    assert find_run_id(environ, *nodes) == run_id


def test_nodes_of_the_step_count_before_those_of_the_allocation() -> None:
    """A step of one node in a larger allocation is a job on one node."""
    assert count_slurm_nodes(STEP_OF_ONE) == 1
    assert count_slurm_nodes(BATCH) == 4
    assert count_slurm_nodes({}) is None
