# SPDX-License-Identifier: Apache-2.0
"""The command `neutracer setup`: what there is, and what is made once for a machine."""

from __future__ import annotations

import argparse
import importlib.util
import sys
import time
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import neutracer
from neutracer.cli.parts import (
    FAILED,
    HelpPage,
    add_command,
    add_json,
    complain,
    print_report,
    written,
)
from neutracer.errors import NeutracerError, missing
from neutracer.render.escape import clean
from neutracer.render.terminal import write
from neutracer.units import format_duration_us

# Each of the four imports what it needs by itself: they have little in common.

__all__ = ["add_setup"]

_EXAMPLE = """example:
  neutracer setup env                    # versions, and what is missing
  neutracer setup hooks                  # compile the hooks on PyTorch's allocator
"""

_HOOKS_EXAMPLE = """example:
  neutracer setup hooks                  # into this user's cache, where neutracer looks
  neutracer setup hooks -o /opt/hooks    # for an image; NEUTRACER_HOOKS=/opt/hooks finds them

exit codes: 0, 2 where they can't be built; the reason is printed
"""

_KERNELS_EXAMPLE = """example:
  neutracer setup kernels -o my-card.json
  NEUTRACER_KERNELS=my-card.json neutracer rehearse --device "RTX 4090" train.py

exit code: 0; 2 where there is no CUDA device
"""

_COMPLETION_EXAMPLE = """example:
  eval "$(neutracer setup completion bash)"                 # in ~/.bashrc
  neutracer setup completion zsh > ~/.zfunc/_neutracer      # a folder of fpath
  neutracer setup completion fish > ~/.config/fish/completions/neutracer.fish

exit codes: 0, 2 where shtab is missing
"""

_SHELLS = ("bash", "zsh", "fish")

# Seconds that measuring kernels may take, about.
_MEASURING_S = 300.0

# Arguments that are files or folders, by the metavar in the usage.
_FILES = frozenset(("FILE", "OUT", "BEFORE", "AFTER", "PROGRAM"))
_FOLDERS = frozenset(("DIR", "FOLDER"))


def add_setup(commands: Any, summary: str) -> None:
    """Add the command to a parser's commands; `summary` is its line in their list."""
    parser = commands.add_parser(
        "setup",
        help=summary,
        description="Shows what neutracer can use here, and makes what is made once.",
        epilog=_EXAMPLE,
        formatter_class=HelpPage,
    )
    parts = parser.add_subparsers(dest="part", metavar="WHAT", required=True)
    env = add_command(
        parts,
        "env",
        "show versions and optional dependencies",
        "Shows what neutracer can use here, what is missing, and how to get it.",
        "example:\n  neutracer setup env",
        _env,
    )
    add_json(env)
    _add_hooks(parts)
    _add_kernels(parts)
    completion = add_command(
        parts,
        "completion",
        "print the script with which a shell completes commands, options and files",
        "Prints what a shell reads to complete neutracer's commands; shtab makes it.",
        _COMPLETION_EXAMPLE,
        _completion,
    )
    completion.add_argument("shell", choices=_SHELLS, help="the shell")


def _add_hooks(parts: Any) -> None:
    description = (
        "Compiles the hooks on PyTorch's allocator for the torch that is installed. It needs a "
        "C++ compiler, but no CUDA compiler, and does not import torch."
    )
    summary = "compile the hooks on PyTorch's allocator ahead of their first use"
    hooks = add_command(parts, "hooks", summary, description, _HOOKS_EXAMPLE, _hooks)
    hooks.add_argument("-o", "--output", metavar="FOLDER", help="the folder, instead of the cache")
    hooks.add_argument("--again", action="store_true", help="compile even if they exist")


def _add_kernels(parts: Any) -> None:
    description = (
        "Measures the workspaces that cuDNN takes for usual convolutions on this machine's card, "
        "by small real calls that PyTorch's recorder watches, and writes a file of facts. "
        "Rehearsals of such a card take these in place of ranges. It takes about five minutes "
        "and up to 12 GiB of the card's memory; what is too large for it is left out."
    )
    summary = "measure the workspaces of this card's kernels, for rehearsals"
    kernels = add_command(parts, "kernels", summary, description, _KERNELS_EXAMPLE, _kernels)
    kernels.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        default="kernels.json",
        help="where the facts go (default: kernels.json)",
    )


def _env(options: argparse.Namespace) -> int:
    from neutracer.diagnose.overview.environment import environment

    print_report(environment(neutracer.__version__), options.json, sys.stdout)
    return 0


def _hooks(options: argparse.Namespace) -> int:
    from neutracer.process.hooks.build import build, find, target

    folder = None if options.output is None else Path(options.output).absolute()
    try:
        goal = target()
        there = None if options.again or folder is not None else find(goal)
        began = time.perf_counter()
        path = there or build(goal, folder, again=options.again)
        took = time.perf_counter() - began
    except NeutracerError as error:
        return complain(str(error))
    how = "existed already" if there else f"built in {format_duration_us(took * 1e6)}"
    write(f"hooks for torch {goal.torch.version} ({goal.torch.backend}) {how}\n", sys.stdout)
    write(f"{clean(str(path))}\n", sys.stdout)
    return 0


def _kernels(options: argparse.Namespace) -> int:
    if importlib.util.find_spec("torch") is None:
        return complain("torch is not available: install it with 'pip install torch'")
    import torch

    if not torch.cuda.is_available():
        return complain("there is no CUDA device whose kernels could be measured")
    if not hasattr(torch.cuda.memory, "_set_memory_metadata"):
        return complain(f"this needs torch 2.10 or later, and this is {torch.__version__}")
    from neutracer.rehearsal.learning import learn

    facts = learn(_MEASURING_S, lambda line: print(line, file=sys.stderr, flush=True))
    if not written(options.output, facts.to_text()):
        return FAILED
    print(f"{options.output}: {len(facts.convolutions)} convolutions of {facts.card}")
    return 0


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
    print(shtab.complete(options.parser, options.shell))
    return 0


def _arguments(parser: argparse.ArgumentParser) -> Iterator[Any]:
    """The arguments of a parser and of its commands.

    Each command's description becomes its line in the list: a shell shows it beside the name.
    """
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for listed in action._choices_actions:
                action.choices[listed.dest].description = listed.help
            for command in action.choices.values():
                yield from _arguments(command)
