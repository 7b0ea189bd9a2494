# SPDX-License-Identifier: Apache-2.0
"""Whose memory it is, on a real device: NVML, the driver and CUPTI against PyTorch.

Each case is a process of its own, because what a library has taken once it keeps.
"""

import importlib.util
import json

import pytest
from gpu.scripts import run

torch = pytest.importorskip("torch")

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

MIB, GIB = 1 << 20, 1 << 30


def test_report_agrees_with_pytorch():
    out = run(
        """
        before = neutracer.device_report(0)
        out["started"] = torch.cuda.is_initialized()
        out["cold"] = [before.torch_bytes, before.process_bytes, before.total_bytes]
        x = torch.empty(300 * MIB, dtype=torch.uint8, device="cuda")
        free, total = torch.cuda.mem_get_info()
        report = neutracer.device_report(0)
        out["mem_get_info"] = [free, total]
        out["ours"] = [report.free_bytes, report.total_bytes]
        out["torch"] = [report.torch_bytes, torch.cuda.memory_reserved()]
        out["process"], out["list"] = report.process_bytes, report.process_list
        out["rest"] = report.unattributed_bytes
        out["uuid"] = report.uuid
        print(report)
        """
    )
    assert out["started"] is False
    assert out["cold"][0] == 0
    assert out["cold"][2] == out["mem_get_info"][1]
    assert out["ours"] == out["mem_get_info"]
    assert out["torch"][0] == out["torch"][1] >= 300 * MIB
    if not out["list"]:
        # A context with its kernels; the driver of the day decides how much.
        assert 100 * MIB < out["process"] - out["torch"][0] < 2 * GIB
    assert 100 * MIB < out["rest"] < 2 * GIB


def test_full_uuid_selects_the_device():
    script = """
        report = neutracer.device_report()
        out["cold"] = [report.device, report.uuid]
        torch.ones(1, device="cuda")
        report = neutracer.device_report()
        out["warm"] = [report.device, report.uuid]
        """
    first = run(script, CUDA_VISIBLE_DEVICES="0")
    uuid = first["warm"][1]
    assert uuid.startswith("GPU-")
    assert len(uuid) == 40
    for text in (uuid, uuid[:12]):
        again = run(script, CUDA_VISIBLE_DEVICES=text)
        assert again["cold"] == again["warm"] == [0, uuid]


def test_foreign_memory_shows_in_the_gap():
    out = run(
        """
        torch.ones(1, device="cuda")
        before = neutracer.device_report(0)
        pointer = ctypes.c_void_p()
        assert cudart().cudaMalloc(ctypes.byref(pointer), GIB) == 0
        after = neutracer.device_report(0)
        out["grown"] = after.unattributed_bytes - before.unattributed_bytes
        out["torch"] = after.torch_bytes - before.torch_bytes
        """
    )
    assert abs(out["grown"] - GIB) < 0.05 * GIB
    assert out["torch"] == 0


CHURN = """
torch.ones(1, device="cuda")
with neutracer.attribute_device_memory() as handle:
    out["start"] = [table(handle).get("PyTorch"), torch.cuda.memory_reserved()]
    kept = [torch.empty(n * MIB, dtype=torch.uint8, device="cuda") for n in (5, 30, 64, 3)]
    a = torch.randn(1024, 1024, device="cuda")
    b = a @ a
    image = torch.randn(8, 3, 64, 64, device="cuda")
    c = torch.nn.Conv2d(3, 16, 3).cuda()(image).sum().backward()
    torch.cuda.synchronize()
    out["busy"] = [table(handle)["PyTorch"], torch.cuda.memory_reserved()]
    kept = kept[:1]
    del a, b, c, image
    torch.cuda.empty_cache()
    out["less"] = [table(handle)["PyTorch"], torch.cuda.memory_reserved()]
    pointer = ctypes.c_void_p()
    assert cudart().cudaMalloc(ctypes.byref(pointer), GIB) == 0
    out["table"] = table(handle)
    out["facts"] = handle.facts
    report = neutracer.device_report(0)
    out["rest"] = report.unattributed_bytes
    plain = handle._core.read()
    out["uses"] = plain["uses"]
    out["by_address"] = {row[3]: row[4] for row in plain["live"]}
    out["segments"] = [[s["address"], s["total_size"]] for s in torch.cuda.memory_snapshot()]
    out["files"] = {use.library: use.files for use in report.by_library}
    print(report)
"""


def test_pytorchs_share_equals_reserved():
    out = run(CHURN)
    for moment in ("start", "busy", "less"):
        assert out[moment][0] == out[moment][1] > 0
    assert out["table"]["cuBLAS"] > 0
    # Each segment by CUPTI's own record of it: the same address, the same size.
    assert out["segments"] == [[a, out["by_address"][str(a)]] for a, _ in out["segments"]]
    others = {name: nbytes for name, nbytes in out["table"].items() if nbytes == GIB}
    assert len(others) == 1
    assert out["facts"]["dropped"] == 0
    assert out["rest"] < 2 * GIB


def test_growing_segments_equal_reserved_too():
    out = run(CHURN, PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True")
    for moment in ("start", "busy", "less"):
        assert out[moment][0] == out[moment][1] > 0
    assert out["table"].get("not told by CUPTI", 0) == 0


def test_nccl_is_told_apart():
    pytest.importorskip("torch.distributed")
    if not torch.distributed.is_nccl_available():
        pytest.skip("this torch has no NCCL")
    out = run(
        """
        import torch.distributed as dist
        torch.ones(1, device="cuda")
        with neutracer.attribute_device_memory() as handle:
            store = dist.HashStore()
            dist.init_process_group("nccl", store=store, rank=0, world_size=1)
            x = torch.ones(1 << 20, device="cuda")
            before = neutracer.device_report(0)
            dist.all_reduce(x)
            torch.cuda.synchronize()
            after = neutracer.device_report(0)
            out["table"] = table(handle)
            out["reserved"] = torch.cuda.memory_reserved()
            out["grown"] = before.free_bytes - after.free_bytes
            out["torch"] = after.torch_bytes - before.torch_bytes
            print(after)
            dist.destroy_process_group()
            out["after"] = table(handle)
        """
    )
    assert out["table"]["NCCL"] > MIB
    assert out["table"]["PyTorch"] == out["reserved"]
    # What the device lost is NCCL's, but for modules of kernels that it loaded.
    assert out["table"]["NCCL"] <= out["grown"] - out["torch"] + 8 * MIB


def test_cupy_is_told_apart():
    if importlib.util.find_spec("cupy") is None:
        pytest.skip("CuPy is not installed")
    out = run(
        """
        import cupy
        torch.ones(1, device="cuda")
        with neutracer.attribute_device_memory() as handle:
            block = cupy.cuda.alloc(GIB)
            report = neutracer.device_report(0)
            out["table"] = {use.library: use.bytes for use in report.by_library}
            print(report)
        """
    )
    assert abs(out["table"]["CuPy"] - GIB) < 0.05 * GIB


def test_profiler_works_after_attribution():
    out = run(
        """
        from torch.profiler import ProfilerActivity, profile, schedule
        x = torch.randn(256, 256, device="cuda")

        def kernels(profiler):
            return sum("cuda" in str(e.device_type).lower() for e in profiler.events())

        both = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
        handle = neutracer.attribute_device_memory()
        y = x @ x
        with profile(activities=both) as profiler:
            for _ in range(5):
                y = x @ x
            torch.cuda.synchronize()
        out["kernels"] = kernels(profiler)
        out["reason"] = handle.reason
        out["frozen"] = table(handle)
        out["reserved"] = torch.cuda.memory_reserved()
        with neutracer.attribute_device_memory() as again:
            z = torch.empty(64 * MIB, dtype=torch.uint8, device="cuda")
            out["again"] = [table(again)["PyTorch"], torch.cuda.memory_reserved()]
        seen = []
        plan = schedule(wait=0, warmup=1, active=1, repeat=1)
        with neutracer.attribute_device_memory() as third:
            with profile(activities=both, schedule=plan,
                         on_trace_ready=lambda p: seen.append(kernels(p))) as profiler:
                for _ in range(3):
                    y = x @ x
                    torch.cuda.synchronize()
                    profiler.step()
            out["third"] = third.is_on
        out["seen"] = seen
        with profile(activities=both) as profiler:
            try:
                neutracer.attribute_device_memory()
                out["refused"] = ""
            except neutracer.UnavailableError as error:
                out["refused"] = str(error)
            y = x @ x
            torch.cuda.synchronize()
        out["last"] = kernels(profiler)
        """
    )
    assert out["kernels"] >= 5
    assert "profiler" in out["reason"]
    # As it was when the profiler began: the matrix product's workspace included.
    assert 0 < out["frozen"]["PyTorch"] <= out["reserved"]
    assert out["again"][0] == out["again"][1]
    assert out["third"] is False
    assert out["seen"][0] >= 1
    assert "end the profiler first" in out["refused"]
    assert out["last"] >= 1


def test_attribution_costs_little():
    out = run(
        """
        import time
        x = torch.ones(16, device="cuda")

        def loop():
            best = 1e9
            for _ in range(20):
                torch.cuda.synchronize()
                begin = time.perf_counter()
                for _ in range(1000):
                    x.add_(1)
                torch.cuda.synchronize()
                best = min(best, time.perf_counter() - begin)
            return best * 1e3  # microseconds a kernel

        loop()
        out["off_us"] = loop()
        begin = time.perf_counter()
        handle = neutracer.attribute_device_memory()
        out["start_ms"] = (time.perf_counter() - begin) * 1e3
        out["on_us"] = loop()
        begin = time.perf_counter()
        handle.by_library()
        out["read_ms"] = (time.perf_counter() - begin) * 1e3
        begin = time.perf_counter()
        handle.remove()
        out["stop_ms"] = (time.perf_counter() - begin) * 1e3
        out["after_us"] = loop()
        begin = time.perf_counter()
        for _ in range(100):
            neutracer.device_report(0)
        out["report_ms"] = (time.perf_counter() - begin) * 10
        """
    )
    print(json.dumps(out))
    assert out["on_us"] < 1.3 * out["off_us"]
    assert out["report_ms"] < 20
