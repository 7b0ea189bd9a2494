# SPDX-License-Identifier: Apache-2.0
"""The command `neutracer recommend`."""

from __future__ import annotations

import argparse
from typing import Any

from neutracer.cli.parts import (
    HelpPage,
    check_written,
    complain_of,
    device_size,
    give,
    without_history_warning,
)
from neutracer.cli.what_if import add_circumstances, add_objective
from neutracer.diagnose.settings.recommend import recommend
from neutracer.errors import NeutracerError
from neutracer.trace.snapshot import load

__all__ = ["add_recommend"]

_EXAMPLE = """example:
  neutracer recommend snapshot.pickle                       # the line to set, and what it saves
  neutracer recommend snapshot.pickle --capacity 24GiB      # would it fit on that card, and how?
  neutracer recommend snapshot.pickle --fraction 0.5 --capacity 80GiB    # half of such a card
  neutracer recommend snapshot.pickle --objective speed     # the fewest calls to the device

exit codes: 0, 2 for a file that can't be read or replayed
"""


def add_recommend(commands: Any, summary: str) -> None:
    """Add the command to a parser's commands; `summary` is its line in their list."""
    parser = commands.add_parser(
        "recommend",
        help=summary,
        description=(
            "Replays a snapshot's trace on a model of PyTorch's allocator under a few dozen "
            "settings, and names the best of them, the least memory that the program fits in "
            "with each, and the least that any allocator could do with."
        ),
        epilog=_EXAMPLE,
        formatter_class=HelpPage,
    )
    parser.add_argument("file", metavar="FILE", help='a snapshot; "-" is standard input')
    add_objective(parser)
    add_circumstances(parser)
    parser.set_defaults(run=_recommend)


def _recommend(options: argparse.Namespace) -> int:
    try:
        check_written(options.output, options.file)
        with without_history_warning():
            snap = load(options.file, max_memory=options.max_memory)
        report = recommend(
            snap,
            device_size(options.capacity),
            options.objective,
            fraction=options.fraction,
            device=options.device,
            torch_version=options.torch,
        )
    except (NeutracerError, OSError, ValueError) as error:
        return complain_of(options.file, error)
    return give([report], options)
