# SPDX-License-Identifier: Apache-2.0
"""Whose a file is: the program's own, a library's, PyTorch's or Python's.

Decided by the path alone, so that a file from another machine is judged as well: nothing is
looked up on a disk, and both kinds of slashes are read.
"""

from __future__ import annotations

import enum
import re
import sys
from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

__all__ = ["ORIGIN_RULES", "Origin", "Owner", "base_name", "origin_of"]


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
