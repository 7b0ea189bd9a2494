# SPDX-License-Identifier: Apache-2.0
"""`training()`: OOM watch, phases, trend and trackers of a training run in one context."""

from __future__ import annotations

import logging
import os
import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
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

_PREFIX = "neutracer"


def _key(name: str) -> str:
    """A phase's name in characters that every tracker accepts."""
    return re.sub(r"[^\w.-]+", "_", name) or "_"


def step_scalars(phases: Iterable[Phase], now: Counters | None, peak: int = 0) -> dict[str, int]:
    """The figures of one step, in bytes and counts.

    Args:
        phases: The phases that ended in it; for a repeated name, the highest peak and the last
            end are used.
        now: The counters at its end; None (CUDA not in use) gives no figures.
        peak: Its own peak; that of its phases is used if it is higher.

    Returns:
        "neutracer/allocated_bytes", "neutracer/reserved_bytes", "neutracer/peak_bytes" (of the
        step), "neutracer/alloc_retries" and "neutracer/ooms" (since the start), and for each
        phase "neutracer/<phase>/peak_bytes" and "neutracer/<phase>/end_bytes".
    """
    if now is None:
        return {}
    scalars = {
        f"{_PREFIX}/allocated_bytes": now.allocated,
        f"{_PREFIX}/reserved_bytes": now.reserved,
        f"{_PREFIX}/peak_bytes": max(peak, now.allocated),
        f"{_PREFIX}/alloc_retries": now.retries,
        f"{_PREFIX}/ooms": now.ooms,
    }
    for one in phases:
        if one.device is None:
            continue
        highest = f"{_PREFIX}/{_key(one.name)}/peak_bytes"
        scalars[highest] = max(scalars.get(highest, 0), one.peak_bytes)
        scalars[f"{_PREFIX}/{_key(one.name)}/end_bytes"] = one.end_bytes
        whole = f"{_PREFIX}/peak_bytes"
        scalars[whole] = max(scalars[whole], one.peak_bytes)
    return scalars


# ---- Tracker -----------------------------------------------------------------------------


class Tracker(Protocol):
    """A destination for figures: Weights & Biases, MLflow, TensorBoard, or the program's own."""

    def scalars(self, values: Mapping[str, int], step: int) -> object:
        """Receive the figures of a step, by name."""

    def out_of_memory(self, report: OomReport) -> object:
        """Receive an out-of-memory report."""

    def finish(self) -> object:
        """Finish at the end of the run."""


# ---- Training ----------------------------------------------------------------------------

_LOGGER = logging.getLogger("neutracer")

_MOST_STEPS = 2_000  # Steps of an epoch kept for its trend, and the fewest that give one.
_LEAST_STEPS = 20
_MAY_LEAVE = 1 << 20  # Bytes that a phase may leave without a warning: libraries' caches.

# The phases that should free all their memory, from their second run on, with the advice.
_ADVICE = {
    "evaluation": "collect .item() or .cpu() values, and run it under torch.no_grad()",
    "generation": "release its outputs and past_key_values before the next step",
    "checkpoint": "save a state_dict that is on the CPU, and release it",
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
    """Watch a training run: its phases, its growth, and its out-of-memory errors.

    Out-of-memory errors are reported as by `watch_oom`, with the step, the phase, the batch's
    shapes and the configuration, even if they are caught. The trackers get the peak and the
    end of each phase. Growth from step to step, and phases that leave memory behind, are each
    warned about once through the logger "neutracer". Errors in here are logged and never end
    training.

    Args:
        directory: Where reports go.
        trackers: The receivers of the figures: those of `neutracer.integrations`, or any
            object with the same methods.
        every: Steps between two sets of figures.
        max_entries: Events of history, as for `watch_oom`; 0 records none.
        name: The run's name in reports.
        configuration: The run's configuration, for reports.

    Returns:
        The run, as a context manager.

    Raises:
        TypeError: An argument has the wrong type.
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
    """The handle returned by `training`, driven by trainers' callbacks.

    Attributes:
        scalars: The figures of the last step, by the trackers' names.
        warned: The warnings so far.
        configuration: The run's configuration.
        watch: The watch for out-of-memory errors; None if unavailable.
    """

    def __init__(
        self,
        directory: str,
        trackers: Sequence[Tracker],
        every: int,
        max_entries: int | None,
        name: str,
    ) -> None:
        self._directory = directory
        self._trackers = trackers
        self._every = every
        self._max_entries = max_entries
        self._name = name
        self._on = False
        self._count = 0
        self._open: list[Phase] = []
        self._step: Phase | None = None
        self._ended: list[Phase] = []
        self._ends: deque[int] = deque(maxlen=_MOST_STEPS)
        self._finished: dict[str, int] = {}
        self._warned_keys: set[str] = set()
        self.scalars: dict[str, int] = {}
        self.warned: list[str] = []
        self.configuration: dict[str, Any] = {}
        self.watch: OomWatch | None = None

    # ---- the run -----------------------------------------------------------------------

    def start(self) -> Training:
        """Start, once."""
        if not self._on:
            self._on = True
            RUNNING.trainer = self._name
            RUNNING.configuration = self.configuration
            counters.prefer_hooks()
            try:
                self.watch = watch_oom(
                    self._directory,
                    max_entries=self._max_entries,
                    callback=lambda report: self._tell("out_of_memory", report),
                )
            except UnavailableError as error:
                _LOGGER.info("out-of-memory errors are not watched: %s", error)
        return self

    def stop(self) -> None:
        """End, once."""
        if not self._on:
            return
        self._on = False
        self._leave_all()
        self._leave_step()
        if self._ended:
            # An evaluation or a checkpoint after the last step.
            self._send(step_scalars(self._ended, counters.now()), RUNNING.step or self._count)
            self._ended = []
        # Before the watch ends its history, which the trackers may still read.
        self._tell("finish")
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

    @contextmanager
    def step(self, batch: object = None, number: int | None = None) -> Iterator[Training]:
        """One step, as a context manager.

        Args:
            batch: Its batch, whose tensors' shapes go into reports; not kept.
            number: The program's step number; None counts from 0.
        """
        self.begin_step(number, batch)
        del batch
        try:
            yield self
        finally:
            self.end_step()

    def phase(self, name: str) -> AbstractContextManager[Training]:
        """A phase of the run, as a context manager: "forward", "evaluation"."""
        return self._phase(text("name", name))

    @contextmanager
    def _phase(self, name: str) -> Iterator[Training]:
        self.enter(name)
        try:
            yield self
        finally:
            self.leave(name)

    def begin_step(self, number: int | None = None, batch: object = None) -> None:
        """Begin a step, ending the phases still open."""
        self._leave_all()
        self._leave_step()
        self._step = Phase("step", is_marked=False).__enter__()
        RUNNING.step = self._count if number is None else number
        if batch is not None:
            self.set_batch(batch)

    def set_batch(self, batch: object) -> None:
        """Keep the shapes of the next batch, for reports."""
        RUNNING.batch = shapes_of(batch)

    def end_step(self) -> None:
        """End a step, and send its figures to the trackers."""
        self._leave_all()
        self._count += 1
        step = self._count - 1 if RUNNING.step is None else RUNNING.step
        whole = self._leave_step()
        now = counters.now() if whole is None or whole.ended is None else whole.ended
        peak = 0 if whole is None else whole.peak_bytes
        ended, self._ended = self._ended, []
        if now is None:
            if self._count == 1:
                _LOGGER.warning("steps are not measured: this program has not used CUDA so far")
            return
        self._ends.append(now.allocated)
        if self._count % self._every == 0:
            self._send(step_scalars(ended, now, peak), step)

    def _send(self, scalars: dict[str, int], step: int) -> None:
        self.scalars = scalars
        self._tell("scalars", scalars, step)

    def enter(self, name: str) -> None:
        """Begin a phase inside the open ones."""
        self._open.append(Phase(name).__enter__())

    def leave(self, name: str | None = None) -> None:
        """End a phase and those inside it; None is the innermost. Ignores unknown names."""
        names = [one.name for one in self._open]
        if not names or (name is not None and name not in names):
            return
        while self._open:
            one = self._open.pop()
            one.__exit__(None, None, None)
            self._ended.append(one)
            self._check(one)
            if name is None or one.name == name:
                return

    def switch(self, name: str) -> None:
        """End the innermost phase and begin another: "forward", then "backward"."""
        self.leave()
        self.enter(name)

    def _leave_step(self) -> Phase | None:
        """End the step as a phase, and return it; it leaves no mark, since it has none."""
        whole, self._step = self._step, None
        if whole is not None:
            whole.__exit__(None, None, None)
        return whole

    def _leave_all(self) -> None:
        while self._open:
            self.leave()

    # ---- warnings ----------------------------------------------------------------------

    def _check(self, ended: Phase) -> None:
        """Warn about a phase that leaves memory behind, from its second run on."""
        if ended.name not in _ADVICE or ended.device is None:
            return
        count = self._finished[ended.name] = self._finished.get(ended.name, 0) + 1
        if count > 1 and ended.left_bytes > _MAY_LEAVE:
            self._warn(
                ended.name,
                f"{ended.name} left {format_bytes(ended.left_bytes)} of cuda:{ended.device} "
                f"behind at step {RUNNING.step}: {_ADVICE[ended.name]}",
            )

    def end_epoch(self) -> str:
        """Warn if memory grew from step to step; returns the verdict of `leak_trend`."""
        ends = list(self._ends)
        self._ends.clear()
        if len(ends) < _LEAST_STEPS:
            return "unknown"
        try:
            trend = leak_trend(ends)
        except (NeutracerError, ValueError) as error:
            _LOGGER.debug("no trend for this epoch: %s", error)
            return "unknown"
        if trend.verdict not in ("steady", "unknown"):
            what = trend.findings[0].message if trend.findings else trend.because
            self._warn(
                "growth",
                f"memory grows from step to step: {what}; neutracer.record() and "
                "neutracer.leak_trend() of its snapshot name the line",
            )
        return trend.verdict

    def _warn(self, key: str, message: str) -> None:
        if key not in self._warned_keys:
            self._warned_keys.add(key)
            self.warned.append(message)
            _LOGGER.warning("%s", message)

    def _tell(self, method: str, *arguments: object) -> None:
        """Call a method of each tracker; warn once if one fails."""
        for tracker in self._trackers:
            try:
                getattr(tracker, method)(*arguments)
            except Exception as error:
                self._warn(f"tracker {type(error)}", f"a tracker failed: {error}")
                _LOGGER.debug("a tracker failed", exc_info=True)

    def __repr__(self) -> str:
        return f"<Training {self._name}: {'on' if self._on else 'off'}, step {self._count}>"
