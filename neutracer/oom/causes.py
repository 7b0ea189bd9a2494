# SPDX-License-Identifier: Apache-2.0
"""Candidate causes of a failure, ranked by how far the program gets without each."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, pairwise, takewhile, zip_longest
from math import isqrt, prod
from typing import Any

from neutracer.heap.owners import AUTOCAST, GARBAGE, IN_USE, LINKED, SLICES, UNSEEN
from neutracer.oom.bill import Bill, BillTerm
from neutracer.oom.case import KINDS, Case, Cause, Remedy, Verdict, free_bytes, least_worth
from neutracer.oom.facts import UNIT
from neutracer.oom.steps import FEWEST, Grower, Growth, saw_tooth
from neutracer.oom.trials import PARTS, Trial, Trials
from neutracer.render.document import Copyable, Note, Place
from neutracer.trace.roles import CATEGORIES, Role, role_of
from neutracer.trace.snapshot import Snapshot
from neutracer.trace.stacks import (
    NONE,
    UNKNOWN_PLACE,
    Frame,
    callers_of,
    grouped,
    is_own,
    owner_path,
    place_of,
)
from neutracer.units import format_bytes, format_count, format_share
from neutracer.whatif.settings import canonical, expandable_advice

# ---- Settings ----------------------------------------------------------------------------

# Of longer traces only expandable segments are replayed; the others are left to `what_if`.
_MOST_EVENTS = 300_000

# How many settings are reported at most.
_TOLD = 3

_VARIABLE = "PYTORCH_CUDA_ALLOC_CONF"


@dataclass(frozen=True)
class SettingsAdvice:
    """What settings would have done for a request."""

    notes: tuple[Note, ...] = ()  # What to set, each with what is known of it.
    setting: str = ""  # The first of them, as PYTORCH_CUDA_ALLOC_CONF takes it; "" is the default.
    tried: int = 0
    is_sure: bool = False  # Whether a replay says that the program goes on under the first.
    needs: int = 0  # The fewest bytes that it needs under those that were tried; 0: some pass.


def settings_advice(case: Case, trials: Trials) -> SettingsAdvice:
    """Settings under which the program goes on, each replayed.

    It never advises a setting that is in force already. Where nothing can be replayed, it names
    expandable segments without a promise, as PyTorch's remedy for fragmentation, if they are off.
    """
    settings = case.snap.settings_in_force
    if not settings["native_backend"]:
        return SettingsAdvice()
    if trials.works:
        return _replayed(case, trials)
    if settings["expandable_segments"]:
        return SettingsAdvice()
    why = "free ranges then serve any size; not replayed, so no promise"
    own = _parts(str(settings["text"]))
    text = canonical(_text(_expandable(own)))
    return SettingsAdvice((Note(expandable_advice(str(settings["text"])), detail=why),), text)


def _replayed(case: Case, trials: Trials) -> SettingsAdvice:
    kinds = _candidates(case.snap, is_limited=trials.is_limited)
    if len(case.timeline) > _MOST_EVENTS:
        kinds = kinds[:1]
    tried = [[trials.setting(text) for text in kind] for kind in kinds]
    passing = [
        next((text, one) for text, one in zip(texts, kind, strict=True) if _is_ample(case, one))
        for texts, kind in zip(kinds, tried, strict=True)
        if any(_is_ample(case, one) for one in kind)
    ]
    notes = [Note(_setting(text), detail=_passed(case, one)) for text, one in passing[:_TOLD]]
    found = [text for text, _ in passing]
    own = _parts(str(case.snap.settings_in_force["text"]))
    rounds = own.pop("roundup_power2_divisions", None) is not None
    rounder = canonical(_text(own))
    if rounds and trials.setting(rounder, is_least=True).passes:
        found.append(rounder)
        may = "it may have fitted (replayed; its exact size is unknown)"
        notes.append(Note(_setting(rounder), detail=may))
    every = [one for kind in tried for one in kind]
    needs = min((0 if one.passes else one.bytes for one in every), default=0)
    return SettingsAdvice(tuple(notes), found[0] if found else "", len(every), bool(passing), needs)


def _is_ample(case: Case, trial: Trial) -> bool:
    """Whether the program goes on; of a step larger than all before it the rest is an estimate,
    and a sixteenth of the step its margin. What is made anew in each round, more of it each time,
    the replay repeats as it was: its growth comes on top."""
    demand, grown = case.demand, 0
    if case.growth is not None and case.growth.by_size:
        grown = case.growth.bytes_per_step * trial.rounds_tried
    if demand is not None and demand.steps and demand.is_larger:
        grown += demand.so_far // PARTS
    return trial.passes and (not grown or trial.bytes + grown <= case.usable)


def _passed(case: Case, trial: Trial) -> str:
    if not trial.rounds_tried or case.rounds is None:
        if case.timeline.facts["start_bytes"][0]:
            return "it may have fitted (replayed; blocks from before the trace stay where they are)"
        return "it would have fitted (replayed exactly)"
    rounds = format_count(trial.rounds, f"more {case.rounds.unit}")
    return f"it fits, and so do {rounds} (replayed)"


def _setting(text: str) -> str:
    return Copyable(f"set {_VARIABLE}={text}" if text else f"leave {_VARIABLE} at its default")


def _parts(text: str) -> dict[str, str]:
    pieces = re.findall(r"([a-z_0-9]+):(\[[^\]]*\]|[^,]*)", text)
    return dict(pieces)


def _candidates(snap: Snapshot, is_limited: bool) -> list[list[str]]:
    own = _parts(str(snap.settings_in_force["text"]))
    is_expandable = bool(snap.settings_in_force["expandable_segments"])
    kinds: list[list[dict[str, str]]] = []
    if not is_expandable:
        kinds.append([_expandable(own)])
    if "garbage_collection_threshold" not in own and is_limited and not is_expandable:
        kinds.append([{**own, "garbage_collection_threshold": one} for one in ("0.8", "0.6")])
    if "max_split_size_mb" not in own and not is_expandable:
        sizes = ("512", "256", "128", "64", "32")
        kinds.append([{**own, "max_split_size_mb": size} for size in sizes])
    if "roundup_power2_divisions" not in own:
        kinds.append([{**own, "roundup_power2_divisions": value} for value in ("8", "4")])
    return [[canonical(_text(one)) for one in kind] for kind in kinds]


def _expandable(own: dict[str, str]) -> dict[str, str]:
    # PyTorch refuses to split blocks of expandable segments at a size.
    rest = {name: value for name, value in own.items() if not name.startswith("max_")}
    return {**rest, "expandable_segments": "True"}


def _text(settings: dict[str, str]) -> str:
    return ",".join(f"{name}:{value}" for name, value in settings.items())


# ---- Inside ------------------------------------------------------------------------------

#: What is free inside, here or in other pools, is no finding below this share of what the process
#: may have: its cure would give back no more.
LEAST_CURE = 0.05

# A group with less than this share of what is free in the others is not told.
_TOO_LITTLE = 0.02

_KEPT_BACK = (
    "{} of it in empty segments that were not given back: they belong to a private pool that the "
    "file no longer names, or were kept while a CUDA graph was captured."
)


def fragmentation(case: Case, trials: Trials) -> Verdict | None:
    """What is free inside, with what could still be reserved, holds the request; but no
    hole and no new segment does. Or a replay says that it is a matter of settings."""
    room, size = case.room, case.failure.size
    free, headroom = room.own_free, room.budget.headroom
    suffices = free + headroom >= size
    rounds = any(case.snap.settings_in_force["roundup_power2_divisions"])
    is_little = free < LEAST_CURE * room.budget.usable
    if is_little and not rounds:
        return None
    if not (suffices and free) and free < least_worth(size) and not rounds:
        return None
    advice = settings_advice(case, trials)
    if not suffices and not advice.is_sure and free < least_worth(size):
        return None
    # Where every setting was tried and none would do, it is no matter of fragmentation; blocks
    # from before the trace, which a replay leaves where they are, keep no more than what is free.
    is_tried = advice.tried and (case.shows_most or advice.needs - free > room.budget.usable)
    untried = suffices and not is_little and not is_tried
    suffices = advice.is_sure or untried
    pins = _pins(case)
    evidence = [Note(_free_text(case, free, headroom)), *pins, *_rounding(case)]
    if is_tried and not advice.notes and advice.needs:
        count = format_count(advice.tried, "other allocator setting")
        evidence.append(Note(f"{count}: under none does it go on (replayed)."))
    steps = advice.notes if suffices else ()
    gone = () if suffices else _gone_between(case, trials, pins, free)
    if gone:
        suffices, steps = True, (_not_all_at_once(case, gone),)
    elif pins and pins[0].place is not None:
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
    return Verdict(
        "fragmentation",
        free,
        tuple(evidence),
        steps,
        message,
        suffices,
        remedy,
        # Nothing shows what a whole first step needs: as a rule more than what is free inside,
        # but hardly more than as much again as it has made.
        finishes=False if _is_begun(case) and not (gone and _would_double(case, free)) else None,
    )


def _is_begun(case: Case) -> bool:
    return case.is_first_step or case.is_first_pass


def _would_double(case: Case, free: int) -> bool:
    """Whether what is free inside has room for what modules made that is in use once more."""
    (sizes,), live = case.columns("size"), _rows_of(case, "activation")
    return free + case.room.budget.headroom >= sum(sizes[row] for row in live) + case.failure.size


def _gone_between(case: Case, trials: Trials, pins: Sequence[Note], free: int) -> tuple[int, ...]:
    """The blocks of one line, in the order in which they were made, that were in use while more
    than one of those that keep segments were made, and are gone; () where they would not fill half
    of what is free, or the request fails with one of them at a time, too."""
    if not trials.works or case.has_outgrown or not pins or pins[0].place is None:
        return ()
    made, freed, sizes = case.columns("alloc_event", "free_event", "size")
    kept = [made[row] for row in case.rows_at(pins[0].place)]
    by_line: defaultdict[Place, list[int]] = defaultdict(list)
    for row in range(bisect_left(made, 0), bisect_right(made, case.at)):
        between = bisect_left(kept, freed[row]) - bisect_left(kept, made[row])
        if between > 1 and freed[row] <= case.at:
            by_line[case.timeline.place_of_allocation(row)].append(row)
    by_line.pop(pins[0].place, None)
    most = max(by_line.values(), key=lambda rows: sum(sizes[row] for row in rows), default=[])
    is_most = 2 * sum(sizes[row] for row in most) >= free
    return tuple(most) if is_most and trials.one_at_a_time(most) else ()


def _not_all_at_once(case: Case, rows: Sequence[int]) -> Note:
    (sizes,) = case.columns("size")
    size = format_bytes(sum(sizes[row] for row in rows))
    return Note(
        "let go of each before the next one is made, or keep them on the CPU: "
        f"{format_count(len(rows), 'block')} of {size} in all are gone, and what was made between "
        "them holds their segments; one at a time, the request succeeds (replayed):",
        case.timeline.place_of_allocation(rows[0]),
    )


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


def untrained(case: Case) -> Verdict | None:
    """What autograd keeps of modules whose parameters no optimizer has: activations that lead to no
    other parameter, and gradients that nothing uses."""
    known = frozenset(case.facts.untrained_addresses)
    rows = [block for block in case.room.blocks if block.address in known]
    nbytes = sum(block.size for block in rows)
    if nbytes < max(least_worth(case.failure.size), LEAST_CURE * case.usable):
        return None
    by_line = grouped((block.stack, block.size, 1) for block in rows)
    evidence = _by_line(by_line, "by")
    calls = (_call_of_modules(block.stack) for block in rows)
    call = next((place for place in calls if place is not None), None)
    freeze = Note("call requires_grad_(False) on the model: no optimizer has its parameters")
    advice: tuple[Note, ...] = (freeze,)
    if call is not None:
        without = Note("run it under torch.no_grad(): no optimizer has its parameters:", call)
        advice = (without, Note("or call requires_grad_(False) on that model"))
    message = f"{format_bytes(nbytes)} is kept to train parameters that no optimizer has"
    suffices = case.room.would_hold(freed=known)
    remedy = Remedy("no_grad", place=call or by_line[0][0])
    return Verdict("capacity", nbytes, evidence, advice, message, suffices, remedy, frees=known)


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
    unit = "step" if case.rounds is None else case.rounds.unit
    advice: tuple[Note, ...] = (
        Note(f"call gc.collect() after each {unit}, or where the objects are done with"),
        Note("break the cycles: neutracer.warn_tensor_cycles() names them with the reference"),
        Note("until then neutracer.collect_on_pressure() collects before memory runs short"),
    )
    if case.facts.collects is False:
        off = Note("Python's collector was switched off (gc.disable()): nothing else frees them.")
        evidence = (*evidence, off)
    held = format_bytes(garbage)
    message = f"garbage: reference cycles held {held} that only the collector frees"
    first = next((note.place for note in evidence if note.place is not None), None)
    remedy = Remedy("break_cycles", place=first)
    return Verdict(
        "cycle_garbage",
        garbage,
        evidence,
        advice,
        message,
        suffices,
        remedy,
        frees=_garbage_like(case),
    )


def _garbage_like(case: Case) -> frozenset[int]:
    """Addresses of what garbage is known to hold, and of what the same lines made in the rounds
    before: of garbage of one shape one example's are known."""
    known = set(case.facts.garbage_addresses)
    if not known:
        return frozenset()
    if case.growth is not None and case.growth_is_garbage:
        known |= case.growth.addresses
    at, stacks, made = case.columns("address", "stack", "alloc_event")
    lines = {stacks[row] for row in case.live_rows if at[row] in known} - {NONE}
    since = case.at if case.rounds is None else case.rounds.begins[-1]
    alike = (at[row] for row in case.live_rows if stacks[row] in lines and made[row] < since)
    return frozenset(known.union(alike))


def _by_line(lines: Sequence[tuple[Place, int, int]], text: str) -> tuple[Note, ...]:
    """The bytes and blocks of the first of some lines, with a text before each line."""
    return tuple(
        Note(f"{format_bytes(nbytes)} in {format_count(count, 'block')} {text}", place)
        for place, nbytes, count in lines[:_TOLD]
    )


def _garbage(case: Case) -> tuple[int, tuple[Note, ...]]:
    """What garbage held, as somebody saw or as the trace shows; and what proves it."""
    facts = case.facts
    if facts.garbage_bytes is not None:
        held = format_bytes(facts.garbage_bytes)
        text = f"{held} of tensors were unreachable when it failed: a collection frees them."
        return facts.garbage_bytes, (Note(text), *_by_line(case.garbage_made, "made by"))
    tooth = saw_tooth(case.timeline, case.at)
    if tooth is None:
        return 0, ()
    times = format_count(tooth.falls, "time")
    text = (
        f"Live bytes rose step by step and fell back {times}, by {format_bytes(tooth.fall_bytes)}, "
        "as when Python's collector frees cycles; this much has piled up since."
    )
    return tooth.bytes, (Note(text),)


def other_pool(case: Case) -> Verdict | None:
    """Free bytes that belong to another pool or stream, and never serve this one."""
    room, size = case.room, case.failure.size
    free = room.other_free
    if free < LEAST_CURE * room.budget.usable:
        return None
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
    private = {tuple(group["pool"]) for group in groups} - {(0, 0)}
    share = (
        "let graphs share one pool (handle = torch.cuda.graph_pool_handle(), then "
        "torch.cuda.graph(graph, pool=handle)), capture fewer shapes by padding inputs"
    )
    drop = "drop finished graphs and MemPools"
    if len(private) > 1:
        advice.append(Note(f"{share}, or {drop}"))
    elif private or kept_back:
        advice.append(Note(f"{drop}, or {share}"))
    if any(tuple(group["pool"]) == (0, 0) for group in groups):
        advice.append(
            Note("allocate on one stream, and use the tensors on the others (record_stream)")
        )
    return tuple(advice)


# ---- Limits ------------------------------------------------------------------------------

# What CUDA's context and its libraries take of a large device in every process, whatever
# the program does: 520 to 620 MiB on an H200, and up to 750 MiB where cuBLAS has run.
_CONTEXT = 640 << 20

# Less than this beyond a context can't be told from what the context itself varies by.
_LEAST_OTHERS = 256 << 20

# Where nobody knows how large the device is, a request for less is no mistake in a shape: all
# but the smallest devices have so much, and refuse it only because others have it.
_LEAST_DEVICE = 8 << 30

# Element sizes that a square matrix is tried for, with a dtype of that size.
_ELEMENTS = ((4, "float32"), (2, "float16"), (8, "float64"), (1, "bool"))


def unreasonable_request(case: Case) -> Verdict | None:
    """One request for more than the device has."""
    budget, size = case.room.budget, case.failure.size
    ceiling = budget.total
    if ceiling is None and budget.device_free is not None and size > _LEAST_DEVICE:
        ceiling = budget.reserved + budget.device_free + _CONTEXT
    if ceiling is None or size <= ceiling or _has_succeeded(case):
        return None
    has = "the device has" if budget.total is not None else "PyTorch could have had of the device"
    evidence = [Note("asked for by", case.place)] if case.stack else []
    evidence += [Note(f"there: {tensor}") for tensor in case.facts.tensors[:4]]
    evidence += [Note(text) for text in _shape_texts(size)]
    if budget.total is None:
        evidence.append(
            Note("The file does not say how large the device is; give capacity= (--capacity).")
        )
    advice = (
        *_of_request(case),
        Note("check the shapes on that line: an outer product, all pairs, a mask, a wrong axis"),
    )
    message = f"one request of {format_bytes(size)}, more than the {format_bytes(ceiling)} {has}"
    remedy = Remedy("shape", place=case.place)
    return Verdict("unreasonable_request", size, tuple(evidence), advice, message, True, remedy)


def _has_succeeded(case: Case) -> bool:
    """Whether the same line got less before, in rounds that ended: a larger input, no mistake."""
    event = case.failure.event
    if event is None or case.rounds is None:
        return False
    asks = case.timeline.events.codes("stack")[event]
    pairs = zip(*case.columns("alloc_event", "stack"), strict=True)
    return any(stack == asks and made < case.rounds.begins[-1] for made, stack in pairs)


def _shape_texts(size: int) -> list[str]:
    for width, dtype in _ELEMENTS:
        side = isqrt(size // width)
        if 0 <= size - side * side * width < 512:
            number = format_count(side)
            return [f"That is the size of {number} x {number} elements of {dtype}."]
    return [f"That is {format_count(size // 4)} elements of float32."]


def non_torch(case: Case) -> Verdict | None:
    """Memory of the device that is not PyTorch's: other processes, libraries, contexts."""
    room, budget = case.room, case.room.budget
    taken, free = budget.non_torch, budget.device_free
    if taken is None or free is None:
        return None
    if free >= room.segment:
        # The device had enough: a limit stood in the way.
        return None
    avoidable = _avoidable(taken, budget.others or 0)
    bound = free + avoidable
    if budget.limit is not None:
        bound = min(bound, max(budget.limit - budget.reserved, 0))
    suffices = room.would_hold(more=max(bound - budget.headroom, 0))
    if avoidable < 1 << 20 or (avoidable < _LEAST_OTHERS and not suffices):
        return None
    evidence = [
        Note(
            f"Of the device's {format_bytes(budget.total or 0)} PyTorch had "
            f"{format_bytes(budget.reserved)}, and {format_bytes(free)} were free."
        )
    ]
    if budget.others:
        evidence.append(Note(f"Other processes had {format_bytes(budget.others)}."))
    if budget.process is not None and budget.process > budget.reserved:
        own = format_bytes(budget.process - budget.reserved)
        evidence.append(
            Note(f"This process had {own} besides PyTorch's: its context, NCCL, CuPy and the like.")
        )
    advice = [Note("neutracer.device_report() and nvidia-smi say who has it")]
    if _avoidable(taken - (budget.others or 0), 0):
        advice.append(
            Note("neutracer.attribute_device_memory(), switched on early, names the libraries")
        )
    if budget.others:
        advice.insert(0, Note("end other programs on this device, or use another device"))
    message = f"{format_bytes(avoidable)} of the device is taken, but not by PyTorch"
    remedy = Remedy("end_others")
    return Verdict(
        "non_torch", avoidable, tuple(evidence), tuple(advice), message, suffices, remedy
    )


def _avoidable(taken: int, others: int) -> int:
    others = min(others, taken)
    beyond = taken - others - _CONTEXT
    return others + (beyond if beyond >= _LEAST_OTHERS else 0)


def had_room(case: Case) -> Verdict:
    """The request would succeed as things stood: what was in its way had gone by then."""
    room = case.room
    if room.own_fits:
        return _came_late(case)
    free = room.budget.headroom
    size = format_bytes(free)
    evidence = (Note(f"The device had {size} free just after, and no limit stood in the way."),)
    advice = (Note("find who else allocates on this device: neutracer.device_report()"),)
    message = f"others held the {size} that was free a moment later"
    return Verdict("non_torch", free, evidence, advice, message, True, Remedy("end_others"))


def _came_late(case: Case) -> Verdict:
    """The hole is there: it came back while PyTorch made room, and it doesn't look again."""
    hole = case.room.own_hole
    evidence = (
        Note(f"A hole of {format_bytes(hole)} was free when it failed, and would have held it."),
        Note(
            "It came back while PyTorch waited for other streams, and PyTorch doesn't look again."
        ),
    )
    advice = (
        Note(
            "free tensors that other streams use (record_stream) earlier, or wait for those first"
        ),
        Note("try again: the same request would succeed"),
    )
    message = f"{format_bytes(hole)} came back from another stream too late"
    return Verdict("other_pool", hole, evidence, advice, message, True, Remedy("wait"))


def process_cap(case: Case, trials: Trials) -> Verdict | None:
    """PyTorch keeps the process below a limit, while the device has room."""
    room, budget = case.room, case.room.budget
    if budget.limit is None or not budget.is_capped(room.segment) or budget.device_free is None:
        return None
    free = budget.device_free
    suffices = room.would_hold(more=max(free - budget.headroom, 0))
    about = "about " if budget.limit_is_guess else ""
    limit = format_bytes(budget.limit)
    needed = budget.reserved + room.segment
    evidence = [
        Note(f"It had {format_bytes(budget.reserved)} reserved, and asked for "
             f"{format_bytes(room.segment)} more; the device had {format_bytes(free)} free.")
    ]  # fmt: skip
    if budget.limit_is_guess:
        evidence.append(
            Note("Inferred from the failures; capacity= (--capacity) or facts= give the limit.")
        )
    known = trials.needs()
    if known is not None:
        needed = known
    share, part = "", None
    if budget.total:
        part = min(-int(-needed / budget.total * 1000 // 1) / 1000, 1.0)
        share = f"to {part:.3f} or more of the device"
    if known is None and case.demand is None and case.phase.name in ("forward", "backward"):
        share, part = "or leave it out: no step has ended, so what one needs is not known", 1.0
    setting = float(case.snap.settings_in_force["per_process_memory_fraction"])
    name = "torch.cuda.set_per_process_memory_fraction()"
    if setting < 1.0:
        name = "per_process_memory_fraction in PYTORCH_CUDA_ALLOC_CONF"
    advice = (Note(f"raise {name}", detail=share or f"so that it allows {format_bytes(needed)}"),)
    message = f"the process is limited to {about}{limit}, though the device has room"
    remedy = Remedy("raise_limit", value=part)
    return Verdict("process_cap", free, tuple(evidence), advice, message, suffices, remedy)


# ---- Piled -------------------------------------------------------------------------------


def _kept(
    kind: str,
    case: Case,
    frees: frozenset[int],
    nbytes: int,
    evidence: tuple[Note, ...],
    advice: tuple[Note, ...],
    message: str,
    remedy: Remedy,
) -> Verdict:
    """The verdict on blocks that are kept, by their addresses. A holder that the advice names is
    not named again."""
    suffices = case.room.would_hold(freed=frees)
    said = " ".join(one.text for one in advice)
    evidence = tuple(
        note
        for note in evidence
        if not note.text.startswith(_HELD_BY) or note.text.removeprefix(_HELD_BY) not in said
    )
    return Verdict(kind, nbytes, evidence, advice, message, suffices, remedy, frees=frees)


def leak(case: Case, bill: Bill) -> Verdict | None:
    """What step after step left behind, and what else the same containers keep."""
    growth = _piled_up(case)
    if growth is None or growth.by_size:
        return None
    along = _kept_along(case, bill, growth)
    beside = sum(one.piled_up for one in along)
    each = growth.bytes_per_step + beside // growth.steps
    message = (
        f"leak: {format_bytes(growth.piled_up + beside)} piled up over {_over(growth)} "
        f"({format_bytes(each)} each)"
    )
    advice, remedy = _leak_advice(case, growth)
    found = _of_growth("leak", case, growth, message, (*_joined(case, growth), *advice), remedy)
    if not along:
        return found
    made, at = case.columns("alloc_event", "address")
    rows = (row for one in along for row in case.rows_at(one.place or UNKNOWN_PLACE))
    begin = growth.rounds.begins[-2]
    frees = found.frees | {at[row] for row in rows if made[row] < begin}
    notes = tuple(
        Note(f"{format_bytes(one.piled_up)} beside it, by", one.place) for one in along[:_TOLD]
    )
    nbytes, evidence = found.bytes + beside, (*found.evidence, *notes)
    suffices = case.room.would_hold(freed=frees)
    return replace(found, bytes=nbytes, evidence=evidence, suffices=suffices, frees=frees)


def _joined(case: Case, growth: Growth) -> tuple[Note, ...]:
    """To make the whole first, where the request is as large as all that one line piled up: both
    are in use when the parts are joined."""
    rows = case.rows_at(max(growth.growers, key=lambda one: one.bytes).place)
    (sizes,) = case.columns("size")
    parts = sum(sizes[row] for row in rows)
    if len(rows) < FEWEST or abs(case.failure.size - parts) > _JOINED * parts:
        return ()
    text = (
        "allocate the whole once, before the loop, and copy each part into it as it comes "
        "(whole[a:b] = part): joining the parts, as by torch.cat(), needs as much again:"
    )
    return (Note(text, case.place if case.stack else None),)


# So much of it a request differs at most from the sum of the parts that it joins: rounding.
_JOINED = 0.02

# A chain of holders up to the container of many that grows.
_CONTAINER = re.compile(r".*?\[…\]")


def _kept_along(case: Case, bill: Bill, growth: Growth) -> list[BillTerm]:
    """The lines that piled up in the containers that hold what grows, but not in every step: as
    the states of models that fail now and then."""
    chains = [_CONTAINER.match(case.holder_of(one.place)) for one in growth.growers]
    keepers = tuple({chain[0] for chain in chains if chain})
    growing = {one.place for one in growth.growers}
    least = least_worth(case.failure.size)
    return [
        one
        for one in bill.lines
        if one.piled_up >= least and one.place not in growing and one.holder.startswith(keepers)
    ]


def young_pile(case: Case, bill: Bill) -> Verdict | None:
    """What piled up in too few steps for a trend: lines of the bill that rose in most of them."""
    rounds = case.rounds
    lines = [one for one in bill.lines if one.piled_up]
    nbytes = sum(one.piled_up for one in lines)
    if rounds is None or not bill.rounds:
        return None
    if len(rounds.begins) > FEWEST:
        # Enough of them for `growth_of`, which found that it does not last.
        return None
    if nbytes < max(least_worth(case.failure.size), LEAST_CURE * case.usable):
        return None
    begins = rounds.begins
    made, stacks, at = case.columns("alloc_event", "stack", "address")
    # Stacks of which something outlived the round after its own; the first round makes what stays.
    lasting = {stacks[row] for row in case.live_rows if begins[1] <= made[row] < begins[-2]}
    kept = [
        row
        for row in case.live_rows
        if begins[0] <= made[row] < begins[-1] and stacks[row] in lasting
    ]
    unit = f"{bill.rounds} {rounds.unit}s"
    evidence = tuple(
        Note(f"{format_bytes(one.piled_up)} more than {unit} before, by", one.place)
        for one in lines[:_TOLD]
    )
    evidence += _held_by(case, lines[0].place or UNKNOWN_PLACE)
    graph = sum(one.piled_up for one in lines if one.category == "activation")
    places = [one.place or UNKNOWN_PLACE for one in lines]
    advice, remedy = _release(case, places, 2 * graph > nbytes)
    message = f"leak: {format_bytes(nbytes)} piled up over {unit}"
    frees = frozenset(at[row] for row in kept)
    return _kept("leak", case, frees, nbytes, evidence, advice, message, remedy)


def left_behind(case: Case) -> Verdict | None:
    """What is there of earlier steps at lines whose blocks go, as a rule, with the step that made
    them: now and then something keeps those of one step."""
    rounds, frames = case.rounds, case.snap.stacks
    if rounds is None or len(rounds.begins) <= FEWEST:
        return None
    made, stacks, sizes, at = case.columns("alloc_event", "stack", "size", "address")
    kept = _left_rows(case, rounds.begins)
    nbytes = sum(sizes[row] for row in kept)
    if nbytes < max(least_worth(case.failure.size), LEAST_CURE * case.usable):
        return None
    steps = len({bisect_right(rounds.begins, made[row]) for row in kept})
    of_steps = f"{steps} of {format_count(len(rounds.begins) - 1, rounds.unit)}"
    by_line = grouped((frames[stacks[row]], sizes[row], 1) for row in kept)
    notes = []
    for place, size, count in by_line[:_TOLD]:
        text = f"{format_bytes(size)} in {format_count(count, 'block')} of {of_steps}, by"
        notes += [Note(text, place), *_held_by(case, place)]
    by_modules = {stack for stack in map(stacks.__getitem__, kept)
                  if role_of(frames[stack]) is Role.MODULE}  # fmt: skip
    graph = sum(sizes[row] for row in kept if stacks[row] in by_modules)
    places = [place for place, _, _ in by_line]
    advice, remedy = _release(case, places, 2 * graph > nbytes)
    message = f"leak: {format_bytes(nbytes)} of earlier {rounds.unit}s is still there"
    frees, evidence = frozenset(at[row] for row in kept), tuple(dict.fromkeys(notes))
    return _kept("leak", case, frees, nbytes, evidence, advice, message, remedy)


def outlived(case: Case) -> Verdict | None:
    """What modules and autograd made in the last steps that is still there after more backward
    passes than in the steps before: something keeps its graph."""
    kept = _outliving(case)
    sizes, at = case.columns("size", "address")
    nbytes = sum(sizes[row] for row in kept)
    if nbytes < max(least_worth(case.failure.size), LEAST_CURE * case.usable):
        return None
    by_line: Counter[Place] = Counter()
    for row in kept:
        by_line[case.timeline.place_of_allocation(row)] += sizes[row]
    evidence = tuple(
        Note(f"{format_bytes(size)} of it by", place) for place, size in by_line.most_common(_TOLD)
    )
    places = [place for place, _ in by_line.most_common(_TOLD)]
    place, chain = places[0], next(filter(None, map(case.holder_of, places)), "")
    text = (
        "keep no graph from pass to pass: detach() what is kept, keep numbers (loss.item()), and "
        "pass create_graph=True only where a gradient is differentiated again"
    )
    advice = (Note(f"{text}, in {chain}") if chain else Note(f"{text}:", place),)
    message = f"leak: {format_bytes(nbytes)} outlived the backward passes that free such blocks"
    frees, remedy = frozenset(at[row] for row in kept), Remedy("release", place=place)
    return _kept("leak", case, frees, nbytes, evidence, advice, message, remedy)


def _outliving(case: Case) -> list[int]:
    """The rows of the last steps' blocks in use that more backward passes have ended over than over
    nearly all that the steps before made in the same role; none where modules made none of them."""
    if case.rounds is None or len(case.rounds.begins) <= FEWEST:
        return []
    made, freed, sizes = case.columns("alloc_event", "free_event", "size")
    role, begins = case.timeline.passes.role, case.rounds.begins
    ends = [end for _, end in case.timeline.passes.backward]
    since, over = begins[-min(_LAST, len(begins) // 2)], bisect_right(ends, case.at)
    outlive = {
        row: over - bisect_right(ends, made[row])
        for row in case.live_rows
        if made[row] >= since and role[made[row]] in _OF_A_PASS
    }
    if not any(outlive.values()):
        return []
    passes: defaultdict[int, Counter[int]] = defaultdict(Counter)
    for row in range(bisect_left(made, begins[0]), bisect_left(made, since)):
        # What stays, as a workspace does, is there after every pass.
        if 0 <= freed[row] < case.at:
            times = bisect_right(ends, freed[row]) - bisect_right(ends, made[row])
            passes[role[made[row]]][times] += sizes[row]
    usual = {of: _usual(passes[of]) for of in _OF_A_PASS if passes[of]}
    kept = [
        row for row, times in outlive.items() if times > usual.get(Role(role[made[row]]), len(ends))
    ]
    # A gradient that is never dropped is there after every pass, too.
    of_modules = [at for at, row in enumerate(kept) if role[made[row]] == Role.MODULE]
    return kept[of_modules[0] :] if of_modules else []


def _usual(passes: Counter[int]) -> int:
    """The fewest passes that nearly all bytes outlive no more of."""
    before, total = 0, passes.total()
    for count in sorted(passes):
        before += passes[count]
        if before >= _NEARLY_ALL * total:
            return count
    return max(passes)


# An output or a loss is kept by its name until the next one takes it.
_NEARLY_ALL = 0.9

# Steps that may do something else than those before them.
_LAST = 4

# What modules and autograd make, which a backward pass frees.
_OF_A_PASS = (Role.MODULE, Role.BACKWARD)


def _left_rows(case: Case, begins: Sequence[int]) -> list[int]:
    """The allocations in use that are older than the step before the failing one, of stacks most
    of whose blocks are freed by the end of the step after theirs.

    What a stack makes in the first step that runs it counts for nothing: in many programs it
    stays, as a workspace does.
    """
    made, freed, stacks = case.columns("alloc_event", "free_event", "stack")
    first, last = bisect_left(made, begins[0]), bisect_left(made, begins[-2])
    began: dict[int, int] = {}
    goes: Counter[int] = Counter()
    edges = [*(bisect_left(made, begin) for begin in begins[:-2]), last]
    for number, (low, high) in enumerate(pairwise(edges), 1):
        end = begins[number + 1]
        for stack, gone in zip(stacks[low:high], freed[low:high], strict=True):
            if began.setdefault(stack, number) < number:
                goes[stack] += 1 if 0 <= gone < end else -1
    return [
        row
        for row in case.live_rows
        if first <= row < last
        and goes[stacks[row]] > 0
        and began[stacks[row]] < bisect_right(begins, made[row])
    ]


def cache_growth(case: Case) -> Verdict | None:
    """What is made anew in every step, each time larger than what it replaces."""
    growth = _piled_up(case)
    if growth is None or not growth.by_size:
        return None
    grower = growth.growers[0]
    first = grower.place
    is_copied = any(frame.name == "deepcopy" for frame in grower.stack)
    notes = (*_by_holder(case.holder_of(first)), *((Note(_ON_COPIES),) if is_copied else ()))
    what = f"what each {growth.rounds.unit} makes anew" if notes else "a cache that"
    message = (
        f"{what} grows: {format_bytes(growth.bytes)} after {_over(growth)}, "
        f"{format_bytes(growth.bytes_per_step)} more each time"
    )
    remedy = Remedy("release", place=first, callers=grower.callers)
    advice = notes or _bound(case, grower)
    return _of_growth("cache_growth", case, growth, message, advice, remedy)


def _bound(case: Case, grower: Grower) -> tuple[Note, ...]:
    """To bound a cache, where its holder tells no more."""
    known, chain = _signature(grower.stack, _SIGNATURES_OF_GROWTH), case.holder_of(grower.place)
    bound = "bound it, keep it on the CPU, or make it shorter"
    return (
        *((Note(known),) if known else ()),
        Note(f"{bound}: {chain}") if chain else Note(f"{bound}:", grower.place),
        Note("a smaller batch or fewer tokens make each step's part of it smaller"),
        Note("each time it grows, old and new are in use at once: allocate it once, whole"),
    )


def made_again(case: Case) -> Verdict | None:
    """Whole models that were made again, in a later round, while the older ones are there.

    A round that makes blocks of the same lines and sizes as the newest that makes any has made
    the same model before. Layers and experts that are added one by one are no such round.
    """
    rounds, role = case.rounds, case.timeline.passes.role
    if rounds is None:
        return None
    made, sizes, stacks, at = case.columns("alloc_event", "size", "stack", "address")
    models: dict[int, list[int]] = {}
    for row in case.live_rows:
        if made[row] >= 0 and role[made[row]] == Role.BUILD:
            models.setdefault(bisect_right(rounds.begins, made[row]), []).append(row)
    newest = max(models, default=0)
    shapes = {n: Counter((stacks[row], sizes[row]) for row in own) for n, own in models.items()}
    copies = [n for n in models if n != newest and shapes[n] == shapes[newest]]
    if not copies:
        return None
    # The state of their optimizers was made before the newest model was.
    begin = min(made[row] for row in models[newest])
    older = [row for n in copies for row in models[n]]
    older += [
        row for row in case.live_rows if 0 <= made[row] < begin and role[made[row]] == Role.STATE
    ]
    nbytes = sum(sizes[row] for row in older)
    if nbytes < max(least_worth(case.failure.size), LEAST_CURE * case.usable):
        return None
    by_line = grouped((case.snap.stacks[stacks[row]], sizes[row], 1) for row in older)
    first = by_line[0][0]
    evidence = (*_by_line(by_line, "made before by"), *_held_by(case, first))
    advice = (
        _models(case, first),
        Note("what keeps one is often small: a scheduler, a closure, a list of results"),
    )
    message = f"models made before are still there: {format_bytes(nbytes)}"
    frees, remedy = frozenset(at[row] for row in older), Remedy("release", place=first)
    return _kept("leak", case, frees, nbytes, evidence, advice, message, remedy)


def kept_by_one(case: Case) -> Verdict | None:
    """Most of what is in use, made block by block by one line, where its holder tells what keeps
    it: a queue that nothing bounds, a cache."""
    most, chain = case.largest
    advice = _by_holder(chain)
    if not case.has_trace or most is None or not advice or most.count < FEWEST:
        return None
    (at,) = case.columns("address")
    frees = frozenset(at[row] for row in case.rows_at(most.place))
    what = f"{format_bytes(most.bytes)} in {format_count(most.count, 'block')}"
    message, evidence = f"leak: {what} piled up in {chain}", (Note("made by", most.place),)
    remedy = Remedy("release", place=most.place)
    return _kept("leak", case, frees, most.bytes, evidence, advice, message, remedy)


def kept_exceptions(case: Case, bill: Bill) -> Verdict | None:
    """Exceptions that the program keeps, and with them the frames that they came through: what
    keeps some leads to most of what is in use."""
    chains = [one for line in bill.lines for one in line.holder.split("; ")]
    kept = [
        one.partition(" → exception")[0]
        for one in chains
        if any(word in one for word in _OF_AN_EXCEPTION)
    ]
    # A frame alone keeps all that it works on.
    names = dict.fromkeys(one.partition("[")[0] for one in kept)
    keepers = [one for one in names if " → " in one]
    begins = tuple(f"{one}{end}" for one in keepers for end in ("[", "; ", " → "))
    held = [one for one in bill.lines if f"{one.holder}; ".startswith(begins)]
    nbytes = sum(one.bytes for one in held)
    if 2 * nbytes < max(case.room.allocated, 1):
        return None
    size = format_bytes(nbytes)
    evidence = [Note(f"up to {format_bytes(one.bytes)} by", one.place) for one in held[:_TOLD]]
    advice = (
        Note(f"{_ON_EXCEPTIONS}; held by {keepers[0]}"),
        Note("or clear their frames: traceback.clear_frames(error.__traceback__)"),
    )
    message = f"leak: exceptions that are kept hold up to {size}, by the frames of their tracebacks"
    remedy = Remedy("release", place=held[0].place)
    return Verdict("leak", nbytes, tuple(evidence), advice, message, True, remedy)


def retry(case: Case) -> Verdict | None:
    """A retry inside of `except`: the exception that is handled keeps the frames of the attempt
    that failed, and what they made: blocks of lines that have run again since."""
    timeline, event = case.timeline, case.failure.event
    if "OutOfMemory" not in case.facts.handling or event is None:
        return None
    failed = max((at for at in timeline.events.find("action", "oom") if at < event), default=None)
    if failed is None:
        return None
    begins = [end for _, end in timeline.passes.backward]
    begins += case.rounds.begins if case.rounds is not None and case.rounds.are_steps else ()
    begin = max((at for at in begins if at <= failed), default=0)
    asked = timeline.events.codes("stack")
    made, sizes, at, stacks = case.columns("alloc_event", "size", "address", "stack")
    # Of innermost frames, not of stacks: the second attempt is called from elsewhere.
    frames = case.snap.stacks
    again = {frames[stack][:1] for stack in set(asked[failed + 1 : event + 1]) - {NONE}}
    own = (row for row in case.live_rows if begin <= made[row] < failed and stacks[row] != NONE)
    kept = [row for row in own if frames[stacks[row]][:1] in again]
    nbytes = sum(sizes[row] for row in kept)
    if nbytes < least_worth(case.failure.size):
        return None
    evidence = (
        Note(f"{case.facts.handling} was being handled: its traceback keeps the frames."),
        Note(f"{format_bytes(nbytes)} made before that failure are still in use."),
    )
    advice = (
        Note("try again after the except block, not inside of it: set a flag there and go on"),
        Note("or keep nothing of the exception: traceback.clear_frames(error.__traceback__)"),
    )
    message = f"the attempt that failed before still holds {format_bytes(nbytes)}"
    remedy, frees = Remedy("release", place=case.place), frozenset(at[row] for row in kept)
    return _kept("leak", case, frees, nbytes, evidence, advice, message, remedy)


def _piled_up(case: Case) -> Growth | None:
    growth = case.growth
    if growth is None or growth.bytes < least_worth(case.failure.size):
        return None
    return None if case.growth_is_garbage else growth


def _over(growth: Growth) -> str:
    return format_count(growth.steps, growth.rounds.unit)


def _of_growth(
    kind: str,
    case: Case,
    growth: Growth,
    message: str,
    advice: tuple[Note, ...],
    remedy: Remedy,
) -> Verdict:
    unit = growth.rounds.unit
    notes: list[Note] = []
    for one in growth.growers[:_TOLD]:
        text = f"{format_bytes(one.bytes)} in {format_count(one.count, 'block')}, "
        text += f"{format_bytes(one.bytes_per_step)} more each {unit}, by"
        notes.append(Note(text, one.place))
        if one.callers:
            notes.append(Note("called by", one.callers[0]))
        notes += [note for note in _held_by(case, one.place) if note not in notes]
    frees, nbytes = growth.addresses, growth.bytes
    return _kept(kind, case, frees, nbytes, tuple(notes), advice, message, remedy)


def _models(case: Case, place: Place) -> Note:
    """To let go of models that a line makes: where they are held, if that is known."""
    text, chain = "let go of the models, their gradients and optimizers", case.holder_of(place)
    return Note(f"{text}, in {chain}") if chain else Note(f"{text}, that are made here:", place)


_HELD_BY = "held by "


def _held_by(case: Case, place: Place) -> tuple[Note, ...]:
    """Who held the blocks of a line, where the process was asked."""
    chain = case.holder_of(place)
    return (Note(f"{_HELD_BY}{chain}"),) if chain else ()


def _let_go(case: Case, place: Place, of_modules: bool, chain: str) -> Note:
    """What to do with what is kept: by its holder, which is where to edit, where it is known; else
    by the line that makes it. Activations of a program that trains hang on a graph."""
    text = "drop what is no longer needed, move it to the CPU, or keep it in a smaller dtype"
    trains = case.timeline.passes.backward or case.phase.name == "forward"
    has_graph = of_modules and trains
    if "autograd graph" in chain or (not chain and has_graph):
        text = (
            "keep no graph from step to step: detach() what is kept or handed on, keep numbers "
            "(loss.item()), or run what no backward pass goes through under torch.no_grad()"
        )
    kept, inside, _ = chain.rsplit(" → ", 1)[-1].partition("._")
    if place.package and inside and "[…]" not in kept:
        # Inside of a library's object nothing is the program's to drop; a list of such objects is.
        text = f"bound what {place.package} keeps by an option of the object, or make it anew, or"
        return Note(f"{text} clear it, in {chain}")
    return Note(f"{text} in {chain}") if chain else Note(f"{text}:", place)


# What a chain of holders says where an exception keeps the frames that it came through.
_OF_AN_EXCEPTION = ("traceback", "__context__", "__cause__")
_OF_AN_OPTIMIZER = ".param_groups"

_ON_EXCEPTIONS = "keep str(error), not the exception: its traceback keeps frames and their tensors"

_ON_GRADIENTS = (
    "where one step sums the gradients of several backward passes, pass create_graph=True to the "
    "last alone; else set every parameter's .grad to None as soon as it has been used "
    "(model.zero_grad(), behind optimizer.step() where there is one), or take "
    "torch.autograd.grad(..., create_graph=True) in place of backward() and put nothing into .grad"
)

_ON_LOADED = (
    "load on the CPU (map_location='cpu'), and drop what was loaded once it is copied: it is there "
    "beside what it is copied into"
)

_ON_COPIES = (
    "copy less: copy.deepcopy() takes all that the object holds, what earlier copies put there (a "
    "list, an attribute, a hook, a cache) too: drop or bound that before it is copied"
)

# A part of a chain of holders that tells what to edit, and the edit; the first that matches.
_HOLDERS = (
    (
        re.compile(AUTOCAST),
        "enter torch.autocast() for each call, not around the loop, or pass cache_enabled=False: "
        "until its outermost block ends it keeps its copy of each leaf that needs gradients, and "
        "the leaf",
    ),
    (re.compile("|".join(_OF_AN_EXCEPTION)), _ON_EXCEPTIONS),
    (re.compile(r"\.grad → autograd graph"), _ON_GRADIENTS),
    (
        re.compile(rf"\({SLICES} of"),
        "clone() what is kept, where it is put there: a slice keeps the whole tensor that it is of",
    ),
    (
        re.compile(r"\._(forward|forward_pre|backward)_hooks"),
        "remove each hook when it has done its work: keep the handle that register_forward_hook() "
        "returns, and call its remove(); or keep less in it",
    ),
    (
        re.compile(r"\._?queue(\[|$)"),
        "bound the queue, as by queue.Queue(maxsize=4): what fills it runs ahead of what empties "
        "it",
    ),
    (
        re.compile(r"\._result\b"),
        "submit a few calls at a time, or leave results on the CPU until they are used: finished "
        "futures keep theirs (Executor.map() submits all at once)",
    ),
    (
        re.compile(r"\(lru_cache\)"),
        "bound the cache, as by functools.lru_cache(maxsize=4), or do without it: it keeps one "
        "result for each different argument",
    ),
    (
        re.compile(rf"^{UNSEEN} → method "),
        "unregister the callback when it has done its work (atexit.unregister(), say), or let its "
        "object drop its tensors: what it is registered with keeps the object",
    ),
    (
        re.compile(r"\.lora_[A-Z]\w*\."),
        "delete each adapter where it goes out of use, model.delete_adapter(name) (in diffusers "
        "delete_adapters(name)): the layers keep every one that was added",
    ),
    (
        re.compile(r"^frame GenerationMixin\.[^→]* → (scores|raw_logits|\w+_(attentions|states))"),
        "call generate() without output_scores, output_logits, output_attentions and "
        "output_hidden_states: it keeps these of every token; one forward pass on what was "
        "generated, or on the prompt, has them for what is needed",
    ),
    (
        re.compile(rf" {LINKED}$"),
        "set that reference to None once nothing behind it is read again: the objects there refer "
        "to each other, and the first keeps the memory of all",
    ),
    (
        re.compile(r"^frame deepcopy "),
        _ON_COPIES,
    ),
    (
        re.compile(r"^frame (Unpickler\.load|_?load|_load_\w+) "),
        _ON_LOADED,
    ),
    (
        # Of the one optimizer that a function or its object has: not of each of many objects.
        re.compile(r"^frame [^→]* → (self → )?[\w.]+\.state → key"),
        "take what was replaced out of the optimizer (its param_groups and its state), or make a "
        "new optimizer: it keeps every parameter that it was given, with gradient and state",
    ),
)


def _release(
    case: Case, places: Sequence[Place], of_modules: bool
) -> tuple[tuple[Note, ...], Remedy]:
    """How to let go of what some lines make, the first most of it, by what holds it."""
    told, held = _of_holders(case, places[:_TOLD])
    advice = told or (_let_go(case, places[0], of_modules, held),)
    return advice, Remedy("release", place=places[0])


def _of_holders(case: Case, places: Sequence[Place]) -> tuple[tuple[Note, ...], str]:
    """What the first holder tells that tells what to edit, of those of some lines; and what their
    holders share."""
    chains = [case.holder_of(place) for place in places]
    return next(filter(None, map(_by_holder, chains)), ()), _common(chains)


def _by_holder(held: str) -> tuple[Note, ...]:
    """What to do where the holder alone tells it."""
    text = next((edit for pattern, edit in _HOLDERS if pattern.search(held)), "")
    return (Note(f"{text}; held by {held}"),) if text else ()


def _call_of_modules(stack: Sequence[Frame]) -> Place | None:
    """The program's own line outside of all modules that called the outermost of them."""
    return _call_outside(stack, _is_a_call)


def _call_outside(stack: Sequence[Frame], is_inside: Callable[[Frame], bool]) -> Place | None:
    """The program's own line that called the outermost of some frames."""
    inside = [at for at, frame in enumerate(stack) if is_inside(frame)]
    outside = stack[inside[-1] + 1 :] if inside else ()
    return next((place_of((frame,)) for frame in outside if is_own(frame)), None)


_ON_WORKSPACES = (
    "make one stream for each thread, once, and keep it: cuBLAS keeps a workspace (up to 32 MiB) "
    "for each thread and stream that it ran on; CUBLAS_WORKSPACE_CONFIG=:16:8 makes them small"
)


def _are_workspaces(case: Case, place: Place) -> bool:
    """Whether most bytes of a line are in workspaces of cuBLAS or cuDNN, in many of them, which no
    name of the program leads to: tensors may be as large."""
    if case.holder_of(place):
        return False
    (sizes,), own = case.columns("size"), case.rows_at(place)
    spaces = [row for row in own if case.timeline.categories.rule(row)[0] == "workspace"]
    held, whole = (sum(sizes[row] for row in rows) for rows in (spaces, own))
    return len(spaces) >= FEWEST and 2 * held > whole


_PARTS_OF_A_CHAIN = re.compile(r"(?= → |(?<! )\.|\[)")


def _common(chains: Sequence[str]) -> str:
    """The part in which several chains of holders begin alike, behind the frame; of chains that
    begin otherwise the first."""
    known = [_PARTS_OF_A_CHAIN.split(one) for one in chains if one]
    alike = takewhile(lambda parts: len(set(parts)) == 1, zip(*known, strict=False))
    shared = "".join(parts[0] for parts in alike).removesuffix(" →")
    return shared if " → " in shared else next(filter(None, chains), "")


def _leak_advice(case: Case, growth: Growth) -> tuple[tuple[Note, ...], Remedy]:
    large = [one.place for one in growth.growers if one.bytes >= _TOLD_SHARE * growth.bytes]
    notes, held = _of_holders(case, large)
    known = next(filter(None, (_of_library(case, one.stack) for one in growth.growers)), "")
    if not notes and known:
        notes = (Note(f"{known}; held by {held}" if held else known),)
    if _are_workspaces(case, growth.growers[0].place):
        notes = (Note(_ON_WORKSPACES),)
    if notes:
        return notes, Remedy("release", place=growth.growers[0].place)
    if growth.create_graph is not None:
        notes = (
            Note(
                "the graph of a backward pass is kept, as by backward(create_graph=True), which "
                "makes parameter and gradient keep each other alive:",
                growth.create_graph,
            ),
            Note(_ON_GRADIENTS),
        )
        return notes, Remedy("release", place=growth.create_graph)
    grower = growth.growers[0]
    first = grower.place
    of_modules = sum(one.bytes for one in growth.growers if one.in_module)
    has_graph = "autograd graph" in held or (not held and case.facts.grad_enabled is not False)
    if growth.rounds.is_after_training and has_graph and 2 * of_modules > growth.bytes:
        notes = (
            Note(
                "run it under torch.no_grad(): after the training its graphs are kept:",
                _call_of_modules(grower.stack) or first,
            ),
            Note("or keep numbers, not tensors with their graph (loss.item(), x.detach())"),
        )
        return notes, Remedy("no_grad", place=first, callers=grower.callers)
    if growth.falls:
        times = format_count(growth.falls, "time")
        notes = (
            Note("reduce each to what is needed as it comes, or move it to the CPU:", first),
            Note(f"it was let go of {times} before, after less of it"),
        )
        return notes, Remedy("release", place=first, callers=grower.callers)
    builder = next((one for one in growth.growers[:_TOLD] if one.builds), None)
    if builder is not None and case.said_of(builder.place).startswith(GARBAGE):
        kept = "parameter and gradient keep each other, and no collection frees them"
        notes = (Note(_ON_GRADIENTS), Note(f"{kept}: neutracer.find_autograd_cycles() names them"))
    elif builder is not None:
        notes = (
            _models(case, builder.place),
            Note("neutracer.why_alive(parameter) and find_autograd_cycles() say what keeps them"),
        )
    else:
        notes = (_let_go(case, first, 2 * of_modules > growth.bytes, held),)
    return notes, Remedy("release", place=first, callers=grower.callers)


# ---- Parts -------------------------------------------------------------------------------

# So many forward passes that wait for one backward pass are parts of a sum; two may be two views
# of one sample, of which no loss stands alone.
_FEWEST_PARTS = 3

# A loss is one number: of eight bytes at most, in the smallest block there is.
_ONE_NUMBER = 512


@dataclass(frozen=True)
class Parts:
    """The forward passes of a step that wait for one backward pass."""

    place: Place  # The line of the loop that runs them.
    callers: tuple[Place, ...]  # The lines that called it, innermost first.
    count: int
    losses: frozenset[int]  # The stacks that make the losses of all but the last.


def parts_of(case: Case) -> Parts | None:
    """The parts of the failing step, where each has a loss of its own and what modules made for
    all of them is kept: a loop of the program that calls modules."""
    if case.failure.event is None or case.phase.name not in ("forward", "backward"):
        return None
    timeline, begins = case.timeline, case.rounds.begins if case.rounds else (0,)
    begin = max(begins[-1], *(end for _, end in timeline.passes.backward if end <= case.at), 0)
    made, stacks, sizes = case.columns("alloc_event", "stack", "size")
    held: defaultdict[int, list[int]] = defaultdict(list)
    for row in case.live_rows:
        if made[row] >= begin and timeline.passes.role[made[row]] == Role.MODULE:
            held[stacks[row]].append(row)
    most = max(held.values(), key=lambda rows: sum(sizes[row] for row in rows), default=[])
    losses = []
    common: Sequence[Frame] = case.snap.stacks[stacks[most[0]]][::-1] if most else ()
    for row, following in pairwise(most):
        numbers = [stacks[one] for one in range(row + 1, following) if _has_loss(case, one)]
        if numbers:
            losses.append(numbers[-1])
            common = _shared(common, case.snap.stacks[numbers[-1]][::-1])
    if len(losses) + 1 < _FEWEST_PARTS or not common or not is_own(common[-1]):
        return None
    loop = common[::-1]
    return Parts(place_of(loop), callers_of(loop), len(losses) + 1, frozenset(losses))


def _has_loss(case: Case, row: int) -> bool:
    """Whether an allocation may be a loss: one number, made outside of all modules but losses."""
    size, stack = (column[row] for column in case.columns("size", "stack"))
    if stack == NONE or size > _ONE_NUMBER:
        return False
    frames = case.snap.stacks[stack]
    paths = (frame.filename.replace("\\", "/") for frame in frames)
    return not any(map(_is_a_call, frames)) or any(
        path.endswith("/torch/nn/modules/loss.py") for path in paths
    )


def _shared(one: Sequence[Frame], other: Sequence[Frame]) -> Sequence[Frame]:
    """The frames that two stacks, outermost first, begin with alike, outside of all modules; the
    last one may be at two lines of one function, of which it is the second."""
    shared: list[Frame] = []
    for left, right in zip(one, other, strict=False):
        if _is_a_call(left) or (left.filename, left.name) != (right.filename, right.name):
            break
        shared.append(right)
        if left != right:
            break
    return shared


def _is_a_call(frame: Frame) -> bool:
    return frame.name in ("_call_impl", "_wrapped_call_impl")


def _in_parts(case: Case, trials: Trials) -> tuple[tuple[Note, ...], Remedy | None]:
    """To run each part of a step backward before the next one, where the replay goes on then."""
    parts = parts_of(case)
    if parts is None:
        return (), None
    if trials.works and not trials.in_parts(parts.losses):
        return (), None
    text = (
        "call backward() on the loss of each part in the loop, not on the sum of all: the "
        f"gradients add up alike, and {parts.count} parts of this step are kept for one backward "
        "pass:"
    )
    notes = (
        Note(text, parts.place),
        Note("where the parts are of one long sequence, cut it (truncated backpropagation)"),
    )
    return notes, Remedy("release", place=parts.place, callers=parts.callers)


# ---- Capacity ----------------------------------------------------------------------------

# A category with less than this share of what is in use is not told.
_TOLD_SHARE = 0.1

# What no step before did has this share of what the failing step holds, at least.
_NEW_SHARE = 0.5

# What is held twice after loading makes up this share of what is in use, at least.
_TWICE_SHARE = 0.2

# Lines that are compared with each other for what is held twice.
_MOST_LINES = 256

# What to do about what holds most, and as what action.
_BY_CATEGORY = {
    "activation": (
        "keep fewer activations: a smaller batch, or torch.utils.checkpoint",
        "smaller_step",
    ),
    "optimizer_state": (
        "shard the optimizer's state (FSDP, ZeRO), or keep it in 8 bits",
        "shard_state",
    ),
    "parameter": ("load the weights in a smaller dtype, or shard them over devices", "shard"),
    "gradient": (
        "free gradients early: optimizer.zero_grad(set_to_none=True) before the forward",
        "shard",
    ),
    "input": ("move one batch at a time to the device", "smaller_step"),
    "temporary": (
        "do in place, or in pieces, the operations that make large temporaries",
        "smaller_step",
    ),
}


# Gradients of more than so many times the bytes of all parameters are not one for each: that has
# as many elements, of four bytes for two at the most.
_ONE_EACH = 2

_SHARDED = (Role.GATHER, Role.REDUCE)

# What a model that is trained holds, of which nothing is to be made elsewhere.
_OF_A_MODEL = ("parameter", "gradient", "optimizer_state")

_ON_FIRST = (
    "keep fewer activations: half the batch to begin with, as no step has ended that shows how "
    "much fits; or torch.utils.checkpoint"
)

_OF_EACH_SAMPLE = (
    "this is more than one gradient for each parameter: of each sample, or of each output. Fewer "
    "at a time: a smaller batch, or chunk_size= of torch.func.vmap and jacrev"
)


def too_large_a_step(case: Case, trials: Trials) -> Verdict | None:
    """The step that failed needs more than any before it, and more than there is."""
    demand = case.demand
    if demand is None or not demand.steps or not (demand.is_larger or demand.rise):
        return None
    times = demand.expected / max(demand.largest, 1)
    needs, most = format_bytes(demand.expected), format_bytes(demand.largest)
    share = _Share.of(case, trials)
    message = f"this {demand.unit} needs about {needs}, {times:.1f} times the largest before it"
    if demand.rise and not demand.is_larger:
        message = (
            f"each {demand.unit} needs more than the one before: {format_bytes(demand.rise)} more "
            f"each time, {needs} by now"
        )
    evidence = [
        Note(
            f"{format_bytes(demand.floor)} were in use when it began; the largest of "
            f"{demand.steps} before it needed {most} more, the median "
            f"{format_bytes(demand.typical)}."
        ),
        Note("An estimate, by what those before it needed at the same point and after it."),
    ]
    in_parts, remedy = _in_parts(case, trials)
    bound = Note(
        f"bound what varies from {demand.unit} to {demand.unit} (tokens, nodes or pixels of a "
        f"batch, padding included), not just the batch: {share.text}",
        case.place,
    )
    in_place = _in_place(case)
    advice = (
        *_of_request(case),
        *_without_graph(case),
        *in_parts,
        *((bound, *in_place) if share.finishes else (*in_place, bound)),
        Note("sort by length, cut what is longest, or split the batch (accumulate)"),
        *_other_ways(trials),
    )
    remedy = remedy or Remedy("smaller_step", value=share.value)
    missing = max(demand.floor + demand.expected - case.usable, case.failure.size)
    return Verdict(
        "capacity",
        missing,
        tuple(evidence),
        advice,
        message,
        True,
        remedy,
        finishes=share.finishes,
    )


@dataclass(frozen=True)
class _New:
    place: Place
    bytes: int
    in_module: bool
    callers: tuple[Place, ...]
    stack: tuple[Frame, ...]


def new_holder(case: Case, trials: Trials) -> Verdict | None:
    """What the failing step holds at lines that no step before it ran."""
    demand, found = case.demand, _new_holders(case)
    if demand is None or not found:
        return None
    total = sum(one.bytes for one in found)
    if total < max(_NEW_SHARE * demand.so_far, least_worth(case.failure.size)):
        return None
    first = found[0]
    message = f"{format_bytes(total)} was requested by lines that no earlier {demand.unit} had run"
    evidence = tuple(Note(f"{format_bytes(one.bytes)} by", one.place) for one in found[:3])
    advice: tuple[Note, ...]
    chain, of_graph = case.holder_of(first.place), _of_a_running_pass(case, found, total)
    if of_graph is not None:
        caller = _call_of_modules(of_graph.stack) or of_graph.place
        advice = (
            Note("run it under torch.no_grad(), if no gradients are needed of it:", caller),
            Note("else a smaller batch there:", of_graph.place),
        )
        remedy = Remedy("no_grad", place=of_graph.place, callers=of_graph.callers)
    elif chain:
        advice = (
            *(_by_holder(chain) or (_let_go(case, first.place, False, chain),)),
            Note("or a smaller batch there"),
        )
        remedy = Remedy("release", place=first.place, callers=first.callers)
    elif call := _new_call(case, [one for one in found if one.bytes >= _TOLD_SHARE * total]):
        advice = (Note("call it on a part of its input at a time, or on a smaller batch:", call),)
        remedy = Remedy("smaller_step", place=call)
    elif first.in_module:
        advice = (Note("a smaller batch there than in the steps before:", first.place),)
        remedy = Remedy("smaller_step", value=_Share.of(case, trials).value)
    else:
        advice = (Note("make it on the CPU, or drop it before the next step:", first.place),)
        remedy = Remedy("release", place=first.place, callers=first.callers)
    advice = (*_of_request(case), *_in_place(case), *advice)
    return Verdict("capacity", total, evidence, advice, message, True, remedy)


def _of_a_running_pass(case: Case, found: Sequence[_New], total: int) -> _New | None:
    """The line that holds most of what modules made, where that is most of it and hangs on the
    graph of the pass that is running, which nobody keeps."""
    of_modules = [one for one in found if one.in_module]
    if case.phase.name != "forward" or 2 * sum(one.bytes for one in of_modules) < total:
        return None
    chain = case.holder_of(of_modules[0].place)
    return of_modules[0] if not chain or "autograd graph" in chain else None


def _new_call(case: Case, holders: Sequence[_New]) -> Place | None:
    """The line that is calling all that made them, and the request, and that no step before the
    failing one ran."""
    rounds = case.rounds
    if rounds is None or not case.stack:
        return None
    stacks = [case.stack[::-1], *(one.stack[::-1] for one in holders)]
    alike = takewhile(lambda frames: len(set(frames)) == 1, zip(*stacks, strict=False))
    shared = [frames[0] for frames in alike]
    own = [frame for frame in shared if is_own(frame)]
    if len(shared) == min(map(len, stacks)):
        # The line itself makes it, and calls nothing.
        return None
    made, codes = case.columns("alloc_event", "stack")
    earlier = set(codes[: bisect_left(made, rounds.begins[-1])]) - {NONE}
    if not own or any(own[-1] in case.snap.stacks[code] for code in earlier):
        return None
    return place_of((own[-1],))


# A tensor in the words of the facts: its name, its shape and its dtype.
_TENSOR = re.compile(r"(\w[^:]*): \(([\d, ]*)\) (\w+)")
_WIDTHS = {"float64": 8, "int64": 8, "float32": 4, "int32": 4, "float16": 2, "bfloat16": 2}

_WIDEST = max(_WIDTHS.values())

# Two tensors that broadcast to so many times what the larger one has are seldom meant to.
_BROADCAST = 16

# The allocator rounds requests up to this.
_ROUNDED = 512

# The product of round sizes is often a square; with an odd factor above this it is not by chance.
_ROUND_FACTORS = 255


def _broadcast(case: Case) -> tuple[Note, ...]:
    """Two tensors of the function that asked which, broadcast, are as large as the request, where
    that is large; else a request for a square."""
    if case.failure.size < LEAST_CURE * case.usable:
        return ()
    # Without an event the request is known as the segment that it asked for.
    rounded = UNIT if case.failure.event is None else _ROUNDED
    tensors = _frame_tensors(case)
    for (one, left, dtype), (other, right, dtype_too) in combinations(tensors, 2):
        both = _broadcast_shape(left, right)
        size = prod(both) * max(_WIDTHS[dtype], _WIDTHS[dtype_too])
        if prod(both) < _BROADCAST * max(prod(left), prod(right), 1):
            continue
        if size <= case.failure.size < size + rounded:
            text = (
                f"{one} {left} and {other} {right} broadcast to {both}: squeeze() or unsqueeze() "
            )
            return (Note(f"{text}one of them, if that is not meant"),)
    for name, shape, dtype in tensors:
        size = prod(shape) * _WIDTHS[dtype]
        if shape[-1:] == (1,):
            continue
        pairs = [
            side for side in shape[:-1] if size * side <= case.failure.size < size * side + rounded
        ]
        if pairs and pairs[0] >= _BROADCAST:
            return (
                Note(
                    f"it makes all {pairs[0]} x {pairs[0]} pairs of {name} {shape}: {_ON_PAIRS}",
                    case.place,
                ),
            )
    return _square(case)


_ON_PAIRS = (
    "take torch.cdist() for distances, matmul() for products, or pieces of it in a loop (under "
    "torch.utils.checkpoint where it is trained): then no tensor has them all:"
)

# Of a piece a function makes as much as this once more: operand, result and what they become.
_OF_A_PIECE = 4
_MOST_PIECES = 64

# A request of a smaller part of what there is hardly is what a function works on.
_LARGE_PART = 0.2


def _in_place(case: Case) -> tuple[Note, ...]:
    """To work in pieces, or over what a result is made from, where the request is as large as an
    operand of the program's own line that no graph needs."""
    size = case.failure.size
    is_own_line = bool(case.stack) and is_own(case.stack[0]) and not _call_of_modules(case.stack)
    if not case.has_trace or not is_own_line or size < _LARGE_PART * case.usable:
        return ()
    (sizes,) = case.columns("size")
    if any(sizes[row] == size for row in _rows_of(case, "activation")):
        return ()
    left = max(case.room.own_free + case.room.budget.headroom, 1)
    pieces = min(1 << max((_OF_A_PIECE * size // left).bit_length(), 1), _MOST_PIECES)
    text = (
        f"do it in {pieces} pieces, each reduced to what is needed of it before the next, or write "
        "the result over it (mul_(), div_(), out=)"
    )
    held = next((one.bytes for one in case.holdings if one.place == case.place), 0)
    passing = case.said_of(case.place).startswith(IN_USE)
    if passing and 2 * held >= size:
        return (Note(f"the line makes it from another that is as large: {text}:", case.place),)
    for name, shape, dtype in _frame_tensors(case):
        if size - _ROUNDED < prod(shape) * _WIDTHS[dtype] <= size:
            wide = ", or take a smaller dtype for both" if _WIDTHS[dtype] == _WIDEST else ""
            return (Note(f"it is as large as {name} {shape} {dtype}: {text}{wide}:", case.place),)
    return ()


def _frame_tensors(case: Case) -> list[tuple[str, tuple[int, ...], str]]:
    """Name, shape and dtype of the tensors of the function that asked, of known widths."""
    found = [match.groups() for match in map(_TENSOR.fullmatch, case.facts.tensors) if match]
    return [
        (name, tuple(map(int, shape.replace(",", " ").split())), dtype)
        for name, shape, dtype in found
        if dtype in _WIDTHS
    ]


def _square(case: Case) -> tuple[Note, ...]:
    """A request for as many elements as a square has, which is hardly by chance: where its side is
    odd, or the length of a vector of the function that asked."""
    size = case.failure.size
    side = isqrt(size // 4)
    odd = side // (side & -side) if side else 0
    shapes = [shape for _, shape, _ in _frame_tensors(case)]
    is_length = any(prod(shape) == max(shape, default=0) == side for shape in shapes)
    is_by_chance = odd <= _ROUND_FACTORS and not is_length
    if size - 4 * side * side >= _ROUNDED or is_by_chance:
        return ()
    number = format_count(side)
    text = (
        f"it requests {number} x {number} elements of float32, all pairs: squeeze() one operand if "
        "(n, 1) and (n,) broadcast there by mistake, else do it in pieces"
    )
    return (Note(f"{text}:", case.place) if case.stack else Note(text),)


def _broadcast_shape(left: tuple[int, ...], right: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of two tensors together; () where they don't go together."""
    pairs = [*zip_longest(left[::-1], right[::-1], fillvalue=1)]
    if any(1 not in pair and pair[0] != pair[1] for pair in pairs):
        return ()
    return tuple(max(pair) for pair in reversed(pairs))


def _new_holders(case: Case) -> list[_New]:
    """Lines of which no step before the failing one has an allocation, the most bytes first."""
    rounds = case.rounds
    if rounds is None or case.failure.event is None:
        return []
    begin = rounds.begins[-1]
    sizes, made, of_row = case.columns("size", "alloc_event", "stack")
    seen = {stack for stack, event in zip(of_row, made, strict=True) if event < begin}
    held: Counter[int] = Counter()
    for row in case.live_rows:
        if made[row] >= begin:
            held[of_row[row]] += sizes[row]
    stacks = case.timeline.events.codes("stack")
    held[stacks[case.failure.event]] += case.failure.size
    found = []
    for stack, nbytes in held.most_common():
        if stack not in seen and stack != NONE:
            frames = case.snap.stacks[stack]
            in_module = role_of(frames) is Role.MODULE
            found.append(_New(place_of(frames), nbytes, in_module, callers_of(frames), frames))
    return found


def _other_ways(trials: Trials) -> tuple[Note, ...]:
    """Ways to need less without a smaller step: those that pass, else the usual one."""
    tried = trials.savings() if trials.works and trials.rounds else []
    passing = [Note(f"or {one.change}: {how}") for how, one in tried if one.passes]
    if passing or any(one.change.startswith("activation checkpointing") for _, one in tried):
        return tuple(passing)
    return (Note("torch.utils.checkpoint keeps fewer activations of it"),)


# Of fewer layers of one class than these the others of the model may need as much.
_FEWEST_LAYERS = 4


@dataclass(frozen=True)
class _Share:
    """The part of a step's size that fits."""

    value: float | None  # The part; None: not known.
    text: str
    finishes: bool | None = None

    @classmethod
    def of(cls, case: Case, trials: Trials) -> _Share:
        """By replay; without one by what has fitted before, which is no promise of more."""
        found = trials.share_that_passes() if trials.works else None
        if found is not None and found[1].rounds_tried and case.rounds is not None:
            rounds = format_count(found[1].rounds, f"more {case.rounds.unit}")
            part = format_share(found[0], decimals=0)
            return cls(
                found[0], f"with {part} of its size it fits, and so do {rounds} (replayed)", True
            )
        demand, fails = case.demand, trials.works and found is None
        if demand is not None and demand.steps and demand.largest < demand.expected:
            # A replay in which no share fits has stretched this one by an estimate.
            proved = round(demand.largest / demand.expected, 3)
            text = f"{format_share(proved, decimals=0)} of this one has fitted"
            return cls(proved, text, False if fails else None)
        if fails:
            return cls(None, "no size of it fits (replayed)", False)
        return cls._by_layers(case)

    @classmethod
    def _by_layers(cls, case: Case) -> _Share:
        """By how many of its layers have begun, where no step has ended: an estimate that leaves a
        sixteenth of the memory to what comes after them."""
        facts, kept = case.facts, case.categories.get("activation", 0)
        begun, count = facts.layers_begun or 0, facts.layers_count or 0
        if case.phase.name == "forward" and min(kept, begun) > 0 and count >= _FEWEST_LAYERS:
            # Of the layer that has begun a half.
            needs = kept * count / (begun - 0.5)
            left = case.usable * (1 - 1 / PARTS) - (case.room.allocated - kept)
            part = int(PARTS * left / needs) / PARTS
            if 0 < part < 1:
                text = (
                    f"{format_share(part, decimals=0)} of its size should fit: it was in layer "
                    f"{begun} of {count} ({facts.layers}), and all of them would keep about "
                    f"{format_bytes(round(needs))}"
                )
                return cls(part, text)
        return cls(None, "how much of it fits is not known: no step has ended")


def _first_update(case: Case) -> tuple[int, int] | None:
    """Where the first step of an optimizer, in which it failed, makes the first of its state, and
    how many bytes of that are there; None: it failed elsewhere."""
    timeline = case.timeline
    if not case.has_trace or role_of(case.stack) not in (Role.STATE, Role.OPTIMIZER):
        return None
    role, (sizes, made) = timeline.passes.role, case.columns("size", "alloc_event")
    makes = [row for row in case.live_rows if made[row] >= 0 and role[made[row]] == Role.STATE]
    first = min((made[row] for row in makes), default=case.at)
    # The state of a second optimizer, or of parameters added later, follows other steps.
    before = {role[at] for at in made if 0 <= at < first}
    passes_since = any(begin > first for begin, _ in timeline.passes.backward)
    if passes_since or before & {Role.OPTIMIZER, Role.STATE}:
        return None
    return first, sum(sizes[row] for row in makes)


def first_state(case: Case) -> Verdict | None:
    """The first step of an optimizer makes its state, which stays: no round before had it.

    What it lacks may be room for its own temporaries alone: where what was in use at most before it
    leaves room for the state, the state is not the cause.
    """
    update = _first_update(case)
    if update is None:
        return None
    first, state = update
    most = max(case.timeline.allocated[:first], default=0)
    is_temporary = role_of(case.stack) is Role.OPTIMIZER and most + state <= case.usable
    if is_temporary or state < least_worth(case.failure.size):
        return None
    size = format_bytes(state)
    message = f"the first optimizer step makes its state: {size} so far, and no room for the rest"
    evidence = [Note(f"{size} of state are there, and none was before this step:", case.place)]
    parameters = case.categories.get("parameter", 0)
    if parameters:
        evidence.append(Note(f"Parameters take {format_bytes(parameters)}."))
    twice = _held_twice(case)
    if twice is not None:
        text = f"{format_bytes(twice.bytes)} of them are there twice, by"
        evidence += [Note(text, twice.places[0]), Note("and by", twice.places[1])]
    less = "take an optimizer with less state (SGD, Adafactor, 8 bits), or shard it (FSDP, ZeRO)"
    advice = (
        *((_free_a_copy(case, twice),) if twice else ()),
        Note(f"or {less}" if twice else less),
        *_sparse(case),
        Note("gradients and state stay from here on: what a step needs comes on top of them"),
    )
    remedy = Remedy("shard_state", place=case.place)
    return Verdict("capacity", state, tuple(evidence), advice, message, True, remedy)


# So few parameters that have most of the bytes are tables rather than layers.
_TABLES = 4
_OF_TABLES = 0.8


def _sparse(case: Case) -> tuple[Note, ...]:
    """To make gradients of the rows that a batch looks up, where few parameters have most bytes."""
    (sizes,) = case.columns("size")
    parameters = sorted((sizes[row] for row in _rows_of(case, "parameter")), reverse=True)
    most = sum(parameters[:_TABLES])
    if most < _OF_TABLES * sum(parameters) or not most:
        return ()
    text = (
        f"or, if the largest parameters ({format_bytes(most)}) are tables: "
        "nn.Embedding(sparse=True) and torch.optim.SparseAdam for them, which make no gradient of "
        "rows that a batch does not look up"
    )
    return (Note(text),)


def too_little(case: Case, trials: Trials) -> Verdict:
    """What the program needs is more than there is."""
    room, budget, size = case.room, case.room.budget, case.failure.size
    could = room.own_free + budget.headroom
    missing = max(size - could, 0) or size
    twice = _held_twice(case)
    evidence, advice, remedy = _by_category(case, trials)
    if twice is not None:
        place = twice.places[0]
        evidence.insert(1, Note(f"{format_bytes(twice.bytes)} is held twice, by", place))
        advice.insert(0, Note("load on the CPU, or free this copy first:", place))
        remedy = Remedy("release", place=place)
    total = f" of {format_bytes(budget.total)}" if budget.total else ""
    message = f"the program needs at least {format_bytes(missing)} more than the device{total} has"
    if could >= size and case.is_first_step:
        message = f"the first step needs more than the device{total} has"
    elif could >= size and case.is_first_pass:
        message = f"the first pass needs more than the device{total} has"
    return Verdict("capacity", missing, tuple(evidence), tuple(advice), message, True, remedy)


_ON_METRICS = (
    "call reset() on the metric once its figures are read, where nothing does yet; else pass "
    "thresholds= where it has them, or compute_on_cpu=True: it keeps all that it was given"
)
_ON_UNREAD_METRICS = (
    "pass thresholds= (200, say) to the metric where it has them, else compute_on_cpu=True: until "
    "compute() it keeps all that it was given"
)
_ON_SOLVERS = (
    "call torchdiffeq.odeint_adjoint() in place of odeint(): it keeps no graph of the solver's "
    "steps, which the backward pass needs otherwise; or fewer of them, or a smaller batch"
)

_ON_CHUNKS = (
    "pass chunk_size= to the outermost torch.func.vmap, jacrev or jacfwd: each works on all "
    "samples, or rows of the Jacobian, at once, with intermediate results for each; less by as "
    "much as a chunk is smaller"
)

_ON_LBFGS = (
    "pass a smaller history_size= to torch.optim.LBFGS: it keeps two vectors as large as all "
    "parameters for each of the last history_size iterations (100 by default)"
)

# Lines of libraries that allocate what an argument sizes, or that keep what they get until they
# are told: a part of the file's path, of the function's name, and what to change. They are looked
# up for the failing request, for what is in use, and for what piled up.
_SIGNATURES = (
    (
        "/deepspeed/runtime/zero/",
        "setup_buckets",
        "set reduce_bucket_size (and allgather_bucket_size) of zero_optimization smaller: "
        "DeepSpeed allocates buckets of that many elements whatever the model's size",
    ),
    (
        "/torch/optim/",
        "_multi_tensor",
        "pass foreach=False (or fused=True) to the optimizer: its foreach kernels copy all "
        "gradients or updates at once",
    ),
    ("/torch/_functorch/", "jac", _ON_CHUNKS),
    ("/torch/_functorch/", "vmap", _ON_CHUNKS),
    (
        "/torch_geometric/nn/aggr/lstm.py",
        "forward",
        "cap the neighbours of a node (num_neighbors=, or a fanout, in evaluation too), or take "
        "aggr='mean': an LSTM aggregation pads the neighbours of all nodes to the largest number",
    ),
    (
        "/torchaudio/functional/functional.py",
        "_get_sinc_resample_kernel",
        "resample to a rate that has a large common divisor with the old one (16,000 for 16,003): "
        "the kernel has orig_freq / gcd times new_freq / gcd elements, whatever the batch",
    ),
    (
        "/torch/optim/lbfgs.py",
        "step",
        _ON_LBFGS,
    ),
    (
        "/torchmetrics/wrappers/tracker.py",
        "increment",
        "keep figures, not metrics: MetricTracker keeps a copy of the metric for each increment(). "
        "Take one metric that is reset() each time, or move the older ones to the CPU",
    ),
    ("/torchmetrics/metric.py", "wrapped_func", _ON_METRICS),
    (
        "/accelerate/accelerator.py",
        "prepare",
        "call accelerator.free_memory() when done with what it prepared: until then it keeps every "
        "model, optimizer and scheduler",
    ),
)

# The same of what is made anew, larger each time.
_SIGNATURES_OF_GROWTH = (
    (
        "/transformers/cache_utils.py",
        "update",
        "crop() the cache that is passed as past_key_values, or pass a copy, where the next prompt "
        "begins: the model extends it in place; in one prompt bound it (max_new_tokens, a window)",
    ),
    (
        "/transformers/trainer_pt_utils.py",
        "concat",
        "pass eval_accumulation_steps=1 to TrainingArguments, or preprocess_logits_for_metrics= "
        "(an argmax, say) to the Trainer: with compute_metrics= its evaluation keeps all outputs "
        "on the device",
    ),
)


def _signature(
    stack: Sequence[Frame], signatures: Sequence[tuple[str, str, str]] = _SIGNATURES
) -> str:
    """What to change for a stack of a library that has a signature; "" for others."""
    for frame in stack:
        path = "/" + owner_path(frame).replace("\\", "/")
        for part, name, advice in signatures:
            if part in path and name in frame.name:
                return advice
    return ""


def _of_library(case: Case, stack: Sequence[Frame]) -> str:
    """What to change for a stack of a library, by what the trace shows of it besides."""
    text = _signature(stack)
    if text == _ON_METRICS and not _is_read(case, stack):
        return _ON_UNREAD_METRICS
    if text == _ON_LBFGS:
        return f"{text}{_of_iterations(case)}"
    # All of a solver's steps wait for the first backward pass.
    waits = case.timeline is not None and not case.timeline.passes.backward
    return text or (_ON_SOLVERS if waits and _is_solver(stack) else "")


def _of_iterations(case: Case) -> str:
    """How many iterations LBFGS keeps, and half as many, which leaves room for a step's peak."""
    sizes, stacks = case.columns("size", "stack")
    in_use = {stacks[row] for row in case.live_rows} - {NONE}
    of_lbfgs = {code for code in in_use if _signature(case.snap.stacks[code]) == _ON_LBFGS}
    held = Counter(sizes[row] for row in case.live_rows if stacks[row] in of_lbfgs)
    vectors = held[max(held, key=lambda size: size * held[size])] if held else 0
    kept = vectors // 2
    return f"; it has {kept} by now, and history_size={kept // 2} keeps half" if kept > 1 else ""


def _is_solver(stack: Sequence[Frame]) -> bool:
    """Whether a solver that keeps the graph of all its steps is on a stack."""
    paths = [owner_path(frame).replace("\\", "/") for frame in stack]
    keeps = any("torchdiffeq/_impl/odeint.py" in path for path in paths)
    return keeps and not any("torchdiffeq/_impl/adjoint.py" in path for path in paths)


def _of_asking(case: Case) -> str:
    """What to change for the library that made the request; "" for others."""
    is_solver = case.phase.name == "forward" and _is_solver(case.stack)
    return _of_library(case, case.stack) or (_ON_SOLVERS if is_solver else "")


def _is_read(case: Case, stack: Sequence[Frame]) -> bool:
    """Whether a metric computes its figures since the oldest block in use that a stack made."""
    timeline, stacks = case.timeline, case.snap.stacks
    if timeline is None:
        return False
    made, by = map(timeline.allocations.codes, ("alloc_event", "stack"))
    own = (made[row] for row in case.live_rows if by[row] != NONE and stacks[by[row]] == stack)
    since = set(timeline.events.codes("stack")[max(next(own, 0), 0) :]) - {NONE}
    return any(
        frame.name == "compute" and "torchmetrics/" in owner_path(frame).replace("\\", "/")
        for code in since
        for frame in stacks[code]
    )


def _of_request(case: Case) -> tuple[Note, ...]:
    """What the request alone tells: the library that made it has a signature, or its size one."""
    text = _of_asking(case)
    return (*((_to_change(case, text),) if text else ()), *_broadcast(case))


def _to_change(case: Case, text: str) -> Note:
    """What to change for a library, at the program's own line where it takes the argument."""
    call = _call_outside(case.stack, _is_a_transform) if text == _ON_CHUNKS else None
    return Note(f"{text}:", call or case.place) if case.stack else Note(text)


def _is_a_transform(frame: Frame) -> bool:
    return "/torch/_functorch/" in frame.filename.replace("\\", "/")


def _signature_of_most(case: Case) -> str:
    """The same for stacks that hold more than half of what is in use."""
    frames, (stacks, sizes) = case.snap.stacks, case.columns("stack", "size")
    by_stack: Counter[int] = Counter()
    for row in case.live_rows:
        by_stack[stacks[row]] += sizes[row]
    held: Counter[str] = Counter()
    for stack, nbytes in by_stack.items():
        held[_signature(frames[stack])] += nbytes
    return (
        max(held, key=held.__getitem__) if 2 * max(held.values(), default=0) > held.total() else ""
    )


def _by_category(case: Case, trials: Trials) -> tuple[list[Note], list[Note], Remedy | None]:
    room, budget = case.room, case.room.budget
    live, more = format_bytes(room.allocated), format_bytes(case.failure.size)
    evidence = [Note(f"{live} were in use, and {more} more were requested.")]
    if case.stack:
        evidence = [Note(f"{live} were in use, and {more} more were requested by", case.place)]
    advice: list[Note] = []
    remedy: Remedy | None = None
    known = sum(case.categories.values())
    shares = [
        (name, held)
        for name, held in case.categories.items()
        if name != "unknown" and held >= _TOLD_SHARE * known
    ]
    for name, held in shares[:2]:
        part = format_share(held / known)
        evidence.append(Note(f"{format_bytes(held)} ({part}) of it: {name.replace('_', ' ')}"))
        text, action = _BY_CATEGORY.get(name, ("", ""))
        if name == "activation" and (case.is_first_step or case.is_first_pass):
            text = _ON_FIRST
        if name == "gradient" and _has_several_each(case, held):
            text, action = _OF_EACH_SAMPLE, "smaller_step"
        if text:
            advice.append(Note(text))
            remedy = remedy or _remedy(case, trials, action)
    largest = _largest(case)
    if case.holdings:
        most = case.holdings[0]
        evidence.append(Note(f"most of it, {format_bytes(most.bytes)}, is held by", most.place))
        evidence += () if largest else _held_by(case, most.place)
    if budget.total is None and budget.device_free is not None:
        evidence.append(
            Note(f"PyTorch had {format_bytes(budget.reserved)} of the device, and "
                 f"{format_bytes(budget.device_free)} were free; the file does not say what others "
                 "had: give capacity= (--capacity), or see nvidia-smi.")
        )  # fmt: skip
    share = _Share.of(case, trials)
    smaller = []
    if share.value is not None and (share.finishes or not case.rounds):
        unit = "step" if case.rounds is None else case.rounds.unit
        smaller = [Note(f"make the {unit} smaller: {share.text}")]
    in_parts, of_parts = _in_parts(case, trials)
    remedy = of_parts or remedy
    advice = [
        *_broadcast(case), *_in_place(case), *in_parts,
        *_weights_again(case), *largest, *_without_graph(case), *smaller, *advice
    ]  # fmt: skip
    asking, of_most = _of_asking(case), _signature_of_most(case)
    if asking or of_most:
        advice.insert(0, _to_change(case, asking) if asking else Note(of_most))
        remedy = Remedy("configure", place=case.place)
    if not advice:
        advice.append(Note("keep less of it alive at a time: a smaller batch, fewer kept tensors"))
        remedy = _remedy(case, trials, "smaller_step")
    return evidence, advice, remedy


def _without_graph(case: Case) -> tuple[Note, ...]:
    """To switch autograd off in a program whose rounds end without a backward pass."""
    rounds = case.rounds
    if rounds is None or len(rounds.begins) < FEWEST:
        return ()
    if case.timeline.passes.backward or case.phase.name != "forward":
        return ()
    text = "run it under torch.inference_mode(), or no_grad(): its graph keeps activations, and"
    return (Note(f"{text} no {rounds.unit} has a backward pass"),)


def _largest(case: Case) -> tuple[Note, ...]:
    """What to do about the line that holds most of what is in use, where a variable does that is
    no part of a model's training."""
    most, chain = case.largest
    if most is None or not chain:
        return ()
    (stacks,), rows = case.columns("stack"), case.rows_at(most.place)
    if rows and any(
        "/torch/serialization.py" in frame.filename.replace("\\", "/")
        for frame in case.snap.stacks[stacks[rows[0]]]
    ):
        return (Note(f"{_ON_LOADED}:", most.place),)
    if "autograd graph" in chain or next(iter(case.categories), "") in _OF_A_MODEL:
        return ()
    share = format_share(most.share, decimals=0)
    less = "make it in pieces, in a smaller dtype, or on the CPU"
    if _CONTAINER.match(chain):
        less = (
            "keep less in it: drop what is not read again, work on fewer at a time, take a smaller "
            "dtype, or move what waits to the CPU"
        )
    return (Note(f"{share} of it is in {chain}: {less}"),)


def _has_several_each(case: Case, gradients: int) -> bool:
    """Whether gradients are more than one for each parameter: then the batch decides."""
    if any(role in case.timeline.passes.role for role in _SHARDED):
        # Of a sharded model a process has a part of the parameters, and for a while all gradients.
        return False
    parameters = case.categories.get("parameter", 0) + case.categories.get("unknown", 0)
    return 0 < _ONE_EACH * parameters < gradients


def _remedy(case: Case, trials: Trials, action: str) -> Remedy:
    if case.phase.name == "optimizer":
        # What a step kept for its backward pass is gone by then: a smaller one changes nothing.
        return Remedy("shard_state")
    if case.phase.name == "loading":
        return Remedy("shard")
    if action != "smaller_step":
        return Remedy(action)
    return Remedy(action, value=_Share.of(case, trials).value)


@dataclass(frozen=True)
class _Twice:
    """What is held twice: the lines of the two copies, the older first, and the bytes of each,
    which differ where the types of their elements do."""

    places: tuple[Place, Place]
    sizes: tuple[int, int]

    @property
    def bytes(self) -> int:
        """Of the smaller copy."""
        return min(self.sizes)


def _held_twice(case: Case) -> _Twice | None:
    """The largest whole copy of what another line holds, block by block: of a program that only
    loads no output of a module, which may well be as large as its input; of one that trains
    parameters, more of which are there than have gradients."""
    if case.phase.name not in ("loading", "unknown", "optimizer"):
        return None
    trains = bool(case.timeline.passes.backward)
    if trains != (case.phase.name == "optimizer"):
        return None
    sizes = _sizes_by_line(case, _compared_rows(case))
    least = LEAST_CURE * case.usable if trains else _TWICE_SHARE * case.room.allocated
    found = [
        _Twice((one, other), (both, int(both * times)))
        for one, other in combinations(list(sizes)[:_MOST_LINES], 2)
        for times in (1, 2, 0.5)
        if (both := _alike(sizes[one], sizes[other], times)) >= least
    ]
    best = max(found, key=lambda one: one.bytes, default=None)
    spare = case.categories.get("parameter", 0) - case.categories.get("gradient", 0)
    return None if best is None or (trains and 2 * spare < best.bytes) else best


def _alike(one: Counter[int], other: Counter[int], times: float) -> int:
    """The bytes of blocks of a line that another line has so many times as large."""
    return sum(size * min(count, other[int(size * times)]) for size, count in one.items())


def _weights_again(case: Case) -> tuple[Note, ...]:
    """What to do where a pass makes weights anew, of others or merged, and keeps them for its
    backward pass: activations of one line that are as large as parameters, block by block.

    The outputs of PyTorch's own layers may well be as large as their weights.
    """
    if case.phase.name not in ("forward", "backward"):
        return ()
    weights = sum(_sizes_by_line(case, _rows_of(case, "parameter")).values(), Counter[int]())
    (stacks,), frames = case.columns("stack"), case.snap.stacks
    made = [row for row in _rows_of(case, "activation") if stacks[row] != NONE]
    own = [row for row in made if not any(map(_is_a_layer, frames[stacks[row]][:1]))]
    copies = {
        place: both
        for place, sizes in _sizes_by_line(case, own).items()
        if (both := _alike(sizes, weights, 1)) >= LEAST_CURE * case.usable
        and 2 * both >= sum(size * count for size, count in sizes.items())
    }
    if not copies:
        return ()
    place = max(copies, key=copies.__getitem__)
    text = (
        "apply the parts of this weight to the input one after the other, or checkpoint the layer: "
        f"it makes {format_bytes(copies[place])} of blocks as large as the weights, whatever the "
        "batch:"
    )
    return (Note(text, place),)


def _is_a_layer(frame: Frame) -> bool:
    return "/torch/nn/modules/" in frame.filename.replace("\\", "/")


def _rows_of(case: Case, category: str) -> list[int]:
    """The allocations in use of one category."""
    codes, wanted = case.timeline.categories.codes, CATEGORIES.index(category)
    return [row for row in case.live_rows if codes[row] == wanted]


def _compared_rows(case: Case) -> list[int]:
    """The allocations in use that `_held_twice` compares."""
    if case.timeline.passes.backward:
        return _rows_of(case, "parameter")
    (stacks,) = case.columns("stack")
    codes = {stacks[row] for row in case.live_rows} - {NONE}
    roles = {code: role_of(case.snap.stacks[code]) for code in codes}
    return [row for row in case.live_rows if roles.get(stacks[row], Role.MODULE) is not Role.MODULE]


def _sizes_by_line(case: Case, rows: Iterable[int]) -> dict[Place, Counter[int]]:
    """By line, the sizes of some allocations as they were requested: the allocator's own have
    remainders. The line of the first row first."""
    stacks, blocks, asked = case.columns("stack", "size", "requested_size")
    rows = [row for row in rows if stacks[row] != NONE]
    found: dict[Place, Counter[int]] = {}
    for row in rows:
        place = case.timeline.places[stacks[row]]
        found.setdefault(place, Counter())[asked[row] or blocks[row]] += 1
    return found


def _free_a_copy(case: Case, twice: _Twice) -> Note:
    """To free one of two copies of parameters: where it is held, if that is known.

    The one that no optimizer holds; else the one whose bytes differ more from the gradients', and
    of equal ones the one that the program's own line made.
    """
    chains = [case.holder_of(place) for place in twice.places]
    gradients = case.categories.get("gradient", 0)
    copy = max(
        (1, 0),
        key=lambda at: (
            _OF_AN_OPTIMIZER not in chains[at],
            abs(twice.sizes[at] - gradients),
            not twice.places[at].package,
        ),
    )
    chain, size = chains[copy], format_bytes(twice.sizes[copy])
    text = (
        f"free the copy that is not trained ({size}: a loaded checkpoint, a reference model), or "
        "move it to the CPU, once what reads it is done"
    )
    return Note(f"{text}, in {chain}") if chain else Note(f"{text}:", twice.places[copy])


# ---- Tried -------------------------------------------------------------------------------


def ranked(trials: Trials, case: Case, verdicts: Iterable[Verdict]) -> tuple[Verdict, ...]:
    """The verdicts with what the replay of each says: those whose removal lets the program go on
    first, in the order of `KINDS`; then those that let the request succeed, of which no more is
    known, in that order; then the others, those first that get furthest."""
    tried = [_tried(trials, case, one) for one in verdicts]
    return tuple(sorted(tried, key=lambda one: _rank(case, one)))


def _rank(case: Case, verdict: Verdict) -> tuple[int, float, float]:
    place = float(KINDS.index(verdict.kind))
    growth = case.growth
    grew = growth is not None and (growth.bytes, growth.addresses) == (verdict.bytes, verdict.frees)
    if grew and not case.still_grows and not _is_kept_beside(case):
        # What came after the loop failed, and not the loop.
        place = float(len(KINDS))
    elif verdict.frees:
        # What piles up does so again, under other settings and on a larger device.
        place -= len(KINDS)
    if (
        verdict.kind == "other_pool"
        and verdict.suffices
        and verdict.bytes > (growth.bytes if growth else 0)
        and len({tuple(group["pool"]) for group in case.room.others}) > FEWEST
    ):
        # A pool for each graph: no replay of a round makes the next ones.
        return (0, -float(2 * len(KINDS)), 0.0)
    if verdict.finishes:
        return (0, place, 0.0)
    if verdict.kind == "capacity" and not verdict.frees:
        # Behind what takes it at least a round further.
        return (2, -0.5, 0.0)
    if verdict.suffices and verdict.finishes is None:
        # What is free is no measure of what a step lacks that has outgrown all before it.
        behind = verdict.kind == "fragmentation" and case.has_outgrown
        return (2, -0.25, 0.0) if behind else (1, place, 0.0)
    return (2, -float(verdict.headroom_steps or 0), -float(verdict.bytes))


def _is_kept_beside(case: Case) -> bool:
    """Whether most of what is in use piled up where its holder tells what keeps it: a thread may
    fill a queue while another one fails."""
    growth = case.growth
    if growth is None or 2 * growth.bytes <= case.room.allocated:
        return False
    return any(_by_holder(case.holder_of(one.place)) for one in growth.growers)


def _tried(trials: Trials, case: Case, verdict: Verdict) -> Verdict:
    """The verdict with the trial of what it advises."""
    trial = _trial_of(trials, case, verdict) if trials.works else None
    if trial is None:
        return verdict
    if not trial.rounds_tried:
        return verdict if trial.passes else replace(verdict, finishes=False)
    return replace(
        verdict,
        evidence=(*verdict.evidence, *_told(case, trial)),
        headroom_bytes=case.usable - trial.bytes,
        headroom_steps=trial.rounds,
        finishes=trial.passes,
    )


def _trial_of(trials: Trials, case: Case, verdict: Verdict) -> Trial | None:
    remedy, usable = verdict.remedy, case.usable
    if verdict.kind in ("process_cap", "non_torch"):
        if not verdict.suffices:
            return None
        text = "without the limit" if verdict.kind == "process_cap" else "with the others gone"
        return trials.more_memory(text, usable + max(verdict.bytes, 0))
    if remedy is None:
        return None
    if remedy.action == "settings":
        return trials.setting(remedy.setting) if remedy.setting else None
    if verdict.kind == "cache_growth":
        return trials.bounded(f"keep what {_by(verdict)} at its first size")
    # What the failing round itself made is not let go of at the end of one.
    if verdict.frees and verdict.kind != "capacity":
        return trials.release(f"let go of what {_by(verdict)}", verdict.frees)
    return None


def _by(verdict: Verdict) -> str:
    place = None if verdict.remedy is None else verdict.remedy.place
    if place is None:
        return "is kept"
    return f"{place.filename}:{place.line} keeps" if place.line else f"{place} keeps"


def _told(case: Case, trial: Trial) -> tuple[Note, ...]:
    if trial.passes or case.rounds is None:
        return ()
    unit = case.rounds.unit
    if trial.rounds:
        rounds = format_count(trial.rounds, f"more {unit}")
        return (Note(f"Without it {rounds} fit, and then it fails again (replayed)."),)
    needs = f"{format_bytes(trial.bytes)} of the {format_bytes(case.usable)} there are"
    return (Note(f"Without it this {unit} does not fit either: it needs {needs} (replayed)."),)


# ---- Verdicts ----------------------------------------------------------------------------

# After an unreasonable request; what is left is a program that needs too much.
_CAUSES: tuple[Cause, ...] = (
    retry,
    untrained,
    cycle_garbage,
    other_pool,
    non_torch,
    cache_growth,
)


def verdicts_of(case: Case, bill: Bill, trials: Trials) -> tuple[Verdict, ...]:
    """What was in the way: first what lets the program go on, or takes it furthest."""
    if case.room.holds:
        return (had_room(case),)
    hopeless = unreasonable_request(case)
    if hopeless is not None:
        return (hopeless,)
    candidates = [fragmentation(case, trials), *(cause(case) for cause in _CAUSES)]
    candidates.append(leak(case, bill))
    candidates.append(process_cap(case, trials))
    exceptions = None
    if case.growth is None or case.growth.bytes < LEAST_CURE * case.usable:
        exceptions = kept_exceptions(case, bill)
        candidates += [made_again(case), young_pile(case, bill), exceptions or kept_by_one(case)]
        # That it is in the way only a replay can say: blocks may well live for some steps.
        late, graphs = (left_behind(case), outlived(case)) if trials.works else (None, None)
        if late is not None and _tried(trials, case, late).finishes:
            candidates.append(late)
        # What no step before it is like can only be replayed up to the request.
        if graphs is not None and _tried(trials, case, graphs).finishes is not False:
            candidates.append(graphs)
    found = [one for one in candidates if one is not None]
    state = first_state(case)
    if state is not None:
        return _with_state(trials, case, state, found)
    first = ranked(trials, case, found)
    needs = None
    # Where letting go of something lets the program go on, its step is not too large.
    is_kept = exceptions is not None or any(one.finishes and one.frees for one in first)
    if case.growth is None and not is_kept and _first_update(case) is None:
        needs = new_holder(case, trials) or too_large_a_step(case, trials)
    # A cause helps if the program gets on without it, as far as anyone can see.
    if needs is None and not any(one.suffices and one.finishes is not False for one in first):
        needs = too_little(case, trials)
    return first if needs is None else ranked(trials, case, (*found, needs))


# Causes by which the process has less room than the device.
_OF_ROOM = ("process_cap", "non_torch")


def _with_state(
    trials: Trials, case: Case, state: Verdict, found: list[Verdict]
) -> tuple[Verdict, ...]:
    """The causes of a failure in the first step: a limit that can be raised and memory that
    others can give back come before it, and nothing has come round often enough to have piled
    up."""
    kept = [one for one in found if one.kind not in ("leak", "cache_growth")]
    others = ranked(trials, case, kept)
    raised = tuple(one for one in others if one.kind in _OF_ROOM and one.suffices)
    return (*raised, state, *(one for one in others if one not in raised))


def looked_at(case: Case) -> tuple[str, ...]:
    """The kinds of verdicts that what is known could have shown."""
    known = dict.fromkeys(KINDS, True)
    known["leak"] = known["cache_growth"] = case.rounds is not None
    known["cycle_garbage"] = case.facts.garbage_bytes is not None or case.rounds is not None
    known["non_torch"] = case.room.budget.non_torch is not None
    known["process_cap"] = case.room.budget.device_free is not None
    return tuple(kind for kind in KINDS if known[kind])
