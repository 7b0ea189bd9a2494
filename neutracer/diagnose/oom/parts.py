# SPDX-License-Identifier: Apache-2.0
"""What the explanation of an out-of-memory error is made of."""

from __future__ import annotations

from dataclasses import dataclass

from neutracer.render.document import Note, Place, Severity
from neutracer.render.report import Finding
from neutracer.render.row import PlacedRow, PlainRow

__all__ = ["ACTIONS", "KINDS", "Holding", "Remedy", "Verdict"]

#: The kinds of verdicts, in the order in which the main one is chosen.
KINDS = (
    "unreasonable_request",
    "fragmentation",
    "cycle_garbage",
    "other_pool",
    "non_torch",
    "leak",
    "cache_growth",
    "process_cap",
    "capacity",
)


#: What a remedy may be: change allocator settings; let go of what a line keeps; break reference
#: cycles; make the step smaller, checkpoint its activations, run it without autograd; keep less
#: optimizer state; split the model over devices; raise the limit of the process; free what
#: others have of the device; let pools or streams share; correct a shape; free earlier what
#: other streams use.
ACTIONS = (
    "settings",
    "release",
    "break_cycles",
    "smaller_step",
    "checkpoint",
    "no_grad",
    "shard_state",
    "shard",
    "raise_limit",
    "end_others",
    "share_pools",
    "one_stream",
    "shape",
    "wait",
)


@dataclass(frozen=True)
class Remedy(PlainRow):
    """The first advice of a verdict, for a program to act on.

    Attributes:
        action: One of `ACTIONS`.
        value: Of "smaller_step" the share of the step's size that fits, of "raise_limit" the
            share of the device that is needed; None for others.
        setting: The allocator's settings, as PYTORCH_CUDA_ALLOC_CONF takes them; "" for others.
        place: The line to change; None where it is not one line.
        callers: The lines that called it, innermost first: where that one is a helper.
    """

    action: str
    value: float | None = None
    setting: str = ""
    place: Place | None = None
    callers: tuple[Place, ...] = ()


@dataclass(frozen=True)
class Verdict(PlainRow):
    """One cause of an out-of-memory error.

    Attributes:
        kind: One of `KINDS`.
        bytes: What its removal would have given; of a lack of capacity what was missing.
        evidence: What proves it, and who.
        advice: The next step.
        message: The verdict in one line.
        suffices: Whether its removal alone would have let the request succeed.
        remedy: The first advice as plain data; None where there is none.
        headroom_bytes: What its removal leaves free once the step that failed has ended;
            negative: so much is still missing for that. None where it can't be known.
        headroom_steps: How many steps more the program makes with it removed, at the growth
            seen; None where it can't be known, or where nothing would grow.
        finishes: Whether the program goes on as far as can be seen once it is removed; None
            where the trace does not show what a step needs.
    """

    kind: str
    bytes: int
    evidence: tuple[Note, ...]
    advice: tuple[Note, ...]
    message: str = ""
    suffices: bool = False
    remedy: Remedy | None = None
    headroom_bytes: int | None = None
    headroom_steps: int | None = None
    finishes: bool | None = None

    def finding(self, is_main: bool, event: int | None) -> Finding:
        """The verdict as a finding of a report."""
        severity = Severity.SERIOUS if self.suffices else Severity.MODERATE
        if is_main:
            severity = Severity.SEVERE
        return Finding(
            self.kind, severity, self.bytes, self.message, self.evidence, self.advice, event
        )


@dataclass(frozen=True)
class Holding(PlacedRow):
    """What one place in the program held.

    Attributes:
        function: The function's name.
        filename: The file's name without its folders.
        line: The line.
        bytes: Of its live blocks.
        count: How many blocks that is.
        share: Of all allocated bytes then.
        package: The library that the file belongs to; empty for the program's own.
        caller: The program's own line that led there, where the file is a library's.
    """

    function: str
    filename: str
    line: int
    bytes: int
    count: int
    share: float
    package: str = ""
    caller: str = ""
