# SPDX-License-Identifier: Apache-2.0
"""The command `neutracer report`."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

from neutracer.cli.parts import (
    FAILED,
    HelpPage,
    add_max_memory,
    add_output,
    add_window,
    check_written,
    complain,
    complain_of,
    give,
    window_of,
    without_history_warning,
)
from neutracer.diagnose.overview.report import OverviewReport, overview
from neutracer.errors import NeutracerError
from neutracer.render.document import Severity
from neutracer.render.report import Report
from neutracer.trace.snapshot import load

__all__ = ["add_report"]

_EXAMPLE = """example:
  neutracer report snapshot.pickle
  neutracer report --json rank*.pickle.gz > report.json
  neutracer report --tree snapshot.pickle             # and who led to the peak
  neutracer report --seconds 2:3 snapshot.pickle      # only that second
  neutracer report --fail-on severe snapshot.pickle   # exit code 1 if it finds that

exit codes: 0, 1 for findings at --fail-on, 2 for a file that can't be read
"""


def add_report(commands: Any, summary: str) -> None:
    """Add the command to a parser's commands; `summary` is its line in their list."""
    parser = commands.add_parser(
        "report",
        help=summary,
        description="Says what each snapshot shows: totals, peak and who holds it, findings.",
        epilog=_EXAMPLE,
        formatter_class=HelpPage,
    )
    parser.add_argument(
        "files", nargs="+", metavar="FILE", help='a snapshot; "-" is standard input'
    )
    parser.add_argument("--device", type=int, metavar="N", help="only this device")
    add_window(parser)
    parser.add_argument(
        "--tree", action="store_true", help="also who led to the peak: its stacks as a tree"
    )
    add_output(parser)
    parser.add_argument(
        "--fail-on",
        choices=[str(severity) for severity in Severity],
        metavar="SEVERITY",
        help="exit with 1 if a finding is at least that: info, moderate, serious, severe",
    )
    add_max_memory(parser)
    parser.set_defaults(run=_report)


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
    if code == 0 and options.fail_on:
        bad = [r for r in reports if r.worst is not None and r.worst >= options.fail_on]
        code = 1 if bad else 0
    return code


def _with_trees(reports: list[OverviewReport], trees: bool) -> Iterator[Report]:
    for report in reports:
        yield report
        for device in report.devices if trees else ():
            yield report.tree(device.device)


def _read(file: str, options: argparse.Namespace) -> OverviewReport | None:
    """The report on one file; None, with a word on standard error, if it can't be read."""
    try:
        with without_history_warning():
            snap = load(file, **window_of(options), max_memory=options.max_memory)
        name = "" if file == "-" else file
        return overview(snap, name, title="standard input", device=options.device)
    except (NeutracerError, OSError, ValueError) as error:
        complain_of(file, error)
        return None
