# SPDX-License-Identifier: Apache-2.0
"""`phase()`: peaks and growth of named parts of a program."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any, NamedTuple

from neutracer._native import core
from neutracer.arguments import text
from neutracer.errors import UnavailableError
from neutracer.hooks.shim import load
from neutracer.pickling import StaysHere
from neutracer.units import format_bytes

# ---- Counters ----------------------------------------------------------------------------

# PyTorch's counters of a CUDA device, read where CUDA is in use.


class Counters(NamedTuple):
    """Bytes of one device; the peaks are those since they were reset."""

    device: int
    allocated: int
    allocated_peak: int
    reserved: int
    reserved_peak: int
    retries: int
    ooms: int


def _cuda() -> Any:
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    return cuda if cuda is not None and cuda.is_initialized() else None


def prefer_hooks() -> None:
    """Load the hooks that this machine has compiled; `read` is quicker with them.

    Nothing is attached or compiled.
    """
    torch = sys.modules.get("torch")
    has_cuda = getattr(getattr(torch, "version", None), "cuda", None) is not None
    if not has_cuda or getattr(torch, "__spec__", None) is None:
        return
    try:
        load(compile=False)
    except UnavailableError:
        return


def read(device: int | None = None) -> Counters | None:
    """The counters now; None before CUDA is in use. Nothing is initialised.

    Args:
        device: The device; None is the calling thread's current one.

    They come from the hooks where these are loaded: PyTorch's own are a dict of all figures.
    """
    cuda = _cuda()
    if cuda is None:
        return None
    if device is None:
        device = cuda.current_device()
    brief = core.live_counters(device)
    if brief is not None:
        return Counters(device, *brief)
    stats = cuda.memory_stats_as_nested_dict(device)
    if not stats:
        return None
    allocated = stats["allocated_bytes"]["all"]
    reserved = stats["reserved_bytes"]["all"]
    return Counters(
        device,
        allocated["current"],
        allocated["peak"],
        reserved["current"],
        reserved["peak"],
        stats.get("num_alloc_retries", 0),
        stats.get("num_ooms", 0),
    )


def reset_peak(now: Counters) -> None:
    """Let the device's peaks begin anew; `now` was just read. Nothing where they are at it."""
    if now.allocated_peak != now.allocated or now.reserved_peak != now.reserved:
        sys.modules["torch"].cuda.reset_peak_memory_stats(now.device)


# ---- Running -----------------------------------------------------------------------------

# Where the program is, in its own words: a report of an out-of-memory error has them.

# Tensors of a batch that are named.
_MOST_TENSORS = 16


class Running:
    """What the program says of itself; plain data that whoever trains keeps up.

    Attributes:
        trainer: Who trains: "transformers.Trainer"; "" where nobody said.
        step: The trainer's own step.
        batch: The shapes of the batch, as `shapes_of` gives them.
        configuration: What the trainer was set up with.
        phases: The names of the phases that are open, the outermost first.
    """

    def __init__(self) -> None:
        self.trainer = ""
        self.step: int | None = None
        self.batch: dict[str, str] = {}
        self.configuration: dict[str, Any] = {}
        self.phases: list[str] = []

    def facts(self) -> dict[str, Any]:
        """All that is known, for a report; empty where nothing is."""
        facts = {
            "trainer": self.trainer,
            "step": self.step,
            "phases": list(self.phases),
            "batch": dict(self.batch),
            "configuration": dict(self.configuration),
        }
        return {name: value for name, value in facts.items() if value not in ("", None, [], {})}

    def forget(self) -> None:
        """Nobody trains any more; phases that are open stay so."""
        self.trainer, self.step, self.batch, self.configuration = "", None, {}, {}


#: Of this process.
RUNNING = Running()


def shapes_of(batch: object, name: str = "") -> dict[str, str]:
    """The tensors of a batch in words; nothing of the batch is kept.

    Args:
        batch: A tensor, or a dict, list or tuple with some in it.
        name: What it is called.

    Example:
        >>> shapes_of({"labels": 3})
        {}
    """
    found: dict[str, str] = {}
    _collect(batch, name, found, depth=0)
    return found


def _collect(value: object, name: str, found: dict[str, str], depth: int) -> None:
    if len(found) >= _MOST_TENSORS or depth > 3:
        return
    if isinstance(value, Mapping):
        for key, one in list(value.items())[:_MOST_TENSORS]:
            _collect(one, f"{name}.{key}" if name else str(key), found, depth + 1)
    elif isinstance(value, (list, tuple)):
        for key, one in enumerate(value[:_MOST_TENSORS]):
            _collect(one, f"{name}[{key}]", found, depth + 1)
    elif hasattr(value, "shape") and hasattr(value, "dtype"):
        dtype = str(value.dtype).removeprefix("torch.")
        found[name or "batch"] = f"{dtype} {list(value.shape)}"


# ---- Phase -------------------------------------------------------------------------------

# Phases of a program, with the peak and the end of each.


def phase(name: str) -> Phase:
    """Measure a part of the program: what it allocates at its peak, and what it leaves.

    Phases may be nested. Peaks are those of PyTorch's own counters, which are reset when a
    phase begins or ends: `torch.cuda.max_memory_allocated()` is then the peak since that
    moment. A report of an out-of-memory error names the phases that were open.

    Args:
        name: What the program does: "rollout".

    Returns:
        The phase, for a with statement; its figures are there when it has ended.

    Raises:
        TypeError: The name is no text.

    Example:
        >>> import neutracer
        >>> with neutracer.phase("rollout") as rollout:
        ...     pass    # generate
        >>> rollout
        <Phase rollout: no CUDA device in use>
    """
    return Phase(text("name", name))


class Phase(StaysHere, instead="it measures this process: send its .peak_bytes"):
    """What `phase` returns.

    Attributes:
        name: Its name.
        device: The CUDA device that was current when it began, or at the first boundary at which
            CUDA was in use; None where it was not in use when it ended.
        start_bytes: Allocated there when it began; 0 before CUDA was in use.
        peak_bytes: The most that was allocated, until now or until its end.
        reserved_peak_bytes: The most that was reserved.
        end_bytes: Allocated at its end.
        seconds: How long it took; kernels that are still running do not count.
    """

    def __init__(self, name: str) -> None:
        """Made by `phase`; not by users."""
        self.name = name
        self.device: int | None = None
        self.start_bytes = self.peak_bytes = self.reserved_peak_bytes = self.end_bytes = 0
        self.seconds = 0.0
        self._began = 0.0

    @property
    def left_bytes(self) -> int:
        """What more was allocated at its end than at its beginning; may be negative."""
        return self.end_bytes - self.start_bytes

    def __enter__(self) -> Phase:
        self._began = time.perf_counter()
        self.peak_bytes = self.reserved_peak_bytes = 0
        with _lock:
            now = _fold()
            if now is not None:
                self.device, self.start_bytes = now.device, now.allocated
                self.peak_bytes, self.reserved_peak_bytes = now.allocated, now.reserved
            _open.append(self)
            RUNNING.phases.append(self.name)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.seconds = time.perf_counter() - self._began
        with _lock:
            if self not in _open:
                return
            now = _fold()
            if now is not None and self.device not in (None, now.device):
                # Another device has become the current one meanwhile.
                now = read(self.device)
            if now is not None:
                self.device, self.end_bytes = now.device, now.allocated
            place = _open.index(self)
            del _open[place], RUNNING.phases[place]

    def __repr__(self) -> str:
        if self.device is None:
            return f"<Phase {self.name}: no CUDA device in use>"
        figures = f"{format_bytes(self.peak_bytes)} at its peak"
        return f"<Phase {self.name}: {figures}, {format_bytes(self.end_bytes)} at its end>"


_lock = threading.RLock()
_open: list[Phase] = []


def _fold() -> Counters | None:
    """Give the peak since the last boundary to all phases that are open, and begin a new one:
    on the current device and on theirs. Returns the current device's counters."""
    now = read()
    if now is None:
        return None
    for one in _open:
        if one.device is None:
            one.device = now.device
    others = {one.device for one in _open} - {now.device}
    for seen in (now, *map(read, others)):
        if seen is None:
            continue
        for one in _open:
            if one.device == seen.device:
                one.peak_bytes = max(one.peak_bytes, seen.allocated_peak)
                one.reserved_peak_bytes = max(one.reserved_peak_bytes, seen.reserved_peak)
        reset_peak(seen)
    return now
