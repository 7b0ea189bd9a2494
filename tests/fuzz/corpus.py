# SPDX-License-Identifier: Apache-2.0
"""The fuzz targets' inputs: an archive per group, `corpus/<group>.tar.xz`.

The groups `seeds` (from make_seeds.py), `fixed` (inputs that once broke a property) and
`found` (inputs that reached new code) are snapshots, which several targets share. Each other
target has a group of its own name.

An archive's bytes depend on its inputs alone: they are sorted by name and have no times.
"""

from __future__ import annotations

import io
import lzma
import shutil
import tarfile
from collections.abc import Mapping
from pathlib import Path

ARCHIVES = Path(__file__).resolve().parent / "corpus"

#: The groups of snapshots.
SNAPSHOTS = ("seeds", "fixed", "found")


def groups() -> list[str]:
    """The names of all groups."""
    return sorted(path.name.removesuffix(".tar.xz") for path in ARCHIVES.glob("*.tar.xz"))


def read(group: str) -> dict[str, bytes]:
    """The inputs of a group by name."""
    with tarfile.open(ARCHIVES / f"{group}.tar.xz") as archive:
        files = {member.name: archive.extractfile(member) for member in archive}
        return {name: file.read() for name, file in files.items() if file is not None}


def write(group: str, inputs: Mapping[str, bytes]) -> None:
    """Replaces the inputs of a group."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name, data in sorted(inputs.items()):
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    ARCHIVES.mkdir(exist_ok=True)
    data = lzma.compress(packed.getvalue(), preset=9 | lzma.PRESET_EXTREME)
    (ARCHIVES / f"{group}.tar.xz").write_bytes(data)


def unpack(into: Path) -> None:
    """Writes every input to `into/<group>/<name>`; the folder is made anew."""
    shutil.rmtree(into, ignore_errors=True)
    for group in groups():
        (into / group).mkdir(parents=True)
        for name, data in read(group).items():
            (into / group / name).write_bytes(data)


def summary() -> str:
    """The number of inputs and their bytes, in a sentence."""
    inputs = [data for group in groups() for data in read(group).values()]
    return f"{len(inputs):,} inputs; the corpus is {sum(map(len, inputs)):,} bytes"
