# SPDX-License-Identifier: Apache-2.0
"""The command `neutracer ranks`."""

from __future__ import annotations

import argparse
import io
import os
import sys
from typing import Any

from neutracer.cli.parts import (
    FAILED,
    add_command,
    add_fail_on,
    add_json,
    check_written,
    complain,
    complain_of,
    fails,
    print_report,
    written,
)
from neutracer.errors import NeutracerError
from neutracer.rank.reduce import listed
from neutracer.rank.report import RanksReport, ranks_of
from neutracer.rank.watch import stored_ranks
from neutracer.render.html import render_page
from neutracer.render.report import dump
from neutracer.render.text import show

__all__ = ["add_ranks"]

_EXAMPLE = """example:
  neutracer ranks neutracer-run                  # the folder that each rank wrote into
  neutracer ranks rank*.pickle --json > job.json
  neutracer ranks s3://bucket/job -o job.html    # a page with the map of ranks and time
  neutracer ranks --store node7:29500            # a running job, by its ranks' own digests

exit codes: 0, 1 for findings at --fail-on, 2 where there is nothing to compare
"""


def add_ranks(commands: Any, summary: str) -> None:
    """Add the command to a parser's commands; `summary` is its line in their list."""
    description = (
        "Compares the ranks of one job by the snapshots that they wrote: the spread of each "
        "figure, the odd rank and why it is odd, the first to run out of memory. As many "
        "processes as there are cores read the files, one at a time each."
    )
    parser = add_command(commands, "ranks", summary, description, _EXAMPLE, _ranks)
    parser.add_argument(
        "sources", nargs="*", metavar="DIR|FILE", help="a folder with snapshots, or snapshots"
    )
    parser.add_argument(
        "--store",
        metavar="HOST:PORT",
        help="a running job, by what its ranks publish in its store (neutracer.watch_ranks): "
        "MASTER_ADDR and MASTER_PORT of the job",
    )
    add_json(parser)
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        help="write there instead of printing: a page for .html, a picture for .png, .svg or .pdf",
    )
    add_fail_on(
        parser, "exit with 1 if a finding is at least that: info, moderate, serious, severe"
    )


def _ranks(options: argparse.Namespace) -> int:
    if bool(options.sources) == bool(options.store):
        return complain("say either which files to read, or with --store which job to ask")
    try:
        report = _report(options)
    except OSError as error:
        return complain_of(options.store or options.sources[0], error)
    except (NeutracerError, ValueError) as error:
        return complain(str(error))
    if all(row.state in ("can't be read", "no file") for row in report.rows):
        broken = [row for row in report.rows if row.source]
        rest = f" (nor can {len(broken) - 1} more be read)" if broken[1:] else ""
        return complain(f"{broken[0].source}: {broken[0].note}{rest}")
    return _show(report, options) or int(fails(report, options.fail_on))


def _report(options: argparse.Namespace) -> RanksReport:
    if options.store:
        return stored_ranks(options.store)
    found = listed(options.sources)
    check_written(options.output, *found[0])
    progress = _progress() if sys.stderr.isatty() else None
    return ranks_of(options.sources, found, progress=progress)


def _progress() -> Any:
    def told(done: int, total: int) -> None:
        end = "\n" if done == total else ""
        sys.stderr.write(f"\r{done:,} of {total:,} files{end}")
        sys.stderr.flush()

    return told


def _show(report: RanksReport, options: argparse.Namespace) -> int:
    output: str | None = options.output
    if output is None:
        print_report(report, options.json, sys.stdout)
        return 0
    ending = os.path.splitext(output)[1].lower()
    if ending in (".png", ".svg", ".pdf"):
        from neutracer.rank.plot import plot_ranks

        try:
            plot_ranks(report, output=output)
        except (NeutracerError, OSError, ValueError) as error:
            return complain_of(output, error)
        return 0
    text = io.StringIO()
    if ending in (".html", ".htm"):
        text.write(render_page(report.document(), report.picture()))
    elif options.json or ending == ".json":
        dump(report, text)
    else:
        show(report.document(), text, max_lines=None)
    return 0 if written(output, text.getvalue()) else FAILED
