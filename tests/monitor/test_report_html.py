"""The report page as HTML: whatever a run says stays text, and what is missing is said by name."""

from __future__ import annotations

import json
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
from click.testing import CliRunner

from ftrun.monitor.ctl import main
from ftrun.monitor.report_html import printable
from tests.support.journals import JOURNALS, recorded

HOSTILE = "</script><script>alert(1)</script></title><img src=x onerror=alert(1)>'\"&amp;\x1b[31m\x00"

_MEANING = ("event", "cause", "action")
"""What a text must be for the line to mean what it does."""


class Reader(HTMLParser):
    """Elements, their attributes, and the text of a page; every element is closed as it was opened."""

    VOID = frozenset({"meta", "link", "img", "br"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def write_page(journals: Path, target: Path) -> str:
    """The page that `ftctl report --html` writes."""
    done = CliRunner().invoke(main, ["report", str(journals), "--html", str(target)])
    assert (done.exit_code, done.output, done.exception) == (0, f"wrote {target}\n", None)
    return target.read_text(encoding="utf-8")


def infect(value: object) -> object:
    """The same line of a journal with something hostile in every text but those that give it its meaning."""
    if isinstance(value, str):
        return f"{value}{HOSTILE}"
    if isinstance(value, list):
        return [infect(item) for item in value]
    return value


def infected(source: Path, target: Path) -> Path:
    target.mkdir()
    for path in source.iterdir():
        lines = []
        for line in path.read_text().splitlines():
            fields = json.loads(line)
            hostile = {key: value if key in _MEANING else infect(value) for key, value in fields.items()}
            lines.append(json.dumps(hostile))
        (target / path.name).write_text("\n".join(lines) + "\n")
    return target


@pytest.mark.parametrize("name", recorded())
def test_what_a_run_says_stays_text(tmp_path: Path, name: str) -> None:
    """Names of nodes, messages of exceptions, kinds, paths: none becomes an element or an attribute."""
    plain = Reader(write_page(JOURNALS / name, tmp_path / "plain.html"))
    hostile = Reader(write_page(infected(JOURNALS / name, tmp_path / "run"), tmp_path / "hostile.html"))
    assert {tag for tag, _ in hostile.elements} <= {tag for tag, _ in plain.elements} | {"ul", "li", "p"}
    assert not {"script", "img", "iframe", "object"} & {tag for tag, _ in hostile.elements}
    for _, attributes in hostile.elements:
        assert not [key for key in attributes if key.startswith("on")]
    words = "".join(hostile.words)
    assert "<script>alert(1)</script>" in words
    assert "onerror=alert(1)>'\"&amp;\N{REPLACEMENT CHARACTER}[31m" in words
    assert "\x1b" not in words
    assert "\x00" not in words


@pytest.mark.parametrize("name", recorded())
def test_page_needs_nothing_else(tmp_path: Path, name: str) -> None:
    """No script, and no address but those in the page itself."""
    page = Reader(write_page(JOURNALS / name, tmp_path / "page.html"))
    for tag, attributes in page.elements:
        assert tag != "script"
        for key in ("src", "href", "xlink:href", "data", "action"):
            assert (attributes.get(key) or "#").startswith(("#", "data:,")), (tag, attributes)
    [policy] = [
        one["content"] for _, one in page.elements if one.get("http-equiv") == "Content-Security-Policy"
    ]
    assert policy == "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
    identifiers = {one["id"] for _, one in page.elements if "id" in one}
    links = {one["href"] or "" for tag, one in page.elements if tag == "a"}
    assert links
    assert {link.removeprefix("#") for link in links} <= identifiers


def test_every_colour_of_the_charts_is_defined(tmp_path: Path) -> None:
    """In each of the three styles: light, dark, paper."""
    text = write_page(JOURNALS / "spare", tmp_path / "page.html")
    style, _, rest = text.partition("</style>")
    used = {part.partition(")")[0] for part in rest.split("var(")[1:]}
    for part in style.split(":root {")[1:]:
        assert not {name for name in used if f"{name}:" not in part.partition("}")[0]}
    assert style.count(":root {") == 3


def test_half_of_a_surrogate_pair_can_be_written(tmp_path: Path) -> None:
    """JSON may hold one; UTF-8 may not."""
    run = tmp_path / "run"
    run.mkdir()
    text = (JOURNALS / "import_error/gpu-a.jsonl").read_text()
    (run / "gpu-a.jsonl").write_text(text.replace("gpu-a", "gpu\\ud800"))
    assert "gpu\N{REPLACEMENT CHARACTER}" in write_page(run, tmp_path / "page.html")
    assert printable("a\tb\nc\x07") == "a\tb\nc\N{REPLACEMENT CHARACTER}"


@pytest.mark.parametrize("missing", ["vl_convert", "jinja2"])
def test_missing_library_is_named_with_what_brings_it(tmp_path: Path, missing: str) -> None:
    """The page is not begun; all other commands work without it."""
    code = f"import sys; sys.modules[{missing!r}] = None; from ftrun.monitor.ctl import main; main()"
    arguments = [sys.executable, "-c", code, "report", str(JOURNALS / "spare")]
    page = ("--html", str(tmp_path / "page.html"))
    done = subprocess.run([*arguments, *page], capture_output=True, text=True, timeout=60)
    expected = f"--html needs {missing}, which is not installed; pip install 'ftrun[report]' brings it"
    assert (done.returncode, done.stderr) == (1, f"Error: {expected}\n")
    assert not list(tmp_path.iterdir())
    assert subprocess.run(arguments, capture_output=True, timeout=60).returncode == 0


def test_page_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    """One that was there is replaced; a directory that is not there is an error in one line."""
    target = tmp_path / "page.html"
    target.write_text("before")
    write_page(JOURNALS / "spare", target)
    assert list(tmp_path.iterdir()) == [target]
    missing = tmp_path / "no" / "page.html"
    done = CliRunner().invoke(main, ["report", str(JOURNALS / "spare"), "--html", str(missing)])
    assert done.exit_code == 1
    assert done.output.startswith("Error: [Errno 2] No such file or directory")


@pytest.mark.parametrize("option", ["--json", "--all"])
def test_page_is_asked_for_alone(tmp_path: Path, option: str) -> None:
    """It has everything."""
    done = CliRunner().invoke(main, ["report", "--html", str(tmp_path / "page.html"), option])
    assert done.exit_code == 2
    assert "--html has everything in it: give it without --all and --json" in done.output
