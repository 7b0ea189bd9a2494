# SPDX-License-Identifier: Apache-2.0
"""Whole programs of libraries, as people write them, that run out of memory for a known reason."""

from __future__ import annotations

import copy
import random
import tempfile
from collections import deque
from typing import Any

from gpu.advice.held_out import bert
from gpu.advice.held_out_2 import fit
from gpu.advice.job import Job
from gpu.advice.job import program as any_program
from gpu.advice.library import adamw, gpt2, llama, tokens, tune


def program(*helps: str, **keys: Any) -> Any:
    return any_program(*helps, held_out=True, group="held_out_3", **keys)


# ---- Hugging Face: generation ------------------------------------------------------------------


@program("smaller_step", "release", sort="Hugging Face, beam search", cap=1150)
def beam_search_with_many_beams(torch: Any, job: Job) -> None:
    from transformers import (
        StoppingCriteria,
        StoppingCriteriaList,
        T5Config,
        T5ForConditionalGeneration,
    )

    class Count(StoppingCriteria):
        def __call__(self, ids: Any, scores: Any, **rest: Any) -> Any:
            job.done += 1
            return torch.zeros(ids.shape[0], dtype=torch.bool, device=ids.device)

    job.total = 240
    sizes = {"d_model": 512, "d_kv": 64, "num_heads": 8, "num_layers": 6}
    more = {"d_ff": 1024, "vocab_size": 8000, "decoder_start_token_id": 0, "pad_token_id": 0}
    model = T5ForConditionalGeneration(T5Config(**sizes, **more)).cuda().eval()
    model.generation_config.eos_token_id = None
    documents = tokens(torch, job.size(16), 64)
    parts = 12 if job.takes("release") else 1
    for _ in range(parts):
        model.generate(
            documents,
            num_beams=16,
            max_new_tokens=job.total // parts,
            do_sample=False,
            early_stopping=False,
            stopping_criteria=StoppingCriteriaList([Count()]),
        )


def turn(torch: Any, model: Any, ids: Any, cache: Any, question: Any) -> Any:
    """A question and its answer, after all that was said before."""
    return model.generate(
        torch.cat([ids, question], dim=1),
        past_key_values=cache,
        max_new_tokens=8,
        do_sample=False,
    )


@program("release", sort="Hugging Face, chat", cap=760)
def chat_that_never_forgets(torch: Any, job: Job) -> None:
    from transformers import DynamicCache

    model = llama().eval()
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0
    ids, cache = tokens(torch, 4, 16), DynamicCache()
    for number in job.steps():
        if job.takes("release") and number % 4 == 3:
            ids, cache = tokens(torch, 4, 16), DynamicCache()
        ids = turn(torch, model, ids, cache, tokens(torch, 4, 120))


# ---- Hugging Face: evaluation, features, distillation -------------------------------------------


def validate(torch: Any, job: Job, model: Any, batches: int) -> float:
    """The mean loss over a validation set."""
    model.eval()
    total: Any = 0.0
    with torch.set_grad_enabled(not job.takes("no_grad")):
        for _ in range(batches):
            ids = tokens(torch, 16, 128)
            loss = model(input_ids=ids, labels=ids[:, 0] % 2).loss
            total += loss.item() if job.lets_go("validate") else loss
    return float(total / batches)


@program("no_grad", "release", sort="Hugging Face, validation", cap=1500)
def validation_whose_losses_are_summed(torch: Any, job: Job) -> None:
    model = bert()
    optimizer = adamw(torch, model)
    for number in job.steps():
        model.train()
        ids = tokens(torch, 8, 128)
        model(input_ids=ids, labels=ids[:, 0] % 2).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if number % 15 == 14:
            validate(torch, job, model, 24)


@program("release", sort="Hugging Face Trainer, prediction", cap=1600)
def predict_without_accumulation_steps(torch: Any, job: Job) -> None:
    from transformers import (
        SegformerConfig,
        SegformerForSemanticSegmentation,
        Trainer,
        TrainerCallback,
        TrainingArguments,
    )

    class Count(TrainerCallback):
        def on_prediction_step(self, *_: Any, **__: Any) -> None:
            job.done += 1

    config = SegformerConfig(num_labels=150, depths=[1, 1, 1, 1])
    model = SegformerForSemanticSegmentation(config)
    picture, mask = torch.randn(3, 256, 256), torch.zeros(256, 256, dtype=torch.int64)
    data = [{"pixel_values": picture, "labels": mask}] * (8 * job.total)
    steps = {"eval_accumulation_steps": 4} if job.takes("release") else {}
    arguments = TrainingArguments(
        output_dir=tempfile.mkdtemp(),
        per_device_eval_batch_size=8,
        report_to=[],
        disable_tqdm=True,
        dataloader_pin_memory=False,
        **steps,
    )
    Trainer(model=model, args=arguments, callbacks=[Count()]).predict(data)


def keep_layers(job: Job, kept: dict[str, Any], name: str, states: Any) -> None:
    let = job.lets_go("keep_layers", "states_of_every_layer_for_a_probe")
    kept[name] = [state.cpu() if let else state for state in states]


@program("release", sort="Hugging Face, probing", cap=1200)
def states_of_every_layer_for_a_probe(torch: Any, job: Job) -> None:
    from transformers import WhisperConfig, WhisperModel

    sizes = {"d_model": 384, "encoder_layers": 4, "decoder_layers": 1, "vocab_size": 1000}
    more = {"encoder_attention_heads": 6, "decoder_attention_heads": 6, "pad_token_id": 0}
    ends = {"bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
    config = WhisperConfig(**sizes, **more, **ends, encoder_ffn_dim=1536, decoder_ffn_dim=1536)
    encoder = WhisperModel(config).encoder.cuda().eval()
    kept: dict[str, Any] = {}
    with torch.no_grad():
        for number in job.steps():
            sound = torch.randn(4, 80, 3000, device="cuda")
            found = encoder(sound, output_hidden_states=True)
            keep_layers(job, kept, f"clip {number}", found.hidden_states)


@program("smaller_step", sort="Hugging Face, vocabulary", cap=3400)
def logits_of_a_large_vocabulary(torch: Any, job: Job) -> None:
    model = llama(num_hidden_layers=2, vocab_size=100_000, tie_word_embeddings=True)
    model.train()
    optimizer = adamw(torch, model)
    for number in job.steps():
        length = 64 if number < 12 else 512
        tune(torch, model, optimizer, tokens(torch, 8, job.size(length)))


@program("no_grad", "smaller_step", sort="Hugging Face, distillation", cap=2300)
def distillation_from_a_teacher_with_gradients(torch: Any, job: Job) -> None:
    teacher = gpt2(n_layer=12).eval()
    student = gpt2(n_layer=3).train()
    optimizer = adamw(torch, student)
    for _ in job.steps():
        ids = tokens(torch, job.size(12), 384)
        with torch.set_grad_enabled(not job.takes("no_grad")):
            wanted = teacher(input_ids=ids).logits.softmax(-1)
        found = student(input_ids=ids).logits.log_softmax(-1)
        torch.nn.functional.kl_div(found, wanted, reduction="batchmean").backward()
        optimizer.step()
        optimizer.zero_grad()


# ---- Hugging Face: optimizers, parameters, their gradients ---------------------------------------


@program("release", "shard_state", sort="Hugging Face, optimizers", cap=1250)
def optimizer_made_anew_for_each_stage(torch: Any, job: Job) -> None:
    model = gpt2(n_layer=8)
    optimizers: dict[int, Any] = {}
    for number in job.steps():
        stage = number // 10
        if stage not in optimizers:
            if job.takes("release"):
                optimizers.clear()
            kind = torch.optim.SGD if job.takes("shard_state") else torch.optim.AdamW
            optimizers[stage] = kind(model.parameters(), lr=1e-4 * 0.5**stage)
        tune(torch, model, optimizers[stage], tokens(torch, 4, 128))


def sharpness(torch: Any, job: Job, model: Any) -> float:
    """An estimate of the trace of the Hessian, of a copy that has no part in the training."""
    other = copy.deepcopy(model)
    ids = tokens(torch, 2, 64)
    other(input_ids=ids, labels=ids[:, 0] % 2).loss.backward(create_graph=True)
    found = sum(float(each.grad.square().sum()) for each in other.parameters())
    if job.takes("break_cycles") or job.takes("release"):
        other.zero_grad(set_to_none=True)
    return found


@program("break_cycles", "release", sort="Hugging Face, second order", cap=1600)
def sharpness_with_a_graph_of_gradients(torch: Any, job: Job) -> None:
    model = bert(num_hidden_layers=3, attn_implementation="eager")
    optimizer = adamw(torch, model)
    for _ in job.steps():
        ids = tokens(torch, 8, 64)
        model(input_ids=ids, labels=ids[:, 0] % 2).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        sharpness(torch, job, model)


@program(sort="nothing helps", cap=1500)
def gradients_find_no_room(torch: Any, job: Job) -> None:
    with torch.device("cuda"):
        model = llama(num_hidden_layers=20, hidden_size=1024, intermediate_size=2752)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for _ in job.steps():
        tune(torch, model, optimizer, tokens(torch, 1, job.size(32)))


# ---- Lightning -----------------------------------------------------------------------------------


def log_loss(job: Job, history: list[Any], loss: Any) -> None:
    history.append(loss.detach() if job.lets_go("log_loss", "training_step") else loss)


@program("release", sort="Lightning, logged losses", cap=2600)
def lightning_logs_losses_with_their_graphs(torch: Any, job: Job) -> None:
    import pytorch_lightning as lightning

    class Model(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = bert(num_hidden_layers=4)
            self.history: list[Any] = []

        def training_step(self, batch: Any, number: int) -> Any:
            ids = batch[0]
            regular = self.model(input_ids=ids, labels=ids[:, 0] % 2).loss
            other = self.model(input_ids=ids.flip(1), labels=ids[:, 0] % 2).loss
            log_loss(job, self.history, (regular - other).square())
            return regular

        def on_train_batch_end(self, *_: Any) -> None:
            job.done += 1

        def on_train_epoch_end(self) -> None:
            self.gap = torch.stack(self.history).mean()
            self.history.clear()

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters(), lr=1e-4)

    data = torch.utils.data.TensorDataset(torch.randint(0, 8000, (job.total * 8, 64)))
    fit(torch, job, Model(), [torch.utils.data.DataLoader(data, batch_size=8)])


@program("release", "smaller_step", sort="Lightning, recurrence", cap=1500)
def lightning_carries_a_state_with_its_graph(torch: Any, job: Job) -> None:
    import pytorch_lightning as lightning

    nn = torch.nn

    class Model(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.automatic_optimization = False
            self.cells = nn.GRU(128, 512, num_layers=2, batch_first=True)
            self.out = nn.Linear(512, 128)
            self.state: Any = None

        def training_step(self, batch: Any, number: int) -> None:
            optimizer = self.optimizers()
            found, state = self.cells(batch[0], self.state)
            self.state = self.carried(state)
            loss = (self.out(found) - batch[0]).square().mean()
            self.manual_backward(loss / 100, retain_graph=True)
            if number % 100 == 99:
                optimizer.step()
                optimizer.zero_grad()
                self.state = None
            job.done += 1

        def carried(self, state: Any) -> Any:
            return state.detach() if job.takes("release") else state

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=1e-3)

    rows = job.size(64)
    data = torch.utils.data.TensorDataset(torch.randn(job.total * rows, 64, 128))
    loader = torch.utils.data.DataLoader(data, batch_size=rows)
    fit(torch, job, Model(), [loader], max_epochs=1, limit_train_batches=job.total)


def snapshot(job: Job, kept: list[Any], model: Any) -> None:
    let = job.lets_go("snapshot", "on_train_batch_end")
    weights = {name: each.detach().clone() for name, each in model.state_dict().items()}
    kept.append({name: each.cpu() for name, each in weights.items()} if let else weights)


@program("release", sort="Lightning, averaged weights", cap=900)
def lightning_callback_averages_checkpoints(torch: Any, job: Job) -> None:
    import pytorch_lightning as lightning
    import torchvision

    class Average(lightning.Callback):
        """Keeps the weights of every second step, to average them at the end."""

        def __init__(self) -> None:
            self.kept: list[Any] = []

        def on_train_batch_end(self, trainer: Any, module: Any, *_: Any) -> None:
            job.done += 1
            if job.done % 2 == 0:
                snapshot(job, self.kept, module)

    class Model(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = torchvision.models.resnet18(num_classes=10)

        def training_step(self, batch: Any, number: int) -> Any:
            return self.model(batch[0]).square().mean()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.01, momentum=0.9)

    data = torch.utils.data.TensorDataset(torch.randn(64, 3, 64, 64))
    loader = torch.utils.data.DataLoader(data, batch_size=8)
    fit(torch, job, Model(), [loader], callbacks=[Average()])


def keep_masks(job: Job, kept: list[Any], masks: Any) -> None:
    kept.append(masks.cpu() if job.lets_go("keep_masks", "training_step") else masks)


@program("release", sort="Lightning, mixture", cap=2900)
def lightning_keeps_masks_and_pictures_grow(torch: Any, job: Job) -> None:
    import pytorch_lightning as lightning
    import torchvision

    class Model(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            make = torchvision.models.segmentation.lraspp_mobilenet_v3_large
            self.model = make(weights=None, weights_backbone=None, num_classes=8)
            self.kept: list[Any] = []

        def training_step(self, batch: Any, number: int) -> Any:
            side = 128 + 64 * (number // 20)
            found = self.model(batch[0][..., :side, :side].contiguous())["out"]
            keep_masks(job, self.kept, found.detach().softmax(1))
            return found.square().mean()

        def on_train_batch_end(self, *_: Any) -> None:
            job.done += 1

        def configure_optimizers(self) -> Any:
            return torch.optim.Adam(self.parameters(), lr=1e-4)

    rows = job.size(24)
    data = [(torch.randn(3, 256, 256),)] * (job.total * rows)
    fit(torch, job, Model(), [torch.utils.data.DataLoader(data, batch_size=rows)])


# ---- torchvision ---------------------------------------------------------------------------------


@program("smaller_step", sort="torchvision, detection", cap=3000)
def detection_with_one_panorama(torch: Any, job: Job) -> None:
    import torchvision

    make = torchvision.models.detection.fasterrcnn_mobilenet_v3_large_fpn
    sizes = {"min_size": 64, "max_size": 4000, "rpn_pre_nms_top_n_train": 200}
    model = make(weights=None, weights_backbone=None, num_classes=5, **sizes).cuda().train()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)
    chance = random.Random(7)
    for number in job.steps():
        side = 1600 if number == 32 else chance.randrange(128, 256)
        side = max(job.size(side), 64)
        model.transform.min_size = (side,)
        pictures = [torch.rand(3, side, side + 32 * i, device="cuda") for i in range(4)]
        box = torch.tensor([[8.0, 8.0, 48.0, 48.0]], device="cuda")
        label = torch.ones(1, dtype=torch.int64, device="cuda")
        targets = [{"boxes": box, "labels": label} for _ in pictures]
        optimizer.zero_grad()
        sum(model(pictures, targets).values()).backward()
        optimizer.step()


class Recorder:
    """Hooks on every block of a network, for a figure of its activations."""

    def __init__(self, job: Job, model: Any) -> None:
        self.job = job
        self.activations: dict[str, list[Any]] = {}
        for name, block in model.features.named_children():
            block.register_forward_hook(self.hook(name))

    def hook(self, name: str) -> Any:
        def keep(module: Any, inputs: Any, output: Any) -> None:
            self.activations.setdefault(name, []).append(output.detach())

        return keep

    def shown(self) -> float:
        found = {name: each[-1].float().mean() for name, each in self.activations.items()}
        if self.job.takes("release"):
            self.activations.clear()
        return float(sum(found.values()))


@program("release", sort="torchvision, hooks", cap=1050)
def hooks_that_record_activations(torch: Any, job: Job) -> None:
    import torchvision

    model = torchvision.models.convnext_tiny(weights=None, num_classes=20).cuda()
    recorder = Recorder(job, model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for _ in job.steps():
        optimizer.zero_grad()
        model(torch.randn(8, 3, 128, 128, device="cuda")).square().mean().backward()
        optimizer.step()
        recorder.shown()


@program("smaller_step", sort="torchvision, optical flow", cap=1600)
def flow_of_frames_that_become_larger(torch: Any, job: Job) -> None:
    import torchvision

    model = torchvision.models.optical_flow.raft_small(weights=None).cuda().train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for number in job.steps():
        side = 128 if number < 20 else 384
        frames = torch.rand(2, job.size(8), 3, side, side, device="cuda") * 2 - 1
        optimizer.zero_grad()
        flows = model(frames[0], frames[1], num_flow_updates=6)
        sum(flow.abs().mean() for flow in flows).backward()
        optimizer.step()


def store(job: Job, memory: deque[Any], state: Any, following: Any) -> None:
    pair = (state, following)
    let = job.lets_go("store", "replay_memory_of_frames", "act")
    memory.append(tuple(each.cpu() for each in pair) if let else pair)


def act(torch: Any, model: Any, state: Any) -> Any:
    """The frames that follow what the model chooses."""
    with torch.no_grad():
        choice = model(state).argmax(1)
    return torch.roll(state, 1, dims=3) + 0.01 * choice[:, None, None, None]


@program("release", sort="torchvision, replay", cap=1000)
def replay_memory_of_frames(torch: Any, job: Job) -> None:
    import torchvision

    model = torchvision.models.mobilenet_v3_small(weights=None, num_classes=6).cuda()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    memory: deque[Any] = deque(maxlen=100_000)
    chance, state = random.Random(3), torch.rand(32, 3, 168, 168, device="cuda")
    for _ in job.steps():
        following = act(torch, model, state)
        store(job, memory, state, following)
        state = following
        before, after = (each.cuda() for each in chance.choice(memory))
        optimizer.zero_grad()
        (model(before) - model(after).detach()).square().mean().backward()
        optimizer.step()


# ---- accelerate ----------------------------------------------------------------------------------


@program("release", "smaller_step", "checkpoint", sort="accelerate, accumulation", cap=3000)
def losses_summed_before_one_backward(torch: Any, job: Job) -> None:
    from accelerate import Accelerator

    accelerator = Accelerator()
    model = gpt2()
    if job.takes("checkpoint"):
        model.gradient_checkpointing_enable()
    model.train()
    model, optimizer = accelerator.prepare(model, adamw(torch, model))
    for number in job.steps():
        total: Any = 0.0
        for _ in range(4 if number < 20 else 16):
            ids = tokens(torch, job.size(4), 256)
            loss = model(input_ids=ids, labels=ids).loss / 16
            if job.takes("release"):
                accelerator.backward(loss)
            else:
                total = total + loss
        if not job.takes("release"):
            accelerator.backward(total)
        optimizer.step()
        optimizer.zero_grad()


def trial(torch: Any, rate: float) -> dict[str, Any]:
    """One trial of a sweep: a model, trained for some steps, and its score."""
    from accelerate import Accelerator

    accelerator = Accelerator()
    model = bert(num_hidden_layers=3)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    model, optimizer = accelerator.prepare(model, optimizer)
    for _ in range(3):
        ids = tokens(torch, 8, 64)
        loss = model(input_ids=ids, labels=ids[:, 0] % 2).loss
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
    return {"rate": rate, "score": loss.item(), "model": model, "optimizer": optimizer}


@program("release", sort="accelerate, sweep", cap=1400)
def sweep_that_keeps_every_trial(torch: Any, job: Job) -> None:
    job.total = 16
    results: list[dict[str, Any]] = []
    for number in job.steps():
        found = trial(torch, 1e-5 * 1.5**number)
        if job.takes("release"):
            found = {name: found[name] for name in ("rate", "score")}
        results.append(found)
