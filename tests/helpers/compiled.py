# SPDX-License-Identifier: Apache-2.0
"""What only a build with NEUTRACER_SELFTEST=1 has: the C cases, and made-up sources."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

try:
    #: `neutracer._selftest`; None where it was not built.
    selftest: Any = importlib.import_module("neutracer._selftest")
except ModuleNotFoundError:
    selftest = None

needs_selftest = pytest.mark.skipif(
    selftest is None, reason="built without NEUTRACER_SELFTEST=1, so without neutracer._selftest"
)
