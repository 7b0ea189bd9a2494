# SPDX-License-Identifier: Apache-2.0
"""The page of a snapshot as text: what is in it, how large it is, what it allows."""

from __future__ import annotations

import base64
import gzip
import json
import pickle
import re
from pathlib import Path

import pytest
from hostile_names import HOSTILE_NAMES
from places import TESTS
from small_snapshots import one_program, two_devices, used_program

import neutracer
from neutracer.cli.main import main
from neutracer.picture import view as view_bundle
from neutracer.picture.view import empty_page, packed_columns, view

DATA = TESTS / "data"
SNAPSHOTS = sorted(path.name.partition(".")[0] for path in DATA.glob("*.pickle.xz"))
ENTRIES = ("main.js", "worker.js")


def loaded(name: str) -> neutracer.Snapshot:
    return neutracer.load(DATA / f"{name}.pickle.xz")


def element(page: str, name: str) -> str:
    """What one of the page's data elements holds."""
    return re.search(rf'<script type="[^"]*" id="{name}">([^<]*)</script>', page)[1]


def told(page: str) -> dict:
    return json.loads(element(page, "told"))


def snapshot_in(page: str) -> bytes:
    return gzip.decompress(base64.b64decode(element(page, "snapshot")))


def dumped(plain) -> bytes:
    return pickle.dumps(plain)


@pytest.mark.parametrize("name", SNAPSHOTS)
def test_page_holds_the_whole_snapshot(name):
    snap = loaded(name)
    page = view(snap).html
    assert snapshot_in(page) == packed_columns(snap)
    # Far less than the file itself as text, where there is a trace to speak of.
    if len(snap.events) > 2000:
        file = base64.b64encode(gzip.compress(snap.to_bytes()))
        assert len(element(page, "snapshot")) < 0.45 * len(file)


def test_page_is_told_what_is_past_its_last_use(monkeypatch):
    assert told(view(dumped(used_program())).html)["idle"] == {"0": [[1, 3]]}
    assert told(view(dumped(one_program())).html)["idle"] == {}
    monkeypatch.setattr(view_bundle, "_MOST_IDLE", 0)
    assert told(view(dumped(used_program())).html)["idle"] == {}


def policy_of(page: str) -> str:
    return re.search(r'Content-Security-Policy" content="([^"]*)"', page)[1]


def test_page_allows_only_its_own_parts():
    page = view(DATA / "frag_default.pickle.xz").html
    policy = policy_of(page)
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert "unsafe-inline" not in policy
    assert "unsafe-eval" not in policy.replace("wasm-unsafe-eval", "")
    assert "worker-src blob: data:;" in policy
    text = re.sub(r'id="(snapshot|core)">[^<]*<', "", page)
    assert "http:" not in text
    assert "https:" not in text
    # Findings, snapshot, rules, worker, core, and the program.
    assert page.count("<script") == 6
    assert empty_page().html.count("<script") == 4


def test_page_states_findings_as_plain_data():
    page = view(DATA / "frag_default.pickle.xz").html
    assert "<title>frag_default.pickle.xz</title>" in page
    (device,) = told(page)["devices"]
    first = device["findings"][0]
    assert first["message"].startswith("out of memory: the process is limited to")
    assert first["event"] == 2374
    assert first["notes"]
    assert ["peak reserved", "2,028 MiB", "worst"] in device["figures"]


@pytest.mark.parametrize("name", sorted(HOSTILE_NAMES))
def test_hostile_names_stay_data(name):
    text = HOSTILE_NAMES[name]
    plain = one_program()
    for event in plain["device_traces"][0]:
        event["frames"] = [{"name": text, "filename": text + ".py", "line": 3}]
    snap = neutracer.load(dumped(plain))
    snap.origin = text
    page = view(snap).html
    assert "<script>alert" not in page
    assert "<img" not in page
    assert 'onmouseover="' not in page
    assert page.count("<script") == 6


def test_pages_stay_small():
    assert len(empty_page().html) < 430_000
    sizes = {name: len(view(loaded(name)).html) for name in SNAPSHOTS}
    assert max(sizes.values()) < 700_000


def test_view_writes_the_file_whole(tmp_path):
    path = view(dumped(one_program()), tmp_path / "page.html")
    assert path == tmp_path / "page.html"
    assert path.read_text(encoding="utf-8").endswith("</body></html>\n")
    assert [entry.name for entry in tmp_path.iterdir()] == ["page.html"]


def test_page_reads_what_lies_beside_its_file(tmp_path):
    name = "adam_above_the_cap"
    for ending in ("pickle.xz", "json"):
        (tmp_path / f"{name}.{ending}").write_bytes(
            (DATA / "oom" / f"{name}.{ending}").read_bytes()
        )
    path = tmp_path / f"{name}.pickle.xz"
    page = element(view(path).html, "told")
    assert "is limited to 350 MiB" in page
    assert f"neutracer explain {path.name}" in page
    (tmp_path / f"{name}.json").unlink()
    # The limit itself stands in the JSON only; without it what failed bounds it.
    assert "is limited to about 320 MiB" in element(view(path).html, "told")
    assert "neutracer explain" not in element(view(neutracer.load(path)).html, "told")


def test_memory_of_the_cpu_is_called_so():
    cpu = one_program()
    assert not neutracer.load(dumped(cpu)).is_cpu
    cpu["allocator_settings"]["exact_sizes"] = True
    snap = neutracer.load(dumped(cpu))
    assert snap.device_name(0) == "cpu"
    assert neutracer.fragmentation_report(snap).device == -1
    (device,) = told(view(snap).html)["devices"]
    assert device["facts"].startswith("cpu · ")


def test_several_devices_share_one_page():
    both = told(view(dumped(two_devices())).html)["devices"]
    assert [entry["device"] for entry in both] == [0, 2]
    assert both[1]["name"].startswith("cuda:2, ")
    (alone,) = told(view(dumped(two_devices()), device=2).html)["devices"]
    assert alone["device"] == 2
    with pytest.raises(ValueError, match="one device: say which"):
        view(dumped(two_devices()), focus=(0, 1))


def test_focus_is_kept_within_the_trace():
    snap = loaded("train_resnet_healthy")
    events = len(snap.timeline())
    assert told(view(snap, focus=(-5, 10**9)).html)["focus"] == [0, events - 1]
    assert told(view(snap, focus=(7, 9)).html)["focus"] == [7, 9]
    assert told(view(snap).html)["focus"] is None
    with pytest.raises(ValueError, match="no event in"):
        view(snap, focus=(events, events + 5))


def test_snapshots_without_history_have_pages():
    plain = one_program()
    plain["device_traces"] = [[]]
    (device,) = told(view(dumped(plain)).html)["devices"]
    assert "no history" in device["facts"]


def test_command_line_writes_the_page(tmp_path, capsys):
    out = tmp_path / "page.html"
    assert main(["view", str(DATA / "frag_default.pickle.xz"), "-o", str(out)]) == 0
    assert capsys.readouterr().out == f"{out}\n"
    assert out.stat().st_size > 10_000
    assert main(["view", str(tmp_path / "nothing"), "-o", str(out)]) == 2
    other = tmp_path / "page.json"
    assert main(["view", str(DATA / "frag_default.pickle.xz"), "-o", str(other)]) == 2
    assert not other.exists()
    assert "nothing: No such file" in capsys.readouterr().err


def test_command_line_writes_the_empty_page(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["view"]) == 0
    assert capsys.readouterr().out == "neutracer.html\n"
    assert (tmp_path / "neutracer.html").read_text(encoding="utf-8") == empty_page().html
    assert main(["view", "-o", str(tmp_path / "no" / "page.html")]) == 2
    assert "page.html: No such file" in capsys.readouterr().err


def test_bundles_have_every_module():
    scripts = {entry: view_bundle.bundle(entry) for entry in ENTRIES}
    modules = {path.stem for path in Path(view_bundle.__file__).with_name("page").glob("*.js")}
    found = set()
    for script in scripts.values():
        names = re.findall(r"^const module_(\w+)=", script, re.M)
        assert len(names) == len(set(names))
        found |= set(names)
        assert "</" not in script
        assert not re.search(r"^(import|export) ", script, re.M)
        assert "innerHTML" not in script
        assert "eval(" not in script
    assert found == modules


def test_bundle_refuses_names_not_exported(monkeypatch):
    texts = {"a.js": 'import { b } from "./b.js";\n', "b.js": "export const c = 1;\n"}
    monkeypatch.setattr(view_bundle, "part", texts.__getitem__)
    with pytest.raises(ValueError, match=r"a.js imports b, not in b.js"):
        view_bundle.bundle.__wrapped__("a.js")
    texts["b.js"] = 'import { a } from "./a.js";\nexport const b = 1;\n'
    with pytest.raises(ValueError, match="circle"):
        view_bundle.bundle.__wrapped__("a.js")


def test_bill_says_of_which_moment_it_is():
    failed, healthy = (
        told(view(DATA / f"{name}.pickle.xz").html)["devices"][0]["bill"]
        for name in ("frag_default", "train_resnet_healthy")
    )
    assert failed["when"] == "when memory ran out"
    assert healthy["when"] == "at the peak of allocated"
    for bill in (failed, healthy):
        assert sum(size for size, kind, _ in bill["parts"] if kind != "missing") == bill["limit"]
    # Nothing is of use to a request where none was made.
    assert not any("request" in words for _, _, words in healthy["parts"])


def test_late_gradients_stand_among_the_findings():
    page = view(DATA / "train_resnet_late_zero_grad.pickle.xz").html
    (device,) = told(page)["devices"]
    assert any("zero_grad" in json.dumps(finding) for finding in device["findings"])


def test_page_opens_on_the_device_that_failed():
    fails = two_devices()
    fails["device_traces"][2].append(
        {"action": "oom", "size": 1 << 30, "device_free": 5 << 20, "stream": 0, "time_us": 1050}
    )
    first, second = told(view(neutracer.load(dumped(fails))).html)["devices"]
    assert (first["device"], second["device"]) == (2, 0)
    assert first["name"].endswith(", out of memory")
    assert first["findings"][0]["message"].startswith(
        "out of memory: the program needs at least 1,003 MiB more"
    )
