# SPDX-License-Identifier: Apache-2.0
"""What is told of the program that asked for memory."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

import neutracer
from neutracer.heap.cycles import prepare_heap
from neutracer.oom.watch import _tensor_texts, python_stack
from neutracer.recording.program import run_program

PROGRAM = """
import json, sys
from neutracer.oom.watch import python_stack

def train(path):
    with open(path, "w") as file:
        json.dump(python_stack(sys._getframe()), file)

train(sys.argv[1])
"""


def test_stack_ends_where_the_program_begins(tmp_path: Path) -> None:
    program, told = tmp_path / "train.py", tmp_path / "stack.json"
    program.write_text(PROGRAM)
    assert run_program([str(program), str(told)]) == 0
    stack = json.loads(told.read_text())
    assert [(name, function) for name, _, function in stack] == [
        (str(program), "train"),
        (str(program), "<module>"),
    ]


def test_own_frames_in_between_are_left_out() -> None:
    package = os.path.dirname(neutracer.__file__)
    inside = {"ask": lambda: python_stack(sys._getframe())}
    text = "def wrapper():\n    return ask()\n"
    exec(compile(text, os.path.join(package, "live", "recorder.py"), "exec"), inside)
    stack = inside["wrapper"]()  # type: ignore[operator]
    assert all(not name.startswith(package) for name, _, _ in stack)
    assert [function for _, _, function in stack[:2]] == [
        "<lambda>",
        "test_own_frames_in_between_are_left_out",
    ]


def test_own_frames_stay_where_nothing_else_is() -> None:
    package = os.path.dirname(neutracer.__file__)

    class Frame:
        """A frame of neutracer's that nobody called."""

        f_back = None
        f_lineno = 7
        f_code = compile("", os.path.join(package, "live", "monitor.py"), "exec")

    (row,) = python_stack(Frame())  # type: ignore[arg-type]
    assert row[1:] == (7, "<module>")


def test_items_of_a_function_are_tensors_of_it_too() -> None:
    torch = pytest.importorskip("torch")
    variables = {
        "points": torch.zeros(4, 1),
        "batch": {"x": torch.zeros(3), 7: torch.zeros(5), "not a name": torch.zeros(6)},
        "initial": (torch.zeros(2), 1.0),
        "count": 3,
    }
    prepare_heap()
    # Variables first, then what is in them.
    assert _tensor_texts(variables) == (
        "points: (4, 1) float32",
        'batch["x"]: (3,) float32',
        "initial[0]: (2,) float32",
    )
