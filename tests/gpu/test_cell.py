# SPDX-License-Identifier: Apache-2.0
"""A recorded cell on a device: its peak and what it left are PyTorch's own figures."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from neutracer.notebook import CellRecording, CellReport, cell_report

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.gpu

MIB = 1 << 20


def recorded(cell: Callable[[], object]) -> tuple[CellReport, int, int, object]:
    """The report; the peak above the start and the growth as PyTorch has them; the value."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    recording = CellRecording()
    recording.begin()
    try:
        kept = cell()
    finally:
        recording.end()
    peak = torch.cuda.max_memory_allocated() - before
    return cell_report(recording, 0), peak, torch.cuda.memory_allocated() - before, kept


def training() -> object:
    model = torch.nn.Sequential(*[torch.nn.Linear(512, 512) for _ in range(4)]).cuda()
    for _ in range(3):
        model(torch.randn(64, 512, device="cuda")).sum().backward()
    return model


def check(report: CellReport, peak: int, grown: int) -> None:
    (device,) = report.devices
    assert device.peak_bytes - device.start_bytes == peak
    assert device.end_bytes - device.start_bytes == grown
    assert device.left_bytes == grown
    assert sum(place.bytes for place in device.left) == grown


def test_cell_has_the_figures_of_pytorch() -> None:
    before = torch.zeros(3 * MIB, device="cuda")
    report, peak, grown, _ = recorded(training)
    check(report, peak, grown)
    assert report.devices[0].start_bytes >= before.numel() * 4
    assert not torch._C._cuda_isHistoryEnabled()
    # What the first one recorded is not in the second.
    report, peak, grown, _ = recorded(lambda: torch.zeros(MIB, device="cuda"))
    check(report, peak, grown)
    assert report.devices[0].allocations == 1
    assert report.devices[0].left[0].filename == "test_cell.py"


def test_cell_in_a_running_history_begins_at_itself() -> None:
    torch.cuda.memory._record_memory_history(max_entries=10_000)
    try:
        kept = [torch.zeros(MIB, device="cuda") for _ in range(5)]
        report, peak, grown, value = recorded(lambda: torch.zeros(2 * MIB, device="cuda"))
        check(report, peak, grown)
        assert report.devices[0].allocations == 1
        assert torch._C._cuda_isHistoryEnabled()
        del kept, value
    finally:
        torch.cuda.memory._record_memory_history(enabled=None)


def test_cell_that_frees_shows_no_peak() -> None:
    kept = [torch.zeros(MIB, device="cuda")]
    report, peak, grown, _ = recorded(kept.clear)
    assert (peak, grown) == (0, -4 * MIB)
    assert report.devices == ()
