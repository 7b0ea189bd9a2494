# SPDX-License-Identifier: Apache-2.0
"""Makes text from data harmless to show, and measures its width on a terminal. Names in a
snapshot (functions, files, annotations) are whatever somebody wrote. Whatever can move a
cursor, colour a terminal, reorder letters or break a line becomes a backslash escape, which
is visible and does nothing.
"""

from __future__ import annotations

import unicodedata

# Real scripts stack at most a few marks on a letter; more only paint over other lines.
_MOST_MARKS = 4

_ELLIPSIS = "…"

# A text from data that flows is never longer than a few lines.
_MOST_SENTENCE = 500


def clean(text: str) -> str:
    r"""Spell out every character that is not plainly visible.

    Control characters, ANSI escapes, BiDi and zero-width characters, line separators,
    unpaired surrogates and unassigned characters become `\x1b`, `\u202e` and the like.
    Newlines and tabs become escapes too: the result is always one line.

    Example:
        >>> print(clean("red \x1b[31m"))
        red \x1b[31m
    """
    if text.isascii() and text.isprintable():
        return text
    parts: list[str] = []
    marks = 0
    for char in text:
        marks = marks + 1 if unicodedata.category(char) in ("Mn", "Me") else 0
        parts.append(char if char.isprintable() and marks <= _MOST_MARKS else _escaped(char))
    return "".join(parts)


def sentence(text: str, width: int | None = None) -> str:
    """A clean text for one place of a page, cut to `width` columns or else to 500."""
    return shorten_right(clean(text), _MOST_SENTENCE if width is None else width)


def _escaped(char: str) -> str:
    return char.encode("unicode_escape").decode("ascii")


def display_width(text: str) -> int:
    """The columns that a clean text takes on a terminal.

    Example:
        >>> display_width("数"), display_width("a")
        (2, 1)
    """
    if text.isascii():
        return len(text)
    return sum(_char_width(char) for char in text)


def _char_width(char: str) -> int:
    if unicodedata.category(char) in ("Mn", "Me"):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def pad(text: str, width: int) -> str:
    """The text with spaces at its right up to `width` columns."""
    return text + " " * (width - display_width(text))


def shorten_right(text: str, width: int) -> str:
    """The beginning of a clean text in at most `width` columns; a cut is marked.

    Example:
        >>> shorten_right("forward_features", 10)
        'forward_f…'
    """
    if display_width(text) <= width:
        return text
    return _head(text, width - 1) + _ELLIPSIS


def shorten_left(text: str, width: int) -> str:
    """The end of a clean text in at most `width` columns; a cut is marked.

    Where a path is cut, the cut is moved on to the next separator.

    Example:
        >>> shorten_left("/usr/lib/python3/torch/nn/linear.py:134", 24)
        '…/torch/nn/linear.py:134'
    """
    if display_width(text) <= width:
        return text
    tail = _head(text[::-1], width - 1)[::-1]
    separator = tail.find("/")
    return _ELLIPSIS + (tail[separator:] if separator > 0 else tail)


def _head(text: str, width: int) -> str:
    used = 0
    for index, char in enumerate(text):
        used += _char_width(char)
        if used > width:
            return text[:index]
    return text


def wrap(text: str, width: int) -> list[str]:
    """Break a clean text at its spaces into lines of at most `width` columns.

    A word that is longer than a line is cut into lines, each of at least one character,
    behind a comma where there is one.
    Spaces inside a line are kept as they are. An empty text is one empty line.

    Example:
        >>> wrap("of at most 35.8 MiB", 12)
        ['of at most', '35.8 MiB']
    """
    lines: list[str] = []
    rest = text.strip(" ")
    while display_width(rest) > width:
        line, rest = _take_line(rest, width)
        lines.append(line)
    lines.append(rest)
    return lines


def _take_line(text: str, width: int) -> tuple[str, str]:
    head = _head(text, width) or text[:1]
    end = len(head) if text[len(head) : len(head) + 1] == " " else head.rfind(" ")
    if end <= 0:
        end = head.rfind(",") + 1 or len(head)
        return text[:end], text[end:]
    return text[:end].rstrip(" "), text[end:].lstrip(" ")
