# SPDX-License-Identifier: Apache-2.0
"""The command `neutracer export`."""

from __future__ import annotations

import argparse
from typing import Any

from neutracer.cli.parts import (
    add_command,
    add_max_memory,
    add_window,
    check_written,
    complain,
    complain_of,
    say_written,
    window_of,
    without_history_warning,
)
from neutracer.errors import NeutracerError
from neutracer.exporting import CONTENTS, FORMATS, export
from neutracer.trace.snapshot import load

_EXAMPLE = """example:
  neutracer export snapshot.pickle --to parquet                  # one row per allocation
  neutracer export snapshot.pickle --to parquet --what events -o events.parquet
  neutracer export snapshot.pickle --to sqlite                   # allocations, events, the bill
  neutracer export snapshot.pickle --to collapsed                # stacks at the peak
  neutracer export snapshot.pickle --to speedscope --what churn  # stacks that allocate most
  neutracer export before.pickle after.pickle --to speedscope    # what grew, what shrank
  neutracer export snapshot.pickle --to perfetto --kineto trace.json
"""


def add_export(commands: Any, summary: str) -> None:
    description = "Writes a snapshot as a file of another tool."
    parser = add_command(commands, "export", summary, description, _EXAMPLE, _export)
    parser.add_argument(
        "files",
        nargs="+",
        metavar="FILE",
        help='a snapshot; collapsed and speedscope compare it with a second; "-" is standard input',
    )
    parser.add_argument("--to", choices=tuple(FORMATS), required=True, help="the format")
    parser.add_argument(
        "--what",
        choices=tuple(dict.fromkeys(one for known in CONTENTS.values() for one in known)),
        help="parquet: allocations (default), events or bill; collapsed and speedscope: peak "
        "(default) or churn",
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="OUT",
        help="the file (default: FILE with .WHAT and the format's ending)",
    )
    parser.add_argument("--device", type=int, metavar="N", help="only this device")
    parser.add_argument(
        "--kineto",
        metavar="TRACE",
        help="perfetto: take the clock of this trace of torch.profiler, to see both together",
    )
    add_window(parser)
    add_max_memory(parser)


def _export(options: argparse.Namespace) -> int:
    files = options.files
    if len(files) > 2:
        return complain("give one file, or two to compare")
    try:
        check_written(options.output, *files)
        with without_history_warning():
            window = window_of(options)
            source, *after = [load(one, **window) for one in files] if window else files
            path = export(
                source,
                options.to,
                options.output,
                what=options.what,
                after=after[0] if after else None,
                device=options.device,
                kineto=options.kineto,
            )
    except (NeutracerError, OSError, ValueError) as error:
        return complain_of(" ".join(files), error)
    say_written(str(path))
    return 0
