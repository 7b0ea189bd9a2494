# SPDX-License-Identifier: Apache-2.0
"""`rehearse` and `largest_batch`: the memory of a run before it runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from neutracer._native import core
from neutracer.arguments import text, whole_number
from neutracer.errors import RehearsalError, missing
from neutracer.rehearsal.cards import ENDLESS, find_card, nccl_bytes
from neutracer.trace.snapshot import Snapshot
from neutracer.units import parse_bytes

# ---- Rehearse ----------------------------------------------------------------------------


def rehearse(
    step: Callable[..., Any],
    *args: Any,
    steps: int = 3,
    device: str = "NVIDIA H200",
    settings: str = "",
    capacity: int | str | None = None,
    world_size: int = 1,
    strategy: str | None = None,
    modules: bool = False,
) -> Snapshot:
    """Rehearse some steps of a program without its memory, as a snapshot.

    The steps run on fake tensors: shapes, types and autograd are real, and no memory is taken.
    Their requests go through a model of PyTorch's allocator for that card. Every report reads
    the result; `snap.rehearsed` lists the assumptions. An out-of-memory error is recorded with
    its line.

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
        modules: Mark each allocation with the `nn.Module` it is for, for holders by module:
            activations and gradients, and the parameters and optimizer states of each.

    Returns:
        The snapshot.

    Raises:
        RehearsalError: The program failed; `.snapshot` has the rehearsal up to that point.
        UnavailableError: torch is missing, or its release is not supported.
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
        raise TypeError(f"step must be callable, not {type(step).__name__}")
    run = _run_of(steps, device, settings, capacity, world_size, strategy, modules)
    run.call(step, args)
    snap: Snapshot = run.snapshot()
    if run.failure:
        raise RehearsalError(run.failure, snap)
    return snap


def rehearse_program(
    arguments: Sequence[str], *, module: bool, leave: Callable[[Any], NoReturn], **options: Any
) -> Any:
    """Rehearse some steps of a script with the options of `rehearse`, as `neutracer rehearse`
    does; `leave` gets the run of a program that can't be stopped, and ends the process."""
    run = _run_of(**options)
    from neutracer.rehearsal.running import rehearse_script

    rehearse_script(run, arguments, module=module, leave=leave)
    return run


def _run_of(
    steps: int,
    device: str,
    settings: str,
    capacity: int | str | None,
    world_size: int,
    strategy: str | None = None,
    modules: bool = False,
) -> Any:
    card = find_card(text("device", device))
    count = whole_number("steps", steps, least=1)
    ranks = whole_number("world_size", world_size, least=1)
    if strategy not in (None, "ddp", "fsdp2"):
        raise ValueError(f'a strategy is "ddp", "fsdp2" or None, not {strategy!r}')
    core.parse_settings(text("settings", settings))
    room = capacity_of(device, capacity, ranks)
    try:
        import torch  # noqa: F401
    except ImportError as error:
        raise missing("torch") from error
    from neutracer.rehearsal.running import Run

    return Run(card, room, settings, count, ranks, strategy, modules)


def capacity_of(device: str, capacity: int | str | None, ranks: int) -> int:
    """The bytes that PyTorch can have of a card; as the arguments of `rehearse`."""
    card = find_card(text("device", device))
    if capacity is None:
        return card.total_bytes - card.context_bytes - nccl_bytes(ranks)[1]
    found = parse_bytes(capacity)
    if not 0 < found <= ENDLESS:
        raise ValueError("a capacity must be above 0 bytes and at most 2^50")
    return found


# ---- Largest -----------------------------------------------------------------------------


def largest_batch(
    make_step: Callable[[int], Callable[[], Any]],
    capacity: int | str,
    *,
    device: str = "NVIDIA H200",
    settings: str = "",
    steps: int = 2,
    most: int = 1 << 16,
) -> int:
    """The largest batch that fits into `capacity`.

    Rehearses two small batches, then interpolates between the largest that fits and the
    smallest that does not. With ranges of kernel memory the upper end counts.

    Args:
        make_step: Gets a batch size, builds the program, and returns the function that makes a
            step; it is called anew for each batch that is tried.
        capacity: Bytes that PyTorch's allocator can have, as a number or a text like "24GiB".
        device: The card, as `rehearse` has it.
        settings: A text for PYTORCH_CUDA_ALLOC_CONF.
        steps: How many steps of each are made; two, since optimizers make their state in the
            first.
        most: The largest batch that is tried.

    Returns:
        The batch size; 0 where not even one example fits.

    Raises:
        RehearsalError: The program failed.
        ValueError: An argument is out of range.

    Example:
        >>> import torch, neutracer
        >>> def make_step(batch):
        ...     model = torch.nn.Linear(4096, 4096, device="cuda")
        ...     return lambda: model(torch.randn(batch, 4096, device="cuda")).sum().backward()
        >>> neutracer.largest_batch(make_step, "1GiB", device="A100")  # doctest: +SKIP
        26112
    """
    room, bound = parse_bytes(capacity), whole_number("most", most, least=1)
    if room <= 0:
        raise ValueError("a capacity must be above 0 bytes")

    def needs_of(batch: int) -> int:
        snap: Any = rehearse(
            lambda: make_step(batch),
            steps=steps,
            device=device,
            settings=settings,
            capacity=ENDLESS,
        )
        return int(snap.rehearsed.needs[1])

    return search(needs_of, room, bound)[0]


def search(needs_of: Callable[[int], int], room: int, most: int) -> tuple[int, dict[int, int]]:
    """The largest batch up to `most` that needs at most `room`, and the needs of all tried.

    Example:
        >>> search(lambda batch: 10 + 3 * batch, 100, 1000)[0]
        30
    """
    needs: dict[int, int] = {}

    def fits(batch: int) -> bool:
        needs[batch] = needs_of(batch)
        return needs[batch] <= room

    if not fits(1):
        return 0, needs
    low, high = 1, most + 1
    while high - low > 1:
        batch = _guess(needs, low, high, room)
        if fits(batch):
            low = batch
        else:
            high = batch
    return low, needs


# Bytes by which the needs of a program rise.
_PAGE = 2 << 20


def _guess(needs: dict[int, int], low: int, high: int, room: int) -> int:
    """The next batch to try, by linear interpolation of the known needs."""
    below = [batch for batch in needs if batch < low]
    if high in needs:
        first, last = low, high
    elif below:
        first, last = max(below), low
    else:
        return min(4 * low, high - 1)
    each = (needs[last] - needs[first]) / (last - first)
    if each <= 0:
        return min(4 * low, high - 1)
    # Needs rise in pages: near the room a line leads nowhere. At worst every third try halves.
    page = _PAGE / each
    if high in needs and (high - low <= 4 * page or len(needs) % 3 == 0):
        return (low + high) // 2
    # A page above and below by turns, so that both ends come near.
    aside = page if len(needs) % 2 or high not in needs else -page
    guess = low + int((room - needs[low]) / each + aside)
    return min(max(guess, low + 1), high - 1)
