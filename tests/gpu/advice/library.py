# SPDX-License-Identifier: Apache-2.0
"""Programs built of libraries' models and trainers that run out of memory for a known reason."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Any

from gpu.advice.job import Job, program


def gpt2(**changes: Any) -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {"n_layer": 6, "n_embd": 512, "n_head": 8, "vocab_size": 8000, "n_positions": 2048}
    drops = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    config = GPT2Config(**{**sizes, **drops, **changes}, bos_token_id=1, eos_token_id=1)
    return GPT2LMHeadModel(config).cuda()


def llama(**changes: Any) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"num_hidden_layers": 8, "hidden_size": 512, "intermediate_size": 1376}
    more = {"num_attention_heads": 8, "num_key_value_heads": 8, "vocab_size": 8000}
    return LlamaForCausalLM(LlamaConfig(**{**sizes, **more, **changes})).cuda()


def tokens(torch: Any, batch: int, length: int) -> Any:
    return torch.randint(0, 8000, (batch, length), device="cuda")


def adamw(torch: Any, model: Any) -> Any:
    return torch.optim.AdamW(model.parameters(), lr=1e-4)


def tune(torch: Any, model: Any, optimizer: Any, ids: Any) -> Any:
    """One step of fine-tuning."""
    found = model(input_ids=ids, labels=ids)
    found.loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return found


@program("smaller_step", "checkpoint", sort="Hugging Face, longer batch", cap=2300)
def fine_tune_with_one_long_batch(torch: Any, job: Job) -> None:
    model = gpt2()
    if job.takes("checkpoint"):
        model.gradient_checkpointing_enable()
    model.train()
    optimizer, chance = adamw(torch, model), random.Random(1)
    for number in job.steps():
        length = chance.randrange(128, 400) if number != 35 else 1600
        tune(torch, model, optimizer, tokens(torch, 8, job.size(length)))


@program("smaller_step", "checkpoint", "settings", sort="Hugging Face, varied", cap=3600)
def fine_tune_with_varied_lengths(torch: Any, job: Job) -> None:
    model = llama()
    if job.takes("checkpoint"):
        model.gradient_checkpointing_enable()
    model.train()
    optimizer, chance = adamw(torch, model), random.Random(2)
    for _ in job.steps():
        length = int(128 + 900 * chance.random() ** 3)
        tune(torch, model, optimizer, tokens(torch, 8, job.size(length)))


@program("smaller_step", "checkpoint", sort="Hugging Face, batch", cap=1800)
def fine_tune_with_too_large_a_batch(torch: Any, job: Job) -> None:
    model = gpt2()
    if job.takes("checkpoint"):
        model.gradient_checkpointing_enable()
    model.train()
    optimizer = adamw(torch, model)
    for _ in job.steps():
        tune(torch, model, optimizer, tokens(torch, job.size(24), 512))


def decode(torch: Any, job: Job, model: Any, ids: Any) -> None:
    from transformers import DynamicCache

    cache = DynamicCache()
    lets_go = job.takes("release")
    for _ in job.steps():
        found = model(input_ids=ids[:, -1:], past_key_values=cache, use_cache=True)
        ids = found.logits[:, -1:].argmax(-1)
        if lets_go and cache.get_seq_length() > 64:
            cache.crop(32)


@program("release", "smaller_step", sort="Hugging Face, decoding", cap=900)
def decoding_with_a_growing_cache(torch: Any, job: Job) -> None:
    job.total = 1500
    model = llama().eval()
    with torch.no_grad():
        decode(torch, job, model, tokens(torch, job.size(32), 1))


@program("release", "smaller_step", sort="Hugging Face, decoding", cap=1000)
def generate_with_a_long_answer(torch: Any, job: Job) -> None:
    from transformers import StoppingCriteria, StoppingCriteriaList

    class Count(StoppingCriteria):
        def __call__(self, ids: Any, scores: Any, **rest: Any) -> Any:
            job.done += 1
            return torch.zeros(ids.shape[0], dtype=torch.bool, device=ids.device)

    job.total = 1200
    model = llama().eval()
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0
    prompt = tokens(torch, job.size(32), 8)
    length = job.total // (12 if job.takes("release") else 1)
    for _ in range(job.total // length):
        model.generate(
            prompt,
            max_new_tokens=length,
            do_sample=False,
            stopping_criteria=StoppingCriteriaList([Count()]),
        )


def trainer(torch: Any, job: Job, model: Any, length: int, batch: int, **more: Any) -> Any:
    """A Hugging Face Trainer over random tokens; its steps are counted."""
    import tempfile

    from transformers import Trainer, TrainerCallback, TrainingArguments

    class Count(TrainerCallback):
        def on_step_end(self, *_: Any, **__: Any) -> None:
            job.done += 1

    data = [{"input_ids": row, "labels": row} for row in torch.randint(0, 8000, (512, length))]
    callbacks = [Count(), *more.pop("callbacks", [])]
    kind = more.pop("kind", Trainer)
    evaluated = data[: more.pop("evaluated", 0)]
    arguments = TrainingArguments(
        output_dir=tempfile.mkdtemp(),
        max_steps=job.total,
        per_device_train_batch_size=batch,
        report_to=[],
        save_strategy="no",
        logging_steps=1000,
        disable_tqdm=True,
        dataloader_pin_memory=False,
        **more,
    )
    return kind(
        model=model,
        args=arguments,
        train_dataset=data,
        eval_dataset=evaluated or None,
        callbacks=callbacks,
        compute_metrics=(lambda _: {}) if evaluated else None,
    )


@program("release", sort="Hugging Face Trainer, leak", cap=2400)
def trainer_that_keeps_logits(torch: Any, job: Job) -> None:
    from transformers import Trainer

    kept: list[Any] = []

    class Keeping(Trainer):
        def compute_loss(self, model: Any, inputs: Any, *rest: Any, **more: Any) -> Any:
            found = model(**inputs)
            keep_logits(job, kept, found.logits)
            return found.loss

    trainer(torch, job, gpt2(), 128, 8, kind=Keeping).train()


def keep_logits(job: Job, kept: list[Any], logits: Any) -> None:
    small = logits.detach().float().softmax(-1)
    kept.append(None if job.lets_go("keep_logits") else small)


@program("release", "smaller_step", sort="Hugging Face Trainer, evaluation", cap=1900)
def evaluation_that_gathers_logits(torch: Any, job: Job) -> None:
    job.total = 20
    steps = {"eval_accumulation_steps": 1} if job.takes("release") else {}
    found = trainer(
        torch,
        job,
        gpt2(),
        128,
        8,
        evaluated=512,
        eval_strategy="steps",
        eval_steps=10,
        per_device_eval_batch_size=8,
        **steps,
    )
    found.train()


@program("release", sort="Lightning, leak", cap=330)
def lightning_outputs_kept(torch: Any, job: Job) -> None:
    lightning_run(torch, job, keeps=True, rows=2048)


@program("smaller_step", sort="Lightning, batch", cap=600)
def lightning_batch_too_large(torch: Any, job: Job) -> None:
    lightning_run(torch, job, keeps=False, rows=24_000)


def keep_output(job: Job, kept: list[Any], loss: Any, output: Any) -> None:
    kept.append(None if job.lets_go("keep_output", "training_step") else (loss, output * 1.0))


def lightning_run(torch: Any, job: Job, keeps: bool, rows: int) -> None:
    import pytorch_lightning as lightning

    class Model(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            widths = [512, 1024, 1024, 1024, 512]
            layers: list[Any] = []
            for a, b in pairwise(widths):
                layers += [torch.nn.Linear(a, b), torch.nn.ReLU()]
            self.layers = torch.nn.Sequential(*layers)
            self.kept: list[Any] = []

        def training_step(self, batch: Any, number: int) -> Any:
            output = self.layers(batch)
            loss = (output - batch).square().mean()
            if keeps:
                keep_output(job, self.kept, loss, output)
            return loss

        def on_train_batch_end(self, *_: Any) -> None:
            job.done += 1

        def configure_optimizers(self) -> Any:
            return torch.optim.Adam(self.parameters(), lr=1e-4)

    data = torch.randn(job.size(rows) * 4, 512)
    loader = torch.utils.data.DataLoader(data, batch_size=job.size(rows))
    lightning.Trainer(
        max_steps=job.total,
        accelerator="gpu",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    ).fit(Model(), loader)


@program("smaller_step", sort="torchvision", cap=2500)
def resnet_at_a_larger_resolution(torch: Any, job: Job) -> None:
    import torchvision

    model = torchvision.models.resnet50(num_classes=100).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    for number in job.steps():
        side = 128 if number < 20 else 288
        batch = torch.randn(job.size(16), 3, side, side, device="cuda")
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()


@program("release", sort="torchvision, leak", cap=1500)
def features_kept_for_later(torch: Any, job: Job) -> None:
    import torchvision

    model = torchvision.models.resnet18(num_classes=100).cuda().eval()
    kept: list[Any] = []
    layers = torch.nn.Sequential(*list(model.children())[:-2])
    with torch.no_grad():
        for _ in job.steps():
            keep_features(job, kept, layers(torch.randn(64, 3, 224, 224, device="cuda")))


def keep_features(job: Job, kept: list[Any], features: Any) -> None:
    flat = features.flatten(1).repeat(1, 4)
    kept.append(flat.cpu() if job.lets_go("keep_features") else flat)


@program("release", sort="accelerate, leak", cap=1300)
def accelerate_metrics_gathered(torch: Any, job: Job) -> None:
    from accelerate import Accelerator

    accelerator = Accelerator()
    model = gpt2()
    model, optimizer = accelerator.prepare(model, adamw(torch, model))
    kept: list[Any] = []
    for _ in job.steps():
        ids = tokens(torch, 4, 128)
        found = model(input_ids=ids, labels=ids)
        accelerator.backward(found.loss)
        optimizer.step()
        optimizer.zero_grad()
        gather(job, accelerator, kept, found.logits)


def gather(job: Job, accelerator: Any, kept: list[Any], logits: Any) -> None:
    gathered = accelerator.gather_for_metrics(logits.detach().float() * 1.0)
    kept.append(gathered.argmax(-1) if job.lets_go("gather") else gathered)


@program("smaller_step", sort="accelerate, batch", cap=2000)
def accelerate_with_bf16(torch: Any, job: Job) -> None:
    from accelerate import Accelerator

    accelerator = Accelerator(mixed_precision="bf16")
    model = llama()
    model, optimizer = accelerator.prepare(model, adamw(torch, model))
    for _ in job.steps():
        ids = tokens(torch, job.size(24), 512)
        found = model(input_ids=ids, labels=ids)
        accelerator.backward(found.loss)
        optimizer.step()
        optimizer.zero_grad()
