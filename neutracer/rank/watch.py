# SPDX-License-Identifier: Apache-2.0
"""`watch_ranks`: the job's report collected while it runs."""

from __future__ import annotations

import atexit
import logging
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from neutracer.arguments import number, path_name
from neutracer.errors import NeutracerError, UnavailableError
from neutracer.leak.trend import leak_trend
from neutracer.monitor.memory_monitor import MemoryMonitor
from neutracer.pickling import StaysHere
from neutracer.rank.digest import RankDigest, read_digests
from neutracer.rank.jobs import Odd, jobs_of
from neutracer.rank.report import RanksReport, ranks_report
from neutracer.rank.teller import Reading, Teller, answer_debug_server
from neutracer.recording.long_history import listen
from neutracer.recording.program import OnDemand
from neutracer.units import format_duration_us

# ---- Stored ------------------------------------------------------------------------------

# The ranks of a job that runs, by the digests in its store.

# A rank of which nothing was heard for so many of its intervals is silent.
_SILENT = 3.0

# Ranks that have not moved for so many of their intervals, and this many seconds, stand still.
_STILL = 3.0
_STILL_S = 1.0

# What a rank tells of itself last, whose silence then is no news.
_LAST_WORDS = ("exit", "terminated")


def parsed_address(text: str) -> tuple[str, int]:
    """HOST:PORT.

    Raises:
        ValueError: It is not that.
    """
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise ValueError(f"{text!r} is not the address of a store: write it like 'node7:29500'")
    return host.strip("[]") or "localhost", int(port)


def stored_ranks(address: str) -> RanksReport:
    """What the ranks of a running job have told its store.

    Args:
        address: HOST:PORT of the store: MASTER_ADDR and MASTER_PORT of the job.

    Raises:
        ValueError: It is no address, or no rank has told anything.
        UnavailableError: Nobody answers there.
    """
    return running_ranks(*parsed_address(address))


def running_ranks(host: str, port: int) -> RanksReport:
    """The report on what is in a store.

    Raises:
        ValueError: No rank has told anything.
        UnavailableError: Nobody answers there.
    """
    digests = read_digests(host, port)
    if not digests:
        raise ValueError(
            f"{host}:{port}: no rank has reported there; "
            "call neutracer.watch_ranks() in the program"
        )
    return report_of(digests, time.time())


def report_of(digests: Sequence[RankDigest], now_s: float) -> RanksReport:
    """The report on the digests of a running job, as of a moment of this machine's clock."""
    told = [one.written_s or 0.0 for one in digests]
    # By the ranks' own clocks, of which the newest word shows where they are.
    newest = max(told)
    current = [replace(one, reason=_state(one, newest)) for one in digests]
    jobs = sorted(jobs_of(current), key=lambda job: -job.ended_s)
    running = [one for one in jobs[0].ranks if one.reason == "running"]
    silent = [one for one in jobs[0].ranks if one.reason == "silent"]
    odd = [_silent(one, newest - (one.written_s or 0.0)) for one in silent]
    odd += _standing(running)
    report = ranks_report(jobs, (), odd)
    age = now_s - newest
    interval = max((one.interval_s or 0.0 for one in digests), default=0.0)
    if age <= _SILENT * interval + 1:
        return report
    said = f"the latest report of any rank is {format_duration_us(age * 1e6)} old"
    return replace(report, clocks=f"{report.clocks} {said}".strip())


def _state(one: RankDigest, newest: float) -> str:
    """What a rank does, as a word for its row."""
    if one.reason in _LAST_WORDS:
        return one.reason
    age = newest - (one.written_s or 0.0)
    return "silent" if age > _SILENT * (one.interval_s or 0.0) + 1 else "running"


def _silent(one: RankDigest, age_s: float) -> Odd:
    at = f"; it was at {one.where} then" if one.where else ""
    why = f"it has not reported for {format_duration_us(age_s * 1e6)}{at}"
    return Odd(one.rank, 0, why, "silent", one.where)


def _standing(running: Sequence[RankDigest]) -> list[Odd]:
    """Ranks that others wait for: all stand still, and these at another line."""
    still = [
        one
        for one in running
        if one.where and one.where_s >= max(_STILL * (one.interval_s or 0.0), _STILL_S)
    ]
    if len(still) < 2 or len(still) < len(running):
        return []
    waiting = [one for one in still if one.waits]
    late = [one for one in still if not one.waits]
    if not waiting or not late or len(late) >= len(still) - len(late) + 1:
        waiting, late = _by_line(still)
    if not late:
        return []
    where = Counter(one.where for one in waiting).most_common(1)[0][0]
    return [
        Odd(
            one.rank,
            0,
            f"it has been at {one.where} for {format_duration_us(one.where_s * 1e6)}, in step "
            f"{one.steps:,}, while the others wait at {where}",
            "waits_elsewhere",
            one.where,
            "",
            one.steps,
        )
        for one in late
    ]


def _by_line(still: Sequence[RankDigest]) -> tuple[list[RankDigest], list[RankDigest]]:
    """Those at the line of most, and the others; of two ranks the one with fewer steps is late."""
    lines = Counter(one.where for one in still)
    most, count = lines.most_common(1)[0]
    if 2 * count > len(still):
        return (
            [one for one in still if one.where == most],
            [one for one in still if one.where != most],
        )
    furthest = max(one.steps for one in still)
    late = [one for one in still if one.steps < furthest]
    return [one for one in still if one.steps == furthest], late


# ---- Watch -------------------------------------------------------------------------------

# Ranks that tell how they are while the job runs, through the store that is there.

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
