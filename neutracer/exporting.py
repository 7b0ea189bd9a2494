# SPDX-License-Identifier: Apache-2.0
"""`export`: a snapshot as the files of other tools: tables, flame graphs, Perfetto's timeline."""

from __future__ import annotations

import errno
import gzip
import json
import math
import os
import re
import shutil
import sqlite3
import tempfile
import zlib
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from functools import lru_cache
from importlib import import_module
from itertools import chain, count, repeat
from pathlib import Path
from typing import Any, BinaryIO, cast

from neutracer.arguments import path_name
from neutracer.errors import missing
from neutracer.leak.diff import diff
from neutracer.oom.bill import Bill
from neutracer.overview import overview
from neutracer.question import opened
from neutracer.render.document import Place, clean
from neutracer.saving import atomic_file
from neutracer.trace.marks import turns_of
from neutracer.trace.snapshot import Snapshot
from neutracer.trace.source import SnapshotSource, source_path
from neutracer.trace.stacks import NONE, Frame
from neutracer.trace.table import Column, Table, constant
from neutracer.trace.timeline import NO_STACK, Timeline
from neutracer.units import format_bytes

#: Formats, with the endings of their files.
FORMATS = {
    "parquet": ".parquet",
    "sqlite": ".sqlite",
    "collapsed": ".collapsed",
    "speedscope": ".speedscope.json",
    "perfetto": ".pftrace",
}

_FLAMES = ("peak", "churn")

#: Contents to choose from, the default first; a file of any other format has everything.
CONTENTS = {
    "parquet": ("allocations", "events", "bill"),
    "collapsed": _FLAMES,
    "speedscope": _FLAMES,
}

# ---- Tables ------------------------------------------------------------------------------

# Rows that are converted at a time: a row group of Parquet, a statement of SQLite.
_ROWS = 1 << 17


def _texts(codes: memoryview, spell: Callable[[int], str]) -> Column:
    """A column of strings, only those that its rows have; "" becomes None."""
    texts = {code: text for code in sorted({*codes} - {NONE}) if (text := spell(code))}
    number = {code: at for at, code in enumerate(texts)}
    return Column(lambda: array("I", map(number.get, codes, repeat(NONE))), [*texts.values()], NONE)


def _columns(table: Table, spell: Callable[[int], str] | None) -> dict[str, Column]:
    """The columns of a table; `spell` gives the text of a stack, None leaves its number."""
    found = {}
    for name in table.columns:
        codes, texts = table.codes(name), table.texts(name)
        if name == "stack" and spell is None:
            found[name] = _made("I", (code or NONE for code in codes), NONE)
        elif name == "stack" or texts:
            found[name] = _texts(codes, spell if name == "stack" and spell else texts.__getitem__)
        else:
            found[name] = Column(codes.toreadonly)
    return found


def _made(code: str, values: Iterable[int], null: int | None = None) -> Column:
    numbers = array(code, values)
    return Column(lambda: numbers, null=null)


def _allocations(snap: Snapshot, device: int) -> tuple[Table, dict[str, Column]]:
    """The allocations of a device, and the columns that only the export has."""
    timeline = snap.timeline(device)
    rows, times = timeline.allocations, timeline.time_us
    added = {
        name: _made("q", (times[event] if event >= 0 else 0 for event in rows.codes(of)), 0)
        for name, of in (("alloc_us", "alloc_event"), ("free_us", "free_event"))
    }
    places: dict[Place, int] = {}
    found = map(timeline.place_of_allocation, range(len(rows)))
    codes = array("I", (places.setdefault(place, len(places)) for place in found))
    # The table's own places know only stacks, and autograd's threads have none.
    return rows, {**added, "place": Column(lambda: codes, [*map(str, places)])}


def _events(snap: Snapshot, device: int) -> tuple[Table, dict[str, Column]]:
    """The events of a device, and the columns that only the export has."""
    timeline = snap.timeline(device)
    steps = array("i", [-1]) * len(timeline)
    for number, step in enumerate(timeline.steps):
        steps[step.first : step.end] = array("i", [number]) * (step.end - step.first)
    added = {
        "event": _made("i", range(len(timeline))),
        "step": _made("i", steps, -1),
        "allocated": Column(lambda: timeline.allocated),
        "reserved": Column(lambda: timeline.reserved),
    }
    return timeline.events, added


def _bill(snap: Snapshot, device: int) -> tuple[Table, dict[str, Column]]:
    """The bill that `report` has; without rows if the device has no trace."""
    bill = overview(snap, device=device).devices[0].bill
    return (bill or Bill(0, "known part", 0, 0, 0, "", ())).table(), {}


_TABLES = {"allocations": _allocations, "events": _events, "bill": _bill}


def _tables(
    snap: Snapshot, name: str, devices: Sequence[int], spell: Callable[[int], str] | None
) -> Iterator[tuple[dict[str, Column], int]]:
    """The columns of each device, which are parts of one table, and how many rows they have."""
    for number in devices:
        rows, added = _TABLES[name](snap, number)
        device = {"device": Column(constant("i", number, len(rows)))}
        yield {**device, **_columns(rows, spell), **added}, len(rows)


def _parquet(snap: Snapshot, what: str, devices: Sequence[int], file: BinaryIO) -> None:
    try:
        pyarrow, parquet = import_module("pyarrow"), import_module("pyarrow.parquet")
    except ImportError:
        raise missing("pyarrow") from None
    if what != "allocations":
        _require_trace(snap, devices)
    tables = _tables(snap, what, devices, lambda stack: stack_text(snap.stacks[stack]))
    parts = (
        pyarrow.table(Table(what, columns, length)[first : first + _ROWS])
        for columns, length in tables
        for first in range(0, max(length, 1), _ROWS)
    )
    begin = next(parts)
    with parquet.ParquetWriter(file, begin.schema) as writer:
        for part in chain([begin], parts):
            writer.write_table(part)


def _sqlite(snap: Snapshot, devices: Sequence[int], out: str, file: BinaryIO) -> None:
    # SQLite writes to files that it opens itself, and not in order: beside the one that it is for.
    folder = os.path.dirname(os.path.abspath(out))
    with tempfile.TemporaryDirectory(prefix=".neutracer-", suffix=".tmp", dir=folder) as inside:
        path = os.path.join(inside, "export.sqlite")
        try:
            with closing(sqlite3.connect(path, isolation_level=None)) as database:
                database.execute("PRAGMA journal_mode = OFF")
                database.execute("PRAGMA synchronous = OFF")
                database.execute("BEGIN")
                _fill(database, snap, devices)
                database.execute("COMMIT")
        except sqlite3.OperationalError as error:
            # The disk is full, or the file may not be so large.
            raise OSError(errno.EIO, f"SQLite: {error}", out) from None
        with open(path, "rb") as made:
            shutil.copyfileobj(made, file, 1 << 20)


def _fill(database: sqlite3.Connection, snap: Snapshot, devices: Sequence[int]) -> None:
    stacks: set[int] = set()
    for name in _TABLES:
        for columns, length in _tables(snap, name, devices, None):
            kinds = [
                f"{title} {'INTEGER' if column.names is None else 'TEXT'}"
                for title, column in columns.items()
            ]
            database.execute(f"CREATE TABLE IF NOT EXISTS {name} ({', '.join(kinds)})")
            insert = f"INSERT INTO {name} VALUES ({', '.join('?' * len(kinds))})"
            for first in range(0, max(length, 1), _ROWS):
                values = (_sql_values(column, first) for column in columns.values())
                database.executemany(insert, zip(*values, strict=True))
            if "stack" in columns:
                stacks.update(columns["stack"].numbers)
    database.execute("CREATE TABLE stacks (stack INTEGER PRIMARY KEY, frames TEXT)")
    texts = ((stack, _written(stack_text(snap.stacks[stack]))) for stack in sorted(stacks - {NONE}))
    database.executemany("INSERT INTO stacks VALUES (?, ?)", texts)


def _written(text: str) -> str:
    """A text as a database takes it: without unpaired surrogates, as of a file's name."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def _sql_values(column: Column, first: int) -> Any:
    numbers: Any = column.numbers[first : first + _ROWS]
    names, null = column.names, column.null
    if numbers.format == "Q":
        # SQLite has no unsigned integers.
        return numbers.cast("B").cast("q")
    if names is not None:
        shown = [_written(one) for one in names]
        return [None if code == null else shown[code] for code in numbers]
    return numbers if null is None else [None if one == null else one for one in numbers]


# ---- Flame graphs ------------------------------------------------------------------------

# Bytes by stack, innermost frame first, of each graph by its name.
_Flames = dict[str, dict[tuple[Frame, ...], int]]


def frame_text(frame: Frame) -> str:
    """A frame as flame graphs name it, without the character that separates frames.

    Example:
        >>> frame_text(Frame("/srv/train.py", 12, "step"))
        'step (/srv/train.py:12)'
    """
    place = f" ({frame.filename}:{frame.line})" if frame.filename else ""
    return clean(frame.name + place).replace(";", ":")


def stack_text(stack: Sequence[Frame]) -> str:
    """A stack, innermost first, as one line that begins with the outermost frame."""
    return ";".join(map(frame_text, reversed(stack)))


def _flames(snap: Snapshot, what: str, device: int | None) -> _Flames:
    """The bytes of each stack at the peak, or allocated over the trace."""
    timeline = snap.timeline(device)
    if what == "peak":
        holders = timeline.holders(by="stack", limit=None)
        rows = [(cast("tuple[Frame, ...]", one.key), one.bytes) for one in holders]
    else:
        _require_trace(snap, [timeline.device])
        rows = [(one.stack, one.bytes) for one in timeline.churn()]
    return {what: {stack: nbytes for stack, nbytes in rows if nbytes}}


def _changes(
    to: str, before: Snapshot, after: Snapshot | SnapshotSource, device: int | None
) -> _Flames:
    """The ends of two snapshots; for speedscope, which has no weights below 0, the change."""
    report = diff(before, opened(after), device=device)
    if not (report.before_end_known and report.after_end_known):
        raise ValueError("the blocks at the end of one of the snapshots are not known")
    rows = report.by_stack
    if to == "speedscope":
        return {
            "grown": {one.stack: one.bytes for one in rows if one.bytes > 0},
            "shrunk": {one.stack: -one.bytes for one in rows if one.bytes < 0},
        }
    return {
        "before": {one.stack: one.before_bytes for one in rows},
        "after": {one.stack: one.after_bytes for one in rows},
    }


def _collapsed(flames: _Flames, file: BinaryIO) -> None:
    """A line for each stack: its frames, then its bytes in each graph."""
    sums = [Counter[str]() for _ in flames]
    for one, flame in zip(sums, flames.values(), strict=True):
        for stack, nbytes in flame.items():
            one[stack_text(stack) or NO_STACK] += nbytes
    for text in dict.fromkeys(chain(*sums)):
        numbers = " ".join(str(one[text]) for one in sums)
        file.write(f"{text} {numbers}\n".encode())


def _speedscope(flames: _Flames, name: str, file: BinaryIO) -> None:
    """A profile for each graph, in the format of speedscope's file-format-schema.json."""
    numbers: dict[Frame, int] = {}
    nameless = (Frame("", 0, NO_STACK),)
    profiles = []
    for title, flame in flames.items():
        samples = [
            [numbers.setdefault(frame, len(numbers)) for frame in reversed(stack or nameless)]
            for stack in flame
        ]
        title = f"{name}: {title}"
        profile = {"type": "sampled", "name": title, "unit": "bytes", "samples": samples}
        ends = {"startValue": 0, "endValue": sum(flame.values())}
        if flame:
            profiles.append({**profile, **ends, "weights": [*flame.values()]})
    frames = [
        {"name": clean(frame.name)}
        | ({"file": clean(frame.filename), "line": frame.line} if frame.filename else {})
        for frame in numbers
    ]
    page = {
        "$schema": "https://www.speedscope.app/file-format-schema.json",
        "exporter": "neutracer",
        "name": name,
        "shared": {"frames": frames},
        "profiles": profiles,
    }
    file.write(json.dumps(page).encode())


# ---- Perfetto ----------------------------------------------------------------------------

# Fields of perfetto_trace.proto by number. It takes four of its messages: the generated classes
# are 600 kB and need a protobuf that other packages don't allow.
_PACKET = 1
_TIMESTAMP, _SEQUENCE, _TRACK_EVENT, _TRACK_DESCRIPTOR = 8, 10, 11, 60
_TYPE, _TRACK, _NAME, _VALUE = 9, 11, 23, 30
_UUID, _TITLE, _PARENT, _COUNTER = 1, 2, 5, 8
_UNIT, _BYTES = 3, 3
_BEGIN, _END, _INSTANT, _COUNT = 1, 2, 3, 4

# More tracks than a device has: those of counters, and of as many phases as are open at once.
_TRACKS = 1000

_UNSIGNED = (1 << 64) - 1

_EVENT_TIME = re.compile(rb'"ts"\s*:\s*"?(\d+(?:\.\d+)?)')
_BASE_TIME = re.compile(rb'"baseTimeNanoseconds"\s*:\s*(\d+)')

# A name, and microseconds from .. to since the epoch.
_Span = tuple[str, int, int]


@lru_cache(maxsize=1 << 16)
def _varint(number: int) -> bytes:
    # Two groups of seven bits at a time; the upper ones of times and sizes come again.
    if number < 1 << 7:
        return number.to_bytes(1, "little")
    if number < 1 << 14:
        return bytes((number & 0x7F | 0x80, number >> 7))
    return bytes((number & 0x7F | 0x80, number >> 7 & 0x7F | 0x80)) + _varint(number >> 14)


def _message(*fields: tuple[int, int | str | bytes]) -> bytes:
    """A protobuf message of integers, strings and messages by their numbers."""
    made = []
    for number, value in fields:
        if isinstance(value, int):
            made += [_varint(number << 3), _varint(value & _UNSIGNED)]
        else:
            data = value.encode("utf-8", "backslashreplace") if isinstance(value, str) else value
            made += [_varint(number << 3 | 2), _varint(len(data)), data]
    return b"".join(made)


def _track(*fields: tuple[int, int | str | bytes]) -> bytes:
    return _message((_PACKET, _message((_TRACK_DESCRIPTOR, _message(*fields)))))


def _event(time_ns: int, kind: int, track: int, *fields: tuple[int, int | str]) -> bytes:
    event = _message((_TYPE, kind), (_TRACK, track), *fields)
    packet = _message((_TIMESTAMP, time_ns), (_SEQUENCE, 1), (_TRACK_EVENT, event))
    return _message((_PACKET, packet))


def _packets(snap: Snapshot, device: int, root: int, base_ns: int) -> Iterator[bytes]:
    """All packets of a device."""
    timeline, tracks = snap.timeline(device), count(root + 1)
    yield _track((_UUID, root), (_TITLE, snap.device_name(device)))
    turns = ((str(turn), turn.begin_us, turn.end_us) for turn in turns_of(snap, device))
    lanes = [("phases", lane) for lane in _lanes(turns)]
    lanes += [("steps", lane) for lane in _lanes(_steps(timeline))]
    for (title, lane), track in zip(lanes, tracks):  # noqa: B905
        yield _track((_UUID, track), (_TITLE, title), (_PARENT, root))
        for name, begin, end in lane:
            yield _event(begin * 1000 - base_ns, _BEGIN, track, (_NAME, name))
            yield _event(end * 1000 - base_ns, _END, track)
    failed, track = timeline.events.find("action", "oom"), next(tracks)
    if failed:
        yield _track((_UUID, track), (_TITLE, "out of memory"), (_PARENT, root))
    for row in map(timeline.events.__getitem__, failed):
        sizes = f"{format_bytes(row.size)} requested, {format_bytes(row.device_free)} free"
        name = f"out of memory: {sizes}"
        yield _event(row.time_us * 1000 - base_ns, _INSTANT, track, (_NAME, name))
    yield from _counters(timeline, root, next(tracks), base_ns)


def _counters(timeline: Timeline, root: int, first: int, base_ns: int) -> Iterator[bytes]:
    """The counters' tracks from `first` on, and their values where they change."""
    unit = _message((_UNIT, _BYTES))
    for track, title in enumerate(("allocated", "reserved", "unused"), first):
        yield _track((_UUID, track), (_TITLE, title), (_PARENT, root), (_COUNTER, unit))
    last = [-1, -1, -1]
    series = zip(timeline.time_us, timeline.allocated, timeline.reserved, strict=True)
    for time_us, allocated, reserved in series:
        now = [allocated, reserved, reserved - allocated]
        for track, value in enumerate(now) if now != last else ():
            if value != last[track]:
                yield _event(time_us * 1000 - base_ns, _COUNT, first + track, (_VALUE, value))
        last = now


def _lanes(spans: Iterable[_Span]) -> list[list[_Span]]:
    """Spans, by their beginnings, in as few rows as let none overlap another."""
    lanes: list[list[_Span]] = []
    for span in spans:
        lane = next((one for one in lanes if one[-1][2] <= span[1]), None)
        if lane is None:
            lanes.append(lane := [])
        lane.append(span)
    return lanes


def _steps(timeline: Timeline) -> Iterator[_Span]:
    """The steps; each ends where the next begins, the last with the trace at the latest."""
    times = timeline.time_us
    for number, step in enumerate(timeline.steps):
        yield f"step {number}", times[step.first], times[min(step.end, len(times) - 1)]


def _perfetto(
    snap: Snapshot, devices: Sequence[int], kineto: str | os.PathLike[str] | None, file: BinaryIO
) -> None:
    devices = _require_trace(snap, devices)
    times = [snap.timeline(number).time_us for number in devices]
    if not all(one[-1] for one in times):
        raise ValueError("the events of this snapshot have no times")
    begin, end = min(one[0] for one in times), max(one[-1] for one in times)
    base_ns = 0 if kineto is None else _kineto_base_ns(kineto, begin, end)
    # Ids that tell the ranks of a job apart where their files are joined.
    root = (zlib.crc32(os.fsencode(snap.origin)) << 16) + 1
    for number in devices:
        file.writelines(_packets(snap, number, root + _TRACKS * number, base_ns))


# Bytes read at a time of a trace of torch.profiler.
_PART = 1 << 22


def _kineto_base_ns(path: str | os.PathLike[str], begin_us: int, end_us: int) -> int:
    """Zero of a Kineto trace's clock, in nanoseconds since the epoch."""
    name = os.path.basename(path_name(path, "kineto"))
    base, ends, is_trace = 0, (math.inf, -math.inf), False
    with open(path, "rb") as file, suppress(EOFError, zlib.error, gzip.BadGzipFile):
        has_gzip = file.peek(2)[:2] == b"\x1f\x8b"
        for part in _parts(cast("BinaryIO", gzip.GzipFile(fileobj=file) if has_gzip else file)):
            times = [float(found[1]) for found in _EVENT_TIME.finditer(part)]
            ends = min([ends[0], *times]), max([ends[1], *times])
            is_trace |= b'"traceEvents"' in part
            if found := _BASE_TIME.search(part):
                base = int(found[1])
    if not is_trace or ends[0] > ends[1]:
        raise ValueError(f"{name} is not a trace of torch.profiler (export_chrome_trace)")
    # Without a base (before torch 2.3) its times are since the epoch.
    first, last = base / 1000 + ends[0], base / 1000 + ends[1]
    if first > end_us or last < begin_us or begin_us * 1000 < base:
        raise ValueError(f"{name} is of another time than the snapshot: they share no moment")
    return base


def _parts(file: BinaryIO) -> Iterator[bytes]:
    """The parts of a file that begins as JSON does, each up to a comma: no number is cut."""
    rest = file.read(_PART)
    if not rest.lstrip().startswith(b"{"):
        return
    while more := file.read(_PART):
        part, _, rest = rest.rpartition(b",")
        yield part
        rest += more
    yield rest


# ---- Export ------------------------------------------------------------------------------


def _require_trace(snap: Snapshot, devices: Iterable[int]) -> list[int]:
    """The devices with events."""
    traced = [number for number in devices if snap.trace_length(number)]
    if not traced:
        raise ValueError("the file has no trace: only its final state is recorded")
    return traced


def _checked(to: str, what: str | None, has_after: bool, has_kineto: bool) -> str:
    """The contents to write; "" is everything."""
    if to not in FORMATS:
        raise ValueError(f"unknown format {to!r}; there are {', '.join(FORMATS)}")
    known = CONTENTS.get(to, ())
    if has_after:
        if known != _FLAMES or what is not None:
            raise ValueError("only collapsed and speedscope compare snapshots, and without what")
        return "diff"
    if what is not None and what not in known:
        choice = f"what is one of {', '.join(known)}" if known else "one file has everything"
        raise ValueError(f"{to} has no {what!r}: {choice}")
    if has_kineto and to != "perfetto":
        raise ValueError(f"a Kineto trace gives perfetto its clock, not {to}")
    return what or (known[0] if known else "")


def export(
    source: Snapshot | SnapshotSource,
    to: str,
    out: str | os.PathLike[str] | None = None,
    *,
    what: str | None = None,
    after: Snapshot | SnapshotSource | None = None,
    device: int | None = None,
    kineto: str | os.PathLike[str] | None = None,
) -> Path:
    """Write a snapshot as a file of another tool.

    Args:
        source: A snapshot, or what `load` takes.
        to: "parquet" (a table, for pandas, polars and DuckDB), "sqlite" (all tables), "collapsed"
            (stacks for flame graphs), "speedscope", or "perfetto" (memory, phases and steps over
            time).
        out: The file; it appears whole or not at all, compressed if it ends in .gz, .xz or .zst.
            None is the snapshot's name with the format's ending, in the working directory.
        what: Of parquet "allocations" (default), "events" or "bill"; of collapsed and speedscope
            "peak" (default: bytes allocated then, by stack) or "churn" (bytes allocated over the
            trace).
        after: A later snapshot: collapsed and speedscope then compare the ends of the two.
        device: The device; None is all of them, for flame graphs the only one.
        kineto: A trace of torch.profiler of the same run, whose clock perfetto's file then has.

    Returns:
        The file's path.

    Raises:
        ValueError: There is no such format, contents, device or trace, `kineto` is of another
            run, or `out` is a file that is read.
        UnavailableError: Parquet needs pyarrow, or the compression needs a package.
        SnapshotError: A file can't be read.
        OSError: A file can't be read or written.

    Example:
        >>> import neutracer, sqlite3, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = neutracer.export("tests/data/frag_default.pickle", "sqlite", folder + "/a")
        ...     sqlite3.connect(path).execute("SELECT max(allocated) FROM events").fetchone()
        (619585536,)
    """
    what = _checked(to, what, after is not None, kineto is not None)
    origin = source.origin if isinstance(source, Snapshot) else source_path(source)
    name = os.path.basename(origin) or "snapshot"
    path = path_name(f"{name}{what and '.'}{what}{FORMATS[to]}" if out is None else out, "out")
    with atomic_file(path, source, after, kineto) as file:
        snap = opened(source)
        if to in ("collapsed", "speedscope"):
            flames = (
                _flames(snap, what, device) if after is None else _changes(to, snap, after, device)
            )
            if not any(flames.values()):
                has = "has bytes" if after is None else "has other bytes than before"
                raise ValueError(f"there is nothing to draw: no stack {has}")
            if to == "collapsed":
                _collapsed(flames, file)
            else:
                _speedscope(flames, name, file)
        else:
            devices = snap.devices if device is None else ()
            devices = devices or (snap.device(device),)
            if to == "parquet":
                _parquet(snap, what, devices, file)
            elif to == "sqlite":
                _sqlite(snap, devices, path, file)
            else:
                _perfetto(snap, devices, kineto, file)
    return Path(path)
