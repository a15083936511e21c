"""A run at one moment as lines for a terminal, in which what needs a look comes first. Pure.

The same lines are printed as they are, or with their styles by `ftrun.monitor.watch_command`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from ftrun.monitor.durations import plural, short
from ftrun.monitor.status import CheckpointStatus, NodeStatus, RankStatus, View

_LATE_S = 30.0
"""Age of the last step that is marked: what counts as a hang, the job's own limits say."""
_FEWEST_RANKS = 3
_NEWS = 6
_HEAD = f"  {'rank':>5} {'state':<10} {'step':>9} {'steps/s':>8} {'last step':>11}  in"

Span: TypeAlias = tuple[str, str]
"""Text and its style: "" for plain, else one of "good", "bad", "doubtful", "faint", "strong"."""
Line: TypeAlias = tuple[Span, ...]


@dataclass(frozen=True, slots=True)
class Size:
    """Of the place that there is."""

    width: int
    height: int | None
    """None for as much as it takes."""


def render(view: View, size: Size, tell_time: Callable[[float], str]) -> tuple[Line, ...]:
    """The lines, none longer than the width, and not more than the height.

    Args:
        view: what there is to show.
        size: of the terminal.
        tell_time: a UTC epoch as a person's time of day.
    """
    head, news = tuple(_head(view, tell_time)), tuple(_news(view, tell_time))
    room = None if size.height is None else max(0, size.height - len(head) - len(news))
    lines = (*head, *_nodes(view.nodes, room), *news)
    return tuple(_cut(line, size.width) for line in lines[: size.height])


def plain(lines: Sequence[Line]) -> str:
    """Without styles."""
    return "\n".join("".join(text for text, _ in line).rstrip() for line in lines) + "\n"


def _head(view: View, tell_time: Callable[[float], str]) -> Iterator[Line]:
    if not view.nodes:
        yield ((f"{view.run}: no agent has written a journal yet", ""),)
        return
    phases = Counter(one.phase for one in view.nodes)
    state = next(phase for phase in ("running", *phases) if phase in phases)
    script = view.nodes[0].script.rpartition("/")[2]
    yield (
        (state, _style_of(state)),
        (f"  {script}  ", ""),
        (f"{tell_time(view.ts)}  ", "faint"),
        (view.run, "strong"),
    )
    rounds = [one.round for one in view.nodes if one.round is not None]
    used, limit = _budget(view.nodes)
    spares = {name for one in view.nodes for name in one.spares}
    ranks = max(one.world_size for one in view.nodes)
    of_round = f"round {max(rounds)}: {plural(ranks, 'rank')}" if rounds else "no round yet"
    of_spares = f", {plural(len(spares), 'spare node')}" if spares else ""
    style = "bad" if limit is not None and used >= limit > 0 else "doubtful" if used else ""
    yield (
        (f"{of_round} on {plural(len(view.nodes), 'node')}{of_spares};  ", ""),
        (f"restarts {used}{'' if limit is None else f' of {limit}'}", style),
    )
    yield from _progress(view.nodes)


def _budget(nodes: Sequence[NodeStatus]) -> tuple[int, int | None]:
    limits = [one.max_restarts for one in nodes if one.max_restarts is not None]
    return max(one.restarts for one in nodes), max(limits, default=None)


def _progress(nodes: Sequence[NodeStatus]) -> Iterator[Line]:
    ranks = [rank for node in nodes for rank in node.ranks]
    steps = [rank.step for rank in ranks if rank.step is not None]
    rates = [rank.steps_per_s for rank in ranks if rank.steps_per_s is not None]
    done = f"step {max(steps)}" if steps else "no step known"
    pace = f", {max(rates):.3g} steps/s" if rates else ""
    saved = _newest([one.checkpoint for one in nodes if one.checkpoint is not None])
    # The node that knows the newest checkpoint has the least to lose.
    lost = min((one.rollback_steps for one in nodes if one.rollback_steps is not None), default=None)
    is_over = all(one.phase in ("ended", "killed") for one in nodes)
    cost = "" if lost is None or is_over else f"; a failure now costs {plural(lost, 'step')}"
    yield ((f"{done}{pace}", ""),)
    yield ((f"{saved}{cost}", ""),)


def _newest(saved: Sequence[CheckpointStatus]) -> str:
    if not saved:
        return "no checkpoint seen"
    newest = min(saved, key=lambda one: float("inf") if one.age_s is None else one.age_s)
    step = "" if newest.step is None else f" at step {newest.step}"
    age = "" if newest.age_s is None else f", {short(newest.age_s)} ago"
    return f"checkpoint{step}{age}"


def _nodes(nodes: Sequence[NodeStatus], room: int | None) -> Iterator[Line]:
    """Each with its ranks; if there is no room for all, those that need a look."""
    ranks = sum(len(one.ranks) for one in nodes)
    if room is None or ranks + 2 * len(nodes) + 1 <= room:
        for node in nodes:
            yield from _node(node, len(node.ranks))
        return
    ordered = sorted(nodes, key=lambda one: (not _needs_look(one), one.node))
    shown = [*ordered[: max(1, (room - 1) // (_FEWEST_RANKS + 2))]]
    left = room - len(shown) * 2 - (len(shown) < len(nodes))
    for place, node in enumerate(shown):
        share = max(0, left // (len(shown) - place))
        lines = tuple(_node(node, share))
        left -= max(0, len(lines) - 2)
        yield from lines
    if len(shown) < len(nodes):
        rest = ordered[len(shown) :]
        doubtful = sum(map(_needs_look, rest))
        what = f"{doubtful} of them need a look" if doubtful else "as they should be"
        yield ((f"and {plural(len(rest), 'more node')}, {what}", "doubtful" if doubtful else "faint"),)


def _needs_look(node: NodeStatus) -> bool:
    is_well = node.phase in ("running", "spare") and not node.ailments
    return not is_well or any(map(_is_doubtful, node.ranks))


def _is_doubtful(rank: RankStatus) -> bool:
    return rank.state != "training" or (rank.progress_age_s or 0.0) > _LATE_S


def _node(node: NodeStatus, most_ranks: int) -> Iterator[Line]:
    ended = f" (exit code {node.exit_code})" if node.exit_code is not None else ""
    name: Line = ((f"node {node.node}  ", "strong"), (f"{node.phase}{ended}", _style_of(node.phase)))
    if node.phase in ("ended", "killed"):  # what its journal says of ranks and standbys holds no more
        yield name
        return
    standbys = f"{plural(node.standbys_ready, 'standby', 'standbys')} ready"
    loading = f", {node.standbys_loading} loading" if node.standbys_loading else ""
    far = "" if node.is_live else ", journal only"
    yield (*name, (f"{far}  {standbys}{loading}", "faint"), _health(node))
    if not node.ranks:
        return
    yield ((_HEAD, "faint"),)
    if len(node.ranks) <= most_ranks:
        shown: Sequence[RankStatus] = node.ranks
    else:
        first = sorted(node.ranks, key=lambda one: (not _is_doubtful(one), -(one.progress_age_s or 0.0)))
        shown = sorted(first[: max(0, most_ranks - 1)], key=lambda one: one.rank)
    yield from map(_rank, shown)
    if len(shown) < len(node.ranks):
        yield ((f"  and {plural(len(node.ranks) - len(shown), 'more rank')}", "faint"),)


def _health(node: NodeStatus) -> Span:
    """The worst that its checks have found."""
    worst = next((one for one in node.ailments if one.status == "unhealthy"), None)
    worst = worst or next(iter(node.ailments), None)
    if worst is None:
        return "  healthy", "good"
    style = "bad" if worst.status == "unhealthy" else "doubtful"
    return f"  {worst.subject}: {worst.check} {worst.status}", style


def _rank(rank: RankStatus) -> Line:
    is_late = (rank.progress_age_s or 0.0) > _LATE_S
    state = (
        "good" if rank.state in ("training", "exit 0") else "doubtful" if rank.state == "starting" else "bad"
    )
    step = "-" if rank.step is None else str(rank.step)
    rate = "-" if rank.steps_per_s is None else f"{rank.steps_per_s:.3g}"
    age = "-" if rank.progress_age_s is None else f"{short(rank.progress_age_s)}"
    return (
        (f"  {rank.rank:>5} ", ""),
        (f"{rank.state:<10}", state),
        (f" {step:>9} {rate:>8} ", ""),
        (f"{age:>11}", "doubtful" if is_late else ""),
        (f"  {rank.section}", ""),
    )


def _news(view: View, tell_time: Callable[[float], str]) -> Iterator[Line]:
    found = {(one.ts, one.node, one.text) for node in view.nodes for one in node.news}
    is_one = len(view.nodes) == 1
    for ts, node, text in sorted(found)[-_NEWS:]:
        yield ((f"{tell_time(ts)} ", "faint"), ("" if is_one else f"{node} ", "faint"), (text, ""))


def _style_of(phase: str) -> str:
    return {"running": "good", "killed": "bad", "ended": "", "spare": ""}.get(phase, "doubtful")


def _cut(line: Line, width: int) -> Line:
    """To the width, with a sign that there was more."""
    if sum(len(text) for text, _ in line) <= width:
        return line
    cut: list[Span] = []
    left = width - 1
    for text, style in line:
        cut.append((text[:left], style))
        left -= len(text[:left])
    return (*cut, ("…", "faint"))
