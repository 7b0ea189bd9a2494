# SPDX-License-Identifier: Apache-2.0
"""`neutracer.view`: a snapshot as one page that needs nothing else and loads nothing."""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Iterable
from html import escape
from pathlib import Path
from typing import Any

from neutracer.diagnose.overview import DeviceOverview, OverviewReport, overview
from neutracer.pictures.view_bundle import bundle, part
from neutracer.pictures.view_pack import MOST_ALLOCATIONS, pack
from neutracer.render.document import Note
from neutracer.render.escape import clean, sentence, shorten_left
from neutracer.render.html import page_shell
from neutracer.render.palette import DARK, LIGHT, Palette
from neutracer.render.report import Finding
from neutracer.saving import atomic_file
from neutracer.trace.snapshot import Snapshot, load
from neutracer.trace.source import SnapshotSource
from neutracer.units import format_bytes, format_count, format_duration_us

__all__ = ["view", "view_html"]

_TABS = ("Overview", "Segments", "Stacks", "Allocations", "Events", "Settings")

# Findings that stand above the picture; the others are behind a click.
_SHOWN_FINDINGS = 2

_MOST_PLACE = 120


def view(
    source: Snapshot | SnapshotSource,
    path: str | os.PathLike[str] = "out.html",
    *,
    device: int | None = None,
    max_allocations: int = MOST_ALLOCATIONS,
) -> Path:
    """Write a snapshot as one offline page: findings, timeline, address map, tables.

    The page is one file. Nothing leaves it: its policy refuses every request. It shows the
    names that the file has (functions, files, lines), and no source text.

    Args:
        source: A snapshot, or what `load` takes.
        path: Where to; the file appears whole or not at all.
        device: The device; None is the only one.
        max_allocations: Allocations that the page holds one by one. Of a longer trace those
            with the most bytes times events lived are kept; totals stay exact.

    Returns:
        The path.

    Raises:
        ValueError: There is no such device, or there are several and None was asked.
        SnapshotError: The file can't be read.
        OSError: A file can't be read or written.

    Example:
        >>> import neutracer, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     page = neutracer.view("tests/data/frag_default.pickle", folder + "/page.html")
        ...     page.stat().st_size < 200_000
        True
    """
    page = view_html(source, device=device, max_allocations=max_allocations)
    with atomic_file(path) as file:
        file.write(page.encode("utf-8", "backslashreplace"))
    return Path(path)


def view_html(
    source: Snapshot | SnapshotSource,
    *,
    device: int | None = None,
    max_allocations: int = MOST_ALLOCATIONS,
    title: str = "",
) -> str:
    """The page as text.

    Args:
        source: A snapshot, or what `load` takes.
        device: The device; None is the only one.
        max_allocations: As for `view`.
        title: What stands on top; empty is the file's name.

    Raises:
        ValueError: There is no such device, or `max_allocations` is below 1.
        SnapshotError: The file can't be read.
        OSError: It can't be read.
    """
    if max_allocations < 1:
        raise ValueError("a page holds at least one allocation")
    if isinstance(source, Snapshot):
        snap, name = source, title or "PyTorch snapshot"
    else:
        snap = load(source)
        is_path = isinstance(source, (str, os.PathLike)) and source != "-"
        name = title or (os.path.basename(os.fspath(source)) if is_path else "PyTorch snapshot")  # type: ignore[arg-type]
    number = snap.device(device)
    report = overview(snap, name)
    mine = next((entry for entry in report.devices if entry.device == number), None)
    payload = pack(snap, snap.timeline(number), {}, max_allocations)
    slots = {
        "title": _text(name),
        "facts": _facts(report, mine, number),
        "figures": _figures(mine),
        "tabs": _tabs(),
        "findings": _findings(_findings_of(report, mine)),
        "settings": _settings(snap),
        "payload": base64.b64encode(payload).decode("ascii"),
    }
    body = re.sub(r"\{(\w+)\}", lambda found: slots[found[1]], part("page.html"))
    return page_shell(name, body, _style(), bundle("main.js"))


def _text(text: str) -> str:
    return escape(sentence(text))


def _variables(palette: Palette) -> str:
    blues = "".join(f"--b{step}:{blue};" for step, blue in enumerate(palette.allocated))
    return (
        f"--page:{palette.page};--ink:{palette.ink};--grey:{palette.grey};--line:{palette.line};"
        f"--surface:{palette.surface};--sand:{palette.sand};--sand-ink:{palette.sand_ink};"
        f"--red:{palette.red};--red-wash:{palette.red_fill}80;{blues}"
    )


def _style() -> str:
    dark = f"{{color-scheme:dark;{_variables(DARK)}}}"
    return (
        f":root{{color-scheme:light;{_variables(LIGHT)}}}"
        f"@media (prefers-color-scheme:dark){{:root:not([data-theme=light]){dark}}}"
        f":root[data-theme=dark]{dark}\n{part('page.css')}"
    )


def _facts(report: OverviewReport, mine: DeviceOverview | None, number: int) -> str:
    events = mine.events if mine else 0
    length = f" over {format_duration_us(mine.duration_us)}" if mine and mine.duration_us else ""
    complete = mine.history_complete if mine else None
    history = {True: "history complete", False: "history begins late", None: "no history"}
    facts = [f"cuda:{number}", format_count(events, "event") + length, history[complete]]
    facts.append(report.settings or "default settings")
    if report.partial:
        facts.append(f"only a part was read: {report.partial}")
    return " · ".join(map(_text, facts))


def _figures(mine: DeviceOverview | None) -> str:
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
        f'<div class="{kind}"><dt>{word}</dt><dd>{format_bytes(nbytes)}</dd></div>'
        for word, nbytes, kind in figures
    )


def _findings_of(report: OverviewReport, mine: DeviceOverview | None) -> tuple[Finding, ...]:
    """The report's findings; where it is of several devices, those known to be this one's."""
    if len(report.devices) == 1 or mine is None:
        return report.findings
    return mine.fragmentation.findings


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
            "no out-of-memory event, no fragmentation worth a word.</strong></article>"
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
