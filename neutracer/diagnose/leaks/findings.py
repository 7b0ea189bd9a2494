# SPDX-License-Identifier: Apache-2.0
"""What a trend amounts to: findings with evidence, suspects and the next step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from neutracer.diagnose.leaks.growth import Growth, Survivors
from neutracer.diagnose.leaks.series import Observed, Trend
from neutracer.diagnose.leaks.verdict import RUN, VERDICTS, Forecast, Verdict
from neutracer.diagnose.settings.replay_settings import expandable_advice
from neutracer.render.document import Note, Severity
from neutracer.render.report import Finding
from neutracer.trace.devices import CPU, PINNED
from neutracer.trace.roles import Role, role_of
from neutracer.units import format_bytes, format_count, format_duration_us, format_share

__all__ = ["chance_text", "findings_of", "suspect_of"]

# Growth that fills the memory within so many times the steps seen is severe.
_SOON = 20

# What grows by less than these until a long run ends is worth a look, and less than the second
# of them none.
_COSTLY = 1 << 30
_NOTABLE = 64 << 20

# Stacks that a finding names.
_NAMED = 3

# What to keep instead, where the blocks show that a graph is kept, and where they don't.
_WITH_GRAPH = (
    "a kept tensor keeps its graph and its whole storage: keep loss.item(), or "
    "x.detach().cpu(), or a clone() of a view"
)
_WITHOUT_GRAPH = (
    "a kept tensor keeps its whole storage: keep x.item() or x.cpu(), or a clone() of a view"
)

# Where there are numbers only.
_WITH_LINES = Note(
    "neutracer.record() and leak_trend on its snapshot say which line leaves it behind"
)

# The same of the host's memory, where cpu() is the tensor itself.
_WITH_GRAPH_ON_CPU = (
    "a kept tensor keeps its graph and its whole storage: keep loss.item(), or x.detach(), or a "
    "clone() of a view"
)
_WITHOUT_GRAPH_ON_CPU = (
    "a kept tensor keeps its whole storage: keep x.item(), or a clone() of a view"
)
_PINNED = (
    "a kept tensor keeps its whole storage pinned: keep x.item(), or x.clone(), which is not pinned"
)


def suspect_of(survivors: Survivors) -> Growth | None:
    """The stack that gives backward(create_graph=True) away; None where there is none.

    The first gradient of a backward pass, that of the loss, is freed when the pass ends,
    unless the pass itself was recorded as a graph.
    """
    for grown in survivors.growth:
        if role_of(grown.stack) is Role.SEED:
            return grown
    return None


def chance_text(p_value: float) -> str:
    """A p-value in words: "p = 0.0238", or "p < 0.0001"."""
    return "p < 0.0001" if p_value < 1e-4 else f"p = {p_value:.4f}"


def findings_of(
    seen: Observed,
    verdict: Verdict,
    coming: Forecast,
    survivors: Survivors,
    settings: Mapping[str, Any],
) -> tuple[Finding, ...]:
    """The findings: one where something grows, and one where growth is too little."""
    trend = verdict.trend
    if verdict.kind == "steady":
        return ()
    if verdict.kind == "unknown":
        evidence: tuple[Note, ...] = (Note(verdict.because),)
        advice = _to_be_sure(seen)
        message = "can't tell whether memory grows"
        return (Finding("unknown", Severity.INFO, 0, message, evidence, advice),)
    notes = [_how_sure(seen, trend), Note(verdict.because)]
    notes += _who(survivors)
    notes += _when(coming, seen) or _cost(verdict, seen.unit)
    kind, severity = verdict.kind, _severity(seen, verdict, coming)
    nbytes = round(trend.tooth if kind == "cycle_garbage" else max(trend.growth, 0.0))
    message = f"{VERDICTS[kind]}: {_rate(trend, seen.unit, kind)}"
    advice = _advice(kind, survivors, seen.device, settings)
    return (Finding(kind, severity, nbytes, message, tuple(notes), advice),)


def _to_be_sure(seen: Observed) -> tuple[Note, ...]:
    """What would show whether memory grows."""
    unit = seen.unit
    if seen.timeline is None and seen.live.is_in_doubt:
        return (Note(_more(unit)), _WITH_LINES)
    return (Note(f"{_more(unit)}: about sixty {unit}s show a leak of 0.1 % a {unit}"),)


def _more(unit: str) -> str:
    """How to have more steps, by what they are."""
    if unit == "window":
        return "record longer, or say with steps= where steps begin"
    return f"look at more {unit}s"


def _rate(trend: Trend, unit: str, kind: str) -> str:
    if kind == "cycle_garbage":
        times = format_count(trend.teeth, "fall")
        return f"{times}, of {format_bytes(round(trend.tooth))} each"
    return f"{format_bytes(round(trend.slope))} a {unit}"


def _how_sure(seen: Observed, trend: Trend) -> Note:
    unit = seen.unit
    chance = f", {chance_text(trend.p_value)}" if seen.has_blocks else ""
    steps = format_count(trend.steps, unit)
    set_aside = f", {format_count(trend.warmup)} set aside as warm-up" if trend.warmup else ""
    if trend.is_sawtooth:
        rise = format_bytes(round(trend.tooth_slope))
        return Note(f"Seen in {steps}{set_aside}; between two falls it rises by {rise} a {unit}.")
    low, high = (format_bytes(round(end)) for end in trend.interval)
    return Note(f"Seen in {steps}{set_aside}: 95 % interval {low} to {high}{chance}.")


def _who(survivors: Survivors) -> list[Note]:
    notes = []
    for grown in survivors.growth[:_NAMED]:
        blocks = format_count(grown.count, "block")
        kind = "" if grown.category == "unknown" else f" ({grown.category})"
        share = f"{format_share(grown.share, decimals=0)}: " if grown.share else ""
        notes.append(Note(f"{share}{format_bytes(grown.bytes)} in {blocks}{kind}", grown.place))
        notes += [Note(f"held by {chain}") for chain in grown.holders]
    if survivors.freed:
        place, count = survivors.freed[0]
        notes.append(Note(f"{format_count(count, 'block')} freed at", place))
    return notes


def _when(coming: Forecast, seen: Observed) -> list[Note]:
    if coming.step is None or seen.capacity is None:
        return []
    whole = format_bytes(seen.capacity)
    span = ""
    if coming.between is not None:
        first, last = coming.between
        end = "never" if last is None else format_count(last)
        span = f" (95 %: {format_count(first)} to {end})"
    text = f"At this rate {whole} are full at {seen.unit} {format_count(coming.step)}{span}"
    if coming.in_us is not None:
        text += f", in {format_duration_us(coming.in_us)}"
    return [Note(text + ".")]


def _cost(verdict: Verdict, unit: str) -> list[Note]:
    """What a leak comes to, where nothing says when the memory is full."""
    if verdict.kind not in ("leak", "growing", "non_torch_growth", "fragmentation_growth"):
        return []
    run = RUN[unit]
    cost = format_bytes(round(max(verdict.trend.slope, 0.0) * run))
    return [Note(f"At this rate it is {cost} after {format_count(run, unit)}.")]


def _severity(seen: Observed, verdict: Verdict, coming: Forecast) -> Severity:
    """By what the growth costs until the memory is full or the run ends."""
    if verdict.kind in ("cycle_garbage", "cache_growth"):
        return Severity.MODERATE
    seen_steps, run = len(seen.allocated), RUN[seen.unit]
    most = Severity.SERIOUS if verdict.kind == "fragmentation_growth" else Severity.SEVERE
    if coming.step is not None and coming.step < _SOON * seen_steps:
        return most
    cost = max(verdict.trend.slope, 0.0) * run
    is_full = coming.step is not None and coming.step <= seen_steps + run
    if is_full or (coming.step is None and cost >= _COSTLY):
        is_stuck = verdict.kind == "fragmentation_growth"
        return Severity.MODERATE if is_stuck else Severity.SERIOUS
    return Severity.MODERATE if cost >= _NOTABLE else Severity.INFO


def _advice(
    kind: str, survivors: Survivors, device: int, settings: Mapping[str, Any]
) -> tuple[Note, ...]:
    if kind in ("leak", "growing"):
        return _leak_advice(survivors, device)
    if kind == "cycle_garbage":
        return (
            Note(
                "neutracer.warn_tensor_cycles() in the program names the objects of each "
                "cycle and the reference to cut"
            ),
        )
    if kind == "non_torch_growth":
        return (
            Note("neutracer.attribute_device_memory() says which library takes it"),
            Note("neutracer.device_report() says which process it is"),
        )
    if device < 0:
        # No setting of the CUDA allocator is about it.
        return (Note("sizes that change from step to step are each cached: pad them to a few"),)
    notes = (
        []
        if settings.get("expandable_segments")
        else [Note(expandable_advice(str(settings.get("text", ""))))]
    )
    if kind == "cache_growth":
        notes.append(
            Note(
                "sizes that change from step to step are each cached separately: pad them to "
                "a few, or set roundup_power2_divisions"
            )
        )
    notes.append(Note("neutracer.what_if(snapshot) replays the trace under other settings"))
    return tuple(notes)


def _to_keep(device: int, shows_graph: bool) -> str:
    """What to keep instead of a tensor of a report's device."""
    if device == PINNED:
        return _PINNED
    if device == CPU:
        return _WITH_GRAPH_ON_CPU if shows_graph else _WITHOUT_GRAPH_ON_CPU
    return _WITH_GRAPH if shows_graph else _WITHOUT_GRAPH


def _leak_advice(survivors: Survivors, device: int) -> tuple[Note, ...]:
    suspect = suspect_of(survivors)
    if suspect is not None:
        return (
            Note(
                "suspect: backward(create_graph=True). Parameter and gradient keep each other "
                "alive through the autograd graph, which Python's collector can't see:",
                suspect.place,
            ),
            Note("use torch.autograd.grad(..., create_graph=True), or set .grad to None after it"),
            Note("neutracer.find_autograd_cycles() in the program names the cycle"),
        )
    if survivors.growth:
        return (
            Note(_to_keep(device, survivors.shows_graph)),
            Note("neutracer.why_alive(tensor) in the program says what holds one of them"),
        )
    return (_WITH_LINES,)
