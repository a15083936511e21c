"""Keeps secrets out of what is told of a failure: values of variables and options that look like one. Pure.

Names decide, and a few forms in which services write their keys. What is masked is replaced by "***"; too
much rather than too little, but not what is plainly a number or a setting.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeAlias

MASK = "***"
_LEAST_LENGTH = 8
"""Characters of a value that is looked for wherever it stands: shorter ones are words that texts have."""
_MOST_VALUES = 500

_SERVICES = (
    "db|database|smtp|mail|email|imap|ftp|proxy|redis|mysql|postgres|pg|mongo|ldap|rabbitmq|docker|registry|admin"
    "|root|user|my"
)
_SECRET = re.compile(
    r"passwords?(?![a-z])|passwd(?![a-z])|passphrase"
    r"|(?<![a-z])(?:secrets?|tokens?|credentials?|cookies?|apikeys?)(?![a-z])"
    r"|(?:api|access|private|secret|encryption|signing|auth|storage|account|license|deploy|ssh|client"
    r"|openai|anthropic|wandb|hf|huggingface|comet|neptune|aws|azure|gcp|google|github|gitlab|slack)"
    r"[_.-]?keys?(?![a-z])"
    rf"|(?<![a-z])(?:{_SERVICES})[_.-]?(?:pass|pwd)(?![a-z])"
)
_NO_SECRET = re.compile(
    r"(?<![a-z])(?:pad|eos|bos|unk|sep|cls|mask|image|special|added|num|max|min|per|next|last|new)[_.-]tokens?"
    r"|tokens?[_.-](?:ids?|types?|counts?|per|limits?|len|lengths?)(?![a-z])"
    r"|(?:file|path|dir|url|name|expiry|type)s?$"
)
"""Names of training scripts that only sound so, and of what only says where a secret lies."""
_SECRET_VARIABLE = re.compile(r"[A-Z0-9]_(?:PASS|PWD|PAT|KEY)$")
"""Short words that are a secret's where a variable of the environment is called so (DB_PASS, GITHUB_PAT), and
anything in a script's own names (forward_pass)."""
_NO_SECRET_VARIABLE = re.compile(
    r"^OLD_PWD$|(?<![A-Z])(?:FORWARD|BACKWARD|FIRST|SECOND|SINGLE)_PASS$"
    r"|(?<![A-Z])(?:SORT|CACHE|HASH|PRIMARY|FOREIGN|PARTITION|PUBLIC|MODEL|STATE|CONFIG|DATA|INPUT|OUTPUT|LABEL"
    r"|TARGET|IMAGE|TEXT|RUN|GROUP|SHARD|LOOKUP|BATCH|MASK)_KEY$"
)
_PLAIN = re.compile(r"[\d.,:eE+-]*|(?i:true|false|none|null|yes|no|on|off|auto)")

_NAME = r"(?<![\w.-])(?P<name>{}[\w.-]{{2,}})"
"""It has a left end, or each character of a long word would be a place to begin at: a megabyte of base64 in a
message would take half a minute, on the way to a restart."""
_WORD = _NAME.format("")
_QUOTED = re.compile(rf"{_WORD}[\"']?[ \t]*[=:][ \t]*(?P<quote>[\"'])")
_ASSIGNED = re.compile(rf"{_WORD}[\"']?(?:=|: ?)")
_OPTION = re.compile(rf"{_NAME.format('--')}[ \t]+[\"']?(?!-)")
"""NAME=value, NAME: value, and the same with quotes around either, as programs print settings and headers: up
to the value, which is looked at only where the name is a secret's."""
_IN_QUOTES = {
    quote: re.compile(rf"(?:[^{quote}\\\n]|\\[^\n])+(?={quote})|[^{quote}\n]+(?={quote})|[^\"'\n]+")
    for quote in "\"'"
}
"""The last: the text ends before its quote, as one that was cut does."""
_BARE = re.compile(r"(?:[^\s\"',;&)}\]]|[,;&)}\]](?=\w)(?![\w.-]+[\"']?[=:]))+")
"""A comma, an ampersand or a bracket ends it where the next name follows, or nothing."""
_WORDS = re.compile(r"[^\s\"']+")
_ValueOf: TypeAlias = Callable[[re.Match[str]], re.Pattern[str]]
_FORMS: tuple[tuple[re.Pattern[str], _ValueOf], ...] = (
    (_QUOTED, lambda head: _IN_QUOTES[head["quote"]]),
    (_ASSIGNED, lambda _: _BARE),
    (_OPTION, lambda _: _WORDS),
)
_CREDENTIALS = (
    re.compile(r"(?P<before>\b(?i:bearer|basic) )(?P<value>[\w.~+/=-]{8,})"),
    re.compile(r"(?P<before>\w://[^\s/@:]*:)(?P<value>[^\s/@]+)(?=@)"),
    re.compile(
        r"(?P<before>\b)(?P<value>(?:sk|hf|gh[opsur]|github_pat|glpat|xox[bp])[-_][A-Za-z0-9_-]{20,})"
    ),
    re.compile(r"(?P<before>\b)(?P<value>(?:AKIA|ASIA)[0-9A-Z]{16})\b"),
    re.compile(r"(?P<before>(?<![\w-]))(?P<value>eyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]*)"),
)
"""RFC 6750 and 7617; user information in URLs (RFC 3986); keys of OpenAI, Hugging Face, GitHub, GitLab, Slack
and AWS by their prefixes; JSON web tokens (RFC 7519)."""


def is_secret_name(name: str) -> bool:
    """Whether what is called so is a secret: "HF_TOKEN", "--api-key", "dbPassword"; not "max_tokens"."""
    if _SECRET_VARIABLE.search(name) and not _NO_SECRET_VARIABLE.search(name):
        return True
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
    return _SECRET.search(words) is not None and _NO_SECRET.search(words) is None


def secret_values(environ: Mapping[str, str], argv: Sequence[str] = ()) -> tuple[str, ...]:
    """Values that must not appear anywhere: of variables, and of options of the script, that look secret.

    Of one with several lines, as private keys have, also each line: texts are told line by line.
    """
    found = [value for name, value in environ.items() if is_secret_name(name)]
    for place, word in enumerate(argv):
        name, equals, value = word.partition("=")
        if is_secret_name(name):
            found.append(value if equals else next(iter(argv[place + 1 : place + 2]), ""))
    found += [line.strip() for value in found for line in value.splitlines()]
    long = {value for value in found if len(value) >= _LEAST_LENGTH and not _PLAIN.fullmatch(value)}
    return tuple(sorted(long, key=len, reverse=True)[:_MOST_VALUES])


class Redactor:
    """Masks texts, in a time that grows as their length does.

    Args:
        values: what is masked wherever it stands; see `secret_values`.
    """

    def __init__(self, values: Iterable[str] = ()) -> None:
        self._values = tuple(sorted(filter(None, values), key=len, reverse=True))

    def mask(self, text: str) -> str:
        """The text without secrets."""
        text = self.mask_values(text)
        for head, value_of in _FORMS:
            text = _mask_named(text, head, value_of)
        for pattern in _CREDENTIALS:
            text = pattern.sub(rf"\g<before>{MASK}", text)
        return text

    def mask_values(self, text: str) -> str:
        """Only without the values that are known; for a text that is cut next, perhaps within one."""
        for value in self._values:
            text = text.replace(value, MASK)
        return text


def _mask_named(text: str, head: re.Pattern[str], value_of: _ValueOf) -> str:
    """Without the values behind those heads that name a secret."""
    parts, done = [], 0
    for match in head.finditer(text):
        if match.start() < done or not is_secret_name(match["name"]):
            continue
        value = value_of(match).match(text, match.end())
        if value is not None and not _PLAIN.fullmatch(value[0]):
            parts += [text[done : match.end()], MASK]
            done = value.end()
    return "".join((*parts, text[done:]))
