# SPDX-License-Identifier: Apache-2.0
"""What the commands have in common: how they complain, read a file and print a report."""

from __future__ import annotations

import argparse
import io
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, TextIO, TypeVar

from neutracer.errors import HistoryWarning, NeutracerError, SettingsError
from neutracer.render.document import clean

if TYPE_CHECKING:
    from neutracer.render.report import Report

# A function that needs more of the package imports it: `--version` and `--help` are quick.

__all__ = [
    "FAILED",
    "HelpPage",
    "add_command",
    "add_device",
    "add_fail_on",
    "add_file",
    "add_json",
    "add_max_memory",
    "add_output",
    "add_program",
    "add_recording",
    "add_window",
    "answered",
    "check_written",
    "complain",
    "complain_of",
    "device_size",
    "fails",
    "give",
    "print_report",
    "program_of",
    "refused",
    "say_written",
    "window_of",
    "within_memory",
    "without_history_warning",
    "written",
]

#: The exit code of a command that could not do what it was asked.
FAILED = 2

# A smaller number lacks its unit.
_LEAST_DEVICE = 1 << 20

Answer = TypeVar("Answer", bound="Report")

# How what is known beside a snapshot begins.
_RECORD = re.compile(rb'"(neutracer\.(sidecar|oom_report)/|oom")')
_HEAD_BYTES = 4096


class HelpPage(argparse.RawDescriptionHelpFormatter):
    """The page of `--help`: paragraphs follow the terminal's width, examples stay as they are."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        kind = argparse.RawDescriptionHelpFormatter if "\n" in text else argparse.HelpFormatter
        return kind._fill_text(self, text, width, indent)


def complain(text: str) -> int:
    """Say something on standard error, in one line; returns `FAILED`."""
    from neutracer.render.text import write
    from neutracer.trace.source import end_progress

    end_progress()
    # It may be closed, by a program that was run here.
    with suppress(OSError, ValueError):
        write(f"neutracer: {clean(text)}\n", sys.stderr)
    return FAILED


def complain_of(what: str, error: Exception) -> int:
    """Say what is wrong with a file, or with the one that the error names; returns `FAILED`."""
    reason: object = error
    if isinstance(error, OSError) and error.strerror:
        reason = error.strerror
        if isinstance(error.filename, (str, bytes)):
            what = os.fsdecode(error.filename)
    return complain(f"{what or repr(what)}: {reason}")


def add_command(
    commands: Any, name: str, summary: str, description: str, example: str, run: Callable[..., int]
) -> argparse.ArgumentParser:
    """Add a command to a parser's commands.

    Args:
        commands: What `add_subparsers` returned.
        name: The command's.
        summary: Its line in the list of commands.
        description: What its own help says first.
        example: What its help ends with: examples, files, exit codes.
        run: Takes the options and returns the exit code.
    """
    parser: argparse.ArgumentParser = commands.add_parser(
        name, help=summary, description=description, epilog=example, formatter_class=HelpPage
    )
    parser.set_defaults(run=run)
    return parser


def add_file(parser: argparse.ArgumentParser) -> None:
    """Add the one snapshot that a command reads."""
    parser.add_argument("file", metavar="FILE", help='a snapshot; "-" is standard input')


def add_device(parser: argparse.ArgumentParser) -> None:
    """Add the device that a command is about."""
    parser.add_argument(
        "--device", type=int, metavar="N", help="which device, if there are several"
    )


def add_json(parser: argparse.ArgumentParser) -> None:
    """Add the form of what a command prints."""
    parser.add_argument("--json", action="store_true", help="JSON with a versioned schema")


def add_fail_on(parser: argparse.ArgumentParser, text: str, verdicts: Sequence[str] = ()) -> None:
    """Add the condition under which a command ends with 1, which `fails` looks at.

    Args:
        parser: The command's.
        text: The help.
        verdicts: Words that may be given beside severities, several with commas between them.
    """
    from neutracer.render.document import Severity

    severities = [str(severity) for severity in Severity]
    known = (*verdicts, *severities)

    def wanted(text: str) -> tuple[str, ...]:
        words = tuple(word.strip() for word in text.split(",")) if verdicts else (text,)
        for word in words:
            if word not in known:
                raise argparse.ArgumentTypeError(f"{word!r} is none of {', '.join(known)}")
        return words

    parser.add_argument(
        "--fail-on",
        type=wanted,
        default=(),
        metavar="WORD,…" if verdicts else "SEVERITY",
        help=text,
    )


def fails(report: Report, wanted: tuple[str, ...], verdicts: Iterable[str] = ()) -> bool:
    """Whether a report has one of the verdicts, or a finding of one of the severities, that
    `--fail-on` names."""
    from neutracer.render.document import Severity

    worst = report.worst
    severities = [severity for severity in Severity if severity in wanted]
    return not set(wanted).isdisjoint(verdicts) or (
        worst is not None and any(worst >= severity for severity in severities)
    )


def add_max_memory(parser: argparse.ArgumentParser) -> None:
    """Add the bound that `within_memory` holds a command to."""
    parser.add_argument(
        "--max-memory",
        metavar="SIZE",
        help='the most memory the command may take, like "4GiB" (default: what is free)',
    )


def within_memory(options: argparse.Namespace) -> int:
    """Run the command that was chosen, and refuse it more memory than it may take."""
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
        # Told below, where what took the memory is gone.
        pass
    why = "that is free" if options.max_memory is None else "that --max-memory allows"
    return complain(f"this takes more memory than the {format_bytes(bound)} {why}")


def add_window(parser: argparse.ArgumentParser) -> None:
    """Add the part of the trace that is read, which `window_of` gives to `load`."""
    parser.add_argument(
        "--host",
        action="store_true",
        help="the host's pinned memory in place of the devices' (recorded by torch 2.14 and later)",
    )
    group = parser.add_mutually_exclusive_group()
    group.add_argument(
        "--events",
        type=_events,
        metavar="A:B",
        help="read only events A to B-1 of the trace; --events=-1000: is the last thousand",
    )
    group.add_argument(
        "--seconds",
        type=_seconds,
        metavar="A:B",
        help="read only what happened A to B seconds after the first event",
    )


def _ends(text: str, kind: Callable[[str], Any], wanted: str) -> list[Any]:
    """The two sides of a colon as numbers, None where there is nothing."""
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
    """The arguments of `load` for what `add_window` asks for; none for the whole file."""
    if options.events is None and options.seconds is None:
        return {"host": True} if options.host else {}
    part = {"events": options.events, "seconds": options.seconds, "device": options.device}
    return {**part, "host": options.host}


def add_output(parser: argparse.ArgumentParser) -> None:
    """Add the form of a report and where it goes, which `give` follows."""
    add_json(parser)
    parser.add_argument("-o", "--output", metavar="FILE", help="write there instead of printing")


def answered(
    options: argparse.Namespace, ask: Callable[[argparse.Namespace], Answer]
) -> Answer | None:
    """The report on the snapshot `options.file`; None, after a complaint, where there is none.

    Raises:
        SettingsError: PyTorch would not accept the settings that are asked about.
    """
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
    """Print reports, or write them as a file, in the form that `add_output` asks for.

    Args:
        reports: One, or several; as JSON these are in one object.
        options: Of the command.

    Returns:
        0; `FAILED` where the file can't be written.

    Raises:
        OSError: Standard output can't be written.
    """
    from neutracer.trace.source import end_progress

    end_progress()
    if options.output is None:
        _put(reports, options.json, sys.stdout)
        return 0
    page = io.StringIO()
    _put(reports, options.json, page)
    return 0 if written(options.output, page.getvalue()) else FAILED


def say_written(path: str) -> None:
    """Print the name of a page or picture that was written."""
    from neutracer.render.text import write
    from neutracer.trace.source import end_progress

    end_progress()
    write(f"{clean(path)}\n", sys.stdout)


def _put(reports: Sequence[Report], as_json: bool, out: TextIO) -> None:
    from neutracer.render.report import dump
    from neutracer.render.text import show

    if as_json:
        several = {"schema": "neutracer.reports/1", "reports": tuple(reports)}
        dump(reports[0] if len(reports) == 1 else several, out)
        return
    for number, report in enumerate(reports):
        if number:
            out.write("\n")
        show(report.document(), out)


def add_program(parser: argparse.ArgumentParser) -> None:
    """Add what a command runs: the first word that is not an option, and all after it."""
    parser.add_argument(
        "program",
        # argparse removes a "--" after one that is an argument by itself.
        nargs=argparse.PARSER,
        metavar="PROGRAM",
        help="a script, or with -m a module, and its own arguments",
    )


def add_recording(parser: argparse.ArgumentParser, *, hooks: bool = False) -> None:
    """Add where the files of a recording go, how long it is, and whose frames it has.

    Args:
        parser: The command's.
        hooks: Whether the hooks may record: then it is as long as there is room for.
    """
    # Commands that record nothing do without.
    from neutracer.recording.long_history import HOOK_ENTRIES, RECORDER_ENTRIES
    from neutracer.recording.recorder import DEFAULT_MAX_ENTRIES
    from neutracer.run.following import DEFAULT_DIRECTORY

    room = (
        f"what 256 MiB of the host's memory have room for, {HOOK_ENTRIES:,}, or "
        f"{RECORDER_ENTRIES:,} with PyTorch's recorder"
    )

    parser.add_argument(
        "-o",
        "--output",
        metavar="DIR",
        default=DEFAULT_DIRECTORY,
        help=f"where the files go (default: {DEFAULT_DIRECTORY})",
    )
    parser.add_argument(
        "--max-entries",
        type=int,
        metavar="N",
        default=None if hooks else DEFAULT_MAX_ENTRIES,
        help=(
            "events that are kept for each device "
            f"(default: {room if hooks else f'{DEFAULT_MAX_ENTRIES:,}'})"
        ),
    )
    parser.add_argument(
        "--stacks",
        choices=("python", "all"),
        default="python",
        help=(
            '"all" adds C++ frames, which only PyTorch\'s recorder has, and which take minutes '
            "to spell out in large programs"
        ),
    )


def program_of(options: argparse.Namespace) -> list[str]:
    """The script or module, and its arguments as they were written."""
    words: list[str] = options.program
    # Some versions of argparse leave a "--" in front of it there, others don't.
    return words[1:] if words[0] == "--" and len(words) > 1 else words


def device_size(text: str | None) -> int | None:
    """What `--capacity` says, in bytes; None where it was not given.

    Raises:
        ValueError: It is not a size, or not that of any device, as "24".
    """
    if text is None:
        return None
    from neutracer.units import parse_bytes

    size = parse_bytes(text)
    if size < _LEAST_DEVICE:
        raise ValueError(f"--capacity {text} is {size:,} bytes; write it like '24GiB'")
    return size


def refused(settings: str | list[str], error: SettingsError) -> str:
    """The complaint about settings that PyTorch refuses."""
    written = settings if isinstance(settings, str) else " ".join(settings)
    hint = "; they are written KEY:VALUE, as expandable_segments:True" if "=" in written else ""
    return f"--set: {error}{hint}"


def check_written(output: str | None, *files: str) -> None:
    """Check, before they are opened, that a file to write is none of those to read.

    Args:
        output: Where to; None is standard output.
        files: Snapshots, with what is known beside them; "-" is standard input.

    Raises:
        ValueError: It is one of them, by whatever name or link.
    """
    if output is None or not os.path.exists(output):
        return
    from neutracer.saving import check_output
    from neutracer.trace.beside import sidecar_paths

    beside = [path for file in files if file != "-" for path in sidecar_paths(file)]
    check_output(output, *files, *filter(_is_record, filter(os.path.isfile, beside)))


def _is_record(path: str) -> bool:
    """Whether it is a process's own account, which `explain` and `report` take facts from."""
    try:
        with open(path, "rb") as file:
            return _RECORD.search(file.read(_HEAD_BYTES)) is not None
    except (OSError, ValueError):
        return False


def written(path: str, text: str) -> bool:
    """Write a text as a file, whole or not at all; False, and a complaint, if it can't be."""
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
    """Suppress the warning about a partial file: the page says what the file lacks."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", HistoryWarning)
        yield


def print_report(report: Report, as_json: bool, page: TextIO) -> None:
    """Print a report: as JSON on standard output, or as text on `page`.

    Where a program that was run here has closed that stream, nothing is printed.
    """
    from neutracer.render.report import dump
    from neutracer.render.text import show

    if getattr(sys.stdout if as_json else page, "closed", False):
        complain("cannot print the report: the program closed its stream")
    elif as_json:
        dump(report, sys.stdout)
    else:
        show(report.document(), page)
