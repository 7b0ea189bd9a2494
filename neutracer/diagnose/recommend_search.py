# SPDX-License-Identifier: Apache-2.0
"""The settings worth trying on a program, how little memory each needs, and the least of all."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate, product

from neutracer.diagnose.replaying import Replayer, canonical
from neutracer.diagnose.what_if_parts import Outcome
from neutracer.trace.timeline import Timeline

__all__ = [
    "OBJECTIVES",
    "Bound",
    "bound_of",
    "candidates",
    "order_of",
    "packing_bound",
    "smallest_capacities",
    "smallest_capacity",
]

OBJECTIVES = ("fit", "reserved", "speed")

# Segments are whole multiples of this, so that no finer capacity makes a difference.
_GRAIN = 2 << 20

_SPLITS = (20, 32, 64, 128, 256, 512, 1024)
_ROUNDUPS = ("2", "4", "8", "16", "[256:1,512:2,1024:4,>:8]")
_LARGES = (12, 40, 64)
_THRESHOLDS = ("0.6", "0.7", "0.8", "0.9")


def candidates(replayer: Replayer) -> tuple[str, ...]:
    """The settings to try, simple ones first; some three dozen.

    The garbage collection threshold does nothing where PyTorch keeps the process below no
    limit, and is then left out.
    """
    splits = [f"max_split_size_mb:{size}" for size in _SPLITS]
    roundups = [f"roundup_power2_divisions:{each}" for each in _ROUNDUPS]
    found = ["", "expandable_segments:True", *splits, *roundups]
    found += [f"expandable_segments:True,{each}" for each in roundups]
    found += [f"{a},{b}" for a, b in product(splits[2:5], roundups[1:3])]
    found += [f"{each},max_non_split_rounding_mb:64" for each in splits[2:5]]
    if replayer.knows_large_segments:
        larges = [f"large_segment_size_mb:{size}" for size in _LARGES]
        found += [*larges, *(f"expandable_segments:True,{each}" for each in larges)]
    if replayer.is_capped:
        collecting = [f"garbage_collection_threshold:{each}" for each in _THRESHOLDS]
        found += collecting
        found += [f"{a},{b}" for a, b in product(splits[3:5], collecting[::2])]
        found += [f"{a},{b}" for a, b in product(roundups[1:3], collecting[::2])]
    return tuple(dict.fromkeys(canonical(each) for each in found))


def order_of(
    objective: str, outcome: Outcome, smallest: int | None, least: int = 0
) -> tuple[int, ...]:
    """What candidates are ranked by: the least is the best.

    Whatever the objective, a program that fails is behind one that does not. Of what a
    program would have done beyond its trace nothing is known, and so it ranks none.

    Args:
        objective: One of `OBJECTIVES`.
        outcome: The candidate's.
        smallest: Its smallest capacity in bytes, or None.
        least: Below so many bytes smaller capacities are no better than others.
    """
    peak = outcome.peak_reserved_bytes
    highest = outcome.range("peak_reserved_bytes")[1]
    reserved = peak if highest is None or "beyond" in outcome.causes else highest
    failures = (int(outcome.stopped_event is not None), outcome.ooms)
    keys = {
        "fit": (max(peak if smallest is None else smallest, least), reserved),
        "reserved": (reserved, peak),
        "speed": (outcome.device_calls + outcome.retries, reserved),
    }
    simplicity = outcome.settings.count(":")
    return (*failures, *keys[objective], simplicity, outcome.device_calls)


def smallest_capacity(replayer: Replayer, settings: str | None, least: int) -> int | None:
    """The fewest bytes with which every request of the program goes through.

    Args:
        replayer: The program.
        settings: The settings; None are the recorded ones.
        least: Bytes below which nothing fits.

    Returns:
        Bytes, a multiple of 2 MiB, with which it was run and went through; with the next
        lower one tried it did not. None where no capacity was found.
    """
    high = -(-max(least, _GRAIN) // _GRAIN) * _GRAIN
    if replayer.fits(settings, high):
        return high
    low = high
    while not replayer.fits(settings, high):
        low, high = high, high + max(high // 4 // _GRAIN, 1) * _GRAIN
        if high > 1 << 50:
            return None
    while high - low > _GRAIN:
        middle = (low + high) // 2 // _GRAIN * _GRAIN
        if replayer.fits(settings, middle):
            high = middle
        else:
            low = middle
    return high


@dataclass(frozen=True)
class Bound:
    """The least memory that any allocator could do with.

    Attributes:
        bytes: The most bytes in live blocks at one time, each rounded up to 512, which is
            PyTorch's smallest unit.
        event: The event after which it was so; -1: before the trace.
        with_failed_bytes: The same if what failed when it was recorded had gone through.
    """

    bytes: int
    event: int
    with_failed_bytes: int


def packing_bound(timeline: Timeline, counts_failed: bool = True) -> Bound:
    """The packing lower bound of a trace: no allocator could do with less.

    Args:
        timeline: The trace.
        counts_failed: Whether the sizes of failed requests can be believed: PyTorch writes
            them down as its settings rounded them.
    """
    rows = timeline.allocations
    changes = [0] * (len(timeline) + 1)
    columns = (rows.codes("requested_size"), rows.codes("alloc_event"), rows.codes("free_event"))
    for requested, made, freed in zip(*columns, strict=True):
        size = -(-requested // 512) * 512
        if freed != -2:  # -2: freed before the trace
            changes[made + 1] += size
        if freed >= 0:
            changes[freed + 1] -= size
    live = list(accumulate(changes))
    most = max(live)
    wanted = [most]
    if timeline.facts["oom_count"] and counts_failed:
        sizes = timeline.events.codes("size")
        for event, action in enumerate(timeline.events["action"]):
            if action == "oom":
                wanted.append(live[event + 1] + sizes[event])
    return Bound(most, live.index(most) - 1, max(wanted))


def bound_of(replayer: Replayer) -> Bound:
    """The packing lower bound of the program that was recorded."""
    divisions = replayer.snap.settings_in_force["roundup_power2_divisions"]
    return packing_bound(replayer.timeline, max(divisions) <= 1)


def smallest_capacities(
    replayer: Replayer, settings: list[str], bound: Bound
) -> dict[str, int | None]:
    """The smallest capacity of each of the settings, as `smallest_capacity` finds it."""
    least = bound.with_failed_bytes
    found = replayer.map(lambda text: smallest_capacity(replayer, text, least), settings)
    return dict(zip(settings, found, strict=True))
