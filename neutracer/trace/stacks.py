# SPDX-License-Identifier: Apache-2.0
"""Frames and stacks, and the place in the user's code that represents a stack."""

from __future__ import annotations

import enum
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple, overload

from neutracer._native import core
from neutracer.render.document import Figure, Place, Table
from neutracer.units import format_count

# ---- Stacks ------------------------------------------------------------------------------

# The id of "no string" and "no stack" in the core.
NONE = 0xFFFFFFFF

#: What `record(modules=model)` writes before the path of a module into user_metadata.
MODULE_MARK = "nn.Module: "

_FX_KEYS = ("fx_node_op", "fx_node_name", "fx_node_target", "fx_original_trace")


class Frame(NamedTuple):
    """One frame of a stack, as PyTorch gives it.

    Attributes:
        filename: The file's name.
        line: The line, from 1; 0 where it is unknown.
        name: The function's name.
    """

    filename: str
    line: int
    name: str

    def to_dict(self) -> dict[str, str | int]:
        """The frame as a dict with PyTorch's own keys."""
        return self._asdict()


class GeneratedFrame(Frame):
    """A frame of code that torch.fx generated, with what PyTorch knows of its line
    (`_dump_snapshot(augment_with_fx_traces=True)`, torch 2.10).

    Attributes:
        fx_node_op: What the node does: "call_function", "output".
        fx_node_name: The node's name: "linear_1".
        fx_node_target: What it calls.
        fx_original_trace: The model's own stack, as Python's traceback module writes it.
    """

    fx_node_op: str | None = None
    fx_node_name: str | None = None
    fx_node_target: str | None = None
    fx_original_trace: str | None = None

    def to_dict(self) -> dict[str, str | int]:
        """The frame as a dict with PyTorch's own keys."""
        return {**super().to_dict(), **vars(self)}

    @property
    def model(self) -> tuple[Frame, ...]:
        """The model's own frames that the line was generated from, innermost first."""
        return forward_stack(self.fx_original_trace or "")


def _frames(snapshot: core.Snapshot, strings: Sequence[str]) -> list[Frame]:
    """The frames of a snapshot by their ids."""
    nodes = snapshot.fx()
    found = []
    for name, filename, line, fx in snapshot.frames():
        frame = Frame(strings[filename], line, strings[name])
        if fx:
            frame = GeneratedFrame(*frame)
            texts = zip(_FX_KEYS, nodes[fx - 1], strict=True)
            vars(frame).update({key: strings[text] for key, text in texts if text != NONE})
        found.append(frame)
    return found


class Stacks:
    """The stacks of one snapshot: spelt out when needed, and then kept."""

    def __init__(self, snapshot: core.Snapshot, strings: Sequence[str]) -> None:
        self._frames = _frames(snapshot, strings)
        innermost, parent = snapshot.stacks()
        self._innermost = memoryview(innermost)
        self._parent = memoryview(parent)
        self._known: dict[int, tuple[Frame, ...]] = {NONE: ()}

    def __getitem__(self, stack: int) -> tuple[Frame, ...]:
        """The frames of a stack id, innermost first; empty where none were recorded."""
        known = self._known.get(stack)
        if known is None:
            frames = []
            at = stack
            while at:
                frames.append(self._frames[self._innermost[at]])
                at = self._parent[at]
            known = self._known[stack] = tuple(frames)
        return known

    @property
    def frames(self) -> Sequence[Frame]:
        """All frames, by frame id."""
        return self._frames

    def frame(self, frame: int) -> Frame:
        """The frame of a frame id."""
        return self._frames[frame]

    def innermost(self, stack: int) -> Frame:
        """The innermost frame of a stack id that has one."""
        return self._frames[self._innermost[stack]]

    def caller(self, stack: int) -> int:
        """The stack id without its innermost frame; 0 is the empty one."""
        return self._parent[stack]

    def __len__(self) -> int:
        return len(self._parent)


class ForwardTexts(Sequence[str]):
    """The `forward_frames` of backward allocations by the id that the core gives them: the
    stack of the forward operation, as Python's traceback module writes it."""

    def __init__(self, stacks: Stacks) -> None:
        self._stacks = stacks

    @overload
    def __getitem__(self, stack: int) -> str: ...
    @overload
    def __getitem__(self, stack: slice) -> Sequence[str]: ...
    def __getitem__(self, stack: int | slice) -> str | Sequence[str]:
        if isinstance(stack, slice):
            return [self[at] for at in range(*stack.indices(len(self)))]
        if not 0 <= stack < len(self):
            raise IndexError(f"no stack {stack}")
        return "".join(frame.name for frame in self._stacks[stack])

    def __len__(self) -> int:
        return len(self._stacks)


# A frame as Python's traceback module writes it.
_TRACEBACK_LINE = re.compile(r'File "([^"\n]+)", line (\d+)(?:, in ([^\n]+))?')


def forward_stack(text: str) -> tuple[Frame, ...]:
    """The frames of a stack that Python's traceback module wrote, innermost first.

    Example:
        >>> forward_stack('  File "model.py", line 12, in forward\\n    return self.fc(x)\\n')
        (Frame(filename='model.py', line=12, name='forward'),)
    """
    found = _TRACEBACK_LINE.findall(text)
    return tuple(Frame(file, int(line[:18]), name) for file, line, name in reversed(found))


# ---- Origins -----------------------------------------------------------------------------

# Decided by the path alone, with either kind of slash: files of another machine are classified
# too, and no disk is read.


class Owner(enum.Enum):
    """Whose code a file holds."""

    OWN = "own"  # the program's; what is installed in editable mode too
    LIBRARY = "library"  # of an installed package
    TORCH = "torch"  # PyTorch's, and what it generates
    PLUMBING = "plumbing"  # Python's own, scripts that start programs, mere wrappers
    NATIVE = "native"  # C, C++ and CUDA


class Origin(NamedTuple):
    """Whose a file is, and of which package; `package` is empty but for libraries."""

    owner: Owner
    package: str = ""


_OWN, _TORCH = Origin(Owner.OWN), Origin(Owner.TORCH)
_PLUMBING, _NATIVE = Origin(Owner.PLUMBING), Origin(Owner.NATIVE)

_NATIVE_ENDINGS = (".cpp", ".cc", ".cxx", ".h", ".hpp", ".cu", ".cuh", ".c", ".S", ".so", ".inl")

# Where installers put packages. In a wheel that a zipped application brings along, its name
# is a folder.
_INSTALLED = re.compile(
    r"/(?:site-packages|dist-packages|[^/]+\.whl)/(?:[^/]+\.egg/)?([^/]+)", re.IGNORECASE
)

# A path in PyTorch's own tree, wherever that lies: folders and files that it has at its top.
_TORCH_TREE = re.compile(
    r"/torch/(?:_[a-z_]+/|_[a-z_]+\.py|(?:accelerator|amp|ao|autograd|backends|contrib|cpu|csrc|cuda"
    r"|distributed|distributions|export|fft|func|futures|fx|jit|lib|linalg|masked|monitor|mps|mtia"
    r"|multiprocessing|nested|nn|numa|nativert|onnx|optim|package|profiler|quantization|signal"
    r"|sparse|special|testing|utils|xpu)/|(?:__init__|functional|hub|library|overrides|quasirandom"
    r"|random|return_types|serialization|storage|torch_version|types)\.py)"
)

# Packages of the same rank as PyTorch: an operation's own files, or a device's.
_OF_TORCH = frozenset(("torch", "functorch", "triton", "torch_npu", "torch_xla", "torchgen"))

# Code that PyTorch writes when it compiles: Inductor's, and that of graphs.
_GENERATED = re.compile(r"/torchinductor_[^/]*/|/torch_compile_debug/|^/<eval_with_key>")

# Functions that only wrap the operations of others: a stack's place is further in or out.
_WRAPPERS = ("accelerate/hooks.py", "accelerate/utils/operations.py", "accelerate/utils/memory.py")

# Python's library: below lib/python3.x, in a zip file, below Lib on Windows, in its tree.
_STANDARD = re.compile(
    r"/(?:lib(?:64)?|Frameworks/[^ ]*/lib)/(?:python|pypy)\d[^/]*/|/python\d+\.zip/"
)
_WINDOWS_LIB = re.compile(r"/Lib/([^/]+?)(?:\.pyw?$|/)")
_MODULES = frozenset(sys.stdlib_module_names) - {"test"}

# Names in brackets that stand for a cell or a line somebody typed, and for what was given
# to `python -c`. Others are Python's or a library's own: <frozen runpy>, <decorator-gen-3>.
_TYPED = re.compile(
    r"^/<(?:ipython-input|stdin|string|console|input|cell|unknown|doctest|torch_package)"
)

#: These rules by name, for the page, which judges files in JavaScript (`origins.js`).
ORIGIN_RULES: Mapping[str, object] = {
    "native_endings": _NATIVE_ENDINGS,
    "installed": _INSTALLED,
    "torch_tree": _TORCH_TREE,
    "of_torch": _OF_TORCH,
    "generated": _GENERATED,
    "wrappers": _WRAPPERS,
    "standard": _STANDARD,
    "windows_lib": _WINDOWS_LIB,
    "modules": _MODULES,
    "typed": _TYPED,
}


def base_name(filename: str) -> str:
    """A file's name without its folders."""
    return filename.replace("\\", "/").rsplit("/", 1)[-1]


@lru_cache(maxsize=1 << 14)
def origin_of(filename: str) -> Origin:
    """Whose a file is.

    Args:
        filename: The name as a frame has it, with either kind of slash.

    Example:
        >>> origin_of("/opt/conda/lib/python3.11/site-packages/transformers/trainer.py").package
        'transformers'
        >>> origin_of("C:\\\\Python312\\\\Lib\\\\contextlib.py").owner.name
        'PLUMBING'
        >>> origin_of("/srv/jobs/train.py").owner.name
        'OWN'
    """
    path = "/" + filename.replace("\\", "/").lstrip("/")
    if path.endswith(_NATIVE_ENDINGS) or path in ("/", "/??"):
        return _NATIVE
    if path.startswith("/<") and not _GENERATED.search(path):
        return _OWN if _TYPED.match(path) else _PLUMBING
    found = list(_INSTALLED.finditer(path))
    if found:
        return _installed(path, found[-1])
    if _GENERATED.search(path) or _TORCH_TREE.search(path):
        return _TORCH
    return _PLUMBING if _is_pythons(path) else _OWN


def _installed(path: str, found: re.Match[str]) -> Origin:
    package = found.group(1).removesuffix(".py")
    if package in _OF_TORCH:
        return _TORCH
    if package == "neutracer" or path.endswith(_WRAPPERS):
        return _PLUMBING
    return Origin(Owner.LIBRARY, "" if found.end() == len(path) else package)


def _is_pythons(path: str) -> bool:
    """Whether a path is of Python's library, or of a script that starts a program."""
    if _STANDARD.search(path):
        return True
    windows = _WINDOWS_LIB.search(path)
    if windows is not None and windows.group(1) in _MODULES:
        return True
    folder, _, name = path.rpartition("/")
    return "." not in name.removesuffix(".exe") and folder.endswith(("/bin", "/Scripts"))


# ---- Places ------------------------------------------------------------------------------

# A stack's place is the innermost frame of the program's own code, with the innermost frame of
# the library called from there: `transformers activations.py:66, from train.py:42`. Frames of
# PyTorch, Python and wrappers count only if there are no others.

UNKNOWN_PLACE = Place("(no Python stack)", "")

# Frames of the recording itself and of the allocator: they are in every C++ stack.
_PLUMBING_FILES = (
    "torch::unwind",
    "torch::CapturedTraceback",
    "torch::cuda::",
    "torch::autograd::Engine::thread",
    "torch::autograd::python::PythonEngine",
    "c10::",
    "at::detail::",
    "at::empty",
    "at::native::empty",
    "at::(anonymous namespace)::create_out",
    "at::(anonymous namespace)::wrapper_CUDA__empty",
    "at::_ops::empty",
    "std::",
    "_Py",
    "Py",
    "__libc_",
    "_start",
    "clone",
    "start_thread",
    "execute_native_thread_routine",
)

_HELPER = re.compile(r"::(?:structured_\w+::)?set_output_|::create_out\b|::resize_\w*\b|\bmalloc\b")

# A node of the backward pass, by its C++ function: what a thread without Python frames does.
_NODE = re.compile(r"^(?:[a-z_]+::)+(\w*Backward\w*|AccumulateGrad|CopySlices)::apply\b")

#: These rules by name, for the page (`origins.js`).
PLACE_RULES: Mapping[str, object] = {"plumbing": _PLUMBING_FILES, "helper": _HELPER, "node": _NODE}


class _Seen(NamedTuple):
    """What the frames of a stack amount to, from the outermost up to one of them."""

    own: Frame | None = None
    library: Frame | None = None
    package: str = ""
    torch: Frame | None = None
    native: Frame | None = None
    node: Frame | None = None


_NOTHING = _Seen()


def _of_model(seen: _Seen, frame: GeneratedFrame) -> _Seen:
    """What generated code stands for: the line of the model, with the node's name."""
    for line in reversed(frame.model):
        seen = _further_in(seen, line, origin_of(line.filename))
    if seen.own is None or not frame.fx_node_name:
        return seen
    return seen._replace(own=seen.own._replace(name=f"{frame.fx_node_name} in {seen.own.name}"))


def _further_in(seen: _Seen, frame: Frame, origin: Origin) -> _Seen:
    """What is known one call further in."""
    if isinstance(frame, GeneratedFrame) and frame.model:
        return _of_model(seen, frame)
    owner = origin.owner if frame.line > 0 or frame.filename else Owner.NATIVE
    if owner is Owner.NATIVE or frame.line <= 0:
        node = _NODE.match(frame.name)
        if node is not None:
            return seen._replace(node=frame._replace(name=node.group(1)))
        return seen if _is_helper(frame.name) else seen._replace(native=frame)
    if owner is Owner.OWN:
        # What the program's own code calls says more than what called it.
        return _Seen(own=frame)
    if owner is Owner.LIBRARY:
        return seen._replace(library=frame, package=origin.package)
    return seen._replace(torch=frame) if owner is Owner.TORCH else seen


def _is_helper(name: str) -> bool:
    """Whether a C++ function only makes memory for another."""
    return name.startswith(_PLUMBING_FILES) or _HELPER.search(name) is not None


def _short(name: str) -> str:
    """A C++ function without its parameters."""
    plain = name.replace("(anonymous namespace)::", "")
    return plain.partition("(")[0] or name


def _place(seen: _Seen) -> Place:
    """The place of a whole stack."""
    own, library = seen.own, seen.library
    if library is not None:
        called = "" if own is None else f"{base_name(own.filename)}:{own.line}"
        name = base_name(library.filename)
        return Place(library.name, name, library.line, seen.package, called)
    frame = own or seen.node or seen.native or seen.torch
    if frame is None:
        return UNKNOWN_PLACE
    name = frame.name if frame is own else _short(frame.name)
    return Place(name, base_name(frame.filename), frame.line)


def _seen(stack: Sequence[Frame]) -> _Seen:
    seen = _NOTHING
    for frame in reversed(stack):
        seen = _further_in(seen, frame, origin_of(frame.filename))
    return seen


def place_of(stack: Sequence[Frame]) -> Place:
    """The place that represents a stack.

    Args:
        stack: Frames, innermost first.

    Example:
        >>> print(place_of((
        ...     Frame("/env/site-packages/torch/nn/functional.py", 9, "gelu"),
        ...     Frame("/env/site-packages/transformers/activations.py", 66, "forward"),
        ...     Frame("/srv/jobs/train.py", 42, "main"),
        ... )))
        forward (transformers activations.py:66, from train.py:42)
    """
    return _place(_seen(stack))


def user_frame(stack: Sequence[Frame]) -> Frame | None:
    """The innermost frame of the program's own code, or else of what stands for the stack.

    Args:
        stack: Frames, innermost first.

    Returns:
        The frame, or None for a stack without frames.
    """
    seen = _seen(stack)
    return seen.own or seen.library or seen.node or seen.native or seen.torch


def callers_of(stack: Sequence[Frame], limit: int = 2) -> tuple[Place, ...]:
    """The lines of the program's own code that called the one that represents a stack.

    Args:
        stack: Frames, innermost first.
        limit: How many, innermost first.
    """
    own = [frame for frame in stack if _is_own(frame)]
    first = 0 if _seen(stack).library is not None else 1
    return tuple(
        Place(frame.name, base_name(frame.filename), frame.line)
        for frame in own[first : first + limit]
    )


def _is_own(frame: Frame) -> bool:
    return frame.line > 0 and origin_of(frame.filename).owner is Owner.OWN


class Places:
    """The places of one snapshot's stacks; what stacks have in common is read once."""

    def __init__(self, stacks: Stacks) -> None:
        self._stacks = stacks
        self._seen: dict[int, _Seen] = {0: _NOTHING}
        self._places: dict[int, Place] = {NONE: UNKNOWN_PLACE}

    def __getitem__(self, stack: int) -> Place:
        """The place of a stack id."""
        known = self._places.get(stack)
        if known is None:
            known = self._places[stack] = _place(self._of(stack))
        return known

    def _of(self, stack: int) -> _Seen:
        path = []
        at = stack
        while at not in self._seen:
            path.append(at)
            at = self._stacks.caller(at)
        seen = self._seen[at]
        for node in reversed(path):
            frame = self._stacks.innermost(node)
            seen = self._seen[node] = _further_in(seen, frame, origin_of(frame.filename))
        return seen


def grouped(items: Iterable[tuple[Sequence[Frame], int, int]]) -> list[tuple[Place, int, int]]:
    """Bytes and counts grouped by place, the most bytes first.

    Args:
        items: Tuples of a stack, bytes and a count.

    Returns:
        Tuples of a place, bytes and a count.
    """
    sums: dict[Place, tuple[int, int]] = {}
    for stack, nbytes, count in items:
        place = place_of(stack)
        held, counted = sums.get(place, (0, 0))
        sums[place] = (held + nbytes, counted + count)
    ranked = [(place, held, counted) for place, (held, counted) in sums.items()]
    return sorted(ranked, key=lambda item: -item[1])


# ---- By module ---------------------------------------------------------------------------

# Modules on the page; all of them are in the JSON.
_SHOWN = 6


def module_tables(title: str, held: Mapping[str, int]) -> tuple[Table, ...]:
    """A table of the modules that hold the most; none where no module is known.

    Args:
        title: What the table shows.
        held: Allocated bytes by module, the most first.

    Example:
        >>> [table] = module_tables("By module", {"layers.0": 3 << 20, "(no module)": 1 << 20})
        >>> [row[-1] for row in table.rows]
        ['layers.0', '(no module)']
    """
    total = sum(held.values())
    if not total:
        return ()
    rows = tuple(
        (Figure.share(nbytes / total), Figure.bytes(nbytes), name)
        for name, nbytes in list(held.items())[:_SHOWN]
    )
    left = len(held) - len(rows)
    notes = (f"and {format_count(left, 'more module')}",) if left else ()
    return (Table(title, rows, notes=notes),)
