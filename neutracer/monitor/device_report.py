# SPDX-License-Identifier: Apache-2.0
"""Device memory by library, from CUPTI, and `device_report`: by process, library and allocator."""

from __future__ import annotations

import atexit
import bisect
import contextlib
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from neutracer._native import core
from neutracer.errors import UnavailableError, missing
from neutracer.monitor.devices import (
    DeviceMemory,
    ProcessUse,
    VisibleDevice,
    device_memory,
    device_processes,
    devices,
    find_device,
)
from neutracer.pickling import StaysHere
from neutracer.recording.recorder import light_symbols
from neutracer.render.document import Block, Cell, Document, Figure, Note, Severity, Table
from neutracer.render.report import Finding, PlainRow, Report, ranked
from neutracer.units import format_bytes, format_count, format_share

# ---- Cupti library -----------------------------------------------------------------------

# Where CUPTI is, and which library a file belongs to that asks for device memory.
#
# A process must not run two copies of CUPTI. A copy that is already loaded, as torch does for
# its profiler, comes before any other.

#: (part of a file's path, library): the first that fits counts.
RULES: tuple[tuple[str, str], ...] = (
    ("/libc10", "PyTorch"),
    ("/libnccl", "NCCL"),
    ("/libcublas", "cuBLAS"),
    ("/libcudnn", "cuDNN"),
    ("/cupy", "CuPy"),
    ("/libcufft", "cuFFT"),
    ("/libcusolver", "cuSOLVER"),
    ("/libcusparse", "cuSPARSE"),
    ("/libcurand", "cuRAND"),
    ("/libnvshmem", "NVSHMEM"),
    ("/libnvinfer", "TensorRT"),
    ("/libtorch_nvshmem", "NVSHMEM"),
    ("/triton/", "Triton"),
    ("/.triton/", "Triton"),
    ("/torchinductor_", "Triton"),
    ("/libtriton", "Triton"),
    ("__triton_launcher", "Triton"),
    ("/libtorch", "PyTorch"),
    ("/numba/", "Numba"),
    ("/jaxlib/", "JAX"),
    ("/jax_cuda", "JAX"),
    ("/tensorflow/", "TensorFlow"),
    ("/onnxruntime", "ONNX Runtime"),
    ("/libcudart", "the CUDA runtime"),
    ("/libcuda.so", "the CUDA driver"),
)

_LOADED = re.compile(r"(/.*/libcupti\.so[.\d]*)$")
#: The releases of CUDA whose CUPTI is tried by name.
_MAJORS = ("13", "12")


def library_of(path: str) -> str:
    """The library that a file belongs to, as the table of an attribution calls it."""
    for part, library in RULES:
        if part in path:
            return library
    name = path.rpartition("/")[2]
    return name.partition(".so.")[0] + ".so" if ".so." in name else name


def candidates() -> Iterator[tuple[str, bool]]:
    """(file or soname, whether it counts only if it is loaded), the best first."""
    for path in _loaded():
        yield path, True
    major = _cuda_major()
    names = [f"libcupti.so.{number}" for number in sorted(_MAJORS, key=lambda n: n != major)]
    names.append("libcupti.so")
    for folder in map(Path, sys.path):
        # nvidia/cu13 since CUDA 13, nvidia/cuda_cupti before it.
        for file in sorted(folder.glob("nvidia/*/lib/libcupti.so.*")):
            if major is None or file.name.startswith(f"libcupti.so.{major}"):
                yield str(file), False
    for home in (os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"):
        for inner in ("extras/CUPTI/lib64", "lib64", "lib"):
            files = [Path(home, inner, name) for name in names] if home else []
            # Of one folder, the names that there are lead to one file.
            yield from [(str(file), False) for file in files if file.exists()][:1]
    for name in names:
        yield name, False


def package() -> str:
    """The package on the index that has CUPTI for this torch."""
    return "nvidia-cuda-cupti-cu12" if _cuda_major() == "12" else "nvidia-cuda-cupti"


def _loaded() -> list[str]:
    """Files of CUPTI that this process has loaded, torch's first."""
    try:
        maps = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    found = (match[1] for line in maps.splitlines() if (match := _LOADED.search(line)))
    # Triton has a copy of its own, for a profiler that is rarely on.
    return sorted(dict.fromkeys(found), key=lambda path: "/triton/" in path)


def _cuda_major() -> str | None:
    """The release of CUDA that torch was built for: "13"."""
    torch = sys.modules.get("torch")
    version = getattr(getattr(torch, "version", None), "cuda", None)
    return version.partition(".")[0] if isinstance(version, str) else None


# ---- Profiler watch ----------------------------------------------------------------------

# A call before PyTorch's profiler takes CUPTI.
#
# PyTorch has no hook for this, but there is one way in: every profiler that records on the
# device, with a schedule or without, calls `torch.autograd.profiler._prepare_profiler` by its
# name in that module before it touches CUPTI. While somebody waits for that, the name leads
# to a function here, which calls the waiting function and then PyTorch's own. Afterwards it
# is PyTorch's again.

_NAME = "_prepare_profiler"

_lock = threading.Lock()


def _profiler_module() -> Any:
    return sys.modules.get("torch.autograd.profiler")


def profiler_is_active() -> bool:
    """Whether PyTorch's profiler is recording, according to PyTorch itself."""
    return bool(getattr(_profiler_module(), "_is_profiler_enabled", False))


class ProfilerWatch:
    """Calls a function before a profiler of the device begins, until it is removed."""

    def __init__(self, before: Callable[[], None]) -> None:
        """Begin to watch.

        Args:
            before: Is called in the thread that starts the profiler, each time, before
                the profiler does anything.
        """
        self._before: Callable[[], None] | None = before
        self._module = _profiler_module()
        self._replaced: Any = None
        with _lock:
            original = getattr(self._module, _NAME, None)
            if original is not None:
                self._replaced = original
                self._stand_in = self._make(original)
                setattr(self._module, _NAME, self._stand_in)

    @property
    def is_watching(self) -> bool:
        """False where this torch has no such function, or none was imported."""
        return self._before is not None and self._replaced is not None

    def _make(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def prepare_profiler(config: Any, activities: Any, *rest: Any, **more: Any) -> Any:
            before = self._before
            if before is not None and _uses_device(activities):
                before()
            return original(config, activities, *rest, **more)

        return prepare_profiler

    def remove(self) -> None:
        """End the watch; if somebody else has replaced the name since, it only goes silent."""
        self._before = None
        with _lock:
            if self._replaced is not None and getattr(self._module, _NAME) is self._stand_in:
                setattr(self._module, _NAME, self._replaced)
            self._replaced = None


def _uses_device(activities: Any) -> bool:
    """Whether these activities of a profiler take CUPTI; those that can't be read might."""
    try:
        return any(str(activity).endswith("CUDA") for activity in activities)
    except TypeError:
        return True


# ---- Sums --------------------------------------------------------------------------------

# CUPTI's records and PyTorch's segments combined: what each library holds.

#: What PyTorch's allocator has reserved.
PYTORCH = "PyTorch"
#: What the rest of torch took past it.
OUTSIDE = "PyTorch outside its allocator"
#: What is on the device because kernels were loaded, not by a call.
MODULE_DATA = "kernels' static data"
#: Allocations through calls for which CUPTI names no library.
UNNAMED = "not told by CUPTI"
#: The core gets PyTorch's earlier segments under this name.
PYTORCH_FILE = "/libc10_cuda.so"

# Stands for an address in a segment that grows: its bytes are counted with the segment.
_GROWN = "PyTorch's growing segments"

# CUPTI's kinds of memory that lie on the device.
_DEVICE_KINDS = (3, 4)
_STATIC_KIND = 6


@dataclass(frozen=True)
class LibraryUse(PlainRow):
    """What a library holds on a device.

    Attributes:
        library: Its name: "PyTorch", "NCCL", ..., or the file's own name.
        device: The device's number in this process.
        bytes: What it holds now.
        peak_bytes: The most it held at once since the attribution was switched on.
        count: Its allocations that are live.
        allocations: How many it has made since then.
        files: The shared objects that asked.
    """

    library: str
    device: int
    bytes: int
    peak_bytes: int
    count: int
    allocations: int
    files: tuple[str, ...] = ()


@dataclass(frozen=True)
class Segment:
    """A segment of PyTorch's allocator."""

    device: int
    address: int
    size: int
    is_expandable: bool


def torch_segments() -> tuple[Segment, ...]:
    """What PyTorch's own allocator has reserved now; nothing where it was never used, or
    another one serves in its place."""
    torch = sys.modules.get("torch")
    dump = getattr(getattr(torch, "_C", None), "_cuda_memorySnapshot", None)
    if torch is None or dump is None or not torch.cuda.is_initialized():
        return ()
    with light_symbols():
        try:
            plain = dump((0, 0, False))  # without the trace, which may be long
        except TypeError:
            plain = dump()
        except RuntimeError:
            # Another allocator serves in its place, and has no such dump.
            return ()
    return tuple(
        Segment(
            segment["device"],
            segment["address"],
            segment["total_size"],
            segment.get("is_expandable", False),
        )
        for segment in plain["segments"]
    )


def summed(plain: dict[str, Any], segments: Sequence[Segment]) -> tuple[LibraryUse, ...]:
    """The core's rows as uses.

    What is in a segment of PyTorch's allocator is PyTorch's, whichever file CUPTI names: of a
    call that passes through several libraries CUPTI names one or another.
    """
    holders = _Holders(segments)
    totals: dict[tuple[int, str], list[int]] = {}
    for device, library, kind, address, nbytes in plain["live"]:
        if kind in _DEVICE_KINDS:
            library = holders.owner(address, library)
        elif kind == _STATIC_KIND:
            library = MODULE_DATA
        else:
            continue
        if library != _GROWN:
            total = totals.setdefault((device, library), [0, 0])
            total[0] += nbytes
            total[1] += 1
    for segment in holders.grown:
        total = totals.setdefault((segment.device, PYTORCH), [0, 0])
        total[0] += segment.size
        total[1] += 1
    return _uses(plain, totals)


class _Holders:
    """Whose an address is, by PyTorch's segments."""

    def __init__(self, segments: Sequence[Segment]) -> None:
        self.grown = sorted(
            (segment for segment in segments if segment.is_expandable), key=lambda s: s.address
        )
        self._begins = [segment.address for segment in self.grown]
        self._whole = {segment.address for segment in segments if not segment.is_expandable}

    def owner(self, address: int, library: str) -> str:
        """The library, or `_GROWN` for what is counted with a segment that grows."""
        before = bisect.bisect_right(self._begins, address) - 1
        if before >= 0 and address < self._begins[before] + self.grown[before].size:
            return _GROWN
        if address in self._whole:
            return PYTORCH
        return OUTSIDE if library == PYTORCH else library or UNNAMED


def _uses(
    plain: dict[str, Any], totals: dict[tuple[int, str], list[int]]
) -> tuple[LibraryUse, ...]:
    """Live bytes and counts, with the peaks and counts of all the time, by library."""
    files: dict[str, list[str]] = {}
    for path, library in plain["sources"]:
        if path != PYTORCH_FILE:
            files.setdefault(library, []).append(path)
    past: dict[tuple[int, str], list[int]] = {}
    for device, library, kind, _, peak, _, made in plain["uses"]:
        if kind in (*_DEVICE_KINDS, _STATIC_KIND):
            name = MODULE_DATA if kind == _STATIC_KIND else library or UNNAMED
            figures = past.setdefault((device, name), [0, 0])
            figures[0] += peak
            figures[1] += made
    uses = []
    for device, library in {**past, **totals}:
        nbytes, count = totals.get((device, library), (0, 0))
        peak, made = past.get((device, library), (0, count))
        named = tuple(sorted(files.get(library, ())))
        uses.append(LibraryUse(library, device, nbytes, max(peak, nbytes), count, made, named))
    return tuple(sorted(uses, key=lambda use: (use.device, -use.bytes, use.library)))


# ---- Attribution -------------------------------------------------------------------------

# Every device allocation of this process by the library that asked for it.
#
# CUPTI's memory activity names, for each allocation, the shared object that made it. What
# PyTorch's allocator holds is known to the byte from PyTorch itself, including what it took
# before; of the others, only what they have taken since this was switched on.

# How often PyTorch's segments are looked at until they were the same before and after.
_LOOKS = 4

_current: DeviceAttribution | None = None
_attribution_lock = threading.RLock()


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
    with _attribution_lock:
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


# ---- Findings ----------------------------------------------------------------------------

# What is worth reporting of a device's memory, each with its evidence and the next step.

# A context with its kernels, and the workspaces of cuBLAS: what every program pays.
_USUAL_OVERHEAD = 1 << 30
# Shares of the device above which others' memory is a problem.
_MODERATE, _SERIOUS = 0.05, 0.25
_FULL = 0.05

# The libraries named as suspects where they can't be told apart.
_SUSPECTS = {"NCCL", "cuBLAS", "cuDNN", "CuPy", "JAX", "TensorFlow", "TensorRT", "NVSHMEM"}


def findings_of(
    one: VisibleDevice,
    memory: DeviceMemory,
    processes: Sequence[ProcessUse],
    own: int | None,
    others: int | None,
    torch_bytes: int,
    uses: Sequence[LibraryUse],
    attribution: str,
    process_list: str,
) -> tuple[Finding, ...]:
    """The findings about one device, the worst first.

    Args:
        one: The device.
        memory: Its memory.
        processes: The processes on it.
        own: This process's bytes, or None.
        others: The other processes' bytes, or None.
        torch_bytes: What PyTorch has reserved.
        uses: What each library holds, if that is known.
        attribution: "on", or why it is not known.
        process_list: Why the list of processes can't be used, or "".
    """
    if own is not None:
        outside: int | None = own - torch_bytes
    elif memory.used_bytes is not None and torch_bytes:
        outside = memory.used_bytes - torch_bytes - (others or 0)
    else:
        outside = None
    return ranked(
        (
            *_others(memory, processes, others),
            *_outside(memory, outside, own, uses),
            *_full(memory),
            *_limits(one, memory, process_list),
            *_stepped_aside(attribution),
        )
    )


def _severity(share: float) -> Severity:
    if share < _MODERATE:
        return Severity.INFO
    return Severity.MODERATE if share < _SERIOUS else Severity.SERIOUS


def _others(
    memory: DeviceMemory, processes: Sequence[ProcessUse], others: int | None
) -> tuple[Finding, ...]:
    if not others:
        return ()
    share = others / memory.total_bytes
    rows = [use for use in processes if not use.is_own and use.bytes]
    evidence = tuple(
        Note(f"{format_bytes(use.bytes or 0)} in process {use.pid} {use.name}".rstrip())
        for use in rows[:3]
    )
    count = format_count(len(rows), "other process", "other processes")
    message = f"{count} {'holds' if len(rows) == 1 else 'hold'} {format_bytes(others)}"
    advice = () if share < _MODERATE else (Note("end those not needed, or use another device"),)
    return (
        Finding(
            "other_processes",
            _severity(share),
            others,
            f"{message} of this device ({format_share(share)})",
            evidence,
            advice,
        ),
    )


def _outside(
    memory: DeviceMemory,
    outside: int | None,
    own: int | None,
    uses: Sequence[LibraryUse],
) -> tuple[Finding, ...]:
    """What is not PyTorch's in this process, or, where that is not known, on the device."""
    if outside is None or outside <= 0:
        return ()
    foreign = [use for use in uses if use.library != PYTORCH and use.bytes]
    evidence = [
        Note(f"{format_bytes(use.bytes)} is {use.library}'s", detail=_allocations(use))
        for use in foreign[:4]
    ]
    rest = outside - sum(use.bytes for use in foreign)
    if foreign and rest > 0:
        evidence.append(
            Note(f"{format_bytes(rest)} is CUDA's context, and what nothing accounts for")
        )
    advice: tuple[Note, ...] = ()
    if not uses:
        loaded = _loaded_suspects()
        if loaded:
            evidence.append(Note(f"Besides CUDA's context, loaded here: {', '.join(loaded)}"))
        advice = (
            Note("neutracer.attribute_device_memory(), switched on first, names the libraries"),
        )
    where = "this process's bytes" if own is not None else "the device's used bytes"
    message = f"{format_bytes(outside)} of {where} are not PyTorch's"
    above = max(0, outside - _USUAL_OVERHEAD)
    severity = _severity(above / memory.total_bytes) if above else Severity.INFO
    return (Finding("non_torch", severity, outside, message, tuple(evidence), advice),)


def _allocations(use: LibraryUse) -> str:
    return f"{format_count(use.count, 'allocation')}, peak {format_bytes(use.peak_bytes)}"


def _loaded_suspects() -> list[str]:
    """Libraries of this process that are known to take device memory of their own."""
    try:
        maps = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    paths = {line[line.index("/") :] for line in maps.splitlines() if "/" in line}
    return sorted({library_of(path) for path in paths if ".so" in path} & _SUSPECTS)


def _full(memory: DeviceMemory) -> tuple[Finding, ...]:
    if memory.free_bytes is None or memory.free_bytes >= _FULL * memory.total_bytes:
        return ()
    share = format_share(memory.free_bytes / memory.total_bytes)
    message = f"{format_bytes(memory.free_bytes)} of the device are free ({share})"
    return (Finding("device_full", Severity.MODERATE, memory.free_bytes, message),)


def _limits(one: VisibleDevice, memory: DeviceMemory, process_list: str) -> tuple[Finding, ...]:
    """What these figures can't tell, and why."""
    found = []
    if process_list:
        message = "who else uses this device is not known here"
        found.append(Finding("no_process_list", Severity.INFO, 0, message, (Note(process_list),)))
    if memory.driver_bytes is None:
        message = "the driver's own memory can't be told apart from the used memory"
        if one.slot is None:
            message = "these figures come from the CUDA driver: NVML does not report this device"
        found.append(Finding("no_nvml", Severity.INFO, 0, message))
    if one.is_mig:
        message = "this device is divided into MIG instances, or is one: it is left as it is"
        found.append(Finding("mig", Severity.INFO, 0, message))
    if not one.is_certain:
        message = "the device was guessed: CUDA, which orders the devices, is not initialised"
        hint = (Note("set CUDA_DEVICE_ORDER=PCI_BUS_ID, or use the device first"),)
        found.append(Finding("uncertain_device", Severity.INFO, 0, message, (), hint))
    return tuple(found)


def _stepped_aside(attribution: str) -> tuple[Finding, ...]:
    if "profiler" not in attribution:
        return ()
    message = "memory is no longer attributed to libraries: PyTorch's profiler took over"
    advice = (Note("call neutracer.attribute_device_memory() again after the profiler"),)
    return (Finding("attribution_off", Severity.INFO, 0, message, (), advice),)


# ---- Report ------------------------------------------------------------------------------

# Whose is this device's memory? PyTorch's, another library's, another process's.

# Rows of the printed tables; all are in the report.
_SHOWN = 10


@dataclass(frozen=True, kw_only=True, repr=False)
class DeviceReport(Report):
    """Who holds a device's memory.

    used_bytes is torch_bytes, what other libraries of this process hold, what other processes
    hold, and unattributed_bytes: this process's CUDA context, and all that has no known
    owner.

    Attributes:
        device: The device's number in this process.
        uuid: Its UUID.
        name: The product's name.
        driver: The driver's version; "" where it is not known.
        total_bytes: What programs can have: torch.cuda.mem_get_info()[1].
        free_bytes: What nobody has taken; None where only a CUDA context could tell.
        used_bytes: The rest; None likewise.
        driver_bytes: What the driver keeps for itself, in none of the others; None where
            it can't be told apart from the rest.
        torch_bytes: What PyTorch has reserved: reserved_bytes.all.current; 0 where it has
            not used the device.
        torch_allocated_bytes: Of these, in allocated blocks.
        process_bytes: What this process has taken in all, by NVML; None where NVML does not
            say.
        other_bytes: What other processes have taken; None where that is not known.
        unattributed_bytes: Used by unknown owners; None where used_bytes is.
        by_library: By library, PyTorch among them, the largest first; empty unless an
            attribution is on (`attribute_device_memory`).
        by_process: The processes on the device, the largest first.
        attribution: "on", or why by_library is empty.
        process_list: "" or why NVML's list of processes can't be used.
    """

    schema = "neutracer.device/1"

    device: int
    uuid: str
    name: str
    driver: str
    total_bytes: int
    free_bytes: int | None
    used_bytes: int | None
    driver_bytes: int | None
    torch_bytes: int
    torch_allocated_bytes: int
    process_bytes: int | None
    other_bytes: int | None
    unattributed_bytes: int | None
    by_library: tuple[LibraryUse, ...]
    by_process: tuple[ProcessUse, ...]
    attribution: str
    process_list: str

    def document(self) -> Document:
        """The report as a page."""
        facts = (self.name, f"driver {self.driver}" if self.driver else "", self.uuid)
        return Document(
            f"cuda:{self.device}",
            tuple(fact for fact in facts if fact),
            (*self.finding_blocks(), self._holders(), *self._processes()),
        )

    def _holders(self) -> Table:
        rows: list[tuple[Cell, ...]] = [self._row("PyTorch", self.torch_bytes, "reserved")]
        foreign = [use for use in self.by_library if use.library != PYTORCH]
        for use in foreign[:_SHOWN]:
            note = f"peak {Figure.bytes(use.peak_bytes)}"
            rows.append(self._row(use.library, use.bytes, note))
        if len(foreign) > _SHOWN:
            rest = sum(use.bytes for use in foreign[_SHOWN:])
            rows.append(self._row("other libraries", rest, ""))
        if self.other_bytes:
            rows.append(self._row("other processes", self.other_bytes, ""))
        if self.unattributed_bytes is not None:
            note = "CUDA's context, and what nothing accounts for"
            rows.append(self._row("the rest", self.unattributed_bytes, note))
        if self.free_bytes is not None:
            rows.append(self._row("free", self.free_bytes, ""))
        rows.append(self._row("total", self.total_bytes, ""))
        notes: tuple[str, ...] = ()
        if not self.by_library:
            notes = (f"Not split by library: {self.attribution}.",)
        return Table("Who holds it", tuple(rows), ("", "", "", ""), notes)

    def _row(self, who: str, nbytes: int, note: str) -> tuple[Cell, ...]:
        share = Figure.share(nbytes / self.total_bytes) if self.total_bytes else ""
        return (who, Figure.bytes(nbytes), share, note)

    def _processes(self) -> tuple[Block, ...]:
        if not self.by_process:
            return ()
        rows = tuple(
            (
                f"{use.pid}",
                use.name + (" (this process)" if use.is_own else ""),
                "" if use.bytes is None else Figure.bytes(use.bytes),
            )
            for use in self.by_process[:_SHOWN]
        )
        shown = f" ({_SHOWN} of {len(self.by_process)})" if len(self.by_process) > _SHOWN else ""
        return (Table(f"Processes{shown}", rows),)


def device_report(device: object = None) -> DeviceReport:
    """Who holds the memory of a device: PyTorch, other libraries, other processes.

    This does not start CUDA and allocates nothing. Libraries are known while
    `attribute_device_memory()` is on.

    Args:
        device: Its number in this process, "cuda:1" or a torch.device; None is the only one.

    Returns:
        The report; `str(report)` is one screen.

    Raises:
        UnavailableError: There is no NVIDIA device that this process can see.
        ValueError: There is no such device, or None was given and there are several.
        OSError: The device does not answer.

    Example:
        >>> import neutracer
        >>> report = neutracer.device_report()    # doctest: +SKIP
        >>> report.total_bytes - report.free_bytes == report.used_bytes    # doctest: +SKIP
        True
    """
    one = find_device(device)
    reserved, allocated = _torch_use(one.index)
    uses, attribution = _libraries(one.index)
    # Read together, and last: what happens between the readings counts as the rest.
    processes, process_list = _processes(one, reserved)
    memory = device_memory(one)
    own, others = _split(processes, process_list, has_cuda=reserved > 0)
    foreign = sum(use.bytes for use in uses if use.library != PYTORCH)
    known = reserved + foreign
    return DeviceReport(
        device=one.index,
        uuid=one.uuid,
        name=one.name,
        driver=devices().version,
        total_bytes=memory.total_bytes,
        free_bytes=memory.free_bytes,
        used_bytes=memory.used_bytes,
        driver_bytes=memory.driver_bytes,
        torch_bytes=reserved,
        torch_allocated_bytes=allocated,
        process_bytes=own,
        other_bytes=others,
        unattributed_bytes=_rest(memory, known, others),
        by_library=uses,
        by_process=processes,
        attribution=attribution,
        process_list=process_list,
        findings=findings_of(
            one, memory, processes, own, others, reserved, uses, attribution, process_list
        ),
    )


def _torch_use(index: int) -> tuple[int, int]:
    """PyTorch's reserved and allocated bytes on a device, without starting CUDA."""
    torch = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)
    if cuda is None or not cuda.is_initialized():
        return 0, 0
    stats = cuda.memory_stats(index)
    names = ("reserved_bytes.all.current", "allocated_bytes.all.current")
    return stats.get(names[0], 0), stats.get(names[1], 0)


def _libraries(index: int) -> tuple[tuple[LibraryUse, ...], str]:
    """By library, and "on" or why there is nothing."""
    attribution = current_attribution()
    if attribution is None:
        return (), "neutracer.attribute_device_memory() was not on"
    if not attribution.is_on:
        return (), f"the attribution is off: {attribution.reason}"
    return attribution.by_library(index), "on"


def _processes(one: VisibleDevice, reserved: int) -> tuple[tuple[ProcessUse, ...], str]:
    """The processes on the device, and why the list can't be used where it can't."""
    try:
        found = device_processes(one)
    except UnavailableError as error:
        return (), error.install
    except OSError as error:
        return (), str(error)
    own = [use for use in found if use.is_own]
    if any(use.bytes is not None and use.bytes < reserved for use in own):
        # Another process that has our number in the namespace in which NVML counts.
        return found, "NVML's process numbers are not this container's"
    if not own and reserved:
        if not found:
            return (), "NVML's list of processes is empty here, as in some containers"
        return found, f"NVML does not list this process ({os.getpid()}), as in a container"
    return found, ""


def _split(
    processes: tuple[ProcessUse, ...], process_list: str, *, has_cuda: bool
) -> tuple[int | None, int | None]:
    """(this process's bytes, the others'); None for what the list does not tell."""
    if process_list:
        return None, None
    own = [use.bytes for use in processes if use.is_own]
    others = [use.bytes for use in processes if not use.is_own]
    mine: int | None = own[0] if own else 0
    if not own and has_cuda:
        mine = None
    theirs = None if None in others else sum(nbytes or 0 for nbytes in others)
    return mine, theirs


def _rest(memory: DeviceMemory, known: int, others: int | None) -> int | None:
    """What is in use with no known owner. Not below zero: the figures are not read in one
    instant."""
    if memory.used_bytes is None:
        return None
    return max(0, memory.used_bytes - known - (others or 0))
