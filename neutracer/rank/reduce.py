# SPDX-License-Identifier: Apache-2.0
"""Files of a job to digests: names to ranks, snapshots reduced in worker processes."""

from __future__ import annotations

import importlib
import multiprocessing
import os
import re
import signal
import stat
import sys
import threading
import warnings
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from itertools import pairwise
from multiprocessing.context import SpawnContext, SpawnProcess
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, cast

from neutracer._native import core
from neutracer.arguments import path_name
from neutracer.errors import HistoryWarning, NeutracerError, UnavailableError, pip_install
from neutracer.leak.series import highs
from neutracer.leak.trend import leak_trend
from neutracer.rank.digest import MOST_BINS, MOST_STEPS, Held, RankDigest, checked
from neutracer.trace.beside import MOST_SIDECAR_BYTES, parse_json, sidecar_paths, sidecars
from neutracer.trace.flaws import end_is_known
from neutracer.trace.roles import CATEGORIES, RULES
from neutracer.trace.snapshot import Snapshot, load
from neutracer.trace.source import memory_bound
from neutracer.trace.timeline import Timeline

if TYPE_CHECKING:
    from neutracer.monitor.memory_monitor import MemoryMonitor

# ---- Files -------------------------------------------------------------------------------

_SNAPSHOT = re.compile(r"\.(?:pickle|pkl|snapshot)(?:\.(?:gz|xz|zst))?$")
# The word "rank3", "rank_3", "rank-3" or "RANK=3" in the name of a file or folder.
_RANK = re.compile(r"(?<![a-z])rank[-_=]?(\d{1,7})(?!\d)", re.IGNORECASE)
# A name given by neutracer: kind-day-time-host-rank-process-number-reason.
_OWN = re.compile(r"^(\w+)-\d{8}-\d{6}-(.*?)-(?:rank\d+-)?(\d+)-\d+(?:-([a-z]+))?$")


class Named(NamedTuple):
    """Facts from a file's name; `reason` is why it was written: "exit", "oom", ..., or ""."""

    rank: int | None
    host: str
    pid: int | None
    reason: str


def named(path: str) -> Named:
    """Parse a file's name, and for the rank also its folder's.

    Example:
        >>> one = named("reports/run-20260131-120000-node7-rank3-4711-1-exit.pickle")
        >>> one.rank, one.host, one.pid, one.reason
        (3, 'node7', 4711, 'exit')
    """
    folder, _, name = path.replace(os.sep, "/").rpartition("/")
    found = _RANK.findall(name) or _RANK.findall(folder.rpartition("/")[2])
    rank = int(found[-1]) if found else None
    own = _OWN.match(_SNAPSHOT.sub("", name))
    if own is None:
        return Named(rank, "", None, "oom" if re.search(r"(?<![a-z])oom", name.lower()) else "")
    return Named(rank, own[2], int(own[3]), own[4] or own[1])


def _is_remote(path: str) -> bool:
    return "://" in path


def _filesystem(path: str) -> tuple[Any, str]:
    """The file system of a URL, and the path in it."""
    scheme = path.partition("://")[0]
    try:
        fsspec = importlib.import_module("fsspec")
        system, inner = fsspec.core.url_to_fs(path)
    except ImportError as error:
        install = f'install it with "{pip_install("fsspec")}" ({error})'
        raise UnavailableError(f"a reader of {scheme}:// paths", install) from None
    return system, inner


def listed(sources: Iterable[str | os.PathLike[str]]) -> tuple[dict[str, bool], list[str]]:
    """The snapshots in files and folders, mapped to whether they were named; and skipped files."""
    found: dict[str, tuple[str, bool]] = {}
    others: list[str] = []
    for source in sources:
        path = path_name(source, "sources")
        inside = _inside(path)
        if inside is None:
            found[_normalized(path)] = path, True
            continue
        snapshots, rest = _parted(inside)
        for name in snapshots:
            found.setdefault(_normalized(name), (name, False))
        beside = {stem_of(name) for name in snapshots}
        others += [name for name in rest if stem_of(name) not in beside]
    return dict(found.values()), list(dict.fromkeys(others))


def _normalized(path: str) -> str:
    return path if _is_remote(path) else os.path.abspath(path)


def _parted(inside: Iterable[str]) -> tuple[list[str], list[str]]:
    """Split into possible snapshots and the rest, each sorted."""
    names = sorted(inside)
    found = [name for name in names if _SNAPSHOT.search(name) and not _is_endless(name)]
    known = set(found)
    return found, [name for name in names if name not in known]


def _is_endless(path: str) -> bool:
    """Whether it is a pipe or a device, whose opening may block forever."""
    try:
        return not _is_remote(path) and not stat.S_ISREG(os.stat(path).st_mode)
    except (OSError, ValueError):
        return False  # Reading it will report the error.


def _inside(path: str) -> list[str] | None:
    """All files, and all unreadable folders, below a folder; None if it is not a folder."""
    if _is_remote(path):
        system, inner = _filesystem(path)
        if not system.isdir(inner):
            return None
        return [system.unstrip_protocol(name) for name in system.find(inner)]
    if not os.path.isdir(path):
        return None

    unread: list[str] = []

    def passed(error: OSError) -> None:
        if error.filename == path:
            raise error
        unread.append(str(error.filename))

    walk = os.walk(path, onerror=passed)
    return [os.path.join(folder, name) for folder, _, names in walk for name in names] + unread


def stem_of(path: str) -> str:
    """The name of a snapshot, or of a file beside one, without its extensions."""
    return _SNAPSHOT.sub("", path.removesuffix(".json").removesuffix(".txt"))


@contextmanager
def opened_file(path: str) -> Iterator[str | BinaryIO]:
    """The argument of `load` for a path: itself, or an open file for a URL."""
    if not _is_remote(path):
        yield path
        return
    system, inner = _filesystem(path)
    with system.open(inner, "rb") as file:
        yield cast(BinaryIO, file)


def size_of(path: str) -> int:
    """Bytes of a local file; 0 if unknown."""
    try:
        return 0 if _is_remote(path) else os.path.getsize(path)
    except (OSError, ValueError):
        return 0


def facts_of(path: str) -> dict[str, Any]:
    """The JSON beside a snapshot; empty if it is missing or damaged."""
    for plain in _remote_sidecars(path) if _is_remote(path) else sidecars(path)[0]:
        if str(plain.get("schema", "")).startswith("neutracer."):
            return plain
    return {}


def _remote_sidecars(path: str) -> Iterator[dict[str, Any]]:
    """The readable JSON objects beside a snapshot at a URL."""
    for beside in sidecar_paths(path):
        try:
            system, inner = _filesystem(beside)
            with system.open(inner, "rb") as file:
                plain = parse_json(file.read(MOST_SIDECAR_BYTES))
        except (OSError, ValueError):
            continue
        if isinstance(plain, dict):
            yield plain


# ---- Reduce ------------------------------------------------------------------------------

_MOST_EVENTS = 1_000_000  # No trend for longer traces, as in an overview.
_MOST_PLACES = 32  # Lines and parameter sizes kept: a digest is a few kilobytes.
_MOST_SIZES = 64
_MOST_BLOCKS = 4096  # Oldest, and newest, allocations that decide a line's category.

# The rules whose parameters are the same on all ranks of a shape.
_SURE_RULES = ("module-made", "as-many-as-gradients", "held-as-parameter")
_SURE = re.compile(b"[%b]" % re.escape(bytes(map(tuple(RULES).index, _SURE_RULES))))

# The files of pipeline schedules, and the schedule of a job without a pipeline.
_PIPELINES = ("torch/distributed/pipelining/", "pipeline_parallel/", "deepspeed/runtime/pipe/")
_NO_PIPELINE = "forward_backward_no_pipelining"

_NAMES = ("rank", "world_size", "job", "attempt", "host", "pid", "role", "program", "torch")


def digest_of(path: str) -> bytes:
    """Reduce a file to a serialized digest, which any executor can carry; never raises: an
    unreadable file gives a digest with the reason."""
    about = _about(path)
    try:
        with warnings.catch_warnings(), opened_file(path) as file:
            warnings.simplefilter("ignore", HistoryWarning)
            snap = load(file, progress=False)
            digest = reduced(snap, path, about)
    except (NeutracerError, OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        digest = unread(path, reason)
    except MemoryError:
        digest = unread(path, "reading it takes more memory than there is")
    except Exception as error:
        # One unexpected file must not cost the report on a thousand others.
        digest = unread(path, f"it can't be analysed ({type(error).__name__}: {error})")
    return digest.to_bytes()


def unread(path: str, trouble: str) -> RankDigest:
    """The digest of a file that was not read, for the reason `trouble`."""
    return RankDigest(source=path, trouble=trouble, **_known(path, _about(path)))


def _about(path: str) -> dict[str, Any]:
    """The facts about the process in the JSON beside a file."""
    try:
        facts = facts_of(path)
    except NeutracerError:
        return {}
    process = facts.get("process")
    return process if isinstance(process, dict) else facts


def _known(path: str, about: dict[str, Any]) -> dict[str, Any]:
    """Rank, host and so on from the sidecar, or else from the file's name."""
    name_facts = named(path)
    found: dict[str, Any] = {
        "rank": checked("rank", name_facts.rank),
        "host": name_facts.host,
        "pid": checked("pid", name_facts.pid),
    }
    for name in _NAMES:
        value = checked(name, about.get(name))
        if value not in (None, ""):
            found[name] = value
    found["written_s"] = checked("written_s", about.get("time_s"))
    found["reason"] = name_facts.reason
    return found


def reduced(snap: Snapshot, path: str, about: dict[str, Any]) -> RankDigest:
    """The digest of a snapshot from `path`, with the facts about its process."""
    known = _known(path, about)
    if not snap.devices:
        trouble = "it has no memory and no events"
        if snap.partial:
            trouble = f"nothing of it is left: {snap.partial}"
        return RankDigest(source=path, trouble=trouble, **known)
    # A device that ran out of memory, or else the one with the highest peak.
    timelines = {one: snap.timeline(one) for one in snap.devices}
    ranked = {
        one: (bool(timeline.facts["oom_count"]), timeline.peak().bytes)
        for one, timeline in timelines.items()
    }
    device = max(ranked, key=lambda one: (ranked[one], -one))
    by_device = about.get("devices")
    facts = by_device.get(str(device)) if isinstance(by_device, dict) else None
    timeline = timelines[device]
    notes = [f"only a part was read: {snap.partial}"] if snap.partial else []
    notes += [flaw.message for flaw in snap.flaws]
    notes += snap.beside.damage
    # Unused devices have a trace too: PyTorch writes the snapshot's moment to each.
    rest = [snap.device_name(one) for one, (_, held) in ranked.items() if held and one != device]
    if rest:
        notes.append(f"also has memory on {', '.join(rest)}")
    capacity = _limit(facts) if isinstance(facts, dict) else {}
    growth = {}
    if 0 < snap.trace_length(device) <= _MOST_EVENTS:
        growth = growth_of(snap, device, capacity=capacity.get("total_bytes"))
    return RankDigest(
        source=path,
        notes=tuple(notes),
        device=snap.device_name(device),
        **known,
        **capacity,
        **_figures(snap, device, timeline),
        **_failures(timeline),
        **growth,
        **_held(timeline),
        **_by_step(timeline),
        **_curve(timeline),
        pipelined=_is_pipelined(snap.strings),
        history_complete=snap.history_complete(device),
        end_known=end_is_known(snap, device),
    )


def _limit(facts: dict[str, Any]) -> dict[str, Any]:
    """A device's size and its non-PyTorch bytes, from the sidecar."""
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
    if not timeline.facts["oom_count"]:
        return {}
    events = [at for at, name in enumerate(timeline.events["action"]) if name == "oom"]
    first = events[0]
    return {
        "ooms": len(events),
        "first_oom_us": timeline.time_us[first] or None,
        "oom_bytes": timeline.events.codes("size")[first],
    }


def growth_of(
    source: Snapshot | MemoryMonitor, device: int, *, steps: int = 0, capacity: int | None = None
) -> dict[str, Any]:
    """The fields of a digest that `leak_trend` gives, of a source with so many steps."""
    try:
        trend = leak_trend(source, device=device, capacity=capacity, live=False)
    except (NeutracerError, ValueError):
        return {}
    marks = trend.steps + trend.warmup_steps
    # With short steps, a monitor's mark covers several.
    each = max(steps / marks, 1.0) if trend.unit == "step" and marks and steps else 1.0
    grows = trend.verdict not in ("steady", "unknown")
    left = None if trend.oom_step is None else max(trend.oom_step - (marks - 1), 0)
    return {
        "verdict": trend.verdict,
        "bytes_per_step": round(trend.bytes_per_step / each) if grows else 0,
        "steps_to_oom": None if left is None else round(left * each),
        "grows": str(trend.growth[0].place) if trend.growth else "",
    }


def _held(timeline: Timeline) -> dict[str, Any]:
    """The peak by category, line and parameter size."""
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
    """Live bytes after an event by line and category, sampled from the oldest and newest rows."""
    rows = timeline.allocations
    made, freed, sizes, stacks = map(rows.codes, ("alloc_event", "free_event", "size", "stack"))
    codes, sums = timeline.categories.codes, Counter[tuple[int, int]]()
    # Rows from before the trace come first, the others in event order.
    last = bisect_right(made, event)
    sampled = {*range(min(_MOST_BLOCKS, last)), *range(max(last - _MOST_BLOCKS, 0), last)}
    for row in sampled:
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
    """(size, count) of the live parameters after an event, most bytes first."""
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
    """Each step's start, and its peak of allocated."""
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
    """The peak of allocated in each time bin of the trace."""
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
        # The value at the start of a bin counts too.
        bins.append(max(before, next(found)) if first < last else before)
        before = allocated[last - 1] if last else before
    return {"begin_us": begin, "end_us": end, "curve": tuple(bins)}


def _is_pipelined(strings: list[str]) -> bool:
    """Whether stacks go through a pipeline's schedule."""
    files = any(name in text.replace(os.sep, "/") for text in strings for name in _PIPELINES)
    return files and _NO_PIPELINE not in strings


# ---- Pool --------------------------------------------------------------------------------

# Up to these, reading in this process is faster than starting others.
_FEW_FILES = 64
_SMALL_BYTES = 8 << 20
_PLAIN_FACTOR = 4  # Memory per byte of a plain file, and of a compressed one.
_PACKED_FACTOR = 64


def digests(
    paths: Sequence[str],
    executor: Executor | None = None,
    progress: Callable[[int, int], object] | None = None,
) -> list[RankDigest]:
    """The digests of files, in order; one that could not be read has the reason.

    Args:
        executor: The executor to read them with; None uses local processes, one per core as far
            as memory allows, or this process if that is faster.
        progress: Called with the number of files done and the total.
    """
    progress = progress or (lambda done, total: None)
    found: dict[int, bytes | str] = {}
    if executor is None:
        _by_processes(found, paths, progress)
    else:
        try:
            _fill(found, executor, range(len(paths)), paths, progress)
        except BrokenExecutor as error:
            reason = f"the executor broke before it was read: {str(error) or type(error).__name__}"
            for at in range(len(paths)):
                found.setdefault(at, reason)
    return [_digest(found[at], paths[at]) for at in range(len(paths))]


def _digest(raw: bytes | str, path: str) -> RankDigest:
    if isinstance(raw, str):
        return unread(path, raw)
    try:
        return RankDigest.from_bytes(raw)
    except (TypeError, ValueError) as error:
        return unread(path, f"the worker has another version of neutracer ({error})")


def _fill(
    found: dict[int, bytes | str],
    executor: Executor,
    numbers: Sequence[int],
    paths: Sequence[str],
    progress: Callable[[int, int], object],
) -> None:
    """Read files by their numbers into `found`, as digests or error texts."""
    waiting: dict[Future[bytes], int] = {}
    try:
        for at in numbers:
            waiting[executor.submit(digest_of, paths[at])] = at
        for future in as_completed(waiting):
            try:
                result: bytes | str = future.result()
            except BrokenExecutor:
                raise
            except Exception as error:
                # A cluster's error for a dead worker, or a file out of its reach.
                result = f"no worker could read it: {type(error).__name__}: {error}"
            found[waiting[future]] = result
            progress(len(found), len(paths))
    except BaseException:
        # Ctrl-C must not wait for a thousand files.
        for future in waiting:
            future.cancel()
        raise


def _by_processes(
    found: dict[int, bytes | str], paths: Sequence[str], progress: Callable[[int, int], object]
) -> None:
    sizes = [size_of(path) for path in paths]
    workers = _workers(paths, sizes)
    if workers < 2 or (len(paths) <= _FEW_FILES and sum(sizes) <= _SMALL_BYTES):
        _here(found, paths, progress)
        return
    try:
        with _processes(min(workers, len(paths))) as pool:
            if _can_begin(pool):
                _fill(found, pool, range(len(paths)), paths, progress)
    except BrokenExecutor:
        # A process was killed, perhaps out of memory: read the rest one by one, each in its own
        # process, to identify the file.
        for at in range(len(paths)):
            if at not in found:
                _alone(found, at, paths, progress)
    _here(found, paths, progress)


def _here(
    found: dict[int, bytes | str], paths: Sequence[str], progress: Callable[[int, int], object]
) -> None:
    for at, path in enumerate(paths):
        if at not in found:
            found[at] = digest_of(path)
            progress(len(found), len(paths))


def _alone(
    found: dict[int, bytes | str],
    at: int,
    paths: Sequence[str],
    progress: Callable[[int, int], object],
) -> None:
    try:
        with _processes(1) as pool:
            _fill(found, pool, [at], paths, progress)
    except BrokenExecutor:
        found[at] = "the process that read it was killed: there may be too little memory for it"
        progress(len(found), len(paths))


def _processes(count: int) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(count, mp_context=_context(), initializer=_begin)


def _begin() -> None:
    # Ctrl-C in a terminal reaches all processes; the parent ends the workers.
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _can_begin(pool: ProcessPoolExecutor) -> bool:
    """Whether a worker starts and runs a task."""
    try:
        pool.submit(os.getpid).result()
    except (BrokenExecutor, OSError):
        return False
    return True


class _WorkerProcess(SpawnProcess):
    """A spawned process that does not rerun the program's script: its tasks need only this
    package."""

    def start(self) -> None:
        main = vars(sys.modules["__main__"])
        hidden: dict[str, Any] = {
            name: main[name] for name in ("__file__", "__spec__") if name in main
        }
        main.update(dict.fromkeys(hidden))
        try:
            super().start()
        finally:
            main.update(hidden)


class _WorkerContext(SpawnContext):
    Process = _WorkerProcess


def _workers(paths: Sequence[str], sizes: Sequence[int]) -> int:
    """One process per core, as far as memory allows for the largest file."""
    cores = len(os.sched_getaffinity(0))
    pairs = zip(paths, sizes, strict=True)
    needs = [size * (_packed(path) or _PLAIN_FACTOR) for path, size in pairs]
    largest = max(needs, default=0)
    room = memory_bound() // largest if largest else len(paths)
    if multiprocessing.current_process().daemon:
        return 1  # A daemon, such as a DataLoader's worker, may not start processes.
    return max(min(cores, len(paths), room), 1)


def _packed(path: str) -> int:
    return _PACKED_FACTOR if path.endswith((".gz", ".xz", ".zst")) else 0


def _context() -> Any:
    """Fork if this process has neither threads nor torch, which may deadlock after a fork; else
    spawn."""
    is_plain = threading.active_count() == 1 and "torch" not in sys.modules
    return multiprocessing.get_context("fork") if is_plain else _WorkerContext()
