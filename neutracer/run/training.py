# SPDX-License-Identifier: Apache-2.0
"""`training()`: OOM watch, phases, trend and trackers of a training run in one context."""

from __future__ import annotations

import logging
import os
import re
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Protocol

from neutracer.arguments import path_name, several, text
from neutracer.errors import NeutracerError, UnavailableError
from neutracer.leak.trend import leak_trend
from neutracer.monitor import phases as counters
from neutracer.monitor.phases import RUNNING, Counters, Phase, shapes_of
from neutracer.oom.page import OomReport
from neutracer.oom.watch import DEFAULT_DIRECTORY, OomWatch, watch_oom
from neutracer.pickling import StaysHere
from neutracer.units import format_bytes

# ---- Scalars -----------------------------------------------------------------------------

# The names under which figures of a training run go to a tracker: one naming for all.

_PREFIX = "neutracer"


def _word(name: str) -> str:
    """A phase's name with what every tracker takes in a name."""
    return re.sub(r"[^\w.-]+", "_", name) or "_"


def step_scalars(phases: Iterable[Phase], now: Counters | None) -> dict[str, int]:
    """The figures of one step, in bytes and counts.

    Args:
        phases: Those that have ended in it; of several of one name, the highest peak and the
            last end count.
        now: The counters at its end; None where CUDA is not in use: then there are no figures.

    Returns:
        "neutracer/allocated_bytes", "neutracer/reserved_bytes", "neutracer/peak_bytes" (of the
        step), "neutracer/alloc_retries" and "neutracer/ooms" (since the start), and of each
        phase "neutracer/<phase>/peak_bytes" and "neutracer/<phase>/end_bytes".
    """
    if now is None:
        return {}
    scalars = {
        f"{_PREFIX}/allocated_bytes": now.allocated,
        f"{_PREFIX}/reserved_bytes": now.reserved,
        f"{_PREFIX}/peak_bytes": now.allocated_peak,
        f"{_PREFIX}/alloc_retries": now.retries,
        f"{_PREFIX}/ooms": now.ooms,
    }
    for one in phases:
        if one.device is None:
            continue
        peak = f"{_PREFIX}/{_word(one.name)}/peak_bytes"
        scalars[peak] = max(scalars.get(peak, 0), one.peak_bytes)
        scalars[f"{_PREFIX}/{_word(one.name)}/end_bytes"] = one.end_bytes
        whole = f"{_PREFIX}/peak_bytes"
        scalars[whole] = max(scalars[whole], one.peak_bytes)
    return scalars


# ---- Tracker -----------------------------------------------------------------------------

# What a training run wants of a tracker.


class Tracker(Protocol):
    """Where figures go: Weights & Biases, MLflow, TensorBoard, or the program's own."""

    def scalars(self, values: Mapping[str, int], step: int) -> object:
        """The figures of a step, by their names."""

    def out_of_memory(self, report: OomReport) -> object:
        """A report was written."""

    def finish(self) -> object:
        """The run has ended."""


# ---- Training ----------------------------------------------------------------------------

# Watches a training run, whoever runs it: trainers tell it where they are.

_LOGGER = logging.getLogger("neutracer")

# Steps of an epoch whose ends are looked at, and the least of which anything is said.
_MOST_STEPS = 2_000
_LEAST_STEPS = 20

# What a phase may leave behind before it is named: caches of libraries are smaller.
_MAY_LEAVE = 1 << 20

#: Phases that should give back what they took; the first of each may fill a cache.
_GIVE_BACK = ("evaluation", "generation", "checkpoint")

_ADVICE = {
    "evaluation": "keep .item() or .cpu() of what it collects, and run it under torch.no_grad()",
    "generation": "let go of its outputs and of past_key_values before the next step",
    "checkpoint": "save a state_dict that is on the CPU, and let go of it",
}


def training(
    directory: str | os.PathLike[str] = DEFAULT_DIRECTORY,
    *,
    trackers: Sequence[Tracker] = (),
    every: int = 1,
    max_entries: int | None = None,
    name: str = "training",
    configuration: Mapping[str, Any] | None = None,
) -> Training:
    """Watch a training run: its phases, its growth, and why it runs out of memory.

    An out-of-memory error is written down as by `watch_oom`, with the step, the phase, the
    batch's shapes and the configuration, whoever catches it. The peak and the end of each
    phase go to the trackers. What grows from step to step, and an evaluation that leaves
    memory behind, is warned of once, to the logger "neutracer". Nothing here ends training:
    what fails in it is logged.

    Args:
        directory: Where reports go.
        trackers: Who gets the figures: those of `neutracer.integrations`, or any object with
            the methods of theirs.
        every: Steps between two sets of figures.
        max_entries: Events of history, as for `watch_oom`; 0 records none.
        name: What the run calls itself in a report.
        configuration: What it was set up with; a report has it.

    Returns:
        The run, for a with statement.

    Raises:
        TypeError: An argument is of a wrong kind.
        ValueError: `every` is below 1.

    Example:
        >>> import neutracer
        >>> with neutracer.training(configuration={"batch": 8}) as run:   # doctest: +SKIP
        ...     for batch in loader:
        ...         with run.step(batch):
        ...             with run.phase("forward"):
        ...                 loss = model(batch)
        ...             with run.phase("backward"):
        ...                 loss.backward()
        ...             with run.phase("optimizer"):
        ...                 optimizer.step()
        ...     run.end_epoch()
    """
    folder = path_name(directory, "directory")
    if isinstance(every, bool) or not isinstance(every, int):
        raise TypeError(f"every must be a number of steps, not {type(every).__name__}")
    if every < 1:
        raise ValueError(f"every is {every}: it must be 1 or more")
    found = several("trackers", trackers, "trackers")
    for one in found:
        for method in ("scalars", "out_of_memory", "finish"):
            if not callable(getattr(one, method, None)):
                kind = type(one).__name__
                raise TypeError(f"trackers must have a method {method}(): {kind} has none")
    if configuration is not None and not isinstance(configuration, Mapping):
        raise TypeError(f"configuration must be a dict, not {type(configuration).__name__}")
    run = Training(folder, found, every, max_entries, text("name", name))
    run.configuration = dict(configuration or {})
    return run


class Training(StaysHere, instead="it watches this process: send its .scalars"):
    """What `training` returns; trainers' callbacks drive it.

    Attributes:
        scalars: The figures of the last step, by the names that trackers get.
        warned: What was warned of, in words.
        configuration: What the run was set up with.
        watch: The watch for out-of-memory errors; None where there can be none.
    """

    def __init__(
        self,
        directory: str,
        trackers: Sequence[Tracker],
        every: int,
        max_entries: int | None,
        name: str,
    ) -> None:
        """Made by `training`; not by users."""
        self._directory = directory
        self._trackers = trackers
        self._every = every
        self._max_entries = max_entries
        self._name = name
        self._on = False
        self._count = 0
        self._open: list[Phase] = []
        self._ended: list[Phase] = []
        self._ends: deque[int] = deque(maxlen=_MOST_STEPS)
        self._finished: dict[str, int] = {}
        self._told: set[str] = set()
        self.scalars: dict[str, int] = {}
        self.warned: list[str] = []
        self.configuration: dict[str, Any] = {}
        self.watch: OomWatch | None = None

    # ---- the run -----------------------------------------------------------------------

    def start(self) -> Training:
        """Begin; a second time does nothing."""
        if not self._on:
            self._on = True
            RUNNING.trainer = self._name
            RUNNING.configuration = self.configuration
            counters.prefer_hooks()
            try:
                self.watch = watch_oom(
                    self._directory, max_entries=self._max_entries, callback=self._tell_oom
                )
            except UnavailableError as error:
                _LOGGER.info("out-of-memory errors are not watched: %s", error)
        return self

    def stop(self) -> None:
        """End; a second time does nothing."""
        if not self._on:
            return
        self._on = False
        self._leave_all()
        if self._ended:
            # An evaluation or a checkpoint after the last step.
            self._send(step_scalars(self._ended, counters.read()), RUNNING.step or self._count)
            self._ended = []
        # While the history is on: what the trackers show of the end has its events.
        for tracker in self._trackers:
            self._safely(tracker.finish)
        if self.watch is not None:
            self.watch.remove()
        RUNNING.forget()

    def __enter__(self) -> Training:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    # ---- steps and phases --------------------------------------------------------------

    def step(self, batch: object = None, number: int | None = None) -> _Step:
        """One step, for a with statement.

        Args:
            batch: Its batch: a report has the shapes of its tensors. It is not kept.
            number: The program's own number of it; None counts from 0.
        """
        return _Step(self, batch, number)

    def phase(self, name: str) -> _Within:
        """A phase of the run, for a with statement: "forward", "evaluation"."""
        return _Within(self, text("name", name))

    def begin_step(self, number: int | None = None, batch: object = None) -> None:
        """A step begins: what is still open of the one before ends."""
        self._leave_all()
        RUNNING.step = self._count if number is None else number
        if batch is not None:
            self.tell_batch(batch)

    def tell_batch(self, batch: object) -> None:
        """The batch that comes next: a report has the shapes of its tensors."""
        RUNNING.batch = shapes_of(batch)

    def end_step(self) -> None:
        """A step has ended: its figures go to the trackers."""
        self._leave_all()
        self._count += 1
        step = self._count - 1 if RUNNING.step is None else RUNNING.step
        now = counters.read()
        ended, self._ended = self._ended, []
        if now is None:
            if self._count == 1:
                _LOGGER.warning("no step is measured: this program has not used CUDA so far")
            return
        self._ends.append(now.allocated)
        if self._count % self._every == 0:
            self._send(step_scalars(ended, now), step)

    def _send(self, scalars: dict[str, int], step: int) -> None:
        self.scalars = scalars
        for tracker in self._trackers:
            self._safely(tracker.scalars, scalars, step)

    def enter(self, name: str) -> None:
        """A phase begins inside those that are open."""
        self._open.append(Phase(name).__enter__())

    def leave(self, name: str | None = None) -> None:
        """A phase ends, and those inside it; None is the innermost. Unknown names do nothing."""
        names = [one.name for one in self._open]
        if not names or (name is not None and name not in names):
            return
        while self._open:
            one = self._open.pop()
            one.__exit__(None, None, None)
            self._ended.append(one)
            self._look_at(one)
            if name is None or one.name == name:
                return

    def switch(self, name: str) -> None:
        """The innermost phase ends and another begins: "forward" and then "backward"."""
        self.leave()
        self.enter(name)

    def _leave_all(self) -> None:
        while self._open:
            self.leave()

    # ---- what is said ------------------------------------------------------------------

    def _look_at(self, ended: Phase) -> None:
        """Name a phase that leaves memory behind, from its second time on."""
        if ended.name not in _GIVE_BACK or ended.device is None:
            return
        count = self._finished[ended.name] = self._finished.get(ended.name, 0) + 1
        if count > 1 and ended.left_bytes > _MAY_LEAVE:
            self._warn(
                ended.name,
                f"{ended.name} left {format_bytes(ended.left_bytes)} of cuda:{ended.device} "
                f"behind at step {RUNNING.step}: {_ADVICE[ended.name]}",
            )

    def end_epoch(self) -> str:
        """Say whether memory grew from step to step; returns the verdict of `leak_trend`."""
        ends = list(self._ends)
        self._ends.clear()
        if len(ends) < _LEAST_STEPS:
            return "unknown"
        try:
            trend = leak_trend(ends)
        except (NeutracerError, ValueError) as error:
            _LOGGER.debug("the steps of an epoch could not be judged: %s", error)
            return "unknown"
        if trend.verdict not in ("steady", "unknown"):
            what = trend.findings[0].message if trend.findings else trend.because
            self._warn(
                "growth",
                f"memory grows from step to step: {what}; neutracer.record() and "
                "neutracer.leak_trend() of its snapshot name the line",
            )
        return trend.verdict

    def _warn(self, key: str, words: str) -> None:
        if key not in self._told:
            self._told.add(key)
            self.warned.append(words)
            _LOGGER.warning("%s", words)

    def _tell_oom(self, report: OomReport) -> None:
        for tracker in self._trackers:
            self._safely(tracker.out_of_memory, report)

    def _safely(self, action: Callable[..., object], *arguments: object) -> None:
        """A tracker that fails is told of once, and training goes on."""
        try:
            action(*arguments)
        except Exception as error:
            self._warn(f"tracker {type(error)}", f"a tracker failed: {error}")
            _LOGGER.debug("a tracker failed", exc_info=True)

    def __repr__(self) -> str:
        return f"<Training {self._name}: {'on' if self._on else 'off'}, step {self._count}>"


class _Step:
    """One step, with its beginning and end."""

    def __init__(self, run: Training, batch: object, number: int | None) -> None:
        self._run = run
        self._batch = batch
        self._number = number

    def __enter__(self) -> Training:
        self._run.begin_step(self._number, self._batch)
        self._batch = None
        return self._run

    def __exit__(self, *exception: object) -> None:
        self._run.end_step()


class _Within:
    """A phase of a run, with its beginning and end."""

    def __init__(self, run: Training, name: str) -> None:
        self._run = run
        self._name = name

    def __enter__(self) -> Training:
        self._run.enter(self._name)
        return self._run

    def __exit__(self, *exception: object) -> None:
        self._run.leave(self._name)
