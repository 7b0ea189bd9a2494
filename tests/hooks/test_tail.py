# SPDX-License-Identifier: Apache-2.0
"""`neutracer.live()`: rings, the made-up shim of the self-test module, and torch's own CPU."""

from __future__ import annotations

import importlib
import json
import os
import shutil
import subprocess
import sys
import textwrap
import time
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from bundle import snapshot
from forked import Imported
from places import ROOT
from segment_sums import blocks_fill_segments
from without_hooks import without_hooks

import neutracer
from neutracer._native import core
from neutracer.hooks import live as tail
from neutracer.hooks import shim as hooks_shim
from neutracer.trace.snapshot import Snapshot

selftest = pytest.importorskip("neutracer._selftest")

ACTIONS = [
    "alloc",
    "free_requested",
    "free_completed",
    "segment_alloc",
    "segment_free",
    "segment_map",
    "segment_unmap",
    "snapshot",
    "oom",
]
STATES = ("inactive", "active_allocated", "active_pending_free")


@pytest.fixture
def shim() -> Iterator[Any]:
    """The made-up shim, connected; rings are opened by the test."""
    core.live_set_source(selftest.live_source(core.live_api))
    selftest.live_tell([], [])
    yield selftest
    selftest.live_churn(False)
    for device in range(4):
        selftest.live_open(device, 0, False, False)
    if hooks_shim.loaded() is not None:
        core.live_set_source(hooks_shim.loaded().live_source)


def test_spans_are_the_shims(shim: Any) -> None:
    assert core.live_span(0, True) == (1, 1 << 40, 3, 4, 5, 6, 7, 1)
    assert core.live_span(0, False) == (1, 1 << 40, 3, 4, 5, 6, 7, 0)
    for device in (1, 2, -1, 1 << 40):
        assert core.live_span(device, True) is None
    with pytest.raises(OverflowError):
        core.live_span(1 << 70, True)
    with pytest.raises(TypeError):
        core.live_span("0", True)  # type: ignore[arg-type]


def tell_layout(snap: Snapshot) -> None:
    segments = [
        (
            row.device,
            row.address,
            row.total_size,
            row.allocated_size,
            row.active_size,
            row.requested_size,
            row.stream,
            row.segment_type == "large",
            row.is_expandable,
            row.block_count,
            *row.segment_pool_id,
        )
        for row in snap.segments
    ]
    blocks = [
        (row.address, row.size, row.requested_size, STATES.index(row.state)) for row in snap.blocks
    ]
    selftest.live_tell(segments, blocks)


def push_events(snap: Snapshot, *, late: bool = True, events: int = 1 << 17) -> None:
    """The trace of a snapshot into rings, and its layout told."""
    for device in snap.devices:
        selftest.live_open(device, events, True, late)
    for row in snap.events:
        if row.action in ACTIONS:
            addr = row.device_free if row.action == "oom" else row.addr
            number = ACTIONS.index(row.action)
            selftest.live_push(row.device, number, addr, row.size, row.stream, row.time_us)
    tell_layout(snap)


def columns_of(table: Any, names: str) -> list[list[Any]]:
    return [list(table[name]) for name in names.split()]


@pytest.mark.parametrize("name", ["frag_default", "multi_stream", "cuda_graph_pool"])
def test_live_snapshot_equals_the_file(shim: Any, name: str) -> None:
    theirs = snapshot(name)
    push_events(theirs, late=False)
    ours = tail.take("cuda", 1 << 17)
    assert ours.devices == theirs.devices
    for table, names in {
        "events": "device action addr size stream time_us device_free",
        "segments": "device address total_size allocated_size active_size requested_size "
        "stream segment_type is_expandable block_count",
        "blocks": "segment address size requested_size state",
    }.items():
        assert columns_of(getattr(ours, table), names) == columns_of(getattr(theirs, table), names)
    assert ours.memory_stats() == theirs.memory_stats()
    for metric in ("allocated", "active", "requested", "reserved"):
        assert list(getattr(ours.timeline(), metric)) == list(getattr(theirs.timeline(), metric))
    assert ours.history_complete() == theirs.history_complete()


def test_wrapped_ring_says_incomplete(shim: Any, tmp_path: Path) -> None:
    theirs = snapshot("frag_default")
    assert theirs.history_complete()
    push_events(theirs, late=False)
    ours = tail.take("cuda", 500)
    assert ours.trace_length() == 500
    assert ours.history_complete() is False
    assert ours.settings["trace_alloc_overflowed"] == {"0": True}
    for metric in ("requested", "reserved"):
        series = list(getattr(theirs.timeline(), metric))[-500:]
        assert list(getattr(ours.timeline(), metric)) == series
    ours.save(tmp_path / "tail.pickle")
    again = neutracer.load(tmp_path / "tail.pickle")
    assert again.history_complete() is False
    assert again.memory_stats() == theirs.memory_stats()


def test_small_ring_keeps_the_last_events(shim: Any) -> None:
    theirs = snapshot("frag_default")
    push_events(theirs, late=False, events=500)
    native, facts = core.live_snapshot(0, 1 << 17)
    ours = Snapshot(native)
    assert facts[0]["pushed"] == len(theirs.events)
    assert facts[0]["taken"] == len(ours.events) == 1023
    assert list(ours.events["addr"]) == list(theirs.events["addr"])[-1023:]
    assert ours.history_complete() is False


def test_late_recording_says_incomplete(shim: Any) -> None:
    for late in (False, True):
        selftest.live_open(0, 100, False, late)
        base, size = 1 << 40, 2 << 20
        selftest.live_push(0, 3, base, size, 0, 1)
        selftest.live_push(0, 0, base, 512, 0, 2)
        # Nothing is there before the first event, and only the ring knows what came before.
        selftest.live_tell(
            [(0, base, size, 512, 512, 512, 0, False, False, 2, 0, 0)],
            [(base, 512, 512, 1), (base + 512, size - 512, 0, 0)],
        )
        snap = tail.take("cuda", 100)
        assert snap.history_complete() is not late
        assert snap.timeline().facts["complete"]


def test_layout_without_events_knows_nothing(shim: Any) -> None:
    selftest.live_open(0, 100, False, True)
    snap = tail.take("cuda", 100)
    assert len(snap.events) == 0
    assert len(snap.segments) == 0
    assert snap.history_complete() is False


def here(depth: int) -> list[tuple[types.CodeType, int]]:
    """Code objects and instructions of the callers, innermost first."""
    stack = []
    frame = sys._getframe(1)
    while len(stack) < depth and frame is not None:
        stack.append((frame.f_code, frame.f_lasti))
        frame = frame.f_back  # type: ignore[assignment]
    return stack


def test_frames_name_place_and_line(shim: Any) -> None:
    source = "def грузить(here):\n    x = 1\n    return [\n        here(3)\n    ][0]\n"
    space: dict[str, Any] = {}
    exec(compile(source, "/tmp/学習.py", "exec"), space)

    def caller() -> Any:
        return space["грузить"](here)

    stack = caller()
    selftest.live_open(0, 100, True, False)
    base, size = 1 << 40, 2 << 20
    selftest.live_push(0, 3, base, size, 0, 1, stack)
    selftest.live_push(0, 0, base, 512, 0, 2, stack, "attention", (3, 4))
    selftest.live_push(0, 0, base + 512, 512, 0, 3)
    selftest.live_tell(
        [(0, base, size, 1024, 1024, 1024, 7, False, False, 3, 0, 0)],
        [(base, 512, 512, 1), (base + 512, 512, 512, 1), (base + 1024, size - 1024, 0, 0)],
    )
    snap = tail.take("cuda", 100)
    events = list(snap.events)
    told = [(frame.filename, frame.line, frame.name) for frame in events[1].stack]
    line = caller.__code__.co_firstlineno + 1
    assert told[:2] == [("/tmp/学習.py", 4, "грузить"), (__file__, line, "caller")]
    assert told[2][2] == "test_frames_name_place_and_line"
    assert events[1].user_metadata == "attention"
    assert events[1].pool_id == (3, 4)
    assert events[2].user_metadata == ""
    assert not events[2].stack
    blocks = list(snap.blocks)
    assert blocks[0].stack == events[1].stack == snap.segments[0].stack
    assert not blocks[1].stack
    assert not blocks[2].stack
    holder = snap.timeline().holders(by="function")[0]
    assert holder.bytes == 512


def code_objects(module: str) -> Iterator[types.CodeType]:
    source = importlib.util.find_spec(module)
    assert source is not None
    assert source.origin is not None
    text = Path(source.origin).read_text(encoding="utf-8")
    todo = [compile(text, source.origin, "exec")]
    while todo:
        code = todo.pop()
        yield code
        todo += [const for const in code.co_consts if isinstance(const, types.CodeType)]


@pytest.mark.parametrize("module", ["typing", "argparse", "dataclasses", "asyncio.tasks"])
def test_lines_are_those_of_cpython(module: str) -> None:
    checked = 0
    for code in code_objects(module):
        expected = {}
        for start, end, line in code.co_lines():
            expected.update(dict.fromkeys(range(start, end, 2), -1 if line is None else line))
        told = {lasti: selftest.live_line(code, lasti) for lasti in expected}
        assert told == expected
        checked += len(told)
    assert checked > 1000


def test_join_is_exact_while_another_thread_allocates(shim: Any) -> None:
    selftest.live_open(0, 50_000, False, False)
    selftest.live_churn(True)
    taken = rounds = 0
    end = time.monotonic() + 60

    def is_enough() -> bool:
        return rounds >= 30 and taken > 20_000 and selftest.live_churn(True) > 50_000

    # More often where one of the threads is kept waiting, and the ring is overwritten or rests.
    while not is_enough() and time.monotonic() < end:
        rounds += 1
        snap = tail.take("cuda", 20_000)
        timeline = snap.timeline()
        assert timeline.facts["unmatched"] == 0
        stats = snap.memory_stats()
        for metric in ("allocated", "active", "requested"):
            series = getattr(timeline, metric)
            if len(series):
                assert series[-1] == stats[f"{metric}_bytes.all.current"]
        assert blocks_fill_segments(snap)
        taken += len(snap.events)
    assert taken > 20_000
    assert selftest.live_churn(False) > 50_000


def test_reports_work_on_a_tail(shim: Any, tmp_path: Path) -> None:
    theirs = snapshot("frag_default")
    push_events(theirs, late=False)
    ours = tail.take("cuda", 1 << 17)
    mine, other = neutracer.fragmentation_report(ours), neutracer.fragmentation_report(theirs)
    assert mine["max_fragmentation"] == other["max_fragmentation"]
    assert mine.largest_request == other.largest_request
    plan, truth = neutracer.what_if(ours, ""), neutracer.what_if(theirs, "")
    assert plan.fidelity == truth.fidelity
    neutracer.view(ours, tmp_path / "page.html")
    assert (tmp_path / "page.html").stat().st_size > 10_000


def test_several_devices_have_own_traces(shim: Any) -> None:
    base, size = 1 << 40, 2 << 20
    for device in (0, 2):
        selftest.live_open(device, 100, False, device == 2)
        for k in range(device + 1):
            selftest.live_push(device, 8, 1000 + k, 512, 0, k)
    selftest.live_tell([(2, base, size, 0, 0, 0, 0, True, True, 1, 0, 0)], [(base, size, 0, 0)])
    snap = tail.take("cuda", 100)
    assert snap.devices == (0, 2)
    assert [snap.trace_length(device) for device in (0, 1, 2)] == [1, 0, 3]
    assert snap.history_overflowed(0) is False
    assert snap.history_complete(2) is False
    assert list(snap.events["device_free"]) == [1000, 1000, 1001, 1002]


def test_errors_of_the_source_are_told(shim: Any) -> None:
    with pytest.raises(neutracer.UnavailableError, match="code 3"):
        tail.take("cpu", 100)
    with pytest.raises(ValueError, match="device type"):
        core.live_snapshot(5, 100)
    with pytest.raises(ValueError, match="incorrect name"):
        core.live_set_source(core.live_api)


def test_without_torch_live_says_so() -> None:
    script = (
        "import neutracer\ntry: neutracer.live()\nexcept neutracer.UnavailableError as e: print(e)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=ROOT / "tests",
        capture_output=True,
        text=True,
        check=True,
    )
    assert "import torch first" in done.stdout


def test_later_calls_keep_what_was_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(tail.hooks, "attach", lambda events, frames: asked.append((events, frames)))
    monkeypatch.setattr(tail.hooks, "load", lambda: types.SimpleNamespace(backend="cpu"))
    monkeypatch.setattr(tail.hooks, "silence", lambda: None)
    monkeypatch.setattr(tail, "take", lambda backend, events: asked[-1])
    live = tail.LiveTail()
    assert live() == (100_000, 8)
    assert live(500, 2) == (500, 2)
    assert live() == (500, 2)
    assert live(frames=0) == (500, 0)
    live.stop()
    assert live() == (100_000, 8)


# ---- torch's own allocator on the CPU ---------------------------------------------------


CPU_PROGRAM = textwrap.dedent("""
    import gc, json, sys, torch, neutracer
    from segment_sums import blocks_fill_segments
    model = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(4)])
    optimizer = torch.optim.AdamW(model.parameters())
    first = neutracer.live(max_events=20_000)

    def refusal(ask):
        try:
            return str(ask(snap))
        except ValueError as error:
            return f"refused: {error}"

    def step():
        out = model(torch.randn(32, 64))
        out.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    for _ in range(10):
        step()
    with neutracer.phase("keep"):
        kept = [torch.empty(1000 * (k + 1), dtype=torch.uint8) for k in range(50)]
    keep = neutracer.phases()["keep"]
    gc.collect()
    snap = neutracer.live(max_events=20_000)
    blocks = {row.address: row for row in snap.blocks}
    mine = [blocks.get(tensor.data_ptr()) for tensor in kept]
    stats = snap.memory_stats()
    holder = neutracer.load(snap.to_bytes()).timeline().holders(event=-1, by="line", limit=50)
    print(json.dumps({
        "first": len(first.events),
        "events": len(snap.events),
        "found": sum(row is not None and row.requested_size == 1000 * (k + 1)
                     for k, row in enumerate(mine)),
        "stacks": sorted({row.stack[0].name for row in mine if row and row.stack}),
        "files": sorted({row.stack[0].filename for row in mine if row and row.stack}),
        "unmatched": snap.timeline().facts["unmatched"],
        "last": snap.timeline().allocated[-1],
        "allocated": stats["allocated_bytes.all.current"],
        "reserved": stats["reserved_bytes.all.current"],
        "complete": snap.history_complete(),
        "fills": blocks_fill_segments(snap),
        "refused": neutracer.hooks.shim.load().frames_refused,
        "names": sorted({f.name for row in snap.events for f in row.stack}),
        "what_if": refusal(neutracer.what_if),
        "keep": [keep.survivors[0].count, keep.survivors[0].owner],
    }))
    neutracer.live.stop()
    torch.empty(1000)
    after = neutracer.hooks.live.take("cpu", 20_000)
    assert [e.action for e in after.events][len(snap.events):] in ([], ["snapshot"])
""")


def test_cpu_allocations_of_torch_are_followed(with_torch: Imported) -> None:
    done = with_torch.run(CPU_PROGRAM)
    if "UnavailableError" in done.stderr:
        without_hooks(done.stderr.strip().splitlines()[-1])
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["first"] == 0
    assert told["events"] > 1000
    assert told["found"] == 50
    assert told["fills"]
    assert told["unmatched"] == 0
    assert told["last"] == told["allocated"] == told["reserved"]
    assert told["complete"] is False
    assert told["what_if"].startswith("refused: this is CPU memory")
    count, owner = told["keep"]
    assert count == 50
    assert "kept" in owner
    if not told["refused"]:
        assert {"step", "forward"} <= set(told["names"])
        assert told["files"] == ["<program>"]


HOLDERS_PROGRAM = textwrap.dedent("""
    import torch, neutracer
    neutracer.live()
    history = {"z": []}
    def step():
        history["z"].append(torch.ones(50_000))
        (torch.ones(1000) * 2).sum()
    for _ in range(30):
        step()
    print(neutracer.report(neutracer.live(holders=True)))
    neutracer.live.stop()
""")


def test_live_says_who_holds_on_request(with_torch: Imported) -> None:
    done = with_torch.run(HOLDERS_PROGRAM)
    if "UnavailableError" in done.stderr:
        without_hooks(done.stderr.strip().splitlines()[-1])
    assert done.returncode == 0, done.stderr
    said = " ".join(done.stdout.split())
    assert 'in 29 blocks, held by history["z"]; made by' in said
    assert 'Who keeps it, and the line that made it 5.7 MiB 30 blocks history["z"]' in said


MODULES_PROGRAM = textwrap.dedent("""
    import json, torch, neutracer
    model = torch.nn.Sequential(
        torch.nn.Linear(256, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 256)
    )
    neutracer.live(50_000, 4, modules=model)
    model(torch.randn(64, 256)).sum().backward()
    snap = neutracer.live()
    held = snap.timeline().holders(len(snap.timeline()) - 1, by="module", limit=None)
    neutracer.live.stop()
    left = len(torch.nn.modules.module._global_forward_hooks)
    held = {one.key: one.requested_bytes for one in held}
    print(json.dumps({"held": held, "hooks": left}))
""")


def test_modules_mark_what_they_allocate(with_torch: Imported) -> None:
    done = with_torch.run(MODULES_PROGRAM)
    if "UnavailableError" in done.stderr:
        without_hooks(done.stderr.strip().splitlines()[-1])
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    # The gradients of weight and bias, which the backward pass makes.
    assert told["held"]["0"] == told["held"]["2"] - (256 - 1024) * 4 == (256 + 1) * 1024 * 4
    assert told["hooks"] == 0


FORKING_PROGRAM = textwrap.dedent("""
    import json, os, signal, threading, torch, neutracer
    from neutracer.hooks import shim as hooks
    neutracer.live(10_000)
    over = threading.Event()

    def allocate():
        hooks.watch_thread()
        while not over.is_set():
            for _ in range(100):
                torch.empty(1000)

    threads = [threading.Thread(target=allocate) for _ in range(2)]
    for thread in threads:
        thread.start()
    ended = []
    for _ in range(25):
        child = os.fork()
        if child == 0:
            signal.alarm(60)
            for _ in range(20):
                torch.empty(1000)
            os._exit(3 if hooks.state().active else 0)
        ended.append(os.waitpid(child, 0)[1])
        if ended[-1]:
            break
    over.set()
    for thread in threads:
        thread.join()
    print(json.dumps({"ended": ended, "active": hooks.state().active}))
""")


def test_child_of_a_fork_waits_for_no_lock(with_torch: Imported) -> None:
    """Threads that allocate are not there in the child; what they had locked would stay so."""
    done = with_torch.run(FORKING_PROGRAM)
    if "UnavailableError" in done.stderr:
        without_hooks(done.stderr.strip().splitlines()[-1])
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told == {"ended": [0] * 25, "active": True}


# ---- races ------------------------------------------------------------------------------

MAIN = """
#include <stdio.h>
#include "nt_test.h"
extern const nt_test_case nt_ring_tests[], nt_ring_origins_tests[];
static int run(const nt_test_case *c)
{
    int failed = 0;
    for (; c->name != NULL; c++) {
        nt_test t = {0};
        c->run(&t);
        failed |= t.failures != 0;
        printf("%s%s", t.failures != 0 ? c->name : "", t.message);
    }
    return failed;
}
int main(void)
{
    return run(nt_ring_tests) | run(nt_ring_origins_tests);
}
"""


@pytest.mark.skipif(not shutil.which("gcc"), reason="needs gcc")
def test_thread_sanitizer_finds_no_race(tmp_path: Path) -> None:
    (tmp_path / "main.c").write_text(MAIN)
    sources = [
        *ROOT.glob("tests/c/test_nt_ring*.c"),
        ROOT / "tests/c/nt_test.c",
        *ROOT.glob("csrc/core/base/nt_ring*.c"),
        ROOT / "csrc/core/base/nt_base.c",
    ]
    command = ["gcc", "-std=c11", "-O1", "-g", "-fsanitize=thread", "-pthread"]
    command += [f"-I{ROOT}/csrc/core", f"-I{ROOT}/tests/c", "main.c", *map(str, sources)]
    built = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    if built.returncode != 0 and "tsan" in built.stderr:
        pytest.skip("gcc has no ThreadSanitizer here")
    assert built.returncode == 0, built.stderr
    # Another sanitizer's runtime does not get along with this one.
    alone = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    done = subprocess.run(["./a.out"], cwd=tmp_path, capture_output=True, text=True, env=alone)
    if "unexpected memory mapping" in done.stderr:
        pytest.skip("ThreadSanitizer does not run with this kernel's addresses")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
