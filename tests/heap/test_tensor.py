# SPDX-License-Identifier: Apache-2.0
"""Facts of tensors, read from memory, against what torch says of the same tensors."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from forked import Imported

from neutracer._native import core

torch = pytest.importorskip("torch")


@pytest.fixture(autouse=True, scope="module")
def _prepared() -> None:
    core.names_prepare()
    core.tensor_prepare()


def facts(tensor: object) -> dict[str, Any]:
    found = core.tensor_facts(tensor)
    assert found is not None
    return found


def said(tensor: Any) -> dict[str, Any]:
    """What torch says of a tensor with a storage, in the words of the core."""
    storage = tensor.untyped_storage()
    device = storage.device
    memory = 0 if device.type == "meta" else storage.data_ptr()
    return {
        "impl": tensor._cdata,
        "storage": storage._cdata,
        "data_ptr": memory,
        "storage_bytes": storage.nbytes() if memory else 0,
        "shape": tuple(tensor.shape),
        "ndim": tensor.dim(),
        "dtype": str(tensor.dtype).partition(".")[2],
        "device_type": device.type,
        "device_index": -1 if device.index is None else device.index,
        "requires_grad": tensor.requires_grad,
        "has_grad_fn": tensor.grad_fn is not None,
        "numel": tensor.numel(),
        "storage_offset": tensor.storage_offset(),
        "use_count": tensor._use_count() if hasattr(tensor, "_use_count") else 0,
    }


def all_dtypes() -> list[Any]:
    found = {kind for kind in vars(torch).values() if isinstance(kind, torch.dtype)}
    return sorted((kind for kind in found if not str(kind).startswith("torch.q")), key=str)


@pytest.mark.parametrize("shape", [(), (0,), (7,), (2, 3), (3, 1, 4, 1, 5), (2,) * 6, (1,) * 64])
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_plain_tensors_read_as_told(shape: tuple[int, ...], device: str) -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.bool, torch.complex128, torch.uint8):
        tensor = torch.empty(shape, dtype=dtype, device=device)
        assert facts(tensor) == said(tensor)


@pytest.mark.filterwarnings("ignore:ComplexHalf")
def test_every_dtype_has_its_name() -> None:
    made = 0
    for dtype in all_dtypes():
        try:
            tensor = torch.empty(4, dtype=dtype)
        except Exception:  # a dtype that only some kernels know
            continue
        made += 1
        assert facts(tensor) == said(tensor), dtype
    assert made > 20


def test_views_share_one_storage() -> None:
    base = torch.arange(120.0).reshape(2, 3, 4, 5)
    views = [
        base[1],
        base.transpose(0, 3),
        base[..., ::2],
        base.expand(2, 2, 3, 4, 5),
        base.view(-1)[17:],
        base.detach(),
        base.as_strided((2, 2), (7, 3), 5),
        base.unfold(3, 2, 1).unsqueeze(0).unsqueeze(0),
    ]
    for view in views:
        assert facts(view) == said(view)
    assert {facts(view)["storage"] for view in views} == {facts(base)["storage"]}
    assert {facts(view)["storage_bytes"] for view in views} == {480}


def graded() -> dict[str, Any]:
    leaf = torch.ones(3, requires_grad=True)
    result = leaf * 2
    kept = leaf + 1
    kept.retain_grad()
    hooked = torch.ones(3, requires_grad=True)
    hooked.register_hook(lambda gradient: gradient)
    stepped = torch.ones(3, requires_grad=True)
    (stepped * stepped).sum().backward()
    with torch.no_grad():
        inside = leaf * 2
    with torch.inference_mode():
        inference = torch.ones(2) * 2
    changed = torch.zeros(4)
    changed[1:].mul_(result[0])
    return {
        "leaf": leaf,
        "result": result,
        "kept": kept,
        "hooked": hooked,
        "stepped": stepped,
        "gradient": stepped.grad,
        "off": torch.ones(3, requires_grad=True).requires_grad_(False),
        "inside": inside,
        "inference": inference,
        "changed": changed,
        "sliced": result[1:],
        "detached": result.detach(),
        "again": result.detach().requires_grad_(),
        "parameter": torch.nn.Parameter(torch.ones(2)),
        "frozen": torch.nn.Parameter(torch.ones(2), requires_grad=False),
    }


@pytest.mark.parametrize("name", sorted(graded()))
def test_gradients_read_as_told(name: str) -> None:
    tensor = graded()[name]
    assert facts(tensor) == said(tensor)


def test_grown_and_shrunk_tensors_read_as_told() -> None:
    tensor = torch.ones(1000)
    for shape in [(10, 10), (), (2, 1, 2, 1, 2, 1, 2), (3,), (200, 20)]:
        tensor.resize_(shape)
        assert facts(tensor) == said(tensor)
    tensor.untyped_storage().resize_(0)
    assert facts(tensor) == said(tensor)
    assert facts(tensor)["storage_bytes"] == 0
    tensor.set_(torch.ones(5, 5))  # type: ignore[call-overload]
    assert facts(tensor) == said(tensor)


def test_use_count_follows_cpp_owners() -> None:
    base = torch.ones(8)
    views = []
    for count in range(1, 6):
        assert facts(base)["use_count"] in (0, base._use_count(), count)
        views.append(base.view(-1))
    assert facts(base)["use_count"] in (0, base._use_count())


# ---- tensors that are not plain --------------------------------------------------------


@pytest.mark.filterwarnings("ignore:Sparse")
def test_sparse_tensors_have_no_memory() -> None:
    dense = torch.eye(4)
    for tensor in (dense.to_sparse(), dense.to_sparse_csr()):
        read = facts(tensor)
        assert (read["storage"], read["data_ptr"], read["storage_bytes"]) == (0, 0, 0)
        assert (read["shape"], read["dtype"], read["device_type"]) == ((4, 4), "float32", "cpu")
        assert read["impl"] == tensor._cdata


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
def test_quantized_tensors_read_as_told() -> None:
    try:
        tensor = torch.quantize_per_tensor(torch.ones(6), 0.1, 0, torch.quint8)
    except Exception:
        pytest.skip("this torch has no quantized tensors")
    assert facts(tensor) == said(tensor)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_nested_tensors_are_survived() -> None:
    parts = [torch.ones(2, 3), torch.ones(4, 3)]
    for layout in (torch.strided, torch.jagged):
        read = facts(torch.nested.nested_tensor(parts, layout=layout))
        assert read["dtype"] == "float32"
        assert read["storage_bytes"] in (0, 72)


def test_wrapper_subclass_has_no_memory() -> None:
    class Wrapper(torch.Tensor):  # type: ignore[misc]
        @staticmethod
        def __new__(cls, inner: Any) -> Any:
            return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

        @classmethod
        def __torch_dispatch__(cls, *_: Any, **__: Any) -> Any:
            raise AssertionError("the program's own code was run")

        __torch_function__ = torch._C._disabled_torch_function_impl

    read = facts(Wrapper(torch.ones(4, 5)))
    assert (read["shape"], read["data_ptr"], read["storage_bytes"]) == ((4, 5), 0, 0)


def test_fake_tensor_has_no_memory() -> None:
    fake = pytest.importorskip("torch._subclasses.fake_tensor")
    with fake.FakeTensorMode():
        tensor = torch.ones(4, 5)
    read = facts(tensor)
    assert (read["shape"], read["storage_bytes"], read["device_type"]) == ((4, 5), 0, "meta")


def test_functional_tensor_is_read_raw() -> None:
    tensor = torch._to_functional_tensor(torch.ones(4, 5))
    read = facts(tensor)
    assert (read["shape"], read["dtype"]) == ((4, 5), "float32")
    assert read["storage_bytes"] in (0, 80)


def test_what_is_no_tensor_has_no_facts() -> None:
    class Pretender:
        __class__ = torch.Tensor

    for thing in (
        None,
        [],
        Pretender(),
        torch.Tensor,
        torch.float32,
        torch.ones(1).untyped_storage(),
    ):
        assert core.tensor_facts(thing) is None
        assert core.label(thing)[0] != "tensor"


# ---- nothing is run, nothing is made ---------------------------------------------------


def hostile_tensor(make: Callable[[Any, Any], Any]) -> Any:
    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("the program's own code was run")

    plain = ("__dict__", "__doc__", "__module__")
    names = [name for name in dir(torch.Tensor) if name not in ("__new__", "__init__", "__class__")]
    body: dict[str, Any] = {
        name: property(refuse)
        for name in names
        if not callable(getattr(torch.Tensor, name, None)) and name not in plain
    }
    body |= dict.fromkeys(("__eq__", "__hash__", "__repr__", "__len__", "__getattr__"), refuse)
    body |= {"__getattribute__": refuse, "__class__": property(refuse), "__del__": lambda _: None}
    body["__torch_function__"] = classmethod(refuse)
    body["__torch_dispatch__"] = classmethod(refuse)
    return make(torch.ones(4, 5), type("Hostile", (torch.Tensor,), body))


@pytest.mark.parametrize(
    "make",
    [
        lambda data, cls: torch.Tensor._make_subclass(cls, data),
        lambda data, cls: torch.Tensor._make_subclass(cls, data, True),
        lambda data, cls: torch.Tensor._make_wrapper_subclass(cls, data.shape, dtype=data.dtype),
    ],
)
def test_nobodys_python_runs_for_tensors(make: Callable[[Any, Any], Any]) -> None:
    tensor = hostile_tensor(make)
    read = facts(tensor)
    assert (read["shape"], read["dtype"], read["device_type"]) == ((4, 5), "float32", "cpu")
    assert core.label(tensor)[:3] == ("tensor", f"{__name__}.Hostile", "Hostile")
    assert core.references(tensor)


def test_reading_makes_no_object() -> None:
    tensors = list(graded().values())
    gc.collect()
    gc.disable()
    try:
        before = len(gc.get_objects())
        for tensor in tensors:
            core.tensor_facts(tensor)
            core.references(tensor)
        assert len(gc.get_objects()) <= before + 1
    finally:
        gc.enable()


def test_tensor_names_its_hooks_and_node() -> None:
    leaf = torch.ones(2, requires_grad=True)
    leaf.register_hook(lambda gradient: gradient)
    hooks = leaf._backward_hooks
    found = {(kind, name) for held, kind, name in core.references(leaf) if held is hooks}
    assert ("field", "_backward_hooks") in found
    result = leaf * 2
    node = result.grad_fn
    shown = any(held is node for held in gc.get_referents(result))
    assert core.reference(result, node) == (("field", "grad_fn") if shown else None)
    leaf.me = leaf  # type: ignore[attr-defined]
    assert core.reference(leaf, leaf, leaf.__dict__) == ("attribute", "me")


def test_custom_function_is_named_from_its_output() -> None:
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, value: Any) -> Any:
            ctx.out = value * 2
            return ctx.out

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            return gradient * 2

    output = Double.apply(torch.ones(2, requires_grad=True))  # type: ignore[no-untyped-call]
    shown = [held for held in gc.get_referents(output) if type(held).__name__ == "DoubleBackward"]
    found = [held for held, _, name in core.references(output) if name == "grad_fn"]
    assert [id(held) for held in found] == [id(held) for held in shown]
    del output.grad_fn.out


def test_refusal_tells_the_reason() -> None:
    script = (
        "from neutracer._native import core\n"
        "try:\n    core.tensor_prepare()\n"
        "except Exception as error:\n    print(type(error).__name__, error)\n"
        "assert core.tensor_facts([]) is None\n"
    )
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "torch has not been imported" in done.stdout


def test_modes_do_not_disturb_learning(with_torch: Imported) -> None:
    script = (
        "import torch\n"
        "from neutracer._native import core\n"
        "from torch._subclasses.fake_tensor import FakeTensorMode\n"
        "from torch.overrides import TorchFunctionMode\n"
        "class Refuse(TorchFunctionMode):\n"
        "    def __torch_function__(self, *a, **k):\n        raise AssertionError\n"
        "torch.set_default_dtype(torch.float64)\n"
        "with torch.device('meta'), torch.no_grad(), FakeTensorMode(), Refuse():\n"
        "    core.tensor_prepare()\n"
        "print(core.tensor_facts(torch.ones(2, 3, dtype=torch.int8))['storage_bytes'])\n"
    )
    done = with_torch.run(script)
    assert done.stdout == "6\n", done.stderr


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_cuda_tensors_read_as_told() -> None:
    base = torch.ones(64, 32, device="cuda")
    leaf = torch.ones(3, device="cuda", requires_grad=True)
    for tensor in (base, base[3:], base.t(), leaf, leaf * 2, torch.empty(0, device="cuda")):
        assert facts(tensor) == said(tensor)
    assert facts(base)["device_type"] == "cuda"
    assert facts(base)["storage_bytes"] == 64 * 32 * 4
