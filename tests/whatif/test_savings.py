# SPDX-License-Identifier: Apache-2.0
"""What changes would save, against programs where that can be counted."""

from __future__ import annotations

import json
from typing import Any

import pytest
from places import TESTS

import neutracer

DATA = str(TESTS / "data" / "train_resnet_healthy.pickle.xz")


def test_each_saving_is_what_the_peak_falls_by() -> None:
    report = neutracer.savings(DATA)
    assert report.savings
    for one in report.savings:
        assert one.saved_bytes == report.peak_reserved_bytes - one.peak_reserved_bytes > 0
        assert one.peak_allocated_bytes <= report.peak_allocated_bytes
    saved = [one.saved_bytes for one in report.savings]
    assert saved == sorted(saved, reverse=True)
    assert json.loads(json.dumps(report.to_dict()))["schema"] == "neutracer.savings/1"
    (best,) = report.findings
    assert best.bytes == report.savings[0].saved_bytes
    assert str(report).startswith(f"INFO     {report.savings[0].message}")


def test_more_ranks_save_more() -> None:
    torch = pytest.importorskip("torch")

    def program() -> object:
        model = torch.nn.Linear(4096, 4096, device="cuda")
        optimizer = torch.optim.Adam(model.parameters())

        def step() -> None:
            model(torch.randn(16, 4096, device="cuda")).sum().backward()
            optimizer.step()

        return step

    snap = neutracer.rehearse(program)
    few, many = (neutracer.savings(snap, ranks=ranks) for ranks in (2, 64))
    least = {one.kind: one.saved_bytes for one in few.savings}
    most = {one.kind: one.saved_bytes for one in many.savings}
    assert most["zero_3"] > least["zero_3"] > 90 << 20


def test_checkpointing_is_about_what_checkpointing_saves() -> None:
    torch = pytest.importorskip("torch")
    from torch.utils.checkpoint import checkpoint

    def program(again: bool) -> object:
        def make() -> object:
            blocks = torch.nn.ModuleList(
                torch.nn.Sequential(
                    torch.nn.Linear(256, 2048), torch.nn.GELU(), torch.nn.Linear(2048, 256)
                )
                for _ in range(12)
            ).cuda()

            def step() -> None:
                x = torch.randn(8192, 256, device="cuda", requires_grad=True)
                for block in blocks:
                    x = checkpoint(block, x, use_reentrant=False) if again else block(x)
                x.sum().backward()
                blocks.zero_grad()

            return step

        return make

    plain, again = (neutracer.rehearse(program(one), steps=2) for one in (False, True))  # type: ignore[arg-type]
    report = neutracer.savings(plain)
    told = next(one for one in report.savings if one.kind == "checkpointing")
    real = again.timeline().peak("allocated").bytes
    assert told.peak_allocated_bytes == pytest.approx(real, rel=0.2)


@pytest.mark.parametrize("ranks", [1, 0])
def test_one_rank_shards_nothing(ranks: int) -> None:
    with pytest.raises(ValueError, match="ranks"):
        neutracer.savings(DATA, ranks=ranks)


def test_freeing_at_the_last_use_is_ranked_with_the_others() -> None:
    torch = pytest.importorskip("torch")

    def program(is_edited: bool) -> object:
        def make() -> object:
            layers = [torch.nn.Linear(1024, 1024) for _ in range(6)]
            teacher = torch.nn.Sequential(*layers).cuda()
            student = torch.nn.Linear(1024, 1024).cuda()

            def step() -> None:
                batch = torch.randn(8192, 1024, device="cuda")
                with torch.set_grad_enabled(not is_edited):
                    soft = teacher(batch)
                torch.nn.functional.mse_loss(student(batch), soft.detach()).backward()

            return step

        return make

    report = neutracer.savings(neutracer.rehearse(program(False)))
    edited = neutracer.savings(neutracer.rehearse(program(True)))
    best = next(one for one in report.savings if one.kind == "last_use")
    assert "torch.no_grad()" in best.advice
    assert best.peak_allocated_bytes == pytest.approx(edited.peak_allocated_bytes, rel=0.01)


@pytest.mark.parametrize("is_kept", [False, True])
def test_what_no_graph_keeps_is_not_to_be_recomputed(is_kept: bool) -> None:
    torch = pytest.importorskip("torch")

    class Matcher(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            pairs = [(torch.nn.Linear(256, 2048), torch.nn.Linear(2048, 256)) for _ in range(4)]
            self.blocks = torch.nn.ModuleList(map(torch.nn.Sequential, *zip(*pairs, strict=True)))

        def forward(self, x: Any) -> Any:
            kept = []
            with torch.set_grad_enabled(is_kept):
                for wide, narrow in self.blocks:
                    kept += [middle := wide(x), x := narrow(middle.sin())]
                    # More events than what one operation makes lives for.
                    [x[:1].clone() for _ in range(20)]
            return sum(one.mean() for one in kept)

    def program() -> object:
        layer, matcher = torch.nn.Linear(64, 64).cuda(), Matcher().cuda()

        def step() -> None:
            cost = matcher(torch.randn(8192, 256, device="cuda", requires_grad=True))
            (layer(torch.randn(8, 64, device="cuda")).sum() + cost).backward()

        return step

    report = neutracer.savings(neutracer.rehearse(program, steps=3))
    kinds = {one.kind for one in report.savings}
    assert ("checkpointing" in kinds) is is_kept
