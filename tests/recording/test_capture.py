# SPDX-License-Identifier: Apache-2.0
"""snapshot(): of this process where there is one to take, and otherwise what is missing."""

from __future__ import annotations

import importlib.util
import sys
from types import SimpleNamespace

import pytest
from small_snapshots import MIB, one_program

import neutracer
from neutracer import UnavailableError


def fake_torch(*, cuda="13.0", initialised=True, backend="native", built=True, devices=1):
    """As much of torch as is looked at; what would initialise CUDA is not there."""
    memory = SimpleNamespace(_snapshot=one_program, get_allocator_backend=lambda: backend)
    return SimpleNamespace(
        version=SimpleNamespace(cuda=cuda),
        _C=SimpleNamespace(**({"_cuda_memorySnapshot": None} if built else {})),
        cuda=SimpleNamespace(
            is_initialized=lambda: initialised, device_count=lambda: devices, memory=memory
        ),
    )


def missing(monkeypatch, torch) -> UnavailableError:
    monkeypatch.setitem(sys.modules, "torch", torch)
    with pytest.raises(UnavailableError) as caught:
        neutracer.snapshot()
    assert caught.value.install
    return caught.value


def test_live_snapshot_is_read_as_a_file_is(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", fake_torch())
    snap = neutracer.snapshot()
    assert snap.to_dict() == one_program()
    assert snap.memory_stats()["allocated_bytes.all.current"] == 4 * MIB


def test_uninstalled_torch_is_told(monkeypatch):
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UnavailableError) as caught:
        neutracer.snapshot()
    assert caught.value.what == "torch"
    assert "pip install torch" in caught.value.install


def test_torch_not_imported_is_told(monkeypatch):
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    with pytest.raises(UnavailableError, match="torch in this process"):
        neutracer.snapshot()
    assert "torch" not in sys.modules


@pytest.mark.parametrize("torch", [fake_torch(cuda=None), fake_torch(built=False)])
def test_torch_without_cuda_is_told(monkeypatch, torch):
    assert "CUDA in this build" in missing(monkeypatch, torch).what


def test_idle_cuda_is_left_alone(monkeypatch):
    assert "initialised CUDA device" in missing(monkeypatch, fake_torch(initialised=False)).what


def test_cuda_without_a_device_is_told(monkeypatch):
    error = missing(monkeypatch, fake_torch(initialised=False, devices=0))
    assert str(error) == (
        "a CUDA device in this process is not available: torch finds none: it needs a GPU and "
        "its driver"
    )


def test_other_allocators_are_told(monkeypatch):
    error = missing(monkeypatch, fake_torch(backend="cudaMallocAsync"))
    assert "cudaMallocAsync" in error.install


@pytest.mark.gpu
def test_live_figures_equal_those_of_torch(torch):
    kept = torch.empty(3 << 20, device="cuda")
    stats = torch.cuda.memory_stats()
    snap = neutracer.snapshot()
    ours = snap.memory_stats(torch.cuda.current_device())
    assert {key: stats[key] for key in ours} == ours
    del kept
