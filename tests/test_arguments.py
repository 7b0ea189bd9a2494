# SPDX-License-Identifier: Apache-2.0
"""What an argument has to be."""

from __future__ import annotations

from pathlib import Path

import pytest

from neutracer import arguments


class Index:
    def __index__(self) -> int:
        return 3


@pytest.mark.parametrize(
    ("call", "found"),
    [
        (lambda: arguments.number("x", 0.5), 0.5),
        (lambda: arguments.whole_number("x", Index()), 3),
        (lambda: arguments.whole_number("x", 0, least=0), 0),
        (lambda: arguments.number_pair("x", [1, 2.5]), (1, 2.5)),
        (lambda: arguments.number_pair("x", range(4, 6), whole=True), (4, 5)),
        (lambda: arguments.number_pair("x", iter([4, 5])), (4, 5)),
        (lambda: arguments.text("x", ""), ""),
        (lambda: arguments.several("x", (each for each in (1, 2)), "numbers"), [1, 2]),
        (lambda: arguments.path_name(Path("a") / "b"), "a/b"),
        (lambda: arguments.path_name(b"a\xff"), "a\udcff"),
        (lambda: arguments.callback("x", None, "event"), None),
        (lambda: arguments.callback("x", print, "event"), None),
    ],
)
def test_what_fits_is_handed_back(call, found) -> None:
    assert call() == found


@pytest.mark.parametrize(
    ("call", "kind", "words"),
    [
        (lambda: arguments.number("x", "1", "a share"), TypeError, "x must be a share, not str"),
        (lambda: arguments.number("x", True), TypeError, "x must be a number, not bool"),
        (lambda: arguments.whole_number("x", 1.0), TypeError, "a whole number, not float"),
        (lambda: arguments.whole_number("x", False), TypeError, "a whole number, not bool"),
        (lambda: arguments.whole_number("x", int), TypeError, "a whole number, not type"),
        (
            lambda: arguments.whole_number("x", -1, least=0),
            ValueError,
            "x is -1: it must not be negative",
        ),
        (
            lambda: arguments.whole_number("x", 1, least=2),
            ValueError,
            "x is 1: it must be 2 or more",
        ),
        (lambda: arguments.number_pair("x", 1), TypeError, "two numbers, not int"),
        (lambda: arguments.number_pair("x", "ab"), TypeError, "two numbers, not str"),
        (lambda: arguments.number_pair("x", {1: 2, 3: 4}), TypeError, "two numbers, not dict"),
        (lambda: arguments.number_pair("x", (1,)), ValueError, "two numbers, not 1"),
        (lambda: arguments.number_pair("x", (1, float("nan"))), ValueError, "not nan"),
        (lambda: arguments.number_pair("x", (1, 2.0), whole=True), TypeError, "not float"),
        (lambda: arguments.text("x", b""), TypeError, "x must be a text, not bytes"),
        (lambda: arguments.several("x", 1, "names"), TypeError, "a list of names, not int"),
        (lambda: arguments.several("x", "ab", "names"), TypeError, "a list of names, not str"),
        (lambda: arguments.path_name(3, "folder"), TypeError, "folder must be a path .*, not int"),
        (lambda: arguments.path_name("a\0"), ValueError, "path has a null character"),
        (lambda: arguments.callback("x", 3, "event"), TypeError, "called with each event: a int"),
    ],
)
def test_what_does_not_is_named(call, kind, words) -> None:
    with pytest.raises(kind, match=words):
        call()
