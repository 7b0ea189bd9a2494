# SPDX-License-Identifier: Apache-2.0
"""The report written at an out-of-memory error: page, note on the exception, notebook output."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from neutracer.arguments import running_shell
from neutracer.heap.holders import notebook_holders
from neutracer.oom.facts import OomFacts
from neutracer.recording.sidecar import rank_text
from neutracer.render.document import Block, Cell, Document, Figure, KeyValues, Note, Table
from neutracer.render.report import Finding, Report
from neutracer.render.text import write
from neutracer.units import format_bytes, format_duration_us

# ---- Page --------------------------------------------------------------------------------

# Frames and tensors of the page; the JSON has all.
_SHOWN_FRAMES = 8
_SHOWN_TENSORS = 6
_SHOWN_SETTINGS = 12


@dataclass(frozen=True, kw_only=True, repr=False)
class OomReport(Report):
    """What a watch wrote down at an out-of-memory error.

    Attributes:
        device: The CUDA device.
        asked_bytes: What was asked of the device: the request rounded to a segment.
        free_bytes: What the device had left.
        phase: What the program was doing, as `explain` says; "" where it was not asked.
        verdict: The main cause in one line; "" where it was not reached.
        oom: Everything that is known beside the snapshot.
        process: Rank, host, versions, settings and `memory_stats()` at that moment.
        snapshot: The file with the snapshot; None where it could not be taken.
        text: The file with this report as text.
        json: The file with this report as JSON.
        left_out: What is missing, each with the reason.
        explained: What `explain` said, as its own `to_dict()`; None where it was not asked.
        seconds: How long all this kept the program waiting.
        spent: How long each part of it took, in seconds; of the files, the wait for them.
    """

    schema = "neutracer.oom_report/1"

    device: int
    asked_bytes: int
    free_bytes: int
    phase: str
    verdict: str
    oom: OomFacts
    process: dict[str, Any]
    snapshot: str | None
    text: str
    json: str
    left_out: tuple[str, ...]
    explained: dict[str, Any] | None
    seconds: float
    spent: dict[str, float]
    _blocks: tuple[Block, ...] = ()

    @property
    def note(self) -> str:
        """The verdict in a few lines, for the exception."""
        lines = [f"neutracer: {self.verdict or self._plain()}"]
        main: Finding | None = self.findings[0] if self.findings else None
        if self.verdict and main is not None and main.advice:
            lines.append(f"  next step: {_said(main.advice[0])}")
        lines.append(f"  report: {self.text}")
        return "\n".join(lines)

    def document(self) -> Document:
        """The report as a page."""
        facts = [
            f"{format_bytes(self.asked_bytes)} asked for",
            f"{format_bytes(self.free_bytes)} free on the device",
        ]
        if self.phase and self.phase != "unknown":
            facts.append(self.phase)
        blocks: list[Block] = list(self._blocks or self.finding_blocks())
        blocks.append(self._asker())
        blocks.append(KeyValues("Files and process", tuple(self._pairs())))
        return Document(f"Out of memory on cuda:{self.device}", tuple(facts), tuple(blocks))

    def _plain(self) -> str:
        return f"{format_bytes(self.asked_bytes)} did not fit on cuda:{self.device}"

    def _asker(self) -> Block:
        frames = self.oom.stack[:_SHOWN_FRAMES]
        rows: list[tuple[Cell, ...]] = [(name, f"{file}:{line}") for file, line, name in frames]
        if not rows:
            rows = [("a thread without Python frames", "as a backward pass has")]
        notes = tuple(f"with {tensor}" for tensor in self.oom.tensors[:_SHOWN_TENSORS])
        return Table("Who asked", tuple(rows), notes=notes)

    def _pairs(self) -> list[tuple[str, Cell]]:
        process = self.process
        pairs: list[tuple[str, Cell]] = []
        if self.snapshot:
            pairs.append(("snapshot", os.path.basename(self.snapshot)))
        if process.get("rank") is not None:
            pairs.append(("rank", rank_text(process).removeprefix("rank ")))
        pairs.extend(_running(process.get("running", {})))
        pairs.append(("process", f"{process.get('pid')} on {process.get('host')}"))
        pairs.append(("torch", str(process.get("torch"))))
        if self.oom.garbage_bytes:
            pairs.append(("held by garbage", Figure.bytes(self.oom.garbage_bytes)))
        pairs.append(("written in", format_duration_us(self.seconds * 1e6)))
        pairs.extend(("left out", reason) for reason in self.left_out)
        return pairs


def _said(note: Note) -> str:
    return f"{note.text} {note.place}" if note.place else note.text


def _running(facts: dict[str, Any]) -> list[tuple[str, Cell]]:
    """What the program said of itself: who trains, where it is, and with which batch."""
    where = [str(facts[name]) for name in ("trainer",) if name in facts]
    if "step" in facts:
        where.append(f"step {facts['step']}")
    where += [" > ".join(facts["phases"])] if "phases" in facts else []
    pairs: list[tuple[str, Cell]] = [("running", ", ".join(where))] if where else []
    if "batch" in facts:
        batch = [f"{name}: {shape}" for name, shape in facts["batch"].items()]
        pairs.append(("batch", ", ".join(batch[:_SHOWN_TENSORS])))
    settings = list(facts.get("configuration", {}).items())[:_SHOWN_SETTINGS]
    if settings:
        pairs.append(("configuration", ", ".join(f"{name}={value}" for name, value in settings)))
    return pairs


# ---- Notebook ----------------------------------------------------------------------------

_LOGGER = logging.getLogger("neutracer")

_ADVICE = "neutracer.release_holders() lets go of them; neutracer.notebook_holders() lists them.\n"


def tell_after_cells(reports: Callable[[], Sequence[object]]) -> Callable[[], None]:
    """After a cell that ran out of memory, say what its traceback and `Out` keep.

    Args:
        reports: The out-of-memory errors so far; a cell that adds none is not reported.

    Returns:
        Ends it. Where there is no IPython, nothing is begun.
    """
    shell = running_shell()
    if shell is None:
        return lambda: None
    told = [len(reports())]

    def after_cell(result: Any) -> None:
        count = len(reports())
        failed = getattr(result, "error_in_exec", None) is not None
        if count > told[0] and failed:
            _tell()
        told[0] = count

    shell.events.register("post_run_cell", after_cell)

    def end() -> None:
        try:
            shell.events.unregister("post_run_cell", after_cell)
        except ValueError:
            _LOGGER.debug("the notebook's callback was gone already")

    return end


def _tell() -> None:
    try:
        held = notebook_holders()
    except (RuntimeError, ValueError):
        _LOGGER.debug("what the notebook holds is not known", exc_info=True)
        return
    if held.total_bytes:
        names = ", ".join(holder.names[0] for holder in held.holders if holder.bytes)
        size = format_bytes(held.total_bytes)
        write(f"neutracer: {size} are still held by {names}: {_ADVICE}", sys.stderr)
