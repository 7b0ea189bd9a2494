# SPDX-License-Identifier: Apache-2.0
"""neutracer explains the GPU memory of PyTorch programs.

What holds it? Is it leaking? Is it fragmented? Why did it run out? What should I change?

Example:
    >>> import neutracer
    >>> snap = neutracer.load("tests/data/frag_default.pickle")
    >>> round(neutracer.fragmentation_report(snap)["max_fragmentation"], 2)
    0.83
"""

from neutracer.diagnose.alive import AliveReport, why_alive
from neutracer.diagnose.autograd_cycles import (
    AutogradCycle,
    AutogradCyclesReport,
    find_autograd_cycles,
)
from neutracer.diagnose.cycles import TensorCyclesReport, find_tensor_cycles, garbage_bytes
from neutracer.diagnose.fragmentation import FragmentationReport, fragmentation_report
from neutracer.diagnose.holders import (
    HoldersReport,
    NotebookHolder,
    notebook_holders,
    release_holders,
)
from neutracer.diagnose.recommend import RecommendReport, recommend
from neutracer.diagnose.what_if import Outcome, WhatIfReport, what_if
from neutracer.errors import (
    HistoryWarning,
    LimitError,
    NeutracerError,
    SettingsError,
    SnapshotError,
    TensorCycleWarning,
    UnavailableError,
)
from neutracer.heap.cycles import TensorCycle
from neutracer.heap.graph import ObjectGraph
from neutracer.live.capture import snapshot
from neutracer.live.cycle_watch import CycleWatch, warn_tensor_cycles
from neutracer.live.pressure import PressureCollection, PressureCollector, collect_on_pressure
from neutracer.pictures.mdtp import mdtp
from neutracer.pictures.plots import plot_fragmentation, plot_timeline
from neutracer.pictures.view import view
from neutracer.render.report import Finding, Report
from neutracer.trace.layout import Layout
from neutracer.trace.snapshot import Snapshot, load
from neutracer.trace.table import Frame, Table
from neutracer.trace.timeline import Churn, Holder, Moment, Timeline

__version__ = "0.1.0"

__all__ = [
    "AliveReport",
    "AutogradCycle",
    "AutogradCyclesReport",
    "Churn",
    "CycleWatch",
    "Finding",
    "FragmentationReport",
    "Frame",
    "HistoryWarning",
    "Holder",
    "HoldersReport",
    "Layout",
    "LimitError",
    "Moment",
    "NeutracerError",
    "NotebookHolder",
    "ObjectGraph",
    "Outcome",
    "PressureCollection",
    "PressureCollector",
    "RecommendReport",
    "Report",
    "SettingsError",
    "Snapshot",
    "SnapshotError",
    "Table",
    "TensorCycle",
    "TensorCycleWarning",
    "TensorCyclesReport",
    "Timeline",
    "UnavailableError",
    "WhatIfReport",
    "collect_on_pressure",
    "find_autograd_cycles",
    "find_tensor_cycles",
    "fragmentation_report",
    "garbage_bytes",
    "load",
    "mdtp",
    "notebook_holders",
    "plot_fragmentation",
    "plot_timeline",
    "recommend",
    "release_holders",
    "snapshot",
    "view",
    "warn_tensor_cycles",
    "what_if",
    "why_alive",
]
