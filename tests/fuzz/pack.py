# SPDX-License-Identifier: Apache-2.0
"""Puts the fuzz targets into a folder that another machine can run, without a compiler.

Each target is there twice, linked with nothing but the C library: `fast` without sanitizers,
which does most of the executions, and `checked` with AddressSanitizer and
UndefinedBehaviorSanitizer, which goes on from what the first has found. Beside them is the
corpus, and `run`, a copy of packed_run.py.

Example:
    $ python tests/fuzz/pack.py /tmp/fuzz
    $ /tmp/fuzz/run 500 results --cores 16     # there
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
from pathlib import Path

import corpus
from building import CORPUS, HERE, build, corpora, input_options, targets


def pack(folder: Path, names: list[str]) -> None:
    """Fills the folder, which is made anew."""
    shutil.rmtree(folder, ignore_errors=True)
    compiler = os.environ.get("CLANG", "clang")
    for kind in ("fast", "checked"):
        made = build(names, compiler, standalone=False, sanitize=kind == "checked")
        (folder / kind).mkdir(parents=True)
        for name in names:
            # Line numbers are found again where the input is tried with the whole program.
            program = folder / kind / name
            subprocess.run(["strip", "-S", "-o", program, made / name], check=True)
    corpus.unpack(CORPUS)
    for name in names:
        (folder / "corpus" / name).mkdir(parents=True)
        for path in (path for source in corpora(name) for path in source.iterdir()):
            shutil.copy(path, folder / "corpus" / name / path.name)
    for path in HERE.glob("*.dict"):
        shutil.copy(path, folder / path.name)
    options = {name: input_options(name) for name in names}
    (folder / "targets.json").write_text(json.dumps(options, indent=1), encoding="utf-8")
    shutil.copy(HERE / "packed_run.py", folder / "run")
    (folder / "run").chmod(0o755)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--target", action="append", choices=targets(), help="default: all")
    arguments = parser.parse_args()
    pack(arguments.folder, arguments.target or targets())
    size = sum(path.stat().st_size for path in arguments.folder.rglob("*") if path.is_file())
    print(f"{arguments.folder}: {size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
