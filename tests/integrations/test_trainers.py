# SPDX-License-Identifier: Apache-2.0
"""The callbacks in the real trainers, on the CPU: only the counters of CUDA are made up."""

from __future__ import annotations

import json
import logging
import sys
from typing import Any

import fake_cuda
import pytest

import neutracer
from neutracer.monitor import phases as counters

MIB = 1 << 20


class Device:
    """Counters of a device on which each phase allocates."""

    def __init__(self) -> None:
        self.allocated = 100 * MIB
        #: Bytes that are allocated and freed between two boundaries.
        self.burst = 7 * MIB
        self.fails = False

    def read(self, device: int | None = None, follow: bool = False) -> counters.Counters:
        if self.fails:
            raise RuntimeError("the driver is gone")
        peak = self.allocated + self.burst
        return counters.Counters(0, self.allocated, peak, 1 << 30, 1 << 30, 0, 0)


class Kept:
    """A tracker that keeps what it gets."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, dict[str, int]]] = []
        self.ooms: list[Any] = []
        self.finished = 0

    def scalars(self, values: Any, step: int) -> None:
        self.rows.append((step, dict(values)))

    def out_of_memory(self, report: Any) -> None:
        self.ooms.append(report)

    def finish(self) -> None:
        self.finished += 1

    def phases(self) -> set[str]:
        """The phases of which there were figures."""
        names = {name.split("/")[1] for _, row in self.rows for name in row if name.count("/") == 2}
        return names


@pytest.fixture
def device(monkeypatch):
    made = Device()
    monkeypatch.setattr(counters, "read", made.read)
    return made


def package(name: str) -> Any:
    return pytest.importorskip(name, reason=f"needs {name}, which is not installed here")


# ---- any trainer -----------------------------------------------------------------------


def test_phases_have_their_own_peaks(monkeypatch):
    fake = fake_cuda.install(monkeypatch)
    with neutracer.phase("outer") as outer:
        fake.hold(10 * MIB)
        fake.drop()
        with neutracer.phase("inner") as inner:
            fake.hold(3 * MIB)
    assert (outer.start_bytes, outer.peak_bytes, outer.end_bytes) == (4 * MIB, 14 * MIB, 7 * MIB)
    assert (inner.start_bytes, inner.peak_bytes, inner.left_bytes) == (4 * MIB, 7 * MIB, 3 * MIB)
    assert str(inner) == "<Phase inner: at least 7 MiB at its peak, 7 MiB at its end>"
    # A peak that is not new was not seen.
    with neutracer.phase("again") as again:
        fake.hold(2 * MIB)
        fake.drop()
    assert (again.peak_bytes, again.peak_is_exact) == (7 * MIB, False)
    assert fake.peak == 14 * MIB


def test_a_counter_that_the_program_resets_is_read_on(monkeypatch):
    fake = fake_cuda.install(monkeypatch)
    fake.hold(20 * MIB)
    fake.drop()
    with neutracer.phase("profile") as profile:
        fake.module.cuda.reset_peak_memory_stats()
        fake.hold(9 * MIB)
        fake.drop()
    assert profile.peak_bytes == 13 * MIB


def test_a_phase_stays_with_the_device_on_which_it_began(monkeypatch):
    held, peaks, current = [100, 900], [100, 900], [0]

    def read(device=None, follow=False):
        at = current[0] if device is None else device
        found = counters.Counters(at, held[at], peaks[at], held[at], peaks[at], 0, 0)
        peaks[at] = held[at]
        return found

    monkeypatch.setattr(counters, "read", read)
    with neutracer.phase("outer") as outer:
        peaks[0] = 150
        current[0] = 1
        with neutracer.phase("inner") as inner:
            peaks[:] = 170, 1000
        held[0] = 120
    assert (outer.device, outer.start_bytes, outer.peak_bytes, outer.end_bytes) == (
        0,
        100,
        170,
        120,
    )
    assert (inner.device, inner.start_bytes, inner.peak_bytes, inner.end_bytes) == (
        1,
        900,
        1000,
        900,
    )


def test_figures_of_a_step_have_one_naming(monkeypatch, tmp_path):
    fake = fake_cuda.install(monkeypatch)
    kept = Kept()
    with neutracer.training(tmp_path, trackers=[kept], max_entries=0) as run:
        for _ in range(2):
            with run.step():
                with run.phase("forward pass"):
                    fake.hold(6 * MIB)
                with run.phase("backward"):
                    fake.drop()
    assert kept.finished == 1
    assert [step for step, _ in kept.rows] == [0, 1]
    assert kept.rows[1][1] == {
        "neutracer/allocated_bytes": 4 * MIB,
        "neutracer/reserved_bytes": 32 * MIB,
        "neutracer/peak_bytes": 10 * MIB,
        "neutracer/alloc_retries": 0,
        "neutracer/ooms": 0,
        "neutracer/forward_pass/peak_bytes": 10 * MIB,
        "neutracer/forward_pass/end_bytes": 10 * MIB,
        "neutracer/backward/peak_bytes": 10 * MIB,
        "neutracer/backward/end_bytes": 4 * MIB,
    }


def test_reports_say_where_the_program_was(monkeypatch, tmp_path):
    fake = fake_cuda.install(monkeypatch)
    kept = Kept()
    run = neutracer.training(tmp_path, trackers=[kept], configuration={"optim": "adamw"})

    def step() -> None:
        with run, run.step({"ids": Shaped()}, 12), run.phase("forward"):
            fake.run_out()

    with pytest.raises(fake.module.OutOfMemoryError):
        step()
    (report,) = kept.ooms
    running = json.loads((tmp_path / report.json).read_text())["process"]["running"]
    assert running == {
        "trainer": "training",
        "step": 12,
        "phases": ["forward"],
        "batch": {"ids": "int64 [8, 128]"},
        "configuration": {"optim": "adamw"},
    }
    text = (tmp_path / report.text).read_text()
    for words in ("training, step 12, forward", "ids: int64 [8, 128]", "optim=adamw"):
        assert words in text


class Shaped:
    """As much of a tensor as is looked at."""

    shape = (8, 128)
    dtype = "torch.int64"


def test_an_evaluation_that_leaves_memory_is_named_once(device, tmp_path, caplog):
    caplog.set_level(logging.WARNING, logger="neutracer")
    run = neutracer.training(tmp_path, max_entries=0)
    for _ in range(4):
        run.enter("evaluation")
        device.allocated += 30 * MIB
        run.leave("evaluation")
    assert len(run.warned) == 1
    assert run.warned[0].startswith("evaluation left 30 MiB of cuda:0 behind")
    assert ".cpu()" in caplog.text


def test_steps_without_cuda_are_said_once_to_have_no_figures(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(counters, "read", lambda device=None, follow=False: None)
    kept = Kept()
    with neutracer.training(tmp_path, trackers=[kept], max_entries=0) as run:
        for _ in range(3):
            with run.step():
                pass
    assert (kept.rows, run.warned) == ([], [])
    assert [line for line in caplog.messages if "has not used CUDA" in line] == [
        "steps are not measured: this program has not used CUDA so far"
    ]


@pytest.mark.parametrize(("more", "verdict"), [(0, "steady"), (2 * MIB, "growing")])
def test_growth_is_told_at_the_end_of_an_epoch(device, tmp_path, more, verdict):
    run = neutracer.training(tmp_path, max_entries=0)
    for _ in range(40):
        with run.step():
            device.allocated += more
    assert run.end_epoch() == verdict
    assert len(run.warned) == (verdict == "growing")


def test_a_tracker_that_fails_ends_nothing(device, tmp_path):
    class Broken(Kept):
        def scalars(self, values: Any, step: int) -> None:
            raise ConnectionError("no route to host")

    kept = Kept()
    with neutracer.training(tmp_path, trackers=[Broken(), kept], max_entries=0) as run:
        for _ in range(3):
            with run.step():
                pass
    assert len(kept.rows) == 3
    assert run.warned == ["a tracker failed: no route to host"]


@pytest.mark.parametrize(
    "options",
    [
        {"every": 0},
        {"every": "1"},
        {"trackers": 3},
        {"trackers": [print]},
        {"name": 3},
        {"configuration": 3},
    ],
)
def test_wrong_arguments_are_refused(options):
    with pytest.raises((TypeError, ValueError)):
        neutracer.training(**options)


# ---- Hugging Face ----------------------------------------------------------------------


def hugging_face(torch: Any, folder: Any, callback: Any, **options: Any) -> Any:
    transformers = package("transformers")
    config = transformers.GPT2Config(
        n_layer=1, n_head=2, n_embd=16, vocab_size=100, bos_token_id=1, eos_token_id=2
    )
    rows = [{"input_ids": torch.arange(8), "labels": torch.arange(8)} for _ in range(8)]
    arguments = transformers.TrainingArguments(
        output_dir=str(folder / "out"),
        per_device_train_batch_size=2,
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
        **{"max_steps": 2, "save_strategy": "no", **options},
    )
    return transformers.Trainer(
        transformers.GPT2LMHeadModel(config),
        arguments,
        train_dataset=rows,
        eval_dataset=rows,
        callbacks=[callback],
    )


@pytest.fixture
def hf_callback(torch, tmp_path):
    package("transformers")
    from neutracer.integrations.transformers import NeutracerCallback

    return NeutracerCallback(tmp_path / "oom", trackers=[Kept()], max_entries=0)


@pytest.mark.filterwarnings("default")
def test_transformers_trainer(torch, device, tmp_path, hf_callback):
    often = {"eval_strategy": "steps", "eval_steps": 1, "save_strategy": "steps", "save_steps": 1}
    trainer = hugging_face(torch, tmp_path, hf_callback, **often, gradient_accumulation_steps=2)
    trainer.train()
    (kept,) = hf_callback.run._trackers
    assert kept.phases() == {"forward", "backward", "optimizer", "evaluation", "checkpoint"}
    assert kept.finished == 1
    assert kept.rows[0][1]["neutracer/forward/peak_bytes"] == 107 * MIB
    assert hf_callback.run.configuration["model"] == "GPT2LMHeadModel"
    assert not trainer.model._forward_hooks
    assert not trainer.model._forward_pre_hooks


@pytest.mark.filterwarnings("default")
def test_transformers_trainer_goes_on_where_the_callback_fails(
    torch, device, tmp_path, hf_callback
):
    device.fails = True
    trainer = hugging_face(torch, tmp_path, hf_callback)
    assert trainer.train().global_step == 2


# ---- Lightning -------------------------------------------------------------------------


def lightning_run(torch: Any, folder: Any, **options: Any) -> Any:
    lightning = package("lightning.pytorch")

    class Model(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(4, 1)

        def training_step(self, batch: Any, number: int) -> Any:
            return self.layer(batch).sum()

        def validation_step(self, batch: Any, number: int) -> None:
            self.layer(batch)

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), 0.1)

    loader = torch.utils.data.DataLoader(torch.randn(8, 4), batch_size=2)
    settings = {"enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
    trainer = lightning.Trainer(
        default_root_dir=str(folder), max_epochs=2, log_every_n_steps=1, **settings, **options
    )
    trainer.fit(Model(), loader, loader)
    return trainer


@pytest.mark.filterwarnings("default")
def test_lightning_trainer(torch, device, tmp_path, monkeypatch):
    # Lightning sets it for good.
    monkeypatch.setenv("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    package("lightning.pytorch")
    from neutracer.integrations.lightning import NeutracerCallback

    kept = Kept()
    callback = NeutracerCallback(tmp_path / "oom", trackers=[kept], max_entries=0)
    lightning_run(torch, tmp_path, callbacks=[callback])
    assert kept.phases() == {"forward", "backward", "optimizer", "evaluation", "checkpoint"}
    # Eight steps, and the checkpoint after the last.
    assert len(kept.rows) == 9
    assert kept.finished == 1
    assert callback.run.configuration["max_epochs"] == 2


@pytest.mark.parametrize(("value", "count"), [("1", 1), ("0", 0), ("", 0)])
def test_lightning_finds_the_callback_where_it_is_asked_to(monkeypatch, value, count):
    package("lightning.pytorch")
    from lightning.pytorch import Callback

    from neutracer.integrations.lightning import callbacks

    monkeypatch.setenv("NEUTRACER", value)
    found = callbacks()
    assert [isinstance(one, Callback) for one in found] == [True] * count


# ---- accelerate ------------------------------------------------------------------------


@pytest.mark.filterwarnings("default")
def test_accelerate_tracker(torch, device, tmp_path):
    accelerate = package("accelerate")
    from neutracer.integrations.accelerate import NeutracerTracker

    tracker = NeutracerTracker(tmp_path, max_entries=0)
    accelerator = accelerate.Accelerator(cpu=True, log_with=[tracker])
    accelerator.init_trackers("project", config={"lr": 0.1})
    for step in range(3):
        accelerator.log({"loss": 1.0}, step=step)
    accelerator.end_training()
    rows = [json.loads(line) for line in (tmp_path / "neutracer.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [0, 1, 2]
    assert rows[0]["neutracer/step/peak_bytes"] == 107 * MIB
    assert tracker.tracker.configuration == {"lr": 0.1}


@pytest.mark.filterwarnings("default")
def test_an_error_that_accelerate_swallows_is_written(monkeypatch, torch, tmp_path):
    package("accelerate")
    from accelerate.utils import find_executable_batch_size

    fake = fake_cuda.FakeTorch()
    tried = []

    @find_executable_batch_size(starting_batch_size=8)
    def train(batch_size: int) -> int:
        tried.append(batch_size)
        monkeypatch.setitem(sys.modules, "torch", fake.module)
        try:
            with run.step(number=batch_size), run.phase("forward"):
                if batch_size > 2:
                    fake.run_out()
        finally:
            monkeypatch.setitem(sys.modules, "torch", torch)
        return batch_size

    monkeypatch.setitem(sys.modules, "torch", fake.module)
    run = neutracer.training(tmp_path).start()
    monkeypatch.setitem(sys.modules, "torch", torch)
    assert train() == 2
    monkeypatch.setitem(sys.modules, "torch", fake.module)
    assert run.watch.seen == len(tried) - 1
    written = [json.loads(path.read_text()) for path in sorted(tmp_path.glob("oom-*[0-9].json"))]
    run.stop()
    assert (tried[0], tried[-1]) == (8, 2)
    # One report a place, however often it runs out there.
    assert [report["process"]["running"]["step"] for report in written] == [8]
