# SPDX-License-Identifier: Apache-2.0
"""Files that a rehearsed program would write, or change: they stay as they are."""

from __future__ import annotations

import builtins
import importlib
import importlib.util
import io
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch

from neutracer.process.recording.imports import when_imported
from neutracer.rehearsal.notes import Notes

__all__ = ["unwritten"]

_WRITING = frozenset("wax+")
_CHANGING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND

Patch = tuple[Any, str, Any]


class _Unwritten:
    """What stands in the place of what writes.

    Where temporary files are, everything works: libraries try things out there.
    """

    def __init__(self, notes: Notes) -> None:
        self.notes = notes
        self._open, self._os_open, self._exists = builtins.open, os.open, os.path.exists
        self._temporary = os.path.realpath(tempfile.gettempdir()) + os.sep

    def _is_ours(self, path: Any) -> bool:
        """Whether a path is a file that the program means to keep."""
        if not isinstance(path, str | bytes | os.PathLike):
            return False
        full = os.path.realpath(os.fsdecode(path))
        inside = os.path.realpath(os.getcwd()) + os.sep
        if full.startswith(self._temporary) and not full.startswith(inside):
            return False
        return not full.startswith(("/dev/", "/proc/"))

    def note(self, path: Any) -> None:
        """Say it once of each file."""
        self.notes.add(f"{os.fsdecode(path)} would be written.")

    def open(self, file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        """As `open`; what is written goes nowhere."""
        if not _WRITING & set(mode) or not self._is_ours(file):
            return self._open(file, mode, *args, **kwargs)
        self.note(file)
        return self._open(os.devnull, mode.replace("x", "w"), *args, **kwargs)

    def os_open(self, path: Any, flags: int, *args: Any, **kwargs: Any) -> int:
        """As `os.open`."""
        if not flags & _CHANGING or not self._is_ours(path):
            return self._os_open(path, flags, *args, **kwargs)
        self.note(path)
        return self._os_open(os.devnull, flags & (os.O_WRONLY | os.O_RDWR))

    def save(self, obj: Any, f: Any, *args: Any, **kwargs: Any) -> None:
        """As `torch.save`: the values of fake tensors are nothing to keep."""
        if isinstance(f, str | os.PathLike):
            self.note(f)

    def making(self) -> Callable[..., None]:
        """`os.makedirs` and its like."""

        def make(name: Any, *args: Any, **kwargs: Any) -> None:
            if not self._exists(name):
                self.note(name)

        return self._unless_temporary(os.makedirs, make)

    def changing(self, plain: Any, what: str, at: int = 0) -> Callable[..., Any]:
        """A function that changes the file that its argument number `at` names."""

        def change(*args: Any, **kwargs: Any) -> Any:
            self.notes.add(f"{os.fsdecode(args[at])} would be {what}.")

        return self._unless_temporary(plain, change, at)

    def _unless_temporary(
        self, plain: Any, instead: Callable[..., Any], at: int = 0
    ) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            if len(args) <= at or not self._is_ours(args[at]):
                return plain(*args, **kwargs)
            return instead(*args, **kwargs)

        return run

    def keeper(self, at: int) -> Callable[..., None]:
        """A function of a library that saves to the path that its argument `at` is."""

        def save(*args: Any, **kwargs: Any) -> None:
            names = ("save_directory", "filename", "output_dir", "filepath")
            given = [kwargs[name] for name in names if kwargs.get(name) is not None]
            path = args[at] if len(args) > at else (given or [None])[0]
            self.notes.add(
                "a checkpoint would be written."
                if not isinstance(path, str | bytes | os.PathLike)
                else f"{os.fsdecode(path)} would be written."
            )

        return save

    def patches(self) -> list[Patch]:
        """What to put in the place of what writes."""
        found: list[Patch] = [
            (builtins, "open", self.open),
            (io, "open", self.open),
            (os, "open", self.os_open),
            (torch, "save", self.save),
            (os, "mkdir", self.making()),
            (os, "makedirs", self.making()),
            (shutil, "rmtree", self.changing(shutil.rmtree, "removed")),
            (shutil, "move", self.changing(shutil.move, "written", 1)),
        ]
        for name in ("remove", "unlink", "rmdir"):
            found.append((os, name, self.changing(getattr(os, name), "removed")))
        for name in ("rename", "replace"):
            found.append((os, name, self.changing(getattr(os, name), "written", 1)))
        if importlib.util.find_spec("safetensors") is not None:
            tensors = importlib.import_module("safetensors.torch")
            found.append((tensors, "save_file", self.keeper(1)))
        return found


#: Methods of libraries that save a model, with the place of the path among the arguments. They
#: look into tensors' memory before they write, or write from another language.
_SAVING = (
    ("transformers.modeling_utils", "PreTrainedModel", "save_pretrained", 1),
    ("transformers.trainer", "Trainer", "_save_checkpoint", 9),
    ("transformers.trainer", "Trainer", "save_model", 1),
    ("lightning.pytorch.trainer.trainer", "Trainer", "save_checkpoint", 1),
    ("pytorch_lightning.trainer.trainer", "Trainer", "save_checkpoint", 1),
)


def _is_there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module.partition(".")[0]) is not None
    except (ImportError, ValueError):
        return False


@contextmanager
def unwritten(notes: Notes) -> Iterator[list[Patch]]:
    """What to put in the place of what writes; libraries that save models get theirs when the
    program imports them.

    Args:
        notes: Gets a sentence for each file that would be written or changed.
    """
    instead = _Unwritten(notes)
    with ExitStack() as stack:

        def patch(module: str, owner: str, name: str, at: int) -> None:
            found = getattr(importlib.import_module(module), owner)
            stack.callback(setattr, found, name, vars(found)[name])
            setattr(found, name, instead.keeper(at))

        for one in _SAVING:
            if _is_there(one[0]):
                stack.callback(when_imported(one[0], partial(patch, *one)))
        yield instead.patches()
