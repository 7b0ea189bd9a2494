# SPDX-License-Identifier: Apache-2.0
"""The rules behind `categories`: from stacks, passes and lifetimes to a category.

What a stack was doing is decided once for each stack (`roles`); what it made, by how long
that lived. Where two readings are possible, a rule leaves the row as it is: unknown.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence

from neutracer.trace.preexisting import decide_preexisting
from neutracer.trace.roles import Passes, Role

__all__ = ["Evidence", "decide"]

# Events that the scratch memory of one operation lives at most.
_BRIEF = 64

# The workspaces that cuBLAS keeps, in bytes: of Hopper and newer, and of those before.
_WORKSPACES = frozenset((32 << 20, 8_519_680, 4_194_304 + 131_072))


class Evidence:
    """What the rules go by: a timeline's allocations and passes."""

    def __init__(self, columns: Mapping[str, Sequence[int]], passes: Passes) -> None:
        self.columns = columns
        self.passes = passes
        self.made = columns["alloc_event"]
        self.freed = columns["free_event"]
        self.asked = columns["requested_size"]
        self.stack = columns["stack"]
        self.begins = [begin for begin, _ in passes.backward]
        self.ends = [end for _, end in passes.backward]
        self.is_training = bool(passes.backward)

    def row_pass(self, event: int) -> int:
        """The number of the backward pass that an event lies in; -1: in none."""
        at = bisect_right(self.begins, event) - 1
        return at if at >= 0 and event < self.ends[at] else -1

    def ends_soon(self, made: int, freed: int) -> bool:
        """Whether what was made in a forward pass was freed before the backward pass after
        the next one had begun (or the trace ended before that)."""
        after = bisect_left(self.ends, made + 1) + 1
        if after < len(self.ends):
            return 0 <= freed <= self.begins[after]
        return True

    def outlives(self, made: int, freed: int) -> bool:
        """Whether it was kept to the end, or past the next backward pass."""
        if freed < 0:
            return True
        after = bisect_left(self.begins, made)
        return after < len(self.ends) and freed > self.ends[after]


def decide(evidence: Evidence, rules: bytearray, number: Mapping[str, int]) -> None:
    """Write each allocation's rule.

    Args:
        evidence: What is known.
        rules: One a row of the allocations, zero; written.
        number: The number of each rule.
    """
    _scratch(evidence, rules, number["scratch"])
    gradients = _backward(evidence, rules, number)
    sizes: set[int] = set()
    for found in gradients:
        sizes.update(found)
    _others(evidence, rules, number, sizes)
    largest = max(gradients, key=lambda c: sum(k * v for k, v in c.items()), default=Counter())
    decide_preexisting(evidence.columns, evidence.passes.role, largest, rules, number)


def _scratch(evidence: Evidence, rules: bytearray, rule: int) -> None:
    """Allocations that one operation makes and frees."""
    made, freed = evidence.made, evidence.freed
    role = evidence.passes.role
    first = bisect_left(made, 0)
    for row in range(first, len(made)):
        begin, end = made[row], freed[row]
        if not 0 < end - begin <= _BRIEF:
            continue
        kind = role[begin]
        brief = kind in (Role.MODULE, Role.BACKWARD) and _is_nested(evidence, row)
        if not brief and kind in (Role.MODULE, Role.USER):
            brief = _is_one_call(evidence.passes, begin, end)
        if brief:
            rules[row] = rule


def _is_nested(evidence: Evidence, row: int) -> bool:
    """Whether nothing that was made while a row lived outlives it."""
    made, freed, stack = evidence.made, evidence.freed, evidence.stack
    end = freed[row]
    after = row + 1
    while after < len(made) and made[after] < end and 0 <= freed[after] < end:
        if stack[after] != stack[row]:
            return False
        after += 1
    return after == len(made) or made[after] > end


def _is_one_call(passes: Passes, begin: int, end: int) -> bool:
    """Whether all events from one to another come from one line of PyTorch's own files: such
    a line calls one operation."""
    stack = passes.stack
    code = stack[begin]
    return code in passes.library and all(stack[at] == code for at in range(begin + 1, end + 1))


def _backward(
    evidence: Evidence, rules: bytearray, number: Mapping[str, int]
) -> list[Counter[int]]:
    """The allocations of backward passes; returns each pass's gradients by requested size."""
    detail, gradient = number["inside-backward"], number["survives-backward"]
    made, freed, asked = evidence.made, evidence.freed, evidence.asked
    role = evidence.passes.role
    candidates: list[list[int]] = [[] for _ in evidence.begins]
    first = bisect_left(made, 0)
    built = {asked[row] for row in range(first) if freed[row] == -1}
    for row in range(first, len(made)):
        begin = made[row]
        kind = role[begin]
        if kind == Role.BUILD and freed[row] < 0:
            built.add(asked[row])
        if kind != Role.BACKWARD:
            continue
        at = evidence.row_pass(begin)
        if at < 0:
            continue
        if 0 <= freed[row] <= evidence.ends[at]:
            if not rules[row]:
                rules[row] = detail
        elif asked[row] not in _WORKSPACES or freed[row] >= 0:
            rules[row] = 0
            candidates[at].append(row)
    seen: Counter[int] = Counter()
    for rows in candidates:
        seen.update({asked[row] for row in rows})
    gradients = []
    for rows in candidates:
        kept: Counter[int] = Counter()
        for row in rows:
            size = asked[row]
            cleared = freed[row] >= 0 and role[freed[row]] == Role.ZERO_GRAD
            if cleared or size in built or seen[size] > 1 or len(candidates) == 1:
                rules[row] = gradient
                kept[size] += 1
        gradients.append(kept)
    return gradients


def _others(
    evidence: Evidence, rules: bytearray, number: Mapping[str, int], sizes: set[int]
) -> None:
    """The allocations outside of backward passes; `sizes` are those of gradients."""
    made, freed, asked = evidence.made, evidence.freed, evidence.asked
    role = evidence.passes.role
    forward = _Forward(evidence)
    first = bisect_left(made, 0)
    for row in range(first, len(made)):
        if rules[row]:
            continue
        begin, end = made[row], freed[row]
        kind = role[begin]
        if kind == Role.MODULE:
            if _is_activation(evidence, begin, end, asked[row]):
                rules[row] = number["module-output"]
        elif kind == Role.USER:
            rules[row] = forward.rule(begin, end, number)
        elif kind in (Role.OPTIMIZER, Role.STATE):
            kept = evidence.outlives(begin, end)
            rules[row] = number["kept-by-optimizer" if kept else "optimizer-scratch"]
        elif kind == Role.BUILD:
            fits = asked[row] in sizes or not evidence.is_training
            if end < 0 and fits:
                rules[row] = number["module-made"]


def _is_activation(evidence: Evidence, made: int, freed: int, asked: int) -> bool:
    if freed < 0 and asked in _WORKSPACES:
        return False
    return evidence.ends_soon(made, freed)


class _Forward:
    """What the program's own lines made around the modules' calls."""

    def __init__(self, evidence: Evidence) -> None:
        self.evidence = evidence
        self.forward = evidence.passes.forward

    def rule(self, made: int, freed: int, number: Mapping[str, int]) -> int:
        """The rule for an allocation of a line outside of modules; 0: none."""
        evidence = self.evidence
        last_end = bisect_right(evidence.ends, made) - 1
        opened = evidence.ends[last_end] if last_end >= 0 else 0
        here = bisect_left(self.forward, made)
        called = here > 0 and self.forward[here - 1] >= opened
        if called:
            # A module was called since the last backward pass, and one will follow.
            coming = bisect_left(evidence.begins, made)
            if coming < len(evidence.begins) and evidence.ends_soon(made, freed):
                return number["after-module"]
            return 0
        if here == len(self.forward):
            return 0
        call = self.forward[here]
        if freed > call or (freed < 0 and len(evidence.begins) - last_end <= 2):
            if not evidence.is_training and freed < 0:
                return 0
            return number["before-module"] if evidence.ends_soon(made, freed) else 0
        return 0
