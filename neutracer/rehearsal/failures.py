# SPDX-License-Identifier: Apache-2.0
"""What ended a rehearsal, in one sentence with the program's line."""

from __future__ import annotations

import os
import re

from neutracer.cells import reader_name
from neutracer.rehearsal.notes import is_library

__all__ = ["line_of", "sentence"]

_FAKE = "torch._subclasses.fake_tensor"
_MOST = 300


def line_of(error: BaseException) -> str:
    """The innermost line of the program that an exception came through."""
    traceback, found, last = error.__traceback__, "", ""
    while traceback is not None:
        code = traceback.tb_frame.f_code
        last = f"{os.path.basename(reader_name(code.co_filename))}:{traceback.tb_lineno}"
        if not is_library(traceback.tb_frame):
            found = last
        traceback = traceback.tb_next
    return found or last


def sentence(error: BaseException) -> str:
    """One sentence: the line, and why it can't be rehearsed or failed.

    Example:
        >>> sentence(ValueError("too few heads"))
        'the program failed: ValueError: too few heads'
    """
    line = line_of(error)
    at = f"{line}: " if line else ""
    name, said = type(error).__name__, _said(error)
    if name in ("DynamicOutputShapeException", "DataDependentOutputException"):
        return f"{at}{said} depends on the values of a tensor, which a rehearsal does not have"
    if name in ("UnsupportedOperatorException", "UnsupportedFakeTensorException"):
        return f"{at}the operator {said} has no fake kernel; torch.library.register_fake adds one"
    if isinstance(error, NotImplementedError) and "Could not run" in said:
        found = re.search(r"Could not run '([\w:.]+)'", said)
        operator = found[1] if found else "an operator"
        return f"{at}{operator} has no kernel for a card that is not there"
    return f"{at}the program failed: {name}: {said}" if said else f"{at}the program failed: {name}"


def _said(error: BaseException) -> str:
    """The first line of what an exception says."""
    text = str(error).strip()
    first = text.splitlines()[0].strip().rstrip(".") if text else ""
    return first if len(first) <= _MOST else f"{first[:_MOST]}..."
