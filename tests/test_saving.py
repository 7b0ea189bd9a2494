# SPDX-License-Identifier: Apache-2.0
"""Files that appear whole or not at all."""

from __future__ import annotations

import errno
import os
import stat
import sys

import pytest
from small_snapshots import dumped, one_program

import neutracer
from neutracer import UnavailableError
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
