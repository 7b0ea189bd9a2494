# SPDX-License-Identifier: Apache-2.0
"""MemoryMonitor with a made-up native source, with PyTorch's entry points made up, and on
the CPU through the hooks."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from compiled import needs_selftest, selftest
from durations import parse_duration
from fake_cuda import install
from made_up_monitor import MadeUpMonitor
from waiting import PATIENCE, wait_for
from without_hooks import without_hooks

import neutracer
from neutracer.monitor import memory_monitor as monitor_source
from neutracer.monitor.memory_monitor import AlertDesk, MemoryMonitor, parse_devices

MIB = 1 << 20
GB = 1e9

pytestmark = needs_selftest


def say(
    device: int,
    allocated: int,
    reserved: int = 100 * MIB,
    *,
    used: int = 0,
    total: int = 0,
    answer: int = 0,
    delay_us: int = 0,
) -> None:
    selftest.sampler_set(device, allocated, reserved, used, total, answer, delay_us)


@pytest.fixture(autouse=True)
def quiet_devices() -> Iterator[None]:
    for device in range(-1, 4):
        say(device, 0, 0, answer=1)
        selftest.sampler_cap(device, 0)
    yield
    for monitor in tuple(neutracer.monitor.memory_monitor._running):
        monitor.stop()


# ---- figures ---------------------------------------------------------------------------


def test_stats_have_the_usual_names() -> None:
    say(0, 30 * MIB, 100 * MIB, used=150 * MIB, total=1000 * MIB)
    with MadeUpMonitor() as monitor:
        say(0, 20 * MIB, 100 * MIB, used=150 * MIB, total=1000 * MIB)
    stats = monitor.get_stats()
    assert stats["current"] == 20 * MIB / GB
    assert stats["peak"] == 30 * MIB / GB
    assert stats["total"] == 1000 * MIB / GB
    assert stats["current_bytes"] == 20 * MIB
    assert stats["non_torch_bytes"] == 50 * MIB
    assert stats["used_share"] == 70 / 1000
    assert stats["ratio"] == stats["max_ratio"] == 0.8
    assert stats["device"] == "cuda:0"
    assert stats["samples"] >= 2


def test_series_are_columns_for_arrow() -> None:
    pyarrow = pytest.importorskip("pyarrow")
    say(0, 30 * MIB)
    with MadeUpMonitor(interval=0.001) as monitor:
        monitor.mark("warm-up")
        assert wait_for(lambda: len(monitor.series) >= 5)
    table = pyarrow.table(monitor.series)
    assert table.num_rows == len(monitor.series)
    assert set(table["allocated"].to_pylist()) == {30 * MIB}
    assert str(table["ratio"].type) == "double"
    assert table["phase"].to_pylist()[-1] == "warm-up"
    times = monitor.series["time_us"]
    assert list(times) == sorted(times)
    assert abs(times[-1] / 1e6 - time.time()) < 60


def test_long_history_keeps_its_extremes() -> None:
    say(0, 30 * MIB)
    with MadeUpMonitor(interval=3600, history=16) as monitor:
        for step in range(300):
            say(0, (step * 7 % 64 + 1) * MIB)
            monitor.mark(f"step {step}")
    series = monitor.series
    assert len(series) <= 16
    assert sum(series["samples"]) == monitor.get_stats()["samples"]
    assert min(series["allocated_low"]) == MIB
    assert max(series["allocated_high"]) == 64 * MIB


def test_phases_tell_floor_and_peak() -> None:
    say(0, 5 * MIB)
    with MadeUpMonitor(interval=3600) as monitor:
        for step, allocated in enumerate((10, 30, 20)):
            say(0, allocated * MIB)
            monitor.mark(f"step {step}")
    phases = monitor.phases
    assert phases["label"] == [None, "step 0", "step 1", "step 2"]
    assert [row.allocated_low // MIB for row in phases] == [5, 10, 20, 20]
    assert [row.allocated_high // MIB for row in phases] == [10, 30, 30, 20]
    assert [row.marks for row in phases][1:] == [1, 1, 1]
    assert monitor.get_stats()["phase"] == "step 2"


def test_labels_do_not_pile_up() -> None:
    say(0, MIB)
    with MadeUpMonitor(interval=3600, history=16) as monitor:
        for step in range(2000):
            monitor.mark(f"step {step}")
        assert len(monitor._labels) <= 4 * 16 + 1
    labels = monitor.phases["label"]
    assert labels[1].startswith("step ")
    assert sum(monitor.phases["marks"]) == 2001


def test_several_devices_are_told_apart() -> None:
    class Three(MadeUpMonitor):
        numbers = (0, 1, 2)

    say(0, 10 * MIB)
    say(2, 20 * MIB)
    with Three() as monitor:
        pass
    assert monitor.devices == (0, 2)
    assert set(monitor.series["device"]) == {0, 2}
    assert set(monitor.device_series(2)["allocated"]) == {20 * MIB}
    assert monitor.get_stats("cuda:2")["current_bytes"] == 20 * MIB
    with pytest.raises(ValueError, match="cuda:0, cuda:2"):
        monitor.get_stats()
    with pytest.raises(ValueError, match="not monitored"):
        monitor.get_stats(3)


def test_fragmentation_report_of_a_monitor() -> None:
    say(0, 900 * MIB, 1000 * MIB)
    with MadeUpMonitor(interval=3600) as monitor:
        say(0, 200 * MIB, 1000 * MIB)
        monitor.mark("worst")
        say(0, 700 * MIB, 1000 * MIB)
    report = neutracer.fragmentation_report(monitor)
    samples = monitor.get_stats()["samples"]
    assert report["max_fragmentation"] == 0.8
    assert report["current_fragmentation"] == pytest.approx(0.3)
    assert len(report["fragmentation_history"]) == samples
    assert report["avg_fragmentation"] == pytest.approx(
        sum(report["fragmentation_history"]) / samples
    )
    # Of the 1,000 MiB reserved 900 were in use at once.
    assert (report.severity, report.findings[0].severity) == ("serious", "info")
    assert report.to_dict()["holes"] == []
    assert "30.0 % of the 1,000 MiB reserved was unused" in str(report)
    with pytest.raises(neutracer.UnavailableError, match="readings"):
        report.fits(1)


@pytest.mark.parametrize(("total", "severity"), [(0, "serious"), (80_000 * MIB, "info")])
def test_monitor_blames_what_matters_beside_the_device(total: int, severity: str) -> None:
    say(0, 300 * MIB, 1000 * MIB, used=1000 * MIB, total=total)
    with MadeUpMonitor(interval=3600) as monitor:
        say(0, 620 * MIB, 1000 * MIB, used=1000 * MIB, total=total)
    report = neutracer.fragmentation_report(monitor)
    assert [one.severity for one in report.findings] == [severity]


# ---- alerts ----------------------------------------------------------------------------


def test_threshold_calls_back_from_python() -> None:
    told: list[Any] = []
    threads: list[str] = []

    def receive(alert: neutracer.reports.Alert) -> None:
        threads.append(threading.current_thread().name)
        told.append(alert)

    # One figure changes at a time: a reading may fall between two.
    say(0, 10 * MIB, 85 * MIB, used=95 * MIB, total=100 * MIB)
    with MadeUpMonitor(
        0.001, 0.9, on_alert=receive, actions=["callback"], fragmentation_threshold=None
    ) as monitor:
        assert wait_for(lambda: monitor.get_stats()["samples"] > 3)
        assert not told
        say(0, 85 * MIB, 85 * MIB, used=95 * MIB, total=100 * MIB)
        assert wait_for(lambda: bool(told))
        assert monitor.get_stats()["active_alerts"] == ("threshold",)
        say(0, 10 * MIB, 85 * MIB, used=95 * MIB, total=100 * MIB)
        assert wait_for(lambda: not monitor.get_stats()["active_alerts"])
    (alert,) = told
    assert threads == ["neutracer-monitor"]
    assert (alert.kind, alert.device, alert.limit) == ("threshold", 0, 0.9)
    assert alert.value == 0.95
    assert alert.message == (
        "cuda:0: 95.0 % of 100 MiB is taken, PyTorch's cache not counted (85 MiB allocated); "
        "the limit is 90.0 %"
    )
    assert monitor.alerts == (alert,)


def test_memory_fraction_is_a_limit() -> None:
    say(0, 10 * MIB, 20 * MIB, used=30 * MIB, total=100 * MIB)
    selftest.sampler_cap(0, 40 * MIB)
    with MadeUpMonitor(0.001, 0.9, actions=()) as monitor:
        assert wait_for(lambda: monitor.get_stats()["samples"] > 3)
        assert monitor.get_stats()["used_share"] == 0.25
        assert monitor.get_stats()["limit_bytes"] == 40 * MIB
        assert not monitor.alerts
        say(0, 36 * MIB, 40 * MIB, used=50 * MIB, total=100 * MIB)
        assert wait_for(lambda: bool(monitor.alerts))
    (alert,) = monitor.alerts
    assert (alert.kind, alert.value, alert.cap_bytes) == ("threshold", 36 / 40, 40 * MIB)
    assert alert.message == (
        "cuda:0: 90.0 % of the 40 MiB that this process may have is allocated (36 MiB); "
        "the limit is 90.0 %"
    )


def grow_until(condition: Callable[[], bool], total: int) -> bool:
    """Allocated rises by 10 MiB a second from 100 MiB until the condition holds.

    Where the sampler is not run for a part of its window it begins the window anew: growth
    goes on until it has seen a whole one.
    """
    begin = time.monotonic()

    def grown() -> bool:
        allocated = round((100 + 10 * (time.monotonic() - begin)) * MIB)
        say(0, allocated, 1000 * MIB, used=1100 * MIB, total=total)
        return condition()

    return wait_for(grown)


def test_growth_is_told_against_the_fraction() -> None:
    say(0, 100 * MIB, 1000 * MIB, used=1100 * MIB, total=9000 * MIB)
    selftest.sampler_cap(0, 4000 * MIB)
    with MadeUpMonitor(
        *(0.001, None),
        growth_threshold=MIB,
        growth_window=0.4,
        fragmentation_threshold=None,
        actions=(),
    ) as watch:
        assert grow_until(lambda: bool(watch.alerts), 9000 * MIB)
    assert "at this pace the process's limit is reached in" in watch.alerts[0].message


def test_fragmentation_and_growth_are_told() -> None:
    say(0, 100 * MIB, 1000 * MIB, used=1100 * MIB, total=4000 * MIB)
    with MadeUpMonitor(
        0.001, growth_threshold=MIB, growth_window=0.4, patience=0.01, actions=()
    ) as monitor:
        assert wait_for(lambda: bool(monitor.alerts))
        assert grow_until(lambda: len(monitor.alerts) >= 2, 4000 * MIB)
    first, second = monitor.alerts[:2]
    assert first.message == (
        "cuda:0: 90.0 % of the 1,000 MiB reserved is unused (900 MiB); the limit is 40.0 %"
    )
    assert second.kind == "growth"
    assert "at this pace the device is full in" in second.message
    left = parse_duration(second.message.rpartition(" full in ")[2])
    free = second.total_bytes - second.device_used_bytes
    free += second.reserved_bytes - second.allocated_bytes
    assert left == pytest.approx(free / second.value * 1e6, rel=0.02)


def test_slow_callback_delays_nobody() -> None:
    entered, release = threading.Event(), threading.Event()

    def stuck(alert: object) -> None:
        entered.set()
        release.wait(2 * PATIENCE)

    say(0, 95 * MIB, 95 * MIB, used=95 * MIB, total=100 * MIB)
    monitor = MadeUpMonitor(0.001, on_alert=stuck, actions=["callback"]).start()
    assert entered.wait(PATIENCE)
    before = monitor.get_stats()["samples"]
    assert wait_for(lambda: monitor.get_stats()["samples"] > before + 5)
    threading.Timer(0.05, release.set).start()
    monitor.stop()
    assert not monitor.running


def test_raising_callback_is_only_logged(caplog: pytest.LogCaptureFixture) -> None:
    def broken(alert: object) -> None:
        raise RuntimeError("on purpose")

    say(0, 95 * MIB, 95 * MIB, used=95 * MIB, total=100 * MIB)
    made = MadeUpMonitor(0.001, on_alert=broken, fragmentation_threshold=None)
    with made as monitor, caplog.at_level(logging.WARNING):
        assert wait_for(lambda: monitor.status["callback_errors"] == 1)
        say(0, MIB, 95 * MIB, used=95 * MIB, total=100 * MIB)
        assert wait_for(lambda: not monitor.get_stats()["active_alerts"])
    assert "on purpose" in caplog.text
    assert "is taken" in caplog.text


def test_stop_works_inside_the_callback() -> None:
    stopped = threading.Event()

    def stop_it(alert: object) -> None:
        monitor.stop()
        stopped.set()

    monitor = MadeUpMonitor(0.001, on_alert=stop_it, actions=["callback"])
    say(0, 95 * MIB, 95 * MIB, used=95 * MIB, total=100 * MIB)
    monitor.start()
    assert stopped.wait(PATIENCE)
    assert not monitor.running


def test_alert_says_whose_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "4")
    install(monkeypatch)
    desk = AlertDesk(["log", "snapshot"], None, tmp_path)
    figures = dict.fromkeys(("value", "limit", "time_us", "allocated_bytes"), 1)
    sizes = dict.fromkeys(("reserved_bytes", "device_used_bytes", "total_bytes"), 1)
    desk.handle({"kind": 0, "is_over": False, "device": 0, **figures, **sizes})
    (alert,) = desk.alerts
    path = Path(alert.snapshot)
    assert path.name.startswith("alert-threshold-")
    assert "-rank1-" in path.name
    assert neutracer.load(path).devices == (0,)
    facts = json.loads(Path(f"{path}.json").read_text())
    assert (facts["rank"], facts["world_size"]) == (1, 4)
    assert facts["recording"] == {"joined": False}
    assert caplog.messages == [f"rank 1, {alert.message}"]


def test_snapshot_that_fails_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    say(0, 95 * MIB, 95 * MIB, used=95 * MIB, total=100 * MIB)
    monitor = MadeUpMonitor(0.001, actions=["snapshot"], snapshot_dir=tmp_path)
    with caplog.at_level(logging.WARNING), monitor:
        assert wait_for(lambda: bool(monitor.alerts))
    if monitor.alerts[0].snapshot:
        assert Path(monitor.alerts[0].snapshot).parent == tmp_path
    else:
        assert "no snapshot with the alert" in caplog.text


def test_failing_device_is_said_once() -> None:
    say(0, MIB, answer=77)
    begin = time.monotonic()
    with MadeUpMonitor(0.001, actions=()) as monitor:
        assert wait_for(lambda: bool(monitor.alerts))
        ticks = monitor.status["ticks"]
        assert wait_for(lambda: monitor.status["ticks"] > ticks + 20)
        assert len(monitor.alerts) == 1
        # It is asked again no sooner than after a second, and then after two more.
        failures = monitor.get_stats()["failures"]
        assert 1 <= failures <= 1 + (time.monotonic() - begin)
    assert monitor.alerts[0].message == "cuda:0 can't be read (error 77); neutracer will try again"


# ---- life ------------------------------------------------------------------------------


def test_monitor_can_be_started_again() -> None:
    say(0, MIB)
    monitor = MadeUpMonitor(0.001)
    assert monitor.start() is monitor.start()
    monitor.stop()
    monitor.stop()
    seen = monitor.get_stats()["samples"]
    monitor.mark("nobody listens")
    assert monitor.get_stats()["samples"] == seen
    with monitor:
        assert wait_for(lambda: monitor.get_stats()["samples"] > seen)
    assert "stopped, cuda:0, no alert" in repr(monitor).replace("0 alerts", "no alert")


def test_native_thread_runs_without_the_gil() -> None:
    say(0, MIB)
    with MadeUpMonitor(0.001) as monitor:
        before = selftest.sampler_calls(0)
        interval = sys.getswitchinterval()
        sys.setswitchinterval(10 * PATIENCE)
        try:
            end = time.perf_counter() + PATIENCE
            seen = 0
            while seen <= 20 and time.perf_counter() < end:  # the GIL is not given up here
                seen = selftest.sampler_calls(0) - before
        finally:
            sys.setswitchinterval(interval)
        assert seen > 20
        assert monitor.status["cpu_s"] > 0


def test_unstarted_monitor_says_so() -> None:
    monitor = MemoryMonitor()
    with pytest.raises(neutracer.NeutracerError, match="not started yet"):
        monitor.get_stats()
    with pytest.raises(neutracer.NeutracerError, match="not started yet"):
        monitor.series  # noqa: B018
    assert repr(monitor).startswith("<MemoryMonitor: stopped, no device yet")


@pytest.mark.parametrize(
    "wrong",
    [
        {"interval": 0},
        {"interval": float("nan")},
        {"alert_threshold": 1.5},
        {"fragmentation_threshold": 0},
        {"growth_threshold": -1},
        {"hysteresis": 1},
        {"cooldown": -1},
        {"growth_window": 0},
        {"history": 3},
        {"actions": ["empty_cache"]},
        {"actions": ["snapshot"]},
        {"devices": []},
        {"devices": "xpu:0"},
        {"devices": [1, "cuda:1"]},
    ],
)
def test_wrong_arguments_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        MemoryMonitor(**wrong)


def test_device_names_are_understood() -> None:
    assert parse_devices(None) is None
    assert parse_devices("cpu") == (-1,)
    assert parse_devices(["cuda:1", 0]) == (1, 0)
    assert parse_devices("cuda") == (0,)


def run(script: str, **environment: str) -> subprocess.CompletedProcess[str]:
    head = """
        import importlib, os, sys, time
        import neutracer
        from neutracer.monitor.memory_monitor import MemoryMonitor
        from neutracer.monitor.memory_monitor import Road
        selftest = importlib.import_module("neutracer._selftest")
        class Monitor(MemoryMonitor):
            def _find_road(self):
                return Road((0,), (-1,), None, selftest.sampler_source(), "made-up")
        selftest.sampler_set(0, 95, 100, 100, 100, 0, 0)
        """
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(head) + textwrap.dedent(script)],
        capture_output=True,
        text=True,
        timeout=900,  # the hooks may have to be compiled
        env={**os.environ, **environment},
    )


def test_child_of_a_fork_is_free() -> None:
    done = run("""
        monitor = Monitor(0.001).start()
        monitor.mark("before")
        child = os.fork()
        if child == 0:
            assert not monitor.running
            monitor.stop()
            monitor.mark("in the child")
            with monitor:
                assert monitor.get_stats()["samples"] >= 1
            os._exit(7)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 7, status
        seen = monitor.get_stats()["samples"]
        end = time.monotonic() + 60
        while monitor.get_stats()["samples"] <= seen:
            assert time.monotonic() < end
            time.sleep(0.01)
        print("alive")
        """)
    assert (done.stdout, done.returncode) == ("alive\n", 0), done.stderr


def test_fork_waits_for_an_alert_that_is_being_logged() -> None:
    done = run("""
        import logging, threading
        begun, states = threading.Event(), []
        class Slow(logging.Handler):
            def emit(self, record):
                states.append("writing")
                begun.set()
                time.sleep(0.3)
                states.append("written")
        logging.getLogger("neutracer").addHandler(Slow())
        with Monitor(0.001):
            assert begun.wait(60)
            child = os.fork()
            if child == 0:
                # A lock of the stream's would be held here for good.
                os._exit(7 if states[-1] == "written" else 1)
            _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status))
        """)
    assert (done.stdout, done.returncode) == ("7\n", 0), done.stderr


def test_program_ends_with_a_running_monitor() -> None:
    done = run("""
        kept = Monitor(0.001, on_alert=lambda alert: time.sleep(0.01)).start()
        lost = Monitor(0.0001).start()
        del lost
        time.sleep(0.02)
        print("end")
        """)
    assert (done.stdout, done.returncode) == ("end\n", 0), done.stderr


def test_torch_is_asked_for_first() -> None:
    done = run("""
        try:
            neutracer.MemoryMonitor().start()
        except neutracer.UnavailableError as error:
            print(error)
        """)
    assert done.stdout == "torch in this process is not available: import torch first\n"


def test_cpu_is_followed_through_the_hooks() -> None:
    pytest.importorskip("torch")
    done = run("""
        import torch
        if torch.version.cuda is not None:
            sys.exit(print("skip: torch is built for CUDA"))
        try:
            monitor = neutracer.MemoryMonitor(0.001).start()
        except neutracer.UnavailableError as error:
            sys.exit(print("skip:", error))
        kept = [torch.zeros(1 << 20) for _ in range(8)]
        monitor.mark("full")
        del kept[2:]
        monitor.stop()
        stats = monitor.get_stats()
        assert stats["device"] == "cpu", stats
        assert stats["current_bytes"] == 2 << 22, stats
        assert stats["peak_bytes"] == 8 << 22, stats
        assert stats["total_bytes"] > 1 << 28, stats
        assert list(monitor.phases["allocated_high"])[-1] == 8 << 22
        report = neutracer.fragmentation_report(monitor)
        assert (report.device, report.allocated_bytes) == (-1, 2 << 22)
        print("followed", monitor.status["road"], monitor.devices)
        """)
    if done.stdout.startswith("skip:"):
        without_hooks(done.stdout)
    assert done.stdout == "followed hooks (-1,)\n", done.stderr


# ---- PyTorch's own entry points ----------------------------------------------------------


class FakeCuda:
    """What the monitor asks of torch.cuda."""

    def __init__(self) -> None:
        self.fails = False
        self.allocated = 3 * MIB

    def device_count(self) -> int:
        return 1

    def get_allocator_backend(self) -> str:
        return "cudaMallocAsync"

    def is_initialized(self) -> bool:
        return True

    def get_device_properties(self, device: int) -> Any:
        return type("Properties", (), {"total_memory": 100 * MIB})

    def memory_stats_as_nested_dict(self, device: int) -> dict[str, Any]:
        if self.fails:
            raise RuntimeError("device lost")
        figure = {"all": {"current": self.allocated, "peak": 5 * MIB}}
        names = ("allocated", "reserved", "active", "inactive_split", "requested")
        plain: dict[str, Any] = {f"{name}_bytes": figure for name in names}
        return {**plain, "num_alloc_retries": 2, "num_ooms": 1}


@pytest.fixture
def fake_cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    cuda = FakeCuda()
    monkeypatch.setitem(sys.modules, "torch", type("torch", (), {"cuda": cuda}))
    monkeypatch.setattr(monitor_source.nvidia, "visible_slots", dict)

    def nothing(device: int) -> None:
        raise neutracer.UnavailableError("NVML")

    monkeypatch.setattr(monitor_source.nvidia, "device_memory", nothing)
    return cuda


def test_python_road_gives_the_same(fake_cuda: FakeCuda) -> None:
    with MemoryMonitor(0.002) as monitor:
        monitor.mark("one")
        assert wait_for(lambda: monitor.get_stats()["samples"] > 5)
        stats = monitor.get_stats()
        assert monitor.status["road"] == "python"
    assert (stats["current_bytes"], stats["peak_bytes"]) == (3 * MIB, 5 * MIB)
    assert (stats["total_bytes"], stats["device_used_bytes"]) == (100 * MIB, 0)
    assert (stats["retries"], stats["ooms"]) == (2, 1)
    assert monitor.phases["label"] == [None, "one"]


def test_python_road_tells_the_fraction(
    fake_cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        fake_cuda, "get_per_process_memory_fraction", lambda device: 0.25, raising=False
    )
    with MemoryMonitor(0.002) as monitor:
        assert wait_for(lambda: monitor.get_stats()["samples"] > 2)
        stats = monitor.get_stats()
    assert (stats["total_bytes"], stats["limit_bytes"]) == (100 * MIB, 25 * MIB)
    assert stats["used_share"] == 3 / 25


def test_python_road_survives_errors(fake_cuda: FakeCuda) -> None:
    fake_cuda.fails = True
    with MemoryMonitor(0.002, actions=()) as monitor:
        assert wait_for(lambda: bool(monitor.alerts))
        assert monitor.status["last_error"] == "RuntimeError: device lost"
        fake_cuda.fails = False
        assert monitor.devices == ()
        assert monitor.running


def test_unknown_device_is_refused(fake_cuda: FakeCuda) -> None:
    with pytest.raises(ValueError, match="there is no device 3: there are 1 devices"):
        MemoryMonitor(devices=3).start()
    with pytest.raises(ValueError, match="the CPU can only be monitored alone"):
        MemoryMonitor(devices=[0, "cpu"]).start()
