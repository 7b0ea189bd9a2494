# SPDX-License-Identifier: Apache-2.0
"""The commands `neutracer plot` and `neutracer export`."""

from __future__ import annotations

import argparse
import os
from typing import Any

from neutracer.cli.parts import (
    add_command,
    add_device,
    add_max_memory,
    add_window,
    check_written,
    complain,
    complain_of,
    device_size,
    refused,
    say_written,
    window_of,
    without_history_warning,
)
from neutracer.errors import NeutracerError, SettingsError
from neutracer.picture.extra import picture_file, source_name
from neutracer.trace.snapshot import load

_EXAMPLE = """example:
  neutracer plot snapshot.pickle -o memory.png                    # each block at its address
  neutracer plot before.pickle after.pickle -o both.svg --x event
  neutracer plot snapshot.pickle -o what_if.png --set expandable_segments:True
  neutracer plot snapshot.pickle --what timeline                  # memory by holder, over time
  neutracer plot snapshot.pickle --what timeline --by category --seconds 0.05:0.07
  neutracer plot snapshot.pickle --what fragmentation --event 2048
  neutracer plot snapshot.pickle --what bill                      # every byte at a failure
  neutracer plot neutracer-run --what ranks -o job.png            # rank x time
"""

_KINDS = ("mdtp", "timeline", "fragmentation", "bill", "ranks")

# Options of one kind of picture.
_OWN = {
    "by": "timeline",
    "event": "fragmentation or bill",
    "addresses": "mdtp",
    "set": "mdtp",
    "capacity": "bill",
}


def add_plot(commands: Any, summary: str) -> None:
    description = (
        "Draws a snapshot, or the ranks of a job. The default is memory x time, each block at its "
        "address; two files are drawn side by side on one scale."
    )
    plot = add_command(commands, "plot", summary, description, _EXAMPLE, _plot)
    plot.add_argument(
        "files",
        nargs="+",
        metavar="FILE",
        help="one snapshot, or two; for ranks a folder, or many snapshots",
    )
    plot.add_argument(
        "--what",
        choices=_KINDS,
        default="mdtp",
        help="the picture: mdtp (default), timeline, fragmentation, bill or ranks",
    )
    plot.add_argument(
        "-o",
        "--output",
        metavar="OUT",
        help="a file: .png, .svg, .pdf and others (default: FILE with .WHAT.png)",
    )
    add_device(plot)
    plot.add_argument("--x", choices=("time", "event"), default="time", help="the horizontal axis")
    add_window(plot)
    plot.add_argument(
        "--by",
        choices=("place", "line", "stack", "category"),
        help="timeline: one band per place, line, stack or category (default: place)",
    )
    plot.add_argument(
        "--event",
        type=int,
        metavar="N",
        help="fragmentation: the segments after this event; bill: the failure at this event",
    )
    plot.add_argument(
        "--capacity", metavar="SIZE", help='bill: the memory of the device, like "24GiB"'
    )
    plot.add_argument(
        "--addresses",
        metavar="A:B",
        help="mdtp: only these addresses (0x7f3a00:0x7f4000), or one block by the name that "
        "PyTorch's viewer gives it (b7f3a00_2)",
    )
    plot.add_argument(
        "--set",
        metavar="CONF",
        help="mdtp: beside it a replay with this PYTORCH_CUDA_ALLOC_CONF",
    )
    plot.add_argument("--dark", action="store_true", help="colours for a dark page")
    add_max_memory(plot)


def _plot(options: argparse.Namespace) -> int:
    wrong = _misuse(options)
    if wrong:
        return complain(wrong)
    name = os.path.basename(os.path.normpath(options.files[0]))
    stem = "snapshot" if options.files[0] == "-" else name
    output = f"{stem}.{options.what}.png" if options.output is None else options.output
    try:
        picture_file(output, *options.files)
    except (NeutracerError, ValueError) as error:
        return complain(str(error))
    try:
        with without_history_warning():
            _draw(options, output)
    except SettingsError as error:
        return complain(refused(options.set, error))
    except (NeutracerError, OSError, ValueError) as error:
        return complain_of(" ".join(options.files), error)
    say_written(output)
    return 0


def _misuse(options: argparse.Namespace) -> str:
    """The error message for options that don't go together, or "" if they do."""
    for name, what in _OWN.items():
        if getattr(options, name) is not None and options.what not in what.split(" or "):
            return f"--{name} is for --what {what}"
    if options.what == "ranks":
        is_part = bool(window_of(options))
        return "--what ranks takes no --events, --seconds or --host" if is_part else ""
    if options.what != "mdtp":
        is_one = len(options.files) == 1
        return (
            "" if is_one else f"--what {options.what} takes one file; mdtp draws two side by side"
        )
    if len(options.files) > (2 if options.set is None else 1):
        return "give one file, alone or with --set, or two to compare"
    return ""


def _draw(options: argparse.Namespace, output: str) -> None:
    look = {"dark": options.dark, "output": output}
    if options.what == "ranks":
        from neutracer.rank.plot import plot_ranks

        plot_ranks(options.files, **look)
        return
    window = window_of(options)
    files = [load(file, **window) for file in options.files] if window else options.files
    if options.what == "bill":
        from neutracer.oom.explain import explain
        from neutracer.picture.plots import plot_bill

        capacity = device_size(options.capacity)
        why = explain(files[0], capacity, device=options.device, event=options.event)
        plot_bill(why, title=source_name(files[0]), **look)
        return
    look |= {"device": options.device, "x": options.x}
    if options.what == "mdtp":
        from neutracer.picture.plots import mdtp

        shown = files if options.set is None else [_simulated(files[0], options)]
        mdtp(*shown, address_range=_addresses(options.addresses), **look)
        return
    from neutracer.picture.plots import plot_fragmentation, plot_timeline

    if options.what == "fragmentation":
        plot_fragmentation(files[0], event=options.event, **look)
    else:
        plot_timeline(files[0], by=options.by or "place", **look)


def _simulated(source: Any, options: argparse.Namespace) -> Any:
    """Replay the recording with `--set`, to be drawn beside it."""
    from neutracer.whatif.what_if import what_if

    return what_if(source, options.set, device=options.device)[options.set]


def _addresses(text: str | None) -> tuple[str, str] | str | None:
    """`--addresses` as two addresses, or the name of a block."""
    if text is None or ":" not in text:
        return text
    first, _, end = text.partition(":")
    return first, end


# ---- Export ----------------------------------------------------------------------------


_EXPORT_EXAMPLE = """example:
  neutracer export snapshot.pickle --to parquet                  # one row per allocation
  neutracer export snapshot.pickle --to parquet --what events -o events.parquet
  neutracer export snapshot.pickle --to sqlite                   # allocations, events, the bill
  neutracer export snapshot.pickle --to collapsed                # stacks at the peak
  neutracer export snapshot.pickle --to speedscope --what churn  # stacks that allocate most
  neutracer export before.pickle after.pickle --to speedscope    # what grew, what shrank
  neutracer export snapshot.pickle --to perfetto --kineto trace.json
"""


def add_export(commands: Any, summary: str) -> None:
    from neutracer.exporting import CONTENTS, FORMATS

    description = "Writes a snapshot as a file of another tool."
    parser = add_command(commands, "export", summary, description, _EXPORT_EXAMPLE, _export)
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
    from neutracer.exporting import export

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
