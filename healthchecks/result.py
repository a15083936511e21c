"""What a health check says: one status about one subject. Pure; what to do about it is decided elsewhere."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum
from typing import Literal


class Status(Enum):
    """What a check found out."""

    HEALTHY = "healthy"
    DEGRADED = "degraded"
    """Worth a warning; never a reason to stop or to exclude."""
    UNHEALTHY = "unhealthy"
    UNKNOWN = "unknown"
    """The check should have given an answer and did not. Never counted as healthy."""
    SKIPPED = "skipped"
    """The check does not apply: not supported, not permitted, or nothing is expected."""


SubjectKind = Literal["gpu", "nvlink", "nic", "path", "node"]

_NAMELESS = "unknown UUID, index "
_FROM_GOOD_TO_BAD = (Status.SKIPPED, Status.HEALTHY, Status.DEGRADED, Status.UNKNOWN, Status.UNHEALTHY)


@dataclass(frozen=True, slots=True)
class Subject:
    """Whom a result concerns."""

    kind: SubjectKind
    name: str
    """UUID of a GPU (kind "nvlink": of the GPU that all these links belong to), device name of a NIC, path,
    or host name."""
    index: int | None = None
    """NVML's index of that GPU; None where there is none."""

    def __str__(self) -> str:
        """As a person reads it: "gpu 3 (GPU-..)"."""
        return f"{self.kind} {self.name}" if self.index is None else f"{self.kind} {self.index} ({self.name})"


@dataclass(frozen=True, slots=True)
class Result:
    """One check's answer about one subject."""

    check: str
    """Name in the registry: "gpu.ecc"."""
    status: Status
    subject: Subject
    observed: str
    """What was found, with its numbers; also why a check was skipped or could not tell."""
    expected: str = ""
    """What a healthy subject would have shown; "" where the check did not get that far."""
    remedy: str = ""
    """What a person should do; "" when there is nothing to do."""
    is_persistent: bool = False
    """It was already so when the job began."""


def nameless(index: int) -> str:
    """What the GPU that NVML numbers so is called as long as it cannot say its UUID."""
    return f"{_NAMELESS}{index}"


def is_known(name: str) -> bool:
    """It is the name of a subject, not of a GPU that could not say its own."""
    return not name.startswith(_NAMELESS)


def worst(results: Iterable[Result]) -> Status:
    """The status of all results together; `Status.SKIPPED` if there are none.

    Unhealthy comes before unknown, unknown before degraded, and one healthy result outweighs skipped ones.
    """
    return max((result.status for result in results), key=_FROM_GOOD_TO_BAD.index, default=Status.SKIPPED)


def as_warning(result: Result, why: str) -> Result:
    """The result of a subject that the job does not depend on: degraded at most.

    Args:
        result: any result; healthy, degraded and skipped ones are returned as they are.
        why: put behind what was observed, e.g. "not a GPU of this job".
    """
    if result.status not in (Status.UNHEALTHY, Status.UNKNOWN):
        return result
    return replace(result, status=Status.DEGRADED, observed=f"{result.observed} ({why})")
