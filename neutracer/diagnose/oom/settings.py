# SPDX-License-Identifier: Apache-2.0
"""Under which allocator settings a failed request would have succeeded."""

from __future__ import annotations

import re
from dataclasses import dataclass

from neutracer.diagnose.oom.budget import Budget
from neutracer.diagnose.settings.replay_settings import expandable_advice
from neutracer.diagnose.settings.replaying import Replayer, canonical
from neutracer.render.document import Copyable, Note
from neutracer.trace.beside import DeviceRoom
from neutracer.trace.snapshot import Snapshot

__all__ = ["SettingsAdvice", "settings_advice"]

# Longer traces are left to `what_if`.
_MOST_EVENTS = 300_000

# How many settings are reported at most.
_TOLD = 3

# The core's numbers of when blocks that other streams used are free again.
_TIMINGS = (0, 1, 2)

_VARIABLE = "PYTORCH_CUDA_ALLOC_CONF"


@dataclass(frozen=True)
class SettingsAdvice:
    """What settings would have done for a request.

    Attributes:
        notes: What to set, each with what is known of it.
        setting: The first of them, as PYTORCH_CUDA_ALLOC_CONF takes it; "" is the default.
        tried: How many settings were replayed.
        is_sure: Whether a replay says that the request would have succeeded.
    """

    notes: tuple[Note, ...] = ()
    setting: str = ""
    tried: int = 0
    is_sure: bool = False


def settings_advice(
    snap: Snapshot, device: int, event: int | None, budget: Budget, thorough: bool
) -> SettingsAdvice:
    """Settings that would have let a request succeed, each replayed.

    It never advises what is set already. It replays only where the model reproduces the
    recording exactly; else it names expandable segments without a promise, as PyTorch's
    remedy for fragmentation, where they are not on.

    Args:
        snap: The snapshot.
        device: The device.
        event: The event of the request; None where the trace doesn't have it.
        budget: What the process was allowed.
        thorough: Whether to replay; else nothing is promised.
    """
    settings = snap.settings_in_force
    if not settings["native_backend"]:
        return SettingsAdvice()
    known = event is not None and 0 < event < _MOST_EVENTS and snap.partial is None
    if thorough and known and event is not None:
        found = _replayed(snap, device, event, budget)
        if found is not None:
            return found
    if settings["expandable_segments"]:
        return SettingsAdvice()
    why = "free ranges then serve any size; not replayed, so no promise"
    own = _parts(str(settings["text"]))
    text = canonical(_text(_expandable(own)))
    return SettingsAdvice((Note(expandable_advice(str(settings["text"])), detail=why),), text)


def _replayed(snap: Snapshot, device: int, event: int, budget: Budget) -> SettingsAdvice | None:
    """What a replay advises; None where it can't be trusted."""
    try:
        replayer = _replayer(snap, device, budget)
        if not replayer.check.is_exact:
            return None
    except ValueError:
        # A state that no allocator can have been in.
        return None
    kinds = _candidates(snap, replayer.is_limited)
    run = _Runs(replayer, event, replayer.limits)
    notes: list[Note] = []
    found: list[str] = []
    for settings in kinds:
        if len(notes) == _TOLD:
            break
        text = next((text for text in settings if run.goes_through(text)), None)
        if text is not None:
            found.append(text)
            fits = "it would have fitted (replayed exactly)"
            notes.append(Note(_setting(text), detail=fits))
    rounder = _without_rounding(snap)
    is_sure = bool(found)
    if rounder is not None and run.goes_through(rounder, least=True):
        found.append(rounder)
        may = "it may have fitted (replayed; its exact size is unknown)"
        notes.append(Note(_setting(rounder), detail=may))
    tried = sum(map(len, kinds))
    return SettingsAdvice(tuple(notes), found[0] if found else "", tried, is_sure)


def _replayer(snap: Snapshot, device: int, budget: Budget) -> Replayer:
    """The program, ready to be run where it may have what it could have had when it failed.

    Raises:
        ValueError: There is nothing to replay.
    """
    total = budget.total
    if budget.limit is not None and not budget.limit_is_guess:
        # Of a limit whose device nobody knows, the share is of one that has enough.
        device_bytes = 2 * budget.limit if total is None else total
        share = min((budget.limit + 0.5) / device_bytes, 1.0)
        return Replayer(snap, device, capacity=device_bytes, fraction=share)
    if budget.limit is None and budget.asked is not None:
        return Replayer(snap, device, capacity=max(min(budget.asked, budget.usable), 1))
    if budget.limit is None and total is not None:
        return Replayer(snap, device, room=DeviceRoom(total, 1.0, budget.others))
    return Replayer(snap, device)


def _setting(text: str) -> str:
    return Copyable(f"set {_VARIABLE}={text}" if text else f"leave {_VARIABLE} at its default")


def _without_rounding(snap: Snapshot) -> str | None:
    """The settings without what rounds requests up; None where nothing does."""
    own = _parts(str(snap.settings_in_force["text"]))
    if own.pop("roundup_power2_divisions", None) is None:
        return None
    return canonical(_text(own))


def _parts(text: str) -> dict[str, str]:
    """The settings of a text by name; a list in brackets is one value."""
    pieces = re.findall(r"([a-z_0-9]+):(\[[^\]]*\]|[^,]*)", text)
    return dict(pieces)


def _candidates(snap: Snapshot, is_limited: bool) -> list[list[str]]:
    """Settings to try, those of one kind together, on top of what is set."""
    own = _parts(str(snap.settings_in_force["text"]))
    is_expandable = bool(snap.settings_in_force["expandable_segments"])
    kinds: list[list[dict[str, str]]] = []
    if not is_expandable:
        kinds.append([_expandable(own)])
    if "garbage_collection_threshold" not in own and is_limited and not is_expandable:
        kinds.append([{**own, "garbage_collection_threshold": one} for one in ("0.8", "0.6")])
    if "max_split_size_mb" not in own and not is_expandable:
        sizes = ("512", "256", "128", "64", "32")
        kinds.append([{**own, "max_split_size_mb": size} for size in sizes])
    if "roundup_power2_divisions" not in own:
        kinds.append([{**own, "roundup_power2_divisions": value} for value in ("8", "4")])
    return [[canonical(_text(one)) for one in kind] for kind in kinds]


def _expandable(own: dict[str, str]) -> dict[str, str]:
    # PyTorch refuses to split blocks of expandable segments at a size.
    rest = {name: value for name, value in own.items() if not name.startswith("max_")}
    return {**rest, "expandable_segments": "True"}


def _text(settings: dict[str, str]) -> str:
    return ",".join(f"{name}:{value}" for name, value in settings.items())


class _Runs:
    """A program under other settings, looked at where a request failed."""

    def __init__(self, replayer: Replayer, event: int, limits: tuple[int, ...]) -> None:
        self._replayer = replayer
        self._event = event
        self._limits = limits
        self._timings = _TIMINGS if replayer.facts["has_later"] else _TIMINGS[:1]
        failed = replayer.timeline.events.find("action", "oom")
        before = [at for at in failed if at <= event]
        # Counts of failures only rise: it is enough to look where the recorded one is about to.
        self._bounds = [(at - 1, count) for count, at in enumerate(before) if at > 0]
        self._bounds.append((event, len(before)))

    def goes_through(self, settings: str, least: bool = False) -> bool:
        """Whether the request succeeds under each limit and timing, and nothing else fails
        that had not."""
        return all(
            self._succeeds(settings, limit, timing, least)
            for limit in self._limits
            for timing in self._timings
        )

    def _succeeds(self, settings: str, limit: int, timing: int, least: bool) -> bool:
        options = {**self._replayer.options(limit), "timing": timing, "least_ooms": least}
        ooms = self._replayer.series(settings, **options, goes_on=True)["ooms"]
        if ooms[self._event] != ooms[self._event - 1]:
            return False
        return all(ooms[at] <= count for at, count in self._bounds)
