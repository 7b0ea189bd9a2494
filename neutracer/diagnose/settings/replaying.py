# SPDX-License-Identifier: Apache-2.0
"""One device's program run on the model of the allocator, under many settings at a time."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cached_property, partial
from threading import Event
from typing import Any, TypeVar

from neutracer._native import core
from neutracer.diagnose.settings.fidelity import Fidelity, fidelity_of
from neutracer.diagnose.settings.program_changes import Edits
from neutracer.diagnose.settings.replay_settings import canonical, takes_share, version_number
from neutracer.diagnose.settings.what_if_parts import Outcome, outcome_of, rebased, widened
from neutracer.trace.snapshot import Snapshot
from neutracer.trace.timeline import Timeline
from neutracer.units import format_bytes, format_count, parse_bytes

__all__ = ["Replayer", "canonical", "roundest", "takes_share", "version_number"]

Item = TypeVar("Item")
Result = TypeVar("Result")


# More than any device has; the core counts in 64 bits.
_MOST_BYTES = 1 << 60


class _StoppedError(Exception):
    """Another run has failed: the rest is no longer needed."""


def roundest(low: int, high: int) -> int:
    """The number from `low` to `high` that most powers of two divide.

    Example:
        >>> roundest(2028 << 20, 2120 << 20) >> 20
        2048
    """
    step = 1
    while -(-low // (2 * step)) * 2 * step <= high and 2 * step <= high:
        step *= 2
    return -(-low // step) * step


def _refuse_others(snap: Snapshot) -> None:
    """Raises a ValueError for what is not the work of PyTorch's native CUDA allocator."""
    if not snap.settings_in_force["native_backend"]:
        raise ValueError(
            "this program ran under another allocator than PyTorch's native one, which "
            "records nothing that could be replayed"
        )
    if snap.is_cpu:
        raise ValueError(
            "this is the memory of the CPU, which PyTorch takes from the system block by "
            "block: it has no cache, and no setting of the CUDA allocator would change it"
        )


class Replayer:
    """Runs what one device's trace asked of the allocator under other settings.

    Any number of threads may use one. A pickled one takes its snapshot along, and replays it
    again when needed.

    Attributes:
        device: The device.
        capacity: The most bytes that the process may have, or None: as when recorded.
        version: PyTorch's, whose rules apply: major * 1000 + minor; 0 is the newest known.
        edits: What makes another program of the recorded one, which runs in its place, except
            under the recorded settings where these are given as None; None is none.
    """

    def __init__(
        self,
        snap: Snapshot,
        device: int,
        capacity: int | str | None = None,
        torch_version: str | None = None,
    ) -> None:
        """
        Raises:
            ValueError: There is nothing to replay, or it is not the native allocator's; or
                that is no version.
        """
        self.version = version_number(torch_version)
        self.snap = snap
        self.device = device
        self.capacity = None if capacity is None else parse_bytes(capacity)
        if self.capacity is not None and not 0 < self.capacity <= _MOST_BYTES:
            raise ValueError("a capacity must be above 0 bytes and at most 2^60")
        _refuse_others(snap)
        if not self.facts["steps"]:
            raise ValueError(
                f"the snapshot has no history of cuda:{device} to replay; it is recorded "
                "after torch.cuda.memory._record_memory_history()"
            )
        self.edits: Edits | None = None
        self._stop = Event()

    def __getstate__(self) -> dict[str, Any]:
        names = ("version", "snap", "device", "capacity", "edits")
        return {name: getattr(self, name) for name in names}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._stop = Event()

    @cached_property
    def timeline(self) -> Timeline:
        """The device's."""
        return self.snap.timeline(self.device)

    @cached_property
    def facts(self) -> dict[str, Any]:
        """What the core knows of the program: limits, lanes, what is ambiguous."""
        return self.program.facts()

    @cached_property
    def changed(self) -> core.Program | None:
        """The program that `edits` make."""
        return None if self.edits is None else self.program.edit(*self.edits)

    def change(self, edits: Edits) -> None:
        """Run another program from now on."""
        self.edits = edits
        self.changed = self.program.edit(*edits)

    @property
    def recorded_settings(self) -> str:
        """The file's own settings as text."""
        return str(self.snap.settings_in_force["text"])

    @property
    def program(self) -> core.Program:
        """What the trace requested."""
        return self.timeline.program

    @property
    def is_capped(self) -> bool:
        """Whether PyTorch itself kept the process below a limit when it was recorded."""
        return self.facts["limit_high"] is not None and not self.facts["is_device"]

    @cached_property
    def limits(self) -> tuple[int, ...]:
        """The limit to assume in bytes, then others that are as likely; 0: as recorded.

        A trace that shows failures says of the limit only that it was at least what was
        reserved, and too small for what failed; people choose round ones.
        """
        if self.capacity is not None:
            return (self.capacity,)
        low, high = self.facts["limit_low"], self.facts["limit_high"]
        if not self.is_capped or low >= high:
            return (0,)
        low = max(low, 1)  # 0 is as recorded.
        guess = roundest(low, high)
        return tuple(dict.fromkeys((guess, low, high)))

    @cached_property
    def silent_places(self) -> int | None:
        """Where calls of empty_cache() and ends of pools may have left no trace.

        None where it does not look: in programs without visible calls of it and without pools
        of their own.
        """
        if not self.facts["calls"] and self.facts["pools"] < 2:
            return None
        return self.program.find_silence(self._look)

    @property
    def _silence(self) -> int:
        """What the core should make of what left no trace: 0 nothing, 1 that pools of graphs
        are put back as they were, 2 that there may be silent calls of empty_cache() too."""
        return 0 if self.silent_places is None else 2 if self.silent_places else 1

    @property
    def knows_large_segments(self) -> bool:
        """Whether this PyTorch has `large_segment_size_mb`, which came with 2.10."""
        # Events have this column since that version.
        has_column = "user_metadata" in self.snap.native.tables()["events"]
        return self.version >= version_number("2.10") if self.version else has_column

    def options(self, limit: int) -> dict[str, Any]:
        """The keywords of a run in which the process may have `limit` bytes."""
        options = {"version": self.version, "silent": min(self._silence, 1)}
        if limit == 0:
            return options
        if self.is_capped:
            return {**options, "limit": limit, "device_total": self.facts["device_total"]}
        return {**options, "limit": 0, "device_total": limit, "device_other": 0}

    def quick(self, settings: str | None, limit: int | None = None) -> Outcome:
        """What comes out, without its range; None are the recorded settings."""
        options = self.options(self.limits[0] if limit is None else limit)
        found = self._asked(settings).run(settings, progress=self._look, **options)
        return outcome_of(self._name(settings), found)

    def outcome(self, settings: str | None, runs: int = 0) -> Outcome:
        """What comes out, with its range; None are the recorded settings.

        Args:
            settings: The text of the settings.
            runs: How many runs for the range at each limit; 0 leaves it to the core.
        """
        # Under its own settings the program ran as recorded whatever its limit was.
        limits = self.limits[:1] if settings is None else self.limits
        found = [self._ranged(settings, limit, runs) for limit in limits]
        outcome = replace(
            widened(found[0], found[1:]),
            _recorded=self.snap,
            _trace=partial(self.trace, settings),
        )
        if self.capacity is None:
            is_known = settings is None and self.check.is_exact
            return rebased(outcome, self._checked[1]) if is_known else outcome
        return replace(outcome, headroom_bytes=self.capacity - outcome.peak_reserved_bytes)

    def trace(self, settings: str | None) -> Snapshot:
        """The snapshot that there would have been; None are the recorded settings."""
        options = self.options(self.limits[0])
        return Snapshot(self._asked(settings).trace(settings, progress=self._look, **options))

    def _ranged(self, settings: str | None, limit: int, runs: int) -> Outcome:
        base, low, high, causes, done = self._asked(settings).find_range(
            settings,
            runs=runs,
            progress=self._look,
            **{**self.options(limit), "silent": min(self._silence, 1 if settings is None else 2)},
        )
        return outcome_of(self._name(settings), base, low, high, causes, done)

    def _asked(self, settings: str | None) -> core.Program:
        return self.program if settings is None or self.changed is None else self.changed

    def _name(self, settings: str | None) -> str:
        return self.recorded_settings if settings is None else settings

    def fits(self, settings: str | None, nbytes: int) -> bool:
        """Whether every request succeeds where the process may have this many bytes."""
        return self.quick(settings, nbytes).fits

    @cached_property
    def _checked(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """How the model's replay of the recording compares with it, and its figures."""
        return self.program.check(progress=self._look, version=self.version)

    @property
    def check(self) -> Fidelity:
        """How faithfully the model replays the recording's own settings."""
        return fidelity_of(self._checked[0], self.snap.native.actions())

    def series(self, settings: str | None, **options: Any) -> dict[str, memoryview]:
        """The values after each event: bytes, segments, calls and failures so far."""
        chosen = {**self.options(self.limits[0]), **options}
        _, columns = self._asked(settings).series(settings, progress=self._look, **chosen)
        wide = ("allocated", "active", "reserved", "requested")
        return {
            name: memoryview(data).cast("Q" if name in wide else "I")
            for name, data in columns.items()
        }

    def map(self, work: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
        """`work` on each item, in one thread per core; results in order."""
        listed = list(items)
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            try:
                futures = [pool.submit(work, item) for item in listed]
            except RuntimeError:
                # The interpreter is about to end, as in what atexit calls: no thread begins then.
                pool.shutdown(cancel_futures=True)
                return [work(item) for item in listed]
            try:
                return [future.result() for future in futures]
            except BaseException:
                self._stop.set()
                pool.shutdown(wait=True, cancel_futures=True)
                self._stop.clear()
                raise

    def _look(self, done: int) -> None:
        """Called now and then by a run: ends it where another one has failed."""
        if self._stop.is_set():
            raise _StoppedError

    def notes(self) -> tuple[str, ...]:
        """What the trace can't tell, a sentence each."""
        return (*self._start_notes(), *self._event_notes(), *self._limit_notes())

    def _start_notes(self) -> list[str]:
        """What is not known of the state before the trace, or of the file as a whole."""
        facts, notes = self.timeline.facts, []
        if self.snap.partial is not None:
            notes.append(f"Only a part of the file could be read: {self.snap.partial}")
        if self.snap.history_overflowed(self.device):
            notes.append(
                "The ring of events wrapped: what came before its first event is not replayed."
            )
        if facts["preexisting"]:
            blocks = format_count(facts["preexisting"], "block")
            notes.append(
                f"{blocks} were there before the first event and stay in place; settings "
                "of another kind allocate them anew first."
            )
        if facts["slack_bound"]:
            bound = format_bytes(facts["slack_bound"])
            notes.append(f"Blocks from before the trace may be up to {bound} larger than assumed.")
        return notes

    def _event_notes(self) -> list[str]:
        """What events are missing, or do not say."""
        facts, notes = self.timeline.facts, []
        if facts["unmatched"]:
            events = format_count(facts["unmatched"], "event")
            notes.append(f"The trace has gaps: {events} fit nothing in it and are left out.")
        if self.facts["segments_without_pool"] and (
            self.facts["pools"] > 1 or not (facts["unmatched"] or self.check.is_exact)
        ):
            segments = format_count(self.facts["segments_without_pool"], "segment")
            notes.append(
                "The events of this file do not name their pool, and "
                f"{segments} were gone at its end: these count as the default pool's. Where "
                "the program used others (CUDA graphs, MemPool) figures may be outside their "
                "ranges."
            )
        if not self.facts["calls_known"]:
            notes.append(
                "Without stacks an empty_cache() of the program can't always be told from the "
                "allocator's own."
            )
        return notes

    def _limit_notes(self) -> list[str]:
        """What is not known of how much memory the process was allowed."""
        if self.capacity is not None or len(self.limits) == 1:
            return []
        guess, low, high = self.limits[0], min(self.limits), max(self.limits)
        return [
            f"PyTorch kept this process below a limit from {format_bytes(low)} to "
            f"{format_bytes(high)}, as its failures show; {format_bytes(guess)} is assumed, "
            "ranges cover the whole span; capacity= (or --capacity) sets it."
        ]
