# SPDX-License-Identifier: Apache-2.0
"""The command `neutracer top`."""

from __future__ import annotations

import argparse
import http.client
import ipaddress
import os
import select
import sys
import termios
import threading
import time
import tty
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from neutracer.cli.parts import add_command, complain
from neutracer.errors import NeutracerError
from neutracer.monitor.exporter import SCHEMA
from neutracer.render.document import Cell, Document, Figure, Place, Table
from neutracer.render.report import dumps
from neutracer.render.text import (
    Line,
    Span,
    colour_wanted,
    curve_lines,
    layout,
    rich_text,
    show_lines,
    terminal_width,
    write,
)
from neutracer.trace.beside import parse_json
from neutracer.units import format_duration_us

# ---- Top page ----------------------------------------------------------------------------

# Below this share of the device, the curve's upper edge is the most reserved.
_LEAST_SHARE = 0.25

_SHOWN_ALERTS = 5


def top_lines(pages: Sequence[Mapping[str, Any]], width: int, *, plain: bool) -> list[Line]:
    """The lines of the page; values that are missing or of a wrong type are left out."""
    lines: list[Line] = []
    for page in pages:
        if lines:
            lines.append(())
        lines += _job_lines(page, width, plain)
    return lines


def _job_lines(page: Mapping[str, Any], width: int, plain: bool) -> list[Line]:
    facts = [f"rank {page.get('rank')}", f"pid {page.get('pid')}", f"road {page.get('road')}"]
    devices = _mappings(page, "devices")
    phase = devices[0].get("phase") if devices else None
    facts += [f"phase {phase}"] if phase is not None else []
    facts += [] if page.get("running") else ["the monitor is stopped"]
    lines = layout(Document(str(page.get("host", "?")), tuple(facts)), width)
    if not devices:
        lines += [(), (Span("no device is in use yet", "muted"),)]
    for device in devices:
        lines.append(())
        lines += layout(Document("", blocks=(_device_table(device),)), width)
        lines += _device_curve(device, width, plain)
    blocks = (*_alert_table(page), *_holder_table(page))
    if blocks:
        lines.append(())
        lines += layout(Document("", blocks=blocks), width)
    return lines


def _device_table(device: Mapping[str, Any]) -> Table:
    total = _bytes(device, "total_bytes")

    def row(name: str, key: str, note: str = "") -> tuple[Cell, ...]:
        nbytes = _bytes(device, key)
        share: Cell = Figure.share(nbytes / total) if total else ""
        return name, Figure.bytes(nbytes), share, note

    def known(key: str) -> bool:
        return isinstance(device.get(key), (int, float)) and _bytes(device, key) > 0

    peak = Figure.bytes(_bytes(device, "peak_bytes"))
    reserved = _bytes(device, "reserved_bytes")
    unused = max(reserved - _bytes(device, "current_bytes"), 0)
    rows = [
        row("allocated", "current_bytes", f"peak {peak}"),
        row("reserved", "reserved_bytes", f"{Figure.share(unused / reserved)} of it unused")
        if reserved
        else row("reserved", "reserved_bytes"),
    ]
    if known("device_used_bytes"):
        rows.append(row("not PyTorch's", "non_torch_bytes", "contexts, libraries, others"))
    if known("largest_free_bytes"):
        rows.append(row("largest free", "largest_free_bytes", "block"))
    if known("garbage_bytes"):
        rows.append(row("garbage", "garbage_bytes", "until the collector runs"))
    if total:
        rows.append(row("device", "total_bytes"))
    counts = [f"{_bytes(device, key)} {key}" for key in ("retries", "ooms") if known(key)]
    growth = device.get("growth_bytes_per_s")
    if isinstance(growth, (int, float)) and abs(growth) >= 1:
        sign = "-" if growth < 0 else "+"
        counts.append(f"floor {sign}{Figure.bytes(round(abs(growth)))} per second")
    return Table(str(device.get("device", "?")), tuple(rows), notes=tuple(counts))


def _device_curve(device: Mapping[str, Any], width: int, plain: bool) -> list[Line]:
    curve = device.get("curve")
    if not isinstance(curve, Mapping):
        return []
    allocated, reserved = _numbers(curve, "allocated"), _numbers(curve, "reserved")
    times = _numbers(curve, "time_us")
    count = min(len(allocated), len(reserved), len(times))
    if count < 2:
        return []
    largest = max(max(allocated[:count]), max(reserved[:count]))
    total = _bytes(device, "total_bytes")
    top = total if largest >= _LEAST_SHARE * total and total >= largest else largest
    lines = curve_lines(allocated[:count], reserved[:count], top, width=width, plain=plain)
    span = format_duration_us(max(times[count - 1] - times[0], 0))
    shades = "allocated #, reserved ." if plain else "allocated █, reserved ░"
    return [*lines, (Span(f"           {span}: {shades}", "muted"),)] if lines else []


def _alert_table(page: Mapping[str, Any]) -> tuple[Table, ...]:
    alerts = _mappings(page, "alerts")[-_SHOWN_ALERTS:]
    now = page.get("time_us")
    here = now if isinstance(now, int) else time.time_ns() // 1000
    rows = tuple(
        (
            f"{format_duration_us(max(here - _bytes(alert, 'time_us'), 0))} ago",
            str(alert.get("message", "")),
        )
        for alert in reversed(alerts)
    )
    return (Table("Alerts", rows),) if rows else ()


def _holder_table(page: Mapping[str, Any]) -> tuple[Table, ...]:
    rows = tuple(
        (
            Figure.bytes(_bytes(holder, "bytes")),
            Figure.count(_bytes(holder, "count"), "block"),
            Place(str(holder.get("function", "")), str(holder.get("place", ""))),
        )
        for holder in _mappings(page, "holders")
    )
    return (Table("Largest holders", rows),) if rows else ()


def _bytes(plain: Mapping[str, Any], key: str) -> int:
    value = plain.get(key)
    is_number = isinstance(value, int) and not isinstance(value, bool)
    return min(max(value, 0), 1 << 62) if is_number and value is not None else 0


def _numbers(plain: Mapping[str, Any], key: str) -> list[int]:
    values = plain.get(key)
    if not isinstance(values, list):
        return []
    return [min(max(one, 0), 1 << 62) if isinstance(one, int) else 0 for one in values]


def _mappings(plain: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    values = plain.get(key)
    return [one for one in values if isinstance(one, Mapping)] if isinstance(values, list) else []


# ---- Top ---------------------------------------------------------------------------------

_EXAMPLE = """example:
  neutracer top http://127.0.0.1:9435           # neutracer.serve_metrics() in the job
  neutracer top :9435 :9436 --seconds 600       # two ranks of this machine
  neutracer top --once --json :9435

exit codes: 0, 2 if no exporter answers
"""

# Limits on an answer's length, the delay of each read, and the time that it takes in all.
_MOST_BYTES = 8 << 20
_PATIENCE_S = 5.0
_MOST_S = 10.0

_HOME_AND_CLEAR = "\x1b[H\x1b[J"


def add_top(commands: Any, summary: str) -> None:
    description = "Follows the exporter of a running job: curves, alerts, holders."
    parser = add_command(commands, "top", summary, description, _EXAMPLE, _top)
    parser.add_argument(
        "urls", nargs="+", metavar="URL", help="an exporter's address; ':9435' is on this machine"
    )
    parser.add_argument(
        "--interval", type=float, default=2.0, metavar="S", help="seconds between updates"
    )
    parser.add_argument(
        "--seconds", type=float, default=300.0, metavar="S", help="time span of the curves"
    )
    parser.add_argument("--once", action="store_true", help="show it once and exit")
    parser.add_argument("--json", action="store_true", help="print the exporters' answers as JSON")


def _top(options: argparse.Namespace) -> int:
    try:
        if not 0.1 <= options.interval <= 86_400 or not 0 < options.seconds <= 1e9:
            raise ValueError("--interval and --seconds must be seconds, above 0")
        urls = [_page_url(text, options.seconds) for text in options.urls]
        pages = [_fetch(url) for url in urls]
    except (NeutracerError, ValueError) as error:
        return complain(str(error))
    if options.json:
        _write_json(pages, [])
    try:
        if options.once or options.json:
            while not options.once:
                time.sleep(options.interval)
                now, silent = _fetched(urls)
                if not now:
                    raise NeutracerError(silent[0])
                _write_json([now[url] for url in urls if url in now], silent)
            if not options.json:
                show_lines(_lines(pages), sys.stdout)
        else:
            _follow(urls, pages, options.interval)
    except NeutracerError as error:
        return complain(str(error))
    except KeyboardInterrupt:
        return 0
    return 0


def _write_json(pages: list[dict[str, Any]], silent: list[str]) -> None:
    plain = {"schema": "neutracer.tops/1", "jobs": pages, "silent": silent}
    sys.stdout.write(dumps(plain) + "\n")
    sys.stdout.flush()


def _lines(pages: list[dict[str, Any]]) -> list[Line]:
    try:
        "█░│".encode(sys.stdout.encoding or "utf-8")
        plain = False
    except UnicodeEncodeError:
        plain = True
    return top_lines(pages, terminal_width(sys.stdout), plain=plain)


def _follow(urls: list[str], pages: list[dict[str, Any]], interval: float) -> None:
    """Update until the user quits; keep the last page of an exporter that is gone."""
    show, end = _screen()
    known, silent = dict(zip(urls, pages, strict=True)), list[str]()
    try:
        with _keys() as pressed_q:
            ends = "q quits" if pressed_q is not time.sleep else "Ctrl-C quits"
            while True:
                notes: list[Line] = [(Span(text, "serious"),) for text in silent]
                lines = _lines([known[url] for url in urls])
                show([*lines, (), *notes, (Span(ends, "muted"),)])
                if pressed_q(interval):
                    return
                now, silent = _fetched(urls)
                known.update(now)
    finally:
        end()


@contextmanager
def _keys() -> Iterator[Callable[[float], object]]:
    """Yield a function that waits some seconds and returns True on "q"; without a terminal,
    `time.sleep`."""
    try:
        before = termios.tcgetattr(sys.stdin)
        tty.setcbreak(sys.stdin)
    except (OSError, ValueError, AttributeError, termios.error):
        yield time.sleep
        return

    def pressed_q(seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            if select.select([sys.stdin], [], [], left)[0]:
                pressed = os.read(sys.stdin.fileno(), 64)
                if b"q" in pressed.lower():
                    return True
                if not pressed:
                    # End of file: the terminal is gone.
                    time.sleep(left)
        return False

    try:
        yield pressed_q
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def _fetched(urls: list[str]) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """The current page of each exporter, and the errors of those that do not answer."""
    now: dict[str, dict[str, Any]] = {}
    silent = []
    for url in urls:
        try:
            now[url] = _fetch(url)
        except NeutracerError as error:
            silent.append(str(error))
    return now, silent


def _screen() -> tuple[Any, Any]:
    """Functions that show lines on a screen, and that close it."""
    stream = sys.stdout
    if stream.isatty() and colour_wanted():
        try:
            from rich.live import Live
        except ImportError:
            pass
        else:
            live = Live(screen=True, auto_refresh=False, vertical_overflow="crop")
            live.start()
            return (lambda lines: live.update(rich_text(lines), refresh=True)), live.stop

    def plainly(lines: list[Line]) -> None:
        write(_HOME_AND_CLEAR if stream.isatty() else "", stream)
        show_lines(lines, stream)
        stream.flush()

    return plainly, lambda: None


def _page_url(text: str, seconds: float) -> str:
    """The URL of an exporter's page; only http and https."""
    whole = f"127.0.0.1{text}" if text.startswith(":") else text
    try:
        parts = urllib.parse.urlsplit(whole if "://" in whole else f"http://{whole}")
    except ValueError as error:
        raise ValueError(f"{text}: {error}") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{text}: an exporter's address is http://HOST:PORT")
    path = parts.path.removesuffix("/").removesuffix("/metrics").removesuffix("/top.json")
    query = urllib.parse.urlencode({"seconds": seconds})
    return urllib.parse.urlunsplit((parts.scheme, parts.netloc, f"{path}/top.json", query, ""))


def _fetch(url: str) -> dict[str, Any]:
    shown = url.partition("/top.json")[0]
    text = _answer_of(url, shown)
    try:
        page = parse_json(text) if len(text) <= _MOST_BYTES else None
    except ValueError:
        page = None
    if not isinstance(page, dict) or page.get("schema") != SCHEMA:
        raise NeutracerError(f"{shown}: not a neutracer exporter")
    return page


def _answer_of(url: str, shown: str) -> bytes:
    """What a server answers, in `_MOST_S` in all: a timeout alone bounds each read."""
    found: list[bytes] = []
    failed: list[Exception] = []

    def read() -> None:
        try:
            found.append(_read(url))
        except Exception as error:
            failed.append(error)

    reader = threading.Thread(target=read, name="neutracer-top", daemon=True)
    reader.start()
    reader.join(_MOST_S)
    if found:
        return found[0]
    error = failed[0] if failed else TimeoutError(f"no whole answer in {_MOST_S:g} s")
    known = (urllib.error.URLError, http.client.HTTPException, OSError, ValueError)
    if not isinstance(error, known):
        raise error
    reason = getattr(error, "reason", error)
    if isinstance(error, urllib.error.HTTPError):
        error.close()
    raise NeutracerError(
        f"{shown}: no exporter answers there ({reason}); in the program "
        "neutracer.serve_metrics() starts one"
    )


def _read(url: str) -> bytes:
    end = time.monotonic() + _MOST_S
    parts: list[bytes] = []
    size = 0
    with _opener(url).open(url, timeout=_PATIENCE_S) as answer:
        while size <= _MOST_BYTES and time.monotonic() < end:
            part = answer.read1(_MOST_BYTES)
            if not part:
                return b"".join(parts)
            parts.append(part)
            size += len(part)
    raise TimeoutError(f"no whole answer of {_MOST_BYTES >> 20} MiB in {_MOST_S:g} s")


def _opener(url: str) -> urllib.request.OpenerDirector:
    """Bypass the user's proxy for addresses of this machine."""
    host = urllib.parse.urlsplit(url).hostname or ""
    try:
        local = ipaddress.ip_address(host).is_loopback
    except ValueError:
        local = host == "localhost"
    if local:
        return urllib.request.build_opener(urllib.request.ProxyHandler({}))
    return urllib.request.build_opener()
