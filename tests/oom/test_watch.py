# SPDX-License-Identifier: Apache-2.0
"""watch_oom(), oom_report(): three files before the error arrives, and never a second error."""

from __future__ import annotations

import gc
import json
import os
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from fake_cuda import install

import neutracer
from neutracer.oom import watch as oom_watch
from neutracer.oom.facts import OomFacts, facts_of
from neutracer.recording import recorder as history
from neutracer.trace.beside import beside_file

MIB = 1 << 20
HAS_NOTES = sys.version_info >= (3, 11)


@pytest.fixture
def fake(monkeypatch):
    return install(monkeypatch)


@pytest.fixture(autouse=True)
def everybody_off():
    yield
    assert history.HISTORY.in_force() is None
    assert gc.isenabled()


def in_child(action):
    """The exit code of a child of a fork that does something, 99 where that raises."""
    child = os.fork()
    if child == 0:
        code = 99
        try:
            code = action()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def here(fake, asked=48 * MIB):
    with pytest.raises(fake.module.OutOfMemoryError) as caught:
        fake.run_out(asked)
    return caught.value


def there(fake, asked=48 * MIB):
    with pytest.raises(fake.module.OutOfMemoryError) as caught:
        fake.run_out(asked)
    return caught.value


def notes_of(error):
    return getattr(error, "__notes__", [])


# Seconds for a report that is to be whole, however busy the machine is.
PLENTY = 600.0


@pytest.fixture
def clock(monkeypatch):
    """A function that moves the time of reports on, in seconds."""
    ahead = [0.0]
    now = SimpleNamespace(monotonic=lambda: time.monotonic() + ahead[0])
    monkeypatch.setattr(oom_watch, "time", now)

    def move(seconds):
        ahead[0] += seconds

    return move


def test_report_is_written_before_the_error(fake, tmp_path):
    seen = []
    with neutracer.oom_report(directory=tmp_path / "deep" / "er", seconds=PLENTY) as watch:
        fake.allocate(5)
        fake.observers.append(lambda *told: seen.extend(os.listdir(tmp_path / "deep" / "er")))
        error = here(fake)
    assert sorted(os.path.splitext(name)[1] for name in seen) == [".json", ".pickle", ".txt"]
    (report,) = watch.reports
    assert report.left_out == ()
    assert report.verdict.startswith("fragmentation")
    assert {"the snapshot", "the verdict", "the files"} < set(report.spent)
    assert sum(report.spent.values()) <= report.seconds
    text = Path(report.text).read_text(encoding="utf-8")
    assert "Out of memory on cuda:0" in text
    assert "here" in text
    assert __file__.rpartition("/")[2] in text
    assert len(neutracer.load(report.snapshot).events) == 16
    if HAS_NOTES:
        (note,) = notes_of(error)
        assert note.startswith("neutracer: fragmentation")
        assert report.text in note
    assert not fake.enabled


def test_json_is_read_back_by_explain(fake, tmp_path):
    with neutracer.oom_report(tmp_path, seconds=PLENTY) as watch:
        here(fake)
    (report,) = watch.reports
    plain = json.loads(Path(report.json).read_text(encoding="utf-8"))
    assert plain["schema"] == "neutracer.oom_report/1"
    assert plain["process"]["devices"]["0"]["total_bytes"] == 64 * MIB
    facts = facts_of(beside_file(str(report.snapshot)))
    assert facts == replace(report.oom, raised=None)
    assert facts.segment_bytes == 48 * MIB
    assert facts.device_free_bytes == 32 * MIB
    assert facts.grad_enabled is True
    assert "here" in [name for _, _, name in facts.stack]
    assert neutracer.explain(report.snapshot).verdicts[0].kind == "fragmentation"


def test_each_place_is_told_once(fake, tmp_path):
    with neutracer.watch_oom(tmp_path) as watch:
        errors = [place(fake) for place in (here, here, here, there)]
    assert len(watch.reports) == 2
    assert watch.seen == 4
    assert len(os.listdir(tmp_path)) == 6
    if HAS_NOTES:
        assert "again at this place (3 times)" in notes_of(errors[2])[0]
        assert watch.reports[0].text in notes_of(errors[2])[0]


@pytest.mark.skipif(not HAS_NOTES, reason="exceptions are followed by their notes")
def test_errors_that_a_library_catches_are_told_from_the_others(fake, tmp_path):
    with neutracer.watch_oom(tmp_path) as watch:
        fake.run_short()
        assert [one.oom.raised for one in watch.reports] == [False]
        here(fake)
        fake.run_short()
    assert [one.oom.raised for one in watch.reports] == [False, True, False]
    assert [OomFacts.from_dict(one.oom.to_dict()).raised for one in watch.reports][1:] == [
        True,
        False,
    ]


def test_too_many_in_a_row_are_left_out(fake, tmp_path, monkeypatch):
    clock = [1000.0]
    monkeypatch.setattr(oom_watch.time, "monotonic", lambda: clock[0])
    with neutracer.watch_oom(tmp_path, limit=2, max_entries=0, seconds=1e9) as watch:
        places = [lambda fake, n=n: eval("\n" * n + "here(fake)") for n in range(5)]
        for place in places[:4]:
            place(fake)
        assert len(watch.reports) == 2
        clock[0] += 61
        places[4](fake)
        assert len(watch.reports) == 3
    assert watch.seen == 5


def test_out_of_memory_inside_is_not_told(fake, tmp_path, monkeypatch):
    inner = []

    def explain(*args, **kwargs):
        inner.append(here(fake))
        raise inner[0]

    monkeypatch.setattr(oom_watch, "explain", explain)
    with neutracer.watch_oom(tmp_path) as watch:
        error = here(fake)
    assert len(inner) == 1
    assert len(watch.reports) == 1
    assert watch.reports[0].left_out[0].startswith("the verdict: OutOfMemoryError")
    assert os.path.exists(watch.reports[0].text)
    assert "Tried to allocate" in str(error)


@pytest.mark.parametrize("part", ["dumped", "facts_of", "sidecar", "explain", "render_text"])
def test_failing_parts_leave_the_others(fake, tmp_path, monkeypatch, part):
    def fails(*args, **kwargs):
        raise ValueError("broken")

    monkeypatch.setattr(oom_watch, part, fails)
    with neutracer.watch_oom(tmp_path) as watch:
        error = here(fake)
    (report,) = watch.reports
    assert any("broken" in reason for reason in report.left_out)
    assert os.path.exists(report.json)
    assert (report.snapshot is None) == (part == "dumped")
    assert type(error) is fake.module.OutOfMemoryError


def test_unwritable_folder_is_survived(fake, tmp_path):
    (tmp_path / "file").write_text("in the way")
    with neutracer.watch_oom(tmp_path / "file") as watch:
        error = here(fake)
    (report,) = watch.reports
    assert report.verdict
    assert len(report.left_out) == 4
    assert type(error) is fake.module.OutOfMemoryError


def test_slow_disk_does_not_hold_the_program(fake, tmp_path, monkeypatch, clock):
    stuck = threading.Event()
    real = oom_watch.explain

    def explain(*args, **kwargs):
        # All but 0.3 seconds are gone when it is explained.
        clock(PLENTY - 0.3)
        return real(*args, **kwargs)

    monkeypatch.setattr(oom_watch, "_write", lambda path, data: stuck.wait(2 * PLENTY))
    monkeypatch.setattr(oom_watch, "explain", explain)
    with neutracer.watch_oom(tmp_path, seconds=PLENTY) as watch:
        begin = time.monotonic()
        here(fake)
        assert time.monotonic() - begin < PLENTY / 2
    stuck.set()
    (report,) = watch.reports
    assert report.verdict
    assert any("still being written" in reason for reason in report.left_out)


def test_time_that_is_up_leaves_steps_out(fake, tmp_path, monkeypatch, clock):
    monkeypatch.setattr(
        oom_watch, "facts_of", lambda *args: clock(2 * PLENTY) or OomFacts(device=0)
    )
    with neutracer.watch_oom(tmp_path, seconds=PLENTY, max_entries=100) as watch:
        here(fake)
    assert "the verdict: time ran out" in watch.reports[0].left_out


def test_long_ring_is_left_out_in_short_time(fake, tmp_path):
    # The events might take 50 seconds.
    with neutracer.watch_oom(tmp_path, seconds=40.0, max_entries=10_000_000) as watch:
        fake.allocate()
        here(fake)
    (report,) = watch.reports
    assert any(reason.startswith("the trace: 10,000,000 events") for reason in report.left_out)
    assert len(neutracer.load(report.snapshot).events) == 0
    assert report.verdict


def test_collections_wait_until_it_is_written(fake, tmp_path, monkeypatch):
    seen = []
    real = oom_watch.explain
    monkeypatch.setattr(
        oom_watch, "explain", lambda *a, **k: seen.append(gc.isenabled()) or real(*a, **k)
    )
    with neutracer.watch_oom(tmp_path):
        here(fake)
        assert gc.isenabled()
    assert set(seen) == {False}


def test_callback_gets_each_report(fake, tmp_path, caplog):
    seen = []

    def callback(report):
        seen.append(report)
        raise ValueError("mine")

    with neutracer.watch_oom(tmp_path, callback=callback) as watch:
        here(fake)
    assert [one.text for one in seen] == [one.text for one in watch.reports]
    assert "callback" in caplog.text


def test_removed_watch_writes_nothing(fake, tmp_path):
    watch = neutracer.watch_oom(tmp_path)
    watch.remove()
    watch.remove()
    assert not notes_of(here(fake))
    assert watch.seen == 0
    assert not watch.active
    assert os.listdir(tmp_path) == []
    assert "__init__" not in vars(fake.module.OutOfMemoryError)


def test_watch_without_history_records_nothing(fake, tmp_path):
    with neutracer.watch_oom(tmp_path, max_entries=0) as watch:
        assert fake.calls == []
        here(fake)
    assert watch.reports[0].verdict
    assert "the trace" not in " ".join(watch.reports[0].left_out)


def test_threads_do_not_wait_for_each_other(fake, tmp_path, monkeypatch):
    inside, leave = threading.Event(), threading.Event()
    real = oom_watch.facts_of

    def slow(*args):
        inside.set()
        leave.wait(60)
        return real(*args)

    monkeypatch.setattr(oom_watch, "facts_of", slow)
    with neutracer.watch_oom(tmp_path, seconds=0.2) as watch:
        thread = threading.Thread(target=here, args=(fake,))
        thread.start()
        assert inside.wait(60)
        assert type(there(fake)) is fake.module.OutOfMemoryError
        leave.set()
        thread.join()
    assert watch.seen == 2
    assert len(watch.reports) == 1


@pytest.mark.skipif(not HAS_NOTES, reason="needs notes of exceptions")
def test_note_of_a_native_thread_is_found(fake, tmp_path, monkeypatch):
    """A backward pass: the observer is called on a thread without Python, the error is not."""
    monkeypatch.setattr(oom_watch, "asking_frame", lambda: None)
    raised = []
    with neutracer.watch_oom(tmp_path) as watch:

        def backward():
            for observer in fake.observers:
                observer(0, 48 * MIB, 64 * MIB, 0)

        thread = threading.Thread(target=backward)
        thread.start()
        thread.join()
        unlike = fake.module.OutOfMemoryError("Tried to allocate 47.00 MiB. GPU 0 has")
        raised = fake.module.OutOfMemoryError("Tried to allocate 48.00 MiB. GPU 0 has")
    assert not notes_of(unlike)
    assert watch.reports[0].text in notes_of(raised)[0]
    assert watch.reports[0].oom.stack == ()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_child_of_a_fork_writes_nothing(fake, tmp_path):
    with neutracer.watch_oom(tmp_path) as watch:
        child = os.fork()
        if child == 0:
            try:
                here(fake)
                watch.remove()
            finally:
                os._exit(len(os.listdir(tmp_path)) + 10 * watch.active)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert watch.active


@pytest.mark.parametrize("options", [{"limit": 0}, {"seconds": 0}, {"max_entries": -1}])
def test_wrong_arguments_are_refused(fake, options):
    with pytest.raises(ValueError, match=next(iter(options))):
        neutracer.oom_report(**options)


def test_process_facts_name_the_tensors():
    torch = pytest.importorskip("torch")
    from neutracer.heap.cycles import prepare_heap

    prepare_heap()

    def ask():
        return oom_watch._tensors(sys._getframe())

    x, count = torch.zeros(3, 4), 7
    names = oom_watch._tensors(sys._getframe())
    assert names == ("x: (3, 4) float32",)
    assert ask() == ()
    assert (len(x), count) == (3, 7)


def test_variables_are_not_kept_alive():
    torch = pytest.importorskip("torch")
    import weakref

    from neutracer.heap.cycles import prepare_heap

    prepare_heap()
    x = torch.zeros(5)
    alive = weakref.ref(x)
    assert oom_watch._tensors(sys._getframe()) == ("x: (5,) float32",)
    del x
    assert alive() is None
    kept = locals()
    assert oom_watch._tensors(sys._getframe()) == ()
    assert kept["alive"] is alive


def test_facts_say_how_far_a_forward_pass_had_come():
    torch = pytest.importorskip("torch")
    facts = []

    class Block(torch.nn.Module):
        def __init__(self, looks):
            super().__init__()
            self.inner = torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Tanh())
            self.looks = looks

        def forward(self, x):
            if self.looks:
                facts.append(oom_watch._layers(sys._getframe()))
            return self.inner(x)

    class Decoder(torch.nn.Module):
        def __init__(self, count, at):
            super().__init__()
            self.blocks = torch.nn.ModuleList(Block(number == at) for number in range(count))

        def forward(self, x):
            for block in self.blocks:
                x = block(x)
            return x

    def ran(model):
        model(torch.ones(1))
        return facts.pop()

    third = {"layers": "Decoder.blocks", "layers_begun": 3, "layers_count": 6}
    assert ran(Decoder(6, 2)) == third
    # The longest list, whichever is the inner one.
    assert ran(torch.nn.Sequential(*(Decoder(6, at) for at in (6, 2)))) == third
    outer = torch.nn.Sequential(*(Decoder(1, at) for at in (1, 0, 1)))
    assert ran(outer) == {"layers": "Sequential", "layers_begun": 2, "layers_count": 3}

    class Bare(torch.nn.Module):
        def __init__(self):
            """Its parts are those of no module."""

        def run(self):
            return ran(Decoder(6, 2))

    assert Bare().run() == third
    # Modules of several classes don't need as much each.
    assert ran(torch.nn.Sequential(Block(True), torch.nn.ReLU())) == {}
    assert oom_watch._layers(sys._getframe()) == {}


def test_garbage_of_other_devices_is_left_out():
    torch = pytest.importorskip("torch")
    from neutracer.heap.cycles import prepare_heap

    prepare_heap()
    gc.disable()
    try:
        ring = [torch.zeros(1 << 10)]
        ring.append(ring)
        del ring
        assert oom_watch._garbage(0) == (0, ())
    finally:
        gc.enable()


class Events:
    """IPython's events."""

    def __init__(self):
        self.callbacks = []

    def register(self, name, callback):
        assert name == "post_run_cell"
        self.callbacks.append(callback)

    def unregister(self, name, callback):
        self.callbacks.remove(callback)


@pytest.mark.parametrize("failed", [True, False])
def test_notebook_is_told_what_is_held(fake, tmp_path, monkeypatch, capsys, failed):
    from neutracer.oom import page as oom_notebook

    events = Events()
    shell = SimpleNamespace(events=events)
    kind = SimpleNamespace(_instance=shell)
    module = SimpleNamespace(InteractiveShell=kind)
    monkeypatch.setitem(sys.modules, "IPython.core.interactiveshell", module)
    holder = SimpleNamespace(names=("sys.last_value",), bytes=3 << 30)
    held = SimpleNamespace(total_bytes=3 << 30, holders=(holder,))
    monkeypatch.setattr(oom_notebook, "notebook_holders", lambda: held)
    with neutracer.watch_oom(tmp_path):
        (after_cell,) = events.callbacks
        after_cell(SimpleNamespace(error_in_exec=ValueError()))
        assert capsys.readouterr().err == ""
        here(fake)
        after_cell(SimpleNamespace(error_in_exec=ValueError() if failed else None))
    said = capsys.readouterr().err
    assert said.startswith("neutracer: 3,072 MiB are still held by sys.last_value") == failed
    assert events.callbacks == []


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_forked_child_may_start_it_anew(fake, tmp_path):
    watch = neutracer.watch_oom(tmp_path, max_entries=0, seconds=PLENTY)

    def child():
        there(fake)
        assert watch.reports == ()
        watch.start()
        there(fake)
        assert len(watch.reports) == 1
        watch.remove()
        there(fake)
        return len(watch.reports)

    # Another thread of the parent is at a report at the moment of the fork.
    with watch._busy:
        assert in_child(child) == 1
    here(fake)
    watch.remove()
    assert len(watch.reports) == 1
    assert len({path.name.split("-")[-2] for path in tmp_path.glob("*.pickle")}) == 2


def test_threads_that_run_out_at_once_get_a_report_each(fake, tmp_path):
    ready = threading.Barrier(2)

    def first():
        ready.wait()
        here(fake)

    def second():
        ready.wait()
        there(fake)

    with neutracer.watch_oom(tmp_path, seconds=PLENTY) as watch:
        threads = [threading.Thread(target=work) for work in (first, second)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(watch.reports) == 2


def test_another_allocator_is_said_in_one_sentence(fake, tmp_path):
    fake.module.cuda.memory.get_allocator_backend = lambda: "cudaMallocAsync"
    fake.module.cuda.current_device = lambda: 0
    with neutracer.watch_oom(tmp_path) as watch:
        assert fake.observers == []
        error = fake.module.OutOfMemoryError("Allocation on device 0: out of memory")
        if HAS_NOTES:
            (note,) = notes_of(error)
            assert "this program's allocator, cudaMallocAsync" in note
            assert "\n" not in note
            assert watch.seen == 1
    assert watch.reports == ()


def retried(fake):
    with pytest.raises(fake.module.OutOfMemoryError):
        fake.run_out(48 * MIB)
    try:
        raise ValueError("the attempt before")
    except ValueError:
        return there(fake)


@pytest.mark.parametrize("ends", [here, retried, lambda fake: here(fake, 200 * MIB)])
@pytest.mark.parametrize("count", [0, 5, 40])
def test_one_failure_has_one_cause_wherever_it_is_told(fake, tmp_path, ends, count):
    with neutracer.oom_report(tmp_path, seconds=PLENTY) as watch:
        if count:
            fake.allocate(count)
        error = ends(fake)
    report = watch.reports[-1]
    said = report.verdict
    assert said
    why = neutracer.explain(report.snapshot)
    assert why.verdicts[0].message == said
    assert why.bill.to_dict() == report.explained["bill"]
    assert " ".join(said.split()) in " ".join(Path(report.text).read_text("utf-8").split())
    found = neutracer.report(report.snapshot)
    (failed,) = [one for one in found.findings if one.event == why.event][:1]
    assert failed.message.startswith(f"out of memory: {said}")
    assert found.devices[0].bill.to_dict() == why.bill.to_dict()
    if HAS_NOTES:
        assert notes_of(error)[0].startswith(f"neutracer: {said}")


def test_backward_pass_is_where_its_caller_waits() -> None:
    begun, over = threading.Event(), threading.Event()

    def _engine_run_backward() -> None:
        begun.set()
        while not over.is_set():
            pass

    assert oom_watch._backward_frame() is None
    thread = threading.Thread(target=_engine_run_backward)
    thread.start()
    try:
        assert begun.wait(10)
        while (frame := oom_watch._backward_frame()) is None:
            pass
        names = [name for _, _, name in oom_watch.python_stack(frame)]
    finally:
        over.set()
        thread.join()
    assert names[0] == "_engine_run_backward"
