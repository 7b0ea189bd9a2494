# SPDX-License-Identifier: Apache-2.0
"""Calls of empty_cache() are noted where they were made, and the program never sees it."""

from __future__ import annotations

import gc
import inspect
import pickle
import threading
import traceback
import weakref
from array import array
from types import SimpleNamespace

import pytest
from fake_cuda import MIB, install

import neutracer
from neutracer._native import core
from neutracer.process.recording import cache_calls
from neutracer.process.recording.cache_calls import (
    CACHE_CALLS,
    KEY,
    CacheCalls,
    note_in_snapshot,
)
from neutracer.process.recording.call_places import Counts, Trace, places


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


def test_calls_from_threads_and_handlers():
    lock = threading.Lock()
    torch, done = made_up_torch()
    notes = CacheCalls()

    def work():
        for _ in range(200):
            with lock:
                done["alloc"] += 1
                torch._C._cuda_emptyCache()

    notes.begin(torch, "test")
    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    trace = Trace(bytes([1]) * 800, lambda i: 0, lambda i: 0)
    found = notes.noted(notes.now(), {0: lambda: trace})
    assert list(found[0]) == list(range(800))
    notes.end("test")


def test_another_thread_in_between():
    torch, done = made_up_torch()
    notes = CacheCalls()
    inner = torch._C._cuda_emptyCache

    def slow():
        inner()
        done["alloc"] += 1

    torch._C._cuda_emptyCache = slow
    notes.begin(torch, "test")
    torch._C._cuda_emptyCache()
    trace = Trace(bytes([1]), lambda i: 0, lambda i: 0)
    assert notes.noted(notes.now(), {0: lambda: trace}) == {}
    # What comes later is known again.
    done["alloc"] += 1
    assert list(notes.noted(notes.now(), {0: lambda: trace})[0]) == []
    notes.end("test")


def started(devices):
    """As much of torch.cuda as is asked."""
    return SimpleNamespace(is_initialized=lambda: True, device_count=lambda: devices)


def made_up_torch():
    done = {"alloc": 0, "waits": 0}

    def stats(device):
        served = {"allocated": done["alloc"], "freed": 0}
        waits = {"num_sync_all_streams": done["waits"], "num_alloc_retries": 0}
        return {"allocation": {"all": served}, "num_ooms": 0, **waits}

    def empty_cache():
        done["waits"] += 1

    functions = SimpleNamespace(_cuda_memoryStats=stats, _cuda_emptyCache=empty_cache)
    return SimpleNamespace(_C=functions, cuda=started(devices=1)), done


def test_devices_are_counted_apart():
    # A call makes the allocators of all devices wait, those without a context too.
    served = [5, 0, 0]
    waits = [1, 1, 1]

    def stats(device):
        return {
            "allocation": {"all": {"allocated": served[device], "freed": 0}},
            "num_ooms": 0,
            "num_alloc_retries": 0,
            "num_sync_all_streams": waits[device],
        }

    def empty_cache():
        waits[:] = [count + 1 for count in waits]

    functions = SimpleNamespace(_cuda_memoryStats=stats, _cuda_emptyCache=empty_cache)
    torch = SimpleNamespace(_C=functions, cuda=started(devices=3))
    notes = CacheCalls()
    notes.begin(torch, "test")
    served[0] += 1
    functions._cuda_emptyCache()
    served[2] += 2
    functions._cuda_emptyCache()
    served[2] += 1
    traces = {
        0: lambda: Trace(bytes([1]), lambda i: 0, lambda i: 0),
        1: lambda: Trace(b"", lambda i: 0, lambda i: 0),
        2: lambda: Trace(bytes([1, 0, 1, 0, 1]), lambda i: 0, lambda i: 0),
    }
    found = notes.noted(notes.now(), traces)
    assert {device: list(events) for device, events in found.items()} == {0: [0], 1: [], 2: [2]}
    notes.end("test")


def test_places_that_contradict_are_none():
    trace = Trace(bytes([1, 2, 1]), lambda i: 0, lambda i: 10**15 + i)
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


def test_around_drops_what_its_own_raise_and_passes_interruptions():
    def fail(*given):
        raise ValueError(given)

    def stop(*given):
        raise KeyboardInterrupt

    assert core.Around(lambda *a, **k: (a, k), fail, fail)(1, two=2) == ((1,), {"two": 2})
    called = []
    with pytest.raises(KeyboardInterrupt):
        core.Around(lambda: called.append(1), stop, print)()
    assert called == []
    with pytest.raises(KeyboardInterrupt):
        core.Around(lambda: called.append(1), lambda: None, stop)()
    assert called == [1]
    with pytest.raises(ZeroDivisionError):
        core.Around(lambda: 1 // 0, lambda: None, stop)()


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
    torch, done = made_up_torch()
    notes = CacheCalls()
    notes.begin(torch, "test")
    for _ in range(6):
        done["alloc"] += 1
        torch._C._cuda_emptyCache()
    trace = Trace(bytes([1]) * 6, lambda i: 0, lambda i: 0)
    assert notes.noted(notes.now(), {0: lambda: trace}) == {}
    last = Trace(bytes([1]) * 3, lambda i: 0, lambda i: 0)
    assert list(notes.noted(notes.now(), {0: lambda: last})[0]) == [0, 1, 2]
    notes.end("test")
