# SPDX-License-Identifier: Apache-2.0
"""The command `neutracer mdtp`."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from neutracer.cli.parts import (
    HelpPage,
    add_max_memory,
    add_window,
    complain,
    complain_of,
    without_history_warning,
)
from neutracer.cli.what_if import add_simulation, refused, simulation
from neutracer.errors import NeutracerError, SettingsError
from neutracer.pictures.extra import picture_file
from neutracer.pictures.mdtp.plot import mdtp
from neutracer.render.escape import clean
from neutracer.render.terminal import write
from neutracer.trace.progress import end_progress

__all__ = ["add_mdtp"]

_EXAMPLE = """example:
  neutracer mdtp snapshot.pickle -o memory.png
  neutracer mdtp before.pickle after.pickle -o both.svg --x event
  neutracer mdtp snapshot.pickle -o what_if.png --set expandable_segments:True
  neutracer mdtp snapshot.pickle -o zoom.png --range 0.05 0.07 --stream 1
"""


def add_mdtp(commands: Any, summary: str) -> None:
    """Add the command to a parser's commands; `summary` is its line in their list."""
    plot = commands.add_parser(
        "mdtp",
        help=summary,
        description="Draws which address held what, when; two files side by side on one scale.",
        epilog=_EXAMPLE,
        formatter_class=HelpPage,
    )
    plot.add_argument("files", nargs="+", metavar="FILE", help="a snapshot, or two to compare")
    plot.add_argument(
        "-o", "--output", metavar="OUT", required=True, help="a file: .png, .svg, .pdf and others"
    )
    plot.add_argument("--device", type=int, metavar="N", help="which device, if there are several")
    plot.add_argument(
        "--x", choices=("time", "event"), default="time", help="what the horizontal axis is"
    )
    plot.add_argument(
        "--style",
        choices=("default", "classic"),
        default="default",
        help="classic: addresses from 0 to 1, neighbours merged",
    )
    plot.add_argument(
        "--stream",
        type=lambda text: int(text, 0),
        metavar="N",
        help="only this stream: its number in the picture's key, or the raw stream",
    )
    plot.add_argument(
        "--pool", type=int, nargs=2, metavar="N", help="only this private pool; 0 0 is the default"
    )
    plot.add_argument(
        "--range",
        type=float,
        nargs=2,
        metavar=("FROM", "TO"),
        help="in seconds, with --x event in events",
    )
    plot.add_argument(
        "--addresses",
        metavar="A:B",
        help="only these addresses (0x7f3a00:0x7f4000), or one block as PyTorch's viewer names "
        "it (b7f3a00_2)",
    )
    add_window(plot)
    add_simulation(plot)
    plot.add_argument(
        "--raw-addresses", action="store_true", help="also addresses that were never reserved"
    )
    plot.add_argument("--dark", action="store_true", help="for a dark page")
    add_max_memory(plot)
    plot.set_defaults(run=_mdtp)


def _mdtp(options: argparse.Namespace) -> int:
    if len(options.files) > (2 if options.settings is None else 1):
        return complain("give one file, alone or with --set, or two to compare")
    if options.capacity is not None and options.settings is None:
        return complain("--capacity is for what would have been: it needs --set")
    try:
        picture_file(options.output, *options.files)
    except (NeutracerError, ValueError) as error:
        return complain(str(error))
    try:
        with without_history_warning():
            mdtp(
                *simulation(options),
                device=options.device,
                x=options.x,
                style=options.style,
                stream=options.stream,
                pool=tuple(options.pool) if options.pool else None,
                time_range=tuple(options.range) if options.range else None,
                address_range=_addresses(options.addresses),
                raw_addresses=options.raw_addresses,
                dark=options.dark,
                output=options.output,
            )
    except SettingsError as error:
        return complain(refused(options.settings, error))
    except (NeutracerError, OSError, ValueError) as error:
        return complain_of(" ".join(options.files), error)
    end_progress()
    write(f"{clean(options.output)}\n", sys.stdout)
    return 0


def _addresses(text: str | None) -> tuple[str, str] | str | None:
    """What `--addresses` says: two of them, or a block."""
    if text is None or ":" not in text:
        return text
    first, _, end = text.partition(":")
    return first, end
