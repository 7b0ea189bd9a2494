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
    from neutracer.fragmentation.report import FragmentationReport as FragmentationReport
    from neutracer.heap.alive import AliveReport as AliveReport
    from neutracer.heap.autograd_cycles import AutogradCycle as AutogradCycle
    from neutracer.heap.autograd_cycles import AutogradCyclesReport as AutogradCyclesReport
    from neutracer.heap.holders import HoldersReport as HoldersReport
    from neutracer.heap.holders import NotebookHolder as NotebookHolder
    from neutracer.heap.tensor_cycles import CycleWatch as CycleWatch
    from neutracer.heap.tensor_cycles import PressureCollection as PressureCollection
    from neutracer.heap.tensor_cycles import PressureCollector as PressureCollector
    from neutracer.heap.tensor_cycles import TensorCyclesReport as TensorCyclesReport
    from neutracer.leak.diff import DiffReport as DiffReport
    from neutracer.leak.trend import LeakTrendReport as LeakTrendReport
    from neutracer.monitor.device_report import DeviceAttribution as DeviceAttribution
    from neutracer.monitor.device_report import DeviceReport as DeviceReport
    from neutracer.monitor.device_report import LibraryUse as LibraryUse
    from neutracer.monitor.exporter import MetricsServer as MetricsServer
    from neutracer.monitor.memory_monitor import Alert as Alert
    from neutracer.monitor.phases import Phase as Phase
    from neutracer.notebook import CellReport as CellReport
    from neutracer.oom.bill import Bill as Bill
    from neutracer.oom.bill import BillTerm as BillTerm
    from neutracer.oom.case import Verdict as Verdict
    from neutracer.oom.explain import ExplainReport as ExplainReport
    from neutracer.oom.page import OomReport as OomReport
    from neutracer.oom.watch import OomWatch as OomWatch
    from neutracer.overview import OverviewReport as OverviewReport
    from neutracer.phase_report import PhasesReport as PhasesReport
    from neutracer.picture.view import PageView as PageView
    from neutracer.rank.jobs import FirstOom as FirstOom
    from neutracer.rank.jobs import HeatMap as HeatMap
    from neutracer.rank.jobs import Odd as Odd
    from neutracer.rank.jobs import RankRow as RankRow
    from neutracer.rank.report import RanksReport as RanksReport
    from neutracer.rank.watch import RanksWatch as RanksWatch
    from neutracer.recording.recorder import Recording as Recording
    from neutracer.render.report import Finding as Finding
    from neutracer.render.report import Report as Report
    from neutracer.run.training import Training as Training
    from neutracer.trace.flaws import Rehearsed as Rehearsed
    from neutracer.trace.timeline import Churn as Churn
    from neutracer.whatif.drag import DragLine as DragLine
    from neutracer.whatif.drag import DragMoment as DragMoment
    from neutracer.whatif.drag import DragReport as DragReport
    from neutracer.whatif.replaying import Outcome as Outcome
    from neutracer.whatif.savings import Saving as Saving
    from neutracer.whatif.savings import SavingsReport as SavingsReport
    from neutracer.whatif.what_if import RecommendReport as RecommendReport
    from neutracer.whatif.what_if import WhatIfReport as WhatIfReport

# Each is imported when it is first used, as the names of `neutracer` are.
_MODULES = {
    "neutracer.monitor.device_report": ("DeviceAttribution", "DeviceReport", "LibraryUse"),
    "neutracer.fragmentation.report": ("FragmentationReport",),
    "neutracer.heap.alive": ("AliveReport",),
    "neutracer.heap.autograd_cycles": ("AutogradCycle", "AutogradCyclesReport"),
    "neutracer.heap.tensor_cycles": (
        "CycleWatch",
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
    __all__ = sorted(name for names in _MODULES.values() for name in names)
    __getattr__ = _neutracer._importer(globals(), _MODULES)

    def __dir__() -> list[str]:
        return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
