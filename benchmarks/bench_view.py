# SPDX-License-Identifier: Apache-2.0
"""A long trace dropped on the page: when is it seen, how long does a redraw take, what does it
need?

In headless Chromium without a GPU, window of 1200 x 800. "first" is from choosing the file to the
first picture and to the page's being complete. A redraw is one step of wheel, zooming or panning:
"busy" is what the page's main thread worked for it until two frames later, "exact" how long the
core took from the step to the picture of exactly that range, meanwhile the last one stands there.
"longest" is the longest task of the main thread. "memory" is the most that the tab's process, with
the worker and the core in it, has had in RAM up to the last redraw, beyond that of the page that
waits for a file, its worker ready; "x columns" that beside the columns of the file as Python has
them. "settings" is the same when the Settings tab has been opened as well: it keeps the trace that
other settings would have made beside the file's. `large_trace` is a real recording of a
million events; it is too large to come with the sources, and is looked for in the folders named
below. Its page, written by `view`, is measured too.

`bench_view.py --beside FOLDER` drops the same files on PyTorch's own viewer as well, in the same
browser, and prints "first" and "memory" of both. FOLDER has its MemoryViz.js (torch/utils/viz of
PyTorch's sources, with what it imports from there) and d3.min.js of the d3 that it names.
"""

from __future__ import annotations

import argparse
import lzma
import platform
import re
import sys
import tempfile
import time
from pathlib import Path

from generated import write_snapshot

ROOT = Path(__file__).resolve().parent.parent
PLACES = (ROOT / "benchmarks" / "data", ROOT.parent / "shared" / "snapshots")
sys.path.insert(0, str(ROOT / "tests" / "helpers"))

READY = "document.documentElement?.dataset.ready === '1'"
FRAMES = "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
SPEED = "document.getElementById('speed').textContent"
TASKS = """globalThis.longest = 0; new PerformanceObserver((list) => {
  for (const { duration } of list.getEntries()) longest = Math.max(longest, duration);
}).observe({ type: "longtask" });"""

# A file dropped on PyTorch's viewer, and whether it has drawn anything of it.
DROP = """const data = new DataTransfer();
data.items.add(document.getElementById("own").files[0]);
document.body.dispatchEvent(new DragEvent("drop", { dataTransfer: data, bubbles: true }));"""
PICTURE = "document.querySelectorAll('svg polygon, svg path').length > 0"
PATIENCE = 120  # seconds

# Steps of the wheel: sideways, up and down, with which keys (8 is Shift), how often.
STEPS = ((0, -60, 0, 30), (40, 0, 0, 30), (0, 60, 0, 30), (-30, 0, 0, 20))
STEPS += ((0, -60, 8, 15), (0, 60, 8, 15))


def busy(browser) -> float:
    """Milliseconds that the page's main thread has worked so far."""
    figures = browser.call("Performance.getMetrics")["metrics"]
    return 1e3 * next(f["value"] for f in figures if f["name"] == "TaskDuration")


def redraws(browser) -> list[float]:
    browser.call("Performance.enable")
    x, y = browser.middle("#chart")
    found = []
    for sideways, down, keys, times in STEPS:
        for _ in range(times):
            before = busy(browser)
            browser.mouse("mouseWheel", x, y + 60, deltaX=sideways, deltaY=down, modifiers=keys)
            browser.call("Runtime.evaluate", expression=FRAMES, awaitPromise=True)
            found.append(busy(browser) - before)
    return sorted(found)


def settled_memory(browser) -> int:
    """The most bytes, once they have not grown for two seconds."""
    most, since = tab_memory(browser), time.perf_counter()
    while time.perf_counter() - since < 2:
        time.sleep(0.1)
        if (now := tab_memory(browser)) > most:
            most, since = now, time.perf_counter()
    return most


def dropped(browser, page: Path, snapshot: Path) -> float:
    """Seconds from choosing a file to the complete page."""
    browser.open(page)
    browser.until(READY)
    browser.value(TASKS)
    browser.value("document.documentElement.dataset.ready = ''")
    start = time.perf_counter()
    browser.choose("#pick", snapshot)
    while not browser.value(READY):
        time.sleep(0.01)
    return time.perf_counter() - start


def tab_memory(browser) -> int:
    """The most bytes that a tab's process of this browser has had in RAM."""
    parents, most = {}, {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes()
            status = dict(one.split(":", 1) for one in (process / "status").open() if ":" in one)
        except OSError:
            continue  # It has ended.
        number = int(process.name)
        parents[number] = int(status["PPid"])
        if b"--type=renderer" in words:
            most[number] = int(status.get("VmHWM", "0 kB").split()[0]) << 10

    def is_ours(number: int) -> bool:
        while number > 1 and number != browser._process.pid:
            number = parents.get(number, 0)
        return number == browser._process.pid

    return max((nbytes for number, nbytes in most.items() if is_ours(number)), default=0)


def viewer_page(beside: Path, folder: Path) -> Path:
    """PyTorch's viewer as one page: its modules in a row, d3 as a script."""
    text = (beside / "MemoryViz.js").read_text()
    others = re.findall(r'from\s+["\'][^"\']*?([\w]+\.js)["\']', text)
    parts = [(beside / one).read_text() for one in others if (beside / one).exists()] + [text]
    for number, one in enumerate(parts):
        one = re.sub(r"import\s+\*\s+as\s+(\w+)\s+from\s+[^;]+;", r"const \1 = globalThis.d3;", one)
        one = re.sub(r"import\s*{[^}]*}\s*from\s+[\"'](?!https?:)[^;]+;", "", one)
        one = re.sub(r"import\s*({[^}]*})\s*from\s+[^;]+;", r"const \1 = globalThis.d3;", one)
        parts[number] = re.sub(r"^export\s+({[^}]*};?|(?=function|const))", "", one, flags=re.M)
    page = folder / "viewer.html"
    script = (beside / "d3.min.js").read_text()
    page.write_text(
        f'<!DOCTYPE html><meta charset="utf-8"><body><input type="file" id="own">'
        f"<script>{script}</script><script type=module>{''.join(parts)}\nglobalThis.isReady = 1;"
        "</script>"
    )
    return page


def compare(name: str, path: Path, beside: Path, folder: Path) -> None:
    """Ours and PyTorch's viewer on one file: seconds to the first picture, and memory."""
    from chromium import Browser

    from neutracer.picture.view import empty_page

    with Browser(folder / f"ours-{name}") as browser:
        page = empty_page().save(folder / "empty.html")
        browser.open(page)
        browser.until(READY)
        empty = settled_memory(browser)
        ours, mine = dropped(browser, page, path), tab_memory(browser) - empty
    with Browser(folder / f"theirs-{name}") as browser:
        browser.open(viewer_page(beside, folder))
        browser.until("globalThis.isReady === 1")
        empty = settled_memory(browser)
        browser.choose("#own", path)
        start = time.perf_counter()
        browser.value(DROP)
        while not browser.value(PICTURE) and time.perf_counter() - start < PATIENCE:
            time.sleep(0.05)
        theirs, their = time.perf_counter() - start, tab_memory(browser) - empty
        said = [] if browser.value(PICTURE) else browser.complaints()[:1] or ["no picture"]
    print(
        f"{name:16} first: ours {ours:.2f} s, PyTorch's {theirs:.2f} s ({theirs / ours:.1f} x)  "
        f"memory: ours {mine / 1e6:,.0f} MB, PyTorch's {their / 1e6:,.0f} MB  {' '.join(said)}"
    )


def measure(name: str, path: Path, folder: Path) -> None:
    from chromium import Browser

    import neutracer
    from neutracer.picture.view import empty_page

    columns = neutracer.load(path).native.nbytes
    page = empty_page().save(folder / "empty.html")
    with Browser(folder / f"profile-{name}") as browser:
        browser.open(page)
        browser.until(READY)
        empty = settled_memory(browser)
        complete = dropped(browser, page, path)
        times = redraws(browser)
        memory = settled_memory(browser) - empty
        browser.click("[data-tab=settings]")
        browser.calm(500)
        exact = browser.value(SPEED).partition("exact pictures ")[2]
        longest = browser.value("longest")
        settings = settled_memory(browser) - empty
    p50, p95 = times[len(times) // 2], times[int(len(times) * 0.95)]
    print(
        f"{name:12} {path.stat().st_size / 1e6:7.1f} MB  first {complete:5.2f} s  "
        f"busy {p50:5.1f} ms, 95 of 100 {p95:5.1f} ms  longest {longest:4.0f} ms  exact: {exact}  "
        f"memory {memory / 1e6:,.0f} MB, {memory / columns:.1f} x columns, "
        f"settings {settings / 1e6:,.0f} MB"
    )


def written(name: str, path: Path, folder: Path) -> None:
    """The page that `view` writes for a file."""
    from chromium import Browser

    import neutracer

    start = time.perf_counter()
    page = neutracer.view(path, folder / f"{name}.html")
    built = time.perf_counter() - start
    with Browser(folder / f"profile-{name}-page") as browser:
        browser.open(page)
        browser.until(READY)
        shown = browser.value("performance.now()")
    size = page.stat().st_size / 1e6
    print(f"{name:12} page {size:5.2f} MB, built {built:.1f} s, seen {shown:.0f} ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--beside", type=Path, help="a folder with PyTorch's viewer and d3")
    beside = parser.parse_args().beside
    print(f"{platform.processor() or platform.machine()}, Python {platform.python_version()}")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for events in (10_000, 100_000, 1_000_000) if beside else ():
            write_snapshot(folder / "made.pickle", events)
            compare(f"{events:,} events", folder / "made.pickle", beside, folder)
        for place in PLACES:
            packed = place / "large_trace.pickle.xz"
            if packed.exists():
                path = folder / "large_trace.pickle"
                path.write_bytes(lzma.decompress(packed.read_bytes()))
                measure("large_trace", path, folder)
                written("large_trace", path, folder)
                break
        path = folder / "ten_million.pickle"
        write_snapshot(path, 10_000_000)
        measure("10 million", path, folder)


if __name__ == "__main__":
    main()
