# SPDX-License-Identifier: Apache-2.0
"""record(): on and off again as it was, bounded, saved whole with what it can't say itself."""

from __future__ import annotations

import json
import os
import sys
import threading
import warnings
from types import SimpleNamespace

import pytest
from fake_cuda import install

import neutracer
from neutracer import HistoryWarning, UnavailableError
from neutracer.recording import recorder as history
from neutracer.recording import sidecar


@pytest.fixture
def fake(monkeypatch):
    return install(monkeypatch)


@pytest.fixture
def idle(monkeypatch):
    """A torch whose CUDA is not initialised yet."""
    return install(monkeypatch, initialised=False)


@pytest.fixture(autouse=True)
def everybody_off():
    yield
    assert history.HISTORY.in_force() is None
    assert not history.HISTORY.is_foreign()


def last(fake):
    return fake.calls[-1]


def test_block_is_recorded_and_kept(fake):
    with neutracer.record(max_entries=50) as recording:
        assert fake.enabled
        assert last(fake)["stacks"] == "python"
        assert last(fake)["max_entries"] == 50
        fake.allocate(3)
        assert len(recording.snapshot().events) == 9
    assert not fake.enabled
    assert len(recording.snapshot().events) == 9
    assert fake.ring == []


def test_nothing_is_left_switched_on_by_errors(fake):
    with pytest.raises(ZeroDivisionError), neutracer.record():
        raise ZeroDivisionError
    assert not fake.enabled


def test_each_call_is_recorded_apart(fake, tmp_path):
    @neutracer.record(path=tmp_path / "{pid}-{rank}.pickle")
    def step(count):
        fake.allocate(count)
        return count

    assert step(2) == 2
    assert not fake.enabled
    saved = tmp_path / f"{os.getpid()}-0.pickle"
    assert len(neutracer.load(saved).events) == 6
    assert step(1) == 1
    assert len(neutracer.load(saved).events) == 3


def test_deferred_functions_are_refused(fake):
    async def step():
        pass

    def batches():
        yield

    for function in (step, batches):
        with pytest.raises(TypeError, match="after its call"):
            neutracer.record()(function)


def test_recording_waits_for_cuda(idle):
    recording = neutracer.record().start()
    assert recording.active
    assert recording.waiting
    assert idle.calls == []
    with pytest.raises(UnavailableError, match="has not used CUDA yet"):
        recording.snapshot()
    idle.init()
    assert not recording.waiting
    idle.allocate()
    recording.stop()
    assert len(recording.snapshot().events) == 3


def test_stopped_recording_does_not_begin_later(idle):
    recording = neutracer.record().start()
    recording.stop()
    idle.init()
    assert idle.calls == []
    with pytest.raises(UnavailableError):
        recording.snapshot()


def test_failure_does_not_end_initialisation(idle, caplog):
    recording = neutracer.record().start()
    del idle.module._C._cuda_isHistoryEnabled
    idle.init()
    assert not recording.active
    assert "could not begin" in caplog.text


def test_history_of_the_program_is_untouched(fake):
    fake.module.cuda.memory._record_memory_history(max_entries=7)
    before = list(fake.calls)
    with neutracer.record(max_entries=1000, stacks="all") as recording:
        fake.allocate()
        assert history.HISTORY.is_foreign()
        assert len(recording.snapshot().events) == 3
    assert fake.calls == before
    assert fake.enabled
    assert len(fake.ring) == 3


def test_inner_recording_joins_and_gives_back(fake):
    with neutracer.record(max_entries=20, context="alloc", skip_actions=["free_requested"]):
        outer = last(fake)
        with neutracer.record(max_entries=99, stacks="all", context="all", pinned=True):
            assert last(fake)["pinned"] is True
            assert last(fake)["max_entries"] == 20
            assert last(fake)["stacks"] == "all"
            assert last(fake)["context"] == "all"
            assert last(fake)["skip_actions"] is None
        assert last(fake) == outer
        assert fake.enabled
    assert not fake.enabled


def test_recordings_may_end_in_any_order(fake):
    first = neutracer.record(max_entries=20).start()
    second = neutracer.record(max_entries=30, stacks="all").start()
    first.stop()
    assert fake.enabled
    assert last(fake)["stacks"] == "all"
    assert fake.max_entries == 20
    second.stop()
    second.stop()
    assert not fake.enabled


def test_equal_recordings_are_told_apart(fake):
    first, second = neutracer.record().start(), neutracer.record().start()
    first.stop()
    assert fake.enabled
    second.stop()
    assert not fake.enabled


def test_started_twice_is_refused(fake):
    with neutracer.record() as recording, pytest.raises(RuntimeError, match="already"):
        recording.start()


def test_wrapped_ring_is_warned_of_once(fake):
    recording = neutracer.record(max_entries=4).start()
    fake.allocate(1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        recording.snapshot()
    fake.allocate(1)
    with pytest.warns(HistoryWarning, match="ring of 4 events wrapped") as caught:
        recording.snapshot()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        recording.stop()
    assert len(caught) == 1
    assert caught[0].filename == __file__


def test_pytorchs_word_on_wrapping_counts(fake, monkeypatch):
    fake.module.cuda.memory._record_memory_history(max_entries=3)
    plain = fake.snapshot

    def told():
        return {**plain(), "allocator_settings": {"trace_alloc_overflowed": True}}

    monkeypatch.setattr(fake.module.cuda.memory, "_snapshot", told)
    fake.allocate(2)
    with pytest.warns(HistoryWarning, match="ring of 3 events"), neutracer.record():
        pass


def test_switched_off_meanwhile_is_told(fake):
    with pytest.warns(HistoryWarning, match="switched off"), neutracer.record():
        fake.module.cuda.memory._record_memory_history(None)
    assert last(fake)["enabled"] is None
    assert len(fake.calls) == 2


@pytest.mark.parametrize("suffix", ["", ".gz", ".xz"])
def test_saved_with_its_sidecar(fake, tmp_path, monkeypatch, suffix):
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "8")
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:64")
    path = tmp_path / f"run.pickle{suffix}"
    with neutracer.record(max_entries=10) as recording:
        fake.allocate()
        recording.step = 11
        assert len(recording.save(path).events) == 3
    assert len(neutracer.load(path).events) == 3
    facts = json.loads((tmp_path / f"run.pickle{suffix}.json").read_text())
    assert facts["schema"] == "neutracer.sidecar/1"
    assert (facts["rank"], facts["world_size"], facts["step"]) == (3, 8, 11)
    assert facts["torch"] == "2.11.0"
    assert facts["settings"] == {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64"}
    assert facts["recording"]["max_entries"] == 10
    assert facts["devices"]["0"]["memory_stats"] == fake.stats()
    said = facts["devices"]["0"]
    assert (said["total_bytes"], said["process_fraction"]) == (fake.total, 1.0)
    assert said["free_bytes"] < said["total_bytes"]
    assert said["other_bytes"] == said["total_bytes"] - said["free_bytes"]
    assert sorted(os.listdir(tmp_path)) == [path.name, f"{path.name}.json"]
    recording.save(path, step="last")
    assert json.loads((tmp_path / f"run.pickle{suffix}.json").read_text())["step"] == "last"


@pytest.mark.parametrize("late", [False, True])
def test_rank_is_known_after_the_group(fake, tmp_path, monkeypatch, late):
    group = SimpleNamespace(
        is_available=lambda: True,
        is_initialized=lambda: True,
        get_rank=lambda: 3,
        get_world_size=lambda: 8,
    )
    monkeypatch.setattr(sidecar, "_of_group", {})
    monkeypatch.setitem(sys.modules, "torch.distributed", group)
    fake.initialised = not late
    with neutracer.record(path=tmp_path / "run-{rank}.pickle"):
        fake.init()
        group.is_initialized = lambda: False
    facts = json.loads((tmp_path / "run-3.pickle.json").read_text())
    assert (facts["rank"], facts["world_size"]) == (3, 8)


def test_failed_saving_keeps_the_programs_error(fake, tmp_path, caplog):
    nowhere = tmp_path / "missing" / "run.pickle"
    with pytest.raises(ZeroDivisionError), neutracer.record(path=nowhere):
        raise ZeroDivisionError
    assert "could not be saved" in caplog.text
    with pytest.raises(OSError, match="missing"), neutracer.record(path=nowhere):
        pass
    assert not fake.enabled


@pytest.mark.parametrize(
    "options",
    [{"max_entries": 0}, {"stacks": "cpp"}, {"context": "some"}],
)
def test_wrong_arguments_are_refused(fake, options):
    with pytest.raises(ValueError, match=next(iter(options))):
        neutracer.record(**options)


def test_older_torch_lacks_options(fake, monkeypatch):
    def older(enabled="all", context="all", stacks="all", max_entries=1, device=None):
        fake.enabled = enabled is not None

    monkeypatch.setattr(fake.module.cuda.memory, "_record_memory_history", older)
    with pytest.raises(UnavailableError, match="skip_actions in torch"):
        neutracer.record(skip_actions=["snapshot"])
    with pytest.raises(UnavailableError, match="record_pinned_host_memory in torch"):
        neutracer.record(pinned=True)
    with neutracer.record():
        assert fake.enabled


def test_torch_without_cuda_is_told(fake):
    fake.module.version.cuda = None
    with pytest.raises(UnavailableError, match="built for CUDA"):
        neutracer.record()


def test_threads_share_one_history(fake):
    barrier = threading.Barrier(4)

    def work():
        for _ in range(30):
            barrier.wait()
            with neutracer.record(max_entries=9):
                assert fake.enabled

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not fake.enabled


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_child_of_a_fork_touches_nothing(fake):
    with neutracer.record() as recording:
        before = len(fake.calls)
        child = os.fork()
        if child == 0:
            recording.stop()
            fine = not recording.active and len(fake.calls) == before
            os._exit(0 if fine and history.HISTORY.in_force() is None else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert recording.active


@pytest.fixture
def cpu():
    """A real torch for the CPU."""
    torch = pytest.importorskip("torch")
    if not history.is_for_cpu(torch) or history.hooks.why_none():
        pytest.skip("needs hooks on a torch for the CPU")
    return torch


def test_real_torch_without_cuda_says_one_sentence(cpu):
    with pytest.raises(UnavailableError) as caught:
        neutracer.snapshot()
    assert str(caught.value) == (
        "CUDA in this build of torch is not available: install a torch built for CUDA, "
        "or predict the memory with 'neutracer rehearse'"
    )


def test_torch_for_the_cpu_is_recorded_through_the_hooks(cpu, tmp_path):
    before = history.hooks.state()
    with neutracer.record(100) as recording:
        kept = cpu.zeros(3 << 18)
        with neutracer.record(100, path=tmp_path / "inner.pickle"):
            other = cpu.zeros(5 << 18)
        assert recording.active
    sizes = [row.size for row in recording.snapshot().timeline().allocations]
    assert sizes == [3 << 20, 5 << 20] == [kept.nbytes, other.nbytes]
    assert neutracer.load(tmp_path / "inner.pickle").is_cpu
    recording.step = 7
    snap = recording.save(tmp_path / "outer.pickle")
    facts = json.loads((tmp_path / "outer.pickle.json").read_text())
    assert (facts["recording"]["recorder"], facts["devices"]) == ("hooks", {})
    assert snap.timeline().allocations[0].stack
    after = history.hooks.state()
    assert not after.active
    assert after.threads == (0 if before is None else before.threads)


def test_full_ring_on_the_cpu_is_told(cpu):
    recording = neutracer.record(10).start()
    # The ring of an earlier recording is longer.
    for _ in range(history.hooks.state().events):
        cpu.zeros(9)
    with pytest.warns(HistoryWarning, match="wrapped"):
        recording.stop()


def test_recording_on_the_cpu_refuses_what_hooks_lack(cpu):
    for options in ({"stacks": "all"}, {"pinned": True}, {"annotations": True}):
        with pytest.raises(UnavailableError, match="on the CPU"):
            neutracer.record(**options)


def test_decorator_without_brackets_is_told():
    with pytest.raises(TypeError, match=r"@neutracer\.record\(\)"):
        neutracer.record(lambda: None)
    with pytest.raises(TypeError, match="a number of events, not float"):
        neutracer.record(max_entries=1e5)
