# SPDX-License-Identifier: Apache-2.0
"""Compiles the hooks on PyTorch's allocators that go into wheels, for releases of torch.

    python tools/release/hooks.py get FOLDER VERSION...
    python tools/release/hooks.py build FOLDER OUTPUT ZIG TARGET TREE HEADERS

`get` puts of each torch what a compiler and a linker need into FOLDER, with the headers of its
CUDA and of this machine's C++ library. `build` compiles for the Python that runs it, and for each
torch there that was released for it. TREE has the sources, and is in PYTHONPATH; HEADERS has what
a Python has of its headers in a place of its machine's. Zig's compiler links with the symbols of
TARGET's C library, and with GNU's C++ library, which torch has: its own can't take over torch's
objects. The module's place under OUTPUT is its key, by which neutracer
finds it: torch's version, its commit and its CUDA, the interpreter's ABI, and the sources.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

__all__ = ["build", "get", "main"]

_PLATFORM = "manylinux_2_28_x86_64"
_MINORS = range(10, 16)

#: Of a torch's wheel. The large library of one for CUDA is not linked with.
_WANTED = r"torch/(version\.py|include/.*|lib/lib(c10|c10_cuda|torch_cpu)\.so)"

# GNU's headers ask this of the C library of the machine that they are from.
_SINGLE_THREADED = """\
/* glibc has had this only since 2.32; false means that the program may have threads. */
static const bool __libc_single_threaded = false;
"""


def pip(*words: str) -> str:
    """What pip prints.

    Raises:
        subprocess.CalledProcessError: It failed.
    """
    line = [sys.executable, "-m", "pip", "--disable-pip-version-check", *words]
    return subprocess.run(line, capture_output=True, text=True, check=True).stdout


def download(folder: Path, *words: str) -> list[Path]:
    """The wheels of requirements, without what these require."""
    shutil.rmtree(folder, ignore_errors=True)
    pip("download", "-q", "--no-deps", "--no-cache-dir", "-d", str(folder), *words)
    return sorted(folder.glob("*.whl"))


def unpack(wheel: Path, folder: Path, wanted: str) -> None:
    """The files of a wheel whose names match."""
    with zipfile.ZipFile(wheel) as packed:
        for name in packed.namelist():
            if re.fullmatch(wanted, name):
                packed.extract(name, folder)


def get_torch(version: str, folder: Path) -> None:
    """A torch, and the headers of the CUDA that it is for.

    Raises:
        subprocess.CalledProcessError: The index does not have it.
    """
    part, packed = folder / f"{version}.part", folder / "packed"
    shutil.rmtree(part, ignore_errors=True)
    # The very text: "==2.13.0" could give 2.13.0+cpu.
    (wheel,) = download(packed, f"torch==={version}")
    unpack(wheel, part, _WANTED)
    text = (part / "torch/version.py").read_text(encoding="utf-8")
    cuda = re.search(r"^cuda\b[^=\n]*= '([\d.]+)'", text, re.M)
    if cuda:
        (part / "torch/lib/libtorch_cpu.so").unlink()
        names = ("nvidia-cuda-runtime", "nvidia-cuda-crt")
        for one in download(packed, *(f"{name}=={cuda[1]}.*" for name in names)):
            unpack(one, part, "nvidia/[^/]+/include/.*")
    # `import torch` is found by it, and not done.
    (part / "torch/__init__.py").touch()
    part.rename(folder / version)


def released() -> dict[str, list[str]]:
    """Versions of torch that there are for each Python."""
    found = {}
    for minor in _MINORS:
        words = ("--python-version", f"3.{minor}", "--platform", _PLATFORM, "--only-binary=:all:")
        try:
            said = pip("index", "versions", "torch", *words)
        except subprocess.CalledProcessError:
            said = ""
        lines = re.findall(r"^Available versions: (.*)$", said, re.M)
        found[f"3.{minor}"] = re.findall(r"[^\s,]+", "".join(lines))
    return found


def get_library(folder: Path) -> None:
    """The headers of GNU's C++ library, and the library to link with."""
    said = subprocess.run(
        ["g++", "-xc++", "-E", "-v", os.devnull], capture_output=True, text=True, check=True
    ).stderr
    places = re.findall(r"^ (/\S*/c\+\+/\d+)$", said, re.M)
    headers = folder / "c++"
    shutil.rmtree(headers, ignore_errors=True)
    # The machine's part lies beside the other, and has the same names.
    for place in places:
        shutil.copytree(place, headers, dirs_exist_ok=True)
    (headers / "sys").mkdir()
    (headers / "sys/single_threaded.h").write_text(_SINGLE_THREADED)
    for name in ("libstdc++.so.6", "libgcc_s.so.1"):
        words = ["g++", f"-print-file-name={name}"]
        there = subprocess.run(words, capture_output=True, text=True, check=True).stdout
        shutil.copy(there.strip(), headers / name)


def get(folder: Path, versions: list[str]) -> None:
    """Puts into the folder what it does not have yet; a line says what can't be had."""
    folder.mkdir(parents=True, exist_ok=True)
    get_library(folder)
    (folder / "released.json").write_text(json.dumps(released()))
    for version in versions:
        try:
            (folder / version).exists() or get_torch(version, folder)
        except subprocess.CalledProcessError as error:
            reason = error.stderr.strip().splitlines()[-1:]
            print(f"no hooks for torch {version}: {''.join(reason)}", file=sys.stderr)
    shutil.rmtree(folder / "packed", ignore_errors=True)
    for one in folder.iterdir():
        if (one / "torch").is_dir() and one.name not in versions:
            shutil.rmtree(one)


def compiler(folder: Path, zig: str, target: str, tree: Path, headers: Path) -> Path:
    """A script that compiles C++ as g++ does, with what `get_library` has put there."""
    library, script = folder / "c++", folder / "compiler"
    words = [zig, "cc", "-target", target, "-nostdinc++", f"-I{library}", "-w", "-s"]
    words += ["-Wl,--gc-sections", *(f"-ffile-prefix-map={one}=." for one in (folder, tree))]
    words += [f"-I{headers}"] * any(headers.iterdir())
    libraries = [f"{library}/libstdc++.so.6", f"{library}/libgcc_s.so.1"]
    line = f'{shlex.join(words)} -x c++ "$@" -x none {shlex.join(libraries)}'
    script.write_text(f"#!/bin/sh\nexec {line}\n")
    script.chmod(0o755)
    return script


def build(folder: Path, output: Path) -> None:
    """Compiles the hooks for each torch in the folder that this Python can have.

    Raises:
        SystemExit: The compiler failed.
    """
    from neutracer.hooks.build import Torch, command, installed_torch, target

    known = json.loads((folder / "released.json").read_text())
    mine = known["{}.{}".format(*sys.version_info)]
    commands = {}
    for one in sorted(path.parents[1] for path in folder.glob("*/torch/version.py")):
        # A build for the CPU is often in another index than the list was made from.
        if one.name.partition("+")[0] not in mine:
            continue
        sys.path.insert(0, str(one))
        torch: Torch = installed_torch()
        assert torch.folder == one / "torch", torch
        goal = target()
        made = output / goal.key / goal.file
        made.parent.mkdir(parents=True)
        commands[torch.version] = command(goal, made)
        sys.path.remove(str(one))

    def compile_one(version: str) -> str:
        done = subprocess.run(commands[version], capture_output=True, text=True)
        return f"the hooks for torch {version}: {done.stderr}" if done.returncode != 0 else ""

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        failed = [said for said in pool.map(compile_one, commands) if said]
    if failed:
        raise SystemExit(failed[0])


def main(arguments: list[str]) -> None:
    """Does what the first word says."""
    verb, folder, *rest = arguments
    place = Path(folder).absolute()
    if verb == "get":
        get(place, rest)
        return
    output, zig, target, tree, headers = rest
    os.environ["CXX"] = str(compiler(place, zig, target, Path(tree), Path(headers)))
    build(place, Path(output).absolute())


if __name__ == "__main__":
    main(sys.argv[1:])
