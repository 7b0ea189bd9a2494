# SPDX-License-Identifier: Apache-2.0
"""Follows the memory of devices while a program runs.

A native thread reads the allocator's own figures, some ten times a second and without the
GIL, so the program does not notice; alerts wake a Python thread.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
from collections.abc import Callable, Collection
from typing import Any

import neutracer.process.hooks.attach as hooks
from neutracer._native import core
from neutracer.arguments import number, whole_number
from neutracer.pickling import StaysHere
from neutracer.process.monitor.alerts import Alert, AlertDesk, alert_rules
from neutracer.process.monitor.source import Poller, Road, find_road, parse_devices, read_total
from neutracer.process.monitor.views import MonitorViews
from neutracer.trace.devices import device_name
from neutracer.units import format_count

__all__ = ["MemoryMonitor"]

_LOGGER = logging.getLogger("neutracer")

# The device's own figures are read so often, in seconds.
_MEMORY_INTERVAL_S = 1.0

# Unused bytes below this are no fragmentation worth an alert.
_LEAST_UNUSED = 64 << 20

# stop() waits so long for a callback that runs.
_STOP_WAIT_S = 5.0

_LONGEST_LABEL = 500

# Monitors that run: each until its stop(), whether its handle is kept or not.
_running: set[MemoryMonitor] = set()


class MemoryMonitor(
    MonitorViews,
    StaysHere,
    instead="it watches this process: send get_stats(), series.to_dict() or a report of it",
):
    """Follows the memory of devices while a program runs.

    Args:
        interval: Seconds between two readings: 0.1 costs some 0.05 % of a core,
            0.001 less than 1 %.
        alert_threshold: The share of a device at which an alert is raised. All that is in use
            counts but PyTorch's own cache. Where a memory fraction is set for the process,
            the allocated share of that fraction counts too. None for no alert.
        devices: A device's number, "cuda:1", "cpu", or several; None is every CUDA device
            that the program uses, or without one the CPU.
        on_alert: Called with each `Alert`, in a thread of its own.
        growth_threshold: Bytes a second by which the floor of allocated may rise over
            `growth_window` seconds.
        fragmentation_threshold: The share of the reserved memory that may be unused for
            `patience` seconds (and be 64 MiB at least).
        hysteresis: An alert is over when its value is this share below its limit.
        cooldown: Seconds between two alerts of a kind on a device.
        actions: What is done at an alert, of "log" (a warning of the logger "neutracer"),
            "snapshot" (into `snapshot_dir`) and "callback". Nothing ever empties the cache.
        history: Readings that are kept of each device: when there are more, neighbours
            become one row that keeps their extremes.

    `start()` and `stop()`, or a with-statement, begin and end it. It runs until it is
    stopped, or the process ends; in the child of a fork it is stopped.

    Raises:
        ValueError: An argument is out of its range.
        TypeError: An argument is of another kind.

    Example:
        >>> import torch, neutracer
        >>> with neutracer.MemoryMonitor(interval=0.01) as monitor:    # doctest: +SKIP
        ...     for step in range(100):
        ...         monitor.mark(f"step {step}")
        ...         train(step)
        >>> monitor.get_stats()["peak"]                                # doctest: +SKIP
        31.4
    """

    def __init__(
        self,
        interval: float = 0.1,
        alert_threshold: float | None = 0.9,
        devices: object = None,
        on_alert: Callable[[Alert], object] | None = None,
        *,
        growth_threshold: float | None = None,
        growth_window: float = 60.0,
        fragmentation_threshold: float | None = 0.4,
        patience: float = 5.0,
        hysteresis: float = 0.05,
        cooldown: float = 60.0,
        actions: Collection[str] = ("log", "callback"),
        snapshot_dir: str | os.PathLike[str] | None = None,
        history: int = 8192,
    ) -> None:
        if not 1e-4 <= number("interval", interval, "a number of seconds") <= 86_400:
            raise ValueError(f"interval is {interval}: it must be 0.0001 to 86400 seconds")
        history = whole_number("history", history, "a number of readings")
        if not 16 <= history <= 1 << 24:
            raise ValueError(f"history is {history}: it must be 16 to {1 << 24} readings")
        for name, value in (("patience", patience), ("cooldown", cooldown)):
            if not 0.0 <= number(name, value, "a number of seconds") < 1e9:
                raise ValueError(f"{name} is {value}: it must be seconds, 0 or more")
        if not 0.08 <= number("growth_window", growth_window, "a number of seconds") < 1e9:
            raise ValueError(f"growth_window is {growth_window}: it must be 0.08 seconds or more")
        super().__init__()
        self.interval = interval
        self._asked = parse_devices(devices)
        self._desk = AlertDesk(actions, on_alert, snapshot_dir)
        slow = max(_MEMORY_INTERVAL_S, interval)
        rows = history + history % 2
        rules = alert_rules(
            alert_threshold, growth_threshold, fragmentation_threshold, hysteresis, patience
        )
        self._options = (
            *(round(interval * 1e6), round(slow * 1e6), rows, max(rows // 2 // 2 * 2, 16)),
            *(round(cooldown * 1e6), round(growth_window * 1e6), _LEAST_UNUSED, rules),
        )
        self._slow = slow
        self._poller: Poller | None = None
        self._server: threading.Thread | None = None
        self._ended = threading.Event()
        self._lock = threading.RLock()

    # ---- running ---------------------------------------------------------------------

    def start(self) -> MemoryMonitor:
        """Begin to follow the devices; does nothing if the monitor already runs.

        This does not initialise CUDA: the monitor follows a device once the program uses it.

        Returns:
            The monitor.

        Raises:
            UnavailableError: torch is not imported; or there is no CUDA device, and the
                CPU can't be followed.
            ValueError: There is no such device.
        """
        with self._lock:
            if self in _running:
                return self
            sampler, road = self._prepared()
            self._poller = None
            if road.name == "python":
                self._poller = Poller(sampler, road.devices, self.interval, self._slow)
            self._read()
            sampler.start()
            if self._poller is not None:
                self._poller.start()
            self._ended = threading.Event()
            self._server = threading.Thread(
                target=self._serve, args=(sampler, self._ended), name="neutracer-monitor"
            )
            self._server.daemon = True
            self._server.start()
            _running.add(self)
        return self

    def _prepared(self) -> tuple[core.Sampler, Road]:
        """The sampler; a new one where the devices to follow have changed."""
        road, before = self._find_road(), self._road
        same = before is not None and (before.devices, before.slots, before.name) == (
            (road.devices, road.slots, road.name)
        )
        self._road = road
        if self._sampler is None or not same:
            self._sampler = core.Sampler(
                road.devices, road.slots, road.nvml, road.source, self._options
            )
            self._labels.clear()
        return self._sampler, road

    def _find_road(self) -> Road:
        return find_road(self._asked)

    def stop(self) -> None:
        """End it with a last reading; a second call does nothing. What it has seen stays."""
        with self._lock:
            if self not in _running:
                return
            _running.discard(self)
            assert self._sampler is not None
            assert self._road is not None
            if self._poller is not None:
                self._poller.stop()
            self._read()
            self._ended.set()
            self._sampler.stop()
            server = self._server
            if self._road.hooks_begun:
                hooks.silence()
        if server is not None and server is not threading.current_thread():
            server.join(_STOP_WAIT_S)
            if server.is_alive():
                _LOGGER.warning("on_alert is still running after %s s", _STOP_WAIT_S)

    def __enter__(self) -> MemoryMonitor:
        return self.start()

    def __exit__(self, *exception: object) -> None:
        self.stop()

    @property
    def running(self) -> bool:
        """Whether it follows its devices now."""
        return self in _running

    def _read(self) -> None:
        """Take a reading now, by whichever road."""
        if self._poller is not None:
            self._poller.read()
        elif self._sampler is not None:
            self._sampler.ask()

    def _serve(self, sampler: core.Sampler, ended: threading.Event) -> None:
        """The thread that reports alerts; it sleeps in the core until there is one."""
        road = self._road
        assert road is not None
        lost = [i for i, slot in enumerate(road.slots) if slot < 0 <= road.devices[i]]
        wait = 1.0 if lost and road.name == "hooks" else None
        while True:
            alert = sampler.wait(wait)
            if alert is not None:
                self._desk.handle(alert)
            elif ended.is_set():
                return
            else:
                # Without NVML the driver is asked, which a native thread can't.
                for index in lost:
                    memory = read_total(road.devices[index])
                    if memory is not None:
                        sampler.put_memory(index, *memory)

    def mark(self, label: object) -> None:
        """A phase begins: "step 12", "evaluation". Reads at once; costs microseconds.

        While the monitor is not running nothing is marked.

        Args:
            label: What `phases` and `series` call it.
        """
        sampler = self._sampler
        if sampler is None or self not in _running:
            return
        if self._poller is not None:
            self._poller.read()
        with self._lock:
            self._labels[sampler.mark()] = str(label)[:_LONGEST_LABEL]
            if len(self._labels) > 4 * self._options[2]:
                self._forget_labels(sampler)

    def _forget_labels(self, sampler: core.Sampler) -> None:
        """Drop labels of marks that no row has any more."""
        kept = {max(self._labels)}
        for index in range(len(self._all)):
            for phases in (False, True):
                kept.update(memoryview(sampler.rows(index, phases)["mark"]).cast("Q"))
        self._labels = {mark: text for mark, text in self._labels.items() if mark in kept}

    @property
    def alerts(self) -> tuple[Alert, ...]:
        """The alerts that were raised, the last 1,000 of them."""
        return tuple(self._desk.alerts)

    @property
    def status(self) -> dict[str, Any]:
        """How it works and what it costs: "running", "road" ("hooks": native; "python": by
        PyTorch's entry points), "ticks", "late" (ticks left out), "cpu_s" (of the native
        thread), "dropped_alerts", "callback_errors", "last_error"."""
        spent = {"ticks": 0, "late": 0, "cpu_ns": 0, "dropped_alerts": 0}
        if self._sampler is not None:
            spent = self._sampler.spent()
        cpu_ns = spent.pop("cpu_ns")
        return {
            "running": self.running,
            "road": None if self._road is None else self._road.name,
            **spent,
            "cpu_s": cpu_ns / 1e9,
            "callback_errors": self._desk.errors,
            "last_error": "" if self._poller is None else self._poller.error,
        }

    def __repr__(self) -> str:
        state = "running" if self.running else "stopped"
        names = ", ".join(map(device_name, self.devices if self._sampler else ()))
        raised = format_count(len(self._desk.alerts), "alert")
        return f"<MemoryMonitor: {state}, {names or 'no device yet'}, {raised}>"

    def _forget(self) -> None:
        """In the child of a fork: the threads are not there, nor what they held."""
        self._lock = threading.RLock()
        self._ended = threading.Event()
        self._server = self._poller = None
        self._desk.alerts.clear()
        self._labels.clear()
        if self._sampler is not None:
            self._sampler.forget()
            # NVML is opened anew by a later start.
            self._sampler = None


def _forget_all() -> None:
    for monitor in _running:
        monitor._forget()
    _running.clear()


def _stop_all() -> None:
    for monitor in tuple(_running):
        monitor.stop()


os.register_at_fork(after_in_child=_forget_all)
atexit.register(_stop_all)
