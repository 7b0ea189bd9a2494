# SPDX-License-Identifier: Apache-2.0
"""neutracer explains the GPU memory of PyTorch programs.

What holds it? Is it fragmented? Why did it run out? What should I change?

Example:
    >>> import neutracer
    >>> snap = neutracer.load("tests/data/frag_default.pickle")
    >>> round(neutracer.fragmentation_report(snap)["max_fragmentation"], 2)
    0.83
"""

from neutracer.diagnose.fragmentation import FragmentationReport, fragmentation_report
from neutracer.errors import (
    HistoryWarning,
    LimitError,
    NeutracerError,
    SettingsError,
    SnapshotError,
    TensorCycleWarning,
    UnavailableError,
)
from neutracer.live.capture import snapshot
from neutracer.render.report import Finding, Report
from neutracer.trace.layout import Layout
from neutracer.trace.snapshot import Snapshot, load
from neutracer.trace.table import Frame, Table
from neutracer.trace.timeline import Churn, Holder, Moment, Timeline

__version__ = "0.1.0"

__all__ = [
    "Churn",
    "Finding",
    "FragmentationReport",
    "Frame",
    "HistoryWarning",
    "Holder",
    "Layout",
    "LimitError",
    "Moment",
    "NeutracerError",
    "Report",
    "SettingsError",
    "Snapshot",
    "SnapshotError",
    "Table",
    "TensorCycleWarning",
    "Timeline",
    "UnavailableError",
    "fragmentation_report",
    "load",
    "snapshot",
]
