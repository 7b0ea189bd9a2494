# SPDX-License-Identifier: Apache-2.0
"""The cards that a rehearsal can pretend to have."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Card:
    """The properties of a card that decide kernels and limits."""

    name: str
    capability: tuple[int, int]
    processors: int
    processor_threads: int  # The most threads that are at work on one of them.
    total_bytes: int  # Its memory as the driver reports it.
    context_bytes: int  # About what CUDA's context takes, outside PyTorch's allocator.


#: CUDA's table of compute capabilities: the most resident threads of a multiprocessor.
_THREADS = {
    (7, 5): 1024,
    (8, 0): 2048,
    (8, 6): 1536,
    (8, 9): 1536,
    (9, 0): 2048,
    (12, 0): 1536,
}


def _card(name: str, capability: tuple[int, int], processors: int, mib: int) -> Card:
    # A context takes more where there are more processors: its stacks and queues are theirs.
    context = (180 + 3 * processors) << 20
    return Card(name, capability, processors, _THREADS[capability], mib << 20, context)


#: Capability and processors are NVIDIA's. Memory in MiB is the total of `cudaMemGetInfo`, less than
#: nvidia-smi shows and some 100 MiB apart between drivers, with ECC as delivered.
CARDS = (
    _card("NVIDIA H200", (9, 0), 132, 143156),
    _card("NVIDIA H100 80GB HBM3", (9, 0), 132, 81079),
    _card("NVIDIA A100-SXM4-80GB", (8, 0), 108, 81153),
    _card("NVIDIA A100-SXM4-40GB", (8, 0), 108, 40442),
    _card("NVIDIA L40S", (8, 9), 142, 45487),
    _card("NVIDIA L4", (8, 9), 58, 22563),
    _card("NVIDIA GeForce RTX 5090", (12, 0), 170, 32109),
    _card("NVIDIA GeForce RTX 4090", (8, 9), 128, 24080),
    _card("NVIDIA GeForce RTX 3090", (8, 6), 82, 24245),
    _card("Tesla T4", (7, 5), 40, 14913),
)

#: Bytes of a device on which nothing fails.
ENDLESS = 1 << 50

#: NCCL's documentation: a buffer of 4 MiB (NCCL_BUFFSIZE) for each channel and direction with the
#: simple protocol, and those of its low-latency protocols; from 2 channels without NVLink to 32.
_NCCL_CHANNEL = 2 * ((4 << 20) + (1200 << 10) + (256 << 10))
_NCCL_CHANNELS = (2, 32)


def nccl_bytes(world_size: int) -> tuple[int, int]:
    """Least and most bytes of an NCCL communicator per rank, outside PyTorch's allocator.

    Example:
        >>> nccl_bytes(1)
        (0, 0)
    """
    low, high = _NCCL_CHANNELS
    return (low * _NCCL_CHANNEL, high * _NCCL_CHANNEL) if world_size > 1 else (0, 0)


_BRANDS = re.compile(r"nvidia|geforce|tesla|\s|-", re.I)
_MEMORY = re.compile(r"[0-9]+gb")


def _short(name: str) -> str:
    return _BRANDS.sub("", name).lower()


def _fits(words: list[str], name: str) -> bool:
    """Whether each word starts a part of the name, and one of them the model number."""
    parts = [part for part in map(_short, re.split(r"[\s-]+", name)) if part]
    # "L4" does not begin "L40S", and "40" no "4090": a number does not go on.
    begun = {
        word: [part for part in parts if re.match(rf"{re.escape(word)}(?!(?<=[0-9])[0-9])", part)]
        for word in words
    }
    models = [word for word in words if re.search("[0-9]", word)]
    return all(begun.values()) and any(
        not _MEMORY.fullmatch(part) for word in models for part in begun[word]
    )


def find_card(name: str) -> Card:
    """The card of a name, of which a part is enough: "A100", "RTX 4090", "a100 40gb".

    Of several the one with the most memory.
    """
    words = [word for word in map(_short, re.split(r"[\s_-]+", name)) if word]
    wanted = "".join(words)
    exact = [card for card in CARDS if _short(card.name) == wanted]
    # "L4" is no part of "L40S": a number does not go on.
    whole = re.compile(rf"(?<![a-z0-9]){re.escape(wanted)}(?![0-9])|^{re.escape(wanted)}(?![0-9])")
    found = exact or [card for card in CARDS if wanted and whole.search(_short(card.name))]
    found = found or [card for card in CARDS if _fits(words, card.name)]
    if not found:
        known = ", ".join(card.name for card in CARDS)
        raise ValueError(f"unknown card {name!r}: the table has {known}")
    return max(found, key=lambda card: card.total_bytes)
