# SPDX-License-Identifier: Apache-2.0
"""Builds the compiled modules; everything else about the package is in pyproject.toml.

The core is compiled first, as a static library with nothing but its own headers on its
include path; the modules that need Python.h are linked with it.

Switches, from the environment, all off unless set to 1:
    NEUTRACER_WERROR     warnings are errors
    NEUTRACER_DEBUG      no optimisation, the core's own assertions on
    NEUTRACER_SANITIZE   AddressSanitizer and UndefinedBehaviorSanitizer
    NEUTRACER_COVERAGE   gcov
    NEUTRACER_SELFTEST   builds `neutracer._selftest` too: the core's own cases in tests/c

NEUTRACER_GRAPHVIZ is a folder that `tools/release/graphviz.py` made: this Graphviz is linked
into the module, and its licence goes into the wheel.

NEUTRACER_PREBUILT is a folder that `tools/release/hooks.py` made: its hooks go into the package.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from setuptools import Extension, setup
from setuptools.command.build_clib import build_clib
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

if TYPE_CHECKING:
    from distutils.ccompiler import CCompiler

os.chdir(Path(__file__).parent)

SANITIZERS = "-fsanitize=address,undefined"
THREAD_SANITIZER = "-fsanitize=thread"


def on(switch: str) -> bool:
    return os.environ.get(f"NEUTRACER_{switch}") == "1"


def files(*patterns: str) -> list[str]:
    return sorted(str(path) for pattern in patterns for path in Path().glob(pattern))


def compile_flags() -> list[str]:
    """What every C file is compiled with; later flags win over earlier ones."""
    flags = ["-std=c11", "-Wall", "-Wextra", "-Wpointer-arith", "-O2", "-fPIC"]
    flags.append("-fvisibility=hidden")
    if on("WERROR"):
        flags.append("-Werror")
    if on("DEBUG"):
        flags += ["-O0", "-g", "-DNT_DEBUG", "-UNDEBUG"]
    if on("SANITIZE"):
        flags += ["-O1", "-g", SANITIZERS, "-fno-omit-frame-pointer"]
        flags.append("-fno-sanitize-recover=undefined")
    if on("TSAN"):
        flags += ["-O1", "-g", THREAD_SANITIZER, "-fno-omit-frame-pointer"]
    if on("COVERAGE"):
        # Atomic: replays run in several threads.
        flags += ["-O0", "-g", "--coverage", "-fprofile-update=atomic"]
    return flags


def link_flags() -> list[str]:
    flags = [SANITIZERS] * on("SANITIZE") + [THREAD_SANITIZER] * on("TSAN")
    return flags + ["--coverage"] * on("COVERAGE")


def selftest_list() -> str:
    """The header that `tests/c/selftest_module.c` reads: one suite for each test file."""
    modules = [Path(path).stem.removeprefix("test_") for path in files("tests/c/test_nt_*.c")]
    lines = ["typedef struct selftest_suite {"]
    lines += ["    const char *module;", "    const nt_test_case *cases;", "} selftest_suite;"]
    lines += [f"extern const nt_test_case {module}_tests[];" for module in modules]
    lines += ["static const selftest_suite selftest_suites[] = {"]
    lines += [f'    {{"{module}", {module}_tests}},' for module in modules]
    lines += ["    {NULL, NULL},", "};"]
    return "\n".join(lines) + "\n"


def write_if_changed(path: Path, text: str) -> str:
    """Writes `text` unless it stands there already, so that nothing is built again."""
    if not path.exists() or path.read_text() != text:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return str(path)


def switches_file(build_temp: str) -> str:
    """A file that is newer than what was built under other switches or another compiler."""
    words = [os.environ.get("CC", ""), *compile_flags(), *link_flags()]
    return write_if_changed(Path(build_temp, "switches.txt"), "\n".join(words) + "\n")


def compile_at_once(compiler: CCompiler) -> None:
    """Lets a compiler work on as many files at a time as there are cores."""
    compile_all, compile_one = compiler.compile, compiler._compile

    def compile_in_pool(*args: Any, **options: Any) -> list[str]:
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            jobs: list[Future[None]] = []
            compiler._compile = lambda *file: jobs.append(pool.submit(compile_one, *file))
            objects = compile_all(*args, **options)
            for job in jobs:
                job.result()
        return objects

    compiler.compile = compile_in_pool


class BuildCore(build_clib):
    """The core as an archive made anew each time: no object of a removed file stays in it."""

    def build_libraries(self, libraries: list) -> None:
        compile_at_once(self.compiler)
        for name, core in libraries:
            core["obj_deps"] = {"": [*files("csrc/core/**/*.h"), switches_file(self.build_temp)]}
            archive = self.compiler.library_filename(name, output_dir=self.build_clib)
            Path(archive).unlink(missing_ok=True)
        super().build_libraries(libraries)


class BuildModules(build_ext):
    """Builds the core first, and the list of the C tests where they are asked for."""

    def run(self) -> None:
        self.run_command("build_clib")
        for extension in self.extensions:
            extension.depends.append(switches_file(self.build_temp))
            sources = Path(self.build_temp, f"{extension.name}.txt")
            text = "\n".join(sorted(extension.sources)) + "\n"
            extension.depends.append(write_if_changed(sources, text))
            if extension.name == "neutracer._selftest":
                header = Path(self.build_temp, "generated", "nt_selftest_list.h")
                extension.depends.append(write_if_changed(header, selftest_list()))
                extension.include_dirs.append(str(header.parent))
        super().run()

    def build_extensions(self) -> None:
        compile_at_once(self.compiler)
        super().build_extensions()


# What the hooks and a rehearsal compile on the user's machine, against the torch there.
HOOKS = (
    "csrc/torch/*.[ch]pp",
    "csrc/rehearsal/*.cpp",
    "csrc/core/base/nt_ring.h",
    "csrc/core/base/nt_ring_origins.h",
    "csrc/core/trace/nt_live_api.h",
)


class BuildPython(build_py):
    """Puts into the package what users compile; a checkout has it beside the package."""

    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            for source, copy in [*self.hooks(), self.start()]:
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source, copy)

    def start(self) -> tuple[str, Path]:
        """What Python reads when it starts, beside the package."""
        return "neutracer/run/neutracer.pth", Path(self.build_lib, "neutracer.pth")

    def hooks(self) -> list[tuple[str, Path]]:
        package = Path(self.build_lib, "neutracer")
        copies = [(name, package / name) for name in files(*HOOKS)]
        if "NEUTRACER_PREBUILT" in os.environ:
            made = Path(os.environ["NEUTRACER_PREBUILT"])
            modules = sorted(made.glob("*/*.so"))
            copies += [(str(one), package / "prebuilt" / one.relative_to(made)) for one in modules]
        return copies

    def get_outputs(self, include_bytecode: bool = True) -> list[str]:
        return super().get_outputs(include_bytecode) + [
            str(copy) for _, copy in [*self.hooks(), self.start()]
        ]


def extension(name: str, sources: list[str], include_dirs: list[str]) -> Extension:
    return Extension(
        f"neutracer.{name}",
        sources,
        include_dirs=["csrc/core", *include_dirs],
        depends=files("csrc/core/**/*.[ch]", *(f"{folder}/**/*.h" for folder in include_dirs)),
        extra_compile_args=compile_flags(),
        extra_link_args=link_flags(),
    )


def built_in_graphviz(folder: Path) -> Extension:
    """The module that draws, with a Graphviz in it that needs nothing of the system."""
    module = extension("_graphviz", files("csrc/graphviz/*.c"), ["csrc/graphviz"])
    module.extra_compile_args += ["-isystem", str(folder / "include/graphviz"), "-DNT_GV_BUILT_IN"]
    module.extra_objects.append(str(folder / "lib/libgraphviz.a"))
    # Of what is in the archive, only what the module calls is linked.
    module.extra_link_args += ["-Wl,--gc-sections", "-lm"]
    return module


def graphviz() -> list[Extension]:
    """The module that draws with Graphviz: the one named, or the one that pkg-config finds."""
    if "NEUTRACER_GRAPHVIZ" in os.environ:
        return [built_in_graphviz(Path(os.environ["NEUTRACER_GRAPHVIZ"]))]
    command = [os.environ.get("PKG_CONFIG", "pkg-config"), "--cflags", "--libs", "libcgraph"]
    try:
        done = subprocess.run([*command, "libgvc"], capture_output=True, text=True)
    except OSError:
        return []
    if done.returncode != 0:
        return []
    module = extension("_graphviz", files("csrc/graphviz/*.c"), ["csrc/graphviz"])
    for flag in shlex.split(done.stdout):
        if flag.startswith("-I"):
            # Others' headers, under which our warnings don't count.
            module.extra_compile_args += ["-isystem", flag[2:]]
        elif flag.startswith(("-l", "-L", "-W")):
            module.extra_link_args.append(flag)
    # A release of Graphviz that it does not fit costs the pictures, not the installation.
    module.optional = not on("WERROR")
    return [module]


core = {
    "sources": files("csrc/core/**/*.c"),
    "include_dirs": ["csrc/core"],
    "cflags": compile_flags(),
}
modules = [extension("_core", files("csrc/py/*.c", "csrc/pyheap/*.c"), ["csrc/py", "csrc/pyheap"])]
modules += graphviz()
if on("SELFTEST"):
    # A copy of its own of the walk and the watch, so that a test can hold finalizers off.
    copied = ("ph_walk", "ph_gcwatch", "py_compat", "py_compat_objects")
    walk = files(*(f"csrc/pyheap/{name}.c" for name in copied))
    modules.append(
        extension("_selftest", [*files("tests/c/*.c"), *walk], ["tests/c", "csrc/pyheap"])
    )

setup(
    libraries=[("nt_core", core)],
    ext_modules=modules,
    cmdclass={"build_clib": BuildCore, "build_ext": BuildModules, "build_py": BuildPython},
)
