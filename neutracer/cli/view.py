# SPDX-License-Identifier: Apache-2.0
"""The command `neutracer view`."""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any

from neutracer.cli.parts import (
    HelpPage,
    add_max_memory,
    add_window,
    check_written,
    complain_of,
    window_of,
    without_history_warning,
)
from neutracer.errors import NeutracerError
from neutracer.pictures.page.view import empty_page, view
from neutracer.render.escape import clean
from neutracer.render.terminal import write
from neutracer.trace.progress import end_progress
from neutracer.trace.snapshot import load

__all__ = ["add_view"]

_EXAMPLE = """example:
  neutracer view snapshot.pickle -o snapshot.html
  neutracer view --device 1 snapshot.pickle.gz
  neutracer view --events 2000000:2050000 long.pickle
  neutracer view -o neutracer.html

The page is one file that loads nothing; it opens in any recent browser, and any other
snapshot can be dropped on it. Without FILE it is empty, and waits for one.
"""


def add_view(commands: Any, summary: str) -> None:
    """Add the command to a parser's commands; `summary` is its line in their list."""
    parser = commands.add_parser(
        "view",
        help=summary,
        description="Writes a page that shows a snapshot: findings, timeline, address map, tables.",
        epilog=_EXAMPLE,
        formatter_class=HelpPage,
    )
    parser.add_argument(
        "file",
        metavar="FILE",
        nargs="?",
        help='a snapshot; "-" is standard input; without one the page is empty',
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        help="the page (default: FILE with .html, or neutracer.html)",
    )
    parser.add_argument("--device", type=int, metavar="N", help="only this device")
    add_window(parser)
    parser.add_argument(
        "--focus",
        type=int,
        nargs=2,
        metavar=("FROM", "TO"),
        help="open on these events; the page has all of them",
    )
    parser.add_argument("--dark", action="store_true", help="dark, whatever the browser prefers")
    add_max_memory(parser)
    parser.set_defaults(run=_view)


def _view(options: argparse.Namespace) -> int:
    if options.file is None:
        return _empty(options)
    name = "snapshot" if options.file == "-" else os.path.basename(options.file)
    output = f"{name}.html" if options.output is None else options.output
    focus = None if options.focus is None else (options.focus[0], options.focus[1])
    try:
        check_written(output, options.file)
        with without_history_warning():
            window = window_of(options)
            source = load(options.file, **window) if window else options.file
            dark = True if options.dark else None
            path = view(source, output, device=options.device, focus=focus, dark=dark)
    except (NeutracerError, OSError, ValueError) as error:
        return complain_of(options.file, error)
    end_progress()
    write(f"{clean(str(path))}\n", sys.stdout)
    return 0


def _empty(options: argparse.Namespace) -> int:
    """Writes the page that waits for a file."""
    output = "neutracer.html" if options.output is None else options.output
    try:
        check_written(output)
        path = empty_page(True if options.dark else None).save(output)
    except (OSError, ValueError) as error:
        return complain_of(output, error)
    write(f"{clean(str(path))}\n", sys.stdout)
    return 0
