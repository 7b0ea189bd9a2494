# SPDX-License-Identifier: Apache-2.0
"""The largest batch that a card has room for, by rehearsals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from neutracer.arguments import whole_number
from neutracer.rehearsal.rehearse import rehearse
from neutracer.units import parse_bytes

__all__ = ["largest_batch"]


def largest_batch(
    make_step: Callable[[int], Callable[[], Any]],
    capacity: int | str,
    *,
    device: str = "NVIDIA H200",
    settings: str = "",
    steps: int = 2,
    most: int = 1 << 16,
) -> int:
    """The largest batch with which a program gets by with so much memory.

    Batches are rehearsed: two small ones, then those between the largest that fits and the
    smallest that does not, where what each example takes says that the limit is. Where what
    kernels take is known as a range, a batch fits if it does with the most of it.

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
    needs: dict[int, int] = {}

    def fits(batch: int) -> bool:
        snap = rehearse(
            lambda: make_step(batch),
            steps=steps,
            device=device,
            settings=settings,
            capacity=1 << 50,
        )
        told = snap.rehearsed
        assert told is not None
        needs[batch] = told.ranges.get("needed_bytes", (0, told.needed_bytes))[1]
        return needs[batch] <= room

    if not fits(1):
        return 0
    low, high = 1, bound + 1
    while high - low > 1:
        batch = _guess(needs, low, high, room)
        if fits(batch):
            low = batch
        else:
            high = batch
    return low


def _guess(needs: dict[int, int], low: int, high: int, room: int) -> int:
    """The next batch to try: where a line through what is known meets the limit."""
    below = [batch for batch in needs if batch < low]
    if high in needs:
        first, last = low, high
    elif below:
        first, last = max(below), low
    else:
        return min(2 * low, high - 1)
    each = (needs[last] - needs[first]) / (last - first)
    if each <= 0:
        return min(2 * low, high - 1)
    guess = low + int((room - needs[low]) / each)
    if high not in needs:
        # A little above, so that the next step has a batch that does not fit.
        return min(max(guess + 1, low + 1), high - 1)
    # At worst the span is halved now and then.
    middle = (low + high) // 2
    close = guess if low < guess < high else low + 1
    return close if len(needs) % 3 else middle
