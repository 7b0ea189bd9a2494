# SPDX-License-Identifier: Apache-2.0
"""PyTorch's one history of allocations, shared by all who record.

PyTorch has one ring of events a device and one set of switches for the process. Whoever
records asks here; the first one switches it on, the last one off, and in between it records
whatever any of them needs. Where the program already had it on, nothing changes.
"""

from __future__ import annotations

import inspect
import os
import threading
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

from neutracer.errors import UnavailableError
from neutracer.process.recording.cache_calls import CACHE_CALLS
from neutracer.trace.snapshot import Snapshot

__all__ = ["HISTORY", "History", "Wish", "wrapped_ring"]

_CONTEXTS = (None, "state", "alloc", "all")


@dataclass(frozen=True)
class Wish:
    """How somebody wants the history; the words are those of PyTorch's own recorder.

    Attributes:
        max_entries: Events that each device's ring keeps.
        stacks: "python", or "all" with the frames of C++.
        context: What gets a stack: "all", "alloc", "state" or None.
        skip_actions: Actions that are left out.
        compile_context: Whether events say in which compiled frame they were.
        annotations: Whether named ranges of the program are kept.
    """

    max_entries: int
    stacks: str
    context: str | None
    skip_actions: tuple[str, ...] = ()
    compile_context: bool = False
    annotations: bool = False

    def joined(self, other: Wish) -> Wish:
        """What serves both, in the existing ring: its length can't change while it is on."""
        return Wish(
            self.max_entries,
            max(self.stacks, other.stacks, key=("python", "all").index),
            max(self.context, other.context, key=_CONTEXTS.index),
            tuple(action for action in self.skip_actions if action in other.skip_actions),
            self.compile_context or other.compile_context,
            self.annotations or other.annotations,
        )


class History:
    """The switches of one torch: who is on, and what was on before."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._wishes: list[Wish] = []
        self._in_force: Wish | None = None
        self._foreign = False

    def begin(self, torch: Any, wish: Wish) -> None:
        """Switch on what `wish` needs; CUDA is initialised or just being so.

        Raises:
            UnavailableError: This torch can't record that.
        """
        self.check(torch, wish)
        with self._lock:
            if not self._wishes:
                self._foreign = bool(torch._C._cuda_isHistoryEnabled())
                self._in_force = None
            before = self._in_force
            self._wishes.append(wish)
            CACHE_CALLS.begin(torch, wish)
            try:
                self._apply(torch)
            except BaseException:
                CACHE_CALLS.end(wish)
                self._wishes.pop()
                self._in_force = before
                raise

    def end(self, torch: Any, wish: Wish) -> bool:
        """Switch off what nobody else needs.

        Returns:
            False if somebody else has switched the history off in the meantime.
        """
        with self._lock:
            # In the child of a fork nothing is on, and CUDA is not to be touched.
            if not any(one is wish for one in self._wishes):
                return True
            CACHE_CALLS.end(wish)
            self._wishes = [one for one in self._wishes if one is not wish]
            if not torch._C._cuda_isHistoryEnabled():
                self._in_force = None
                return False
            self._apply(torch)
            return True

    def in_force(self) -> Wish | None:
        """How the history is kept; None where it is off, or the program's own."""
        with self._lock:
            return self._in_force

    def is_foreign(self) -> bool:
        """Whether the program had the history on before anybody here."""
        with self._lock:
            return bool(self._wishes) and self._foreign

    def facts(self) -> dict[str, Any]:
        """How the history is kept, for what is written beside a snapshot."""
        in_force = self.in_force()
        return {"joined": self.is_foreign(), **(vars(in_force) if in_force else {})}

    def check(self, torch: Any, wish: Wish) -> None:
        """See whether this torch can record that; CUDA is not touched.

        Raises:
            UnavailableError: It can't.
        """
        record = getattr(torch.cuda.memory, "_record_memory_history", None)
        known = set() if record is None else set(inspect.signature(record).parameters)
        missing = sorted(({"stacks"} | _options(wish).keys()) - known)
        if missing or not hasattr(torch._C, "_cuda_isHistoryEnabled"):
            raise UnavailableError(
                f"recording with {', '.join(missing) or 'a history'} in torch {torch.__version__}",
                "install a later torch, or leave that option out",
            )

    def _apply(self, torch: Any) -> None:
        if self._foreign:
            return
        record = torch.cuda.memory._record_memory_history
        if not self._wishes:
            record(enabled=None)
            self._in_force = None
            return
        # The ring keeps the length that it has; the rest is what those who are on need.
        length = (self._in_force or self._wishes[0]).max_entries
        merged = replace(reduce(Wish.joined, self._wishes), max_entries=length)
        if merged != self._in_force:
            record(
                enabled="all",
                context=merged.context,
                stacks=merged.stacks,
                max_entries=merged.max_entries,
                **_options(merged),
            )
            self._in_force = merged

    def forget(self) -> None:
        """Start anew in the child of a fork, where nothing is on."""
        self._lock = threading.RLock()
        self._wishes = []
        self._in_force = None
        self._foreign = False


def _options(wish: Wish) -> dict[str, Any]:
    """The arguments given that older releases of PyTorch lack."""
    options: dict[str, Any] = {}
    if wish.skip_actions:
        options["skip_actions"] = list(wish.skip_actions)
    if wish.compile_context:
        options["compile_context"] = True
    if wish.annotations:
        options["global_record_annotations"] = True
    return options


HISTORY = History()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=HISTORY.forget)


def wrapped_ring(snap: Snapshot) -> int | bool:
    """The length of PyTorch's ring if it wrapped, as far as that can be known, else False."""
    in_force = HISTORY.in_force()
    for device in snap.devices:
        length = snap.trace_length(device)
        if snap.history_overflowed(device):
            return length
        # A ring that is just full is reported too: the event that wraps it comes next.
        if in_force is not None and length >= in_force.max_entries:
            return in_force.max_entries
    return False
