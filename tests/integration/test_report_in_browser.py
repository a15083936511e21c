"""The report page in a real browser: it opens without a word of complaint, also on paper."""

from __future__ import annotations

import re
import shutil
import struct
import subprocess
import zlib
from pathlib import Path

import pytest
from click.testing import CliRunner

from ftrun.monitor.ctl import main
from tests.support.journals import JOURNALS, recorded

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(
    BROWSER is None, reason="no Chromium here (Debian: apt-get install --no-install-recommends chromium)"
)
OPTIONS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--enable-logging=stderr",
    "--disable-dev-shm-usage",
)


def page_of(name: str, directory: Path) -> Path:
    """The page of a recorded run."""
    path = directory / "page.html"
    done = CliRunner().invoke(main, ["report", str(JOURNALS / name), "--html", str(path)])
    assert done.exit_code == 0, done.output
    return path


def browse(page: Path, *action: str) -> tuple[str, list[str]]:
    """What the browser gives back, and what it writes to its console: refusals of the page's policy too."""
    assert BROWSER is not None
    profile = f"--user-data-dir={page.parent / 'profile'}"
    done = subprocess.run(
        [BROWSER, *OPTIONS, profile, *action, page.as_uri()], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, re.findall(r":CONSOLE.*?\] (.*)", done.stderr)


@pytest.mark.parametrize("name", recorded())
def test_page_opens_without_a_complaint(tmp_path: Path, name: str) -> None:
    """The browser reads it as it was meant: all charts and incidents are in its document."""
    page = page_of(name, tmp_path)
    document, console = browse(page, "--dump-dom")
    assert console == []
    text = page.read_text()
    for part in ("<svg", "<article", "<details", "<figure"):
        assert document.count(part) == text.count(part) > 0
    assert "<script" not in document


def test_policy_of_the_page_refuses_the_network_and_scripts(tmp_path: Path) -> None:
    """Were there either, the console would say so: that it is silent means that nothing is asked for."""
    page = page_of("spare", tmp_path)
    smuggled = '<img src="http://127.0.0.1:9/pixel.png"><script>document.title = "run"</script>'
    page.write_text(page.read_text().replace("<body>", f"<body>{smuggled}"))
    document, console = browse(page, "--dump-dom")
    refusals = [line for line in console if "Content Security Policy" in line]
    assert len(refusals) == 2
    assert "127.0.0.1:9/pixel.png" in refusals[0]
    assert "<title>run</title>" not in document


def test_page_can_be_printed(tmp_path: Path) -> None:
    """Without a complaint either."""
    page, paper = page_of("five_faults", tmp_path), tmp_path / "page.pdf"
    _, console = browse(page, "--no-pdf-header-footer", f"--print-to-pdf={paper}")
    assert console == []
    assert paper.read_bytes().startswith(b"%PDF-")


def first_pixel(picture: Path) -> tuple[int, ...]:
    """Red, green, blue of a PNG's first pixel, which every filter of the format leaves as it is."""
    content, place, packed = picture.read_bytes(), 8, b""
    while place < len(content):
        length, kind = struct.unpack_from(">I4s", content, place)
        if kind == b"IDAT":
            packed += content[place + 8 : place + 8 + length]
        place += 12 + length
    return tuple(zlib.decompress(packed)[1:4])


@pytest.mark.parametrize(("preferred", "paper"), [(0, (0x14, 0x18, 0x1D)), (1, (0xFF, 0xFF, 0xFF))])
def test_page_is_dark_for_those_who_prefer_it(tmp_path: Path, preferred: int, paper: tuple[int, ...]) -> None:
    """In Chromium's settings 0 is dark and 1 is light; the paper is that of the style sheet."""
    page, picture = page_of("spare", tmp_path), tmp_path / "page.png"
    browse(page, f"--blink-settings=preferredColorScheme={preferred}", f"--screenshot={picture}")
    assert first_pixel(picture) == paper
