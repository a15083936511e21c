"""Keeps secrets out of what is told of a failure: values of variables and options that look like one. Pure.

Names decide, and a few forms in which services write their keys. What is masked is replaced by "***"; too
much rather than too little, but not what is plainly a number or a setting.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

MASK = "***"
_LEAST_LENGTH = 8
"""Characters of a value that is looked for wherever it stands: shorter ones are words that texts have."""
_MOST_VALUES = 500

_SECRET = re.compile(
    r"(?<![a-z])(?:secrets?|tokens?|passwords?|passwd|passphrase|credentials?|cookies?|apikeys?)(?![a-z])"
    r"|(?:api|access|private|secret|encryption|signing|auth|storage|account|license|deploy|ssh|client)"
    r"[_.-]?keys?(?![a-z])"
)
_NO_SECRET = re.compile(
    r"(?:pad|eos|bos|unk|sep|cls|mask|image|special|added|num|max|min|per|next|last|new)[_.-]tokens?"
    r"|tokens?[_.-](?:id|ids|type|count|per|limit|len|length)"
    r"|(?:file|path|dir|url|name|expiry|type)s?$"
)
"""Names of training scripts that only sound so, and of what only says where a secret lies."""
_PLAIN = re.compile(r"[\d.,:eE+-]*|(?i:true|false|none|null|yes|no|on|off|auto)")

_NAME = r"[A-Za-z][\w.-]{1,80}"
_QUOTED = re.compile(
    rf"(?P<name>{_NAME})(?P<between>[\"']?[ \t]*[=:][ \t]*(?P<quote>[\"']))(?P<value>[^\n]+?)(?=(?P=quote))"
)
_ASSIGNED = re.compile(rf"(?P<name>{_NAME})(?P<between>[\"']?(?:=|: ?))(?P<value>[^\s\"',;&)}}\]]+)")
"""NAME=value, NAME: value, and the same with quotes around either, as programs print settings and headers."""
_OPTION = re.compile(rf"(?P<name>--{_NAME})(?P<between>[ \t]+[\"']?)(?P<value>(?!-)[^\s\"']+)")
_CREDENTIALS = (
    re.compile(r"(?P<before>\b(?i:bearer|basic) )(?P<value>[\w.~+/=-]{8,})"),
    re.compile(r"(?P<before>\w://[^\s/@:]*:)(?P<value>[^\s/@]+)(?=@)"),
    re.compile(r"(?P<before>\b)(?P<value>(?:sk|hf|ghp|gho|glpat|xox[bp])[-_][A-Za-z0-9_-]{20,})"),
    re.compile(r"(?P<before>\b)(?P<value>(?:AKIA|ASIA)[0-9A-Z]{16})\b"),
    re.compile(r"(?P<before>\b)(?P<value>eyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]*)"),
)
"""RFC 6750 and 7617; user information in URLs (RFC 3986); keys of OpenAI, Hugging Face, GitHub, GitLab, Slack
and AWS by their prefixes; JSON web tokens (RFC 7519)."""


def is_secret_name(name: str) -> bool:
    """Whether what is called so is a secret: "HF_TOKEN", "--api-key", "dbPassword"; not "max_tokens"."""
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
    return _SECRET.search(words) is not None and _NO_SECRET.search(words) is None


def secret_values(environ: Mapping[str, str], argv: Sequence[str] = ()) -> tuple[str, ...]:
    """Values that must not appear anywhere: of variables, and of options of the script, that look secret."""
    found = [value for name, value in environ.items() if is_secret_name(name)]
    for place, word in enumerate(argv):
        name, equals, value = word.partition("=")
        if is_secret_name(name):
            found.append(value if equals else next(iter(argv[place + 1 : place + 2]), ""))
    long = {value for value in found if len(value) >= _LEAST_LENGTH and not _PLAIN.fullmatch(value)}
    return tuple(sorted(long, key=len, reverse=True)[:_MOST_VALUES])


class Redactor:
    """Masks texts.

    Args:
        values: what is masked wherever it stands; see `secret_values`.
    """

    def __init__(self, values: Iterable[str] = ()) -> None:
        escaped = "|".join(map(re.escape, values))
        self._values = re.compile(escaped) if escaped else None

    def mask(self, text: str) -> str:
        """The text without secrets."""
        if self._values is not None:
            text = self._values.sub(MASK, text)
        for pattern in (_QUOTED, _ASSIGNED, _OPTION):
            text = pattern.sub(_masked, text)
        for pattern in _CREDENTIALS:
            text = pattern.sub(rf"\g<before>{MASK}", text)
        return text


def _masked(match: re.Match[str]) -> str:
    if not is_secret_name(match["name"]) or _PLAIN.fullmatch(match["value"]):
        return match[0]
    return f"{match['name']}{match['between']}{MASK}"
