# SPDX-License-Identifier: Apache-2.0
"""Figures, pictures and reports in TensorBoard, which shows no pages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from neutracer.integrations.hosts import Showing


class TensorBoardTracker(Showing):
    """A tracker for `neutracer.training` and the callbacks.

    Args:
        writer: A `SummaryWriter`: torch's, tensorboardX's, or Lightning's `logger.experiment`.
        pictures: Whether pictures are drawn at the end and at an out-of-memory error.

    Example:
        >>> from neutracer.integrations.tensorboard import TensorBoardTracker   # doctest: +SKIP
        >>> run = neutracer.training(trackers=[TensorBoardTracker(writer)])     # doctest: +SKIP
    """

    def __init__(self, writer: Any, *, pictures: bool = True) -> None:
        super().__init__(pictures=pictures)
        self._writer = writer
        self._step = 0

    def scalars(self, values: Mapping[str, int], step: int) -> None:
        self._step = step
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def figure(self, name: str, figure: Any) -> None:
        self._writer.add_figure(f"neutracer/{name}", figure, self._step)

    def text(self, name: str, text: str) -> None:
        indented = "\n".join(f"    {line}" for line in text.splitlines())
        self._writer.add_text(f"neutracer/{name}", indented, self._step)

    def finish(self) -> None:
        super().finish()
        self._writer.flush()
