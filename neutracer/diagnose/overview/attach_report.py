# SPDX-License-Identifier: Apache-2.0
"""Attaches to a running program, and reports what its GPU memory does."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from neutracer.diagnose.overview.following import DEFAULT_DIRECTORY, written_pairs
from neutracer.diagnose.overview.report import OverviewReport, overview
from neutracer.errors import NeutracerError
from neutracer.process.recording.recorder import DEFAULT_MAX_ENTRIES
from neutracer.process.recording.sidecar import rank_text
from neutracer.process.remote.ask import ask
from neutracer.render.document import Block, Copyable, Document, KeyValues
from neutracer.render.report import Report
from neutracer.trace.snapshot import load
from neutracer.units import format_count, format_duration_us

__all__ = ["DEFAULT_WAIT_S", "AttachReport", "attach_and_report"]

# How long a main thread may stay in C code.
DEFAULT_WAIT_S = 10.0

# What a report, or the beginning of a watch, takes at the very most; the hooks of a monitor
# may have to be compiled first.
_WORK_S = 300.0

# More seconds, or events, than anybody wants.
_MOST = 1_000_000_000


@dataclass(frozen=True, kw_only=True, repr=False)
class AttachReport(Report):
    """What was done in a running program.

    Attributes:
        program: What runs there.
        pid: The process's number.
        rank: Its rank, by torch.distributed or its launcher; None where there is none.
        world_size: How many ranks there are.
        host: The machine's name.
        python: The version of its Python.
        torch: The version of its torch.
        recorded_s: For how many seconds it was recorded; None if that was not requested.
        overview: What the snapshot that was written last shows, its trace included.
        watching: The folder for reports of out-of-memory errors, and of SIGUSR2; "" where
            nothing that was attached watches.
        metrics: Where metrics are served by what was attached; "" where they are not.
        ended: What was attached before and has ended.
        ooms_seen: Out-of-memory errors that the ended watch has seen.
        files: The snapshots that were written, each with a text and a JSON beside it.
        notes: What a reader should know.
    """

    schema = "neutracer.attach/1"

    program: str
    pid: int
    rank: int | None
    world_size: int | None
    host: str
    python: str
    torch: str
    recorded_s: float | None
    overview: OverviewReport | None
    watching: str
    metrics: str
    ended: tuple[str, ...]
    ooms_seen: int
    files: tuple[str, ...]
    notes: tuple[str, ...]

    def document(self) -> Document:
        """The report as a page."""
        rank = rank_text({"rank": self.rank, "world_size": self.world_size})
        facts = [rank] if rank else []
        facts.append(f"process {self.pid}")
        blocks: list[Block] = []
        if self.overview is not None:
            page = self.overview.document()
            facts += page.facts
            blocks += page.blocks
        blocks.append(KeyValues("This process", tuple(self._pairs())))
        return Document(os.path.basename(self.program), tuple(facts), tuple(blocks))

    def _pairs(self) -> list[tuple[str, str]]:
        pairs = []
        if self.ended:
            pairs.append(("ended", " and ".join(self.ended)))
        if self.ooms_seen:
            pairs.append(("out of memory", format_count(self.ooms_seen, "time")))
        if self.watching:
            told = f"out-of-memory errors, and 'kill -USR2 {self.pid}'; reports go to"
            pairs += [("watched", told), ("", self.watching)]
        if self.metrics:
            pairs.append(("metrics", Copyable(f"{self.metrics}/metrics")))
        if self.watching or self.metrics:
            pairs.append(("until", Copyable(f"neutracer attach {self.pid} --detach")))
        return pairs + written_pairs(self.files, self.notes)


def attach_and_report(
    pid: int,
    *,
    report: bool = False,
    watch: bool = False,
    record_s: float | None = None,
    port: int | None = None,
    detach: bool = False,
    directory: str | os.PathLike[str] = DEFAULT_DIRECTORY,
    max_entries: int = DEFAULT_MAX_ENTRIES,
    stacks: str = "python",
    wait_s: float = DEFAULT_WAIT_S,
) -> AttachReport:
    """Do something in another process of this user, which runs torch on Python 3.14 or later.

    Args:
        pid: The process.
        report: Write a report now.
        watch: Record, and write a report at each out-of-memory error, and at SIGUSR2.
        record_s: Record for so many seconds, and write a report.
        port: Serve metrics there; 0 is any free port.
        detach: End what `watch` and `port` began.
        directory: Where the files go.
        max_entries: As for `record`.
        stacks: As for `record`.
        wait_s: How long to wait until its main thread runs Python's bytecode.

    Returns:
        The report; where something was written, with what the last snapshot shows.

    Raises:
        NeutracerError: It can't be done; the message is a sentence.
        ValueError: An argument is out of its range.
    """
    if detach and (watch or record_s is not None or port is not None):
        raise ValueError("what --detach ends is not begun by the same command")
    for name, value in (("--record", record_s), ("--wait", wait_s), ("--max-entries", max_entries)):
        if value is not None and not 0 < value <= _MOST:
            raise ValueError(f"{name} is above 0, and at most {_MOST:,}")
    if port is not None and not 0 <= port <= 65_535:
        raise ValueError("--metrics is a port: 0 to 65535")
    request = {
        "report": report,
        "watch": watch,
        "record_s": record_s,
        "port": port,
        "detach": detach,
        "directory": os.path.abspath(directory),
        "max_entries": max_entries,
        "stacks": stacks,
    }
    told = ask(pid, request, wait_s=wait_s, work_s=_WORK_S + (record_s or 0.0))
    return _report(pid, told, record_s, shows=report or record_s is not None)


def _report(
    pid: int, told: Mapping[str, Any], record_s: float | None, *, shows: bool
) -> AttachReport:
    """What a process has answered, and what its last snapshot shows."""
    notes = [str(note) for note in told["notes"]]
    files = [str(file) for file in told["files"]]
    shown = None
    if shows and files:
        try:
            shown = overview(load(files[-1]), files[-1])
        except (NeutracerError, OSError, ValueError) as error:
            notes.append(f"{os.path.basename(files[-1])}: {error}")
    if record_s is not None:
        length = format_duration_us(record_s * 1e6)
        notes.append(f"recorded for {length}: who allocated what was there before is unknown")
    return AttachReport(
        program=str(told["program"]),
        pid=pid,
        rank=told["rank"],
        world_size=told["world_size"],
        host=str(told["host"]),
        python=str(told["python"]),
        torch=str(told["torch"]),
        recorded_s=record_s,
        overview=shown and replace(shown, file=os.path.basename(str(told["program"]))),
        watching=str(told["watching"]),
        metrics=str(told["metrics"]),
        ended=tuple(map(str, told["ended"])),
        ooms_seen=int(told["ooms_seen"]),
        files=tuple(files),
        notes=tuple(notes),
        findings=() if shown is None else shown.findings,
    )
