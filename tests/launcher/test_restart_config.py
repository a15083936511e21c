"""The `ftrun.restart` section: what it accepts, and where it says that something is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from ftrun.launcher.assembly import restart_of, rules_of
from ftrun.launcher.config import Config, FtrunConfig, LaunchOptions
from ftrun.launcher.config_file import ConfigError, load, parse_assignment
from ftrun.launcher.config_show import render_config
from ftrun.launcher.nodes import resolve_rendezvous
from ftrun.launcher.options import parse
from ftrun.launcher.restart_config import LONGEST_WINDOW, KindRule, RestartConfig

KINDS = (
    ("cuda_oom", (("max", 1),)),
    ("preempted", (("counts", False),)),
    ("nccl_timeout", (("max", 5), ("delay", 10.0))),
)


def read(tmp_path: Path, lines: str) -> dict[str, object]:
    """The section with these lines, by key."""
    path = tmp_path / "c.yaml"
    path.write_text(f"ftrun:\n  restart:\n    {lines}\n")
    return {item.key.removeprefix("ftrun.restart."): item.value for item in load(str(path))}


def test_overrides_of_kinds_are_read(tmp_path: Path) -> None:
    """As the documentation writes them."""
    text = "kinds: {cuda_oom: {max: 1}, preempted: {counts: false}, nccl_timeout: {max: 5, delay: 10}}"
    assert read(tmp_path, text) == {"kinds": KINDS}
    assert parse_assignment(text.replace("kinds: ", "restart.kinds=")) == ("ftrun.restart.kinds", KINDS)
    assert RestartConfig(kinds=KINDS).rule_of("nccl_timeout") == KindRule(5, True, 10.0)


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (
            "kinds:\n      cuda_om: {max: 1}",
            ":4: unknown kind of failure 'cuda_om' in ftrun.restart.kinds, the nearest is cuda_oom",
        ),
        (
            "kinds:\n      cuda_oom:\n        maxx: 1",
            ":5: unknown key 'maxx' in ftrun.restart.kinds.cuda_oom, the nearest is max",
        ),
        (
            "kinds:\n      cuda_oom:\n        max: -1",
            ":5: ftrun.restart.kinds.cuda_oom: max: found -1, expected a whole number, 0 or more",
        ),
        (
            "kinds:\n      preempted:\n        counts: 0",
            ":5: ftrun.restart.kinds.preempted: counts: found 0, expected true or false",
        ),
        (
            "kinds:\n      preempted: 3",
            ":4: ftrun.restart.kinds: preempted: found 3, expected a mapping with some of max, counts and d",
        ),
        ("kinds: [killed]", ":3: ftrun.restart.kinds: found a list, expected a mapping from kinds of fail"),
        ("kinds: {killed: {max: 1, max: 2}}", "key 'max' is given twice"),
        (
            "max_in_windw: 3",
            ":3: unknown key 'max_in_windw' in ftrun.restart, the nearest valid key is ftrun",
        ),
        (f"max_in_window: {LONGEST_WINDOW + 1}", "found 65, expected a whole number from 0 to 64"),
        ("window: 0", ":3: ftrun.restart.window: found 0, expected a number of seconds above 0"),
        ("progress: old", ":3: ftrun.restart.progress: found the text 'old', expected one of new, any"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(tmp_path: Path, lines: str, said: str) -> None:
    """And with the nearest name, where there is one; once."""
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, lines)
    assert said in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_shown_section_reads_back_as_it_was(tmp_path: Path) -> None:
    """Mappings within mappings too."""
    restart = RestartConfig(max_no_progress=7, progress="any", kinds=KINDS)
    path = tmp_path / "shown.yaml"
    path.write_text(render_config(Config(LaunchOptions("x.py"), ftrun=FtrunConfig(restart=restart))))
    shown = {item.key: item.value for item in load(str(path))}
    assert shown["ftrun.restart.kinds"] == KINDS
    assert (shown["ftrun.restart.max_no_progress"], shown["ftrun.restart.progress"]) == (7, "any")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("", 5),
        ("--ft-max-no-progress-cycles 3", 3),
        ("--ft-max-no-progress-cycles 8", 8),
        ("--ft-max-no-progress-cycles 8 --ft-set restart.max_no_progress=2", 2),
    ],
)
def test_rounds_without_progress_can_be_limited_in_nvrxs_words(line: str, expected: int) -> None:
    """A value that is given counts, also if it is the default there; ftrun's own key wins."""
    assert restart_of(parse([*line.split(), "x.py"], {})).max_no_progress == expected


def test_least_progress_is_nvrxs_number_of_iterations() -> None:
    """One step, if nothing is said."""
    for line, expected in (("", 1), ("--ft-min-progress-iterations 50", 50)):
        config = parse([*line.split(), "x.py"], {})
        assert rules_of(resolve_rendezvous(config, {}), config).min_progress == expected
