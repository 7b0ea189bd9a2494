# SPDX-License-Identifier: Apache-2.0
"""Errands of the main thread: done between two steps, or not at all."""

from __future__ import annotations

import operator
import os
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from waiting import PATIENCE, wait_for

from neutracer.errors import NeutracerError
from neutracer.run.attached import in_main_thread, run_call


@pytest.fixture
def other():
    """Runs what is submitted to it on a thread that is not the main one."""
    with ThreadPoolExecutor(1) as pool:
        yield pool


@pytest.fixture(autouse=True)
def nothing_is_left(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    yield
    assert list(tmp_path.iterdir()) == []


needs_remote_exec = pytest.mark.skipif(
    not hasattr(sys, "remote_exec"), reason="needs sys.remote_exec (Python 3.14)"
)


def test_main_thread_makes_its_own_calls_at_once():
    done = []
    in_main_thread(lambda: done.append(threading.current_thread()), 0)
    assert done == [threading.main_thread()]


def test_unknown_call_is_ignored():
    run_call(-1)


@needs_remote_exec
def test_main_thread_does_what_another_asks_for(other):
    done = []
    asked = other.submit(in_main_thread, lambda: done.append(threading.current_thread()), PATIENCE)
    assert wait_for(asked.done)
    assert asked.result() is None
    assert done == [threading.main_thread()]


@needs_remote_exec
def test_error_of_a_call_reaches_the_caller(other):
    asked = other.submit(in_main_thread, lambda: 1 / 0, PATIENCE)
    assert wait_for(asked.done)
    assert isinstance(asked.exception(), ZeroDivisionError)


@needs_remote_exec
def test_main_thread_in_c_code_is_not_waited_for_longer(other, capfd):
    done = []
    begin, end = threading.Lock(), threading.Lock()
    begin.acquire()
    end.acquire()

    def ask():
        begin.acquire()
        try:
            in_main_thread(lambda: done.append(1), 0.2)
        finally:
            end.release()

    asked = other.submit(ask)
    # In C, without a turn of the interpreter in between, until the other one has given up.
    list(map(operator.call, (begin.release, end.acquire)))
    with pytest.raises(NeutracerError, match=r"has not returned to Python in 0\.2 s"):
        asked.result()
    for _ in range(1000):
        time.sleep(0)
    assert done == []
    assert capfd.readouterr() == ("", "")


@needs_remote_exec
def test_interruption_during_a_call_is_the_programs():
    program = (
        "import signal, threading, time\n"
        # A shell has what it starts in the background ignore that signal.
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from neutracer.run.attached import in_main_thread\n"
        "def interrupted(): raise KeyboardInterrupt\n"
        "def ask():\n"
        "    try:\n"
        "        in_main_thread(interrupted, 1000)\n"
        "    except KeyboardInterrupt:\n"
        "        print('asked', flush=True)\n"
        "threading.Thread(target=ask).start()\n"
        "try:\n"
        "    while True: time.sleep(0.001)\n"
        "except KeyboardInterrupt:\n"
        "    print('interrupted')\n"
    )
    where = os.pathsep.join(sys.path)
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": where},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert (sorted(done.stdout.split()), done.stderr) == (["asked", "interrupted"], "")
