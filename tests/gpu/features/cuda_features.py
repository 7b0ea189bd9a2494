# SPDX-License-Identifier: Apache-2.0
"""Features that only a CUDA device has: graphs, streams, pools, exchange with processes."""

from __future__ import annotations

from typing import Any

import torch
from base import feature, model_of, train

MIB = 1 << 20


@feature(cuda=True)
def cuda_graph(device: str) -> Any:
    model = model_of(device).eval()
    x = torch.zeros(8, 64, device=device)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side), torch.no_grad():
        for _ in range(3):
            model(x)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph), torch.no_grad():
        out = model(x)
    found = []
    for number in range(5):
        x.fill_(number)
        graph.replay()
        found.append(out.clone())
    return found


@feature(cuda=True)
def cuda_graph_of_training(device: str) -> Any:
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Dropout(0.2)).to(device)
    called = torch.cuda.make_graphed_callables(model, (torch.randn(16, 64, device=device),))
    return train(model, called, device)


@feature(cuda=True)
def cuda_graph_that_fails(device: str) -> Any:
    graph = torch.cuda.CUDAGraph()
    x = torch.ones(8, device=device)
    try:
        with torch.cuda.graph(graph):
            (x + 1).sum().item()
    except RuntimeError as error:
        torch.cuda.synchronize()
        return [type(error).__name__, x + 1]
    return None


@feature(cuda=True)
def streams_and_events(device: str) -> Any:
    streams = [torch.cuda.Stream() for _ in range(3)]
    done = []
    x = torch.ones(1 << 20, device=device)
    begin = torch.cuda.Event(enable_timing=True)
    begin.record()
    for number, stream in enumerate(streams):
        stream.wait_event(begin)
        with torch.cuda.stream(stream):
            y = x * number
            x.record_stream(stream)
            total = y.sum()
            event = torch.cuda.Event()
            event.record()
            done.append((event, total))
    del x
    for event, _ in done:
        event.synchronize()
    return [total for _, total in done]


@feature(cuda=True)
def pools_of_ones_own(device: str) -> Any:
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        x = torch.ones(4 * MIB, device=device)
    y = x * 2
    total = y.sum()
    del x, y
    del pool
    torch.cuda.empty_cache()
    return total


@feature(cuda=True)
def pinned_memory(device: str) -> Any:
    x = torch.arange(1 << 16).pin_memory()
    y = x.to(device, non_blocking=True)
    z = torch.empty_like(x).pin_memory()
    z.copy_(y + 1, non_blocking=True)
    torch.cuda.synchronize()
    return [z, x.is_pinned()]


@feature(cuda=True)
def figures_of_memory(device: str) -> Any:
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    begin = torch.cuda.memory_allocated()
    x = torch.empty(8 * MIB, dtype=torch.uint8, device=device)
    grown = torch.cuda.memory_allocated() - begin
    del x
    return [grown, torch.cuda.max_memory_allocated() - begin, torch.cuda.memory_allocated() - begin]


@feature(cuda=True)
def out_of_memory_caught(device: str) -> Any:
    found: list[Any] = []
    size = 1 << 40
    while size > MIB:
        try:
            x = torch.empty(size, dtype=torch.uint8, device=device)
            found.append(x.numel())
            break
        except torch.cuda.OutOfMemoryError as error:
            found.append(error)
            size //= 1 << 18
    torch.cuda.empty_cache()
    return found


@feature(cuda=True)
def out_of_memory_in_backward(device: str) -> Any:
    class Large(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * 1

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> Any:
            return torch.empty(1 << 42, dtype=torch.uint8, device=device)

    x = torch.ones(4, device=device, requires_grad=True)
    try:
        Large.apply(x).sum().backward()
    except torch.cuda.OutOfMemoryError as error:
        return [error, x * 2]
    return None


@feature(cuda=True)
def out_of_memory_under_a_fraction(device: str) -> Any:
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(0).total_memory
    held = torch.cuda.memory_reserved()
    torch.cuda.set_per_process_memory_fraction((held + 256 * MIB) / total)
    kept, failed = [], 0
    try:
        for _ in range(20):
            kept.append(torch.empty(32 * MIB, dtype=torch.uint8, device=device))
    except torch.cuda.OutOfMemoryError:
        failed = 1
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    return [len(kept) > 5, failed]


def _receive(given: Any, back: Any) -> None:
    x = given.get()
    back.put(float(x.sum()))
    del x


@feature(cuda=True)
def tensors_sent_to_processes(device: str) -> Any:
    import torch.multiprocessing as processes

    context = processes.get_context("spawn")
    given, back = context.Queue(), context.Queue()
    child = context.Process(target=_receive, args=(given, back))
    child.start()
    x = torch.ones(1000, device=device)
    given.put(x)
    told = back.get(timeout=90)
    child.join()
    return [told, child.exitcode]


@feature(cuda=True)
def histories_of_the_program(device: str) -> Any:
    memory = torch.cuda.memory
    was = torch._C._cuda_isHistoryEnabled()
    if not was:
        memory._record_memory_history(max_entries=1000, stacks="python", context="alloc")
    x = torch.ones(1000, device=device)
    traces = memory._snapshot()["device_traces"][0]
    found = any(event["action"] == "alloc" for event in traces)
    if not was:
        memory._record_memory_history(enabled=None)
    return [found, x.sum()]
