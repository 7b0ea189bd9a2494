# SPDX-License-Identifier: Apache-2.0
"""Documents made by hand: the design's sketch, and a page with one name everywhere."""

from __future__ import annotations

from neutracer.render.document import (
    Block,
    Cell,
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
)

_GROWS = Place("frag", "train.py", 159)
_PINS = Place("frag", "train.py", 155)


def _mib(mebibytes: float) -> Figure:
    return Figure.bytes(round(mebibytes * (1 << 20)))


_TOTALS = Table(
    title="cuda:0",
    columns=("", "now", "peak", ""),
    rows=(
        ("allocated", _mib(406.0), _mib(590.9), "event 2,215"),
        ("reserved", _mib(540.0), _mib(2028.0), "event 2,048; 14 segments given back since"),
        (
            "unused",
            Figure.share(0.248),
            Figure.share(0.81, decimals=0),
            "moderate now, severe at the peak of reserved",
        ),
    ),
    notes=("2 retries (cache given back to find room), 1 out of memory",),
)

_GROWTH = Entry(
    severity=Severity.SEVERE,
    headline="the cache grew to 2,028 MiB for 390 MiB asked for",
    when="event 2,048",
    notes=(
        Note(
            "14 times a request some 8 MiB larger than the last found no hole (asked 168 MiB,"
            " largest hole 160 MiB) and took a segment of its own:",
            place=_GROWS,
        ),
        Note(
            "try expandable_segments:True",
            detail="680 MiB instead of 2,028 (replayed; the model reproduces this file exactly)",
        ),
    ),
)

_OUT_OF_MEMORY = Entry(
    severity=Severity.SEVERE,
    headline="out of memory: asked 1,579 MiB",
    when="event 2,374",
    notes=(
        Note(
            "Not the device: 138.8 GiB were free; the process is capped. Inside its segments"
            " 134 MiB were free, in 23 holes of at most 35.8 MiB, each segment kept by blocks of",
            place=_PINS,
        ),
        Note("more:  neutracer explain frag_default.pickle"),
    ),
)

_HOLDERS = Table(
    title="Who holds the peak (579.2 MiB asked for, 590.9 MiB allocated)",
    rows=(
        (Figure.share(0.696), _mib(403.2), Figure.count(60, "block"), _PINS),
        (Figure.share(0.304), _mib(176.0), Figure.count(1, "block"), _GROWS),
    ),
)

SAMPLE = Document(
    title="frag_default.pickle",
    facts=(
        "PyTorch snapshot",
        "1 device",
        "2,375 events over 70 ms",
        "history complete",
        "default settings",
    ),
    blocks=(_TOTALS, Findings((_GROWTH, _OUT_OF_MEMORY)), _HOLDERS),
    more="neutracer report frag_default.pickle --all",
)


def document_of(name: str) -> Document:
    """A page with one name in every place that takes data."""
    place = Place(name, name, 3)
    cells: tuple[Cell, ...] = (name, Figure(name, name), place, name)
    blocks: tuple[Block, ...] = (
        Heading(name),
        Paragraph(name),
        Table(name, (cells,), (name,) * 4, (name,)),
        Table(name, (cells,)),
        KeyValues(name, ((name, name), (name, place))),
        Findings(
            (Entry(Severity.SEVERE, name, name, (Note(name, place), Note(name, None, name))),)
        ),
    )
    return Document(name, (name, name), blocks, name)
