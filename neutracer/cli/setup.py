# SPDX-License-Identifier: Apache-2.0
"""The command `neutracer setup`: show what is available, compile hooks, measure kernels."""

from __future__ import annotations

import argparse
import importlib.util
import os
import platform
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

import neutracer
from neutracer._native import core
from neutracer.cli.parts import (
    FAILED,
    add_command,
    add_output,
    complain,
    give,
    written,
)
from neutracer.errors import NeutracerError, UnavailableError, missing, pip_install
from neutracer.hooks.build import PREBUILT, find, installed_torch, obstacle, passed_over, target
from neutracer.monitor.device_report import visible_devices
from neutracer.render.document import Block, Copyable, Document, Paragraph, Table, clean
from neutracer.render.report import PlainRow, Report
from neutracer.render.text import write
from neutracer.units import format_duration_us

# ---- Environment -------------------------------------------------------------------------

# Optional packages and their uses.
_PACKAGES = (
    ("matplotlib", "plots"),
    ("resvg-py", "object graphs as PNG in a wheel"),
    ("rich", "colours on a terminal"),
    ("prometheus_client", "serve_metrics()"),
)

_NO_CUDA = "built without CUDA, so it has no snapshots and no recorder of its own"


@dataclass(frozen=True)
class Part(PlainRow):
    """An optional part of neutracer's environment.

    Attributes:
        name: Its name.
        version: Its version; "" if it is missing.
        use: Its purpose.
        install: How to get it.
        note: A remark about the installed one.
        absent: Printed instead of a missing version.
    """

    name: str
    version: str
    use: str
    install: str
    note: str = ""
    absent: str = "missing"


@dataclass(frozen=True, kw_only=True, repr=False)
class EnvironmentReport(Report):
    """The environment, as `neutracer setup env` prints it.

    Attributes:
        neutracer: Its version.
        python: The interpreter and its version.
        machine: The operating system and processor.
        parts: Optional parts, available or missing.
    """

    schema = "neutracer.env/1"

    neutracer: str
    python: str
    machine: str
    parts: tuple[Part, ...]

    def document(self) -> Document:
        """The report as a document."""
        rows = tuple(
            (p.name, p.version or p.absent, p.use, Copyable("" if p.version else p.install))
            for p in self.parts
        )
        facts = (self.python, self.machine)
        notes = (Paragraph(f"{part.name}: {part.note}.") for part in self.parts if part.note)
        blocks: tuple[Block, ...] = (Table("Optional parts", rows), *notes)
        return Document(f"neutracer {self.neutracer}", facts, blocks)


def environment(version: str) -> EnvironmentReport:
    """Inspect the installation without importing packages or touching CUDA."""
    parts = [_torch(), _devices()]
    parts += [Part(name, _version(name), use, pip_install(name)) for name, use in _PACKAGES]
    parts += [_zstd(), _graphviz(), _heap(), _hooks()]
    return EnvironmentReport(
        neutracer=version,
        python=f"{platform.python_implementation()} {platform.python_version()}",
        machine=f"{platform.system()} {platform.machine()}",
        parts=tuple(parts),
    )


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def _torch() -> Part:
    """PyTorch; only builds for CUDA or HIP have snapshots."""
    use, install = "live snapshots, reference cycles", "install torch for your CUDA version"
    try:
        torch = installed_torch()
    except UnavailableError:
        return Part("torch", _version("torch"), use, install)
    if torch.backend in ("cuda", "hip"):
        return Part("torch", torch.version, use, install)
    return Part("torch", torch.version, "reference cycles", install, _NO_CUDA)


def _devices() -> Part:
    """The devices that CUDA shows, or would show, to this process."""
    use = "recording, live figures"
    try:
        names = [device.name or device.uuid for device in visible_devices()]
    except UnavailableError:
        names = []
    return Part("NVIDIA devices", ", ".join(names), use, "", absent="none visible")


def _zstd() -> Part:
    version = _version("zstandard")
    if not version and importlib.util.find_spec("compression") is not None:
        version = platform.python_version()
    return Part("zstd", version, ".zst files", pip_install("zstandard"))


def _graphviz() -> Part:
    built = importlib.util.find_spec("neutracer._graphviz") is not None
    install = "apt install libgraphviz-dev graphviz, then install neutracer again"
    return Part("Graphviz", "built in" if built else "", "object graphs as SVG, PNG", install)


def _heap() -> Part:
    use = "reference cycles, why_alive"
    try:
        core.heap_prepare()
    except UnavailableError as error:
        return Part("Python's heap", "", use, error.install)
    return Part("Python's heap", "known", use, "")


def _hooks() -> Part:
    use = "live(), device figures without the GIL"
    try:
        goal = target()
        path = find(goal)
    except UnavailableError as error:
        return Part("Hooks", "", use, error.install)
    note = "; ".join(f"passed over: {reason}" for reason in passed_over(goal))
    if path is None:
        install = f"compiled at first use for torch {goal.torch.version}, or by setup hooks"
        hindered = obstacle(goal)
        absent = "missing" if hindered else "not built yet"
        return Part("Hooks", "", use, hindered or install, note, absent)
    place = str(path.parent.parent).replace(os.path.expanduser("~"), "~", 1)
    place = "part of this wheel" if path.is_relative_to(PREBUILT.resolve()) else f"built in {place}"
    return Part("Hooks", f"for torch {goal.torch.version}", use, "", place)


# ---- Setup -------------------------------------------------------------------------------

_EXAMPLE = """example:
  neutracer setup env                    # versions, and what is missing
  neutracer setup hooks                  # compile the hooks on PyTorch's allocator
"""

_HOOKS_EXAMPLE = """example:
  neutracer setup hooks                  # into this user's cache
  neutracer setup hooks -o /opt/hooks    # for an image; NEUTRACER_HOOKS=/opt/hooks finds them

exit codes: 0, 2 if they can't be built; the reason is printed
"""

_KERNELS_EXAMPLE = """example:
  neutracer setup kernels -o my-card.json
  NEUTRACER_KERNELS=my-card.json neutracer rehearse --device "RTX 4090" train.py

exit code: 0; 2 without a CUDA device
"""

_COMPLETION_EXAMPLE = """example:
  eval "$(neutracer setup completion bash)"                 # in ~/.bashrc
  neutracer setup completion zsh > ~/.zfunc/_neutracer      # a folder of fpath
  neutracer setup completion fish > ~/.config/fish/completions/neutracer.fish

exit codes: 0, 2 if shtab is missing
"""

_SHELLS = ("bash", "zsh", "fish")

# Approximate limit on measuring kernels, in seconds.
_MEASURING_S = 300.0

# Metavars of arguments that are files or folders.
_FILES = frozenset(("FILE", "OUT", "BEFORE", "AFTER", "PROGRAM"))
_FOLDERS = frozenset(("DIR", "FOLDER"))


def add_setup(commands: Any, summary: str) -> None:
    description = "Shows what is installed, compiles hooks, measures kernels."
    parser = add_command(commands, "setup", summary, description, _EXAMPLE)
    parts = parser.add_subparsers(dest="part", metavar="WHAT", required=True)
    env = add_command(
        parts,
        "env",
        "show versions and optional dependencies",
        "Shows versions, missing optional parts, and how to install them.",
        "example:\n  neutracer setup env",
        _env,
    )
    add_output(env)
    _add_hooks(parts)
    _add_kernels(parts)
    completion = add_command(
        parts,
        "completion",
        "print a shell's completion script",
        "Prints the script that completes neutracer's commands in a shell; needs shtab.",
        _COMPLETION_EXAMPLE,
        _completion,
    )
    completion.add_argument("shell", choices=_SHELLS, help="the shell")


def _add_hooks(parts: Any) -> None:
    description = (
        "Compiles the hooks on PyTorch's allocator for the installed torch. It needs a "
        "C++ compiler, but no CUDA compiler, and does not import torch."
    )
    summary = "compile the hooks on PyTorch's allocator before their first use"
    hooks = add_command(parts, "hooks", summary, description, _HOOKS_EXAMPLE, _build_hooks)
    hooks.add_argument("-o", "--output", metavar="FOLDER", help="the folder, instead of the cache")
    hooks.add_argument("--again", action="store_true", help="compile even if they exist")


def _add_kernels(parts: Any) -> None:
    description = (
        "Measures cuDNN's workspaces for common convolutions on this machine's card, by small "
        "calls under PyTorch's recorder, and writes a file of facts. Rehearsals of such a card "
        "use these facts instead of ranges. It takes about five minutes and up to 12 GiB of the "
        "card's memory; larger calls are left out."
    )
    summary = "measure the workspaces of this card's kernels, for rehearsals"
    kernels = add_command(parts, "kernels", summary, description, _KERNELS_EXAMPLE, _kernels)
    kernels.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        default="kernels.json",
        help="the file of facts (default: kernels.json)",
    )


def _env(options: argparse.Namespace) -> int:
    return give([environment(neutracer.__version__)], options)


def _build_hooks(options: argparse.Namespace) -> int:
    from neutracer.hooks.build import build, find, target

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
        return complain("no CUDA device to measure")
    if not hasattr(torch.cuda.memory, "_set_memory_metadata"):
        return complain(f"needs torch 2.10 or later; found {torch.__version__}")
    from neutracer.rehearsal.kernels.scratch import learn

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
    """All arguments of a parser and of its commands.

    Sets each command's description to its summary, which a shell shows beside the name.
    """
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for listed in action._choices_actions:
                action.choices[listed.dest].description = listed.help
            for command in action.choices.values():
                yield from _arguments(command)
