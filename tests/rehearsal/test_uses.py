# SPDX-License-Identifier: Apache-2.0
"""First and last uses of allocations, as a rehearsal observes them."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from used_tensors import written

import neutracer

torch = pytest.importorskip("torch", reason="needs torch, which is not installed here")

MIB = 1 << 20


def floats(mib: int) -> Any:
    return torch.empty(mib << 18, device="cuda")


def uses_of(step: Callable[[], Any], **options: Any) -> dict[int, tuple[int, int]]:
    """By size in MiB, the first and the last use as numbers of requests, the first being 0; a
    program gives each tensor a size of its own, and `floats(1)` marks points in time."""
    snap = neutracer.rehearse(step, steps=1, device="H100", **options)
    rows = snap.timeline().allocations
    number = {row.alloc_event: at for at, row in enumerate(rows)} | {-1: -1, -2: -2}
    return {
        row.size // MIB: (number[row.first_use_event], number[row.last_use_event])
        for row in rows
        if row.size > MIB
    }


def test_a_read_is_a_use_and_the_making_is_none() -> None:
    def step() -> None:
        read, unread = floats(2), floats(3)  # 0, 1
        mark = floats(1)  # 2
        read[:8].exp()  # 3
        mark = floats(1)  # 4
        del read, unread, mark

    assert uses_of(step) == {2: (3, 3), 3: (-1, 1)}


def test_uses_through_views_count_and_views_alone_do_not() -> None:
    def step() -> None:
        seen, shown = floats(2), floats(3)  # 0, 1
        view = seen.view(2, -1)[1]
        mark = floats(1)  # 2
        shown.detach().reshape(4, -1).t()
        torch.zeros_like(shown[: 1 << 18])  # 3
        mark = view[:8].exp()  # 4
        del mark

    assert uses_of(step) == {2: (4, 4), 3: (-1, 1)}


def test_writes_in_place_and_into_out_are_uses() -> None:
    assert uses_of(lambda: written(floats)) == {2: (2, 2), 3: (3, 3)}


def test_lists_of_tensors_are_uses() -> None:
    def step() -> None:
        one, other = floats(2), floats(3)  # 0, 1
        mark = floats(1)  # 2
        torch._foreach_mul_([one, other], 2.0)
        mark = floats(1)  # 3
        del mark

    assert uses_of(step) == {2: (2, 2), 3: (2, 2)}


def test_backward_uses_what_forward_saved() -> None:
    def step() -> None:
        weight = floats(2).requires_grad_()  # 0
        squared = weight.exp()  # 1: saves its result
        squared.sum().backward()  # The sum; the gradients of the sum and of exp.

    snap = neutracer.rehearse(step, steps=1, device="H100")
    rows = [row for row in snap.timeline().allocations if row.size == 2 * MIB]
    weight, squared, gradient = rows
    assert weight.last_use_event == squared.alloc_event
    assert squared.last_use_event >= gradient.alloc_event


def test_checkpointing_uses_inputs_again() -> None:
    from torch.utils.checkpoint import checkpoint

    def step() -> None:
        entry = floats(2).requires_grad_()
        out = checkpoint(lambda x: x.exp().sin().cos(), entry, use_reentrant=False)
        out.sum().backward()

    snap = neutracer.rehearse(step, steps=1, device="H100")
    rows = [row for row in snap.timeline().allocations if row.size == 2 * MIB]
    # Made again from the input, after the whole forward pass.
    again = rows[4]
    assert rows[0].last_use_event >= again.alloc_event
    assert rows[1].last_use_event < again.alloc_event


def test_optimizers_use_parameters_gradients_and_state() -> None:
    def program() -> Any:
        model = torch.nn.Linear(1024, 1024, bias=False, device="cuda")
        optimizer = torch.optim.AdamW(model.parameters())
        kept.append(optimizer)

        def step() -> None:
            model(torch.ones(8, 1024, device="cuda")).sum().backward()
            optimizer.step()

        return step

    kept: list[Any] = []
    snap = neutracer.rehearse(program, steps=2, device="H100")
    timeline = snap.timeline()
    rows = [row for row in timeline.allocations if row.size == 4 * MIB and row.free_event == -1]
    assert len(rows) == 4  # The weight, its gradient and Adam's two averages.
    assert min(row.last_use_event for row in rows) > timeline.steps[1].first


@pytest.mark.parametrize("strategy", ["ddp", "fsdp2"])
def test_each_byte_of_a_distributed_model_is_used(strategy: str) -> None:
    def step(model: Any, optimizer: Any) -> None:
        model(torch.ones(8, 1024, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    model = torch.nn.Sequential(*(torch.nn.Linear(1024, 1024) for _ in range(2)))
    optimizer = torch.optim.SGD(model.parameters(), momentum=0.9)
    options: dict[str, Any] = {"world_size": 2, "strategy": strategy}
    snap = neutracer.rehearse(step, model, optimizer, steps=2, device="H100", **options)
    timeline = snap.timeline()
    begin = timeline.steps[1].first
    kept = [row for row in timeline.allocations if row.free_event == -1 and row.size >= MIB]
    assert kept
    assert all(row.last_use_event >= begin or row.last_use_event == -2 for row in kept)


def test_memory_behind_a_pointer_is_unknown() -> None:
    def step() -> None:
        one = floats(2)
        one.data_ptr()
        one.sum()

    assert uses_of(step) == {2: (-2, -2)}


def test_a_rehearsal_out_of_memory_keeps_the_uses_so_far() -> None:
    def step() -> None:
        one, other = floats(20), floats(30)  # 0, 1
        one[:8].exp()  # 2
        big = floats(400)
        other[:8].exp()
        big.sum()

    snap = neutracer.rehearse(step, steps=1, device="H100", capacity="200MiB")
    rows = snap.timeline().allocations
    assert snap.events[-1].action == "oom"
    first, second, third = list(rows)[:3]
    assert first.last_use_event == third.alloc_event
    # Behind the failure.
    assert second.first_use_event == len(snap.events) - 1


def test_uses_stay_with_the_snapshot(tmp_path: Path) -> None:
    snap = neutracer.rehearse(lambda: floats(2).exp().sum(), steps=3, device="H100")
    expected = list(snap.timeline().allocations["last_use_event"])
    assert len(set(expected)) > 1
    for name in ("a.pickle", "a.pickle.gz"):
        snap.save(tmp_path / name)
        again = neutracer.load(tmp_path / name)
        assert list(again.timeline().allocations["last_use_event"]) == expected
        assert pickle.loads((tmp_path / name).read_bytes()) if name == "a.pickle" else True
    copied = copy.deepcopy(snap)
    assert list(copied.timeline().allocations["last_use_event"]) == expected
    # The requests are the same ones under other settings.
    other = neutracer.what_if(snap, "expandable_segments:True")
    trace = other["expandable_segments:True"].snapshot().timeline()
    columns = [list(t.allocations["last_use_event"]) for t in (snap.timeline(), trace)]
    made = [list(t.allocations["alloc_event"]) for t in (snap.timeline(), trace)]
    ordinals = [
        [m.index(event) if event in m else event for event in c]
        for c, m in zip(columns, made, strict=True)
    ]
    assert ordinals[0] == ordinals[1]


def test_a_part_and_a_recording_have_no_such_columns(tmp_path: Path) -> None:
    snap = neutracer.rehearse(lambda: floats(2).exp().sum(), steps=3, device="H100")
    snap.save(tmp_path / "whole.pickle")
    count = len(snap.timeline())
    part = neutracer.load(tmp_path / "whole.pickle", events=(2, count))
    snap.save(tmp_path / "part.pickle", events=(2, count))
    for one in (part, neutracer.load(tmp_path / "part.pickle")):
        assert "first_use_event" not in one.timeline().allocations.columns
        assert one.rehearsed == snap.rehearsed
    recorded = neutracer.load("tests/data/frag_default.pickle").timeline()
    assert "last_use_event" not in recorded.allocations.columns


@pytest.mark.parametrize(
    "text", ["", "0", "0:", "0:!", "0:AAAA", "0:eJwDAAAAAAE=", "1:eJwDAAAAAAE="]
)
def test_damaged_uses_are_none(text: str) -> None:
    snap = neutracer.rehearse(lambda: floats(2).exp().sum(), steps=1, device="H100")
    plain = snap.to_dict()
    plain["allocator_settings"]["trace_uses"] = text
    again = neutracer.load(pickle.dumps(plain))
    assert "first_use_event" not in again.timeline().allocations.columns


def test_uses_take_few_bytes() -> None:
    def program() -> Any:
        model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(20))).cuda()
        optimizer = torch.optim.AdamW(model.parameters())

        def step() -> None:
            model(torch.randn(8, 64, device="cuda")).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

        return step

    snap = neutracer.rehearse(program, steps=4, device="H100")
    assert len(snap.settings["trace_uses"]) <= 12 * len(snap.timeline().allocations)
