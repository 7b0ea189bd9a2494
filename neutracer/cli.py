# SPDX-License-Identifier: Apache-2.0
"""The command line: parse, call, show."""

from __future__ import annotations

import argparse
import io
import os
import sys
import warnings
from collections.abc import Sequence
from typing import Any, TextIO

import neutracer
from neutracer.cli_build_hooks import add_build_hooks
from neutracer.cli_diff import add_diff
from neutracer.cli_explain import add_explain
from neutracer.cli_parts import (
    FAILED,
    complain,
    complain_of,
    print_report,
    standing_streams,
    without_history_warning,
    written,
)
from neutracer.cli_run import add_run
from neutracer.cli_top import add_top
from neutracer.cli_view import add_view
from neutracer.cli_what_if import add_simulation, add_what_if, simulation
from neutracer.diagnose.cycle_run import cycle_run
from neutracer.diagnose.environment import environment
from neutracer.diagnose.overview import OverviewReport, overview
from neutracer.errors import (
    NeutracerError,
    TensorCycleWarning,
    UnavailableError,
)
from neutracer.live.cycle_watch import warn_tensor_cycles
from neutracer.live.program import run_program
from neutracer.pictures.mdtp import mdtp
from neutracer.render.document import Severity
from neutracer.render.json import dumps
from neutracer.render.terminal import show, write
from neutracer.trace.snapshot import load
from neutracer.units import parse_bytes

__all__ = ["main"]

_REPORT_EXAMPLE = """example:
  neutracer report snapshot.pickle
  neutracer report --json rank*.pickle.gz > report.json
  neutracer report --fail-on severe snapshot.pickle   # exit code 1 if it finds that

exit codes: 0, 1 for findings at --fail-on, 2 for a file that can't be read
"""

_CYCLES_EXAMPLE = """example:
  neutracer cycles train.py --epochs 1
  neutracer cycles -o cycles.html --min-bytes 1MiB -m package.train
  neutracer cycles --fail-on moderate --device cpu test_model.py    # for CI

exit codes: the program's own if that is not 0, 1 for cycles at --fail-on, 2 where the
program can't be watched; the summary goes to standard error, or with --json to standard output
"""

_MDTP_EXAMPLE = """example:
  neutracer mdtp snapshot.pickle -o memory.png
  neutracer mdtp before.pickle after.pickle -o both.svg --x event
  neutracer mdtp snapshot.pickle -o what_if.png --set expandable_segments:True
  neutracer mdtp snapshot.pickle -o zoom.png --range 0.05 0.07 --stream 0x1b2d51f0
"""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="neutracer", description="Explains the GPU memory of PyTorch programs."
    )
    parser.add_argument("--version", action="version", version=f"neutracer {neutracer.__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    _add_report(commands)
    _add_cycles(commands)
    add_explain(commands)
    add_run(commands)
    add_diff(commands)
    add_what_if(commands)
    add_top(commands)
    add_view(commands)
    _add_mdtp(commands)
    add_build_hooks(commands)
    _add_env(commands)
    return parser


def _add_report(commands: Any) -> None:
    parser = commands.add_parser(
        "report",
        help="what a snapshot shows, on one page",
        description="Says what each snapshot shows: totals, peak and who holds it, findings.",
        epilog=_REPORT_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "files", nargs="+", metavar="FILE", help='a snapshot; "-" is standard input'
    )
    parser.add_argument("--json", action="store_true", help="JSON with a versioned schema")
    parser.add_argument("-o", "--output", metavar="FILE", help="write there instead of printing")
    parser.add_argument(
        "--fail-on",
        choices=[str(severity) for severity in Severity],
        metavar="SEVERITY",
        help="exit with 1 if a finding is at least that: info, moderate, serious, severe",
    )
    parser.add_argument("--max-memory", metavar="SIZE", help='most memory for reading, as "4GiB"')
    parser.set_defaults(run=_report)


def _add_cycles(commands: Any) -> None:
    parser = commands.add_parser(
        "cycles",
        help="run a program and tell the reference cycles that kept its tensors",
        description=(
            "Runs a Python program under the cycle watch and sums up at its end which "
            "reference cycles kept tensors until the garbage collector ran."
        ),
        epilog=_CYCLES_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("-m", dest="module", action="store_true", help="run a module")
    parser.add_argument("--device", help="whose tensors count: cpu, cuda, cuda:1, all")
    parser.add_argument("--min-bytes", metavar="SIZE", default="0", help="pass over smaller ones")
    parser.add_argument("--json", action="store_true", help="JSON with a versioned schema")
    parser.add_argument("-o", "--output", metavar="FILE", help="an offline page with the graphs")
    parser.add_argument(
        "--fail-on",
        choices=[str(severity) for severity in Severity],
        metavar="SEVERITY",
        help="exit with 1 if a cycle is at least that: moderate, serious (64 MiB), severe (1 GiB)",
    )
    parser.add_argument("program", metavar="PROGRAM", help="a script, or with -m a module")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="its arguments")
    parser.set_defaults(run=_cycles)


def _add_mdtp(commands: Any) -> None:
    plot = commands.add_parser(
        "mdtp",
        help="memory over time as a picture: each block at its address",
        description="Draws which address held what, when; two files side by side on one scale.",
        epilog=_MDTP_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    plot.add_argument("files", nargs="+", metavar="FILE", help="a snapshot, or two to compare")
    plot.add_argument(
        "-o", "--output", metavar="OUT", required=True, help="a .png, .svg or .pdf file"
    )
    plot.add_argument("--device", type=int, metavar="N", help="the device, if there are several")
    plot.add_argument("--x", choices=("time", "event"), default="time", help="the axis")
    plot.add_argument("--style", choices=("default", "classic"), default="default")
    plot.add_argument("--stream", type=lambda text: int(text, 0), help="only this raw stream")
    plot.add_argument(
        "--pool", type=int, nargs=2, metavar="N", help="only this private pool; 0 0 is the default"
    )
    plot.add_argument(
        "--range", type=float, nargs=2, metavar="X", help="from, to: in seconds, or events"
    )
    add_simulation(plot)
    plot.add_argument("--raw-addresses", action="store_true", help="leave no address out")
    plot.set_defaults(run=_mdtp)


def _add_env(commands: Any) -> None:
    parser = commands.add_parser(
        "env",
        help="versions, what is available, what is missing and how to get it",
        epilog="example:\n  neutracer env",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", action="store_true", help="JSON with a versioned schema")
    parser.set_defaults(run=_env)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        arguments: Without the program's name; None is those of the process.

    Returns:
        The exit code.
    """
    try:
        with standing_streams():
            options = _parser().parse_args(arguments)
            code: int = options.run(options)
        return code
    except BrokenPipeError:
        # Whoever read has seen enough.
        return 0
    except OSError as error:
        return complain_of("standard output", error)
    except KeyboardInterrupt:
        return 130


def _report(options: argparse.Namespace) -> int:
    found = [_read(file, options.max_memory) for file in options.files]
    reports = [report for report in found if report is not None]
    code = 0 if len(reports) == len(found) else FAILED
    if not reports:
        return code
    if options.output is None:
        _print(reports, options.json, sys.stdout)
    else:
        page = io.StringIO()
        _print(reports, options.json, page)
        if not written(options.output, page.getvalue()):
            return FAILED
    if code == 0 and options.fail_on:
        bad = [r for r in reports if r.worst is not None and r.worst >= options.fail_on]
        code = 1 if bad else 0
    return code


def _read(file: str, max_memory: str | None) -> OverviewReport | None:
    """The report on one file; None, with a word on standard error, if it can't be read."""
    try:
        with without_history_warning():
            snap = load(file, max_memory=max_memory)
        if file == "-":
            return overview(snap, "standard input")
        return overview(snap, file, path=file)
    except (NeutracerError, OSError, ValueError) as error:
        complain_of(file, error)
        return None


def _print(reports: list[OverviewReport], as_json: bool, out: TextIO) -> None:
    if as_json:
        plain = [report.to_dict() for report in reports]
        several = {"schema": "neutracer.reports/1", "reports": plain}
        out.write(dumps(plain[0] if len(plain) == 1 else several) + "\n")
        return
    for number, report in enumerate(reports):
        if number:
            out.write("\n")
        show(report.document(), out, max_lines=None)


def _cycles(options: argparse.Namespace) -> int:
    try:
        if options.output is not None:
            _check_page(options.output)
        min_bytes = parse_bytes(options.min_bytes)
        device = _watched_device(options.device)
        with warn_tensor_cycles(device, min_bytes) as watch, warnings.catch_warnings():
            # The summary tells them, ranked and with their pictures.
            warnings.simplefilter("ignore", TensorCycleWarning)
            command = [options.program, *options.arguments]
            code = run_program(command, module=options.module)
            report = cycle_run(watch, options.program, code, device, min_bytes)
    except OSError as error:
        return complain_of(options.program, error)
    except (NeutracerError, ValueError) as error:
        return complain(str(error))
    print_report(report, options.json, sys.stderr)
    try:
        if options.output is not None:
            report.graph.to_html(options.output)
    except (NeutracerError, OSError) as error:
        complain_of(options.output, error)
        return code or FAILED
    if code == 0 and options.fail_on and report.worst is not None:
        code = 1 if report.worst >= options.fail_on else 0
    return code


def _check_page(output: str) -> None:
    """Say before the program runs for hours, not after, that its page can't be written."""
    folder = os.path.dirname(output) or os.curdir
    if not os.path.isdir(folder):
        raise NeutracerError(f"{output}: there is no folder {folder}")
    if not output:
        raise NeutracerError("'': this is no name of a file")


def _watched_device(device: str | None) -> str | None:
    """The device that was asked for; without one, all where torch has no accelerator."""
    try:
        import torch
    except ImportError:
        raise UnavailableError("torch", "install it with 'pip install torch'") from None
    if device is None and not torch.cuda.is_available():
        complain("no accelerator here: tensors of every device count")
        return "all"
    return device


def _mdtp(options: argparse.Namespace) -> int:
    if len(options.files) > (2 if options.settings is None else 1):
        return complain("one file is drawn, alone or with --set, or two are compared")
    if options.capacity is not None and options.settings is None:
        return complain("--capacity is for what would have been: it goes with --set")
    if not options.output.lower().endswith((".png", ".svg", ".pdf")):
        return complain(f"{options.output}: the name of a picture ends in .png, .svg or .pdf")
    try:
        with without_history_warning():
            mdtp(
                *simulation(options),
                device=options.device,
                x=options.x,
                style=options.style,
                stream=options.stream,
                pool=tuple(options.pool) if options.pool else None,
                time_range=tuple(options.range) if options.range else None,
                raw_addresses=options.raw_addresses,
                output=options.output,
            )
    except (NeutracerError, OSError, ValueError) as error:
        return complain_of(" ".join(options.files), error)
    write(f"{options.output}\n", sys.stdout)
    return 0


def _env(options: argparse.Namespace) -> int:
    print_report(environment(neutracer.__version__), options.json, sys.stdout)
    return 0
