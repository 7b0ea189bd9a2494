# SPDX-License-Identifier: Apache-2.0
"""What docs/stability.md promises stays as it was released, or its change is on record."""

from __future__ import annotations

import pytest
from public_names import LIST, RELEASED, broken_promises, public_names

import neutracer


def test_public_names_are_those_on_record() -> None:
    told = LIST.read_text(encoding="utf-8").splitlines()
    found = public_names()
    lost = sorted(set(told) - set(found))
    new = sorted(set(found) - set(told))
    assert lost == [], "docs/stability.md says how a name goes"
    assert new == [], "add them: python tests/helpers/public_names.py"


def test_names_of_the_last_release_are_there() -> None:
    released = RELEASED.read_text(encoding="utf-8").splitlines()
    assert broken_promises(released, neutracer.__version__, public_names()) == []


@pytest.mark.parametrize(
    ("before", "now", "lost"),
    [
        ("0.1.0", "0.1.1", ["load(source)"]),
        ("0.1.0", "0.2.0", []),
        ("1.2.0", "1.3.0", ["load(source)"]),
        ("1.2.0", "2.0.0", []),
    ],
)
def test_a_name_goes_with_the_number_that_is_for_it(before: str, now: str, lost: list[str]) -> None:
    released = [before, "diff(a, b)", "load(source)"]
    assert broken_promises(released, now, ["diff(a, b)", "new()"]) == lost


def test_list_has_each_kind() -> None:
    told = LIST.read_text(encoding="utf-8").splitlines()
    for line in (
        "class SnapshotError(NeutracerError, ValueError, Exception, BaseException)",
        "neutracer report: --json",
        "neutracer.report/1: findings",
    ):
        assert line in told
    assert any(line.startswith("load(") for line in told)
