# SPDX-License-Identifier: Apache-2.0
"""The JSON beside a snapshot: read once, kept with the snapshot, and never in the way."""

from __future__ import annotations

import builtins
import json
import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from bundle import DATA

import neutracer
from neutracer.recording import recorder as capture
from neutracer.recording import sidecar
from neutracer.trace.beside import Beside, DeviceRoom, beside_file


def what_if(source: Path) -> Any:
    return neutracer.what_if(source, "expandable_segments:True")


QUESTIONS = (
    neutracer.report,
    neutracer.explain,
    neutracer.leak_trend,
    neutracer.fragmentation_report,
    what_if,
)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    shutil.copy(DATA / "frag_default.pickle", tmp_path / "run.pickle")
    return tmp_path / "run.pickle"


@pytest.mark.parametrize("ask", QUESTIONS)
def test_a_question_opens_it_once(file: Path, ask: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (file.parent / "run.pickle.json").write_text(json.dumps({"oom": "Tried to allocate 2.00 GiB"}))
    opened = []
    plain_open = builtins.open

    def counting(path: Any, *rest: Any, **how: Any) -> Any:
        opened.append(os.path.basename(os.fspath(path)) if not isinstance(path, int) else "")
        return plain_open(path, *rest, **how)

    monkeypatch.setattr(builtins, "open", counting)
    str(ask(file))
    assert opened.count("run.pickle.json") == 1


@pytest.mark.parametrize("ask", QUESTIONS)
def test_damage_is_one_finding(file: Path, ask: Any) -> None:
    sound = ask(file)
    (file.parent / "run.json").write_text('{"oom": ')
    (file.parent / "run.pickle.json").write_bytes(b"\xff\xfe")
    damaged = ask(file)
    kinds = [one.kind for one in damaged.findings]
    assert kinds == ["broken_sidecar", *(one.kind for one in sound.findings)]
    names = [str(note).partition(":")[0] for note in damaged.findings[0].evidence]
    assert names == ["run.pickle.json", "run.json"]
    assert "the JSON beside run.pickle can't be read" in str(damaged)


@pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() == 0, reason="this user may read every file"
)
def test_file_that_may_not_be_read_is_damage(file: Path) -> None:
    beside = file.parent / "run.json"
    beside.write_text("{}")
    beside.chmod(0)
    assert beside_file(str(file)).damage == ("run.json: Permission denied",)


def test_it_stays_with_the_snapshot(file: Path) -> None:
    beside = file.parent / "run.json"
    beside.write_text(json.dumps({"oom": "Tried to allocate 2.00 GiB"}))
    snap = neutracer.load(file)
    beside.unlink()
    assert snap.beside == Beside(oom="Tried to allocate 2.00 GiB")
    assert pickle.loads(pickle.dumps(snap)).beside == snap.beside
    assert neutracer.load(file).beside == Beside()


def test_a_question_on_a_file_leaves_the_live_process_alone() -> None:
    script = (
        "import sys, neutracer\n"
        f"source = {str(DATA / 'frag_default.pickle')!r}\n"
        "for ask in ('report', 'explain', 'leak_trend', 'fragmentation_report'):\n"
        "    str(getattr(neutracer, ask)(source))\n"
        "str(neutracer.what_if(source, 'expandable_segments:True'))\n"
        "str(neutracer.diff(source, source))\n"
        "print([one for one in sys.modules if one.startswith('neutracer.process')])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"


def test_without_a_source_the_process_itself_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    data = (DATA / "frag_default.pickle").read_bytes()
    monkeypatch.setattr(capture, "snapshot", lambda: neutracer.load(data))
    monkeypatch.setattr(sidecar, "room_now", lambda device: DeviceRoom(8 << 30, 0.25, None))
    why = neutracer.explain()
    assert (why.capacity_bytes, why.limit_bytes, why.limit_is_guess) == (8 << 30, 2 << 30, False)
    plan = neutracer.what_if(None, "expandable_segments:True")
    assert "according to the JSON beside the file" in " ".join(plan.notes)
