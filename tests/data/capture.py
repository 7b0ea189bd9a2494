# SPDX-License-Identifier: Apache-2.0
"""Real CUDA programs whose allocator snapshots are the ground truth of the tests.

usage: [PYTORCH_CUDA_ALLOC_CONF=...] python capture.py SCENARIO OUTDIR

Each scenario writes OUTDIR/SCENARIO.pickle, PyTorch's own snapshot, and OUTDIR/SCENARIO.json
with what PyTorch itself said at that moment: memory_stats, mem_get_info, figures per step, and
the text of an out-of-memory error. Needs a GPU with torch, and torchvision for ResNet.
"""

import gc, json, os, pickle, sys, time, weakref
import torch, torch.nn as nn, torch.nn.functional as F

dev = "cuda"
MiB = 1 << 20


def record(stacks="python", context="all", max_entries=200000):
    torch.cuda.memory._record_memory_history(
        enabled="all", context=context, stacks=stacks, max_entries=max_entries
    )


def stats():
    s = torch.cuda.memory_stats()
    keep = {k: v for k, v in s.items() if isinstance(v, (int, float))}
    free, total = torch.cuda.mem_get_info()
    keep["device_free"], keep["device_total"] = free, total
    return keep


def neutral(snap):
    """Name the environment's folders as a user's would be: only `filename` strings of frames change."""
    import torch as T

    site = os.path.dirname(os.path.dirname(T.__file__))
    seen = set()

    def fix(frames):
        for f in frames or ():
            if id(f) in seen:
                continue
            seen.add(id(f))
            f["filename"] = f["filename"].replace(site, "/usr/lib/python3/dist-packages")

    for seg in snap["segments"]:
        fix(seg.get("frames"))
        for b in seg["blocks"]:
            fix(b.get("frames"))
            for h in b.get("history", ()):
                fix(h.get("frames"))
    for t in snap["device_traces"]:
        for e in t:
            fix(e.get("frames"))


def finish(name, out, extra=None):
    torch.cuda.synchronize()
    st = stats()
    snap = torch.cuda.memory._snapshot()
    neutral(snap)
    with open(f"{out}/{name}.pickle", "wb") as f:
        pickle.dump(snap, f)
    t0 = time.time()
    torch.cuda.memory._snapshot()
    t1 = time.time()
    meta = {
        "snapshot_call_s": t1 - t0,
        "scenario": name,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "python": sys.version.split()[0],
        "gpu": torch.cuda.get_device_name(0),
        "conf": os.environ.get("PYTORCH_CUDA_ALLOC_CONF", ""),
        "stats": st,
        "n_segments": len(snap["segments"]),
        "n_blocks": sum(len(s["blocks"]) for s in snap["segments"]),
        "n_trace": [len(t) for t in snap["device_traces"]],
        "actions": {},
    }
    for t in snap["device_traces"]:
        for e in t:
            meta["actions"][e["action"]] = meta["actions"].get(e["action"], 0) + 1
    torch.cuda.memory._record_memory_history(None)
    meta.update(extra or {})
    json.dump(meta, open(f"{out}/{name}.json", "w"), indent=1)
    print(
        name,
        "pickle MiB",
        os.path.getsize(f"{out}/{name}.pickle") / MiB,
        meta["n_segments"],
        meta["n_blocks"],
        meta["n_trace"],
        meta["actions"],
        flush=True,
    )
    return snap


def mlp(width=2048, depth=8):
    return nn.Sequential(
        *[m for _ in range(depth) for m in (nn.Linear(width, width), nn.ReLU())]
    ).to(dev)


# ---- training: healthy, and the zero_grad-too-late bug --------------------------------------------------
def train(name, out, late):
    import torchvision

    torch.manual_seed(0)
    model = torchvision.models.resnet50().to(dev)
    opt = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    record()
    series = []
    for it in range(5):
        x = torch.randn(16, 3, 224, 224, device=dev)
        y = torch.randint(0, 1000, (16,), device=dev)
        torch.cuda.reset_peak_memory_stats()
        if not late:
            opt.zero_grad(set_to_none=True)
        loss = F.cross_entropy(model(x), y)
        if late:
            opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        series.append(
            {
                "it": it,
                "peak": torch.cuda.max_memory_allocated(),
                "alloc": torch.cuda.memory_allocated(),
                "reserved": torch.cuda.memory_reserved(),
            }
        )
        del loss, x, y
    finish(name, out, {"series": series})


def train_resnet_healthy(out):
    train("train_resnet_healthy", out, False)


def train_resnet_late_zero_grad(out):
    train("train_resnet_late_zero_grad", out, True)


# ---- reference cycles ---------------------------------------------------------------------------------
def cycle_nodes(out):
    class Node:
        def __init__(self, T):
            self.tensor = T
            self.link = None

    gc.collect()
    gc.disable()
    record()
    series = []
    for i in range(120):
        a, b = Node(torch.zeros(MiB // 4, device=dev)), Node(torch.zeros(MiB // 4, device=dev))
        a.link, b.link = b, a
        del a, b
        if (i + 1) % 40 == 0:
            before = torch.cuda.memory_allocated()
            n = gc.collect()
            series.append(
                {"i": i, "before": before, "after": torch.cuda.memory_allocated(), "collected": n}
            )
    finish("cycle_nodes", out, {"series": series})


def create_graph_leak(out):
    record()
    series = []
    for i in range(20):
        w = torch.randn(1024, 1024, device=dev, requires_grad=True)
        loss = (w**3).sum()
        loss.backward(create_graph=True)
        del w, loss
        gc.collect()
        series.append(torch.cuda.memory_allocated())
    finish("create_graph_leak", out, {"series": series})


# ---- leaks that are not cycles ------------------------------------------------------------------------
def leak_list(out):
    model = mlp()
    opt = torch.optim.AdamW(model.parameters(), lr=1e-4)
    kept = []
    record()
    series = []
    for i in range(60):
        x = torch.randn(256, 2048, device=dev)
        loss = model(x).pow(2).mean()
        loss.backward()
        opt.step()
        opt.zero_grad()
        kept.append(loss)  # keeps the whole graph of the loss tail alive
        if i % 3 == 0:
            kept.append(x[:8])  # keeps x's storage through a view
        series.append(
            {
                "step": i,
                "alloc": torch.cuda.memory_allocated(),
                "reserved": torch.cuda.memory_reserved(),
                "peak": torch.cuda.max_memory_allocated(),
            }
        )
    finish("leak_list", out, {"series": series})


# ---- attention ------------------------------------------------------------------------------------------
def attention(name, out, backend):
    from torch.nn.attention import sdpa_kernel, SDPBackend

    b = {"math": SDPBackend.MATH, "flash": SDPBackend.FLASH_ATTENTION}[backend]
    D, H, L = 1024, 16, 8

    class Block(nn.Module):
        def __init__(s):
            super().__init__()
            s.qkv = nn.Linear(D, 3 * D)
            s.o = nn.Linear(D, D)
            s.f1 = nn.Linear(D, 4 * D)
            s.f2 = nn.Linear(4 * D, D)
            s.n1 = nn.LayerNorm(D)
            s.n2 = nn.LayerNorm(D)

        def forward(s, x):
            B, T, _ = x.shape
            q, k, v = s.qkv(s.n1(x)).view(B, T, 3, H, D // H).permute(2, 0, 3, 1, 4)
            x = x + s.o(
                F.scaled_dot_product_attention(q, k, v, is_causal=True)
                .transpose(1, 2)
                .reshape(B, T, D)
            )
            return x + s.f2(F.gelu(s.f1(s.n2(x))))

    m = nn.Sequential(*[Block() for _ in range(L)]).to(dev, torch.bfloat16)
    record()
    series = []
    with torch.no_grad(), sdpa_kernel([b]):
        for T in (512, 1024, 2048, 4096, 1536, 3072):
            torch.cuda.reset_peak_memory_stats()
            m(torch.randn(2, T, D, device=dev, dtype=torch.bfloat16))
            series.append({"T": T, "peak": torch.cuda.max_memory_allocated()})
    finish(name, out, {"series": series})


def attention_math(out):
    attention("attention_math", out, "math")


def attention_flash(out):
    attention("attention_flash", out, "flash")


# ---- fragmentation ---------------------------------------------------------------------------------------
def frag(name, out, cap_mib=2048):
    """Odd-sized long-lived blocks among short-lived ones until a large request no longer fits, though the free bytes would hold it."""
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(cap_mib * MiB / total)
    record()
    g = torch.Generator().manual_seed(7)
    keep, series, oom = [], [], None
    try:
        for r in range(400):
            sz = int(torch.randint(3, 40, (1,), generator=g)) * MiB + 512 * int(
                torch.randint(1, 900, (1,), generator=g)
            )
            t = torch.empty(sz, dtype=torch.uint8, device=dev)
            u = torch.empty(sz // 3, dtype=torch.uint8, device=dev)
            keep.append(u)
            del t
            if len(keep) > 60:
                keep.pop(int(torch.randint(0, 60, (1,), generator=g)))
            if r % 25 == 24:
                big = torch.empty((64 + 8 * (r // 25)) * MiB, dtype=torch.uint8, device=dev)
                del big
            series.append(
                {
                    "r": r,
                    "alloc": torch.cuda.memory_allocated(),
                    "reserved": torch.cuda.memory_reserved(),
                }
            )
        want = (cap_mib - torch.cuda.memory_allocated() // MiB - 64) * MiB
        torch.empty(want, dtype=torch.uint8, device=dev)
    except torch.OutOfMemoryError as e:
        oom = str(e)
    finish(name, out, {"series": series, "oom": oom, "cap_mib": cap_mib})


def frag_default(out):
    frag("frag_default", out)


def frag_expandable(out):
    frag("frag_expandable", out)


def frag_max_split(out):
    frag("frag_max_split", out)


def frag_roundup(out):
    frag("frag_roundup", out)


def frag_gc(out):
    frag("frag_gc", out)


def weight_streaming(out):
    """The weight-streaming pattern: four layers cached, the oldest evicted, sizes that differ."""
    record()
    cache, series = [], []
    for step, (shape, evict) in enumerate(
        [
            ((2048, 2048), 0),
            ((4096, 1024), 0),
            ((1024, 4096), 0),
            ((8192, 512), 0),
            ((512, 8192), 1),
            ((1024, 1024), 0),
            ((2048, 2048), 1),
            ((4096, 1024), 0),
            ((1024, 4096), 1),
            ((8192, 512), 0),
            ((1536, 3000), 1),
            ((6000, 1000), 0),
            ((300, 300), 1),
            ((5000, 3000), 1),
        ]
    ):
        if evict:
            cache.pop(0)
        cache.append(torch.empty(shape, device=dev))
        a, r = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
        series.append(
            {
                "step": step + 1,
                "shape": shape,
                "evict": evict,
                "alloc": a,
                "reserved": r,
                "frag": (r - a) / r,
                "segments": torch.cuda.memory_stats()["segment.all.current"],
            }
        )
    finish("weight_streaming", out, {"series": series})


# ---- streams, graphs, pools --------------------------------------------------------------------------------
def multi_stream(out):
    s1, s2 = torch.cuda.Stream(), torch.cuda.Stream()
    record()
    for i in range(50):
        with torch.cuda.stream(s1):
            a = torch.randn(1024, 1024 + 64 * (i % 7), device=dev)
            b = a @ a.t()
        s2.wait_stream(s1)
        with torch.cuda.stream(s2):
            c = b * 2
            b.record_stream(s2)
        del a, b
        if i % 5 == 0:
            d = torch.empty(300 * 1024, dtype=torch.uint8, device=dev)
        del c
    torch.cuda.synchronize()
    e = torch.empty(MiB, device=dev)
    finish("multi_stream", out)


def cuda_graph_pool(out):
    m = mlp(1024, 4)
    x = torch.randn(64, 1024, device=dev)
    record()
    s = torch.cuda.Stream()
    s.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(s):
        for _ in range(3):
            m(x)
    torch.cuda.current_stream().wait_stream(s)
    g = torch.cuda.CUDAGraph()
    with torch.cuda.graph(g):
        y = m(x)
    for _ in range(3):
        g.replay()
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        z = torch.empty(7 * MiB, device=dev)
    finish("cuda_graph_pool", out)


def cpp_stacks(out):
    m = mlp(512, 4)
    record(stacks="all")
    for _ in range(3):
        m(torch.randn(32, 512, device=dev)).sum().backward()
    finish("cpp_stacks", out)


def foreign_memory(out):
    """Device memory that the caching allocator does not own."""
    import cupy

    record()
    t = torch.empty(256 * MiB, dtype=torch.uint8, device=dev)
    f0, tot = torch.cuda.mem_get_info()
    cupy.get_default_memory_pool()
    c = cupy.zeros(512 * MiB, dtype=cupy.uint8)
    cupy.cuda.Device().synchronize()
    f1, _ = torch.cuda.mem_get_info()
    finish("foreign_memory", out, {"before_free": f0, "after_free": f1, "total": tot})


# ---- large: one million events ----------------------------------------------------------------------------
def large_trace(out, n=1_000_000):
    record(max_entries=2 * n + 1000)
    g = torch.Generator().manual_seed(3)
    sizes = torch.randint(1, 1 << 22, (n // 2 + 1,), generator=g).tolist()
    pick = torch.randint(0, 4000, (n // 2 + 1,), generator=g).tolist()
    live = [None] * 4000

    def site_a(s):
        return torch.empty(s, dtype=torch.uint8, device=dev)

    def site_b(s):
        return torch.empty(s // 2 + 1, dtype=torch.uint8, device=dev)

    def site_c(s):
        return site_a(s)

    f = (site_a, site_b, site_c)
    t0 = time.time()
    for i in range(n // 3):
        live[pick[i]] = f[i % 3](sizes[i])
    t1 = time.time()
    finish("large_trace", out, {"alloc_loop_s": t1 - t0, "allocs": n // 3})


# ---- workloads for the what-if ground truth: the same program under several allocator settings ----------
def dyn_transformer(out, name, cap_mib, steps=60):
    """Variable sequence length training: the classic source of fragmentation."""
    if cap_mib:
        torch.cuda.set_per_process_memory_fraction(
            cap_mib * MiB / torch.cuda.get_device_properties(0).total_memory
        )
    torch.manual_seed(0)
    g = torch.Generator().manual_seed(11)
    enc = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True, dropout=0.1), 6
    ).to(dev)
    head = nn.Linear(512, 8000).to(dev)
    opt = torch.optim.AdamW(
        list(enc.parameters()) + list(head.parameters()), lr=1e-4, foreach=False
    )
    record()
    series, oom = [], None
    try:
        for it in range(steps):
            T = int(torch.randint(50, 900, (1,), generator=g))
            B = int(torch.randint(2, 12, (1,), generator=g))
            x = torch.randn(B, T, 512, device=dev)
            y = torch.randint(0, 8000, (B, T), device=dev)
            loss = F.cross_entropy(head(enc(x)).flatten(0, 1), y.flatten())
            loss.backward()
            opt.step()
            opt.zero_grad(set_to_none=True)
            series.append(
                {
                    "it": it,
                    "T": T,
                    "B": B,
                    "alloc": torch.cuda.memory_allocated(),
                    "reserved": torch.cuda.memory_reserved(),
                }
            )
            del loss, x, y
    except torch.OutOfMemoryError as e:
        oom = str(e)
    finish(name, out, {"series": series, "oom": oom, "cap_mib": cap_mib})


def dyn_transformer_capped(out):
    dyn_transformer(out, "dyn_transformer_capped", 2600)


def mixed_streams(out):
    """Side streams, record_stream, a graph pool and odd sizes in one program."""
    g = torch.Generator().manual_seed(9)
    ss = [torch.cuda.Stream() for _ in range(3)]
    record()
    keep = []
    for i in range(600):
        s = ss[i % 3]
        n = int(torch.randint(1, 3_000_000, (1,), generator=g))
        with torch.cuda.stream(s):
            t = torch.empty(n, dtype=torch.uint8, device=dev)
            t.zero_()
            if i % 4 == 0:
                t.record_stream(ss[(i + 1) % 3])
        if i % 3 == 0:
            keep.append(t)
        if len(keep) > 40:
            del keep[int(torch.randint(0, 40, (1,), generator=g))]
        del t
        if i % 97 == 0:
            torch.cuda.synchronize()
        if i == 300:
            torch.cuda.empty_cache()
    finish("mixed_streams", out)


def cpp_pickled(out):
    """The snapshot as torch's own C++ pickler writes it (what on-demand profiling daemons receive)."""
    from torch.utils.cpp_extension import load_inline

    ext = load_inline(
        "cpp_snap",
        cpp_sources="#include <torch/extension.h>\n#include <torch/csrc/cuda/memory_snapshot.h>\npy::bytes snap(){ return py::bytes(torch::cuda::_memory_snapshot_pickled()); }",
        functions=["snap"],
        with_cuda=True,
        extra_ldflags=["-ltorch_cuda", "-lc10_cuda"],
        verbose=False,
    )
    m = mlp(512, 4)
    record(stacks="all")
    for _ in range(3):
        m(torch.randn(32, 512, device=dev)).sum().backward()
    raw = ext.snap()
    import re

    open(f"{out}/cpp_pickled.cpp.pickle", "wb").write(raw)
    finish("cpp_pickled", out, {"cpp_bytes": len(raw)})


def metadata(out):
    torch.cuda.memory._set_memory_metadata("epoch-0") if hasattr(
        torch.cuda.memory, "_set_memory_metadata"
    ) else None
    m = mlp(512, 4)
    record()
    opt = torch.optim.Adam(m.parameters())
    for i in range(3):
        if hasattr(torch.cuda.memory, "_set_memory_metadata"):
            torch.cuda.memory._set_memory_metadata(f"step-{i}")
        with torch.profiler.record_function(f"## step {i} ##"):
            m(torch.randn(32, 512, device=dev)).sum().backward()
            opt.step()
            opt.zero_grad()
    finish("metadata", out)


if __name__ == "__main__":
    globals()[sys.argv[1]](sys.argv[2])
