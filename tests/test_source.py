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
from functools import cache, lru_cache
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


def check_no_circle(arrows: dict[str, set[str]]) -> None:
    done: set[str] = set()

    def walk(name: str, trail: tuple[str, ...]) -> None:
        assert name not in trail, " -> ".join((*trail, name))
        if name not in done:
            for target in sorted(arrows.get(name, set())):
                walk(target, (*trail, name))
            done.add(name)

    for name in arrows:
        walk(name, ())


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


def core_folders() -> list[str]:
    """Folders of the core in the order of the table: each may include those before it."""
    return [row[0].strip("`/") for row in table_rows("The core")]


def owner_of(stem: str) -> str:
    """The module that a file belongs to: nt_replay_range is nt_replay's, nt_replay its own."""
    parts = stem.split("_")
    names = ("_".join(parts[:length]) for length in range(2, len(parts)))
    folder = {path.stem for path in CORE_HEADERS}
    return next((name for name in names if name in folder), stem)


def includes(path: Path) -> list[str]:
    return re.findall(r'^\s*#\s*include\s+([<"][^>"]+[>"])', path.read_text(), re.M)


def test_core_table_lists_every_folder() -> None:
    assert {path.parent.name for path in CORE_FILES} == set(core_folders())


def wrong_core_includes(path: Path) -> Iterator[str]:
    order = core_folders()
    mine = owner_of(path.stem)
    for include in includes(path):
        name = include[1:-1]
        if include[0] == "<":
            if name not in STANDARD_HEADERS | EXTRA_HEADERS.get(mine, set()):
                yield f"{relative(path)} includes <{name}>"
            continue
        folder = name.partition("/")[0]
        if folder not in order or order.index(folder) > order.index(path.parent.name):
            yield f"{relative(path)} includes {name}"
        elif not (CORE / name).is_file():
            yield f"{relative(path)} includes {name}, which is not there"


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


# ---- the arrows of csrc/page -----------------------------------------------------------

PAGE_FILES = sorted(ROOT.glob("csrc/page/*.[ch]"))


def test_the_page_includes_core_and_itself_only() -> None:
    core = {path.relative_to(CORE).as_posix() for path in CORE_HEADERS}
    allowed = {f'"{name}"' for name in core | {"nt_page.h"}}
    allowed |= {f"<{name}>" for name in STANDARD_HEADERS}
    wrong = [
        f"{relative(path)} includes {include}"
        for path in PAGE_FILES
        for include in includes(path)
        if include not in allowed
    ]
    assert wrong == []


# ---- the arrows of csrc/pyheap ---------------------------------------------------------

# The one file that includes CPython's internal headers.
INSIDES = "py_compat_objects.c"


def test_heap_includes_core_and_itself_only() -> None:
    core = {path.relative_to(CORE).as_posix() for path in CORE_HEADERS}
    own = {path.name for path in HEAP_FILES}
    public = {"frameobject.h", "structmember.h"}  # CPython's own, beside Python.h
    wrong = []
    for path in HEAP_FILES:
        for include in includes(path):
            name = include[1:-1]
            internal = name.startswith("internal/") and path.name == INSIDES
            if include[0] == '"' and name not in core | own | public and not internal:
                wrong.append(f"{relative(path)} includes {name}")
    assert wrong == []


def test_heap_includes_have_no_circle() -> None:
    stems = {path.stem for path in HEAP_FILES}
    arrows: dict[str, set[str]] = {stem: set() for stem in stems}
    for path in HEAP_FILES:
        theirs = {Path(include[1:-1]).stem for include in includes(path)}
        arrows[path.stem] |= (theirs & stems) - {path.stem}
    check_no_circle(arrows)


def test_interpreter_insides_stay_in_one_place() -> None:
    inside = re.compile(r"Py_BUILD_CORE|\bpycore_\w+|internal/")
    files = [*HEAP_FILES, *sorted(ROOT.glob("csrc/py/*.[ch]"))]
    assert [path.name for path in files if inside.search(path.read_text())] == [INSIDES]


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


@pytest.fixture(scope="module")
def core_symbols(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[str, str, str]]:
    """(file, symbol, kind) of every object of the core, as nm lists them."""
    if not shutil.which("gcc") or not shutil.which("nm"):
        pytest.skip("needs gcc, nm")
    folder = tmp_path_factory.mktemp("core")
    sources = [path for path in CORE_FILES if path.suffix == ".c"]
    flags = ["-std=c11", "-fPIC", "-c", "-U_FORTIFY_SOURCE", f"-I{CORE}"]
    subprocess.run(["gcc", *flags, *sources], cwd=folder, check=True, capture_output=True)
    listed = subprocess.run(
        ["nm", "-A", "-P", "-g", *(f"{path.stem}.o" for path in sources)],
        cwd=folder,
        check=True,
        capture_output=True,
        text=True,
    )
    rows = [line.split()[:3] for line in listed.stdout.splitlines()]
    return [(file.partition(".")[0], symbol, kind) for file, symbol, kind in rows]


def test_compiled_core_needs_only_these_symbols(
    core_symbols: list[tuple[str, str, str]],
) -> None:
    found = [
        f"{file} {symbol}"
        for file, symbol, kind in core_symbols
        if kind == "U" and symbol[:3] != "nt_"
        if symbol not in OUTSIDE_SYMBOLS | EXTRA_SYMBOLS.get(file, set())
    ]
    assert found == []


def test_core_files_call_each_other_in_no_circle(
    core_symbols: list[tuple[str, str, str]],
) -> None:
    owners = {symbol: file for file, symbol, kind in core_symbols if kind != "U"}
    arrows: dict[str, set[str]] = {file: set() for file, _, _ in core_symbols}
    for file, symbol, kind in core_symbols:
        if kind == "U" and symbol in owners:
            arrows[file].add(owners[symbol])
    check_no_circle(arrows)


def test_core_files_include_each_other_in_no_circle() -> None:
    check_no_circle(
        {
            path.relative_to(CORE).as_posix(): {name[1:-1] for name in includes(path)}
            for path in CORE_FILES
        }
    )


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
def python_rows() -> dict[str, int]:
    """The row of every listed folder and module: "trace" -> 2. The ground is 0."""
    rows = table_rows("The Python face")
    return {name: at for at, row in enumerate(rows) for name in re.findall(r"`(\w+)/?`", row[1])}


def row_of(module: str) -> int:
    """The row of a module, which is its folder's or its own."""
    return python_rows()[module.partition(".")[0]]


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT / "neutracer").with_suffix("").parts)


@cache
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


def test_python_table_lists_every_folder() -> None:
    assert {module_name(path).partition(".")[0] for path in python_modules()} == set(python_rows())


def test_python_imports_run_down_only() -> None:
    edge = row_of("cli")
    wrong = []
    for path in python_modules():
        name = module_name(path)
        for target in imports_of(path) - {"_core"}:
            # The edges may use the package's own public names.
            allowed = row_of(name) >= edge if target == "" else row_of(target) <= row_of(name)
            if not allowed:
                wrong.append(f"{relative(path)} imports {target or 'neutracer'}")
    assert wrong == []


def test_compiled_modules_load_in_one_place() -> None:
    loaders = [module_name(path) for path in python_modules() if "_core" in imports_of(path)]
    assert loaders == ["_native"]


def test_python_imports_have_no_circle() -> None:
    arrows = {module_name(path): imports_of(path) for path in python_modules()}
    check_no_circle(arrows)


#: Calls that take something of the program's, and where they may be made. A counter of PyTorch's is
#: reset nowhere: other parts of the program measure by it.
TAKING_CALLS = re.compile(
    r"^(?:reset_\w*(?:peak|max|accumulated)\w*|_\w*reset(?:Peak|Accumulated)\w*"
    r"|empty_\w*cache|_\w*emptyCache|collect)$"
)
MAY_TAKE = {
    # What its caller asks for: to collect garbage when memory is short.
    "heap.tensor_cycles": {"gc.collect"},
    # What its markers promise: a test that begins without the garbage of earlier ones, or with an
    # empty cache.
    "integrations.measuring": {"gc.collect", "cuda.empty_cache"},
    # Fake tensors of a step that is over.
    "rehearsal.running": {"gc.collect"},
}


def test_nothing_of_the_programs_is_reset_collected_or_freed() -> None:
    found: dict[str, set[str]] = {}
    for path in python_modules():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call):
                continue
            last = getattr(node.func, "attr", getattr(node.func, "id", ""))
            if not TAKING_CALLS.search(last):
                continue
            called = ast.unparse(node.func)
            if last != "collect" or called == "gc.collect":
                found.setdefault(module_name(path), set()).add(called)
    assert found == MAY_TAKE
    core = [*CORE_FILES, *HEAP_FILES, *sorted(ROOT.glob("csrc/torch/*.[ch]pp"))]
    resets = re.compile(r"\b(?:resetPeakStats|resetAccumulatedStats|emptyCache|PyGC_Collect)\b")
    assert [relative(path) for path in core if resets.search(code_of(path))] == []


def brought_by(source: str) -> set[str]:
    """The modules that importing a file imports: those outside functions and type checks."""
    found: set[str] = set()
    nodes: list[ast.AST] = [ast.parse(source)]
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {str(node.module)} | {f"{node.module}.{alias.name}" for alias in node.names}
        is_check = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        if not is_check and not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            nodes += ast.iter_child_nodes(node)
    return found


@cache
def modules_with_torch() -> set[str]:
    """The modules that can't be imported without torch."""
    brought = {
        f"neutracer.{module_name(path)}": brought_by(path.read_text(encoding="utf-8"))
        for path in python_modules()
    }
    with_torch = {
        name
        for name, others in brought.items()
        if any(other.split(".")[0] == "torch" for other in others)
    }
    while more := {name for name, others in brought.items() if others & with_torch} - with_torch:
        with_torch |= more
    return with_torch


def test_only_a_rehearsal_brings_torch_with_it() -> None:
    others = [name for name in modules_with_torch() if not name.startswith("neutracer.rehearsal.")]
    assert others == ["neutracer.rank.debug_page"]


def test_tests_ask_for_torch_before_what_needs_it() -> None:
    asking = re.compile(r"^(?:torch = )?pytest\.importorskip\(\"torch\"", re.MULTILINE)
    for path in sorted(ROOT.glob("tests/**/test_*.py")):
        before = brought_by(asking.split(path.read_text(encoding="utf-8"))[0])
        assert before & {"torch", *modules_with_torch()} == set(), relative(path)


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
