# SPDX-License-Identifier: Apache-2.0
"""The line on a terminal that says how far a long load is."""

from __future__ import annotations

import io
import sys
import time

import pytest

from neutracer.trace import source as module
from neutracer.trace.source import reporting


class Terminal(io.StringIO):
    def isatty(self):
        return True


def on_terminal(monkeypatch):
    """Standard error as a terminal; called in the test, after pytest's own capture began."""
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    return stream


def test_own_functions_are_handed_on(monkeypatch):
    terminal = on_terminal(monkeypatch)
    with reporting("file", print) as report:
        assert report is print
    assert terminal.getvalue() == ""


def test_true_draws_and_erases_a_line(monkeypatch):
    terminal = on_terminal(monkeypatch)
    with reporting("file", True) as report:
        report(3 << 20)
    shown = terminal.getvalue()
    assert "read 3 MiB" in shown
    assert shown.endswith("\r")
    assert "\n" not in shown


def test_line_is_erased_after_errors(monkeypatch):
    terminal = on_terminal(monkeypatch)

    def broken_load():
        with reporting("file", True) as report:
            report(1)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        broken_load()
    assert terminal.getvalue().endswith(" \r")


def test_only_long_files_report_by_themselves(tmp_path, monkeypatch):
    on_terminal(monkeypatch)
    path = tmp_path / "file"
    path.write_bytes(b"x" * 100)
    for source in (path, str(path), b"bytes", tmp_path / "none"):
        with reporting(source, None) as report:
            assert report is None
    monkeypatch.setattr(module, "_LONG_FILE", 100)
    with reporting(path, None) as report:
        assert report is not None
    with reporting(path, False) as report:
        assert report is None


def test_nothing_is_drawn_in_a_pipe(monkeypatch, tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"x" * 100)
    monkeypatch.setattr(module, "_LONG_FILE", 100)
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with reporting(path, None) as report:
        assert report is None


@pytest.fixture
def at_once(monkeypatch):
    monkeypatch.setattr(module, "_WAIT_S", 0.0)
    monkeypatch.setattr(module, "_PACE_S", 0.001)


def test_a_pipe_gets_one_line(at_once, monkeypatch):
    monkeypatch.setattr(module, "PIPE_WAIT_S", 0.0)
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with module.working():
        assert shows(sys.stderr, "working")
        module.tell("12 replays done")
        time.sleep(0.01)
    assert sys.stderr.getvalue() == "neutracer: working: this takes more than a few seconds\n"


def shows(terminal, text):
    """Wait until the line has shown a text."""
    deadline = time.monotonic() + 60
    while text not in terminal.getvalue():
        assert time.monotonic() < deadline, terminal.getvalue()
        time.sleep(0.001)
    return True


@pytest.mark.parametrize("has_rich", [True, False])
def test_what_takes_long_says_what_it_does(has_rich, at_once, monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    if has_rich:
        pytest.importorskip("rich")
    else:
        monkeypatch.setitem(sys.modules, "rich.console", None)
    terminal = on_terminal(monkeypatch)
    with module.working():
        assert shows(terminal, "working, 0 s")
        module.tell("12 replays done")
        assert shows(terminal, "12 replays done")
        with reporting("file", None) as report:
            report(3 << 20)
            assert shows(terminal, "read 3 MiB")
        module.end_progress()
        taken_back = terminal.getvalue()
        module.tell("nothing more")
    assert terminal.getvalue() == taken_back
    assert "\n" not in taken_back.rstrip() or has_rich


def test_what_is_soon_done_says_nothing(monkeypatch):
    terminal = on_terminal(monkeypatch)
    monkeypatch.setattr(module, "_WAIT_S", 3600.0)
    with module.working():
        module.tell("something")
    assert terminal.getvalue() == ""


def test_nothing_goes_into_a_pipe(at_once, monkeypatch):
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    with module.working():
        module.tell("something")
        time.sleep(0.02)
    assert stream.getvalue() == ""
