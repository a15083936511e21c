"""The fake NVML library: builds it, and says what its GPUs are like.

The library (fakenvml.c) is loaded by processes that are started with its directory in LD_LIBRARY_PATH. What
it answers stands in a state file (state.c) that it reads again at each call, so that a fault appears and goes
away while a process has it loaded.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

_SOURCES = ("fakenvml.c", "state.c")


def build(directory: Path, without: Sequence[str] = ()) -> Path:
    """Compile `libnvidia-ml.so.1` into `directory` and return that; skips the test without a C compiler.

    It does not export the symbols `without`, as the library of an older driver does not.
    """
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    sources = [str(Path(__file__).with_name(name)) for name in _SOURCES]
    library = directory / "libnvidia-ml.so.1"
    absent = [f"-D{symbol}=absent_{symbol}" for symbol in without]
    flags = ["-shared", "-fPIC", "-O1", "-fvisibility=hidden", "-Wall", "-Wextra", "-Werror"]
    subprocess.run([compiler, *flags, *absent, "-o", str(library), *sources], check=True, timeout=60)
    return directory


class FakeNvml:
    """The state file of a fake node, by default of eight H100 that nothing is wrong with."""

    def __init__(self, library: Path, state: Path) -> None:
        self.state = state
        self.environment = {"LD_LIBRARY_PATH": str(library), "FAKE_NVML_STATE": str(state)}
        self._lines: dict[str, object] = {}
        self._write()

    def set(self, key: str, value: object) -> None:
        """From the next call on, `key` (see state.c and fakenvml.c) has this value."""
        self._lines[key] = value
        self._write()

    def clear(self, key: str) -> None:
        """From the next call on, `key` has its default again."""
        del self._lines[key]
        self._write()

    def report_xid(self, gpu: int, xid: int, *instances: int) -> None:
        """Let the driver report an Xid to whoever has registered for it."""
        sequence = 1 + sum(key.startswith("event.") for key in self._lines)
        self.set(f"event.{sequence}", " ".join(map(str, (gpu, 8, xid, *instances))))

    def list_gpus(self, *gpus: tuple[str, str]) -> None:
        """The node has just these GPUs: UUID and NVML's bus id of each."""
        self.set("device_count", len(gpus))
        for index, (uuid, bus_id) in enumerate(gpus):
            self.set(f"gpu.{index}.uuid", uuid)
            self.set(f"gpu.{index}.bus", bus_id)

    def _write(self) -> None:
        new = self.state.with_suffix(".new")
        new.write_text("".join(f"{key} {value}\n" for key, value in self._lines.items()))
        os.replace(new, self.state)
