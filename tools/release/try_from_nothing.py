# SPDX-License-Identifier: Apache-2.0
"""Tries a wheel with a Python that has nothing.

    python try_from_nothing.py WHEEL RECORDING FOLDER

In FOLDER it makes an environment, installs the wheel into it, and says how long it took from there
to the first finding. Then it adds the libraries that draw PNG and, with TORCH, torch, where the
index has them for this Python, and runs `try_wheel.py`. A line for each step, with its seconds.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

__all__ = ["main"]


def run(*words: str | Path, cwd: Path) -> str:
    """What a command prints; it fails where the command does."""
    done = subprocess.run(words, cwd=cwd, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, words))}: {done.stdout}{done.stderr}")
    return done.stdout


def main(wheel: Path, recording: Path, folder: Path) -> None:
    """Runs all steps; the first that fails ends it."""
    run(sys.executable, "-m", "venv", "--clear", folder, cwd=Path("/"))
    program = folder / "bin"
    pip = (program / "python", "-m", "pip", "--disable-pip-version-check", "-q", "install")
    began = time.monotonic()
    run(*pip, "--no-index", wheel, cwd=folder)
    text = run(program / "neutracer", "report", recording, cwd=folder)
    took = time.monotonic() - began
    assert "reserved" in text, text
    print(f"from pip install to the first finding: {took:.1f} s", flush=True)
    # Built for this Python already, or not at all: there is no compiler.
    for wanted in (["resvg-py", "matplotlib"], [os.environ.get("TORCH", "")]):
        if all(wanted):
            subprocess.run([*pip, "--only-binary=:all:", *wanted], cwd=folder, capture_output=True)
    tries = Path(__file__).with_name("try_wheel.py")
    print(run(program / "python", tries, recording, cwd=folder), end="")


if __name__ == "__main__":
    main(*(Path(word).absolute() for word in sys.argv[1:4]))
