# SPDX-License-Identifier: Apache-2.0
"""The command `neutracer env`."""

from __future__ import annotations

import argparse
from typing import Any

import neutracer
from neutracer.cli.parts import HelpPage, add_output, give
from neutracer.diagnose.overview.environment import environment

__all__ = ["add_env"]


def add_env(commands: Any, summary: str) -> None:
    """Add the command to a parser's commands; `summary` is its line in their list."""
    parser = commands.add_parser(
        "env",
        help=summary,
        description="Says what neutracer can use here, what is missing, and how to get it.",
        epilog="example:\n  neutracer env",
        formatter_class=HelpPage,
    )
    add_output(parser)
    parser.set_defaults(run=_env)


def _env(options: argparse.Namespace) -> int:
    return give([environment(neutracer.__version__)], options)
