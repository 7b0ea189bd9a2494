# SPDX-License-Identifier: Apache-2.0
"""Where the program is, in its own words: a report of an out-of-memory error has them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["RUNNING", "Running", "shapes_of"]

# Tensors of a batch that are named.
_MOST_TENSORS = 16


class Running:
    """What the program says of itself; plain data that whoever trains keeps up.

    Attributes:
        trainer: Who trains: "transformers.Trainer"; "" where nobody said.
        step: The trainer's own step.
        batch: The shapes of the batch, as `shapes_of` gives them.
        configuration: What the trainer was set up with.
        phases: The names of the phases that are open, the outermost first.
    """

    def __init__(self) -> None:
        self.trainer = ""
        self.step: int | None = None
        self.batch: dict[str, str] = {}
        self.configuration: dict[str, Any] = {}
        self.phases: list[str] = []

    def facts(self) -> dict[str, Any]:
        """All that is known, for a report; empty where nothing is."""
        facts = {
            "trainer": self.trainer,
            "step": self.step,
            "phases": list(self.phases),
            "batch": dict(self.batch),
            "configuration": dict(self.configuration),
        }
        return {name: value for name, value in facts.items() if value not in ("", None, [], {})}

    def forget(self) -> None:
        """Nobody trains any more; phases that are open stay so."""
        self.trainer, self.step, self.batch, self.configuration = "", None, {}, {}


#: Of this process.
RUNNING = Running()


def shapes_of(batch: object, name: str = "") -> dict[str, str]:
    """The tensors of a batch in words; nothing of the batch is kept.

    Args:
        batch: A tensor, or a dict, list or tuple with some in it.
        name: What it is called.

    Example:
        >>> shapes_of({"labels": 3})
        {}
    """
    found: dict[str, str] = {}
    _collect(batch, name, found, depth=0)
    return found


def _collect(value: object, name: str, found: dict[str, str], depth: int) -> None:
    if len(found) >= _MOST_TENSORS or depth > 3:
        return
    if isinstance(value, Mapping):
        for key, one in list(value.items())[:_MOST_TENSORS]:
            _collect(one, f"{name}.{key}" if name else str(key), found, depth + 1)
    elif isinstance(value, (list, tuple)):
        for key, one in enumerate(value[:_MOST_TENSORS]):
            _collect(one, f"{name}[{key}]", found, depth + 1)
    elif hasattr(value, "shape") and hasattr(value, "dtype"):
        dtype = str(value.dtype).removeprefix("torch.")
        found[name or "batch"] = f"{dtype} {list(value.shape)}"
