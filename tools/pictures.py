# SPDX-License-Identifier: Apache-2.0
"""Makes the pictures of the README and of the pages, from the bundled snapshots.

    python tools/pictures.py [NAME ...]    # into docs/pictures; all of them without a name

Needs matplotlib, Pillow (which comes with it), optipng, Graphviz for the object graph together
with torch, and Chromium for the page.
"""

from __future__ import annotations

import base64
import gc
import io
import json
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from PIL import Image

import neutracer

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "helpers"))
DATA = ROOT / "tests" / "data"
PICTURES = ROOT / "docs" / "pictures"

# The pages show a picture some 720 pixels wide; twice that is sharp on any screen.
_WIDTH = 1440

# The window of the page's picture, in pixels.
_WINDOW = {"width": 1280, "height": 1060, "deviceScaleFactor": 1, "mobile": False}

_TWO_FRAMES = "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"

# Pixels around a drawing, and where it is in its page: left, top, right, bottom.
_MARGIN = 12
_DRAWN = """
(() => {
  const boxes = [...document.querySelectorAll(".nt-graph path, .nt-graph text, .nt-graph rect")]
    .map((one) => one.getBoundingClientRect()).filter((box) => box.width < 600);
  const ends = (side, pick) => pick(...boxes.map((box) => box[side]));
  return JSON.stringify([ends("left", Math.min), ends("top", Math.min),
    ends("right", Math.max), ends("bottom", Math.max)]);
})()
"""

# What the object graph is of: the circle that the README tells of.
_PROGRAM = """
class Trainer:
    def __init__(self):
        self.weights = torch.zeros(4096, 4096)
        self.on_step = self.step

    def step(self):
        return self.weights.sum()

Trainer()
"""


def save(name: str, png: bytes) -> None:
    """Writes one picture."""
    image = Image.open(io.BytesIO(png)).convert("RGB")
    path = PICTURES / f"{name}.png"
    image.save(path)
    subprocess.run(["optipng", "-quiet", "-o2", path], check=True)
    print(f"{path.relative_to(ROOT)}: {image.width} x {image.height}, {path.stat().st_size:,} B")


def save_figure(name: str, draw: Callable[..., Any], *sources: Any, **options: Any) -> None:
    """Writes a figure of matplotlib, for a light page and for a dark one."""
    for ending, dark in (("", False), ("_dark", True)):
        figure = draw(*sources, dark=dark, **options)
        png = io.BytesIO()
        figure.savefig(png, format="png", dpi=_WIDTH / figure.get_size_inches()[0])
        save(name + ending, png.getvalue())


def mdtp() -> None:
    save_figure("mdtp", neutracer.mdtp, DATA / "frag_default.pickle")


def mdtp_zoom() -> None:
    last = (0.0625, 0.0705)
    save_figure("mdtp_zoom", neutracer.mdtp, DATA / "frag_default.pickle", time_range=last)


def mdtp_what_if() -> None:
    wanted = "expandable_segments:True"
    plan = neutracer.what_if(DATA / "frag_default.pickle", wanted, capacity="2GiB")
    save_figure("mdtp_what_if", neutracer.mdtp, plan[wanted])


def mdtp_attention() -> None:
    both = (DATA / "attention_math.pickle.xz", DATA / "attention_flash.pickle.xz")
    save_figure("mdtp_attention", neutracer.mdtp, *both, x="event")


def timeline() -> None:
    source = DATA / "train_resnet_healthy.pickle.xz"
    save_figure("timeline", neutracer.plot_timeline, source, by="category", x="event")


def sawtooth() -> None:
    source = DATA / "cycle_nodes.pickle.xz"
    save_figure("sawtooth", neutracer.plot_timeline, source, x="event")


def leak() -> None:
    source = DATA / "leak_list.pickle.xz"
    save_figure("leak", neutracer.plot_timeline, source, x="event")


def fragmentation() -> None:
    save_figure("fragmentation", neutracer.plot_fragmentation, DATA / "frag_default.pickle")


def bill() -> None:
    save_figure("bill", neutracer.plot_bill, DATA / "oom" / "hook_that_keeps_activations.pickle.xz")


def object_graph() -> None:
    """A circle of references around a tensor, and the reference to cut."""
    import torch

    seen: list[neutracer.TensorCycle] = []
    with warnings.catch_warnings(), neutracer.warn_tensor_cycles("cpu", callback=seen.append):
        warnings.simplefilter("ignore", neutracer.TensorCycleWarning)
        exec(compile(_PROGRAM, "train.py", "exec"), {"torch": torch, "__name__": "train"})
        gc.collect()
    graph = seen[0].graph
    png = bytes(graph.to_png())
    save("object_graph", png)
    save("object_graph_dark", _on_dark_page(graph, Image.open(io.BytesIO(png)).width))


def _on_dark_page(graph: Any, width: int) -> bytes:
    """A graph as its own page draws it in a dark browser, without the page's tools."""
    from chromium import Browser

    with tempfile.TemporaryDirectory() as folder, Browser(Path(folder) / "profile") as browser:
        path = Path(folder) / "graph.html"
        graph.to_html(path)
        browser.open(path)
        features = [{"name": "prefers-color-scheme", "value": "dark"}]
        browser.call("Emulation.setEmulatedMedia", features=features)
        browser.call("Runtime.evaluate", expression=_TWO_FRAMES, awaitPromise=True)
        left, top, right, bottom = json.loads(browser.value(_DRAWN))
        clip = {
            "x": left - _MARGIN,
            "y": top - _MARGIN,
            "width": right - left + 2 * _MARGIN,
            "height": bottom - top + 2 * _MARGIN,
        }
        clip["scale"] = width / clip["width"]
        return base64.b64decode(browser.call("Page.captureScreenshot", clip=clip)["data"])


def page() -> None:
    """The offline page's first tab, with the pointer in the middle of its plots."""
    save("page", _page(dark=False))
    save("page_dark", _page(dark=True))


def _page(dark: bool) -> bytes:
    """The page in one of its two schemes."""
    from chromium import Browser

    with tempfile.TemporaryDirectory() as folder:
        path = neutracer.view(DATA / "frag_default.pickle", f"{folder}/page.html", dark=dark)
        with Browser(Path(folder) / "profile") as browser:
            browser.open(path)
            browser.call("Emulation.setDeviceMetricsOverride", **_WINDOW)
            while browser.value("document.documentElement.dataset.ready") != "1":
                time.sleep(0.05)
            browser.call("Runtime.evaluate", expression=_TWO_FRAMES, awaitPromise=True)
            x, y = browser.middle("#chart")
            browser.mouse("mouseMoved", x, y)
            browser.call("Runtime.evaluate", expression=_TWO_FRAMES, awaitPromise=True)
            shot = Path(folder) / "page.png"
            browser.screenshot(shot)
            return shot.read_bytes()


ALL = (
    mdtp,
    mdtp_zoom,
    mdtp_what_if,
    mdtp_attention,
    timeline,
    sawtooth,
    leak,
    fragmentation,
    bill,
    object_graph,
    page,
)


def main(names: list[str]) -> None:
    PICTURES.mkdir(exist_ok=True)
    for draw in ALL:
        if not names or draw.__name__ in names:
            draw()


if __name__ == "__main__":
    main(sys.argv[1:])
