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
    from neutracer import reports as reports
    from neutracer.diagnose.device.report import device_report
    from neutracer.diagnose.fragmentation.report import fragmentation_report
    from neutracer.diagnose.holds.alive import why_alive
    from neutracer.diagnose.holds.autograd_cycles import find_autograd_cycles
    from neutracer.diagnose.holds.cycles import find_tensor_cycles, garbage_bytes
    from neutracer.diagnose.holds.holders import notebook_holders, release_holders
    from neutracer.diagnose.leaks.diff import diff
    from neutracer.diagnose.leaks.trend import leak_trend
    from neutracer.diagnose.oom.explain import explain
    from neutracer.diagnose.oom.facts import OomFacts
    from neutracer.diagnose.oom.watch import oom_report, watch_oom
    from neutracer.diagnose.overview.report import report
    from neutracer.diagnose.ranks.ranks import ranks
    from neutracer.diagnose.ranks.watch import watch_ranks
    from neutracer.diagnose.savings.report import savings
    from neutracer.diagnose.settings.what_if import what_if
    from neutracer.diagnose.training.training import training
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
    from neutracer.pictures.page.view import view
    from neutracer.pictures.plots.plot import plot_fragmentation, plot_timeline
    from neutracer.pictures.ranks.plot import debug_server_page, plot_ranks
    from neutracer.process.cycles.pressure import collect_on_pressure
    from neutracer.process.cycles.watch import warn_tensor_cycles
    from neutracer.process.device.attribution import attribute_device_memory
    from neutracer.process.exporter.serve import MetricsCollector, serve_metrics
    from neutracer.process.hooks.tail import live
    from neutracer.process.monitor.memory_monitor import MemoryMonitor
    from neutracer.process.phases.phase import phase
    from neutracer.process.recording.capture import snapshot
    from neutracer.process.recording.recorder import record
    from neutracer.rehearsal.extensions import register_scratch
    from neutracer.rehearsal.largest import largest_batch
    from neutracer.rehearsal.rehearse import rehearse
    from neutracer.trace.layout import Layout
    from neutracer.trace.snapshot import Snapshot, load
    from neutracer.trace.stacks import Frame
    from neutracer.trace.table import Table
    from neutracer.trace.timeline import Holder, Moment, Timeline

__version__ = "1.0.0"

__all__ = [
    "Frame",
    "HistoryWarning",
    "Holder",
    "Layout",
    "LimitError",
    "MemoryMonitor",
    "MetricsCollector",
    "Moment",
    "NeutracerError",
    "ObjectGraph",
    "OomFacts",
    "RehearsalError",
    "SettingsError",
    "Snapshot",
    "SnapshotError",
    "Table",
    "TensorCycle",
    "TensorCycleWarning",
    "Timeline",
    "UnavailableError",
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
# package, and so does a program that only records. `reports` has the classes of answers.
_MODULES = {
    "neutracer.diagnose.device.report": ("device_report",),
    "neutracer.diagnose.fragmentation.report": ("fragmentation_report",),
    "neutracer.diagnose.holds.alive": ("why_alive",),
    "neutracer.diagnose.holds.autograd_cycles": ("find_autograd_cycles",),
    "neutracer.diagnose.holds.cycles": (
        "find_tensor_cycles",
        "garbage_bytes",
    ),
    "neutracer.diagnose.holds.holders": (
        "notebook_holders",
        "release_holders",
    ),
    "neutracer.diagnose.leaks.diff": ("diff",),
    "neutracer.diagnose.leaks.trend": ("leak_trend",),
    "neutracer.diagnose.oom.explain": ("explain",),
    "neutracer.diagnose.oom.facts": ("OomFacts",),
    "neutracer.diagnose.oom.watch": (
        "oom_report",
        "watch_oom",
    ),
    "neutracer.diagnose.overview.report": ("report",),
    "neutracer.diagnose.ranks.ranks": ("ranks",),
    "neutracer.diagnose.ranks.watch": ("watch_ranks",),
    "neutracer.diagnose.savings.report": ("savings",),
    "neutracer.diagnose.settings.what_if": ("what_if",),
    "neutracer.diagnose.training.training": ("training",),
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
    "neutracer.notebook": (
        "load_ipython_extension",
        "unload_ipython_extension",
    ),
    "neutracer.pictures.mdtp.plot": ("mdtp",),
    "neutracer.pictures.page.view": ("view",),
    "neutracer.pictures.plots.plot": (
        "plot_fragmentation",
        "plot_timeline",
    ),
    "neutracer.pictures.ranks.plot": (
        "debug_server_page",
        "plot_ranks",
    ),
    "neutracer.process.cycles.pressure": ("collect_on_pressure",),
    "neutracer.process.cycles.watch": ("warn_tensor_cycles",),
    "neutracer.process.device.attribution": ("attribute_device_memory",),
    "neutracer.process.exporter.serve": (
        "MetricsCollector",
        "serve_metrics",
    ),
    "neutracer.process.hooks.tail": ("live",),
    "neutracer.process.monitor.memory_monitor": ("MemoryMonitor",),
    "neutracer.process.phases.phase": ("phase",),
    "neutracer.process.recording.capture": ("snapshot",),
    "neutracer.process.recording.recorder": ("record",),
    "neutracer.rehearsal.extensions": ("register_scratch",),
    "neutracer.rehearsal.largest": ("largest_batch",),
    "neutracer.rehearsal.rehearse": ("rehearse",),
    "neutracer.trace.layout": ("Layout",),
    "neutracer.trace.snapshot": (
        "Snapshot",
        "load",
    ),
    "neutracer.trace.stacks": ("Frame",),
    "neutracer.trace.table": ("Table",),
    "neutracer.trace.timeline": (
        "Holder",
        "Moment",
        "Timeline",
    ),
}


def _importer(
    namespace: dict[str, _typing.Any], modules: dict[str, tuple[str, ...]]
) -> _typing.Callable[[str], object]:
    """A module's `__getattr__`, which imports the names that other modules define."""
    homes = {name: home for home, names in modules.items() for name in names}

    def find(name: str) -> object:
        if name not in homes:
            raise AttributeError(f"module {namespace['__name__']!r} has no attribute {name!r}")
        value = namespace[name] = getattr(_importlib.import_module(homes[name]), name)
        return value

    return find


if not _typing.TYPE_CHECKING:
    # Checkers see the imports above, and that nothing else is there.
    _find = _importer(globals(), _MODULES)

    def __getattr__(name: str) -> object:
        if name == "reports":
            return _importlib.import_module("neutracer.reports")
        return _find(name)


def __dir__() -> list[str]:
    # Folders that were imported are attributes too, and not for use.
    return sorted({*__all__, "reports", *(name for name in globals() if name.startswith("__"))})
