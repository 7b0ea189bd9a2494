# SPDX-License-Identifier: Apache-2.0
"""The folder of the compiled hooks under any umask: nobody else can ever write to it."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from neutracer.cli.main import main
from neutracer.errors import UnavailableError
from neutracer.hooks import build as hooks_build
from neutracer.hooks import build as hooks_folder

GOAL = hooks_build.Target(hooks_build.Torch("0.0.0", "cpu", Path("nowhere")), "key", "_torch.so")

# Builds for GOAL, with a compiler that writes "compiled", and says what is where.
BUILD = """
import json, os, stat, sys
from pathlib import Path
from neutracer.hooks import build as hooks_build
from neutracer.hooks import build as hooks_folder
umask, folder = int(sys.argv[1], 8), sys.argv[2]
os.umask(umask)
if sys.argv[3:]:
    hooks_folder._is_own_group = lambda level, gid: sys.argv[3] == "own"
torch = hooks_build.Torch("0.0.0", "cpu", Path("nowhere"))
goal = hooks_build.Target(torch, "key", "_torch.so")
hooks_build.command = lambda goal, output: ["sh", "-c", f"echo compiled > {output}"]
path = hooks_build.build(goal, Path(folder) if folder else None)
if folder:
    os.environ["NEUTRACER_HOOKS"] = folder
found = hooks_build.find(goal)
levels = [path, *path.parents]
modes = {str(level): stat.S_IMODE(level.stat().st_mode) for level in levels}
print(json.dumps([path.read_text(), str(found) == str(path), modes]))
"""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home, with nothing in the environment that points elsewhere."""
    for name in ("NEUTRACER_CACHE", "NEUTRACER_HOOKS", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    made = tmp_path / "home"
    made.mkdir(mode=0o755)
    monkeypatch.setenv("HOME", str(made))
    return made


def build(umask: int, folder: str = "", group: str = "own") -> tuple[str, bool, dict[Path, int]]:
    """What a build in a process with this umask leaves: the module, whether it is found, modes.

    The groups of folders are the user's "own", or those of "others".
    """
    words = [sys.executable, "-c", BUILD, f"{umask:o}", folder, group]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    text, found, modes = json.loads(done.stdout)
    return text.strip(), found, {Path(path): mode for path, mode in modes.items()}


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


UMASKS = pytest.mark.parametrize("umask", [0o000, 0o002, 0o022, 0o077])


@UMASKS
def test_every_level_of_the_cache_is_the_users_own(home: Path, umask: int) -> None:
    before = mode(home)
    text, found, modes = build(umask)
    assert (text, found) == ("compiled", True)
    made = [home / ".cache" / "neutracer" / "hooks" / "key" / "_torch.so"]
    made += [level for level in made[0].parents if home in level.parents]
    assert len(made) == 5
    assert {modes[level] for level in made} == {0o700}
    assert modes[home] == before


@UMASKS
def test_a_named_folder_is_for_those_that_the_umask_allows(tmp_path: Path, umask: int) -> None:
    folder = tmp_path / "image" / "hooks"
    text, found, modes = build(umask, str(folder))
    assert (text, found) == ("compiled", True)
    expected = 0o755 & ~umask
    assert {modes[level] for level in (folder.parent, folder, folder / "key")} == {expected}
    assert modes[folder / "key" / "_torch.so"] == 0o700 | (0o644 & ~umask)


def test_folders_that_a_wide_umask_made_are_closed(home: Path) -> None:
    place = home / ".cache" / "neutracer" / "hooks" / "key"
    place.mkdir(parents=True)
    (home / ".cache").chmod(0o775)
    for level in (place.parents[1], place.parent, place):
        level.chmod(0o777)
    (place / "_torch.so").write_text("anybody's")
    (place / "_torch.so").chmod(0o700)
    assert hooks_build.find(GOAL) is None
    text, found, modes = build(0o002)
    # What lay there could be from anybody.
    assert (text, found) == ("compiled", True)
    assert {modes[level] for level in (place.parents[1], place.parent, place)} == {0o700}
    assert modes[home / ".cache"] == 0o775


def test_what_was_always_closed_is_not_compiled_again(home: Path) -> None:
    build(0o002)
    module = home / ".cache" / "neutracer" / "hooks" / "key" / "_torch.so"
    module.write_text("kept")
    assert build(0o002)[0] == "kept"
    module.chmod(0o770)
    assert build(0o002)[0] == "kept"
    assert build(0o002, group="others")[0] == "compiled"


def test_folder_of_neutracer_cache_keeps_its_mode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = tmp_path / "named"
    (named / "hooks" / "key").mkdir(parents=True)
    named.chmod(0o775)
    for level in (named / "hooks", named / "hooks" / "key"):
        level.chmod(0o777)
    monkeypatch.setenv("NEUTRACER_CACHE", str(named))
    text, found, modes = build(0o002)
    assert (text, found) == ("compiled", True)
    assert modes[named] == 0o775
    assert modes[named / "hooks"] == modes[named / "hooks" / "key"] == 0o700


def test_folder_that_somebody_named_is_refused_and_not_changed(tmp_path: Path) -> None:
    named = tmp_path / "named"
    named.mkdir()
    named.chmod(0o777)
    with pytest.raises(UnavailableError, match="named is writable by others"):
        hooks_build.build(GOAL, named)
    assert mode(named) == 0o777


def test_link_to_an_open_folder_is_refused_and_the_folder_not_changed(
    home: Path, tmp_path: Path
) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    (home / ".cache" / "neutracer").mkdir(parents=True)
    (home / ".cache" / "neutracer" / "hooks").symlink_to(shared)
    with pytest.raises(UnavailableError, match="writable by others"):
        hooks_build.build(GOAL)
    assert mode(shared) == 0o777


def test_folder_of_another_user_is_refused(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build(0o022)
    place = home / ".cache" / "neutracer" / "hooks"
    if os.geteuid() == 0:
        os.chown(place, 12345, 12345)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 12345)
    with pytest.raises(UnavailableError, match=r"(hooks|\.cache) belongs to another user"):
        hooks_build.build(GOAL)
    assert hooks_build.find(GOAL) is None


def test_home_that_takes_no_files_is_named_in_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # Not even root can make a folder there.
    monkeypatch.setenv("HOME", "/proc")
    assert hooks_folder.cache_folder() == Path("/proc/.cache/neutracer/hooks")
    assert hooks_build.find(GOAL) is None
    monkeypatch.setattr("neutracer.hooks.build.target", lambda: GOAL)
    assert main(["setup", "hooks"]) == 2
    said = capsys.readouterr().err
    assert "a folder for the hooks is not available" in said
    assert "to /proc (No such file or directory); set NEUTRACER_CACHE to another folder" in said
    assert main(["setup", "hooks", "-o", "/proc/hooks"]) == 2
    said = capsys.readouterr().err
    assert "to /proc (No such file or directory); choose another folder" in said


def test_module_that_this_user_cannot_read_is_passed_over(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build(0o022)
    build(0o022, str(tmp_path / "image"))
    monkeypatch.setenv("NEUTRACER_HOOKS", str(tmp_path / "image"))
    image = tmp_path / "image" / "key" / "_torch.so"
    assert hooks_build.find(GOAL) == image
    is_file = Path.is_file

    def refused(path: Path) -> bool:
        # As the system says it to all but root.
        if path == image:
            raise PermissionError(13, "Permission denied", str(path))
        return is_file(path)

    monkeypatch.setattr(Path, "is_file", refused)
    assert hooks_build.find(GOAL) == home / ".cache" / "neutracer" / "hooks" / "key" / "_torch.so"


def test_planted_link_in_place_of_the_lock_is_not_followed(home: Path, tmp_path: Path) -> None:
    place = home / ".cache" / "neutracer" / "hooks" / "key"
    place.mkdir(parents=True, mode=0o700)
    place.parent.chmod(0o700)
    (place / "lock").symlink_to(tmp_path / "victim")
    with pytest.raises(UnavailableError, match="lock"):
        hooks_build.build(GOAL)
    assert not (tmp_path / "victim").exists()
