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
    from neutracer.diagnose.device.report import DeviceReport
    from neutracer.diagnose.fragmentation.report import FragmentationReport
    from neutracer.diagnose.holds.alive import AliveReport
    from neutracer.diagnose.holds.autograd_cycles import AutogradCycle, AutogradCyclesReport
    from neutracer.diagnose.holds.cycles import TensorCyclesReport
    from neutracer.diagnose.holds.holders import HoldersReport, NotebookHolder
    from neutracer.diagnose.leaks.diff import DiffReport
    from neutracer.diagnose.leaks.trend import LeakTrendReport
    from neutracer.diagnose.oom.page import OomReport
    from neutracer.diagnose.oom.parts import Verdict
    from neutracer.diagnose.oom.report import ExplainReport
    from neutracer.diagnose.oom.watch import OomWatch
    from neutracer.diagnose.overview.cell import CellReport
    from neutracer.diagnose.overview.report import OverviewReport
    from neutracer.diagnose.ranks.parts import FirstOom, HeatMap, Odd, RankRow
    from neutracer.diagnose.ranks.report import RanksReport
    from neutracer.diagnose.ranks.watch import RanksWatch
    from neutracer.diagnose.savings.report import Saving, SavingsReport
    from neutracer.diagnose.settings.recommend import RecommendReport
    from neutracer.diagnose.settings.what_if import WhatIfReport
    from neutracer.diagnose.settings.what_if_parts import Outcome
    from neutracer.diagnose.training.training import Training
    from neutracer.pictures.page.inline import PageView
    from neutracer.process.cycles.pressure import PressureCollection, PressureCollector
    from neutracer.process.cycles.watch import CycleWatch
    from neutracer.process.device.attribution import DeviceAttribution
    from neutracer.process.device.sums import LibraryUse
    from neutracer.process.exporter.serve import MetricsServer
    from neutracer.process.monitor.alerts import Alert
    from neutracer.process.phases.phase import Phase
    from neutracer.process.recording.recorder import Recording
    from neutracer.render.report import Finding, Report
    from neutracer.trace.rehearsed import Rehearsed
    from neutracer.trace.timeline import Churn

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
    "neutracer.diagnose.device.report": ("DeviceReport",),
    "neutracer.diagnose.fragmentation.report": ("FragmentationReport",),
    "neutracer.diagnose.holds.alive": ("AliveReport",),
    "neutracer.diagnose.holds.autograd_cycles": (
        "AutogradCycle",
        "AutogradCyclesReport",
    ),
    "neutracer.diagnose.holds.cycles": ("TensorCyclesReport",),
    "neutracer.diagnose.holds.holders": (
        "HoldersReport",
        "NotebookHolder",
    ),
    "neutracer.diagnose.leaks.diff": ("DiffReport",),
    "neutracer.diagnose.leaks.trend": ("LeakTrendReport",),
    "neutracer.diagnose.oom.page": ("OomReport",),
    "neutracer.diagnose.oom.parts": ("Verdict",),
    "neutracer.diagnose.oom.report": ("ExplainReport",),
    "neutracer.diagnose.oom.watch": ("OomWatch",),
    "neutracer.diagnose.overview.cell": ("CellReport",),
    "neutracer.diagnose.overview.report": ("OverviewReport",),
    "neutracer.diagnose.ranks.parts": (
        "FirstOom",
        "HeatMap",
        "Odd",
        "RankRow",
    ),
    "neutracer.diagnose.ranks.report": ("RanksReport",),
    "neutracer.diagnose.ranks.watch": ("RanksWatch",),
    "neutracer.diagnose.savings.report": (
        "Saving",
        "SavingsReport",
    ),
    "neutracer.diagnose.settings.recommend": ("RecommendReport",),
    "neutracer.diagnose.settings.what_if": ("WhatIfReport",),
    "neutracer.diagnose.settings.what_if_parts": ("Outcome",),
    "neutracer.diagnose.training.training": ("Training",),
    "neutracer.pictures.page.inline": ("PageView",),
    "neutracer.process.cycles.pressure": (
        "PressureCollection",
        "PressureCollector",
    ),
    "neutracer.process.cycles.watch": ("CycleWatch",),
    "neutracer.process.device.attribution": ("DeviceAttribution",),
    "neutracer.process.device.sums": ("LibraryUse",),
    "neutracer.process.exporter.serve": ("MetricsServer",),
    "neutracer.process.monitor.alerts": ("Alert",),
    "neutracer.process.phases.phase": ("Phase",),
    "neutracer.process.recording.recorder": ("Recording",),
    "neutracer.render.report": (
        "Finding",
        "Report",
    ),
    "neutracer.trace.rehearsed": ("Rehearsed",),
    "neutracer.trace.timeline": ("Churn",),
}


if not _typing.TYPE_CHECKING:
    # Checkers see the imports above, and that nothing else is there.
    __getattr__ = _neutracer._importer(globals(), _MODULES)


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
