# SPDX-License-Identifier: Apache-2.0
"""What piles up from step to step, what a step needs, and what the removal of a cause buys."""

from __future__ import annotations

import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from oom_snapshots import MIB, Recording, explained, full

import neutracer
from neutracer.oom.case import ACTIONS, KINDS
from neutracer.oom.causes import _are_workspaces, _by_holder, _let_go, _of_iterations, _signature
from neutracer.oom.steps import demand_of, rises, rounds_before
from neutracer.render.document import Place
from neutracer.trace.stacks import Frame


def steps_of(
    recording: Recording, sizes: list[float], keep: float = 0, stack: str = "cache"
) -> None:
    """Steps that each take and free a block of such a size, and keep one of `keep` MiB."""
    scratch = recording.segment(max(sizes))
    for number, size in enumerate(sizes):
        recording.metadata = f"step {number}"
        block = recording.alloc(scratch, size, "forward")
        if keep:
            recording.own(keep, stack)
        recording.free(block)


# ---- rises -------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(300))
def test_random_walks_without_drift_do_not_rise(seed: int) -> None:
    chance = random.Random(seed)
    level, values = 1000, []
    for _ in range(60):
        level += chance.choice((-8, 8))
        values.append(level)
    assert not rises(values)


@pytest.mark.parametrize(
    "values",
    [
        [0, 50, 80, 90, 95, 97, 98, 98, 98, 98, 98, 98],  # a warm-up
        [10 * min(step, 20) for step in range(60)],  # a cache that is full
        [4 * (step % 10) for step in range(60)],  # emptied every ten steps
        [7] * 40,
    ],
    ids=["warm-up", "full cache", "saw-tooth", "flat"],
)
def test_what_ends_does_not_rise(values: list[int]) -> None:
    assert not rises(values)


@pytest.mark.parametrize("every", [1, 2, 3, 5])
def test_what_is_kept_now_and_then_rises(every: int) -> None:
    assert rises([step // every for step in range(60)])


def test_blocks_without_a_stack_pile_up_whether_they_are_freed_later_or_not() -> None:
    """A block in use has an empty stack, one that is gone has none."""
    recording = Recording()
    for number in range(20):
        recording.metadata = f"step {number}"
        made = [recording.own(8, "cache"), recording.own(16, "")]
    recording.oom(8, device_free=0, stack="cache")
    at_the_error = explained(recording).verdicts[0]
    for block in (*recording.live,):
        recording.free(block)
    later = explained(recording).verdicts[0]
    assert len(made) == 2
    assert at_the_error.message == later.message
    assert "456 MiB piled up over 19 steps (24 MiB each)" in later.message


def test_what_was_there_before_the_trace_did_not_pile_up_in_it() -> None:
    recording = Recording()
    old = [recording.own(100, "cache") for _ in range(3)]
    recording.trace.clear()
    steps_of(recording, [10] * 12, keep=5)
    recording.metadata = "step 12"
    recording.oom(10, device_free=0, stack="forward")
    first = explained(recording).verdicts[0]
    assert len(old) == 3
    assert "60 MiB piled up over 12 steps (5 MiB each)" in first.message
    assert first.bytes == 360 * MIB


@pytest.mark.parametrize(
    ("chain", "message"),
    [
        ("frame main (a.py:1) → failed[…][1]", "leak: 440 MiB piled up over 12 steps (36.7 MiB"),
        ("frame main (a.py:1) → kept", "leak: 240 MiB piled up over 12 steps (20 MiB"),
    ],
)
def test_what_the_container_that_grows_keeps_now_and_then_is_of_the_leak(
    chain: str, message: str
) -> None:
    recording = Recording()
    scratch = recording.segment(10)
    for number in range(12):
        recording.metadata = f"step {number}"
        block = recording.alloc(scratch, 10, "forward")
        recording.own(20, "cache")
        if number in (4, 9):
            recording.own(100, "keep")
        recording.free(block)
    recording.metadata = "step 12"
    recording.oom(10, device_free=0, stack="forward")
    holders = (
        ("cache (work.py:44)", "frame main (a.py:1) → failed[…][0]"),
        ("keep (work.py:30)", chain),
    )
    why = explained(recording, holders=holders)
    assert why.verdicts[0].message.startswith(message)


# ---- what a step needs ---------------------------------------------------------------------


def test_failing_step_is_scaled_by_those_before_it() -> None:
    recording = Recording()
    base = recording.own(100, "keep")
    room = recording.segment(400)
    for number in range(8):
        recording.metadata = f"step {number}"
        first = recording.alloc(room, 10, "forward")
        second = recording.alloc(room + 100 * MIB, 30, "backward")
        recording.free(second)
        recording.free(first)
    recording.metadata = "step 8"
    recording.oom(30, device_free=0, stack="forward")
    snap = neutracer.load(recording.dumped())
    timeline = snap.timeline()
    rounds = rounds_before(timeline, len(timeline) - 1)
    assert rounds is not None
    assert len(rounds.begins) == 9
    why = neutracer.explain(snap)
    step = why.step
    assert step is not None
    assert base
    assert (step.floor_bytes, step.typical_bytes) == (100 * MIB, 40 * MIB)
    # Three times what the others had taken at this point, so three times in all.
    assert step.expected_bytes == 120 * MIB
    assert demand_of(timeline, None, None) is None  # type: ignore[arg-type]


def test_step_is_not_scaled_by_what_others_had_hardly_begun() -> None:
    recording = Recording()
    recording.own(100, "keep")
    room = recording.segment(400)
    for number in range(8):
        recording.metadata = f"step {number}"
        first = recording.alloc(room, 0.125, "forward")
        second = recording.alloc(room + 100 * MIB, 40, "backward")
        recording.free(second)
        recording.free(first)
    recording.metadata = "step 8"
    recording.oom(400, device_free=0, stack="forward")
    step = neutracer.explain(neutracer.load(recording.dumped())).step
    assert step is not None
    # Not 3,200 times 40.125: what the others made then comes on top.
    assert step.expected_bytes == int(440.125 * MIB)


def test_step_larger_than_any_before_is_capacity() -> None:
    recording = Recording()
    recording.own(100, "keep")
    steps_of(recording, [44, 40, 38, 42, 40, 41, 39, 43])
    recording.metadata = "step 8"
    recording.fail(200, device_free=30, stack="forward")
    first = explained(recording).verdicts[0]
    assert (first.kind, first.finishes) == ("capacity", True)
    assert first.remedy is not None
    assert first.remedy.action == "smaller_step"
    assert first.remedy.value is not None
    # With that share the step fits beside what was in use.
    assert 100 + first.remedy.value * 200 <= 100 + 44 + 1 + 30
    assert "times the largest before it" in first.message


def test_lines_that_no_step_had_run_are_named() -> None:
    recording = Recording()
    recording.own(100, "keep")
    steps_of(recording, [40] * 12)
    recording.metadata = "step 12"
    recording.release(max(recording.segments))
    for _ in range(3):
        recording.own(50, "cache")
    recording.oom(50, device_free=10, stack="cache")
    first = explained(recording).verdicts[0]
    assert (first.kind, first.bytes) == ("capacity", 200 * MIB)
    assert first.remedy is not None
    assert first.remedy.place is not None
    assert (first.remedy.action, first.remedy.place.function) == ("release", "cache")


def test_settings_that_leave_the_leak_are_not_first() -> None:
    recording = Recording()
    steps_of(recording, [30] * 20, keep=10)
    for whole in [recording.own(40) for _ in range(10)]:
        recording.free(whole)
        recording.alloc(whole, 32, "keep")
    recording.fail(50, device_free=10, stack="forward")
    report = explained(recording)
    kinds = [one.kind for one in report.verdicts]
    assert kinds[0] == "leak"
    pieces_of = next(one for one in report.verdicts if one.kind == "fragmentation")
    assert pieces_of.finishes is not True
    assert [one.passes for one in report.trials if one.cost == "setting"] == [False] * 8
    assert report.verdicts[0].finishes


def test_cache_made_anew_is_told_from_a_leak() -> None:
    recording = Recording()
    cache = recording.own(10, "cache")
    for number in range(20):
        recording.metadata = f"step {number}"
        larger = recording.own(10 + 4 * (number + 1), "cache")
        recording.free(cache)
        recording.release(cache)
        cache = larger
    recording.oom(100, device_free=10, stack="cache")
    first = explained(recording).verdicts[0]
    assert first.kind == "cache_growth"
    assert first.bytes == 86 * MIB  # when the last step began
    assert first.remedy is not None
    assert first.remedy.action == "release"


def test_every_remedy_has_a_known_action() -> None:
    recording = Recording()
    recording.own(100, "forward")
    recording.oom(200, device_free=30, stack="forward")
    for verdict in explained(recording).verdicts:
        assert verdict.kind in KINDS
        assert verdict.remedy is None or verdict.remedy.action in ACTIONS


def test_without_steps_nothing_is_promised() -> None:
    recording = Recording()
    recording.own(100, "forward")
    recording.oom(200, device_free=30, stack="forward")
    report = explained(recording)
    assert report.step is None
    assert {verdict.finishes for verdict in report.verdicts} == {None}
    assert "leak" not in report.looked_at


# ---- what to do with it ------------------------------------------------------------------


def test_only_activations_of_a_training_are_said_to_hang_on_a_graph() -> None:
    folder = Path(__file__).parents[1] / "data" / "oom"
    kept = neutracer.explain(folder / "hook_that_keeps_activations.pickle.xz").verdicts[0]
    assert kept.advice[0].text.startswith("keep no graph from step to step")
    recording = Recording()
    steps_of(recording, [30] * 20, keep=10)
    recording.fail(50, device_free=10, stack="forward")
    blocks = explained(recording).verdicts[0]
    assert blocks.kind == "leak"
    assert blocks.advice[0].text.startswith("drop what is no longer needed, move it to the CPU")


@pytest.mark.parametrize(
    ("held", "is_leak"),
    [
        ("frame main (train.py:3) → log.rounds", True),
        ("garbage: only Python's collector frees it", False),
    ],
)
def test_what_a_name_leads_to_is_no_garbage_though_its_line_makes_some(
    held: str, is_leak: bool
) -> None:
    recording = Recording()
    steps_of(recording, [10] * 20, keep=20)
    newest = max(recording.live)
    recording.metadata = "step 20"
    recording.oom(10, device_free=0, stack="forward")
    report = explained(
        recording,
        garbage_bytes=20 * MIB,
        garbage_addresses=frozenset({newest}),
        holders=(("cache (work.py:44)", held),),
    )
    assert ("leak" in [one.kind for one in report.verdicts]) == is_leak


@pytest.mark.parametrize(
    ("chain", "said"),
    [
        ('frame main → log.rounds[…]["belief"]._covar.tensor', "drop what is no longer needed"),
        ("frame main → store._params[…].grad", "by an option of the object"),
    ],
)
def test_list_of_the_program_is_its_own_to_clear_whatever_is_in_it(chain: str, said: str) -> None:
    timeline = SimpleNamespace(passes=SimpleNamespace(backward=()))
    case: Any = SimpleNamespace(timeline=timeline, phase=SimpleNamespace(name="inference"))
    place = Place("forward", "scale_kernel.py", 118, package="gpytorch")
    assert said in _let_go(case, place, False, chain).text


@pytest.mark.parametrize("size", [100, 300])
def test_holder_of_the_largest_line_is_named_once(size: int) -> None:
    recording = Recording()
    for mib, stack in ((size, "keep"), (80, "weights"), (80, "cache")):
        recording.own(mib, stack)
    recording.oom(50, device_free=0, stack="program")
    chain = "frame main (train.py:3) → model.teacher"
    report = explained(recording, holders=(("keep (work.py:30)", chain),))
    (first,) = report.verdicts
    notes = [note.text for note in (*first.evidence, *first.advice)]
    assert sum(chain in note for note in notes) == 1


def test_loaded_file_that_stays_is_to_be_loaded_on_the_cpu() -> None:
    recording = Recording()
    for mib, stack in ((300, "weights"), (80, "keep"), (80, "cache")):
        recording.own(mib, stack)
    recording.oom(50, device_free=0, stack="program")
    # Whoever else has part of it, too.
    chain = "frame main (train.py:3) → optimizer.state[…]; frame main (train.py:3) → checkpoint"
    report = explained(recording, holders=(("main (train.py:3)", chain),))
    assert report.verdicts[0].advice[0].text.startswith("load on the CPU (map_location='cpu')")
    assert report.verdicts[0].advice[0].place.line == 3


def test_part_that_all_holders_share_is_what_to_drop() -> None:
    recording = Recording()
    scratch = recording.segment(10)
    for number in range(20):
        recording.metadata = f"step {number}"
        block = recording.alloc(scratch, 10, "forward")
        recording.own(2, "cache")
        recording.own(2, "keep")
        recording.free(block)
    recording.metadata = "step 20"
    recording.oom(10, device_free=0, stack="forward")
    holder = "frame main (a.py:1) → all[…].result"
    held = (("cache (work.py:44)", f'{holder}["scores"]'), ("keep (work.py:30)", f"{holder}.keys"))
    (first, *_) = explained(recording, garbage_bytes=0, holders=held).verdicts
    assert first.kind == "leak"
    assert first.advice[0].text.endswith(f"in {holder}")


def test_what_fills_a_queue_is_the_cause_though_another_line_fails() -> None:
    recording = Recording()
    for _ in range(20):
        recording.own(4, "cache")
    recording.own(10, "forward")
    recording.oom(10, device_free=0, stack="program")
    held = (("cache (work.py:44)", "frame main (a.py:1) → loader.ready.queue"),)
    (first, *_) = explained(recording, garbage_bytes=0, holders=held).verdicts
    assert first.kind == "leak"
    assert "bound the queue" in first.advice[0].text


@pytest.mark.parametrize(("asked", "is_first"), [(20, True), (400, False)])
def test_pools_that_come_with_each_graph_are_the_cause_where_sharing_helps(
    asked: int, is_first: bool
) -> None:
    recording = Recording()
    scratch = recording.segment(10)
    for number in range(8):
        recording.metadata = f"step {number}"
        recording.free(recording.alloc(scratch, 10, "forward"))
        recording.free(recording.own(20, "program", pool=(number + 1, 0)))
        recording.own(2, "cache")
    recording.metadata = "step 8"
    recording.oom(asked, device_free=0, stack="program")
    kinds = [one.kind for one in explained(recording, garbage_bytes=0).verdicts]
    assert (kinds[0] == "other_pool") is is_first


@pytest.mark.parametrize(
    ("tensors", "is_told"),
    [
        (("values: (4096, 1) float32", "returns: (4096,) float32"), True),
        (("values: (4096,) float32", "returns: (4096,) float32"), False),
        (("values: (4096, 3) float32", "returns: (4096,) float32"), False),
        (("values: (4096, 1) float64", "returns: (4096,) float64"), False),
    ],
)
def test_shapes_that_broadcast_to_the_request_are_told(
    tensors: tuple[str, ...], is_told: bool
) -> None:
    recording = full(200)
    recording.oom(64, device_free=0, stack="program")
    (first, *_) = explained(recording, tensors=tensors).verdicts
    told = "values (4096, 1) and returns (4096,) broadcast to (4096, 4096)"
    assert first.advice[0].text.startswith(told) is is_told


@pytest.mark.parametrize(
    ("mib", "is_told"), [(64, True), (63, False), (16 * 64, False)], ids=["128", "126", "2048"]
)
def test_pairs_of_a_tensor_with_itself_are_told(mib: int, is_told: bool) -> None:
    """Of 16 batches with 128 rows of 64 numbers: 128 x 128 rows in each."""
    recording = full(200)
    recording.oom(mib, device_free=0, stack="program")
    (first, *_) = explained(recording, tensors=("tokens: (16, 128, 64) float32",)).verdicts
    told = "it makes all 128 x 128 pairs of tokens (16, 128, 64)"
    assert first.advice[0].text.startswith(told) is is_told


@pytest.mark.parametrize("before", [0, 900])
def test_holes_are_no_cause_where_a_first_pass_still_grows(before: int) -> None:
    recording = Recording()
    if before:
        recording.free(recording.own(before, "inference"))
        recording.release(max(recording.segments))
    for _ in range(4):
        recording.own(200, "inference")
    recording.alloc(recording.segment(60), 10, "inference")
    recording.oom(100, device_free=60, stack="inference")
    first = explained(recording, device_total_bytes=1024 * MIB).verdicts[0]
    is_new = not before
    assert first.message.startswith("the first pass needs more than the device") is is_new
    assert (first.kind == "fragmentation") is not is_new


@pytest.mark.parametrize(("stack", "kind"), [("program", "capacity"), ("keep", "fragmentation")])
def test_holes_are_no_cause_where_a_function_makes_several_as_large(stack: str, kind: str) -> None:
    """Of which the second does not fit, and no round before had two."""
    recording = Recording()
    recording.alloc(recording.segment(60), 10, "weights")
    steps_of(recording, [110] * 8)
    recording.release(max(recording.segments))
    recording.metadata = "step 8"
    recording.own(100, stack)
    recording.oom(100, device_free=60, stack="program")
    assert explained(recording, device_total_bytes=1024 * MIB).verdicts[0].kind == kind


@pytest.mark.parametrize(
    ("dtype", "wide"), [("int64", ", or take a smaller dtype for both:"), ("int32", ":")]
)
def test_a_larger_step_is_told_what_its_request_is_as_large_as(dtype: str, wide: str) -> None:
    recording = Recording()
    scratch = recording.segment(50)
    for number in range(8):
        recording.metadata = f"step {number}"
        recording.free(recording.alloc(scratch, 50, "program"))
    recording.metadata = "step 8"
    recording.oom(160, device_free=0, stack="program")
    count = 160 * MIB // (8 if dtype == "int64" else 4)
    (first, *_) = explained(recording, tensors=(f"guess: ({count}) {dtype}",)).verdicts
    assert first.message.startswith("this step needs")
    text = first.advice[0].text
    assert text.startswith(f"it is as large as guess ({count},) {dtype}: do it in 64 pieces")
    assert text.endswith(f"out=){wide}")


def test_shapes_that_broadcast_to_less_than_the_request_are_not_told() -> None:
    recording = full(200)
    recording.oom(12, device_free=0, stack="program")
    tensors = ("values: (1600, 1) float32", "returns: (1600,) float32")
    (first, *_) = explained(recording, tensors=tensors).verdicts
    assert "broadcast" not in first.advice[0].text


@pytest.mark.parametrize("chain", ["", "frame follow (a.py:55) → self → .sums → autograd graph"])
def test_what_has_a_name_is_no_workspace(chain: str) -> None:
    """Tensors of 32 MiB that a matmul makes have the size of one."""
    rules = SimpleNamespace(rule=lambda row: ("workspace", row))
    case: Any = SimpleNamespace(
        columns=lambda _: ([32 * MIB] * 20,),
        rows_at=lambda _: range(20),
        timeline=SimpleNamespace(categories=rules),
        holder_of=lambda _: chain,
    )
    assert _are_workspaces(case, Place("follow", "a.py", 55)) == (not chain)


@pytest.mark.parametrize(
    ("path", "name", "said"),
    [
        ("torch_geometric/nn/aggr/lstm.py", "forward", "cap the neighbours"),
        ("torchaudio/functional/functional.py", "_get_sinc_resample_kernel", "common divisor"),
        ("torchaudio/functional/functional.py", "resample", ""),
    ],
)
def test_line_of_a_library_has_its_argument(path: str, name: str, said: str) -> None:
    text = _signature((Frame(f"/site-packages/{path}", 1, name), Frame("a.py", 1, "main")))
    assert said in text if said else text == ""


@pytest.mark.parametrize(
    ("vectors", "said"), [(2, ""), (21, "; it has 10 by now, and history_size=5 keeps half")]
)
def test_history_of_lbfgs_has_a_size_that_fits(vectors: int, said: str) -> None:
    stack = (Frame("/lib/site-packages/torch/optim/lbfgs.py", 400, "step"), Frame("a.py", 1, "fit"))
    sizes = [9 * MIB, *[2 * MIB] * vectors, 512]
    case: Any = SimpleNamespace(
        columns=lambda *_: (sizes, [0, *[1] * (vectors + 1)]),
        live_rows=range(len(sizes)),
        snap=SimpleNamespace(stacks=[(Frame("a.py", 9, "net"),), stack]),
    )
    assert _of_iterations(case) == said


def test_error_that_a_library_caught_is_said_to_be_one() -> None:
    recording = full(200)
    recording.oom(64, device_free=0, stack="program")
    assert "a library caught this one" in str(explained(recording, raised=False))
    assert "a library caught" not in str(explained(recording, raised=True))


@pytest.mark.parametrize(
    ("side", "tensors", "is_told"),
    [
        (4099, (), True),
        (4096, (), False),
        # Its side is the length of what the function has.
        (4096, ("points[0]: (4096,) float32",), True),
        (4096, ("points: (4096, 1) float32",), True),
        (4096, ("points: (4096, 3) float32",), False),
        (4096, ("loss: () float32", "other: (2048,) float32"), False),
    ],
)
def test_request_for_a_square_is_told(side: int, tensors: tuple[str, ...], is_told: bool) -> None:
    recording = full(200)
    recording.oom(-(-side * side * 4 // 512) * 512 / MIB, device_free=0, stack="program")
    (first, *_) = explained(recording, tensors=tensors).verdicts
    assert (f"{side:,} x {side:,} elements" in first.advice[0].text) is is_told


@pytest.mark.parametrize(("held", "is_told"), [(20, True), (12, False)])
def test_parts_that_are_joined_are_to_be_written_into_the_whole(held: int, is_told: bool) -> None:
    """Each round keeps a part, and the request behind them is as large as all of them, or not."""
    recording = Recording()
    steps_of(recording, [10] * 20, keep=10)
    recording.oom(held * 10, device_free=0, stack="program")
    (first, *_) = explained(recording).verdicts
    assert first.kind == "leak"
    assert first.advice[0].text.startswith("allocate the whole once") is is_told


def test_what_hangs_on_one_reference_is_to_be_cut_there() -> None:
    notes = _by_holder("frame search (zero.py:114) → root.parent → …")
    assert notes[0].text.startswith("set that reference to None")


def test_models_that_no_collection_frees_are_cycles_through_autograd() -> None:
    recording = Recording()
    steps_of(recording, [10] * 20, keep=4, stack="build")
    recording.metadata = "step 20"
    recording.oom(10, device_free=0, stack="forward")
    held = (("make_model (work.py:50)", "garbage: only Python's collector frees it"),)
    (first, *_) = explained(recording, garbage_bytes=0, holders=held).verdicts
    assert first.kind == "leak"
    assert "create_graph=True" in first.advice[0].text
    assert "no collection frees them" in first.advice[1].text
