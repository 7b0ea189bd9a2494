# SPDX-License-Identifier: Apache-2.0
"""Features of training programs, plain and under each watcher: the same results, bit for bit.

usage: python table.py [--device cuda] [--processes 12] [--quick] [--endings PROGRAM ...]
                       [--seconds 520] [--json FILE]

Every feature is run without us, twice, and then under each watcher alone and under all of
them; so are programs that fail, whose standard output, standard error and exit code are
compared. What differs is said below the table, and the exit code is then 1. A process that
dies or hangs is begun again behind the feature that it was in. What differs is run eight
times more without us: a program that comes to different things by itself tells nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
sys.path.append(str(ROOT / "tests" / "helpers"))

# Seconds for one feature or one failing program, and for all.
_FEATURE_S = 100.0
_ALL_S = 520.0

# Times that what differs is run without us, before it is called ours: max-autotune takes what was
# fastest at that moment, and another kernel may come to other last bits.
_RERUNS = 8

_ALL = "record_modules+watch_oom+live+cycles+monitor+attribution"

#: Watchers by device: what the table calls them, and what `child.py` is given; "run" is the
#: command, with its options.
WATCHERS = {
    "cuda": {
        "run": "run --recorder hooks",
        "run pytorch": "run --recorder pytorch",
        "run modules": "run --modules",
        "record": "record",
        "record modules": "record_modules",
        "watch_oom": "watch_oom",
        "live": "live",
        "cycles": "cycles",
        "monitor": "monitor",
        "attribution": "attribution",
        "all": _ALL,
    },
    "cpu": {
        "run": "run",
        "live": "live",
        "cycles": "cycles",
        "monitor": "monitor",
        "all": "live+cycles+monitor",
    },
}

#: Of these `--quick` runs some.
QUICK_WATCHERS = ("run", "all")
QUICK_ENDINGS = ("uncaught_in_backward", "interrupt_by_signal", "at_exit", "error_in_thread")

#: Known to end programs: shown, and not counted as ours.
SHOWN_ONLY = {"cuda": {"record all": "record_all"}, "cpu": {}}


# Runs the script or module that is its first word, in a process that has torch.
_SCRIPT = """
import os, runpy, sys
del sys.argv[0]
if sys.argv[0] == "neutracer":
    runpy.run_module("neutracer", run_name="__main__", alter_sys=True)
else:
    sys.path.insert(0, os.path.dirname(sys.argv[0]))
    runpy.run_path(sys.argv[0], run_name="__main__")
"""

# Exit code, standard output and standard error.
Ending = tuple[int, str, str]


@dataclass
class Column:
    """What the features came to under one watcher; of "plain", which are not steady too."""

    outcomes: dict[str, str] = field(default_factory=dict)
    endings: dict[str, Ending] = field(default_factory=dict)
    unsteady: set[str] = field(default_factory=set)


class Runs:
    """All runs, and how long they may take.

    Args:
        device: "cuda" or "cpu".
        folder: For their files.
        seconds: For all of them.
        imported: A `forked.Imported` that has torch, whose forks they are, one after the other;
            but features under the command "run", which see the import itself.
    """

    def __init__(self, device: str, folder: Path, seconds: float, imported: Any) -> None:
        self.device = device
        self.folder = folder
        self.end = time.monotonic() + seconds
        # Another neutracer than this tree's is one that the caller named.
        path = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), str(ROOT))))
        self.variables = {
            "PYTHONPATH": path,
            "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
            "HF_HUB_OFFLINE": "1",
            "OMP_NUM_THREADS": "1",
        }
        self.environment = {**os.environ, **self.variables}
        self.lock = threading.Lock()
        self.imported = imported

    def build(self) -> None:
        """Compile the hooks, so that no feature waits for that; where they can't be had the
        watchers do without, or say so."""
        command = [sys.executable, "-m", "neutracer", "setup", "hooks"]
        subprocess.run(command, env=self.environment, capture_output=True, timeout=_ALL_S / 2)

    def features(self, number: int, how: str, names: Sequence[str]) -> dict[str, str]:
        """What features come to; one that kills its process has how that ended."""
        outcomes: dict[str, str] = {}
        left = list(names)
        while left and time.monotonic() < self.end:
            began = self._some(f"{number}-{len(left)}", how, left, outcomes)
            done = [name for name in left if name in outcomes]
            if len(done) == len(left):
                break
            if began is None:
                outcomes.update(dict.fromkeys([n for n in left if n not in outcomes], "no start"))
                break
            left = [name for name in left if name not in outcomes]
        return outcomes

    def _some(self, stem: str, how: str, names: list[str], out: dict[str, str]) -> str | None:
        """Run what comes until the process ends; the feature that was begun last."""
        path = self.folder / f"{stem}.jsonl"
        if self.imported is not None and not how.startswith("run"):
            code = self._forked(str(HERE / "child.py"), self.device, str(path), how, *names)[0]
            began = self._read(path, out)
            if began is not None and began not in out:
                out[began] = f"ended the process: {code}"
            return began
        log = (self.folder / f"{stem}.log").open("w")
        command = self._command(how, HERE / "child.py", stem)
        watchers = "none" if how.startswith("run") else how
        command += [self.device, str(path), watchers, *names]
        with subprocess.Popen(
            command, env=self.environment, cwd=self.folder, stdout=log, stderr=log
        ) as process:
            hung = self._wait(process, path)
            began = self._read(path, out)
            if began is not None and began not in out:
                out[began] = "hung" if hung else f"ended the process: {process.returncode}"
        log.close()
        return began

    def _wait(self, process: subprocess.Popen[bytes], path: Path) -> bool:
        """Wait for it; True if it was killed because nothing came any more."""
        seen, since = 0, time.monotonic()
        while True:
            try:
                process.wait(timeout=0.5)
                return False
            except subprocess.TimeoutExpired:
                size = path.stat().st_size if path.exists() else 0
                now = time.monotonic()
                if size != seen:
                    seen, since = size, now
                # The first feature comes after all imports.
                limit = _FEATURE_S if seen else 3 * _FEATURE_S
                if now - since > limit or now > self.end:
                    process.kill()
                    process.wait()
                    return True

    def _read(self, path: Path, out: dict[str, str]) -> str | None:
        began: str | None = None
        for line in path.read_text().splitlines() if path.exists() else ():
            told = json.loads(line)
            began = told.get("begin", began)
            if "end" in told:
                out[told["end"]] = told["outcome"]
        return began

    def _forked(self, script: str, *words: str) -> Ending:
        """How a script, or the module neutracer, ends in a fork."""
        assert self.imported is not None
        with self.lock:
            done = self.imported.run(_SCRIPT, script, *words, cwd=self.folder, **self.variables)
        return done.returncode, done.stdout, done.stderr

    def _command(self, how: str, script: Path, stem: str) -> list[str]:
        if not how.startswith("run"):
            return [sys.executable, str(script)]
        words = how.split()[1:]
        folder = str(self.folder / f"reports-{stem}")
        return [sys.executable, "-m", "neutracer", "run", "-o", folder, *words, str(script)]

    def ending(self, how: str, name: str) -> Ending | None:
        """Exit code, standard output and standard error of a program that fails; None where
        there was no time for it."""
        from programs import ENVIRONMENTS, ending

        if time.monotonic() > self.end:
            return None
        script = self.folder / f"{name}.py"
        script.write_text(ending(name, self.device))
        stem = f"{name}-{re.sub('[^a-z]', '-', how)}"
        if how.startswith("run"):
            command = self._command(how, script, stem)
        else:
            command = [sys.executable, str(HERE / "ending_child.py"), self.device, how]
            command.append(str(script))
        if self.imported is not None:
            code, output, error = self._forked(*command[2 if how.startswith("run") else 1 :])
            return code, output, plain_error(error, how)
        try:
            done = subprocess.run(
                command,
                env={**self.environment, **ENVIRONMENTS.get(name, {})},
                cwd=self.folder,
                capture_output=True,
                text=True,
                timeout=_FEATURE_S,
            )
        except subprocess.TimeoutExpired:
            return -999, "", "hung"
        return done.returncode, done.stdout, plain_error(done.stderr, how)


# What we say on standard error: the notes of exceptions, and the page at the end of `run`.
_NOTE = re.compile(r"^(neutracer: |  next step: |  report: ).*\n?", re.M)
# What AddressSanitizer says of the request that the hooks make to see it refused (TOO_MUCH in
# nt_torch_cpu.cpp), and of no other.
_REFUSED = re.compile(
    r"^==\d+==WARNING: AddressSanitizer failed to allocate 0x1000000000000000 bytes\n?", re.M
)
# The page begins with the program's name and how it ended; what is said at exit comes after it.
_PAGE = re.compile(
    r"^\S+\.py +exit code.*?(?=\n(?:Exception ignored|Fatal Python error|terminate called)|\Z)",
    re.M | re.S,
)
_CHILD = re.compile(
    r'^  File "(?:[^"]*ending_child\.py|<string>|<program>|<frozen runpy>)", line .*\n(    .*\n)*',
    re.M,
)
# Hooks on modules let a call take another way through PyTorch's own frames.
_MODULE = re.compile(r'^  File "[^"]*torch/nn/modules/module\.py", line .*\n(    .*\n)*', re.M)
_CHANGES = re.compile(r"\b0x[0-9a-f]+|^==\d+==|GPU \d has a total.*|Process \d+ .*", re.M)


def plain_error(text: str, how: str) -> str:
    """Standard error of a program without what is ours, or differs from run to run."""
    if how.startswith("run"):
        text = _PAGE.sub("", text)
    for ours in (_NOTE, _REFUSED, _CHILD, _MODULE, _CHANGES):
        text = ours.sub("", text)
    return text.strip()


def _order(title: str) -> int:
    """Which endings come first, where there is no time for all."""
    first = ("plain", "run", "all", "watch_oom", "run pytorch")
    return first.index(title) if title in first else len(first)


def compared(
    device: str,
    processes: int,
    quick: bool,
    only: Sequence[str] = (),
    seconds: float = _ALL_S,
    some: Sequence[str] = QUICK_ENDINGS,
    imported: Any = None,
) -> tuple[list[str], dict[str, Column]]:
    """The names of features, and by watcher what they came to; "plain" and "again" first."""
    from base import FEATURES
    from programs import CUDA_ENDINGS, ENDINGS, load_all

    load_all()
    names = [
        one.name
        for one in FEATURES.values()
        if (device == "cuda" or not one.cuda) and (one.quick or not quick)
    ]
    endings = [*ENDINGS, *(CUDA_ENDINGS if device == "cuda" else ())]
    how = {"plain": "none", "again": "none", **WATCHERS[device], **SHOWN_ONLY[device]}
    if quick:
        how = {title: how[title] for title in ("plain", *QUICK_WATCHERS)}
        endings = list(some)
    if only:
        how = {title: each for title, each in how.items() if title in ("plain", "again", *only)}
    columns = {title: Column() for title in how}
    with (
        tempfile.TemporaryDirectory() as folder,
        ThreadPoolExecutor(processes) as pool,
    ):
        runs = Runs(device, Path(folder), seconds, imported)
        runs.build()
        # What is compiled is compiled once, by the first.
        whole = [
            (title, pool.submit(runs.features, number, how[title], names))
            for number, title in enumerate(how)
        ]
        failing = [
            (title, name, pool.submit(runs.ending, how[title], name))
            for title in sorted(set(how) - {"again"}, key=_order)
            for name in endings
        ]
        for title, outcomes in whole:
            columns[title].outcomes = outcomes.result()
        for title, name, outcome in failing:
            ended = outcome.result()
            if ended is not None:
                columns[title].endings[name] = ended
        if not quick:
            suspects = {row[1] for row in differences(names, columns)}
            _find_unsteady(runs, pool, columns["plain"], suspects)
    return names, columns


def _find_unsteady(runs: Runs, pool: ThreadPoolExecutor, plain: Column, suspects: set[str]) -> None:
    """Run what differs without us again."""
    features = [name for name in sorted(suspects & plain.outcomes.keys()) for _ in range(_RERUNS)]
    again = [
        pool.submit(runs.features, 100 + number, "none", [name])
        for number, name in enumerate(features)
    ]
    endings = [
        (name, pool.submit(runs.ending, "none", name))
        for name in sorted(suspects & plain.endings.keys())
        for _ in range(_RERUNS)
    ]
    for outcomes in again:
        for name, outcome in outcomes.result().items():
            if outcome != plain.outcomes[name]:
                plain.unsteady.add(name)
    for name, ending in endings:
        if ending.result() not in (None, plain.endings[name]):
            plain.unsteady.add(name)


def differences(names: Sequence[str], columns: dict[str, Column]) -> list[tuple[str, str, str]]:
    """Watcher, feature and what differs."""
    plain = columns["plain"]
    again = columns.get("again", plain)
    found = []
    for title, column in columns.items():
        for name in names:
            expected, got = plain.outcomes.get(name), column.outcomes.get(name)
            unsteady = again.outcomes.get(name) != expected or name in plain.unsteady
            if got != expected and (title == "again" or not unsteady):
                found.append((title, name, f"{got}, and plain {expected}"))
        for name, theirs in column.endings.items():
            if name not in plain.endings or name in plain.unsteady:
                continue
            parts = zip(("exit code", "output", "error"), plain.endings[name], theirs, strict=True)
            for part, expected, got in parts:
                if got != expected:
                    found.append((title, name, f"{part}: {got!r}, and plain {expected!r}"))
    return found


def _skipped(columns: dict[str, Column]) -> int:
    """Endings that there was no time for."""
    plain = columns["plain"].endings
    return sum(
        len(plain) - len(column.endings) for title, column in columns.items() if title != "again"
    )


def printed(names: Sequence[str], columns: dict[str, Column], device: str) -> int:
    """Print the table and what differs; 1 if a watcher of ours changed something."""
    found = differences(names, columns)
    wrong = {(title, name) for title, name, _ in found}
    titles = [title for title in columns if title != "plain"]
    rows = [*names, *columns["plain"].endings]
    width = max(map(len, rows))
    print(" " * width, " ".join(titles))
    for name in rows:
        cells = []
        for title in titles:
            known = name in columns[title].outcomes or name in columns[title].endings
            mark = "DIFF" if (title, name) in wrong else "same" if known else "-"
            cells.append(mark.center(len(title)))
        print(name.ljust(width), " ".join(cells))
    for title, name, what in found:
        print(f"{title}: {name}: {what[:600]}")
    failed = [n for n, outcome in columns["plain"].outcomes.items() if ":" in outcome]
    for name in failed:
        print(f"plain: {name} comes to {columns['plain'].outcomes[name][:300]}")
    if columns["plain"].unsteady:
        print("not steady without us:", ", ".join(sorted(columns["plain"].unsteady)))
    if _skipped(columns):
        print(f"no time for {_skipped(columns)} of the endings, marked -")
    ours = [one for one in found if one[0] not in ("again", *SHOWN_ONLY[device])]
    print(
        f"{len(names)} features and {len(columns['plain'].endings)} endings under "
        f"{len(set(titles) - {'again', *SHOWN_ONLY[device]})} watchers: {len(ours)} differences"
    )
    return 1 if ours else 0


def main(words: Sequence[str], imported: Any = None) -> int:
    """Run all, with forks of a `forked.Imported` if one is given, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0] if __doc__ else None)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--processes", type=int, default=12)
    parser.add_argument("--quick", action="store_true", help="fewer features and watchers")
    parser.add_argument(
        "--endings", nargs="+", default=QUICK_ENDINGS, help="with --quick: programs that fail"
    )
    parser.add_argument("--seconds", type=float, default=_ALL_S, help="for all of it")
    parser.add_argument("--json", help="a file for all outcomes")
    parser.add_argument("--only", nargs="+", default=(), metavar="WATCHER", help="only these")
    options = parser.parse_args(words)
    begin = time.monotonic()
    names, columns = compared(
        options.device,
        options.processes,
        options.quick,
        options.only,
        options.seconds,
        options.endings,
        imported,
    )
    if options.json:
        plain: dict[str, Any] = {title: vars(column) for title, column in columns.items()}
        Path(options.json).write_text(json.dumps(plain, indent=1, default=sorted))
    code = printed(names, columns, options.device)
    print(f"{time.monotonic() - begin:.0f} s")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
