# SPDX-License-Identifier: Apache-2.0
"""The one place that loads compiled modules."""

from __future__ import annotations

__all__ = ["core"]

try:
    from neutracer import _core as core
except ImportError as error:  # pragma: no cover - only in a broken installation
    raise ImportError(
        "neutracer's compiled core is missing or does not fit this Python "
        f"({error}); reinstall neutracer, or run `make build` in a source checkout"
    ) from error
