# SPDX-License-Identifier: Apache-2.0
"""Programs of the kinds that users train, for `truth.py` and for rehearsals.

A file of programs has a dict `PROGRAMS`, from a program's name to its maker. A maker takes
nothing, builds model, optimizer and whatever else on "cuda", and returns a function that takes
nothing and makes one step. Nothing is built or imported before the maker runs, except torch.
A maker may raise `ImportError`; `truth.py` then leaves the program out and says so.

    def linear():
        model = torch.nn.Linear(8, 8).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step():
            model(torch.randn(4, 8, device="cuda")).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

        return step

    PROGRAMS = {"linear": linear}
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

Step = Callable[[], None]
DEVICE = "cuda"


def tokens(vocabulary: int, *shape: int) -> Tensor:
    return torch.randint(0, vocabulary, shape, device=DEVICE)


# Transformers of Hugging Face, built from a config.


def gpt2_bf16() -> Step:
    """GPT-2, bf16 autocast, fused AdamW, gradients clipped."""
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config(n_layer=12, n_embd=768, n_head=12)).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def step() -> None:
        ids = tokens(50257, 8, 512)
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def bert_fp32() -> Step:
    """BERT with a mask of padding, fp32, AdamW over lists of tensors."""
    from transformers import BertConfig, BertForMaskedLM

    model = BertForMaskedLM(BertConfig()).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def step() -> None:
        ids = tokens(30522, 16, 256)
        mask = torch.ones(16, 256, dtype=torch.long, device=DEVICE)
        mask[:, 200:] = 0
        loss = model(input_ids=ids, attention_mask=mask, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


class LoraLinear(nn.Module):
    """A frozen linear layer and a low-rank one beside it."""

    def __init__(self, base: nn.Linear, rank: int) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        options: dict[str, Any] = {"device": base.weight.device, "dtype": torch.float32}
        self.down = nn.Parameter(torch.randn(rank, base.in_features, **options) / rank)
        self.up = nn.Parameter(torch.zeros(base.out_features, rank, **options))
        self.dropout = nn.Dropout(0.05)

    def forward(self, x: Tensor) -> Tensor:
        low = F.linear(self.dropout(x).to(self.down.dtype), self.down)
        return self.base(x) + F.linear(low, self.up).to(x.dtype) * 2.0


def add_lora(model: nn.Module, names: tuple[str, ...], rank: int = 16) -> None:
    model.requires_grad_(False)
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if name in names and isinstance(child, nn.Linear):
                setattr(module, name, LoraLinear(child, rank))


def llama_lora_checkpointed() -> Step:
    """A Llama of 1.2 B in bf16 with LoRA, its blocks checkpointed."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=2048,
        intermediate_size=8192,
        num_hidden_layers=16,
        num_attention_heads=32,
        num_key_value_heads=8,
        vocab_size=32000,
        use_cache=False,
    )
    model = LlamaForCausalLM(config).to(torch.bfloat16).to(DEVICE)
    add_lora(model, ("q_proj", "v_proj"))
    model.gradient_checkpointing_enable()
    model.enable_input_require_grads()
    model.train()
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-4)

    def step() -> None:
        ids = tokens(32000, 4, 1024)
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def llama_generate() -> Step:
    """A Llama in bf16 that writes 64 tokens with a growing cache."""
    from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=1536,
        intermediate_size=4096,
        num_hidden_layers=16,
        num_attention_heads=12,
        num_key_value_heads=4,
        vocab_size=32000,
    )
    model = LlamaForCausalLM(config).to(torch.bfloat16).to(DEVICE).eval()

    @torch.no_grad()
    def step() -> None:
        ids, cache = tokens(32000, 8, 512), DynamicCache()
        for _ in range(64):
            out = model(input_ids=ids, past_key_values=cache, use_cache=True)
            ids = out.logits[:, -1].argmax(-1, keepdim=True)

    return step


def vit_bf16() -> Step:
    """ViT-B/16 of Hugging Face under bf16 autocast."""
    from transformers import ViTConfig, ViTForImageClassification

    model = ViTForImageClassification(ViTConfig(num_labels=1000)).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def step() -> None:
        images = torch.randn(48, 3, 224, 224, device=DEVICE)
        labels = tokens(1000, 48)
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(pixel_values=images, labels=labels).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


# Convolutions.


def resnet50_amp() -> Step:
    """torchvision's ResNet-50: fp16 with a GradScaler, channels last."""
    from torchvision.models import resnet50

    model = resnet50().to(DEVICE, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scaler = torch.amp.GradScaler("cuda")

    def step() -> None:
        images = torch.randn(64, 3, 224, 224, device=DEVICE)
        images = images.contiguous(memory_format=torch.channels_last)
        labels = tokens(1000, 64)
        with torch.autocast("cuda", torch.float16):
            loss = F.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    return step


def resnet18_fp32() -> Step:
    """torchvision's ResNet-18 in fp32."""
    from torchvision.models import resnet18

    model = resnet18().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)

    def step() -> None:
        images, labels = torch.randn(64, 3, 224, 224).cuda(), torch.randint(0, 1000, (64,)).cuda()
        optimizer.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        optimizer.step()

    return step


def convnext_bf16() -> Step:
    """torchvision's ConvNeXt-T (depthwise convolutions) under bf16 autocast."""
    from torchvision.models import convnext_tiny

    model = convnext_tiny().to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def step() -> None:
        with torch.autocast("cuda", torch.bfloat16):
            out = model(torch.randn(32, 3, 224, 224, device=DEVICE))
            loss = F.cross_entropy(out, tokens(1000, 32))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


class ResBlock(nn.Module):
    def __init__(self, inputs: int, outputs: int, embedding: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(32, inputs), nn.Conv2d(inputs, outputs, 3, padding=1)
        self.norm2, self.conv2 = (
            nn.GroupNorm(32, outputs),
            nn.Conv2d(outputs, outputs, 3, padding=1),
        )
        self.time = nn.Linear(embedding, outputs)
        self.skip = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        h = self.conv1(F.silu(self.norm1(x))) + self.time(t)[:, :, None, None]
        return self.skip(x) + self.conv2(F.silu(self.norm2(h)))


class SelfAttention(nn.Module):
    def __init__(self, channels: int, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.GroupNorm(32, channels)
        self.qkv, self.out = nn.Conv2d(channels, 3 * channels, 1), nn.Conv2d(channels, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        b, c, h, w = x.shape
        qkv = self.qkv(self.norm(x)).view(b, 3, self.heads, c // self.heads, h * w)
        q, k, v = qkv.transpose(-1, -2).unbind(1)
        y = F.scaled_dot_product_attention(q, k, v).transpose(-1, -2)
        return x + self.out(y.reshape(b, c, h, w))


class UNet(nn.Module):
    """A denoiser: three resolutions, attention at the lower two."""

    def __init__(self, base: int = 128) -> None:
        super().__init__()
        e = 4 * base
        self.base = base
        self.time = nn.Sequential(nn.Linear(base, e), nn.SiLU(), nn.Linear(e, e))
        self.first = nn.Conv2d(4, base, 3, padding=1)
        widths = (base, 2 * base, 4 * base)
        self.downs, self.ups = nn.ModuleList(), nn.ModuleList()
        inputs = base
        for level, width in enumerate(widths):
            attention = SelfAttention(width) if level else nn.Identity()
            shrink = nn.Conv2d(width, width, 3, 2, 1) if level < 2 else nn.Identity()
            self.downs.append(nn.ModuleList([ResBlock(inputs, width, e), attention, shrink]))
            inputs = width
        for level, width in reversed(list(enumerate(widths))):
            attention = SelfAttention(width) if level else nn.Identity()
            grow = nn.ConvTranspose2d(width, width, 4, 2, 1) if level else nn.Identity()
            self.ups.append(nn.ModuleList([ResBlock(inputs + width, width, e), attention, grow]))
            inputs = width
        self.last = nn.Sequential(
            nn.GroupNorm(32, base), nn.SiLU(), nn.Conv2d(base, 4, 3, padding=1)
        )

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        half = torch.arange(self.base // 2, device=x.device, dtype=torch.float32)
        angles = t[:, None].float() * torch.exp(half * (-math.log(10000) / (self.base // 2)))
        e = self.time(torch.cat([angles.sin(), angles.cos()], 1))
        x, kept = self.first(x), []
        for block, attention, shrink in self.downs:  # type: ignore[misc]
            x = attention(block(x, e))
            kept.append(x)
            x = shrink(x)
        for block, attention, grow in self.ups:  # type: ignore[misc]
            x = grow(attention(block(torch.cat([x, kept.pop()], 1), e)))
        return self.last(x)


def unet_attention_ema() -> Step:
    """A diffusion U-Net with attention in fp32, and a moving average of its weights."""
    model = UNet().to(DEVICE)
    average = copy.deepcopy(model).requires_grad_(False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def step() -> None:
        x, noise = (
            torch.randn(16, 4, 64, 64, device=DEVICE),
            torch.randn(16, 4, 64, 64, device=DEVICE),
        )
        t = torch.randint(0, 1000, (16,), device=DEVICE)
        F.mse_loss(model(x + noise, t), noise).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        with torch.no_grad():
            for ours, theirs in zip(average.parameters(), model.parameters(), strict=True):
                ours.lerp_(theirs, 0.001)

    return step


# Recurrent, sparse, routed.


def lstm_lm() -> Step:
    """A language model of two LSTM layers, Adam, gradients clipped."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(20000, 512)
            self.lstm = nn.LSTM(512, 1024, 2, dropout=0.2, batch_first=True)
            self.out = nn.Linear(1024, 20000)

        def forward(self, x: Tensor) -> Tensor:
            return self.out(self.lstm(self.embed(x))[0])

    model = Model().to(DEVICE)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    def step() -> None:
        ids = tokens(20000, 64, 101)
        logits = model(ids[:, :-1])
        F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten()).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()

    return step


class Experts(nn.Module):
    """Two of eight experts for each token."""

    def __init__(self, width: int, count: int = 8) -> None:
        super().__init__()
        self.router = nn.Linear(width, count, bias=False)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 4 * width), nn.SiLU(), nn.Linear(4 * width, width))
            for _ in range(count)
        )

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(0, 1)
        weights, chosen = self.router(flat).softmax(-1).topk(2, -1)
        out = torch.zeros_like(flat)
        for number, expert in enumerate(self.experts):
            rows, slots = torch.where(chosen == number)
            out.index_add_(0, rows, expert(flat[rows]) * weights[rows, slots, None])
        return out.view_as(x)


class Block(nn.Module):
    def __init__(self, width: int, heads: int, mlp: nn.Module) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out, self.mlp = nn.Linear(width, 3 * width), nn.Linear(width, width), mlp

    def forward(self, x: Tensor) -> Tensor:
        b, t, d = x.shape
        qkv = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, d // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, d))
        return x + self.mlp(self.norm2(x))


class Decoder(nn.Module):
    def __init__(self, blocks: list[Block], width: int, vocabulary: int, again: bool) -> None:
        super().__init__()
        self.embed, self.blocks = nn.Embedding(vocabulary, width), nn.ModuleList(blocks)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
        self.again = again

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.again else block(x)
        return self.head(self.norm(x))


def dense(width: int) -> nn.Module:
    return nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))


def moe_fp32() -> Step:
    """A decoder whose tokens are routed to experts: shapes that depend on data."""
    model = Decoder([Block(512, 8, Experts(512)) for _ in range(6)], 512, 16000, False).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def step() -> None:
        ids = tokens(16000, 8, 513)
        logits = model(ids[:, :-1])
        F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def gpt_checkpointed_bf16() -> Step:
    """A decoder whose blocks are checkpointed, bf16 autocast, fused AdamW."""
    blocks = [Block(1024, 16, dense(1024)) for _ in range(16)]
    model = Decoder(blocks, 1024, 32000, True).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def step() -> None:
        ids = tokens(32000, 8, 1025)
        with torch.autocast("cuda", torch.bfloat16):
            logits = model(ids[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


class Messages(nn.Module):
    """One round of messages along edges, summed at their targets."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.message, self.update = nn.Linear(2 * width, width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        source, target = edges
        sent = F.relu(self.message(torch.cat([x[source], x[target]], -1)))
        gathered = torch.zeros_like(x).index_add_(0, target, sent)
        degree = torch.zeros(len(x), device=x.device).scatter_add_(
            0, target, torch.ones_like(target, dtype=x.dtype)
        )
        return F.relu(self.update(torch.cat([x, gathered / degree.clamp(min=1)[:, None]], -1)))


def gnn() -> Step:
    """Messages along 400,000 edges of a graph, fp32."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rounds, self.out = (
                nn.ModuleList(Messages(128) for _ in range(3)),
                nn.Linear(128, 16),
            )

        def forward(self, x: Tensor, edges: Tensor) -> Tensor:
            for messages in self.rounds:
                x = messages(x, edges)
            return self.out(x)

    model = Model().to(DEVICE)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    x, edges = torch.randn(50_000, 128, device=DEVICE), tokens(50_000, 2, 400_000)
    labels = tokens(16, 50_000)

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(x, edges), labels).backward()
        optimizer.step()

    return step


def encoder_dropout() -> Step:
    """nn.TransformerEncoder with dropout in fp32, on batches of a DataLoader."""
    layer = nn.TransformerEncoderLayer(512, 8, 2048, 0.1, batch_first=True)
    model = nn.Sequential(nn.TransformerEncoder(layer, 6), nn.Linear(512, 10)).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    data = torch.utils.data.TensorDataset(torch.randn(192, 256, 512), torch.randint(0, 10, (192,)))

    def batches() -> Iterator[list[Tensor]]:
        while True:
            yield from torch.utils.data.DataLoader(data, batch_size=32, shuffle=True)

    source = batches()

    def step() -> None:
        x, y = (part.to(DEVICE, non_blocking=True) for part in next(source))
        loss = F.cross_entropy(model(x).mean(1), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


PROGRAMS: dict[str, Callable[[], Step]] = {
    maker.__name__: maker
    for maker in (
        gpt2_bf16,
        bert_fp32,
        llama_lora_checkpointed,
        llama_generate,
        vit_bf16,
        resnet50_amp,
        resnet18_fp32,
        convnext_bf16,
        unet_attention_ema,
        lstm_lm,
        moe_fp32,
        gpt_checkpointed_bf16,
        gnn,
        encoder_dropout,
    )
}
