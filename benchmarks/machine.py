"""What the numbers of a benchmark depend on."""

from __future__ import annotations

import os
import platform
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil


def describe_machine() -> dict[str, str]:
    """What the numbers depend on."""
    cpu = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.machine(),
    )
    facts = {
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "cpu": f"{cpu}, {len(os.sched_getaffinity(0))} cores usable",
        "memory": f"{psutil.virtual_memory().total / 2**30:.1f} GiB",
        "system": f"{platform.system()} {platform.release()}, Python {platform.python_version()}",
        "load before": " ".join(f"{value:.2f}" for value in os.getloadavg()),
    }
    for package in ("torch", "nvidia-resiliency-ext", "ftrun"):
        try:
            facts[package] = version(package)
        except PackageNotFoundError:
            facts[package] = "not installed"
    return facts
