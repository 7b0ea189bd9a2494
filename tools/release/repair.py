# SPDX-License-Identifier: Apache-2.0
"""Has auditwheel check and name a wheel: `python tools/release/repair.py PLATFORM FOLDER WHEEL`.

auditwheel's own command takes only the platforms of the machine that it runs on, though nothing in
it depends on that machine. The wheel for PLATFORM goes into FOLDER; one that needs symbols which
the platform does not have is refused.
"""

from __future__ import annotations

import sys
from unittest.mock import patch

from auditwheel.architecture import Architecture
from auditwheel.libc import Libc
from auditwheel.main import main

__all__ = ["repair"]


def repair(platform: str, folder: str, wheel: str) -> int:
    """Runs auditwheel as if on a machine of that platform; returns its exit status."""
    libc = next(one for one in Libc if platform.startswith(one.tag_prefix))
    architecture = next(one for one in Architecture if platform.endswith(f"_{one.value}"))
    words = ["auditwheel", "repair", "--plat", platform, "--only-plat", "-w", folder, wheel]
    if libc is Libc.MUSL:
        # Zig's name for the C library itself: musl's loader takes every libc.* as that one.
        words += ["--exclude", "libc.so"]
    for library in ("libc10.so", "libc10_cuda.so", "libtorch_cpu.so"):
        # What the compiled hooks need is loaded: they are for the torch that a program imported.
        words += ["--exclude", library]
    with (
        patch.object(Libc, "detect", lambda: libc),
        patch.object(Architecture, "detect", lambda bits=None: architecture),
        patch.object(sys, "argv", words),
    ):
        return main() or 0


if __name__ == "__main__":
    sys.exit(repair(*sys.argv[1:]))
