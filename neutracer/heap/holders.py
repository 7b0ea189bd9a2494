# SPDX-License-Identifier: Apache-2.0
"""`notebook_holders`: device memory held by a notebook's variables, outputs and exceptions."""

from __future__ import annotations

import builtins
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, overload

from neutracer._native import core
from neutracer.heap.autograd import read_autograd
from neutracer.render.document import Block, Document, Figure, Paragraph, Severity, Table
from neutracer.render.report import Finding, PlainRow, Report, ranked
from neutracer.units import format_bytes, format_count

# ---- Holdings ----------------------------------------------------------------------------

# The places where IPython and the interpreter keep values of the past.
#
# A holding is one value with all the references that must go before it can be freed: an
# output is in `Out`, under `_7`, perhaps under `_`, and once more inside of IPython.

_NEWEST = ("_", "__", "___")
_LAST = ("last_exc", "last_value", "last_traceback")


@dataclass
class Holding:
    """One value that something keeps. This refers to the value too: drop it soon.

    Attributes:
        names: What a reader calls the references.
        kind: "output", "exception" or "input".
        type: The value's type, with its module.
        pairs: Container, value, container, value: the references, for the core.
        drop: What lets go of each.
    """

    names: tuple[str, ...]
    kind: str
    type: str
    pairs: list[Any] = field(default_factory=list)
    drop: list[Callable[[], object]] = field(default_factory=list)


@dataclass
class _Reference:
    """A place that holds a value: an entry of a dict, or an attribute."""

    name: str
    container: object
    value: object
    drop: Callable[[], object]


def find_holdings() -> list[Holding]:
    """All values that are still held, each once: outputs, exceptions, and the input history."""
    shell = _shell()
    found: dict[object, Holding] = {}
    for reference in _outputs(shell):
        _add(found, "output", id(reference.value), reference)
    error = vars(sys).get("last_exc", vars(sys).get("last_value"))
    for reference in _exceptions(shell):
        # A traceback goes with its exception.
        owner = error if isinstance(reference.value, TracebackType) else reference.value
        _add(found, "exception", id(owner), reference)
    holdings = list(found.values())
    inputs = shell.user_ns.get("In") if shell is not None else None
    if type(inputs) is list and len(inputs) > 1:
        holdings.append(Holding((f"In[1:{len(inputs)}]",), "input", "list"))
    return holdings


def let_go(holdings: list[Holding]) -> None:
    """Drop every reference of these; the list is emptied."""
    while holdings:
        holding = holdings.pop()
        holding.pairs.clear()
        while holding.drop:
            holding.drop.pop()()


def _add(found: dict[object, Holding], kind: str, owner: int, reference: _Reference) -> None:
    cls = type(reference.value)
    module = "" if cls.__module__ == "builtins" else f"{cls.__module__}."
    holding = found.setdefault((kind, owner), Holding((), kind, f"{module}{cls.__qualname__}"))
    if reference.name not in holding.names:
        holding.names += (reference.name,)
    holding.pairs += [reference.container, reference.value]
    holding.drop.append(reference.drop)


def _shell() -> Any:
    """IPython's shell, where one runs in this process."""
    module = sys.modules.get("IPython.core.interactiveshell")
    shell_type = getattr(module, "InteractiveShell", None)
    shell = getattr(shell_type, "_instance", None)
    return shell if type(getattr(shell, "user_ns", None)) is dict else None


def _entry(space: dict[Any, Any], key: object, name: str, empty: object = None) -> _Reference:
    """An entry of a dict; `empty` takes its place afterwards, or nothing if None."""

    def drop() -> None:
        if empty is None:
            space.pop(key, None)
        elif key in space:
            space[key] = empty

    return _Reference(name, space, space[key], drop)


def _attributes(owner: object, names: tuple[str, ...], text: str) -> Iterator[_Reference]:
    """Attributes of an object of IPython's own that hold something; set to None."""
    space = getattr(owner, "__dict__", None)
    for name in names:
        if type(space) is dict and not _is_nothing(space.get(name)):
            value = space[name]

            def drop(name: str = name) -> None:
                setattr(owner, name, "" if name in _NEWEST else None)

            # Where the object keeps its attributes without a dict, it is the container.
            yield _Reference(text.format(name), space, value, drop)
            yield _Reference(text.format(name), owner, value, drop)


def _is_nothing(value: object) -> bool:
    return value is None or (type(value) is str and not value)


def _outputs(shell: Any) -> Iterator[_Reference]:
    if shell is None:
        # gettext may have put its function there; only a prompt puts a result there.
        if hasattr(sys, "ps1") and not _is_nothing(vars(builtins).get("_")):
            yield _entry(vars(builtins), "_", "_")
        return
    # In a second namespace IPython remembers its own names, with their values.
    hidden = getattr(shell, "user_ns_hidden", None)
    spaces = [shell.user_ns, *([hidden] if type(hidden) is dict else [])]
    out = shell.user_ns.get("_oh")
    if isinstance(out, dict):
        for number in list(out):
            yield _entry(out, number, f"Out[{number}]")
            name = f"_{number}"
            for space in spaces:
                if name in space and space[name] is out[number]:
                    yield _entry(space, name, name)
    for space in spaces:
        for name in _NEWEST:
            if not _is_nothing(space.get(name)):
                yield _entry(space, name, name, empty="")
    yield from _attributes(getattr(shell, "displayhook", None), _NEWEST, "{}")
    result = getattr(shell, "last_execution_result", None)
    yield from _attributes(result, ("result",), "IPython's last result")


def _exceptions(shell: Any) -> Iterator[_Reference]:
    space = vars(sys)
    for name in _LAST:
        if not _is_nothing(space.get(name)):
            yield _entry(space, name, f"sys.{name}")
    if shell is None:
        return
    for owner in ("InteractiveTB", "SyntaxTB"):
        formatter = getattr(shell, owner, None)
        yield from _attributes(formatter, ("evalue", "tb"), f"IPython's {owner}.{{}}")
    result = getattr(shell, "last_execution_result", None)
    names = ("error_in_exec", "error_before_exec")
    yield from _attributes(result, names, "IPython's last result")


# ---- Holders -----------------------------------------------------------------------------

# What does a notebook, or a past exception, keep? And how many bytes is that?

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
