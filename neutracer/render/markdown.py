# SPDX-License-Identifier: Apache-2.0
"""Documents as Markdown that a pull request and a chat both show.

Tables are laid out as text in fences, since chats have none; places and commands are code spans.
"""

from __future__ import annotations

import re
from itertools import chain

from neutracer.render.document import (
    Block,
    Copyable,
    Document,
    Entry,
    Findings,
    Heading,
    KeyValues,
    Note,
    Paragraph,
    Table,
    clean,
    sentence,
)
from neutracer.render.text import BRIEF, WHOLE, fitted, render_text

# Columns of a fence that a comment shows without scrolling.
_FENCE_WIDTH = 100

# Characters that are markup in a sentence; an underscore inside a word is none. A mention, which
# would notify its account, is none inside of a code span.
_MARKUP = re.compile(r"@\w[\w/-]*|[\\`*<>\[\]~|]|(?<!\w)[_#]|_(?!\w)")


def render_markdown(document: Document, budget: float | None = WHOLE) -> str:
    """Write a document as Markdown: its answer, its title, and below them the rest.

    Args:
        document: The page, in full.
        budget: As for `fitted`; `BRIEF` is the answer and the title. A table is never cut.

    Example:
        >>> print(render_markdown(Document("run.pickle", ("1 device", "complete"))))
        **run.pickle** · 1 device · complete
    """
    if budget == BRIEF:
        return "\n".join(_lines(document.in_short(), brief=True))
    lines, more = fitted(document, budget, _lines)
    return "\n".join([*lines, "", more] if more else lines)


def _lines(document: Document, *, brief: bool = False) -> list[str]:
    """A page in lines, of which a fence is one."""
    answer, page = document.arranged(brief=brief)
    parts = [] if answer is None else [_block(answer)]
    title = [f"**{_text(page.title)}**"] if page.title else []
    parts.append(" · ".join([*title, *map(_text, page.facts)]))
    if not brief:
        parts += map(_block, page.blocks)
    shown = ([part] if part.startswith("```") else part.split("\n") for part in parts if part)
    return list(chain.from_iterable(("", *lines) for lines in shown))[1:]


def _block(block: Block) -> str:
    if isinstance(block, Findings):
        return "\n\n".join(map(_entry, block.entries))
    if isinstance(block, Heading):
        return f"**{_text(block.text)}**"
    if isinstance(block, Paragraph):
        return _code(block.text) if isinstance(block.text, Copyable) else _text(block.text)
    return _fence(block)


def _entry(entry: Entry) -> str:
    when = f" ({_text(entry.when)})" if entry.when else ""
    head = f"**{entry.severity.value.upper()}** {_text(entry.headline)}{when}"
    return "\n".join([head, *(f"- {_note(note)}" for note in entry.notes + entry.advice)])


def _note(note: Note) -> str:
    is_copied = isinstance(note.text, Copyable)
    opening = _code(note.opening) if is_copied else _text(note.opening)
    if note.place is not None:
        return f"{opening} {_code(str(note.place))}"
    ending = _code(note.detail) if isinstance(note.detail, Copyable) else _text(note.detail)
    return f"{opening} {ending}".rstrip() if note.detail else opening


def _fence(block: Table | KeyValues) -> str:
    text = render_text(Document("", blocks=(block,)), _FENCE_WIDTH)
    return f"```text\n{text.replace('`', chr(39))}\n```"


def _code(text: str) -> str:
    return f"`{clean(text).replace('`', chr(39))}`"


def _text(text: str) -> str:
    return _MARKUP.sub(_escaped, sentence(text))


def _escaped(match: re.Match[str]) -> str:
    return f"`{match[0]}`" if match[0].startswith("@") else f"\\{match[0]}"
