# SPDX-License-Identifier: Apache-2.0
"""What a reader of an overview should know before trusting the figures, and what is unusual."""

from __future__ import annotations

from collections.abc import Mapping

from neutracer.diagnose.fragmentation.report import FragmentationReport
from neutracer.trace.snapshot import Snapshot
from neutracer.units import format_bytes, format_count

__all__ = ["oddities"]

_UNKNOWN = "nothing earlier is known"

_BEGIN_HISTORY = "neutracer.record(), or torch.cuda.memory._record_memory_history(), begins one"


def oddities(
    snap: Snapshot, devices: Mapping[int, FragmentationReport]
) -> tuple[tuple[str, str], ...]:
    """Names with a sentence each.

    Args:
        snap: The snapshot.
        devices: The fragmentation of each of its devices.
    """
    odd = []
    if snap.ignored_keys:
        odd.append(("not read", ", ".join(snap.ignored_keys)))
    if snap.host is not None:
        odd.append(("pinned", _of_host(snap.host)))
    for device, fragmentation in devices.items():
        odd.extend(_of_history(snap, device))
        odd.extend(_of_pools(fragmentation))
    return tuple(odd)


def _of_host(host: Snapshot) -> str:
    """The pinned memory of the host beside the devices', in one sentence."""
    stats = host.memory_stats(0)
    reserved, used = (stats[f"{one}_bytes.all.current"] for one in ("reserved", "active"))
    most = host.timeline(0).peak("reserved").bytes
    at_most = f" ({format_bytes(most)} at most)" if most > reserved else ""
    held = f"{format_bytes(reserved)} of the host's memory{at_most}, {format_bytes(used)} in use"
    return f"{held}; who holds it: --host, or snapshot.host"


def _of_history(snap: Snapshot, device: int) -> list[tuple[str, str]]:
    odd = []
    facts = snap.timeline(device).facts
    if snap.window:
        odd.extend(_of_window(snap, device))
    elif snap.history_overflowed(device):
        odd.append(("history", "the ring of events wrapped; what came before it is unknown"))
    elif not snap.trace_length(device):
        odd.append(("history", f"none: {_BEGIN_HISTORY}"))
    elif not snap.history_complete(device):
        contradicts = any(flaw.device == device for flaw in snap.flaws)
        unknown = "events are missing, or contradict each other" if contradicts else _UNKNOWN
        blocks = format_count(facts["preexisting"], "block")
        were = "was" if facts["preexisting"] == 1 else "were"
        before = f"{blocks} {were} there before the first event"
        odd.append(("history", before if facts["preexisting"] else unknown))
    if facts["slack_bound"]:
        bound = format_bytes(facts["slack_bound"])
        odd.append(("estimate", f"blocks from before the trace may be up to {bound} larger"))
    return odd


def _of_window(snap: Snapshot, device: int) -> list[tuple[str, str]]:
    """What lived before a part of a trace."""
    layout = snap.timeline(device).at(-1)
    alive = [block.size for block in layout.blocks if block.state != "inactive"]
    blocks = f"{format_count(len(alive), 'block')}, {format_bytes(sum(alive))},"
    return [("history", f"{blocks if alive else 'nothing'} lived before these events")]


def _of_pools(fragmentation: FragmentationReport) -> list[tuple[str, str]]:
    odd = []
    pools = fragmentation.pools
    private = [pool for pool in pools if pool.pool != (0, 0)]
    if private:
        size = format_bytes(sum(pool.reserved_bytes for pool in private))
        count = format_count(len({pool.pool for pool in private}), "private pool")
        odd.append(("private pools", f"{count} with {size} reserved"))
    pending = sum(pool.pending_bytes for pool in pools)
    if pending:
        odd.append(("pending", f"{format_bytes(pending)} freed, waiting for another stream"))
    streams = {pool.stream for pool in pools}
    if len(streams) > 1:
        odd.append(("streams", f"{len(streams)}: a free block of one is never used for another"))
    return odd
