"""Splits a command line into options and the training script's own words, and writes the help, with click.

Knows how options are spelled, not what their values mean.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import click

from ftrun.launcher.launch_options import UsageError
from ftrun.launcher.option_table import Group, OptionSpec

_SEE_HELP = "see ftrun --help"
_COMMAND = "command"


@dataclass(frozen=True, slots=True)
class Word:
    """An option as it was typed."""

    name: str
    """As typed: "--nproc_per_node", or "--nproc" when shortened."""
    texts: tuple[str, ...]
    """Its value, the last one typed; all of them for repeatable options; "1" for a flag."""


@dataclass(frozen=True, slots=True)
class CommandLine:
    """A command line in its parts."""

    words: dict[str, Word]
    """By `OptionSpec.dest`; only what was typed."""
    command: tuple[str, ...]
    """Training script and its arguments, untouched; () if there is none."""


class OptionNames:
    """Finds options by the names that people may type, and remembers which they typed."""

    def __init__(self, specs: Iterable[OptionSpec]) -> None:
        self.specs = tuple(specs)
        self.typed: dict[str, str] = {}
        """`OptionSpec.dest` to the name last typed."""
        self._by_name = {name: spec for spec in self.specs for name in spec.names}
        self._letters = frozenset(name[1:] for name in self._by_name if not name.startswith("--"))
        of_torchrun = [spec for spec in self.specs if spec.group is Group.TORCHRUN]
        self._short_forms = [name for spec in of_torchrun for name in spec.names]

    def find_exactly(self, name: str) -> OptionSpec | None:
        """The option of this name, spelled with dashes or underscores."""
        return self._by_name.get(name.replace("_", "-") if name.startswith("--") else name)

    def find(self, name: str) -> OptionSpec | None:
        """As `find_exactly`; a torchrun option also by the beginning of its name if no other begins so."""
        found = self._begin_with(name)
        return self.find_exactly(name) or (self._by_name[found[0]] if len(found) == 1 else None)

    def normalize(self, token: str) -> str:
        """The canonical form of an option without its leading dashes, as click asks for each token."""
        if token in self._letters:
            self.typed[self._by_name[f"-{token}"].dest] = f"-{token}"
            return token
        spec = self.find(f"--{token}")
        if spec is None:
            return token
        self.typed[spec.dest] = f"--{token}"
        return spec.names[0].removeprefix("--")

    def declare(self, spec: OptionSpec) -> click.Option:
        """The option as click knows it: one spelling, since `normalize` maps the others to it."""
        letters = [name for name in spec.names if not name.startswith("--")]
        # click does not tell -t from --t when it asks for the canonical form, so both are declared.
        letters += [f"-{letter}" for letter in letters if self.find(f"-{letter}") is spec]
        names = [spec.dest, spec.names[0], *letters]
        if spec.is_flag:
            return click.Option(names, is_flag=True, default=False)
        return click.Option(names, type=str, multiple=spec.is_repeatable)

    def explain_unknown(self, name: str) -> str:
        """Why there is no such option, and what may have been meant."""
        candidates = self._begin_with(name)
        if len(candidates) > 1:
            return f"{name}: could be {', '.join(candidates)}; type more of it"
        near = difflib.get_close_matches(name.replace("_", "-"), self._by_name, n=1)
        return f"{name}: there is no such option, {f'did you mean {near[0]}?' if near else _SEE_HELP}"

    def _begin_with(self, name: str) -> list[str]:
        wanted = name.replace("_", "-")
        return [full for full in self._short_forms if name.startswith("--") and full.startswith(wanted)]


def split(argv: Sequence[str], specs: Iterable[OptionSpec]) -> CommandLine:
    """Split a command line; everything after the first word that is no option belongs to the script.

    Raises:
        UsageError: an option is unknown, ambiguous, lacks its value, or has one that it does not take.
    """
    names = OptionNames(specs)
    argument = click.Argument([_COMMAND], nargs=-1, type=click.UNPROCESSED)
    command = click.Command(
        "ftrun", params=[*map(names.declare, names.specs), argument], add_help_option=False
    )
    try:
        context = command.make_context(
            "ftrun", list(argv), allow_interspersed_args=False, token_normalize_func=names.normalize
        )
    except click.NoSuchOption as error:
        raise UsageError(names.explain_unknown(error.option_name)) from None
    except click.UsageError as error:
        raise UsageError(f"{error.format_message().rstrip('.')}; {_SEE_HELP}") from None
    words = {}
    for spec in names.specs:
        value = context.params[spec.dest]
        if value is None or value is False or value == ():
            continue
        texts = value if isinstance(value, tuple) else ("1" if value is True else value,)
        words[spec.dest] = Word(names.typed[spec.dest], texts)
        _refuse_options_as_values(names, words[spec.dest])
    return CommandLine(words, tuple(context.params[_COMMAND]))


def _refuse_options_as_values(names: OptionNames, word: Word) -> None:
    for text in word.texts:
        if names.find_exactly(text.partition("=")[0]) is not None:
            raise UsageError(f"{word.name}: expected a value, found the option {text}; give the value")


def format_help(specs: Iterable[OptionSpec], defaults: dict[str, str]) -> str:
    """The help text.

    Args:
        specs: all options.
        defaults: default as text by `OptionSpec.dest`, for those that have one worth showing.
    """
    formatter = click.HelpFormatter(width=110)
    formatter.write_usage("ftrun", "[OPTIONS] SCRIPT [ARGS]...")
    formatter.write_paragraph()
    formatter.write_text(
        "Runs a training script on every GPU as torchrun does, and restarts it when a rank fails. Each option"
        " can be spelled with underscores too. The command line wins over PET_<OPTION> in the environment,"
        " that over the file."
    )
    all_specs = tuple(specs)
    for group in Group:
        rows = [_help_row(spec, defaults.get(spec.dest, "")) for spec in all_specs if spec.group is group]
        with formatter.section(group.value):
            formatter.write_dl(rows, col_max=34)
    return formatter.getvalue()


def _help_row(spec: OptionSpec, default: str) -> tuple[str, str]:
    names = ", ".join(sorted(spec.names, key=len))
    text = f"{spec.help} [default: {default}]" if default else spec.help
    return (names if spec.is_flag else f"{names} {'|'.join(spec.choices) or 'VALUE'}", text)
