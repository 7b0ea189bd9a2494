# SPDX-License-Identifier: Apache-2.0
"""Allocations marked with the `nn.Module` whose forward or backward made them.

PyTorch keeps a text with each event of its history (`_cuda_setMemoryMetadata`, from 2.10 on), and
neutracer's hooks on the CPU's allocator keep one too. Hooks on all modules set it to the path of
the module that runs. In a backward pass the nodes of PyTorch's graph do that made what a module got
or gave: each sets the text of the module that it was made in, and so what lies between two modules
counts for the one around them.

The hooks are PyTorch's global ones: none is stored in a module, and so a model can be copied,
saved and sent meanwhile. What they do is compiled (`csrc/py/nt_py_modules.c`). Inside of a
compiled region they do nothing: all of it counts for the module around it.

Where neutracer's hooks on the allocator are compiled, these do without any of PyTorch's
(`process/recording/module_calls.py`), at a small part of the cost.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, TypeVar

from neutracer._native import core
from neutracer.errors import UnavailableError
from neutracer.trace.stacks import MODULE_MARK

__all__ = ["ModuleMarks", "check_model", "check_modules", "texts_of"]

Text = TypeVar("Text")


def check_modules(torch: Any, model: object) -> None:
    """See whether this torch keeps such texts, and whether this is a model.

    Args:
        torch: The module.
        model: An `nn.Module`, True for every one that is called, or None for none.

    Raises:
        UnavailableError: It doesn't.
        TypeError: It is none of these.
    """
    check_model(model)
    if model is not None and not hasattr(torch._C, "_cuda_setMemoryMetadata"):
        raise UnavailableError(
            f"marking allocations with their module in torch {torch.__version__}",
            "install torch 2.10 or later, or leave modules= out",
        )


def check_model(model: object) -> None:
    """See whether something can be given as `modules`.

    Raises:
        TypeError: It is no `nn.Module`, not True and not None.
    """
    if model is None:
        return
    if model is not True and not callable(getattr(model, "named_modules", None)):
        raise TypeError(f"modules must be an nn.Module or True, not {type(model).__name__}")


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
        """`write` sets the calling thread's text, `read` gives it. A `model` of True stands
        for each model whose forward is called; its class is in front of its paths."""
        self._model = model
        self._write = write
        self._read = read
        # Emptied at the end: nodes of graphs that live on are silent then.
        self._writer: list[Callable[[str], object]] = []
        self._handles: list[Any] = []

    def attach(self) -> None:
        """Begin to mark."""
        hooks: Any = sys.modules["torch.nn.modules.module"]
        torch = hooks.torch
        texts, enter_model = texts_of(self._model, str)
        self._writer = [self._write]
        hook_of = partial(partial, _begin_pass, self._writer)
        carrier = torch.empty(0, device="cpu")
        marks = core.ModuleMarks(texts, self._writer, self._read, enter_model, hook_of, carrier)
        enter, leave = _hooks_of(marks, torch.compiler.is_compiling)
        self._handles = [
            hooks.register_module_forward_pre_hook(enter),
            hooks.register_module_forward_hook(leave, always_call=True),
        ]

    def detach(self) -> None:
        """End it; a second time does nothing."""
        handles, self._handles = self._handles, []
        for handle in handles:
            handle.remove()
        self._writer.clear()


def _hooks_of(
    marks: core.ModuleMarks, is_compiling: Callable[[], bool]
) -> tuple[Callable[[Any, Any], None], Callable[[Any, Any, Any], None]]:
    """The hooks before and after a forward; a compiler that traces them sees empty ones."""
    enter, leave = marks.enter, marks.leave

    def before(module: Any, args: Any) -> None:
        if not is_compiling():
            enter(module, args)

    def after(module: Any, args: Any, output: Any) -> None:
        if not is_compiling():
            leave(module, output)

    return before, after


def texts_of(
    model: Any, make: Callable[[str], Text]
) -> tuple[dict[int, Text], Callable[[Any], object]]:
    """The texts of modules by their ids, and what to call with a model that is not among them.

    Args:
        model: An `nn.Module`, or True for each one that is called.
        make: Given a text, what is to stand for it.
    """
    texts: dict[int, Text] = {}
    if model is True:
        return texts, partial(_learn, texts, make, {})
    for path, module in model.named_modules():
        texts[id(module)] = make(MODULE_MARK + path)
    return texts, partial(_know_compiled, texts)


def _know_compiled(texts: dict[int, Text], module: Any) -> None:
    """Give what `torch.compile` made of a known module the path of that."""
    text = texts.get(id(_parts(module).get("_orig_mod")))
    if text is not None:
        texts[id(module)] = text


def _learn(
    texts: dict[int, Text], make: Callable[[str], Text], alive: dict[int, Any], model: Any
) -> None:
    """Find the paths in a model that is called for the first time."""
    name = type(model).__name__
    for path, module in _paths("", model, set()):
        key = id(module)

        def forget(_: object, key: int = key) -> None:
            texts.pop(key, None)
            alive.pop(key, None)

        alive[key] = weakref.ref(module, forget)
        texts[key] = make(MODULE_MARK + (f"{name}.{path}" if path else name))


def _paths(path: str, module: Any, seen: set[int]) -> Iterator[tuple[str, Any]]:
    """What `named_modules()` gives, without code of the program: what is raised meanwhile is of
    a signal's handler then."""
    if id(module) in seen:
        return
    seen.add(id(module))
    yield path, module
    for name, part in list(_parts(module).items()):
        if part is not None:
            yield from _paths(f"{path}.{name}" if path else name, part, seen)


def _parts(module: Any) -> Mapping[str, Any]:
    """The modules in a module, by name."""
    parts: Mapping[str, Any] = object.__getattribute__(module, "__dict__").get("_modules", {})
    return parts


def _begin_pass(writer: list[Callable[[str], object]], before: str, _: object) -> None:
    """A backward pass has come to a model: when it ends, the text from before it is set again."""
    if writer:
        variable: Any = sys.modules["torch.autograd.variable"]
        variable.Variable._execution_engine.queue_callback(partial(writer[0], before))
