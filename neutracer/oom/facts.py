# SPDX-License-Identifier: Apache-2.0
"""The facts of an out-of-memory error: device, limits, other processes; and the budget."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from neutracer.trace.beside import OOM_SCHEMA, Beside, DeviceRoom
from neutracer.trace.snapshot import Snapshot
from neutracer.trace.stacks import Frame
from neutracer.units import format_bytes
from neutracer.whatif.settings import roundest

# ---- Facts -------------------------------------------------------------------------------

_UNITS = {"bytes": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
#: A size in one of PyTorch's messages, for `size_of`.
SIZE_PATTERN = r"([\d.]+) (bytes|B|KiB|MiB|GiB|TiB)"

# Sizes in PyTorch's message, as the releases since 1.13 word them; 2.1 wrote "capacty". With
# cudaMallocAsync they are in a list with colons.
_IN_MESSAGE = {
    "segment_bytes": re.compile(rf"(?:Tried to allocate|Requested(?: size)?\s*:) {SIZE_PATTERN}"),
    "device_total_bytes": re.compile(
        rf"(?:(?:total capaci?ty of|Device limit\s+:) {SIZE_PATTERN}|{SIZE_PATTERN} total capacity)"
    ),
    "device_free_bytes": re.compile(
        rf"(?:of which {SIZE_PATTERN} is free|{SIZE_PATTERN} free"
        rf"|\(according to CUDA\): {SIZE_PATTERN})"
    ),
    "process_bytes": re.compile(rf"this process has {SIZE_PATTERN} memory in use"),
    "limit_bytes": re.compile(rf"(?:{SIZE_PATTERN} allowed|memory fraction\)\s+: {SIZE_PATTERN})"),
}
_OTHERS = re.compile(rf"Process \d+ has {SIZE_PATTERN} memory in use")
_DEVICE = re.compile(r"\b(?:GPU|on device) (\d+)\b")


@dataclass(frozen=True, kw_only=True)
class OomFacts:
    """What is known of an out-of-memory error beside the snapshot; sizes in bytes.

    None, "" and () mean that it is not known.

    Attributes:
        device: The CUDA device.
        segment_bytes: What was asked of the device: the request rounded to a segment.
        limit_bytes: What PyTorch kept this process below; the device's size where it did
            not.
        device_total_bytes: All of the device's memory.
        device_free_bytes: What the device had left when the request failed.
        process_bytes: All that this process had on the device, its context included.
        others_bytes: What other processes had on it.
        garbage_bytes: What tensors held that only a collection would have freed.
        garbage_addresses: Where such memory begins, as far as known.
        untrained_addresses: Where memory begins that autograd has for parameters that no
            optimizer has: gradients, and what graphs keep that lead to no others.
        collects: Whether Python's collector was on (`gc.isenabled()`).
        time_us: When it was, in microseconds since the epoch.
        stack: The Python stack: file, line and function, innermost first.
        tensors: The tensors of the program's innermost frame: "x: (64, 1024) float32".
        layers: The longest list of modules of one class whose forward pass it was in:
            "LlamaModel.layers".
        layers_begun: How many of them had begun.
        layers_count: How many there are.
        grad_enabled: Whether autograd recorded in the allocating thread.
        handling: The exception that was being handled then, and where it was raised: a retry
            inside of `except`.
        holders: By line, who held its blocks: "step (train.py:12)" and names of the program.
        raised: Whether an exception reached Python. Libraries such as cuDNN catch the error and
            try an algorithm that needs less.
        message: PyTorch's own text of the exception.
        is_rounded: Whether sizes are PyTorch's words, which have two decimals.
    """

    device: int | None = None
    segment_bytes: int | None = None
    limit_bytes: int | None = None
    device_total_bytes: int | None = None
    device_free_bytes: int | None = None
    process_bytes: int | None = None
    others_bytes: int | None = None
    garbage_bytes: int | None = None
    garbage_addresses: tuple[int, ...] = ()
    untrained_addresses: tuple[int, ...] = ()
    collects: bool | None = None
    time_us: int | None = None
    stack: tuple[tuple[str, int, str], ...] = ()
    tensors: tuple[str, ...] = ()
    layers: str = ""
    layers_begun: int | None = None
    layers_count: int | None = None
    grad_enabled: bool | None = None
    handling: str = ""
    holders: tuple[tuple[str, str], ...] = ()
    raised: bool | None = None
    message: str = ""
    is_rounded: bool = False

    def __post_init__(self) -> None:
        for name in _fields("int | None"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
                raise TypeError(
                    f"{name} must be a whole number, or None, not {type(value).__name__}"
                )

    @classmethod
    def from_message(cls, message: str) -> OomFacts:
        """What PyTorch's text says; sizes in it are rounded to two decimals.

        Example:
            >>> facts = OomFacts.from_message(
            ...     "CUDA out of memory. Tried to allocate 1.50 GiB. GPU 0 has a total capacity "
            ...     "of 139.80 GiB of which 138.00 GiB is free. 2.00 GiB allowed; Of the ..."
            ... )
            >>> facts.device, facts.segment_bytes >> 20, facts.limit_bytes >> 20
            (0, 1536, 2048)
        """
        if not isinstance(message, str):
            raise TypeError(f"a message must be PyTorch's text, not {type(message).__name__}")
        found: dict[str, Any] = {}
        for name, pattern in _IN_MESSAGE.items():
            size = size_of(pattern, message)
            if size is not None:
                found[name] = size
        others = [_bytes_of(match) for match in _OTHERS.finditer(message)]
        if others:
            found["others_bytes"] = sum(others)
        device = _DEVICE.search(message)
        number = int(device[1]) if device else None
        return cls(device=number, message=message, is_rounded=True, **found)

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> OomFacts:
        """The facts that `to_dict` wrote down; what is of another kind is left out.

        Raises:
            ValueError: It is not such a dict.
        """
        if not isinstance(plain, Mapping) or plain.get("schema") != OOM_SCHEMA:
            raise ValueError(f"facts of an out-of-memory error have the schema {OOM_SCHEMA!r}")
        found: dict[str, Any] = {
            name: plain[name] for name in _fields("int | None") if _is_count(plain.get(name))
        }
        for name in _fields("bool | None", "bool"):
            if isinstance(plain.get(name), bool):
                found[name] = plain[name]
        for name in _fields("str"):
            found[name] = plain[name] if isinstance(plain.get(name), str) else ""
        found["holders"] = tuple(
            (pair[0], pair[1])
            for pair in _listed(plain, "holders")
            if isinstance(pair, list | tuple)
            and len(pair) == 2
            and all(isinstance(text, str) for text in pair)
        )
        for name in ("garbage_addresses", "untrained_addresses"):
            found[name] = tuple(one for one in _listed(plain, name) if _is_count(one))
        found["tensors"] = tuple(t for t in _listed(plain, "tensors") if isinstance(t, str))
        found["stack"] = tuple(
            (frame[0], frame[1], frame[2])
            for frame in _listed(plain, "stack")
            if isinstance(frame, list | tuple)
            and len(frame) == 3
            and all(map(isinstance, frame, (str, int, str)))
        )
        return cls(**found)

    def to_dict(self) -> dict[str, Any]:
        """The facts as plain data for JSON; what is not known is left out."""
        plain: dict[str, Any] = {"schema": OOM_SCHEMA}
        for field in fields(self):
            value = getattr(self, field.name)
            if value is not None and value != () and value != "" and value is not False:
                plain[field.name] = [*value] if isinstance(value, tuple) else value
        for name in _fields("bool | None"):
            if getattr(self, name) is not None:
                plain[name] = getattr(self, name)
        plain["stack"] = [list(frame) for frame in self.stack]
        return plain

    def filled(self) -> OomFacts:
        """The facts, with what is not known taken from the message where it says so."""
        if not self.message:
            return self
        said = OomFacts.from_message(self.message)
        missing = {
            name: getattr(said, name)
            for name in _fields("int | None")
            if getattr(self, name) is None and getattr(said, name) is not None
        }
        return replace(self, is_rounded=True, **missing) if missing else self

    def is_of(self, segment_bytes: int) -> bool:
        """Whether they can be of a failure to get so many bytes from the device.

        PyTorch's words have two decimals; facts that say nothing of the request may be.
        """
        if self.segment_bytes is None:
            return True
        unit = max(size for size in _UNITS.values() if size <= max(self.segment_bytes, 1))
        slack = unit // 100 if self.is_rounded else 0
        return abs(self.segment_bytes - segment_bytes) <= slack


def _fields(*types: str) -> tuple[str, ...]:
    """The names of the facts of some types, as their annotations are written."""
    return tuple(one.name for one in fields(OomFacts) if one.type in types)


def _bytes_of(match: re.Match[str]) -> int:
    number, unit = (group for group in match.groups() if group is not None)
    try:
        return round(float(number) * _UNITS[unit])
    except (OverflowError, ValueError):
        return 0


def size_of(pattern: re.Pattern[str], message: str) -> int | None:
    """The bytes at the first match of a pattern with `SIZE_PATTERN`; None: there is none."""
    match = pattern.search(message)
    return None if match is None else _bytes_of(match)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 64


def _listed(plain: Mapping[str, Any], name: str) -> list[Any]:
    value = plain.get(name)
    return list(value) if isinstance(value, list | tuple) else []


def facts_of(beside: Beside) -> OomFacts | None:
    """The facts in the JSON beside a snapshot; None where it says nothing of an error."""
    if beside.oom is None:
        return None
    if isinstance(beside.oom, str):
        return OomFacts.from_message(beside.oom)
    return OomFacts.from_dict(beside.oom).filled()


def facts_at(beside: Beside, time_us: int | None) -> OomFacts | None:
    """The facts in the JSON beside a snapshot of the failure nearest in time to a moment."""
    ooms = [OomFacts.from_dict(one) for one in beside.ooms if one.get("schema") == OOM_SCHEMA]
    timed = [one for one in ooms if one.time_us is not None]
    if time_us is None or not timed:
        return facts_of(beside)
    return min(timed, key=lambda one: abs((one.time_us or 0) - time_us)).filled()


def are_caught(beside: Beside, device: int) -> bool:
    """Whether the JSON beside a snapshot has failures of a device, and a library caught each."""
    raised = [one.get("raised") for one in beside.ooms if one.get("device") == device]
    return bool(raised) and all(one is False for one in raised)


def with_room(facts: OomFacts, room: DeviceRoom | None) -> OomFacts:
    """The facts, with what limited the process taken from elsewhere where they don't say it."""
    if room is None:
        return facts
    total, limit = facts.device_total_bytes, facts.limit_bytes
    if limit is None and room.fraction is not None:
        limit = room.limit_bytes or room.total_bytes
    return replace(facts, device_total_bytes=total or room.total_bytes, limit_bytes=limit)


# ---- Budget ------------------------------------------------------------------------------

#: Bytes of a segment of small blocks, and the unit of segments of large ones.
UNIT = 2 << 20

# Requests up to this are of the small pool.
_SMALL_REQUEST = 1 << 20

# Requests below this share a segment of the size that settings give (20 MiB by default).
_SHARING = 10 << 20


@dataclass(frozen=True)
class Failure:
    """A request that failed, or one that is asked about."""

    event: int | None  # Its event in the device's trace; None where it has none.
    time_us: int | None  # When it was, in microseconds since the epoch; None where unknown.
    size: int  # Its bytes as the allocator rounded them.
    stream: int = 0
    pool: tuple[int, int] = (0, 0)  # The private pool; (0, 0) is the default pool.
    stack: tuple[Frame, ...] = ()  # Where in the program, innermost first; empty where unknown.
    happened: bool = True  # It failed; else it is only asked about.

    @property
    def is_small(self) -> bool:
        """Whether it is of the small pool."""
        return self.size <= _SMALL_REQUEST

    def segment_size(self, large_segment: int) -> int:
        """The segment that it opens where no hole holds it."""
        if self.is_small:
            return UNIT
        if self.size < _SHARING:
            return large_segment
        return -(-self.size // UNIT) * UNIT


@dataclass(frozen=True)
class Budget:
    """What the process could still have taken from the device. Sizes in bytes."""

    reserved: int
    device_free: int | None  # What the device had left; None where nobody said.
    limit: int | None  # What PyTorch kept the process below; None where it did not, or not there.
    limit_is_guess: bool  # The limit is the roundest that the trace's failures allow.
    total: int | None  # All of the device's memory; None where nobody said.
    process: int | None  # All that this process had on the device; None where nobody said.
    others: int | None  # What other processes had on it; None where nobody said.
    asked: int | None = None  # The device's bytes as the user says; None where nobody does.

    @property
    def headroom(self) -> int:
        """What new segments could have taken, together."""
        bounds = [0 if self.device_free is None else self.device_free]
        if self.limit is not None:
            bounds.append(max(self.limit - self.reserved, 0))
        return min(bounds)

    @property
    def usable(self) -> int:
        """What the process could have had in all."""
        return self.reserved + self.headroom

    def is_capped(self, segment: int) -> bool:
        """Whether a new segment would have gone beyond the process's limit."""
        return self.limit is not None and self.limit - self.reserved < segment

    @property
    def non_torch(self) -> int | None:
        """What is taken on the device and not PyTorch's; None where that is unknown.

        A context takes some of every real device. Where nothing is taken, what the device had
        left was reckoned from its size alone, as of one that a user has only in mind.
        """
        if self.total is None or self.device_free is None:
            return None
        taken = self.total - self.device_free - self.reserved
        return taken if taken > 0 else None


def budget_of(
    snap: Snapshot,
    device: int,
    failure: Failure,
    reserved: int,
    facts: OomFacts,
    capacity: int | None,
) -> Budget:
    """What the process could still have taken when a request failed.

    Args:
        reserved: Bytes that the process had reserved then.
        capacity: The device's bytes as the user says; None: as recorded.

    Raises:
        ValueError: The request failed on a device of another size.
    """
    total = facts.device_total_bytes if capacity is None else capacity
    free = _device_free(snap, device, failure, facts, reserved)
    limit, guessed = facts.limit_bytes, False
    if capacity is not None:
        free, limit = _on_device_of(capacity, failure, facts, free, reserved)
    segment = failure.segment_size(int(snap.settings_in_force["large_segment_size"]))
    share = float(snap.settings_in_force["per_process_memory_fraction"])
    if limit is None and total is not None and share < 1.0:
        limit = int(total * share)
    may_guess = failure.event is not None and free is not None and free >= segment
    if limit is None and capacity is None and not failure.happened and free is not None:
        limit = _known_limit(snap, device)
        guessed = limit is not None
    if limit is None and may_guess:
        limit, guessed = _guessed_limit(snap, device, failure, reserved, segment), True
    elif limit is not None and facts.is_rounded and failure.happened:
        limit = _sharpened(limit, reserved, segment, free)
    if limit is not None and total is not None and limit > total - UNIT:
        # As good as all of the device: no limit that one could raise.
        free = None if free is None else min(free, max(limit - reserved, 0))
        limit = None
    process, others = facts.process_bytes, facts.others_bytes
    return Budget(reserved, free, limit, guessed, total, process, others, capacity)


def _on_device_of(
    capacity: int, failure: Failure, facts: OomFacts, free: int | None, reserved: int
) -> tuple[int, int | None]:
    """What a device of so many bytes has left, and the limit there. Another device than the
    recorded one has less or more to spare; what is not PyTorch's is the same."""
    known, limit, left = facts.device_total_bytes, facts.limit_bytes, max(capacity - reserved, 0)
    if known is None:
        return left if free is None else min(free, left), limit
    if failure.happened and capacity != known:
        raise ValueError(
            f"the device had {format_bytes(known)}, by the JSON beside the file: ask "
            "neutracer.what_if() (neutracer what-if) about another capacity, or give a request"
        )
    if limit is not None and limit > known - UNIT:
        # It was all of the recorded device.
        limit = None
    return left if free is None else min(max(free + capacity - known, 0), left), limit


def _device_free(
    snap: Snapshot, device: int, failure: Failure, facts: OomFacts, reserved: int
) -> int | None:
    timeline = snap.timeline(device)
    if failure.event is not None:
        return int(timeline.events[failure.event].device_free)
    ooms = timeline.events.find("action", "oom")
    if facts.device_free_bytes is None and not failure.happened and ooms:
        left = int(timeline.events[ooms[-1]].device_free)
        return max(left + timeline.reserved[ooms[-1]] - reserved, 0)
    return facts.device_free_bytes


def _known_limit(snap: Snapshot, device: int) -> int | None:
    facts = snap.timeline(device).program.facts()
    if facts["is_device"] or facts["limit_high"] is None:
        return None
    return roundest(max(facts["limit_low"], 1), facts["limit_high"])


def _guessed_limit(
    snap: Snapshot, device: int, failure: Failure, reserved: int, segment: int
) -> int:
    timeline = snap.timeline(device)
    before = timeline.reserved[: (failure.event or 0) + 1]
    low = max(max(before, default=reserved), reserved)
    high = reserved + segment - 1
    facts = timeline.program.facts()
    if not facts["is_device"] and facts["limit_high"] is not None:
        # What other failures of the trace say, unless the limit was changed in between.
        lowest, highest = max(low, facts["limit_low"]), min(high, facts["limit_high"])
        if lowest <= highest:
            low, high = lowest, highest
    return roundest(low, high) if low <= high else reserved


def _sharpened(limit: int, reserved: int, segment: int, free: int | None) -> int:
    if free is None or free < segment:
        return limit
    return min(max(limit, reserved), reserved + segment - 1)
