# SPDX-License-Identifier: Apache-2.0
"""What a notebook calls the code of its cells.

A cell's code has a file name that no reader knows ("/tmp/ipykernel_71/2537.py").
Importing this imports no IPython: where none runs in this process, no file is a cell.

Example:
    >>> reader_name("train.py")
    'train.py'
"""

from __future__ import annotations

import sys
from typing import Any

__all__ = ["reader_name"]


def reader_name(filename: str) -> str:
    """The name of a file as a reader knows it: "In[3]" for that of the third cell.

    Args:
        filename: As a frame or a code object has it.
    """
    module = sys.modules.get("IPython.core.interactiveshell")
    shell: Any = getattr(getattr(module, "InteractiveShell", None), "_instance", None)
    named = getattr(getattr(shell, "compile", None), "format_code_name", None)
    told = None if named is None else named(filename)
    return filename if told is None else str(told[1])
