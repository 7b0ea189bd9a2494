# SPDX-License-Identifier: Apache-2.0
"""A program's long history: by the hooks where they can be had, else by PyTorch's recorder."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
from fake_cuda import install

import neutracer
from neutracer.errors import UnavailableError
from neutracer.recording import long_history
from neutracer.recording.long_history import ProgramRecording


@pytest.fixture
def fake(monkeypatch):
    return install(monkeypatch)


@pytest.fixture
def real_nn():
    """PyTorch's own modules, which the fake has none of: to be asked for before that."""
    return pytest.importorskip("torch.nn")


@pytest.fixture
def hooked(fake, monkeypatch):
    """The fake torch with hooks for it; who follows, by events."""
    following = []

    def follow(events, frames):
        following.append(events)
        return lambda: following.remove(events)

    goal = SimpleNamespace(torch=SimpleNamespace(backend="cuda"))
    monkeypatch.setattr(long_history, "target", lambda: goal)
    monkeypatch.setattr(long_history.hooks, "follow", follow)
    monkeypatch.setattr(long_history.hooks, "load", lambda: goal.torch)
    monkeypatch.setattr(long_history, "take", lambda *told, **how: neutracer.snapshot())
    return following


def test_hooks_record_where_they_can(fake, hooked, tmp_path):
    recording = ProgramRecording(None).start()
    assert hooked == [long_history.HOOK_ENTRIES]
    assert long_history.hook_events() == long_history.HOOK_ENTRIES
    assert not fake.enabled
    recording.save(tmp_path / "x.pickle")
    told = json.loads((tmp_path / "x.pickle.json").read_text())["recording"]
    assert (told["recorder"], told["wrapped"]) == ("hooks", False)
    recording.stop()
    assert hooked == []
    assert long_history.hook_events() == 0
    assert recording.snapshot().segments


def test_recorder_takes_their_place(fake, monkeypatch, capsys):
    def fail(events, frames):
        raise UnavailableError("a build of the hooks", "g++ failed:\nno g++")

    goal = SimpleNamespace(torch=SimpleNamespace(backend="cuda"))
    monkeypatch.setattr(long_history, "target", lambda: goal)
    monkeypatch.setattr(long_history.hooks, "follow", fail)
    recording = ProgramRecording(None).start()
    assert fake.calls[-1]["context"] == "alloc"
    assert fake.calls[-1]["max_entries"] == long_history.RECORDER_ENTRIES
    assert "no g++" in recording.because
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert "using PyTorch's own recorder" in told
    recording.discard()
    assert not fake.enabled


@pytest.mark.parametrize("stacks", ["python", "all"])
def test_frames_of_c_are_the_recorders(fake, hooked, stacks):
    recording = ProgramRecording(7, stacks, "all").start()
    assert hooked == ([7] if stacks == "python" else [])
    assert fake.enabled == (stacks == "all")
    recording.discard()


def test_it_waits_for_cuda(monkeypatch, hooked, fake):
    fake.initialised = False
    recording = ProgramRecording(9).start()
    assert recording.waiting
    assert hooked == []
    with pytest.raises(UnavailableError):
        recording.snapshot()
    fake.init()
    assert not recording.waiting
    assert hooked == [9]
    recording.discard()


def test_recorder_begins_while_cuda_is_initialised(fake):
    fake.initialised = False
    recording = ProgramRecording(7, recorder="pytorch").start()
    fake.init()
    assert (recording.why, fake.enabled) == ("", True)
    recording.discard()
    assert not fake.enabled


def test_pinned_memory_takes_pytorchs_recorder(fake):
    recording = ProgramRecording(7, pinned=True).start()
    assert (recording.why, fake.calls[-1]["pinned"]) == ("", True)
    recording.discard()
    assert not fake.enabled


@pytest.mark.parametrize("how", ["malloc", "uncached"])
def test_other_allocators_are_said(fake, monkeypatch, how):
    if how == "malloc":
        fake.module.cuda.memory.get_allocator_backend = lambda: "cudaMallocAsync"
    else:
        monkeypatch.setenv("PYTORCH_NO_CUDA_MEMORY_CACHING", "1")
    recording = ProgramRecording(None).start()
    assert "PyTorch" in recording.why
    assert not fake.enabled
    assert not recording.waiting
    recording.stop()


def test_modules_are_marked_while_it_is_on(real_nn, fake, hooked):
    said = []
    fake.module._C._cuda_setMemoryMetadata = said.append
    fake.module._C._cuda_getMemoryMetadata = str
    # One that computes nothing: PyTorch's own code would ask the fake for its types.
    model = real_nn.Identity()
    recording = ProgramRecording(None, modules=True).start()
    model(None)
    recording.discard()
    model(None)
    assert said == ["nn.Module: Identity", ""]
    assert recording.unmarked == ""


def test_a_torch_that_keeps_no_texts_is_recorded_without(fake, hooked):
    recording = ProgramRecording(None, modules=True).start()
    assert hooked
    assert "torch 2.10" in recording.unmarked
    recording.discard()
