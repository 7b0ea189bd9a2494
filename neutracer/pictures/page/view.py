# SPDX-License-Identifier: Apache-2.0
"""`neutracer.view`: a snapshot as one page that needs nothing else and loads nothing."""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import overload

from neutracer.arguments import number_pair, path_name, whole_number
from neutracer.diagnose.overview.report import OverviewReport, overview
from neutracer.diagnose.settings.what_if_parts import Outcome
from neutracer.errors import LimitError
from neutracer.pictures.page.bundle import bundle, part
from neutracer.pictures.page.inline import PageView
from neutracer.pictures.page.pack import MOST_ALLOCATIONS, pack
from neutracer.pictures.page.parts import page_parts, page_style
from neutracer.render.html import page_shell
from neutracer.saving import check_output
from neutracer.trace.snapshot import Snapshot, load
from neutracer.trace.source import SnapshotSource

__all__ = ["view", "view_html"]


@overload
def view(
    source: Snapshot | SnapshotSource | Outcome,
    path: str | os.PathLike[str],
    *,
    device: int | None = None,
    max_allocations: int = MOST_ALLOCATIONS,
    focus: tuple[int, int] | None = None,
) -> Path: ...


@overload
def view(
    source: Snapshot | SnapshotSource | Outcome,
    path: None = None,
    *,
    device: int | None = None,
    max_allocations: int = MOST_ALLOCATIONS,
    focus: tuple[int, int] | None = None,
) -> PageView: ...


def view(
    source: Snapshot | SnapshotSource | Outcome,
    path: str | os.PathLike[str] | None = None,
    *,
    device: int | None = None,
    max_allocations: int = MOST_ALLOCATIONS,
    focus: tuple[int, int] | None = None,
) -> Path | PageView:
    """Write a snapshot as one offline page: findings, timeline, address map, tables.

    The page is one file. It sends nothing: its policy refuses every request. It shows the
    names in the file (functions, files, lines), but no source text.

    Args:
        source: A snapshot, or what `load` takes; or an outcome of `what_if`.
        path: Where to; the file appears whole or not at all. Without one the page is not
            written, and shows itself in a notebook.
        device: The device; None is all of them: the page opens on the first that ran out of
            memory, and turns from one to the next.
        max_allocations: Allocations that the page holds one by one, over all its devices.
            From a longer trace it keeps those with the most bytes times events lived; totals
            stay exact, and the map shows the others in cells.
        focus: Events from .. to of the one device: the page keeps what lives in them first,
            and opens on them.

    Returns:
        The path; without one the page.

    Raises:
        ValueError: There is no such device, `max_allocations` is below 1, the focus holds no
            event or is of several devices, or the path is the file that is read.
        LimitError: It holds a number that a browser can't, beyond 53 bits.
        SnapshotError: The file can't be read.
        OSError: A file can't be read or written.

    Example:
        >>> import neutracer, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     page = neutracer.view("tests/data/frag_default.pickle", folder + "/page.html")
        ...     page.stat().st_size < 200_000
        True
    """
    if path is not None:
        # An impossible file name is reported before the work begins.
        check_output(path_name(path), source)
    page = _page(source, device, max_allocations, focus)
    return page if path is None else page.save(path)


def view_html(
    source: Snapshot | SnapshotSource | Outcome,
    *,
    device: int | None = None,
    max_allocations: int = MOST_ALLOCATIONS,
    focus: tuple[int, int] | None = None,
    title: str = "",
) -> str:
    """The page as text.

    Args:
        source: A snapshot, or what `load` takes; or an outcome of `what_if`.
        device: As for `view`.
        max_allocations: As for `view`.
        focus: As for `view`.
        title: The title; empty is the file's name.

    Raises:
        ValueError: As for `view`.
        SnapshotError: The file can't be read.
        OSError: It can't be read.
    """
    return _page(source, device, max_allocations, focus, title).html


def _page(
    source: Snapshot | SnapshotSource | Outcome,
    device: int | None,
    most: int,
    focus: tuple[int, int] | None,
    title: str = "",
) -> PageView:
    if whole_number("max_allocations", most) < 1:
        raise ValueError("a page must hold at least one allocation")
    if focus is not None:
        focus = number_pair("focus", focus, whole=True)
    snap, name, path = _opened(source, title)
    several = device is None and len(snap.devices) > 1
    report = overview(snap, name, path=path, called=os.path.basename(path))
    devices = _by_failure(report) if several else (snap.timeline(device).device,)
    slots = {
        **page_parts(snap, report, devices, name),
        "payloads": _payloads(snap, devices, most, focus),
    }
    body = re.sub(r"\{(\w+)\}", lambda found: slots[found[1]], part("page.html"))
    return PageView(page_shell(name, body, page_style(), bundle("main.js")), name, snap.origin)


def _by_failure(report: OverviewReport) -> tuple[int, ...]:
    """The devices in the order of the page, which opens on the first: on one that ran out
    of memory where one did."""
    ordered = sorted(report.devices, key=lambda entry: (not entry.oom, entry.device))
    return tuple(entry.device for entry in ordered)


def _opened(source: Snapshot | SnapshotSource | Outcome, title: str) -> tuple[Snapshot, str, str]:
    """The snapshot, the title of its page, and where its file is; "" is nowhere."""
    if isinstance(source, Outcome):
        settings = source.settings or "default settings"
        return source.snapshot(), title or f"What if: {settings}", ""
    if isinstance(source, Snapshot):
        return source, title or "PyTorch snapshot", ""
    if isinstance(source, (str, os.PathLike)) and source != "-":
        path = os.fspath(source)
        return load(source), title or os.path.basename(path), path
    return load(source), title or "PyTorch snapshot", ""


def _payloads(
    snap: Snapshot, devices: Sequence[int], most: int, focus: tuple[int, int] | None
) -> str:
    """The data, a script that is none a device."""
    timelines = [snap.timeline(number) for number in devices]
    if focus is not None:
        if len(timelines) > 1:
            raise ValueError("a focus needs one device: say which")
        last = min(focus[1], len(timelines[0]) - 1)
        focus = (max(focus[0], 0), last)
        if focus[0] > last:
            raise ValueError(f"the trace has no event in {focus[0]} .. {last}")
    shares = _shares([len(timeline.allocations) for timeline in timelines], most)
    parts: list[str] = []
    for timeline, kept in zip(timelines, shares, strict=True):
        try:
            packed = pack(snap, timeline, {}, kept, focus)
        except OverflowError as error:
            raise LimitError(f"a page can't hold this: {error}") from None
        data = base64.b64encode(packed).decode("ascii")
        name = f"payload-{timeline.device}" if parts else "payload"
        parts.append(
            f'<script type="application/octet-stream" data-device="{timeline.device}" '
            f'id="{name}">{data}</script>'
        )
    return "".join(parts)


def _shares(counts: Sequence[int], most: int) -> list[int]:
    """How many rows of each device are kept: those with few keep all, the others the same."""
    shares = [0] * len(counts)
    left = most
    by_count = sorted(range(len(counts)), key=counts.__getitem__)
    for place, which in enumerate(by_count):
        shares[which] = min(counts[which], max(left // (len(counts) - place), 1))
        left -= shares[which]
    return shares
