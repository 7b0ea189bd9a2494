# SPDX-License-Identifier: Apache-2.0
"""What every question returns: a frozen `Report` with its `Finding`s.

A question writes a frozen dataclass whose fields are its answer, gives it a schema, and
says in `document()` how the answer reads. Text, HTML and JSON follow from these; no
question renders anything itself.

Example:
    >>> @dataclass(frozen=True, kw_only=True, repr=False)
    ... class IdleReport(Report):
    ...     schema = "neutracer.idle/1"
    ...     derived = ("share",)
    ...     idle_bytes: int
    ...     total_bytes: int
    ...
    ...     @property
    ...     def share(self) -> float:
    ...         return self.idle_bytes / self.total_bytes
    ...
    ...     def document(self) -> Document:
    ...         return Document("idle", blocks=self.finding_blocks())
    >>> finding = Finding("idle", Severity.MODERATE, 3 << 20, "3 MiB lie idle")
    >>> report = IdleReport(idle_bytes=3 << 20, total_bytes=4 << 20, findings=(finding,))
    >>> print(report)
    idle
    <BLANKLINE>
    MODERATE 3 MiB lie idle
    >>> list(report.to_dict())
    ['schema', 'idle_bytes', 'total_bytes', 'share', 'findings']
"""

import abc
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from typing import Any, ClassVar

from neutracer.pickling import FieldsOnly
from neutracer.render.document import Block, Document, Entry, Findings, Note, Severity
from neutracer.render.row import PlainRow
from neutracer.render.text import render_text
from neutracer.units import format_count

__all__ = ["Finding", "Report", "ranked"]

# Annotations are objects in this module, not text: subclasses elsewhere inherit the fields,
# and `typing.get_type_hints` finds no Finding there.

# One screen: the command that the document names shows the rest.
_SCREEN_LINES = 40


@dataclass(frozen=True)
class Finding(PlainRow):
    """One thing that deserves a reader's attention, with its proof and its remedy.

    Attributes:
        kind: A stable word for programs: "fragmentation", "out_of_memory".
        severity: How bad it is.
        bytes: How many bytes it is about; 0 where it is not about bytes.
        message: The finding in one line, with its bytes.
        evidence: What proves it, and who.
        advice: What to change, each with its effect; empty where nothing is known to help.
        event: The event of the trace at which it shows, or None.
    """

    kind: str
    severity: Severity
    bytes: int
    message: str
    evidence: tuple[Note, ...] = ()
    advice: tuple[Note, ...] = ()
    event: int | None = None

    def entry(self) -> Entry:
        """The finding as a page shows it."""
        when = "" if self.event is None else f"event {format_count(self.event)}"
        return Entry(self.severity, self.message, when, self.evidence + self.advice)


def ranked(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Findings from the worst to the least; among equals, the most bytes first."""
    return tuple(sorted(findings, key=lambda f: (-f.severity.rank, -f.bytes)))


@dataclass(frozen=True, kw_only=True, repr=False)
class Report(FieldsOnly, abc.ABC):
    """The base of every report. Reports can be pickled and copied.

    A subclass is a `@dataclass(frozen=True, kw_only=True, repr=False)` that sets `schema`
    and writes `document()`. Fields whose names begin with an underscore stay out of
    `to_dict()`; properties named in `derived` go into it.

    Attributes:
        findings: What is worth reporting, the worst first.
    """

    schema: ClassVar[str]
    derived: ClassVar[tuple[str, ...]] = ()

    findings: tuple[Finding, ...] = ()

    @abc.abstractmethod
    def document(self) -> Document:
        """The report as a page."""

    @property
    def worst(self) -> Severity | None:
        """The severity of the worst finding, or None where there is none."""
        ranks = [finding.severity for finding in self.findings]
        return max(ranks, key=lambda severity: severity.rank, default=None)

    def finding_blocks(self) -> tuple[Block, ...]:
        """The findings as blocks of a page; empty where there are none."""
        if not self.findings:
            return ()
        return (Findings(tuple(finding.entry() for finding in self.findings)),)

    def to_dict(self) -> dict[str, Any]:
        """The report as plain data for JSON: schema first, findings last.

        Raises:
            TypeError: A field holds what JSON can't express.
        """
        # JSON is for those who ask for it.
        from neutracer.render.json import to_plain

        return {name: to_plain(value, name) for name, value in self.json_items()}

    def json_items(self) -> Iterator[tuple[str, Any]]:
        """What `to_dict` has, one after the other, and as it is."""
        names = [field.name for field in fields(self) if not field.name.startswith("_")]
        names.remove("findings")
        yield "schema", self.schema
        for name in (*names, *self.derived, "findings"):
            yield name, getattr(self, name)

    def __str__(self) -> str:
        return render_text(self.document(), max_lines=_SCREEN_LINES)

    def __repr__(self) -> str:
        found = format_count(len(self.findings), "finding")
        worst = f", worst {self.worst}" if self.worst else ""
        return f"<{type(self).__name__}: {found}{worst}>"

    def picture(self) -> str:
        """What a notebook shows under the title: HTML that is safe; none in most reports."""
        return ""

    def _repr_html_(self) -> str:
        # HTML is for notebooks.
        from neutracer.render.inline import inline_html

        return inline_html(self.document(), self.picture(), "print(report), or report.to_dict(),")

    # IPython's text: the whole report where it is shown by itself.
    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        alone = not cycle and len(getattr(printer, "stack", ())) <= 1
        printer.text(str(self) if alone else repr(self))
