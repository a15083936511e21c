"""Says where each worker's output and error file of a round go, and makes the directories.

Opens no log file: that is `ftrun.launcher.output`'s work. Nothing is deleted or written twice here: each
round has a directory of its own. What goes when space runs short, `ftrun.launcher.retention` decides.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING

from ftrun.launcher.logs_plugin import (
    LogsDestination,
    LogsError,
    LogsPlugin,
    build_plugin,
    find_entry_point,
)
from ftrun.launcher.output_lines import StreamTarget
from ftrun.launcher.streams import Std, StdMap

if TYPE_CHECKING:
    from importlib import metadata

__all__ = ["LogOptions", "LogsError", "RankLogs", "RoundLogs", "RunLogs"]

DEFAULT_PREFIX_TEMPLATE = "[${role_name}${local_rank}]:"
"""torchrun's; TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE replaces it and may also use ${rank}."""
_FILE_NAMES = {Std.OUT: "stdout.log", Std.ERR: "stderr.log"}
_FILTERED_NAMES = {Std.OUT: "filtered_stdout.log", Std.ERR: "filtered_stderr.log"}
_MAX_NAME_CHARS = 128


@dataclass(frozen=True, slots=True)
class LogOptions:
    """What the command line says about the workers' output."""

    log_dir: str | None = None
    """None: in the run directory; "/dev/null": no log files."""
    redirects: StdMap = field(default_factory=StdMap)
    tee: StdMap = field(default_factory=StdMap)
    local_ranks_filter: frozenset[int] | None = None
    """Local ranks that the console shows; None for all."""
    duplicate_stdout_filters: tuple[str, ...] = ()
    duplicate_stderr_filters: tuple[str, ...] = ()
    logs_specs: str | None = None
    """Name of an entry point in the group torchrun.logs_specs."""
    prefix_template: str = DEFAULT_PREFIX_TEMPLATE

    def filters(self, stream: Std) -> tuple[str, ...]:
        """Texts of which a line must contain one to be copied to the filtered file."""
        return self.duplicate_stdout_filters if stream is Std.OUT else self.duplicate_stderr_filters


@dataclass(frozen=True, slots=True)
class RankLogs:
    """Where the output of one worker goes in one round."""

    error_file: Path
    """For TORCHELASTIC_ERROR_FILE."""
    stdout: StreamTarget
    stderr: StreamTarget
    environment: Mapping[str, str]
    """What a plug-in wants changed in this worker's environment; empty without one."""


@dataclass(frozen=True, slots=True)
class RoundLogs:
    """Where the output of one round goes."""

    directory: Path | None
    """None when a plug-in decides, or when the directory could not be made."""
    by_local_rank: Mapping[int, RankLogs]


class RunLogs:
    """The logs of one run of the agent, over all its rounds."""

    def __init__(
        self, options: LogOptions, fallback_dir: Path, run_id: str, on_warning: Callable[[str], None]
    ) -> None:
        """Make the run's log directory, unless a plug-in does.

        Args:
            options: from the command line.
            fallback_dir: the run directory; holds the logs without `log_dir`, and error files that have no
                other place.
            run_id: the job's id; part of the directory's name.
            on_warning: called with one sentence when a later round has to do without log files.

        Raises:
            LogsError: the log directory cannot be made, or there is no such plug-in.
        """
        self._options = options
        self._warn = on_warning
        self._generation = 0
        self.rounds: list[Path] = []
        """Directories that were made, the oldest first."""
        self._plugin: LogsPlugin | None = None
        self._plugin_entry = find_entry_point(options.logs_specs)
        self._has_files = options.log_dir != os.devnull and self._plugin_entry is None
        if self._has_files and options.log_dir:
            self.directory = _make_run_dir(options.log_dir, run_id)
        else:
            self.directory = fallback_dir
        """Holds the rounds' directories."""

    def for_round(self, round_number: int, envs: Mapping[int, Mapping[str, str]]) -> RoundLogs:
        """Make the round's directories and say where everything goes.

        Args:
            round_number: part of the directory's name.
            envs: environment of each local rank's worker; ROLE_NAME and RANK are read for the prefix.
        """
        if self._plugin_entry is not None:
            return self._ask_plugin(self._plugin_entry, round_number, envs)
        directory = self._make_round_dir(round_number, envs)
        file_dir = directory if self._has_files else None
        # A worker copes with an error file that it cannot write; it needs a path all the same.
        error_dir = directory or self.directory / f"attempt_{round_number}"
        by_local_rank = {
            local_rank: RankLogs(
                error_file=error_dir / str(local_rank) / "error.json",
                stdout=self._target(Std.OUT, local_rank, env, file_dir),
                stderr=self._target(Std.ERR, local_rank, env, file_dir),
                environment={},
            )
            for local_rank, env in envs.items()
        }
        return RoundLogs(directory, by_local_rank)

    def _target(
        self, stream: Std, local_rank: int, env: Mapping[str, str], directory: Path | None
    ) -> StreamTarget:
        is_teed = stream in self._options.tee.of(local_rank)
        is_redirected = stream in self._options.redirects.of(local_rank)
        has_file = directory is not None and (is_teed or is_redirected)
        is_shown = self._options.local_ranks_filter is None or local_rank in self._options.local_ranks_filter
        prefix = self._prefix(local_rank, env)
        return StreamTarget(
            local_rank=local_rank,
            stream=stream,
            file=str(directory / str(local_rank) / _FILE_NAMES[stream]) if directory and has_file else None,
            to_console=is_shown and (is_teed or not has_file),
            prefix=prefix if is_teed else None,
            keep_tail=stream is Std.ERR,
            filters=self._options.filters(stream),
            filtered_file=str(directory / _FILTERED_NAMES[stream]) if directory else None,
            filtered_prefix=prefix,
        )

    def _prefix(self, local_rank: int, env: Mapping[str, str]) -> str:
        # The key, not LOCAL_RANK, which is 0 for all with --virtual-local-rank.
        return Template(self._options.prefix_template).safe_substitute(
            role_name=env.get("ROLE_NAME", "default"), rank=env.get("RANK", ""), local_rank=local_rank
        )

    def _make_round_dir(self, round_number: int, local_ranks: Mapping[int, object]) -> Path | None:
        """Make `attempt_<round>`, or `attempt_<round>.<n>` beside an older one, with a directory per rank."""
        while True:
            suffix = f".{self._generation}" if self._generation else ""
            directory = self.directory / f"attempt_{round_number}{suffix}"
            try:
                directory.mkdir(parents=True)
                for local_rank in local_ranks:
                    (directory / str(local_rank)).mkdir()
            except FileExistsError:
                self._generation += 1
            except OSError as error:
                self._warn(
                    f"cannot make log directory {directory}: {error.strerror}; "
                    f"round {round_number} has no log files"
                )
                return None
            else:
                self.rounds.append(directory)
                return directory

    def _ask_plugin(
        self, entry: metadata.EntryPoint, round_number: int, envs: Mapping[int, Mapping[str, str]]
    ) -> RoundLogs:
        options = self._options
        if self._plugin is None:
            self._plugin = build_plugin(
                entry, options.log_dir, options.redirects, options.tee, options.local_ranks_filter
            )
        changed = {local_rank: dict(env) for local_rank, env in envs.items()}
        destination = self._plugin.reify(changed)
        error_files = {rank: destination.error_files.get(rank, "") for rank in envs}
        is_complete = not any(path in ("", os.devnull) for path in error_files.values())
        made = None if is_complete else self._make_round_dir(round_number, envs)
        own_dir = made or self.directory / f"attempt_{round_number}"
        by_local_rank = {
            rank: RankLogs(
                error_file=own_dir / str(rank) / "error.json" if path in ("", os.devnull) else Path(path),
                stdout=self._target_of_plugin(Std.OUT, rank, envs[rank], destination),
                stderr=self._target_of_plugin(Std.ERR, rank, envs[rank], destination),
                environment={
                    name: value
                    for name, value in changed[rank].items()
                    if envs[rank].get(name) != value and name != "TORCHELASTIC_ERROR_FILE"
                },
            )
            for rank, path in error_files.items()
        }
        return RoundLogs(None, by_local_rank)

    def _target_of_plugin(
        self, stream: Std, local_rank: int, env: Mapping[str, str], destination: LogsDestination
    ) -> StreamTarget:
        is_out = stream is Std.OUT
        place = (destination.stdouts if is_out else destination.stderrs).get(local_rank, "")
        is_teed = local_rank in (destination.tee_stdouts if is_out else destination.tee_stderrs)
        prefix = self._prefix(local_rank, env)
        return StreamTarget(
            local_rank=local_rank,
            stream=stream,
            file=None if place in ("", os.devnull) else place,
            to_console=is_teed or place == "",
            prefix=prefix if is_teed else None,
            keep_tail=stream is Std.ERR,
            filters=self._options.filters(stream),
            filtered_file=(destination.filtered_stdout if is_out else destination.filtered_stderr) or None,
            filtered_prefix=prefix,
        )


def _make_run_dir(log_dir: str, run_id: str) -> Path:
    name = re.sub(r"[^\w.=@+,-]", "_", run_id)[:_MAX_NAME_CHARS]
    if name.startswith("."):
        name = "_" + name[1:]
    try:
        os.makedirs(log_dir, exist_ok=True)
        return Path(tempfile.mkdtemp(prefix=f"{name}_", dir=os.path.abspath(log_dir)))
    except OSError as error:
        what = "is a file" if isinstance(error, FileExistsError | NotADirectoryError) else error.strerror
        raise LogsError(
            f"--log-dir: cannot make a log directory in {log_dir}: {what}; "
            "expected a directory that can be written"
        ) from error
