# SPDX-License-Identifier: Apache-2.0
"""A snapshot of this process, through PyTorch's own dump."""

from __future__ import annotations

import importlib.util
import os
import pickle
import sys
from typing import Any

from neutracer._native import core
from neutracer.errors import UnavailableError, missing
from neutracer.process.recording.cache_calls import CACHE_CALLS, note_in_dump
from neutracer.process.recording.living import ask_tensors
from neutracer.process.recording.symbols import light_symbols
from neutracer.trace.snapshot import Snapshot, load

__all__ = ["dumped", "other_allocator", "snapshot", "torch_with_cuda", "without_cuda"]


def snapshot() -> Snapshot:
    """The allocator's state now, with the trace if recording is on.

    This does not initialise CUDA and allocates nothing on a device.

    Returns:
        The snapshot, as `load` would give it from PyTorch's own dump.

    Raises:
        UnavailableError: torch is not imported or has no CUDA, or CUDA was not
            initialised in this process; `.what` and `.install` say which, and what to do.
    """
    return ask_tensors(load(dumped(_initialised_cuda())))


def dumped(cuda: Any, *, traces: bool = True) -> bytes:
    """PyTorch's own dump as a file would hold it, of protocol 4 whatever the Python.

    Args:
        cuda: torch.cuda, initialised.
        traces: Whether the events are in it; without them it is quick however many there are.
    """
    with light_symbols():
        if traces:
            before = CACHE_CALLS.now()
            plain = cuda.memory._snapshot()
            note_in_dump(plain, before)
        else:
            plain = sys.modules["torch"]._C._cuda_memorySnapshot((0, 0, False))
    try:
        return core.dump_plain(plain)
    except (TypeError, ValueError):
        # What a later torch may put there, Python's own pickler takes.
        return pickle.dumps(plain, protocol=4)


def torch_with_cuda() -> Any:
    """The module torch of this process.

    Raises:
        UnavailableError: It is not imported, or has no CUDA.
    """
    torch = sys.modules.get("torch")
    if torch is None and importlib.util.find_spec("torch") is None:
        raise missing("torch")
    if torch is None:
        raise UnavailableError("torch in this process", "import torch and use a CUDA device first")
    if getattr(torch.version, "cuda", None) is None or not hasattr(
        torch._C, "_cuda_memorySnapshot"
    ):
        raise UnavailableError(
            "CUDA in this build of torch", "install a torch that is built for CUDA"
        )
    return torch


def without_cuda(torch: Any) -> UnavailableError:
    """What to raise where CUDA is not initialised: why there is no device in use."""
    if torch.cuda.device_count() == 0:
        return UnavailableError(
            "a CUDA device in this process", "torch sees none: that takes a GPU and its driver"
        )
    return UnavailableError(
        "an initialised CUDA device in this process",
        "allocate a tensor on the device first; neutracer does not initialise CUDA",
    )


def other_allocator(torch: Any) -> str:
    """What serves memory in place of PyTorch's own allocator, as a clause, or "".

    Args:
        torch: The module, with CUDA initialised.
    """
    backend = torch.cuda.memory.get_allocator_backend()
    if backend != "native":
        return f"this program uses the allocator {backend}, of which PyTorch keeps no history"
    if os.environ.get("PYTORCH_NO_CUDA_MEMORY_CACHING"):
        return "PYTORCH_NO_CUDA_MEMORY_CACHING switches PyTorch's own allocator off"
    return ""


def _initialised_cuda() -> Any:
    torch = torch_with_cuda()
    if not torch.cuda.is_initialized():
        raise without_cuda(torch)
    backend = torch.cuda.memory.get_allocator_backend()
    if backend != "native":
        raise UnavailableError(
            "a snapshot of another allocator than PyTorch's own",
            f"this process uses {backend}; unset 'backend' in PYTORCH_CUDA_ALLOC_CONF",
        )
    return torch.cuda
