# SPDX-License-Identifier: Apache-2.0
"""Files that appear whole or not at all."""

from __future__ import annotations

import errno
import io
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from small_snapshots import dumped, one_program

import neutracer
from neutracer import UnavailableError, saving
from neutracer.saving import atomic_file


@pytest.fixture
def snap():
    return neutracer.load(dumped(one_program()))


@pytest.mark.parametrize(
    ("ending", "magic"),
    [("", b"\x80\x04"), (".gz", b"\x1f\x8b"), (".xz", b"\xfd7zXZ"), (".zst", b"\x28\xb5\x2f\xfd")],
)
def test_ending_decides_the_compression(snap, ending, magic, tmp_path):
    if ending == ".zst" and sys.version_info < (3, 14):
        pytest.importorskip("zstandard")
    path = tmp_path / f"saved.pickle{ending}"
    snap.save(path)
    assert path.read_bytes().startswith(magic)
    assert neutracer.load(path).to_dict() == snap.to_dict()
    assert os.listdir(tmp_path) == [path.name]


def test_same_snapshot_makes_the_same_file(snap, tmp_path):
    for name in ("a.gz", "b.gz"):
        snap.save(tmp_path / name)
    assert (tmp_path / "a.gz").read_bytes() == (tmp_path / "b.gz").read_bytes()


def test_failure_leaves_the_old_file(tmp_path):
    path = tmp_path / "file"
    path.write_text("old")

    def broken_save():
        with atomic_file(path) as file:
            file.write(b"new")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        broken_save()
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["file"]


def test_nothing_appears_before_the_end(tmp_path):
    path = tmp_path / "file"
    with atomic_file(path) as file:
        file.write(b"new")
        assert not path.exists()
    assert path.read_bytes() == b"new"


def test_links_keep_pointing_there(snap, tmp_path):
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_text("old")
    link.symlink_to(target)
    snap.save(link)
    assert link.is_symlink()
    assert neutracer.load(target).to_dict() == snap.to_dict()


def test_mode_follows_the_umask(snap, tmp_path):
    before = os.umask(0o027)
    try:
        snap.save(tmp_path / "file")
        assert os.umask(0o027) == 0o027
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o640


def test_missing_folders_are_os_errors(snap, tmp_path):
    with pytest.raises(FileNotFoundError):
        snap.save(tmp_path / "none" / "file")


@pytest.mark.parametrize(("ending", "missing"), [("xz", "lzma"), ("zst", "zstandard")])
def test_missing_compressors_leave_nothing(snap, ending, missing, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, missing, None)
    monkeypatch.setitem(sys.modules, "compression", None)
    with pytest.raises(UnavailableError, match="compression"):
        snap.save(tmp_path / f"file.{ending}")
    assert os.listdir(tmp_path) == []


def refuse_to_replace(source, target):
    raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), source, None, target)


def test_devices_and_pipes_are_not_replaced(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        with atomic_file(pipe) as file:
            file.write(b"told")
        assert os.read(reader, 100) == b"told"
    finally:
        os.close(reader)
    assert stat.S_ISFIFO(os.stat(pipe).st_mode)
    assert os.listdir(tmp_path) == ["pipe"]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full here")
def test_full_device_is_named_and_kept(snap):
    before = os.stat("/dev/full").st_rdev
    with pytest.raises(OSError, match="No space left") as caught:
        snap.save("/dev/full")
    assert caught.value.filename == "/dev/full"
    assert os.stat("/dev/full").st_rdev == before


@pytest.mark.parametrize(
    ("name", "number"), [("", errno.ENOENT), ("folder", errno.EISDIR), ("no/file", errno.ENOENT)]
)
def test_error_has_the_name_given(snap, name, number, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    os.mkdir("folder")
    with pytest.raises(OSError) as caught:
        snap.save(name)
    assert (caught.value.errno, caught.value.filename) == (number, name)
    assert os.listdir(tmp_path) == ["folder"]


def test_failure_of_the_last_step_is_named(snap, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "replace", refuse_to_replace)
    with pytest.raises(OSError) as caught:
        snap.save(tmp_path / "file")
    assert caught.value.filename == str(tmp_path / "file")
    assert os.listdir(tmp_path) == []


def test_name_may_be_bytes(snap, tmp_path):
    name = os.fsencode(tmp_path) + b"/odd\xff.pickle.gz"
    snap.save(name)
    assert neutracer.load(os.fsdecode(name)).to_dict() == snap.to_dict()


def write(path, text="new"):
    with atomic_file(path) as file:
        file.write(text.encode())


# Writers that are killed at random moments; each file that can be met must be whole.
KILLS = """
import os, random, signal, sys, time
from neutracer.saving import atomic_file
folder, kills, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
path, size, when = folder + "/file", 64 * 4096, random.Random(seed)

def write(byte):
    with atomic_file(path) as file:
        for _ in range(64):
            file.write(bytes([byte]) * 4096)

left = 0
begun, begins = os.pipe()
for kill in range(kills):
    writer = os.fork()
    if not writer:
        os.write(begins, b".")
        while True:
            write(kill % 251)
    os.read(begun, 1)
    time.sleep(when.uniform(0.0, 0.02))
    os.kill(writer, signal.SIGKILL)
    os.waitpid(writer, 0)
    if os.path.exists(path):
        found = open(path, "rb").read()
        assert found == found[:1] * size, (kill, len(found))
    unfinished = [name for name in os.listdir(folder) if name != "file"]
    # Each writer has removed what those before it left.
    assert len(unfinished) <= 1, unfinished
    left += len(unfinished)
write(0)
assert os.listdir(folder) == ["file"], os.listdir(folder)
print(left)
"""


@pytest.mark.parametrize("seed", range(3))
def test_killed_writers_leave_neither_half_a_file_nor_others(seed, tmp_path):
    words = [sys.executable, "-c", KILLS, str(tmp_path), "60", str(seed)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    # Some were killed in the middle.
    assert int(done.stdout) > 5


def test_files_of_live_writers_stay(tmp_path):
    with atomic_file(tmp_path / "slow") as slow:
        slow.write(b"begun")
        write(tmp_path / "quick")
        script = "from neutracer.recording.sidecar import write_text as w; w({!r}, 'x')"
        path = str(tmp_path / "other")
        subprocess.run([sys.executable, "-c", script.format(path)], check=True)
    assert (tmp_path / "slow").read_bytes() == b"begun"
    assert sorted(os.listdir(tmp_path)) == ["other", "quick", "slow"]


def leftover(folder, *marks):
    path = folder / f".neutracer-{'-'.join(marks)}-00000000.tmp"
    path.write_text("left")
    return path


def test_only_what_is_surely_ours_is_removed(tmp_path):
    kernel, machine = saving._marks()
    gone = [leftover(tmp_path, kernel, "f" * 8), leftover(tmp_path, "f" * 8, machine)]
    strange = leftover(tmp_path, "e" * 8, "e" * 8)
    others = [tmp_path / "file.pickle.0123abcd.tmp", tmp_path / ".neutracer-notes.tmp"]
    for path in others:
        path.write_text("somebody's")
    if os.geteuid() == 0:
        others.append(leftover(tmp_path, kernel, machine))
        os.chown(others[-1], 12345, 12345)
    write(tmp_path / "file")
    assert not any(path.exists() for path in gone)
    assert all(path.exists() for path in [strange, *others])


def test_link_in_place_of_a_leftover_is_not_followed(tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("kept")
    kernel, machine = saving._marks()
    (tmp_path / f".neutracer-{kernel}-{machine}-00000000.tmp").symlink_to(victim)
    write(tmp_path / "file")
    assert victim.read_text() == "kept"


@pytest.mark.parametrize("length", [240, 255])
def test_names_may_have_255_bytes(length, tmp_path):
    path = tmp_path / ("n" * length)
    write(path)
    write(path, "again")
    assert path.read_text() == "again"
    assert os.listdir(tmp_path) == [path.name]


def test_longer_names_and_loops_are_refused_at_once(tmp_path):
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    for name, number in (("n" * 256, errno.ENAMETOOLONG), ("a", errno.ELOOP)):
        with pytest.raises(OSError) as caught, atomic_file(tmp_path / name):
            pytest.fail("nothing is to be written")
        assert (caught.value.errno, caught.value.filename) == (number, str(tmp_path / name))
    assert sorted(os.listdir(tmp_path)) == ["a", "b"]


def test_link_to_nothing_makes_what_it_names(tmp_path):
    (tmp_path / "link").symlink_to("target")
    write(tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "target").read_text() == "new"


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o755, 0o666])
def test_mode_of_a_file_stays(mode, tmp_path):
    path = tmp_path / "file"
    path.write_text("old")
    path.chmod(mode)
    with atomic_file(path) as file:
        # Nobody else reads it while it is made, either.
        made = next(one for one in tmp_path.iterdir() if one != path)
        assert stat.S_IMODE(made.stat().st_mode) == 0o600
        file.write(b"new")
    assert stat.S_IMODE(path.stat().st_mode) == mode


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_owner_of_a_file_stays(tmp_path):
    path = tmp_path / "file"
    path.write_text("old")
    os.chown(path, 12345, 23456)
    write(path)
    assert (path.stat().st_uid, path.stat().st_gid) == (12345, 23456)


def test_group_that_can_not_be_kept_lends_no_rights(tmp_path, monkeypatch):
    path = tmp_path / "file"
    path.write_text("old")
    path.chmod(0o664)
    facts = list(path.stat())
    facts[stat.ST_GID] += 1
    old = os.stat_result(facts)

    def refused(*arguments):
        raise PermissionError(errno.EPERM, "not permitted")

    monkeypatch.setattr(os, "fchown", refused)
    with open(tmp_path / "made", "wb") as file:
        saving._inherit(file.fileno(), str(path), old)
    assert stat.S_IMODE((tmp_path / "made").stat().st_mode) == 0o644


def test_extended_attributes_of_a_file_stay(tmp_path):
    path = tmp_path / "file"
    path.write_text("old")
    try:
        os.setxattr(path, "user.origin", b"a colleague")
    except OSError:
        pytest.skip("this file system keeps none")
    write(path)
    assert os.getxattr(path, "user.origin") == b"a colleague"


def test_file_that_may_not_be_written_is_not_replaced(tmp_path, monkeypatch):
    path = tmp_path / "file"
    path.write_text("old")
    path.chmod(0o444)
    # As the system says it to all but root.
    monkeypatch.setattr(os, "access", lambda *arguments, **options: False)
    monkeypatch.setattr(os, "supports_effective_ids", {os.access})
    with pytest.raises(PermissionError) as caught:
        write(path)
    assert caught.value.filename == str(path)
    assert path.read_text() == "old"


@pytest.fixture
def names(tmp_path, monkeypatch):
    """Other names of the file "in.pickle" in the working directory."""
    monkeypatch.chdir(tmp_path)
    Path("in.pickle").write_bytes(dumped(one_program()))
    os.mkdir("folder")
    os.symlink("in.pickle", "soft")
    os.link("in.pickle", "hard")
    return ["in.pickle", "./folder/../in.pickle", str(tmp_path / "in.pickle"), "soft", "hard"]


def test_snapshot_is_not_saved_over_its_file(names):
    before = Path("in.pickle").read_bytes()
    snap = neutracer.load("in.pickle")
    with open("in.pickle", "rb") as file:
        of_a_file = neutracer.load(file)
    setting = "expandable_segments:True"
    program = neutracer.what_if(snap, setting)[setting].snapshot()
    page = neutracer.view(snap)
    for name in names:
        for source in (snap, of_a_file, program, page):
            with pytest.raises(ValueError, match="is also an input; give it another name"):
                source.save(name)
        with pytest.raises(ValueError, match="is also an input"):
            neutracer.view("in.pickle", name)
        with pytest.raises(ValueError, match="is also an input"):
            neutracer.view(snap, name)
    assert Path("in.pickle").read_bytes() == before
    snap.save("out.pickle")
    neutracer.load(before).save("in.pickle")
    assert neutracer.load(io.BytesIO(before)).origin == ""
