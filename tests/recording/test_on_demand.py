# SPDX-License-Identifier: Apache-2.0
"""Reports at a signal and at intervals, beside a program that knows nothing of them."""

from __future__ import annotations

import hashlib
import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

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


def is_caught():
    """Whether this process has a handler of the signal, in Python or in C."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("SigCgt:")[1].split()[0], 16) >> (signal.SIGUSR2 - 1) & 1 == 1


@pytest.fixture
def seen():
    return Seen()


@pytest.fixture(autouse=True)
def signals_are_restored():
    assert signal.getsignal(signal.SIGUSR2) == signal.SIG_DFL
    yield
    assert signal.getsignal(signal.SIGUSR2) == signal.SIG_DFL
    assert not is_caught()


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


def test_descriptors_of_the_process_are_the_programs(seen):
    before = set(os.listdir("/dev/fd"))
    beside = OnDemand(seen, every_s=60.0, signum=signal.SIGUSR2)
    beside.start()
    assert set(os.listdir("/dev/fd")) == before
    # A pipe that Python writes numbers of signals to is left alone too.
    read, write = os.pipe()
    os.set_blocking(write, False)
    signal.set_wakeup_fd(write)
    try:
        send()
        assert seen.wait(1)
        assert signal.set_wakeup_fd(-1) == write
        os.set_blocking(read, False)
        with pytest.raises(BlockingIOError):
            os.read(read, 10)
    finally:
        beside.stop()
        os.close(read)
        os.close(write)
    assert seen.reasons == ["signal"]


def test_handler_of_the_program_wins(at_signal, seen):
    theirs = []
    signal.signal(signal.SIGUSR2, lambda *args: theirs.append(1))
    try:
        send()
        assert theirs == [1]
        at_signal.stop()
        assert is_caught()
        assert seen.reasons == []
    finally:
        signal.signal(signal.SIGUSR2, signal.SIG_DFL)


def test_signal_that_the_program_handles_is_not_taken(seen):
    theirs = []
    signal.signal(signal.SIGUSR2, lambda *args: theirs.append(1))
    try:
        beside = OnDemand(seen, every_s=None, signum=signal.SIGUSR2)
        beside.start()
        assert beside.signum is None
        send()
        beside.stop()
        assert (theirs, seen.reasons) == ([1], [])
    finally:
        signal.signal(signal.SIGUSR2, signal.SIG_DFL)


def test_one_of_two_has_the_signal(at_signal, seen):
    second = OnDemand(seen, every_s=0.01, signum=signal.SIGUSR2)
    second.start()
    assert (at_signal.signum, second.signum) == (signal.SIGUSR2, None)
    assert seen.wait(1)
    second.stop()
    count = len(seen.reasons)
    send()
    assert seen.wait(count + 1)


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
        os.kill(os.getpid(), signal.SIGUSR2)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGUSR2
    assert seen.reasons == []
    send()
    assert seen.wait(1)


def test_begun_and_ended_from_another_thread(seen):
    beside = OnDemand(seen, every_s=None, signum=signal.SIGUSR2)

    def begin_and_end():
        beside.start()
        send()
        assert seen.wait(1)
        beside.stop()

    with ThreadPoolExecutor(1) as pool:
        pool.submit(begin_and_end).result()
    assert seen.reasons == ["signal"]


def test_waiters_come_and_go(seen):
    for _ in range(40):
        beside = OnDemand(seen, every_s=60.0, signum=signal.SIGUSR2)
        beside.start()
        beside.stop()


def test_child_of_a_fork_has_a_waiter_of_its_own(at_signal, seen):
    child = os.fork()
    if child == 0:
        mine = Seen()
        beside = OnDemand(mine, every_s=None, signum=signal.SIGUSR2)
        beside.start()
        send()
        os._exit(0 if mine.wait(1) and not seen.reasons else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert seen.reasons == []
