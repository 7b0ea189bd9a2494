# SPDX-License-Identifier: Apache-2.0
"""A process that takes itself to have a card, for as long as a rehearsal lasts."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from neutracer.rehearsal import attention, device, fakes, packing, recurrent
from neutracer.rehearsal.build import load
from neutracer.rehearsal.cards import Card
from neutracer.rehearsal.kernels import Kernels
from neutracer.rehearsal.libraries import as_real
from neutracer.rehearsal.ranks import ranks
from neutracer.rehearsal.requests import Requests
from neutracer.rehearsal.tracing import Tracing

__all__ = ["CUDNN", "pretending", "replaced"]

#: The version of cuDNN that is pretended: that of the measured facts.
CUDNN = 91900


class _FakeMode(FakeTensorMode):  # type: ignore[misc]
    """Fake tensors of a device that must not be asked for anything."""

    @property
    def avoid_device_init(self) -> bool:
        """Whether new tensors are made on the CPU before they are taken for the device's."""
        return True


@contextmanager
def replaced(found: list[tuple[Any, str, Any]]) -> Iterator[None]:
    """Attributes with other values, put back in the opposite order."""
    missing = object()
    before: list[tuple[Any, str, Any]] = []
    try:
        for owner, name, value in found:
            before.append((owner, name, vars(owner).get(name, missing)))
            setattr(owner, name, value)
        yield
    finally:
        for owner, name, value in reversed(before):
            if value is missing:
                delattr(owner, name)
            else:
                setattr(owner, name, value)


@contextmanager
def _card_is_there(devices: int) -> Iterator[None]:
    library = load()
    if library.nt_pretend_install(devices, CUDNN):
        raise RuntimeError("a rehearsal is under way in this process")
    try:
        yield
    finally:
        library.nt_pretend_remove()


def _never(*args: Any, **kwargs: Any) -> Any:
    raise RuntimeError("a fake tensor has got to a kernel for CUDA")


@contextmanager
def _attention(run: attention.Attention) -> Iterator[None]:
    """What PyTorch's dispatcher lacks without CUDA: the choice of attention's kernel, and that
    there are kernels; for calls from Python and from C++ alike."""
    library = torch.library.Library("aten", "IMPL")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            library.impl("scaled_dot_product_attention", run, "AutogradCUDA")
            # Without a kernel for CUDA these come apart before anybody sees them.
            for name in ("silu_backward", "mish_backward", "_fused_rms_norm"):
                if not torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", "CUDA"):
                    library.impl(name, _never, "CUDA")
        yield
    finally:
        library._destroy()


@contextmanager
def pretending(card: Card, requests: Requests, *, devices: int, capacity: int) -> Iterator[Tracing]:
    """PyTorch as it would be with a card; tensors made meanwhile are fake.

    Other threads must not use PyTorch meanwhile.

    Args:
        card: The card.
        requests: Gets what is asked of its allocator.
        devices: How many of it there are.
        capacity: The bytes that PyTorch can have of one.

    Raises:
        UnavailableError: This torch is not one that it is known to fit.
    """
    fake = _FakeMode(allow_non_fake_inputs=True)
    kernels = Kernels(card)
    tracing = Tracing(requests, fake, kernels)
    with ExitStack() as stack:
        stack.callback(torch.random.set_rng_state, torch.random.get_rng_state())
        stack.enter_context(_card_is_there(devices))
        found = device.patches(card, tracing, devices, capacity, CUDNN)
        found += fakes.patches(tracing)
        functions = {**recurrent.FUNCTIONS, **packing.FUNCTIONS}
        found += [(torch._VF, name, run) for name, run in functions.items()]
        found += [(torch.nn.RNNBase, "flatten_parameters", recurrent.flatten)]
        found += stack.enter_context(ranks(devices))
        stack.enter_context(replaced(found))
        stack.enter_context(as_real())
        stack.enter_context(_attention(tracing.attention))
        # Autograd's own threads belong to devices that were there when it began.
        stack.enter_context(torch.autograd.set_multithreading_enabled(False))
        stack.callback(tracing.close)
        stack.enter_context(warnings.catch_warnings())
        warnings.filterwarnings("ignore", "Accessing the data pointer of FakeTensor")
        # It logs the traceback of each error that the program gets, and that is told of anyway.
        log = logging.getLogger("torch._subclasses.fake_tensor")
        stack.callback(setattr, log, "disabled", log.disabled)
        log.disabled = True
        stack.enter_context(fake)
        tracing.gathering.look()
        stack.enter_context(tracing)
        yield tracing
