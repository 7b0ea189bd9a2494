#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the targets of the folder that this lies in, on all cores for so many seconds in all.

Most of the time goes to the programs without sanitizers, most of the rest to those with
them, which begin with what the first found; the end is for cutting down the corpora, and
what does not come to its end by then is left out. Needs Python alone.

Example:
    $ ./run 500 results                  # all cores; writes results/table.txt and the rest
    $ ./run 60 results --cores 1 --target fuzz_ring

In the results are a line for each target (table.txt, table.json), the inputs that failed
(failed/), the ends of their logs (logs/), and the corpora with what was found, cut down to
what reaches the same code (corpora.tar.gz).
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO

HERE = Path(__file__).resolve().parent

#: The parts of the time that go to the programs without sanitizers, and to those with them.
FAST_SHARE, CHECKED_SHARE = 0.65, 0.22

#: A program that goes on for so many seconds beyond its time is interrupted, as one that
#: still reads a large corpus, and then killed.
MOST_BEYOND = 2.0

#: A program that ends with a failure is begun again so often.
MOST_FAILURES = 20

#: An archive of corpora above this many bytes is not kept.
MOST_ARCHIVE = 20_000_000


@dataclass
class Outcome:
    """What became of one target, over all its processes."""

    executions: int = 0  # without sanitizers
    checked: int = 0  # with them
    core_seconds: float = 0.0
    checked_core_seconds: float = 0.0
    coverage: int = 0  # edges
    features: int = 0
    edges: int = 0  # of the program
    corpus: int = 0
    failures: int = 0

    def add(self, other: Outcome) -> None:
        """Adds what another process came to."""
        self.executions += other.executions
        self.checked += other.checked
        self.core_seconds += other.core_seconds
        self.checked_core_seconds += other.checked_core_seconds
        self.coverage = max(self.coverage, other.coverage)
        self.features = max(self.features, other.features)
        self.edges = max(self.edges, other.edges)
        self.failures += other.failures

    def line(self, name: str) -> str:
        """The row of the table."""
        fast = self.executions / max(1e-9, self.core_seconds)
        checked = self.checked / max(1e-9, self.checked_core_seconds)
        return (
            f"{name:<16}{self.executions:>15,}{fast:>12,.0f}{self.checked:>15,}{checked:>12,.0f}"
            f"{self.coverage:>8,}{self.edges:>8,}{self.features:>9,}{self.corpus:>8,}"
            f"{self.failures:>9}"
        )


HEADINGS = (
    f"{'target':<16}{'executions':>15}{'/s a core':>12}{'sanitized':>15}{'/s a core':>12}"
    f"{'cov':>8}{'of':>8}{'ft':>9}{'corpus':>8}{'crashes':>9}"
)


@dataclass
class Work:
    """One process of a target, for a stretch of time."""

    kind: str
    name: str
    seconds: float
    number: int
    units: Path
    out: Path
    options: list[str]

    def command(self, seconds: float) -> list[str]:
        """libFuzzer for so many seconds."""
        failed = self.out / "failed"
        return [
            *(str(HERE / self.kind / self.name), str(self.units), *self.options),
            *("-print_final_stats=1", "-detect_leaks=0", "-rss_limit_mb=4096", "-timeout=60"),
            *(f"-max_total_time={max(1, round(seconds))}", "-reload=10"),
            *(f"-use_counters={self.number % 2}", f"-artifact_prefix={failed}/{self.name}-"),
        ]


def read_log(text: str, outcome: Outcome, checked: bool, seconds: float) -> None:
    """Adds what one process wrote in its time."""
    counts = [int(count) for count in re.findall(r"^#(\d+)", text, re.MULTILINE)]
    final = re.findall(r"number_of_executed_units: (\d+)", text)
    count = int(final[-1]) if final else max(counts, default=0)
    if checked:
        # The sanitizers' own branches count as edges there.
        outcome.checked += count
        outcome.checked_core_seconds += seconds
        return
    outcome.executions += count
    outcome.core_seconds += seconds
    for coverage, features in re.findall(r"cov: (\d+) ft: (\d+)", text):
        outcome.coverage = max(outcome.coverage, int(coverage))
        outcome.features = max(outcome.features, int(features))
    edges = re.search(r"\((\d+) inline 8-bit counters\)", text)
    outcome.edges = int(edges[1]) if edges else outcome.edges


def forget_failed(work: Work) -> None:
    """Takes the inputs that failed out of the corpus, where each process would fail again."""
    for path in (work.out / "failed").glob(f"{work.name}-*"):
        (work.units / path.name.rpartition("-")[2]).unlink(missing_ok=True)


def run_until(command: list[str], end: float, log: BinaryIO) -> int:
    """Runs a program, and sees to it that it is over by then; what was interrupted is fine."""
    with subprocess.Popen(command, cwd=HERE, stdout=log, stderr=log) as process:
        try:
            return process.wait(max(0.0, end - time.monotonic()) + MOST_BEYOND)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)
        try:
            process.wait(MOST_BEYOND)
        except subprocess.TimeoutExpired:
            process.kill()
        return 0


def run_work(work: Work) -> Outcome:
    """Runs one process until its time is over; begins it again after a failure."""
    outcome = Outcome()
    end = time.monotonic() + work.seconds
    for turn in range(MOST_FAILURES):
        begin = time.monotonic()
        log = work.out / "logs" / f"{work.name}-{work.kind}-{work.number}-{turn}.log"
        with log.open("wb") as to:
            code = run_until(work.command(end - begin), end, to)
        text = log.read_text(encoding="utf-8", errors="replace")
        read_log(text, outcome, work.kind == "checked", time.monotonic() - begin)
        if code == 0:
            log.unlink()
            break
        outcome.failures += 1
        forget_failed(work)
        if end - time.monotonic() < 2:
            break
    return outcome


def run_phase(works: list[Work], outcomes: dict[str, Outcome], cores: int) -> None:
    """Runs so many processes at a time as there are cores."""
    with ThreadPoolExecutor(cores) as pool:
        for work, outcome in zip(works, pool.map(run_work, works), strict=True):
            outcomes[work.name].add(outcome)


def make_works(
    kind: str, seconds: float, cores: int, options: dict[str, list[str]], units: Path, out: Path
) -> list[Work]:
    """The cores dealt to the targets in turn, one at least each.

    Fewer cores than targets take them one after the other.
    """
    names = list(options)
    count = max(cores, len(names))
    turns = -(-count // cores)
    return [
        Work(
            kind,
            names[i % len(names)],
            seconds / turns,
            i,
            units / names[i % len(names)],
            out,
            options[names[i % len(names)]],
        )
        for i in range(count)
    ]


def merge(name: str, options: list[str], units: Path, into: Path, end: float) -> int:
    """Copies the fewest inputs that reach the same code; returns their number, 0 if there
    was no time."""
    into.mkdir(parents=True)
    command = [str(HERE / "fast" / name), "-merge=1", "-use_counters=0", *options, str(into)]
    # What is killed has not copied anything yet, or not all.
    with open(os.devnull, "wb") as nowhere:
        run_until([*command, str(units)], end, nowhere)
    return len(list(into.iterdir()))


def keep_corpora(merged: Path, out: Path) -> None:
    """Packs the corpora, if they are small enough to be carried."""
    archive = out / "corpora.tar.gz"
    with tarfile.open(archive, "w:gz") as to:
        to.add(merged, arcname="corpora")
    if archive.stat().st_size > MOST_ARCHIVE:
        archive.unlink()


def run(seconds: float, out: Path, cores: int, options: dict[str, list[str]]) -> bool:
    """Runs all; prints and writes the table.

    Returns:
        Whether every property held.
    """
    end = time.monotonic() + seconds - 2 * MOST_BEYOND
    for folder in ("failed", "logs"):
        (out / folder).mkdir(parents=True, exist_ok=True)
    outcomes = {name: Outcome() for name in options}
    with tempfile.TemporaryDirectory() as made:
        units, merged = Path(made) / "units", Path(made) / "merged"
        shutil.copytree(HERE / "corpus", units)
        for kind, share in (("fast", FAST_SHARE), ("checked", CHECKED_SHARE)):
            works = make_works(kind, seconds * share, cores, options, units, out)
            run_phase(works, outcomes, cores)
            print(write_table(outcomes, out), flush=True)
        with ThreadPoolExecutor(cores) as pool:
            counts = pool.map(
                lambda name: merge(name, options[name], units / name, merged / name, end), options
            )
            for outcome, count in zip(outcomes.values(), counts, strict=True):
                outcome.corpus = count
        keep_corpora(merged, out)
    print(write_table(outcomes, out))
    return not any(outcome.failures for outcome in outcomes.values())


def write_table(outcomes: dict[str, Outcome], out: Path) -> str:
    """Writes table.txt and table.json; returns the text."""
    lines = [HEADINGS, *(outcome.line(name) for name, outcome in outcomes.items())]
    both = sum(outcome.executions + outcome.checked for outcome in outcomes.values())
    lines.append(f"{both:,} executions in all")
    text = "\n".join(lines)
    (out / "table.txt").write_text(text + "\n", encoding="utf-8")
    data = {name: asdict(outcome) for name, outcome in outcomes.items()}
    (out / "table.json").write_text(json.dumps(data, indent=1), encoding="utf-8")
    return text


def main() -> int:
    """The command line."""
    options: dict[str, list[str]] = json.loads((HERE / "targets.json").read_text())
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("seconds", type=float)
    parser.add_argument("out", type=Path)
    parser.add_argument("--cores", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--target", action="append", choices=list(options), help="default: all")
    arguments = parser.parse_args()
    names = arguments.target or list(options)
    chosen = {name: options[name] for name in names}
    held = run(arguments.seconds, arguments.out.resolve(), arguments.cores, chosen)
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
