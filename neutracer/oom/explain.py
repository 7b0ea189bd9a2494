# SPDX-License-Identifier: Apache-2.0
"""`explain`: why an allocation failed, from a snapshot, a live process or an error's sidecar."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from neutracer._native import core
from neutracer.heap.owners import holders_by_line
from neutracer.oom.bill import Bill, asked_lines, bill_of
from neutracer.oom.case import Case, Holding, Room, Verdict
from neutracer.oom.causes import looked_at, verdicts_of
from neutracer.oom.facts import Failure, OomFacts, budget_of, facts_at, facts_of, with_room
from neutracer.oom.steps import Phase, phase_of
from neutracer.oom.trials import Trial, Trials
from neutracer.question import after_caveats, opened
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
from neutracer.render.report import Finding, PlainRow, Report
from neutracer.trace.events import device_name, shown_device
from neutracer.trace.flaws import end_is_known
from neutracer.trace.snapshot import Snapshot
from neutracer.trace.source import SnapshotSource
from neutracer.trace.stacks import Frame, module_tables, place_of
from neutracer.trace.timeline import Layout, Timeline
from neutracer.units import format_bytes, format_count
from neutracer.whatif.settings import asked_bytes, capacity_bytes

# ---- Whole step --------------------------------------------------------------------------


@dataclass(frozen=True)
class StepNeeds(PlainRow):
    """What steps need above what is in use when they begin, and what there is. Bytes.

    Attributes:
        unit: "step", or "round" where the trace shows no steps.
        steps: How many ended before the one that failed.
        floor_bytes: What was in use when it began.
        typical_bytes: What a step before it needed, in the middle.
        largest_bytes: What the largest needed.
        expected_bytes: What the failing one needs if it goes on as they did.
        growth_bytes: What each step leaves behind.
        usable_bytes: What the process could have reserved in all.
    """

    unit: str
    steps: int
    floor_bytes: int
    typical_bytes: int
    largest_bytes: int
    expected_bytes: int
    growth_bytes: int
    usable_bytes: int


def step_needs(case: Case) -> StepNeeds | None:
    """What the failing step needs; None where the trace shows no step that ended."""
    demand = case.demand
    if demand is None or not demand.steps:
        return None
    growth = case.growth if case.still_grows else None
    return StepNeeds(
        demand.unit,
        demand.steps,
        demand.floor,
        demand.typical,
        demand.largest,
        demand.expected,
        0 if growth is None else growth.bytes_per_step,
        case.usable,
    )


# ---- Report ------------------------------------------------------------------------------

# Categories on the page.
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
        bill: Where every byte of the limit was, by line, split by what rounds before had.
        holders: Who held the allocated bytes, by line, the most first.
        categories: The allocated bytes by category, the most first.
        modules: The same by module; empty where the recording knows no modules.
        ooms: The out-of-memory events of the trace.
        looked_at: The kinds of verdicts that what is known could have shown; the others were
            not looked at.
        step: What the step that failed needs; None where no step ended before it.
        trials: The changes that were replayed, the program as it is first, then the cheapest
            first; empty where nothing could be.
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
    bill: Bill
    holders: tuple[Holding, ...]
    categories: dict[str, int]
    modules: dict[str, int]
    ooms: tuple[int, ...]
    looked_at: tuple[str, ...]
    step: StepNeeds | None
    trials: tuple[Trial, ...]
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
        blocks: list[Block] = [self.bill.block(), *self.finding_blocks(), _request(self)]
        blocks += _tried(self)
        blocks += _as_what(self)
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
    """What is said of a request of which it can't be known whether it would fit."""
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
    used, reserved = format_bytes(why.allocated_bytes), format_bytes(why.reserved_bytes)
    pairs.append(("in use", f"{used} of the {reserved} that PyTorch had reserved"))
    if why.garbage_bytes is not None:
        held = format_bytes(why.garbage_bytes) if why.garbage_bytes else "nothing"
        pairs.append(("garbage", f"{held} in reference cycles"))
    return KeyValues("The request", tuple(pairs))


def _tried(why: ExplainReport) -> tuple[Table, ...]:
    """What was replayed, and how far the program gets with each."""
    if len(why.trials) < 2:
        return ()
    unit = why.bill.unit if why.step is None else why.step.unit
    settings = (one for one in why.trials if one.cost == "setting" and not one.passes)
    useless = sorted(settings, key=lambda one: -one.rounds)
    shown = [one for one in why.trials if one not in useless[1:]]
    rows = tuple(
        (_change(one, useless), Figure.bytes(one.bytes), _outcome(one, unit)) for one in shown
    )
    return (Table("Tried", rows, ("", "needs", ""), _step_notes(why)),)


def _change(trial: Trial, useless: Sequence[Trial]) -> str:
    """The change; the one that goes furthest of the settings that don't help stands for all."""
    if trial not in useless[:1] or len(useless) == 1:
        return trial.change
    less = "" if trial.rounds == useless[-1].rounds else ", no further"
    return f"{trial.change}; {format_count(len(useless) - 1, 'other')}{less}"


def _outcome(trial: Trial, unit: str) -> str:
    if not trial.rounds_tried:
        return "the request succeeds" if trial.passes else "the request fails"
    if trial.rounds:
        rounds = format_count(trial.rounds, f"more {unit}")
        return f"{'goes on for' if trial.passes else 'fails after'} {rounds}"
    return f"this {unit} fails"


def _step_notes(why: ExplainReport) -> tuple[str, ...]:
    step = why.step
    if step is None:
        return ("Replayed up to the request: no step had ended that shows the rest.",)
    over = max((one.rounds_tried for one in why.trials), default=0)
    last = f" over {format_count(over, f'more {step.unit}')}" if over else ""
    said = (
        f"Replayed{last}; {format_bytes(step.usable_bytes)} was available. "
        f"{format_count(step.steps, step.unit)} before it needed "
        f"{format_bytes(step.typical_bytes)} at the median, "
        f"{format_bytes(step.largest_bytes)} at most"
    )
    if step.growth_bytes:
        said += f", and each left {format_bytes(step.growth_bytes)} behind"
    return (f"{said}.",)


def _as_what(why: ExplainReport) -> tuple[Table, ...]:
    tables = []
    total = sum(why.categories.values())
    if len(why.categories) > 1:
        cells = tuple(
            (name.replace("_", " "), Figure.bytes(held), Figure.share(held / total))
            for name, held in list(why.categories.items())[:_SHOWN_CATEGORIES]
        )
        tables.append(Table("As what", cells))
    tables += module_tables("By module", why.modules)
    return tuple(tables)


# ---- Explain -----------------------------------------------------------------------------

# Lines that hold memory in the report; the rest is in `Timeline.holders`.
_MOST_HOLDINGS = 50


def explain(
    source: Snapshot | SnapshotSource | None = None,
    capacity: int | str | None = None,
    *,
    device: int | None = None,
    event: int | None = None,
    request: int | str | None = None,
    facts: OomFacts | None = None,
) -> ExplainReport:
    """Say why a program ran out of memory.

    The main verdict is the cause whose removal lets the program go on: not only this request
    but the whole step, and the steps after it. Where no cause does, it is the one that takes it
    furthest; where the trace shows no steps, the first whose removal lets the request succeed.

    Args:
        source: A Snapshot or what `load` takes; None is this process's device, now.
        capacity: The device's bytes, or a text like "24GiB", where the file does not say; with
            `request`, of any device that is asked about.
        device: The device; None is the only one, or the only one that ran out.
        event: Which out-of-memory event of the trace; None is the last. With `request` any
            event: the state after it is looked at.
        request: Ask whether so many bytes on the default stream would fit, instead.
        facts: What is known beside the snapshot; None reads it from the JSON file beside
            `source`, where there is one.

    Returns:
        The report; `str(report)` is one screen.

    Raises:
        SnapshotError: The file can't be read.
        UnavailableError: There is no source, and no CUDA in use in this process.
        ValueError: No request failed in it, or not at this event, or there are several
            devices; or `request` is about the end of a file that does not say it.
        TypeError: `facts` are no OomFacts.

    Example:
        >>> import neutracer
        >>> why = neutracer.explain("tests/data/frag_default.pickle")
        >>> why.verdicts[0].kind, why.verdicts[1].kind, why.phase
        ('process_cap', 'capacity', 'unknown')
        >>> neutracer.explain("tests/data/frag_default.pickle", request="30MiB").fits
        True
    """
    if facts is not None and not isinstance(facts, OomFacts):
        raise TypeError(
            f"facts must be neutracer.OomFacts, not {type(facts).__name__}: "
            "OomFacts.from_dict() and OomFacts.from_message() make them"
        )
    limit = capacity_bytes(capacity)
    snap = opened(source)
    own = facts_of(snap.beside) if facts is None else facts
    known = OomFacts() if own is None else own.filled()
    if facts is None and request is not None:
        known = _of_device(known)
    number = _device(snap, device, known)
    if facts is None and request is None and event in _oom_events(snap.timeline(number)):
        known = facts_at(snap.beside, snap.timeline(number).events[event or 0].time_us) or known
    report = explained(snap, number, known, capacity=limit, event=event, request=request)
    return after_caveats(report, snap, device=number)


def explained(
    snap: Snapshot,
    number: int,
    known: OomFacts,
    *,
    capacity: int | None = None,
    event: int | None = None,
    request: int | str | None = None,
) -> ExplainReport:
    """`explain` of one device, without the findings on the file itself."""
    notes: list[str] = []
    timeline = snap.timeline(number)
    ooms = _oom_events(timeline)
    if request is not None:
        failure = _asked(snap, number, timeline, event, request)
    else:
        failure = _failed(snap, number, ooms, event, known)
    known = _matching(snap, failure, known, notes)
    known = with_room(known, snap.beside.rooms.get(number))
    case = _case(snap, number, timeline, failure, known, capacity, event)
    fits = request is not None and case.room.holds
    notes += _notes(snap, case)
    bill, trials = bill_of(case), Trials(case)
    verdicts = () if fits or case.is_unknown else verdicts_of(case, bill, trials)
    if verdicts and failure.event is not None and not (trials.works or snap.partial):
        notes.append(
            "Nothing was tried: the model of the allocator does not repeat the recording up to the "
            "failure, so how far a change takes the program is not known."
        )
    return _report(case, bill, verdicts, trials.made, request is not None, ooms, notes)


def holder_names(
    snap: Snapshot, facts: OomFacts, report: ExplainReport
) -> tuple[tuple[str, str], ...]:
    """By line of a report's bill, who in this process holds what piled up there."""
    failure = _failed(snap, report.device, report.ooms, report.event, facts)
    timeline = snap.timeline(report.device)
    case = _case(snap, report.device, timeline, failure, facts, None, None)
    lines = asked_lines(report.bill)
    return tuple(holders_by_line(timeline, case.live_rows, lines).items())


def _device(snap: Snapshot, device: int | None, facts: OomFacts) -> int:
    """The device given, that of the facts, the only one, or the only one that ran out."""
    if device is None and facts.device in snap.devices:
        device = facts.device
    if device is None and len(snap.devices) > 1:
        failed = [d for d in snap.devices if _oom_events(snap.timeline(d))]
        if len(failed) == 1:
            return failed[0]
    return snap.device(device)


def _oom_events(timeline: Timeline) -> tuple[int, ...]:
    return () if not timeline.facts["oom_count"] else tuple(timeline.events.find("action", "oom"))


def _asked(
    snap: Snapshot,
    device: int,
    timeline: Timeline,
    event: int | None,
    request: int | str,
) -> Failure:
    nbytes = asked_bytes("request", request)
    if event is None and not end_is_known(snap, device):
        raise ValueError(
            "the file lists no segments, so what is free at its end is not known: say after which "
            "event of the trace to ask, with event= (--event)"
        )
    if event is not None and not 0 <= event < len(timeline):
        raise ValueError(f"there is no event {event} in the trace")
    size = core.round_size(nbytes, str(snap.settings_in_force["text"]))
    return Failure(None, None, size, happened=False)


def _failed(
    snap: Snapshot, device: int, ooms: tuple[int, ...], event: int | None, facts: OomFacts
) -> Failure:
    if event is not None and event not in ooms:
        those = ", ".join(map(str, ooms[:8])) + (", …" if len(ooms) > 8 else "")
        count = "one" if len(ooms) == 1 else f"{len(ooms):,}"
        has = f"this file has {count}: {those}" if ooms else "this file has none"
        raise ValueError(f"event {event} is not an out-of-memory event; {has}")
    if ooms:
        number = ooms[-1] if event is None else event
        row = snap.timeline(device).events[number]
        pool = row.pool_id
        return Failure(number, row.time_us or None, row.size, row.stream, pool, row.stack)
    if facts.segment_bytes:
        stack = tuple(Frame(*frame) for frame in facts.stack)
        return Failure(None, facts.time_us, facts.segment_bytes, stack=stack)
    others = [one for one in snap.devices if one != device and snap.trace_length(one)]
    failed = [snap.device_name(one) for one in others if _oom_events(snap.timeline(one))]
    if failed:
        raise ValueError(
            f"no request failed on {snap.device_name(device)}, but one did on "
            f"{' and '.join(failed)}: say which with device= (--device)"
        )
    if snap.partial:
        raise ValueError(f"no request failed in what could be read of the file: {snap.partial}")
    raise ValueError(
        "no request failed in this snapshot: see 'neutracer report', or ask with request= "
        "(--request) if a size fits"
    )


def _matching(snap: Snapshot, failure: Failure, facts: OomFacts, notes: list[str]) -> OomFacts:
    """The facts, if they are of this failure; of others only what does not change."""
    segment = failure.segment_size(int(snap.settings_in_force["large_segment_size"]))
    if facts.is_of(segment):
        return facts
    notes.append("The JSON beside the file describes another failure; its facts are left out.")
    return _of_device(facts)


def _of_device(facts: OomFacts) -> OomFacts:
    """What does not change from one request to another."""
    return OomFacts(
        device=facts.device,
        limit_bytes=facts.limit_bytes,
        device_total_bytes=facts.device_total_bytes,
        is_rounded=facts.is_rounded,
    )


def _case(
    snap: Snapshot,
    device: int,
    timeline: Timeline,
    failure: Failure,
    facts: OomFacts,
    capacity: int | None,
    event: int | None,
) -> Case:
    at = failure.event if failure.event is not None else event
    layout: Layout | None = None
    if at is not None:
        layout, reserved = timeline.at(at), int(timeline.reserved[at])
    else:
        reserved = snap.memory_stats(device)["reserved_bytes.all.current"]
    budget = budget_of(snap, device, failure, reserved, facts, capacity)
    room = Room(snap, device, failure, layout, budget)
    stack = failure.stack or tuple(Frame(*frame) for frame in facts.stack)
    phase = Phase("unknown", "no request was made yet")
    if failure.event is not None or facts.segment_bytes:
        phase = phase_of(stack, timeline, failure.event, facts.grad_enabled)
    place = place_of(stack)
    return Case(snap, timeline, room, facts, phase, place, at, stack)


def _notes(snap: Snapshot, case: Case) -> list[str]:
    notes, failure, budget = [], case.failure, case.room.budget
    if not case.has_trace:
        notes.append("No history was recorded: who holds what, and since when, is not known.")
    elif snap.history_overflowed(case.room.device):
        notes.append("The ring of events wrapped: what came before its first event is not known.")
    if not case.stack and failure.event is not None:
        notes.append(
            "The request has no stack: stacks were not recorded, or a backward thread made it."
        )
    if case.facts.raised is False:
        notes.append("No error was raised: a library caught this one, and went on with less.")
    if budget.device_free is None and failure.happened:
        notes.append(
            "What the device had left is unknown and counted as zero; give capacity= (--capacity)."
        )
    elif budget.total is not None and budget.non_torch is None and snap.rehearsed is None:
        notes.append(
            "What contexts, libraries and others take on such a device is not known and counts "
            "as nothing."
        )
    return notes


def _report(
    case: Case,
    bill: Bill,
    verdicts: Sequence[Verdict],
    trials: tuple[Trial, ...],
    is_question: bool,
    ooms: tuple[int, ...],
    notes: Sequence[str],
) -> ExplainReport:
    room, failure, budget = case.room, case.failure, case.room.budget
    event = failure.event
    if event is not None and len(ooms) > 1:
        which = format_count(ooms.index(event) + 1)
        told = f"This is failure {which} of {format_count(len(ooms))} in the trace"
        told += "; event= chooses another."
        notes = (*notes, told)
    findings = [one.finding(not number, event) for number, one in enumerate(verdicts)]
    fits: bool | None = is_question and room.holds
    if case.is_unknown:
        findings, fits = [unknown_finding(failure.size, room.segment, room.own_hole)], None
    return ExplainReport(
        device=shown_device(case.snap, room.device),
        event=event,
        time_us=failure.time_us,
        request_bytes=failure.size,
        segment_bytes=room.segment,
        stream=failure.stream,
        pool=failure.pool,
        stack=case.stack,
        place=case.place,
        phase=case.phase.name,
        phase_why=case.phase.why,
        is_question=is_question,
        fits=fits,
        verdicts=tuple(verdicts),
        reserved_bytes=room.reserved,
        allocated_bytes=room.allocated,
        free_bytes=room.own_free,
        largest_hole_bytes=room.own_hole,
        other_free_bytes=room.other_free,
        headroom_bytes=budget.headroom,
        device_free_bytes=budget.device_free,
        limit_bytes=budget.limit,
        limit_is_guess=budget.limit_is_guess,
        capacity_bytes=budget.total,
        non_torch_bytes=budget.non_torch,
        garbage_bytes=case.facts.garbage_bytes,
        bill=bill,
        holders=case.holdings[:_MOST_HOLDINGS],
        categories=case.categories,
        modules=case.modules,
        ooms=ooms,
        looked_at=looked_at(case),
        step=None if is_question else step_needs(case),
        trials=trials,
        notes=tuple(notes),
        findings=tuple(findings),
        _events=len(case.timeline),
    )
