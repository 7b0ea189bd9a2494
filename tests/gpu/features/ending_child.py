# SPDX-License-Identifier: Apache-2.0
"""Runs a script as `__main__` under watchers: python ending_child.py DEVICE WATCHERS SCRIPT."""

from __future__ import annotations

import logging
import sys
from typing import Any

import child

from neutracer import UnavailableError


def _begun(names: list[str], device: str) -> list[Any]:
    """What watches; what refuses a program by design (no caching allocator) is left out."""
    kept = []
    for name in names:
        try:
            kept.append(child.WATCHERS[name](device))
        except UnavailableError:
            continue
    return kept


if __name__ == "__main__":
    device, watchers, script = sys.argv[1:]
    logging.getLogger("neutracer").setLevel(logging.CRITICAL)
    if watchers != "none":
        import torch

        names = watchers.split("+")
        early = [name for name in names if name.startswith(("record", "watch"))]
        kept = _begun(early, device)
        torch.zeros(1, device=device)
        kept += _begun([name for name in names if name not in early], device)
    sys.argv = [script]
    with open(script, encoding="utf-8") as file:
        code = compile(file.read(), script, "exec")
    exec(code, {"__name__": "__main__", "__file__": script})
