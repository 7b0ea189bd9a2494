# SPDX-License-Identifier: Apache-2.0
"""Ranks that tell how they are while the job runs, through the store that is there."""

from __future__ import annotations

import atexit
import logging
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from neutracer.arguments import number, path_name
from neutracer.diagnose.leaks.trend import leak_trend
from neutracer.diagnose.ranks.report import RanksReport
from neutracer.diagnose.ranks.stored import running_ranks
from neutracer.errors import NeutracerError, UnavailableError
from neutracer.pickling import StaysHere
from neutracer.process.hooks.observer import listen
from neutracer.process.monitor.memory_monitor import MemoryMonitor
from neutracer.process.ranks.answering import answer_debug_server
from neutracer.process.ranks.digest import RankDigest
from neutracer.process.ranks.reading import Reading
from neutracer.process.ranks.teller import Teller
from neutracer.process.recording.on_demand import OnDemand

__all__ = ["DEFAULT_DIRECTORY", "RanksWatch", "current_watch", "watch_ranks"]

_LOGGER = logging.getLogger("neutracer")

DEFAULT_DIRECTORY = "neutracer-ranks"

# Seconds between two digests: some milliseconds of one thread for each.
_INTERVAL_S = 10.0


def watch_ranks(
    interval: float = _INTERVAL_S,
    *,
    directory: str | os.PathLike[str] = DEFAULT_DIRECTORY,
    signals: bool = True,
) -> RanksWatch:
    """Tell the job's store how this rank is, at its own pace; call it in each rank.

    A digest of some kilobytes goes to the TCPStore under the process group, over a connection
    of its own: figures, what grows, where the main thread stands. No collective is called, and
    no rank waits for another. Who reads it (`watch.report()` in any rank, or `neutracer ranks
    --store HOST:PORT` anywhere) learns who is odd now, who nears the limit, whom the others
    wait for, and the last digest of a rank that died.

    When memory runs out on one rank, it says so at once, and each other rank writes its layout
    into the directory. So it does at SIGTERM, by which a launcher ends the ranks that are left,
    before the signal does what it would have done, within two seconds.

    Args:
        interval: Seconds between two digests.
        directory: Where layouts go; it is made when the first is written.
        signals: Whether SIGTERM is put off for that. A handler that the program sets takes its
            place.

    Returns:
        The watch, which is on: `remove()` ends it, and so does leaving it as a context manager.
        Before there is a process group it waits for one. A second call returns the first watch.

    Raises:
        UnavailableError: torch is not imported, or can't communicate.
        ValueError: `interval` is below 0.1 seconds.
        TypeError: An argument is of another kind.

    Example:
        >>> import neutracer
        >>> watch = neutracer.watch_ranks()     # doctest: +SKIP
        >>> print(watch.report())               # doctest: +SKIP
    """
    folder = path_name(directory, "directory")
    if not 0.1 <= number("interval", interval, "a number of seconds") < 1e6:
        raise ValueError(f"interval is {interval}: it must be 0.1 seconds or more")
    torch = sys.modules.get("torch")
    if torch is None:
        raise UnavailableError("torch in this process", "import torch first")
    if not torch.distributed.is_available():
        raise UnavailableError("torch.distributed", "this torch is built without it")
    current = current_watch()
    return RanksWatch(folder, float(interval), signals).start() if current is None else current


class RanksWatch(StaysHere, instead="it watches this process: send its report()"):
    """The handle of a watch for ranks."""

    def __init__(
        self,
        directory: str,
        interval_s: float = _INTERVAL_S,
        signals: bool = False,
        early: bool = True,
    ) -> None:
        """Made by `watch_ranks`; not by users. `early`: as for `Teller`."""
        self._reading = Reading(_trend)
        self._teller = Teller(self._reading, directory, interval_s, early)
        self._signals = signals
        self._early = early
        #: Why PyTorch's debug server has no page of this; "" where it can have one.
        self.no_debug_page = ""
        self._process = 0
        self._ends: list[Callable[[], object]] = []

    @property
    def active(self) -> bool:
        """Whether it is on; in the child of a fork it is not."""
        return bool(self._ends) and self._process == os.getpid()

    @property
    def why(self) -> str:
        """Why nothing is told at the moment; "" where it is."""
        return self._teller.why

    @property
    def address(self) -> tuple[str, int] | None:
        """Host and port of the store, once there is one."""
        return self._teller.address

    @property
    def written(self) -> int:
        """How many digests were told."""
        return self._teller.written

    @property
    def files(self) -> tuple[str, ...]:
        """The layouts that were written."""
        return tuple(self._teller.files)

    def start(self) -> RanksWatch:
        """Begin; a second time does nothing. Returns the watch."""
        if self.active:
            return self
        self._process = os.getpid()
        # The blocks of a CPU are followed on the thread that begins it: the program's here.
        if self._early or _is_for_cpu():
            self._reading.start()
        self._ends.append(self._reading.stop)
        self.no_debug_page = answer_debug_server(self.digest)
        self._ends.append(lambda: answer_debug_server(None))
        try:
            self._ends.append(listen(self._teller.ran_out))
        except UnavailableError:
            _LOGGER.debug("this torch has no CUDA: it reports no out-of-memory errors")
        self._teller.start()
        self._ends.append(self._teller.stop)
        if self._signals:
            beside = OnDemand(
                _nothing, every_s=None, signum=None, last_signum=signal.SIGTERM, last=self.end_soon
            )
            beside.start()
            self._ends.append(beside.stop)
        atexit.register(self.remove)
        _set_current(self)
        return self

    def tell(self) -> bool:
        """Tell a digest now; whether that was done."""
        return self.active and self._teller.tell("interval")

    def digest(self) -> RankDigest:
        """This rank now, as it would be told."""
        return self._reading.digest("interval", 0.0)

    def report(self) -> RanksReport:
        """What all ranks have told.

        Raises:
            UnavailableError: There is no process group yet, or its store does not answer.
            ValueError: No rank has told anything.
        """
        address = self.address
        if address is None:
            raise UnavailableError(
                "the store of this job", f"nothing has been reported so far ({self.why})"
            )
        return running_ranks(*address)

    def end_soon(self) -> None:
        """Tell and write the last, before a signal ends this process."""
        self._teller.last()

    def tell_last(self, meanwhile: Callable[[], bool]) -> None:
        """Tell the last while somebody else writes files; says False where it had nothing."""
        self._teller.last(meanwhile)

    def remove(self) -> None:
        """End it with a last digest; a second time does nothing."""
        ends, self._ends = self._ends, []
        if self._process == os.getpid():
            atexit.unregister(self.remove)
            for end in reversed(ends):
                end()
        if _current is self:
            _set_current(None)

    def __enter__(self) -> RanksWatch:
        return self.start()

    def __exit__(self, *exception: object) -> None:
        self.remove()

    def __repr__(self) -> str:
        state = "on" if self.active else "removed"
        return f"<RanksWatch: {state}, {self.why or f'{self.written} digests written'}>"


_current: RanksWatch | None = None


def _set_current(watch: RanksWatch | None) -> None:
    global _current
    _current = watch


def current_watch() -> RanksWatch | None:
    """The watch that is on in this process, or None."""
    return _current if _current is not None and _current.active else None


def _nothing(reason: str) -> None:
    return None


def _is_for_cpu() -> bool:
    """Whether torch is imported and built for no accelerator."""
    version = getattr(sys.modules.get("torch"), "version", None)
    return version is not None and version.cuda is None and getattr(version, "hip", None) is None


def _trend(monitor: MemoryMonitor, device: int, steps: int) -> dict[str, Any]:
    """What `leak_trend` says of what a monitor has seen."""
    try:
        trend = leak_trend(monitor, device=device, live=False)
    except (NeutracerError, ValueError):
        return {}
    seen = trend.steps + trend.warmup_steps
    # A mark stands for several steps where these are short.
    each = max(steps / seen, 1.0) if trend.unit == "step" and seen and steps else 1.0
    grows = trend.verdict not in ("steady", "unknown")
    left = None if trend.oom_step is None else max(trend.oom_step - (seen - 1), 0)
    return {
        "verdict": trend.verdict,
        "bytes_per_step": round(trend.bytes_per_step / each) if grows else 0,
        "steps_to_oom": None if left is None else round(left * each),
        "grows": str(trend.growth[0].place) if trend.growth else "",
    }
