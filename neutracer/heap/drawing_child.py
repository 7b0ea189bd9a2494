# SPDX-License-Identifier: Apache-2.0
"""The drawing process, `python -I -S drawing_child.py EXTENSION`: it lays out a plan with Graphviz.

It isolates the program from a Graphviz that exits or hangs, and imports nothing of neutracer but
the compiled module at that path. Standard input is one JSON object; standard output one line of
JSON, with "error" on failure, and then the picture's bytes.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import json
import os
import sys
from typing import Any, BinaryIO

# Points; a picture of this size fits a page of 1200 x 1800 pixels.
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
    return max(picture[1] / _PAGE_WIDTH, picture[2] / _PAGE_HEIGHT, 1.0)


def _picture(request: dict[str, Any], drawer: Any) -> tuple[bytes, float, float]:
    """The first layout that fits a page, or the closest."""
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
    """Limit this process's CPU time, in case its parent dies."""
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
    """Draw one picture; returns the exit status, 1 with an error in the answer."""
    # Keep a library's own prints out of the picture.
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
