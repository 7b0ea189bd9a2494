# SPDX-License-Identifier: Apache-2.0
"""What is kept of one rank: some kilobytes, whether they come from a file or from a process.

Example:
    >>> one = RankDigest(source="rank3.pickle", rank=3, peak_allocated_bytes=5 << 20)
    >>> RankDigest.from_bytes(one.to_bytes()) == one, len(one.to_bytes()) < 1500
    (True, True)
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

__all__ = ["MOST_BINS", "MOST_RANKS", "MOST_STEPS", "Held", "RankDigest", "checked"]

_SCHEMA = "neutracer.rank_digest/1"

#: How many steps of a trace keep a figure of their own: of longer ones, runs of steps do.
MOST_STEPS = 256

#: Into how many parts the time of a trace is cut.
MOST_BINS = 96

#: More ranks than any job has: what claims more decides neither time nor memory.
MOST_RANKS = 1 << 18

# What is more, or longer, is cut: names in a file may be of any length.
_MOST_NOTES, _MOST_TEXT = 16, 500

# No digest is longer; what claims to be is not read.
_MOST_BYTES = 1 << 20


@dataclass(frozen=True)
class Held:
    """What one line of the program holds on a rank at its peak.

    Attributes:
        place: The line, as `Timeline.holders(by="place")` names it.
        bytes: The bytes of its blocks.
        count: How many blocks that is.
        category: What most of them are for, as `Timeline.categories` says.
    """

    place: str
    bytes: int
    count: int
    category: str = "unknown"


@dataclass(frozen=True, kw_only=True)
class RankDigest:
    """One rank at the end of a file, or now; None and "" stand for what is not known.

    Attributes:
        source: The file, or "store".
        trouble: Why there are no figures; "" where there are.
        notes: What is to be known about the figures.
        rank, world_size: Of torch.distributed, or its launcher.
        job, attempt: What the launcher calls the job, and how often it was started again.
        host, pid: Where it ran.
        program: The script or module.
        torch: The release of PyTorch.
        written_s: When the figures were taken, in seconds since the epoch by its clock.
        reason: Why then: "exit", "terminated", "oom", "signal", "interval" or "".
        device: The device with these figures; "cuda:0".
        total_bytes: All of its memory.
        allocated_bytes, reserved_bytes: At the end.
        peak_allocated_bytes, peak_reserved_bytes: The most.
        largest_hole_bytes: The largest free block in what is reserved at the end.
        other_bytes: In use on the device and not PyTorch's.
        libraries: Of these, by library, where an attribution was on.
        ooms: How often memory ran out.
        first_oom_us: When it did first, in microseconds since the epoch by its clock.
        oom_bytes: What was asked for then.
        verdict: The word of `leak_trend`.
        bytes_per_step: What grows with each step, by `leak_trend`.
        steps_to_oom: After how many more steps memory will be full at that rate.
        grows: The line whose memory grows.
        categories: Bytes by category at the peak.
        places: Who holds the peak, the most bytes first.
        parameters: (size, count) of the parameters, the most bytes first.
        pipelined: Whether its stacks go through the schedule of a pipeline.
        step_us: When each step began; with `steps_each` steps in one where there are many.
        step_peak_bytes: The most that was allocated in each.
        steps_each: How many steps are one.
        steps: How many steps there were.
        begin_us, end_us: Of the time that `curve` covers.
        curve: The most that was allocated in each part of that time.
        history_complete: As `Snapshot.history_complete`.
        end_known: False where the file has a history and lacks the segments: then the figures
            of its end are 0.
        where: The line at which the main thread is; only of a running process.
        waits: Whether it waits there in PyTorch: for other ranks, or for its device.
        where_s: For how many seconds it has been there.
        interval_s: The seconds between two digests of a running process.
    """

    source: str
    trouble: str = ""
    notes: tuple[str, ...] = ()
    rank: int | None = None
    world_size: int | None = None
    job: str = ""
    attempt: int | None = None
    host: str = ""
    pid: int | None = None
    program: str = ""
    torch: str = ""
    written_s: float | None = None
    reason: str = ""
    device: str = ""
    total_bytes: int | None = None
    allocated_bytes: int = 0
    reserved_bytes: int = 0
    peak_allocated_bytes: int = 0
    peak_reserved_bytes: int = 0
    largest_hole_bytes: int | None = None
    other_bytes: int | None = None
    libraries: Mapping[str, int] = field(default_factory=dict)
    ooms: int = 0
    first_oom_us: int | None = None
    oom_bytes: int = 0
    verdict: str = "unknown"
    bytes_per_step: int = 0
    steps_to_oom: int | None = None
    grows: str = ""
    categories: Mapping[str, int] = field(default_factory=dict)
    places: tuple[Held, ...] = ()
    parameters: tuple[tuple[int, int], ...] = ()
    pipelined: bool = False
    step_us: tuple[int, ...] = ()
    step_peak_bytes: tuple[int, ...] = ()
    steps_each: int = 1
    steps: int = 0
    begin_us: int | None = None
    end_us: int | None = None
    curve: tuple[int, ...] = ()
    history_complete: bool | None = None
    end_known: bool = True
    where: str = ""
    waits: bool = False
    where_s: float = 0.0
    interval_s: float | None = None

    def to_bytes(self) -> bytes:
        """The digest as JSON, without what is as in a new one; long texts are cut."""
        plain: dict[str, Any] = {"schema": _SCHEMA, "source": self.source}
        for one in fields(self)[1:]:
            value = getattr(self, one.name)
            if value != _NEW[one.name]:
                plain[one.name] = _cut(value) if isinstance(value, str) else value
        for name, cut in (
            ("notes", list(map(_cut, self.notes[:_MOST_NOTES]))),
            ("libraries", {_cut(name): size for name, size in self.libraries.items()}),
            ("places", [[_cut(h.place), h.bytes, h.count, h.category] for h in self.places]),
        ):
            if cut:
                plain[name] = cut
        text = json.dumps(plain, separators=(",", ":"), default=dict)
        return text.encode()

    @classmethod
    def from_bytes(cls, raw: bytes) -> RankDigest:
        """The digest that `to_bytes` wrote; what is of another kind is left out.

        Raises:
            ValueError: It is none.
        """
        if len(raw) > _MOST_BYTES:
            raise ValueError(f"a digest has at most {_MOST_BYTES:,} bytes, not {len(raw):,}")
        try:
            plain = json.loads(raw)
        except RecursionError as error:
            raise ValueError("no digest of a rank: nested too deeply") from error
        if not isinstance(plain, dict) or plain.get("schema") != _SCHEMA:
            raise ValueError(f"a digest of a rank has the schema {_SCHEMA!r}")
        found = {name: checked(name, value) for name, value in plain.items() if name in _NEW}
        known = {name: value for name, value in found.items() if value is not None}
        return cls(source=str(plain.get("source", "")), **known)


def _cut(text: str) -> str:
    return text if len(text) <= _MOST_TEXT else f"{text[: _MOST_TEXT - 1]}…"


_NEW: dict[str, Any] = {
    one.name: getattr(RankDigest(source=""), one.name)
    for one in fields(RankDigest)
    if one.name != "source"
}

# Fields that are None in a new digest, and what they are otherwise.
_OPTIONAL: dict[str, type] = {"written_s": float, "history_complete": bool, "interval_s": float}


# What numbers are below; of those that are not here, what 64 bits hold.
_BELOW = {"rank": MOST_RANKS, "world_size": MOST_RANKS + 1, "attempt": 1 << 31, "pid": 1 << 31}


def checked(name: str, value: Any) -> Any:
    """A value of JSON as a field has it; None for one of another kind, or that can't be."""
    if name == "places":
        return _places(value)
    if name == "parameters":
        rows = value if isinstance(value, list) else []
        pairs = [row for row in rows if isinstance(row, list) and len(row) == 2]
        return tuple((size, count) for size, count in pairs if _count(size) and _count(count))
    kind = type(_NEW[name]) if _NEW[name] is not None else _OPTIONAL.get(name, int)
    if kind is dict:
        items = dict(value) if isinstance(value, dict) else {}
        return {str(key): size for key, size in items.items() if _count(size)}
    if kind is tuple:
        several = value if isinstance(value, list) else []
        if name == "notes":
            return tuple(one for one in several if type(one) is str)
        return tuple(one for one in several if _count(one))
    if kind is float:
        # A time later than year 30,000 is none.
        known = type(value) in (int, float) and math.isfinite(value) and 0 <= value < 1e12
        return float(value) if known else None
    if kind is int:
        return value if _count(value) and value < _BELOW.get(name, 1 << 64) else None
    return value if type(value) is kind else None


def _places(value: Any) -> tuple[Held, ...]:
    rows = value if isinstance(value, list) else []
    return tuple(
        Held(row[0], row[1], row[2], row[3])
        for row in rows
        if isinstance(row, list) and list(map(type, row)) == [str, int, int, str]
        if _count(row[1]) and row[2] > 0
    )


def _count(value: object) -> bool:
    return type(value) is int and 0 <= value < 1 << 64
