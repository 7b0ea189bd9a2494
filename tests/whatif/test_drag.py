# SPDX-License-Identifier: Apache-2.0
"""Memory kept after its last use: bytes, peaks of the edited programs, and the edits."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import neutracer
from neutracer.leak.diff import more_drag
from neutracer.oom.bill import BillTerm, bill_at
from neutracer.overview import overview
from neutracer.render.document import Figure
from neutracer.reports import DragLine, DragMoment, DragReport

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
    assert not any(line.drag for line in neutracer.explain(snap).bill.lines)


def idle_bytes(moment: DragMoment) -> int:
    return moment.drag_bytes + moment.void_bytes


# ---- Where it is shown ---------------------------------------------------------------------


@pytest.fixture(scope="module")
def snap(file: Path) -> Any:
    return neutracer.load(file)


PLAIN = "tests/data/frag_default.pickle"
PAST = "past its last use, or never used"


def test_the_bill_splits_its_lines_as_the_report_does(snap: Any) -> None:
    report = neutracer.drag(snap)
    [moment] = report.moments
    bill = bill_at(snap, 0, moment.event)
    assert sum(line.drag for line in bill.lines) == idle_bytes(moment) > 5 * 32 * MIB
    lines = Counter[tuple[str, int]]()
    for line in report.lines:
        lines[line.function, line.line] += line.idle_bytes
    told = {(line.place.function, line.place.line): line.drag for line in bill.lines if line.place}
    assert +lines == +Counter(told)
    assert list(bill.table()["drag"]) == [one.drag for one in bill.terms]
    teacher = max(bill.lines, key=lambda line: line.drag)
    block = bill.block()
    assert block.columns[-1] == "past last use"
    assert block.rows[0][0] == Figure.bytes(teacher.bytes)
    assert block.rows[0][-1] == Figure.bytes(teacher.drag)
    assert overview(snap).to_dict()["devices"][0]["bill"]["terms"][0]["drag"] == teacher.drag


def test_the_bill_of_a_failure_has_what_a_whole_step_did_not_use() -> None:
    def program() -> Any:
        kept: list[Any] = []

        def step() -> None:
            kept.append(torch.empty(20 << 18, device="cuda"))
            kept[-1].add_(1)
            torch.empty(2 << 18, device="cuda")

        return step

    snap = neutracer.rehearse(program, steps=9, device="H100", capacity="130MiB")
    *_, failure = neutracer.drag(snap).moments
    bill = neutracer.explain(snap).bill
    assert failure.name == "failure"
    assert sum(line.drag for line in bill.lines) == idle_bytes(failure) >= 3 * 20 * MIB
    assert "past last use" in bill.block().columns
    assert {len(row) for row in bill.block().rows} == {len(bill.block().columns)}


def test_a_bill_has_no_column_where_little_is_past_its_last_use(snap: Any) -> None:
    plain = neutracer.explain(PLAIN).bill
    assert "past last use" not in plain.block().columns
    assert not any(one.drag for one in plain.terms)
    bill = bill_at(snap, 0, neutracer.drag(snap).moments[0].event)
    least = sum(line.bytes for line in bill.lines) // 100
    small = replace(bill, terms=tuple(replace(one, drag=0) for one in bill.terms))
    large = replace(
        bill, terms=(*small.terms, BillTerm(term="line", bytes=3 * least, drag=3 * least))
    )
    assert "past last use" not in small.block().columns
    assert "past last use" in large.block().columns
    for shown in (small, large):
        assert {len(row) for row in shown.block().rows} == {len(shown.block().columns)}


@pytest.mark.parametrize("x", ["event", "time"])
def test_the_map_hatches_what_is_past_its_last_use(snap: Any, x: str) -> None:
    pytest.importorskip("matplotlib")
    [moment] = neutracer.drag(snap).moments
    figure = neutracer.mdtp(snap, x=x)
    axes = figure.axes[1]
    [hatched] = [patch for patch in axes.patches if patch.get_label() == "idle"]
    assert hatched.get_hatch()
    boxes = [polygon.reshape(-1) for polygon in hatched.get_path().to_polygons()]
    sides = [(min(b[0::2]), max(b[0::2]), min(b[1::2]), max(b[1::2])) for b in boxes]
    time = snap.timeline().time_us
    at = moment.event + 0.5 if x == "event" else (time[moment.event] - time[0]) / 1e6 + 1e-9
    shown = sum(top - low for first, end, low, top in sides if first < at < end)
    assert shown == idle_bytes(moment)
    words = " ".join(text.get_text() for text in figure.texts)
    assert "Hatched blocks are past their last use, or never used." in words


def test_the_map_hatches_the_largest_of_what_it_shows(
    snap: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")
    from neutracer.picture import draw

    every = draw.Scene(snap, draw.Request(x="event"), "").idle_boxes
    part = draw.Scene(snap, draw.Request(x="event", time_range=(60, 120)), "")
    assert 0 < len(part.idle_boxes) < len(every)
    assert part.idle_boxes[:, :2].min() >= part.view[0]
    assert part.idle_boxes[:, :2].max() <= part.view[1]
    monkeypatch.setattr(draw, "_MOST_HATCHED", 3)
    largest = draw.Scene(snap, draw.Request(x="event"), "").idle_boxes
    assert largest.tolist() == every[:3].tolist()
    figure = neutracer.mdtp(PLAIN)
    assert not [patch for patch in figure.axes[1].patches if patch.get_label() == "idle"]
    assert not any("Hatched" in text.get_text() for text in figure.texts)


def test_the_map_of_a_stream_hatches_its_own_blocks() -> None:
    pytest.importorskip("matplotlib")
    from neutracer.picture.draw import Request, Scene

    def step() -> None:
        side = torch.cuda.Stream()
        kept = torch.empty(20 << 18, device="cuda")
        kept.add_(1)
        with torch.cuda.stream(side):
            other = torch.empty(30 << 18, device="cuda")
            other.add_(1)
            for _ in range(3):
                torch.empty(40 << 18, device="cuda")
        del kept, other

    snap = neutracer.rehearse(step, steps=1, device="H100")
    heights = {}
    for stream in (None, 0, 1):
        scene = Scene(snap, Request(x="event", stream=stream), "")
        boxes = scene.idle_boxes
        heights[stream] = {int(height) // MIB for height in boxes[:, 3] - boxes[:, 2]}
    assert heights[0] == {20}
    assert heights[1] >= {30}
    assert heights[None] == heights[0] | heights[1]


def test_the_timeline_hatches_a_part_of_each_band(snap: Any) -> None:
    pytest.importorskip("matplotlib")
    from neutracer.picture.curves import stacked_bands
    from neutracer.picture.draw import Request, Scene

    [moment] = neutracer.drag(snap).moments
    for by, top in (("category", 20), ("place", 1)):
        states, bands = stacked_bands(Scene(snap, Request(x="event"), ""), by, top)
        column = states.tolist().index(moment.event + 1)
        assert sum(idle[column] for *_, idle in bands) == idle_bytes(moment)
        assert all(((idle >= 0) & (idle <= values)).all() for _, values, idle in bands)
    [axes] = neutracer.plot_timeline(snap, by="category").axes
    assert PAST in [text.get_text() for text in axes.get_legend().get_texts()]
    assert any(band.get_hatch() for band in axes.collections)
    [axes] = neutracer.plot_timeline(PLAIN).axes
    assert PAST not in [text.get_text() for text in axes.get_legend().get_texts()]
    assert not any(band.get_hatch() for band in axes.collections)


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


# ---- Findings of other reports -------------------------------------------------------------


def drags(report: Any) -> list[Any]:
    return [one for one in report.findings if one.kind == "drag"]


def test_the_report_says_what_drags_as_drag_does(snap: Any) -> None:
    found = drags(neutracer.report(snap))
    assert found == drags(neutracer.drag(snap))
    assert (str(found[0].severity), found[0].bytes) == ("serious", 5 * 32 * MIB)
    line = line_of(neutracer.drag(snap), "no_grad")
    assert found[0].evidence[0].place == line.place
    report = neutracer.report(snap)
    text = " ".join(str(report).split())
    assert f"{line.advice[1:]}." in text
    assert line.peak_bytes is not None
    assert f"to {line.peak_bytes / MIB:.0f} MiB." in text
    told = next(one for one in report.to_dict()["findings"] if one["kind"] == "drag")
    assert told["bytes"] == 5 * 32 * MIB


def test_late_gradients_with_uses_are_told_once() -> None:
    snap = rehearsed(late_zero_grad, False)
    kinds = [one.kind for one in neutracer.report(snap).findings]
    assert "late_zero_grad" not in kinds
    [found] = drags(neutracer.report(snap))
    assert "zero_grad() right after optimizer.step()" in str(found.advice[0])
    assert not drags(neutracer.report(rehearsed(late_zero_grad, True)))


def test_what_is_worth_little_or_has_no_edit_is_no_finding(snap: Any) -> None:
    report = neutracer.drag(snap)
    told = {one.evidence[0].place for one in drags(report)}
    least = report.peak_allocated_bytes // 20
    assert told == {one.place for one in report.lines if one.edit and one.saved_bytes > least}
    assert any(one.saved_bytes > least and not one.edit for one in report.lines)
    assert any(0 < one.saved_bytes < least for one in report.lines)
    assert not drags(neutracer.report(PLAIN))


def test_diff_says_what_drags_in_the_later_run_alone(snap: Any) -> None:
    healthy = rehearsed(distillation, True)
    found = drags(neutracer.diff(healthy, snap))
    [serious] = [one for one in found if str(one.severity) == "serious"]
    assert serious.bytes == 5 * 32 * MIB
    assert str(serious.advice[0]).startswith("Put torch.no_grad() around")
    assert not [one for one in drags(neutracer.diff(snap, healthy)) if one.bytes > 32 * MIB]
    assert not drags(neutracer.diff(snap, snap))
    # Recordings without uses say nothing of it.
    assert not drags(neutracer.diff(PLAIN, PLAIN))
    # What grew says what it was.
    less = replace(serious, bytes=serious.bytes - 50 * MIB)
    [grown] = more_drag((less,), (serious,), peak=1000 * MIB)
    assert str(grown.evidence[-1]) == "110 MiB before."
    assert not list(more_drag((less,), (serious,), peak=10_000 * MIB))


# ---- Kinds of blocks -----------------------------------------------------------------------


@pytest.mark.parametrize("is_cast", [False, True])
def test_last_step_is_as_those_before_it(is_cast: bool) -> None:
    """What the recording's end keeps of its last step hides nothing, nor does what an operator
    makes beside its result: copies of its arguments in another type."""
    kept: dict[str, Any] = {}

    def forward(weight: Any, rows: Any) -> Any:
        logits = rows @ weight
        return logits, torch.log_softmax(logits, 1)[:, 0].mean()

    def program() -> None:
        weight = torch.nn.Parameter(torch.randn(1024, 2048, device="cuda"))
        optimizer = torch.optim.SGD([weight], lr=0.1)
        for _ in range(6):
            rows = torch.ones(8192, 1024, device="cuda")
            with torch.autocast("cuda", torch.bfloat16, enabled=is_cast):
                kept["logits"], loss = forward(weight, rows)
            loss.backward()
            rows.mean()
            optimizer.step()
            optimizer.zero_grad()

    report = neutracer.drag(neutracer.rehearse(program, steps=1, device="H100"))
    line = line_of(report, "del")
    assert line.drag_bytes == line.saved_bytes == (32 if is_cast else 64) * MIB
    # The function that made it is over: its caller keeps it.
    assert f"test_drag.py:{program.__code__.co_firstlineno + 6}" in line.advice


def test_lines_that_one_edit_frees_are_one_finding() -> None:
    def features(x: Any) -> list[Any]:
        first = x.sin()
        second = x.cos()
        third = x.exp()
        fourth = x.tanh()
        return [first, second, third, fourth]

    def program() -> None:
        x = torch.randn(1 << 20, device="cuda")
        for _ in range(4):
            kept = features(x)
            sum(one.mean() for one in kept).item()
            torch.ones(90 << 20, dtype=torch.uint8, device="cuda").sum()
            torch.ones(1, device="cuda")

    report = neutracer.drag(neutracer.rehearse(program, steps=1, device="H100"))
    small = [line for line in report.lines if line.drag_bytes == 4 * MIB]
    assert len(small) == 4
    assert all(line.saved_bytes < report.peak_allocated_bytes / 20 for line in small)
    [found] = drags(report)
    assert found.bytes == 16 * MIB
    assert [note.place.function for note in found.evidence[:-1]] == ["features"] * 3
    assert "the peak falls by 16 MiB" in str(found.evidence[-1])


def test_variable_that_the_other_of_two_optimizers_outlives_is_no_cache() -> None:
    def program() -> None:
        critic, maker = layers(1024, 1), layers(1024, 1)
        optimizers = [torch.optim.SGD(one.parameters(), lr=0.1) for one in (critic, maker)]
        for _ in range(6):
            real = torch.randn(8192, 1024, device="cuda")
            critic(real).mean().backward()
            optimizers[0].step()
            optimizers[0].zero_grad()
            critic(maker(torch.randn(8192, 1024, device="cuda"))).mean().backward()
            optimizers[1].step()
            optimizers[1].zero_grad()

    report = neutracer.drag(neutracer.rehearse(program, steps=1, device="H100"))
    advice = [line.advice for line in report.lines if line.drag_bytes == 32 * MIB]
    assert any(text.startswith("run `del real`") for text in advice)
    assert not any(line.edit == "release" for line in report.lines)


def test_peak_if_freed_is_never_higher(snap: Any) -> None:
    for one in (snap, rehearsed(evaluation, True), rehearsed(late_zero_grad, True)):
        report = neutracer.drag(one)
        assert report.least_peak_bytes <= report.peak_allocated_bytes
