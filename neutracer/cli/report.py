# SPDX-License-Identifier: Apache-2.0
"""The command `neutracer report`."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

from neutracer.cli.parts import (
    FAILED,
    add_command,
    add_fail_on,
    add_max_memory,
    add_output,
    add_window,
    check_written,
    complain,
    complain_of,
    fails,
    give,
    window_of,
    without_history_warning,
)
from neutracer.errors import NeutracerError
from neutracer.overview import OverviewReport, overview
from neutracer.render.report import Report
from neutracer.trace.snapshot import load

_EXAMPLE = """example:
  neutracer report snapshot.pickle
  neutracer report --json rank*.pickle.gz > report.json
  neutracer report --tree snapshot.pickle             # with the call tree behind the peak
  neutracer report --seconds 2:3 snapshot.pickle      # only that second
  neutracer report --fail-on severe snapshot.pickle   # exit code 1 for a severe finding

exit codes: 0, 1 for findings at --fail-on, 2 for a file that can't be read
"""


def add_report(commands: Any, summary: str) -> None:
    description = "Shows what each snapshot holds: totals, the peak and its holders, findings."
    parser = add_command(commands, "report", summary, description, _EXAMPLE, _report)
    parser.add_argument(
        "files", nargs="+", metavar="FILE", help='a snapshot; "-" is standard input'
    )
    parser.add_argument("--device", type=int, metavar="N", help="only this device")
    add_window(parser)
    parser.add_argument("--tree", action="store_true", help="add the call tree behind the peak")
    add_output(parser)
    add_fail_on(parser, "exit with 1 for a finding of at least info, moderate, serious or severe")
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
    if give([*_with_trees(reports, options.tree)], options) == FAILED:
        return FAILED
    return code or int(any(fails(report, options.fail_on) for report in reports))


def _with_trees(reports: list[OverviewReport], trees: bool) -> Iterator[Report]:
    for report in reports:
        yield report
        for device in report.devices if trees else ():
            yield report.tree(device.device)


def _read(file: str, options: argparse.Namespace) -> OverviewReport | None:
    """The report on one file; None after an error message."""
    try:
        with without_history_warning():
            snap = load(file, **window_of(options), max_memory=options.max_memory)
        name = "" if file == "-" else file
        return overview(snap, name, title="standard input", device=options.device)
    except (NeutracerError, OSError, ValueError) as error:
        complain_of(file, error)
        return None
