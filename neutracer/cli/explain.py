# SPDX-License-Identifier: Apache-2.0
"""The command `neutracer explain`."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable
from typing import Any

from neutracer.cli.parts import (
    FAILED,
    add_command,
    add_device,
    add_fail_on,
    add_file,
    add_max_memory,
    add_output,
    answered,
    complain,
    device_size,
    fails,
    give,
    log_text,
)
from neutracer.oom.case import KINDS
from neutracer.oom.explain import ExplainReport, explain
from neutracer.oom.messages import messages_report
from neutracer.trace.snapshot import load

_EXAMPLE = """example:
  neutracer explain oom.pickle                        # why the last allocation failed
  neutracer explain oom.pickle --capacity 24GiB       # on a device of this size
  neutracer explain snapshot.pickle --request 2GiB    # would that fit?
  neutracer explain slurm-4711.out                    # PyTorch's message in a log
  neutracer explain --fail-on leak,cycle_garbage oom.pickle   # for CI

The device, the limit and garbage come from oom.pickle.json or oom.json, which
neutracer.watch_oom() writes beside the snapshot.

exit codes: 0, 1 for a verdict or severity at --fail-on, 2 for a file that can't be read or
without a failed allocation
"""


_NO_MESSAGE = "this is a text file without an out-of-memory message of PyTorch"


def add_explain(commands: Any, summary: str) -> None:
    description = (
        "Explains why an allocation failed: the first cause whose removal alone would "
        "have let it succeed, the other obstacles, the holders of the memory, the remedies."
    )
    parser = add_command(commands, "explain", summary, description, _EXAMPLE, _explain)
    add_file(parser)
    parser.add_argument(
        "--capacity",
        metavar="SIZE",
        help='the size of the device, like "24GiB", if the file does not record it',
    )
    add_device(parser)
    parser.add_argument(
        "--event",
        type=int,
        metavar="N",
        help="the out-of-memory event (default: the last); with --request, any event",
    )
    parser.add_argument(
        "--request",
        metavar="SIZE",
        help="ask if this much would fit at the end of the snapshot, or after --event",
    )
    add_output(parser)
    add_fail_on(
        parser,
        "exit with 1 for one of these verdicts (leak, fragmentation, …), or a finding of at "
        "least this severity",
        KINDS,
    )
    add_max_memory(parser)


def _explain(options: argparse.Namespace) -> int:
    with log_text(options.file) as lines:
        if lines is not None:
            return _explain_log(lines, options)
    report = answered(options, _asked)
    if report is None or give([report], options) == FAILED:
        return FAILED
    kinds = [verdict.kind for verdict in report.verdicts]
    return int(fails(report, options, kinds, options.file))


def _explain_log(lines: Iterable[str], options: argparse.Namespace) -> int:
    """Explain the messages in a log."""
    name = "standard input" if options.file == "-" else os.path.basename(options.file)
    report = messages_report(lines, name)
    if report is None:
        return complain(f"{options.file}: {_NO_MESSAGE}")
    if give([report], options) == FAILED:
        return FAILED
    return int(fails(report, options, [one.kind for one in report.messages], options.file))


def _asked(options: argparse.Namespace) -> ExplainReport:
    snap = load(options.file, max_memory=options.max_memory)
    return explain(
        snap,
        device_size(options.capacity),
        device=options.device,
        event=options.event,
        request=options.request,
    )
