# SPDX-License-Identifier: Apache-2.0
"""Runs random programs on a GPU, each with a setting in a process of its own.

usage: python run_programs.py run SEED SETTING FOLDER [--wait]
       python run_programs.py drive FOLDER [--seeds FIRST LAST] [--settings N]
                              [--processes N] [--seconds N] [--no-device]

`run` carries one program out in this process and writes FOLDER/SEED-SETTING.pickle.xz, the
allocator's snapshot with its history, and FOLDER/SEED-SETTING.json with PyTorch's own
figures. SETTING is a number in random_programs.SETTINGS. `drive` does that for many pairs,
several at a time, and packs what they wrote into tar files, one folder a seed. Programs that
fill the device run at the end, one after the other.
"""

import argparse
import contextlib
import itertools
import json
import lzma
import math
import os
import pathlib
import pickle
import subprocess
import sys
import tarfile
import tempfile
import time
import traceback
from concurrent.futures import ThreadPoolExecutor

import random_programs as programs
from random_programs import GIB, MIB

HERE = pathlib.Path(__file__).resolve()
TAR_BYTES = 14 * MIB


def conf_of(seed, setting):
    """What PYTORCH_CUDA_ALLOC_CONF says at the start, and what holds from the recording on."""
    conf = programs.SETTINGS[setting]
    if programs.sort_of(seed) != "late":
        return conf, conf
    if seed // len(programs.SORTS) % 2 == 0:
        return "", conf
    if "expandable" not in conf:
        conf = ",".join(filter(None, (conf, "expandable_segments:False")))
    return "expandable_segments:True", conf


class Runner:
    """Carries the operations of a program out."""

    def __init__(self, torch, conf):
        self.torch, self.conf = torch, conf
        self.tensors, self.pointers = {}, {}
        self.streams = [torch.cuda.default_stream()]
        self.streams += [torch.cuda.Stream() for _ in range(3)]
        self.capture_stream = torch.cuda.Stream()
        self.pools, self.graphs, self.states = {}, {}, {}
        self.contexts, self.is_fresh = [], False
        self.start, self.limit, self.ballast = {}, 0, []

    def alloc(self, slot, size, stream):
        torch = self.torch
        with torch.cuda.stream(None if stream < 0 else self.streams[stream]):
            try:
                tensor = torch.empty(size, dtype=torch.uint8, device="cuda")
            except torch.OutOfMemoryError:
                return
        self.tensors[slot], self.pointers[slot] = tensor, tensor.data_ptr()
        if self.is_fresh:  # A graph that holds nothing draws a warning.
            tensor[:1].zero_()
            self.is_fresh = False

    def free(self, slot):
        self.tensors.pop(slot, None)

    def use(self, slot, stream, cycles):
        if cycles:
            with self.torch.cuda.stream(self.streams[stream]):
                self.torch.cuda._sleep(cycles)
        if slot in self.tensors:
            self.tensors[slot].record_stream(self.streams[stream])

    def sync(self):
        self.torch.cuda.synchronize()

    def empty(self):
        self.torch.cuda.empty_cache()

    def cap(self, nbytes):
        total = self.torch.cuda.mem_get_info()[1]
        fraction = nbytes / total
        while int(fraction * total) < nbytes:
            fraction = math.nextafter(fraction, 1)
        self.torch.cuda.set_per_process_memory_fraction(fraction)
        self.limit = int(fraction * total)

    def settings(self):
        change = getattr(self.torch._C, "_accelerator_setAllocatorSettings", None)
        (change or self.torch.cuda.memory._set_allocator_settings)(self.conf)

    def record(self):
        cuda = self.torch.cuda
        cuda.memory._record_memory_history(max_entries=200_000, stacks="python")
        self.start = figures(self.torch)
        self.start["segments_and_ranges"] = len(cuda.memory_snapshot())

    def fill(self, room):
        """Takes all of the device but about `room` bytes, in powers of two."""
        count = (self.torch.cuda.mem_get_info()[0] - room) // GIB
        while count > 0:
            size = min(16, 1 << (count.bit_length() - 1))
            self.ballast.append(self.torch.empty(size * GIB, dtype=self.torch.uint8, device="cuda"))
            count -= size

    def enter(self, name):
        if name not in self.pools:
            self.pools[name] = self.torch.cuda.MemPool()
        self.contexts.append(self.torch.cuda.use_mem_pool(self.pools[name]))
        self.contexts[-1].__enter__()

    def leave(self):
        self.contexts.pop().__exit__(None, None, None)

    def drop(self, name):
        del self.pools[name]

    def capture(self, name, shared):
        graph = self.graphs[name] = self.torch.cuda.CUDAGraph()
        context = self.torch.cuda.graph(
            graph,
            pool=None if shared is None else self.graphs[shared].pool(),
            stream=self.capture_stream,
            capture_error_mode="relaxed",
        )
        context.__enter__()
        self.contexts.append(context)
        self.is_fresh = True

    def end(self):
        self.leave()
        self.is_fresh = False

    def drop_graph(self, name):
        del self.graphs[name]

    def save(self, name):
        pool = self.graphs[name].pool()
        self.states[name] = self.torch._C._cuda_getCheckpointState(0, pool)

    def restore(self, name):
        self.torch._C._cuda_setCheckpointPoolState(0, self.states[name], [], [])

    def delete(self, slot):
        """Frees a block of a pool that was put back as it was once; no tensor owns it."""
        if slot in self.pointers:
            self.torch._C._cuda_cudaCachingAllocator_raw_delete(self.pointers[slot])


def figures(torch):
    """The figures of memory_stats that sum up both pools."""
    stats = torch.cuda.memory_stats()
    return {key: stats[key] for key in stats if "pool" not in key and not key.endswith("ed")}


def short_names(snapshot):
    """Names the files of frames without their folders."""
    seen = set()
    owners = [*snapshot["segments"], *itertools.chain(*snapshot["device_traces"])]
    for owner in owners:
        for holder in [owner, *owner.get("blocks", ())]:
            for frame in holder.get("frames") or ():
                if id(frame) not in seen:
                    seen.add(id(frame))
                    frame["filename"] = os.path.basename(frame["filename"])


def run(seed, setting, folder, wait=False):
    """One program under one setting, in this process."""
    first_conf, conf = conf_of(seed, setting)
    os.environ["PYTORCH_CUDA_ALLOC_CONF"] = first_conf
    import torch

    if wait:
        sys.stdin.readline()
    torch.cuda.init()
    runner = Runner(torch, conf)
    torch.cuda.synchronize()
    free, total = torch.cuda.mem_get_info()
    meta = {"seed": seed, "sort": programs.sort_of(seed), "setting": setting}
    meta |= {"first_conf": first_conf, "conf": conf, "digest": programs.digest(seed)}
    meta |= {"torch": torch.__version__, "gpu": torch.cuda.get_device_name(0)}
    meta |= {"device_free_at_start": free, "device_total": total}
    for position, (name, *values) in enumerate(programs.program(seed)):
        try:
            getattr(runner, name)(*values)
        except Exception as error:
            meta["error"] = f"operation {position}, {name}: {error!r}"
            traceback.print_exc()
            break
    with contextlib.suppress(Exception):
        torch.cuda.synchronize()
    meta["stats"], meta["start"] = figures(torch), runner.start
    meta["limit"], meta["device_free"] = runner.limit, torch.cuda.mem_get_info()[0]
    snapshot = torch.cuda.memory._snapshot()
    short_names(snapshot)
    meta["events"] = len(snapshot["device_traces"][0])
    path = pathlib.Path(folder) / f"{seed}-{setting}.pickle.xz"
    path.write_bytes(lzma.compress(pickle.dumps(snapshot, 4), preset=6))
    path.with_name(f"{seed}-{setting}.json").write_text(json.dumps(meta, indent=0))
    sys.stdout.flush()
    os._exit(0)  # Tensors of pools that were dropped need no orderly end.


def start(seed, setting, folder, *more):
    command = [sys.executable, str(HERE), "run", str(seed), str(setting), folder, *more]
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )


def finish(process, pair):
    """What went wrong with a pair, or None."""
    try:
        output, _ = process.communicate(b"\n", timeout=150)
    except subprocess.TimeoutExpired:
        process.kill()
        return f"{pair}: took too long"
    if process.returncode == 0:
        return None
    return f"{pair}: status {process.returncode}: {output.decode(errors='replace')[-600:]}"


def pack(folder, out):
    """Tar files of less than TAR_BYTES, one folder a seed."""
    parts, size = [[]], 0
    for path in sorted(pathlib.Path(folder).iterdir()):
        if size + path.stat().st_size > TAR_BYTES:
            parts.append([])
            size = 0
        parts[-1].append(path)
        size += path.stat().st_size + 1024
    for number, part in enumerate(parts):
        with tarfile.open(out / f"programs{number}.tar", "w") as archive:
            for path in part:
                archive.add(path, f"{path.name.partition('-')[0]}/{path.name}")


def drive(options):
    began = time.monotonic()
    out = pathlib.Path(options.folder)
    out.mkdir(parents=True, exist_ok=True)
    pairs = [
        (seed, setting)
        for seed in range(options.seeds[0], options.seeds[1] + 1)
        for setting in programs.settings_of(seed, options.settings)
    ]
    alone = [(s, k) for s in programs.DEVICE_SEEDS for k in programs.settings_of(s)]
    failures, done = [], 0
    with tempfile.TemporaryDirectory() as folder:

        def one(pair):
            if time.monotonic() - began > options.seconds:
                return f"{pair}: no time left"
            return finish(start(*pair, folder), pair)

        with ThreadPoolExecutor(options.processes) as pool:
            failures += filter(None, pool.map(one, pairs))
        print(f"{len(pairs)} pairs after {time.monotonic() - began:.0f} s", flush=True)
        if not options.no_device and time.monotonic() - began < options.seconds:
            waiting = [start(*pair, folder, "--wait") for pair in alone]
            for pair, process in zip(alone, waiting, strict=True):
                failures += filter(None, [finish(process, pair)])
        done = len(list(pathlib.Path(folder).glob("*.json")))
        errors = [
            f"{path.stem}: {meta['error']}"
            for path in sorted(pathlib.Path(folder).glob("*.json"))
            if "error" in (meta := json.loads(path.read_text()))
        ]
        pack(folder, out)
    (out / "failures.txt").write_text("\n".join([*failures, *errors]))
    print(f"{done} pairs done, {len(failures)} failed, {len(errors)} ended early,", end=" ")
    print(f"{time.monotonic() - began:.0f} s")
    print("\n".join([*failures, *errors])[:6000])


def main():
    parser = argparse.ArgumentParser()
    commands = parser.add_subparsers(dest="command", required=True)
    single = commands.add_parser("run")
    single.add_argument("seed", type=int)
    single.add_argument("setting", type=int)
    single.add_argument("folder")
    single.add_argument("--wait", action="store_true")
    many = commands.add_parser("drive")
    many.add_argument("folder")
    many.add_argument("--seeds", type=int, nargs=2, default=(0, 59))
    many.add_argument("--settings", type=int, default=6, help="how many each seed runs under")
    many.add_argument("--processes", type=int, default=16)
    many.add_argument("--seconds", type=int, default=400, help="start nothing later")
    many.add_argument("--no-device", action="store_true")
    options = parser.parse_args()
    if options.command == "run":
        run(options.seed, options.setting, options.folder, options.wait)
    else:
        drive(options)


if __name__ == "__main__":
    main()
