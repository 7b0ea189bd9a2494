# SPDX-License-Identifier: Apache-2.0
"""What a trace can't tell of the program that it is replayed for, in sentences."""

from __future__ import annotations

from typing import Any

from neutracer.trace.snapshot import Snapshot
from neutracer.trace.timeline import Timeline
from neutracer.units import format_bytes, format_count

__all__ = ["event_notes", "start_notes"]


def _unstated(inferred: str, is_exact: bool) -> str:
    """What a file that states no settings is taken for."""
    if inferred:
        text = f"Settings not recorded; the trace shows {inferred}"
    else:
        text = "Settings not recorded; the default is assumed"
    return f"{text}, with which the model reproduces it." if is_exact else f"{text}."


def start_notes(snap: Snapshot, timeline: Timeline, is_exact: bool) -> list[str]:
    """What is not known of the state before the trace, or of the file as a whole.

    Args:
        snap: The snapshot.
        timeline: That of the device.
        is_exact: Whether the model reproduces the recording exactly.
    """
    facts, notes = timeline.facts, []
    if not snap.settings_stated:
        notes.append(_unstated(str(snap.settings_in_force["text"]), is_exact))
    if snap.history_overflowed(timeline.device):
        notes.append(
            "The ring of events wrapped: what came before its first event is not replayed."
        )
    if facts["preexisting"]:
        blocks = format_count(facts["preexisting"], "block")
        notes.append(
            f"{blocks} were there before the first event and stay in place; settings "
            "of another kind allocate them anew first."
        )
    if facts["slack_bound"]:
        bound = format_bytes(facts["slack_bound"])
        notes.append(f"Blocks from before the trace may be up to {bound} larger than assumed.")
    return notes


def event_notes(timeline: Timeline, program: dict[str, Any], is_exact: bool) -> list[str]:
    """What events are missing, or do not say.

    Args:
        timeline: The device's.
        program: What the core knows of its program.
        is_exact: Whether the model reproduces the recording exactly.
    """
    facts, notes = timeline.facts, []
    if facts["unmatched"]:
        events = format_count(facts["unmatched"], "event")
        notes.append(f"The trace has gaps: {events} fit nothing in it and are left out.")
    if program["segments_without_pool"] and (
        program["pools"] > 1 or not (facts["unmatched"] or is_exact)
    ):
        segments = format_count(program["segments_without_pool"], "segment")
        notes.append(
            "The events of this file do not name their pool, and "
            f"{segments} were gone at its end: these count as the default pool's. Where "
            "the program used others (CUDA graphs, MemPool) figures may be outside their "
            "ranges."
        )
    if not program["calls_known"]:
        notes.append(
            "Without stacks an empty_cache() of the program can't always be told from the "
            "allocator's own."
        )
    return notes
