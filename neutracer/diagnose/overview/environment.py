# SPDX-License-Identifier: Apache-2.0
"""What neutracer has to work with here: versions, what is missing, how to get it."""

from __future__ import annotations

import importlib.util
import os
import platform
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from neutracer._native import core
from neutracer.errors import UnavailableError, pip_install
from neutracer.process.hooks.attach import HookState, state
from neutracer.process.hooks.build import (
    PREBUILT,
    find,
    installed_torch,
    obstacle,
    passed_over,
    target,
)
from neutracer.process.hooks.observer import is_attached
from neutracer.render.document import Block, Copyable, Document, Paragraph, Table
from neutracer.render.report import Report
from neutracer.render.row import PlainRow

__all__ = ["EnvironmentReport", "Part", "environment"]

# Packages that neutracer can use, and what for.
_PACKAGES = (
    ("matplotlib", "plots"),
    ("resvg-py", "object graphs as PNG in a wheel"),
    ("rich", "colours on a terminal"),
    ("prometheus_client", "serve_metrics()"),
)

_NO_CUDA = "built without CUDA, so it has no snapshots and no recorder of its own"


@dataclass(frozen=True)
class Part(PlainRow):
    """Something that neutracer can use.

    Attributes:
        name: Its name.
        version: Its version, "" where it is missing.
        use: What it is good for.
        install: How to get it.
        note: What to know about the one that is installed.
        absent: What stands in place of a version where there is none.
    """

    name: str
    version: str
    use: str
    install: str
    note: str = ""
    absent: str = "missing"

    @property
    def how_to_get(self) -> Copyable:
        """`install` where it is missing, else nothing."""
        return Copyable("" if self.version else self.install)


@dataclass(frozen=True, kw_only=True, repr=False)
class EnvironmentReport(Report):
    """What `neutracer setup env` prints.

    Attributes:
        neutracer: Its version.
        python: The interpreter and its version.
        machine: The operating system and processor.
        parts: What can be used, and what is missing.
    """

    schema = "neutracer.env/1"

    neutracer: str
    python: str
    machine: str
    parts: tuple[Part, ...]

    def document(self) -> Document:
        """The report as a page."""
        rows = tuple(
            (part.name, part.version or part.absent, part.use, part.how_to_get)
            for part in self.parts
        )
        facts = (self.python, self.machine)
        notes = (Paragraph(f"{part.name}: {part.note}.") for part in self.parts if part.note)
        blocks: tuple[Block, ...] = (Table("What it can use", rows), *notes)
        return Document(f"neutracer {self.neutracer}", facts, blocks)


def environment(version: str) -> EnvironmentReport:
    """Look at what is installed, without importing anything or touching CUDA.

    Args:
        version: That of neutracer.

    Example:
        >>> environment("1.0.0").python.startswith(platform.python_implementation())
        True
    """
    parts = [_torch()]
    parts += [Part(name, _version(name), use, pip_install(name)) for name, use in _PACKAGES]
    parts += [_zstd(), _graphviz(), _heap(), *_hooks(), *_observer()]
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
    """PyTorch: without CUDA (or HIP, which goes by its name) it has no snapshots."""
    use, install = "live snapshots, reference cycles", "install torch for your CUDA version"
    try:
        torch = installed_torch()
    except UnavailableError:
        return Part("torch", _version("torch"), use, install)
    if torch.backend in ("cuda", "hip"):
        return Part("torch", torch.version, use, install)
    return Part("torch", torch.version, "reference cycles", install, _NO_CUDA)


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
    """Whether this interpreter's objects can be walked."""
    use = "reference cycles, why_alive"
    try:
        core.heap_prepare()
    except UnavailableError as error:
        return Part("Python's heap", "", use, error.install)
    return Part("Python's heap", "known", use, "")


def _hooks() -> list[Part]:
    """The hooks on PyTorch's allocator: whether they are available, where, and what they do."""
    use = "live(), device figures without the GIL"
    try:
        goal = target()
        path = find(goal)
    except UnavailableError as error:
        return [Part("Hooks", "", use, error.install)]
    now = state()
    if now is not None:
        path = Path(now.built_at)
    note = "; ".join(f"passed over: {reason}" for reason in passed_over(goal))
    if path is None:
        install = f"compiled at first use for torch {goal.torch.version}, or by setup hooks"
        hindered = obstacle(goal)
        absent = "missing" if hindered else "not built yet"
        return [Part("Hooks", "", use, hindered or install, note, absent)]
    place = str(path.parent.parent).replace(os.path.expanduser("~"), "~", 1)
    place = "part of this wheel" if path.is_relative_to(PREBUILT.resolve()) else f"built in {place}"
    parts = [Part("Hooks", f"for torch {goal.torch.version}", use, "", place)]
    return parts + ([] if now is None else _attached(now))


def _attached(now: HookState) -> list[Part]:
    """What was attached in this process, which PyTorch keeps until it ends."""
    parts = []
    if now.attached:
        doing = f"recording, {now.frames} frames an event" if now.active else "silent"
        use = f"the last {now.events:,} events; PyTorch can't detach it"
        parts.append(Part("Allocator tracker", f"attached, {doing}", use, ""))
    if now.oom_attached:
        use = f"{now.ooms:,} seen; PyTorch can't detach it"
        parts.append(Part("Out-of-memory observer", "attached, native", use, ""))
    return parts


def _observer() -> list[Part]:
    """PyTorch's own way to report an OOM, where this process asked for it."""
    use = "reports at an OOM; PyTorch can't detach it"
    return [Part("Out-of-memory observer", "attached", use, "")] if is_attached() else []
