# SPDX-License-Identifier: Apache-2.0
"""Features of PyTorch beside autograd: precision, optimizers, modules, kinds of tensors."""

from __future__ import annotations

import copy
from typing import Any

import torch
from base import feature, model_of, train
from torch.nn import functional


@feature()
def mixed_precision(device: str) -> Any:
    model = model_of(device)

    def forward(x: torch.Tensor) -> Any:
        with torch.autocast(device, dtype=torch.bfloat16):
            return model(x).float()

    return train(model, forward, device)


@feature()
def gradient_scaler(device: str) -> Any:
    model = model_of(device)
    optimizer = torch.optim.Adam(model.parameters(), foreach=True)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**20, growth_interval=2)
    scales = []
    for step in range(5):
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.float16 if device == "cuda" else torch.bfloat16):
            loss = model(torch.randn(8, 64, device=device)).float().square().mean()
        scaled = scaler.scale(loss * (float("inf") if step == 2 else 1.0))
        scaled.backward()
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
    return [scales, [p.detach() for p in model.parameters()]]


@feature()
def optimizers(device: str) -> Any:
    found = []
    kinds: list[tuple[Any, dict[str, Any]]] = [
        (torch.optim.AdamW, {"foreach": True}),
        (torch.optim.AdamW, {"fused": True}),
        (torch.optim.SGD, {"momentum": 0.9, "foreach": False}),
        (torch.optim.Adagrad, {}),
        (torch.optim.RMSprop, {"centered": True}),
    ]
    for kind, options in kinds:
        model = model_of(device)
        optimizer = kind(model.parameters(), lr=0.01, **options)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 4)
        for _ in range(3):
            optimizer.zero_grad(set_to_none=True)
            model(torch.ones(4, 64, device=device)).square().mean().backward()
            optimizer.step()
            schedule.step()
        optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        found.append([p.detach() for p in model.parameters()])
    return found


@feature()
def closures_of_lbfgs(device: str) -> Any:
    model = torch.nn.Linear(8, 1).to(device)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4)
    x = torch.randn(16, 8, device=device)

    def closure() -> Any:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        return loss

    return [optimizer.step(closure) for _ in range(3)]


@feature()
def optimizer_in_backward(device: str) -> Any:
    model = model_of(device)
    kept = {p: torch.optim.SGD([p], lr=0.1) for p in model.parameters()}

    def hook(p: torch.Tensor) -> None:
        kept[p].step()
        kept[p].zero_grad()

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(hook)
    for _ in range(3):
        model(torch.ones(4, 64, device=device)).square().mean().backward()
    return [p.detach() for p in model.parameters()]


@feature()
def moving_average(device: str) -> Any:
    from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

    model = model_of(device)
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    for _ in range(3):
        train(model, model, device, steps=1)
        average.update_parameters(model)
    return [p.detach() for p in average.parameters()]


@feature()
def attention(device: str) -> Any:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    found = []
    kinds = [SDPBackend.MATH]
    if device == "cuda":
        kinds += [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION]
    for kind in kinds:
        dtype = torch.float16 if device == "cuda" else torch.float32
        q = torch.randn(2, 2, 64, 32, device=device, dtype=dtype, requires_grad=True)
        with sdpa_kernel(kind):
            out = functional.scaled_dot_product_attention(q, q, q, is_causal=True)
        found.append(out)
    torch.manual_seed(1)
    layer = torch.nn.TransformerEncoderLayer(64, 4, 128, batch_first=True).to(device)
    return [found, train(layer, lambda x: layer(x[None])[0], device, steps=2)]


@feature()
def recurrent(device: str) -> Any:
    model = torch.nn.LSTM(64, 32, num_layers=2, dropout=0.2, batch_first=True).to(device)
    return train(model, lambda x: model(x[None])[0], device)


@feature()
def convolutions(device: str) -> Any:
    model = torch.nn.Sequential(
        torch.nn.Conv2d(1, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ReLU(), torch.nn.MaxPool2d(2)
    ).to(device)
    return train(model, lambda x: model(x.reshape(16, 1, 8, 8)), device)


@feature()
def sparse_tensors(device: str) -> Any:
    table = torch.nn.Embedding(100, 8, sparse=True).to(device)
    optimizer = torch.optim.SparseAdam(table.parameters(), lr=0.01)
    for _ in range(3):
        optimizer.zero_grad()
        table(torch.arange(10, device=device)).sum().backward()
        optimizer.step()
    matrix = torch.eye(8, device=device).to_sparse()
    return [table.weight.detach(), torch.sparse.mm(matrix, torch.ones(8, 3, device=device)), matrix]


@feature()
def nested_tensors(device: str) -> Any:
    parts = [torch.randn(n, 8, device=device) for n in (3, 5, 2)]
    nested = torch.nested.nested_tensor(parts, layout=torch.jagged, requires_grad=True)
    out = functional.relu(nested * 2)
    torch.cat([one.flatten() for one in out.unbind()]).sum().backward()
    return [list(out.unbind()), torch.nested.to_padded_tensor(out, 0.0)]


@feature()
def subclasses_and_modes(device: str) -> Any:
    from torch.utils._python_dispatch import TorchDispatchMode

    names: list[str] = []

    class Named(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            names.append(str(func))
            return func(*args, **(kwargs or {}))

    class Mine(torch.Tensor):
        pass

    with Named():
        x = torch.ones(4, device=device)
        y = x.as_subclass(Mine) * 2
    return [y.as_subclass(torch.Tensor), type(y).__name__, names]


@feature()
def parametrisations(device: str) -> Any:
    from torch.nn.utils.parametrizations import orthogonal, weight_norm

    model = weight_norm(torch.nn.Linear(64, 64)).to(device)
    other = orthogonal(torch.nn.Linear(8, 8)).to(device)
    return [train(model, model, device), other(torch.ones(2, 8, device=device))]


@feature()
def jit_of_a_script(device: str) -> Any:
    model = model_of(device).eval()
    traced = torch.jit.trace(model, torch.ones(2, 64, device=device))
    frozen = torch.jit.freeze(traced)
    x = torch.randn(4, 64, device=device)
    return [traced(x), frozen(x)]


@feature()
def exchange_by_dlpack(device: str) -> Any:
    x = torch.arange(12.0, device=device)
    y = torch.from_dlpack(x)
    y += 1
    z = torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(x))
    same = x.data_ptr() == y.data_ptr() == z.data_ptr()
    del x
    return [y, z, same]


@feature()
def torch_profiler(device: str) -> Any:
    from torch.profiler import ProfilerActivity, profile, record_function, schedule

    model, traces = model_of(device), []
    activities = [ProfilerActivity.CPU]
    activities += [ProfilerActivity.CUDA] if device == "cuda" else []
    with profile(
        activities=activities,
        schedule=schedule(wait=0, warmup=1, active=2),
        profile_memory=True,
        on_trace_ready=lambda p: traces.append(len(p.events()) > 0),
    ) as prof:
        for _ in range(3):
            with record_function("step"):
                found = train(model, model, device, steps=1)
            prof.step()
    kernels = device != "cuda" or any(str(e.device_type).endswith("CUDA") for e in prof.events())
    return [found, traces, kernels]


@feature()
def record_ranges(device: str) -> Any:
    model = model_of(device)
    with torch.autograd.profiler.profile() as prof:
        found = train(model, model, device)
    return [found, any("Optimizer.step" in e.name for e in prof.function_events)]


@feature()
def resized_and_shared_storage(device: str) -> Any:
    x = torch.arange(64.0, device=device)
    y = x.view(8, 8)[2:4].t()
    x.resize_(128)
    x.untyped_storage().resize_(64 * 4)
    z = torch.empty(0, device=device).set_(x.untyped_storage(), 0, (64,))
    z.fill_(3)
    return [y, z, x.untyped_storage().nbytes()]
