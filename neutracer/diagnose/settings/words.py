# SPDX-License-Identifier: Apache-2.0
"""What a recommendation says of a setting."""

from __future__ import annotations

from neutracer.diagnose.settings.bound import Bound
from neutracer.diagnose.settings.rank import ALIKE, Row
from neutracer.diagnose.settings.what_if_parts import Outcome, named, stop_of
from neutracer.render.document import Note
from neutracer.units import format_bytes, format_count, format_share

__all__ = ["above", "bound_sentence", "cost", "gain", "near_least", "stops"]


def gain(objective: str, row: Row, recorded: Row) -> tuple[int, str]:
    """What a setting does better than the recorded one: the bytes that it saves, and in
    words.

    Args:
        objective: One of `OBJECTIVES`.
        row: The setting's outcome, and its smallest capacity or None.
        recorded: The same of the recorded settings.
    """
    (outcome, smallest), (before, own) = row, recorded
    name = named(outcome)
    if objective == "fit" and smallest is not None and own is not None and smallest < own:
        message = f"{name}: every request succeeds with {format_bytes(smallest)}"
        return own - smallest, f"{message} instead of {format_bytes(own)}"
    if before.stopped_event is not None:
        stop = stop_of(outcome)
        until = "the end of the trace" if stop is None else f"event {stop}"
        return 0, f"{name}: the program gets to {until}, not just to event {stop_of(before)}"
    if outcome.ooms < before.ooms:
        failed = format_count(outcome.ooms, "request") if outcome.ooms else "no request"
        return 0, f"{name}: {failed} out of memory instead of {format_count(before.ooms)}"
    peaks = outcome.peak_reserved_bytes, before.peak_reserved_bytes
    saved = max(peaks[1] - peaks[0], 0)
    if objective == "speed":
        calls = f"{format_count(outcome.device_calls)} calls to the device"
        return saved, f"{name}: {calls} instead of {format_count(before.device_calls)}"
    less, more = (format_bytes(nbytes) for nbytes in peaks)
    return saved, f"{name}: {less} reserved at most instead of {more}"


def cost(more: int) -> str:
    """How many more calls to the device a choice makes, in words."""
    noun = "more call" if more > 0 else "fewer call"
    return f"{format_count(abs(more), noun) if more else 'as many calls'} to the device"


def stops(outcome: Outcome) -> tuple[Note, ...]:
    """That the figures of a choice are not of the whole program."""
    stop = stop_of(outcome)
    said = f"it stops for lack of memory at event {stop}: the peak is of what came before"
    return () if stop is None else (Note(said),)


def near_least(
    objective: str, needed: int | None, least: tuple[int, str] | None
) -> tuple[Note, ...]:
    """What needs a little less than the best does, and is no better for that.

    Args:
        objective: One of `OBJECTIVES`.
        needed: The smallest capacity that the best does in; None where it is not known.
        least: The least that anything does in, and what that is.
    """
    if objective != "fit" or least is None or needed is None:
        return ()
    if not least[0] < needed <= least[0] * (1 + ALIKE):
        return ()
    share = format_share(ALIKE, decimals=0)
    return (Note(f"within {share} of the least, {format_bytes(least[0])} with {least[1]}"),)


def above(outcome: Outcome, bound: Bound) -> float:
    """The peak of an outcome above the least that it could have, as a share of that."""
    least = bound.of(outcome)
    return outcome.peak_reserved_bytes / least - 1 if least else 0.0


def bound_sentence(bound: Bound, recorded: Outcome, best: Outcome | None) -> str:
    """The least that any allocator needs, and how far above it the peaks are.

    Args:
        bound: That least.
        recorded: What came of the recorded settings.
        best: And of the best; None where nothing does better.
    """
    where = f"event {format_count(bound.event)}" if bound.event >= 0 else "the start"
    text = f"No allocator could manage with less than {format_bytes(bound.bytes)}, live at {where}"
    if bound.with_failed_bytes > bound.bytes:
        text += f", or {format_bytes(bound.with_failed_bytes)} with the failed requests"
    if recorded.stopped_event is not None or not bound.bytes:
        return f"{text}."
    shown = [(recorded, "as recorded")]
    if best is not None and best.stopped_event is None:
        shown.append((best, f"with {named(best)}"))
    parts: list[str] = []
    told = 0
    for outcome, words in shown:
        least = bound.of(outcome)
        base = "it" if least == bound.with_failed_bytes == bound.bytes else format_bytes(least)
        over = "" if least == told else f" above {base}"
        parts.append(f"{format_share(above(outcome, bound))}{over} {words}")
        told = least
    return f"{text}. Reserved at its peak: {', '.join(parts)}."
