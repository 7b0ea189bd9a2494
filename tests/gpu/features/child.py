# SPDX-License-Identifier: Apache-2.0
"""Runs features one after the other in this process, under some watchers.

usage: python child.py DEVICE OUTCOMES WATCHERS FEATURE...

WATCHERS are names in WATCHERS joined by "+", or "none". OUTCOMES gets a line when a feature
begins, and one with the fingerprint of what it came to when it ends, so that a process that
dies leaves behind in which feature it was.
"""

from __future__ import annotations

import gc
import json
import os
import random
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
# Workers that are spawned import the features by this path too.
sys.path.insert(0, str(HERE))
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")


def _watch_oom() -> Callable[[], object]:
    import neutracer

    return neutracer.watch_oom(tempfile.mkdtemp(prefix="oom-"), limit=3, seconds=5.0).remove


def _record(context: str, *, modules: bool = False) -> Callable[[], object]:
    import neutracer

    marked = True if modules else None
    return neutracer.record(context=context, modules=marked).start().discard


def _is_silent(device: str) -> bool:
    """Only a torch without CUDA reports what it allocates on the CPU."""
    import torch

    return device == "cpu" and torch.version.cuda is not None


def _live(device: str) -> Callable[[], object]:
    import neutracer

    if _is_silent(device):
        return lambda: None
    neutracer.live()
    return neutracer.live.stop


def _cycles(device: str) -> Callable[[], object]:
    import neutracer

    return neutracer.warn_tensor_cycles(device).remove


def _monitor(device: str) -> Callable[[], object]:
    import neutracer

    if _is_silent(device):
        return lambda: None
    return neutracer.MemoryMonitor(interval=0.005, fragmentation_threshold=None).start().stop


def _attribution() -> Callable[[], object]:
    import neutracer

    return neutracer.attribute_device_memory().remove


#: By name, what switches a watcher on and returns what switches it off.
WATCHERS: dict[str, Callable[[str], Callable[[], object]]] = {
    "record": lambda device: _record("alloc"),
    "record_modules": lambda device: _record("alloc", modules=True),
    "record_all": lambda device: _record("all"),
    "watch_oom": lambda device: _watch_oom(),
    "live": _live,
    "cycles": _cycles,
    "monitor": _monitor,
    "attribution": lambda device: _attribution(),
}


def _seed() -> None:
    import torch

    random.seed(0)
    torch.manual_seed(0)


def main(device: str, outcomes: str, watchers: str, *names: str) -> int:
    """Run the features; returns the exit code."""
    import torch

    torch.set_num_threads(1)
    torch.backends.cudnn.deterministic = True
    ends = []
    # The first tensor makes the context, with recorders that wait for it in place.
    early = [w for w in watchers.split("+") if w.startswith(("record", "watch"))]
    late = [w for w in watchers.split("+") if w not in (*early, "none")]
    ends += [WATCHERS[name](device) for name in early]
    torch.zeros(1, device=device)
    ends += [WATCHERS[name](device) for name in late]
    with Path(outcomes).open("a", buffering=1, encoding="utf-8") as file:
        _run(device, names, file)
    for end in reversed(ends):
        end()
    return 0


def _run(device: str, names: tuple[str, ...], file: Any) -> None:
    from base import FEATURES, digest
    from programs import load_all

    load_all()
    for name in names:
        file.write(json.dumps({"begin": name}) + "\n")
        _seed()
        try:
            outcome = digest(FEATURES[name].run(device))
        except BaseException as error:
            # What a feature does not expect is what it comes to, and its words are shown.
            outcome = f"{type(error).__name__}: {error}"
            if outcome.count("Memory") and "OutOfMemory" in outcome:
                outcome = "OutOfMemoryError"
        # What there is by now would cost most of the time of the collections that follow.
        gc.collect()
        gc.freeze()
        file.write(json.dumps({"end": name, "outcome": outcome}) + "\n")


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
