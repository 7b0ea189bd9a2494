# SPDX-License-Identifier: Apache-2.0
"""Where CUPTI is, and which library a file belongs to that asks for device memory.

A process must not run two copies of CUPTI. A copy that is already loaded, as torch does for
its profiler, comes before any other.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

__all__ = ["RULES", "candidates", "library_of", "package"]

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
