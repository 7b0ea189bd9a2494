# SPDX-License-Identifier: Apache-2.0
"""Builds and caches the C++ shim for the installed PyTorch.

The shim observes c10's allocators; it is compiled once per PyTorch release into a folder that
only this user can write to.
"""

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

# Whether the torch that runs does what the hooks rely on, beyond what a compiler can see.

#: What there is where the hooks can't be had.
FALLBACK = "PyTorch's own Python entry points are used instead"

#: How `torch.autograd.profiler` starts and ends a profiler in a thread.
PROFILER_FUNCTIONS = ("_enable_profiler", "_disable_profiler")


def difference(module: Any) -> str:
    """How this torch differs from what the hooks need, as a sentence, or "".

    Args:
        module: The module `_torch`, with nothing attached by it.

    Raises:
        RuntimeError: It can't be tried out here.
    """
    if module.backend != "cpu":
        return ""
    return _profiler_difference() or _allocator_difference(module)


def _profiler_difference() -> str:
    """The profiler and the watch want the same place of a thread: the watch has to notice."""
    profiler: Any = sys.modules.get("torch.autograd.profiler")
    made = vars(getattr(profiler, "profile", object)).values()
    codes = [one.__code__ for one in made if isinstance(one, FunctionType)]
    called = {name for code in codes for name in code.co_names}
    lacking = [n for n in PROFILER_FUNCTIONS if not hasattr(profiler, n) or n not in called]
    if not lacking:
        return ""
    return f"PyTorch's profiler does without torch.autograd.profiler.{lacking[0]}"


def _allocator_difference(module: Any) -> str:
    told: str = module.differs()
    return f"its CPU allocator is another one: {told}" if told else ""


# ---- Folder ------------------------------------------------------------------------------

# The folder of the compiled hooks: where it is, and whether others can write to it.

#: Whose a build in the cache is, and who may use one in a folder that somebody named: an
#: image's, say, which root builds for all of its users. The umask can take away from both.
_PRIVATE, _READABLE = 0o700, 0o755
_WRITABLE_BY_OTHERS = 0o022

#: Ten times what a build takes, with the files that a compiler makes for itself.
_NEEDED_BYTES = 4 << 20

_WHAT = "a folder for the hooks"


@dataclass(frozen=True)
class Place:
    """The folder of one build, which nobody else can write to.

    Attributes:
        path: The folder.
        mode: The bits that what is put there may have.
        trusted: Nobody else could write to it before, either.
    """

    path: Path
    mode: int
    trusted: bool


def cache_folder() -> Path:
    """Where the hooks are kept for this user; NEUTRACER_CACHE names another place.

    Raises:
        UnavailableError: This user has no home.
    """
    return _cache()[0]


def _cache() -> tuple[Path, int]:
    """The cache, and how many of its last levels are neutracer's own."""
    named = os.environ.get("NEUTRACER_CACHE")
    if named:
        return Path(named).absolute() / "hooks", 1
    base = os.environ.get("XDG_CACHE_HOME", "")
    # Its specification has a relative one ignored.
    if not os.path.isabs(base):
        home = os.path.expanduser("~")
        if not os.path.isabs(home) or os.environ.get("HOME") == "":
            raise UnavailableError(_WHAT, f"this user has no home; {_hint(None)}")
        base = os.path.join(home, ".cache")
    return Path(base, "neutracer", "hooks"), 2


def _hint(folder: Path | None) -> str:
    return "NEUTRACER_CACHE names another place" if folder is None else "name another one"


def resolved(path: Path) -> Path:
    """What a path names, without links that somebody could turn elsewhere after a check."""
    return Path(os.path.realpath(path))


def unsafe(path: Path) -> str:
    """Why others than this user and root could exchange a file or folder, or "".

    They could if they may write to it, or to any folder above it. In a sticky folder, as
    /tmp is one, they can only exchange what is theirs.

    Args:
        path: Where it is; it is `resolved`.

    Raises:
        OSError: It can't be looked at.
    """
    for level in (path, *path.parents):
        found = level.lstat()
        above = level != path
        if found.st_uid not in (os.geteuid(), 0) and not (above and _is_unmapped(found.st_uid)):
            return f"{level} belongs to another user"
        sticky = above and found.st_mode & stat.S_ISVTX
        if not sticky and _is_open(level, found):
            return f"{level} can be written by others ('chmod go-w' ends that)"
    return ""


def _is_open(level: Path, found: os.stat_result) -> bool:
    """Whether its mode lets others write to it; a group of this user alone is no others."""
    if found.st_mode & stat.S_IWOTH:
        return True
    return bool(found.st_mode & stat.S_IWGRP) and not _is_own_group(level, found.st_gid)


def _is_own_group(level: Path, gid: int) -> bool:
    """Whether a group is the one that a system makes for each user, or root's.

    Members can be unknown here, where a directory service has them: so it has the user's
    name as well. With an access list the bits of the group are those of others, too.
    """
    try:
        if "system.posix_acl_access" in os.listxattr(level):
            return False
    except OSError:
        # A file system without access lists.
        pass
    try:
        user, group = pwd.getpwuid(os.geteuid()).pw_name, grp.getgrgid(gid)
    except KeyError:
        return False
    members = {*group.gr_mem, *(one.pw_name for one in pwd.getpwall() if one.pw_gid == gid)}
    return group.gr_name in (user, "root") and members <= {user, "root"}


def _is_unmapped(uid: int) -> bool:
    """Whether this is how a user namespace, as a container without root has it, shows the
    owners that it doesn't know: root of the machine is one of them."""
    try:
        shown = int(Path("/proc/sys/kernel/overflowuid").read_text())
        lines = Path("/proc/self/uid_map").read_text().splitlines()
    except (OSError, ValueError):
        return False
    ranges = [(int(first), int(count)) for first, _, count in map(str.split, lines)]
    return uid == shown and not any(first <= uid < first + count for first, count in ranges)


def why_not(folder: Path | None, key: str) -> str:
    """Why a build can't be put there, and what to do, in one sentence; "" if it can.

    It leaves nothing behind: a folder that it makes to try is removed at once.

    Args:
        folder: What the user named, None for the cache.
        key: The build's own level under it.
    """
    try:
        home, own = _cache() if folder is None else (folder, 0)
        levels = [home / key, *(home / key).parents]
        there = next(level for level in levels if os.path.lexists(level))
        with tempfile.TemporaryDirectory(dir=there):
            pass
        # What belongs to this user of neutracer's own levels, `prepare` closes to others.
        kept = [level for level in levels[own + 1 :] if level.exists()] or [there]
        problem = unsafe(resolved(kept[0])) or _no_room(there)
    except UnavailableError as error:
        return error.install
    except OSError as error:
        name = error.filename if isinstance(error.filename, str) else str(there)
        shown = str(there) if Path(name).parent == there else name
        problem = f"nothing can be written to {shown} ({error.strerror})"
    return f"{problem}; {_hint(folder)}" if problem else ""


def _no_room(there: Path) -> str:
    """Why a build is too large to be written, or ""."""
    disk, needed = os.statvfs(there), format_bytes(_NEEDED_BYTES)
    if disk.f_blocks and disk.f_bavail * disk.f_frsize < _NEEDED_BYTES:
        return f"the disk of {there} is full, and a build takes {needed}"
    largest = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    if 0 <= largest < _NEEDED_BYTES:
        return f"'ulimit -f' lets files have {format_bytes(largest)}, and a build takes {needed}"
    return ""


def prepare(folder: Path | None, key: str) -> Place:
    """Make the folder of one build, or repair the existing one.

    A level of neutracer's own that belongs to this user and that others can write to, as a
    umask of 002 leaves it, is closed to them. It leaves what the user named or made as it is.

    Args:
        folder: What the user named, None for the cache.
        key: The build's own level under it.

    Raises:
        UnavailableError: It can't be made, or is not safe; the reason says which.
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
        # From the outside in: what is inside a closed folder can't be exchanged.
        mended = [_mend(level, mode) for level in reversed(levels)]
        path = resolved(path)
        reason = unsafe(path)
    except OSError as error:
        raise UnavailableError(_WHAT, f"{error}; {_hint(folder)}") from error
    if reason:
        raise UnavailableError(_WHAT, f"{reason}; {_hint(folder)}")
    return Place(path, mode, not any(mended))


def _make(folder: Path, mode: int) -> None:
    """Make a folder; `Path.mkdir` would give its mode to the last level only."""
    if not folder.is_dir():
        _make(folder.parent, mode)
        folder.mkdir(mode, exist_ok=True)


def _mend(folder: Path, mode: int) -> bool:
    """Close a folder of this user's to others; whether they could write to it."""
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

# A compiler run in a build's folder: alone, leaving nothing half made.

_LIMIT_S = 600


@contextlib.contextmanager
def alone(place: Path) -> Iterator[None]:
    """One process at a time in a build's folder, where the file system can lock.

    What builds that were killed have left is removed.

    Raises:
        OSError: Nothing can be written there.
    """
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
    """Remove what builds that were killed have left; whoever builds holds the lock."""
    for left in place.iterdir():
        if made_here(left.name) and left.is_dir():
            shutil.rmtree(left, ignore_errors=True)


def compile_into(path: Path, mode: int, command: Callable[[Path], list[str]]) -> None:
    """Put a compiled module there, with its user's rights and those of `mode` at most.

    Args:
        path: Where to.
        mode: The bits that it may have.
        command: The call of the compiler that writes the file given.

    Raises:
        UnavailableError: The compiler failed; the reason ends with what it said.
        OSError: It can't be written.
    """
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
    """Run a compiler, which has its own files in `scratch`."""
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


#: What a compiler says of a machine, and what to do. Its last line would not say it.
_REMEDIES = {
    "No space left": "make room there, or NEUTRACER_CACHE names another place",
    "quota exceeded": "make room there, or NEUTRACER_CACHE names another place",
    "File size limit": "'ulimit -f' says how large a file may be",
    "File too large": "'ulimit -f' says how large a file may be",
    "Killed signal": "memory may be short: try again",
}


def _last_words(text: str) -> str:
    """What a compiler said, without its position, and what to do where that is known."""
    for line in text.splitlines():
        remedy = next((_REMEDIES[words] for words in _REMEDIES if words in line), "")
        if remedy:
            return f"{line.strip()[:500]}; {remedy}"
    lines = [line for line in text.splitlines() if "error" in line.lower()]
    return (lines or text.splitlines() or ["it gave no reason"])[0].strip()[:500]


# ---- Build -------------------------------------------------------------------------------

# Where the hooks on c10 are found, and how they are compiled for the installed torch.

#: The releases of torch that the hooks were run on, by backend: with CUDA the whole of 2.11,
#: and the device allocator of the later ones (tests/gpu/test_c10_releases.py); for the CPU the
#: whole of each (tests/hooks/test_releases.py).
RUN_ON = dict.fromkeys(("cuda", "cpu"), ((2, 11), (2, 12), (2, 13), (2, 14), (2, 15)))

#: Files that are compiled, and headers of the core that they include.
_FOLDERS = ("torch", "core/base", "core/trace")
_HEADERS = ("core/base/nt_ring.h", "core/base/nt_ring_origins.h", "core/trace/nt_live_api.h")

_UNTRIED = "NEUTRACER_HOOKS_UNTRIED"

#: What a wheel has compiled for releases of torch, laid out as the cache is.
PREBUILT = Path(__file__).parents[1] / "prebuilt"


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
    package = Path(__file__).parents[1]
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
