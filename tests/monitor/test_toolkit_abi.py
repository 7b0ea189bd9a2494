# SPDX-License-Identifier: Apache-2.0
"""What is declared by hand of NVML, CUDA and CUPTI, held against the vendor's headers.

Against those of every toolkit that is found: the machine's, those of Python packages, and
what NEUTRACER_CUDA_HEADERS names: folders between colons, each a toolkit's, one that
packages were unpacked to, or one of such folders.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from fake_device import ROOT, compiler

HEADERS = {"NVML": "nvml.h", "CUDA": "cuda.h", "CUPTI": "cupti.h"}
SOURCE = ROOT / "tests/fakes/toolkit_abi.c"
CRT = "crt/host_defines.h"
GIVEN = "NEUTRACER_CUDA_HEADERS"


@dataclass(frozen=True)
class Toolkit:
    """The headers of one release of CUDA."""

    name: str
    folders: tuple[Path, ...]

    def has(self, header: str) -> bool:
        return any((folder / header).exists() for folder in self.folders)

    def parts(self) -> Iterator[str]:
        for part, header in HEADERS.items():
            # Debian has a cuda.h of its own; CUPTI needs the driver's beside it.
            if self.has(header) and (part != "CUPTI" or self.has("cuda.h")):
                yield part


def toolkit(name: str, folders: list[Path]) -> list[Toolkit]:
    """One with these folders, if there is a header in them."""
    there = tuple(dict.fromkeys(folder.resolve() for folder in folders if folder.is_dir()))
    made = Toolkit(name, there)
    return [made] if any(made.parts()) else []


def packages(name: str, root: Path) -> list[Toolkit]:
    """Those of pip: of CUDA 13 one folder has it all, of CUDA 12 each part has one."""
    folders = sorted(root.glob("nvidia/*/include"))
    whole = [folder for folder in folders if re.fullmatch(r"cu\d+", folder.parent.name)]
    found = toolkit(name, [folder for folder in folders if folder not in whole])
    for folder in whole:
        found += toolkit(f"{name}-{folder.parent.name}", [folder])
    return found


def of_root(root: Path) -> list[Toolkit]:
    """What a folder has, or else each folder in it."""
    plain = [root / "include", root / "extras/CUPTI/include", root]
    found = packages(root.name, root) + toolkit(root.name, plain)
    inner = sorted(folder for folder in root.iterdir() if folder.is_dir()) if not found else []
    return found + [one for folder in inner for one in packages(folder.name, folder)]


def toolkits() -> list[Toolkit]:
    given = [Path(root) for root in os.environ.get(GIVEN, "").split(":") if root]
    found = [one for root in given for one in of_root(root)]
    homes = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"]
    roots = [Path(home) for home in homes if home] + sorted(Path("/usr/local").glob("cuda-*"))
    for root in roots:
        found += toolkit(root.name, [root / "include", root / "extras/CUPTI/include"])
    for package in ("nvidia", "triton"):
        spec = importlib.util.find_spec(package)
        for place in map(Path, (spec.submodule_search_locations or ()) if spec else ()):
            found += packages("pip", place.parent) if package == "nvidia" else []
            found += toolkit("triton", [place / "backends/nvidia/include"])
    return list({one.folders: one for one in reversed(found)}.values())[::-1]


TOOLKITS = toolkits()
CASES = [
    pytest.param(one, part, id=f"{one.name}-{part}") for one in TOOLKITS for part in one.parts()
]
NONE = pytest.param(
    None, "", marks=pytest.mark.skip(reason=f"no CUDA headers here, and no {GIVEN}"), id="none"
)


def compiled(one: Toolkit, part: str, *words: str) -> subprocess.CompletedProcess[str]:
    """The comparison, compiled. pip's headers lack a part (crt/) that others have."""
    command = [compiler(), "-std=c11", "-Wall", "-Wextra", "-Werror", "-fsyntax-only"]
    command += [*words, f"-I{ROOT / 'csrc/core'}", f"-DWITH_{part}"]
    command += [word for folder in one.folders for word in ("-isystem", str(folder))]
    others = [folder for other in TOOLKITS for folder in other.folders if (folder / CRT).exists()]
    if part == "CUPTI" and not others:
        pytest.skip(f"CUPTI's headers need {CRT}, which no toolkit here has")
    command += [word for folder in others for word in ("-idirafter", str(folder))]
    return subprocess.run([*command, str(SOURCE)], capture_output=True, text=True)


@pytest.mark.parametrize("types", ["layouts", "prototypes"])
@pytest.mark.parametrize(("one", "part"), CASES or [NONE])
def test_declarations_equal_the_toolkits(one: Toolkit, part: str, types: str) -> None:
    done = compiled(one, part, *(["-DNT_ABI_TOOLKIT"] if types == "prototypes" else []))
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("part", "field", "moved"),
    [
        ("CUPTI", "    uint64_t address;\n", "    uint64_t bytes;\n"),
        ("NVML", "    unsigned int pid;\n", "    unsigned int gpu_instance;\n"),
    ],
)
def test_a_moved_field_is_noticed(tmp_path: Path, part: str, field: str, moved: str) -> None:
    found = [one for one in TOOLKITS if part in one.parts()]
    if not found:
        pytest.skip(f"no headers of {part} here")
    name = "nt_cupti_abi.h" if part == "CUPTI" else "nt_device_abi.h"
    header = (ROOT / "csrc/core/monitor" / name).read_text()
    wrong = header.replace(moved, "").replace(field, moved + field, 1)
    assert wrong != header
    (tmp_path / "monitor").mkdir()
    (tmp_path / "monitor" / name).write_text(wrong)
    for one in found:
        done = compiled(one, part, f"-I{tmp_path}")
        assert done.returncode != 0
        assert field.split()[-1].rstrip(";") in done.stderr


def test_every_function_that_is_looked_up_is_compared() -> None:
    looked_up = {
        name
        for file in ("nt_device.c", "nt_cupti.c")
        for name in re.findall(
            r"^    (?:NVML|CUDA|CUPTI)\(\w+, \"(\w+)\"",
            (ROOT / "csrc/core/monitor" / file).read_text(),
            re.M,
        )
    }
    compared = set(re.findall(r"^SAME_TYPE\(\w+, (\w+)\);", SOURCE.read_text(), re.M))
    assert len(looked_up) > 30
    assert looked_up == compared


def test_toolkits_are_told_apart(tmp_path: Path) -> None:
    site = tmp_path / "site"
    thirteen = site / "nvidia/cu13/include"
    twelve = [site / f"nvidia/{part}/include" for part in ("cuda_runtime", "nvml_dev")]
    for folder, names in zip(
        [thirteen, *twelve], [["cuda.h", "nvml.h", "cupti.h"], ["cuda.h"], ["nvml.h"]], strict=True
    ):
        folder.mkdir(parents=True)
        for name in names:
            (folder / name).touch()
    for root in (site, tmp_path):
        parted, whole = of_root(root)
        assert (parted.name, parted.folders) == ("site", tuple(twelve))
        assert list(parted.parts()) == ["NVML", "CUDA"]
        assert (whole.name, whole.folders) == ("site-cu13", (thirteen,))
        assert list(whole.parts()) == ["NVML", "CUDA", "CUPTI"]
