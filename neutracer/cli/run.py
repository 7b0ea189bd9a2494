# SPDX-License-Identifier: Apache-2.0
"""The commands `neutracer run`, `neutracer attach` and `neutracer cycles`."""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from typing import Any

from neutracer.cli.parts import (
    FAILED,
    add_command,
    add_fail_on,
    add_format,
    add_program,
    add_recording,
    complain,
    complain_of,
    complain_of_job,
    ended_without_report,
    fails,
    is_page,
    print_last_report,
    print_report,
    program_of,
    without_history_warning,
    write_reports,
)
from neutracer.errors import NeutracerError, TensorCycleWarning, missing
from neutracer.heap.tensor_cycles import cycle_run, warn_tensor_cycles
from neutracer.recording.long_history import RECORDERS
from neutracer.recording.program import (
    UnreportedError,
    after_program,
    end_by,
    run_program,
    shell_code,
)
from neutracer.recording.sidecar import filled_in
from neutracer.run.attach import DEFAULT_WAIT_S, attach_and_report
from neutracer.run.inherit import environment, is_installed
from neutracer.run.report import run_and_report
from neutracer.saving import check_output
from neutracer.units import format_count, parse_bytes

_RUN_EXAMPLE = """example:
  neutracer run train.py --epochs 1
  neutracer run -o reports --every 10 -m package.train
  neutracer run --uses 3 train.py                         # what is kept after its last use
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
        "--uses",
        type=int,
        default=0,
        metavar="STEPS",
        help=(
            "observe the first and last use of each block up to the end of so many optimizer "
            "steps after the first, then write a snapshot for `neutracer drag`; 3 are enough"
        ),
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
        os.environ.update(environment("run", options.output, options.every))
    try:
        report = run_and_report(
            command,
            module=options.module,
            directory=options.output,
            max_entries=options.max_entries,
            stacks=options.stacks,
            context=options.context,
            recorder=options.recorder,
            modules=True if options.modules else None,
            pinned=options.pinned,
            uses=options.uses,
            every_s=None if options.every is None else options.every * 60,
        )
    except UnreportedError as error:
        return ended_without_report(error)
    except (NeutracerError, OSError, ValueError) as error:
        return complain_of_job(command[0], error)
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
    except (NeutracerError, OSError, ValueError) as error:
        return complain_of_job(f"process {options.pid}", error)
    print_report(report, options, sys.stdout)
    return 0


# ---- Cycles ----------------------------------------------------------------------------


_EXAMPLE = """example:
  neutracer cycles train.py --epochs 1
  neutracer cycles -o cycles.html --min-bytes 1MiB -m package.train
  neutracer cycles --fail-on moderate --device cpu test_model.py    # for CI

exit codes: the program's own if that is not 0, 1 for cycles at --fail-on, 2 where the
program can't be watched; the summary goes to standard error, or with --json to standard output
"""


def add_cycles(commands: Any, summary: str) -> None:
    description = (
        "Runs a Python program under the cycle watch and lists at the end the reference cycles "
        "that kept tensors until the garbage collector ran."
    )
    parser = add_command(commands, "cycles", summary, description, _EXAMPLE, _cycles)
    parser.add_argument("-m", dest="module", action="store_true", help="run a module")
    parser.add_argument("--device", help="count tensors on this device: cpu, cuda, cuda:1, all")
    parser.add_argument("--min-bytes", metavar="SIZE", default="0", help="ignore smaller cycles")
    add_format(parser)
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        help="write the graphs as .html, or the summary: .md, .json, else text; c-{rank}.html",
    )
    add_fail_on(
        parser,
        "exit with 1 for a cycle of at least moderate, serious (64 MiB) or severe (1 GiB)",
    )
    add_program(parser)


def _cycles(options: argparse.Namespace) -> int:
    command = program_of(options)
    try:
        if options.output is not None:
            _check_page(options.output)
            check_output(filled_in(options.output), *([] if options.module else command[:1]))
        min_bytes = parse_bytes(options.min_bytes)
        device = _watched_device(options.device)
        with warn_tensor_cycles(device, min_bytes) as watch, warnings.catch_warnings():
            warnings.simplefilter("ignore", TensorCycleWarning)
            # Keeps the program's objects alive: their teardown is not a cycle of the program.
            kept: list[object] = []
            ended = run_program(command, module=options.module, keep=kept)
            code = shell_code(ended)
            with after_program(ended):
                report = cycle_run(watch, command[0], code, device, min_bytes)
    except UnreportedError as error:
        return ended_without_report(error)
    except (NeutracerError, OSError, ValueError) as error:
        return complain_of_job(command[0], error)
    print_last_report(report, options)
    try:
        if options.output is not None:
            page = filled_in(options.output)
            if is_page(page):
                report.graph.to_html(page)
            elif not write_reports(page, [report], options):
                return code or FAILED
    except (NeutracerError, OSError, MemoryError) as error:
        complain_of(options.output, error)
        return code or FAILED
    end_by(ended)
    return code or int(fails(report, options, file=command[0]))


def _check_page(output: str) -> None:
    """Raise before a run of hours, not after it, if the page can't be written."""
    folder = os.path.dirname(output) or os.curdir
    if not os.path.isdir(folder):
        raise NeutracerError(f"{output}: no such folder: {folder}")
    if not output:
        raise NeutracerError("'': not a file name")


def _watched_device(device: str | None) -> str | None:
    try:
        import torch
    except ImportError:
        raise missing("torch") from None
    if device is None and not torch.cuda.is_available():
        complain("no accelerator found: counting tensors on every device")
        return "all"
    name, _, index = (device or "").partition(":")
    counted = getattr(getattr(torch, name, None), "device_count", None)
    count = counted() if counted is not None else None
    if count is not None and int(index if index.isdecimal() else 0) >= count:
        there = format_count(count, f"{name} device")
        raise NeutracerError(f"no device {device} on this machine: torch finds {there}")
    return device
