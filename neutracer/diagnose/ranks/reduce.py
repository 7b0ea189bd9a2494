# SPDX-License-Identifier: Apache-2.0
"""One file reduced to what the comparison of ranks needs: some kilobytes, where the file is."""

from __future__ import annotations

import os
import re
import warnings
from bisect import bisect_right
from collections import Counter
from itertools import pairwise
from typing import Any

from neutracer._native import core
from neutracer.diagnose.leaks.series import highs
from neutracer.diagnose.leaks.trend import LeakTrendReport, leak_trend
from neutracer.diagnose.ranks.files import facts_of, named, opened_file
from neutracer.errors import HistoryWarning, NeutracerError
from neutracer.process.ranks.digest import MOST_BINS, MOST_STEPS, Held, RankDigest, checked
from neutracer.trace.categories import CATEGORIES, RULES
from neutracer.trace.flaws import end_is_known
from neutracer.trace.snapshot import Snapshot, load
from neutracer.trace.timeline import Timeline

__all__ = ["digest_of", "reduced", "unread"]

# Longer traces are left to `leak_trend`, as in an overview.
_MOST_EVENTS = 1_000_000

# Lines and sizes of parameters that are kept: with more, a digest has no few kilobytes.
_MOST_PLACES = 32
_MOST_SIZES = 64

# Allocations, the oldest and as many of the newest, by which a line gets its category.
_MOST_BLOCKS = 4096

# Rules that take only what all ranks of a shape hold alike for parameters.
_SURE_RULES = ("module-made", "as-many-as-gradients", "held-as-parameter")
_SURE = re.compile(b"[%b]" % re.escape(bytes(map(tuple(RULES).index, _SURE_RULES))))

# The schedules of pipelines, by the files of the libraries that have them, and what they are
# called where there is no pipeline.
_PIPELINES = ("torch/distributed/pipelining/", "pipeline_parallel/", "deepspeed/runtime/pipe/")
_NO_PIPELINE = "forward_backward_no_pipelining"

_NAMES = ("rank", "world_size", "job", "attempt", "host", "pid", "program", "torch")


def digest_of(path: str, max_memory: int | None = None) -> bytes:
    """A file as a digest, by bytes, so that any executor can carry it; nothing is raised for a
    file that can't be read, which the digest says then.

    Args:
        path: The file, or a URL.
        max_memory: The most memory that reading it may take, in bytes.
    """
    about = _about(path)
    try:
        with warnings.catch_warnings(), opened_file(path) as file:
            warnings.simplefilter("ignore", HistoryWarning)
            snap = load(file, max_memory=max_memory, progress=False)
            digest = reduced(snap, path, about)
    except (NeutracerError, OSError, ValueError) as error:
        said = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        digest = unread(path, said)
    except MemoryError:
        digest = unread(path, "reading it takes more memory than there is")
    except Exception as error:
        # Of a thousand files one that nobody thought of must not cost the report of the others.
        digest = unread(path, f"it can't be analysed ({type(error).__name__}: {error})")
    return digest.to_bytes()


def unread(path: str, trouble: str) -> RankDigest:
    """What is known of a file without reading it.

    Args:
        path: The file.
        trouble: Why it was not read.
    """
    return RankDigest(source=path, trouble=trouble, **_known(path, _about(path)))


def _about(path: str) -> dict[str, Any]:
    """What the JSON beside a file says of its process."""
    try:
        facts = facts_of(path)
    except NeutracerError:
        return {}
    process = facts.get("process")
    return process if isinstance(process, dict) else facts


def _known(path: str, about: dict[str, Any]) -> dict[str, Any]:
    """Rank, host and the like, of the sidecar, or else of the file's name."""
    says = named(path)
    found: dict[str, Any] = {
        "rank": checked("rank", says.rank),
        "host": says.host,
        "pid": checked("pid", says.pid),
    }
    for name in _NAMES:
        value = checked(name, about.get(name))
        if value not in (None, ""):
            found[name] = value
    found["written_s"] = checked("written_s", about.get("time_s"))
    found["reason"] = says.reason
    return found


def reduced(snap: Snapshot, path: str, about: dict[str, Any]) -> RankDigest:
    """A snapshot as a digest.

    Args:
        snap: The snapshot.
        path: Its file.
        about: What the JSON beside it says of the process.
    """
    known = _known(path, about)
    if not snap.devices:
        trouble = "it has no memory and no events"
        if snap.partial:
            trouble = f"nothing of it is left: {snap.partial}"
        return RankDigest(source=path, trouble=trouble, **known)
    # One that ran out of memory, and else the one with the most.
    ranked = {one: _weight(snap.timeline(one)) for one in snap.devices}
    device = max(ranked, key=lambda one: (ranked[one], -one))
    said = about.get("devices")
    facts = said.get(str(device)) if isinstance(said, dict) else None
    timeline = snap.timeline(device)
    notes = [f"only a part was read: {snap.partial}"] if snap.partial else []
    notes += [flaw.message for flaw in snap.flaws]
    notes += snap.beside.damage
    # PyTorch notes the moment of a snapshot in the traces of devices that are not in use too.
    rest = [snap.device_name(one) for one, (_, held) in ranked.items() if held and one != device]
    if rest:
        notes.append(f"also has memory on {', '.join(rest)}")
    capacity = _limit(facts) if isinstance(facts, dict) else {}
    return RankDigest(
        source=path,
        notes=tuple(notes),
        device=snap.device_name(device),
        **known,
        **capacity,
        **_figures(snap, device, timeline),
        **_failures(timeline),
        **_growth(snap, device, capacity.get("total_bytes")),
        **_held(timeline),
        **_by_step(timeline),
        **_curve(timeline),
        pipelined=_is_pipelined(snap.strings),
        history_complete=snap.history_complete(device),
        end_known=end_is_known(snap, device),
    )


def _weight(timeline: Timeline) -> tuple[bool, int]:
    return bool(timeline.facts["oom_count"]), timeline.peak().bytes


def _limit(facts: dict[str, Any]) -> dict[str, Any]:
    """Of a device's part of a sidecar: its size, and what is not PyTorch's."""
    found = {name: facts.get(name) for name in ("total_bytes", "other_bytes")}
    return {name: value for name, value in found.items() if type(value) is int and value >= 0}


def _figures(snap: Snapshot, device: int, timeline: Timeline) -> dict[str, Any]:
    stats = snap.memory_stats(device)
    groups = core.Fragment(snap.native, None, device).groups()
    return {
        "allocated_bytes": stats["allocated_bytes.all.current"],
        "reserved_bytes": stats["reserved_bytes.all.current"],
        "peak_allocated_bytes": timeline.peak("allocated").bytes,
        "peak_reserved_bytes": timeline.peak("reserved").bytes,
        "largest_hole_bytes": max((group["largest_hole"] for group in groups), default=0),
    }


def _failures(timeline: Timeline) -> dict[str, Any]:
    """The out-of-memory events."""
    if not timeline.facts["oom_count"]:
        return {}
    events = [at for at, name in enumerate(timeline.events["action"]) if name == "oom"]
    first = events[0]
    return {
        "ooms": len(events),
        "first_oom_us": timeline.time_us[first] or None,
        "oom_bytes": timeline.events.codes("size")[first],
    }


def _growth(snap: Snapshot, device: int, capacity: int | None) -> dict[str, Any]:
    """What `leak_trend` says."""
    if not 0 < snap.trace_length(device) <= _MOST_EVENTS:
        return {}
    try:
        trend = leak_trend(snap, device=device, capacity=capacity, live=False)
    except (NeutracerError, ValueError):
        return {}
    grows = str(trend.growth[0].place) if trend.growth else ""
    return {
        "verdict": trend.verdict,
        "bytes_per_step": 0 if trend.verdict in ("steady", "unknown") else _rate(trend),
        "steps_to_oom": _steps_left(trend),
        "grows": grows,
    }


def _rate(trend: LeakTrendReport) -> int:
    return round(trend.bytes_per_step)


def _steps_left(trend: LeakTrendReport) -> int | None:
    if trend.oom_step is None:
        return None
    return max(trend.oom_step - (trend.steps + trend.warmup_steps - 1), 0)


def _held(timeline: Timeline) -> dict[str, Any]:
    """Who and what holds the peak."""
    peak = timeline.peak().event
    kinds = _kinds(timeline, peak)
    places = tuple(
        Held(str(place), nbytes, count, _most(kinds.get(str(place))))
        for place, nbytes, _, count in timeline.held_by_place(peak)[:_MOST_PLACES]
    )
    return {
        "categories": {name: nbytes for name, nbytes, _, _ in timeline.categories.live(peak)},
        "places": places,
        "parameters": _parameters(timeline, peak),
    }


def _kinds(timeline: Timeline, event: int) -> dict[str, Counter[str]]:
    """By line what its blocks are for that are alive after an event, of the oldest and the
    newest allocations."""
    rows = timeline.allocations
    made, freed, sizes, stacks = map(rows.codes, ("alloc_event", "free_event", "size", "stack"))
    codes, sums = timeline.categories.codes, Counter[tuple[int, int]]()
    # Those from before the trace come first, and then each in the order of its event.
    last = bisect_right(made, event)
    looked = {*range(min(_MOST_BLOCKS, last)), *range(max(last - _MOST_BLOCKS, 0), last)}
    for row in looked:
        if freed[row] == -1 or freed[row] > event:
            sums[stacks[row], codes[row]] += sizes[row]
    kinds: dict[str, Counter[str]] = {}
    for (stack, code), nbytes in sums.items():
        line = kinds.setdefault(str(timeline.places[stack]), Counter())
        line[CATEGORIES[code]] += nbytes
    return kinds


def _most(kinds: Counter[str] | None) -> str:
    return kinds.most_common(1)[0][0] if kinds else "unknown"


def _parameters(timeline: Timeline, event: int) -> tuple[tuple[int, int], ...]:
    """(size, count) of the parameters that are alive after an event, the most bytes first."""
    rows = timeline.allocations
    made, freed, sizes = map(rows.codes, ("alloc_event", "free_event", "size"))
    found = (match.start() for match in _SURE.finditer(timeline.categories.rules))
    counts = Counter(
        sizes[row]
        for row in found
        if made[row] <= event and (freed[row] == -1 or freed[row] > event)
    )
    ranked = sorted(counts.items(), key=lambda one: (-one[0] * one[1], one))
    return tuple(ranked[:_MOST_SIZES])


def _by_step(timeline: Timeline) -> dict[str, Any]:
    """When each step began, and the most that was allocated in it."""
    steps = timeline.steps
    if not len(steps):
        return {}
    each = -(-len(steps) // MOST_STEPS)
    runs = [steps[at : at + each] for at in range(0, len(steps), each)]
    firsts, times = [run[0].first for run in runs], timeline.time_us
    return {
        "steps": len(steps),
        "steps_each": each,
        "step_us": tuple(times[first] for first in firsts),
        "step_peak_bytes": tuple(highs(timeline.allocated[: runs[-1][-1].end], firsts)),
    }


def _curve(timeline: Timeline) -> dict[str, Any]:
    """The most that was allocated in each part of the trace's time."""
    times, allocated = timeline.time_us, timeline.allocated
    count = len(allocated)
    if not count or not times[0]:
        return {}
    begin, end = times[0], max(times[-1], times[0] + 1)
    edges = [0]
    for number in range(1, MOST_BINS + 1):
        at = begin + (end - begin) * number // MOST_BINS
        edges.append(bisect_right(times, at, edges[-1]))
    found = iter(highs(allocated[: edges[-1]], sorted(set(edges[:-1]) - {edges[-1]})))
    bins, before = [], int(timeline.facts["start_bytes"][0])
    for first, last in pairwise(edges):
        # What there was before counts for the range in which it ends.
        bins.append(max(before, next(found)) if first < last else before)
        before = allocated[last - 1] if last else before
    return {"begin_us": begin, "end_us": end, "curve": tuple(bins)}


def _is_pipelined(strings: list[str]) -> bool:
    """Whether stacks go through a pipeline's schedule."""
    files = any(name in text.replace(os.sep, "/") for text in strings for name in _PIPELINES)
    return files and _NO_PIPELINE not in strings
