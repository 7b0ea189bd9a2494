# SPDX-License-Identifier: Apache-2.0
"""Runs an unmodified program, and reports on its GPU memory."""

from __future__ import annotations

import logging
import os
import signal
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from neutracer.oom.page import OomReport
from neutracer.overview import OverviewReport
from neutracer.rank.watch import RanksWatch
from neutracer.recording.imports import when_imported
from neutracer.recording.program import (
    OnDemand,
    after_program,
    main_again,
    run_program,
    shell_code,
)
from neutracer.recording.sidecar import rank_facts, rank_text
from neutracer.render.document import Block, Document, KeyValues, Paragraph
from neutracer.render.report import Report
from neutracer.run.following import DEFAULT_DIRECTORY, Following, check_writable, written_pairs
from neutracer.units import format_count, format_duration_us

_LOGGER = logging.getLogger("neutracer")
_MOST = 1_000_000_000  # Events, or seconds between reports.


@dataclass(frozen=True, kw_only=True, repr=False)
class RunReport(Report):
    """The report on a program's run.

    Attributes:
        program: The script or module.
        exit_code: Its exit code; as in a shell, 128 plus the signal that ended it.
        signal: The signal that ended it, such as Ctrl-C; None if none did.
        seconds: Run time.
        rank: Its rank in torch.distributed or its launcher, or None.
        world_size: The number of ranks.
        host: The machine's name.
        pid: The process id.
        recorded: Why there is nothing to report; "" if there is.
        overview: The report on the snapshot at the end.
        ooms: The out-of-memory errors with a report.
        ooms_seen: All out-of-memory errors, including repeats at a reported place.
        files: The snapshots written, each with a text and a JSON beside it.
        notes: Remarks on the recording.
    """

    schema = "neutracer.run/1"

    program: str
    exit_code: int
    signal: int | None
    seconds: float
    rank: int | None
    world_size: int | None
    host: str
    pid: int
    recorded: str
    overview: OverviewReport | None
    ooms: tuple[OomReport, ...]
    ooms_seen: int
    files: tuple[str, ...]
    notes: tuple[str, ...]

    def document(self) -> Document:
        """The report as a page."""
        rank = rank_text({"rank": self.rank, "world_size": self.world_size})
        ended = [f"exit code {self.exit_code}", format_duration_us(self.seconds * 1e6)]
        facts = [rank, *ended] if rank else ended
        blocks: list[Block] = []
        if self.recorded:
            blocks.append(Paragraph(self.recorded))
        if self.overview is not None:
            page = self.overview.document()
            facts += page.facts
            blocks += page.blocks
        pairs = []
        for oom in self.ooms:
            # One that a library caught is no error of the program's.
            kind, what = "out of memory", oom.verdict or "no verdict"
            if oom.oom.raised is False:
                kind, what = "ran short", "a library caught it, and took less memory"
            pairs.append((kind, f"{what} ({os.path.basename(oom.text)})"))
        if self.ooms_seen > len(self.ooms):
            again = format_count(self.ooms_seen - len(self.ooms), "time")
            pairs += [("out of memory", f"{again} more, at the same places or in quick succession")]
        pairs += written_pairs(self.files, self.notes)
        if pairs:
            blocks.append(KeyValues("This run", tuple(pairs)))
        return Document(os.path.basename(self.program), tuple(facts), tuple(blocks))


def run_and_report(
    command: Sequence[str],
    *,
    module: bool = False,
    directory: str | os.PathLike[str] = DEFAULT_DIRECTORY,
    max_entries: int | None = None,
    uses: int = 0,
    every_s: float | None = None,
    **how: Any,
) -> RunReport:
    """Run a program in this process, recording from CUDA's initialization.

    Neither imports torch nor initializes CUDA itself. Reports are written at the program's end,
    at out-of-memory errors, at SIGUSR2 and every `every_s` seconds. A program that is killed or
    calls `os._exit` writes none at its end, and neither do its children.

    Args:
        command: The script or module name, and its arguments.
        module: Whether it is a module.
        directory: Where the files go; created with the first one.
        max_entries, uses: As for `ProgramRecording`.
        every_s: Seconds between reports while it runs; None writes none.
        how: More options of `ProgramRecording`.

    Returns:
        The report; its exit code is the program's.
    """
    if uses < 0:
        raise ValueError(f"uses is {uses}: it must be a number of steps")
    if (max_entries is not None and max_entries < 1) or (every_s is not None and not every_s > 0):
        raise ValueError("max_entries and the time between reports must be above 0")
    if max(max_entries or 0, every_s or 0) > _MOST:
        raise ValueError(f"max_entries and the time between reports must be at most {_MOST:,}")
    check_writable(os.path.abspath(directory))
    following = Following(os.fspath(directory), max_entries, uses=uses, **how)
    # It publishes the status of one of several ranks.
    has_others = (rank_facts()["world_size"] or 1) > 1
    ranks = RanksWatch(following.directory, early=False) if has_others else None

    def last() -> None:
        if ranks is None:
            following.end_soon()
        else:
            ranks.publish_last(following.end_soon)

    def begin_all() -> None:
        following.begin()
        if ranks is not None:
            ranks.start()

    beside = OnDemand(
        following.write,
        every_s=every_s,
        signum=signal.SIGUSR2,
        last_signum=signal.SIGTERM,
        last=last,
    )
    cancel = when_imported("torch", begin_all)
    begin = time.monotonic()
    beside.start()
    # The report is on what the program holds at its end.
    kept: list[object] = []

    def report_last() -> None:
        with main_again(kept):
            following.end()

    parts = () if ranks is None else (ranks.remove,)
    # `beside` last: it handles a signal that arrives meanwhile.
    ends = (cancel, *parts, report_last, kept.clear, beside.stop)
    try:
        code = run_program(command, module=module, keep=kept)
    finally:
        notes = [note for note in map(_ended, ends) if note]
    with after_program(code):
        return _report(following, command[0], code, time.monotonic() - begin, notes)


def _ended(end: Callable[[], object]) -> str:
    """End a part of ours, whatever the program took away; returns why it failed, or ""."""
    try:
        end()
    except Exception as error:
        _LOGGER.debug("a part of the recording has not ended", exc_info=True)
        return f"the recording did not end as it should ({type(error).__name__}: {error})"
    return ""


def _report(
    following: Following, program: str, code: int, seconds: float, notes: Sequence[str]
) -> RunReport:
    why = following.why
    if not following.is_recording and not why:
        why = "This program never imported torch: nothing was recorded."
    shown = following.last and replace(following.last, file=os.path.basename(program))
    facts = rank_facts()
    return RunReport(
        program=program,
        exit_code=shell_code(code),
        signal=-code if code < 0 else None,
        seconds=seconds,
        rank=facts["rank"],
        world_size=facts["world_size"],
        host=socket.gethostname(),
        pid=os.getpid(),
        recorded=why,
        overview=shown,
        ooms=following.ooms,
        ooms_seen=following.ooms_seen,
        files=following.files,
        notes=(*following.notes, *notes),
        findings=() if shown is None else shown.findings,
    )
