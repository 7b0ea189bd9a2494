# SPDX-License-Identifier: Apache-2.0
"""Input: opens a path, bytes, a binary file or "-" as the bytes of one snapshot.

Decompresses gzip, xz and zstd under a memory limit, reports progress, and identifies files that
are not snapshots.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import pickle
import re
import resource
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, BinaryIO, Protocol, cast

from neutracer import units
from neutracer.arguments import path_name
from neutracer.errors import LimitError, SnapshotError, UnavailableError, pip_install

# ---- Formats -----------------------------------------------------------------------------

_PACKED = (".gz", ".xz", ".zst")


@contextmanager
def in_format(path: str | os.PathLike[str], file: BinaryIO) -> Iterator[BinaryIO]:
    """A stream for a pickle, converted to JSON if `path` ends in .json, compressed or not."""
    name = os.fsdecode(path)
    stem, ending = os.path.splitext(name)
    if not (stem if ending in _PACKED else name).endswith(".json"):
        yield file
        return
    yield (written := io.BytesIO())
    # Safe: our own bytes, without opcodes that name a class.
    _put(pickle.loads(written.getvalue()), file)


def _put(plain: dict[str, Any], file: BinaryIO) -> None:
    """Write a dict of lists item by item, so that a long trace is never one str."""
    begin = b"{"
    for key, value in plain.items():
        file.write(begin + f"\n{json.dumps(key)}: ".encode("ascii"))
        _put_value(value, file, depth=2)
        begin = b","
    file.write(b"{}\n" if begin == b"{" else b"\n}\n")


def _put_value(value: Any, file: BinaryIO, depth: int) -> None:
    """Write a value; lists, nested down to a depth, with one item per line."""
    if not depth or not isinstance(value, list) or not value:
        file.write(json.dumps(value, allow_nan=False).encode("ascii"))
        return
    for number, item in enumerate(value):
        file.write(b",\n" if number else b"[\n")
        _put_value(item, file, depth - 1)
    file.write(b"\n]")


# ---- Bounds ------------------------------------------------------------------------------

# The share of the free memory that may be used.
_SHARE = 0.9

# The bound if the free memory is unknown.
_UNKNOWN = 16 << 30

# How long a measured bound is reused, in seconds, so that many small files need one measurement.
_FRESH_S = 0.25

# The time of the last measurement, and its bound; replaced as a whole, by any thread.
_measured: tuple[float, int] = (float("-inf"), 0)

# The interpreter's own needs, and those of threads that a library starts.
_SLACK = 64 << 20

# The variable for OpenBLAS's number of threads, by default one per core.
_THREADS = "OPENBLAS_NUM_THREADS"


def memory_bound() -> int:
    """Bytes that this process may use: nine tenths of the free memory.

    The free memory is the least of the machine's available memory, the room in each control
    group around this process (version 1 or 2), and the room for its address space (`ulimit -v`).
    The result is cached for a quarter of a second.
    """
    global _measured
    at, bound = _measured
    now = time.monotonic()
    if now - at > _FRESH_S:
        bound = free_share("/")
        _measured = (now, bound)
    return bound


def free_share(root: str) -> int:
    """`memory_bound` without the cache; `root` is the folder of /proc and /sys."""
    machine = _field(_read(Path(root, "proc/meminfo")), "MemAvailable:")
    found = (machine, _address_space(root), *_groups(root))
    frees = [free for free in found if free is not None]
    return int(max(0, min(frees)) * _SHARE) if frees else _UNKNOWN


@contextlib.contextmanager
def bounded_process(limit: int) -> Iterator[None]:
    """Allow this process at most `limit` more bytes within the block: further allocations raise
    MemoryError."""
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    own = _field(_read(Path("/proc/self/status")), "VmData:") or 0
    wanted = own + limit + _SLACK
    most = [one for one in (soft, hard) if one != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_DATA, (min(wanted, *most, sys.maxsize), hard))
    # Without room for a thread, OpenBLAS raises SIGINT; it is not used for computing here.
    is_set = _THREADS in os.environ
    os.environ.setdefault(_THREADS, "1")
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))
        if not is_set:
            os.environ.pop(_THREADS, None)


def _read(path: Path) -> str:
    with contextlib.suppress(OSError, UnicodeDecodeError):
        return path.read_text()
    return ""


def _number(text: str) -> int | None:
    text = text.strip()
    return int(text) if text.isdecimal() else None


def _field(text: str, name: str) -> int | None:
    """The bytes in a line "name: 12 kB" of a file under /proc."""
    for line in text.splitlines():
        if line.startswith(name):
            kilobytes = _number(line.split()[1]) if len(line.split()) > 1 else None
            return None if kilobytes is None else kilobytes << 10
    return None


def _address_space(root: str) -> int | None:
    """The remaining address space of this process."""
    used = _field(_read(Path(root, "proc/self/status")), "VmSize:")
    if used is None:
        return None
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    return None if soft == resource.RLIM_INFINITY else soft - used


def _groups(root: str) -> Iterator[int | None]:
    """The room in each control group around this process."""
    for line in _read(Path(root, "proc/self/cgroup")).splitlines():
        number, controllers, name = [*line.split(":", 2), "", ""][:3]
        if number == "0" and not controllers:
            yield from _levels(Path(root, "sys/fs/cgroup"), name, _GROUP_FILES[2])
        elif "memory" in controllers.split(","):
            yield from _levels(Path(root, "sys/fs/cgroup/memory"), name, _GROUP_FILES[1])


# By the version of control groups: the files of the limit and of what is in use, and the line of
# memory.stat that says how much of that is reclaimable page cache.
_GROUP_FILES = {
    1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    2: ("memory.max", "memory.current", "inactive_file"),
}


def _levels(mount: Path, name: str, files: tuple[str, str, str]) -> Iterator[int | None]:
    """The room in the group `name` and its parents; in a container, `mount` is the group itself."""
    folder = mount / name.lstrip("/")
    if ".." in folder.parts:  # a group outside of the mount
        folder = mount
    while folder != mount:
        yield _left(folder, *files)
        folder = folder.parent
    yield _left(mount, *files)


def _left(folder: Path, limit: str, usage: str, cache: str) -> int | None:
    """The rest of a group's limit, counting reclaimable page cache as free."""
    most, used = _number(_read(folder / limit)), _number(_read(folder / usage))
    if most is None or used is None:
        return None
    lines = (line.split() for line in _read(folder / "memory.stat").splitlines())
    idle = next((_number(line[1]) for line in lines if len(line) == 2 and line[0] == cache), 0)
    return most - used + min(idle or 0, used)


# ---- Progress ----------------------------------------------------------------------------

# The least size of a file whose loading shows progress on a terminal.
_LONG_FILE = 256 << 20

# The delay before the progress line appears, and its refresh interval.
_WAIT_S = 1.0
_PACE_S = 0.2

#: The delay of the one sentence where standard error is no terminal.
PIPE_WAIT_S = 2.0

# Erases the progress line.
_ERASE = "\r" + " " * 60 + "\r"


class _Display:
    """A progress line on standard error after the first second: the activity and its duration.

    Where that is no terminal, one sentence after the second.
    """

    def __init__(self) -> None:
        self.text = "working"
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="neutracer progress", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        begun, is_terminal = time.monotonic(), sys.stderr.isatty()
        if self._ended.wait(_WAIT_S if is_terminal else PIPE_WAIT_S):
            return
        if not is_terminal:
            say_working()
            return
        show, end = _line()
        try:
            while not self._ended.is_set():
                show(f"{self.text}, {time.monotonic() - begun:.0f} s")
                self._ended.wait(_PACE_S)
        finally:
            end()

    def end(self) -> None:
        """Erase the line; idempotent."""
        self._ended.set()
        self._thread.join()


def say_working() -> None:
    """Say that a command is under way, where no line shows how far it is."""
    with contextlib.suppress(OSError, ValueError):
        _draw("neutracer: working: this takes more than a few seconds\n")


_display: _Display | None = None


def _line() -> tuple[Callable[[str], object], Callable[[], object]]:
    """Functions that replace and erase the text of the line."""
    from neutracer.render.text import colour_wanted

    if colour_wanted():
        with contextlib.suppress(ImportError):
            return _rich_line()

    return (lambda text: _draw(f"\r{text:<60.60}")), (lambda: _draw(_ERASE))


def _rich_line() -> tuple[Callable[[str], object], Callable[[], object]]:
    from rich.console import Console
    from rich.text import Text

    status: Any = Console(stderr=True).status(Text(""))
    status.start()
    return (lambda text: status.update(Text(text))), status.stop


@contextlib.contextmanager
def working() -> Iterator[None]:
    """Show on standard error that a block is under way, once it takes over a second or two.

    `tell` sets its text; `end_progress` erases it before other output.
    """
    global _display
    if _display is not None:
        yield
        return
    _display = _Display()
    try:
        yield
    finally:
        end_progress()


def end_progress() -> None:
    """Erase the progress line of `working` for good, if there is one."""
    global _display
    shown, _display = _display, None
    if shown is not None:
        shown.end()


def tell(text: str) -> None:
    """Set the text of the progress line of `working`, if there is one."""
    if _display is not None:
        _display.text = text


@contextlib.contextmanager
def reporting(
    source: object, progress: Callable[[int], object] | bool | None
) -> Iterator[Callable[[int], object] | None]:
    """The function to call with the bytes read, or None.

    Args:
        progress: A function, which is used as it is; True for a line on standard error; False
            for none; None for the line of `working`, else for a line if the file is long and
            standard error is a terminal.
    """
    if callable(progress):
        yield progress
    elif progress is None and _display is not None:
        yield lambda done: tell(f"read {units.format_bytes(done)}")
        tell("working")
    elif progress or (progress is None and _is_long(source) and sys.stderr.isatty()):
        try:
            yield lambda done: _draw(f"\rread {units.format_bytes(done)}   ")
        finally:
            _draw(_ERASE)
    else:
        yield None


def _draw(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()


def _is_long(source: object) -> bool:
    if isinstance(source, (str, os.PathLike)):
        with contextlib.suppress(OSError, ValueError):
            return os.stat(source).st_size >= _LONG_FILE
    return False


# ---- Unpack ------------------------------------------------------------------------------

# gzip, xz and zstd, recognized by their first bytes. Truncated data ends early, so that its intact
# part can be read; damaged data and decompression bombs are refused.

# Compressed bytes read at a time; small, because the rest after a member is copied.
_CHUNK = 16 << 10

# Real snapshots compress 10 to 100 times; higher ratios are decompression bombs. Output below the
# floor is harmless.
_MOST_RATIO = 1000
_RATIO_FLOOR = 64 << 20
_MOST_BYTES = 1 << 40

# Memory for parsing the decompressed data, per compressed byte and at least. Snapshots need about
# ten times their compressed size; pickles of nothing but empty lists, thousands of times.
_MOST_MEMORY_RATIO = 500
_MEMORY_FLOOR = 256 << 20

# Memory for decompressing xz: `xz -9` needs 65 MiB; a header can ask for 4 GiB.
_XZ_MEMORY = 256 << 20

_MAGIC = {"gzip": b"\x1f\x8b", "xz": b"\xfd7zXZ\x00", "zstd": b"\x28\xb5\x2f\xfd"}

#: The bounds by name, for the page, which decompresses gzip itself (`feed.js`).
UNPACK_RULES: Mapping[str, object] = {
    "magic": _MAGIC,
    "most_ratio": _MOST_RATIO,
    "ratio_floor": _RATIO_FLOOR,
    "memory_ratio": _MOST_MEMORY_RATIO,
    "memory_floor": _MEMORY_FLOOR,
}


class Reader(Protocol):
    """Anything with a binary `read(n)`."""

    def read(self, count: int, /) -> bytes: ...


class _Decoder(Protocol):
    """A decoder of one member of a stream; it buffers unused input."""

    @property
    def eof(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, max_length: int, /) -> bytes: ...


class _GzipDecoder:
    """zlib's decoder, which otherwise does not buffer unused input."""

    def __init__(self) -> None:
        self._inner = zlib.decompressobj(wbits=31)
        self._tail = b""

    @property
    def eof(self) -> bool:
        return self._inner.eof

    @property
    def unused_data(self) -> bytes:
        return self._inner.unused_data

    def decompress(self, data: bytes, max_length: int, /) -> bytes:
        chunk = self._inner.decompress(self._tail + data, max_length)
        self._tail = self._inner.unconsumed_tail
        return chunk


def packed_kind(head: bytes) -> str | None:
    """The compression of a stream by its first bytes: "gzip", "xz", "zstd" or None."""
    return next((kind for kind, magic in _MAGIC.items() if head.startswith(magic)), None)


def unpack(kind: str, stream: Reader) -> Unpacked:
    """Decompress a whole stream of a kind that `packed_kind` names."""
    if kind == "gzip":
        return _Members(stream, kind, _GzipDecoder, (zlib.error,))
    if kind == "xz":
        return _xz(stream)
    return _zstd(stream)


def _xz(stream: Reader) -> Unpacked:
    try:
        import lzma
    except ImportError:
        raise UnavailableError(
            "xz decompression", "this Python was built without liblzma; unpack the file first"
        ) from None

    def decoder() -> _Decoder:
        return lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_XZ_MEMORY)

    return _Members(stream, "xz", decoder, (lzma.LZMAError,))


def _zstd(stream: Reader) -> Unpacked:
    try:
        from compression import zstd  # type: ignore[import-not-found,unused-ignore]

        return _Members(stream, "zstd", zstd.ZstdDecompressor, (zstd.ZstdError,))
    except ImportError:
        pass
    try:
        return _Frames(stream)
    except ImportError:
        raise UnavailableError(
            "zstd decompression", f"{pip_install('zstandard')} (or Python 3.14)"
        ) from None


class Unpacked:
    """A decompressed stream of bounded size. Read with `read(n)`."""

    def __init__(self, stream: Reader, kind: str, errors: tuple[type[Exception], ...]) -> None:
        self.kind = kind
        self._stream = stream
        self._errors = errors
        self._taken = 0
        self._given = 0

    @property
    def allowance(self) -> int:
        """The memory allowed for parsing the data decompressed so far."""
        return _MEMORY_FLOOR + _MOST_MEMORY_RATIO * self._taken

    def read(self, count: int, /) -> bytes:
        """At most `count` bytes; none at the end, also of truncated data."""
        try:
            chunk = self._produce(count)
        except self._errors as error:
            if "emory usage limit" in str(error):
                raise LimitError(f"the {self.kind} data asks for too much memory") from error
            raise SnapshotError(f"the {self.kind} data is damaged: {error}") from error
        self._given += len(chunk)
        if self._given > max(_RATIO_FLOOR, _MOST_RATIO * self._taken):
            raise LimitError(f"the {self.kind} data unpacks to over {_MOST_RATIO:,} times its size")
        if self._given > _MOST_BYTES:
            raise LimitError(f"the {self.kind} data unpacks to over {_MOST_BYTES:,} bytes")
        return chunk

    def _produce(self, count: int) -> bytes:
        raise NotImplementedError

    def _take(self, count: int) -> bytes:
        data = self._stream.read(count)
        self._taken += len(data)
        return data


class _Frames(Unpacked):
    """zstd by the package zstandard, whose own reader continues across frames."""

    def __init__(self, stream: Reader) -> None:
        import zstandard  # type: ignore[import-not-found,unused-ignore]

        super().__init__(stream, "zstd", (zstandard.ZstdError,))
        self._frames = zstandard.ZstdDecompressor().stream_reader(
            cast(Any, SimpleNamespace(read=self._take)), read_across_frames=True
        )

    def _produce(self, count: int) -> bytes:
        return bytes(self._frames.read(count))


class _Members(Unpacked):
    """Concatenated members, as in `cat a.gz b.gz`, with a decoder each."""

    def __init__(
        self,
        stream: Reader,
        kind: str,
        decoder: Callable[[], _Decoder],
        errors: tuple[type[Exception], ...],
    ) -> None:
        super().__init__(stream, kind, errors)
        self._new = decoder
        self._decoder: _Decoder | None = decoder()
        self._rest = b""

    def _produce(self, count: int) -> bytes:
        while self._decoder is not None:
            chunk = self._decoder.decompress(b"", count)
            if not chunk and not self._decoder.eof:
                data = self._rest or self._take(_CHUNK)
                self._rest = b""
                if not data:
                    self._decoder = None
                    break
                chunk = self._decoder.decompress(data, count)
            if self._decoder.eof:
                self._begin_next(self._decoder.unused_data)
            if chunk:
                return chunk
        return b""

    def _begin_next(self, rest: bytes) -> None:
        """Begin the next member; trailing data of another kind is ignored."""
        magic = _MAGIC[self.kind]
        while len(rest) < len(magic) and (more := self._take(_CHUNK)):
            rest += more
        self._decoder = self._new() if rest.startswith(magic) else None
        self._rest = rest


# ---- Source ------------------------------------------------------------------------------

# A file's kind is decided by its first bytes, not by its name.

SnapshotSource = str | os.PathLike[str] | bytes | bytearray | memoryview | BinaryIO

EXPECTED = "expected a PyTorch memory snapshot, as torch.cuda.memory._dump_snapshot() writes it"

_PEEK = 512

_SNAPSHOT_NAME = re.compile(r"\.(pickle|pkl)(\.(gz|xz|zst))?$")

# Bytes of JSON that are read at a time, and the memory that parsing takes per byte.
_JSON_CHUNK = 1 << 20
_JSON_MEMORY = 16

_UNPACK = "unpack it, and give the snapshot in it"

# Files often mistaken for snapshots: the beginning as a regular expression of Python and
# JavaScript, and the kind, with what to do after a colon.
_OTHER_FILES = (
    (
        r"PK\x03\x04.*/data\.pkl",
        "a zip archive, most likely a checkpoint written by torch.save()",
    ),
    (r"PK\x03\x04", f"a zip archive: {_UNPACK}"),
    (r".{257}ustar", f"a tar archive: {_UNPACK}"),
    (
        r"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19\.",
        "a checkpoint in the old format of torch.save()",
    ),
    (r"BZh", "compressed with bzip2 (gzip, xz and zstd are read)"),
    (r"\x7fELF", "a program or a library"),
    (r"\x93NUMPY", "a NumPy array"),
    (r"\x89HDF", "an HDF5 file"),
    (r"SQLite format 3", "an SQLite database"),
    (r"\x89PNG|\xff\xd8\xff|GIF8", "a picture"),
    (r"%PDF", "a PDF file"),
    (
        r"version \S+//git-lfs\.github\.com/spec/",
        "a Git LFS pointer: 'git lfs pull' fetches the file",
    ),
    (
        r"(?:\.\./\.git/annex|/annex)/objects/",
        "a git-annex pointer: 'git annex get' fetches the file",
    ),
    (
        r'\{\s*"schema": "neutracer\.',
        "JSON that neutracer wrote: give the snapshot it is about",
    ),
    (
        r"(?:[\t\n\r -~]*\n)?(?:import [A-Za-z_.]+|from [A-Za-z_.]+ import )",
        "a Python program: 'neutracer run' records it",
    ),
)

#: These by name, for the page, which reads files in JavaScript (`feed.js`).
FILE_RULES: Mapping[str, object] = {"expected": EXPECTED, "others": _OTHER_FILES}


class _Joined:
    """The peeked head of a stream, then the rest of it."""

    def __init__(self, head: bytes, rest: Reader) -> None:
        self._head = head
        self._rest = rest

    @property
    def allowance(self) -> int | None:
        """The memory allowed for parsing the data so far; None: the caller's limit."""
        return self._rest.allowance if isinstance(self._rest, Unpacked) else None

    def read(self, count: int, /) -> bytes:
        if not self._head:
            return self._rest.read(count)
        taken, self._head = self._head[:count], self._head[count:]
        return taken


def check_head(head: bytes, packed: str | None = None) -> None:
    """Refuse anything but a pickle, by its first bytes.

    Args:
        head: The first bytes, at least 16 of a longer file.
        packed: The compression that they were in, or None.
    """
    if not head:
        empty = "the file is empty (0 bytes)"
        if packed:
            empty = f"the {packed} data is empty, or breaks off before anything can be unpacked"
        raise SnapshotError(f"{empty}: {EXPECTED}", 0)
    text = head.decode("latin-1")
    kind = next((name for begin, name in _OTHER_FILES if re.match(begin, text, re.DOTALL)), None)
    if packed and packed_kind(head):
        kind = f"{packed_kind(head)} data again"
    kind = kind or _text_kind(head)
    if kind:
        subject = f"what is packed with {packed}" if packed else "this"
        wanted = "" if ": " in kind else f": {EXPECTED}"
        raise SnapshotError(f"{subject} is {kind}{wanted}", 0)


def _text_kind(head: bytes) -> str | None:
    """The kind of a text file; None if it may be a pickle."""
    # Pickles of protocol 0 are text; they begin with a dict or a list.
    if head.startswith((b"(d", b"(l")) or any(b < 32 and b not in b"\t\n\r" for b in head):
        return None
    if head[:1] == b"\x80":
        return None
    start = head.removeprefix(b"\xef\xbb\xbf").lstrip()[:1]
    if start in (b"{", b"["):
        return "a profiler's trace" if b'"traceEvents"' in head else "JSON text"
    if start == b"<":
        return "an HTML or XML page"
    return "a text file: 'neutracer explain' finds PyTorch's out-of-memory message in a log"


def is_log(head: bytes) -> bool:
    """Whether the first bytes of a file may be those of a program's output: text, with colours
    perhaps, and not JSON or a page."""
    if _text_kind(bytes(b for b in head if b not in b"\b\f\x1b")) is None:
        return False
    start = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    is_list = start[:1] == b"[" and start[1:].lstrip()[:1] in (b"{", b"[", b'"', b"]")
    return bool(start) and start[:1] not in (b"{", b"<") and not is_list


def _is_dump(head: bytes) -> bool:
    """Whether the first bytes are those of a snapshot in JSON: `json.dump` of `_snapshot()`."""
    is_text = _text_kind(head) == "JSON text" and head.lstrip()[:1] == b"{"
    return is_text and any(key in head for key in (b'"segments"', b'"device_traces"'))


def _from_json(stream: Reader) -> io.BytesIO:
    """The pickle of a snapshot in JSON."""
    most = memory_bound() // _JSON_MEMORY
    parts: list[bytes] = []
    while chunk := stream.read(_JSON_CHUNK):
        parts.append(chunk)
        if sum(map(len, parts)) > most:
            raise LimitError(f"JSON of more than {units.format_bytes(most)} needs too much memory")
    try:
        plain = json.loads(b"".join(parts))
    except (ValueError, RecursionError) as error:
        raise SnapshotError(f"the JSON text is damaged, or breaks off: {error}") from error
    return io.BytesIO(pickle.dumps(plain, protocol=4))


def _about_directory(path: str) -> str:
    """Why a directory is not read, and what was meant: the newest snapshot in it, or all."""
    with os.scandir(path) as entries:
        found = [entry for entry in entries if _SNAPSHOT_NAME.search(entry.name)]
    if not found:
        return "this is a directory, without any .pickle file"
    newest = max(found, key=lambda entry: entry.stat(follow_symlinks=False).st_mtime_ns)
    return f"this is a directory: give a file, like {newest.path}, or ask 'neutracer ranks {path}'"


@contextmanager
def _open_binary(source: str | os.PathLike[str] | BinaryIO) -> Iterator[BinaryIO]:
    if not isinstance(source, (str, os.PathLike)):
        yield source
        return
    path = path_name(source, "source")
    if path == "-":
        if sys.stdin is None:
            raise SnapshotError("standard input is closed")
        yield sys.stdin.buffer
        return
    if os.path.isdir(path):
        raise SnapshotError(_about_directory(path))
    with open(path, "rb", buffering=0) as file:
        yield cast(BinaryIO, file)


@contextmanager
def open_source(source: SnapshotSource) -> Iterator[Any]:
    """The input of the core: bytes, a file descriptor, or an object with `read(n)`.

    Args:
        source: A path, "-" for standard input, bytes, or a binary file, which is read from its
            current position.
    """
    if isinstance(source, (bytes, bytearray, memoryview)):
        # Writable buffers are copied: the core reads without the GIL.
        data = source if isinstance(source, bytes) else bytes(source)
        yield _opened(data[:_PEEK], _Joined(b"", io.BytesIO(data)), data)
        return
    if not isinstance(source, (str, os.PathLike)) and not hasattr(source, "read"):
        raise TypeError(
            f"a snapshot must be a path, bytes or a binary file, not {type(source).__name__}"
        )
    with _open_binary(source) as file:
        head = _first_bytes(file)
        stream = _Joined(head, file)
        plain: Any = stream
        if isinstance(file, io.FileIO) and file is not source and file.seekable():
            plain = file.fileno()
        opened = _opened(head, stream, plain)
        if opened is plain and plain is not stream:
            file.seek(0)
        yield opened


def source_path(source: SnapshotSource) -> str:
    """The absolute path of a source, or ""."""
    name = source if isinstance(source, (str, os.PathLike)) else getattr(source, "name", "")
    name = os.fsdecode(name) if isinstance(name, (str, bytes, os.PathLike)) else ""
    return os.path.abspath(name) if name not in ("", "-") else ""


def _first_bytes(file: BinaryIO) -> bytes:
    """The first `_PEEK` bytes; a stream may deliver them in pieces."""
    if not getattr(file, "readable", lambda: True)():
        raise ValueError("the file is not open for reading")
    head = b""
    while len(head) < _PEEK:
        piece = file.read(_PEEK - len(head))
        if piece is not None and not isinstance(piece, bytes):
            raise TypeError("the file is not open in binary mode")
        if not piece:
            break
        head += piece
    return head


def _opened(head: bytes, stream: _Joined, plain: Any) -> Any:
    """`plain`, or a reader of the decompressed `stream`."""
    if _is_dump(head):
        return _from_json(stream)
    check_head(head)
    kind = packed_kind(head)
    if kind is None:
        return plain
    unpacked = unpack(kind, stream)
    inner = unpacked.read(_PEEK)
    if _is_dump(inner):
        return _from_json(_Joined(inner, unpacked))
    check_head(inner, kind)
    return _Joined(inner, unpacked)
