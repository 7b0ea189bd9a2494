# SPDX-License-Identifier: Apache-2.0
"""What a test leaves behind is its own failure, and no later test sees it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from places import TESTS

import neutracer
from neutracer._native import core
from neutracer.errors import UnavailableError

LEAVES = {
    "gc.callbacks": "gc.callbacks.append(print)",
    "gc.isenabled()": "gc.disable()",
    "gc.get_threshold()": "gc.set_threshold(1, 2, 3)",
    "gc.get_debug()": "gc.set_debug(gc.DEBUG_SAVEALL)",
    "whether gc.freeze() holds something": "gc.freeze()",
    "sys.excepthook": "sys.excepthook = print",
    "sys.unraisablehook": "sys.unraisablehook = print",
    "sys.displayhook": "sys.displayhook = print",
    "threading.excepthook": "threading.excepthook = print",
    "sys.getprofile()": "sys.setprofile(lambda *arguments: None)",
    "sys.path": "sys.path.append('nowhere')",
    "handler of SIGUSR1": "signal.signal(signal.SIGUSR1, signal.SIG_IGN)",
    "os.environ": "os.environ.update(NEUTRACER_LEFT='1', HOME='nowhere')",
    "the working folder": "os.chdir('/')",
}

HEAD = """
import gc, os, signal, sys, threading
import isolation, pytest
@pytest.fixture(scope="module", autouse=True)
def first():
    return isolation.state()
"""


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A folder whose tests run with this folder's conftest.py."""
    for path in (TESTS / "conftest.py", TESTS / "helpers" / "isolation.py"):
        shutil.copy(path, tmp_path / path.name)
    (tmp_path / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\n")
    return tmp_path


def outcome(folder: Path, text: str) -> tuple[dict[str, int], str]:
    """How many tests of a file ended how, and what was printed."""
    (folder / "test_made_up.py").write_text(HEAD + text)
    words = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "--disable-plugin-autoload"]
    done = subprocess.run([sys.executable, *words], cwd=folder, capture_output=True, text=True)
    last = done.stdout.splitlines()[-1]
    return {
        name: int(count) for count, name in re.findall(r"(\d+) ([a-z]+?)s?\b", last)
    }, done.stdout


def test_each_thing_left_is_that_tests_failure_alone(run: Path) -> None:
    names = [re.sub(r"\W+", "_", name) for name in LEAVES]
    text = "".join(
        f"def test_{name}():\n    {leave}\n"
        f"def test_after_{name}(first):\n    assert isolation.restore(first) == []\n"
        for name, leave in zip(names, LEAVES.values(), strict=True)
    )
    counts, printed = outcome(run, text)
    count = len(LEAVES)
    assert (counts["passed"], counts.get("failed", 0)) == (2 * count, 0), printed
    assert counts["error"] == count
    for name in LEAVES:
        assert f"left behind: {name}: " in printed


def test_a_test_that_fails_is_told_once_and_harms_no_other(run: Path) -> None:
    text = """
def test_fails():
    def callback(phase, info):
        never_bound
    gc.callbacks.append(callback)
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    assert False, "on purpose"
    gc.callbacks.remove(callback)
    never_bound = 1

@pytest.mark.parametrize("number", range(50))
def test_after(number, first):
    gc.collect()
    assert isolation.restore(first) == []
"""
    counts, printed = outcome(run, text)
    assert (counts.get("failed"), counts.get("passed"), counts.get("error")) == (1, 50, None), (
        printed
    )
    assert "left behind" not in printed


def test_cycle_watch_that_was_left_on_is_ended(run: Path) -> None:
    try:
        core.heap_prepare()
    except UnavailableError as error:
        pytest.skip(str(error))
    text = """
from neutracer import _native
def test_leaves():
    import neutracer
    _native.core.heap_prepare()
    _native.core.watch_cycles(lambda *told: None, 0, 0, 0, 1)
def test_after():
    assert _native.core.watch_status()["subscribers"] == 0
"""
    counts, printed = outcome(run, text)
    assert "left behind: cycle watches: 1, was 0" in printed
    assert (counts.get("passed"), counts.get("error")) == (2, 1)


def test_child_that_gets_this_path_imports_the_same_neutracer(tmp_path: Path) -> None:
    """No test module puts the checkout before what is tested, which may lie elsewhere."""
    done = subprocess.run(
        [sys.executable, "-c", "import neutracer; print(neutracer.__file__)"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == neutracer.__file__
