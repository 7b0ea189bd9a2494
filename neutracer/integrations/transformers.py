# SPDX-License-Identifier: Apache-2.0
"""The callback for Hugging Face's Trainer."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import transformers

import neutracer
from neutracer.integrations.hosts import quietly

# What of the arguments decides about memory.
_SETTINGS = (
    "per_device_train_batch_size",
    "per_device_eval_batch_size",
    "gradient_accumulation_steps",
    "gradient_checkpointing",
    "bf16",
    "fp16",
    "optim",
    "torch_compile",
    "eval_accumulation_steps",
    "torch_empty_cache_steps",
)


class NeutracerCallback(transformers.TrainerCallback):  # type: ignore[misc]
    """Watches a `Trainer`: out-of-memory errors, the peak of each phase, growth.

    The phases are forward, backward, optimizer, evaluation and checkpoint; of a compiled
    model, forward and backward are one. What fails in here is logged, and training goes on.

    Args:
        directory: Where reports of out-of-memory errors go.
        trackers: Who gets the figures, as for `neutracer.training`.
        every: Steps between two sets of figures.
        max_entries: Events of history, as for `neutracer.watch_oom`; 0 records none.

    Example:
        >>> from neutracer.integrations.transformers import NeutracerCallback  # doctest: +SKIP
        >>> trainer = Trainer(..., callbacks=[NeutracerCallback()])            # doctest: +SKIP
    """

    def __init__(
        self,
        directory: str | os.PathLike[str] = "neutracer-oom",
        *,
        trackers: Sequence[Any] = (),
        every: int = 1,
        max_entries: int | None = None,
    ) -> None:
        #: The run that is watched; its `scalars`, `warned` and `watch.reports` can be read.
        self.run = neutracer.training(
            directory,
            trackers=trackers,
            every=every,
            max_entries=max_entries,
            name="transformers.Trainer",
        )
        self._hooks: list[Any] = []
        self._stepping = False

    @quietly
    def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        self.run.configuration.update(_settings(args, given.get("model")))
        self.run.start()
        model = given.get("model")
        if model is not None and not getattr(args, "torch_compile", False):
            self._follow(model)

    @quietly
    def on_train_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        self.run.end_epoch()
        self.run.stop()

    @quietly
    def on_step_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        self.run.begin_step(state.global_step)
        self._stepping = True
        if not self._hooks:
            self.run.enter("forward and backward")

    @quietly
    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        self.run.switch("optimizer")

    @quietly
    def on_optimizer_step(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        self.run.leave("optimizer")

    @quietly
    def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        self._stepping = False
        self.run.end_step()
        self._after_step(control)

    @quietly
    def on_epoch_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        self._stepping = False
        self.run.end_epoch()
        self._after_step(control)

    @quietly
    def on_evaluate(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        self.run.leave("evaluation")
        if control.should_save:
            self.run.enter("checkpoint")

    @quietly
    def on_predict(self, args: Any, state: Any, control: Any, metrics: Any, **given: Any) -> None:
        self.run.leave("evaluation")

    @quietly
    def on_save(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        self.run.leave("checkpoint")

    def _after_step(self, control: Any) -> None:
        """The trainer evaluates and saves next, in this order, if it is to."""
        if control.should_evaluate:
            self.run.leave("checkpoint")
            self.run.leave("evaluation")
            self.run.enter("evaluation")
        elif control.should_save:
            self.run.leave("checkpoint")
            self.run.enter("checkpoint")

    def _follow(self, model: Any) -> None:
        """Learn where the forward pass begins and ends, which the trainer does not say."""
        self._hooks = [
            model.register_forward_pre_hook(self._forward_begins, with_kwargs=True),
            model.register_forward_hook(self._forward_ends),
        ]

    @quietly
    def _forward_begins(self, model: Any, args: Any, inputs: Mapping[str, Any]) -> None:
        self.run.set_batch(inputs or args)
        if self._stepping:
            # With accumulation the backward pass of the batch before is still open.
            self.run.switch("forward")

    @quietly
    def _forward_ends(self, model: Any, args: Any, output: Any) -> None:
        if self._stepping:
            self.run.switch("backward")


def _settings(args: Any, model: Any) -> dict[str, Any]:
    settings = {} if model is None else {"model": type(model).__name__}
    for name in _SETTINGS:
        value = getattr(args, name, None)
        if value not in (None, False, ""):
            settings[name] = getattr(value, "value", value)
    return settings
