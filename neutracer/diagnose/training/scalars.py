# SPDX-License-Identifier: Apache-2.0
"""The names under which figures of a training run go to a tracker: one naming for all."""

from __future__ import annotations

import re
from collections.abc import Iterable

from neutracer.process.phases.counters import Counters
from neutracer.process.phases.phase import Phase

__all__ = ["step_scalars"]

_PREFIX = "neutracer"


def _word(name: str) -> str:
    """A phase's name with what every tracker takes in a name."""
    return re.sub(r"[^\w.-]+", "_", name) or "_"


def step_scalars(phases: Iterable[Phase], now: Counters | None) -> dict[str, int]:
    """The figures of one step, in bytes and counts.

    Args:
        phases: Those that have ended in it; of several of one name, the highest peak and the
            last end count.
        now: The counters at its end; None where CUDA is not in use: then there are no figures.

    Returns:
        "neutracer/allocated_bytes", "neutracer/reserved_bytes", "neutracer/peak_bytes" (of the
        step), "neutracer/alloc_retries" and "neutracer/ooms" (since the start), and of each
        phase "neutracer/<phase>/peak_bytes" and "neutracer/<phase>/end_bytes".
    """
    if now is None:
        return {}
    scalars = {
        f"{_PREFIX}/allocated_bytes": now.allocated,
        f"{_PREFIX}/reserved_bytes": now.reserved,
        f"{_PREFIX}/peak_bytes": now.allocated_peak,
        f"{_PREFIX}/alloc_retries": now.retries,
        f"{_PREFIX}/ooms": now.ooms,
    }
    for one in phases:
        if one.device is None:
            continue
        peak = f"{_PREFIX}/{_word(one.name)}/peak_bytes"
        scalars[peak] = max(scalars.get(peak, 0), one.peak_bytes)
        scalars[f"{_PREFIX}/{_word(one.name)}/end_bytes"] = one.end_bytes
        whole = f"{_PREFIX}/peak_bytes"
        scalars[whole] = max(scalars[whole], one.peak_bytes)
    return scalars
