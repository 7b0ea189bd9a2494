# SPDX-License-Identifier: Apache-2.0
"""The command line: parse, call, show."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any, NamedTuple

import neutracer
from neutracer.cli.parts import HelpPage, complain_of, within_memory

__all__ = ["main"]


class _Command(NamedTuple):
    """A command: its group in the help, its module in `neutracer.cli`, its line in the list."""

    group: str
    module: str
    summary: str


# The commands in the order in which one meets them. Only the module of the one that is called
# is imported; it defines `add_what_if` for "what-if".
_COMMANDS = {
    "run": _Command("record", "run", "run a program, record its GPU memory and report on it"),
    "attach": _Command("record", "run", "record a program that is running (Python 3.14 or later)"),
    "demo": _Command("record", "view", "report on a recording that comes with neutracer"),
    "rehearse": _Command("record", "rehearse", "the memory a program would need, without its GPU"),
    "report": _Command("ask", "report", "what a snapshot shows, on one page"),
    "explain": _Command("ask", "explain", "why a program ran out of memory, and what to do"),
    "leak": _Command("ask", "leak", "whether memory grows step after step, and from which line"),
    "what-if": _Command("ask", "what_if", "the best allocator settings, or the effect of yours"),
    "diff": _Command("ask", "leak", "what one snapshot holds that another does not"),
    "ranks": _Command("ask", "ranks", "compare the ranks of a job: the odd one, the first to fail"),
    "cycles": _Command("ask", "cycles", "run a program and name the cycles that kept its tensors"),
    "view": _Command("look", "view", "write a snapshot as one offline page"),
    "plot": _Command("look", "plot", "draw memory over time, fragmentation or ranks"),
    "top": _Command("look", "top", "follow the memory of a running job in the terminal"),
    "setup": _Command("set up", "setup", "show what is installed, compile hooks, measure kernels"),
}

_ALONE = frozenset(("-h", "--help", "--version"))

_EXAMPLE = """where to begin:
  neutracer demo                       # the report on a real run that comes with it
  neutracer run train.py               # record a program: snapshots and reports in neutracer-run/
  neutracer report snapshot.pickle     # an existing snapshot: what it shows
  neutracer explain oom.pickle         # one with an out-of-memory error: why

each command lists its options and examples with --help
"""


class _CommandList(HelpPage):
    """The page of `neutracer --help`: the commands under the names of their groups."""

    def _format_action(self, action: argparse.Action) -> str:
        text = super()._format_action(action)
        if isinstance(action, argparse._SubParsersAction):
            # Without the line of its own, which says no more than the heading.
            return text.partition("\n")[2]
        command = _COMMANDS.get(action.dest)
        if command is None or action.option_strings:
            return text
        first = next(name for name, each in _COMMANDS.items() if each.group == command.group)
        return f"  {command.group}\n{text}" if action.dest == first else text


def _options(words: list[str]) -> argparse.Namespace:
    """The arguments; the parser is whole only for the chosen command, or for completion.

    The other commands have no parser where none of their names can be printed.
    """
    chosen = next((word for word in words if not word.startswith("-")), None)
    is_whole = words[:2] == ["setup", "completion"]
    parser = argparse.ArgumentParser(
        prog="neutracer",
        description="Explains the GPU memory of PyTorch programs.",
        epilog=_EXAMPLE,
        formatter_class=_CommandList,
    )
    parser.add_argument("--version", action="version", version=f"neutracer {neutracer.__version__}")
    commands = parser.add_subparsers(
        title="commands", dest="command", metavar="COMMAND", required=True
    )
    only = chosen if chosen in _COMMANDS and words[0] == chosen and not is_whole else None
    for name, command in _COMMANDS.items():
        if only not in (None, name):
            continue
        if chosen == name or is_whole:
            module = import_module(f"neutracer.cli.{command.module}")
            getattr(module, f"add_{name.replace('-', '_')}")(commands, command.summary)
        else:
            commands.add_parser(name, help=command.summary)
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
            what = f"{options.command} takes one file; diff, leak, plot and ranks take several"
        commands.choices[options.command].error(what)
    return options


def _no_command(word: str) -> str:
    """The complaint about a word that is not a command: a file's name, or a typo."""
    name = os.path.basename(os.path.normpath(word))
    if os.path.exists(word) or os.path.splitext(name)[1] or os.sep in word:
        if os.path.isdir(word):
            command = "ranks"
        elif name.endswith(".py"):
            command = "run"
        else:
            command = "explain" if "oom" in name else "report"
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
    from neutracer.recording.program import can_be_restored

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
            options = _options(words or ["--help"])
            return within_memory(options)
    except BrokenPipeError:
        # The reader has seen enough.
        return 0
    except OSError as error:
        return complain_of("standard output", error)
    except KeyboardInterrupt:
        return 130
