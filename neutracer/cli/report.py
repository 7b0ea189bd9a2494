# SPDX-License-Identifier: Apache-2.0
"""The commands `neutracer report`, `neutracer explain` and `neutracer phases`."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from neutracer.cli.parts import (
    FAILED,
    add_command,
    add_device,
    add_fail_on,
    add_file,
    add_files,
    add_max_memory,
    add_output,
    add_window,
    answered,
    check_written,
    complain,
    complain_of,
    device_size,
    fails,
    give,
    judged,
    log_text,
    window_of,
    without_history_warning,
)
from neutracer.errors import NeutracerError
from neutracer.overview import OverviewReport, overview
from neutracer.phase_report import phases, phases_of
from neutracer.render.report import Report
from neutracer.trace.snapshot import Snapshot, load

if TYPE_CHECKING:
    from neutracer.oom.explain import ExplainReport

_EXAMPLE = """example:
  neutracer report snapshot.pickle
  neutracer report --json rank*.pickle.gz > report.json
  neutracer report --tree snapshot.pickle             # with the call tree behind the peak
  neutracer report --seconds 2:3 snapshot.pickle      # only that second
  neutracer report --phase sleep snapshot.pickle      # the turns of a phase, and what it leaves
  neutracer report --fail-on severe snapshot.pickle   # exit code 1 for a severe finding

exit codes: 0, 1 for findings at --fail-on, 2 for a file that can't be read
"""


def add_report(commands: Any, summary: str) -> None:
    description = "Shows what each snapshot holds: totals, the peak and its holders, findings."
    parser = add_command(commands, "report", summary, description, _EXAMPLE, _report)
    add_files(parser)
    parser.add_argument("--device", type=int, metavar="N", help="only this device")
    add_window(parser)
    parser.add_argument("--tree", action="store_true", help="add the call tree behind the peak")
    add_output(parser)
    add_fail_on(parser)
    add_max_memory(parser)


def _report(options: argparse.Namespace) -> int:
    try:
        check_written(options.output, *options.files)
    except ValueError as error:
        return complain(str(error))
    found = [_read(file, options) for file in options.files]
    reports = [report for report in found if report is not None]
    code = 0 if len(reports) == len(found) else FAILED
    if not reports:
        return code
    shown = [one for each in reports for one in each]
    if give([*_with_trees(shown, options.tree)], options) == FAILED:
        return FAILED
    failed = [fails(one, options, file=getattr(one, "file", "")) for one in shown]
    return code or int(any(failed))


def _with_trees(reports: list[Report], trees: bool) -> Iterator[Report]:
    for report in reports:
        yield report
        if isinstance(report, OverviewReport) and trees:
            for device in report.devices:
                yield report.tree(device.device)


def _read(file: str, options: argparse.Namespace) -> list[Report] | None:
    """The reports on one file; None after an error message."""
    try:
        with without_history_warning():
            if options.phase is not None:
                snap = load(file, host=options.host, max_memory=options.max_memory)
                return [*_phases(snap, options)]
            snap = load(file, **window_of(options), max_memory=options.max_memory)
        name = "" if file == "-" else file
        return [overview(snap, name, title="standard input", device=options.device)]
    except (NeutracerError, OSError, ValueError) as error:
        complain_of(file, error)
        return None


def _phases(snap: Snapshot, options: argparse.Namespace) -> Iterator[Report]:
    devices = snap.devices if options.device is None else (snap.device(options.device),)
    for device in devices or (0,):
        yield phases_of(snap, device, options.phase)


_PHASES_EXAMPLE = """example:
  neutracer phases snapshot.pickle                # a recording of a program with neutracer.phase
  neutracer phases --phase sleep snapshot.pickle  # only this phase; "sleep[2]" is one turn
  neutracer phases --fail-on serious snapshot.pickle    # 1 if a phase grows from turn to turn

exit codes: 0, 1 for findings at --fail-on, 2 for a file that can't be read
"""


def add_phases(commands: Any, summary: str) -> None:
    description = (
        "Shows each turn of the phases that the program marked: memory at its begin, peak and end, "
        "what outlives it, and what grows from turn to turn, by line."
    )
    parser = add_command(commands, "phases", summary, description, _PHASES_EXAMPLE, _ask_phases)
    add_file(parser)
    parser.add_argument("--phase", metavar="NAME", help="only this phase, or one turn: NAME[2]")
    add_device(parser)
    add_output(parser)
    add_fail_on(parser)
    add_max_memory(parser)


def _ask_phases(options: argparse.Namespace) -> int:
    def asked(options: argparse.Namespace) -> Report:
        snap = load(options.file, max_memory=options.max_memory)
        return phases(snap, phase=options.phase, device=options.device)

    return judged(answered(options, asked), options, file=options.file)


# ---- Explain ---------------------------------------------------------------------------


_EXPLAIN_EXAMPLE = """example:
  neutracer explain oom.pickle                        # why the last allocation failed
  neutracer explain old.pickle --capacity 24GiB       # a file without its device's size
  neutracer explain snapshot.pickle --request 2GiB    # would that fit?
  neutracer explain slurm-4711.out                    # PyTorch's message in a log
  neutracer explain --fail-on leak,cycle_garbage oom.pickle   # for CI

The device, the limit and garbage come from oom.pickle.json or oom.json, which
neutracer.watch_oom() writes beside the snapshot.

exit codes: 0, 1 for a verdict or severity at --fail-on, 2 for a file that can't be read or
without a failed allocation
"""


_NO_MESSAGE = "this is a text file without an out-of-memory message of PyTorch"


def add_explain(commands: Any, summary: str) -> None:
    from neutracer.oom.case import KINDS  # A report imports it where a file has a failure.

    description = (
        "Explains why an allocation failed: the first cause whose removal alone would "
        "have let it succeed, the other obstacles, the holders of the memory, the remedies."
    )
    parser = add_command(commands, "explain", summary, description, _EXPLAIN_EXAMPLE, _explain)
    add_file(parser)
    parser.add_argument(
        "--capacity",
        metavar="SIZE",
        help='the size of the device, like "24GiB", if the file does not record it; with '
        "--request of another device",
    )
    add_device(parser)
    parser.add_argument(
        "--event",
        type=int,
        metavar="N",
        help="the out-of-memory event (default: the last); with --request, any event",
    )
    parser.add_argument(
        "--request",
        metavar="SIZE",
        help="ask if this much would fit at the end of the snapshot, or after --event",
    )
    add_output(parser)
    add_fail_on(
        parser,
        "exit with 1 for one of these verdicts (leak, fragmentation, …), or a finding of at "
        "least this severity",
        KINDS,
    )
    add_max_memory(parser)


def _explain(options: argparse.Namespace) -> int:
    with log_text(options.file) as lines:
        if lines is not None:
            return _explain_log(lines, options)
    report = answered(options, _asked)
    kinds = [verdict.kind for verdict in report.verdicts] if report is not None else []
    return judged(report, options, kinds, options.file)


def _explain_log(lines: Iterable[str], options: argparse.Namespace) -> int:
    """Explain the messages in a log."""
    from neutracer.oom.messages import messages_report

    name = "standard input" if options.file == "-" else os.path.basename(options.file)
    report = messages_report(lines, name)
    if report is None:
        return complain(f"{options.file}: {_NO_MESSAGE}")
    return judged(report, options, [one.kind for one in report.messages], options.file)


def _asked(options: argparse.Namespace) -> ExplainReport:
    from neutracer.oom.explain import explain

    snap = load(options.file, max_memory=options.max_memory)
    return explain(
        snap,
        device_size(options.capacity),
        device=options.device,
        event=options.event,
        request=options.request,
    )
