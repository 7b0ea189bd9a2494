# SPDX-License-Identifier: Apache-2.0
"""The command `neutracer attach`."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from neutracer.cli.parts import (
    HelpPage,
    add_recording,
    complain,
    complain_of,
    print_report,
    without_history_warning,
)
from neutracer.diagnose.overview.attach_report import DEFAULT_WAIT_S, attach_and_report
from neutracer.errors import NeutracerError

__all__ = ["add_attach"]

_EXAMPLE = """example:
  neutracer attach 4711                   # a report now: where its memory is
  neutracer attach 4711 --record 30       # the next 30 seconds: who takes it
  neutracer attach 4711 --watch           # reports when it runs out, and at kill -USR2 4711
  neutracer attach 4711 --metrics 9435    # for Prometheus, and neutracer top :9435
  neutracer attach 4711 --detach          # ends what --watch and --metrics began

exit codes: 0; 2 where the process can't be attached to, or could not do what was asked
"""


def add_attach(commands: Any, summary: str) -> None:
    """Add the command to a parser's commands; `summary` is its line in their list."""
    parser = commands.add_parser(
        "attach",
        help=summary,
        description=(
            "Makes one of your processes that is already running, on Python 3.14 or later, do what "
            "'neutracer run' would have done in it. Its main thread starts another one between "
            "two steps of Python, and that one does the work. Recording begins at that moment: "
            "who allocated what was there before is unknown. neutracer's modules stay imported "
            "in the process; nothing else stays that you did not ask for."
        ),
        epilog=_EXAMPLE,
        formatter_class=HelpPage,
    )
    parser.add_argument("pid", type=_number, metavar="PID", help="the process")
    parser.add_argument("--report", action="store_true", help="a report now (the default)")
    parser.add_argument(
        "--watch",
        action="store_true",
        help="record from now on; reports of out-of-memory errors and at SIGUSR2",
    )
    parser.add_argument(
        "--record", type=float, metavar="SECONDS", help="record for that long, and report on it"
    )
    parser.add_argument(
        "--metrics", type=int, metavar="PORT", help="serve metrics from it; 0 is any free port"
    )
    parser.add_argument(
        "--detach", action="store_true", help="end what --watch and --metrics began in it"
    )
    add_recording(parser)
    parser.add_argument(
        "--wait",
        type=float,
        metavar="SECONDS",
        default=DEFAULT_WAIT_S,
        help=f"for its main thread to come out of C code (default: {DEFAULT_WAIT_S:g})",
    )
    parser.add_argument("--json", action="store_true", help="JSON with a versioned schema")
    parser.set_defaults(run=_attach)


def _number(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a process ID")
    return int(text)


def _attach(options: argparse.Namespace) -> int:
    others = (
        options.watch,
        options.detach,
        options.record is not None,
        options.metrics is not None,
    )
    try:
        with without_history_warning():
            report = attach_and_report(
                options.pid,
                report=options.report or not any(others),
                watch=options.watch,
                record_s=options.record,
                port=options.metrics,
                detach=options.detach,
                directory=options.output,
                max_entries=options.max_entries,
                stacks=options.stacks,
                wait_s=options.wait,
            )
    except OSError as error:
        return complain_of(f"process {options.pid}", error)
    except (NeutracerError, ValueError) as error:
        return complain(str(error))
    print_report(report, options.json, sys.stdout)
    return 0
