# SPDX-License-Identifier: Apache-2.0
"""A snapshot written in PyTorch's own format, as a file, as bytes, as plain data; its settings."""

from __future__ import annotations

import io
import os
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from neutracer._native import core
from neutracer.trace.devices import device_name, shown_device
from neutracer.trace.events import event_range
from neutracer.trace.rehearsed import Rehearsed, rehearsed_of
from neutracer.trace.timeline import Timeline

__all__ = ["Written", "settings_words", "written"]


def written(source: core.Snapshot | tuple[tuple[core.Timeline, int, int], ...]) -> bytes:
    """A snapshot of the core, or ranges of its timelines, as the bytes of a file."""
    core.save(source, (buffer := io.BytesIO()).write)
    return buffer.getvalue()


class Written:
    """The base of Snapshot: what its settings say, and how it is written."""

    origin: str
    _native: core.Snapshot

    def trace_length(self, device: int | None = None) -> int:
        """The number of events of a device."""
        raise NotImplementedError

    def timeline(self, device: int | None = None) -> Timeline:
        """The device's trace replayed."""
        raise NotImplementedError

    @property
    def is_cpu(self) -> bool:
        """Whether it shows the CPU's allocator, as `live` does on a torch without CUDA."""
        return self._native.settings().get("exact_sizes") is True

    def device_name(self, device: int) -> str:
        """What a device is called: "cuda:0", "cpu" or "pinned host memory"."""
        return device_name(shown_device(self, device))

    @property
    def is_pinned(self) -> bool:
        """Whether it shows the host's pinned memory: the `host` of another snapshot."""
        return self._native.settings().get("pinned") is True

    @property
    def settings(self) -> Mapping[str, Any]:
        """The allocator's settings as the file has them; empty before torch 2.3."""
        return MappingProxyType(self._native.settings())

    @property
    def settings_stated(self) -> bool:
        """Whether the file states its settings; else `settings_in_force` are what it shows."""
        return bool(self._native.settings())

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

    def save(
        self,
        path: str | os.PathLike[str],
        *,
        events: range | slice | tuple[int, int] | None = None,
        device: int | None = None,
    ) -> None:
        """Write the snapshot in PyTorch's own format, which its viewer opens; whole or not at all.

        Args:
            path: Where to; JSON with the same keys if it ends in .json (frames are spelt out
                there at each event); compressed if it ends in .gz, .xz or .zst.
            events: Only these events of one device, with the segments as they were after the
                last of them, and before the first (`segments_before`): a range, a slice, or the
                first one and the one after the last. None writes everything.
            device: The device of `events`; None is the only one.

        Raises:
            ValueError: There are no such events or device, or it is the file that was read.
            UnavailableError: Nothing here writes that compression.
            OSError: It can't be written.
        """
        # Most who read a snapshot write none.
        from neutracer.saving import atomic_file
        from neutracer.trace.formats import in_format

        length = 0 if events is None and device is None else self.trace_length(device)
        chosen = None if events is None else event_range(events, length)
        with atomic_file(path, self) as target, in_format(path, target) as file:
            if chosen is None:
                core.save(self._native, file.write)
            else:
                core.save(((self.timeline(device).native, *chosen),), file.write)

    def to_bytes(self) -> bytes:
        """What `save` writes, as bytes."""
        return written(self._native)

    def to_dict(self) -> Any:
        """The snapshot as PyTorch's own structure of dicts and lists."""
        import pickle

        # Our own bytes, in which no opcode names a class.
        return pickle.loads(self.to_bytes())


def settings_words(settings: str, *, is_stated: bool) -> str:
    """The allocator's settings for a reader.

    Args:
        settings: The text for PYTORCH_CUDA_ALLOC_CONF; "" is PyTorch's default.
        is_stated: Whether the file states its settings; else they are what its trace shows.
    """
    if is_stated:
        return settings or "default settings"
    return f"{settings}, as its trace shows" if settings else "settings not recorded"
