# SPDX-License-Identifier: Apache-2.0
"""`neutracer.snapshot()` and the reports on a live device, against PyTorch's own figures."""

import pickle
import random
import subprocess
import sys

import pytest
from segment_sums import blocks_fill_segments

import neutracer

torch = pytest.importorskip("torch")

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.fixture
def recording():
    torch.cuda.init()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    torch.cuda.memory._record_memory_history(max_entries=200_000, stacks="python")
    yield
    torch.cuda.memory._record_memory_history(enabled=None)


def churn(seed, rounds=600):
    """A program that allocates and frees tensors of many sizes; returns what it keeps."""
    chance = random.Random(seed)
    kept = []
    for _ in range(rounds):
        if len(kept) > 40 or (kept and chance.random() < 0.45):
            kept.pop(chance.randrange(len(kept)))
        else:
            size = int(2 ** chance.uniform(4, 25))
            kept.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
    return kept


def same_as_pytorch(snap):
    theirs = torch.cuda.memory_stats()
    ours = snap.memory_stats()
    assert ours == {key: theirs[key] for key in ours}


@pytest.mark.parametrize("seed", range(6))
def test_live_figures_equal_memory_stats(recording, seed):
    kept = churn(seed)
    snap = neutracer.snapshot()
    same_as_pytorch(snap)
    timeline, stats = snap.timeline(), torch.cuda.memory_stats()
    for metric in ("allocated", "active", "reserved", "requested"):
        assert getattr(timeline, metric)[-1] == stats[f"{metric}_bytes.all.current"]
    assert timeline.facts["unmatched"] == 0
    for metric in ("allocated", "reserved"):
        assert timeline.peak(metric).bytes == stats[f"{metric}_bytes.all.peak"]
    assert blocks_fill_segments(snap)
    assert kept


def test_training_steps_agree_to_the_byte(recording):
    model = torch.nn.Sequential(*[torch.nn.Linear(512, 512) for _ in range(6)]).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(5):
        model(torch.randn(64, 512, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        same_as_pytorch(neutracer.snapshot())


def test_streams_and_pending_frees_agree(recording):
    side = torch.cuda.Stream()
    for _ in range(40):
        block = torch.empty(4 << 20, dtype=torch.uint8, device="cuda")
        with torch.cuda.stream(side):
            block.add_(1)
        block.record_stream(side)
        del block
    same_as_pytorch(neutracer.snapshot())


def test_live_report_predicts_what_fits(recording):
    kept = churn(11, 300)
    report = neutracer.fragmentation_report()
    before = torch.cuda.memory_stats()["num_device_alloc"]
    nbytes = report.largest_request
    assert report.fits(nbytes)
    block = torch.empty(nbytes, dtype=torch.uint8, device="cuda")
    assert torch.cuda.memory_stats()["num_device_alloc"] == before
    reclaimable = neutracer.fragmentation_report().reclaimable_bytes
    reserved = torch.cuda.memory_reserved()
    torch.cuda.empty_cache()
    assert reserved - torch.cuda.memory_reserved() == reclaimable
    assert kept
    assert block.numel() == nbytes


def test_wrapped_ring_is_rebuilt_exactly():
    torch.cuda.memory._record_memory_history(max_entries=500, stacks="python")
    try:
        kept = churn(3, 2000)
        snap = neutracer.snapshot()
    finally:
        torch.cuda.memory._record_memory_history(enabled=None)
    assert snap.history_complete() is False
    same_as_pytorch(snap)
    assert snap.timeline().allocated[-1] == torch.cuda.memory_allocated()
    assert kept


def test_saved_file_opens_in_pytorch_tools(recording, tmp_path):
    kept = churn(5, 200)
    snap = neutracer.snapshot()
    snap.save(tmp_path / "saved.pickle")
    with open(tmp_path / "saved.pickle", "rb") as file:
        data = pickle.load(file)
    from torch.cuda import _memory_viz

    assert "Summary of segments" in _memory_viz.segsum(data)
    assert len(_memory_viz.trace_plot(data)) > 1000
    snap.save(tmp_path / "part.pickle", events=(50, 250))
    part = neutracer.load(tmp_path / "part.pickle")
    assert len(part.events) == 200
    assert part.timeline().allocated[-1] == snap.timeline().allocated[249]
    assert kept


SETTINGS = (
    "expandable_segments:True",
    "max_split_size_mb:64",
    "roundup_power2_divisions:4",
    "roundup_power2_divisions:[256:1,512:2,1024:4,>:8]",
)


@pytest.mark.parametrize("settings", SETTINGS)
def test_figures_agree_under_other_settings(settings):
    script = """
import sys; sys.path[:0] = ["tests/gpu", "tests/helpers", "tests"]
import torch, neutracer
from test_live_snapshot import churn, same_as_pytorch
torch.cuda.init()
torch.cuda.memory._record_memory_history(max_entries=200_000, stacks="python")
kept = churn(21)
snap = neutracer.snapshot()
same_as_pytorch(snap)
stats, timeline = torch.cuda.memory_stats(), snap.timeline()
for metric in ("allocated", "reserved"):
    assert timeline.peak(metric).bytes == stats[f"{metric}_bytes.all.peak"], metric
layout = timeline.at(len(timeline) - 1)
assert list(layout.blocks["size"]) == list(snap.blocks["size"])
report = neutracer.fragmentation_report(snap)
reserved = torch.cuda.memory_reserved()
torch.cuda.empty_cache()
assert reserved - torch.cuda.memory_reserved() == report.reclaimable_bytes
print("agreed", snap)
"""
    run = subprocess.run(
        [sys.executable, "-c", script],
        env={**__import__("os").environ, "PYTORCH_CUDA_ALLOC_CONF": settings},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr
    assert "agreed" in run.stdout


def test_no_cuda_is_initialised_by_asking():
    script = """
import torch, neutracer
try:
    neutracer.snapshot()
except neutracer.UnavailableError as error:
    assert "initialised" in error.what, error
else:
    raise SystemExit("no error")
assert not torch.cuda.is_initialized()
"""
    subprocess.run([sys.executable, "-c", script], check=True)
