# SPDX-License-Identifier: Apache-2.0
"""`device_report`: the devices and their memory by process, and by library from CUPTI."""

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
from neutracer.pickling import StaysHere
from neutracer.recording.recorder import light_symbols
from neutracer.render.document import Block, Cell, Document, Figure, Note, Severity, Table
from neutracer.render.report import Finding, PlainRow, Report, ranked
from neutracer.units import format_bytes, format_count, format_share

# ---- Devices -----------------------------------------------------------------------------

# NVML comes first, since it does not start CUDA. It ignores CUDA_VISIBLE_DEVICES, so devices are
# matched by UUID. Without NVML the CUDA driver answers, if this process has started it. MIG
# settings are left alone; a visible instance is found by its own UUID.

# Library names that replace the usual ones.
_NVML: str | None = None
_DRIVER: str | None = None

_opened: tuple[int, core.Devices] | None = None  # By pid: a forked child opens its own.


@dataclass(frozen=True)
class VisibleDevice(PlainRow):
    """A device that CUDA shows to this process.

    Attributes:
        index: Its number in this process: `torch.device("cuda", index)`.
        uuid: Its full UUID: "GPU-...", or "MIG-..." for an instance.
        name: The product's name; may be empty.
        slot: NVML's number for it, or None.
        is_mig: It is an instance, or divided into instances.
        is_certain: False if its number is a guess: CUDA sorts different models by speed, in
            an order that only CUDA knows.
    """

    index: int
    uuid: str
    name: str
    slot: int | None
    is_mig: bool = False
    is_certain: bool = True


@dataclass(frozen=True)
class DeviceMemory(PlainRow):
    """A device's memory, in bytes; None if unknown.

    Attributes:
        total_bytes: Memory available to programs: `torch.cuda.mem_get_info()[1]`.
        free_bytes: Free memory: `torch.cuda.mem_get_info()[0]`.
        used_bytes: total_bytes - free_bytes.
        driver_bytes: The driver's own memory, in none of the others.
    """

    total_bytes: int
    free_bytes: int | None
    used_bytes: int | None
    driver_bytes: int | None


@dataclass(frozen=True)
class ProcessUse(PlainRow):
    """A process on a device.

    Attributes:
        pid: Its pid on the host, from NVML; it differs from the pid inside a container.
        name: Its name; "" if unknown.
        bytes: Its memory; None if NVML does not report it.
        is_own: It is this process.
    """

    pid: int
    name: str
    bytes: int | None
    is_own: bool


def devices() -> core.Devices:
    """NVML and the driver, opened once per process; `reason` explains a missing NVML."""
    global _opened
    pid = os.getpid()
    if _opened is None or _opened[0] != pid:
        _opened = (pid, core.Devices(_NVML, _DRIVER))
    return _opened[1]


def visible_devices() -> tuple[VisibleDevice, ...]:
    """The devices that CUDA shows, or would show, to this process, in its order.

    A started CUDA reports them; otherwise CUDA_VISIBLE_DEVICES selects from NVML's list.
    """
    opened = devices()
    try:
        shown = opened.visible()
    except UnavailableError:
        shown = None
    if shown is not None:
        return tuple(
            VisibleDevice(index, uuid, name, opened.find(uuid), is_mig)
            for index, (uuid, name, is_mig) in enumerate(shown)
        )
    if opened.reason is not None:
        raise UnavailableError("an NVIDIA device", f"there is no NVML here ({opened.reason})")
    return _visible_by_nvml(opened)


def _visible_by_nvml(opened: core.Devices) -> tuple[VisibleDevice, ...]:
    slots = opened.slots()
    chosen = _chosen_slots(os.environ.get("CUDA_VISIBLE_DEVICES"), opened)
    kinds = {name for _, name, _ in slots}
    is_certain = len(kinds) < 2 or os.environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"
    rows = opened.slots()  # Includes the instances just looked up.
    return tuple(
        VisibleDevice(index, *rows[slot][:2], slot, rows[slot][2], is_certain or not is_number)
        for index, (slot, is_number) in enumerate(chosen)
    )


def _chosen_slots(text: str | None, opened: core.Devices) -> list[tuple[int, bool]]:
    """The selection of CUDA_VISIBLE_DEVICES: (slot, whether it was chosen by number).

    As in CUDA, the first invalid entry ends the list, and a repeated device empties it.
    """
    uuids = [uuid for uuid, _, _ in opened.slots()]
    if text is None:
        return [(slot, True) for slot in range(len(uuids))]
    chosen: list[tuple[int, bool]] = []
    for entry in text.split(","):
        slot, is_number = _slot_of(entry.strip(), uuids, opened)
        if slot is None:
            break
        if any(slot == other for other, _ in chosen):
            return []
        chosen.append((slot, is_number))
    return chosen


def _slot_of(entry: str, uuids: Sequence[str], opened: core.Devices) -> tuple[int | None, bool]:
    number = re.match(r"\+?(\d+)", entry, re.ASCII)
    if number:
        slot = int(number[1])
        return (slot if slot < len(uuids) else None), True
    if entry.startswith("MIG-"):
        return opened.find(entry), False
    # A unique prefix of a UUID is enough.
    fitting = [slot for slot, uuid in enumerate(uuids) if uuid.startswith(entry)]
    is_uuid = entry.startswith("GPU-") and len(fitting) == 1
    return (fitting[0] if is_uuid else None), False


def visible_slots() -> dict[int, int]:
    """CUDA's device numbers mapped to NVML's; empty without NVML."""
    try:
        shown = visible_devices()
    except UnavailableError:
        return {}
    return {device.index: device.slot for device in shown if device.slot is not None}


def find_device(device: object = None) -> VisibleDevice:
    """The visible device of a number, "cuda", "cuda:1", a torch.device; None is the only one."""
    shown = visible_devices()
    if not shown:
        hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
        hint = "" if hidden is None else f"CUDA_VISIBLE_DEVICES={hidden!r} shows none"
        raise UnavailableError("an NVIDIA device in this process", hint)
    index = _index_of(device)
    if index is None and len(shown) > 1:
        names = ", ".join(f"{one.index} ({one.name or one.uuid})" for one in shown)
        raise ValueError(f"there are {len(shown)} devices, choose one: {names}")
    index = index or 0
    if not 0 <= index < len(shown):
        numbers = ", ".join(str(one.index) for one in shown)
        raise ValueError(f"there is no device {index}: the visible ones are {numbers}")
    return shown[index]


def _index_of(device: object) -> int | None:
    if device is None:
        return None
    if isinstance(device, int):
        return device
    match = re.fullmatch(r"cuda(?::(\d+))?", str(device), re.ASCII)
    if match is None:
        raise ValueError(f"not a CUDA device: {str(device)!r}")
    return int(match[1]) if match[1] else None


def device_memory(device: VisibleDevice | int) -> DeviceMemory:
    """The memory of a device, or of its number, now; about 4 microseconds with NVML."""
    one = find_device(device) if isinstance(device, int) else device
    if one.slot is not None:
        return DeviceMemory(*devices().memory(one.slot))
    return DeviceMemory(*devices().visible_memory(one.index))


def device_processes(device: VisibleDevice | int) -> tuple[ProcessUse, ...]:
    """The processes that use a device, largest first.

    NVML's figures include contexts and libraries. In a container its pids are the host's, and names
    are known only if this process is listed.
    """
    one = find_device(device) if isinstance(device, int) else device
    if one.slot is None:
        raise UnavailableError("a list of the device's processes", "NVML does not know the device")
    rows = devices().processes(one.slot)
    own = _own_pids()
    is_same_space = any(pid in own for pid, _ in rows)
    found = [
        ProcessUse(pid, _name_of(pid) if is_same_space else "", nbytes, pid in own)
        for pid, nbytes in rows
    ]
    return tuple(sorted(found, key=lambda use: (-(use.bytes or 0), use.pid)))


def _own_pids() -> set[int]:
    """This process's pids in all namespaces."""
    own = {os.getpid()}
    try:
        status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return own
    for line in status.splitlines():
        if line.startswith("NSpid:"):
            own |= {int(word) for word in line.split()[1:] if word.isdigit()}
    return own


def _name_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


# ---- CUPTI library -----------------------------------------------------------------------

#: (part of a file's path, library); the first match counts.
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

_LOADED = re.compile(r"/.*/libcupti\.so[.\d]*")
_MAJORS = ("13", "12")


def library_of(path: str) -> str:
    """The name of the library that a file belongs to."""
    for part, library in RULES:
        if part in path:
            return library
    name = path.rpartition("/")[2]
    return name.partition(".so.")[0] + ".so" if ".so." in name else name


def candidates() -> Iterator[tuple[str, bool]]:
    """(file or soname, only if already loaded), best first: a process must not run two copies of
    CUPTI, so one that torch has loaded for its profiler precedes any other."""
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
            # The names in one folder are links to one file.
            yield from [(str(file), False) for file in files if file.exists()][:1]
    for name in names:
        yield name, False


def _loaded() -> list[str]:
    """The CUPTI files loaded in this process, torch's first."""
    found = [path for path in _mapped_files() if _LOADED.fullmatch(path)]
    # Triton's copy is for its own profiler, which is rarely on.
    return sorted(found, key=lambda path: "/triton/" in path)


def _mapped_files() -> list[str]:
    """The files that this process has mapped, shared objects among them."""
    try:
        maps = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    return list(dict.fromkeys(line[line.index("/") :] for line in maps.splitlines() if "/" in line))


def _cuda_major() -> str | None:
    """The major CUDA version of this torch: "13"."""
    torch = sys.modules.get("torch")
    version = getattr(getattr(torch, "version", None), "cuda", None)
    return version.partition(".")[0] if isinstance(version, str) else None


# ---- Profiler watch ----------------------------------------------------------------------

# PyTorch has no hook that runs before its profiler takes CUPTI. But every device profiler calls
# `torch.autograd.profiler._prepare_profiler` by name first, so a watch replaces that name.

_NAME = "_prepare_profiler"

_lock = threading.Lock()


def _profiler_module() -> Any:
    return sys.modules.get("torch.autograd.profiler")


def profiler_is_active() -> bool:
    """Whether PyTorch's profiler is recording."""
    return bool(getattr(_profiler_module(), "_is_profiler_enabled", False))


class ProfilerWatch:
    """Calls a function before each start of a device profiler, until removed."""

    def __init__(self, before: Callable[[], None]) -> None:
        self._before: Callable[[], None] | None = before
        self._module = _profiler_module()
        self._replaced: Any = None
        with _lock:
            original = getattr(self._module, _NAME, None)
            if original is not None:
                self._replaced = original
                self._stand_in = self._make(original)
                setattr(self._module, _NAME, self._stand_in)

    def _make(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def prepare_profiler(config: Any, activities: Any, *rest: Any, **more: Any) -> Any:
            before = self._before
            if before is not None and _uses_device(activities):
                before()
            return original(config, activities, *rest, **more)

        return prepare_profiler

    def remove(self) -> None:
        """End the watch; if the name was replaced again since, the wrapper only goes silent."""
        self._before = None
        with _lock:
            if self._replaced is not None and getattr(self._module, _NAME) is self._stand_in:
                setattr(self._module, _NAME, self._replaced)
            self._replaced = None


def _uses_device(activities: Any) -> bool:
    """Whether a profiler's activities need CUPTI; True if unknown."""
    try:
        return any(str(activity).endswith("CUDA") for activity in activities)
    except TypeError:
        return True


# ---- Use by library ----------------------------------------------------------------------

PYTORCH = "PyTorch"
#: Allocations by torch past its allocator.
OUTSIDE = "PyTorch outside its allocator"
#: Static data of loaded kernels.
MODULE_DATA = "kernels' static data"
#: Allocations without a library in CUPTI's records.
UNNAMED = "not told by CUPTI"
#: The file under which the core gets PyTorch's earlier segments.
PYTORCH_FILE = "/libc10_cuda.so"

_GROWN = "PyTorch's growing segments"  # Owner of addresses that are counted with their segment.
_DEVICE_KINDS = (3, 4)  # CUPTI's memory kinds on the device.
_STATIC_KIND = 6


@dataclass(frozen=True)
class LibraryUse(PlainRow):
    """A library's memory on a device.

    Attributes:
        library: Its name: "PyTorch", "NCCL", ..., or the file's own name.
        device: The device's number in this process.
        bytes: Current bytes.
        peak_bytes: The peak since the attribution began.
        count: Live allocations.
        allocations: All allocations since the attribution began.
        files: The shared objects that allocated.
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
    """The segments of PyTorch's own allocator; empty if it is unused or replaced."""
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
            return ()  # A replacement allocator has no dump.
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
    """The core's rows by library.

    PyTorch's segments decide before CUPTI, which may name any library on a call's path.
    """
    holders = _Holders(segments)
    live = [(segment.device, PYTORCH, segment.size) for segment in holders.grown]
    for device, library, kind, address, nbytes in plain["live"]:
        if kind in _DEVICE_KINDS:
            live.append((device, holders.owner(address, library), nbytes))
        elif kind == _STATIC_KIND:
            live.append((device, MODULE_DATA, nbytes))
    totals: dict[tuple[int, str], list[int]] = {}
    for device, library, nbytes in live:
        if library != _GROWN:
            total = totals.setdefault((device, library), [0, 0])
            total[0] += nbytes
            total[1] += 1
    return _uses(plain, totals)


class _Holders:
    """Finds an address's owner by PyTorch's segments."""

    def __init__(self, segments: Sequence[Segment]) -> None:
        self.grown = sorted(
            (segment for segment in segments if segment.is_expandable), key=lambda s: s.address
        )
        self._begins = [segment.address for segment in self.grown]
        self._whole = {segment.address for segment in segments if not segment.is_expandable}

    def owner(self, address: int, library: str) -> str:
        """The library, or `_GROWN` inside a growing segment."""
        before = bisect.bisect_right(self._begins, address) - 1
        if before >= 0 and address < self._begins[before] + self.grown[before].size:
            return _GROWN
        if address in self._whole:
            return PYTORCH
        return OUTSIDE if library == PYTORCH else library or UNNAMED


def _uses(
    plain: dict[str, Any], totals: dict[tuple[int, str], list[int]]
) -> tuple[LibraryUse, ...]:
    """Live bytes and counts by library, with peaks and total counts."""
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

# CUPTI's memory activity names the shared object behind each allocation since the start. PyTorch's
# own share comes from its allocator, to the byte and including earlier allocations.

_TRIES = 4  # Readings until PyTorch's segments are the same before and after.
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
        """Pass PyTorch's existing segments to the core, except growing ones, which only PyTorch
        knows."""
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
        """The reason it is off; "" while it is on."""
        return "" if self.is_on else self._reason or "it was removed"

    @property
    def facts(self) -> dict[str, Any]:
        """Figures of the last reading: "records", "dropped", "unmatched" (frees of earlier
        allocations), "version" (CUPTI's), "has_sources", "buffer_bytes"."""
        return dict(self._facts)

    def by_library(self, device: int | None = None) -> tuple[LibraryUse, ...]:
        """Each library's memory now, or at the end of the attribution, largest first.

        Pinned host memory and managed memory are not counted.

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
        for _ in range(_TRIES):
            # Unchanged segments: they and the records are of one moment.
            segments = torch_segments()
            native.flush()
            plain = native.read()
            if segments == torch_segments():
                break
        self._facts = {k: v for k, v in plain.items() if isinstance(v, (int, bool))}
        self._last = summed(plain, segments)

    def remove(self) -> None:
        """Switch it off, once; its figures stay readable."""
        self._end("")

    def _step_aside(self) -> None:
        self._end(
            "PyTorch's profiler took over CUPTI; call attribute_device_memory() again after it"
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
                    # A failed flush still switches it off.
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
    """Track which library makes each device allocation from now on.

    The handle's `by_library()` has the table, and so has `device_report()` meanwhile: PyTorch,
    NCCL, cuBLAS, cuDNN, CuPy, Triton's kernels, and any other shared object by its file name.
    Start it before CUDA is first used to see everything; of earlier allocations only
    PyTorch's are attributed, the others are one sum.

    CUPTI serves one tool at a time. The attribution can't start while PyTorch's profiler runs, and
    switches off for good when a device profiler starts: for that, `_prepare_profiler` in
    `torch.autograd.profiler` is wrapped while it is on. It can't detect other tools that use CUPTI
    (Nsight, Proton).

    Returns:
        The handle; `remove()`, or leaving it as a context manager, ends it.

    Raises:
        UnavailableError: There is no CUDA device or no CUPTI, PyTorch's profiler is active, or an
            attribution is already on.

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
    """The last attribution of this process, on or off, or None."""
    is_ours = _current is not None and _current._pid == os.getpid()
    return _current if is_ours else None


def _start() -> core.Attribution:
    """Start CUPTI from the best place that has it."""
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
                break  # Another copy would fail too, or disturb the loaded one.
    if not _has_device():
        raise no_device
    # Prefer the failure of a copy that could be opened.
    opened = [error for error in failures if "cannot open shared" not in error.install]
    if opened:
        raise opened[0]
    package = "nvidia-cuda-cupti-cu12" if _cuda_major() == "12" else "nvidia-cuda-cupti"
    raise missing(package, "CUPTI")


def _has_driver() -> bool:
    """Checked before loading CUPTI: CUDA 13.2's would end the process without a driver."""
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

_USUAL_OVERHEAD = 1 << 30  # A context with kernels, and cuBLAS workspaces.
_MODERATE, _SERIOUS = 0.05, 0.25  # Shares of the device, for non-PyTorch memory.
_FULL = 0.05  # Free share below which the device is full.

# Libraries to name if there is no attribution.
_SUSPECTS = {"NCCL", "cuBLAS", "cuDNN", "CuPy", "JAX", "TensorFlow", "TensorRT", "NVSHMEM"}


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
    held = f"{format_bytes(others)} of this device ({format_share(share)})"
    message = f"{count} {'holds' if len(rows) == 1 else 'hold'} {held}"
    advice = () if share < _MODERATE else (Note("end those not needed, or use another device"),)
    return (Finding("other_processes", _severity(share), others, message, evidence, advice),)


def _outside(
    memory: DeviceMemory,
    outside: int | None,
    own: int | None,
    uses: Sequence[LibraryUse],
) -> tuple[Finding, ...]:
    """Non-PyTorch memory of this process, or if unknown, of the device."""
    if outside is None or outside <= 0:
        return ()
    foreign = [use for use in uses if use.library != PYTORCH and use.bytes]
    evidence = []
    for use in foreign[:4]:
        made = f"{format_count(use.count, 'allocation')}, peak {format_bytes(use.peak_bytes)}"
        evidence.append(Note(f"{format_bytes(use.bytes)} is {use.library}'s", detail=made))
    rest = outside - sum(use.bytes for use in foreign)
    if foreign and rest > 0:
        evidence.append(Note(f"{format_bytes(rest)} is CUDA's context and unattributed memory"))
    advice: tuple[Note, ...] = ()
    if not uses:
        libraries = {library_of(path) for path in _mapped_files() if ".so" in path}
        loaded = ", ".join(sorted(libraries & _SUSPECTS))
        if loaded:
            evidence.append(Note(f"Besides CUDA's context, loaded here: {loaded}"))
        advice = (Note("start neutracer.attribute_device_memory() first to name the libraries"),)
    where = "this process's bytes" if own is not None else "the device's used bytes"
    message = f"{format_bytes(outside)} of {where} are not PyTorch's"
    above = max(0, outside - _USUAL_OVERHEAD)
    severity = _severity(above / memory.total_bytes) if above else Severity.INFO
    return (Finding("non_torch", severity, outside, message, tuple(evidence), advice),)


def _full(memory: DeviceMemory) -> tuple[Finding, ...]:
    if memory.free_bytes is None or memory.free_bytes >= _FULL * memory.total_bytes:
        return ()
    share = format_share(memory.free_bytes / memory.total_bytes)
    message = f"{format_bytes(memory.free_bytes)} of the device are free ({share})"
    return (Finding("device_full", Severity.MODERATE, memory.free_bytes, message),)


def _limits(one: VisibleDevice, memory: DeviceMemory, process_list: str) -> tuple[Finding, ...]:
    """The limits of these figures, and their reasons."""
    found = []
    if process_list:
        message = "the other users of this device are unknown"
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

_SHOWN = 10  # Rows of the printed tables.


@dataclass(frozen=True, kw_only=True, repr=False)
class DeviceReport(Report):
    """The holders of a device's memory.

    used_bytes is the sum of torch_bytes, the other libraries of this process, the other
    processes, and unattributed_bytes: CUDA contexts and memory without a known owner.

    Attributes:
        device: The device's number in this process.
        uuid: Its UUID.
        name: The product's name.
        driver: The driver's version; "" if unknown.
        total_bytes: Memory available to programs: torch.cuda.mem_get_info()[1].
        free_bytes: Free memory; None if only a CUDA context could know it.
        used_bytes: total_bytes - free_bytes, or None.
        driver_bytes: The driver's own memory, in none of the others; None if unknown.
        torch_bytes: Reserved by PyTorch: reserved_bytes.all.current; 0 if it has not used the
            device.
        torch_allocated_bytes: Of these, in allocated blocks.
        process_bytes: All memory of this process, from NVML; None if unknown.
        other_bytes: Memory of other processes; None if unknown.
        unattributed_bytes: Memory without a known owner; None if used_bytes is None.
        by_library: By library, PyTorch included, largest first; empty unless an attribution is
            on (`attribute_device_memory`).
        by_process: The processes on the device, largest first.
        attribution: "on", or why by_library is empty.
        process_list: "", or why NVML's list of processes is unusable.
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
            note = "CUDA's context and unattributed memory"
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
    """Report the holders of a device's memory: PyTorch, other libraries, other processes.

    Does not start CUDA and allocates nothing. Libraries need `attribute_device_memory()`.

    Args:
        device: Its number in this process, "cuda:1" or a torch.device; None is the only one.

    Returns:
        The report; `str(report)` is one screen.

    Raises:
        UnavailableError: No NVIDIA device is visible to this process.
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
    # Read last and together: changes between the readings count as unattributed.
    processes, process_list = _processes(one, reserved)
    memory = device_memory(one)
    own, others = _split(processes, process_list, has_cuda=reserved > 0)
    foreign = sum(use.bytes for use in uses if use.library != PYTORCH)
    known = reserved + foreign
    outside = None if own is None else own - reserved
    if own is None and memory.used_bytes is not None and reserved:
        outside = memory.used_bytes - reserved - (others or 0)
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
        findings=ranked(
            (
                *_others(memory, processes, others),
                *_outside(memory, outside, own, uses),
                *_full(memory),
                *_limits(one, memory, process_list),
                *_stepped_aside(attribution),
            )
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
    """(uses, "on" or the reason there are none)."""
    attribution = current_attribution()
    if attribution is None:
        return (), "neutracer.attribute_device_memory() was not on"
    if not attribution.is_on:
        return (), f"the attribution is off: {attribution.reason}"
    return attribution.by_library(index), "on"


def _processes(one: VisibleDevice, reserved: int) -> tuple[tuple[ProcessUse, ...], str]:
    """(processes, "" or the reason the list is unusable)."""
    try:
        found = device_processes(one)
    except UnavailableError as error:
        return (), error.install
    except OSError as error:
        return (), str(error)
    own = [use for use in found if use.is_own]
    if any(use.bytes is not None and use.bytes < reserved for use in own):
        # Another process with our pid in NVML's namespace.
        return found, "NVML's process numbers are not this container's"
    if not own and reserved:
        if not found:
            return (), "NVML's list of processes is empty here, as in some containers"
        return found, f"NVML does not list this process ({os.getpid()}), as in a container"
    return found, ""


def _split(
    processes: tuple[ProcessUse, ...], process_list: str, *, has_cuda: bool
) -> tuple[int | None, int | None]:
    """(this process's bytes, the others'); None if unknown."""
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
    """Used bytes without a known owner; clamped at 0, as the figures are read one by one."""
    if memory.used_bytes is None:
        return None
    return max(0, memory.used_bytes - known - (others or 0))
