# SPDX-License-Identifier: Apache-2.0
"""The commands `neutracer leak` and `neutracer diff`."""

from __future__ import annotations

import argparse
from typing import Any

from neutracer.cli.parts import (
    add_command,
    add_device,
    add_fail_on,
    add_files,
    add_max_memory,
    add_output,
    check_written,
    complain,
    complain_of,
    device_size,
    judged,
    without_history_warning,
)
from neutracer.errors import NeutracerError
from neutracer.leak.diff import diff, saved_report
from neutracer.leak.trend import VERDICTS, leak_trend
from neutracer.trace.snapshot import Snapshot, load

_LEAK_EXAMPLE = """example:
  neutracer leak snapshot.pickle                        # a recording of several steps
  neutracer leak step100.pickle step200.pickle step300.pickle ...      # one step each
  neutracer leak snapshot.pickle --capacity 24GiB       # and when it will be full
  neutracer leak --fail-on leak,cycle_garbage snapshot.pickle          # for CI

exit codes: 0, 1 for a verdict or severity at --fail-on, 2 for a file that can't be read
"""

_DIFF_EXAMPLE = """example:
  neutracer diff before.pickle after.pickle
  neutracer diff --json step100.pickle step200.pickle
  neutracer diff main.json branch.json                         # from neutracer report --json
  neutracer diff --fail-on serious main.pickle branch.pickle   # 1 if a line holds 64 MiB more

exit codes: 0, 1 for findings at --fail-on, 2 for a file that can't be read
"""


def add_leak(commands: Any, summary: str) -> None:
    description = (
        "Shows if memory grows step after step, how fast, from which line, and when the "
        "device will be full. Several files are one step each, in the order given."
    )
    parser = add_command(commands, "leak", summary, description, _LEAK_EXAMPLE, _leak)
    add_files(parser)
    parser.add_argument(
        "--steps",
        type=_steps,
        metavar="N,N,…",
        help="the first event of each step, ascending, if steps are not recognised",
    )
    parser.add_argument(
        "--step-us",
        type=float,
        metavar="US",
        help="length of a step in microseconds; for several files, the time between them",
    )
    parser.add_argument(
        "--capacity", metavar="SIZE", help='the memory available to the process, like "24GiB"'
    )
    add_device(parser)
    add_output(parser)
    add_fail_on(
        parser,
        "exit with 1 for one of these verdicts (leak, cycle_garbage, …), or a finding of "
        "at least this severity",
        tuple(VERDICTS),
    )
    add_max_memory(parser)


def _steps(text: str) -> list[int]:
    try:
        return [int(word) for word in text.split(",")]
    except ValueError:
        message = f"{text!r} is not a list of event numbers, like 1000,2000,3000"
        raise argparse.ArgumentTypeError(message) from None


def _leak(options: argparse.Namespace) -> int:
    snaps: list[Snapshot] = []
    name = " ".join(options.files)
    try:
        check_written(options.output, *options.files)
        for name in options.files:
            snaps.append(_loaded(name, options.max_memory))
        name = " ".join(options.files)
        report = leak_trend(
            snaps if len(snaps) > 1 else snaps[0],
            step_us=options.step_us,
            steps=options.steps,
            capacity=device_size(options.capacity),
            device=options.device,
        )
    except (NeutracerError, OSError, ValueError) as error:
        return complain_of(name, error)
    return judged(report, options, (report.verdict,), options.files[-1])


def add_diff(commands: Any, summary: str) -> None:
    description = "Compares the contents of two snapshots: new, gone, grown."
    parser = add_command(commands, "diff", summary, description, _DIFF_EXAMPLE, _diff)
    parser.add_argument(
        "before", metavar="BEFORE", help="a snapshot, or the output of report --json"
    )
    parser.add_argument("after", metavar="AFTER", help='a later snapshot; "-" is standard input')
    add_device(parser)
    add_output(parser)
    add_fail_on(
        parser,
        "exit with 1 if a line holds more by: info, moderate (a tenth of the total before), "
        "serious (64 MiB), severe (1 GiB)",
    )
    add_max_memory(parser)


def _diff(options: argparse.Namespace) -> int:
    try:
        check_written(options.output, options.before, options.after)
    except ValueError as error:
        return complain(str(error))
    snaps: list[Any] = []
    name = ""
    try:
        for name in (options.before, options.after):
            kept = saved_report(name)
            snaps.append(_loaded(name, options.max_memory) if kept is None else kept)
        name = f"{options.before} {options.after}"
        report = diff(*snaps, device=options.device)
    except (NeutracerError, OSError, ValueError) as error:
        return complain_of(name, error)
    return judged(report, options, file=options.after)


def _loaded(name: str, max_memory: str | None) -> Snapshot:
    with without_history_warning():
        return load(name, max_memory=max_memory)
