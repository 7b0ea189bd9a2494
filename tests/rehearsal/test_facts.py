# SPDX-License-Identifier: Apache-2.0
"""Files of facts about kernels, ranks, and the command."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from forked import Imported

import neutracer
from neutracer.cli.main import main
from neutracer.rehearsal.cards import find_card

torch = pytest.importorskip("torch", reason="needs torch, which is not installed here")

from neutracer.rehearsal.kernels.scratch import (  # noqa: E402
    Facts,
    Reduction,
    facts_for,
    partial_bytes,
)


def convolution(channels: int = 64, side: int = 56) -> Any:
    def program() -> Any:
        layer = torch.nn.Conv2d(channels, channels, 3, padding=1, bias=False, device="cuda")
        return lambda: layer(torch.randn(64, channels, side, side, device="cuda"))

    return program


def test_measured_convolutions_are_no_ranges() -> None:
    measured = neutracer.rehearse(convolution(), device="H100").rehearsed
    assert not measured.operators
    low, high = measured.ranges["peak_allocated_bytes"]
    assert low < high < 1.02 * low
    rule = neutracer.rehearse(convolution(72), device="H100").rehearsed
    low, high = rule.ranges["peak_allocated_bytes"]
    assert low < high
    assert "aten.convolution" in rule.operators


def test_command_finds_the_largest_batch_and_what_would_save(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import os, torch\n"
        "model = torch.nn.Linear(2048, 2048).cuda()\n"
        "optimizer = torch.optim.AdamW(model.parameters())\n"
        "for _ in range(3):\n"
        "    x = torch.randn(int(os.environ['BATCH']) << 10, 2048, device='cuda')\n"
        "    model(x).sum().backward()\n"
        "    optimizer.step()\n"
    )
    monkeypatch.setenv("BATCH", "1")
    monkeypatch.setattr("neutracer.cli.rehearse._MOST", 2)
    output = str(tmp_path / "rehearsed.pickle")
    options = ["--largest-batch", "--batch-name", "BATCH", "--savings", "--modules", "--json"]
    words = ["rehearse", *options, "--capacity", "240MiB", "-o", output, str(script)]
    assert main(words) == 0
    said, savings = json.loads(capfd.readouterr().out)["reports"]
    assert [one["kind"] for one in said["findings"][:2]] == ["largest_batch", "rehearsed"]
    found = said["findings"][0]
    assert found["message"] == "a batch of 2 (BATCH) fits in 240 MiB; none larger is tried"
    assert neutracer.load(output).rehearsed.fits("240MiB")
    assert savings["schema"] == "neutracer.savings/1"
    assert savings["savings"]


def test_a_file_of_one_s_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key = "forward float32 first 64x64x56x56 64x64x3x3 1x1 1x1 1x1 1 0"
    facts = Facts("My card", (8, 9), "2.11.0", 91900, {key: (123 << 20,)})
    path = tmp_path / "mine.json"
    path.write_text(facts.to_text())
    assert Facts.read(path.read_text()) == facts
    monkeypatch.setenv("NEUTRACER_KERNELS", str(path))
    snap = neutracer.rehearse(convolution(), device="RTX 4090")
    assert 123 << 20 in {event.size for event in snap.events}
    assert facts_for(find_card("H100")).card.startswith("NVIDIA H100")
    path.write_text("{}")
    with pytest.raises(ValueError, match="NEUTRACER_KERNELS"):
        neutracer.rehearse(convolution(), device="RTX 4090")


def test_learning_takes_what_was_freed_under_a_label() -> None:
    from neutracer.rehearsal.kernels.scratch import joined

    def event(action: str, addr: int, size: int, label: str) -> dict[str, Any]:
        return {"action": action, "addr": addr, "size": size, "user_metadata": label}

    trace = [
        event("alloc", 1, 100, "a"),
        event("alloc", 2, 7, "a"),
        event("free_completed", 2, 7, "a"),
        event("alloc", 3, 9, ""),
        event("alloc", 2, 50, "b"),
        event("free_completed", 1, 100, "b"),
    ]
    assert joined(trace) == {"a": (7,)}


@pytest.mark.parametrize(
    ("columns", "expected"),
    [(1024, (33554432, 32)), (4096, (134217728, 128)), (3072, (100663296, 96))],
)
def test_reductions_as_recorded_on_an_h200(columns: int, expected: tuple[int, int]) -> None:
    one = Reduction((4096, columns), (columns, 1), (0,), 4, 4)
    assert partial_bytes(one, find_card("H200")) == expected


def step(model: Any, optimizer: Any) -> None:
    model(torch.randn(8, 1024, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def parts() -> tuple[Any, Any]:
    model = torch.nn.Sequential(*[torch.nn.Linear(1024, 1024, bias=False) for _ in range(4)])
    return model, torch.optim.Adam(model.parameters())


def test_ranks_shard_and_make_buckets() -> None:
    peaks = {
        name: neutracer.rehearse(step, *parts(), world_size=size, strategy=name)
        .timeline()
        .peak("allocated")
        .bytes
        for name, size in ((None, 1), ("ddp", 8), ("fsdp2", 8))
    }
    weights = 4 * 4 * 1024 * 1024
    assert peaks["ddp"] - peaks[None] == pytest.approx(weights, abs=1 << 20)
    assert peaks["fsdp2"] < 0.7 * peaks[None]
    with pytest.raises(ValueError, match="gets none"):
        neutracer.rehearse(convolution(), strategy="ddp", world_size=2)


SCRIPT = """
import os, sys, torch
model = torch.nn.Linear(256, 256).to("cuda" if torch.cuda.is_available() else "cpu")
optimizer = torch.optim.AdamW(model.parameters())
data = torch.utils.data.TensorDataset(torch.randn(640, 256))
os.makedirs("made", exist_ok=True)
for (x,) in torch.utils.data.DataLoader(data, batch_size=64, num_workers=2):
    model(x.cuda()).sum().backward()
    optimizer.step()
    print("step", sys.argv[1:])
    if len(sys.argv) > 1:
        raise SystemError("no such option")
torch.save(model.state_dict(), "made/model.pt")
"""


def rehearse(
    with_torch: Imported, folder: Path, script: str, *words: str
) -> subprocess.CompletedProcess[str]:
    (folder / "train.py").write_text(script)
    return with_torch.neutracer("rehearse", *words, cwd=folder)


def test_a_script_is_stopped_after_its_steps_and_writes_nothing(
    with_torch: Imported, tmp_path: Path
) -> None:
    done = rehearse(with_torch, tmp_path, SCRIPT, "--device", "L4", "train.py")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("step []") == 2
    assert "Rehearsed, not recorded: 3 steps on NVIDIA L4" in done.stdout
    assert "Not written: made." in done.stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rehearsed.pickle", "train.py"]


def test_a_script_that_fails_says_so_in_one_sentence(with_torch: Imported, tmp_path: Path) -> None:
    done = rehearse(with_torch, tmp_path, SCRIPT, "train.py", "--nonsense")
    assert done.returncode == 2
    assert "train.py:12: the program failed: SystemError: no such option" in done.stderr
    assert "Traceback" not in done.stderr
    assert (tmp_path / "rehearsed.pickle").exists()


def test_a_script_that_does_not_fit(with_torch: Imported, tmp_path: Path) -> None:
    done = rehearse(with_torch, tmp_path, SCRIPT, "--capacity", "24MiB", "train.py")
    assert done.returncode == 1, done.stderr
    assert "it does not fit" in done.stdout


def test_no_script_and_no_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rehearse", str(tmp_path / "nothing.py")]) == 2
    assert "no such file" in capsys.readouterr().err
    (tmp_path / "idle.py").write_text("print(1)")
    assert main(["rehearse", str(tmp_path / "idle.py")]) == 2
    assert "ended before its first optimizer step" in capsys.readouterr().err


def test_steps_beside_the_device_are_said_to_be(with_torch: Imported, tmp_path: Path) -> None:
    done = rehearse(with_torch, tmp_path, SCRIPT.replace("cuda", "cpu"), "train.py")
    assert done.returncode == 2
    assert "without using the device" in done.stderr


def test_a_script_that_ends_itself_says_where(with_torch: Imported, tmp_path: Path) -> None:
    script = 'import sys, torch\n\nx = torch.zeros(1 << 20, device="cuda")\nsys.exit(3)\n'
    done = rehearse(with_torch, tmp_path, script, "train.py")
    assert done.returncode == 2
    said = "train.py:4: the program ended itself after 0 steps, with exit code 3"
    assert said in done.stderr
    assert "It stopped early: " in done.stdout
    assert "it fits" not in done.stdout
    assert (tmp_path / "rehearsed.pickle").exists()


def test_a_script_without_an_optimizer_is_rehearsed_to_its_end(
    with_torch: Imported, tmp_path: Path
) -> None:
    script = 'import torch\n\nx = torch.zeros(1 << 20, device="cuda")\n'
    done = rehearse(with_torch, tmp_path, script, "train.py")
    assert done.returncode == 0, done.stderr
    assert "No optimizer made a step" in done.stdout


def test_an_error_is_told_once(with_torch: Imported, tmp_path: Path) -> None:
    script = 'import torch\nx = torch.zeros(4, 4, device="cuda")\nx @ x[:3]\n'
    done = rehearse(with_torch, tmp_path, script, "train.py")
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert "train.py:3: the program failed: RuntimeError" in done.stderr
    assert ".." not in done.stdout


def test_learning_needs_a_device(capsys: pytest.CaptureFixture[str]) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is one")
    assert main(["setup", "kernels"]) == 2
    assert "no CUDA device" in capsys.readouterr().err


def test_nothing_is_written_moved_or_removed(with_torch: Imported, tmp_path: Path) -> None:
    (tmp_path / "kept.txt").write_text("as it was")
    (tmp_path / "old").mkdir()
    (tmp_path / "write.py").write_text(
        """
import os, pathlib, shutil, torch
net = torch.nn.Linear(8, 8).cuda()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
pathlib.Path("runs/one").mkdir(parents=True, exist_ok=True)
pathlib.Path("runs/one/log.txt").write_text("log")
with open("kept.txt", "a") as file:
    file.write("more")
os.close(os.open("raw.bin", os.O_WRONLY | os.O_CREAT))
os.rename("kept.txt", "moved.txt")
os.remove("kept.txt")
shutil.rmtree("old")
for _ in range(3):
    net(torch.zeros(4, 8, device="cuda")).sum().backward()
    optimizer.step()
"""
    )
    done = with_torch.neutracer("rehearse", "write.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["kept.txt", "old", "rehearsed.pickle", "write.py"]
    assert (tmp_path / "kept.txt").read_text() == "as it was"
    snap = neutracer.load(tmp_path / "rehearsed.pickle")
    notes = " ".join(snap.rehearsed.notes)
    for said in ("runs/one", "log.txt", "raw.bin", "moved.txt would be written", "old would be"):
        assert said in notes


def test_rules_for_convolutions_hold_what_was_measured() -> None:
    from neutracer.rehearsal.kernels.scratch import Convolutions

    card = find_card("H100")
    rules = Convolutions(card)
    inside = total = 0
    for key, measured in facts_for(card).convolutions.items():
        words = key.split()
        wanted = words.pop(1) if words[0] == "backward" else "1"
        dtype = getattr(torch, words[1])
        sides = [tuple(map(int, word.split("x"))) for word in words[3:5]]
        x, weight = (torch.empty(side, dtype=dtype, device="meta") for side in sides)
        if words[2] == "last" and x.dim() == 4:
            x, weight = (t.to(memory_format=torch.channels_last) for t in (x, weight))
        stride, padding, dilation = ([int(n) for n in w.split("x")] for w in words[5:8])
        rest = (stride, padding, dilation, words[9] == "1", [0] * len(stride), int(words[8]))
        y = torch.ops.aten.convolution(x, weight, None, *rest)
        most = rules.most_bytes(x, weight, y, rest, wanted)
        inside += max(measured, default=0) <= most
        total += 1
    # Of every twenty at most one takes more than the rule's range.
    assert total > 500
    assert inside >= 0.95 * total
