# SPDX-License-Identifier: Apache-2.0
"""A recording of a run that has not happened."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from neutracer._native import core
from neutracer.arguments import text, whole_number
from neutracer.errors import RehearsalError, missing
from neutracer.rehearsal.cards import Card, find_card, nccl_bytes
from neutracer.trace.snapshot import Snapshot
from neutracer.units import parse_bytes

__all__ = ["rehearse", "rehearse_program"]


def rehearse(
    step: Callable[..., Any],
    *args: Any,
    steps: int = 3,
    device: str = "NVIDIA H200",
    settings: str = "",
    capacity: int | str | None = None,
    world_size: int = 1,
    strategy: str | None = None,
) -> Snapshot:
    """Make some steps of a program without its memory, and what a recorder would have written.

    The steps run on fake tensors: shapes, types and autograd are real, and no memory is taken.
    What they would ask of PyTorch's allocator goes through its model for that card. The result
    is a snapshot like any other, for every report; `snap.rehearsed` says what was assumed. A
    program that runs out of memory does so in the snapshot, with the line.

    Args:
        step: Makes one step; or builds the program and returns the function that makes a step.
            It uses "cuda" as it would with a card. It gets `args` each time, models, tensors
            and optimizers among them as fake ones on the card.
        args: What `step` is called with.
        steps: How many steps are made.
        device: The card's name, or a part of it: "A100", "RTX 4090".
        settings: A text for PYTORCH_CUDA_ALLOC_CONF.
        capacity: Bytes that PyTorch can have of the card's memory, as a number or a text like
            "24GiB"; None is what CUDA's context, and NCCL of several ranks, leave.
        world_size: How many ranks there would be; the snapshot is of rank 0.
        strategy: "ddp" or "fsdp2": how the models that a step uses are spread over the ranks.

    Returns:
        The snapshot.

    Raises:
        RehearsalError: The program failed in a way that a real one may not; `.snapshot` has
            what was rehearsed until then.
        UnavailableError: There is no torch, or none that this is known to fit.
        ValueError: The table has no such card; or another argument is out of range.

    Example:
        >>> import torch, neutracer
        >>> def program():
        ...     model = torch.nn.Linear(4096, 4096, device="cuda")
        ...     return lambda: model(torch.randn(64, 4096, device="cuda")).sum().backward()
        >>> snap = neutracer.rehearse(program, steps=2, device="A100")  # doctest: +SKIP
        >>> snap.timeline().peak("allocated").bytes  # doctest: +SKIP
        154420736
    """
    if not callable(step):
        raise TypeError(f"step must be a function that makes a step, not {type(step).__name__}")
    run = _run_of(steps, device, settings, capacity, world_size, strategy)
    run.call(step, args)
    return _finished(run)


def rehearse_program(
    arguments: Sequence[str],
    *,
    module: bool = False,
    steps: int = 3,
    device: str = "NVIDIA H200",
    settings: str = "",
    capacity: int | str | None = None,
    world_size: int = 1,
    strategy: str | None = None,
) -> Snapshot:
    """Make some steps of a script without its memory, as `neutracer rehearse` does.

    Args:
        arguments: The script, or the module's name, and what follows it.
        module: Whether the first is a module's name, as after `python -m`.
        steps: After how many steps of its optimizer it is stopped.
        device, settings, capacity, world_size, strategy: As `rehearse` has them.

    Returns:
        The snapshot.

    Raises:
        NeutracerError: There is no such script or module.
        RehearsalError: As from `rehearse`.
        UnavailableError: As from `rehearse`.
        ValueError: As from `rehearse`.
    """
    run = _run_of(steps, device, settings, capacity, world_size, strategy)
    from neutracer.rehearsal.script import rehearse_script

    rehearse_script(run, arguments, module=module)
    return _finished(run)


def _run_of(
    steps: int,
    device: str,
    settings: str,
    capacity: int | str | None,
    world_size: int,
    strategy: str | None,
) -> Any:
    """A run that has not begun, of checked arguments."""
    card = find_card(text("device", device))
    count, ranks = (
        whole_number("steps", steps, least=1),
        whole_number("world_size", world_size, least=1),
    )
    if strategy not in (None, "ddp", "fsdp2"):
        raise ValueError(f'a strategy is "ddp", "fsdp2" or None, not {strategy!r}')
    core.parse_settings(text("settings", settings))
    room = _room_of(card, capacity, ranks)
    try:
        import torch  # noqa: F401
    except ImportError as error:
        raise missing("torch") from error
    from neutracer.rehearsal.running import Run

    return Run(card, room, settings, count, ranks, strategy)


def _room_of(card: Card, capacity: int | str | None, ranks: int) -> int:
    """The bytes that PyTorch can have."""
    if capacity is None:
        return card.total_bytes - card.context_bytes - nccl_bytes(ranks)[1]
    found = parse_bytes(capacity)
    if not 0 < found <= 1 << 50:
        raise ValueError("a capacity must be above 0 bytes and at most 2^50")
    return found


def _finished(run: Any) -> Snapshot:
    """The snapshot of a run.

    Raises:
        RehearsalError: The program did not make all of its steps.
    """
    snap: Snapshot = run.snapshot()
    if run.failure:
        raise RehearsalError(run.failure, snap)
    return snap
