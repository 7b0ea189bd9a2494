# SPDX-License-Identifier: Apache-2.0
"""What is declared by hand of NVML, CUDA and CUPTI, held against the vendor's headers."""

from __future__ import annotations

import importlib.util
import os
import subprocess
from pathlib import Path

import pytest
from fake_device import ROOT, compiler


def include_folders() -> list[Path]:
    """Where headers of a toolkit may be: the machine's, and those of Python packages."""
    homes = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"]
    folders = [Path(home, inner) for home in homes if home for inner in ("include", ".")]
    folders += [Path(home, "extras/CUPTI/include") for home in homes if home]
    folders += sorted(Path("/usr/local").glob("cuda-*/include"))
    extra = os.environ.get("NEUTRACER_TOOLKIT_INCLUDE", "")
    folders += [Path(folder) for folder in extra.split(":") if folder]
    for package in ("nvidia", "triton"):
        found = importlib.util.find_spec(package)
        for root in (found.submodule_search_locations or ()) if found else ():
            folders += [*Path(root).glob("*/include"), *Path(root).glob("backends/nvidia/include")]
    return list(dict.fromkeys(folder.resolve() for folder in folders if folder.is_dir()))


def cases() -> list[tuple[str, Path]]:
    headers = {"NVML": "nvml.h", "CUDA": "cuda.h", "CUPTI": "cupti.h"}
    return [
        (part, folder)
        for folder in include_folders()
        for part, header in headers.items()
        # Debian has a cuda.h of its own; CUPTI needs the driver's beside it.
        if (folder / header).exists() and (part != "CUPTI" or (folder / "cuda.h").exists())
    ]


def included(folder: Path) -> list[str]:
    """The compiler's words for a folder of headers. pip's lack a part (crt/) that a toolkit's
    and triton's have."""
    words = ["-isystem", str(folder)]
    others = [other for other in include_folders() if (other / "crt/host_defines.h").exists()]
    return words + [word for other in others for word in ("-idirafter", str(other))]


@pytest.mark.skipif(not cases(), reason="no CUDA Toolkit's headers here")
@pytest.mark.parametrize("types", ["layouts", "prototypes"])
def test_declarations_equal_the_toolkits(types: str) -> None:
    mode = ["-DNT_ABI_TOOLKIT"] if types == "prototypes" else []
    for part, folder in cases():
        command = [compiler(), "-std=c11", "-Wall", "-Wextra", "-Werror", "-fsyntax-only"]
        command += [f"-I{ROOT / 'csrc/core'}", *included(folder), f"-DWITH_{part}", *mode]
        source = ROOT / "tests/fakes/toolkit_abi.c"
        done = subprocess.run([*command, str(source)], capture_output=True, text=True)
        assert done.returncode == 0, f"{part} in {folder}\n{done.stderr}"


def test_a_moved_field_is_noticed(tmp_path: Path) -> None:
    found = [folder for part, folder in cases() if part == "CUPTI"]
    if not found:
        pytest.skip("no CUPTI headers here")
    header = (ROOT / "csrc/core/device/nt_cupti_abi.h").read_text()
    wrong = header.replace("    uint64_t bytes;\n", "").replace(
        "    uint64_t address;\n", "    uint64_t bytes;\n    uint64_t address;\n", 1
    )
    assert wrong != header
    (tmp_path / "device").mkdir()
    (tmp_path / "device/nt_cupti_abi.h").write_text(wrong)
    command = [compiler(), "-std=c11", "-fsyntax-only", f"-I{tmp_path}"]
    command += [f"-I{ROOT / 'csrc/core'}", *included(found[0]), "-DWITH_CUPTI"]
    source = ROOT / "tests/fakes/toolkit_abi.c"
    done = subprocess.run([*command, str(source)], capture_output=True, text=True)
    assert done.returncode != 0
    assert "address" in done.stderr
