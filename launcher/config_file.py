"""Reads configuration files; the only importer of YAML.

Finds the sections `fault_tolerance:` and `ftrun:`, checks every key and value in them and says where a bad
one stands. Does not know the command line, nor which source wins.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import yaml

from ftrun.launcher.config import DEFAULT_KEYS
from ftrun.launcher.values import Entry, Setting

_FAULT_TOLERANCE = "fault_tolerance"
_FTRUN = "ftrun"
_SECTIONS = frozenset(name.rpartition(".")[0] for name in DEFAULT_KEYS)


class ConfigError(ValueError):
    """A configuration file, or a `key=value`, that cannot be used; the message names all that is wrong."""


@dataclass(frozen=True, slots=True)
class FileSetting:
    """One value of a configuration file."""

    key: str
    """Dotted, e.g. "ftrun.stop.kill_timeout"."""
    value: Setting
    line: int


def load(path: str) -> tuple[FileSetting, ...]:
    """Read the two sections of a file, `fault_tolerance:` first.

    Raises:
        ConfigError: the file is missing or unreadable, has neither section, or holds an unknown key, a key
            twice, or a value of the wrong kind.
    """
    try:
        with open(path, encoding="utf-8") as file:
            root = yaml.compose(file, Loader=yaml.SafeLoader)
    except OSError as error:
        raise ConfigError(f"{path}: cannot read the configuration file: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: expected text in UTF-8, found {error.reason}") from None
    except (yaml.YAMLError, RecursionError) as error:
        raise ConfigError(f"{path}{_describe_yaml_error(error)}") from None
    reader = _SectionReader()
    reader.read_document(root)
    if reader.problems:
        # A mapping within another is looked through twice.
        problems = sorted(set(reader.problems))
        raise ConfigError("\n".join(f"{path}:{line}: {text}" for line, text in problems))
    return tuple(reader.settings)


def parse_assignment(text: str) -> tuple[str, Setting]:
    """Read `key=value` as `--ft-set` has it: dotted key (`ftrun.` may be left out), value in YAML notation.

    Raises:
        ConfigError: there is no such key, or the value is not of its kind.
    """
    name, separator, value_text = (part.strip() for part in text.partition("="))
    if not separator:
        raise ConfigError(f"found {text!r}, expected KEY=VALUE such as stop.grace_after_failure=10")
    key = name if name in DEFAULT_KEYS else f"{_FTRUN}.{name}"
    if key not in DEFAULT_KEYS:
        raise ConfigError(f"unknown key {name!r}{_suggest(name)}")
    kind = DEFAULT_KEYS[key].spec.kind
    reader = _SectionReader()
    try:
        node = yaml.compose(value_text, Loader=yaml.SafeLoader)
        if node is not None:
            reader.check_entries(key, node)
        value = None if reader.problems else kind.read(reader.to_data(node))
    except (yaml.YAMLError, RecursionError, ValueError):
        raise ConfigError(f"{name}: found {value_text!r}, expected {kind.expected}") from None
    if reader.problems:
        raise ConfigError(f"{name}: {reader.problems[0][1]}")
    return key, value


class _SectionReader:
    """Walks YAML nodes, which know their lines, instead of the plain data, which does not."""

    def __init__(self) -> None:
        self.settings: list[FileSetting] = []
        self.problems: list[tuple[int, str]] = []
        """Line and text."""
        self._constructor = yaml.SafeLoader("")

    def read_document(self, root: yaml.Node | None) -> None:
        found = self._find_sections(root)
        if not found:
            self.problems.append((1, _describe_missing(root)))
        for name, node in found:
            self._read_section(name, node)

    def to_data(self, node: yaml.Node | None) -> object:
        """The node as plain data."""
        if isinstance(node, yaml.MappingNode):
            return {key: self.to_data(value) for key, _, value in self._entries(node)}
        if isinstance(node, yaml.SequenceNode):
            return [self.to_data(item) for item in node.value]
        return None if node is None else self._constructor.construct_object(node)

    def _find_sections(self, root: yaml.Node | None) -> list[tuple[str, yaml.Node]]:
        """`fault_tolerance:` where NVRx finds it, and `ftrun:` at the top or beside that.

        As in nvidia-resiliency-ext's `FaultToleranceConfig`, depth first, and empty sections are passed over.
        """
        holders = [node for node in _mappings(root, set()) if _children(node, _FAULT_TOLERANCE)]
        full = [node for node in holders if not all(map(_is_empty, _children(node, _FAULT_TOLERANCE)))]
        holder = next(iter(full or holders), None)
        found = [(_FAULT_TOLERANCE, node) for node in _children(holder, _FAULT_TOLERANCE)]
        found += [(_FTRUN, node) for node in _children(root, _FTRUN)]
        if holder is not root:
            found += [(_FTRUN, node) for node in _children(holder, _FTRUN)]
        first_lines: dict[str, int] = {}
        for name, node in found:
            if name in first_lines:
                text = f"second section {name!r}, the first is in line {first_lines[name]}"
                self.problems.append((_line(node), text))
            first_lines.setdefault(name, _line(node))
        return found

    def _read_section(self, name: str, node: yaml.Node) -> None:
        if _is_empty(node):
            return
        if not isinstance(node, yaml.MappingNode):
            self.problems.append((_line(node), f"{name}: found {_found(node)}, expected a section with keys"))
            return
        for key, key_node, value in self._entries(node):
            full = f"{name}.{key}"
            if full in DEFAULT_KEYS:
                self._read_value(full, value)
            elif full in _SECTIONS:
                self._read_section(full, value)
            else:
                self.problems.append((_line(key_node), f"unknown key {key!r} in {name}{_suggest(full)}"))

    def check_entries(self, key: str, node: yaml.Node) -> bool:
        """Look for what is wrong with single entries of a mapping whose names are known; False if any is."""
        problems_before = len(self.problems)
        self._check_mapping(key, DEFAULT_KEYS[key].spec.kind.entry, node)
        return len(self.problems) == problems_before

    def _check_mapping(self, where: str, entry: Entry | None, node: yaml.Node) -> None:
        if entry is None or not isinstance(node, yaml.MappingNode):
            return
        names = entry.names()
        for name, key_node, value_node in self._entries(node):
            if name not in names:
                text = f"unknown {entry.noun} {name!r} in {where}{_suggest_among(name, names)}"
                self.problems.append((_line(key_node), text))
                continue
            kind, problems_before = entry.kind_of(name), len(self.problems)
            self._check_mapping(f"{where}.{name}", kind.entry, value_node)
            try:
                kind.read(self.to_data(value_node))
            except (yaml.YAMLError, RecursionError, ValueError):
                text = f"{where}: {name}: found {_found(value_node)}, expected {kind.expected}"
                if len(self.problems) == problems_before:  # else what is wrong inside it is known already
                    self.problems.append((_line(value_node), text))

    def _read_value(self, key: str, node: yaml.Node) -> None:
        kind = DEFAULT_KEYS[key].spec.kind
        if not self.check_entries(key, node):
            return
        try:
            value = kind.read(self.to_data(node))
        except (yaml.YAMLError, RecursionError, ValueError):
            self.problems.append((_line(node), f"{key}: found {_found(node)}, expected {kind.expected}"))
        else:
            self.settings.append(FileSetting(key, value, _line(node)))

    def _entries(self, node: yaml.MappingNode) -> Iterator[tuple[str, yaml.Node, yaml.Node]]:
        """Key, key node and value node; a key given twice is a problem, one merged in by `<<` is not."""
        first_lines: dict[str, int] = {}
        for key_node, _ in node.value:
            key = str(key_node.value)
            if key in first_lines:
                line = _line(key_node)
                self.problems.append((line, f"key {key!r} is given twice, first in line {first_lines[key]}"))
            first_lines.setdefault(key, _line(key_node))
        self._constructor.flatten_mapping(node)
        for key, pair in {str(pair[0].value): pair for pair in node.value}.items():
            yield key, *pair


def _mappings(node: yaml.Node | None, seen: set[int]) -> Iterator[yaml.MappingNode]:
    """All mappings of a document, depth first, each once: aliases can make a document endless."""
    if node is None or id(node) in seen:
        return
    seen.add(id(node))
    if isinstance(node, yaml.MappingNode):
        yield node
        for _, value in node.value:
            yield from _mappings(value, seen)
    elif isinstance(node, yaml.SequenceNode):
        for item in node.value:
            yield from _mappings(item, seen)


def _children(node: yaml.Node | None, name: str) -> list[yaml.Node]:
    if not isinstance(node, yaml.MappingNode):
        return []
    return [value for key, value in node.value if key.value == name]


def _is_empty(node: yaml.Node) -> bool:
    return not node.value or node.tag == "tag:yaml.org,2002:null"


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


def _found(node: yaml.Node) -> str:
    """The value as a person would name it, so that "5" and 5 can be told apart."""
    if isinstance(node, yaml.MappingNode):
        return "a section"
    if isinstance(node, yaml.SequenceNode):
        return "a list"
    return f"the text {node.value!r}" if node.tag == "tag:yaml.org,2002:str" else str(node.value) or "null"


def _suggest(key: str) -> str:
    """The end of a message about an unknown key: the nearest valid one, or else the few of that section."""
    name = key.rpartition(".")[2]
    by_name = {full.rpartition(".")[2]: full for full in DEFAULT_KEYS}
    near = difflib.get_close_matches(key, DEFAULT_KEYS, n=1, cutoff=0.75)
    near += [by_name[match] for match in difflib.get_close_matches(name, by_name, n=1, cutoff=0.6)]
    if near:
        return f", the nearest valid key is {near[0]}"
    section = key.rpartition(".")[0]
    siblings = [full for full in DEFAULT_KEYS if full.rpartition(".")[0] == section]
    is_short = 0 < len(siblings) <= 8
    return f", valid are {', '.join(siblings)}" if is_short else ", see ftrun --ft-show-config for all keys"


def _suggest_among(name: str, names: Sequence[str]) -> str:
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    return f", the nearest is {near[0]}" if near else ""


def _describe_missing(root: yaml.Node | None) -> str:
    if not isinstance(root, yaml.MappingNode):
        return "found no sections, expected fault_tolerance: or ftrun:"
    names = [str(key.value) for key, _ in root.value]
    sections = (_FAULT_TOLERANCE, _FTRUN)
    near = {name: match for name in names for match in difflib.get_close_matches(name, sections, n=1)}
    hint = "".join(f"; is {name}: meant to be {section}: ?" for name, section in near.items())
    return f"found the sections {', '.join(names)}, expected fault_tolerance: or ftrun:{hint}"


def _describe_yaml_error(error: yaml.YAMLError | RecursionError) -> str:
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        return f":{error.problem_mark.line + 1}: not valid YAML: {error.problem}"
    return ": not valid YAML: " + ("nested too deeply" if isinstance(error, RecursionError) else str(error))
