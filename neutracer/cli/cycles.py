# SPDX-License-Identifier: Apache-2.0
"""The command `neutracer cycles`."""

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
    complain,
    complain_of,
    ended_without_report,
    fails,
    is_page,
    print_last_report,
    program_of,
    write_reports,
)
from neutracer.errors import NeutracerError, TensorCycleWarning, missing
from neutracer.heap.tensor_cycles import cycle_run
from neutracer.heap.watch import warn_tensor_cycles
from neutracer.recording.program import (
    UnreportedError,
    after_program,
    end_by,
    run_program,
    shell_code,
)
from neutracer.recording.sidecar import filled_in
from neutracer.saving import check_output
from neutracer.units import format_count, parse_bytes

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
    except OSError as error:
        return complain_of(command[0], error)
    except (NeutracerError, ValueError) as error:
        return complain(str(error))
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
    _check_device(device)
    return device


def _check_device(device: str | None) -> None:
    name, _, index = (device or "").partition(":")
    counted = getattr(getattr(sys.modules["torch"], name, None), "device_count", None)
    count = counted() if counted is not None else None
    if count is not None and int(index if index.isdecimal() else 0) >= count:
        there = format_count(count, f"{name} device")
        raise NeutracerError(f"no device {device} on this machine: torch finds {there}")
