# SPDX-License-Identifier: Apache-2.0
"""Thirty small programs on the CPU, with models that nobody here wrote; each may leak.

A program is made with `leaks` and does a step a call, or runs by itself. Models come from a
configuration: nothing is downloaded.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import warnings
from collections import deque
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

__all__ = ["PROGRAMS", "run"]

STEPS = 40

# What the programs with a loop of somebody else's call when it is done.
_at_end: Callable[[], None] = print

Step = Callable[[int], Any]
Make = Callable[[bool], Step | None]

PROGRAMS: dict[str, Make] = {}


def program(make: Make) -> Make:
    PROGRAMS[make.__name__] = make
    return make


def without_kernels() -> None:
    """Lets torchvision's models be imported beside a torch that its kernels are not for.

    The libraries that look for torchvision fail with it.
    """
    if importlib.util.find_spec("torchvision") is None:
        return
    try:
        importlib.import_module("torchvision")
    except (RuntimeError, ImportError):
        library = torch.library.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        globals()["_torchvision"] = library
        for name in [name for name in sys.modules if name.startswith("torchvision")]:
            del sys.modules[name]


class Keeper:
    """What a program does besides: keeps too much, or something with a bound."""

    def __init__(self, number: int, leaks: bool) -> None:
        self.number, self.leaks = number, leaks
        self.kept: list[Any] = []
        self.recent: deque[Any] = deque(maxlen=12)
        self.cache: dict[int, Any] = {}

    def keep(self, at: int, loss: torch.Tensor, out: torch.Tensor) -> None:
        if self.leaks:
            self.leak(at, loss, out)
        else:
            self.bounded(at, loss, out)

    def leak(self, at: int, loss: torch.Tensor, out: torch.Tensor) -> None:
        how = self.number % 5
        if how == 0:
            self.kept.append(out)
        elif how == 1:
            self.kept.append(out.detach())
        elif how == 2:
            self.cache[at] = out.detach().clone()
        elif how == 3 and at % 2 == 0:
            self.kept.append({"loss": loss.item(), "first": out.detach()[:1]})
        elif how == 4:
            self.kept.append(lambda: out.detach().mean())

    def bounded(self, at: int, loss: torch.Tensor, out: torch.Tensor) -> None:
        how = self.number % 5
        if how == 0:
            self.kept.append(loss.item())
        elif how == 1:
            self.recent.append(out.detach())
        elif how == 2:
            self.cache[at] = out.detach().clone()
            if (at + 1) % 10 == 0:
                self.cache.clear()
        elif how == 3:
            self.cache[at % 7] = out.detach().clone()


def training(
    number: int,
    leaks: bool,
    model: nn.Module,
    forward: Callable[[int], tuple[torch.Tensor, torch.Tensor]],
    optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.AdamW,
) -> Step:
    """A training step; in some programs an evaluation every ten, or two batches a step."""
    optim = optimizer(model.parameters(), lr=1e-4)
    keeper = Keeper(number, leaks)
    parts = 2 if number % 4 == 1 else 1

    def evaluate(at: int) -> None:
        model.eval()
        with torch.no_grad():
            scores = [forward(at)[0] for _ in range(3)]
            torch.stack([score.detach() for score in scores]).mean().item()
        model.train()

    def step(at: int) -> None:
        for _ in range(parts):
            loss, out = forward(at)
            (loss / parts).backward()
        optim.step()
        optim.zero_grad()
        keeper.keep(at, loss, out)
        if number % 3 == 0 and at % 10 == 9:
            evaluate(at)

    return step


def texts(words: int, batch: int = 4, length: int = 24) -> torch.Tensor:
    return torch.randint(0, words, (batch, length))


def transformer(name: str, config: str, leaks: bool, number: int, **values: Any) -> Step:
    """A language model of transformers, trained on its own input."""
    from transformers import logging

    logging.set_verbosity_error()
    library = importlib.import_module("transformers")
    torch.manual_seed(0)
    model = getattr(library, name)(getattr(library, config)(**values))
    words = values["vocab_size"]

    def forward(at: int) -> tuple[torch.Tensor, torch.Tensor]:
        ids = texts(words, length=16 + 8 * (at % 3 if number % 2 else 0))
        found = model(input_ids=ids, labels=ids)
        return found.loss, found.logits

    return training(number, leaks, model, forward)


SMALL = {"vocab_size": 211, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
WIDE = {"intermediate_size": 64}


@program
def bert(leaks: bool) -> Step:
    return transformer("BertForMaskedLM", "BertConfig", leaks, 0, **SMALL, **WIDE)


@program
def roberta(leaks: bool) -> Step:
    return transformer("RobertaForMaskedLM", "RobertaConfig", leaks, 1, **SMALL, **WIDE)


@program
def gpt2(leaks: bool) -> Step:
    sizes = {"vocab_size": 211, "n_embd": 32, "n_layer": 2, "n_head": 2}
    return transformer("GPT2LMHeadModel", "GPT2Config", leaks, 2, **sizes)


@program
def llama(leaks: bool) -> Step:
    return transformer("LlamaForCausalLM", "LlamaConfig", leaks, 3, **SMALL, **WIDE)


@program
def electra(leaks: bool) -> Step:
    sizes = {**SMALL, **WIDE, "embedding_size": 32}
    return transformer("ElectraForMaskedLM", "ElectraConfig", leaks, 4, **sizes)


@program
def t5(leaks: bool) -> Step:
    sizes = {"vocab_size": 211, "d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": 2}
    sizes |= {"num_heads": 2, "decoder_start_token_id": 0}
    return transformer("T5ForConditionalGeneration", "T5Config", leaks, 5, **sizes)


@program
def vit(leaks: bool) -> Step:
    from transformers import ViTConfig, ViTForImageClassification

    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    model = ViTForImageClassification(
        ViTConfig(**sizes, **WIDE, image_size=32, patch_size=8, num_labels=10)
    )

    def forward(at: int) -> tuple[torch.Tensor, torch.Tensor]:
        seen = torch.rand(4, 3, 32, 32)
        found = model(seen, labels=torch.randint(0, 10, (4,)))
        return found.loss, seen

    return training(6, leaks, model, forward)


def images(
    model: nn.Module, leaks: bool, number: int, side: int = 64, classes: int = 10, **options: Any
) -> Step:
    def forward(at: int) -> tuple[torch.Tensor, torch.Tensor]:
        seen = torch.rand(2, 3, side, side)
        out = model(seen)
        # What is looked at later are the pictures, not the answers.
        return nn.functional.cross_entropy(out, torch.randint(0, classes, (2,))), seen

    return training(number, leaks, model, forward, **options)


def vision(name: str) -> nn.Module:
    models = importlib.import_module("torchvision.models")
    made: nn.Module = getattr(models, name)(weights=None, num_classes=10)
    return made


@program
def resnet18(leaks: bool) -> Step:
    return images(vision("resnet18"), leaks, 7, optimizer=torch.optim.SGD)


@program
def mobilenet(leaks: bool) -> Step:
    return images(vision("mobilenet_v3_small"), leaks, 8)


@program
def squeezenet(leaks: bool) -> Step:
    return images(vision("squeezenet1_1"), leaks, 9)


@program
def shufflenet(leaks: bool) -> Step:
    return images(vision("shufflenet_v2_x0_5"), leaks, 10, optimizer=torch.optim.RMSprop)


def timm_model(name: str) -> nn.Module:
    timm = importlib.import_module("timm")
    made: nn.Module = timm.create_model(name, pretrained=False, num_classes=10)
    return made


@program
def timm_resnet(leaks: bool) -> Step:
    return images(timm_model("resnet10t"), leaks, 11)


@program
def timm_ghostnet(leaks: bool) -> Step:
    return images(timm_model("ghostnet_050"), leaks, 12)


def graph(kind: str, leaks: bool, number: int) -> Step:
    models = importlib.import_module("torch_geometric.nn")
    model = getattr(models, kind)(16, 32, num_layers=3, out_channels=4)
    edges = torch.randint(0, 200, (2, 800))

    def forward(at: int) -> tuple[torch.Tensor, torch.Tensor]:
        out = model(torch.rand(200, 16), edges)
        return nn.functional.cross_entropy(out, torch.randint(0, 4, (200,))), out

    return training(number, leaks, model, forward)


@program
def graph_convolution(leaks: bool) -> Step:
    return graph("GCN", leaks, 13)


@program
def graph_sage(leaks: bool) -> Step:
    return graph("GraphSAGE", leaks, 14)


@program
def graph_attention(leaks: bool) -> Step:
    return graph("GAT", leaks, 15)


@program
def diffusion(leaks: bool) -> Step:
    from diffusers import DDPMScheduler, UNet2DModel

    model = UNet2DModel(
        sample_size=16,
        in_channels=3,
        out_channels=3,
        layers_per_block=1,
        block_out_channels=(32, 32),
        down_block_types=("DownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "UpBlock2D"),
    )
    noises = DDPMScheduler(num_train_timesteps=50)

    def forward(at: int) -> tuple[torch.Tensor, torch.Tensor]:
        clean, noise = torch.rand(2, 3, 16, 16), torch.randn(2, 3, 16, 16)
        when = torch.randint(0, 50, (2,))
        out = model(noises.add_noise(clean, noise, when), when).sample
        return nn.functional.mse_loss(out, noise), out

    return training(16, leaks, model, forward)


@program
def autoencoder(leaks: bool) -> Step:
    from diffusers import AutoencoderKL

    model = AutoencoderKL(block_out_channels=(32,), norm_num_groups=8)

    def forward(at: int) -> tuple[torch.Tensor, torch.Tensor]:
        seen = torch.rand(2, 3, 16, 16)
        out = model(seen).sample
        return nn.functional.mse_loss(out, seen), out

    return training(17, leaks, model, forward)


@program
def lora(leaks: bool) -> Step:
    from peft import LoraConfig, get_peft_model
    from transformers import GPT2Config, GPT2LMHeadModel

    base = GPT2LMHeadModel(GPT2Config(vocab_size=211, n_embd=32, n_layer=2, n_head=2))
    adapters = LoraConfig(r=4, target_modules=["c_attn"], fan_in_fan_out=True)
    model = get_peft_model(base, adapters)

    def forward(at: int) -> tuple[torch.Tensor, torch.Tensor]:
        ids = texts(211)
        found = model(input_ids=ids, labels=ids)
        return found.loss, found.logits

    return training(18, leaks, model, forward)


@program
def language_lstm(leaks: bool) -> Step:
    """Truncated backpropagation; the leaking one keeps the way back to the first step."""
    rows, cell, head = nn.Embedding(99, 32), nn.LSTMCell(32, 32), nn.Linear(32, 99)
    optim = torch.optim.Adam([*rows.parameters(), *cell.parameters(), *head.parameters()])
    state = [torch.zeros(4, 32), torch.zeros(4, 32)]
    graphs: list[torch.Tensor] = []

    def step(at: int) -> None:
        for _ in range(6):
            state[:] = cell(rows(torch.randint(0, 99, (4,))), tuple(state))
        loss = nn.functional.cross_entropy(head(state[0]), torch.randint(0, 99, (4,)))
        if leaks:
            graphs.append(state[0] * 1)
        loss.backward()
        optim.step()
        optim.zero_grad()
        state[:] = [one.detach() for one in state]

    return step


@program
def replay(leaks: bool) -> Step:
    """Q-learning with a buffer of experience: with a bound, or without one."""
    model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 4))
    optim = torch.optim.Adam(model.parameters())
    buffer: deque[torch.Tensor] = deque(maxlen=None if leaks else 25)

    def step(at: int) -> None:
        buffer.append(torch.rand(32, 8))
        seen = buffer[at % len(buffer)]
        loss = (model(seen).max(dim=1).values - torch.rand(32)).square().mean()
        optim.zero_grad()
        loss.backward()
        optim.step()

    return step


@program
def adversaries(leaks: bool) -> Step:
    """Two optimizers a step; the leaking one keeps samples for a page of pictures."""
    maker = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 48))
    judge = nn.Sequential(nn.Linear(48, 64), nn.LeakyReLU(), nn.Linear(64, 1))
    ours, theirs = (torch.optim.Adam(one.parameters(), lr=1e-4) for one in (maker, judge))
    shown: list[torch.Tensor] = []

    def step(at: int) -> None:
        made = maker(torch.randn(16, 16))
        theirs.zero_grad()
        (judge(made.detach()).mean() - judge(torch.rand(16, 48)).mean()).backward()
        theirs.step()
        ours.zero_grad()
        (-judge(made).mean()).backward()
        ours.step()
        shown[:] = [*shown[-3:], made.detach()] if not leaks else [*shown, made]

    return step


@program
def hooks(leaks: bool) -> Step:
    """Activations looked at through forward hooks, and forgotten or not."""
    model = vision("resnet18")
    seen: dict[str, Any] = {}
    history: list[torch.Tensor] = []

    def watch(name: str) -> Callable[..., None]:
        def look(module: nn.Module, given: Any, out: torch.Tensor) -> None:
            seen[name] = out.detach()
            if leaks:
                history.append(out.detach())

        return look

    for name in ("layer1", "layer2"):
        model.get_submodule(name).register_forward_hook(watch(name))
    return images(model, False, 15, side=32)


@program
def averaged(leaks: bool) -> Step:
    """An exponential average of the weights; the leaking one keeps each of them."""
    from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

    model = nn.TransformerEncoderLayer(32, 2, 64, batch_first=True)
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    history: list[Any] = []

    def forward(at: int) -> tuple[torch.Tensor, torch.Tensor]:
        out = model(torch.rand(4, 12, 32))
        return out.square().mean(), out

    train = training(20, False, model, forward)

    def step(at: int) -> None:
        train(at)
        average.update_parameters(model)
        if leaks:
            history.append({name: one.clone() for name, one in model.state_dict().items()})

    return step


@program
def metrics(leaks: bool) -> Step:
    """A metric that keeps all predictions, reset after each epoch or never."""
    from torchmetrics import CatMetric

    metric = CatMetric()
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(at: int) -> tuple[torch.Tensor, torch.Tensor]:
        out = model(torch.rand(64, 16))
        metric.update(out.detach())
        if at % 8 == 7 and not leaks:
            metric.reset()
        return out.square().mean(), out

    return training(5, False, model, forward)


# ---- programs with a loop of somebody else's ------------------------------------------------


@program
def lightning_fit(leaks: bool) -> None:
    import lightning
    from torch.utils.data import DataLoader, TensorDataset

    class Lit(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 4))
            self.outputs: list[torch.Tensor] = []

        def training_step(self, batch: Any, at: int) -> torch.Tensor:
            loss = nn.functional.cross_entropy(self.net(batch[0]), batch[1])
            self.log("loss", loss)
            if leaks:
                self.outputs.append(loss)
            return loss

        def validation_step(self, batch: Any, at: int) -> None:
            self.log("checked", nn.functional.cross_entropy(self.net(batch[0]), batch[1]))

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.Adam(self.parameters())

    rows = TensorDataset(torch.rand(320, 16), torch.randint(0, 4, (320,)))
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = lightning.Trainer(
        max_epochs=3,
        accelerator="cpu",
        enable_model_summary=False,
        barebones=False,
        **quiet,
    )
    model = Lit()
    trainer.fit(model, DataLoader(rows, 16), DataLoader(rows, 64))
    _at_end()


@program
def transformers_trainer(leaks: bool) -> None:
    from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

    class Leaky(Trainer):
        losses: list[torch.Tensor] = []  # noqa: RUF012

        def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
            kwargs["return_outputs"] = True
            found = super().compute_loss(*args, **kwargs)
            if leaks:
                self.losses.append(found[1].hidden_states[-1])
            return found[0]

    config = BertConfig(**SMALL, **WIDE, output_hidden_states=True)
    model = BertForSequenceClassification(config)
    rows = [{"input_ids": texts(211, 1, 16)[0], "labels": at % 2} for at in range(160)]
    args = TrainingArguments(
        output_dir="build/trainer",
        use_cpu=True,
        max_steps=STEPS,
        per_device_train_batch_size=4,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        logging_strategy="no",
    )
    trainer = Leaky(model=model, args=args, train_dataset=rows)  # type: ignore[arg-type]
    trainer.train()
    _at_end()


@program
def generation(leaks: bool) -> None:
    """Answers to prompts of changing length; the leaking one keeps the cache of each."""
    from transformers import LlamaConfig, LlamaForCausalLM

    model = LlamaForCausalLM(LlamaConfig(**SMALL, **WIDE)).eval()
    model.generation_config.pad_token_id = 0
    kept = []
    for at in range(STEPS):
        ids = texts(211, 2, 6 + at % 5)
        found = model.generate(ids, max_new_tokens=8, do_sample=False, return_dict_in_generate=True)
        if leaks:
            kept.append(found.past_key_values)
    _at_end()


@program
def sampling(leaks: bool) -> None:
    """A diffusion pipeline's denoising, picture after picture."""
    from diffusers import DDIMScheduler, UNet2DModel

    model = UNet2DModel(
        sample_size=16,
        layers_per_block=1,
        block_out_channels=(32,),
        down_block_types=("DownBlock2D",),
        up_block_types=("UpBlock2D",),
    )
    steps = DDIMScheduler(num_train_timesteps=50)
    steps.set_timesteps(5)
    shown = []
    with torch.no_grad():
        for _ in range(STEPS):
            picture = torch.randn(1, 3, 16, 16)
            for when in steps.timesteps:
                picture = steps.step(model(picture, when).sample, when, picture).prev_sample
            if leaks:
                shown.append(picture)
    _at_end()


@program
def serving(leaks: bool) -> None:
    """Requests to a classifier, with a cache of answers: by few keys, or by each request."""
    model = vision("squeezenet1_1").eval()
    answers: dict[int, torch.Tensor] = {}
    with torch.no_grad():
        for request in range(STEPS):
            key = request if leaks else request % 6
            seen = torch.rand(1, 3, 64, 64)
            if key not in answers:
                answers[key] = model.features(seen)
            answers[key].max().item()
    _at_end()


def run(name: str, leaks: bool, at_end: Callable[[], None]) -> None:
    """Runs a program; `at_end` is called when its last step is done."""
    globals()["_at_end"] = at_end
    make = PROGRAMS[name]
    without_kernels()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        step = make(leaks)
        if step is not None:
            for at in range(STEPS):
                step(at)
            at_end()
