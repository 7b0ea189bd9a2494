# SPDX-License-Identifier: Apache-2.0
"""The cycle watch with tensors on a device: bytes, places, and collecting under pressure."""

from __future__ import annotations

import gc
import importlib
import time
import warnings
from collections.abc import Iterator

import pytest

import neutracer
from neutracer import TensorCycleWarning

torch = pytest.importorskip("torch")
cases = pytest.importorskip("cycle_cases")

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.fixture(autouse=True)
def on_device(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(cases, "DEVICE", "cuda:0")
    torch.zeros(1, device="cuda")
    with cases.quiet_collector(), warnings.catch_warnings():
        warnings.simplefilter("ignore", TensorCycleWarning)
        yield
    gc.collect()


@pytest.fixture
def recording() -> Iterator[None]:
    torch.cuda.memory._record_memory_history(max_entries=10_000, stacks="python")
    yield
    torch.cuda.memory._record_memory_history(enabled=None)


@pytest.mark.parametrize("generation", [0, 2])
@pytest.mark.parametrize("case", cases.CASES, ids=lambda case: case.name)
def test_each_case_is_told_on_a_device(case: cases.Case, generation: int) -> None:
    with neutracer.warn_tensor_cycles() as watch:
        case.make()
        gc.collect(generation)
    (cycle,) = watch.cycles
    assert case.chain in cycle.chain
    assert cycle.device_bytes == {"cuda:0": case.bytes}
    assert {tensor.device for tensor in cycle.tensors} == {"cuda:0"}


@pytest.mark.parametrize("case", cases.CASES, ids=lambda case: case.name)
def test_garbage_bytes_are_what_a_collection_frees(case: cases.Case) -> None:
    for _ in range(3):
        case.make()
    waiting = neutracer.garbage_bytes()
    before = torch.cuda.memory_allocated()
    gc.collect()
    assert before - torch.cuda.memory_allocated() == waiting
    assert waiting == 3 * case.bytes
    assert neutracer.garbage_bytes() == 0


def test_facts_are_those_of_torch() -> None:
    held = torch.zeros(3, 5, dtype=torch.bfloat16, device="cuda")
    ring = [held]
    ring.append(ring)
    (cycle,) = [c for c in neutracer.find_tensor_cycles() if "list of 2" in c.chain]
    (facts,) = cycle.tensors
    assert (facts.shape, facts.dtype, facts.device) == ((3, 5), "bfloat16", "cuda:0")
    assert facts.data_ptr == held.untyped_storage().data_ptr()
    assert facts.storage_bytes == held.untyped_storage().nbytes()
    ring.clear()


def test_allocations_are_placed_while_history_is_on(recording: None) -> None:
    with neutracer.warn_tensor_cycles() as watch:
        cases.two_nodes()
        gc.collect()
    (tensor,) = watch.cycles[0].tensors
    assert tensor.frames[0].function == "tensor"
    assert tensor.frames[0].filename.endswith("cycle_cases.py")
    assert tensor.frames[1].function == "two_nodes"
    assert tensor.age_us is not None
    assert 0 < tensor.age_us < 60_000_000
    assert "allocated at tensor" in str(watch.cycles[0])


def test_living_tensors_are_placed_too(recording: None) -> None:
    ring = [cases.tensor()]
    ring.append(ring)
    (cycle,) = [c for c in neutracer.find_tensor_cycles() if "list of 2" in c.chain]
    assert cycle.tensors[0].frames[0].function == "tensor"
    ring.clear()


def test_places_are_unknown_without_history() -> None:
    with neutracer.warn_tensor_cycles() as watch:
        cases.two_nodes()
        gc.collect()
    assert watch.cycles[0].tensors[0].frames == ()


def test_nothing_is_switched_on_or_allocated() -> None:
    before = torch.cuda.memory_stats()
    with neutracer.warn_tensor_cycles():
        gc.collect()
        neutracer.find_tensor_cycles()
        neutracer.garbage_bytes()
    assert torch.cuda.memory_stats() == before
    assert not torch._C._cuda_isHistoryEnabled()


def test_pytorchs_detector_sees_no_more(recording: None) -> None:
    """What PyTorch's own walk over gc.garbage calls a CUDA tensor is among ours."""
    viz = importlib.import_module("torch.utils.viz._cycles")
    seen: list[int] = []

    def observe(garbage: list[object]) -> None:
        seen.extend(thing.data_ptr() for thing in garbage if viz.is_cuda_tensor(thing))

    remove = viz.observe_garbage(observe)
    try:
        cases.two_nodes()
        cases.bound_method_of_itself()
        ours = {
            t.data_ptr for c in neutracer.find_tensor_cycles(include_alive=False) for t in c.tensors
        }
        gc.collect()
        cases.tensor()
    finally:
        remove()
    assert seen
    assert set(seen) <= ours


def test_garbage_is_collected_under_real_pressure() -> None:
    total = torch.cuda.get_device_properties(0).total_memory
    told: list[neutracer.reports.PressureCollection] = []
    used = torch.cuda.memory_allocated() / total
    size = 1 << 30
    with neutracer.collect_on_pressure(
        used + 8 * size / total, interval=0.01, callback=told.append
    ) as handle:
        for _ in range(12):
            ring: list[object] = [torch.empty(size, dtype=torch.uint8, device="cuda")]
            ring.append(ring)
            del ring
        end = time.monotonic() + 10
        while not handle.collections and time.monotonic() < end:
            time.sleep(0.01)
    assert told
    assert told[0].freed_bytes == told[0].garbage_bytes == 12 * size
    torch.cuda.empty_cache()


def test_tensors_of_a_side_stream_are_seen() -> None:
    side = torch.cuda.Stream()

    def leak() -> None:
        with torch.cuda.stream(side):
            ring = cases.Link(held=cases.tensor())
        ring.again = ring

    with neutracer.warn_tensor_cycles() as watch:
        leak()
        gc.collect()
    assert watch.cycles[0].device_bytes == {"cuda:0": 4 * cases.SIZE}


def test_cpu_tensors_don_t_count_by_default() -> None:
    with neutracer.warn_tensor_cycles() as watch:
        ring = [torch.zeros(4)]
        ring.append(ring)
        del ring
        gc.collect()
    assert watch.cycles == ()
