# SPDX-License-Identifier: Apache-2.0
"""`neutracer demo`: the recording that comes with the package, its report and its page."""

from __future__ import annotations

import webbrowser
from pathlib import Path

import pytest

import neutracer
from neutracer.cli import view
from neutracer.cli.main import main


def test_demo_reports_and_writes_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(webbrowser, "open", lambda address: pytest.fail(address))
    assert main(["demo", "--no-browser"]) == 0
    said = capsys.readouterr().out
    assert "of gradients live through the next forward pass" in said
    assert "neutracer-demo.html (open it in any browser)" in said
    page = (tmp_path / "neutracer-demo.html").read_text(encoding="utf-8")
    assert page.startswith("<!DOCTYPE html>") or page.startswith("<!doctype html>")


def test_demo_opens_page_where_there_is_a_window(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", lambda address: opened.append(address) or True)
    monkeypatch.setenv("DISPLAY", ":0")
    page = tmp_path / "a page.html"
    assert main(["demo", "-o", str(page)]) == 0
    assert opened == [page.as_uri()]
    assert "(opened in the browser)" in capsys.readouterr().out
    opened.clear()
    monkeypatch.delenv("DISPLAY")
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    assert main(["demo", "-o", str(page)]) == 0
    assert opened == []


@pytest.mark.parametrize(
    ("name", "begin"),
    [("a.json", "{"), ("a.md", "**MODERATE**"), ("a.txt", "MODERATE")],
)
def test_demo_writes_by_ending(
    name: str, begin: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["demo", "--no-browser", "-o", str(tmp_path / name)]) == 0
    assert (tmp_path / name).read_text(encoding="utf-8").startswith(begin)
    assert f"The same in a file: {tmp_path / name}" in capsys.readouterr().out


def test_demo_leaves_its_recording_alone(capsys: pytest.CaptureFixture[str]) -> None:
    before = view._RECORDING.read_bytes()
    assert main(["demo", "--no-browser", "-o", str(view._RECORDING)]) == 2
    assert view._RECORDING.read_bytes() == before
    assert neutracer.load(view._RECORDING).flaws == ()
