# SPDX-License-Identifier: Apache-2.0
"""when_imported(): once, after the import, which is otherwise what it always was."""

from __future__ import annotations

import importlib
import importlib.util
import sys

import pytest

from neutracer.recording.imports import when_imported

NAME = "imported_by_a_program"


@pytest.fixture
def module(tmp_path, monkeypatch):
    """A module that can be imported and is not yet."""
    (tmp_path / f"{NAME}.py").write_text(
        "import pathlib\n"
        "loader = __loader__\n"
        "source = __spec__.loader.get_source(__name__)\n"
        "file = pathlib.Path(__file__)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    yield tmp_path / f"{NAME}.py"
    sys.modules.pop(NAME, None)


@pytest.fixture(autouse=True)
def path_is_restored():
    before = list(sys.meta_path)
    yield
    assert sys.meta_path == before


def test_action_comes_after_the_import(module):
    seen = []
    when_imported(NAME, lambda: seen.append(sys.modules[NAME].file))
    assert seen == []
    imported = importlib.import_module(NAME)
    assert seen == [module]
    importlib.reload(imported)
    assert len(seen) == 1


def test_module_finds_itself_as_always(module):
    when_imported(NAME, lambda: None)
    imported = importlib.import_module(NAME)
    usual = type(importlib.util.find_spec("json").loader)
    assert type(imported.loader) is usual
    assert type(imported.__spec__.loader) is usual
    assert imported.source == module.read_text()


def test_looking_for_it_is_no_import(module):
    seen = []
    when_imported(NAME, lambda: seen.append(1))
    assert importlib.util.find_spec(NAME) is not None
    assert importlib.util.find_spec(NAME).origin == str(module)
    assert seen == []
    importlib.import_module(NAME)
    assert seen == [1]


def test_imported_module_counts_at_once():
    seen = []
    when_imported("sys", lambda: seen.append(1))()
    assert seen == [1]


def test_taken_back_does_nothing(module):
    seen = []
    cancel = when_imported(NAME, lambda: seen.append(1))
    cancel()
    importlib.import_module(NAME)
    cancel()
    assert seen == []


def test_missing_module_stays_missing():
    cancel = when_imported("no_such_module_anywhere", lambda: None)
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("no_such_module_anywhere")
    cancel()


def test_failing_action_does_not_fail_the_import(module, caplog):
    when_imported(NAME, lambda: 1 / 0)
    assert importlib.import_module(NAME).file == module
    assert "at an import failed" in caplog.text
