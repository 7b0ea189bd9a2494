# SPDX-License-Identifier: Apache-2.0
"""A training loop runs on this GPU, its settings are recommended, and it runs again with them."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

import neutracer

torch = pytest.importorskip("torch")

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

MIB = 1 << 20

#: Trains on batches of many lengths, so that no block that is free quite fits the next one.
PROGRAM = """
import json, pickle, random, sys

import torch
from torch import nn

torch.cuda.memory._record_memory_history(max_entries=200_000, stacks="python")
torch.manual_seed(0)
chance = random.Random(0)
layers = []
for _ in range(4):
    layers += [nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 1024)]
model = nn.Sequential(*layers).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=False)
kept = []
for step in range(60):
    batch = torch.randn(chance.randrange(512, 12_000), 1024, device="cuda")
    loss = model(batch).pow(2).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    kept.append(torch.empty(chance.randrange(1, 24) << 20, dtype=torch.uint8, device="cuda"))
    if len(kept) > 12:
        del kept[chance.randrange(len(kept))]
torch.cuda.synchronize()
stats = torch.cuda.memory_stats()
torch.cuda.memory._dump_snapshot(sys.argv[1])
print(json.dumps({
    "peak_reserved_bytes": stats["reserved_bytes.all.peak"],
    "peak_allocated_bytes": stats["allocated_bytes.all.peak"],
    "device_allocs": stats["num_device_alloc"],
    "device_frees": stats["num_device_free"],
    "ooms": stats["num_ooms"],
}))
"""


def run(folder: pathlib.Path, conf: str) -> tuple[neutracer.Snapshot, dict[str, int]]:
    """The program under a setting, in a process of its own: its snapshot and its figures."""
    path = folder / "snapshot.pickle"
    environment = {**os.environ, "PYTORCH_CUDA_ALLOC_CONF": conf}
    environment.pop("PYTORCH_ALLOC_CONF", None)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(path)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return neutracer.load(path), json.loads(done.stdout.splitlines()[-1])


def test_recommended_setting_does_as_predicted(tmp_path, capsys):
    snap, before = run(tmp_path, "")
    report = neutracer.what_if(snap, objective="reserved")
    assert report.fidelity == 1.0, report.check.sentence
    assert report.recorded.peak_reserved_bytes == before["peak_reserved_bytes"]
    best = report.best
    assert best is not None
    _, after = run(tmp_path, best.settings)
    low, high = best.outcome.range("peak_reserved_bytes")
    with capsys.disabled():
        print(f"\nrecorded with default settings: {before['peak_reserved_bytes'] / MIB:,.0f} MiB")
        print(f"predicted with {best.settings}: {low / MIB:,.0f}", end="")
        print(f" to {high / MIB:,.0f} MiB" if high is not None else " MiB or more")
        print(f"measured with {best.settings}: {after['peak_reserved_bytes'] / MIB:,.0f} MiB")
        print(f"predicted {best.outcome}\nmeasured {after}")
    assert high is not None
    assert low <= after["peak_reserved_bytes"] <= high
    assert after["peak_reserved_bytes"] < before["peak_reserved_bytes"]
    assert after["ooms"] == 0
    for figure in ("device_allocs", "device_frees"):
        least, most = best.outcome.range(figure)
        assert least <= after[figure] <= (after[figure] if most is None else most), figure
