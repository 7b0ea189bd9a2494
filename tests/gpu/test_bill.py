# SPDX-License-Identifier: Apache-2.0
"""What is said at a failure on a device: who holds what piled up, the same in process and file."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest

import neutracer

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.gpu

MIB = 1 << 20


@pytest.fixture
def small() -> Iterator[None]:
    """A device of which this process may have 1 GiB more than it has."""
    # An exception that pytest caught and its frames hold each other.
    gc.collect()
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + 1024 * MIB) / total)
    yield
    torch.cuda.set_per_process_memory_fraction(1.0)


def fill(kept: list[object]) -> None:
    while True:
        kept.append(torch.empty(32 * MIB, dtype=torch.uint8, device="cuda"))


def test_a_list_is_the_leak_and_is_named(small: None, tmp_path: Path) -> None:
    history: list[object] = []
    with neutracer.oom_report(tmp_path) as watch, pytest.raises(torch.OutOfMemoryError) as caught:
        fill(history)
    (report,) = watch.reports
    assert report.snapshot is not None
    why = neutracer.explain(report.snapshot)
    assert why.verdicts[0].kind == "leak"
    assert report.verdict == why.verdicts[0].message
    assert report.verdict in "\n".join(caught.value.__notes__)
    assert sum(one.bytes for one in why.bill.terms) == why.bill.limit_bytes
    most = max(why.bill.lines, key=lambda one: one.piled_up)
    assert "history" in most.holder or "kept" in most.holder


def attempt(rows: int) -> object:
    # A variable of the frame, which a traceback keeps.
    made = []
    for _ in range(8):
        made.append(torch.empty(rows * MIB, dtype=torch.uint8, device="cuda"))
    return made


def retried() -> object:
    try:
        return attempt(200)
    except torch.OutOfMemoryError:
        return attempt(100)


def test_a_retry_inside_of_except_is_named(small: None, tmp_path: Path) -> None:
    with neutracer.oom_report(tmp_path) as watch, pytest.raises(torch.OutOfMemoryError):
        retried()
    last = watch.reports[-1]
    assert "OutOfMemoryError" in last.oom.handling
    assert "attempt that failed before" in last.verdict
