# SPDX-License-Identifier: Apache-2.0
"""The process that draws: it reads a plan, has Graphviz draw it, writes the picture.

It is a program of its own, `python -I -S drawing_child.py EXTENSION`, which imports nothing
of neutracer but the compiled module at that path. Graphviz may end the process or never
come back; then only this one ends.

A request is one JSON object on standard input; the answer, on standard output, is one line
of JSON, with "error" where there is no picture, and then the picture's bytes.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import json
import os
import sys
from typing import Any, BinaryIO

# A picture up to this size is shown whole on a page of 1200 x 1800 pixels. Points.
_PAGE_WIDTH = 900.0
_PAGE_HEIGHT = 1350.0


def _drawer(path: str) -> Any:
    loader = importlib.machinery.ExtensionFileLoader("_graphviz", path)
    spec = importlib.util.spec_from_file_location("_graphviz", path, loader=loader)
    if spec is None:
        raise ImportError(f"{path} is not a module")
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def _excess(picture: tuple[bytes, float, float]) -> float:
    """How many times too large a picture is for its page; 1 where it fits."""
    return max(picture[1] / _PAGE_WIDTH, picture[2] / _PAGE_HEIGHT, 1.0)


def _picture(request: dict[str, Any], drawer: Any) -> tuple[bytes, float, float]:
    """The first form that fits a page, or the one that comes closest to it."""
    plan = request["plan"]
    nodes = [tuple(node) for node in plan["nodes"]]
    edges = [tuple(edge) for edge in plan["edges"]]
    best: tuple[bytes, float, float] | None = None
    for graph in plan["graphs"]:
        parts = (graph, plan["frame"], plan["node"], plan["edge"], nodes, edges)
        picture = drawer.render(plan["engine"], request["format"], *parts)
        if best is None or _excess(picture) < _excess(best):
            best = picture
        if _excess(best) == 1.0:
            break
    assert best is not None
    return best


def _limit(seconds: int) -> None:
    """Make this process end by itself when nobody is left to end it."""
    try:
        import resource
    except ImportError:
        return
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _answer(out: BinaryIO, head: dict[str, Any], body: bytes = b"") -> None:
    out.write(json.dumps(head).encode("ascii") + b"\n" + body)
    out.flush()


def main(arguments: list[str]) -> int:
    """Draws one picture.

    Args:
        arguments: The path of the compiled module.

    Returns:
        The exit status: 0 with a picture, 1 with an error in the answer.
    """
    # What a library prints must not end up in the picture.
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    request = json.load(sys.stdin.buffer)
    _limit(request["seconds"])
    try:
        drawer = _drawer(arguments[0])
    except ImportError as error:
        _answer(out, {"error": str(error), "missing": True})
        return 1
    try:
        body, width, height = _picture(request, drawer)
    except (RuntimeError, ValueError) as error:
        _answer(out, {"error": str(error), "missing": False})
        return 1
    _answer(out, {"width": width, "height": height}, body)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
