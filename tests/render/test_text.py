# SPDX-License-Identifier: Apache-2.0
"""Documents as text: the design's page, its width, and names that mean harm."""

from __future__ import annotations

import pytest
from hostile_names import HOSTILE_NAMES
from hypothesis import given, settings
from hypothesis import strategies as st
from render_sample import SAMPLE, document_of

from neutracer.render.document import (
    Copyable,
    Document,
    Entry,
    Figure,
    Findings,
    Heading,
    KeyValues,
    Note,
    Paragraph,
    Place,
    Severity,
    Table,
    display_width,
)
from neutracer.render.text import layout, render_text

SAMPLE_TEXT = """\
SEVERE   the cache grew to 2,028 MiB for 390 MiB asked for   event 2,048
         14 times a request some 8 MiB larger than the last found no hole (asked 168 MiB, largest
         hole 160 MiB) and took a segment of its own: frag (train.py:159)
         try expandable_segments:True: 680 MiB instead of 2,028 (replayed; the model reproduces this
         file exactly)

frag_default.pickle   PyTorch snapshot · 1 device · 2,375 events over 70 ms · history complete
                      default settings

cuda:0           now          peak
  allocated      406.0 MiB      590.9 MiB   event 2,215
  reserved       540.0 MiB    2,028.0 MiB   event 2,048; 14 segments given back since
  unused          24.8 %         81   %     moderate now, severe at the peak of reserved
  2 retries (cache given back to find room), 1 out of memory

SEVERE   out of memory: asked 1,579 MiB   event 2,374
         Not the device: 138.8 GiB were free; the process is capped. Inside its segments 134 MiB
         were free, in 23 holes of at most 35.8 MiB, each segment kept by blocks of
         frag (train.py:155)
         more:  neutracer explain frag_default.pickle

Who holds the peak (579.2 MiB asked for, 590.9 MiB allocated)
   69.6 %   403.2 MiB   60 blocks   frag   train.py:155
   30.4 %   176.0 MiB    1 block    frag   train.py:159"""


def _entry(headline: str, *notes: Note, when: str = "") -> Document:
    return Document("", blocks=(Findings((Entry(Severity.INFO, headline, when, notes),)),))


def test_the_page_of_the_design_is_reproduced() -> None:
    assert render_text(SAMPLE) == SAMPLE_TEXT


def test_a_wide_page_keeps_its_facts_together() -> None:
    title = render_text(SAMPLE, width=120).splitlines()[5]
    assert title == (
        "frag_default.pickle   PyTorch snapshot · 1 device · 2,375 events over 70 ms"
        " · history complete · default settings"
    )


@pytest.mark.parametrize("width", [40, 60, 80, 100, 200])
def test_no_line_is_wider_than_asked(width: int) -> None:
    lines = render_text(SAMPLE, width).splitlines()
    assert max(map(display_width, lines)) <= width
    assert all(line == line.rstrip() for line in lines)


def test_every_width_shows_the_same_words() -> None:
    words = sorted(word for word in SAMPLE_TEXT.split() if word != "·")
    for width in (64, 80, 160):
        assert sorted(word for word in render_text(SAMPLE, width).split() if word != "·") == words


def test_first_lines_are_verdict_line_and_advice() -> None:
    where, why = Note("held by", Place("f", "a.py", 1)), Note("The device had 3 GiB free.")
    advice = (Note("try it"), Note("more", detail=Copyable("neutracer explain x")))
    worst = Entry(Severity.SEVERE, "out of memory", "", (why, where), advice)
    page = Document("x", ("a fact",), (Findings((Entry(Severity.INFO, "fine"), worst)),))
    assert render_text(page).splitlines() == [
        "SEVERE   out of memory",
        "         held by f (a.py:1)",
        "         try it",
        "         The device had 3 GiB free.",
        "         more: neutracer explain x",
        "",
        "x   a fact",
        "",
        "INFO     fine",
    ]


def test_equal_headlines_in_a_row_are_one() -> None:
    entries = [
        Entry(Severity.INFO, "a copy", f"event {n}", (Note("by", Place("f", "a.py", n)),))
        for n in (1, 2, 3)
    ]
    page = Document("", blocks=(Findings((Entry(Severity.SEVERE, "worse"), *entries)),))
    assert render_text(page).splitlines()[2:] == [
        "INFO     a copy   event 1, event 2, event 3",
        *(f"         by f (a.py:{n})" for n in (1, 2, 3)),
    ]


def test_healthy_page_begins_with_what_was_looked_at() -> None:
    fine = "nothing wrong found: fragmentation and growth looked at"
    page = Document("x", blocks=(Findings((Entry(Severity.INFO, "a note"),)),), healthy=fine)
    assert render_text(page).splitlines() == [fine, "", "x", "", "INFO     a note"]
    worse = Document("x", blocks=(Findings((Entry(Severity.MODERATE, "no"),)),), healthy=fine)
    assert fine not in render_text(worse)


def test_short_page_has_three_sentences_of_a_finding_and_no_details() -> None:
    by = Note("by", Place("f", "a.py", 1))
    notes, advice = (Note("first"), by, Note("second")), (Note("try it"), Note("or that"))
    entries = (Entry(Severity.SEVERE, "a", "", notes), Entry(Severity.INFO, "b", "", notes, advice))
    table = Table("t", (("x", "y"),), is_detail=True)
    lines = render_text(Document("", blocks=(Findings(entries), table)).in_short()).splitlines()
    assert lines == [
        "SEVERE   a",
        "         by f (a.py:1)",
        "         first",
        "         second",
        "",
        "INFO     b",
        "         by f (a.py:1)",
        "         try it",
    ]


def test_a_screen_ends_with_the_command_for_more() -> None:
    lines = render_text(SAMPLE, max_lines=10).splitlines()
    assert lines[:9] == SAMPLE_TEXT.splitlines()[:9]
    more = len(SAMPLE_TEXT.splitlines()) - 9
    assert lines[9:] == [f"… {more} more lines: neutracer report frag_default.pickle --all"]
    assert render_text(SAMPLE, max_lines=9 + more) == SAMPLE_TEXT


def test_figures_stand_below_each_other() -> None:
    rows = (("a", Figure("1,024.5", "MiB")), ("b", Figure("7", "B")), ("c", "unknown"))
    assert render_text(Document("", blocks=(Table("", rows),))).splitlines() == [
        "   a   1,024.5 MiB",
        "   b       7   B",
        "   c       unknown",
    ]


# From the least that its columns take.
@pytest.mark.parametrize("width", range(67, 110))
def test_no_figure_of_a_table_is_cut(width: int) -> None:
    sizes = (2_200_000_000, 223_600_000, 1_976_000_000)
    rows = tuple(
        (Figure.bytes(size), name, Figure.bytes(size), "", Figure.bytes(size))
        for size, name in zip(sizes, ("train.py:253", "free inside, of use", "x"), strict=True)
    )
    table = Table("The bill", rows, ("", "", "stands", "piled up", "this step"))
    text = render_text(Document("Out of memory", (), (table,)), width)
    assert "…" not in text
    assert text.count(str(Figure.bytes(sizes[0]))) == 3
    assert "this step" in text


def test_headings_stand_above_the_widest_figure() -> None:
    table = Table("t", (("x", Figure("1", "MiB"), "why"),), ("", "reclaimable", "note"))
    assert render_text(Document("", blocks=(table,))).splitlines() == [
        "t      reclaimable   note",
        "  x          1 MiB   why",
    ]


def test_a_long_title_leaves_its_headings_a_line() -> None:
    table = Table("a title that is long", (("x", Figure("1", "MiB")),), ("", "now"))
    assert render_text(Document("", blocks=(table,))).splitlines() == [
        "a title that is long",
        "       now",
        "  x    1 MiB",
    ]


def test_a_table_without_rows_keeps_its_headings() -> None:
    table = Table("holes", (), ("size", "where"), ("none",))
    assert render_text(Document("", blocks=(table,))).splitlines() == [
        "holes",
        "  size   where",
        "  none",
    ]


def test_the_last_column_flows_in_its_place() -> None:
    pairs = (("python", "3.11"), ("torch", "missing; " * 20))
    lines = render_text(Document("", blocks=(KeyValues("env", pairs),))).splitlines()
    assert lines[:2] == ["env", "   python   3.11"]
    assert lines[2].startswith("   torch    missing; missing;")
    assert all(line.startswith(" " * 12 + "missing;") for line in lines[3:])


def test_places_line_up_in_two_columns() -> None:
    rows = tuple((place,) for place in (Place("f", "a.py", 1), Place("longer", "/x/b.py", 20)))
    assert render_text(Document("", blocks=(Table("", rows),))).splitlines() == [
        "   f        a.py:1",
        "   longer   /x/b.py:20",
    ]


def test_a_nameless_function_keeps_the_columns() -> None:
    rows = tuple((place,) for place in (Place("", "a.py", 1), Place("f", "b.py", 2)))
    assert render_text(Document("", blocks=(Table("", rows),))).splitlines() == [
        "       a.py:1",
        "   f   b.py:2",
    ]


def test_a_long_path_keeps_its_end() -> None:
    place = Place("forward", "/usr/lib/python3/dist-packages/torch/nn/modules/linear.py", 134)
    whole = render_text(_entry("x", Note("by", place))).splitlines()
    assert whole[1].endswith(f"by forward ({place.location})")
    lines = render_text(_entry("x", Note("by", place)), 60).splitlines()
    assert lines[-1].endswith("forward (…/torch/nn/modules/linear.py:134)")
    assert all(display_width(line) <= 60 for line in lines)


def test_the_moment_follows_the_headline() -> None:
    lines = render_text(_entry("word " * 30, when="event 7")).splitlines()
    assert lines[0] == "INFO     " + " ".join(["word"] * 18)
    assert lines[1] == "         " + " ".join(["word"] * 12) + "   event 7"


def test_words_follow_their_heading_at_once() -> None:
    page = Document("t", blocks=(Heading("h"), Paragraph("p " * 60), Paragraph("q")))
    lines = render_text(page).splitlines()
    assert lines[:3] == ["t", "", "h"]
    assert lines[3].startswith("p p p")
    assert lines[-2:] == ["", "q"]


def test_severities_keep_their_roles_and_words() -> None:
    entries = tuple(Entry(severity, "x") for severity in Severity)
    lines = layout(Document("", blocks=(Findings(entries),)))
    heads = [line[0] for line in lines if line]
    assert [head.text for head in heads] == ["SEVERE   ", "INFO     ", "MODERATE ", "SERIOUS  "]
    assert [head.role for head in heads] == ["severe", "info", "moderate", "serious"]


def test_an_empty_document_is_empty_text() -> None:
    assert render_text(Document("")) == ""
    assert render_text(Document("", ("a", "b"))) == "a · b"


@pytest.mark.parametrize("name", HOSTILE_NAMES.values(), ids=HOSTILE_NAMES)
def test_hostile_names_stay_inside_the_page(name: str) -> None:
    text = render_text(document_of(name))
    lines = text.split("\n")
    assert all(line.isprintable() for line in lines)
    assert max(map(display_width, lines)) <= 100
    assert len(lines) < 250
    text.encode("utf-8")


@settings(max_examples=50)
@given(st.text(st.characters(), max_size=200), st.integers(40, 140), st.integers(1, 60))
def test_any_name_keeps_the_bounds(name: str, width: int, max_lines: int) -> None:
    lines = render_text(document_of(name), width, max_lines).split("\n")
    assert len(lines) <= max_lines
    assert all(line.isprintable() and display_width(line) <= width for line in lines)


SETTINGS = Copyable("expandable_segments:True,large_segment_size_mb:12,max_split_size_mb:128")


@pytest.mark.parametrize("width", [40, 80, 100, 160])
def test_what_is_to_be_copied_is_whole_on_one_line(width: int) -> None:
    figures = (Figure.bytes(3 << 30), Figure.bytes(5 << 30))
    heads = ("now", "peak", "setting")
    rows = ((*figures, SETTINGS), (*figures, "as recorded: default settings"))
    notes = (Note("more", detail=SETTINGS), Note(SETTINGS), Note(SETTINGS, detail="680 MiB"))
    blocks = (
        Table("", rows, heads),
        Findings((Entry(Severity.INFO, "found", notes=notes),)),
        KeyValues("", (("until", SETTINGS),)),
        Paragraph(SETTINGS),
    )
    lines = render_text(Document("", blocks=blocks), width).splitlines()
    assert sum(SETTINGS in line for line in lines) == 6
    # A setting without room beside its figures is below them.
    assert (f"      {SETTINGS}" in lines) == (width < 110)
    assert all(len(line) <= width for line in lines if SETTINGS not in line)


def test_a_location_is_cut_after_the_function() -> None:
    place = Place("a_function_with_a_long_name", "torch/nn/modules/linear.py", 134)
    entry = Entry(Severity.INFO, "found", notes=(Note("made by", place), Note("and", place)))
    text = render_text(Document("", blocks=(Findings((entry,)),)), 60)
    assert text.count("torch/nn/modules/linear.py:134") == 2, text
    table = Table("", ((Figure.bytes(1), place),))
    assert "torch/nn/modules/linear.py:134" in render_text(Document("", blocks=(table,)), 60)


def test_places_without_room_have_lines_of_their_own() -> None:
    places = (
        Place("forward", "resnet.py", 154, package="torchvision", caller="train.py:76"),
        Place("(no Python stack)", ""),
    )
    rows = tuple(
        (Figure.bytes(1 << 30), Figure.bytes(1 << 30), Figure.bytes(1 << 20), "13 → 17", place)
        for place in places
    )
    page = Document("", blocks=(Table("", rows, ("before", "after", "difference", "blocks", "")),))
    text = render_text(page, 80)
    assert "\n      forward   torchvision resnet.py:154, from train.py:76\n" in text
    assert text.endswith("   13 → 17   (no Python stack)")
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= 80


def test_rows_without_what_is_to_be_copied_have_no_empty_lines() -> None:
    rows = (
        ("torch", "here", Copyable("")),
        ("rich", "missing", Copyable("pip install " + "x" * 70)),
    )
    page = Document("", blocks=(Table("", rows),))
    assert render_text(page, 80).splitlines() == [
        "   torch   here",
        "   rich    missing",
        "      pip install " + "x" * 70,
    ]


def test_no_table_is_cut_to_its_head() -> None:
    heads = ("", "before", "after")
    tables = tuple(Table(title, ((title, "1", "2"),) * 3, heads) for title in ("first", "second"))
    page = Document("page", (), tables)
    whole = render_text(page).splitlines()
    for most in range(4, len(whole)):
        shown = render_text(page, max_lines=most).splitlines()
        assert not shown[-2].endswith("after"), shown
