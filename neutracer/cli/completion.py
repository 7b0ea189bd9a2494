# SPDX-License-Identifier: Apache-2.0
"""The command `neutracer completion`."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from importlib import import_module
from typing import Any

from neutracer.cli.parts import FAILED, HelpPage, complain, written
from neutracer.errors import missing

__all__ = ["add_completion"]

_EXAMPLE = """example:
  eval "$(neutracer completion bash)"       # in ~/.bashrc
  neutracer completion zsh -o ~/.zfunc/_neutracer       # a folder of fpath
  neutracer completion fish -o ~/.config/fish/completions/neutracer.fish

exit codes: 0, 2 where shtab is missing or the file can't be written
"""

_SHELLS = ("bash", "zsh", "fish")

# Arguments that are files or folders, by what the usage calls them.
_FILES = frozenset(("FILE", "OUT", "BEFORE", "AFTER", "PROGRAM"))
_FOLDERS = frozenset(("DIR", "FOLDER"))


def add_completion(commands: Any, summary: str) -> None:
    """Add the command to a parser's commands; `summary` is its line in their list."""
    parser = commands.add_parser(
        "completion",
        help=summary,
        description="Prints what a shell reads to complete neutracer's commands; shtab makes it.",
        epilog=_EXAMPLE,
        formatter_class=HelpPage,
    )
    parser.add_argument("shell", choices=_SHELLS, help="the shell")
    parser.add_argument("-o", "--output", metavar="FILE", help="write there instead of printing")
    parser.set_defaults(run=_completion)


def _completion(options: argparse.Namespace) -> int:
    try:
        shtab = import_module("shtab")
    except ImportError:
        return complain(str(missing("shtab")))
    for action in _arguments(options.parser):
        if action.metavar in _FILES:
            action.complete = shtab.FILE
        elif action.metavar in _FOLDERS:
            action.complete = shtab.DIRECTORY
    _shorten(options.parser)
    script = shtab.complete(options.parser, options.shell)
    if options.output is None:
        print(script)
        return 0
    return 0 if written(options.output, f"{script}\n") else FAILED


def _shorten(parser: argparse.ArgumentParser) -> None:
    """Describe each command by its line in the list: a shell shows it beside the name."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for listed in action._choices_actions:
                action.choices[listed.dest].description = listed.help


def _arguments(parser: argparse.ArgumentParser) -> Iterator[Any]:
    """The arguments of a parser and of its commands."""
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                yield from _arguments(command)
