# SPDX-License-Identifier: Apache-2.0
"""How large is the page of a long trace, when is it seen, and how long does a redraw take?

In headless Chromium without a GPU, window of 1200 x 800. A redraw is one step of wheel,
zooming or panning; its time is what the page's main thread was busy for (script, style,
layout, paint) until two frames later; "sharp" is the picture that follows when the wheel rests.
`large_trace` is a real recording of a million events;
it is too large to come with the sources, and is looked for in the folders named below.
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
PAINT = "performance.getEntriesByName('first-contentful-paint')[0].startTime"

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


def sharp(browser) -> float:
    """The longest of some pictures at rest, behind zooming in."""
    x, y = browser.middle("#chart")
    found = []
    for _ in range(5):
        browser.mouse("mouseWheel", x, y + 60, deltaX=0, deltaY=-240)
        browser.call("Runtime.evaluate", expression=FRAMES, awaitPromise=True)
        before = busy(browser)
        time.sleep(0.4)
        found.append(busy(browser) - before)
    return max(found)


def measure(name: str, path: Path, folder: Path) -> None:
    from chromium import Browser

    import neutracer

    start = time.perf_counter()
    page = neutracer.view(path, folder / f"{name}.html")
    built = time.perf_counter() - start
    with Browser(folder / f"profile-{name}") as browser:
        browser.open(page)
        while not browser.value(READY):
            time.sleep(0.02)
        shown = browser.value("performance.now()")
        paint = browser.value(PAINT)
        times = redraws(browser)
        rest = sharp(browser)
    p50, p95 = times[len(times) // 2], times[int(len(times) * 0.95)]
    print(
        f"{name:12} {page.stat().st_size / 1e6:7.2f} MB {built:7.1f} s {paint:8.0f} ms "
        f"{shown:8.0f} ms {p50:8.1f} ms {p95:8.1f} ms {rest:8.1f} ms"
    )


def main() -> None:
    print(f"{platform.processor() or platform.machine()}, Python {platform.python_version()}")
    print(f"{'':12} {'page':>10} {'built':>9} {'painted':>11} {'complete':>11}", end="")
    print(f" {'redraw':>11} {'95 of 100':>11} {'sharp':>11}")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for place in PLACES:
            packed = place / "large_trace.pickle.xz"
            if packed.exists():
                path = folder / "large_trace.pickle"
                path.write_bytes(lzma.decompress(packed.read_bytes()))
                measure("large_trace", path, folder)
                break
        path = folder / "ten_million.pickle"
        write_snapshot(path, 10_000_000)
        measure("10 million", path, folder)


if __name__ == "__main__":
    main()
