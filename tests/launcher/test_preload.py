"""What may be imported ahead for a script, judged from its source."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from ftrun.launcher.preload import MAX_CHARACTERS, PreloadAdvice, analyse
from ftrun.launcher.sources import read_source


def advise(entry: str, **files: str) -> PreloadAdvice:
    """Advice for job/train.py; further files are named by their path with __ for / (utils__env="...")."""
    sources = {"job/train.py": textwrap.dedent(entry)}
    sources |= {f"job/{name.replace('__', '/')}.py": textwrap.dedent(text) for name, text in files.items()}
    return analyse(sources.get, "job/train.py")


@pytest.mark.parametrize(
    ("source", "modules"),
    [
        ("import torch", ("torch",)),
        ("import torch.nn as nn", ("torch", "torch.nn")),
        ("from torch.distributed.fsdp import fully_shard", ("torch", "torch.distributed.fsdp")),
        ("from torch import nn", ("torch",)),
        ("import os, torch\nx = os.environ['RANK']", ("torch",)),
        ("def main():\n    import torch.fx\n\nmain()", ("torch", "torch.fx")),
        ("def main():\n    import torch\n", ("torch",)),
        ("if __name__ == '__main__':\n    import torch.fx", ("torch", "torch.fx")),
        ("try:\n    import torch.gone\nexcept ImportError:\n    import torch.fx", ("torch",)),
        ("import torch\nif torch.__version__ > '3':\n    import torch.new", ("torch",)),
        ("import numpy", ()),
        ("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import torch", ()),
        ("", ()),
    ],
)
def test_torch_and_what_the_script_names_of_it_are_preloaded(source: str, modules: tuple[str, ...]) -> None:
    """In the order of the source; nothing that is tried, conditional, or only for type checkers."""
    advice = advise(source)
    assert (advice.modules, advice.is_cold, advice.may_learn) == (modules, False, True)


@pytest.mark.parametrize(
    ("line", "what", "write"),
    [
        (2, "os.environ (A)", "os.environ['A'] = '1'"),
        (2, "os.environ", "os.environ[name] = '1'"),
        (2, "os.environ (A)", "del os.environ['A']"),
        (2, "os.environ", "os.environ |= {'A': '1'}"),
        (2, "os.environ.update()", "os.environ.update(A='1')"),
        (2, "os.environ.setdefault() (A)", "os.environ.setdefault('A', '1')"),
        (2, "os.environ.pop() (A)", "os.environ.pop('A', None)"),
        (2, "putenv() (A)", "os.putenv('A', '1')"),
        (3, "os.environ (A)", "from os import environ\nenviron['A'] = '1'"),
        (3, "os.environ (A)", "from os import environ as e\ne['A'] = '1'"),
        (3, "os.environ (A)", "env = os.environ\nenv['A'] = '1'"),
        (3, "load_dotenv()", "from dotenv import load_dotenv\nload_dotenv()"),
        (3, "load_dotenv()", "from dotenv import load_dotenv as load\nload()"),
        (2, "load_dotenv() (.env)", "dotenv.load_dotenv('.env')"),
        (3, "os.environ (A)", "if x:\n    os.environ['A'] = '1'"),
        (3, "os.environ", "for k in x:\n    os.environ[k] = '1'"),
        (3, "os.environ (A)", "class C:\n    os.environ['A'] = '1'"),
        (3, "os.environ (A)", "def f():\n    os.environ['A'] = '1'\n\nf()"),
        (3, "os.environ (A)", "def f():\n    os.environ['A'] = '1'\n\nrun(f)"),
        (4, "os.environ (A)", "class C:\n    def f(self):\n        os.environ['A'] = '1'\n\nx.f()"),
        (4, "os.environ (A)", "class C:\n    def __init__(self):\n        os.environ['A'] = '1'\n\nC()"),
        (2, "set_start_method()", "multiprocessing.set_start_method('spawn')"),
        (2, "set_sharing_strategy()", "mp.set_sharing_strategy('file_system')"),
    ],
)
def test_what_is_set_before_torch_is_imported_means_cold(line: int, what: str, write: str) -> None:
    """Torch might read it while it is imported; the reason has file, line and the place of the import."""
    advice = advise(f"import os\n{write}\nimport torch\n")
    assert (advice.modules, advice.is_cold, advice.may_learn) == (("torch",), True, False)
    assert advice.reason.startswith(f"job/train.py:{line} ")
    assert what in advice.reason
    assert advice.reason.endswith(f"(job/train.py:{len(write.splitlines()) + 2})")


def test_what_is_set_after_torch_is_imported_limits_preloading_to_torch() -> None:
    """Other libraries, imported later, may read it."""
    advice = advise("import os, torch\nos.environ['TOKENIZERS_PARALLELISM'] = 'false'\nimport transformers\n")
    assert (advice.modules, advice.is_cold, advice.may_learn) == (("torch",), False, False)
    assert advice.reason.startswith("job/train.py:2 changes the environment through os.environ (TOKEN")


@pytest.mark.parametrize("name", ["MASTER_ADDR", "RANK", "NCCL_DEBUG", "TORCH_NCCL_ENABLE_MONITORING"])
def test_variables_that_no_import_reads_do_not_matter(name: str) -> None:
    """They are read when a process group is made."""
    advice = advise(
        f"import os\nos.environ['{name}'] = 'x'\nimport torch\nos.environ.setdefault('{name}', 'y')\n"
    )
    assert (advice.is_cold, advice.may_learn) == (False, True)


def test_reading_and_copying_the_environment_does_not_matter() -> None:
    """Only changes of the process's own environment count."""
    advice = advise("import os\nenv = os.environ.copy()\nenv['A'] = os.environ.get('B', '')\nimport torch\n")
    assert (advice.is_cold, advice.may_learn) == (False, True)


def test_a_function_that_nothing_mentions_does_not_matter_if_torch_is_imported_anyway() -> None:
    """A helper in a library of the user's is not held against the script."""
    advice = advise(
        "from utils import helper\nimport torch\n",
        utils="import os\ndef setup():\n    os.environ['A'] = '1'\n",
    )
    assert (advice.is_cold, advice.may_learn) == (False, True)


def test_torch_in_a_function_behind_a_write_in_a_function_means_cold() -> None:
    """When it cannot be seen what is called, all functions count."""
    advice = advise(
        """
        import os, framework
        def prepare():
            os.environ["A"] = "1"
        def train():
            import torch
        framework.start(globals())
        """
    )
    assert advice.is_cold
    assert "job/train.py:4" in advice.reason


def test_local_modules_are_followed_in_the_order_of_execution() -> None:
    """A write in a module that is imported first comes first, wherever torch is imported."""
    env = "import os\nos.environ['A'] = '1'\n"
    before = advise("import utils.env\nfrom model import Net\n", utils__env=env, model="import torch\n")
    assert before.is_cold
    assert "job/utils/env.py:2" in before.reason
    assert "(job/model.py:1)" in before.reason
    after = advise("from model import Net\nimport utils.env\n", utils__env=env, model="import torch\n")
    assert (after.is_cold, after.may_learn, after.modules) == (False, False, ("torch",))


def test_packages_and_relative_imports_are_followed() -> None:
    """A package's __init__ runs before its submodule, and a dot means the package."""
    advice = advise(
        "from package.sub import thing\n",
        package____init__="from . import first\n",
        package__first="import torch.fx\n",
        package__sub="from .deep.er import x\n",
        package__deep____init__="",
        package__deep__er="from ... import nothing\nfrom ..first import y\nimport torch.nn\n",
    )
    assert advice.modules == ("torch", "torch.fx", "torch.nn")


def test_the_main_block_of_a_local_module_does_not_run() -> None:
    """Only the entry's own does."""
    utils = "import os\nif __name__ == '__main__':\n    os.environ['A'] = '1'\n"
    assert not advise("import utils\nimport torch\n", utils=utils).is_cold


def test_imports_in_a_circle_end() -> None:
    """Each module and function is gone through once."""
    advice = advise(
        "import a\ndef f():\n    f()\nf()\n", a="import b\nimport torch", b="import a\nimport train"
    )
    assert advice.modules == ("torch",)


def test_a_local_torch_is_not_preloaded() -> None:
    """What the script's directory shadows is not the installed one."""
    assert advise("import torch\n", torch="").modules == ()


@pytest.mark.parametrize("source", ["import torch\nprint 'x'\n", "#!/bin/sh\necho hello there\n", "x = '\0'"])
def test_source_that_does_not_parse_means_cold(source: str) -> None:
    """The reason names the file."""
    advice = advise(source)
    assert advice.is_cold
    assert advice.reason.startswith("job/train.py is not Python")


def test_a_script_that_cannot_be_read_means_cold() -> None:
    """A missing or binary file is left to python to complain about."""
    assert analyse(lambda path: None, "gone.py").is_cold


def test_reading_ends_at_a_limit() -> None:
    """Beyond it: cold if torch has not been seen, else nothing is learned."""
    large = "x = 1\n" * (MAX_CHARACTERS // 6 + 1)
    assert advise("import large\nimport torch\n", large=large).is_cold
    advice = advise("import torch\nimport large\n", large=large)
    assert (advice.modules, advice.is_cold, advice.may_learn) == (("torch",), False, False)


def test_source_of_any_depth_is_analysed() -> None:
    """A long chain of functions does not meet the recursion limit."""
    chain = "".join(f"def f{n}():\n    f{n + 1}()\n" for n in range(2000))
    assert advise(f"{chain}def f2000():\n    import torch\nf0()\n").modules == ("torch",)


def test_a_module_is_found_as_python_would_find_it() -> None:
    """In the working directory or further on the path; packages run their __main__; parents come first."""
    sources = {
        "./pkg/__init__.py": "import os\nos.environ['A'] = '1'\n",
        "./pkg/__main__.py": "import torch\n",
        "./pkg/train.py": "from . import x\nimport torch.fx\n",
        "/site/installed/__init__.py": "",
        "/site/installed/run.py": "import torch\nfrom installed import other\n",
        "/site/torch/__init__.py": "import os\nos.environ['A'] = '1'\n",
    }
    normalised = {path.removeprefix("./"): text for path, text in sources.items()}

    def module(name: str) -> PreloadAdvice:
        return analyse(normalised.get, name, "module", (".", "/site"))

    assert module("pkg").is_cold
    assert module("pkg").reason.startswith("pkg/__init__.py:2 ")
    assert module("pkg.train").modules == ("torch", "torch.fx")
    assert module("installed.run").modules == ("torch",)
    assert not module("installed.run").is_cold
    assert module("gone").is_cold


def test_a_directory_is_run_by_its_main() -> None:
    """As `python directory` does it."""
    assert analyse({"job/__main__.py": "import torch\n"}.get, "job").modules == ("torch",)


def test_standbys_can_be_forced_on() -> None:
    """The user knows better; the reason says so."""
    advice = advise("import os\nos.environ['A'] = '1'\nimport torch\n").forced()
    assert (advice.modules, advice.is_cold, advice.may_learn) == (("torch",), False, True)
    assert advice.reason.startswith("standbys are forced on, although job/train.py:2 ")


@pytest.mark.parametrize(
    ("source", "library"),
    [
        ("import comet_ml\nimport torch\n", "train.py:1 imports comet_ml"),
        ("import os\nfrom lib.sub import x\nimport torch\n", "train.py:2 imports lib.sub"),
        ("import ftrun.monitor, numpy, lib, torch\n", "train.py:1 imports lib"),
        ("try:\n    import lib\nexcept ImportError:\n    pass\nimport torch\n", "train.py:2 imports lib"),
        ("try:\n    import numpy\nexcept ImportError:\n    pass\nimport torch", "train.py:2 imports numpy"),
        ("def f():\n    import lib\n\nf()\nimport torch\n", "train.py:2 imports lib"),
        ("import mine\nimport torch\n", "mine.py:1 imports lib"),
    ],
)
def test_library_that_comes_before_torch_keeps_its_place(source: str, library: str) -> None:
    """It may refuse torch, or prepare for it: the first start is cold, later ones keep the order."""
    advice = advise(source, mine="import lib\n")
    assert (advice.modules, advice.is_cold, advice.may_learn) == ((), False, True)
    assert advice.reason.startswith(f"job/{library} before torch is imported (job/train.py:")


@pytest.mark.parametrize(
    ("source", "modules"),
    [
        ("import json\nimport torch\nimport lib\n", ("torch",)),
        ("import numpy.random\nimport torch\n", ("numpy", "numpy.random", "torch")),
        ("import torch\nimport numpy\n", ("torch",)),
        ("from names.mine import x\nfrom names import mine\nimport torch\n", ("torch",)),
        ("from ftrun.monitor.client import heartbeat\nimport torch\n", ("torch",)),
    ],
)
def test_first_start_keeps_the_order_of_imports(source: str, modules: tuple[str, ...]) -> None:
    """Only the standard library, ftrun and what was analysed may come before torch; numpy stays in front."""
    advice = advise(source, names__mine="import json\n")
    assert (advice.modules, advice.is_cold, advice.may_learn) == (modules, False, True)


def test_library_before_torch_and_a_write_after_it_leave_nothing_to_preload() -> None:
    """Not torch, for the library's sake, and no list of the script's imports, for the write's."""
    advice = advise("import os, lib, torch\nos.environ['A'] = '1'\nimport more\n")
    assert (advice.is_cold, advice.may_learn) == (True, False)
    assert "job/train.py:1 imports lib" in advice.reason
    assert "job/train.py:2 changes the environment" in advice.reason


def test_forcing_standbys_overrides_the_order_of_imports() -> None:
    """What was held back for a library's sake is preloaded; advice that holds nothing back stays as it is."""
    advice = advise("import lib, torch.fx\n").forced()
    assert (advice.modules, advice.is_cold, advice.may_learn) == (("torch", "torch.fx"), False, True)
    plain = advise("import torch\nimport lib\n")
    assert plain.forced() == plain


def test_sources_are_read_in_their_own_encoding(tmp_path: Path) -> None:
    """And what is no text, or no file, is None."""
    (tmp_path / "latin.py").write_bytes("# -*- coding: latin-1 -*-\nname = 'caf\xe9'\n".encode("latin-1"))
    (tmp_path / "binary").write_bytes(b"\x7fELF\xff\xff")
    assert read_source(str(tmp_path / "latin.py")) == "# -*- coding: latin-1 -*-\nname = 'caf\xe9'\n"
    assert [read_source(str(tmp_path / name)) for name in ("binary", "gone", ".")] == [None, None, None]
