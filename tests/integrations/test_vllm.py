# SPDX-License-Identifier: Apache-2.0
"""vLLM: its phases mark themselves, its own measurement stays as it is, and each worker answers.

The first part has a worker of the same methods; the second is vLLM itself, on the CPU.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import fake_cuda
import pytest
from places import ROOT

import neutracer
from neutracer.budget import Budget, BudgetTerm
from neutracer.integrations import vllm as ours
from neutracer.monitor import phases as marking
from neutracer.recording import sidecar

MIB = 1 << 20
BASE = "vllm.v1.worker.worker_base"

# ---- A worker of the same methods --------------------------------------------------------


def worker_module(fake: fake_cuda.FakeTorch) -> ModuleType:
    """A module of vLLM's name, with a base class and a worker that sizes its cache as vLLM does."""

    class Runner:
        def capture_model(self) -> int:
            fake.hold(2 * MIB)
            return 2 * MIB

    class WorkerBase:
        def __init__(self) -> None:
            self.model_runner = Runner()

        def load_model(self) -> None:
            fake.hold(5 * MIB)

        def initialize_from_config(self, config: object) -> None:
            fake.hold(8 * MIB)

        def execute_model(self, batch: object = None) -> None:
            fake.allocate()

        def sleep(self, level: int = 1) -> None:
            fake.drop()

        def wake_up(self, tags: object = None) -> None:
            fake.hold(2 * MIB)

        def reload_weights(self, **changes: str) -> None:
            fake.allocate()

    class Worker(WorkerBase):
        def determine_available_memory(self) -> int:
            fake.module.cuda.reset_peak_memory_stats()
            before = fake.stats()["allocated_bytes.all.current"]
            fake.hold(3 * MIB)
            fake.drop()
            self.execute_model()
            self.peak_activation_memory = fake.stats()["allocated_bytes.all.peak"] - before
            return 20 * MIB - self.peak_activation_memory

        def compile_or_warm_up_model(self) -> None:
            self.execute_model()
            self.model_runner.capture_model()

        def sleep(self, level: int = 1) -> None:
            super().sleep(level)

    module = ModuleType(BASE)
    module.WorkerBase, module.Worker = WorkerBase, Worker  # type: ignore[attr-defined]
    return module


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[fake_cuda.FakeTorch]:
    made = fake_cuda.install(monkeypatch)
    made.real_times = True
    process = ours._Process()
    monkeypatch.setattr(ours, "_process", process)
    yield made
    for phase in list(process.open):
        process.end(phase)


def lived(worker: Any) -> int:
    """A worker's life with sleeps at both levels; returns the bytes of its cache."""
    worker.load_model()
    available = int(worker.determine_available_memory())
    worker.initialize_from_config(None)
    worker.compile_or_warm_up_model()
    for _ in range(3):
        worker.execute_model()
    # Ray's steps come on a thread of their own.
    thread = threading.Thread(target=worker.execute_model)
    thread.start()
    thread.join()
    worker.sleep(1)
    worker.wake_up()
    worker.execute_model()
    worker.sleep(level=2)
    worker.wake_up(tags=["weights"])
    worker.reload_weights(name="model", phase="first", owner="trainer", method="copy")
    worker.wake_up(["kv_cache"])
    worker.execute_model()
    return available


@pytest.fixture
def mark(fake: fake_cuda.FakeTorch, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    """The module of the workers after the plugin was called twice with a value of NEUTRACER."""

    def marked(asked: str) -> ModuleType:
        module = worker_module(fake)
        monkeypatch.setitem(sys.modules, BASE, module)
        monkeypatch.setenv("NEUTRACER", asked)
        ours.plugin()
        ours.plugin()
        return module

    return marked


def test_the_phases_mark_themselves(mark: Callable[[str], Any]) -> None:
    module = mark("1")
    with neutracer.record() as recording:
        lived(module.Worker())
        found = neutracer.phases(recording.snapshot())
    # All steps between two phases are one turn, and those of a warm-up none.
    names = "load profile KV warm-up capture serve sleep wake serve sleep wake sync wake serve"
    ended = [(name, True) for name in names.split()[:-1]]
    assert [(turn.phase, turn.has_ended) for turn in found.turns] == [*ended, ("serve", False)]
    assert [turn.left_bytes // MIB for turn in found.turns[:5]] == [5, 0, 8, 2, 2]
    assert ours._process.notes == []


def test_a_worker_that_has_left_its_group_keeps_its_rank(
    mark: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As vLLM's do before they write their last report."""
    group = SimpleNamespace(get_rank=lambda: 3, get_world_size=lambda: 4)
    group.is_available = group.is_initialized = lambda: True
    monkeypatch.setitem(sys.modules, "torch.distributed", group)
    monkeypatch.setattr(sidecar, "_of_group", {})
    lived(mark("1").Worker())
    group.is_initialized = lambda: False
    facts = sidecar.rank_facts()
    assert (facts["rank"], facts["world_size"]) == (3, 4)


def test_a_phase_without_its_method_is_one_sentence(
    mark: Callable[[str], Any], caplog: pytest.LogCaptureFixture
) -> None:
    module = mark("1")
    del module.WorkerBase.wake_up
    for _ in range(2):
        module.Worker().load_model()
    (text,) = [record.getMessage() for record in caplog.records]
    assert text == "Worker of this vLLM has no wake_up(): wake is not marked"
    assert ours._process.notes == [text]


def test_the_engines_own_measurement_stays_as_it_is(
    fake: fake_cuda.FakeTorch, mark: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    reset = mock.Mock(wraps=fake.module.cuda.reset_peak_memory_stats)
    monkeypatch.setattr(fake.module.cuda, "reset_peak_memory_stats", reset)
    plain = lived(worker_module(fake).Worker())
    while len(fake.held) > 1:
        fake.drop()
    with neutracer.record():
        assert lived(mark("run").Worker()) == plain == 17 * MIB
    # The engine's two, and no call of ours that empties the cache.
    assert reset.call_count == 2
    assert fake.done["empty_cache"] == 0


@pytest.mark.parametrize("broken", [(marking.Phase, "__enter__"), (ours, "_WORKER")])
def test_marks_that_fail_are_left_out_and_the_engine_goes_on(
    broken: tuple[object, str], mark: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    module = mark("1")
    monkeypatch.setattr(*broken, None)
    assert lived(module.Worker()) == 17 * MIB


def test_an_error_of_the_engine_ends_its_phase_and_is_the_engines(
    mark: Callable[[str], Any],
) -> None:
    worker = mark("1").Worker()
    with pytest.raises(TypeError, match="config"):
        worker.initialize_from_config()
    assert not ours._process.open
    assert not marking.RUNNING.phases


@pytest.mark.parametrize("missing", ["package", "module", "class"])
def test_another_release_without_workers_is_one_sentence(
    missing: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(ours, "_process", ours._Process())
    monkeypatch.setenv("NEUTRACER", "1")
    if missing == "class":
        monkeypatch.setitem(sys.modules, BASE, ModuleType(BASE))
    else:
        base = {"package": "json.v1.worker_base", "module": "json.worker_base"}[missing]
        monkeypatch.setattr(ours, "_BASE", base)
    ours.plugin()
    ours.plugin()
    (text,) = [record.getMessage() for record in caplog.records]
    assert text.startswith("this vLLM has no ")
    assert text.endswith(": no phases are marked")


@pytest.mark.parametrize("asked", ["", "0"])
def test_without_the_variable_nothing_is_marked(mark: Callable[[str], Any], asked: str) -> None:
    module = mark(asked)
    lived(module.Worker())
    assert not marking.MARKS._all
    assert not hasattr(module.Worker.load_model, "_neutracer")


def test_a_process_that_did_not_ask_loads_nothing_heavy() -> None:
    script = (
        "import sys, neutracer.integrations.vllm as ours\n"
        "ours.plugin()\n"
        "print(*sorted(n for n in sys.modules if n.startswith('neutracer')))\n"
    )
    kept = {name: value for name, value in os.environ.items() if name != "NEUTRACER"}
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**kept, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    ours_only = "neutracer.integrations.hosts neutracer.integrations.vllm"
    assert done.stdout == f"neutracer neutracer.integrations {ours_only}\n"


def test_what_vllm_counts_stands_beside_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ours, "_process", ours._Process())
    monkeypatch.setitem(
        sys.modules, "vllm.envs", SimpleNamespace(VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS=True)
    )
    worker = SimpleNamespace(
        model_runner=SimpleNamespace(
            model_memory_usage=4000 * MIB, _neutracer_capture_model=300 * MIB
        ),
        available_kv_cache_memory_bytes=9000 * MIB,
        peak_activation_memory=900 * MIB,
        cudagraph_memory_estimate=400 * MIB,
    )
    terms = {"weights": 8000, "KV cache": 8990, "activations' peak": 500, "graphs' pools": 300}
    rows = tuple(BudgetTerm(name, mib * MIB) for name, mib in terms.items())
    counts = ours._counts(worker, Budget(19000 * MIB, 17790 * MIB, rows))
    found = {
        row["term"]: (row["counted_bytes"] // MIB, row["found_bytes"] // MIB) for row in counts
    }
    assert found == {
        "weights": (4000, 8000),
        "KV cache": (9000, 8990),
        "activations' peak": (500, 500),
        "graphs' pools": (300, 300),
    }
    assert ours._difference(counts) == "the device has 4,000 MiB more of weights than vLLM counts"
    # Another release, without any of these.
    assert ours._counts(SimpleNamespace(), Budget(None, 0, ())) == []
    assert ours._notes([]) == ["this vLLM's worker has none of the figures that vLLM counts with"]


# ---- vLLM itself -------------------------------------------------------------------------

# A plugin of the tests' own: the worker's allocations are followed from its beginning.
FOLLOW = """
import multiprocessing
def begin():
    if "orker" in multiprocessing.current_process().name:
        import neutracer
        neutracer.live(400_000)
"""

ENGINE = """
import json, sys
from vllm import LLM, SamplingParams

def main():
    llm = LLM(
        "model", load_format="dummy", skip_tokenizer_init=True, enforce_eager=True,
        max_model_len=128, worker_extension_cls="neutracer.integrations.vllm.WorkerExtension",
    )
    def tokens():
        prompt = [{"prompt_token_ids": [1, 2, 3, 4]}]
        made = llm.generate(prompt, SamplingParams(max_tokens=4, detokenize=False), use_tqdm=False)
        return list(made[0].outputs[0].token_ids)
    out = {"tokens": tokens()}
    levels = [("sleep", 1), ("wake_up",), ("sleep", 2), ("wake_up", ["weights"])]
    for name, *args in levels:
        llm.collective_rpc(name, args=args)
    try:
        llm.collective_rpc("neutracer_snapshot", args=(__file__,))
    except Exception as error:
        out["error"] = str(error)
    tokens()
    for name in ("snapshot", "report", "budget"):
        out[name] = llm.collective_rpc(f"neutracer_{name}")
    print("OUT " + json.dumps(out))

if __name__ == "__main__":
    main()
"""

MODEL = """{
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 128,
    "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 4, "vocab_size": 512, "max_position_embeddings": 256
}"""

WITH_VLLM = pytest.mark.skipif(
    importlib.util.find_spec("vllm") is None, reason="needs vLLM: make test-vllm"
)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What an engine with one worker said; the entry points are those of an installed package."""
    folder = tmp_path_factory.mktemp("engine")
    package = folder / "site" / "neutracer_entry-0.dist-info"
    package.mkdir(parents=True)
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: neutracer-entry\nVersion: 0\n")
    (package / "entry_points.txt").write_text(
        "[vllm.general_plugins]\nfollow = follow:begin\n"
        "neutracer = neutracer.integrations.vllm:plugin\n"
    )
    (folder / "site" / "follow.py").write_text(FOLLOW)
    (folder / "model").mkdir()
    (folder / "model" / "config.json").write_text(MODEL)
    (folder / "engine.py").write_text(ENGINE)
    asked = {
        "NEUTRACER": "1",
        "PYTHONPATH": os.pathsep.join([str(folder / "site"), str(ROOT)]),
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_PLUGINS": "follow,neutracer",
        "HF_HUB_OFFLINE": "1",
    }
    done = subprocess.run(
        [sys.executable, "engine.py"],
        cwd=folder,
        env={**os.environ, **asked},
        capture_output=True,
        text=True,
        timeout=600,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("OUT ")]
    assert lines, done.stdout[-2000:] + done.stderr[-3000:]
    found: dict[str, Any] = json.loads(lines[0][4:])
    return found


@WITH_VLLM
def test_each_worker_writes_a_snapshot_with_its_phases(engine: dict[str, Any]) -> None:
    assert len(engine["tokens"]) == 4
    # A call that fails is an error of that call alone.
    assert "engine.py" in engine["error"]
    (path,) = engine["snapshot"]
    found = neutracer.phases(path)
    names = [turn.phase for turn in found.turns]
    assert names == [
        *("load", "profile", "KV", "warm-up", "serve"),
        *("sleep", "wake", "sleep", "wake", "serve"),
    ]
    (cache,) = found["KV"].survivors[:1]
    assert (cache.category, cache.bytes) == ("KV cache", 1 << 30)
    assert "kv_cache" in cache.owner
    assert "parameter" in {each.category for each in found["load"].survivors}


@WITH_VLLM
def test_each_worker_reports_its_budget_beside_vllms_counts(engine: dict[str, Any]) -> None:
    (budget,) = engine["budget"]
    print(budget, *engine["report"], sep="\n")
    assert budget["terms"]["KV cache"] == 1 << 30
    assert 0 < budget["terms"]["weights"] < 4 * MIB
    assert sum(budget["terms"].values()) == budget["reserved_bytes"]
    rows = {row["term"]: row for row in budget["vllm"]}
    assert rows["KV cache"]["counted_bytes"] == rows["KV cache"]["found_bytes"] == 1 << 30
    assert budget["notes"] == []
    (report,) = engine["report"]
    assert "what vLLM counts" in report
    assert "What KV made and left" in report
