# SPDX-License-Identifier: Apache-2.0
"""`neutracer attach`: programs that run, and know nothing of it before and after."""

from __future__ import annotations

import ast
import contextlib
import functools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import urllib.request
from pathlib import Path

import pytest
from places import HELPERS
from waiting import PATIENCE, wait_for

import neutracer
import neutracer.run.attach as remote
import neutracer.run.begin as remote_begin
from neutracer.cli.main import main
from neutracer.errors import NeutracerError

TEMPORARY = Path(tempfile.gettempdir())

TORCH = """
from fake_cuda import FakeTorch
fake = FakeTorch(initialised=False)
globals().update({k: v for k, v in vars(fake.module).items() if not k.startswith("__")})
__version__ = "2.11.0"
"""

# What a monitor of metrics asks besides.
METERED = """
nested = {name: {"all": {"current": 4 << 20, "peak": 4 << 20}} for name in (
    "allocated_bytes", "reserved_bytes", "active_bytes", "inactive_split_bytes", "requested_bytes"
)}
cuda.device_count = lambda: 1
cuda.get_allocator_backend = lambda: "native"
cuda.memory_stats_as_nested_dict = lambda device: {**nested, "num_alloc_retries": 0, "num_ooms": 0}
"""

# A training loop whose own thread answers what is asked on standard input.
LOOP = """
import gc, os, queue, signal, sys, threading, time
asked = queue.SimpleQueue()
def read():
    for line in sys.stdin:
        asked.put(line)
threading.Thread(target=read, daemon=True).start()
import torch
torch.fake.init()
print('ready', flush=True)
def step():
    torch.fake.allocate()
    time.sleep(0.001)
def run_out(size):
    try:
        torch.fake.run_out(size << 20)
    except torch.OutOfMemoryError as error:
        return getattr(error, '__notes__', [])
while True:
    step()
    if not asked.empty():
        line = asked.get()
        print(repr(eval(line)), flush=True)
"""

# All that is to be as it was; the last is asked for by changing it, in the main thread.
STATE = (
    "[sorted(thread.name for thread in threading.enumerate()), sys.path, len(sys.meta_path), "
    "[str(callback) for callback in gc.callbacks], str(signal.getsignal(signal.SIGUSR2)), "
    "sorted(globals()), len(os.listdir('/proc/self/fd')), torch.fake.enabled, "
    "'__init__' in vars(torch.OutOfMemoryError), gc.isenabled(), signal.set_wakeup_fd(-1)]"
)


def need_remote_exec():
    if not hasattr(sys, "remote_exec") or not os.path.isdir("/proc/self"):
        pytest.skip("needs sys.remote_exec (Python 3.14), and a /proc")


class Target:
    """A program that runs."""

    def __init__(self, process):
        self.process = process
        self.pid = process.pid
        self.stderr = None

    def line(self):
        return self.process.stdout.readline().strip()

    def say(self, text):
        self.process.stdin.write(f"{text}\n")
        self.process.stdin.flush()

    def ask(self, expression):
        """What an expression is in the program, between two of its steps."""
        self.say(expression)
        return ast.literal_eval(self.line())

    def end(self):
        """What it has written to standard error until now."""
        if self.stderr is None:
            with contextlib.suppress(ProcessLookupError):
                self.process.send_signal(signal.SIGCONT)
            self.process.kill()
            self.stderr = self.process.communicate()[1]
        return self.stderr


@pytest.fixture
def environment(tmp_path):
    """Where the fake torch is found, and temporary files go, in a folder of the test's own; a test
    that starts a program, or attaches to one, needs a Python that can."""
    need_remote_exec()
    (tmp_path / "torch.py").write_text(TORCH + METERED)
    (tmp_path / "tmp").mkdir()
    where = os.pathsep.join(map(str, (tmp_path, HELPERS, *sys.path)))
    return {**os.environ, "PYTHONPATH": where, "TMPDIR": str(tmp_path / "tmp")}


@pytest.fixture
def start(tmp_path, environment):
    """A function that starts a program and waits for its first line."""
    started = []

    def go(text=LOOP, *, command=(sys.executable,), ready="ready", more=None, **options):
        (tmp_path / "program.py").write_text(text)
        target = Target(
            subprocess.Popen(
                [*command, str(tmp_path / "program.py")],
                env={**environment, **(more or {})},
                cwd=tmp_path,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                **options,
            )
        )
        started.append(target)
        if ready:
            assert target.line() == ready, target.end()
        return target

    yield go
    for target in started:
        target.end()
    assert list((tmp_path / "tmp").iterdir()) == []


@pytest.fixture
def attach(tmp_path, environment):
    """A function that runs `neutracer attach` in a folder of its own."""
    caller = tmp_path / "caller"
    caller.mkdir()

    def command(*words):
        # A busy machine may take long for anything; what is to take long says so itself.
        patience = () if "--wait" in words else ("--wait", str(PATIENCE))
        return [sys.executable, "-m", "neutracer", "attach", *map(str, words), *patience]

    def go(*words, more=None):
        return subprocess.run(
            command(*words),
            env={**environment, **(more or {})},
            cwd=caller,
            capture_output=True,
            text=True,
            timeout=600,
        )

    go.command, go.caller = command, caller
    go.written = lambda ending: sorted(caller.glob(f"*/*{ending}"))
    return go


def refused(done):
    """The sentence of a command that could not do what it was asked."""
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert done.stderr.count("\n") == 1
    return done.stderr.removeprefix("neutracer: ").rstrip()


def is_as_before(target, before):
    return wait_for(lambda: target.ask(STATE) == before)


# ---- what is asked for ------------------------------------------------------------------


def test_report_of_a_program_that_runs(start, attach):
    target = start()
    before = target.ask(STATE)
    done = attach(target.pid)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"program.py   process {target.pid} ")
    assert "no history recorded" in done.stdout
    (snapshot,) = attach.written("-report.pickle")
    assert snapshot.parent == attach.caller / "neutracer-run"
    assert f"written   {snapshot.name}\n" in done.stdout
    assert "in        neutracer-run\n" in done.stdout
    assert len(neutracer.load(snapshot).events) == 0
    assert "4.0 MiB" in snapshot.with_suffix(".txt").read_text()
    sidecar = json.loads(Path(f"{snapshot}.json").read_text())
    assert (sidecar["pid"], os.path.basename(sidecar["program"])) == (target.pid, "program.py")
    assert is_as_before(target, before)
    assert target.end() == ""


def test_recording_begins_in_the_middle_and_ends(start, attach):
    target = start()
    before = target.ask(STATE)
    done = attach(target.pid, "--record", "0.3", "--json", "-o", "there")
    assert (done.returncode, done.stderr) == (0, "")
    plain = json.loads(done.stdout)
    assert (plain["schema"], plain["pid"]) == ("neutracer.attach/1", target.pid)
    assert (plain["recorded_s"], plain["watching"], plain["metrics"]) == (0.3, "", "")
    assert "older blocks have no stacks" in plain["notes"][0]
    (device,) = plain["overview"]["devices"]
    assert device["events"] > 0
    assert device["history_complete"] is False
    (snapshot,) = attach.written("-record.pickle")
    assert plain["files"] == [str(snapshot)]
    assert snapshot.parent.name == "there"
    assert len(neutracer.load(snapshot).events) == device["events"]
    assert is_as_before(target, before)
    assert target.end() == ""


def test_recording_says_that_its_history_is_not_complete(start, attach):
    done = attach(start().pid, "--record", "0.1")
    assert "history begins late" in done.stdout
    assert "1 block was there before the first event" in done.stdout


def test_watch_tells_what_comes_until_it_is_ended(start, attach):
    target = start()
    before = target.ask(STATE)
    done = attach(target.pid, "--watch")
    assert (done.returncode, done.stderr) == (0, "")
    assert f"neutracer attach {target.pid} --detach" in done.stdout
    assert target.ask("torch.fake.enabled") is True
    (note,) = target.ask("run_out(48)")
    assert note.startswith("neutracer: ")
    assert len(attach.written("-1.txt")) == 1
    os.kill(target.pid, signal.SIGUSR2)
    assert wait_for(lambda: attach.written("-signal.txt"))
    (snapshot,) = attach.written("-signal.pickle")
    assert len(neutracer.load(snapshot).events) > 0

    done = attach(target.pid, "--detach", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    plain = json.loads(done.stdout)
    assert (plain["ended"], plain["watching"], plain["ooms_seen"]) == (["the watch"], "", 1)
    assert plain["files"] == [str(snapshot)]
    assert is_as_before(target, before)
    files = attach.written("")
    assert target.ask("run_out(40)") == []
    assert attach.written("") == files
    # As before: nobody waits for that signal.
    os.kill(target.pid, signal.SIGUSR2)
    assert target.process.wait(PATIENCE) == -signal.SIGUSR2
    assert target.end() == ""


def test_report_during_a_watch_has_its_history(start, attach):
    target = start()
    assert attach(target.pid, "--watch").returncode == 0
    plain = json.loads(attach(target.pid, "--report", "--json").stdout)
    assert plain["overview"]["devices"][0]["events"] > 0
    assert plain["watching"] == str(attach.caller / "neutracer-run")


def test_last_report_before_a_watch_is_ended(start, attach):
    target = start()
    attach(target.pid, "--watch")
    plain = json.loads(attach(target.pid, "--report", "--detach", "--json").stdout)
    assert plain["overview"]["devices"][0]["events"] > 0
    assert plain["ended"] == ["the watch"]


def test_watch_on_again_after_it_was_ended(start, attach):
    target = start()
    before = target.ask(STATE)
    for _ in range(2):
        assert attach(target.pid, "--watch").returncode == 0
        assert attach(target.pid, "--detach").returncode == 0
    assert is_as_before(target, before)


def test_metrics_are_served_until_they_are_ended(start, attach):
    pytest.importorskip("prometheus_client")
    target = start()
    before = target.ask(STATE)
    done = attach(target.pid, "--metrics", "0", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    url = json.loads(done.stdout)["metrics"]
    page = urllib.request.urlopen(f"{url}/metrics").read().decode()
    assert f'pid="{target.pid}"' in page
    said = refused(attach(target.pid, "--metrics", "0"))
    assert said == f"process {target.pid}: it already serves metrics: {url}"
    done = attach(target.pid, "--detach")
    assert "the metrics" in done.stdout
    assert is_as_before(target, before)
    assert target.end() == ""


def test_one_command_begins_several(start, attach):
    pytest.importorskip("prometheus_client")
    target = start()
    words = ("--report", "--watch", "--metrics", "0", "--record", "0.1", "--json")
    plain = json.loads(attach(target.pid, *words).stdout)
    assert plain["watching"]
    assert plain["metrics"]
    assert [Path(file).stem.rpartition("-")[2] for file in plain["files"]] == ["report", "record"]
    assert target.ask("torch.fake.enabled") is True
    ended = json.loads(attach(target.pid, "--detach", "--json").stdout)["ended"]
    assert ended == ["the watch", "the metrics"]


def test_what_fails_in_the_middle_leaves_nothing_on(start, attach):
    pytest.importorskip("prometheus_client")
    target, other = start(), start()
    port = json.loads(attach(other.pid, "--metrics", "0", "--json").stdout)["metrics"]
    before = target.ask(STATE)
    said = refused(attach(target.pid, "--watch", "--metrics", port.rpartition(":")[2]))
    assert "in use" in said
    assert is_as_before(target, before)


def test_rank_is_told(start, attach):
    target = start(more={"RANK": "3", "WORLD_SIZE": "8"})
    assert "program.py   rank 3 of 8 · process" in attach(target.pid).stdout
    assert "-rank3-" in attach.written("-report.pickle")[0].name


# ---- programs of all kinds --------------------------------------------------------------


def test_program_without_neutracer_gets_that_of_the_command(start, attach, tmp_path):
    # Without its packages, a Python has no neutracer.
    paths = f"import sys; sys.path[:0] = [{str(tmp_path)!r}, {str(HELPERS)!r}]\n"
    target = start(paths + LOOP, command=(sys.executable, "-I", "-S"))
    assert target.ask("__import__('importlib.util').util.find_spec('neutracer') is None") is True
    before = target.ask(STATE)
    assert attach(target.pid, "--record", "0.1").returncode == 0
    assert attach(target.pid, "--watch").returncode == 0
    (note,) = target.ask("run_out(48)")
    assert note.startswith("neutracer: ")
    # Modules that were not needed so far are found too.
    assert target.ask("len(__import__('neutracer.heap.drawing').__path__)") == 1
    if "prometheus_client" in refused(attach(target.pid, "--metrics", "0")):
        assert attach(target.pid, "--detach").returncode == 0
    assert is_as_before(target, before)
    assert target.end() == ""


def test_program_under_run_is_not_watched_twice(start, attach):
    command = (sys.executable, "-m", "neutracer", "run", "-o", "out")
    target = start(command=command)
    said = refused(attach(target.pid, "--watch"))
    assert "'neutracer run' already watches it: reports go to " in said
    assert said.endswith("/out")
    assert refused(attach(target.pid, "--detach")).endswith("has nothing running there")
    plain = json.loads(attach(target.pid, "--json").stdout)
    assert plain["overview"]["devices"][0]["events"] > 0


def test_second_watch_is_refused_and_the_first_stays(start, attach):
    target = start()
    attach(target.pid, "--watch", "-o", "first")
    assert refused(attach(target.pid, "--watch", "-o", "second")) == (
        f"process {target.pid}: 'neutracer attach' already watches it: "
        f"reports go to {attach.caller}/first"
    )
    target.ask("run_out(48)")
    assert {path.parent.name for path in attach.written(".txt")} == {"first"}


def test_child_of_a_fork_is_another_program(start, attach):
    # The child goes on in a loop of its own, without a thread that reads.
    split = "def split():\n    child = os.fork()\n    while not child: step()\n    return child\n"
    target = start(LOOP.replace("while True", f"{split}while True"))
    attach(target.pid, "--watch", "-o", "parent")
    child = target.ask("split()")
    try:
        assert refused(attach(child, "--detach")) == (
            f"process {child}: 'neutracer attach' has nothing running there"
        )
        done = attach(child, "--watch", "-o", "child")
        assert (done.returncode, done.stderr) == (0, "")
        os.kill(child, signal.SIGUSR2)
        assert wait_for(lambda: attach.written("-signal.txt"))
        assert [path.parent.name for path in attach.written("-signal.txt")] == ["child"]
        assert attach(child, "--detach").returncode == 0
        assert attach(target.pid, "--detach").returncode == 0
    finally:
        os.kill(child, signal.SIGKILL)


@pytest.mark.parametrize(
    "taken",
    [
        "signal.signal(signal.SIGUSR2, lambda *_: came.append(1))",
        "import faulthandler; faulthandler.register(signal.SIGUSR2)",
    ],
)
def test_signal_of_the_program_is_left_to_it(start, attach, taken):
    target = start(LOOP.replace("import torch\n", f"came = []\n{taken}\nimport torch\n"))
    before = target.ask(STATE)
    done = attach(target.pid, "--watch", "--json")
    assert json.loads(done.stdout)["notes"] == [
        "the program handles SIGUSR2 itself: the signal writes no report"
    ]
    assert target.ask("str(signal.getsignal(signal.SIGUSR2))") == before[4]
    os.kill(target.pid, signal.SIGUSR2)
    assert target.ask("1 + 1") == 2
    attach(target.pid, "--detach")
    assert is_as_before(target, before)


def test_command_that_is_interrupted_leaves_nothing(start, attach, environment):
    target = start()
    before = target.ask(STATE)
    process = subprocess.Popen(
        attach.command(target.pid, "--record", "1000"),
        env=environment,
        cwd=attach.caller,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        # A shell has what it starts in the background ignore that signal.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert wait_for(lambda: target.ask("torch.fake.enabled"))
    process.send_signal(signal.SIGINT)
    process.communicate()
    assert process.returncode == 130
    assert is_as_before(target, before)
    assert attach.written("") == []
    assert target.end() == ""


def test_program_that_ends_meanwhile_is_told(start, attach, environment):
    target = start()
    process = subprocess.Popen(
        attach.command(target.pid, "--record", "1000"),
        env=environment,
        cwd=attach.caller,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert wait_for(lambda: target.ask("torch.fake.enabled"))
    target.end()
    said = process.communicate(timeout=PATIENCE)[1]
    assert process.returncode == 2
    assert said == f"neutracer: process {target.pid} ended before it answered\n"


# ---- what can't be done, in one sentence each -------------------------------------------


def test_program_of_an_older_python_has_two_other_ways(monkeypatch, capsys):
    monkeypatch.setattr(remote, "python_of", lambda pid: (3, 12))
    assert main(["attach", str(os.getppid())]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"neutracer: process {os.getppid()} runs Python 3.12: ")
    assert f"'kill -USR2 {os.getppid()}'" in said
    assert 'curl -X POST -H "Authorization: Bearer TOKEN" http' in said


def test_older_python_is_told_what_to_do(monkeypatch, capsys):
    monkeypatch.delattr(sys, "remote_exec", raising=False)
    monkeypatch.setattr(remote, "python_of", lambda pid: None)
    assert main(["attach", str(os.getppid())]) == 2
    assert "it needs 3.14 or later; run 'neutracer attach' with the job's Python" in (
        capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("torch", "use", "said"),
    [
        (None, "", "it has not imported torch"),
        ("version.cuda = None\n", "import torch\n", "its torch is built without CUDA"),
        ("", "import torch\n", "it has not used CUDA so far"),
    ],
)
@pytest.mark.parametrize("action", ["--report", "--watch"])
def test_program_without_cuda_is_told(start, attach, tmp_path, torch, use, said, action):
    if torch is not None:
        (tmp_path / "torch.py").write_text(TORCH + torch)
    target = start(f"import time\n{use}print('ready', flush=True)\nwhile True: time.sleep(0.001)\n")
    assert refused(attach(target.pid, action)) == f"process {target.pid}: {said}"
    assert attach.written("") == []
    assert target.end() == ""


def test_missing_process_is_told(start, attach):
    target = start()
    target.end()
    assert refused(attach(target.pid)) == f"there is no process {target.pid}"
    assert refused(attach(1 << 40)) == f"there is no process {1 << 40}"


def test_dead_process_is_told(start, attach):
    target = start("print('ready', flush=True)")
    assert wait_for(lambda: remote.has_ended(target.pid))
    assert refused(attach(target.pid)) == (
        f"process {target.pid} has ended (its parent has not reaped it)"
    )


def test_stopped_process_is_told(start, attach):
    target = start()
    os.kill(target.pid, signal.SIGSTOP)
    os.waitid(os.P_PID, target.pid, os.WSTOPPED | os.WNOWAIT)
    assert refused(attach(target.pid)) == (
        f"process {target.pid} is stopped; continue it with 'kill -CONT {target.pid}'"
    )


def test_another_users_process_is_told(start, attach):
    if os.geteuid():
        pid, owner = 1, "root"
    else:
        pid = start(command=("sh", "-c", "exec sleep 1000"), ready="", user=65534).pid
        owner = Path(f"/proc/{pid}").owner()
    assert refused(attach(pid)) == (
        f"process {pid} belongs to {owner}: only its own user can attach to it"
    )


def test_thread_is_told(start, attach):
    target = start()
    thread = target.ask("[one.native_id for one in threading.enumerate()][1]")
    assert refused(attach(thread)) == f"{thread} is a thread of process {target.pid}, not a process"


def test_program_that_is_not_python_is_told(attach, start):
    sleeping = subprocess.Popen(["sleep", "1000"])
    try:
        assert refused(attach(sleeping.pid)) == (
            f"process {sleeping.pid} is not a Python program, or runs a Python before 3.14"
        )
    finally:
        sleeping.kill()
        sleeping.wait()


def other_python():
    """Another Python on this machine, and its version."""
    for minor in range(10, 30):
        found = shutil.which(f"python3.{minor}")
        if found is not None and minor != sys.version_info.minor:
            return found, minor
    pytest.skip("there is no other Python here")


def test_program_of_another_python_is_told(start, attach):
    python, minor = other_python()
    target = start(
        "import time; print('ready', flush=True); time.sleep(1000)", command=(python, "-I")
    )
    said = refused(attach(target.pid))
    assert said.startswith(f"process {target.pid} runs Python 3.{minor}")
    what = (
        "attaching needs 3.14 or later" if minor < 14 else "run 'neutracer attach' with the job's"
    )
    assert what in said


def test_program_that_lets_nobody_in_is_told(start, attach):
    for target in (
        start(more={"PYTHON_DISABLE_REMOTE_DEBUG": "1"}),
        start(command=(sys.executable, "-X", "disable-remote-debug")),
    ):
        assert refused(attach(target.pid)) == (
            f"process {target.pid} has no remote debugging: it was started with "
            "PYTHON_DISABLE_REMOTE_DEBUG or -X disable-remote-debug, or its Python was built "
            "without it"
        )


def test_python_that_may_look_into_nobody_is_told(start, attach):
    said = refused(attach(start().pid, more={"PYTHON_DISABLE_REMOTE_DEBUG": "1"}))
    assert said.startswith("attaching with this Python is not available: it was built without")


def test_command_itself_is_no_target(capsys):
    need_remote_exec()
    assert main(["attach", str(os.getpid())]) == 2
    assert capsys.readouterr().err == f"neutracer: process {os.getpid()} is this command itself\n"


def test_ptrace_scope_is_told(monkeypatch, tmp_path):
    (tmp_path / "scope").write_text("1\n")
    monkeypatch.setattr(remote, "_YAMA", str(tmp_path / "scope"))
    error = RuntimeError("can't")
    error.__cause__ = PermissionError(1, "Operation not permitted")
    assert "as root, 'sysctl kernel.yama.ptrace_scope=0'" in remote._reason(7, error)
    monkeypatch.setattr(remote, "_YAMA", str(tmp_path / "none"))
    assert "'--cap-add SYS_PTRACE'" in remote._reason(7, error)
    assert remote._reason(7, ValueError("odd")) == "process 7 can't be reached: odd"


def test_program_that_hides_its_memory_is_told(start, attach, tmp_path, environment, request):
    if os.geteuid():
        pytest.skip("root may be anybody; nobody else may")
    nobody = 65534
    # The test's own folders, and a way to them.
    for folder, mode in (
        *((folder, 0o711) for folder in tmp_path.parents if TEMPORARY in folder.parents),
        *((folder, 0o777) for folder in (tmp_path, tmp_path / "tmp", attach.caller)),
    ):
        request.addfinalizer(functools.partial(os.chmod, folder, folder.stat().st_mode))
        folder.chmod(mode)
    # PR_SET_DUMPABLE
    hide = "import ctypes; ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)\n"
    unreadable = "this Python, or neutracer, lies where no other user can reach it"
    try:
        target = start(hide + LOOP, user=nobody)
    except PermissionError:
        pytest.skip(unreadable)
    done = subprocess.run(
        attach.command(target.pid),
        env=environment,
        cwd=attach.caller,
        capture_output=True,
        text=True,
        user=nobody,
    )
    if "Permission denied" in done.stderr:
        pytest.skip(unreadable)
    assert refused(done) == (
        f"the system denies access to process {target.pid}; a container needs "
        "'--cap-add SYS_PTRACE'"
    )


def test_program_with_other_files_is_told(start, attach, tmp_path):
    if os.geteuid():
        pytest.skip("only root may give a program another root")
    target = start()
    target.ask(f"os.chroot({str(tmp_path / 'caller')!r})")
    assert refused(attach(target.pid)) == (
        f"process {target.pid} has another {tmp_path}/tmp, as in a container: "
        f"run 'neutracer attach {target.pid}' there"
    )


def test_program_in_c_code_is_told_and_not_bothered(start, attach):
    wait = "os.read(0, 1)\nprint('back', flush=True)\nwhile True"
    text = LOOP.replace("while True", wait)
    target = start(text.replace("threading.Thread(target=read, daemon=True).start()", ""))
    assert wait_for(lambda: remote._state(target.pid) == "S")
    said = refused(attach(target.pid, "--watch", "--wait", "0.5"))
    assert said == (
        f"the main thread of process {target.pid} has not returned to Python in 0.5 s: it is "
        "waiting, or in C code; --wait SECONDS waits longer"
    )
    target.say("")
    assert target.line() == "back"
    # It can be attached to now, and what was taken back is not done.
    plain = json.loads(attach(target.pid, "--json").stdout)
    assert (plain["watching"], plain["overview"]["devices"][0]["events"]) == ("", 0)
    assert target.end() == ""


def test_unwritable_folder_is_told(start, attach):
    (attach.caller / "out").write_text("in the way")
    target = start()
    for action in ("--report", "--watch", "--record=1"):
        said = refused(attach(target.pid, action, "-o", "out"))
        assert said == f"process {target.pid}: {attach.caller}/out: no files can be written there"
    assert target.ask("torch.fake.enabled") is False


@pytest.mark.parametrize(
    "words",
    [
        ("0",),
        ("-1",),
        ("x",),
        ("7", "--detach", "--watch"),
        ("7", "--record", "0"),
        ("7", "--record", "nan"),
        ("7", "--metrics", "65536"),
        ("7", "--wait", "0"),
        ("7", "--max-entries", "0"),
    ],
)
def test_wrong_options_are_refused(words, capsys):
    with contextlib.suppress(SystemExit):
        assert main(["attach", *words]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert "Python" not in said.err


# ---- the first lines in the other process -----------------------------------------------


def test_request_that_was_taken_back_is_not_answered(tmp_path):
    threads = threading.active_count()
    remote_begin.begin(str(tmp_path), "", "")
    assert threading.active_count() == threads
    assert list(tmp_path.iterdir()) == []
    assert not remote_begin.reply(str(tmp_path / "gone"), {})


def test_neutracer_of_another_build_is_not_imported(tmp_path):
    program = (
        "import importlib.machinery, sys\n"
        f"sys.path.insert(0, {str(Path(remote_begin.__file__).parent)!r})\n"
        "import begin\n"
        "ours = importlib.machinery.EXTENSION_SUFFIXES[0]\n"
        "for suffix in ('.other.so', ours):\n"
        "    try:\n"
        f"        begin._find({str(tmp_path)!r}, suffix)\n"
        "    except begin._NotFoundError as error:\n"
        "        print(error)\n"
    )
    command = [sys.executable, "-I", "-S", "-c", program]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert said[0].startswith("it is not installed, and the command's is compiled for .other")
    assert said[1] == f"it is not installed, and {tmp_path} is not accessible"


def test_other_user_is_named_by_number_where_he_has_no_name():
    assert remote._user(4_000_000_001) == "user 4000000001"


def test_reachable_is_a_process_of_this_user():
    remote.check_reachable(os.getppid())
    with pytest.raises(NeutracerError, match="this command itself"):
        remote.check_reachable(os.getpid())
