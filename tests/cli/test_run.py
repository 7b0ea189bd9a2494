# SPDX-License-Identifier: Apache-2.0
"""`neutracer run`: programs that know nothing of it, and what is written of them."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from forked import COMMAND, Imported
from places import HELPERS

import neutracer

FAKE = """
from fake_cuda import FakeTorch
fake = FakeTorch(initialised=False)
globals().update({k: v for k, v in vars(fake.module).items() if not k.startswith("__")})
__version__ = "2.11.0"
"""


#: For programs, which find the fake torch in their own folder, and for Python itself.
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (HELPERS, *sys.path)))}
MODULES = ("neutracer.run.report", "neutracer.cli.run")


@pytest.fixture(scope="module")
def process():
    """A process that is forked for each command: without torch, which comes with a program."""
    with Imported(*MODULES, environment=ENVIRONMENT) as process:
        yield process


@pytest.fixture
def run(process, tmp_path):
    """A function that runs a program's text under `neutracer run`, with the fake torch."""
    (tmp_path / "torch.py").write_text(FAKE)

    def go(text, *options, arguments=(), module=False, **environment):
        (tmp_path / "program.py").write_text(text)
        program = ["-m", "program"] if module else [str(tmp_path / "program.py")]
        words = ("run", "-o", str(tmp_path / "out"), *options, *program, *arguments)
        return process.neutracer(*words, cwd=tmp_path, **environment)

    go.out = tmp_path / "out"
    return go


def written(run, ending):
    return sorted(run.out.glob(f"*{ending}")) if run.out.exists() else []


def test_report_at_the_end(run):
    done = run("import sys, torch\ntorch.fake.init()\ntorch.fake.allocate(7)\nsys.exit(3)\n")
    assert done.returncode == 3
    assert done.stdout == ""
    assert "program.py" in done.stderr
    assert "21 events" in done.stderr
    (snapshot,) = written(run, "-exit.pickle")
    assert len(neutracer.load(snapshot).events) == 21
    assert "21 events" in snapshot.with_suffix(".txt").read_text()
    sidecar = json.loads(Path(f"{snapshot}.json").read_text())
    assert sidecar["program"].endswith("program.py")
    assert sidecar["recording"]["stacks"] == "python"
    assert f"written   {snapshot.name}\n" in done.stderr


def test_program_sees_itself_alone(run):
    text = (
        "import sys\n"
        "assert 'torch' not in sys.modules\n"
        "assert sys.argv[1:] == ['--json', '-o', 'x']\n"
        "assert __name__ == '__main__'\n"
        "import torch\n"
        "assert torch.__spec__.loader.get_source('torch')\n"
        "assert torch.fake.calls == []\n"
        "print('mine')\n"
    )
    done = run(text, arguments=("--json", "-o", "x"))
    assert done.returncode == 0, done.stderr
    assert done.stdout == "mine\n"
    assert "never used CUDA" in done.stderr
    assert "neutracer rehearse" in done.stderr
    assert written(run, "*") == []


def test_program_gets_its_words_as_written(run):
    text = "import json, sys\nprint(json.dumps(sys.argv[1:]))\n"
    for words in (["--", "-x", "--"], ["run", "--version", "--help"], ["a", "--", "b"], ["-m"]):
        for before in ([], ["--"]):
            assert json.loads(run(text, *before, arguments=words).stdout) == words


def test_module_is_run_as_one(run):
    done = run("import torch\ntorch.fake.init()\nprint(__spec__.name)\n", module=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "program\n"
    assert len(written(run, "-exit.pickle")) == 1


def test_program_without_torch_is_told(run):
    done = run("print(1)\n")
    assert done.returncode == 0
    assert done.stdout == "1\n"
    assert "never imported torch" in done.stderr


def test_torch_without_cuda_is_told(run, tmp_path):
    (tmp_path / "torch.py").write_text(FAKE + "version.cuda = None\n")
    done = run("import torch\n")
    assert done.returncode == 0
    assert "Nothing was recorded: CUDA in this build of torch" in done.stderr


def test_out_of_memory_is_written_down(run):
    done = run("import torch\ntorch.fake.init()\ndef step():\n torch.fake.run_out()\nstep()\n")
    assert done.returncode == 1
    assert "OutOfMemoryError" in done.stderr
    if sys.version_info >= (3, 11):
        assert "neutracer: fragmentation" in done.stderr
    (report,) = written(run, ".txt")[:1]
    assert "Out of memory on cuda:0" in report.read_text()
    assert len(written(run, "-exit.pickle")) == 1
    assert "out of memory" in done.stderr


# The real torch is there for its tensors, and the program gets the fake one.
REAL = """
import sys
from neutracer.heap.cycles import prepare_heap
prepare_heap()
sys.modules["real_torch"] = sys.modules.pop("torch")
"""

LEAK = """
import torch
torch.fake.real_times = True
torch.fake.init()
history, failures = {"z": []}, []
def checked():
    batch = torch.fake.tensor(40960, 40)
    raise ValueError
def step():
    history["z"].append(torch.fake.tensor(51200, 30))
    try:
        checked()
    except ValueError as error:
        failures.append(error)
for _ in range(20):
    step()
"""

HELD = {
    "forward (model.py:30)": 'history["z"]',
    "forward (model.py:40)": "failures → exception → traceback → frame checked → batch",
    "forward (model.py:7)": "no Python object: C++ of PyTorch",
}


@pytest.fixture
def run_with_tensors(with_torch, run, tmp_path):
    """`run`, with a fake that makes tensors of the real torch."""
    show = "import sys\nfake.show_tensors_of(sys.modules['real_torch'])\n"
    # What the fake lends from the real torch is there before the module copies it.
    (tmp_path / "torch.py").write_text(FAKE.replace("globals()", f"{show}globals()"))

    def go(text):
        (tmp_path / "program.py").write_text(text)
        words = ("run", "-o", str(run.out), str(tmp_path / "program.py"))
        return with_torch.run(REAL + COMMAND, *words, cwd=tmp_path)

    go.out = run.out
    return go


def words(text):
    return " ".join(text.split())


def test_failure_has_one_cause_in_all_that_a_run_writes(run_with_tensors):
    run = run_with_tensors
    done = run(f"{LEAK}torch.fake.run_out()\n")
    assert done.returncode == 1
    (failed,) = run.out.glob("oom-*.pickle")
    (ended,) = written(run, "-exit.pickle")
    why = neutracer.explain(failed)
    said = why.verdicts[0].message
    assert {str(one.place): one.holder for one in why.bill.lines} == HELD
    again = neutracer.explain(ended)
    assert again.bill.to_dict() == why.bill.to_dict()
    assert [one.message for one in again.verdicts] == [one.message for one in why.verdicts]
    note, _, summary = done.stderr.partition("program.py   exit code 1")
    if sys.version_info >= (3, 11):
        assert f"neutracer: {said}" in words(note)
    # The cause of the last failure, and behind it the file of each.
    assert f"out of memory: {said}" in words(done.stderr)
    assert f"out of memory {said} ({failed.stem}.txt)" in words(summary)
    for text in (failed.with_suffix(".txt"), ended.with_suffix(".txt")):
        assert said in words(text.read_text())
        assert 'history["z"] holds what model.py:30 made.' in words(text.read_text())
    for file in (failed, ended):
        found = [one for one in neutracer.report(file).findings if one.kind == "out_of_memory"]
        assert [one.message.startswith(f"out of memory: {said}") for one in found] == [True]


def test_end_of_a_run_names_the_holders(run_with_tensors):
    run = run_with_tensors
    done = run(LEAK)
    assert done.returncode == 0, done.stderr
    (ended,) = written(run, "-exit.pickle")
    (device,) = neutracer.report(ended).devices
    assert {str(one.place): one.holder for one in device.held} == HELD
    for text in (done.stderr, ended.with_suffix(".txt").read_text()):
        assert 'history["z"] forward model.py:30' in words(text)
    bill = neutracer.explain(ended, request="60MiB", capacity="64MiB").bill
    assert {str(one.place): one.holder for one in bill.lines} == HELD


def test_many_failures_are_counted(run):
    text = (
        "import torch\n"
        "torch.fake.init()\n"
        "for size in (48, 40, 36):\n"
        "    try:\n"
        "        torch.fake.run_out(size << 20)\n"
        "    except torch.OutOfMemoryError:\n"
        "        pass\n"
    )
    done = run(text, "--json")
    assert done.returncode == 0
    plain = json.loads(done.stdout)
    assert plain["schema"] == "neutracer.run/1"
    assert plain["ooms_seen"] == 3
    assert len(plain["ooms"]) == 1
    assert plain["overview"]["devices"][0]["events"] == 3


@pytest.mark.skipif(sys.version_info < (3, 11), reason="exceptions are followed by their notes")
def test_error_that_a_library_catches_is_no_failure(run):
    text = "import torch\ntorch.fake.init()\ntorch.fake.run_short()\ntorch.fake.allocate(2)\n"
    done = run(text)
    assert done.returncode == 0
    shown = words(done.stderr)
    assert "ran short a library caught it, and took less memory (oom-" in shown
    assert "1 request found no memory, and a library went on with less" in shown
    assert "out of memory:" not in shown


def test_signal_writes_a_report(run):
    text = (
        "import os, pathlib, signal, time, torch\n"
        "torch.fake.init()\n"
        "torch.fake.allocate(2)\n"
        "os.kill(os.getpid(), signal.SIGUSR2)\n"
        "begin = time.monotonic()\n"
        "while not list(pathlib.Path('out').glob('*-signal.txt')):\n"
        "    assert time.monotonic() - begin < 120\n"
        "    time.sleep(0.01)\n"
        "torch.fake.allocate(2)\n"
    )
    done = run(text)
    assert done.returncode == 0, done.stderr
    counts = [len(neutracer.load(path).events) for path in written(run, ".pickle")]
    assert counts == [6, 12]


def test_reports_come_at_intervals(run):
    text = (
        "import pathlib, time, torch\n"
        "torch.fake.init()\n"
        "begin = time.monotonic()\n"
        "while len(list(pathlib.Path('out').glob('*-interval.txt'))) < 2:\n"
        "    assert time.monotonic() - begin < 120\n"
        "    time.sleep(0.01)\n"
    )
    done = run(text, "--every", "0.001")
    assert done.returncode == 0, done.stderr
    assert len(written(run, "-interval.pickle")) >= 2


def test_forked_workers_write_nothing(run):
    text = (
        "import os, sys, torch\n"
        "torch.fake.init()\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    try:\n"
        "        torch.fake.run_out()\n"
        "    except torch.OutOfMemoryError:\n"
        "        os._exit(5)\n"
        "sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
    )
    done = run(text)
    assert done.returncode == 5, done.stderr
    assert len(written(run, ".pickle")) == 1


def test_forked_child_ends_without_report(run):
    text = (
        "import os, sys, torch\n"
        "torch.fake.init()\n"
        "child = os.fork()\n"
        "if child:\n"
        "    print('child', os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
        "sys.exit(0 if child else 7)\n"
    )
    done = run(text, "--recorder", "pytorch")
    assert (done.returncode, done.stdout) == (0, "child 7\n")
    assert done.stderr.count("exit code") == 1
    assert "note" not in done.stderr
    assert len(written(run, ".pickle")) == 1


def test_child_that_imports_torch_is_left_alone(run):
    text = (
        "import os, sys\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    import torch\n"
        "    torch.fake.init()\n"
        "    assert not torch.fake.calls and not torch.fake.observers\n"
        "    sys.exit(7)\n"
        "sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
    )
    done = run(text)
    assert done.returncode == 7, done.stderr
    assert written(run, "*") == []
    assert "never imported torch" in done.stderr


def test_rank_is_told(run):
    text = "import torch\ntorch.fake.init()\n"
    rank = {"RANK": "3", "WORLD_SIZE": "8"}
    assert "program.py   rank 3 of 8 · exit code 0" in run(text, **rank).stderr
    plain = json.loads(run(text, "--json", **rank).stdout)
    assert (plain["rank"], plain["world_size"]) == (3, 8)
    assert (plain["host"], plain["pid"]) != ("", os.getpid())
    assert len([path for path in written(run, ".pickle") if "-rank3-" in path.name]) == 2


@pytest.mark.skipif(not hasattr(os, "O_DIRECT"), reason="needs a pipe of packets")
def test_page_is_written_at_one_go(run, tmp_path):
    (tmp_path / "program.py").write_text("import torch\ntorch.fake.init()\n")
    reading, writing = os.pipe2(os.O_DIRECT)
    command = [sys.executable, "-u", "-m", "neutracer", "run", "--recorder", "pytorch"]
    command.append("program.py")
    packets = []
    # Such a pipe holds few packets: unless it is read meanwhile, a traceback waits for ever.
    with subprocess.Popen(command, env=ENVIRONMENT, cwd=tmp_path, stderr=writing) as process:
        os.close(writing)
        while packet := os.read(reading, 65536):
            packets.append(packet)
    os.close(reading)
    assert process.returncode == 0, b"".join(packets).decode()
    # Of such a pipe one read is one write, and no other rank's lines are in the midst of it.
    (page,) = packets
    assert page.endswith(b"-exit.pickle\n   in        neutracer-run\n")


def test_signal_during_the_last_report_is_survived(run):
    text = (
        "import os, signal, torch\n"
        "torch.fake.init()\n"
        "taken = torch.cuda.memory._snapshot\n"
        "def slow():\n"
        "    os.kill(os.getpid(), signal.SIGUSR2)\n"
        "    return taken()\n"
        "torch.cuda.memory._snapshot = slow\n"
    )
    done = run(text)
    assert done.returncode == 0, done.stderr
    (report,) = written(run, ".txt")
    assert report.name.endswith("-exit.txt")


def test_launchers_are_told_the_way(run):
    done = run("import torch\n")
    assert "'torchrun -m neutracer run train.py'" in " ".join(done.stderr.split())


def test_ranks_under_torchrun_keep_apart(run, with_torch, tmp_path):
    pytest.importorskip("torch.distributed.run")
    # The launcher needs the real torch, its ranks the fake one.
    folder = tmp_path / "fake"
    folder.mkdir()
    (tmp_path / "torch.py").rename(folder / "torch.py")
    (tmp_path / "program.py").write_text(
        "import os, sys\n"
        f"sys.path.insert(0, {str(folder)!r})\n"
        "import torch\n"
        "torch.fake.init()\n"
        "torch.fake.allocate(1 + int(os.environ['RANK']))\n"
        "sys.stdout.write(f'rank {os.environ[\"RANK\"]} {sys.argv[1:]}\\n')\n"
    )
    launcher = "from torch.distributed.run import main\nmain()"
    ours = ["-m", "neutracer", "run", "-o", "out", "program.py", "--epochs", "2"]
    words = ("--standalone", "--nproc-per-node=2", *ours)
    done = with_torch.run(launcher, *words, cwd=tmp_path, PYTHONPATH=ENVIRONMENT["PYTHONPATH"])
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [f"rank {n} ['--epochs', '2']" for n in (0, 1)]
    assert sorted(re.findall(r"rank \d of 2", done.stderr)) == ["rank 0 of 2", "rank 1 of 2"]
    for rank in (0, 1):
        (snapshot,) = written(run, f"-rank{rank}-*-exit.pickle")
        assert len(neutracer.load(snapshot).events) == 3 * (1 + rank)
        facts = json.loads(Path(f"{snapshot}.json").read_text())
        assert (facts["rank"], facts["world_size"], facts["local_rank"]) == (rank, 2, rank)
    assert len(list(run.out.iterdir())) == 6


def test_missing_program_is_refused(process, tmp_path):
    done = process.neutracer("run", str(tmp_path / "missing.py"), cwd=tmp_path)
    assert done.returncode == 2
    assert "missing.py: no such file" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("options", [("--max-entries", "0"), ("--every", "0")])
def test_wrong_options_are_refused(run, options):
    done = run("print(1)\n", *options)
    assert done.returncode == 2
    assert done.stdout == ""


def test_unwritable_folder_is_refused_at_once(run):
    run.out.write_text("in the way")
    done = run("print(1)\n")
    assert (done.returncode, done.stdout) == (2, "")
    assert "no files can be written there" in done.stderr


def test_folder_that_goes_is_told(run):
    block = f"open({str(run.out)!r}, 'w').close()"
    done = run(f"import sys, torch\ntorch.fake.init()\n{block}\nsys.exit(4)\n")
    assert done.returncode == 4
    assert "note" in done.stderr


def test_missing_module_is_refused(process, tmp_path):
    done = process.neutracer("run", "-m", "no.such.module", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "neutracer: no module named no.such.module\n"


def test_real_torch_on_a_cpu_is_recorded(with_torch, torch, tmp_path):
    if torch.version.cuda is not None:
        pytest.skip("this torch is built for CUDA")
    (tmp_path / "program.py").write_text("import torch\nkept = torch.zeros(3 << 18)\nprint(1)\n")
    done = with_torch.neutracer("run", "program.py", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "1\n")
    assert "neutracer rehearse" in done.stderr
    [file] = tmp_path.glob("neutracer-run/*-exit.pickle")
    [block] = neutracer.load(file).timeline().alive("end")
    assert (block.size, block.stack[0].line) == (3 << 20, 2)


def test_interrupt_is_shown_and_ends_as_python_does(run):
    done = run("import torch\ntorch.fake.init()\ndef step():\n raise KeyboardInterrupt\nstep()\n")
    assert done.returncode == -signal.SIGINT
    assert "in step" in done.stderr
    assert "KeyboardInterrupt" in done.stderr
    assert "exit code 130" in done.stderr
    assert len(written(run, "-exit.pickle")) == 1


TERMINATED = """
import os, signal, threading, time, torch
assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
torch.fake.init()
torch.fake.allocate(7)
{before}
begin = time.monotonic()
os.kill(os.getpid(), signal.SIGTERM)
while time.monotonic() - begin < 30:
    time.sleep(0.01)
"""


def test_termination_leaves_a_report(run):
    done = run(TERMINATED.format(before=""))
    assert done.returncode == -signal.SIGTERM
    (snapshot,) = written(run, "-terminated.pickle")
    assert len(neutracer.load(snapshot).events) == 21
    assert "is being terminated; report:" in done.stderr


def test_termination_comes_while_c_code_keeps_the_lock(run):
    text = TERMINATED.format(before="import re, sys; sys.setswitchinterval(1000)")
    text = text.replace("time.sleep(0.01)", "pass")
    assert run(text).returncode == -signal.SIGTERM


def test_programs_own_handler_of_termination_is_kept(run):
    mine = "signal.signal(signal.SIGTERM, lambda *_: (print('mine'), exit(9)))"
    done = run(TERMINATED.format(before=mine))
    assert (done.returncode, done.stdout) == (9, "mine\n")
    assert len(written(run, "-exit.pickle")) == 1
    assert written(run, "-terminated.pickle") == []


def test_terminated_child_leaves_the_parent_alone(run):
    text = (
        "import os, signal, time, torch\n"
        "torch.fake.init()\n"
        "child = os.fork()\n"
        "if not child:\n"
        "    time.sleep(60)\n"
        "os.kill(child, signal.SIGTERM)\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
    )
    done = run(text)
    assert (done.returncode, done.stdout) == (0, f"{-signal.SIGTERM}\n"), done.stderr


# ---- what a program takes away -----------------------------------------------------------

DAEMON = """
import os, signal, sys, time
os.closerange(3, 4096)
pipes = [os.pipe() for _ in range(6)]
for _, write in pipes:
    os.write(write, b"precious")
os.kill(os.getpid(), signal.SIGUSR2) if "signal" in sys.argv else None
time.sleep(0.3)
for read, _ in pipes:
    os.set_blocking(read, False)
    assert os.read(read, 100) == b"precious"
sys.exit(5)
"""


@pytest.mark.parametrize("arguments", [(), ("signal",)])
def test_descriptors_that_a_daemon_gets_again_are_its_own(run, arguments):
    done = run(DAEMON, arguments=arguments)
    assert done.returncode == 5, done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "text",
    [
        "import os; os.closerange(0, 4096)",
        "import os; os.close(2)",
        "import sys; sys.modules.clear()",
        "import sys; sys.exit(-1)",
        "import sys; sys.exit(300)",
        "import sys\ndef hook(*_):\n    raise SystemExit(9)\nsys.excepthook = hook\n1 / 0",
        "import sys\ndef hook(*_):\n    raise ValueError\nsys.excepthook = hook\n1 / 0",
        "import socket, time; socket.gethostname = time.monotonic = None",
        "import threading; threading.excepthook = threading.Thread = None",
    ],
)
def test_exit_code_is_the_programs_whatever_it_takes_away(run, text):
    for options in ((), ("--json",)):
        done = run(text, *options)
        program = [sys.executable, str(run.out.parent / "program.py")]
        assert done.returncode == subprocess.run(program, capture_output=True).returncode
        assert "neutracer/" not in done.stderr, done.stderr


def test_what_a_program_wrote_is_not_lost_with_a_closed_error_stream(tmp_path):
    (tmp_path / "program.py").write_text("import os; os.close(2); print('mine')")
    buffered = {key: value for key, value in os.environ.items() if key != "PYTHONUNBUFFERED"}
    command = [sys.executable, "-m", "neutracer", "run", "program.py"]
    done = subprocess.run(command, cwd=tmp_path, env=buffered, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "mine\n")


def test_report_that_fails_leaves_the_exit_code(run):
    text = (
        "import sys, neutracer.run.report as ours\nours._report = lambda *_: [][0]\nsys.exit(7)\n"
    )
    done = run(text)
    assert done.returncode == 7
    assert "no report on it: IndexError" in done.stderr


def test_uses_are_observed_for_some_steps(with_torch, torch, tmp_path):
    if torch.version.cuda is not None:
        pytest.skip("this torch is built for CUDA")
    (tmp_path / "program.py").write_text(
        "import torch\n"
        "model = torch.nn.Linear(512, 512)\n"
        "optimizer = torch.optim.SGD(model.parameters())\n"
        "for _ in range(6):\n"
        "    dragged = torch.rand(512, 512)\n"
        "    model(dragged.detach() * 2).sum().backward()\n"
        "    optimizer.step()\n"
        "    optimizer.zero_grad()\n"
    )
    done = with_torch.neutracer("run", "--uses", "2", "program.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    [file] = tmp_path.glob("neutracer-run/*-uses.pickle")
    report = neutracer.drag(file)
    assert len(neutracer.load(file).timeline().steps) == 3
    assert report.moments[0].drag_bytes >= 1 << 20
    assert [line.line for line in report.lines if line.drag_bytes >= 1 << 20] == [5]
    [last] = tmp_path.glob("neutracer-run/*-exit.pickle")
    assert "trace_uses" not in neutracer.load(last).settings
