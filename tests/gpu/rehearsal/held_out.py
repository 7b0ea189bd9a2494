# SPDX-License-Identifier: Apache-2.0
"""More programs of the kinds that users train, for `truth.py --programs`: these were not looked
at while rehearsals were built. The interface is that of `programs.py`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

Step = Callable[[], None]
DEVICE = "cuda"


def _tokens(vocabulary: int, *shape: int) -> Tensor:
    return torch.randint(0, vocabulary, shape, device=DEVICE)


def _train(model: nn.Module, loss: Callable[[], Tensor], **options: Any) -> Step:
    """A plain step: backward, AdamW, gradients set to None."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, **options)

    def step() -> None:
        loss().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def t5_bf16() -> Step:
    """T5-base, encoder and decoder, under bf16 autocast."""
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(d_model=768, d_ff=3072, num_layers=12, num_heads=12, decoder_start_token_id=0)
    model = T5ForConditionalGeneration(config).to(DEVICE)

    def loss() -> Tensor:
        with torch.autocast("cuda", torch.bfloat16):
            ids, labels = _tokens(32000, 8, 384), _tokens(32000, 8, 128)
            return model(input_ids=ids, labels=labels).loss

    return _train(model, loss)


def qwen_bf16_accumulated() -> Step:
    """A Qwen2 of 0.5 B held in bf16; gradients of four small batches added up."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    config = Qwen2Config(
        hidden_size=896,
        intermediate_size=4864,
        num_hidden_layers=24,
        num_attention_heads=14,
        num_key_value_heads=2,
        vocab_size=151936,
        tie_word_embeddings=True,
        use_cache=False,
    )
    model = Qwen2ForCausalLM(config).to(torch.bfloat16).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, foreach=True)

    def step() -> None:
        for _ in range(4):
            ids = _tokens(151936, 2, 512)
            (model(input_ids=ids, labels=ids).loss / 4).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def distilbert_classifier() -> Step:
    """DistilBERT with a head for two classes, fp32, SGD with momentum."""
    from transformers import DistilBertConfig, DistilBertForSequenceClassification

    model = DistilBertForSequenceClassification(DistilBertConfig()).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    def step() -> None:
        ids, labels = _tokens(30000, 32, 192), _tokens(2, 32)
        model(input_ids=ids, labels=labels).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def wav2vec_fp32() -> Step:
    """Wav2Vec2: convolutions over sound, then a transformer."""
    from transformers import Wav2Vec2Config, Wav2Vec2ForSequenceClassification

    config = Wav2Vec2Config(num_labels=8, apply_spec_augment=False)
    model = Wav2Vec2ForSequenceClassification(config).to(DEVICE)

    def loss() -> Tensor:
        return model(torch.randn(8, 32000, device=DEVICE), labels=_tokens(8, 8)).loss

    return _train(model, loss)


def llama_7b_inference() -> Step:
    """A Llama of 7 B in bf16 that reads a prompt."""
    from transformers import LlamaConfig, LlamaForCausalLM

    with torch.device(DEVICE):
        model = LlamaForCausalLM(LlamaConfig()).to(torch.bfloat16).eval()

    @torch.no_grad()
    def step() -> None:
        model(input_ids=_tokens(32000, 1, 2048), use_cache=True)

    return step


def swin_fp32() -> Step:
    """torchvision's Swin-T: windows that are shifted."""
    from torchvision.models import swin_t

    model = swin_t().to(DEVICE)

    def loss() -> Tensor:
        return F.cross_entropy(
            model(torch.randn(32, 3, 224, 224, device=DEVICE)), _tokens(1000, 32)
        )

    return _train(model, loss)


def efficientnet_bf16() -> Step:
    """torchvision's EfficientNet-B0 (depthwise, squeeze and excite) under bf16 autocast."""
    from torchvision.models import efficientnet_b0

    model = efficientnet_b0().to(DEVICE)

    def loss() -> Tensor:
        with torch.autocast("cuda", torch.bfloat16):
            out = model(torch.randn(64, 3, 224, 224, device=DEVICE))
            return F.cross_entropy(out, _tokens(1000, 64))

    return _train(model, loss, fused=True)


def deeplab_fp32() -> Step:
    """torchvision's DeepLabV3 on ResNet-50: dilated convolutions, a loss per pixel."""
    from torchvision.models.segmentation import deeplabv3_resnet50

    model = deeplabv3_resnet50(weights=None, weights_backbone=None, num_classes=21).to(DEVICE)

    def loss() -> Tensor:
        out = model(torch.randn(4, 3, 320, 320, device=DEVICE))["out"]
        return F.cross_entropy(out, _tokens(21, 4, 320, 320))

    return _train(model, loss)


def vgg_fp16() -> Step:
    """torchvision's VGG-16 in fp16 autocast with a GradScaler, SGD."""
    from torchvision.models import vgg16

    model = vgg16().to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    scaler = torch.amp.GradScaler("cuda")

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.float16):
            out = model(torch.randn(32, 3, 224, 224, device=DEVICE))
            loss = F.cross_entropy(out, _tokens(1000, 32))
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    return step


def encoder_layers_fp32() -> Step:
    """PyTorch's own TransformerEncoder, with a mask of padding."""
    layer = nn.TransformerEncoderLayer(512, 8, 2048, dropout=0.1, batch_first=True)
    model = nn.TransformerEncoder(layer, 6).to(DEVICE)

    def loss() -> Tensor:
        x = torch.randn(24, 256, 512, device=DEVICE)
        mask = torch.arange(256, device=DEVICE).expand(24, 256) > 200
        return model(x, src_key_padding_mask=mask).square().mean()

    return _train(model, loss)


def gru_fp32() -> Step:
    """A bidirectional GRU over sequences, Adam."""
    gru = nn.GRU(256, 512, 2, batch_first=True, bidirectional=True)
    head = nn.Linear(1024, 10)
    model = nn.ModuleList([gru, head]).to(DEVICE)

    def loss() -> Tensor:
        out, _ = gru(torch.randn(64, 120, 256, device=DEVICE))
        return F.cross_entropy(head(out[:, -1]), _tokens(10, 64))

    return _train(model, loss)


def graph_attention() -> Step:
    """PyTorch Geometric's GAT on a random graph."""
    from torch_geometric.nn import GATConv

    first, second = GATConv(128, 64, heads=8), GATConv(512, 40, heads=1)
    model = nn.ModuleList([first, second]).to(DEVICE)
    x = torch.randn(50000, 128, device=DEVICE)
    edges = _tokens(50000, 2, 400000)
    labels = _tokens(40, 50000)

    def loss() -> Tensor:
        return F.cross_entropy(second(F.elu(first(x, edges)), edges), labels)

    return _train(model, loss)


PROGRAMS: dict[str, Callable[[], Step]] = {
    maker.__name__: maker
    for maker in (
        t5_bf16,
        qwen_bf16_accumulated,
        distilbert_classifier,
        wav2vec_fp32,
        llama_7b_inference,
        swin_fp32,
        efficientnet_bf16,
        deeplab_fp32,
        vgg_fp16,
        encoder_layers_fp32,
        gru_fp32,
        graph_attention,
    )
}
