# SPDX-License-Identifier: Apache-2.0
"""Programs that run out of memory for real, each for a known reason.

usage: python oom_programs.py FOLDER [NAME ...]
       python oom_programs.py --run FOLDER NAME ...

Runs the programs on the current CUDA device, those of one kind in one process (after one that
leaves memory behind in another), most of them below a limit that makes them quick.
FOLDER/NAME.pickle.xz is PyTorch's snapshot after the failure, FOLDER/NAME.json what was known
at that moment, as `explain` reads it. At the end a table says which verdict each was given; the
exit code is 1 if one is wrong. `--run` runs the named ones in this process (or up to the first
that leaves memory behind), and judges nothing.
"""

from __future__ import annotations

import ctypes
import faulthandler
import gc
import json
import lzma
import os
import pathlib
import pickle
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

MIB = 1 << 20

#: The limit of programs that have one, in MiB.
CAP = 1024

# The exit code of a process that has memory left over from a program, which would be in the
# way of the next one: cycles of C++ objects, as `create_graph` makes, outlive their program.
_LEFT_OVER = 75


@dataclass(frozen=True)
class Program:
    """A program, and why it fails.

    Attributes:
        name: Its name.
        kind: The main verdict.
        run: The program; ends in an out-of-memory error.
        cap: The limit of the process in MiB; None: the whole device.
        phase: The phase of the failure; None: not asked for.
        also: Verdicts that follow the main one.
        conf: Allocator settings to switch on.
    """

    name: str
    kind: str
    run: Callable[[Any], None]
    cap: int | None = CAP
    phase: str | None = None
    also: tuple[str, ...] = ()
    conf: str = ""


PROGRAMS: list[Program] = []


def program(kind: str, **keys: Any) -> Callable[[Callable[[Any], None]], Callable[[Any], None]]:
    """Registers a function as a program."""

    def register(run: Callable[[Any], None]) -> Callable[[Any], None]:
        PROGRAMS.append(Program(run.__name__, kind, run, **keys))
        return run

    return register


def tensor(torch: Any, mib: float) -> Any:
    """So many MiB of the device."""
    return torch.empty(round(mib * MIB), dtype=torch.uint8, device="cuda")


def mlp(torch: Any, width: int = 2048, depth: int = 3) -> Any:
    """A model of `depth` layers; with the default width 16 MiB each."""
    nn = torch.nn
    layers = []
    for _ in range(depth):
        layers += [nn.Linear(width, width, device="cuda"), nn.ReLU()]
    return nn.Sequential(*layers)


def fill_device(torch: Any, leave: int) -> Any:
    """One block that leaves so many MiB of the device."""
    free, _ = torch.cuda.mem_get_info()
    return tensor(torch, free // MIB - leave)


# ---- fragmentation: the bytes are there, in pieces -----------------------------------------


def pieces(torch: Any, total: int, each: int) -> list[Any]:
    """Blocks cut out of one segment."""
    whole = tensor(torch, total)
    del whole
    return [tensor(torch, each) for _ in range(total // each)]


@program("fragmentation")
def every_other_block_freed(torch: Any) -> None:
    blocks = pieces(torch, 900, 10)
    del blocks[::2]
    tensor(torch, 300)


@program("fragmentation")
def small_keepers_in_large_segments(torch: Any) -> None:
    kept = []
    for _ in range(30):
        scratch = tensor(torch, 30)
        del scratch
        kept.append(tensor(torch, 16))
    tensor(torch, 400)


@program("fragmentation")
def streamed_layers_of_a_cache(torch: Any) -> None:
    # As large as a page of an expandable segment: such pages could be given back.
    layers = dict(enumerate(pieces(torch, 960, 20)))
    for number in range(0, 48, 2):
        del layers[number]
    nn = torch.nn
    nn.Linear(8192, 8192, bias=False, device="meta").to_empty(device="cuda")


# In these two no setting would have found room: the limit is the first that can be changed.
@program("process_cap", conf="expandable_segments:True", also=("fragmentation",))
def pages_kept_by_small_blocks(torch: Any) -> None:
    blocks = [tensor(torch, 5) for _ in range(160)]
    kept = blocks[::4]
    del blocks
    tensor(torch, 600)
    del kept


@program("fragmentation")
def growing_batches_with_results_kept(torch: Any) -> None:
    results = []
    for number in range(20):
        batch = tensor(torch, 30 + 2 * number)
        batch.zero_()
        del batch
        results.append(tensor(torch, 16 + number))
    tensor(torch, 450)


@program("process_cap", conf="max_split_size_mb:200", also=("fragmentation",))
def pieces_below_the_split_size(torch: Any) -> None:
    blocks = [block for _ in range(5) for block in pieces(torch, 180, 18)]
    del blocks[1::2]
    tensor(torch, 350)


# ---- cache_growth: made anew in every step, a little larger -----------------------------------


def joined(torch: Any, before: Any, new: Any) -> Any:
    return new if before is None else torch.cat([before, new])


@program("cache_growth")
def predictions_joined_in_every_step(torch: Any) -> None:
    seen = None
    for _ in range(200):
        work = tensor(torch, 20)
        seen = joined(torch, seen, tensor(torch, 10))
        del work


@program("cache_growth")
def keys_and_values_of_a_decoder(torch: Any) -> None:
    layers: list[Any] = [None] * 12
    for _ in range(400):
        for number in range(len(layers)):
            layers[number] = joined(torch, layers[number], tensor(torch, 0.75))
        probe = tensor(torch, 8)
        del probe


@program("cache_growth")
def image_that_grows_by_a_row(torch: Any) -> None:
    image = None
    for _ in range(400):
        row = torch.rand(64, 32_768, device="cuda")
        image = row if image is None else torch.vstack([image, row])


@program("cache_growth")
def buffer_padded_further_each_time(torch: Any) -> None:
    buffer = tensor(torch, 10)
    for _ in range(200):
        buffer = torch.nn.functional.pad(buffer, (0, 6 * MIB))
        scratch = tensor(torch, 12)
        del scratch


@program("cache_growth")
def history_stacked_anew(torch: Any) -> None:
    rows: list[Any] = []
    stacked = None
    for number in range(400):
        rows.append(torch.full((MIB // 4,), number, dtype=torch.float32))
        stacked = torch.stack(rows * 4).to("cuda")
        value = stacked.sum().item()
        assert value >= 0


# ---- cycle_garbage: only the collector frees it --------------------------------------------


class Node:
    """A node of a ring, with a tensor."""

    def __init__(self, held: Any) -> None:
        self.held = held
        self.link: Any = None


@contextmanager
def no_collection() -> Iterator[None]:
    """Python's collector is off, as under a high threshold."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@program("cycle_garbage")
def rings_of_nodes(torch: Any) -> None:
    with no_collection():
        for _ in range(15):
            one, two = Node(tensor(torch, 30)), Node(tensor(torch, 30))
            one.link, two.link = two, one
            del one, two
        tensor(torch, 500)


def fails_with(held: Any) -> None:
    try:
        raise ValueError(held.shape)
    except ValueError as error:
        kept = error
    assert kept is not None


@program("cycle_garbage")
def exceptions_kept_in_their_own_frames(torch: Any) -> None:
    with no_collection():
        for _ in range(15):
            fails_with(tensor(torch, 60))
        tensor(torch, 500)


@program("cycle_garbage")
def closures_that_name_themselves(torch: Any) -> None:
    def make(held: Any) -> None:
        def again() -> Any:
            return again, held

        again()

    with no_collection():
        for _ in range(15):
            make(tensor(torch, 60))
        tensor(torch, 500)


@program("cycle_garbage", phase="loading")
def models_with_links_to_their_parents(torch: Any) -> None:
    nn = torch.nn
    with no_collection():
        for _ in range(14):
            parent = nn.Module()
            parent.child = nn.Linear(4096, 4096, bias=False, device="meta").to_empty(device="cuda")
            parent.child.parents = [parent]
            del parent
        nn.Linear(10240, 10240, bias=False, device="meta").to_empty(device="cuda")


class Trainer:
    """Has a bound method of itself in a list."""

    def __init__(self, torch: Any) -> None:
        self.buffer = tensor(torch, 60)
        self.callbacks = [self.step]

    def step(self) -> Any:
        return self.buffer


@program("cycle_garbage")
def trainers_with_their_own_callbacks(torch: Any) -> None:
    with no_collection():
        for _ in range(15):
            Trainer(torch).step()
        tensor(torch, 500)


# ---- other_pool: free, but not for this request --------------------------------------------


def captured(torch: Any, mib: int) -> Any:
    """A graph in whose private pool so much is free."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        scratch = tensor(torch, mib)
        scratch.zero_()
        del scratch
    return graph


@program("other_pool")
def pool_of_a_captured_graph(torch: Any) -> None:
    graph = captured(torch, 700)
    tensor(torch, 500)
    del graph


@program("other_pool")
def pools_of_two_graphs(torch: Any) -> None:
    graphs = [captured(torch, 400), captured(torch, 400)]
    tensor(torch, 600)
    del graphs


@program("other_pool")
def cache_of_a_mempool(torch: Any) -> None:
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        scratch = tensor(torch, 700)
        del scratch
    tensor(torch, 500)
    del pool


@program("other_pool")
def hole_of_a_side_stream(torch: Any) -> None:
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        scratch = tensor(torch, 800)
        del scratch
        kept = tensor(torch, 20)
    tensor(torch, 500)
    del kept


@program("other_pool")
def hole_of_the_default_stream(torch: Any) -> None:
    scratch = tensor(torch, 800)
    del scratch
    kept = tensor(torch, 20)
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        tensor(torch, 500)
    del kept


@program("other_pool")
def small_blocks_of_a_mempool(torch: Any) -> None:
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        spare = [tensor(torch, 60) for _ in range(12)]
        spare.clear()
    kept = tensor(torch, 100)
    tensor(torch, 400)
    del pool, kept


# ---- non_torch: the device is full of what isn't PyTorch's ---------------------------------


class Foreign:
    """Device memory that PyTorch's allocator knows nothing of."""

    def __init__(self, torch: Any, leave: int, parts: int = 1) -> None:
        with open("/proc/self/maps") as maps:
            paths = {line.split()[-1] for line in maps if "libcudart" in line}
        self.runtime = ctypes.CDLL(sorted(paths)[0])
        free, _ = torch.cuda.mem_get_info()
        self.pointers = []
        for _ in range(parts):
            pointer = ctypes.c_void_p()
            size = ctypes.c_size_t((free - leave * MIB) // parts)
            failed = self.runtime.cudaMalloc(ctypes.byref(pointer), size)
            if failed:
                raise RuntimeError(f"cudaMalloc: error {failed}")
            self.pointers.append(pointer)

    def __enter__(self) -> Foreign:
        return self

    def __exit__(self, *_: object) -> None:
        for pointer in self.pointers:
            self.runtime.cudaFree(pointer)


@program("non_torch", cap=None)
def library_took_the_device(torch: Any) -> None:
    with Foreign(torch, 300):
        tensor(torch, 1024)


@program("non_torch", cap=None, phase="loading")
def library_left_no_room_for_a_model(torch: Any) -> None:
    with Foreign(torch, 700, parts=4):
        nn = torch.nn
        layers = [nn.Linear(8192, 8192, device="meta"), nn.Linear(16384, 8192, device="meta")]
        nn.Sequential(*layers).to_empty(device="cuda")


@program("non_torch", cap=None, phase="forward")
def library_left_no_room_for_activations(torch: Any) -> None:
    model = mlp(torch, depth=6)
    batch = torch.randn(16384, 2048, device="cuda")
    with Foreign(torch, 600):
        model(batch)


@program("non_torch", cap=None, phase="optimizer")
def library_left_no_room_for_adam(torch: Any) -> None:
    model = mlp(torch, width=8192, depth=1)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.randn(8, 8192, device="cuda")).sum().backward()
    with Foreign(torch, 300):
        optimizer.step()


@program("non_torch", cap=None)
def another_process_has_the_device(torch: Any) -> None:
    script = (
        "import sys, torch; free, _ = torch.cuda.mem_get_info();"
        "held = torch.empty(free - (1200 << 20), dtype=torch.uint8, device='cuda');"
        "print('ready', flush=True); sys.stdin.read()"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", script], **pipes) as child:
        try:
            if child.stdout.readline() != b"ready\n":
                raise RuntimeError("the other process took nothing")
            tensor(torch, 2048)
        finally:
            child.stdin.close()


# ---- leak: every step leaves something -----------------------------------------------------


@program("leak")
def outputs_kept_in_training(torch: Any) -> None:
    model = mlp(torch)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    kept = []
    while True:
        out = model(torch.randn(2048, 2048, device="cuda"))
        out.pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        kept.append(out)


@program("leak")
def losses_kept_with_their_graphs(torch: Any) -> None:
    model = mlp(torch, depth=6)
    losses = []
    while True:
        batch = torch.randn(512, 2048, device="cuda")
        losses.append(model(batch).mean())


@program("leak")
def results_kept_in_a_list(torch: Any) -> None:
    kept = []
    while True:
        scratch = tensor(torch, 100)
        kept.append(tensor(torch, 12))
        del scratch


@program("leak")
def memo_that_never_forgets(torch: Any) -> None:
    memo: dict[int, Any] = {}
    for number in range(1000):
        scratch = tensor(torch, 64)
        memo[number] = scratch[: 12 * MIB].clone()
        del scratch


@program("leak")
def hook_that_keeps_activations(torch: Any) -> None:
    model = mlp(torch)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    seen = []
    model[1].register_forward_hook(lambda module, inputs, out: seen.append(out))
    while True:
        model(torch.randn(2048, 2048, device="cuda")).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()


@program("leak")
def graphs_of_second_order(torch: Any) -> None:
    while True:
        weight = torch.randn(2048, 2048, device="cuda", requires_grad=True)
        (weight**3).sum().backward(create_graph=True)
        del weight
        gc.collect()


# ---- process_cap: the device has room, the process may not have it -------------------------


@program("process_cap", cap=512)
def one_tensor_above_the_cap(torch: Any) -> None:
    kept = tensor(torch, 100)
    tensor(torch, 600)
    del kept


@program("process_cap", cap=512, phase="loading")
def model_above_the_cap(torch: Any) -> None:
    torch.nn.Linear(10240, 20480, bias=False, device="meta").to_empty(device="cuda")


@program("process_cap", cap=512, phase="forward")
def activations_above_the_cap(torch: Any) -> None:
    mlp(torch, depth=6)(torch.randn(16384, 2048, device="cuda"))


@program("process_cap", cap=350, phase="optimizer")
def adam_above_the_cap(torch: Any) -> None:
    model = mlp(torch, width=5120, depth=1)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.randn(8, 5120, device="cuda")).sum().backward()
    optimizer.step()


@program("process_cap", cap=512, phase="inference")
def logits_above_the_cap(torch: Any) -> None:
    model = torch.nn.Linear(1024, 32768, device="cuda")
    with torch.no_grad():
        model(torch.randn(8192, 1024, device="cuda"))


@program("process_cap", cap=700, phase="backward")
def gradient_above_the_cap(torch: Any) -> None:
    table = torch.nn.Embedding(100_000, 1024, device="cuda")
    words = torch.randint(0, 100_000, (16,), device="cuda")
    table(words).sum().backward()


# ---- capacity: the device is too small -----------------------------------------------------


# What each of these lacks is gigabytes: what other processes have of the device is less.


@program("capacity", cap=None)
def one_tensor_above_the_rest(torch: Any) -> None:
    weights = fill_device(torch, 600)
    tensor(torch, 8000)
    del weights


@program("capacity", cap=None, phase="loading")
def model_above_the_rest(torch: Any) -> None:
    weights = fill_device(torch, 500)
    torch.nn.Linear(40960, 40960, bias=False, device="meta").to_empty(device="cuda")
    del weights


@program("capacity", cap=None, phase="forward")
def activations_above_the_rest(torch: Any) -> None:
    model = torch.nn.Sequential(
        torch.nn.Linear(1024, 4096), torch.nn.ReLU(), torch.nn.Linear(4096, 262_144)
    ).cuda()
    weights = fill_device(torch, 600)
    model(torch.randn(8192, 1024, device="cuda"))
    del weights


@program("capacity", cap=None, phase="backward")
def gradient_above_the_rest(torch: Any) -> None:
    table = torch.nn.Embedding(2_000_000, 1024, device="cuda")
    words = torch.randint(0, 2_000_000, (16,), device="cuda")
    weights = fill_device(torch, 400)
    table(words).sum().backward()
    del weights


@program("capacity", cap=None, phase="optimizer")
def adam_above_the_rest(torch: Any) -> None:
    model = mlp(torch, width=36_864, depth=1)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.randn(8, 36_864, device="cuda")).sum().backward()
    weights = fill_device(torch, 500)
    optimizer.step()
    del weights


@program("capacity", cap=None, phase="inference")
def logits_above_the_rest(torch: Any) -> None:
    model = torch.nn.Linear(1024, 131_072, device="cuda")
    weights = fill_device(torch, 400)
    with torch.no_grad():
        model(torch.randn(16384, 1024, device="cuda"))
    del weights


# ---- unreasonable_request: more than any of it ---------------------------------------------


@program("unreasonable_request", cap=None)
def tensor_of_a_wrong_unit(torch: Any) -> None:
    tensor(torch, 300 * 1024)


@program("unreasonable_request", cap=None)
def all_pairs_of_points(torch: Any) -> None:
    points = torch.randn(300_000, 3, device="cuda")
    (points[:, None] - points[None]).pow(2)


@program("unreasonable_request", cap=None)
def mask_of_all_tokens(torch: Any) -> None:
    torch.ones(400_000, 400_000, device="cuda").tril()


@program("unreasonable_request", cap=None)
def one_hot_of_a_vocabulary(torch: Any) -> None:
    words = torch.randint(0, 250_000, (200_000,), device="cuda")
    torch.nn.functional.one_hot(words, 250_000)


@program("unreasonable_request", phase="loading", cap=None)
def layer_with_a_flattened_image(torch: Any) -> None:
    torch.nn.Linear(3 * 1024 * 1024, 65536, device="cuda")


@program("unreasonable_request", cap=CAP)
def repeated_along_a_wrong_axis(torch: Any) -> None:
    torch.randn(1024, 1024, device="cuda").repeat(512, 512)


# ---- two causes ----------------------------------------------------------------------------


@program("cycle_garbage", also=("fragmentation",))
def garbage_beside_fragments(torch: Any) -> None:
    with no_collection():
        for _ in range(10):
            Trainer(torch).step()
        blocks = pieces(torch, 300, 10)
        del blocks[::2]
        tensor(torch, 400)


@program("fragmentation", also=("cycle_garbage",))
def fragments_beside_garbage(torch: Any) -> None:
    with no_collection():
        for _ in range(10):
            Trainer(torch).step()
        blocks = pieces(torch, 300, 10)
        del blocks[::2]
        tensor(torch, 250)


@program("leak", also=("other_pool", "process_cap"))
def leak_beside_a_pool(torch: Any) -> None:
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        spare = tensor(torch, 100)
        del spare
    kept = []
    for _ in range(100):
        scratch = tensor(torch, 64)
        kept.append(tensor(torch, 12))
        del scratch
    del pool


@program("non_torch", cap=None, also=("leak",))
def foreign_memory_beside_a_leak(torch: Any) -> None:
    kept = []
    with Foreign(torch, 1000):
        for _ in range(50):
            scratch = tensor(torch, 64)
            kept.append(tensor(torch, 12))
            del scratch
        tensor(torch, 900)


# ---- running them --------------------------------------------------------------------------


def set_settings(torch: Any, conf: str) -> None:
    """Changes the allocator's settings, under the name that this PyTorch has for it."""
    new = getattr(torch._C, "_accelerator_setAllocatorSettings", None)
    (new or torch._C._cuda_cudaCachingAllocator_set_allocator_settings)(conf)


@dataclass
class Moment:
    """What the observer saw when a request failed."""

    seen: list[dict[str, Any]] = field(default_factory=list)


class Runner:
    """Runs programs in this process, and writes down how they ended."""

    def __init__(self, folder: pathlib.Path) -> None:
        import torch

        import neutracer

        self.torch, self.neutracer = torch, neutracer
        self.folder = folder
        self.moment = Moment()
        torch.cuda.init()
        self.total = torch.cuda.mem_get_info()[1]
        folder.mkdir(parents=True, exist_ok=True)
        # Everything that is loaded at the first use is loaded now.
        (torch.randn(64, 64, device="cuda") @ torch.randn(64, 64, device="cuda")).sum().item()
        torch._C._cuda_attach_out_of_memory_observer(self._observe)

    def _observe(self, device: int, asked: int, total: int, free: int) -> None:
        """Called by PyTorch when a request has failed; must not raise."""
        try:
            facts = {
                "device": device,
                "segment_bytes": asked,
                "limit_bytes": total,
                "device_total_bytes": self.total,
                "device_free_bytes": free,
                "garbage_bytes": self.neutracer.garbage_bytes(f"cuda:{device}"),
                "grad_enabled": self.torch.is_grad_enabled(),
            }
            self.moment.seen.append(facts)
        except Exception as error:
            self.moment.seen.append({"error": repr(error)})

    def run(self, one: Program) -> str:
        """Runs a program to its failure; returns what went wrong with that, or ""."""
        torch = self.torch
        self._clean()
        self.moment.seen.clear()
        torch.cuda.set_per_process_memory_fraction(
            1.0 if one.cap is None else one.cap * MIB / self.total
        )
        if one.conf:
            set_settings(torch, one.conf)
        torch.cuda.memory._record_memory_history(max_entries=100_000, stacks="python")
        message = ""
        try:
            one.run(torch)
        except torch.OutOfMemoryError as error:
            message = str(error)
        snapshot = torch.cuda.memory._snapshot()
        torch.cuda.memory._record_memory_history(enabled=None)
        torch.cuda.set_per_process_memory_fraction(1.0)
        self._clean()
        if one.conf:
            set_settings(torch, "expandable_segments:False")
        if not message:
            return "it did not fail"
        self._write(one, snapshot, message)
        return ""

    def is_clean(self) -> bool:
        """Whether nothing of the programs so far is left."""
        return bool(self.torch.cuda.memory_allocated() < MIB)

    def _clean(self) -> None:
        torch = self.torch
        gc.collect()
        torch._C._cuda_clearCublasWorkspaces()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()

    def _write(self, one: Program, snapshot: Any, message: str) -> None:
        site = os.path.dirname(os.path.dirname(self.torch.__file__))
        here = str(pathlib.Path(__file__).resolve().parent)
        known: set[int] = set()
        for frame in _frames(snapshot):
            if id(frame) not in known:
                known.add(id(frame))
                name = frame["filename"].replace(site, "/usr/lib/python3/dist-packages")
                frame["filename"] = name.replace(here + os.sep, "")
        data = lzma.compress(pickle.dumps(snapshot, 4), preset=6)
        (self.folder / f"{one.name}.pickle.xz").write_bytes(data)
        facts = self.moment.seen[-1] if self.moment.seen else {}
        oom = {"schema": "neutracer.oom/1", **facts, "message": message}
        beside = {
            "torch": self.torch.__version__,
            "gpu": self.torch.cuda.get_device_name(0),
            "program": one.name,
            "kind": one.kind,
            "phase": one.phase,
            "also": list(one.also),
            "cap_mib": one.cap,
            "oom": oom,
        }
        (self.folder / f"{one.name}.json").write_text(json.dumps(beside, indent=1))


def _frames(snapshot: Any) -> Iterator[dict[str, Any]]:
    for segment in snapshot["segments"]:
        yield from segment.get("frames") or ()
        for block in segment["blocks"]:
            yield from block.get("frames") or ()
    for trace in snapshot["device_traces"]:
        for entry in trace:
            yield from entry.get("frames") or ()


def judged(neutracer: Any, folder: pathlib.Path, one: Program) -> tuple[str, str]:
    """What `explain` says of a program's file, and what is wrong with that, or ""."""
    report = neutracer.explain(folder / f"{one.name}.pickle.xz")
    kinds = [verdict.kind for verdict in report.verdicts]
    said = f"{' > '.join(kinds)} ({report.phase})"
    if kinds[0] != one.kind:
        return said, f"the main verdict should be {one.kind}"
    if not set(one.also) <= set(kinds):
        return said, f"{', '.join(one.also)} should follow"
    if one.phase is not None and report.phase != one.phase:
        return said, f"the phase should be {one.phase}"
    return said, ""


def run_here(folder: pathlib.Path, names: list[str]) -> int:
    """Runs programs in this process; what went wrong stands in FOLDER/NAME.txt."""
    faulthandler.enable()
    runner = Runner(folder)
    for one in PROGRAMS:
        if one.name not in names:
            continue
        print(one.name, flush=True)
        try:
            wrong = runner.run(one)
        except Exception as error:
            wrong = f"{type(error).__name__}: {error}"
        (folder / f"{one.name}.txt").write_text(wrong)
        if not runner.is_clean():
            return _LEFT_OVER
    return 0


def run_kind(folder: pathlib.Path, names: list[str]) -> None:
    """Runs programs in a process of their own; after one that ends it or leaves memory
    behind, in another one."""
    left = list(names)
    while left:
        command = [sys.executable, __file__, "--run", str(folder), *left]
        code = subprocess.run(command, stdout=subprocess.DEVNULL, check=False).returncode
        done = [name for name in left if (folder / f"{name}.txt").exists()]
        left = [name for name in left if name not in done]
        if left and code != _LEFT_OVER:
            (folder / f"{left[0]}.txt").write_text(f"its process ended with {code}")
            del left[0]


def main(arguments: list[str]) -> int:
    if arguments[0] == "--run":
        return run_here(pathlib.Path(arguments[1]), arguments[2:])
    import neutracer

    folder, wanted = pathlib.Path(arguments[0]), arguments[1:]
    folder.mkdir(parents=True, exist_ok=True)
    chosen = [one for one in PROGRAMS if not wanted or one.name in wanted]
    bad = 0
    for kind in dict.fromkeys(one.kind for one in chosen):
        programs = [one for one in chosen if one.kind == kind]
        begin = time.monotonic()
        run_kind(folder, [one.name for one in programs])
        took = time.monotonic() - begin
        for one in programs:
            wrong, said = (folder / f"{one.name}.txt").read_text(), ""
            if not wrong:
                said, wrong = judged(neutracer, folder, one)
            bad += bool(wrong)
            mark = f"WRONG: {wrong}" if wrong else "right"
            print(f"{kind:22}{one.name:40}{mark:8}{said}", flush=True)
        print(f"{kind}: {took:.1f} s", flush=True)
    print(f"{bad} of {len(chosen)} wrong")
    return int(bool(bad))


if __name__ == "__main__":
    if len(sys.argv) < 2:
        raise SystemExit(__doc__)
    sys.exit(main(sys.argv[1:]))
