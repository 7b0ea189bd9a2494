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
import gc as _gc
import importlib as _importlib
import typing as _typing

if _typing.TYPE_CHECKING:
    from neutracer import reports as reports
    from neutracer.errors import HistoryWarning as HistoryWarning
    from neutracer.errors import LimitError as LimitError
    from neutracer.errors import NeutracerError as NeutracerError
    from neutracer.errors import RehearsalError as RehearsalError
    from neutracer.errors import SettingsError as SettingsError
    from neutracer.errors import SnapshotError as SnapshotError
    from neutracer.errors import TensorCycleWarning as TensorCycleWarning
    from neutracer.errors import UnavailableError as UnavailableError
    from neutracer.exporting import export as export
    from neutracer.fragmentation.report import fragmentation_report as fragmentation_report
    from neutracer.heap.alive import why_alive as why_alive
    from neutracer.heap.autograd_cycles import find_autograd_cycles as find_autograd_cycles
    from neutracer.heap.cycles import TensorCycle as TensorCycle
    from neutracer.heap.graph import ObjectGraph as ObjectGraph
    from neutracer.heap.holders import notebook_holders as notebook_holders
    from neutracer.heap.holders import release_holders as release_holders
    from neutracer.heap.tensor_cycles import collect_on_pressure as collect_on_pressure
    from neutracer.heap.tensor_cycles import find_tensor_cycles as find_tensor_cycles
    from neutracer.heap.tensor_cycles import garbage_bytes as garbage_bytes
    from neutracer.heap.tensor_cycles import warn_tensor_cycles as warn_tensor_cycles
    from neutracer.hooks.live import live as live
    from neutracer.leak.diff import diff as diff
    from neutracer.leak.trend import leak_trend as leak_trend
    from neutracer.monitor.device_report import attribute_device_memory as attribute_device_memory
    from neutracer.monitor.device_report import device_report as device_report
    from neutracer.monitor.exporter import MetricsCollector as MetricsCollector
    from neutracer.monitor.memory_monitor import MemoryMonitor as MemoryMonitor
    from neutracer.monitor.phases import phase as phase
    from neutracer.notebook import load_ipython_extension as load_ipython_extension
    from neutracer.notebook import unload_ipython_extension as unload_ipython_extension
    from neutracer.oom.explain import explain as explain
    from neutracer.oom.facts import OomFacts as OomFacts
    from neutracer.oom.watch import oom_report as oom_report
    from neutracer.oom.watch import watch_oom as watch_oom
    from neutracer.overview import report as report
    from neutracer.phase_report import phases as phases
    from neutracer.picture.plots import mdtp as mdtp
    from neutracer.picture.plots import plot_bill as plot_bill
    from neutracer.picture.plots import plot_fragmentation as plot_fragmentation
    from neutracer.picture.plots import plot_timeline as plot_timeline
    from neutracer.picture.view import view as view
    from neutracer.rank.plot import debug_server_page as debug_server_page
    from neutracer.rank.plot import plot_ranks as plot_ranks
    from neutracer.rank.report import ranks as ranks
    from neutracer.rank.watch import watch_ranks as watch_ranks
    from neutracer.recording.recorder import record as record
    from neutracer.recording.recorder import snapshot as snapshot
    from neutracer.rehearsal.kernels.extensions import register_scratch as register_scratch
    from neutracer.rehearsal.rehearse import largest_batch as largest_batch
    from neutracer.rehearsal.rehearse import rehearse as rehearse
    from neutracer.run.serve import serve_metrics as serve_metrics
    from neutracer.run.training import training as training
    from neutracer.trace.snapshot import Snapshot as Snapshot
    from neutracer.trace.snapshot import load as load
    from neutracer.trace.stacks import Frame as Frame
    from neutracer.trace.table import Table as Table
    from neutracer.trace.timeline import Holder as Holder
    from neutracer.trace.timeline import Layout as Layout
    from neutracer.trace.timeline import Moment as Moment
    from neutracer.trace.timeline import Timeline as Timeline
    from neutracer.whatif.drag import drag as drag
    from neutracer.whatif.savings import savings as savings
    from neutracer.whatif.what_if import what_if as what_if

__version__ = "1.0.0"

# What a name needs is imported when the name is first used: a command takes part of the
# package, and so does a program that only records. `reports` has the classes of answers.
_MODULES = {
    "neutracer.monitor.device_report": ("attribute_device_memory", "device_report"),
    "neutracer.fragmentation.report": ("fragmentation_report",),
    "neutracer.heap.alive": ("why_alive",),
    "neutracer.heap.autograd_cycles": ("find_autograd_cycles",),
    "neutracer.heap.tensor_cycles": (
        "collect_on_pressure",
        "find_tensor_cycles",
        "garbage_bytes",
        "warn_tensor_cycles",
    ),
    "neutracer.heap.holders": ("notebook_holders", "release_holders"),
    "neutracer.leak.diff": ("diff",),
    "neutracer.leak.trend": ("leak_trend",),
    "neutracer.oom.explain": ("explain",),
    "neutracer.oom.facts": ("OomFacts",),
    "neutracer.oom.watch": ("oom_report", "watch_oom"),
    "neutracer.overview": ("report",),
    "neutracer.phase_report": ("phases",),
    "neutracer.rank.report": ("ranks",),
    "neutracer.rank.watch": ("watch_ranks",),
    "neutracer.whatif.drag": ("drag",),
    "neutracer.whatif.savings": ("savings",),
    "neutracer.whatif.what_if": ("what_if",),
    "neutracer.run.serve": ("serve_metrics",),
    "neutracer.run.training": ("training",),
    "neutracer.exporting": ("export",),
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
    "neutracer.notebook": ("load_ipython_extension", "unload_ipython_extension"),
    "neutracer.picture.plots": ("mdtp", "plot_bill", "plot_fragmentation", "plot_timeline"),
    "neutracer.picture.view": ("view",),
    "neutracer.rank.plot": ("debug_server_page", "plot_ranks"),
    "neutracer.monitor.exporter": ("MetricsCollector",),
    "neutracer.hooks.live": ("live",),
    "neutracer.monitor.memory_monitor": ("MemoryMonitor",),
    "neutracer.monitor.phases": ("phase",),
    "neutracer.recording.recorder": ("record", "snapshot"),
    "neutracer.rehearsal.kernels.extensions": ("register_scratch",),
    "neutracer.rehearsal.rehearse": ("largest_batch", "rehearse"),
    "neutracer.trace.timeline": ("Holder", "Layout", "Moment", "Timeline"),
    "neutracer.trace.snapshot": ("Snapshot", "load"),
    "neutracer.trace.stacks": ("Frame",),
    "neutracer.trace.table": ("Table",),
}


def _importer(
    namespace: dict[str, _typing.Any], modules: dict[str, tuple[str, ...]]
) -> _typing.Callable[[str], object]:
    """A module's `__getattr__`, which imports the names that other modules define."""
    homes = {name: home for home, names in modules.items() for name in names}

    def find(name: str) -> object:
        if name not in homes:
            raise AttributeError(f"module {namespace['__name__']!r} has no attribute {name!r}")
        # An import allocates enough for a collection, which would free the very garbage that
        # the program is about to ask for.
        collects = _gc.isenabled()
        _gc.disable()
        try:
            value = namespace[name] = getattr(_importlib.import_module(homes[name]), name)
        finally:
            if collects:
                _gc.enable()
        return value

    return find


if not _typing.TYPE_CHECKING:
    # Checkers see the imports above, and that nothing else is there.
    __all__ = sorted(name for names in _MODULES.values() for name in names if "ipython" not in name)
    _find = _importer(globals(), _MODULES)

    def __getattr__(name: str) -> object:
        if name == "reports":
            return _importlib.import_module("neutracer.reports")
        return _find(name)

    def __dir__() -> list[str]:
        # Folders that were imported are attributes too, and not for use.
        return sorted({*__all__, "reports", *(name for name in globals() if name.startswith("__"))})
