# SPDX-License-Identifier: Apache-2.0
"""PyTorch's counters of a CUDA device, read where CUDA is in use."""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

from neutracer._native import core
from neutracer.errors import UnavailableError
from neutracer.process.hooks.shim import load

__all__ = ["Counters", "prefer_hooks", "read", "reset_peak"]


class Counters(NamedTuple):
    """Bytes of one device; the peaks are those since they were reset."""

    device: int
    allocated: int
    allocated_peak: int
    reserved: int
    reserved_peak: int
    retries: int
    ooms: int


def _cuda() -> Any:
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    return cuda if cuda is not None and cuda.is_initialized() else None


def prefer_hooks() -> None:
    """Load the hooks that this machine has compiled; `read` is quicker with them.

    Nothing is attached or compiled.
    """
    torch = sys.modules.get("torch")
    has_cuda = getattr(getattr(torch, "version", None), "cuda", None) is not None
    if not has_cuda or getattr(torch, "__spec__", None) is None:
        return
    try:
        load(compile=False)
    except UnavailableError:
        return


def read(device: int | None = None) -> Counters | None:
    """The counters now; None before CUDA is in use. Nothing is initialised.

    Args:
        device: The device; None is the calling thread's current one.

    They come from the hooks where these are loaded: PyTorch's own are a dict of all figures.
    """
    cuda = _cuda()
    if cuda is None:
        return None
    if device is None:
        device = cuda.current_device()
    brief = core.live_counters(device)
    if brief is not None:
        return Counters(device, *brief)
    stats = cuda.memory_stats_as_nested_dict(device)
    if not stats:
        return None
    allocated = stats["allocated_bytes"]["all"]
    reserved = stats["reserved_bytes"]["all"]
    return Counters(
        device,
        allocated["current"],
        allocated["peak"],
        reserved["current"],
        reserved["peak"],
        stats.get("num_alloc_retries", 0),
        stats.get("num_ooms", 0),
    )


def reset_peak(now: Counters) -> None:
    """Let the device's peaks begin anew; `now` was just read. Nothing where they are at it."""
    if now.allocated_peak != now.allocated or now.reserved_peak != now.reserved:
        sys.modules["torch"].cuda.reset_peak_memory_stats(now.device)
