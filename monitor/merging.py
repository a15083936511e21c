"""Makes one `Run` of the lives of its agents, whose journals were written apart. Pure.

Tolerant of all that happens to journals: nodes without one, an agent that was killed in the middle of a
round, a run that goes on. What that leaves unknown is said in `Run.gaps`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ftrun.monitor.departures import is_verdict
from ftrun.monitor.happenings import find_incidents
from ftrun.monitor.history import Node, NodeShift, Presence, Pulse, Round, Run, State
from ftrun.monitor.lives import Life, Note, RoundKey
from ftrun.monitor.steps import count_steps
from ftrun.monitor.timeline import Placed, place


def merge(
    lives: Sequence[Life],
    now_ts: float | None = None,
    pulses: Mapping[str, Pulse] | None = None,
    gaps: Sequence[str] = (),
) -> Run:
    """The run of these lives (one run's, as `timeline.group` gives them; at least one).

    Args:
        lives: of the agents on all its nodes.
        now_ts: UTC epoch, for a run that may be going on; None looks at it as of its last line.
        pulses: by node, of the agents that have not said that they ended; unknown for the others.
        gaps: what is known to be missing, as sentences.
    """
    placed = place(lives)
    presences = _presences(placed, now_ts, pulses or {})
    nodes = _nodes(presences)
    rounds = _rounds(presences)
    state, exit_code, reason = _outcome(presences)
    began = min(one.began for one in placed)
    work = count_steps(rounds)
    incidents = find_incidents(presences, rounds, work)
    first = min(placed, key=lambda one: (not one.life.run_id, one.began)).life
    limits = [one.max_restarts for one in incidents if one.max_restarts is not None]
    return Run(
        run_id=first.run_id,
        script=first.script,
        version=first.version,
        settings=first.settings,
        state=state,
        exit_code=exit_code,
        end_reason=reason,
        began=began,
        ended=max(began, *(one.ended for one in presences)),
        nodes=nodes,
        rounds=rounds,
        work=work,
        incidents=incidents,
        restart_count=_restart_count(presences),
        max_restarts=limits[-1] if limits else None,
        notes=_notes(presences),
        gaps=(*gaps, *_gaps(nodes, rounds)),
    )


def _presences(
    placed: Sequence[Placed], now_ts: float | None, pulses: Mapping[str, Pulse]
) -> tuple[Presence, ...]:
    last_known = max(one.last for one in placed)
    is_over = any(is_verdict(one.life.exit_code) for one in placed)
    named = _last_named(placed)
    found = []
    for number, one in enumerate(placed):
        later = next((other for other in placed[number + 1 :] if other.life.node == one.life.node), None)
        pulse = pulses.get(one.life.node, Pulse.UNKNOWN)
        is_cut = later is None and named.get(one.life.node, -1) > _last_round(one.life)
        if one.life.is_ended:
            state, ended = State.ENDED, one.last
        elif is_cut and pulse is not Pulse.ALIVE and not _is_lost(one, placed):
            found.append(Presence(one, one.last, State.UNKNOWN, is_cut=True))
            continue
        elif later is not None or pulse is Pulse.GONE or is_over or _is_lost(one, placed):
            state, ended = State.KILLED, _death(one, placed)
        elif pulse is Pulse.ALIVE:
            now = one.last if now_ts is None else one.last + max(0.0, now_ts - one.life.last_ts)
            state, ended = State.RUNNING, now
        else:
            state, ended = State.UNKNOWN, last_known
        if later is not None:
            ended = min(ended, later.began)
        found.append(Presence(one, max(ended, one.began), state))
    return tuple(found)


def _last_round(life: Life) -> int:
    return -1 if life.last_round is None else life.last_round


def _last_named(placed: Sequence[Placed]) -> Mapping[str, int]:
    """The last round in which some journal names a node, by its name."""
    rounds = {shift.key: shift.nodes for one in placed for shift in one.life.shifts}
    found: dict[str, int] = {}
    for key, nodes in rounds.items():
        for name in nodes:
            found[name] = max(key.number, found.get(name, -1))
    return found


def _is_lost(one: Placed, placed: Sequence[Placed]) -> bool:
    return any(
        name == one.life.node and other.time(at) >= one.last
        for other in placed
        for at, name in other.life.lost
    )


def _death(one: Placed, placed: Sequence[Placed]) -> float:
    """When an agent that said nothing died, as far as the others' journals tell; else its last line."""
    signs = [other.time(at) for other in placed for at, name in other.life.lost if name == one.life.node]
    if one.life.shifts and (key := one.life.shifts[-1].key).master_port:
        for other in placed:
            same = (shift for shift in other.life.shifts if shift.key == key)
            signs += [other.time(s.stop_began_at) for s in same if s.stop_began_at is not None]
    return min((sign for sign in signs if sign >= one.last), default=one.last)


def _nodes(presences: Sequence[Presence]) -> tuple[Node, ...]:
    by_name: dict[str, list[Presence]] = {}
    for one in presences:
        by_name.setdefault(one.life.node, []).append(one)
    return tuple(
        Node(name, tuple(ones), any(one.life.shifts for one in ones))
        for name, ones in sorted(by_name.items())
    )


def _rounds(presences: Sequence[Presence]) -> tuple[Round, ...]:
    by_key: dict[RoundKey, list[NodeShift]] = {}
    for presence in presences:
        for shift in presence.life.shifts:
            by_key.setdefault(shift.key, []).append(NodeShift(presence.life.node, presence, shift))
    rounds = [_round(key, shifts) for key, shifts in by_key.items()]
    return tuple(sorted(rounds, key=lambda one: (one.number, one.closed)))


def _round(key: RoundKey, shifts: Sequence[NodeShift]) -> Round:
    places = {node: place for place, node in enumerate(shifts[0].shift.nodes)}
    ordered = sorted(shifts, key=lambda one: (places.get(one.node, len(places)), one.node))
    first = ordered[0].shift
    progressed = [t for one in ordered if (t := one.time(one.shift.progressed_at)) is not None]
    begun = [(t, one) for one in ordered if (t := one.time(one.shift.stop_began_at)) is not None]
    stopped = [t for one in ordered if (t := one.time(one.shift.stopped_at)) is not None]
    breakers = [(t, one.shift.cause) for t, one in begun if one.shift.cause not in ("order", "success")]
    return Round(
        key=key,
        closed=min(one.presence.placed.time(one.shift.closed_at) for one in ordered),
        world_size=first.world_size,
        nodes=first.nodes,
        resume_from=first.resume_from,
        resume_step=first.resume_step,
        shifts=tuple(ordered),
        progressed=max(progressed, default=None),
        stop_began=min((t for t, _ in begun), default=None),
        stopped=max(stopped, default=None),
        cause=min(breakers)[1] if breakers else next((one.shift.cause for _, one in begun), ""),
    )


def _outcome(presences: Sequence[Presence]) -> tuple[State, int | None, str]:
    """State, exit code and reason: the verdict's, if any agent has it, else the last agent's own."""
    verdicts = [one for one in presences if is_verdict(one.life.exit_code)]
    if verdicts:
        last = max(verdicts, key=lambda one: one.ended)
        return State.ENDED, last.life.exit_code, last.life.end_reason
    latest: dict[str, Presence] = {one.life.node: one for one in presences}
    states = {one.state for one in latest.values()}
    for state in (State.RUNNING, State.UNKNOWN):
        if state in states:
            return state, None, ""
    last = max(latest.values(), key=lambda one: (one.state is State.ENDED, one.ended))
    if last.state is State.ENDED:
        return State.ENDED, last.life.exit_code, last.life.end_reason
    return State.KILLED, None, ""


def _restart_count(presences: Sequence[Presence]) -> int:
    counts = [one.life.restart_count for one in presences]
    counts += [shift.restart_count for one in presences for shift in one.life.shifts]
    return max(counts, default=0)


def _notes(presences: Sequence[Presence]) -> tuple[tuple[str, float, Note], ...]:
    found = [(one.life.node, one.placed.time(note.at), note) for one in presences for note in one.life.notes]
    return tuple(sorted(found, key=lambda item: item[1]))


def _gaps(nodes: Sequence[Node], rounds: Sequence[Round]) -> list[str]:
    named = {name for one in rounds for name in one.nodes}
    missing = sorted(named - {node.name for node in nodes})
    found = []
    if missing:
        found.append(f"no journal here of {_names(missing)}: what these nodes did is not counted")
    for node in nodes:
        for one in node.presences:
            if not one.life.run_id:
                found.append(f"the journal of node {node.name} begins in the middle of the run")
            if one.is_cut:
                last = one.life.last_round
                where = "before its first round" if last is None else f"in round {last}"
                found.append(
                    f"the journal of node {node.name} ends {where}, but the node took part in later ones: "
                    "what it did there is not counted"
                )
    killed = [node.name for node in nodes if any(one.state is State.KILLED for one in node.presences)]
    if killed:
        found.append(f"the agent of {_names(killed)} was killed: its last moments are not recorded")
    return found


def _names(nodes: Sequence[str]) -> str:
    shown = ", ".join(nodes[:3]) + (f" and {len(nodes) - 3} more" if len(nodes) > 3 else "")
    return f"node {shown}" if len(nodes) == 1 else f"nodes {shown}"
