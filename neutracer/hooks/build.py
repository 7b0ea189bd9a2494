# SPDX-License-Identifier: Apache-2.0
"""Builds the C++ shim on c10's allocators, once per PyTorch release, into a private folder."""

from __future__ import annotations

import contextlib
import fcntl
import grp
import hashlib
import importlib.machinery
import importlib.util
import os
import platform
import pwd
import re
import resource
import shutil
import signal
import stat
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType
from typing import Any

from neutracer.errors import UnavailableError, missing
from neutracer.saving import made_here, unfinished_name
from neutracer.units import format_bytes

# ---- Check -------------------------------------------------------------------------------

# Runtime checks of what the hooks rely on and a compiler can't verify.

#: The fallback without hooks.
FALLBACK = "PyTorch's own Python entry points are used instead"

#: The functions that start and end a profiler on a thread.
PROFILER_FUNCTIONS = ("_enable_profiler", "_disable_profiler")


def difference(module: Any) -> str:
    """How this torch differs from the hooks' expectations, as a clause, or ""."""
    if module.backend != "cpu":
        return ""
    found = _profiler_difference()
    if not found and (text := module.differs()):
        found = f"its CPU allocator is another one: {text}"
    return found


def _profiler_difference() -> str:
    """The profiler and the watch share one slot per thread, so the watch must notice it."""
    profiler: Any = sys.modules.get("torch.autograd.profiler")
    made = vars(getattr(profiler, "profile", object)).values()
    codes = [one.__code__ for one in made if isinstance(one, FunctionType)]
    called = {name for code in codes for name in code.co_names}
    lacking = [n for n in PROFILER_FUNCTIONS if not hasattr(profiler, n) or n not in called]
    if not lacking:
        return ""
    return f"PyTorch's profiler does without torch.autograd.profiler.{lacking[0]}"


# ---- Folder ------------------------------------------------------------------------------

#: Modes of a build in the cache, and in a named folder, which root may fill for all users of an
#: image; both are subject to the umask.
_PRIVATE, _READABLE = 0o700, 0o755
_WRITABLE_BY_OTHERS = 0o022

#: Ten times the size of a build with the compiler's own files.
_NEEDED_BYTES = 4 << 20

_WHAT = "a folder for the hooks"


@dataclass(frozen=True)
class Place:
    """The folder of one build, writable by this user and root only."""

    path: Path
    mode: int  # The permission bits that files in it may have.
    trusted: bool  # False if others could write to it before.


def cache_folder() -> Path:
    """The folder of this user's hooks; NEUTRACER_CACHE overrides it."""
    return _cache()[0]


def _cache() -> tuple[Path, int]:
    """The cache folder, and the number of its last levels that are neutracer's own."""
    named = os.environ.get("NEUTRACER_CACHE")
    if named:
        return Path(named).absolute() / "hooks", 1
    base = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG specification ignores relative paths.
    if not os.path.isabs(base):
        home = os.path.expanduser("~")
        if not os.path.isabs(home) or os.environ.get("HOME") == "":
            raise UnavailableError(_WHAT, f"this user has no home; {_hint(None)}")
        base = os.path.join(home, ".cache")
    return Path(base, "neutracer", "hooks"), 2


def _hint(folder: Path | None) -> str:
    return "set NEUTRACER_CACHE to another folder" if folder is None else "choose another folder"


def resolved(path: Path) -> Path:
    """A path without links, which could be redirected after a check."""
    return Path(os.path.realpath(path))


def unsafe(path: Path) -> str:
    """Why users other than this one and root could replace a file or folder, or "".

    They can if they may write to it or to a folder above it; in a sticky folder like /tmp they
    can replace only their own files.
    """
    for level in (path, *path.parents):
        found = level.lstat()
        above = level != path
        if found.st_uid not in (os.geteuid(), 0) and not (above and _is_unmapped(found.st_uid)):
            return f"{level} belongs to another user"
        sticky = above and found.st_mode & stat.S_ISVTX
        by_group = found.st_mode & stat.S_IWGRP and not _is_own_group(level, found.st_gid)
        if not sticky and (found.st_mode & stat.S_IWOTH or by_group):
            return f"{level} is writable by others (fix it with 'chmod go-w')"
    return ""


def _is_own_group(level: Path, gid: int) -> bool:
    """True for a user's private group, or root's.

    The group must also have the user's name, since a directory service may hide members. With
    an access list the group's bits cover other users too.
    """
    try:
        if "system.posix_acl_access" in os.listxattr(level):
            return False
    except OSError:
        pass  # a file system without access lists
    try:
        user, group = pwd.getpwuid(os.geteuid()).pw_name, grp.getgrgid(gid)
    except KeyError:
        return False
    members = {*group.gr_mem, *(one.pw_name for one in pwd.getpwall() if one.pw_gid == gid)}
    return group.gr_name in (user, "root") and members <= {user, "root"}


def _is_unmapped(uid: int) -> bool:
    """True for the id of unmapped owners, such as the host's root, in a user namespace."""
    try:
        shown = int(Path("/proc/sys/kernel/overflowuid").read_text())
        lines = Path("/proc/self/uid_map").read_text().splitlines()
    except (OSError, ValueError):
        return False
    ranges = [(int(first), int(count)) for first, _, count in map(str.split, lines)]
    return uid == shown and not any(first <= uid < first + count for first, count in ranges)


def why_not(folder: Path | None, key: str) -> str:
    """Why a build can't be stored in a folder (None: the cache), with a remedy, or ""."""
    try:
        home, own = _cache() if folder is None else (folder, 0)
        levels = [home / key, *(home / key).parents]
        there = next(level for level in levels if os.path.lexists(level))
        with tempfile.TemporaryDirectory(dir=there):
            pass
        # `prepare` closes neutracer's own levels to others.
        kept = [level for level in levels[own + 1 :] if level.exists()] or [there]
        problem = unsafe(resolved(kept[0])) or _no_room(there)
    except UnavailableError as error:
        return error.install
    except OSError as error:
        name = error.filename if isinstance(error.filename, str) else str(there)
        shown = str(there) if Path(name).parent == there else name
        problem = f"cannot write to {shown} ({error.strerror})"
    return f"{problem}; {_hint(folder)}" if problem else ""


def _no_room(there: Path) -> str:
    disk, needed = os.statvfs(there), format_bytes(_NEEDED_BYTES)
    if disk.f_blocks and disk.f_bavail * disk.f_frsize < _NEEDED_BYTES:
        return f"the disk of {there} is full, and a build takes {needed}"
    largest = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    if 0 <= largest < _NEEDED_BYTES:
        return f"'ulimit -f' limits files to {format_bytes(largest)}, and a build takes {needed}"
    return ""


def prepare(folder: Path | None, key: str) -> Place:
    """Make the folder of one build below a user's folder or the cache, or repair it.

    Neutracer's own levels that are writable by others, as after a umask of 002, are closed to
    them; folders of the user's choice are left as they are.
    """
    problem = why_not(folder, key)
    if problem:
        raise UnavailableError(_WHAT, problem)
    home, own = _cache() if folder is None else (folder, 0)
    mode = _PRIVATE if folder is None else _READABLE
    path = home / key
    try:
        _make(path, mode)
        levels = [path, *path.parents][: own + 1]
        # From the outside in: files in a closed folder can't be replaced.
        mended = [_mend(level, mode) for level in reversed(levels)]
        path = resolved(path)
        reason = unsafe(path)
    except OSError as error:
        raise UnavailableError(_WHAT, f"{error}; {_hint(folder)}") from error
    if reason:
        raise UnavailableError(_WHAT, f"{reason}; {_hint(folder)}")
    return Place(path, mode, not any(mended))


def _make(folder: Path, mode: int) -> None:
    """Make a folder; `Path.mkdir` would apply the mode to the last level only."""
    if not folder.is_dir():
        _make(folder.parent, mode)
        folder.mkdir(mode, exist_ok=True)


def _mend(folder: Path, mode: int) -> bool:
    """Close this user's folder to others; returns True if they could write to it."""
    if folder.is_symlink():
        return False
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        found = os.fstat(handle)
        if found.st_uid != os.geteuid() or not found.st_mode & _WRITABLE_BY_OTHERS:
            return False
        os.fchmod(handle, stat.S_IMODE(found.st_mode) & mode)
        return True
    finally:
        os.close(handle)


# ---- Compiling ---------------------------------------------------------------------------

_LIMIT_S = 600


@contextlib.contextmanager
def alone(place: Path) -> Iterator[None]:
    """Lock a build's folder, if the file system can, and remove leftovers of killed builds."""
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    handle = os.open(place / "lock", flags, 0o600)
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX)
            _remove_leftovers(place)
        yield
    finally:
        os.close(handle)


def _remove_leftovers(place: Path) -> None:
    for left in place.iterdir():
        if made_here(left.name) and left.is_dir():
            shutil.rmtree(left, ignore_errors=True)


def compile_into(path: Path, mode: int, command: Callable[[Path], list[str]]) -> None:
    """Compile a module atomically into `path`."""
    scratch = path.parent / unfinished_name()
    scratch.mkdir(0o700)
    try:
        made = scratch / path.name
        _run(command(made), scratch)
        made.chmod(stat.S_IRWXU | (stat.S_IMODE(made.stat().st_mode) & mode))
        os.replace(made, path)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _run(words: list[str], scratch: Path) -> None:
    what, environ = "a build of the hooks", {**os.environ, "TMPDIR": str(scratch)}
    try:
        done = subprocess.run(
            words, capture_output=True, text=True, timeout=_LIMIT_S, env=environ, errors="replace"
        )
    except subprocess.TimeoutExpired:
        raise UnavailableError(what, f"compiling took over {_LIMIT_S} s") from None
    except OSError as error:
        raise UnavailableError(what, f"{words[0]} can't be run ({error.strerror})") from None
    if done.returncode < 0:
        name = signal.Signals(-done.returncode).name
        raise UnavailableError(what, f"{words[0]} was ended by {name}; try again")
    if done.returncode:
        raise UnavailableError(what, f"{words[0]} failed: {_last_words(done.stderr)}")


#: Remedies by a compiler's message on the machine.
_REMEDIES = {
    "No space left": "make room there, or set NEUTRACER_CACHE to another folder",
    "quota exceeded": "make room there, or set NEUTRACER_CACHE to another folder",
    "File size limit": "'ulimit -f' limits the size of files",
    "File too large": "'ulimit -f' limits the size of files",
    "Killed signal": "memory may be short: try again",
}


def _last_words(text: str) -> str:
    for line in text.splitlines():
        remedy = next((hint for error, hint in _REMEDIES.items() if error in line), "")
        if remedy:
            return f"{line.strip()[:500]}; {remedy}"
    lines = [line for line in text.splitlines() if "error" in line.lower()]
    return (lines or text.splitlines() or ["no message"])[0].strip()[:500]


# ---- Build -------------------------------------------------------------------------------

#: Tested releases of torch, by backend. CUDA: all of 2.11, and the device allocator of later ones
#: (tests/gpu/test_c10_releases.py). CPU: all of each (tests/hooks/test_releases.py).
RUN_ON = dict.fromkeys(("cuda", "cpu"), ((2, 11), (2, 12), (2, 13), (2, 14), (2, 15)))

#: The core's headers that the hooks include.
_HEADERS = ("core/base/nt_ring.h", "core/base/nt_ring_origins.h", "core/trace/nt_live_api.h")

_UNTRIED = "NEUTRACER_HOOKS_UNTRIED"

#: A wheel's compiled hooks, laid out as the cache.
PREBUILT = Path(__file__).parents[1] / "prebuilt"


@dataclass(frozen=True)
class Torch:
    """An installed torch."""

    version: str  # `torch.__version__`.
    backend: str  # "cuda", "cpu", or the name of another one.
    folder: Path
    built: str = ""  # The backend's version and the commit of the build.

    @property
    def release(self) -> tuple[int, int]:
        """Major and minor version."""
        match = re.match(r"(\d+)\.(\d+)", self.version)
        return (int(match[1]), int(match[2])) if match else (0, 0)


@dataclass(frozen=True)
class Target:
    """The target of a compilation."""

    torch: Torch
    # Identifies all dependencies of the compiled module: torch's version, the interpreter and its
    # ABI, the machine, the sources.
    key: str
    file: str


def installed_torch() -> Torch:
    """The torch that `import torch` would import, found without importing it."""
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
        raise UnavailableError("torch's version", f"it is not in {folder / 'version.py'}")
    backend = next((name for name in ("hip", "xpu", "cuda") if name in facts), "cpu")
    built = f"{facts.get(backend, '')} {facts.get('git_version', '')}"
    return Torch(facts["__version__"], backend, folder, built)


def source_folder() -> Path:
    """The folder `csrc` with the hooks' sources: in the package, or beside it in a checkout."""
    package = Path(__file__).parents[1]
    for folder in (package / "csrc", package.parent / "csrc"):
        if (folder / "torch").is_dir():
            return folder
    raise UnavailableError("the source of the hooks", "install neutracer again")


def target() -> Target:
    """The target of the hooks here."""
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
    if sys.implementation.name != "cpython":
        return f"they are for CPython; {FALLBACK}"
    known = RUN_ON.get(torch.backend)
    if known is None:
        return f"they are for torch with CUDA or for the CPU, not {torch.backend}; {FALLBACK}"
    if torch.release in known or os.environ.get(_UNTRIED) == "1":
        return ""
    names = ", ".join(f"{major}.{minor}" for major, minor in known)
    return (
        f"they were tested on torch {names} ({torch.backend}) and this is {torch.version}; "
        f"{FALLBACK} ({_UNTRIED}=1 uses them anyway)"
    )


def _source_hash(torch: Torch) -> str:
    folder = source_folder()
    files = [*sorted((folder / "torch").glob("*.?pp")), *(folder / name for name in _HEADERS)]
    # Local builds with and without CUDA may share a version.
    built = (torch.backend, torch.built, flags(torch))
    digest = hashlib.sha256(repr(built).encode())
    for file in files:
        digest.update(file.name.encode() + b"\0" + file.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def _cxx_abi() -> int:
    loaded = getattr(sys.modules.get("torch"), "_C", None)
    return int(getattr(loaded, "_GLIBCXX_USE_CXX11_ABI", True))


def flags(torch: Torch) -> list[str]:
    """The compiler's flags that don't depend on paths."""
    return [
        f"-std={'c++20' if torch.release >= (2, 12) else 'c++17'}",
        *("-O2", "-DNDEBUG", "-fPIC", "-shared", "-pthread", "-fvisibility=hidden"),
        f"-D_GLIBCXX_USE_CXX11_ABI={_cxx_abi()}",
        f'-DNT_TORCH_BUILT_FOR="{torch.version}"',
    ]


def _cuda_includes(torch: Torch) -> list[str]:
    """Folders with the CUDA runtime's headers: pip's beside torch, conda's, or a toolkit's."""
    site = torch.folder.parent
    # pip has one folder for CUDA 13, and one per part for CUDA 12.
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
    # pip's runtime headers lack crt/, which its compiler's and triton's headers have.
    triton = site / "triton" / "backends" / "nvidia" / "include"
    for folder in [site / "nvidia" / "cuda_nvcc" / "include", triton, *folders[1:]]:
        if folder.is_dir():
            flags += ["-idirafter", str(folder)]
    return flags


def compiler() -> str:
    """The C++ compiler: CXX if it exists, else the first that is found."""
    for name in (os.environ.get("CXX", ""), "g++", "c++", "clang++"):
        found = shutil.which(name) if name else None
        if found:
            return found
    raise UnavailableError(
        "a C++ compiler", "install g++, or run 'neutracer setup hooks' where there is one"
    )


def command(goal: Target, output: Path) -> list[str]:
    """The compiler's command line."""
    torch = goal.torch
    python = sysconfig.get_paths()["include"]
    if not Path(python, "Python.h").exists():
        raise UnavailableError("Python's headers", "install python3-dev (or python3-devel)")
    headers = torch.folder / "include"
    if not (headers / "c10").is_dir():
        raise UnavailableError("torch's C++ headers", f"{headers} has none")
    folder = source_folder()
    words = [compiler(), *flags(torch), f'-DNT_TORCH_BUILD_KEY="{goal.key}"']
    words += [f"-I{folder / 'torch'}", f"-I{folder / 'core'}"]
    words += ["-isystem", str(headers), "-isystem", python]
    if torch.backend == "cuda":
        words += _cuda_includes(torch)
    words += [str(path) for path in sorted((folder / "torch").glob("*.cpp"))]
    libraries = ["-lc10", "-ltorch_cpu"]
    libraries += ["-lc10_cuda"] if torch.backend == "cuda" else []
    return [*words, f"-L{torch.folder / 'lib'}", *libraries, "-o", str(output)]


def find(goal: Target) -> Path | None:
    """The compiled hooks: from NEUTRACER_HOOKS, else the cache, else the wheel.

    It skips files that others could have written, and unreadable ones.
    """
    for path in _compiled(goal):
        with contextlib.suppress(OSError):
            if path.is_file() and not unsafe(path):
                return path
    return None


def _compiled(goal: Target) -> list[Path]:
    named = os.environ.get("NEUTRACER_HOOKS")
    folders = [Path(named)] if named else []
    with contextlib.suppress(UnavailableError):
        folders.append(cache_folder())
    folders.append(PREBUILT)
    return [resolved(folder / goal.key / goal.file) for folder in folders]


def passed_over(goal: Target) -> list[str]:
    """The reasons why existing compiled hooks are not used."""
    reasons = []
    for path in _compiled(goal):
        try:
            reasons.append(unsafe(path) if path.is_file() else "")
        except OSError as error:
            reasons.append(f"{path} can't be read ({error.strerror})")
    return [reason for reason in reasons if reason]


def obstacle(goal: Target) -> str:
    """Why the hooks can't be compiled into the cache, or ""."""
    try:
        command(goal, Path(os.devnull))
    except UnavailableError as error:
        return str(error)
    return why_not(None, goal.key)


def build(goal: Target, folder: Path | None = None, *, again: bool = False) -> Path:
    """Compile the hooks if needed; of concurrent processes one compiles, the others wait."""
    place = prepare(folder, goal.key)
    path = place.path / goal.file
    try:
        with alone(place.path):
            if again or not place.trusted or not path.is_file() or unsafe(path):
                compile_into(path, place.mode, lambda made: command(goal, made))
    except OSError as error:
        raise UnavailableError("a folder for the hooks", str(error)) from error
    return path
