# SPDX-License-Identifier: Apache-2.0
"""The classes of the answers: reports, their parts, and the handles of what runs.

Functions of `neutracer` return them. A program needs their names for annotations only, and
to build facts of its own.

Example:
    >>> import neutracer
    >>> from neutracer.reports import Finding, FragmentationReport
    >>> report = neutracer.fragmentation_report("tests/data/frag_default.pickle")
    >>> isinstance(report, FragmentationReport), isinstance(report.findings[0], Finding)
    (True, True)
"""

# TAB shows what has no underscore: the public names.
import typing as _typing

import neutracer as _neutracer

if _typing.TYPE_CHECKING:
    from neutracer.fragmentation.report import FragmentationReport
    from neutracer.heap.alive import AliveReport
    from neutracer.heap.autograd_cycles import AutogradCycle, AutogradCyclesReport
    from neutracer.heap.holders import HoldersReport, NotebookHolder
    from neutracer.heap.tensor_cycles import (
        PressureCollection,
        PressureCollector,
        TensorCyclesReport,
    )
    from neutracer.heap.watch import CycleWatch
    from neutracer.leak.diff import DiffReport
    from neutracer.leak.trend import LeakTrendReport
    from neutracer.monitor.device_report import DeviceAttribution, DeviceReport, LibraryUse
    from neutracer.monitor.exporter import MetricsServer
    from neutracer.monitor.memory_monitor import Alert
    from neutracer.monitor.phases import Phase
    from neutracer.notebook import CellReport
    from neutracer.oom.bill import Bill, BillTerm
    from neutracer.oom.case import Verdict
    from neutracer.oom.explain import ExplainReport
    from neutracer.oom.page import OomReport
    from neutracer.oom.watch import OomWatch
    from neutracer.overview import OverviewReport
    from neutracer.phase_report import PhasesReport
    from neutracer.picture.view import PageView
    from neutracer.rank.jobs import FirstOom, HeatMap, Odd, RankRow
    from neutracer.rank.report import RanksReport
    from neutracer.rank.watch import RanksWatch
    from neutracer.recording.recorder import Recording
    from neutracer.render.report import Finding, Report
    from neutracer.run.training import Training
    from neutracer.trace.flaws import Rehearsed
    from neutracer.trace.timeline import Churn
    from neutracer.whatif.drag import DragLine, DragMoment, DragReport
    from neutracer.whatif.replaying import Outcome
    from neutracer.whatif.savings import Saving, SavingsReport
    from neutracer.whatif.what_if import RecommendReport, WhatIfReport

__all__ = [
    "Alert",
    "AliveReport",
    "AutogradCycle",
    "AutogradCyclesReport",
    "Bill",
    "BillTerm",
    "CellReport",
    "Churn",
    "CycleWatch",
    "DeviceAttribution",
    "DeviceReport",
    "DiffReport",
    "DragLine",
    "DragMoment",
    "DragReport",
    "ExplainReport",
    "Finding",
    "FirstOom",
    "FragmentationReport",
    "HeatMap",
    "HoldersReport",
    "LeakTrendReport",
    "LibraryUse",
    "MetricsServer",
    "NotebookHolder",
    "Odd",
    "OomReport",
    "OomWatch",
    "Outcome",
    "OverviewReport",
    "PageView",
    "Phase",
    "PhasesReport",
    "PressureCollection",
    "PressureCollector",
    "RankRow",
    "RanksReport",
    "RanksWatch",
    "RecommendReport",
    "Recording",
    "Rehearsed",
    "Report",
    "Saving",
    "SavingsReport",
    "TensorCyclesReport",
    "Training",
    "Verdict",
    "WhatIfReport",
]

# Each is imported when it is first used, as the names of `neutracer` are.
_MODULES = {
    "neutracer.monitor.device_report": ("DeviceAttribution", "DeviceReport", "LibraryUse"),
    "neutracer.fragmentation.report": ("FragmentationReport",),
    "neutracer.heap.alive": ("AliveReport",),
    "neutracer.heap.autograd_cycles": ("AutogradCycle", "AutogradCyclesReport"),
    "neutracer.heap.tensor_cycles": (
        "PressureCollection",
        "PressureCollector",
        "TensorCyclesReport",
    ),
    "neutracer.heap.holders": ("HoldersReport", "NotebookHolder"),
    "neutracer.leak.diff": ("DiffReport",),
    "neutracer.leak.trend": ("LeakTrendReport",),
    "neutracer.oom.page": ("OomReport",),
    "neutracer.oom.bill": ("Bill", "BillTerm"),
    "neutracer.oom.case": ("Verdict",),
    "neutracer.oom.explain": ("ExplainReport",),
    "neutracer.oom.watch": ("OomWatch",),
    "neutracer.notebook": ("CellReport",),
    "neutracer.overview": ("OverviewReport",),
    "neutracer.phase_report": ("PhasesReport",),
    "neutracer.rank.jobs": ("FirstOom", "HeatMap", "Odd", "RankRow"),
    "neutracer.rank.report": ("RanksReport",),
    "neutracer.rank.watch": ("RanksWatch",),
    "neutracer.whatif.drag": ("DragLine", "DragMoment", "DragReport"),
    "neutracer.whatif.savings": ("Saving", "SavingsReport"),
    "neutracer.whatif.what_if": ("RecommendReport", "WhatIfReport"),
    "neutracer.whatif.replaying": ("Outcome",),
    "neutracer.run.training": ("Training",),
    "neutracer.picture.view": ("PageView",),
    "neutracer.heap.watch": ("CycleWatch",),
    "neutracer.monitor.exporter": ("MetricsServer",),
    "neutracer.monitor.memory_monitor": ("Alert",),
    "neutracer.monitor.phases": ("Phase",),
    "neutracer.recording.recorder": ("Recording",),
    "neutracer.render.report": ("Finding", "Report"),
    "neutracer.trace.flaws": ("Rehearsed",),
    "neutracer.trace.timeline": ("Churn",),
}


if not _typing.TYPE_CHECKING:
    # Checkers see the imports above, and that nothing else is there.
    __getattr__ = _neutracer._importer(globals(), _MODULES)


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
