# SPDX-License-Identifier: Apache-2.0
"""Operators under fake tensors: each output's request, view or in-place write."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterator
from threading import RLock
from typing import Any

import torch
import torch.utils
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, UnsupportedOperatorException
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass

from neutracer.rehearsal.kernels import recurrent
from neutracer.rehearsal.kernels.attention import Attention
from neutracer.rehearsal.kernels.rules import Kernels
from neutracer.rehearsal.requests import Gathering, Notes, Requests
from neutracer.rehearsal.values import Values, known_of, known_truth, tensors_in

# ---- Operators ---------------------------------------------------------------------------

aten = torch.ops.aten


def _item(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    """The value of a tensor as a Python number."""
    tensor = args[0]
    known = known_of(tensor)
    if known is not None:
        if known.validity.is_made_up:
            mode.notes.add("{line} reads a value that depends on data: it is made up.")
        with torch._C._DisableTorchDispatch():
            return known.real.item()
    value: Any = 1.0 if tensor.dtype.is_floating_point else 1
    if tensor.dtype is torch.bool:
        value = False
    if tensor.dtype.is_complex:
        value = complex(1.0)
    mode.notes.add(f"{{line}} reads the value of a tensor: {value} is made up.")
    return value


def _positions(source: Any) -> Any:
    """Indices of nonzero elements; of unknown values, every other element."""
    known, truth = known_of(source), known_truth(source)
    with torch._C._DisableTorchDispatch():
        if known is not None:
            return torch.nonzero(known.real)
        if truth is None:
            places = torch.arange(-(-source.numel() // 2)).mul_(2)
        else:
            places = torch.arange(source.numel() if truth else 0)
        if not source.dim():
            return places[:, None][:, :0]
        return torch.stack(torch.unravel_index(places, tuple(source.shape)), 1)


def _note_shape(mode: Any, *sources: Any) -> None:
    found = [known_of(source) for source in sources]
    if any(one is None or one.validity.is_made_up for one in found):
        mode.notes.add("{line} creates a shape that depends on data: it is made up.")


def _nonzero(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    _note_shape(mode, args[0])
    value = _positions(args[0])
    result = args[0].new_empty(tuple(value.shape), dtype=torch.int64)
    mode.values.make_up(result, value)
    return result


def _by_mask(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    """Indexing with masks converted to indices first, as PyTorch's kernels do."""
    places: list[Any] = []
    for index in args[1]:
        if index is None or index.dtype not in (torch.bool, torch.uint8):
            places.append(index)
            continue
        found = _nonzero(mode, aten.nonzero.default, (index,), {})
        mode.note(aten.nonzero.default, (index,), {}, found)
        places += found.unbind(1)
    return mode.values.run(func, (args[0], places, *args[2:]), kwargs)


def _masked_select(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    mask = args[1]
    shape = torch.broadcast_shapes(args[0].shape, mask.shape)
    if tuple(mask.shape) != tuple(shape):
        mask = mask.expand(shape)
    _note_shape(mode, mask)
    return args[0].new_empty((len(_positions(mask)),))


def _of_values(mode: Any, func: Any, args: Any, kwargs: Any, made_up: Callable[[], Any]) -> Any:
    """Results whose shape depends on values; `made_up` gives them if values are unknown."""
    source = args[0]
    _note_shape(mode, source)
    known = known_of(source)
    if known is None or any(isinstance(arg, torch.Tensor) for arg in args[1:]):
        return made_up()
    with torch._C._DisableTorchDispatch():
        real = func(known.real, *args[1:], **kwargs)
    several = real if isinstance(real, tuple) else (real,)
    found = []
    for value in several:
        out = source.new_empty(tuple(value.shape), dtype=value.dtype)
        mode.values.make_up(out, value)
        found.append(out)
    return tuple(found) if isinstance(real, tuple) else found[0]


def _unique(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    source = args[0]
    flat, places = (source.numel(),), tuple(source.shape)

    def distinct() -> Any:
        lists = [source.new_empty(shape, dtype=torch.int64) for shape in (places, flat)]
        return (source.new_empty(flat), *lists)

    return _of_values(mode, func, args, kwargs, distinct)


def _bincount(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    least = kwargs.get("minlength", args[2] if len(args) > 2 else 0)
    rows = max(int(least), 1)
    dtype = torch.int64 if len(args) < 2 or args[1] is None else torch.float64
    return _of_values(mode, func, args, kwargs, lambda: args[0].new_empty((rows,), dtype=dtype))


def _repeat(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    size = kwargs.get("output_size")
    if size is not None:
        return args[0].new_empty((size,))
    return _of_values(mode, func, args, kwargs, lambda: args[0].new_empty((args[0].numel(),)))


def _add(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    """A sum; plain attention adds its mask in place."""
    if not mode.attention.is_plain:
        return mode.values.run(func, args, kwargs)
    aten.add_.Tensor(*args, **kwargs)
    return aten.detach.default(args[0])


def _ctc_loss(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    """The CTC loss, and alpha with a blank on either side of each target."""
    likely, targets = args[0], args[1]
    steps, batch = likely.shape[:2]
    longest = targets.shape[-1] if targets.dim() == 2 else -(-targets.numel() // max(batch, 1))
    kept = likely.new_empty((batch, steps, 2 * longest + 1))
    return likely.new_empty((batch,)), kept


def _overloads(*names: str) -> list[Any]:
    """All overloads of some operators, those that this release has."""
    packets = [getattr(aten, name) for name in names if hasattr(aten, name)]
    return [getattr(packet, overload) for packet in packets for overload in packet.overloads()]


REPLACED: dict[Any, Callable[..., Any]] = {
    **recurrent.REPLACED,
    aten.add.Tensor: _add,
    aten._local_scalar_dense.default: _item,
    # In inference mode these arrive undecomposed.
    aten.item.default: _item,
    aten.is_nonzero.default: lambda *call: bool(_item(*call)),
    aten.nonzero.default: _nonzero,
    aten.index.Tensor: _by_mask,
    aten.index_put.default: _by_mask,
    aten.index_put_.default: _by_mask,
    aten._index_put_impl_.default: _by_mask,
    aten.masked_select.default: _masked_select,
    aten._unique2.default: _unique,
    aten.unique_consecutive.default: _unique,
    aten.bincount.default: _bincount,
    aten.repeat_interleave.Tensor: _repeat,
    # cuDNN computes the CTC loss only with targets on the CPU.
    **dict.fromkeys(_overloads("_use_cudnn_ctc_loss", "_use_miopen_ctc_loss"), lambda *call: False),
    **dict.fromkeys((aten._ctc_loss.default, aten._ctc_loss.Tensor), _ctc_loss),
    **dict.fromkeys(
        (aten._ctc_loss_backward.default, aten._ctc_loss_backward.Tensor),
        lambda mode, func, args, kwargs: args[1].new_empty(args[1].shape),
    ),
    # In-place changes of lists; unscaled gradients are finite.
    aten._amp_foreach_non_finite_check_and_unscale_.default: lambda *call: None,
    **dict.fromkeys(
        _overloads("_fused_sgd_", "_fused_adagrad_", "_fused_adam_", "_fused_adamw_"),
        lambda *call: None,
    ),
}


# ---- Tracing -----------------------------------------------------------------------------

#: Operators whose kernels make their results from the last to the first: of dropout the mask.
_LAST_FIRST = frozenset({torch.ops.aten.native_dropout.default})

#: Operators that look only at a tensor's shape, type and device.
_ALIKE = frozenset(
    {
        *("empty_like", "zeros_like", "ones_like", "full_like", "rand_like", "randn_like"),
        *("randint_like", "new_empty", "new_empty_strided", "new_zeros", "new_ones", "new_full"),
        *("device", "is_same_size", "is_pinned"),
    }
)

#: Asked of a fake tensor twice as often as all else: the answer that FakeTensorMode would give.
_DEVICE = torch.ops.prim.device.default

#: Operators that copy arguments, to lay them out one after the other, before they make results.
_COPIES_FIRST = frozenset(
    {torch.ops.aten.embedding.default, torch.ops.aten.native_layer_norm.default}
)


def _plain(tensor: Tensor) -> list[Tensor]:
    """The tensors of a wrapper, such as a DTensor's shard; else the tensor itself."""
    if isinstance(tensor, FakeTensor) or not is_traceable_wrapper_subclass(tensor):
        return [tensor]
    names, _ = tensor.__tensor_flatten__()
    inner = (getattr(tensor, name) for name in names)
    return [one for value in inner if isinstance(value, Tensor) for one in _plain(value)]


class Tracing(TorchDispatchMode):  # type: ignore[misc]
    """Records the memory of each operator, above a FakeTensorMode."""

    def __init__(
        self, requests: Requests, fake: FakeTensorMode, kernels: Kernels, devices: int
    ) -> None:
        super().__init__()
        self.devices = devices
        self.requests, self.fake, self.kernels = requests, fake, kernels
        self.attention = Attention(kernels.card)
        self.notes = Notes()
        self.values = Values(self.notes)
        self.gathering = Gathering()
        self.stream = self.backwards = 0
        self.is_closed = False
        self._lock = RLock()  # Held for an operator: the program's threads take turns.
        self._handles: dict[int, tuple[int, Any]] = {}
        self._bounds: dict[int, tuple[int, int]] = {}

    def bounded(self, tensor: Tensor, least: int, most: int) -> None:
        """Set the range of bytes of a result that is not recorded yet."""
        self._bounds[tensor.untyped_storage()._cdata] = least, most

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self.is_closed:
            return func(*args, **(kwargs or {}))
        if func is _DEVICE and isinstance(args[0], FakeTensor):
            is_inside = args[0].fake_mode.in_kernel_invocation
            return torch.device("meta") if is_inside else args[0].fake_device
        with self._lock:
            return self._traced(func, args, kwargs or {})

    def _traced(self, func: Any, args: Any, kwargs: Any) -> Any:
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
        used = self._used(func, args, kwargs, result)
        # The sum replaces what it was added to.
        if is_in_place and (found := self._handles.pop(args[0].untyped_storage()._cdata, None)):
            self._keep(result.untyped_storage(), found[0])
        try:
            self.note(func, args, kwargs, result)
        except torch.OutOfMemoryError:
            self.notes.add("{line} asks for more memory than any device has, and fails.")
            raise
        for handle in used:
            self.requests.uses.use(handle)
        return result

    def _used(self, func: Any, args: Any, kwargs: Any, result: Any) -> list[int]:
        """The handles of what an operator reads or writes: of views and shapes nothing."""
        if func._schema.name.partition("::")[2] in _ALIKE:
            return []
        given = {
            tensor.untyped_storage()._cdata
            for one in tensors_in([*args, *kwargs.values()])
            for tensor in _plain(one)
        }
        if not func._schema.is_mutable:
            found = [tensor.untyped_storage()._cdata for tensor in tensors_in(result)]
            if found and given.issuperset(found):
                return []
        return [self._handles[key][0] for key in given if key in self._handles]

    def note(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        """Record an operator's requests: results, then the scratch memory of its kernel."""
        results = tensors_in(result)
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
        try:
            if takes:
                for nbytes in takes.kept:
                    kept = requests.alloc(nbytes, stack, self.stream, takes.note)
                    requests.uses.lose(kept)
                for likely, *bounds in takes.freed:
                    taken.append(requests.alloc(likely, stack, self.stream, takes.note, bounds))
            for tensor in fresh:
                self._hold(tensor, stack)
                self.requests.uses.made(self.handle(tensor))
        finally:
            for handle in reversed(taken):
                requests.uses.use(handle)
                requests.free(handle, stack)

    def _is_fresh(self, tensor: Tensor) -> bool:
        if tensor.device.type != "cuda" or not isinstance(tensor, FakeTensor):
            return False
        self.check(tensor.device.index)
        return bool(tensor.untyped_storage()._cdata not in self._handles)

    def check(self, device: int) -> None:
        """Refuse a device that is not there, as CUDA does."""
        if device >= self.devices:
            raise torch.AcceleratorError("CUDA error: invalid device ordinal")

    def _hold(self, tensor: Tensor, stack: int) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._handles:
            return
        nbytes = storage.nbytes()
        if not nbytes:
            return
        bounds = self._bounds.pop(key, None)
        self._keep(storage, self.requests.alloc(nbytes, stack, self.stream, bounds=bounds))

    def _keep(self, storage: Any, handle: int) -> None:
        """A storage has a request, to its end: PyTorch keeps its Python object as long."""
        key = storage._cdata

        def end(_: Any) -> None:
            if self._handles.get(key, (0, None))[0] == handle:
                del self._handles[key]
                if not self.is_closed:
                    self.requests.free(handle, self.requests.stacks.here())

        self._handles[key] = handle, weakref.ref(storage, end)

    def handle(self, tensor: Tensor) -> int:
        """The handle of a tensor's request; 0 if it has none."""
        return self._handles.get(tensor.untyped_storage()._cdata, (0,))[0]

    def holds(self, storage: Any) -> bool:
        """Whether a storage's memory is recorded."""
        return bool(storage._cdata in self._handles)

    def lose(self, tensor: Tensor) -> None:
        """Note that a tensor may be used where no operator shows it."""
        known = self._handles.get(tensor.untyped_storage()._cdata)
        if known is not None:
            self.requests.uses.lose(known[0])

    def resized(self, storage: Any, nbytes: int) -> None:
        """Record a storage resized in place."""
        stack = self.requests.stacks.here()
        self.requests.free(self._handles.pop(storage._cdata)[0], stack)
        # An empty one is still known, so that it is noted when it grows again.
        self._keep(storage, self.requests.alloc(nbytes, stack, self.stream) if nbytes else 0)

    def close(self) -> None:
        """Stop recording."""
        self.is_closed = True
        self._handles.clear()


# ---- Fakes -------------------------------------------------------------------------------

#: Batches of a loader that are loaded for evaluation, say.
_BATCHES = 8


class _NoWeakReferences:
    """`weakref` for `swap_tensors`, which refuses tensors that FakeTensorMode references."""

    def __getattr__(self, name: str) -> Any:
        return getattr(weakref, name)

    def getweakrefs(self, value: object) -> list[Any]:
        return []


def _deepcopy(tensor: Any, memo: dict[int, Any]) -> Any:
    if id(tensor) in memo:
        return memo[id(tensor)]
    if not tensor.is_leaf:
        raise RuntimeError(
            "Only Tensors created explicitly by the user (graph leaves) support the deepcopy "
            "protocol at the moment."
        )
    with torch.no_grad():
        made = tensor.detach().clone()
    if isinstance(tensor, torch.nn.Parameter):
        made = torch.nn.Parameter(made, tensor.requires_grad)
    else:
        made.requires_grad_(tensor.requires_grad)
    memo[id(tensor)] = made
    if tensor.grad is not None:
        made.grad = _deepcopy(tensor.grad, memo)
    return made


def _to_numpy(tracing: Tracing) -> Any:
    plain = Tensor.numpy

    def numpy(tensor: Tensor, *, force: bool = False) -> Any:
        known = known_of(tensor)
        if known is None or known.validity.is_made_up:
            tracing.notes.add("{line} converts a tensor to an array: its values are made up.")
        with torch._C._DisableTorchDispatch():
            real = torch.zeros(tensor.shape, dtype=tensor.dtype) if known is None else known.real
            return plain(real.detach(), force=force)

    return numpy


def _resizer(tracing: Tracing) -> Any:
    plain = torch.UntypedStorage.resize_

    def resize_(storage: Any, nbytes: int) -> Any:
        before = storage.nbytes()
        result = plain(storage, nbytes)
        if storage.nbytes() != before and tracing.holds(storage):
            tracing.resized(storage, storage.nbytes())
        return result

    return resize_


def _pointer(tracing: Tracing) -> Any:
    plain = Tensor.data_ptr

    def data_ptr(tensor: Tensor) -> Any:
        tracing.lose(tensor)
        return plain(tensor)

    return data_ptr


def _loader(plain: Any) -> Any:
    """DataLoader.__init__ without workers: other processes and threads lack fake tensors."""

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        names = ("num_workers", "pin_memory", "timeout", "prefetch_factor", "persistent_workers")
        for name in (*names, "multiprocessing_context"):
            kwargs.pop(name, None)
        # dataset, batch_size, shuffle, sampler and batch_sampler come before num_workers.
        plain(self, *args[:5], **kwargs)

    return init


def _fake_ctc_loss(plain: Any) -> Any:
    """`torch.ctc_loss` with lengths on the device: fakes on the CPU can't be read."""

    def ctc_loss(likely: Tensor, targets: Tensor, *rest: Any) -> Any:
        lengths = [
            (one if isinstance(one, Tensor) else torch.tensor(one)).to(likely.device)
            for one in rest[:2]
        ]
        return plain(likely, targets, *lengths, *rest[2:])

    return ctc_loss


def _counting(tracing: Tracing) -> Any:
    plain = torch.autograd.backward

    def backward(*args: Any, **kwargs: Any) -> Any:
        tracing.backwards += 1
        return plain(*args, **kwargs)

    return backward


def _bounded(tracing: Tracing, plain: Any) -> Any:
    """Batches of a loader, cut short if no backward pass uses them: all cost the same."""

    def batches(self: Any) -> Iterator[Any]:
        before = tracing.backwards
        for number, batch in enumerate(plain(self)):
            if number >= _BATCHES and tracing.backwards == before:
                tracing.notes.add(
                    f"{{line}} reads {_BATCHES} batches of a DataLoader without a backward pass: "
                    "the rest are assumed alike and skipped."
                )
                return
            yield batch

    return batches


def patches(tracing: Tracing) -> list[tuple[Any, str, Any]]:
    """What to put in the place of PyTorch's own, as (owner, name, value)."""
    from torch.utils.data import DataLoader

    return [
        (sys.modules["torch.utils"], "weakref", _NoWeakReferences()),
        (FakeTensor, "__deepcopy__", _deepcopy),
        (Tensor, "numpy", _to_numpy(tracing)),
        (Tensor, "data_ptr", _pointer(tracing)),
        (torch.UntypedStorage, "resize_", _resizer(tracing)),
        (DataLoader, "__init__", _loader(DataLoader.__init__)),
        (DataLoader, "__iter__", _bounded(tracing, DataLoader.__iter__)),
        (torch.autograd, "backward", _counting(tracing)),
        (torch, "ctc_loss", _fake_ctc_loss(torch.ctc_loss)),
    ]
