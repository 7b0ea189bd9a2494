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
from neutracer.trace.beside import parse_json

# ---- Digest ------------------------------------------------------------------------------

_SCHEMA = "neutracer.rank_digest/1"

#: Entries of the step columns; longer traces merge runs of steps.
MOST_STEPS = 256

#: Time bins of the curve.
MOST_BINS = 96

#: Upper bound on ranks, so that a damaged file can't cost time or memory.
MOST_RANKS = 1 << 18

_MOST_NOTES, _MOST_TEXT = 16, 500  # Longer lists and texts are cut.
_MOST_BYTES = 1 << 20  # Longer digests are rejected.


@dataclass(frozen=True)
class Held:
    """Memory held by one line of the program at a rank's peak.

    Attributes:
        place: The line, as `Timeline.holders(by="place")` names it.
        bytes: The bytes of its blocks.
        count: The number of blocks.
        category: Their main category, from `Timeline.categories`.
    """

    place: str
    bytes: int
    count: int
    category: str = "unknown"


@dataclass(frozen=True, kw_only=True)
class RankDigest:
    """One rank at the end of a file, or now; None and "" mean unknown.

    Attributes:
        source: The file, or "store".
        trouble: Why there are no figures; "" if there are.
        notes: Remarks on the figures.
        rank, world_size: From torch.distributed, or its launcher.
        job, attempt: The launcher's name for the job, and the number of restarts.
        host, pid: The host and process.
        role: What it is for its program: "worker", "engine" or "data loader".
        program: The script or module.
        torch: The PyTorch release.
        written_s: Unix time of the figures, by the rank's clock.
        reason: Why it was written: "exit", "terminated", "oom", "signal", "interval" or "".
        device: The device of these figures: "cuda:0".
        total_bytes: Its memory.
        allocated_bytes, reserved_bytes: At the end.
        peak_allocated_bytes, peak_reserved_bytes: Their peaks.
        largest_hole_bytes: The largest free block in reserved memory at the end.
        other_bytes: Used on the device by anything but PyTorch.
        libraries: These bytes by library, if an attribution was on.
        ooms: The number of out-of-memory errors.
        first_oom_us: Unix time of the first, in microseconds, by the rank's clock.
        oom_bytes: The size of the request that failed.
        verdict: The verdict of `leak_trend`.
        bytes_per_step: The growth per step, from `leak_trend`.
        steps_to_oom: Steps until memory is full at that rate.
        grows: The line whose memory grows.
        categories: Bytes by category at the peak.
        places: The holders of the peak, most bytes first.
        parameters: (size, count) of the parameters, most bytes first.
        pipelined: Whether the stacks pass through a pipeline schedule.
        step_us: Start of each step, or of each run of `steps_each` steps.
        step_peak_bytes: The peak of allocated in each.
        steps_each: Steps per entry.
        steps: The number of steps.
        begin_us, end_us: The time covered by `curve`.
        curve: The peak of allocated in each part of that time.
        history_complete: As `Snapshot.history_complete`.
        end_known: False if the file has a history but no segments: the figures at the end are 0.
        where: The main thread's line, in a running process.
        waits: Whether it waits there inside PyTorch, for other ranks or for the device.
        where_s: How long it has been there, in seconds.
        interval_s: Seconds between two digests of a running process.
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
    role: str = ""
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
        """The digest as JSON, without default values; long texts are cut."""
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
        """Parse the output of `to_bytes`, dropping malformed fields; ValueError if not a digest."""
        if len(raw) > _MOST_BYTES:
            raise ValueError(f"a digest has at most {_MOST_BYTES:,} bytes, not {len(raw):,}")
        try:
            plain = parse_json(raw)
        except ValueError as error:
            raise ValueError(f"no digest of a rank: {error}") from None
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

# Types of the fields that default to None, where not int.
_OPTIONAL: dict[str, type] = {"written_s": float, "history_complete": bool, "interval_s": float}
# Exclusive upper bounds, where not 2**64.
_BELOW = {"rank": MOST_RANKS, "world_size": MOST_RANKS + 1, "attempt": 1 << 31, "pid": 1 << 31}


def checked(name: str, value: Any) -> Any:
    """Convert a JSON value to a field's type; None if it is malformed or out of range."""
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

# Each rank writes its own digest to the job's TCPStore; any process can read them all. Every call
# is one exchange over its own connection, with a timeout and without collectives.

_INDEX = "neutracer/1/index"
_ALARM = "neutracer/1/alarm"
_TIMEOUT_S = 3.0  # An answer takes microseconds.
_READ_S = 15.0  # A thousand ranks take a second; torch itself waits forever on a lost network.
_BATCH = 256  # Digests per request, to bound an answer to a few megabytes.


def address_of(torch: Any, *, early: bool) -> tuple[str, int] | None:
    """Host and port of the process group's TCPStore; None if there is no group yet.

    `early`: before there is one, the store of the launcher's agent.
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
    """Connect to a store; UnavailableError if torch is missing or nothing answers."""
    try:
        from torch.distributed import TCPStore
    except ImportError:
        raise UnavailableError(
            "torch", f"the store of a job speaks torch's own protocol: '{pip_install('torch')}'"
        ) from None
    try:
        # Probe first: torch retries for minutes and logs to standard error.
        socket.create_connection((host, port), timeout=_TIMEOUT_S).close()
        store = TCPStore(
            host,
            port,
            is_master=False,
            timeout=timedelta(seconds=_TIMEOUT_S),
            wait_for_workers=False,
        )
    except (OSError, RuntimeError, ValueError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or str(error).partition("\n")[0]
        raise UnavailableError(
            f"the store {host}:{port}", f"it does not answer: {reason}"
        ) from None
    return RankStore(store)


def read_digests(host: str, port: int) -> list[RankDigest]:
    """All digests in a store, over a new connection."""
    found: list[list[RankDigest]] = []
    failed: list[BaseException] = []

    def read() -> None:
        try:
            found.append(opened_store(host, port).read())
        except BaseException as error:
            failed.append(error)

    # A daemon: torch's read can't be interrupted, and must not keep this process alive.
    reader = threading.Thread(target=read, name="neutracer-store", daemon=True)
    reader.start()
    reader.join(_READ_S)
    if found:
        return found[0]
    # torch raises RuntimeError or OSError for a lost store.
    is_lost = failed and isinstance(failed[0], (RuntimeError, OSError))
    if failed and (isinstance(failed[0], UnavailableError) or not is_lost):
        raise failed[0]
    reason = str(failed[0]).partition("\n")[0] if failed else f"no answer in {_READ_S:.0f} s"
    raise UnavailableError(f"the store {host}:{port}", f"it has stopped answering: {reason}")


class RankStore:
    """The ranks' digests in a TCPStore; calls raise RuntimeError if the server does not answer."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self._known: set[str] = set()

    def write(self, digest: RankDigest) -> int:
        """Replace a rank's digest; returns its length in bytes."""
        name = f"{digest.attempt or 0}/{digest.rank or 0}"
        raw = digest.to_bytes()
        self._store.set(f"neutracer/1/{name}", raw)
        if name not in self._known:
            # After the digest itself: a reader fetches everything in the index.
            self._store.append(_INDEX, f"{name}\n")
            self._known.add(name)
        return len(raw)

    def read(self) -> list[RankDigest]:
        """The last digest of every rank, dead ones included; damaged ones are skipped."""
        if not self._store.check([_INDEX]):
            return []
        names = sorted(set(self._store.get(_INDEX).decode("ascii", "replace").split()))
        keys = [f"neutracer/1/{name}" for name in names]
        found = []
        for first in range(0, len(keys), _BATCH):
            for raw in self._store.multi_get(keys[first : first + _BATCH]):
                try:
                    found.append(RankDigest.from_bytes(bytes(raw)))
                except ValueError:
                    continue
        return found

    def raise_alarm(self, rank: int | None, attempt: int | None, why: str) -> None:
        """Ask all ranks of an attempt for a digest and a layout; they poll twice per second."""
        plain = {"rank": rank, "attempt": attempt or 0, "why": why}
        self._store.set(f"{_ALARM}/{attempt or 0}", json.dumps(plain))

    def alarm(self, attempt: int | None) -> dict[str, Any] | None:
        """Another rank's alarm, or None."""
        key = f"{_ALARM}/{attempt or 0}"
        if not self._store.check([key]):
            return None
        try:
            plain = parse_json(self._store.get(key))
        except ValueError:
            return None
        return plain if isinstance(plain, dict) else None
