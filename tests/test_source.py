# SPDX-License-Identifier: Apache-2.0
"""The rules of docs/architecture.md, held against the source text and the compiled core."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CORE = ROOT / "csrc" / "core"
CORE_FILES = sorted(CORE.rglob("*.[ch]"))
CORE_HEADERS = sorted(CORE.rglob("*.h"))
HEAP = ROOT / "csrc" / "pyheap"
HEAP_FILES = sorted(HEAP.rglob("*.[ch]"))
C_FILES = sorted([*ROOT.glob("csrc/**/*.[ch]"), *ROOT.glob("tests/**/*.[ch]")])
PYTHON_FILES = sorted(ROOT.glob("neutracer/**/*.py"))

MOST_C_LINES = 600
MOST_C_FUNCTION_LINES = 70

#: What the core may include of the C library.
STANDARD_HEADERS = {
    f"{name}.h"
    for name in [
        "inttypes",
        "limits",
        "locale",
        "math",
        "stdarg",
        "stdbool",
        "stddef",
        "stdint",
        "stdio",
        "stdlib",
        "string",
    ]
}
#: What single modules may include besides, and take from it.
EXTRA_HEADERS = {
    "nt_base": {"sys/mman.h"},
    "nt_library": {"dlfcn.h"},  # the one module that loads others' libraries
    "nt_cupti": {"pthread.h"},  # CUPTI hands its buffers over on threads of its own
    # A thread that is deaf to signals, and sleeps in one call of the kernel.
    "nt_sampler": {
        *("pthread.h", "signal.h", "stdatomic.h", "time.h"),
        *("linux/futex.h", "sys/syscall.h", "unistd.h"),
    },
}
EXTRA_SYMBOLS = {
    "nt_base": {"mmap", "munmap", "mremap", "madvise"},
    "nt_library": {"dlopen", "dlsym", "dlclose", "dlerror"},
    "nt_cupti": {"pthread_mutex_lock", "pthread_mutex_unlock"},
    "nt_sampler": {
        *("clock_gettime", "sigfillset", "pthread_sigmask", "pthread_getcpuclockid"),
        *("pthread_create", "pthread_join", "pthread_self", "pthread_setname_np"),
        *(f"pthread_attr_{verb}" for verb in ("init", "destroy", "setstacksize")),
        *(f"pthread_mutex_{verb}" for verb in ("init", "destroy", "lock", "unlock")),
        *(f"pthread_condattr_{verb}" for verb in ("init", "destroy", "setclock")),
        *(f"pthread_cond_{verb}" for verb in ("init", "destroy", "wait", "timedwait")),
        *("pthread_cond_signal", "pthread_cond_broadcast", "syscall"),
    },
}

#: Every symbol that the compiled core may take from outside.
OUTSIDE_SYMBOLS = {
    *("memchr", "memcmp", "memcpy", "memmove", "memset"),
    *("strlen", "strcmp", "strncmp", "strchr", "strstr", "strtod", "localeconv"),
    *("malloc", "realloc", "free", "snprintf", "vsnprintf"),
    *("_GLOBAL_OFFSET_TABLE_", "__stack_chk_fail"),
}

BANNED_IN_CORE = re.compile(
    r"\b(?:v?[fd]?printf|puts|putchar|fputs|perror|exit|_Exit|abort|assert|errno|strcpy|strcat"
    r"|stpcpy|v?sprintf|gets|alloca|setjmp|longjmp|signal|Py\w+|stdout|stderr)\b"
)

#: Words that belong to one machine or one moment, and to no project.
FORBIDDEN = re.compile(
    r"/(?:root|work|mnt)/|/home/\w|\.pyenv/versions|STOP_READ|\bTODO\b|\bFIXME\b|\bXXX\b"
    r"|\bissue #?\d|\bpypi\.(?:org|python)|pythonhosted|download\.pytorch|anaconda\.",
)
TEXT_SUFFIXES = {
    ".c",
    ".h",
    ".cpp",
    ".hpp",
    ".py",
    ".pyi",
    ".md",
    ".toml",
    ".in",
    ".ipynb",
    ".dict",
    ".txt",
    "",
}
SKIPPED_FOLDERS = {".git", ".hypothesis", ".venv", "build", "dist", "data", "corpus", "__pycache__"}


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def project_files() -> list[Path]:
    found = []
    for folder, folders, names in os.walk(ROOT):
        folders[:] = [
            name
            for name in folders
            if name not in SKIPPED_FOLDERS and not name.endswith(("_cache", ".egg-info"))
        ]
        found += [Path(folder, name) for name in names]
    # A worktree's `.git` is a file, which names the checkout's folder.
    return sorted(path for path in found if path.suffix in TEXT_SUFFIXES and path.name != ".git")


def table_rows(heading: str) -> list[list[str]]:
    """The cells of the table under a heading of docs/architecture.md, without its head."""
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    section = re.split(r"^#+ ", text.split(f"### {heading}\n", 1)[1], maxsplit=1, flags=re.M)[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


# ---- the core's arrows -----------------------------------------------------------------


def core_modules() -> list[tuple[str, str]]:
    """(folder, module) in the order of the table: each may include those before it."""
    return [(row[0].strip("`/"), row[1].strip("`")) for row in table_rows("The core")]


def module_of(path: str) -> tuple[str, str] | None:
    """The listed module that a file of the core belongs to."""
    folder, _, name = path.rpartition("/")
    stem = name.rpartition(".")[0]
    mine = [
        (owner, module)
        for owner, module in core_modules()
        if owner == folder and (stem == module or stem.startswith(f"{module}_"))
    ]
    return max(mine, key=lambda entry: len(entry[1]), default=None)


def includes(path: Path) -> list[str]:
    return re.findall(r'^\s*#\s*include\s+([<"][^>"]+[>"])', path.read_text(), re.M)


def test_every_core_file_has_a_listed_module() -> None:
    strangers = [
        path for path in CORE_FILES if module_of(path.relative_to(CORE).as_posix()) is None
    ]
    assert [relative(path) for path in strangers] == []


def test_every_listed_module_has_its_header() -> None:
    missing = [
        f"{folder}/{module}.h"
        for folder, module in core_modules()
        if not (CORE / folder / f"{module}.h").exists()
    ]
    assert missing == []


def wrong_core_includes(path: Path) -> Iterator[str]:
    order = core_modules()
    mine = module_of(path.relative_to(CORE).as_posix())
    assert mine is not None
    for include in includes(path):
        name = include[1:-1]
        if include[0] == "<":
            if name not in STANDARD_HEADERS | EXTRA_HEADERS.get(mine[1], set()):
                yield f"{relative(path)} includes <{name}>"
            continue
        theirs = module_of(name)
        private = theirs is not None and name != f"{theirs[0]}/{theirs[1]}.h"
        if (
            theirs is None
            or order.index(theirs) > order.index(mine)
            or (private and theirs != mine)
        ):
            yield f"{relative(path)} includes {name}"


def test_core_includes_follow_the_table() -> None:
    assert [wrong for path in CORE_FILES for wrong in wrong_core_includes(path)] == []


def test_sources_include_their_own_header_first() -> None:
    owners = [path for path in CORE_HEADERS if path.with_suffix(".c").exists()]
    wrong = [
        relative(header.with_suffix(".c"))
        for header in owners
        if includes(header.with_suffix(".c"))[0] != f'"{header.relative_to(CORE).as_posix()}"'
    ]
    assert wrong == []


# ---- the arrows of csrc/wasm -----------------------------------------------------------

WASM_FILES = sorted(ROOT.glob("csrc/wasm/*.[ch]"))


def test_every_file_of_the_page_is_listed() -> None:
    listed = {row[0].strip("`") for row in table_rows("The page")}
    assert {path.stem for path in WASM_FILES if path.suffix == ".c"} == listed


def test_the_page_includes_core_and_itself_only() -> None:
    core = {path.relative_to(CORE).as_posix() for path in CORE_HEADERS}
    # Private headers of a module are nobody else's.
    core = {name for name in core if module_of(name) and name == "{}/{}.h".format(*module_of(name))}
    allowed = {f'"{name}"' for name in core | {"nt_page.h"}}
    allowed |= {f"<{name}>" for name in STANDARD_HEADERS}
    wrong = [
        f"{relative(path)} includes {include}"
        for path in WASM_FILES
        for include in includes(path)
        if include not in allowed
    ]
    assert wrong == []


# ---- the arrows of csrc/pyheap ---------------------------------------------------------

# The one file that includes CPython's internal headers.
INSIDES = "py_compat_objects_internal.h"


def heap_modules() -> list[str]:
    """Modules of csrc/pyheap, as "walk/ph_walk", in the order of the table."""
    rows = table_rows("The objects of an interpreter")
    return [row[0].strip("`") + row[1].strip("`") for row in rows]


def heap_module(name: str) -> str | None:
    """The listed module that a file of csrc/pyheap belongs to."""
    stem = name.rpartition(".")[0]
    mine = [one for one in heap_modules() if stem == one or stem.startswith(f"{one}_")]
    return max(mine, key=len, default=None)


def in_heap(path: Path) -> str:
    return path.relative_to(HEAP).as_posix()


def test_every_heap_file_has_a_listed_module() -> None:
    assert [in_heap(path) for path in HEAP_FILES if heap_module(in_heap(path)) is None] == []
    for module in heap_modules():
        assert (HEAP / f"{module}.h").exists()


def test_heap_includes_core_and_itself_only() -> None:
    core = {path.relative_to(CORE).as_posix() for path in CORE_HEADERS}
    own = set(map(in_heap, HEAP_FILES))
    public = {"frameobject.h", "structmember.h"}  # CPython's own, beside Python.h
    wrong = []
    for path in HEAP_FILES:
        for include in includes(path):
            name = include[1:-1]
            internal = name.startswith("internal/") and path.name == INSIDES
            if include[0] == '"' and name not in core | own | public and not internal:
                wrong.append(f"{relative(path)} includes {name}")
    assert wrong == []


def test_heap_headers_include_upwards_only() -> None:
    order = heap_modules()
    wrong = []
    for path in HEAP_FILES:
        mine = heap_module(in_heap(path))
        if path.suffix == ".h" and mine is not None:
            theirs = [heap_module(include[1:-1]) for include in includes(path)]
            wrong += [
                f"{relative(path)} includes {module}"
                for module in theirs
                if module is not None and order.index(module) > order.index(mine)
            ]
    assert wrong == []


def test_interpreter_insides_stay_in_one_place() -> None:
    inside = re.compile(r"Py_BUILD_CORE|\bpycore_\w+|internal/")
    files = [*HEAP_FILES, *sorted(ROOT.glob("csrc/py/*.[ch]"))]
    assert [path.name for path in files if inside.search(path.read_text())] == [INSIDES]
    readers = [path for path in files if f'"compat/{INSIDES}"' in includes(path)]
    assert readers
    assert all(re.fullmatch(r"py_compat\w*\.c", path.name) for path in readers)
    assert all(includes(path)[0] == f'"compat/{INSIDES}"' for path in readers)


# ---- the core as the compiler sees it --------------------------------------------------


def compilers() -> list[str]:
    return [name for name in ("gcc", "clang") if shutil.which(name)]


@pytest.mark.parametrize("compiler", compilers())
def test_every_core_header_compiles_alone(compiler: str) -> None:
    flags = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", f"-I{CORE}"]
    for header in CORE_HEADERS:
        text = f'#include "{header.relative_to(CORE).as_posix()}"\ntypedef int nothing_else;\n'
        done = subprocess.run(
            [compiler, *flags, "-x", "c", "-"], input=text, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr


@pytest.mark.skipif(not shutil.which("gcc") or not shutil.which("nm"), reason="needs gcc, nm")
def test_compiled_core_needs_only_these_symbols(tmp_path: Path) -> None:
    sources = [path for path in CORE_FILES if path.suffix == ".c"]
    flags = ["-std=c11", "-fPIC", "-c", "-U_FORTIFY_SOURCE", f"-I{CORE}"]
    subprocess.run(["gcc", *flags, *sources], cwd=tmp_path, check=True, capture_output=True)
    listed = subprocess.run(
        ["nm", "-A", "-P", "-g", *(f"{path.stem}.o" for path in sources)],
        cwd=tmp_path,
        check=True,
        capture_output=True,
        text=True,
    )
    found = []
    for line in listed.stdout.splitlines():
        file, symbol, kind = line.split()[:3]
        extra = EXTRA_SYMBOLS.get(file.partition(".")[0], set())
        if kind == "U" and symbol not in OUTSIDE_SYMBOLS | extra and symbol[:3] != "nt_":
            found.append(f"{file} {symbol}")
    assert found == []


def code_of(path: Path) -> str:
    """C text without its comments and with its strings emptied; lines stay where they are."""
    pattern = r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\''

    def blank(match: re.Match[str]) -> str:
        text = match.group()
        return '""' if text[0] == '"' else "''" if text[0] == "'" else "\n" * text.count("\n")

    return re.sub(pattern, blank, path.read_text(), flags=re.S)


def test_core_makes_no_banned_calls() -> None:
    found = []
    for path in CORE_FILES:
        text = re.sub(r"__attribute__\(\(format\(printf.*?\)\)\)", "", code_of(path))
        for number, line in enumerate(text.splitlines(), start=1):
            if not line.lstrip().startswith("#include"):
                calls = BANNED_IN_CORE.findall(line)
                found += [f"{relative(path)}:{number}: {call}" for call in calls]
    assert found == []


# ---- the Python face's arrows ----------------------------------------------------------


@lru_cache(maxsize=1)
def python_layers() -> dict[str, int]:
    """The place of every listed module: "trace.table" -> 2. The ground is 0."""
    places = {}
    for place, (layer, names) in enumerate(table_rows("The Python face")):
        folder = layer.strip("`/").replace("/", ".") + "." if "/" in layer else ""
        places.update({folder + name: place for name in re.findall(r"`(\w+)`", names)})
    return places


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT / "neutracer").with_suffix("").parts)


def imports_of(path: Path) -> set[str]:
    """The modules of neutracer that a file imports, without the package's name."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{relative(path)}: a relative import"
            module = node.module or ""
            inner = [f"{module}.{alias.name}" for alias in node.names]
            found |= set(inner) if (ROOT / module.replace(".", "/")).is_dir() else {module}
    return {name.partition(".")[2] for name in found if name.split(".")[0] == "neutracer"}


def python_modules() -> list[Path]:
    return [path for path in PYTHON_FILES if path.name != "__init__.py"]


def test_python_table_lists_every_module() -> None:
    assert {module_name(path) for path in python_modules()} == set(python_layers())


def test_python_imports_run_down_only() -> None:
    layers = python_layers()
    edge = layers["cli.main"]
    wrong = []
    for path in python_modules():
        name = module_name(path)
        for target in imports_of(path) - {"_core"}:
            # The edges may use the package's own public names.
            allowed = layers[name] >= edge if target == "" else layers[target] <= layers[name]
            if not allowed:
                wrong.append(f"{relative(path)} imports {target or 'neutracer'}")
    assert wrong == []


def test_compiled_modules_load_in_one_place() -> None:
    loaders = [module_name(path) for path in python_modules() if "_core" in imports_of(path)]
    assert loaders == ["_native"]


def test_python_imports_have_no_circle() -> None:
    arrows = {module_name(path): imports_of(path) for path in python_modules()}
    done: set[str] = set()

    def walk(name: str, trail: tuple[str, ...]) -> None:
        assert name not in trail, " -> ".join((*trail, name))
        if name not in done:
            for target in sorted(arrows.get(name, set())):
                walk(target, (*trail, name))
            done.add(name)

    for name in arrows:
        walk(name, ())


def test_import_brings_no_extra_with_it() -> None:
    extras = [
        "torch",
        "numpy",
        "matplotlib",
        "rich",
        "anywidget",
        "zstandard",
        "prometheus_client",
        "pyarrow",
    ]
    script = f"import sys; from neutracer import *; print(sorted(set({extras}) & set(sys.modules)))"
    # Not from the root: there the tree would stand in for the package under test.
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, cwd=ROOT / "tests", capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("[]\n", "")


# ---- text ------------------------------------------------------------------------------


def function_lengths(path: Path) -> Iterator[tuple[str, int]]:
    """(place, lines) of each C function: its braces are the ones in the first column."""
    start = 0
    for number, line in enumerate(code_of(path).splitlines(), start=1):
        if line.startswith("{"):
            start = number
        elif line.startswith("}") and start:
            yield f"{relative(path)}:{start}", number - start + 1
            start = 0


def test_c_functions_stay_short() -> None:
    lengths = [entry for path in C_FILES for entry in function_lengths(path)]
    assert len(lengths) > 100
    assert [entry for entry in lengths if entry[1] > MOST_C_FUNCTION_LINES] == []


def test_source_files_stay_short() -> None:
    sizes = [(path, MOST_C_LINES) for path in [*C_FILES, *ROOT.glob("csrc/**/*.[ch]pp")]]
    long = [
        f"{relative(path)}: {lines} lines, {most} at most"
        for path, most in sizes
        if (lines := len(path.read_text(encoding="utf-8").splitlines())) > most
    ]
    assert long == []


def test_every_source_file_names_its_licence() -> None:
    bare = []
    for path in project_files():
        if path.suffix in {".c", ".h", ".cpp", ".hpp", ".py", ".pyi"} or path.name in {
            "Makefile",
            "need",
        }:
            head = path.read_text(encoding="utf-8").splitlines()[:2]
            if not any("SPDX-License-Identifier: Apache-2.0" in line for line in head):
                bare.append(relative(path))
    assert bare == []


def test_no_text_names_a_machine_or_a_moment() -> None:
    found = []
    for path in project_files():
        if path == Path(__file__):
            continue
        text = path.read_text(encoding="utf-8", errors="replace")
        if FORBIDDEN.search(path.name):
            found.append(relative(path))
        for number, line in enumerate(text.splitlines(), start=1):
            if FORBIDDEN.search(line):
                found.append(f"{relative(path)}:{number}: {line.strip()[:80]}")
    assert found == []
