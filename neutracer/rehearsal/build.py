# SPDX-License-Identifier: Apache-2.0
"""The compiled part of a rehearsal: a CUDA device that is not there, for the installed torch."""

from __future__ import annotations

import ctypes
import hashlib
import re
import sys
from pathlib import Path
from typing import Any

from neutracer.errors import UnavailableError
from neutracer.process.hooks import build as hooks
from neutracer.process.hooks.compiling import alone, compile_into
from neutracer.process.hooks.folder import prepare, unsafe

__all__ = ["load"]

#: The releases of torch whose interface to CUDA is the one that the source was written for.
_RUN_ON = ((2, 11), (2, 12), (2, 13), (2, 14), (2, 15))
_WHAT = "rehearsals"
_COMPILING = "neutracer: compiling a pretended CUDA device for torch {} (once)"

_loaded: list[Any] = []


def _source() -> Path:
    return hooks.source_folder() / "rehearsal" / "nt_pretend_cuda.cpp"


def _target() -> hooks.Target:
    torch = hooks.installed_torch()
    if sys.platform != "linux":
        raise UnavailableError(_WHAT, "they are for Linux")
    if torch.backend not in ("cpu", "cuda") or torch.release not in _RUN_ON:
        known = ", ".join(f"{major}.{minor}" for major, minor in _RUN_ON)
        kind = f"{torch.version} for {torch.backend}"
        raise UnavailableError(
            _WHAT, f"they are for torch {known}, for CUDA or CPU; this is {kind}"
        )
    digest = hashlib.sha256(repr((torch.backend, torch.built)).encode())
    digest.update(_source().read_bytes())
    key = re.sub(r"[^\w.+-]", "_", f"pretend-torch{torch.version}-{digest.hexdigest()[:16]}")
    return hooks.Target(torch, key, "libnt_pretend.so")


def _command(goal: hooks.Target, output: Path) -> list[str]:
    headers, libraries = goal.torch.folder / "include", goal.torch.folder / "lib"
    words = [hooks.compiler(), *hooks.flags(goal.torch), "-isystem", str(headers)]
    return [*words, str(_source()), f"-L{libraries}", "-lc10", "-ltorch_cpu", "-o", str(output)]


def load() -> Any:
    """The library, compiled at the first use on this machine (some seconds).

    Raises:
        UnavailableError: This torch is not one that it is known to fit, or it can't be
            compiled here; the reason says which.
    """
    if _loaded:
        return _loaded[0]
    goal = _target()
    place = prepare(None, goal.key)
    path = place.path / goal.file
    try:
        with alone(place.path):
            if not place.trusted or not path.is_file() or unsafe(path):
                print(_COMPILING.format(goal.torch.version), file=sys.stderr, flush=True)
                compile_into(path, place.mode, lambda made: _command(goal, made))
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise UnavailableError(_WHAT, str(error)) from error
    library.nt_pretend_install.argtypes = [ctypes.c_int, ctypes.c_long]
    library.nt_pretend_install.restype = ctypes.c_int
    library.nt_pretend_remove.argtypes = []
    library.nt_pretend_remove.restype = None
    _loaded.append(library)
    return library
