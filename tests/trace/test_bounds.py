# SPDX-License-Identifier: Apache-2.0
"""How much memory there is: of the machine, and of the control groups around a process."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from neutracer.trace import source as bounds
from neutracer.trace.source import bounded_process, free_share, memory_bound

GIB = 1 << 30


def machine(root: Path, groups: str, **files: str) -> str:
    """A root with 8 GiB available, and these files of control groups."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/meminfo").write_text(f"MemTotal: 99 kB\nMemAvailable: {8 * GIB >> 10} kB\n")
    (root / "proc/self/cgroup").write_text(groups)
    for name, text in files.items():
        path = root / "sys/fs/cgroup" / name.replace("__", "/").replace("_dot_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return str(root)


def test_without_groups_the_machine_decides(tmp_path: Path) -> None:
    assert free_share(machine(tmp_path, "")) == int(8 * GIB * 0.9)


def test_group_of_version_2(tmp_path: Path) -> None:
    root = machine(
        tmp_path,
        "0::/job/step\n",
        job__memory_dot_max=f"{2 * GIB}\n",
        job__memory_dot_current=f"{GIB}\n",
        job__memory_dot_stat="anon 5\ninactive_file 1048576\n",
        job__step__memory_dot_max="max\n",
        job__step__memory_dot_current="5\n",
    )
    assert free_share(root) == int((GIB + (1 << 20)) * 0.9)


def test_group_of_version_1(tmp_path: Path) -> None:
    root = machine(
        tmp_path,
        "5:cpu,memory:/docker/abc\n",
        memory__memory_dot_limit_in_bytes=f"{GIB}\n",
        memory__memory_dot_usage_in_bytes=f"{GIB >> 1}\n",
    )
    assert free_share(root) == int((GIB >> 1) * 0.9)


def test_nothing_tells(tmp_path: Path) -> None:
    assert free_share(str(tmp_path)) == 16 * GIB


def test_address_space_of_the_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = machine(tmp_path, "")
    (tmp_path / "proc/self/status").write_text(f"VmPeak: 9 kB\nVmSize: {GIB >> 10} kB\n")
    limits = {bounds.resource.RLIMIT_AS: (3 * GIB, 4 * GIB)}
    monkeypatch.setattr(bounds.resource, "getrlimit", limits.__getitem__)
    assert free_share(root) == int(2 * GIB * 0.9)
    limits[bounds.resource.RLIMIT_AS] = (GIB >> 1, GIB)
    assert free_share(root) == 0


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the system has no such bound")
def test_process_is_held_to_its_bound() -> None:
    with bounded_process(64 << 20), pytest.raises(MemoryError):
        bytearray(1 << 30)
    assert len(bytearray(256 << 20)) == 256 << 20


def test_many_small_files_are_read_at_one_look(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[str] = []
    monkeypatch.setattr(bounds, "_measured", (float("-inf"), 0))
    monkeypatch.setattr(bounds, "free_share", lambda root: looks.append(root) or GIB)
    assert {memory_bound() for _ in range(50)} == {GIB}
    assert looks == ["/"]
    monkeypatch.setattr(bounds, "_FRESH_S", -1.0)
    memory_bound()
    assert looks == ["/", "/"]
