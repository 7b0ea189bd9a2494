# SPDX-License-Identifier: Apache-2.0
"""Files reduced by any executor, or by processes of this machine."""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor, as_completed
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
    if executor is None:
        raw = _by_processes(paths, told)
    else:
        raw = dict(_results(executor, range(len(paths)), paths, told, 0))
    return [_digest(raw[at], paths[at]) for at in range(len(paths))]


def _digest(raw: bytes | str, path: str) -> RankDigest:
    if isinstance(raw, str):
        return unread(path, raw)
    return RankDigest.from_bytes(raw)


def _results(
    executor: Executor,
    numbers: Sequence[int],
    paths: Sequence[str],
    told: Callable[[int, int], object],
    done: int,
) -> Iterator[tuple[int, bytes | str]]:
    """(number, digest) as they come; a text is what went wrong."""
    waiting: dict[Future[bytes], int] = {
        executor.submit(digest_of, paths[at]): at for at in numbers
    }
    for count, future in enumerate(as_completed(waiting), done + 1):
        try:
            result: bytes | str = future.result()
        except BrokenExecutor:
            raise
        except Exception as error:
            # What a cluster says of a worker that ended, or of a file that it can't reach.
            result = f"no worker could read it: {type(error).__name__}: {error}"
        yield waiting[future], result
        told(count, len(paths))


def _by_processes(
    paths: Sequence[str], told: Callable[[int, int], object]
) -> dict[int, bytes | str]:
    sizes = [size_of(path) for path in paths]
    workers = _workers(paths, sizes)
    found: dict[int, bytes | str] = {}
    if workers < 2 or (len(paths) <= _FEW_FILES and sum(sizes) <= _SMALL_BYTES):
        for at, path in enumerate(paths):
            found[at] = digest_of(path)
            told(at + 1, len(paths))
        return found
    try:
        _fill(found, range(len(paths)), paths, told, workers)
    except BrokenExecutor:
        # A process was killed, perhaps because memory ran out: the rest one by one, each in a
        # process of its own, so that the file that is to blame is known.
        for at in range(len(paths)):
            if at not in found:
                _alone(found, at, paths, told)
    return found


def _alone(
    found: dict[int, bytes | str],
    at: int,
    paths: Sequence[str],
    told: Callable[[int, int], object],
) -> None:
    try:
        _fill(found, [at], paths, told, 1)
    except BrokenExecutor:
        found[at] = "the process that read it was killed: there may be too little memory for it"


def _fill(
    found: dict[int, bytes | str],
    numbers: Sequence[int],
    paths: Sequence[str],
    told: Callable[[int, int], object],
    workers: int,
) -> None:
    # As few as are needed: each begins with Python and this package.
    count = min(workers, len(numbers))
    with ProcessPoolExecutor(count, mp_context=_context()) as pool:
        for at, result in _results(pool, numbers, paths, told, len(found)):
            found[at] = result


def _workers(paths: Sequence[str], sizes: Sequence[int]) -> int:
    """As many processes as this one has cores, and as the largest file leaves memory for."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    pairs = zip(paths, sizes, strict=True)
    needs = [size * (_packed(path) or _PLAIN_FACTOR) for path, size in pairs]
    largest = max(needs, default=0)
    room = memory_bound() // largest if largest else len(paths)
    return max(min(cores or 1, len(paths), room), 1)


def _packed(path: str) -> int:
    return _PACKED_FACTOR if path.endswith((".gz", ".xz", ".zst")) else 0


def _context() -> Any:
    """How processes begin: by a fork where this one has neither threads nor torch, which a fork
    may leave in a state that never ends; else anew."""
    is_plain = threading.active_count() == 1 and "torch" not in sys.modules
    can_fork = "fork" in multiprocessing.get_all_start_methods() and sys.platform != "darwin"
    return multiprocessing.get_context("fork" if is_plain and can_fork else "spawn")
