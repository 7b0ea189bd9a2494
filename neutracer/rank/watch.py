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
from neutracer.rank.publisher import Publisher, Reading, answer_debug_server
from neutracer.rank.report import RanksReport, ranks_report
from neutracer.recording.long_history import listen
from neutracer.recording.program import OnDemand
from neutracer.recording.recorder import is_for_cpu
from neutracer.units import format_duration_us

# ---- Running job -------------------------------------------------------------------------

_SILENT = 3.0  # Intervals without a digest after which a rank is silent.
_STILL = 3.0  # Intervals, and seconds, at one line after which a rank has stalled.
_STILL_S = 1.0
_ENDED = ("exit", "terminated")  # Reasons of a last digest: silence is expected after it.


def parsed_address(text: str) -> tuple[str, int]:
    """Parse HOST:PORT; raises ValueError if it is malformed."""
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise ValueError(f"{text!r} is not the address of a store: write it like 'node7:29500'")
    return host.strip("[]") or "localhost", int(port)


def stored_ranks(address: str) -> RanksReport:
    """Report on a running job from the digests in its store."""
    return _running_ranks(*parsed_address(address))


def _running_ranks(host: str, port: int) -> RanksReport:
    digests = read_digests(host, port)
    if not digests:
        raise ValueError(
            f"{host}:{port}: no rank has reported there; "
            "call neutracer.watch_ranks() in the program"
        )
    return report_of(digests, time.time())


def report_of(digests: Sequence[RankDigest], now_s: float) -> RanksReport:
    """Report on a running job's digests as of `now_s`, Unix time of this machine's clock."""
    # Ages are relative to the newest digest: the ranks' clocks may differ from this one.
    newest = max(one.written_s or 0.0 for one in digests)
    current = [replace(one, reason=_state(one, newest)) for one in digests]
    jobs = sorted(jobs_of(current), key=lambda job: -job.ended_s)
    running = [one for one in jobs[0].ranks if one.reason == "running"]
    silent = [one for one in jobs[0].ranks if one.reason == "silent"]
    odd = [_silent(one, newest - (one.written_s or 0.0)) for one in silent]
    odd += _stalled(running)
    report = ranks_report(jobs, (), odd)
    age = now_s - newest
    interval = max((one.interval_s or 0.0 for one in digests), default=0.0)
    if age <= _SILENT * interval + 1:
        return report
    note = f"the latest report of any rank is {format_duration_us(age * 1e6)} old"
    return replace(report, clocks=f"{report.clocks} {note}".strip())


def _state(one: RankDigest, newest: float) -> str:
    if one.reason in _ENDED:
        return one.reason
    age = newest - (one.written_s or 0.0)
    return "silent" if age > _SILENT * (one.interval_s or 0.0) + 1 else "running"


def _silent(one: RankDigest, age_s: float) -> Odd:
    at = f"; it was at {one.where} then" if one.where else ""
    why = f"it has not reported for {format_duration_us(age_s * 1e6)}{at}"
    return Odd(one.rank, 0, why, "silent", one.where)


def _stalled(running: Sequence[RankDigest]) -> list[Odd]:
    """The ranks that the others wait for: all have stalled, these at another line."""
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
    """Split (waiting, late) by the most common line, or else by the step count."""
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

_LOGGER = logging.getLogger("neutracer")

DEFAULT_DIRECTORY = "neutracer-ranks"
_INTERVAL_S = 10.0  # A digest takes a few milliseconds of one thread.


def watch_ranks(
    interval: float = _INTERVAL_S,
    *,
    directory: str | os.PathLike[str] = DEFAULT_DIRECTORY,
    signals: bool = True,
) -> RanksWatch:
    """Publish this rank's memory status to the job's store; call it in each rank.

    A digest of a few kilobytes (figures, growth, the main thread's line) goes to the TCPStore
    under the process group, over its own connection, without collectives and without waiting
    for other ranks. `watch.report()` in any rank, or `neutracer ranks --store HOST:PORT` anywhere,
    then names the odd ranks, those near the limit, those that the others wait for, and the last
    digest of a rank that died.

    When a rank runs out of memory it reports at once, and each other rank writes its layout
    into the directory. SIGTERM, with which a launcher ends the remaining ranks, is delayed by up
    to two seconds for the same.

    Args:
        interval: Seconds between two digests.
        directory: Where layouts go; created with the first one.
        signals: Whether to delay SIGTERM. A handler set by the program replaces this one.

    Returns:
        The active watch; `remove()`, or leaving it as a context manager, ends it. It waits for
        a process group if there is none yet. A second call returns the first watch.

    Raises:
        UnavailableError: torch is not imported, or built without torch.distributed.
        ValueError: `interval` is below 0.1 seconds.
        TypeError: An argument has the wrong type.

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
        """Use `watch_ranks` instead. `early`: as for `Publisher`."""
        self._reading = Reading(_trend)
        self._publisher = Publisher(self._reading, directory, interval_s, early)
        self._signals = signals
        self._early = early
        #: Why PyTorch's debug server can't have a page; "" if it can.
        self.no_debug_page = ""
        self._process = 0
        self._ends: list[Callable[[], object]] = []

    @property
    def active(self) -> bool:
        """Whether it is on; a forked child has none."""
        return bool(self._ends) and self._process == os.getpid()

    @property
    def why(self) -> str:
        """Why nothing is being published; "" if it is."""
        return self._publisher.why

    @property
    def address(self) -> tuple[str, int] | None:
        """Host and port of the store, once there is one."""
        return self._publisher.address

    @property
    def written(self) -> int:
        """The number of published digests."""
        return self._publisher.written

    @property
    def files(self) -> tuple[str, ...]:
        """The layouts written so far."""
        return tuple(self._publisher.files)

    def start(self) -> RanksWatch:
        """Start, once; returns the watch."""
        if self.active:
            return self
        self._process = os.getpid()
        # The hooks follow CPU blocks on the thread that starts them: the program's here.
        if self._early or is_for_cpu(sys.modules.get("torch")):
            self._reading.start()
        self._ends.append(self._reading.stop)
        self.no_debug_page = answer_debug_server(self.digest)
        self._ends.append(lambda: answer_debug_server(None))
        try:
            self._ends.append(listen(self._publisher.on_oom))
        except UnavailableError:
            _LOGGER.debug("this torch has no CUDA: it reports no out-of-memory errors")
        self._publisher.start()
        self._ends.append(self._publisher.stop)
        if self._signals:
            on_signal = OnDemand(
                lambda reason: None,
                every_s=None,
                signum=None,
                last_signum=signal.SIGTERM,
                last=self.publish_last,
            )
            on_signal.start()
            self._ends.append(on_signal.stop)
        atexit.register(self.remove)
        _set_current(self)
        return self

    def publish(self) -> bool:
        """Publish a digest now; returns whether that succeeded."""
        return self.active and self._publisher.publish("interval")

    def digest(self) -> RankDigest:
        """This rank's current digest."""
        return self._reading.digest("interval", 0.0)

    def report(self) -> RanksReport:
        """The report on all ranks.

        Raises:
            UnavailableError: There is no process group yet, or its store does not answer.
            ValueError: No rank has reported.
        """
        address = self.address
        if address is None:
            raise UnavailableError(
                "the store of this job", f"nothing has been reported so far ({self.why})"
            )
        return _running_ranks(*address)

    def publish_last(self, write_files: Callable[[], bool] = bool) -> None:
        """Publish and write before a signal ends this process; see `Publisher.publish_last`."""
        self._publisher.publish_last(write_files)

    def remove(self) -> None:
        """End it, once, with a last digest."""
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


def _trend(monitor: MemoryMonitor, device: int, steps: int) -> dict[str, Any]:
    """The fields of a digest that `leak_trend` gives."""
    try:
        trend = leak_trend(monitor, device=device, live=False)
    except (NeutracerError, ValueError):
        return {}
    marks = trend.steps + trend.warmup_steps
    # With short steps, a mark covers several.
    each = max(steps / marks, 1.0) if trend.unit == "step" and marks and steps else 1.0
    grows = trend.verdict not in ("steady", "unknown")
    left = None if trend.oom_step is None else max(trend.oom_step - (marks - 1), 0)
    return {
        "verdict": trend.verdict,
        "bytes_per_step": round(trend.bytes_per_step / each) if grows else 0,
        "steps_to_oom": None if left is None else round(left * each),
        "grows": str(trend.growth[0].place) if trend.growth else "",
    }
