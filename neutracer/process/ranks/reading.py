# SPDX-License-Identifier: Apache-2.0
"""This process as a digest: the monitor's figures, who holds the memory, where it stands."""

from __future__ import annotations

import importlib
import os
import socket
import sys
import time
from collections.abc import Callable
from typing import Any

from neutracer.errors import NeutracerError
from neutracer.process.device.attribution import current_attribution
from neutracer.process.device.sums import PYTORCH
from neutracer.process.exporter.probes import Probes
from neutracer.process.monitor.memory_monitor import MemoryMonitor
from neutracer.process.ranks.digest import MOST_BINS, Held, RankDigest
from neutracer.process.ranks.standing import Standing
from neutracer.process.recording.sidecar import job_facts, rank_facts, running_program
from neutracer.trace.devices import device_name
from neutracer.units import format_count

__all__ = ["Reading", "Trend"]

#: Gives verdict, bytes_per_step, steps_to_oom and grows of a digest for what a monitor has seen
#: of a device over so many steps.
Trend = Callable[[MemoryMonitor, int, int], dict[str, Any]]

# Seconds between two readings (PyTorch counts the peaks between them), and between two marks of
# steps at the least.
_INTERVAL_S = 1.0
_MARK_S = 0.5

# Readings that are kept: neighbours become one.
_HISTORY = 2048

# The layout, which takes milliseconds, is looked at this often; and at most for this share of the
# time.
_LAYOUT_S = 60.0


class Reading:
    """What is read of this process while a watch for ranks is on.

    Args:
        trend: Says what grows.
    """

    def __init__(self, trend: Trend) -> None:
        self._trend = trend
        self._monitor = MemoryMonitor(_INTERVAL_S, None, history=_HISTORY)
        self._probes = Probes(_LAYOUT_S, None)
        self._marked = 0.0
        self._started = False
        self._hook: Any = None
        self._ooms: list[tuple[int, int]] = []
        self.standing = Standing()
        self.steps = 0
        self.why = ""

    def start(self) -> None:
        """Begin; where there are no figures, `why` says so. A second time does nothing."""
        if self._started:
            return
        self._started = True
        try:
            self._monitor.start()
        except NeutracerError as error:
            self.why = f"no figures: {error}"
        try:
            optimizers = importlib.import_module("torch.optim.optimizer")
            self._hook = optimizers.register_optimizer_step_post_hook(self._on_step)
        except (ImportError, AttributeError):
            # Steps are then not counted.
            self._hook = None

    def stop(self) -> None:
        """End it."""
        if self._hook is not None:
            self._hook.remove()
            self._hook = None
        self._monitor.stop()

    def ran_out(self, time_us: int, asked_bytes: int) -> None:
        """Keep an out-of-memory error, with a reading of its moment."""
        self._ooms.append((time_us, asked_bytes))
        self._monitor.mark("out of memory")

    # On the program's thread, after each step of an optimizer.
    def _on_step(self, optimizer: object, args: object, kwargs: object) -> None:
        self.steps += 1
        now = time.monotonic()
        if now - self._marked >= _MARK_S:
            self._marked = now
            self._monitor.mark(self.steps)

    def digest(self, reason: str, interval_s: float) -> RankDigest:
        """This process now.

        Args:
            reason: Why now: "interval", "oom", "peer", "terminated" or "exit".
            interval_s: The seconds between two digests.
        """
        self.standing.look(self.steps)
        facts, job = rank_facts(), job_facts()
        first = self._ooms[0] if self._ooms else (None, 0)
        return RankDigest(
            source="store",
            notes=(self.why,) if self.why else (),
            rank=facts["rank"],
            world_size=facts["world_size"],
            job=str(job["job"] or ""),
            attempt=None if job["attempt"] is None else int(job["attempt"]),
            host=socket.gethostname(),
            pid=os.getpid(),
            program=running_program(),
            torch=str(getattr(sys.modules.get("torch"), "__version__", "")),
            written_s=time.time(),
            reason=reason,
            ooms=len(self._ooms),
            first_oom_us=first[0],
            oom_bytes=first[1],
            steps=self.steps,
            where=self.standing.where,
            waits=self.standing.is_in_torch,
            where_s=round(self.standing.seconds, 1),
            interval_s=interval_s,
            **self._figures(),
        )

    def _figures(self) -> dict[str, Any]:
        devices = self._monitor.devices if self._monitor.running else ()
        if not devices:
            return {}
        stats = {one: self._monitor.get_stats(one) for one in devices}
        device = max(devices, key=lambda one: int(stats[one]["peak_reserved_bytes"]))
        mine = stats[device]
        self._probes.look(devices)
        name = device_name(device)
        places = [one for one in self._probes.holders() if one["device"] == name]
        return {
            "device": name,
            "total_bytes": mine["limit_bytes"] or mine["total_bytes"] or None,
            "allocated_bytes": mine["current_bytes"],
            "reserved_bytes": mine["reserved_bytes"],
            "peak_allocated_bytes": mine["peak_bytes"],
            "peak_reserved_bytes": mine["peak_reserved_bytes"],
            "largest_hole_bytes": self._probes.largest_free(device),
            "other_bytes": mine["non_torch_bytes"] if mine["device_used_bytes"] else None,
            "libraries": _libraries(device),
            "places": tuple(
                Held(f"{one['function']} ({one['place']})", one["bytes"], one["count"])
                for one in places
            ),
            **self._trend(self._monitor, device, self.steps),
            **_curve(self._monitor, device),
        }

    def __repr__(self) -> str:
        return f"<Reading: {format_count(self.steps, 'step')}>"


def _libraries(device: int) -> dict[str, int]:
    """What other libraries hold, where an attribution is on."""
    attribution = current_attribution()
    if attribution is None or not attribution.is_on:
        return {}
    uses = attribution.by_library(device)
    return {use.library: use.bytes for use in uses if use.library != PYTORCH}


def _curve(monitor: MemoryMonitor, device: int) -> dict[str, Any]:
    """The most that was allocated in each part of the time since the start."""
    rows = monitor.device_series(device)
    times: list[int] = rows.codes("time_us").tolist()
    highs: list[int] = rows.codes("allocated_high").tolist()
    if len(times) < 2 or times[-1] <= times[0]:
        return {}
    bins = [0] * MOST_BINS
    begin, span = times[0], times[-1] - times[0]
    for time_us, high in zip(times, highs, strict=True):
        at = min((time_us - begin) * MOST_BINS // span, MOST_BINS - 1)
        bins[at] = max(bins[at], high)
    last = highs[0]
    for at, value in enumerate(bins):
        # Between two readings it is as it was.
        bins[at] = last = value or last
    return {"begin_us": begin, "end_us": times[-1], "curve": tuple(bins)}
