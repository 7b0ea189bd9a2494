# SPDX-License-Identifier: Apache-2.0
"""Every device allocation of this process by the library that asked for it.

CUPTI's memory activity names, for each allocation, the shared object that made it. What
PyTorch's allocator holds is known to the byte from PyTorch itself, including what it took
before; of the others, only what they have taken since this was switched on.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
from typing import Any

from neutracer._native import core
from neutracer.errors import UnavailableError, missing
from neutracer.pickling import StaysHere
from neutracer.process.device.cupti_library import RULES, candidates, package
from neutracer.process.device.devices import devices
from neutracer.process.device.profiler_watch import ProfilerWatch, profiler_is_active
from neutracer.process.device.sums import PYTORCH_FILE, LibraryUse, summed, torch_segments

__all__ = [
    "DeviceAttribution",
    "attribute_device_memory",
    "current_attribution",
]

# How often PyTorch's segments are looked at until they were the same before and after.
_LOOKS = 4

_current: DeviceAttribution | None = None
_lock = threading.RLock()


class DeviceAttribution(StaysHere, instead="it watches this process: send by_library()"):
    """The handle of `attribute_device_memory`; leaving it as a context manager ends it."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._guard = threading.RLock()
        self._reason = ""
        self._last: tuple[LibraryUse, ...] = ()
        self._facts: dict[str, Any] = {}
        self._core: core.Attribution | None = _start()
        self._watch = ProfilerWatch(self._step_aside)
        try:
            self._seed()
        except BaseException:
            self.remove()
            raise
        atexit.register(self.remove)

    def _seed(self) -> None:
        """Tell the core what PyTorch held before; only PyTorch knows what is in segments
        that grow."""
        assert self._core is not None
        self._core.flush()
        for segment in torch_segments():
            if not segment.is_expandable:
                self._core.seed(PYTORCH_FILE, segment.device, segment.address, segment.size)

    @property
    def is_on(self) -> bool:
        """Whether it follows allocations."""
        return self._core is not None and os.getpid() == self._pid

    @property
    def reason(self) -> str:
        """Why it is off; "" while it is on."""
        return "" if self.is_on else self._reason or "it was removed"

    @property
    def facts(self) -> dict[str, Any]:
        """Figures of the last reading: "records", "dropped", "unmatched" (releases of what
        was there before), "version" (CUPTI's), "has_sources", "buffer_bytes"."""
        return dict(self._facts)

    def by_library(self, device: int | None = None) -> tuple[LibraryUse, ...]:
        """What each library holds now, the largest first; after the end, what it held then.

        Memory of the host that the device can reach, and managed memory, are not counted.

        Args:
            device: The device's number in this process; None for all.

        Raises:
            OSError: CUPTI does not answer.
        """
        with self._guard:
            if self.is_on:
                self._read()
            return tuple(use for use in self._last if device is None or use.device == device)

    def _read(self) -> None:
        native = self._core
        if native is None:
            return
        for _ in range(_LOOKS):
            # Records and segments are of one moment where none changed in between.
            segments = torch_segments()
            native.flush()
            plain = native.read()
            if segments == torch_segments():
                break
        self._facts = {k: v for k, v in plain.items() if isinstance(v, (int, bool))}
        self._last = summed(plain, segments)

    def remove(self) -> None:
        """Switch it off; a second call does nothing. What it has seen can still be read."""
        self._end("")

    def _step_aside(self) -> None:
        self._end(
            "PyTorch's profiler took CUPTI over; call attribute_device_memory() again after it"
        )

    def _end(self, reason: str) -> None:
        with self._guard:
            if self._core is None:
                return
            self._watch.remove()
            native = self._core
            if os.getpid() == self._pid:
                try:
                    self._read()
                except OSError as error:
                    reason = reason or f"CUPTI failed: {error}"
                finally:
                    # What can't be flushed at the end is off all the same.
                    with contextlib.suppress(OSError):
                        native.stop()
            self._core = None
            self._reason = reason
        atexit.unregister(self.remove)

    def __enter__(self) -> DeviceAttribution:
        return self

    def __exit__(self, *exception: object) -> None:
        self.remove()

    def __repr__(self) -> str:
        state = "on" if self.is_on else f"off, {self.reason}"
        return f"<DeviceAttribution: {state}, {len(self._last)} uses seen>"


def attribute_device_memory() -> DeviceAttribution:
    """Track, from now on, which library asks for each piece of device memory.

    `by_library()` of the handle has the table, and `device_report()` has it too while this
    is on. It sees PyTorch, NCCL, cuBLAS, cuDNN, CuPy, Triton's kernels, and any other
    shared object by its file's name. Switched on before CUDA is first used, it sees all of
    it; switched on later, it reports what was there before as one sum, PyTorch's own aside.

    It needs CUPTI, which serves one tool at a time. It can't start beside PyTorch's profiler,
    and when a profiler of the device starts, it is switched off first and stays off: for
    that, the name `_prepare_profiler` in `torch.autograd.profiler` leads through neutracer
    while this is on. It can't notice other tools on CUPTI (Nsight, Proton).

    Returns:
        The handle; `remove()`, or leaving it as a context manager, ends it.

    Raises:
        UnavailableError: There is no CUDA device or no CUPTI here, PyTorch's profiler is
            active, or an attribution is on already.

    Example:
        >>> import neutracer
        >>> with neutracer.attribute_device_memory() as attribution:    # doctest: +SKIP
        ...     train_step()
        ...     for use in attribution.by_library():
        ...         print(use.library, use.bytes)
    """
    global _current
    with _lock:
        active = current_attribution()
        if active is not None and active.is_on:
            raise UnavailableError(
                "a second attribution of device memory", "use the handle of the first, or remove it"
            )
        if profiler_is_active():
            raise UnavailableError(
                "CUPTI beside PyTorch's profiler", "end the profiler first: one tool at a time"
            )
        _current = DeviceAttribution()
        return _current


def current_attribution() -> DeviceAttribution | None:
    """The last attribution of this process, on or off; None where there is none."""
    is_ours = _current is not None and _current._pid == os.getpid()
    return _current if is_ours else None


def _start() -> core.Attribution:
    """CUPTI from the first place that has it, switched on."""
    no_device = UnavailableError("an NVIDIA device", "device memory can be attributed only on one")
    if not _has_driver():
        no_driver = UnavailableError("the CUDA driver", "CUPTI needs libcuda.so.1")
        raise no_driver if _has_device() else no_device
    failures: list[UnavailableError] = []
    for name, only_loaded in candidates():
        try:
            return core.Attribution(name, only_loaded, RULES)
        except UnavailableError as error:
            failures.append(error)
            if only_loaded:
                # The copy in use says no: another one would say no too, or disturb it.
                break
    if not _has_device():
        raise no_device
    # The reason of the first one that could be loaded at all; "cannot open" says least.
    told = [error for error in failures if "cannot open shared" not in error.install]
    if told:
        raise told[0]
    raise missing(package(), "CUPTI")


def _has_driver() -> bool:
    """Checked before CUPTI is asked: that of CUDA 13.2 would end the process without one."""
    return devices().has_driver()


def _has_device() -> bool:
    opened = devices()
    if opened.reason is None:
        return True
    try:
        return bool(opened.visible())
    except UnavailableError:
        return False
