# SPDX-License-Identifier: Apache-2.0
"""A cell in a real JupyterLab: the page inside of it runs, in a frame that can reach nothing,
and follows the theme as plots do.

Left out of the ordinary run. Needs jupyterlab, ipykernel, playwright and Debian's Chromium:
`pytest -m slow tests/test_jupyterlab.py`.
"""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from chromium import PROGRAM

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(PROGRAM is None, reason="needs Chromium"),
]

DATA = Path(__file__).parent / "data"

CELLS = [
    "import neutracer\n%load_ext neutracer",
    f"snap = neutracer.load({str(DATA / 'frag_default.pickle')!r})",
    "neutracer.view(snap)",
    "neutracer.fragmentation_report(snap)",
    "neutracer.mdtp(snap)",
    "%neutracer_holders",
]


SHOWN_PLOTS = """[...document.querySelectorAll('.neutracer-light, .neutracer-dark')]
    .filter((plot) => plot.checkVisibility()).map((plot) => plot.className)"""

KERNEL_IS_IDLE = (
    "globalThis.jupyterapp?.shell.currentWidget?.context?.sessionContext"
    "?.session?.kernel?.status === 'idle'"
)


def notebook() -> dict[str, Any]:
    spec = {"name": "python3", "display_name": "Python 3", "language": "python"}
    empty: dict[str, Any] = {"metadata": {}, "outputs": [], "execution_count": None}
    cells = [
        {"cell_type": "code", "id": f"c{n}", "source": source, **empty}
        for n, source in enumerate(CELLS)
    ]
    return {"cells": cells, "metadata": {"kernelspec": spec}, "nbformat": 4, "nbformat_minor": 5}


@pytest.fixture(params=["lab", "notebook"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The page of the notebook in JupyterLab, and in Notebook 7."""
    pytest.importorskip("ipykernel")
    pytest.importorskip({"lab": "jupyterlab", "notebook": "notebook"}[request.param])
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "a.ipynb").write_text(json.dumps(notebook()))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    folders = {
        f"JUPYTER_{part}_DIR": str(tmp_path / part) for part in ("CONFIG", "DATA", "RUNTIME")
    }
    options = {
        "ServerApp.ip": "127.0.0.1",
        "ServerApp.port": port,
        "ServerApp.root_dir": tmp_path / "files",
        "ServerApp.allow_root": True,
        "IdentityProvider.token": "",
        "ServerApp.open_browser": False,
        "LabApp.expose_app_in_browser": True,
        "JupyterNotebookApp.expose_app_in_browser": True,
        "LabApp.news_url": "",
    }
    server = subprocess.Popen(
        [sys.executable, "-m", "jupyter", request.param]
        + [f"--{name}={value}" for name, value in options.items()],
        env={**os.environ, **folders},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_for(f"http://127.0.0.1:{port}/api")
        page = "lab/tree/a.ipynb" if request.param == "lab" else "notebooks/a.ipynb"
        yield f"http://127.0.0.1:{port}/{page}"
    finally:
        server.terminate()
        server.wait()


def wait_for(url: str) -> None:
    end = time.monotonic() + 60
    while True:
        try:
            urllib.request.urlopen(url, timeout=5).close()
        except (urllib.error.URLError, OSError):
            assert time.monotonic() < end, "the server does not answer"
            time.sleep(0.3)
        else:
            return


def test_page_runs_inside_of_a_cell(address: str, tmp_path: Path) -> None:
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=PROGRAM, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1300, "height": 1000})
        asked: list[str] = []
        errors: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        page.on("pageerror", lambda error: errors.append(str(error.stack)))
        page.goto(address)
        page.wait_for_selector(".jp-Notebook .jp-Cell", timeout=60_000)
        page.wait_for_function(KERNEL_IS_IDLE, timeout=60_000)
        page.evaluate("() => void jupyterapp.commands.execute('notebook:run-all-cells')")
        page.wait_for_selector("iframe[srcdoc]", timeout=60_000)
        handle = page.query_selector("iframe[srcdoc]")
        inside = handle.content_frame()
        wait_inside(inside, "document.documentElement.dataset.ready === '1'")
        inside.click("[data-tab=stacks]")
        assert inside.inner_text("#stacks h2") == "Live bytes by call stack"
        inside.click("[data-tab=overview]")
        assert "out of memory: the process is limited to" in inside.inner_text(".findings")
        # It can reach neither the notebook around it nor the network.
        refused = "() => { try { return parent.document.title } catch (e) { return e.name } }"
        assert inside.evaluate(refused) == "SecurityError"
        fetched = "fetch('/api').then(() => 'reached', () => 'refused')"
        assert inside.evaluate(fetched) == "refused"
        page.wait_for_selector(".jp-OutputArea img", timeout=60_000)
        page.wait_for_selector(".neutracer article", state="attached")
        page.screenshot(path=tmp_path / "lab.png")
        browser.close()
    host = address.split("/")[2]
    outside = [url for url in asked if url.startswith("http") and url.split("/")[2] != host]
    assert outside == []
    # Errors of JupyterLab's own are not ours.
    assert [error for error in errors if "srcdoc" in error] == []


def wait_inside(frame: Any, expression: str) -> None:
    """Wait until an expression holds in a page, whose policy refuses the driver's own waiting."""
    end = time.monotonic() + 30
    while not frame.evaluate(expression):
        assert time.monotonic() < end, expression
        time.sleep(0.1)


def brightness(frame: Any) -> float:
    """How light a page is, from 0 to 255."""
    colour = frame.evaluate("getComputedStyle(document.documentElement).backgroundColor")
    body = frame.evaluate("getComputedStyle(document.body).backgroundColor")
    shown = colour if "0, 0, 0, 0" not in colour else body
    return sum(map(float, re.findall(r"[\d.]+", shown)[:3])) / 3


@pytest.mark.parametrize("address", ["lab"], indirect=True)
def test_page_follows_the_theme_while_it_is_shown(address: str, tmp_path: Path) -> None:
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=PROGRAM, args=["--no-sandbox"])
        # Where the driver chooses a scheme, it does so for every frame.
        page = browser.new_page(viewport={"width": 1300, "height": 1000}, color_scheme="null")
        page.goto(address)
        page.wait_for_selector(".jp-Notebook .jp-Cell", timeout=60_000)
        page.wait_for_function(KERNEL_IS_IDLE, timeout=60_000)
        page.evaluate("() => void jupyterapp.commands.execute('notebook:run-all-cells')")
        page.wait_for_selector("iframe[srcdoc]", timeout=60_000)
        inside = page.query_selector("iframe[srcdoc]").content_frame()
        wait_inside(inside, "document.documentElement.dataset.ready === '1'")
        for theme, is_dark in (("JupyterLab Dark", True), ("JupyterLab Light", False)):
            page.evaluate(
                "theme => void jupyterapp.commands.execute('apputils:change-theme', {theme})", theme
            )
            shown = f"document.body.dataset.jpThemeLight === '{json.dumps(not is_dark)}'"
            page.wait_for_function(shown)
            asked = "matchMedia('(prefers-color-scheme: dark)').matches"
            wait_inside(inside, f"{asked} === {json.dumps(is_dark)}")
            assert (brightness(inside) < 100) is is_dark
            # Of a plot and its twin one is shown.
            page.wait_for_selector(".neutracer-dark", state="attached")
            assert page.evaluate(SHOWN_PLOTS) == [f"neutracer-{'dark' if is_dark else 'light'}"]
            page.query_selector("iframe[srcdoc]").scroll_into_view_if_needed()
            page.screenshot(path=tmp_path / f"{theme.split()[1].lower()}.png")
        browser.close()
