# SPDX-License-Identifier: Apache-2.0
"""Programs of libraries that run out of memory as people report it; not looked at either."""

from __future__ import annotations

import random
import tempfile
from itertools import islice
from pathlib import Path
from typing import Any

from gpu.advice.held_out import bert, classify
from gpu.advice.job import Job, mlp
from gpu.advice.job import program as any_program
from gpu.advice.library import adamw, gpt2, llama, tokens, trainer, tune


def program(*helps: str, **keys: Any) -> Any:
    return any_program(*helps, held_out=True, group="held_out_2", **keys)


# ---- Hugging Face ----------------------------------------------------------------------------


@program("release", "smaller_step", sort="Hugging Face, generation", cap=850)
def generation_that_returns_its_states(torch: Any, job: Job) -> None:
    from transformers import StoppingCriteria, StoppingCriteriaList

    class Count(StoppingCriteria):
        def __call__(self, ids: Any, scores: Any, **rest: Any) -> Any:
            job.done += 1
            return torch.zeros(ids.shape[0], dtype=torch.bool, device=ids.device)

    job.total = 400
    model = llama().eval()
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0
    parts = 10 if job.lets_go("update") else 1
    wants_all = parts > 1 or not job.takes("release")
    for _ in range(parts):
        model.generate(
            tokens(torch, job.size(32), 16),
            max_new_tokens=job.total // parts,
            do_sample=False,
            return_dict_in_generate=True,
            output_scores=wants_all,
            output_hidden_states=wants_all,
            stopping_criteria=StoppingCriteriaList([Count()]),
        )


@program("smaller_step", "checkpoint", sort="Hugging Face, audio", cap=800)
def recordings_of_which_one_is_long(torch: Any, job: Job) -> None:
    from transformers import Wav2Vec2Config, Wav2Vec2Model

    sizes = {"hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4}
    more = {"intermediate_size": 1024, "conv_dim": (128,) * 7, "mask_time_prob": 0.0}
    model = Wav2Vec2Model(Wav2Vec2Config(**sizes, **more, layerdrop=0.0)).cuda()
    if job.takes("checkpoint"):
        model.gradient_checkpointing_enable()
    model.train()
    optimizer, chance = adamw(torch, model), random.Random(31)
    for number in job.steps():
        seconds = 60 if number == 33 else chance.uniform(1, 4)
        count = max(job.size(int(16_000 * seconds)), 4000)
        model(torch.randn(4, count, device="cuda")).last_hidden_state.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


@program("smaller_step", "checkpoint", sort="Hugging Face, contrastive", cap=2500)
def pairs_of_pictures_and_texts(torch: Any, job: Job) -> None:
    from transformers import CLIPConfig, CLIPModel

    both = {"hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 4}
    both |= {"num_attention_heads": 4, "projection_dim": 256}
    text = {**both, "vocab_size": 8000, "eos_token_id": 1, "bos_token_id": 0}
    picture = {**both, "image_size": 64, "patch_size": 8}
    config = CLIPConfig(text_config=text, vision_config=picture, projection_dim=256)
    model = CLIPModel(config).cuda()
    if job.takes("checkpoint"):
        model.gradient_checkpointing_enable()
    model.train()
    optimizer = adamw(torch, model)
    for _ in job.steps():
        batch = job.size(1024)
        pictures = torch.randn(batch, 3, 64, 64, device="cuda")
        words = tokens(torch, batch, 32)
        model(input_ids=words, pixel_values=pictures, return_loss=True).loss.backward()
        optimizer.step()
        optimizer.zero_grad()


@program("release", sort="Hugging Face, attention", cap=2200)
def attention_maps_for_a_figure(torch: Any, job: Job) -> None:
    from transformers import ViTConfig, ViTForImageClassification

    sizes = {"hidden_size": 256, "num_hidden_layers": 6, "num_attention_heads": 8}
    more = {"intermediate_size": 1024, "image_size": 128, "patch_size": 8}
    config = ViTConfig(**sizes, **more, num_labels=10, attn_implementation="eager")
    model = ViTForImageClassification(config).cuda().train()
    optimizer = adamw(torch, model)
    maps: list[Any] = []
    for _ in job.steps():
        pictures = torch.randn(16, 3, 128, 128, device="cuda")
        found = model(pixel_values=pictures, output_attentions=True)
        found.logits.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        last = found.attentions[-1].detach()
        names = ("eager_attention_forward", "attention_maps_for_a_figure")
        maps.append(last.cpu() if job.lets_go(*names) else last)


@program("release", sort="Hugging Face, server", cap=1100)
def conversations_with_their_caches(torch: Any, job: Job) -> None:
    from transformers import DynamicCache

    model = llama().eval()
    caches: dict[int, Any] = {}
    with torch.inference_mode():
        for number in job.steps():
            cache = DynamicCache()
            found = model(input_ids=tokens(torch, 1, 1024), past_key_values=cache)
            last = found.logits[:, -1:].argmax(-1)
            for _ in range(4):
                found = model(input_ids=last, past_key_values=cache)
                last = found.logits[:, -1:].argmax(-1)
            caches[number] = cache
            if job.takes("release"):
                caches.pop(number - 4, None)


def read_checkpoint(torch: Any, job: Job, path: Path) -> Any:
    device = "cpu" if job.lets_go("read_checkpoint") else "cuda"
    return torch.load(path, map_location=device, weights_only=True)


@program("release", "smaller_step", sort="Hugging Face, resuming", cap=980)
def resumed_with_the_checkpoint_still_there(torch: Any, job: Job) -> None:
    model = gpt2()
    weights = {name: each.cpu() for name, each in model.state_dict().items()}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "checkpoint.pt"
        averaged = {name: each.clone() for name, each in weights.items()}
        best = {name: each.clone() for name, each in weights.items()}
        torch.save({"model": weights, "ema": averaged, "best": best}, path)
        checkpoint = read_checkpoint(torch, job, path)
    model.load_state_dict(checkpoint["model"])
    optimizer = adamw(torch, model)
    for _ in job.steps():
        tune(torch, model, optimizer, tokens(torch, job.size(4), 256))
    del checkpoint


def noise_of(model: Any, state: Any) -> Any:
    return model(inputs_embeds=state).last_hidden_state


@program("no_grad", "release", sort="Hugging Face, diffusion", cap=1500)
def denoising_with_gradients_on(torch: Any, job: Job) -> None:
    model = bert().bert.eval()
    state = torch.randn(8, 64, 512, device="cuda")
    with torch.set_grad_enabled(not (job.takes("no_grad") or job.takes("release"))):
        for _ in job.steps():
            state = state - 0.02 * noise_of(model, state)


def store_rollout(torch: Any, job: Job, buffer: list[Any], ids: Any, logits: Any) -> None:
    chances = logits.log_softmax(-1)
    if job.lets_go("store_rollout"):
        chances = chances.gather(-1, ids[..., None]).squeeze(-1)
    buffer.append((ids, chances))


@program("release", sort="Hugging Face, reinforcement", cap=1800)
def rollouts_with_all_their_logits(torch: Any, job: Job) -> None:
    policy, reference = gpt2(), gpt2().eval()
    optimizer = adamw(torch, policy)
    buffer: list[Any] = []
    for number in job.steps():
        with torch.no_grad():
            ids = tokens(torch, 16, 128)
            logits = policy(input_ids=ids).logits - reference(input_ids=ids).logits
            store_rollout(torch, job, buffer, ids, logits)
        if number % 40 == 39:
            for ids, _ in buffer:
                tune(torch, policy, optimizer, ids[:4])
            buffer.clear()


@program("shard_state", sort="Hugging Face Trainer, optimizer", cap=1500)
def trainer_without_room_for_adam(torch: Any, job: Job) -> None:
    model = llama(hidden_size=1024, intermediate_size=2752)
    kind = {"optim": "sgd"} if job.takes("shard_state") else {}
    trainer(torch, job, model, 32, 1, **kind).train()


@program("raise_limit", sort="Hugging Face, fraction", cap=700, is_limit=True)
def share_that_is_left_by_a_server(torch: Any, job: Job) -> None:
    model = bert()
    optimizer = adamw(torch, model)
    for _ in job.steps():
        classify(torch, job, model, 32, 128).loss.backward()
        optimizer.step()
        optimizer.zero_grad()


# ---- Lightning, torchmetrics, accelerate ------------------------------------------------------


def fit(torch: Any, job: Job, module: Any, loaders: list[Any], **more: Any) -> None:
    """Lightning's Trainer, without what it writes."""
    import pytorch_lightning as lightning

    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    quiet |= {"enable_model_summary": False, "num_sanity_val_steps": 0}
    made = lightning.Trainer(max_steps=job.total, accelerator="gpu", devices=1, **{**quiet, **more})
    made.fit(module, *loaders)


def keep_prediction(job: Job, kept: list[Any], output: Any, labels: Any) -> None:
    chances = output.softmax(-1)
    if job.lets_go("keep_prediction"):
        chances = chances.cpu()
    kept.append({"chances": chances, "labels": labels})


@program("release", sort="Lightning, validation", cap=600)
def validation_outputs_never_cleared(torch: Any, job: Job) -> None:
    import pytorch_lightning as lightning

    nn = torch.nn

    class Model(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 1000))
            self.kept: list[Any] = []

        def training_step(self, batch: Any, number: int) -> Any:
            return nn.functional.cross_entropy(self.layers(batch[0]), batch[1])

        def validation_step(self, batch: Any, number: int) -> None:
            keep_prediction(job, self.kept, self.layers(batch[0]), batch[1])

        def on_validation_epoch_end(self) -> None:
            right = [each["chances"].argmax(-1).cpu() == each["labels"].cpu() for each in self.kept]
            self.accuracy = torch.cat(right).float().mean()

        def on_train_batch_end(self, *_: Any) -> None:
            job.done += 1

        def configure_optimizers(self) -> Any:
            return torch.optim.Adam(self.parameters(), lr=1e-4)

    def loader(batches: int) -> Any:
        inputs, labels = torch.randn(batches * 4096, 512), torch.randint(0, 1000, (batches * 4096,))
        data = torch.utils.data.TensorDataset(inputs, labels)
        return torch.utils.data.DataLoader(data, batch_size=4096)

    fit(torch, job, Model(), [loader(5), loader(4)])


@program("release", sort="Lightning, optimizer", cap=1500)
def optimizer_with_a_long_history(torch: Any, job: Job) -> None:
    import pytorch_lightning as lightning

    class Model(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = bert(num_hidden_layers=2)

        def training_step(self, batch: Any, number: int) -> Any:
            ids = batch[0]
            return self.model(input_ids=ids, labels=ids[:, 0] % 2).loss

        def on_train_batch_end(self, *_: Any) -> None:
            job.done += 1

        def configure_optimizers(self) -> Any:
            size = 2 if job.takes("release") else 100
            parameters = self.parameters()
            return torch.optim.LBFGS(parameters, lr=0.01, max_iter=1, history_size=size)

    data = torch.utils.data.TensorDataset(torch.randint(0, 8000, (60 * 16, 32)))
    fit(torch, job, Model(), [torch.utils.data.DataLoader(data, batch_size=16)])


def picture_and_mask(torch: Any) -> tuple[Any, Any]:
    pictures = torch.randn(32, 3, 256, 256, device="cuda")
    return pictures, torch.randint(0, 2, (32, 1, 256, 256), device="cuda")


def add_to_metric(metric: Any, output: Any, mask: Any) -> None:
    metric.update(output, mask)


@program("release", sort="torchmetrics, evaluation", cap=1100)
def metric_that_keeps_every_pixel(torch: Any, job: Job) -> None:
    import torchvision
    from torchmetrics.classification import BinaryAveragePrecision

    make = torchvision.models.segmentation.lraspp_mobilenet_v3_large
    model = make(weights=None, weights_backbone=None, num_classes=1).cuda().eval()
    lets_go = job.lets_go("add_to_metric", "picture_and_mask", "metric_that_keeps_every_pixel")
    metric = BinaryAveragePrecision(thresholds=64 if lets_go else None).cuda()
    with torch.inference_mode():
        for _ in job.steps():
            pictures, mask = picture_and_mask(torch)
            add_to_metric(metric, model(pictures)["out"], mask)


@program("release", sort="accelerate, folds", cap=1500)
def folds_that_one_accelerator_prepares(torch: Any, job: Job) -> None:
    from accelerate import Accelerator

    job.total = 12
    accelerator = Accelerator()
    for _ in job.steps():
        fold(torch, accelerator)
        if job.takes("release"):
            accelerator.free_memory()


def fold(torch: Any, accelerator: Any) -> None:
    model = gpt2()
    model, optimizer = accelerator.prepare(model, adamw(torch, model))
    for _ in range(4):
        ids = tokens(torch, 4, 128)
        accelerator.backward(model(input_ids=ids, labels=ids).loss)
        optimizer.step()
        optimizer.zero_grad()


# ---- torchvision, and functions of torch ------------------------------------------------------


@program("smaller_step", sort="torchvision, video", cap=1500)
def clips_that_become_longer(torch: Any, job: Job) -> None:
    import torchvision

    model = torchvision.models.video.r3d_18(weights=None, num_classes=20).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    for number in job.steps():
        frames = 8 if number < 25 else 48
        clips = torch.randn(4, 3, max(job.size(frames), 2), 112, 112, device="cuda")
        optimizer.zero_grad()
        model(clips).square().mean().backward()
        optimizer.step()


@program("smaller_step", sort="torchvision, segmentation", cap=900)
def whole_pictures_after_crops(torch: Any, job: Job) -> None:
    import torchvision

    make = torchvision.models.segmentation.deeplabv3_mobilenet_v3_large
    model = make(weights=None, weights_backbone=None, num_classes=21).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    for number in job.steps():
        if number % 12 != 11:
            crops = torch.randn(8, 3, 128, 128, device="cuda")
            optimizer.zero_grad()
            model.train()(crops)["out"].square().mean().backward()
            optimizer.step()
            continue
        optimizer.zero_grad()
        with torch.no_grad():
            whole = torch.randn(job.size(6), 3, 1024, 1024, device="cuda")
            model.eval()(whole)["out"].softmax(1).argmax(1)


class Cached:
    """A data set that keeps what it has loaded where the model wants it."""

    def __init__(self, torch: Any, job: Job, count: int) -> None:
        self.torch, self.job, self.count = torch, job, count
        self.kept: dict[int, Any] = {}

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        if index not in self.kept:
            self.kept[index] = self.load_sample(index)
        return self.kept[index].to("cuda")[:, ::3, ::3]

    def load_sample(self, index: int) -> Any:
        made = self.torch.rand(3, 288, 288, device="cuda")
        return made.cpu() if self.job.lets_go("load_sample", "__getitem__") else made


@program("release", sort="torchvision, data", cap=1100)
def samples_cached_on_the_device(torch: Any, job: Job) -> None:
    import torchvision

    model = torchvision.models.resnet18(num_classes=10).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    data = Cached(torch, job, 60 * 32)
    batches = iter(torch.utils.data.DataLoader(data, batch_size=32, shuffle=True))
    for _ in job.steps():
        optimizer.zero_grad()
        model(next(batches)).square().mean().backward()
        optimizer.step()


@program("smaller_step", sort="torch.func", cap=1500)
def gradients_of_each_sample(torch: Any, job: Job) -> None:
    model = mlp(torch, 1024, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    named = dict(model.named_parameters())

    def loss(parameters: Any, sample: Any) -> Any:
        return torch.func.functional_call(model, parameters, (sample,)).square().mean()

    each = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))
    for _ in job.steps():
        found = each(named, torch.randn(job.size(128), 1024, device="cuda"))
        for name, gradients in found.items():
            flat = gradients.flatten(1)
            scale = (1.0 / flat.norm(dim=1).clamp(min=1.0)).view(-1, *[1] * named[name].dim())
            named[name].grad = (gradients * scale).mean(0)
        optimizer.step()


# ---- graph neural networks --------------------------------------------------------------------


@program("smaller_step", "shape", sort="PyG, attention", cap=1500)
def attention_over_a_whole_graph(torch: Any, job: Job) -> None:
    from torch_geometric.nn import GAT

    nodes, count = 20_000, 600_000
    model = GAT(64, 256, 2, out_channels=64, heads=8).cuda()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    features = torch.randn(nodes, 64, device="cuda")
    edges = torch.randint(0, nodes, (2, count), device="cuda")
    for _ in job.steps():
        kept = count // 20 if job.takes("shape") else job.size(count)
        optimizer.zero_grad()
        model(features, edges[:, :kept]).square().mean().backward()
        optimizer.step()


def graphs(torch: Any, sizes: list[int]) -> Any:
    from torch_geometric.data import Batch, Data

    made = []
    for size in sizes:
        edges = torch.randint(0, size, (2, 4 * size))
        made.append(Data(x=torch.randn(size, 64), edge_index=edges))
    return Batch.from_data_list(made).to("cuda")


@program("smaller_step", sort="PyG, one large graph", cap=1000)
def one_graph_of_another_size(torch: Any, job: Job) -> None:
    from torch_geometric.nn import GIN, global_mean_pool

    model = GIN(64, 256, 3, out_channels=64).cuda()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    chance = random.Random(41)
    drawn = iter(lambda: chance.randrange(200, 1500), None)
    for number in job.steps():
        sizes = [300_000] if number == 37 else list(islice(drawn, 32))
        batch = graphs(torch, [max(job.size(size), 8) for size in sizes])
        optimizer.zero_grad()
        found = model(batch.x, batch.edge_index)
        global_mean_pool(found, batch.batch).square().mean().backward()
        optimizer.step()
