# SPDX-License-Identifier: Apache-2.0
"""How much of a report is shown, in which format, and how wide: of every command on a file."""

from __future__ import annotations

import json
import lzma
import re
from pathlib import Path

import pytest
from bundle import DATA

import neutracer
from neutracer.cli.main import main
from neutracer.render.document import Document, Entry, Findings, Note, Place, Severity
from neutracer.render.text import render_markdown

FRAG, LEAK = str(DATA / "frag_default.pickle"), str(DATA / "leak_list.pickle.xz")
COMMANDS = {
    "report": ["report", FRAG],
    "explain": ["explain", FRAG],
    "leak": ["leak", LEAK],
    "diff": ["diff", FRAG, LEAK],
    "what-if": ["what-if", FRAG, "--set", "expandable_segments:True"],
    "ranks": ["ranks", FRAG, LEAK],
    "setup env": ["setup", "env"],
}
Capture = pytest.CaptureFixture[str]


def _printed(capsys: Capture, words: list[str]) -> str:
    assert main(words) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("name", COMMANDS)
def test_wider_page_never_shows_less(
    name: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    before: set[str] = set()
    for columns in ("", "80", "100", "160"):
        monkeypatch.setenv("COLUMNS", columns)
        lines = _printed(capsys, [*COMMANDS[name], "--full"]).splitlines()
        words = set(" ".join(lines).split())
        lost = {word for word in before - words if word not in (before & {"·"})}
        assert not lost, lost
        assert not any("…" in word for word in words - before if before)
        before = words


@pytest.mark.parametrize("name", COMMANDS)
def test_pipe_breaks_no_place(name: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    text = _printed(capsys, [*COMMANDS[name], "--full"])
    # A command is one word, with the path of the file.
    wide = [line for line in text.splitlines() if len(line) > 80]
    assert all("expandable" in line or "neutracer " in line for line in wide)
    assert not re.search(r"\.py:?$", text, re.M)


@pytest.mark.parametrize("name", COMMANDS)
def test_brief_is_five_lines(name: str, capsys: Capture) -> None:
    assert 1 <= len(_printed(capsys, [*COMMANDS[name], "--brief"]).splitlines()) <= 5


@pytest.mark.parametrize("form", ["text", "markdown"])
@pytest.mark.parametrize("name", COMMANDS)
def test_budget_is_kept_and_begins_with_the_answer(name: str, form: str, capsys: Capture) -> None:
    words = [*COMMANDS[name], "--format", form]
    whole, short = (_printed(capsys, [*words, *much]) for much in (["--full"], []))
    assert _printed(capsys, [*words, "--budget", str(len(whole.encode()))]) == whole
    for budget in (500, 900, 1400):
        text = _printed(capsys, [*words, "--budget", str(budget)])
        assert len(text.encode()) <= budget
        if text != whole:
            *lines, last = text.splitlines()
            assert short.splitlines()[: len(lines)] == lines or form == "markdown"
            assert short.startswith(lines[0])
            assert re.fullmatch(r"… [\d,]+ more lines?: --full, or a larger --budget", last)
            assert text.count("```") % 2 == 0


def test_budget_is_shared_by_reports_and_refused_for_json(capsys: Capture) -> None:
    text = _printed(capsys, ["report", FRAG, LEAK, "--budget", "1200"])
    assert len(text.encode()) <= 1200
    assert text.count(" more lines: --full") == 2
    for words in (["--json", "--budget", "900"], ["--budget", "499"], ["--budget", "x"]):
        with pytest.raises(SystemExit):
            main(["report", FRAG, *words])
        assert "--budget" in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize("name", COMMANDS)
def test_ending_of_the_file_decides_its_format(name: str, tmp_path: Path, capsys: Capture) -> None:
    for ending in ("html", "md", "json", "txt"):
        assert _printed(capsys, [*COMMANDS[name], "-o", str(tmp_path / f"x.{ending}")]) == ""
    texts = {path.suffix: path.read_text("utf-8") for path in tmp_path.iterdir()}
    assert texts[".html"].startswith("<!DOCTYPE html>")
    assert json.loads(texts[".json"])["schema"].startswith("neutracer.")
    assert texts[".md"].startswith("**")
    assert texts[".md"].count("```") % 2 == 0
    assert "**" not in texts[".txt"]
    assert "\n" + texts[".md"] == "\n" + _printed(
        capsys, [*COMMANDS[name], "--full", "--format", "markdown"]
    )


def test_markdown_has_no_markup_or_mention_from_a_file() -> None:
    name = "@team <b> `x` *y* [z](u) #12 _q_ a_b"
    entry = Entry(Severity.SEVERE, name, "", (Note("by", Place(name, name, 3)),))
    lines = render_markdown(Document(name, blocks=(Findings((entry,)),))).splitlines()
    escaped = r"`@team` \<b\> \`x\` \*y\* \[z\](u) \#12 \_q\_ a_b"
    assert lines[0] == f"**SEVERE** {escaped}"
    plain = name.replace("`", "'")
    assert lines[1] == f"- by `{plain} ({plain}:3)`"


def test_job_of_github_gets_summary_and_annotations(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "train.py").touch()
    summary = tmp_path / "summary.md"
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    monkeypatch.setenv("GITHUB_WORKSPACE", str(tmp_path))
    assert main(["report", FRAG, "--fail-on", "severe"]) == 1
    errors = [line for line in capsys.readouterr().out.splitlines() if line.startswith("::error")]
    assert len(errors) == 2
    assert errors[0].startswith("::error file=src/train.py,line=162,title=neutracer%3A out of")
    assert "%0A1,579 MiB requested by frag (train.py:162)%0A" in errors[0]
    assert summary.read_text("utf-8").startswith("**SEVERE** out of memory: ")
    assert main(["leak", LEAK, "--fail-on", "severe"]) == 0
    assert "::error" not in capsys.readouterr().out


def test_snapshot_in_json_is_read(tmp_path: Path) -> None:
    path = tmp_path / "snapshot.json"
    neutracer.load(FRAG).save(path)
    text = path.read_bytes()
    (tmp_path / "snapshot.json.xz").write_bytes(lzma.compress(text))
    stats = neutracer.load(FRAG).memory_stats()
    for name in ("snapshot.json", "snapshot.json.xz"):
        assert neutracer.load(tmp_path / name).memory_stats() == stats
    with pytest.raises(neutracer.SnapshotError, match="the JSON text is damaged, or breaks off"):
        neutracer.load(text[: len(text) // 2])


def test_picture_is_called_one(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "x.png"
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + b"0" * 100)
    assert main(["report", str(path)]) == 2
    assert "this is a picture: expected" in capsys.readouterr().err
