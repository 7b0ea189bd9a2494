# SPDX-License-Identifier: Apache-2.0
"""Tries an installed neutracer where there is nothing else: `python try_wheel.py RECORDING`.

It runs what people run first, each as a command or as they would call it, and prints a line for
each with its seconds. It needs no network, no compiler and no tree.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import neutracer

__all__ = ["main"]


def command(folder: Path, *words: str) -> str:
    """What a command of neutracer's prints; it fails where the command does."""
    line = [sys.executable, "-m", "neutracer", *words]
    done = subprocess.run(line, cwd=folder, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"neutracer {' '.join(words)}: {done.stdout}{done.stderr}")
    return done.stdout


def ring() -> neutracer.ObjectGraph:
    """A small object graph."""
    from neutracer.heap.objects import Edge, Node

    return neutracer.ObjectGraph(
        nodes=(Node(0, "app.Ring", "Ring"),),
        edges=(Edge(0, 0, "me", kind="attribute", in_cycle=True, cut=True),),
    )


def draw(folder: Path) -> str:
    """The picture of an object graph, drawn by Graphviz and written to a file."""
    text = ring().to_svg(folder / "graph.svg")
    assert "<svg" in text, text[:200]
    assert "Ring" in text, text[:200]
    return text


def draw_pixels(folder: Path) -> str:
    """The same as PNG."""
    ring().save(folder / "graph.png")
    assert (folder / "graph.png").read_bytes().startswith(b"\x89PNG")
    return "graph.png"


def say_no_pixels(folder: Path) -> str:
    """Where nothing draws PNG, a sentence says what to install."""
    said = ""
    try:
        ring().save(folder / "graph.png")
    except neutracer.UnavailableError as error:
        said = str(error)
    assert "resvg-py" in said, said
    return said


def environment(folder: Path) -> str:
    """What `neutracer setup env` says; this Python's objects can be walked."""
    text = command(folder, "setup", "env")
    assert "known" in next(line for line in text.splitlines() if "Python's heap" in line), text
    return text


def watch(folder: Path) -> str:
    """A reference cycle with a tensor, found by the watch when the collector finds it."""
    import gc

    import torch

    told: list[neutracer.TensorCycle] = []
    with neutracer.warn_tensor_cycles("cpu", callback=told.append):
        held: list[object] = [torch.zeros(1 << 20)]
        held.append(held)
        del held
        gc.collect()
    assert len(told) == 1, told
    return str(told[0])


_LIVE = """
import torch, neutracer
from neutracer.hooks.shim import state
neutracer.live()
held = torch.zeros(1 << 20)
assert neutracer.live().timeline().peak("allocated").bytes >= 4 << 20
print(state().built_at)
"""


def live(folder: Path) -> str:
    """The hooks that the wheel has for this torch follow its allocator, without a compiler."""
    environ = {**os.environ, "PATH": str(folder), "NEUTRACER_CACHE": str(folder / "cache")}
    line = [sys.executable, "-c", _LIVE]
    done = subprocess.run(line, cwd=folder, env=environ, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"live(): {done.stdout}{done.stderr}")
    assert "prebuilt" in done.stdout, done.stdout
    assert "compiling" not in done.stderr, done.stderr
    return done.stdout


def main(recording: str) -> None:
    """Runs all steps; the first that fails ends it."""
    recording = str(Path(recording).resolve())
    folder = Path(tempfile.mkdtemp())
    steps: dict[str, Callable[[], str]] = {
        "report": lambda: command(folder, "report", recording),
        "page": lambda: command(folder, "view", recording, "-o", "page.html"),
        "what-if": lambda: command(folder, "what-if", recording),
        "explain": lambda: command(folder, "explain", recording),
        "demo": lambda: command(folder, "demo", "--no-browser"),
        "env": lambda: environment(folder),
        "object graph as SVG": lambda: draw(folder),
    }
    if importlib.util.find_spec("resvg_py") and importlib.util.find_spec("matplotlib"):
        steps["object graph as PNG"] = lambda: draw_pixels(folder)
        steps["MDTP as PNG"] = lambda: command(folder, "plot", recording, "-o", "mdtp.png")
    elif not importlib.util.find_spec("resvg_py"):
        steps["the sentence for PNG"] = lambda: say_no_pixels(folder)
    if importlib.util.find_spec("torch"):
        steps["watch"] = lambda: watch(folder)
        steps["live()"] = lambda: live(folder)
    for name, step in steps.items():
        began = time.monotonic()
        assert step()
        print(f"{name}: {time.monotonic() - began:.1f} s")
    assert (folder / "page.html").stat().st_size > 10_000
    shutil.rmtree(folder)


if __name__ == "__main__":
    main(sys.argv[1])
