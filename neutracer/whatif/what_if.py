# SPDX-License-Identifier: Apache-2.0
"""`what_if`: replays of a program under other settings, or with changes to the program."""

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


@dataclass(frozen=True, kw_only=True, repr=False)
class WhatIfReport(Report):
    """One program replayed under several allocator settings.

    `plan["expandable_segments:True"]` is the `Outcome` of that setting, in any spelling;
    `plan[""]` that of PyTorch's default. Iterating gives the settings.

    Attributes:
        device: The device.
        events: Events of its trace.
        capacity_bytes: The memory limit of the process; None is the recorded one.
        recorded: The outcome under the file's own settings.
        settings_recorded: Whether the file states them; if not, they are inferred from its trace.
        outcomes: Those of the default and of the given settings, in that order.
        check: How faithfully the model replays the recording.
        notes: Changes to the program, and limits of the trace.
        is_changed: Whether the outcomes are of a changed program.
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
        """The state after each event of the trace under a setting.

        Returns:
            allocated, active, reserved and requested in bytes; segments; device_allocs,
            device_frees and ooms as running counts.

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
    """Findings on settings that newly fail, and on the one that saves most."""
    found = []
    trust = Note("replayed: " + check.sentence)
    for outcome in outcomes:
        if not outcome.fits and recorded.fits:
            message = f"{named(outcome)}: a request fails that succeeded in the recording"
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
            f"{named(best)}: peak reserved {format_bytes(best.peak_reserved_bytes)} "
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
    """A replayer of one device of a source; arguments and errors are those of `what_if`."""
    snap = opened(source)
    return Replayer(snap, snap.device(device), capacity, torch_version, fraction)


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
    places each block anew. Figures that depend on facts missing from every trace (driver
    addresses, timing of other streams) have ranges, found by varying these.

    Without settings or changes to the program, about three dozen settings are replayed in
    parallel; one is recommended only if it beats the recorded settings.

    Args:
        source: A Snapshot or what `load` takes; None is this process's device, now.
        settings: Texts for PYTORCH_CUDA_ALLOC_CONF, as "expandable_segments:True". PyTorch's
            default, "", is always included.
        capacity: Memory limit of PyTorch's allocator: bytes, or a text like "24GiB"; None is
            the recorded limit. Subtract the memory of CUDA's context and of other processes.
            With `fraction`, the size of the whole device.
        fraction: The share to replay `set_per_process_memory_fraction` with, above 0 and at
            most 1. PyTorch then refuses requests beyond it, and garbage_collection_threshold
            takes effect. The device size comes from the JSON beside the file, else from
            `capacity`.
        device: The device; None is the only one.
        objective: The ranking if no settings are given: "fit" needs the least memory for every
            request to succeed, "reserved" has the lowest peak of reserved, "speed" the fewest
            device calls. Differences up to 2 % are ignored.
        empty_cache_after: Events after which the program calls empty_cache().
        free_at_once: Functions ("forward") or lines ("train.py:155") whose blocks are freed as
            soon as they are allocated. Any frame of a stack counts.
        batch: Factor of the batch size. Parameters, gradients and optimizer state keep their
            sizes; everything else scales with it.
        no_cycles: Free blocks without waiting for garbage collection: True if the trace has
            frames of Python's collector, else the lines at which collections ran
            ("train.py:95"). Each block is then freed when its line allocates the next one.
        torch_version: The PyTorch version whose rules apply, as "2.11"; None is the newest
            known. The settings tried are always those of the file's own version.

    Returns:
        The report; `str(report)` is one screen. With settings or changes a WhatIfReport; if the
        program is changed, `.outcomes` are of the changed program (also under the recorded
        settings) and `.recorded` of the recorded one. Otherwise a RecommendReport:
        `.recorded.fits` is whether the program fits in `capacity` as it is, and
        `.best.outcome.fits` whether it fits under the best setting.

    Raises:
        SettingsError: PyTorch would not accept a setting (`.position` is where), or it selects
            another allocator than the native one.
        SnapshotError: The file can't be read.
        ValueError: There are several devices, no history, or another allocator; a setting
            names a share of a device of unknown size; this trace does not allow the change;
            the objective or `torch_version` is unknown.

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
        findings=(
            *first_findings(replayer.snap, device=replayer.device),
            *_findings(recorded, tuple(outcomes), check),
        ),
        _replayer=replayer,
    )


def _outcomes(replayer: Replayer, wanted: list[str]) -> list[Outcome]:
    """The outcomes of the recording and of each wanted setting, in that order."""
    keys: list[str | None] = [None, *dict.fromkeys(wanted)]
    own = keys.index(replayer.recorded_settings) if replayer.recorded_settings in keys else 0
    if own and len(replayer.limits) == 1 and replayer.changed is None:
        keys[own] = None  # The same runs, done once.
    unique = list(dict.fromkeys(keys))
    found = dict(zip(unique, replayer.outcomes(unique), strict=True))
    return [found[key] for key in keys]


# ---- Replay check ------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, repr=False)
class CheckReport(Report):
    """How faithfully the model replays a recording under its own settings.

    Attributes:
        device: The device.
        events: Events of its trace.
        settings: The file's own settings.
        settings_recorded: Whether the file states them; if not, they are inferred from its trace.
        check: The comparison.
        notes: Limits of the trace.
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
    """Compare the model's replay of a recording with it; arguments are those of `what_if`."""
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
