# SPDX-License-Identifier: Apache-2.0
"""The bytes of each module, as reports show them."""

from __future__ import annotations

from collections.abc import Mapping

from neutracer.render.document import Figure, Table
from neutracer.units import format_count

__all__ = ["module_tables"]

# Modules on the page; all of them are in the JSON.
_SHOWN = 6


def module_tables(title: str, held: Mapping[str, int]) -> tuple[Table, ...]:
    """A table of the modules that hold the most; none where no module is known.

    Args:
        title: What the table shows.
        held: Allocated bytes by module, the most first.

    Example:
        >>> [table] = module_tables("By module", {"layers.0": 3 << 20, "(no module)": 1 << 20})
        >>> [row[-1] for row in table.rows]
        ['layers.0', '(no module)']
    """
    total = sum(held.values())
    if not total:
        return ()
    rows = tuple(
        (Figure.share(nbytes / total), Figure.bytes(nbytes), name)
        for name, nbytes in list(held.items())[:_SHOWN]
    )
    left = len(held) - len(rows)
    notes = (f"and {format_count(left, 'more module')}",) if left else ()
    return (Table(title, rows, notes=notes),)
