# SPDX-License-Identifier: Apache-2.0
"""What a training run wants of a tracker."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from neutracer.diagnose.oom.page import OomReport

__all__ = ["Tracker"]


class Tracker(Protocol):
    """Where figures go: Weights & Biases, MLflow, TensorBoard, or the program's own."""

    def scalars(self, values: Mapping[str, int], step: int) -> object:
        """The figures of a step, by their names."""

    def out_of_memory(self, report: OomReport) -> object:
        """A report was written."""

    def finish(self) -> object:
        """The run has ended."""
