# SPDX-License-Identifier: Apache-2.0
"""The command `neutracer diff`."""

from __future__ import annotations

import argparse
from typing import Any

from neutracer.cli.parts import (
    FAILED,
    HelpPage,
    add_max_memory,
    add_output,
    check_written,
    complain,
    complain_of,
    give,
    without_history_warning,
)
from neutracer.diagnose.leaks.diff import diff
from neutracer.diagnose.leaks.told import told_report
from neutracer.errors import NeutracerError
from neutracer.render.document import Severity
from neutracer.trace.snapshot import Snapshot, load

__all__ = ["add_diff"]

_EXAMPLE = """example:
  neutracer diff before.pickle after.pickle
  neutracer diff --json step100.pickle step200.pickle
  neutracer diff main.json branch.json                         # of neutracer report --json
  neutracer diff --fail-on serious main.pickle branch.pickle   # 1 if a line holds 64 MiB more

exit codes: 0, 1 for findings at --fail-on, 2 for a file that can't be read
"""


def add_diff(commands: Any, summary: str) -> None:
    """Add the command to a parser's commands; `summary` is its line in their list."""
    parser = commands.add_parser(
        "diff",
        help=summary,
        description="Says what two snapshots hold and how it differs: new, gone, grown.",
        epilog=_EXAMPLE,
        formatter_class=HelpPage,
    )
    parser.add_argument("before", metavar="BEFORE", help="a snapshot, or what report --json wrote")
    parser.add_argument("after", metavar="AFTER", help='a later one; "-" is standard input')
    parser.add_argument(
        "--device", type=int, metavar="N", help="which device, if there are several"
    )
    add_output(parser)
    parser.add_argument(
        "--fail-on",
        choices=[str(severity) for severity in Severity],
        metavar="SEVERITY",
        help="exit with 1 if a line holds so much more: info, moderate (a tenth of what there "
        "was), serious (64 MiB), severe (1 GiB)",
    )
    add_max_memory(parser)
    parser.set_defaults(run=_diff)


def _diff(options: argparse.Namespace) -> int:
    try:
        check_written(options.output, options.before, options.after)
    except ValueError as error:
        return complain(str(error))
    snaps: list[Any] = []
    for name in (options.before, options.after):
        try:
            kept = told_report(name)
            snaps.append(_loaded(name, options.max_memory) if kept is None else kept)
        except (NeutracerError, OSError, ValueError) as error:
            return complain_of(name, error)
    try:
        report = diff(*snaps, device=options.device)
    except ValueError as error:
        return complain_of(f"{options.before} {options.after}", error)
    if give([report], options) == FAILED:
        return FAILED
    failed = options.fail_on is not None and report.worst is not None
    return int(failed and report.worst >= options.fail_on)


def _loaded(name: str, max_memory: str | None) -> Snapshot:
    with without_history_warning():
        return load(name, max_memory=max_memory)
