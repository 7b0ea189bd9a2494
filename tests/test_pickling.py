# SPDX-License-Identifier: Apache-2.0
"""Snapshots and reports go to other processes and are copied; what can't says why."""

from __future__ import annotations

import copy
import json
import pickle
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from bundle import DATA, NAMES, pickled, snapshot
from small_snapshots import dumped, one_program, two_devices

import neutracer
from neutracer._native import core
from neutracer.cli.agents import capabilities
from neutracer.cli.setup import environment
from neutracer.heap.tensor_cycles import CycleRunReport
from neutracer.notebook import CellRecording, CellReport
from neutracer.oom.messages import messages_report
from neutracer.oom.page import OomReport
from neutracer.overview import overview
from neutracer.pickling import StaysHere
from neutracer.render.report import Report
from neutracer.run.attach import AttachReport
from neutracer.run.report import RunReport
from neutracer.trace.uses import Uses
from neutracer.whatif.what_if import check_replay

PROTOCOLS = range(2, pickle.HIGHEST_PROTOCOL + 1)
EXPANDABLE = "expandable_segments:True"
MIB = 1 << 20


class Ring:
    """An object that refers to itself."""

    def __init__(self) -> None:
        self.me = self


def plan() -> neutracer.reports.WhatIfReport:
    return neutracer.what_if(snapshot("frag_default"), EXPANDABLE, capacity="2GiB")


def oom_report() -> OomReport:
    why = neutracer.explain(snapshot("frag_default"))
    return OomReport(
        device=0,
        asked_bytes=40 * MIB,
        free_bytes=2 * MIB,
        phase="forward",
        verdict="it is fragmented",
        oom=neutracer.OomFacts(device=0, stack=(("train.py", 3, "step"),)),
        process={"pid": 1, "host": "node", "memory_stats": {"num_ooms": 1}},
        snapshot="oom.pickle.gz",
        text="oom.txt",
        json="oom.json",
        left_out=(),
        explained=why.to_dict(),
        seconds=0.5,
        spent={"snapshot": 0.1},
        findings=why.findings,
        _blocks=why.document().blocks,
    )


def run_report() -> RunReport:
    return RunReport(
        program="train.py",
        exit_code=1,
        signal=None,
        seconds=2.0,
        rank=None,
        world_size=None,
        host="node",
        pid=1,
        recorded="",
        overview=overview(snapshot("frag_default")),
        ooms=(oom_report(),),
        ooms_seen=1,
        files=(),
        notes=(),
    )


def attach_report() -> AttachReport:
    return AttachReport(
        program="train.py",
        pid=4711,
        rank=1,
        world_size=8,
        host="here",
        python="3.14.8",
        torch="2.15.0",
        recorded_s=30.0,
        overview=overview(snapshot("frag_default")),
        watching="",
        metrics="",
        ended=("its metrics",),
        ooms_seen=0,
        files=("neutracer-run/attach.pickle",),
        notes=(),
        findings=(),
    )


def cycle_run_report() -> CycleRunReport:
    return CycleRunReport(
        program="train.py",
        exit_code=0,
        rank=None,
        world_size=None,
        cycles=(),
        bytes=0,
        collections=3,
        watch_us=10,
        refused=1,
    )


def tensor_cycles() -> Report:
    import torch

    ring = [torch.zeros(1024, 1024)]
    ring.append(ring)  # type: ignore[arg-type]
    found = neutracer.find_tensor_cycles("cpu")
    ring.clear()
    assert found[0].count
    return found


def drag_report() -> Report:
    """Of a recording of which each request is used at once, and never again."""
    snap = snapshot("train_resnet_healthy")
    uses, plain = Uses(), snap.to_dict()
    for event in snap.events:
        if event.action == "alloc":
            uses.request()
            uses.use(len(uses.first) - 1)
    plain["allocator_settings"]["trace_uses"] = uses.text(0)
    return neutracer.drag(neutracer.load(pickle.dumps(plain)))


def cell_report() -> CellReport:
    recording = object.__new__(CellRecording)
    frames = {frame.filename for frame in snapshot("frag_default").events[0].stack}
    renamed = dict.fromkeys(frames, "In[3]")
    native = snapshot("frag_default").native
    recording.__dict__.update(
        snapshot=neutracer.Snapshot(native, renamed), follows=True, _fresh=True
    )
    return CellReport(
        backend="cuda", duration_us=5, devices=(), cycles=(), cycle_bytes=0, _recording=recording
    )


def oom_messages_report() -> Report:
    line = "CUDA out of memory. Tried to allocate 9.00 GiB. GPU 0 has a total capacity of 8.00 GiB"
    report = messages_report([f"{line} of which 7.00 GiB is free."], "job.log")
    assert report is not None
    return report


REPORTS: dict[str, Callable[[], Report]] = {
    "AliveReport": lambda: neutracer.why_alive(Ring),
    "AutogradCyclesReport": neutracer.find_autograd_cycles,
    "CellReport": cell_report,
    "AttachReport": attach_report,
    "CheckReport": lambda: check_replay(snapshot("frag_default")),
    "CapabilitiesReport": capabilities,
    "CycleRunReport": cycle_run_report,
    "DiffReport": lambda: neutracer.diff(
        snapshot("train_resnet_healthy"), snapshot("train_resnet_late_zero_grad")
    ),
    "DragReport": drag_report,
    "EnvironmentReport": lambda: environment(neutracer.__version__),
    "ExplainReport": lambda: neutracer.explain(snapshot("frag_default")),
    "OomMessagesReport": oom_messages_report,
    "PhasesReport": lambda: neutracer.phases(snapshot("frag_default")),
    "FragmentationReport": lambda: neutracer.fragmentation_report(snapshot("frag_default")),
    "HoldersReport": neutracer.notebook_holders,
    "LeakTrendReport": lambda: neutracer.leak_trend(snapshot("create_graph_leak")),
    "OomReport": oom_report,
    "OverviewReport": lambda: overview(snapshot("frag_default")),
    "PeakTreeReport": lambda: overview(snapshot("frag_default")).tree(),
    "RanksReport": lambda: neutracer.ranks(DATA / "frag_default.pickle.xz"),
    "RecommendReport": lambda: neutracer.what_if(snapshot("frag_default"), capacity="2GiB"),
    "RunReport": run_report,
    "SavingsReport": lambda: neutracer.savings(snapshot("train_resnet_healthy")),
    "TensorCyclesReport": tensor_cycles,
    "WhatIfReport": plan,
}
# These need torch; DeviceReport, which needs a device, is looked at beside its own tests.
NEED_TORCH = {"AutogradCyclesReport", "TensorCyclesReport"}


def copies(thing: Any) -> list[Any]:
    """It, through every protocol and through copy.deepcopy."""
    there = [pickle.loads(pickle.dumps(thing, protocol)) for protocol in PROTOCOLS]
    return [*there, copy.deepcopy(thing)]


def subclasses(cls: type) -> set[type]:
    found = set(cls.__subclasses__())
    return found.union(*map(subclasses, found)) if found else found


# ---- snapshots -------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_pickled_snapshot_is_the_same(name: str) -> None:
    snap = snapshot(name)
    there = pickle.loads(pickle.dumps(snap))
    assert there.to_dict() == snap.to_dict()
    assert there.memory_stats() == snap.memory_stats()
    assert dict(there.settings_in_force) == dict(snap.settings_in_force)
    ours, theirs = snap.timeline(), there.timeline()
    assert theirs.peak() == ours.peak()
    assert theirs.reserved == ours.reserved
    assert theirs.holders() == ours.holders()
    assert there.history_complete() == snap.history_complete()


def test_every_protocol_takes_a_snapshot() -> None:
    for structure in (one_program(), two_devices(), {"segments": [], "device_traces": []}):
        snap = neutracer.load(dumped(structure))
        for there in copies(snap):
            assert there is not snap
            assert there.to_bytes() == snap.to_bytes()
            assert repr(there) == repr(snap)


def test_pickle_keeps_what_a_file_keeps() -> None:
    with pytest.warns(neutracer.HistoryWarning):
        partial = neutracer.load(pickled("frag_default")[:100_000])
    there, saved = pickle.loads(pickle.dumps(partial)), neutracer.load(partial.to_bytes())
    assert partial.partial
    assert saved.partial is None
    for copied in copies(partial):
        assert copied.partial == partial.partial
        assert copied.history_complete() is partial.history_complete() is False
    assert there.to_dict() == saved.to_dict() == partial.to_dict()
    other = neutracer.load(dumped({**one_program(), "later_key": 1}))
    assert other.ignored_keys == ("later_key",)
    assert pickle.loads(pickle.dumps(other)).ignored_keys == ()


def test_names_of_cells_go_along() -> None:
    report = cell_report()
    assert report.snapshot is not None
    for there in copies(report):
        frames = there.snapshot.events[0].stack
        assert frames == report.snapshot.events[0].stack
        assert {frame.filename for frame in frames} == {"In[3]"}


def test_shallow_copy_is_the_snapshot() -> None:
    snap = neutracer.load(dumped(one_program()))
    assert copy.copy(snap) is snap


# ---- reports ---------------------------------------------------------------------------


def test_every_kind_of_report_is_pickled() -> None:
    for name in {*neutracer.reports.__all__, *neutracer.__all__}:
        getattr(neutracer.reports if name in neutracer.reports.__all__ else neutracer, name)
    known = {kind.__name__ for kind in subclasses(Report) if kind.__module__.startswith("neutr")}
    assert known == {*REPORTS, "DeviceReport"}


@pytest.mark.parametrize("kind", REPORTS)
def test_copied_report_says_the_same(kind: str) -> None:
    if kind in NEED_TORCH:
        pytest.importorskip("torch")
    report = REPORTS[kind]()
    assert type(report).__name__ == kind
    said, told = str(report), report.to_dict()
    for there in copies(report):
        assert type(there) is type(report)
        assert str(there) == said
        assert there.to_dict() == told
        assert there.findings == report.findings
        assert there._repr_html_() == report._repr_html_()


def test_report_opens_in_another_process(tmp_path: Path) -> None:
    path = tmp_path / "reports"
    reports = (plan(), neutracer.fragmentation_report(snapshot("frag_default")))
    path.write_bytes(pickle.dumps(reports))
    script = (
        "import json, pickle, sys\n"
        "plan, unused = pickle.load(open(sys.argv[1], 'rb'))\n"
        f"peak = plan[{EXPANDABLE!r}].snapshot().timeline().peak('reserved').bytes\n"
        "print(json.dumps([plan.to_dict(), str(plan), str(unused), unused.fits(30 << 20), peak]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(path)], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    plain, said, unused, fits, peak = json.loads(done.stdout)
    assert plain == json.loads(json.dumps(reports[0].to_dict()))
    assert [said, unused] == list(map(str, reports))
    assert fits is True
    assert peak == reports[0][EXPANDABLE].peak_reserved_bytes


def test_copied_plan_replays_as_before() -> None:
    report = plan()
    series = report.series(EXPANDABLE)["reserved"].tolist()
    for there in (pickle.loads(pickle.dumps(report)), copy.deepcopy(report)):
        assert there.series(EXPANDABLE)["reserved"].tolist() == series
        assert there[""].snapshot().to_dict() == report[""].snapshot().to_dict()
        assert there.recorded.recorded.to_dict() == report.recorded.recorded.to_dict()
        assert there == report


def test_copied_plan_keeps_its_changed_program() -> None:
    report = neutracer.what_if(snapshot("frag_default"), EXPANDABLE, batch=2, capacity="9GiB")
    there = pickle.loads(pickle.dumps(report))
    assert there.is_changed
    series = report.series(EXPANDABLE)["allocated"].tolist()
    assert there.series(EXPANDABLE)["allocated"].tolist() == series
    assert there[""].snapshot().to_dict() == report[""].snapshot().to_dict()


def test_outcome_alone_takes_its_recording_along() -> None:
    outcome = plan()[EXPANDABLE]
    there = pickle.loads(pickle.dumps(outcome))
    assert there == outcome
    assert there.snapshot().to_dict() == outcome.snapshot().to_dict()
    bare = replace(outcome, _recorded=None, _trace=None)
    with pytest.raises(ValueError, match="without its recording"):
        pickle.loads(pickle.dumps(bare)).snapshot()


def test_what_was_looked_up_is_no_hindrance() -> None:
    report = neutracer.fragmentation_report(snapshot("frag_default"))
    history = report.fragmentation_history.tolist()
    assert report.fits(30 * MIB)
    for there in copies(report):
        assert there.fragmentation_history.tolist() == history
        assert there.fits(30 * MIB)


@pytest.mark.parametrize("name", NAMES)
def test_copied_report_knows_what_fits(name: str) -> None:
    snap = snapshot(name)
    report = neutracer.fragmentation_report(snap)
    there = pickle.loads(pickle.dumps(report))
    native = core.Fragment(snap.native, None, report.device)
    sizes = {size + more for size in (0, MIB, 20 * MIB) for more in (-1, 0, 1)}
    for pool in report.pools:
        edges = {pool.largest_request + more for more in (-1, 0, 1)}
        for nbytes in {max(size, 0) for size in sizes | edges}:
            answer = native.fits(report.device, pool.pool, pool.stream, nbytes)
            assert report.fits(nbytes, pool.stream, pool.pool) is answer
            assert there.fits(nbytes, pool.stream, pool.pool) is answer
    assert not there.fits(MIB, stream=0x77)


def test_trend_of_numbers_is_pickled() -> None:
    trend = neutracer.leak_trend([MIB * step for step in range(1, 40)])
    there = pickle.loads(pickle.dumps(trend))
    assert str(there) == str(trend)
    assert list(there.floors) == list(trend.floors)


# ---- what stays here -------------------------------------------------------------------


def test_views_say_what_to_send() -> None:
    snap = snapshot("frag_default")
    timeline = snap.timeline()
    views = {
        "a Timeline .* send the snapshot": timeline,
        "a Layout .* ask its timeline": timeline.at(5),
        r"a Table .* table\.to_dict\(\)": snap.blocks,
        r"a Row .* row\.to_dict\(\)": snap.blocks[0],
    }
    for words, view in views.items():
        for protocol in PROTOCOLS:
            with pytest.raises(TypeError, match=words):
                pickle.dumps(view, protocol)
        assert copy.copy(view) is copy.deepcopy(view) is view


def test_handles_say_what_to_send() -> None:
    monitor = neutracer.MemoryMonitor()
    words = r"a MemoryMonitor can't be pickled or copied: .* send get_stats\(\)"
    for refused in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match=words):
            refused(monitor)


def test_every_handle_stays_here() -> None:
    handles = (
        neutracer.reports.CycleWatch,
        neutracer.reports.DeviceAttribution,
        neutracer.MemoryMonitor,
        neutracer.MetricsCollector,
        neutracer.reports.MetricsServer,
        neutracer.reports.OomWatch,
        neutracer.reports.PressureCollector,
        neutracer.reports.Recording,
    )
    for handle in handles:
        assert issubclass(handle, StaysHere)
        with pytest.raises(TypeError, match=rf"an? {handle.__name__} can't be pickled or copied:"):
            pickle.dumps(object.__new__(handle))


def test_live_is_pickled_by_name() -> None:
    assert all(there is neutracer.live for there in copies(neutracer.live))
