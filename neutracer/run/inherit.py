# SPDX-License-Identifier: Apache-2.0
"""Records any process whose environment asks for it, from its first use of CUDA.

`neutracer.pth`, beside the installed package, calls `begin` where Python starts with `NEUTRACER`.
Until the process uses a device, nothing else of neutracer is imported and no file is written.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from neutracer.recording.program import OnDemand
    from neutracer.run.following import Following

#: What `NEUTRACER` may ask for: history and out-of-memory reports, one of the two, or a history
#: for its phases.
WORDS = ("run", "record", "watch", "phases")

#: The variables that ask, that name the folder of the files, and the minutes between reports.
VARIABLE, FOLDER, EVERY = "NEUTRACER", "NEUTRACER_DIR", "NEUTRACER_EVERY"

_DEFAULT_FOLDER = "neutracer-run"


def begin() -> None:
    """Follow this process once it uses CUDA; a no-op unless its environment asks for that."""
    if os.environ.get(VARIABLE) in WORDS:
        from neutracer.recording.imports import when_imported

        when_imported("torch", _wait_for_cuda)


def environment(word: str, directory: str, every: float | None = None) -> Mapping[str, str]:
    """The variables that make child processes follow themselves, as one of `WORDS` says.

    Example:
        >>> environment("run", "/tmp/reports", 10)
        {'NEUTRACER': 'run', 'NEUTRACER_DIR': '/tmp/reports', 'NEUTRACER_EVERY': '10'}
    """
    minutes = {} if every is None else {EVERY: str(every)}
    return {VARIABLE: word, FOLDER: os.path.abspath(directory), **minutes}


def is_installed() -> bool:
    """Whether Python calls `begin` when it starts: `neutracer.pth` is beside the package."""
    return any(os.path.exists(os.path.join(path, "neutracer.pth")) for path in sys.path)


def _wait_for_cuda() -> None:
    """Stand before torch's own initialisation of CUDA, once."""
    cuda: Any = sys.modules["torch"].cuda
    if not hasattr(cuda, "_lazy_init") or cuda.is_initialized():
        return
    initialise = cuda._lazy_init

    def begin_and_initialise() -> object:
        # Other threads wait for torch's own lock, and then find CUDA initialised.
        if cuda._lazy_init is begin_and_initialise:
            cuda._lazy_init = initialise
            _follow()
        return initialise()

    cuda._lazy_init = begin_and_initialise


class _Followed:
    """What follows this process until its end."""

    def __init__(self, following: Following) -> None:
        self.following = following
        self.beside: OnDemand | None = None
        self._process = os.getpid()

    def end(self) -> None:
        """Write the last report, once, unless the process never used CUDA."""
        if self._process == os.getpid():
            self._process = 0
            self.following.end()
            if self.beside is not None:
                self.beside.stop()


def _follow() -> None:
    try:
        _begin(os.environ.get(VARIABLE, ""), os.environ.get(FOLDER) or _DEFAULT_FOLDER)
    except Exception:
        # The program goes on as without neutracer.
        import logging

        logging.getLogger("neutracer").warning("this process is not followed", exc_info=True)


def _begin(word: str, folder: str) -> None:
    import atexit
    import signal

    from neutracer.recording.program import OnDemand
    from neutracer.run.following import Following

    entries = 0 if word == "watch" else None
    following = Following(folder, entries, command=word)
    followed = _Followed(following)
    following.begin(watch=word in ("run", "watch"))
    atexit.register(followed.end)
    util = sys.modules.get("multiprocessing.util")
    if util is not None:
        # A forked worker of multiprocessing leaves without atexit.
        util.Finalize(None, followed.end, exitpriority=-1)
    followed.beside = OnDemand(
        following.write,
        every_s=_seconds_between(os.environ.get(EVERY, "")),
        signum=getattr(signal, "SIGUSR2", None),
        last_signum=getattr(signal, "SIGTERM", None),
        last=following.end_soon,
    )
    followed.beside.start()


def _seconds_between(minutes: str) -> float | None:
    """The time between reports that `NEUTRACER_EVERY` asks for; None without one."""
    if not minutes:
        return None
    import logging
    import math

    try:
        seconds = float(minutes) * 60
    except ValueError:
        seconds = 0.0
    if 0 < seconds < math.inf:
        return seconds
    logging.getLogger("neutracer").warning(
        "%s is %r: it must be a number of minutes above 0; reports are written at the end only",
        EVERY,
        minutes,
    )
    return None
