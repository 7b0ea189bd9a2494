# SPDX-License-Identifier: Apache-2.0
"""The command `neutracer build-hooks`."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

from neutracer.cli.parts import HelpPage, complain
from neutracer.errors import NeutracerError
from neutracer.process.hooks.build import build, find, target
from neutracer.render.escape import clean
from neutracer.render.json import dumps
from neutracer.render.terminal import write
from neutracer.units import format_duration_us

__all__ = ["add_build_hooks"]

_EXAMPLE = """example:
  neutracer build-hooks                  # into this user's cache, where neutracer looks
  neutracer build-hooks -o /opt/hooks    # for an image; NEUTRACER_HOOKS=/opt/hooks finds them

exit codes: 0, 2 where they can't be built; the reason is printed
"""


def add_build_hooks(commands: Any, summary: str) -> None:
    """Add the command to a parser's commands; `summary` is its line in their list."""
    parser = commands.add_parser(
        "build-hooks",
        help=summary,
        description=(
            "Compiles the hooks on PyTorch's allocator for the torch that is installed. It "
            "needs a C++ compiler, but no CUDA compiler, and does not import torch."
        ),
        epilog=_EXAMPLE,
        formatter_class=HelpPage,
    )
    parser.add_argument("-o", "--output", metavar="FOLDER", help="the folder, instead of the cache")
    parser.add_argument("--again", action="store_true", help="compile even if they exist")
    parser.add_argument("--json", action="store_true", help="JSON with a versioned schema")
    parser.set_defaults(run=_build_hooks)


def _build_hooks(options: argparse.Namespace) -> int:
    folder = None if options.output is None else Path(options.output).absolute()
    try:
        goal = target()
        there = None if options.again or folder is not None else find(goal)
        began = time.perf_counter()
        path = there or build(goal, folder, again=options.again)
        took = time.perf_counter() - began
    except NeutracerError as error:
        return complain(str(error))
    if options.json:
        facts = {
            "schema": "neutracer.build-hooks/1",
            "path": str(path),
            "torch": goal.torch.version,
            "backend": goal.torch.backend,
            "built": there is None,
        }
        sys.stdout.write(dumps(facts) + "\n")
    else:
        how = "existed already" if there else f"built in {format_duration_us(took * 1e6)}"
        write(f"hooks for torch {goal.torch.version} ({goal.torch.backend}) {how}\n", sys.stdout)
        write(f"{clean(str(path))}\n", sys.stdout)
    return 0
