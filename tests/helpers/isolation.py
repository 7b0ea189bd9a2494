# SPDX-License-Identifier: Apache-2.0
"""What belongs to the whole process, so that a test has to leave it as it found it.

Filters of warnings are not here: pytest restores them itself.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

#: The list that the collector goes through, whatever `gc.callbacks` is made to name.
_CALLBACKS = gc.callbacks

#: Those that no library keeps for itself; torch's data loader does so with SIGCHLD.
_SIGNALS = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGALRM,
)

#: Variables that pytest, matplotlib and torch set for themselves.
_OTHERS = {
    # polars sets it when it is imported, for its own allocator.
    "_RJEM_MALLOC_CONF",
    "CUBLAS_WORKSPACE_CONFIG",
    "CUDA_MODULE_LOADING",
    "DISABLE_CUPTI_LAZY_REINIT",
    "MPLCONFIGDIR",
    "PYTEST_CURRENT_TEST",
    "TEARDOWN_CUPTI",
    "TORCHINDUCTOR_CACHE_DIR",
    "TRITON_CACHE_DIR",
}


class Part(NamedTuple):
    """One part of the process's state.

    Attributes:
        name: What a failure calls it.
        read: Gives it as a value that later changes leave alone.
        write: Sets it to what `read` gave.
    """

    name: str
    read: Callable[[], Any]
    write: Callable[[Any], object]


def _attribute(owner: Any, name: str) -> Part:
    def write(value: Any) -> None:
        setattr(owner, name, value)

    return Part(f"{owner.__name__}.{name}", lambda: getattr(owner, name), write)


def _signal(number: signal.Signals) -> Part:
    def write(handler: Any) -> None:
        # None stands for one that was not set from Python, and can't be set so.
        if handler is not None:
            signal.signal(number, handler)

    return Part(f"handler of {number.name}", lambda: signal.getsignal(number), write)


def _set_callbacks(callbacks: tuple[Any, ...]) -> None:
    _CALLBACKS[:] = callbacks
    gc.callbacks = _CALLBACKS


#: Whether a test has called `gc.freeze`. To ask the collector costs more than most tests: it counts
#: what is set aside one by one.
_frozen = False


def set_aside(freeze: Callable[[], None] = gc.freeze) -> None:
    """Have collections pass over all that there is now, for as long as this process lives.

    They take time in proportion to what they pass through, and the tests themselves are half a
    million objects.
    """
    gc.collect()
    freeze()


def _freeze(freeze: Callable[[], None] = gc.freeze) -> None:
    global _frozen
    _frozen = True
    freeze()


def _unfreeze(unfreeze: Callable[[], None] = gc.unfreeze) -> None:
    global _frozen
    _frozen = False
    unfreeze()


def _set_frozen(frozen: bool) -> None:
    if not frozen:
        gc.unfreeze()
        set_aside()


gc.freeze, gc.unfreeze = _freeze, _unfreeze


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in _OTHERS}


def _set_environment(wanted: dict[str, str]) -> None:
    for name in _environment().keys() - wanted:
        del os.environ[name]
    os.environ.update(wanted)


def _folder() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:
        return "a folder that is gone"


def _watches() -> int:
    """Cycle watches of neutracer that are on."""
    native = sys.modules.get("neutracer._native")
    return native.core.watch_status()["subscribers"] if native else 0


def _end_watches(wanted: int) -> None:
    # Nothing lists them; they are numbered from 1.
    number = 0
    while wanted == 0 and _watches():
        number += 1
        sys.modules["neutracer._native"].core.unwatch_cycles(number)


PARTS = (
    Part("cycle watches", _watches, _end_watches),
    Part("gc.callbacks", lambda: tuple(_CALLBACKS), _set_callbacks),
    Part("gc.isenabled()", gc.isenabled, lambda on: gc.enable() if on else gc.disable()),
    Part("gc.get_threshold()", gc.get_threshold, lambda numbers: gc.set_threshold(*numbers)),
    Part("gc.get_debug()", gc.get_debug, gc.set_debug),
    Part("whether gc.freeze() holds something", lambda: _frozen, _set_frozen),
    _attribute(sys, "excepthook"),
    _attribute(sys, "unraisablehook"),
    _attribute(sys, "displayhook"),
    _attribute(threading, "excepthook"),
    Part("sys.gettrace()", sys.gettrace, sys.settrace),
    Part("sys.getprofile()", sys.getprofile, sys.setprofile),
    Part("sys.path", lambda: tuple(sys.path), lambda path: sys.path.__setitem__(slice(None), path)),
    *map(_signal, _SIGNALS),
    Part("os.environ", _environment, _set_environment),
    Part("the working folder", _folder, os.chdir),
)


def state() -> tuple[Any, ...]:
    """Everything that a test has to leave as it is."""
    return tuple(part.read() for part in PARTS)


def restore(before: tuple[Any, ...]) -> list[str]:
    """Set everything to what `state` gave, and say what was another: "sys.path: is, was"."""
    said = []
    for part, was in zip(PARTS, before, strict=True):
        now = part.read()
        if now != was:
            said.append(f"{part.name}: {_difference(now, was)}")
            part.write(was)
    return said


def _difference(now: Any, was: Any) -> str:
    if isinstance(now, dict):
        pairs = dict(now.items() ^ was.items())
        return ", ".join(f"{name}={now.get(name)!r}, was {was.get(name)!r}" for name in pairs)
    return f"{now!r}, was {was!r}"
