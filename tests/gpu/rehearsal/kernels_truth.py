# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501
"""What each kind of operator really allocates on a card, held against neutracer's rules.

    python tests/gpu/rehearsal/kernels_truth.py record OUT.json [--seconds 140]     needs a GPU
    python tests/gpu/rehearsal/kernels_truth.py compare OUT.json [--worst 20]       needs none

`record` makes small real calls under PyTorch's recorder and writes one file: {"card",
"capability", "torch", "cuda", "cudnn", "cases", "calls", "skipped"}. It goes on after a case that
ends its process or hangs, and says which that was. A case is {"name", "peak":
the bytes that it took at the most, "ops": how often each operator ran}. A call is {"op", "args",
"kwargs", "outs", "events"}, with the names of the cases that made it; calls that allocate nothing
are left out. A tensor is {"d": dtype, "s": shape, "t": strides}. The events of a call are in order:
[n, bytes, is_output] is its allocation number n (bytes as requested), [n] its end. `compare` makes the same calls on fake tensors on the card that
the file is of, and prints for each family how many calls took what the rules say, lay in the range
that they give, or neither; and the cases whose operators were others than on the card.
"""

from __future__ import annotations

import argparse
import faulthandler
import itertools
import json
import subprocess
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

D = "cuda"
FLOATS = (torch.float32, torch.bfloat16, torch.float16)
Case = tuple[str, Callable[[], Any]]
_MOST_BYTES = 9 << 20
# Seconds without a new case after which a case counts as hanging; the first takes torch's start.
_HANGS = 40.0

HALF, FULL = torch.bfloat16, torch.float32


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


def rand(*shape: int, dtype: torch.dtype = torch.float32, grad: bool = False) -> Tensor:
    return torch.randn(*shape, device=D, dtype=dtype).requires_grad_(grad)


def back(y: Any) -> None:
    leaves = [leaf for leaf in tree_leaves(y) if isinstance(leaf, Tensor) and leaf.requires_grad]
    torch.autograd.backward(leaves, [torch.ones_like(leaf) for leaf in leaves])


def _ids(most: int, *shape: int) -> Tensor:
    return torch.randint(0, most, shape, device=D)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


# Families. Each gives named cases, which make ordinary calls.


def products() -> Iterator[Case]:
    """First, so that the workspaces of cuBLAS are met at their first use."""
    for dtype, n in itertools.product(FLOATS, (256, 2048)):

        def case(d: torch.dtype = dtype, n: int = n) -> None:
            x, w, b = (
                rand(n, n, dtype=d, grad=True),
                rand(n, n, dtype=d, grad=True),
                rand(n, dtype=d, grad=True),
            )
            back(F.linear(x, w))
            back(F.linear(x, w, b))
            back(F.linear(x.view(4, n // 4, n), w, b))
            back(torch.bmm(x.view(4, n // 4, n), rand(4, n, 64, dtype=d, grad=True)))
            torch.addmm(rand(n, n, dtype=d), x.detach(), w.detach())
            torch.mv(x.detach(), x.detach()[0])

        yield f"products {_name(dtype)} {n}", case

    def tf32() -> None:
        torch.backends.cuda.matmul.allow_tf32 = True
        try:
            back(F.linear(rand(512, 512, grad=True), rand(512, 512, grad=True)))
        finally:
            torch.backends.cuda.matmul.allow_tf32 = False

    yield "products tf32", tf32

    def eighths() -> None:
        a = torch.ones(256, 256, device=D).to(torch.float8_e4m3fn)
        one = torch.ones((), device=D)
        torch._scaled_mm(a, a.t(), one, one, out_dtype=torch.bfloat16)
        torch._int_mm(*[torch.ones(256, 256, device=D, dtype=torch.int8)] * 2)

    yield "products 8 bits", eighths

    def grouped() -> None:
        ends = torch.tensor([64, 128, 256], device=D, dtype=torch.int32)
        torch._grouped_mm(rand(256, 128, dtype=HALF), rand(3, 128, 256, dtype=HALF), ends)

    yield "products grouped", grouped


#: batch, length, inputs, width, layers, both directions
RECURRENT = (
    (64, 100, 512, 1024, 2, False), (32, 50, 256, 256, 1, False), (16, 200, 128, 512, 3, True),
    (64, 120, 256, 512, 2, True), (8, 30, 64, 128, 1, True), (48, 60, 640, 640, 2, False),
    (128, 20, 100, 300, 2, True), (1, 500, 256, 256, 1, False), (256, 64, 64, 64, 4, False),
)  # fmt: skip


def recurrent() -> Iterator[Case]:
    kinds: tuple[tuple[str, Any, dict[str, Any]], ...] = (
        ("lstm", nn.LSTM, {}),
        ("gru", nn.GRU, {}),
        ("tanh", nn.RNN, {}),
        ("projected", nn.LSTM, {"proj_size": 64}),
    )
    for (name, kind, more), shape, dtype in itertools.product(kinds, RECURRENT, FLOATS):
        if (dtype is torch.float16 or name in ("tanh", "projected")) and shape not in RECURRENT[:4]:
            continue
        if name == "projected" and shape[3] <= 64:
            continue

        def case(
            kind: Any = kind, more: Any = more, shape: Any = shape, d: torch.dtype = dtype
        ) -> None:
            b, n, i, w, layers, both = shape
            drop = 0.2 if layers > 1 else 0.0
            net = kind(i, w, layers, dropout=drop, bidirectional=both, batch_first=True, **more)
            net = net.to(D, d)
            back(net(rand(b, n, i, dtype=d, grad=True))[0])
            back(net(rand(b, n, i, dtype=d))[0])
            with torch.no_grad():
                net(rand(b, n, i, dtype=d))
                net.eval()(rand(b, n, i, dtype=d))

        label = "x".join(str(int(part)) for part in shape)
        yield f"recurrent {name} {_name(dtype)} {label}", case

    def packed() -> None:
        for kind in (nn.LSTM, nn.GRU):
            net = kind(128, 256, 2, bidirectional=True, batch_first=True).to(D)
            lengths = torch.tensor([40 - i for i in range(32)])
            x = rand(32, 40, 128, grad=True)
            out = net(nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True))[0]
            back(nn.utils.rnn.pad_packed_sequence(out, batch_first=True)[0])

    yield "recurrent packed", packed

    def autocast() -> None:
        for kind in (nn.LSTM, nn.GRU):
            net = kind(256, 512, 2, bidirectional=True, dropout=0.1).to(D)
            with torch.autocast("cuda", torch.float16):
                out = net(rand(50, 32, 256, grad=True))[0]
            back(out)

    yield "recurrent autocast", autocast

    def cells() -> None:
        back(nn.LSTMCell(128, 256).to(D)(rand(64, 128))[0])
        back(nn.GRUCell(128, 256).to(D)(rand(64, 128)))

    yield "recurrent cells", cells


#: batch, heads, queries, keys, width
ATTENTION = (
    (8, 12, 384, 384, 64), (8, 12, 128, 384, 64), (4, 16, 1024, 1024, 128), (2, 8, 77, 77, 40),
    (2, 8, 300, 300, 96), (2, 4, 256, 256, 256), (2, 8, 128, 128, 20), (8, 12, 1, 384, 64),
)  # fmt: skip


def _masks(b: int, h: int, q: int, k: int, d: torch.dtype) -> dict[str, Tensor]:
    return {
        "bool": torch.ones(b, 1, q, k, device=D, dtype=torch.bool),
        "keys": torch.zeros(b, 1, 1, k, device=D, dtype=d),
        "learnt": torch.zeros(1, h, q, k, device=D, dtype=d, requires_grad=True),
    }


def attention() -> Iterator[Case]:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    def inputs(shape: Any, d: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
        b, h, q, k, e = shape
        one = rand(b, q, h, e, dtype=d, grad=True).transpose(1, 2)
        two, three = (rand(b, k, h, e, dtype=d, grad=True).transpose(1, 2) for _ in "kv")
        return one, two, three

    for shape, d in itertools.product(ATTENTION, (FULL, HALF, torch.float16)):
        if d is torch.float16 and shape not in ATTENTION[:3]:
            continue
        label = f"{_name(d)} {'x'.join(map(str, shape))}"

        def plain(shape: Any = shape, d: torch.dtype = d) -> None:
            one, two, three = inputs(shape, d)
            attend = F.scaled_dot_product_attention
            back(attend(one, two, three))
            back(attend(one, two, three, dropout_p=0.1))
            if shape[2] == shape[3]:
                back(attend(one, two, three, is_causal=True))
            with torch.no_grad():
                attend(one, two, three)

        yield f"attention chosen {label}", plain

        def masked(shape: Any = shape, d: torch.dtype = d) -> None:
            one, two, three = inputs(shape, d)
            for mask in _masks(*shape[:4], d).values():
                back(F.scaled_dot_product_attention(one, two, three, mask))
            with torch.no_grad():
                mask = _masks(*shape[:4], d)["bool"]
                F.scaled_dot_product_attention(one, two, three, mask)

        yield f"attention masked {label}", masked
        for backend in ("MATH", "EFFICIENT_ATTENTION", "FLASH_ATTENTION"):
            if backend == "FLASH_ATTENTION" and d is FULL:
                continue

            def forced(shape: Any = shape, d: torch.dtype = d, name: str = backend) -> None:
                one, two, three = inputs(shape, d)
                masks = _masks(*shape[:4], d)
                with sdpa_kernel(getattr(SDPBackend, name)):
                    back(F.scaled_dot_product_attention(one, two, three))
                    back(F.scaled_dot_product_attention(one, two, three, dropout_p=0.1))
                    if name != "FLASH_ATTENTION":
                        for mask in masks.values():
                            back(F.scaled_dot_product_attention(one, two, three, mask))

            yield f"attention {backend.lower()} {label}", forced
        few = max(1, shape[1] // 4)

        def shared(shape: Any = shape, d: torch.dtype = d, few: int = few) -> None:
            one, two, three = inputs(shape, d)
            two, three = (part[:, :few].detach().requires_grad_() for part in (two, three))
            back(F.scaled_dot_product_attention(one, two, three, enable_gqa=True))

        yield f"attention grouped {label}", shared
    for d in (FULL, HALF):

        def eager(d: torch.dtype = d) -> None:
            b, h, n, e = 8, 12, 384, 64
            q, k, v = inputs((b, h, n, n, e), d)
            bias = torch.zeros(1, h, n, n, device=D, dtype=FULL, requires_grad=True)
            with torch.autocast("cuda", HALF, enabled=d is FULL):
                scores = torch.matmul(q, k.transpose(3, 2))
                scores = scores + bias.to(scores.dtype)
                weights = F.softmax(scores.float(), dim=-1).type_as(scores)
                back(torch.matmul(F.dropout(weights, 0.1), v))

        yield f"attention eager {_name(d)}", eager

        def modules(d: torch.dtype = d) -> None:
            mha = nn.MultiheadAttention(256, 8, batch_first=True).to(D, d)
            x = rand(8, 128, 256, dtype=d, grad=True)
            back(mha(x, x, x)[0])
            back(mha(x, x, x, need_weights=False)[0])
            layer = nn.TransformerEncoderLayer(256, 8, 1024, batch_first=True).to(D, d)
            padded = torch.arange(128, device=D).expand(8, 128) > 100
            back(layer(x))
            back(layer(x, src_key_padding_mask=padded))
            layer.eval()
            with torch.no_grad():
                layer(x)
                layer(x, src_key_padding_mask=padded)
            decoder = nn.TransformerDecoderLayer(256, 8, 1024, batch_first=True).to(D, d)
            back(decoder(x, x))

        yield f"attention modules {_name(d)}", modules


def norms() -> Iterator[Case]:
    rows = ((4096, 1024), (16384, 768), (100000, 128), (8192, 4096), (100, 65), (64, 20000))
    for d, (n, w) in itertools.product(FLOATS[:2], rows):

        def lines(d: torch.dtype = d, n: int = n, w: int = w) -> None:
            x = rand(n, w, dtype=d, grad=True)
            a, b = rand(w, dtype=d, grad=True), rand(w, dtype=d, grad=True)
            back(F.layer_norm(x, (w,), a, b))
            back(F.layer_norm(x, (w,)))
            back(F.rms_norm(x, (w,), a))
            with torch.autocast("cuda", HALF):
                back(F.layer_norm(x, (w,), a.float(), b.float()))
            y = x.float()
            back(a * (y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6)).to(d))
            if w <= 4096:
                back(nn.BatchNorm1d(w).to(D)(x))

        yield f"norms lines {_name(d)} {n}x{w}", lines
    for d, (b, c, side) in itertools.product(
        FLOATS[:2], ((8, 64, 56), (32, 256, 14), (4, 96, 128))
    ):

        def images(d: torch.dtype = d, b: int = b, c: int = c, side: int = side) -> None:
            for layout in (torch.contiguous_format, torch.channels_last):
                x = torch.randn(b, c, side, side, device=D, dtype=d)
                x = x.to(memory_format=layout).requires_grad_()
                for norm in (nn.BatchNorm2d(c).to(D), nn.GroupNorm(32, c).to(D, d)):
                    back(norm(x))
                    back(norm.eval()(x))
                back(nn.InstanceNorm2d(c, affine=True).to(D)(x))

        yield f"norms images {_name(d)} {b}x{c}x{side}", images


def losses() -> Iterator[Case]:
    for d, (n, c) in itertools.product(FLOATS[:2], ((1024, 32128), (4096, 1000), (50000, 40))):

        def case(d: torch.dtype = d, n: int = n, c: int = c) -> None:
            x, y = rand(n, c, dtype=d, grad=True), _ids(c, n)
            back(F.cross_entropy(x, y))
            back(F.cross_entropy(x, y, ignore_index=0, label_smoothing=0.1))
            back(F.cross_entropy(x, y, weight=torch.ones(c, device=D, dtype=d)))
            back(F.cross_entropy(x.float(), y, reduction="sum"))
            with torch.autocast("cuda", HALF):
                back(F.cross_entropy(x, y))
            for f in (F.softmax, F.log_softmax):
                back(f(x, dim=-1))
                back(f(x.float(), dim=-1).to(HALF))
                back(f(x, dim=-1, dtype=FULL))
            back(F.kl_div(F.log_softmax(x, -1), F.softmax(x.detach(), -1), reduction="batchmean"))
            back(F.binary_cross_entropy_with_logits(x, torch.zeros_like(x)))
            back(F.mse_loss(x, torch.zeros_like(x)))
            back(F.cosine_similarity(x, torch.ones_like(x)))
            back(torch.logsumexp(x, -1))

        yield f"losses {_name(d)} {n}x{c}", case

    def pixels() -> None:
        for d in FLOATS[:2]:
            x = rand(4, 21, 160, 160, dtype=d, grad=True)
            back(F.cross_entropy(x, _ids(21, 4, 160, 160)))
            back(F.softmax(x, 1))

    yield "losses pixels", pixels


def indices() -> Iterator[Case]:
    shapes = itertools.product(FLOATS[:2], (1000, 32000), (64, 1024), (512, 3000, 8192, 65536))
    for d, rows, w, n in shapes:
        if n * w > 1 << 25:
            continue

        def case(d: torch.dtype = d, rows: int = rows, w: int = w, n: int = n) -> None:
            table, ids = rand(rows, w, dtype=d, grad=True), _ids(rows, n)
            back(F.embedding(ids, table))
            back(F.embedding(ids.view(8, -1), table, padding_idx=0))
            back(F.embedding(ids, table, scale_grad_by_freq=True))
            back(F.embedding_bag(ids.view(-1, 8), table, mode="sum"))
            back(table[ids])
            back(torch.index_select(table, 0, ids))
            source = rand(n, w, dtype=d, grad=True)
            out = torch.zeros(rows, w, device=D, dtype=d)
            back(out.index_add(0, ids, source))
            back(out.scatter_add(0, ids[:, None].expand(-1, w), source))
            back(out.index_put((ids,), source, accumulate=True))
            back(out.index_put((ids,), source))
            back(torch.gather(table, 1, _ids(w, rows, 4)))
            for kind in ("mean", "amax"):
                back(out.scatter_reduce(0, ids[:, None].expand(-1, w), source, kind))

        yield f"indices {_name(d)} {rows}x{w} {n}", case
    for n in (1000, 100_000, 3_000_000):

        def order(n: int = n) -> None:
            x, ids, wide = torch.randn(n, device=D), _ids(1000, n), torch.randn(n // 100, 100).to(D)
            for one in (x, ids, wide, ids.to(torch.int32), x.to(HALF)):
                one.sort(), one.argsort(), one.cumsum(0), one.topk(10, 0)  # fmt: skip
            x.sort(stable=True), x.logcumsumexp(0), x.cumprod(0), x.cummax(0)  # fmt: skip
            wide.cumsum(1), wide.topk(5, 1), wide.sort(1), wide.kthvalue(3, 1), wide.median(1)  # fmt: skip
            x.kthvalue(5), x.median(), x.nonzero(), x[x > 0], x.masked_select(x > 0)  # fmt: skip
            ids.unique(), ids.unique(return_inverse=True), ids.unique_consecutive(), ids.bincount()  # fmt: skip
            torch.randperm(n, device=D), torch.multinomial(x.abs()[:1000], 10), F.one_hot(ids[:1000])  # fmt: skip
            torch.searchsorted(x.sort()[0], x), x.histc(10), torch.repeat_interleave(ids[:1000])  # fmt: skip
            x.masked_fill(x > 0, 1), torch.where(x > 0, x, 0), x.clone().masked_scatter_(x > 0, x)  # fmt: skip

        yield f"order {n}", order

    def sampling() -> None:
        logits = rand(16, 32000)
        share = logits.softmax(-1)
        logits.topk(50), logits.sort(), torch.multinomial(share, 1), share.cumsum(-1)  # fmt: skip
        logits.argmax(-1), logits.max(-1), logits.scatter(1, logits.topk(50)[1], 0.0)  # fmt: skip

    yield "order sampling", sampling


def reductions() -> Iterator[Case]:
    for d, (n, w) in itertools.product(
        FLOATS[:2], ((4096, 1024), (100, 65), (100000, 128), (64, 50000))
    ):

        def case(d: torch.dtype = d, n: int = n, w: int = w) -> None:
            x = rand(n, w, dtype=d)
            for f in (torch.sum, torch.mean, torch.var, torch.std, torch.amax, torch.norm):
                f(x), f(x, 0), f(x, 1)  # fmt: skip
            x.argmax(), x.argmax(0), x.max(1), x.prod(), x.std(0), (x > 0).any(), (x > 0).sum()  # fmt: skip
            x.isfinite().all(), torch.var_mean(x, 1), x.norm(1), x.norm(float("inf")), x.count_nonzero()  # fmt: skip
            x.float().sum((0, 1)), x.sum(0, dtype=FULL), x.view(-1).sum(), x.t().sum(0), x.t().sum(1)  # fmt: skip

        yield f"reductions {_name(d)} {n}x{w}", case


def others() -> Iterator[Case]:
    for d in FLOATS[:2]:

        def images(d: torch.dtype = d) -> None:
            for layout in (torch.contiguous_format, torch.channels_last):
                x = torch.randn(8, 64, 56, 56, device=D, dtype=d)
                x = x.to(memory_format=layout).requires_grad_()
                back(F.max_pool2d(x, 2)), back(F.adaptive_avg_pool2d(x, 1))  # fmt: skip
                back(F.avg_pool2d(x, 2)), back(F.adaptive_avg_pool2d(x, 7))  # fmt: skip
                for mode in ("nearest", "bilinear", "bicubic"):
                    back(F.interpolate(x, scale_factor=2, mode=mode))
                back(F.pixel_shuffle(x, 2)), back(F.pad(x, (1, 1, 1, 1), "reflect"))  # fmt: skip
                back(F.pad(x, (1, 1, 1, 1))), back(F.unfold(x, 3))  # fmt: skip
                back(F.dropout2d(x, 0.1)), back(F.hardswish(x)), back(F.relu6(x))  # fmt: skip

        yield f"others images {_name(d)}", images

        def elements(d: torch.dtype = d) -> None:
            x = rand(1024, 4096, dtype=d, grad=True)
            for f in (F.gelu, F.silu, F.mish, F.elu, F.softplus, F.leaky_relu, torch.tanh, F.glu):
                back(f(x))
            back(F.dropout(x, 0.1)), back(F.dropout(x, 0.1).sum())  # fmt: skip
            back(torch.cat([x, x])), back(torch.stack([x, x])), back(x.repeat(2, 1))  # fmt: skip
            back(torch.einsum("bi,ij->bj", x, rand(4096, 64, dtype=d)))
            back(x.roll(1, 0)), back(x.flip(0)), back(x.t().contiguous()), back(x.float())  # fmt: skip
            back(F.normalize(x, dim=-1)), back(torch.cdist(x[:128].float(), x[:64].float()))  # fmt: skip

        yield f"others elements {_name(d)}", elements

    def spectra() -> None:
        torch.fft.rfft2(rand(8, 64, 128, 128)), torch.fft.fft(rand(64, 3000))  # fmt: skip
        window = torch.hann_window(400, device=D)
        torch.stft(rand(8, 16000), 400, 160, window=window, return_complex=True)

    yield "others spectra", spectra

    def solvers() -> None:
        a = torch.eye(256, device=D).expand(4, -1, -1).contiguous() * 2
        torch.linalg.cholesky(a), torch.linalg.inv(a), torch.linalg.eigh(a)  # fmt: skip
        torch.linalg.svd(rand(128, 64)), torch.linalg.qr(rand(256, 128))  # fmt: skip
        torch.linalg.solve(a, rand(4, 256, 8))

    yield "others solvers", solvers


def optimizers() -> Iterator[Case]:
    plain = ("SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "Adamax", "NAdam", "RAdam", "Adadelta")
    options: list[tuple[str, dict[str, Any]]] = [(name, {}) for name in plain]
    options += [(name, {"foreach": False}) for name in ("SGD", "AdamW", "RMSprop")]
    options += [(name, {"fused": True}) for name in ("SGD", "AdamW", "Adagrad")]
    options += [("SGD", {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1})]
    options += [("AdamW", {"amsgrad": True}), ("AdamW", {"capturable": True})]
    options += [("Adafactor", {}), ("Adafactor", {"foreach": False}), ("Muon", {}), ("LBFGS", {})]
    for (name, more), d in itertools.product(options, FLOATS[:2]):

        def case(name: str = name, more: dict[str, Any] = more, d: torch.dtype = d) -> None:
            net = nn.Sequential(*[nn.Linear(512, 512, bias=False) for _ in range(8)]).to(D, d)
            optimizer = getattr(torch.optim, name)(net.parameters(), lr=1e-3, **more)

            def closure() -> Tensor:
                optimizer.zero_grad()
                loss = net(rand(8, 512, dtype=d)).sum()
                loss.backward()
                return loss

            for _ in range(2):
                if name == "LBFGS":
                    optimizer.step(closure)
                    continue
                closure()
                nn.utils.clip_grad_norm_(net.parameters(), 1.0)
                optimizer.step()

        words = " ".join(f"{key}={value}" for key, value in more.items())
        yield f"optimizers {name} {words} {_name(d)}".replace("  ", " "), case

    def scaled() -> None:
        net, scaler = nn.Linear(512, 512).to(D), torch.amp.GradScaler("cuda")
        for optimizer in (
            torch.optim.SGD(net.parameters(), lr=0.1),
            torch.optim.AdamW(net.parameters(), lr=0.1, fused=True),
        ):
            with torch.autocast("cuda", torch.float16):
                loss = net(rand(4, 512)).sum()
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_value_(net.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()

    yield "optimizers scaled", scaled


#: in, out, kernel, stride, padding, dilation, groups, side
CONVOLUTIONS = (
    (3, 64, 7, 2, 3, 1, 1, 224), (64, 64, 3, 1, 1, 1, 1, 56), (128, 256, 3, 2, 1, 1, 1, 28),
    (256, 1024, 1, 1, 0, 1, 1, 14), (512, 512, 3, 1, 2, 2, 1, 20), (48, 48, 3, 1, 1, 1, 1, 128),
    (96, 96, 3, 1, 1, 1, 96, 56), (256, 256, 3, 1, 1, 1, 32, 28), (3, 768, 32, 32, 0, 1, 1, 224),
    (1, 48, 3, 1, 1, 1, 1, 128), (2048, 256, 3, 1, 12, 12, 1, 20), (21, 21, 1, 1, 0, 1, 1, 160),
    (100, 60, 5, 1, 2, 1, 1, 30),
)  # fmt: skip


def convolutions() -> Iterator[Case]:
    for benchmark, d, last in itertools.product((False, True), FLOATS, (False, True)):
        if benchmark and d is torch.float16:
            continue
        for shape in CONVOLUTIONS:
            if benchmark and shape not in CONVOLUTIONS[:6]:
                continue

            def case(
                fast: bool = benchmark, d: torch.dtype = d, last: bool = last, shape: Any = shape
            ) -> None:
                i, o, k, s, p, dilation, g, side = shape
                layout = torch.channels_last if last else torch.contiguous_format
                net = nn.Conv2d(i, o, k, s, p, dilation, g).to(D, d, memory_format=layout)
                x = torch.randn(16, i, side, side, device=D, dtype=d)
                x = x.to(memory_format=layout).requires_grad_()
                torch.backends.cudnn.benchmark = fast
                try:
                    back(net(x))
                finally:
                    torch.backends.cudnn.benchmark = False

            words = f"{_name(d)} {'last' if last else 'first'} {'x'.join(map(str, shape))}"
            yield f"convolutions {'benchmark ' if benchmark else ''}{words}", case
    for d in FLOATS[:2]:

        def spread(d: torch.dtype = d) -> None:
            back(nn.ConvTranspose2d(64, 32, 2, 2).to(D, d)(rand(8, 64, 64, 64, dtype=d, grad=True)))
            back(nn.ConvTranspose2d(64, 64, 4, 2, 1).to(D, d)(rand(8, 64, 32, 32, dtype=d)))
            back(nn.Conv1d(80, 384, 3, 1, 1).to(D, d)(rand(8, 80, 3000, dtype=d, grad=True)))
            back(
                nn.Conv1d(512, 512, 4, padding=3, groups=512).to(D, d)(
                    rand(8, 512, 256, dtype=d, grad=True)
                )
            )
            back(
                nn.Conv3d(16, 32, 3, padding=1).to(D, d)(
                    rand(2, 16, 32, 32, 32, dtype=d, grad=True)
                )
            )

        yield f"convolutions other {_name(d)}", spread


#: With the seconds that each may take; cuDNN compiles a kernel for each shape of attention.
FAMILIES: tuple[tuple[Callable[[], Iterator[Case]], float], ...] = (
    (products, 6.0),
    (recurrent, 30.0),
    (norms, 8.0),
    (losses, 8.0),
    (indices, 12.0),
    (reductions, 6.0),
    (others, 6.0),
    (optimizers, 14.0),
    (attention, 40.0),
    (convolutions, 40.0),
)


# Recording.


class Record:
    """What was measured so far: one line of JSON for each case, in the order of cases."""

    def __init__(self, out: Path) -> None:
        self.out = out

    def add(self, index: int, case: dict[str, Any], mode: Calls, trace: list[Any]) -> None:
        """Keep a case with its calls: of those that differ in nothing one."""
        calls: dict[str, dict[str, Any]] = {}
        for number, events in _events(mode.calls, trace).items():
            call = {key: value for key, value in mode.calls[number].items() if key != "places"}
            call["events"] = events
            calls.setdefault(json.dumps([call["op"], call["args"], call["kwargs"], events]), call)
        with self.out.open("a") as lines:
            lines.write(json.dumps({"index": index, "case": case, "calls": list(calls.values())}))
            lines.write("\n")


def joined(lines: Path, facts: dict[str, Any], out: Path) -> dict[str, Any]:
    """One file of all cases; what takes nothing besides its results goes first if it is large."""
    cases, calls = [], dict[str, dict[str, Any]]()
    for line in lines.read_text().splitlines() if lines.is_file() else ():
        one = json.loads(line)
        cases.append(one["case"])
        for call in one["calls"]:
            key = json.dumps([call["op"], call["args"], call["kwargs"], call["events"]])
            kept = calls.setdefault(key, {**call, "cases": []})
            kept["cases"] = [*kept["cases"], one["case"]["name"]][:3]
    facts |= {"cases": cases, "calls": list(calls.values())}
    text = json.dumps(facts, separators=(",", ":"))
    if len(text) > _MOST_BYTES:
        facts["calls"] = [
            call
            for call in facts["calls"]
            if any(len(event) == 3 and not event[2] for event in call["events"])
        ]
        text = json.dumps(facts, separators=(",", ":"))
    made = out.with_suffix(".part")
    made.write_text(text)
    made.replace(out)
    return facts


def _events(calls: list[dict[str, Any]], trace: list[Any]) -> dict[int, list[Any]]:
    """By call its own events."""
    events: dict[int, list[Any]] = {}
    numbers: dict[int, dict[int, int]] = {}
    for event in trace:
        label = event.get("user_metadata", "")
        if not label or event["action"] not in ("alloc", "free_completed"):
            continue
        number = int(label)
        mine, known = events.setdefault(number, []), numbers.setdefault(number, {})
        if event["action"] == "alloc":
            places = calls[number].get("places", [])
            count = sum(1 for one in mine if len(one) == 3)
            known[event["addr"]] = count
            mine.append([count, event["size"], event["addr"] in places])
        elif event["addr"] in known:
            mine.append([known.pop(event["addr"])])
    return {number: mine for number, mine in events.items() if mine}


def record(name: str, case: Callable[[], Any], index: int, found: Record) -> str:
    """Run a case, and keep what it took; why it failed, or nothing."""
    torch.cuda.memory._record_memory_history(context=None)
    mode, failed = Calls(), ""
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    try:
        torch.manual_seed(0)
        with torch.autograd.set_multithreading_enabled(False), mode:
            case()
        torch.cuda.synchronize()
    except Exception as error:
        line = traceback.extract_tb(error.__traceback__)[-1].lineno
        failed = f"line {line}: {type(error).__name__}: {str(error)[:160]}"
    peak = torch.cuda.max_memory_allocated() - before
    trace = torch.cuda.memory._snapshot()["device_traces"][torch.cuda.current_device()]
    torch.cuda.memory._record_memory_history(None)
    ops = Counter(call["op"] for call in mode.calls)
    found.add(index, {"name": name, "peak": peak, "ops": ops, "failed": failed}, mode, trace)
    return failed


def record_from(first: int, seconds: float, lines: Path) -> int:
    """Run the cases from one on, in this process; each is named before it begins."""
    faulthandler.enable()
    began, index, found = time.perf_counter(), 0, Record(lines)
    properties = torch.cuda.get_device_properties(0)
    facts = {
        "card": properties.name,
        "capability": [properties.major, properties.minor],
        "processors": properties.multi_processor_count,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
    }
    print(json.dumps(facts), flush=True)
    for family, most in FAMILIES:
        family_began, all_of = time.perf_counter(), list(family())
        for name, case in all_of:
            index += 1
            now = time.perf_counter()
            if index <= first:
                continue
            if now - began > seconds or now - family_began > most:
                print(f"- {index - 1} {name} and more of its family: no time left", flush=True)
                first = index = index + len(all_of) - 1 - all_of.index((name, case))
                break
            print(f"> {index - 1} {name}", flush=True)
            failed = record(name, case, index - 1, found)
            if failed:
                print(f"- {index - 1} {name}: {failed}", flush=True)
    return 0


def record_all(out: Path, seconds: float) -> int:
    """Run all cases in another process; after a case that ends it, or hangs, in a new one."""
    began, lines = time.perf_counter(), out.with_suffix(".lines")
    lines.unlink(missing_ok=True)
    facts: dict[str, Any] = {}
    skipped: list[str] = []
    first = 0
    while (left := seconds - (time.perf_counter() - began)) > 8:
        at, name, code = _watched(first, left - 5, lines, facts, skipped)
        joined(lines, {**facts, "skipped": skipped}, out)
        if code == 0:
            break
        skipped.append(f"{at} {name}: the process ended with {code}")
        first = at + 1
    whole = joined(lines, {**facts, "skipped": skipped}, out)
    lines.unlink(missing_ok=True)
    print(*skipped, sep="\n")
    took = time.perf_counter() - began
    print(
        f"{len(whole['cases'])} cases, {len(whole['calls'])} calls, {out.stat().st_size:,} bytes, "
        f"{took:.0f} s"
    )
    return 0


def _watched(
    first: int, seconds: float, lines: Path, facts: dict[str, Any], skipped: list[str]
) -> tuple[int, str, int]:
    """Run cases in a process of its own; the last one, its name and the exit code."""
    words = [sys.executable, __file__, "child", str(lines), "--seconds", str(seconds)]
    child = subprocess.Popen([*words, "--first", str(first)], stdout=subprocess.PIPE, text=True)
    heard, ended = [time.perf_counter()], time.perf_counter() + seconds + 5
    at, name = first, ""

    def watch() -> None:
        while child.poll() is None:
            now = time.perf_counter()
            if now - heard[0] > _HANGS or now > ended:
                child.kill()
            time.sleep(0.5)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    assert child.stdout is not None
    for line in child.stdout:
        heard[0] = time.perf_counter()
        if line.startswith("{"):
            facts.update(json.loads(line))
        elif line.startswith("> "):
            _, number, name = line.rstrip("\n").split(" ", 2)
            at = int(number)
        elif line.startswith("- "):
            skipped.append(line[2:].strip())
    code = child.wait()
    if code and time.perf_counter() > ended:
        return at, name, 0
    return at, name, code


# Comparing.


def _of_spec(value: Any) -> Any:
    """An argument as it was: tensors without their values."""
    if isinstance(value, dict):
        dtype = getattr(torch, value["d"])
        return torch.empty_strided(value["s"], value["t"], dtype=dtype, device=value["v"])
    if isinstance(value, list):
        return [_of_spec(item) for item in value]
    if isinstance(value, str):
        if value.startswith("torch."):
            return getattr(torch, value.removeprefix("torch."))
        return torch.device("cuda") if value.startswith("cuda") else torch.device(value)
    return value


def _op(name: str) -> Any:
    space, packet, overload = name.split(".")
    return getattr(getattr(getattr(torch.ops, space), packet), overload)


def real_peak(events: list[list[Any]]) -> int:
    """The most bytes that a call had at one time, results and what it took besides."""
    sizes: dict[int, int] = {}
    most = 0
    for event in events:
        if len(event) == 3:
            sizes[event[0]] = event[1]
        else:
            sizes.pop(event[0], None)
        most = max(most, sum(sizes.values()))
    return most


def _rehearsed_peak(tracing: Any, call: dict[str, Any]) -> tuple[int, int, int]:
    """The likely, least and most bytes of a call on fake tensors."""
    requests = tracing.requests
    args = _of_spec(call["args"])
    kwargs = {name: _of_spec(value) for name, value in call["kwargs"]}
    first = len(requests._events)
    # As a call that the program makes: with what stands in the place of some operators.
    kept = [_op(call["op"])(*args, **kwargs)]
    sizes: dict[int, tuple[int, int, int]] = {}
    most = [0, 0, 0]
    for index, event in enumerate(requests._events[first:], first):
        if event[1]:
            low, high = requests._bounds.get(index, (event[1], event[1]))
            sizes[event[0]] = event[1], low, high
        else:
            sizes.pop(event[0], None)
        for place in range(3):
            most[place] = max(most[place], sum(one[place] for one in sizes.values()))
    kept.clear()
    return most[0], most[1], most[2]


def compare(path: Path, worst: int) -> int:
    from neutracer.rehearsal.cards import find_card
    from neutracer.rehearsal.requests import Requests
    from neutracer.rehearsal.session import pretending

    facts = json.loads(path.read_text())
    card = find_card(facts["card"])
    outcomes: dict[str, Counter[str]] = {}
    off: list[tuple[float, str]] = []
    with pretending(card, Requests(), devices=1, capacity=1 << 45) as tracing:
        tracing.kernels._handles |= {
            (kind, backward, 0) for kind in ("blas", "lt", "dropout") for backward in (False, True)
        }
        for call in facts["calls"]:
            family = call["op"]
            mine = outcomes.setdefault(family, Counter())
            real = real_peak(call["events"])
            try:
                likely, low, high = _rehearsed_peak(tracing, call)
            except Exception as error:
                mine["failed"] += 1
                off.append((-1.0, f"{call['op']} {call['cases'][0]}: {str(error)[:120]}"))
                continue
            room = 1024 * (1 + len(call["events"]))
            near = abs(likely - real) <= max(room, real // 100)
            inside = min(low, likely) - room <= real <= max(high, likely) + room
            mine["exact" if near else "in range" if inside else "outside"] += 1
            if not near:
                share = abs(likely - real) / max(real, 1 << 20)
                told = f"{real:,} really, {likely:,} ({low:,} to {high:,})"
                shapes = [arg["s"] if isinstance(arg, dict) else arg for arg in call["args"]]
                mark = "" if inside else "OUTSIDE "
                off.append(
                    (share, f"{mark}{call['op']} {call['cases'][0]}: {told} {str(shapes)[:160]}")
                )
    for name, counts in sorted(outcomes.items(), key=lambda one: -one[1]["outside"]):
        if set(counts) != {"exact"}:
            print(f"{name:60} {dict(counts)}")
    whole: Counter[str] = Counter()
    for counts in outcomes.values():
        whole += counts
    print(f"all: {dict(whole)}")
    for share, text in sorted(off, reverse=True)[:worst]:
        print(f"{100 * share:7.1f} % {text}")
    _compare_cases(card, facts)
    return 0


class _Ops(TorchDispatchMode):
    """Counts the operators that run."""

    def __init__(self) -> None:
        super().__init__()
        self.ops: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.ops[str(func)] += 1
        return func(*args, **(kwargs or {}))


#: Nothing follows from these.
_VIEWS = ("view", "detach", "transpose", "expand", "alias", "permute", "slice", "select", "unsqueeze", "lift_fresh", "squeeze", "t.", "_unsafe_view", "as_strided", "is_same_size", "split", "unbind", "narrow", "item", "_local_scalar")  # fmt: skip


def _compare_cases(card: Any, facts: dict[str, Any]) -> None:
    """Which cases have other operators on fake tensors, and how far their peaks are off."""
    from neutracer.rehearsal.requests import Requests
    from neutracer.rehearsal.session import pretending

    cases = {name: case for family, _ in FAMILIES for name, case in family()}
    for known in facts["cases"]:
        if known["failed"] or known["name"] not in cases:
            continue
        requests = Requests()
        try:
            with pretending(card, requests, devices=1, capacity=1 << 45) as tracing:
                tracing.kernels._handles |= {
                    (kind, backward, 0)
                    for kind in ("blas", "lt", "dropout")
                    for backward in (False, True)
                }
                with _Ops() as seen:
                    cases[known["name"]]()
        except Exception as error:
            print(f"{known['name']}: FAILED {str(error)[:160]}")
            continue
        apart = {
            op: seen.ops.get(op, 0) - known["ops"].get(op, 0)
            for op in {*seen.ops, *known["ops"]}
            if not any(op.startswith(f"aten.{view}") for view in _VIEWS)
        }
        apart = {op: n for op, n in apart.items() if n}
        share = requests.peak_bytes / max(known["peak"], 1 << 20) - 1
        if apart or abs(share) > 0.01:
            print(f"{known['name']}: peak {100 * share:+.1f} %; {apart or ''}")


def main() -> int:
    parser = argparse.ArgumentParser(description="What operators allocate, and the rules.")
    parser.add_argument("what", choices=("record", "compare", "child"))
    parser.add_argument("file", type=Path)
    parser.add_argument("--seconds", type=float, default=140)
    parser.add_argument("--worst", type=int, default=20)
    parser.add_argument("--first", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.what == "child":
        return record_from(options.first, options.seconds, options.file)
    if options.what == "compare":
        return compare(options.file, options.worst)
    return record_all(options.file, options.seconds)


if __name__ == "__main__":
    raise SystemExit(main())
