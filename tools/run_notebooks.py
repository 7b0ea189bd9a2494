#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Run the notebooks in a kernel, and store their outputs in them.

usage: tools/run_notebooks.py [NOTEBOOK ...]      (needs the extra 'docs')
"""

from __future__ import annotations

import base64
import io
import sys
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient
from PIL import Image

ROOT = Path(__file__).parents[1]

#: A report is a tenth of it; the page is several times as long.
MOST_HTML = 100_000


def shrink(data: dict[str, Any]) -> None:
    """Take out of a cell's value what its readers do not look at.

    That is a picture's twin for dark themes, its colours beyond a palette of 256, and a whole
    page, whose scripts run only where the cell was run.
    """
    if "image/png" in data:
        data.pop("text/html", None)
        picture = Image.open(io.BytesIO(base64.b64decode(data["image/png"]))).convert("RGB")
        small = io.BytesIO()
        picture.quantize(256, dither=Image.Dither.NONE).save(small, "PNG", optimize=True)
        data["image/png"] = base64.b64encode(small.getvalue()).decode("ascii")
    if len(data.get("text/html", "")) > MOST_HTML:
        del data["text/html"]


def run(path: Path) -> None:
    """Run one notebook from its folder; what differs from run to run is not stored."""
    book = nbformat.read(path, as_version=4)
    NotebookClient(
        book, timeout=60, record_timing=False, resources={"metadata": {"path": path.parent}}
    ).execute()
    for output in (one for cell in book.cells for one in cell.get("outputs", ())):
        shrink(output.get("data", {}))
    book.metadata.language_info = {"name": "python"}
    nbformat.write(book, path)
    print(f"{path.name}: {path.stat().st_size / 1e3:,.0f} kB")


if __name__ == "__main__":
    for name in sys.argv[1:] or sorted(map(str, ROOT.glob("notebooks/*.ipynb"))):
        run(Path(name).resolve())
