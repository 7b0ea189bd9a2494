# SPDX-License-Identifier: Apache-2.0
"""What is on the page of a snapshot before its program runs: findings, figures, settings."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from neutracer.diagnose.overview.report import DeviceOverview, OverviewReport
from neutracer.pictures.page.bundle import part
from neutracer.render.document import Note
from neutracer.render.escape import clean, sentence, shorten_left
from neutracer.render.palette import DARK, LIGHT, Palette
from neutracer.render.report import Finding
from neutracer.trace.snapshot import Snapshot
from neutracer.units import format_bytes, format_count, format_duration_us

__all__ = ["page_parts", "page_style"]

_TABS = ("Overview", "Segments", "Stacks", "Allocations", "Events", "Settings")

# Findings above the picture; the others need a click.
_SHOWN_FINDINGS = 2

_MOST_PLACE = 120


def page_parts(
    snap: Snapshot, report: OverviewReport, devices: Sequence[int], title: str
) -> dict[str, str]:
    """The page's HTML by the name of its place in `page.html`.

    Args:
        snap: The snapshot.
        report: Its report.
        devices: The devices that the page shows; those after the first are hidden at first.
        title: The title.
    """
    return {
        "title": _text(title),
        "tabs": _tabs(),
        "devices": _device_choice(report, devices) if len(devices) > 1 else "",
        "settings": _settings(snap),
        **_headings(report, devices),
    }


def _device_choice(report: OverviewReport, devices: Sequence[int]) -> str:
    peaks = {entry.device: entry.reserved_peak["reserved_bytes"] for entry in report.devices}
    failed = {entry.device for entry in report.devices if entry.oom}
    options = "".join(
        f'<option value="{number}">cuda:{number}, '
        f"{format_bytes(peaks.get(number, 0))} at most"
        f"{', out of memory' if number in failed else ''}</option>"
        for number in sorted(devices)
    )
    return f'<label>device <select id="device">{options}</select></label>'


def _headings(report: OverviewReport, devices: Sequence[int]) -> dict[str, str]:
    """What is above the tabs and above the picture, for each device."""
    facts, figures, findings = [], [], []
    for place, number in enumerate(devices):
        mine = next((entry for entry in report.devices if entry.device == number), None)
        hidden = " hidden" if place else ""
        of = f' data-of="{number}"{hidden}' if len(devices) > 1 else ""
        facts.append(f"<span{of}>{_facts(report, mine, number)}</span>")
        figures.append(_figures(mine, of))
        findings.append(f"<div{of}>{_findings(_findings_of(report, mine))}</div>")
    return {
        "facts": "".join(facts),
        "figures": "".join(figures),
        "findings": "".join(findings),
    }


def _text(text: str) -> str:
    return escape(sentence(text))


def _variables(palette: Palette) -> str:
    blues = "".join(f"--b{step}:{blue};" for step, blue in enumerate(palette.allocated))
    groups = "".join(f"--g{place}:{colour};" for place, colour in enumerate(palette.groups))
    return (
        f"--page:{palette.page};--ink:{palette.ink};--grey:{palette.grey};--line:{palette.line};"
        f"--surface:{palette.surface};--sand:{palette.sand};--sand-ink:{palette.sand_ink};"
        f"--red:{palette.red};--red-wash:{palette.red_fill}80;{blues}{groups}"
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
    name = "cpu" if mine and mine.fragmentation.device < 0 else f"cuda:{number}"
    facts = [name, format_count(events, "event") + length, history[complete]]
    facts.append(report.settings or "default settings")
    if report.partial:
        facts.append(f"only a part was read: {report.partial}")
    return " · ".join(map(_text, facts))


def _figures(mine: DeviceOverview | None, of: str) -> str:
    if mine is None:
        return ""
    stats = mine.memory_stats
    figures = [
        ("allocated", stats["allocated_bytes.all.current"], ""),
        ("reserved", stats["reserved_bytes.all.current"], ""),
        ("peak allocated", mine.peak["allocated_bytes"], ""),
        ("peak reserved", mine.reserved_peak["reserved_bytes"], "worst" if mine.oom else ""),
    ]
    return "".join(
        f'<div class="{kind}"{of}><dt>{word}</dt><dd>{format_bytes(nbytes)}</dd></div>'
        for word, nbytes, kind in figures
    )


def _findings_of(report: OverviewReport, mine: DeviceOverview | None) -> tuple[Finding, ...]:
    """The findings of one device; all of them where it is the only one."""
    if len(report.devices) == 1 or mine is None:
        return report.findings
    return report.findings_of(mine.device)


def _tabs() -> str:
    return "".join(
        f'<button role="tab" data-tab="{tab.lower()}" aria-controls="{tab.lower()}" '
        f'aria-selected="{"true" if tab == _TABS[0] else "false"}">{tab}</button>'
        for tab in _TABS
    )


def _findings(findings: Iterable[Finding]) -> str:
    articles = [_finding(finding) for finding in findings]
    if not articles:
        return (
            '<article class="info"><span class="word">good</span><strong>Nothing stands out: '
            "no out-of-memory event, no fragmentation worth mentioning.</strong></article>"
        )
    more = articles[_SHOWN_FINDINGS:]
    rest = f"<details><summary>{len(more)} more</summary>{''.join(more)}</details>" if more else ""
    return "".join(articles[:_SHOWN_FINDINGS]) + rest


def _finding(finding: Finding) -> str:
    severity = finding.severity.value
    go = (
        f'<button data-event="{finding.event}">event {format_count(finding.event)}</button>'
        if finding.event is not None
        else ""
    )
    notes = " · ".join(_note(note) for note in (*finding.evidence, *finding.advice))
    return (
        f'<article class="{severity}"><span class="word">{severity}</span>'
        f"<strong>{_text(finding.message)}</strong>{go}<p>{notes}</p></article>"
    )


def _note(note: Note) -> str:
    words = sentence(note.text)
    if note.place is not None:
        where = shorten_left(clean(note.place.location), _MOST_PLACE)
        words += f" {sentence(note.place.function, _MOST_PLACE)} {where}"
    elif note.detail:
        words += f": {sentence(note.detail)}"
    return escape(words.rstrip("."))


def _settings(snap: Snapshot) -> str:
    known = dict(snap.settings_in_force)
    rows: dict[str, Any] = {"PYTORCH_CUDA_ALLOC_CONF": known.pop("text") or "(default)", **known}
    return "".join(
        f"<dt>{_text(name)}</dt><dd>{_text(_setting(name, value))}</dd>"
        for name, value in rows.items()
    )


def _setting(name: str, value: object) -> str:
    if isinstance(value, tuple):
        return "off" if not any(value) else ", ".join(map(str, value))
    if value is None:
        return "not set"
    if type(value) is int and name.endswith(("size", "rounding")):
        return format_bytes(value)
    return str(value)
