# SPDX-License-Identifier: Apache-2.0
"""The command `neutracer what-if`."""

from __future__ import annotations

import argparse
from typing import Any

from neutracer.cli.parts import (
    HelpPage,
    add_max_memory,
    add_output,
    check_written,
    complain,
    complain_of,
    device_size,
    give,
    window_of,
    without_history_warning,
)
from neutracer.diagnose.settings.recommend import recommend
from neutracer.diagnose.settings.replay_check import check_replay
from neutracer.diagnose.settings.search import OBJECTIVES
from neutracer.diagnose.settings.what_if import what_if
from neutracer.errors import NeutracerError, SettingsError
from neutracer.render.report import Report
from neutracer.trace.snapshot import load

__all__ = [
    "add_circumstances",
    "add_objective",
    "add_simulation",
    "add_what_if",
    "refused",
    "simulation",
]

_EXAMPLE = """example:
  neutracer what-if snapshot.pickle                       # the best of a few dozen settings
  neutracer what-if snapshot.pickle --capacity 24GiB      # would it fit on that card?
  neutracer what-if snapshot.pickle --fraction 0.5 --capacity 80GiB    # half of such a card
  neutracer what-if snapshot.pickle --set expandable_segments:True --set max_split_size_mb:128
  neutracer what-if snapshot.pickle --batch 2             # with a batch twice as large
  neutracer what-if snapshot.pickle --collected-at train.py:95    # without its cycles
  neutracer what-if --check snapshot.pickle               # how far to trust the model

exit codes: 0, 2 for a file that can't be read or replayed, or settings that PyTorch refuses
"""


def add_what_if(commands: Any, summary: str) -> None:
    """Add the command to a parser's commands; `summary` is its line in their list."""
    parser = commands.add_parser(
        "what-if",
        help=summary,
        description=(
            "Replays a snapshot's trace on a model of PyTorch's allocator: under the settings "
            "given with --set. Without --set it tries a few dozen and shows the best."
        ),
        epilog=_EXAMPLE,
        formatter_class=HelpPage,
    )
    parser.add_argument("file", metavar="FILE", help='a snapshot; "-" is standard input')
    _add_questions(parser)
    _add_changes(parser)
    add_circumstances(parser)
    parser.set_defaults(run=_what_if)


def _add_questions(parser: argparse.ArgumentParser) -> None:
    """The question: about these settings, the model itself, or the best."""
    how = parser.add_mutually_exclusive_group()
    how.add_argument(
        "--set",
        dest="settings",
        metavar="CONF",
        action="append",
        default=[],
        help='a PYTORCH_CUDA_ALLOC_CONF to replay; may be given several times; "" is the default',
    )
    how.add_argument(
        "--check",
        action="store_true",
        help="only say how faithfully the model replays the file's own settings",
    )
    add_objective(how)


def _add_changes(parser: argparse.ArgumentParser) -> None:
    """What the program would do otherwise."""
    parser.add_argument(
        "--batch", type=float, default=1.0, metavar="K", help="with a batch K times as large"
    )
    parser.add_argument(
        "--free-at-once",
        metavar="NAME",
        action="append",
        default=[],
        help="with the blocks of this function or FILE:LINE freed as soon as they are made",
    )
    parser.add_argument(
        "--empty-cache-after",
        type=int,
        metavar="EVENT",
        action="append",
        default=[],
        help="with a call of empty_cache() after this event; may be given several times",
    )
    parser.add_argument(
        "--no-cycles",
        action="store_true",
        help="as if no reference cycle kept blocks until a collection; for traces with C++ stacks",
    )
    parser.add_argument(
        "--collected-at",
        metavar="NAME",
        action="append",
        default=[],
        help="the same for other traces: collections ran in this function or FILE:LINE",
    )


def add_objective(parser: Any) -> None:
    """Add what counts as best."""
    parser.add_argument(
        "--objective",
        choices=OBJECTIVES,
        default="fit",
        help="what counts as best: the least memory in which every request succeeds (fit), the "
        "lowest peak of reserved, or the fewest device calls (speed)",
    )


def add_circumstances(parser: argparse.ArgumentParser) -> None:
    """Add where it would run, and how the answer should look."""
    parser.add_argument(
        "--torch", metavar="VERSION", help='the version of torch whose rules apply, like "2.11"'
    )
    parser.add_argument(
        "--capacity", metavar="SIZE", help='the most memory the process may have, like "24GiB"'
    )
    parser.add_argument(
        "--fraction",
        type=float,
        metavar="F",
        help="with set_per_process_memory_fraction(F); --capacity is then the whole device, "
        "where the JSON beside the file does not tell it",
    )
    parser.add_argument(
        "--device", type=int, metavar="N", help="which device, if there are several"
    )
    add_output(parser)
    add_max_memory(parser)


def add_simulation(parser: Any) -> None:
    """Add what a command takes that draws a file beside what it would have been."""
    parser.add_argument(
        "--set",
        dest="settings",
        metavar="CONF",
        help="also draw what it would have been with this PYTORCH_CUDA_ALLOC_CONF",
    )
    parser.add_argument(
        "--capacity", metavar="SIZE", help="with --set: the most memory the process may have"
    )


def simulation(options: argparse.Namespace) -> list[Any]:
    """What is drawn: the files, or with `--set` what the first one would have been."""
    window = window_of(options)
    if options.settings is None:
        return [load(file, **window) for file in options.files] if window else list(options.files)
    snap = load(options.files[0], **window)
    capacity = device_size(options.capacity)
    plan = what_if(snap, options.settings, capacity=capacity, device=options.device)
    return [plan[options.settings]]


def refused(settings: str | list[str], error: SettingsError) -> str:
    """What to say of settings that PyTorch refuses."""
    written = settings if isinstance(settings, str) else " ".join(settings)
    hint = "; they are written KEY:VALUE, as expandable_segments:True" if "=" in written else ""
    return f"--set: {error}{hint}"


def _what_if(options: argparse.Namespace) -> int:
    changes = (options.batch != 1.0, options.free_at_once, options.empty_cache_after)
    limits = (options.capacity, options.fraction is not None)
    if options.check and any((*changes, options.no_cycles, options.collected_at, *limits)):
        return complain(
            "--check looks at the recording as it is: without another batch, capacity or fraction"
        )
    try:
        check_written(options.output, options.file)
        report = _asked(options)
    except SettingsError as error:
        return complain(refused(options.settings, error))
    except (NeutracerError, OSError, ValueError) as error:
        return complain_of(options.file, error)
    return give([report], options)


def _asked(options: argparse.Namespace) -> Report:
    capacity = device_size(options.capacity)
    with without_history_warning():
        snap = load(options.file, max_memory=options.max_memory)
    if options.check:
        return check_replay(snap, device=options.device, torch_version=options.torch)
    no_cycles = options.collected_at or options.no_cycles
    changes = (options.empty_cache_after, options.free_at_once, options.batch != 1.0, no_cycles)
    if options.settings or any(changes):
        return what_if(
            snap,
            *options.settings,
            capacity=capacity,
            fraction=options.fraction,
            device=options.device,
            empty_cache_after=options.empty_cache_after,
            free_at_once=options.free_at_once,
            batch=options.batch,
            no_cycles=no_cycles,
            torch_version=options.torch,
        )
    return recommend(
        snap,
        capacity,
        options.objective,
        fraction=options.fraction,
        device=options.device,
        torch_version=options.torch,
    )
