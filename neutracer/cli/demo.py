# SPDX-License-Identifier: Apache-2.0
"""The command `neutracer demo`."""

from __future__ import annotations

import argparse
import os
import sys
import webbrowser
from pathlib import Path
from typing import Any

from neutracer.cli.parts import HelpPage, check_written, complain_of, without_history_warning
from neutracer.diagnose.overview.report import overview
from neutracer.errors import NeutracerError
from neutracer.pictures.page.view import view
from neutracer.render.escape import clean
from neutracer.render.terminal import show, write
from neutracer.trace.snapshot import load

__all__ = ["add_demo"]

_RECORDING = Path(__file__).parents[1] / "demo" / "late_zero_grad.pickle.xz"

_EXAMPLE = """example:
  neutracer demo                 # the report here, the page in the browser
  neutracer demo --no-browser -o demo.html

The recording comes with neutracer: four steps of a real training run on a GPU, which keep
their gradients for longer than they need to.
"""


def add_demo(commands: Any, summary: str) -> None:
    """Add the command to a parser's commands; `summary` is its line in their list."""
    parser = commands.add_parser(
        "demo",
        help=summary,
        description="Reports on a recording that comes with neutracer, and writes its page.",
        epilog=_EXAMPLE,
        formatter_class=HelpPage,
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        default="neutracer-demo.html",
        help="the page (default: %(default)s)",
    )
    parser.add_argument(
        "--no-browser", action="store_true", help="write the page and open no browser"
    )
    parser.set_defaults(run=_demo)


def _demo(options: argparse.Namespace) -> int:
    try:
        check_written(options.output, str(_RECORDING))
        with without_history_warning():
            snap = load(_RECORDING)
            page = view(snap, options.output)
        report = overview(snap, title=_RECORDING.name)
    except (NeutracerError, OSError, ValueError) as error:
        return complain_of(options.output, error)
    show(report.document(), sys.stdout, max_lines=None)
    opened = not options.no_browser and _open(Path(str(page)).absolute())
    way = "opened in the browser" if opened else "open it in any browser"
    name = clean(str(page))
    write(f"\nThe same as a page to look around in: {name} ({way})\n", sys.stdout)
    write("On a program of yours: neutracer run train.py\n", sys.stdout)
    return 0


def _open(page: Path) -> bool:
    """Whether a browser with a window took the page; one in the terminal is left alone."""
    if not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        return False
    return webbrowser.open(page.as_uri())
