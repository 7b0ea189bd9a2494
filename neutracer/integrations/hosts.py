# SPDX-License-Identifier: Apache-2.0
"""Shared by the integrations: errors that never reach the host, and figures for trackers."""

from __future__ import annotations

import abc
import functools
import logging
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar, cast

import neutracer
from neutracer.hooks import shim as hooks
from neutracer.hooks.live import take

# ---- Quiet -------------------------------------------------------------------------------

# Callbacks that never end what they watch.

_LOGGER = logging.getLogger("neutracer")
_told: set[str] = set()

Method = TypeVar("Method", bound=Callable[..., Any])


def quietly(method: Method) -> Method:
    """Log what a callback raises, the first time as a warning; the host goes on without it."""

    @functools.wraps(method)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        try:
            return method(*args, **kwargs)
        except Exception as error:
            name = method.__qualname__
            level = logging.DEBUG if name in _told else logging.WARNING
            _told.add(name)
            _LOGGER.log(level, "%s failed, and is left out: %s", name, error)
            _LOGGER.debug("%s failed", name, exc_info=True)
            return None

    return cast(Method, guarded)


# ---- Showing -----------------------------------------------------------------------------

# What every tracker shows of a run: its figures, and at the end or an error its pictures.


class Showing(abc.ABC):
    """A tracker with pictures.

    Args:
        pictures: Whether there are to be pictures and pages; they take seconds.
    """

    def __init__(self, *, pictures: bool = True) -> None:
        self._pictures = pictures

    @abc.abstractmethod
    def scalars(self, values: Mapping[str, int], step: int) -> None:
        """The figures of a step."""

    @abc.abstractmethod
    def figure(self, name: str, figure: Any) -> None:
        """A matplotlib figure."""

    @abc.abstractmethod
    def text(self, name: str, text: str) -> None:
        """A report as text."""

    def page(self, name: str, path: Path) -> None:  # noqa: B027
        """The offline page, where the tracker takes files."""

    def out_of_memory(self, report: neutracer.reports.OomReport) -> None:
        """A report of an out-of-memory error: its text, its pictures, its page."""
        name = Path(report.text).stem
        self.text(name, str(report))
        if report.snapshot is not None:
            folder = os.path.dirname(report.text)
            self.show(name, neutracer.load(os.path.join(folder, os.path.basename(report.snapshot))))

    def finish(self) -> None:
        """The end of the run: what the allocator holds then, where CUDA is in use."""
        try:
            snap = _now()
        except neutracer.UnavailableError as error:
            _LOGGER.info("the end of the run is not shown: %s", error)
            return
        self.show("end", snap)

    def show(self, name: str, snap: neutracer.Snapshot) -> None:
        """The pictures of a snapshot, and its page. What can't be drawn is left out."""
        if not self._pictures:
            return
        for word, draw in _drawings(snap):
            try:
                figure = draw()
            except (neutracer.NeutracerError, ValueError) as error:
                _LOGGER.info("%s of %s is left out: %s", word, name, error)
                continue
            self.figure(f"{name}/{word}", figure)
        with tempfile.TemporaryDirectory() as folder:
            self.page(name, neutracer.view(snap, os.path.join(folder, f"{name}.html")))


def _drawings(snap: neutracer.Snapshot) -> Iterator[tuple[str, Callable[[], Any]]]:
    """The pictures of each device, as words and how to make them."""
    for device in snap.devices:
        word = f"cuda_{device}" if len(snap.devices) > 1 else ""
        for kind, draw in (("mdtp", neutracer.mdtp), ("timeline", neutracer.plot_timeline)):
            name = f"{kind}_{word}" if word else kind
            yield name, lambda draw=draw, device=device: draw(snap, device=device)  # type: ignore[misc]


def _now() -> neutracer.Snapshot:
    """This process, with its events from whoever records them."""
    state = hooks.state()
    if state is not None and state.active and state.backend == "cuda":
        return take("cuda", state.events, quiet=True)
    return neutracer.snapshot()
