# SPDX-License-Identifier: Apache-2.0
"""Programs whose results were not looked at while the rules of the verdicts were made."""

from __future__ import annotations

import gc
import random
from collections import deque
from typing import Any

from gpu.advice.job import Job, mlp, tensor
from gpu.advice.job import program as any_program


def program(*helps: str, **keys: Any) -> Any:
    return any_program(*helps, held_out=True, **keys)


def bert(**changes: Any) -> Any:
    from transformers import BertConfig, BertForSequenceClassification

    sizes = {"num_hidden_layers": 6, "hidden_size": 512, "num_attention_heads": 8}
    more = {"intermediate_size": 2048, "vocab_size": 8000, "max_position_embeddings": 1024}
    return BertForSequenceClassification(BertConfig(**{**sizes, **more, **changes})).cuda()


def classify(torch: Any, job: Job, model: Any, batch: int, length: int) -> Any:
    ids = torch.randint(0, 8000, (batch, job.size(length)), device="cuda")
    labels = torch.randint(0, 2, (batch,), device="cuda")
    return model(input_ids=ids, labels=labels)


def stash(job: Job, kept: dict[int, Any], number: int, value: Any) -> None:
    if not job.lets_go("stash"):
        kept[number] = value.detach().repeat(1, 40)


@program("release", sort="Hugging Face, leak", cap=1000)
def bert_keeps_pooled_outputs(torch: Any, job: Job) -> None:
    model = bert()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    kept: dict[int, Any] = {}
    for number in job.steps():
        found = model.bert(torch.randint(0, 8000, (32, 64), device="cuda"))
        stash(job, kept, number, found.last_hidden_state.flatten(1))
        found.pooler_output.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


@program("smaller_step", sort="Hugging Face, longer batch", cap=1500)
def bert_meets_a_long_document(torch: Any, job: Job) -> None:
    model = bert(attn_implementation="eager")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for number in job.steps():
        classify(torch, job, model, 16, 900 if number == 28 else 96).loss.backward()
        optimizer.step()
        optimizer.zero_grad()


@program("release", sort="Hugging Face, retrieval", cap=700)
def embeddings_of_a_corpus(torch: Any, job: Job) -> None:
    model = bert().eval()
    found: list[Any] = []
    with torch.inference_mode():
        for _ in job.steps():
            ids = torch.randint(0, 8000, (64, 128), device="cuda")
            index(job, found, model.bert(ids).last_hidden_state)


def index(job: Job, found: list[Any], states: Any) -> None:
    found.append(states.half().cpu() if job.lets_go("index") else states.half())


@program("smaller_step", sort="Hugging Face, sequence to sequence", cap=1500)
def t5_with_too_large_a_batch(torch: Any, job: Job) -> None:
    from transformers import T5Config, T5ForConditionalGeneration

    sizes = {"d_model": 512, "num_layers": 4, "num_heads": 8, "d_ff": 1024, "vocab_size": 8000}
    model = T5ForConditionalGeneration(T5Config(**sizes, decoder_start_token_id=0)).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for _ in job.steps():
        ids = torch.randint(0, 8000, (job.size(48), 256), device="cuda")
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()


@program("release", sort="torchvision, leak", cap=1400)
def vision_losses_per_class(torch: Any, job: Job) -> None:
    import torchvision

    model = torchvision.models.vit_b_16(num_classes=10, image_size=64).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    per_class: dict[int, list[Any]] = {}
    for number in job.steps():
        output = model(torch.randn(8, 3, 64, 64, device="cuda"))
        output.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        again = model(torch.randn(8, 3, 64, 64, device="cuda"))
        remember_loss(job, per_class, number, again)


def remember_loss(job: Job, per_class: dict[int, list[Any]], number: int, output: Any) -> None:
    loss = output.square().mean()
    per_class.setdefault(number % 10, []).append(loss.item() if job.takes("release") else loss)


@program("smaller_step", "release", sort="torchvision, evaluation", cap=1100)
def evaluation_with_a_larger_batch(torch: Any, job: Job) -> None:
    import torchvision

    model = torchvision.models.resnet18(num_classes=10).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    for number in job.steps():
        if number % 12 != 11:
            model.train()
            model(torch.randn(16, 3, 128, 128, device="cuda")).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            continue
        model.eval()
        smaller = job.takes("no_grad") or job.takes("smaller_step") or job.takes("release")
        with torch.set_grad_enabled(not smaller):
            model(torch.randn(job.size(160), 3, 128, 128, device="cuda"))


@program("smaller_step", sort="Lightning, length", cap=800)
def lightning_with_longer_sequences(torch: Any, job: Job) -> None:
    import pytorch_lightning as lightning

    class Model(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.rnn = torch.nn.LSTM(128, 512, 2, batch_first=True)

        def training_step(self, batch: Any, number: int) -> Any:
            long = 1500 if number >= 40 else 200
            length = max(job.size(long), 8)
            return self.rnn(batch[:, :length])[0].square().mean()

        def on_train_batch_end(self, *_: Any) -> None:
            job.done += 1

        def configure_optimizers(self) -> Any:
            return torch.optim.Adam(self.parameters(), lr=1e-4)

    data = torch.randn(60 * 16, 1500, 128)
    loader = torch.utils.data.DataLoader(data, batch_size=16)
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    lightning.Trainer(
        max_steps=job.total, accelerator="gpu", devices=1, enable_model_summary=False, **quiet
    ).fit(Model(), loader)


@program("release", sort="Lightning, callback", cap=420)
def lightning_callback_that_collects(torch: Any, job: Job) -> None:
    import pytorch_lightning as lightning

    class Collect(lightning.Callback):
        def __init__(self) -> None:
            self.seen: list[Any] = []

        def on_train_batch_end(
            self, trainer: Any, module: Any, outputs: Any, batch: Any, number: int
        ) -> None:
            job.done += 1
            collect_batch(job, self.seen, batch)

    class Model(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.Sequential(
                torch.nn.Linear(1024, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 8)
            )

        def training_step(self, batch: Any, number: int) -> Any:
            return self.layers(batch).square().mean()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=1e-4)

    loader = torch.utils.data.DataLoader(torch.randn(60 * 1024, 1024), batch_size=1024)
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    lightning.Trainer(
        max_steps=job.total,
        accelerator="gpu",
        devices=1,
        enable_model_summary=False,
        callbacks=[Collect()],
        **quiet,
    ).fit(Model(), loader)


def collect_batch(job: Job, seen: list[Any], batch: Any) -> None:
    doubled = torch_cat(batch)
    seen.append(doubled.cpu() if job.lets_go("collect_batch", "torch_cat") else doubled)


def torch_cat(batch: Any) -> Any:
    import torch

    return torch.cat([batch, batch])


@program("release", sort="accelerate, buffers", cap=900)
def replay_buffer_on_the_device(torch: Any, job: Job) -> None:
    model = mlp(torch)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    buffer: deque[Any] = deque(maxlen=400)
    for _ in job.steps():
        states = torch.randn(2048, 1024, device="cuda")
        add_experience(job, buffer, states)
        optimizer.zero_grad()
        model(states).square().mean().backward()
        optimizer.step()


def add_experience(job: Job, buffer: deque[Any], states: Any) -> None:
    reward, following = states.sum(-1), states.roll(1)
    if job.lets_go("add_experience"):
        reward, following = reward.cpu(), following.cpu()
    buffer.append((reward, following))


@program("release", sort="reinforcement", cap=640)
def returns_with_their_history(torch: Any, job: Job) -> None:
    model = mlp(torch, 512, 3)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    baseline = torch.zeros(4096, 512, device="cuda")
    for _ in job.steps():
        output = model(torch.randn(4096, 512, device="cuda"))
        baseline = smooth(job, baseline, output)
        optimizer.zero_grad()
        (output - baseline.detach()).square().mean().backward()
        optimizer.step()


def smooth(job: Job, baseline: Any, output: Any) -> Any:
    if job.takes("release"):
        output = output.detach()
    return 0.9 * baseline + 0.1 * output


@program("break_cycles", sort="garbage", cap=900)
def exceptions_that_hold_frames(torch: Any, job: Job) -> None:
    gc.disable()
    model = mlp(torch)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    for _ in job.steps():
        batch = torch.randn(2048, 1024, device="cuda")
        attempt(torch, model, batch)
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
        if job.takes("break_cycles"):
            gc.collect()


def attempt(torch: Any, model: Any, batch: Any) -> None:
    doubled = batch.repeat(2, 1)
    try:
        raise ValueError("no such thing")
    except ValueError as error:
        kept = error
    assert kept.__traceback__ is not None
    del doubled
    held = batch * 2
    kept.held = held  # type: ignore[attr-defined]


@program("settings", sort="fragmentation", cap=700)
def images_of_many_sizes_in_a_cache(torch: Any, job: Job) -> None:
    chance = random.Random(21)
    cache: dict[int, Any] = {}
    for number in job.steps():
        for _ in range(6):
            cache[chance.randrange(20)] = tensor(torch, 8 + chance.randrange(12))
        tensor(torch, 150 + 2 * number)


@program("smaller_step", sort="diffusion", cap=1300)
def unet_at_a_larger_image(torch: Any, job: Job) -> None:
    nn = torch.nn
    down = [nn.Conv2d(3 if not n else 64, 64, 3, padding=1) for n in range(4)]
    model = nn.Sequential(*(layer for each in down for layer in (each, nn.SiLU()))).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for number in job.steps():
        side = 64 + 32 * (number % 3) if number < 33 else 320
        noise = torch.randn(8, 3, job.size(side), side, device="cuda")
        model(noise).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


@program("release", sort="decoding", cap=420)
def beams_kept_for_every_token(torch: Any, job: Job) -> None:
    job.total = 800
    weight = torch.randn(512, 512, device="cuda")
    beams: list[Any] = []
    state = torch.randn(256, 512, device="cuda")
    with torch.no_grad():
        for _ in job.steps():
            state = torch.tanh(state @ weight)
            beams.append(None if job.lets_go("beams_kept_for_every_token") else state.clone())


@program("raise_limit", sort="fraction", cap=900, is_limit=True)
def fraction_below_the_optimizer(torch: Any, job: Job) -> None:
    model = mlp(torch, 2048, 16)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    for _ in job.steps():
        optimizer.zero_grad()
        model(torch.randn(512, 2048, device="cuda")).square().mean().backward()
        optimizer.step()


@program(sort="nothing helps", cap=500)
def weights_that_do_not_fit(torch: Any, job: Job) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"num_hidden_layers": 24, "hidden_size": 1024, "intermediate_size": 2816}
    with torch.device("cuda"):
        LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=16, vocab_size=32000))
    for _ in job.steps():
        pass


@program("release", sort="graph neural network", cap=800)
def messages_kept_by_a_hook(torch: Any, job: Job) -> None:
    from torch_geometric.nn import GCNConv

    layer = GCNConv(256, 256).cuda()
    optimizer = torch.optim.Adam(layer.parameters(), lr=1e-3)
    edges = torch.randint(0, 20_000, (2, 60_000), device="cuda")
    seen: list[Any] = []
    layer.register_forward_hook(lambda module, inputs, output: note_output(job, seen, output))
    for _ in job.steps():
        optimizer.zero_grad()
        layer(torch.randn(20_000, 256, device="cuda"), edges).square().mean().backward()
        optimizer.step()


def note_output(job: Job, seen: list[Any], output: Any) -> None:
    if not job.lets_go("note_output"):
        seen.append(output.detach().clone())
