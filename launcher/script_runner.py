"""Runs the user's script as `__main__` of this process, as `python -u script.py` or `-m module` would.

What CPython itself does is followed from its Modules/main.c and Python/pythonrun.c (3.10 to 3.14). An
exception that nobody catches is recorded in the error file of torch's elastic agent. Nothing here knows of
the control socket.
"""

from __future__ import annotations

import builtins
import contextlib
import json
import os
import runpy
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from importlib.machinery import SourceFileLoader, SourcelessFileLoader
from types import ModuleType, TracebackType
from typing import NoReturn

from ftrun.monitor.progress import library_directories

ERROR_FILE_VARIABLE = "TORCHELASTIC_ERROR_FILE"
MAX_TEXT_CHARACTERS = 64 * 1024
"""Bound on each text in the error file: exceptions that carry a whole tensor have been seen."""
_CANNOT_EXECUTE, _NOT_FOUND = 126, 127


def install_module_path(kind: str, argv: Sequence[str]) -> str | None:
    """Puts in front of sys.path what CPython would, and returns it; None in safe-path mode.

    That is the script's own directory (links resolved), the directory or archive that is run, or, for a
    module, the working directory.
    """
    has_safe_path = bool(sys.flags.isolated or getattr(sys.flags, "safe_path", False))
    if kind == "script" and _is_directory_or_archive(_absolute(argv[0])):
        first = _absolute(argv[0])
    elif has_safe_path:
        return None
    elif kind == "script":
        first = os.path.dirname(os.path.realpath(argv[0]))
    else:
        first = os.getcwd()
    sys.path.insert(0, first)
    return first


def install_arguments(kind: str, argv: Sequence[str], interpreter: Sequence[str]) -> None:
    """Sets sys.argv and sys.orig_argv; `interpreter` is the command up to, not including, the script."""
    if kind == "module":
        sys.argv = ["-m", *argv[1:]]
        sys.orig_argv = [*interpreter, "-m", *argv]
    else:
        sys.argv = list(argv)
        sys.orig_argv = [*interpreter, *argv]


def run(kind: str, argv: Sequence[str], own_files: Sequence[str]) -> None:
    """Runs the script to its end; its exceptions pass through, prepared for the interpreter to report.

    Args:
        own_files: Files whose frames, on top of the script's, do not belong into a traceback; this module's
            own need not be named.
    """
    main = _new_main_module()
    with _UncaughtErrors((__file__, *own_files)):
        if kind == "module":
            # The interpreter's own entry point for -m: it names this function, and so do its tracebacks.
            runpy._run_module_as_main(argv[0])  # type: ignore[attr-defined]
        elif _is_directory_or_archive(_absolute(argv[0])):
            runpy._run_module_as_main("__main__", False)  # type: ignore[attr-defined]
        else:
            _run_file(_absolute(argv[0]), main)


def run_executable(argv: Sequence[str]) -> NoReturn:
    """Replaces this process by another program; if that fails, exits as a shell would."""
    # Python ignores these, and exec would hand that on.
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvpe(argv[0], list(argv), os.environ)
    except OSError as error:
        is_missing = isinstance(error, FileNotFoundError)
        sys.stderr.write(f"ftrun: cannot run {argv[0]}: {error.strerror}\n")
        sys.stderr.flush()
        os._exit(_NOT_FOUND if is_missing else _CANNOT_EXECUTE)


def _absolute(path: str) -> str:
    """As CPython makes the script's path absolute: without resolving anything in it."""
    return os.path.join(os.getcwd(), path)


def _is_directory_or_archive(path: str) -> bool:
    """Whether something on sys.path_hooks can import from `path`; a script's file is no such thing."""
    for hook in sys.path_hooks:
        with contextlib.suppress(ImportError):
            hook(path)
            return True
    return False


def _new_main_module() -> ModuleType:
    """A fresh `__main__` in sys.modules with the names that this interpreter gives it."""
    previous = vars(sys.modules["__main__"])
    main = ModuleType("__main__")
    if "__annotations__" in previous:
        main.__annotations__ = {}
    vars(main)["__builtins__"] = builtins
    sys.modules["__main__"] = main
    return main


def _run_file(path: str, main: ModuleType) -> None:
    loader: SourceFileLoader | SourcelessFileLoader
    try:
        if path.endswith(".pyc"):
            loader = SourcelessFileLoader("__main__", path)
            code = loader.get_code("__main__")
        else:
            loader = SourceFileLoader("__main__", path)
            code = compile(loader.get_data(path), path, "exec", dont_inherit=True)
    except OSError as error:
        python = sys.orig_argv[0]
        sys.stderr.write(f"{python}: can't open file {path!r}: [Errno {error.errno}] {error.strerror}\n")
        sys.exit(2)
    names = vars(main)
    names.update(__loader__=loader, __file__=path, __cached__=None)
    if code is not None:
        exec(code, names)


class _UncaughtErrors:
    """Sees the exception that leaves the script: records it, and hides the frames above the script.

    The exception then goes its natural way, so that the interpreter decides what it always decides: exit
    code, death by SIGINT, whose excepthook is called.
    """

    def __init__(self, own_files: tuple[str, ...]) -> None:
        self._own_files = own_files
        self._pid = os.getpid()

    def __enter__(self) -> None:
        return None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None or isinstance(error, SystemExit):
            return
        trace = self._without_own_frames(trace)
        # A forked child's error is not its parent's, and SIGINT is a signal, not a bug.
        if os.getpid() == self._pid and not isinstance(error, KeyboardInterrupt):
            record_error(error, trace)
        _hide_frames_above(trace)

    def _without_own_frames(self, trace: TracebackType | None) -> TracebackType | None:
        while trace is not None and trace.tb_frame.f_code.co_filename in self._own_files:
            trace = trace.tb_next
        return trace


def _hide_frames_above(trace: TracebackType | None) -> None:
    shown_by = sys.excepthook

    def show(kind: type[BaseException], error: BaseException, whole: TracebackType | None) -> None:
        sys.excepthook = shown_by
        error.__traceback__ = sys.last_traceback = trace
        shown_by(kind, error, trace)

    sys.excepthook = show


def record_error(error: BaseException, trace: TracebackType | None) -> None:
    """Writes the error file, in the format of torch's `@record` and with what it lacks.

    A file that is already there stays: the script's own `@record` saw the error first. Failure to write is
    silent, since the error itself is about to be shown.
    """
    path = os.environ.get(ERROR_FILE_VARIABLE)
    if not path:
        return
    with contextlib.suppress(OSError, MemoryError, RecursionError):
        shown = traceback.TracebackException(type(error), error, trace)
        record = {
            "message": {
                "message": _bounded(f"{type(error).__name__}: {shown}"),
                "extraInfo": {
                    "py_callstack": _bounded("".join(shown.format())),
                    "timestamp": str(int(time.time())),
                    "frame": _innermost_user_frame(error, trace),
                    "bases": [base.__name__ for base in type(error).__mro__[1:] if base is not object],
                    "recorded_at": time.monotonic(),
                },
            }
        }
        with open(path, "x", encoding="utf-8") as file:
            json.dump(record, file)


def _bounded(text: str) -> str:
    left_out = len(text) - MAX_TEXT_CHARACTERS
    if left_out <= 0:
        return text
    head = MAX_TEXT_CHARACTERS // 4
    tail = MAX_TEXT_CHARACTERS - head
    return f"{text[:head]}\n[{left_out} characters left out]\n{text[-tail:]}"


def _innermost_user_frame(error: BaseException, trace: TracebackType | None) -> str:
    """The last frame outside of libraries ("train.py:31 in step"), or the last of all if there is none."""
    if trace is None:
        if isinstance(error, SyntaxError) and error.filename:
            return f"{os.path.basename(error.filename)}:{error.lineno} in <module>"
        return ""
    frames = [(frame.f_code, line) for frame, line in traceback.walk_tb(trace)]
    libraries = library_directories()
    users = [(c, n) for c, n in frames if not c.co_filename.startswith(("<", *libraries))]
    code, line = (users or frames)[-1]
    return f"{os.path.basename(code.co_filename)}:{line} in {code.co_name}"
