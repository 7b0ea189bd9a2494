# SPDX-License-Identifier: Apache-2.0
"""The program needs more than there is: by how much, for what, and what to make smaller."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from neutracer.diagnose.oom.case import Case, least_worth
from neutracer.diagnose.oom.demand import Demand
from neutracer.diagnose.oom.parts import Remedy, Verdict
from neutracer.diagnose.oom.repeats import Repeats, repeats_of
from neutracer.render.document import Note, Place
from neutracer.trace.places import callers_of, place_of
from neutracer.trace.roles import Role, role_of
from neutracer.trace.stacks import NONE
from neutracer.units import format_bytes, format_share

__all__ = ["new_holder", "too_large_a_step", "too_little"]

# A category with less than this share of what is in use is not told.
_TOLD_SHARE = 0.1

# What no step before did has this share of what the failing step holds, at least.
_NEW_SHARE = 0.5

# What is held twice makes up this share of what is in use, at least.
_TWICE_SHARE = 0.2

# Lines that are compared with each other for what is held twice.
_MOST_STACKS = 256

# Of a step that never ended nothing tells its size: a quarter of it is a beginning.
_UNKNOWN_SHARE = 0.25

# A first step is made smaller to no less than this part of that.
_LEAST_SHARE = 0.1

# So much of what a process may have is in use when it fails, at the most: the recorded
# training steps have 1.5 to 15 % free inside.
_CAREFUL = 0.85

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

_OF_EACH_SAMPLE = (
    "this is more than one gradient for each parameter: of each sample, or of each output. Fewer "
    "at a time: a smaller batch, or chunk_size= of torch.func.vmap and jacrev"
)


def too_large_a_step(case: Case) -> Verdict | None:
    """The step that failed needs more than any before it, and more than there is."""
    demand = case.demand
    if demand is None or not demand.steps or not (demand.is_larger or demand.rise):
        return None
    times = demand.expected / max(demand.largest, 1)
    needs, most = format_bytes(demand.expected), format_bytes(demand.largest)
    proved = demand.largest / demand.expected
    share = _share_that_fits(case, demand)
    if not demand.rise:
        # Between what has fitted and what there is room for if needs are in proportion.
        share = max(round(proved, 3), round((proved + share) / 2, 3))
    part, fitted = format_share(share, decimals=0), format_share(proved, decimals=0)
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
        Note("Needed at the same point by those before it, and so scaled to its end."),
    ]
    advice: tuple[Note, ...] = (
        Note(
            f"make the largest {demand.unit} smaller: {part} of this one should fit ({fitted} of "
            "it did)",
            case.place,
        ),
        Note("bound the length of sequences, sort by length, or split the batch (accumulate)"),
        Note("torch.utils.checkpoint keeps fewer activations of it"),
    )
    remedy = Remedy("smaller_step", value=share)
    repeats = repeats_of(case)
    if repeats is not None:
        advice = (*_of_parts(repeats, demand.unit), advice[0], advice[2])
        remedy = Remedy("release", place=repeats.place, callers=repeats.callers)
    missing = max(demand.floor + demand.expected - case.usable, case.failure.size)
    return Verdict("capacity", missing, tuple(evidence), advice, message, True, remedy)


def _of_parts(repeats: Repeats, unit: str) -> tuple[Note, ...]:
    text = (
        f"call backward() on the loss of each part, not on the sum of all: {repeats.times:.1f} "
        f"times as often as in any {unit} before it, this is kept for the backward pass:"
    )
    parts = "where the parts are of one long sequence, cut it (truncated backpropagation)"
    return (Note(text, repeats.place), Note(parts))


@dataclass(frozen=True)
class _New:
    place: Place
    bytes: int
    in_module: bool
    callers: tuple[Place, ...]


def new_holder(case: Case) -> Verdict | None:
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
    if first.in_module and case.phase.name != "inference":
        advice = (
            Note("if nothing is trained here, run it under torch.no_grad():", first.place),
            Note("a smaller batch there needs less as well"),
        )
        remedy = Remedy("no_grad", place=first.place, callers=first.callers)
    elif first.in_module:
        advice = (Note("a smaller batch there than in the steps before:", first.place),)
        remedy = Remedy("smaller_step", value=_share_that_fits(case, demand))
    else:
        advice = (Note("make it on the CPU, or drop it before the next step:", first.place),)
        remedy = Remedy("release", place=first.place, callers=first.callers)
    return Verdict("capacity", total, evidence, advice, message, True, remedy)


def _new_holders(case: Case) -> list[_New]:
    """Lines of which no step before the failing one has an allocation, the most bytes first."""
    timeline, rounds = case.timeline, case.rounds
    if timeline is None or rounds is None or case.failure.event is None:
        return []
    begin, rows = rounds.begins[-1], timeline.allocations
    sizes, made, of_row = (rows.codes(name) for name in ("size", "alloc_event", "stack"))
    seen = {stack for stack, event in zip(of_row, made, strict=True) if event < begin}
    held: Counter[int] = Counter()
    for row in case.live_rows:
        if made[row] >= begin:
            held[of_row[row]] += sizes[row]
    stacks = timeline.events.codes("stack")
    held[stacks[case.failure.event]] += case.failure.size
    found = []
    for stack, nbytes in held.most_common():
        if stack not in seen and stack != NONE:
            frames = case.snap.stacks[stack]
            in_module = role_of(frames) is Role.MODULE
            found.append(_New(place_of(frames), nbytes, in_module, callers_of(frames)))
    return found


def _share_that_fits(case: Case, demand: Demand) -> float:
    """How much of the failing step there is room for; where each needs more than the one
    before it, in as many steps again."""
    usable = _CAREFUL * case.usable - demand.floor
    expected = demand.expected + demand.rise * demand.steps
    return round(max(min(usable / expected, _CAREFUL), 0.01), 3)


def too_little(case: Case) -> Verdict:
    """What the program needs is more than there is."""
    room, budget, size = case.room, case.room.budget, case.failure.size
    could = room.own_free + budget.headroom
    missing = max(size - could, 0) or size
    twice = _held_twice(case)
    evidence, advice, remedy = _by_category(case)
    if twice is not None:
        evidence.insert(1, Note(f"{format_bytes(twice.bytes)} is held twice, by", twice.place))
        advice.insert(0, Note("load on the CPU, or free this copy first:", twice.place))
        remedy = Remedy("release", place=twice.place)
    total = f" of {format_bytes(budget.total)}" if budget.total else ""
    message = f"the program needs {format_bytes(missing)} more than the device{total} can give"
    return Verdict("capacity", missing, tuple(evidence), tuple(advice), message, True, remedy)


def _by_category(case: Case) -> tuple[list[Note], list[Note], Remedy | None]:
    """What holds most, and what to do about it."""
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
        if name == "gradient" and _has_several_each(case, held):
            text, action = _OF_EACH_SAMPLE, "smaller_step"
        if text:
            advice.append(Note(text))
            remedy = remedy or _remedy(case, action)
    if case.holdings:
        most = case.holdings[0]
        evidence.append(Note(f"most of it, {format_bytes(most.bytes)}, is held by", most.place))
    if budget.total is None and budget.device_free is not None:
        evidence.append(
            Note(f"PyTorch had {format_bytes(budget.reserved)} of the device, and "
                 f"{format_bytes(budget.device_free)} were free; the file does not say what others "
                 "had: give capacity= (--capacity), or see nvidia-smi.")
        )  # fmt: skip
    if not advice:
        advice.append(Note("keep less of it alive at a time: a smaller batch, fewer kept tensors"))
        remedy = _remedy(case, "smaller_step")
    return evidence, advice, remedy


def _has_several_each(case: Case, gradients: int) -> bool:
    """Whether gradients are more than one for each parameter: then the batch decides."""
    if case.timeline is None or any(role in case.timeline.passes.role for role in _SHARDED):
        # Of a sharded model a process has a part of the parameters, and for a while all gradients.
        return False
    parameters = case.categories.get("parameter", 0) + case.categories.get("unknown", 0)
    return 0 < _ONE_EACH * parameters < gradients


def _remedy(case: Case, action: str) -> Remedy:
    if case.phase.name == "optimizer":
        # What a step kept for its backward pass is gone by then: a smaller one changes nothing.
        return Remedy("shard_state")
    if case.phase.name == "loading":
        return Remedy("shard")
    if action != "smaller_step":
        return Remedy(action)
    demand = case.demand
    known = demand is not None and demand.steps
    share = _share_that_fits(case, demand) if demand is not None and known else _first_share(case)
    return Remedy(action, value=share)


def _first_share(case: Case) -> float:
    """Where to begin, for a first step of which nothing tells what it needs in all.

    Gradients and an optimizer's state, which don't depend on its size, are still to come: with
    Adam's three times the parameters. In the forward pass most of the backward's is as well.
    """
    to_stay = 4 * case.categories.get("parameter", 0)
    share = _UNKNOWN_SHARE * max(1 - to_stay / max(case.usable, 1), _LEAST_SHARE)
    return round(share / 2 if case.phase.name == "forward" else share, 3)


@dataclass(frozen=True)
class _Twice:
    place: Place
    bytes: int


def _held_twice(case: Case) -> _Twice | None:
    """The line that made the first copy of what a program that only loads holds twice: blocks
    of the same sizes, made by another line."""
    timeline = case.timeline
    if (
        timeline is None
        or timeline.passes.backward
        or case.phase.name not in ("loading", "unknown")
    ):
        return None
    of_row, size = (timeline.allocations.codes(name) for name in ("stack", "size"))
    sizes: dict[int, Counter[int]] = {}
    for row in case.live_rows:
        if of_row[row] != NONE:
            sizes.setdefault(of_row[row], Counter())[size[row]] += 1
    best: _Twice | None = None
    stacks = list(sizes)[:_MOST_STACKS]
    for number, one in enumerate(stacks):
        for other in stacks[number + 1 :]:
            both = sum(size * count for size, count in (sizes[one] & sizes[other]).items())
            if both >= _TWICE_SHARE * case.room.allocated and (best is None or both > best.bytes):
                best = _Twice(place_of(case.snap.stacks[one]), both)
    return best
