# SPDX-License-Identifier: Apache-2.0
"""Cells run by IPython in a process of its own, without a kernel; and what they show."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from forked import Imported

# Pictures are told by their size: what they show is another test's matter.
_PICTURES = ("image/png",)


def outputs_of(cells: list[str], folder: Path, home: Path) -> list[dict[str, Any]]:
    """What each cell shows: "stdout", "stderr", "shown" (dicts by MIME type) and "error".

    Args:
        cells: The cells, run in order up to the first that fails unless it begins with a
            comment "# fails".
        folder: Where they run.
        home: A folder for what IPython writes.
    """
    done = subprocess.run(
        [sys.executable, __file__],
        input=json.dumps(cells),
        capture_output=True,
        text=True,
        cwd=folder,
        env=environment(home),
    )
    return _answers(done)


def outputs_in_fork(
    process: Imported, cells: list[str], folder: Path, **environment: str
) -> list[dict[str, Any]]:
    """As `outputs_of`, in a fork of a process that had `environment`, or gets its `folders`."""
    program = "import json, sys, ipython_cells\n"
    program += "print(json.dumps(ipython_cells._run(json.loads(sys.argv[1]))))"
    return _answers(process.run(program, json.dumps(cells), cwd=folder, **environment))


def folders(home: Path) -> dict[str, str]:
    """What has IPython write into `home`, and in plain words."""
    return {"IPYTHONDIR": str(home), "MPLCONFIGDIR": str(home), "NO_COLOR": "1"}


def environment(home: Path) -> dict[str, str]:
    """What IPython runs with, which writes into `home`."""
    paths = {"PYTHONPATH": ":".join(sys.path), "OMP_NUM_THREADS": "1"}
    return {**os.environ, **folders(home), **paths}


def _answers(done: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    assert done.returncode == 0, done.stderr
    answers: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return answers


def _run(cells: list[str]) -> list[dict[str, Any]]:
    from IPython.core.interactiveshell import InteractiveShell
    from IPython.utils.capture import capture_output

    shell = InteractiveShell.instance()
    answers = []
    values: list[dict[str, Any]] = []
    # A kernel would send the value of a cell; here it would be printed.
    shell.displayhook.write_output_prompt = lambda: None
    shell.displayhook.write_format_data = lambda data, metadata=None: values.append(data)
    for cell in cells:
        values.clear()
        with capture_output() as captured:
            result = shell.run_cell(cell, store_history=True)
        error = result.error_before_exec or result.error_in_exec
        shown = [
            {mime: len(data) if mime in _PICTURES else data for mime, data in output.items()}
            for output in [*(o._repr_mimebundle_()[0] for o in captured.outputs), *values]
        ]
        answers.append(
            {
                "stdout": captured.stdout,
                "stderr": captured.stderr,
                "shown": shown,
                "error": None if error is None else f"{type(error).__name__}: {error}",
            }
        )
        if error is not None and not cell.startswith("# fails"):
            break
    return answers


if __name__ == "__main__":
    print(json.dumps(_run(json.load(sys.stdin))))
