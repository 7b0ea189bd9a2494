# SPDX-License-Identifier: Apache-2.0
"""What is known of an out-of-memory error beside its snapshot."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from bundle import DATA

import neutracer
from neutracer.oom.facts import OomFacts, facts_of
from neutracer.render.document import Severity
from neutracer.trace.beside import beside_file, sidecar_paths

MIB, GIB = 1 << 20, 1 << 30

NEW = (
    "CUDA out of memory. Tried to allocate 230.00 MiB. GPU 1 has a total capacity of 139.80 GiB of "
    "which 130.25 GiB is free. Process 1092 has 1.50 GiB memory in use. Including non-PyTorch "
    "memory, this process has 3.25 GiB memory in use. Process 7 has 512.00 MiB memory in use. "
    "2.50 GiB allowed; Of the allocated memory 2.19 GiB is allocated by PyTorch"
)
OLD = (
    "CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 10.75 GiB total capacity; 9.71 GiB "
    "already allocated; 5.50 MiB free; 9.83 GiB reserved in total by PyTorch)"
)


def test_new_message_is_read_whole() -> None:
    facts = OomFacts.from_message(NEW)
    assert facts.device == 1
    assert facts.segment_bytes == 230 * MIB
    assert facts.device_free_bytes == 130.25 * GIB
    assert facts.process_bytes == 3.25 * GIB
    assert facts.others_bytes == 2 * GIB
    assert facts.limit_bytes == 2.5 * GIB
    assert facts.is_rounded


def test_old_message_is_read_too() -> None:
    facts = OomFacts.from_message(OLD)
    assert (facts.device, facts.segment_bytes) == (0, 20 * MIB)
    assert facts.device_total_bytes == 10.75 * GIB
    assert facts.device_free_bytes == 5.5 * MIB
    assert facts.limit_bytes is None


@pytest.mark.parametrize("text", ["", "no sizes at all", "Tried to allocate 1.2.3 GiB", "9" * 500])
def test_other_texts_say_nothing(text: str) -> None:
    assert OomFacts.from_message(text).segment_bytes in (None, 0)


def test_facts_survive_json() -> None:
    facts = OomFacts(
        device=1,
        segment_bytes=5 * MIB,
        garbage_bytes=0,
        garbage_addresses=(1 << 45, 2),
        untrained_addresses=(7,),
        stack=(("train.py", 3, "main"),),
        tensors=("x: (3,) int8",),
        layers="Llama.layers",
        layers_begun=3,
        layers_count=12,
        grad_enabled=False,
        message=NEW,
    )
    assert OomFacts.from_dict(json.loads(json.dumps(facts.to_dict()))) == facts
    assert OomFacts.from_dict(OomFacts().to_dict()) == OomFacts()


def test_damaged_facts_lose_only_what_is_damaged() -> None:
    plain = {
        "schema": "neutracer.oom/1",
        "segment_bytes": "much",
        "device_free_bytes": -3,
        "limit_bytes": True,
        "garbage_bytes": 7,
        "stack": [["a.py", 1, "f"], ["b.py", "x", "g"], 5],
        "tensors": "x",
        "garbage_addresses": [1, None],
        "untrained_addresses": 3,
        "message": 8,
    }
    facts = OomFacts.from_dict(plain)
    assert facts == OomFacts(garbage_bytes=7, stack=(("a.py", 1, "f"),), garbage_addresses=(1,))
    with pytest.raises(ValueError, match="schema"):
        OomFacts.from_dict({"segment_bytes": 5})


def test_message_fills_what_is_missing() -> None:
    facts = OomFacts(segment_bytes=240 * MIB, message=NEW).filled()
    assert facts.segment_bytes == 240 * MIB
    assert facts.others_bytes == 2 * GIB
    assert OomFacts(device=0).filled() == OomFacts(device=0)


def test_facts_know_their_failure() -> None:
    said = OomFacts.from_message(NEW)
    assert said.is_of(230 * MIB)
    assert not said.is_of(232 * MIB)
    assert OomFacts.from_message("Tried to allocate 1.54 GiB").is_of(1_655_701_504)
    assert not OomFacts(segment_bytes=230 * MIB).is_of(230 * MIB + 1)
    assert OomFacts().is_of(5)


def read_sidecar(path: Path) -> OomFacts | None:
    return facts_of(beside_file(str(path)))


def test_json_is_looked_for_beside_the_file(tmp_path: Path) -> None:
    snapshot = tmp_path / "run.pickle.xz"
    assert read_sidecar(snapshot) is None
    (tmp_path / "run.json").write_text(json.dumps({"oom": NEW}))
    assert read_sidecar(snapshot) == OomFacts.from_message(NEW)
    nearer = {"oom": {"schema": "neutracer.oom/1", "garbage_bytes": 5}}
    (tmp_path / "run.pickle.json").write_text(json.dumps(nearer))
    assert read_sidecar(snapshot) == OomFacts(garbage_bytes=5)
    assert sidecar_paths("a/b") == ("a/b.json",)


@pytest.mark.parametrize("text", ["[1]", '{"oom": null}', '{"oom": {"schema": "x"}}', "3"])
def test_json_of_others_is_passed_over(tmp_path: Path, text: str) -> None:
    (tmp_path / "run.json").write_text(text)
    assert read_sidecar(tmp_path / "run.pickle") is None


@pytest.mark.parametrize("text", ["{", "\x00", "[" * 100_000])
def test_damaged_json_is_one_finding_and_no_error(tmp_path: Path, text: str) -> None:
    shutil.copy(DATA / "frag_default.pickle", tmp_path / "run.pickle")
    (tmp_path / "run.json").write_text(text)
    for ask in (neutracer.report, neutracer.explain, neutracer.fragmentation_report):
        found = ask(tmp_path / "run.pickle").findings
        assert found[0].kind == "broken_sidecar"
        assert found[0].severity is Severity.INFO
        assert str(found[0].evidence[0]).startswith("run.json: not JSON: ")
        assert [one.kind for one in found].count("broken_sidecar") == 1


def test_facts_of_another_kind_are_refused() -> None:
    with pytest.raises(TypeError, match=r"OomFacts\.from_dict"):
        neutracer.explain(
            DATA / "frag_default.pickle",
            facts={"schema": "neutracer.oom/1"},  # type: ignore[arg-type]
        )
