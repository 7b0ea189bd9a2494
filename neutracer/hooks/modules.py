# SPDX-License-Identifier: Apache-2.0
"""The `nn.Module` path behind each allocation: marks set by forward and backward hooks."""

from __future__ import annotations

import functools
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import CodeType
from typing import Any, TypeVar

from neutracer._native import core
from neutracer.errors import UnavailableError
from neutracer.hooks.shim import call, load
from neutracer.trace.stacks import MODULE_MARK

# ---- Modules -----------------------------------------------------------------------------

# PyTorch keeps a text per event (`_cuda_setMemoryMetadata`, since 2.10), as do neutracer's hooks on
# the CPU allocator. `ModuleMarks` sets it to the running module's path by PyTorch's global module
# hooks, so that models can still be copied, saved and sent. In a backward pass, autograd nodes at a
# module's inputs and outputs set it. A compiled region counts for the module around it.
# The hooks' work is in csrc/py/nt_py_modules.c. With neutracer's compiled hooks, `ModuleCalls` does
# the same at a fraction of the cost.

Text = TypeVar("Text")


def check_modules(torch: Any, model: object) -> None:
    """Check `modules=` and this torch's support for it."""
    check_model(model)
    if model is not None and not hasattr(torch._C, "_cuda_setMemoryMetadata"):
        raise UnavailableError(
            f"marking allocations with their module in torch {torch.__version__}",
            "install torch 2.10 or later, or leave modules= out",
        )


def check_model(model: object) -> None:
    """Raise TypeError unless `model` is an `nn.Module`, True or None."""
    if model is None:
        return
    if model is not True and not callable(getattr(model, "named_modules", None)):
        raise TypeError(f"modules must be an nn.Module or True, not {type(model).__name__}")


class ModuleMarks:
    """One recording's marks by PyTorch's hooks.

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
        """`write` sets the calling thread's text, `read` returns it; `model` as in `texts_of`."""
        self._model = model
        self._write = write
        self._read = read
        # Emptied at the end, to disarm nodes of surviving graphs.
        self._writer: list[Callable[[str], object]] = []
        self._handles: list[Any] = []

    def attach(self) -> None:
        """Start marking."""
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
    """The hooks before and after a forward; empty while a compiler traces them."""
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
    """The texts of modules by id, and a function to call with an unknown model."""
    texts: dict[int, Text] = {}
    if model is True:
        return texts, partial(_learn, texts, make, {})
    for path, module in model.named_modules():
        texts[id(module)] = make(MODULE_MARK + path)

    def know_compiled(module: Any) -> None:
        text = texts.get(id(_parts(module).get("_orig_mod")))
        if text is not None:
            texts[id(module)] = text

    return texts, know_compiled


def _learn(
    texts: dict[int, Text], make: Callable[[str], Text], alive: dict[int, Any], model: Any
) -> None:
    name = type(model).__name__
    for path, module in _paths("", model, set()):
        key = id(module)

        def forget(_: object, key: int = key) -> None:
            texts.pop(key, None)
            alive.pop(key, None)

        alive[key] = weakref.ref(module, forget)
        texts[key] = make(MODULE_MARK + (f"{name}.{path}" if path else name))


def _paths(path: str, module: Any, visited: set[int]) -> Iterator[tuple[str, Any]]:
    """As `named_modules()`, without running code of the program."""
    if id(module) in visited:
        return
    visited.add(id(module))
    yield path, module
    for name, part in list(_parts(module).items()):
        if part is not None:
            yield from _paths(f"{path}.{name}" if path else name, part, visited)


def _parts(module: Any) -> Mapping[str, Any]:
    parts: Mapping[str, Any] = object.__getattribute__(module, "__dict__").get("_modules", {})
    return parts


def _begin_pass(writer: list[Callable[[str], object]], before: str, _: object) -> None:
    """Restore the text from before a backward pass when it ends."""
    if writer:
        variable: Any = sys.modules["torch.autograd.variable"]
        variable.Variable._execution_engine.queue_callback(partial(writer[0], before))


# ---- Module calls ------------------------------------------------------------------------

# Meanwhile `Module.__call__` is a wrapper that notes the running module
# (csrc/torch/nt_torch_calls.cpp). In a backward pass an event's module is found by the number of
# the running autograd node.

_lock = threading.Lock()


class ModuleCalls:
    """One recording's marks by the compiled hooks; on CUDA they need an initialised device.

    Example:
        >>> import torch
        >>> from neutracer.hooks.shim import why_none
        >>> if not why_none() and (load().backend == "cpu" or torch.cuda.is_initialized()):
        ...     model = torch.nn.Sequential(torch.nn.Linear(2, 2))
        ...     calls = ModuleCalls(load(), model)
        ...     calls.attach()
        ...     result = model(torch.ones(1, 2))
        ...     calls.detach()
    """

    def __init__(self, hooks: Any, model: Any) -> None:
        """`hooks` is the compiled module; `model` as in `texts_of`."""
        self._hooks = hooks
        self._model = model
        self._calls: Any = None
        self._original: Any = None
        self._marking: Any = None

    def attach(self) -> None:
        """Start marking."""
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
            # Under a later wrapper it stays, and marks nothing.
            if kind.__call__ is self._marking:
                kind.__call__ = self._original


Marks = ModuleMarks | ModuleCalls


def marks_by(hooks: Any, model: Any) -> Marks:
    """Start marking a model's allocations for neutracer's compiled hooks."""
    torch: Any = sys.modules["torch"]
    if hooks.backend == "cuda":
        check_modules(torch, model)
        return marks_of(torch, model)
    return _begun(hooks, model) or _begun_by_hooks(model, hooks.set_text, hooks.get_text)


def marks_of(torch: Any, model: Any) -> Marks:
    """Start marking a model's CUDA allocations, by neutracer's compiled hooks if available."""
    try:
        hooks = load(compile=False)
        hooks = hooks if hooks.backend == "cuda" else None
    except UnavailableError:
        hooks = None
    read = getattr(torch._C, "_cuda_getMemoryMetadata", str)
    return _begun(hooks, model) or _begun_by_hooks(model, torch._C._cuda_setMemoryMetadata, read)


def _begun(hooks: Any, model: Any) -> ModuleCalls | None:
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
    """The wrapper of `Module.__call__`; a tracing compiler sees the original.

    Its code object has the original's name, file and last line, so that stacks are equal with and
    without marks.
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
    return max(line for _, _, line in code.co_lines() if line is not None)
