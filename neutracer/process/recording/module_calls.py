# SPDX-License-Identifier: Apache-2.0
"""Modules marked by the compiled hooks, without hooks of PyTorch's.

While one marks, `Module.__call__` is a function that says which module runs
(`csrc/torch/nt_torch_calls.cpp`) and does the same otherwise. What an event of the allocator is
made for is found out when it comes: in a backward pass by the number of the node that runs.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable
from types import CodeType
from typing import Any

from neutracer.errors import UnavailableError
from neutracer.process.hooks.shim import call, load
from neutracer.process.recording.modules import ModuleMarks, check_modules, texts_of

__all__ = ["Marks", "ModuleCalls", "marks_by", "marks_of"]

_lock = threading.Lock()


class ModuleCalls:
    """The marks of one recording. On CUDA it begins once the program has used a device.

    Example:
        >>> import torch
        >>> from neutracer.process.hooks.shim import why_none
        >>> if not why_none() and (load().backend == "cpu" or torch.cuda.is_initialized()):
        ...     model = torch.nn.Sequential(torch.nn.Linear(2, 2))
        ...     calls = ModuleCalls(load(), model)
        ...     calls.attach()
        ...     result = model(torch.ones(1, 2))
        ...     calls.detach()
    """

    def __init__(self, hooks: Any, model: Any) -> None:
        """`hooks` is the compiled module. A `model` of True stands for each model whose forward
        is called; its class is in front of its paths."""
        self._hooks = hooks
        self._model = model
        self._calls: Any = None
        self._original: Any = None
        self._marking: Any = None

    def attach(self) -> None:
        """Begin to mark.

        Raises:
            UnavailableError: PyTorch calls modules in another way than it is known to, or its
                allocator can't be followed.
        """
        modules: Any = sys.modules["torch.nn.modules.module"]
        is_compiling = modules.torch.compiler.is_dynamo_compiling
        calls = self._hooks.ModuleCalls(*texts_of(self._model, self._hooks.module_text))
        with _lock:
            original = modules.Module.__call__
            marking = _marking(original, is_compiling, calls.run)
            call(calls.begin)
            modules.Module.__call__ = marking
        self._calls, self._original, self._marking = calls, original, marking

    def detach(self) -> None:
        """End it; a second time does nothing."""
        calls, self._calls = self._calls, None
        if calls is None:
            return
        calls.end()
        kind = sys.modules["torch.nn.modules.module"].Module
        with _lock:
            # Where something else was put on top of it, it stays and marks nothing.
            if kind.__call__ is self._marking:
                kind.__call__ = self._original


Marks = ModuleMarks | ModuleCalls


def marks_by(hooks: Any, model: Any) -> Marks:
    """Begin to mark what a model allocates, for neutracer's compiled hooks.

    Raises:
        UnavailableError: This torch keeps no texts.
    """
    torch: Any = sys.modules["torch"]
    if hooks.backend == "cuda":
        check_modules(torch, model)
        return marks_of(torch, model)
    return _begun(hooks, model) or _begun_by_hooks(model, hooks.set_text, hooks.get_text)


def marks_of(torch: Any, model: Any) -> Marks:
    """Begin to mark what a model allocates on CUDA devices: with neutracer's hooks where they are
    compiled, else with PyTorch's."""
    try:
        hooks = load(compile=False)
        hooks = hooks if hooks.backend == "cuda" else None
    except UnavailableError:
        hooks = None
    read = getattr(torch._C, "_cuda_getMemoryMetadata", str)
    return _begun(hooks, model) or _begun_by_hooks(model, torch._C._cuda_setMemoryMetadata, read)


def _begun(hooks: Any, model: Any) -> ModuleCalls | None:
    """The marks by the compiled hooks, or None where they can't be made."""
    if hooks is None:
        return None
    calls = ModuleCalls(hooks, model)
    try:
        calls.attach()
    except UnavailableError:
        return None
    return calls


def _begun_by_hooks(
    model: Any, write: Callable[[str], object], read: Callable[[], str]
) -> ModuleMarks:
    marks = ModuleMarks(model, write, read)
    marks.attach()
    return marks


def _marking(
    original: Any, is_compiling: Callable[[], bool], marking_call: Callable[..., Any]
) -> Any:
    """What stands for `Module.__call__`; a compiler that traces it sees the original.

    In a stack it reads as the original does, line for line and column for column: its last line is
    what is called there, and so stacks are the same with and without marks.

    Raises:
        UnavailableError: The original is not that of PyTorch, or another than is known.
    """

    # fmt: off
    def _wrapped_call_impl(self: Any, *args: Any, **kwargs: Any) -> Any:
        if is_compiling():
            return original(self, *args, **kwargs)
        else:
            return marking_call(self, args, kwargs)
    # fmt: on

    code = getattr(original, "__code__", None)
    if not isinstance(code, CodeType) or code.co_names != ("_compiled_call_impl", "_call_impl"):
        raise UnavailableError("marking the calls of modules", "something else replaces them")
    mine: Any = functools.wraps(original)(_wrapped_call_impl)
    del mine.__wrapped__
    place: dict[str, Any] = {
        "co_filename": code.co_filename,
        "co_firstlineno": _last_line(code)
        - (_last_line(mine.__code__) - mine.__code__.co_firstlineno),
        "co_name": code.co_name,
    }
    if sys.version_info >= (3, 11):
        place["co_qualname"] = code.co_qualname
    mine.__code__ = mine.__code__.replace(**place)
    return mine


def _last_line(code: CodeType) -> int:
    """The last line that does something."""
    return max(line for _, _, line in code.co_lines() if line is not None)
