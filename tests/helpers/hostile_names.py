# SPDX-License-Identifier: Apache-2.0
"""Names that somebody could put into a snapshot to harm its reader."""

from __future__ import annotations

HOSTILE_NAMES = {
    "ansi_colour": "\x1b[31mred\x1b[0m",
    "ansi_title": "\x1b]0;owned\x07",
    "ansi_c1": "\x9b2Jgone",
    "cursor": "safe\rEVIL\x08\x7f",
    "newlines": "one\ntwo\r\nthree\u2028four\u2029five\x0bsix\x85seven",
    "bidi": "user\u202e gnp.exe\u2066\u200f",
    "zero_width": "to\u200brch\u200d\ufeff\u2060",
    "tag_characters": "flag\U000e0041\U000e007f",
    "script": "</script><script>alert(1)</script>",
    "style": "</style><img src=x onerror=alert(1)>",
    "attribute": '" onmouseover="alert(1)" x=\'',
    "comment": "<!-- --!> ]]> <![CDATA[",
    "entity": "&lt;script&gt; &#60; &amp;",
    "rich_markup": "[red]not red[/red] [link=http://x]x[/link]",
    "surrogates": "half \ud83d of \udc80 it",
    "marks": "z" + "\u0301" * 500,
    "wide": "数据" * 200,
    "very_long": "a" * 100_000,
    "long_path": "/usr/lib/" + "deep/" * 400 + "module.py",
    "many_words": "word " * 5_000,
    "nul": "a\x00b",
    "empty": "",
    "spaces": "   ",
}
