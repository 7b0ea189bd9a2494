# SPDX-License-Identifier: Apache-2.0
"""What a report on ranks consists of: rows, spreads, odd ranks, who ran out first."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["CAUSES", "FIGURES", "FirstOom", "HeatMap", "Odd", "OtherJob", "RankRow", "Spread"]

#: The figures of a row that are compared, with their names on a page.
FIGURES: Mapping[str, str] = {
    "peak_allocated_bytes": "peak allocated",
    "peak_reserved_bytes": "peak reserved",
    "allocated_bytes": "allocated",
    "reserved_bytes": "reserved",
    "unused_bytes": "unused",
    "largest_hole_bytes": "largest hole",
    "other_bytes": "not PyTorch's",
}

#: What makes a rank odd, with what it means.
CAUSES: Mapping[str, str] = {
    "leak": "its memory grows step after step, and that of the others does not",
    "larger_blocks": "its blocks are larger than elsewhere: a larger batch, or longer sequences",
    "more_blocks": "more blocks of the same line than elsewhere",
    "own_line": "a line that holds nothing, or little, on the others",
    "cache": "reserved and not in use",
    "not_torch": "in use on its device and not PyTorch's",
    "stage": "a shape of its own, as a pipeline's stage or an expert has",
    "waits_elsewhere": "it is at another line than the others, which wait",
    "silent": "it has stopped reporting",
    "unknown": "nothing that was recorded says why",
}


@dataclass(frozen=True, kw_only=True)
class RankRow:
    """One rank; None where it is not known, or there is nothing of the rank.

    Attributes:
        rank: The rank; None where neither file nor name says.
        host: Where it ran.
        source: The file, or "store".
        state: "exit", "terminated", "out of memory", "no file", "can't be read", or another
            reason for which the file was written; of a running job "running", "silent",
            "out of memory" or "terminated".
        note: What is to be known about its figures; why there are none.
        shape: The number of its shape; ranks of one shape hold the same parameters.
        peak_allocated_bytes, peak_reserved_bytes: The most in its trace.
        allocated_bytes, reserved_bytes: At the end.
        unused_bytes: Reserved and not allocated, at the end.
        largest_hole_bytes: The largest free block of what is reserved at the end.
        other_bytes: In use on its device, and not PyTorch's.
        libraries: Of these, by library, where an attribution was on.
        ooms: How often memory ran out.
        verdict: What `leak_trend` says.
        bytes_per_step: What grows with each step.
        steps_to_oom: After how many more steps its memory is full at that rate.
        steps: How many steps its trace has.
        where: The line at which its main thread was; of a running job only.
        categories: Bytes by category at the peak.
        torch: The release of PyTorch.
    """

    rank: int | None
    host: str = ""
    source: str = ""
    state: str = ""
    note: str = ""
    shape: int | None = None
    peak_allocated_bytes: int | None = None
    peak_reserved_bytes: int | None = None
    allocated_bytes: int | None = None
    reserved_bytes: int | None = None
    unused_bytes: int | None = None
    largest_hole_bytes: int | None = None
    other_bytes: int | None = None
    libraries: Mapping[str, int]
    ooms: int = 0
    verdict: str = "unknown"
    bytes_per_step: int = 0
    steps_to_oom: int | None = None
    steps: int = 0
    where: str = ""
    categories: Mapping[str, int]
    torch: str = ""


@dataclass(frozen=True)
class Spread:
    """One figure over the ranks.

    Attributes:
        figure: Its name in a row: "peak_allocated_bytes".
        least: The smallest.
        median: The median.
        most: The largest.
        most_rank: The rank that has it.
    """

    figure: str
    least: int
    median: int
    most: int
    most_rank: int | None


@dataclass(frozen=True)
class Odd:
    """A rank that is unlike those of its shape, or whose shape is unlike the others.

    Attributes:
        rank: The rank.
        bytes: What it has more than the median; of two ranks, more than the other.
        why: The reason, as a sentence.
        cause: The same as a word: "leak", "larger_blocks", "more_blocks", "own_line", "cache",
            "not_torch", "stage", "waits_elsewhere", "silent" or "unknown".
        place: The line, or of what is not PyTorch's the library, that holds most of it; ""
            where none does, or it is not known.
        category: The category that most of it has; "" where that is not known.
        step: The step at which it departed from the others, from 0; None where it always
            was so, or nothing says.
    """

    rank: int | None
    bytes: int
    why: str
    cause: str
    place: str = ""
    category: str = ""
    step: int | None = None


@dataclass(frozen=True)
class FirstOom:
    """The rank that ran out of memory before all others.

    Attributes:
        rank: The rank.
        time_us: When, in microseconds since the epoch by the first host's clock; None: unknown.
        asked_bytes: What it asked for.
        is_certain: False where another rank ran out within what the clocks are known to.
        later: (rank, microseconds after the first) of those that ran out too.
        ended: Ranks that wrote their last when it had happened, and did not run out.
        lost: Ranks that left nothing, or nothing that can be read.
        why: All of that as a sentence.
    """

    rank: int | None
    time_us: int | None
    asked_bytes: int
    is_certain: bool
    later: tuple[tuple[int | None, int], ...]
    ended: tuple[int | None, ...]
    lost: tuple[int | None, ...]
    why: str


@dataclass(frozen=True)
class HeatMap:
    """The most that was allocated, by rank and time.

    Attributes:
        ranks: The ranks, a row each.
        begin_us: Where the first column begins, in microseconds since the epoch.
        end_us: Where the last one ends.
        rows: The bytes of each rank, a column each; None where its trace has nothing.
        ooms_us: (row, time) of each rank's first out-of-memory error.
    """

    ranks: tuple[int | None, ...]
    begin_us: int
    end_us: int
    rows: tuple[tuple[int | None, ...], ...]
    ooms_us: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class OtherJob:
    """Another job, or run, of which files were there too.

    Attributes:
        job: What its launcher calls it; "" where nothing says.
        attempt: How often it had been started before, or None.
        world_size: How many ranks it has, or None.
        sources: Its files.
    """

    job: str
    attempt: int | None
    world_size: int | None
    sources: tuple[str, ...]
