# SPDX-License-Identifier: Apache-2.0
"""neutracer explains the GPU memory of PyTorch programs.

What holds it? Is it leaking? Is it fragmented? Why did it run out? What should I change?

Example:
    >>> import neutracer
    >>> snap = neutracer.load("tests/data/frag_default.pickle")
    >>> round(neutracer.fragmentation_report(snap)["max_fragmentation"], 2)
    0.83
"""

# TAB shows what has no underscore: the public names.
import importlib as _importlib
import typing as _typing

if _typing.TYPE_CHECKING:
    from neutracer.diagnose.device.report import DeviceReport, device_report
    from neutracer.diagnose.fragmentation.report import FragmentationReport, fragmentation_report
    from neutracer.diagnose.holds.alive import AliveReport, why_alive
    from neutracer.diagnose.holds.autograd_cycles import (
        AutogradCycle,
        AutogradCyclesReport,
        find_autograd_cycles,
    )
    from neutracer.diagnose.holds.cycles import (
        TensorCyclesReport,
        find_tensor_cycles,
        garbage_bytes,
    )
    from neutracer.diagnose.holds.holders import (
        HoldersReport,
        NotebookHolder,
        notebook_holders,
        release_holders,
    )
    from neutracer.diagnose.leaks.diff import DiffReport, diff
    from neutracer.diagnose.leaks.trend import LeakTrendReport, leak_trend
    from neutracer.diagnose.oom.explain import explain
    from neutracer.diagnose.oom.facts import OomFacts
    from neutracer.diagnose.oom.page import OomReport
    from neutracer.diagnose.oom.parts import Verdict
    from neutracer.diagnose.oom.report import ExplainReport
    from neutracer.diagnose.oom.watch import OomWatch, oom_report, watch_oom
    from neutracer.diagnose.overview.cell import CellReport
    from neutracer.diagnose.overview.report import OverviewReport, report
    from neutracer.diagnose.ranks.parts import FirstOom, HeatMap, Odd, RankRow
    from neutracer.diagnose.ranks.ranks import ranks
    from neutracer.diagnose.ranks.report import RanksReport
    from neutracer.diagnose.ranks.watch import RanksWatch, watch_ranks
    from neutracer.diagnose.savings.report import Saving, SavingsReport, savings
    from neutracer.diagnose.settings.recommend import RecommendReport, recommend
    from neutracer.diagnose.settings.what_if import Outcome, WhatIfReport, what_if
    from neutracer.diagnose.training.training import Training, training
    from neutracer.errors import (
        HistoryWarning,
        LimitError,
        NeutracerError,
        RehearsalError,
        SettingsError,
        SnapshotError,
        TensorCycleWarning,
        UnavailableError,
    )
    from neutracer.heap.cycles import TensorCycle
    from neutracer.heap.graph import ObjectGraph
    from neutracer.notebook import load_ipython_extension as load_ipython_extension
    from neutracer.notebook import unload_ipython_extension as unload_ipython_extension
    from neutracer.pictures.mdtp.plot import mdtp
    from neutracer.pictures.page.inline import PageView
    from neutracer.pictures.page.view import view
    from neutracer.pictures.plots.plot import plot_fragmentation, plot_timeline
    from neutracer.pictures.ranks.plot import debug_server_page, plot_ranks
    from neutracer.process.cycles.pressure import (
        PressureCollection,
        PressureCollector,
        collect_on_pressure,
    )
    from neutracer.process.cycles.watch import CycleWatch, warn_tensor_cycles
    from neutracer.process.device.attribution import DeviceAttribution, attribute_device_memory
    from neutracer.process.device.sums import LibraryUse
    from neutracer.process.exporter.serve import MetricsCollector, MetricsServer, serve_metrics
    from neutracer.process.hooks.tail import live
    from neutracer.process.monitor.alerts import Alert
    from neutracer.process.monitor.memory_monitor import MemoryMonitor
    from neutracer.process.phases.phase import Phase, phase
    from neutracer.process.recording.capture import snapshot
    from neutracer.process.recording.recorder import Recording, record
    from neutracer.rehearsal.extensions import register_scratch
    from neutracer.rehearsal.largest import largest_batch
    from neutracer.rehearsal.rehearse import rehearse
    from neutracer.render.report import Finding, Report
    from neutracer.trace.layout import Layout
    from neutracer.trace.rehearsed import Rehearsed
    from neutracer.trace.snapshot import Snapshot, load
    from neutracer.trace.stacks import Frame
    from neutracer.trace.table import Table
    from neutracer.trace.timeline import Churn, Holder, Moment, Timeline

__version__ = "1.0.0"

__all__ = [
    "Alert",
    "AliveReport",
    "AutogradCycle",
    "AutogradCyclesReport",
    "CellReport",
    "Churn",
    "CycleWatch",
    "DeviceAttribution",
    "DeviceReport",
    "DiffReport",
    "ExplainReport",
    "Finding",
    "FirstOom",
    "FragmentationReport",
    "Frame",
    "HeatMap",
    "HistoryWarning",
    "Holder",
    "HoldersReport",
    "Layout",
    "LeakTrendReport",
    "LibraryUse",
    "LimitError",
    "MemoryMonitor",
    "MetricsCollector",
    "MetricsServer",
    "Moment",
    "NeutracerError",
    "NotebookHolder",
    "ObjectGraph",
    "Odd",
    "OomFacts",
    "OomReport",
    "OomWatch",
    "Outcome",
    "OverviewReport",
    "PageView",
    "Phase",
    "PressureCollection",
    "PressureCollector",
    "RankRow",
    "RanksReport",
    "RanksWatch",
    "RecommendReport",
    "Recording",
    "RehearsalError",
    "Rehearsed",
    "Report",
    "Saving",
    "SavingsReport",
    "SettingsError",
    "Snapshot",
    "SnapshotError",
    "Table",
    "TensorCycle",
    "TensorCycleWarning",
    "TensorCyclesReport",
    "Timeline",
    "Training",
    "UnavailableError",
    "Verdict",
    "WhatIfReport",
    "attribute_device_memory",
    "collect_on_pressure",
    "debug_server_page",
    "device_report",
    "diff",
    "explain",
    "find_autograd_cycles",
    "find_tensor_cycles",
    "fragmentation_report",
    "garbage_bytes",
    "largest_batch",
    "leak_trend",
    "live",
    "load",
    "mdtp",
    "notebook_holders",
    "oom_report",
    "phase",
    "plot_fragmentation",
    "plot_ranks",
    "plot_timeline",
    "ranks",
    "recommend",
    "record",
    "register_scratch",
    "rehearse",
    "release_holders",
    "report",
    "savings",
    "serve_metrics",
    "snapshot",
    "training",
    "view",
    "warn_tensor_cycles",
    "watch_oom",
    "watch_ranks",
    "what_if",
    "why_alive",
]

# What a name needs is imported when the name is first used: a command takes part of the
# package, and so does a program that only records.
_MODULES = {
    "neutracer.diagnose.holds.alive": ("AliveReport", "why_alive"),
    "neutracer.diagnose.holds.autograd_cycles": (
        "AutogradCycle",
        "AutogradCyclesReport",
        "find_autograd_cycles",
    ),
    "neutracer.diagnose.overview.cell": ("CellReport",),
    "neutracer.diagnose.overview.report": ("OverviewReport", "report"),
    "neutracer.diagnose.holds.cycles": (
        "TensorCyclesReport",
        "find_tensor_cycles",
        "garbage_bytes",
    ),
    "neutracer.diagnose.device.report": ("DeviceReport", "device_report"),
    "neutracer.diagnose.leaks.diff": ("DiffReport", "diff"),
    "neutracer.diagnose.oom.explain": ("explain",),
    "neutracer.diagnose.oom.facts": ("OomFacts",),
    "neutracer.diagnose.oom.parts": ("Verdict",),
    "neutracer.diagnose.oom.report": ("ExplainReport",),
    "neutracer.diagnose.fragmentation.report": ("FragmentationReport", "fragmentation_report"),
    "neutracer.diagnose.holds.holders": (
        "HoldersReport",
        "NotebookHolder",
        "notebook_holders",
        "release_holders",
    ),
    "neutracer.diagnose.leaks.trend": ("LeakTrendReport", "leak_trend"),
    "neutracer.diagnose.oom.page": ("OomReport",),
    "neutracer.diagnose.oom.watch": ("OomWatch", "oom_report", "watch_oom"),
    "neutracer.diagnose.ranks.parts": ("FirstOom", "HeatMap", "Odd", "RankRow"),
    "neutracer.diagnose.ranks.ranks": ("ranks",),
    "neutracer.diagnose.ranks.report": ("RanksReport",),
    "neutracer.diagnose.ranks.watch": ("RanksWatch", "watch_ranks"),
    "neutracer.diagnose.settings.recommend": ("RecommendReport", "recommend"),
    "neutracer.diagnose.settings.what_if": ("Outcome", "WhatIfReport", "what_if"),
    "neutracer.errors": (
        "HistoryWarning",
        "LimitError",
        "NeutracerError",
        "RehearsalError",
        "SettingsError",
        "SnapshotError",
        "TensorCycleWarning",
        "UnavailableError",
    ),
    "neutracer.heap.cycles": ("TensorCycle",),
    "neutracer.heap.graph": ("ObjectGraph",),
    "neutracer.process.device.attribution": ("DeviceAttribution", "attribute_device_memory"),
    "neutracer.process.device.sums": ("LibraryUse",),
    "neutracer.process.recording.capture": ("snapshot",),
    "neutracer.process.cycles.watch": ("CycleWatch", "warn_tensor_cycles"),
    "neutracer.diagnose.training.training": ("Training", "training"),
    "neutracer.process.phases.phase": ("Phase", "phase"),
    "neutracer.process.exporter.serve": ("MetricsCollector", "MetricsServer", "serve_metrics"),
    "neutracer.process.monitor.memory_monitor": ("MemoryMonitor",),
    "neutracer.process.monitor.alerts": ("Alert",),
    "neutracer.process.cycles.pressure": (
        "PressureCollection",
        "PressureCollector",
        "collect_on_pressure",
    ),
    "neutracer.process.hooks.tail": ("live",),
    "neutracer.process.recording.recorder": ("Recording", "record"),
    "neutracer.notebook": ("load_ipython_extension", "unload_ipython_extension"),
    "neutracer.pictures.mdtp.plot": ("mdtp",),
    "neutracer.pictures.plots.plot": ("plot_fragmentation", "plot_timeline"),
    "neutracer.pictures.ranks.plot": ("debug_server_page", "plot_ranks"),
    "neutracer.pictures.page.view": ("view",),
    "neutracer.pictures.page.inline": ("PageView",),
    "neutracer.rehearsal.extensions": ("register_scratch",),
    "neutracer.rehearsal.largest": ("largest_batch",),
    "neutracer.rehearsal.rehearse": ("rehearse",),
    "neutracer.diagnose.savings.report": ("Saving", "SavingsReport", "savings"),
    "neutracer.trace.rehearsed": ("Rehearsed",),
    "neutracer.render.report": ("Finding", "Report"),
    "neutracer.trace.layout": ("Layout",),
    "neutracer.trace.snapshot": ("Snapshot", "load"),
    "neutracer.trace.stacks": ("Frame",),
    "neutracer.trace.table": ("Table",),
    "neutracer.trace.timeline": ("Churn", "Holder", "Moment", "Timeline"),
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names}


if not _typing.TYPE_CHECKING:
    # Checkers see the imports above, and that nothing else is there.
    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = getattr(_importlib.import_module(_HOMES[name]), name)
        return value


def __dir__() -> list[str]:
    # Folders that were imported are attributes too, and nobody's to use.
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
