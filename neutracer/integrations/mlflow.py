# SPDX-License-Identifier: Apache-2.0
"""Figures, pictures and pages in an MLflow run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mlflow

from neutracer.integrations.hosts import Showing

_FOLDER = "neutracer"


class MlflowTracker(Showing):
    """A tracker for `neutracer.training` and the callbacks.

    Args:
        run_id: The run; None is the active one, and begins one where there is none.
        pictures: Whether pictures and a page are made at the end and at an out-of-memory error.

    Example:
        >>> from neutracer.integrations.mlflow import MlflowTracker       # doctest: +SKIP
        >>> run = neutracer.training(trackers=[MlflowTracker()])          # doctest: +SKIP
    """

    def __init__(self, run_id: str | None = None, *, pictures: bool = True) -> None:
        super().__init__(pictures=pictures)
        active = mlflow.active_run()
        if run_id is None:
            run_id = (active or mlflow.start_run()).info.run_id
        self._run_id = run_id
        self._client = mlflow.MlflowClient()

    def scalars(self, values: Mapping[str, int], step: int) -> None:
        numbers = {name: float(value) for name, value in values.items()}
        mlflow.log_metrics(numbers, step=step, run_id=self._run_id)

    def figure(self, name: str, figure: Any) -> None:
        self._client.log_figure(self._run_id, figure, f"{_FOLDER}/{name}.png")

    def text(self, name: str, text: str) -> None:
        self._client.log_text(self._run_id, text, f"{_FOLDER}/{name}/report.txt")

    def page(self, name: str, path: Path) -> None:
        self._client.log_artifact(self._run_id, str(path), f"{_FOLDER}/{name}")
