# SPDX-License-Identifier: Apache-2.0
"""The commands `neutracer view` and `neutracer demo`."""

from __future__ import annotations

import argparse
import os
import sys
import webbrowser
from pathlib import Path
from typing import Any

from neutracer.cli.parts import (
    FAILED,
    add_command,
    add_max_memory,
    add_window,
    check_written,
    complain,
    complain_of,
    is_page,
    say_written,
    window_of,
    without_history_warning,
    write_reports,
)
from neutracer.errors import NeutracerError
from neutracer.picture.view import empty_page, view
from neutracer.render.document import clean
from neutracer.render.text import show, write
from neutracer.trace.snapshot import load

_RECORDING = Path(__file__).parents[1] / "demo" / "late_zero_grad.pickle.xz"

_VIEW_EXAMPLE = """example:
  neutracer view snapshot.pickle -o snapshot.html
  neutracer view --device 1 snapshot.pickle.gz
  neutracer view --events 2000000:2050000 long.pickle
  neutracer view -o neutracer.html

The page is one self-contained file for any recent browser. Drop any other snapshot on it to
open that. Without FILE the page is empty, ready for a snapshot.
"""

_DEMO_EXAMPLE = """example:
  neutracer demo                 # print the report, open the page in the browser
  neutracer demo --no-browser -o demo.html

The recording ships with neutracer: four steps of a real training run on a GPU that keeps its
gradients for longer than needed.
"""


def add_view(commands: Any, summary: str) -> None:
    description = "Writes a snapshot as a page: findings, timeline, address map, tables."
    parser = add_command(commands, "view", summary, description, _VIEW_EXAMPLE, _view)
    parser.add_argument(
        "file",
        metavar="FILE",
        nargs="?",
        help='a snapshot; "-" is standard input (default: an empty page)',
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        help="the page (default: FILE with .html, or neutracer.html)",
    )
    parser.add_argument("--device", type=int, metavar="N", help="only this device")
    add_window(parser)
    add_max_memory(parser)


def _view(options: argparse.Namespace) -> int:
    if options.file is None:
        return _empty(options)
    name = "snapshot" if options.file == "-" else os.path.basename(options.file)
    output = f"{name}.html" if options.output is None else options.output
    try:
        check_written(output, options.file)
        if output and not is_page(output):
            return complain(f"{output}: a page ends in .html; report -o writes other formats")
        with without_history_warning():
            window = window_of(options)
            source = load(options.file, **window) if window else options.file
            path = view(source, output, device=options.device)
    except (NeutracerError, OSError, ValueError) as error:
        return complain_of(options.file, error)
    say_written(str(path))
    return 0


def _empty(options: argparse.Namespace) -> int:
    output = "neutracer.html" if options.output is None else options.output
    try:
        check_written(output)
        path = empty_page().save(output)
    except (OSError, ValueError) as error:
        return complain_of(output, error)
    say_written(str(path))
    return 0


def add_demo(commands: Any, summary: str) -> None:
    description = "Reports on a recording that ships with neutracer, and writes its page."
    parser = add_command(commands, "demo", summary, description, _DEMO_EXAMPLE, _demo)
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        default="neutracer-demo.html",
        help="a page, or the report as .md, .json, else text (default: %(default)s)",
    )
    parser.add_argument(
        "--no-browser", action="store_true", help="write the page without opening a browser"
    )


def _demo(options: argparse.Namespace) -> int:
    from neutracer.overview import overview

    output = options.output
    try:
        check_written(output, str(_RECORDING))
        with without_history_warning():
            snap = load(_RECORDING)
            report = overview(snap, _RECORDING.name)
            if is_page(output):
                view(snap, output)
            elif not write_reports(output, [report]):
                return FAILED
    except (NeutracerError, OSError, ValueError) as error:
        return complain_of(output, error)
    show(report.document(), sys.stdout, max_lines=None)
    if is_page(output):
        opened = not options.no_browser and _open(Path(output).absolute())
        way = "opened in the browser" if opened else "open it in any browser"
        write(f"\nThe same as an interactive page: {clean(output)} ({way})\n", sys.stdout)
    else:
        write(f"\nThe same in a file: {clean(output)}\n", sys.stdout)
    write("For your own program: neutracer run train.py\n", sys.stdout)
    return 0


def _open(page: Path) -> bool:
    """Open a page in a graphical browser; False without one."""
    if not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        return False
    return webbrowser.open(page.as_uri())
