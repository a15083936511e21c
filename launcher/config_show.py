"""Writes a configuration as YAML text with a comment on every value.

Pure. The text of a whole configuration loads again as a configuration file with the same two sections.
"""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Callable, Iterable
from dataclasses import fields

from ftrun.launcher.config import DEFAULT_KEYS, Config, Key, LaunchOptions, iterate_keys
from ftrun.launcher.streams import StdMap

_PLAIN_TEXT = re.compile(r"[A-Za-z/][A-Za-z0-9_./-]*", re.ASCII)
_YAML_WORDS = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null"})
_HEADER = """\
# Every key that ftrun reads, with its default, unit and reason. Copy what you change, leave out the rest.
# Use it with: ftrun --ft-config FILE ...  The command line wins over PET_ variables, those over the file.
# Keys marked "No effect" are accepted, so that files written for ft_launcher load; setting one warns.
"""


def render_config(config: Config) -> str:
    """Show every value with its origin."""
    lines = ["launch:"]
    for item in fields(LaunchOptions):
        # It is a key of the configuration file, and shown there.
        if item.name != "max_restarts":
            origin = config.origins.get(f"launch.{item.name}", "default")
            lines.append(f"  {item.name}: {_render(getattr(config.launch, item.name))}  # {origin}")

    def comment(key: Key) -> str:
        origin = config.origins.get(key.name, "default")
        return f"  # {origin} (no effect)" if key.spec.inactive else f"  # {origin}"

    keys = iterate_keys(config.fault_tolerance, config.ftrun, config.launch.max_restarts)
    return "\n".join([*lines, *_render_keys(keys, lambda key, indent: [], comment)]) + "\n"


def render_defaults() -> str:
    """The text of configs/default.yaml: every key with default, unit and reason."""

    def above(key: Key, indent: str) -> list[str]:
        text = f"{key.spec.why} Unit: {key.spec.unit}."
        if key.spec.inactive:
            text += f" No effect: {key.spec.inactive}."
        return textwrap.wrap(text, 108, initial_indent=f"{indent}# ", subsequent_indent=f"{indent}# ")

    lines = _render_keys(DEFAULT_KEYS.values(), above, lambda key: "")
    return _HEADER + "\n".join(lines) + "\n"


def render_value(value: object) -> str:
    """A value as a configuration file would have it."""
    is_mapping = isinstance(value, tuple) and value and all(isinstance(item, tuple) for item in value)
    return _render_mapping(value) if is_mapping else _render(value)


def _render_keys(
    keys: Iterable[Key], above: Callable[[Key, str], list[str]], beside: Callable[[Key], str]
) -> list[str]:
    lines: list[str] = []
    path: list[str] = []
    for key in keys:
        *sections, name = key.name.split(".")
        for depth, section in enumerate(sections):
            if path[: depth + 1] != sections[: depth + 1]:
                lines.append(f"{'  ' * depth}{section}:")
                path = sections[: depth + 1]
        path = sections
        indent = "  " * len(sections)
        value = _render_mapping(key.value) if key.spec.kind.is_mapping else _render(key.value)
        lines += [*above(key, indent), f"{indent}{name}: {value}{beside(key)}"]
    return lines


def _render_mapping(value: object) -> str:
    if not isinstance(value, tuple):
        raise TypeError(f"expected pairs, found {value!r}")
    render = {name: _render_mapping if isinstance(item, tuple) else _render for name, item in value}
    return "{" + ", ".join(f"{_render(name)}: {render[name](item)}" for name, item in value) + "}"


def _quote(text: str) -> str:
    quoted = json.dumps(text, ensure_ascii=False)
    # YAML refuses or folds what is not printable; its escape for a lone surrogate is JSON's.
    return "".join(char if char.isprintable() else f"\\U{ord(char):08x}" for char in quoted)


def _render(value: object) -> str:
    if isinstance(value, StdMap):
        return _render(str(value))
    if isinstance(value, (tuple, frozenset)):
        items = sorted(value) if isinstance(value, frozenset) else value
        return "[" + ", ".join(map(_render, items)) + "]"
    if isinstance(value, str):
        is_plain = _PLAIN_TEXT.fullmatch(value) and value.lower() not in _YAML_WORDS
        return value if is_plain else _quote(value)
    if isinstance(value, float) and "e" in repr(value):
        mantissa, _, exponent = repr(value).partition("e")
        # YAML 1.1 takes a number without a point for text.
        return f"{mantissa if '.' in mantissa else mantissa + '.0'}e{exponent}"
    return json.dumps(value)
