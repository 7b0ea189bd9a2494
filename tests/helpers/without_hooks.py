# SPDX-License-Identifier: Apache-2.0
"""What a test does where there are no hooks on PyTorch's allocator."""

from __future__ import annotations

import sys
from typing import Any, NoReturn

import pytest


def without_hooks(reason: str) -> NoReturn:
    """Skip the test; fail it if the sources of the hooks don't compile.

    Args:
        reason: Why there are none, in neutracer's words.
    """
    if "a build of the hooks" in reason:
        pytest.fail(reason)
    pytest.skip(reason)


def begin_cuda() -> None:
    """Initialise CUDA where torch is built for it, as the hooks need it; skip the test where there
    is no device."""
    torch: Any = sys.modules["torch"]
    if torch.version.cuda is None:
        return
    if not torch.cuda.is_available():
        pytest.skip("torch is built for CUDA, and there is no device")
    torch.cuda.init()
