# SPDX-License-Identifier: Apache-2.0
"""A third set of programs of the kinds that users train, for `truth.py --programs`: written
before the rules that they are held against, which nobody fitted to them. The interface is that
of `programs.py`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

Step = Callable[[], None]
DEVICE = "cuda"


def _tokens(vocabulary: int, *shape: int) -> Tensor:
    return torch.randint(0, vocabulary, shape, device=DEVICE)


def _mask(batch: int, length: int, used: int) -> Tensor:
    """Ones, and zeros for the padding at the end of each example."""
    mask = torch.ones(batch, length, dtype=torch.long, device=DEVICE)
    mask[:, used:] = 0
    return mask


def _scaled(model: nn.Module, optimizer: Any, loss: Callable[[], Tensor]) -> Step:
    """A step under fp16 autocast with a GradScaler, gradients clipped."""
    scaler = torch.amp.GradScaler("cuda")

    def step() -> None:
        with torch.autocast("cuda", torch.float16):
            value = loss()
        scaler.scale(value).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)

    return step


def _plain(optimizer: Any, loss: Callable[[], Tensor]) -> Step:
    def step() -> None:
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()

    return step


def bert_fp16_scaled() -> Step:
    """BERT-base for classes, padded, fp16 autocast with a GradScaler."""
    from transformers import BertConfig, BertForSequenceClassification

    model = BertForSequenceClassification(BertConfig(num_labels=4)).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-5)

    def loss() -> Tensor:
        ids = _tokens(30522, 24, 256)
        mask = _mask(24, 256, 220)
        return model(input_ids=ids, attention_mask=mask, labels=_tokens(4, 24)).loss

    return _scaled(model, optimizer, loss)


def opt_checkpointed_bf16() -> Step:
    """OPT-350M held in bf16, its layers checkpointed, Adafactor."""
    from transformers import OPTConfig, OPTForCausalLM

    config = OPTConfig(
        hidden_size=1024,
        ffn_dim=4096,
        num_hidden_layers=24,
        num_attention_heads=16,
        word_embed_proj_dim=1024,
        use_cache=False,
    )
    model = OPTForCausalLM(config).to(torch.bfloat16).to(DEVICE)
    model.gradient_checkpointing_enable()
    model.train()
    optimizer = torch.optim.Adafactor(model.parameters(), lr=1e-3)

    def loss() -> Tensor:
        ids = _tokens(50272, 8, 768)
        return model(input_ids=ids, labels=ids).loss

    return _plain(optimizer, loss)


def whisper_small_bf16() -> Step:
    """Whisper-small under bf16 autocast: 30 s of sound, 96 tokens."""
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    config = WhisperConfig(
        d_model=768,
        encoder_layers=12,
        decoder_layers=12,
        encoder_attention_heads=12,
        decoder_attention_heads=12,
        encoder_ffn_dim=3072,
        decoder_ffn_dim=3072,
        use_cache=False,
    )
    model = WhisperForConditionalGeneration(config).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)

    def loss() -> Tensor:
        sound = torch.randn(4, 80, 3000, device=DEVICE)
        with torch.autocast("cuda", torch.bfloat16):
            return model(input_features=sound, labels=_tokens(50000, 4, 96)).loss

    return _plain(optimizer, loss)


def clip_fp32() -> Step:
    """CLIP, both towers of ViT-B/32, in fp32 with its contrastive loss."""
    from transformers import CLIPConfig, CLIPModel

    model = CLIPModel(CLIPConfig()).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)

    def loss() -> Tensor:
        ids = _tokens(49000, 64, 77)
        pixels = torch.randn(64, 3, 224, 224, device=DEVICE)
        return model(input_ids=ids, pixel_values=pixels, return_loss=True).loss

    return _plain(optimizer, loss)


def mamba_fp32() -> Step:
    """A small Mamba without its custom kernels: a scan in Python."""
    from transformers import MambaConfig, MambaForCausalLM

    config = MambaConfig(
        hidden_size=512, num_hidden_layers=4, vocab_size=32000, state_size=16, use_cache=False
    )
    model = MambaForCausalLM(config).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def loss() -> Tensor:
        ids = _tokens(32000, 8, 96)
        return model(input_ids=ids, labels=ids).loss

    return _plain(optimizer, loss)


def resnet101_bf16() -> Step:
    """torchvision's ResNet-101 under bf16 autocast, channels first, SGD with momentum."""
    from torchvision.models import resnet101

    model = resnet101().to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)

    def loss() -> Tensor:
        with torch.autocast("cuda", torch.bfloat16):
            out = model(torch.randn(32, 3, 224, 224, device=DEVICE))
            return F.cross_entropy(out, _tokens(1000, 32), label_smoothing=0.1)

    return _plain(optimizer, loss)


def mobilenet_fp16_last() -> Step:
    """torchvision's MobileNetV3: fp16 with a GradScaler, channels last, RMSprop."""
    from torchvision.models import mobilenet_v3_large

    model = mobilenet_v3_large().to(DEVICE, memory_format=torch.channels_last)
    optimizer = torch.optim.RMSprop(model.parameters(), lr=0.01, momentum=0.9)

    def loss() -> Tensor:
        images = torch.randn(96, 3, 224, 224, device=DEVICE)
        images = images.contiguous(memory_format=torch.channels_last)
        return F.cross_entropy(model(images), _tokens(1000, 96))

    return _scaled(model, optimizer, loss)


def fcn_fp32() -> Step:
    """torchvision's FCN on ResNet-50 with its second head, a loss per pixel."""
    from torchvision.models.segmentation import fcn_resnet50

    model = fcn_resnet50(weights=None, weights_backbone=None, num_classes=21, aux_loss=True).to(
        DEVICE
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    def loss() -> Tensor:
        out = model(torch.randn(4, 3, 288, 288, device=DEVICE))
        labels = _tokens(21, 4, 288, 288)
        return F.cross_entropy(out["out"], labels) + 0.5 * F.cross_entropy(out["aux"], labels)

    return _plain(optimizer, loss)


def lstm_packed_fp16() -> Step:
    """A tagger of three bidirectional LSTM layers on packed sequences, fp16 with a GradScaler."""
    embed = nn.Embedding(30000, 300)
    lstm = nn.LSTM(300, 384, 3, dropout=0.3, bidirectional=True, batch_first=True)
    head = nn.Linear(768, 40)
    model = nn.ModuleList([embed, lstm, head]).to(DEVICE)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    lengths = torch.tensor([140 - 2 * i for i in range(48)])

    def loss() -> Tensor:
        words, tags = _tokens(30000, 48, 140), _tokens(40, 48, 140)
        packed = nn.utils.rnn.pack_padded_sequence(embed(words), lengths, batch_first=True)
        out, _ = nn.utils.rnn.pad_packed_sequence(lstm(packed)[0], batch_first=True)
        return F.cross_entropy(head(out).flatten(0, 1), tags.flatten())

    return _scaled(model, optimizer, loss)


def gru_translator_fp32() -> Step:
    """A GRU that reads, and one that writes with attention over what was read."""

    class Translator(nn.Module):
        def __init__(self, width: int = 640) -> None:
            super().__init__()
            self.source, self.target = nn.Embedding(16000, width), nn.Embedding(16000, width)
            self.reader = nn.GRU(width, width, 2, batch_first=True, dropout=0.1)
            self.writer = nn.GRU(width, width, batch_first=True)
            self.mixed, self.head = nn.Linear(2 * width, width), nn.Linear(width, 16000)

        def forward(self, source: Tensor, target: Tensor) -> Tensor:
            read, state = self.reader(self.source(source))
            written, _ = self.writer(self.target(target), state[-1:].contiguous())
            weights = torch.bmm(written, read.transpose(1, 2)).softmax(-1)
            context = torch.bmm(weights, read)
            return self.head(torch.tanh(self.mixed(torch.cat([written, context], -1))))

    model = Translator().to(DEVICE)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    def loss() -> Tensor:
        out = model(_tokens(16000, 48, 60), _tokens(16000, 48, 50))
        return F.cross_entropy(out.flatten(0, 1), _tokens(16000, 48 * 50), ignore_index=0)

    return _plain(optimizer, loss)


class _Double(nn.Sequential):
    def __init__(self, inputs: int, outputs: int) -> None:
        layers: list[nn.Module] = []
        for width in (inputs, outputs):
            conv = nn.Conv2d(width, outputs, 3, padding=1, bias=False)
            layers += [conv, nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)]
        super().__init__(*layers)


class _Segmenter(nn.Module):
    """A U-Net of four resolutions with pooling and bilinear upsampling."""

    def __init__(self, base: int = 48) -> None:
        super().__init__()
        widths = [base * 2**level for level in range(4)]
        inputs = [1, *widths[:-1]]
        self.downs = nn.ModuleList(map(_Double, inputs, widths))
        self.ups = nn.ModuleList(
            _Double(wide + narrow, narrow)
            for wide, narrow in zip(widths[:0:-1], widths[-2::-1], strict=True)
        )
        self.head = nn.Conv2d(base, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        kept: list[Tensor] = []
        for level, down in enumerate(self.downs):
            x = down(F.max_pool2d(x, 2) if level else x)
            kept.append(x)
        x = kept.pop()
        for up in self.ups:
            x = F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False)
            x = up(torch.cat([kept.pop(), x], 1))
        return self.head(x)


def unet_dice_bf16() -> Step:
    """A segmenting U-Net under bf16 autocast with Dice and cross-entropy."""
    model = _Segmenter().to(DEVICE)
    optimizer = torch.optim.NAdam(model.parameters(), lr=1e-3)

    def loss() -> Tensor:
        images, labels = torch.randn(6, 1, 256, 256, device=DEVICE), _tokens(3, 6, 256, 256)
        with torch.autocast("cuda", torch.bfloat16):
            out = model(images)
        share = out.float().softmax(1)
        wanted = F.one_hot(labels, 3).permute(0, 3, 1, 2).float()
        both = (share * wanted).sum((2, 3))
        dice = 1 - (2 * both / (share.sum((2, 3)) + wanted.sum((2, 3)) + 1)).mean()
        return dice + F.cross_entropy(out.float(), labels)

    return _plain(optimizer, loss)


class _Routed(nn.Module):
    """Experts with room for so many tokens each; tokens are sent by products of matrices."""

    def __init__(self, width: int, count: int) -> None:
        super().__init__()
        self.router = nn.Linear(width, count, bias=False)
        self.up = nn.Parameter(torch.randn(count, width, 2 * width) * 0.02)
        self.down = nn.Parameter(torch.randn(count, 2 * width, width) * 0.02)
        self.count = count

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(0, 1)
        room = 2 * len(flat) // self.count
        share, chosen = self.router(flat).float().softmax(-1).max(-1)
        hot = F.one_hot(chosen, self.count)
        place = (hot.cumsum(0) * hot).sum(-1) - 1
        kept = (place < room).to(x.dtype)
        where = F.one_hot(place.clamp(0, room - 1), room).to(x.dtype)
        sent = torch.einsum("te,tc->tec", hot.to(x.dtype) * kept[:, None], where)
        inside = torch.einsum("tec,td->ecd", sent, flat)
        inside = torch.bmm(F.gelu(torch.bmm(inside, self.up)), self.down)
        out = torch.einsum("tec,ecd->td", sent * share[:, None, None].to(x.dtype), inside)
        return x + out.view_as(x)


def moe_switch_bf16() -> Step:
    """A switch transformer: one expert for each token, checkpointed attention, in bf16."""
    width, layers = 512, 4
    attends = nn.ModuleList(
        nn.MultiheadAttention(width, 8, batch_first=True) for _ in range(layers)
    )
    routed = nn.ModuleList(_Routed(width, 8) for _ in range(layers))
    norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(layers))
    embed, head = nn.Embedding(32000, width), nn.Linear(width, 32000)
    model = nn.ModuleList([attends, routed, norms, embed, head]).to(torch.bfloat16).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def attend(attention: Any, norm: Any, x: Tensor) -> Tensor:
        y = norm(x)
        return x + attention(y, y, y, need_weights=False)[0]

    def loss() -> Tensor:
        ids = _tokens(32000, 4, 512)
        x = embed(ids)
        for attention, norm, expert in zip(attends, norms, routed, strict=True):
            x = expert(checkpoint(attend, attention, norm, x, use_reentrant=False))
        return F.cross_entropy(head(x).flatten(0, 1).float(), ids.flatten())

    return _plain(optimizer, loss)


def gnn_pooled_fp32() -> Step:
    """Messages added up by index_add, batch norm, graphs pooled by scatter; labels per graph."""

    class Layer(nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.message = nn.Sequential(
                nn.Linear(2 * width + 16, width), nn.ReLU(), nn.Linear(width, width)
            )
            self.update, self.norm = nn.Linear(2 * width, width), nn.BatchNorm1d(width)

        def forward(self, x: Tensor, edges: Tensor, facts: Tensor) -> Tensor:
            source, target = edges
            sent = self.message(torch.cat([x[source], x[target], facts], -1))
            got = torch.zeros_like(x).index_add_(0, target, sent)
            return x + F.relu(self.norm(self.update(torch.cat([x, got], -1))))

    width, nodes, links, graphs = 96, 30000, 120000, 1200
    first, head = nn.Linear(32, width), nn.Linear(width, 10)
    layers = nn.ModuleList(Layer(width) for _ in range(4))
    model = nn.ModuleList([first, layers, head]).to(DEVICE)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    x, edges = torch.randn(nodes, 32, device=DEVICE), _tokens(nodes, 2, links)
    facts, owner = torch.randn(links, 16, device=DEVICE), _tokens(graphs, nodes)
    labels = _tokens(10, graphs)

    def loss() -> Tensor:
        h = first(x)
        for layer in layers:
            h = layer(h, edges, facts)
        pooled = torch.zeros(graphs, width, device=DEVICE)
        pooled = pooled.scatter_reduce(0, owner[:, None].expand(-1, width), h, "mean")
        return F.cross_entropy(head(pooled), labels)

    return _plain(optimizer, loss)


def gpt2_generate_fp16() -> Step:
    """GPT-2 medium in fp16 that writes 48 tokens with `generate`, greedily."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(n_layer=24, n_embd=1024, n_head=16, pad_token_id=0)
    model = GPT2LMHeadModel(config).to(torch.float16).to(DEVICE).eval()

    @torch.no_grad()
    def step() -> None:
        ids = _tokens(50000, 8, 256)
        model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=48,
            min_new_tokens=48,
            do_sample=False,
        )

    return step


class _Adapted(nn.Module):
    """A frozen linear layer with a low-rank one beside it."""

    def __init__(self, base: nn.Linear, rank: int = 8) -> None:
        super().__init__()
        self.base = base
        self.down = nn.Linear(base.in_features, rank, bias=False, device=base.weight.device)
        self.up = nn.Linear(rank, base.out_features, bias=False, device=base.weight.device)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.up(self.down(F.dropout(x, 0.1, self.training)))


def mistral_lora_bf16() -> Step:
    """A small Mistral, frozen in bf16, with fp32 LoRA under autocast; two small batches a step."""
    from transformers import MistralConfig, MistralForCausalLM

    config = MistralConfig(
        hidden_size=1536,
        intermediate_size=4096,
        num_hidden_layers=12,
        num_attention_heads=12,
        num_key_value_heads=4,
        vocab_size=32000,
        use_cache=False,
    )
    model = MistralForCausalLM(config).to(torch.bfloat16).to(DEVICE).requires_grad_(False)
    for layer in model.model.layers:
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            setattr(layer.self_attn, name, _Adapted(getattr(layer.self_attn, name)))
    model.train()
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-4, fused=True)

    def step() -> None:
        for _ in range(2):
            ids = _tokens(32000, 2, 1024)
            with torch.autocast("cuda", torch.bfloat16):
                loss = model(input_ids=ids, labels=ids).loss / 2
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


PROGRAMS: dict[str, Callable[[], Step]] = {
    maker.__name__: maker
    for maker in (
        bert_fp16_scaled,
        opt_checkpointed_bf16,
        whisper_small_bf16,
        clip_fp32,
        mamba_fp32,
        resnet101_bf16,
        mobilenet_fp16_last,
        fcn_fp32,
        lstm_packed_fp16,
        gru_translator_fp32,
        unet_dice_bf16,
        moe_switch_bf16,
        gnn_pooled_fp32,
        gpt2_generate_fp16,
        mistral_lora_bf16,
    )
}
