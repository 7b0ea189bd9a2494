# SPDX-License-Identifier: Apache-2.0
"""Makes the sdist, the same bytes for the same tree: `python tools/release/sdist.py FOLDER`.

setuptools puts times, users and modes of this machine into it; here each file has the time of
SOURCE_DATE_EPOCH, root as its owner, and one mode.
"""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

__all__ = ["make"]


def _plain(member: tarfile.TarInfo, moment: int) -> tarfile.TarInfo:
    member.mtime = moment
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
    member.pax_headers = {}
    return member


def make(folder: Path) -> Path:
    """Makes the sdist of this tree.

    Args:
        folder: Where it is put.

    Returns:
        Its path.
    """
    moment = int(os.environ["SOURCE_DATE_EPOCH"])
    root = Path(__file__).parents[2]
    with tempfile.TemporaryDirectory() as temporary:
        command = [sys.executable, "-m", "build", "-q", "--sdist", "--no-isolation"]
        subprocess.run([*command, "-o", temporary, str(root)], check=True)
        (made,) = Path(temporary).glob("*.tar.gz")
        out = folder / made.name
        with (
            tarfile.open(made) as old,
            out.open("wb") as raw,
            gzip.GzipFile("", "wb", 9, raw, mtime=moment) as packed,
            tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as new,
        ):
            for member in sorted(old.getmembers(), key=lambda one: one.name):
                held = old.extractfile(member) if member.isfile() else None
                new.addfile(_plain(member, moment), held)
    return out


if __name__ == "__main__":
    make(Path(sys.argv[1]))
