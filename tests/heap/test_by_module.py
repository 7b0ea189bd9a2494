# SPDX-License-Identifier: Apache-2.0
"""Reports of a recording that knows its modules."""

from __future__ import annotations

import pickle

from bundle import snapshot

import neutracer
from neutracer.overview import overview
from neutracer.render.text import render_text
from neutracer.trace.stacks import module_tables


def with_modules() -> neutracer.Snapshot:
    """A recording with `modules`, made of another: module by event's number."""
    source = snapshot("leak_list").to_dict()
    for number, entry in enumerate(source["device_traces"][0]):
        part = ("", "encoder.layer.0", "encoder.layer.1", None)[number % 4]
        if part is not None:
            entry["user_metadata"] = f"nn.Module: {part}"
    return neutracer.load(pickle.dumps(source))


def test_reports_have_a_table_of_modules() -> None:
    snap = with_modules()
    [device] = overview(snap).devices
    assert sum(device.modules.values()) == snap.timeline().peak().bytes
    assert "encoder.layer.0" in device.modules
    why = neutracer.explain(snap, request=1 << 40)
    for report in (overview(snap), why):
        assert "By module" in render_text(report.document())
    assert sum(why.modules.values()) == snap.timeline().allocated[-1]


def test_rows_add_up_and_the_rest_is_counted() -> None:
    held = {f"layer.{i}": 10 - i for i in range(9)}
    [table] = module_tables("By module", held)
    assert [row[-1] for row in table.rows] == [f"layer.{i}" for i in range(6)]
    assert table.notes == ("and 3 more modules",)
    assert module_tables("By module", {}) == ()


def test_no_table_where_no_module_is_known() -> None:
    report = overview(snapshot("frag_default"))
    assert report.devices[0].modules == {}
    assert "By module" not in render_text(report.document())
