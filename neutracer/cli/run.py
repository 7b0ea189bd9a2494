# SPDX-License-Identifier: Apache-2.0
"""The command `neutracer run`."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from neutracer.cli.parts import (
    HelpPage,
    add_program,
    add_recording,
    complain,
    complain_of,
    print_report,
    program_of,
)
from neutracer.diagnose.overview.run_report import run_and_report
from neutracer.errors import NeutracerError
from neutracer.process.hooks.long_history import RECORDERS
from neutracer.process.recording.program import end_by

__all__ = ["add_run"]

_EXAMPLE = """example:
  neutracer run train.py --epochs 1
  neutracer run -o reports --every 10 -m package.train
  kill -USR2 PID                                          # a report of it now
  torchrun --nproc-per-node 8 -m neutracer run train.py   # each rank has files of its own

exit code: the program's own, and the signal's where one ended it; 2 where there is no such
program, or no place for its reports
The summary goes to standard error, or with --json to standard output.
"""


def add_run(commands: Any, summary: str) -> None:
    """Add the command to a parser's commands; `summary` is its line in their list."""
    parser = commands.add_parser(
        "run",
        help=summary,
        description=(
            "Runs an unchanged Python program and records PyTorch's allocator from the moment "
            "when the program initialises CUDA. A report is written when it ends, when it "
            "runs out of memory, at SIGUSR2, at SIGTERM unless the program handles that itself, "
            "and every few minutes if asked: a snapshot, its sidecar and a text. Programs that "
            "it starts are not followed, and one that is killed, or leaves through os._exit, "
            "has no report of its end. It records through neutracer's own hooks where they are "
            "compiled or can be (the first time takes some seconds, and says so), else with "
            "PyTorch's recorder."
        ),
        epilog=_EXAMPLE,
        formatter_class=HelpPage,
    )
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
    parser.add_argument("--json", action="store_true", help="JSON with a versioned schema")
    add_program(parser)
    parser.set_defaults(run=_run)


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
