# SPDX-License-Identifier: Apache-2.0
"""A document as a fragment that is never large: a notebook stores what it shows, and sends
it to every reader.

Example:
    >>> from neutracer.render.document import Document, Table
    >>> rows = tuple((f"row {n}",) for n in range(100_000))
    >>> page = inline_html(Document("a long table", blocks=(Table("", rows),)))
    >>> len(page) < MOST_INLINE, "1,000 rows of each table" in page
    (True, True)
"""

from __future__ import annotations

from dataclasses import replace

from neutracer.render.document import Block, Document, Findings, KeyValues, Paragraph, Table
from neutracer.render.html import render_html
from neutracer.units import format_count

__all__ = ["MOST_INLINE", "inline_html"]

#: The most bytes that one output of a notebook takes.
MOST_INLINE = 1_000_000

# Rows of each table, and blocks, that are tried in turn.
_TRIED = (1_000, 100, 10)


def inline_html(document: Document, picture: str = "", whole: str = "print(...)") -> str:
    """A document as an HTML fragment of at most 1 MB; says so where it was cut.

    Args:
        document: The document.
        picture: What goes between the title and the rest: HTML that is safe already.
        whole: What has all of it, for the note.
    """
    page = render_html(document, picture)
    if _fits(page):
        return page
    size = f"{len(page.encode('utf-8', 'replace')) / 1e6:,.1f} MB"
    for most in _TRIED:
        note = (
            f"Cut for the notebook, which keeps at most 1 MB of it: {format_count(most)} rows of "
            f"each table are shown. All of it would be {size}: {whole} has it."
        )
        blocks = tuple(_cut(block, most) for block in document.blocks[:most])
        page = render_html(replace(document, blocks=(*blocks, Paragraph(note))))
        if _fits(page):
            return page
    return render_html(Document(document.title, blocks=(Paragraph(f"{size}: see {whole}."),)))


def _fits(page: str) -> bool:
    return len(page.encode("utf-8", "replace")) <= MOST_INLINE


def _cut(block: Block, most: int) -> Block:
    if isinstance(block, Table):
        return replace(block, rows=block.rows[:most])
    if isinstance(block, KeyValues):
        return replace(block, pairs=block.pairs[:most])
    if isinstance(block, Findings):
        return Findings(
            tuple(replace(entry, notes=entry.notes[:most]) for entry in block.entries[:most])
        )
    return block
