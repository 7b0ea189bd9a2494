# SPDX-License-Identifier: Apache-2.0
"""Device memory by library, with a stand-in for CUPTI that makes the records."""

from __future__ import annotations

import ctypes
import gc
import os
import random
import shutil
import subprocess
import sys
import threading
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fake_device as fakes
import pytest
from fake_device import FakeCupti

import neutracer
from neutracer import UnavailableError
from neutracer.monitor import device_report as attribution
from neutracer.monitor import device_report as cupti_library
from neutracer.monitor import device_report as profiler_watch
from neutracer.monitor.device_report import MODULE_DATA, OUTSIDE, UNNAMED

MIB = 1 << 20
TORCH = "/opt/torch/lib/libc10_cuda.so"
NCCL = "/opt/lib/libnccl.so.2"


# What cuptiGetVersion says: CUDA 13.0, and 12.9, 12.6, 12.5, 11.5.
THIRTEEN, LAST_OF_12, FIRST_WITH_SOURCE, LAST_WITHOUT, OLDEST = 130001, 28, 24, 23, 16


@pytest.fixture(scope="module", params=[THIRTEEN, LAST_OF_12])
def library(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> ctypes.CDLL:
    folder = tmp_path_factory.mktemp("cupti")
    return fakes.build(folder, "cupti", f"VERSION={request.param}")


@pytest.fixture
def cupti(library: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCupti]:
    yield from prepared(library, monkeypatch)


def prepared(library: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCupti]:
    made = FakeCupti(library)
    monkeypatch.setattr(attribution, "candidates", lambda: iter([(made.path, False)]))
    monkeypatch.setattr(attribution, "_has_driver", lambda: True)
    yield made
    current = attribution.current_attribution()
    if current is not None:
        current.remove()


@pytest.fixture
def segments(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """A torch whose allocator has what the test puts into the list."""
    held: list[dict[str, Any]] = []
    fake = types.SimpleNamespace(
        _C=types.SimpleNamespace(_cuda_memorySnapshot=lambda _: {"segments": list(held)}),
        cuda=types.SimpleNamespace(is_initialized=lambda: True),
    )
    monkeypatch.setitem(sys.modules, "torch", fake)  # type: ignore[arg-type]
    return held


def segment(address: int, size: int, expandable: bool = False) -> dict[str, Any]:
    return {"device": 0, "address": address, "total_size": size, "is_expandable": expandable}


def table(handle: attribution.DeviceAttribution) -> dict[str, tuple[int, int, int]]:
    return {use.library: (use.bytes, use.peak_bytes, use.count) for use in handle.by_library()}


# ---- what is counted -------------------------------------------------------------------


def test_bytes_are_told_by_library(cupti: FakeCupti, segments: list[dict[str, Any]]) -> None:
    with neutracer.attribute_device_memory() as handle:
        assert cupti.is_on
        assert cupti.has_source
        cupti.allocate(0x1000, 300 * MIB, TORCH)
        cupti.allocate(0x2000, 42 * MIB, TORCH)
        for n in range(194):
            cupti.allocate(0x10000 + n, 2 * MIB, NCCL)
        cupti.allocate(0x3000, 64 * MIB, "/opt/lib/libcublas.so.13")
        cupti.allocate(0x4000, 8, "/opt/lib/libmine.so.1.2")
        segments += [segment(0x1000, 300 * MIB), segment(0x2000, 42 * MIB)]
        assert table(handle) == {
            "NCCL": (388 * MIB, 388 * MIB, 194),
            "PyTorch": (342 * MIB, 342 * MIB, 2),
            "cuBLAS": (64 * MIB, 64 * MIB, 1),
            "libmine.so": (8, 8, 1),
        }
        cupti.release(0x1000)
        cupti.allocate(0x5000, MIB, TORCH)
        segments[0] = segment(0x5000, MIB)
    assert table(handle)["PyTorch"] == (43 * MIB, 342 * MIB, 2)
    assert not cupti.is_on
    assert not cupti.has_source
    assert handle.by_library()[0].files == (NCCL,)
    assert handle.facts["records"] == 200
    assert handle.facts["dropped"] == 0


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/x/site-packages/torch/lib/libc10_cuda.so", "PyTorch"),
        ("/x/site-packages/torch/lib/libtorch_cuda.so", "PyTorch"),
        ("/x/site-packages/nvidia/nccl/lib/libnccl.so.2", "NCCL"),
        ("/x/nvidia/cublas/lib/libcublasLt.so.12", "cuBLAS"),
        ("/x/nvidia/cudnn/lib/libcudnn_graph.so.9", "cuDNN"),
        ("/x/cupy_backends/cuda/api/runtime.cpython-312-x86_64-linux-gnu.so", "CuPy"),
        ("/x/.triton/cache/AB/__triton_launcher.cpython-312.so", "Triton"),
        ("/opt/lib/libfoo.so.3.2", "libfoo.so"),
        ("/opt/bin/program", "program"),
    ],
)
def test_files_belong_to_libraries(cupti: FakeCupti, path: str, name: str) -> None:
    assert cupti_library.library_of(path) == name
    with neutracer.attribute_device_memory() as handle:
        cupti.allocate(0x1000, 1, path)
        (use,) = [use for use in handle.by_library() if use.bytes]
        assert use.library.removesuffix(" outside its allocator") == name


def test_only_device_memory_is_counted(cupti: FakeCupti) -> None:
    with neutracer.attribute_device_memory() as handle:
        cupti.allocate(0x1000, 5, NCCL, kind=cupti.PINNED)
        cupti.allocate(0x2000, 6, NCCL, kind=cupti.MANAGED)
        cupti.allocate(0x3000, 7, None, kind=cupti.STATIC)
        cupti.allocate(0x4000, 8, None)
        assert table(handle) == {UNNAMED: (8, 8, 1), MODULE_DATA: (7, 7, 1)}


def test_devices_are_told_apart(cupti: FakeCupti) -> None:
    with neutracer.attribute_device_memory() as handle:
        cupti.allocate(0x1000, 5, NCCL, device=0)
        cupti.allocate(0x2000, 6, NCCL, device=1)
        assert [(use.device, use.bytes) for use in handle.by_library()] == [(0, 5), (1, 6)]
        assert [use.bytes for use in handle.by_library(1)] == [6]


def test_records_out_of_order_are_sorted(cupti: FakeCupti) -> None:
    with neutracer.attribute_device_memory() as handle:
        cupti.release(0x1000, time=20)
        cupti.allocate(0x1000, 7, NCCL, time=30)
        cupti.allocate(0x1000, 5, NCCL, time=10)
        assert table(handle) == {"NCCL": (7, 7, 1)}
        # The next owner of an address may have begun to ask before it was given back.
        cupti.allocate(0x1000, 9, "/x/libcublas.so", time=40)
        cupti.release(0x1000, time=50)
        assert table(handle) == {"NCCL": (0, 7, 0), "cuBLAS": (9, 9, 1)}


def test_random_programs_are_counted_exactly(cupti: FakeCupti) -> None:
    chance = random.Random(5)
    paths = ["/x/libcudnn.so.9", NCCL, "/x/libcublas.so.13", "/x/libown.so"]
    live: dict[int, tuple[int, str]] = {}
    sums: dict[str, int] = dict.fromkeys(map(cupti_library.library_of, paths), 0)
    peaks = dict(sums)
    with neutracer.attribute_device_memory() as handle:
        for _ in range(20_000):  # several buffers
            address = chance.randrange(2000) * 512
            if address in live:
                nbytes, path = live.pop(address)
                sums[cupti_library.library_of(path)] -= nbytes
                cupti.release(address)
            else:
                live[address] = nbytes, path = chance.randrange(1, 1 << 30), chance.choice(paths)
                name = cupti_library.library_of(path)
                sums[name] += nbytes
                peaks[name] = max(peaks[name], sums[name])
                cupti.allocate(address, nbytes, path)
        found = {use.library: (use.bytes, use.peak_bytes) for use in handle.by_library()}
        assert found == {name: (sums[name], peaks[name]) for name in sums}
        assert handle.facts["dropped"] == handle.facts["unmatched"] == 0


def test_threads_may_allocate_at_once(cupti: FakeCupti) -> None:
    def work(number: int) -> None:
        for n in range(2000):
            cupti.allocate((number << 32) + n, 1, NCCL)

    with neutracer.attribute_device_memory() as handle:
        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            while thread.is_alive():
                handle.by_library()
                # Without it this thread would take the GIL back from those that allocate.
                thread.join(0.001)
        assert table(handle)["NCCL"][2] == 8000


# ---- what was there before -------------------------------------------------------------


def test_pytorch_is_known_from_before(cupti: FakeCupti, segments: list[dict[str, Any]]) -> None:
    segments += [segment(0x1000, 20 * MIB), segment(0x2000, 2 * MIB)]
    with neutracer.attribute_device_memory() as handle:
        assert table(handle) == {"PyTorch": (22 * MIB, 22 * MIB, 2)}
        cupti.release(0x1000)
        cupti.allocate(0x1000, 40 * MIB, TORCH)
        cupti.release(0x7000)  # somebody's from before
        segments[0] = segment(0x1000, 40 * MIB)
        assert table(handle) == {"PyTorch": (42 * MIB, 42 * MIB, 2)}
        assert handle.facts["unmatched"] == 1


def test_growing_segments_count_as_pytorchs(
    cupti: FakeCupti, segments: list[dict[str, Any]]
) -> None:
    segments.append(segment(0x100000, 40 * MIB, expandable=True))
    with neutracer.attribute_device_memory() as handle:
        cupti.allocate(0x100000 + 40 * MIB, 20 * MIB, None)
        cupti.allocate(0x9000, 5, None)
        segments[0] = segment(0x100000, 60 * MIB, expandable=True)
        found = table(handle)
        assert found["PyTorch"][0] == 60 * MIB
        assert found[UNNAMED][0] == 5


def test_pytorchs_addresses_are_pytorchs(cupti: FakeCupti, segments: list[dict[str, Any]]) -> None:
    with neutracer.attribute_device_memory() as handle:
        # A call that passes through several libraries is told as one or another's.
        cupti.allocate(0x1000, 20, "/opt/torch/lib/libtorch_cuda.so")
        cupti.allocate(0x2000, 30, "/opt/lib/libcublas.so.13")
        cupti.allocate(0x3000, 40, "/opt/torch/lib/libtorch_cuda.so")
        cupti.allocate(0x100000, 50, "/opt/lib/libcublas.so.13")
        segments += [segment(0x1000, 20), segment(0x2000, 30), segment(0x100000, 60, True)]
        held = {name: row[0] for name, row in table(handle).items()}
        assert held == {"PyTorch": 110, OUTSIDE: 40, "cuBLAS": 0}


# ---- beside others ---------------------------------------------------------------------


def test_one_at_a_time(cupti: FakeCupti) -> None:
    with neutracer.attribute_device_memory():
        with pytest.raises(UnavailableError, match="second attribution"):
            neutracer.attribute_device_memory()
        assert cupti.is_on
    with neutracer.attribute_device_memory() as again:
        cupti.allocate(0x1000, 3, NCCL)
        assert table(again) == {"NCCL": (3, 3, 1)}
    again.remove()
    assert again.reason == "it was removed"


def test_active_profiler_is_left_alone(cupti: FakeCupti, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
        with pytest.raises(UnavailableError, match="end the profiler first"):
            neutracer.attribute_device_memory()
        assert not cupti.is_on
    with neutracer.attribute_device_memory():
        assert cupti.is_on


def test_profiler_of_the_host_disturbs_nothing(cupti: FakeCupti) -> None:
    torch = pytest.importorskip("torch")
    with neutracer.attribute_device_memory() as handle:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
            torch.zeros(4) + 1
        assert handle.is_on
    assert any("add" in event.key for event in profiler.key_averages())


def test_starting_profiler_finds_it_off(cupti: FakeCupti, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    from torch.autograd import profiler as module
    from torch.profiler import ProfilerActivity

    seen: list[bool] = []
    original = module._prepare_profiler
    monkeypatch.setattr(
        module, "_prepare_profiler", lambda *words, **more: seen.append(cupti.is_on)
    )
    stand_in = module._prepare_profiler
    handle = neutracer.attribute_device_memory()
    cupti.allocate(0x1000, 9, NCCL)
    assert module._prepare_profiler is not stand_in
    module._prepare_profiler(None, {ProfilerActivity.CPU}, activity_filter=None)
    module._prepare_profiler(None, {ProfilerActivity.CPU, ProfilerActivity.CUDA})
    assert seen == [True, False]
    assert not handle.is_on
    assert "profiler" in handle.reason
    assert table(handle) == {"NCCL": (9, 9, 1)}
    assert module._prepare_profiler is stand_in
    assert original is not stand_in


def test_others_patch_is_not_undone(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    from torch.autograd import profiler as module

    original = module._prepare_profiler
    calls: list[str] = []
    watch = profiler_watch.ProfilerWatch(lambda: calls.append("told"))
    ours = module._prepare_profiler
    monkeypatch.setattr(module, "_prepare_profiler", lambda *words: ours(*words))
    theirs = module._prepare_profiler
    watch.remove()
    assert module._prepare_profiler is theirs
    monkeypatch.setattr(module, "_prepare_profiler", original)
    assert calls == []


def test_refusal_is_in_cuptis_words(library: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch) -> None:
    made = FakeCupti(library, code=39)
    monkeypatch.setattr(attribution, "candidates", lambda: iter([(made.path, False)]))
    monkeypatch.setattr(attribution, "_has_driver", lambda: True)
    monkeypatch.setattr(attribution, "_has_device", lambda: True)
    with pytest.raises(UnavailableError, match=r"MULTIPLE_SUBSCRIBERS.*39"):
        neutracer.attribute_device_memory()
    current = attribution.current_attribution()
    assert current is None or not current.is_on
    FakeCupti(library)
    neutracer.attribute_device_memory().remove()


def test_without_a_device_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    fakes.use(monkeypatch, None)
    monkeypatch.setattr(attribution, "candidates", lambda: iter([("libnot-here.so.1", False)]))
    with pytest.raises(UnavailableError) as error:
        neutracer.attribute_device_memory()
    assert error.value.what == "an NVIDIA device"
    assert "\n" not in str(error.value)


def test_without_the_driver_cupti_is_not_touched(
    library: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in prepared(library, monkeypatch):
        monkeypatch.setattr(attribution, "_has_driver", lambda: False)
        monkeypatch.setattr(attribution, "candidates", lambda: pytest.fail("CUPTI was looked for"))
        for has_device, what in ((True, "the CUDA driver"), (False, "an NVIDIA device")):
            monkeypatch.setattr(attribution, "_has_device", lambda answer=has_device: answer)
            with pytest.raises(UnavailableError, match=f"^{what} is not available"):
                neutracer.attribute_device_memory()


@pytest.mark.parametrize(
    ("cuda", "package"),
    [
        ("13.0", "nvidia-cuda-cupti"),
        ("12.8", "nvidia-cuda-cupti-cu12"),
        (None, "nvidia-cuda-cupti"),
    ],
)
def test_missing_cupti_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, cuda: str | None, package: str
) -> None:
    monkeypatch.setattr(attribution, "candidates", lambda: iter([("libnot-here.so.1", False)]))
    monkeypatch.setattr(attribution, "_has_driver", lambda: True)
    monkeypatch.setattr(attribution, "_has_device", lambda: True)
    torch_for(monkeypatch, cuda)
    with pytest.raises(UnavailableError, match=f"pip install {package}'"):
        neutracer.attribute_device_memory()


# ---- releases of CUDA ------------------------------------------------------------------


def torch_for(monkeypatch: pytest.MonkeyPatch, cuda: str | None) -> None:
    """A torch that was built for this release of CUDA."""
    fake = types.SimpleNamespace(version=types.SimpleNamespace(cuda=cuda))
    monkeypatch.setitem(sys.modules, "torch", fake)  # type: ignore[arg-type]


def test_new_records_name_their_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for version in (FIRST_WITH_SOURCE, THIRTEEN):
        made = fakes.build(tmp_path, "cupti", f"VERSION={version}")
        for cupti in prepared(made, monkeypatch):
            with neutracer.attribute_device_memory() as handle:
                cupti.allocate(0x1000, 5, NCCL)
                assert table(handle) == {"NCCL": (5, 5, 1)}
            assert handle.facts["has_sources"] is True
            assert handle.facts["version"] == version


def test_old_records_name_no_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for version in (OLDEST, LAST_WITHOUT):
        made = fakes.build(tmp_path, "cupti", f"VERSION={version}")
        for cupti in prepared(made, monkeypatch):
            with neutracer.attribute_device_memory() as handle:
                for n in range(3000):  # several buffers
                    cupti.allocate(0x1000 + n, 2, NCCL)
                assert table(handle) == {UNNAMED: (6000, 6000, 3000)}
            assert handle.facts["has_sources"] is False
            assert handle.facts["version"] == version


@pytest.mark.parametrize("version", [14, 140000])
def test_unknown_cupti_is_refused_by_its_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    made = fakes.build(tmp_path, "cupti", f"VERSION={version}")
    known = fakes.build(tmp_path, "cupti", f"VERSION={LAST_OF_12}")
    for cupti in prepared(made, monkeypatch):
        monkeypatch.setattr(attribution, "_has_device", lambda: True)
        with pytest.raises(UnavailableError, match=f"CUPTI has version {version}, and") as error:
            neutracer.attribute_device_memory()
        assert "\n" not in str(error.value)
        assert not cupti.is_on
    for second in prepared(known, monkeypatch):
        both = [(made._name, False), (second.path, False)]
        monkeypatch.setattr(attribution, "candidates", both.copy)
        with neutracer.attribute_device_memory() as handle:
            handle.by_library()
        assert handle.facts["version"] == LAST_OF_12


@pytest.mark.parametrize(
    ("version", "nbytes"), [(THIRTEEN, 136), (THIRTEEN, 120), (LAST_WITHOUT, 128)]
)
def test_records_of_another_length_are_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: int, nbytes: int
) -> None:
    made = fakes.build(tmp_path, "cupti", f"VERSION={version}", f"RECORD_SIZE={nbytes}")
    for cupti in prepared(made, monkeypatch):
        handle = neutracer.attribute_device_memory()
        for n in range(3):
            cupti.allocate(0x1000 + n, 5, NCCL)
        with pytest.raises(OSError, match=f"CUPTI {version} made a memory record of {nbytes} "):
            handle.by_library()
        handle.remove()
        assert not handle.is_on
        assert not cupti.is_on
        assert f"CUPTI {version} made" in handle.reason
        assert handle.by_library() == ()


def libraries_of(folder: Path, *names: str) -> list[str]:
    for name in names:
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    return [str(folder / name) for name in names]


def test_cupti_is_found_in_both_layouts_of_pip(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    new, old = libraries_of(
        tmp_path, "nvidia/cu13/lib/libcupti.so.13", "nvidia/cuda_cupti/lib/libcupti.so.12"
    )
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.setattr(cupti_library, "_loaded", list)
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "none"))
    monkeypatch.setenv("CUDA_PATH", str(tmp_path / "none"))
    places = {"13.0": [new], "12.8": [old], None: [new, old]}
    for cuda, expected in places.items():
        torch_for(monkeypatch, cuda)
        found = [name for name, _ in cupti_library.candidates()]
        assert [name for name in found if name.startswith(str(tmp_path))] == expected
        numbers = ["12", "13"] if cuda == "12.8" else ["13", "12"]
        assert found[-3:] == [*(f"libcupti.so.{number}" for number in numbers), "libcupti.so"]


@pytest.mark.parametrize("names", [("libcupti.so.12",), ("libcupti.so", "libcupti.so.12")])
def test_cupti_of_a_toolkit_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...]
) -> None:
    libraries_of(tmp_path / "extras/CUPTI/lib64", *names, "libcupti.so.2024.3.2")
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.setattr(cupti_library, "_loaded", list)
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    monkeypatch.delenv("CUDA_PATH", raising=False)
    torch_for(monkeypatch, "12.8")
    found = [name for name, _ in cupti_library.candidates() if name.startswith(str(tmp_path))]
    assert found == [str(tmp_path / "extras/CUPTI/lib64/libcupti.so.12")]


@pytest.mark.parametrize("name", ["libcupti.so.12", "libcupti.so.13", "libcupti.so.2024.3.2"])
def test_loaded_cupti_comes_first(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "a place"
    folder.mkdir()
    made = fakes.build(tmp_path, "cupti")
    copy = str(shutil.copy(made._name, folder / name))
    lines = "import ctypes, sys; from neutracer.monitor.device_report import candidates;"
    lines += "ctypes.CDLL(sys.argv[1]); print(next(candidates()) == (sys.argv[1], True))"
    command = [sys.executable, "-c", lines, copy]
    assert subprocess.run(command, capture_output=True, text=True).stdout == "True\n"


# ---- ends ------------------------------------------------------------------------------


def test_dropped_handle_stays_on(cupti: FakeCupti) -> None:
    neutracer.attribute_device_memory()
    gc.collect()
    assert cupti.is_on
    current = attribution.current_attribution()
    assert current is not None
    current.remove()
    assert not cupti.is_on


def test_a_child_leaves_cupti_alone(cupti: FakeCupti) -> None:
    handle = neutracer.attribute_device_memory()
    cupti.allocate(0x1000, 9, NCCL)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        is_quiet = not handle.is_on and attribution.current_attribution() is None
        handle.remove()
        os.write(writer, b"1" if is_quiet and cupti.is_on else b"0")
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reader, 1) == b"1"
    os.close(reader)
    os.close(writer)
    assert cupti.is_on
    assert table(handle) == {"NCCL": (9, 9, 1)}


def test_freed_device_memory_in_finalizers_is_safe(cupti: FakeCupti) -> None:
    class Tensor:
        """Releases device memory wherever the collector happens to run."""

        def __init__(self, address: int) -> None:
            self.me = self
            self.address = address

        def __del__(self) -> None:
            cupti.release(self.address)

    thresholds = gc.get_threshold()
    gc.set_threshold(10)
    try:
        with neutracer.attribute_device_memory() as handle:
            for n in range(500):
                cupti.allocate(n, 1, NCCL)
                Tensor(n)
                if n % 10 == 0:
                    handle.by_library()
            gc.collect()
            assert table(handle)["NCCL"][0] == 0
    finally:
        gc.set_threshold(*thresholds)
