# SPDX-License-Identifier: Apache-2.0
"""The callback for Lightning's Trainer, which loads it itself if NEUTRACER=1."""

from __future__ import annotations

import importlib
import os
from collections.abc import Sequence
from functools import cache
from typing import Any

import neutracer
from neutracer.integrations.hosts import quietly

#: Made at first use, from the installed package.
NeutracerCallback: Any


class _Watching:
    """Watches a Lightning `Trainer`: out-of-memory errors, the peak of each phase, growth.

    The phases are forward, backward, optimizer, evaluation and checkpoint. The figures go to
    the trainer's own loggers, as often as it logs. Errors in the callback are logged, and
    training continues.

    Args:
        directory: The folder for reports of out-of-memory errors.
        trackers: Further trackers, as for `neutracer.training`.
        max_entries: Events of history, as for `neutracer.watch_oom`; 0 records none.

    Example:
        >>> from neutracer.integrations.lightning import NeutracerCallback   # doctest: +SKIP
        >>> trainer = Trainer(callbacks=[NeutracerCallback()])               # doctest: +SKIP
    """

    def __init__(
        self,
        directory: str | os.PathLike[str] = "neutracer-oom",
        *,
        trackers: Sequence[Any] = (),
        max_entries: int | None = None,
    ) -> None:
        #: The watched run, with `scalars`, `warned` and `watch.reports`.
        self.run = neutracer.training(
            directory, trackers=trackers, max_entries=max_entries, name="lightning.Trainer"
        )
        self._stepping = False

    @quietly
    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        self.run.configuration.update(_settings(trainer, pl_module))
        self.run.start()

    @quietly
    def on_train_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int
    ) -> None:
        if not self._stepping:
            self.run.begin_step(trainer.global_step, batch)
        self._stepping = True
        self.run.enter("forward")

    @quietly
    def on_before_backward(self, trainer: Any, pl_module: Any, loss: Any) -> None:
        self.run.leave("forward")
        self.run.enter("backward")

    @quietly
    def on_after_backward(self, trainer: Any, pl_module: Any) -> None:
        self.run.leave("backward")

    @quietly
    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        self.run.enter("optimizer")

    @quietly
    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self._stepping = False
        self.run.end_step()
        every = getattr(trainer, "log_every_n_steps", 0)
        if every and self.run.scalars and (batch_idx + 1) % every == 0:
            for logger in trainer.loggers:
                logger.log_metrics(dict(self.run.scalars), step=trainer.global_step)

    @quietly
    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        if not trainer.sanity_checking:
            self.run.enter("evaluation")

    @quietly
    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        self.run.leave("evaluation")

    @quietly
    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: Any) -> None:
        # Lightning announces the start of saving; the next callback is its end.
        self.run.leave("checkpoint")
        self.run.enter("checkpoint")

    @quietly
    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        self.run.end_epoch()

    @quietly
    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        self.run.stop()

    @quietly
    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        self.run.stop()


def _settings(trainer: Any, module: Any) -> dict[str, Any]:
    settings = {"model": type(module).__name__}
    for name in ("precision", "accumulate_grad_batches", "num_devices", "max_epochs"):
        value = getattr(trainer, name, None)
        if value is not None:
            settings[name] = value
    strategy = getattr(trainer, "strategy", None)
    return {**settings, "strategy": type(strategy).__name__}


@cache
def _callback_of(base: Any) -> Any:
    """The callback for one of the two packages that Lightning comes as."""
    return type("NeutracerCallback", (_Watching, base), {"__doc__": _Watching.__doc__})


def __getattr__(name: str) -> Any:
    if name != "NeutracerCallback":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from lightning.pytorch import Callback
    except ImportError:
        from pytorch_lightning import Callback
    return _callback_of(Callback)


def callbacks(package: str = "lightning.pytorch") -> list[Any]:
    """What Lightning adds to every Trainer: the callback where NEUTRACER=1, else nothing."""
    if os.environ.get("NEUTRACER") != "1":
        return []
    return [_callback_of(importlib.import_module(package).Callback)()]


def pytorch_lightning_callbacks() -> list[Any]:
    """The same for the package pytorch_lightning."""
    return callbacks("pytorch_lightning")
