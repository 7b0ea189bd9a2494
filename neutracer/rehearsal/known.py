# SPDX-License-Identifier: Apache-2.0
"""What kernels were measured to take: files of facts, one a card."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

from neutracer.rehearsal.cards import Card

__all__ = ["SCHEMA", "Facts", "convolution_key", "facts_for"]

SCHEMA = "neutracer.kernels/1"

_ENVIRONMENT = "NEUTRACER_KERNELS"


@dataclass(frozen=True)
class Facts:
    """What was measured on one card.

    Attributes:
        card: The card's name.
        capability: Its compute capability.
        torch: PyTorch's version.
        cudnn: cuDNN's version.
        convolutions: By `convolution_key` the bytes of the workspaces, in their order.
    """

    card: str = ""
    capability: tuple[int, int] = (0, 0)
    torch: str = ""
    cudnn: int = 0
    convolutions: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    @classmethod
    def read(cls, text: str) -> Facts:
        """From a file's text.

        Raises:
            ValueError: It is no file of facts.
        """
        try:
            plain = json.loads(text)
            if plain["schema"] != SCHEMA:
                raise ValueError(f"its schema is {plain['schema']!r}, not {SCHEMA!r}")
            major, minor = plain["capability"]
            found = {
                str(key): tuple(int(n) for n in sizes)
                for key, sizes in plain["convolutions"].items()
            }
            return cls(
                str(plain["card"]),
                (int(major), int(minor)),
                str(plain["torch"]),
                int(plain["cudnn"]),
                found,
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"it lacks what a file of facts has: {error}") from None

    def to_text(self) -> str:
        """As a file."""
        plain: dict[str, Any] = {"schema": SCHEMA, "card": self.card}
        plain |= {"capability": list(self.capability), "torch": self.torch, "cudnn": self.cudnn}
        rows = ",\n".join(
            f"  {json.dumps(key)}: {json.dumps(list(sizes))}"
            for key, sizes in sorted(self.convolutions.items())
        )
        head = json.dumps(plain)[:-1]
        return f'{head}, "convolutions": {{\n{rows}\n}}}}\n'


def convolution_key(
    kind: str,
    dtype: str,
    is_last: bool,
    shapes: Iterable[Iterable[int]],
    numbers: Iterable[object],
) -> str:
    """The name of a convolution in a file of facts.

    Args:
        kind: "forward", or "backward" with the gradients that are wanted: "backward 110".
        dtype: The tensors' type: "float32".
        is_last: Whether the input's channels are last in memory.
        shapes: Of input and weight.
        numbers: Stride, padding, dilation, groups, and whether it is transposed.

    Example:
        >>> convolution_key("forward", "float16", True, [(8, 3, 4, 4), (2, 3, 1, 1)], [1, 0, 1, 1])
        'forward float16 last 8x3x4x4 2x3x1x1 1 0 1 1'
    """
    order = "last" if is_last else "first"
    sides = ["x".join(map(str, shape)) for shape in shapes]
    return " ".join([kind, dtype, order, *sides, *(str(number) for number in numbers)])


def facts_for(card: Card) -> Facts:
    """The facts of a card: of the file that NEUTRACER_KERNELS names, if it is of such a card, else
    of those that come with neutracer.

    Raises:
        ValueError: The file that is named can't be read.
    """
    named = os.environ.get(_ENVIRONMENT)
    if named:
        try:
            found = Facts.read(Path(named).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ValueError(f"{_ENVIRONMENT}={named}: {error}") from None
        if found.capability == card.capability:
            return found
    for entry in sorted(resources.files("neutracer.rehearsal.facts").iterdir(), key=str):
        if entry.name.endswith(".json"):
            found = Facts.read(entry.read_text(encoding="utf-8"))
            if found.capability == card.capability:
                return found
    return Facts()
