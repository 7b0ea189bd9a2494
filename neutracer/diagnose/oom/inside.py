# SPDX-License-Identifier: Apache-2.0
"""Causes inside of PyTorch's own memory: fragmentation, garbage, other pools."""

from __future__ import annotations

from typing import Any

from neutracer.diagnose.oom.case import CRUMBS, Case, least_worth
from neutracer.diagnose.oom.growth import saw_tooth
from neutracer.diagnose.oom.parts import Remedy, Verdict
from neutracer.diagnose.oom.room import free_bytes
from neutracer.diagnose.oom.settings import settings_advice
from neutracer.render.document import Note, Place
from neutracer.trace.places import grouped
from neutracer.trace.stacks import NONE
from neutracer.units import format_bytes, format_count

__all__ = ["cycle_garbage", "fragmentation", "is_crumbs", "other_pool"]

# How many lines that pin holes, and pools, are reported.
_TOLD = 3

# A group with less than this share of what is free in the others is not told.
_TOO_LITTLE = 0.02

_KEPT_BACK = (
    "{} of it in empty segments that were not given back: they belong to a private pool that the "
    "file no longer names, or were kept while a CUDA graph was captured."
)


def fragmentation(case: Case) -> Verdict | None:
    """What is free inside, with what could still be reserved, holds the request; but no
    hole and no new segment does. Or a replay says that it is a matter of settings."""
    room, size = case.room, case.failure.size
    free, headroom = room.own_free, room.budget.headroom
    suffices = free + headroom >= size
    rounds = any(case.snap.settings_in_force["roundup_power2_divisions"])
    if not (suffices and free) and free < least_worth(size) and not rounds:
        return None
    advice = settings_advice(case.snap, room.device, case.failure.event, room.budget, case.replays)
    if not suffices and not advice.is_sure and free < least_worth(size):
        return None
    # Crumbs are what any allocator leaves over: not the cause unless a setting shows it. Where
    # every setting was tried and none would do, it is no matter of fragmentation.
    untried = suffices and not is_crumbs(case) and not (advice.tried and case.shows_most)
    suffices = advice.is_sure or untried
    pins = _pins(case)
    evidence = [Note(_free_text(case, free, headroom)), *pins, *_rounding(case)]
    if advice.tried and not advice.notes and case.shows_most:
        count = format_count(advice.tried, "other allocator setting")
        evidence.append(Note(f"{count}: none would have let this request fit (replayed)."))
    steps = advice.notes if suffices else ()
    if pins and pins[0].place is not None:
        steps += (
            Note(
                "allocate long-lived tensors before short-lived ones, or keep fewer:",
                pins[0].place,
            ),
        )
    hole = room.own_hole
    where = f"no hole above {format_bytes(hole)}" if hole else "in no hole of its kind"
    message = f"fragmentation: {format_bytes(free)} are free inside, {where}"
    remedy = None
    if suffices and advice.notes:
        remedy = Remedy("settings", setting=advice.setting)
    return Verdict("fragmentation", free, tuple(evidence), steps, message, suffices, remedy)


def is_crumbs(case: Case) -> bool:
    """Whether what is free inside is very little of what is reserved.

    A leak, or a device that is full, ends in a request that the last crumbs together would
    hold whenever that request is small: to call it fragmentation would hide the cause.
    """
    return case.room.own_free < CRUMBS * case.room.reserved


def _rounding(case: Case) -> list[Note]:
    """How much larger the live blocks are than their requests, where it is much."""
    own = case.room.own
    inside = sum(int(group["active_bytes"]) - int(group["requested_bytes"]) for group in own)
    if inside < least_worth(case.failure.size):
        return []
    return [Note(f"Blocks are {format_bytes(inside)} larger than the requests for them.")]


def _free_text(case: Case, free: int, headroom: int) -> str:
    holes = sum(int(group["holes"]) for group in case.room.own)
    where = f"{format_bytes(free)} in {format_count(holes, 'hole')}"
    size = format_bytes(case.failure.size)
    if not headroom:
        return f"{where}; the device had nothing more; {size} were asked for."
    more = format_bytes(headroom)
    together = format_bytes(free + headroom)
    return f"{where}, and {more} that could still be reserved: {together} for {size}."


def _pins(case: Case) -> list[Note]:
    """Who keeps segments with free bytes in them from being given back."""
    room, kept = case.room, []
    for row, _, free, _, _, pin in room.fragment.segments():
        segment = room.segments[row]
        own = tuple(segment.segment_pool_id) == case.failure.pool
        if free and pin != NONE and own and segment.stream == case.failure.stream:
            kept.append((room.blocks[pin].stack, free, 1))
    return [
        Note(
            f"{format_bytes(nbytes)} of it in {format_count(count, 'segment')} kept by blocks of",
            place,
        )
        for place, nbytes, count in grouped(kept)[:_TOLD]
    ]


def cycle_garbage(case: Case) -> Verdict | None:
    """Tensors that nothing reaches any more, and that only a collection frees."""
    room, size = case.room, case.failure.size
    garbage, evidence = _garbage(case)
    if garbage < least_worth(size):
        return None
    known = case.facts.garbage_addresses
    if known:
        suffices = room.would_hold(freed=frozenset(known))
    else:
        suffices = room.own_free + room.budget.headroom + garbage >= size
    advice = (
        Note("break the cycles: neutracer.warn_tensor_cycles() names them with the reference"),
        Note("until then neutracer.collect_on_pressure() collects before memory runs short"),
    )
    held = format_bytes(garbage)
    message = f"garbage: reference cycles held {held} that only the collector frees"
    remedy = Remedy("break_cycles", place=_first_place(evidence))
    return Verdict("cycle_garbage", garbage, evidence, advice, message, suffices, remedy)


def _first_place(notes: tuple[Note, ...]) -> Place | None:
    return next((note.place for note in notes if note.place is not None), None)


def _garbage(case: Case) -> tuple[int, tuple[Note, ...]]:
    """What garbage held, as somebody saw or as the trace shows; and what proves it."""
    known, facts = case.timeline, case.facts
    if facts.garbage_bytes is not None:
        held = format_bytes(facts.garbage_bytes)
        notes = [
            Note(f"{held} of tensors were unreachable when it failed: a collection frees them.")
        ]
        notes += _garbage_places(case)
        return facts.garbage_bytes, tuple(notes)
    tooth = saw_tooth(known, case.at) if known is not None and case.thorough else None
    if tooth is None:
        return 0, ()
    times = format_count(tooth.falls, "time")
    text = (
        f"Live bytes rose step by step and fell back {times}, by {format_bytes(tooth.fall_bytes)}, "
        "as when Python's collector frees cycles; this much has piled up since."
    )
    return tooth.bytes, (Note(text),)


def _garbage_places(case: Case) -> list[Note]:
    """Who made the garbage whose addresses are known."""
    return [
        Note(f"{format_bytes(nbytes)} in {format_count(count, 'block')} made by", place)
        for place, nbytes, count in case.garbage_made[:_TOLD]
    ]


def other_pool(case: Case) -> Verdict | None:
    """Free bytes that belong to another pool or stream, and never serve this one."""
    room, size = case.room, case.failure.size
    free = room.other_free
    suffices = room.other_hole >= size or room.would_hold(more=room.other_whole)
    if not suffices and free < least_worth(size):
        return None
    groups = sorted(room.others, key=lambda group: -free_bytes(group))
    told = [group for group in groups if free_bytes(group) >= max(_TOO_LITTLE * free, 1)][:_TOLD]
    evidence = tuple(Note(_group_text(group)) for group in told)
    if room.kept_back:
        evidence += (Note(_KEPT_BACK.format(format_bytes(room.kept_back))),)
    message = (
        f"{format_bytes(free)} are free in other pools and streams, which never serve this one"
    )
    advice = _pool_advice(told, room.kept_back > 0)
    is_private = room.kept_back or any(tuple(group["pool"]) != (0, 0) for group in told)
    remedy = Remedy("share_pools" if is_private else "one_stream")
    return Verdict("other_pool", free, evidence, advice, message, suffices, remedy)


def _group_text(group: dict[str, Any]) -> str:
    pool, stream = tuple(group["pool"]), group["stream"]
    name = f"private pool {pool}" if pool != (0, 0) else "the default pool"
    where = f"stream {stream:#x}" if stream else "the default stream"
    kind = "small" if group["small"] else "large"
    return (
        f"{format_bytes(free_bytes(group))} free of "
        f"{format_bytes(int(group['reserved_bytes']))} in {name} on {where} ({kind} blocks), "
        "in holes of at most "
        f"{format_bytes(int(group['largest_hole']))}."
    )


def _pool_advice(groups: list[dict[str, Any]], kept_back: bool) -> tuple[Note, ...]:
    advice = []
    if kept_back:
        advice.append(Note("call torch.cuda.empty_cache() before a graph is captured"))
    if kept_back or any(tuple(group["pool"]) != (0, 0) for group in groups):
        advice.append(
            Note(
                "drop finished graphs and MemPools, or let graphs share one pool: "
                "torch.cuda.graph(graph, pool=other.pool())"
            )
        )
    if any(tuple(group["pool"]) == (0, 0) for group in groups):
        advice.append(
            Note("allocate on one stream, and use the tensors on the others (record_stream)")
        )
    return tuple(advice)
