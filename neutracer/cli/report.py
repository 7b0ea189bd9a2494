# SPDX-License-Identifier: Apache-2.0
"""The command `neutracer report`."""

from __future__ import annotations

import argparse
import io
import sys
from typing import Any, TextIO

from neutracer.cli.parts import (
    FAILED,
    add_max_memory,
    check_written,
    complain,
    complain_of,
    without_history_warning,
    written,
)
from neutracer.diagnose.overview.report import OverviewReport, overview
from neutracer.errors import NeutracerError
from neutracer.render.document import Severity
from neutracer.render.json import dump
from neutracer.render.terminal import show
from neutracer.trace.snapshot import load

__all__ = ["add_report"]

_EXAMPLE = """example:
  neutracer report snapshot.pickle
  neutracer report --json rank*.pickle.gz > report.json
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
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "files", nargs="+", metavar="FILE", help='a snapshot; "-" is standard input'
    )
    parser.add_argument("--json", action="store_true", help="JSON with a versioned schema")
    parser.add_argument("-o", "--output", metavar="FILE", help="write there instead of printing")
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
    found = [_read(file, options.max_memory) for file in options.files]
    reports = [report for report in found if report is not None]
    code = 0 if len(reports) == len(found) else FAILED
    if not reports:
        return code
    if options.output is None:
        _print(reports, options.json, sys.stdout)
    else:
        page = io.StringIO()
        _print(reports, options.json, page)
        if not written(options.output, page.getvalue()):
            return FAILED
    if code == 0 and options.fail_on:
        bad = [r for r in reports if r.worst is not None and r.worst >= options.fail_on]
        code = 1 if bad else 0
    return code


def _read(file: str, max_memory: str | None) -> OverviewReport | None:
    """The report on one file; None, with a word on standard error, if it can't be read."""
    try:
        with without_history_warning():
            snap = load(file, max_memory=max_memory)
        if file == "-":
            return overview(snap, "standard input")
        return overview(snap, file, path=file)
    except (NeutracerError, OSError, ValueError) as error:
        complain_of(file, error)
        return None


def _print(reports: list[OverviewReport], as_json: bool, out: TextIO) -> None:
    if as_json:
        several = {"schema": "neutracer.reports/1", "reports": reports}
        dump(reports[0] if len(reports) == 1 else several, out)
        return
    for number, report in enumerate(reports):
        if number:
            out.write("\n")
        show(report.document(), out, max_lines=None)
