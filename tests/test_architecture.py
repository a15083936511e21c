"""The house rules that a machine can hold, as tests over the sources of the whole tree."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("launcher", "monitor", "healthchecks", "configs")
OTHERS = ("tests", "examples", "benchmarks")
MAX_MODULE_LINES = 400
MAX_FUNCTION_LINES = 50
FORBIDDEN_NAMES = {"utils", "common", "helpers", "misc"}

PURE = {
    "launcher": (
        "model config values fault_tolerance option_table nvrx_options launch_options streams output_lines "
        "environment entry ranks rendezvous policy recovery preload summary checkpoint_choice numa_choice "
        "config_show exit_codes"
    ),
    "monitor": "incident events signatures diagnosis",
}
"""Modules that hold decisions; so does every other whose docstring calls it pure."""
IMPURE_IMPORTS = {"time", "os", "socket", "subprocess", "threading", "random", "torch"}
IMPURE_CALLS = {"open", "print", "input"}

OWNERS = {
    "pynvml": {"healthchecks/nvml.py"},
    "yaml": {"launcher/config_file.py"},
    "structlog": {"monitor/log.py"},
    # Extras too: metrics and the live view.
    "prometheus_client": {"monitor/exporter.py"},
    "rich": {"monitor/watch_command.py"},
    "click": {
        "launcher/command_line.py",
        "launcher/check_command.py",
        "monitor/ctl.py",
        "monitor/ctl_output.py",
        "monitor/compare_command.py",
        "monitor/report_command.py",
        "monitor/runs_command.py",
        "monitor/show_command.py",
        "monitor/timeouts_command.py",
        "monitor/watch_command.py",
    },
    # Two read a format of their own, and only with an allow-list; the third only writes.
    "pickle": {"launcher/checkpoint_metadata.py", "monitor/pickles.py", "monitor/workload_requests.py"},
    "nvidia_resiliency_ext": set[str](),
    # The children of health checks have deadlines that no process of a round has, and may outlive SIGKILL.
    "subprocess": {"launcher/process.py", "healthchecks/probe_process.py", "healthchecks/children.py"},
    "multiprocessing": set[str](),
    # An extra: only the web page of a report needs them, and only when it is asked for.
    "jinja2": {"monitor/report_html.py"},
    "vl_convert": {"monitor/report_html.py"},
    "torch": {
        "launcher/store.py",
        "launcher/store_client.py",
        "launcher/store_external.py",
        "launcher/store_tcp.py",
        "launcher/slots.py",
        "launcher/elastic_events.py",
        "launcher/logs_plugin.py",
    },
}
"""Outside things, and the modules of the packages that may import them at run time."""

MAY_IMPORT = {
    "launcher": {"launcher", "monitor", "healthchecks", "configs"},
    "monitor": {"monitor", "healthchecks"},
    "healthchecks": {"healthchecks"},
    "configs": {"configs"},
}
"""Layers: imports of ours go downwards only."""

BROAD_EXCEPTS = {
    "launcher/cli.py": 1,  # the agent's top frame: everything gets an exit code and a message
    "healthchecks/judging.py": 1,  # the check runner: a check that fails says nothing of the node
    "healthchecks/lane.py": 1,
    "monitor/exporter.py": 1,  # the exporter: metrics that fail are told of, and tried again
    "launcher/worker_main.py": 1,  # what a preloaded library may raise is unknown, and told to the agent
}

PRIVATE_NAMES = {
    # Without it, `-m` would not be what the interpreter does.
    ("launcher/script_runner.py", "runpy._run_module_as_main"),
}


COMMON_PLACES = {"/", "/home", "/media", "/mnt", "/opt", "/srv", "/tmp", "/usr", "/var"}  # hier(7)


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def modules(*directories: str) -> list[Path]:
    """Python files below these directories of the repository."""
    return sorted(path for name in directories for path in (ROOT / name).rglob("*.py"))


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def nodes_at_run_time(node: ast.AST) -> Iterator[ast.AST]:
    """All nodes but those that only a type checker sees."""
    for child in ast.iter_child_nodes(node):
        is_for_types = isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING"
        if not is_for_types:
            yield child
            yield from nodes_at_run_time(child)


def imports_of(path: Path) -> set[str]:
    """Dotted names of what a module imports at run time; `from a import b` gives both a and a.b."""
    found: set[str] = set()
    for node in nodes_at_run_time(tree_of(path)):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module is not None:
            found.add(node.module)
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
    return found


def packages_of(path: Path) -> set[str]:
    """Top-level packages that a module imports at run time."""
    return {name.partition(".")[0] for name in imports_of(path)}


def is_pure(path: Path) -> bool:
    package, name = path.parent.name, path.stem
    docstring = ast.get_docstring(tree_of(path)) or ""
    return name in PURE.get(package, "").split() or re.search(r"\bPure\b", docstring) is not None


def calls_of(path: Path) -> Iterator[tuple[int, str]]:
    """Line and dotted name of each call."""
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Call) and isinstance(node.func, (ast.Name, ast.Attribute)):
            yield node.lineno, ast.unparse(node.func)


def test_modules_are_small() -> None:
    """At most 400 lines each; most are far below. Tests are lists and may be longer."""
    lengths = {name_of(path): path.read_text().count("\n") for path in modules(*PACKAGES, "examples")}
    assert {name: count for name, count in lengths.items() if count > MAX_MODULE_LINES} == {}


def test_functions_are_small() -> None:
    """At most 50 lines each, docstring included."""
    too_long = [
        f"{name_of(path)}:{node.lineno} {node.name}: {length} lines"
        for path in modules(*PACKAGES, *OTHERS)
        for node in ast.walk(tree_of(path))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        and (length := (node.end_lineno or 0) - node.lineno + 1) > MAX_FUNCTION_LINES
    ]
    assert too_long == []


def test_no_module_is_a_drawer() -> None:
    """A name like "utils" says nothing of what belongs into a module."""
    assert [name_of(path) for path in modules(*PACKAGES) if path.stem in FORBIDDEN_NAMES] == []


def test_modules_say_what_they_are_for() -> None:
    """Each begins with its one responsibility."""
    assert [name_of(path) for path in modules(*PACKAGES) if not ast.get_docstring(tree_of(path))] == []


def test_pure_modules_exist() -> None:
    """A module that was renamed does not escape from the list."""
    listed = {f"{package}/{name}.py" for package, names in PURE.items() for name in names.split()}
    assert {name for name in listed if not (ROOT / name).exists()} == set()


@pytest.mark.parametrize("path", [p for p in modules(*PACKAGES) if is_pure(p)], ids=name_of)
def test_pure_module_has_no_clock_and_no_side_effect(path: Path) -> None:
    """Decisions take time and state as arguments, so that any history can be replayed."""
    assert packages_of(path) & IMPURE_IMPORTS == set()
    assert [(line, name) for line, name in calls_of(path) if name in IMPURE_CALLS] == []


@pytest.mark.parametrize("package", OWNERS)
def test_outside_thing_has_its_owners(package: str) -> None:
    """What is awkward about another package is known in one place."""
    users = {name_of(path) for path in modules(*PACKAGES) if package in packages_of(path)}
    assert users - OWNERS[package] == set()


def test_nobody_forks_by_hand() -> None:
    """Processes are made in one way; a fork of a process with threads is none."""
    makers = re.compile(r"os\.(fork|forkpty|system|popen|posix_spawnp?|spawn\w+)")
    found = [
        f"{name_of(path)}:{line} {name}"
        for path in modules(*PACKAGES)
        for line, name in calls_of(path)
        if makers.fullmatch(name)
    ]
    assert found == []


@pytest.mark.parametrize("package", PACKAGES)
def test_imports_go_down_the_layers(package: str) -> None:
    """launcher uses monitor, monitor uses healthchecks, and never the other way round."""
    found = [
        f"{name_of(path)} imports {name}"
        for path in modules(package)
        for name in imports_of(path)
        if name.startswith("ftrun.") and name.split(".")[1] not in MAY_IMPORT[package]
    ]
    assert found == []


def is_broad(handler: ast.ExceptHandler) -> bool:
    caught = [] if handler.type is None else ast.walk(handler.type)
    names = {node.id for node in caught if isinstance(node, ast.Name)}
    return handler.type is None or bool(names & {"Exception", "BaseException"})


def test_broad_excepts_are_at_the_boundaries() -> None:
    """Anywhere else an exception that nobody expected is a bug to be seen."""
    found: dict[str, int] = {}
    for path in modules(*PACKAGES, *OTHERS):
        handlers = [n for n in ast.walk(tree_of(path)) if isinstance(n, ast.ExceptHandler) and is_broad(n)]
        if handlers:
            found[name_of(path)] = len(handlers)
    assert found == BROAD_EXCEPTS


def test_private_names_of_others_are_not_touched() -> None:
    """They change without notice."""
    found = set()
    for path in modules(*PACKAGES):
        foreign = {name.partition(".")[0] for name in imports_of(path)} - {"ftrun", "__future__"}
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.Attribute) and re.match(r"_(?!_)", node.attr):
                whole = ast.unparse(node)
                if whole.partition(".")[0] in foreign and whole != "os._exit":
                    found.add((name_of(path), whole))
    assert found == PRIVATE_NAMES


def test_tests_do_not_sleep() -> None:
    """They wait for a condition with a deadline; only the programs that they start may sleep."""
    programs = ROOT / "tests" / "support"
    found = [
        f"{name_of(path)}:{line}"
        for path in modules("tests")
        if programs not in path.parents
        for line, name in calls_of(path)
        if name in ("time.sleep", "sleep")
    ]
    assert found == []


@pytest.mark.parametrize("package", PACKAGES)
def test_package_is_typed(package: str) -> None:
    """Users' type checkers see our types."""
    assert (ROOT / package / "py.typed").exists()


def texts() -> Iterator[Path]:
    """All files of the tree that people write."""
    for path in ROOT.iterdir():
        if path.is_file():
            yield path
    for name in (*PACKAGES, *OTHERS, "docs", ".ci"):
        yield from (p for p in (ROOT / name).rglob("*") if p.is_file() and "__pycache__" not in p.parts)


def test_no_path_of_this_machine_is_in_the_tree() -> None:
    """What runs here must run in a fresh clone elsewhere."""
    places = {str(ROOT), str(ROOT.parent), str(Path.home())} - COMMON_PLACES
    if sys.prefix != sys.base_prefix:
        places.add(sys.prefix)
    pattern = re.compile("|".join(rf"(?<![\w.]){re.escape(place)}(?![\w.-])" for place in sorted(places)))
    found = [name_of(path) for path in texts() if pattern.search(path.read_text(errors="replace"))]
    assert found == []
