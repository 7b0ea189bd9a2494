# SPDX-License-Identifier: Apache-2.0
"""Tries the wheels of `dist/` where there is nothing but a Python: `python tools/try_wheels.py`.

Each is installed in roots of its kind that `tools/root` makes: Debian's releases with their own
Pythons, those of pyenv put into one for versions that no release has, another machine's releases
in an emulator, and one with musl in place of glibc. There
`try_from_nothing.py` runs what people run first. The table goes to `docs/reference/wheels.tried`,
which the page of the wheels includes; a wheel for which there is no root is in it as not run.

Words after the command are the only roots that are used; the rows of the others stay.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

__all__ = ["Row", "main"]

ROOT = Path(__file__).parents[1]
RECORDING = ROOT / "tests/data/frag_default.pickle"
TABLE = ROOT / "docs/reference/wheels.tried"

#: Each root with the platform whose wheels it tries, in the order of the table; "here" is this
#: machine, for want of another.
ROOTS = {
    "bookworm-bare": "manylinux_2_28_x86_64",
    "trixie-bare": "manylinux_2_28_x86_64",
    "forky-bare": "manylinux_2_28_x86_64",
    "bookworm-bare-arm64": "manylinux_2_28_aarch64",
    "trixie-bare-arm64": "manylinux_2_28_aarch64",
    "forky-bare-arm64": "manylinux_2_28_aarch64",
    "musl": "musllinux_1_2_x86_64",
    "here": f"manylinux_2_28_{platform.machine()}",
}

#: Where Pythons of pyenv are put: the oldest release, so that its libraries are old enough.
HOST = "bookworm-bare"

_FIRST = "from pip install to the first finding"


@dataclass(frozen=True)
class Row:
    """A wheel, tried once or not.

    Attributes:
        wheel: The file's name.
        size: Its bytes.
        root: Where it was tried, "" where it was not.
        python: The version of the Python there.
        seconds: From `pip install` to the first finding.
        ran: The names of the steps after that.
    """

    wheel: str
    size: int
    root: str = ""
    python: str = ""
    seconds: float = 0.0
    ran: tuple[str, ...] = ()


def within(root: str, *words: str) -> list[str]:
    """The command that runs `words` in a root; it says itself why there can be none."""
    return list(words) if root == "here" else [str(ROOT / "tools/root"), root, *words]


def output(*words: str) -> str:
    """What a command prints; what it complains of goes to the terminal."""
    return subprocess.run(words, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout


def add_pythons_of_pyenv() -> list[tuple[str, str]]:
    """Puts those that no release of Debian has into a root; returns versions and interpreters."""
    if not shutil.which("pyenv"):
        return []
    found = []
    for minor in ("3.10", "3.12"):
        for one in sorted(Path(output("pyenv", "root").strip(), "versions").glob(f"{minor}.*"))[:1]:
            # At the path that it was built for, where it finds its library.
            place = ROOT / "build/roots" / HOST / one.relative_to("/")
            if not place.exists():
                shutil.copytree(one, place, symlinks=True)
            found.append((one.name, f"{one}/bin/python3"))
    return found


def pythons(root: str) -> list[tuple[str, str]]:
    """Version and interpreter of each Python in a root."""
    lines = output(*within(root, "tools/pythons")).splitlines()
    found = [(version, path) for version, _, path in (line.partition(" ") for line in lines)]
    return found + (add_pythons_of_pyenv() if root == HOST else [])


def try_one(wheel: Path, root: str, version: str, python: str) -> Row:
    """Installs a wheel in a root, and runs there what people run first."""
    folder = ROOT / "build/tried" / f"{root}-{version}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    torch = os.environ.get("TORCH", "torch==2.13.0+cpu") if "arm64" not in root else ""
    tries = ROOT / "tools/release/try_from_nothing.py"
    words = ("env", f"TORCH={torch}", python, str(tries), str(wheel), str(RECORDING), str(folder))
    try:
        said = output(*within(root, *words))
    except subprocess.CalledProcessError:
        raise SystemExit(f"{wheel.name} failed in {root} under Python {version}") from None
    print(said, end="", flush=True)
    steps = re.findall(r"^(.+): ([0-9.]+) s$", said, re.M)
    seconds = {name: float(took) for name, took in steps}
    ran = tuple(name for name in seconds if name != _FIRST)
    shutil.rmtree(folder)
    return Row(wheel.name, wheel.stat().st_size, root, version, seconds[_FIRST], ran)


def try_root(root: str) -> list[Row]:
    """A row for each wheel that the Pythons of a root can have; none if there can't be the root."""
    if subprocess.run(within(root, "true")).returncode != 0:
        return []
    rows = []
    for version, python in pythons(root):
        tag = "cp" + "".join(version.split(".")[:2])
        for wheel in sorted((ROOT / "dist").glob(f"*-{tag}-{tag}-{ROOTS[root]}.whl")):
            print(f"==== {wheel.name} in {root}, Python {version} ====", flush=True)
            rows.append(try_one(wheel, root, version, python))
    return rows


def kept() -> list[Row]:
    """The rows of the last time, from the comment that `TABLE` begins with."""
    if not TABLE.exists():
        return []
    (text,) = re.findall(r"<!-- (.*?) -->", TABLE.read_text())[:1]
    return [Row(**{**row, "ran": tuple(row["ran"])}) for row in json.loads(text)]


def words_of(root: str) -> str:
    """A root in words."""
    if root == "here":
        return "the machine that built it"
    if root == "musl":
        return "musl, Python from source"
    suite, *rest = root.split("-")
    return f"Debian {suite}" + (", aarch64 emulated" if "arm64" in rest else "")


def minor(row: Row) -> int:
    """Of Python, as a number to sort by."""
    (found,) = re.findall(r"-cp3(\d+)-", row.wheel)
    return int(found)


def platform_of(row: Row) -> str:
    """The platform of a wheel."""
    return row.wheel.removesuffix(".whl").rpartition("-")[2]


def table(rows: list[Row]) -> str:
    """The rows as a page's table, behind a comment with the same as data."""
    every: list[str] = []
    for row in rows:
        every += [name for name in row.ran if name not in every]
    text = f"<!-- {json.dumps([asdict(row) for row in rows])} -->\n\n"
    text += "| wheel | MB | tried in | Python | s |" + "".join(f" {name} |" for name in every)
    text += "\n|---|---|---|---|---|" + "---|" * len(every) + "\n"
    for row in rows:
        cells = [f"cp3{minor(row)} {platform_of(row)}", f"{row.size / 1e6:.2f}"]
        if row.root:
            cells += [words_of(row.root), row.python, f"{row.seconds:.1f}"]
        else:
            cells += ["not run", "", ""]
        cells += ["yes" if name in row.ran else "" for name in every]
        text += f"| {' | '.join(cells)} |\n"
    return text


def write(rows: list[Row], wheels: list[Path]) -> int:
    """Writes the table of what was tried, and of the wheels that were not; how many were."""
    tried = {row.wheel for row in rows}
    others = [Row(one.name, one.stat().st_size) for one in wheels if one.name not in tried]
    platforms, order = list(dict.fromkeys(ROOTS.values())), list(ROOTS)

    def place(row: Row) -> tuple[int, int, int]:
        root = order.index(row.root) if row.root else len(order)
        return platforms.index(platform_of(row)), minor(row), root

    TABLE.write_text(table(sorted(rows + others, key=place)))
    return len(tried)


def main(chosen: list[str]) -> None:
    """Tries all wheels, or those of the roots that are named, and writes the table."""
    unknown = [name for name in chosen if name not in ROOTS]
    if unknown:
        raise SystemExit(f"there is no root {unknown[0]}; there are {', '.join(ROOTS)}")
    wheels = sorted((ROOT / "dist").glob("*.whl"))
    if not wheels:
        raise SystemExit("there are no wheels in dist/: tools/dist makes them")
    rows = [row for row in kept() if chosen and row.root and row.root not in chosen]
    tried = 0
    for root in chosen or ROOTS:
        if chosen or root != "here" or not rows:
            rows += try_root(root)
            # After each: what was tried stays on record where a later one fails.
            tried = write(rows, wheels)
    print(f"{len(wheels)} wheels, {tried} of them tried: {TABLE.relative_to(ROOT)}")


if __name__ == "__main__":
    main(sys.argv[1:])
