# SPDX-License-Identifier: Apache-2.0
"""Options and output shared by the commands."""

from __future__ import annotations

import argparse
import codecs
import io
import math
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import IO, TYPE_CHECKING, Any, TextIO, TypeVar

from neutracer.errors import HistoryWarning, NeutracerError, SettingsError
from neutracer.render.document import clean

if TYPE_CHECKING:
    from neutracer.recording.program import UnreportedError
    from neutracer.render.document import Severity
    from neutracer.render.report import Finding, Report

# Functions import the rest of the package themselves, so `--version` and `--help` stay fast.

#: The exit code of a failed command.
FAILED = 2

# A smaller `--capacity` lacks its unit.
_LEAST_DEVICE = 1 << 20

# The characters of a verdict, its line of code and what to do.
_LEAST_BUDGET = 500

# Folders of a workspace in which the file of an annotation is looked for.
_MOST_FOLDERS = 10_000

Answer = TypeVar("Answer", bound="Report")

# The start of a sidecar that a process wrote about itself.
_RECORD = re.compile(rb'"(neutracer\.(sidecar|oom_report)/|oom")')
_HEAD_BYTES = 4096


class HelpPage(argparse.RawDescriptionHelpFormatter):
    """Help that wraps paragraphs to the terminal's width and keeps examples as written."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        kind = argparse.RawDescriptionHelpFormatter if "\n" in text else argparse.HelpFormatter
        return kind._fill_text(self, text, width, indent)


def complain(text: str) -> int:
    """Print one line on standard error; return `FAILED`."""
    from neutracer.render.text import write
    from neutracer.trace.source import end_progress

    end_progress()
    try:
        write(f"neutracer: {clean(text)}\n", sys.stderr)
    except (OSError, ValueError):
        # A program run in this process may have closed it.
        with suppress(Exception):
            discard(sys.stderr)
    return FAILED


def complain_of_job(what: str, error: Exception) -> int:
    """Print an error of a command on a program or process: only those of the system don't say
    what they are about; return `FAILED`."""
    return complain_of(what, error) if isinstance(error, OSError) else complain(str(error))


def complain_of(what: str, error: Exception) -> int:
    """Print an error about a file, or about the one it names; return `FAILED`."""
    reason: object = error
    if isinstance(error, OSError) and error.strerror:
        reason = error.strerror
        if isinstance(error.filename, (str, bytes)):
            what = os.fsdecode(error.filename)
    return complain(f"{what or repr(what)}: {reason}")


def add_command(
    commands: Any,
    name: str,
    summary: str,
    description: str,
    example: str,
    run: Callable[..., int] | None = None,
) -> argparse.ArgumentParser:
    """Add a command to the result of `add_subparsers`; one without `run` has commands itself."""
    parser: argparse.ArgumentParser = commands.add_parser(
        name, help=summary, description=description, epilog=example, formatter_class=HelpPage
    )
    parser.set_defaults(run=run)
    return parser


def add_file(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help='a snapshot; "-" is standard input')


def add_files(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "files", nargs="+", metavar="FILE", help='a snapshot; "-" is standard input'
    )


def add_device(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", type=int, metavar="N", help="the device, if there are several")


#: Formats of printed reports.
FORMATS = ("text", "markdown", "json")

# Endings of the files that -o writes in a format; any other is text.
_ENDINGS = {".json": "json", ".md": "markdown", ".html": "html", ".htm": "html"}


def add_format(parser: argparse.ArgumentParser) -> None:
    """Add the options for how a report is shown, and `budget`, how much of it: None is the page
    without details."""
    from neutracer.render.text import BRIEF, WHOLE

    how = parser.add_mutually_exclusive_group()
    how.add_argument(
        "--format",
        choices=FORMATS,
        help="text (default), markdown for a chat or pull request, or json",
    )
    how.add_argument(
        "--json",
        dest="format",
        action="store_const",
        const="json",
        help="JSON with a versioned schema",
    )
    much = parser.add_mutually_exclusive_group()
    for name, budget, text in (
        ("--brief", BRIEF, "only the answer, in five lines"),
        ("--full", WHOLE, "all evidence and all tables"),
    ):
        much.add_argument(name, dest="budget", action="store_const", const=budget, help=text)
    much.add_argument(
        "--budget",
        type=_budget,
        metavar="N",
        help=f"at most N characters of text (at least {_LEAST_BUDGET}), the most telling first",
    )


def _budget(text: str) -> int:
    if not text.isdecimal() or int(text) < _LEAST_BUDGET:
        wanted = f"a number of characters, at least {_LEAST_BUDGET}"
        raise argparse.ArgumentTypeError(f"{text!r} is not {wanted}")
    return int(text)


def add_fail_on(
    parser: argparse.ArgumentParser,
    text: str = "exit with 1 for a finding of at least info, moderate, serious or severe",
    verdicts: Sequence[str] = (),
) -> None:
    """Add `--fail-on`, which `fails` evaluates.

    Args:
        verdicts: Words allowed beside severities; a list is separated by commas.
    """
    from neutracer.render.document import Severity

    severities = [str(severity) for severity in Severity]
    known = (*verdicts, *severities)

    def wanted(text: str) -> tuple[str, ...]:
        words = tuple(word.strip() for word in text.split(",")) if verdicts else (text,)
        for word in words:
            if word not in known:
                raise argparse.ArgumentTypeError(f"{word!r} is not one of {', '.join(known)}")
        return words

    parser.add_argument(
        "--fail-on",
        type=wanted,
        default=(),
        metavar="WORD,…" if verdicts else "SEVERITY",
        help=text,
    )


def fails(
    report: Report, options: argparse.Namespace, verdicts: Iterable[str] = (), file: str = ""
) -> bool:
    """Check a report's verdicts and worst severity against `--fail-on`.

    In a job of GitHub Actions, a report that fails goes to the step's summary and its findings
    become annotations of the lines of code.

    Args:
        file: The file to annotate where a finding has no line.
    """
    from neutracer.render.document import Severity

    wanted: tuple[str, ...] = options.fail_on
    worst = report.worst
    severities = [severity for severity in Severity if severity in wanted]
    least = min(severities, default=None, key=lambda severity: severity.rank)
    failed = not set(wanted).isdisjoint(verdicts) or (
        worst is not None and least is not None and worst >= least
    )
    if failed and os.environ.get("GITHUB_ACTIONS") == "true":
        _annotate(report, least or worst or Severity.INFO, file, options)
    return failed


def _annotate(report: Report, least: Severity, file: str, options: argparse.Namespace) -> None:
    """Write a report to the step's summary, and a workflow command for each finding."""
    from neutracer.render.text import render_markdown, write

    summary = os.environ.get("GITHUB_STEP_SUMMARY")
    if summary:
        with suppress(OSError), open(summary, "a", encoding="utf-8", errors="replace") as page:
            page.write(render_markdown(report.document().in_short()) + "\n\n")
    # A runner reads commands from both streams.
    out = sys.stderr if options.format == "json" else sys.stdout
    for finding in report.findings:
        if finding.severity >= least:
            write(_error_command(finding, file) + "\n", out)


def _error_command(finding: Finding, file: str) -> str:
    """A finding as an `::error` command, at its line of code."""
    entry = finding.entry().in_short()
    notes = (*entry.notes, *entry.advice)
    place = next((note.place for note in notes if note.place and note.place.line), None)
    where = {"file": file} if file else {}
    if place is not None:
        where = {"file": _in_workspace(place.filename), "line": str(place.line)}
    where["title"] = f"neutracer: {finding.kind.replace('_', ' ')}"
    text = "\n".join(map(clean, [entry.headline, *map(str, notes)]))
    fields = ",".join(f"{key}={_escaped(clean(value), ':,')}" for key, value in where.items())
    return f"::error {fields}::{_escaped(text)}"


def _escaped(text: str, others: str = "") -> str:
    """A text in a workflow command, where these characters would end it."""
    for char in "%\r\n" + others:
        text = text.replace(char, f"%{ord(char):02X}")
    return text


def _in_workspace(name: str) -> str:
    """The path in the repository of a file whose last part is known, if there is only one."""
    root = os.environ.get("GITHUB_WORKSPACE") or os.getcwd()
    found: list[str] = []
    for number, (folder, folders, files) in enumerate(os.walk(root)):
        folders[:] = [one for one in folders if not one.startswith(".") and one != "node_modules"]
        if os.path.basename(name) in files:
            found.append(os.path.relpath(os.path.join(folder, os.path.basename(name)), root))
        if number >= _MOST_FOLDERS:
            break
    return found[0] if len(found) == 1 else name


def add_max_memory(parser: argparse.ArgumentParser) -> None:
    """Add `--max-memory`, which `within_memory` enforces."""
    parser.add_argument(
        "--max-memory",
        metavar="SIZE",
        help='limit on the memory of this command, like "4GiB" (default: all that is free)',
    )


# The dynamic linker's words where a library has no room.
_NO_ROOM_TO_LOAD = ("cannot map", "failed to map", "annot allocate")


def within_memory(options: argparse.Namespace) -> int:
    """Run the chosen command under its memory limit."""
    run: Callable[[argparse.Namespace], int] = options.run
    if not hasattr(options, "max_memory"):
        return run(options)
    from neutracer.trace.source import bounded_process, memory_bound, working
    from neutracer.units import format_bytes, parse_bytes

    try:
        bound = memory_bound() if options.max_memory is None else parse_bytes(options.max_memory)
    except ValueError as error:
        return complain(f"--max-memory: {error}")
    try:
        with bounded_process(bound), working():
            return run(options)
    except MemoryError:
        # Reported below, after the frames that hold the memory are gone.
        pass
    except ImportError as error:
        if not any(words in str(error) for words in _NO_ROOM_TO_LOAD):
            raise
    why = "that are free" if options.max_memory is None else "that --max-memory allows"
    return complain(f"this needs more memory than the {format_bytes(bound)} {why}")


def add_window(parser: argparse.ArgumentParser) -> None:
    """Add the options for a part of the trace; `window_of` passes them to `load`."""
    parser.add_argument(
        "--host",
        action="store_true",
        help="the host's pinned memory instead of the devices' (recorded by torch 2.14 and later)",
    )
    group = parser.add_mutually_exclusive_group()
    group.add_argument(
        "--events",
        type=_events,
        metavar="A:B",
        help="read only events A to B-1 of the trace; --events=-1000: reads the last thousand",
    )
    group.add_argument(
        "--seconds",
        type=_seconds,
        metavar="A:B",
        help="read only events between A and B seconds after the first",
    )
    group.add_argument(
        "--phase",
        metavar="NAME",
        help='only a phase that the program marked; "NAME[0]" is its first turn',
    )


def _ends(text: str, kind: Callable[[str], Any], wanted: str) -> list[Any]:
    """Parse the two sides of a colon; None for an empty side."""
    try:
        low, high = (kind(side) if side.strip() else None for side in text.split(":"))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not {wanted}") from None
    return [low, high]


def _events(text: str) -> slice:
    return slice(*_ends(text, int, "two event numbers, like 1000:2000"))


def _seconds(text: str) -> tuple[Any, ...]:
    return tuple(_ends(text, float, "two numbers of seconds, like 0.5:1.5"))


def window_of(options: argparse.Namespace) -> dict[str, Any]:
    """The options of `add_window` as arguments of `load`; empty for the whole file."""
    chosen = {name: getattr(options, name) for name in ("events", "seconds", "phase")}
    if all(part is None for part in chosen.values()):
        return {"host": True} if options.host else {}
    part = {**chosen, "device": options.device}
    return {**part, "host": options.host}


def add_output(parser: argparse.ArgumentParser, others: str = "") -> None:
    """Add `add_format`'s options and `--output`, which `give` follows.

    Args:
        others: Formats that only this command has.
    """
    add_format(parser)
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        help=f"write to a file instead of printing: {others}.html, .md, .json, else text",
    )


def answered(
    options: argparse.Namespace, ask: Callable[[argparse.Namespace], Answer]
) -> Answer | None:
    """The report on the snapshot `options.file`; None after an error message."""
    try:
        check_written(options.output, options.file)
        with without_history_warning():
            return ask(options)
    except SettingsError:
        raise
    except (NeutracerError, OSError, ValueError) as error:
        complain_of(options.file, error)
        return None


def give(reports: Sequence[Report], options: argparse.Namespace) -> int:
    """Print reports, or write them to the file of `--output`; several make one JSON object."""
    from neutracer.trace.source import end_progress

    end_progress()
    if options.output is None:
        _put(reports, options, sys.stdout)
        return 0
    return 0 if write_reports(options.output, reports, options) else FAILED


def judged(
    report: Report | None,
    options: argparse.Namespace,
    verdicts: Iterable[str] = (),
    file: str = "",
) -> int:
    """Give a report, if there is one; the exit code, as `fails` has it."""
    if report is None or give([report], options) == FAILED:
        return FAILED
    return int(fails(report, options, verdicts, file))


@contextmanager
def log_text(file: str) -> Iterator[Iterable[str] | None]:
    """The lines of a file, or of standard input ("-"); None if it is no text, or can't be read."""
    from neutracer.trace.source import is_log

    with ExitStack() as opened:
        stream: Any = getattr(sys.stdin, "buffer", None)
        with suppress(OSError, ValueError):
            if file != "-":
                stream = None
                stream = opened.enter_context(open(file, "rb"))
        if not hasattr(stream, "peek") or not is_log(stream.peek(_HEAD_BYTES)):
            yield None
            return
        # Unlike a TextIOWrapper, it leaves the closing of standard input to its owner.
        yield codecs.getreader("utf-8")(stream, "replace")


def is_page(path: str) -> bool:
    """Whether the ending of `--output` is that of a page."""
    return _ENDINGS.get(os.path.splitext(path)[1].lower()) == "html"


def write_reports(
    path: str, reports: Sequence[Report], options: argparse.Namespace | None = None
) -> bool:
    """Write reports to a file in the format of its ending, else in that of `options`, in full."""
    form = _ENDINGS.get(os.path.splitext(path)[1].lower())
    page = io.StringIO()
    if is_page(path):
        from neutracer.render.html import render_page

        page.write("".join(render_page(one.document(), one.picture()) for one in reports))
    else:
        form = form or (options and options.format) or "text"
        budget = None if options is None else options.budget
        budget = math.inf if budget is None else budget
        _put(reports, argparse.Namespace(format=form, budget=budget), page)
    return written(path, page.getvalue())


def say_written(path: str) -> None:
    """Print the path of a page or picture."""
    from neutracer.render.text import write
    from neutracer.trace.source import end_progress

    end_progress()
    write(f"{clean(path)}\n", sys.stdout)


def _put(reports: Sequence[Report], options: argparse.Namespace, out: TextIO) -> None:
    """Write reports to a stream as the options of `add_format` say."""
    from neutracer.render.report import dump
    from neutracer.render.text import render_markdown, show_lines, terminal_width, text_lines, write

    if options.format == "json":
        several = {"schema": "neutracer.reports/1", "reports": tuple(reports)}
        dump(reports[0] if len(reports) == 1 else several, out)
        return
    # Pages share the budget, with an empty line between them.
    budget = options.budget and (options.budget + 1) / len(reports) - 1
    for number, report in enumerate(reports):
        if number:
            out.write("\n")
        if options.format == "markdown":
            write(render_markdown(report.document(), budget) + "\n", out)
        else:
            show_lines(text_lines(report.document(), terminal_width(out), budget), out)


def add_program(parser: argparse.ArgumentParser) -> None:
    """Add the program to run: the first word that is not an option, and all after it."""
    parser.add_argument(
        "program",
        # PARSER keeps a later "--" among the program's own arguments.
        nargs=argparse.PARSER,
        metavar="PROGRAM",
        help="a script, or with -m a module, and its own arguments",
    )


def add_recording(parser: argparse.ArgumentParser, *, hooks: bool = False) -> None:
    """Add the folder, length and stacks of a recording; hooks may record as much as fits."""
    from neutracer.recording.long_history import HOOK_ENTRIES, RECORDER_ENTRIES
    from neutracer.recording.recorder import DEFAULT_MAX_ENTRIES
    from neutracer.run.following import DEFAULT_DIRECTORY

    room = (
        f"{HOOK_ENTRIES:,}, or {RECORDER_ENTRIES:,} with PyTorch's recorder: 256 MiB of host memory"
    )

    parser.add_argument(
        "-o",
        "--output",
        metavar="DIR",
        default=DEFAULT_DIRECTORY,
        help=f"folder for the files (default: {DEFAULT_DIRECTORY})",
    )
    parser.add_argument(
        "--max-entries",
        type=int,
        metavar="N",
        default=None if hooks else DEFAULT_MAX_ENTRIES,
        help=(
            f"events to keep per device (default: {room if hooks else f'{DEFAULT_MAX_ENTRIES:,}'})"
        ),
    )
    parser.add_argument(
        "--stacks",
        choices=("python", "all"),
        default="python",
        help=('"all" adds C++ frames, with PyTorch\'s recorder, and minutes at the end'),
    )


def program_of(options: argparse.Namespace) -> list[str]:
    """The script or module, with its arguments as written."""
    words: list[str] = options.program
    # Some versions of argparse keep a leading "--".
    return words[1:] if words[0] == "--" and len(words) > 1 else words


def device_size(text: str | None) -> int | None:
    """`--capacity` in bytes, None if absent."""
    if text is None:
        return None
    from neutracer.units import parse_bytes

    size = parse_bytes(text)
    if size < _LEAST_DEVICE:
        raise ValueError(f"--capacity {text} is {size:,} bytes; write it like '24GiB'")
    return size


def refused(settings: str | list[str], error: SettingsError) -> str:
    """The error message for settings that PyTorch rejects."""
    written = settings if isinstance(settings, str) else " ".join(settings)
    hint = "; write KEY:VALUE, like expandable_segments:True" if "=" in written else ""
    return f"--set: {error}{hint}"


def check_written(output: str | None, *files: str) -> None:
    """Check that an output is not one of the snapshots to read, or a sidecar of theirs."""
    if output is None or not os.path.exists(output):
        return
    from neutracer.saving import check_output
    from neutracer.trace.beside import sidecar_paths

    beside = [path for file in files if file != "-" for path in sidecar_paths(file)]
    check_output(output, *files, *filter(_is_record, filter(os.path.isfile, beside)))


def _is_record(path: str) -> bool:
    """Check for a sidecar, from which `explain` and `report` take facts."""
    try:
        with open(path, "rb") as file:
            return _RECORD.search(file.read(_HEAD_BYTES)) is not None
    except (OSError, ValueError):
        return False


def written(path: str, text: str) -> bool:
    """Write a file atomically; False after an error message if that fails."""
    from neutracer.saving import atomic_file

    try:
        with atomic_file(path) as file:
            file.write(text.encode("utf-8", "backslashreplace"))
    except (NeutracerError, OSError, ValueError) as error:
        complain_of(path, error)
        return False
    return True


@contextmanager
def without_history_warning() -> Iterator[None]:
    """Suppress the warning about a partial file: the report has it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", HistoryWarning)
        yield


def print_report(report: Report, options: argparse.Namespace, page: TextIO, *more: Report) -> None:
    """Print reports as JSON on standard output, or as text on `page`, unless it is closed."""
    out = sys.stdout if options.format == "json" else page
    if getattr(out, "closed", False):
        complain("cannot print the report: the program closed its stream")
    else:
        _put([report, *more], options, out)


def print_last_report(report: Report, options: argparse.Namespace) -> None:
    """Print the report on a program that has ended, whose exit code a closed stream leaves, and
    what the program wrote to the other one."""
    shown = sys.stdout if options.format == "json" else sys.stderr
    _try_to(lambda: print_report(report, options, sys.stderr), shown)
    if not getattr(sys.stdout, "closed", False):
        _try_to(sys.stdout.flush, sys.stdout)


def _try_to(write_out: Callable[[], object], stream: TextIO) -> None:
    try:
        write_out()
    except Exception as error:
        with suppress(Exception):
            complain(f"cannot print the report: {getattr(error, 'strerror', None) or error}")
        with suppress(Exception):
            discard(stream)


def discard(stream: IO[str]) -> None:
    """Send what a stream still holds nowhere: Python's flush at exit would fail again."""
    nowhere, wanted = os.open(os.devnull, os.O_WRONLY), stream.fileno()
    if nowhere != wanted:
        os.dup2(nowhere, wanted)
        os.close(nowhere)


def ended_without_report(error: UnreportedError) -> int:
    """Say that a program has ended without a report; returns its exit code, or ends by its
    signal."""
    from neutracer.recording.program import end_by, shell_code

    with suppress(Exception):
        complain(str(error))
    end_by(error.code)
    return shell_code(error.code)
