"""Whether a node has anything to check."""

from __future__ import annotations

from pathlib import Path

import pytest

from ftrun.healthchecks.presence import has_gpu_driver, has_rdma


@pytest.mark.parametrize(
    "file",
    [
        "dev/nvidiactl",
        "proc/driver/nvidia/version",
        "usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1",
        "usr/local/nvidia/lib64/libnvidia-ml.so.1",
    ],
)
def test_any_trace_of_a_driver_is_one(tmp_path: Path, file: str) -> None:
    """A broken one is to be found by the checks, so it must not look like none."""
    assert not has_gpu_driver({}, str(tmp_path))
    (tmp_path / file).parent.mkdir(parents=True)
    (tmp_path / file).touch()
    assert has_gpu_driver({}, str(tmp_path))


def test_the_library_may_be_where_the_loader_is_told_to_look(tmp_path: Path) -> None:
    """As in many containers."""
    place = tmp_path / "driver"
    environ = {"LD_LIBRARY_PATH": f"/nowhere::{place}"}
    assert not has_gpu_driver(environ, str(tmp_path))
    place.mkdir()
    (place / "libnvidia-ml.so.1").touch()
    assert has_gpu_driver(environ, str(tmp_path))


def test_stubs_of_the_toolkit_are_no_driver(tmp_path: Path) -> None:
    """Those have no version in their name."""
    (tmp_path / "usr/lib64").mkdir(parents=True)
    (tmp_path / "usr/lib64/libnvidia-ml.so").touch()
    assert not has_gpu_driver({}, str(tmp_path))


def test_rdma_is_a_device_not_a_loaded_module(tmp_path: Path) -> None:
    """The class directory is there with ib_core alone."""
    assert not has_rdma(str(tmp_path))
    devices = tmp_path / "sys/class/infiniband"
    devices.mkdir(parents=True)
    assert not has_rdma(str(tmp_path))
    (devices / "mlx5_0").mkdir()
    assert has_rdma(str(tmp_path))
