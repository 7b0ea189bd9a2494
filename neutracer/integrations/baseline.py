# SPDX-License-Identifier: Apache-2.0
"""The peaks of a test suite in a file that is committed, and what has grown since."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from neutracer.errors import NeutracerError
from neutracer.integrations.meter import Measured
from neutracer.saving import atomic_file
from neutracer.units import format_bytes, format_share

__all__ = ["Baseline", "device_name", "read_baseline", "write_baseline"]

_SCHEMA = "neutracer.pytest_baseline/1"

# Lines kept of a test.
_PLACES = 5


def device_name(device: int) -> str:
    """What PyTorch calls a device that is in use: workspaces and kernels differ by its kind."""
    name: str = sys.modules["torch"].cuda.get_device_properties(device).name
    return name


@dataclass(frozen=True)
class Baseline:
    """What a file says: by kind of device, by test, the peak and who held it.

    Attributes:
        path: The file.
        devices: By the device's name, by the test's id: "peak_bytes" and "places".
        exists: Whether the file is there.
    """

    path: Path
    devices: dict[str, dict[str, dict[str, Any]]]
    exists: bool

    def growth(self, test: str, name: str, now: Measured, tolerance: float) -> str:
        """How the peak of a test has grown, in words; "" if it has not.

        Args:
            test: The test's id.
            name: The device's name.
            now: What it took.
            tolerance: The share of the old peak that it may be more. What reference cycles
                kept is allowed besides: when the collector comes, decides about it.
        """
        before = self.devices.get(name, {}).get(test)
        if before is None:
            return ""
        old: int = before["peak_bytes"]
        more = now.peak_bytes - old
        if more <= old * tolerance + now.cycle_bytes:
            return ""
        slack = f", and {format_bytes(now.cycle_bytes)} of cycles" if now.cycle_bytes else ""
        return (
            f"the peak on cuda:{now.device} grew by {format_bytes(more)}: "
            f"{format_bytes(now.peak_bytes)}, and {format_bytes(old)} in {self.path.name} "
            f"(tolerance {format_share(tolerance)}{slack})"
        )

    def grown(self, test: str, name: str, now: Measured) -> list[str]:
        """The lines that hold more at the peak than they did, the most growth first."""
        old: dict[str, int] = dict(self.devices[name][test]["places"])
        pairs = [(place, nbytes, old.pop(place)) for place, nbytes, _ in now.places if place in old]
        same = {place for place, _, _ in pairs}
        for place, nbytes, _ in now.places:
            if place not in same:
                # A line that is not in the file may be one that has moved.
                moved = next((one for one in old if _function(one) == _function(place)), "")
                pairs.append((place, nbytes, old.pop(moved, 0)))
        rows = [(nbytes - was, _grown(place, nbytes, was)) for place, nbytes, was in pairs]
        return [text for more, text in sorted(rows, reverse=True) if more > 0]


def _function(place: str) -> str:
    """A place without its line."""
    return re.sub(r":\d+", "", place)


def _grown(place: str, nbytes: int, was: int) -> str:
    said = f"it was {format_bytes(was)}" if was else "it is new among the largest"
    return f"+{format_bytes(nbytes - was)} {place}: {said}"


def read_baseline(path: Path) -> Baseline:
    """The file, or an empty baseline where there is none.

    Raises:
        NeutracerError: It is no baseline.
    """
    if not path.exists():
        return Baseline(path, {}, exists=False)
    try:
        plain = json.loads(path.read_text(encoding="utf-8"))
        if plain["schema"] != _SCHEMA:
            raise ValueError(f"its schema is {plain['schema']!r}")
        devices = {
            name: {
                test: {"peak_bytes": int(row["peak_bytes"]), "places": list(row["places"])}
                for test, row in tests.items()
            }
            for name, tests in plain["devices"].items()
        }
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise NeutracerError(f"{path} is not a baseline of neutracer: {error}") from error
    return Baseline(path, devices, exists=True)


def write_baseline(baseline: Baseline, measured: dict[str, dict[str, Any]]) -> int:
    """Write the file with the tests that were measured in the place of their old figures.

    Args:
        baseline: What was there; tests that did not run stay in it.
        measured: By the test's id, what its report carries.

    Returns:
        The tests that were written.
    """
    devices = {name: dict(tests) for name, tests in baseline.devices.items()}
    count = 0
    for test, row in measured.items():
        if row["device_name"]:
            places = [place[:2] for place in row["places"][:_PLACES]]
            kept = {"peak_bytes": row["peak_bytes"], "places": places}
            devices.setdefault(row["device_name"], {})[test] = kept
            count += 1
    if count:
        plain = {"schema": _SCHEMA, "devices": devices}
        with atomic_file(str(baseline.path)) as file:
            file.write(json.dumps(plain, indent=1, sort_keys=True).encode() + b"\n")
    return count
