# SPDX-License-Identifier: Apache-2.0
"""Stand-ins for NVML, the CUDA driver and CUPTI, compiled from tests/fakes.

The file that the core loads and the one that a test fills are the same: what is set
through ctypes is what the core reads.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest
from places import ROOT

from neutracer.monitor import device_report as device

GIB = 1 << 30


def compiler() -> str:
    for name in ("gcc", "clang", "cc"):
        if shutil.which(name):
            return name
    pytest.skip("needs a C compiler")


def build(folder: Path, name: str, *macros: str) -> ctypes.CDLL:
    """tests/fakes/<name>.c as a library in `folder`, loaded; `_name` is its path."""
    target = folder / f"lib{name}{'_'.join(('', *macros))}.so"
    command = [compiler(), "-std=c11", "-O1", "-shared", "-fPIC", f"-I{ROOT / 'csrc/core'}"]
    command += [*(f"-D{macro}" for macro in macros), "-o", str(target)]
    subprocess.run([*command, str(ROOT / "tests/fakes" / f"{name}.c"), "-lpthread"], check=True)
    return ctypes.CDLL(str(target))


class FakeNvml:
    """NVML with the devices that a test adds."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self.path = library._name
        self._fake = library
        library.fake_add.argtypes = [
            *(ctypes.c_char_p, ctypes.c_char_p, ctypes.c_ulonglong),
            *(ctypes.c_ulonglong, ctypes.c_ulonglong, ctypes.c_int),
        ]
        library.fake_add_process.argtypes = [ctypes.c_int, ctypes.c_uint, ctypes.c_ulonglong]
        library.fake_fail.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_int]
        library.fake_reset()

    def add(
        self,
        uuid: str = "GPU-00000000-1111-2222-3333-444444444444",
        name: str = "NVIDIA H200",
        total: int = 140 * GIB,
        used: int = 10 * GIB,
        reserved: int = GIB // 2,
        hidden: bool = False,
    ) -> int:
        words = (uuid.encode(), name.encode(), total, total - used, reserved, hidden)
        return int(self._fake.fake_add(*words))

    def process(self, slot: int, pid: int, used: int) -> None:
        self._fake.fake_add_process(slot, pid, used)

    def fail(self, what: str, code: int, slot: int = 0) -> None:
        """What answers with an error: "init", "count", "handle", "memory", "processes";
        with "mig" the mode is set."""
        self._fake.fake_fail(slot, what.encode(), code)

    @property
    def started(self) -> int:
        return int(self._fake.fake_started())


class FakeCuda:
    """A CUDA driver that is loaded, and started or not."""

    def __init__(self, library: ctypes.CDLL, started: bool = True) -> None:
        self.path = library._name
        self._fake = library
        library.fake_add.argtypes = [
            *(ctypes.c_char_p, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int)
        ]
        library.fake_reset(started)

    def add(
        self,
        whole: bytes,
        part: bytes | None = None,
        total: int = 140 * GIB,
        used: int = 10 * GIB,
        context: bool = True,
    ) -> None:
        self._fake.fake_add(whole, part, total, total - used, context)

    @property
    def left(self) -> int:
        return int(self._fake.fake_left())


class FakeCupti:
    """CUPTI whose records a test makes."""

    DEVICE, PINNED, MANAGED, STATIC = 3, 2, 5, 6

    def __init__(self, library: ctypes.CDLL, code: int = 0) -> None:
        self.path = library._name
        self._fake = library
        self._time = 0
        self._kept: list[bytes | None] = []
        library.fake_record.argtypes = [
            *(ctypes.c_int, ctypes.c_int, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint64),
            *(ctypes.c_uint32, ctypes.c_char_p),
        ]
        library.fake_reset(code)

    def _record(self, operation: int, *words: int, source: str | None) -> None:
        text = None if source is None else source.encode()
        self._kept.append(text)
        self._fake.fake_record(operation, *words, text)

    def allocate(
        self,
        address: int,
        nbytes: int,
        source: str | None = "/opt/lib/libnccl.so.2",
        *,
        kind: int = DEVICE,
        device: int = 0,
        time: int | None = None,
    ) -> None:
        self._time += 1
        words = (kind, address, nbytes, self._time if time is None else time, device)
        self._record(1, *words, source=source)

    def release(self, address: int, *, time: int | None = None) -> None:
        self._time += 1
        words = (self.DEVICE, address, 0, self._time if time is None else time, 0)
        self._record(2, *words, source=None)

    @property
    def is_on(self) -> bool:
        return bool(self._fake.fake_state() & 1)

    @property
    def has_source(self) -> bool:
        return bool(self._fake.fake_state() & 2)


def use(monkeypatch: pytest.MonkeyPatch, nvml: str | None, driver: str | None = None) -> None:
    """Let neutracer open these, for the time of a test."""
    missing = "libnothing-of-this-name.so.1"
    monkeypatch.setattr(device, "_NVML", nvml or missing)
    monkeypatch.setattr(device, "_DRIVER", driver or missing)
    monkeypatch.setattr(device, "_opened", None)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.delenv("CUDA_DEVICE_ORDER", raising=False)
