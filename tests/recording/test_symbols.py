# SPDX-License-Identifier: Apache-2.0
"""light_symbols(): PyTorch's frames without torch._inductor, and nothing else changed."""

from __future__ import annotations

import subprocess
import sys
import threading
from types import ModuleType

import pytest

from neutracer.recording.recorder import light_symbols


@pytest.fixture
def fake(monkeypatch):
    """A torch that has a package which is imported when it is asked for."""
    torch, package = ModuleType("torch"), ModuleType("torch._inductor")
    package.codecache = "real"
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setitem(sys.modules, "torch._inductor", package)
    return torch


def test_package_looks_empty_and_is_gone(fake):
    with light_symbols():
        assert hasattr(fake, "_inductor")
        assert not hasattr(fake._inductor, "codecache")
    assert "_inductor" not in vars(fake)


def test_other_threads_meet_the_real_one(fake):
    seen = []
    with light_symbols():
        thread = threading.Thread(target=lambda: seen.append(fake._inductor.codecache))
        thread.start()
        thread.join()
    assert seen == ["real"]


def test_imported_package_is_used(fake):
    fake._inductor = sys.modules["torch._inductor"]
    with light_symbols():
        assert fake._inductor.codecache == "real"
    assert fake._inductor is sys.modules["torch._inductor"]


def test_import_meanwhile_is_kept(fake):
    with light_symbols():
        fake._inductor = sys.modules["torch._inductor"]
    assert fake._inductor.codecache == "real"


def test_nested_use_ends_with_the_outer(fake):
    with light_symbols():
        with light_symbols():
            pass
        assert not hasattr(fake._inductor, "codecache")
    assert "_inductor" not in vars(fake)


def test_two_threads_overlap(fake):
    inside, leave = threading.Event(), threading.Event()
    seen = []

    def other():
        with light_symbols():
            inside.set()
            leave.wait(60)
            seen.append(hasattr(fake._inductor, "codecache"))

    thread = threading.Thread(target=other)
    thread.start()
    assert inside.wait(60)
    with light_symbols():
        assert not hasattr(fake._inductor, "codecache")
    leave.set()
    thread.join()
    assert seen == [False]
    assert "_inductor" not in vars(fake)


def test_without_torch_nothing_happens(monkeypatch):
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    with light_symbols():
        pass
    assert "torch" not in sys.modules


def test_real_frames_import_nothing():
    pytest.importorskip("torch")
    script = """
import sys, torch
from neutracer.recording.recorder import light_symbols
from torch._C._profiler import gather_traceback, symbolize_tracebacks
def here():
    return gather_traceback(True, False, False)
with light_symbols():
    frames = symbolize_tracebacks([here()])[0]
assert [frame["name"] for frame in frames][0] == "here", frames
assert "torch._inductor" not in sys.modules
assert "_inductor" not in vars(torch)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
