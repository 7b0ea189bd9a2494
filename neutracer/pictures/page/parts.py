# SPDX-License-Identifier: Apache-2.0
"""What only Python finds about a snapshot, as plain data for its page."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

from neutracer.diagnose.overview.report import DeviceOverview, OverviewReport
from neutracer.pictures.page.bundle import part
from neutracer.render.document import Note
from neutracer.render.escape import clean, sentence, shorten_left
from neutracer.render.palette import DARK, LIGHT, Palette
from neutracer.render.report import Finding
from neutracer.trace.devices import PINNED, device_name
from neutracer.units import format_bytes, format_count, format_duration_us

__all__ = ["HOST_NUMBER", "page_style", "tabs", "told", "told_of_host"]

#: The host's pinned memory among the devices of the page (`units.js`).
HOST_NUMBER, HOST_NAME = 1024, device_name(PINNED)

_TABS = ("Overview", "Segments", "Stacks", "Allocations", "Events", "Settings", "Compare")

_MOST_PLACE = 120


def told(report: OverviewReport, devices: Sequence[int]) -> list[dict[str, Any]]:
    """Each device's facts, figures and findings, in the order of the page.

    Args:
        report: The snapshot's report.
        devices: The devices that the page shows.
    """
    entries = []
    for number in devices:
        mine = next((entry for entry in report.devices if entry.device == number), None)
        entries.append(
            {
                "device": number,
                "name": _name(report, mine, number),
                "facts": _facts(report, mine, number),
                "figures": _figures(mine),
                "findings": [_finding(finding) for finding in _findings_of(report, mine)],
            }
        )
    return entries


def told_of_host(report: OverviewReport) -> dict[str, Any]:
    """The same of the host's pinned memory, under its number on the page."""
    return {**told(report, (0,))[0], "device": HOST_NUMBER}


def _name(report: OverviewReport, mine: DeviceOverview | None, number: int) -> str:
    """A device in the list of them."""
    if mine is None:
        return f"cuda:{number}"
    if report.is_host:
        return HOST_NAME
    peak = format_bytes(mine.reserved_peak["reserved_bytes"])
    return f"cuda:{number}, {peak} at most{', out of memory' if mine.oom else ''}"


def tabs() -> str:
    """The buttons of the page's views."""
    return "".join(
        f'<button role="tab" data-tab="{tab.lower()}" aria-controls="{tab.lower()}" '
        f'aria-selected="{"true" if tab == _TABS[0] else "false"}">{escape(tab)}</button>'
        for tab in _TABS
    )


def _variables(palette: Palette) -> str:
    blues = "".join(f"--b{step}:{blue};" for step, blue in enumerate(palette.allocated))
    hues = "".join(f"--h{place}:{colour};" for place, colour in enumerate(palette.hues))
    return (
        f"--page:{palette.page};--ink:{palette.ink};--grey:{palette.grey};--line:{palette.line};"
        f"--surface:{palette.surface};--sand:{palette.sand};--sand-ink:{palette.sand_ink};"
        f"--red:{palette.red};--red-wash:{palette.red_fill}80;{blues}{hues}"
    )


def page_style() -> str:
    """The page's style sheet, light and dark."""
    dark = f"{{color-scheme:dark;{_variables(DARK)}}}"
    return (
        f":root{{color-scheme:light;{_variables(LIGHT)}}}"
        f"@media screen and (prefers-color-scheme:dark){{:root:not([data-theme=light]){dark}}}"
        f"@media screen{{:root[data-theme=dark]{dark}}}\n{part('page.css')}"
    )


def _facts(report: OverviewReport, mine: DeviceOverview | None, number: int) -> str:
    events = mine.events if mine else 0
    length = f" over {format_duration_us(mine.duration_us)}" if mine and mine.duration_us else ""
    complete = mine.history_complete if mine else None
    history = {True: "history complete", False: "history begins late", None: "no history"}
    length = length.replace(" us", " \N{MICRO SIGN}s")
    name = device_name(mine.fragmentation.device if mine else number)
    marks = ["Rehearsed, not recorded"] if report.rehearsed else []
    facts = [*marks, name, format_count(events, "event") + length]
    if report.window or not report.partial:
        facts.append(report.window or history[complete])
    if not report.is_host:
        facts.append(report.settings_told)
    if report.partial:
        facts.append(f"only a part was read: {report.partial}")
    return " · ".join(map(sentence, facts))


def _figures(mine: DeviceOverview | None) -> list[tuple[str, str, str]]:
    """Words, values and what they are: "worst" or nothing."""
    if mine is None:
        return []
    stats = mine.memory_stats
    at_end = [
        ("allocated", stats["allocated_bytes.all.current"], ""),
        ("reserved", stats["reserved_bytes.all.current"], ""),
    ]
    figures = [
        *(at_end if mine.end_known else ()),
        ("peak allocated", mine.peak["allocated_bytes"], ""),
        ("peak reserved", mine.reserved_peak["reserved_bytes"], "worst" if mine.oom else ""),
    ]
    return [(word, format_bytes(nbytes), kind) for word, nbytes, kind in figures]


def _findings_of(report: OverviewReport, mine: DeviceOverview | None) -> tuple[Finding, ...]:
    """The findings of one device; all of them where it is the only one."""
    if len(report.devices) == 1 or mine is None:
        return report.findings
    return report.findings_of(mine.device)


def _finding(finding: Finding) -> dict[str, Any]:
    return {
        "severity": finding.severity.value,
        "message": sentence(finding.message),
        "event": finding.event,
        "notes": [_note(note) for note in (*finding.evidence, *finding.advice)],
    }


def _note(note: Note) -> str:
    words = sentence(note.text)
    if note.place is not None:
        where = shorten_left(clean(note.place.location), _MOST_PLACE)
        words += f" {sentence(note.place.function, _MOST_PLACE)} {where}"
    elif note.detail:
        words += f": {sentence(note.detail)}"
    return words
