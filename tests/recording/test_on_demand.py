# SPDX-License-Identifier: Apache-2.0
"""Reports at a signal and at intervals, beside a program that knows nothing of them."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import queue
import select
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from neutracer.recording.program import OnDemand

pytestmark = pytest.mark.skipif(not hasattr(signal, "SIGUSR2"), reason="needs SIGUSR2")


class Seen:
    """What was done, and somebody to wait for it."""

    def __init__(self):
        self.reasons = []
        self.changed = threading.Condition()

    def __call__(self, reason):
        with self.changed:
            self.reasons.append(reason)
            self.changed.notify_all()

    def wait(self, count):
        with self.changed:
            return self.changed.wait_for(lambda: len(self.reasons) >= count, 60)


@pytest.fixture
def seen():
    return Seen()


@pytest.fixture(autouse=True)
def signals_are_restored():
    handler = signal.getsignal(signal.SIGUSR2)
    yield
    assert signal.getsignal(signal.SIGUSR2) == handler
    current = signal.set_wakeup_fd(-1)
    assert current == -1


@pytest.fixture
def at_signal(seen):
    beside = OnDemand(seen, every_s=None, signum=signal.SIGUSR2)
    beside.start()
    yield beside
    beside.stop()


def send():
    os.kill(os.getpid(), signal.SIGUSR2)


def test_signal_is_acted_on(at_signal, seen):
    for count in (1, 2):
        send()
        assert seen.wait(count)
    assert seen.reasons == ["signal", "signal"]


class Interrupted:
    """`signal.set_wakeup_fd` with a signal just before one of its calls does its work.

    Both happen without a turn of the interpreter between them, so that the signal's handler
    runs when the call is over.
    """

    def __init__(self, monkeypatch, signum, before=lambda: None):
        self.signum, self.before, self.calls = signum, before, 0
        self.real = signal.set_wakeup_fd
        self.kill = functools.partial(ctypes.PyDLL(None).kill, os.getpid(), signum)
        monkeypatch.setattr(signal, "set_wakeup_fd", self)

    def __call__(self, fd, **options):
        self.calls += 1
        if self.calls != 2:
            return self.real(fd, **options)
        self.before()
        both = [self.kill, functools.partial(self.real, fd, **options)]
        return list(map(functools.partial.__call__, both))[1]


def test_signal_while_another_is_handled_is_acted_on(at_signal, seen, monkeypatch):
    call = Interrupted(monkeypatch, signal.SIGUSR2, before=lambda: seen.wait(1))
    send()
    assert seen.wait(2)
    assert call.calls >= 2
    monkeypatch.undo()
    assert seen.reasons == ["signal", "signal"]


def test_signals_of_the_program_are_handed_on(seen, monkeypatch):
    read, write = os.pipe()
    os.set_blocking(write, False)
    previous = signal.signal(signal.SIGUSR1, lambda *args: None)
    signal.set_wakeup_fd(write)
    beside = OnDemand(seen, every_s=None, signum=signal.SIGUSR2)
    beside.start()
    try:
        call = Interrupted(monkeypatch, signal.SIGUSR1)
        send()
        assert seen.wait(1)
        assert call.calls >= 2
        assert sorted(os.read(read, 10)) == [signal.SIGUSR1, signal.SIGUSR2]
    finally:
        monkeypatch.undo()
        beside.stop()
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGUSR1, previous)
        os.close(read)
        os.close(write)


def test_signal_is_acted_on_in_c_code(at_signal, seen):
    """The main thread is in C and comes back to no handler, as in a hanging collective."""
    came = []

    def watch(count):
        assert seen.wait(count)
        came.append(time.monotonic())

    for attempt in range(6):
        watcher = threading.Thread(target=watch, args=(attempt + 1,))
        watcher.start()
        threading.Timer(0.05, send).start()
        hashlib.pbkdf2_hmac("sha256", b"", b"", 200_000 << attempt)
        back = time.monotonic()
        watcher.join()
        if came[attempt] < back:
            return
        # The machine was busy: it came when C had ended. Once more, for longer.
    pytest.fail("it is acted on only when C has ended")


def test_pipe_taken_by_the_program_still_works(at_signal, seen):
    read, write = os.pipe()
    os.set_blocking(write, False)
    ours = signal.set_wakeup_fd(write)
    try:
        send()
        assert seen.wait(1)
    finally:
        signal.set_wakeup_fd(ours)
        os.close(read)
        os.close(write)
    assert seen.reasons == ["signal"]


def test_pipe_of_the_program_is_left_alone(seen):
    read, write = os.pipe()
    os.set_blocking(write, False)
    signal.set_wakeup_fd(write)
    beside = OnDemand(seen, every_s=None, signum=signal.SIGUSR2)
    beside.start()
    try:
        send()
        assert seen.wait(1)
        assert os.read(read, 10) == bytes([signal.SIGUSR2])
        beside.stop()
        assert signal.set_wakeup_fd(write) == write
    finally:
        signal.set_wakeup_fd(-1)
        os.close(read)
        os.close(write)


def test_pipe_that_the_program_closed_is_forgotten(at_signal, seen):
    read, write = os.pipe()
    os.set_blocking(write, False)
    signal.set_wakeup_fd(write)
    os.close(read)
    os.close(write)
    signal.getsignal(signal.SIGUSR2)(signal.SIGUSR2, None)
    assert seen.wait(1)
    assert signal.set_wakeup_fd(-1) == -1
    assert seen.reasons == ["signal"]


def test_handler_does_nothing_once_stopped(at_signal, seen):
    kept = signal.getsignal(signal.SIGUSR2)
    at_signal.stop()
    kept(signal.SIGUSR2, None)
    assert seen.reasons == []


def test_handler_of_the_program_wins(at_signal, seen):
    theirs = []

    def handle(*args):
        theirs.append(1)

    signal.signal(signal.SIGUSR2, handle)
    try:
        send()
        end = time.monotonic() + 60
        # Until both have met the signal: their handler, and the thread that waits for it.
        while not theirs or select.select([at_signal._read], [], [], 0)[0]:
            assert time.monotonic() < end
            time.sleep(0.01)
        at_signal.stop()
        assert theirs == [1]
        assert seen.reasons == []
        assert signal.getsignal(signal.SIGUSR2) is handle
    finally:
        signal.signal(signal.SIGUSR2, at_signal._previous)


def test_intervals_come_again_and_again(seen):
    beside = OnDemand(seen, every_s=0.02, signum=None)
    beside.start()
    assert seen.wait(3)
    beside.stop()
    count = len(seen.reasons)
    time.sleep(0.06)
    assert len(seen.reasons) == count
    assert set(seen.reasons) == {"interval"}


def test_failing_action_is_not_the_last(caplog):
    count = []
    done = threading.Event()

    def action(reason):
        count.append(reason)
        if len(count) == 2:
            done.set()
        raise ValueError("no")

    beside = OnDemand(action, every_s=0.01, signum=None)
    beside.start()
    assert done.wait(60)
    beside.stop()
    assert "could not be written" in caplog.text


def test_nothing_asked_begins_nothing(seen):
    before = set(threading.enumerate())
    beside = OnDemand(seen, every_s=None, signum=None)
    beside.start()
    assert set(threading.enumerate()) <= before
    beside.stop()


def test_child_of_a_fork_is_as_it_was(at_signal, seen):
    child = os.fork()
    if child == 0:
        at_signal.stop()
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGUSR2)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGUSR2
    assert seen.reasons == []
    send()
    assert seen.wait(1)


def test_other_threads_get_intervals_only(seen):
    def work():
        beside = OnDemand(seen, every_s=0.01, signum=signal.SIGUSR2)
        beside.start()
        seen.wait(1)
        beside.stop()

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen.reasons[0] == "interval"


def test_begun_and_ended_from_another_thread(seen):
    """The signal is taken and given back by the main thread, and all else is done where one is."""
    sent, done = queue.SimpleQueue(), threading.Event()

    def in_main(action):
        sent.put(action)
        assert done.wait(60)
        done.clear()

    beside = OnDemand(seen, every_s=None, signum=signal.SIGUSR2, in_main=in_main)

    def begin_and_end():
        beside.start()
        send()
        assert seen.wait(1)
        beside.stop()

    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(begin_and_end)
        for _ in range(2):
            sent.get(timeout=60)()
            done.set()
        asked.result()
    assert seen.reasons == ["signal"]


def test_signal_that_can_not_be_taken_leaves_nothing(seen):
    def in_main(action):
        raise RuntimeError("nobody there")

    before = len(os.listdir("/dev/fd"))
    beside = OnDemand(seen, every_s=None, signum=signal.SIGUSR2, in_main=in_main)
    with pytest.raises(RuntimeError):
        beside.start()
    beside.stop()
    assert len(os.listdir("/dev/fd")) == before
