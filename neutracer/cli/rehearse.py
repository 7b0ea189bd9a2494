# SPDX-License-Identifier: Apache-2.0
"""The command `neutracer rehearse`."""

from __future__ import annotations

import argparse
import math
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Collection
from dataclasses import replace
from typing import Any, NoReturn

from neutracer.cli.parts import (
    add_command,
    add_format,
    add_program,
    complain,
    complain_of,
    complain_of_job,
    device_size,
    print_report,
    program_of,
)
from neutracer.errors import NeutracerError
from neutracer.overview import OverviewReport, led_by, overview
from neutracer.rehearsal.cards import ENDLESS
from neutracer.rehearsal.rehearse import capacity_of, rehearse_program, search
from neutracer.render.document import Note, Severity
from neutracer.render.report import Finding
from neutracer.saving import check_output
from neutracer.trace.snapshot import load
from neutracer.trace.source import tell, working
from neutracer.units import format_bytes, format_count
from neutracer.whatif.savings import savings

_EXAMPLE = """example:
  neutracer rehearse --device "RTX 4090" train.py --batch-size 32
  neutracer rehearse --device "RTX 4090" --largest-batch train.py      # the most that fits
  neutracer rehearse --savings --modules train.py                      # what would save, by layer
  neutracer rehearse --capacity 24GiB --steps 5 -o before.pickle -m package.train
  neutracer explain before.pickle                         # why it runs out of memory, if it does
  neutracer what-if before.pickle                         # with other allocator settings

exit code: 0; 1 if it runs out of memory on that card; 2 if the program can't be rehearsed
Every command reads the snapshot. Files that the program would write are not written.
"""

# The largest batch that is tried.
_MOST = 1 << 16


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
    _add_questions(parser)
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        default="rehearsed.pickle",
        help="the snapshot to write (default: rehearsed.pickle)",
    )
    add_format(parser)
    add_program(parser)


def _add_questions(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--modules",
        action="store_true",
        help="show the peak by layer, as the path of its nn.Module",
    )
    parser.add_argument(
        "--savings",
        action="store_true",
        help="also what sharding, checkpointing, smaller types and other changes would save",
    )
    parser.add_argument(
        "--largest-batch",
        action="store_true",
        help="find the largest batch that fits, and report on it: about ten rehearsals",
    )
    parser.add_argument(
        "--batch-name",
        metavar="NAME",
        help="where the program takes its batch from: an option (--bs), an argument (train.batch=) "
        "or an environment variable (BATCH); default: --batch-size, or --batch_size if given",
    )


def _rehearse(options: argparse.Namespace) -> int:
    command = program_of(options)
    finding: Finding | None = None
    threads, streams = set(threading.enumerate()), (sys.stdout, sys.stderr)

    def leave(run: Any) -> NoReturn:
        sys.stdout, sys.stderr = streams
        code = 2
        try:
            code = _finish(run, options, finding)
            sys.stdout.flush()
        finally:
            os._exit(code)

    try:
        check_output(options.output, *([] if options.module else command[:1]))
        if options.largest_batch:
            batch, finding = _largest(options, command)
            if not batch:
                complain(finding.message)
                return 1
            command = _with_batch(options, command, batch, os.environ)
        run = rehearse_program(
            command,
            module=options.module,
            steps=options.steps,
            device=options.device,
            settings=options.settings,
            world_size=options.world_size,
            modules=options.modules,
            capacity=device_size(options.capacity),
            leave=leave,
        )
    except (NeutracerError, OSError, ValueError) as error:
        return complain_of_job(command[0], error)
    return _ended(_finish(run, options, finding), threads)


def _ended(code: int, before: Collection[threading.Thread]) -> int:
    """The exit code; threads that the program did not come to end would keep the process."""
    left = [one for one in threading.enumerate() if one not in before and not one.daemon]
    if left:
        complain(f"{format_count(len(left), 'thread')} of the program had not ended yet")
        sys.stdout.flush()
        os._exit(code)
    return code


def _finish(run: Any, options: argparse.Namespace, finding: Finding | None) -> int:
    """Save a snapshot, print its report, return the exit code."""
    snap, failure = run.snapshot(), run.failure
    refused = bool(run.requests.refused_bytes)
    ran_out = refused or "oom" in snap.events["action"]
    if len(snap.events) or refused:
        try:
            snap.save(options.output)
        except (NeutracerError, OSError, ValueError) as error:
            return complain_of(options.output, error)
        report: OverviewReport = overview(snap, options.output)
        if finding is not None:
            report = led_by(finding, report)
        more = []
        if options.savings:
            ranks = options.world_size if options.world_size > 1 else 8
            saved = savings(run.snapshot(whole=True) if ran_out else snap, ranks=ranks)
            # The report has the caveats of the rehearsal.
            more.append(replace(saved, findings=()))
        # Its assumptions are what a prediction rests on.
        options.budget = math.inf if options.budget is None else options.budget
        print_report(report, options, sys.stdout, *more)
    if failure:
        kept = f"; the part rehearsed so far is in {options.output}" if len(snap.events) else ""
        code = complain(f"{failure}{kept}")
        return 1 if refused else code
    return 1 if ran_out else 0


# ---- Largest batch -----------------------------------------------------------------------


def _largest(options: argparse.Namespace, command: list[str]) -> tuple[int, Finding]:
    """The largest batch that fits, 0 for none, and the finding that says so.

    Each batch is rehearsed in a process of its own: a script may keep state in its modules.
    """
    room = capacity_of(options.device, device_size(options.capacity), options.world_size)
    with tempfile.TemporaryDirectory(prefix="neutracer-") as folder, working():

        def needs_of(batch: int) -> int:
            tell(f"rehearsing a batch of {batch:,}")
            return _needs(options, command, batch, os.path.join(folder, "tried.pickle"))

        best, needs = search(needs_of, room, _MOST)
    name = _batch_name(options, command)
    message = f"the largest batch that fits in {format_bytes(room)} is {best:,} ({name})"
    if best == _MOST:
        message = f"a batch of {best:,} ({name}) fits in {format_bytes(room)}; none larger is tried"
    if not best:
        message = f"not even a batch of 1 ({name}) fits in {format_bytes(room)}"
    if best + 1 in needs:
        message += f": {best + 1:,} may need {format_bytes(needs[best + 1])}"
    tried = format_count(len(needs), "batch", "batches")
    notes = (Note(f"{tried} rehearsed, each at the upper end of what it may need."),)
    return best, Finding("largest_batch", Severity.INFO, needs.get(best, 0), message, notes)


def _needs(options: argparse.Namespace, command: list[str], batch: int, path: str) -> int:
    """The most memory that a batch may need."""
    variables = dict(os.environ)
    words = [sys.executable, "-m", "neutracer", "rehearse", "-o", path, "--brief"]
    words += ["--device", options.device, "--capacity", str(ENDLESS), "--steps", str(options.steps)]
    words += ["--settings", options.settings, "--world-size", str(options.world_size)]
    words += ["-m"] if options.module else []
    words += ["--", *_with_batch(options, command, batch, variables)]
    done = subprocess.run(words, env=variables, capture_output=True, text=True, errors="replace")
    if done.returncode > 1 or done.returncode < 0:
        reason = (done.stderr.strip().splitlines() or ["it ended early"])[-1]
        reason = reason.removeprefix("neutracer: ").partition("; the part rehearsed")[0]
        raise NeutracerError(f"with a batch of {batch:,}: {reason}")
    facts: Any = load(path).rehearsed
    return int(facts.needs[1])


def _batch_name(options: argparse.Namespace, command: list[str]) -> str:
    if options.batch_name:
        return str(options.batch_name)
    given = {word.partition("=")[0] for word in command[1:]}
    return "--batch_size" if "--batch_size" in given else "--batch-size"


def _with_batch(
    options: argparse.Namespace, command: list[str], batch: int, variables: Any
) -> list[str]:
    """The command with another batch; an environment variable goes into `variables`."""
    name = _batch_name(options, command)
    if not name.startswith("-") and not name.endswith("="):
        variables[name] = str(batch)
        return command
    flat = name.removesuffix("=")
    words = [word for word in command if not word.startswith(f"{flat}=")]
    if flat in words[1:] and name == flat:
        at = words.index(flat, 1)
        del words[at : at + 2]
    return [*words, f"{flat}={batch}"]
