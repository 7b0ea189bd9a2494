# SPDX-License-Identifier: Apache-2.0
"""Causes in the size of things: of the request, of the device, of what others leave of it."""

from __future__ import annotations

from math import isqrt

from neutracer.diagnose.oom.case import Case
from neutracer.diagnose.oom.parts import Remedy, Verdict
from neutracer.render.document import Note
from neutracer.units import format_bytes, format_count

__all__ = ["had_room", "non_torch", "process_cap", "unreasonable_request"]

# What CUDA's context and its libraries take of a large device in every process, whatever
# the program does: 520 to 620 MiB on an H200, and up to 750 MiB where cuBLAS has run.
_CONTEXT = 640 << 20

# Less than this beyond a context can't be told from what the context itself varies by.
_LEAST_OTHERS = 256 << 20

# Where nobody knows how large the device is, a request for less is no mistake in a shape: all
# but the smallest devices have so much, and refuse it only because others have it.
_LEAST_DEVICE = 8 << 30

# A limit is raised to so many times what the step is known to need.
_ROOM_TO_GO_ON = 1.25

# Element sizes that a square matrix is tried for, with a dtype of that size.
_ELEMENTS = ((4, "float32"), (2, "float16"), (8, "float64"), (1, "bool"))


def unreasonable_request(case: Case) -> Verdict | None:
    """One request for more than the device has."""
    budget, size = case.room.budget, case.failure.size
    ceiling = budget.total
    if ceiling is None and budget.device_free is not None and size > _LEAST_DEVICE:
        ceiling = budget.reserved + budget.device_free + _CONTEXT
    if ceiling is None or size <= ceiling:
        return None
    has = "the device has" if budget.total is not None else "PyTorch could have had of the device"
    evidence = [Note("asked for by", case.place)] if case.stack else []
    evidence += [Note(f"there: {tensor}") for tensor in case.facts.tensors[:4]]
    evidence += [Note(text) for text in _shape_texts(size)]
    if budget.total is None:
        evidence.append(
            Note("The file does not say how large the device is; give capacity= (--capacity).")
        )
    advice = (
        Note("check the shapes on that line: an outer product, all pairs, a mask, a wrong axis"),
    )
    message = f"one request of {format_bytes(size)}, more than the {format_bytes(ceiling)} {has}"
    remedy = Remedy("shape", place=case.place)
    return Verdict("unreasonable_request", size, tuple(evidence), advice, message, True, remedy)


def _shape_texts(size: int) -> list[str]:
    """What tensor it may be: PyTorch rounded its size up to 512 bytes."""
    for width, dtype in _ELEMENTS:
        side = isqrt(size // width)
        if 0 <= size - side * side * width < 512:
            number = format_count(side)
            return [f"That is the size of {number} x {number} elements of {dtype}."]
    return [f"That is {format_count(size // 4)} elements of float32."]


def non_torch(case: Case) -> Verdict | None:
    """Memory of the device that is not PyTorch's: other processes, libraries, contexts."""
    room, budget = case.room, case.room.budget
    taken, free = budget.non_torch, budget.device_free
    if taken is None or free is None:
        return None
    if free >= room.segment:
        # The device had enough: a limit stood in the way.
        return None
    avoidable = _avoidable(taken, budget.others or 0)
    bound = free + avoidable
    if budget.limit is not None:
        bound = min(bound, max(budget.limit - budget.reserved, 0))
    suffices = room.would_hold(more=max(bound - budget.headroom, 0))
    if avoidable < 1 << 20 or (avoidable < _LEAST_OTHERS and not suffices):
        return None
    evidence = [
        Note(
            f"Of the device's {format_bytes(budget.total or 0)} PyTorch had "
            f"{format_bytes(budget.reserved)}, and {format_bytes(free)} were free."
        )
    ]
    if budget.others:
        evidence.append(Note(f"Other processes had {format_bytes(budget.others)}."))
    if budget.process is not None and budget.process > budget.reserved:
        own = format_bytes(budget.process - budget.reserved)
        evidence.append(
            Note(f"This process had {own} besides PyTorch's: its context, NCCL, CuPy and the like.")
        )
    advice = [Note("neutracer.device_report() and nvidia-smi say who has it")]
    if _avoidable(taken - (budget.others or 0), 0):
        advice.append(
            Note("neutracer.attribute_device_memory(), switched on early, names the libraries")
        )
    if budget.others:
        advice.insert(0, Note("end other programs on this device, or use another device"))
    message = f"{format_bytes(avoidable)} of the device is taken, but not by PyTorch"
    remedy = Remedy("end_others")
    return Verdict(
        "non_torch", avoidable, tuple(evidence), tuple(advice), message, suffices, remedy
    )


def _avoidable(taken: int, others: int) -> int:
    """What need not be there: what other processes have, and what of the rest is more than
    any context."""
    others = min(others, taken)
    beyond = taken - others - _CONTEXT
    return others + (beyond if beyond >= _LEAST_OTHERS else 0)


def had_room(case: Case) -> Verdict:
    """The request would succeed as things stood: what was in its way had gone by then."""
    room = case.room
    if room.own_fits:
        return _came_late(case)
    free = room.budget.headroom
    size = format_bytes(free)
    evidence = (Note(f"The device had {size} free just after, and no limit stood in the way."),)
    advice = (Note("find who else allocates on this device: neutracer.device_report()"),)
    message = f"others held the {size} that was free a moment later"
    return Verdict("non_torch", free, evidence, advice, message, True, Remedy("end_others"))


def _came_late(case: Case) -> Verdict:
    """The hole is there: it came back while PyTorch made room, and it doesn't look again."""
    hole = case.room.own_hole
    evidence = (
        Note(f"A hole of {format_bytes(hole)} was free when it failed, and would have held it."),
        Note(
            "It came back while PyTorch waited for other streams, and PyTorch doesn't look again."
        ),
    )
    advice = (
        Note(
            "free tensors that other streams use (record_stream) earlier, or wait for those first"
        ),
        Note("try again: the same request would succeed"),
    )
    message = f"{format_bytes(hole)} came back from another stream too late"
    return Verdict("other_pool", hole, evidence, advice, message, True, Remedy("wait"))


def process_cap(case: Case) -> Verdict | None:
    """PyTorch keeps the process below a limit, while the device has room."""
    room, budget = case.room, case.room.budget
    if budget.limit is None or not budget.is_capped(room.segment) or budget.device_free is None:
        return None
    free = budget.device_free
    suffices = room.would_hold(more=max(free - budget.headroom, 0))
    about = "about " if budget.limit_is_guess else ""
    limit = format_bytes(budget.limit)
    needed = budget.reserved + room.segment
    evidence = [
        Note(f"It had {format_bytes(budget.reserved)} reserved, and asked for "
             f"{format_bytes(room.segment)} more; the device had {format_bytes(free)} free.")
    ]  # fmt: skip
    if budget.limit_is_guess:
        evidence.append(
            Note("Inferred from the failures; capacity= (--capacity) or facts= give the limit.")
        )
    if case.demand is not None:
        # The step has more to ask for than this request.
        needed += case.demand.rest
    elif case.phase.name in ("forward", "backward"):
        # No step has ended: what one needs is not known, and was hardly half of it. Gradients
        # and Adam's state are three times the parameters.
        needed = max(2 * needed, needed + 4 * case.categories.get("parameter", 0))
    if not case.asks_once:
        # A pass goes on, and what it frees on its way leaves holes.
        needed = int(needed * _ROOM_TO_GO_ON)
    share, part = "", None
    if budget.total:
        part = min(-int(-needed / budget.total * 1000 // 1) / 1000, 1.0)
        share = f"to {part:.3f} or more of the device"
    setting = float(case.snap.settings_in_force["per_process_memory_fraction"])
    name = "torch.cuda.set_per_process_memory_fraction()"
    if setting < 1.0:
        name = "per_process_memory_fraction in PYTORCH_CUDA_ALLOC_CONF"
    advice = (Note(f"raise {name}", detail=share or f"so that it allows {format_bytes(needed)}"),)
    message = f"the process is limited to {about}{limit}, though the device has room"
    remedy = Remedy("raise_limit", value=part)
    return Verdict("process_cap", free, tuple(evidence), advice, message, suffices, remedy)
