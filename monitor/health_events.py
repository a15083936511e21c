"""The journal's words for the health of nodes; part of the vocabulary in `ftrun.monitor.events`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from ftrun.monitor.event import Event, Reason


@dataclass(frozen=True, slots=True)
class HealthChanged(Event):
    """A health check says something else about a subject than before; the first time, if it is not well."""

    kind: ClassVar[str] = "health.changed"
    check: Annotated[str, "Name of the check, such as gpu.ecc."]
    subject: Annotated[str, "Whom it concerns: a GPU, a network card, a path or the node."]
    status: Annotated[str, "healthy, degraded, unhealthy, unknown or skipped."]
    before: Annotated[str, "The status before; empty the first time."]
    observed: Annotated[str, "What was found, with its numbers."]
    expected: Annotated[str, "What a healthy subject would have shown; may be empty."]
    remedy: Annotated[str, "What a person should do; may be empty."]
    is_persistent: Annotated[bool, "It was already so when the job began."]


@dataclass(frozen=True, slots=True)
class HealthCheckDelayed(Event):
    """The health of this node was not known in time before a round; the node took part without it."""

    kind: ClassVar[str] = "health.check_delayed"
    reason: Reason


@dataclass(frozen=True, slots=True)
class GpuMemoryAwaited(Event):
    """Memory of this node's GPUs was not given back before new workers started, or only after a while."""

    kind: ClassVar[str] = "health.gpu_memory_awaited"
    subject: Annotated[str, "The GPU."]
    held_bytes: Annotated[int, "What is used beyond what was before the job's first workers."]
    waited_s: Annotated[float, "Seconds that were waited for it, since the workers had ended."]
    is_freed: Annotated[bool, "It was given back in that time."]
    holders: Annotated[tuple[str, ...], "What held it, with process ids as the driver has them."]


@dataclass(frozen=True, slots=True)
class NodeExcluded(Event):
    """A node is left out: it is not healthy, or fails again and again; journalled by the host agent."""

    kind: ClassVar[str] = "node.excluded"
    name: Annotated[str, "Name of the node."]
    reason: Reason


@dataclass(frozen=True, slots=True)
class ExclusionSuspended(Event):
    """So many nodes fail a check at once that none is left out for it; journalled by the host agent."""

    kind: ClassVar[str] = "node.exclusion_suspended"
    check: Annotated[str, "Name of the check."]
    nodes: Annotated[tuple[str, ...], "Nodes that fail it."]


@dataclass(frozen=True, slots=True)
class SlotsReduced(Event):
    """This node takes part with fewer workers, because a GPU is left out."""

    kind: ClassVar[str] = "health.slots_reduced"
    slots: Annotated[int, "Workers that it offers for the next round."]
    reason: Reason
