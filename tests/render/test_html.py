# SPDX-License-Identifier: Apache-2.0
"""Documents as HTML: nothing from data is markup, nothing is loaded, nothing runs."""

from __future__ import annotations

import base64
import hashlib
import re
from html.parser import HTMLParser

import pytest
from hostile_names import HOSTILE_NAMES
from render_sample import SAMPLE, document_of

from neutracer.render.document import (
    Document,
    Entry,
    Figure,
    Findings,
    Note,
    Place,
    Severity,
    Table,
)
from neutracer.render.html import page_shell, render_html, render_page

_TAGS = {
    "html", "head", "meta", "title", "style", "body", "div", "h2", "h3", "span", "p", "strong",
    "article", "table", "caption", "thead", "tbody", "tr", "th", "td", "code",
}  # fmt: skip
_VOID = {"meta"}


class _Reader(HTMLParser):
    """Checks that tags close in order, and keeps tags, attributes and words."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.attributes: set[tuple[str, str | None]] = set()
        self.words: list[str] = []
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes.update(attrs)
        if tag not in _VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_comment(self, data: str) -> None:
        raise AssertionError(f"a comment: {data}")

    def handle_data(self, data: str) -> None:
        if not self.open or self.open[-1] != "style":
            self.words += data.split()


@pytest.mark.parametrize("name", HOSTILE_NAMES.values(), ids=HOSTILE_NAMES)
@pytest.mark.parametrize("render", [render_html, render_page])
def test_hostile_names_are_only_words(render, name: str) -> None:  # type: ignore[no-untyped-def]
    harmless = _Reader(render(document_of("name")))
    page = render(document_of(name))
    reader = _Reader(page)
    assert reader.tags <= harmless.tags <= _TAGS
    assert {a for a, _ in reader.attributes} <= {a for a, _ in harmless.attributes}
    assert not {a for a, _ in reader.attributes} & {"style", "src", "href", "onerror", "id"}
    assert all(line.isprintable() for line in page.split("\n"))
    assert len(page.encode("utf-8")) < 100_000


def test_the_sample_says_all_its_words() -> None:
    words = set(_Reader(render_html(SAMPLE)).words)
    for block in ("allocated", "590.9", "2,028.0", "severe", "event", "frag", "train.py:159"):
        assert block in words


def test_a_fragment_is_small_and_styled_alone() -> None:
    fragment = render_html(SAMPLE)
    assert len(fragment) < 8_000
    assert fragment.startswith('<div class="neutracer"><style>')
    assert fragment.endswith("</div>")
    style = fragment.partition("<style>")[2].partition("</style>")[0]
    rules = re.sub(r"@media \([^)]*\)", "", style).replace("}}", "}")
    selectors = [rule.rpartition("{")[0].lstrip("{") for rule in rules.split("}") if rule]
    assert len(selectors) > 10
    assert all(".neutracer" in part for rule in selectors for part in re.split(r",(?!\d)", rule))


def test_a_page_allows_only_its_own_style() -> None:
    page = render_page(SAMPLE)
    style = page.partition("<style>")[2].partition("</style>")[0]
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)
    assert policy is not None
    assert policy[1] == (
        f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    )
    assert page.startswith("<!DOCTYPE html>")
    assert "http://" not in page
    assert "https://" not in page
    assert "url(" not in page


def test_a_style_can_not_end_itself() -> None:
    with pytest.raises(ValueError, match="can't hold"):
        page_shell("t", "", "a{}</style><script>")


def test_severity_is_a_word_too() -> None:
    page = Document("", blocks=(Findings(tuple(Entry(s, "x") for s in Severity)),))
    shown = [w for w in _Reader(render_html(page)).words if w != "x"]
    assert shown == [Severity.SEVERE, *list(Severity)[:-1]]


def test_tables_mark_their_figures() -> None:
    table = Table("t", (("a", Figure("1", "MiB")), ("b", "unknown")), ("", "now"), ("a note",))
    fragment = render_html(Document("", blocks=(table,)))
    assert '<th></th><th class="nt-figure">now</th>' in fragment
    assert '<td>a</td><td class="nt-figure">1 MiB</td>' in fragment
    assert '<td class="nt-figure">unknown</td>' in fragment
    assert "<p>a note</p>" in fragment


def test_an_empty_table_keeps_its_headings() -> None:
    fragment = render_html(Document("", blocks=(Table("t", (), ("size", "where")),)))
    assert "<th>size</th><th>where</th>" in fragment


def test_notes_show_place_or_detail() -> None:
    notes = (Note("by", Place("<module>", "a.py", 3)), Note("try", None, "3 MiB"), Note("alone"))
    fragment = render_html(
        Document("", blocks=(Findings((Entry(Severity.INFO, "x", "", notes),)),))
    )
    assert "<p>by <code>&lt;module&gt;</code> <code>a.py:3</code></p>" in fragment
    assert "<p>try: 3 MiB</p><p>alone</p>" in fragment


def test_words_of_headers_are_not_broken() -> None:
    page = render_html(Document("", blocks=(Table("", (("a", "b"),), ("device", "size")),)))
    rules = re.findall(r"\.neutracer th\{([^}]*)\}", page)
    assert "overflow-wrap:normal" in rules[-1]


def test_theme_of_the_site_wins_over_the_system() -> None:
    page = render_html(Document(""))
    system = page[page.index("prefers-color-scheme:dark") :]
    for light in ("data-jp-theme-light", ".vscode-light", "data-theme=light"):
        assert light in system[: system.index("{--nt-page")]
    for dark in ("[data-jp-theme-light=false]", ".vscode-dark", "[data-theme=dark]"):
        assert f"{dark} .neutracer" in page
