# SPDX-License-Identifier: Apache-2.0
"""A file's devices, or the host's pinned memory in it, whole or in part: what commands read."""

from __future__ import annotations

from neutracer.trace.snapshot import Snapshot, part_of, read_whole
from neutracer.trace.source import SnapshotSource
from neutracer.trace.window import EventWindow, SecondWindow

__all__ = ["load_part"]


def load_part(
    source: SnapshotSource,
    *,
    is_host: bool = False,
    events: EventWindow | None = None,
    seconds: SecondWindow | None = None,
    device: int | None = None,
    max_memory: int | str | None = None,
) -> Snapshot:
    """What `load` reads; with `is_host` the same of the host's pinned memory.

    Raises:
        ValueError: The file has no pinned memory, or not that part.
        SnapshotError: The file can't be read.
        OSError: It can't be opened.
    """
    snap = read_whole(source, max_memory, None)
    if is_host and snap.host is None:
        raise ValueError(
            "no pinned memory of the host is recorded in it: PyTorch 2.14 and later do that with "
            "torch.cuda.memory._record_memory_history(record_pinned_host_memory=True)"
        )
    chosen = snap.host if is_host and snap.host is not None else snap
    return part_of(chosen, events, seconds, device)
