# SPDX-License-Identifier: Apache-2.0
"""What can be opened, and what is told of files that are something else."""

from __future__ import annotations

import bz2
import gzip
import io
import os
import re
import subprocess
import sys
import threading
import zipfile
from pathlib import Path

import pytest
from bundle import DATA
from small_snapshots import dumped, one_program

import neutracer
from neutracer import SnapshotError
from neutracer.trace.source import check_head

FILE = DATA / "frag_default.pickle"
WANTED = "expected a PyTorch memory snapshot"


def events(source):
    return len(neutracer.load(source).events)


def test_paths_bytes_and_files_are_read():
    data = FILE.read_bytes()
    assert events(FILE) == events(str(FILE)) == 2375
    assert events(data) == events(bytearray(data)) == events(memoryview(data)) == 2375
    assert events(io.BytesIO(data)) == 2375
    with FILE.open("rb") as file:
        assert events(file) == 2375
    with FILE.open("rb", buffering=0) as raw:
        assert events(raw) == 2375


def test_file_is_read_from_where_it_stands(tmp_path):
    path = tmp_path / "two"
    path.write_bytes(b"header" + dumped(one_program()))
    for buffering in (0, -1):
        with path.open("rb", buffering=buffering) as file:
            file.seek(6)
            assert events(file) == 5


def test_buffer_is_free_again_afterwards():
    data = bytearray(dumped(one_program()))
    view = memoryview(data)
    snap = neutracer.load(view)
    view.release()
    data[:] = b""
    assert len(snap.events) == 5


def test_pipes_and_standard_input_are_read(tmp_path):
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    writer = threading.Thread(target=lambda: fifo.write_bytes(gzip.compress(FILE.read_bytes())))
    writer.start()
    assert events(fifo) == 2375
    writer.join()
    program = "import neutracer; print(len(neutracer.load('-').events))"
    with FILE.open("rb") as file:
        done = subprocess.run(
            [sys.executable, "-c", program], stdin=file, capture_output=True, cwd=tmp_path
        )
    assert done.stdout.strip() == b"2375", done.stderr


@pytest.mark.parametrize("source", [7, None, ["a"], object()])
def test_other_objects_are_type_errors(source):
    with pytest.raises(TypeError, match="path, bytes or a binary file"):
        neutracer.load(source)


def test_text_mode_is_a_type_error(tmp_path):
    with pytest.raises(TypeError, match="binary mode"):
        neutracer.load(io.StringIO("text"))


def test_missing_files_stay_os_errors(tmp_path):
    with pytest.raises(FileNotFoundError):
        neutracer.load(tmp_path / "none.pickle")


def checkpoint() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("archive/data.pkl", b"\x80\x02}.")
    return buffer.getvalue()


OTHER_FILES = {
    "empty": (b"", r"empty \(0 bytes\)"),
    "zip": (checkpoint(), r"zip archive, most likely a checkpoint written by torch.save"),
    "old checkpoint": (
        b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.\x80\x02M\xe9\x03.",
        r"old format of torch.save",
    ),
    "json": (b'{"step": 1}', "JSON text"),
    "report": (b'{"schema": "neutracer.report/1"}', "JSON that neutracer wrote: give the snap"),
    "archive": (b"PK\x03\x04" + b"\0" * 26 + b"a.pickle", "a zip archive: unpack it"),
    "tar": (b"a.pickle".ljust(257, b"\0") + b"ustar\0" + b"\0" * 250, "a tar archive: unpack it"),
    "program": (b"# A program.\nimport torch\n", "a Python program: 'neutracer run' records it"),
    "json list": (b"\xef\xbb\xbf [1, 2]", "JSON text"),
    "profiler": (b'{"schemaVersion": 1, "traceEvents": []}', "a profiler's trace"),
    "html": (b"\n<!DOCTYPE html><html></html>", "HTML or XML"),
    "pointer": (
        b"version https://git-lfs.github.com/spec/v1\noid sha256:aa\n",
        "a Git LFS pointer: 'git lfs pull'",
    ),
    "text": (b"Traceback (most recent call last):\n", "a text file: 'neutracer explain'"),
    "text that begins as a pickle could": (b"(hello) world\n", "a text file: 'neutracer expl"),
    "bzip2": (bz2.compress(b"x"), "bzip2"),
    "library": (b"\x7fELF\x02\x01\x01" + b"\0" * 64, "a program"),
    "numpy": (b"\x93NUMPY\x01\0", "NumPy"),
    "sqlite": (b"SQLite format 3\0", "SQLite"),
}


def test_directory_names_the_newest_snapshot_and_the_command_for_all(tmp_path):
    with pytest.raises(SnapshotError, match="a directory, without any"):
        neutracer.load(tmp_path)
    for number, name in enumerate(("a.pickle", "b.pickle.xz", "c.json")):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (number, number))
    said = f"give a file, like {tmp_path / 'b.pickle.xz'}, or ask 'neutracer ranks {tmp_path}'"
    with pytest.raises(SnapshotError, match=re.escape(said)):
        neutracer.load(tmp_path)


@pytest.mark.parametrize("kind", OTHER_FILES)
def test_other_files_are_named(kind, tmp_path):
    data, said = OTHER_FILES[kind]
    path = tmp_path / "file.pickle"
    path.write_bytes(data)
    for source in (path, data, io.BytesIO(data)):
        with pytest.raises(SnapshotError, match=said) as caught:
            neutracer.load(source)
        assert WANTED in caught.value.reason or said in caught.value.reason
        assert caught.value.offset == 0


@pytest.mark.parametrize("kind", [kind for kind in OTHER_FILES if kind != "empty"])
def test_packed_other_files_are_named(kind):
    data, said = OTHER_FILES[kind]
    with pytest.raises(SnapshotError, match=f"what is packed with gzip is .*{said}"):
        neutracer.load(gzip.compress(data))


def test_packed_twice_is_told():
    with pytest.raises(SnapshotError, match="packed with gzip is gzip data again"):
        neutracer.load(gzip.compress(gzip.compress(dumped(one_program()))))


def test_name_does_not_decide(tmp_path):
    path = tmp_path / "snapshot.xz"
    path.write_bytes(gzip.compress(FILE.read_bytes()))
    assert events(path) == 2375
    assert events(Path(path)) == 2375


@pytest.mark.parametrize("protocol", range(6))
def test_no_protocol_is_taken_for_text(protocol):
    for whole in (one_program(), one_program()["segments"]):
        check_head(dumped(whole, protocol)[:512])


def test_refused_pickles_name_their_opcode():
    with pytest.raises(SnapshotError) as caught:
        neutracer.load(b"\x80\x04cos\nsystem\n(X\x02\x00\x00\x00idtR.")
    assert "GLOBAL" in caught.value.reason
    assert caught.value.offset == 2


def test_bytes_and_text_are_not_compared() -> None:
    ask = "import sys, neutracer; print(neutracer.report(sys.argv[1]).to_dict()['schema'])"
    command = [sys.executable, "-bb", "-c", ask, str(DATA / "frag_default.pickle")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.stderr == ""
    assert done.returncode == 0
