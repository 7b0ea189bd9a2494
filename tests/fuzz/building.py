# SPDX-License-Identifier: Apache-2.0
"""The fuzz targets: their names, the inputs that they begin with, and their programs."""

from __future__ import annotations

import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import corpus

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
BUILD = ROOT / "build" / "fuzz"

#: Where the inputs are unpacked, a folder per group.
CORPUS = BUILD / "corpus"

FLAGS = ["-std=c11", "-g", "-DNT_DEBUG", "-fno-omit-frame-pointer", "-Wall", "-Wextra"]
SANITIZERS = ["-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"]
# Coverage alone: to look at every comparison takes half of a run's time, and the
# dictionary and nt_mutate.c know the values that matter.
FOLLOWED = ["-fsanitize=fuzzer-no-link", "-fno-sanitize-coverage=trace-cmp,trace-div,trace-gep"]
INCLUDES = [f"-I{ROOT / folder}" for folder in ("csrc/core", "csrc/page", "tests/c", "tests/fuzz")]

# The page's face of the core takes its memory from the system; here it is watched.
PAGE = ROOT / "csrc/page"
PAGE_MEMORY = ["-Dnt_alloc_system=nt_fuzz_alloc"]

#: Longer inputs only make every run slower: all of a snapshot's format fits this.
MOST_BYTES = 2560

#: The same for the other targets.
MOST_SMALL_BYTES = 256


def targets() -> list[str]:
    """The targets' names."""
    return sorted(path.stem for path in HERE.glob("fuzz_*.c"))


def takes_snapshots(name: str) -> bool:
    """Whether the inputs of a target are snapshots."""
    return name.removeprefix("fuzz_") not in corpus.groups()


def corpora(name: str) -> list[Path]:
    """The unpacked folders with the inputs that a target begins with."""
    groups = corpus.SNAPSHOTS if takes_snapshots(name) else (name.removeprefix("fuzz_"),)
    return [CORPUS / group for group in groups]


def input_options(name: str) -> list[str]:
    """What libFuzzer is told of a target's inputs."""
    if takes_snapshots(name):
        return [f"-max_len={MOST_BYTES}", "-dict=snapshot.dict"]
    dictionary = ["-dict=settings.dict"] if name == "fuzz_settings" else []
    return [f"-max_len={MOST_SMALL_BYTES}", *dictionary]


def compile_objects(compiler: str, flags: dict[Path, list[str]], folder: Path) -> dict[Path, str]:
    """Compiles each source with its flags, as many at once as there are cores."""
    folder.mkdir(parents=True, exist_ok=True)

    def compile_one(source: Path) -> str:
        made = str(folder / f"{source.stem}.o")
        command = [compiler, *FLAGS, *flags[source], *INCLUDES, "-c", str(source), "-o", made]
        subprocess.run(command, check=True)
        return made

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return dict(zip(flags, pool.map(compile_one, flags), strict=True))


def build(names: list[str], compiler: str, *, standalone: bool, sanitize: bool = True) -> Path:
    """Builds the targets.

    Args:
        names: Which ones.
        compiler: clang, or with `standalone` any C11 compiler.
        standalone: With standalone_main.c in place of libFuzzer.
        sanitize: With the sanitizers. A standalone program without them is not optimised
            either.

    Returns:
        The folder with one program a target.
    """
    folder = BUILD / (
        ("standalone" if standalone else "libfuzzer") + ("" if sanitize else "-plain")
    )
    flags = ["-O2", *SANITIZERS] if sanitize else ["-O0" if standalone else "-O2"]
    core = [*sorted(ROOT.glob("csrc/core/*/*.c")), *sorted(ROOT.glob("csrc/page/*.c"))]
    shared = [ROOT / "tests/c/nt_same.c", *sorted(HERE.glob("nt_fuzz*.c"))]
    first = HERE / ("standalone_main.c" if standalone else "nt_mutate.c")
    mains = {name: HERE / f"{name}.c" for name in names}
    # Coverage is that of the core: what the targets do themselves leads nowhere.
    followed = [] if standalone else FOLLOWED
    made = compile_objects(
        compiler,
        {
            path: flags + (followed if path in core else []) + PAGE_MEMORY * (path.parent == PAGE)
            for path in [*core, *shared, first, *mains.values()]
        },
        folder,
    )
    # A program has of the core what it calls: coverage that can't be is not counted.
    library = folder / "core.a"
    library.unlink(missing_ok=True)
    subprocess.run(["ar", "rcs", library, *(made[path] for path in [*core, *shared])], check=True)
    link = flags + ([] if standalone else ["-fsanitize=fuzzer"])
    for name, main in mains.items():
        own = [made[main], *([made[first]] if standalone or takes_snapshots(name) else [])]
        command = [compiler, *link, *own, str(library), "-o", str(folder / name)]
        subprocess.run(command, check=True)
    return folder
