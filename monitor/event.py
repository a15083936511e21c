"""What all events of the journal have in common: the base class and the types of shared fields."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, TypeAlias

JsonValue: TypeAlias = "bool | int | float | str | list[JsonValue] | dict[str, JsonValue] | None"

Round: TypeAlias = Annotated[int, "Number of the round, from 0 over the whole job."]
Rank: TypeAlias = Annotated[int, "Global rank."]
LocalRank: TypeAlias = Annotated[int, "Rank on this node."]
Pid: TypeAlias = Annotated[int, "Process id on this node."]
Reason: TypeAlias = Annotated[str, "Why, as a sentence a person can read."]
RestartCount: TypeAlias = Annotated[int, "Restarts of the job so far."]


@dataclass(frozen=True, slots=True)
class Event:
    """Base of all events; `kind` is the name in the journal, dotted past tense."""

    kind: ClassVar[str] = ""
