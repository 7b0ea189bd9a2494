# SPDX-License-Identifier: Apache-2.0
"""How faithfully does the model replay a recording under its own settings?"""

from __future__ import annotations

from dataclasses import dataclass

from neutracer.diagnose.question import first_findings
from neutracer.diagnose.settings.fidelity import Fidelity
from neutracer.diagnose.settings.what_if import open_replayer
from neutracer.diagnose.settings.what_if_parts import trust_blocks
from neutracer.render.document import Document
from neutracer.render.report import Report
from neutracer.trace.snapshot import Snapshot, settings_words
from neutracer.trace.source import SnapshotSource
from neutracer.units import format_count

__all__ = ["CheckReport", "check_replay"]


@dataclass(frozen=True, kw_only=True, repr=False)
class CheckReport(Report):
    """How faithfully the model replays a recording under its own settings.

    Attributes:
        device: The device.
        events: Events of its trace.
        settings: The file's own settings.
        settings_recorded: Whether the file states them. If not, they are what its trace shows.
        check: What was compared, and what was the same.
        notes: What the trace can't tell.
    """

    schema = "neutracer.replay_check/1"

    device: int
    events: int
    settings: str
    check: Fidelity
    notes: tuple[str, ...]
    settings_recorded: bool = True

    def document(self) -> Document:
        """The report as a page."""
        name = settings_words(self.settings, is_stated=self.settings_recorded)
        facts = (f"cuda:{self.device}", format_count(self.events, "event"), name)
        blocks = (*self.finding_blocks(), *trust_blocks(self.check, (), self.notes))
        return Document("Replay check", facts, blocks)


def check_replay(
    source: Snapshot | SnapshotSource | None,
    *,
    device: int | None = None,
    torch_version: str | None = None,
) -> CheckReport:
    """How faithfully the model replays a recording; the arguments are those of `what_if`."""
    replayer = open_replayer(source, None, device, torch_version)
    return CheckReport(
        device=replayer.device,
        events=len(replayer.timeline),
        settings=replayer.recorded_settings,
        settings_recorded=replayer.snap.settings_stated,
        check=replayer.check,
        notes=replayer.notes(),
        findings=first_findings(replayer.snap, device=replayer.device),
    )
