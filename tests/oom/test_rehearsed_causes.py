# SPDX-License-Identifier: Apache-2.0
"""Programs of torch that run out of memory in a rehearsal: what the first advice is."""

from __future__ import annotations

import copy
import gc
import importlib
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import neutracer

torch = pytest.importorskip("torch")

# A rehearsal goes on behind the failure, and what comes there is not in its snapshot: the programs
# end soon after it.
STEPS = 13

#: The process knows that no garbage holds anything, and that autograd recorded.
CLEAN = neutracer.OomFacts(garbage_bytes=0, grad_enabled=True)


def model(width: int = 512) -> Any:
    nn = torch.nn
    layers = [nn.Linear(width, width), nn.Tanh(), nn.Linear(width, width)]
    return nn.Sequential(*layers).cuda()


def batch(rows: int, width: int = 512) -> Any:
    return torch.randn(rows, width, device="cuda")


def sharpness_of_new_models() -> None:
    gc.disable()
    try:
        for _ in range(STEPS):
            one = model()
            measure(one, batch(4096))
    finally:
        gc.enable()


def sharpness_beside_training() -> None:
    """Each step has a backward pass that frees what its forward pass made, and one that does
    not."""
    one = model()
    optimizer = torch.optim.SGD(one.parameters(), lr=1e-3)
    gc.disable()
    try:
        for _ in range(STEPS):
            one(batch(8192)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            measure(copy.deepcopy(one), batch(1024))
    finally:
        gc.enable()


def measure(one: Any, inputs: Any) -> None:
    one(inputs).square().mean().backward(create_graph=True)


def sharpness_of_one_model() -> None:
    one, head = model(), torch.nn.Linear(512, 1024).cuda()
    for _ in range(STEPS):
        measure_classes(one, head)


def measure_classes(one: Any, head: Any) -> None:
    logits = head(one(batch(2048)))
    wanted = torch.randint(0, 1024, (2048,), device="cuda")
    torch.nn.functional.cross_entropy(logits, wanted).backward(create_graph=True)


def logits_and_gradients() -> None:
    one, head = model(), torch.nn.Linear(512, 4096).cuda()
    kept = []
    for _ in range(STEPS):
        kept.append(influence(one, head))


def influence(one: Any, head: Any) -> Any:
    """What is kept of a step: its logits, and a gradient for each parameter."""
    logits = head(one(batch(1024)))
    parameters = [*one.parameters(), *head.parameters()]
    return logits.detach(), torch.autograd.grad(logits.square().mean(), parameters)


def saliency_of_a_layer() -> None:
    conv = torch.nn.Conv2d
    one = torch.nn.Sequential(conv(3, 16, 3), torch.nn.ReLU(), conv(16, 16, 3)).cuda()
    maps: list[Any] = []
    one[1].register_forward_hook(lambda module, inputs, output: maps.append(output.detach()))
    one[1].register_full_backward_hook(lambda module, inputs, outputs: maps.append(outputs[0]))
    for _ in range(STEPS):
        explain_images(one)


def explain_images(one: Any) -> None:
    one(torch.randn(8, 3, 128, 128, device="cuda")).square().mean().backward()


def trials_that_are_kept() -> None:
    kept = []
    for _ in range(24):
        kept.append(trial())


def trial() -> Any:
    one = model()
    one(batch(256)).square().mean().backward()
    return one


def gradients_of_each_sample() -> None:
    one = model()
    named = {name: each.detach() for name, each in one.named_parameters()}

    def loss(parameters: Any, sample: Any) -> Any:
        return torch.func.functional_call(one, parameters, (sample,)).square().mean()

    for _ in range(3):
        torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(named, batch(256))


def predictions_of_an_epoch() -> None:
    one = model()
    optimizer = torch.optim.Adam(one.parameters())
    for length in (10, 40):
        for _ in range(8):
            one(batch(1024)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        with torch.no_grad():
            kept = [predict(one) for _ in range(length)]
        del kept


def predict(one: Any) -> Any:
    return one(batch(4096)).softmax(-1)


def outputs_with_their_graph() -> None:
    """Nothing is freed while they come."""
    one = model()
    optimizer = torch.optim.SGD(one.parameters(), lr=1e-3)
    for _ in range(8):
        one(batch(256)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    kept = [one(batch(1024)) for _ in range(40)]
    torch.cat(kept).mean().item()


def state_with_its_graph() -> None:
    cell, state = torch.nn.GRUCell(512, 512).cuda(), batch(64)
    for _ in range(50):
        state = cell(batch(64), state)


def more_parts_in_each_of_few_steps() -> None:
    one = model()
    optimizer = torch.optim.SGD(one.parameters(), lr=1e-3)
    for parts in (4, 8, 12):
        sum(part_loss(one, 512) for _ in range(parts)).backward()
        optimizer.step()
        optimizer.zero_grad()


def larger_queries() -> None:
    """No backward pass ever runs."""
    one = model()
    for rows in (*[1024] * 10, *[2048] * 10, 8192):
        answer(one, rows)


def answer(one: Any, rows: int) -> Any:
    return one(batch(rows)).argmax(-1)


def beside_a_reference() -> None:
    one = model(2048)
    reference = copy.deepcopy(one)
    wanted = reference(batch(64, 2048)).detach()
    optimizer = torch.optim.Adam(one.parameters())
    for _ in range(3):
        (one(batch(64, 2048)) - wanted).square().mean().backward()
        optimizer.step()


def trained_in_half() -> None:
    """The reference has twice the bytes of the model that is trained, and no use any more."""
    one = torch.nn.Sequential(*[torch.nn.Linear(2048, 2048) for _ in range(10)]).cuda()
    half = copy.deepcopy(one).bfloat16()
    optimizer = torch.optim.Adam(half.parameters())
    inputs = batch(16, 2048).bfloat16()
    for _ in range(4):
        half(inputs).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def rollouts_with_a_graph() -> None:
    """A rollout is longer than a step, and comes before some of them."""
    one, policy = model(), model()
    optimizer = torch.optim.SGD(policy.parameters(), lr=1e-3)
    mean = torch.zeros((), device="cuda")
    for _ in range(5):
        bonus = one(batch(1024)).square().mean()
        mean = mean * 0.9 + bonus * 0.1
        with torch.no_grad():
            for _ in range(40):
                policy(batch(64))
        for _ in range(6):
            policy(batch(64)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()


def kept_in_the_last_phase() -> None:
    one = model()
    optimizer = torch.optim.SGD(one.parameters(), lr=1e-3)
    kept = []
    for step in range(172):
        outputs = one(batch(1024))
        outputs.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if step >= 150:
            kept.append(outputs.detach().clone())


def tables_that_are_replaced() -> None:
    table = torch.nn.Parameter(batch(1024))
    optimizer = torch.optim.Adam([table])
    for day in range(1, 18):
        for _ in range(6):
            (table * batch(1024 + 16 * (day - 1))).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        table = torch.nn.Parameter(torch.cat([table.detach(), batch(16)]))
        optimizer.add_param_group({"params": [table]})


def losses_of_parts() -> None:
    one = model()
    optimizer = torch.optim.SGD(one.parameters(), lr=1e-3)
    for parts in (2, 2, 3, 2, 2, 2, 2, 2, 2, 12):
        sum(part_loss(one, 1024) for _ in range(parts)).backward()
        optimizer.step()
        optimizer.zero_grad()


def a_larger_batch() -> None:
    one = model()
    optimizer = torch.optim.SGD(one.parameters(), lr=1e-3)
    for rows in (*[2048] * 9, 12 * 1024):
        part_loss(one, rows).backward()
        optimizer.step()
        optimizer.zero_grad()


def part_loss(one: Any, rows: int) -> Any:
    return one(batch(rows)).square().mean()


def longer_horizons() -> None:
    """What is aimed at is simulated first, as long as the prediction will be."""
    one = model()
    optimizer = torch.optim.SGD(one.parameters(), lr=1e-3)
    for horizon in (*[4] * 8, 16):
        state = batch(8192)
        with torch.no_grad():
            aims = [state.sin() for _ in range(horizon)]
        states = unrolled(one, state, horizon)
        sum((a - b).square().mean() for a, b in zip(states, aims, strict=True)).backward()
        optimizer.step()
        optimizer.zero_grad()


def unrolled(one: Any, state: Any, horizon: int) -> list[Any]:
    states = []
    for _ in range(horizon):
        state = one(state)
        states.append(state)
    return states


def fitted_by_lbfgs() -> None:
    image = torch.nn.Parameter(batch(2048))
    optimizer = torch.optim.LBFGS([image], max_iter=40)

    def closure() -> Any:
        optimizer.zero_grad()
        loss = image.sin().square().sum()
        loss.backward()
        return loss

    optimizer.step(closure)


def one_wide_layer() -> Any:
    """The layer's output is as large as what comes in, and no copy of it."""
    inputs = batch(8192)
    wide = torch.nn.Linear(512, 512).cuda()
    return wide(inputs), wide(inputs)


def jacobian_of_all_rows() -> Any:
    layer = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.Tanh()).cuda()
    optimizer = torch.optim.SGD(layer.parameters())
    for _ in range(12):
        optimizer.zero_grad()
        layer(batch(512, 256)).sum().backward()
        optimizer.step()
    optimizer.zero_grad()
    return torch.func.jacrev(lambda rows: layer(rows).sum(1))(batch(512, 256))


@cache
def rehearsed(program: Callable[[], None], mib: int) -> neutracer.Snapshot:
    return neutracer.rehearse(program, steps=1, capacity=f"{mib}MiB")


def ran_out(program: Callable[[], None], mib: int) -> neutracer.reports.Verdict:
    return neutracer.explain(rehearsed(program, mib), facts=CLEAN).verdicts[0]


@pytest.mark.filterwarnings("ignore:Using backward:UserWarning")
@pytest.mark.parametrize(
    ("program", "mib", "kind", "action", "function", "said"),
    [
        (sharpness_of_new_models, 800, "leak", "release", "measure", "create_graph=True"),
        (sharpness_beside_training, 300, "leak", "release", "measure", "create_graph=True"),
        (sharpness_of_one_model, 400, "leak", "release", "measure_classes", "create_graph=True"),
        (logits_and_gradients, 300, "leak", "release", "influence", ""),
        (saliency_of_a_layer, 200, "leak", "release", "explain_images", ""),
        (trials_that_are_kept, 150, "leak", "release", "trial", ""),
        (
            gradients_of_each_sample,
            500,
            "capacity",
            "configure",
            "gradients_of_each_sample",
            "chunk_size",
        ),
        (predictions_of_an_epoch, 250, "leak", "release", "predict", ""),
        (outputs_with_their_graph, 150, "leak", "no_grad", "batch", "no_grad"),
        (state_with_its_graph, 120, "leak", "release", "state_with_its_graph", "keep no graph"),
        (
            more_parts_in_each_of_few_steps,
            100,
            "capacity",
            "release",
            "more_parts_in_each_of_few_steps",
            "on the sum",
        ),
        (larger_queries, 70, "capacity", "smaller_step", None, "inference_mode()"),
        (beside_a_reference, 190, "capacity", "shard_state", "beside_a_reference", "the copy that"),
        (trained_in_half, 430, "capacity", "shard_state", "trained_in_half", "trained (160 MiB"),
        (rollouts_with_a_graph, 100, "leak", "release", "rollouts_with_a_graph", "keep no graph"),
        (kept_in_the_last_phase, 110, "leak", "release", "kept_in_the_last_phase", ""),
        (tables_that_are_replaced, 150, "leak", "release", "tables_that_are_replaced", ""),
        (losses_of_parts, 150, "capacity", "release", "losses_of_parts", "not on the sum"),
        (a_larger_batch, 150, "capacity", "smaller_step", None, "split the batch"),
    ],
)
def test_first_verdict_has_the_remedy_of_its_cause(
    program: Callable[[], None],
    mib: int,
    kind: str,
    action: str,
    function: str | None,
    said: str,
) -> None:
    first = ran_out(program, mib)
    assert first.kind == kind
    assert first.remedy is not None
    assert first.remedy.action == action
    assert (first.remedy.place.function if first.remedy.place else None) == function
    advice = " ".join(note.text for note in first.advice)
    assert said in advice
    assert ("create_graph" in advice) == ("create_graph" in said)


def fraction_run(program: Callable[[], None], share: float, mib: int) -> int:
    """The bytes that it needs of a device with a share of each batch."""
    whole = batch
    try:
        globals()["batch"] = lambda rows, width=512: whole(int(rows * share), width)
        snap = neutracer.rehearse(program, steps=1, capacity=f"{mib}MiB")
    finally:
        globals()["batch"] = whole
    assert snap.rehearsed is not None
    return snap.rehearsed.needed_bytes


@pytest.mark.parametrize("mib", [900, 1000])
def test_step_longer_than_all_before_is_judged_by_its_length(mib: int) -> None:
    snap = neutracer.rehearse(longer_horizons, steps=1, capacity=f"{mib}MiB")
    report = neutracer.explain(snap, facts=CLEAN)
    first = report.verdicts[0]
    # Its loop is four times as long; when it fails it has run more of it than any step did.
    times = re.search(r"([\d.]+) times the largest before it", first.message)
    assert times is not None, first.message
    assert float(times[1]) >= 4
    share = max(trial for trial in shares(report))
    assert fraction_run(longer_horizons, share, mib) <= mib << 20
    assert not any(one.passes for one in report.trials if one.cost == "setting")


def shares(report: neutracer.reports.ExplainReport) -> list[float]:
    passing = [one.change for one in report.trials if one.passes and one.cost == "batch"]
    return [float(text.split(" %")[0]) / 100 for text in passing if text[0].isdigit()]


@pytest.mark.filterwarnings("ignore:Converting a tensor:UserWarning")
def test_history_of_lbfgs_is_named() -> None:
    first = ran_out(fitted_by_lbfgs, 60)
    assert "pass a smaller history_size=" in first.advice[0].text
    assert first.remedy is not None
    assert first.remedy.action == "configure"


@pytest.mark.parametrize(("mib", "kind"), [(100, "unreasonable_request"), (300, "capacity")])
def test_jacobian_is_made_in_chunks(mib: int, kind: str) -> None:
    first = ran_out(jacobian_of_all_rows, mib)
    assert first.kind == kind
    assert "pass chunk_size= to the outermost" in first.advice[0].text
    assert first.advice[0].place is not None
    assert first.advice[0].place.filename == "test_rehearsed_causes.py"


def test_output_of_a_module_is_no_copy_of_its_input() -> None:
    first = ran_out(one_wide_layer, 40)
    assert not any("twice" in note.text for note in first.evidence)


LIBRARY = """
class Metric:
    def __init__(self): self.kept = []
    def update(self, loss): self.kept.append(loss.detach().expand(1 << 20).clone())
    def wrapped_func(self, loss): self.update(loss)
    def compute(self): return self.kept[-1].mean() + self.kept[0]

def integrate(forward, state, times):
    for _ in range(times): state = forward(state)
    return state
"""


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """An installed package whose metric keeps what it gets, and which integrates."""
    yield installed(tmp_path, monkeypatch, "torchmetrics/metric.py", LIBRARY)
    sys.modules.pop("metric", None)


def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, text: str) -> Any:
    """A module of an installed package."""
    path = tmp_path / "site-packages" / file
    path.parent.mkdir(parents=True)
    path.write_text(text)
    monkeypatch.syspath_prepend(str(path.parent))
    monkeypatch.delitem(sys.modules, path.stem, raising=False)
    return importlib.import_module(path.stem)


@pytest.mark.parametrize(
    ("is_read", "advice"),
    [(True, "reset() on the metric once its figures"), (False, "pass thresholds= (200, say)")],
)
def test_metric_that_is_never_reset_is_named(library: Any, is_read: bool, advice: str) -> None:
    def program() -> None:
        one, metric = model(), library.Metric()
        optimizer = torch.optim.SGD(one.parameters(), lr=1e-3)
        for _ in range(36):
            loss = part_loss(one, 1024)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            metric.wrapped_func(loss)
            if is_read:
                metric.compute()

    first = ran_out(program, 160)
    assert first.kind == "leak"
    assert "compute_on_cpu=True" in first.advice[0].text
    assert advice in first.advice[0].text


@pytest.mark.parametrize(("keeps", "mib"), [(True, 280), (False, 190)])
def test_what_lay_between_the_blocks_that_stay_is_to_go_one_by_one(keeps: bool, mib: int) -> None:
    """Scans that are kept beside what is cut out of each leave holes between the cuts."""

    def program() -> None:
        scans, cuts = [], []
        for _ in range(20):
            scan = torch.empty(6 << 20, dtype=torch.uint8, device="cuda")
            scans.append(scan)
            cuts.append(scan[: 3 << 20].clone())
            if not keeps:
                scans.clear()
        del scan
        scans.clear()
        one = model()
        part_loss(one, 16 * 1024).backward()

    first = ran_out(program, mib)
    is_told = "let go of each before the next one is made" in first.advice[0].text
    assert is_told is keeps
    assert (first.kind == "fragmentation") is keeps


def test_views_without_losses_of_their_own_are_no_parts() -> None:
    def program() -> None:
        one = model()
        optimizer = torch.optim.SGD(one.parameters(), lr=1e-3)
        for views in (*[4] * 8, 24):
            seen = [one(batch(1024)) for _ in range(views)]
            torch.stack(seen).var(0).mean().backward()
            optimizer.step()
            optimizer.zero_grad()

    first = ran_out(program, 190)
    assert first.kind == "capacity"
    assert not any("on the loss of each part" in note.text for note in first.advice)


@pytest.mark.filterwarnings("ignore:Using backward:UserWarning")
@pytest.mark.parametrize("keeps", [True, False])
def test_graphs_that_outlive_their_pass_are_kept_by_something(keeps: bool) -> None:
    """Forces are gradients; a training step differentiates them again, an evaluation does not."""

    def forces(one: Any, rows: int) -> Any:
        state = batch(rows).requires_grad_()
        (found,) = torch.autograd.grad(one(state).square().sum(), state, create_graph=True)
        return found

    def program() -> None:
        one = model()
        optimizer = torch.optim.Adam(one.parameters(), lr=1e-3)
        for _ in range(10):
            forces(one, 2048).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        predicted = [forces(one, 2048) if keeps else forces(one, 2048).detach() for _ in range(8)]
        torch.cat(predicted) if keeps else forces(one, 16_384)

    first = ran_out(program, 200)
    assert first.message.endswith("that free such blocks") is keeps
    assert first.advice[0].text.startswith("keep no graph from pass to pass") is keeps


def test_evaluation_with_a_graph_is_to_run_without_one() -> None:
    def program() -> None:
        one = model()
        optimizer = torch.optim.SGD(one.parameters(), lr=1e-3)
        for _ in range(8):
            part_loss(one, 256).backward()
            optimizer.step()
            optimizer.zero_grad()
        for _ in range(4):
            evaluated(one)

    def evaluated(one: Any) -> Any:
        one.append(torch.nn.Sigmoid())
        return one(batch(8192)).square().mean()

    first = ran_out(program, 110)
    assert first.remedy is not None
    assert (first.kind, first.remedy.action) == ("capacity", "no_grad")
    assert first.advice[0].text.startswith("run it under torch.no_grad()")
    assert first.advice[0].place is not None
    assert first.advice[0].place.function == "evaluated"


def test_loop_of_a_library_is_not_to_be_cut_by_the_program(library: Any) -> None:
    one: list[Any] = []

    def forward(state: Any) -> Any:
        return one[0](state)

    def program() -> None:
        one.append(model())
        optimizer = torch.optim.SGD(one[0].parameters(), lr=1e-3)
        for times in (*[4] * 8, 40):
            library.integrate(forward, batch(1024), times).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

    first = ran_out(program, 150)
    assert first.kind == "capacity"
    assert "bound what varies from step to step" in first.advice[0].text
    assert not any("not on the sum" in note.text for note in first.advice)


SOLVER = """
def odeint(forward, state, times):
    for _ in range(times): state = state + 0.1 * forward(state)
    return state
"""


@pytest.mark.parametrize("steps", [0, 1, 8])
def test_solver_that_keeps_its_graph_is_to_be_its_adjoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    module = installed(tmp_path, monkeypatch, "torchdiffeq/_impl/odeint.py", SOLVER)

    def program() -> None:
        one = model()
        for times in [*[10] * steps, 60]:
            state = batch(512).requires_grad_()
            module.odeint(lambda rows: one(rows).tanh(), state, times).mean().backward()

    first = ran_out(program, 120)
    assert "call torchdiffeq.odeint_adjoint()" in first.advice[0].text
    sys.modules.pop("odeint", None)


def test_solver_without_a_graph_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = installed(tmp_path, monkeypatch, "torchdiffeq/_impl/odeint.py", SOLVER)

    def program() -> None:
        one, kept = model(), []
        one(batch(8)).mean().backward()
        with torch.no_grad():
            for _ in range(160):
                kept.append(module.odeint(one, batch(512), 10))

    assert not any("adjoint" in note.text for note in ran_out(program, 120).advice)
    sys.modules.pop("odeint", None)


CACHE = """
import torch

class Cache:
    keys = None
    def update(self, keys):
        self.keys = keys if self.keys is None else torch.cat([self.keys, keys], dim=-2)
        return self.keys
"""


def test_cache_that_one_line_extends_and_another_is_one_pile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The prompt's line makes anew what the answer's line has made."""
    module = installed(tmp_path, monkeypatch, "transformers/cache_utils.py", CACHE)
    cache, key = module.Cache(), "cache_utils.py"

    def program() -> None:
        one = model()
        with torch.no_grad():
            for _ in range(42):
                cache.update(one(batch(512)))
                for _ in range(8):
                    cache.update(one(batch(8)))

    try:
        snap = neutracer.rehearse(program, steps=1, capacity="120MiB")
        report = neutracer.explain(snap, facts=CLEAN)
    finally:
        sys.modules.pop("cache_utils", None)
    first = report.verdicts[0]
    assert first.kind == "cache_growth"
    assert "crop() the cache" in first.advice[0].text
    rows = [one for one in report.bill.shown_terms() if one.place and key in one.place.filename]
    assert len(rows) == 1
    assert rows[0].piled_up > rows[0].bytes // 2
    assert rows[0].this_round < rows[0].bytes // 4
    # It needs little more than it has: each cache is larger than any hole that those before left.
    as_it_is = report.trials[0]
    assert not as_it_is.passes
    assert as_it_is.bytes < 3 * report.bill.limit_bytes


# ---- Growth that a replay of the last rounds does not show ---------------------------------


class Forecast(torch.nn.Module):
    """What a pass makes, modules make."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(model() for _ in range(3))

    def forward(self, state: Any) -> Any:
        inner = torch.cat([state, state])
        for layer in self.layers:
            inner = layer(inner)
        return state + inner[: len(state)]


def series_of_a_forecast() -> None:
    one, state, series = Forecast().cuda(), batch(2048), []
    with torch.inference_mode():
        for _ in range(20):
            state = one(state)
            series.append(state[:, 0])


def a_first_forward_pass() -> None:
    """Each layer frees more than it keeps."""
    layers = torch.nn.ModuleList(torch.nn.Linear(512, 512) for _ in range(40)).cuda()
    state = torch.nn.Embedding(64, 512).cuda()(torch.zeros(1024, dtype=torch.long, device="cuda"))
    for layer in layers:
        state = layer(state * 2 + 1) + state.cos().sin().tan().detach()
    state.sum().backward()


class Distilled(torch.nn.Module):
    """A copy of it has all that it has, an earlier copy, too."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.teacher = model(), None

    def renew(self) -> None:
        self.teacher = copy.deepcopy(self)


def copies_of_copies() -> None:
    one = Distilled().cuda()
    optimizer = torch.optim.SGD(one.body.parameters(), lr=1e-3)
    for step in range(32):
        one.body(batch(1024)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 2:
            one.renew()


def hooks_of_each_epoch() -> None:
    one = model()
    optimizer = torch.optim.SGD(one.parameters(), lr=1e-3)
    for _ in range(20):
        tap(one[1])
        for _ in range(3):
            one(batch(1024)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()


def tap(layer: Any) -> None:
    seen: dict[str, Any] = {}
    layer.register_forward_hook(lambda _, inputs, output: seen.update(last=keep(output)))


def keep(output: Any) -> Any:
    return output.detach() * 2


def test_rounds_are_found_where_modules_make_all() -> None:
    first = ran_out(series_of_a_forecast, 100)
    assert first.kind == "leak"
    assert "4 MiB each" in first.message
    assert first.finishes
    assert not ran_out(a_first_forward_pass, 100).message.startswith("leak")


@pytest.mark.parametrize(
    ("program", "mib", "said"),
    [(copies_of_copies, 120, "copy.deepcopy() takes all"), (hooks_of_each_epoch, 110, "")],
)
def test_more_of_what_is_made_anew_is_a_cause(
    program: Callable[[], None], mib: int, said: str
) -> None:
    first = ran_out(program, mib)
    assert first.kind == "cache_growth"
    # A copy fails in a step that is like none before: no more than its request is replayed.
    assert first.finishes is not False
    assert said in first.advice[0].text


@pytest.mark.parametrize(
    ("chain", "said"),
    [
        ("frame main (a.py:1) → one[1]._forward_hooks[7] → closure seen", "call its remove()"),
        ("frame main (a.py:1) → failed[…] → exception → traceback → frame step", "keep str(error)"),
        ("frame main (a.py:1) → loader.ready.queue[…][0]", "bound the queue"),
        (
            "frame main (a.py:1) → enumerate.iterator → fs[…]._result.frames",
            "a few calls at a time",
        ),
        ("distance_bias (lru_cache)", "bound the cache"),
        ("frame GenerationMixin._sample (utils.py:3) → scores", "call generate() without"),
        ("frame main (a.py:1) → unet.down[0].lora_A.tenant16.weight", "delete each adapter"),
        ("a value in use or C code → method write → self → .model.weight", "unregister"),
        ("frame main (a.py:1) → optimizer.state → key", "make a new optimizer"),
        ("frame main (a.py:1) → fits → self → .optimizer.state → key", "bound it"),
        ("frame deepcopy (copy.py:143) → memo", "copy less"),
        ("frame Unpickler.load (unpickler.py:541) → self → .memo", "map_location='cpu'"),
        ("frame main (a.py:1) → seen", "bound it"),
    ],
)
def test_holder_tells_what_to_edit(chain: str, said: str) -> None:
    snap = rehearsed(hooks_of_each_epoch, 110)
    place = neutracer.explain(snap, facts=CLEAN).verdicts[0].remedy.place
    facts = replace(CLEAN, holders=((str(place), chain),))
    assert said in neutracer.explain(snap, facts=facts).verdicts[0].advice[0].text


def attempts_that_diverge() -> None:
    """Of no two the same amount stays, and none ends in a step of an optimizer."""
    failed = []
    one = model()
    optimizer = torch.optim.SGD(one.parameters(), lr=1e-3)
    for rows in (*[256] * 8, *range(1024, 9000, 512)):
        try:
            attempt(one, rows)
        except ValueError as error:
            failed.append(error)
        else:
            optimizer.step()


def attempt(one: Any, rows: int) -> None:
    loss = one(batch(rows)).square().mean()
    if rows > 256:
        raise ValueError("diverged")
    loss.backward()


def test_kept_exceptions_are_named_by_what_keeps_them() -> None:
    snap = rehearsed(attempts_that_diverge, 150)
    lines = neutracer.explain(snap, facts=CLEAN).bill.lines
    chain = "frame main (a.py:1) → failed"
    of_one = f"{chain}[…] → exception → traceback → frame attempt → loss → autograd graph"
    facts = replace(CLEAN, holders=tuple((str(one.place), chain) for one in lines))
    assert "exceptions" not in neutracer.explain(snap, facts=facts).verdicts[0].message
    facts = replace(facts, holders=(*facts.holders[:-1], (str(lines[-1].place), of_one)))
    first = neutracer.explain(snap, facts=facts).verdicts[0]
    assert first.message.startswith("leak: exceptions that are kept hold up to")
    assert first.advice[0].text.endswith(f"; held by {chain}")
    # Of a list of one thing each its position is not said.
    by_name = of_one.replace("[…]", "")
    of_all = replace(CLEAN, holders=tuple((str(one.place), by_name) for one in lines))
    first = neutracer.explain(snap, facts=of_all).verdicts[0]
    assert first.advice[0].text.endswith(f"; held by {chain}")
    # A frame that an exception hangs on by itself keeps all that it works on, too.
    of_a_frame = "frame main (a.py:1) → exception → traceback → frame attempt"
    facts = replace(facts, holders=(*facts.holders[:-1], (str(lines[-1].place), of_a_frame)))
    assert "exceptions" not in neutracer.explain(snap, facts=facts).verdicts[0].message


# ---- The first step ------------------------------------------------------------------------


def a_first_step_by_adam() -> None:
    one = torch.nn.Sequential(*[torch.nn.Linear(1024, 1024) for _ in range(8)]).cuda()
    optimizer = torch.optim.NAdam(one.parameters(), weight_decay=0.1, foreach=True)
    for _ in range(6):
        one(batch(1024, 1024)).square().mean().backward()
    optimizer.step()


def a_first_step_on_tables() -> None:
    tables = [torch.nn.Embedding(40_000, 64) for _ in range(2)]
    one = torch.nn.ModuleList([*tables, *(torch.nn.Linear(64, 64) for _ in range(3))]).cuda()
    optimizer = torch.optim.Adam(one.parameters())
    rows = torch.randint(0, 40_000, (256,), device="cuda")
    state = tables[0](rows) + tables[1](rows)
    for layer in one[2:]:
        state = layer(state)
    state.square().mean().backward()
    optimizer.step()


@pytest.mark.parametrize(
    ("program", "mib", "is_told"),
    [(a_first_step_on_tables, 140, True), (a_first_step_by_adam, 200, False)],
)
def test_tables_may_have_gradients_of_a_few_rows(
    program: Callable[[], None], mib: int, is_told: bool
) -> None:
    first = ran_out(program, mib)
    assert "makes its state" in first.message
    assert any("SparseAdam" in note.text for note in first.advice) is is_told


@pytest.mark.parametrize(("mib", "said"), [(200, "less state"), (258, "foreach=False")])
def test_state_is_the_cause_where_it_leaves_no_room_for_a_step(mib: int, said: str) -> None:
    """Parameters and gradients take 64 MiB, as much as the state, workspaces and a pass 130."""
    assert said in ran_out(a_first_step_by_adam, mib).advice[0].text


def a_first_step_beside_holes() -> None:
    parts = [torch.empty(4 << 18, device="cuda") for _ in range(60)]
    del parts[::2]
    one = model()
    for _ in range(3):
        one(batch(20_000)).square().mean().backward()


def test_first_step_is_no_matter_of_holes() -> None:
    first = ran_out(a_first_step_beside_holes, 350)
    assert first.kind == "capacity"
    assert first.message.startswith("the first step needs more than the device")


class Merged(torch.nn.Module):
    """A linear layer whose weight is put together in each pass."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(2 * width, width))
        self.scale = torch.nn.Parameter(torch.ones(1))

    def forward(self, x: Any) -> Any:
        weight = self.weight * self.scale
        return torch.nn.functional.linear(x, weight)[:, : x.shape[1]]


def weights_that_are_merged() -> None:
    model = torch.nn.Sequential(*(Merged(1024) for _ in range(8))).cuda()
    model(batch(64, 1024)).square().mean().backward()


def layers_as_wide_as_the_batch() -> None:
    model = torch.nn.Sequential(*(torch.nn.Linear(1024, 1024) for _ in range(8))).cuda()
    model(batch(1024, 1024)).square().mean().backward()


@pytest.mark.parametrize(
    ("program", "mib", "is_said"),
    [(weights_that_are_merged, 110, True), (layers_as_wide_as_the_batch, 50, False)],
)
def test_weights_that_a_pass_makes_anew_are_told(
    program: Callable[[], None], mib: int, is_said: bool
) -> None:
    verdict = ran_out(program, mib)
    said = [note for note in verdict.advice if "apply the parts of this weight" in str(note)]
    assert bool(said) is is_said
    if is_said:
        assert verdict.advice[0] == said[0]
        assert said[0].place is not None
        assert said[0].place.function == "forward"


class Centered(torch.nn.Module):
    """A teacher whose graphs a running center keeps, and a student that is trained by it."""

    def __init__(self) -> None:
        super().__init__()
        self.teacher, self.student = model(), model()
        self.center = torch.zeros(512, device="cuda")

    def forward(self, x: Any) -> Any:
        wanted = self.teacher(x)
        self.center = self.center * 0.9 + wanted.mean(0) * 0.1
        return (self.student(x) - wanted.detach()).square().mean()


def a_center_with_its_graph() -> None:
    one = Centered()
    optimizer = torch.optim.SGD(one.student.parameters(), lr=1e-3)
    for _ in range(7):
        one(batch(4096)).backward()
        optimizer.step()
        optimizer.zero_grad()


def a_broadcast_loss() -> None:
    one = model()
    left, right = one(batch(640)), one(batch(640))
    gap = left[:, None, :] - right[None, :, :]
    gap.pow(2).sum(-1).mean().backward()


def a_first_step_behind_a_loop() -> None:
    """What is made in a loop before the first step is none of its steps."""
    tables = []
    for _ in range(48):
        tone = batch(64).cumsum(1).sin()
        tables.append(tone * tone.abs().mean())
    one = torch.nn.Sequential(*(model() for _ in range(8)))
    one(batch(8192) + tables[0][0]).sum().backward()


@pytest.mark.parametrize(
    ("program", "mib", "kind", "said"),
    [
        (a_center_with_its_graph, 240, "leak", ""),
        (a_broadcast_loss, 2100, "capacity", "keep fewer activations"),
    ],
)
def test_graphs_are_told_from_parameters_and_from_steps(
    program: Callable[[], None], mib: int, kind: str, said: str
) -> None:
    first = ran_out(program, mib)
    assert first.kind == kind
    assert said in first.advice[0].text


def test_trace_that_ends_in_its_first_backward_pass_has_activations() -> None:
    snap = neutracer.rehearse(a_broadcast_loss, steps=1, capacity="2100MiB")
    held = neutracer.explain(snap, facts=CLEAN).categories
    # Two layers of 512 x 512 and their biases, and the difference, which has 800 MiB.
    assert held["parameter"] < 3 << 20
    assert held["activation"] > 800 << 20


def test_what_repeats_before_the_first_step_is_no_step() -> None:
    snap = neutracer.rehearse(a_first_step_behind_a_loop, steps=1, capacity="120MiB")
    report = neutracer.explain(snap, facts=CLEAN)
    assert "inference_mode" not in str(report)
    assert report.verdicts[0].kind == "capacity"
