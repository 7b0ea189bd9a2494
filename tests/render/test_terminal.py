# SPDX-License-Identifier: Apache-2.0
"""Colour only where a person looks and wants it; the words are the same everywhere."""

from __future__ import annotations

import io
import re
import sys

import pytest
from render_sample import SAMPLE

from neutracer.render.document import Document, Entry, Findings, Severity
from neutracer.render.text import render_text, show, write

_ANSI = re.compile(r"\x1b\[[0-9;]*m")


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR", "COLORTERM"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "120")


def test_a_pipe_gets_plain_text_as_wide_as_columns_says() -> None:
    stream = io.StringIO()
    show(SAMPLE, stream)
    assert stream.getvalue() == render_text(SAMPLE, 120) + "\n"


@pytest.mark.parametrize("columns", ["", "wide", "0", "-5"])
def test_a_pipe_without_columns_fits_any_terminal(
    columns: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    stream = io.StringIO()
    show(SAMPLE, stream)
    assert stream.getvalue() == render_text(SAMPLE, 80) + "\n"


def test_standard_output_is_the_default(capsys: pytest.CaptureFixture[str]) -> None:
    show(SAMPLE)
    assert capsys.readouterr().out == render_text(SAMPLE, 120) + "\n"


def test_a_terminal_gets_colours_with_rich() -> None:
    pytest.importorskip("rich")
    stream = _Terminal()
    show(SAMPLE, stream)
    assert "\x1b[1;31mSEVERE" in stream.getvalue()
    words = [line.rstrip() for line in _ANSI.sub("", stream.getvalue()).splitlines()]
    assert words == render_text(SAMPLE, 120).splitlines()


def test_a_terminal_gets_a_page_at_once() -> None:
    pytest.importorskip("rich")
    written: list[str] = []

    class Shared(_Terminal):
        def write(self, text: str) -> int:
            written.append(text)
            return len(text)

    show(SAMPLE, Shared())
    assert len(written) == 1


@pytest.mark.parametrize(("name", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_colours_can_be_refused(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, value)
    stream = _Terminal()
    show(SAMPLE, stream)
    assert stream.getvalue() == render_text(SAMPLE, 120) + "\n"


def test_a_terminal_without_rich_is_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rich.console", None)
    stream = _Terminal()
    show(SAMPLE, stream)
    assert stream.getvalue() == render_text(SAMPLE, 120) + "\n"


def test_a_narrow_terminal_gets_narrow_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    stream = _Terminal()
    show(SAMPLE, stream)
    lines = _ANSI.sub("", stream.getvalue()).splitlines()
    assert [line.rstrip() for line in lines] == render_text(SAMPLE, 60).splitlines()


@pytest.mark.parametrize("name", ["[red]x[/red]", "[bold", "\x1b[2J", ":smile:", "[/]", "http://x"])
def test_names_are_no_markup_to_rich(name: str) -> None:
    page = Document(name, blocks=(Findings((Entry(Severity.INFO, name),)),))
    stream = _Terminal()
    show(page, stream)
    words = [line.rstrip() for line in _ANSI.sub("", stream.getvalue()).splitlines()]
    assert words == render_text(page).splitlines()


def test_a_poor_encoding_still_gets_the_text() -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii")
    write("a · b… 数\n", stream)
    stream.flush()
    assert raw.getvalue() == b"a - b~ \\u6570\n"


def test_show_cuts_at_one_screen() -> None:
    stream = io.StringIO()
    show(SAMPLE, stream, max_lines=5)
    assert stream.getvalue() == render_text(SAMPLE, 120, max_lines=5) + "\n"


@pytest.mark.parametrize("columns", [80, 100, 160])
def test_a_page_is_as_wide_as_the_terminal(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("NO_COLOR", "1")
    stream = _Terminal()
    show(SAMPLE, stream)
    assert stream.getvalue() == render_text(SAMPLE, columns) + "\n"
    assert columns - 10 < max(map(len, stream.getvalue().splitlines())) <= columns
