# SPDX-License-Identifier: Apache-2.0
"""The hooks: built and found, and what they see of the CPU's allocator."""

from __future__ import annotations

import gc
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from forked import Imported
from places import ROOT
from without_hooks import without_hooks

from neutracer.cli.main import main
from neutracer.cli.setup import environment
from neutracer.errors import UnavailableError
from neutracer.hooks import build as compiling
from neutracer.hooks import build as hooks_build
from neutracer.hooks import shim as hooks
from neutracer.hooks import shim as hooks_cpu
from neutracer.hooks.live import live

torch = pytest.importorskip("torch")


needs_cpu = pytest.mark.skipif(torch.version.cuda is not None, reason="torch is built for CUDA")
needs_linux = pytest.mark.skipif(sys.platform != "linux", reason="the hooks are for Linux")
pytestmark = [needs_linux]


@pytest.fixture(scope="module")
def shim() -> Any:
    """The module `_torch`, compiled once for this user."""
    try:
        return hooks.load()
    except UnavailableError as error:
        without_hooks(str(error))


@pytest.fixture
def watched(shim: Any) -> Iterator[Any]:
    """The calling thread is watched, with eight frames an event, from nothing on."""
    gc.collect()
    hooks.silence()
    hooks.attach(10_000, 8)
    yield shim
    hooks.unwatch_thread()
    hooks.silence()


def followed() -> int:
    return hooks.load().device_stats(-1)["allocated_bytes.all.current"]


def script(with_torch: Imported, text: str, **environment: str) -> str:
    """What a program prints in a process that has torch and none of neutracer."""
    done = with_torch.run(text, cwd=ROOT / "tests", **environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


# ---- what is seen ----------------------------------------------------------------------


@needs_cpu
def test_blocks_are_followed_until_freed(watched: Any) -> None:
    before = followed()
    first, second = torch.empty(1000), torch.empty(50_000, dtype=torch.uint8)
    assert followed() - before == 4000 + 50_000
    del first
    assert followed() - before == 50_000
    del second
    assert followed() == before
    assert hooks.load().device_stats(-1)["allocated_bytes.all.peak"] >= before + 54_000


@needs_cpu
def test_events_have_the_lines_of_their_makers(watched: Any) -> None:
    def maker() -> Any:
        return torch.empty(77_777, dtype=torch.uint8)

    here = sys._getframe().f_lineno
    keep = maker()
    snap = live(10_000, 8)
    (event,) = [row for row in snap.events if row.action == "alloc" and row.size == 77_777]
    names = [(frame.name, frame.line) for frame in event.stack]
    assert names[0] == ("maker", here - 2)
    assert names[1] == ("test_events_have_the_lines_of_their_makers", here + 1)
    assert len(names) == 8
    assert event.stack[0].filename == __file__
    del keep


@needs_cpu
def test_backward_is_seen_too(watched: Any) -> None:
    weight = torch.randn(100, 100, requires_grad=True)
    before = followed()
    (weight @ weight).sum().backward()
    assert followed() - before == 40_000
    assert weight.grad is not None


@needs_cpu
def test_blocks_are_those_that_pytorchs_profiler_tells(watched: Any) -> None:
    def program() -> None:
        weight = torch.nn.Parameter(torch.ones(64, 48))
        for size in (3, 5, 7):
            loss = (torch.ones(size, 64) @ weight).relu().sum()
            loss.backward()
        with torch.no_grad():
            torch.nn.functional.conv2d(weight[None, None], torch.ones(1, 1, 3, 3)).sort()

    program()  # what PyTorch keeps from its first time is there
    start = len(live(10_000, 0).events)
    program()
    sign = {"alloc": 1, "free_completed": -1}
    events = list(live().events)[start:]
    ours = [sign[event.action] * event.size for event in events if event.action in sign]
    with torch.profiler.profile(profile_memory=True, acc_events=True) as profiled:
        program()
    told = [one for one in profiled.profiler.kineto_results.events() if one.name() == "[memory]"]
    assert ours == [one.nbytes() for one in sorted(told, key=lambda one: one.start_ns())]
    assert len(ours) > 50
    assert sum(ours) == 0


@needs_cpu
def test_other_threads_are_seen_on_request(watched: Any) -> None:
    sizes: list[int] = []

    def work(watch: bool) -> None:
        if watch:
            hooks.watch_thread()
        before = followed()
        keep = torch.empty(3_000, dtype=torch.uint8)
        sizes.append(followed() - before)
        del keep
        hooks.unwatch_thread()

    for watch in (False, True):
        thread = threading.Thread(target=work, args=(watch,))
        thread.start()
        thread.join()
    assert sizes == [0, 3_000]
    state = hooks.state()
    assert state is not None
    assert state.threads == 1


@needs_cpu
def test_silence_pushes_nothing(watched: Any) -> None:
    torch.empty(100)
    hooks.silence()
    silent = watched.state()["rings"][0][1]
    torch.empty(100)
    assert watched.state()["rings"][0][1] == silent
    hooks.attach(1_000, 4)
    torch.empty(100)
    assert watched.state()["rings"][0][1] == silent + 2
    assert watched.state()["frames"] == 4


@needs_cpu
def test_attaching_again_disturbs_nothing(watched: Any) -> None:
    keep = torch.empty(4321, dtype=torch.uint8)
    before = followed()
    hooks.attach(5_000, 2)
    assert followed() == before
    assert watched.state()["frames"] == 2
    del keep


@pytest.mark.parametrize(("events", "frames"), [(0, 0), (10, -1), (10, 65)])
def test_wrong_arguments_are_refused(shim: Any, events: int, frames: int) -> None:
    with pytest.raises(ValueError):
        hooks.attach(events, frames)


def test_shim_refuses_what_is_no_number(shim: Any) -> None:
    for function in (shim.start, shim.keep_frames):
        with pytest.raises(ValueError, match="0 to 64"):
            function(65)
    with pytest.raises(OverflowError):
        shim.attach(-1)
    with pytest.raises(TypeError):
        shim.device_stats("0")
    assert shim.device_stats(4321) is None


@needs_cpu
def test_too_many_events_leave_what_was(watched: Any) -> None:
    keep = torch.empty(999, dtype=torch.uint8)
    before = followed()
    with pytest.raises(UnavailableError, match="no memory for a ring"):
        hooks.attach(1 << 58, 0)
    hooks.attach(10_000, 8)
    del keep
    assert followed() <= before


# ---- the profiler's place --------------------------------------------------------------


@needs_cpu
def test_profiler_finds_its_place_free(watched: Any) -> None:
    before = torch.empty(10_000)
    with torch.profiler.profile(profile_memory=True, acc_events=True) as profiled:
        during = torch.empty(20_000)
    after = torch.empty(30_000)
    names = {event.name for event in profiled.events()}
    assert "aten::empty" in names
    assert max(event.cpu_memory_usage for event in profiled.key_averages()) == 80_000
    # What came before can't be told to be alive still; what comes after is seen.
    assert followed() == 120_000
    del before, during, after


@needs_cpu
def test_failing_profiler_gives_the_place_back(watched: Any) -> None:
    with pytest.raises(TypeError):
        torch.autograd.profiler._enable_profiler()
    keep = torch.empty(500)
    assert followed() >= 2_000
    del keep


@needs_cpu
def test_running_profiler_is_not_disturbed(shim: Any) -> None:
    hooks.unwatch_thread()
    with (
        torch.profiler.profile(profile_memory=True, acc_events=True),
        pytest.raises(UnavailableError, match="profiler is running"),
    ):
        hooks.attach(10_000, 0)
    assert torch.autograd._profiler_enabled() is False


@needs_cpu
def test_wrappers_go_with_the_last_watch(watched: Any) -> None:
    profiler = torch.autograd.profiler
    assert profiler._enable_profiler is hooks_cpu._enable
    kept = profiler._enable_profiler, profiler._disable_profiler
    hooks.unwatch_thread()
    assert profiler._enable_profiler is torch.autograd._enable_profiler
    assert profiler._disable_profiler is torch.autograd._disable_profiler
    # Who took the wrappers with them still gets PyTorch's functions.
    with pytest.raises(TypeError):
        kept[0]()


# ---- found, built, refused -------------------------------------------------------------


def test_environment_tells_of_the_hooks(shim: Any) -> None:
    rows = {part.name: part for part in environment("0").parts}
    assert torch.__version__ in rows["Hooks"].version


def test_other_torches_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Path("torch")
    monkeypatch.delenv("NEUTRACER_HOOKS_UNTRIED", raising=False)
    for version, backend, reason in [
        (
            "2.10.0",
            "cuda",
            "^use of the hooks .* is not available: they were tested on torch 2.11",
        ),
        ("2.16.0", "cpu", r"2\.14, 2\.15 \(cpu\) and this is 2\.16\.0; PyTorch's own"),
        ("2.11.0", "hip", "not hip"),
    ]:
        other = hooks_build.Torch(version, backend, folder)
        monkeypatch.setattr(hooks_build, "installed_torch", lambda other=other: other)
        with pytest.raises(UnavailableError, match=reason):
            hooks_build.target()
    monkeypatch.setenv("NEUTRACER_HOOKS_UNTRIED", "1")
    untried = hooks_build.Torch("9.9.0", "cuda", folder)
    monkeypatch.setattr(hooks_build, "installed_torch", lambda: untried)
    assert hooks_build.target().key.startswith("torch9.9.0-")


def refused(with_torch: Imported, prepare: str) -> str:
    """Why the hooks are refused in a process that has done `prepare` first."""
    return script(
        with_torch,
        "import ctypes, torch\nfrom neutracer.errors import UnavailableError\n"
        f"from neutracer.hooks import shim as hooks\n{prepare}\n"
        "try:\n    hooks.load()\nexcept UnavailableError as error:\n    print(error)",
    )


@needs_cpu
def test_allocator_that_reports_otherwise_is_refused(shim: Any, with_torch: Imported) -> None:
    # PyTorch's allocator for mobiles has guards around each block, and counts them in.
    text = refused(
        with_torch,
        f"c10 = ctypes.CDLL({str(hooks_build.installed_torch().folder / 'lib' / 'libc10.so')!r})\n"
        "other = c10._ZN3c1028GetDefaultMobileCPUAllocatorEv\n"
        "other.restype = ctypes.c_void_p\n"
        "c10._ZN3c1015SetCPUAllocatorEPNS_9AllocatorEh(ctypes.c_void_p(other()), 255)",
    )
    assert re.fullmatch(
        r"use of the hooks on PyTorch's allocator is not available: torch \S+ is not "
        r"supported: its CPU allocator is another one: a new block of 12345 bytes is reported as "
        r"12\d{3} bytes; PyTorch's own Python entry points are used instead\n",
        text,
    )


@needs_cpu
def test_trial_of_the_allocator_bears_other_threads(watched: Any) -> None:
    profiling, ended = threading.Event(), threading.Event()

    def allocate_under_the_profiler() -> None:
        with torch.profiler.profile(profile_memory=True, acc_events=True):
            profiling.set()
            while not ended.is_set():
                torch.empty(100)

    thread = threading.Thread(target=allocate_under_the_profiler)
    thread.start()
    profiling.wait(60)
    before = followed()
    keep = torch.empty(50)
    try:
        assert {watched.differs() for _ in range(10)} == {""}
        # What the trial allocates is not told of the program.
        assert followed() - before == 200
    finally:
        ended.set()
        thread.join()
    del keep


@needs_cpu
@pytest.mark.parametrize(
    "prepare",
    [
        "del torch.autograd.profiler._enable_profiler",
        "torch.autograd.profiler.profile._start_trace = lambda self: None",
    ],
)
def test_profiler_that_starts_otherwise_is_refused(
    shim: Any, with_torch: Imported, prepare: str
) -> None:
    text = refused(with_torch, prepare)
    assert "PyTorch's profiler does without torch.autograd.profiler._enable_profiler; " in text


@needs_cpu
def test_other_interface_of_c10_is_named_by_the_compiler(shim: Any, tmp_path: Path) -> None:
    goal = hooks_build.target()
    header = tmp_path / "c10" / "core" / "Allocator.h"
    header.parent.mkdir(parents=True)
    theirs = (goal.torch.folder / "include" / "c10" / "core" / "Allocator.h").read_text()
    reporting = theirs.index("virtual void reportMemoryUsage(")
    changed = theirs[reporting:].replace("size_t total_reserved,", "", 1)
    header.write_text(theirs[:reporting] + changed)
    words = hooks_build.command(goal, tmp_path / "out.so")
    words = [word for word in words if not word.endswith(".cpp") and word != "-shared"]
    words[1:1] = ["-isystem", str(tmp_path), "-fsyntax-only"]
    source = str(ROOT / "csrc" / "torch" / "nt_torch_cpu.cpp")
    done = subprocess.run([*words, source], capture_output=True, text=True)
    assert done.returncode != 0
    said = compiling._last_words(done.stderr)
    assert "c10 reports a block by other things than its address, its size" in said


def test_torch_for_cuda_without_a_device_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", "13.2")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(hooks, "load", lambda: pytest.fail("compiled for nothing"))
    with pytest.raises(UnavailableError) as caught:
        live()
    assert str(caught.value) == (
        "a CUDA device in this process is not available: torch finds none, and a torch built "
        "for CUDA does not report its CPU allocations"
    )


def test_module_for_another_torch_is_refused(shim: Any, with_torch: Imported) -> None:
    state = hooks.state()
    assert state is not None
    text = script(
        with_torch,
        "import torch\nfrom pathlib import Path\nfrom neutracer._native import load_hooks\n"
        "torch.__version__ = '9.9'\n"
        f"try:\n    load_hooks(Path({state.built_at!r}))\n"
        "except ImportError as error:\n    print(error)",
    )
    assert text == f"the hooks were built for torch {shim.built_for}, and this is torch 9.9\n"


def test_folders_of_others_are_not_trusted(
    shim: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = hooks.state()
    assert state is not None
    goal = hooks_build.target()
    place = tmp_path / "hooks" / goal.key
    place.mkdir(parents=True)
    tmp_path.chmod(0o700)
    (tmp_path / "hooks").chmod(0o700)
    place.chmod(0o700)
    shutil.copy(state.built_at, place / goal.file)
    (place / goal.file).chmod(0o700)
    monkeypatch.setenv("NEUTRACER_CACHE", str(tmp_path))
    monkeypatch.delenv("NEUTRACER_HOOKS", raising=False)
    assert hooks_build.find(goal) == place / goal.file
    place.chmod(0o777)
    assert hooks_build.find(goal) is None


def test_missing_compiler_is_said_once(with_torch: Imported, tmp_path: Path) -> None:
    text = script(
        with_torch,
        "import torch, warnings\nfrom neutracer.hooks import shim as hooks\n"
        "with warnings.catch_warnings(record=True) as said:\n"
        "    warnings.simplefilter('always')\n"
        "    print(hooks.try_load(), hooks.try_load(), hooks.state())\n"
        "print(len(said), said[0].message)",
        PATH=str(tmp_path),
        CXX="",
        NEUTRACER_CACHE=str(tmp_path),
        NEUTRACER_HOOKS="",
    )
    first, second = text.splitlines()
    assert first == "None None None"
    assert second.startswith("1 neutracer uses PyTorch's Python entry points")
    assert "install g++" in second


def test_failing_compiler_is_quoted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    compiler = tmp_path / "c++"
    compiler.write_text("#!/bin/sh\necho 'x.cpp:1: error: no such thing' >&2\nexit 1\n")
    compiler.chmod(0o700)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CXX", str(compiler))
        assert main(["setup", "hooks", "-o", str(tmp_path)]) == 2
    assert "error: no such thing" in capsys.readouterr().err
    assert [path.name for path in tmp_path.glob("*/*")] == ["lock"]


def test_build_command_says_where_they_are(shim: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["setup", "hooks"]) == 0
    said, path = capsys.readouterr().out.splitlines()
    assert said.startswith(f"hooks for torch {torch.__version__} ")
    assert said.endswith("existed already")
    assert Path(path).is_file()


def test_command_is_one_call(shim: Any, tmp_path: Path) -> None:
    words = hooks_build.command(hooks_build.target(), tmp_path / "out.so")
    sources = [word for word in words if word.endswith(".cpp")]
    assert len(sources) == len(list((ROOT / "csrc" / "torch").glob("*.cpp")))
    assert f'-DNT_TORCH_BUILT_FOR="{torch.__version__}"' in words
    assert "-lc10" in words


def test_key_changes_with_the_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = hooks_build.target().key
    shutil.copytree(ROOT / "csrc" / "torch", tmp_path / "torch")
    for name in hooks_build._HEADERS:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / "csrc" / name, tmp_path / name)
    monkeypatch.setattr(hooks_build, "source_folder", lambda: tmp_path)
    assert hooks_build.target().key == before
    header = tmp_path / "core" / "trace" / "nt_live_api.h"
    header.write_text(header.read_text() + "\n")
    assert hooks_build.target().key != before


def test_key_tells_builds_of_one_version_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = hooks_build.installed_torch().folder
    commit = "git_version = '{}'\ncuda: Optional[str] = {}\nhip: Optional[str] = None\n"
    keys = set()
    for number, (tree, cuda) in enumerate([("a1", "None"), ("a1", "'13.0'"), ("b2", "'13.0'")]):
        home = tmp_path / str(number)
        home.mkdir()
        (home / "version.py").write_text("__version__ = '2.13.0'\n" + commit.format(tree, cuda))
        (home / "include").symlink_to(folder / "include")
        spec = SimpleNamespace(origin=str(home / "__init__.py"))
        monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(__spec__=spec))
        keys.add(hooks_build.target().key)
    assert len(keys) == 3


def test_headers_of_conda_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    headers = tmp_path / "targets" / "x86_64-linux" / "include"
    headers.mkdir(parents=True)
    (headers / "cuda_runtime_api.h").touch()
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "none"))
    torch = hooks_build.Torch("2.13.0", "cuda", tmp_path / "site" / "torch")
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "other"))
    with pytest.raises(UnavailableError, match="headers"):
        hooks_build._cuda_includes(torch)
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    assert hooks_build._cuda_includes(torch) == ["-isystem", str(headers)]


@pytest.mark.parametrize(
    ("cuda", "order"),
    [
        ("13.0", ["cu13", "cuda_runtime"]),
        ("12.8", ["cuda_runtime", "cu13"]),
        ("14.1", ["cuda_runtime", "cu13"]),
    ],
)
def test_headers_of_pip_are_those_of_torchs_cuda(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cuda: str, order: list[str]
) -> None:
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "none"))
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "other"))
    torch = hooks_build.Torch("2.13.0", "cuda", tmp_path / "torch", f"{cuda} 70d99e99")
    nvidia = tmp_path / "nvidia"
    for name in reversed(order):
        headers = nvidia / name / "include"
        headers.mkdir(parents=True)
        (headers / "cuda_runtime_api.h").touch()
        assert hooks_build._cuda_includes(torch)[:2] == ["-isystem", str(headers)]
    compilers = nvidia / "cuda_nvcc" / "include"
    compilers.mkdir(parents=True)
    words = hooks_build._cuda_includes(torch)
    folders = [nvidia / order[0] / "include", compilers, nvidia / order[1] / "include"]
    assert words[1::2] == [str(folder) for folder in folders]
    assert words[::2] == ["-isystem", "-idirafter", "-idirafter"]


# ---- the part that needs CUDA ----------------------------------------------------------


def test_cuda_part_type_checks_without_cuda(tmp_path: Path) -> None:
    toolkit = Path(os.environ.get("CUDA_HOME") or "/usr/local/cuda", "include")
    compiler = shutil.which("g++")
    if compiler is None or not (toolkit / "cuda_runtime_api.h").exists():
        pytest.skip("needs g++ and the CUDA toolkit's headers")
    goal = hooks_build.target()
    if goal.torch.backend == "cpu":
        # What a torch for the CPU lacks of the headers holds nothing that is needed here.
        stand_in = tmp_path / "c10" / "cuda" / "impl" / "cuda_cmake_macros.h"
        stand_in.parent.mkdir(parents=True)
        stand_in.touch()
    words = [word for word in hooks_build.flags(goal.torch) if word != "-shared"]
    words += ['-DNT_TORCH_BUILD_KEY=""', "-fsyntax-only", "-Wall", "-Wextra", "-Werror"]
    words += [f"-I{ROOT / 'csrc' / 'torch'}", f"-I{ROOT / 'csrc' / 'core'}"]
    for folder in (tmp_path, goal.torch.folder / "include", toolkit):
        words += ["-isystem", str(folder)]
    words += ["-isystem", hooks_build.sysconfig.get_paths()["include"]]
    for name in ("nt_torch_cuda.cpp", "nt_torch_module.cpp"):
        done = subprocess.run(
            [compiler, *words, str(ROOT / "csrc" / "torch" / name)],
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
