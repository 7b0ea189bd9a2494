# SPDX-License-Identifier: Apache-2.0
"""`MemoryMonitor`: readings at a steady pace on a native thread, alerts, statistics and series."""

from __future__ import annotations

import atexit
import logging
import math
import os
import re
import sys
import threading
import time
from array import array
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import neutracer.hooks.shim as hooks
import neutracer.monitor.device_report as nvidia
from neutracer._native import core
from neutracer.arguments import callback as called_back
from neutracer.arguments import number, path_name, whole_number
from neutracer.errors import NeutracerError, UnavailableError
from neutracer.pickling import StaysHere
from neutracer.recording.recorder import HISTORY, snapshot
from neutracer.recording.sidecar import facts_of, file_stem, rank_facts, save_with
from neutracer.render.report import PlainRow
from neutracer.trace.events import device_name
from neutracer.trace.table import Column, Table
from neutracer.units import format_bytes, format_count, format_duration_us, format_share

# ---- Alerts ------------------------------------------------------------------------------

_LOGGER = logging.getLogger("neutracer")

#: The kinds of alerts, in the core's order.
KINDS = ("threshold", "growth", "fragmentation", "device_error")

#: What a monitor can do when it raises an alert.
ACTIONS = ("log", "snapshot", "callback")

# Held while logging and while forking: a child would inherit a stream's lock, locked forever.
_logging = threading.RLock()
os.register_at_fork(
    before=_logging.acquire, after_in_parent=_logging.release, after_in_child=_logging.release
)

_MOST_ALERTS = 1000  # Alerts kept.


@dataclass(frozen=True)
class Alert(PlainRow):
    """An alert of a monitor.

    Attributes:
        kind: "threshold": too large a share of the device is in use; "growth": the floor of
            allocated rises too fast; "fragmentation": too large a share of the reserved
            memory is not allocated; "device_error": the device can't be read.
        device: The device's number; -1 is the CPU.
        value: The reading: a share of 1.0, bytes per second, or an error number.
        limit: The limit that it exceeded; 0.0 for a device error.
        time_us: Unix time, in microseconds.
        allocated_bytes: Allocated at that moment.
        reserved_bytes: Reserved at that moment.
        device_used_bytes: In use on the device by all processes; 0 if unknown.
        total_bytes: The device's memory; 0 if unknown.
        cap_bytes: The process's limit from torch.cuda.set_per_process_memory_fraction; 0 if not
            set.
        snapshot: The snapshot file of this alert, or "".
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
            cap = self.cap_bytes
            # Of the process's limit, not of the device.
            if cap and math.isclose(self.value, self.allocated_bytes / cap):
                return (
                    f"{name}: {used} of the {format_bytes(cap)} that this process may "
                    f"have is allocated ({held}); the limit is {limit}"
                )
            return (
                f"{name}: {used} of {format_bytes(self.total_bytes)} is taken, PyTorch's cache "
                f"not counted ({held} allocated); the limit is {limit}"
            )
        if self.kind == "growth":
            return (
                f"{name}: allocated memory grows by {format_bytes(round(self.value))} per second "
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
        """When the device is full at this pace, if known."""
        reusable = self.reserved_bytes - self.allocated_bytes
        free = self.total_bytes - self.device_used_bytes + reusable
        what = "the device is full"
        if self.cap_bytes and self.cap_bytes - self.allocated_bytes < free:
            free, what = self.cap_bytes - self.allocated_bytes, "the process's limit is reached"
        if not self.device_used_bytes or self.value <= 0 or free < 0:
            return ""
        left_us = max(free / self.value, 1.0) * 1e6
        return f"; at this pace {what} in {format_duration_us(left_us)}"

    def __str__(self) -> str:
        return self.message


def alert_rules(
    threshold: float | None,
    growth: float | None,
    fragmentation: float | None,
    hysteresis: float,
    patience: float,
) -> tuple[tuple[float, float, int], ...]:
    """The core's rules (limit, clear, patience in microseconds), by kind."""
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
    """Keeps alerts and runs the actions; their errors are logged and counted."""

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
        """Handle an alert of the core, in a Python thread."""
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
            # Ranks may share a stream, and each has a cuda:0.
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
            save_with(snap, path, facts_of(snap, HISTORY.facts()))
        except Exception as error:
            self.errors += 1
            with _logging:
                _LOGGER.warning("no snapshot with the alert: %s", error)
            return alert
        return Alert(**{**vars(alert), "snapshot": path})


# ---- Source ------------------------------------------------------------------------------

#: The number of the CPU.
CPU = -1

_EVENTS = 100_000  # Events kept per ring where a monitor has the hooks follow the CPU.
_FIRST_WAIT_S = 1.0  # Exponential backoff for a device that can't be read.
_LONGEST_WAIT_S = 60.0


@dataclass(frozen=True)
class Road:
    """The source of a monitor's readings: the hooks' native figures, or without hooks PyTorch's
    Python API.
    """

    devices: tuple[int, ...]  # The devices' numbers; -1 is the CPU.
    slots: tuple[int, ...]  # NVML's number for each, or -1.
    nvml: object  # The opened NVML, or None.
    source: object  # A capsule with native functions, None for the hooks' own, False for none.
    name: str  # "hooks", "python" or the capsule's origin.
    # Ends the following of the hooks at the monitor's end, or None.
    release: Callable[[], None] | None = None


def parse_devices(devices: object) -> tuple[int, ...] | None:
    """The device numbers, or None for all; ValueError if something is not a device."""
    if devices is None:
        return None
    several = isinstance(devices, Iterable) and not isinstance(devices, str)
    numbers = [_number(one) for one in (devices if several else [devices])]  # type: ignore[attr-defined]
    if not numbers or len(set(numbers)) != len(numbers):
        raise ValueError(f"devices must be one or more distinct devices: {devices!r}")
    return tuple(numbers)


def _number(device: object) -> int:
    match = re.fullmatch(r"(cpu|-1)|(?:cuda:)?(\d+)|cuda", str(device), re.ASCII)
    if match is None:
        raise ValueError(f"{device!r} is not a device: use 0, 'cuda:0' or 'cpu'")
    return CPU if match[1] else int(match[2] or 0)


def find_road(devices: tuple[int, ...] | None) -> Road:
    """The source for these devices, or for all."""
    torch = sys.modules.get("torch")
    if torch is None:
        raise UnavailableError("torch in this process", "import torch first")
    count = torch.cuda.device_count()
    if devices == (CPU,) or (devices is None and count == 0):
        return _cpu_road(count)
    wanted = tuple(range(count)) if devices is None else devices
    wrong = [number for number in wanted if not 0 <= number < count]
    if wrong:
        there = f"there are {count} devices" if count else "there is no CUDA device here"
        mixed = " (the CPU can only be monitored alone)" if CPU in wrong else ""
        raise ValueError(f"there is no device {wrong[0]}: {there}{mixed}")
    slots = nvidia.visible_slots()
    places = tuple(slots.get(number, -1) for number in wanted)
    opened = nvidia.devices() if slots else None
    native = torch.cuda.get_allocator_backend() == "native" and hooks.try_load() is not None
    if native:
        return Road(wanted, places, opened, None, "hooks")
    return Road(wanted, places, opened, False, "python")


def _cpu_road(cuda_devices: int) -> Road:
    """The CPU's memory, which only the hooks on a CPU build of torch can follow."""
    what = "a CUDA device in this process" if not cuda_devices else "the CPU's memory"
    if sys.modules["torch"].version.cuda is not None:
        raise UnavailableError(what, "a CUDA build of torch does not report its CPU allocations")
    try:
        release = hooks.follow(_EVENTS, 0)
    except UnavailableError as error:
        raise UnavailableError(what, f"the CPU can't be followed: {error}") from error
    return Road((CPU,), (-1,), None, None, "hooks", release)


def read_total(device: int) -> tuple[int, int, int] | None:
    """(used by all processes, or 0 if unknown; total; PyTorch's limit, or 0) in bytes; None if
    unknown."""
    torch: Any = sys.modules.get("torch")
    is_in_use = torch is not None and torch.cuda.is_initialized()
    try:
        memory = nvidia.device_memory(device)
        used, total = memory.used_bytes or 0, memory.total_bytes
    except (UnavailableError, OSError, ValueError):
        if not is_in_use:
            return None
        used, total = 0, torch.cuda.get_device_properties(device).total_memory
    return used, total, _cap(torch, device, total) if is_in_use else 0


def _cap(torch: Any, device: int, total: int) -> int:
    """The limit of torch.cuda.set_per_process_memory_fraction in bytes; 0 for none."""
    ask = getattr(torch.cuda, "get_per_process_memory_fraction", None)
    share = 1.0 if ask is None else float(ask(device))
    return int(share * total) if 0.0 < share < 1.0 else 0


class Poller:
    """Reads through PyTorch's Python API, in a Python thread."""

    def __init__(
        self, sampler: core.Sampler, devices: tuple[int, ...], interval: float, slow: float
    ) -> None:
        self._sampler = sampler
        self._devices = devices
        self._interval = interval
        self._slow = slow
        self._slow_at = 0.0
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._waits = [0.0] * len(devices)
        self._ask_at = [0.0] * len(devices)
        self.error = ""
        self._thread = threading.Thread(target=self._run, name="neutracer-poller", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End it, and wait for the reading in progress."""
        self._ended.set()
        self._thread.join()

    def read(self) -> None:
        """One reading of each device."""
        with self._lock:
            now = time.monotonic()
            slow = now >= self._slow_at
            self._slow_at = now + self._slow if slow else self._slow_at
            for index, device in enumerate(self._devices):
                if now >= self._ask_at[index]:
                    self._read_one(index, device, slow)

    def _read_one(self, index: int, device: int, slow: bool) -> None:
        torch: Any = sys.modules["torch"]
        try:
            stats = torch.cuda.memory_stats_as_nested_dict(device)
            if slow and (memory := read_total(device)) is not None:
                self._sampler.put_memory(index, *memory)
        except Exception as error:
            self.error = f"{type(error).__name__}: {error}"
            self._waits[index] = min(max(2 * self._waits[index], _FIRST_WAIT_S), _LONGEST_WAIT_S)
            self._ask_at[index] = time.monotonic() + self._waits[index]
            self._sampler.put_failure(index, -1)
            return
        self._waits[index] = 0.0
        # Empty before CUDA is initialized; all zeros for an unused device.
        if stats and stats["reserved_bytes"]["all"]["peak"]:
            self._sampler.put(index, *_figures(stats))

    def _run(self) -> None:
        due = time.monotonic()
        while not self._ended.wait(max(due - time.monotonic(), 0.0)):
            self.read()
            behind = (time.monotonic() - due) // self._interval
            due += self._interval * (max(behind, 0.0) + 1)


def _figures(stats: Any) -> tuple[int, ...]:
    """The arguments of `core.Sampler.put` from PyTorch's figures."""
    names = ("allocated", "reserved", "active", "inactive_split", "requested")
    now = [stats.get(f"{name}_bytes", {}).get("all", {}).get("current", 0) for name in names]
    counts = stats["num_alloc_retries"], stats["num_ooms"]
    peaks = (stats[f"{name}_bytes"]["all"]["peak"] for name in names[:2])
    return (*now, *counts, *peaks)


# ---- Tables ------------------------------------------------------------------------------

_GB = 1e9
_NO_LABEL = 0xFFFF_FFFF
_BOUNDED = ("allocated", "reserved", "device_used")
_LAST = ("active", "inactive_split", "requested", "retries", "ooms")
_BYTES = (*(name + end for name in _BOUNDED for end in ("", "_low", "_high")), *_LAST)

Rows = Mapping[str, bytes]


def _rows_table(
    noun: str, parts: Sequence[tuple[int, Rows]], labels: Mapping[int, str], *, phases: bool
) -> Table:
    """A table of devices' rows from `core.Sampler.rows`; `labels` are those of marks, by number."""
    counts = [len(rows["mark"]) // 8 for _, rows in parts]
    marks = _joined(parts, "mark")
    codes, names = _labels(marks.cast("Q"), labels)
    plain: dict[str, Column] = {"device": Column(_numbers(_devices(parts, counts)))}
    if phases:
        plain["label"] = Column(_numbers(codes), names, _NO_LABEL)
        plain["begin_us"] = _column(parts, "begin_us")
    plain["time_us"] = _column(parts, "end_us")
    plain |= {name: _column(parts, name) for name in _BYTES}
    plain["ratio"] = Column(_numbers(_means(parts)))
    plain["ratio_high"] = _column(parts, "ratio_high", "d")
    plain["samples"] = _column(parts, "readings")
    if phases:
        plain["marks"] = _column(parts, "marks")
    else:
        plain["phase"] = Column(_numbers(codes), names, _NO_LABEL)
    return Table(noun, plain, sum(counts))


def _joined(parts: Iterable[tuple[int, Rows]], name: str) -> memoryview:
    return memoryview(b"".join(rows[name] for _, rows in parts))


def _column(parts: Sequence[tuple[int, Rows]], name: str, code: Literal["Q", "d"] = "Q") -> Column:
    return Column(lambda: _joined(parts, name).cast(code))


def _numbers(values: object) -> Callable[[], object]:
    return lambda: values


def _devices(parts: Sequence[tuple[int, Rows]], counts: Sequence[int]) -> array[int]:
    devices = array("i")
    for (device, _), count in zip(parts, counts, strict=True):
        devices.extend(array("i", [device]) * count)
    return devices


def _means(parts: Sequence[tuple[int, Rows]]) -> array[float]:
    sums, counts = _joined(parts, "ratio_sum").cast("d"), _joined(parts, "readings").cast("Q")
    return array("d", (sums[row] / max(counts[row], 1) for row in range(len(sums))))


def _labels(marks: memoryview, labels: Mapping[int, str]) -> tuple[array[int], list[str]]:
    """A code per mark, and the codes' strings."""
    known: dict[str, int] = {}
    codes = array("I")
    for mark in marks:
        label = labels.get(mark)
        codes.append(_NO_LABEL if label is None else known.setdefault(label, len(known)))
    return codes, list(known)


def _stats_of(now: Mapping[str, Any], device: str, phase: str | None) -> dict[str, Any]:
    """The result of `MemoryMonitor.get_stats` from that of `core.Sampler.now`."""
    reserved, allocated = now["reserved"], now["allocated"]
    usual = {"current": allocated, "peak": now["peak_allocated"], "total": now["device_total"]}
    same = ("reserved", "peak_reserved", "active", "inactive_split", "requested")
    active = zip(KINDS, now["is_active"], strict=True)
    return {
        "device": device,
        **{name: nbytes / _GB for name, nbytes in usual.items()},
        **{f"{name}_bytes": nbytes for name, nbytes in usual.items()},
        **{f"{name}_bytes": now[name] for name in (*same, "device_used", "peak_device_used")},
        "limit_bytes": now["device_cap"] or now["device_total"],
        "non_torch_bytes": now["non_torch"],
        "used_share": now["used_share"],
        "ratio": (reserved - allocated) / reserved if reserved > allocated else 0.0,
        "max_ratio": now["ratio_high"],
        "avg_ratio": now["ratio_sum"] / max(now["readings"], 1),
        "growth_bytes_per_s": None if math.isnan(now["growth"]) else now["growth"],
        **{name: now[name] for name in ("retries", "ooms", "failures", "time_us", "peak_us")},
        "samples": now["readings"],
        "phase": phase,
        "active_alerts": tuple(kind for kind, is_on in active if is_on),
        "alerts": dict(zip(KINDS, now["raised"], strict=True)),
    }


# ---- Memory monitor ----------------------------------------------------------------------

# A native thread reads the allocator's figures without the GIL; alerts wake a Python thread.

_MEMORY_INTERVAL_S = 1.0  # Between reads of the device's own figures.
_LEAST_UNUSED = 64 << 20  # Unused bytes below which fragmentation raises no alert.
_STOP_WAIT_S = 5.0  # stop()'s timeout for a running callback.
_LONGEST_LABEL = 500

_running: set[MemoryMonitor] = set()  # Keeps monitors without other references running.


class MemoryMonitor(
    StaysHere,
    instead="it watches this process: send get_stats(), series.to_dict() or a report of it",
):
    """Monitors the memory of devices while a program runs.

    Args:
        interval: Seconds between two readings: 0.1 costs about 0.05 % of a core,
            0.001 less than 1 %.
        alert_threshold: The share of a device at which to raise an alert. Everything in use
            counts except PyTorch's own cache. With a memory fraction set for the process, the
            allocated share of that fraction counts too. None for no alert.
        devices: A device's number, "cuda:1", "cpu", or several; None is every CUDA device
            that the program uses, or the CPU if there is none.
        on_alert: Called with each `Alert`, in a thread of its own.
        growth_threshold: Bytes per second by which the floor of allocated may rise over
            `growth_window` seconds.
        fragmentation_threshold: The share of the reserved memory that may be unused for
            `patience` seconds, if it is 64 MiB or more.
        hysteresis: An alert ends when its value is this share below its limit.
        cooldown: Seconds between two alerts of a kind on a device.
        actions: Actions at an alert: "log" (a warning of the logger "neutracer"), "snapshot"
            (into `snapshot_dir`) and "callback". None of them empties the cache.
        history: Rows kept per device; beyond that, neighbours are merged into one row with
            their extremes.

    `start()` and `stop()`, or a with statement, start and stop it. It runs until it is stopped
    or the process ends; a forked child has it stopped.

    Raises:
        ValueError: An argument is out of range.
        TypeError: An argument has the wrong type.

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
        self.interval = interval
        self._labels: dict[int, str] = {}
        self._road: Road | None = None
        self._sampler: core.Sampler | None = None
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
        """Start monitoring, once; returns the monitor.

        Does not initialize CUDA: a device is monitored once the program uses it.

        Raises:
            UnavailableError: torch is not imported; or there is no CUDA device, and the
                CPU can't be monitored.
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
        """The sampler; a new one if the devices have changed."""
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
        """Stop, once, with a last reading; the history stays readable."""
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
            if self._road.release is not None:
                self._road.release()
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
        """Whether it is running."""
        return self in _running

    def _read(self) -> None:
        if self._poller is not None:
            self._poller.read()
        elif self._sampler is not None:
            self._sampler.ask()

    def _serve(self, sampler: core.Sampler, ended: threading.Event) -> None:
        """The thread that handles alerts; it sleeps in the core between them."""
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
                # Without NVML only a Python thread can read the driver's figures.
                for index in lost:
                    memory = read_total(road.devices[index])
                    if memory is not None:
                        sampler.put_memory(index, *memory)

    def mark(self, label: object) -> None:
        """Begin a phase: "step 12", "evaluation". Takes a reading; costs microseconds.

        Does nothing while the monitor is stopped.

        Args:
            label: The phase's name in `phases` and `series`.
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
        """Drop the labels of marks without a row."""
        kept = {max(self._labels)}
        for index in range(len(self._all)):
            for phases in (False, True):
                kept.update(memoryview(sampler.rows(index, phases)["mark"]).cast("Q"))
        self._labels = {mark: text for mark, text in self._labels.items() if mark in kept}

    # ---- what was read ---------------------------------------------------------------

    @property
    def _all(self) -> tuple[int, ...]:
        return () if self._road is None else self._road.devices

    def _now(self, index: int) -> dict[str, Any]:
        if self._sampler is None:
            raise NeutracerError("the monitor was not started yet: call start(), or use 'with'")
        return self._sampler.now(index)

    @property
    def devices(self) -> tuple[int, ...]:
        """The devices with readings: those that the program used; -1 is the CPU."""
        seen = enumerate(self._all)
        return tuple(device for index, device in seen if self._now(index)["readings"])

    def _index(self, device: object) -> int:
        """The index of a device; None is the only one in use."""
        followed = self._all
        if not followed:
            self._now(0)
        if device is not None:
            number, *others = parse_devices(device) or (None,)
            if others or number not in followed:
                names = ", ".join(map(device_name, followed))
                raise ValueError(f"{device!r} is not monitored; these are: {names}")
            return followed.index(number)
        used = self.devices
        if len(used) > 1:
            names = ", ".join(map(device_name, used))
            raise ValueError(f"there are several devices, choose one: {names}")
        return followed.index(used[0]) if used else 0

    def get_stats(self, device: object = None) -> dict[str, Any]:
        """The last reading, and peaks and counts since the start.

        Args:
            device: The device; None is the only one in use.

        Returns:
            "current" (allocated), "peak" (of allocated, including peaks between readings) and
            "total" (the device) in GB of 10^9 bytes; the same as "current_bytes",
            "peak_bytes", "total_bytes" (0 if unknown); "reserved_bytes",
            "peak_reserved_bytes", "active_bytes", "inactive_split_bytes", "requested_bytes";
            "limit_bytes" (the process's limit: "total_bytes", or less after
            torch.cuda.set_per_process_memory_fraction); "device_used_bytes",
            "peak_device_used_bytes" (all processes), "non_torch_bytes" (of these, outside
            this process's PyTorch); "used_share" (compared with the threshold) and "ratio",
            "max_ratio", "avg_ratio" (reserved but not allocated) of 1.0;
            "growth_bytes_per_s" (None until known); "retries", "ooms"; "samples", "failures",
            "time_us" (Unix time of the reading), "peak_us", "phase" (the last label or None),
            "active_alerts" (their kinds) and "alerts" (counts by kind).

        Raises:
            NeutracerError: The monitor was not started.
            ValueError: The device is not monitored, or there are several.
        """
        index = self._index(device)
        phase = self._labels[max(self._labels)] if self._labels else None
        return _stats_of(self._now(index), device_name(self._all[index]), phase)

    @property
    def series(self) -> Table:
        """The readings as a table, by device and time; bytes, Unix microseconds.

        A row merges `samples` readings: `allocated` is the last, `allocated_low` and
        `allocated_high` are the extremes, including PyTorch's peaks between readings; likewise
        `reserved` and `device_used` (0 if unknown). `ratio` is the mean and `ratio_high` the
        largest; `phase` is the last mark before the row's end.
        """
        return self._table("sample", self.devices, phases=False)

    def device_series(self, device: object = None) -> Table:
        """`series` of one device; None is the only one in use."""
        return self._table("sample", (self._all[self._index(device)],), phases=False)

    @property
    def phases(self) -> Table:
        """One row per mark, by device and time, covering the time until the next mark.

        A phase has readings at both ends, so `allocated_low` is its floor. The row before the
        first mark has no label. Beyond half of `history` rows, neighbours are merged under the
        first label, with `marks` as their count.
        """
        return self._table("phase", self.devices, phases=True)

    def device_phases(self, device: object = None) -> Table:
        """`phases` of one device; None is the only one in use."""
        return self._table("phase", (self._all[self._index(device)],), phases=True)

    def _table(self, noun: str, devices: tuple[int, ...], *, phases: bool) -> Table:
        if self._sampler is None:
            self._now(0)
        assert self._sampler is not None
        rows = self._sampler.rows
        parts = [(device, rows(self._all.index(device), phases)) for device in devices]
        return _rows_table(noun, parts, self._labels, phases=phases)

    @property
    def alerts(self) -> tuple[Alert, ...]:
        """The last 1,000 alerts."""
        return tuple(self._desk.alerts)

    @property
    def status(self) -> dict[str, Any]:
        """State and cost: "running", "road" ("hooks": native; "python": PyTorch's Python API),
        "ticks", "late" (skipped ticks), "cpu_s" (of the native thread), "dropped_alerts",
        "callback_errors", "last_error"."""
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
        """Reset in a forked child, which has neither the threads nor their locks."""
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
