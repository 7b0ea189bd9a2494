# SPDX-License-Identifier: Apache-2.0
"""The page of a snapshot in a browser: what it shows, what it lets one do, what it refuses."""

from __future__ import annotations

import json
import pickle
import random
import re

import pytest
from chromium import PROGRAM, Browser
from hostile_names import HOSTILE_NAMES
from places import TESTS
from small_snapshots import event as trace_event
from small_snapshots import one_program, two_devices, used_program

import neutracer
from neutracer.picture.view import bundle, view
from neutracer.render.document import LIGHT
from neutracer.units import format_bytes, format_count

pytestmark = pytest.mark.skipif(PROGRAM is None, reason="needs Chromium")

DATA = TESTS / "data"
TABS = ("overview", "segments", "stacks", "allocations", "events", "settings", "compare")
PANEL = "document.getElementById('panel').innerText"
SHOWN = "[...document.querySelectorAll('section')].filter(s => !s.hidden).map(s => s.id)"


@pytest.fixture(scope="module")
def chromium(tmp_path_factory):
    with Browser(tmp_path_factory.mktemp("profile")) as browser:
        yield browser


@pytest.fixture
def browser(chromium):
    chromium.events.clear()
    chromium._session = None
    yield chromium
    chromium.call("Page.close")
    chromium._session = None


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    return view(DATA / "frag_default.pickle.xz", tmp_path_factory.mktemp("view") / "page.html")


@pytest.fixture(scope="module")
def timeline():
    return neutracer.load(DATA / "frag_default.pickle.xz").timeline()


def until(browser, expression, wanted=True):
    browser.until(expression, wanted)


def ready(browser, path):
    browser.open(path)
    until(browser, "document.documentElement?.dataset.ready", "1")


def go(browser, fragment):
    """Follows a link into the page, and waits for the frame behind it."""
    followed = "Number(document.documentElement.dataset.links)"
    before = browser.value(followed)
    changes = browser.value(
        f"(old => {{ location.hash = {json.dumps(fragment)}; return old !== location.hash; }})"
        "(location.hash)"
    )
    until(browser, f"{followed} > {before} || {json.dumps(not changes)}")
    browser.calm(60)


def key(browser, name, text=""):
    for kind in ("keyDown", "keyUp"):
        typed = {"text": text} if text and kind == "keyDown" else {}
        browser.call("Input.dispatchKeyEvent", type=kind, key=name, **typed)


def asked_of(browser):
    """The addresses that were asked for, but for the page's own worker."""
    return [url for url in browser.requested() if not url.startswith(("blob:", "data:"))]


def hash_of(browser):
    """The link, which the page writes anew when it has rested for 150 ms."""
    browser.calm()
    return browser.value("decodeURIComponent(location.hash)")


def test_every_tab_shows_its_part(browser, page):
    ready(browser, page)
    assert browser.value("document.title") == "frag_default.pickle.xz"
    words = {
        "overview": "out of memory: the process is limited to",
        "segments": "18 segments, 540 MiB; 134 MiB of it free, the largest hole 35.8 MiB",
        "stacks": "406 MiB in 60 blocks after event 2,374",
        "allocations": "816 allocations",
        "events": "2,375 events",
        "settings": "all 816 allocations and 2,375 events",
        "compare": "two moments of this file",
    }
    for tab in TABS:
        browser.click(f"[data-tab={tab}]")
        until(browser, SHOWN, [tab])
        until(browser, f"document.getElementById('{tab}').innerText.includes({words[tab]!r})")
        # Only where there are blocks to point at.
        until(browser, f"{PANEL}.includes('Point at')", tab in ("overview", "segments"))
    boxes = browser.value("[...document.querySelectorAll('.box')].map(b => b.title)")
    assert any("frag train.py:155" in title and "406 MiB" in title for title in boxes)
    assert asked_of(browser) == [page.as_uri()]
    assert browser.complaints() == []


def test_panel_has_the_figures_of_python(browser, page, timeline):
    ready(browser, page)
    for event in (0, 100, 1433, 2048, 2374):
        go(browser, f"e={event}")
        told = browser.value(PANEL)
        for figure in (timeline.allocated[event], timeline.reserved[event]):
            assert format_bytes(figure) in told, (event, told)
        assert format_count(event) in told
        holes = []
        layout = timeline.at(event)
        for block in layout.blocks:
            if block.state == "inactive":
                holes.append(block.size)
        assert f"largest hole\n{format_bytes(max(holes, default=0))}" in told.replace("\t", "\n")
        sums = {}
        for holder in timeline.holders(event, by="stack", limit=None):
            line = holder.key[0].line
            sums[line] = sums.get(line, 0) + holder.bytes
        for line, nbytes in sums.items():
            assert f"train.py:{line}" in told
            assert format_bytes(nbytes) in told


def reserved_ranges(timeline):
    """Address ranges that were ever reserved, joined and ascending."""
    ranges = []
    for start, stop in sorted({(s.address, s.address + s.size) for s in timeline.segments}):
        if ranges and start <= ranges[-1][1]:
            ranges[-1][1] = max(stop, ranges[-1][1])
        else:
            ranges.append([start, stop])
    return ranges


def packed_blocks(layout, ranges):
    """Blocks as (low, high, state), in bytes above the lowest address, gaps taken out."""
    found = []
    for block in layout.blocks:
        below = 0
        for start, stop in ranges:
            if start <= block.address < stop:
                low = below + block.address - start
                state = "free" if block.state == "inactive" else "used"
                found.append((low, low + block.size, state))
            below += stop - start
    return found


def states_near(blocks, low, high):
    """What there is between two heights; "never" where blocks leave some of it out."""
    met = [(max(a, low), min(b, high), state) for a, b, state in blocks if a < high and b > low]
    covered = sum(b - a for a, b, _ in met)
    return {state for _, _, state in met} | ({"never"} if covered < high - low - 1 else set())


def test_map_shows_what_lies_where(browser, page, timeline):
    ready(browser, page)
    first, last = 1900.0, 2200.0
    # Position p of the axis of events is what stands behind event p - 1.
    go(browser, f"axis=event&t={first + 1:g},{last + 1:g}")
    browser.calm()
    left, top, width, height = map(
        float, browser.value("document.getElementById('chart').dataset.map").split(",")
    )
    left, top, width, height = int(left), int(top), int(width), int(height)
    ranges = reserved_ranges(timeline)
    total = sum(stop - start for start, stop in ranges)
    layouts = {
        event: packed_blocks(timeline.at(event), ranges)
        for event in range(int(first) - 2, int(last) + 3)
    }
    rand = random.Random(5)
    spots = [(rand.randrange(2, width - 2), rand.randrange(2, height - 2)) for _ in range(500)]
    colours = browser.value(
        "(spots => { const pen = document.getElementById('base').getContext('2d');"
        "return spots.map(([x, y]) => [...pen.getImageData(x, y, 1, 1).data].slice(0, 3)); })"
        f"({json.dumps([[left + x, top + y] for x, y in spots])})"
    )
    names = {
        tuple(bytes.fromhex(LIGHT.sand[1:])): "free",
        tuple(bytes.fromhex(LIGHT.page[1:])): "never",
        tuple(bytes.fromhex(LIGHT.line[1:])): "border",
    }
    seen = {"free": 0, "used": 0, "never": 0, "border": 0}
    for (x, y), colour in zip(spots, colours, strict=True):
        shown = names.get(tuple(colour), "used")
        seen[shown] += 1
        # A border may fall anywhere within a pixel, and a thin block marks the next one.
        events = [int(first + (x + 0.5 + dx) / width * (last - first)) for dx in (-1, 1)]
        low, high = ((1 - (y + 0.5 + dy) / height) * total for dy in (1.5, -1.5))
        near = set()
        for event in range(events[0], events[1] + 1):
            near |= states_near(layouts[event], low, high)
        assert shown in near | {"border"}, (x, y, colour, near)
    assert min(seen["free"], seen["used"], seen["never"]) > 10, seen
    assert seen["border"] < 80


def test_pointer_tells_and_click_pins(browser, page):
    ready(browser, page)
    x, y = browser.value(
        "(b => [b.x + 92 + (b.width - 186) * 0.5, b.y + b.height * 0.34])"
        "(document.getElementById('chart').getBoundingClientRect())"
    )
    for step in range(12):
        browser.mouse("mouseMoved", x, y + 3 * step)
        browser.calm(20)
        told = browser.value("document.getElementById('tip').innerText")
        if "train.py:155" in told:
            break
    assert "MiB" in told
    until(browser, f"{PANEL}.includes('Block under the pointer')")
    browser.mouse("mousePressed", x, y + 3 * step)
    browser.mouse("mouseReleased", x, y + 3 * step)
    until(browser, f"{PANEL}.includes('Block, pinned')")
    panel = browser.value(PANEL)
    assert "frag_default\ntrain.py:166" in panel.replace("\t", "\n")
    assert "stream / pool" in panel
    link = hash_of(browser)
    assert "pin=" in link
    # The link brings the same block back.
    ready(browser, page)
    assert "pinned" not in browser.value(PANEL)
    go(browser, link)
    assert browser.value(PANEL) == panel
    browser.press("Escape")
    until(browser, f"{PANEL}.includes('pinned')", False)


def test_wheel_drag_and_keys_move_the_view(browser, page):
    ready(browser, page)
    x, y = browser.middle("#chart")
    browser.mouse("mouseWheel", x, y, deltaX=0, deltaY=-600)
    zoomed = hash_of(browser)
    low, high = map(float, zoomed.split("t=")[1].split("&")[0].split(","))
    # A fifth of the trace's 70.4 ms is seen, around where the wheel was turned.
    assert 0.15 < (high - low) / 70_400 < 0.3
    for kind, step in (("mousePressed", 0), ("mouseMoved", 40), ("mouseMoved", 90)):
        browser.mouse(kind, x + step, y, buttons=1)
    browser.mouse("mouseReleased", x + 90, y)
    panned = hash_of(browser)
    assert float(panned.split("t=")[1].split(",")[0]) < low
    browser.value("document.getElementById('chart').focus()")
    key(browser, "0", "0")
    assert "t=" not in hash_of(browser)
    key(browser, "p", "p")
    until(browser, f"{PANEL}.includes('2,215')")
    key(browser, "ArrowRight")
    until(browser, f"{PANEL}.includes('2,216')")
    key(browser, "4", "4")
    until(browser, SHOWN, ["allocations"])


CHART_TOP = "document.getElementById('chart').getBoundingClientRect().top"


@pytest.mark.parametrize("width", [1400, 1300, 1000, 420])
def test_freezing_the_cursor_moves_nothing(browser, page, width):
    """What was clicked stays under the pointer; at 1,300 the words need a line of their own."""
    ready(browser, page)
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.call("Emulation.setDeviceMetricsOverride", **size)
    browser.calm()
    top = browser.value(CHART_TOP)
    # From nothing to the first event and to the last, whose number is the longest.
    for event in (0, 2374):
        go(browser, f"e={event}")
        assert format_count(event) in browser.value("document.getElementById('frozen').innerText")
        assert browser.value(CHART_TOP) == top
    browser.press("Escape")
    until(browser, "document.getElementById('frozen').hidden", True)
    assert browser.value(CHART_TOP) == top


def test_keys_of_the_chart_need_no_click_into_it(browser, page):
    ready(browser, page)
    key(browser, "ArrowLeft")
    until(browser, f"{PANEL}.includes('2,373')")
    key(browser, "+", "+")
    assert "t=" in hash_of(browser)
    browser.click("[data-by=sizes]")
    key(browser, "0", "0")
    assert "t=" not in hash_of(browser)
    assert "by=sizes" in hash_of(browser)
    # Among the tabs the arrows go from tab to tab.
    browser.value("document.querySelector('[data-tab=overview]').focus()")
    key(browser, "ArrowRight")
    until(browser, SHOWN, ["segments"])
    until(browser, f"{PANEL}.includes('2,373')")


SCREEN = {"height": 800, "deviceScaleFactor": 1, "mobile": False}


def test_a_chosen_row_is_zoomed_to(browser, page, timeline):
    """What is less than a pixel of the whole picture."""
    ready(browser, page)
    rows = enumerate(timeline.allocations)
    number, row = next((k, a) for k, a in rows if a.size > 100 << 20)
    browser.click("[data-tab=allocations]")
    go(browser, f"tab=allocations&pin={number}&e={row.alloc_event}")
    until(browser, f"{PANEL}.includes('Block, pinned')")
    # In all places with the name that PyTorch's viewer has, by which the search finds it.
    name = f"b{row.address:x}_{row.version}"
    assert browser.value(f"{PANEL}.includes({name!r})")
    browser.call("Emulation.setDeviceMetricsOverride", width=1700, **SCREEN)
    for tab, found in (("allocations", 1), ("events", 3)):
        go(browser, f"tab={tab}&pin={number}&e={row.alloc_event}&q={name}")
        named = f"document.getElementById('{tab}').innerText.split({name!r}).length - 1"
        until(browser, named, found)
    go(browser, f"tab=overview&pin={number}&e={row.alloc_event}")
    browser.click("#panel h2 button")
    until(browser, SHOWN, ["overview"])
    low, high = view_of(hash_of(browser), "t")
    begin, end = (
        timeline.events[event].time_us - timeline.events[0].time_us
        for event in (row.alloc_event, row.free_event)
    )
    assert low <= begin <= end <= high
    assert high - low < 20
    bottom, top = view_of(hash_of(browser), "a")
    assert top - bottom == pytest.approx(3 * row.size, rel=0.01)
    browser.click("[data-zoom=whole]")
    assert "t=" not in hash_of(browser)


def test_escape_from_a_form_keeps_the_cursor(browser, page):
    ready(browser, page)
    go(browser, "tab=settings&e=100&q=train")
    browser.click("#capacity")
    browser.press("Escape")
    assert browser.value("document.activeElement.id") != "capacity"
    assert "e=100" in hash_of(browser)
    browser.press("Escape")
    until(browser, "document.getElementById('frozen').hidden", True)
    assert "q=" not in hash_of(browser)


def test_brush_ranks_what_lives_in_it(browser, page):
    ready(browser, page)
    x, _ = browser.middle("#chart")
    top = browser.value("document.getElementById('chart').getBoundingClientRect().top") + 60
    browser.mouse("mousePressed", x - 100, top)
    for step in (-50, 0, 60):
        browser.mouse("mouseMoved", x + step, top, buttons=1)
    browser.mouse("mouseReleased", x + 60, top)
    until(browser, f"{PANEL}.includes('Selected range')")
    assert "train.py:155" in browser.value(PANEL)
    assert "range=" in hash_of(browser)
    browser.click("[data-zoom=range]")
    assert "t=" in hash_of(browser)


SEARCHES = {
    "size>100MiB": lambda row: row.size > 100 << 20,
    "train.py:155 size<=8MiB": lambda row: row.size <= 8 << 20 and row.stack[0].line == 155,
    "-train.py:155 kept:no": lambda row: row.stack[0].line != 155 and row.free_event >= 0,
    "event>=2000 event<2100 stream:0": lambda row: 2000 <= row.alloc_event < 2100,
    "0x7f4480000000": lambda row: row.address == 0x7F4480000000,
    # The third of those.
    "b7f4480000000_2": lambda row: (row.address, row.alloc_event) == (0x7F4480000000, 226),
    "-b'7f4480000000_2": lambda row: row.alloc_event != 226,
    "b7f4480000000_99": lambda row: False,
    "pool:small": lambda row: False,
    "size > 100 MiB": lambda row: row.size > 100 << 20,
    "-size <= 8 MiB event >= 2,000": lambda row: row.size > 8 << 20 and row.alloc_event >= 2000,
}


def test_search_finds_what_python_finds(browser, page, timeline):
    ready(browser, page)
    for query, keep in SEARCHES.items():
        wanted = sum(map(keep, timeline.allocations))
        browser.value("document.getElementById('search').value = ''")
        browser.click("#search")
        browser.keys(query)
        browser.press("Enter")
        words = "document.getElementById('allocation-words').textContent"
        until(browser, words, f"{wanted} of 816 allocations")
        rows = "document.querySelectorAll('#allocation-table .body .row').length > 0"
        until(browser, rows, wanted > 0)
    assert "q=-size" in hash_of(browser)


def test_tables_sort_and_choose_by_keyboard(browser, page, timeline):
    ready(browser, page)
    browser.click("[data-tab=allocations]")
    first = "document.querySelector('#allocation-table .body .row')?.innerText"
    until(browser, f"{first}?.includes('184 MiB')")
    browser.click("#allocation-table .head .cell")
    smallest = format_bytes(min(timeline.allocations["size"]))
    until(browser, f"{first}?.startsWith({smallest!r})")
    browser.value("document.querySelector('#allocation-table .scroll').focus()")
    key(browser, "End")
    key(browser, "Enter")
    until(browser, f"{PANEL}.includes('184 MiB')")
    # Far fewer rows are elements than there are.
    assert browser.value("document.querySelectorAll('#allocation-table .row').length") < 60


def view_of(link, name):
    """A range that a link carries, or None."""
    found = re.search(rf"\b{name}=(-?[\d.]+),(-?[\d.]+)", link)
    return (float(found[1]), float(found[2])) if found else None


def touch(browser, kind, *points):
    browser.call(
        "Input.dispatchTouchEvent",
        type=kind,
        touchPoints=[{"x": x, "y": y, "id": n} for n, (x, y) in enumerate(points)],
    )


def test_two_fingers_zoom_and_pan(browser, page):
    ready(browser, page)
    browser.call("Emulation.setTouchEmulationEnabled", enabled=True)
    try:
        x, y = browser.middle("#chart")
        touch(browser, "touchStart", (x - 50, y))
        touch(browser, "touchStart", (x - 50, y), (x + 50, y))
        for spread in (60, 80, 100):
            touch(browser, "touchMove", (x - spread, y), (x + spread, y))
        low, high = view_of(hash_of(browser), "t")
        # Twice as far apart: half of the trace's 70.4 ms, and a margin.
        assert (high - low) / 70_400 == pytest.approx(0.5, abs=0.03)
        assert view_of(hash_of(browser), "a") is None
        # Both fingers to the right: what was left of the view comes in, as wide as before.
        touch(browser, "touchMove", (x - 40, y), (x + 160, y))
        moved = view_of(hash_of(browser), "t")
        assert moved[1] - moved[0] == pytest.approx(high - low, rel=0.01)
        assert moved[0] < low - 1000
        touch(browser, "touchEnd")
        touch(browser, "touchStart", (x, y - 40))
        touch(browser, "touchStart", (x, y - 40), (x, y + 40))
        touch(browser, "touchMove", (x, y - 80), (x, y + 80))
        bottom, top = view_of(hash_of(browser), "a")
        assert (top - bottom) / (2028 << 20) == pytest.approx(0.5, abs=0.1)
        assert view_of(hash_of(browser), "t") == pytest.approx(moved, rel=1e-3)
        touch(browser, "touchEnd")
    finally:
        browser.call("Emulation.setTouchEmulationEnabled", enabled=False)
    assert browser.complaints() == []


def test_one_finger_pans_and_taps(browser, page):
    ready(browser, page)
    browser.call("Emulation.setTouchEmulationEnabled", enabled=True)
    try:
        go(browser, "t=20000,40000")
        x, y = browser.middle("#chart")
        touch(browser, "touchStart", (x, y))
        for step in (20, 60, 100):
            touch(browser, "touchMove", (x + step, y))
        touch(browser, "touchEnd")
        low, high = view_of(hash_of(browser), "t")
        assert high - low == pytest.approx(20_000, rel=0.01)
        assert low < 19_000
        # On the timeline a tap freezes the cursor, and another one frees it.
        top = browser.value("document.getElementById('chart').getBoundingClientRect().top") + 60
        for frozen in (True, False):
            touch(browser, "touchStart", (x, top))
            touch(browser, "touchEnd")
            until(browser, "location.hash.includes('e=')", frozen)
            until(browser, "!document.getElementById('frozen').hidden", frozen)
    finally:
        browser.call("Emulation.setTouchEmulationEnabled", enabled=False)


LEGEND = (
    "[...document.querySelectorAll('#legend .key')]"
    ".map(k => k.innerText.replace(/\\s+/g, ' ').trim())"
)


def test_timeline_stacks_by_category(browser, tmp_path):
    path = view(DATA / "train_resnet_healthy.pickle.xz", tmp_path / "page.html")
    ready(browser, path)
    # By category, since most bytes have one.
    assert browser.value(f"{LEGEND}[0]") == "activation"
    assert "by=" not in hash_of(browser)
    browser.click("[data-by=stacks]")
    until(browser, f"{LEGEND}[0] !== 'activation'")
    told = browser.value(LEGEND)
    assert "forward torchvision resnet.py:155, from train.py:76" in told
    assert told[-2:] == ["others", "reserved, free"]
    assert "by=stacks" in hash_of(browser)
    link = hash_of(browser)
    browser.click("[data-by=categories]")
    until(browser, f"{LEGEND}[0]", "activation")
    told = browser.value(LEGEND)
    assert {"gradient", "optimizer state", "parameter", "unknown"} <= set(told)
    # The colour of what is on top at the peak is that of the category with the bytes.
    timeline = neutracer.load(DATA / "train_resnet_healthy.pickle.xz").timeline()
    peak = timeline.peak("allocated").event
    held = {}
    for row in timeline.allocations:
        if row.alloc_event <= peak and (row.free_event > peak or row.free_event == -1):
            held[row.category] = held.get(row.category, 0) + row.size
    browser.value("document.querySelector('.rank').click()")
    until(browser, "document.getElementById('search').value", "category:activation")
    until(browser, SHOWN, ["allocations"])
    mine = sum(row.category == "activation" for row in timeline.allocations)
    words = "document.getElementById('allocation-words').textContent"
    until(browser, f"{words}.startsWith('{mine:,} of')")
    assert max(held, key=held.get) == "activation"
    ready(browser, path)
    go(browser, link)
    pressed = "document.querySelector('[data-by=stacks]').getAttribute('aria-pressed')"
    until(browser, pressed, "true")


FAILED = DATA / "oom" / "hook_that_keeps_activations.pickle.xz"
TIP = "document.getElementById('tip').innerText.replace(/\\s+/g, ' ')"


@pytest.fixture(scope="module")
def failed(tmp_path_factory):
    return view(FAILED, tmp_path_factory.mktemp("failed") / "page.html")


def test_first_screen_has_cause_cure_and_bill(browser, failed):
    ready(browser, failed)
    why = neutracer.explain(FAILED)
    first = "document.querySelector('#findings article')"
    told = browser.value(f"{first}.innerText")
    assert why.main.message in told
    assert f"Next step: {why.main.advice[0].text}" in told
    lowest = browser.value(f"{first}.getBoundingClientRect().bottom")
    assert lowest < 400
    parts = "[...document.querySelectorAll('#bill .bar span')]"
    widths = browser.value(f"{parts}.map(p => p.getBoundingClientRect().width)")
    bill = why.bill
    scale = sum(widths) / (bill.limit_bytes + bill.missing_bytes)
    titles = browser.value(f"{parts}.map(p => p.title)")
    (piled,) = [w for w, t in zip(widths, titles, strict=True) if "piled up" in t]
    assert piled == pytest.approx(sum(one.piled_up for one in bill.lines) * scale, abs=2)
    assert titles[-1].endswith("missing for the request of 16 MiB")
    browser.click("#bill summary")
    rows = browser.value("[...document.querySelectorAll('#bill tbody tr')].map(r => r.innerText)")
    assert len(rows) == len(bill.block().rows)
    assert browser.value("document.querySelector('#bill').innerText").count("Compared with the 49")
    assert browser.complaints() == []


def test_page_opens_at_the_failure_with_its_request(browser, failed, page, timeline):
    ready(browser, page)
    told = browser.value(PANEL)
    assert told.startswith("The request that failed\nasked for")
    (event,) = [k for k, name in enumerate(timeline.events["action"]) if name == "oom"]
    assert "1,579 MiB" in told
    assert format_count(event) in told
    for frame in timeline.events[event].stack:
        assert f"train.py:{frame.line}" in told
    ready(browser, failed)
    assert "no Python frames" in browser.value(PANEL)


def test_finding_marks_its_blocks_everywhere(browser, failed):
    ready(browser, failed)
    browser.click("#findings .line strong")
    place = neutracer.explain(FAILED).main.evidence[0].place
    until(
        browser, "document.getElementById('search').value", f'"{place.function} {place.location}"'
    )
    until(browser, f"{LEGEND}.includes('not what the search finds')")
    assert browser.value(SHOWN) == ["overview"]
    until(browser, "document.querySelectorAll('#panel mark').length > 1")
    browser.click("#findings .line strong")
    until(browser, "document.getElementById('search').value", "")


def test_what_is_past_its_last_use_is_hatched(browser, tmp_path):
    """6 MiB of 20, which nothing uses after event 3, the third of six."""
    keys = "[...document.querySelectorAll('#legend .key')].map(k => k.innerText)"
    hatched = "hatched: past its last use, or never used"
    seen = {}
    for name, plain in (("used", used_program()), ("plain", one_program())):
        ready(browser, view(pickle.dumps(plain), tmp_path / f"{name}.html"))
        browser.click("[data-axis=event]")
        browser.calm(60)
        assert (hatched in browser.value(keys)) == (name == "used")
        left, top, width, height = map(
            float, browser.value("document.getElementById('chart').dataset.map").split(",")
        )
        wide = width / (len(plain["device_traces"][0]) + 1)

        def colours(state, low, high, left=left, top=top, wide=wide, height=height):
            y, tall = top + height * (1 - high / 20) + 4, height * (high - low) / 20 - 8
            box = [round(one) for one in (left + (state + 0.2) * wide, y, 0.6 * wide, tall)]
            return browser.value(
                "(box => new Set(new Uint32Array(document.getElementById('base').getContext('2d')"
                f".getImageData(...box).data.buffer)).size)({box})"
            )

        seen[name] = [colours(3, 4, 10), colours(4, 4, 10), colours(4, 0, 4)]
    assert seen["plain"] == [1, 1, 1]
    assert seen["used"][::2] == [1, 1]
    assert seen["used"][1] > 1


def test_legend_hides_and_isolates(browser, page):
    ready(browser, page)
    aside = "[...document.querySelectorAll('#legend .key')].map(k => k.classList.contains('aside'))"
    pixels = (
        "(c => new Set(new Uint32Array(c.getContext('2d').getImageData(0, 0, c.width, c.height)"
        ".data.buffer)).size)(document.getElementById('base'))"
    )
    before = browser.value(pixels)
    browser.value("document.querySelectorAll('#legend .key')[0].click()")
    until(browser, aside, [True, False, False])
    until(browser, f"{pixels} < {before}")
    browser.value("document.querySelectorAll('#legend .key')[0].click()")
    until(browser, aside, [False, False, False])
    alone = "new MouseEvent('click', { shiftKey: true, bubbles: true })"
    browser.value(f"document.querySelectorAll('#legend .key')[0].dispatchEvent({alone})")
    until(browser, aside, [False, True, False])
    assert browser.value("document.getElementById('search').value") == ""


def test_band_of_the_timeline_tells_its_stack(browser, page, timeline):
    ready(browser, page)
    x, y = browser.value(
        "((box, map) => [box.x + 92 + map[2] * 0.5, box.y + map[1] - 40])"
        "(document.getElementById('chart').getBoundingClientRect(),"
        " document.getElementById('chart').dataset.map.split(',').map(Number))"
    )
    browser.mouse("mouseMoved", x, y)
    until(browser, f"{TIP}.startsWith('frag train.py:155')")
    told = browser.value(TIP)
    assert "blocks" in told
    assert "frag_default train.py:166" in told


def test_block_of_a_segment_tells_its_owner(browser, page):
    ready(browser, page)
    go(browser, "tab=segments&e=2215")
    x, y = browser.value(
        "(b => [b.x, b.y])(document.getElementById('segment-canvas').getBoundingClientRect())"
    )
    tip = "document.getElementById('segment-tip').innerText"
    for step in range(40):
        browser.mouse("mouseMoved", x + 220 + 8 * step, y + 12)
        browser.calm(20)
        if "train.py:" in browser.value(tip):
            break
    assert "train.py:155" in browser.value(tip) or "train.py:159" in browser.value(tip)


def test_list_of_events_follows_the_cursor(browser, page):
    ready(browser, page)
    go(browser, "tab=events&e=1433")
    chosen = "document.querySelector('#event-table .chosen .cell')?.innerText"
    until(browser, chosen, "1,433")
    box = "document.querySelector('#event-table .chosen').getBoundingClientRect()"
    assert 100 < browser.value(f"{box}.y") < 780
    go(browser, "tab=events&e=20")
    until(browser, chosen, "20")


def test_failed_request_is_as_wide_as_its_panel(browser, tmp_path):
    """And its size is rounded as the command rounds it: 12.25 to even."""
    plain = one_program()
    names = [
        "/x/site-packages/timm/models/resnet.py",
        "/a/a_program_with_a_long_name_of_its_own.py",
    ]
    frames = [{"name": "forward", "filename": name, "line": 146} for name in names]
    plain["device_traces"][0].append(
        trace_event("oom", 0, 49 << 18, 1050, frames=frames, device_free=0)
    )
    report = neutracer.explain(pickle.dumps(plain))
    ready(browser, view(pickle.dumps(plain), tmp_path / "page.html"))
    until(browser, "document.querySelector('#panel h2')?.innerText", "The request that failed")
    text = browser.value("document.querySelector('#panel').innerText")
    assert format_bytes(report.request_bytes) in text
    assert "a_program_with_a_long_name_of_its_own.py:146" in text
    assert browser.value("(p => p.scrollWidth <= p.clientWidth)(document.querySelector('#panel'))")


@pytest.mark.parametrize("width", [420, 1400])
def test_lines_are_never_cut(browser, tmp_path, width):
    plain = one_program()
    for event in plain["device_traces"][0]:
        frame = {"name": "function_with_a_long_name_" * 4, "filename": "/a/train.py", "line": 1234}
        event["frames"] = [frame]
    ready(browser, view(pickle.dumps(plain), tmp_path / "page.html"))
    size = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": False}
    browser.call("Emulation.setDeviceMetricsOverride", **size)
    for tab in ("overview", "allocations", "stacks"):
        browser.click(f"[data-tab={tab}]")
        until(browser, SHOWN, [tab])
        browser.calm(60)
        cut = browser.value(
            "[...document.querySelectorAll('.at')].filter(a => a.offsetWidth"
            " && a.querySelector('bdi').getBoundingClientRect().width"
            " > a.getBoundingClientRect().width + 1).length"
        )
        shown = browser.value(
            "[...document.querySelectorAll('.at')].filter(a => a.offsetWidth).length"
        )
        assert shown
        assert not cut


def test_frames_of_libraries_hide_and_stacks_turn_over(browser, tmp_path):
    path = view(DATA / "train_resnet_healthy.pickle.xz", tmp_path / "page.html")
    ready(browser, path)
    go(browser, "tab=stacks")
    boxes = "[...document.querySelectorAll('#flame .box')].map(b => b.ariaLabel)"
    until(browser, f"{boxes}.some(name => name.includes('_call_impl'))")
    first = browser.value(boxes)[1]
    browser.click("[data-flame=own]")
    until(browser, f"{boxes}.some(name => name.includes('_call_impl'))", False)
    assert any("train.py:76" in name for name in browser.value(boxes))
    browser.click("[data-flame=inverted]")
    until(browser, f"{boxes}[1] !== {json.dumps(first)}")
    assert "innermost call on top" in browser.value(
        "document.getElementById('flame-words').innerText"
    )
    go(browser, "e=200&pin=400")
    frames = "document.querySelectorAll('#panel .stack li').length"
    before = browser.value(frames)
    browser.value("[...document.querySelectorAll('#panel .link')].at(-1).click()")
    until(browser, f"{frames} < {before}")


def test_several_devices_share_a_page(browser, tmp_path):
    path = view(pickle.dumps(two_devices()), tmp_path / "page.html")
    ready(browser, path)
    assert browser.value("document.getElementById('device').value") == "0"
    first = browser.value("document.querySelector('header').innerText")
    assert "cuda:0" in first
    assert "cuda:2" not in first
    key(browser, "d", "d")
    until(browser, "document.querySelector('header').innerText.includes('cuda:2')")
    assert "device=2" in hash_of(browser)
    for tab in TABS:
        browser.click(f"[data-tab={tab}]")
        until(browser, SHOWN, [tab])
    go(browser, "device=0&tab=events&e=1")
    until(browser, "document.getElementById('device').value", "0")
    until(browser, SHOWN, ["events"])
    go(browser, "device=7")
    assert browser.complaints() == []


def test_keys_switch_axis_stacking_and_legend(browser, tmp_path):
    path = view(DATA / "train_resnet_healthy.pickle.xz", tmp_path / "page.html")
    ready(browser, path)
    key(browser, "s", "s")
    until(browser, f"{LEGEND}[0]", "below 64 KiB")
    # The warm-up takes most of the time, so that the page opens on events.
    key(browser, "t", "t")
    until(browser, "location.hash.includes('axis=time')")
    key(browser, "l", "l")
    until(browser, "document.getElementById('legend').hidden")
    # Letters that are typed into the search are text.
    browser.click("#search")
    key(browser, "l", "l")
    assert browser.value("document.getElementById('search').value") == "l"
    assert browser.value("document.getElementById('legend').hidden")


def test_page_opens_on_its_focus(browser, tmp_path):
    snap = neutracer.load(DATA / "train_resnet_healthy.pickle.xz")
    timeline = snap.timeline()
    event = timeline.peak("allocated").event
    ready(browser, view(snap, tmp_path / "page.html", focus=(event - 20, event)))
    link = hash_of(browser)
    first, last = event - 19, event + 1
    assert view_of(link, "t") == pytest.approx((first, last), abs=(last - first) * 0.2 + 2)
    assert format_bytes(timeline.allocated[event]) in browser.value(PANEL)
    assert browser.complaints() == []


def test_phone_and_dark_pages_fit(browser, page):
    ready(browser, page)
    browser.call(
        "Emulation.setDeviceMetricsOverride",
        width=390,
        height=844,
        deviceScaleFactor=2,
        mobile=True,
    )
    browser.call(
        "Emulation.setEmulatedMedia",
        features=[{"name": "prefers-color-scheme", "value": "dark"}],
    )
    try:
        for tab in TABS:
            browser.click(f"[data-tab={tab}]")
            until(browser, SHOWN, [tab])
            until(browser, "document.documentElement.scrollWidth <= 390")
        ground = browser.value("getComputedStyle(document.body).backgroundColor")
        assert ground == "rgb(18, 24, 30)"
    finally:
        browser.call("Emulation.setEmulatedMedia", features=[])
    assert browser.complaints() == []


def test_hostile_names_run_nothing(browser, tmp_path):
    plain = one_program()
    trace = plain["device_traces"][0]
    segment, made, *_ = trace
    for number, text in enumerate(HOSTILE_NAMES.values()):
        frames = [{"name": text, "filename": text, "line": number + 1}]
        address = made["addr"] + (20 << 20) * (number + 1)
        trace.append({**segment, "addr": address, "frames": frames, "time_us": 2000 + number})
        trace.append({**made, "addr": address, "frames": frames, "time_us": 2000 + number})
        plain["segments"].append(
            {
                **plain["segments"][0],
                "address": address,
                "blocks": [
                    {**block, "address": address + (4 << 20) * place}
                    for place, block in enumerate(plain["segments"][0]["blocks"])
                ],
            }
        )
    path = view(pickle.dumps(plain), tmp_path / "page.html")
    ready(browser, path)
    go(browser, f"e={len(trace) - 1}")
    text = ""
    for tab in TABS:
        browser.click(f"[data-tab={tab}]")
        until(browser, SHOWN, [tab])
        go(browser, f"tab={tab}&e={len(trace) - 1}")
        text += browser.value("document.body.innerText")
        for element in (".box", ".body .row", ".rank"):
            browser.value(f"document.querySelectorAll('{element}').forEach(e => e.click())")
            browser.click(f"[data-tab={tab}]")
    assert "</script><script>alert(1)</script>" in text
    assert "\\u202e" in text
    assert "\u202e" not in text
    assert browser.value("document.querySelectorAll('img').length") == 0
    assert asked_of(browser) == [path.as_uri()]
    assert browser.complaints() == []
    assert not any(event["method"] == "Page.javascriptDialogOpening" for event in browser.events)


CUT = """[...document.querySelectorAll('section:not([hidden]) .cell.num')]
    .filter(cell => cell.offsetWidth && cell.scrollWidth > cell.clientWidth).length"""
APART = """(rows => [...rows[0].children].map((cell, k) => Math.abs(
    cell.getBoundingClientRect().right - rows[1].children[k].getBoundingClientRect().right
    )))([...document.querySelectorAll('section:not([hidden]) .table .row')])"""


@pytest.mark.parametrize("name", ["frag_default", "attention_math"])
def test_tables_cut_no_figure_at_any_width(browser, tmp_path, name):
    """The largest sizes of the second have four digits."""
    ready(browser, view(DATA / f"{name}.pickle.xz", tmp_path / "page.html"))
    for width in (1400, 1000, 820, 420):
        size = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": False}
        browser.call("Emulation.setDeviceMetricsOverride", **size)
        for tab in ("allocations", "events"):
            browser.click(f"[data-tab={tab}]")
            until(browser, f"document.querySelectorAll('#{tab} .row').length > 9")
            assert browser.value(CUT) == 0, (width, tab)
            assert max(browser.value(APART)) <= 1, (width, tab)
        # What lives to the end says so in words.
        go(browser, "tab=allocations&q=kept:yes")
        until(browser, "document.getElementById('allocations').innerText.includes('to the end')")
        assert browser.value(CUT) == 0, width
        go(browser, "")


LAYOUT = """(box => [document.documentElement.scrollHeight, box.x, box.y, box.width, box.height]
    )(document.getElementById('chart').getBoundingClientRect())"""


def test_pointing_at_a_block_moves_nothing(browser, tmp_path):
    # The deepest stack, in a window in which the panel has no room for it.
    ready(browser, view(DATA / "train_resnet_healthy.pickle.xz", tmp_path / "page.html"))
    size = {"width": 1400, "height": 620, "deviceScaleFactor": 1, "mobile": False}
    browser.call("Emulation.setDeviceMetricsOverride", **size)
    go(browser, "")
    before = browser.value(LAYOUT)
    x, y = browser.middle("#chart")
    browser.mouse("mouseMoved", x, min(y, 600))
    until(browser, f"{PANEL}.includes('Block under the pointer')")
    assert browser.value("(p => p.scrollHeight > p.clientHeight)(document.getElementById('panel'))")
    assert browser.value(LAYOUT) == before


def test_links_say_the_whole_state(browser, page):
    ready(browser, page)
    first = browser.value(PANEL)
    go(browser, "tab=stacks&e=100&axis=event&t=10,60&q=frag&raw=1")
    assert browser.value(SHOWN) == ["stacks"]
    # What a link does not say is as it was at first, whatever was there before.
    go(browser, "e=2374")
    assert browser.value(SHOWN) == ["overview"]
    assert browser.value(PANEL).replace("frozen cursor", "cursor") == first
    assert browser.value("document.getElementById('search').value") == ""
    assert browser.value("document.querySelector('[data-axis=time]').ariaPressed") == "true"
    assert hash_of(browser) == "#e=2374"


def test_flame_keeps_the_keyboard(browser, page):
    ready(browser, page)
    go(browser, "tab=stacks&e=2215")
    until(browser, "document.querySelectorAll('#flame .box').length", 5)
    name = "document.activeElement.ariaLabel"
    browser.value("document.querySelectorAll('#flame .box')[4].focus()")
    wanted = browser.value(name)
    key(browser, "Enter", "\r")
    until(browser, "document.querySelectorAll('#flame .box').length", 4)
    assert browser.value(name) == wanted


def test_times_that_are_no_axis_give_events(browser, tmp_path):
    same = one_program()
    for entry in same["device_traces"][0]:
        entry["time_us"] = 5000
    ready(browser, view(pickle.dumps(same), tmp_path / "page.html"))
    assert browser.value("document.querySelector('[data-axis=time]').disabled")
    go(browser, "e=2")
    assert "10 MiB" in browser.value(PANEL)
    assert browser.complaints() == []


def test_broken_links_and_no_history_are_fine(browser, tmp_path):
    plain = one_program()
    plain["device_traces"] = [[]]
    path = view(pickle.dumps(plain), tmp_path / "page.html")
    ready(browser, path)
    assert "4 MiB" in browser.value(PANEL)
    for fragment in ("tab=none&e=99999&t=5,1&range=a,b&pin=-7", "e=-1&tab=stacks", "t=0,1e99"):
        go(browser, fragment)
    go(browser, "range=-1e308,1e308")
    browser.until(f"{PANEL}.includes('Selected range')")
    assert "bytes on the mean" in browser.value(PANEL)
    assert "NaN" not in browser.value(PANEL)
    go(browser, "range=1e300,1e301")
    assert "Selected range" not in browser.value(PANEL)
    for tab in TABS:
        browser.click(f"[data-tab={tab}]")
        until(browser, SHOWN, [tab])
    assert browser.complaints() == []


def test_paper_has_no_buttons(browser, page):
    ready(browser, page)
    go(browser, "e=100")
    browser.call("Emulation.setEmulatedMedia", media="print")
    try:
        browser.calm()
        seen = "[...document.querySelectorAll('nav button, header button, .tools button')]"
        assert browser.value(f"{seen}.filter((one) => one.offsetWidth).length") == 0
        assert browser.value("document.getElementById('chart').offsetWidth") > 1000
        assert browser.value("document.getElementById('panel').offsetWidth") > 1000
    finally:
        browser.call("Emulation.setEmulatedMedia", media="")


def test_logic_of_the_modules(browser, tmp_path):
    path = tmp_path / "empty.html"
    path.write_text("<title>modules</title>")
    browser.open(path)
    for module in ("units", "filter", "axis", "state", "gestures", "compare"):
        browser.value(bundle(f"{module}.js", module))
    sizes = [0, 512, 1023, 1024, 1_572_864, 37_500_000, 425_721_856, 2_126_512_128, 149_000_000_000]
    told = browser.value(f"{json.dumps(sizes)}.map(units.bytes)")
    assert told == [format_bytes(size) for size in sizes]
    ticks = browser.value("units.byteTicks([0, 1, 2].map((k) => 2.5e9 + k * 65536))")
    assert ticks == ["2,384 MiB", "+64 KiB", "+128 KiB"]
    assert browser.value("units.steps(-1, 9, 2).map((at) => Object.is(at, -0))") == [False, False]
    assert browser.value("units.byteTicks([0, 1024])") == ["0 B", "1 KiB"]
    read = browser.value(
        "['16MiB', '1,000', '2.5g', '8MB', '3x', '', '1,5GiB', '1,,000'].map(units.parseBytes)"
    )
    assert read == [16 << 20, 1000, 2.5 * (1 << 30), 8_000_000, None, None, None, None]
    assert browser.value("[950, 2500, 42600, 6.1e7 * 2].map(units.duration)") == [
        "950 µs", "2.50 ms", "42.6 ms", "2 min 2 s",
    ]  # fmt: skip
    wrong = browser.value("filter.parse('size>big life<3ms \"two words\" -x').wrong")
    assert wrong == ["size>big"]
    assert browser.value("filter.parse('size> event: life<').wrong") == ["size>", "event:", "life<"]
    assert browser.value("axis.clampView(-5, 5, 0, 100, 1)") == [0, 10]
    assert browser.value("axis.clampView(50, 50.1, 0, 100, 1)") == pytest.approx([49.55, 50.55])
    # Fingers over 10 and 20 of 0 .. 40, which move to pixels 0 and 40 of a plot of 80.
    pinched = "gestures.pinched([0, 40], [10, 20], [100, 140], 100, 80, true)"
    assert browser.value(pinched) == [10, 30]
    assert browser.value(pinched.replace("true", "false")) == [5, 45]
    assert browser.value(pinched.replace("100, 140", "140, 100")) == [0, 40]
    assert browser.value("axis.wholeView(3.2, 3.4, 10)") == [3, 4]
    assert browser.value("axis.wholeView(9.9, 12, 10)") == [9, 10]
    odd = browser.value("compare.oddOnes([100, 101, 99, 100, 160, 100])")
    assert odd == [False, False, False, False, True, False]
    grown = browser.value(
        "compare.differences([{name: 'a', bytes: 5}, {name: 'b', bytes: 2}],"
        " [{name: 'a', bytes: 5}, {name: 'c', bytes: 9}])"
    )
    assert [(one["name"], one["by"]) for one in grown] == [("c", 9), ("b", -2)]
    found = browser.value("state.read('#tab=events&e=7&pin=9&t=1,2&q=a%20b', 8, 9)")
    assert found["tab"] == "events"
    assert found["event"] == 7
    assert found["pin"] is None
    assert found["x"] == [1, 2]
    assert found["query"] == "a b"


def test_question_mark_lists_the_keys(browser, page):
    ready(browser, page)
    for width in (1400, 420):
        size = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": False}
        browser.call("Emulation.setDeviceMetricsOverride", **size)
        key(browser, "?", "?")
        until(browser, "document.getElementById('keys').hidden", False)
        assert "frees the cursor" in browser.value("document.getElementById('keys').innerText")
        right = "document.getElementById('keys').getBoundingClientRect().right"
        assert browser.value(right) <= width
        key(browser, "Escape")
        until(browser, "document.getElementById('keys').hidden", True)


def test_alive_at_the_cursor_is_a_filter(browser, page, timeline):
    ready(browser, page)
    go(browser, "e=2048")
    key(browser, "a", "a")
    until(browser, SHOWN, ["allocations"])
    until(browser, "document.getElementById('search').value", "alive:2048")
    alive = sorted(timeline.alive(2048)["size"], reverse=True)
    words = "document.getElementById('allocation-words').textContent"
    until(browser, words, f"{len(alive)} of 816 allocations")
    first = "document.querySelector('#allocation-table .body .row')?.innerText"
    until(browser, f"{first}?.startsWith({format_bytes(alive[0])!r})")
    # What is not alive then is dim on the map, in the legend's words.
    key(browser, "1", "1")
    until(browser, f"{LEGEND}.includes('not what the search finds')")


def test_panel_lists_categories_where_they_are_the_colours(browser, tmp_path):
    ready(browser, view(DATA / "train_resnet_healthy.pickle.xz", tmp_path / "page.html"))
    go(browser, "by=categories&e=3000")
    timeline = neutracer.load(DATA / "train_resnet_healthy.pickle.xz").timeline()
    until(browser, f"{PANEL}.includes('by category')")
    told = browser.value(PANEL)
    for name, nbytes, _, _ in timeline.categories.live(3000):
        assert name.replace("_", " ") in told
        assert format_bytes(nbytes) in told
