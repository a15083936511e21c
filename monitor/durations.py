"""Lengths of time, parts and counts as people write them. Pure."""

from __future__ import annotations

import re

_UNITS_S = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_TYPED = re.compile(r"(\d+(?:\.\d+)?)\s*(s|min|m|h|d|w)?")


def short(seconds: float | None) -> str:
    """ "0.31 s", "14 s", "3 min 20 s", "2 h 5 min" or "6 d 3 h"; "-" for None."""
    if seconds is None:
        return "-"
    if seconds < 10:
        return f"{max(0.0, seconds):.2f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return _two(whole, 60, "min", 1, "s")
    if whole < 86400:
        return _two(round(whole / 60), 60, "h", 1, "min")
    return _two(round(whole / 3600), 24, "d", 1, "h")


def _two(count: int, factor: int, large: str, least: int, small: str) -> str:
    whole, rest = divmod(count, factor)
    return f"{whole} {large}" + (f" {rest} {small}" if rest >= least else "")


def parse(text: str) -> float:
    """Seconds of "90", "90s", "15m", "12h", "7d" or "2w".

    Raises:
        ValueError: it is no such text.
    """
    match = _TYPED.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is no length of time; write it as 90s, 15m, 12h, 7d or 2w")
    return float(match[1]) * _UNITS_S[match[2] or "s"]


def percent(part: float | None) -> str:
    """ "91.2 %"; "unknown" for None."""
    return "unknown" if part is None else f"{100 * part:.1f} %"


def plural(count: int, word: str, words: str = "") -> str:
    """ "1 node", "2 nodes"."""
    return f"{count} {word if count == 1 else words or f'{word}s'}"
