# SPDX-License-Identifier: Apache-2.0
"""What came of a program under one setting."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from neutracer.diagnose.settings.fidelity import Fidelity
from neutracer.render.document import Block, Cell, Copyable, Figure, KeyValues, Note, Paragraph
from neutracer.render.row import PlainRow
from neutracer.trace.beside import Beside
from neutracer.trace.layout import unused_share
from neutracer.trace.snapshot import Snapshot, settings_words
from neutracer.units import format_bytes, format_count, format_share, format_span

__all__ = [
    "CAUSES",
    "OUTCOME_HEADS",
    "RANGED",
    "Outcome",
    "doubt",
    "named",
    "named_recorded",
    "outcome_cells",
    "outcome_of",
    "stop_of",
    "trust_blocks",
    "widened",
]

#: Why what really happens can differ from a figure, by the word in `Outcome.causes`.
CAUSES = {
    "ties": "the driver's addresses decide between free blocks of one size",
    "timing": "streams decide when a block that another one used is free again",
    "beyond": "a request ends differently than when recorded, and the trace does not show "
    "what the program would have done then",
    "start": "the state before the trace is not all known, or was left by other settings",
    "silent": "the program calls empty_cache() or ends private pools; where that had nothing "
    "to give back it left no trace, and may have something under other settings",
    "restored": "the pool of a captured graph was put back to an earlier state, which these "
    "settings lay out otherwise",
    "limit": "how much memory the process was allowed is known only roughly",
}
_CAUSE_BITS = ("ties", "timing", "beyond", "start", "silent", "restored")

#: The figures of an Outcome that can have a range.
RANGED = (
    "peak_reserved_bytes",
    "reserved_bytes",
    "peak_allocated_bytes",
    "allocated_bytes",
    "segments",
    "device_allocs",
    "device_frees",
    "ooms",
    "retries",
)

#: The headings of `outcome_cells`.
OUTCOME_HEADS = ("peak reserved", "range", "calls", "OOM", "setting")

Range = tuple[int, int | None]


@dataclass(frozen=True)
class Outcome(PlainRow):
    """What the allocator would have done under one setting.

    Attributes:
        settings: The text for PYTORCH_CUDA_ALLOC_CONF; "" is PyTorch's default.
        peak_reserved_bytes: The most it took: reserved_bytes.all.peak.
        reserved_bytes: At the end: reserved_bytes.all.current.
        peak_allocated_bytes: The most in live blocks: allocated_bytes.all.peak.
        allocated_bytes: At the end: allocated_bytes.all.current.
        segments: At the end: segment.all.current, which counts no expandable ones.
        device_allocs: cudaMalloc calls and mappings: num_device_alloc. What was there
            before the trace counts as one for each segment or mapped range.
        device_frees: cudaFree calls and unmappings: num_device_free.
        ooms: Requests that failed: num_ooms.
        retries: How often the cache was given back to try again: num_alloc_retries.
        stopped_event: The event at which a request failed that had not failed when it was
            recorded, so that the program ends there; -1 is before the first; None: none.
        beyond_event: The event at which a request succeeded that had failed when it was
            recorded; the trace does not show how the program would have gone on.
        ranges: By figure, the lowest and the highest over other orders of addresses and
            other timings, for figures that are not exact; None where nothing bounds it.
        causes: Why there are ranges: keys of `CAUSES`.
        runs: How many times the program was run for this.
        start_rebuilt: The state before the trace could not stay in place.
        headroom_bytes: What the capacity leaves above the peak; None without a capacity.
        change: What the program does otherwise, in a few words: "batch x 2"; "" is nothing.
    """

    settings: str
    peak_reserved_bytes: int
    reserved_bytes: int
    peak_allocated_bytes: int
    allocated_bytes: int
    segments: int
    device_allocs: int
    device_frees: int
    ooms: int
    retries: int
    stopped_event: int | None = None
    beyond_event: int | None = None
    ranges: dict[str, Range] = field(default_factory=dict)
    causes: tuple[str, ...] = ()
    runs: int = 1
    start_rebuilt: bool = False
    headroom_bytes: int | None = None
    change: str = ""
    _recorded: Snapshot | None = field(default=None, compare=False, repr=False)
    _trace: Callable[[], Snapshot] | None = field(default=None, compare=False, repr=False)

    @property
    def recorded(self) -> Snapshot:
        """The snapshot that was replayed.

        Raises:
            ValueError: This outcome stands alone, apart from the plan that it came from.
        """
        if self._recorded is None:
            raise ValueError("this outcome stands alone, without its recording")
        return self._recorded

    def snapshot(self) -> Snapshot:
        """The trace and the blocks that there would have been, as a snapshot.

        You can draw, save and query it like any other. Addresses are made up; times,
        stacks and annotations are those of the recorded events. It ends where the program
        would have ended.

        Raises:
            ValueError: This outcome stands alone, apart from the plan that it came from.

        Example:
            >>> import neutracer
            >>> plan = neutracer.what_if(
            ...     "tests/data/frag_default.pickle", "expandable_segments:True", capacity="2GiB"
            ... )
            >>> plan["expandable_segments:True"].snapshot()
            <Snapshot: 1 device, 1 segment, 95 blocks, 2,348 events>
        """
        if self._trace is None:
            raise ValueError("this outcome stands alone, without its recording")
        made = self._trace()
        if self._recorded is not None:
            made.origin = self._recorded.origin
            made.beside = Beside(rooms=self._recorded.beside.rooms)
        return made

    @property
    def ratio(self) -> float:
        """(reserved - allocated) / reserved at the end; 0 where nothing is reserved."""
        return unused_share(self.reserved_bytes, self.allocated_bytes)

    @property
    def fits(self) -> bool:
        """Whether no request fails."""
        return self.ooms == 0 and self.stopped_event is None

    @property
    def device_calls(self) -> int:
        """cudaMalloc, cudaFree, mappings and unmappings: what a setting costs in time."""
        return self.device_allocs + self.device_frees

    def range(self, figure: str) -> Range:
        """The lowest and the highest of a figure; the same number twice where it is exact.

        Raises:
            KeyError: There is no such figure.
        """
        if figure not in RANGED:
            raise KeyError(figure)
        value = getattr(self, figure)
        return self.ranges.get(figure, (value, value))


def _flat(figures: dict[str, Any]) -> dict[str, Any]:
    """The core's figures under the names of an Outcome."""
    return {
        "peak_reserved_bytes": figures["peak"]["reserved"],
        "reserved_bytes": figures["final"]["reserved"],
        "peak_allocated_bytes": figures["peak"]["allocated"],
        "allocated_bytes": figures["final"]["allocated"],
        **{name: figures[name] for name in RANGED[4:]},
    }


def outcome_of(
    settings: str,
    figures: dict[str, Any],
    low: dict[str, Any] | None = None,
    high: dict[str, Any] | None = None,
    causes: int = 0,
    runs: int = 1,
) -> Outcome:
    """The outcome of the core's figures and their bounds."""
    flat = _flat(figures)
    ranges: dict[str, Range] = {}
    if low is not None and high is not None:
        lowest, highest = _flat(low), _flat(high)
        for name in RANGED:
            if not lowest[name] == highest[name] == flat[name]:
                ranges[name] = (lowest[name], highest[name])
    return Outcome(
        settings,
        **flat,
        stopped_event=figures["stopped_event"],
        beyond_event=figures["beyond_event"],
        ranges=ranges,
        causes=tuple(word for bit, word in enumerate(_CAUSE_BITS) if causes >> bit & 1),
        runs=runs,
        start_rebuilt=figures["start_rebuilt"],
    )


def widened(outcome: Outcome, others: list[Outcome]) -> Outcome:
    """The outcome with ranges that take others in: of the same setting under other limits."""
    ranges: dict[str, Range] = {}
    causes = {cause for each in (outcome, *others) for cause in each.causes}
    for name in RANGED:
        bounds = [each.range(name) for each in (outcome, *others)]
        highs = [high for _, high in bounds]
        low = min(low for low, _ in bounds)
        high = None if None in highs else max(high for high in highs if high is not None)
        if (low, high) != (getattr(outcome, name),) * 2:
            ranges[name] = (low, high)
        if any(bound != bounds[0] for bound in bounds):
            causes.add("limit")
    return replace(
        outcome,
        ranges=ranges,
        causes=tuple(cause for cause in CAUSES if cause in causes),
        runs=outcome.runs + sum(other.runs for other in others),
    )


def outcome_cells(outcome: Outcome, name: str) -> tuple[Cell, ...]:
    """A row of a table: peak, its range, calls to the device, failures, setting."""
    return (
        Figure.bytes(outcome.peak_reserved_bytes),
        _span(outcome),
        Figure.count(outcome.device_calls),
        _failures(outcome),
        name,
    )


def _span(outcome: Outcome) -> str:
    if "peak_reserved_bytes" not in outcome.ranges:
        return ""
    low, high = outcome.ranges["peak_reserved_bytes"]
    if high is None:
        return f"{format_bytes(low)} or more"
    return format_span(low, high)


def named(outcome: Outcome) -> str:
    """The settings of an outcome as a reader knows them, with what was changed."""
    if not outcome.change and outcome.settings:
        return Copyable(outcome.settings)
    name = settings_words(outcome.settings, is_stated=True)
    return f"{outcome.change}: {name}" if outcome.change else name


def named_recorded(outcome: Outcome, *, is_stated: bool) -> str:
    """The same of the recorded outcome; `is_stated` as `settings_words` takes it."""
    return f"as recorded: {settings_words(outcome.settings, is_stated=is_stated)}"


def stop_of(outcome: Outcome) -> str | None:
    """The event at which a program stops for lack of memory, or None."""
    event = outcome.stopped_event
    return None if event is None else format_count(max(event, 0))


def _failures(outcome: Outcome) -> str:
    stop = stop_of(outcome)
    if stop is not None:
        return f"at {stop}"
    low, high = outcome.range("ooms")
    if high is None:
        return f"{format_count(low)} or more"
    if low != high:
        return f"{format_count(low)} to {format_count(high)}"
    return format_count(low) if low else "no"


def trust_blocks(
    check: Fidelity, outcomes: tuple[Outcome, ...], notes: tuple[str, ...]
) -> tuple[Block, ...]:
    """How far to trust the figures of a page: fidelity, causes of ranges, gaps."""
    blocks: list[Block] = [Paragraph(check.sentence)]
    causes = {cause for outcome in outcomes for cause in outcome.causes}
    pairs = tuple((word, text) for word, text in CAUSES.items() if word in causes)
    if pairs:
        blocks.append(KeyValues("What the figures depend on", pairs))
    blocks += [Paragraph(note) for note in notes]
    return tuple(blocks)


def doubt(check: Fidelity) -> tuple[Note, ...]:
    """What a finding of replayed figures should say where the model is not exact."""
    if check.is_exact:
        return ()
    share = format_share(check.value)
    return (Note(f"replayed, and doubtful: the model reproduces {share} of this recording"),)
