# SPDX-License-Identifier: Apache-2.0
"""The command `neutracer ranks`."""

from __future__ import annotations

import argparse
import math
import os
import sys
import time
from typing import Any

from neutracer.cli.parts import (
    add_command,
    add_fail_on,
    add_output,
    check_written,
    complain,
    complain_of,
    complain_of_job,
    fails,
    give,
)
from neutracer.errors import NeutracerError
from neutracer.rank.reduce import listed
from neutracer.rank.report import RanksReport, ranks_of
from neutracer.rank.watch import stored_ranks
from neutracer.trace.source import PIPE_WAIT_S, say_working

_EXAMPLE = """example:
  neutracer ranks neutracer-run                  # the folder with the files of all ranks
  neutracer ranks rank*.pickle --json > job.json
  neutracer ranks s3://bucket/job -o job.html    # a page with the map of ranks and time
  neutracer ranks --store node7:29500            # a running job, from its ranks' digests

exit codes: 0, 1 for findings at --fail-on, 2 if there is nothing to compare
"""


def add_ranks(commands: Any, summary: str) -> None:
    description = (
        "Compares the snapshots of a job's ranks: the spread of each figure, outliers and their "
        "causes, the first rank to run out of memory. One process per core reads the files."
    )
    parser = add_command(commands, "ranks", summary, description, _EXAMPLE, _ranks)
    parser.add_argument(
        "sources", nargs="*", metavar="DIR|FILE", help="a folder with snapshots, or snapshots"
    )
    parser.add_argument(
        "--store",
        metavar="HOST:PORT",
        help="the store in which a running job's ranks publish digests "
        "(neutracer.watch_ranks): MASTER_ADDR and MASTER_PORT of the job",
    )
    add_output(parser, "a picture (.png, .svg, .pdf), ")
    add_fail_on(parser)


def _ranks(options: argparse.Namespace) -> int:
    if bool(options.sources) == bool(options.store):
        return complain("give either files to read, or a running job with --store")
    try:
        report = _report(options)
    except (NeutracerError, OSError, ValueError) as error:
        return complain_of_job(options.store or options.sources[0], error)
    if all(row.state in ("can't be read", "no file") for row in report.rows):
        broken = [row for row in report.rows if row.source]
        rest = f" ({len(broken) - 1} more can't be read either)" if broken[1:] else ""
        return complain(f"{broken[0].source}: {broken[0].note}{rest}")
    return _show(report, options) or int(fails(report, options))


def _report(options: argparse.Namespace) -> RanksReport:
    if options.store:
        return stored_ranks(options.store)
    found = listed(options.sources)
    check_written(options.output, *found[0])
    return ranks_of(options.sources, found, progress=_progress())


def _progress() -> Any:
    """Not the line of `working`, whose thread would keep the workers from being forked."""
    is_terminal, begun = sys.stderr.isatty(), time.monotonic()

    def show_progress(done: int, total: int) -> None:
        nonlocal begun
        if not is_terminal:
            if time.monotonic() - begun > PIPE_WAIT_S:
                begun = math.inf
                say_working()
            return
        end = "\n" if done == total else ""
        sys.stderr.write(f"\r{done:,} of {total:,} files{end}")
        sys.stderr.flush()

    return show_progress


def _show(report: RanksReport, options: argparse.Namespace) -> int:
    output: str | None = options.output
    if output is not None and os.path.splitext(output)[1].lower() in (".png", ".svg", ".pdf"):
        from neutracer.rank.plot import plot_ranks

        try:
            plot_ranks(report, output=output)
        except (NeutracerError, OSError, ValueError) as error:
            return complain_of(output, error)
        return 0
    return give([report], options)
