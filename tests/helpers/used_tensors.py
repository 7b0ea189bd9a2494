# SPDX-License-Identifier: Apache-2.0
"""Programs whose uses are known, for observers of real runs and of rehearsals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def written(floats: Callable[[int], Any]) -> None:
    """Writes in place after request 2, into `out` after request 3.

    Args:
        floats: Makes a tensor of so many MiB.
    """
    import torch

    filled, target = floats(2), floats(3)  # 0, 1
    mark = floats(1)  # 2
    filled.add_(1)
    mark = floats(1)  # 3
    torch.sin(mark, out=target[: 1 << 18])
    mark = floats(1)  # 4
