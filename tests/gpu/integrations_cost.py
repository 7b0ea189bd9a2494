# SPDX-License-Identifier: Apache-2.0
"""What the callbacks and the pytest plugin cost on a GPU, and whether its baseline flakes.

Run it on a machine with a CUDA device: `python tests/gpu/integrations_cost.py [--out FILE]`.
It takes under two minutes, prints a line for each figure, and exits with 1 if a run of the
suite under its baseline failed.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

RUNS = 10
AT_ONCE = 3

CONFTEST = """
import os
import random
import pytest

def pytest_collection_modifyitems(items):
    random.Random(int(os.environ["ORDER"])).shuffle(items)
"""

#: 50 tests, of operators whose memory others' tests are known to flake with.
SUITE = """
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

CUDA = "cuda"

@pytest.fixture
def model():
    return nn.Sequential(*(nn.Linear(256, 256) for _ in range(6))).to(CUDA)

@pytest.mark.parametrize("size", [64, 128, 256, 512, 1024])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_matmul(size, dtype):
    x = torch.randn(size, size, device=CUDA, dtype=dtype)
    assert (x @ x).isfinite().all()

@pytest.mark.parametrize("channels", [8, 16, 32, 64])
def test_convolution(channels):
    layer = nn.Conv2d(3, channels, 3, padding=1).to(CUDA)
    layer(torch.randn(4, 3, 64, 64, device=CUDA)).sum().backward()

@pytest.mark.parametrize("length", [64, 128, 256, 512])
@pytest.mark.parametrize("causal", [True, False])
def test_attention(length, causal):
    q = torch.randn(2, 4, length, 64, device=CUDA, dtype=torch.bfloat16, requires_grad=True)
    F.scaled_dot_product_attention(q, q, q, is_causal=causal).sum().backward()

@pytest.mark.parametrize("batch", [1, 8, 64, 512])
def test_training_step(model, batch):
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(3):
        model(torch.randn(batch, 256, device=CUDA)).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()

@pytest.mark.parametrize("batch", [8, 64, 512])
def test_checkpointing(model, batch):
    x = torch.randn(batch, 256, device=CUDA, requires_grad=True)
    checkpoint(model, x, use_reentrant=False).sum().backward()

@pytest.mark.parametrize("batch", [8, 64, 512])
def test_autocast(model, batch):
    with torch.autocast(CUDA, torch.bfloat16):
        model(torch.randn(batch, 256, device=CUDA)).sum().backward()

@pytest.mark.parametrize("length", [10, 100, 400])
def test_growing_cache(length):
    cache = torch.empty(1, 0, 256, device=CUDA)
    for _ in range(length):
        cache = torch.cat([cache, torch.randn(1, 1, 256, device=CUDA)], dim=1)

@pytest.mark.parametrize("count", [1, 10, 40])
def test_tensor_cycles(count):
    for _ in range(count):
        ring = [torch.zeros(1 << 18, device=CUDA)]
        ring.append(ring)

@pytest.mark.parametrize("rows", [100, 10_000, 100_000])
def test_embedding(rows):
    table = nn.Embedding(rows, 32, device=CUDA)
    table(torch.arange(100, device=CUDA)).sum().backward()

@pytest.mark.parametrize("size", [1_000, 100_000, 1_000_000])
def test_sort_and_index(size):
    x = torch.arange(size, device=CUDA).flip(0)
    assert x.sort().values[0] == 0
    assert (x > size // 2).nonzero().numel() == size - size // 2 - 1

@pytest.mark.parametrize("streams", [1, 2, 4])
def test_streams(streams):
    for _ in range(streams):
        with torch.cuda.stream(torch.cuda.Stream()):
            x = torch.randn(256, 256, device=CUDA)
            x @ x
    torch.cuda.synchronize()

@pytest.mark.limit_gpu_leaks("0 B")
@pytest.mark.parametrize("batch", [8, 64])
def test_gives_back(model, batch):
    model(torch.randn(batch, 256, device=CUDA)).sum().backward()

@pytest.mark.limit_gpu_memory("96 MB")  # the workspaces of cuBLAS are 66 MiB of it on Hopper
def test_in_its_limit(model):
    model(torch.randn(64, 256, device=CUDA)).sum().backward()
"""


class Results:
    """Figures by name, printed as they come."""

    def __init__(self) -> None:
        self.figures: dict[str, Any] = {}

    def say(self, name: str, value: Any, words: str) -> None:
        self.figures[name] = value
        print(f"{name}: {words}", flush=True)


def _microseconds(action: Callable[[], object], count: int = 2_000) -> float:
    """The median of 5 rounds, of one call."""
    rounds = []
    for _ in range(5):
        begin = time.perf_counter()
        for _ in range(count // 5):
            action()
        rounds.append((time.perf_counter() - begin) / (count // 5) * 1e6)
    return statistics.median(rounds)


def callbacks(results: Results) -> None:
    """What the bookkeeping of a step takes of the CPU, and what a step of 10 ms takes with it."""
    import torch

    import neutracer

    # As on a machine on which the hooks have been used once.
    subprocess.run([sys.executable, "-m", "neutracer", "setup", "hooks"], cwd=ROOT, check=True)
    torch.zeros(1, device="cuda")
    with tempfile.TemporaryDirectory() as folder:
        run = neutracer.training(folder, max_entries=0).start()

        def bookkeeping() -> None:
            run.begin_step()
            for name in ("forward", "backward", "optimizer"):
                run.enter(name)
                run.leave(name)
            run.end_step()

        spent = _microseconds(bookkeeping)
        share = spent / 10_000
        results.say("callback_us", spent, f"{spent:.1f} us a step, {share:.2%} of 10 ms")
        phases = _microseconds(lambda: neutracer.phase("x").__enter__().__exit__(None, None, None))
        results.say("phase_us", phases, f"{phases:.1f} us a phase")
        run.stop()
        _steps(results, folder)


def _steps(results: Results, folder: str) -> None:
    """Steps of some 10 ms, plain and watched in turns."""
    import torch

    import neutracer

    size = 2_048
    weights = [torch.randn(size, size, device="cuda", requires_grad=True) for _ in range(4)]
    optimizer = torch.optim.SGD(weights, lr=0.0)
    x = torch.randn(size, size, device="cuda")
    repeat = 1

    def forward() -> Any:
        y = x
        for _ in range(repeat):
            for weight in weights:
                y = (y @ weight).tanh()
        return y.sum()

    def plain() -> None:
        loss = forward()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    def timed(step: Callable[[], object], count: int) -> float:
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(count):
            step()
        torch.cuda.synchronize()
        return (time.perf_counter() - begin) / count * 1e3

    timed(plain, 5)
    while timed(plain, 10) < 9 and repeat < 64:
        repeat += 1
    for name, entries in (("without a history", 0), ("with its history", None)):
        run = neutracer.training(folder, max_entries=entries)

        def watched(run: Any = run) -> None:
            with run.step():
                with run.phase("forward"):
                    loss = forward()
                with run.phase("backward"):
                    loss.backward()
                with run.phase("optimizer"):
                    optimizer.step()
                    optimizer.zero_grad()

        pairs = []
        for _ in range(8):
            before = timed(plain, 25)
            with run:
                timed(watched, 3)
                after = timed(watched, 25)
            pairs.append((before, after))
        base = statistics.median(before for before, _ in pairs)
        cost = statistics.median(after / before - 1 for before, after in pairs)
        key = "step_" + name.replace(" ", "_")
        results.say(key, cost, f"{cost:+.2%} of a step of {base:.2f} ms, {name}")
    print(f"  {json.dumps(run.scalars)}")


def hugging_face(results: Results, folder: str) -> None:
    """A real Trainer with the callback: which figures it gives."""
    try:
        import transformers

        from neutracer.integrations.transformers import NeutracerCallback
    except ImportError as error:
        print(f"transformers is left out: {error}")
        return
    import torch

    config = transformers.GPT2Config(n_layer=2, n_head=4, n_embd=128, vocab_size=1000)
    model = transformers.GPT2LMHeadModel(config)
    rows = [{"input_ids": torch.arange(128), "labels": torch.arange(128)} for _ in range(64)]
    callback = NeutracerCallback(os.path.join(folder, "oom"), max_entries=0)
    arguments = transformers.TrainingArguments(
        output_dir=os.path.join(folder, "hf"),
        max_steps=24,
        per_device_train_batch_size=8,
        eval_strategy="steps",
        eval_steps=8,
        save_steps=8,
        report_to=[],
        disable_tqdm=True,
        logging_steps=1000,
    )
    transformers.Trainer(
        model, arguments, train_dataset=rows, eval_dataset=rows, callbacks=[callback]
    ).train()
    names = ("neutracer/forward/peak_bytes", "neutracer/backward/peak_bytes")
    there = all(callback.run.scalars.get(name, 0) > 0 for name in names)
    results.say("transformers", there, f"{transformers.__version__}: {callback.run.scalars}")
    print(f"  warned: {callback.run.warned}")


def _pytest(folder: Path, order: int, *arguments: str) -> tuple[int, str, float]:
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "ORDER": str(order),
    }
    begin = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
    )
    return done.returncode, done.stdout + done.stderr, time.perf_counter() - begin


def baseline(results: Results, folder: Path) -> None:
    """A suite under its baseline, each time in another order, several processes at once."""
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "test_suite.py").write_text(SUITE)
    plugin = ("-p", "neutracer.integrations.pytest_plugin")
    under = (*plugin, "--neutracer-baseline", "gpu.json")
    code, text, seconds = _pytest(folder, 0, *under)
    counted = re.search(r"(\d+) passed", text)
    results.say("suite", counted and int(counted[1]), f"{text.splitlines()[-1]}, {seconds:.0f} s")
    if code:
        print(text)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        runs = list(pool.map(lambda order: _pytest(folder, order, *under), range(1, RUNS + 1)))
    failures = [text for code, text, _ in runs if code]
    results.say("failed_runs", len(failures), f"{len(failures)} of {RUNS} runs failed")
    for text in failures:
        print(text[-3_000:])
    plain = "no:neutracer"
    spans = {
        "without": _spans(_pytest(folder, 0, "-p", plain, "--deselect", "x", "--durations=0")[1]),
        "with": _spans(_pytest(folder, 0, *under, "--durations=0")[1]),
    }
    for name, seconds in spans.items():
        results.say(f"tests_{name}", seconds, f"{seconds:.2f} s for the calls of all tests {name}")


def _spans(text: str) -> float:
    """What pytest says that the tests took, in seconds."""
    return sum(float(value) for value in re.findall(r"^([\d.]+)s call", text, re.M))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", help="where the figures go as JSON")
    arguments = parser.parse_args()
    results = Results()
    with tempfile.TemporaryDirectory() as folder:
        callbacks(results)
        hugging_face(results, folder)
        baseline(results, Path(folder))
    if arguments.out:
        Path(arguments.out).write_text(json.dumps(results.figures, indent=1))
    return 1 if results.figures["failed_runs"] or results.figures["suite"] != 50 else 0


if __name__ == "__main__":
    sys.exit(main())
