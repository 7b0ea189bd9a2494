# SPDX-License-Identifier: Apache-2.0
"""Memory kept after its last use: bytes, peaks of the edited programs, and the edits."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import neutracer
from neutracer.reports import DragLine, DragReport

torch = pytest.importorskip("torch", reason="needs torch, which is not installed here")

MIB = 1 << 20


def layers(width: int, count: int) -> Any:
    return torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(count))).cuda()


def rehearsed(program: Callable[..., Any], *args: Any, **options: Any) -> Any:
    return neutracer.rehearse(lambda: program(*args), steps=3, device="H100", **options)


def peak(program: Callable[..., Any], *args: Any) -> int:
    return int(rehearsed(program, *args).timeline().peak().bytes)


def line_of(report: DragReport, edit: str) -> DragLine:
    """The line with the most savings by an edit."""
    return next(line for line in report.lines if line.edit == edit)


# ---- The programs of the design ------------------------------------------------------------


def evaluation(is_edited: bool) -> Any:
    """The outputs of the last batch are bound while the next batch is computed."""
    model, batch = layers(1024, 3), torch.randn(8192, 1024, device="cuda")

    @torch.no_grad()
    def step() -> None:
        for _ in range(3):
            out = model(batch)
            out.mean()
            if is_edited:
                del out

    return step


def distillation(is_edited: bool) -> Any:
    """A teacher builds a graph that no backward pass uses."""
    teacher, student = layers(1024, 6), layers(1024, 2)

    def step() -> None:
        batch = torch.randn(8192, 1024, device="cuda")
        with torch.set_grad_enabled(not is_edited):
            soft = teacher(batch)
        loss = (student(batch) - soft.detach()).abs().mean()
        loss.backward()
        student.zero_grad()

    return step


def distillation_by_targets(is_edited: bool) -> Any:
    """The backward pass of the loss uses what the teacher returns, and none of its graph."""
    teacher, student = layers(1024, 6), layers(1024, 2)

    def step() -> None:
        batch = torch.randn(8192, 1024, device="cuda")
        with torch.set_grad_enabled(not is_edited):
            soft = teacher(batch)
        torch.nn.functional.mse_loss(student(batch), soft.detach()).backward()
        student.zero_grad()

    return step


def late_zero_grad(is_edited: bool) -> Any:
    """Gradients live through the next forward pass."""
    model = layers(2048, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step() -> None:
        batch = torch.randn(4096, 2048, device="cuda")
        out = model(batch)
        torch.cat([out.detach()] * 6).std()
        loss = out.mean()
        if not is_edited:
            optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if is_edited:
            optimizer.zero_grad()

    return step


@pytest.mark.parametrize(
    ("program", "edit"),
    [
        (evaluation, "del"),
        (distillation, "no_grad"),
        (distillation_by_targets, "no_grad"),
        (late_zero_grad, "zero_grad"),
    ],
)
def test_the_edited_program_has_the_peak_that_was_predicted(program: Any, edit: str) -> None:
    report = neutracer.drag(rehearsed(program, False))
    line = line_of(report, edit)
    assert line.saved_bytes > 0
    assert line.peak_bytes == pytest.approx(peak(program, True), rel=0.01)
    assert report.peak_allocated_bytes == peak(program, False)
    assert report.least_peak_bytes <= line.peak_bytes


def test_edits_name_the_variable_and_the_lines() -> None:
    source = evaluation.__code__.co_firstlineno
    line = line_of(neutracer.drag(rehearsed(evaluation, False)), "del")
    assert line.drag_bytes == 32 * MIB
    assert line.line == source + 7
    assert line.advice == f"run `del out` before test_drag.py:{source + 7} runs again"
    line = line_of(neutracer.drag(rehearsed(distillation, False)), "no_grad")
    # All that the teacher makes but its result, which lives on without a graph.
    assert line.drag_bytes == 5 * 32 * MIB
    assert "put torch.no_grad() around test_drag.py:" in line.advice


def test_intermediates_of_a_model_of_the_program_s_own_are_one_call() -> None:
    class Teacher(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = (torch.nn.Linear(1024, 1024) for _ in range(2))

        def forward(self, batch: Any) -> Any:
            one = self.first(batch)
            two = self.second(one).exp()
            return two.sin()

    def program() -> Any:
        teacher = Teacher().cuda()

        def step() -> None:
            batch = torch.randn(8192, 1024, device="cuda")
            soft = teacher(batch)
            soft.detach().mean()
            torch.cat([batch] * 4)

        return step

    report = neutracer.drag(rehearsed(program))
    advice = {line.advice for line in report.lines if line.edit == "no_grad"}
    assert len(advice) == 1
    assert {line.function for line in report.lines if line.edit == "no_grad"} == {"forward"}
    assert f":{program.__code__.co_firstlineno + 5}:" in advice.pop()


def test_what_outlives_its_step_is_held_by_more_than_a_variable() -> None:
    def program() -> Any:
        outputs: list[Any] = []
        model = layers(1024, 2)

        @torch.no_grad()
        def step() -> None:
            out = model(torch.randn(8192, 1024, device="cuda"))
            out.mean()
            outputs.append(out)

        return step

    report = neutracer.drag(neutracer.rehearse(program, steps=5, device="H100"))
    line = line_of(report, "release")
    # Those of all steps but the last, at whose peak the batch is still an argument.
    assert line.drag_bytes == 4 * 32 * MIB
    assert "why_alive" in line.advice
    [batch] = [one for one in report.lines if one.advice.startswith("none: the expression")]
    assert batch.drag_bytes == 32 * MIB


def test_training_as_usual_has_nothing_to_edit() -> None:
    def program() -> Any:
        model = layers(1024, 4)
        optimizer = torch.optim.AdamW(model.parameters())

        def step() -> None:
            batch = torch.randn(8192, 1024, device="cuda")
            model(batch).relu().sum().backward()
            optimizer.step()
            optimizer.zero_grad()

        return step

    report = neutracer.drag(rehearsed(program))
    assert all(line.saved_bytes < MIB for line in report.lines if line.edit)
    assert report.moments[0].in_use_bytes > report.peak_allocated_bytes / 2


# ---- States --------------------------------------------------------------------------------


def test_states_of_each_kind_add_up() -> None:
    def step() -> None:
        early = torch.empty(2 << 18, device="cuda")
        void = torch.empty(3 << 18, device="cuda")
        dragged = torch.empty(5 << 18, device="cuda")
        dragged[:8].exp()
        used = torch.empty(7 << 18, device="cuda")
        used[:8].exp()
        hidden = torch.empty(9 << 18, device="cuda")
        hidden.data_ptr()
        torch.empty(64 << 18, device="cuda")
        early[:8].exp()
        used[:8].exp()
        del early, void, dragged, used, hidden

    [moment] = neutracer.drag(neutracer.rehearse(step, steps=1, device="H100")).moments
    assert moment.lag_bytes == 2 * MIB
    assert moment.void_bytes == 3 * MIB
    assert moment.drag_bytes == 5 * MIB
    assert moment.in_use_bytes == (7 + 64) * MIB
    assert moment.unknown_bytes == 9 * MIB
    parts = ("in_use", "drag", "lag", "void", "unknown")
    assert sum(getattr(moment, f"{part}_bytes") for part in parts) == moment.allocated_bytes


def test_the_end_of_the_trace_is_not_the_last_use() -> None:
    """Parameters and state are used in the next step, which is not in the trace."""

    def program() -> Any:
        weights = [torch.empty(2 << 18, device="cuda") for _ in range(4)]
        kept: list[Any] = []

        def step() -> None:
            for weight in weights:
                weight.add_(1)
            if not kept:
                kept.append(torch.empty(4 << 18, device="cuda"))
            torch.empty(64 << 18, device="cuda")

        return step

    # With its peak in the last step.
    snap = neutracer.rehearse(program, steps=1, device="H100")
    assert neutracer.drag(snap).moments[0].unknown_bytes == (2 * 4 + 4) * MIB
    # A whole step without a use shows that nothing needs it.
    snap = neutracer.rehearse(program, steps=3, device="H100")
    [moment] = neutracer.drag(snap).moments
    assert (moment.in_use_bytes, moment.void_bytes) == ((2 * 4 + 64) * MIB, 4 * MIB)


def test_a_failure_is_split_as_the_peak_is() -> None:
    def step() -> None:
        done, used = (torch.empty(20 << 18, device="cuda") for _ in range(2))
        done.add_(1)
        torch.empty(50 << 18, device="cuda")
        used.add_(1)
        torch.empty(100 << 18, device="cuda")

    snap = neutracer.rehearse(step, steps=2, device="H100", capacity="120MiB")
    report = neutracer.drag(snap)
    assert [moment.name for moment in report.moments] == ["peak", "failure"]
    assert report.moments[1].event == len(snap.events) - 1
    assert report.moments[1].allocated_bytes == 40 * MIB


# ---- Report --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("drag") / "rehearsed.pickle.gz"
    rehearsed(distillation, False).save(path)
    return path


def command(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "neutracer", "drag", *words], capture_output=True, text=True
    )


def test_command_prints_what_the_function_gives(file: Path) -> None:
    done = command(str(file))
    report = neutracer.drag(file)
    assert done.returncode == 0, done.stderr
    assert "put torch.no_grad() around" in done.stdout.replace("Put", "put")
    assert report.findings[-1].kind == "drag"
    plain = json.loads(command("--json", str(file)).stdout)
    assert plain == json.loads(json.dumps(report.to_dict()))
    assert plain["schema"] == "neutracer.drag/1"
    assert command("--fail-on", "serious", str(file)).returncode == 1


def test_a_file_without_uses_is_refused_in_one_sentence() -> None:
    done = command("tests/data/frag_default.pickle")
    assert done.returncode == 2
    assert "has no uses: record them" in done.stderr
    with pytest.raises(ValueError, match="has no uses"):
        neutracer.drag("tests/data/frag_default.pickle")
