# SPDX-License-Identifier: Apache-2.0
"""The trackers with the real libraries, offline; what they keep is read back by their own."""

from __future__ import annotations

import dataclasses
import io
import os
import sys
from pathlib import Path
from typing import Any

import pytest

import neutracer

DATA = Path(__file__).parents[1] / "data"
SCALARS = {"neutracer/allocated_bytes": 5 << 20, "neutracer/forward/peak_bytes": 9 << 20}

pytestmark = pytest.mark.filterwarnings("default")


def package(name: str) -> Any:
    return pytest.importorskip(name, reason=f"needs {name}, which is not installed here")


@pytest.fixture
def snap():
    pytest.importorskip("matplotlib", reason="needs matplotlib, which is not installed here")
    return neutracer.load(DATA / "frag_default.pickle")


def test_tensorboard(torch, tmp_path, snap):
    package("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from torch.utils.tensorboard import SummaryWriter

    from neutracer.integrations.tensorboard import TensorBoardTracker

    with SummaryWriter(str(tmp_path)) as writer:
        tracker = TensorBoardTracker(writer)
        for step in (3, 4):
            tracker.scalars(SCALARS, step)
        tracker.text("oom", "OUT OF MEMORY\n  by <model>")
        tracker.show("oom", snap)
        tracker.finish()
    read = EventAccumulator(str(tmp_path)).Reload()
    for name, value in SCALARS.items():
        assert [(event.step, event.value) for event in read.Scalars(name)] == [
            (3, value),
            (4, value),
        ]
    assert set(read.Tags()["images"]) == {"neutracer/oom/mdtp", "neutracer/oom/timeline"}
    (image,) = read.Images("neutracer/oom/mdtp")
    assert image.encoded_image_string.startswith(b"\x89PNG")


def test_mlflow(tmp_path, snap, monkeypatch):
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/runs.db")
    mlflow = package("mlflow")
    from neutracer.integrations.mlflow import MlflowTracker

    monkeypatch.chdir(tmp_path)
    with mlflow.start_run() as run:
        tracker = MlflowTracker()
        for step in (3, 4):
            tracker.scalars(SCALARS, step)
        tracker.text("oom", "OUT OF MEMORY")
        tracker.show("oom", snap)
        tracker.finish()
    client = mlflow.MlflowClient()
    history = client.get_metric_history(run.info.run_id, "neutracer/forward/peak_bytes")
    assert [(one.step, one.value) for one in history] == [(3, 9 << 20), (4, 9 << 20)]
    kept = {entry.path for entry in client.list_artifacts(run.info.run_id, "neutracer/oom")}
    names = ("mdtp.png", "timeline.png", "oom.html", "report.txt")
    assert kept == {f"neutracer/oom/{name}" for name in names}


def test_wandb(tmp_path, snap, monkeypatch):
    for name, value in (("WANDB_MODE", "offline"), ("WANDB_SILENT", "true")):
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    # wandb leaves its own there.
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    wandb = package("wandb")
    from neutracer.integrations.wandb import WandbTracker

    with pytest.raises(neutracer.UnavailableError, match=r"wandb\.init"):
        WandbTracker()
    with wandb.init(project="neutracer", dir=str(tmp_path)) as run:
        tracker = WandbTracker(run)
        run.log({"loss": 1.0})
        for step in (3, 4):
            tracker.scalars(SCALARS, step)
        run.log({"loss": 0.5})
        tracker.text("oom", "OUT OF MEMORY <b>")
        tracker.show("oom", snap)
        summary = dict(run.summary)
        folder = Path(run.dir)
    wandb.teardown()
    os.environ.pop("WANDB_SERVICE", None)
    for name, value in SCALARS.items():
        assert summary[name] == value
    assert summary["neutracer/step"] == 4
    kinds = {name: summary[f"neutracer/oom/{name}"]["_type"] for name in ("mdtp", "page", "report")}
    assert kinds == {"mdtp": "image-file", "page": "html-file", "report": "html-file"}
    assert list(folder.glob("media/html/neutracer/oom/page*.html"))


def test_reports_go_to_the_tracker_with_their_pictures(tmp_path, snap):
    from neutracer.integrations.hosts import Showing

    seen: list[str] = []

    class Tracker(Showing):
        def scalars(self, values: Any, step: int) -> None: ...

        def figure(self, name: str, figure: Any) -> None:
            figure.savefig(io.BytesIO())
            seen.append(name)

        def text(self, name: str, text: str) -> None:
            seen.append(f"{name}: {text}")

        def page(self, name: str, path: Path) -> None:
            assert "<html" in path.read_text()
            seen.append(f"{name}: page")

    @dataclasses.dataclass
    class Report:
        text = str(tmp_path / "oom-1.txt")
        snapshot = str(tmp_path / "oom-1.pickle")

        def __str__(self) -> str:
            return "why"

    snap.save(Report.snapshot)
    tracker: Any = Tracker()
    tracker.out_of_memory(Report())
    assert seen == ["oom-1: why", "oom-1/mdtp", "oom-1/timeline", "oom-1: page"]


def test_opentelemetry():
    package("opentelemetry.sdk")
    from compiled import selftest
    from made_up_monitor import MadeUpMonitor
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader

    from neutracer.integrations.opentelemetry import instrument

    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    gib = 1 << 30
    selftest.sampler_set(0, 3 * gib, 4 * gib, 20 * gib, 80 * gib, 0, 0)
    monitor = MadeUpMonitor(interval=0.01)
    instrument(monitor, provider)
    with monitor:
        monitor.mark("one reading")
        data = reader.get_metrics_data()
    provider.shutdown()
    selftest.sampler_set(0, 0, 0, 0, 0, 1, 0)
    found = {
        metric.name: (metric, metric.data.data_points)
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }
    usage, points = found["hw.gpu.memory.usage"]
    assert (usage.unit, points[0].value) == ("By", 20 * gib)
    assert points[0].attributes["hw.id"]
    assert found["hw.gpu.memory.limit"][1][0].value == 80 * gib
    assert found["hw.gpu.memory.utilization"][1][0].value == 0.25
    allocated, points = found["neutracer.allocated"]
    assert (allocated.unit, points[0].value) == ("By", 3 * gib)
    with pytest.raises(TypeError, match="MemoryMonitor"):
        instrument("monitor", provider)
