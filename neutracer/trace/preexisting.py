# SPDX-License-Identifier: Apache-2.0
"""What was there before a trace began: its end and its sizes show it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from neutracer.trace.roles import Role

__all__ = ["decide_preexisting"]

# The share of the bytes that must have the same number of copies.
_AGREEING = 0.95


def decide_preexisting(
    columns: Mapping[str, Sequence[int]],
    role: bytearray,
    gradients: Counter[int],
    rules: bytearray,
    number: Mapping[str, int],
) -> None:
    """Write the rules of allocations from before the trace.

    Args:
        columns: The columns of `Timeline.allocations`.
        role: The role of each event.
        gradients: The requested sizes of the gradients of one backward pass, by number.
        rules: One a row; written.
        number: The number of each rule.
    """
    made, freed, asked = columns["alloc_event"], columns["free_event"], columns["requested_size"]
    kept = []
    for row, event in enumerate(made):
        if event >= 0:
            break
        if freed[row] == -1:
            kept.append(row)
        elif freed[row] >= 0 and role[freed[row]] == Role.ZERO_GRAD:
            rules[row] = number["freed-by-zero-grad"]
    kept = [row for row in kept if asked[row] in gradients]
    # With two or three a gradient the rest is the optimizer's state, and nothing in the file
    # tells a parameter from a state of its size.
    if _copies(Counter(asked[row] for row in kept), gradients) == 1:
        for row in kept:
            rules[row] = number["as-many-as-gradients"]


def _copies(there: Counter[int], gradients: Counter[int]) -> int | None:
    """How many blocks there are for each gradient, where most bytes agree; else None."""
    by_copies: Counter[int] = Counter()
    for size, count in gradients.items():
        # Buffers as large as small parameters (running means) make a few more.
        by_copies[there[size] // count] += size * count
    total = sum(by_copies.values())
    if not total:
        return None
    copies, nbytes = by_copies.most_common(1)[0]
    return copies if nbytes >= _AGREEING * total else None
