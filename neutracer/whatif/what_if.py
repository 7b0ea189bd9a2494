# SPDX-License-Identifier: Apache-2.0
"""`what_if` with settings: the program's requests under each, and the program's own changes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import overload

from neutracer.question import first_findings, opened
from neutracer.render.document import Block, Document, Note, Severity, Table
from neutracer.render.report import Finding, Report, ranked
from neutracer.trace.snapshot import Snapshot, settings_words
from neutracer.trace.source import SnapshotSource
from neutracer.units import format_bytes, format_count
from neutracer.whatif.replaying import (
    OUTCOME_HEADS,
    Change,
    Fidelity,
    Outcome,
    Replayer,
    change_program,
    doubt,
    named,
    named_recorded,
    outcome_cells,
    trust_blocks,
)
from neutracer.whatif.search import OBJECTIVES, RecommendReport, best_settings
from neutracer.whatif.settings import canonical, wanted_settings

# ---- What if -----------------------------------------------------------------------------

# What would the same program have reserved under other allocator settings?


@dataclass(frozen=True, kw_only=True, repr=False)
class WhatIfReport(Report):
    """One program under several allocator settings, replayed.

    `plan["expandable_segments:True"]` is the `Outcome` of that setting, however it is
    spelt; `plan[""]` that of PyTorch's default. Iterating gives the settings.

    Attributes:
        device: The device.
        events: Events of its trace.
        capacity_bytes: The most that the process may have, or None: as when recorded.
        recorded: The outcome of the file's own settings.
        settings_recorded: Whether the file states them. If not, they are what its trace shows.
        outcomes: The default and the given settings, in that order.
        check: How faithfully the model replays the file's own settings.
        notes: What the trace can't tell, and what was changed in the program.
        is_changed: Whether the outcomes belong to a changed program.
    """

    schema = "neutracer.what_if/1"
    derived = ("fidelity",)

    device: int
    events: int
    capacity_bytes: int | None
    recorded: Outcome
    outcomes: tuple[Outcome, ...]
    check: Fidelity
    notes: tuple[str, ...]
    is_changed: bool
    settings_recorded: bool = True
    _replayer: Replayer = field(compare=False)

    @property
    def fidelity(self) -> float:
        """1.0 where the model reproduces every address and size of the recording."""
        return self.check.value

    def __getitem__(self, settings: str) -> Outcome:
        wanted = canonical(settings)
        for outcome in (*self.outcomes, self.recorded):
            if canonical(outcome.settings) == wanted:
                return outcome
        raise KeyError(settings)

    def __iter__(self) -> Iterator[str]:
        return iter(outcome.settings for outcome in self.outcomes)

    def __len__(self) -> int:
        return len(self.outcomes)

    def series(self, settings: str) -> dict[str, memoryview]:
        """The values after each event of the trace under a setting.

        Returns:
            allocated, active, reserved and requested in bytes; segments; device_allocs,
            device_frees and ooms so far.

        Raises:
            SettingsError: PyTorch would not accept the settings.
        """
        return self._replayer.series(canonical(settings))

    def document(self) -> Document:
        """The report as a page."""
        facts: tuple[str, ...] = (f"cuda:{self.device}", format_count(self.events, "event"))
        if self.capacity_bytes is not None:
            facts += (f"at most {format_bytes(self.capacity_bytes)}",)
        own = None if self.is_changed else self.recorded.settings
        others = [each for each in self.outcomes if each.settings != own]
        first = named_recorded(self.recorded, is_stated=self.settings_recorded)
        rows = [outcome_cells(self.recorded, first)]
        rows += [outcome_cells(outcome, named(outcome)) for outcome in others]
        table = Table("", tuple(rows), OUTCOME_HEADS)
        blocks: list[Block] = [*self.finding_blocks(), table]
        shown = (self.recorded, *others)
        return Document("What if", facts, (*blocks, *trust_blocks(self.check, shown, self.notes)))


def _findings(
    recorded: Outcome, outcomes: tuple[Outcome, ...], check: Fidelity
) -> tuple[Finding, ...]:
    """Settings that fail where the recorded ones don't, and the one that saves most."""
    found = []
    trust = Note("replayed: " + check.sentence)
    for outcome in outcomes:
        if not outcome.fits and recorded.fits:
            message = f"{named(outcome)}: a request fails that had succeeded"
            found.append(
                Finding(
                    "out_of_memory", Severity.SEVERE, 0, message, (trust,), (), _failed(outcome)
                )
            )
    able = [outcome for outcome in outcomes if outcome.fits or not recorded.fits]
    best = min(able, key=lambda outcome: outcome.peak_reserved_bytes, default=recorded)
    saved = recorded.peak_reserved_bytes - best.peak_reserved_bytes
    if saved > 0 and best.beyond_event is None:
        message = (
            f"{named(best)}: {format_bytes(best.peak_reserved_bytes)} reserved at most "
            f"instead of {format_bytes(recorded.peak_reserved_bytes)}"
        )
        found.append(Finding("saves_memory", Severity.INFO, saved, message, doubt(check)))
    return ranked(found)


def _failed(outcome: Outcome) -> int | None:
    event = outcome.stopped_event
    return event if event is not None and event >= 0 else None


def open_replayer(
    source: Snapshot | SnapshotSource | None,
    capacity: int | str | None = None,
    device: int | None = None,
    torch_version: str | None = None,
    fraction: float | None = None,
) -> Replayer:
    """The program of a source's device, ready to be run.

    Raises:
        ValueError: There are several devices, no history, or another allocator; or
            `torch_version` is no version of torch, or `fraction` one of an unknown device.
    """
    snap = opened(source)
    return Replayer(snap, snap.device(device), capacity, torch_version, fraction)


def _flaws(replayer: Replayer) -> tuple[Finding, ...]:
    return first_findings(replayer.snap, device=replayer.device)


@overload
def what_if(
    source: Snapshot | SnapshotSource | None,
    *,
    capacity: int | str | None = None,
    fraction: float | None = None,
    device: int | None = None,
    objective: str = "fit",
    torch_version: str | None = None,
) -> RecommendReport: ...


@overload
def what_if(
    source: Snapshot | SnapshotSource | None,
    *settings: str,
    capacity: int | str | None = None,
    fraction: float | None = None,
    device: int | None = None,
    empty_cache_after: Iterable[int] = (),
    free_at_once: Iterable[str] = (),
    batch: float = 1.0,
    no_cycles: bool | Iterable[str] = False,
    torch_version: str | None = None,
) -> WhatIfReport: ...


def what_if(
    source: Snapshot | SnapshotSource | None,
    *settings: str,
    capacity: int | str | None = None,
    fraction: float | None = None,
    device: int | None = None,
    objective: str = "fit",
    empty_cache_after: Iterable[int] = (),
    free_at_once: Iterable[str] = (),
    batch: float = 1.0,
    no_cycles: bool | Iterable[str] = False,
    torch_version: str | None = None,
) -> WhatIfReport | RecommendReport:
    """Replay a trace under other allocator settings; without any, find the best ones.

    The requests and frees of the trace go to a model of PyTorch's caching allocator, which
    places each block anew. Where the place depends on what no trace has (the driver's
    addresses, another stream's timing), figures have ranges, from runs with other values of
    these.

    Without settings and changes of the program, some three dozen settings are replayed in
    parallel. One is recommended only where it does better than the recorded settings.

    Args:
        source: A Snapshot or what `load` takes; None is this process's device, now.
        settings: Texts for PYTORCH_CUDA_ALLOC_CONF, as "expandable_segments:True". PyTorch's
            default, "", is always there too.
        capacity: The most memory that the process may have: bytes, or a text like "24GiB";
            None is as when it was recorded. It is all of the device where PyTorch set no
            limit itself: leave out what CUDA's context and others take. With `fraction` it is
            the whole device's.
        fraction: What if the program called `set_per_process_memory_fraction` with this share,
            above 0 and at most 1? PyTorch then refuses what would exceed it, and
            garbage_collection_threshold acts. The device is the recorded one where the JSON
            beside the file tells its size, else the one of `capacity`.
        device: The device; None is the only one.
        objective: What counts as best where no settings are given: "fit" needs the least
            memory for every request to succeed, "reserved" has the lowest peak of reserved,
            "speed" the fewest device calls. Differences of up to 2 % count as none.
        empty_cache_after: What if the program called empty_cache() after these events?
        free_at_once: What if the blocks of these functions ("forward") or lines
            ("train.py:155") were freed as soon as they are made? Any frame of a stack counts.
        batch: What if the batch were this many times as large? Parameters, gradients and
            optimizer state keep their sizes; all else grows with it.
        no_cycles: What if no reference cycle kept blocks until a collection? True where the
            trace has frames of Python's collector, else the lines at which collections
            ran ("train.py:95"). Each block is then freed when its line makes the next one.
        torch_version: PyTorch's version, like "2.11", whose rules apply; None is the newest
            that is known. The settings that are tried are those of the file's own version.

    Returns:
        The report; `str(report)` is one screen. With settings or changes a WhatIfReport: with
        a changed program `.outcomes` describe that one, under the recorded settings too, and
        `.recorded` the recorded one. Without, a RecommendReport: `.recorded.fits` says
        whether the program fits in `capacity` as it is, `.best.outcome.fits` whether it does
        with the best setting.

    Raises:
        SettingsError: PyTorch would not accept a setting (`.position` is where), or it asks
            for another allocator than the native one.
        SnapshotError: The file can't be read.
        ValueError: There are several devices, no history, or a program under another
            allocator; or a setting names a share of a device without its capacity; a change
            that this trace does not allow; no such objective; or `torch_version` is no
            version of torch.

    Example:
        >>> import neutracer
        >>> file = "tests/data/frag_default.pickle"
        >>> plan = neutracer.what_if(file, "expandable_segments:True", capacity="2GiB")
        >>> plan.fidelity
        1.0
        >>> plan[""].peak_reserved_bytes >> 20
        2028
        >>> plan["expandable_segments:True"].peak_reserved_bytes >> 20
        680
        >>> best = neutracer.what_if(file, capacity="2GiB", objective="reserved").best
        >>> best.environment, best.saved_bytes >> 20
        ('PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True', 1348)
    """
    if objective not in OBJECTIVES:
        raise ValueError(f"no objective {objective!r}; there are {', '.join(OBJECTIVES)}")
    wanted = wanted_settings(settings, capacity is not None or fraction is not None)
    replayer = open_replayer(source, capacity, device, torch_version, fraction)
    change = change_program(
        replayer.snap, replayer.timeline, empty_cache_after, free_at_once, batch, no_cycles
    )
    if not settings and change is None:
        return best_settings(replayer, objective)
    return _compared(replayer, wanted, change)


def _compared(replayer: Replayer, wanted: list[str], change: Change | None) -> WhatIfReport:
    """The report of the settings that are wanted, of the recorded program or a changed one."""
    if change is not None:
        replayer.change(change.edits)
        wanted = [wanted[0], replayer.recorded_settings, *wanted[1:]]
    recorded, *outcomes = _outcomes(replayer, wanted)
    if change is not None:
        outcomes = [replace(outcome, change=change.name) for outcome in outcomes]
    check = replayer.check
    return WhatIfReport(
        device=replayer.device,
        events=len(replayer.timeline),
        capacity_bytes=replayer.capacity,
        recorded=recorded,
        outcomes=tuple(outcomes),
        check=check,
        notes=(*(change.notes if change else ()), *replayer.notes()),
        is_changed=change is not None,
        settings_recorded=replayer.snap.settings_stated,
        findings=(*_flaws(replayer), *_findings(recorded, tuple(outcomes), check)),
        _replayer=replayer,
    )


def _outcomes(replayer: Replayer, wanted: list[str]) -> list[Outcome]:
    """The outcome of the recording, and those of the settings that are wanted."""
    keys: list[str | None] = [None, *dict.fromkeys(wanted)]
    own = keys.index(replayer.recorded_settings) if replayer.recorded_settings in keys else 0
    if own and len(replayer.limits) == 1 and replayer.changed is None:
        keys[own] = None  # The same runs, done once.
    unique = list(dict.fromkeys(keys))
    found = dict(zip(unique, replayer.outcomes(unique), strict=True))
    return [found[key] for key in keys]


# ---- Replay check ------------------------------------------------------------------------

# How faithfully does the model replay a recording under its own settings?


@dataclass(frozen=True, kw_only=True, repr=False)
class CheckReport(Report):
    """How faithfully the model replays a recording under its own settings.

    Attributes:
        device: The device.
        events: Events of its trace.
        settings: The file's own settings.
        settings_recorded: Whether the file states them. If not, they are what its trace shows.
        check: What was compared, and what was the same.
        notes: What the trace can't tell.
    """

    schema = "neutracer.replay_check/1"

    device: int
    events: int
    settings: str
    check: Fidelity
    notes: tuple[str, ...]
    settings_recorded: bool = True

    def document(self) -> Document:
        """The report as a page."""
        name = settings_words(self.settings, is_stated=self.settings_recorded)
        facts = (f"cuda:{self.device}", format_count(self.events, "event"), name)
        blocks = (*self.finding_blocks(), *trust_blocks(self.check, (), self.notes))
        return Document("Replay check", facts, blocks)


def check_replay(
    source: Snapshot | SnapshotSource | None,
    *,
    device: int | None = None,
    torch_version: str | None = None,
) -> CheckReport:
    """How faithfully the model replays a recording; the arguments are those of `what_if`."""
    replayer = open_replayer(source, None, device, torch_version)
    return CheckReport(
        device=replayer.device,
        events=len(replayer.timeline),
        settings=replayer.recorded_settings,
        settings_recorded=replayer.snap.settings_stated,
        check=replayer.check,
        notes=replayer.notes(),
        findings=first_findings(replayer.snap, device=replayer.device),
    )
