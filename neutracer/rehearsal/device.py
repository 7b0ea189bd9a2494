# SPDX-License-Identifier: Apache-2.0
"""PyTorch's Python face of CUDA, answered for a card that is not there."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import torch

from neutracer.rehearsal.cards import Card
from neutracer.rehearsal.tracing import Tracing

__all__ = ["Stream", "patches"]


class Stream:
    """A stream of the made-up card: what is done in it is done at once."""

    _made = 0

    def __init__(self, device: Any = None, priority: int = 0, **kwargs: Any) -> None:
        Stream._made += 1
        self._set(Stream._made)

    def _set(self, number: int) -> None:
        self.stream_id = self.cuda_stream = number
        self.device, self.device_index = torch.device("cuda", 0), 0
        self.device_type = 1

    @classmethod
    def numbered(cls, number: int) -> Stream:
        """The stream of a number; 0 is the default one."""
        stream = cls.__new__(cls)
        stream._set(number)
        return stream

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and other.stream_id == self.stream_id

    def __hash__(self) -> int:
        return hash(self.stream_id)

    def query(self) -> bool:
        """All is done."""
        return True

    def synchronize(self) -> None:
        """There is nothing to wait for."""

    def wait_stream(self, stream: Any) -> None:
        """There is nothing to wait for."""

    def wait_event(self, event: Any) -> None:
        """There is nothing to wait for."""

    def record_event(self, event: Any = None) -> Any:
        """An event that has happened."""
        return event or Event()


class Event:
    """An event that has happened."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.device = torch.device("cuda", 0)

    def record(self, stream: Any = None) -> None:
        """It has happened."""

    def wait(self, stream: Any = None) -> None:
        """It has happened."""

    def query(self) -> bool:
        """It has happened."""
        return True

    def synchronize(self) -> None:
        """It has happened."""

    def elapsed_time(self, other: Any) -> float:
        """A millisecond, so that nobody divides by zero."""
        return 1.0


class _Face:
    """The functions of `torch.cuda`."""

    def __init__(self, card: Card, tracing: Tracing, devices: int, capacity: int) -> None:
        self.card, self.tracing = card, tracing
        self.devices, self.capacity = devices, capacity
        self.index = 0

    def properties(self, device: Any = None) -> Any:
        major, minor = self.card.capability
        return SimpleNamespace(
            name=self.card.name,
            major=major,
            minor=minor,
            total_memory=self.card.total_bytes,
            multi_processor_count=self.card.processors,
            max_threads_per_multi_processor=self.card.processor_threads,
            regs_per_multiprocessor=65536,
            shared_memory_per_block=49152,
            shared_memory_per_block_optin=101376 if (major, minor) != (9, 0) else 232448,
            shared_memory_per_multiprocessor=102400,
            warp_size=32,
            L2_cache_size=50 << 20,
            is_integrated=0,
            is_multi_gpu_board=0,
            gcnArchName="",
            uuid="",
        )

    def set_device(self, device: Any) -> None:
        found = torch.device(device) if isinstance(device, str) else device
        self.index = getattr(found, "index", found) or 0

    @contextmanager
    def stream(self, stream: Any) -> Iterator[Any]:
        before = self.tracing.stream
        self.tracing.stream = getattr(stream, "stream_id", before)
        try:
            yield stream
        finally:
            self.tracing.stream = before

    def set_stream(self, stream: Any) -> None:
        self.tracing.stream = getattr(stream, "stream_id", 0)

    def stats(self, device: Any = None) -> Any:
        requests, found = self.tracing.requests, defaultdict[str, int](int)
        for kind in ("allocated_bytes", "reserved_bytes", "active_bytes", "requested_bytes"):
            found[f"{kind}.all.current"] = requests.live_bytes
            found[f"{kind}.all.peak"] = requests.peak_bytes
        return found

    def reset_peak(self, device: Any = None) -> None:
        self.tracing.requests.peak_bytes = self.tracing.requests.live_bytes

    def functions(self) -> dict[str, Any]:
        """By name in `torch.cuda`."""
        requests = self.tracing.requests
        nothing = _nothing
        return {
            "is_available": lambda: True,
            "is_initialized": lambda: True,
            "init": nothing,
            "_lazy_init": nothing,
            "_lazy_call": nothing,
            "device_count": lambda: self.devices,
            "current_device": lambda: self.index,
            "set_device": self.set_device,
            "get_device_name": lambda device=None: self.card.name,
            "get_device_capability": lambda device=None: self.card.capability,
            "get_device_properties": self.properties,
            "get_arch_list": lambda: [f"sm_{self.card.capability[0]}{self.card.capability[1]}"],
            "is_bf16_supported": lambda *args, **kwargs: self.card.capability >= (8, 0),
            "is_tf32_supported": lambda: self.card.capability >= (8, 0),
            "can_device_access_peer": lambda *args: True,
            "synchronize": nothing,
            "ipc_collect": nothing,
            "Stream": Stream,
            "Event": Event,
            "stream": self.stream,
            "StreamContext": self.stream,
            "set_stream": self.set_stream,
            "current_stream": lambda device=None: Stream.numbered(self.tracing.stream),
            "default_stream": lambda device=None: Stream.numbered(0),
            "empty_cache": requests.empty_cache,
            "memory_stats": self.stats,
            "memory_allocated": lambda device=None: requests.live_bytes,
            "max_memory_allocated": lambda device=None: requests.peak_bytes,
            "memory_reserved": lambda device=None: requests.live_bytes,
            "max_memory_reserved": lambda device=None: requests.peak_bytes,
            "memory_summary": lambda *args, **kwargs: "",
            "reset_peak_memory_stats": self.reset_peak,
            "reset_accumulated_memory_stats": nothing,
            "reset_max_memory_allocated": self.reset_peak,
            "set_per_process_memory_fraction": nothing,
            "mem_get_info": lambda device=None: (
                max(self.capacity - requests.live_bytes, 0),
                self.card.total_bytes,
            ),
            "get_rng_state": lambda device=None: torch.zeros(16, dtype=torch.uint8),
            "get_rng_state_all": lambda: [torch.zeros(16, dtype=torch.uint8)] * self.devices,
            "set_rng_state": nothing,
            "set_rng_state_all": nothing,
            "manual_seed": nothing,
            "manual_seed_all": nothing,
            "seed": nothing,
            "seed_all": nothing,
            "_record_memory_history": nothing,
            "_dump_snapshot": nothing,
        }


def _nothing(*args: Any, **kwargs: Any) -> None:
    """What has no effect on a card that is not there."""


def _is_acceptable(tensor: Any) -> bool:
    floats = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
    return tensor.device.type == "cuda" and tensor.dtype in floats


def patches(
    card: Card, tracing: Tracing, devices: int, capacity: int, cudnn: int
) -> list[tuple[Any, str, Any]]:
    """What to put in the place of PyTorch's own, as (owner, name, value).

    Args:
        card: The card.
        tracing: Whose figures the memory functions give.
        devices: How many cards there are.
        capacity: The bytes that PyTorch can have of one.
        cudnn: cuDNN's version.
    """
    import torch.backends.cudnn
    import torch.cuda.amp.common
    import torch.cuda.memory
    import torch.cuda.nvtx
    import torch.cuda.random

    found: list[tuple[Any, str, Any]] = []
    for name, value in _Face(card, tracing, devices, capacity).functions().items():
        for owner in (torch.cuda, torch.cuda.memory, torch.cuda.random, torch.cuda.streams):
            if hasattr(owner, name):
                found.append((owner, name, value))
    for name in ("range_push", "range_pop", "mark", "range_start", "range_end"):
        found.append((torch.cuda.nvtx, name, _nothing))
    found += [
        (torch.cuda.amp.common, "amp_definitely_not_available", lambda: False),
        (torch.backends.cudnn, "is_available", lambda: True),
        (torch.backends.cudnn, "version", lambda: cudnn),
        (torch.backends.cudnn, "is_acceptable", _is_acceptable),
        (torch.Tensor, "record_stream", _nothing),
        (torch.Tensor, "pin_memory", lambda self, *args: self),
        (torch.Tensor, "is_pinned", lambda self, *args: False),
    ]
    return found
