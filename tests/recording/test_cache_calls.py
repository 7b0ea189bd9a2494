# SPDX-License-Identifier: Apache-2.0
"""Calls of empty_cache() are noted where they were made, and the program never sees it."""

from __future__ import annotations

import contextlib
import gc
import inspect
import pickle
import signal
import threading
import traceback
import weakref
from array import array
from functools import partial
from types import SimpleNamespace

import pytest
from fake_cuda import MIB, install

import neutracer
from neutracer._native import core
from neutracer.hooks import cache_calls
from neutracer.hooks.cache_calls import (
    CACHE_CALLS,
    KEY,
    CacheCalls,
    Counts,
    Trace,
    note_in_snapshot,
    places,
)


@pytest.fixture
def fake(monkeypatch):
    made = install(monkeypatch)
    made.real_times = True
    return made


@pytest.fixture(autouse=True)
def nobody_notes():
    yield
    assert CACHE_CALLS.now() == {}


def empty(fake):
    fake.module.cuda.empty_cache()


def noted(snap):
    return snap.settings.get(KEY)


def test_recording_has_the_calls_and_its_file_too(fake, tmp_path):
    functions = fake.module._C._cuda_emptyCache, fake.module._C._accelerator_emptyCache
    empty(fake)  # Before: not of the recording.
    with neutracer.record() as recording:
        assert fake.module._C._cuda_emptyCache is not functions[0]
        empty(fake)
        fake.hold(MIB)
        empty(fake)
        fake.allocate()
        fake.module._C._accelerator_emptyCache()
        fake.hold(MIB)
        fake.module.cuda.empty_cache()
        fake.module.cuda.empty_cache()
    assert (fake.module._C._cuda_emptyCache, fake.module._C._accelerator_emptyCache) == functions
    # Nothing precedes the first, the free behind event 2 is complete with event 3, and two in one
    # place are one.
    assert noted(recording.snapshot()) == {"0": [0, 3, 4]}
    recording.save(tmp_path / "calls.pickle.gz")
    assert noted(neutracer.load(tmp_path / "calls.pickle.gz")) == {"0": [0, 3, 4]}
    part = neutracer.load(tmp_path / "calls.pickle.gz", events=slice(2, 5))
    assert noted(part) == {"0": [1, 2]}


def test_no_call_is_said_too(fake):
    with neutracer.record() as recording:
        fake.allocate(2)
    assert noted(recording.snapshot()) == {"0": []}


def test_ring_that_lost_its_beginning(fake):
    with neutracer.record(max_entries=4) as recording:
        recording.quiet = True
        fake.allocate(2)
        empty(fake)
        fake.allocate()
        empty(fake)
        fake.hold(MIB)
    assert noted(recording.snapshot()) == {"0": [2]}


def test_call_after_a_request_that_failed(fake):
    with neutracer.record() as recording:
        fake.hold(MIB)
        with pytest.raises(fake.module.OutOfMemoryError):
            fake.run_out()
        empty(fake)
        fake.hold(MIB)
    assert noted(recording.snapshot()) == {"0": [1]}


def test_what_is_not_known_is_not_said(fake):
    with neutracer.record() as recording:
        fake.hold(MIB)
        fake.empty_cache()  # From C++: nobody notes it.
        fake.hold(MIB)
        empty(fake)
        assert noted(recording.snapshot()) is None
    with neutracer.record() as recording:
        fake.hold(MIB)
        empty(fake)
        fake.done["alloc"] = 0  # reset_accumulated_memory_stats()
        fake.hold(MIB)
        assert noted(recording.snapshot()) is None
    with neutracer.record() as recording:
        fake.hold(MIB)
        fake.module._C._cuda_memoryStats = lambda device: {}
        empty(fake)
        assert noted(recording.snapshot()) is None
    assert fake.done["empty_cache"] == 4


def test_program_that_recorded_before_has_calls_nobody_noted(fake):
    fake.enabled, fake.max_entries = True, 100
    fake.hold(MIB)
    with neutracer.record() as recording:
        empty(fake)
        fake.hold(MIB)
        assert noted(recording.snapshot()) is None
    fake.max_entries = 1
    with neutracer.record() as recording:
        fake.hold(MIB)
        recording.quiet = True
        # What the ring still has, was recorded since.
        assert noted(recording.snapshot()) == {"0": []}


def test_work_while_the_trace_is_taken(fake, monkeypatch):
    taken = fake.module.cuda.memory._snapshot

    def busy():
        found = taken()
        fake.hold(MIB)
        return found

    with neutracer.record() as recording:
        fake.hold(MIB)
        monkeypatch.setattr(fake.module.cuda.memory, "_snapshot", busy)
        assert noted(recording.snapshot()) is None


def test_dump_that_is_not_understood_has_no_notes(fake):
    with neutracer.record():
        fake.hold(MIB)
        before = CACHE_CALLS.now()
        settings = {}
        cache_calls.note_in_dump(
            {"allocator_settings": settings, "device_traces": [[{"what": 1}]]}, before
        )
        assert settings == {}


def test_two_recordings_note_together(fake):
    function = fake.module._C._cuda_emptyCache
    first = neutracer.record().start()
    fake.hold(MIB)
    second = neutracer.record().start()
    empty(fake)
    fake.hold(MIB)
    first.discard()
    empty(fake)
    assert noted(second.snapshot()) == {"0": [0, 1]}
    second.discard()
    assert fake.module._C._cuda_emptyCache is function


def test_what_others_put_around_it_stays(fake):
    seen = []
    with neutracer.record():
        ours = fake.module._C._cuda_emptyCache
        theirs = fake.module._C._cuda_emptyCache = lambda: seen.append(ours())
    assert fake.module._C._cuda_emptyCache is theirs
    empty(fake)
    assert seen == [None]
    assert fake.done["empty_cache"] == 1


def test_errors_of_the_call_are_the_programs(fake):
    def fail():
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    fake.module._C._cuda_emptyCache = fail
    plain = with_note = ""
    try:
        fail()
    except RuntimeError:
        plain = traceback.format_exc()
    with neutracer.record():
        try:
            fake.module._C._cuda_emptyCache()
        except RuntimeError:
            with_note = traceback.format_exc()
    assert with_note.count("  File ") == plain.count("  File ") == 2
    assert "neutracer" not in with_note.replace(__file__, "")


class MadeUpTorch:
    """As much of torch as is asked: what its devices have served, and how often they waited."""

    def __init__(self, *served):
        self.served = list(served) or [0]
        self.waits = 0
        self._C = SimpleNamespace(_cuda_memoryStats=self.stats, _cuda_emptyCache=self.empty_cache)
        self.cuda = SimpleNamespace(
            is_initialized=lambda: True, device_count=lambda: len(self.served)
        )

    def stats(self, device):
        served = {"allocated": self.served[device], "freed": 0}
        # A call makes the allocators of all devices wait, those without a context too.
        waits = {"num_sync_all_streams": self.waits, "num_alloc_retries": 0}
        return {"allocation": {"all": served}, "num_ooms": 0, **waits}

    def empty_cache(self):
        self.waits += 1


@contextlib.contextmanager
def noting(torch):
    notes = CacheCalls()
    notes.begin(torch, "test")
    yield notes
    notes.end("test")


def trace_of(*marks, begin_us=0):
    return Trace(bytes(marks), lambda i: 0, lambda i: begin_us and begin_us + i)


def found_in(notes, *traces):
    """By device, the events after which calls were noted."""
    by_device = {device: lambda trace=trace: trace for device, trace in enumerate(traces)}
    return {device: list(at) for device, at in notes.noted(notes.now(), by_device).items()}


def test_calls_from_threads():
    lock = threading.Lock()
    torch = MadeUpTorch()

    def work():
        for _ in range(200):
            with lock:
                torch.served[0] += 1
                torch._C._cuda_emptyCache()

    with noting(torch) as notes:
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert found_in(notes, trace_of(*[1] * 800)) == {0: list(range(800))}


@pytest.mark.parametrize(
    ("points", "whole"),
    [
        (["stats"], {0: [0, 1]}),
        # A call inside of another is not told from one that nobody noted.
        (["call"], {}),
        (["call", "stats"], {}),
    ],
    ids=["before", "inside", "after"],
)
def test_call_from_a_signals_handler_while_one_is_noted(points, whole):
    torch = MadeUpTorch()
    left = []

    def reached(point):
        if left[:1] == [point]:
            del left[0]
            if not left:
                signal.raise_signal(signal.SIGUSR1)

    def stats(device):
        reached("stats")
        return torch.stats(device)

    def empty_cache():
        reached("call")
        torch.empty_cache()

    torch._C = SimpleNamespace(_cuda_memoryStats=stats, _cuda_emptyCache=empty_cache)
    before = signal.signal(signal.SIGUSR1, lambda *_: torch._C._cuda_emptyCache())
    try:
        with noting(torch) as notes:
            torch.served[0] += 1
            left += points
            torch._C._cuda_emptyCache()
            assert (torch.waits, left) == (2, [])
            torch.served[0] += 1
            torch._C._cuda_emptyCache()
            assert found_in(notes, trace_of(1, 1)) == whole
            # What comes later is known in any case.
            assert found_in(notes, trace_of(1)) == {0: [0]}
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_another_thread_in_between():
    torch = MadeUpTorch()

    def slow():
        torch.empty_cache()
        torch.served[0] += 1

    torch._C._cuda_emptyCache = slow
    with noting(torch) as notes:
        torch._C._cuda_emptyCache()
        assert found_in(notes, trace_of(1)) == {}
        # What comes later is known again.
        torch.served[0] += 1
        assert found_in(notes, trace_of(1)) == {0: []}


def test_devices_are_counted_apart():
    torch = MadeUpTorch(5, 0, 0)
    torch.waits = 1
    with noting(torch) as notes:
        torch.served[0] += 1
        torch._C._cuda_emptyCache()
        torch.served[2] += 2
        torch._C._cuda_emptyCache()
        torch.served[2] += 1
        found = found_in(notes, trace_of(1), trace_of(), trace_of(1, 0, 1, 0, 1))
        assert found == {0: [0], 1: [], 2: [2]}


def test_places_that_contradict_are_none():
    trace = trace_of(1, 2, 1, begin_us=10**15)
    end = Counts(12, 4, 0, 1)
    at = Counts(11, 4, 0, 0)
    assert list(places(trace, end, Counts(0, 0, 0, 0), [(at, 10**15)])) == [1]
    # Another order, a time that is another, and calls before they were noted.
    assert places(trace, end, Counts(0, 0, 0, 0), [(Counts(12, 3, 0, 0), 10**15)]) is None
    assert places(trace, end, Counts(0, 0, 0, 0), [(at, 10**15 + 10**6)]) is None
    assert places(trace, end, Counts(11, 3, 0, 0), [(at, 10**15)]) is None


def test_snapshots_of_the_core_are_noted_alike(fake):
    fake.module._C._cuda_memoryStats = lambda device: fake.counts()
    CACHE_CALLS.begin(fake.module, "test")
    fake.enabled, fake.max_entries = True, 100
    fake.hold(MIB)
    empty(fake)
    fake.allocate()
    empty(fake)
    before = CACHE_CALLS.now()
    native = core.load(pickle.dumps(fake.snapshot()), 1 << 30, None)
    note_in_snapshot(native, before)
    CACHE_CALLS.end("test")
    assert native.settings()[KEY] == {"0": [0, 3]}
    with pytest.raises(ValueError, match="are noted"):
        native.note_calls(0, array("i", [1]))
    with pytest.raises(ValueError, match="no call can be after event 7"):
        core.load(pickle.dumps(fake.snapshot()), 1 << 30, None).note_calls(0, array("i", [7]))


def outcome(function):
    """What a call gives, or raises where there is no accelerator."""
    try:
        return function()
    except RuntimeError as error:
        return str(error)


def test_torch_cannot_tell_the_difference():
    torch = pytest.importorskip("torch")
    before = torch._C._accelerator_emptyCache
    public = torch.cuda.empty_cache
    CACHE_CALLS.begin(torch, "test")
    try:
        inside = torch._C._accelerator_emptyCache
        assert inside is not before
        assert inside.__name__ == before.__name__
        assert inside.__doc__ == before.__doc__
        assert inspect.isbuiltin(inside) == inspect.isbuiltin(before)
        assert torch.cuda.empty_cache is public
        assert pickle.loads(pickle.dumps(public)) is public
        assert torch.cuda.empty_cache() is None
        assert outcome(inside) == outcome(before)
    finally:
        CACHE_CALLS.end("test")
    assert torch._C._accelerator_emptyCache is before


def test_around_drops_what_is_raised_by_us_and_passes_what_handlers_of_signals_raise():
    def fail(*given):
        # The innermost frame is one of neutracer's.
        neutracer.load("no/such/file")

    def stop(*given):
        raise KeyboardInterrupt

    def handle(*given):
        # As a signal's handler, which runs in the middle of whatever is running.
        raise TimeoutError

    assert core.Around(lambda *a, **k: (a, k), fail, fail)(1, two=2) == ((1,), {"two": 2})
    assert core.Around(lambda: 1, partial(int, "one"), print)() == 1
    for interruption, raised in ((stop, KeyboardInterrupt), (handle, TimeoutError)):
        called = []
        with pytest.raises(raised):
            core.Around(partial(called.append, 1), interruption, print)()
        assert called == []
        with pytest.raises(raised):
            core.Around(partial(called.append, 1), lambda: None, interruption)()
        assert called == [1]
        with pytest.raises(ZeroDivisionError):
            core.Around(lambda: 1 // 0, lambda: None, interruption)()


def test_around_is_collected():
    class Holder:
        pass

    holder = Holder()
    holder.around = core.Around(holder.__init__, lambda: None, lambda given: None)
    gone = weakref.ref(holder)
    del holder
    gc.collect()
    assert gone() is None


def test_most_calls_are_bounded(monkeypatch):
    monkeypatch.setattr(cache_calls, "_MOST_CALLS", 3)
    torch = MadeUpTorch()
    with noting(torch) as notes:
        for _ in range(6):
            torch.served[0] += 1
            torch._C._cuda_emptyCache()
        assert found_in(notes, trace_of(*[1] * 6)) == {}
        assert found_in(notes, trace_of(*[1] * 3)) == {0: [0, 1, 2]}
