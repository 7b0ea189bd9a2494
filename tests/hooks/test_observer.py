# SPDX-License-Identifier: Apache-2.0
"""The out-of-memory observer: attached once, silent when unasked, never in the error's place."""

from __future__ import annotations

import os
import sys
import threading

import pytest
from fake_cuda import install

from neutracer import UnavailableError
from neutracer.recording import long_history as oom_hook

needs_notes = pytest.mark.skipif(sys.version_info < (3, 11), reason="needs notes of exceptions")


@pytest.fixture
def fake(monkeypatch):
    return install(monkeypatch)


def fails(fake):
    with pytest.raises(fake.module.OutOfMemoryError) as caught:
        fake.run_out()
    return caught.value


def test_listeners_hear_before_the_error(fake):
    seen = []
    remove = oom_hook.listen(seen.append)
    fails(fake)
    remove()
    fails(fake)
    assert len(seen) == 1
    assert (seen[0].device, seen[0].asked_bytes, seen[0].limit_bytes) == (0, 48 << 20, 64 << 20)
    assert seen[0].time_us > 1_600_000_000_000_000


def test_observer_is_attached_only_once(fake):
    for _ in range(3):
        oom_hook.listen(lambda told: None)()
    assert len(fake.observers) == 1


def test_attaching_waits_for_cuda(monkeypatch):
    fake = install(monkeypatch, initialised=False)
    seen = []
    remove = oom_hook.listen(seen.append)
    assert fake.observers == []
    fake.init()
    fails(fake)
    remove()
    assert len(seen) == 1


def test_nobody_left_means_not_attached(monkeypatch):
    fake = install(monkeypatch, initialised=False)
    oom_hook.listen(print)()
    fake.init()
    assert fake.observers == []


def test_failing_attachment_does_not_end_initialisation(monkeypatch, caplog):
    fake = install(monkeypatch, initialised=False)
    del fake.module._C._cuda_attach_out_of_memory_observer
    remove = oom_hook.listen(print)
    fake.init()
    remove()
    assert "cannot watch for out-of-memory errors" in caplog.text


@pytest.mark.parametrize("error", [ValueError, SystemExit, RecursionError, MemoryError])
def test_what_a_listener_raises_is_swallowed(fake, caplog, error):
    def listener(told):
        raise error("no")

    seen = []
    ends = [oom_hook.listen(listener), oom_hook.listen(seen.append)]
    assert "Tried to allocate" in str(fails(fake))
    for end in ends:
        end()
    assert len(seen) == 1
    assert "failed" in caplog.text


def test_interrupt_comes_after_the_error(fake, monkeypatch):
    interrupted = threading.Event()
    monkeypatch.setattr(oom_hook._thread, "interrupt_main", interrupted.set)

    def listener(told):
        raise KeyboardInterrupt

    remove = oom_hook.listen(listener)
    fails(fake)
    remove()
    assert interrupted.wait(60)


def test_listener_that_runs_out_is_not_told(fake):
    seen = []

    def listener(told):
        seen.append(told)
        fails(fake)

    remove = oom_hook.listen(listener)
    fails(fake)
    fails(fake)
    remove()
    assert len(seen) == 2


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_child_of_a_fork_hears_nothing(fake):
    seen = []
    remove = oom_hook.listen(seen.append)
    child = os.fork()
    if child == 0:
        try:
            fake.run_out()
        except RuntimeError:
            os._exit(len(seen))
        os._exit(9)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    remove()


@needs_notes
def test_note_is_there_whoever_catches(fake):
    end = oom_hook.add_notes(lambda message: f"about: {message[:18]}")
    error = fails(fake)
    end()
    assert error.__notes__ == ["about: CUDA out of memory"]
    assert not hasattr(fails(fake), "__notes__")
    assert "__init__" not in vars(fake.module.OutOfMemoryError)


@needs_notes
def test_notes_of_several_add_up(fake):
    first = oom_hook.add_notes(lambda message: "first")
    second = oom_hook.add_notes(lambda message: None)
    third = oom_hook.add_notes(lambda message: "third")
    first()
    assert fails(fake).__notes__ == ["third"]
    third()
    second()
    second()
    assert "__init__" not in vars(fake.module.OutOfMemoryError)


@needs_notes
def test_failing_note_leaves_the_error(fake, caplog):
    end = oom_hook.add_notes(lambda message: 1 / 0)
    assert "Tried to allocate" in str(fails(fake))
    end()
    assert "no note" in caplog.text


@needs_notes
def test_real_exception_takes_notes():
    torch = pytest.importorskip("torch")
    if torch.version.cuda is None:
        with pytest.raises(UnavailableError):
            oom_hook.add_notes(str)
    made = torch.OutOfMemoryError
    end = oom_hook._notes.begin(made, lambda message: f"note on {message}")
    with pytest.raises(torch.cuda.OutOfMemoryError) as caught:
        raise made("it")
    end()
    assert caught.value.__notes__ == ["note on it"]
    assert caught.value.args == ("it",)
    assert "__init__" not in vars(made)
    assert not hasattr(made("it"), "__notes__")
