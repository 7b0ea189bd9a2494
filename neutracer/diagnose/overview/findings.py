# SPDX-License-Identifier: Apache-2.0
"""What an overview says about a device's failures and growth, in the words of `explain` and
`leak_trend`."""

from __future__ import annotations

import json
import shlex

from neutracer.diagnose.leaks.trend import trend_of_trace
from neutracer.diagnose.oom.facts import OomFacts
from neutracer.diagnose.oom.parts import Verdict
from neutracer.errors import NeutracerError
from neutracer.render.document import Copyable, Note, Place, Severity
from neutracer.render.report import Finding
from neutracer.trace.places import place_of
from neutracer.trace.snapshot import Snapshot
from neutracer.trace.timeline import Timeline
from neutracer.units import format_bytes, format_count

__all__ = ["failure_findings", "trend_findings"]

# Longer traces are left to `leak_trend`, so that an overview costs little more than its file.
_MOST_EVENTS = 1_000_000

# So many places at which requests failed are explained; a batch-size finder has one.
_MOST_PLACES = 8

# Verdicts of `leak_trend` that are not worth reporting.
_QUIET = ("steady", "unknown")


def failure_findings(
    snap: Snapshot, timeline: Timeline, file: str, facts: OomFacts | None
) -> tuple[tuple[Finding, ...], set[str]]:
    """A finding for each place at which requests failed, with the main verdict on its
    largest request.

    Args:
        snap: The snapshot.
        timeline: Of the device.
        file: The snapshot's file as a command here names it; "" is none.
        facts: What is known beside the snapshot.

    Returns:
        The findings, and the kinds of the verdicts in them.
    """
    kinds: set[str] = set()
    if not timeline.facts["oom_count"]:
        return (), kinds
    by_place: dict[Place, list[int]] = {}
    for event, name in enumerate(timeline.events["action"]):
        if name == "oom":
            by_place.setdefault(place_of(timeline.events[event].stack), []).append(event)
    sizes = timeline.events.codes("size")
    last = max(events[-1] for events in by_place.values())
    found = []
    for place, events in list(by_place.items())[-_MOST_PLACES:]:
        # Among requests of one size the last: the facts beside the file are about that one.
        event = max(events, key=lambda number: (sizes[number], number))
        times = f", {format_count(len(events))} times from one place" if len(events) > 1 else ""
        message = f"out of memory: requested {format_bytes(sizes[event])}{times}"
        main = _main(snap, timeline, event, facts)
        notes: tuple[Note, ...] = (Note("asked for by", place),)
        advice: tuple[Note, ...] = ()
        if main is not None:
            kinds.add(main.kind)
            notes += (Note(f"Why: {main.message}."), *main.evidence)
            advice = main.advice
        if file and main is not None:
            more = f"neutracer explain {shlex.quote(file)}"
            which = f" --device {timeline.device}" if len(snap.devices) > 1 else ""
            which += "" if event == last else f" --event {event}"
            advice = (*advice, Note("more", detail=Copyable(f"{more}{which}")))
        kind, size = "out_of_memory", sizes[event]
        found.append(Finding(kind, Severity.SEVERE, size, message, notes, advice, event))
    return tuple(found), kinds


def _main(snap: Snapshot, timeline: Timeline, event: int, facts: OomFacts | None) -> Verdict | None:
    """The main verdict; None for a trace that no allocator can have written."""
    # Most snapshots have nothing to explain.
    from neutracer.diagnose.oom.explain import explained

    try:
        why = explained(snap, timeline.device, facts or OomFacts(), event=event)
    except (NeutracerError, ValueError):
        return None
    return why.main


def trend_findings(
    snap: Snapshot, timeline: Timeline, file: str, told: set[str]
) -> tuple[Finding, ...]:
    """What grows step after step, unless it explains a failure already.

    Args:
        snap: The snapshot.
        timeline: Of the device.
        file: The snapshot's file as a call here names it; "" is none.
        told: The kinds that explain the failures.
    """
    if not 0 < len(timeline) <= _MOST_EVENTS:
        return ()
    try:
        trend = trend_of_trace(snap, timeline.device)
    except (NeutracerError, ValueError):
        return ()
    if trend.verdict in _QUIET or trend.verdict in told:
        return ()
    which = f", device={timeline.device}" if len(snap.devices) > 1 else ""
    call = Copyable(f"neutracer.leak_trend({json.dumps(file)}{which})")
    more = Note("more", detail=call)
    return tuple(
        Finding(one.kind, one.severity, one.bytes, one.message, one.evidence,
                (*one.advice, more) if file else one.advice)
        for one in trend.findings
    )  # fmt: skip
