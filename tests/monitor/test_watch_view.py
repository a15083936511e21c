"""A run at one moment as lines for a terminal."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftrun.monitor import watch_doc
from ftrun.monitor.status import AilmentStatus, CheckpointStatus, NewsStatus, NodeStatus, RankStatus, View
from ftrun.monitor.watch_view import Size, plain, render


def rank(number: int, state: str = "training", age_s: float | None = 0.5, section: str = "") -> RankStatus:
    """One that trains, unless told otherwise."""
    return RankStatus(number, number, 1000 + number, state, 1234, 34, 3.5, age_s, section)


NODE = NodeStatus(
    schema=1, run_id="r1", node="gpu-a", script="/home/me/train.py", phase="running", exit_code=None,
    end_reason="", round=2, world_size=4, nodes=("gpu-a", "gpu-b"), spares=(), restarts=2, max_restarts=5,
    standbys_ready=2, standbys_loading=0, ailments=(), is_live=True, ranks=(rank(0), rank(1)),
    checkpoint=CheckpointStatus(1200, "/c/step-1200", 48.0), rollback_steps=34,
    news=(NewsStatus(100.0, "gpu-a", "restart 2 of 5: rank 1 was killed"),),
)  # fmt: skip


def shown(*nodes: NodeStatus, width: int = 80, height: int | None = None) -> list[str]:
    """What a person sees."""
    view = View(1, "job7", "/runs/job7", 160.0, nodes)
    return plain(render(view, Size(width, height), lambda ts: f"t{ts:.0f}")).splitlines()


def test_first_lines_have_the_whole_job() -> None:
    """State, round, restarts, step, what a failure would cost."""
    assert shown(NODE)[:8] == [
        "running  train.py  t160  job7",
        "round 2: 4 ranks on 1 node;  restarts 2 of 5",
        "step 1234, 3.5 steps/s",
        "checkpoint at step 1200, 48 s ago; a failure now costs 34 steps",
        "node gpu-a  running  2 standbys ready  healthy",
        "   rank state           step  steps/s   last step  in",
        "      0 training        1234      3.5      0.50 s",
        "      1 training        1234      3.5      0.50 s",
    ]
    assert shown(NODE)[-1] == "t100 restart 2 of 5: rank 1 was killed"


def test_run_without_a_journal_yet() -> None:
    """It has only just begun."""
    assert shown() == ["job7: no agent has written a journal yet"]


def test_ailment_and_section_are_shown() -> None:
    """The worst ailment, and what each rank is in."""
    ailments = (
        AilmentStatus("gpu.pcie", "gpu 1", "degraded", "x8"),
        AilmentStatus("gpu.ecc", "gpu 3", "unhealthy", "9 errors"),
    )
    lines = shown(replace(NODE, ailments=ailments, ranks=(rank(0, section="save"),)))
    assert "node gpu-a  running  2 standbys ready  gpu 3: gpu.ecc unhealthy" in lines
    assert any(line.endswith("  save") for line in lines)


def test_node_on_another_machine_is_marked() -> None:
    """Its ranks are as the journal has them."""
    far = replace(NODE, node="gpu-b", is_live=False)
    assert any("running, journal only" in line for line in shown(NODE, far))


def test_what_needs_a_look_is_kept_when_there_is_no_room() -> None:
    """A dead rank among many, and a node of many."""
    many = tuple(rank(number) for number in range(64))
    dead = replace(NODE, ranks=(*many, rank(64, "SIGKILL"), rank(65, age_s=300.0)))
    lines = shown(dead, height=15)
    assert len(lines) == 15
    assert any(" 64 SIGKILL" in line for line in lines)
    assert any(" 65 training" in line for line in lines)
    nodes = [replace(NODE, node=f"n{number:04}") for number in range(1000)]
    nodes[777] = replace(nodes[777], phase="killed")
    lines = shown(*nodes, height=24)
    assert len(lines) <= 24
    assert any("n0777  killed" in line for line in lines)
    assert any("more nodes, as they should be" in line for line in lines)


@pytest.mark.parametrize(
    ("phase", "code", "said"), [("ended", 93, "ended (exit code 93)"), ("killed", None, "killed")]
)
def test_node_whose_agent_is_gone(phase: str, code: int | None, said: str) -> None:
    """Its ranks and standbys are gone with it."""
    lines = shown(replace(NODE, phase=phase, exit_code=code))
    assert f"node gpu-a  {said}" in lines
    assert not any("training" in line or "costs" in line or "standbys" in line for line in lines)


RANKS = st.builds(
    rank,
    st.integers(0, 99999),
    st.sampled_from(["training", "starting", "SIGSEGV", "exit 255", "exit 0"]),
    st.none() | st.floats(0, 1e6),
    st.text(max_size=60).filter(str.isprintable),
)
NODES = st.builds(
    lambda name, phase, ranks, live, code, text: replace(
        NODE, node=name, phase=phase, ranks=tuple(ranks), is_live=live, exit_code=code,
        news=(NewsStatus(1.0, name, text),),
    ),
    st.text("abc-", min_size=1, max_size=40),
    st.sampled_from(["joining", "spare", "running", "stopping", "ended", "killed"]),
    st.lists(RANKS, max_size=20),
    st.booleans(),
    st.none() | st.integers(0, 255),
    st.text(max_size=300).filter(str.isprintable),
)  # fmt: skip


@given(st.lists(NODES, max_size=12), st.integers(20, 200), st.none() | st.integers(4, 60))
def test_it_always_fits(nodes: list[NodeStatus], width: int, height: int | None) -> None:
    """Into any terminal, whatever names there are."""
    lines = render(View(1, "r", "/r", 1.0, tuple(nodes)), Size(width, height), str)
    assert all(sum(len(text) for text, _ in line) <= width for line in lines)
    assert height is None or len(lines) <= height


def test_page_ends_with_the_generated_forms() -> None:
    """Exactly as `python -m ftrun.monitor.watch_doc` prints them."""
    assert (Path(__file__).parents[2] / "docs/watch.md").read_text().endswith(watch_doc.render())


def test_example_of_the_page_is_what_would_be_shown() -> None:
    """The lines of the view, made from the same values."""
    page = (Path(__file__).parents[2] / "docs/watch.md").read_text()
    [example] = re.findall(r"\$ ftctl watch --once\n(.*?)```", page, re.DOTALL)
    ages = (0.21, 0.2, 0.21, 0.22)
    ranks = tuple(
        rank(number, age_s=age, section="eval" if number == 1 else "") for number, age in enumerate(ages)
    )
    news = (
        NewsStatus(1.0, "gpu-a", "round 2: 4 ranks, store at 127.0.0.1:43207, resuming from /ckpt/1100"),
        NewsStatus(
            2.0, "gpu-a", "back in training: round 2, 0.19 s after the failure was seen (stop 0.02, start)"
        ),
    )
    node = replace(NODE, ranks=ranks, news=news, standbys_ready=4)
    view = View(1, "20261130-124023-7c1e", "", 9.0, (node,))
    times = {9.0: "12:41:07", 1.0: "12:40:31", 2.0: "12:40:31"}
    assert plain(render(view, Size(80, None), times.__getitem__)) == example
