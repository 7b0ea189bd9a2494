# SPDX-License-Identifier: Apache-2.0
"""The commands `neutracer what-if` and `neutracer drag`."""

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
    complain,
    device_size,
    give,
    judged,
    refused,
)
from neutracer.errors import SettingsError
from neutracer.render.report import Report
from neutracer.trace.snapshot import load
from neutracer.whatif.drag import drag
from neutracer.whatif.what_if import OBJECTIVES, check_replay, what_if

_EXAMPLE = """example:
  neutracer what-if snapshot.pickle                       # the best of a few dozen settings
  neutracer what-if snapshot.pickle --capacity 24GiB      # would it fit on that card?
  neutracer what-if snapshot.pickle --fraction 0.5 --capacity 80GiB    # half of such a card
  neutracer what-if snapshot.pickle --objective speed     # the fewest calls to the device
  neutracer what-if snapshot.pickle --set expandable_segments:True --set max_split_size_mb:128
  neutracer what-if snapshot.pickle --batch 2             # with a batch twice as large
  neutracer what-if --check snapshot.pickle               # accuracy of the model

In Python, neutracer.what_if() also replays other changes to the program: blocks freed earlier,
calls of empty_cache(), no reference cycles.

exit codes: 0, 2 for a file that can't be read or replayed, or settings that PyTorch rejects
"""

_DRAG_EXAMPLE = """example:
  neutracer rehearse -o rehearsed.pickle train.py && neutracer drag rehearsed.pickle
  neutracer drag --json rehearsed.pickle
  neutracer drag --fail-on serious rehearsed.pickle       # 1 if a line wastes a quarter of the peak

exit codes: 0, 1 for findings at --fail-on, 2 for a file without uses, or that can't be read
"""


def add_what_if(commands: Any, summary: str) -> None:
    description = (
        "Replays a snapshot's trace on a model of PyTorch's allocator with the settings of --set. "
        "Without --set it tries a few dozen and reports the best, the least memory in which the "
        "program fits with each, and the least that any allocator needs."
    )
    parser = add_command(commands, "what-if", summary, description, _EXAMPLE, _what_if)
    add_file(parser)
    _add_questions(parser)
    parser.add_argument(
        "--batch", type=float, default=1.0, metavar="K", help="with a batch K times as large"
    )
    parser.add_argument(
        "--capacity", metavar="SIZE", help='memory available to the process, like "24GiB"'
    )
    parser.add_argument(
        "--fraction",
        type=float,
        metavar="F",
        help="with set_per_process_memory_fraction(F); --capacity is then the whole device, "
        "if the sidecar beside the file does not record it",
    )
    parser.add_argument(
        "--phase",
        metavar="NAME",
        help='only the last turn of a phase that the program marked; "NAME[0]" is its first',
    )
    add_device(parser)
    add_output(parser)
    add_max_memory(parser)


def _add_questions(parser: argparse.ArgumentParser) -> None:
    how = parser.add_mutually_exclusive_group()
    how.add_argument(
        "--set",
        dest="settings",
        metavar="CONF",
        action="append",
        default=[],
        help='a PYTORCH_CUDA_ALLOC_CONF to replay; repeatable; "" is PyTorch\'s default',
    )
    how.add_argument(
        "--check", action="store_true", help="only check the model against the recording"
    )
    how.add_argument(
        "--objective",
        choices=OBJECTIVES,
        default="fit",
        help="criterion: the least memory in which every request succeeds (fit), the "
        "lowest peak of reserved, or the fewest device calls (speed)",
    )


def _what_if(options: argparse.Namespace) -> int:
    changes = (options.batch != 1.0, options.capacity, options.fraction is not None)
    if options.check and any(changes):
        return complain("--check takes no --batch, --capacity or --fraction")
    try:
        report = answered(options, _asked)
    except SettingsError as error:
        return complain(refused(options.settings, error))
    return FAILED if report is None else give([report], options)


def _asked(options: argparse.Namespace) -> Report:
    capacity = device_size(options.capacity)
    part = {} if options.phase is None else {"phase": options.phase, "device": options.device}
    snap = load(options.file, **part, max_memory=options.max_memory)
    if options.check:
        return check_replay(snap, device=options.device)
    where = {"capacity": capacity, "fraction": options.fraction, "device": options.device}
    if options.settings or options.batch != 1.0:
        return what_if(snap, *options.settings, batch=options.batch, **where)
    return what_if(snap, objective=options.objective, **where)


def add_drag(commands: Any, summary: str) -> None:
    description = (
        "Shows what is kept at the peak after its last use, line by line, the peak without it, and "
        "the edit that frees it. The file needs the uses of its tensors, which "
        "`neutracer rehearse` records."
    )
    parser = add_command(commands, "drag", summary, description, _DRAG_EXAMPLE, _drag)
    add_file(parser)
    add_device(parser)
    add_output(parser)
    add_fail_on(
        parser,
        "exit with 1 if an edit of one line saves more of the peak: info (a hundredth), moderate "
        "(a twentieth), serious (a quarter)",
    )
    add_max_memory(parser)


def _drag(options: argparse.Namespace) -> int:
    def asked(options: argparse.Namespace) -> Report:
        return drag(load(options.file, max_memory=options.max_memory), options.device)

    return judged(answered(options, asked), options, file=options.file)
