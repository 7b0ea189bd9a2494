# SPDX-License-Identifier: Apache-2.0
"""The command line: parse, call, show."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import neutracer
from neutracer.cli.parts import HelpPage, complain_of, within_memory

__all__ = ["main"]

# The commands, as they are listed. Each has a module of its own, as what_if, of which only
# that of the command called is imported.
_COMMANDS = {
    "run": "run a program, record its GPU memory and say what it did",
    "attach": "the same for a program that is already running (Python 3.14 or later)",
    "rehearse": "the memory that a program would need on a card, without running it there",
    "report": "what a snapshot shows, on one page",
    "explain": "why a program ran out of memory, and what would have helped",
    "what-if": "the same program under other allocator settings, and the best of them",
    "recommend": "the allocator settings to use, and the least memory the program fits in",
    "diff": "what one snapshot holds that another did not, by line, category and size",
    "ranks": "compare the ranks of a job: which one is odd and why, which ran out first",
    "view": "write a snapshot as one offline page",
    "mdtp": "memory over time as a picture: each block at its address",
    "plot": "a picture: who held how much, fragmentation, categories, ranks",
    "cycles": "run a program and name the reference cycles that kept its tensors",
    "top": "follow the memory of a running job in the terminal",
    "demo": "a recording that comes with neutracer: its report and its page",
    "env": "versions, what is available, what is missing and how to get it",
    "learn-kernels": "measure what this card's kernels take, for rehearsals",
    "build-hooks": "compile the hooks on PyTorch's allocator ahead of their first use",
    "completion": "the script with which a shell completes commands, options and files",
}

_ALONE = frozenset(("-h", "--help", "--version"))

_EXAMPLE = """where to begin:
  neutracer demo                       # what it says about a real run that comes with it
  neutracer run train.py               # record a program: snapshots and reports in neutracer-run/
  neutracer report snapshot.pickle     # an existing snapshot: what it shows
  neutracer explain oom.pickle         # one with an out-of-memory error: why

each command lists its options and examples with --help
"""


def _options(words: list[str]) -> argparse.Namespace:
    """The arguments; the parser is whole only for the chosen command, or for `completion`.

    The other commands have no parser where none of their names can be printed.
    """
    chosen = next((word for word in words if not word.startswith("-")), None)
    parser = argparse.ArgumentParser(
        prog="neutracer",
        description="Explains the GPU memory of PyTorch programs.",
        epilog=_EXAMPLE,
        formatter_class=HelpPage,
    )
    parser.add_argument("--version", action="version", version=f"neutracer {neutracer.__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    only = chosen if chosen in _COMMANDS and words[0] == chosen != "completion" else None
    for command, summary in _COMMANDS.items():
        if only not in (None, command):
            continue
        if chosen in (command, "completion"):
            name = command.replace("-", "_")
            getattr(import_module(f"neutracer.cli.{name}"), f"add_{name}")(commands, summary)
        else:
            commands.add_parser(command, help=summary)
    if chosen is not None and chosen not in _COMMANDS:
        first = words[: words.index(chosen)]
        # These need no command.
        if _ALONE.isdisjoint(first):
            parser.error(_no_command(chosen))
    parser.set_defaults(parser=parser)
    options, unknown = parser.parse_known_args(words)
    if unknown:
        # With the usage of that command, whose own parser passes over them.
        what = f"unrecognized arguments: {' '.join(unknown)}"
        if hasattr(options, "file") and all(os.path.isfile(word) for word in unknown):
            what = f"{options.command} takes one file; diff, mdtp and ranks compare several"
        commands.choices[options.command].error(what)
    return options


def _no_command(word: str) -> str:
    """What to say of a word that is not a command: a file's name, or a typo."""
    if os.path.isfile(word):
        command = "run" if word.endswith(".py") else "report"
        return f"{word!r} is a file, not a command; did you mean 'neutracer {command} FILE'?"
    import difflib

    near = difflib.get_close_matches(word, _COMMANDS, 1)
    if near:
        return f"there is no command {word!r}; did you mean {near[0]!r}?"
    return f"there is no command {word!r}; they are {', '.join(_COMMANDS)}"


@contextmanager
def standing_streams() -> Iterator[None]:
    """Make standard output and error writable.

    A stream that was closed before the start accepts everything and keeps nothing, as for
    `print`.

    Raises:
        BrokenPipeError: Whoever reads standard output has seen enough.
        OSError: It can't be written.
    """
    was = sys.stdout, sys.stderr
    with open(os.devnull, "w", encoding="utf-8") as nowhere:
        sys.stdout, sys.stderr = (stream or nowhere for stream in was)
        try:
            yield
        finally:
            try:
                # A program that was run here may have closed it.
                if not getattr(sys.stdout, "closed", False):
                    sys.stdout.flush()
            except OSError:
                # So that Python's own attempt at the end of the process does not fail
                # again.
                os.dup2(nowhere.fileno(), sys.stdout.fileno())
                raise
            finally:
                _restore_streams(*was)


def _restore_streams(*streams: Any) -> None:
    now = sys.stdout, sys.stderr
    if now == streams:
        return
    # Only a program that was run here replaces them.
    from neutracer.process.recording.streams import can_be_restored

    pairs = zip(streams, now, strict=True)
    sys.stdout, sys.stderr = (old if can_be_restored(old) else new for old, new in pairs)


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
            options = _options(words)
            return within_memory(options)
    except BrokenPipeError:
        # The reader has seen enough.
        return 0
    except OSError as error:
        return complain_of("standard output", error)
    except KeyboardInterrupt:
        return 130
