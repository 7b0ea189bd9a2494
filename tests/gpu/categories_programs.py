# SPDX-License-Identifier: Apache-2.0
"""Twenty programs of today whose tensors are known, for `categories_truth`.

Each maker takes a device and whether sizes are those of a GPU, and returns a `Program`. Models
come from transformers by configuration, so that nothing is downloaded.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

Tensors = Iterable[torch.Tensor]


@dataclass
class Program:
    """One program.

    Attributes:
        step: Makes one step; calls `mark` at the moments to look at.
        tensors: By category what it holds, asked at each moment.
        steps: How many steps it makes.
        record_from: The step before which the recording begins; -1: before the model is made.
    """

    step: Callable[[Callable[[], None]], None]
    tensors: dict[str, Callable[[], Tensors]] = field(default_factory=dict)
    steps: int = 3
    record_from: int = -1


class Held:
    """What a training program holds, by category."""

    def __init__(self, model: nn.Module, optimizer: Any = None) -> None:
        self.model = model
        self.optimizer = optimizer
        self.more: list[torch.Tensor] = []
        self.inputs: list[torch.Tensor] = []
        self.outputs: list[torch.Tensor] = []
        self.caches: list[torch.Tensor] = []

    def parameters(self) -> Iterator[torch.Tensor]:
        yield from (local(p) for p in self.model.parameters())
        yield from self.model.buffers()
        yield from self.more
        for group in self.optimizer.param_groups if self.optimizer else ():
            yield from (local(p) for p in group["params"])

    def gradients(self) -> Iterator[torch.Tensor]:
        groups = self.optimizer.param_groups if self.optimizer else ()
        everywhere = [*self.model.parameters(), *(p for g in groups for p in g["params"])]
        yield from (local(p.grad) for p in everywhere if p.grad is not None)

    def states(self) -> Iterator[torch.Tensor]:
        for state in self.optimizer.state.values() if self.optimizer else ():
            yield from (local(one) for one in state.values() if isinstance(one, torch.Tensor))

    def tensors(self) -> dict[str, Callable[[], Tensors]]:
        return {
            "parameter": self.parameters,
            "gradient": self.gradients,
            "optimizer_state": self.states,
            "input": lambda: self.inputs,
            "activation": lambda: [*self.outputs, *self.caches],
        }


def local(tensor: torch.Tensor) -> torch.Tensor:
    """The part of a distributed tensor that lies here."""
    inner = getattr(tensor, "_local_tensor", None)
    return tensor if inner is None else inner


def tokens(words: int, batch: int, length: int, device: str) -> torch.Tensor:
    return torch.randint(0, words, (batch, length)).to(device)


def loss_of(output: Any) -> torch.Tensor:
    return output.loss if hasattr(output, "loss") else output


def train(
    held: Held,
    forward: Callable[[], Any],
    *,
    autocast: torch.dtype | None = None,
    scaler: Any = None,
    clip: bool = False,
    after: Callable[[], None] | None = None,
    backward: Callable[[torch.Tensor], None] | None = None,
) -> Callable[[Callable[[], None]], None]:
    """A plain training step."""
    device = next(held.model.parameters()).device.type

    def step(mark: Callable[[], None]) -> None:
        held.optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device, autocast or torch.bfloat16, enabled=autocast is not None):
            output = forward()
        loss = loss_of(output)
        held.outputs = [one for one in (loss, getattr(output, "logits", None)) if one is not None]
        mark()
        if backward is not None:
            backward(loss)
        else:
            (scaler.scale(loss) if scaler else loss).backward()
        mark()
        held.outputs = [loss]
        del output
        if clip:
            nn.utils.clip_grad_norm_(held.model.parameters(), 1.0)
        if scaler:
            scaler.step(held.optimizer)
            scaler.update()
        else:
            held.optimizer.step()
        if after is not None:
            after()
        mark()
        held.outputs, held.inputs = [], []

    return step


# ---- language models by configuration ---------------------------------------------------


def language(name: str, big: bool, **more: Any) -> Any:
    """A small model of one of transformers' families."""
    import transformers as tf

    width, depth, heads = (768, 8, 12) if big else (64, 2, 4)
    words = 32_000 if big else 500
    common = {"vocab_size": words, "hidden_size": width, "num_hidden_layers": depth}
    common |= {"num_attention_heads": heads, "intermediate_size": 4 * width}
    if name == "gpt2":
        config: Any = tf.GPT2Config(
            vocab_size=words, n_embd=width, n_layer=depth, n_head=heads, n_positions=1024
        )
        return tf.GPT2LMHeadModel(config)
    if name == "llama":
        return tf.LlamaForCausalLM(tf.LlamaConfig(**common, **more))
    if name == "qwen2":
        return tf.Qwen2ForCausalLM(tf.Qwen2Config(**common, num_key_value_heads=heads))
    if name == "mixtral":
        return tf.MixtralForCausalLM(
            tf.MixtralConfig(**common, num_key_value_heads=heads, num_local_experts=4)
        )
    if name == "bert":
        return tf.BertForMaskedLM(tf.BertConfig(**common))
    if name == "t5":
        config = tf.T5Config(
            vocab_size=words, d_model=width, d_kv=width // heads, d_ff=4 * width,
            num_layers=depth, num_heads=heads, decoder_start_token_id=0,
        )  # fmt: skip
        return tf.T5ForConditionalGeneration(config)
    raise ValueError(name)


def of_language(
    name: str, device: str, big: bool, optimizer: Callable[[Any], Any], **more: Any
) -> Program:
    model = language(name, big).to(device)
    held = Held(model, optimizer(model.parameters()))
    words = model.config.vocab_size

    def forward() -> Any:
        ids = tokens(words, 4 if big else 2, 512 if big else 32, device)
        held.inputs = [ids]
        return model(input_ids=ids, labels=ids)

    return Program(train(held, forward, **more), held.tensors())


def adamw(**more: Any) -> Callable[[Any], Any]:
    return lambda parameters: torch.optim.AdamW(parameters, lr=1e-4, **more)


def gpt2_adamw(device: str, big: bool) -> Program:
    return of_language("gpt2", device, big, adamw(), clip=True)


def bert_fused(device: str, big: bool) -> Program:
    return of_language("bert", device, big, adamw(fused=True))


def t5_fp16_scaler(device: str, big: bool) -> Program:
    scaler = torch.amp.GradScaler(device)
    return of_language("t5", device, big, adamw(), autocast=torch.float16, scaler=scaler)


def gpt2_late(device: str, big: bool) -> Program:
    program = gpt2_adamw(device, big)
    program.steps, program.record_from = 5, 2
    return program


def mixtral_sgd(device: str, big: bool) -> Program:
    def sgd(parameters: Any) -> Any:
        return torch.optim.SGD(parameters, lr=0.01, momentum=0.9)

    return of_language("mixtral", device, big, sgd, autocast=torch.bfloat16)


def qwen2_accelerate(device: str, big: bool) -> Program:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=device == "cpu", mixed_precision="bf16")
    model = language("qwen2", big)
    held = Held(model, torch.optim.AdamW(model.parameters(), lr=1e-4))
    prepared, wrapped = accelerator.prepare(model, held.optimizer)
    words = model.config.vocab_size

    def forward() -> Any:
        ids = tokens(words, 4 if big else 2, 512 if big else 32, device)
        held.inputs = [ids]
        return prepared(input_ids=ids, labels=ids)

    step = train(held, forward, backward=accelerator.backward)
    held.optimizer = wrapped.optimizer
    return Program(step, held.tensors())


def llama_masters(device: str, big: bool) -> Program:
    """Weights in bfloat16, masters and their gradients in float32."""
    model = language("llama", big).to(device).to(torch.bfloat16)
    masters = [p.detach().clone().float().requires_grad_() for p in model.parameters()]
    held = Held(model, torch.optim.AdamW(masters, lr=1e-4))
    words = model.config.vocab_size

    def step(mark: Callable[[], None]) -> None:
        ids = tokens(words, 4 if big else 2, 512 if big else 32, device)
        held.inputs = [ids]
        loss = model(input_ids=ids, labels=ids).loss
        held.outputs = [loss]
        mark()
        loss.backward()
        mark()
        for master, parameter in zip(masters, model.parameters(), strict=True):
            master.grad = parameter.grad.float() if parameter.grad is not None else None
            parameter.grad = None
        mark()
        held.optimizer.step()
        held.optimizer.zero_grad()
        with torch.no_grad():
            for master, parameter in zip(masters, model.parameters(), strict=True):
                parameter.copy_(master)
        held.inputs, held.outputs = [], []
        mark()

    return Program(step, held.tensors())


class Adapter(nn.Module):
    """A frozen linear layer with one of low rank beside it."""

    def __init__(self, base: nn.Linear, rank: int) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Linear(base.in_features, rank, bias=False)
        self.up = nn.Linear(rank, base.out_features, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + self.up(self.down(x))


def llama_lora(device: str, big: bool) -> Program:
    model = language("llama", big).requires_grad_(False)
    for layer in model.model.layers:
        for name in ("q_proj", "v_proj"):
            setattr(layer.self_attn, name, Adapter(getattr(layer.self_attn, name), 8))
    model = model.to(device)
    trained = [p for p in model.parameters() if p.requires_grad]
    held = Held(model, torch.optim.AdamW(trained, lr=1e-4))
    words = model.config.vocab_size

    def forward() -> Any:
        ids = tokens(words, 4 if big else 2, 512 if big else 32, device)
        held.inputs = [ids]
        return model(input_ids=ids, labels=ids)

    return Program(train(held, forward), held.tensors())


def llama_ema(device: str, big: bool) -> Program:
    from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

    program = of_language("llama", device, big, adamw())
    held: Held = program.tensors["parameter"].__self__  # type: ignore[attr-defined]
    average = AveragedModel(held.model, multi_avg_fn=get_ema_multi_avg_fn(0.999))
    held.more = [*average.parameters(), *average.buffers()]
    first = program.step

    def step(mark: Callable[[], None]) -> None:
        first(mark)
        average.update_parameters(held.model)

    return Program(step, program.tensors)


def llama_decode(device: str, big: bool) -> Program:
    """Decoding with a cache of keys and values that grows."""
    model = language("llama", big).to(device).eval()
    held = Held(model)
    words = model.config.vocab_size

    def step(mark: Callable[[], None]) -> None:
        with torch.no_grad():
            ids = tokens(words, 4, 256 if big else 16, device)
            held.inputs = [ids]
            output = model(input_ids=ids, use_cache=True)
            for _ in range(8):
                last = output.logits[:, -1:].argmax(-1)
                output = model(input_ids=last, past_key_values=output.past_key_values)
                held.inputs = [ids, last]
                held.outputs = [output.logits]
                held.caches = list(cache_tensors(output.past_key_values))
            mark()
            held.inputs, held.outputs, held.caches = [], [], []

    return Program(step, held.tensors())


def cache_tensors(cache: Any) -> Iterator[torch.Tensor]:
    """The tensors of one of transformers' caches."""
    for layer in cache.layers:
        yield from (layer.keys, layer.values)


# ---- pictures and sound -----------------------------------------------------------------


def vit_sgd(device: str, big: bool) -> Program:
    import transformers as tf

    config = tf.ViTConfig(
        hidden_size=768 if big else 64, num_hidden_layers=8 if big else 2, num_labels=100,
        num_attention_heads=12 if big else 4, intermediate_size=3072 if big else 128,
        image_size=224 if big else 64,
    )  # fmt: skip
    model = tf.ViTForImageClassification(config).to(device)
    held = Held(model, torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9))

    def forward() -> Any:
        side = config.image_size
        pictures = torch.randn(8 if big else 2, 3, side, side).to(device)
        labels = torch.randint(0, 100, (len(pictures),)).to(device)
        held.inputs = [pictures, labels]
        return model(pixel_values=pictures, labels=labels)

    return Program(train(held, forward), held.tensors())


def whisper_bf16(device: str, big: bool) -> Program:
    import transformers as tf

    width, depth = (512, 6) if big else (64, 2)
    config = tf.WhisperConfig(
        vocab_size=2000, d_model=width, encoder_layers=depth, decoder_layers=depth,
        encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=4 * width,
        decoder_ffn_dim=4 * width, max_source_positions=1500 if big else 50,
        pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1,
    )  # fmt: skip
    model = tf.WhisperForConditionalGeneration(config).to(device)
    held = Held(model, torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=True))

    def forward() -> Any:
        sound = torch.randn(2, 80, 2 * config.max_source_positions).to(device)
        labels = tokens(2000, 2, 32, device)
        held.inputs = [sound, labels]
        return model(input_features=sound, labels=labels)

    return Program(train(held, forward, autocast=torch.bfloat16), held.tensors())


class Noise(nn.Module):
    """A small U-Net that removes noise."""

    def __init__(self, width: int) -> None:
        super().__init__()

        def double(a: int, b: int) -> nn.Sequential:
            return nn.Sequential(
                nn.Conv2d(a, b, 3, padding=1), nn.GroupNorm(4, b), nn.SiLU(),
                nn.Conv2d(b, b, 3, padding=1), nn.GroupNorm(4, b), nn.SiLU(),
            )  # fmt: skip

        self.down, self.below = double(3, width), double(width, 2 * width)
        self.up, self.last = double(3 * width, width), nn.Conv2d(width, 3, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = self.down(x)
        inner = self.below(nn.functional.avg_pool2d(first, 2))
        inner = nn.functional.interpolate(inner, scale_factor=2)
        return self.last(self.up(torch.cat([first, inner], 1)))


def unet_ema_amp(device: str, big: bool) -> Program:
    model = Noise(64 if big else 8).to(device)
    average = copy.deepcopy(model).requires_grad_(False)
    held = Held(model, torch.optim.AdamW(model.parameters(), lr=1e-4))
    held.more = list(average.parameters())

    def forward() -> Any:
        pictures = torch.randn(8 if big else 2, 3, 128, 128, device=device)
        noise = torch.randn_like(pictures)
        held.inputs = [pictures, noise]
        return nn.functional.mse_loss(model(pictures + noise), noise)

    @torch.no_grad()
    def follow() -> None:
        for mean, value in zip(average.parameters(), model.parameters(), strict=True):
            mean.lerp_(value, 0.01)

    step = train(held, forward, autocast=torch.bfloat16, after=follow)
    return Program(step, held.tensors())


def lstm_clipped(device: str, big: bool) -> Program:
    class Words(nn.Module):
        def __init__(self, words: int, width: int) -> None:
            super().__init__()
            self.embed = nn.Embedding(words, width)
            self.lstm = nn.LSTM(width, width, 2, batch_first=True)
            self.head = nn.Linear(width, words)

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.head(self.lstm(self.embed(ids))[0])

    words = 10_000 if big else 300
    model = Words(words, 512 if big else 32).to(device)
    held = Held(model, torch.optim.Adam(model.parameters(), lr=1e-3))

    def forward() -> Any:
        ids = tokens(words, 16, 64 if big else 16, device)
        held.inputs = [ids]
        return nn.functional.cross_entropy(model(ids[:, :-1]).transpose(1, 2), ids[:, 1:])

    return Program(train(held, forward, clip=True), held.tensors())


# ---- trainers and several devices -------------------------------------------------------


def one_process(device: str) -> None:
    """A process group of this process alone."""
    import torch.distributed as dist

    if not dist.is_initialized():
        backend = "gloo" if device == "cpu" else "nccl"
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)


def bert_ddp(device: str, big: bool) -> Program:
    one_process(device)
    model = language("bert", big).to(device)
    wrapped = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
    held = Held(model, torch.optim.AdamW(model.parameters(), lr=1e-4))
    words = model.config.vocab_size

    def forward() -> Any:
        ids = tokens(words, 4 if big else 2, 256 if big else 32, device)
        held.inputs = [ids]
        return wrapped(input_ids=ids, labels=ids)

    return Program(train(held, forward), held.tensors())


def llama_fsdp2(device: str, big: bool) -> Program:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    one_process(device)
    mesh = init_device_mesh(device, (1,))
    model = language("llama", big).to(device)
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    held = Held(model, torch.optim.AdamW(model.parameters(), lr=1e-4))
    words = model.config.vocab_size

    def forward() -> Any:
        ids = tokens(words, 4 if big else 2, 256 if big else 32, device)
        held.inputs = [ids]
        return model(input_ids=ids, labels=ids)

    return Program(train(held, forward), held.tensors())


def closure_step(device: str, big: bool) -> Program:
    """An optimizer that runs forward and backward itself, as Lightning has it."""
    model = language("gpt2", big).to(device)
    held = Held(model, torch.optim.AdamW(model.parameters(), lr=1e-4))
    words = model.config.vocab_size

    def step(mark: Callable[[], None]) -> None:
        ids = tokens(words, 4 if big else 2, 256 if big else 32, device)
        held.inputs = [ids]

        def closure() -> torch.Tensor:
            logits = model(input_ids=ids).logits
            wide = logits[:, :-1].float().flatten(0, 1)
            loss = nn.functional.cross_entropy(wide, ids[:, 1:].flatten())
            held.outputs = [loss, logits]
            mark()
            held.optimizer.zero_grad()
            loss.backward()
            mark()
            held.outputs = [loss]
            return loss

        held.optimizer.step(closure)
        mark()
        held.inputs, held.outputs = [], []

    return Program(step, held.tensors())


def gpt2_lightning(device: str, big: bool) -> Program:
    """A run of Lightning's trainer; a step of the program is one of its batches."""
    import lightning as li

    model = language("gpt2", big)
    held = Held(model)
    words = model.config.vocab_size
    marks: list[Callable[[], None]] = []

    class Task(li.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def training_step(self, batch: torch.Tensor, _: int) -> torch.Tensor:
            logits = self.model(input_ids=batch).logits
            wide = logits[:, :-1].float().flatten(0, 1)
            loss = nn.functional.cross_entropy(wide, batch[:, 1:].flatten())
            held.inputs, held.outputs = [batch], [logits, loss]
            marks[0]()
            held.outputs = [loss]
            return loss

        def on_before_optimizer_step(self, _: Any) -> None:
            marks[0]()

        def on_train_batch_end(self, *_: Any) -> None:
            marks[0]()

        def configure_optimizers(self) -> Any:
            held.optimizer = torch.optim.AdamW(self.parameters(), lr=1e-4)
            return held.optimizer

    def step(mark: Callable[[], None]) -> None:
        marks[:] = [mark]
        data = torch.randint(0, words, (12, 256 if big else 32))
        trainer = li.Trainer(
            max_epochs=1, accelerator="gpu" if device == "cuda" else "cpu", devices=1, logger=False,
            enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
        )  # fmt: skip
        trainer.fit(Task(), torch.utils.data.DataLoader(data, batch_size=4))

    return Program(step, held.tensors(), steps=1)


def llama_static_cache(device: str, big: bool) -> Program:
    """Decoding with a cache of keys and values that is made at once."""
    import transformers as tf

    model = language("llama", big).to(device).eval()
    held = Held(model)
    words = model.config.vocab_size
    cache = tf.StaticCache(config=model.config, max_cache_len=512 if big else 48)

    def step(mark: Callable[[], None]) -> None:
        with torch.no_grad():
            ids = tokens(words, 4, 64 if big else 16, device)
            at = torch.arange(ids.shape[1], device=device)
            output = model(input_ids=ids, past_key_values=cache, cache_position=at)
            held.inputs, held.outputs = [ids], [output.logits]
            held.caches = list(cache_tensors(cache))
            mark()
            held.inputs, held.outputs = [], []

    return Program(step, held.tensors())


def vit_late(device: str, big: bool) -> Program:
    program = vit_sgd(device, big)
    program.steps, program.record_from = 5, 2
    return program


#: Those on which the rules are built, and those that nobody looks at meanwhile.
OPEN: dict[str, Callable[[str, bool], Program]] = {
    "gpt2_adamw": gpt2_adamw,
    "t5_fp16_scaler": t5_fp16_scaler,
    "gpt2_late": gpt2_late,
    "llama_masters": llama_masters,
    "llama_lora": llama_lora,
    "llama_decode": llama_decode,
    "unet_ema_amp": unet_ema_amp,
    "bert_ddp": bert_ddp,
    "closure_step": closure_step,
    "llama_fsdp2": llama_fsdp2,
}
HELD_OUT: dict[str, Callable[[str, bool], Program]] = {
    "bert_fused": bert_fused,
    "mixtral_sgd": mixtral_sgd,
    "qwen2_accelerate": qwen2_accelerate,
    "llama_ema": llama_ema,
    "vit_sgd": vit_sgd,
    "whisper_bf16": whisper_bf16,
    "lstm_clipped": lstm_clipped,
    "gpt2_lightning": gpt2_lightning,
    "llama_static_cache": llama_static_cache,
    "vit_late": vit_late,
}
