# SPDX-License-Identifier: Apache-2.0
"""device_report: who holds a device's memory, on devices that a test makes up."""

from __future__ import annotations

import copy
import ctypes
import json
import os
import pickle
import sys
import types
from collections.abc import Iterator

import fake_device as fakes
import pytest
from fake_device import GIB, FakeCuda, FakeCupti, FakeNvml

import neutracer
from neutracer import UnavailableError
from neutracer.monitor import device_report as attribution

UUID = "GPU-41424344-4546-4748-494a-4b4c4d4e4f50"


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ctypes.CDLL]:
    folder = tmp_path_factory.mktemp("fakes")
    return {name: fakes.build(folder, name) for name in ("nvml", "cuda", "cupti")}


@pytest.fixture
def nvml(libraries: dict[str, ctypes.CDLL], monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    made = FakeNvml(libraries["nvml"])
    fakes.use(monkeypatch, made.path)
    return made


@pytest.fixture
def cupti(
    libraries: dict[str, ctypes.CDLL], monkeypatch: pytest.MonkeyPatch
) -> Iterator[FakeCupti]:
    made = FakeCupti(libraries["cupti"])
    monkeypatch.setattr(attribution, "candidates", lambda: iter([(made.path, False)]))
    monkeypatch.setattr(attribution, "_has_driver", lambda: True)
    yield made
    current = attribution.current_attribution()
    if current is not None:
        current.remove()


def torch_with(monkeypatch: pytest.MonkeyPatch, reserved: int, allocated: int) -> None:
    stats = {
        "reserved_bytes.all.current": reserved,
        "allocated_bytes.all.current": allocated,
    }
    segment = {"device": 0, "address": 0x1000, "total_size": reserved, "is_expandable": False}
    fake = types.SimpleNamespace(
        cuda=types.SimpleNamespace(is_initialized=lambda: True, memory_stats=lambda _: stats),
        _C=types.SimpleNamespace(_cuda_memorySnapshot=lambda _: {"segments": [segment]}),
    )
    monkeypatch.setitem(sys.modules, "torch", fake)  # type: ignore[arg-type]


def finding(report: neutracer.reports.DeviceReport, kind: str) -> neutracer.reports.Finding:
    (found,) = [one for one in report.findings if one.kind == kind]
    return found


def test_an_ordinary_device_adds_up(nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    slot = nvml.add(UUID, used=10 * GIB)
    nvml.process(slot, os.getpid(), 7 * GIB)
    nvml.process(slot, 1, 3 * GIB)
    torch_with(monkeypatch, 6 * GIB, 4 * GIB)
    report = neutracer.device_report()
    assert (report.total_bytes, report.free_bytes) == (140 * GIB, 130 * GIB)
    assert (report.torch_bytes, report.torch_allocated_bytes) == (6 * GIB, 4 * GIB)
    assert (report.process_bytes, report.other_bytes) == (7 * GIB, 3 * GIB)
    assert report.unattributed_bytes == GIB
    assert [use.is_own for use in report.by_process] == [True, False]
    assert report.by_library == ()
    assert report.driver == "580.01"
    others = finding(report, "other_processes")
    assert others.bytes == 3 * GIB
    assert "1 other process holds 3 GiB" in others.message.replace("3,072 MiB", "3 GiB")
    assert finding(report, "non_torch").bytes == GIB
    assert "attribute_device_memory" in str(finding(report, "non_torch").advice[0])


def test_libraries_are_named_while_attributed(
    nvml: FakeNvml, cupti: FakeCupti, monkeypatch: pytest.MonkeyPatch
) -> None:
    slot = nvml.add(UUID, used=10 * GIB)
    nvml.process(slot, os.getpid(), 10 * GIB)
    torch_with(monkeypatch, 6 * GIB, 4 * GIB)
    with neutracer.attribute_device_memory():
        cupti.allocate(0x2000, 2 * GIB, "/x/cupy/cuda/memory.so")
        cupti.allocate(0x3000, GIB, "/x/libnccl.so.2")
        report = neutracer.device_report()
    uses = {use.library: use.bytes for use in report.by_library}
    assert uses == {"PyTorch": 6 * GIB, "CuPy": 2 * GIB, "NCCL": GIB}
    assert report.unattributed_bytes == GIB
    assert report.attribution == "on"
    evidence = " ".join(map(str, finding(report, "non_torch").evidence))
    assert "CuPy's" in evidence
    assert "NCCL's" in evidence
    assert "CuPy" in str(report)
    later = neutracer.device_report()
    assert later.by_library == ()
    assert "removed" in later.attribution


def test_the_report_is_plain_json(nvml: FakeNvml, cupti: FakeCupti) -> None:
    nvml.process(nvml.add(UUID), os.getpid(), GIB)
    with neutracer.attribute_device_memory():
        cupti.allocate(0x2000, 5, "/x/libnccl.so.2")
        plain = json.loads(json.dumps(neutracer.device_report().to_dict()))
    assert plain["schema"] == "neutracer.device/1"
    assert plain["total_bytes"] - plain["free_bytes"] == plain["used_bytes"]
    assert plain["by_library"][0]["library"] == "NCCL"
    assert plain["by_process"][0]["pid"] == os.getpid()
    assert {"torch_bytes", "unattributed_bytes", "driver_bytes", "findings"} <= plain.keys()


def test_a_copied_report_says_the_same(nvml: FakeNvml) -> None:
    nvml.process(nvml.add(UUID, used=10 * GIB), 1, 3 * GIB)
    report = neutracer.device_report()
    there = [pickle.loads(pickle.dumps(report, protocol)) for protocol in range(2, 6)]
    for each in (*there, copy.deepcopy(report)):
        assert each == report
        assert str(each) == str(report)
        assert each.to_dict() == report.to_dict()


def test_a_report_is_one_screen(nvml: FakeNvml, cupti: FakeCupti) -> None:
    slot = nvml.add(UUID, used=139 * GIB)
    for pid in range(100, 140):
        nvml.process(slot, pid, 3 * GIB)
    nvml.process(slot, os.getpid(), 3 * GIB)
    with neutracer.attribute_device_memory():
        for n in range(30):
            cupti.allocate(n, GIB, f"/x/libthing{n}.so")
        report = neutracer.device_report()
    lines = str(report).splitlines()
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 100
    assert finding(report, "other_processes").severity == "serious"
    assert finding(report, "device_full").bytes == GIB
    assert "other libraries" in str(report)
    assert "<table" in report._repr_html_()


def test_an_empty_list_is_no_claim(nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    nvml.add(UUID, used=10 * GIB)
    torch_with(monkeypatch, 6 * GIB, 4 * GIB)
    report = neutracer.device_report()
    assert report.process_bytes is None
    assert report.other_bytes is None
    assert report.unattributed_bytes == 4 * GIB
    assert "container" in report.process_list
    assert finding(report, "non_torch").bytes == 4 * GIB
    assert "device's used bytes" in finding(report, "non_torch").message
    assert finding(report, "no_process_list").severity == "info"


def test_a_hosts_numbers_are_no_claim(nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    slot = nvml.add(UUID, used=10 * GIB)
    nvml.process(slot, 999_999_999, 10 * GIB)
    torch_with(monkeypatch, 6 * GIB, 4 * GIB)
    report = neutracer.device_report()
    assert (report.process_bytes, report.other_bytes) == (None, None)
    assert [use.is_own for use in report.by_process] == [False]
    assert "does not list this process" in report.process_list
    assert not any(one.kind == "other_processes" for one in report.findings)


def test_a_borrowed_number_is_not_believed(nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    nvml.process(nvml.add(UUID, used=10 * GIB), os.getpid(), GIB)
    torch_with(monkeypatch, 6 * GIB, 4 * GIB)
    report = neutracer.device_report()
    assert report.process_bytes is None
    assert "not this container's" in report.process_list


def test_a_refused_list_says_why(nvml: FakeNvml) -> None:
    nvml.add(UUID)
    nvml.fail("processes", 3)
    report = neutracer.device_report()
    assert report.by_process == ()
    assert "Not Supported" in report.process_list
    assert report.unattributed_bytes == 10 * GIB


def test_a_process_of_unknown_size(nvml: FakeNvml) -> None:
    slot = nvml.add(UUID)
    nvml.process(slot, os.getpid(), 2**64 - 1)
    nvml.process(slot, 1, 2**64 - 1)
    report = neutracer.device_report()
    assert (report.process_bytes, report.other_bytes) == (None, None)
    assert "(this process)" in str(report)


def test_a_program_without_cuda_sees_others(nvml: FakeNvml) -> None:
    nvml.process(nvml.add(UUID, used=3 * GIB), 1, 3 * GIB)
    report = neutracer.device_report()
    assert (report.process_bytes, report.other_bytes) == (0, 3 * GIB)
    assert report.unattributed_bytes == 0


def test_the_driver_stands_in_for_nvml(
    libraries: dict[str, ctypes.CDLL], monkeypatch: pytest.MonkeyPatch
) -> None:
    cuda = FakeCuda(libraries["cuda"])
    cuda.add(b"ABCDEFGHIJKLMNOP", used=3 * GIB)
    cuda.add(b"ABCDEFGHIJKLMNO2", context=False)
    fakes.use(monkeypatch, None, cuda.path)
    report = neutracer.device_report(0)
    assert (report.used_bytes, report.unattributed_bytes) == (3 * GIB, 3 * GIB)
    assert finding(report, "no_nvml").severity == "info"
    blind = neutracer.device_report("cuda:1")
    assert (blind.free_bytes, blind.unattributed_bytes) == (None, None)
    assert "total" in str(blind)


def test_an_instance_says_so(nvml: FakeNvml) -> None:
    nvml.fail("mig", 1, nvml.add(UUID))
    assert "left as it is" in finding(neutracer.device_report(), "mig").message


def test_a_guessed_device_says_so(nvml: FakeNvml) -> None:
    nvml.add(UUID, name="NVIDIA L4")
    nvml.add(UUID[:-1] + "1", name="NVIDIA H200")
    report = neutracer.device_report(1)
    assert report.name == "NVIDIA H200"
    assert "CUDA_DEVICE_ORDER" in str(finding(report, "uncertain_device").advice[0])


def test_several_devices_must_be_chosen(nvml: FakeNvml) -> None:
    nvml.add(UUID, used=GIB)
    nvml.add(UUID[:-1] + "1", used=2 * GIB)
    with pytest.raises(ValueError, match="there are 2 devices"):
        neutracer.device_report()
    assert neutracer.device_report(1).used_bytes == 2 * GIB


def test_profilers_turn_is_told(
    nvml: FakeNvml, cupti: FakeCupti, monkeypatch: pytest.MonkeyPatch
) -> None:
    nvml.add(UUID)
    handle = neutracer.attribute_device_memory()
    handle._step_aside()
    report = neutracer.device_report()
    assert "after the profiler" in str(finding(report, "attribution_off").advice[0])


def test_no_device_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    fakes.use(monkeypatch, None)
    with pytest.raises(UnavailableError) as error:
        neutracer.device_report()
    assert str(error.value).startswith("an NVIDIA device is not available: ")
    assert "\n" not in str(error.value)
