# SPDX-License-Identifier: Apache-2.0
"""A trace cut into the steps of its program, to compare one with the next."""

from __future__ import annotations

import re
from array import array
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress, count, pairwise
from typing import overload

from neutracer._native import core
from neutracer.render.report import PlainRow
from neutracer.trace.roles import role_of
from neutracer.trace.stacks import Stacks

_NUMBER = re.compile(r"\d+")

#: By the core's numbers of how steps were found: the word for it, and a sentence.
STEP_WORDS = (
    ("none", "Nothing in the trace repeats, and nothing in it names steps."),
    ("user_metadata", "A step begins where user_metadata says {text!r}."),
    ("annotations", "A step begins where the program's range {text!r} does."),
    ("optimizer", "A step ends with the optimizer's step()."),
    ("backward", "A step ends with its backward pass."),
    ("repetition", "A step begins where the program goes back to {line}."),
    ("repetition", "A step begins where the same allocations and frees begin again."),
)


@dataclass(frozen=True)
class Step(PlainRow):
    """One step: the events from `first` up to, but not with, `end`."""

    first: int
    end: int


@dataclass(frozen=True)
class Steps(PlainRow, Sequence[Step]):
    """The steps of a trace, in order.

    Attributes:
        steps: The steps. What comes before the first (the model's making) and after the last
            belongs to none.
        how: How they were found: "user_metadata", "annotations", "optimizer", "backward",
            "repetition", or "none".
        explanation: The same as a sentence.

    Example:
        >>> import neutracer
        >>> found = neutracer.load("tests/data/metadata.pickle.xz").timeline().steps
        >>> len(found), found.how
        (3, 'user_metadata')
    """

    steps: tuple[Step, ...]
    how: str
    explanation: str

    def __len__(self) -> int:
        return len(self.steps)

    @overload
    def __getitem__(self, index: int) -> Step: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Step, ...]: ...
    def __getitem__(self, index: int | slice) -> Step | tuple[Step, ...]:
        return self.steps[index]

    def of(self, event: int) -> int | None:
        """The number of the step that an event belongs to, or None."""
        at = bisect_left(self.steps, event + 1, key=lambda step: step.first) - 1
        return at if at >= 0 and event < self.steps[at].end else None


def steps_of(timeline: core.Timeline, stacks: Stacks) -> Steps:
    """The steps of one device's trace, by the best available evidence."""
    marks = core.step_stacks(timeline)
    roles = bytearray(len(marks))
    for stack in compress(count(), marks):
        roles[stack] = role_of(stacks[stack])
    code, raw, text, frame = core.find_steps(timeline, roles)
    edges = array("I", raw)
    how, sentence = STEP_WORDS[code]
    said = sentence.format(
        text=_NUMBER.sub("#", text or ""),
        line="" if frame is None else _line(stacks, frame),
    )
    return Steps(tuple(Step(first, end) for first, end in pairwise(edges)), how, said)


def _line(stacks: Stacks, number: int) -> str:
    """The line of a frame id: "train.py:73"."""
    frame = stacks.frame(number)
    return f"{frame.filename.rpartition('/')[2]}:{frame.line}"
