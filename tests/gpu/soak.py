# SPDX-License-Identifier: Apache-2.0
"""Trains with everything on that can stay on, and says every minute what that comes to.

    python tests/gpu/soak.py --minutes 8 [--every 60] [--device cuda] [--output FOLDER]

The job runs under `neutracer run`, with the cycle watch, the watch for out-of-memory errors, the
monitor and the exporter; it makes a cycle that keeps a tensor every hundred steps, and asks for a
live snapshot every minute (or `--every` so many seconds). From outside, the exporter is scraped
once a second, and a signal asks for a report every minute: of `neutracer run`, or with
`--device cpu`, of which it knows nothing, of the job itself. A line has the step's time, the
job's memory, threads and open files, and what was lost or went wrong since the line before.

It ends with 1 where something did: a scrape failed, a report did not come, a cycle was not told,
an event's stack found no room, threads or files or memory kept growing after the first third.
Memory may differ by 1 % and 8 MiB between the thirds. The slope of the memory after the first third
is the median of those between any two lines (Theil and Sen), with bounds within which it lies 19
times in 20 (Sen 1968).
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import math
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

#: Events that the recording keeps: it is full within a minute, and its memory is flat then.
MAX_ENTRIES = 50_000

#: Seconds without neutracer, for the step's time beside it.
PLAIN_SECONDS = 15.0

#: A report has to be there after so many seconds.
MOST_REPORT_SECONDS = 45.0

#: What asks for a report: `neutracer run` answers the one, the job the other.
REPORT_SIGNALS = {"cuda": signal.SIGUSR2, "cpu": signal.SIGUSR1}


# ---- the job ---------------------------------------------------------------------------


class Cycle:
    """Keeps a tensor until the collector runs."""

    made = 0

    def __init__(self, tensor: Any) -> None:
        self.me = self
        self.tensor = tensor
        Cycle.made += 1


def trainer(device: str) -> Any:
    """A step of a small transformer's training, whose batches differ in length."""
    import torch

    large = device == "cuda"
    width, layers, batch = (512, 6, 16) if large else (64, 2, 4)
    torch.manual_seed(0)
    if not large:
        # On the CPU what the calling thread allocates is recorded, and other work goes on.
        torch.set_num_threads(1)
    layer = torch.nn.TransformerEncoderLayer(width, 8, 4 * width, batch_first=True)
    model = torch.nn.TransformerEncoder(layer, layers, enable_nested_tensor=False).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def step(number: int) -> None:
        length = 32 + number * 37 % 97
        data = torch.randn(batch, length, width, device=device)
        loss = (model(data) - data).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if number % 100 == 0:
            Cycle(torch.empty(1 << 18, device=device))
        if large:
            torch.cuda.synchronize()

    return step


def say(**what: object) -> None:
    """A line for the other process."""
    print(json.dumps(what), flush=True)


def loop(device: str, seconds: float, every: float, watched: bool) -> None:
    """Steps until the time is over; a line at every stretch's end."""
    step = trainer(device)
    lost: list[str] = []
    times: list[float] = []
    begun = time.monotonic()
    told = 0
    number = 0
    while time.monotonic() - begun < seconds:
        before = time.perf_counter()
        step(number)
        times.append(time.perf_counter() - before)
        number += 1
        if time.monotonic() - begun >= every * (told + 1):
            told += 1
            tell(times, watched, lost)
    tell(times, watched, lost)


def tell(times: list[float], watched: bool, lost: list[str]) -> None:
    """The line of a minute; what was lost is what a live snapshot warns of."""
    events = 0
    if watched:
        import neutracer

        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            events = len(neutracer.live(max_events=MAX_ENTRIES).events)
        lost.extend(str(warning.message) for warning in caught)
    ordered = sorted(times) or [0.0]
    say(
        steps=len(times),
        median=statistics.median(ordered),
        tenth=ordered[len(ordered) * 9 // 10],
        events=events,
        lost=list(lost),
    )
    times.clear()
    lost.clear()


def report_here(output: Path) -> None:
    """A report of this process's memory on the CPU, as a signal asks for."""
    import neutracer

    text = str(neutracer.fragmentation_report(neutracer.live(max_events=MAX_ENTRIES)))
    part = output / f"{time.monotonic_ns()}.part"
    part.write_text(text, encoding="utf-8")
    part.rename(part.with_suffix(".txt"))


def job(device: str, seconds: float, every: float, output: str | None) -> None:
    """The training, with everything on where there is an output."""
    if output is None:
        loop(device, seconds, every, watched=False)
        return
    if device == "cpu":
        signal.signal(REPORT_SIGNALS["cpu"], lambda *_: report_here(Path(output)))
    import torch

    import neutracer

    warnings.simplefilter("ignore")
    found: list[neutracer.TensorCycle] = []
    # The hooks follow a device that is in use.
    torch.zeros(1, device=device)
    with contextlib.ExitStack() as on:
        on.enter_context(
            neutracer.warn_tensor_cycles(device, once_per_signature=False, callback=found.append)
        )
        neutracer.live(max_events=MAX_ENTRIES)
        if device == "cuda":
            on.enter_context(neutracer.watch_oom(output, max_entries=MAX_ENTRIES))
        monitor = on.enter_context(neutracer.MemoryMonitor(0.1))
        server = on.enter_context(neutracer.serve_metrics(monitor, port=0, layout_interval=5.0))
        say(url=server.url, pid=os.getpid())
        loop(device, seconds, every, watched=True)
        gc.collect()
        say(cycles=sum(cycle.count for cycle in found), made=Cycle.made)


# ---- who looks at it -------------------------------------------------------------------


@dataclass
class Seen:
    """What was seen from outside since the last line, and how long a report took."""

    scrapes: int = 0
    errors: list[str] = field(default_factory=list)
    slowest: float = 0.0
    report_seconds: float | None = None
    reports: int = 0


@dataclass
class Minute:
    """What one line says."""

    median: float
    tenth: float
    steps: int
    rss: int
    threads: int
    files: int
    wrong: list[str]


HEADINGS = (
    f"{'line':>6}{'steps':>8}{'median':>11}{'90 %':>11}{'memory':>11}{'threads':>8}{'files':>6}"
    f"{'events':>8}{'scrapes':>8}{'slowest':>9}{'report':>8}  lost or wrong"
)


def scrape(url: str, seen: Seen, over: threading.Event) -> None:
    """Asks the exporter for both of its pages once a second."""
    while not over.wait(1.0):
        for page in ("/metrics", "/top.json"):
            before = time.monotonic()
            try:
                with urllib.request.urlopen(url + page, timeout=10) as answer:
                    body = answer.read()
                if b"neutracer" not in body:
                    seen.errors.append(f"{page} says nothing")
            except OSError as error:
                if not over.is_set():
                    seen.errors.append(f"{page}: {error}")
            seen.scrapes += 1
            seen.slowest = max(seen.slowest, time.monotonic() - before)


def ask_for_report(pid: int, number: int, output: Path, seen: Seen) -> None:
    """Sends the signal, and waits for what is written."""
    before = set(output.iterdir())
    begun = time.monotonic()
    os.kill(pid, number)
    while time.monotonic() - begun < MOST_REPORT_SECONDS:
        new = set(output.iterdir()) - before
        if any(path.suffix == ".txt" and path.stat().st_size for path in new):
            seen.report_seconds = time.monotonic() - begun
            seen.reports += 1
            for path in new:
                if path.suffix != ".txt":
                    # An hour of snapshots need not be kept.
                    path.unlink(missing_ok=True)
            return
        time.sleep(0.1)
    seen.errors.append(f"no report within {MOST_REPORT_SECONDS:.0f} s")


def resident(pid: int) -> tuple[int, int, int]:
    """Bytes of memory, threads and open files."""
    text = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    facts = dict(line.split(":", 1) for line in text.splitlines())
    files = len(os.listdir(f"/proc/{pid}/fd"))
    return int(facts["VmRSS"].split()[0]) * 1024, int(facts["Threads"]), files


def minute_of(line: dict[str, Any], pid: int, number: int, seen: Seen) -> Minute:
    """Prints and returns one line."""
    memory, threads, files = resident(pid)
    errors, seen.errors = seen.errors, []
    found = Minute(
        line["median"], line["tenth"], line["steps"], memory, threads, files, line["lost"] + errors
    )
    report = "-" if seen.report_seconds is None else f"{seen.report_seconds:.1f} s"
    print(
        f"{number:>6}{found.steps:>8}{found.median * 1e3:>8.2f} ms{found.tenth * 1e3:>8.2f} ms"
        f"{memory / 2**20:>7.0f} MiB{threads:>8}{files:>6}{line['events']:>8}{seen.scrapes:>8}"
        f"{seen.slowest:>7.2f} s{report:>8}  {'; '.join(found.wrong) or 'nothing'}",
        flush=True,
    )
    seen.scrapes, seen.slowest, seen.report_seconds = 0, 0.0, None
    return found


def start(arguments: argparse.Namespace, seconds: float, output: Path | None) -> Any:
    """The job's process, plain or under `neutracer run`."""
    own = [__file__, "--job", str(seconds), "--device", arguments.device]
    own += ["--every", str(arguments.every)]
    command = [sys.executable, *own]
    if output is not None:
        runner = ["-m", "neutracer", "run", "-o", str(output), "--max-entries", str(MAX_ENTRIES)]
        command = [sys.executable, *runner, *own, "--output", str(output)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def lines_of(process: Any) -> Any:
    """What the job says, line by line."""
    for text in process.stdout:
        if text.startswith("{"):
            yield json.loads(text)


def plain(arguments: argparse.Namespace) -> None:
    """The step's time without neutracer."""
    process = start(arguments, PLAIN_SECONDS, None)
    line = [line for line in lines_of(process) if line["steps"]][-1]
    if process.wait() != 0:
        raise SystemExit("the job fails without neutracer")
    print(f"without neutracer: {line['median'] * 1e3:.2f} ms a step, {line['steps']} steps")


def follow(arguments: argparse.Namespace, output: Path) -> tuple[list[Minute], Seen, int]:
    """Runs the job with everything on."""
    process = start(arguments, 60 * arguments.minutes, output)
    seen, over = Seen(), threading.Event()
    minutes: list[Minute] = []
    lines = lines_of(process)
    first = next(lines)
    begun = time.monotonic()
    threading.Thread(target=scrape, args=(first["url"], seen, over), daemon=True).start()
    print(HEADINGS, flush=True)
    for line in lines:
        if "cycles" in line:
            over.set()
            told, made = line["cycles"], line["made"]
            print(f"{told} of {made} cycles told, {seen.reports} reports by signal")
            if told != made:
                seen.errors.append(f"{made - told} cycles were not told")
        elif line["steps"] > 0:
            minutes.append(minute_of(line, first["pid"], len(minutes) + 1, seen))
            if time.monotonic() - begun < 60 * arguments.minutes - arguments.every / 2:
                asked = (first["pid"], REPORT_SIGNALS[arguments.device], output, seen)
                threading.Thread(target=ask_for_report, args=asked, daemon=True).start()
    return minutes, seen, process.wait()


def slope_of(values: list[float]) -> tuple[float, float, float]:
    """The median of the slopes between any two values a step apart, and its bounds at 95 %."""
    count = len(values)
    pairs = [(i, j) for i in range(count) for j in range(i + 1, count)]
    slopes = sorted((values[j] - values[i]) / (j - i) for i, j in pairs)
    spread = 1.96 * math.sqrt(count * (count - 1) * (2 * count + 5) / 18)
    low = max(0, round((len(slopes) - spread) / 2))
    high = min(len(slopes) - 1, round((len(slopes) + spread) / 2))
    return statistics.median(slopes), slopes[low], slopes[high]


def judge(minutes: list[Minute], code: int) -> list[str]:
    """What is wrong with a whole run."""
    wrong = [f"line {i + 1}: {what}" for i, m in enumerate(minutes) for what in m.wrong]
    if code != 0:
        wrong.append(f"the job ended with {code}")
    third = max(1, len(minutes) // 3)
    if len(minutes) < 2 * third + 1:
        return wrong
    early, late = minutes[third : 2 * third], minutes[-third:]
    before = statistics.median(m.rss for m in early)
    after = statistics.median(m.rss for m in late)
    print(f"memory: {before / 2**20:.1f} MiB in the second third, {after / 2**20:.1f} in the last")
    settled = [m.rss / 2**10 for m in minutes[third:]]
    if len(settled) >= 8:
        slope, low, high = slope_of(settled)
        print(f"slope after the first third: {slope:.1f} KiB a line ({low:.1f} to {high:.1f})")
    if after > before * 1.01 + (8 << 20):
        wrong.append(f"memory grew by {(after - before) / 2**20:.1f} MiB")
    for name in ("threads", "files"):
        if min(getattr(m, name) for m in late) > max(getattr(m, name) for m in early):
            wrong.append(f"{name} grew")
    return wrong


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=8.0)
    parser.add_argument("--every", type=float, default=60.0, help="seconds of a line")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--output", help="where reports go (default: a temporary folder)")
    parser.add_argument("--job", type=float, metavar="SECONDS", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.job is not None:
        job(arguments.device, arguments.job, arguments.every, arguments.output)
        return 0
    with tempfile.TemporaryDirectory() as made:
        output = Path(arguments.output or made)
        output.mkdir(parents=True, exist_ok=True)
        plain(arguments)
        minutes, seen, code = follow(arguments, output)
    wrong = judge(minutes, code) + seen.errors
    print("\n".join(wrong) or f"{len(minutes)} lines: nothing lost, nothing grew")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
