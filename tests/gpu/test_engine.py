# SPDX-License-Identifier: Apache-2.0
"""An engine with paged KV cache, captured graphs and sleep, in a loop with training: its phases
and budget, and faults planted one at a time.

Asleep, its pools keep their addresses and no pages, as those of vLLM's sleep mode do.
"""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import neutracer

torch = pytest.importorskip("torch", reason="needs torch, which is not installed here")

pytestmark = pytest.mark.gpu

MIB = 1 << 20
TURNS = 4
ROWS, WIDTH, LAYERS, WORDS = 64, 2048, 8, 16384
PAGE = 16 * WIDTH * 2


def line_of(mark: str) -> int:
    """The number of this file's line that ends with a mark."""
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    (found,) = [at for at, line in enumerate(lines, 1) if line.endswith(f"# {mark}")]
    return found


# ---- Pages that can be taken away --------------------------------------------------------


class Pages:
    """The allocator of a MemPool whose pages can be unmapped and mapped again."""

    def __init__(self) -> None:
        self._driver = ctypes.CDLL("libcuda.so.1")
        #: By address: its bytes, and the handle of its pages, or None while they are away.
        self._mapped: dict[int, tuple[int, int | None]] = {}
        sizes = (ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p)
        self._callbacks = (
            ctypes.CFUNCTYPE(ctypes.c_void_p, *sizes)(self._allocate),
            ctypes.CFUNCTYPE(None, ctypes.c_void_p, *sizes)(self._release),
        )
        addresses = [ctypes.cast(one, ctypes.c_void_p).value for one in self._callbacks]
        self.allocator = torch._C._cuda_customAllocator(*addresses)

    def _call(self, name: str, *arguments: Any) -> None:
        # All numbers of these calls have 64 bits.
        wide = [ctypes.c_uint64(one) if isinstance(one, int) else one for one in arguments]
        status = getattr(self._driver, name)(*wide)
        assert status == 0, f"{name}: {status}"

    def _allocate(self, size: int, device: int, stream: int | None) -> int:
        address = ctypes.c_uint64()
        self._call("cuMemAddressReserve", ctypes.byref(address), size, 0, 0, 0)
        self._map(address.value, size)
        return address.value

    def _release(self, address: int, size: int, device: int, stream: int | None) -> None:
        if self._mapped[address][1] is not None:
            self._unmap(address)
        del self._mapped[address]
        self._call("cuMemAddressFree", address, size)

    def _map(self, address: int, size: int) -> None:
        device = torch.cuda.current_device()
        handle = ctypes.c_uint64()
        # CUmemAllocationProp: pinned, without handles to share, on this device.
        properties = (ctypes.c_int * 8)(1, 0, 1, device)
        self._call("cuMemCreate", ctypes.byref(handle), size, properties, 0)
        self._call("cuMemMap", address, size, 0, handle.value, 0)
        # CUmemAccessDesc: this device may read and write.
        self._call("cuMemSetAccess", address, size, (ctypes.c_int * 3)(1, device, 3), 1)
        self._mapped[address] = (size, handle.value)

    def _unmap(self, address: int) -> None:
        size, handle = self._mapped[address]
        self._call("cuMemUnmap", address, size)
        self._call("cuMemRelease", handle)
        self._mapped[address] = (size, None)

    def take_away(self) -> None:
        torch.cuda.synchronize()
        for address in list(self._mapped):
            self._unmap(address)

    def bring_back(self) -> None:
        for address, (size, _) in list(self._mapped.items()):
            self._map(address, size)


# PyTorch may call them until the process ends.
PAGES: list[Pages] = []


# ---- Engine and trainer ------------------------------------------------------------------


class Engine:
    """Weights, a paged KV cache and a captured graph, after turns of a loop with training.

    It is recorded. A planted fault acts after the phase of its name, in one of its own.
    """

    def __init__(self, plants: dict[str, Plant], cache_bytes: int) -> None:
        #: What the planted faults keep.
        self.spare: list[Any] = []
        self.history: list[Any] = []
        self.outputs: list[Any] = []
        with neutracer.record(max_entries=200_000):
            self.start(cache_bytes)
            self.policy = [torch.nn.Parameter(one.detach().clone()) for one in self.weights]
            self.optimizer = torch.optim.AdamW(self.policy, lr=1e-6)
            for _ in range(TURNS):
                self.turn(plants)
            self.found = neutracer.phases()
        # pytest shows it with a failure.
        print(self.found)
        assert self.found.budget is not None
        self.terms = {one.term: one.bytes for one in self.found.budget.terms}

    def start(self, cache_bytes: int) -> None:
        self.pages = Pages()
        PAGES.append(self.pages)
        self.pool = torch.cuda.MemPool(self.pages.allocator)
        self.tokens = torch.ones(ROWS, WIDTH, device="cuda")
        self.table = torch.arange(ROWS, device="cuda")
        with neutracer.phase("load"), torch.cuda.use_mem_pool(self.pool):
            shapes = [(WIDTH, WIDTH)] * LAYERS + [(WIDTH, WORDS)]
            made = [torch.full(shape, 1e-4, device="cuda") for shape in shapes]
            self.weights = [torch.nn.Parameter(one, requires_grad=False) for one in made]
        with neutracer.phase("profile"):
            self.profile()
        with neutracer.phase("KV"), torch.cuda.use_mem_pool(self.pool):
            self.kv_cache = self.allocate_kv_cache(cache_bytes)
        with neutracer.phase("capture"):
            self.capture()

    def allocate_kv_cache(self, nbytes: int) -> Any:
        shape = (nbytes // PAGE, PAGE // 2)
        return torch.empty(shape, dtype=torch.float16, device="cuda")

    def turn(self, plants: dict[str, Plant]) -> None:
        for step in (self.rollout, self.sleep, self.train, self.wake, self.sync):
            name = step.__name__
            with neutracer.phase(name):
                step()
            if name in plants:
                with neutracer.phase(f"{name}, after"):
                    plants[name](self)

    @torch.no_grad()
    def forward(self, hidden: Any) -> Any:
        for weight in self.weights[:-1]:
            hidden = torch.relu(hidden @ weight)
        return hidden @ self.weights[-1]  # place: output

    def profile(self, mark: Callable[[], object] = lambda: None) -> int:
        """What a pass needs at its peak, by PyTorch's own counter, as vLLM measures it."""
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        mark()
        self.forward(self.tokens)
        mark()
        return int(torch.cuda.max_memory_allocated()) - before

    @torch.no_grad()
    def capture(self) -> None:
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            pages = self.tokens.half().repeat(1, PAGE // 2 // WIDTH)
            self.kv_cache.index_copy_(0, self.table, pages)
            hidden = self.kv_cache[self.table][:, :WIDTH].float()
            self.output = self.forward(hidden)

    def rollout(self) -> Any:
        for _ in range(3):
            self.graph.replay()
        return self.output.sum().item()

    def sleep(self) -> None:
        self.saved = [one.cpu() for one in self.weights]
        self.pages.take_away()
        torch.cuda.empty_cache()

    def train(self) -> None:
        hidden = torch.ones(ROWS, WIDTH, device="cuda")
        for weight in self.policy[:-1]:
            hidden = torch.relu(hidden @ weight)
        (hidden @ self.policy[-1]).mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def wake(self) -> None:
        self.pages.bring_back()
        self._fill(self.saved)

    def sync(self) -> None:
        self._fill(self.policy)

    @torch.no_grad()
    def _fill(self, theirs: list[Any]) -> None:
        for mine, other in zip(self.weights, theirs, strict=True):
            mine.copy_(other)

    def close(self) -> None:
        """Give all memory back; the pool goes after what lies in it."""
        pool = self.pool
        vars(self).clear()
        gc.collect()
        torch.cuda.synchronize()
        del pool
        torch.cuda.empty_cache()


Plant = Callable[[Engine], object]


@pytest.fixture
def run() -> Iterator[Callable[..., Engine]]:
    made: list[Engine] = []

    def begin(cache_bytes: int = 2048 * MIB, **plants: Plant) -> Engine:
        made.append(Engine(plants, cache_bytes))
        return made[-1]

    yield begin
    for one in made:
        one.close()


# ---- Without a fault ---------------------------------------------------------------------


def test_a_sound_loop_is_called_sound_and_its_budget_adds_up(run: Callable[..., Engine]) -> None:
    torch.ones(1, device="cuda")
    free, total = torch.cuda.mem_get_info()
    one = run(cache_bytes=int(free * 0.85) - 4096 * MIB)
    used = total - torch.cuda.mem_get_info()[0]
    assert {row.phase: row.growth for row in one.found.phases if row.growth} == {}
    assert [turn.phase for turn in one.found.turns[:4]] == ["load", "profile", "KV", "capture"]
    # Asleep are the cache and the weights.
    kept = one.kv_cache.nbytes
    sleeps = [turn for turn in one.found.turns if turn.phase == "sleep"]
    assert len(sleeps) == TURNS
    for turn in sleeps:
        assert turn.asleep_bytes is not None
        assert 0.98 * kept < turn.asleep_bytes < 1.02 * kept + 512 * MIB
    # The device's own figure, to 1 MiB, and no hundredth of the device unexplained.
    assert sum(one.terms.values()) == one.found.budget.device_bytes
    assert abs(one.found.budget.device_bytes - used) <= MIB
    assert 0 <= one.terms.get("unknown", 0) < total / 100
    weights = sum(each.nbytes for each in one.weights)
    assert one.terms["KV cache"] >= kept
    assert 2 * weights <= one.terms["weights"] <= 2 * weights + 64 * MIB
    assert one.terms["optimizer states"] >= 2 * weights
    assert one.terms["graphs' pools"] > 0
    # What was asleep is as it was.
    assert one.rollout() == pytest.approx(one.forward(one.tokens).sum().item(), rel=1e-3)


def test_a_phase_inside_of_the_engines_measurement_changes_nothing(
    run: Callable[..., Engine],
) -> None:
    engine = run()

    def mark() -> None:
        with neutracer.phase("measured"):
            pass

    plain = [engine.profile() for _ in range(3)]
    assert [engine.profile(mark) for _ in range(3)] == plain
    with neutracer.phase("around"):
        assert engine.profile(mark) == plain[0]


# ---- Faults ------------------------------------------------------------------------------


def keep_weights_twice(engine: Engine) -> None:
    engine.spare = [one.detach().clone() for one in engine.weights]  # plant: weights


def capture_again(engine: Engine) -> None:
    engine.outputs.append((engine.graph, engine.output))
    engine.capture()


def keep_a_list(engine: Engine) -> None:
    engine.history.append(engine.output.clone())  # plant: history


def pin_a_segment(engine: Engine) -> None:
    torch.cuda.empty_cache()
    staging = torch.empty(256 * MIB, dtype=torch.uint8, device="cuda")
    del staging
    engine.spare = [torch.empty(24 * MIB, dtype=torch.uint8, device="cuda")]  # plant: segment


def test_weights_kept_twice_have_line_and_owner(run: Callable[..., Engine]) -> None:
    one = run(sync=keep_weights_twice)
    first = one.found["sync, after"].survivors[0]
    nbytes = sum(each.nbytes for each in one.weights)
    assert (first.line, first.bytes) == (line_of("plant: weights"), nbytes)
    assert "spare" in first.owner


def test_a_graph_pool_that_grows_has_its_line(run: Callable[..., Engine]) -> None:
    one = run(wake=capture_again)
    row = one.found["wake, after"]
    growth = {each.line: each for each in row.growth}[line_of("place: output")]
    assert growth.least_bytes == growth.most_bytes == one.output.nbytes
    survivor = next(each for each in row.survivors if each.line == growth.line)
    assert survivor.pool != (0, 0)
    assert "output" in survivor.owner
    # Each capture has a pool of its own.
    assert one.terms["graphs' pools"] > (TURNS + 1) * one.output.nbytes


def test_a_list_that_survives_sleep_has_line_and_owner(run: Callable[..., Engine]) -> None:
    one = run(rollout=keep_a_list)
    row = one.found["rollout, after"]
    (growth,) = row.growth
    assert growth.line == line_of("plant: history")
    assert growth.least_bytes == growth.most_bytes == one.output.nbytes
    assert "history" in row.survivors[0].owner
    # No other phase of the loop is blamed.
    assert [each.phase for each in one.found.phases if each.growth] == ["rollout, after"]


def test_segments_pinned_over_wake_have_the_line(run: Callable[..., Engine]) -> None:
    one = run(wake=pin_a_segment)
    (pin, *_) = one.found["wake, after"].pins
    assert pin.line == line_of("plant: segment")
    assert (pin.free_bytes, pin.held_bytes) == ((256 - 24) * MIB, 24 * MIB)


def test_another_librarys_memory_is_named(run: Callable[..., Engine]) -> None:
    maps = Path("/proc/self/maps").read_text(encoding="utf-8")
    runtime = ctypes.CDLL(
        next(row.split()[-1] for row in maps.split("\n") if "libcudart.so" in row)
    )
    runtime.cudaMalloc.argtypes = [ctypes.POINTER(ctypes.c_void_p), ctypes.c_size_t]
    taken: list[ctypes.c_void_p] = []

    def take(engine: Engine) -> None:
        taken.append(ctypes.c_void_p())
        assert runtime.cudaMalloc(ctypes.byref(taken[-1]), 300 * MIB) == 0

    torch.ones(1, device="cuda")
    try:
        with neutracer.attribute_device_memory():
            one = run(train=take)
    finally:
        for each in taken:
            runtime.cudaFree(each)
    others = {name: nbytes for name, nbytes in one.terms.items() if nbytes == TURNS * 300 * MIB}
    assert len(others) == 1
    assert not set(others) & {"unknown", "other processes"}
