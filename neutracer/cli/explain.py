# SPDX-License-Identifier: Apache-2.0
"""The command `neutracer explain`."""

from __future__ import annotations

import argparse
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
    device_size,
    fails,
    give,
)
from neutracer.oom.case import KINDS
from neutracer.oom.explain import ExplainReport, explain
from neutracer.trace.snapshot import load

_EXAMPLE = """example:
  neutracer explain oom.pickle                        # why the last allocation failed
  neutracer explain oom.pickle --capacity 24GiB       # on a device of this size
  neutracer explain snapshot.pickle --request 2GiB    # would that fit?
  neutracer explain --fail-on leak,cycle_garbage oom.pickle   # for CI

The device, the limit and garbage come from oom.pickle.json or oom.json, which
neutracer.watch_oom() writes beside the snapshot.

exit codes: 0, 1 for a verdict or severity at --fail-on, 2 for a file that can't be read or
without a failed allocation
"""


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
    report = answered(options, _asked)
    if report is None or give([report], options) == FAILED:
        return FAILED
    return int(fails(report, options.fail_on, (verdict.kind for verdict in report.verdicts)))


def _asked(options: argparse.Namespace) -> ExplainReport:
    snap = load(options.file, max_memory=options.max_memory)
    return explain(
        snap,
        device_size(options.capacity),
        device=options.device,
        event=options.event,
        request=options.request,
    )
