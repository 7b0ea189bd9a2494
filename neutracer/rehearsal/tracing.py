# SPDX-License-Identifier: Apache-2.0
"""Operators on fake tensors, noted as what they would ask of the allocator."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import (
    FakeTensor,
    FakeTensorMode,
    UnsupportedOperatorException,
)
from torch.utils._python_dispatch import TorchDispatchMode

from neutracer.rehearsal.attention import Attention
from neutracer.rehearsal.gathering import Gathering
from neutracer.rehearsal.kernels import Kernels
from neutracer.rehearsal.notes import Notes
from neutracer.rehearsal.operators import REPLACED
from neutracer.rehearsal.requests import Requests
from neutracer.rehearsal.values import Values

__all__ = ["Tracing", "tensors_in"]

#: Operators whose kernels make their results from the last to the first: of dropout the mask.
_LAST_FIRST = frozenset({torch.ops.aten.native_dropout.default})

#: Operators that copy arguments, to lay them out one after the other, before they make results.
_COPIES_FIRST = frozenset(
    {torch.ops.aten.embedding.default, torch.ops.aten.native_layer_norm.default}
)


def tensors_in(value: Any) -> Iterator[Tensor]:
    """The tensors of an operator's results or arguments."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from tensors_in(item)


class Tracing(TorchDispatchMode):  # type: ignore[misc]
    """Notes the memory of each operator; it stands above a FakeTensorMode.

    Attributes:
        requests: What was noted.
        fake: The mode below.
        stream: The stream that is current.
        attention: What chooses attention's kernels.
        backwards: How many backward passes there were.
    """

    def __init__(self, requests: Requests, fake: FakeTensorMode, kernels: Kernels) -> None:
        super().__init__()
        self.requests, self.fake, self.kernels = requests, fake, kernels
        self.attention = Attention(kernels.card)
        self.notes = Notes()
        self.values = Values(self.notes)
        self.gathering = Gathering()
        self.stream = self.backwards = 0
        self.is_closed = False
        self._handles: dict[int, tuple[int, Any]] = {}
        self._bounds: dict[int, tuple[int, int]] = {}

    def bounded(self, tensor: Tensor, least: int, most: int) -> None:
        """The bytes of a result that is about to be noted are known as a range."""
        self._bounds[tensor.untyped_storage()._cdata] = least, most

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self.is_closed:
            return func(*args, **kwargs)
        replaced = REPLACED.get(func)
        is_in_place = self.gathering.is_in_place(func, args)
        try:
            if replaced is not None:
                result = replaced(self, func, args, kwargs)
            else:
                result = self.values.run(func, args, kwargs)
        except RuntimeError as error:
            # Fake tensors then try the operator on real ones, whose device is not there: a build
            # without CUDA lacks the kernel that makes them, one with CUDA the driver.
            if "'aten::empty_strided'" in str(error) or str(error).startswith("CUDA error"):
                raise UnsupportedOperatorException(func) from error
            raise
        if is_in_place:
            self._pass_on(args[0].untyped_storage(), result.untyped_storage())
        self.note(func, args, kwargs, result)
        return result

    def note(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        """What the operator has asked for: results, then what its kernel takes meanwhile."""
        results = list(tensors_in(result))
        if func in _LAST_FIRST:
            results.reverse()
        fresh = [tensor for tensor in results if self._is_fresh(tensor)]
        takes = self.kernels.takes(func, args, kwargs, result, self.stream)
        if not fresh and not takes:
            return
        requests = self.requests
        stack = requests.stacks.here()
        if func not in _COPIES_FIRST:
            for tensor in fresh:
                self._hold(tensor, stack)
        taken: list[int] = []
        if takes:
            for nbytes in takes.kept:
                requests.alloc(nbytes, stack, self.stream, takes.note)
            for likely, *bounds in takes.freed:
                taken.append(requests.alloc(likely, stack, self.stream, takes.note, bounds))
        for tensor in fresh:
            self._hold(tensor, stack)
        for handle in reversed(taken):
            requests.free(handle, stack)

    def _is_fresh(self, tensor: Tensor) -> bool:
        """Whether a result's memory is new: on the device, and not known."""
        return bool(
            tensor.device.type == "cuda"
            and isinstance(tensor, FakeTensor)
            and tensor.untyped_storage()._cdata not in self._handles
        )

    def _hold(self, tensor: Tensor, stack: int) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._handles:
            return
        nbytes = storage.nbytes()
        if not nbytes:
            return
        handle = self.requests.alloc(nbytes, stack, self.stream, bounds=self._bounds.pop(key, None))
        # PyTorch keeps a storage's Python object as long as the storage itself.
        self._handles[key] = handle, weakref.ref(storage, self._ending(key, handle))

    def _pass_on(self, one: Any, other: Any) -> None:
        """A storage that is about to go is another one from now on."""
        found = self._handles.pop(one._cdata, None)
        if found is not None:
            key, handle = other._cdata, found[0]
            self._handles[key] = handle, weakref.ref(other, self._ending(key, handle))

    def _ending(self, key: int, handle: int) -> Callable[[Any], None]:
        def end(_: Any) -> None:
            if self._handles.get(key, (0, None))[0] == handle:
                del self._handles[key]
                if not self.is_closed:
                    self.requests.free(handle, self.requests.stacks.here())

        return end

    def holds(self, storage: Any) -> bool:
        """Whether a storage's memory was noted."""
        return bool(storage._cdata in self._handles)

    def resized(self, storage: Any, nbytes: int) -> None:
        """A storage's size was changed in place."""
        key = storage._cdata
        stack = self.requests.stacks.here()
        self.requests.free(self._handles.pop(key)[0], stack)
        # An empty one is still known, so that it is noted when it grows again.
        handle = self.requests.alloc(nbytes, stack, self.stream) if nbytes else 0
        self._handles[key] = handle, weakref.ref(storage, self._ending(key, handle))

    def close(self) -> None:
        """Nothing that happens from now on is noted."""
        self.is_closed = True
        self._handles.clear()
