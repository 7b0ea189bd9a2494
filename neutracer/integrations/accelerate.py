# SPDX-License-Identifier: Apache-2.0
"""The tracker for accelerate: `Accelerator(log_with=NeutracerTracker(...))`."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from accelerate.tracking import GeneralTracker

import neutracer
from neutracer.integrations.hosts import quietly


class NeutracerTracker(GeneralTracker):  # type: ignore[misc]
    """Watches a loop of accelerate from its first to its last `accelerator.log`.

    Each `log` is the end of a step: the peak since the one before, what is allocated and what
    is reserved are written to <logging_dir>/neutracer.jsonl, and go to the trackers. An
    out-of-memory error is written down whoever catches it; `find_executable_batch_size` does.

    Args:
        logging_dir: Where the file and the reports go.
        trackers: Who gets the figures besides, as for `neutracer.training`.
        max_entries: Events of history, as for `neutracer.watch_oom`; 0 records none.

    Example:
        >>> from neutracer.integrations.accelerate import NeutracerTracker   # doctest: +SKIP
        >>> tracker = NeutracerTracker("runs")                               # doctest: +SKIP
        >>> accelerator = Accelerator(log_with=[tracker])                    # doctest: +SKIP
    """

    name = "neutracer"
    requires_logging_directory = True
    main_process_only = False

    def __init__(
        self,
        logging_dir: str | os.PathLike[str] = ".",
        *,
        trackers: Sequence[Any] = (),
        max_entries: int | None = None,
        **_: Any,
    ) -> None:
        super().__init__()
        self._folder = Path(logging_dir)
        self.run = neutracer.training(
            self._folder / "neutracer-oom",
            trackers=trackers,
            max_entries=max_entries,
            name="accelerate",
        )
        self._step = 0
        self.run.start()
        self.run.begin_step(0)
        self.run.enter("step")

    def start(self) -> None:
        """The accelerator's trackers begin; this one is on already."""

    @property
    def tracker(self) -> neutracer.reports.Training:
        """The run that is watched."""
        return self.run

    @quietly
    def store_init_configuration(self, values: Mapping[str, Any]) -> None:
        """A report of an out-of-memory error has the configuration."""
        self.run.configuration.update(values)

    @quietly
    def log(self, values: Mapping[str, Any], step: int | None = None, **_: Any) -> None:
        """A step has ended: write its figures."""
        self.run.end_step()
        if self.run.scalars:
            self._folder.mkdir(parents=True, exist_ok=True)
            row = {"step": self._step if step is None else step, **self.run.scalars}
            with open(self._folder / "neutracer.jsonl", "a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
        self._step = (self._step if step is None else step) + 1
        self.run.begin_step(self._step)
        self.run.enter("step")

    @quietly
    def finish(self) -> None:
        """The run has ended."""
        self.run.end_epoch()
        self.run.stop()
