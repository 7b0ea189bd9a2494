# SPDX-License-Identifier: Apache-2.0
"""Training steps of several kinds of model in plain torch, for `category_truth`.

Each maker takes a device and a scale (1 is full size, less is for a try without a GPU) and
returns a function that makes one training step.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

Step = Callable[[], None]


# ResNet-50, SGD with momentum.


class Bottleneck(nn.Module):
    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, 4 * width, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(4 * width)
        self.relu = nn.ReLU(inplace=True)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != 4 * width:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, 4 * width, 1, stride, bias=False), nn.BatchNorm2d(4 * width)
            )

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.relu(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        y += self.shortcut(x)
        return self.relu(y)


def resnet(classes: int = 1000) -> nn.Module:
    blocks: list[nn.Module] = []
    inputs = 64
    for depth, width, stride in ((3, 64, 1), (4, 128, 2), (6, 256, 2), (3, 512, 2)):
        for number in range(depth):
            blocks.append(Bottleneck(inputs, width, stride if number == 0 else 1))
            inputs = 4 * width
    return nn.Sequential(
        nn.Conv2d(3, 64, 7, 2, 3, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, 2, 1),
        *blocks,
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(2048, classes),
    )


def resnet50(device: str, scale: float) -> Step:
    model = resnet().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    batch, side = max(2, int(32 * scale)), 224 if scale == 1 else 64

    def step() -> None:
        images = torch.randn(batch, 3, side, side).to(device)
        labels = torch.randint(0, 1000, (batch,)).to(device)
        optimizer.zero_grad(set_to_none=True)
        loss = F.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()

    return step


# GPT-2 small, AdamW.


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.drop = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        parts = self.qkv(x).split(width, dim=2)
        q, k, v = (
            part.view(batch, length, self.heads, width // self.heads).transpose(1, 2)
            for part in parts
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.drop(self.out(y.transpose(1, 2).reshape(batch, length, width)))


class GPTBlock(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.rise, self.fall = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.drop = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.drop(self.fall(F.gelu(self.rise(self.norm2(x)), approximate="tanh")))


class GPT2(nn.Module):
    def __init__(self, words: int, width: int, depth: int, heads: int, length: int) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        self.drop = nn.Dropout(0.1)
        self.blocks = nn.ModuleList(GPTBlock(width, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, words, bias=False)
        self.head.weight = self.words.weight

    def forward(self, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.drop(self.words(tokens) + self.places(places))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def gpt2(device: str, scale: float) -> Step:
    words, width, depth, length = (50257, 768, 12, 512) if scale == 1 else (2000, 128, 3, 64)
    model = GPT2(words, width, depth, width // 64, length).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def step() -> None:
        tokens = torch.randint(0, words, (4, length + 1)).to(device)
        logits = model(tokens[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


# An LSTM language model: Adam, clipped gradients.


class WordLSTM(nn.Module):
    def __init__(self, words: int, width: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.lstm = nn.LSTM(width, width, 2, batch_first=True, dropout=0.2)
        self.head = nn.Linear(width, words)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.lstm(self.embed(tokens))[0])


def lstm_lm(device: str, scale: float) -> Step:
    words, width, length = (20000, 650, 64) if scale == 1 else (500, 64, 16)
    model = WordLSTM(words, width).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    def step() -> None:
        tokens = torch.randint(0, words, (32, length + 1), device=device)
        loss = F.cross_entropy(model(tokens[:, :-1]).transpose(1, 2), tokens[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return step


# A U-Net that removes noise: RMSprop, bfloat16 autocast.


class UNet(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        sizes = (width, 2 * width, 4 * width)
        self.downs = nn.ModuleList(_double(a, b) for a, b in zip((3, *sizes), sizes, strict=False))
        self.middle = _double(sizes[-1], sizes[-1])
        self.ups = nn.ModuleList(
            _double(a + b, b)
            for a, b in ((sizes[2], sizes[2]), (sizes[2], sizes[1]), (sizes[1], sizes[0]))
        )
        self.last = nn.Conv2d(width, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        kept = []
        for down in self.downs:
            x = down(x)
            kept.append(x)
            x = F.avg_pool2d(x, 2)
        x = self.middle(x)
        for up in self.ups:
            x = F.interpolate(x, scale_factor=2.0, mode="nearest")
            x = up(torch.cat((x, kept.pop()), dim=1))
        return self.last(x)


def _double(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1),
        nn.GroupNorm(8, outputs),
        nn.SiLU(),
        nn.Conv2d(outputs, outputs, 3, padding=1),
        nn.GroupNorm(8, outputs),
        nn.SiLU(),
    )


def unet_autocast(device: str, scale: float) -> Step:
    width, side = (64, 128) if scale == 1 else (16, 32)
    model = UNet(width).to(device)
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-4)

    def step() -> None:
        clean = torch.rand(8, 3, side, side, device=device)
        noise = torch.randn_like(clean)
        with torch.autocast(device, torch.bfloat16):
            loss = F.mse_loss(model(clean + 0.3 * noise).float(), noise)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


# A vision transformer with a mixture of experts: fused AdamW, float16 with a GradScaler.


class Experts(nn.Module):
    def __init__(self, width: int, count: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, count)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
            for _ in range(count)
        )

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(0, 1)
        weight, choice = self.gate(flat).softmax(-1).max(-1)
        out = torch.zeros_like(flat)
        for number, expert in enumerate(self.experts):
            rows = (choice == number).nonzero().flatten()
            part = expert(flat[rows]) * weight[rows, None]
            out = out.index_add(0, rows, part.to(out.dtype))
        return out.view_as(x)


class ViTBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, width // 64, batch_first=True)
        self.experts = Experts(width, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm1(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return x + self.experts(self.norm2(x))


class ViT(nn.Module):
    def __init__(self, width: int, depth: int, side: int) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, width, 16, 16)
        self.places = nn.Parameter(torch.zeros(1, (side // 16) ** 2, width))
        self.blocks = nn.Sequential(*(ViTBlock(width) for _ in range(depth)))
        self.head = nn.Linear(width, 100)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch(x).flatten(2).transpose(1, 2) + self.places
        return self.head(self.blocks(x).mean(1))


def vit_experts(device: str, scale: float) -> Step:
    width, depth, side = (384, 8, 224) if scale == 1 else (128, 2, 32)
    model = ViT(width, depth, side).to(device)
    fused = device == "cuda"
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=fused)
    scaler = torch.amp.GradScaler(device, enabled=fused)

    def step() -> None:
        images = torch.randn(16, 3, side, side).to(device)
        labels = torch.randint(0, 100, (16,)).to(device)
        with torch.autocast(device, torch.float16 if fused else torch.bfloat16):
            loss = F.cross_entropy(model(images), labels)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()

    return step


# Message passing on a graph: Adam without foreach, two micro-batches a step.


class Messages(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.edge, self.node = nn.Linear(2 * width, width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor, source: Tensor, target: Tensor) -> Tensor:
        sent = torch.relu(self.edge(torch.cat((x[source], x[target]), 1)))
        received = torch.zeros_like(x).index_add(0, target, sent)
        return x + torch.relu(self.node(torch.cat((x, received), 1)))


class GraphNet(nn.Module):
    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(32, width), nn.Linear(width, 10)
        self.layers = nn.ModuleList(Messages(width) for _ in range(depth))

    def forward(self, x: Tensor, source: Tensor, target: Tensor) -> Tensor:
        x = self.enter(x)
        for layer in self.layers:
            x = layer(x, source, target)
        return self.leave(x)


def graph_net(device: str, scale: float) -> Step:
    nodes, edges, width = (20000, 120000, 128) if scale == 1 else (200, 800, 32)
    model = GraphNet(width, 4).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, foreach=False)

    def step() -> None:
        optimizer.zero_grad()
        for _ in range(2):
            features = torch.randn(nodes, 32, device=device)
            ends = torch.randint(0, nodes, (2, edges), device=device)
            labels = torch.randint(0, 10, (nodes,), device=device)
            loss = F.cross_entropy(model(features, ends[0], ends[1]), labels) / 2
            loss.backward()
        optimizer.step()

    return step


# A variational autoencoder on rows of numbers: Adagrad, gradients zeroed in place.


class VAE(nn.Module):
    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.encode = nn.Sequential(nn.Linear(inputs, width), nn.ELU(), nn.Linear(width, width))
        self.mean, self.spread = nn.Linear(width, 64), nn.Linear(width, 64)
        self.decode = nn.Sequential(nn.Linear(64, width), nn.ELU(), nn.Linear(width, inputs))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        hidden = F.elu(self.encode(x))
        mean, spread = self.mean(hidden), self.spread(hidden)
        code = mean + torch.randn_like(mean) * (0.5 * spread).exp()
        return self.decode(code), mean, spread


def vae_rows(device: str, scale: float) -> Step:
    inputs, width, batch = (4096, 2048, 4096) if scale == 1 else (256, 64, 64)
    model = VAE(inputs, width).to(device)
    optimizer = torch.optim.Adagrad(model.parameters(), lr=1e-3)

    def step() -> None:
        rows = torch.rand(batch, inputs, device=device)
        found, mean, spread = model(rows)
        extra = -0.5 * (1 + spread - mean.pow(2) - spread.exp()).sum(1).mean()
        loss = F.mse_loss(found, rows) + 1e-3 * extra
        optimizer.zero_grad(set_to_none=False)
        loss.backward()
        optimizer.step()

    return step


MODELS: dict[str, Callable[[str, float], Step]] = {
    "resnet50": resnet50,
    "gpt2": gpt2,
    "lstm_lm": lstm_lm,
    "unet_autocast": unet_autocast,
    "vit_experts": vit_experts,
    "graph_net": graph_net,
    "vae_rows": vae_rows,
}
