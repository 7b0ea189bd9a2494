# SPDX-License-Identifier: Apache-2.0
"""A long trace dropped on the page: when is it seen, how long does a redraw take, what does it
need?

In headless Chromium without a GPU, window of 1200 x 800. "first" is from choosing the file to the
first picture and to the page's being complete. A redraw is one step of wheel, zooming or panning:
"busy" is what the page's main thread worked for it until two frames later, "exact" how long the
core took from the step to the picture of exactly that range, meanwhile the last one stands there.
"longest" is the longest task of the main thread. "memory" is the core's, "x columns" that beside
the columns of the file as Python has them. `large_trace` is a real recording of a million events;
it is too large to come with the sources, and is looked for in the folders named below. Its page,
written by `view`, is measured too.
"""

from __future__ import annotations

import lzma
import platform
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


def measure(name: str, path: Path, folder: Path) -> None:
    from chromium import Browser

    from neutracer.pictures.page.view import empty_page

    page = empty_page().save(folder / "empty.html")
    with Browser(folder / f"profile-{name}") as browser:
        complete = dropped(browser, page, path)
        times = redraws(browser)
        time.sleep(1)
        browser.click("[data-tab=settings]")
        browser.calm(500)
        exact = browser.value(SPEED).partition("exact pictures ")[2]
        longest = browser.value("longest")
    p50, p95 = times[len(times) // 2], times[int(len(times) * 0.95)]
    print(
        f"{name:12} {path.stat().st_size / 1e6:7.1f} MB  first {complete:5.2f} s  "
        f"busy {p50:5.1f} ms, 95 of 100 {p95:5.1f} ms  longest {longest:4.0f} ms  exact: {exact}"
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
    print(f"{platform.processor() or platform.machine()}, Python {platform.python_version()}")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
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
