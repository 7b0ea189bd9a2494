# SPDX-License-Identifier: Apache-2.0
"""A snapshot of PyTorch's CUDA caching allocator: load, look, save."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping
from typing import Any

from neutracer import units
from neutracer._native import core
from neutracer.errors import HistoryWarning
from neutracer.trace.bounds import memory_bound
from neutracer.trace.devices import chosen_device
from neutracer.trace.events import annotation_table, event_table, said_of_trace
from neutracer.trace.flaws import Flaw, first_findings, flaws_of, trace_flaws
from neutracer.trace.layout import block_table, named_stats, segment_table
from neutracer.trace.progress import reporting
from neutracer.trace.source import SnapshotSource, open_source, source_path
from neutracer.trace.stacks import Stacks
from neutracer.trace.table import Table
from neutracer.trace.timeline import Timeline
from neutracer.trace.told import told_beside
from neutracer.trace.window import EventWindow, SecondWindow, Window, window_of
from neutracer.trace.written import Written, written

__all__ = ["Snapshot", "load", "part_of", "read_whole"]


def load(
    source: SnapshotSource,
    *,
    events: EventWindow | None = None,
    seconds: SecondWindow | None = None,
    device: int | None = None,
    max_memory: int | str | None = None,
    progress: Callable[[int], object] | bool | None = None,
) -> Snapshot:
    """Read a snapshot. Nothing in the file is executed, whatever it holds.

    Args:
        source: A path, "-" for standard input, bytes, or a file open in binary mode;
            plain or compressed with gzip, xz or zstd.
        events: Only these events of one device: a range, a slice (`slice(-1000, None)` is the
            last thousand), or the first one and the one after the last. What lived before them
            is known, with its stacks; all else of the file is given back.
        seconds: Only what happened in these seconds since the file's first event, on all
            devices: two numbers, of which None is the beginning or the end.
        device: With `events` or `seconds`, only this device; None is all, or for `events` the
            only one.
        max_memory: The most memory that reading may take: bytes, or a text like "4GiB".
            None is what this machine, or the container, has free.
        progress: Called with the number of bytes read so far, some 20 times a second;
            True writes it to standard error; None does that for long files on a terminal.

    Returns:
        The snapshot. Of a file that breaks off you get the whole part, and `.partial` says
        why; of one that can't be right in places the rest, and `.flaws` says which. Of a part,
        `.window` says which one, and what nobody can know of it.

    Raises:
        ValueError: There are no such events, seconds or device.
        SnapshotError: It is no snapshot, damaged, or holds what no allocator can have
            written; `.offset` is the byte where that is known.
        LimitError: It would take more than `max_memory`, or unpacks without end.
        UnavailableError: It is compressed, and nothing here unpacks that.
        OSError: It can't be opened or read.

    Example:
        >>> import neutracer
        >>> neutracer.load("tests/data/frag_default.pickle")
        <Snapshot: 1 device, 18 segments, 83 blocks, 2,375 events>
        >>> last = neutracer.load("tests/data/frag_default.pickle", events=slice(-100, None))
        >>> len(last.events), str(last.window)
        (100, 'events 2,275 to 2,374 of 2,375')
    """
    if events is not None and seconds is not None:
        raise ValueError("a part is chosen by events or by seconds, not by both")
    return part_of(read_whole(source, max_memory, progress), events, seconds, device)


def read_whole(
    source: SnapshotSource,
    max_memory: int | str | None,
    progress: Callable[[int], object] | bool | None,
) -> Snapshot:
    """All of a file, as `load` reads it."""
    limit = memory_bound() if max_memory is None else units.parse_bytes(max_memory)
    limit = min(limit, sys.maxsize)
    with reporting(source, progress) as report, open_source(source) as opened:
        native = core.load(opened, limit, report)
    if native.partial is not None:
        warnings.warn(f"only a part was read: {native.partial}", HistoryWarning, stacklevel=3)
    return Snapshot(native, origin=source_path(source))


def part_of(
    whole: Snapshot, events: EventWindow | None, seconds: SecondWindow | None, device: int | None
) -> Snapshot:
    """The part of it that was asked for."""
    if events is None and seconds is None:
        return whole
    return _part(whole, window_of(whole, events, seconds, device))


def _part(whole: Snapshot, window: Window) -> Snapshot:
    """A part of a snapshot that holds nothing of the rest."""
    ranges = tuple((whole.timeline(p.device).native, p.first, p.end) for p in window.parts)
    made = Snapshot(core.load(written(ranges), sys.maxsize, None), origin=whole.origin)
    made._partial, made._flaws, made._window = whole._partial, whole._flaws, window
    # The sidecar knows what blocks are at the file's end, and no others.
    made.told = {one: told for one, told in whole.told.items() if window.reaches_end(one)}
    return made


def _restored(saved: bytes, renamed: Mapping[str, str] | None, *rest: Any) -> Snapshot:
    """What was pickled; it takes as much memory as at its origin."""
    snap = Snapshot(core.load(saved, sys.maxsize, None), renamed)
    snap._partial, snap._flaws, snap.told, snap._window = rest
    return snap


class Snapshot(Written):
    """What the allocator held, and the trace of how it came to that.

    Tables: `segments`, `blocks`, `events`, `annotations`. Made by `load` and `snapshot`.

    It can be pickled and deeply copied, through `to_bytes` and `load`. All but `ignored_keys`
    survives that, `partial` and the names of a notebook's cells too.
    """

    def __init__(
        self, native: core.Snapshot, renamed: Mapping[str, str] | None = None, origin: str = ""
    ) -> None:
        """Made by `load`; not by users. `renamed`: what files are called here, by name.
        `origin`: the file that was read, which `save` does not replace."""
        self.origin, self.told = origin, told_beside(origin)
        self._native, self._renamed, self._partial = native, renamed, native.partial
        self._flaws = flaws_of(native.broken())
        self._strings = [(renamed or {}).get(text, text) for text in native.strings()]
        self._stacks = Stacks(native, self._strings)
        self._columns = native.tables()
        self._traces = native.traces()
        self._timelines: dict[int, Timeline] = {}
        self._trace_flaws: dict[int, tuple[Flaw, ...]] = {}
        self._window: Window | None = None
        self._host: Snapshot | None = None

    @property
    def host(self) -> Snapshot | None:
        """The host's pinned memory as a snapshot of its own; None where the file has none of it.

        PyTorch 2.14 and later record it with
        ``torch.cuda.memory._record_memory_history(record_pinned_host_memory=True)``. It has one
        device, 0, and sizes are what the allocator took: the request rounded up to a power of
        two. All that takes a Snapshot takes it. A part (`load(events=)`) has none of it.
        """
        native = self._native.host() if self._host is None else None
        if native is not None:
            self._host = Snapshot(native, self._renamed)
            self._host.origin, self._host._partial = self.origin, self._partial
        return self._host

    @property
    def native(self) -> core.Snapshot:
        """The core's object, for other parts of neutracer."""
        return self._native

    @property
    def stacks(self) -> Stacks:
        """The stacks by id, for other parts of neutracer."""
        return self._stacks

    @property
    def strings(self) -> list[str]:
        """The strings by id, for other parts of neutracer."""
        return self._strings

    @property
    def devices(self) -> tuple[int, ...]:
        """The devices that have segments or events."""
        used = {device for device, (_, events) in enumerate(self._traces) if events}
        return tuple(sorted(used | set(memoryview(self._columns["segments"]["device"]))))

    def device(self, device: int | None) -> int:
        """`device`, or the only one there is.

        Raises:
            ValueError: There is no such device, or there are several and None was given.
            TypeError: It is no number.
        """
        return chosen_device(self.devices, len(self._traces), device)

    @property
    def segments(self) -> Table:
        """The segments at the end, one row each.

        Columns: device, address, total_size, allocated_size, active_size, requested_size
        (bytes), stream, segment_type, segment_pool_id (as pool_first, pool_second),
        is_expandable, stack, block_first and block_count (rows of `blocks`).
        """
        return segment_table(self._columns["segments"], self._stacks)

    @property
    def blocks(self) -> Table:
        """The blocks at the end, one row each.

        Columns: segment (row of `segments`), address, size, requested_size (bytes; stale
        for inactive blocks, as PyTorch writes it), state, stack.
        """
        return block_table(self._columns["blocks"], self._stacks)

    @property
    def events(self) -> Table:
        """The trace, one row an event, device by device.

        Columns: device, action, addr, size (bytes), stream, time_us (since the epoch, 0
        where unknown), device_free (bytes, of oom events), pool_id (as pool_first,
        pool_second), compile_context, user_metadata, internal_metadata, forward_frames (of a
        backward allocation: the stack of its forward operation, as text), stack. Actions of the
        allocator's own (internal_metadata) begin with ``internal_``, and count nowhere.
        """
        return event_table(
            self._columns["events"],
            self._traces,
            self._native.actions(),
            self._strings,
            self._stacks,
        )

    @property
    def annotations(self) -> Table:
        """Ranges that the program named: stage, name, device, time_us."""
        return annotation_table(self._columns["annotations"], self._strings, self._stacks)

    def memory_stats(self, device: int | None = None) -> dict[str, int]:
        """What torch.cuda.memory_stats() said at that moment, under PyTorch's own keys.

        Args:
            device: The device; None is the only one.

        Returns:
            `<metric>.<pool>.current` for the pools all, small_pool and large_pool;
            counts, or bytes where the metric ends in `_bytes`.

        Example:
            >>> import neutracer
            >>> stats = neutracer.load("tests/data/frag_default.pickle").memory_stats()
            >>> stats["allocated_bytes.all.current"]
            425710592
        """
        return named_stats(*self._native.pool_stats(self.device(device)))

    def history_overflowed(self, device: int | None = None) -> bool | None:
        """Whether PyTorch says that its ring of events wrapped; None where it doesn't say."""
        return said_of_trace(self.settings, "trace_alloc_overflowed", self.device(device))

    def history_complete(self, device: int | None = None) -> bool | None:
        """Whether the trace goes back to the device's first allocation.

        Args:
            device: The device; None is the only one.

        Returns:
            True if it does; False if the ring wrapped, recording began late or the file
            breaks off; None where there is no trace to tell from.
        """
        number = self.device(device)
        began_late = said_of_trace(self.settings, "trace_alloc_began_late", number)
        if self.partial is not None or began_late or self.history_overflowed(device):
            return False
        if not self.trace_length(device):
            return None
        return bool(self.timeline(number).facts["complete"]) and not self._traced(number)

    def trace_length(self, device: int | None = None) -> int:
        """The number of events of a device."""
        number = self.device(device)
        return self._traces[number][1] if number < len(self._traces) else 0

    @property
    def partial(self) -> str | None:
        """Why only a part of the file could be read, or None."""
        return self._partial

    @property
    def window(self) -> Window | None:
        """What part of the file's traces it is, of what `load(events=)` read; else None."""
        return self._window

    @property
    def flaws(self) -> tuple[Flaw, ...]:
        """What the file says that no allocator can have done; no figure rests on it.

        Of a file that breaks off, only what does not come from that. `kind`, `device`,
        `count`, `bytes` and `message` of each.
        """
        if self.partial:
            return self._flaws
        return (*self._flaws, *(flaw for device in self.devices for flaw in self._traced(device)))

    def _traced(self, device: int) -> tuple[Flaw, ...]:
        if device not in self._trace_flaws:
            self._trace_flaws[device] = trace_flaws(self.timeline(device), self.segments["device"])
        return self._trace_flaws[device]

    @property
    def ignored_keys(self) -> tuple[str, ...]:
        """Keys at the top of the file that neutracer does not read."""
        return tuple(self._strings[name] for name in self._native.ignored())

    def timeline(self, device: int | None = None) -> Timeline:
        """The device's trace replayed; made once and kept.

        Args:
            device: The device; None is the only one.
        """
        number = self.device(device)
        if number not in self._timelines:
            first, count = self._traces[number] if number < len(self._traces) else (0, 0)
            events, name = self.events[first : first + count], self.device_name(number)
            told = self.told.get(number, {})
            made = Timeline(self._native, number, events, self._stacks, name, told)
            self._timelines[number] = made
        return self._timelines[number]

    def __reduce__(self) -> tuple[Callable[..., Snapshot], tuple[Any, ...]]:
        rest = (self._partial, self._flaws, self.told, self._window)
        return _restored, (self.to_bytes(), self._renamed, *rest)

    def __copy__(self) -> Snapshot:
        return self  # Nothing in it ever changes.

    def __repr__(self) -> str:
        counts = [len(self.devices), len(self.segments), len(self.blocks), len(self.events)]
        parts = map(units.format_count, counts, ("device", "segment", "block", "event"))
        partial = ", partial" if self.partial else ""
        window = f", only {self.window}" if self.window else ""
        return f"<Snapshot: {', '.join(parts)}{partial}{window}>"

    def _repr_html_(self) -> str:
        # HTML is for notebooks.
        from neutracer.trace.summary import summary_html

        stats = [
            (self.device_name(one), self.memory_stats(one), self.trace_length(one))
            for one in self.devices
        ]
        return summary_html(stats, first_findings(self), self.origin)
