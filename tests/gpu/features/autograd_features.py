# SPDX-License-Identifier: Apache-2.0
"""Features of autograd: checkpointing, hooks, functions of one's own, errors in backward."""

from __future__ import annotations

import contextlib
import copy
import io
import pickle
import weakref
from typing import Any

import torch
from base import feature, model_of, train
from torch.utils.checkpoint import checkpoint, checkpoint_sequential, set_checkpoint_early_stop


@feature()
def checkpoint_reentrant(device: str) -> Any:
    model = model_of(device)
    return train(model, lambda x: checkpoint(model, x.requires_grad_(), use_reentrant=True), device)


@feature()
def checkpoint_early_stop(device: str) -> Any:
    model = model_of(device)
    with set_checkpoint_early_stop(True):
        return train(model, lambda x: checkpoint(model, x, use_reentrant=False), device)


@feature()
def checkpoint_without_early_stop(device: str) -> Any:
    model = model_of(device)
    with set_checkpoint_early_stop(False):
        return train(model, lambda x: checkpoint(model, x, use_reentrant=False), device)


@feature()
def checkpoint_nested(device: str) -> Any:
    model = model_of(device)

    def inner(x: torch.Tensor) -> Any:
        return checkpoint(model, x, use_reentrant=False)

    return train(model, lambda x: checkpoint(inner, x, use_reentrant=False), device)


@feature()
def checkpoint_in_sequence(device: str) -> Any:
    model = model_of(device)
    parts = list(model.children())
    return train(model, lambda x: checkpoint_sequential(parts, 3, x, use_reentrant=False), device)


@feature()
def checkpoint_without_rng_state(device: str) -> Any:
    model = model_of(device).eval()
    return train(
        model,
        lambda x: checkpoint(model, x, use_reentrant=False, preserve_rng_state=False),
        device,
    )


@feature()
def checkpoint_dropout_alone(device: str) -> Any:
    model = torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.Dropout(0.1)).to(device)
    found = []
    for _ in range(3):
        x = torch.randn(64, 512, device=device, requires_grad=True)
        checkpoint(model, x, use_reentrant=False).sum().backward()
        found.append(x.grad)
    return found


@feature()
def rng_state(device: str) -> Any:
    states = [torch.get_rng_state()]
    if device == "cuda":
        states.append(torch.cuda.get_rng_state())
    with torch.random.fork_rng():
        torch.manual_seed(5)
        forked = torch.randn(9, device=device)
    own = torch.Generator(device=device)
    own.manual_seed(3)
    return [
        states,
        forked,
        torch.randn(9, device=device),
        torch.rand(9, device=device, generator=own),
    ]


@feature()
def hooks_of_modules(device: str) -> Any:
    model, seen = model_of(device), []
    handles = [model[0].register_forward_pre_hook(lambda m, a: (a[0] * 2,))]  # type: ignore[index]
    handles.append(model[0].register_forward_hook(lambda m, a, out: out + 1))  # type: ignore[index]
    handles.append(
        model.register_full_backward_hook(lambda m, gi, go: seen.append(float(go[0].sum())))
    )
    found = train(model, model, device)
    for handle in handles:
        handle.remove()
    return [found, seen]


@feature()
def hooks_of_tensors(device: str) -> Any:
    x = torch.randn(8, 8, device=device, requires_grad=True)
    y = x * 2
    seen: list[Any] = []
    y.register_hook(lambda grad: grad * 3)
    y.register_hook(lambda grad: seen.append(grad))
    y.retain_grad()
    x.register_post_accumulate_grad_hook(lambda t: seen.append(t.grad))
    y.sum().backward()
    return [x.grad, y.grad, seen]


@feature()
def hooks_of_nodes_and_on_hooks(device: str) -> Any:
    x = torch.randn(8, device=device, requires_grad=True)
    y = x.exp()
    seen: list[Any] = []

    def hook(grad: torch.Tensor) -> torch.Tensor:
        # A hook that makes a graph with hooks of its own.
        z = torch.ones(4, device=device, requires_grad=True)
        with torch.enable_grad():
            w = z * 2
            w.register_hook(seen.append)
            w.sum().backward()
        assert z.grad is not None
        return grad * z.grad.sum()

    y.register_hook(hook)
    node = y.grad_fn
    assert node is not None
    node.register_prehook(lambda grads: (grads[0] * 2,))
    node.register_hook(lambda gin, gout: seen.append(gin[0]))
    y.sum().backward()
    return [x.grad, seen]


@feature()
def hooks_of_saved_tensors(device: str) -> Any:
    model, count = model_of(device), []

    def pack(x: torch.Tensor) -> tuple[torch.device, torch.Tensor]:
        count.append(x.numel())
        return x.device, x.cpu()

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda kept: kept[1].to(kept[0])):
        found = train(model, model, device)
    with torch.autograd.graph.save_on_cpu():
        return [found, count, train(model, model, device)]


@feature()
def hooks_of_saved_tensors_that_raise(device: str) -> Any:
    def pack(x: torch.Tensor) -> Any:
        raise KeyError("no room")

    found: list[Any] = []
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Dropout(0.5)).to(device)
    for _ in range(2):
        with (
            torch.autograd.graph.saved_tensors_hooks(pack, lambda kept: kept),
            contextlib.suppress(KeyError),
        ):
            found.append(model(torch.randn(4, 64, device=device)))
    return [found, "raised"]


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        ctx.mark_non_differentiable()
        return x**3

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return 3 * x**2 * grad


class Failing(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        raise ArithmeticError("backward failed")


@feature()
def function_of_ones_own(device: str) -> Any:
    x = torch.randn(16, device=device, requires_grad=True)
    (first,) = torch.autograd.grad(Cube.apply(x).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    return [first, second]


@feature()
def exception_in_backward(device: str) -> Any:
    found: list[Any] = []
    model = model_of(device)
    for _ in range(3):
        try:
            Failing.apply(model(torch.randn(8, 64, device=device))).sum().backward()
        except ArithmeticError as error:
            found.append(error)
    return [found, train(model, model, device)]


@feature()
def exception_in_backward_of_checkpoint(device: str) -> Any:
    model = model_of(device)
    calls: list[int] = []

    def forward(x: torch.Tensor) -> Any:
        calls.append(1)
        if len(calls) % 2 == 0:
            raise LookupError("not a second time")
        return model(x)

    found: list[Any] = []
    for _ in range(3):
        try:
            checkpoint(
                forward, torch.randn(8, 64, device=device), use_reentrant=False
            ).sum().backward()
        except LookupError as error:
            found.append(error)
    return [found, len(calls)]


@feature()
def exception_in_forward(device: str) -> Any:
    model, found = model_of(device), []
    for width in (64, 63, 64):
        try:
            found.append(model(torch.randn(8, width, device=device)))
        except RuntimeError as error:
            found.append(str(error))
    return found


@feature()
def anomaly_mode(device: str) -> Any:
    x = torch.zeros(4, device=device, requires_grad=True)
    with torch.autograd.set_detect_anomaly(True, check_nan=True):
        try:
            (torch.sqrt(x) * 0).sum().backward()
        except RuntimeError as error:
            return [type(error).__name__, "nan" in str(error)]
    return "nothing"


@feature()
def gradient_accumulation(device: str) -> Any:
    model = model_of(device)
    for _ in range(4):
        (model(torch.randn(8, 64, device=device)).mean() / 4).backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    return [norm, [p.grad for p in model.parameters()]]


@feature()
def gradient_modes(device: str) -> Any:
    model = model_of(device)
    with torch.no_grad():
        first = model(torch.ones(4, 64, device=device))
    with torch.inference_mode():
        second = model(torch.ones(4, 64, device=device))
        flags = [second.is_inference(), torch.is_grad_enabled()]
    return [first, second.clone(), flags, train(model, model, device)]


@feature()
def functional_transforms(device: str) -> Any:
    from torch.func import functional_call, grad, hessian, jvp, vmap

    model = model_of(device).eval()
    parameters = {name: p.detach() for name, p in model.named_parameters()}
    x = torch.randn(6, 64, device=device)

    def loss(p: Any, one: torch.Tensor) -> Any:
        return functional_call(model, p, (one,)).square().sum()

    each = vmap(grad(loss), in_dims=(None, 0))(parameters, x)
    second = hessian(lambda y: (y**3).sum())(x[0, :5])
    return [each, second, jvp(torch.sin, (x,), (x,))]


@feature()
def copies_of_models(device: str) -> Any:
    model = model_of(device)
    train(model, model, device, steps=1)
    again = pickle.loads(pickle.dumps(model))
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    third = copy.deepcopy(model)
    third.load_state_dict(torch.load(file, weights_only=True))
    return [train(one, one, device) for one in (model, again, third)]


@feature()
def finalizers(device: str) -> Any:
    gone: list[int] = []
    for number in range(5):
        x = torch.randn(32, device=device)
        weakref.finalize(x, gone.append, number)
        del x

    class Holder:
        def __init__(self) -> None:
            self.me = self
            self.x = torch.ones(9, device=device)

        def __del__(self) -> None:
            gone.append(int(self.x.sum()))

    import gc

    Holder()
    gc.collect()
    return gone
