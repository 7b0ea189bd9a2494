# SPDX-License-Identifier: Apache-2.0
"""The features of training programs that watching must not change, and what they come to."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

__all__ = ["FEATURES", "Feature", "digest", "feature", "model_of", "train"]


@dataclass(frozen=True)
class Feature:
    """A small program.

    Attributes:
        name: What the table calls it.
        run: Takes "cuda" or "cpu", and returns what it comes to.
        cuda: Whether it needs CUDA.
        quick: Whether the ordinary tests run it, on the CPU.
    """

    name: str
    run: Callable[[str], Any]
    cuda: bool
    quick: bool


FEATURES: dict[str, Feature] = {}

Program = Callable[[str], Any]


def feature(*, cuda: bool = False, quick: bool = True) -> Callable[[Program], Program]:
    """Add a function to the features under its own name."""

    def add(run: Program) -> Program:
        name = run.__name__
        assert name not in FEATURES, name
        FEATURES[name] = Feature(name, run, cuda, quick and not cuda)
        return run

    return add


def digest(value: Any) -> str:
    """A fingerprint of results, bit for bit; of an exception its type and words."""
    summed = hashlib.sha256()
    for piece in _pieces(value):
        summed.update(piece + b"\0")
    return summed.hexdigest()[:16]


def _pieces(value: Any) -> Iterator[bytes]:
    if isinstance(value, torch.Tensor):
        yield from _of_tensor(value)
    elif isinstance(value, torch.cuda.OutOfMemoryError):
        # Its words have what other processes hold.
        yield b"OutOfMemoryError"
    elif isinstance(value, BaseException):
        yield f"{type(value).__name__}: {value}".encode()
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield repr(key).encode()
            yield from _pieces(item)
    elif isinstance(value, (list, tuple)):
        yield str(len(value)).encode()
        for item in value:
            yield from _pieces(item)
    else:
        assert value is None or isinstance(value, (bool, int, float, str, bytes)), type(value)
        yield repr(value).encode()


def _of_tensor(value: torch.Tensor) -> Iterator[bytes]:
    plain = value.detach()
    if plain.layout is not torch.strided:
        plain = plain.to_dense()
    plain = plain.cpu().contiguous()
    yield f"{plain.dtype} {tuple(plain.shape)}".encode()
    yield plain.flatten().view(torch.uint8).numpy().tobytes() if plain.numel() else b""


def model_of(device: str, width: int = 64, layers: int = 3) -> torch.nn.Module:
    """Linear layers with dropout between them."""
    parts: list[torch.nn.Module] = []
    for _ in range(layers):
        parts += [torch.nn.Linear(width, width), torch.nn.ReLU(), torch.nn.Dropout(0.1)]
    return torch.nn.Sequential(*parts).to(device)


def train(
    model: torch.nn.Module,
    forward: Callable[[torch.Tensor], torch.Tensor],
    device: str,
    *,
    steps: int = 3,
    width: int = 64,
) -> list[Any]:
    """Some steps of SGD; the losses and the parameters after them."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = forward(torch.randn(16, width, device=device)).square().mean()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(loss.detach())
    return [losses, [p.detach() for p in model.parameters()]]
