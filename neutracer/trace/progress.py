# SPDX-License-Identifier: Apache-2.0
"""How far a long load is, on a terminal."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator

from neutracer import units

__all__ = ["reporting"]

# From this size on, loading tells on a terminal how far it is.
_LONG_FILE = 256 << 20

# Takes a line back: to its beginning, and everything after that erased.
_ERASE = "\r" + " " * 40 + "\r"


@contextlib.contextmanager
def reporting(
    source: object, progress: Callable[[int], object] | bool | None
) -> Iterator[Callable[[int], object] | None]:
    """The function to call with the bytes read, or None.

    Args:
        source: What is loaded.
        progress: A function, which is handed on; True for a line on standard error; False
            for nothing; None for a line if that is a terminal and the file is long.
    """
    if callable(progress):
        yield progress
    elif progress or (progress is None and _is_long(source) and sys.stderr.isatty()):
        try:
            yield _show
        finally:
            sys.stderr.write(_ERASE)
            sys.stderr.flush()
    else:
        yield None


def _show(done: int) -> None:
    sys.stderr.write(f"\rread {units.format_bytes(done)}   ")
    sys.stderr.flush()


def _is_long(source: object) -> bool:
    if isinstance(source, (str, os.PathLike)):
        with contextlib.suppress(OSError, ValueError):
            return os.stat(source).st_size >= _LONG_FILE
    return False
