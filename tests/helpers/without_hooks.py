# SPDX-License-Identifier: Apache-2.0
"""What a test does where there are no hooks on PyTorch's allocator."""

from __future__ import annotations

from typing import NoReturn

import pytest


def without_hooks(reason: str) -> NoReturn:
    """Skip the test; fail it if the sources of the hooks don't compile.

    Args:
        reason: Why there are none, in neutracer's words.
    """
    if "a build of the hooks" in reason:
        pytest.fail(reason)
    pytest.skip(reason)
