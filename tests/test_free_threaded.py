# SPDX-License-Identifier: Apache-2.0
"""What works on a free-threaded build: everything but the view of the collector's lists."""

from __future__ import annotations

import sysconfig
from pathlib import Path

import pytest

import neutracer
from neutracer.errors import UnavailableError

pytestmark = pytest.mark.skipif(
    not sysconfig.get_config_var("Py_GIL_DISABLED"), reason="needs a free-threaded build"
)

SNAPSHOT = Path(__file__).parent / "data" / "frag_default.pickle"


def test_snapshots_are_read_and_replayed_there() -> None:
    snapshot = neutracer.load(SNAPSHOT)

    assert "680 MiB" in str(neutracer.what_if(snapshot, "expandable_segments:True"))


def test_the_refusal_says_what_still_works() -> None:
    with pytest.raises(UnavailableError, match=r"free-threaded build keeps none.*are read, repl"):
        neutracer.why_alive([])
