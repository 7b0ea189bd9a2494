# SPDX-License-Identifier: Apache-2.0
"""Whether the torch that runs does what the hooks rely on, beyond what a compiler can see."""

from __future__ import annotations

import sys
from types import FunctionType
from typing import Any

__all__ = ["FALLBACK", "PROFILER_FUNCTIONS", "difference"]

#: What there is where the hooks can't be had.
FALLBACK = "PyTorch's own Python entry points are used instead"

#: How `torch.autograd.profiler` starts and ends a profiler in a thread.
PROFILER_FUNCTIONS = ("_enable_profiler", "_disable_profiler")


def difference(module: Any) -> str:
    """How this torch differs from what the hooks need, as a sentence, or "".

    Args:
        module: The module `_torch`, with nothing attached by it.

    Raises:
        RuntimeError: It can't be tried out here.
    """
    if module.backend != "cpu":
        return ""
    return _profiler_difference() or _allocator_difference(module)


def _profiler_difference() -> str:
    """The profiler and the watch want the same place of a thread: the watch has to notice."""
    profiler: Any = sys.modules.get("torch.autograd.profiler")
    made = vars(getattr(profiler, "profile", object)).values()
    codes = [one.__code__ for one in made if isinstance(one, FunctionType)]
    called = {name for code in codes for name in code.co_names}
    lacking = [n for n in PROFILER_FUNCTIONS if not hasattr(profiler, n) or n not in called]
    if not lacking:
        return ""
    return f"PyTorch's profiler does without torch.autograd.profiler.{lacking[0]}"


def _allocator_difference(module: Any) -> str:
    told: str = module.differs()
    return f"its CPU allocator is another one: {told}" if told else ""
