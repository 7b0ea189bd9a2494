# SPDX-License-Identifier: Apache-2.0
"""Files reduced by any executor, or by processes of this machine."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor, as_completed
from multiprocessing.context import SpawnContext, SpawnProcess
from typing import Any

from neutracer.diagnose.ranks.files import size_of
from neutracer.diagnose.ranks.reduce import digest_of, unread
from neutracer.process.ranks.digest import RankDigest
from neutracer.trace.bounds import memory_bound

__all__ = ["digests"]

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
