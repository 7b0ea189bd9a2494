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


class Counters(NamedTuple):
    """PyTorch's counters for a CUDA device, in bytes; peaks are since the last reset."""

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
    """Load the hooks if they are already compiled, without attaching: `read` is faster then."""
    torch = sys.modules.get("torch")
    has_cuda = getattr(getattr(torch, "version", None), "cuda", None) is not None
    if not has_cuda or getattr(torch, "__spec__", None) is None:
        return
    try:
        load(compile=False)
    except UnavailableError:
        return


def read(device: int | None = None) -> Counters | None:
    """The counters now, from the hooks if loaded; None (without initializing) before CUDA is used.

    Args:
        device: The device; None is the calling thread's current one.
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
    """Reset the device's peaks, unless they equal the current values in `now`, just read."""
    if now.allocated_peak != now.allocated or now.reserved_peak != now.reserved:
        sys.modules["torch"].cuda.reset_peak_memory_stats(now.device)


# ---- Running -----------------------------------------------------------------------------

_MOST_TENSORS = 16  # Of a batch.


class Running:
    """The program's position and configuration, for out-of-memory reports; set by the trainer.

    Attributes:
        trainer: The trainer: "transformers.Trainer"; "" if unknown.
        step: The trainer's step number.
        batch: The shapes of the batch, from `shapes_of`.
        configuration: The trainer's configuration.
        phases: The names of the open phases, outermost first.
    """

    def __init__(self) -> None:
        self.trainer = ""
        self.step: int | None = None
        self.batch: dict[str, str] = {}
        self.configuration: dict[str, Any] = {}
        self.phases: list[str] = []

    def facts(self) -> dict[str, Any]:
        """The known facts, for a report."""
        facts = {
            "trainer": self.trainer,
            "step": self.step,
            "phases": list(self.phases),
            "batch": dict(self.batch),
            "configuration": dict(self.configuration),
        }
        return {name: value for name, value in facts.items() if value not in ("", None, [], {})}

    def forget(self) -> None:
        """Clear everything but the open phases."""
        self.trainer, self.step, self.batch, self.configuration = "", None, {}, {}


RUNNING = Running()


def shapes_of(batch: object, name: str = "") -> dict[str, str]:
    """The dtypes and shapes of a batch's tensors, by path; keeps no reference.

    Args:
        batch: A tensor, or a nested dict, list or tuple of tensors.
        name: The prefix of the paths.

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
def phase(name: str) -> Phase:
    """Measure a part of the program: its peak, and the memory that it leaves behind.

    Phases may be nested. Peaks come from PyTorch's counters, which are reset at each start and end
    of a phase, so `torch.cuda.max_memory_allocated()` then covers the time since. A report of
    an out-of-memory error names the open phases.

    Args:
        name: A name such as "rollout".

    Returns:
        The phase, as a context manager; its figures are complete at its end.

    Raises:
        TypeError: The name is not a str.

    Example:
        >>> import neutracer
        >>> with neutracer.phase("rollout") as rollout:
        ...     pass    # generate
        >>> rollout
        <Phase rollout: no CUDA device in use>
    """
    return Phase(text("name", name))


class Phase(StaysHere, instead="it measures this process: send its .peak_bytes"):
    """A measured part of the program, made by `phase`.

    Attributes:
        name: Its name.
        device: The current CUDA device at its start, or at the first phase boundary with CUDA in
            use; None if CUDA was not in use at its end.
        start_bytes: Allocated at its start; 0 before CUDA was in use.
        peak_bytes: Peak of allocated so far.
        reserved_peak_bytes: Peak of reserved so far.
        end_bytes: Allocated at its end.
        seconds: Duration; does not wait for running kernels.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.device: int | None = None
        self.start_bytes = self.peak_bytes = self.reserved_peak_bytes = self.end_bytes = 0
        self.seconds = 0.0
        self._began = 0.0

    @property
    def left_bytes(self) -> int:
        """end_bytes - start_bytes; may be negative."""
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
                # The current device has changed since.
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
    """Add the peaks since the last boundary to all open phases and reset them, on the current
    device and on theirs. Returns the current device's counters."""
    now = read()
    if now is None:
        return None
    for one in _open:
        if one.device is None:
            one.device = now.device
    others = {one.device for one in _open} - {now.device}
    for counters in (now, *map(read, others)):
        if counters is None:
            continue
        for one in _open:
            if one.device == counters.device:
                one.peak_bytes = max(one.peak_bytes, counters.allocated_peak)
                one.reserved_peak_bytes = max(one.reserved_peak_bytes, counters.reserved_peak)
        reset_peak(counters)
    return now
