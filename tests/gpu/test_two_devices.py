# SPDX-License-Identifier: Apache-2.0
"""Everything that follows devices, with two of them in one process and in two."""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from gpu.scripts import run

torch = pytest.importorskip("torch")

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices"),
]

MIB = 1 << 20
ROOT = Path(__file__).parents[2]

LIVE = """
import threading
ends = threading.Event()

def churn(device):
    kept = []
    size = 300
    while not ends.is_set():
        kept.append(torch.empty(size * 1000 % 4_000_000 + 1, dtype=torch.uint8, device=device))
        size = size * 7 % 1_000_003
        if len(kept) > 200:
            del kept[: 150 + device]
    return kept

def rows(segments):
    return [[s["device"], s["address"], s["total_size"], s["stream"]] for s in segments]

def same(snap):
    figures = {}
    for device in (0, 1):
        theirs, ours = torch.cuda.memory_stats(device), snap.memory_stats(device)
        figures[device] = ours == {key: theirs[key] for key in ours}
    return figures

early = torch.empty(3 * MIB, dtype=torch.uint8, device="cuda:1")
neutracer.live(20_000, 8)
threads = [threading.Thread(target=churn, args=(device,)) for device in (0, 1)]
[thread.start() for thread in threads]
joined = []
for _ in range(30):
    snap = neutracer.live()
    for device in (0, 1):
        timeline, figures = snap.timeline(device), snap.memory_stats(device)
        joined.append(timeline.facts["unmatched"] == 0 and all(
            getattr(timeline, metric)[-1] == figures[f"{metric}_bytes.all.current"]
            for metric in ("allocated", "active", "requested", "reserved")))
ends.set()
[thread.join() for thread in threads]
torch.cuda.synchronize(0)
torch.cuda.synchronize(1)
last = torch.ones(77 * MIB, dtype=torch.uint8, device="cuda:1")
snap = neutracer.live()
out["joined"] = [sum(joined), len(joined)]
out["same"] = same(snap)
ours = [[s.device, s.address, s.total_size, s.stream] for s in snap.segments]
out["segments"] = ours == rows(torch.cuda.memory._snapshot()["segments"])
(block,) = [b for b in snap.blocks if b.address == last.data_ptr()]
out["stack"] = [frame.name for frame in block.stack]
out["traces"] = [snap.trace_length(device) for device in (0, 1)]
out["reports"] = [str(neutracer.fragmentation_report(snap, device=d)) for d in (0, 1)]
out["kept"] = bool(early.numel())
"""


def test_live_tail_joins_on_both_devices():
    out = run(LIVE)
    assert out["joined"] == [60, 60]
    assert out["same"] == {"0": True, "1": True}
    assert out["segments"] is True
    assert "<module>" in out["stack"]
    assert min(out["traces"]) > 1000
    assert "cuda:0" in out["reports"][0]
    assert "cuda:1" in out["reports"][1]


def test_monitor_follows_both_devices():
    out = run(
        """
        import time
        import urllib.request
        with neutracer.MemoryMonitor(0.005) as monitor:
            a = torch.ones(50 * MIB, dtype=torch.uint8, device="cuda:0")
            b = torch.ones(90 * MIB, dtype=torch.uint8, device="cuda:1")
            monitor.mark("both")
            time.sleep(0.3)
            out["devices"], out["road"] = list(monitor.devices), monitor.status["road"]
            out["same"] = [
                monitor.get_stats(d)["current_bytes"] == torch.cuda.memory_allocated(d)
                for d in (0, 1)
            ]
            out["peaks"] = [
                monitor.get_stats(d)["peak_bytes"] == torch.cuda.max_memory_allocated(d)
                for d in (0, 1)
            ]
            out["total"] = [
                monitor.get_stats(d)["total_bytes"] == torch.cuda.mem_get_info(d)[1]
                for d in (0, 1)
            ]
        try:
            monitor.get_stats()
        except ValueError as error:
            out["asked"] = str(error)
        """
    )
    assert out["devices"] == [0, 1]
    assert out["road"] == "hooks"
    assert out["same"] == out["peaks"] == out["total"] == [True, True]
    assert "0" in out["asked"]
    assert "1" in out["asked"]


def test_memory_is_told_by_device_and_library():
    out = run(
        """
        import cupy
        torch.ones(1, device="cuda:0"), torch.ones(1, device="cuda:1")
        with neutracer.attribute_device_memory() as handle:
            kept = torch.ones(200 * MIB, dtype=torch.uint8, device="cuda:1")
            with cupy.cuda.Device(1):
                block = cupy.cuda.alloc(GIB)
            for d in (0, 1):
                uses = {use.library: use.bytes for use in handle.by_library(d)}
                report = neutracer.device_report(d)
                out[str(d)] = {
                    "torch": uses.get("PyTorch", 0) == torch.cuda.memory_reserved(d),
                    "cupy": uses.get("CuPy", 0),
                    "free": report.free_bytes - torch.cuda.mem_get_info(d)[0],
                    "uuid": report.uuid,
                    "page": str(report),
                }
        try:
            neutracer.device_report()
        except ValueError as error:
            out["asked"] = str(error)
        """
    )
    assert out["0"]["torch"] is out["1"]["torch"] is True
    assert out["0"]["cupy"] == 0
    assert abs(out["1"]["cupy"] - (1 << 30)) < 0.05 * (1 << 30)
    assert abs(out["0"]["free"]) < 8 * MIB
    assert abs(out["1"]["free"]) < 8 * MIB
    assert out["0"]["uuid"] != out["1"]["uuid"]
    assert "several" in out["asked"] or "cuda:1" in out["asked"] or "2" in out["asked"]


def test_visible_devices_are_told_in_their_order():
    script = """
        out["cold"] = [neutracer.device_report(d).uuid for d in range(torch.cuda.device_count())]
        kept = torch.ones(300 * MIB, dtype=torch.uint8, device="cuda:0")
        report = neutracer.device_report(0)
        out["warm"], out["torch"] = report.uuid, report.torch_bytes
        out["theirs"] = "GPU-" + str(torch.cuda.get_device_properties(0).uuid)
        out["free"] = abs(report.free_bytes - torch.cuda.mem_get_info(0)[0])
        """
    found = {text: run(script, CUDA_VISIBLE_DEVICES=text) for text in ("0,1", "1,0", "1")}
    for out in found.values():
        assert out["cold"][0] == out["warm"] == out["theirs"]
        assert out["torch"] >= 300 * MIB
        assert out["free"] < 8 * MIB
    assert found["1,0"]["cold"] == found["0,1"]["cold"][::-1]
    assert found["1"]["cold"] == found["0,1"]["cold"][1:]


def test_oom_of_the_second_device_is_explained():
    out = run(
        """
        import tempfile
        total = torch.cuda.mem_get_info(1)[1]
        torch.cuda.set_per_process_memory_fraction(GIB / total, 1)
        kept = [torch.ones(100 * MIB, dtype=torch.uint8, device="cuda:0")]
        folder = tempfile.mkdtemp()
        try:
            with neutracer.record(), neutracer.oom_report(directory=folder):
                while True:
                    kept.append(torch.empty(64 * MIB, dtype=torch.uint8, device="cuda:1"))
        except torch.OutOfMemoryError as error:
            out["notes"] = getattr(error, "__notes__", [])
        (path,) = [p for p in os.listdir(folder) if p.endswith(".txt")]
        out["text"] = open(os.path.join(folder, path)).read()
        """
    )
    assert "cuda:1" in out["text"].splitlines()[0]
    assert "1,024 MiB" in " ".join(out["notes"])


def test_cycles_of_one_device_are_told():
    out = run(
        """
        import gc
        gc.collect()
        gc.disable()
        seen = []
        with neutracer.warn_tensor_cycles("cuda:1", callback=seen.append):
            for device, mib in ((0, 30), (1, 70)):
                ring = [torch.ones(mib * MIB, dtype=torch.uint8, device=f"cuda:{device}")]
                ring.append(ring)
            del ring
            out["held"] = neutracer.garbage_bytes("cuda:1"), neutracer.garbage_bytes("cuda:0")
            gc.collect()
        out["seen"] = [cycle.bytes for cycle in seen]
        """
    )
    assert out["held"] == [70 * MIB, 30 * MIB]
    assert out["seen"] == [70 * MIB]


TRAIN = """
import os, torch, torch.distributed as dist
rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1024, 1024).cuda())
for step in range(5):
    model(torch.randn(64, 1024, device="cuda")).sum().backward()
torch.cuda.synchronize()
dist.destroy_process_group()
"""


def test_ranks_of_a_real_run_have_their_own_files(tmp_path):
    (tmp_path / "train.py").write_text(textwrap.dedent(TRAIN))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", "2", "-m", "neutracer", "run", "-o", "reports", "train.py"]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=150
    )
    print(done.stdout, done.stderr)
    assert done.returncode == 0, done.stderr[-3000:]
    sides = [json.loads(p.read_text()) for p in sorted((tmp_path / "reports").glob("*.json"))]
    ranks = sorted({side["rank"] for side in sides if "rank" in side})
    assert ranks == [0, 1]
    snapshots = [p for p in (tmp_path / "reports").iterdir() if p.suffix == ".pickle"]
    assert len(snapshots) == 2
