# SPDX-License-Identifier: Apache-2.0
"""load(): where bytes come from, who may stop it, and what it leaves behind."""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import subprocess
import sys
import threading
import time
import tracemalloc

import pytest
from bundle import DATA, pickled
from small_snapshots import dumped, one_program

from neutracer import LimitError, SnapshotError, _core

LIMIT = 1 << 30
FILE = DATA / "frag_default.pickle"


class Slow:
    """A reader that takes its time, so that progress is due at each piece."""

    def __init__(self, data: bytes, pieces: int, pause_s: float) -> None:
        step = len(data) // pieces + 1
        self.pieces = [data[at : at + step] for at in range(0, len(data), step)]
        self.pause_s = pause_s

    def read(self, count: int) -> bytes:
        time.sleep(self.pause_s)
        return self.pieces.pop(0) if self.pieces else b""


def sizes(native):
    return memoryview(native.tables()["events"]["size"]).tolist()


def test_every_source_gives_the_same():
    data = FILE.read_bytes()
    by_bytes = _core.load(data, LIMIT)
    with FILE.open("rb") as file:
        by_fd = _core.load(file.fileno(), LIMIT)
    by_reader = _core.load(io.BytesIO(data), LIMIT)
    by_drops = _core.load(Slow(data, 999, 0), LIMIT)
    assert sizes(by_bytes) == sizes(by_fd) == sizes(by_reader) == sizes(by_drops)


def test_source_is_let_go_afterwards():
    data, reader = bytearray(dumped(one_program())), io.BytesIO(dumped(one_program()))
    before = sys.getrefcount(data), sys.getrefcount(reader)
    for _ in range(5):
        _core.load(data, LIMIT)
        reader.seek(0)
        _core.load(reader, LIMIT)
        with pytest.raises(SnapshotError):
            _core.load(bytearray(b"\x80\x04c"), LIMIT)
    assert (sys.getrefcount(data), sys.getrefcount(reader)) == before
    data.clear()


def test_read_errors_come_through():
    class Broken:
        def read(self, count):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        _core.load(Broken(), LIMIT)
    with pytest.raises(AttributeError):
        _core.load(object(), LIMIT)


@pytest.mark.parametrize("answer", ["text", None, 7, b"x" * (1 << 20)])
def test_wrong_answers_of_readers_are_refused(answer):
    class Wrong:
        def read(self, count):
            return answer

    with pytest.raises(TypeError, match="at most n bytes"):
        _core.load(Wrong(), LIMIT)


def test_bad_descriptors_are_os_errors(tmp_path):
    closed = os.open(FILE, os.O_RDONLY)
    os.close(closed)
    with pytest.raises(OSError, match="Bad file descriptor"):
        _core.load(closed, LIMIT)
    with pytest.raises(ValueError, match="negative"):
        _core.load(-1, LIMIT)
    with pytest.raises(OverflowError):
        _core.load(1 << 80, LIMIT)
    folder = os.open(tmp_path, os.O_RDONLY)
    try:
        with pytest.raises(IsADirectoryError):
            _core.load(folder, LIMIT)
    finally:
        os.close(folder)


def test_memory_stays_within_its_limit():
    data = FILE.read_bytes()
    needed = _core.load(data, LIMIT).nbytes
    assert 0 < needed < 10 * len(data)
    with pytest.raises(LimitError, match=rf"{needed // 2} bytes that max_memory allows"):
        _core.load(data, needed // 2)


def test_room_for_events_is_foreseen(tmp_path):
    # A little more than fit into columns that double: twice the room would not do.
    event = {"action": "alloc", "size": 512, "stream": 0, "frames": [], "time_us": 5}
    trace = [{**event, "addr": 512 * row} for row in range(270_000)]
    data = pickle.dumps({"segments": [], "device_traces": [trace]})
    needed = _core.load(data, LIMIT).nbytes
    assert _core.load(data, int(1.6 * needed)).nbytes == needed
    path = tmp_path / "long.pickle"
    path.write_bytes(data)
    with path.open("rb") as file:
        assert _core.load(file.fileno(), int(1.6 * needed)).nbytes == needed


def test_progress_rises_to_the_end():
    data, seen = dumped(one_program()), []
    _core.load(Slow(data, 4, 0.06), LIMIT, seen.append)
    assert len(seen) >= 3
    assert seen == sorted(seen)
    assert 0 < seen[-1] <= len(data)


def test_short_loads_do_not_visit_progress():
    data, seen = dumped(one_program()), []
    begin = time.monotonic()
    _core.load(data, LIMIT, seen.append)
    # None in the first 50 ms, which is more than it takes where nothing holds it up.
    assert len(seen) <= (time.monotonic() - begin) / 0.05


def test_progress_can_stop_the_load():
    def stop(done):
        raise InterruptedError(f"at {done}")

    with pytest.raises(InterruptedError, match="at "):
        _core.load(Slow(dumped(one_program()), 4, 0.06), LIMIT, stop)


def run(program: str, tmp_path) -> str:
    """Runs a program that would hang if it were wrong; its output."""
    done = subprocess.run(
        [sys.executable, "-c", program, str(FILE)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_other_threads_run_while_it_waits(tmp_path):
    # The writer needs the GIL: were it held during read(2), nobody would ever write.
    program = """
import os, sys, threading
from neutracer import _core
data = open(sys.argv[1], "rb").read()
out, into = os.pipe()
def write():
    with os.fdopen(into, "wb") as pipe:
        pipe.write(data)
threading.Thread(target=write).start()
print(len(_core.load(out, 1 << 30).tables()["events"]["size"]))
"""
    assert run(program, tmp_path) == "2375"


def test_signal_ends_the_wait_for_bytes(tmp_path):
    program = """
import os, signal
from neutracer import _core
class Rang(Exception): pass
def ring(*_):
    signal.setitimer(signal.ITIMER_REAL, 0)
    raise Rang
out, into = os.pipe()
signal.signal(signal.SIGALRM, ring)
try:
    # Again and again: the first may come before there is anything to wait for.
    signal.setitimer(signal.ITIMER_REAL, 0.1, 0.1)
    _core.load(out, 1 << 30)
except Rang:
    print("rang")
"""
    assert run(program, tmp_path) == "rang"


def test_signal_ends_a_long_parse(tmp_path):
    # A pickle that does nothing for minutes, were it read to its end. The timer rings
    # once; what the handler raises must come out before the end of the input.
    program = """
import signal
from neutracer import _core
class Rang(Exception): pass
def ring(*_): raise Rang
class Endless:
    piece = b"N0" * (1 << 17)
    head = b"\\x80\\x04"
    def read(self, count):
        head, self.head = self.head, b""
        return (head + self.piece)[:count & ~1]
signal.signal(signal.SIGALRM, ring)
try:
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    _core.load(Endless(), 1 << 30)
except Rang:
    print("rang")
"""
    assert run(program, tmp_path) == "rang"


def test_threads_may_load_at_once():
    data, results = FILE.read_bytes(), []
    threads = [
        threading.Thread(target=lambda: results.append(sizes(_core.load(data, LIMIT))))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 4
    assert all(result == results[0] for result in results)


def test_loads_in_a_loop_leak_nothing():
    data = pickled("metadata")

    def once():
        native = _core.load(data, LIMIT)
        native.tables(), native.strings(), native.frames(), native.settings()
        native.pool_stats(0), native.actions(), native.traces(), native.stacks()
        for bad in (data[: len(data) // 2], b"\x80\x04c", b""):
            with contextlib.suppress(SnapshotError):
                _core.load(bad, LIMIT)

    def grown():
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(20):
            once()
        return tracemalloc.get_traced_memory()[0] - before

    once()
    tracemalloc.start()
    try:
        once()
        # Another thread of the process may allocate meanwhile; a leak shows each time.
        least = min(grown() for _ in range(3))
    finally:
        tracemalloc.stop()
    assert least < 4096


def test_cut_messages_stay_readable():
    name = "\N{SNOWMAN}" * 400
    snapshot = one_program()
    snapshot["device_traces"] = name
    with pytest.raises(SnapshotError) as caught:
        _core.load(dumped(snapshot), LIMIT)
    assert caught.value.reason
    assert str(caught.value).isprintable()
