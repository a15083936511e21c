"""What counts as a library, and what a script's own directory shadows."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from ftrun.monitor.page import Page
from ftrun.monitor.progress import importable_names, imported_library_modules, library_directories


def test_a_directory_offers_modules_and_regular_packages(tmp_path: Path) -> None:
    """Not directories without __init__ (wandb/, data/): an installed package wins over those."""
    for name in ("json.py", "native.cpython-311-x86_64-linux-gnu.so", "plain.so", "notes.txt"):
        (tmp_path / name).touch()
    for name in ("package", "wandb"):
        (tmp_path / name).mkdir()
    (tmp_path / "package" / "__init__.py").touch()
    names = importable_names(str(tmp_path))
    assert {"json", "plain", "package"} <= names
    assert not {"wandb", "notes", "notes.txt"} & names
    assert importable_names(str(tmp_path / "gone")) == frozenset()


def test_what_the_scripts_directory_shadows_is_not_reported(tmp_path: Path) -> None:
    """The name would mean something else to the script than to a standby."""
    assert "json.decoder" in imported_library_modules(None)
    (tmp_path / "json.py").touch()
    names = imported_library_modules(str(tmp_path))
    assert not [name for name in names if name.partition(".")[0] == "json"]
    assert "pytest" in names


def test_only_modules_that_can_be_imported_by_their_name_are_reported() -> None:
    """Aliases, built-in modules, our own and the user's are left out."""
    names = imported_library_modules(None)
    left_out = {"os.path", "sys", "__main__", "ftrun", "ftrun.monitor.progress", __name__}
    assert not left_out & set(names)
    assert all(sys.modules[name].__spec__ is not None for name in names)


def test_library_directories_hold_the_standard_library_and_installed_packages() -> None:
    """Each ends with a slash, so that a directory beside it with a longer name is none."""
    directories = library_directories()
    assert all(directory.endswith("/") for directory in directories)
    assert (json.__file__ or "").startswith(directories)
    assert not os.path.abspath("train.py").startswith(directories)


COUNT_STEPS = """
import sys
from ftrun.monitor.page_writer import PageWriter
from ftrun.monitor.progress import watch_optimizer
watch_optimizer(PageWriter.open(sys.argv[1]))
import torch
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.AdamW(model.parameters())
get_optimizer_state_dict(model, optimizer)
assert optimizer.state, "torch made the state with a step"
for _ in range(3):
    model(torch.ones(2)).sum().backward()
    optimizer.step()
"""


def test_a_step_that_only_makes_optimizer_state_is_no_progress() -> None:
    """Loading a checkpoint into a fresh optimizer steps once with learning rate zero; that trains nothing."""
    page = Page.create()
    try:
        subprocess.run([sys.executable, "-c", COUNT_STEPS, page.path], check=True, timeout=60)
        assert page.read().steps == 3
    finally:
        page.close()
