"""Reading configuration files: where the sections are found, and what is said about a bad file."""

from __future__ import annotations

from pathlib import Path

import pytest

from ftrun.launcher.config_file import ConfigError, load, parse_assignment


def _load(tmp_path: Path, text: str) -> dict[str, object]:
    path = tmp_path / "c.yaml"
    path.write_text(text, encoding="utf-8")
    return {item.key: item.value for item in load(str(path))}


@pytest.mark.parametrize(
    "text",
    [
        "fault_tolerance: {safety_factor: 2}",
        "model: {a: 1}\nrun:\n  plugins:\n    - x: 1\n    - fault_tolerance:\n        safety_factor: 2\n",
        "a: {fault_tolerance: {}}\nb: {fault_tolerance: {safety_factor: 2}}\n"
        "c: {fault_tolerance: {safety_factor: 3}}",
        "base: &b {safety_factor: 2}\nfault_tolerance: *b\n",
        "base: &b {safety_factor: 9}\nfault_tolerance: {<<: *b, safety_factor: 2}\n",
        "loop: &l [*l]\nfault_tolerance: {safety_factor: 2}",
    ],
)
def test_first_full_fault_tolerance_section_is_found_at_any_depth(tmp_path: Path, text: str) -> None:
    """Nested in mappings or lists, behind an empty one or an alias: the section is found as NVRx finds it."""
    assert _load(tmp_path, text) == {"fault_tolerance.safety_factor": 2.0}


@pytest.mark.parametrize("indent", ["", "  "])
def test_ftrun_section_is_found_at_the_top_and_beside_fault_tolerance(tmp_path: Path, indent: str) -> None:
    """`ftrun:` may stand at the top level or next to a nested `fault_tolerance:`."""
    head = "" if not indent else "job:\n"
    text = f"{head}{indent}fault_tolerance:\n{indent}ftrun:\n{indent}  standby: {{mode: off}}\n"
    assert _load(tmp_path, text) == {"ftrun.standby.mode": "off"}


def test_values_know_their_lines(tmp_path: Path) -> None:
    """Each value carries the line it stands in, for messages and --ft-show-config."""
    path = tmp_path / "c.yaml"
    path.write_text("ftrun:\n  stop:\n\n    kill_timeout: 2\n", encoding="utf-8")
    assert [(item.key, item.line) for item in load(str(path))] == [("ftrun.stop.kill_timeout", 4)]


def test_null_switches_a_timeout_off(tmp_path: Path) -> None:
    """null is a value, not the absence of one."""
    assert _load(tmp_path, "fault_tolerance: {rank_heartbeat_timeout: null}") == {
        "fault_tolerance.rank_heartbeat_timeout": None
    }


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("", [":1: found no sections", "expected fault_tolerance: or ftrun:"]),
        ("- 1\n", ["found no sections"]),
        ("fault_tolerence: {a: 1}\n", ["is fault_tolerence: meant to be fault_tolerance: ?"]),
        (
            "fault_tolerance:\n  rank_heartbeat_timout: 3\n",
            [
                ":2: unknown key 'rank_heartbeat_timout'",
                "nearest valid key is fault_tolerance.rank_heartbeat_timeout",
            ],
        ),
        (
            "ftrun:\n  stop:\n    grace: 3\n",
            [":3: unknown key 'grace' in ftrun.stop", "ftrun.stop.grace_after"],
        ),
        ("ftrun: {kill_timeout: 3}\n", ["unknown key 'kill_timeout' in ftrun", "ftrun.stop.kill_timeout"]),
        (
            "fault_tolerance:\n  safety_factor: '5'\n",
            [":2: fault_tolerance.safety_factor: found the text '5', expected a number above 0"],
        ),
        ("fault_tolerance: {safety_factor: .nan}", ["found .nan, expected a number"]),
        ("fault_tolerance: {safety_factor: }", ["found null, expected a number"]),
        ("fault_tolerance: {safety_factor: -1}", ["found -1"]),
        ("fault_tolerance: {safety_factor: [1]}", ["found a list"]),
        ("fault_tolerance: {safety_factor: !!python/object:os.x 1}", ["expected a number"]),
        ("fault_tolerance: {pci_topo_file: 2024-13-45}", ["found 2024-13-45, expected a text"]),
        (
            "fault_tolerance: {rank_termination_signal: SIGFOO}",
            ["found the text 'SIGFOO', expected a signal"],
        ),
        ("ftrun: 3\n", ["ftrun: found 3, expected a section"]),
        ("ftrun: {stop: 3}\n", ["ftrun.stop: found 3, expected a section"]),
        ("ftrun: {run_dir: a, run_dir: b}\n", ["key 'run_dir' is given twice"]),
        ("fault_tolerance: {rank_section_timeouts: {a: 1, a: 2}}", ["key 'a' is given twice"]),
        ("ftrun: {run_dir: a}\nftrun: {run_dir: b}\n", [":2: second section 'ftrun'", "line 1"]),
        ("ftrun: {run_dir: a}\nx: {fault_tolerance: {}, ftrun: {}}\n", [":2: second section 'ftrun'"]),
        ("a: [\n", [":2: not valid YAML"]),
        ("a: 1\n---\nb: 1\n", ["not valid YAML"]),
        ("a: \x00", ["not valid YAML"]),
        ("[" * 3000, ["not valid YAML: nested too deeply"]),
    ],
)
def test_bad_file_is_refused_with_place_finding_and_expectation(
    tmp_path: Path, text: str, parts: list[str]
) -> None:
    """Nothing in a bad file is dropped silently: the message has file, line, what was found and expected."""
    with pytest.raises(ConfigError) as caught:
        _load(tmp_path, text)
    message = str(caught.value)
    assert message.startswith(str(tmp_path / "c.yaml"))
    for part in parts:
        assert part in message


def test_all_that_is_wrong_is_said_at_once(tmp_path: Path) -> None:
    """Two mistakes give one message of two lines, in the order of the file."""
    with pytest.raises(ConfigError) as caught:
        _load(tmp_path, "ftrun:\n  nosuch: 1\nfault_tolerance:\n  segment: x\n")
    assert [line.split(":")[1] for line in str(caught.value).splitlines()] == ["2", "4"]


@pytest.mark.parametrize("kind", ["missing", "directory", "latin-1"])
def test_file_that_cannot_be_read_is_an_error(tmp_path: Path, kind: str) -> None:
    """A missing file, a directory and a text that is not UTF-8 are each refused by name."""
    path = tmp_path / "c.yaml"
    if kind == "directory":
        path.mkdir()
    elif kind == "latin-1":
        path.write_bytes(b"ftrun: {run_dir: \xe9}")
    with pytest.raises(ConfigError, match=r"c\.yaml: "):
        load(str(path))


@pytest.mark.parametrize(
    ("text", "key", "value"),
    [
        ("stop.kill_timeout=3", "ftrun.stop.kill_timeout", 3.0),
        ("ftrun.standby.min_free_memory = 1GiB", "ftrun.standby.min_free_memory", 1024**3),
        ("standby.mode=on", "ftrun.standby.mode", "on"),
        ("fault_tolerance.rank_heartbeat_timeout=null", "fault_tolerance.rank_heartbeat_timeout", None),
        (
            "fault_tolerance.rank_section_timeouts={a: 1}",
            "fault_tolerance.rank_section_timeouts",
            (("a", 1.0),),
        ),
        ("run_dir=/a=b", "ftrun.run_dir", "/a=b"),
    ],
)
def test_assignment_sets_a_key(text: str, key: str, value: object) -> None:
    """`ftrun.` may be left out, and the value is YAML."""
    assert parse_assignment(text) == (key, value)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("stop.kill_timeout", "expected KEY=VALUE"),
        ("stop.kil_timeout=3", "nearest valid key is ftrun.stop.kill_timeout"),
        ("stop.kill_timeout=x", "found 'x', expected a number of seconds"),
        ("stop.kill_timeout=[", "found '['"),
        ("fault_tolerance.rank_section_timeouts={a: 1, a: 2}", "given twice"),
    ],
)
def test_bad_assignment_says_what_was_expected(text: str, part: str) -> None:
    """A key that does not exist and a value of another kind are refused."""
    with pytest.raises(ConfigError) as caught:
        parse_assignment(text)
    assert part in str(caught.value)
