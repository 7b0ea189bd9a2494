# SPDX-License-Identifier: Apache-2.0
"""As much of torch and its CUDA allocator as recording and out-of-memory reports meet.

A ring of events with PyTorch's own rules, its switches, its observers, and an initialisation
that runs what was put off until then. Whatever a test must not provoke is not there.
"""

from __future__ import annotations

import copy
import mmap
import sys
import time
from collections import Counter
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

from small_snapshots import BASE, CALLER, FRAME, MIB, block, event, one_program, segment

from neutracer.monitor import phases

__all__ = ["FakeTorch", "install"]


def _size_words(nbytes: int) -> str:
    return f"{nbytes / MIB:.2f} MiB" if nbytes < 1024 * MIB else f"{nbytes / (1024 * MIB):.2f} GiB"


#: Bytes of the device that other processes and CUDA's context hold.
OTHER = 3 << 20


class FakeTorch:
    """The allocator behind the module that `install` puts into sys.modules."""

    def __init__(self, *, initialised: bool = True, total: int = 64 * MIB) -> None:
        self.initialising = False
        self.initialised = initialised
        self.total = total
        self.enabled = False
        self.calls: list[dict[str, Any]] = []
        self.max_entries = 0
        self.ring: list[dict[str, Any]] = []
        self.observers: list[Any] = []
        self.queued: list[Any] = []
        self.snapshots = 0
        #: By action, how many the allocator has done, recorded or not; and calls of empty_cache().
        self.done: Counter[str] = Counter()
        self.real_times = False
        self.held = [(BASE, 4 * MIB)]
        self.real: ModuleType | None = None
        #: Real memory, of which `tensor` makes real tensors, and how much of it is taken.
        self.memory = mmap.mmap(-1, 8 * MIB)
        self.made: list[int] = []
        self.peak = self.allocated()
        self.module = self._module()

    def _module(self) -> ModuleType:
        # A class that errors are made of, as PyTorch makes it: without an __init__.
        error = type("OutOfMemoryError", (RuntimeError,), {})

        def record(
            enabled: str | None = "all",
            context: str | None = "all",
            stacks: str = "all",
            max_entries: int = sys.maxsize,
            device: Any = None,
            clear_history: bool = False,
            compile_context: bool = False,
            global_record_annotations: bool = False,
            skip_actions: list[str] | None = None,
            record_pinned_host_memory: bool = False,
        ) -> None:
            begun = self.initialised or self.initialising
            assert begun, "switching the history on would initialise CUDA"
            given = {"context": context, "stacks": stacks, "skip_actions": skip_actions}
            given["pinned"] = record_pinned_host_memory
            self.calls.append({"enabled": enabled, "max_entries": max_entries, **given})
            self.enabled = enabled is not None
            self.max_entries = max_entries
            if not self.enabled:
                self.ring.clear()

        torch = ModuleType("torch")
        torch.__version__ = "2.11.0"
        torch.version = SimpleNamespace(cuda="13.0")
        torch.OutOfMemoryError = error
        torch.is_grad_enabled = lambda: True
        torch._C = SimpleNamespace(
            _cuda_memorySnapshot=lambda key: {**self.snapshot(), "device_traces": []},
            _cuda_isHistoryEnabled=lambda: self.enabled,
            _cuda_attach_out_of_memory_observer=self.attach,
            _cuda_memoryStats=lambda device: self.counts(),
            _cuda_emptyCache=self.empty_cache,
            _accelerator_emptyCache=self.empty_cache,
        )
        memory = SimpleNamespace(
            _snapshot=self.snapshot,
            _record_memory_history=record,
            get_allocator_backend=lambda: "native",
        )
        torch.cuda = SimpleNamespace(
            memory=memory,
            device_count=lambda: 1,
            OutOfMemoryError=error,
            is_initialized=lambda: self.initialised,
            memory_stats=lambda device=0: self.stats(),
            memory_stats_as_nested_dict=lambda device=0: self.nested_stats(),
            reset_peak_memory_stats=lambda device=0: setattr(self, "peak", self.allocated()),
            current_device=lambda: 0,
            empty_cache=lambda: torch._C._cuda_emptyCache(),
            get_device_properties=lambda device: SimpleNamespace(
                name="fake", total_memory=self.total
            ),
            get_per_process_memory_fraction=lambda device: 1.0,
            mem_get_info=lambda device: (self.total - self.allocated() - OTHER, self.total),
            _lazy_call=self.lazy_call,
        )
        return torch

    def attach(self, observer: Any) -> None:
        begun = self.initialised or self.initialising
        assert begun, "attached before CUDA is initialised, PyTorch does nothing"
        self.observers.append(observer)

    def init(self) -> None:
        """Initialise CUDA, as the first tensor on a device does."""
        self.initialising = True
        for action in self.queued:
            action()
        self.initialising = False
        self.initialised = True

    def lazy_call(self, action: Callable[[], object]) -> None:
        """Call it now, or while CUDA is initialised; PyTorch holds a lock then."""
        assert not self.initialising, "here PyTorch would wait for itself"
        if self.initialised:
            action()
        else:
            self.queued.append(action)

    def allocated(self) -> int:
        return sum(size for _, size in self.held)

    def stats(self) -> dict[str, int]:
        """PyTorch's counters; half of the device was reserved."""
        return {
            "allocated_bytes.all.current": self.allocated(),
            "allocated_bytes.all.peak": self.peak,
            "reserved_bytes.all.peak": self.total // 2,
            "allocation.all.allocated": self.done["alloc"],
            "allocation.all.freed": self.done["free_requested"],
        }

    def nested_stats(self) -> dict[str, Any]:
        """The same as dicts in dicts, and what is reserved."""
        nested: dict[str, Any] = {}
        reserved = {"reserved_bytes.all.current": self.total // 2}
        for key, value in {**self.stats(), **reserved}.items():
            metric, pool, kind = key.split(".")
            nested.setdefault(metric, {}).setdefault(pool, {})[kind] = value
        return nested

    def counts(self) -> dict[str, Any]:
        """What the allocator has served, as PyTorch's C++ gives it."""
        served = {"allocated": self.done["alloc"], "freed": self.done["free_requested"]}
        return {
            "allocation": {"all": served},
            "num_ooms": self.done["oom"],
            "num_alloc_retries": 0,
            "num_sync_all_streams": self.done["empty_cache"],
        }

    def empty_cache(self) -> None:
        self.done["empty_cache"] += 1

    def hold(self, nbytes: int, line: int = 7) -> None:
        """Allocate, in the line of model.py, and keep it."""
        address = BASE + self.allocated()
        self.held.append((address, nbytes))
        self.peak = max(self.peak, self.allocated())
        frames = [{**FRAME, "line": line}, CALLER]
        self.push(event("alloc", address, nbytes, 3000 + len(self.ring), frames=frames))

    def show_tensors_of(self, torch: ModuleType) -> None:
        """Let `tensor` make tensors of the real torch, and what walks the heap read them."""
        self.real = torch
        for name in ("Tensor", "enable_grad", "inference_mode", "zeros"):
            setattr(self.module, name, getattr(torch, name))
        self.module._C.TensorBase = torch._C.TensorBase

    def tensor(self, nbytes: int, line: int = 7) -> Any:
        """A real tensor on the device, allocated in the line of model.py; nothing frees it."""
        assert self.real is not None
        assert nbytes % 512 == 0
        at = sum(self.made)
        made = self.real.frombuffer(self.memory, dtype=self.real.float32, offset=at)
        base = made.data_ptr() - at
        if not self.made:
            self.push(event("segment_alloc", base, len(self.memory), 3000 + len(self.ring)))
        self.made.append(nbytes)
        frames = [{**FRAME, "line": line}, CALLER]
        self.push(event("alloc", base + at, nbytes, 3000 + len(self.ring), frames=frames))
        return made[: nbytes // 4]

    def _of_tensors(self) -> list[dict[str, Any]]:
        if self.real is None or not self.made:
            return []
        at = self.real.frombuffer(self.memory, dtype=self.real.float32).data_ptr()
        blocks = []
        for nbytes in self.made:
            blocks.append(block(at, nbytes, "active_allocated", nbytes))
            at += nbytes
        blocks.append(block(at, len(self.memory) - sum(self.made)))
        return [segment(blocks[0]["address"], blocks)]

    def drop(self) -> None:
        """Free what was allocated last."""
        address, nbytes = self.held.pop()
        for action in ("free_requested", "free_completed"):
            self.push(event(action, address, nbytes, 3000 + len(self.ring)))

    def push(self, entry: dict[str, Any]) -> None:
        """An event, into PyTorch's ring."""
        self.done[entry["action"]] += 1
        if self.real_times:
            entry["time_us"] = time.time_ns() // 1000
        if self.enabled:
            self.ring = [*self.ring, entry][-self.max_entries :]

    def allocate(self, count: int = 1) -> None:
        """Allocations of 1 MiB that are freed at once: three events each."""
        address = BASE + self.allocated()
        for _ in range(count):
            for action in ("alloc", "free_requested", "free_completed"):
                self.push(event(action, address, MIB, 1000 + len(self.ring)))

    def snapshot(self) -> dict[str, Any]:
        self.snapshots += 1
        blocks = [block(address, size, "active_allocated", size) for address, size in self.held]
        used = self.allocated()
        blocks.append(block(BASE + used, self.total // 2 - used))
        return {
            **one_program(),
            "segments": [segment(BASE, blocks), *self._of_tensors()],
            "device_traces": [copy.deepcopy(self.ring)],
        }

    def run_short(self, asked: int = 48 * MIB) -> None:
        """A request that fails below a library that catches the error: no exception is made."""
        free = self.total // 2
        self.push(event("oom", 0, asked, 2000, device_free=free))
        for observer in self.observers:
            observer(0, asked, self.total, free)

    def run_out(self, asked: int = 48 * MIB) -> None:
        """What PyTorch does when a request fails: the event, the observers, the error."""
        self.run_short(asked)
        free = self.total // 2
        raise self.module.OutOfMemoryError(
            f"CUDA out of memory. Tried to allocate {_size_words(asked)}. GPU 0 has a total "
            f"capacity of {_size_words(self.total)} of which {_size_words(free)} is free."
        )


def install(monkeypatch: Any, **options: Any) -> FakeTorch:
    """A new fake in the place of torch, until the test ends."""
    fake = FakeTorch(**options)
    monkeypatch.setitem(sys.modules, "torch", fake.module)
    monkeypatch.setattr(phases, "_seen", {})
    return fake
