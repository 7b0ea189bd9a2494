# SPDX-License-Identifier: Apache-2.0
"""The rules of `categories`: from stacks, passes and lifetimes to a category.

What a stack was doing is decided once for each stack (`roles`); what it made, by how long
that lived. Where two readings are possible, a rule leaves the row as it is: unknown.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import compress

from neutracer.trace.preexisting import decide_preexisting
from neutracer.trace.roles import Passes, Role

__all__ = ["Evidence", "decide"]

# Events that the scratch memory of one operation lives at most.
_BRIEF = 64

# The workspaces that cuBLAS keeps, in bytes: of Hopper and newer, and of those before.
_WORKSPACES = frozenset((32 << 20, 8_519_680, 4_194_304 + 131_072))


class Evidence:
    """What the rules use: a timeline's allocations and passes."""

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
        #: The first row that the trace itself allocates, and from it on each row's role.
        self.first = bisect_left(self.made, 0)
        self.kinds = bytes(map(passes.role.__getitem__, self.made[self.first :]))

    def rows_of(self, kinds: Collection[Role]) -> Iterator[int]:
        """The rows that the trace allocates in one of some roles."""
        table = bytearray(256)
        for kind in kinds:
            table[kind] = 1
        return compress(range(self.first, len(self.made)), self.kinds.translate(table))

    def row_pass(self, event: int) -> int:
        """The number of the backward pass that an event is in; -1: in none."""
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
    passes = evidence.passes
    # A line of the program's own calls more than one operation.
    kinds = [Role.MODULE, Role.BACKWARD, *([Role.USER] if passes.library else [])]
    for row in evidence.rows_of(kinds):
        begin, end = made[row], freed[row]
        if not 0 < end - begin <= _BRIEF:
            continue
        kind = passes.role[begin]
        brief = kind in (Role.MODULE, Role.BACKWARD) and _is_nested(evidence, row)
        if not brief and kind in (Role.MODULE, Role.USER):
            brief = _is_one_call(passes, begin, end)
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
    gradient = number["survives-backward"]
    freed, asked = evidence.freed, evidence.asked
    role = evidence.passes.role
    built = Counter(asked[row] for row in evidence.rows_of([Role.BUILD]) if freed[row] < 0)
    known = {asked[row] for row in range(evidence.first) if freed[row] == -1} | built.keys()
    candidates = _survivors(evidence, rules, number["inside-backward"], built)
    seen: Counter[int] = Counter()
    for rows in candidates:
        seen.update({asked[row] for row in rows})
    gradients = []
    for rows in candidates:
        kept: Counter[int] = Counter()
        for row in rows:
            size = asked[row]
            cleared = freed[row] >= 0 and role[freed[row]] == Role.ZERO_GRAD
            if cleared or size in known or seen[size] > 1 or len(candidates) == 1:
                rules[row] = gradient
                kept[size] += 1
        gradients.append(kept)
    return gradients


def _survivors(
    evidence: Evidence, rules: bytearray, detail: int, built: Counter[int]
) -> list[list[int]]:
    """The rows of each backward pass that outlive it; those that don't get the rule `detail`.

    What is as large as a workspace and never freed may be one. Of these each pass keeps as
    many as modules have built tensors of that size, the last ones: a workspace is made by the
    first operation that needs it.
    """
    made, freed, asked = evidence.made, evidence.freed, evidence.asked
    found: list[list[int]] = [[] for _ in evidence.begins]
    for row in evidence.rows_of([Role.BACKWARD]):
        at = evidence.row_pass(made[row])
        if at < 0:
            continue
        if 0 <= freed[row] <= evidence.ends[at]:
            rules[row] = rules[row] or detail
        else:
            rules[row] = 0
            found[at].append(row)
    for at, rows in enumerate(found):
        doubtful: defaultdict[int, list[int]] = defaultdict(list)
        for row in rows:
            if asked[row] in _WORKSPACES and freed[row] < 0:
                doubtful[asked[row]].append(row)
        dropped = {
            row
            for size, some in doubtful.items()
            for row in some[: max(len(some) - built[size], 0)]
        }
        found[at] = [row for row in rows if row not in dropped]
    return found


def _others(
    evidence: Evidence, rules: bytearray, number: Mapping[str, int], sizes: set[int]
) -> None:
    """The allocations outside of backward passes; `sizes` are those of gradients."""
    made, freed, asked = evidence.made, evidence.freed, evidence.asked
    role = evidence.passes.role
    forward = _Forward(evidence)
    kinds = [Role.MODULE, Role.OPTIMIZER, Role.STATE, Role.BUILD]
    # Without a module's call nothing is known of the program's own lines.
    for row in evidence.rows_of([*kinds, Role.USER] if evidence.passes.forward else kinds):
        if rules[row]:
            continue
        begin, end = made[row], freed[row]
        kind = role[begin]
        if kind == Role.MODULE:
            if _is_activation(evidence, begin, end, asked[row]):
                rules[row] = number["module-output"]
        elif kind == Role.USER:
            rules[row] = forward.rule(begin, end, number)
        elif kind == Role.BUILD:
            fits = asked[row] in sizes or not evidence.is_training
            if end < 0 and fits:
                rules[row] = number["module-made"]
        else:
            kept = evidence.outlives(begin, end)
            rules[row] = number["kept-by-optimizer" if kept else "optimizer-scratch"]


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
