# SPDX-License-Identifier: Apache-2.0
"""Callbacks that never end what they watch."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any, TypeVar, cast

__all__ = ["quietly"]

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
