"""Reads the text in which the kernel says how much time is lost by waiting for a resource. Pure.

Format: Documentation/accounting/psi.rst; the same in /proc/pressure and in a cgroup of version 2.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Pressure:
    """Share of time lost by waiting for one resource, in percent (Documentation/accounting/psi.rst)."""

    some_avg10: float
    some_avg60: float
    full_avg10: float
    """Nobody could run."""
    full_avg60: float


def parse_pressure(text: str) -> Pressure | None:
    """None for an empty text: without CONFIG_PSI there is no such file, and with `psi=0` it refuses."""
    averages: dict[str, float] = {}
    for line in text.splitlines():
        kind, *words = line.split()
        for word in words:
            key, _, value = word.partition("=")
            if key in ("avg10", "avg60"):
                averages[f"{kind}_{key}"] = float(value)
    if "some_avg60" not in averages:
        return None
    return Pressure(
        some_avg10=averages["some_avg10"],
        some_avg60=averages["some_avg60"],
        # Before Linux 5.13 there is no such line for the CPU.
        full_avg10=averages.get("full_avg10", 0.0),
        full_avg60=averages.get("full_avg60", 0.0),
    )
