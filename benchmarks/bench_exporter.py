# SPDX-License-Identifier: Apache-2.0
"""What does a scrape cost its program, and what does a search for garbage?

The processor time of a scrape, its client's included, and of one search, which holds the GIL
from its begin to its end, with a heap of a million objects more and more. Processor time, so
that other work on the machine counts little; the median of so many.

    python benchmarks/bench_exporter.py [SCRAPES]    # 30 by default
"""

from __future__ import annotations

import statistics
import sys
import time
import urllib.request

import torch

import neutracer
from neutracer._native import core
from neutracer.heap.cycles import device_filter, prepare_heap

MILLIONS = (0, 1, 3)


def scrape_ms(count: int) -> float:
    """Milliseconds of the process for one scrape of /metrics."""
    times = []
    with neutracer.serve_metrics(port=0) as server:
        for _ in range(count):
            begin = time.process_time()
            urllib.request.urlopen(server.url + "/metrics").read()
            times.append(time.process_time() - begin)
    return statistics.median(times) * 1e3


def search_ms(device: str, count: int) -> float:
    """Milliseconds of one thread for what `garbage_interval=` has looked for."""
    prepare_heap()
    wanted = device_filter(device)
    times = []
    for _ in range(count):
        begin = time.thread_time()
        core.find_cycles(*wanted, 0, 0, False)
        times.append(time.thread_time() - begin)
    return statistics.median(times) * 1e3


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 30
    device = "cuda" if torch.cuda.is_available() else "cpu"
    held = torch.zeros(1 << 20, device=device)
    print(f"a scrape: {scrape_ms(count):.2f} ms")
    heap: list[list[int]] = []
    for millions in MILLIONS:
        heap += [[0] for _ in range(millions * 1_000_000 - len(heap))]
        found = search_ms(f"{device}:0" if device == "cuda" else device, max(count // 3, 3))
        print(f"a search, {millions} million objects more: {found:.0f} ms")
    del held


if __name__ == "__main__":
    main()
