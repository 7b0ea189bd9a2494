# SPDX-License-Identifier: Apache-2.0
"""Files of a job to digests: names to ranks, snapshots reduced in worker processes."""

from __future__ import annotations

import importlib
import json
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
from typing import Any, BinaryIO, cast

from neutracer._native import core
from neutracer.arguments import path_name
from neutracer.errors import HistoryWarning, NeutracerError, UnavailableError, pip_install
from neutracer.leak.series import highs
from neutracer.leak.trend import LeakTrendReport, leak_trend
from neutracer.rank.digest import MOST_BINS, MOST_STEPS, Held, RankDigest, checked
from neutracer.trace.beside import MOST_SIDECAR_BYTES, sidecar_paths, sidecars
from neutracer.trace.flaws import end_is_known
from neutracer.trace.roles import CATEGORIES, RULES
from neutracer.trace.snapshot import Snapshot, load
from neutracer.trace.source import memory_bound
from neutracer.trace.timeline import Timeline

# ---- Files -------------------------------------------------------------------------------

# The files of a job: in folders, one by one, or where `fsspec` reaches them.

# What a snapshot's name ends in, before what says how it is packed.
_SNAPSHOT = re.compile(r"\.(?:pickle|pkl|snapshot)(?:\.(?:gz|xz|zst))?$")

# "rank3", "rank_3", "rank-3", "RANK=3" as a word of its own in a file's or a folder's name.
_RANK = re.compile(r"(?<![a-z])rank[-_=]?(\d{1,7})(?!\d)", re.IGNORECASE)

# A file that neutracer has named: kind-day-time-host-rank-process-number-reason.
_OWN = re.compile(r"^(\w+)-\d{8}-\d{6}-(.*?)-(?:rank\d+-)?(\d+)-\d+(?:-([a-z]+))?$")


class Named:
    """What a file's name says.

    Attributes:
        rank: The rank, or None.
        host: The host, or "".
        pid: The process, or None.
        reason: Why it was written: "exit", "oom", ..., or "".
    """

    def __init__(self, rank: int | None, host: str, pid: int | None, reason: str) -> None:
        self.rank, self.host, self.pid, self.reason = rank, host, pid, reason


def named(path: str) -> Named:
    """What the name of a file says, or else that of its folder.

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
    """The file system of a URL, and the path in it.

    Raises:
        UnavailableError: fsspec, or what it needs for this kind of URL, is not installed.
        ValueError: There is no such kind.
    """
    scheme = path.partition("://")[0]
    try:
        fsspec = importlib.import_module("fsspec")
        system, inner = fsspec.core.url_to_fs(path)
    except ImportError as error:
        install = f'install it with "{pip_install("fsspec")}" ({error})'
        raise UnavailableError(f"a reader of {scheme}:// paths", install) from None
    return system, inner


def listed(sources: Iterable[str | os.PathLike[str]]) -> tuple[dict[str, bool], list[str]]:
    """The snapshots among files and in folders, and the other files of these folders.

    Args:
        sources: Paths of files, which are taken whatever they are called, and of folders, which
            are searched with all that is below.

    Returns:
        The snapshots without repetition in the order of their names within each source, with
        whether each was named itself, and was not only found; and what was passed over, among it
        folders that can't be read. Sidecars and texts beside snapshots are neither.

    Raises:
        UnavailableError: A URL needs a library that is not here.
        OSError: One of the folders can't be read.
    """
    found: dict[str, tuple[str, bool]] = {}
    others: list[str] = []
    for source in sources:
        path = path_name(source, "sources")
        inside = _inside(path)
        if inside is None:
            found[_spelled(path)] = path, True
            continue
        snapshots, rest = _parted(inside)
        for name in snapshots:
            found.setdefault(_spelled(name), (name, False))
        beside = {_stem(name) for name in snapshots}
        others += [name for name in rest if _stem(name) not in beside]
    return dict(found.values()), list(dict.fromkeys(others))


def _spelled(path: str) -> str:
    """The same for all spellings of a path; links are files of their own."""
    return path if _is_remote(path) else os.path.abspath(path)


def _parted(inside: Iterable[str]) -> tuple[list[str], list[str]]:
    """What may be snapshots, and the rest, each in the order of the names."""
    names = sorted(inside)
    found = [name for name in names if _SNAPSHOT.search(name) and not _is_endless(name)]
    known = set(found)
    return found, [name for name in names if name not in known]


def _is_endless(path: str) -> bool:
    """Whether it is a pipe or a device: who opens one may wait for ever."""
    try:
        return not _is_remote(path) and not stat.S_ISREG(os.stat(path).st_mode)
    except (OSError, ValueError):
        # A file that is gone, or a link that leads nowhere: reading it says so.
        return False


def _inside(path: str) -> list[str] | None:
    """All files below a folder, and folders there that can't be read; None for what is no
    folder."""
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


def _stem(path: str) -> str:
    """A snapshot's name, or that of what lies beside one, without its endings."""
    return _SNAPSHOT.sub("", path.removesuffix(".json").removesuffix(".txt"))


@contextmanager
def opened_file(path: str) -> Iterator[str | BinaryIO]:
    """What `load` takes for a path: itself, or an open file where it is a URL."""
    if not _is_remote(path):
        yield path
        return
    system, inner = _filesystem(path)
    with system.open(inner, "rb") as file:
        yield cast(BinaryIO, file)


def size_of(path: str) -> int:
    """Bytes of a local file; 0 where that is not known."""
    try:
        return 0 if _is_remote(path) else os.path.getsize(path)
    except (OSError, ValueError):
        return 0


def facts_of(path: str) -> dict[str, Any]:
    """What the JSON beside a snapshot says; nothing where there is none, or it is damaged."""
    for plain in _remote_sidecars(path) if _is_remote(path) else sidecars(path)[0]:
        if str(plain.get("schema", "")).startswith("neutracer."):
            return plain
    return {}


def _remote_sidecars(path: str) -> Iterator[dict[str, Any]]:
    """The JSON objects beside a snapshot at a URL; what can't be read is passed over."""
    for beside in sidecar_paths(path):
        try:
            system, inner = _filesystem(beside)
            with system.open(inner, "rb") as file:
                plain = json.loads(file.read(MOST_SIDECAR_BYTES))
        except (OSError, ValueError, RecursionError):
            continue
        if isinstance(plain, dict):
            yield plain


# ---- Reduce ------------------------------------------------------------------------------

# One file reduced to what the comparison of ranks needs: some kilobytes, where the file is.

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


# ---- Pool --------------------------------------------------------------------------------

# Files reduced by any executor, or by processes of this machine.

# So many files, and bytes, are read here at the most: processes take longer to begin.
_FEW_FILES = 64
_SMALL_BYTES = 8 << 20

# What reading and asking take of memory, for each byte of a file as it is and of a packed one.
_PLAIN_FACTOR = 4
_PACKED_FACTOR = 64


def digests(
    paths: Sequence[str],
    executor: Executor | None = None,
    progress: Callable[[int, int], object] | None = None,
) -> list[RankDigest]:
    """Each file as a digest, in their order.

    Args:
        paths: The files.
        executor: What computes; None is as many processes of this machine as it has cores, and
            as there is memory for, or this process where that is quicker.
        progress: Called with how many are done, and how many there are.

    Returns:
        One a file. What could not be read, or ended the process that read it, says so.
    """
    told = progress or (lambda done, total: None)
    found: dict[int, bytes | str] = {}
    if executor is None:
        _by_processes(found, paths, told)
    else:
        try:
            _fill(found, executor, range(len(paths)), paths, told)
        except BrokenExecutor as error:
            said = f"the executor broke before it was read: {str(error) or type(error).__name__}"
            for at in range(len(paths)):
                found.setdefault(at, said)
    return [_digest(found[at], paths[at]) for at in range(len(paths))]


def _digest(raw: bytes | str, path: str) -> RankDigest:
    if isinstance(raw, str):
        return unread(path, raw)
    try:
        return RankDigest.from_bytes(raw)
    except (TypeError, ValueError) as error:
        return unread(path, f"who read it has another version of neutracer ({error})")


def _fill(
    found: dict[int, bytes | str],
    executor: Executor,
    numbers: Sequence[int],
    paths: Sequence[str],
    told: Callable[[int, int], object],
) -> None:
    """Have files read, by their numbers; a text in `found` is what went wrong.

    Raises:
        BrokenExecutor: The executor has ended; what it had read before is in `found`.
    """
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
                # What a cluster says of a worker that ended, or of a file that it can't reach.
                result = f"no worker could read it: {type(error).__name__}: {error}"
            found[waiting[future]] = result
            told(len(found), len(paths))
    except BaseException:
        # Ctrl-C is not to wait for a thousand files.
        for future in waiting:
            future.cancel()
        raise


def _by_processes(
    found: dict[int, bytes | str], paths: Sequence[str], told: Callable[[int, int], object]
) -> None:
    sizes = [size_of(path) for path in paths]
    workers = _workers(paths, sizes)
    if workers < 2 or (len(paths) <= _FEW_FILES and sum(sizes) <= _SMALL_BYTES):
        _here(found, paths, told)
        return
    try:
        # As few as are needed: each begins with Python and this package.
        with _processes(min(workers, len(paths))) as pool:
            if _can_begin(pool):
                _fill(found, pool, range(len(paths)), paths, told)
    except BrokenExecutor:
        # A process was killed, perhaps because memory ran out: the rest one by one, each in a
        # process of its own, so that the file that is to blame is known.
        for at in range(len(paths)):
            if at not in found:
                _alone(found, at, paths, told)
    _here(found, paths, told)


def _here(
    found: dict[int, bytes | str], paths: Sequence[str], told: Callable[[int, int], object]
) -> None:
    """Read in this process what has not been read."""
    for at, path in enumerate(paths):
        if at not in found:
            found[at] = digest_of(path)
            told(len(found), len(paths))


def _alone(
    found: dict[int, bytes | str],
    at: int,
    paths: Sequence[str],
    told: Callable[[int, int], object],
) -> None:
    try:
        with _processes(1) as pool:
            _fill(found, pool, [at], paths, told)
    except BrokenExecutor:
        found[at] = "the process that read it was killed: there may be too little memory for it"
        told(len(found), len(paths))


def _processes(count: int) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(count, mp_context=_context(), initializer=_begin)


def _begin() -> None:
    # Ctrl-C in a terminal goes to all processes: the one that waits for the others ends them.
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _can_begin(pool: ProcessPoolExecutor) -> bool:
    """Whether a process can be begun, and comes to its work."""
    try:
        pool.submit(os.getpid).result()
    except (BrokenExecutor, OSError):
        return False
    return True


class _Anew(SpawnProcess):
    """A new process that knows nothing of the program's own script, which would run again in
    it: what it is given is in this package."""

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


class _NewProcesses(SpawnContext):
    Process = _Anew


def _workers(paths: Sequence[str], sizes: Sequence[int]) -> int:
    """As many processes as this one has cores, and as the largest file leaves memory for."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    pairs = zip(paths, sizes, strict=True)
    needs = [size * (_packed(path) or _PLAIN_FACTOR) for path, size in pairs]
    largest = max(needs, default=0)
    room = memory_bound() // largest if largest else len(paths)
    if multiprocessing.current_process().daemon:
        # As a DataLoader's worker, which may begin no processes.
        return 1
    return max(min(cores or 1, len(paths), room), 1)


def _packed(path: str) -> int:
    return _PACKED_FACTOR if path.endswith((".gz", ".xz", ".zst")) else 0


def _context() -> Any:
    """How processes begin: by a fork where this one has neither threads nor torch, which a fork
    may leave in a state that never ends; else anew."""
    is_plain = threading.active_count() == 1 and "torch" not in sys.modules
    can_fork = "fork" in multiprocessing.get_all_start_methods() and sys.platform != "darwin"
    return multiprocessing.get_context("fork") if is_plain and can_fork else _NewProcesses()
