# SPDX-License-Identifier: Apache-2.0
"""What programs really take: each one run on this GPU, with PyTorch's recorder on.

    python tests/gpu/rehearsal/truth.py OUT                        the programs of programs.py
    python tests/gpu/rehearsal/truth.py OUT --programs FILE        those of another file
    python tests/gpu/rehearsal/truth.py OUT --only NAME[,NAME]     some of them
    python tests/gpu/rehearsal/truth.py OUT --label                each also with its operators

Each program runs in a process of its own, recorded from before the first allocation, and makes
three steps. In OUT, for each:

    NAME.snapshot.pickle.gz     PyTorch's snapshot at the end
    NAME.json                   {"program", "steps": [{"peak_allocated_bytes",
                                "peak_reserved_bytes", "peak_requested_bytes"}, ...],
                                "built": the same after building, "torch", "cuda", "cudnn",
                                "card", "capability", "packages", "seconds"}, or {"program",
                                "error"}; "packages" are the versions of those that build
                                models: another one may build them otherwise
    NAME.labelled.pickle.gz     with --label: a second run, where an allocation's
                                `user_metadata` is the operator that made it

The last line names the programs that failed. The exit code is 1 if one did.
"""

from __future__ import annotations

import argparse
import gzip
import importlib.util
import json
import pickle
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

STEPS = 3
AT_ONCE = 2
PACKAGES = ("transformers", "torchvision", "torch_geometric", "lightning", "mamba_ssm", "apex")
SECONDS = 150  # for one run of one program
HERE = Path(__file__).resolve().parent


def load(path: Path) -> dict[str, Callable[[], Callable[[], None]]]:
    """The programs of a file."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise SystemExit(f"{path} can't be imported")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    programs: dict[str, Callable[[], Callable[[], None]]] = module.PROGRAMS
    return programs


def peaks() -> dict[str, int]:
    import torch

    stats = torch.cuda.memory_stats()
    torch.cuda.reset_peak_memory_stats()
    return {
        "peak_allocated_bytes": stats["allocated_bytes.all.peak"],
        "peak_reserved_bytes": stats["reserved_bytes.all.peak"],
        "peak_requested_bytes": stats["requested_bytes.all.peak"],
    }


def versions() -> dict[str, str]:
    """Of the packages that a program has imported."""
    loaded = {name: sys.modules[name] for name in PACKAGES if name in sys.modules}
    return {name: str(getattr(module, "__version__", "")) for name, module in loaded.items()}


def labels() -> Any:
    """A mode that tells the recorder which operator is at work, in the thread that it is in."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    class Labels(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            before = torch.cuda.memory._get_memory_metadata()
            torch.cuda.memory._set_memory_metadata(str(func))
            try:
                return func(*args, **(kwargs or {}))
            finally:
                torch.cuda.memory._set_memory_metadata(before)

    return Labels()


def run(path: Path, name: str, out: Path, label: bool) -> None:
    import torch

    began = time.perf_counter()
    torch.manual_seed(0)
    torch.cuda.memory._record_memory_history(context="alloc", stacks="python")
    facts: dict[str, Any] = {"program": name, "torch": torch.__version__}
    maker = load(path)[name]
    mode = labels() if label else None
    if mode is not None:
        mode.__enter__()
    step = maker()
    torch.cuda.synchronize()
    facts["built"] = peaks()
    facts["steps"] = []
    for _ in range(STEPS):
        step()
        torch.cuda.synchronize()
        facts["steps"].append(peaks())
    if mode is not None:
        mode.__exit__(None, None, None)
    facts.update(
        cuda=torch.version.cuda,
        cudnn=torch.backends.cudnn.version(),
        card=torch.cuda.get_device_name(),
        capability=list(torch.cuda.get_device_capability()),
        packages=versions(),
        seconds=round(time.perf_counter() - began, 1),
    )
    dump = pickle.dumps(torch.cuda.memory._snapshot(), protocol=4)
    kind = "labelled" if label else "snapshot"
    (out / f"{name}.{kind}.pickle.gz").write_bytes(gzip.compress(dump, 6))
    if not label:
        (out / f"{name}.json").write_text(json.dumps(facts, indent=1))


def child(path: Path, name: str, out: Path, label: bool) -> None:
    try:
        run(path, name, out, label)
    except Exception as error:
        text = f"{type(error).__name__}: {error}"[:2000]
        traceback.print_exc()
        if not label:
            (out / f"{name}.json").write_text(json.dumps({"program": name, "error": text}))
        raise SystemExit(1) from None


def start(path: Path, name: str, out: Path, label: bool) -> str:
    """Run one program in a process of its own; a line on what came of it."""
    words = [sys.executable, str(Path(__file__).resolve()), str(out), "--programs", str(path)]
    words += ["--child", name, *(["--label"] if label else [])]
    began = time.perf_counter()
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=SECONDS)
        code, said = done.returncode, done.stderr
    except subprocess.TimeoutExpired:
        code, said = 124, f"over {SECONDS} s"
    took = time.perf_counter() - began
    kind = " (labelled)" if label else ""
    if code:
        last = (said.strip().splitlines() or ["no reason"])[-1]
        return f"FAILED {name}{kind}: {last[:300]}"
    return f"{name}{kind}: {took:.0f} s"


def main() -> int:
    parser = argparse.ArgumentParser(description="What programs really take on this GPU.")
    parser.add_argument("out", type=Path)
    parser.add_argument("--programs", type=Path, default=HERE / "programs.py")
    parser.add_argument("--only", default="")
    parser.add_argument("--label", action="store_true")
    parser.add_argument("--child", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.programs.resolve()
    if options.child:
        child(path, options.child, options.out, options.label)
        return 0
    names = options.only.split(",") if options.only else list(load(path))
    runs = [
        (name, label) for label in ([False, True] if options.label else [False]) for name in names
    ]
    failed = []
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for line in pool.map(lambda one: start(path, one[0], options.out, one[1]), runs):
            print(line, flush=True)
            failed += [line] if line.startswith("FAILED") else []
    print(f"{len(runs) - len(failed)} of {len(runs)} runs went well")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
