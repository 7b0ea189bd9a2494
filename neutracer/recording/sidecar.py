# SPDX-License-Identifier: Apache-2.0
"""The sidecar JSON of a snapshot: rank, host, step, versions, and the size of its devices."""

from __future__ import annotations

import itertools
import os
import sys
import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from neutracer.render.report import dumps
from neutracer.saving import atomic_file
from neutracer.trace.beside import (
    SIDECAR_SCHEMA,
    DeviceRoom,
    TensorBlocks,
    device_room,
    library_folders,
    plain_tensors,
)

if TYPE_CHECKING:
    from neutracer.trace.snapshot import Snapshot

# Launchers' environment variables for rank, world size, local rank: torchrun, Open MPI, MPICH,
# Slurm. Slurm is last: it often starts another launcher, and its values then equal in all ranks.
_LAUNCHERS = (
    ("RANK", "WORLD_SIZE", "LOCAL_RANK"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),
    ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"),
)
_CONF = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")

# Environment variables for job and attempt: torchrun, Slurm.
_JOBS = (
    ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"),
    ("SLURM_JOB_ID", "SLURM_RESTART_COUNT"),
)

# The script that Ray's worker processes run.
_RAY_WORKER = "default_worker.py"

# torchrun's id of an unnamed job.
_NAMELESS = "none"

# The last answer of torch.distributed, kept for files written after the program leaves its group.
_of_group: dict[str, int] = {}


def sidecar_path(path: str | os.PathLike[str]) -> str:
    """The sidecar's path: the snapshot's, plus ".json"."""
    return os.fspath(path) + ".json"


_serial = itertools.count(1)


def file_stem(kind: str) -> str:
    """A file name stem that is unique across processes and calls.

    Example:
        >>> file_stem("oom")    # doctest: +SKIP
        'oom-20260131-120000-node7-rank0-4711-1'
    """
    rank = rank_facts()["rank"]
    host = "".join(c if c.isalnum() or c in "-_." else "-" for c in os.uname().nodename)
    parts = [kind, time.strftime("%Y%m%d-%H%M%S"), host, str(os.getpid()), str(next(_serial))]
    if rank is not None:
        parts.insert(3, f"rank{rank}")
    return "-".join(parts)


def rank_facts() -> dict[str, int | None]:
    """rank, world_size and local_rank of this process, or None.

    They come from `torch.distributed` if it is initialised, or was at an earlier call, else from
    the environment of one launcher.
    """
    found = [[_from_environment(name) for name in names] for names in _LAUNCHERS]
    rank, world_size, local_rank = next((each for each in found if each[0] is not None), found[0])
    _ask_group()
    facts = {"rank": rank, "world_size": world_size, "local_rank": local_rank}
    return {**facts, **_of_group}


def job_facts() -> dict[str, str | int | None]:
    """job and attempt of this process by its launcher, or None.

    An unnamed job is identified by its rendezvous address.

    Example:
        >>> sorted(job_facts())
        ['attempt', 'job']
    """
    jobs = [(os.environ[job], attempt) for job, attempt in _JOBS if os.environ.get(job)]
    meeting = [os.environ.get(name, "") for name in ("MASTER_ADDR", "MASTER_PORT")]
    names = [name for name, _ in jobs if name != _NAMELESS]
    if all(meeting):
        names.append(":".join(meeting))
    attempt = _from_environment(jobs[0][1]) if jobs else None
    return {"job": names[0] if names else None, "attempt": attempt}


def process_role() -> str:
    """What this process is for its program: "data loader", "engine", "worker", or "" if unknown.

    Processes of multiprocessing have names, and inference servers say in them what theirs do.

    Example:
        >>> process_role()
        ''
    """
    data = sys.modules.get("torch.utils.data")
    if data is not None and data.get_worker_info() is not None:
        return "data loader"
    process = sys.modules.get("multiprocessing.process")
    name = "" if process is None else process.current_process().name
    if "engine" in name.lower():
        return "engine"
    is_child = process is not None and process.parent_process() is not None
    is_rays = os.path.basename(running_program()) == _RAY_WORKER
    return "worker" if is_child or is_rays else ""


def _ask_group() -> None:
    """Update `_of_group` from torch.distributed, if initialised."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None:
        return
    try:
        if distributed.is_available() and distributed.is_initialized():
            rank, world_size = distributed.get_rank(), distributed.get_world_size()
            _of_group.update(rank=rank, world_size=world_size)
    except (AttributeError, RuntimeError, ValueError):
        # It is being imported, or another thread is leaving the group.
        return


def rank_text(facts: Mapping[str, Any]) -> str:
    """Formats the rank of `rank_facts` or a sidecar; "" without one."""
    if facts.get("rank") is None:
        return ""
    size = facts.get("world_size")
    return f"rank {facts['rank']}" + ("" if size is None else f" of {size}")


def filled_in(path: str | os.PathLike[str]) -> str:
    """A file name with {rank} (0 without ranks), {host} and {pid} replaced."""
    name = os.fspath(path)
    rank = rank_facts()["rank"]
    for word, value in (("rank", rank or 0), ("host", os.uname().nodename), ("pid", os.getpid())):
        name = name.replace(f"{{{word}}}", str(value))
    return name


def running_program() -> str:
    """The script or module that `sys.argv` names."""
    return sys.argv[0] if sys.argv else ""


def _from_environment(name: str) -> int | None:
    text = os.environ.get(name, "")
    return int(text) if text.isdecimal() else None


def sidecar(
    devices: Iterable[int],
    *,
    recording: Mapping[str, Any],
    step: int | str | None = None,
    program: str | None = None,
    tensors: TensorBlocks | None = None,
) -> dict[str, Any]:
    """The sidecar's content, of the CUDA devices in use; no device gets a context."""
    torch = sys.modules.get("torch")
    version = getattr(torch, "version", None)
    return {
        "schema": SIDECAR_SCHEMA,
        **rank_facts(),
        **job_facts(),
        "host": os.uname().nodename,
        "pid": os.getpid(),
        "role": process_role(),
        "time_s": time.time(),
        "step": step,
        "program": running_program() if program is None else program,
        "python": sys.version.split()[0],
        "torch": None if torch is None else str(getattr(torch, "__version__", "")),
        "cuda": getattr(version, "cuda", None),
        "settings": {name: os.environ[name] for name in _CONF if name in os.environ},
        "recording": dict(recording),
        "devices": {str(device): _device(torch, device) for device in devices},
        "tensors": plain_tensors(tensors or {}),
        "libraries": list(library_folders()),
    }


def facts_of(snap: Snapshot, recording: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """As `sidecar`, for a snapshot of this process that was just taken."""
    devices = () if snap.is_cpu else snap.devices
    return sidecar(devices, recording=recording, tensors=snap.beside.tensors, **more)


def save_with(snap: Snapshot, path: str | os.PathLike[str], facts: Mapping[str, Any]) -> None:
    """Write a snapshot and its sidecar, each atomically."""
    snap.save(path)
    write_text(sidecar_path(path), facts)


def room_now(device: int) -> DeviceRoom | None:
    """This process's limits on a device; None if CUDA is not in use."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return None
    return device_room(_device(torch, device))


def _free_bytes(cuda: Any, device: int) -> int | None:
    try:
        return int(cuda.mem_get_info(device)[0])
    except (AttributeError, RuntimeError):
        # torch is being imported, or the device is in an error state.
        return None


def _device(torch: Any, device: int) -> dict[str, Any]:
    cuda = torch.cuda
    properties = cuda.get_device_properties(device)
    fraction = getattr(cuda, "get_per_process_memory_fraction", None)
    stats, total = dict(cuda.memory_stats(device)), int(properties.total_memory)
    reserved = int(stats.get("reserved_bytes.all.current", 0))
    # Without a context the query would create one, of some 500 MiB.
    has_context = getattr(getattr(torch, "_C", None), "_cuda_hasPrimaryContext", None)
    in_use = has_context is None or has_context(device)
    free = _free_bytes(cuda, device) if in_use else None
    return {
        "name": str(properties.name),
        "total_bytes": total,
        "free_bytes": free,
        "other_bytes": None if free is None else max(total - free - reserved, 0),
        "process_fraction": None if fraction is None else fraction(device),
        "memory_stats": stats,
    }


def write_text(path: str | os.PathLike[str], text: str | Mapping[str, Any]) -> None:
    """Write a text, or plain data as JSON, atomically."""
    content = text if isinstance(text, str) else dumps(dict(text))
    with atomic_file(path) as file:
        file.write(content.encode("utf-8", "backslashreplace") + b"\n")
