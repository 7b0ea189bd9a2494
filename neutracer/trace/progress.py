# SPDX-License-Identifier: Apache-2.0
"""How far what takes long is, on a terminal: a load by itself, and all that a command does."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from neutracer import units

__all__ = ["end_progress", "reporting", "tell", "working"]

# From this size on, loading tells on a terminal how far it is.
_LONG_FILE = 256 << 20

# What takes less than this is not worth a line, which changes so often.
_WAIT_S = 1.0
_PACE_S = 0.2

# Takes a line back: to its beginning, and everything after that erased.
_ERASE = "\r" + " " * 60 + "\r"


class _Display:
    """One line on standard error, from a second on: what is done, and for how long."""

    def __init__(self) -> None:
        self.text = "working"
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="neutracer progress", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        begun = time.monotonic()
        if self._ended.wait(_WAIT_S):
            return
        show, end = _line()
        try:
            while not self._ended.is_set():
                show(f"{self.text}, {time.monotonic() - begun:.0f} s")
                self._ended.wait(_PACE_S)
        finally:
            end()

    def end(self) -> None:
        """Take the line back; a second time does nothing."""
        self._ended.set()
        self._thread.join()


_display: _Display | None = None


def _line() -> tuple[Callable[[str], object], Callable[[], object]]:
    """What shows a text in place of the one before, and what takes it back."""
    # Only long work on a terminal has a line.
    from neutracer.render.terminal import colour_wanted

    if colour_wanted():
        with contextlib.suppress(ImportError):
            return _rich_line()

    def show(text: str) -> None:
        sys.stderr.write(f"\r{text:<60.60}")
        sys.stderr.flush()

    def end() -> None:
        sys.stderr.write(_ERASE)
        sys.stderr.flush()

    return show, end


def _rich_line() -> tuple[Callable[[str], object], Callable[[], object]]:
    from rich.console import Console
    from rich.text import Text

    status: Any = Console(stderr=True).status(Text(""))
    status.start()
    return (lambda text: status.update(Text(text))), status.stop


@contextlib.contextmanager
def working() -> Iterator[None]:
    """Say on standard error what is done, where that is a terminal and it takes over a second.

    `tell` says what; `end_progress` takes the line back before something else is written.
    """
    global _display
    if _display is not None or not sys.stderr.isatty():
        yield
        return
    _display = _Display()
    try:
        yield
    finally:
        end_progress()


def end_progress() -> None:
    """Take the line of `working` back, for good; without one it does nothing."""
    global _display
    shown, _display = _display, None
    if shown is not None:
        shown.end()


def tell(text: str) -> None:
    """What is being done, for the line of `working`; without one it does nothing."""
    if _display is not None:
        _display.text = text


@contextlib.contextmanager
def reporting(
    source: object, progress: Callable[[int], object] | bool | None
) -> Iterator[Callable[[int], object] | None]:
    """The function to call with the bytes read, or None.

    Args:
        source: What is loaded.
        progress: A function, which is handed on; True for a line on standard error; False
            for nothing; None for a line if that is a terminal and the file is long, or for
            the line of `working`.
    """
    if callable(progress):
        yield progress
    elif progress is None and _display is not None:
        yield _tell_read
        tell("working")
    elif progress or (progress is None and _is_long(source) and sys.stderr.isatty()):
        try:
            yield _show
        finally:
            sys.stderr.write(_ERASE)
            sys.stderr.flush()
    else:
        yield None


def _tell_read(done: int) -> None:
    tell(f"read {units.format_bytes(done)}")


def _show(done: int) -> None:
    sys.stderr.write(f"\rread {units.format_bytes(done)}   ")
    sys.stderr.flush()


def _is_long(source: object) -> bool:
    if isinstance(source, (str, os.PathLike)):
        with contextlib.suppress(OSError, ValueError):
            return os.stat(source).st_size >= _LONG_FILE
    return False
