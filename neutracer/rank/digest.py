# SPDX-License-Identifier: Apache-2.0
"""A rank's digest, a few kilobytes, and the store through which ranks exchange digests."""

from __future__ import annotations

import json
import math
import os
import socket
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import timedelta
from typing import Any

from neutracer.errors import UnavailableError, pip_install

# ---- Digest ------------------------------------------------------------------------------

# What is kept of one rank: some kilobytes, whether they come from a file or from a process.
#
# Example:
#     >>> one = RankDigest(source="rank3.pickle", rank=3, peak_allocated_bytes=5 << 20)
#     >>> RankDigest.from_bytes(one.to_bytes()) == one, len(one.to_bytes()) < 1500
#     (True, True)

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


# ---- Store -------------------------------------------------------------------------------

# Digests in a job's TCPStore: each rank writes its own, anybody reads all of them.
#
# Every call is one exchange with the store's server over a connection of its own, with a timeout.
# Nothing waits for another rank, and no collective is called.

_INDEX = "neutracer/1/index"
_ALARM = "neutracer/1/alarm"

# An answer takes microseconds; a server that is gone is known after so many seconds.
_TIMEOUT_S = 3.0

# A thousand ranks are read in a second. Torch waits for ever for an answer to a read that was
# begun, as from a host that has lost its network.
_READ_S = 15.0

# What is asked for at once, so that no answer is larger than some megabytes.
_AT_ONCE = 256


def address_of(torch: Any, *, early: bool) -> tuple[str, int] | None:
    """Host and port of the TCPStore under this process's group, or of its launcher's agent.

    Args:
        torch: The module.
        early: Whether the agent's counts before there is a group.

    Returns:
        The address; None where there is no group yet.

    Raises:
        UnavailableError: The group's store is no TCPStore.
    """
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available():
        return None
    if distributed.is_initialized():
        store = torch.distributed.distributed_c10d._get_default_store()
        while hasattr(store, "underlying_store"):
            store = store.underlying_store
        if not hasattr(store, "host") or not hasattr(store, "port"):
            kind = type(store).__name__
            raise UnavailableError(
                "a TCPStore under the process group",
                f"its store is a {kind}: initialise the group with env:// or tcp://",
            )
        return str(store.host), int(store.port)
    port = os.environ.get("MASTER_PORT", "")
    if early and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True" and port.isdecimal():
        return os.environ.get("MASTER_ADDR", "localhost"), int(port)
    return None


def opened_store(host: str, port: int) -> RankStore:
    """A connection of its own to a store.

    Raises:
        UnavailableError: torch is not installed, or nobody answers there.
    """
    try:
        from torch.distributed import TCPStore
    except ImportError:
        raise UnavailableError(
            "torch", f"the store of a job speaks torch's own protocol: '{pip_install('torch')}'"
        ) from None
    try:
        # Asked first, because torch tries for minutes, and tells all of it on standard error.
        socket.create_connection((host, port), timeout=_TIMEOUT_S).close()
        store = TCPStore(
            host,
            port,
            is_master=False,
            timeout=timedelta(seconds=_TIMEOUT_S),
            wait_for_workers=False,
        )
    except (OSError, RuntimeError, ValueError, OverflowError) as error:
        said = getattr(error, "strerror", None) or str(error).partition("\n")[0]
        raise UnavailableError(
            f"the store {host}:{port}", f"nobody answers there: {said}"
        ) from None
    return RankStore(store)


def read_digests(host: str, port: int) -> list[RankDigest]:
    """What all ranks have told a store, over a connection of its own.

    Raises:
        UnavailableError: torch is not installed, nobody answers there, or not in time.
    """
    found: list[list[RankDigest]] = []
    failed: list[BaseException] = []

    def read() -> None:
        try:
            found.append(opened_store(host, port).read())
        except BaseException as error:
            failed.append(error)

    # It can't be interrupted, and must not keep this process.
    reader = threading.Thread(target=read, name="neutracer-store", daemon=True)
    reader.start()
    reader.join(_READ_S)
    if found:
        return found[0]
    if failed and (isinstance(failed[0], UnavailableError) or not _is_lost(failed[0])):
        raise failed[0]
    said = str(failed[0]).partition("\n")[0] if failed else f"no answer in {_READ_S:.0f} s"
    raise UnavailableError(f"the store {host}:{port}", f"it has stopped answering: {said}")


def _is_lost(error: BaseException) -> bool:
    """Whether an error is of those that torch raises for a store that is gone."""
    return isinstance(error, (RuntimeError, OSError))


class RankStore:
    """The part of a TCPStore in which ranks keep their digests.

    What its server does not answer raises RuntimeError, as torch's store does.
    """

    def __init__(self, store: Any) -> None:
        """Made by `opened_store`; not by users."""
        self._store = store
        self._known: set[str] = set()

    def write(self, digest: RankDigest) -> int:
        """Put a rank's digest in place of its last one; returns its length in bytes."""
        name = f"{digest.attempt or 0}/{digest.rank or 0}"
        raw = digest.to_bytes()
        self._store.set(f"neutracer/1/{name}", raw)
        if name not in self._known:
            # In the index once it is there: who reads the index may ask for it.
            self._store.append(_INDEX, f"{name}\n")
            self._known.add(name)
        return len(raw)

    def read(self) -> list[RankDigest]:
        """All ranks' last digests, of those that died too; damaged ones are left out."""
        if not self._store.check([_INDEX]):
            return []
        names = sorted(set(self._store.get(_INDEX).decode("ascii", "replace").split()))
        keys = [f"neutracer/1/{name}" for name in names]
        found = []
        for first in range(0, len(keys), _AT_ONCE):
            for raw in self._store.multi_get(keys[first : first + _AT_ONCE]):
                try:
                    found.append(RankDigest.from_bytes(bytes(raw)))
                except ValueError:
                    continue
        return found

    def raise_alarm(self, rank: int | None, attempt: int | None, why: str) -> None:
        """Ask all ranks of an attempt for what they have now; they look twice a second."""
        plain = {"rank": rank, "attempt": attempt or 0, "why": why}
        self._store.set(f"{_ALARM}/{attempt or 0}", json.dumps(plain))

    def alarm(self, attempt: int | None) -> dict[str, Any] | None:
        """What another rank has asked for, or None."""
        key = f"{_ALARM}/{attempt or 0}"
        if not self._store.check([key]):
            return None
        try:
            plain = json.loads(self._store.get(key))
        except ValueError:
            return None
        return plain if isinstance(plain, dict) else None
