# SPDX-License-Identifier: Apache-2.0
"""The command `neutracer view`."""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any

from neutracer.cli.parts import (
    add_max_memory,
    check_written,
    complain_of,
    without_history_warning,
)
from neutracer.errors import NeutracerError
from neutracer.pictures.page.view import view
from neutracer.render.escape import clean
from neutracer.render.terminal import write
from neutracer.trace.progress import end_progress

__all__ = ["add_view"]

_EXAMPLE = """example:
  neutracer view snapshot.pickle -o snapshot.html
  neutracer view --device 1 snapshot.pickle.gz
  neutracer view --events 2000000 2050000 long.pickle

The page is one file that loads nothing; it opens in any recent browser. It holds
500,000 allocations of a long trace one by one: those of --events first, then those with the
most bytes times events lived. Totals stay exact, and the map shows the others in cells.
"""


def add_view(commands: Any, summary: str) -> None:
    """Add the command to a parser's commands; `summary` is its line in their list."""
    parser = commands.add_parser(
        "view",
        help=summary,
        description="Writes a page that shows a snapshot: findings, timeline, address map, tables.",
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("file", metavar="FILE", help='a snapshot; "-" is standard input')
    parser.add_argument(
        "-o", "--output", metavar="FILE", help="the page (default: FILE with .html)"
    )
    parser.add_argument("--device", type=int, metavar="N", help="only this device")
    parser.add_argument(
        "--events",
        type=int,
        nargs=2,
        metavar=("FROM", "TO"),
        help="open on these events, and keep first what lived in them",
    )
    add_max_memory(parser)
    parser.set_defaults(run=_view)


def _view(options: argparse.Namespace) -> int:
    name = "snapshot" if options.file == "-" else os.path.basename(options.file)
    output = f"{name}.html" if options.output is None else options.output
    focus = None if options.events is None else (options.events[0], options.events[1])
    try:
        check_written(output, options.file)
        with without_history_warning():
            path = view(options.file, output, device=options.device, focus=focus)
    except (NeutracerError, OSError, ValueError) as error:
        return complain_of(options.file, error)
    end_progress()
    write(f"{clean(str(path))}\n", sys.stdout)
    return 0
