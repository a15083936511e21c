"""What the pages say holds: links lead somewhere, commands run, files are accepted, lists are whole.

Commands that need a scheduler run on stand-ins of it; `tests.test_docs` has those and more pages.
"""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from ftrun.launcher import exit_codes
from ftrun.launcher.config import DEFAULT_KEYS
from ftrun.launcher.ctl import main
from ftrun.launcher.option_table import Group
from ftrun.launcher.options import ALL_OPTIONS, parse
from ftrun.monitor import client
from tests.support.nodes import free_port
from tests.test_docs import SLURM, finish, run

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
CLUSTER = "slurm-kubernetes.md"
DIES = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"


def name_of(page: Path) -> str:
    return page.name


def blocks(page: str, language: str) -> list[str]:
    """The page's blocks in a language, in their order."""
    path = ROOT / page if page == "README.md" else ROOT / "docs" / page
    return re.findall(rf"^```{language}\n(.*?)^```$", path.read_text(), re.MULTILINE | re.DOTALL)


def anchors(page: Path) -> set[str]:
    """Of its headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    """To a file of this repository, and to a heading in it."""
    for target in re.findall(r"\]\((?!https?://)([^)]*)\)", page.read_text()):
        name, _, anchor = target.partition("#")
        path = page.parent / name if name else page
        assert path.exists(), target
        assert not anchor or anchor in anchors(path), target


def test_readme_leads_to_every_page() -> None:
    """Whoever looks for something begins there."""
    linked = set(re.findall(r"\(docs/([^)#]*\.md)", (ROOT / "README.md").read_text()))
    assert linked == {page.name for page in PAGES[1:]}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_configuration_is_accepted(page: Path, tmp_path: Path) -> None:
    """Each example of a file is one; what is no configuration is a manifest, or what Prometheus reads."""
    for block in blocks(page.name, "yaml"):
        documents = list(yaml.safe_load_all(block))
        if set(documents[0]) <= {"fault_tolerance", "ftrun"}:
            path = tmp_path / "ft.yaml"
            path.write_text(block)
            parse(["--ft-config", str(path), "train.py"], {})
        else:
            assert all({"apiVersion", "scrape_configs"} & set(one) for one in documents)


def run_file(name: str, text: str, directory: Path, **variables: str) -> tuple[int, str]:
    """Run it as a program of its own; its exit code and all that it wrote."""
    (directory / name).write_text(text)
    started = run(f"exec bash {name}", directory, **variables)
    said, _ = started.communicate(timeout=150)
    return started.returncode, said


def test_commands_to_begin_with(tmp_path: Path) -> None:
    """Those on the first screen: the demonstration is one of make's, the other trains."""
    [block] = blocks("README.md", "sh")
    demo, train = block.splitlines()
    command = [*shlex.split(demo, comments=True), "--dry-run", "-C", str(ROOT)]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    assert "examples/demo.py" in shown.stdout
    assert len(finish(run(train, tmp_path))) == 2


def test_commands_that_replace_torchrun(tmp_path: Path) -> None:
    """One shows what it would do, the other gives the script its checkpoint."""
    show, resume = blocks("replace-torchrun.md", "sh")
    started = run(show, tmp_path)
    said, _ = started.communicate(timeout=150)
    assert started.returncode == 0, said
    assert "dir: /data/checkpoints  # command line --ft-checkpoint-dir" in said
    program = "import sys, os; os.write(1, f'rank says {sys.argv[1:]}\\n'.encode())"
    started = run(f"echo {shlex.quote(program)} > train.py\n{resume}", tmp_path)
    assert finish(started) == ["rank says ['--resume', '']"] * 2


def table_of(page: str, heading: str) -> list[str]:
    """First cells of the table below a heading."""
    text = (ROOT / "docs" / page).read_text()
    part = text[text.index(f"\n## {heading}\n") + 4 :]
    part = part.partition("\n## ")[0]
    return [row.replace("\\|", "/").split("|")[1] for row in part.splitlines() if row.startswith("| `")]


def test_list_of_options_is_whole() -> None:
    """All that are ftrun's own, under any of their names, and none that is not there."""
    told = {
        name for cell in table_of("replace-torchrun.md", "Options of ftrun itself") for name in names_in(cell)
    }
    known = {name for spec in ALL_OPTIONS for name in spec.names}
    assert told <= known
    own = [spec for spec in ALL_OPTIONS if spec.group is Group.FTRUN]
    assert [spec.names for spec in own if not told & set(spec.names)] == []


def names_in(cell: str) -> list[str]:
    return re.findall(r"--[a-z-]+", cell)


def test_list_of_what_a_script_may_say_is_whole() -> None:
    """Each function that `ftrun.monitor.client` offers."""
    cells = table_of("replace-torchrun.md", "What a script may say")
    told = {re.sub(r".*?(\w+)\(.*", r"\1", cell).strip() for cell in cells}
    own = {
        name for name, value in vars(client).items() if getattr(value, "__module__", "") == client.__name__
    }
    assert told == {name for name in own if not name.startswith("_")} | {"heartbeat"}


def test_list_of_exit_codes_is_whole() -> None:
    """In the order of the codes."""
    text = (ROOT / "docs" / CLUSTER).read_text()
    told = re.findall(r"^\| (\d+)", text, re.MULTILINE)
    assert [int(code) for code in told] == [*sorted(exit_codes.RESERVED), 128]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "code", "is_requeued"),
    [
        pytest.param("pass", 0, False, id="finished"),
        pytest.param(DIES, 1, True, id="used up its restarts"),
        pytest.param("import no_such_module", 93, False, id="cannot get better"),
        pytest.param("raise SystemExit(7)", 7, False, id="its own code"),
    ],
)
def test_batch_script_of_slurm(tmp_path: Path, script: str, code: int, is_requeued: bool) -> None:
    """It goes into the queue again only after what another try can cure."""
    [block] = blocks(CLUSTER, "bash")
    block = block.replace("29400", str(free_port())).replace("--nproc-per-node 8", "--nproc-per-node 1")
    block = block.replace("/data/checkpoints", "checkpoints").replace(" train.py", " job.py")
    (tmp_path / "job.py").write_text(script)
    ended, said = run_file("job.sh", block, tmp_path, **SLURM, PET_MAX_RESTARTS="1")
    assert ended == code, said
    assert (tmp_path / "requeued").exists() == is_requeued
    assert not is_requeued or (tmp_path / "requeued").read_text() == "77\n"


OWN_CODE = """#!/bin/sh
set -- $CODES
shift "$SLURM_PROCID"
[ "$1" = lost ] && kill -9 "$PPID"
exit "$1"
"""


@pytest.mark.parametrize(
    ("codes", "ended", "is_requeued"),
    [
        pytest.param("0 94", 0, False, id="finished without the node that was left out"),
        pytest.param("94 0", 0, False, id="finished, though the first was left out"),
        pytest.param("93 94", 94, False, id="cannot get better, and a node was left out"),
        pytest.param("2 95", 95, False, id="bad command line on one node"),
        pytest.param("7 94", 94, False, id="its own code, and a node was left out"),
        pytest.param("1 94", 94, True, id="failed without the node that was left out"),
        pytest.param("95 95", 95, True, id="did not find each other"),
        pytest.param("143 143", 143, False, id="told to stop"),
        pytest.param("lost 0", 0, False, id="finished without the node that was lost"),
        pytest.param("lost 95", 137, True, id="not enough without the node that was lost"),
        pytest.param("lost lost", 137, False, id="nothing is known"),
    ],
)
def test_batch_script_of_slurm_looks_at_each_code(
    tmp_path: Path, codes: str, ended: int, is_requeued: bool
) -> None:
    """What one task ends with may not hide what another has: these are ends of ftrun on two nodes."""
    [block] = blocks(CLUSTER, "bash")
    (tmp_path / "own").mkdir()
    (tmp_path / "own/ftrun").write_text(OWN_CODE)
    (tmp_path / "own/ftrun").chmod(0o755)
    path = f"{tmp_path / 'own'}:{tmp_path / 'bin'}:/usr/bin:/bin"
    code, said = run_file("job.sh", block, tmp_path, **SLURM, PATH=path, CODES=codes)
    assert (code, (tmp_path / "requeued").exists()) == (ended, is_requeued), said


def test_task_of_slurm_outlives_its_signals(tmp_path: Path) -> None:
    """Slurm sends them to all processes of a task: the shell is still there to write how ftrun ended."""
    [block] = blocks(CLUSTER, "bash")
    (tmp_path / "own").mkdir()
    (tmp_path / "own/ftrun").write_text('#!/bin/sh\nkill -USR1 "$PPID"\nkill -TERM "$PPID"\nkill -TERM $$\n')
    (tmp_path / "own/ftrun").chmod(0o755)
    path = f"{tmp_path / 'own'}:{tmp_path / 'bin'}:/usr/bin:/bin"
    code, said = run_file("job.sh", block, tmp_path, **SLURM, PATH=path)
    assert code == 143, said
    left = sorted((tmp_path / "codes").glob("77.0/*"))
    assert [(one.name, one.read_text()) for one in left] == [("0", "143\n"), ("1", "143\n")]


def manifests() -> list[Any]:
    [block] = [one for one in blocks(CLUSTER, "yaml") if "apiVersion" in one]
    return list(yaml.safe_load_all(block))


@pytest.mark.slow
def test_command_of_the_pods(tmp_path: Path) -> None:
    """Two pods of the Indexed Job find each other by the Service's name."""
    service, job = manifests()
    container = job["spec"]["template"]["spec"]["containers"][0]
    index = "train-0.train"
    assert f"{job['metadata']['name']}-0.{service['metadata']['name']}" == index
    assert job["spec"]["template"]["spec"]["subdomain"] == service["metadata"]["name"]
    command = shlex.join(container["command"]).replace("=8", "=1")
    command = command.replace(f"{index}:29400", f"127.0.0.1:{free_port()}").replace("/data/", "")
    pods = [{"JOB_COMPLETION_INDEX": f"{n}", "HOSTNAME": f"train-{n}"} for n in (1, 0)]
    said = finish(*(run(command, tmp_path, **variables) for variables in pods))
    assert said == ["rank 0 of 2 in train", "rank 1 of 2 in train"]


def test_pod_failure_policy_knows_every_code() -> None:
    """What cannot get better ends the job, the rest makes the pod anew."""
    job = manifests()[1]
    rules = job["spec"]["podFailurePolicy"]["rules"]
    values = {rule["action"]: set(rule["onExitCodes"]["values"]) for rule in rules if "onExitCodes" in rule}
    assert values["FailJob"] == {exit_codes.USAGE, exit_codes.FUTILE}
    rest = exit_codes.RESERVED - values["FailJob"] - {exit_codes.OK}
    assert values["Count"] == rest | {exit_codes.of_signal(15)}
    name = job["spec"]["template"]["spec"]["containers"][0]["name"]
    assert {rule["onExitCodes"]["containerName"] for rule in rules if "onExitCodes" in rule} == {name}


def ftctl_commands(text: str) -> list[list[str]]:
    """Commands of `ftctl` in a text, in line or in blocks, as words."""
    found = re.findall(r"`(ftctl [^`\n]*)`", text) + re.findall(r"^(?:\$ )?(ftctl .*)$", text, re.MULTILINE)
    return [shlex.split(command, comments=True)[1:] for command in found]


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_options_that_are_named_are_there(page: Path) -> None:
    """Those of `ftctl`'s commands, and ftrun's own, wherever a page speaks of them."""
    text = page.read_text()
    known = {name for spec in ALL_OPTIONS for name in spec.names}
    assert set(re.findall(r"(?<![\w-])--ft-[a-z-]*[a-z]", text)) <= known
    for command, *words in ftctl_commands(text):
        assert command in main.commands
        options = {name for parameter in main.commands[command].params for name in parameter.opts}
        given = {word.partition("=")[0] for word in words if word.startswith("--")}
        assert given <= options | {"--help"}, (command, words)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_keys_that_are_named_are_there(page: Path) -> None:
    """A key of the configuration, or what several begin with; the rest are modules."""
    named = re.findall(r"(?<![\w./-])ftrun\.([a-z_]+(?:\.[a-z_]+)*)", page.read_text())
    known = [f"{name}." for name in DEFAULT_KEYS]
    packages = ("launcher", "monitor", "healthchecks", "configs")
    keys = {f"ftrun.{name}." for name in named if not name.startswith(packages)}
    assert [key for key in sorted(keys) if not any(name.startswith(key) for name in known)] == []
