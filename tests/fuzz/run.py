# SPDX-License-Identifier: Apache-2.0
"""Builds the fuzz targets with AddressSanitizer and UndefinedBehaviorSanitizer, and runs them.

Example:
    $ python tests/fuzz/run.py --seconds 60
    $ python tests/fuzz/run.py --executions 50000000 --target fuzz_snapshot
    $ python tests/fuzz/run.py --replay         # no libFuzzer: the corpus, once
    $ python tests/fuzz/run.py --keep           # what is new goes into the corpus

Every target fuzz_<name>.c holds one property, and all of them take a snapshot's bytes,
so they share the corpus: `corpus/seeds` (from make_seeds.py), `corpus/fixed` (what broke
a property once) and `corpus/found` (what reached new code, kept by --keep). A run works
on copies under build/fuzz.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
CORPUS = HERE / "corpus"
DICTIONARY = HERE / "snapshot.dict"
BUILD = ROOT / "build" / "fuzz"

FLAGS = ["-std=c11", "-g", "-DNT_DEBUG", "-fno-omit-frame-pointer", "-Wall", "-Wextra"]
SANITIZERS = ["-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"]
# Coverage alone: to look at every comparison takes half of a run's time, and the
# dictionary and nt_mutate.c know the values that matter.
FOLLOWED = ["-fsanitize=fuzzer-no-link", "-fno-sanitize-coverage=trace-cmp,trace-div,trace-gep"]
INCLUDES = [f"-I{ROOT / folder}" for folder in ("csrc/core", "tests/c", "tests/fuzz")]

# Longer inputs only make every run slower: all of the format fits this.
MOST_BYTES = 2560

# An input takes milliseconds; by the clock it also takes what else the machine does.
MOST_SECONDS_AN_INPUT = 300


def targets() -> list[str]:
    """The targets' names."""
    return sorted(path.stem for path in HERE.glob("fuzz_*.c"))


def compile_objects(compiler: str, flags: dict[Path, list[str]], folder: Path) -> dict[Path, str]:
    """Compiles each source with its flags, as many at once as there are cores."""
    folder.mkdir(parents=True, exist_ok=True)

    def compile_one(source: Path) -> str:
        made = str(folder / f"{source.stem}.o")
        command = [compiler, *FLAGS, *flags[source], *INCLUDES, "-c", str(source), "-o", made]
        subprocess.run(command, check=True)
        return made

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return dict(zip(flags, pool.map(compile_one, flags), strict=True))


def build(names: list[str], compiler: str, *, standalone: bool, sanitize: bool = True) -> Path:
    """Builds the targets.

    Args:
        names: Which ones.
        compiler: clang, or with `standalone` any C11 compiler.
        standalone: With standalone_main.c in place of libFuzzer.
        sanitize: With the sanitizers; without them nothing is optimised either.

    Returns:
        The folder with one program a target.
    """
    kind = "standalone" if sanitize else "plain"
    folder = BUILD / (kind if standalone else "libfuzzer")
    flags = ["-O2", *SANITIZERS] if sanitize else ["-O0"]
    core = sorted(ROOT.glob("csrc/core/*/*.c"))
    shared = [ROOT / "tests/c/nt_same.c", HERE / "nt_fuzz.c", HERE / "nt_fuzz_heap.c"]
    shared.append(HERE / ("standalone_main.c" if standalone else "nt_mutate.c"))
    mains = {name: HERE / f"{name}.c" for name in names}
    # Coverage is that of the core: what the targets do themselves leads nowhere.
    followed = [] if standalone else FOLLOWED
    made = compile_objects(
        compiler,
        {
            path: flags + (followed if path in core else [])
            for path in [*core, *shared, *mains.values()]
        },
        folder,
    )
    common = [made[path] for path in [*core, *shared]]
    link = flags + ([] if standalone else ["-fsanitize=fuzzer"])
    for name, main in mains.items():
        command = [compiler, *link, made[main], *common, "-o", str(folder / name)]
        subprocess.run(command, check=True)
    return folder


@dataclass
class Outcome:
    """What one target's run came to."""

    executions: int = 0
    rates: list[float] = field(default_factory=list)
    coverage: int = 0
    last_new: float = 0.0
    failed: bool = False

    def line(self, name: str) -> str:
        """The row of the table."""
        rate = sum(self.rates) / max(1, len(self.rates))
        return (
            f"{name:<16}{self.executions:>12,}{rate:>14,.0f}{self.coverage:>10,}"
            f"   at {self.last_new:.0%} of the run{'  FAILED' if self.failed else ''}"
        )


HEADINGS = (
    f"{'target':<16}{'executions':>12}{'/s a worker':>14}{'coverage':>10}   last new coverage"
)


def worker_command(
    program: Path, units: Path, seconds: float | None, executions: int | None, number: int
) -> list[str]:
    """The command of one of a target's processes, which share the folder `units`.

    Every other process also keeps what reaches a place more often than before: larger
    inputs, and a third of the speed.
    """
    command = [str(program), str(units), str(CORPUS), f"-dict={DICTIONARY}", "-reload=5"]
    command += [f"-max_len={MOST_BYTES}", f"-timeout={MOST_SECONDS_AN_INPUT}"]
    command += ["-print_final_stats=1", f"-seed={int(time.time()) + number}"]
    command.append(f"-use_counters={number % 2}")
    command.append(f"-artifact_prefix={BUILD / 'failed'}/{program.name}-")
    if seconds is not None:
        command.append(f"-max_total_time={max(1, round(seconds))}")
    if executions is not None:
        command.append(f"-runs={executions}")
    return command


def read_log(log: Path, seconds: float, outcome: Outcome) -> None:
    """Adds what one process wrote in its time to the outcome."""
    text = log.read_text(encoding="utf-8", errors="replace")
    found = re.search(r"stat::number_of_executed_units:\s+(\d+)", text)
    executions = int(found[1]) if found else 0
    outcome.executions += executions
    outcome.rates.append(executions / seconds)
    best, last = 0, 0
    for at, coverage in re.findall(r"^#(\d+)\s+\w+\s+cov: (\d+)", text, re.MULTILINE):
        if int(coverage) > best:
            best, last = int(coverage), int(at)
    outcome.coverage = max(outcome.coverage, best)
    outcome.last_new = max(outcome.last_new, last / max(1, executions))


def run_target(
    program: Path, seconds: float | None, executions: int | None, workers: int
) -> Outcome:
    """Runs one target in so many processes until its time or its executions are over."""
    units = BUILD / "units" / program.name
    units.mkdir(parents=True, exist_ok=True)
    (BUILD / "failed").mkdir(exist_ok=True)
    share = None if executions is None else -(-executions // workers)
    begin = time.monotonic()
    running = []
    for number in range(workers):
        log = BUILD / f"{program.name}-{number}.log"
        with log.open("wb") as out:
            command = worker_command(program, units, seconds, share, number)
            running.append((subprocess.Popen(command, stdout=out, stderr=out), log))
    outcome = Outcome()
    for process, log in running:
        outcome.failed |= process.wait() != 0
        read_log(log, time.monotonic() - begin, outcome)
        if process.returncode != 0:
            sys.stderr.write(log.read_text(encoding="utf-8", errors="replace")[-4000:])
    return outcome


def fuzz(names: list[str], seconds: float | None, executions: int | None, workers: int) -> bool:
    """Runs the targets one after the other; prints a line for each.

    Returns:
        Whether every property held.
    """
    folder = build(names, os.environ.get("CLANG", "clang"), standalone=False)
    held = True
    print(HEADINGS, flush=True)
    for name in names:
        share = None if seconds is None else seconds / len(names)
        outcome = run_target(folder / name, share, executions, workers)
        held &= not outcome.failed
        print(outcome.line(name), flush=True)
    if not held:
        print(f"inputs that break a property: {BUILD / 'failed'}")
    return held


def replay(names: list[str], *, sanitize: bool) -> bool:
    """Runs the corpus through every target once, built with $CC (cc)."""
    compiler = os.environ.get("CC", "cc")
    folder = build(names, compiler, standalone=True, sanitize=sanitize)
    files = sorted(str(path) for path in CORPUS.rglob("*") if path.is_file())
    done = [subprocess.run([str(folder / name), *files], check=False) for name in names]
    return all(process.returncode == 0 for process in done)


def keep(names: list[str]) -> None:
    """Puts what the runs found into corpus/found: the fewest inputs that reach the same code."""
    folder = build(names, os.environ.get("CLANG", "clang"), standalone=False)
    found = CORPUS / "found"
    merged = BUILD / "merged"
    shutil.rmtree(merged, ignore_errors=True)
    for name in names:
        # What an earlier target kept counts as well, so that the whole stays small.
        made = merged / name
        made.mkdir(parents=True)
        sources = [str(CORPUS / "seeds"), str(CORPUS / "fixed")]
        sources += [*map(str, merged.iterdir()), str(found)]
        sources.append(str(BUILD / "units" / name))
        # How often a place is reached does not count: one input that gets there will do.
        command = [str(folder / name), "-merge=1", "-use_counters=0", str(made)]
        command.append(f"-max_len={MOST_BYTES}")
        subprocess.run(
            [*command, *(path for path in sources if Path(path).is_dir())],
            check=True,
            stderr=subprocess.DEVNULL,
        )
    shutil.rmtree(found, ignore_errors=True)
    kept = {path.read_bytes() for path in CORPUS.rglob("*") if path.is_file()}
    found.mkdir()
    for path in merged.rglob("*"):
        if path.is_file() and path.read_bytes() not in kept:
            shutil.copy(path, found / path.name)
    size = sum(path.stat().st_size for path in CORPUS.rglob("*") if path.is_file())
    print(f"{len(list(found.iterdir()))} inputs found; the corpus is {size:,} bytes")


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, help="for all targets together")
    parser.add_argument("--executions", type=int, help="for each target, all workers together")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--target", action="append", choices=targets(), help="default: all")
    parser.add_argument("--replay", action="store_true", help="run the corpus once, with $CC")
    parser.add_argument("--plain", action="store_true", help="with --replay: no sanitizers")
    parser.add_argument("--keep", action="store_true", help="put what was found into the corpus")
    arguments = parser.parse_args()
    names = arguments.target or targets()
    if arguments.replay:
        return 0 if replay(names, sanitize=not arguments.plain) else 1
    if arguments.keep:
        keep(names)
        return 0
    seconds = arguments.seconds
    if seconds is None and arguments.executions is None:
        seconds = 60.0
    return 0 if fuzz(names, seconds, arguments.executions, arguments.workers) else 1


if __name__ == "__main__":
    sys.exit(main())
