# SPDX-License-Identifier: Apache-2.0
"""The command `neutracer rehearse`."""

from __future__ import annotations

import argparse
import math
import sys
from typing import Any

from neutracer.cli.parts import (
    add_command,
    add_format,
    add_program,
    complain,
    complain_of,
    device_size,
    print_report,
    program_of,
)
from neutracer.errors import NeutracerError, RehearsalError
from neutracer.overview import overview
from neutracer.rehearsal.rehearse import rehearse_program
from neutracer.saving import check_output
from neutracer.trace.snapshot import Snapshot

_EXAMPLE = """example:
  neutracer rehearse --device "RTX 4090" train.py --batch-size 32
  neutracer rehearse --capacity 24GiB --steps 5 -o before.pickle -m package.train
  neutracer explain before.pickle                         # why it runs out of memory, if it does
  neutracer what-if before.pickle                         # with other allocator settings

exit code: 0; 1 if it runs out of memory on that card; 2 if the program can't be rehearsed
Every command reads the snapshot. Files that the program would write are not written.
"""


def add_rehearse(commands: Any, summary: str) -> None:
    description = (
        "Runs an unchanged training script on fake tensors, without a GPU and with any build of "
        "PyTorch, stops after some optimizer steps, and reports the memory it would have used. "
        "DataLoaders load in the process itself. Values that only a device could compute are "
        "made up; the report lists their lines. The first run on a machine compiles a small "
        "library, which takes a few seconds and a C++ compiler."
    )
    parser = add_command(commands, "rehearse", summary, description, _EXAMPLE, _rehearse)
    parser.add_argument("-m", dest="module", action="store_true", help="rehearse a module")
    parser.add_argument(
        "--device",
        default="NVIDIA H200",
        metavar="CARD",
        help='the card, like "A100" or "RTX 4090" (default: NVIDIA H200)',
    )
    parser.add_argument(
        "--capacity",
        metavar="SIZE",
        help='memory available to PyTorch, like "24GiB" (default: all but CUDA\'s context)',
    )
    parser.add_argument(
        "--steps", type=int, default=3, metavar="N", help="optimizer steps to run (default: 3)"
    )
    parser.add_argument(
        "--settings", default="", metavar="TEXT", help="the value of PYTORCH_CUDA_ALLOC_CONF"
    )
    parser.add_argument(
        "--world-size", type=int, default=1, metavar="N", help="number of ranks; this is rank 0"
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        default="rehearsed.pickle",
        help="the snapshot to write (default: rehearsed.pickle)",
    )
    add_format(parser)
    add_program(parser)


def _rehearse(options: argparse.Namespace) -> int:
    command = program_of(options)
    failure = ""
    try:
        check_output(options.output, *([] if options.module else command[:1]))
        snap = rehearse_program(
            command,
            module=options.module,
            steps=options.steps,
            device=options.device,
            settings=options.settings,
            world_size=options.world_size,
            capacity=device_size(options.capacity),
        )
    except RehearsalError as error:
        failure, snap = error.reason, error.snapshot
    except OSError as error:
        return complain_of(command[0], error)
    except (NeutracerError, ValueError) as error:
        return complain(str(error))
    return _finish(snap, options, failure)


def _finish(snap: Snapshot, options: argparse.Namespace, failure: str) -> int:
    """Save a snapshot, print its report, return the exit code."""
    if len(snap.events):
        try:
            snap.save(options.output)
        except (NeutracerError, OSError, ValueError) as error:
            return complain_of(options.output, error)
        report = overview(snap, options.output)
        # Its assumptions are what a prediction rests on.
        options.budget = math.inf if options.budget is None else options.budget
        print_report(report, options, sys.stdout)
    if failure:
        kept = f"; the part rehearsed so far is in {options.output}" if len(snap.events) else ""
        return complain(f"{failure}{kept}")
    ran_out = any(action == "oom" for action in snap.events["action"])
    return 1 if ran_out else 0
