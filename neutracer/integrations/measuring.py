# SPDX-License-Identifier: Apache-2.0
"""The pytest markers: GPU memory, leaks and fragmentation of a test, and baselines."""

from __future__ import annotations

import gc
import json
import re
import sys
import time
import warnings
from collections.abc import Generator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import neutracer
from neutracer.errors import NeutracerError, UnavailableError, missing
from neutracer.integrations import MARKERS
from neutracer.recording.recorder import HISTORY, dumped, is_for_cpu
from neutracer.rehearsal.cards import ENDLESS, find_card
from neutracer.saving import atomic_file
from neutracer.trace.stacks import grouped
from neutracer.trace.timeline import Timeline
from neutracer.units import format_bytes, format_count, format_share, parse_bytes

# ---- Meter -------------------------------------------------------------------------------

# Two runs of a test give the same figures: garbage of earlier tests is collected first, and the
# workspaces of cuBLAS are freed. Peaks are those of the test's own events: PyTorch's counters,
# which the test may read, stay as they are.

#: A holder ("forward (model.py:7)"), its bytes and its blocks.
Place = tuple[str, int, int]


@dataclass
class Measured:
    """The memory of one test.

    Attributes:
        device: The device of its highest peak.
        start_bytes: Allocated when the test's own code began.
        fixture_bytes: Allocated by its fixtures before.
        peak_bytes: The most allocated above its start.
        left_bytes: Allocated above its start at its end.
        allocated_peak_bytes: The most allocated in all.
        reserved_peak_bytes: The most reserved.
        cycles: Reference cycles with tensors, collected in it or at its end.
        cycle_bytes: CUDA tensors in these, in the peak or not depending on the collector.
        places: Holders of the peak, the most bytes first; empty unless requested.
        rehearsed: The card of a rehearsal, else "".
    """

    device: int = 0
    start_bytes: int = 0
    fixture_bytes: int = 0
    peak_bytes: int = 0
    left_bytes: int = 0
    allocated_peak_bytes: int = 0
    reserved_peak_bytes: int = 0
    cycles: list[neutracer.TensorCycle] = field(default_factory=list)
    cycle_bytes: int = 0
    places: list[Place] = field(default_factory=list)
    rehearsed: str = ""

    @property
    def fragmentation(self) -> float:
        """The share of the most reserved bytes that the most allocated bytes leave unused."""
        if not self.reserved_peak_bytes:
            return 0.0
        return 1 - self.allocated_peak_bytes / self.reserved_peak_bytes


def no_device() -> str:
    """The reason why no CUDA device can be measured, or "". Imports torch."""
    try:
        import torch
    except ImportError:
        return "torch is not installed"
    if getattr(torch.version, "cuda", None) is None:
        return "this torch is built without CUDA"
    return "" if torch.cuda.device_count() else "there is no CUDA device"


def _cuda() -> Any:
    """torch.cuda if in use, else None, without importing or initialising it."""
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    return cuda if cuda is not None and cuda.is_initialized() else None


def _stats() -> dict[int, dict[str, int]]:
    cuda = _cuda()
    if cuda is None:
        return {}
    return {device: cuda.memory_stats(device) for device in range(cuda.device_count())}


def allocated() -> dict[int, int]:
    """Allocated bytes of each device; empty before CUDA is in use."""
    return {device: stats.get(_CURRENT, 0) for device, stats in _stats().items()}


_CURRENT, _PEAK = "allocated_bytes.all.current", "allocated_bytes.all.peak"
_RESERVED, _RESERVED_PEAK = "reserved_bytes.all.current", "reserved_bytes.all.peak"
_SERVED = "allocation.all.allocated"


def _give_back_workspaces() -> None:
    """Free cuBLAS's workspaces, as PyTorch's leak checks do; the next use allocates them."""
    cuda = _cuda()
    clear = getattr(sys.modules["torch"]._C, "_cuda_clearCublasWorkspaces", None) if cuda else None
    if clear is not None:
        clear()


class Meter:
    """Measures one test: `begin` before its code, `end` after it, `left` after its fixtures.

    Args:
        before_setup: `allocated()` before its fixtures were made.
        empty_cache: Begin with an empty cache.
        cycles: Devices on which to watch for reference cycles, and the least bytes of one.
    """

    def __init__(
        self,
        before_setup: dict[int, int],
        *,
        empty_cache: bool = False,
        cycles: tuple[object, int] = ("all", 0),
    ) -> None:
        self._before_setup = before_setup
        self._empty_cache = empty_cache
        self._cycles = cycles
        self._found: list[neutracer.TensorCycle] = []
        self._watch: neutracer.reports.CycleWatch | None = None
        self._recording: neutracer.reports.Recording | None = None
        self._joined = False
        self._start: dict[int, int] = {}
        self._before: dict[int, dict[str, int]] = {}
        self._began_us = 0
        #: The reason why cycles could not be watched, or "".
        self.blind = ""
        self.measured = Measured()

    def begin(self) -> None:
        """Start measuring the test's code."""
        gc.collect()
        _give_back_workspaces()
        cuda = _cuda()
        if cuda is not None and self._empty_cache:
            cuda.empty_cache()
        self._before = _stats()
        self._start = allocated()
        self._watch_cycles()
        self._began_us = time.time_ns() // 1000
        self._record()

    def _watch_cycles(self) -> None:
        # pytest restores the filters when the test is over.
        warnings.filterwarnings("ignore", category=neutracer.TensorCycleWarning)
        device, min_bytes = self._cycles
        try:
            self._watch = neutracer.warn_tensor_cycles(
                device, min_bytes=min_bytes, callback=self._found.append
            )
        except neutracer.UnavailableError as error:
            self.blind = str(error)

    def _record(self) -> None:
        if is_for_cpu(sys.modules.get("torch")):
            return
        try:
            recording = neutracer.record()
            recording.quiet = True
            self._recording = recording.start()
        except neutracer.UnavailableError:
            return
        self._joined = HISTORY.is_foreign()

    def end(self) -> Measured:
        """Stop measuring the test's code; its fixtures are still alive."""
        ends = _stats()
        peaks = {device: self._peaks(device, stats) for device, stats in ends.items()}
        gc.collect()
        if self._watch is not None:
            self._watch.remove()
        _give_back_workspaces()
        after = allocated()
        rows = [self._row(device, *peak, after[device]) for device, peak in peaks.items()]
        self.measured = max(rows, key=lambda row: row.peak_bytes, default=Measured())
        self.measured.cycles = self._found
        self.measured.cycle_bytes = sum(
            nbytes
            for cycle in self._found
            for device, nbytes in cycle.device_bytes.items()
            if device.startswith("cuda")
        )
        return self.measured

    def _peaks(self, device: int, end: dict[str, int]) -> tuple[int, int]:
        """The most allocated and reserved in the test.

        Without a whole recording they are the most known: a counter of PyTorch's that has changed
        was reached in the test.
        """
        before = self._before.get(device, {})
        known = [max(end.get(key, 0), before.get(key, 0)) for key in (_CURRENT, _RESERVED)]
        if end.get(_SERVED) != before.get(_SERVED):
            timeline = self._timeline(device)
            if timeline is not None and len(timeline):
                first = self._first_event(timeline)
                levels = (timeline.allocated[first:], timeline.reserved[first:])
                most = [max(levels[at], default=0) for at in range(2)]
            else:
                changed = ((key, end.get(key, 0)) for key in (_PEAK, _RESERVED_PEAK))
                most = [peak if peak != before.get(key, 0) else 0 for key, peak in changed]
            known = [max(pair) for pair in zip(known, most, strict=True)]
        return known[0], known[1]

    def _row(self, device: int, peak: int, reserved_peak: int, after: int) -> Measured:
        start = self._start.get(device, 0)
        return Measured(
            device=device,
            start_bytes=start,
            fixture_bytes=start - self._before_setup.get(device, 0),
            peak_bytes=max(peak - start, 0),
            left_bytes=after - start,
            allocated_peak_bytes=peak,
            reserved_peak_bytes=reserved_peak,
        )

    def find_places(self) -> list[Place]:
        """Find the holders of the test's peak, among its own allocations."""
        timeline = self._timeline(self.measured.device)
        if timeline is not None:
            self.measured.places = places_of(timeline, self._first_event(timeline))
        return self.measured.places

    def left(self) -> tuple[int, list[Place]]:
        """The test's own allocations still alive: bytes of all devices, and their lines.

        If the history is incomplete, the growth of the allocated bytes, without lines.
        """
        gc.collect()
        _give_back_workspaces()
        now, total, places = allocated(), 0, []
        for device, nbytes in now.items():
            timeline = self._timeline(device)
            if timeline is None:
                total += max(nbytes - self._start.get(device, 0), 0)
            elif len(timeline):
                held = _places(timeline, len(timeline) - 1, self._first_event(timeline))
                total += sum(place[1] for place in held)
                places += held
        return total, places

    def close(self) -> None:
        """Discard the recording."""
        if self._recording is not None:
            self._recording.discard()
            self._recording = None

    def _timeline(self, device: int) -> neutracer.Timeline | None:
        """The device's timeline; None if its history is incomplete."""
        if self._recording is None or self._recording.waiting:
            return None
        try:
            snap = neutracer.load(dumped(_cuda()))
            whole = device in snap.devices and not snap.history_overflowed(device)
            return snap.timeline(device) if whole else None
        except neutracer.NeutracerError:
            return None

    def _first_event(self, timeline: neutracer.Timeline) -> int:
        """The test's first event; a history started by the program has earlier ones too."""
        return _first_since(timeline, self._began_us) if self._joined else 0


def _first_since(timeline: Timeline, begin_us: int) -> int:
    times = timeline.time_us
    return next((k for k in range(len(times)) if times[k] >= begin_us), len(times))


def places_of(timeline: neutracer.Timeline, first: int) -> list[Place]:
    """Holders at the peak since an event, among allocations since then."""
    levels = timeline.allocated[first:]
    if not len(levels):
        return []
    return _places(timeline, first + max(range(len(levels)), key=levels.__getitem__), first)


def _places(timeline: neutracer.Timeline, event: int, first: int) -> list[Place]:
    rows: list[Any] = [row for row in timeline.alive(event) if row.alloc_event >= first]
    here, rule = {row.alloc_event for row in rows}, timeline.categories.rule
    made = {
        event
        for row, event in enumerate(timeline.allocations["alloc_event"])
        if event in here and rule(row)[0] == "workspace"
    }
    workspaces = [row for row in rows if row.alloc_event in made]
    others = [row for row in rows if row.alloc_event not in made]
    found = [
        (f"{prefix}{place}", nbytes, count)
        for prefix, some in (("", others), ("workspace of cuBLAS or cuDNN, from ", workspaces))
        for place, nbytes, count in grouped((row.stack, row.size, 1) for row in some)
    ]
    return sorted(found, key=lambda place: -place[1])


# ---- Rehearsing --------------------------------------------------------------------------

# A test and its fixtures run on fake tensors, as a step of `neutracer.rehearse`. Fixtures of a
# wider scope then hold fake tensors too, so they are torn down with the test.


class RehearsedMeter:
    """Measures one test like `Meter`, on a rehearsed card; `device` is a part of its name."""

    def __init__(self, device: str) -> None:
        try:
            from neutracer.rehearsal.running import Run
        except ImportError as error:
            raise missing("torch") from error

        self._run = Run(find_card(device), ENDLESS, "", 1)
        self._stack = ExitStack()
        self._tracing: Any = None
        self._timeline: Timeline | None = None
        self._start_bytes = 0
        self._began_us = 0
        #: Bounds of its peak above its start, in bytes.
        self.peak_range = (0, 0)
        #: Fixtures of a wider scope made during the test.
        self.fixtures: list[Any] = []
        self.blind = "the test is rehearsed, and its tensors are not real"
        self.measured = Measured()

    def enter(self) -> None:
        """Start the rehearsal, before the test's fixtures."""
        self._tracing = self._stack.enter_context(self._run.pretending())

    def begin(self) -> None:
        """Start measuring the test's code."""
        gc.collect()
        self._start_bytes = self._run.requests.live_bytes
        # Gives the fixtures' requests an earlier microsecond.
        before = time.time_ns() // 1000
        while (now := time.time_ns() // 1000) == before:
            pass
        self._began_us = now

    def end(self) -> Measured:
        """Stop measuring the test's code; its fixtures are still alive."""
        gc.collect()
        self._run.keep(self._tracing)
        snap = self._run.snapshot()
        rehearsed = snap.rehearsed
        assert rehearsed is not None
        if 0 not in snap.devices:
            self.measured = Measured(rehearsed=rehearsed.device)
            return self.measured
        self._timeline = timeline = snap.timeline(0)
        first = _first_since(timeline, self._began_us)
        start = timeline.allocated[first - 1] if first else 0
        levels = timeline.allocated[first:]
        peak = max((int(level) for level in levels), default=start)
        whole = timeline.peak("allocated").bytes
        low, high = rehearsed.ranges.get("peak_allocated_bytes", (whole, whole))
        above = max(peak - start, 0)
        self.peak_range = max(above + low - whole, 0), above + high - whole
        self.measured = Measured(
            rehearsed=rehearsed.device,
            start_bytes=start,
            fixture_bytes=start,
            peak_bytes=above,
            left_bytes=int(levels[-1]) - start if len(levels) else 0,
            allocated_peak_bytes=peak,
            reserved_peak_bytes=timeline.peak("reserved").bytes,
        )
        return self.measured

    def find_places(self) -> list[Place]:
        """Find the holders of the test's peak, among its own allocations."""
        if self._timeline is not None:
            first = _first_since(self._timeline, self._began_us)
            self.measured.places = places_of(self._timeline, first)
        return self.measured.places

    def left(self) -> tuple[int, list[Place]]:
        """Bytes allocated above the test's start, without lines."""
        gc.collect()
        return max(self._run.requests.live_bytes - self._start_bytes, 0), []

    def failure(self, error: BaseException) -> str:
        """The reason why the rehearsal failed, and the values made up before."""
        from neutracer.rehearsal.requests import sentence

        card = f"rehearsed on fake tensors, as if on {self._run.card.name}"
        return "\n".join([f"{card}: {sentence(error)}", *self._run.notes])

    def close(self) -> None:
        """End the rehearsal, after the test's fixtures."""
        self._timeline = None
        self._stack.close()


# ---- Limits ------------------------------------------------------------------------------

#: Lines of a failure.
LINES = 5

# Arguments of a marker besides its limit, with their defaults.
_MORE: dict[str, dict[str, Any]] = {
    "limit_gpu_memory": {"rehearse": False, "device": "NVIDIA H200"},
}


def arguments(mark: pytest.Mark | None, **defaults: Any) -> dict[str, Any]:
    """A marker's arguments by name."""
    if mark is None:
        return defaults
    given = dict(zip(defaults, mark.args, strict=False))
    given.update(mark.kwargs)
    if len(mark.args) > len(defaults) or given.keys() - defaults:
        raise pytest.UsageError(f"{mark.name} takes {', '.join(defaults)}: {MARKERS[mark.name]}")
    return {**defaults, **given}


def value(item: pytest.Item, marker: str, argument: str) -> Any:
    """The argument of a test's marker; None without the marker."""
    mark = item.get_closest_marker(marker)
    if mark is None:
        return None
    value = arguments(mark, **{argument: None}, **_MORE.get(marker, {}))[argument]
    try:
        good = 0 <= value <= 1 if argument == "ratio" else parse_bytes(value) >= 0
    except (TypeError, ValueError) as error:
        raise pytest.UsageError(f"{marker} of {item.nodeid}: {error}") from error
    if not good:
        raise pytest.UsageError(f"{marker} of {item.nodeid}: {value!r} is not a share from 0 to 1")
    return value


def more(item: pytest.Item, marker: str) -> dict[str, Any]:
    """A marker's arguments besides its limit."""
    mark = item.get_closest_marker(marker)
    more = _MORE[marker]
    return more if mark is None else arguments(mark, limit=None, **more)


def limit_problems(item: pytest.Item, meter: Meter | RehearsedMeter) -> list[str]:
    """The limits that a test exceeded while it ran, with lines."""
    now, problems = meter.measured, []
    limit = value(item, "limit_gpu_memory", "limit")
    if limit is not None:
        problems += _peak_problems(item, meter, limit)
    ratio = value(item, "limit_gpu_fragmentation", "ratio")
    if ratio is not None and now.fragmentation > ratio:
        problems.append(
            f"of the {format_bytes(now.reserved_peak_bytes)} reserved on cuda:{now.device} at the "
            f"most, {format_share(now.fragmentation)} is beyond the most allocated "
            f"({format_bytes(now.allocated_peak_bytes)}), and "
            f"limit_gpu_fragmentation({ratio!r}) allows {format_share(ratio)}"
        )
    if item.get_closest_marker("no_tensor_cycles") is not None:
        problems += _cycle_problems(meter)
    return problems


def _peak_problems(item: pytest.Item, meter: Meter | RehearsedMeter, limit: object) -> list[str]:
    """A peak above the limit, with lines; warns of one that may be above it."""
    now, most = meter.measured, parse_bytes(limit)  # type: ignore[arg-type]
    allows = f"limit_gpu_memory({limit!r}) allows"
    between = ""
    if isinstance(meter, RehearsedMeter):
        low, high = meter.peak_range
        if low != high:
            between = f" (between {format_bytes(low)} and {format_bytes(high)})"
        if now.peak_bytes <= most < high:
            item.warn(
                pytest.PytestWarning(
                    f"{item.name} may allocate up to {format_bytes(high)} of an {now.rehearsed}, "
                    f"more than {allows}: the memory of some kernels is only known as a range"
                )
            )
    if now.peak_bytes <= most:
        return []
    did = "allocated" if not now.rehearsed else "would allocate"
    where = f"cuda:{now.device}" if not now.rehearsed else now.rehearsed
    return [
        f"the test {did} {format_bytes(now.peak_bytes)}{between} of {where} at its peak, "
        f"{format_bytes(now.peak_bytes - most)} more than {allows}",
        *lines(meter.find_places()),
    ]


def _cycle_problems(meter: Meter | RehearsedMeter) -> list[str]:
    if meter.blind:
        return [f"no_tensor_cycles can't be checked: {meter.blind}"]
    cycles = meter.measured.cycles
    if not cycles:
        return []
    total = format_bytes(sum(cycle.bytes for cycle in cycles))
    count = format_count(sum(cycle.count for cycle in cycles), "reference cycle")
    problems = [f"{count} kept {total} of tensors until the garbage collector ran"]
    for cycle in cycles[:LINES]:
        problems += ["", str(cycle)]
    return problems


def lines(places: list[Place]) -> list[str]:
    return [
        f"  {format_bytes(nbytes)} in {format_count(count, 'block')}: {place}"
        for place, nbytes, count in places[:LINES]
    ]


# ---- Baseline ----------------------------------------------------------------------------

_SCHEMA = "neutracer.pytest_baseline/1"

# Lines kept per test.
_PLACES = 5


@dataclass(frozen=True)
class Baseline:
    """The peaks of a test suite, kept in a committed file.

    Attributes:
        path: The file.
        devices: By the device's name, by the test's id: "peak_bytes" and "places".
        exists: The file exists.
    """

    path: Path
    devices: dict[str, dict[str, dict[str, Any]]]
    exists: bool

    def growth(self, test: str, name: str, now: Measured, tolerance: float) -> str:
        """The growth of a test's peak on a device as a sentence; "" within the tolerance.

        Bytes in reference cycles are allowed besides, since they depend on the collector.
        """
        before = self.devices.get(name, {}).get(test)
        if before is None:
            return ""
        old: int = before["peak_bytes"]
        more = now.peak_bytes - old
        if more <= old * tolerance + now.cycle_bytes:
            return ""
        slack = f", and {format_bytes(now.cycle_bytes)} of cycles" if now.cycle_bytes else ""
        return (
            f"the peak on cuda:{now.device} grew by {format_bytes(more)}: "
            f"{format_bytes(now.peak_bytes)}, and {format_bytes(old)} in {self.path.name} "
            f"(tolerance {format_share(tolerance)}{slack})"
        )

    def grown(self, test: str, name: str, now: Measured) -> list[str]:
        """The lines that hold more at the peak than before, the most growth first."""
        old: dict[str, int] = dict(self.devices[name][test]["places"])
        pairs = [(place, nbytes, old.pop(place)) for place, nbytes, _ in now.places if place in old]
        same = {place for place, _, _ in pairs}
        for place, nbytes, _ in now.places:
            if place not in same:
                # A line missing from the file may have moved.
                moved = next((one for one in old if _function(one) == _function(place)), "")
                pairs.append((place, nbytes, old.pop(moved, 0)))
        rows = []
        for place, nbytes, was in pairs:
            origin = f"was {format_bytes(was)}" if was else "new among the largest"
            more = nbytes - was
            rows.append((more, f"+{format_bytes(more)} {place}: {origin}"))
        return [text for more, text in sorted(rows, reverse=True) if more > 0]


def _function(place: str) -> str:
    return re.sub(r":\d+", "", place)


def read_baseline(path: Path) -> Baseline:
    """The file, or an empty baseline if it does not exist."""
    if not path.exists():
        return Baseline(path, {}, exists=False)
    try:
        plain = json.loads(path.read_text(encoding="utf-8"))
        if plain["schema"] != _SCHEMA:
            raise ValueError(f"its schema is {plain['schema']!r}")
        devices = {
            name: {
                test: {"peak_bytes": int(row["peak_bytes"]), "places": list(row["places"])}
                for test, row in tests.items()
            }
            for name, tests in plain["devices"].items()
        }
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise NeutracerError(f"{path} is not a baseline of neutracer: {error}") from error
    return Baseline(path, devices, exists=True)


def write_baseline(baseline: Baseline, measured: dict[str, dict[str, Any]]) -> int:
    """Write the file, with new figures for the measured tests; returns how many these are."""
    devices = {name: dict(tests) for name, tests in baseline.devices.items()}
    count = 0
    for test, row in measured.items():
        if row["device_name"]:
            places = [place[:2] for place in row["places"][:_PLACES]]
            kept = {"peak_bytes": row["peak_bytes"], "places": places}
            devices.setdefault(row["device_name"], {})[test] = kept
            count += 1
    if count:
        plain = {"schema": _SCHEMA, "devices": devices}
        with atomic_file(str(baseline.path)) as file:
            file.write(json.dumps(plain, indent=1, sort_keys=True).encode() + b"\n")
    return count


# ---- Measuring ---------------------------------------------------------------------------

_DEVICE_MARKERS = ("limit_gpu_memory", "limit_gpu_leaks", "limit_gpu_fragmentation")

# Rows of the summary.
_HEAVIEST = 10

_METER = pytest.StashKey[Meter | RehearsedMeter | None]()
_BEFORE = pytest.StashKey[dict[int, int]]()
_REPORTED = pytest.StashKey[dict[str, Any] | None]()


def _share(text: object) -> float:
    """A share, as "2 %" or 0.02."""
    number = str(text).strip()
    try:
        share = float(number.rstrip("% ")) / (100 if number.endswith("%") else 1)
    except ValueError:
        share = -1.0
    if not 0 <= share < float("inf"):
        raise pytest.UsageError(f"{number!r} is not a share: write it like '2 %' or 0.02")
    return share


class Measuring:
    """The part of the plugin that measures tests, checks their limits and reports the largest."""

    def __init__(self, config: pytest.Config) -> None:
        option = config.option
        self._config = config
        self._everything = bool(option.neutracer)
        self._shows = self._everything
        self._updates = bool(option.neutracer_update_baseline)
        self._tolerance = _share(option.neutracer_tolerance or config.getini("neutracer_tolerance"))
        self._baseline = None
        given, named = option.neutracer_baseline, config.getini("neutracer_baseline")
        path = config.rootpath / named if named else None
        if given:
            path = config.invocation_params.dir / given
        if self._updates and path is None:
            raise pytest.UsageError("--neutracer-update-baseline needs --neutracer-baseline FILE")
        if path is not None:
            try:
                self._baseline = read_baseline(path)
            except NeutracerError as error:
                raise pytest.UsageError(str(error)) from error
            self._everything = True
        self._writes = self._baseline is not None and (self._updates or not self._baseline.exists)
        self._rows: dict[str, dict[str, Any]] = {}
        self._written: int | None = None

    # ---- one test ----------------------------------------------------------------------

    # Not a wrapper: a skip in one would keep other plugins' wrappers from being entered.
    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        # A repeated test starts over.
        item.stash[_METER] = item.stash[_REPORTED] = None
        marked = [mark.name for mark in item.iter_markers() if mark.name in MARKERS]
        devices = [name for name in marked if name in _DEVICE_MARKERS]
        reason = no_device() if devices else ""
        rehearsed = bool(reason) and more(item, "limit_gpu_memory")["rehearse"]
        for name in devices:
            # A bad limit fails without a device too.
            value(item, name, "ratio" if name == "limit_gpu_fragmentation" else "limit")
            if reason and not (rehearsed and name == "limit_gpu_memory"):
                pytest.skip(f"{name}: {reason}")
        if rehearsed:
            item.stash[_BEFORE] = {}
            item.stash[_METER] = meter = _rehearsed(item)
            meter.enter()
        elif marked or self._everything:
            item.stash[_BEFORE] = allocated()

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(
        self, fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest
    ) -> Generator[None, object, object]:
        # Fixtures of a rehearsal hold fake tensors, so the next test gets new ones.
        item: pytest.Item = request._pyfuncitem
        meter = item.stash.get(_METER, None)
        if isinstance(meter, RehearsedMeter) and fixturedef.scope != "function":
            meter.fixtures.append(fixturedef)
        return (yield)

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, object, object]:
        if _BEFORE not in item.stash:
            return (yield)
        meter = item.stash[_METER] or _meter(item)
        item.stash[_METER] = meter
        meter.begin()
        try:
            result = yield
        except BaseException as error:
            self._keep(item, meter.end())
            if isinstance(meter, RehearsedMeter) and isinstance(error, Exception):
                item.add_report_section("call", "neutracer", meter.failure(error))
            _stop(item)
            raise
        now = meter.end()
        problems = limit_problems(item, meter)
        # Finding the holders takes a snapshot, so do it only if they are used.
        if self._shows or self._writes:
            meter.find_places()
        problems += self._growth(item, meter)
        self._keep(item, now)
        if problems:
            _stop(item)
            pytest.fail("\n".join(problems), pytrace=False)
        return result

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Generator[None, object, object]:
        meter = item.stash.get(_METER, None)
        if meter is None:
            return (yield)
        try:
            result = yield
            problem = self._leak(item, meter)
        finally:
            if isinstance(meter, RehearsedMeter):
                for fixture in reversed(meter.fixtures):
                    fixture.finish(item._request)  # type: ignore[attr-defined]
            meter.close()
            item.stash[_METER] = None
        if problem:
            pytest.fail(problem, pytrace=False)
        return result

    def _growth(self, item: pytest.Item, meter: Meter | RehearsedMeter) -> list[str]:
        now, baseline = meter.measured, self._baseline
        if baseline is None or self._updates or not now.peak_bytes:
            return []
        name = _device(now)
        text = baseline.growth(item.nodeid, name, now, self._tolerance)
        if not text:
            return []
        meter.find_places()
        return [text, *(f"  {line}" for line in baseline.grown(item.nodeid, name, now)[:LINES])]

    def _leak(self, item: pytest.Item, meter: Meter | RehearsedMeter) -> str:
        limit = value(item, "limit_gpu_leaks", "limit")
        if limit is None:
            return ""
        # pytest holds the values of torn-down fixtures until its last report.
        item.funcargs = {}  # type: ignore[attr-defined]
        nbytes, places = meter.left()
        if nbytes <= parse_bytes(limit):
            return ""
        return "\n".join(
            [
                f"the test left {format_bytes(nbytes)} of GPU memory behind, and "
                f"limit_gpu_leaks({limit!r}) allows {format_bytes(parse_bytes(limit))}",
                *lines(places),
            ]
        )

    def _keep(self, item: pytest.Item, now: Measured) -> None:
        if now.peak_bytes or now.fixture_bytes:
            for name in ("peak", "left", "fixture"):
                value = getattr(now, f"{name}_bytes")
                item.user_properties.append((f"neutracer_{name}_bytes", value))
        item.stash[_REPORTED] = {
            "device": now.device,
            "device_name": _device(now) if now.peak_bytes else "",
            "peak_bytes": now.peak_bytes,
            "left_bytes": now.left_bytes,
            "fixture_bytes": now.fixture_bytes,
            "places": [list(place) for place in now.places[:_HEAVIEST]],
        }

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if call.when == "call" and item.stash.get(_REPORTED, None) is not None:
            # xdist sends it from workers to the controller.
            vars(report)["neutracer"] = item.stash[_REPORTED]
        return report

    # ---- all tests ---------------------------------------------------------------------

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        row = getattr(report, "neutracer", None)
        # A test that failed may have ended early.
        if row is not None and (report.passed or self._updates or self._shows):
            self._rows[report.nodeid] = {**row, "passed": report.passed}

    def pytest_sessionfinish(self) -> None:
        # With xdist, only the controller has all reports.
        if self._baseline is None or hasattr(self._config, "workerinput"):
            return
        if self._writes:
            passed = {test: row for test, row in self._rows.items() if row["passed"]}
            self._written = write_baseline(self._baseline, passed)

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if self._baseline is not None:
            self._say_baseline(terminalreporter)
        if self._shows:
            self._say_heaviest(terminalreporter)

    def _say_baseline(self, terminal: Any) -> None:
        assert self._baseline is not None
        path = self._baseline.path
        if self._written is not None:
            what = format_count(self._written, "peak")
            text = f"{what} written to {path}"
            if not self._written:
                text = "no CUDA memory was allocated, and no baseline was written"
        else:
            names = {row["device_name"] for row in self._rows.values() if row["device_name"]}
            strange = sorted(names - self._baseline.devices.keys())
            text = f"peaks compared with {path}, tolerance {format_share(self._tolerance)}"
            if strange:
                text += f"; it lacks {', '.join(strange)}: --neutracer-update-baseline"
            elif not names:
                text = "no CUDA memory was allocated, and nothing compared"
        terminal.write_line(f"neutracer: {text}")

    def _say_heaviest(self, terminal: Any) -> None:
        terminal.section("neutracer: the heaviest tests")
        rows = sorted(self._rows.items(), key=lambda row: -row[1]["peak_bytes"])
        rows = [row for row in rows if row[1]["peak_bytes"]]
        if not rows:
            reason = no_device() or "no test allocated on a CUDA device"
            terminal.write_line(f"no GPU memory was measured: {reason}")
        for test, row in rows[:_HEAVIEST]:
            figures = [f"{format_bytes(row['peak_bytes'])} at the peak"]
            for name, words in (("left", "kept at its end"), ("fixture", "of fixtures")):
                if row[f"{name}_bytes"] > 0:
                    figures.append(f"{format_bytes(row[f'{name}_bytes'])} {words}")
            terminal.write_line(f"{test}: {', '.join(figures)}")
            for line in lines([(place[0], place[1], place[2]) for place in row["places"]])[:3]:
                terminal.write_line(line)


def _meter(item: pytest.Item) -> Meter:
    wanted = arguments(item.get_closest_marker("no_tensor_cycles"), device="all", min_bytes=0)
    return Meter(
        item.stash[_BEFORE],
        empty_cache=item.get_closest_marker("limit_gpu_fragmentation") is not None,
        cycles=(wanted["device"], wanted["min_bytes"]),
    )


def _rehearsed(item: pytest.Item) -> RehearsedMeter:
    device = more(item, "limit_gpu_memory")["device"]
    try:
        return RehearsedMeter(device)
    except (TypeError, ValueError) as error:
        raise pytest.UsageError(f"limit_gpu_memory of {item.nodeid}: {error}") from error
    except UnavailableError as error:
        pytest.skip(f"limit_gpu_memory(rehearse=True): {error}")


def _stop(item: pytest.Item) -> None:
    """Close the meter of a failed test; a rehearsal lasts until its fixtures end."""
    meter = item.stash[_METER]
    if isinstance(meter, Meter):
        meter.close()
        item.stash[_METER] = None


def _device(now: Measured) -> str:
    """PyTorch's name of a device, or the card of a rehearsal: workspaces and kernels differ by
    its kind."""
    if now.rehearsed:
        return f"{now.rehearsed}, rehearsed"
    name: str = sys.modules["torch"].cuda.get_device_properties(now.device).name
    return name
