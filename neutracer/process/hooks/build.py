# SPDX-License-Identifier: Apache-2.0
"""Where the hooks on c10 are found, and how they are compiled for the installed torch."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.machinery
import importlib.util
import os
import platform
import re
import shutil
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from neutracer.errors import UnavailableError, missing
from neutracer.process.hooks.check import FALLBACK
from neutracer.process.hooks.compiling import alone, compile_into
from neutracer.process.hooks.folder import cache_folder, prepare, resolved, unsafe, why_not

__all__ = [
    "PREBUILT",
    "Target",
    "build",
    "command",
    "compiler",
    "find",
    "flags",
    "installed_torch",
    "obstacle",
    "passed_over",
    "source_folder",
    "target",
]

#: The releases of torch that the hooks were run on, by backend: with CUDA the whole of 2.11,
#: and the device allocator of the later ones (tests/gpu/test_c10_releases.py); for the CPU the
#: whole of each (tests/process/hooks/test_releases.py).
RUN_ON = dict.fromkeys(("cuda", "cpu"), ((2, 11), (2, 12), (2, 13), (2, 14), (2, 15)))

#: Files that are compiled, and headers of the core that they include.
_FOLDERS = ("torch", "core/base", "core/trace")
_HEADERS = ("core/base/nt_ring.h", "core/base/nt_ring_origins.h", "core/trace/nt_live_api.h")

_UNTRIED = "NEUTRACER_HOOKS_UNTRIED"

#: What a wheel has compiled for releases of torch, laid out as the cache is.
PREBUILT = Path(__file__).parents[2] / "prebuilt"


@dataclass(frozen=True)
class Torch:
    """An installed torch, as its files tell.

    Attributes:
        version: Its version, as `torch.__version__` has it.
        backend: "cuda", "cpu", or the name of another one.
        folder: Its package's folder.
        built: What it was built from and with: the backend's version and the commit.
    """

    version: str
    backend: str
    folder: Path
    built: str = ""

    @property
    def release(self) -> tuple[int, int]:
        """Major and minor version."""
        match = re.match(r"(\d+)\.(\d+)", self.version)
        return (int(match[1]), int(match[2])) if match else (0, 0)


@dataclass(frozen=True)
class Target:
    """What the hooks are compiled for.

    Attributes:
        torch: The torch.
        key: Names everything that the compiled module depends on: torch's version, the
            interpreter and its ABI, the machine, the sources.
        file: The name of the compiled module.
    """

    torch: Torch
    key: str
    file: str


def installed_torch() -> Torch:
    """The torch that `import torch` gives, without importing it.

    Raises:
        UnavailableError: There is none, or its files don't give its version.
    """
    loaded = sys.modules.get("torch")
    spec = getattr(loaded, "__spec__", None)
    if loaded is None:
        spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        raise missing("torch")
    folder = Path(spec.origin).parent
    try:
        text = (folder / "version.py").read_text(encoding="utf-8")
    except OSError as error:
        raise UnavailableError("torch's version", f"{folder} can't be read ({error})") from error
    names = "__version__|cuda|hip|xpu|git_version"
    facts = dict(re.findall(rf"^({names})\b[^=\n]*= '([^']*)'", text, re.M))
    if "__version__" not in facts:
        raise UnavailableError("torch's version", f"{folder / 'version.py'} does not say it")
    backend = next((name for name in ("hip", "xpu", "cuda") if name in facts), "cpu")
    built = f"{facts.get(backend, '')} {facts.get('git_version', '')}"
    return Torch(facts["__version__"], backend, folder, built)


def source_folder() -> Path:
    """The folder `csrc` with the hooks' sources: in the package, or beside it in a checkout.

    Raises:
        UnavailableError: It is in neither place.
    """
    package = Path(__file__).parents[2]
    for folder in (package / "csrc", package.parent / "csrc"):
        if (folder / "torch").is_dir():
            return folder
    raise UnavailableError("the source of the hooks", "install neutracer again")


def target() -> Target:
    """What the hooks would be compiled for here.

    Raises:
        UnavailableError: They are not available: no torch, or not one that they are known to
            fit; the reason says which.
    """
    torch = installed_torch()
    refused = _refusal(torch)
    if refused:
        raise UnavailableError("use of the hooks on PyTorch's allocator", refused)
    suffix = importlib.machinery.EXTENSION_SUFFIXES[0]
    key = f"torch{torch.version}-{sysconfig.get_config_var('SOABI')}-{platform.machine()}"
    key = re.sub(r"[^\w.+-]", "_", key)
    return Target(torch, f"{key}-{_source_hash(torch)}", f"_torch{suffix}")


def _refusal(torch: Torch) -> str:
    """Why the hooks are not for this torch, or ""."""
    if sys.platform != "linux":
        return f"they are for Linux; {FALLBACK}"
    if sys.implementation.name != "cpython":
        return f"they are for CPython; {FALLBACK}"
    known = RUN_ON.get(torch.backend)
    if known is None:
        return f"they are for torch with CUDA or for the CPU, not {torch.backend}; {FALLBACK}"
    if torch.release in known or os.environ.get(_UNTRIED) == "1":
        return ""
    names = ", ".join(f"{major}.{minor}" for major, minor in known)
    return (
        f"they were run on torch {names} ({torch.backend}) and this is {torch.version}; "
        f"{FALLBACK} ({_UNTRIED}=1 tries it all the same)"
    )


def _sources() -> list[Path]:
    folder = source_folder()
    return sorted((folder / "torch").glob("*.cpp"))


def _source_hash(torch: Torch) -> str:
    folder = source_folder()
    files = [*sorted((folder / "torch").glob("*.?pp")), *(folder / name for name in _HEADERS)]
    # Builds of one's own may have one version, for CUDA and not.
    built = (torch.backend, torch.built, flags(torch))
    digest = hashlib.sha256(repr(built).encode())
    for file in files:
        digest.update(file.name.encode() + b"\0" + file.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def _cxx_abi() -> int:
    """Which of its two ABIs of std::string torch was built with."""
    loaded = getattr(sys.modules.get("torch"), "_C", None)
    return int(getattr(loaded, "_GLIBCXX_USE_CXX11_ABI", True))


def flags(torch: Torch) -> list[str]:
    """What does not depend on where things are."""
    standard = "c++20" if torch.release >= (2, 12) else "c++17"
    words = [f"-std={standard}", "-O2", "-DNDEBUG", "-fPIC", "-shared", "-pthread"]
    words += ["-fvisibility=hidden"]
    words += [f"-D_GLIBCXX_USE_CXX11_ABI={_cxx_abi()}"]
    return [*words, f'-DNT_TORCH_BUILT_FOR="{torch.version}"']


def _cuda_includes(torch: Torch) -> list[str]:
    """Folders with the CUDA runtime's headers: pip's beside torch, conda's, or a toolkit's."""
    site = torch.folder.parent
    # pip has one folder for all of CUDA 13 and, beside each other, one a part for CUDA 12.
    major = torch.built.partition(".")[0]
    places = {f"cu{major}": 0, "cuda_runtime": 1}
    found = sorted(
        site.glob("nvidia/cu*/include/cuda_runtime_api.h"),
        key=lambda path: (places.get(path.parts[-3], 2), path),
    )
    found += sorted(Path(sys.prefix).glob("targets/*-linux/include/cuda_runtime_api.h"))
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH") or "/usr/local/cuda"
    toolkit = [Path(home, "include", "cuda_runtime_api.h")]
    folders = [path.parent for path in [*found, *toolkit] if path.exists()]
    if not folders:
        raise UnavailableError(
            "the CUDA runtime's headers",
            "install the CUDA toolkit, or torch with its own CUDA packages",
        )
    flags = [word for folder in folders[:1] for word in ("-isystem", str(folder))]
    # pip's headers of the runtime lack a part (crt/) that those of its compiler have, and
    # triton's, installed with torch.
    triton = site / "triton" / "backends" / "nvidia" / "include"
    for folder in [site / "nvidia" / "cuda_nvcc" / "include", triton, *folders[1:]]:
        if folder.is_dir():
            flags += ["-idirafter", str(folder)]
    return flags


def compiler() -> str:
    """The C++ compiler: CXX if that is set and there, else the first that is found.

    Raises:
        UnavailableError: There is none.
    """
    for name in (os.environ.get("CXX", ""), "g++", "c++", "clang++"):
        found = shutil.which(name) if name else None
        if found:
            return found
    raise UnavailableError(
        "a C++ compiler", "install g++, or run 'neutracer setup hooks' where there is one"
    )


def command(goal: Target, output: Path) -> list[str]:
    """The one call of the compiler that builds the hooks.

    Args:
        goal: What for.
        output: The file that it writes.

    Raises:
        UnavailableError: The compiler or headers are missing.
    """
    torch = goal.torch
    python = sysconfig.get_paths()["include"]
    if not Path(python, "Python.h").exists():
        raise UnavailableError("Python's headers", "install python3-dev (or python3-devel)")
    headers = torch.folder / "include"
    if not (headers / "c10").is_dir():
        raise UnavailableError("torch's C++ headers", f"there are none in {headers}")
    folder = source_folder()
    words = [compiler(), *flags(torch), f'-DNT_TORCH_BUILD_KEY="{goal.key}"']
    words += [f"-I{folder / 'torch'}", f"-I{folder / 'core'}"]
    words += ["-isystem", str(headers), "-isystem", python]
    if torch.backend == "cuda":
        words += _cuda_includes(torch)
    words += [str(path) for path in _sources()]
    libraries = ["-lc10", "-lc10_cuda" if torch.backend == "cuda" else "-ltorch_cpu"]
    return [*words, f"-L{torch.folder / 'lib'}", *libraries, "-o", str(output)]


def find(goal: Target) -> Path | None:
    """The compiled hooks: in NEUTRACER_HOOKS if that is set, else in the cache, else the wheel's.

    A key names all of a module's ABI, so one that is there is for this very build of torch.

    It skips what others could have written, and what this user can't read.
    """
    for path in _compiled(goal):
        with contextlib.suppress(OSError):
            if path.is_file() and not unsafe(path):
                return path
    return None


def _compiled(goal: Target) -> list[Path]:
    """Where the compiled hooks may be."""
    named = os.environ.get("NEUTRACER_HOOKS")
    folders = [Path(named)] if named else []
    with contextlib.suppress(UnavailableError):
        folders.append(cache_folder())
    folders.append(PREBUILT)
    return [resolved(folder / goal.key / goal.file) for folder in folders]


def passed_over(goal: Target) -> list[str]:
    """Why compiled hooks that are there are not used, a reason each."""
    reasons = []
    for path in _compiled(goal):
        try:
            reasons.append(unsafe(path) if path.is_file() else "")
        except OSError as error:
            reasons.append(f"{path} can't be read ({error.strerror})")
    return [reason for reason in reasons if reason]


def obstacle(goal: Target) -> str:
    """Why the hooks can't be compiled into the cache, in one sentence; "" where they can."""
    try:
        command(goal, Path(os.devnull))
    except UnavailableError as error:
        return str(error)
    return why_not(None, goal.key)


def build(goal: Target, folder: Path | None = None, *, again: bool = False) -> Path:
    """Compile the hooks, unless they are there.

    Several processes may do so at once: one compiles, the others wait for it.

    Args:
        goal: What for.
        folder: Where to, None for the cache.
        again: Compile even if they are there.

    Returns:
        The compiled module.

    Raises:
        UnavailableError: Compiler, headers or a safe folder are missing, or the
            compiler failed; the reason ends with what it said.
    """
    place = prepare(folder, goal.key)
    path = place.path / goal.file
    try:
        with alone(place.path):
            if again or not place.trusted or not path.is_file() or unsafe(path):
                compile_into(path, place.mode, lambda made: command(goal, made))
    except OSError as error:
        raise UnavailableError("a folder for the hooks", str(error)) from error
    return path
