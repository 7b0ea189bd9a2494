# SPDX-License-Identifier: Apache-2.0
"""One report for all ranks of a job, from the files that each has left."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor

from neutracer.arguments import callback, several
from neutracer.diagnose.ranks.files import listed
from neutracer.diagnose.ranks.jobs import jobs_of
from neutracer.diagnose.ranks.pool import digests
from neutracer.diagnose.ranks.report import RanksReport, ranks_report
from neutracer.process.ranks.digest import RankDigest

__all__ = ["ranks", "ranks_of"]


def ranks(
    sources: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    *,
    executor: Executor | None = None,
    progress: Callable[[int, int], object] | None = None,
) -> RanksReport:
    """Compare the ranks of a job: who is odd and why, and who ran out of memory first.

    Each file is reduced to some kilobytes where it is read, so that a thousand of them need
    the memory of one for each process that reads. Ranks that hold the same parameters are
    compared with each other; the stages of a pipeline, or experts, among themselves. A rank is
    odd if its peak, its cache or what is not PyTorch's is above the median by 5 % and by four
    times the usual deviation; of two, if it is 5 % above the other.

    Args:
        sources: A folder, which is searched with all that is below it, a snapshot, or several
            of them; a URL ("s3://bucket/job") where `fsspec` is installed. Which rank a file
            is of, the JSON beside it says, or else "rank3" in its name.
        executor: What reads the files: any `concurrent.futures.Executor`, such as
            `dask.distributed.Client.get_executor()`, whose workers have neutracer and see the
            files. None is as many processes of this machine as it has cores.
        progress: Called with how many files are done, and how many there are.

    Returns:
        The report on the job with the most ranks; the others are named in it. A file that
        can't be read, or a rank without one, is a row that says so.

    Raises:
        ValueError: There is no snapshot.
        TypeError: An argument is of another kind.
        UnavailableError: A URL needs a library that is not here.
        OSError: A folder can't be read.

    Example:
        >>> import neutracer
        >>> job = neutracer.ranks("tests/data/frag_default.pickle")
        >>> job.rows[0].peak_allocated_bytes, job.rows[0].ooms, job.odd
        (619585536, 1, ())
    """
    callback("progress", progress, "file")
    if executor is not None and not callable(getattr(executor, "submit", None)):
        raise TypeError(f"executor must be an Executor or None, not {type(executor).__name__}")
    single = isinstance(sources, (str, os.PathLike))
    paths = [sources] if single else several("sources", sources, "paths")
    return ranks_of(paths, listed(paths), executor, progress)  # type: ignore[arg-type]


def ranks_of(
    paths: Sequence[str | os.PathLike[str]],
    found: tuple[dict[str, bool], list[str]],
    executor: Executor | None = None,
    progress: Callable[[int, int], object] | None = None,
) -> RanksReport:
    """`ranks` of what `listed` has found in these paths.

    Raises:
        ValueError: There is no snapshot.
    """
    files, others = found
    if not files:
        where = ", ".join(os.fspath(path) for path in paths[:3])
        raise ValueError(f"{where or 'no sources'}: there are no snapshots (.pickle, .pkl)")
    read, strange = _parted(digests(list(files), executor, progress), files)
    return ranks_report(jobs_of(read), [*strange, *others])


def _parted(
    found: Sequence[RankDigest], named: Mapping[str, bool]
) -> tuple[list[RankDigest], list[str]]:
    """What is of a job, and what only lay in its folder: it is no snapshot that can be read, and
    nothing says that it is a rank's."""
    strange = [
        one.source
        for one in found
        if one.trouble and one.rank is None and not one.host and not named.get(one.source)
    ]
    if len(strange) == len(found):
        return list(found), []
    known = set(strange)
    return [one for one in found if one.source not in known], strange
