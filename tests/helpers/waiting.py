# SPDX-License-Identifier: Apache-2.0
"""Waiting for what other threads do."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

#: Seconds until what comes at once on an idle machine counts as never.
PATIENCE = 60.0

#: By so much more processor time does what is timed take under AddressSanitizer.
SLOWER = 4.0 if "libasan" in os.environ.get("LD_PRELOAD", "") else 1.0


def wait_for(condition: Callable[[], bool], seconds: float = PATIENCE) -> bool:
    """Whether the condition held within that time."""
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.001)
    return condition()
