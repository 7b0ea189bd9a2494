# SPDX-License-Identifier: Apache-2.0
"""What the plugin's markers ask for, and in words where a test broke it."""

from __future__ import annotations

from typing import Any

import pytest

from neutracer.integrations.markers import MARKERS
from neutracer.integrations.meter import Meter, Place
from neutracer.integrations.rehearsing import RehearsedMeter
from neutracer.units import format_bytes, format_count, format_share, parse_bytes

__all__ = ["LINES", "arguments", "limit_problems", "lines", "more", "value"]

#: Lines of a failure.
LINES = 5

# Arguments of a marker besides its limit, and what they are where they are not given.
_MORE: dict[str, dict[str, Any]] = {
    "limit_gpu_memory": {"rehearse": False, "device": "NVIDIA H200"},
}


def arguments(mark: pytest.Mark | None, **defaults: Any) -> dict[str, Any]:
    """A marker's arguments by name.

    Raises:
        pytest.UsageError: It has others.
    """
    if mark is None:
        return defaults
    given = dict(zip(defaults, mark.args, strict=False))
    given.update(mark.kwargs)
    if len(mark.args) > len(defaults) or given.keys() - defaults:
        raise pytest.UsageError(f"{mark.name} takes {', '.join(defaults)}: {MARKERS[mark.name]}")
    return {**defaults, **given}


def value(item: pytest.Item, marker: str, argument: str) -> Any:
    """The one argument of a marker; None where the test has no such marker.

    Raises:
        pytest.UsageError: It has none, or what can't be a limit.
    """
    mark = item.get_closest_marker(marker)
    if mark is None:
        return None
    value = arguments(mark, **{argument: None}, **_MORE.get(marker, {}))[argument]
    try:
        good = 0 <= value <= 1 if argument == "ratio" else parse_bytes(value) >= 0
    except (TypeError, ValueError) as error:
        raise pytest.UsageError(f"{marker} of {item.nodeid}: {error}") from error
    if not good:
        raise pytest.UsageError(f"{marker} of {item.nodeid}: {value!r} is not a share from 0 to 1")
    return value


def more(item: pytest.Item, marker: str) -> dict[str, Any]:
    """What a marker says besides its limit."""
    mark = item.get_closest_marker(marker)
    more = _MORE[marker]
    return more if mark is None else arguments(mark, limit=None, **more)


def limit_problems(item: pytest.Item, meter: Meter | RehearsedMeter) -> list[str]:
    """Which limits a test broke while it ran, with the lines that did."""
    now, problems = meter.measured, []
    limit = value(item, "limit_gpu_memory", "limit")
    if limit is not None:
        problems += _peak_problems(item, meter, limit)
    ratio = value(item, "limit_gpu_fragmentation", "ratio")
    if ratio is not None and now.fragmentation > ratio:
        problems.append(
            f"{format_share(now.fragmentation)} of the {format_bytes(now.reserved_peak_bytes)} "
            f"reserved on cuda:{now.device} was unused at the peak of "
            f"{format_bytes(now.allocated_peak_bytes)}, and "
            f"limit_gpu_fragmentation({ratio!r}) allows {format_share(ratio)}"
        )
    if item.get_closest_marker("no_tensor_cycles") is not None:
        problems += _cycle_problems(meter)
    return problems


def _peak_problems(item: pytest.Item, meter: Meter | RehearsedMeter, limit: object) -> list[str]:
    """The peak above the limit, with its lines; one that may be above it is warned of."""
    now, most = meter.measured, parse_bytes(limit)  # type: ignore[arg-type]
    allows = f"limit_gpu_memory({limit!r}) allows"
    between = ""
    if isinstance(meter, RehearsedMeter):
        low, high = meter.peak_range
        if low != high:
            between = f" (between {format_bytes(low)} and {format_bytes(high)})"
        if now.peak_bytes <= most < high:
            item.warn(
                pytest.PytestWarning(
                    f"{item.name} may allocate up to {format_bytes(high)} of an {now.rehearsed}, "
                    f"more than {allows}: what some kernels take is known only as a range"
                )
            )
    if now.peak_bytes <= most:
        return []
    did = "allocated" if not now.rehearsed else "would allocate"
    where = f"cuda:{now.device}" if not now.rehearsed else now.rehearsed
    return [
        f"the test {did} {format_bytes(now.peak_bytes)}{between} of {where} at its peak, "
        f"{format_bytes(now.peak_bytes - most)} more than {allows}",
        *lines(meter.find_places()),
    ]


def _cycle_problems(meter: Meter | RehearsedMeter) -> list[str]:
    if meter.blind:
        return [f"no_tensor_cycles can't be checked: {meter.blind}"]
    cycles = meter.measured.cycles
    if not cycles:
        return []
    total = format_bytes(sum(cycle.bytes for cycle in cycles))
    count = format_count(sum(cycle.count for cycle in cycles), "reference cycle")
    problems = [f"{count} kept {total} of tensors until the garbage collector ran"]
    for cycle in cycles[:LINES]:
        problems += ["", str(cycle)]
    return problems


def lines(places: list[Place]) -> list[str]:
    return [
        f"  {format_bytes(nbytes)} in {format_count(count, 'block')}: {place}"
        for place, nbytes, count in places[:LINES]
    ]
