# SPDX-License-Identifier: Apache-2.0
"""Allocations marked with the `nn.Module` whose forward or backward made them.

PyTorch keeps a text with each event of its history (`_cuda_setMemoryMetadata`, from 2.10 on).
Hooks on all modules set it to the path of the module that runs. In a backward pass the nodes of
PyTorch's graph do: one where a module's output came from, and one where its input did, so that
what lies between two modules counts for the one around them.

The hooks are PyTorch's global ones: none is stored in a module, and so a model can be copied,
saved and sent meanwhile.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from neutracer.errors import UnavailableError
from neutracer.trace.table import MODULE_MARK

__all__ = ["ModuleMarks", "check_modules", "marks_of"]

# Under this name a node of the graph says that it sets a text.
_MARKED = "neutracer.module"


def check_modules(torch: Any, model: object) -> None:
    """See whether this torch keeps such texts, and whether this is a model; None is no wish.

    Raises:
        UnavailableError: It doesn't.
        TypeError: It is none.
    """
    if model is None:
        return
    if not callable(getattr(model, "named_modules", None)):
        raise TypeError(f"modules must be an nn.Module, not {type(model).__name__}")
    if not hasattr(torch._C, "_cuda_setMemoryMetadata"):
        raise UnavailableError(
            f"marking allocations with their module in torch {torch.__version__}",
            "install torch 2.10 or later, or leave modules= out",
        )


class _Running(threading.local):
    """The texts of the modules that run in a thread, the innermost last."""

    def __init__(self) -> None:
        self.texts: list[str] = []


class ModuleMarks:
    """The hooks of one recording.

    Example:
        >>> import torch
        >>> model = torch.nn.Sequential(torch.nn.Linear(2, 2))
        >>> said = []
        >>> marks = ModuleMarks(model, said.append, lambda: "")
        >>> marks.attach()
        >>> with torch.no_grad():
        ...     result = model(torch.ones(1, 2))
        >>> marks.detach()
        >>> said
        ['nn.Module: ', 'nn.Module: 0', 'nn.Module: ', '']
    """

    def __init__(self, model: Any, write: Callable[[str], object], read: Callable[[], str]) -> None:
        """`write` sets the calling thread's text, `read` gives it."""
        self._model = model
        self._write = write
        self._read = read
        self._texts: dict[int, str] = {}
        self._running = _Running()
        self._handles: list[Any] = []

    def attach(self) -> None:
        """Begin to mark."""
        hooks: Any = sys.modules["torch.nn.modules.module"]
        named = self._model.named_modules()
        self._texts = {id(module): MODULE_MARK + path for path, module in named}
        self._handles = [
            hooks.register_module_forward_pre_hook(self._enter),
            hooks.register_module_forward_hook(self._leave, always_call=True),
        ]

    def detach(self) -> None:
        """End it; a second time does nothing. Nodes of graphs that live on stay silent."""
        handles, self._handles = self._handles, []
        for handle in handles:
            handle.remove()
        if handles:
            self._texts = {}

    def _enter(self, module: Any, args: tuple[Any, ...]) -> None:
        text = self._texts.get(id(module))
        if text is None:
            return
        running = self._running.texts
        if running:
            self._mark(args, running[-1])
        else:
            # What was there belongs to the program, or to a backward pass that comes by.
            running.append(self._read())
        running.append(text)
        self._write(text)

    def _leave(self, module: Any, args: tuple[Any, ...], output: Any) -> None:
        running = self._running.texts
        if not running or self._texts.get(id(module)) != running[-1]:
            return
        text = running.pop()
        outermost = len(running) == 1
        self._write(running[-1])
        self._mark(_tensors(output), text)
        if outermost:
            before = running.pop()
            for node in _nodes(_tensors(output)):
                node.register_prehook(partial(self._begin_pass, before))

    def _mark(self, tensors: Iterable[Any], text: str) -> None:
        """Let the nodes that made tensors set a text, where they set none yet."""
        for node in _nodes(tensors):
            if _MARKED not in node.metadata:
                node.metadata[_MARKED] = True
                node.register_prehook(partial(self._reach, text))

    def _reach(self, text: str, _: object) -> None:
        if self._handles:
            self._write(text)

    def _begin_pass(self, before: str, _: object) -> None:
        """The backward pass comes to the model; when it ends, `before` is set again."""
        if self._handles:
            variable: Any = sys.modules["torch.autograd.variable"]
            variable.Variable._execution_engine.queue_callback(partial(self._write, before))


def marks_of(torch: Any, model: Any) -> ModuleMarks:
    """Begin to mark what a model allocates on CUDA devices."""
    read = getattr(torch._C, "_cuda_getMemoryMetadata", str)
    marks = ModuleMarks(model, torch._C._cuda_setMemoryMetadata, read)
    marks.attach()
    return marks


def _nodes(tensors: Iterable[Any]) -> Iterable[Any]:
    """The nodes of the graph that made tensors."""
    found = (getattr(tensor, "grad_fn", None) for tensor in tensors)
    return (node for node in found if node is not None)


def _tensors(output: Any) -> Iterable[Any]:
    """The tensors of a module's output, one level deep."""
    if isinstance(output, Mapping):
        return output.values()
    return output if isinstance(output, (tuple, list)) else (output,)
