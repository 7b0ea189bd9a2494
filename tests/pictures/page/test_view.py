# SPDX-License-Identifier: Apache-2.0
"""The page of a snapshot as text: what is packed into it, how large it is, what it allows."""

from __future__ import annotations

import base64
import itertools
import math
import re
import zlib
from array import array
from itertools import accumulate
from pathlib import Path

import pytest
from hostile_names import HOSTILE_NAMES
from hypothesis import given
from hypothesis import strategies as st
from places import TESTS
from small_snapshots import one_program, two_devices

import neutracer
from neutracer._native import core
from neutracer.cli.main import main
from neutracer.pictures.page import bundle as view_bundle
from neutracer.pictures.page.columns import Packer, unpack
from neutracer.pictures.page.pack import MOST_ALLOCATIONS, pack
from neutracer.pictures.page.view import _shares, view, view_html

DATA = TESTS / "data"
SNAPSHOTS = sorted(path.name.partition(".")[0] for path in DATA.glob("*.pickle.xz"))


def loaded(name: str) -> neutracer.Snapshot:
    return neutracer.load(DATA / f"{name}.pickle.xz")


def packed(snap: neutracer.Snapshot, most: int = MOST_ALLOCATIONS):
    return unpack(pack(snap, snap.timeline(), {}, most))


def series(columns, what, events, start):
    """What the page reckons a series to be."""
    if f"series.{what}" in columns:
        return columns[f"series.{what}"]
    kind = "alloc" if what == "allocated" else "segment"
    steps = [0] * events
    for size, made, freed in zip(
        columns[f"{kind}.size"], columns[f"{kind}.made"], columns[f"{kind}.freed"], strict=True
    ):
        if made >= 0:
            steps[made] += size
        if freed >= 0:
            steps[freed] -= size
    return list(accumulate(steps, initial=start))[1:]


@given(
    st.lists(st.integers(-(1 << 51), 1 << 51) | st.integers(0, 300), max_size=60),
    st.booleans(),
    st.booleans(),
)
def test_columns_come_back_as_packed(values, delta, grained):
    packer = Packer()
    packer.add("first", values, delta=delta, grained=grained)
    packer.add("second", [512 * (value >> 12) for value in values[:3]], grained=True)
    header, columns = unpack(packer.packed({"title": "\ud83d </script>"}))
    assert header == {"title": "\ud83d </script>"}
    assert columns == {"first": values, "second": [512 * (value >> 12) for value in values[:3]]}


def test_columns_refuse_what_javascript_rounds():
    for values, delta in (([1 << 53], False), ([-(1 << 52), 1 << 52], True)):
        with pytest.raises(OverflowError, match="53 bits"):
            Packer().add("address", values, delta=delta)


@pytest.mark.parametrize("name", SNAPSHOTS)
def test_payload_is_the_whole_timeline(name):
    snap = loaded(name)
    timeline = snap.timeline()
    header, columns = packed(snap)
    base = int(header["base"], 16)
    table = timeline.allocations
    assert [base + address for address in columns["alloc.address"]] == list(table["address"])
    assert columns["alloc.size"] == list(table["size"])
    asked = map(int.__sub__, columns["alloc.size"], columns["alloc.slack"])
    assert list(asked) == list(table["requested_size"])
    assert columns["alloc.made"] == list(table["alloc_event"])
    assert columns["alloc.freed"] == list(table["free_event"])
    done = map(int.__add__, columns["alloc.freed"], columns["alloc.waited"])
    assert list(done) == list(table["completed_event"])
    assert columns["segment.size"] == list(timeline.segments["size"])
    actions = [header["actions"][code] for code in columns["event.action"]]
    assert actions == timeline.events["action"]
    if "event.time" in columns:
        times = [header["first_us"] + time for time in columns["event.time"]]
        assert times == list(timeline.time_us)
    starts = (columns["start.allocated"][0], columns["start.reserved"][0])
    reckoned = [
        series(columns, what, len(timeline), start)
        for what, start in zip(("allocated", "reserved"), starts, strict=True)
    ]
    assert reckoned == [timeline.allocated.tolist(), timeline.reserved.tolist()]


@pytest.mark.parametrize("name", ["train_resnet_healthy", "cpp_stacks"])
def test_stacks_are_spelt_as_in_the_file(name):
    snap = loaded(name)
    header, columns = packed(snap)
    for row in range(0, len(columns["alloc.stack"]), 97):
        node = columns["stack.node"][columns["alloc.stack"][row]]
        frames = []
        while node:
            frames.append(tuple(header["frames"][columns["node.frame"][node]]))
            node = columns["node.parent"][node]
        told = [(f.name, f.filename, f.line) for f in snap.timeline().allocations[row].stack]
        assert [frame[2] for frame in frames] == [frame[2] for frame in told]
        assert all(
            a[0] == b[0][: len(a[0])] or "…" in a[0] for a, b in zip(frames, told, strict=True)
        )


def test_long_traces_keep_what_matters_most():
    snap = loaded("train_resnet_healthy")
    timeline = snap.timeline()
    header, columns = packed(snap, most=200)
    numbers = columns["event.number"]
    assert header["allocations"] == len(timeline.allocations) > 200
    assert len(columns["alloc.size"]) == 200
    # Totals after each kept event are exact, and no peak is lost.
    assert columns["series.allocated"] == [timeline.allocated[event] for event in numbers]
    assert columns["series.reserved"] == [timeline.reserved[event] for event in numbers]
    assert max(columns["series.allocated"]) == timeline.peak("allocated").bytes
    assert numbers[header["peak_event"]] == timeline.peak("allocated").event
    # A kept row speaks of the events of its own allocation.
    known = {(row.alloc_event, row.free_event, row.size) for row in timeline.allocations}
    for made, freed, size in zip(
        columns["alloc.made"], columns["alloc.freed"], columns["alloc.size"], strict=True
    ):
        born, gone = (numbers[e] if e >= 0 else e for e in (made, freed))
        assert (born, gone, size) in known
    # What is kept weighs more than all that is left out.
    weights = sorted(
        row.size * ((row.free_event if row.free_event != -1 else len(timeline)) - row.alloc_event)
        for row in timeline.allocations
    )
    assert sum(weights[-200:]) > 0.5 * sum(weights)


def policy_of(page: str) -> str:
    return re.search(r'Content-Security-Policy" content="([^"]*)"', page)[1]


def test_page_allows_only_its_own_parts():
    page = view_html(DATA / "frag_default.pickle.xz")
    policy = policy_of(page)
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert "unsafe" not in policy
    assert "http:" not in page
    assert "https:" not in page
    assert "//" not in re.sub(r'id="payload">[^<]*<', "", page).replace('":\\/\\/', "")
    assert page.count("<script") == 2


def test_page_states_findings_without_its_script():
    page = view_html(DATA / "frag_default.pickle.xz", title="my run")
    head = page[: page.index('id="payload"')]
    assert "<title>my run</title>" in head
    assert "out of memory: requested 1,579 MiB" in head
    assert 'data-event="2374"' in head
    assert "2,028 MiB" in head


@pytest.mark.parametrize("name", sorted(HOSTILE_NAMES))
def test_hostile_names_stay_in_the_payload(name):
    text = HOSTILE_NAMES[name]
    plain = one_program()
    for event in plain["device_traces"][0]:
        event["frames"] = [{"name": text, "filename": text + ".py", "line": 3}]
    page = view_html(neutracer.load(dumped(plain)), title=text)
    assert "<script>alert" not in page
    assert "<img" not in page
    assert 'onmouseover="' not in page
    payload = re.search(r'id="payload">([A-Za-z0-9+/=]*)</script>', page)[1]
    header, _ = unpack(base64.b64decode(payload))
    assert all(len(word) < 400 for frame in header["frames"] for word in frame[:2])


def dumped(plain) -> bytes:
    import pickle

    return pickle.dumps(plain)


def test_sizes_stay_small_for_bundled_files():
    sizes = {name: len(view_html(loaded(name))) for name in SNAPSHOTS}
    assert max(sizes.values()) < 200_000


def test_view_writes_the_file_whole(tmp_path):
    path = view(dumped(one_program()), tmp_path / "page.html")
    assert path == tmp_path / "page.html"
    assert path.read_text(encoding="utf-8").endswith("</body></html>\n")
    assert [entry.name for entry in tmp_path.iterdir()] == ["page.html"]
    with pytest.raises(ValueError, match="at least one"):
        view(dumped(one_program()), path, max_allocations=0)


def test_page_reads_what_lies_beside_its_file(tmp_path):
    name = "adam_above_the_cap"
    for ending in ("pickle.xz", "json"):
        (tmp_path / f"{name}.{ending}").write_bytes(
            (DATA / "oom" / f"{name}.{ending}").read_bytes()
        )
    path = tmp_path / f"{name}.pickle.xz"
    page = view_html(path)
    assert "is limited to 350 MiB" in page
    assert f"neutracer explain {path.name}" in page
    (tmp_path / f"{name}.json").unlink()
    # The limit itself stands in the JSON only; without it what failed bounds it.
    assert "is limited to about 320 MiB" in view_html(path)
    assert "neutracer explain" not in view_html(neutracer.load(path))


def test_memory_of_the_cpu_is_called_so():
    cpu = one_program()
    assert not neutracer.load(dumped(cpu)).is_cpu
    cpu["allocator_settings"]["exact_sizes"] = True
    snap = neutracer.load(dumped(cpu))
    assert snap.device_name(0) == "cpu"
    assert neutracer.fragmentation_report(snap).device == -1
    page = view_html(snap)
    assert "cuda:0" not in page
    assert "<span>cpu · " in page


def test_several_devices_share_one_page():
    page = view_html(dumped(two_devices()))
    assert page.count("<script") == 3
    found = re.findall(r'data-device="(\d+)" id="([^"]*)"', page)
    assert found == [("0", "payload"), ("2", "payload-2")]
    assert '<option value="2">cuda:2' in page
    alone = view_html(dumped(two_devices()), device=2)
    assert "cuda:2" in alone
    assert "cuda:0" not in alone
    assert alone.count("<script") == 2
    with pytest.raises(ValueError, match="one device: say which"):
        view_html(dumped(two_devices()), focus=(0, 1))


def test_devices_share_the_allocations_kept():
    assert _shares([5, 100, 40], 60) == [5, 28, 27]
    assert _shares([5, 6], 60) == [5, 6]
    assert _shares([9, 9, 9], 2) == [1, 1, 1]


def test_focus_keeps_what_lived_in_it():
    snap = loaded("train_resnet_healthy")
    timeline = snap.timeline()
    last = len(timeline) // 2
    first = last - 400
    header, columns = unpack(pack(snap, timeline, {}, 300, (first, last)))
    numbers = columns["event.number"]
    kept = {
        (numbers[made] if made >= 0 else made, size)
        for made, size in zip(columns["alloc.made"], columns["alloc.size"], strict=True)
    }
    made = [row for row in timeline.allocations if first <= row.alloc_event <= last]
    assert len(made) > 100
    ends = [row.free_event % (1 << 32) for row in timeline.allocations]
    weights = [
        (row.size * (min(end, last + 1) - max(row.alloc_event, first)), row.alloc_event, row.size)
        for row, end in zip(timeline.allocations, ends, strict=True)
        if row.alloc_event <= last and end > first and row.free_event != -2
    ]
    heaviest = {(made, size) for _, made, size in sorted(weights)[-300:]}
    assert len(heaviest - kept) <= 5
    assert header["focus"][0] <= header["focus"][1]
    page = view_html(snap, focus=(first, 10**9), max_allocations=50)
    assert "payload" in page
    with pytest.raises(ValueError, match="no event in"):
        view_html(snap, focus=(len(timeline), len(timeline) + 5))


def painted(timeline, skipped, width, height):
    """The coarse picture, cell by cell from the layouts' rules."""
    raster = core.Raster(timeline.native, False)
    states, top = raster.extent()
    cells = [[0] * width for _ in range(height)]
    for row, block in enumerate(timeline.allocations):
        if row in skipped:
            continue
        done = block.completed_event
        begin, end = block.alloc_event + 1, states - 1 if done == -1 else done + 1
        if done == -2:
            continue
        low = next(
            (
                position + block.address - address
                for address, size, position in raster.ranges()
                if address <= block.address < address + size
            ),
            None,
        )
        if begin >= end or low is None:
            continue
        kind = 1 + int(4 * math.log2(block.size) + 1e-9)
        for column in range(begin * width // states, (end - 1) * width // states + 1):
            for line in range(low * height // top, (low + block.size - 1) * height // top + 1):
                cells[line][column] = max(cells[line][column], kind)
    return bytes(itertools.chain.from_iterable(cells))


def test_coarse_picture_has_what_is_left_out():
    timeline = loaded("frag_default").timeline()
    raster = core.Raster(timeline.native, False)
    for skipped in ([], list(range(0, len(timeline.allocations), 3))):
        told = raster.paint(array("I", skipped), 64, 32)
        assert told == painted(timeline, set(skipped), 64, 32)
    with pytest.raises(ValueError, match="pixels a side"):
        raster.paint(b"", 0, 5)
    _, columns = packed(loaded("frag_default"), most=100)
    assert any(columns["coarse"])
    assert "coarse" not in packed(loaded("frag_default"))[1]


def test_snapshots_without_history_have_pages():
    plain = one_program()
    plain["device_traces"] = [[]]
    page = view_html(dumped(plain))
    assert "no history" in page
    header, columns = unpack(base64.b64decode(re.search(r'id="payload">([^<]*)<', page)[1]))
    assert header["events"] == 0
    assert columns["start.allocated"] == [4 << 20]


def test_command_line_writes_the_page(tmp_path, capsys):
    out = tmp_path / "page.html"
    assert main(["view", str(DATA / "frag_default.pickle.xz"), "-o", str(out)]) == 0
    assert capsys.readouterr().out == f"{out}\n"
    assert out.stat().st_size > 10_000
    assert main(["view", str(tmp_path / "nothing"), "-o", str(out)]) == 2
    assert "nothing: No such file" in capsys.readouterr().err


def test_bundle_has_every_module_once():
    script = view_bundle.bundle("main.js")
    modules = [path.stem for path in Path(view_bundle.__file__).parent.glob("*.js")]
    assert sorted(re.findall(r"^const module_(\w+)=", script, re.M)) == sorted(modules)
    assert "</" not in script
    assert not re.search(r"^(import|export) ", script, re.M)
    assert "innerHTML" not in script
    assert "eval(" not in script


def test_bundle_refuses_names_not_exported(monkeypatch):
    texts = {"a.js": 'import { b } from "./b.js";\n', "b.js": "export const c = 1;\n"}
    monkeypatch.setattr(view_bundle, "part", texts.__getitem__)
    with pytest.raises(ValueError, match=r"a.js imports b, not in b.js"):
        view_bundle.bundle.__wrapped__("a.js")
    texts["b.js"] = 'import { a } from "./a.js";\nexport const b = 1;\n'
    with pytest.raises(ValueError, match="circle"):
        view_bundle.bundle.__wrapped__("a.js")


def test_payload_is_one_zlib_stream():
    data = pack(loaded("frag_default"), loaded("frag_default").timeline(), {}, 1000)
    stream = zlib.decompressobj()
    assert int.from_bytes(stream.decompress(data)[:4], "little") > 100
    assert stream.eof
    assert stream.unused_data == b""


def test_unknown_actions_keep_their_names():
    plain = one_program()
    last = plain["device_traces"][0][-1]
    plain["device_traces"][0].append({**last, "action": "new\u202e<b>", "time_us": 2000})
    header, columns = packed(neutracer.load(dumped(plain)))
    assert header["actions"][columns["event.action"][-1]] == "new\\u202e<b>"


def test_late_gradients_stand_among_the_findings():
    page = view_html(DATA / "train_resnet_late_zero_grad.pickle.xz")
    head = page[: page.index('id="chart"')]
    assert "zero_grad" in head


def test_page_opens_on_the_device_that_failed():
    fails = two_devices()
    fails["device_traces"][2].append(
        {"action": "oom", "size": 1 << 30, "device_free": 5 << 20, "stream": 0, "time_us": 1050}
    )
    page = view_html(neutracer.load(dumped(fails)))
    payloads = [page.index(f'data-device="{number}"') for number in (2, 0)]
    assert payloads == sorted(payloads)
    option = page[page.index('<option value="2"') :].partition("</option>")[0]
    assert option.endswith(", out of memory")
    shown = page[page.index('<div data-of="2">') :]
    assert "out of memory: requested 1,024 MiB" in shown.partition("</div>")[0]
    assert page.index('<option value="0"') < page.index('<option value="2"')
