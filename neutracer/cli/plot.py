# SPDX-License-Identifier: Apache-2.0
"""The command `neutracer plot`."""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any

from neutracer.cli.parts import (
    HelpPage,
    add_max_memory,
    add_window,
    complain,
    complain_of,
    window_of,
    without_history_warning,
)
from neutracer.errors import NeutracerError
from neutracer.pictures.extra import picture_file
from neutracer.pictures.plots.plot import plot_fragmentation, plot_timeline
from neutracer.pictures.ranks.plot import plot_ranks
from neutracer.render.escape import clean
from neutracer.render.terminal import write
from neutracer.trace.progress import end_progress
from neutracer.trace.snapshot import load

__all__ = ["add_plot"]

_EXAMPLE = """example:
  neutracer plot timeline snapshot.pickle -o timeline.png      # who held how much, over time
  neutracer plot categories snapshot.pickle --x event --dark
  neutracer plot fragmentation snapshot.pickle -o unused.svg --event 2048
  neutracer plot ranks neutracer-run -o job.png                # rank x time

`neutracer mdtp` draws each block at its address.
"""

_KINDS = ("timeline", "fragmentation", "categories", "ranks")


def add_plot(commands: Any, summary: str) -> None:
    """Add the command to a parser's commands; `summary` is its line in their list."""
    plot = commands.add_parser(
        "plot",
        help=summary,
        description="Draws a snapshot, or the ranks of a job.",
        epilog=_EXAMPLE,
        formatter_class=HelpPage,
    )
    plot.add_argument("kind", choices=_KINDS, help=f"what is drawn: {', '.join(_KINDS)}")
    plot.add_argument(
        "files", nargs="+", metavar="FILE", help="a snapshot; for ranks a folder, or several"
    )
    plot.add_argument(
        "-o",
        "--output",
        metavar="OUT",
        help="a file: .png, .svg, .pdf and others (default: FILE with .KIND.png)",
    )
    plot.add_argument("--device", type=int, metavar="N", help="which device, if there are several")
    plot.add_argument(
        "--x", choices=("time", "event"), default="time", help="what the horizontal axis is"
    )
    plot.add_argument(
        "--by",
        choices=("place", "line", "stack"),
        default="place",
        help="timeline: what a band is (default: the program's own line)",
    )
    plot.add_argument("--top", type=int, default=8, metavar="N", help="timeline: how many bands")
    plot.add_argument(
        "--event", type=int, metavar="N", help="fragmentation: the segments after this event"
    )
    add_window(plot)
    plot.add_argument("--title", metavar="TEXT", help="the title (default: the file's name)")
    plot.add_argument("--dark", action="store_true", help="for a dark page")
    add_max_memory(plot)
    plot.set_defaults(run=_plot)


def _plot(options: argparse.Namespace) -> int:
    if options.kind != "ranks" and len(options.files) > 1:
        return complain(f"{options.kind} is of one file; mdtp draws two side by side")
    name = os.path.basename(os.path.normpath(options.files[0]))
    stem = "snapshot" if options.files[0] == "-" else name
    output = f"{stem}.{options.kind}.png" if options.output is None else options.output
    try:
        picture_file(output, *options.files)
    except (NeutracerError, ValueError) as error:
        return complain(str(error))
    try:
        with without_history_warning():
            _draw(options, output)
    except (NeutracerError, OSError, ValueError) as error:
        return complain_of(" ".join(options.files), error)
    end_progress()
    write(f"{clean(output)}\n", sys.stdout)
    return 0


def _draw(options: argparse.Namespace, output: str) -> None:
    look = {"title": options.title, "dark": options.dark, "output": output}
    if options.kind == "ranks":
        if window_of(options):
            raise ValueError("ranks are drawn whole: without --events, --seconds and --host")
        plot_ranks(options.files, **look)
        return
    axes = {"device": options.device, "x": options.x}
    window = window_of(options)
    file = load(options.files[0], **window) if window else options.files[0]
    if options.kind == "fragmentation":
        plot_fragmentation(file, event=options.event, **axes, **look)
    else:
        by = "category" if options.kind == "categories" else options.by
        plot_timeline(file, by=by, top=options.top, **axes, **look)
