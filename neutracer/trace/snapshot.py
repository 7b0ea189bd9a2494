# SPDX-License-Identifier: Apache-2.0
"""`Snapshot` and `load`: one allocator snapshot as columns, read-only."""

from __future__ import annotations

import io
import os
import sys
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property
from types import MappingProxyType
from typing import Any

from neutracer import units
from neutracer._native import core
from neutracer.errors import HistoryWarning
from neutracer.render.document import (
    Block,
    Document,
    Entry,
    Figure,
    Findings,
    KeyValues,
    Note,
    Paragraph,
    Severity,
)
from neutracer.trace.beside import Beside, DeviceRoom, beside_file, library_folders
from neutracer.trace.events import (
    EventWindow,
    SecondWindow,
    Window,
    annotation_table,
    chosen_device,
    device_name,
    event_range,
    event_table,
    shown_device,
    trace_flag,
    window_of,
)
from neutracer.trace.flaws import (
    Flaw,
    Rehearsed,
    caveats_of,
    flaws_of,
    rehearsed_of,
    trace_flaws,
)
from neutracer.trace.marks import chosen_turns, turns_of
from neutracer.trace.source import SnapshotSource, memory_bound, open_source, reporting, source_path
from neutracer.trace.stacks import Stacks
from neutracer.trace.table import Table
from neutracer.trace.timeline import Timeline, block_table, named_stats, segment_table

# ---- Summary -----------------------------------------------------------------------------

_HINT = "Totals only. For details: neutracer.view(snapshot), or .timeline() and .blocks."


# Events that PyTorch's recorder adds on every device, whether the program uses it or not.
_MARKERS = ("snapshot", "annotate", "user_defined", "workspace_snapshot")

# ---- Snapshot ----------------------------------------------------------------------------


def load(
    source: SnapshotSource,
    *,
    events: EventWindow | None = None,
    seconds: SecondWindow | None = None,
    phase: str | None = None,
    device: int | None = None,
    host: bool = False,
    max_memory: int | str | None = None,
    progress: Callable[[int], object] | bool | None = None,
) -> Snapshot:
    """Read a snapshot. Nothing in the file is ever executed.

    Args:
        source: A path, "-" for standard input, bytes, or a file open in binary mode;
            plain or compressed with gzip, xz or zstd.
        events: Keep only these events of one device: a range, a slice (`slice(-1000, None)` is
            the last thousand), or a pair of the first event and the one after the last. Blocks
            allocated earlier keep their stacks; memory of the rest of the file is freed.
        seconds: Keep only the events of all devices between two times in seconds since the
            file's first event; None is the beginning or the end.
        phase: Keep only the events of one device in the last turn of this phase, "sleep", or in
            another one, "sleep[0]": a recording has marks of each `neutracer.phase`.
        device: With `events`, `seconds` or `phase`, only this device; None is all, or for `events`
            and `phase` the only one.
        host: Read the host's pinned memory (`Snapshot.host`) instead of the devices'.
        max_memory: Memory limit for reading: bytes, or a text like "4GiB". None is the free
            memory of this machine or container.
        progress: Called with the number of bytes read so far, about 20 times per second;
            True writes it to standard error; None does that for long files on a terminal.

    Returns:
        The snapshot. `.partial` is the reason if the file is truncated, `.flaws` are its
        inconsistencies, and `.window` is the part that was read.

    Raises:
        ValueError: There are no such events, seconds, phase, device or pinned memory.
        SnapshotError: It is not a snapshot, is damaged, or can't come from an allocator;
            `.offset` is the byte if known.
        LimitError: It needs more than `max_memory`, or is a decompression bomb.
        UnavailableError: Its compression needs a missing package.
        OSError: It can't be opened or read.

    Example:
        >>> import neutracer
        >>> neutracer.load("tests/data/frag_default.pickle")
        <Snapshot: 1 device, 18 segments, 83 blocks, 2,375 events>
        >>> last = neutracer.load("tests/data/frag_default.pickle", events=slice(-100, None))
        >>> len(last.events), str(last.window)
        (100, 'events 2,275 to 2,374 of 2,375')
    """
    if sum(one is not None for one in (events, seconds, phase)) > 1:
        raise ValueError("a part is chosen by one of events, seconds and phase")
    limit = memory_bound() if max_memory is None else units.parse_bytes(max_memory)
    limit = min(limit, sys.maxsize)
    with reporting(source, progress) as report, open_source(source) as opened:
        native = core.load(opened, limit, report)
    if native.partial is not None:
        warnings.warn(f"only a part was read: {native.partial}", HistoryWarning, stacklevel=2)
    origin = source_path(source)
    whole = Snapshot(native, origin=origin, beside=beside_file(origin))
    if host:
        whole = _host_of(whole)
    if phase is not None:
        events = _turn_events(whole, phase, device)
    if events is None and seconds is None:
        return whole
    return _part(whole, window_of(whole, events, seconds, device))


def _turn_events(whole: Snapshot, phase: str, device: int | None) -> tuple[int, int]:
    turn = chosen_turns(turns_of(whole, device), phase)[-1]
    if turn.first == turn.end:
        raise ValueError(f"there are no events in {turn}")
    return turn.first, turn.end


def _host_of(snap: Snapshot) -> Snapshot:
    if snap.host is None:
        raise ValueError(
            "it has no pinned host memory: record it, in PyTorch 2.14 and later, with "
            "neutracer.record(pinned=True) or neutracer run --pinned"
        )
    return snap.host


def _part(whole: Snapshot, window: Window) -> Snapshot:
    """A part of a snapshot that keeps no reference to the whole."""
    ranges = tuple((whole.timeline(p.device).native, p.first, p.end) for p in window.parts)
    # The sidecar's blocks and holders are those at the end of the file.
    tensors, holders = whole.beside.tensors, whole.beside.holders
    beside = replace(
        whole.beside,
        tensors={one: tensors[one] for one in tensors if window.reaches_end(one)},
        holders={one: holders[one] for one in holders if window.reaches_end(one)},
    )
    native = core.load(_written(ranges), sys.maxsize, None)
    made = Snapshot(native, origin=whole.origin, beside=beside)
    made._partial, made._flaws, made._window = whole._partial, whole._flaws, window
    return made


def _written(source: core.Snapshot | tuple[tuple[core.Timeline, int, int], ...]) -> bytes:
    """A snapshot of the core, or ranges of its timelines, as the bytes of a file."""
    core.save(source, (buffer := io.BytesIO()).write)
    return buffer.getvalue()


def _restored(saved: bytes, renamed: Mapping[str, str] | None, *rest: Any) -> Snapshot:
    """Unpickle a snapshot."""
    partial, flaws, beside, window = rest
    snap = Snapshot(core.load(saved, sys.maxsize, None), renamed, beside=beside)
    snap._partial, snap._flaws, snap._window = partial, flaws, window
    return snap


class Snapshot:
    """The allocator's state, and the trace that led to it.

    Tables: `segments`, `blocks`, `events`, `annotations`. Made by `load` and `snapshot`.

    It can be pickled and deeply copied; the copy keeps everything but `ignored_keys`.
    """

    def __init__(
        self,
        native: core.Snapshot,
        renamed: Mapping[str, str] | None = None,
        origin: str = "",
        beside: Beside | None = None,
    ) -> None:
        """Made by `load`; not by users.

        Args:
            origin: The file that was read, which `save` does not replace.
            beside: The facts of the JSON beside the file, or of this process.
        """
        self.origin = origin
        self.beside = Beside() if beside is None else beside
        self._native, self._renamed, self._partial = native, renamed, native.partial
        if (facts := self.rehearsed) is not None and facts.capacity_bytes:
            # All of its device that a rehearsal has is PyTorch's.
            room = DeviceRoom(facts.capacity_bytes, 1.0, 0)
            self.beside = replace(self.beside, rooms={0: room})
        self._flaws = flaws_of(native.broken())
        self._strings = [(renamed or {}).get(text, text) for text in native.strings()]
        self.libraries = (*self.beside.libraries, *library_folders())
        self._stacks = Stacks(native, self._strings, self.libraries)
        self._columns = native.tables()
        self._traces = native.traces()
        self._timelines: dict[int, Timeline] = {}
        self._trace_flaws: dict[int, tuple[Flaw, ...]] = {}
        self._window: Window | None = None
        self._host: Snapshot | None = None

    @property
    def host(self) -> Snapshot | None:
        """The host's pinned memory as a snapshot of its own; None if not recorded.

        PyTorch 2.14 and later record it, with `neutracer.record(pinned=True)`. It has one
        device, 0; sizes are requests rounded up to a power of two. It works wherever a Snapshot
        does. A part (`load(events=)`) has none.
        """
        native = self._native.host() if self._host is None else None
        if native is not None:
            libraries = Beside(libraries=self.beside.libraries)
            self._host = Snapshot(native, self._renamed, beside=libraries)
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

    @cached_property
    def devices(self) -> tuple[int, ...]:
        """The devices that have segments, or events other than the recorder's own markers."""
        marked = {device for device, (_, events) in enumerate(self._traces) if events}
        used = set(memoryview(self._columns["segments"]["device"]))
        used |= {device for device in marked - used if self._is_used(device)}
        return tuple(sorted(used or marked))

    def _is_used(self, device: int) -> bool:
        first, count = self._traces[device]
        actions = bytes(memoryview(self._columns["events"]["action"])[first : first + count])
        names = self._native.actions()
        return bool(actions.lstrip(bytes(names.index(one) for one in _MARKERS)))

    def device(self, device: int | None) -> int:
        """`device`, or the only one.

        Raises:
            ValueError: There is no such device, or `device` is None and there are several.
            TypeError: Not a number.
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
        """The trace, one row per event, device by device.

        Columns: device, action, addr, size (bytes), stream, time_us (since the epoch, 0 if
        unknown), device_free (bytes, of oom events), pool_id (as pool_first, pool_second),
        compile_context, user_metadata, internal_metadata, forward_frames (of a backward
        allocation: the stack of its forward operation, as text), stack. The allocator's own
        actions (internal_metadata) begin with ``internal_`` and are not counted.
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
        """The program's named ranges: stage, name, device, time_us."""
        return annotation_table(self._columns["annotations"], self._strings, self._stacks)

    def memory_stats(self, device: int | None = None) -> dict[str, int]:
        """The values of torch.cuda.memory_stats() at that moment, under PyTorch's own keys.

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
        """Whether PyTorch's ring of events wrapped; None if not recorded."""
        return trace_flag(self.settings, "trace_alloc_overflowed", self.device(device))

    def history_complete(self, device: int | None = None) -> bool | None:
        """Whether the trace goes back to the device's first allocation.

        Args:
            device: The device; None is the only one.

        Returns:
            True if it does; False if the ring wrapped, recording began late or the file is
            truncated; None without a trace.
        """
        number = self.device(device)
        began_late = trace_flag(self.settings, "trace_alloc_began_late", number)
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
        """The part of the file's traces that `load(events=)` kept, or None."""
        return self._window

    @cached_property
    def flaws(self) -> tuple[Flaw, ...]:
        """The file's inconsistencies, on which no figure depends, each with `kind`, `device`,
        `count`, `bytes` and `message`; without those caused by truncation."""
        if self.partial:
            return self._flaws
        return (*self._flaws, *(flaw for device in self.devices for flaw in self._traced(device)))

    def _traced(self, device: int) -> tuple[Flaw, ...]:
        if device not in self._trace_flaws:
            self._trace_flaws[device] = trace_flaws(self.timeline(device), self.segments["device"])
        return self._trace_flaws[device]

    @property
    def ignored_keys(self) -> tuple[str, ...]:
        """Top-level keys of the file that neutracer does not read."""
        return tuple(self._strings[name] for name in self._native.ignored())

    def timeline(self, device: int | None = None) -> Timeline:
        """The device's trace, replayed once and cached.

        Args:
            device: The device; None is the only one.
        """
        number = self.device(device)
        if number not in self._timelines:
            first, count = self._traces[number] if number < len(self._traces) else (0, 0)
            events, name = self.events[first : first + count], self.device_name(number)
            tensors = self.beside.tensors.get(number, {})
            made = Timeline(
                self._native, number, events, self._stacks, name, tensors, self.settings
            )
            self._timelines[number] = made
        return self._timelines[number]

    @property
    def is_cpu(self) -> bool:
        """Whether it is of CPU memory, as `live` records on a torch without CUDA."""
        return self._native.settings().get("exact_sizes") is True

    def device_name(self, device: int) -> str:
        """The name of a device: "cuda:0", "cpu" or "pinned host memory"."""
        return device_name(shown_device(self, device))

    @property
    def is_pinned(self) -> bool:
        """Whether it is of pinned host memory: the `host` of another snapshot."""
        return self._native.settings().get("pinned") is True

    @property
    def settings(self) -> Mapping[str, Any]:
        """The allocator's settings as the file has them; empty before torch 2.3."""
        return MappingProxyType(self._native.settings())

    @property
    def settings_stated(self) -> bool:
        """Whether the file states its settings; if not, `settings_in_force` are inferred."""
        return bool(self._native.settings())

    @property
    def settings_in_force(self) -> Mapping[str, Any]:
        """The settings as neutracer understands them, defaults filled in; sizes in bytes.

        `text` is the PYTORCH_CUDA_ALLOC_CONF that expresses them.
        """
        return MappingProxyType(self._native.settings_in_force())

    @property
    def rehearsed(self) -> Rehearsed | None:
        """The assumptions of a rehearsal; None for a recording."""
        return rehearsed_of(self._native.settings())

    def save(
        self,
        path: str | os.PathLike[str],
        *,
        events: range | slice | tuple[int, int] | None = None,
        device: int | None = None,
    ) -> None:
        """Write the snapshot in PyTorch's own format, which its viewer opens; atomically.

        Args:
            path: The file; JSON with the same keys if it ends in .json (with the frames spelt out
                in each event); compressed if it ends in .gz, .xz or .zst.
            events: Only these events of one device, with the segments after the last of them and
                before the first (`segments_before`); as for `load`. None writes everything.
            device: The device of `events`; None is the only one.

        Raises:
            ValueError: There are no such events or device, or it is the file that was read.
            UnavailableError: The compression needs a missing package.
            OSError: It can't be written.
        """
        from neutracer.saving import atomic_file
        from neutracer.trace.source import in_format

        length = 0 if events is None and device is None else self.trace_length(device)
        chosen = None if events is None else event_range(events, length)
        with atomic_file(path, self) as target, in_format(path, target) as file:
            if chosen is None:
                core.save(self._native, file.write)
            else:
                core.save(((self.timeline(device).native, *chosen),), file.write)

    def to_bytes(self) -> bytes:
        """The bytes that `save` writes."""
        return _written(self._native)

    def to_dict(self) -> Any:
        """The snapshot as PyTorch's own structure of dicts and lists."""
        import pickle

        # Safe: our own bytes, without opcodes that name a class.
        return pickle.loads(self.to_bytes())

    def __reduce__(self) -> tuple[Callable[..., Snapshot], tuple[Any, ...]]:
        rest = (self._partial, self._flaws, self.beside, self._window)
        return _restored, (self.to_bytes(), self._renamed, *rest)

    def __copy__(self) -> Snapshot:
        return self  # It is immutable.

    def __repr__(self) -> str:
        counts = [len(self.devices), len(self.segments), len(self.blocks), len(self.events)]
        parts = map(units.format_count, counts, ("device", "segment", "block", "event"))
        partial = ", partial" if self.partial else ""
        window = f", only {self.window}" if self.window else ""
        return f"<Snapshot: {', '.join(parts)}{partial}{window}>"

    def _repr_html_(self) -> str:
        from neutracer.render.html import inline_html

        entries = tuple(
            Entry(Severity(one.severity), one.message, "", tuple(map(Note, one.details)))
            for one in caveats_of(self)
        )
        blocks: list[Block] = [Findings(entries)] if entries else []
        for device in self.devices:
            stats = self.memory_stats(device)
            figures = (
                ("allocated", Figure.bytes(stats["allocated_bytes.all.current"])),
                ("reserved", Figure.bytes(stats["reserved_bytes.all.current"])),
                ("events", Figure.count(self.trace_length(device))),
            )
            blocks.append(KeyValues(self.device_name(device), figures))
        name, kind = os.path.basename(self.origin), "PyTorch snapshot"
        page = (*blocks, Paragraph(_HINT))
        return inline_html(Document(name or kind, (kind,) if name else (), page))


def settings_words(settings: str, *, is_stated: bool) -> str:
    """The allocator's settings for a reader; `is_stated`: the file states them."""
    if is_stated:
        return settings or "default settings"
    return f"{settings}, as its trace shows" if settings else "settings not recorded"
