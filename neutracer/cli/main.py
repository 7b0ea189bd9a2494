# SPDX-License-Identifier: Apache-2.0
"""Entry point of the command line."""

from __future__ import annotations

import argparse
import io
import math
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any, NamedTuple

import neutracer
from neutracer.cli.parts import HelpPage, complain_of, discard, within_memory


class _Command(NamedTuple):
    """A command: its group in the help, its module in `neutracer.cli`, its line in the list."""

    group: str
    module: str
    summary: str


#: Only the module of the chosen command is imported; it defines `add_what_if` for "what-if".
COMMANDS = {
    "run": _Command("record", "run", "run a program, record its GPU memory and report on it"),
    "attach": _Command("record", "run", "record a program that is running (Python 3.14 or later)"),
    "demo": _Command("record", "view", "report on a recording that ships with neutracer"),
    "rehearse": _Command("record", "rehearse", "predict a program's memory without a GPU"),
    "report": _Command("ask", "report", "summarise a snapshot on one page"),
    "explain": _Command("ask", "report", "why a program ran out of memory, and how to fix it"),
    "leak": _Command("ask", "leak", "find memory that grows step after step, and the line"),
    "drag": _Command("ask", "what_if", "find memory that is kept after its last use"),
    "phases": _Command("ask", "report", "what each phase of a cycle used, left and piled up"),
    "what-if": _Command("ask", "what_if", "the best allocator settings, or the effect of yours"),
    "diff": _Command("ask", "leak", "compare the contents of two snapshots"),
    "ranks": _Command("ask", "ranks", "compare the ranks of a job: outliers, the first to fail"),
    "cycles": _Command("ask", "run", "run a program and find reference cycles that keep tensors"),
    "view": _Command("look", "view", "write a snapshot as one offline page"),
    "plot": _Command("look", "plot", "draw memory over time, fragmentation or ranks"),
    "export": _Command("look", "plot", "write tables, flame graphs or a Perfetto trace"),
    "top": _Command("look", "top", "follow the memory of a running job in the terminal"),
    "setup": _Command("set up", "setup", "show what is installed, compile hooks, measure kernels"),
    "capabilities": _Command("set up", "agents", "list commands, JSON schemas and what works here"),
    "skill": _Command("set up", "agents", "install or show the skill for coding agents"),
    "mcp": _Command("set up", "agents", "answer a coding agent as a read-only MCP server"),
}

_ALONE = frozenset(("-h", "--help", "--version"))

_EXAMPLE = """where to begin:
  neutracer demo                       # a report on a real run, included
  neutracer run train.py               # record a program: snapshots and reports in neutracer-run/
  neutracer report snapshot.pickle     # summarise an existing snapshot
  neutracer explain oom.pickle         # explain an out-of-memory error

each command lists its options and examples with --help
"""


class _CommandList(HelpPage):
    """`neutracer --help`, with the commands in their groups."""

    def _format_action(self, action: argparse.Action) -> str:
        text = super()._format_action(action)
        if isinstance(action, argparse._SubParsersAction):
            # Drop argparse's own line, which repeats the heading.
            return text.partition("\n")[2]
        command = COMMANDS.get(action.dest)
        if command is None or action.option_strings:
            return text
        first = next(name for name, each in COMMANDS.items() if each.group == command.group)
        return f"  {command.group}\n{text}" if action.dest == first else text


def _options(words: list[str]) -> argparse.Namespace:
    """Parse the arguments.

    Only the chosen command gets its full parser; completion needs those of all.
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
    only = chosen if chosen in COMMANDS and words[0] == chosen and not is_whole else None
    for name, command in COMMANDS.items():
        if only not in (None, name):
            continue
        if chosen == name or is_whole:
            module = import_module(f"neutracer.cli.{command.module}")
            getattr(module, f"add_{name.replace('-', '_')}")(commands, command.summary)
        else:
            commands.add_parser(name, help=command.summary)
    if chosen is not None and chosen not in COMMANDS:
        first = words[: words.index(chosen)]
        if _ALONE.isdisjoint(first):
            parser.error(_no_command(chosen))
    parser.set_defaults(parser=parser)
    options, unknown = parser.parse_known_args(words)
    if unknown:
        # Print the usage of the command: its own parser ignores unknown arguments.
        what = f"unrecognized arguments: {' '.join(unknown)}"
        if hasattr(options, "file") and all(os.path.isfile(word) for word in unknown):
            what = f"{options.command} takes one file; diff, leak, plot and ranks take several"
        commands.choices[options.command].error(what)
    if getattr(options, "budget", None) and options.format == "json" and options.budget < math.inf:
        commands.choices[options.command].error("--budget cuts text; JSON is always whole")
    return options


def _no_command(word: str) -> str:
    """The error message for a word that is not a command: a file's name, or a typo."""
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

    near = difflib.get_close_matches(word, COMMANDS, 1)
    if near:
        return f"unknown command {word!r}; did you mean {near[0]!r}?"
    return f"unknown command {word!r}; commands are {', '.join(COMMANDS)}"


@contextmanager
def writable_streams() -> Iterator[None]:
    """Make standard output and error writable; a closed stream discards its text."""
    was = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (stream or _Nowhere() for stream in was)
    try:
        yield
    finally:
        try:
            # A program run in this process may have closed it.
            if not getattr(sys.stdout, "closed", False):
                sys.stdout.flush()
        except OSError:
            discard(sys.stdout)
            raise
        finally:
            _restore_streams(*was)


class _Nowhere(io.StringIO):
    """A stream without a descriptor, which a program run in this process could take away."""

    def write(self, text: str, /) -> int:
        return len(text)


def _restore_streams(*streams: Any) -> None:
    now = sys.stdout, sys.stderr
    if now == streams:
        return
    # Only a program run in this process replaces them.
    from neutracer.recording.program import can_be_restored

    pairs = zip(streams, now, strict=True)
    sys.stdout, sys.stderr = (old if can_be_restored(old) else new for old, new in pairs)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        arguments: Without the program's name; None takes `sys.argv`.

    Returns:
        The exit code.
    """
    words = sys.argv[1:] if arguments is None else list(arguments)
    try:
        with writable_streams():
            options = _options(words or ["--help"])
            return within_memory(options)
    except BrokenPipeError:
        return 0
    except OSError as error:
        return complain_of("standard output", error)
    except KeyboardInterrupt:
        return 130
