# SPDX-License-Identifier: Apache-2.0
"""The page inside of another page, as a notebook shows it, in a browser."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from chromium import PROGRAM, Browser
from places import TESTS

import neutracer

pytestmark = pytest.mark.skipif(PROGRAM is None, reason="needs Chromium")

DATA = TESTS / "data"

# JupyterLab has no policy of its own; VS Code's pages of outputs have this one.
POLICIES = {
    "without a policy": "",
    "as in VS Code": (
        "default-src 'none'; script-src 'unsafe-inline' 'unsafe-eval'; "
        "style-src 'unsafe-inline'; img-src https: data:; connect-src https:; "
        "child-src https: data:"
    ),
}


def inner_context(browser: Browser) -> int:
    """The context of the frame's own program."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        browser.value("0")
        made = [
            event["params"]["context"]
            for event in browser.events
            if event["method"] == "Runtime.executionContextCreated"
        ]
        if len({context["auxData"]["frameId"] for context in made}) > 1:
            return int(made[-1]["id"])
        time.sleep(0.05)
    raise AssertionError("the frame has no program")


def inside(browser: Browser, expression: str) -> Any:
    context = inner_context(browser)
    done = browser.call(
        "Runtime.evaluate", expression=expression, contextId=context, returnByValue=True
    )
    assert "exceptionDetails" not in done, done
    return done["result"].get("value")


def wait_inside(browser: Browser, expression: str) -> None:
    """Waits for an expression of the frame to be true."""
    end = time.monotonic() + 60
    while inside(browser, expression) is not True:
        assert time.monotonic() < end, (expression, browser.complaints())
        time.sleep(0.05)


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES.keys())
def test_page_runs_in_a_frame_that_reaches_nothing(policy: str, tmp_path: Path) -> None:
    shown = neutracer.view(DATA / "frag_default.pickle")._repr_html_()
    meta = f'<meta http-equiv="Content-Security-Policy" content="{policy}">' if policy else ""
    path = tmp_path / "notebook.html"
    path.write_text(f'<!DOCTYPE html><meta charset="utf-8">{meta}<title>secret</title>{shown}')
    # One process for all frames, so that one session sees them.
    flags = ("--disable-site-isolation-trials", "--disable-features=IsolateSandboxedIframes")
    with Browser(tmp_path / "profile", *flags) as browser:
        browser.open(path)
        wait_inside(browser, "document.documentElement?.dataset.ready === '1'")
        found = inside(browser, "document.querySelector('.findings').innerText")
        assert "out of memory: the process is limited to" in found
        inside(browser, "document.querySelector('[data-tab=stacks]').click()")
        wait_inside(browser, "document.getElementById('stacks').hidden === false")
        reach = "(() => { try { return parent.document.title } catch (e) { return e.name } })()"
        assert inside(browser, reach) == "SecurityError"
        assert [url for url in browser.requested() if url.startswith("http")] == []
        assert browser.complaints() == []
