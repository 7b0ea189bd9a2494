# SPDX-License-Identifier: Apache-2.0
"""The settings worth trying on a program, and how little memory each needs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

from neutracer._native import core
from neutracer.diagnose.settings.bound import Bound, bound_of
from neutracer.diagnose.settings.replaying import Replayer, canonical
from neutracer.diagnose.settings.what_if_parts import Outcome
from neutracer.trace.timeline import Timeline

__all__ = [
    "OBJECTIVES",
    "Survey",
    "candidates",
    "confirmed_capacity",
    "distinct_rules",
    "order_of",
    "smallest_capacities",
    "smallest_capacity",
    "survey",
]

OBJECTIVES = ("fit", "reserved", "speed")

# Segments are whole multiples of this, so that no finer capacity makes a difference.
_GRAIN = 2 << 20

# What the model takes for the device where nothing tells how large it was.
_ENDLESS = 1 << 40

# No device has more.
_MOST = 1 << 50

_SPLITS = (20, 32, 64, 128, 256, 512, 1024)
_ROUNDUPS = ("2", "4", "8", "16", "[256:1,512:2,1024:4,>:8]")
_LARGES = (12, 40, 64)
_THRESHOLDS = ("0.6", "0.7", "0.8", "0.9")

# The core's numbers of orders of addresses, of when what other streams used is free again, and
# of how the state before the trace is made.
_ORDERS, _RANDOM, _SEEDS = (2, 3), 1, (1, 2)
_TIMINGS = (1, 2)
_BEGINS = (1, 2, 3)


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
    if replayer.is_limited:
        collecting = [f"garbage_collection_threshold:{each}" for each in _THRESHOLDS]
        found += collecting
        found += [f"{a},{b}" for a, b in product(splits[3:5], collecting[::2])]
        found += [f"{a},{b}" for a, b in product(roundups[1:3], collecting[::2])]
    return tuple(dict.fromkeys(canonical(each) for each in found))


def order_of(
    objective: str,
    outcome: Outcome,
    smallest: int | None,
    alike: tuple[int, int] = (0, 0),
) -> tuple[int, ...]:
    """What candidates are ranked by: the least is the best.

    Whatever the objective, a program that fails ranks behind one that does not. Of two that
    stop for lack of memory the one that gets further is better, under "fit" the one of which
    all needs less: figures of different parts can't be compared, nor how much failed in
    them. Of what a program would have done beyond its trace nothing is known, and so that
    ranks none.

    Args:
        objective: One of `OBJECTIVES`.
        outcome: The candidate's.
        smallest: Its smallest capacity in bytes, or None.
        alike: Up to which values the two figures of the objective are as good as each
            other.
    """
    peak = outcome.peak_reserved_bytes
    highest = outcome.range("peak_reserved_bytes")[1]
    reserved = peak if highest is None or "beyond" in outcome.causes else highest
    stopped = outcome.stopped_event
    failures = (int(stopped is not None), outcome.ooms)
    if stopped is not None:
        failures = (1, 0 if objective == "fit" else -stopped)
    keys = {
        "fit": (peak if smallest is None else smallest, reserved),
        "reserved": (reserved, peak),
        "speed": (outcome.device_calls + outcome.retries, reserved),
    }
    figures = (max(key, up_to) for key, up_to in zip(keys[objective], alike, strict=True))
    simplicity = outcome.settings.count(":")
    return (*failures, *figures, simplicity, outcome.device_calls)


def distinct_rules(replayer: Replayer, tried: tuple[str, ...]) -> tuple[str, ...]:
    """The first of each of the settings that do the same to this program.

    A limit above every possible block, and rounding of sizes that nobody requests, do
    nothing.
    """
    largest, held = _largest(replayer.timeline)
    found: dict[tuple[object, ...], str] = {}
    for settings in tried:
        found.setdefault(_rules(settings, largest, held), settings)
    return tuple(found.values())


def _largest(timeline: Timeline) -> tuple[int, int]:
    """The bytes of the largest request, and of the largest segment from before the trace."""
    events, segments = timeline.events, timeline.segments
    largest = max(timeline.allocations.codes("requested_size"), default=0)
    if timeline.facts["oom_count"]:
        sizes = events.codes("size")
        failed = (sizes[event] for event, name in enumerate(events["action"]) if name == "oom")
        largest = max(largest, *failed)
    lives = zip(segments.codes("size"), segments.codes("alloc_event"), strict=True)
    return largest, max((size for size, made in lives if made < 0), default=0)


def _rules(settings: str, largest: int, held: int) -> tuple[object, ...]:
    """Which settings can make a difference to requests of up to `largest` bytes, where
    segments of up to `held` bytes are there already."""
    parsed = core.parse_settings(settings)
    # The table's first entry is for all up to 2 MiB, each further one for the next power.
    entry = min(max(largest.bit_length() - 21, 0), 15)
    divisions = [max(each, 1) for each in parsed["roundup_power2_divisions"][: entry + 1]]
    rounded = largest * 2 if max(divisions) > 1 else largest
    segment = max(-(-rounded // _GRAIN) * _GRAIN, parsed["large_segment_size"], held)
    split = (parsed["max_split_size"], parsed["max_non_split_rounding"])
    if split[0] is None or (split[0] > segment and not parsed["expandable_segments"]):
        split = (None, None)
    others = ("expandable_segments", "large_segment_size", "garbage_collection_threshold")
    rest = tuple(parsed[name] for name in (*others, "per_process_memory_fraction"))
    return (tuple(divisions), *split, *rest)


def _assumed(replayer: Replayer) -> int:
    """The bytes that the process may have in a run without a given limit."""
    limit, high = replayer.limits[0], replayer.facts["limit_high"]
    return limit or high or replayer.facts["device_total"] or _ENDLESS


class _Fitting:
    """Whether a program succeeds in this many bytes, run only where no run has shown it.

    The bytes are those of a device that has no more, and a limit below which PyTorch keeps the
    process on a larger one: it has to succeed in both. They differ where segments expand or
    garbage is collected: a limit is held against what is asked for, a device has to have whole
    pages, and garbage is collected from a share of a limit on.

    A run that succeeded would have gone the same way in any capacity from its peak up
    to its own: what it was refused it still is.

    Args:
        replayer: The program.
        settings: The settings; None are the recorded ones.
        known: What came of them as it was recorded, or in `replayer.capacity`; None where
            this is not known.
    """

    def __init__(self, replayer: Replayer, settings: str | None, known: Outcome | None) -> None:
        self._replayer = replayer
        self._settings = settings
        self._spans: list[tuple[int, int]] = []
        text = replayer.recorded_settings if settings is None else settings
        self._rules = core.parse_settings(text)
        differ = self._rules["expandable_segments"] or self._collects
        self._kinds = (False, True) if differ else (replayer.is_limited,)
        if known is not None:
            self._note(known, _assumed(replayer))

    @property
    def _collects(self) -> bool:
        return float(self._rules["garbage_collection_threshold"]) > 0.0

    def __call__(self, nbytes: int) -> bool:
        if any(low <= nbytes <= high for low, high in self._spans):
            return True
        outcomes = self.runs(nbytes)
        first = next(outcomes)
        self._note(first, nbytes)
        return first.fits and all(outcome.fits for outcome in outcomes)

    def runs(self, nbytes: int, **changes: int) -> Iterator[Outcome]:
        """What comes of it on such a device, and below such a limit."""
        for is_share in self._kinds:
            yield self._replayer.quick(self._settings, nbytes, is_share=is_share, **changes)

    def _note(self, outcome: Outcome, nbytes: int) -> None:
        if outcome.fits and len(self._kinds) == 1 and self._is_steady():
            self._spans.append((outcome.peak_reserved_bytes, nbytes))

    def _is_steady(self) -> bool:
        """Whether the capacity only decides what is refused."""
        return float(self._rules["per_process_memory_fraction"]) == 1.0


def smallest_capacity(
    replayer: Replayer,
    settings: str | None,
    least: int,
    *,
    known: Outcome | None = None,
    beaten_by: int | None = None,
) -> int | None:
    """The fewest bytes with which every request of the program succeeds.

    Args:
        replayer: The program.
        settings: The settings; None are the recorded ones.
        least: Bytes below which nothing fits.
        known: What `replayer.quick` found of the settings, which saves a run or two.
        beaten_by: Bytes from which on the answer does not matter.

    Returns:
        Bytes, a multiple of 2 MiB, with which it was run and succeeded, as a device's and as a
        limit of PyTorch's; with the next lower one tried it did not. None where no capacity was
        found, or only one that is above `beaten_by`.
    """
    fits = _Fitting(replayer, settings, known)
    return _least(fits, least, max(least // 4, 1), beaten_by)


def _least(fits: Callable[[int], bool], least: int, step: int, beaten_by: int | None) -> int | None:
    """The fewest bytes from `least` on that fit, as `smallest_capacity` has it; where those do
    not, about `step` more are tried first."""
    most = _MOST if beaten_by is None else beaten_by
    low = high = -(-max(least, _GRAIN) // _GRAIN) * _GRAIN
    step = max(step // _GRAIN, 1) * _GRAIN
    while not fits(high):
        low, high, step = high, high + step, step + step // 4 // _GRAIN * _GRAIN
        if high > _MOST:
            return None
    while high - low > _GRAIN and low < most:
        middle = (low + high) // 2 // _GRAIN * _GRAIN
        if fits(middle):
            high = middle
        else:
            low = middle
    return high if high == low or low < most else None


def confirmed_capacity(replayer: Replayer, settings: str | None, nbytes: int) -> int:
    """The bytes, and as many more as it takes to succeed in whatever order addresses come,
    and whenever streams are done with what they use.

    Args:
        replayer: The program.
        settings: The settings; None are the recorded ones.
        nbytes: What `smallest_capacity` found.
    """
    fitting = _Fitting(replayer, settings, None)
    cases: list[dict[str, int]] = [{}, *({"order": order} for order in _ORDERS)]
    cases += [{"order": _RANDOM, "seed": seed} for seed in _SEEDS]
    if replayer.facts["has_later"]:
        cases += [{"timing": timing} for timing in _TIMINGS]
    if replayer.facts["areas"] and settings is not None:
        cases += [{"begin": begin} for begin in _BEGINS]

    def fits(nbytes: int) -> bool:
        return all(each.fits for case in cases for each in fitting.runs(nbytes, **case))

    found = _least(fits, nbytes, nbytes // 64, None)
    return nbytes if found is None else found


@dataclass(frozen=True)
class Survey:
    """What is found out about a program before settings are compared.

    Attributes:
        recorded: The outcome of the recorded settings.
        smallest: The smallest capacity with which those do, or None.
        bound: The packing lower bound.
        outcomes: What came of the settings that differ, without ranges.
    """

    recorded: Outcome
    smallest: int | None
    bound: Bound
    outcomes: tuple[Outcome, ...]


def survey(replayer: Replayer, tried: tuple[str, ...]) -> Survey:
    """Runs the program as it was recorded, and under each of the settings, side by side."""

    def own() -> tuple[Bound, int | None]:
        bound = bound_of(replayer)
        return bound, smallest_capacity(replayer, None, bound.with_failed_bytes)

    def recorded() -> tuple[Outcome, object]:
        return replayer.outcome(None), replayer.check

    def quick(settings: str) -> Callable[[], Outcome]:
        return lambda: replayer.quick(settings)

    # Found here, threads do not each look for it.
    _ = replayer.limits, replayer.silent_places
    jobs: list[Callable[[], Any]] = [own, recorded]
    jobs += [quick(settings) for settings in distinct_rules(replayer, tried)]
    (bound, smallest), (outcome, _check), *found = replayer.map(lambda job: job(), jobs)
    return Survey(outcome, smallest, bound, tuple(found))


def smallest_capacities(
    replayer: Replayer, outcomes: list[Outcome], found: Survey, beaten_by: int | None = None
) -> dict[str, int | None]:
    """The smallest capacity of the settings of each of the outcomes.

    Args:
        replayer: The program.
        outcomes: As `replayer.quick` found them.
        found: What is known of the program.
        beaten_by: As `smallest_capacity` has it.
    """

    def search(outcome: Outcome) -> int | None:
        if outcome.settings == replayer.recorded_settings:
            return found.smallest
        least = found.bound.with_failed_bytes
        return smallest_capacity(
            replayer, outcome.settings, least, known=outcome, beaten_by=beaten_by
        )

    needs = replayer.map(search, outcomes)
    return {each.settings: nbytes for each, nbytes in zip(outcomes, needs, strict=True)}
