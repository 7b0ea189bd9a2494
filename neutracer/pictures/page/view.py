# SPDX-License-Identifier: Apache-2.0
"""`neutracer.view`: a snapshot as one page that needs nothing else and loads nothing.

The page holds the core as WebAssembly, and opens any other snapshot as well; what only
Python finds is plain data in it.
"""

from __future__ import annotations

import base64
import gzip
import io
import json
import os
import re
from collections.abc import Mapping
from functools import lru_cache
from html import escape
from pathlib import Path
from typing import Any, overload

from neutracer._native import core
from neutracer.arguments import number_pair, path_name
from neutracer.diagnose.overview.report import OverviewReport, overview
from neutracer.diagnose.settings.what_if_parts import Outcome, named
from neutracer.pictures.extra import marked, opened
from neutracer.pictures.page.bundle import bundle, part
from neutracer.pictures.page.inline import PageView
from neutracer.pictures.page.parts import page_style, tabs, told, told_of_host
from neutracer.pictures.page.rules import page_rules
from neutracer.render.escape import sentence
from neutracer.render.html import page_shell
from neutracer.saving import check_output
from neutracer.trace.categories import FIRST_TOLD
from neutracer.trace.snapshot import Snapshot
from neutracer.trace.source import SnapshotSource

__all__ = ["empty_page", "packed_columns", "view", "view_html"]

# The core for the page; tools/wasm builds it.
_CORE = Path(__file__).parent / "core.wasm"

# Most of what deflate gains is gained here; the levels above take seven times as long.
_LEVEL = 6


@overload
def view(
    source: Snapshot | SnapshotSource | Outcome,
    path: str | os.PathLike[str],
    *,
    device: int | None = None,
    focus: tuple[int, int] | None = None,
    dark: bool | None = None,
) -> Path: ...


@overload
def view(
    source: Snapshot | SnapshotSource | Outcome,
    path: None = None,
    *,
    device: int | None = None,
    focus: tuple[int, int] | None = None,
    dark: bool | None = None,
) -> PageView: ...


def view(
    source: Snapshot | SnapshotSource | Outcome,
    path: str | os.PathLike[str] | None = None,
    *,
    device: int | None = None,
    focus: tuple[int, int] | None = None,
    dark: bool | None = None,
) -> Path | PageView:
    """Write a snapshot as one offline page: findings, timeline, address map, tables, what-if.

    The page is one file. It sends nothing: its policy refuses every request. It holds the
    whole snapshot, which a button saves as a pickle, and opens any other one that is dropped
    on it. It shows the names in the file (functions, files, lines), but no source text.

    Args:
        source: A snapshot, or what `load` takes; or an outcome of `what_if`.
        path: Where to; the file appears whole or not at all. Without one the page is not
            written, and shows itself in a notebook.
        device: The device; None is all of them: the page opens on the first that ran out of
            memory, and turns from one to the next.
        focus: Events from .. to of the one device, on which the page opens.
        dark: Whether the page is dark; None follows the browser, and in a notebook its theme,
            also when that changes.

    Returns:
        The path; without one the page.

    Raises:
        ValueError: There is no such device, the focus holds no event or is of several
            devices, or the path is the file that is read.
        SnapshotError: The file can't be read.
        OSError: A file can't be read or written.

    Example:
        >>> import neutracer, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     page = neutracer.view("tests/data/frag_default.pickle", folder + "/page.html")
        ...     page.stat().st_size < 500_000
        True
    """
    if path is not None:
        # An impossible file name is reported before the work begins.
        check_output(path_name(path), source)
    page = _page(source, device, focus, dark=dark)
    return page if path is None else page.save(path)


def view_html(
    source: Snapshot | SnapshotSource | Outcome,
    *,
    device: int | None = None,
    focus: tuple[int, int] | None = None,
    title: str = "",
) -> str:
    """The page as text.

    Args:
        source: A snapshot, or what `load` takes; or an outcome of `what_if`.
        device: As for `view`.
        focus: As for `view`.
        title: The title; empty is the file's name.

    Raises:
        ValueError: As for `view`.
        SnapshotError: The file can't be read.
        OSError: It can't be read.
    """
    return _page(source, device, focus, title).html


def empty_page(dark: bool | None = None) -> PageView:
    """The page without a snapshot: it opens those that are dropped on it."""
    return _made("neutracer", "", "", dark)


def _page(
    source: Snapshot | SnapshotSource | Outcome,
    device: int | None,
    focus: tuple[int, int] | None,
    title: str = "",
    *,
    dark: bool | None = None,
) -> PageView:
    if focus is not None:
        focus = number_pair("focus", focus, whole=True)
    snap, name, path = _opened(source, title)
    several = device is None and (len(snap.devices) > 1 or snap.host is not None)
    report = overview(snap, os.path.basename(path), title=name)
    devices = _by_failure(report) if several else (snap.timeline(device).device,)
    host = [] if snap.host is None or device is not None else [overview(snap.host, title=name)]
    if focus is not None:
        if len(devices) != 1:
            raise ValueError("a focus needs one device: say which")
        focus = _bounded(focus, len(snap.timeline(devices[0])))
    facts = {
        "title": name,
        "focus": focus,
        "renamed": dict(_renamed(snap)),
        "rules": {number: _told_rules(snap, number) for number in devices if snap.beside.tensors},
        "devices": [*told(report, devices), *map(told_of_host, host)],
    }
    payloads = _data("told", facts) + _packed("snapshot", packed_columns(snap))
    return _made(name, payloads, snap.origin, dark)


def _made(title: str, payloads: str, origin: str, dark: bool | None = None) -> PageView:
    """A page with what is in it."""
    worker = bundle("worker.js")
    if "</" in worker or "<!--" in worker:
        raise ValueError("the worker's program can't hold '</'")
    slots = {
        "title": escape(sentence(title)),
        "tabs": tabs(),
        "payloads": f'{payloads}<script type="application/json" id="rules">{page_rules()}</script>'
        f'<script type="text/plain" id="worker">{worker}</script>{_core()}',
    }
    body = re.sub(r"\{(\w+)\}", lambda found: slots[found[1]], part("page.html"))
    page = page_shell(title, body, page_style(), bundle("main.js"), has_core=True, dark=dark)
    return PageView(page, title, origin)


@lru_cache(maxsize=1)
def _core() -> str:
    return _packed("core", _CORE.read_bytes(), level=9)


def _packed(name: str, data: bytes, level: int = _LEVEL) -> str:
    """Bytes as an element that nothing runs: base64 of gzip."""
    text = base64.b64encode(gzip.compress(data, level, mtime=0)).decode("ascii")
    return f'<script type="application/octet-stream" id="{name}">{text}</script>'


def packed_columns(snap: Snapshot) -> bytes:
    """The snapshot as the core packs its columns for the page."""
    core.pack(snap.native, (buffer := io.BytesIO()).write)
    return buffer.getvalue()


def _data(name: str, value: dict[str, Any]) -> str:
    text = json.dumps(value, separators=(",", ":")).replace("<", "\\u003c")
    return f'<script type="application/json" id="{name}">{text}</script>'


def _renamed(snap: Snapshot) -> Mapping[str, str]:
    """What files are called on the page where that is not what the snapshot calls them: the
    cells of a notebook."""
    pairs = zip(snap.native.strings(), snap.strings, strict=True)
    return {written: shown for written, shown in pairs if written != shown}


def _told_rules(snap: Snapshot, device: int) -> list[tuple[int, int]]:
    """Rows of the allocations of which the process's tensors said what they are, and the rule."""
    rules = snap.timeline(device).categories.rules
    return [(row, rule) for row, rule in enumerate(rules) if rule >= FIRST_TOLD]


def _bounded(focus: tuple[int, int], events: int) -> tuple[int, int]:
    """A focus within the trace."""
    first, last = max(focus[0], 0), min(focus[1], events - 1)
    if first > last:
        raise ValueError(f"the trace has no event in {first} .. {last}")
    return first, last


def _by_failure(report: OverviewReport) -> tuple[int, ...]:
    """The devices in the order of the page, which opens on the first: on one that ran out
    of memory where one did."""
    ordered = sorted(report.devices, key=lambda entry: (not entry.oom, entry.device))
    return tuple(entry.device for entry in ordered)


def _opened(source: Snapshot | SnapshotSource | Outcome, title: str) -> tuple[Snapshot, str, str]:
    """The snapshot, the title of its page, and where its file is; "" is nowhere."""
    snap, name, path = _named(source, title)
    return snap, marked(name, snap), path


def _named(source: Snapshot | SnapshotSource | Outcome, title: str) -> tuple[Snapshot, str, str]:
    if isinstance(source, Outcome):
        return opened(source), title or f"What if: {named(source)}", ""
    if isinstance(source, Snapshot):
        return source, title or os.path.basename(source.origin) or "PyTorch snapshot", ""
    if isinstance(source, (str, os.PathLike)) and source != "-":
        path = os.fspath(source)
        return opened(source), title or os.path.basename(path), path
    return opened(source), title or "PyTorch snapshot", ""
