# SPDX-License-Identifier: Apache-2.0
"""An ordinary script, rehearsed as it is: stopped after some steps, its files unwritten."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch.optim.optimizer import register_optimizer_step_post_hook

from neutracer.process.recording.program import run_program
from neutracer.rehearsal.failures import line_of, sentence
from neutracer.rehearsal.running import Run
from neutracer.rehearsal.session import pretending, replaced
from neutracer.rehearsal.unwritten import unwritten
from neutracer.units import format_count

__all__ = ["rehearse_script"]

_NOTHING = "the program ended before its optimizer made a step, and without using the device"
_NO_STEP = (
    "No optimizer made a step: this is all of the program, from its beginning to its end. "
    "`neutracer.rehearse(step)` makes steps of a function."
)


class _EnoughError(BaseException):
    """The program has made its steps."""


class _Steps:
    """Counts the steps of each optimizer; the program's are those of the busiest one."""

    def __init__(self, run: Run, wanted: int) -> None:
        self.run, self.wanted = run, wanted
        self._made: dict[int, int] = {}

    def __call__(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        made = self._made[id(optimizer)] = self._made.get(id(optimizer), 0) + 1
        if made <= self.run.steps_done:
            return
        self.run.steps_done = made
        self.run.requests.annotate("END", f"step {made - 1}")
        if made >= self.wanted:
            raise _EnoughError
        self.run.requests.annotate("START", f"step {made}")


@contextmanager
def _caught(found: list[BaseException]) -> Iterator[None]:
    """Exceptions that end the program, in place of a traceback on standard error."""
    before = sys.excepthook
    sys.excepthook = lambda kind, error, traceback: found.append(error)
    try:
        yield
    finally:
        sys.excepthook = before


def rehearse_script(run: Run, arguments: Sequence[str], *, module: bool = False) -> None:
    """Run a script or module on the card of a rehearsal, until it has made its steps.

    Args:
        run: Gets what it asks for, and why it did not make all steps.
        arguments: The script, or the module's name, and what follows it.
        module: Whether the first is a module's name.

    Raises:
        NeutracerError: There is no such script or module.
    """
    found: list[BaseException] = []
    exits: list[BaseException] = []
    room = {"devices": max(run.world_size, 1), "capacity": run.capacity}
    with pretending(run.card, run.requests, **room) as tracing:
        hook = register_optimizer_step_post_hook(_Steps(run, run.steps))
        run.requests.annotate("START", "step 0")
        try:
            with unwritten(tracing.notes) as patches, replaced(patches), _caught(found):
                code = run_program(arguments, module=module, exits=exits)
        finally:
            hook.remove()
    run.keep(tracing)
    failed = [error for error in found if not isinstance(error, _EnoughError)]
    if failed:
        run.failure = sentence(failed[0])
    elif not found:
        _ended(run, arguments[0], code, exits)


def _ended(run: Run, name: str, code: int, exits: list[BaseException]) -> None:
    """Say of a program that came to its own end why it has not made all steps."""
    at = line_of(exits[0]) if exits else ""
    if not len(run.requests):
        run.failure = f"{at or name}: {_NOTHING} (exit code {code})"
    elif code:
        made = format_count(run.steps_done, "step")
        run.failure = f"{at or name}: the program ended itself after {made}, with exit code {code}"
    elif not run.steps_done:
        run.notes = (_NO_STEP, *run.notes)
