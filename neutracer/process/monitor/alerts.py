# SPDX-License-Identifier: Apache-2.0
"""What the monitor raises, and what it does about it."""

from __future__ import annotations

import logging
import math
import os
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from neutracer.arguments import callback as called_back
from neutracer.arguments import number, path_name
from neutracer.process.recording.capture import snapshot
from neutracer.process.recording.history import HISTORY
from neutracer.process.recording.sidecar import (
    file_stem,
    rank_facts,
    sidecar,
    sidecar_path,
    write_text,
)
from neutracer.render.row import PlainRow
from neutracer.trace.devices import device_name
from neutracer.units import format_bytes, format_duration_us, format_share

__all__ = ["ACTIONS", "KINDS", "Alert", "AlertDesk", "alert_rules"]

_LOGGER = logging.getLogger("neutracer")

#: The kinds of alerts, in the core's order.
KINDS = ("threshold", "growth", "fragmentation", "device_error")

#: What a monitor can do when it raises an alert.
ACTIONS = ("log", "snapshot", "callback")

# Held while something is logged, and while the process forks: in a child the lock of a stream
# that another thread was just writing to is never released.
_logging = threading.RLock()
os.register_at_fork(
    before=_logging.acquire, after_in_parent=_logging.release, after_in_child=_logging.release
)

# Alerts that are remembered.
_MOST_ALERTS = 1000


@dataclass(frozen=True)
class Alert(PlainRow):
    """Something that a monitor saw.

    Attributes:
        kind: "threshold": too large a share of the device is taken; "growth": the floor of
            allocated rises too fast; "fragmentation": too large a share of the reserved
            memory is not allocated; "device_error": the device can't be read.
        device: The device's number; -1 is the CPU.
        value: What was seen: a share of 1.0, bytes a second, or an error's number.
        limit: What it should not reach; 0.0 for a device error.
        time_us: When, as Unix time.
        allocated_bytes: Allocated at that moment.
        reserved_bytes: Reserved at that moment.
        device_used_bytes: In use on the device by everybody; 0 where it is not known.
        total_bytes: The device's memory; 0 where it is not known.
        cap_bytes: What the process may reserve by
            torch.cuda.set_per_process_memory_fraction; 0 where that is not set.
        snapshot: The file with the snapshot that was taken, or "".
    """

    kind: str
    device: int
    value: float
    limit: float
    time_us: int
    allocated_bytes: int
    reserved_bytes: int
    device_used_bytes: int
    total_bytes: int
    cap_bytes: int = 0
    snapshot: str = ""

    @property
    def message(self) -> str:
        """The alert in one line."""
        name, held = device_name(self.device), format_bytes(self.allocated_bytes)
        if self.kind == "threshold":
            used, limit = format_share(self.value), format_share(self.limit)
            if self._is_capped():
                return (
                    f"{name}: {used} of the {format_bytes(self.cap_bytes)} that this process may "
                    f"have is allocated ({held}); the limit is {limit}"
                )
            return (
                f"{name}: {used} of {format_bytes(self.total_bytes)} is taken, PyTorch's cache "
                f"not counted ({held} allocated); the limit is {limit}"
            )
        if self.kind == "growth":
            return (
                f"{name}: allocated memory grows by {format_bytes(round(self.value))} a second "
                f"({held} now){self._forecast()}"
            )
        if self.kind == "fragmentation":
            unused = format_bytes(self.reserved_bytes - self.allocated_bytes)
            return (
                f"{name}: {format_share(self.value)} of the {format_bytes(self.reserved_bytes)} "
                f"reserved is unused ({unused}); the limit is {format_share(self.limit)}"
            )
        return f"{name} can't be read (error {round(self.value)}); neutracer will try again"

    def _forecast(self) -> str:
        """When the device is full at this pace, if that is known."""
        reusable = self.reserved_bytes - self.allocated_bytes
        free = self.total_bytes - self.device_used_bytes + reusable
        what = "the device is full"
        if self.cap_bytes and self.cap_bytes - self.allocated_bytes < free:
            free, what = self.cap_bytes - self.allocated_bytes, "the process's limit is reached"
        if not self.device_used_bytes or self.value <= 0 or free < 0:
            return ""
        left_us = max(free / self.value, 1.0) * 1e6
        return f"; at this pace {what} in {format_duration_us(left_us)}"

    def _is_capped(self) -> bool:
        """Whether the process's limit, not the device, is that full."""
        return bool(self.cap_bytes) and math.isclose(
            self.value, self.allocated_bytes / self.cap_bytes
        )

    def __str__(self) -> str:
        return self.message


def alert_rules(
    threshold: float | None,
    growth: float | None,
    fragmentation: float | None,
    hysteresis: float,
    patience: float,
) -> tuple[tuple[float, float, int], ...]:
    """The core's rules (limit, clear, patience in microseconds), by kind.

    Raises:
        ValueError: A limit is out of its range.
        TypeError: It is no number.
    """
    for name, share in (
        ("alert_threshold", threshold),
        ("fragmentation_threshold", fragmentation),
    ):
        if share is not None and not 0.0 < number(name, share, "a share of 1.0, or None") <= 1.0:
            raise ValueError(f"{name} is {share}: it must be above 0 and at most 1, or None")
    if growth is not None:
        number("growth_threshold", growth, "a number of bytes a second, or None")
    if growth is not None and not 0.0 < growth < math.inf:
        raise ValueError(
            f"growth_threshold is {growth}: it must be bytes a second above 0, or None"
        )
    if not 0.0 <= number("hysteresis", hysteresis, "a share of 1.0") < 1.0:
        raise ValueError(f"hysteresis is {hysteresis}: it must be 0 or more and below 1")
    wait_us = round(patience * 1e6)

    def rule(limit: float | None, wait: int) -> tuple[float, float, int]:
        if limit is None:
            return math.inf, math.inf, 0
        return limit, limit * (1.0 - hysteresis), wait

    return rule(threshold, 0), rule(growth, 0), rule(fragmentation, wait_us)


class AlertDesk:
    """Remembers alerts and takes the actions; an error in one of them stops nothing."""

    def __init__(
        self,
        actions: Collection[str],
        callback: Callable[[Alert], object] | None,
        directory: str | os.PathLike[str] | None,
    ) -> None:
        if isinstance(actions, str) or not isinstance(actions, Iterable):
            raise TypeError(f"actions must be a list of {ACTIONS}, not {actions!r}")
        actions = tuple(actions)
        unknown = [action for action in actions if action not in ACTIONS]
        if unknown:
            raise ValueError(f"there is no action {unknown[0]!r}: there are {', '.join(ACTIONS)}")
        called_back("on_alert", callback, "alert")
        if "snapshot" in actions and directory is None:
            raise ValueError("the action 'snapshot' needs snapshot_dir: where the files go")
        self._actions = frozenset(actions)
        self._callback = callback
        self._directory = None if directory is None else path_name(directory, "snapshot_dir")
        self.alerts: deque[Alert] = deque(maxlen=_MOST_ALERTS)
        self.errors = 0

    def handle(self, plain: Mapping[str, Any]) -> None:
        """What to do about one alert of the core; in a thread of Python's."""
        fields = {key: value for key, value in plain.items() if key not in ("kind", "is_over")}
        alert = Alert(kind=KINDS[plain["kind"]], **fields)
        if plain["is_over"]:
            with _logging:
                _LOGGER.info("%s: %s is over", device_name(alert.device), alert.kind)
            return
        if "snapshot" in self._actions and alert.kind != "device_error":
            alert = self._with_snapshot(alert)
        self.alerts.append(alert)
        if "log" in self._actions:
            # Several ranks may write to one stream, and each have a cuda:0.
            rank = rank_facts()["rank"]
            with _logging:
                _LOGGER.warning("%s%s", "" if rank is None else f"rank {rank}, ", alert.message)
        if "callback" in self._actions and self._callback is not None:
            try:
                self._callback(alert)
            except Exception:
                self.errors += 1
                with _logging:
                    _LOGGER.exception("on_alert failed with %s", alert.kind)

    def _with_snapshot(self, alert: Alert) -> Alert:
        assert self._directory is not None
        path = os.path.join(self._directory, f"{file_stem(f'alert-{alert.kind}')}.pickle.gz")
        try:
            os.makedirs(self._directory, exist_ok=True)
            snap = snapshot()
            snap.save(path)
            facts = sidecar(snap.devices, recording=HISTORY.facts(), tensors=snap.beside.tensors)
            write_text(sidecar_path(path), facts)
        except Exception as error:
            self.errors += 1
            with _logging:
                _LOGGER.warning("no snapshot with the alert: %s", error)
            return alert
        return Alert(**{**vars(alert), "snapshot": path})
