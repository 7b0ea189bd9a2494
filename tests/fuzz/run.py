# SPDX-License-Identifier: Apache-2.0
"""Builds the fuzz targets with AddressSanitizer and UndefinedBehaviorSanitizer, and runs them.

Example:
    $ python tests/fuzz/run.py --seconds 60
    $ python tests/fuzz/run.py --executions 50000000 --target fuzz_snapshot
    $ python tests/fuzz/run.py --replay         # no libFuzzer: the corpus, once
    $ python tests/fuzz/run.py --keep           # what is new goes into the corpus
    $ python tests/fuzz/run.py --add fixed sums_wrap.pickle    # these files go into a group

Every target fuzz_<name>.c holds one property; corpus.py says which inputs it begins with.
They are unpacked to build/fuzz/corpus, and what a run finds stays under build/fuzz; --keep puts
what reached new code into the corpus. An input that broke a property goes into the group
`fixed`, or into its target's own, under a name that says what it is.
pack.py takes the same targets to a machine without a compiler.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import corpus
from building import (
    BUILD,
    CORPUS,
    HERE,
    build,
    corpora,
    input_options,
    takes_snapshots,
    targets,
)

# An input takes milliseconds; by the clock it also takes what else the machine does.
MOST_SECONDS_AN_INPUT = 300


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
    command = [str(program), str(units), *map(str, corpora(program.name)), "-reload=5"]
    command += [*input_options(program.name), f"-timeout={MOST_SECONDS_AN_INPUT}"]
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
            running.append((subprocess.Popen(command, cwd=HERE, stdout=out, stderr=out), log))
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
    corpus.unpack(CORPUS)
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
    corpus.unpack(CORPUS)
    files = sorted(str(path) for path in CORPUS.glob("*/*"))
    done = [subprocess.run([str(folder / name), *files], check=False) for name in names]
    return all(process.returncode == 0 for process in done)


def merge(program: Path, sources: list[Path], into: Path) -> None:
    """Copies into a folder the fewest inputs that reach all that the sources' inputs reach."""
    into.mkdir(parents=True)
    # How often a place is reached does not count: one input that gets there will do.
    command = [str(program), "-merge=1", "-use_counters=0", *input_options(program.name)]
    command += [str(into), *(str(path) for path in sources if path.is_dir())]
    subprocess.run(command, cwd=HERE, check=True, stderr=subprocess.DEVNULL)


def replace(group: str, merged: list[Path]) -> None:
    """Makes a group of those merged inputs that no other group has."""
    others = [corpus.read(other) for other in corpus.groups() if other != group]
    kept = {data for inputs in others for data in inputs.values()}
    made = {path.name: path.read_bytes() for path in merged}
    corpus.write(group, {name: data for name, data in made.items() if data not in kept})


def keep(names: list[str]) -> None:
    """Puts what the runs found into the corpus: the fewest inputs that reach the same code."""
    folder = build(names, os.environ.get("CLANG", "clang"), standalone=False)
    corpus.unpack(CORPUS)
    merged = BUILD / "merged"
    shutil.rmtree(merged, ignore_errors=True)
    shared: list[Path] = []
    for name in names:
        units = BUILD / "units" / name
        if takes_snapshots(name):
            # What an earlier target kept counts as well, so that the whole stays small.
            sources = [CORPUS / "seeds", CORPUS / "fixed", *shared, CORPUS / "found", units]
            merge(folder / name, sources, merged / name)
            shared.append(merged / name)
        else:
            merge(folder / name, [*corpora(name), units], merged / name)
            replace(corpora(name)[0].name, list((merged / name).iterdir()))
    if shared:
        replace("found", [path for made in shared for path in made.iterdir()])
    print(corpus.summary())


def add(group: str, files: list[Path]) -> None:
    """Puts files into a group, in place of inputs of the same name."""
    corpus.write(group, corpus.read(group) | {path.name: path.read_bytes() for path in files})
    print(corpus.summary())


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
    parser.add_argument("--add", choices=corpus.groups(), help="put the files into this group")
    parser.add_argument("file", nargs="*", type=Path, help="with --add")
    arguments = parser.parse_args()
    if bool(arguments.add) != bool(arguments.file):
        parser.error("--add goes with the files to add")
    if arguments.add:
        add(arguments.add, arguments.file)
        return 0
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
