# SPDX-License-Identifier: Apache-2.0
"""Devices, their memory and processes, by stand-ins for NVML and the CUDA driver."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

import fake_device as fakes
import pytest
from fake_device import GIB, FakeCuda, FakeNvml

from neutracer import LimitError, UnavailableError
from neutracer._native import core
from neutracer.monitor import device_report as device

UUIDS = [f"GPU-{n}0000000-1111-2222-3333-444444444444" for n in range(4)]


@pytest.fixture(scope="module")
def nvml_library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    return fakes.build(tmp_path_factory.mktemp("nvml"), "nvml")


@pytest.fixture(scope="module")
def cuda_library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    return fakes.build(tmp_path_factory.mktemp("cuda"), "cuda")


@pytest.fixture
def nvml(nvml_library: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    made = FakeNvml(nvml_library)
    fakes.use(monkeypatch, made.path)
    return made


def visible(monkeypatch: pytest.MonkeyPatch, text: str) -> list[int | None]:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", text)
    return [one.slot for one in device.visible_devices()]


# ---- which devices ---------------------------------------------------------------------


def test_all_devices_show_without_variable(nvml: FakeNvml) -> None:
    for uuid in UUIDS:
        nvml.add(uuid)
    shown = device.visible_devices()
    assert [(one.index, one.slot, one.uuid) for one in shown] == [
        (n, n, uuid) for n, uuid in enumerate(UUIDS)
    ]
    assert {one.name for one in shown} == {"NVIDIA H200"}
    assert all(one.is_certain for one in shown)
    assert device.visible_slots() == {0: 0, 1: 1, 2: 2, 3: 3}


@pytest.mark.parametrize(
    ("text", "slots"),
    [
        ("2,0", [2, 0]),
        (" 3 , 1 ", [3, 1]),
        ("", []),
        ("-1", []),
        ("1,-1,2", [1]),
        ("1,7,2", [1]),
        ("0,x,1", [0]),
        ("1gpu2,2ampere", [1, 2]),
        ("2,2", []),
        (UUIDS[2], [2]),
        (f"{UUIDS[3]},{UUIDS[1]}", [3, 1]),
        ("GPU-2", [2]),
        ("GPU-20000000-1111,GPU-0", [2, 0]),
        ("GPU-", []),
        ("GPU-ffffffff,GPU-1", []),
        (f"GPU-2,{UUIDS[2]}", []),
        ("MIG-00000000-0000-0000-0000-000000000009", [4]),
        ("MIG-unknown", []),
    ],
)
def test_visible_devices_are_read_as_cuda_does(
    nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch, text: str, slots: list[int]
) -> None:
    for uuid in UUIDS:
        nvml.add(uuid)
    nvml.add("MIG-00000000-0000-0000-0000-000000000009", hidden=True)
    assert visible(monkeypatch, text) == slots


def test_order_of_unlike_devices_is_uncertain(
    nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    nvml.add(UUIDS[0], name="NVIDIA L4")
    nvml.add(UUIDS[1], name="NVIDIA H200")
    assert [one.is_certain for one in device.visible_devices()] == [False, False]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", f"{UUIDS[1]},0")
    assert [one.is_certain for one in device.visible_devices()] == [True, False]
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    assert all(one.is_certain for one in device.visible_devices())


def test_started_cuda_decides_the_order(
    nvml: FakeNvml, cuda_library: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch
) -> None:
    nvml.add("GPU-30313233-3435-3637-3839-616263646566")
    nvml.add("GPU-41424344-4546-4748-494a-4b4c4d4e4f50")
    cuda = FakeCuda(cuda_library)
    cuda.add(b"ABCDEFGHIJKLMNOP")
    cuda.add(b"0123456789abcdef")
    fakes.use(monkeypatch, nvml.path, cuda.path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")  # set too late to mean anything
    assert [(one.slot, one.name) for one in device.visible_devices()] == [(1, "Fake"), (0, "Fake")]
    assert device.visible_slots() == {0: 1, 1: 0}


def test_loaded_cuda_is_not_started(
    nvml: FakeNvml, cuda_library: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch
) -> None:
    nvml.add(UUIDS[0])
    cuda = FakeCuda(cuda_library, started=False)
    cuda.add(b"ABCDEFGHIJKLMNOP")
    fakes.use(monkeypatch, nvml.path, cuda.path)
    assert [one.uuid for one in device.visible_devices()] == [UUIDS[0]]


def test_an_instance_is_found_by_its_uuid(
    nvml: FakeNvml, cuda_library: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch
) -> None:
    slot = nvml.add("GPU-41424344-4546-4748-494a-4b4c4d4e4f50")
    nvml.fail("mig", 1, slot)
    nvml.add("MIG-61626364-6566-6768-696a-6b6c6d6e6f70", used=GIB, total=20 * GIB, hidden=True)
    cuda = FakeCuda(cuda_library)
    cuda.add(b"ABCDEFGHIJKLMNOP", b"abcdefghijklmnop")
    fakes.use(monkeypatch, nvml.path, cuda.path)
    (one,) = device.visible_devices()
    assert one.is_mig
    assert one.uuid == "MIG-61626364-6566-6768-696a-6b6c6d6e6f70"
    assert device.device_memory(0).total_bytes == 20 * GIB


def test_a_driver_with_only_the_newer_uuid_serves(
    tmp_path: Path, nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    nvml.add("GPU-41424344-4546-4748-494a-4b4c4d4e4f50")
    cuda = FakeCuda(fakes.build(tmp_path, "cuda", "NO_FIRST_UUID"))
    cuda.add(b"ABCDEFGHIJKLMNOP")
    fakes.use(monkeypatch, nvml.path, cuda.path)
    (one,) = device.visible_devices()
    assert (one.slot, one.name, one.is_mig) == (0, "Fake", False)


def test_loading_the_driver_starts_nothing(
    cuda_library: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch
) -> None:
    cuda = FakeCuda(cuda_library, started=False)
    fakes.use(monkeypatch, None, cuda.path)
    assert device.devices().has_driver()
    with pytest.raises(UnavailableError, match="has not been started"):
        device.devices().visible()
    assert cuda.left == 0
    fakes.use(monkeypatch, None, None)
    assert not device.devices().has_driver()


# ---- memory ----------------------------------------------------------------------------


def test_memory_leaves_out_the_drivers_own(nvml: FakeNvml) -> None:
    nvml.add(UUIDS[0], used=7 * GIB, reserved=600 << 20)
    memory = device.device_memory(0)
    assert memory == device.DeviceMemory(140 * GIB, 133 * GIB, 7 * GIB, 600 << 20)


def test_old_nvml_counts_the_drivers_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = FakeNvml(fakes.build(tmp_path, "nvml", "NO_MEMORY_V2"))
    old.add(UUIDS[0], used=7 * GIB, reserved=600 << 20)
    fakes.use(monkeypatch, old.path)
    memory = device.device_memory(0)
    assert memory.driver_bytes is None
    assert memory.used_bytes == 7 * GIB + (600 << 20)
    assert memory.total_bytes == memory.free_bytes + memory.used_bytes  # type: ignore[operator]


def test_memory_comes_from_driver_without_nvml(
    cuda_library: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch
) -> None:
    cuda = FakeCuda(cuda_library)
    cuda.add(b"ABCDEFGHIJKLMNOP", used=3 * GIB)
    cuda.add(b"ABCDEFGHIJKLMNO2", context=False)
    fakes.use(monkeypatch, None, cuda.path)
    assert device.device_memory(0) == device.DeviceMemory(140 * GIB, 137 * GIB, 3 * GIB, None)
    assert device.device_memory(1) == device.DeviceMemory(140 * GIB, None, None, None)
    assert cuda.left == 0
    assert device.visible_slots() == {}


def test_a_lost_device_is_an_error(nvml: FakeNvml) -> None:
    nvml.add(UUIDS[0])
    nvml.fail("memory", 15)
    with pytest.raises(OSError, match=r"nvmlDeviceGetMemoryInfo.*15"):
        device.device_memory(0)


def test_a_device_that_does_not_open_is_passed_over(nvml: FakeNvml) -> None:
    nvml.add(UUIDS[0])
    nvml.add(UUIDS[1])
    nvml.fail("handle", 15, slot=0)
    assert [one.uuid for one in device.visible_devices()] == [UUIDS[1]]


# ---- absence ---------------------------------------------------------------------------


def test_no_library_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    fakes.use(monkeypatch, None)
    with pytest.raises(UnavailableError) as error:
        device.find_device()
    assert error.value.what == "an NVIDIA device"
    assert "libnothing-of-this-name" in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("what", "code"), [("init", 9), ("count", 3)])
def test_nvml_that_does_not_start_is_told(nvml: FakeNvml, what: str, code: int) -> None:
    nvml.add(UUIDS[0])
    nvml.fail(what, code)
    with pytest.raises(UnavailableError, match=r"Driver Not Loaded|Not Supported"):
        device.find_device()
    assert nvml.started == 0


def test_a_library_without_functions_is_refused(
    cuda_library: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch
) -> None:
    fakes.use(monkeypatch, cuda_library._name)
    with pytest.raises(UnavailableError, match="nvmlInit_v2"):
        device.visible_devices()


def test_a_device_must_be_chosen(nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    for uuid in UUIDS[:2]:
        nvml.add(uuid)
    with pytest.raises(ValueError, match=r"there are 2 devices.*0 .*1 "):
        device.find_device()
    assert device.find_device("cuda:1").index == 1
    with pytest.raises(ValueError, match="no device 5"):
        device.find_device(5)
    with pytest.raises(ValueError, match="not a CUDA device"):
        device.find_device("cpu")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(UnavailableError, match="CUDA_VISIBLE_DEVICES='' shows none"):
        device.find_device()


# ---- processes -------------------------------------------------------------------------


def test_processes_are_named_and_sorted(nvml: FakeNvml) -> None:
    slot = nvml.add(UUIDS[0])
    nvml.process(slot, 1, 2 * GIB)
    nvml.process(slot, os.getpid(), 5 * GIB)
    nvml.process(slot, 999_999_999, 2**64 - 1)
    first, second, third = device.device_processes(0)
    assert (first.pid, first.bytes, first.is_own) == (os.getpid(), 5 * GIB, True)
    assert first.name == Path("/proc/self/comm").read_text().strip()
    assert (second.pid, second.bytes, second.is_own) == (1, 2 * GIB, False)
    assert second.name
    assert (third.bytes, third.name) == (None, "")


def test_strangers_numbers_get_no_names(nvml: FakeNvml) -> None:
    slot = nvml.add(UUIDS[0])
    nvml.process(slot, 1, GIB)
    assert device.device_processes(0) == (device.ProcessUse(1, "", GIB, False),)


def test_a_refused_list_is_told(nvml: FakeNvml) -> None:
    nvml.add(UUIDS[0])
    nvml.fail("processes", 3)
    with pytest.raises(UnavailableError, match="list of processes: Not Supported"):
        device.device_processes(0)


def test_more_processes_than_room(nvml: FakeNvml) -> None:
    slot = nvml.add(UUIDS[0])
    for pid in range(1, 300):
        nvml.process(slot, pid, 1)
    with pytest.raises(LimitError, match="more than 256 processes"):
        device.device_processes(0)


@pytest.mark.parametrize("macro", ["NO_PROCESSES_V2", "NO_PROCESSES"])
def test_older_lists_serve_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, macro: str
) -> None:
    old = FakeNvml(fakes.build(tmp_path, "nvml", macro))
    old.process(old.add(UUIDS[0]), os.getpid(), GIB)
    fakes.use(monkeypatch, old.path)
    assert [use.bytes for use in device.device_processes(0)] == [GIB]


@pytest.mark.parametrize("macros", [(), ("NO_PROCESSES_V2",)])
@pytest.mark.parametrize("version", ["530.30.02", "535.104.05", "535.98", "575.51.03"])
def test_lists_of_cuda_12s_drivers_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, macros: tuple[str, ...]
) -> None:
    old = FakeNvml(fakes.build(tmp_path, "nvml", f"DRIVER={version}", *macros))
    slot = old.add(UUIDS[0])
    for pid in (7, 8, 9):
        old.process(slot, pid, pid * GIB)
    fakes.use(monkeypatch, old.path)
    assert device.devices().version == version
    found = {use.pid: use.bytes for use in device.device_processes(0)}
    assert found == {pid: pid * GIB for pid in (7, 8, 9)}


@pytest.mark.parametrize("version", ["535.43.02", "535.54.03", "535.86.10"])
def test_rows_of_another_length_are_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    macros = (f"DRIVER={version}", "LONG_V3")
    old = FakeNvml(fakes.build(tmp_path, "nvml", *macros))
    slot = old.add(UUIDS[0])
    for pid in (7, 8, 9):
        old.process(slot, pid, pid * GIB)
    fakes.use(monkeypatch, old.path)
    found = {use.pid: use.bytes for use in device.device_processes(0)}
    assert found == {pid: pid * GIB for pid in (7, 8, 9)}
    old.fail("processes", 3)
    with pytest.raises(UnavailableError, match="list of processes: Not Supported"):
        device.device_processes(0)
    only = FakeNvml(fakes.build(tmp_path, "nvml", *macros, "NO_PROCESSES_V2"))
    only.process(only.add(UUIDS[0]), 7, GIB)
    fakes.use(monkeypatch, only.path)
    with pytest.raises(UnavailableError, match=f"driver {version} has no list of processes"):
        device.device_processes(0)


def test_a_child_opens_its_own(nvml: FakeNvml) -> None:
    nvml.add(UUIDS[0])
    parent = device.devices()
    assert device.devices() is parent
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        fresh = device.devices() is not parent and device.device_memory(0).total_bytes == 140 * GIB
        os.write(writer, b"1" if fresh else b"0")
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reader, 1) == b"1"
    os.close(reader)
    os.close(writer)


def test_nvml_is_stopped_with_its_object(nvml: FakeNvml) -> None:
    nvml.add(UUIDS[0])
    opened = core.Devices(nvml.path, None)
    assert nvml.started == 1
    del opened
    assert nvml.started == 0
