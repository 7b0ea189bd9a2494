# SPDX-License-Identifier: Apache-2.0
"""The commands `neutracer run` and `neutracer attach`: record a program, and report on it."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from neutracer.cli.parts import (
    add_command,
    add_json,
    add_program,
    add_recording,
    complain,
    complain_of,
    print_report,
    program_of,
    without_history_warning,
)
from neutracer.errors import NeutracerError
from neutracer.recording.long_history import RECORDERS
from neutracer.recording.program import end_by
from neutracer.run.attach import DEFAULT_WAIT_S, attach_and_report
from neutracer.run.report import run_and_report

__all__ = ["add_attach", "add_run"]

_RUN_EXAMPLE = """example:
  neutracer run train.py --epochs 1
  neutracer run -o reports --every 10 -m package.train
  kill -USR2 PID                                          # a report of it now
  torchrun --nproc-per-node 8 -m neutracer run train.py   # each rank has files of its own

exit code: the program's own, and the signal's where one ended it; 2 where there is no such
program, or no place for its reports
The summary goes to standard error, or with --json to standard output.
"""

_ATTACH_EXAMPLE = """example:
  neutracer attach 4711                   # a report now: where its memory is
  neutracer attach 4711 --record 30       # the next 30 seconds: who takes it
  neutracer attach 4711 --watch           # reports when it runs out, and at kill -USR2 4711
  neutracer attach 4711 --metrics 9435    # for Prometheus, and neutracer top :9435
  neutracer attach 4711 --detach          # ends what --watch and --metrics began

exit codes: 0; 2 if attaching or the request failed
"""


def add_run(commands: Any, summary: str) -> None:
    """Add the command to a parser's commands; `summary` is its line in their list."""
    description = (
        "Runs an unchanged Python program and records PyTorch's allocator from the moment when "
        "the program initialises CUDA. A report (a snapshot, its sidecar and a text) is written "
        "when it ends, when it runs out of memory, at SIGUSR2, at SIGTERM unless the program "
        "handles that itself, and every few minutes if asked. Programs that it starts are not "
        "followed, and one that is killed, or leaves through os._exit, has no report of its "
        "end. neutracer's own hooks record where they are compiled or can be (the first time "
        "takes some seconds, and is announced), else PyTorch's recorder."
    )
    parser = add_command(commands, "run", summary, description, _RUN_EXAMPLE, _run)
    parser.add_argument("-m", dest="module", action="store_true", help="run a module")
    add_recording(parser, hooks=True)
    parser.add_argument(
        "--recorder",
        choices=RECORDERS,
        default="auto",
        help='who records: neutracer\'s "hooks", "pytorch", or the first that can (default)',
    )
    parser.add_argument(
        "--context",
        choices=("alloc", "all", "state"),
        default="alloc",
        help=(
            "what gets a stack from PyTorch's recorder (the hooks give all events theirs): "
            'allocations (default), frees too, or only blocks in use at the end. "all" can end '
            "the program: up to Python 3.12, torch 2.11 loses the exception that is under way "
            "where memory is freed in a backward pass, as in checkpointing with dropout"
        ),
    )
    parser.add_argument(
        "--modules",
        action="store_true",
        help=(
            "mark what each nn.Module's forward and backward allocate, for reports by module "
            "(torch 2.10 or later; some ten microseconds of the CPU for each call of a module)"
        ),
    )
    parser.add_argument(
        "--every", type=float, metavar="MINUTES", help="minutes between reports while it runs"
    )
    add_json(parser)
    add_program(parser)


def _run(options: argparse.Namespace) -> int:
    command = program_of(options)
    try:
        report = run_and_report(
            command,
            module=options.module,
            directory=options.output,
            max_entries=options.max_entries,
            stacks=options.stacks,
            context=options.context,
            recorder=options.recorder,
            modules=options.modules,
            every_s=None if options.every is None else options.every * 60,
        )
    except OSError as error:
        return complain_of(command[0], error)
    except (NeutracerError, ValueError) as error:
        return complain(str(error))
    print_report(report, options.json, sys.stderr)
    if report.signal is not None:
        end_by(-report.signal)
    return report.exit_code


def add_attach(commands: Any, summary: str) -> None:
    """Add the command to a parser's commands; `summary` is its line in their list."""
    description = (
        "Attaches to one of your processes that is already running, on Python 3.14 or later, "
        "and records it as 'neutracer run' would have. The work runs on a background thread "
        "that the main thread starts at its next bytecode boundary. Recording begins at that "
        "moment: the origin of earlier allocations is unknown. neutracer's modules stay "
        "imported in the process; nothing else stays that you did not ask for."
    )
    parser = add_command(commands, "attach", summary, description, _ATTACH_EXAMPLE, _attach)
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
        help=(
            "how long to wait for its main thread to return from C code "
            f"(default: {DEFAULT_WAIT_S:g})"
        ),
    )
    add_json(parser)


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
