# SPDX-License-Identifier: Apache-2.0
"""The answer to why it ran out of memory, and how it reads."""

from __future__ import annotations

from dataclasses import dataclass, field

from neutracer.diagnose.holds.by_module import module_tables
from neutracer.diagnose.oom.parts import Holding, Verdict
from neutracer.diagnose.oom.whole_step import StepNeeds
from neutracer.render.document import (
    Block,
    Cell,
    Copyable,
    Document,
    Figure,
    KeyValues,
    Note,
    Paragraph,
    Place,
    Severity,
    Table,
)
from neutracer.render.report import Finding, Report
from neutracer.trace.devices import device_name
from neutracer.trace.stacks import Frame
from neutracer.units import format_bytes, format_count

__all__ = ["ExplainReport", "unknown_finding"]

# Lines that hold memory, and categories, on the page.
_SHOWN_HOLDERS = 6
_SHOWN_CATEGORIES = 4


@dataclass(frozen=True, kw_only=True, repr=False)
class ExplainReport(Report):
    """Why a request failed, or whether one would fit. Sizes in bytes.

    Attributes:
        device: The device; -1 is the CPU, -2 the host's pinned memory.
        event: The out-of-memory event in its trace; None where it has none.
        time_us: When it was, in microseconds since the epoch; None where unknown.
        request_bytes: The request, as the allocator rounded it.
        segment_bytes: What the allocator then asked of the device, as in PyTorch's message.
        stream: The raw stream.
        pool: The private pool; (0, 0) is the default pool.
        stack: Where, innermost first; empty where unknown.
        place: The line that represents the stack.
        phase: "loading", "forward", "backward", "optimizer", "inference" or "unknown".
        phase_why: What shows the phase.
        is_question: No request failed: the caller asked whether one would fit.
        fits: Whether it would; None where it needs new memory, and nobody said how much the
            device has.
        verdicts: The causes, the main one first: the one whose removal lets the program go on,
            else the one that takes it furthest. Of several that do, one that ends its growth
            comes first, else the first kind in the order unreasonable_request, fragmentation,
            cycle_garbage, other_pool, non_torch, leak, cache_growth, process_cap, capacity.
        reserved_bytes: What PyTorch had of the device.
        allocated_bytes: What of it was in use.
        free_bytes: What of it was free for this request's pool and stream.
        largest_hole_bytes: The largest hole of these.
        other_free_bytes: What was free in other pools and streams.
        headroom_bytes: What the device could still have given.
        device_free_bytes: What the device had left; None where nobody said.
        limit_bytes: What the process was allowed; None where there was no limit.
        limit_is_guess: The limit is the roundest that the failures of the trace allow.
        capacity_bytes: All of the device; None where nobody said.
        non_torch_bytes: What others had of the device, contexts included; None: unknown.
        garbage_bytes: What only a collection would have freed; None where nobody looked.
        holders: Who held the allocated bytes, by line, the most first.
        categories: The allocated bytes by category, the most first.
        modules: The same by module; empty where the recording knows no modules.
        ooms: The out-of-memory events of the trace.
        looked_at: The kinds of verdicts that what is known could have shown; the others were
            not looked at.
        step: What the step that failed needs, as it is and with each remedy; None where no step
            ended before it.
        notes: What can't be known.
    """

    schema = "neutracer.explain/1"
    derived = ("headline",)

    device: int
    event: int | None
    time_us: int | None
    request_bytes: int
    segment_bytes: int
    stream: int
    pool: tuple[int, int]
    stack: tuple[Frame, ...]
    place: Place
    phase: str
    phase_why: str
    is_question: bool
    fits: bool | None
    verdicts: tuple[Verdict, ...]
    reserved_bytes: int
    allocated_bytes: int
    free_bytes: int
    largest_hole_bytes: int
    other_free_bytes: int
    headroom_bytes: int
    device_free_bytes: int | None
    limit_bytes: int | None
    limit_is_guess: bool
    capacity_bytes: int | None
    non_torch_bytes: int | None
    garbage_bytes: int | None
    holders: tuple[Holding, ...]
    categories: dict[str, int]
    modules: dict[str, int]
    ooms: tuple[int, ...]
    looked_at: tuple[str, ...]
    step: StepNeeds | None
    notes: tuple[str, ...]
    _events: int = field(compare=False)

    @property
    def main(self) -> Verdict | None:
        """The first verdict; None where the request fits."""
        return self.verdicts[0] if self.verdicts else None

    @property
    def headline(self) -> str:
        """The answer in one line."""
        asked = format_bytes(self.request_bytes)
        if self.fits is None:
            return f"{asked}: unknown without a capacity"
        if self.main is None:
            return f"{asked} would fit"
        if self.is_question:
            return f"{asked} would not fit: {self.main.message}"
        where = f" ({self.place})" if self.place.line else ""
        phase = "" if self.phase == "unknown" else f" in {self.phase}"
        return f"{asked} asked for{phase}{where}: {self.main.message}"

    def document(self) -> Document:
        """The report as a page."""
        blocks: list[Block] = [*self.finding_blocks(), _request(self)]
        blocks += _whole_step(self)
        blocks.append(_where(self))
        blocks += _holders(self)
        blocks += [Paragraph(note) for note in self.notes]
        facts = [device_name(self.device)]
        if self.event is not None:
            facts.append(f"event {format_count(self.event)} of {format_count(self._events)}")
        if self.phase != "unknown":
            facts.append(self.phase)
        title = "Out of memory"
        if self.is_question:
            title = "It would fit" if self.fits else "It would not fit"
            title = "Unknown without a capacity" if self.fits is None else title
        return Document(title, tuple(facts), tuple(blocks), more="all: --json")


def unknown_finding(request: int, segment: int, hole: int) -> Finding:
    """What is said of a request of which it can't be known whether it would fit.

    Args:
        request: Its bytes.
        segment: The new memory that it needs.
        hole: The largest hole that it could have used.
    """
    message = f"whether {format_bytes(request)} would fit is unknown without a capacity"
    inside = f"no free block is above {format_bytes(hole)}" if hole else "no block is free"
    evidence = Note(f"It needs {format_bytes(segment)} of new memory: {inside}.")
    advice = Note("say how much the device has", detail=Copyable("--capacity 24GiB"))
    return Finding("unknown", Severity.INFO, segment, message, (evidence,), (advice,))


def _request(why: ExplainReport) -> KeyValues:
    asked = format_bytes(why.request_bytes)
    segment = format_bytes(why.segment_bytes)
    if segment != asked:
        asked += f", for which it asked the device for {segment}"
    if why.stream:
        asked += f", on stream {why.stream:#x}"
    if why.pool != (0, 0):
        asked += f", in private pool {why.pool}"
    pairs: list[tuple[str, Cell]] = [("asked for", asked)]
    if why.stack:
        pairs.append(("by", why.place))
    if why.phase != "unknown":
        pairs.append(("phase", f"{why.phase}: {why.phase_why}"))
    return KeyValues("The request", tuple(pairs))


def _whole_step(why: ExplainReport) -> tuple[Table, ...]:
    """Whether the step would fit, with each remedy."""
    step = why.step
    if step is None:
        return ()
    rows = tuple(
        (one.remedy, Figure.bytes(one.needs_bytes), "fits" if one.fits else "does not fit")
        for one in step.trials
    )
    said = (
        f"{format_bytes(step.usable_bytes)} was available for it; "
        f"{format_count(step.steps, step.unit)} before it needed "
        f"{format_bytes(step.typical_bytes)} at the median, "
        f"{format_bytes(step.largest_bytes)} at most"
    )
    if step.growth_bytes:
        said += f", and each left {format_bytes(step.growth_bytes)} behind"
    title = f"Would the whole {step.unit} fit?"
    return (Table(title, rows, (), (f"{said}.",)),)


def _where(why: ExplainReport) -> Table:
    """Where the device's memory was."""
    hole = format_bytes(why.largest_hole_bytes)
    usable = f"largest usable hole {hole}" if why.largest_hole_bytes else "in no usable hole"
    rows: list[tuple[Cell, ...]] = [
        ("in use", Figure.bytes(why.allocated_bytes), "in live blocks"),
        ("free inside", Figure.bytes(why.free_bytes), usable if why.free_bytes else ""),
    ]
    if why.other_free_bytes:
        text = "in pools and streams that never serve this one"
        rows.append(("free elsewhere", Figure.bytes(why.other_free_bytes), text))
    if why.garbage_bytes:
        rows.append(
            ("garbage", Figure.bytes(why.garbage_bytes), "of what is in use, held by cycles")
        )
    if why.fits is None:
        rows.append(("available", "unknown", "in new segments"))
    else:
        rows.append(("available", Figure.bytes(why.headroom_bytes), "in new segments"))
    if why.limit_bytes is not None:
        known = "inferred from the failures" if why.limit_is_guess else ""
        rows.append(("limit", Figure.bytes(why.limit_bytes), known))
    if why.device_free_bytes is not None:
        rows.append(("device free", Figure.bytes(why.device_free_bytes), ""))
    if why.non_torch_bytes is not None:
        rows.append(
            ("not PyTorch's", Figure.bytes(why.non_torch_bytes), "contexts, libraries, others")
        )
    if why.capacity_bytes is not None:
        rows.append(("device", Figure.bytes(why.capacity_bytes), "all of it"))
    return Table("Where the memory was", tuple(rows))


def _holders(why: ExplainReport) -> tuple[Table, ...]:
    tables = []
    shown = why.holders[:_SHOWN_HOLDERS]
    if shown:
        rows = tuple(
            (
                Figure.bytes(one.bytes),
                Figure.share(one.share),
                Figure.count(one.count, "block"),
                one.place,
            )
            for one in shown
        )
        left = len(why.holders) - len(shown)
        notes = (f"and {format_count(left, 'more line')}",) if left else ()
        tables.append(Table("Who held it", rows, (), notes))
    total = sum(why.categories.values())
    if len(why.categories) > 1:
        cells = tuple(
            (name.replace("_", " "), Figure.bytes(held), Figure.share(held / total))
            for name, held in list(why.categories.items())[:_SHOWN_CATEGORIES]
        )
        tables.append(Table("As what", cells))
    tables += module_tables("By module", why.modules)
    return tuple(tables)
