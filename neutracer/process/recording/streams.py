# SPDX-License-Identifier: Apache-2.0
"""The standard streams, which a program that was run here may have closed or replaced."""

from __future__ import annotations

__all__ = ["can_be_restored"]


def can_be_restored(stream: object) -> bool:
    """Whether a standard stream still has what it writes to, and none has been given that."""
    try:
        # Of a stream without its buffer not even this can be asked.
        getattr(stream, "closed", False)
    except ValueError:
        return False
    return True
