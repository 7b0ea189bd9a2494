# SPDX-License-Identifier: Apache-2.0
"""PyTorch's out-of-memory messages in logs: wordings since 1.13, wrapped, of several ranks."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from neutracer.cli.main import main
from neutracer.oom.messages import messages_report

_OLD_ADVICE = (
    " If reserved memory is >> allocated memory try setting max_split_size_mb to avoid "
    "fragmentation.  See documentation for Memory Management and PYTORCH_CUDA_ALLOC_CONF"
)
_ADVICE = (
    " If reserved but unallocated memory is large try setting "
    "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation."
)
_INSIDE = "Of the allocated memory 7.00 GiB is allocated by PyTorch, and "

# By release or form: text, verdict, device, MiB that were asked for.
WORDINGS = {
    "1.13": (
        "RuntimeError: CUDA out of memory. Tried to allocate 96.00 MiB (GPU 1; 7.80 GiB total "
        "capacity; 7.50 GiB already allocated; 4.69 MiB free; 7.55 GiB reserved in total by "
        f"PyTorch){_OLD_ADVICE}",
        "capacity",
        1,
        96,
    ),
    "2.0, limited": (
        "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0; "
        "23.65 GiB total capacity; 1.00 GiB already allocated; 20.00 GiB free; 2.50 GiB allowed; "
        f"1.20 GiB reserved in total by PyTorch){_OLD_ADVICE}",
        "process_cap",
        0,
        2048,
    ),
    "2.1, misspelt": (
        "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 9.00 GiB. GPU 0 has "
        "a total capacty of 8.00 GiB of which 7.00 GiB is free. Including non-PyTorch memory, "
        "this process has 1.00 GiB memory in use.",
        "unreasonable_request",
        0,
        9216,
    ),
    "2.2, without a number": (
        "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 224.00 MiB. GPU  has "
        "a total capacity of 8.00 GiB of which 160.81 MiB is free. Process 47694 has 7.84 GiB "
        f"memory in use. {_INSIDE}396.27 MiB is reserved by PyTorch but unallocated.{_ADVICE}",
        "fragmentation",
        None,
        224,
    ),
    "2.5": (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB. GPU 3 has a "
        "total capacity of 8.00 GiB of which 12.00 MiB is free. Including non-PyTorch memory, "
        f"this process has 7.60 GiB memory in use. {_INSIDE}10.27 MiB is reserved by PyTorch "
        f"but unallocated.{_ADVICE}",
        "capacity",
        3,
        20,
    ),
    "2.6, others": (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a "
        "total capacity of 31.36 GiB of which 2.62 MiB is free. Process 81034 has 30.57 GiB "
        "memory in use. Including non-PyTorch memory, this process has 784.00 MiB memory in "
        "use. Of the allocated memory 179.69 MiB is allocated by PyTorch, and 12.31 MiB is "
        "reserved by PyTorch but unallocated.",
        "non_torch",
        0,
        20,
    ),
    "private pools": (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.00 GiB. GPU 0 has a "
        "total capacity of 8.00 GiB of which 0 bytes is free. Including non-PyTorch memory, this "
        "process has 8.00 GiB memory in use. Of the allocated memory 7.00 GiB is allocated by "
        "PyTorch, with 2.00 GiB allocated in private pools (e.g., CUDA Graphs), and 40.00 MiB is "
        "reserved by PyTorch but unallocated.",
        "capacity",
        0,
        1024,
    ),
    "2.9, the newer variable": (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.54 GiB. GPU 0 has a total "
        "capacity of 139.80 GiB of which 138.76 GiB is free. Process 1234 has 1.03 GiB memory in "
        "use. 2.00 GiB allowed; Of the allocated memory 405.99 MiB is allocated by PyTorch, and "
        "134.01 MiB is reserved by PyTorch but unallocated. If reserved but unallocated memory is "
        "large try setting PYTORCH_ALLOC_CONF=expandable_segments:True to avoid fragmentation.",
        "process_cap",
        0,
        1576,
    ),
    "2.12, refused beforehand": (
        "torch.OutOfMemoryError: CUDA out of memory. Allocation was preemptively rejected because "
        "it would exceed per_process_memory_fraction limit. Requested size: 1.54 GiB",
        "process_cap",
        None,
        1576,
    ),
    "beyond all devices": (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate more than 1EB memory.",
        "unreasonable_request",
        None,
        0,
    ),
    "cudaMallocAsync": (
        "torch.OutOfMemoryError: Allocation on device 1 would exceed allowed memory. (out of "
        "memory)\nCurrently allocated     : 21.06 GiB\nRequested               : 2.00 GiB\n"
        "Device limit            : 23.69 GiB\nFree (according to CUDA): 16.00 MiB\n"
        "PyTorch limit (set by user-supplied memory fraction)\n"
        "                        : 17179869184.00 GiB",
        "capacity",
        1,
        2048,
    ),
    "cudaMallocAsync, limited": (
        "torch.OutOfMemoryError: Allocation on device 0 would exceed allowed memory. (out of "
        "memory)\nCurrently allocated     : 1.06 GiB\nRequested               : 2.00 GiB\n"
        "Device limit            : 23.69 GiB\nFree (according to CUDA): 20.00 GiB\n"
        "PyTorch limit (set by user-supplied memory fraction)\n"
        "                        : 2.50 GiB",
        "process_cap",
        0,
        2048,
    ),
    "CUDA's own": (
        "torch.AcceleratorError: CUDA error: out of memory\nCUDA kernel errors might be reported "
        "asynchronously at some other API call, so the stacktrace below might be incorrect.",
        "non_torch",
        None,
        0,
    ),
    "HIP": (
        "torch.OutOfMemoryError: HIP out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total "
        "capacity of 8.00 GiB of which 12.00 MiB is free. Of the allocated memory 7.00 GiB is "
        "allocated by PyTorch, and 10.27 MiB is reserved by PyTorch but unallocated.",
        "capacity",
        0,
        20,
    ),
    "wrapped by a logger": (
        "> OutOfMemoryError: CUDA out of memory.\n> Tried to allocate 128.00 MiB. GPU 0 has a "
        "total capacity of\n> 8.00 GiB of which 111.81 MiB is free.\n> Of the allocated memory "
        "7.00 GiB is allocated by PyTorch,\n> and 600.81 MiB is reserved by PyTorch but "
        "unallocated.",
        "fragmentation",
        0,
        128,
    ),
}


@pytest.mark.parametrize("name", WORDINGS)
def test_each_wording_gives_its_verdict(name: str) -> None:
    text, kind, device, asked = WORDINGS[name]
    report = messages_report(["step 1", *text.split("\n"), "Traceback of nothing"], "job.log")
    assert report is not None
    (message,) = report.messages
    assert (message.kind, message.device, message.at) == (kind, device, 2)
    assert message.request_bytes >> 20 == asked
    assert report.findings[0].message.startswith("out of memory: ")


def _of_rank(rank: int, line: int, asked: str) -> list[str]:
    text = WORDINGS["2.5"][0].replace("20.00 MiB", asked)
    lines = (
        "Traceback (most recent call last):",
        '  File "/job/train.py", line 7, in <module>',
        f'  File "/job/model.py", line {line}, in forward',
        '  File "/usr/lib/python3/dist-packages/torch/nn/functional.py", line 9, in linear',
        text,
    )
    return [f"[rank{rank}]: {line}" for line in lines]


def test_ranks_are_told_apart_with_their_lines() -> None:
    first, second = _of_rank(3, 31, "20.00 MiB"), _of_rank(0, 42, "24.00 MiB")
    mixed = [line for pair in zip(first, second, strict=True) for line in pair]
    report = messages_report([*mixed, *second], "slurm.out")
    assert report is not None
    found = [(one.rank, one.line, one.request, one.script) for one in report.messages]
    script = "/job/train.py"
    assert found == [(3, 31, "20.00 MiB", script), (0, 42, "24.00 MiB", script)]
    text = str(report)
    assert "rank 3, cuda:3, 20.00 MiB requested by forward (model.py:31" in text
    assert "neutracer run /job/train.py" in text


def test_log_without_a_message_is_said_to_be_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "job.log"
    log.write_text("\x1b[31mstep 1\x1b[0m\nout of memory? no\n")
    assert main(["explain", str(log)]) == 2
    assert "a text file without an out-of-memory message" in capsys.readouterr().err


@pytest.mark.parametrize("name", WORDINGS)
def test_command_explains_a_log(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text, kind, _, _ = WORDINGS[name]
    frame = '  File "train.py", line 162, in step'
    raised = ["Traceback (most recent call last):", frame, *text.split("\n")]
    log = tmp_path / "slurm.out"
    logged = "\n".join(["step 1", *raised, "srun: error: node17: task 0: Exited", ""]).encode()
    log.write_bytes(logged)
    printed = []
    for file in (str(log), "-"):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BufferedReader(io.BytesIO(logged))))
        assert main(["explain", file, "--fail-on", kind]) == 1
        printed.append(capsys.readouterr().out.splitlines())
    by_file, by_input = printed
    assert by_file[:-1] == by_input[:-1]
    assert by_file[0].startswith("SEVERE   out of memory: ")
    assert sum("step (train.py:162)" in line for line in by_file) == 1
    assert by_file[-3:] == [
        "         record who holds the memory: neutracer run train.py",
        "",
        "slurm.out   log with 1 out-of-memory message",
    ]
