# SPDX-License-Identifier: Apache-2.0
"""The pytest plugin in pytest itself: with a fake CUDA, and with torch on the CPU."""

from __future__ import annotations

import json
from xml.etree import ElementTree

import pytest
from places import HELPERS, PACKAGE

from neutracer.recording.recorder import HISTORY

pytest_plugins = ["pytester"]

PYTEST = "import pytest, sys; sys.exit(pytest.main(sys.argv[1:]))"

#: A conftest that puts a fake in the place of torch, for as long as the session.
FAKE = """
import sys
import fake_cuda
import pytest

TORCH = fake_cuda.FakeTorch()

@pytest.hookimpl(wrapper=True)
def pytest_runtestloop():
    before = sys.modules.get("torch")
    sys.modules["torch"] = TORCH.module
    try:
        return (yield)
    finally:
        del sys.modules["torch"]
        if before is not None:
            sys.modules["torch"] = before

@pytest.fixture
def gpu():
    return TORCH

@pytest.fixture
def model():
    TORCH.hold(2 << 20, line=1)
    yield []
    TORCH.drop()
"""


@pytest.fixture
def suite(pytester, monkeypatch):
    """Runs pytest with the plugin on files, in this process, another or a fork with torch."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTHONPATH", f"{PACKAGE}:{HELPERS}")

    def run(*arguments, another=False, process=None, conftest=FAKE, **files):
        if conftest:
            pytester.makeconftest(conftest)
        if files:
            pytester.makepyfile(**files)
        run = pytester.runpytest_subprocess if another else pytester.runpytest_inprocess
        plugins = ("-p", "neutracer.integrations.pytest_plugin", "-p", "no:cacheprovider")
        words = (*plugins, "--strict-markers", *arguments)
        if process is None:
            return run(*words)
        done = process.run(PYTEST, *words, cwd=pytester.path, PYTEST_DISABLE_PLUGIN_AUTOLOAD="1")
        return pytest.RunResult(
            done.returncode, done.stdout.splitlines(), done.stderr.splitlines(), 0.0
        )

    run.path = pytester.path
    return run


LIMITS = """
import pytest

@pytest.mark.limit_gpu_memory("6 MiB")
def test_in_its_limit(gpu):
    gpu.hold(6 << 20)
    gpu.drop()

@pytest.mark.limit_gpu_memory("6 MiB")
def test_over_it(gpu):
    gpu.hold(5 << 20, line=11)
    gpu.hold(2 << 20, line=12)
    gpu.drop()
    gpu.drop()

@pytest.mark.limit_gpu_memory("1 MiB")
def test_fixtures_do_not_count(model, gpu):
    gpu.hold(1 << 20)
    gpu.drop()
"""


def test_peaks_over_their_limit_fail_with_their_lines(suite):
    result = suite(test_it=LIMITS)
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(
        [
            "the test allocated 7 MiB of cuda:0 at its peak, 1 MiB more than *'6 MiB'* allows",
            "  5 MiB in 1 block: *model.py:11*",
            "  2 MiB in 1 block: *model.py:12*",
        ]
    )


def test_what_is_left_behind_fails_when_the_fixtures_are_gone(suite):
    result = suite(
        test_it="""
        import pytest

        @pytest.mark.limit_gpu_leaks("0 B")
        def test_that_keeps(gpu):
            gpu.hold(3 << 20, line=21)

        @pytest.mark.limit_gpu_leaks("0 B")
        def test_that_gives_back(model, gpu):
            gpu.hold(1 << 20)
            gpu.drop()

        @pytest.mark.limit_gpu_leaks("4 MiB")
        def test_that_may_keep(gpu):
            gpu.hold(4 << 20)
        """
    )
    result.assert_outcomes(passed=3, errors=1)
    result.stdout.fnmatch_lines(
        [
            "the test left 3 MiB of GPU memory behind, and limit_gpu_leaks('0 B') allows 0 B",
            "  3 MiB in 1 block: *model.py:21*",
        ]
    )


def test_fixtures_may_let_go_of_what_the_test_made(suite):
    result = suite(
        conftest=FAKE
        + """
@pytest.fixture
def grown():
    kept = []
    yield kept
    for _ in kept:
        TORCH.drop()
""",
        test_it="""
        import pytest

        @pytest.mark.limit_gpu_leaks("0 B")
        def test_gradients(grown, gpu):
            gpu.hold(3 << 20)
            grown.append("a gradient")
        """,
    )
    result.assert_outcomes(passed=1)


def test_unused_reserved_memory_is_limited(suite):
    # The fake has reserved 32 MiB, of which 4 are allocated at its start.
    result = suite(
        test_it="""
        import pytest

        @pytest.mark.limit_gpu_fragmentation(0.3)
        @pytest.mark.parametrize("mib", [10, 20])
        def test_it(gpu, mib):
            gpu.hold(mib << 20)
            gpu.drop()
        """
    )
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(
        ["of the 32 MiB reserved on cuda:0 at the most, 56.2 % is beyond*(14 MiB)*30.0 %"]
    )


CYCLES = """
import pytest
import torch

def ring():
    kept = [torch.zeros(1 << 18)]
    kept.append(kept)

@pytest.mark.no_tensor_cycles
def test_with_a_cycle():
    ring()

@pytest.mark.no_tensor_cycles
def test_without():
    [torch.zeros(1 << 18)]

@pytest.mark.no_tensor_cycles(min_bytes=2 << 20)
def test_too_small_to_count():
    ring()

@pytest.mark.limit_gpu_memory("1 GB")
def test_device():
    raise AssertionError("it must not run without a device")

def test_unmarked():
    ring()
"""


def test_cycles_of_cpu_tensors_are_found_without_a_device(suite, torch, with_torch):
    if torch.version.cuda is not None and torch.cuda.device_count():
        pytest.skip("is about machines without a GPU")
    result = suite("-rs", "-W", "error", process=with_torch, conftest="", test_it=CYCLES)
    result.assert_outcomes(passed=3, failed=1, skipped=1)
    result.stdout.fnmatch_lines(
        [
            "1 reference cycle kept 1 MiB of tensors until the garbage collector ran",
            "*list*",
            "SKIPPED * limit_gpu_memory: *",
        ]
    )


BASELINE = """
import os

def test_one(gpu):
    gpu.hold(4 << 20, line=31)
    gpu.hold(int(os.environ.get("MORE", 0)), line=32) if "MORE" in os.environ else None
    while len(gpu.held) > 1:
        gpu.drop()

def test_two(gpu):
    gpu.hold(2 << 20)
    gpu.drop()

def test_none():
    pass
"""


def test_baseline_is_written_and_compared(suite, monkeypatch):
    result = suite("--neutracer-baseline", "gpu.json", test_it=BASELINE)
    result.assert_outcomes(passed=3)
    result.stdout.fnmatch_lines(["neutracer: 2 peaks written to *gpu.json"])
    path = suite.path / "gpu.json"
    written = path.read_text()
    tests = json.loads(written)["devices"]["fake"]
    assert {test: row["peak_bytes"] >> 20 for test, row in tests.items()} == {
        "test_it.py::test_one": 4,
        "test_it.py::test_two": 2,
    }
    for more, passed in ((0, 3), (40 << 10, 3), (1 << 20, 2)):
        monkeypatch.setenv("MORE", str(more))
        result = suite("--neutracer-baseline", "gpu.json", test_it=BASELINE)
        result.assert_outcomes(passed=passed, failed=3 - passed)
        assert path.read_text() == written
    result.stdout.fnmatch_lines(
        [
            "the peak on cuda:0 grew by 1 MiB: 5 MiB, and 4 MiB in gpu.json (tolerance 1.0 %)",
            "  +1 MiB *model.py:32*: new among the largest",
            "neutracer: peaks compared with *gpu.json, tolerance 1.0 %",
        ]
    )
    suite("--neutracer-baseline", "gpu.json", "--neutracer-tolerance", "30 %").assert_outcomes(
        passed=3
    )
    update = ("--neutracer-baseline", "gpu.json", "--neutracer-update-baseline")
    suite(*update).assert_outcomes(passed=3)
    suite(*update[:2]).assert_outcomes(passed=3)


def test_lines_that_moved_are_the_same_lines(suite):
    def test(line, mib):
        return f"def test_it(gpu):\n    gpu.hold({mib} << 20, line={line})\n    gpu.drop()\n"

    suite("--neutracer-baseline", "gpu.json", test_it=test(31, 4)).assert_outcomes(passed=1)
    result = suite("--neutracer-baseline", "gpu.json", test_it=test(35, 6))
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["  +2 MiB *model.py:35*: was 4 MiB"])


def test_a_file_that_is_no_baseline_is_refused(suite):
    (suite.path / "gpu.json").write_text("{}")
    result = suite("--neutracer-baseline", "gpu.json", test_it=BASELINE)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: *gpu.json is not a baseline of neutracer: *"])


def test_heaviest_tests_are_shown(suite):
    result = suite("--neutracer", test_it=LIMITS)
    result.stdout.fnmatch_lines(
        [
            "*neutracer: the heaviest tests*",
            "test_it.py::test_over_it: 7 MiB at the peak",
            "  5 MiB in 1 block: *model.py:11*",
            "test_it.py::test_in_its_limit: 6 MiB at the peak",
            "test_it.py::test_fixtures_do_not_count: 1 MiB at the peak, 2 MiB of fixtures",
        ]
    )


def test_figures_are_junit_properties(suite):
    suite("--junitxml", "junit.xml", test_it=LIMITS)
    tree = ElementTree.parse(suite.path / "junit.xml")
    found = {
        case.get("name"): {entry.get("name"): entry.get("value") for entry in case.iter("property")}
        for case in tree.iter("testcase")
    }
    assert found["test_over_it"]["neutracer_peak_bytes"] == str(7 << 20)
    assert found["test_fixtures_do_not_count"]["neutracer_fixture_bytes"] == str(2 << 20)


def test_workers_of_xdist_report_to_the_controller(suite):
    pytest.importorskip("xdist", reason="needs pytest-xdist, which is not installed here")
    arguments = ("-p", "xdist", "-n", "2", "--neutracer", "--neutracer-baseline", "gpu.json")
    result = suite(*arguments, another=True, test_it=BASELINE)
    result.assert_outcomes(passed=3)
    result.stdout.fnmatch_lines(
        ["neutracer: 2 peaks written to *gpu.json", "test_it.py::test_one: 4 MiB at the peak"]
    )


def test_async_tests_are_measured(suite):
    pytest.importorskip("pytest_asyncio", reason="needs pytest-asyncio, not installed here")
    result = suite(
        *("-p", "pytest_asyncio.plugin", "-o", "asyncio_mode=auto"),
        *("-o", "asyncio_default_fixture_loop_scope=function"),
        another=True,
        test_it="""
        import asyncio
        import pytest

        @pytest.mark.limit_gpu_memory("1 MiB")
        async def test_it(gpu):
            gpu.hold(2 << 20)
            await asyncio.sleep(0)
            gpu.drop()
        """,
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["the test allocated 2 MiB of cuda:0 at its peak, *"])


def test_a_test_that_is_run_again_is_measured_anew(suite):
    reason = "needs pytest-rerunfailures, not installed here"
    pytest.importorskip("pytest_rerunfailures", reason=reason)
    result = suite(
        *("-p", "pytest_rerunfailures", "--reruns", "1", "--neutracer"),
        another=True,
        test_it="""
        import pytest
        runs = []

        @pytest.mark.limit_gpu_memory("3 MiB")
        def test_it(gpu):
            runs.append(1)
            gpu.hold(6 << 20 >> len(runs))
            gpu.drop()
            assert len(runs) > 1
        """,
    )
    assert "1 passed, 1 rerun" in result.stdout.str()
    result.stdout.fnmatch_lines(["test_it.py::test_it: 1.50 MiB at the peak"])


def test_failures_of_the_test_itself_come_first(suite):
    result = suite(
        test_it="""
        import pytest

        @pytest.mark.limit_gpu_leaks("0 B")
        @pytest.mark.limit_gpu_memory("1 MiB")
        def test_it(gpu):
            gpu.hold(2 << 20)
            raise RuntimeError("its own")
        """
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*RuntimeError: its own"])


REHEARSED = """
import pytest
import torch

@pytest.fixture(scope="session")
def table():
    return torch.nn.Embedding(1024, 1024, device="cuda")

@pytest.fixture
def layer():
    layer = torch.nn.Linear(1024, 1024).cuda()
    yield layer
    torch.cuda.synchronize()

@pytest.mark.limit_gpu_memory("48 MiB", rehearse=True)
def test_in_its_limit(layer):
    layer(torch.randn(1024, 1024, device="cuda"))

@pytest.mark.limit_gpu_memory("20 MiB", rehearse=True, device="A100")
def test_over_it(layer, table):
    x = torch.randn(1024, 1024, device="cuda")
    layer(x + table.weight)

@pytest.mark.limit_gpu_memory("1 MiB", rehearse=True)
def test_fixtures_do_not_count(layer, table):
    table(torch.zeros(1, dtype=torch.long, device="cuda")).sum()

@pytest.mark.limit_gpu_memory("1 MiB", rehearse=True)
def test_that_needs_values(layer):
    assert torch.randn(3, device="cuda").sum().item() == 3

def test_after_it():
    assert not torch.cuda.is_available()
    assert torch.ones(3).sum() == 3
"""


def test_limits_are_rehearsed_where_there_is_no_device(suite, torch, with_torch):
    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device, on which tests are measured")
    result = suite("--neutracer", process=with_torch, conftest="", test_it=REHEARSED)
    result.assert_outcomes(passed=3, failed=2)
    result.stdout.fnmatch_lines(
        [
            "the test would allocate 21.1 MiB (between 21.0 MiB and 21.3 MiB) of NVIDIA A100* at "
            "its peak, 1.1* MiB more than *",
            "  8.12 MiB in 1 block: workspace of cuBLAS or cuDNN, from test_over_it *",
            "  4 MiB in 1 block: test_over_it (test_it.py:20)",
            "rehearsed on fake tensors, as if on NVIDIA H200: test_it.py:29: the program failed: *",
            "test_it.py::test_in_its_limit: * at the peak, * 4* MiB of fixtures",
        ]
    )


@pytest.mark.parametrize(
    ("marker", "says"),
    [
        ("device='Voodoo 2', rehearse=True", "*Voodoo 2*"),
        ("rehearse=True, steps=3", "*limit_gpu_memory takes limit, rehearse, device*"),
    ],
)
def test_rehearsals_that_can_not_be_are_said(suite, torch, marker, says):
    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device, on which tests are measured")
    source = f"""
        import pytest

        @pytest.mark.limit_gpu_memory("1 MiB", {marker})
        def test_it():
            pass
    """
    result = suite(conftest="", test_it=source)
    assert result.ret
    result.stdout.fnmatch_lines([says])


@pytest.mark.parametrize("conftest", [FAKE, ""], ids=["device", "no device"])
@pytest.mark.parametrize(
    "marker", ['limit_gpu_memory("24 GX")', "limit_gpu_leaks()", "limit_gpu_fragmentation(3)"]
)
def test_limits_that_are_none_are_said(suite, torch, marker, conftest):
    source = f"import pytest\n@pytest.mark.{marker}\ndef test_it(): pass\n"
    result = suite(conftest=conftest, test_it=source)
    assert result.ret != pytest.ExitCode.OK
    said = result.stdout.str() + result.stderr.str()
    assert marker.partition("(")[0] in said
    assert "INTERNALERROR" not in said
    assert HISTORY.in_force() is None


def test_nothing_is_measured_where_nothing_asks(suite):
    result = suite(
        another=True,
        conftest="",
        test_it="""
        import sys

        def test_it(request):
            names = {name for name in sys.modules if name.startswith("neutracer.")}
            ours = "neutracer.integrations"
            assert names == {ours, f"{ours}.pytest_plugin"}
            assert not request.config.pluginmanager.has_plugin("neutracer-measuring")
            assert "torch" not in sys.modules
        """,
    )
    result.assert_outcomes(passed=1)
