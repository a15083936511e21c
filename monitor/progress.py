"""Sees a script's first progress without any edit to it, and what the script had imported by then.

Runs in the worker. Does not import torch: it waits for the script (or the preloading) to do so.
"""

from __future__ import annotations

import contextlib
import importlib.machinery
import os
import site
import sys
import sysconfig
from collections.abc import Collection, Iterable, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from importlib.abc import Loader

    from torch.optim import Optimizer

    from ftrun.monitor.page_writer import PageWriter

_OPTIMIZER_MODULE = "torch.optim.optimizer"
_PACKAGE_DIRECTORIES = ("site-packages", "dist-packages")


def watch_optimizer(page: PageWriter) -> None:
    """Counts each optimizer step of this process on `page`, now or as soon as torch gets imported."""
    module = sys.modules.get(_OPTIMIZER_MODULE)
    if module is None:
        sys.meta_path.insert(0, cast(importlib.machinery.PathFinder, _OptimizerFinder(page)))
    else:
        _count_steps(module, page)


def _count_steps(optimizer_module: ModuleType, page: PageWriter) -> None:
    """Counts each call of `step` of each optimizer that is one of torch's by class.

    A GradScaler that finds infinite gradients does not call `step`, and a CUDA graph that holds the optimizer
    runs without Python: such iterations are not counted, and only their bytecode shows on the page.
    """

    def count(optimizer: Optimizer, args: object, kwargs: dict[str, object]) -> None:
        if not (kwargs and _only_makes_state(optimizer, kwargs)):
            page.mark_optimizer_step()

    # What torch.compiler.disable would set, which costs the import of the whole compiler: a compiled step
    # then calls this as it is. Otherwise the compiler warns that it cannot see into `time.monotonic`.
    count._torchdynamo_disable = True  # type: ignore[attr-defined]
    optimizer_module.register_optimizer_step_post_hook(count)


def _only_makes_state(optimizer: Optimizer, kwargs: dict[str, object]) -> bool:
    """Whether this step trains nothing, and only makes the state into which a checkpoint is loaded.

    torch.distributed.checkpoint.state_dict does that: `step(closure=None)`, every learning rate zero.
    """
    if "closure" not in kwargs or kwargs["closure"] is not None:
        return False
    return all(float(group.get("lr", 1.0)) == 0.0 for group in optimizer.param_groups)


class _OptimizerFinder:
    """A meta-path finder that acts once, when torch's optimizer module is looked for."""

    def __init__(self, page: PageWriter) -> None:
        self._page = page

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != _OPTIMIZER_MODULE:
            return None
        sys.meta_path[:] = [finder for finder in sys.meta_path if finder is not self]
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is not None and spec.loader is not None:
            spec.loader = cast("Loader", _CountingLoader(spec.loader, self._page))
        return spec


class _CountingLoader:
    """Loads with the real loader, steps aside for it, and then registers the step counter."""

    def __init__(self, loader: Loader, page: PageWriter) -> None:
        self._loader = loader
        self._page = page

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        module.__loader__ = self._loader
        self._loader.exec_module(module)
        _count_steps(module, self._page)


def library_directories() -> tuple[str, ...]:
    """Where the standard library and installed packages live, each with a trailing slash."""
    paths = sysconfig.get_paths()
    found = [paths[key] for key in ("stdlib", "platstdlib", "purelib", "platlib")]
    found += site.getsitepackages()
    if site.ENABLE_USER_SITE:
        found.append(site.getusersitepackages())
    return tuple({f"{variant}/": None for path in found for variant in (path, os.path.realpath(path))})


def installed_elsewhere(own_directories: Iterable[str]) -> tuple[str, ...]:
    """Directories of sys.path besides `library_directories` that hold installed packages; trailing slashes.

    That is where torch was loaded from, and what is called site-packages (module systems, `pip --target`).
    Others may hold code that its user edits while the job runs, and so may what is in, or around, one of
    `own_directories`.
    """
    torch_file = getattr(sys.modules.get("torch"), "__file__", None) or ""
    own = [os.path.realpath(directory) for directory in own_directories]
    return tuple(
        f"{path}/"
        for path in map(os.path.normpath, sys.path)
        if (os.path.basename(path) in _PACKAGE_DIRECTORIES or torch_file.startswith(f"{path}/torch/"))
        and not any(_is_one_in_the_other(os.path.realpath(path), directory) for directory in own)
    )


def _is_one_in_the_other(path: str, other: str) -> bool:
    return os.path.commonpath((path, other)) in (path, other)


def importable_names(directory: str, among: Collection[str]) -> frozenset[str]:
    """Those of the top-level modules `among` that `directory` offers if it comes first on sys.path.

    Modules and regular packages. A directory without __init__ does not count: installed packages win over
    namespace packages. The directory may be large: nothing is asked of files of other names.
    """
    suffixes = importlib.machinery.all_suffixes()
    try:
        entries = os.listdir(directory)
    except OSError:
        return frozenset()
    names = set()
    for entry in entries:
        name, dot, rest = entry.partition(".")
        if name not in among:
            continue
        inits = (f"{directory}/{name}/__init__{suffix}" for suffix in suffixes)
        if dot + rest in suffixes if dot else any(map(os.path.exists, inits)):
            names.add(name)
    return frozenset(names)


def imported_library_modules(script_directory: str | None) -> tuple[str, ...]:
    """Names that could be imported ahead in another process: those whose file belongs to a library.

    In the order in which their loading was done, dependencies first. Left out are the user's own modules,
    ftrun's, aliases, what `script_directory` (the script's sys.path[0]) shadows, and what runs as `__main__`.
    """
    main = sys.modules.get("__main__")
    libraries = library_directories() + installed_elsewhere(_own_directories(script_directory))
    tops = {name.partition(".")[0] for name in list(sys.modules)}
    shadowed = importable_names(script_directory, tops) if script_directory is not None else frozenset()
    main_spec = getattr(main, "__spec__", None)
    left_out = {"__main__", "__mp_main__", main_spec.name if main_spec is not None else ""}
    return tuple(
        name
        for name, module in list(sys.modules.items())
        if name not in left_out
        and name.partition(".")[0] not in shadowed | {"ftrun"}
        and _comes_from(module, name, libraries)
    )


def _own_directories(script_directory: str | None) -> set[str]:
    """The script's directory and the working directory, unless that is the root, which holds everything."""
    main_file = getattr(sys.modules.get("__main__"), "__file__", None) or ""
    own = {script_directory or os.path.dirname(main_file)}
    with contextlib.suppress(FileNotFoundError):  # it may have been removed
        own.add(os.getcwd())
    return own - {"", "/"}


def _comes_from(module: object, name: str, directories: tuple[str, ...]) -> bool:
    # Through __dict__, since modules that load lazily run code when asked for an attribute.
    spec = module.__dict__.get("__spec__") if isinstance(module, ModuleType) else None
    if not isinstance(spec, importlib.machinery.ModuleSpec) or spec.name != name or not spec.has_location:
        return False
    return spec.origin is not None and spec.origin.startswith(directories)
