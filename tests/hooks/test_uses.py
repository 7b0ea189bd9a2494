# SPDX-License-Identifier: Apache-2.0
"""First and last uses of allocations in real runs, on a torch for the CPU."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from places import ROOT
from used_tensors import written

import neutracer
from neutracer import UnavailableError
from neutracer.hooks.shim import state, why_none
from neutracer.recording.long_history import ProgramRecording
from neutracer.recording.recorder import is_for_cpu
from neutracer.trace.uses import unseen_uses

torch = pytest.importorskip("torch", reason="needs torch, which is not installed here")
if why_none() or not is_for_cpu(torch):
    pytest.skip("needs hooks on a torch for the CPU", allow_module_level=True)

MIB = 1 << 20


def floats(mib: int) -> Any:
    return torch.empty(mib << 18)


def recorded(step: Callable[[], Any]) -> Any:
    with neutracer.record(uses=True) as recording:
        step()
    return recording.snapshot()


def uses_of(step: Callable[[], Any]) -> dict[int, tuple[int, int]]:
    """By size in MiB, the first and the last use as numbers of requests of 1 MiB or more, the first
    being 0; a program gives each tensor a size of its own."""
    rows = [row for row in recorded(step).timeline().allocations if row.size >= MIB]

    def number(event: int) -> int:
        return sum(row.alloc_event <= event for row in rows) - 1 if event >= 0 else event

    return {
        row.size // MIB: (number(row.first_use_event), number(row.last_use_event))
        for row in rows
        if row.size > MIB
    }


def test_a_read_is_a_use_and_the_making_is_none() -> None:
    def step() -> None:
        read, unread = floats(2), torch.zeros(3 << 18)  # 0, 1
        mark = floats(1)  # 2
        read[:8].exp()
        mark = floats(1)  # 3
        del read, unread, mark

    assert uses_of(step) == {2: (2, 2), 3: (-1, 1)}


def test_uses_through_views_count_and_views_alone_do_not() -> None:
    def step() -> None:
        seen, shown = floats(2), floats(3)  # 0, 1
        view = seen.view(2, -1)[1]
        mark = floats(1)  # 2
        shown.detach().reshape(4, -1).t().unbind(0)[0].expand(2, 4)
        shown.contiguous().to(torch.float32)
        mark = floats(1)  # 3
        torch.zeros_like(shown[: 1 << 18])  # 4
        view[:8].exp()
        del mark

    assert uses_of(step) == {2: (4, 4), 3: (-1, 1)}


def test_copies_that_only_look_like_views_are_uses() -> None:
    def step() -> None:
        one, mark = floats(2).view(4, -1), floats(1)  # 0, 1
        one.t().contiguous()  # 2
        mark = floats(1)
        del mark

    assert recorded(step).timeline().allocations[0].last_use_event > 0


def test_writes_in_place_and_into_out_are_uses() -> None:
    assert uses_of(lambda: written(floats)) == {2: (2, 2), 3: (3, 3)}


def test_lists_of_tensors_are_uses() -> None:
    def step() -> None:
        one, other = floats(2), floats(3)  # 0, 1
        mark = floats(1)  # 2
        torch._foreach_mul_([one, other], 2.0)
        mark = floats(1)  # 3
        torch.cat([one[: 1 << 18]])  # 4
        mark = floats(1)
        del mark

    assert uses_of(step) == {2: (2, 4), 3: (2, 2)}


def test_backward_uses_what_forward_saved() -> None:
    def step() -> None:
        weight = floats(2).requires_grad_()  # 0
        squared = weight.exp()  # saves its result
        squared.sum().backward()

    rows = [row for row in recorded(step).timeline().allocations if row.size == 2 * MIB]
    weight, squared, gradient = rows[0], rows[1], rows[-1]
    assert weight.last_use_event == squared.alloc_event
    assert squared.last_use_event >= gradient.alloc_event


def test_checkpointing_uses_inputs_again() -> None:
    from torch.utils.checkpoint import checkpoint

    def step() -> None:
        entry = floats(2).requires_grad_()
        out = checkpoint(lambda x: x.exp().sin().cos(), entry, use_reentrant=False)
        out.sum().backward()

    rows = [row for row in recorded(step).timeline().allocations if row.size == 2 * MIB]
    again = rows[4]  # Made again from the input, after the whole forward pass.
    assert rows[0].last_use_event >= again.alloc_event
    assert rows[1].last_use_event < again.alloc_event


def test_optimizers_use_parameters_gradients_and_state() -> None:
    def step() -> None:
        model = torch.nn.Linear(1024, 1024, bias=False)
        optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
        for _ in range(2):
            optimizer.zero_grad(set_to_none=False)
            model(torch.ones(8, 1024)).sum().backward()
            optimizer.step()
        kept.append((model, optimizer))

    kept: list[Any] = []
    snap = recorded(step)
    begin = snap.timeline().steps[-1].first
    rows = [row for row in snap.timeline().allocations if row.size == 4 * MIB]
    held = [row for row in rows if row.free_event == -1]
    assert len(held) == 4  # The weight, its gradient and Adam's two averages.
    assert min(row.last_use_event for row in held) >= begin


def test_threads_use_what_others_made() -> None:
    def step() -> None:
        one, other = floats(2), floats(3)  # 0, 1
        mark = floats(1)  # 2
        for value in (one, other):
            thread = threading.Thread(target=value.add_, args=(1,))
            thread.start()
            thread.join()
            mark = floats(1)
        del mark

    assert uses_of(step) == {2: (2, 2), 3: (3, 3)}


def test_an_error_inside_an_operator_leaves_uses_right() -> None:
    def step() -> None:
        one, other = floats(2), floats(3)  # 0, 1
        with pytest.raises(RuntimeError):
            torch.mm(one.view(512, -1), other.view(512, -1))
        with pytest.raises(RuntimeError):
            torch.empty(1 << 60)  # No event on the CPU.
        mark = floats(1)  # 2
        other[:8].exp()
        mark = floats(1)
        del mark

    assert uses_of(step) == {2: (1, 1), 3: (1, 2)}


@pytest.mark.parametrize(
    "take", ["data_ptr", "numpy", "untyped_storage", "__array__", "__dlpack__"]
)
def test_memory_that_is_passed_on_is_unknown(take: str) -> None:
    def step() -> None:
        one, other = floats(2), floats(3)
        getattr(one, take)()
        one.sum()
        other.add_(1)
        other.tolist  # noqa: B018

    snap = recorded(step)
    rows = {row.size // MIB: row for row in snap.timeline().allocations if row.size >= MIB}
    assert (rows[2].first_use_event, rows[2].last_use_event) == (-2, -2)
    assert rows[3].last_use_event >= 0
    assert "test_uses.py:" in unseen_uses(snap.settings)[0]
    report = neutracer.drag(snap)
    assert report.unseen == unseen_uses(snap.settings)
    assert "used by" in str(report)


COMPILED = """
import neutracer, torch
weight = torch.randn(512, 512, requires_grad=True)

@torch.compile
def compiled(x):
    return (x @ weight).relu().sum()

def floats(mib):
    return torch.empty(mib << 18)

def step(x):
    beside = floats(3)  # It might be used, too.
    floats(5)
    loss = compiled(x)
    floats(7)
    loss.backward()
    floats(9)
    floats(11)
    del beside

step(torch.randn(2048, 512))
with neutracer.record(uses=True) as recording:
    step(torch.randn(2048, 512))
rows = {row.size >> 20: row for row in recording.snapshot().timeline().allocations}
for used in (rows[3], rows[4]):
    assert rows[7].alloc_event <= used.last_use_event < rows[9].alloc_event
"""


@pytest.mark.slow
def test_compiled_code_uses_all_that_is_alive() -> None:
    command = [sys.executable, "-W", "ignore", "-c", COMPILED]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr


def test_a_list_of_values_is_a_use() -> None:
    def step() -> None:
        one, mark = floats(2), floats(1)
        one[:2].tolist()
        mark = floats(1)
        del mark

    assert uses_of(step) == {2: (1, 1)}


def test_what_replaces_functions_is_gone_afterwards() -> None:
    before = dict(vars(torch.Tensor))
    kept = torch.Tensor.data_ptr
    with neutracer.record(uses=True):
        assert torch.Tensor.data_ptr is not kept
        mine = torch.Tensor.numpy = lambda tensor: None
    assert torch.Tensor.numpy is mine
    del torch.Tensor.numpy
    assert dict(vars(torch.Tensor)) == before
    assert torch.ones(2).numpy().sum() == 2


def test_blocks_from_before_are_unknown() -> None:
    before = torch.ones(2 << 18)
    with neutracer.record() as outer:
        early = floats(3)
        with neutracer.record(uses=True) as inner:
            before.add_(1)
            late = floats(5)
            early[:8].exp()
            late[:8].exp()
        again = inner.snapshot().timeline().allocations
    rows = {row.size // MIB: row for row in again if row.size >= MIB}
    assert (rows[3].first_use_event, rows[5].last_use_event > 0) == (-2, True)
    assert "first_use_event" not in outer.snapshot().timeline().allocations.columns


def test_ring_that_an_earlier_recording_filled_has_lost_nothing() -> None:
    full = neutracer.record(max_entries=1000)
    full.start()
    for _ in range(state().events):
        floats(1)
    with pytest.warns(neutracer.HistoryWarning):
        full.stop()
    # A warning is an error here.
    with neutracer.record(max_entries=1000) as recording:
        floats(1)
    assert not recording.snapshot().history_overflowed(0)
    program = ProgramRecording(1000, uses=1).start()
    floats(1)
    program.stop()
    assert program.now()[1]["recording"]["wrapped"] is False


def test_one_recording_at_a_time_has_uses() -> None:
    with neutracer.record(uses=True) as outer:
        floats(2)
        with pytest.raises(UnavailableError, match="a second recording of uses"):
            neutracer.record(uses=True).start()
        assert outer.active
        with neutracer.record() as inner:
            floats(3)
    assert len(inner.snapshot().events) >= 4
    assert neutracer.drag(outer.snapshot()).moments


def test_drag_is_that_of_a_rehearsal() -> None:
    def program(device: str) -> Callable[[], None]:
        weight = torch.ones(1 << 20, device=device).requires_grad_()
        optimizer = torch.optim.SGD([weight], lr=0.1, momentum=0.9)

        def step() -> None:
            batch = torch.ones(1 << 20, device=device)
            target = (weight * batch).exp().sin()  # Its graph serves no backward pass.
            unused = torch.zeros(1 << 20, device=device)
            ((weight * batch).cos() - target.detach()).tanh().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            del unused

        return step

    rehearsed = neutracer.drag(neutracer.rehearse(lambda: program("cuda"), steps=3))
    with neutracer.record(uses=True) as recording:
        step = program("cpu")
        for _ in range(4):
            step()
    real = neutracer.drag(recording.snapshot())
    for part in ("in_use", "drag", "lag", "void", "unknown"):
        sizes = [getattr(one.moments[0], f"{part}_bytes") for one in (real, rehearsed)]
        assert sizes[0] == pytest.approx(sizes[1], abs=MIB), part
    assert rehearsed.moments[0].drag_bytes >= 8 * MIB
    lines = [(one.line, one.edit) for one in real.lines if one.idle_bytes > MIB]
    assert lines == [(one.line, one.edit) for one in rehearsed.lines if one.idle_bytes > MIB]


def test_a_graph_for_nothing_is_named_where_each_block_has_a_segment() -> None:
    teacher, student = (
        torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(count))) for count in (6, 2)
    )

    def step() -> None:
        for _ in range(3):
            batch = torch.randn(8192, 256)
            soft = teacher(batch)
            torch.nn.functional.mse_loss(student(batch), soft.detach()).backward()
            student.zero_grad()

    report = neutracer.drag(recorded(step))
    assert report.lines[0].edit == "no_grad"
    assert report.lines[0].saved_bytes >= 24 * MIB


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_child_of_a_fork_observes_nothing() -> None:
    with neutracer.record(uses=True) as recording:
        one = floats(2)
        child = os.fork()
        if child == 0:
            # Without threads, of which a child of a fork has none.
            one[:8].add_(1)
            one.numpy()
            recording.stop()
            os._exit(0 if not recording.active else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert neutracer.drag(recording.snapshot()).unseen == ()


def test_an_extension_makes_all_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from types import ModuleType

    file = tmp_path / "kernels.so"
    file.write_bytes(b"\0libtorch_cpu.so\0")
    module = ModuleType("kernels")
    module.__file__, module.launch = str(file), print  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "kernels", module)
    snap = recorded(lambda: floats(2).add_(1))
    assert set(snap.timeline().allocations["last_use_event"]) == {-2}
    assert unseen_uses(snap.settings) == ("the extension module kernels may use any tensor",)
    module.__file__ = str(file.with_name("others.so"))
    file.with_name("others.so").write_bytes(b"\0libz.so\0")
    assert unseen_uses(recorded(lambda: floats(2).add_(1)).settings) == ()


# ---- Poison: after its last use a block may hold anything -----------------------------------


@pytest.fixture(scope="module")
def poisoned(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What tests/helpers/poison_runs.py says of 30 programs, and of 10 one request too early."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    library = tmp_path_factory.mktemp("poison") / "poison.so"
    source = ROOT / "tests" / "helpers" / "poison.c"
    command = [compiler, "-shared", "-fPIC", "-O2", "-o", str(library), str(source), "-ldl"]
    subprocess.run(command, check=True)
    script = ROOT / "tests" / "helpers" / "poison_runs.py"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(script), "0,30,0", "0,10,1"],
        capture_output=True,
        text=True,
        env={**os.environ, "LD_PRELOAD": str(library)},
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_nothing_depends_on_memory_past_its_last_use(poisoned: list[dict[str, Any]]) -> None:
    found, _ = poisoned
    assert found["bad"] == []
    assert found["ran"] > 25
    assert found["overwritten"] > 5 * found["ran"]


def test_poison_one_request_too_early_shows(poisoned: list[dict[str, Any]]) -> None:
    _, early = poisoned
    assert len(early["bad"]) > 5
