# SPDX-License-Identifier: Apache-2.0
"""What each allocation was for: parameter, gradient, activation and so on, with the rule."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from neutracer._native import core
from neutracer.trace.beside import TENSOR_CATEGORIES
from neutracer.trace.roles import Passes, own_stacks, passes_and_rules
from neutracer.trace.stacks import Stacks
from neutracer.trace.table import Table

__all__ = ["CATEGORIES", "FIRST_TOLD", "RULES", "Categories", "Decided"]

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

#: The rules by code, in the core's order: the category that each gives, and what it goes by.
RULES: Mapping[str, tuple[str, str]] = {
    "none": ("unknown", "No rule applies."),
    "module-made": (
        "parameter",
        "Made while a module was built, moved or loaded, and kept to the end, or till after a "
        "module's call.",
    ),
    "as-many-as-gradients": (
        "parameter",
        "There before the trace, never freed, and as many of each size as one backward pass "
        "leaves gradients, without those whose stack says what they are.",
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
    "freed-in-backward": (
        "activation",
        "There before the trace, and freed within a backward pass.",
    ),
    "parameter-copy": (
        "parameter",
        "Made by one line of the program before the first backward pass, kept to the end, and "
        "as much as one backward pass leaves gradients: masters, an average.",
    ),
    "gradient-copy": (
        "gradient",
        "Made by one line of the program after each backward pass, and as much as that leaves "
        "gradients: those of masters.",
    ),
    "bucket": ("gradient", "A bucket of DistributedDataParallel, in which gradients are reduced."),
    "gathered": ("parameter", "Made to put sharded parameters together."),
    "reduced": ("gradient", "Made to reduce gradients to their shards."),
    "kv-cache": ("activation", "Made by a cache of keys and values."),
    "workspace": (
        "temporary",
        "A workspace of cuBLAS or cuDNN: by its stack, or as large as one, made by an operation "
        "and never freed.",
    ),
    "scaler-scratch": (
        "temporary",
        "Made inside of the gradient scaler or of gradient clipping, and freed soon.",
    ),
    "line-made": (
        "parameter",
        "Made by a line of the program before the first backward pass, kept to the end, and as "
        "large as a gradient for which there is no other parameter.",
    ),
    "one-of-several": (
        "unknown",
        "There before the trace, never freed, and of its size there are several for each gradient "
        "that a backward pass leaves: most likely a parameter, or what an optimizer or an average "
        "keeps of it. Nothing in the file says which.",
    ),
    "held-as-parameter": (
        "parameter",
        "At the end a module's parameter or buffer, or among an optimizer's parameters: the "
        "process was asked.",
    ),
    "held-as-gradient": ("gradient", "At the end a parameter's .grad: the process was asked."),
    "held-as-state": (
        "optimizer_state",
        "At the end in an optimizer's state: the process was asked.",
    ),
}

#: The number of the first rule that the tensors of the process decide, and not the core.
FIRST_TOLD = len(RULES) - 3

# By action's code, whether it allocates: the core's first.
_IS_ALLOC = b"\x01" + bytes(255)

_RULE_CODES = tuple(RULES)
_OF_RULE = bytes(CATEGORIES.index(category) for category, _ in RULES.values())


class Decided:
    """The passes and categories of a timeline, decided when one of them is first asked for.

    A table's column keeps this and not the timeline, which keeps the table: so the memory of a
    timeline goes with its last reference, and does not wait for the garbage collector.

    Args:
        native: The core's timeline.
        events: Its events.
        stacks: The snapshot's stacks.
        tensors: By address, the category of the blocks that were tensors at the end.
    """

    def __init__(
        self, native: core.Timeline, events: Table, stacks: Stacks, tensors: Mapping[int, str]
    ) -> None:
        self._native, self._events, self._stacks = native, events, stacks
        self._tensors = tensors

    @cached_property
    def _both(self) -> tuple[Passes, bytes]:
        codes, action = self._events.codes("stack"), self._events.codes("action")
        rows = self._native.tables()["allocations"]
        ends = {name: memoryview(rows[name]) for name in ("free_event", "completed_event")}
        own = codes if self._native.facts()["frees_known"] else own_stacks(codes, ends)
        is_alloc = bytes(action).translate(_IS_ALLOC)
        return passes_and_rules(self._native, self._stacks.frames, own, is_alloc)

    @property
    def passes(self) -> Passes:
        """The forward and backward passes."""
        return self._both[0]

    @cached_property
    def categories(self) -> Categories:
        """What each allocation was for."""
        rows = self._native.tables()["allocations"]
        ends = {name: memoryview(rows[name]) for name in ("address", "free_event")}
        return Categories(_with_tensors(self._both[1], ends, self._tensors), self._native)


@dataclass(frozen=True)
class Categories:
    """The categories of a timeline's allocations.

    Attributes:
        rules: One a row of `Timeline.allocations`: an index into the rules, in the order of
            `RULES`.

    Example:
        >>> import neutracer
        >>> tl = neutracer.load("tests/data/train_resnet_healthy.pickle.xz").timeline()
        >>> tl.categories.name(0), tl.categories.rule(0)[0]
        ('parameter', 'as-many-as-gradients')
    """

    rules: bytes = field(repr=False)
    _timeline: core.Timeline = field(repr=False, compare=False)

    @cached_property
    def codes(self) -> bytes:
        """One a row of `Timeline.allocations`: an index into `CATEGORIES`."""
        return self.rules.translate(_OF_RULE.ljust(256, b"\0"))

    @cached_property
    def share(self) -> float:
        """Of the bytes that were allocated over the trace (each allocation's size times the
        events it lived), the share that has another category than unknown."""
        weights = core.weigh_codes(self._timeline, self.codes, len(CATEGORIES))
        total = sum(weights)
        return (total - weights[0]) / total if total else 0.0

    def __repr__(self) -> str:
        held = Counter(self.codes)
        parts = (f"{held[code]:,} {name}" for code, name in enumerate(CATEGORIES) if held[code])
        return f"<Categories of {len(self.rules):,} allocations: {', '.join(parts)}>"

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

    def live(self, event: int) -> list[tuple[str, int, int, int]]:
        """The allocated bytes after an event: (category, bytes, requested bytes, count), the
        most bytes first."""
        sums = core.sum_codes(self._timeline, self.codes, len(CATEGORIES), event)
        rows = [(name, *one) for name, one in zip(CATEGORIES, sums, strict=True) if one[2]]
        return sorted(rows, key=lambda row: -row[1])


def _with_tensors(
    rules: bytes, rows: Mapping[str, memoryview], tensors: Mapping[int, str]
) -> bytes:
    """The rules of a timeline's allocations, overridden for the blocks of known tensors.

    Args:
        rules: The core's, one per row.
        rows: The columns address and free_event.
        tensors: By address, the category of a block at the end.
    """
    if not tensors:
        return rules
    numbers = {category: FIRST_TOLD + at for at, category in enumerate(TENSOR_CATEGORIES)}
    changed = bytearray(rules)
    for row, (address, freed) in enumerate(zip(rows["address"], rows["free_event"], strict=True)):
        if freed == -1 and address in tensors:
            changed[row] = numbers[tensors[address]]
    return bytes(changed)
