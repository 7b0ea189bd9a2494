# SPDX-License-Identifier: Apache-2.0
"""collect_on_pressure with a device whose use the test decides."""

from __future__ import annotations

import gc
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from waiting import wait_for

import neutracer
from neutracer.heap import tensor_cycles as pressure
from neutracer.heap.cycles import prepare_heap
from neutracer.heap.tensor_cycles import PressureCollector, _Use

torch = pytest.importorskip("torch")
cases = pytest.importorskip("cycle_cases")


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with cases.quiet_collector(), warnings.catch_warnings():
        prepare_heap()
        yield


def collector(use: Callable[[], _Use], **options: Any) -> PressureCollector:
    words = {"fraction": 0.9, "min_garbage": 1, "max_garbage": None, "callback": None} | options
    made = PressureCollector(
        use,
        "cpu",
        words["fraction"],
        words["min_garbage"],
        words["max_garbage"],
        0.005,
        words["callback"],
    )
    made._thread.start()
    return made


def full() -> _Use:
    return _Use(95, 95, 100)


def idle() -> _Use:
    return _Use(10, 10, 100)


class Asked:
    """A device's use, and who asked for it: the thread that looks, or the main thread, which
    has walked the heap just before."""

    def __init__(self, use: Callable[[], _Use]) -> None:
        self.use = use
        self.looks = self.walks = 0

    def __call__(self) -> _Use:
        if threading.current_thread() is threading.main_thread():
            self.walks += 1
        else:
            self.looks += 1
        return self.use()


def test_garbage_is_collected_under_pressure() -> None:
    told: list[Any] = []
    cases.two_nodes()
    with collector(full, callback=told.append) as handle:
        assert wait_for(lambda: bool(told))
    (done,) = handle.collections
    assert done is told[0]
    assert done.garbage_bytes == 4 * cases.SIZE
    assert neutracer.garbage_bytes("cpu") == 0
    assert "collected at 95 % of the device" in str(done).replace("95.0", "95")


class Gated(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.out = torch.sigmoid(x)
        return ctx.out

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return grad * ctx.out * (1 - ctx.out)


def chain_of_cycles(depth: int) -> None:
    y = torch.randn(1024, requires_grad=True)
    for _ in range(depth):
        y = y * Gated.apply(y)


def test_a_chain_of_cycles_is_collected_to_its_end() -> None:
    chain_of_cycles(6)
    first = neutracer.garbage_bytes("cpu")
    told: list[Any] = []
    with collector(full, callback=told.append) as handle:
        assert wait_for(lambda: bool(told))
    assert told[0].garbage_bytes == first > 0
    assert len(handle.collections) == 1
    assert neutracer.garbage_bytes("cpu") == 0
    gc.collect()
    assert neutracer.garbage_bytes("cpu") == 0


def test_nothing_is_collected_without_pressure() -> None:
    cases.two_nodes()
    use = Asked(idle)
    with collector(use) as handle:
        assert wait_for(lambda: use.looks >= 10)
    assert handle.collections == ()
    assert use.walks == 0
    assert neutracer.garbage_bytes("cpu") == 4 * cases.SIZE


def test_little_garbage_is_left_alone() -> None:
    cases.two_nodes()
    use = Asked(full)
    with collector(use, min_garbage=1 << 30) as handle:
        assert wait_for(lambda: use.walks > 0 and use.looks >= 10)
    assert handle.collections == ()


def test_much_garbage_is_collected_without_pressure() -> None:
    cases.two_nodes()
    with collector(idle, max_garbage=4 * cases.SIZE) as handle:
        assert wait_for(lambda: bool(handle.collections))
    assert handle.collections[0].used_share == 0.1


def test_heap_is_not_walked_again_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    assert pressure._FIRST_WAIT_S >= 1
    # Longer than this test takes on any machine.
    monkeypatch.setattr(pressure, "_FIRST_WAIT_S", 1000.0)
    monkeypatch.setattr(pressure, "_LONGEST_WAIT_S", 1000.0)
    use = Asked(full)
    with collector(use) as handle:
        assert wait_for(lambda: use.walks > 0)
        cases.two_nodes()
        looks = use.looks
        assert wait_for(lambda: use.looks >= looks + 20)
        assert use.walks == 1
        assert handle.collections == ()


def test_removal_ends_the_thread() -> None:
    handle = collector(full)
    handle.remove()
    handle.remove()
    assert not handle._thread.is_alive()
    assert repr(handle) == "<PressureCollector: removed, 0 collections>"


@pytest.mark.parametrize("fraction", [0.0, -1.0, 1.5])
def test_wrong_fractions_are_refused(fraction: float) -> None:
    with pytest.raises(ValueError, match="fraction"):
        neutracer.collect_on_pressure(fraction)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a device here")
def test_missing_device_is_told() -> None:
    with pytest.raises(neutracer.UnavailableError, match="CUDA device"):
        neutracer.collect_on_pressure()


@pytest.mark.parametrize(
    "arguments",
    [{"interval": float("nan")}, {"max_garbage": -1}, {"min_garbage": -1}, {"interval": 0.0}],
)
def test_bounds_out_of_range_are_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"interval is|can't be negative"):
        neutracer.collect_on_pressure(**arguments)
