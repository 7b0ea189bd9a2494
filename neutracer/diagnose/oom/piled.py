# SPDX-License-Identifier: Apache-2.0
"""Causes that grow from step to step: a leak, a cache that is made anew a little larger."""

from __future__ import annotations

from neutracer.diagnose.oom.case import Case, least_worth
from neutracer.diagnose.oom.growth import Growth
from neutracer.diagnose.oom.parts import Remedy, Verdict
from neutracer.render.document import Note
from neutracer.units import format_bytes, format_count

__all__ = ["cache_growth", "leak"]

# How many lines that grow are reported.
_TOLD = 3


def leak(case: Case) -> Verdict | None:
    """What step after step left behind."""
    growth = _piled_up(case)
    if growth is None or growth.by_size:
        return None
    message = (
        f"leak: {format_bytes(growth.bytes)} piled up over {_over(growth)} "
        f"({format_bytes(growth.bytes_per_step)} each)"
    )
    advice, remedy = _leak_advice(case, growth)
    suffices = case.room.would_hold(freed=growth.addresses)
    return Verdict("leak", growth.bytes, _evidence(growth), advice, message, suffices, remedy)


def cache_growth(case: Case) -> Verdict | None:
    """What is made anew in every step, each time larger than what it replaces."""
    growth = _piled_up(case)
    if growth is None or not growth.by_size:
        return None
    grower = growth.growers[0]
    first = grower.place
    message = (
        f"a cache that grows: {format_bytes(growth.bytes)} after {_over(growth)}, "
        f"{format_bytes(growth.bytes_per_step)} more each time"
    )
    advice = (
        Note("bound it, keep it on the CPU, or make it shorter:", first),
        Note("a smaller batch or fewer tokens make each step's part of it smaller"),
        Note("each time it grows, old and new are in use at once: allocate it once, whole"),
    )
    suffices = case.room.would_hold(freed=growth.addresses)
    remedy = Remedy("release", place=first, callers=grower.callers)
    return Verdict(
        "cache_growth", growth.bytes, _evidence(growth), advice, message, suffices, remedy
    )


def _piled_up(case: Case) -> Growth | None:
    """The growth, where it is worth telling and not what garbage holds."""
    growth = case.growth
    if growth is None or growth.bytes < least_worth(case.failure.size):
        return None
    return None if case.growth_is_garbage else growth


def _over(growth: Growth) -> str:
    return format_count(growth.steps, growth.rounds.unit)


def _evidence(growth: Growth) -> tuple[Note, ...]:
    unit = growth.rounds.unit
    notes = []
    for one in growth.growers[:_TOLD]:
        text = f"{format_bytes(one.bytes)} in {format_count(one.count, 'block')}, "
        text += f"{format_bytes(one.bytes_per_step)} more each {unit}, by"
        notes.append(Note(text, one.place))
        if one.callers:
            notes.append(Note("called by", one.callers[0]))
    return tuple(notes)


def _let_go(case: Case, of_modules: bool) -> str:
    """What to do with what is kept: activations of a program that trains hang on a graph."""
    if of_modules and case.timeline is not None and case.timeline.passes.backward:
        return "keep numbers, not tensors with their graph (loss.item(), x.detach()):"
    return "drop what is no longer needed, move it to the CPU, or keep numbers (loss.item()):"


def _leak_advice(case: Case, growth: Growth) -> tuple[tuple[Note, ...], Remedy]:
    notes: tuple[Note, ...]
    if growth.create_graph is not None:
        notes = (
            Note(
                "the graph of a backward pass is kept, as by backward(create_graph=True), which "
                "makes parameter and gradient keep each other alive:",
                growth.create_graph,
            ),
            Note("use torch.autograd.grad(..., create_graph=True), or set .grad to None after it"),
        )
        return notes, Remedy("release", place=growth.create_graph)
    grower = growth.growers[0]
    first = grower.place
    of_modules = sum(one.bytes for one in growth.growers if one.in_module)
    if growth.rounds.is_after_training and 2 * of_modules > growth.bytes:
        notes = (
            Note("run it under torch.no_grad(): after the training its graphs are kept:", first),
            Note("or keep numbers, not tensors with their graph (loss.item(), x.detach())"),
        )
        return notes, Remedy("no_grad", place=first, callers=grower.callers)
    if growth.falls:
        times = format_count(growth.falls, "time")
        notes = (
            Note("move each to the CPU, or reduce it to what is needed, as it comes:", first),
            Note(f"it was let go of {times} before, after less of it"),
        )
        return notes, Remedy("release", place=first, callers=grower.callers)
    builder = next((one for one in growth.growers[:_TOLD] if one.builds), None)
    if builder is not None:
        notes = (
            Note(
                "let go of the models that are made here, their gradients and optimizers:",
                builder.place,
            ),
            Note("neutracer.why_alive(parameter) and find_autograd_cycles() say what keeps them"),
        )
    else:
        notes = (Note(_let_go(case, 2 * of_modules > growth.bytes), first),)
    return notes, Remedy("release", place=first, callers=grower.callers)
