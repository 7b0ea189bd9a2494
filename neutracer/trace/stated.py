# SPDX-License-Identifier: Apache-2.0
"""What a snapshot's settings state: the allocator's own, and what memory it is of."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from neutracer._native import core
from neutracer.trace.rehearsed import Rehearsed, rehearsed_of

__all__ = ["Stated"]


class Stated:
    """A base of Snapshot: what its settings state."""

    _native: core.Snapshot

    @property
    def is_cpu(self) -> bool:
        """Whether it shows the CPU's allocator, as `live` does on a torch without CUDA."""
        return self._native.settings().get("exact_sizes") is True

    def device_name(self, device: int) -> str:
        """What a device is called: "cuda:0", or "cpu"."""
        return "cpu" if self.is_cpu else f"cuda:{device}"

    @property
    def is_pinned(self) -> bool:
        """Whether it shows the host's pinned memory: the `host` of another snapshot."""
        return self._native.settings().get("pinned") is True

    @property
    def settings(self) -> Mapping[str, Any]:
        """The allocator's settings as the file has them; empty before torch 2.3."""
        return MappingProxyType(self._native.settings())

    @property
    def settings_in_force(self) -> Mapping[str, Any]:
        """The settings as neutracer understands them, defaults filled in; sizes in bytes.

        `text` is the PYTORCH_CUDA_ALLOC_CONF that expresses them.
        """
        return MappingProxyType(self._native.settings_in_force())

    @property
    def rehearsed(self) -> Rehearsed | None:
        """None of a recording; of a run that has not happened what was assumed of it."""
        return rehearsed_of(self._native.settings())
