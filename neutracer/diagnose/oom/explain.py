# SPDX-License-Identifier: Apache-2.0
"""Why did it run out of memory? And would so many bytes fit?"""

from __future__ import annotations

from collections.abc import Sequence

from neutracer._native import core
from neutracer.diagnose.oom.budget import Failure, budget_of
from neutracer.diagnose.oom.case import Case
from neutracer.diagnose.oom.facts import OomFacts, facts_of, with_room
from neutracer.diagnose.oom.parts import Verdict
from neutracer.diagnose.oom.phases import Phase, phase_of
from neutracer.diagnose.oom.report import ExplainReport, unknown_finding
from neutracer.diagnose.oom.room import Room
from neutracer.diagnose.oom.verdicts import looked_at, verdicts_of
from neutracer.diagnose.oom.whole_step import step_needs
from neutracer.diagnose.question import after_caveats, opened
from neutracer.diagnose.settings.capacity import asked_bytes, capacity_bytes
from neutracer.trace.devices import shown_device
from neutracer.trace.flaws import end_is_known
from neutracer.trace.layout import Layout
from neutracer.trace.places import place_of
from neutracer.trace.snapshot import Snapshot
from neutracer.trace.source import SnapshotSource
from neutracer.trace.stacks import Frame
from neutracer.trace.timeline import Timeline
from neutracer.units import format_count

__all__ = ["ExplainReport", "Verdict", "explain", "explained"]

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
    thorough: bool = True,
) -> ExplainReport:
    """Say why a program ran out of memory.

    The main verdict is the cause whose removal lets the program go on: not only this request
    but the whole step, and the steps after it. Where no cause does, it is the one that takes it
    furthest; where the trace shows no steps, the first whose removal lets the request succeed.

    Args:
        source: A Snapshot or what `load` takes; None is this process's device, now.
        capacity: The device's bytes, or a text like "24GiB", where the file does not say.
        device: The device; None is the only one, or the only one that ran out.
        event: Which out-of-memory event of the trace; None is the last. With `request` any
            event: the state after it is looked at.
        request: Ask whether so many bytes on the default stream would fit, instead.
        facts: What is known beside the snapshot; None reads it from the JSON file beside
            `source`, where there is one.
        thorough: False leaves out replays under other allocator settings where the first
            verdict doesn't depend on them.

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
    if facts is None and request is None:
        facts = facts_of(snap.beside)
    known = OomFacts() if facts is None else facts.filled()
    number = _device(snap, device, known)
    report = explained(
        snap, number, known, capacity=limit, event=event, request=request, thorough=thorough
    )
    return after_caveats(report, snap, device=number)


def explained(
    snap: Snapshot,
    number: int,
    known: OomFacts,
    *,
    capacity: int | None = None,
    event: int | None = None,
    request: int | str | None = None,
    thorough: bool = True,
) -> ExplainReport:
    """`explain` of one device, without the findings on the file itself.

    Raises:
        ValueError: No request failed on it, or not at this event.
    """
    notes: list[str] = []
    timeline = snap.timeline(number) if snap.trace_length(number) else None
    ooms = _oom_events(timeline)
    if request is not None:
        failure = _asked(snap, number, timeline, event, request)
    else:
        failure = _failed(snap, number, ooms, event, known)
    known = _matching(snap, failure, known, notes)
    known = with_room(known, snap.beside.rooms.get(number))
    case = _case(snap, number, timeline, failure, known, capacity, thorough, event)
    fits = request is not None and case.room.holds
    notes += _notes(snap, case)
    verdicts = () if fits or case.is_unknown else verdicts_of(case)
    return _report(case, verdicts, request is not None, ooms, notes)


def _device(snap: Snapshot, device: int | None, facts: OomFacts) -> int:
    """The device given, that of the facts, the only one, or the only one that ran out."""
    if device is None and facts.device in snap.devices:
        device = facts.device
    if device is None and len(snap.devices) > 1:
        failed = [d for d in snap.devices if _oom_events(snap.timeline(d))]
        if len(failed) == 1:
            return failed[0]
    return snap.device(device)


def _oom_events(timeline: Timeline | None) -> tuple[int, ...]:
    if timeline is None or not timeline.facts["oom_count"]:
        return ()
    return tuple(timeline.events.find("action", "oom"))


def _asked(
    snap: Snapshot,
    device: int,
    timeline: Timeline | None,
    event: int | None,
    request: int | str,
) -> Failure:
    """The request that may fail.

    Raises:
        ValueError: There is no such event, or nothing is known of the end.
    """
    nbytes = asked_bytes("request", request)
    if event is None and not end_is_known(snap, device):
        raise ValueError(
            "the file lists no segments, so what is free at its end is not known: say after which "
            "event of the trace to ask, with event= (--event)"
        )
    if event is not None and (timeline is None or not 0 <= event < len(timeline)):
        raise ValueError(f"there is no event {event} in the trace")
    size = core.round_size(nbytes, str(snap.settings_in_force["text"]))
    return Failure(None, None, size, happened=False)


def _failed(
    snap: Snapshot, device: int, ooms: tuple[int, ...], event: int | None, facts: OomFacts
) -> Failure:
    """The request that failed.

    Raises:
        ValueError: There is none, or none at this event.
    """
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
        "no request failed in this snapshot: take one after the error, with the history that "
        "torch.cuda.memory._record_memory_history() records, or with neutracer.watch_oom(); "
        "or ask with request= (--request) whether so many bytes would fit"
    )


def _matching(snap: Snapshot, failure: Failure, facts: OomFacts, notes: list[str]) -> OomFacts:
    """The facts, if they are of this failure; of others only what does not change."""
    segment = failure.segment_size(int(snap.settings_in_force["large_segment_size"]))
    if facts.is_of(segment):
        return facts
    notes.append("The JSON beside the file describes another failure; its facts are left out.")
    return OomFacts(
        device=facts.device,
        limit_bytes=facts.limit_bytes,
        device_total_bytes=facts.device_total_bytes,
        is_rounded=facts.is_rounded,
    )


def _case(
    snap: Snapshot,
    device: int,
    timeline: Timeline | None,
    failure: Failure,
    facts: OomFacts,
    capacity: int | None,
    thorough: bool,
    event: int | None,
) -> Case:
    at = failure.event if failure.event is not None else event
    layout: Layout | None = None
    if timeline is not None and at is not None:
        layout = timeline.at(at)
    reserved = _reserved(snap, device, timeline, at)
    budget = budget_of(snap, device, failure, reserved, facts, capacity)
    room = Room(snap, device, failure, layout, budget)
    stack = failure.stack or tuple(Frame(*frame) for frame in facts.stack)
    phase = Phase("unknown", "no request was made yet")
    if failure.event is not None or facts.segment_bytes:
        # Of a stack of backward nothing but the trace tells; of others it takes time.
        trace = timeline if thorough or not stack else None
        phase = phase_of(stack, trace, failure.event, facts.grad_enabled)
    place = place_of(stack)
    return Case(snap, timeline, room, facts, phase, place, thorough, at, stack)


def _reserved(snap: Snapshot, device: int, timeline: Timeline | None, at: int | None) -> int:
    if timeline is not None and at is not None:
        return int(timeline.reserved[at])
    return snap.memory_stats(device)["reserved_bytes.all.current"]


def _notes(snap: Snapshot, case: Case) -> list[str]:
    """What can't be known, a sentence each."""
    notes, failure, budget = [], case.failure, case.room.budget
    if case.timeline is None:
        notes.append("No history was recorded: who holds what, and since when, is not known.")
    elif snap.history_overflowed(case.room.device):
        notes.append("The ring of events wrapped: what came before its first event is not known.")
    if not case.replays and case.timeline is not None:
        notes.append("Other allocator settings were not replayed (thorough=False).")
    if not case.stack and failure.event is not None:
        notes.append(
            "The request has no stack: stacks were not recorded, or a backward thread made it."
        )
    if budget.device_free is None and failure.happened:
        notes.append(
            "What the device had left is unknown and counted as zero; give capacity= (--capacity)."
        )
    elif budget.total is not None and budget.non_torch is None:
        notes.append(
            "What contexts, libraries and others take on such a device is not known and counts "
            "as nothing."
        )
    return notes


def _report(
    case: Case,
    verdicts: Sequence[Verdict],
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
        holders=case.holdings[:_MOST_HOLDINGS],
        categories=case.categories,
        modules=case.modules,
        ooms=ooms,
        looked_at=looked_at(case),
        step=None if is_question else step_needs(case, tuple(verdicts)),
        notes=tuple(notes),
        findings=tuple(findings),
        _events=0 if case.timeline is None else len(case.timeline),
    )
