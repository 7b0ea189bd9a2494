# SPDX-License-Identifier: Apache-2.0
"""Programs rehearsed on cards that are not there, on whatever machine this is."""

from __future__ import annotations

import io
import json
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from forked import Imported

import neutracer
from neutracer.rehearsal.cards import find_card
from neutracer.rehearsal.rehearse import search

torch = pytest.importorskip("torch", reason="needs torch, which is not installed here")

from neutracer.rehearsal.requests import sentence  # noqa: E402

MIB = 1 << 20


def linear(size: int = 1024, batch: int = 64) -> Any:
    """A program of one layer, of which every byte can be counted."""

    def program() -> Any:
        model = torch.nn.Linear(size, size, bias=False, device="cuda")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step() -> None:
            model(torch.randn(batch, size, device="cuda")).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

        return step

    return program


def test_every_byte_of_a_small_program() -> None:
    snap = neutracer.rehearse(linear(), steps=2, device="H100")
    sizes = [event.size for event in snap.events if event.action == "alloc"]
    weight, activation, workspace = 4 * 1024 * 1024, 4 * 64 * 1024, 4096 * 8 * 1024
    assert sizes[0] == weight
    # Input, output, cuBLAS's workspace, the sum, its gradient, and the weight's gradient.
    assert sizes[1:4] == [activation, activation, workspace]
    assert sizes.count(weight) == 3
    # cuBLAS keeps one workspace for the program's thread and one for autograd's.
    assert sizes.count(workspace) == 2
    assert snap.history_complete()
    assert not snap.flaws


def test_threads_are_rehearsed_too() -> None:
    def program() -> Any:
        kept: list[Any] = []

        def work(size: int) -> None:
            for _ in range(20):
                kept.append(torch.zeros(size * MIB, dtype=torch.uint8, device="cuda"))

        def step() -> None:
            threads = [threading.Thread(target=work, args=(size,)) for size in (3, 5)]
            for thread in threads:
                thread.start()
            with ThreadPoolExecutor(1) as pool:
                pool.submit(work, 7).result()
            for thread in threads:
                thread.join()

        return step

    snap = neutracer.rehearse(program, steps=1, device="H100")
    sizes = [event.size for event in snap.events if event.action == "alloc"]
    assert [sizes.count(size * MIB) for size in (3, 5, 7)] == [20, 20, 20]
    assert not snap.flaws
    assert threading.Thread.start.__module__ == "threading"


def test_the_card_and_its_capability_decide_the_workspace() -> None:
    snap = neutracer.rehearse(linear(), steps=1, device="RTX 4090")
    sizes = {event.size for event in snap.events if event.action == "alloc"}
    assert (4096 * 2 + 16 * 8) * 1024 in sizes
    assert snap.rehearsed.device == "NVIDIA GeForce RTX 4090"
    assert snap.rehearsed.torch == torch.__version__


def test_stacks_are_the_program_s() -> None:
    snap = neutracer.rehearse(linear(), steps=1)
    first = next(event for event in snap.events if event.action == "alloc")
    assert first.stack[0].name == "__init__"
    assert any(frame.name == "program" for frame in first.stack)
    assert not any("neutracer/rehearsal" in frame.filename for frame in first.stack)
    assert not any("fake_tensor" in frame.filename for frame in first.stack)


def test_steps_are_named() -> None:
    snap = neutracer.rehearse(linear(), steps=3)
    assert [one.name for one in snap.annotations if one.stage == "START"] == [
        "step 0",
        "step 1",
        "step 2",
    ]
    assert len(snap.timeline().steps) == 3


def test_running_out_of_memory_is_in_the_snapshot() -> None:
    snap = neutracer.rehearse(linear(), steps=2, capacity="64MiB")
    assert snap.events[-1].action == "oom"
    assert not snap.rehearsed.fits()
    assert snap.rehearsed.fits("1GiB")
    why = neutracer.explain(snap)
    assert why.verdicts
    assert "Rehearsed, not recorded" in str(why)
    assert "needs: the least memory for PyTorch in which every request succeeds." in str(why)
    # The device is the one that was given: nothing of it is others', or unknown.
    assert (why.bill.limit_bytes, why.bill.limit_is) == (64 * MIB, "device")
    left = 64 * MIB - snap.memory_stats()["reserved_bytes.all.current"]
    assert snap.events[-1].device_free == why.device_free_bytes == left
    assert "capacity" not in str(why).partition("Out of memory")[2]


def test_a_request_that_no_device_serves_fails_in_the_program() -> None:
    said = []

    def step() -> None:
        kept = torch.empty(MIB, dtype=torch.uint8, device="cuda")
        try:
            torch.empty(2**48 + 1, device="cuda")
        except torch.OutOfMemoryError as error:
            said.append(str(error))
        del kept

    snap = neutracer.rehearse(step, steps=1, capacity="1GiB")
    assert "Tried to allocate 1048576.00 GiB" in said[0]
    assert "1.00 GiB of which 1.00 GiB is free" in said[0]
    assert snap.rehearsed.needed_bytes == 4 * (2**48 + 1) + MIB
    assert not snap.rehearsed.fits()
    assert any("more memory than any device has" in note for note in snap.rehearsed.notes)


def test_requests_add_up_to_more_than_a_device_has() -> None:
    def step() -> None:
        for _ in range(9):
            torch.empty(2**45, dtype=torch.uint8, device="cuda")
        torch.cuda.empty_cache()

    snap = neutracer.rehearse(step, steps=2, capacity=2**46)
    assert snap.rehearsed.needed_bytes == 2**45
    assert [event.action for event in snap.events].count("segment_free") == 2
    assert not snap.flaws


def test_a_device_that_is_not_there_is_refused_as_by_cuda() -> None:
    def step() -> None:
        for use in (
            lambda: torch.empty(3, device="cuda:9"),
            lambda: torch.ones(3).to("cuda:9"),
            lambda: torch.cuda.set_device(9),
            lambda: torch.cuda.memory_allocated("cuda:9"),
            lambda: torch.cuda.device(9).__enter__(),
            lambda: torch.cuda.Stream(9),
            lambda: torch.cuda.Stream(device="cuda:9"),
        ):
            with pytest.raises(torch.AcceleratorError, match="invalid device ordinal"):
                use()
        with torch.cuda.device(0):
            assert torch.empty(3, device="cuda").device.index == 0
        assert torch.cuda.current_device() == 0
        assert torch.cuda.device_count() == 1

    neutracer.rehearse(step, steps=1)


def test_needed_is_the_least_that_goes() -> None:
    rehearsed = neutracer.rehearse(linear(), steps=2).rehearsed
    least = rehearsed.needed_bytes
    for capacity, fits in ((least, True), (least - 2 * MIB, False)):
        again = neutracer.rehearse(linear(), steps=2, capacity=capacity)
        assert ("oom" in list(again.events["action"])) is not fits


def test_it_is_marked_in_every_report_and_when_it_was_saved(tmp_path: Path) -> None:
    snap = neutracer.rehearse(linear(), steps=2)
    snap.save(tmp_path / "rehearsed.pickle.gz")
    again = neutracer.load(tmp_path / "rehearsed.pickle.gz")
    assert again.rehearsed == snap.rehearsed
    for report in (
        neutracer.fragmentation_report(again),
        neutracer.what_if(again, "expandable_segments:True"),
        neutracer.what_if(again),
        neutracer.diff(again, again),
        neutracer.explain(again, request="1GiB", capacity="1GiB"),
    ):
        assert "Rehearsed, not recorded" in str(report)
        assert report.findings[0].kind == "rehearsed"
    assert str(neutracer.report(again)).startswith("INFO     Rehearsed, not recorded: ")
    other = neutracer.what_if(again, "expandable_segments:True")[
        "expandable_segments:True"
    ].snapshot()
    assert other.rehearsed == snap.rehearsed


def test_it_is_marked_in_every_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    snap = neutracer.rehearse(linear(), steps=2)
    for draw in (neutracer.mdtp, neutracer.plot_timeline, neutracer.plot_fragmentation):
        figure = draw(snap)
        words = [text.get_text() for text in figure.findobj(match=lambda a: hasattr(a, "get_text"))]
        assert any(word.startswith("rehearsed: ") for word in words), draw.__name__
    neutracer.view(snap, tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert "<title>rehearsed: " in page
    assert "Rehearsed, not recorded" in page


def test_figures_are_ranges_wherever_they_are_told() -> None:
    rehearsed = neutracer.rehearse(linear(), steps=2).rehearsed
    for name in ("peak_allocated_bytes", "peak_reserved_bytes", "needed_bytes"):
        low, high = rehearsed.ranges[name]
        assert 0 < low < high
    assert rehearsed.ranges["peak_allocated_bytes"][0] <= rehearsed.ranges["peak_reserved_bytes"][0]
    assert " to " in rehearsed.caveat().message


def test_no_more_is_reserved_than_there_is() -> None:
    def program() -> Any:
        kept = [torch.empty(MIB * n, dtype=torch.uint8, device="cuda") for n in (30, 40, 50)]

        def step() -> None:
            for n in (60, 70, 80):
                torch.empty(MIB * n, dtype=torch.uint8, device="cuda")
            kept[0].add_(1)

        return step

    free = neutracer.rehearse(program, steps=1).rehearsed
    rehearsed = neutracer.rehearse(program, steps=1, capacity="260MiB").rehearsed
    assert free.ranges["peak_reserved_bytes"][1] > 260 * MIB
    assert rehearsed.ranges["peak_reserved_bytes"][1] == 260 * MIB
    assert rehearsed.ranges["needed_bytes"][0] >= rehearsed.ranges["peak_allocated_bytes"][0]


@pytest.mark.parametrize(
    ("capacity", "verdict"),
    [(10, "it does not fit: it needs"), (20, "it may or may not fit"), (30, "it fits, and needs")],
)
def test_the_verdict_is_as_sure_as_the_range(capacity: int, verdict: str) -> None:
    told = neutracer.trace.flaws.Rehearsed(
        "a card", capacity, 20, 1, "", "", {"needed_bytes": (15, 25)}
    )
    assert verdict in told.caveat().message


def test_what_is_no_mark_counts_as_nothing_known() -> None:
    plain = neutracer.rehearse(linear(), steps=1).to_dict()
    plain["allocator_settings"]["rehearsed"] = "[1]"
    snap = neutracer.load(pickle.dumps(plain))
    assert snap.rehearsed.device == "an unknown card"
    del plain["allocator_settings"]["rehearsed"]
    assert neutracer.load(pickle.dumps(plain)).rehearsed is None


def test_models_and_optimizers_can_be_given() -> None:
    model = torch.nn.Linear(512, 512)
    optimizer = torch.optim.Adam(model.parameters())
    batch = torch.randn(16, 512)

    def step(model: Any, optimizer: Any, batch: Any) -> None:
        assert batch.device.type == "cuda"
        model(batch).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    before = model.weight.clone()
    snap = neutracer.rehearse(step, model, optimizer, batch, steps=2)
    assert torch.equal(model.weight, before)
    assert model.weight.grad is None
    assert not optimizer.state
    # The weight, two states of Adam, and a gradient a step.
    sizes = [event.size for event in snap.events if event.action == "alloc"]
    assert sizes.count(4 * 512 * 512) >= 5


def test_the_process_is_left_as_it_was() -> None:
    names = ("is_available", "device_count", "empty_cache", "Stream", "current_stream")
    before = [getattr(torch.cuda, name) for name in names]
    state = torch.random.get_rng_state()
    neutracer.rehearse(linear(), steps=1)
    assert [getattr(torch.cuda, name) for name in names] == before
    assert torch.equal(torch.random.get_rng_state(), state)
    x = torch.ones(3, requires_grad=True)
    (x * 2).sum().backward()
    assert x.grad.tolist() == [2, 2, 2]
    if not torch.cuda.is_available():
        with pytest.raises((AssertionError, RuntimeError, NotImplementedError)):
            torch.zeros(3, device="cuda")


def test_values_that_a_program_makes_itself_are_known() -> None:
    seen = []

    def step() -> None:
        mask = torch.arange(10, device="cuda") > 6
        seen.append((mask.sum().item(), mask.nonzero().shape, bool(mask.any())))
        seen.append(torch.tensor([3.5], device="cuda").cpu().numpy().tolist())

    snap = neutracer.rehearse(step, steps=1)
    assert seen == [(3, (3, 1), True), [3.5]]
    assert snap.rehearsed.notes == ()


def test_values_that_nobody_knows_are_made_up_and_noted() -> None:
    def step() -> None:
        x = torch.randn(4096, 4096, device="cuda")
        if x.sum().item() > 0:
            torch.empty(100, device="cuda")
        x[x > 0].sum()

    rehearsed = neutracer.rehearse(step, steps=1).rehearsed
    assert any("test_rehearse.py" in note and "value" in note for note in rehearsed.notes)
    assert any("shape" in note for note in rehearsed.notes)


@pytest.mark.parametrize("size", [1, 512])
def test_numbers_are_sound(size: int) -> None:
    """A program that looks for NaN and infinity finds none, in small tensors and in large ones."""
    answers: list[tuple[bool, ...]] = []

    def step() -> None:
        x = torch.randn(1000, size, device="cuda")
        bad = torch.isnan(x) | torch.isinf(x)
        answers.append(
            (
                bool(torch.isfinite(x.sum())),
                bool(torch.isfinite(x).all()),
                bool((~bad).all()),
                len(x[torch.isfinite(x)]) == x.numel(),
                not bad.any(),
                not torch.isnan(x).sum().item(),
                not x.sum().isinf().item(),
            )
        )

    neutracer.rehearse(step, steps=1)
    assert answers == [(True,) * 7]


def test_tokens_go_evenly_to_experts() -> None:
    counts = []

    def step() -> None:
        scores = torch.randn(16384, 8, device="cuda").softmax(-1)
        _, chosen = scores.topk(2, -1)
        for expert in range(8):
            rows, _ = torch.where(chosen == expert)
            counts.append(rows.numel())

    neutracer.rehearse(step, steps=1)
    assert counts == [4096] * 8


@pytest.mark.parametrize("mode", ["LSTM", "GRU", "RNN"])
def test_recurrent_networks(mode: str) -> None:
    def program() -> Any:
        net = getattr(torch.nn, mode)(64, 128, 2, batch_first=True).cuda()

        def step() -> None:
            net(torch.randn(8, 20, 64, device="cuda"))[0].sum().backward()
            assert all(p.grad is not None and p.grad.shape == p.shape for p in net.parameters())

        return step

    assert len(neutracer.rehearse(program, steps=1).events)


def test_recurrent_networks_take_batches_in_any_order() -> None:
    seen = {}

    def step() -> None:
        for first in (False, True):
            net = torch.nn.GRU(64, 128, batch_first=first, bidirectional=True).cuda()
            out, _ = net(torch.randn(8, 20, 64, device="cuda", requires_grad=True))
            seen[first] = (tuple(out.shape), out.is_contiguous())
            out.sum().backward()

    rehearsed = neutracer.rehearse(step, steps=1).rehearsed
    # cuDNN writes step by step, whatever the program's order is.
    assert seen == {False: ((8, 20, 256), True), True: ((8, 20, 256), False)}
    low, high = rehearsed.ranges["peak_allocated_bytes"]
    assert low < high


def test_autocast_narrows_recurrent_networks() -> None:
    kinds = []

    def program() -> Any:
        net = torch.nn.LSTM(64, 128, 2, dropout=0.1).cuda()

        def step() -> None:
            with torch.autocast("cuda", torch.float16):
                out, _ = net(torch.randn(20, 8, 64, device="cuda"))
            kinds.append(out.dtype)
            out.float().sum().backward()
            kinds.append(net.weight_hh_l0.grad.dtype)

        return step

    neutracer.rehearse(program, steps=1)
    assert kinds == [torch.float16, torch.float32]


def test_packed_sequences() -> None:
    seen: list[Any] = []

    def step() -> None:
        lengths = torch.tensor([20, 13, 13, 5])
        x = torch.randn(4, 20, 32, device="cuda", requires_grad=True)
        pack, pad = torch.nn.utils.rnn.pack_padded_sequence, torch.nn.utils.rnn.pad_packed_sequence
        packed = pack(x, lengths, batch_first=True)
        seen.append((packed.data.shape, packed.batch_sizes.tolist()))
        net = torch.nn.LSTM(32, 16, batch_first=True).cuda()
        out, back = pad(net(packed)[0], batch_first=True)
        seen.append((out.shape, back.tolist()))
        out.sum().backward()
        seen.append(x.grad.shape)

    snap = neutracer.rehearse(step, steps=1)
    counts = [4] * 5 + [3] * 8 + [1] * 7
    assert seen == [((51, 32), counts), ((4, 20, 16), [20, 13, 13, 5]), (4, 20, 32)]
    assert snap.rehearsed.notes == ()


def test_optimizers_and_clipping_use_operators_on_lists() -> None:
    """As on a card by default: all square roots at once, of every parameter."""

    def program(**options: Any) -> Any:
        def build() -> Any:
            layers = [torch.nn.Linear(1024, 1024, bias=False, device="cuda") for _ in range(4)]
            model = torch.nn.Sequential(*layers)
            optimizer = torch.optim.AdamW(model.parameters(), **options)

            def step() -> None:
                model(torch.randn(8, 1024, device="cuda")).sum().backward()
                optimizer.step()

            return step

        return build

    peaks = [
        neutracer.rehearse(program(**options), steps=2).timeline().peak("allocated").bytes
        for options in ({}, {"foreach": True}, {"foreach": False}, {"fused": True})
    ]
    assert peaks[0] == peaks[1]
    # All four square roots; or one, its quotient, and the one before.
    assert peaks[0] - peaks[2] == (4 - 3) * 4 * MIB
    assert peaks[3] < peaks[2]


@pytest.mark.parametrize("hooked", [False, True])
def test_gradients_that_meet_are_added_in_place(hooked: bool) -> None:
    def program() -> Any:
        layers = [torch.nn.Linear(1024, 1024, device="cuda") for _ in range(2)]
        x = torch.randn(1024, 1024, device="cuda")

        def step() -> None:
            both = x.clone().requires_grad_() * 2
            if hooked:
                both.register_hook(lambda gradient: gradient + x)
            (layers[0](both) + layers[1](both)).sum().backward()

        return step

    events = neutracer.rehearse(program, steps=1).events
    made = sum(event.action == "alloc" and event.size == 4 * MIB for event in events)
    # Weights, x, its clone and twice that, two products and their sum. Then gradients: of the
    # inputs, of the weights, and of the clone; the second input's is added to the first one's.
    # What the program adds itself is new memory.
    assert made == (2 + 1 + 2 + 3) + (2 + 2 + 1) + hooked


def test_cells_and_fused_optimizers() -> None:
    def program() -> Any:
        cells = torch.nn.ModuleList([torch.nn.LSTMCell(32, 64), torch.nn.GRUCell(32, 64)]).cuda()
        optimizer = torch.optim.SGD(cells.parameters(), lr=0.1, momentum=0.9, fused=True)

        def step() -> None:
            x = torch.randn(8, 32, device="cuda")
            (cells[0](x)[0] + cells[1](x)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

        return step

    assert len(neutracer.rehearse(program, steps=2).events)


def test_a_program_that_fails_is_kept_until_there() -> None:
    def step() -> None:
        torch.zeros(1 << 20, device="cuda")
        raise ValueError("too few heads")

    with pytest.raises(neutracer.RehearsalError, match="too few heads") as caught:
        neutracer.rehearse(step)
    assert "test_rehearse.py" in caught.value.reason
    assert caught.value.snapshot.timeline().peak("allocated").bytes == 4 * MIB


def test_an_operator_without_a_fake_kernel_is_named() -> None:
    library = torch.library.Library("neutracer_test", "FRAGMENT")
    library.define("odd(Tensor x) -> Tensor")

    def step() -> None:
        torch.ops.neutracer_test.odd(torch.zeros(8, device="cuda"))

    with pytest.raises(neutracer.RehearsalError, match="odd"):
        neutracer.rehearse(step)
    library._destroy()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"device": "Voodoo 2"}, "unknown card 'Voodoo 2'"),
        ({"steps": 0}, "steps is 0"),
        ({"strategy": "magic"}, "a strategy is"),
        ({"settings": "nonsense:1"}, "unknown key"),
        ({"capacity": "much"}, "not a size"),
        ({"capacity": 0}, "above 0 bytes"),
    ],
)
def test_wrong_arguments(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        neutracer.rehearse(linear(), **wrong)


def test_cards_by_parts_of_their_names() -> None:
    assert find_card("a100").total_bytes > 79 << 30
    assert find_card("A100 40GB").total_bytes < 40 << 30
    assert find_card("a100-40gb") is find_card("A100 40GB")
    assert find_card("L4").capability == (8, 9)
    assert find_card("L4").processors == 58
    assert find_card("rtx 4090").processors == 128
    assert find_card("4090").processors == 128
    assert find_card("H100 80GB") is find_card("H100")
    assert find_card("A100 SXM").processors == 108


@pytest.mark.parametrize("name", ["40", "90", "00", "80GB", "40gb", "rtx", "a", "4", "", " "])
def test_a_number_or_a_letter_is_no_card(name: str) -> None:
    with pytest.raises(ValueError, match="unknown card"):
        find_card(name)


def test_the_mark_is_plain_data() -> None:
    rehearsed = neutracer.rehearse(linear(), steps=1).rehearsed
    assert json.loads(rehearsed.to_text())["steps"] == 1
    assert io.StringIO(str(rehearsed)).read().startswith("Rehearsed, not recorded: 1 step")


def test_modules_have_their_parameters_and_optimizer_states() -> None:
    def program() -> Any:
        model = torch.nn.Sequential(torch.nn.Linear(512, 1024), torch.nn.Linear(1024, 512)).cuda()
        optimizer = torch.optim.AdamW(model.parameters())

        def step() -> None:
            model(torch.randn(4, 512, device="cuda")).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

        return step

    plain = neutracer.rehearse(program, steps=2).timeline()
    snap = neutracer.rehearse(program, steps=2, modules=True)
    timeline = snap.timeline()
    assert list(timeline.allocated) == list(plain.allocated)
    names: dict[str, set[str]] = {"parameter": set(), "gradient": set(), "optimizer_state": set()}
    for row in timeline.allocations:
        if row.size == 2 * MIB and row.category in names:
            names[row.category].add(snap.events[row.alloc_event].user_metadata)
    both = {"nn.Module: Sequential.0", "nn.Module: Sequential.1"}
    assert list(names.values()) == [both] * 3


def test_search_takes_few_tries_where_needs_rise_in_pages() -> None:
    def needs_of(batch: int) -> int:
        nbytes = max(180 * MIB, 120 * MIB + batch * 36864)
        return -(-nbytes // (2 * MIB)) * 2 * MIB

    best, needs = search(needs_of, 450 * MIB, 1 << 16)
    assert needs_of(best) <= 450 * MIB < needs_of(best + 1)
    assert len(needs) < 25
    assert len(search(lambda batch: 100 * MIB + 1000 * batch**2, 450 * MIB, 1 << 16)[1]) < 50


def test_the_largest_batch_is_the_largest() -> None:
    def make_step(batch: int) -> Any:
        return linear(1024, batch)()

    room = 96 * MIB
    batch = neutracer.largest_batch(make_step, room)
    for size, fits in ((batch, True), (batch + 1, False)):
        told = neutracer.rehearse(linear(1024, size), steps=2).rehearsed
        assert told.fits(room) is fits
    assert neutracer.largest_batch(make_step, "8MiB") == 0


def test_attention_is_the_card_s() -> None:
    def step() -> None:
        q = torch.randn(2, 4, 256, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        torch.nn.functional.scaled_dot_product_attention(q, q, q).sum().backward()

    def kernels(device: str) -> int:
        snap = neutracer.rehearse(step, steps=1, device=device)
        # Plain products would have the square of the length for each head.
        return max(event.size for event in snap.events if event.action == "alloc")

    for card in ("H100", "A100", "RTX 4090"):
        assert kernels(card) < 4 * 2 * 4 * 256 * 256
    # A T4 has no kernel for bf16.
    assert kernels("T4") >= 2 * 2 * 4 * 256 * 256


def test_a_mask_that_learns_makes_plain_products() -> None:
    def step(learns: bool) -> None:
        q = torch.randn(2, 4, 256, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        mask = torch.zeros(1, 4, 256, 256, device="cuda", dtype=q.dtype, requires_grad=learns)
        torch.nn.functional.scaled_dot_product_attention(q, q, q, mask).sum().backward()

    scores = 4 * 2 * 4 * 256 * 256
    for learns in (False, True):
        snap = neutracer.rehearse(step, learns, steps=1, device="H100")
        sizes = [event.size for event in snap.events if event.action == "alloc"]
        # Scores and their softmax in floats, and their gradients; the mask is added in place.
        assert sizes.count(scores) == (5 if learns else 0)


def test_a_program_s_own_operators_say_what_they_allocate() -> None:
    library = torch.library.Library("neutracer_scratch", "FRAGMENT")
    library.define("double(Tensor x) -> Tensor")
    torch.library.register_fake(
        "neutracer_scratch::double", lambda x: torch.empty_like(x), lib=library
    )

    def step() -> None:
        torch.ops.neutracer_scratch.double(torch.zeros(1 << 20, device="cuda"))

    def scratch(args: Any, kwargs: Any, result: Any) -> Any:
        return [3 * args[0].numel(), (0, 8 * result.numel())]

    def sizes() -> list[int]:
        snap = neutracer.rehearse(step, steps=1)
        return [event.size for event in snap.events if event.action == "alloc"]

    try:
        # Nothing is known of it: it could take as much as its result.
        unknown = neutracer.rehearse(step, steps=1).rehearsed
        assert unknown.operators == {"neutracer_scratch.double": (0, 4 * MIB)}
        neutracer.register_scratch("neutracer_scratch::double", scratch)
        assert sizes() == [4 * MIB, 4 * MIB, 3 * MIB, 4 * MIB]
        told = neutracer.rehearse(step, steps=1).rehearsed
        assert told.operators == {"neutracer_scratch.double": (3 * MIB, 11 * MIB)}
        neutracer.register_scratch("neutracer_scratch::double", lambda *_: -1)
        with pytest.raises(neutracer.RehearsalError, match="neither a number of bytes"):
            neutracer.rehearse(step, steps=1)
    finally:
        neutracer.register_scratch("neutracer_scratch::double", None)
        library._destroy()
    with pytest.raises(ValueError, match="an operator has a name"):
        neutracer.register_scratch("double", scratch)
    with pytest.raises(TypeError, match="callable"):
        neutracer.register_scratch("neutracer_scratch::double", 3)  # type: ignore[arg-type]


def test_what_is_outside_of_pytorch_s_figures() -> None:
    alone = neutracer.rehearse(linear(), steps=1, device="A100").rehearsed
    eight = neutracer.rehearse(linear(), steps=1, device="A100", world_size=8).rehearsed
    context = find_card("A100").context_bytes
    assert alone.outside == {"CUDA's context": (context, context)}
    low, high = eight.outside["NCCL"]
    assert 0 < low < high
    assert eight.capacity_bytes == alone.capacity_bytes - high
    assert "NCCL" in str(eight.caveat().details)


def test_evaluation_takes_a_bounded_number_of_batches() -> None:
    seen = []

    def step() -> None:
        data = torch.utils.data.TensorDataset(torch.zeros(400, 4))
        net = torch.nn.Linear(4, 4).cuda()
        for kind in ("evaluated", "trained"):
            for (x,) in torch.utils.data.DataLoader(data, batch_size=4):
                y = net(x.cuda())
                if kind == "trained":
                    y.sum().backward()
                seen.append(kind)

    rehearsed = neutracer.rehearse(step, steps=1).rehearsed
    assert seen.count("evaluated") == 8
    assert seen.count("trained") == 100
    assert any("batches of a DataLoader" in note for note in rehearsed.notes)


def test_an_operator_of_pytorch_without_a_fake_kernel_is_named() -> None:
    def step() -> None:
        torch.zeros(8, 8, device="cuda").to_sparse()

    with pytest.raises(neutracer.RehearsalError, match=r"test_rehearse.py:\d+.*_to_sparse"):
        neutracer.rehearse(step)


def test_the_loss_of_sequences() -> None:
    def step() -> None:
        x = torch.randn(50, 4, 20, device="cuda", requires_grad=True).log_softmax(-1)
        targets = torch.randint(1, 20, (4, 10), device="cuda")
        lengths = torch.full((4,), 50), torch.full((4,), 10)
        torch.nn.functional.ctc_loss(x, targets, *lengths).backward()

    assert len(neutracer.rehearse(step, steps=1).events)


def test_another_torch_is_refused_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    from neutracer.hooks import build as hooks
    from neutracer.rehearsal import session as build

    other = hooks.installed_torch()
    monkeypatch.setattr(
        hooks, "installed_torch", lambda: type("Torch", (), {**vars(other), "release": (1, 13)})()
    )
    monkeypatch.setattr(build, "_loaded", [])
    with pytest.raises(neutracer.UnavailableError, match=r"they need torch 2\.11"):
        neutracer.rehearse(linear())


WITH_A_THREAD = """
import queue, threading, torch
messages = queue.Queue()
threading.Thread(target=messages.get).start()
model = torch.nn.Linear(8, 8).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=.1)
for _ in range(100):
    model(torch.randn(4, 8, device="cuda")).sum().backward()
    optimizer.step()
messages.put(None)
"""


def rehearsed_text(with_torch: Imported, folder: Path, text: str) -> Any:
    """The command's end for a program of this text; its snapshot is `out.pickle` in the folder."""
    program = folder / "train.py"
    program.write_text(text, encoding="utf-8")
    return with_torch.neutracer("rehearse", "-o", "out.pickle", str(program), cwd=folder)


def test_thread_that_the_program_would_end_keeps_nothing(
    with_torch: Imported, tmp_path: Path
) -> None:
    done = rehearsed_text(with_torch, tmp_path, WITH_A_THREAD)
    assert done.returncode == 0
    assert "it fits" in " ".join(done.stdout.split())
    assert "1 thread of the program had not ended" in done.stderr


def test_program_in_a_temporary_folder_that_it_removes(
    with_torch: Imported, tmp_path: Path
) -> None:
    text = (
        "import os, tempfile, torch\n"
        "folder = tempfile.mkdtemp()\n"
        "os.makedirs(os.path.join(folder, 'a', 'b'))\n"
        "os.removedirs(os.path.join(folder, 'a', 'b'))\n"
        "os.chdir(tempfile.mkdtemp())\n"
        "os.rmdir(os.getcwd())\n"
        "torch.ones(8, device='cuda')\n"
        "os.path.exists('/') and open('/dev/null', 'w')\n"
        "print('there:', os.path.exists(folder))\n"
    )
    done = rehearsed_text(with_torch, tmp_path, text)
    assert (done.returncode, done.stderr) == (0, "")
    assert "there: False" in done.stdout
    assert (tmp_path / "out.pickle").exists()


def test_program_that_catches_everything_ends_after_its_steps(
    with_torch: Imported, tmp_path: Path
) -> None:
    text = (
        "import torch\n"
        "model = torch.nn.Linear(8, 8).cuda()\n"
        "optimizer = torch.optim.SGD(model.parameters())\n"
        "while True:\n"
        "    try:\n"
        "        model(torch.ones(8, device='cuda')).sum().backward()\n"
        "        optimizer.step()\n"
        "    except BaseException:\n"
        "        pass\n"
    )
    done = rehearsed_text(with_torch, tmp_path, text)
    assert done.returncode == 0
    assert "3 steps on NVIDIA H200" in done.stdout
    assert neutracer.load(tmp_path / "out.pickle").rehearsed


@pytest.mark.parametrize(("code", "said"), [(0, "it fits"), (3, "ended itself")])
def test_program_that_leaves_at_once_is_told(
    with_torch: Imported, code: int, said: str, tmp_path: Path
) -> None:
    text = f"import os, torch\nkept = torch.ones(1 << 20, device='cuda')\nos._exit({code})\n"
    done = rehearsed_text(with_torch, tmp_path, text)
    assert done.returncode == (2 if code else 0)
    assert said in " ".join((done.stdout + done.stderr).split())
    assert (tmp_path / "out.pickle").exists()


def test_error_without_words_is_told_by_its_name() -> None:
    class MuteError(RuntimeError):
        def __str__(self) -> str:
            raise ValueError

    assert sentence(MuteError()) == "the program failed: MuteError"


def test_values_are_read_in_inference_mode() -> None:
    def program() -> Any:
        layer = torch.nn.Linear(64, 64, device="cuda")
        read: list[Any] = []

        def step() -> None:
            with torch.inference_mode():
                rows = layer(torch.ones(8, 64, device="cuda"))
                read[:] = (rows > 0).all().item(), bool(rows.sum()), bool((rows > 0).any())

        step()
        assert [type(one) for one in read] == [bool, bool, bool]
        assert torch.__config__.show() is not None
        return step

    neutracer.rehearse(program, steps=1)


def test_no_device_is_asked_for_a_context(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(torch._subclasses.fake_tensor, "init_gpu_context", asked.append)
    neutracer.rehearse(lambda: torch.ones(64, device="cuda"), steps=1)
    assert asked == []
