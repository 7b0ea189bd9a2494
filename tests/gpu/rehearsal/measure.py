# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501
"""What the kernels of this card take besides their results: small real calls, recorded.

    python tests/gpu/rehearsal/measure.py OUT [--seconds N]

Writes OUT/calls.json.gz: {"card", "capability", "sms", "torch", "cuda", "cudnn", "calls",
"skipped"}. A call is {"op", "args", "kwargs", "outs", "events"}; a tensor is {"d": dtype,
"s": shape, "t": strides}. Its events are in order: [n, bytes, is_output] is allocation number n
of the call (bytes as requested), [n] its end. Only calls that allocate something that they do
not return are kept, and one call of each operator and arguments. OUT/attention.json.gz says which
kernel of attention PyTorch chooses.
"""

from __future__ import annotations

import argparse
import gzip
import itertools
import json
import os
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

D = "cuda"


def spec(value: Any) -> Any:
    if isinstance(value, Tensor):
        return {
            "d": str(value.dtype)[6:],
            "s": list(value.shape),
            "t": list(value.stride()),
            "v": value.device.type,
        }
    if isinstance(value, list | tuple):
        return [spec(item) for item in value]
    if isinstance(value, bool | int | float | str) or value is None:
        return value
    return str(value)


class Calls(TorchDispatchMode):
    """Every operator that runs, and a label on what it allocates."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[dict[str, Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        call: dict[str, Any] = {
            "op": str(func),
            "args": spec(args),
            "kwargs": spec(list((kwargs or {}).items())),
        }
        number = len(self.calls)
        self.calls.append(call)
        torch.cuda.memory._set_memory_metadata(str(number))
        try:
            result = func(*args, **(kwargs or {}))
        finally:
            torch.cuda.memory._set_memory_metadata("")
        call["outs"] = spec(result)
        call["places"] = [
            leaf.untyped_storage().data_ptr()
            for leaf in tree_leaves(result)
            if isinstance(leaf, Tensor)
        ]
        return result


def joined(calls: list[dict[str, Any]], trace: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Calls with their own events; of those that differ in nothing one."""
    events: dict[int, list[Any]] = {}
    numbers: dict[int, dict[int, int]] = {}
    for event in trace:
        label = event.get("user_metadata", "")
        if not label or event["action"] not in ("alloc", "free_completed"):
            continue
        number = int(label)
        mine, known = events.setdefault(number, []), numbers.setdefault(number, {})
        if event["action"] == "alloc":
            known[event["addr"]] = len(mine)
            places = calls[number].get("places", [])
            mine.append([len(mine), event["size"], event["addr"] in places])
        elif event["addr"] in known:
            mine.append([known.pop(event["addr"])])
    kept: dict[str, dict[str, Any]] = {}
    for number, mine in events.items():
        call = {key: value for key, value in calls[number].items() if key != "places"}
        if any(len(event) == 3 and not event[2] for event in mine):
            call["events"] = mine
            kept.setdefault(json.dumps([call["op"], call["args"], call["kwargs"], mine]), call)
    return list(kept.values())


def quiet(calls: list[dict[str, Any]], kept: list[dict[str, Any]]) -> dict[str, int]:
    """How many calls of each operator took nothing besides their results."""
    loud: dict[str, int] = {}
    for call in kept:
        loud[call["op"]] = loud.get(call["op"], 0) + 1
    counted: dict[str, int] = {}
    for call in calls:
        counted[call["op"]] = counted.get(call["op"], 0) + 1
    return {op: count for op, count in counted.items() if op not in loud}


# Cases. A case is a function without arguments that makes ordinary calls.

Case = Callable[[], Any]
FLOATS = (torch.float32, torch.bfloat16, torch.float16)


def rand(*shape: int, dtype: torch.dtype = torch.float32, grad: bool = False) -> Tensor:
    return torch.randn(*shape, device=D, dtype=dtype).requires_grad_(grad)


def back(y: Any) -> None:
    leaves = [leaf for leaf in tree_leaves(y) if isinstance(leaf, Tensor) and leaf.requires_grad]
    torch.autograd.backward(leaves, [torch.ones_like(leaf) for leaf in leaves])


def products() -> Iterator[Case]:
    for dtype, n in itertools.product(FLOATS, (64, 1024)):

        def case(dtype: torch.dtype = dtype, n: int = n) -> None:
            x, w, b = (
                rand(n, n, dtype=dtype, grad=True),
                rand(n, n, dtype=dtype, grad=True),
                rand(n, dtype=dtype, grad=True),
            )
            back(F.linear(x, w))
            back(F.linear(x, w, b))
            back(F.gelu(F.linear(x, w, b)))
            back(torch.bmm(x.view(4, n // 4, n), rand(4, n, 8, dtype=dtype, grad=True)))
            torch.baddbmm(
                rand(4, 16, 16, dtype=dtype),
                rand(4, 16, 8, dtype=dtype),
                rand(4, 8, 16, dtype=dtype),
            )
            torch.mv(x.detach(), x.detach()[0])
            torch.dot(x.detach()[0], x.detach()[1])

        yield case
    yield lambda: back(
        torch.einsum("bij,bjk->bik", rand(4, 32, 64, grad=True), rand(4, 64, 16, grad=True))
    )


#: (channels in, out, kernel, stride, padding, groups, side)
CONVOLUTIONS = [
    (3, 64, 7, 2, 3, 1, 224), (64, 64, 3, 1, 1, 1, 56), (64, 128, 3, 2, 1, 1, 56),
    (128, 128, 3, 1, 1, 1, 28), (128, 256, 3, 2, 1, 1, 28), (256, 256, 3, 1, 1, 1, 14),
    (256, 512, 3, 2, 1, 1, 14), (512, 512, 3, 1, 1, 1, 7), (64, 256, 1, 1, 0, 1, 56),
    (256, 64, 1, 1, 0, 1, 56), (256, 128, 1, 1, 0, 1, 56), (512, 1024, 1, 2, 0, 1, 28),
    (1024, 2048, 1, 2, 0, 1, 14), (2048, 512, 1, 1, 0, 1, 7), (64, 128, 1, 2, 0, 1, 56),
    (3, 32, 3, 1, 1, 1, 256), (32, 32, 3, 1, 1, 1, 256), (32, 64, 3, 1, 1, 1, 128),
    (64, 64, 3, 1, 1, 1, 128), (128, 64, 3, 1, 1, 1, 128), (64, 4, 1, 1, 0, 1, 256),
    (3, 768, 16, 16, 0, 1, 224), (3, 1024, 14, 14, 0, 1, 224), (3, 96, 4, 4, 0, 1, 224),
    (96, 96, 7, 1, 3, 96, 56), (384, 384, 7, 1, 3, 384, 14), (96, 192, 2, 2, 0, 1, 56),
    (32, 32, 3, 1, 1, 32, 112), (144, 144, 5, 2, 2, 144, 56), (256, 256, 3, 1, 1, 32, 28),
    (4, 128, 3, 1, 1, 1, 64), (128, 128, 3, 1, 1, 1, 64), (256, 256, 3, 1, 1, 1, 32),
    (128, 256, 3, 1, 1, 1, 32), (512, 512, 3, 1, 1, 1, 16), (256, 256, 3, 2, 1, 1, 32),
    (512, 512, 3, 1, 1, 1, 64), (768, 256, 3, 1, 1, 1, 32), (256, 768, 1, 1, 0, 1, 32),
    (128, 4, 3, 1, 1, 1, 64), (320, 320, 3, 1, 1, 1, 64), (64, 19, 1, 1, 0, 1, 128),
    (1, 32, 3, 1, 0, 1, 28), (32, 64, 3, 1, 0, 1, 26), (3, 6, 5, 1, 0, 1, 32),
    (48, 80, 3, 1, 1, 1, 40), (100, 60, 5, 1, 2, 1, 30),
]  # fmt: skip


def convolutions() -> Iterator[Case]:
    formats = (torch.contiguous_format, torch.channels_last)
    for batch in (64, 16):
        for dtype, memory in ((torch.float32, formats[0]), (torch.bfloat16, formats[0]),
                              (torch.float16, formats[1]), (torch.float32, formats[1]),
                              (torch.float16, formats[0]), (torch.bfloat16, formats[1])):  # fmt: skip
            if batch == 64 and (dtype, memory) not in (
                (torch.float32, formats[0]),
                (torch.bfloat16, formats[0]),
            ):
                continue
            for i, o, k, s, p, g, side in CONVOLUTIONS:

                def case(b: int = batch, d: torch.dtype = dtype, m: Any = memory, i: int = i, o: int = o,
                         k: int = k, s: int = s, p: int = p, g: int = g, side: int = side) -> None:  # fmt: skip
                    x = (
                        torch.randn(b, i, side, side, device=D, dtype=d)
                        .to(memory_format=m)
                        .requires_grad_()
                    )
                    w = (
                        torch.randn(o, i // g, k, k, device=D, dtype=d)
                        .to(memory_format=m)
                        .requires_grad_()
                    )
                    bias = rand(o, dtype=d, grad=True) if k != 3 else None
                    back(F.conv2d(x, w, bias, s, p, 1, g))

                yield case
    for dtype in FLOATS[:2]:
        for b, i, o, k, s, p, side in ((8, 64, 32, 2, 2, 0, 128), (16, 256, 256, 4, 2, 1, 32), (16, 512, 512, 4, 2, 1, 16), (32, 100, 512, 4, 1, 0, 1)):  # fmt: skip
            yield lambda d=dtype, b=b, i=i, o=o, k=k, s=s, p=p, side=side: back(
                F.conv_transpose2d(
                    rand(b, i, side, side, dtype=d, grad=True),
                    rand(i, o, k, k, dtype=d, grad=True),
                    None,
                    s,
                    p,
                )
            )
        for b, i, o, k, s, p, length in ((16, 1, 64, 10, 5, 0, 16000), (16, 512, 512, 3, 1, 1, 400), (8, 80, 384, 3, 1, 1, 3000), (8, 384, 384, 3, 2, 1, 3000)):  # fmt: skip
            yield lambda d=dtype, b=b, i=i, o=o, k=k, s=s, p=p, n=length: back(
                F.conv1d(
                    rand(b, i, n, dtype=d, grad=True), rand(o, i, k, dtype=d, grad=True), None, s, p
                )
            )
        for b, i, o, k, s, p, side in (
            (2, 1, 32, 3, 1, 1, 64),
            (2, 32, 32, 3, 1, 1, 64),
            (2, 64, 128, 3, 2, 1, 32),
        ):
            yield lambda d=dtype, b=b, i=i, o=o, k=k, s=s, p=p, n=side: back(
                F.conv3d(
                    rand(b, i, n, n, n, dtype=d, grad=True),
                    rand(o, i, k, k, k, dtype=d, grad=True),
                    None,
                    s,
                    p,
                )
            )


def attention() -> Iterator[Case]:
    shapes = ((8, 12, 512, 512, 64), (4, 16, 1024, 1024, 64), (4, 32, 1024, 1024, 128), (2, 8, 77, 77, 40),
              (16, 4, 1024, 1024, 32), (8, 12, 197, 197, 64), (2, 8, 4096, 4096, 40), (2, 8, 4096, 77, 160),
              (1, 32, 2048, 2048, 128), (2, 16, 300, 300, 96), (4, 8, 256, 256, 256), (8, 12, 1, 512, 128))  # fmt: skip
    for dtype, causal, (b, h, q, k, e) in itertools.product(FLOATS, (False, True), shapes):
        if causal and q != k:
            continue

        def case(
            d: torch.dtype = dtype,
            c: bool = causal,
            b: int = b,
            h: int = h,
            q: int = q,
            k: int = k,
            e: int = e,
        ) -> None:
            one = rand(b, q, h, e, dtype=d, grad=True).transpose(1, 2)
            two, three = (rand(b, k, h, e, dtype=d, grad=True).transpose(1, 2) for _ in "kv")
            back(F.scaled_dot_product_attention(one, two, three, is_causal=c))
            back(F.scaled_dot_product_attention(one, two, three, is_causal=c, dropout_p=0.1))
            with torch.no_grad():
                F.scaled_dot_product_attention(one, two, three, is_causal=c)
            if not c:
                for mask in (
                    torch.ones(b, 1, q, k, device=D, dtype=torch.bool),
                    torch.zeros(b, 1, q, k, device=D, dtype=d),
                ):
                    back(F.scaled_dot_product_attention(one, two, three, mask))
            few = [part[:, : max(1, h // 4)] for part in (two, three)]
            back(F.scaled_dot_product_attention(one, *few, is_causal=c, enable_gqa=True))

        yield case


def norms() -> Iterator[Case]:
    for dtype, (rows, width) in itertools.product(
        FLOATS[:2], ((4096, 1024), (16384, 768), (64, 512), (100000, 128), (8192, 4096), (128, 65))
    ):

        def case(d: torch.dtype = dtype, rows: int = rows, width: int = width) -> None:
            x = rand(rows, width, dtype=d, grad=True)
            w, b = rand(width, dtype=d, grad=True), rand(width, dtype=d, grad=True)
            back(F.layer_norm(x, (width,), w, b))
            back(F.rms_norm(x, (width,), w))
            back(F.layer_norm(x.float(), (width,), w.float(), b.float()))
            for f in (F.softmax, F.log_softmax):
                back(f(x, dim=-1))
            back(F.cross_entropy(x, torch.randint(0, width, (rows,), device=D)))
            back(F.gelu(x)), back(F.silu(x)), back(F.dropout(x, 0.1)), back(F.mish(x))  # fmt: skip
            for f in (
                torch.sum,
                torch.mean,
                torch.var,
                torch.std,
                torch.amax,
                torch.argmax,
                torch.norm,
                torch.logsumexp,
            ):
                f(x, 0), f(x, 1), f(x) if f is not torch.logsumexp else None  # fmt: skip
            x.detach().isfinite().all(), (x > 0).any(), torch.var_mean(x, 1), torch.median(x.detach()), x.max(1)  # fmt: skip

        yield case
    for dtype, b, c, side in itertools.product(FLOATS[:2], (8, 64), (64, 256), (16, 56)):

        def images(d: torch.dtype = dtype, b: int = b, c: int = c, side: int = side) -> None:
            for m in (torch.contiguous_format, torch.channels_last):
                x = (
                    torch.randn(b, c, side, side, device=D, dtype=d)
                    .to(memory_format=m)
                    .requires_grad_()
                )
                bn, gn = nn.BatchNorm2d(c).to(D), nn.GroupNorm(32, c).to(D, d)
                back(bn(x)), back(gn(x)), back(nn.InstanceNorm2d(c).to(D)(x))  # fmt: skip
                bn.eval()
                back(bn(x))
                back(F.max_pool2d(x, 2)), back(F.adaptive_avg_pool2d(x, 1)), back(F.avg_pool2d(x, 2))  # fmt: skip
                back(F.interpolate(x, scale_factor=2)), back(F.interpolate(x, scale_factor=2, mode="bilinear"))  # fmt: skip
                back(F.pixel_shuffle(x, 2)), back(F.pad(x, (1, 1, 1, 1), "reflect"))  # fmt: skip
                back(F.cross_entropy(x, torch.randint(0, c, (b, side, side), device=D)))

        yield images


def indices() -> Iterator[Case]:
    for dtype, rows, width, n in itertools.product(
        FLOATS[:2], (1000, 32000), (64, 1024), (512, 4096, 32768)
    ):

        def case(d: torch.dtype = dtype, rows: int = rows, width: int = width, n: int = n) -> None:
            w = rand(rows, width, dtype=d, grad=True)
            ids = torch.randint(0, rows, (n,), device=D)
            back(F.embedding(ids, w)), back(F.embedding(ids.view(8, -1), w, padding_idx=0))  # fmt: skip
            back(F.embedding_bag(ids.view(-1, 8), w, mode="sum"))
            back(w[ids]), back(torch.index_select(w, 0, ids))  # fmt: skip
            src = rand(n, width, dtype=d, grad=True)
            out = torch.zeros(rows, width, device=D, dtype=d)
            back(out.index_add(0, ids, src)), back(out.scatter_add(0, ids[:, None].expand(-1, width), src))  # fmt: skip
            back(torch.gather(w, 1, torch.randint(0, width, (rows, 4), device=D)))
            out.index_put_((ids,), src.detach(), accumulate=True)
            out.scatter_reduce(0, ids[:, None].expand(-1, width), src.detach(), "mean")
            back(w.take_along_dim(torch.zeros(1, width, device=D, dtype=torch.long), 0)), w.detach().masked_fill(w > 0, 1)  # fmt: skip
            back(w[w > 0])

        yield case
    for n in (1000, 100_000, 3_000_000):

        def order(n: int = n) -> None:
            x, ids = torch.randn(n, device=D), torch.randint(0, 1000, (n,), device=D)
            x.sort(), ids.sort(), ids.argsort(), x.topk(10), x.cumsum(0), ids.cumsum(0), x.logcumsumexp(0)  # fmt: skip
            ids.unique(), ids.bincount(), x.nonzero(), (x > 0).nonzero(), x[x > 0], torch.randperm(n, device=D)  # fmt: skip
            x.histc(10), torch.searchsorted(x.sort()[0], x), x.kthvalue(5), x.median(), x.quantile(0.5) if n < 1e7 else 0  # fmt: skip
            torch.multinomial(x.abs()[:1000], 10), F.one_hot(ids), x.view(-1, 100).sort(1), x.view(-1, 100).topk(5, 1)  # fmt: skip
            x.view(-1, 100).cumsum(1), x.view(-1, 100).cumsum(0), x.view(-1, 100).softmax(0), torch.repeat_interleave(ids, 2)  # fmt: skip
            ids.unique(return_inverse=True), torch.where(x > 0), x.masked_select(x > 0), ids.unique_consecutive()  # fmt: skip

        yield order
    yield lambda: [
        rand(16, 32000).topk(50),
        rand(16, 32000).sort(),
        torch.multinomial(rand(16, 32000).softmax(-1), 1),
        rand(16, 32000).cumsum(-1),
    ]


def recurrent() -> Iterator[Case]:
    for kind, (batch, length, inputs, width, layers, both) in itertools.product(
        (nn.LSTM, nn.GRU, nn.RNN),
        (
            (64, 100, 512, 1024, 2, False),
            (32, 50, 256, 256, 1, False),
            (16, 200, 128, 512, 3, True),
        ),
    ):
        for dtype in FLOATS[:2]:

            def case(k: Any = kind, b: int = batch, n: int = length, i: int = inputs, w: int = width, layers: int = layers,
                     both: bool = both, d: torch.dtype = dtype) -> None:  # fmt: skip
                net = k(
                    i,
                    w,
                    layers,
                    dropout=0.2 if layers > 1 else 0.0,
                    bidirectional=both,
                    batch_first=True,
                ).to(D, d)
                x = rand(b, n, i, dtype=d, grad=True)
                back(net(x)[0])
                with torch.no_grad():
                    net.eval()(x)

            yield case


def optimizers() -> Iterator[Case]:
    for name, options in (("SGD", {"momentum": 0.9}), ("Adam", {}), ("AdamW", {}), ("AdamW", {"fused": True}), ("AdamW", {"foreach": False}),
                          ("AdamW", {"amsgrad": True}), ("RMSprop", {}), ("Adagrad", {}), ("Adafactor", {}), ("NAdam", {}), ("Muon", {})):  # fmt: skip

        def case(name: str = name, options: dict[str, Any] = options) -> None:
            net = nn.Sequential(*[nn.Linear(512, 512, bias=False) for _ in range(8)]).to(D)
            optimizer = getattr(torch.optim, name)(net.parameters(), lr=1e-3, **options)
            for _ in range(2):
                back(net(rand(8, 512)))
                nn.utils.clip_grad_norm_(net.parameters(), 1.0)
                optimizer.step()

        yield case

    def scaled() -> None:
        net, scaler = nn.Linear(64, 64).to(D), torch.amp.GradScaler("cuda")
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        scaler.scale(net(rand(4, 64)).sum()).backward()
        scaler.step(optimizer), scaler.update()  # fmt: skip

    yield scaled


def other() -> Iterator[Case]:
    yield lambda: [
        torch.fft.rfft2(rand(8, 64, 128, 128)),
        torch.fft.irfft(torch.fft.rfft(rand(64, 4096))),
        torch.fft.fft(rand(64, 3000)),
    ]
    yield lambda: [
        torch.linalg.cholesky(torch.eye(512, device=D).expand(4, -1, -1).contiguous()),
        torch.linalg.inv(torch.eye(256, device=D) * 2),
    ]
    yield lambda: [
        torch.linalg.svd(rand(128, 64)),
        torch.linalg.qr(rand(256, 128)),
        torch.linalg.eigh(torch.eye(128, device=D)),
        torch.linalg.solve(torch.eye(64, device=D), rand(64, 4)),
    ]
    yield lambda: [
        torch.cdist(rand(512, 64), rand(512, 64)),
        F.grid_sample(rand(4, 16, 64, 64), rand(4, 32, 32, 2)),
    ]
    yield lambda: back(
        F.ctc_loss(
            rand(100, 16, 40, grad=True).log_softmax(-1),
            torch.randint(1, 40, (16, 20), device=D),
            torch.full((16,), 100),
            torch.full((16,), 20),
        )
    )
    yield lambda: back(torch.cat([rand(64, 1024, grad=True) for _ in range(40)]))
    yield lambda: back(F.unfold(rand(4, 16, 64, 64, grad=True), 3))
    yield lambda: back(
        F.binary_cross_entropy_with_logits(
            rand(64, 1000, grad=True), torch.rand(64, 1000, device=D)
        )
    )
    yield lambda: [
        torch.stft(
            rand(8, 16000), 400, 160, window=torch.hann_window(400, device=D), return_complex=True
        )
    ]
    yield lambda: back(
        F.multi_head_attention_forward(
            *[rand(64, 8, 256, grad=True)] * 3,
            256,
            8,
            rand(768, 256),
            rand(768),
            None,
            None,
            False,
            0.0,
            rand(256, 256),
            rand(256),
            need_weights=True,
        )[0]
    )


#: The groups with the seconds that each may take; attention last, since cuDNN takes seconds to
#: compile a kernel for each shape.
GROUPS = (
    (convolutions, 90.0),
    (recurrent, 15.0),
    (norms, 15.0),
    (indices, 15.0),
    (products, 10.0),
    (optimizers, 10.0),
    (other, 10.0),
    (attention, 60.0),
)


def chosen() -> list[dict[str, Any]]:
    """Which kernel of attention PyTorch chooses: 0 plain, 1 flash, 2 efficient, 3 cuDNN."""
    found = []
    shapes = itertools.product(
        FLOATS,
        (8, 32, 40, 64, 72, 96, 128, 160, 192, 256, 264),
        (64, 77, 1024),
        ("", "causal", "bool", "float"),
        (0.0, 0.1),
        (True, False),
    )
    for dtype, e, n, mask, dropout, grad in shapes:
        q = rand(2, 4, n, e, dtype=dtype, grad=grad)
        m = {
            "bool": torch.ones(2, 1, n, n, device=D, dtype=torch.bool),
            "float": torch.zeros(2, 1, n, n, device=D, dtype=dtype),
        }.get(mask)
        choice = torch._fused_sdp_choice(q, q, q, m, dropout, mask == "causal")
        found.append(
            {
                "d": str(dtype)[6:],
                "e": e,
                "n": n,
                "mask": mask,
                "dropout": dropout,
                "grad": grad,
                "choice": int(choice),
            }
        )
    return found


class Found:
    """What was measured so far."""

    def __init__(self, out: Path) -> None:
        self.out, self.made = out, 0
        self.kept: list[dict[str, Any]] = []
        self.quiet: dict[str, int] = {}
        self.skipped: list[str] = []

    def write(self) -> None:
        properties = torch.cuda.get_device_properties(0)
        facts = {
            "card": properties.name,
            "capability": [properties.major, properties.minor],
            "sms": properties.multi_processor_count,
            "bytes": properties.total_memory,
            "torch": torch.__version__,
            "cuda": torch.version.cuda,
            "cudnn": torch.backends.cudnn.version(),
            "calls": self.kept,
            "quiet": self.quiet,
            "skipped": self.skipped,
        }
        made = self.out / "calls.json.gz.part"
        made.write_bytes(gzip.compress(json.dumps(facts).encode()))
        made.replace(self.out / "calls.json.gz")


def measure(group: Callable[[], Iterator[Case]], seconds: float, found: Found) -> None:
    """Run the cases of a group for so long, and keep what they took."""
    torch.cuda.memory._record_memory_history(context=None)
    mode, began, name = Calls(), time.perf_counter(), group.__name__
    with torch.autograd.set_multithreading_enabled(False):
        for number, case in enumerate(group()):
            if time.perf_counter() - began > seconds:
                found.skipped.append(f"{name} {number}: no time left")
                break
            try:
                with mode:
                    case()
                torch.cuda.synchronize()
            except Exception as error:
                line = traceback.extract_tb(error.__traceback__)[-1].lineno
                said = f"{type(error).__name__}: {str(error)[:200]}"
                found.skipped.append(f"{name} {number} (line {line}): {said}")
    trace = torch.cuda.memory._snapshot()["device_traces"][torch.cuda.current_device()]
    torch.cuda.memory._record_memory_history(None)
    kept = joined(mode.calls, trace)
    found.kept += kept
    found.quiet.update(quiet(mode.calls, kept))
    found.made += len(mode.calls)


def main() -> int:
    parser = argparse.ArgumentParser(description="What kernels take besides their results.")
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=240)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    began = time.perf_counter()
    # A call of a library that hangs must not take along what was measured before it.
    stop = threading.Timer(options.seconds + 15, os._exit, (3,))
    stop.daemon = True
    stop.start()
    found = Found(options.out)
    for group, seconds in GROUPS:
        left = options.seconds - (time.perf_counter() - began)
        if left > 0:
            measure(group, min(seconds, left), found)
            found.write()
        print(f"{group.__name__}: {time.perf_counter() - began:.0f} s", flush=True)
    print(*found.skipped, sep="\n")
    print(f"{found.made} calls, {len(found.kept)} kept, {len(found.skipped)} skipped")
    stop.cancel()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
