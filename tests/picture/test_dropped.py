# SPDX-License-Identifier: Apache-2.0
"""Files dropped on the empty page: the figures are Python's, and so is what it refuses."""

from __future__ import annotations

import base64
import gzip
import json
import lzma
import math
import pickle
import struct
import warnings
from pathlib import Path

import corpus
import pytest
from chromium import PROGRAM, Browser
from impossible_files import SAID, put, sound
from places import TESTS
from small_snapshots import BASE, one_program, two_devices

import neutracer
from neutracer._native import core as native
from neutracer.picture.view import HOST_NUMBER, bundle, empty_page, packed_columns, page_rules, view
from neutracer.question import first_findings
from neutracer.units import format_bytes
from neutracer.whatif.replaying import Replayer

pytestmark = pytest.mark.skipif(PROGRAM is None, reason="needs Chromium")

FACTS = "document.getElementById('facts').innerText"
FINDINGS = "document.getElementById('findings').innerText"

DATA = TESTS / "data"
SNAPSHOTS = sorted(path.name.partition(".")[0] for path in DATA.glob("*.pickle.xz"))
SETTINGS = ("", "expandable_segments:True", "max_split_size_mb:64,roundup_power2_divisions:4")

# A core of its own beside the page's, for questions with their exact answers.
CORE = """(async () => {
  const input = document.createElement("input");
  Object.assign(input, { type: "file", id: "own", multiple: true });
  document.body.append(input);
  globalThis.rules = %s;
  globalThis.openOwn = async (more = {}) => {
    if (globalThis.opened) globalThis.opened.close();
    globalThis.opened = await client.openFile(document.getElementById("own").files[0], rules, more);
    return opened.about;
  };
})()"""


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    return empty_page().save(tmp_path_factory.mktemp("empty") / "neutracer.html")


@pytest.fixture(scope="module")
def chromium(tmp_path_factory):
    with Browser(tmp_path_factory.mktemp("profile")) as browser:
        yield browser


@pytest.fixture(scope="module")
def core(tmp_path_factory, page):
    with Browser(tmp_path_factory.mktemp("core")) as browser:
        browser.open(page)
        browser.value(bundle("client.js", "client"))
        browser.answer(CORE % page_rules())
        yield browser


def asked(core, name, **given):
    return core.answer(f"opened.ask({json.dumps(name)}, {json.dumps(given)})")


def plain(name, folder):
    path = folder / f"{name}.pickle"
    path.write_bytes(lzma.decompress((DATA / f"{name}.pickle.xz").read_bytes()))
    return path


def drop(browser, page, *paths):
    browser.open(page)
    browser.until("document.documentElement.dataset.ready", "1")
    browser.value("document.documentElement.dataset.ready = ''")
    browser.choose("#pick", *paths)
    browser.until("document.documentElement.dataset.ready", "1")


def by_name(entries):
    """Bytes and counts by name; equal names are one line to a reader."""
    sums = {}
    for name, nbytes, count in entries:
        held = sums.setdefault(name, [0, 0])
        held[0] += nbytes
        held[1] += count
    return sums


@pytest.mark.parametrize("name", SNAPSHOTS)
def test_figures_are_those_of_python(core, name, tmp_path):
    core.choose("#own", plain(name, tmp_path))
    about = core.answer("openOwn()")
    snap = neutracer.load(tmp_path / f"{name}.pickle")
    assert tuple(about["devices"]) == snap.devices
    assert about["settings"]["text"] == snap.settings_in_force["text"]
    for device in snap.devices:
        check_device(core, snap, device)
    assert saved(core) == snap.to_bytes()


def saved(core):
    """The file that the page gives away."""
    return base64.b64decode(
        core.answer(
            "opened.ask('save').then(({ blob }) => blob.arrayBuffer()).then((data) =>"
            " { let text = ''; for (const byte of new Uint8Array(data)) text +="
            " String.fromCharCode(byte); return btoa(text); })"
        )
    )


@pytest.mark.parametrize("name", SNAPSHOTS)
def test_snapshots_in_a_page_come_back_whole(core, name, tmp_path):
    snap = neutracer.load(plain(name, tmp_path))
    packed = tmp_path / "packed"
    packed.write_bytes(gzip.compress(packed_columns(snap)))
    core.choose("#own", packed)
    about = core.answer("openOwn({ isOwn: true })")
    assert tuple(about["devices"]) == snap.devices
    assert saved(core) == snap.to_bytes()


def test_long_files_are_read_to_their_end(core, tmp_path):
    """The page reads 4 MiB at a time."""
    program = one_program()
    names = [chr(ord("a") + i) * 3_000_000 for i in range(3)]
    program["external_annotations"] = [
        {"stage": "START", "name": name, "device": 0, "time_us": 1 + i}
        for i, name in enumerate(names)
    ]
    path = tmp_path / "long.pickle"
    path.write_bytes(pickle.dumps(program))
    core.choose("#own", path)
    assert core.answer("openOwn()")["partial"] == ""
    assert saved(core) == neutracer.load(path).to_bytes()


def test_what_a_page_lost_of_its_snapshot_is_said(core, tmp_path):
    packed = tmp_path / "packed"
    packed.write_bytes(
        gzip.compress(packed_columns(neutracer.load(plain("metadata", tmp_path)))[:-9])
    )
    core.choose("#own", packed)
    said = core.answer("openOwn({ isOwn: true }).catch((error) => error.message)")
    assert "the packed snapshot is damaged" in said


def check_device(core, snap, device, number=None):
    """`number`: what the page calls the device, where it is another one."""
    timeline = snap.timeline(device)
    facts = core.answer(f"opened.ask('device', {device if number is None else number})")
    assert facts["events"] == len(timeline)
    assert facts["rows"] == len(timeline.allocations)
    for metric in ("allocated", "active", "reserved", "requested"):
        peak = timeline.peak(metric)
        assert facts["peak"][metric] == {"bytes": peak.bytes, "event": peak.event}
    assert asked(core, "settle")["isKnown"] == (timeline.categories.share > 0)
    asked(core, "axes", byTime=facts["isTimed"], raw=False)
    assert asked(core, "lanes")["steps"]["count"] == len(timeline.steps)
    core.answer("opened.ask('bands', { by: 'categories', query: '' })")
    for event in sorted({timeline.peak("allocated").event, len(timeline) // 2, len(timeline) - 1}):
        if event >= 0:
            check_moment(core, timeline, event)


def check_moment(core, timeline, event):
    moment = asked(core, "moment", event=event, all=True)
    assert moment["allocated"] == timeline.allocated[event]
    assert moment["reserved"] == timeline.reserved[event]
    layout = timeline.at(event)
    holes = [block.size for block in layout.blocks if block.state == "inactive"]
    assert moment["largestHole"] == max(holes, default=0)
    held = timeline.holders(event, by="place", limit=None)
    mine = sorted(holder.bytes for holder in held)
    assert sorted(entry["bytes"] for entry in moment["places"]) == mine
    backward = {h.bytes for h in held if str(h.key).startswith("backward ")}
    assert {e["bytes"] for e in moment["places"] if e["name"].startswith("backward ")} == backward
    told = by_name((e["name"], e["bytes"], e["count"]) for e in moment["categories"])
    wanted = timeline.categories.live(event)
    assert told == by_name((name.replace("_", " "), size, n) for name, size, _, n in wanted)
    drawn = asked(core, "layout", event=event, order="address")
    assert len(drawn["segments"]) == len(layout.segments)
    assert sum(one["size"] for one in drawn["segments"]) == timeline.reserved[event]


def test_pixels_are_as_full_as_in_mdtp(core, tmp_path):
    core.choose("#own", plain("frag_default", tmp_path))
    core.answer("openOwn()")
    core.answer("opened.ask('device', 0)")
    asked(core, "settle")
    axes = asked(core, "axes", byTime=False, raw=False)
    core.answer("opened.ask('bands', { by: 'sizes', query: '' })")
    whole = {"x0": 0, "x1": axes["width"], "y0": 0, "y1": axes["height"], "width": 60, "height": 40}
    answer = f"opened.ask('draw', {json.dumps(whole)}).then(({{ full }}) => [...full])"
    snap = neutracer.load(tmp_path / "frag_default.pickle")
    raster = native.Raster(snap.timeline().native, False, False)
    _, used, reserved, _ = raster.draw((0, axes["width"], 0, axes["height"], 60, 40))
    pairs = zip(memoryview(used).cast("d"), memoryview(reserved).cast("d"), strict=True)
    wanted = [255 * min(a / b, 1) if b else 255 for a, b in pairs]
    assert core.answer(answer) == pytest.approx(wanted, abs=0.51)


@pytest.mark.parametrize("name", ["frag_default", "multi_stream", "cuda_graph_pool"])
def test_outcomes_are_those_of_what_if(core, name, tmp_path):
    core.choose("#own", plain(name, tmp_path))
    core.answer("openOwn()")
    core.answer("opened.ask('device', 0)")
    program = asked(core, "program")
    replayer = Replayer(neutracer.load(tmp_path / f"{name}.pickle"), 0)
    assert program["sentence"] == replayer.check.sentence
    for capacity in (0, 3 << 30):
        mine = Replayer(replayer.snap, 0, capacity or None)
        for settings in SETTINGS:
            told = asked(core, "whatIf", settings=settings, capacity=capacity)
            wanted = mine.quick(settings)
            assert told["peakReserved"] == wanted.peak_reserved_bytes, settings
            assert told["ooms"] == wanted.ooms
            calls = wanted.device_allocs + wanted.device_frees
            assert told["deviceAllocs"] + told["deviceFrees"] == calls
            stopped = -2 if wanted.stopped_event is None else wanted.stopped_event
            assert told["stoppedEvent"] == stopped
            given = {"settings": settings, "capacity": capacity, "width": 300, "height": 40}
            drawn = core.answer(
                f"opened.ask('whatIfDraw', {json.dumps(given)})"
                ".then(({ reserved }) => Math.max(...reserved))"
            )
            assert drawn == wanted.peak_reserved_bytes
    with pytest.raises(AssertionError, match="max_split_size_mb"):
        asked(core, "whatIf", settings="max_split_size_mb:3", capacity=0)


# Every question in turn, within so many bytes; what each was refused with.
STARVED = """(async (limit) => {
  const more = { limit };
  if (globalThis.opened) globalThis.opened.close();
  globalThis.opened = null;
  const said = [];
  const file = document.getElementById("own").files[0];
  try {
    globalThis.opened = await client.openFile(file, rules, more);
  } catch (error) {
    return { isOpen: false, said: [error.message] };
  }
  const view = { x0: 0, x1: 50, y0: 0, y1: 5000, width: 200, height: 100 };
  const whatIf = { settings: "expandable_segments:True", capacity: 0, width: 100, height: 40 };
  for (const [name, given] of [["device", 0], ["axes", { byTime: false, raw: false }],
    ["bands", { by: "sizes", query: "" }], ["draw", view], ["at", { x: 10 }],
    ["highest", { metric: "allocated", first: 0, end: 40 }], ["moment", { event: 40, all: true }],
    ["layout", { event: 40, order: "address" }], ["flame", { event: 40 }], ["program", {}],
    ["whatIf", whatIf], ["whatIfDraw", whatIf], ["draw", view], ["save", {}]]) {
    try { await opened.ask(name, given); } catch (error) { said.push(error.message); }
  }
  return { isOpen: true, said };
})(%d)"""


def test_too_little_memory_is_said_at_each_question(core, tmp_path):
    core.choose("#own", plain("frag_default", tmp_path))
    stages = set()
    for limit in (100_000, 400_000, *range(500_000, 1_500_000, 50_000), 1 << 26):
        told = core.answer(STARVED % limit)
        stages.add((told["isOpen"], bool(told["said"])))
        for sentence in told["said"]:
            known = ("memory", "that a page can have", "no axes and bands")
            assert any(words in sentence for words in known), (limit, sentence)
            assert not sentence.startswith("the core stopped"), (limit, sentence)
    # Refused, opened with a part of the questions answered, and with all of them.
    assert stages == {(False, True), (True, True), (True, False)}


# Files that are opened from now on get so many bytes of memory.
LESS_MEMORY = """(post => { Worker.prototype.postMessage = function(message, ...rest) {
  if (message.name === "open") message.given.limit = %d;
  return post.call(this, message, ...rest);
}; })(Worker.prototype.postMessage)"""


@pytest.fixture(scope="module")
def long_trace(tmp_path_factory):
    """150,000 events, whose columns are larger than the room for a picture."""
    keys = {"size": 512, "stream": 0, "frames": []}
    events = [
        {**keys, "action": action, "addr": BASE + 512 * (row % 4096), "time_us": 1 + row}
        for row in range(0, 150_000, 3)
        for action in ("alloc", "free_requested", "free_completed")
    ]
    path = tmp_path_factory.mktemp("long") / "long.pickle"
    path.write_bytes(pickle.dumps({"segments": [], "device_traces": [events]}))
    return path


@pytest.mark.parametrize(
    ("limit", "said"),
    [(6_000_000, "reading it takes more"), (9_000_000, "showing it takes"), (60_000_000, "")],
)
def test_what_does_not_fit_is_offered_in_part(chromium, page, long_trace, limit, said):
    """Where reading a file takes too much, where showing it does, and neither."""
    chromium.open(page)
    chromium.until("document.documentElement.dataset.ready", "1")
    chromium.value(LESS_MEMORY % limit)
    chromium.value("document.documentElement.dataset.ready = ''")
    chromium.choose("#pick", long_trace)
    chromium.until("document.documentElement.dataset.ready", "1")
    trouble = chromium.value("document.getElementById('trouble').innerText")
    assert chromium.value("document.getElementById('nav').hidden") == bool(said)
    assert chromium.value("document.getElementById('empty').hidden") != bool(said)
    if said:
        assert trouble.startswith("long.pickle: ")
        assert said in trouble
        assert trouble.count("read its first") == 2
        chromium.value("document.documentElement.dataset.ready = ''")
        chromium.click("#trouble > button:last-child")
        chromium.until("document.documentElement.dataset.ready", "1")
        facts = chromium.value("document.getElementById('facts').textContent")
        assert "only a part was read: " in facts
        assert "history" not in facts
        assert "only a part of long.pickle could be read" in chromium.value(FINDINGS)
    assert chromium.value("document.title") == "long.pickle"
    assert chromium.complaints() == []


def said_by_load(path):
    """What `load` raises, or None."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            neutracer.load(path)
        except neutracer.SnapshotError as error:
            return error
    return None


def test_what_is_refused_is_refused_in_the_same_words(core, tmp_path):
    corpus.unpack(tmp_path / "corpus")
    damaged = sorted((tmp_path / "corpus" / "found").iterdir())[::9]
    damaged += sorted((tmp_path / "corpus" / "fixed").iterdir())
    others = {
        "empty": b"",
        "text": b"no snapshot\n",
        "json": b'{"traceEvents": []}',
        "zip": b"PK\x03\x04rest",
        "class": b"cos\nsystem\n(S'true'\ntR.",
        "cut": pickle.dumps(one_program())[:-400],
        "list.gz": gzip.compress(b"[1, 2]"),
    }
    for name, data in others.items():
        (tmp_path / name).write_bytes(data)
        damaged.append(tmp_path / name)
    core.choose("#own", *damaged)
    told = core.answer(
        "(async () => { const found = []; const files = [...document.getElementById('own').files];"
        " for (const file of files) { try { const { close } = await client.openFile(file, rules);"
        " close(); found.push(null); } catch (error) { found.push(error.message); } }"
        " return found; })()"
    )
    compared = 0
    for path, words in zip(damaged, told, strict=True):
        wanted = said_by_load(path)
        if wanted is None or isinstance(wanted, neutracer.LimitError):
            assert (words is None) == (wanted is None), path.name
            continue
        compared += 1
        assert words == str(wanted), path.name
    assert compared > 30


def test_gzip_is_unpacked(chromium, page, tmp_path):
    path = tmp_path / "small.pickle.gz"
    path.write_bytes(gzip.compress(pickle.dumps(one_program())))
    drop(chromium, page, path)
    assert chromium.value("document.title") == "small.pickle.gz"
    facts = "document.getElementById('facts').textContent"
    assert "5 events" in chromium.value(facts)
    assert chromium.value(facts).endswith("default settings")
    (tmp_path / "plain.pickle").write_bytes(
        pickle.dumps({**one_program(), "allocator_settings": {}})
    )
    drop(chromium, page, tmp_path / "plain.pickle")
    assert chromium.value(facts).endswith("settings not recorded")
    assert chromium.complaints() == []


def test_gzip_is_unpacked_to_its_last_member(core, tmp_path):
    """A browser refuses what stands behind a member, with some of what it had unpacked."""
    program = one_program()
    trace = program["device_traces"][0]
    for i in range(20_000):
        trace += [{**one, "time_us": 2000 + i} for one in trace[2:5]]
    data = pickle.dumps(program)
    whole = gzip.compress(data)
    path = tmp_path / "packed.pickle.gz"
    for packed in (
        whole,
        whole + b"xyz",
        whole + bytes(200_000),
        gzip.compress(data[:5000]) + gzip.compress(data[5000:-9]) + gzip.compress(data[-9:]),
        gzip.compress(data[:200_000]) + gzip.compress(data[200_000:]) + b"\0",
        whole[: len(whole) // 2],
        gzip.compress(data[:5000]) + gzip.compress(data[5000:])[:-900],
    ):
        path.write_bytes(packed)
        core.choose("#own", path)
        about = core.answer("openOwn()")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", neutracer.HistoryWarning)
            snap = neutracer.load(path)
        assert about["partial"] == (snap.partial or "")
        assert core.answer("opened.ask('device', 0)")["events"] == len(snap.events)
    path.write_bytes(gzip.compress(b"") * 101)
    core.choose("#own", path)
    with pytest.raises(AssertionError, match="more than 100 members"):
        core.answer("openOwn()")


def test_settings_that_nothing_is_replayed_under_say_why(chromium, page, tmp_path):
    settings = one_program()["allocator_settings"]
    for kind, words in (
        ("exact_sizes", "the memory of the CPU, which has no cache"),
        ("pinned", "changes the host's pinned memory"),
    ):
        path = tmp_path / f"{kind}.pickle"
        path.write_bytes(
            pickle.dumps({**one_program(), "allocator_settings": {**settings, kind: True}})
        )
        drop(chromium, page, path)
        chromium.click("[data-tab=settings]")
        assert words in chromium.answer(
            "new Promise((done) => { const look = () => { const said ="
            " document.getElementById('settings').innerText;"
            " if (said.includes('CUDA allocator')) done(said); else setTimeout(look, 20); };"
            " look(); })"
        )


def test_page_says_what_is_wrong_and_goes_on(chromium, page, tmp_path):
    wrong, right = tmp_path / "wrong.pickle", tmp_path / "right.pickle"
    wrong.write_bytes(b"<html>")
    right.write_bytes(pickle.dumps(two_devices()))
    drop(chromium, page, wrong)
    trouble = "document.getElementById('trouble').innerText"
    assert "wrong.pickle: this is an HTML or XML page: expected a PyTorch" in chromium.value(
        trouble
    )
    assert chromium.value("document.getElementById('empty').hidden") is False
    chromium.choose("#pick", right)
    chromium.until("document.title", "right.pickle")
    chromium.until("document.documentElement.dataset.ready", "1")
    options = "[...document.getElementById('device').options].map((option) => option.value)"
    assert chromium.value(options) == ["0", "2"]
    assert chromium.value(f"{trouble}") == ""


def test_page_opens_on_the_device_that_ran_out_of_memory(chromium, page, tmp_path):
    program = two_devices()
    oom = {"action": "oom", "addr": 0, "size": 1 << 30, "stream": 0, "frames": [], "time_us": 9999}
    program["device_traces"][2].append({**oom, "device_free": 1 << 20})
    path = tmp_path / "two.pickle"
    path.write_bytes(pickle.dumps(program))
    drop(chromium, page, path)
    assert chromium.value(FACTS).startswith("cuda:2 ")
    assert "out of memory: requested 1,024 MiB" in chromium.value(FINDINGS)
    names = "[...document.getElementById('device').options].map((option) => option.textContent)"
    snap = neutracer.load(path)
    peaks = [format_bytes(snap.timeline(number).peak("reserved").bytes) for number in (2, 0)]
    assert chromium.value(names) == [
        f"cuda:2, {peaks[0]} at most, out of memory",
        f"cuda:0, {peaks[1]} at most",
    ]


def test_a_link_is_followed_when_its_file_is_dropped(chromium, page, tmp_path):
    """Sent along with the file, to somebody who has the page without one."""
    path = plain("frag_default", tmp_path)
    chromium.open(page)
    chromium.until("document.documentElement.dataset.ready", "1")
    link = "#tab=allocations&e=1433&t=10000,20000&q=size>100MiB"
    chromium.value(f"location.hash = {link!r}")
    chromium.until("document.documentElement.dataset.links", "1")
    chromium.value("document.documentElement.dataset.ready = ''")
    chromium.choose("#pick", path)
    chromium.until("document.documentElement.dataset.ready", "1")
    chromium.until("document.getElementById('allocation-words').innerText", "11 of 816 allocations")
    chromium.until("document.getElementById('panel').innerText.includes('1,433')")
    chromium.calm()
    kept = chromium.value("Object.fromEntries(new URLSearchParams(location.hash.slice(1)))")
    assert kept == {"tab": "allocations", "e": "1433", "t": "10000,20000", "q": "size>100MiB"}
    # What is dropped beside it has the page's own first view.
    chromium.choose("#pick", plain("metadata", tmp_path))
    chromium.until("document.title", "metadata.pickle")
    chromium.until("location.hash.includes('t=')", False)


def test_what_waits_for_a_stream_is_no_matter_of_settings(chromium, page, tmp_path):
    size = 64 << 20
    keys = {"size": size, "stream": 0, "frames": []}
    block = {"size": size, "requested_size": size, "state": "active_pending_free", "frames": []}
    pool = {"device": 0, "stream": 0, "segment_type": "large", "segment_pool_id": (0, 0)}
    sizes = {"total_size": size, "allocated_size": 0, "active_size": size, "requested_size": 0}
    events, segments = [], []
    for row in range(10):
        at = BASE + row * size
        for action in ("segment_alloc", "alloc", "free_requested"):
            events.append({**keys, "action": action, "addr": at, "time_us": 1 + len(events)})
        segments.append({**pool, **sizes, "address": at, "blocks": [{**block, "address": at}]})
    path = tmp_path / "pending.pickle"
    path.write_bytes(pickle.dumps({"segments": segments, "device_traces": [events]}))
    drop(chromium, page, path)
    chromium.until(f"{FINDINGS}.includes('waited for another stream')")
    timeline = neutracer.load(path).timeline()
    event = timeline.peak("reserved").event
    waiting = sum(b.size for b in timeline.at(event).blocks if b.state == "active_pending_free")
    assert f"{format_bytes(waiting)} was freed and waited" in chromium.value(FINDINGS)
    assert "expandable_segments" not in chromium.value(
        "document.getElementById('findings').textContent"
    )


def test_what_the_page_does_not_look_for_is_said(chromium, page, tmp_path):
    drop(chromium, page, plain("leak_list", tmp_path))
    assert "nothing stands out" not in chromium.value(FINDINGS)
    assert "growth from step to step" in chromium.value(FINDINGS)
    told = chromium.value("document.getElementById('findings').textContent")
    assert all(words in told for words in ("neutracer report", "gradients", "past its last use"))


# Kinds of findings that a dropped file has, and words of the page for those that it has not.
LOOKED = ("out_of_memory", "fragmentation_peak", "fragmentation", "pending_frees")
UNLOOKED = {
    "leak": "growth from step to step",
    "late_zero_grad": "memory kept too long",
    "drag": "memory kept too long",
}
RECORDED = [
    pytest.param(path, id=name, marks=pytest.mark.slow if name.startswith("whatif/") else ())
    for path in sorted(DATA.rglob("*.pickle.xz"))
    for name in (str(path.relative_to(DATA)),)
]


@pytest.mark.parametrize("source", RECORDED)
def test_a_dropped_file_has_the_findings_of_the_command(chromium, page, tmp_path, source):
    path = tmp_path / "file.pickle"
    path.write_bytes(lzma.decompress(source.read_bytes()))
    drop(chromium, page, path)
    told = (
        "[...document.querySelectorAll('#findings article')].map(a => "
        "[a.querySelector('.word').textContent, a.querySelector('strong').textContent])"
    )
    report = neutracer.report(path)
    # The cause of a failure needs Python: the page says what was requested, and that it was not
    # looked at.
    wanted = [
        [str(one.severity), "" if one.kind == "out_of_memory" else one.message]
        for one in report.findings
        if one.kind in LOOKED
    ]
    found = (
        f"{told}.filter(([, said]) => !/not looked at|history begins late/.test(said)).map("
        "([word, said]) => [word, said.startsWith('out of memory: requested') ? '' : said])"
    )
    chromium.until(found, wanted)
    (unlooked,) = (said for _, said in chromium.value(told) if "not looked at" in said)
    for kind in {one.kind for one in report.findings}.difference(LOOKED):
        assert UNLOOKED[kind] in unlooked


@pytest.mark.parametrize("kind", [*SAID, "segments_missing"])
def test_what_cannot_be_is_said_in_the_same_words(core, kind, tmp_path):
    program = sound()
    {**SAID, "segments_missing": put("segments", [])}[kind](program)
    path = tmp_path / "broken.pickle"
    path.write_bytes(pickle.dumps(program, protocol=4))
    (finding,) = first_findings(neutracer.load(path))
    core.choose("#own", path)
    core.answer("openOwn()")
    core.answer("opened.ask('device', 0)")
    said = asked(core, "flaws")
    assert said == {"message": finding.message, "notes": [note.text for note in finding.evidence]}


def test_a_sound_file_has_no_flaws(core, tmp_path):
    path = tmp_path / "sound.pickle"
    path.write_bytes(pickle.dumps(sound(), protocol=4))
    core.choose("#own", path)
    core.answer("openOwn()")
    core.answer("opened.ask('device', 0)")
    assert asked(core, "flaws")["notes"] == []


def test_a_file_that_contradicts_itself_is_no_sound_one(chromium, page, tmp_path):
    """The first line is that of `report`."""
    program = neutracer.load(DATA / "frag_default.pickle").to_dict()
    events = program["device_traces"][0]
    at = next(i for i, event in enumerate(events) if event["action"] == "alloc")
    twice = {**program, "device_traces": [[*events[: at + 1], *events[at:]]]}
    for name, data in {"twice": twice, "none": {**program, "segments": []}}.items():
        path = tmp_path / f"{name}.pickle"
        path.write_bytes(pickle.dumps(data))
        (finding,) = first_findings(neutracer.load(path))
        drop(chromium, page, path)
        assert chromium.value(FINDINGS).startswith(f"severe\n{finding.message}\n")
        assert "history complete" not in chromium.value(FACTS)
    drop(chromium, page, plain("frag_default", tmp_path))
    assert "no allocator can" not in chromium.value(FINDINGS)
    assert "history complete" in chromium.value(FACTS)


def test_a_file_without_a_history_says_how_to_record_one(chromium, page, tmp_path):
    path = tmp_path / "now.pickle"
    path.write_bytes(pickle.dumps({**one_program(), "device_traces": [[]]}))
    drop(chromium, page, path)
    told = chromium.value("document.getElementById('findings').textContent")
    assert "no history was recorded" in told
    assert "_record_memory_history()" in told
    assert "nothing stands out" not in told
    figures = chromium.value("document.getElementById('figures').innerText")
    allocated = sum(segment["allocated_size"] for segment in one_program()["segments"])
    assert figures.startswith(f"allocated\n{format_bytes(allocated)}")
    assert "peak" not in figures


def test_a_rank_that_alone_ran_out_of_memory_is_marked_and_opened(chromium, page, tmp_path):
    paths = []
    for rank in range(4):
        program = one_program()
        if rank == 1:
            last = program["device_traces"][0][-1]
            oom = {**last, "action": "oom", "addr": 0, "size": 1 << 30, "device_free": 1 << 20}
            program["device_traces"][0].append({**oom, "time_us": last["time_us"] + 1})
        paths.append(tmp_path / f"rank{rank}.pickle")
        paths[-1].write_bytes(pickle.dumps(program))
    drop(chromium, page, *paths)
    rows = "[...document.querySelectorAll('#compare-tables tbody tr')]"
    chromium.until(f"{rows}.length", 4)
    told = chromium.value(f"{rows}.map((row) => row.innerText)")
    assert ["differs" in row for row in told] == [False, True, False, False]
    assert chromium.value("document.title") == "rank0.pickle"
    chromium.click("#compare-tables tbody tr:nth-child(2) button")
    chromium.until("document.title", "rank1.pickle")
    chromium.until("document.getElementById('overview').hidden", False)
    chromium.until(f"{FINDINGS}.includes('out of memory')")
    assert chromium.complaints() == []


def test_reading_a_file_moves_nothing(chromium, page, tmp_path, long_trace):
    """Another one is looked at meanwhile."""
    drop(chromium, page, plain("frag_default", tmp_path))
    # What is shown of a file comes once it has been read, and may need more lines than the other.
    chromium.value(
        "globalThis.tops = new Set(); globalThis.read = 0; const look = () => {"
        " const reads = !document.getElementById('progress').hidden; read += reads;"
        " const { top } = document.getElementById('columns').getBoundingClientRect();"
        " if (reads || !read) tops.add(top);"
        " requestAnimationFrame(look); }; look()"
    )
    chromium.choose("#pick", long_trace)
    chromium.until("document.getElementById('progress').innerText.includes('long.pickle')")
    chromium.until("document.getElementById('progress').hidden", True)
    assert chromium.value("read") > 0
    assert chromium.value("tops.size") == 1


FILES = "[...document.getElementById('file').options].map((option) => option.textContent)"


def test_files_of_one_name_are_told_apart_and_closed(chromium, page, tmp_path):
    """As of ranks that wrote snapshot.pickle into a folder each."""
    paths = [tmp_path / f"rank{rank}" / "snapshot.pickle" for rank in range(3)]
    for path, program in zip(paths, (one_program(), one_program(), two_devices()), strict=True):
        path.parent.mkdir()
        path.write_bytes(pickle.dumps(program))
    drop(chromium, page, *paths)
    names = ["snapshot.pickle", "snapshot.pickle (2)", "snapshot.pickle (3)"]
    assert chromium.value(FILES) == names
    words = "document.getElementById('compare-words').innerText"
    chromium.until(f"{words}.includes('3 files')")
    choose_at_once(chromium, "file", "2")
    chromium.until("document.title", names[2])
    # Without the third the first two are compared again, on one axis.
    chromium.click("#close")
    chromium.until(FILES, names[:2])
    chromium.until("document.title", names[1])
    chromium.until(f"{words}.includes('2 files')")
    assert chromium.value("document.getElementById('device-choice').hidden")
    chromium.click("#close")
    chromium.until("document.title", names[0])
    chromium.until("document.getElementById('file-choice').hidden", True)
    chromium.until(f"{words}.includes('two moments')")
    assert chromium.value(TROUBLE) == ""
    assert chromium.complaints() == []


def test_only_files_are_dropped(chromium, page, tmp_path):
    """A text that is dragged has no business with the page."""
    drop(chromium, page, plain("frag_default", tmp_path))
    text = {"items": [{"mimeType": "text/plain", "data": "x"}], "dragOperationsMask": 1}
    files = {"items": [], "files": [str(tmp_path / "frag_default.pickle")], "dragOperationsMask": 1}
    for data, hidden in ((text, True), (files, False)):
        chromium.call("Input.dispatchDragEvent", type="dragEnter", x=300, y=300, data=data)
        chromium.until("document.getElementById('drop').hidden", hidden)
        chromium.call("Input.dispatchDragEvent", type="drop", x=300, y=300, data=data)
    chromium.until("document.title", "frag_default.pickle (2)")
    chromium.until("document.getElementById('drop').hidden", True)
    chromium.until("document.documentElement.dataset.ready", "1")
    assert chromium.complaints() == []


def test_what_is_wrong_can_be_put_away(chromium, page, tmp_path):
    """And while it is there, the chart is all on the screen."""
    wrong = tmp_path / "wrong.pickle"
    wrong.write_bytes(b"<html>")
    drop(chromium, page, plain("frag_default", tmp_path))
    chromium.choose("#pick", wrong)
    chromium.until("document.getElementById('trouble').hidden", False)
    bottom = "document.getElementById('chart').getBoundingClientRect().bottom <= innerHeight"
    chromium.until(bottom)
    chromium.click("#trouble button")
    chromium.until("document.getElementById('trouble').hidden", True)
    chromium.until(bottom)
    assert chromium.value("document.title") == "frag_default.pickle"


@pytest.mark.parametrize("width", [1400, 1000, 420])
def test_names_of_files_leave_room_for_the_chart(chromium, page, tmp_path, width):
    paths = [tmp_path / f"rank{rank} {'x' * 150}.pickle" for rank in range(2)]
    for path in paths:
        path.write_bytes(pickle.dumps(one_program()))
    drop(chromium, page, *paths)
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    chromium.call("Emulation.setDeviceMetricsOverride", **size)
    chromium.calm()
    tall = "(name) => document.querySelector(name).getBoundingClientRect().height"
    assert chromium.value(f"({tall})('h1')") < 60
    assert chromium.value(f"({tall})('nav')") < (60 if width == 1400 else 160)
    assert chromium.value("document.getElementById('title').title") == paths[0].name
    assert chromium.value("document.documentElement.scrollWidth") <= width


def test_ranks_stand_side_by_side_and_the_odd_one_is_marked(chromium, page, tmp_path):
    paths = []
    for rank in range(4):
        program = one_program()
        if rank == 2:
            grown = program["device_traces"][0]
            for entry in grown:
                entry["size"] *= 4
            for segment in program["segments"]:
                for key in ("total_size", "allocated_size", "active_size", "requested_size"):
                    segment[key] = 4 * segment.get(key, 0)
                place = segment["address"]
                for block in segment["blocks"]:
                    block["size"] *= 4
                    block["requested_size"] = 4 * block.get("requested_size", 0)
                    block["address"] = place
                    place += block["size"]
        paths.append(tmp_path / f"rank{rank}.pickle")
        paths[-1].write_bytes(pickle.dumps(program))
    drop(chromium, page, *paths)
    rows = "[...document.querySelectorAll('#compare-tables tbody tr')].map((r) => r.innerText)"
    chromium.until(f"{rows}.length", 4)
    told = chromium.value(rows)
    assert ["differs" in row for row in told] == [False, False, True, False]
    peak = neutracer.load(paths[0]).timeline().peak("allocated").bytes
    assert format_bytes(peak) in told[0]
    assert not math.isnan(peak)
    # The map above the table has a row of some pixels a rank, the odd one the darkest.
    chromium.until("document.getElementById('compare-canvas').hidden", False)
    darkest = """(() => {
      const canvas = document.getElementById("compare-canvas");
      const scale = canvas.width / canvas.clientWidth;
      const [left, wide] = [190, 300].map((x) => Math.round(x * scale));
      const tall = Math.round(80 * scale);
      const { data } = canvas.getContext("2d").getImageData(left, 0, wide, tall);
      return [0, 1, 2, 3].map((row) => {
        const begin = 4 * wide * Math.round((22 + 14 * row + 6) * scale);
        let least = 765;
        for (let i = begin; i < begin + 4 * wide; i += 4) {
          least = Math.min(least, data[i] + data[i + 1] + data[i + 2]);
        }
        return least;
      });
    })()"""
    found = chromium.value(darkest)
    assert found[2] < min(found[0], found[1], found[3])
    assert chromium.complaints() == []


def test_two_files_and_two_moments_are_compared(chromium, page, tmp_path):
    first, second = plain("frag_default", tmp_path), plain("leak_list", tmp_path)
    drop(chromium, page, first, second)
    words = "document.getElementById('compare-tables').innerText"
    chromium.until(f"{words}.includes('At their peaks, by line')")
    assert "train.py:155" in chromium.value(words)
    chromium.until("document.getElementById('compare-canvas').hidden", False)
    chromium.value("location.hash = 'e=100'")
    chromium.until("document.getElementById('panel').innerText.includes('frozen')")
    chromium.call("Input.dispatchKeyEvent", type="keyDown", key="m", text="m")
    chromium.value("location.hash = 'tab=compare&e=2000'")
    chromium.until(f"{words}.includes('What changed, by line')")
    timeline = neutracer.load(first).timeline()
    held = {one.key[0].line: one.bytes for one in timeline.holders(2000, by="stack", limit=None)}
    assert held
    chromium.until(f"{words}.includes({format_bytes(max(held.values()))!r})")
    assert chromium.complaints() == []


TROUBLE = "document.getElementById('trouble').innerText"


def choose_at_once(browser, name, *values):
    """Somebody who makes up their mind anew before anything is there."""
    browser.value(
        f"(select => {json.dumps(values)}.forEach((value) => {{ select.value = value;"
        f" select.dispatchEvent(new Event('change')); }}))(document.getElementById('{name}'))"
    )


def test_files_dropped_while_others_open_come_behind_them(chromium, page, tmp_path):
    paths = [plain("frag_default", tmp_path)]
    for name, program in {"two": two_devices(), "one": one_program()}.items():
        paths.append(tmp_path / f"{name}.pickle")
        paths[-1].write_bytes(pickle.dumps(program))
    chromium.events.clear()
    chromium.open(page)
    chromium.until("document.documentElement.dataset.ready", "1")
    for path in paths:
        chromium.choose("#pick", path)
    names = "[...document.getElementById('file').options].map((option) => option.textContent)"
    chromium.until(names, [path.name for path in paths])
    chromium.until("document.title", "one.pickle")
    chromium.until("document.documentElement.dataset.ready", "1")
    assert chromium.value(TROUBLE) == ""
    # Of several choices in a row, the last one is shown.
    choose_at_once(chromium, "file", "0", "2", "1")
    chromium.until("document.title", "two.pickle")
    chromium.calm(400)
    assert chromium.value("[document.title, document.getElementById('file').value]") == [
        "two.pickle",
        "1",
    ]
    choose_at_once(chromium, "device", "2", "0", "2")
    chromium.until(f"{FACTS}.startsWith('cuda:2 ')")
    chromium.calm(400)
    assert chromium.value(FACTS).startswith("cuda:2 ")
    assert chromium.value("document.getElementById('device').value") == "2"
    assert chromium.value(TROUBLE) == ""
    assert chromium.complaints() == []


@pytest.mark.parametrize("count", [2, 3])
def test_long_names_fit_on_a_phone(chromium, page, tmp_path, count):
    paths = [tmp_path / f"rank{rank}_{'x' * 90}.pickle" for rank in range(count)]
    for path in paths:
        path.write_bytes(pickle.dumps(one_program()))
    drop(chromium, page, *paths)
    size = {"width": 420, "height": 800, "deviceScaleFactor": 1, "mobile": True}
    chromium.call("Emulation.setDeviceMetricsOverride", **size)
    chromium.until("document.querySelectorAll('#compare-tables tbody tr').length > 1")
    chromium.calm()
    assert chromium.value("document.documentElement.scrollWidth") == 420
    # The names are read in some lines, and not letter by letter.
    name = "document.querySelector('#compare-tables td').getBoundingClientRect().width"
    assert chromium.value(name) > 90


def test_marked_moment_belongs_to_its_device(chromium, page, tmp_path):
    path = tmp_path / "two.pickle"
    path.write_bytes(pickle.dumps(two_devices()))
    drop(chromium, page, path)
    chromium.value("location.hash = 'tab=compare&e=1'")
    chromium.until("document.getElementById('frozen').hidden", False)
    chromium.calm()
    chromium.click("#compare-moments button")
    words = "document.getElementById('compare-moments').innerText"
    chromium.until(f"{words}.includes('marked: event 1')")
    choose_at_once(chromium, "device", "2")
    chromium.until(f"{words}.includes('Mark a moment')")
    choose_at_once(chromium, "device", "0")
    chromium.until(f"{words}.includes('marked: event 1')")
    assert chromium.complaints() == []


def test_axes_and_files_may_change_while_they_are_drawn(chromium, page, tmp_path):
    """What is asked of other axes than the core has by then is nobody's complaint."""
    second = tmp_path / "two.pickle"
    second.write_bytes(pickle.dumps(two_devices()))
    chromium.events.clear()
    drop(chromium, page, plain("frag_default", tmp_path), second)
    step = """(async () => {
      const press = (key) => document.dispatchEvent(new KeyboardEvent("keydown", { key }));
      const choose = (value) => {
        const select = document.getElementById("file");
        select.value = value;
        select.dispatchEvent(new Event("change"));
      };
      const rest = (time) => new Promise((done) => setTimeout(done, time));
      for (const tab of ["7", "1", "6", "7"]) {
        for (const time of [0, 5, 20, 60]) {
          press(tab);
          await rest(time);
          press("t");
          document.querySelector("[data-zoom=whole]").click();
          await rest(time);
          choose(String((time / 5) % 2));
          press("t");
          await rest(time);
          press("7");
        }
      }
      choose("0");
    })()"""
    chromium.answer(step)
    chromium.until("document.title", "frag_default.pickle")
    chromium.until("document.getElementById('compare-tables').innerText.includes('Files')")
    chromium.calm(500)
    assert chromium.value(TROUBLE) == ""
    assert chromium.complaints() == []


def test_rows_of_the_trace_before_choose_nothing_that_is_not_there(chromium, page, tmp_path):
    second = tmp_path / "two.pickle"
    second.write_bytes(pickle.dumps(two_devices()))
    chromium.events.clear()
    drop(chromium, page, plain("frag_default", tmp_path), second)
    chromium.click("[data-tab=events]")
    chromium.until("document.querySelectorAll('#event-table .body .row').length > 10")
    chromium.value(
        "document.querySelector('#event-table .scroll').dispatchEvent("
        "new KeyboardEvent('keydown', { key: 'End' }))"
    )
    last = "document.querySelector('#event-table .body .row:last-child')"
    chromium.until(f"{last}.innerText.startsWith('2,374')")
    choose_at_once(chromium, "file", "1")
    # Until the new rows are there, each click is one on an old row.
    clicks = (
        "(async () => { for (let k = 0; k < 300; k++) {"
        f" {last}?.click(); await new Promise((done) => setTimeout(done, 1)); }} }})()"
    )
    chromium.answer(clicks)
    chromium.until("document.getElementById('event-words').innerText", "5 events")
    chromium.calm(400)
    assert chromium.value(TROUBLE) == ""
    assert chromium.complaints() == []


def test_device_for_which_there_is_no_memory_leaves_the_other(chromium, page, long_trace, tmp_path):
    program = one_program()
    with long_trace.open("rb") as file:
        program["device_traces"] += pickle.load(file)["device_traces"]
    path = tmp_path / "both.pickle"
    path.write_bytes(pickle.dumps(program))
    chromium.events.clear()
    chromium.open(page)
    chromium.until("document.documentElement.dataset.ready", "1")
    chromium.value(LESS_MEMORY % 9_000_000)
    chromium.choose("#pick", path)
    chromium.until("document.title", "both.pickle")
    chromium.until("document.documentElement.dataset.ready", "1")
    choose_at_once(chromium, "device", "1")
    chromium.until(f"{TROUBLE}.includes('memory')")
    chromium.until("document.getElementById('device').value", "0")
    assert chromium.value(FACTS).startswith("cuda:0 ")
    chromium.click("[data-tab=allocations]")
    chromium.until("document.getElementById('allocation-words').innerText", "2 allocations")
    assert chromium.complaints() == []


def test_frames_may_have_the_names_of_javascript(chromium, page, tmp_path):
    program = one_program()
    names = ("constructor", "toString", "__proto__", "hasOwnProperty", "valueOf")
    for name, entry in zip(names, program["device_traces"][0], strict=True):
        entry["frames"] = [{"name": name, "filename": "constructor", "line": 3}]
    path = tmp_path / "names.pickle"
    path.write_bytes(pickle.dumps(program))
    drop(chromium, page, path)
    assert chromium.value(TROUBLE) == ""
    chromium.until("document.getElementById('panel').innerText.includes('toString constructor:3')")


def test_stacks_of_any_depth_have_a_picture(chromium, page, tmp_path):
    program = one_program()
    frames = [{"name": f"f{depth}", "filename": "m.py", "line": depth} for depth in range(9000)]
    for entry in program["device_traces"][0]:
        entry["frames"] = frames
    path = tmp_path / "deep.pickle"
    path.write_bytes(pickle.dumps(program))
    drop(chromium, page, path)
    chromium.click("[data-tab=stacks]")
    chromium.until("document.getElementById('flame').children.length", 1002)
    assert chromium.value("document.getElementById('flame').lastChild.innerText").startswith(
        "deeper calls"
    )
    assert chromium.value(TROUBLE) == ""


def test_capacities_that_no_device_has_are_refused(chromium, page, tmp_path):
    drop(chromium, page, plain("frag_default", tmp_path))
    chromium.click("[data-tab=settings]")
    words = "document.getElementById('what-if-words').innerText"
    chromium.until(f"{words}.includes('default settings')")
    for size, said in {
        "99999999999TiB": "a capacity must be above 0 bytes and at most 2^60",
        "0": "a capacity must be above 0 bytes and at most 2^60",
        "1,5GiB": "1,5GiB is no size: 24GiB, 80000MiB",
    }.items():
        chromium.value(
            f"(box => {{ box.value = {json.dumps(size)}; box.dispatchEvent(new Event('input')); }})"
            "(document.getElementById('capacity'))"
        )
        chromium.until(words, said)


def test_pools_are_those_of_the_moment_however_often_an_address_comes(core, tmp_path):
    trace = []
    for life in range(60_000):
        segment, block = ((2 << 20, 1 << 20), (20 << 20, 4 << 20))[life % 3 == 0]
        trace += [
            {"action": action, "addr": BASE, "size": size, "stream": 0, "frames": []}
            for action, size in (
                ("segment_alloc", segment),
                ("alloc", block),
                ("free_requested", block),
                ("free_completed", block),
                ("segment_free", segment),
            )
        ]
    path = tmp_path / "lives.pickle"
    path.write_bytes(pickle.dumps({"segments": [], "device_traces": [trace]}))
    core.choose("#own", path)
    core.answer("openOwn()")
    core.answer("opened.ask('device', 0)")
    seconds = (
        "(async () => { const start = performance.now(); const found = await opened.ask('find',"
        " { list: 'allocations', query: 'pool:%s', column: 'size', down: true });"
        " return [found.found, (performance.now() - start) / 1000]; })()"
    )
    for pool, count in {"small": 40_000, "large": 20_000, "unknown": 0}.items():
        found, took = core.answer(seconds % pool)
        assert found == count
        assert took < 5


def test_backward_blocks_have_the_line_of_their_forward(core, tmp_path):
    """Also through the columns that a page of a file holds."""
    program = one_program()
    forward = ['  File "/srv/model.py", line 12, in forward\n    return self.linear(x)\n']
    trace = next(trace for trace in program["device_traces"] if trace)
    for entry in trace:
        if entry["action"] == "alloc":
            entry.update(frames=[], forward_frames=forward)
    snap = neutracer.load(pickle.dumps(program))
    packed = tmp_path / "packed"
    packed.write_bytes(gzip.compress(packed_columns(snap)))
    core.choose("#own", packed)
    core.answer("openOwn({ isOwn: true })")
    assert saved(core) == snap.to_bytes()
    (device,) = (number for number in snap.devices if snap.trace_length(number))
    check_device(core, snap, device)
    event = snap.timeline(device).peak("allocated").event
    places = asked(core, "moment", event=event, all=True)["places"]
    assert [entry["name"] for entry in places] == ["backward of forward model.py:12"]


def test_generated_code_has_the_models_line(core, tmp_path):
    program = one_program()
    trace = '  File "/srv/model.py", line 12, in forward\n    return self.linear(x)\n'
    generated = {"name": "forward", "filename": "/tmp/fx_generated_a.py", "line": 7}
    fx = {"fx_node_op": "call_function", "fx_node_name": "addmm", "fx_original_trace": trace}
    for entry in next(trace for trace in program["device_traces"] if trace):
        if entry["action"] == "alloc":
            entry["frames"] = [{**generated, **fx}]
    snap = neutracer.load(pickle.dumps(program))
    (tmp_path / "packed").write_bytes(gzip.compress(packed_columns(snap)))
    core.choose("#own", tmp_path / "packed")
    core.answer("openOwn({ isOwn: true })")
    assert saved(core) == snap.to_bytes()
    (device,) = (number for number in snap.devices if snap.trace_length(number))
    check_device(core, snap, device)
    event = snap.timeline(device).peak("allocated").event
    (place,) = asked(core, "moment", event=event, all=True)["places"]
    assert place["name"] == "addmm in forward model.py:12"
    frames = asked(core, "block", row=0)["frames"]
    assert [frame[0] for frame in frames] == ["forward", "addmm: forward"]
    assert frames[1][1:3] == ["/srv/model.py", 12]


def with_pinned_memory():
    """A small program of a device, and the pinned memory of a real recording."""
    recorded = pickle.loads((DATA / "pinned/loader_2_15.pickle").read_bytes())
    return {**one_program(), **{key: recorded[key] for key in ("host_segments", "host_traces")}}


@pytest.mark.parametrize("is_own", [False, True])
def test_pinned_memory_is_beside_the_devices(core, tmp_path, is_own):
    snap = neutracer.load(pickle.dumps(with_pinned_memory()))
    data = gzip.compress(packed_columns(snap)) if is_own else snap.to_bytes()
    (tmp_path / "both").write_bytes(data)
    core.choose("#own", tmp_path / "both")
    about = core.answer(f"openOwn({{ isOwn: {json.dumps(is_own)} }})")
    assert about["devices"] == [0, HOST_NUMBER]
    check_device(core, snap, 0)
    check_device(core, snap.host, 0, HOST_NUMBER)
    assert saved(core) == snap.to_bytes()
    check_device(core, snap, 0)


def test_pinned_memory_has_a_view_of_its_own(chromium, page, tmp_path):
    program = with_pinned_memory()
    (tmp_path / "both.pickle").write_bytes(pickle.dumps(program))
    facts = "document.getElementById('facts').innerText"
    drop(chromium, page, tmp_path / "both.pickle")
    chromium.value(
        f"(e => {{ e.value = '{HOST_NUMBER}'; e.dispatchEvent(new Event('change')); }})"
        "(document.getElementById('device'))"
    )
    chromium.until(f"{facts}.startsWith('pinned host memory · 196 events')")
    chromium.until("document.getElementById('panel').innerText.includes('keep_result')")
    chromium.click("[data-tab=settings]")
    chromium.until("document.getElementById('what-if-words').innerText.includes('pinned memory')")
    assert chromium.value("document.querySelector('.pair').hidden")
    (tmp_path / "host.pickle").write_bytes(
        pickle.dumps({**program, "segments": [], "device_traces": [[]]})
    )
    # Also where no device has anything.
    for written in (
        view(tmp_path / "host.pickle", tmp_path / "own.html"),
        view(tmp_path / "both.pickle", tmp_path / "own.html"),
    ):
        chromium.open(written)
        chromium.until("document.documentElement.dataset.ready", "1")
        names = "[...document.getElementById('device').options].map(o => o.textContent)"
        assert chromium.value(names)[-1] == "pinned host memory"
    assert chromium.complaints() == []


def test_outcomes_follow_theme_and_width(chromium, page, tmp_path):
    """The two pictures of Settings are drawn anew for other colours and another width."""
    drop(chromium, page, plain("frag_default", tmp_path))
    chromium.click("[data-tab=settings]")
    chromium.until("Boolean(document.getElementById('what-if-words').dataset.peak)")
    pen = "document.getElementById('outcome-canvas').getContext('2d')"
    corner = f"[...{pen}.getImageData(2, 2, 1, 1).data]"
    dark = "(e => { e.value = 'dark'; e.dispatchEvent(new Event('change')); })"
    chromium.value(f"{dark}(document.getElementById('theme'))")
    chromium.until(f"Math.max(...{corner}.slice(0, 3)) < 80")
    size = {"width": 600, "height": 800, "deviceScaleFactor": 1, "mobile": False}
    chromium.call("Emulation.setDeviceMetricsOverride", **size)
    chromium.until("document.documentElement.scrollWidth <= innerWidth")
    chromium.until("document.getElementById('outcome-canvas').width <= 600")


def test_failures_say_why(chromium, page, tmp_path):
    """The first finding of a file that ran out of memory has the figures of that moment."""
    path = plain("frag_default", tmp_path)
    drop(chromium, page, path)
    timeline = neutracer.load(path).timeline()
    event = next(i for i, e in enumerate(timeline.events) if e.action == "oom")
    chromium.until("document.querySelector('#findings .notes').childElementCount", 3)
    said = chromium.value("document.querySelector('#findings article').textContent")
    holes = [b.size for b in timeline.at(event).blocks if b.state == "inactive"]
    assert "what refused was a limit of the process" in said
    assert f"{format_bytes(timeline.allocated[event])} were allocated then" in said
    assert f"{format_bytes(sum(holes))} of the {format_bytes(timeline.reserved[event])}" in said
    assert f"the largest {format_bytes(max(holes))}" in said
    assert "that is fragmentation" in said
    # The steps before the one that failed.
    begin = max(step.end for step in timeline.steps if step.end <= event)
    most = max(timeline.allocated[event] for event in range(begin))
    needed = format_bytes(timeline.allocated[event] + timeline.events[event].size)
    assert f"{needed} and maybe more, where they had {format_bytes(most)}" in said


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("cache_of_a_mempool", "belongs to another pool or stream"),
        ("hole_of_a_side_stream", "belongs to another pool or stream"),
        ("pool_of_a_captured_graph", "belongs to another pool or stream"),
        ("small_blocks_of_a_mempool", "could not be given back"),
        ("pages_kept_by_small_blocks", "that is fragmentation"),
    ],
)
def test_what_others_may_not_use_is_no_fragmentation(chromium, page, tmp_path, name, words):
    path = tmp_path / f"{name}.pickle"
    path.write_bytes(lzma.decompress((DATA / "oom" / f"{name}.pickle.xz").read_bytes()))
    drop(chromium, page, path)
    chromium.until("document.querySelectorAll('#findings .lead').length", 2)
    said = chromium.value("document.querySelector('#findings article').textContent")
    assert words in said
    assert ("that is fragmentation" in said) == (words == "that is fragmentation")
    kinds = [verdict.kind for verdict in neutracer.explain(path).verdicts]
    assert ("fragmentation" in kinds) == (words == "that is fragmentation")


def test_exports_give_files(chromium, page, tmp_path):
    drop(chromium, page, plain("frag_default", tmp_path))
    out = tmp_path / "out"
    out.mkdir()
    chromium.call("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(out))
    for button, name in (("#save-png", "png"), ("#save-csv", "csv"), ("#save", "pickle")):
        chromium.click(button)
        wait_for(chromium, out / f"frag_default.{name}")
    # The chart, and above it what it is of and what its colours mean.
    png = (out / "frag_default.png").read_bytes()
    assert png[:4] == b"\x89PNG"
    wide, tall = struct.unpack(">II", png[16:24])
    base = "[document.getElementById('base')].map(({ width, height }) => [width, height])[0]"
    assert chromium.value(base)[0] == wide
    assert 50 < tall - chromium.value(base)[1] < 100
    lines = (out / "frag_default.csv").read_text().splitlines()
    assert lines[0].startswith("size_bytes,requested_bytes,address")
    assert len(lines) == 817
    again = neutracer.load(out / "frag_default.pickle")
    assert again.to_bytes() == neutracer.load(DATA / "frag_default.pickle").to_bytes()


def test_tables_of_any_length_are_given_whole(core, long_trace):
    """In pieces of 50,000 lines."""
    core.choose("#own", long_trace)
    core.answer("openOwn()")
    core.answer("opened.ask('device', 0)")
    core.answer("opened.ask('settle')")
    asked(core, "axes", byTime=False, raw=False)
    text = core.answer("opened.ask('csv', { x0: 0, x1: 1e9 }).then(({ blob }) => blob.text())")
    head, *rows = text.removesuffix("\n").split("\n")
    assert head.startswith("size_bytes,")
    assert [int(row.split(",")[4]) for row in rows] == list(range(0, 150_000, 3))


def wait_for(browser, path: Path) -> None:
    for _ in range(200):
        if path.exists() and path.stat().st_size:
            return
        browser.calm(50)
    raise AssertionError(f"{path.name} did not come")
