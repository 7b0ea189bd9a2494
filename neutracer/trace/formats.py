# SPDX-License-Identifier: Apache-2.0
"""The formats that a snapshot is written in: PyTorch's pickle, and the same as JSON."""

from __future__ import annotations

import io
import json
import os
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO

__all__ = ["in_format"]

_PACKED = (".gz", ".xz", ".zst")


@contextmanager
def in_format(path: str | os.PathLike[str], file: BinaryIO) -> Iterator[BinaryIO]:
    """What a pickle is written to, so that the file has the format that its name ends in.

    Args:
        path: The file's name: JSON where it ends in .json, packed or not.
        file: Open for writing.
    """
    name = os.fsdecode(path)
    stem, ending = os.path.splitext(name)
    if not (stem if ending in _PACKED else name).endswith(".json"):
        yield file
        return
    yield (written := io.BytesIO())
    # Our own bytes, in which no opcode names a class.
    _put(pickle.loads(written.getvalue()), file)


def _put(plain: dict[str, Any], file: BinaryIO) -> None:
    """Write a dict of lists item by item: a long trace is never one text."""
    begin = b"{"
    for key, value in plain.items():
        file.write(begin + f"\n{json.dumps(key)}: ".encode("ascii"))
        _put_value(value, file, depth=2)
        begin = b","
    file.write(b"{}\n" if begin == b"{" else b"\n}\n")


def _put_value(value: Any, file: BinaryIO, depth: int) -> None:
    """Write a value; of a list, and of the lists in it down to a depth, one item a line."""
    if not depth or not isinstance(value, list) or not value:
        file.write(json.dumps(value, allow_nan=False).encode("ascii"))
        return
    for number, item in enumerate(value):
        file.write(b",\n" if number else b"[\n")
        _put_value(item, file, depth - 1)
    file.write(b"\n]")
