# SPDX-License-Identifier: Apache-2.0
"""The cycle watch: what it tells of each case, and that it disturbs nothing."""

from __future__ import annotations

import gc
import logging
import sys
import threading
import warnings
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from forked import Imported

import neutracer
from neutracer import TensorCycle, TensorCycleWarning

torch = pytest.importorskip("torch")
cases = pytest.importorskip("cycle_cases")


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with cases.quiet_collector(), warnings.catch_warnings():
        warnings.simplefilter("ignore", TensorCycleWarning)
        yield


def seen(make: object, generation: int = 2, **options: object) -> tuple[TensorCycle, ...]:
    with neutracer.warn_tensor_cycles(device="cpu", **options) as watch:
        make()
        gc.collect(generation)
    return watch.cycles


@pytest.mark.parametrize("generation", [0, 2])
@pytest.mark.parametrize("case", cases.CASES, ids=lambda case: case.name)
def test_each_case_is_told(case: cases.Case, generation: int) -> None:
    (cycle,) = seen(case.make, generation)
    assert case.chain in cycle.chain
    assert case.advice in cycle.advice
    assert cycle.bytes == case.bytes
    assert cycle.device_bytes == {"cpu": case.bytes}
    assert cycle.garbage
    assert cycle.count == 1
    assert [edge.cut for edge in cycle.graph.edges].count(True) == 1


def test_tensor_behind_old_objects_is_counted() -> None:
    box = {"held": [cases.tensor()]}
    gc.collect()

    def let_go() -> None:
        nonlocal box
        ring = cases.Link(box=box)
        ring.again = ring
        box = None

    (cycle,) = seen(let_go, generation=0)
    assert cycle.bytes == cases.SIZE * 4


def test_tensor_that_lives_elsewhere_is_not_counted() -> None:
    kept = cases.tensor()

    def ring() -> None:
        one = cases.Link(held=kept)
        one.again = one

    gc.collect()
    assert seen(ring, generation=0) == ()


def test_warning_stands_where_the_reference_is() -> None:
    with pytest.warns(TensorCycleWarning, match="Callback.view_callback") as caught:
        seen(cases.bound_method_of_itself)
    (warning,) = [w for w in caught if w.category is TensorCycleWarning]
    assert warning.filename == cases.__file__
    text = str(warning.message)
    assert "a reference cycle kept 4 KiB on cpu until the garbage collector ran" in text
    assert "Tensor [1024] float32 cpu, 4 KiB" in text


def warned(times: int, **options: object) -> tuple[int, neutracer.reports.CycleWatch]:
    """How many warnings so many collections gave, and the watch."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with neutracer.warn_tensor_cycles(device="cpu", **options) as watch:
            for _ in range(times):
                cases.two_nodes()
                gc.collect()
    return sum(w.category is TensorCycleWarning for w in caught), watch


def test_repeats_of_a_shape_are_counted() -> None:
    count, watch = warned(7)
    (cycle,) = watch.cycles
    assert (cycle.count, cycle.tensor_count, cycle.bytes) == (7, 7, 7 * cases.SIZE * 4)
    assert count == 1


def test_every_collection_warns_on_request() -> None:
    assert warned(3, once_per_signature=False)[0] == 3


def test_other_devices_are_passed_over() -> None:
    with neutracer.warn_tensor_cycles() as watch:
        cases.two_nodes()
        gc.collect()
    assert watch.cycles == ()
    with neutracer.warn_tensor_cycles(device="all") as watch:
        cases.two_nodes()
        gc.collect()
    assert len(watch.cycles) == 1


def test_small_cycles_are_passed_over() -> None:
    assert seen(cases.two_nodes, min_bytes=cases.SIZE * 4 + 1) == ()
    assert len(seen(cases.two_nodes, min_bytes=cases.SIZE * 4)) == 1


@pytest.mark.parametrize(
    "device",
    ["gpu0", "cuda:x", 3, "all:1", "cuda:", "all:", "cuda:\u0663", "cuda:99999999999"],
)
def test_unknown_devices_are_refused(device: object) -> None:
    with pytest.raises(ValueError, match="unknown device"):
        neutracer.warn_tensor_cycles(device)


def test_callback_gets_every_cycle() -> None:
    got: list[TensorCycle] = []
    with neutracer.warn_tensor_cycles(device="cpu", callback=got.append):
        for _ in range(2):
            cases.two_nodes()
            gc.collect()
    assert [cycle.count for cycle in got] == [1, 1]


def test_callback_that_fails_is_told_and_harmless(monkeypatch: pytest.MonkeyPatch) -> None:
    told = []
    monkeypatch.setattr(sys, "unraisablehook", told.append)

    def fail(cycle: TensorCycle) -> None:
        raise RuntimeError("no")

    with neutracer.warn_tensor_cycles(device="cpu", callback=fail) as watch:
        cases.two_nodes()
        gc.collect()
    assert [type(entry.exc_value) for entry in told] == [RuntimeError]
    assert len(watch.cycles) == 1


def test_watch_may_end_in_its_callback() -> None:
    watch = neutracer.warn_tensor_cycles(device="cpu", callback=lambda _: watch.remove())
    for _ in range(2):
        cases.two_nodes()
        gc.collect()
    assert [cycle.count for cycle in watch.cycles] == [1]


def test_watch_lives_without_its_handle() -> None:
    got: list[TensorCycle] = []
    watch = weakref.ref(neutracer.warn_tensor_cycles(device="cpu", callback=got.append))
    gc.collect()
    cases.two_nodes()
    gc.collect()
    handle = watch()
    assert handle is not None
    handle.remove()
    assert len(got) == 1
    cases.two_nodes()
    gc.collect()
    assert len(got) == 1


def test_two_watches_see_the_same() -> None:
    with (
        neutracer.warn_tensor_cycles(device="cpu") as one,
        neutracer.warn_tensor_cycles(device="all") as other,
    ):
        cases.two_nodes()
        gc.collect()
        other.remove()
        cases.two_nodes()
        gc.collect()
    assert [cycle.count for cycle in one.cycles] == [2]
    assert [cycle.count for cycle in other.cycles] == [1]


def test_removal_leaves_no_trace() -> None:
    before = (list(gc.callbacks), gc.get_debug(), sys.getprofile(), gc.get_threshold())
    watch = neutracer.warn_tensor_cycles(device="cpu")
    watch.remove()
    watch.remove()
    assert (list(gc.callbacks), gc.get_debug(), sys.getprofile(), gc.get_threshold()) == before


def test_resurrected_cycles_are_not_told_as_freed() -> None:
    saved: list[object] = []

    class Phoenix:
        def __init__(self) -> None:
            self.me = self
            self.held = cases.tensor()

        def __del__(self) -> None:
            saved.append(self)

    with pytest.warns(TensorCycleWarning, match="a finalizer kept it"):
        (cycle,) = seen(Phoenix)
    assert cycle.resurrected == 1
    saved[0].me = None


def test_log_has_every_occurrence(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "neutracer")
    with neutracer.warn_tensor_cycles(device="cpu"):
        for _ in range(3):
            cases.two_nodes()
            gc.collect()
    levels = [record.levelno for record in caplog.records if "reference cycle" in record.message]
    assert levels == [logging.INFO, logging.DEBUG, logging.DEBUG]
    assert "3 of this shape so far" in caplog.records[-1].message


def test_pages_are_written_once_a_shape(tmp_path: Path) -> None:
    folder = tmp_path / "cycles"
    for _ in range(2):
        (cycle,) = seen(cases.two_nodes, html_dir=folder)
    assert [path.name for path in folder.iterdir()] == [f"cycle-{cycle.signature}.html"]
    assert "Plain" in next(folder.iterdir()).read_text(encoding="utf-8")


def test_ranks_have_pages_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    (cycle,) = seen(cases.two_nodes, html_dir=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [f"cycle-{cycle.signature}-rank1.html"]


def test_forked_children_write_no_pages(with_torch: Imported, tmp_path: Path) -> None:
    code = (
        "import gc, os, warnings, neutracer, cycle_cases\n"
        "warnings.simplefilter('ignore')\n"
        "watch = neutracer.warn_tensor_cycles(device='cpu', html_dir='FOLDER')\n"
        "child = os.fork()\n"
        "if child:\n"
        "    os.waitpid(child, 0)\n"
        "cycle_cases.two_nodes()\n"
        "gc.collect()\n"
        "print(len(watch.cycles), len(os.listdir('FOLDER')), flush=True)\n"
        "if not child:\n"
        "    os._exit(0)\n"
    )
    done = with_torch.run(code.replace("FOLDER", str(tmp_path)))
    assert (done.stdout, done.stderr) == ("1 0\n1 1\n", "")


def test_signatures_tell_shapes_apart() -> None:
    signatures = {seen(case.make)[0].signature for case in cases.CASES}
    # Three of the cases are a Link that refers to itself.
    alike = {"tensor_subclass", "storage_shared_by_views", "behind_an_old_object", "weak_callback"}
    assert len(signatures) == len(cases.CASES) - len(alike) + 1


def test_signature_is_the_same_in_another_process(with_torch: Imported) -> None:
    code = (
        "import gc, warnings, neutracer, cycle_cases\n"
        "warnings.simplefilter('ignore')\n"
        "with neutracer.warn_tensor_cycles(device='cpu') as watch:\n"
        "    cycle_cases.two_nodes(); gc.collect()\n"
        "print(watch.cycles[0].signature)\n"
    )
    done = with_torch.run(code)
    assert done.returncode == 0, done.stderr
    (cycle,) = seen(cases.two_nodes)
    assert done.stdout.strip() == cycle.signature


def test_end_of_the_interpreter_is_no_cycle(with_torch: Imported) -> None:
    program = "class C:\n    import torch\n    held = torch.zeros(4)\n"
    code = (
        f"import torch, neutracer\nneutracer.warn_tensor_cycles('cpu')\nexec({program!r}, {{}})\n"
    )
    done = with_torch.run(code)
    assert (done.returncode, done.stderr) == (0, "")


def test_many_small_cycles_are_one_shape() -> None:
    def rings() -> None:
        for _ in range(100_000):
            one, other = cases.Plain(), cases.Plain()
            one.next, other.prev = other, one
        cases.two_nodes()

    (cycle,) = seen(rings)
    assert cycle.count == 1


def test_many_tensor_cycles_are_counted() -> None:
    def rings() -> None:
        for _ in range(5_000):
            cases.two_nodes()

    (cycle,) = seen(rings)
    assert (cycle.count, cycle.bytes) == (5_000, 5_000 * cases.SIZE * 4)


def test_long_ring_is_folded() -> None:
    def ring() -> None:
        first = last = cases.Plain()
        first.held = cases.tensor()
        for _ in range(99_999):
            last.next = cases.Plain()
            last = last.next
        last.next = first

    (cycle,) = seen(ring)
    assert cycle.objects == 100_000
    assert "… 99,994 more …" in cycle.chain
    assert len(cycle.graph.nodes) < 60


def test_each_watch_counts_its_own_collections() -> None:
    with neutracer.warn_tensor_cycles(device="cpu") as first:
        for _ in range(3):
            gc.collect()
        with neutracer.warn_tensor_cycles(device="cpu") as second:
            assert second.status["spent_ns"] == second.status["walked"] == 0
            gc.collect()
        gc.collect()
    gone = neutracer.warn_tensor_cycles(device="cpu")
    gc.collect()
    gone.remove()
    assert [one.status["collections"] for one in (first, second, gone)] == [5, 1, 1]
    assert 0 < second.status["spent_ns"] < first.status["spent_ns"]
    assert "1 collection watched" in str(second)


def test_collections_in_threads_are_seen() -> None:
    def work() -> None:
        for _ in range(20):
            cases.two_nodes()
            gc.collect(0)

    with neutracer.warn_tensor_cycles(device="cpu") as watch:
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        gc.collect()
    assert [cycle.count for cycle in watch.cycles] == [80]


def test_summary_ranks_by_bytes() -> None:
    with neutracer.warn_tensor_cycles(device="cpu") as watch:
        cases.dataset_with_cached_items()
        cases.two_nodes()
        gc.collect()
    text = str(watch)
    assert text.startswith("2 reference cycles of 2 shapes kept 16 KiB until the collector ran")
    assert text.index("Dataset") < text.index("Plain")
    assert repr(watch) == "<CycleWatch: removed, 2 shapes of cycles seen>"


SCRIPTS = {
    "exit": "make(); sys.exit(0)",
    "fork": (
        "make()\n"
        "pid = os.fork()\n"
        "if pid == 0:\n"
        "    make(); gc.collect()\n"
        "    os._exit(0 if [c.count for c in watch.cycles] in ([1], [2]) else 7)\n"
        "code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])\n"
        "gc.collect()\n"
        "print('child', code, 'parent', [c.count for c in watch.cycles])"
    ),
    "inside": (
        "seen = []\n"
        "def nested(cycle): make(); gc.collect(); seen.append(cycle)\n"
        "neutracer.warn_tensor_cycles(device='cpu', callback=nested)\n"
        "make(); gc.collect(); print('seen', len(seen))"
    ),
}


@pytest.mark.parametrize(
    ("name", "told"), [("exit", ""), ("fork", "child 0 parent [1]"), ("inside", "seen 1")]
)
def test_watch_survives(with_torch: Imported, name: str, told: str) -> None:
    head = (
        "import gc, os, sys, warnings, neutracer\n"
        "from cycle_cases import bound_method_of_itself as make\n"
        "warnings.simplefilter('ignore')\n"
        "gc.collect(); gc.disable()\n"
        "watch = neutracer.warn_tensor_cycles(device='cpu')\n"
    )
    done = with_torch.run(head + SCRIPTS[name])
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.strip() == told


@pytest.mark.parametrize("bound", [1 << 64, 1 << 70])
def test_huge_bounds_pass_over_all(bound: int) -> None:
    assert seen(cases.two_nodes, min_bytes=bound) == ()


@pytest.mark.parametrize(
    "arguments", [{"min_bytes": 1.5}, {"min_bytes": "1"}, {"callback": 3}, {"html_dir": 3}]
)
def test_arguments_of_wrong_type_are_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match=r"min_bytes|callback|PathLike"):
        neutracer.warn_tensor_cycles("cpu", **arguments)


def test_emptied_callbacks_are_told() -> None:
    kept = list(gc.callbacks)
    with neutracer.warn_tensor_cycles("cpu") as watch:
        assert "the watch has stopped" not in str(watch)
        gc.callbacks.clear()
        try:
            assert "the watch has stopped" in str(watch)
        finally:
            gc.callbacks[:] = kept
