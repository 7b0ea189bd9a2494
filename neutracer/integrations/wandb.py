# SPDX-License-Identifier: Apache-2.0
"""Figures, pictures and pages in a run of Weights & Biases."""

from __future__ import annotations

import html
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import wandb
from PIL import Image

from neutracer.errors import UnavailableError
from neutracer.integrations.hosts import Showing

_STEP = "neutracer/step"


class WandbTracker(Showing):
    """A tracker for `neutracer.training` and the callbacks.

    The figures have an axis of their own, "neutracer/step", so that they don't get in the way
    of what the program itself logs.

    Args:
        run: The run; None is the active one.
        pictures: Whether pictures and a page are made at the end and at an out-of-memory error.

    Raises:
        UnavailableError: There is no run.

    Example:
        >>> from neutracer.integrations.wandb import WandbTracker         # doctest: +SKIP
        >>> run = neutracer.training(trackers=[WandbTracker()])           # doctest: +SKIP
    """

    def __init__(self, run: Any = None, *, pictures: bool = True) -> None:
        super().__init__(pictures=pictures)
        self._run = wandb.run if run is None else run
        if self._run is None:
            raise UnavailableError("a run of Weights & Biases", "call wandb.init() first")
        self._run.define_metric(_STEP, hidden=True)
        self._run.define_metric("neutracer/*", step_metric=_STEP)

    def scalars(self, values: Mapping[str, int], step: int) -> None:
        self._run.log({**values, _STEP: step})

    def figure(self, name: str, figure: Any) -> None:
        # wandb knows matplotlib's own class of figures only, and no class made from it.
        drawn = io.BytesIO()
        figure.savefig(drawn, format="png")
        self._run.log({f"neutracer/{name}": wandb.Image(Image.open(drawn))})

    def text(self, name: str, text: str) -> None:
        self._run.log({f"neutracer/{name}/report": wandb.Html(f"<pre>{html.escape(text)}</pre>")})

    def page(self, name: str, path: Path) -> None:
        artifact = wandb.Artifact(f"neutracer-{name}-{self._run.id}", type="neutracer")
        artifact.add_file(str(path))
        self._run.log_artifact(artifact)
        page = wandb.Html(path.read_text(encoding="utf-8"), inject=False)
        self._run.log({f"neutracer/{name}/page": page})
