"""Builds the fake NVML library, for processes that are started with its directory in LD_LIBRARY_PATH."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest


def build(directory: Path) -> Path:
    """Compile `libnvidia-ml.so.1` into `directory` and return that; skips the test without a C compiler."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    source = Path(__file__).with_name("fakenvml.c")
    library = directory / "libnvidia-ml.so.1"
    command = [compiler, "-shared", "-fPIC", "-Wall", "-Werror", "-o", str(library), str(source)]
    subprocess.run(command, check=True, timeout=60)
    return directory
