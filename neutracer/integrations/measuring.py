# SPDX-License-Identifier: Apache-2.0
"""Measures pytest's tests, holds their limits against it, and reports the heaviest."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from neutracer.errors import NeutracerError, UnavailableError
from neutracer.integrations.baseline import device_name, read_baseline, write_baseline
from neutracer.integrations.limits import LINES, arguments, limit_problems, lines, more, value
from neutracer.integrations.markers import MARKERS
from neutracer.integrations.meter import Measured, Meter, allocated, no_device
from neutracer.integrations.rehearsing import RehearsedMeter
from neutracer.units import format_bytes, format_count, format_share, parse_bytes

__all__ = ["Measuring"]

_DEVICE_MARKERS = ("limit_gpu_memory", "limit_gpu_leaks", "limit_gpu_fragmentation")

# Rows of the summary.
_HEAVIEST = 10

_METER = pytest.StashKey[Meter | RehearsedMeter | None]()
_BEFORE = pytest.StashKey[dict[int, int]]()
_REPORTED = pytest.StashKey[dict[str, Any] | None]()


def _share(text: object) -> float:
    """A share, as "2 %" or 0.02.

    Raises:
        pytest.UsageError: It is none.
    """
    number = str(text).strip()
    try:
        share = float(number.rstrip("% ")) / (100 if number.endswith("%") else 1)
    except ValueError:
        share = -1.0
    if not 0 <= share < float("inf"):
        raise pytest.UsageError(f"{number!r} is not a share: write it like '2 %' or 0.02")
    return share


class Measuring:
    """The part of the plugin that is there where something is to be measured.

    Args:
        config: pytest's.

    Raises:
        pytest.UsageError: The baseline can't be read, or the tolerance is no share.
    """

    def __init__(self, config: pytest.Config) -> None:
        option = config.option
        self._config = config
        self._everything = bool(option.neutracer)
        self._shows = self._everything
        self._updates = bool(option.neutracer_update_baseline)
        self._tolerance = _share(option.neutracer_tolerance or config.getini("neutracer_tolerance"))
        self._baseline = None
        path = _baseline_path(config)
        if self._updates and path is None:
            raise pytest.UsageError("--neutracer-update-baseline needs --neutracer-baseline FILE")
        if path is not None:
            try:
                self._baseline = read_baseline(path)
            except NeutracerError as error:
                raise pytest.UsageError(str(error)) from error
            self._everything = True
        self._writes = self._baseline is not None and (self._updates or not self._baseline.exists)
        self._rows: dict[str, dict[str, Any]] = {}
        self._written: int | None = None

    # ---- one test ----------------------------------------------------------------------

    # No wrapper: where one skips, the other plugins' would not have been entered.
    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        # A test that is run again begins anew.
        item.stash[_METER] = item.stash[_REPORTED] = None
        marked = [mark.name for mark in item.iter_markers() if mark.name in MARKERS]
        devices = [name for name in marked if name in _DEVICE_MARKERS]
        reason = no_device() if devices else ""
        rehearsed = bool(reason) and more(item, "limit_gpu_memory")["rehearse"]
        for name in devices:
            if reason and not (rehearsed and name == "limit_gpu_memory"):
                pytest.skip(f"{name}: {reason}")
        if rehearsed:
            item.stash[_BEFORE] = {}
            item.stash[_METER] = meter = _rehearsed(item)
            meter.enter()
        elif marked or self._everything:
            item.stash[_BEFORE] = allocated()

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(
        self, fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest
    ) -> Generator[None, object, object]:
        # Made anew for the next test: what is made in a rehearsal holds fake tensors.
        item: pytest.Item = request._pyfuncitem
        meter = item.stash.get(_METER, None)
        if isinstance(meter, RehearsedMeter) and fixturedef.scope != "function":
            meter.fixtures.append(fixturedef)
        return (yield)

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, object, object]:
        if _BEFORE not in item.stash:
            return (yield)
        meter = item.stash[_METER] or _meter(item)
        item.stash[_METER] = meter
        meter.begin()
        try:
            result = yield
        except BaseException as error:
            self._keep(item, meter.end())
            if isinstance(meter, RehearsedMeter) and isinstance(error, Exception):
                item.add_report_section("call", "neutracer", meter.failure(error))
            _stop(item)
            raise
        now = meter.end()
        problems = self._problems(item, meter)
        self._keep(item, now)
        if problems:
            _stop(item)
            pytest.fail("\n".join(problems), pytrace=False)
        return result

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Generator[None, object, object]:
        meter = item.stash.get(_METER, None)
        if meter is None:
            return (yield)
        try:
            result = yield
            problem = self._leak(item, meter)
        finally:
            if isinstance(meter, RehearsedMeter):
                for fixture in reversed(meter.fixtures):
                    fixture.finish(item._request)  # type: ignore[attr-defined]
            meter.close()
            item.stash[_METER] = None
        if problem:
            pytest.fail(problem, pytrace=False)
        return result

    def _problems(self, item: pytest.Item, meter: Meter | RehearsedMeter) -> list[str]:
        """Which limits the test broke, in words; the leaks come when its fixtures are gone."""
        problems = limit_problems(item, meter)
        # Who holds a peak is asked where it is shown or written: it takes a snapshot.
        if self._shows or self._writes:
            meter.find_places()
        return problems + self._growth(item, meter)

    def _growth(self, item: pytest.Item, meter: Meter | RehearsedMeter) -> list[str]:
        now, baseline = meter.measured, self._baseline
        if baseline is None or self._updates or not now.peak_bytes:
            return []
        name = _device(now)
        text = baseline.growth(item.nodeid, name, now, self._tolerance)
        if not text:
            return []
        meter.find_places()
        return [text, *(f"  {line}" for line in baseline.grown(item.nodeid, name, now)[:LINES])]

    def _leak(self, item: pytest.Item, meter: Meter | RehearsedMeter) -> str:
        limit = value(item, "limit_gpu_leaks", "limit")
        if limit is None:
            return ""
        # pytest holds what fixtures gave until its last report; they are torn down.
        item.funcargs = {}  # type: ignore[attr-defined]
        nbytes, places = meter.left()
        if nbytes <= parse_bytes(limit):
            return ""
        return "\n".join(
            [
                f"the test left {format_bytes(nbytes)} of GPU memory behind, and "
                f"limit_gpu_leaks({limit!r}) allows {format_bytes(parse_bytes(limit))}",
                *lines(places),
            ]
        )

    def _keep(self, item: pytest.Item, now: Measured) -> None:
        """Give the figures to the report, which carries them to whoever shows them."""
        if now.peak_bytes or now.fixture_bytes:
            for name in ("peak", "left", "fixture"):
                value = getattr(now, f"{name}_bytes")
                item.user_properties.append((f"neutracer_{name}_bytes", value))
        item.stash[_REPORTED] = {
            "device": now.device,
            "device_name": _device(now) if now.peak_bytes else "",
            "peak_bytes": now.peak_bytes,
            "left_bytes": now.left_bytes,
            "fixture_bytes": now.fixture_bytes,
            "places": [list(place) for place in now.places[:_HEAVIEST]],
        }

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if call.when == "call" and item.stash.get(_REPORTED, None) is not None:
            # It goes along from xdist's workers to their controller.
            vars(report)["neutracer"] = item.stash[_REPORTED]
        return report

    # ---- all tests ---------------------------------------------------------------------

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        row = getattr(report, "neutracer", None)
        # A test that failed may have ended early.
        if row is not None and (report.passed or self._updates or self._shows):
            self._rows[report.nodeid] = {**row, "passed": report.passed}

    def pytest_sessionfinish(self) -> None:
        # With xdist, the workers' reports are here and not where they ran.
        if self._baseline is None or hasattr(self._config, "workerinput"):
            return
        if self._writes:
            passed = {test: row for test, row in self._rows.items() if row["passed"]}
            self._written = write_baseline(self._baseline, passed)

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if self._baseline is not None:
            self._say_baseline(terminalreporter)
        if self._shows:
            self._say_heaviest(terminalreporter)

    def _say_baseline(self, terminal: Any) -> None:
        assert self._baseline is not None
        path = self._baseline.path
        if self._written is not None:
            what = format_count(self._written, "peak")
            said = f"{what} written to {path}"
            if not self._written:
                said = "nothing was allocated on a CUDA device, and no baseline was written"
        else:
            names = {row["device_name"] for row in self._rows.values() if row["device_name"]}
            strange = sorted(names - self._baseline.devices.keys())
            said = f"peaks compared with {path}, tolerance {format_share(self._tolerance)}"
            if strange:
                said += f"; it has none of {', '.join(strange)}: --neutracer-update-baseline"
            elif not names:
                said = "nothing was allocated on a CUDA device, and nothing compared"
        terminal.write_line(f"neutracer: {said}")

    def _say_heaviest(self, terminal: Any) -> None:
        terminal.section("neutracer: the heaviest tests")
        rows = sorted(self._rows.items(), key=lambda row: -row[1]["peak_bytes"])
        rows = [row for row in rows if row[1]["peak_bytes"]]
        if not rows:
            reason = no_device() or "no test allocated on a CUDA device"
            terminal.write_line(f"no GPU memory was measured: {reason}")
        for test, row in rows[:_HEAVIEST]:
            figures = [f"{format_bytes(row['peak_bytes'])} at the peak"]
            for name, words in (("left", "kept at its end"), ("fixture", "of fixtures")):
                if row[f"{name}_bytes"] > 0:
                    figures.append(f"{format_bytes(row[f'{name}_bytes'])} {words}")
            terminal.write_line(f"{test}: {', '.join(figures)}")
            for line in lines([(place[0], place[1], place[2]) for place in row["places"]])[:3]:
                terminal.write_line(line)


def _baseline_path(config: pytest.Config) -> Path | None:
    given: str | None = config.option.neutracer_baseline
    if given:
        return config.invocation_params.dir / given
    named: str = config.getini("neutracer_baseline")
    return config.rootpath / named if named else None


def _meter(item: pytest.Item) -> Meter:
    """The meter of a test on the devices of this machine."""
    wanted = arguments(item.get_closest_marker("no_tensor_cycles"), device="all", min_bytes=0)
    return Meter(
        item.stash[_BEFORE],
        empty_cache=item.get_closest_marker("limit_gpu_fragmentation") is not None,
        cycles=wanted["device"],
        min_bytes=wanted["min_bytes"],
    )


def _rehearsed(item: pytest.Item) -> RehearsedMeter:
    """The meter of a test on a card that is not there.

    Raises:
        pytest.UsageError: There is no such card.
    """
    device = more(item, "limit_gpu_memory")["device"]
    try:
        return RehearsedMeter(device)
    except (TypeError, ValueError) as error:
        raise pytest.UsageError(f"limit_gpu_memory of {item.nodeid}: {error}") from error
    except UnavailableError as error:
        pytest.skip(f"limit_gpu_memory(rehearse=True): {error}")


def _stop(item: pytest.Item) -> None:
    """Nothing more is asked of a test that failed; a rehearsal lasts until its fixtures end."""
    meter = item.stash[_METER]
    if isinstance(meter, Meter):
        meter.close()
        item.stash[_METER] = None


def _device(now: Measured) -> str:
    """The kind of device whose figures may be compared with these."""
    return f"{now.rehearsed}, rehearsed" if now.rehearsed else device_name(now.device)
