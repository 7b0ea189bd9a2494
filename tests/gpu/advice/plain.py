# SPDX-License-Identifier: Apache-2.0
"""Programs of plain PyTorch that run out of memory, each for a known reason."""

from __future__ import annotations

import copy
import functools
import gc
import random
import threading
from typing import Any

from gpu.advice.job import Job, mlp, program, tensor


def train_step(torch: Any, model: Any, optimizer: Any, batch: Any) -> Any:
    """One step of training; the loss, with its graph gone."""
    optimizer.zero_grad()
    loss = model(batch).square().mean()
    loss.backward()
    optimizer.step()
    return loss


def adam(torch: Any, model: Any) -> Any:
    return torch.optim.Adam(model.parameters(), lr=1e-4)


def rows(torch: Any, job: Job, count: int, width: int = 1024) -> Any:
    """A batch of so many rows."""
    return torch.randn(job.size(count), width, device="cuda")


# ---- leaks -------------------------------------------------------------------------------


def keep_loss(job: Job, kept: list[Any], value: Any) -> None:
    scaled = value * 1.0
    kept.append(scaled.detach().cpu() if job.lets_go("keep_loss", "graph_of") else scaled)


def graph_of(model: Any, batch: Any) -> Any:
    return model(batch).square()


@program("release", sort="leak", cap=600)
def losses_kept_with_their_graph(torch: Any, job: Job) -> None:
    model = mlp(torch)
    optimizer, kept = adam(torch, model), []
    for _ in job.steps():
        train_step(torch, model, optimizer, rows(torch, job, 1024))
        if job.lets_go("keep_loss", "graph_of", "losses_kept_with_their_graph"):
            kept.append(graph_of(model, rows(torch, job, 512)).mean().item())
        else:
            keep_loss(job, kept, graph_of(model, rows(torch, job, 512)).mean())


def remember(job: Job, kept: list[Any], output: Any) -> None:
    copied = output.detach().clone()
    kept.append(copied.cpu() if job.lets_go("remember") else copied)


@program("release", sort="leak")
def outputs_kept_detached(torch: Any, job: Job) -> None:
    model = mlp(torch)
    optimizer, kept = adam(torch, model), []
    for _ in job.steps():
        batch = rows(torch, job, 4096)
        train_step(torch, model, optimizer, batch)
        with torch.no_grad():
            remember(job, kept, model(batch))


def add_up(job: Job, total: Any, loss: Any) -> Any:
    return total + (loss.detach() if job.lets_go("add_up", "forward_of") else loss)


def forward_of(model: Any, batch: Any) -> Any:
    return model(batch).square().mean()


@program("release", sort="leak")
def total_loss_with_its_graph(torch: Any, job: Job) -> None:
    model = mlp(torch)
    optimizer, total = adam(torch, model), torch.zeros((), device="cuda")
    for _ in job.steps():
        batch = rows(torch, job, 1024)
        optimizer.zero_grad()
        loss = forward_of(model, batch)
        total = add_up(job, total, loss)
        loss.backward(retain_graph=not job.takes("release"))
        optimizer.step()


def cell_step(torch: Any, cell: Any, batch: Any, state: Any) -> Any:
    return cell(batch, state)


@program("release", sort="leak")
def hidden_state_never_detached(torch: Any, job: Job) -> None:
    cell = torch.nn.GRUCell(512, 1024, device="cuda")
    optimizer = adam(torch, cell)
    state = torch.zeros(job.size(1024), 1024, device="cuda")
    losses = torch.zeros((), device="cuda")
    lets_go = job.lets_go("cell_step", "hidden_state_never_detached")
    for number in job.steps():
        state = cell_step(torch, cell, rows(torch, job, 1024, 512), state)
        if lets_go or number % 40 == 39:
            losses = state.square().mean()
            losses.backward()
            optimizer.step()
            optimizer.zero_grad()
            state = state.detach()


def store_activation(job: Job, kept: list[Any], module: Any, output: Any) -> None:
    copied = output.detach().half()
    if not job.lets_go("store_activation"):
        kept.append(copied)


@program("release", sort="leak", cap=1100)
def forward_hook_that_stores(torch: Any, job: Job) -> None:
    model = mlp(torch)
    optimizer, kept = adam(torch, model), []
    for module in model:
        if isinstance(module, torch.nn.ReLU):
            module.register_forward_hook(
                lambda module, _, output: store_activation(job, kept, module, output)
            )
    for _ in job.steps():
        train_step(torch, model, optimizer, rows(torch, job, 2048))


def join(torch: Any, job: Job, seen: Any, new: Any) -> Any:
    if job.lets_go("join"):
        return new
    return new if seen is None else torch.cat([seen, new])


@program("release", sort="growing cache", cap=1400)
def predictions_joined(torch: Any, job: Job) -> None:
    model = mlp(torch)
    optimizer, seen = adam(torch, model), None
    for _ in job.steps():
        batch = rows(torch, job, 4096)
        train_step(torch, model, optimizer, batch)
        with torch.no_grad():
            seen = join(torch, job, seen, model(batch))


@functools.cache
def cached_mask(length: int) -> Any:
    return make_mask(length)


def make_mask(length: int) -> Any:
    import torch

    return torch.ones(length, length, device="cuda")


@program("release", sort="growing cache")
def masks_cached_by_length(torch: Any, job: Job) -> None:
    cached_mask.cache_clear()
    model = mlp(torch, 512)
    optimizer = adam(torch, model)
    make = make_mask if job.lets_go("make_mask", "cached_mask") else cached_mask
    for number in job.steps():
        length = 2048 + 8 * number
        batch = torch.randn(job.size(length), 512, device="cuda")
        mask = make(length)[: batch.shape[0], : batch.shape[0]]
        train_step(torch, model, optimizer, mask @ batch)


def keep_gradients(job: Job, kept: list[Any], model: Any) -> None:
    if not job.lets_go("keep_gradients"):
        kept.append([each.grad.clone() for each in model.parameters()])


@program("release", sort="leak")
def gradients_kept_every_third_step(torch: Any, job: Job) -> None:
    model = mlp(torch, 2048)
    optimizer, kept = torch.optim.SGD(model.parameters(), lr=1e-3), []
    for number in job.steps():
        train_step(torch, model, optimizer, rows(torch, job, 256, 2048))
        if number % 3 == 2:
            keep_gradients(job, kept, model)


def keep_best(job: Job, kept: list[Any], model: Any) -> None:
    if job.lets_go("keep_best"):
        return
    kept.append(copy.deepcopy(model))


@program("release", sort="checkpoint saving")
def best_models_kept_on_the_device(torch: Any, job: Job) -> None:
    model = mlp(torch, 2048)
    optimizer, kept = adam(torch, model), []
    for number in job.steps():
        train_step(torch, model, optimizer, rows(torch, job, 256, 2048))
        if number % 5 == 4:
            keep_best(job, kept, model)


def penalty(torch: Any, job: Job, model: Any, batch: Any) -> None:
    loss = model(batch).square().mean()
    if job.lets_go("penalty"):
        found = torch.autograd.grad(loss, list(model.parameters()), create_graph=True)
        sum(each.square().sum() for each in found).backward()
        return
    loss.backward(create_graph=True)
    sum(each.grad.square().sum() for each in model.parameters()).backward()


@program("release", sort="leak")
def gradient_penalty_with_create_graph(torch: Any, job: Job) -> None:
    gc.disable()
    for _ in job.steps():
        model = mlp(torch, 1024, 3)
        penalty(torch, job, model, rows(torch, job, 1024))


class Node:
    """What refers to itself, and to what it holds."""

    def __init__(self, value: Any) -> None:
        self.value, self.itself = value, self


@program("break_cycles", sort="garbage")
def results_in_cycles(torch: Any, job: Job) -> None:
    gc.disable()
    model = mlp(torch)
    optimizer = adam(torch, model)
    for _ in job.steps():
        batch = rows(torch, job, 4096)
        train_step(torch, model, optimizer, batch)
        node = Node(batch * 2)
        if job.takes("break_cycles"):
            node.itself = None
        del node


@program("break_cycles", sort="garbage")
def trainer_objects_in_cycles(torch: Any, job: Job) -> None:
    gc.disable()
    for _ in job.steps():
        model = mlp(torch, 1024, 3)
        owner = Node(model)
        model.owner = owner
        train_step(torch, model, adam(torch, model), rows(torch, job, 512))
        if job.takes("break_cycles"):
            owner.itself = owner.value = None
            model.owner = None
        del model, owner


def put(job: Job, queue: list[Any], batch: Any) -> None:
    moved = batch.to("cuda", non_blocking=True)
    queue.append(moved if not job.lets_go("put") else None)


@program("release", sort="queue")
def prefetcher_without_a_bound(torch: Any, job: Job) -> None:
    model = mlp(torch)
    optimizer, queue = adam(torch, model), []
    host = torch.randn(2048, 1024)
    for _ in job.steps():
        for _ in range(3):
            put(job, queue, host)
        batch = queue.pop(0)
        train_step(torch, model, optimizer, host.cuda() if batch is None else batch)


# ---- steps that need more than the ones before ----------------------------------------------


@program("smaller_step", "checkpoint", sort="longer batch", cap=700)
def one_batch_is_longer(torch: Any, job: Job) -> None:
    model = mlp(torch, 1024, 8)
    optimizer = adam(torch, model)
    for number in job.steps():
        count = 2048 + 64 * (number % 7) if number != 30 else 12_000
        train_step(torch, model, optimizer, rows(torch, job, count))


@program("smaller_step", sort="longer batch", cap=900)
def lengths_rise_with_the_curriculum(torch: Any, job: Job) -> None:
    model = mlp(torch, 1024, 8)
    optimizer = adam(torch, model)
    for number in job.steps():
        train_step(torch, model, optimizer, rows(torch, job, 512 + 256 * number))


@program("smaller_step", sort="capacity", cap=700)
def batch_too_large_from_the_start(torch: Any, job: Job) -> None:
    model = mlp(torch, 1024, 12)
    optimizer = adam(torch, model)
    for _ in job.steps():
        train_step(torch, model, optimizer, rows(torch, job, 16_384))


@program("smaller_step", "shard_state", sort="capacity", cap=600)
def no_room_for_the_optimizer(torch: Any, job: Job) -> None:
    model = mlp(torch, 2048, 10)
    kind = torch.optim.SGD if job.takes("shard_state") else torch.optim.Adam
    optimizer = kind(model.parameters(), lr=1e-4)
    for _ in job.steps():
        train_step(torch, model, optimizer, rows(torch, job, 1024, 2048))


@program("no_grad", "release", sort="evaluation after training", cap=900)
def evaluation_keeps_graphs(torch: Any, job: Job) -> None:
    model = mlp(torch, 1024, 8)
    optimizer = adam(torch, model)
    outputs: list[Any] = []
    for number in job.steps():
        if number < 20:
            train_step(torch, model, optimizer, rows(torch, job, 1024))
            continue
        evaluate(torch, job, model, outputs, rows(torch, job, 1024))


def evaluate(torch: Any, job: Job, model: Any, outputs: list[Any], batch: Any) -> None:
    with torch.set_grad_enabled(not (job.takes("no_grad") or job.takes("release"))):
        outputs.append(model(batch).square().mean())


@program("release", sort="evaluation after training", cap=900)
def evaluation_collects_logits(torch: Any, job: Job) -> None:
    model = mlp(torch, 1024, 8)
    optimizer = adam(torch, model)
    logits: list[Any] = []
    for number in job.steps():
        if number < 20:
            train_step(torch, model, optimizer, rows(torch, job, 2048))
            continue
        with torch.no_grad():
            collect(job, logits, model(rows(torch, job, 8192)))


def collect(job: Job, logits: list[Any], output: Any) -> None:
    best = output.softmax(-1)
    logits.append(best.cpu() if job.lets_go("collect") else best)


@program("release", sort="checkpoint saving", cap=760)
def state_copied_on_the_device(torch: Any, job: Job) -> None:
    model = mlp(torch, 2048, 8)
    optimizer = adam(torch, model)
    for number in job.steps():
        train_step(torch, model, optimizer, rows(torch, job, 1024, 2048))
        if number == 25:
            save_state(job, model, optimizer)


def save_state(job: Job, model: Any, optimizer: Any) -> Any:
    lets_go = job.lets_go("save_state", "copied")
    parts = [model.state_dict(), optimizer.state_dict()]
    return [copied(part, "cpu" if lets_go else "cuda") for part in parts]


def copied(state: Any, device: str) -> Any:
    if hasattr(state, "clone"):
        return state.to(device, copy=True)
    if isinstance(state, dict):
        return {name: copied(each, device) for name, each in state.items()}
    return state


@program("release", sort="loading", cap=900)
def weights_loaded_twice(torch: Any, job: Job) -> None:
    names = {f"layer{number}": torch.randn(2048, 2048) for number in range(40)}
    loaded = read_weights(job, names)
    model = build(torch, 40)
    for (_, weight), layer in zip(loaded.items(), model, strict=True):
        layer.weight.data.copy_(weight)
    del loaded
    with torch.no_grad():
        for _ in job.steps():
            model(torch.randn(256, 2048, device="cuda"))


def read_weights(job: Job, names: dict[str, Any]) -> dict[str, Any]:
    lets_go = job.lets_go("read_weights")
    return {name: each if lets_go else each.cuda() for name, each in names.items()}


def build(torch: Any, count: int) -> Any:
    layers = [torch.nn.Linear(2048, 2048, bias=False, device="cuda") for _ in range(count)]
    return torch.nn.Sequential(*layers)


@program(sort="nothing helps", cap=600)
def model_larger_than_the_card(torch: Any, job: Job) -> None:
    model = build(torch, 60)
    for _ in job.steps():
        model(torch.randn(256, 2048, device="cuda"))


@program("smaller_step", sort="two models", cap=800)
def teacher_and_student(torch: Any, job: Job) -> None:
    teacher, student = mlp(torch, 2048, 8), mlp(torch, 2048, 6)
    optimizer = adam(torch, student)
    for _ in job.steps():
        batch = rows(torch, job, 6144, 2048)
        with torch.no_grad():
            wanted = teacher(batch)
        optimizer.zero_grad()
        (student(batch) - wanted).square().mean().backward()
        optimizer.step()


@program("shape", sort="shape", cap=2000)
def all_pairs(torch: Any, job: Job) -> None:
    points = torch.randn(400_000, 8, device="cuda")
    for _ in job.steps():
        nearest(torch, job, points)


def nearest(torch: Any, job: Job, points: Any) -> Any:
    part = points[:1000] if job.takes("shape") else points
    return torch.cdist(part, part).argmin(-1)


# ---- fragmentation -------------------------------------------------------------------------


@program("settings", sort="fragmentation", cap=1000)
def lengths_vary_at_random(torch: Any, job: Job) -> None:
    chance = random.Random(3)
    model = mlp(torch, 1024, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    for _ in job.steps():
        train_step(torch, model, optimizer, rows(torch, job, chance.randrange(2000, 17_000)))


@program("settings", sort="fragmentation", cap=420)
def scratch_between_keepers(torch: Any, job: Job) -> None:
    chance = random.Random(7)
    kept: list[Any] = []
    for number in job.steps():
        scratch = [tensor(torch, 22 + chance.randrange(8)) for _ in range(3)]
        if len(kept) >= 12:
            del kept[chance.randrange(12)]
        kept.append(tensor(torch, 11 + chance.randrange(3)))
        del scratch
        tensor(torch, 120 + number)


@program("settings", sort="fragmentation", cap=520)
def caches_of_growing_requests(torch: Any, job: Job) -> None:
    chance = random.Random(11)
    live: list[Any] = []
    for number in job.steps():
        for _ in range(20):
            if len(live) >= 10:
                live.pop(chance.randrange(len(live)))
            live.append(tensor(torch, chance.choice((11, 23, 37, 58)) + number * 0.4))


def keep_a_little(job: Job, kept: list[Any], value: Any) -> None:
    small = value.mean(dim=0, keepdim=True).expand(1200, -1).contiguous()
    if not job.lets_go("keep_a_little"):
        kept.append(small)


@program("release", sort="mixture", cap=1100)
def fragmented_and_leaking(torch: Any, job: Job) -> None:
    chance = random.Random(5)
    model = mlp(torch, 1024, 8)
    optimizer, kept = torch.optim.SGD(model.parameters(), lr=1e-4), []
    for _ in job.steps():
        batch = rows(torch, job, chance.randrange(4000, 7000))
        train_step(torch, model, optimizer, batch)
        for _ in range(2):
            keep_a_little(job, kept, batch)


@program("release", sort="mixture", cap=1200)
def leak_and_garbage(torch: Any, job: Job) -> None:
    gc.disable()
    model = mlp(torch, 1024, 6)
    optimizer, kept = adam(torch, model), []
    for number in job.steps():
        batch = rows(torch, job, 2048)
        train_step(torch, model, optimizer, batch)
        keep_a_little(job, kept, batch)
        keep_a_little(job, kept, batch)
        keep_a_little(job, kept, batch)
        if number % 8 == 0:
            Node(batch.clone())


# ---- limits, streams, pools ------------------------------------------------------------------


@program("raise_limit", sort="fraction", cap=700, is_limit=True)
def fraction_too_low(torch: Any, job: Job) -> None:
    model = mlp(torch, 1024, 12)
    optimizer = adam(torch, model)
    for _ in job.steps():
        train_step(torch, model, optimizer, rows(torch, job, 10_000))


@program("release", sort="fraction", cap=900, is_limit=True)
def leak_under_a_fraction(torch: Any, job: Job) -> None:
    model = mlp(torch)
    optimizer, kept = adam(torch, model), []
    for _ in job.steps():
        batch = rows(torch, job, 4096)
        train_step(torch, model, optimizer, batch)
        remember(job, kept, batch)


@program("share_pools", "release", sort="graphs", cap=900)
def graphs_with_pools_of_their_own(torch: Any, job: Job) -> None:
    model = mlp(torch)
    pool = None
    graphs: list[Any] = []
    for number in job.steps():
        static = torch.zeros(1024 + 128 * number, 1024, device="cuda")
        graph = torch.cuda.CUDAGraph()
        with torch.no_grad():
            model(static)
            with torch.cuda.graph(graph, pool=pool):
                model(static)
        if job.takes("share_pools") or job.takes("release"):
            pool = graph.pool()
        graphs.append(graph)


@program("release", sort="threads")
def worker_thread_hoards(torch: Any, job: Job) -> None:
    hoard: list[Any] = []

    failed: list[Exception] = []

    def work() -> None:
        try:
            for _ in range(2):
                hoard_one(torch, job, hoard)
        except torch.OutOfMemoryError as error:
            failed.append(error)

    model = mlp(torch)
    optimizer = adam(torch, model)
    for _ in job.steps():
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        if failed:
            raise failed[0]
        train_step(torch, model, optimizer, rows(torch, job, 1024))


def hoard_one(torch: Any, job: Job, hoard: list[Any]) -> None:
    new = tensor(torch, 14)
    if not job.lets_go("hoard_one"):
        hoard.append(new)


@program("release", sort="decoding", cap=500)
def cache_of_keys_by_hand(torch: Any, job: Job) -> None:
    job.total = 2000
    layers = 8
    caches: list[Any] = [None] * layers
    weight = torch.randn(1024, 1024, device="cuda")
    with torch.no_grad():
        new = torch.randn(16, 1, 1024, device="cuda")
        for _ in job.steps():
            for layer in range(layers):
                caches[layer] = extend(torch, job, caches[layer], new)
            new = torch.tanh(new @ weight)


def extend(torch: Any, job: Job, cache: Any, new: Any) -> Any:
    if cache is None:
        return new
    if job.lets_go("extend") and cache.shape[1] >= 100:
        cache = cache[:, 1:]
    return torch.cat([cache, new], dim=1)
