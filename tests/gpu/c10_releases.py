# SPDX-License-Identifier: Apache-2.0
"""The hooks on the device allocator of one release of torch, whose c10 is all that is there.

`python c10_releases.py FOLDER MODE` prints one line of JSON. FOLDER/torch holds `version.py`,
`include` and `lib/libc10*.so` as they lie in the wheel of that release; the CUDA runtime and
its headers are those of the torch that is installed. MODE is "truth", which holds what
neutracer tells against PyTorch's answers in c10_driver.cpp, or "cost".
"""

import ctypes
import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
METRICS = [
    *("allocation", "segment", "active", "inactive_split"),
    *("allocated_bytes", "reserved_bytes", "active_bytes"),
    *("inactive_split_bytes", "requested_bytes"),
]
POOLS = ["all", "small_pool", "large_pool"]
STATES = ["inactive", "active_allocated", "active_pending_free"]


def stand_in(release: Path, scratch: Path) -> Path:
    """A site with a package torch that has the release's c10 and nothing else."""
    site = importlib.util.find_spec("torch").submodule_search_locations[0]
    for name in ("nvidia", "triton"):
        found = Path(site).parent / name
        if found.exists():
            (scratch / name).symlink_to(found)
    package = scratch / "torch"
    package.mkdir()
    for name in ("version.py", "include", "lib"):
        (package / name).symlink_to((release / "torch" / name).resolve())
    (package / "__init__.py").write_text("from .version import __version__ as __version__\n")
    return package


def runtime(package: Path) -> str:
    """The CUDA runtime's library."""
    major = re.search(r"^cuda\b[^=\n]*= '(\d+)", (package / "version.py").read_text(), re.M)[1]
    name = f"libcudart.so.{major}"
    found = sorted(package.parent.glob(f"nvidia/*/lib/{name}"))
    return str(found[0]) if found else name


def driver(package: Path, scratch: Path):
    """c10_driver.cpp, compiled, in a process that has loaded CUDA and the c10 it is for."""
    from neutracer.hooks import build as hooks_build

    words = ["g++", "-std=c++20", "-O2", "-shared", "-fPIC", "-pthread"]
    words += ["-isystem", str(package / "include")]
    words += hooks_build._cuda_includes(hooks_build.installed_torch())
    words += [str(HERE / "c10_driver.cpp"), "-o", str(scratch / "driver.so")]
    words += [f"-L{package / 'lib'}", "-lc10", "-lc10_cuda"]
    subprocess.run(words, check=True)
    library = ctypes.CDLL(str(scratch / "driver.so"))
    library.driver_ns.restype = ctypes.c_double
    library.driver_ns.argtypes = library.driver_oom.argtypes = [ctypes.c_uint64]
    library.driver_churn.argtypes = [ctypes.c_int, ctypes.c_uint64, ctypes.c_int]
    library.driver_pool.restype = library.driver_annotate.restype = ctypes.c_uint64
    library.driver_layout.restype = ctypes.c_uint64
    library.driver_layout.argtypes = [ctypes.c_void_p, ctypes.c_uint64]
    return library


def figures(library, device):
    """PyTorch's figures of a device under the keys of memory_stats."""
    values = (ctypes.c_int64 * 108)()
    library.driver_stats(device, values)
    kinds = ("current", "peak", "allocated", "freed")
    names = [f"{metric}.{pool}.{kind}" for metric in METRICS for pool in POOLS for kind in kinds]
    return dict(zip(names, values, strict=True))


def rows(library):
    """PyTorch's blocks."""
    most = 100_000
    table = ((ctypes.c_int64 * 8) * most)()
    count = library.driver_layout(table, most)
    assert count <= most
    return [tuple(row) for row in table[:count]]


def rows_of(snap):
    """The same of a snapshot."""
    segments, found = list(snap.segments), []
    for block in snap.blocks:
        segment = segments[block.segment]
        place = (segment.device, segment.address, segment.total_size, segment.stream)
        asked = block.requested_size
        found.append((*place, block.address, block.size, asked, STATES.index(block.state)))
    return found


def is_matched(snap, device):
    """Whether each event fits what the layout and the other events tell."""
    return snap.timeline(device).facts["unmatched"] == 0


def is_replayed(snap, device):
    """Whether what was allocated and not freed, event by event, is the layout's."""
    live = {}
    for event in snap.events:
        if event.device == device and event.action == "alloc":
            live[event.addr] = event.size
        elif event.device == device and event.action == "free_completed":
            del live[event.addr]
    found = {row[4]: row[6] for row in rows_of(snap) if row[0] == device and row[7]}
    return live == found and bool(found)


def markers(snap, devices):
    """How many layouts were taken before, as each device's trace tells."""
    seen = [e.device for e in snap.events if e.action == "snapshot"]
    return [seen.count(device) for device in range(devices)]


def without_asked_of_free(found):
    """What a free block was once asked for is no figure."""
    return [(*row[:6], row[6] if row[7] else 0, row[7]) for row in found]


def truth(library, devices):
    import neutracer
    from neutracer.hooks import shim as hooks

    neutracer.live(200_000, 4)
    for device in range(devices):
        library.driver_churn(device, 7 + device, 3000)
        library.driver_hold(device)
    in_pool = library.driver_pool()
    for _ in range(3):
        snap = neutracer.live()
    theirs = [figures(library, device) for device in range(devices)]
    current = [{k: v for k, v in t.items() if k.endswith(".current")} for t in theirs]
    ours = [snap.memory_stats(device) for device in range(devices)]
    made = [e for e in snap.events if e.action == "alloc" and e.addr == in_pool]
    stats = hooks.load().device_stats
    pools = [list(event.pool_id) for event in made]
    out = {
        "markers": markers(snap, devices),
        "layout": without_asked_of_free(rows_of(snap)) == without_asked_of_free(rows(library)),
        "blocks": len(snap.blocks),
        "pending": sum(b.state == "active_pending_free" for b in snap.blocks),
        "complete": [snap.history_complete(device) for device in range(devices)],
        "figures": [stats(d) == {**stats(d), **t} for d, t in enumerate(theirs)],
        "stats": [{key: o[key] for key in t} == t for o, t in zip(ours, current, strict=True)],
        "peaks": [
            snap.timeline(d).peak(metric).bytes == t[f"{metric}_bytes.all.peak"]
            for d, t in enumerate(theirs)
            for metric in ("allocated", "reserved")
        ],
        "replayed": [
            is_matched(snap, device) and is_replayed(snap, device) for device in range(devices)
        ],
        "pool": pools[-1:],
    }
    library.driver_let_go(devices)
    out.update(in_a_storm(library, devices))
    return {**out, "annotated": is_annotated(library), **out_of_memory(library)}


def is_annotated(library):
    """Whether an annotation is told; None where the release has none."""
    import neutracer

    text = "kept for the backward pass"
    address = library.driver_annotate(text.encode())
    if not address:
        return None
    snap = neutracer.live()
    last = list(snap.events)[: snap.trace_length(0)][-3:]
    told = [e for e in last if e.action == "annotate" and e.addr == address]
    return [event.user_metadata for event in told] == [text]


def out_of_memory(library):
    """One request of more than a device has, and its event."""
    import neutracer

    ran_out = library.driver_oom(1 << 45)
    events = [e for e in neutracer.live().events if e.action == "oom"]
    told = [e.size == 1 << 45 and e.device_free > 0 for e in events]
    return {"oom": ran_out, "oom_event": told}


def in_a_storm(library, devices):
    """Layouts beside threads that allocate and free all the while, one on each device."""
    import neutracer
    from neutracer.hooks import shim as hooks

    def pushed():
        now = hooks.state().pushed
        return [now[device] for device in range(devices)]

    for device in range(devices):
        library.driver_storm_begin(device)
    before, matched, moved = pushed(), [0] * devices, [0] * devices
    for _ in range(30):
        snap, after = neutracer.live(), pushed()
        for device in range(devices):
            matched[device] += is_matched(snap, device)
            # More than the marker of the layout itself.
            moved[device] += after[device] > before[device] + 1
        before = after
    library.driver_storm_end()
    return {"storm": matched, "storm_moved": moved}


def cost(library, devices):
    import neutracer

    rounds = 200_000
    steps = {
        "ring": lambda: neutracer.live(100_000, 0),
        "ring, 8 frames": lambda: neutracer.live(100_000, 8),
        "silent": neutracer.live.stop,
    }

    def below(depth):
        return below(depth - 1) if depth else library.driver_ns(rounds)

    out = {"without": min(below(10) for _ in range(5))}
    # In turn, so that what else the machine does meets all of them.
    times = {name: [] for name in steps}
    for _ in range(5):
        for name, step in steps.items():
            step()
            times[name].append(below(10))
            if "frames" in name:
                out["frames"] = len(list(neutracer.live().events)[-1].stack)
    return {**out, **{name: min(found) for name, found in times.items()}}


def main():
    release, mode = Path(sys.argv[1]), sys.argv[2]
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        package = stand_in(release, scratch)
        sys.path.insert(0, name)
        ctypes.CDLL(runtime(package), ctypes.RTLD_GLOBAL)
        for library in ("libc10.so", "libc10_cuda.so"):
            ctypes.CDLL(str(package / "lib" / library), ctypes.RTLD_GLOBAL)
        import torch

        made = driver(package, scratch)
        devices = int(os.environ.get("DEVICES", "1"))
        made.driver_begin(devices)
        out = {"torch": torch.__version__, **{"truth": truth, "cost": cost}[mode](made, devices)}
        print(json.dumps(out), flush=True)
        # The allocator's blocks outlive their streams otherwise.
        os._exit(0)


if __name__ == "__main__":
    main()
