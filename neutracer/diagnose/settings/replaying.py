# SPDX-License-Identifier: Apache-2.0
"""One device's program run on the model of the allocator, under many settings at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cached_property, partial
from threading import Event
from typing import TYPE_CHECKING, Any, TypeVar

from neutracer._native import core
from neutracer.diagnose.settings.capacity import asked_capacity, limit_notes, roundest
from neutracer.diagnose.settings.fidelity import Fidelity, fidelity_of
from neutracer.diagnose.settings.replay_settings import (
    canonical,
    refuse_others,
    takes_share,
    version_number,
)
from neutracer.trace.beside import DeviceRoom
from neutracer.trace.snapshot import Snapshot
from neutracer.trace.timeline import Timeline

# A report only replays: what else it takes to compare settings, the methods that do import.
if TYPE_CHECKING:
    from neutracer.diagnose.settings.program_changes import Edits
    from neutracer.diagnose.settings.variants import Each, Plan
    from neutracer.diagnose.settings.what_if_parts import Outcome

__all__ = ["Replayer", "canonical", "takes_share", "version_number"]

Item = TypeVar("Item")
Result = TypeVar("Result")


class _StoppedError(Exception):
    """Another run has failed: the rest is no longer needed."""


class Replayer:
    """Runs what one device's trace asked of the allocator under other settings.

    Any number of threads may use one. A pickled one takes its snapshot along, and replays it
    again when needed.

    Attributes:
        device: The device.
        asked: The memory that the question is about, or None: as when recorded.
        room: What limited the process when it was recorded, where somebody wrote that down.
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
        fraction: float | None = None,
        room: DeviceRoom | None = None,
    ) -> None:
        """
        Raises:
            ValueError: There is nothing to replay, or it is not the native allocator's; or
                that is no version, no capacity or no fraction of something known.
        """
        self.version = version_number(torch_version)
        self.snap = snap
        self.device = device
        if room is None:
            room = snap.beside.rooms.get(device)
        self.room = room
        self.asked = asked_capacity(capacity, fraction, room)
        refuse_others(snap)
        if not self.facts["steps"]:
            raise ValueError(
                f"the snapshot has no history of cuda:{device} to replay; it is recorded "
                "after torch.cuda.memory._record_memory_history()"
            )
        self.edits: Edits | None = None
        self._stop = Event()

    def __getstate__(self) -> dict[str, Any]:
        names = ("version", "snap", "device", "asked", "room", "edits")
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
    def capacity(self) -> int | None:
        """The most bytes that the process may have, or None: as when recorded."""
        return None if self.asked is None else self.asked.bytes

    @property
    def is_capped(self) -> bool:
        """Whether PyTorch itself kept the process below a limit when it was recorded."""
        if self.room is not None and self.room.fraction == 1.0:
            return False
        shown = self.facts["limit_high"] is not None and not self.facts["is_device"]
        return shown or self._told_limit is not None

    @property
    def is_limited(self) -> bool:
        """Whether PyTorch itself keeps the process below what it may have: then garbage is
        collected, and what is asked for is held against it before it is rounded up to pages."""
        if self.asked is not None and self.asked.fraction is not None:
            return self.asked.is_share
        return self.is_capped

    @cached_property
    def _told_limit(self) -> int | None:
        """PyTorch's own limit as it was written down, if the trace can have had it."""
        limit = None if self.room is None else self.room.limit_bytes
        low, high = self.facts["limit_low"], self.facts["limit_high"]
        if limit is None or limit < low or (high is not None and limit > high):
            return None
        return limit

    @cached_property
    def limits(self) -> tuple[int, ...]:
        """The limit to assume in bytes, then others that are as likely; 0: as recorded.

        A trace that shows failures says of the limit only that it was at least what was
        reserved, and too small for what failed; people choose round ones.
        """
        if self.asked is not None:
            return (self.asked.bytes,)
        if self._told_limit is not None:
            return (self._told_limit,)
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

    def options(self, limit: int, *, is_share: bool | None = None) -> dict[str, Any]:
        """The keywords of a run in which the process may have `limit` bytes.

        Args:
            limit: Bytes; 0 is as recorded.
            is_share: Whether PyTorch itself keeps it below them, or the device has no more;
                None is what the question says, or the recording.
        """
        options = {"version": self.version, "silent": min(self._silence, 1)}
        if limit == 0:
            return options
        if self.is_limited if is_share is None else is_share:
            return {**options, "limit": limit, **self._device}
        return {**options, "limit": 0, "device_total": limit, "device_other": 0}

    @property
    def _device(self) -> dict[str, int]:
        """The device on which PyTorch keeps the process below a limit."""
        if self.asked is not None and self.asked.total_bytes is not None:
            return {"device_total": self.asked.total_bytes, "device_other": 0}
        if self.room is not None:
            return {"device_total": self.room.total_bytes, "device_other": 0}
        return {"device_total": self.facts["device_total"]}

    def quick(
        self,
        settings: str | None,
        limit: int | None = None,
        *,
        is_share: bool | None = None,
        **changes: int,
    ) -> Outcome:
        """What comes out, without its range; None are the recorded settings.

        Args:
            settings: The text of the settings.
            limit: Bytes, as `options` has them; None is what is assumed of them.
            is_share: As `options` has it.
            changes: Other keywords of the core's `run`.
        """
        from neutracer.diagnose.settings.what_if_parts import outcome_of

        assumed = self.limits[0] if limit is None else limit
        options = {**self.options(assumed, is_share=is_share), **changes}
        found = self._asked(settings).run(settings, progress=self._look, **options)
        return outcome_of(self._name(settings), found)

    def outcome(self, settings: str | None, runs: int = 0) -> Outcome:
        """What comes out, with its range; None are the recorded settings.

        Args:
            settings: The text of the settings.
            runs: How many runs for the range at each limit; 0 leaves it to the core.
        """
        return self._outcomes([settings], runs, lambda work, items: [work(i) for i in items])[0]

    def outcomes(self, settings: Iterable[str | None]) -> list[Outcome]:
        """The same of several settings, all their runs side by side."""
        return self._outcomes(list(settings), 0, self.map)

    def _outcomes(self, listed: list[str | None], runs: int, each: Each) -> list[Outcome]:
        from neutracer.diagnose.settings.variants import run_plans

        plans = [self._plans(settings, runs) for settings in listed]
        found = iter(run_plans([plan for own in plans for plan in own], each))
        return [
            self._finished(settings, [next(found) for _ in own])
            for settings, own in zip(listed, plans, strict=True)
        ]

    def _plans(self, settings: str | None, runs: int) -> list[Plan]:
        """The runs of some settings at each limit that they may have had."""
        from neutracer.diagnose.settings.variants import Plan

        # Under its own settings the program ran as recorded whatever its limit was.
        limits = self.limits[:1] if settings is None else self.limits
        silent = min(self._silence, 1 if settings is None else 2)
        more = {"silent": silent, "runs": runs, "progress": self._look}
        compare = self._compared if settings is None and self.asked is None else None
        program, name = self._asked(settings), self._name(settings)
        return [
            Plan(program, settings, name, {**self.options(limit), **more}, compare)
            for limit in limits
        ]

    def _compared(self) -> tuple[bytes, bool]:
        return self._checked[0]["variant"], self.check.is_exact

    def _finished(self, settings: str | None, found: list[Outcome]) -> Outcome:
        from neutracer.diagnose.settings.what_if_parts import widened

        outcome = replace(
            widened(found[0], found[1:]),
            _recorded=self.snap,
            _trace=partial(self.trace, settings),
        )
        if self.capacity is None:
            return outcome
        return replace(outcome, headroom_bytes=self.capacity - outcome.peak_reserved_bytes)

    def trace(self, settings: str | None) -> Snapshot:
        """The snapshot that there would have been; None are the recorded settings."""
        options = self.options(self.limits[0])
        return Snapshot(self._asked(settings).trace(settings, progress=self._look, **options))

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
        from neutracer.diagnose.settings.variants import side_by_side

        return side_by_side(work, items, self._stop)

    def _look(self, done: int) -> None:
        """Called now and then by a run: ends it where another one has failed."""
        if self._stop.is_set():
            raise _StoppedError

    def notes(self) -> tuple[str, ...]:
        """What the trace can't tell, a sentence each."""
        from neutracer.diagnose.settings.replay_notes import event_notes, start_notes

        is_exact = self.check.is_exact
        return (
            *start_notes(self.snap, self.timeline, is_exact),
            *event_notes(self.timeline, self.facts, is_exact),
            *limit_notes(self.asked, self.room, self.facts, self.limits),
        )
