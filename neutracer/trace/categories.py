# SPDX-License-Identifier: Apache-2.0
"""What each allocation was for: parameter, gradient, activation and so on, with the rule."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from neutracer.trace.category_rules import Evidence, decide
from neutracer.trace.roles import Passes
from neutracer.trace.table import Table

__all__ = ["CATEGORIES", "RULES", "Categories", "categories_of"]

#: The names, as PyTorch's memory profiler has them, by code.
CATEGORIES = (
    "unknown",
    "input",
    "temporary",
    "activation",
    "gradient",
    "autograd_detail",
    "parameter",
    "optimizer_state",
)

#: The rules by code: the category that each gives, and what it goes by.
RULES: Mapping[str, tuple[str, str]] = {
    "none": ("unknown", "No rule applies."),
    "module-made": (
        "parameter",
        "Made while a module was built, moved or loaded, kept to the end, and as large as a "
        "gradient (or the trace has no gradients).",
    ),
    "as-many-as-gradients": (
        "parameter",
        "There before the trace, never freed, and as many of each size as one backward pass "
        "leaves gradients.",
    ),
    "kept-by-optimizer": (
        "optimizer_state",
        "Made inside of an optimizer's step and kept to the end, or past the next backward.",
    ),
    "survives-backward": (
        "gradient",
        "Made in a backward pass, alive after it, and of a size that a parameter has or that "
        "other passes leave too.",
    ),
    "freed-by-zero-grad": ("gradient", "There before the trace, and freed by zero_grad()."),
    "inside-backward": ("autograd_detail", "Made and freed within one backward pass."),
    "scratch": (
        "temporary",
        "Made and freed by one operation: nothing that was made meanwhile outlives it, or all "
        "of it is one line of PyTorch's.",
    ),
    "optimizer-scratch": ("temporary", "Made inside of an optimizer's step and freed with it."),
    "module-output": (
        "activation",
        "Made inside of a module's call outside of backward, and freed before the second "
        "backward pass from there on began.",
    ),
    "after-module": (
        "activation",
        "Made by the program between a module's call and backward (the loss, say), and freed "
        "before the second backward pass from there on began.",
    ),
    "before-module": (
        "input",
        "Made by the program before the first module's call of a pass, and alive when that began.",
    ),
}

_RULE_CODES = tuple(RULES)
_OF_RULE = bytes(CATEGORIES.index(category) for category, _ in RULES.values())


@dataclass(frozen=True)
class Categories:
    """The categories of a timeline's allocations.

    Attributes:
        codes: One a row of `Timeline.allocations`: an index into `CATEGORIES`.
        rules: One a row: an index into the rules, in the order of `RULES`.

    Example:
        >>> import neutracer
        >>> tl = neutracer.load("tests/data/train_resnet_healthy.pickle.xz").timeline()
        >>> tl.categories.name(0), tl.categories.rule(0)[0]
        ('parameter', 'as-many-as-gradients')
    """

    codes: bytes
    rules: bytes
    _columns: Mapping[str, Sequence[int]] = field(repr=False, compare=False)
    _events: int = field(repr=False, compare=False)

    @cached_property
    def share(self) -> float:
        """Of the bytes that were allocated over the trace (each allocation's size times the
        events it lived), the share that has another category than unknown."""
        return _share(self._columns, self.codes, self._events)

    def name(self, row: int) -> str:
        """The category of a row of `allocations`."""
        return CATEGORIES[self.codes[row]]

    def rule(self, row: int) -> tuple[str, str]:
        """The rule that decided a row, as a code and as a sentence."""
        code = _RULE_CODES[self.rules[row]]
        return code, RULES[code][1]

    def counts(self) -> dict[str, int]:
        """How many allocations each rule decided."""
        found = Counter(self.rules)
        return {code: found[number] for number, code in enumerate(_RULE_CODES) if found[number]}


def categories_of(
    columns: Mapping[str, Sequence[int]],
    passes: Passes,
) -> Categories:
    """The categories of one device's allocations.

    Args:
        columns: The columns of `Timeline.allocations`.
        passes: The trace's forward and backward passes.
    """
    count = len(columns["size"])
    rules = bytearray(count)
    number = {code: index for index, code in enumerate(_RULE_CODES)}
    decide(Evidence(columns, passes), rules, number)
    codes = bytes(rules).translate(_OF_RULE.ljust(256, b"\0"))
    return Categories(codes, bytes(rules), columns, len(passes.role))


def _share(columns: Mapping[str, Sequence[int]], codes: bytes, events: int) -> float:
    """The share of bytes times events whose category is known."""
    sums = [0] * len(CATEGORIES)
    rows = zip(codes, columns["size"], columns["alloc_event"], columns["free_event"], strict=True)
    for code, size, made, freed in rows:
        if freed != -2:
            sums[code] += size * ((freed if freed >= 0 else events) - max(made, 0))
    total = sum(sums)
    return (total - sums[0]) / total if total else 0.0


def live_by_category(table: Table, codes: bytes, event: int) -> list[tuple[int, int, int, int]]:
    """The allocated bytes after an event: (code, bytes, count, requested bytes), the most
    bytes first."""
    held = array("Q", bytes(8 * len(CATEGORIES)))
    asked, counts = held[:], held[:]
    rows = zip(
        codes,
        table.codes("size"),
        table.codes("requested_size"),
        table.codes("alloc_event"),
        table.codes("free_event"),
        strict=True,
    )
    for code, size, requested, made, freed in rows:
        if made <= event and (freed > event or freed == -1):
            held[code] += size
            asked[code] += requested
            counts[code] += 1
    found = [(c, held[c], counts[c], asked[c]) for c in range(len(CATEGORIES)) if counts[c]]
    return sorted(found, key=lambda one: -one[1])
