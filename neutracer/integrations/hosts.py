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

# ---- Callbacks ---------------------------------------------------------------------------

_LOGGER = logging.getLogger("neutracer")
_failed: set[str] = set()

Method = TypeVar("Method", bound=Callable[..., Any])


def quietly(method: Method) -> Method:
    """Log a callback's exceptions, the first as a warning, and keep the host running."""

    @functools.wraps(method)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        try:
            return method(*args, **kwargs)
        except Exception as error:
            name = method.__qualname__
            level = logging.DEBUG if name in _failed else logging.WARNING
            _failed.add(name)
            _LOGGER.log(level, "%s failed, and is left out: %s", name, error)
            _LOGGER.debug("%s failed", name, exc_info=True)
            return None

    return cast(Method, guarded)


# ---- Showing -----------------------------------------------------------------------------


class Showing(abc.ABC):
    """A tracker of a run's figures, with pictures at its end and at errors.

    Args:
        pictures: Make pictures and pages, which takes seconds.
    """

    def __init__(self, *, pictures: bool = True) -> None:
        self._pictures = pictures

    @abc.abstractmethod
    def scalars(self, values: Mapping[str, int], step: int) -> None:
        """Log the figures of a step."""

    @abc.abstractmethod
    def figure(self, name: str, figure: Any) -> None:
        """Log a matplotlib figure."""

    @abc.abstractmethod
    def text(self, name: str, text: str) -> None:
        """Log a report as text."""

    def page(self, name: str, path: Path) -> None:  # noqa: B027
        """Log the offline page, if the tracker takes files."""

    def out_of_memory(self, report: neutracer.reports.OomReport) -> None:
        """Log a report of an out-of-memory error: text, pictures and page."""
        name = Path(report.text).stem
        self.text(name, str(report))
        if report.snapshot is not None:
            folder = os.path.dirname(report.text)
            self.show(name, neutracer.load(os.path.join(folder, os.path.basename(report.snapshot))))

    def finish(self) -> None:
        """Log the allocator's state at the end of the run, if CUDA is in use."""
        from neutracer.recording.long_history import snapshot_now

        try:
            snap = snapshot_now()
        except neutracer.UnavailableError as error:
            _LOGGER.info("the end of the run is not shown: %s", error)
            return
        self.show("end", snap)

    def show(self, name: str, snap: neutracer.Snapshot) -> None:
        """Log a snapshot's pictures and page, skipping any that can't be drawn."""
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
    """(name, function that draws it) for the pictures of each device."""
    for device in snap.devices:
        word = f"cuda_{device}" if len(snap.devices) > 1 else ""
        for kind, draw in (("mdtp", neutracer.mdtp), ("timeline", neutracer.plot_timeline)):
            name = f"{kind}_{word}" if word else kind
            yield name, lambda draw=draw, device=device: draw(snap, device=device)  # type: ignore[misc]
