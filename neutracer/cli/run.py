# SPDX-License-Identifier: Apache-2.0
"""The commands `neutracer run` and `neutracer attach`."""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any

from neutracer.cli.parts import (
    add_command,
    add_format,
    add_program,
    add_recording,
    complain,
    complain_of,
    ended_without_report,
    print_last_report,
    print_report,
    program_of,
    without_history_warning,
)
from neutracer.errors import NeutracerError
from neutracer.recording.long_history import RECORDERS
from neutracer.recording.program import UnreportedError, end_by
from neutracer.run.attach import DEFAULT_WAIT_S, attach_and_report
from neutracer.run.inherit import environment, is_installed
from neutracer.run.report import run_and_report

_RUN_EXAMPLE = """example:
  neutracer run train.py --epochs 1
  neutracer run -o reports --every 10 -m package.train
  neutracer run --follow-children serve.py                # and the processes that it starts
  kill -USR2 PID                                          # write a report now
  torchrun --nproc-per-node 8 -m neutracer run train.py   # one set of files per rank

exit code: the program's own; 2 if it does not exist or its reports can't be written
The summary goes to standard error, or with --json to standard output.
"""

_ATTACH_EXAMPLE = """example:
  neutracer attach 4711                   # report now: where its memory is
  neutracer attach 4711 --record 30       # the next 30 seconds: what allocates
  neutracer attach 4711 --watch           # report when it runs out, and at kill -USR2 4711
  neutracer attach 4711 --metrics 9435    # for Prometheus, and neutracer top :9435
  neutracer attach 4711 --detach          # stop what --watch and --metrics started

exit codes: 0; 2 if attaching or the request failed
"""


def add_run(commands: Any, summary: str) -> None:
    description = (
        "Runs an unchanged Python program, records PyTorch's allocator, and writes a snapshot and "
        "a report when the program ends or runs out of memory, at SIGUSR2 and SIGTERM."
    )
    parser = add_command(commands, "run", summary, description, _RUN_EXAMPLE, _run)
    parser.add_argument("-m", dest="module", action="store_true", help="run a module")
    add_recording(parser, hooks=True)
    parser.add_argument(
        "--recorder",
        choices=RECORDERS,
        default="auto",
        help='neutracer\'s own "hooks", "pytorch", or the first that works (default)',
    )
    parser.add_argument(
        "--context",
        choices=("alloc", "all", "state"),
        default="alloc",
        help=(
            "events with a stack in PyTorch's recorder: allocations (default), frees too, or only "
            'blocks in use at the end; "all" can break programs, see docs/start.md'
        ),
    )
    parser.add_argument(
        "--modules",
        action="store_true",
        help=(
            "mark allocations with their nn.Module, for reports by module (torch 2.10 or later; "
            "ten microseconds per call)"
        ),
    )
    parser.add_argument(
        "--pinned",
        action="store_true",
        help="record pinned host memory too, with PyTorch's recorder (torch 2.14 or later)",
    )
    parser.add_argument(
        "--every", type=float, metavar="MINUTES", help="minutes between reports while it runs"
    )
    parser.add_argument(
        "--follow-children",
        action="store_true",
        help=("also record the processes that it starts; `neutracer ranks DIR` reads all files"),
    )
    add_format(parser)
    add_program(parser)


def _run(options: argparse.Namespace) -> int:
    command = program_of(options)
    if options.follow_children:
        if not is_installed():
            return complain(
                "--follow-children needs neutracer.pth beside the installed package: reinstall it"
            )
        os.environ.update(environment("run", options.output))
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
            pinned=options.pinned,
            every_s=None if options.every is None else options.every * 60,
        )
    except UnreportedError as error:
        return ended_without_report(error)
    except OSError as error:
        return complain_of(command[0], error)
    except (NeutracerError, ValueError) as error:
        return complain(str(error))
    print_last_report(report, options)
    if report.signal is not None:
        end_by(-report.signal)
    return report.exit_code


def add_attach(commands: Any, summary: str) -> None:
    description = (
        "Attaches to one of your processes that is already running, on Python 3.14 or later, "
        "and records it as 'neutracer run' would have. The work runs on a background thread "
        "that the main thread starts at its next bytecode boundary. Recording begins at that "
        "moment: the origin of earlier allocations is unknown. neutracer's modules stay "
        "imported in the process; nothing else remains unless you asked for it."
    )
    parser = add_command(commands, "attach", summary, description, _ATTACH_EXAMPLE, _attach)
    parser.add_argument("pid", type=_number, metavar="PID", help="the process")
    parser.add_argument("--report", action="store_true", help="report now (the default)")
    parser.add_argument(
        "--watch",
        action="store_true",
        help="record from now on; report out-of-memory errors, and at SIGUSR2",
    )
    parser.add_argument(
        "--record", type=float, metavar="SECONDS", help="record for this long, then report"
    )
    parser.add_argument(
        "--metrics",
        type=int,
        metavar="PORT",
        help="serve metrics from the process; 0 is any free port",
    )
    parser.add_argument(
        "--detach", action="store_true", help="stop what --watch and --metrics started"
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
    add_format(parser)


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
    print_report(report, options, sys.stdout)
    return 0
