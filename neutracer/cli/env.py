# SPDX-License-Identifier: Apache-2.0
"""The command `neutracer env`."""

from __future__ import annotations

import argparse
import sys
from typing import Any

import neutracer
from neutracer.cli.parts import print_report
from neutracer.diagnose.overview.environment import environment

__all__ = ["add_env"]


def add_env(commands: Any, summary: str) -> None:
    """Add the command to a parser's commands; `summary` is its line in their list."""
    parser = commands.add_parser(
        "env",
        help=summary,
        description="Says what neutracer can use here, what is missing, and how to get it.",
        epilog="example:\n  neutracer env",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", action="store_true", help="JSON with a versioned schema")
    parser.set_defaults(run=_env)


def _env(options: argparse.Namespace) -> int:
    print_report(environment(neutracer.__version__), options.json, sys.stdout)
    return 0
