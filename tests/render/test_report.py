# SPDX-License-Identifier: Apache-2.0
"""A report needs only fields and a document; text, HTML and JSON follow."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass

import pytest
from hostile_names import HOSTILE_NAMES

from neutracer.render.document import Document, Findings, Note, Place, Severity, Table
from neutracer.render.html import render_html
from neutracer.render.report import Finding, Report, dumps, ranked
from neutracer.render.text import render_text

MIB = 1 << 20


@dataclass(frozen=True, kw_only=True, repr=False)
class _Idle(Report):
    schema = "neutracer.idle/1"
    derived = ("share",)

    idle_bytes: int
    sizes: tuple[int, ...] = (1, 2)
    _source: object = None

    @property
    def share(self) -> float:
        return self.idle_bytes / (4 * MIB)

    def document(self) -> Document:
        rows = tuple((str(size),) for size in self.sizes)
        return Document("idle", blocks=(*self.finding_blocks(), Table("", rows)), more="see all")


FINDING = Finding(
    "idle",
    Severity.SERIOUS,
    3 * MIB,
    "3 MiB lie idle",
    evidence=(Note("kept by", Place("f", "a.py", 3)),),
    advice=(Note("let go", detail="frees 3 MiB"),),
    event=2048,
)


def _report(**fields: object) -> _Idle:
    return _Idle(**{"idle_bytes": 3 * MIB, "findings": (FINDING,), **fields})  # type: ignore[arg-type]


def test_text_and_html_come_from_the_document() -> None:
    report = _report()
    assert str(report) == render_text(report.document())
    assert report._repr_html_() == render_html(report.document())
    headline = " ".join(str(report).splitlines()[0].split())
    assert headline == "SERIOUS 3 MiB lie idle event 2,048"


def test_text_is_one_screen_at_most() -> None:
    lines = str(_report(sizes=tuple(range(100)))).splitlines()
    assert len(lines) == 40
    assert lines[-1].startswith("… ")
    assert lines[-1].endswith(" more lines: see all")


def test_plain_data_comes_from_the_fields() -> None:
    assert _report().to_dict() == {
        "schema": "neutracer.idle/1",
        "idle_bytes": 3 * MIB,
        "sizes": [1, 2],
        "share": 0.75,
        "findings": [
            {
                "kind": "idle",
                "severity": "serious",
                "bytes": 3 * MIB,
                "message": "3 MiB lie idle",
                "evidence": [
                    {
                        "text": "kept by",
                        "place": {
                            "function": "f",
                            "filename": "a.py",
                            "line": 3,
                            "package": "",
                            "caller": "",
                        },
                        "detail": "",
                    }
                ],
                "advice": [{"text": "let go", "place": None, "detail": "frees 3 MiB"}],
                "event": 2048,
            }
        ],
    }


def test_plain_data_begins_with_schema_and_ends_with_findings() -> None:
    plain = _report().to_dict()
    assert (next(iter(plain)), list(plain)[-1]) == ("schema", "findings")
    assert json.loads(dumps(_report())) == json.loads(json.dumps(plain))


def test_a_field_that_is_not_plain_is_named() -> None:
    with pytest.raises(TypeError, match="sizes: a set can't be written as JSON"):
        _report(sizes={1}).to_dict()


def test_reports_are_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        _report().idle_bytes = 1  # type: ignore[misc]


def test_a_report_must_say_how_it_reads() -> None:
    with pytest.raises(TypeError, match="abstract"):
        Report()  # type: ignore[abstract]


def test_findings_rank_by_severity_then_bytes() -> None:
    small = dataclasses.replace(FINDING, bytes=1)
    severe = dataclasses.replace(FINDING, severity=Severity.SEVERE, bytes=0)
    info = dataclasses.replace(FINDING, severity=Severity.INFO, bytes=1 << 40)
    assert ranked([info, small, FINDING, severe]) == (severe, FINDING, small, info)


def test_the_worst_finding_is_known() -> None:
    info = dataclasses.replace(FINDING, severity=Severity.INFO)
    assert _report(findings=(info, FINDING)).worst is Severity.SERIOUS
    assert _report(findings=()).worst is None


def test_a_report_without_findings_shows_none() -> None:
    report = _report(findings=())
    assert report.finding_blocks() == ()
    assert not any(isinstance(block, Findings) for block in report.document().blocks)
    assert report.to_dict()["findings"] == []


def test_repr_is_short() -> None:
    assert repr(_report()) == "<_Idle: 1 finding, worst serious>"
    assert repr(_report(findings=())) == "<_Idle: 0 findings>"


def test_a_finding_without_event_shows_none() -> None:
    assert dataclasses.replace(FINDING, event=None).entry().when == ""
    assert dataclasses.replace(FINDING, event=0).entry().when == "event 0"


@pytest.mark.parametrize("name", HOSTILE_NAMES.values(), ids=HOSTILE_NAMES)
def test_hostile_names_are_safe_everywhere(name: str) -> None:
    finding = Finding(name, Severity.INFO, 1, name, (Note(name, Place(name, name, 1)),))
    report = _report(findings=(finding,))
    assert all(line.isprintable() for line in str(report).split("\n"))
    assert "<script" not in report._repr_html_()
    assert "<img" not in report._repr_html_()
    assert json.loads(dumps(report))["findings"][0]["message"] == name
    assert repr(report).isprintable()


def test_finding_before_the_trace_has_no_number_of_an_event() -> None:
    finding = Finding("peak", Severity.INFO, 0, "a peak", event=-1)
    assert "-1" not in str(finding.entry())
    assert "before the trace" in str(finding.entry())
