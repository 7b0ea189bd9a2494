# SPDX-License-Identifier: Apache-2.0
"""The notebooks as pages, with the outputs that are stored in them.

A page whose source is the one line `% notebook: PATH` becomes that notebook: its texts, its
code, and what each cell showed. Nothing is run.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sphinx.application import Sphinx

__all__ = ["markdown_of", "read_notebook"]

_LINE = re.compile(r"% notebook: (\S+)\s*")

# Longer than any fence within an output.
_FENCE = "`" * 8


def read_notebook(app: Sphinx, page: str, source: list[str]) -> None:
    """Replaces the line that names a notebook by the notebook; for `source-read`."""
    line = _LINE.fullmatch(source[0])
    if line is None:
        return
    path = Path(app.env.doc2path(page)).parent / line[1]
    app.env.note_dependency(str(path))
    source[0] = markdown_of(json.loads(path.read_text(encoding="utf-8")))


def markdown_of(book: dict[str, Any]) -> str:
    """A notebook as Markdown."""
    parts = []
    for cell in book["cells"]:
        text = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(text)
        elif cell["cell_type"] == "code":
            parts.append(_fenced("python", text))
            parts += map(_shown, cell["outputs"])
    return "\n\n".join(parts) + "\n"


def _shown(output: dict[str, Any]) -> str:
    """What a cell showed, in the richest form that is stored."""
    if output["output_type"] == "stream":
        return _fenced("text", "".join(output["text"]))
    data = {kind: "".join(text) for kind, text in output["data"].items()}
    if "text/html" in data:
        return _fenced("{raw} html", data["text/html"])
    if "image/png" in data:
        picture = data["image/png"].replace("\n", "")
        return _fenced("{raw} html", f'<img alt="" src="data:image/png;base64,{picture}">')
    return _fenced("text", data["text/plain"])


def _fenced(kind: str, text: str) -> str:
    return f"{_FENCE}{kind}\n{text.rstrip()}\n{_FENCE}"
