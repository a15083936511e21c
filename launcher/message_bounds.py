"""Keeps messages small: shortens what is told of a failure, and what matters least for its cause first. Pure.

A thousand nodes may tell the host agent of one failure, and it tells all of them what came of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from ftrun.launcher.message_codec import size_of
from ftrun.monitor.excerpts import shorten_exit, shorten_text
from ftrun.monitor.failures import crashed_in_stop, root_of
from ftrun.monitor.incident import Ailment, Evidence, Incident, RankExit

MAX_BYTES = 16384
"""Of 1,024 nodes, 16 MiB in the host agent's inbox."""

_SMALLEST_EXIT_BYTES = 150
"""A `RankExit` without any text has more than these."""
_WHOLE = 1 << 62
_SENTENCE_LENGTH = 1000
MAX_AILMENTS = 6
_NAME_LENGTH = 100
_FINDING_LENGTH = 300
_SHARING_RANKS = 16

_LIMITS = (
    (_WHOLE, _WHOLE, 1000),
    (_WHOLE, _WHOLE, 200),
    (_WHOLE, _WHOLE, 0),
    (_WHOLE, 4000, 0),
    (_WHOLE, 1000, 0),
    (_WHOLE, 200, 0),
    (8000, 200, 0),
    (4000, 200, 0),
    (4000, 0, 0),
    (2000, 0, 0),
    (1000, 0, 0),
    (300, 0, 0),
)
"""Characters per text that are left to the root cause, to other failures, and to ranks that were stopped."""

_Account = TypeVar("_Account", Evidence, Incident)


@dataclass(frozen=True, slots=True)
class _Ranked:
    """An exit, its place in the account, and whose limit holds for it (an index into a row of `_LIMITS`)."""

    place: int
    exit: RankExit
    group: int


def shorten_ailment(ailment: Ailment) -> Ailment:
    """The same with texts of bounded length."""
    return replace(
        ailment,
        subject=shorten_text(ailment.subject, _NAME_LENGTH),
        observed=shorten_text(ailment.observed, _FINDING_LENGTH),
        remedy=shorten_text(ailment.remedy, _FINDING_LENGTH),
        local_ranks=ailment.local_ranks[:_SHARING_RANKS],
    )


def bound_evidence(evidence: Evidence, max_bytes: int = MAX_BYTES) -> Evidence:
    """The evidence in at most `max_bytes` of JSON, so that it leads to the same diagnosis.

    Texts are shortened, those of the rank that is the cause last; then ranks that were stopped are left out,
    and at last ranks that failed, though never the cause.
    """
    if size_of(evidence) <= max_bytes:
        return evidence
    evidence = replace(
        evidence,
        hang=None
        if evidence.hang is None
        else replace(evidence.hang, sentence=_line(evidence.hang.sentence)),
        start_failure=_line(evidence.start_failure),
        unreachable=_line(evidence.unreachable),
        unhealthy=_line(evidence.unhealthy),
        # A beginning of the path is in a text wherever the whole is.
        resume_from=evidence.resume_from[:_SENTENCE_LENGTH],
        spaces=tuple(
            replace(space, path=shorten_text(space.path, _FINDING_LENGTH)) for space in evidence.spaces
        ),
        report=None
        if evidence.report is None
        else replace(evidence.report, reason=_line(evidence.report.reason)),
        health=tuple(map(shorten_ailment, evidence.health[:MAX_AILMENTS])),
    )
    blamed = _blamed(evidence)
    first_own = min((one for one in evidence.exits if one.has_failed), key=_exited_at, default=None)

    def weight(exit: RankExit) -> tuple[int, float]:
        if exit in blamed:
            return blamed.index(exit) - len(blamed), 0.0
        # The first exit tells when the agent began to stop the others.
        return 0 if exit is first_own else 1 if exit.has_failed else 2, exit.failed_at

    def shorten(exit: RankExit, limit: int) -> RankExit:
        return shorten_exit(exit, limit, evidence.resume_from)

    def rebuild(exits: Sequence[RankExit], left_out: int) -> Evidence:
        return replace(evidence, exits=tuple(exits), left_out=evidence.left_out + left_out)

    ranked = [
        _Ranked(place, exit, 0 if exit in blamed else 1 if exit.has_failed else 2)
        for place, exit in sorted(enumerate(evidence.exits), key=lambda pair: weight(pair[1]))
    ]
    return _fit(ranked, rebuild, max_bytes, shorten)


def _exited_at(exit: RankExit) -> float:
    return exit.exited_at


def _blamed(evidence: Evidence) -> list[RankExit]:
    """The exits that diagnosis may name as the cause."""
    if evidence.hang is not None:
        ranks = [*evidence.hang.culprits, evidence.hang.rank]
        return sorted(
            (exit for exit in evidence.exits if exit.rank in ranks), key=lambda exit: ranks.index(exit.rank)
        )
    if evidence.report is not None:
        return [exit for exit in evidence.exits if exit.rank == evidence.report.rank]
    root = root_of(evidence) or crashed_in_stop(evidence)
    return [] if root is None else [root.exit]


def bound_incident(incident: Incident, max_bytes: int = MAX_BYTES) -> Incident:
    """The incident in at most `max_bytes` of JSON: shortened as evidence is, the culprit last."""
    # Thousands of ranks fall with one; writing all of them down to see that they are too many takes long.
    has_room = len(incident.collateral) * _SMALLEST_EXIT_BYTES <= max_bytes
    if has_room and size_of(incident) <= max_bytes:
        return incident
    incident = replace(incident, reasons=tuple(map(_line, incident.reasons)))
    collateral = sorted(
        enumerate(incident.collateral), key=lambda pair: (not pair[1].has_failed, pair[1].failed_at)
    )

    def rebuild(exits: Sequence[RankExit], left_out: int) -> Incident:
        shown = {exit.rank for exit in exits[1:]}
        hosts = [
            replace(one, ranks=tuple(rank for rank in one.ranks if rank in shown)) for one in incident.hosts
        ]
        return replace(
            incident,
            culprit=exits[0],
            collateral=tuple(exits[1:]),
            hosts=tuple(host for host in hosts if host.ranks),
            left_out=incident.left_out + left_out,
        )

    ranked = [_Ranked(-1, incident.culprit, 0)]
    ranked += [_Ranked(place, exit, 1 if exit.has_failed else 2) for place, exit in collateral]
    return _fit(ranked, rebuild, max_bytes)


def _fit(
    ranked: Sequence[_Ranked],
    rebuild: Callable[[Sequence[RankExit], int], _Account],
    max_bytes: int,
    shorten: Callable[[RankExit, int], RankExit] = shorten_exit,
) -> _Account:
    """The first that fits, with more and more cut off; `ranked` has the most important exit first."""
    kept = ranked[: max(1, max_bytes // _SMALLEST_EXIT_BYTES)]

    def account(exits: Sequence[_Ranked]) -> _Account:
        in_order = sorted(exits, key=lambda one: one.place)
        return rebuild([one.exit for one in in_order], len(ranked) - len(exits))

    for limits in _LIMITS:
        if sum(_least_bytes(one.exit, limits[one.group]) for one in kept) <= max_bytes:
            found = account(_shorten(kept, limits, shorten))
            if size_of(found) <= max_bytes:
                return found
    shortened = _shorten(kept, _LIMITS[-1], shorten)
    fits, too_many = 1, len(shortened) + 1
    while too_many - fits > 1:
        middle = (fits + too_many) // 2
        if size_of(account(shortened[:middle])) <= max_bytes:
            fits = middle
        else:
            too_many = middle
    return account(shortened[:fits])


def _least_bytes(exit: RankExit, limit: int) -> int:
    """No JSON form of the exit with its texts shortened to `limit` is smaller; for a quick look."""
    texts = [sum(map(len, exit.stderr_tail))]
    if exit.error is not None:
        texts += [len(exit.error.message), len(exit.error.traceback)]
    return _SMALLEST_EXIT_BYTES + sum(min(length, limit) for length in texts)


def _shorten(
    exits: Sequence[_Ranked], limits: Sequence[int], shorten: Callable[[RankExit, int], RankExit]
) -> list[_Ranked]:
    return [replace(one, exit=shorten(one.exit, limits[one.group])) for one in exits]


def _line(text: str) -> str:
    return shorten_text(text, _SENTENCE_LENGTH)
