# SPDX-License-Identifier: Apache-2.0
"""`view`: one HTML page that opens any snapshot, with the core compiled to WebAssembly inside."""

from __future__ import annotations

import base64
import functools
import gzip
import hashlib
import io
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from heapq import nlargest
from html import escape
from pathlib import Path
from typing import Any, overload

from neutracer._native import core
from neutracer.arguments import number_pair, path_name
from neutracer.fragmentation.report import BANDS
from neutracer.oom.bill import Bill, BillTerm
from neutracer.overview import DeviceOverview, OverviewReport, overview
from neutracer.picture.extra import marked, opened
from neutracer.render.document import (
    DARK,
    LIGHT,
    Cell,
    Note,
    Palette,
    Place,
    clean,
    sentence,
    shorten_left,
)
from neutracer.render.html import MOST_INLINE, page_shell
from neutracer.render.report import Finding
from neutracer.saving import atomic_file, check_output
from neutracer.trace.events import PINNED, device_name
from neutracer.trace.flaws import FLAW_RULES
from neutracer.trace.lives import lives_of
from neutracer.trace.roles import CATEGORIES, FIRST_TOLD, FRAME_BITS, ROLE_RULES, RULES, Role
from neutracer.trace.snapshot import Snapshot
from neutracer.trace.source import FILE_RULES, UNPACK_RULES, SnapshotSource
from neutracer.trace.stacks import ORIGIN_RULES, PLACE_RULES, UNKNOWN_PLACE
from neutracer.trace.timeline import STEP_WORDS
from neutracer.units import format_bytes, format_count, format_duration_us
from neutracer.whatif.replaying import CAUSES, Outcome, named

# ---- Bundle ------------------------------------------------------------------------------

# The page's ES modules in one script: each becomes a function that returns its exports. They
# use only `import { a, b } from "./x.js";`, `export const`, and comments on their own lines.

_FOLDER = Path(__file__).with_name("page")

_IMPORT = re.compile(r'^import \{([^}]*)\} from "\./(\w+\.js)";\n', re.M)
_EXPORT = re.compile(r"^export (const (\w+))", re.M)
_COMMENT = re.compile(r"^[ \t]*//.*\n", re.M)
_INDENT = re.compile(r"^[ \t]+", re.M)


@functools.lru_cache(maxsize=32)
def part(name: str) -> str:
    """A file of the page's source."""
    return (_FOLDER / name).read_text(encoding="utf-8")


@functools.lru_cache(maxsize=4)
def bundle(entry: str, expose: str = "") -> str:
    """The script of an entry module and of what it imports."""
    order: list[str] = []
    _collect(entry, (), order)
    modules = "".join(_module(name) for name in order)
    shown = f"globalThis.{expose}={_variable(entry)};" if expose else ""
    return f'(()=>{{"use strict";\n{modules}{shown}}})();'


def _collect(name: str, above: tuple[str, ...], order: list[str]) -> None:
    if name in above:
        raise ValueError(f"a circle of imports: {' -> '.join((*above, name))}")
    if name in order:
        return
    for names, source in _IMPORT.findall(part(name)):
        _collect(source, (*above, name), order)
        missing = set(_words(names)) - {export for _, export in _EXPORT.findall(part(source))}
        if missing:
            raise ValueError(f"{name} imports {', '.join(sorted(missing))}, not in {source}")
    order.append(name)


def _words(names: str) -> list[str]:
    return [word.strip() for word in names.split(",") if word.strip()]


def _variable(name: str) -> str:
    return f"module_{name.removesuffix('.js')}"


def _module(name: str) -> str:
    text = _COMMENT.sub("", part(name))
    exports = ",".join(export for _, export in _EXPORT.findall(text))
    text = _IMPORT.sub(
        lambda found: f"const {{{','.join(_words(found[1]))}}}={_variable(found[2])};\n", text
    )
    text = _INDENT.sub("", _EXPORT.sub(r"\1", text))
    return f"const {_variable(name)}=(()=>{{{text}return {{{exports}}};}})();\n"


# ---- Inline ------------------------------------------------------------------------------

# A framed page can't inspect its notebook; its media query follows the frame's colour scheme.
# Notebooks and sites give theirs in attributes, as for reports (render/html); the default is the
# browser's.
_FRAME = "iframe.neutracer-page"
_DARK = (
    "[data-jp-theme-light=false]",
    ".vscode-dark",
    ".vscode-high-contrast:not(.vscode-high-contrast-light)",
    "[data-theme=dark]",
)
_LIGHT = (
    "[data-jp-theme-light=true]",
    ".vscode-light",
    ".vscode-high-contrast-light",
    "[data-theme=light]",
)
_THEMES = (
    f"<style>{_FRAME}{{color-scheme:light dark}}"
    f"{','.join(f'{host} {_FRAME}' for host in _DARK)}{{color-scheme:dark}}"
    f"{','.join(f'{host} {_FRAME}' for host in _LIGHT)}{{color-scheme:light}}</style>"
)

# Pixels: the findings, and most of the picture under them.
_HEIGHT = 800


@dataclass(frozen=True)
class PageView:
    """A page that shows itself in a notebook; `view` without a path returns it.

    The page runs in a frame of its own that may only run the page's program: it can't reach
    the notebook or the network. A page of more than 1 MB goes into a file in the working
    directory, which is the notebook's folder, and the notebook links to it.

    Attributes:
        html: The page.
        title: Its title.
        origin: The source file, which `save` does not replace; "" for none.

    Example:
        >>> import neutracer
        >>> page = neutracer.view("tests/data/frag_default.pickle")
        >>> page
        <PageView of frag_default.pickle: 0.4 MB; .save("out.html") writes it>
    """

    html: str = field(repr=False)
    title: str
    origin: str = field(default="", repr=False)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the page to a file, atomically.

        Raises:
            ValueError: It is the source file.
            OSError: It can't be written.
        """
        with atomic_file(path, self) as file:
            file.write(self._bytes)
        return Path(path)

    @property
    def _bytes(self) -> bytes:
        return self.html.encode("utf-8", "backslashreplace")

    @property
    def _size(self) -> str:
        return f"{len(self._bytes) / 1e6:,.1f} MB"

    def __repr__(self) -> str:
        return f'<PageView of {sentence(self.title)}: {self._size}; .save("out.html") writes it>'

    def _repr_html_(self) -> str:
        source = self._bytes.decode("utf-8").replace("&", "&amp;").replace('"', "&quot;")
        words = (
            f"{escape(sentence(self.title))}, {self._size} in this notebook; "
            f"neutracer.view(snapshot, &quot;out.html&quot;) writes it as a file."
        )
        shown = (
            f'{_THEMES}<iframe class="neutracer-page" sandbox="allow-scripts allow-downloads" '
            f'srcdoc="{source}" title="{escape(self.title)}" '
            f'style="width:100%;height:{_HEIGHT}px;border:0"></iframe>'
            f'<p style="font-size:12px;opacity:.7">{words}</p>'
        )
        return shown if len(shown.encode("utf-8")) <= MOST_INLINE else self._linked()

    def _linked(self) -> str:
        """A link to the page as a file beside the notebook, named after its contents."""
        stem = re.sub(r"[^\w.-]+", "_", self.title, flags=re.ASCII).strip("._")[:60] or "page"
        name = f"{stem}-{hashlib.sha256(self._bytes).hexdigest()[:8]}.html"
        size = f"The page has {self._size}, more than the limit of 1 MB for a notebook"
        try:
            if not os.path.exists(name):
                self.save(name)
        except OSError as error:
            why = escape(sentence(error.strerror or str(error)))
            return (
                f"<p>{size}, and can't be written here ({why}): "
                "neutracer.view(snapshot, path) writes it elsewhere.</p>"
            )
        return f'<p>{size}. It is a file beside it: <a href="{name}" target="_blank">{name}</a></p>'


# ---- Parts -------------------------------------------------------------------------------

#: The host's pinned memory among the devices of the page (`units.js`).
HOST_NUMBER, HOST_NAME = 1024, device_name(PINNED)

_TABS = {
    "overview": "Overview",
    "segments": "Segments",
    "stacks": "Stacks",
    "allocations": "Allocations",
    "events": "Events",
    "settings": "What if",
    "compare": "Compare",
}

_MOST_PLACE = 120

# Blocks that the page hatches: each is a rectangle of every picture.
_MOST_IDLE = 2000


def device_entries(report: OverviewReport, devices: Sequence[int]) -> list[dict[str, Any]]:
    """Each device's facts, figures and findings, in the order of the page."""
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
                "bill": None if mine is None or mine.bill is None else _bill(mine, mine.bill),
            }
        )
    return entries


def _name(report: OverviewReport, mine: DeviceOverview | None, number: int) -> str:
    if mine is None:
        return f"cuda:{number}"
    if report.is_host:
        return HOST_NAME
    peak = format_bytes(mine.reserved_peak["reserved_bytes"])
    return f"cuda:{number}, {peak} at most{', out of memory' if mine.oom else ''}"


def tabs() -> str:
    return "".join(
        f'<button role="tab" data-tab="{tab}" aria-controls="{tab}" '
        f'aria-selected="{"true" if tab == "overview" else "false"}">{escape(label)}</button>'
        for tab, label in _TABS.items()
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
        facts.append(report.settings_text)
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
    notes = [*finding.evidence, *finding.advice]
    # Of a failure the first note is who asked, and the second the cause.
    skipped = 1 if finding.kind == "out_of_memory" and len(finding.evidence) > 1 else 0
    cures = [note for note in finding.advice if note.text != "more"][:1]
    lead = [*finding.evidence[skipped : skipped + 1], *cures]
    place = next((note.place for note in finding.evidence[skipped:] if note.place), None)
    return {
        "severity": finding.severity.value,
        "message": sentence(finding.message),
        "event": finding.event,
        "lead": [("Next step: " if note in cures else "") + _note(note) for note in lead],
        "notes": [_note(note) for note in notes if note not in lead],
        "query": _query(place),
    }


def _query(place: Place | None) -> str:
    """The search that finds the blocks of a line; "" for none."""
    if place is None or not place.line:
        return ""
    words = f"{place.function} {place.location}".replace('"', "")
    return f'"{clean(words)}"'


def _bill(mine: DeviceOverview, bill: Bill) -> dict[str, Any]:
    """The bill as its table, and as the parts of one bar: bytes, what they are, and the term."""
    table = bill.block()
    parts = [
        (size, kind, sentence(bill.words(term)))
        for term in bill.shown_terms()
        for size, kind in _term_parts(bill, term)
        if size
    ]
    if bill.missing_bytes:
        parts.append((bill.missing_bytes, "missing", bill.missing_text()))
    return {
        "when": "when memory ran out" if mine.bills_failure else "at the peak of allocated",
        "columns": table.columns,
        "rows": [[_cell(cell) for cell in row] for row in table.rows],
        "notes": table.notes,
        "limit": bill.limit_bytes,
        "parts": parts,
        "key": bill.parts() if bill.rounds else (),
    }


# Parts of the bar that have a colour of their own, by their term; the others are one.
_KINDS = {
    "waiting": "waiting",
    "free": "free",
    "free elsewhere": "elsewhere",
    "not reserved": "left",
}


def _term_parts(bill: Bill, term: BillTerm) -> list[tuple[int, str]]:
    sizes = (term.stands, term.piled_up, term.this_round)
    if not any(sizes):
        return [(term.bytes, _KINDS.get(term.term, "outside"))]
    if not bill.rounds:
        return [(term.bytes, "stands")]
    return list(zip(sizes, ("stands", "piled", "new"), strict=True))


def _cell(cell: Cell) -> str:
    return sentence(cell.location if isinstance(cell, Place) else str(cell))


def _note(note: Note) -> str:
    words = sentence(note.text)
    if note.place is not None:
        where = shorten_left(clean(note.place.location), _MOST_PLACE)
        words += f" {sentence(note.place.function, _MOST_PLACE)} {where}"
    elif note.detail:
        words += f": {sentence(note.detail)}"
    return words


# ---- Rules -------------------------------------------------------------------------------

# neutracer's rules as plain data: owners of files, meanings of frames, formats, names of categories
# and steps. The page works without Python, where `origins.js` and `feed.js` apply them.


@lru_cache(maxsize=1)
def page_rules() -> str:
    """The rules as JSON, in which no `<` stands."""
    rules = {
        "origins": ORIGIN_RULES,
        "places": PLACE_RULES,
        "unknown_place": UNKNOWN_PLACE.function,
        "roles": ROLE_RULES,
        "role": {role.name: int(role) for role in Role},
        "bits": FRAME_BITS,
        "files": {**FILE_RULES, **UNPACK_RULES},
        "categories": CATEGORIES,
        "rules": list(RULES.items()),
        "steps": STEP_WORDS,
        "causes": CAUSES,
        "flaws": FLAW_RULES,
        "bands": BANDS,
    }
    return json.dumps(rules, default=_plain, separators=(",", ":")).replace("<", "\\u003c")


def _plain(value: Any) -> Any:
    if isinstance(value, re.Pattern):
        flags = "i" if value.flags & re.IGNORECASE else ""
        # JavaScript wants these escaped where Unicode counts, and nothing else.
        pattern = re.sub(r"(?<!\\)\\([<>\"' -])", r"\1", value.pattern)
        return {"pattern": pattern, "flags": flags}
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, (frozenset, set)):
        return sorted(value)
    raise TypeError(type(value).__name__)


# ---- View --------------------------------------------------------------------------------

# The core for the page; tools/wasm builds it.
_CORE = _FOLDER / "core.wasm"

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
    page = _page(source, device, focus, dark)
    return page if path is None else page.save(path)


def empty_page() -> PageView:
    """The page without a snapshot: it opens those that are dropped on it."""
    return _made("neutracer", "", "")


def _page(
    source: Snapshot | SnapshotSource | Outcome,
    device: int | None,
    focus: tuple[int, int] | None,
    dark: bool | None,
) -> PageView:
    if focus is not None:
        focus = number_pair("focus", focus, whole=True)
    path = ""
    if isinstance(source, Outcome):
        name = f"What if: {named(source)}"
    elif isinstance(source, Snapshot):
        name = os.path.basename(source.origin)
    elif isinstance(source, (str, os.PathLike)) and source != "-":
        path = os.fspath(source)
        name = os.path.basename(path)
    else:
        name = ""
    snap = opened(source)
    name = marked(name or "PyTorch snapshot", snap)
    several = device is None and (len(snap.devices) > 1 or snap.host is not None)
    report = overview(snap, os.path.basename(path), title=name)
    # It opens on the first: one that ran out of memory where one did.
    ordered = sorted(report.devices, key=lambda entry: (not entry.oom, entry.device))
    devices = [one.device for one in ordered] if several else [snap.timeline(device).device]
    entries = device_entries(report, devices)
    if snap.host is not None and device is None:
        (host,) = device_entries(overview(snap.host, title=name), (0,))
        entries.append({**host, "device": HOST_NUMBER})
    if focus is not None:
        if len(devices) != 1:
            raise ValueError("a focus needs one device: say which")
        focus = _bounded(focus, len(snap.timeline(devices[0])))
    facts = {
        "title": name,
        "focus": focus,
        "renamed": dict(_renamed(snap)),
        "libraries": snap.libraries,
        "rules": {number: _told_rules(snap, number) for number in devices if snap.beside.tensors},
        "idle": {number: told for number in devices if (told := _told_idle(snap, number))},
        "devices": entries,
    }
    payloads = _data("told", facts) + _packed("snapshot", packed_columns(snap))
    return _made(name, payloads, snap.origin, dark)


def _made(title: str, payloads: str, origin: str, dark: bool | None = None) -> PageView:
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


def _told_idle(snap: Snapshot, device: int) -> list[tuple[int, int]]:
    """Rows of the allocations that are kept past their last use, or never used, and the event after
    which: those that are it with the most bytes for the most events."""
    timeline = snap.timeline(device)
    lives = lives_of(snap, timeline)
    if lives is None:
        return []
    sizes = timeline.allocations.codes("size")
    found = nlargest(_MOST_IDLE, lives.idle(), lambda one: sizes[one[0]] * (one[2] - one[1]))
    return [(row, event) for row, event, _ in found]


def _bounded(focus: tuple[int, int], events: int) -> tuple[int, int]:
    first, last = max(focus[0], 0), min(focus[1], events - 1)
    if first > last:
        raise ValueError(f"the trace has no event in {first} .. {last}")
    return first, last
