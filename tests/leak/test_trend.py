# SPDX-License-Identifier: Apache-2.0
"""`leak_trend` on series with a known truth, on real snapshots, and on a monitor's tables."""

from __future__ import annotations

import itertools
import json
import math
import random
import re
from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trend_series as made
from bundle import DATA, NAMES, snapshot
from series_counts import count_set
from small_snapshots import BASE, block, dumped, event, segment

import neutracer
from neutracer import leak_trend
from neutracer.leak.trend import ChangePoint

MIB = 1 << 20
LEVEL = 4 << 30
CALL = {"name": "_call_impl", "filename": "/x/torch/nn/modules/module.py", "line": 1}

# Bundled programs that pile something up on purpose.
GROWING = {"leak_list": "leak", "create_graph_leak": "leak"}


def rising(steps: int = 40, rate: int = MIB) -> list[int]:
    return [LEVEL + rate * step for step in range(steps)]


# ---- real snapshots --------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_bundled_snapshots_have_their_verdicts(name: str) -> None:
    verdict = leak_trend(snapshot(name)).verdict
    if name in GROWING:
        assert verdict == GROWING[name]
    else:
        assert verdict not in ("leak", "cycle_garbage", "non_torch_growth")


def test_leak_is_found_at_its_line() -> None:
    trend = leak_trend(snapshot("leak_list"))
    assert trend.unit == "step"
    assert trend.warmup_steps == 1
    # Each third step keeps 2 MiB, each step 512 bytes.
    assert trend.bytes_per_step == pytest.approx((2 * MIB + 3 * 512) / 3, rel=0.01)
    assert trend.interval[0] <= trend.bytes_per_step <= trend.interval[1]
    assert trend.p_value < 1e-6
    assert trend.growth[0].place.location == "train.py:120"
    assert trend.growth[0].share == 1.0
    assert trend.suspect is None


def test_healthy_training_is_steady() -> None:
    trend = leak_trend(DATA / "train_resnet_healthy.pickle.xz")
    assert trend.verdict == "steady"
    assert trend.bytes_per_step == 0.0
    assert trend.findings == ()
    assert trend.growth == ()
    assert trend.oom_step is None


def test_create_graph_is_the_suspect() -> None:
    trend = leak_trend(snapshot("create_graph_leak"), capacity="1GiB")
    assert trend.suspect == "create_graph"
    advice = " ".join(str(note) for note in trend.findings[0].advice)
    assert "create_graph=True" in advice
    assert "train.py:112" in advice
    assert {grown.category for grown in trend.growth} >= {"gradient"}
    # 8 MiB a step on top of 140 MiB at step 17, and 16 MiB more within a step.
    assert trend.oom_step is not None
    assert 110 <= trend.oom_step <= 130


def test_beginnings_of_steps_may_be_an_array() -> None:
    numpy = pytest.importorskip("numpy")
    snap = snapshot("create_graph_leak")
    starts = range(0, snap.trace_length(), 200)
    told = leak_trend(snap, steps=numpy.array(starts))
    assert told.to_dict() == leak_trend(snap, steps=starts).to_dict()


def test_garbage_that_the_heap_had_names_both_lines(tmp_path: Path) -> None:
    path = tmp_path / "cycle_nodes.pickle"
    snapshot("cycle_nodes").save(path)
    assert leak_trend(path).verdict == "steady"
    facts = {"oom": {"schema": "neutracer.oom/1", "garbage_bytes": 60 * MIB}}
    Path(f"{path}.json").write_text(json.dumps(facts))
    trend = leak_trend(path)
    assert trend.verdict == "cycle_garbage"
    assert trend.resets >= 2
    assert trend.reset_bytes > 60 * MIB
    assert trend.growth[0].place.location == "train.py:91"
    evidence = " ".join(str(note) for note in trend.findings[0].evidence)
    assert "train.py:95" in evidence
    assert "warn_tensor_cycles" in str(trend)


@pytest.mark.parametrize("name", ["leak_list", "cycle_nodes", "train_resnet_healthy", "metadata"])
def test_reports_fit_one_screen(name: str) -> None:
    trend = leak_trend(snapshot(name), capacity="80GiB")
    lines = str(trend).splitlines()
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 100
    plain = json.loads(json.dumps(trend.to_dict()))
    assert plain["schema"] == "neutracer.leak_trend/1"
    assert plain["verdict"] == trend.verdict
    assert trend._repr_html_().startswith("<")


# ---- synthetic series ------------------------------------------------------------------


@pytest.mark.parametrize("group", ["a", "b"])
def test_families_have_their_verdicts(group: str) -> None:
    """Of series that are no walks one in 200 is called growing at most, of leaks 97 in 100 are."""
    found = count_set(group, 25, "test")
    others, leaks = found["other steady"], found["leaks"]
    assert others["growing"] <= 0.005 * others.total()
    assert leaks["growing"] >= 0.97 * leaks.total()


def test_numbers_alone_have_no_chance() -> None:
    """The rank test's p knows no random walks, so a report on bare numbers gives none."""
    trend = leak_trend(rising())
    assert (trend.verdict, trend.p_value) == ("growing", None)
    text = " ".join(str(trend).split())
    assert "Numbers alone cannot tell a random walk from slow growth." in text
    assert "p <" not in text


@pytest.mark.parametrize("how", made.DISTURBANCES)
def test_steady_programs_raise_no_alarm(how: str) -> None:
    rng = random.Random(f"steady {how}")
    verdicts: Counter[str] = Counter()
    for number in range(100):
        memory = made.MEMORIES[number % 4]
        series = made.disturbed(rng, made.level(rng, rng.choice((24, 60, 150)), memory), how)
        options: dict[str, Any] = {}
        values = made.whole(series)
        if how == "saw-teeth":
            values, options["steps"] = made.within_steps(rng, series)
        verdicts[leak_trend(values, **options).verdict] += 1
    # One of a hundred by chance, and two more for the chance of these hundred.
    assert verdicts["steady"] + verdicts["unknown"] >= 97


def test_slow_warmup_is_no_leak() -> None:
    rng = random.Random("slow")
    verdicts = Counter[str]()
    for _ in range(100):
        pace = rng.uniform(2.0, 4.0)
        series = enumerate(made.level(rng, 40, 0.9))
        rising = [one - 0.3 * made.LEVEL * math.exp(-at / pace) for at, one in series]
        verdicts[leak_trend(made.whole(rising)).verdict] += 1
    # One of a hundred by chance, and three more for the chance of these hundred.
    assert verdicts["growing"] <= 4


def test_interval_holds_the_true_rate() -> None:
    rng = random.Random("interval")
    held = 0
    for number in range(100):
        rate = made.LEVEL * made.LEAK
        series = made.leaking(made.level(rng, 60, made.MEMORIES[number % 4]))
        low, high = leak_trend(made.whole(series)).interval
        held += low <= rate <= high
    assert held >= 93


@pytest.mark.parametrize("kind", ["cache_growth", "fragmentation_growth", "non_torch_growth"])
def test_growth_beside_live_bytes_is_told(kind: str) -> None:
    rng = random.Random(kind)
    verdicts = Counter(
        leak_trend(made.columns(rng, 80, made.MEMORIES[n % 4], kind)).verdict for n in range(40)
    )
    assert verdicts[kind] >= 37


def test_cache_of_which_little_lies_between_blocks_is_a_cache() -> None:
    grown = {"reserved": rising(60, 10 * MIB), "inactive_split": rising(60, 2 * MIB)}
    trend = leak_trend({"allocated": [LEVEL // 2] * 60, **grown})
    assert trend.verdict == "cache_growth"
    assert "empty_cache() can return it" in str(trend)
    most = {**grown, "inactive_split": rising(60, 6 * MIB)}
    assert leak_trend({"allocated": [LEVEL // 2] * 60, **most}).verdict == "fragmentation_growth"


def test_sawtooth_is_told() -> None:
    rng = random.Random("garbage")
    trends = [
        leak_trend(made.whole(made.sawtooth(rng, made.level(rng, 100, made.MEMORIES[n % 4]))))
        for n in range(40)
    ]
    assert sum(one.verdict == "steady" and one.resets >= 2 for one in trends) >= 38


def test_sawtooth_of_numbers_does_not_say_whose_it_is() -> None:
    """What a program empties itself looks as garbage does."""
    trend = leak_trend([LEVEL + step % 25 * 4 * MIB for step in range(200)])
    assert (trend.verdict, trend.resets, trend.reset_bytes) == ("steady", 7, 96 * MIB)
    assert "It rises and falls: 7 falls, by 96 MiB" in trend.because
    assert "warn_tensor_cycles() in the program finds" in " ".join(str(trend).split())
    assert trend.findings == ()


def test_sawtooth_that_no_longer_falls_is_not_said_to_be_steady() -> None:
    saw = [1000 * MIB + step % 20 * 4 * MIB for step in range(160)]
    trend = leak_trend([*saw, *(saw[-1] + step * 4 * MIB for step in range(1, 61))])
    assert trend.verdict == "unknown"
    assert "is now higher than falls of this size take back" in " ".join(str(trend).split())


def test_cache_that_grows_beside_a_sawtooth_is_told() -> None:
    live = [LEVEL + step % 25 * 4 * MIB for step in range(200)]
    held = [2 * LEVEL + step * 8 * MIB for step in range(200)]
    assert leak_trend({"allocated": live, "reserved": held}).verdict == "cache_growth"


def test_leak_below_garbage_is_a_leak() -> None:
    values = [LEVEL + 40 * MIB * (step % 15) + 5 * MIB * step for step in range(90)]
    trend = leak_trend(values)
    assert trend.verdict == "growing"
    assert trend.bytes_per_step == pytest.approx(5 * MIB, rel=0.01)
    assert trend.resets >= 3


def test_growth_that_ends_is_no_leak() -> None:
    filling = [LEVEL + 20 * MIB * min(step, 35) for step in range(100)]
    assert leak_trend(filling).verdict == "steady"
    assert leak_trend(filling).warmup_steps >= 30


def test_change_points_are_told() -> None:
    values = [LEVEL + (600 * MIB if step >= 30 else 0) for step in range(60)]
    trend = leak_trend(values)
    assert trend.verdict == "steady"
    assert [(point.step, point.bytes) for point in trend.change_points] == [(30, 600 * MIB)]


@pytest.mark.parametrize(
    ("stairs", "verdict"), [((36, 44, 52), "unknown"), ((36, 48), "steady"), ((), "steady")]
)
def test_stairs_are_not_called_steady(stairs: tuple[int, ...], verdict: str) -> None:
    """As of trials of several steps, of which some keep their model."""
    models = [sum(step >= at for at in stairs) for step in range(60)]
    assert leak_trend([LEVEL + 400 * MIB * kept for kept in models]).verdict == verdict
    falling = [LEVEL + 400 * MIB * (kept % 2) for kept in models]
    assert leak_trend(falling).verdict == "steady"


def test_change_points_that_are_not_shown_are_counted() -> None:
    trend = leak_trend([LEVEL] * 60)
    points = tuple(ChangePoint(step, 600 * MIB) for step in range(8))
    assert "and 2 later changes" in str(replace(trend, change_points=points))
    assert "later change" not in str(replace(trend, change_points=points[:6]))


def test_growth_too_small_for_a_long_run_is_no_leak() -> None:
    trend = leak_trend(rising(60, 12))
    assert trend.verdict == "steady"
    assert trend.bytes_per_step == pytest.approx(12)
    assert "too little" in trend.because


def test_a_certain_leak_is_one_however_little_the_steps_seen_show_of_it() -> None:
    trend = leak_trend(rising(60, 512))
    assert (trend.verdict, trend.findings[0].severity) == ("growing", "info")
    assert trend.bytes_per_step == pytest.approx(512)


def test_few_steps_prove_nothing() -> None:
    assert leak_trend([LEVEL]).verdict == "unknown"
    assert leak_trend([LEVEL, 2 * LEVEL]).verdict == "unknown"
    assert leak_trend([LEVEL, 2 * LEVEL, 3 * LEVEL, 4 * LEVEL]).verdict == "unknown"
    assert leak_trend([LEVEL, LEVEL, LEVEL]).verdict == "steady"


@pytest.mark.parametrize("count", [1, 7, 15, 63])
def test_few_events_prove_nothing(count: int) -> None:
    trace = [event("segment_alloc", BASE, 64 * MIB, 1000)]
    for number in range(1, count):
        action = ("alloc", "free_requested", "free_completed")[(number - 1) % 3]
        trace.append(event(action, BASE, MIB, 1000 + 10 * number))
    state = ("inactive", "active_allocated", "active_pending_free")[(count - 1) % 3]
    blocks = [block(BASE, MIB, state, MIB), block(BASE + MIB, 63 * MIB)]
    plain = {"segments": [segment(BASE, blocks)], "device_traces": [trace]}
    trend = leak_trend(dumped(plain))
    assert (trend.verdict, trend.unit) == ("unknown", "window")
    assert trend.steps + trend.warmup_steps == max(count // 8, 1)
    assert "record longer" in str(trend)


@pytest.mark.parametrize("count", [3, 7, 40])
def test_few_readings_prove_nothing(count: int) -> None:
    trend = leak_trend(Watched(readings(0, count)), live=False)
    assert (trend.verdict, trend.unit) == ("unknown", "window")


# ---- the page ---------------------------------------------------------------------------


RATE = re.compile(r"(\S+) +([KMG]iB) +\d+$")


@pytest.mark.parametrize(
    ("live", "cached", "told"),
    [
        (2 * MIB, -99_533, [("2.0", "MiB"), ("-97.2", "KiB")]),
        (136 * MIB, -5 * MIB // 4, [("136.00", "MiB"), ("-1.25", "MiB")]),
        (683 << 10, 0, [("683", "KiB"), ("0", "KiB")]),
    ],
)
def test_rates_of_a_column_end_alike(live: int, cached: int, told: list[tuple[str, str]]) -> None:
    series = {
        "allocated": [LEVEL + live * step for step in range(40)],
        "reserved": [4 * LEVEL + cached * step for step in range(40)],
    }
    found = [RATE.search(line) for line in str(leak_trend(series)).splitlines()]
    rates = [one for one in found if one is not None]
    assert [one.groups() for one in rates] == told
    assert rates[0].span(2) == rates[1].span(2)
    assert rates[0].end(1) == rates[1].end(1)


def test_chances_are_written_in_one_way() -> None:
    found = re.findall(r"p [<=] \S+", str(leak_trend(snapshot("leak_list"))))
    assert found[0] == "p < 0.0001."
    assert all(re.fullmatch(r"p (< 0\.0001|= [01]\.\d{4})\.?", one) for one in found)


def test_cache_given_back_is_said_so() -> None:
    trend = leak_trend(snapshot("frag_default"))
    assert trend.verdict == "steady"
    assert "The cache grew and was given back" in trend.because
    assert "fell by 1,412 MiB at step 14" in str(trend)


# ---- forecasts, steps and arguments ----------------------------------------------------


def test_end_of_memory_is_forecast() -> None:
    trend = leak_trend(rising(41), capacity=LEVEL + 140 * MIB, step_us=250_000)
    # The median of the last five steps is that of step 38.
    assert trend.oom_step == 40 + 140 - 38
    assert trend.oom_between == (trend.oom_step, trend.oom_step)
    assert trend.oom_in_us == pytest.approx((trend.oom_step - 40) * 250_000)
    assert "will be full at step 142" in str(trend)
    assert trend.findings[0].severity == "severe"
    assert leak_trend(rising(41)).oom_step is None


@pytest.mark.parametrize("steps", [20, 40, 60])
@pytest.mark.parametrize("left", [0.93, 0.97])
def test_growth_that_slows_down_is_no_leak_yet(steps: int, left: float) -> None:
    trend = leak_trend([round(10 * LEVEL - 4 * LEVEL * left**step) for step in range(steps)])
    assert trend.verdict == "unknown"
    assert trend.oom_step is None
    assert "It grew ever more slowly and may level off." in str(trend)


@pytest.mark.parametrize("steps", [60, 150])
def test_growth_that_slows_down_a_little_is_a_leak(steps: int) -> None:
    """Kept outputs of texts whose lengths differ by a quarter, the longest first."""
    found = 0
    for seed in range(40):
        rng = random.Random(f"longest first {seed}")
        sizes = sorted((rng.lognormvariate(0.0, 0.25) for _ in range(steps)), reverse=True)
        kept = itertools.accumulate(sizes)
        found += leak_trend([LEVEL + round(one * MIB) for one in kept]).verdict == "growing"
    assert found >= 38


def test_floor_of_each_step_counts() -> None:
    values, starts = [], []
    for step in range(40):
        starts.append(len(values))
        values += [LEVEL + step * MIB, 2 * LEVEL, 3 * LEVEL, LEVEL + step * MIB + 77]
    trend = leak_trend(values, steps=starts, capacity=3 * LEVEL + 60 * MIB)
    assert trend.verdict == "growing"
    assert trend.bytes_per_step == pytest.approx(MIB)
    assert list(trend.floors) == [LEVEL + step * MIB for step in range(40)]
    # What a step takes above its floor must fit too.
    assert trend.oom_step is not None
    assert trend.oom_step <= 110


def test_highest_of_the_last_steps_must_fit_too() -> None:
    values, starts = [], []
    for step in range(40):
        starts.append(len(values))
        values += [LEVEL + step * MIB, LEVEL + step * MIB + (100 if step == 37 else 10) * MIB]
    # Of 150 MiB above the median of the last five floors 100 are for what step 37 took more.
    trend = leak_trend(values, steps=starts, capacity=LEVEL + (37 + 150) * MIB)
    assert trend.oom_step == 39 + 50


@pytest.mark.parametrize("make", [list, tuple, lambda v: array("Q", v), lambda v: array("d", v)])
def test_numbers_of_any_kind_are_read(make: Any) -> None:
    assert leak_trend(make(rising())).bytes_per_step == pytest.approx(MIB)
    assert leak_trend(iter(rising())).verdict == "growing"


def test_bad_input_is_named() -> None:
    with pytest.raises(ValueError, match="without values"):
        leak_trend([])
    with pytest.raises(ValueError, match="-1"):
        leak_trend([1, 2, -1])
    with pytest.raises(ValueError, match="nan"):
        leak_trend([1.0, float("nan")])
    with pytest.raises(TypeError, match="NoneType"):
        leak_trend([1, None])
    with pytest.raises(TypeError, match="int"):
        leak_trend(3)
    with pytest.raises(ValueError, match="ascending"):
        leak_trend(rising(), steps=[3, 3])
    with pytest.raises(ValueError, match="40 values"):
        leak_trend(rising(), steps=[0, 40])
    with pytest.raises(ValueError, match="'allocated'"):
        leak_trend({"reserved": rising()})
    with pytest.raises(ValueError, match="differ in length"):
        leak_trend({"allocated": rising(), "reserved": rising(3)})
    with pytest.raises(TypeError, match="sequence of numbers"):
        leak_trend({"allocated": 5})
    with pytest.raises(TypeError, match="not a list"):
        leak_trend([[1, 2], [3, 4]])
    with pytest.raises(TypeError, match="bytes, not a type"):
        leak_trend(neutracer.MemoryMonitor)
    with pytest.raises(ValueError, match="whole numbers"):
        leak_trend(rising(), steps=[0, float("inf")])  # type: ignore[list-item]
    with pytest.raises(neutracer.NeutracerError, match="not started"):
        leak_trend(neutracer.MemoryMonitor())
    with pytest.raises(ValueError, match="times in microseconds"):
        leak_trend(Watched(readings(0)), steps=["a"])  # type: ignore[list-item]
    with pytest.raises(neutracer.SnapshotError):
        leak_trend(b"no snapshot")


def test_cache_given_back_is_no_growth() -> None:
    reserved = [LEVEL + 100 * MIB * step for step in range(14)] + [LEVEL - 500 * MIB] * 2
    assert leak_trend({"allocated": [LEVEL] * 16, "reserved": reserved}).verdict == "steady"


def test_cache_without_split_says_so() -> None:
    columns = {"allocated": [LEVEL] * 40, "reserved": rising(40, 40 * MIB)}
    trend = leak_trend(columns, capacity="24GiB")
    assert trend.verdict == "cache_growth"
    assert trend.series == "reserved"
    assert "These series don't show" in str(trend)
    assert trend.oom_step is None


# ---- traces ----------------------------------------------------------------------------


def traced(
    steps: int,
    kept: str,
    *,
    every: int = 1,
    until: int = 1 << 30,
    layers: Sequence[dict[str, Any]] = (),
) -> dict[str, Any]:
    """A trace of steps that allocate, free, and keep a block made by the line `kept`, and one
    by each of some layers of a module that it called."""
    trace: list[dict[str, Any]] = [event("segment_alloc", BASE, 1 << 30, 1000)]
    blocks, at, now = [], BASE, 1010
    pool = event(
        "alloc", at, 256 * MIB, now, frames=[{"name": "init", "filename": "w.py", "line": 2}]
    )
    trace.append(pool)
    blocks.append(block(at, 256 * MIB, "active_allocated", 256 * MIB))
    at += 256 * MIB
    scratch = BASE + (900 << 20)
    for step in range(steps):
        for line in range(12):
            now += 100
            frames = [{"name": "work", "filename": "train.py", "line": 10 + line}]
            trace += [
                event(
                    action,
                    scratch,
                    4 * MIB,
                    now + number,
                    frames=frames,
                    user_metadata=f"step {step}",
                )
                for number, action in enumerate(("alloc", "free_requested", "free_completed"))
            ]
        if kept and step % every == 0 and step < until:
            frames = [{"name": kept, "filename": "train.py", "line": 50}]
            trace.append(
                event("alloc", at, MIB, now + 50, frames=frames, user_metadata=f"step {step}")
            )
            blocks.append({**block(at, MIB, "active_allocated", MIB), "frames": frames})
            at += MIB
            for layer in layers:
                inside = [layer, CALL, *frames]
                trace.append(
                    event("alloc", at, MIB, now + 60, frames=inside, user_metadata=f"step {step}")
                )
                blocks.append({**block(at, MIB, "active_allocated", MIB), "frames": inside})
                at += MIB
    blocks.append(block(at, BASE + (1 << 30) - at))
    return {
        "segments": [segment(BASE, blocks)],
        "device_traces": [trace],
        "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": "", "expandable_segments": False},
        "external_annotations": [],
    }


def test_static_pool_is_no_leak() -> None:
    trend = leak_trend(dumped(traced(30, "")))
    assert trend.verdict == "steady"
    assert trend.growth == ()


def test_survivors_name_the_line() -> None:
    trend = leak_trend(dumped(traced(30, "remember")))
    assert trend.verdict == "leak"
    assert trend.bytes_per_step == pytest.approx(MIB)
    (grown,) = trend.growth
    assert str(grown.place) == "remember (train.py:50)"
    assert grown.bytes_per_step == pytest.approx(MIB, rel=0.05)
    seldom = leak_trend(dumped(traced(60, "remember", every=4)))
    assert seldom.verdict == "leak"
    assert seldom.growth[0].steps <= 16


def test_few_bytes_are_proved_by_their_blocks() -> None:
    """Too little for the series: 1 MiB a step among 64 GiB. The blocks are exact."""
    recording = traced(40, "remember")
    assert leak_trend(dumped(among(recording, 64 << 30))).verdict == "leak"
    assert leak_trend(dumped(among(traced(40, "remember", every=2), 64 << 30))).verdict == "leak"


def test_what_ends_early_is_no_proof() -> None:
    """A queue that is full after two thirds of the steps, of as little a step."""
    full = traced(40, "remember", until=27)
    assert leak_trend(dumped(among(full, 64 << 30))).verdict != "leak"


def test_full_buffer_beside_a_leak_is_no_grower() -> None:
    """Each step frees a block of 8 MiB from before the trace, and makes another."""
    recording, frames = traced(30, "remember"), [{"name": "store", "filename": "a.py", "line": 7}]
    trace, base = recording["device_traces"][0], BASE + (1 << 40)
    blocks = [
        {**block(base + n * 8 * MIB, 8 * MIB, "active_allocated", 8 * MIB)} for n in range(30)
    ]
    for step, one in enumerate(blocks):
        last = max(
            at for at, each in enumerate(trace) if each.get("user_metadata") == f"step {step}"
        )
        now, where = trace[last]["time_us"], {"frames": frames, "user_metadata": f"step {step}"}
        actions = ("free_requested", "free_completed", "alloc")
        made = [event(action, one["address"], 8 * MIB, now, **where) for action in actions]
        trace[last + 1 : last + 1] = made
        one["frames"] = frames
    trend = leak_trend(
        dumped({**recording, "segments": [*recording["segments"], segment(base, blocks)]})
    )
    assert trend.verdict == "leak"
    assert [str(grown.place) for grown in trend.growth] == ["remember (train.py:50)"]


def among(recording: dict[str, Any], nbytes: int) -> dict[str, Any]:
    """The recording beside so many bytes that were there before it."""
    at = BASE + (1 << 40)
    held = block(at, nbytes, "active_allocated", nbytes)
    return {**recording, "segments": [*recording["segments"], segment(at, [held])]}


def test_walks_that_go_down_little_by_little_are_no_garbage() -> None:
    alarms = 0
    for seed in range(200):
        rng = random.Random(f"gradual {seed}")
        value, change, series = 1e9, 0.0, []
        for _ in range(300):
            change = 0.5 * change + rng.gauss(0.0, 1e6)
            value += change
            series.append(round(value))
        alarms += neutracer.leak_trend(series).resets > 0
    # One of 200 by chance.
    assert alarms <= 2


@pytest.mark.parametrize(("turns", "resets"), [(3, 3), (9, 0)])
def test_what_piles_up_seldom_goes_back(turns: int, resets: int) -> None:
    """Rises to 40 MiB that end with a fall; on the way they go back by 2 MiB so many times."""
    rise = list(range(25))
    for _ in range(turns):
        rise += [rise[-1] - 3, rise[-1] - 2]
    rise += range(rise[-1] + 1, 41)
    trend = leak_trend([LEVEL + at * MIB for at in rise * 4])
    assert (trend.verdict, trend.resets) == ("steady", resets)


def test_hill_is_no_garbage() -> None:
    """It goes down as it goes up: nothing collects it."""
    hill = [*range(20), *range(20, 0, -1)] * 5 + [0]
    assert leak_trend([LEVEL + at * 16 * MIB for at in hill]).resets == 0
    tooth = list(range(40)) * 5 + [0]
    assert leak_trend([LEVEL + at * 16 * MIB for at in tooth]).resets == 5


@pytest.mark.parametrize("pause", [7, 12, 20])
def test_leak_with_pauses_does_not_slow_down(pause: int) -> None:
    held, series = LEVEL, []
    for step in range(260):
        held += 4 * MIB * (step % (20 + pause) < 20)
        series.append(held)
    assert leak_trend(series).verdict == "growing"


@pytest.mark.parametrize("at", [12, 25])
def test_one_change_of_the_level_is_no_warmup(at: int) -> None:
    rng = random.Random("jump")
    steps = [8 * step + 1024 * (step >= at) + rng.gauss(0.0, 20.0) for step in range(60)]
    trend = leak_trend([LEVEL + round(step * MIB) for step in steps])
    assert (trend.verdict, trend.warmup_steps) == ("growing", 0)
    assert [point.step for point in trend.change_points] == [at]


def test_levels_that_switch_and_grow_are_leaks() -> None:
    """Bursts that go both ways, as a walk has them, around a line."""
    rng = random.Random("levels")
    found = 0
    for _ in range(50):
        series = [LEVEL + (at + (20 if rng.random() < 0.4 else 0)) * MIB for at in range(150)]
        found += leak_trend(series).verdict == "growing"
    assert found == 50


@pytest.mark.parametrize(("layers", "has_graph"), [(0, False), (1, False), (2, True)])
def test_graphs_are_named_where_seen(layers: int, has_graph: bool) -> None:
    inside = [{"name": "forward", "filename": "model.py", "line": 7 + n} for n in range(layers)]
    trend = leak_trend(dumped(traced(30, "remember", layers=inside)))
    assert trend.verdict == "leak"
    assert len(trend.growth) == 1 + layers
    advice = " ".join(str(note) for note in trend.findings[0].advice)
    assert ("graph" in advice) == has_graph
    assert ".item()" in advice


def test_steps_of_a_trace_can_be_given() -> None:
    snap = neutracer.load(dumped(traced(30, "remember")))
    starts = list(range(2, len(snap.events), 37))
    assert leak_trend(snap, steps=starts).steps <= 30
    timed = leak_trend(snap, step_us=1250)
    assert timed.verdict == "leak"
    with pytest.raises(ValueError, match="events"):
        leak_trend(snap, steps=[0, len(snap.events)])


# ---- several snapshots -----------------------------------------------------------------


def state(kept: int) -> bytes:
    """A snapshot without a trace: weights, and `kept` blocks of one line."""
    frames = [{"name": "remember", "filename": "train.py", "line": 50}]
    blocks = [block(BASE, 64 * MIB, "active_allocated", 64 * MIB)]
    for number in range(kept):
        at = BASE + (64 + number) * MIB
        blocks.append({**block(at, MIB, "active_allocated", MIB), "frames": frames})
    used = 64 + kept
    blocks.append(block(BASE + used * MIB, (256 - used) * MIB))
    return dumped({"segments": [segment(BASE, blocks)], "device_traces": [[]]})


def test_snapshots_in_a_row_show_growth() -> None:
    shots = [neutracer.load(state(2 * number)) for number in range(12)]
    trend = leak_trend(shots, capacity="1GiB")
    assert trend.verdict == "leak"
    assert trend.unit == "snapshot"
    assert trend.bytes_per_step == pytest.approx(2 * MIB)
    (grown,) = trend.growth
    assert grown.place.location == "train.py:50"
    assert grown.bytes == 22 * MIB
    assert leak_trend([neutracer.load(state(3))] * 10).verdict == "steady"
    with pytest.raises(ValueError, match="each one is a step"):
        leak_trend(shots, steps=[0, 3])


def test_snapshots_of_different_devices_are_refused() -> None:
    other = {**segment(BASE, [block(BASE, MIB, "active_allocated", MIB)]), "device": 1}
    second = neutracer.load(dumped({"segments": [other], "device_traces": [[], []]}))
    with pytest.raises(ValueError, match="different devices"):
        leak_trend([neutracer.load(state(3)), second])


# ---- a monitor -------------------------------------------------------------------------


class Watched:
    """What `leak_trend` needs of a MemoryMonitor."""

    def __init__(self, series: Mapping[str, Any]) -> None:
        self.series = series

    def device_series(self, device: int | None = None) -> Mapping[str, Any]:
        return self.series

    def device_phases(self, device: int | None = None) -> Mapping[str, Any]:
        return {"label": []}

    def get_stats(self) -> dict[str, Any]:
        return {"total_bytes": 8 << 30}


def readings(rate: int, count: int = 1200) -> dict[str, list[int]]:
    """Ten readings a step of a second: a climb and a fall above a floor."""
    shape = [0, 2, 4, 6, 8, 9, 7, 5, 3, 1]
    live = [LEVEL + rate * (n // 10) + 100 * MIB * shape[n % 10] for n in range(count)]
    return {
        "time_us": [1_700_000_000_000_000 + 100_000 * n for n in range(count)],
        "allocated": live,
        "reserved": [LEVEL + 1200 * MIB + rate * (count // 10)] * count,
        "device_used": [LEVEL + 1600 * MIB + rate * (count // 10)] * count,
    }


def test_monitor_is_cut_at_the_times_given() -> None:
    columns = readings(MIB)
    trend = leak_trend(Watched(columns), steps=columns["time_us"][::10], live=False)
    assert trend.verdict == "growing"
    assert trend.bytes_per_step == pytest.approx(MIB, rel=0.01)
    assert trend.capacity == 8 << 30
    assert trend.oom_in_us == pytest.approx((trend.oom_step - 119) * 1e6)
    timed = leak_trend(Watched(columns), step_us=1e6, live=False)
    assert timed.bytes_per_step == pytest.approx(MIB, rel=0.01)


def test_shortest_steps_are_a_monitors_readings() -> None:
    hour = readings(0, 6000)
    seldom = {name: values[::10] for name, values in hour.items()}
    trend = leak_trend(Watched(seldom), step_us=1, live=False)
    assert (trend.steps, trend.unit) == (600, "step")


def test_monitor_without_marks_has_windows() -> None:
    leak = leak_trend(Watched(readings(10 * MIB)), live=False)
    assert (leak.verdict, leak.unit) == ("growing", "window")
    calm = leak_trend(Watched(readings(0)), live=False)
    assert calm.verdict == "steady"
    with pytest.raises(ValueError, match="no readings"):
        leak_trend(Watched({"allocated": []}))


def test_phases_of_a_monitor_are_steps() -> None:
    class Phased(Watched):
        def device_phases(self, device: int | None = None) -> Mapping[str, Any]:
            count = 80
            return {
                "label": [f"{'train' if n % 2 else 'load'} {n // 2}" for n in range(count)],
                "begin_us": [1000 * n for n in range(count)],
                "allocated_low": [LEVEL + MIB * n + (n % 2) * MIB for n in range(count)],
                "allocated_high": [2 * LEVEL] * count,
                "reserved_low": [2 * LEVEL] * count,
            }

        def device_series(self, device: int | None = None) -> Mapping[str, Any]:
            raise AssertionError(device)

    trend = leak_trend(Phased({}), live=False)
    assert trend.unit == "step"
    assert trend.verdict == "growing"
    assert trend.bytes_per_step == pytest.approx(2 * MIB)


def test_non_torch_growth_of_a_monitor() -> None:
    columns = readings(0)
    columns["device_used"] = [used + MIB * n for n, used in enumerate(columns["device_used"])]
    trend = leak_trend(Watched(columns), live=False)
    assert (trend.verdict, trend.series) == ("non_torch_growth", "non_torch")
    assert "attribute_device_memory" in str(trend)
    assert trend.oom_step is not None


# ---- this process ----------------------------------------------------------------------


def test_holders_of_live_blocks_are_named(torch: Any) -> None:
    kept = [torch.zeros(MIB // 4) for _ in range(30)]
    plain = traced(30, "remember")
    at = 0
    for entry in plain["device_traces"][0]:
        if entry["size"] == MIB:
            entry["addr"] = kept[at].data_ptr()
            at += 1
    # The blocks are where the tensors are; each in a segment of its own, in order.
    held = plain["segments"][0]["blocks"]
    mine = sorted((one for one in held if one["size"] == MIB), key=lambda one: one["address"])
    for one, tensor in zip(mine, kept, strict=True):
        one["address"] = tensor.data_ptr()
    rest = [one for one in held if one["size"] != MIB]
    tail = rest[-1]
    rest[-1] = block(rest[0]["address"] + rest[0]["size"], tail["size"])
    plain["segments"] = [segment(BASE, rest), *(segment(one["address"], [one]) for one in mine)]
    trend = leak_trend(dumped(plain), live=True)
    assert trend.verdict == "leak"
    chains = " ".join(chain for grown in trend.growth for chain in grown.holders)
    assert "kept" in chains
    assert "leak_trend_holders" not in chains


def test_alike_tensors_of_a_monitor_are_named(torch: Any) -> None:
    # What is watched where a device is in use is its memory.
    where = "cuda" if torch.cuda.is_initialized() else "cpu"
    hoard = [torch.zeros(3, 1011, device=where) for _ in range(40)]
    trend = leak_trend(Watched(readings(MIB)))
    assert trend.verdict == "growing"
    assert len(hoard) == 40
    groups = [grown for grown in trend.growth if "(3, 1011)" in grown.category]
    assert len(groups) == 1
    assert groups[0].count == 40
    assert any("hoard" in chain for chain in groups[0].holders)
    assert "graph" not in str(trend)
    weight = torch.ones((), device=where, requires_grad=True)
    hoard = [tensor * weight for tensor in hoard]
    assert "a kept tensor keeps its graph" in str(leak_trend(Watched(readings(MIB))))


@pytest.mark.parametrize("step_us", [0, -5, float("nan"), float("inf"), 1e30, "a"])
def test_steps_of_no_duration_are_refused(step_us: Any) -> None:
    for source in ([1, 2, 3, 4], snapshot("leak_list")):
        with pytest.raises(ValueError, match="step_us is"):
            leak_trend(source, step_us=step_us)


def test_steps_that_are_no_numbers_are_refused() -> None:
    with pytest.raises(ValueError, match="whole numbers"):
        leak_trend([1, 2, 3, 4], steps="ab")  # type: ignore[arg-type]
