# SPDX-License-Identifier: Apache-2.0
"""The command `neutracer explain`."""

from __future__ import annotations

import argparse
from typing import Any

from neutracer.cli.parts import (
    FAILED,
    HelpPage,
    add_max_memory,
    add_output,
    check_written,
    complain_of,
    device_size,
    give,
    without_history_warning,
)
from neutracer.diagnose.oom.explain import explain
from neutracer.diagnose.oom.parts import KINDS
from neutracer.diagnose.oom.report import ExplainReport
from neutracer.errors import NeutracerError
from neutracer.render.document import Severity
from neutracer.trace.snapshot import load

__all__ = ["add_explain"]

_EXAMPLE = """example:
  neutracer explain oom.pickle                        # why the last request failed
  neutracer explain oom.pickle --capacity 24GiB       # on a device of that size
  neutracer explain snapshot.pickle --request 2GiB    # would that fit?
  neutracer explain --fail-on leak,cycle_garbage oom.pickle   # for CI

What is known beside the snapshot (the device, the limit, garbage) is read from oom.pickle.json
or oom.json, as neutracer.watch_oom() writes it, where there is one.

exit codes: 0, 1 for a verdict or severity at --fail-on, 2 for a file that can't be read or in
which no request failed
"""


def add_explain(commands: Any, summary: str) -> None:
    """Add the command to a parser's commands; `summary` is its line in their list."""
    parser = commands.add_parser(
        "explain",
        help=summary,
        description=(
            "Says why a request for memory failed: the first cause whose removal alone would "
            "have let it succeed, what else was in the way, who held the memory, what to do."
        ),
        epilog=_EXAMPLE,
        formatter_class=HelpPage,
    )
    parser.add_argument("file", metavar="FILE", help='a snapshot; "-" is standard input')
    parser.add_argument(
        "--capacity",
        metavar="SIZE",
        help='the size of the device, like "24GiB", where the file does not say it',
    )
    parser.add_argument(
        "--device", type=int, metavar="N", help="which device, if there are several"
    )
    parser.add_argument(
        "--event",
        type=int,
        metavar="N",
        help="which out-of-memory event, else the last; with --request any event",
    )
    parser.add_argument(
        "--request",
        metavar="SIZE",
        help="say whether this much would fit at the snapshot's moment, or after --event",
    )
    add_output(parser)
    parser.add_argument(
        "--fail-on",
        type=_wanted,
        metavar="WORD,…",
        help="exit with 1 if one of these is a verdict (leak, fragmentation, …), or a finding is "
        "at least that severity",
    )
    add_max_memory(parser)
    parser.set_defaults(run=_explain)


def _wanted(text: str) -> tuple[str, ...]:
    words = tuple(word.strip() for word in text.split(","))
    known = (*KINDS, *(str(severity) for severity in Severity))
    for word in words:
        if word not in known:
            raise argparse.ArgumentTypeError(f"{word!r} is none of {', '.join(known)}")
    return words


def _explain(options: argparse.Namespace) -> int:
    try:
        check_written(options.output, options.file)
        report = _asked(options)
    except (NeutracerError, OSError, ValueError) as error:
        return complain_of(options.file, error)
    if give([report], options) == FAILED:
        return FAILED
    return int(_fails(report, options.fail_on or ()))


def _asked(options: argparse.Namespace) -> ExplainReport:
    with without_history_warning():
        snap = load(options.file, max_memory=options.max_memory)
    return explain(
        snap,
        device_size(options.capacity),
        device=options.device,
        event=options.event,
        request=options.request,
    )


def _fails(report: ExplainReport, wanted: tuple[str, ...]) -> bool:
    kinds = {verdict.kind for verdict in report.verdicts}
    severities = [word for word in wanted if word not in KINDS]
    worst = report.worst
    return bool(kinds.intersection(wanted)) or (
        worst is not None and any(worst >= word for word in severities)
    )
