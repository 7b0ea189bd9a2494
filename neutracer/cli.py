# SPDX-License-Identifier: Apache-2.0
"""The command line: parse, call, show."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module

import neutracer
from neutracer.cli_parts import complain_of, standing_streams

__all__ = ["main"]

# The commands, as they are listed. Each has a module of its own, as cli_what_if, of which only
# that of the command called is imported.
_COMMANDS = {
    "report": "what a snapshot shows, on one page",
    "cycles": "run a program and tell the reference cycles that kept its tensors",
    "explain": "why a program ran out of memory, and what would have helped",
    "run": "run a program, record its GPU memory and say what it did",
    "diff": "what one snapshot holds that another did not, by line, category and size",
    "what-if": "the same program under other allocator settings, and the best of them",
    "top": "follow the memory of a running job in the terminal",
    "view": "write a snapshot as one offline page",
    "mdtp": "memory over time as a picture: each block at its address",
    "build-hooks": "compile the hooks on PyTorch's allocator ahead of their first use",
    "env": "versions, what is available, what is missing and how to get it",
}


def _parser(chosen: str | None) -> argparse.ArgumentParser:
    """The parser, whole only for the command that was chosen."""
    parser = argparse.ArgumentParser(
        prog="neutracer", description="Explains the GPU memory of PyTorch programs."
    )
    parser.add_argument("--version", action="version", version=f"neutracer {neutracer.__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for command, summary in _COMMANDS.items():
        if command == chosen:
            name = command.replace("-", "_")
            getattr(import_module(f"neutracer.cli_{name}"), f"add_{name}")(commands, summary)
        else:
            commands.add_parser(command, help=summary)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        arguments: Without the program's name; None is those of the process.

    Returns:
        The exit code.
    """
    words = sys.argv[1:] if arguments is None else list(arguments)
    try:
        with standing_streams():
            chosen = next((word for word in words if not word.startswith("-")), None)
            options = _parser(chosen).parse_args(words)
            code: int = options.run(options)
        return code
    except BrokenPipeError:
        # Whoever read has seen enough.
        return 0
    except OSError as error:
        return complain_of("standard output", error)
    except KeyboardInterrupt:
        return 130
