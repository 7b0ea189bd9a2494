#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Run the notebooks in a kernel, and store their outputs in them.

usage: tools/run_notebooks.py [NOTEBOOK ...]      (needs the extra 'docs')
"""

from __future__ import annotations

import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient

ROOT = Path(__file__).parents[1]


def run(path: Path) -> None:
    """Run one notebook from its folder; what differs from run to run is not stored."""
    book = nbformat.read(path, as_version=4)
    NotebookClient(
        book, timeout=60, record_timing=False, resources={"metadata": {"path": path.parent}}
    ).execute()
    for output in (one for cell in book.cells for one in cell.get("outputs", ())):
        # A picture's twin for dark themes would make the file twice as large.
        if "image/png" in output.get("data", {}):
            output["data"].pop("text/html", None)
    book.metadata.language_info = {"name": "python"}
    nbformat.write(book, path)
    print(f"{path.name}: {path.stat().st_size / 1e3:,.0f} kB")


if __name__ == "__main__":
    for name in sys.argv[1:] or sorted(map(str, ROOT.glob("notebooks/*.ipynb"))):
        run(Path(name).resolve())
