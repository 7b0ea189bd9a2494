# SPDX-License-Identifier: Apache-2.0
"""Builds the Graphviz that goes into wheels: its libraries as one static archive.

    python tools/release/graphviz.py download ARCHIVE
    python tools/release/graphviz.py build ARCHIVE PREFIX COMPILER...

ARCHIVE is the source at `SOURCE`; PREFIX gets `include/graphviz`, `lib/libgraphviz.a` and
`LICENSE.graphviz`. Only what neutracer calls is in it: cgraph, gvc, the layouts dot and sfdp,
and the text renderers, SVG among them. It reads no configuration, loads no plugins, and
measures texts by its own tables of widths, so a picture does not depend on a machine's fonts.
Needed besides the compiler: bison, flex, awk, perl and ar, or the command in AR.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import tempfile
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

__all__ = ["SHA256", "SOURCE", "build", "main"]

# Upstream's own archive, which Debian keeps.
SOURCE = "http://deb.debian.org/debian/pool/main/g/graphviz/graphviz_2.42.4.orig.tar.bz2"
SHA256 = "a1ca0c4273d96bbf32fbfcbb784c8da2e38da13e7d2bbf9b24fe94ae45e79c4c"

_NOTICE = f"""\
The module neutracer/_graphviz in this wheel contains Graphviz 2.42.4, unchanged, under the
Eclipse Public License 1.0 below. Its source code is available at
{SOURCE}
(SHA-256 {SHA256}).

"""

# The folders of the libraries, each with a pattern of those files that are no part of it.
_LIBRARIES = {
    "lib/cdt": "",
    "lib/cgraph": "cmpnd|main.?|tester",
    "lib/pathplan": "",
    "lib/xdot": "",
    "lib/gvc": "gvbuffstderr",
    "lib/common": ".*gen|strn?casecmp",
    "lib/label": "nrtmain",
    "lib/pack": "ptest",
    "lib/ortho": "",
    "lib/dotgen": "",
    "lib/neatogen": ".*_ipsep|mosek_.*|quad_prog_vpsc",
    "lib/sfdpgen": "layout_similarity",
    "lib/sparse": "",
    "lib/rbtree": "test_.*",
    "plugin/core": "gvrender_core_(dia|hpgl|mif|vtx)",
    "plugin/dot_layout": "",
}

# What its configure script would find out, of any Linux.
_CONFIG = """
#define HAVE_CBRT 1
#define HAVE_DRAND48 1
#define HAVE_FCNTL_H 1
#define HAVE_INTPTR_T 1
#define HAVE_LRAND48 1
#define HAVE_SETENV 1
#define HAVE_SRAND48 1
#define HAVE_STRCASECMP 1
#define HAVE_STRNCASECMP 1
#define HAVE_STRINGS_H 1
#define HAVE_SYS_MMAN_H 1
#define HAVE_SYS_STAT_H 1
#define HAVE_SYS_TIME_H 1
#define HAVE_SYS_TYPES_H 1
#define HAVE_UNISTD_H 1
#define HAVE_VSNPRINTF 1
#define STDC_HEADERS 1
#define BROWSER ""
#define DEFAULT_DPI 96
#define DEFAULT_FONTPATH ""
#define GVLIBDIR ""
#define GVPLUGIN_CONFIG_FILE ""
#define GVPLUGIN_VERSION 6
#define PACKAGE_VERSION "2.42.4"
#define VERSION "2.42.4"
#define DIGCOLA 1
#define ORTHO 1
#define SFDP 1
"""

_FLAGS = ["-O2", "-std=gnu99", "-fPIC", "-fvisibility=hidden", "-ffunction-sections", "-g0"]
# It compares nodes with functions whose arguments are not `const void *`.
_FLAGS += ["-w", "-DHAVE_CONFIG_H", "-Wno-incompatible-function-pointer-types"]


def _output(folder: Path, *command: str) -> str:
    environment = {**os.environ, "LC_ALL": "C"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)}: {done.stderr}")
    return done.stdout


def _grammar(folder: Path, name: str, prefix: str) -> None:
    """A parser, with the substitutions of Graphviz's own makefiles."""
    _output(folder, "bison", "-y", "-d", f"{name}.y")
    for end in "ch":
        text = (folder / f"y.tab.{end}").read_text().replace("yy", prefix)
        text = re.sub(r"unsigned long( int)?", "uint64_t", text)
        text = text.replace("y.tab.h", f"{name}.h")
        (folder / f"{name}.{end}").write_text(text)
        (folder / f"y.tab.{end}").unlink()


def _generate(root: Path) -> None:
    """The sources that are made from others."""
    cgraph, common, core = root / "lib/cgraph", root / "lib/common", root / "plugin/core"
    _grammar(cgraph, "grammar", "aag")
    scanner = _output(cgraph, "flex", "-i", "-t", "scan.l").replace("yy", "aag")
    lines = [line for line in scanner.splitlines() if not re.search("extern.*isatty", line)]
    (cgraph / "scan.c").write_text("\n".join(lines) + "\n")
    _grammar(common, "htmlparse", "html")
    awk = root / "awk"
    colours = _output(common, "awk", "-f", str(awk / "brewer.awk"), "brewer_colors")
    colours += _output(common, "awk", "-f", str(awk / "svgcolor.awk"), "svgcolor_names")
    colours += (common / "color_names").read_text()
    # Sorted by bytes, as they are searched.
    (common / "color_lib").write_text("\n".join(sorted(colours.splitlines())) + "\n")
    table = _output(common, "awk", "-f", str(awk / "colortbl.awk"), "color_lib")
    (common / "colortbl.h").write_text(table)
    fonts = _output(common, "perl", "mksvgfonts.pl", "fontmap.cfg", "ps_font_equiv.txt")
    equal = (common / "ps_fontmap.txt").read_text() + "\n".join(sorted(fonts.splitlines())) + "\n"
    (common / "ps_font_equiv.h").write_text(equal)
    prolog = _output(core, "awk", "-f", str(awk / "stringize.awk"), "ps.txt")
    (core / "ps.h").write_text(prolog)
    (root / "config.h").write_text(_CONFIG)
    (root / "builddate.h").write_text('#define BUILDDATE "0"\n')


def _sources(root: Path) -> list[Path]:
    found = []
    for library, without in _LIBRARIES.items():
        for path in sorted((root / library).glob("*.c")):
            if not re.fullmatch(without, path.stem):
                found.append(path)
    return found


def _compile(root: Path, compiler: list[str]) -> list[str]:
    """The names of the objects, in `root`; paths are relative, so that none is kept in one."""
    folders = [*_LIBRARIES, "lib/fdpgen"]
    includes = [f"-I{folder}" for folder in (".", *folders)]
    shutil.copy(Path(__file__).with_name("graphviz_plugins.c"), root)
    sources = [*_sources(root), root / "graphviz_plugins.c"]

    def one(source: Path) -> str:
        name = source.relative_to(root)
        made = "_".join(name.with_suffix(".o").parts)
        _output(root, *compiler, *_FLAGS, *includes, "-c", str(name), "-o", made)
        return made

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(one, sources))


def _unpack(archive: Path, folder: Path) -> Path:
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    if digest != SHA256:
        raise SystemExit(f"{archive} is not the source that is meant: its SHA-256 is {digest}")
    with tarfile.open(archive) as packed:
        wanted = re.compile(r"[^/]+/(lib/|plugin/|awk/|[^/]+$)")
        members = [one for one in packed.getmembers() if wanted.match(one.name)]
        packed.extractall(folder, members, filter="data")
    return next(folder.iterdir())


def build(archive: Path, prefix: Path, compiler: list[str]) -> None:
    """Builds the archive of libraries.

    Args:
        archive: The source, packed.
        prefix: The folder for what is made; one that exists is made anew.
        compiler: The words of the command that compiles C; the last may be options.
    """
    shutil.rmtree(prefix, ignore_errors=True)
    with tempfile.TemporaryDirectory() as temporary:
        root = _unpack(archive, Path(temporary))
        _generate(root)
        objects = _compile(root, compiler)
        headers, library = prefix / "include/graphviz", prefix / "lib"
        headers.mkdir(parents=True)
        library.mkdir()
        for folder in ("cdt", "cgraph", "pathplan", "xdot", "gvc", "common"):
            for header in sorted((root / "lib" / folder).glob("*.h")):
                shutil.copy(header, headers)
        # D: no time and no user in it.
        archiver = shlex.split(os.environ.get("AR", "ar"))
        _output(root, *archiver, "rcsD", str((library / "libgraphviz.a").resolve()), *objects)
        text = _NOTICE + (root / "LICENSE").read_text()
        (prefix / "LICENSE.graphviz").write_text(text)


def main(arguments: list[str]) -> None:
    """Does what the first word says."""
    verb, archive, *rest = arguments
    if verb == "download":
        urllib.request.urlretrieve(SOURCE, archive)
    else:
        build(Path(archive), Path(rest[0]), rest[1:])


if __name__ == "__main__":
    main(sys.argv[1:])
