# SPDX-License-Identifier: Apache-2.0
"""Recording and out-of-memory reports on a real device, and what they leave behind."""

import contextlib
import gc
import json
import os
import subprocess
import sys
import weakref
from pathlib import Path

import pytest

import neutracer

torch = pytest.importorskip("torch")

ROOT = Path(__file__).parents[2]
MIB = 1 << 20

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def enabled():
    return torch._C._cuda_isHistoryEnabled()


@pytest.fixture(autouse=True)
def clean_device():
    torch.cuda.init()
    gc.collect()
    torch.cuda.empty_cache()
    yield
    assert not enabled()
    torch.cuda.set_per_process_memory_fraction(1.0)


def in_new_process(script, *arguments):
    folders = (ROOT, ROOT / "tests", ROOT / "tests" / "helpers")
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, folders))}
    command = [sys.executable, "-c", script, *map(str, arguments)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=150)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def churn(count, size=MIB):
    for _ in range(count):
        torch.empty(size, dtype=torch.uint8, device="cuda")


def write_out(name, figures):
    if os.environ.get("OUT"):
        Path(os.environ["OUT"], name).write_text(json.dumps(figures, indent=2))


def test_recorded_figures_equal_memory_stats():
    kept = torch.empty(3 * MIB, dtype=torch.uint8, device="cuda")
    with neutracer.record() as recording:
        churn(50)
        model = torch.nn.Linear(512, 512).cuda()
        model(torch.randn(8, 512, device="cuda")).sum().backward()
        theirs = torch.cuda.memory_stats()
        snap = recording.snapshot()
    ours = snap.memory_stats()
    assert ours == {key: theirs[key] for key in ours}
    assert len(recording.snapshot().events) == len(snap.events) + 1
    assert any("churn" in frame.name for frame in snap.events[2].stack)
    assert kept is not None


def test_recording_before_cuda_begins_with_it():
    said = in_new_process("""
import torch, neutracer
recording = neutracer.record().start()
assert recording.waiting and not torch.cuda.is_initialized()
x = torch.ones(1 << 20, device="cuda")
assert not recording.waiting
recording.stop()
snap = recording.snapshot()
assert snap.history_complete(), snap
assert not torch._C._cuda_isHistoryEnabled()
print(len(snap.events))
""")
    assert int(said) >= 2


def test_history_of_the_program_goes_on():
    torch.cuda.memory._record_memory_history(max_entries=5000, stacks="python")
    try:
        churn(3)
        with neutracer.record(max_entries=10) as recording:
            churn(3)
        assert enabled()
        assert len(recording.snapshot().events) > 15
        assert len(neutracer.snapshot().events) > 15
    finally:
        torch.cuda.memory._record_memory_history(None)


def test_wrapped_ring_is_warned_of():
    recording = neutracer.record(max_entries=100).start()
    churn(200)
    with pytest.warns(neutracer.HistoryWarning, match="wrapped"):
        recording.stop()
    snap = recording.snapshot()
    assert len(snap.events) == 100
    assert snap.history_complete() is False


def test_inner_recording_keeps_the_ring():
    with neutracer.record(max_entries=5000, context=None) as outer:
        churn(5)
        with neutracer.record(stacks="python") as inner:
            churn(5)
        churn(5)
        snap = outer.snapshot()
    times = list(snap.events["time_us"])
    assert times == sorted(times)
    with_stack = [bool(row.stack) for row in snap.events if row.action == "alloc"]
    assert with_stack.count(True) == 5
    assert len(inner.snapshot().events) < len(snap.events)


def test_checkpointing_with_dropout_is_not_disturbed():
    model = torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.Dropout(0.1)).cuda()
    with neutracer.record() as recording:
        for _ in range(3):
            x = torch.randn(64, 512, device="cuda", requires_grad=True)
            torch.utils.checkpoint.checkpoint(model, x, use_reentrant=False).sum().backward()
        snap = recording.snapshot()
    assert snap.timeline().facts["frees_known"] is False


@pytest.mark.parametrize(("context", "known"), [("alloc", False), ("all", True)])
def test_frees_have_stacks_of_their_own_only_with_all(context, known):
    def make():
        return torch.empty(MIB, dtype=torch.uint8, device="cuda")

    with neutracer.record(context=context) as recording:
        for _ in range(3):
            kept = make()
            del kept
        torch.cuda.empty_cache()
        snap = recording.snapshot()
    assert snap.timeline().facts["frees_known"] is known
    assert snap.timeline().facts["retries"] == 0


def test_saved_recording_has_its_sidecar(tmp_path):
    with neutracer.record(path=tmp_path / "run.pickle.gz") as recording:
        recording.step = 3
        churn(5)
    facts = json.loads((tmp_path / "run.pickle.gz.json").read_text())
    assert facts["step"] == 3
    assert facts["torch"] == torch.__version__
    assert facts["devices"]["0"]["total_bytes"] == torch.cuda.get_device_properties(0).total_memory
    assert len(neutracer.load(tmp_path / "run.pickle.gz").events) >= 10


def run_out(nbytes):
    return torch.empty(nbytes, dtype=torch.uint8, device="cuda")


def capped(gigabytes):
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(gigabytes * (1 << 30) / total)


def test_error_carries_the_verdict(tmp_path):
    capped(2)
    before = torch.cuda.memory_allocated()
    with neutracer.oom_report(tmp_path) as watch:
        kept = [run_out(200 * MIB) for _ in range(8)]
        with pytest.raises(torch.cuda.OutOfMemoryError) as caught:
            run_out(1 << 30)
    (report,) = watch.reports
    assert report.left_out == ()
    assert report.verdict
    assert report.text in caught.value.__notes__[0]
    text = Path(report.text).read_text()
    assert "run_out" in text
    snap = neutracer.load(report.snapshot)
    assert snap.events[-1].action in ("oom", "snapshot")
    assert snap.memory_stats()["allocated_bytes.all.current"] == before + 8 * 200 * MIB
    assert (
        neutracer.explain(report.snapshot).verdicts[0].kind
        == report.explained["verdicts"][0]["kind"]
    )
    stats = report.process["devices"]["0"]["memory_stats"]
    assert stats["allocated_bytes.all.current"] == before + 8 * 200 * MIB
    assert stats["num_ooms"] >= 1
    assert kept
    assert "__init__" not in vars(torch.OutOfMemoryError)


def test_backward_gets_its_note_too(tmp_path):
    capped(3)

    class Grows(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 1

        @staticmethod
        def backward(ctx, gradient):
            return gradient.repeat(1 << 20)[: gradient.numel()]

    x = torch.ones(1 << 18, device="cuda", requires_grad=True)
    with neutracer.oom_report(tmp_path) as watch:
        with pytest.raises(torch.cuda.OutOfMemoryError) as caught:
            Grows.apply(x).sum().backward()
        # The gradient of a slice is as large as what was sliced: no second one fits.
        large = torch.zeros(512 * MIB, device="cuda", requires_grad=True)
        loss = large[:1].sum()
        with pytest.raises(torch.cuda.OutOfMemoryError) as native:
            loss.backward()
    assert "backward" in [name for _, _, name in watch.reports[0].oom.stack]
    assert watch.reports[0].text in caught.value.__notes__[0]
    assert len(watch.reports) == 2
    # The engine's thread has no Python: it is the stack of who waits for it.
    assert watch.reports[1].oom.stack[0][2] == "_engine_run_backward"
    assert watch.reports[1].text in native.value.__notes__[0]


def test_places_are_told_once(tmp_path):
    capped(1)
    size = 64 << 30
    with neutracer.oom_report(tmp_path, max_entries=0) as watch:
        while size > 1 << 30:
            try:
                run_out(size)
            except torch.cuda.OutOfMemoryError:
                size //= 2
    assert watch.seen >= 5
    assert len(watch.reports) == 1
    assert len(os.listdir(tmp_path)) == 3


def test_nothing_is_kept_alive_by_it(tmp_path):
    capped(1)
    before = torch.cuda.memory_allocated()

    def step():
        x = run_out(100 * MIB)
        alive = weakref.ref(x)
        with contextlib.suppress(torch.cuda.OutOfMemoryError):
            run_out(2 << 30)
        del x
        return alive() is None

    with neutracer.oom_report(tmp_path) as watch:
        assert step()
    assert watch.reports[0].oom.tensors == ()
    assert torch.cuda.memory_allocated() == before


TIMED = """
import json, sys, time
import torch, neutracer
torch.cuda.init()
total = torch.cuda.get_device_properties(0).total_memory
torch.cuda.set_per_process_memory_fraction((4 << 30) / total)
layers = torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(12)]).cuda()
# Without an optimizer of torch's: they import what the report is not to import.
def train():
    for _ in range(1500):
        layers(torch.randn(32, 256, device="cuda")).sum().backward()
        for parameter in layers.parameters():
            parameter.grad = None
def run_out():
    return torch.empty(8 << 30, dtype=torch.uint8, device="cuda")
def first():
    run_out()
def second():
    run_out()
def third():
    run_out()
seconds, asked = [], []
with neutracer.oom_report(sys.argv[1], max_entries=100_000) as watch:
    train()
    for place in (first, second, third):
        begin = time.perf_counter()
        try:
            place()
        except torch.cuda.OutOfMemoryError as error:
            seconds.append(time.perf_counter() - begin)
            asked.append(error.__notes__[0])
    events = len(neutracer.load(watch.reports[0].snapshot).events)
    left_out = [report.left_out for report in watch.reports]
    spent = [report.spent for report in watch.reports]
print(json.dumps({
    "seconds": seconds, "spent": spent, "events": events, "left_out": left_out, "notes": asked,
    "inductor": "torch._inductor" in sys.modules, "dynamo": "torch._dynamo" in sys.modules,
}))
"""


def test_report_of_a_full_ring_is_quick(tmp_path):
    figures = json.loads(in_new_process(TIMED, tmp_path).splitlines()[-1])
    write_out("oom_seconds.json", figures)
    assert 99_000 <= figures["events"] <= 100_000
    assert figures["left_out"] == [[], [], []]
    assert not figures["inductor"]
    # The report replays changes and asks who holds what piled up.
    assert max(figures["seconds"]) < 0.5, figures["seconds"]


PROGRAM = """
import os, sys, torch
x = torch.ones(1 << 20, device="cuda")
y = x * 2
del y
if sys.argv[1:] == ["out"]:
    torch.cuda.set_per_process_memory_fraction(0.01)
    kept = [torch.empty(64 << 20, dtype=torch.uint8, device="cuda") for _ in range(10_000)]
sys.exit(7)
"""


@pytest.mark.parametrize("arguments", [[], ["out"]])
def test_unchanged_program_is_recorded(tmp_path, arguments):
    (tmp_path / "program.py").write_text(PROGRAM)
    out = tmp_path / "out"
    command = [sys.executable, "-m", "neutracer", "run", "-o", str(out)]
    done = subprocess.run(
        [*command, str(tmp_path / "program.py"), *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=150,
    )
    assert done.returncode == (1 if arguments else 7), done.stderr[-2000:]
    (snapshot,) = out.glob("run-*-exit.pickle")
    snap = neutracer.load(snapshot)
    assert snap.history_complete()
    assert snap.timeline().peak("allocated").bytes >= 8 * MIB
    told = json.loads(Path(f"{snapshot}.json").read_text())["recording"]
    assert (told["recorder"], told["max_entries"]) == ("hooks", 800_000)
    assert snap.timeline().facts["frees_known"]
    if arguments:
        assert len(list(out.glob("oom-*.txt"))) == 1
        assert "neutracer:" in done.stderr
        write_out("run_oom.json", {"stderr": done.stderr})
