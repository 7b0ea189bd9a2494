# SPDX-License-Identifier: Apache-2.0
"""Random programs on the CPU, recorded with uses, then run with poison behind each last use.

    poison_runs.py SEED,COUNT,EARLY...

runs with poison.c preloaded, and prints a line for each of its words: how many programs ran, how
many blocks were overwritten, and the seeds of programs whose results were others. Blocks are
overwritten EARLY requests too early.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import math
import sys
import threading
import time
from array import array
from collections.abc import Callable, Iterator
from itertools import count, islice
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

import torch

import neutracer
from neutracer.hooks import shim
from tests.rehearsal.test_poison import SIDE, Program

library = ctypes.CDLL(None)
MOST = 65536

#: Programs in one recording.
_BATCH = 30


def addresses() -> array[int]:
    """Ends the counting of calls."""
    found, overwritten = array("Q", bytes(8 * MOST)), ctypes.c_size_t()
    library.poison_end.restype = ctypes.c_size_t
    calls = library.poison_end(ctypes.c_void_p(found.buffer_info()[0]), ctypes.byref(overwritten))
    addresses.overwritten = overwritten.value  # type: ignore[attr-defined]
    return found[:calls]


def begin(ends: list[int]) -> None:
    known = array("q", ends)
    library.poison_begin(ctypes.c_void_p(known.buffer_info()[0]), ctypes.c_size_t(len(known)))


# ---- Programs: beside those of rehearsals, what a device would see only ------------------------


def threaded(p: Any) -> None:
    value = p.any()
    is_watched = p.choose.random() < 0.5

    def work() -> None:
        if is_watched:
            shim.watch_thread()
        p.add(torch.tanh(value.detach()) * 2)
        if is_watched:
            shim.unwatch_thread()

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


def failing(p: Any) -> None:
    with contextlib.suppress(RuntimeError):
        torch.mm(p.any(), torch.ones(SIDE + 1, 2))


def pointed(p: Any) -> None:
    """Read through a pointer, after others were made."""
    value = p.any().detach().clone()
    pointer, other = value.data_ptr(), p.any().detach() * 2
    p.add(other)
    text = ctypes.string_at(pointer, value.untyped_storage().nbytes())
    p.add(torch.frombuffer(bytearray(text), dtype=torch.float32).reshape(SIDE, SIDE) * 1)


def as_array(p: Any) -> None:
    value = p.any().detach().clone()
    seen = value.numpy()
    p.add(p.any().detach() * 2)
    p.add(torch.tensor(seen.tolist()))


def adam(p: Any) -> None:
    if p.optimizer is None:
        p.optimizer = torch.optim.AdamW(p.leaves, lr=0.01, foreach=True)
    p.optimizer.step()


def modules(p: Any) -> None:
    value = p.any()
    kind = p.choose.randrange(5)
    if kind == 0:
        p.add(torch.nn.functional.layer_norm(value, (SIDE,)))
    elif kind == 1:
        p.add(torch.nn.functional.batch_norm(value, None, None, training=True))
    elif kind == 2:
        batch = value.reshape(1, 1, SIDE, SIDE)
        p.add(torch.nn.functional.conv2d(batch, batch[..., :3, :3], padding=1)[0, 0])
    elif kind == 3:
        heads = value.reshape(1, 1, SIDE, SIDE)
        p.add(torch.nn.functional.scaled_dot_product_attention(heads, heads, heads)[0, 0])
    else:
        targets = torch.arange(SIDE)
        loss = torch.nn.functional.cross_entropy(value, targets)
        p.add(loss.expand(SIDE, SIDE) * 1)


def indexed(p: Any) -> None:
    value = p.any()
    rows = torch.argsort(value.detach()[:, 0])
    p.add(value[rows], value.index_select(0, rows).masked_fill(value.detach() > 1, 0.5))


def sparse(p: Any) -> None:
    found = p.any().detach().to_sparse()
    p.add(p.any().detach() * 2)
    p.add(torch.sparse.mm(found, p.any().detach()))


def sparse_rows(p: Any) -> None:
    found = p.any().detach().to_sparse_csr()
    p.add(p.any().detach() * 2)
    p.add(found @ p.any().detach())


def resized(p: Any) -> None:
    target = torch.empty(0)
    torch.sin(p.any().detach(), out=target)
    p.add(target, torch.einsum("ij,jk->ik", target, p.any()))


def number(p: Any) -> None:
    p.add(p.any() * p.any().detach().mean().item() * 0.5)


def vectorised(p: Any) -> None:
    p.add(torch.func.vmap(torch.sin)(p.any().detach()))


def gradient_of(p: Any) -> None:
    p.add(torch.func.grad(lambda x: (x.sin() * x).sum())(p.any().detach()))


OTHERS: tuple[Callable[[Any], None], ...] = (
    *(threaded, failing, pointed, as_array, adam, modules, modules, modules, indexed, sparse),
    *(sparse_rows, resized, number, vectorised, gradient_of),
)


class WithOthers(Program):
    """The same, with these steps among them."""

    def any(self) -> Any:
        value = super().any()
        if self.choose.random() < 0.1 and not self.is_inside:
            self.is_inside = True
            self.choose.choice(OTHERS)(self)
            self.is_inside = False
        return value

    is_inside = False


# ---- Runs --------------------------------------------------------------------------------------


def last_uses(snap: Any) -> list[tuple[int, int]]:
    """By request its address and the number of requests at its last use; -1: unknown."""
    timeline = snap.timeline(0)
    rows = timeline.allocations
    found = {
        event: (at, last)
        for event, at, last in zip(
            rows.codes("alloc_event"),
            rows.codes("address"),
            rows.codes("last_use_event"),
            strict=True,
        )
    }
    requests = [event for event, code in enumerate(timeline.events.codes("action")) if code == 0]
    number = {event: at for at, event in enumerate(requests)}
    return [(found[event][0], number.get(found[event][1], -1)) for event in requests]


def ends_of(calls: array[int], requests: list[tuple[int, int]], early: int) -> list[int] | None:
    """By call the one before which its block is used for the last time; -1: unknown."""
    places, at = [], 0
    for address, _ in requests:
        while at < len(calls) and calls[at] != address:
            at += 1
        if at == len(calls):
            return None
        places.append(at)
        at += 1
    ends = [-1] * len(calls)
    for request, (_, last) in enumerate(requests):
        following = max(last - early, request) + 1
        if last >= 0 and following < len(places):
            ends[places[request]] = places[following]
    return ends


def finite(seeds: Iterator[int]) -> Iterator[tuple[Any, Any]]:
    """Programs that run, and what they come to: in others poison would not show."""
    for seed in seeds:
        program = WithOthers(seed)
        try:
            plain = program("cpu")
        except RuntimeError:
            continue
        if all(math.isfinite(one) for value in plain for one in memoryview(value).cast("f")):
            yield program, plain


def observed() -> int:
    return len(shim.load().uses_now(0)) // 16


def recorded(batch: list[tuple[Any, Any]]) -> Iterator[tuple[Any, Any, Any, Any]]:
    """Each program, its results, its calls, and its requests' last uses within it."""
    spans = []
    with neutracer.record(uses=True) as recording:
        for program, _ in batch:
            first = observed()
            begin([])
            program("cpu")
            spans.append((first, addresses(), observed()))
    requests = last_uses(recording.snapshot())
    before = len(requests) - spans[-1][2]
    for (program, plain), (first, calls, end) in zip(batch, spans, strict=True):
        own = requests[first + before : end + before]
        yield program, plain, calls, [(at, max(last - first - before, -1)) for at, last in own]


def main(first: int, wanted: int, early: int) -> None:
    begun = time.perf_counter()
    skipped = overwritten = 0
    bad = []
    programs = finite(count(first))
    for at in range(0, wanted, _BATCH):
        for program, plain, calls, requests in recorded(
            list(islice(programs, min(_BATCH, wanted - at)))
        ):
            ends = ends_of(calls, requests, early)
            if ends is None:
                skipped += 1
                continue
            begin(ends)
            try:
                results = program("cpu")
            except Exception:
                results = []
            addresses()
            overwritten += addresses.overwritten  # type: ignore[attr-defined]
            if results != plain:
                bad.append(program.seed)
        gc.collect()
    facts = {"ran": wanted - skipped, "overwritten": overwritten, "bad": bad}
    print(json.dumps({**facts, "seconds": round(time.perf_counter() - begun, 1)}))


if __name__ == "__main__":
    torch.set_num_threads(1)
    gc.disable()
    for word in sys.argv[1:]:
        main(*map(int, word.split(",")))
