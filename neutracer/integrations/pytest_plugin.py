# SPDX-License-Identifier: Apache-2.0
"""The pytest plugin: markers and hooks; measuring is imported when a test has a marker."""

from __future__ import annotations

from typing import TYPE_CHECKING

from neutracer.integrations import MARKERS

if TYPE_CHECKING:
    import pytest

_TOLERANCE = "1 %"


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("neutracer", "GPU memory of tests (neutracer)")
    group.addoption(
        "--neutracer",
        action="store_true",
        help="measure the GPU memory of each test, and show the heaviest with their lines",
    )
    group.addoption(
        "--neutracer-baseline",
        metavar="FILE",
        help="compare each test's peak with FILE, and fail where it grew; without FILE, write it",
    )
    group.addoption(
        "--neutracer-update-baseline",
        action="store_true",
        help="write the baseline anew, whatever has grown",
    )
    group.addoption(
        "--neutracer-tolerance",
        metavar="SHARE",
        help="how much a peak may grow over the baseline, as '2 %%' or 0.02 (default: 1 %%)",
    )
    parser.addini("neutracer_baseline", "as --neutracer-baseline, from the root folder")
    parser.addini("neutracer_tolerance", "as --neutracer-tolerance", default=_TOLERANCE)


def pytest_configure(config: pytest.Config) -> None:
    for line in MARKERS.values():
        config.addinivalue_line("markers", line)
    option = config.option
    asked = option.neutracer or option.neutracer_baseline or config.getini("neutracer_baseline")
    if asked or option.neutracer_update_baseline:
        _measure(config)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if any(mark.name in MARKERS for item in items for mark in item.iter_markers()):
        _measure(config)


def _measure(config: pytest.Config) -> None:
    if not config.pluginmanager.has_plugin("neutracer-measuring"):
        from neutracer.integrations.measuring import Measuring

        config.pluginmanager.register(Measuring(config), "neutracer-measuring")
