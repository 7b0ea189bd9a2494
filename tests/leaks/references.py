# SPDX-License-Identifier: Apache-2.0
"""Calls every public name again and again, and says which of them keep references or blocks.

Under a debug build of Python, for which neutracer's modules were built as well, references are
counted (`sys.gettotalrefcount()`), as long as nothing is imported that was built for another
Python and counts none: NumPy, and with it torch and matplotlib. Elsewhere it is Python's blocks,
after more calls: caches of Python's own, such as that of interned names, grow for a while. A name
leaks if the count grows by one a call in each round.

    python tests/leaks/references.py [NAME ...]
"""

from __future__ import annotations

import contextlib
import copy
import gc
import os
import pickle
import sys
import tempfile
import threading
import time
import urllib.request
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("MPLBACKEND", "agg")

import neutracer

DATA = Path(__file__).parents[1] / "data"
FILE = str(DATA / "frag_default.pickle")
SETTING = "expandable_segments:True"

REFERENCES = getattr(sys, "gettotalrefcount", None)

#: Rounds, and calls in each; calls before the first count, of references and of blocks.
ROUNDS, CALLS, WARM_UP, LONG_WARM_UP = 4, 10, 5, 100

Case = Callable[[], object]


def cases(folder: str) -> Iterator[tuple[str, Case]]:
    """A name, and what is called for it; classes by what makes them."""
    snap = neutracer.load(FILE)
    data = Path(FILE).read_bytes()
    yield from trace_cases(data, folder)
    yield "fragmentation_report", lambda: shown(neutracer.fragmentation_report(snap))
    yield "explain", lambda: shown(neutracer.explain(snap, "2GiB", request="1GiB"))
    yield "diff", lambda: shown(neutracer.diff(snap, snap))
    yield "leak_trend", lambda: shown(neutracer.leak_trend([snap] * 8))
    yield "what_if", lambda: shown(neutracer.what_if(snap, SETTING))
    yield "Outcome", lambda: neutracer.what_if(snap, SETTING)[SETTING].snapshot().to_bytes()
    yield "what_if without settings", lambda: shown(neutracer.what_if(snap))
    yield "view", lambda: neutracer.view(snap, folder + "/page.html")
    yield "PageView", lambda: neutracer.view(snap)._repr_html_()  # type: ignore[operator]
    yield "mdtp", lambda: neutracer.mdtp(snap, output=folder + "/page.png")
    yield "plot_timeline", lambda: neutracer.plot_timeline(snap)
    yield "plot_fragmentation", lambda: neutracer.plot_fragmentation(snap)
    yield from process_cases(folder)


def trace_cases(data: bytes, folder: str) -> Iterator[tuple[str, Case]]:
    """What reads and keeps snapshots."""

    def tables() -> None:
        snap = neutracer.load(data)
        for table in (snap.segments, snap.blocks, snap.events, snap.annotations):
            rows = list(table)
            [repr(row) for row in rows[:20]]
            for name in table.columns if hasattr(table, "columns") else ():
                table[name]
        repr(snap), snap._repr_html_(), snap.memory_stats(), snap.settings, snap.ignored_keys

    def kept() -> None:
        snap = neutracer.load(data)
        snap.save(folder + "/saved.pickle.gz")
        snap.save(folder + "/part.pickle", events=(10, 200))
        copy.deepcopy(snap), pickle.loads(pickle.dumps(snap)), snap.to_dict()

    def timeline() -> None:
        found = neutracer.load(data).timeline()
        for moment in (0, 100, len(found) - 1):
            repr(found.at(moment)), list(found.holders(moment, limit=3))
        list(found.allocations), repr(found), found.facts, found.categories

    def refused() -> None:
        for bad in (b"", data[: len(data) // 2], b"\x80\x04cos\nsystem\n.", b"x" * 100):
            with contextlib.suppress(neutracer.SnapshotError):
                neutracer.load(bad)
        with contextlib.suppress(neutracer.LimitError):
            neutracer.load(data, max_memory=1000)
        with contextlib.suppress(neutracer.SettingsError):
            neutracer.what_if(data, "no_such:1")

    yield "load, Table", tables
    yield "Snapshot", kept
    yield "Timeline, Layout", timeline
    yield "SnapshotError, LimitError, SettingsError", refused


class Ring:
    """A reference cycle that holds a tensor, and a tensor that something holds."""

    def __init__(self) -> None:
        import torch

        self.me = self
        self.tensor = torch.zeros(1 << 18)


def process_cases(folder: str) -> Iterator[tuple[str, Case]]:
    """What looks at this process; each is refused where this machine lacks what it needs."""
    torch: Any = None
    with contextlib.suppress(ImportError):
        import torch
    holder = [object() for _ in range(10)]
    if torch is not None:
        holder.append(torch.zeros(1000))

    def found_cycles() -> None:
        Ring()
        report = neutracer.find_tensor_cycles("cpu")
        shown(report)
        report.graph.to_json(), report.graph.to_html()

    def watched() -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with neutracer.warn_tensor_cycles("cpu") as watch:
                Ring()
                gc.collect()
                repr(watch)

    def monitored() -> None:
        with neutracer.MemoryMonitor(0.01) as monitor:
            monitor.mark("step")
            time.sleep(0.03)
            for device in monitor.devices:
                monitor.get_stats(device), monitor.device_series(device)

    def served() -> None:
        with neutracer.serve_metrics(port=0, garbage_interval=0) as server:
            for path in ("/metrics", "/top.json?seconds=5"):
                urllib.request.urlopen(server.url + path).read()

    def autograd() -> None:
        value = torch.ones(10, requires_grad=True)
        kept = (value * 2).sum()
        neutracer.find_autograd_cycles()
        del kept

    def recorded() -> None:
        with neutracer.record():
            pass

    def lived() -> None:
        shown_snapshot(neutracer.live())

    yield "why_alive", lambda: shown(neutracer.why_alive(holder[-1]))
    yield "notebook_holders", neutracer.notebook_holders
    yield "release_holders", neutracer.release_holders
    yield "collect_on_pressure", lambda: neutracer.collect_on_pressure().stop()
    yield "watch_oom", lambda: neutracer.watch_oom(folder).stop()
    yield "oom_report", lambda: neutracer.oom_report(folder)
    yield "record", recorded
    yield "snapshot", neutracer.snapshot
    yield "attribute_device_memory", lambda: neutracer.attribute_device_memory().stop()
    yield "device_report", lambda: shown(neutracer.device_report())
    yield "garbage_bytes", lambda: neutracer.garbage_bytes("cpu")
    yield "find_tensor_cycles, ObjectGraph", found_cycles
    yield "warn_tensor_cycles", watched
    yield "find_autograd_cycles", autograd
    yield "live", lived
    yield "MemoryMonitor", monitored
    yield "serve_metrics, MetricsCollector", served


def shown(report: Any) -> None:
    """A report in each of its forms."""
    str(report), repr(report), report.to_dict(), report._repr_html_()
    pickle.loads(pickle.dumps(report))


def shown_snapshot(snap: neutracer.Snapshot) -> None:
    repr(snap), list(snap.blocks)


def settle() -> None:
    """Threads of a call may end after it."""
    end = time.monotonic() + 5
    while threading.active_count() > 1 and time.monotonic() < end:
        time.sleep(0.01)
    gc.collect()


def growth(case: Case) -> tuple[str, list[int], str]:
    """What was counted, its growth in each round, and what the call was refused with."""
    with contextlib.suppress(Exception):
        case()
    exact = REFERENCES is not None and "numpy" not in sys.modules
    counted = REFERENCES if exact else sys.getallocatedblocks
    refusal = ""
    grown = []
    before = 0
    for turn in range(ROUNDS + 1):
        for _ in range(CALLS if turn else WARM_UP if exact else LONG_WARM_UP):
            try:
                case()
            except Exception as error:
                refusal = f"{type(error).__name__}: {error}"
        settle()
        now = counted()
        if turn:
            grown.append(now - before)
        before = counted()
    return "references" if exact else "blocks", grown, refusal


def main() -> int:
    wanted = sys.argv[1:]
    leaks = 0
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        for name, case in cases(folder):
            if wanted and not any(word in name for word in wanted):
                continue
            what, grown, refusal = growth(case)
            leaking = all(count >= CALLS for count in grown)
            leaks += leaking
            verdict = "LEAKS" if leaking else "ok"
            note = f"  ({refusal[:60]})" if refusal else ""
            print(f"{verdict:6} {name:42} {what} {grown}{note}", flush=True)
    print(f"{leaks} leak" if leaks else "none leaks")
    return 1 if leaks else 0


if __name__ == "__main__":
    raise SystemExit(main())
