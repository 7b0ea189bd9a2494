# SPDX-License-Identifier: Apache-2.0
"""Shared first steps of all questions: open the source, and report caveats on the file."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

from neutracer.render.document import Note, Severity
from neutracer.render.report import Finding, Report
from neutracer.trace.flaws import caveats_of
from neutracer.trace.snapshot import Snapshot, load
from neutracer.trace.source import SnapshotSource

Answer = TypeVar("Answer", bound=Report)


def opened(source: Snapshot | SnapshotSource | None) -> Snapshot:
    """The snapshot of a source (a snapshot itself, or for `load`); None is this process, now."""
    if source is not None:
        return source if isinstance(source, Snapshot) else load(source)
    from neutracer.recording.recorder import snapshot
    from neutracer.recording.sidecar import room_now

    snap = snapshot()
    rooms = {one: room for one in snap.devices if (room := room_now(one)) is not None}
    snap.beside = replace(snap.beside, rooms=rooms)
    return snap


def first_findings(*snaps: Snapshot, device: int | None = None) -> tuple[Finding, ...]:
    """The caveats of snapshots as findings, with flaws of one device (None: all)."""
    return tuple(
        Finding(one.kind, Severity(one.severity), 0, one.message, tuple(map(Note, one.details)))
        for one in caveats_of(*snaps, device=device)
    )


def after_caveats(report: Answer, *snaps: Snapshot, device: int | None = None) -> Answer:
    """The report with the caveats of its snapshots before its own findings."""
    first = first_findings(*snaps, device=device)
    return replace(report, findings=(*first, *report.findings)) if first else report
