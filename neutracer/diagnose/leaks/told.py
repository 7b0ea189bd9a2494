# SPDX-License-Identifier: Apache-2.0
"""What a report that was kept as JSON says of a device, for `diff`: no snapshot is needed."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from neutracer.diagnose.leaks.diff_parts import Peaks
from neutracer.errors import SnapshotError
from neutracer.render.document import Place

__all__ = ["ToldReport", "told_report"]

_SCHEMA = "neutracer.report/"
_VERSION = 1

# A report has some hundred kilobytes.
_MOST_BYTES = 64 << 20


@dataclass(frozen=True)
class ToldReport:
    """What `neutracer report --json` wrote.

    Attributes:
        name: The file's name, for messages.
        devices: By number what it says of a device.
    """

    name: str
    devices: Mapping[int, Mapping[str, Any]]

    def device(self, device: int | None) -> int:
        """The device, or the only one there is.

        Raises:
            ValueError: There is no such device, or there are several and None was given.
        """
        known = tuple(self.devices)
        if device is None and len(known) == 1:
            return known[0]
        if device is None:
            which = "say which with device= (--device)"
            raise ValueError(f"the report has several devices, {which}: {known}")
        if device not in self.devices:
            raise ValueError(f"the report has no device {device}, only {known}")
        return device

    def stats(self, device: int) -> Mapping[str, int]:
        """PyTorch's figures at the end."""
        stats: Mapping[str, int] = self.devices[device]["memory_stats"]
        return stats

    def end_known(self, device: int) -> bool:
        """Whether these say what was there; the file may have had no segments."""
        return self.devices[device].get("end_known") is not False

    def peaks(self, device: int) -> Peaks:
        """The peaks, with who held that of allocated: bytes as they were requested."""
        entry = self.devices[device]
        if not entry["events"]:
            return Peaks(None, None, -1, {})
        peak = entry["peak"]
        held = {_place(one): (one["requested_bytes"], one["count"]) for one in peak["holders"]}
        most = entry["reserved_peak"]["reserved_bytes"]
        return Peaks(peak["allocated_bytes"], most, peak["event"], held)


def _place(one: Mapping[str, Any]) -> Place:
    words = (one["function"], one["filename"], one["line"], one["package"], one["caller"])
    return Place(*words)


def told_report(source: object) -> ToldReport | None:
    """The report that a path names, or that `to_dict()` gave; None for anything else.

    Raises:
        SnapshotError: It is JSON of neutracer, but no report on one snapshot.
    """
    if isinstance(source, ToldReport):
        return source
    if isinstance(source, Mapping):
        return _checked(source, "the report")
    if not isinstance(source, (str, os.PathLike)) or not _is_json(source):
        return None
    with open(source, encoding="utf-8") as file:
        try:
            plain = json.load(file)
        except (ValueError, RecursionError) as error:
            raise SnapshotError(f"this is not JSON: {error}") from None
    return _checked(plain, os.path.basename(os.fspath(source)))


def _is_json(path: str | os.PathLike[str]) -> bool:
    """Whether a file begins as neutracer's JSON does."""
    if not os.path.isfile(path) or os.path.getsize(path) > _MOST_BYTES:
        return False
    with open(path, "rb") as file:
        head = file.read(256)
    return head.lstrip()[:1] == b"{" and b'"schema"' in head


def _checked(plain: Any, name: str) -> ToldReport:
    """A report in whose place nothing else stands."""
    schema = str(plain.get("schema", "")) if isinstance(plain, Mapping) else ""
    if not schema.startswith(_SCHEMA):
        raise SnapshotError(
            f"this is JSON of {schema or 'no schema'}, not a report: "
            "neutracer report --json writes one"
        )
    if schema != f"{_SCHEMA}{_VERSION}":
        raise SnapshotError(f"this is {schema}, which another version of neutracer wrote")
    try:
        made = ToldReport(name, {int(one["device"]): one for one in plain["devices"]})
        for device in made.devices:
            made.peaks(device)
            _whole(made.stats(device)["allocated_bytes.all.current"])
            _whole(made.stats(device)["reserved_bytes.all.current"])
    except (AttributeError, KeyError, TypeError, ValueError, IndexError):
        raise SnapshotError("this report lacks what neutracer writes into one") from None
    return made


def _whole(value: object) -> None:
    if not isinstance(value, int):
        raise TypeError(value)
