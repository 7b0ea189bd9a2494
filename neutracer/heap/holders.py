# SPDX-License-Identifier: Apache-2.0
"""`notebook_holders`: memory held by a notebook's variables, outputs and exceptions."""

from __future__ import annotations

import builtins
import symtable
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from types import BuiltinFunctionType, FunctionType, ModuleType, TracebackType
from typing import Any, overload

from neutracer._native import core
from neutracer.arguments import running_shell
from neutracer.heap.alive import read_autograd
from neutracer.render.document import Block, Document, Figure, Paragraph, Severity, Table
from neutracer.render.report import Finding, PlainRow, Report, ranked
from neutracer.units import format_bytes, format_count

# ---- Holdings ----------------------------------------------------------------------------

# IPython keeps an output in several places: in `Out`, under `_7`, perhaps under `_`, and inside
# IPython. A holding is one value with all of these references.

_NEWEST = ("_", "__", "___")
_LAST = ("last_exc", "last_value", "last_traceback")


@dataclass
class Holding:
    """One value and the references that keep it. This refers to the value too: drop it soon."""

    names: tuple[str, ...]
    kind: str  # "output", "exception" or "input".
    type: str
    # The references for the core: container, value, container, value.
    pairs: list[Any] = field(default_factory=list)
    # Functions that drop one reference each.
    drop: list[Callable[[], object]] = field(default_factory=list)


@dataclass
class _Reference:
    name: str
    container: object
    value: object
    drop: Callable[[], object]


def find_holdings() -> list[Holding]:
    """The held outputs, exceptions and the input history, each value once."""
    shell = _shell()
    found: dict[object, Holding] = {}
    for reference in _outputs(shell):
        _add(found, "output", id(reference.value), reference)
    error = vars(sys).get("last_exc", vars(sys).get("last_value"))
    for reference in _exceptions(shell):
        # A traceback belongs to its exception.
        owner = error if isinstance(reference.value, TracebackType) else reference.value
        _add(found, "exception", id(owner), reference)
    holdings = list(found.values())
    inputs = shell.user_ns.get("In") if shell is not None else None
    if type(inputs) is list and len(inputs) > 1:
        holdings.append(Holding((f"In[1:{len(inputs)}]",), "input", "list"))
    return holdings


def let_go(holdings: list[Holding]) -> None:
    """Drop every reference of these holdings; this empties the list."""
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
    shell = running_shell()
    return shell if type(getattr(shell, "user_ns", None)) is dict else None


def _entry(space: dict[Any, Any], key: object, name: str, empty: object = None) -> _Reference:
    """An entry of a dict; dropping it stores `empty`, or deletes it if that is None."""

    def drop() -> None:
        if empty is None:
            space.pop(key, None)
        elif key in space:
            space[key] = empty

    return _Reference(name, space, space[key], drop)


def _attributes(owner: object, names: tuple[str, ...], text: str) -> Iterator[_Reference]:
    """Attributes of an IPython object that hold a value; dropping sets them to None."""
    space = getattr(owner, "__dict__", None)
    for name in names:
        if type(space) is dict and not _is_nothing(space.get(name)):
            value = space[name]

            def drop(name: str = name) -> None:
                setattr(owner, name, "" if name in _NEWEST else None)

            # An object without a materialized dict is its own container.
            yield _Reference(text.format(name), space, value, drop)
            yield _Reference(text.format(name), owner, value, drop)


def _is_nothing(value: object) -> bool:
    return value is None or (type(value) is str and not value)


def _outputs(shell: Any) -> Iterator[_Reference]:
    if shell is None:
        # Without a prompt, `_` may be gettext's function.
        if hasattr(sys, "ps1") and not _is_nothing(vars(builtins).get("_")):
            yield _entry(vars(builtins), "_", "_")
        return
    # IPython keeps its own names and their values in a second namespace.
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


# ---- Variables ---------------------------------------------------------------------------

# What they lead to is the whole program.
_NO_DATA = (ModuleType, FunctionType, BuiltinFunctionType, type)


def find_variables() -> list[Holding]:
    """The notebook's own variables, each value once; outputs are not among them."""
    shell = _shell()
    if shell is None:
        return []
    space, hidden = shell.user_ns, getattr(shell, "user_ns_hidden", {})
    found: dict[object, Holding] = {}
    for name in list(space):
        own = isinstance(name, str) and not (name in hidden and hidden[name] is space[name])
        if (
            own
            and name not in (*_NEWEST, "In", "Out", "_oh")
            and not issubclass(type(space[name]), _NO_DATA)
        ):
            _add(found, "variable", id(space[name]), _entry(space, name, name))
    return list(found.values())


def cells_of(inputs: Sequence[str]) -> dict[str, int]:
    """The number of the last cell that assigned each variable, from the input history."""
    cells = {}
    for number, text in enumerate(inputs):
        with suppress(SyntaxError, ValueError):
            for symbol in symtable.symtable(text, "", "exec").get_symbols():
                if symbol.is_assigned():
                    cells[symbol.get_name()] = number
    return cells


# ---- Holders -----------------------------------------------------------------------------

# Holders in the printed report; `.holders` has all of them.
_SHOWN = 12

_GIB = 1 << 30


@dataclass(frozen=True)
class NotebookHolder(PlainRow):
    """One value that a notebook, the interpreter or a past exception keeps.

    Attributes:
        names: The names that hold it: ("Out[3]", "_3", "_"), or a variable's.
        kind: "variable", "output", "exception" or "input".
        type: The type of the value, with its module.
        bytes: Storage bytes of the tensors that would be freed by dropping only these names.
        reachable_bytes: Bytes of all tensors that it leads to; others may keep them too.
        tensors: Tensors that would be freed.
        tensor: Shape and dtype of a variable that is a tensor; else "".
        cell: The number of the last cell that assigned the variable; None if unknown.
    """

    names: tuple[str, ...]
    kind: str
    type: str
    bytes: int
    reachable_bytes: int
    tensors: int
    tensor: str = ""
    cell: int | None = None


@dataclass(frozen=True, kw_only=True, repr=False)
class HoldersReport(Report, Sequence[NotebookHolder]):
    """A notebook's holders: a sequence of `NotebookHolder`, most bytes first.

    Attributes:
        holders: The holders: outputs, past exceptions and the input history.
        variables: The variables that lead to tensors, most reachable bytes first; empty after
            `release_holders`, which drops none.
        total_bytes: Bytes freed by dropping all of them together: more than the sum if two
            keep the same tensor.
        released: True after `release_holders`.
        unfollowed: Nodes and tensors beyond the first 20,000 nodes of an autograd graph;
            tensors that only these keep are not counted.
    """

    schema = "neutracer.holders/1"

    holders: tuple[NotebookHolder, ...]
    total_bytes: int
    released: bool
    unfollowed: int = 0
    variables: tuple[NotebookHolder, ...] = ()

    @overload
    def __getitem__(self, index: int) -> NotebookHolder: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[NotebookHolder]: ...
    def __getitem__(self, index: int | slice) -> NotebookHolder | Sequence[NotebookHolder]:
        return self.holders[index]

    def __len__(self) -> int:
        return len(self.holders)

    def document(self) -> Document:
        """The report as a page."""
        done = "released from" if self.released else "kept by"
        facts = (f"{format_bytes(self.total_bytes)} {done} outputs and past exceptions",)
        blocks: tuple[Block, ...] = self.finding_blocks()
        if self.variables:
            blocks += (_table("Variables", self.variables),)
        kept = [one for one in self.holders if one.reachable_bytes]
        if kept:
            drop = () if self.released else ("neutracer.release_holders() drops them.",)
            blocks += (_table("Outputs and past exceptions", kept, drop),)
        elif not self.holders:
            blocks += (Paragraph("No outputs or past exceptions are held."),)
        if self.unfollowed:
            blocks += (
                Paragraph(
                    f"The autograd graph is large: {format_count(self.unfollowed, 'object')} "
                    "and everything beyond were not counted."
                ),
            )
        more = "all: .variables and .holders"
        return Document("What the notebook keeps", facts, blocks, more=more)


def _table(title: str, holders: Sequence[NotebookHolder], notes: tuple[str, ...] = ()) -> Table:
    rows = tuple(
        (
            _names_text(holder.names),
            f"{holder.type.rpartition('.')[2]} {holder.tensor}".rstrip(),
            Figure.bytes(holder.bytes),
            Figure.bytes(holder.reachable_bytes),
            "" if holder.cell is None else f"In[{holder.cell}]",
        )
        for holder in holders[:_SHOWN]
    )
    left = len(holders) - len(rows)
    if left:
        notes = (f"{format_count(left, 'smaller one')} not shown", *notes)
    return Table(title, rows, ("", "", "freed", "reachable", ""), notes)


def _names_text(names: Sequence[str]) -> str:
    return ", ".join(names[:4]) + (", …" if len(names) > 4 else "")


def notebook_holders() -> HoldersReport:
    """List a notebook's variables, outputs and past exceptions with the tensor bytes they keep.

    A variable's tensors may be inside of containers and modules. Outputs and exceptions are
    IPython's `Out`, `_`, `__`, `___` and `_1`, `_2`, …, with its internal copies;
    `sys.last_exc`, `last_value` and `last_traceback`, with IPython's own tracebacks; and the
    interactive interpreter's `_`. The input history `In` is listed too, but keeps no tensor.
    An output that keeps an autograd graph has the graph's bytes. Nothing is changed.

    Returns:
        The holders, most bytes first. The report refers to no object of the program.

    Raises:
        UnavailableError: A memory layout is unknown.

    Example:
        >>> notebook_holders().released
        False
    """
    return _report(find_holdings(), find_variables())


def release_holders() -> HoldersReport:
    """Drop exactly the references that `notebook_holders` lists, except the input history.

    Values without another holder are freed at once unless they are in a cycle. Outputs are
    then no longer available by number, nor the last exception to a debugger.

    Returns:
        The released holders, as `notebook_holders` would have listed them.

    Raises:
        UnavailableError: A memory layout is unknown; nothing was released.
    """
    holdings = find_holdings()
    report = _report(holdings)
    let_go(holdings)
    return report


def _report(holdings: list[Holding], variables: list[Holding] | None = None) -> HoldersReport:
    """The report; without `variables` that of a release."""
    links = read_autograd()
    graph = (links.objects, links.kinds, links.links, links.names)
    held, together = core.held_bytes([holding.pairs for holding in holdings], *graph)
    own = variables or []
    owned, _ = core.held_bytes([holding.pairs for holding in own], *graph) if own else ([], 0)
    unfollowed = links.unfollowed
    del links, graph
    holders = [*map(_holder, holdings, held)]
    holders.sort(key=lambda holder: (-holder.bytes, -holder.reachable_bytes))
    kept = [one for one in map(_holder, own, owned) if one.reachable_bytes]
    if kept:
        cells = cells_of(_shell().user_ns.get("In", ()))
        kept = [replace(one, cell=cells.get(one.names[0])) for one in kept]
        kept.sort(key=lambda one: (-one.reachable_bytes, -one.bytes))
    # Of the variables the one of which most is freed.
    most = sorted(kept, key=lambda one: -one.bytes)[:1]
    keep = () if variables is None else (*most, *holders)
    return HoldersReport(
        holders=tuple(holders),
        total_bytes=together,
        released=variables is None,
        unfollowed=unfollowed,
        variables=tuple(kept),
        findings=ranked(_finding(one) for one in keep if one.bytes),
    )


def _holder(holding: Holding, held: tuple[int, int, int, int]) -> NotebookHolder:
    goes, leads, tensors, _ = held
    facts = core.tensor_facts(holding.pairs[1]) if holding.kind == "variable" else None
    tensor = "" if facts is None else f"{list(facts['shape'])} {facts['dtype']}"
    return NotebookHolder(holding.names, holding.kind, holding.type, goes, leads, tensors, tensor)


def _finding(holder: NotebookHolder) -> Finding:
    severity = Severity.MODERATE if holder.bytes >= _GIB else Severity.INFO
    tensors = format_count(holder.tensors, "tensor")
    keep = "keeps" if len(holder.names) == 1 else "keep"
    return Finding(
        kind=f"kept_by_{holder.kind}",
        severity=severity,
        bytes=holder.bytes,
        message=f"{_names_text(holder.names)} {keep} {format_bytes(holder.bytes)} in {tensors}",
    )
