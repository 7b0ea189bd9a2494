# SPDX-License-Identifier: Apache-2.0
"""A program whose memory runs out, and the change that an advice makes of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

MIB = 1 << 20

#: What a program counts as done, in its own unit.
STEPS = 60


@dataclass
class Job:
    """One run of a program, with the advice that it follows.

    Attributes:
        advice: The remedy of the first verdict, as its `to_dict()`; None: the program as it is.
        total: How many steps it would make.
        done: How many it made.
    """

    advice: dict[str, Any] | None = None
    total: int = STEPS
    done: int = 0

    def steps(self) -> Any:
        """Numbers of steps; each counts as done when the next is asked for."""
        for number in range(self.total):
            yield number
            self.done += 1

    def takes(self, action: str) -> bool:
        """Whether the advice is to do this."""
        return self.advice is not None and self.advice["action"] == action

    def lets_go(self, *functions: str) -> bool:
        """Whether the advice is to let go of what one of these functions keeps: the line that
        it names is in one of them, or called by it."""
        if self.advice is None or not self.takes("release"):
            return False
        named = [self.advice["place"], *self.advice["callers"]]
        return any(place["function"] in functions for place in named)

    def size(self, number: int) -> int:
        """A batch size or a length, made smaller where the advice says so."""
        if not self.takes("smaller_step"):
            return number
        return max(int(number * (self.advice["value"] or 0.5)), 1)


@dataclass(frozen=True)
class Program:
    """A program that runs out of memory, and what helps it.

    Attributes:
        name: Its name.
        run: What it does.
        cap: MiB that it may have, as a card of that size would give.
        helps: Actions that really help, in any order; empty: nothing can.
        sort: What it is an example of.
        is_limit: The cap is a limit that the program has set, on a device with room.
        held_out: Its results are not looked at while the rules are made.
        group: The file that it comes from, where that can be run alone.
    """

    name: str
    run: Callable[[Any, Job], None]
    cap: int
    helps: tuple[str, ...]
    sort: str
    is_limit: bool
    held_out: bool
    group: str


PROGRAMS: list[Program] = []


def program(
    *helps: str,
    cap: int = 1024,
    sort: str,
    is_limit: bool = False,
    held_out: bool = False,
    group: str = "",
) -> Callable[[Callable[[Any, Job], None]], Callable[[Any, Job], None]]:
    """Registers a function as a program."""

    def register(run: Callable[[Any, Job], None]) -> Callable[[Any, Job], None]:
        PROGRAMS.append(Program(run.__name__, run, cap, helps, sort, is_limit, held_out, group))
        return run

    return register


def tensor(torch: Any, mib: float) -> Any:
    """So many MiB of the device."""
    return torch.empty(int(mib * MIB), dtype=torch.uint8, device="cuda")


def mlp(torch: Any, width: int = 1024, depth: int = 4) -> Any:
    """A model of `depth` layers; with the default width 4 MiB each."""
    nn = torch.nn
    layers: list[Any] = []
    for _ in range(depth):
        layers += [nn.Linear(width, width, device="cuda"), nn.ReLU()]
    return nn.Sequential(*layers)


@dataclass
class Kept:
    """A list of a program that grows."""

    items: list[Any] = field(default_factory=list)
