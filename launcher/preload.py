"""What a standby may import before it has a rank, found by reading the script's source. Pure.

Preloading must not be seen by the script: what it does before its first `import torch` (environment
variables, start methods, libraries that must come first) would come too late if torch had been imported
already. The source is read in the order in which it would run: module level, the local modules it imports,
and each function where it is first mentioned. That errs on the careful side; the price of a mistake is a cold
start, which the reason explains.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Literal

from ftrun.launcher.preload_list import FIRST_PACKAGES

ReadSource = Callable[[str], "str | None"]
"""From a path to the text of a Python source file; None if there is no such file or it is not text."""

MAX_CHARACTERS = 1_000_000
"""Bound on the source that is read, about 25,000 lines: the workers wait for it (half a second or so)."""

# They neither look at torch nor prepare anything for it (ftrun's client does not import it).
_INDIFFERENT_PACKAGES = sys.stdlib_module_names | {"ftrun"}

# Read when a process group or communicator is made (torch/distributed/rendezvous.py, NCCL's param.cc,
# gloo), never by an import: scripts may set them at any time.
_HARMLESS_VARIABLES = frozenset(
    {"MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"}
)
_HARMLESS_PREFIXES = ("NCCL_", "TORCH_NCCL_", "GLOO_")

_ENVIRON_WRITERS = frozenset(
    {"update", "setdefault", "pop", "popitem", "clear", "__setitem__", "__delitem__", "__ior__"}
)
_ENVIRONMENT_CALLS = frozenset({"putenv", "unsetenv", "load_dotenv"})
_GLOBAL_SETUP_CALLS = frozenset({"set_start_method", "set_sharing_strategy", "set_forkserver_preload"})

_Function = ast.FunctionDef | ast.AsyncFunctionDef
_LEAVES = (ast.Constant, ast.expr_context, ast.operator, ast.cmpop, ast.boolop, ast.unaryop, ast.Pass)


@dataclass(frozen=True, slots=True)
class PreloadAdvice:
    """What the standbys of a script may import, and why not more."""

    modules: tuple[str, ...]
    """For the first start: FIRST_PACKAGES and parts of them that the script names, in its order."""
    is_cold: bool
    """Nothing may be imported ahead, now or later."""
    reason: str
    """A sentence for the journal."""
    may_learn: bool = True
    """What the script turns out to import may be preloaded at later starts; otherwise only `modules`."""
    withheld: tuple[str, ...] = ()
    """What `modules` would be if the script imported no library in front of it."""

    def forced(self) -> PreloadAdvice:
        """The advice for a user who knows better; the same if nothing is held back."""
        if not (self.is_cold or self.withheld):
            return self
        reason = f"standbys are forced on, although {self.reason}"
        return PreloadAdvice(self.modules or self.withheld, False, reason)


def analyse(
    read_source: ReadSource,
    entry: str,
    kind: Literal["script", "module"] = "script",
    search: Sequence[str] = (".",),
) -> PreloadAdvice:
    """What may be preloaded for a script (path) or module (dotted name).

    Args:
        search: Directories in which a module is looked for, the working directory first. A module's local
            modules are those in the directory where it is found, a script's those beside it.
    """
    candidates = _entry_candidates(entry, kind, search)
    found = next(((p, r, pkg, s) for p, r, pkg in candidates if (s := read_source(p)) is not None), None)
    if found is None:
        return PreloadAdvice((), True, f"the source of {entry} could not be read", may_learn=False)
    path, root, package, source = found
    is_elsewhere = kind == "module" and root != PurePosixPath(search[0])
    walk = _Walk(read_source, root, entry.partition(".")[0] if is_elsewhere else None)
    try:
        walk.run_entry(path, source, package)
    except _CannotTellError as error:
        return PreloadAdvice(("torch",) if walk.torch_at else (), True, str(error), may_learn=False)
    return walk.advice()


def _entry_candidates(
    entry: str, kind: str, search: Sequence[str]
) -> Iterator[tuple[str, PurePosixPath, tuple[str, ...]]]:
    """Paths where the entry's source may be, each with the root of its local modules and its package."""
    if kind == "script":
        path = PurePosixPath(entry)
        yield str(path), path.parent, ()
        yield str(path / "__main__.py"), path, ()
        return
    parts = tuple(entry.split("."))
    for directory in search:
        root = PurePosixPath(directory)
        base = root.joinpath(*parts)
        yield str(base / "__main__.py"), root, parts
        yield f"{base}.py", root, parts[:-1]


class _CannotTellError(Exception):
    """Source that cannot be judged; the text is the reason to start cold."""


@dataclass(frozen=True, slots=True)
class _File:
    path: str
    package: tuple[str, ...]
    is_entry: bool = False

    def at(self, node: ast.AST) -> str:
        return f"{self.path}:{getattr(node, 'lineno', 1)}"


class _Walk:
    """Goes through the source in the order of execution and notes what matters."""

    def __init__(self, read_source: ReadSource, root: PurePosixPath, only_package: str | None) -> None:
        self._read_source = read_source
        self._root = root
        self._only_package = only_package
        self._file = _File("", ())
        self._seen_modules: set[str] = set()
        self._characters = 0
        self._functions: dict[str, list[tuple[_File, _Function]]] = {}
        self._aliases: dict[str, str] = {}
        self._environ_names = {"environ"}
        self._entered: set[int] = set()
        self._conditions = 0
        self.torch_at = ""
        self._modules: dict[str, None] = {}
        self._library_before = ""
        self._write_before = ""
        self._write_after = ""

    def advice(self) -> PreloadAdvice:
        """The verdict on all that was walked through."""
        modules = tuple(self._modules) if self.torch_at else ()
        if self._write_before:
            when = f"torch is first imported ({self.torch_at})" if self.torch_at else "anything is preloaded"
            return PreloadAdvice(modules, True, f"{self._write_before} before {when}", may_learn=False)
        library = f"{self._library_before} before torch is imported ({self.torch_at})"
        if self._write_after:
            reason = f"{library}; {self._write_after}" if self._library_before else self._write_after
            return PreloadAdvice(modules, bool(self._library_before), reason, may_learn=False)
        if not modules:
            return PreloadAdvice((), False, "the script does not import torch by name")
        if self._library_before:
            # Later standbys import the same libraries, torch among them, in the order of the script.
            return PreloadAdvice((), False, f"{library}: it may have to come first", withheld=modules)
        return PreloadAdvice(modules, False, f"torch is imported at {self.torch_at}")

    def run_entry(self, path: str, source: str, package: tuple[str, ...]) -> None:
        """Walk through the entry file, and all that it leads to.

        Raises:
            _CannotTellError: some of it does not parse, or it is too much to read.
        """
        for depth in range(len(package)):
            self._drive(self._import_local(package[: depth + 1]))
        self._drive(self._run_file(_File(path, package, is_entry=True), source))
        if not self.torch_at:
            # Imported at no place that is reached for sure: all functions are taken as they come.
            for name in list(self._functions):
                self._drive(self._enter_functions(name))

    def _drive(self, first: Iterator[ast.AST]) -> None:
        """Visits each node that a walk yields, before the walk goes on: recursion without its depth limit."""
        stack = [first]
        while stack and not (self.torch_at and self._write_after):
            node = next(stack[-1], None)
            if node is None:
                stack.pop()
            elif not isinstance(node, _LEAVES):
                stack.append(self._visit(node))

    def _run_file(self, file: _File, source: str) -> Iterator[ast.AST]:
        try:
            tree = ast.parse(source, file.path)
        except (SyntaxError, ValueError, RecursionError) as error:
            raise _CannotTellError(f"{file.path} is not Python that can be parsed: {error}") from error
        self._collect(tree, file)
        with self._within(file):
            yield from tree.body

    def _collect(self, tree: ast.Module, file: _File) -> None:
        """Notes the functions of a file, and what it calls functions of others."""
        for node in ast.walk(tree):
            if isinstance(node, _Function):
                self._functions.setdefault(node.name, []).append((file, node))
            elif isinstance(node, ast.ClassDef):
                dunders = [n for n in node.body if isinstance(n, _Function) and n.name.startswith("__")]
                self._functions.setdefault(node.name, []).extend((file, n) for n in dunders)
            elif isinstance(node, ast.ImportFrom):
                self._aliases.update({a.asname: a.name for a in node.names if a.asname})

    def _enter_functions(self, name: str) -> Iterator[ast.AST]:
        for file, function in self._functions.get(self._aliases.get(name, name), ()):
            if id(function) not in self._entered:
                self._entered.add(id(function))
                with self._within(file):
                    yield from function.body

    @contextmanager
    def _within(self, file: _File) -> Iterator[None]:
        previous, self._file = self._file, file
        yield
        self._file = previous

    @contextmanager
    def _conditional(self) -> Iterator[None]:
        """Imports in here are not sure to happen, or to work: they are not preloaded by name."""
        self._conditions += 1
        yield
        self._conditions -= 1

    def _visit(self, node: ast.AST) -> Iterator[ast.AST]:
        match node:
            case ast.Import(names):
                for alias in names:
                    yield from self._import(tuple(alias.name.split(".")), node)
            case ast.ImportFrom():
                yield from self._import_from(node)
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                yield from node.decorator_list
                yield from filter(None, [*node.args.defaults, *node.args.kw_defaults])
            case ast.If():
                yield from self._visit_if(node)
            case ast.Try() | ast.While() | ast.For() | ast.Match() | ast.IfExp():
                with self._conditional():
                    yield from ast.iter_child_nodes(node)
            case _:
                yield from ast.iter_child_nodes(node)
                yield from self._judge(node)

    def _visit_if(self, node: ast.If) -> Iterator[ast.AST]:
        condition = ast.unparse(node.test)
        if condition in ("__name__ == '__main__'", "'__main__' == __name__"):
            yield from node.body if self._file.is_entry else node.orelse
            return
        with self._conditional():
            if condition.rpartition(".")[2] != "TYPE_CHECKING":
                yield node.test
                yield from node.body
            yield from node.orelse

    def _judge(self, node: ast.AST) -> Iterator[ast.AST]:
        """Notes what an expression or simple statement does, its parts being done with."""
        match node:
            case ast.Name(name, ast.Load()) | ast.Attribute(_, name, ast.Load()):
                yield from self._enter_functions(name)
            case ast.Assign([ast.Name(name)], value) if self._is_environ(value):
                self._environ_names.add(name)
            case ast.Subscript(value, key, ast.Store() | ast.Del()) if self._is_environ(value):
                self._note_write("os.environ", node, key)
            case ast.AugAssign(target) if self._is_environ(target):
                self._note_write("os.environ", node)
            case ast.Call(ast.Attribute(value, name), arguments) if (
                name in _ENVIRON_WRITERS and self._is_environ(value)
            ):
                self._note_write(f"os.environ.{name}()", node, *arguments[:1])
            case ast.Call(ast.Name(name) | ast.Attribute(_, name), arguments):
                called = self._aliases.get(name, name)
                if called in _ENVIRONMENT_CALLS:
                    self._note_write(f"{called}()", node, *arguments[:1])
                elif called in _GLOBAL_SETUP_CALLS:
                    self._note(f"{self._file.at(node)} calls {called}()")

    def _is_environ(self, node: ast.AST) -> bool:
        match node:
            case ast.Name(name):
                return self._aliases.get(name, name) in self._environ_names
            case ast.Attribute(_, "environ"):
                return True
        return False

    def _note_write(self, what: str, node: ast.AST, key: ast.AST | None = None) -> None:
        if isinstance(key, ast.Constant) and isinstance(key.value, str):
            if key.value in _HARMLESS_VARIABLES or key.value.startswith(_HARMLESS_PREFIXES):
                return
            what = f"{what} ({key.value})"
        self._note(f"{self._file.at(node)} changes the environment through {what}")

    def _note(self, what: str) -> None:
        if not self.torch_at:
            self._write_before = self._write_before or what
        elif not self._write_before:
            after = f"{what} after torch is imported: other modules may depend on it"
            self._write_after = self._write_after or after

    def _import_from(self, node: ast.ImportFrom) -> Iterator[ast.AST]:
        base = tuple(node.module.split(".")) if node.module else ()
        if node.level:
            kept = len(self._file.package) - node.level + 1
            base = (*self._file.package[: max(kept, 0)], *base)
        yield from self._import(base, node, [alias.name for alias in node.names])

    def _import(
        self, parts: tuple[str, ...], node: ast.AST, members: Iterable[str] = ()
    ) -> Iterator[ast.AST]:
        is_local = False
        for depth in range(len(parts)):
            is_local |= yield from self._import_local(parts[: depth + 1])
        for member in members:
            is_local |= yield from self._import_local((*parts, member))
        if parts and not is_local and parts[0] not in _INDIFFERENT_PACKAGES:
            self._note_library(".".join(parts), node)

    def _note_library(self, name: str, node: ast.AST) -> None:
        package = name.partition(".")[0]
        if package == "torch":
            self.torch_at = self.torch_at or self._file.at(node)
        elif self.torch_at:
            return
        elif package not in FIRST_PACKAGES or self._conditions:
            self._library_before = self._library_before or f"{self._file.at(node)} imports {name}"
            return
        self._modules[package] = None
        if not self._conditions:
            self._modules[name] = None

    def _import_local(self, parts: tuple[str, ...]) -> Generator[ast.AST, None, bool]:
        """Walks through a local module when it is first imported; False if there is none of that name."""
        if not all(parts) or self._only_package not in (None, parts[0]):
            return False
        base = self._root.joinpath(*parts)
        for path, package in ((str(base / "__init__.py"), parts), (f"{base}.py", parts[:-1])):
            if path in self._seen_modules:
                return True
            source = self._read_source(path)
            if source is not None:
                self._seen_modules.add(path)
                if self._may_read(source):
                    yield from self._run_file(_File(path, package), source)
                return True
        return False

    def _may_read(self, source: str) -> bool:
        self._characters += len(source)
        if self._characters <= MAX_CHARACTERS:
            return True
        if not self.torch_at:
            raise _CannotTellError(f"over {MAX_CHARACTERS} characters of source run before torch is imported")
        limit = f"only the first {MAX_CHARACTERS} characters of the script's own source were analysed"
        self._write_after = self._write_after or limit
        return False
