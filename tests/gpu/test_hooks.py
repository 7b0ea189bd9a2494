# SPDX-License-Identifier: Apache-2.0
"""The hooks on a device, against PyTorch's own figures, recorder and exceptions."""

import subprocess
import sys
import threading
import time

import pytest
from without_hooks import without_hooks

from neutracer.cli.setup import environment
from neutracer.errors import UnavailableError
from neutracer.hooks import shim as hooks
from neutracer.hooks.live import live

torch = pytest.importorskip("torch")

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

FRAMES = 8


@pytest.fixture(scope="module", autouse=True)
def device():
    torch.cuda.init()
    torch.empty(1, device="cuda")
    try:
        hooks.load()
    except UnavailableError as error:
        without_hooks(str(error))
    yield
    hooks.silence()


@pytest.fixture
def history():
    """PyTorch's own recorder beside ours, with Python stacks."""
    torch.cuda.memory._record_memory_history(max_entries=300_000, stacks="python")
    yield
    torch.cuda.memory._record_memory_history(enabled=None)


class Squared(torch.autograd.Function):
    """Python in the backward thread."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return 2 * x * gradient


def train(steps=4):
    layers = [torch.nn.Linear(256, 256) for _ in range(6)]
    model = torch.nn.Sequential(*layers).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(steps):
        x = torch.randn(64, 256, device="cuda")
        loss = Squared.apply(model(x)).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return model, optimizer


def test_figures_equal_memory_stats():
    keep = []
    for _ in range(5):
        keep.append(train(2))
        theirs = torch.cuda.memory_stats()
        ours = hooks.load().device_stats(0)
        assert ours == {key: theirs[key] for key in ours}
        assert {"allocated_bytes.all.peak", "num_ooms", "segment.small_pool.freed"} <= set(ours)


def test_figures_need_no_tracker():
    code = (
        "import torch; from neutracer.hooks import shim as hooks;"
        "x = torch.empty(1000, device='cuda');"
        "s = hooks.load().device_stats(0); t = torch.cuda.memory_stats();"
        "print(s == {k: t[k] for k in s}, hooks.state().attached)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.split() == ["True", "False"], done.stderr


def test_attaching_before_cuda_is_refused():
    code = (
        "import torch\nfrom neutracer.hooks import shim as hooks\n"
        "try:\n    hooks.attach()\nexcept RuntimeError as error:\n    print(error)\n"
        "print(torch.cuda.is_initialized())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "CUDA is not initialised" in done.stdout, done.stderr
    assert done.stdout.split()[-1] == "False"


def same_layout(snap):
    theirs = torch.cuda.memory._snapshot()["segments"]
    rows = [(row.address, row.total_size, row.stream) for row in snap.segments]
    assert rows == [(s["address"], s["total_size"], s["stream"]) for s in theirs]
    names = {"active_pending_free": "active_pending_free", "inactive": "inactive"}
    blocks = [(row.address, row.size, row.state) for row in snap.blocks]
    wanted = [
        (b["address"], b["size"], names.get(b["state"], b["state"]))
        for s in theirs
        for b in s["blocks"]
    ]
    assert blocks == wanted


def test_layout_equals_pytorchs_own():
    keep = train()
    hooks.attach(50_000, 0)
    torch.cuda.synchronize()
    same_layout(live(50_000, 0))
    del keep
    same_layout(live(50_000, 0))


def test_events_equal_pytorchs_recorder(history):
    hooks.silence()
    hooks.attach(200_000, FRAMES)
    train()  # what was built at the first use is out of the way
    torch.cuda.memory._record_memory_history(
        max_entries=300_000, stacks="python", clear_history=True
    )
    live(200_000, FRAMES)
    before = len(live(200_000, FRAMES).events)
    start_us = time.time_ns() // 1000
    keep = train()
    torch.cuda.synchronize()
    ours = list(live(200_000, FRAMES).events)[before:]
    ours = [event for event in ours if event.action != "snapshot"]
    theirs = [
        event
        for event in torch.cuda.memory._snapshot()["device_traces"][0]
        if event["action"] != "snapshot" and event["time_us"] >= start_us
    ]
    del keep
    assert len(ours) > 500
    kind = [(e.action, e.addr, e.size, e.stream) for e in ours]
    assert kind == [(e["action"], e["addr"], e["size"], e["stream"]) for e in theirs]
    assert max(abs(a.time_us - b["time_us"]) for a, b in zip(ours, theirs, strict=True)) <= 2
    same_frames(ours, theirs)


def same_frames(ours, theirs):
    different = []
    for mine, other in zip(ours, theirs, strict=True):
        wanted = [(f["filename"], f["line"], f["name"]) for f in other.get("frames", [])][:FRAMES]
        found = [(f.filename, f.line, f.name) for f in mine.stack]
        if found != wanted:
            different.append((mine.action, found, wanted))
    assert different[:1] == []
    assert any(f.name == "backward" for event in ours for f in event.stack)


def test_tail_joins_layout_exactly():
    hooks.attach(400_000, 4)
    stop = threading.Event()

    def churn(seed):
        stream = torch.cuda.Stream()
        kept = []
        with torch.cuda.stream(stream):
            while not stop.is_set():
                kept.append(torch.empty(1 + (seed * 7919) % 300_000, device="cuda"))
                seed += 1
                if len(kept) > 30:
                    del kept[:20]

    threads = [threading.Thread(target=churn, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(20):
            snap = live(400_000, 4)
            figures, timeline = snap.memory_stats(0), snap.timeline(0)
            assert timeline.facts["unmatched"] == 0
            assert timeline.allocated[-1] == figures["allocated_bytes.all.current"]
            assert timeline.reserved[-1] == figures["reserved_bytes.all.current"]
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def test_frames_are_of_their_thread():
    hooks.attach(50_000, FRAMES)

    def first_maker():
        return torch.empty(123_457, dtype=torch.uint8, device="cuda")

    def second_maker():
        return torch.empty(123_459, dtype=torch.uint8, device="cuda")

    threads = [
        threading.Thread(target=lambda m=maker: [m() for _ in range(300)])
        for maker in (first_maker, second_maker)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    makers = {123_457: "first_maker", 123_459: "second_maker"}
    seen = [e for e in live(50_000, FRAMES).events if e.action == "alloc" and e.size in makers]
    assert len(seen) >= 600
    assert all(event.stack[0].name == makers[event.size] for event in seen)


def test_silence_pushes_nothing():
    hooks.attach(50_000, 0)
    train(1)
    hooks.silence()
    pushed = hooks.state().pushed[0]
    train(1)
    assert hooks.state().pushed[0] == pushed
    hooks.attach(50_000, 0)
    train(1)
    assert hooks.state().pushed[0] > pushed
    assert live(50_000, 0).history_complete() is False


def test_tracker_is_attached_once():
    hooks.attach(10_000, 0)
    hooks.silence()
    hooks.attach(60_000, 0)
    before = hooks.state().pushed[0]
    keep = torch.empty(1000, device="cuda")
    assert hooks.state().pushed[0] - before <= 2  # a segment and a block
    del keep


def test_environment_names_the_hooks():
    hooks.attach(10_000, 0)
    rows = {part.name: part for part in environment("0").parts}
    assert torch.__version__ in rows["Hooks"].version
