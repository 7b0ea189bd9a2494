# SPDX-License-Identifier: Apache-2.0
"""What this machine's card takes for kernels, measured by small real calls."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from neutracer.rehearsal.known import Facts, convolution_key

__all__ = ["joined", "learn"]

aten = torch.ops.aten

#: Channels in and out, kernel, stride, padding, groups, side of the image: the convolutions of
#: the usual networks for images.
_SHAPES = (
    *((3, 64, 7, 2, 3, 1, 224), (64, 64, 3, 1, 1, 1, 56), (64, 128, 3, 2, 1, 1, 56)),
    *((128, 128, 3, 1, 1, 1, 28), (128, 256, 3, 2, 1, 1, 28), (256, 256, 3, 1, 1, 1, 14)),
    *((256, 512, 3, 2, 1, 1, 14), (512, 512, 3, 1, 1, 1, 7), (64, 256, 1, 1, 0, 1, 56)),
    *((256, 64, 1, 1, 0, 1, 56), (256, 128, 1, 1, 0, 1, 56), (512, 1024, 1, 2, 0, 1, 28)),
    *((1024, 2048, 1, 2, 0, 1, 14), (2048, 512, 1, 1, 0, 1, 7), (64, 128, 1, 2, 0, 1, 56)),
    *((3, 32, 3, 1, 1, 1, 256), (32, 32, 3, 1, 1, 1, 256), (32, 64, 3, 1, 1, 1, 128)),
    *((64, 64, 3, 1, 1, 1, 128), (128, 64, 3, 1, 1, 1, 128), (64, 4, 1, 1, 0, 1, 256)),
    *((3, 768, 16, 16, 0, 1, 224), (3, 1024, 14, 14, 0, 1, 224), (3, 96, 4, 4, 0, 1, 224)),
    *((96, 96, 7, 1, 3, 96, 56), (384, 384, 7, 1, 3, 384, 14), (96, 192, 2, 2, 0, 1, 56)),
    *((32, 32, 3, 1, 1, 32, 112), (256, 256, 3, 1, 1, 32, 28), (4, 128, 3, 1, 1, 1, 64)),
    *((128, 128, 3, 1, 1, 1, 64), (256, 256, 3, 1, 1, 1, 32), (128, 256, 3, 1, 1, 1, 32)),
    *((512, 512, 3, 1, 1, 1, 16), (512, 512, 3, 1, 1, 1, 64), (320, 320, 3, 1, 1, 1, 64)),
)
_BATCHES = (16, 64)
_TYPES = (torch.float32, torch.bfloat16, torch.float16)
_MASKS = ([True, True, False], [False, True, False])


def _calls() -> Iterator[tuple[str, Callable[[], Any]]]:
    """Names, as facts have them, and calls; a call's tensors are there before it."""
    for batch in _BATCHES:
        for dtype in _TYPES:
            for is_last in (False, True):
                for shape in _SHAPES:
                    yield from _convolution(batch, dtype, is_last, shape)


def _convolution(
    batch: int, dtype: torch.dtype, is_last: bool, shape: tuple[int, ...]
) -> Iterator[tuple[str, Callable[[], Any]]]:
    inputs, outputs, kernel, stride, padding, groups, side = shape
    layout = torch.channels_last if is_last else torch.contiguous_format
    options: dict[str, Any] = {"device": "cuda", "dtype": dtype}
    x = torch.randn(batch, inputs, side, side, **options).to(memory_format=layout)
    w = torch.randn(outputs, inputs // groups, kernel, kernel, **options).to(memory_format=layout)
    numbers = ([stride] * 2, [padding] * 2, [1] * 2, False, [0] * 2, groups)
    sides = [f"{n}x{n}" for n in (stride, padding, 1)]
    name = str(dtype).removeprefix("torch.")
    last = is_last and inputs > 1

    def key(kind: str) -> str:
        return convolution_key(kind, name, last, (x.shape, w.shape), (*sides, groups, 0))

    y: list[Tensor] = []
    yield key("forward"), lambda: y.append(aten.convolution(x, w, None, *numbers))
    for mask in _MASKS:
        kind = "backward " + "".join(str(int(one)) for one in mask)
        yield key(kind), partial(_backward, y, x, w, numbers, mask)


def _backward(y: list[Tensor], x: Tensor, w: Tensor, numbers: Any, mask: list[bool]) -> Any:
    # Its result stands for the gradient of the result.
    return aten.convolution_backward(y[0], x, w, None, *numbers, mask)


def joined(trace: list[dict[str, Any]]) -> dict[str, tuple[int, ...]]:
    """By label the bytes of what was allocated and freed under it, in the order of requests.

    Args:
        trace: Events of PyTorch's recorder; `user_metadata` is the label.
    """
    found: dict[str, list[int]] = {}
    open_: dict[str, dict[int, int]] = {}
    for event in trace:
        label = event.get("user_metadata", "")
        if not label:
            continue
        mine, live = found.setdefault(label, []), open_.setdefault(label, {})
        if event["action"] == "alloc":
            live[event["addr"]] = len(mine)
            mine.append(event["size"])
        elif event["action"] == "free_completed" and event["addr"] in live:
            # Taken back, so that only what was freed under the label counts.
            mine[live.pop(event["addr"])] *= -1
    return {
        label: tuple(-size for size in sizes if size < 0)
        for label, sizes in found.items()
        if any(size < 0 for size in sizes)
    }


def learn(seconds: float, progress: Callable[[str], object] | None = None) -> Facts:
    """Measure what convolutions take on the current device.

    It switches PyTorch's recorder on, and off again.

    Args:
        seconds: After about how many it stops.
        progress: Called with a line of text now and then.

    Returns:
        What was measured until then.
    """
    memory, began, done = torch.cuda.memory, time.perf_counter(), 0
    memory._record_memory_history(context=None)
    try:
        for name, call in _calls():
            if time.perf_counter() - began > seconds:
                break
            memory._set_memory_metadata(name)
            try:
                call()
            except RuntimeError:
                # cuDNN has no engine for it, or it is too large for this card.
                continue
            finally:
                memory._set_memory_metadata("")
            done += 1
            if progress is not None and done % 200 == 0:
                progress(f"{done} calls, {time.perf_counter() - began:.0f} s")
        torch.cuda.synchronize()
        trace = memory._snapshot()["device_traces"][torch.cuda.current_device()]
    finally:
        memory._record_memory_history(None)
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    return Facts(
        str(properties.name),
        (int(properties.major), int(properties.minor)),
        str(torch.__version__),
        int(torch.backends.cudnn.version() or 0),
        joined(trace),
    )
