# SPDX-License-Identifier: Apache-2.0
"""Attribution with CUPTI of other releases of CUDA than torch's own.

NEUTRACER_CUPTI_LIBRARIES names the files, with colons between them.
"""

import os

import pytest
from gpu.scripts import run

from neutracer.monitor.device_report import UNNAMED

torch = pytest.importorskip("torch")

LIBRARIES = [path for path in os.environ.get("NEUTRACER_CUPTI_LIBRARIES", "").split(":") if path]

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.skipif(not LIBRARIES, reason="needs NEUTRACER_CUPTI_LIBRARIES"),
]

MIB = 1 << 20
#: Since CUDA 12.6 a record names who asked.
FIRST_WITH_SOURCE = 24


@pytest.mark.parametrize("library", LIBRARIES)
def test_records_of_a_release_are_read(library):
    out = run(
        """
        from neutracer.monitor import device_report as attribution
        attribution.candidates = lambda: iter([(os.environ["CUPTI"], False)])
        with neutracer.attribute_device_memory() as handle:
            held = [torch.zeros(MIB, dtype=torch.uint8, device="cuda") for _ in range(64)]
            plain = cudart()
            pointers = [ctypes.c_void_p() for _ in range(3000)]
            for pointer in pointers:
                assert plain.cudaMalloc(ctypes.byref(pointer), MIB) == 0
            out["both"] = table(handle)
            for pointer in pointers:
                assert plain.cudaFree(pointer) == 0
            out["torch"] = table(handle)
            out["reserved"] = torch.cuda.memory_reserved()
        out["facts"] = handle.facts
        """,
        CUPTI=library,
    )
    print(f"\\n{library}: {out}")
    has_sources = out["facts"]["version"] >= FIRST_WITH_SOURCE
    assert out["facts"]["has_sources"] is has_sources
    assert out["facts"]["dropped"] == 0
    assert out["facts"]["records"] >= 6000
    assert out["both"]["PyTorch"] == out["torch"]["PyTorch"] == out["reserved"]
    gone = {name: nbytes - out["torch"][name] for name, nbytes in out["both"].items()}
    assert sum(gone.values()) == 3000 * MIB
    (name,) = [name for name, nbytes in gone.items() if nbytes == 3000 * MIB]
    assert (name != UNNAMED) is has_sources
