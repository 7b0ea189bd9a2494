# SPDX-License-Identifier: Apache-2.0
"""Hooks are built for everybody: whatever home, disk, compiler and neighbours there are, a
build works or says what to do, and `neutracer setup env` says the same."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from neutracer.cli import setup as env_module
from neutracer.errors import UnavailableError
from neutracer.hooks import build as hooks_build
from neutracer.hooks import build as hooks_compiling
from neutracer.hooks import build as hooks_folder
from neutracer.hooks import shim as hooks_shim
from neutracer.saving import unfinished_name

GOAL = hooks_build.Target(hooks_build.Torch("0.0.0", "cpu", Path("nowhere")), "key", "_torch.so")

# Builds for GOAL with a compiler that is the line of shell in argv[1], $1 its output, and
# says where, or why not, and what `neutracer setup env` has to say before.
BUILD = """
import json, sys
from pathlib import Path
from neutracer.errors import UnavailableError
from neutracer.hooks import build as hooks_build
torch = hooks_build.Torch("0.0.0", "cpu", Path("nowhere"))
goal = hooks_build.Target(torch, "key", "_torch.so")
hooks_build.command = lambda goal, output: ["sh", "-c", sys.argv[1], "sh", str(output)]
told = hooks_build.obstacle(goal)
try:
    print(json.dumps([hooks_build.build(goal).read_text(), told]))
except UnavailableError as error:
    print(json.dumps([str(error), told]))
"""

# The same under every umask, in a fresh home whose .cache the user made under it.
UMASKS = """
import json, os, sys
from pathlib import Path
from neutracer.errors import UnavailableError
from neutracer.hooks import build as hooks_build
from neutracer.hooks import build as hooks_folder
hooks_folder._is_own_group = lambda level, gid: sys.argv[2] == "own"
torch = hooks_build.Torch("0.0.0", "cpu", Path("nowhere"))
goal = hooks_build.Target(torch, "key", "_torch.so")
hooks_build.command = lambda goal, output: ["sh", "-c", f"echo compiled > {output}"]
results = []
for umask in range(0o100):
    home = Path(sys.argv[1], f"{umask:03o}")
    os.umask(0o022)
    home.mkdir()
    os.environ["HOME"] = str(home)
    os.umask(umask)
    (home / ".cache").mkdir()
    told = hooks_build.obstacle(goal)
    try:
        path = hooks_build.build(goal)
        levels = [path, *path.parents][:4]
        modes = sorted({level.stat().st_mode & 0o777 for level in levels})
        results.append([umask, modes, hooks_build.find(goal) == path, told])
    except UnavailableError as error:
        results.append([umask, error.install, hooks_build.find(goal) is None, told])
print(json.dumps(results))
"""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home, with nothing in the environment that points elsewhere."""
    for name in ("NEUTRACER_CACHE", "NEUTRACER_HOOKS", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    made = tmp_path / "home"
    made.mkdir(mode=0o755)
    monkeypatch.setenv("HOME", str(made))
    monkeypatch.setattr(hooks_build, "PREBUILT", tmp_path / "wheel" / "prebuilt")
    return made


def start(compiler: str, *before: str) -> subprocess.Popen[str]:
    words = [*before, sys.executable, "-c", BUILD, compiler]
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def built(compiler: str = "echo compiled > $1", *before: str) -> tuple[str, str]:
    """What a build says, or the module's text; and what was said before it."""
    return said(start(compiler, *before))


def said(process: subprocess.Popen[str]) -> tuple[str, str]:
    out, error = process.communicate(timeout=60)
    assert process.returncode == 0, error
    text, told = json.loads(out)
    return text.strip(), told


def modules(home: Path) -> list[str]:
    place = home / ".cache" / "neutracer" / "hooks" / "key"
    return sorted(path.name for path in place.iterdir())


@pytest.mark.parametrize("group", ["own", "others"])
def test_every_umask_works_or_is_told_what_to_do(tmp_path: Path, group: str) -> None:
    (tmp_path / "homes").mkdir()
    # Whatever umask the tests run under: only the homes are to differ.
    (tmp_path / "homes").chmod(0o755)
    words = [sys.executable, "-c", UMASKS, str(tmp_path / "homes"), group]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout)
    assert len(results) == 64
    for umask, outcome, found_rightly, told in results:
        cache = tmp_path / "homes" / f"{umask:03o}" / ".cache"
        is_open = not umask & 0o002 or (group == "others" and not umask & 0o020)
        reason = f"{cache} is writable by others (fix it with 'chmod go-w')"
        assert found_rightly
        assert told == (f"{reason}; set NEUTRACER_CACHE to another folder" if is_open else "")
        assert outcome == (told if is_open else [0o700])


def test_what_is_above_a_build_is_judged_up_to_the_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    above = tmp_path / "shared"
    image = above / "image"
    (image / "key").mkdir(parents=True, mode=0o755)
    (image / "key" / "_torch.so").write_text("an image's")
    monkeypatch.setenv("NEUTRACER_HOOKS", str(image))
    assert hooks_build.find(GOAL) == image / "key" / "_torch.so"
    # Others could put an image of their own in its place.
    above.chmod(0o777)
    assert hooks_build.find(GOAL) is None
    assert hooks_build.passed_over(GOAL) == [
        f"{above} is writable by others (fix it with 'chmod go-w')"
    ]
    with pytest.raises(UnavailableError, match="shared is writable by others"):
        hooks_build.build(GOAL, image)
    # Not where only owners may, as in /tmp.
    above.chmod(0o1777)
    assert hooks_build.find(GOAL) == image / "key" / "_torch.so"
    if os.geteuid() == 0:
        os.chown(above, 12345, 12345)
        assert hooks_build.find(GOAL) is None


def test_link_is_judged_by_what_it_leads_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared, image = tmp_path / "shared", tmp_path / "image"
    (image / "key").mkdir(parents=True, mode=0o755)
    (image / "key" / "_torch.so").write_text("an image's")
    shared.mkdir()
    shared.chmod(0o777)
    (shared / "link").symlink_to(image)
    monkeypatch.setenv("NEUTRACER_HOOKS", str(shared / "link"))
    # The link may be turned elsewhere: what was judged is what is loaded.
    assert hooks_build.find(GOAL) == image / "key" / "_torch.so"


def test_group_is_others_unless_it_is_the_users_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import grp
    import pwd

    level = tmp_path / "level"
    level.mkdir()
    me = pwd.struct_passwd(("me", "x", os.geteuid(), 4711, "", "/", "/bin/sh"))
    you = pwd.struct_passwd(("you", "x", 99, 4712, "", "/", "/bin/sh"))
    monkeypatch.setattr(pwd, "getpwuid", lambda uid: me)

    def alone(name: str, members: list[str], *others: pwd.struct_passwd) -> bool:
        group = grp.struct_group((name, "x", 4711, members))
        monkeypatch.setattr(grp, "getgrgid", lambda gid: group)
        monkeypatch.setattr(pwd, "getpwall", lambda: [me, *others])
        return hooks_folder._is_own_group(level, 4711)

    assert alone("me", [])
    assert alone("me", ["me", "root"], you)
    assert not alone("me", ["you"])
    assert not alone("users", [])
    assert not alone("me", [], pwd.struct_passwd(("you", "x", 99, 4711, "", "/", "")))
    monkeypatch.setattr(os, "listxattr", lambda path: ["system.posix_acl_access"])
    assert not alone("me", [])


def test_user_without_a_home_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", "")
    text, told = built()
    assert told == "this user has no home; set NEUTRACER_CACHE to another folder"
    assert text == f"a folder for the hooks is not available: {told}"
    assert hooks_build.find(GOAL) is None
    monkeypatch.setenv("NEUTRACER_CACHE", str(tmp_path / "named"))
    assert built() == ("compiled", "")
    assert hooks_build.find(GOAL) == tmp_path / "named" / "hooks" / "key" / "_torch.so"


def test_xdg_cache_home_counts_if_it_is_absolute(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert hooks_folder.cache_folder() == home / ".cache" / "neutracer" / "hooks"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert built() == ("compiled", "")
    assert hooks_build.find(GOAL) == tmp_path / "xdg" / "neutracer" / "hooks" / "key" / "_torch.so"
    monkeypatch.setenv("NEUTRACER_CACHE", "relative")
    monkeypatch.chdir(tmp_path)
    assert built() == ("compiled", "")
    assert hooks_build.find(GOAL) == tmp_path / "relative" / "hooks" / "key" / "_torch.so"


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user can reach."""
    with tempfile.TemporaryDirectory() as made:
        os.chmod(made, 0o755)
        yield Path(made)


@pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("setpriv"), reason="only root becomes another user"
)
def test_home_of_others_is_told(open_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = ("setpriv", "--reuid=12345", "--regid=12345", "--clear-groups")
    tried = [*other, sys.executable, "-c", "import neutracer"]
    if subprocess.run(tried, capture_output=True).returncode:
        pytest.skip("this Python, or neutracer, lies where no other user can reach it")
    monkeypatch.setenv("HOME", str(open_folder))
    text, told = built("echo compiled > $1", *other)
    assert told == (
        f"cannot write to {open_folder} (Permission denied); set NEUTRACER_CACHE to another folder"
    )
    assert text == f"a folder for the hooks is not available: {told}"
    # Root built there first: what root makes for itself is no one else's.
    assert built() == ("compiled", "")
    text, told = built("echo compiled > $1", *other)
    assert told in text
    assert "set NEUTRACER_CACHE to another folder" in told
    # And root does not use what a user could have written.
    (open_folder / "theirs").mkdir()
    os.chown(open_folder / "theirs", 12345, 12345)
    monkeypatch.setenv("NEUTRACER_CACHE", str(open_folder / "theirs"))
    assert built("echo compiled > $1", *other) == ("compiled", "")
    text, told = built()
    assert f"{open_folder / 'theirs'}" in told
    assert "belongs to another user" in told
    assert told in text


@pytest.mark.parametrize("there", ["/", "/usr"])
def test_folder_that_nobody_may_write_to_is_named(
    there: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(dir: Path) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", f"{dir / 'tmp1234'}")

    monkeypatch.setattr(tempfile, "TemporaryDirectory", refused)
    said = hooks_folder.why_not(Path(there, "missing", "hooks"), "key")
    assert said.startswith(f"cannot write to {there} (Permission denied); ")


def test_full_disk_is_told(open_folder: Path) -> None:
    script = f"""
    mount -t tmpfs -o size=1m,mode=755 none {open_folder} || exit 77
    HOME={open_folder} exec "$@"
    """
    if subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode:
        pytest.skip("no file system can be mounted here")
    process = start("echo compiled > $1", "unshare", "-m", "sh", "-c", script, "sh")
    out, _ = process.communicate(timeout=60)
    if process.returncode == 77:
        pytest.skip("no file system can be mounted here")
    text, told = json.loads(out)
    assert told == (
        f"the disk of {open_folder} is full, and a build takes 4 MiB; "
        "set NEUTRACER_CACHE to another folder"
    )
    assert told in text


def test_limit_of_files_is_told() -> None:
    text, told = built("echo compiled > $1", "sh", "-c", 'ulimit -f 100; exec "$@"', "sh")
    assert told.startswith("'ulimit -f' limits files to ")
    assert told in text


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("ld: final link failed: No space left on device", "make room there"),
        ("g++: fatal error: Killed signal terminated program cc1plus", "try again"),
        ("as: fatal error: File size limit exceeded", "'ulimit -f' limits"),
        ("x.cpp:1:1: error: what is this", "error: what is this"),
    ],
)
def test_what_stopped_a_compiler_is_told(home: Path, line: str, reason: str) -> None:
    text, _ = built(f"echo half > $1; echo '{line}' >&2; echo 'collect2: error: 1' >&2; exit 1")
    assert text.startswith(f"a build of the hooks is not available: sh failed: {line}")
    assert reason in text
    assert modules(home) == ["lock"]


def test_compiler_that_is_killed_half_way_leaves_nothing(home: Path) -> None:
    text, _ = built("echo half > $1; kill -9 $$")
    assert text == "a build of the hooks is not available: sh was ended by SIGKILL; try again"
    assert modules(home) == ["lock"]
    assert built() == ("compiled", "")


def test_compiler_that_can_not_be_run_is_told(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match=r"/dev/null can't be run \(Permission denied\)"):
        hooks_compiling.compile_into(tmp_path / "m.so", 0o700, lambda made: ["/dev/null"])
    assert os.listdir(tmp_path) == ["home"]


def test_next_build_removes_what_a_killed_one_left(home: Path) -> None:
    process = start("echo half > $1; echo more > $TMPDIR/cc.s; exec sleep 60 <&- >&- 2>&-")
    place = home / ".cache" / "neutracer" / "hooks" / "key"
    deadline = time.monotonic() + 30
    while not list(place.glob(".neutracer-*/cc.s")):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    (stranger := place / ".neutracer-eeeeeeee-eeeeeeee-00000000.tmp").mkdir()
    assert len(modules(home)) == 3
    assert built() == ("compiled", "")
    assert modules(home) == [stranger.name, "_torch.so", "lock"]


def test_processes_at_once_compile_once(home: Path, tmp_path: Path) -> None:
    compiler = f"echo x >> {tmp_path}/count; sleep 0.3; echo compiled > $1"
    several = [start(compiler) for _ in range(4)]
    assert [said(process) for process in several] == [("compiled", "")] * 4
    assert (tmp_path / "count").read_text() == "x\n"
    assert modules(home) == ["_torch.so", "lock"]


def test_processes_at_once_without_locks_both_work(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(handle: int, operation: int) -> None:
        raise OSError(38, "Function not implemented")

    place = home / ".cache" / "neutracer" / "hooks" / "key"
    place.mkdir(parents=True, mode=0o700)
    other = place / unfinished_name()
    other.mkdir()
    monkeypatch.setattr(hooks_compiling.fcntl, "flock", refused)
    monkeypatch.setattr(
        hooks_build, "command", lambda goal, output: ["sh", "-c", f"echo compiled > {output}"]
    )
    assert hooks_build.build(GOAL).read_text() == "compiled\n"
    # It may be in use.
    assert other.exists()


def test_trying_a_place_leaves_nothing_there(home: Path) -> None:
    assert hooks_folder.why_not(None, "key") == ""
    assert os.listdir(home) == []


def test_env_says_why_there_are_no_hooks(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(env_module, "target", lambda: GOAL)
    monkeypatch.setattr(hooks_build, "command", lambda goal, output: ["true"])
    image = home / "image"
    (image / "key").mkdir(parents=True)
    (image / "key" / "_torch.so").write_text("anybody's")
    (image / "key" / "_torch.so").chmod(0o666)
    monkeypatch.setenv("NEUTRACER_HOOKS", str(image))
    part = env_module._hooks()
    assert part.install.startswith("compiled at first use")
    assert part.absent == "not built yet"
    assert part.note.startswith(f"passed over: {image / 'key' / '_torch.so'} is writable by")
    (home / ".cache").mkdir()
    (home / ".cache").chmod(0o777)
    part = env_module._hooks()
    with pytest.raises(UnavailableError) as caught:
        hooks_build.build(GOAL)
    assert part.install == caught.value.install
    assert stat.S_IMODE((home / ".cache").stat().st_mode) == 0o777

    def missing(goal: object, output: object) -> list[str]:
        raise UnavailableError("a C++ compiler", "install g++")

    monkeypatch.setattr(hooks_build, "command", missing)
    part = env_module._hooks()
    assert part.install == "a C++ compiler is not available: install g++"


def prebuilt(monkeypatch: pytest.MonkeyPatch, text: str = "a wheel's") -> Path:
    """The module for GOAL of a wheel."""
    path = hooks_build.PREBUILT / "key" / "_torch.so"
    path.parent.mkdir(parents=True, mode=0o755)
    path.write_text(text)
    for module in (hooks_shim, env_module):
        monkeypatch.setattr(module, "PREBUILT", hooks_build.PREBUILT)
        monkeypatch.setattr(module, "target", lambda: GOAL)
    return path


def test_hooks_of_a_wheel_are_used_where_no_others_are(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = prebuilt(monkeypatch)
    other = hooks_build.Target(GOAL.torch, "another key", GOAL.file)
    assert hooks_build.find(GOAL) == path
    assert hooks_build.find(other) is None
    part = env_module._hooks()
    assert (part.install, part.note) == ("", "part of this wheel")
    # What was compiled here fits at least as well.
    monkeypatch.setattr(
        hooks_build, "command", lambda goal, made: ["sh", "-c", f"echo compiled > {made}"]
    )
    mine = hooks_build.build(GOAL)
    assert hooks_build.find(GOAL) == mine != path
    shutil.rmtree(home / ".cache")
    path.chmod(0o666)
    assert hooks_build.find(GOAL) is None
    (reason,) = hooks_build.passed_over(GOAL)
    assert reason.startswith(f"{path} is writable by others")


@pytest.mark.parametrize("compiles", [True, False])
def test_hooks_of_a_wheel_that_can_not_be_loaded_are_compiled(
    monkeypatch: pytest.MonkeyPatch, compiles: bool
) -> None:
    path = prebuilt(monkeypatch, "no module")
    monkeypatch.setattr(hooks_shim, "_shim", hooks_shim._Shim())
    monkeypatch.setitem(sys.modules, "torch", ModuleType("torch"))
    monkeypatch.delitem(sys.modules, "neutracer._torch", raising=False)
    monkeypatch.setattr(hooks_shim, "_connected", lambda used: used)
    monkeypatch.setattr(
        hooks_build, "command", lambda goal, made: ["sh", "-c", f"echo compiled > {made}"]
    )
    if compiles:
        used = hooks_shim.load()
        assert used != path
        assert used.read_text() == "compiled\n"
    else:
        with pytest.raises(UnavailableError, match="setup hooks"):
            hooks_shim.load(compile=False)
