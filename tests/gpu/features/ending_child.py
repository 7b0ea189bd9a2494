# SPDX-License-Identifier: Apache-2.0
"""Runs a script as `__main__` under watchers: python ending_child.py DEVICE WATCHERS SCRIPT."""

from __future__ import annotations

import logging
import sys

import child

if __name__ == "__main__":
    device, watchers, script = sys.argv[1:]
    logging.getLogger("neutracer").setLevel(logging.CRITICAL)
    if watchers != "none":
        import torch

        names = watchers.split("+")
        early = [name for name in names if name.startswith(("record", "watch"))]
        kept = [child.WATCHERS[name](device) for name in early]
        torch.zeros(1, device=device)
        kept += [child.WATCHERS[name](device) for name in names if name not in early]
    sys.argv = [script]
    with open(script, encoding="utf-8") as file:
        code = compile(file.read(), script, "exec")
    exec(code, {"__name__": "__main__", "__file__": script})
