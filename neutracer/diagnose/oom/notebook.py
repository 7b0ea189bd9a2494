# SPDX-License-Identifier: Apache-2.0
"""After an error in a notebook: what its traceback and the outputs still hold."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Sequence
from typing import Any

from neutracer.diagnose.holds.holders import notebook_holders
from neutracer.render.terminal import write
from neutracer.units import format_bytes

__all__ = ["tell_after_cells"]

_LOGGER = logging.getLogger("neutracer")

_ADVICE = "neutracer.release_holders() lets go of them; neutracer.notebook_holders() lists them.\n"


def tell_after_cells(reports: Callable[[], Sequence[object]]) -> Callable[[], None]:
    """After a cell that ran out of memory, say what its traceback and `Out` keep.

    Args:
        reports: The out-of-memory errors so far; a cell that adds none is not reported.

    Returns:
        Ends it. Where there is no IPython, nothing is begun.
    """
    shell = _shell()
    if shell is None:
        return lambda: None
    told = [len(reports())]

    def after_cell(result: Any) -> None:
        count = len(reports())
        failed = getattr(result, "error_in_exec", None) is not None
        if count > told[0] and failed:
            _tell()
        told[0] = count

    shell.events.register("post_run_cell", after_cell)

    def end() -> None:
        try:
            shell.events.unregister("post_run_cell", after_cell)
        except ValueError:
            _LOGGER.debug("the notebook's callback was gone already")

    return end


def _shell() -> Any:
    module = sys.modules.get("IPython.core.interactiveshell")
    kind = getattr(module, "InteractiveShell", None)
    return getattr(kind, "_instance", None)


def _tell() -> None:
    try:
        held = notebook_holders()
    except (RuntimeError, ValueError):
        _LOGGER.debug("what the notebook holds is not known", exc_info=True)
        return
    if held.total_bytes:
        names = ", ".join(holder.names[0] for holder in held.holders if holder.bytes)
        size = format_bytes(held.total_bytes)
        write(f"neutracer: {size} are still held by {names}: {_ADVICE}", sys.stderr)
