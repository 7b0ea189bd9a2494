# SPDX-License-Identifier: Apache-2.0
"""What does a notebook, or a past exception, keep? And how many bytes is that?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import overload

from neutracer._native import core
from neutracer.heap.autograd import read_autograd
from neutracer.heap.holdings import Holding, find_holdings, let_go
from neutracer.render.document import Block, Document, Figure, Paragraph, Severity, Table
from neutracer.render.report import Finding, Report, ranked
from neutracer.render.row import PlainRow
from neutracer.units import format_bytes, format_count

__all__ = ["HoldersReport", "NotebookHolder", "notebook_holders", "release_holders"]

# Holders of the printed report; all of them are in `.holders`.
_SHOWN = 12

_GIB = 1 << 30


@dataclass(frozen=True)
class NotebookHolder(PlainRow):
    """One value that a notebook, the interpreter or a past exception keeps.

    Attributes:
        names: The names that hold it: ("Out[3]", "_3", "_").
        kind: "output", "exception" or "input".
        type: The type of the value, with its module.
        bytes: Storage bytes of the tensors that would be freed if these names, and nothing
            else, let go.
        reachable_bytes: Of all tensors that it leads to; others may keep them too.
        tensors: Tensors that would be freed.
    """

    names: tuple[str, ...]
    kind: str
    type: str
    bytes: int
    reachable_bytes: int
    tensors: int


@dataclass(frozen=True, kw_only=True, repr=False)
class HoldersReport(Report, Sequence[NotebookHolder]):
    """What keeps values of the past: a sequence of `NotebookHolder`, most bytes first.

    Attributes:
        holders: The holders.
        total_bytes: What would be freed if all of them let go together: more than the sum
            where two keep the same tensor.
        released: True if they had been released when this was returned.
        unfollowed: Nodes and tensors of an autograd graph of more than 20,000 nodes that
            were not looked at; what only these keep is not counted.
    """

    schema = "neutracer.holders/1"

    holders: tuple[NotebookHolder, ...]
    total_bytes: int
    released: bool
    unfollowed: int = 0

    @overload
    def __getitem__(self, index: int) -> NotebookHolder: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[NotebookHolder]: ...
    def __getitem__(self, index: int | slice) -> NotebookHolder | Sequence[NotebookHolder]:
        return self.holders[index]

    def __len__(self) -> int:
        return len(self.holders)

    def __iter__(self) -> Iterator[NotebookHolder]:
        return iter(self.holders)

    def document(self) -> Document:
        """The report as a page."""
        done = "let go of" if self.released else "kept by"
        facts = (f"{format_bytes(self.total_bytes)} {done} {self._count()}",)
        blocks: tuple[Block, ...] = self.finding_blocks()
        if self.holders:
            blocks += (self._table(),)
        else:
            blocks += (Paragraph("No output and no past exception keeps anything."),)
        if self.unfollowed:
            blocks += (
                Paragraph(
                    f"The autograd graph is large: {format_count(self.unfollowed, 'object')} in "
                    "it, and what they lead to, were not counted."
                ),
            )
        return Document("Outputs and past exceptions", facts, blocks, more="all: .holders")

    def _count(self) -> str:
        return format_count(len(self.holders), "holder")

    def _table(self) -> Table:
        rows = tuple(
            (
                _names_text(holder.names),
                holder.type.rpartition(".")[2],
                Figure.bytes(holder.bytes),
                Figure.bytes(holder.reachable_bytes),
            )
            for holder in self.holders[:_SHOWN]
        )
        left = len(self.holders) - len(rows)
        notes = (f"{format_count(left, 'smaller one')} not shown",) if left else ()
        return Table("Who keeps what", rows, ("", "", "would go", "leads to"), notes)


def _names_text(names: Sequence[str]) -> str:
    return ", ".join(names[:4]) + (", …" if len(names) > 4 else "")


def notebook_holders() -> HoldersReport:
    """List what a notebook's outputs and past exceptions keep, in bytes of tensors.

    These are IPython's `Out`, `_`, `__`, `___` and `_1`, `_2`, …, with its own copies of
    them; `sys.last_exc`, `last_value` and `last_traceback`, with the tracebacks that IPython
    keeps beside them; and the interactive interpreter's `_`. The input history `In` is
    listed too; it is text and keeps no tensor. What autograd holds counts too, so an output
    that keeps a graph has the graph's bytes. Nothing changes.

    Returns:
        The holders, most bytes first. Nothing in it refers to an object of the program.

    Raises:
        UnavailableError: A memory layout is not known.

    Example:
        >>> notebook_holders().released
        False
    """
    return _report(find_holdings(), released=False)


def release_holders() -> HoldersReport:
    """Let go of exactly what `notebook_holders` lists, except the input history.

    What nothing else keeps is freed at once, where no cycle is in the way. Outputs can then
    no longer be shown by their number, and a debugger has no exception to look at.

    Returns:
        What was let go of, as `notebook_holders` would have listed it.

    Raises:
        UnavailableError: A memory layout is not known; nothing was let go of.
    """
    holdings = find_holdings()
    report = _report(holdings, released=True)
    let_go(holdings)
    return report


def _report(holdings: list[Holding], released: bool) -> HoldersReport:
    links = read_autograd()
    held, together = core.held_bytes(
        [holding.pairs for holding in holdings],
        links.objects,
        links.kinds,
        links.links,
        links.names,
    )
    unfollowed = links.unfollowed
    del links
    holders = [
        NotebookHolder(holding.names, holding.kind, holding.type, goes, leads, tensors)
        for holding, (goes, leads, tensors, _) in zip(holdings, held, strict=True)
    ]
    holders.sort(key=lambda holder: (-holder.bytes, -holder.reachable_bytes))
    return HoldersReport(
        holders=tuple(holders),
        total_bytes=together,
        released=released,
        unfollowed=unfollowed,
        findings=() if released else ranked(_finding(h) for h in holders if h.bytes),
    )


def _finding(holder: NotebookHolder) -> Finding:
    severity = Severity.MODERATE if holder.bytes >= _GIB else Severity.INFO
    tensors = format_count(holder.tensors, "tensor")
    return Finding(
        kind=f"kept_by_{holder.kind}",
        severity=severity,
        bytes=holder.bytes,
        message=f"{_names_text(holder.names)} keeps {format_bytes(holder.bytes)} in {tensors}",
    )
