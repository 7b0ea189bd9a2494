# SPDX-License-Identifier: Apache-2.0
"""The MCP server, asked by the package's own client over standard input and output."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mcp", reason="needs mcp, which is not installed here")
pytest.importorskip("duckdb", reason="needs duckdb, which is not installed here")

from mcp import ClientSession, StdioServerParameters, stdio_client

DATA = Path(__file__).parents[1] / "data"
FRAG = "frag_default.pickle"

pytestmark = pytest.mark.filterwarnings("default")


def asked(calls: list[tuple[str, dict[str, Any]]], *words: str | Path) -> tuple[list[Any], Any]:
    """The answers of one server to some calls, and its list of tools."""

    async def talk() -> tuple[list[Any], Any]:
        server = StdioServerParameters(
            command=sys.executable,
            args=["-m", "neutracer", "mcp", *map(str, words)],
            env=dict(os.environ),
        )
        async with stdio_client(server) as streams, ClientSession(*streams) as session:
            await session.initialize()
            tools = (await session.list_tools()).tools
            return [await session.call_tool(*call) for call in calls], tools

    return asyncio.run(talk())


def text_of(answer: Any) -> str:
    assert not answer.is_error, answer.content
    assert answer.structured_content is None
    text: str = answer.content[0].text
    assert len(text.encode()) < 4096
    return text


def truth(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((DATA / f"{name}.json").read_text("utf-8"))
    return found


def test_ten_questions_are_answered_as_the_truth_has_them() -> None:
    frag, leak = truth("frag_default"), truth("leak_list")
    other = "oom/another_process_has_the_device.pickle.xz"
    graphs = "oom/losses_kept_with_their_graphs.pickle.xz"
    late = "train_resnet_late_zero_grad.pickle.xz"
    actions = "SELECT action, count(*) FROM events GROUP BY 1"
    replayed = truth("whatif/7/frag_default")["stats"]["reserved_bytes.all.peak"] >> 20
    # What the loop gained from its second step to its last, a step.
    first, last = leak["series"][1], leak["series"][-1]
    rate = (last["alloc"] - first["alloc"]) / (last["step"] - first["step"])
    questions: list[tuple[str, dict[str, Any], str]] = [
        ("open", {"path": FRAG}, r"ran out of memory: 1\n"),
        ("explain", {"path": FRAG}, rf"limited to {frag['cap_mib']:,} MiB"),
        ("bill", {"path": FRAG}, r"406\.0 MiB +train\.py:155 +.*\n(.*\n)* +2,048\.0 MiB"),
        (
            "what_if",
            {"path": FRAG, "settings": ["expandable_segments:True"]},
            rf"peak reserved {replayed} MiB",
        ),
        ("explain", {"path": graphs}, r"leak: .* piled up over"),
        ("explain", {"path": other}, r"(not PyTorch's|other processes)"),
        ("leak", {"paths": ["leak_list.pickle.xz"]}, r"(\d+) KiB per step"),
        (
            "sql",
            {"path": FRAG, "query": actions},
            rf"\nalloc\t{frag['actions']['alloc']}(\n|$)",
        ),
        ("holders", {"path": "leak_list.pickle.xz", "by": "line"}, r"%\t81\t\S+train\.py:120"),
        ("diff", {"before": "train_resnet_healthy.pickle.xz", "after": late}, r"train\.py:7"),
    ]
    # One of the files is a link to the recording of the demo.
    roots = (DATA, DATA.parents[1] / "neutracer" / "demo")
    answers, _ = asked([question[:2] for question in questions], *roots)
    texts = list(map(text_of, answers))
    for (name, arguments, wanted), text in zip(questions, texts, strict=True):
        assert re.search(wanted, text), (name, arguments, text)
    found = re.search(r"(\d+) KiB per step", texts[6])
    assert int(found[1]) * 1024 == pytest.approx(rate, rel=0.5)


def test_tools_only_read_unless_programs_may_run() -> None:
    _, tools = asked([], DATA)
    names = ("open", "report", "explain", "bill", "holders", "what_if", "diff", "phases", "leak")
    assert [tool.name for tool in tools] == [*names, "sql"]
    assert all(tool.annotations.read_only_hint and tool.description for tool in tools)
    assert all("offset" in tool.input_schema["properties"] for tool in tools)
    # All are in the client's context from its start.
    assert sum(len(tool.model_dump_json(exclude_none=True)) for tool in tools) < 10_000
    *_, last = asked([], "--allow-rehearse", DATA)[1]
    assert (last.name, last.annotations.read_only_hint) == ("rehearse", False)
    assert last.description.startswith("RUNS the program")


def test_program_is_rehearsed_where_that_is_allowed(torch: Any, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import torch\n"
        "model = torch.nn.Linear(1024, 1024).cuda()\n"
        "model(torch.ones(8, 1024, device='cuda')).sum().backward()\n"
        "torch.optim.SGD(model.parameters()).step()\n"
    )
    calls: list[tuple[str, dict[str, Any]]] = [
        ("rehearse", {"program": "train.py", "card": "A100", "capacity": "1GiB"}),
        ("rehearse", {"program": __file__}),
    ]
    (answer, outside), _ = asked(calls, "--allow-rehearse", tmp_path)
    assert "Rehearsed, not recorded" in text_of(answer)
    assert outside.is_error
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]


def test_long_answer_comes_in_pages_that_are_the_whole() -> None:
    query = {"path": FRAG, "query": "SELECT * FROM events LIMIT 110"}
    lines: list[str] = []
    while True:
        ((answer,), _) = asked([("sql", {**query, "offset": len(lines)})], DATA)
        *page, last = text_of(answer).split("\n")
        more = re.fullmatch(r"… (\d+) more lines: offset=(\d+)", last)
        lines += page if more else [*page, last]
        if more is None:
            break
        assert int(more[2]) == len(lines)
    assert len(lines) == 111
    assert len(set(lines)) == 111
    ((past,), _) = asked([("sql", {**query, "offset": 111})], DATA)
    assert past.content[0].text.endswith("there is no line 111: the answer has 111")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A root with links that lead out of it, and a file that is no snapshot."""
    root, secret = tmp_path / "root", tmp_path / "secret"
    for folder in (root, secret):
        folder.mkdir()
        shutil.copy(DATA / FRAG, folder / "one.pickle")
    (secret / "one.json").write_text("{}")
    (root / "linked.pickle").symlink_to(secret / "one.pickle")
    (root / "folder").symlink_to(secret)
    shutil.copy(DATA / FRAG, root / "beside.pickle")
    (root / "beside.json").symlink_to(secret / "one.json")
    (root / "notes.txt").write_text("nothing of PyTorch\n")
    return root


def test_changes_that_were_replayed_follow_the_verdict() -> None:
    path = "oom/activations_above_the_rest.pickle.xz"
    (answer,), _ = asked([("explain", {"path": path})], DATA)
    text = text_of(answer)
    assert text.index("Tried") < text.index("The bill") < text.index("The request")


def test_bad_input_is_refused_in_a_sentence_and_nothing_is_written(root: Path) -> None:
    outside = "is outside of what"
    one = {"path": "one.pickle"}
    cases: list[tuple[str, dict[str, Any], str]] = [
        ("report", {"path": str(root.parent / "secret" / "one.pickle")}, outside),
        ("report", {"path": "../secret/one.pickle"}, outside),
        ("report", {"path": "linked.pickle"}, outside),
        ("open", {"path": "folder"}, outside),
        ("open", {"path": "/etc/passwd"}, outside),
        ("report", {"path": "beside.pickle"}, "beside it is outside"),
        ("sql", {"path": "linked.pickle", "query": "SELECT 1"}, outside),
        ("open", {"path": "none.pickle"}, "no such file"),
        ("report", {"path": "-"}, "no such file"),
        ("open", {"path": "notes.txt"}, "this is a text file"),
        ("explain", {"path": "one.pickle", "capacity": "24"}, "24"),
        ("what_if", {**one, "settings": ["nonsense:1"]}, "unknown key"),
        ("sql", {**one, "query": "CREATE TABLE t AS SELECT 1"}, "only one SELECT"),
        ("sql", {**one, "query": "COPY events TO 'out.csv'"}, "only one SELECT"),
        ("sql", {**one, "query": "SELECT 1; DROP VIEW events"}, "only one SELECT"),
        ("sql", {**one, "query": "SET enable_external_access = true"}, "only one SELECT"),
        ("sql", {**one, "query": "SELECT * FROM read_text('notes.txt')"}, "Cannot access"),
        ("sql", {**one, "query": "SELECT * FROM 'notes.txt'"}, "does not exist"),
        ("sql", {**one, "query": "SELECT nothing FROM events"}, "not found"),
        # One long call, which DuckDB itself does not interrupt.
        ("sql", {**one, "query": "SELECT repeat('a', 2000000000)"}, "ran longer than 10 s"),
    ]
    before = sorted(root.parent.rglob("*"))
    answers, _ = asked([case[:2] for case in cases], root)
    for (name, arguments, wanted), answer in zip(cases, answers, strict=True):
        text = answer.content[0].text
        assert answer.is_error, (name, arguments, text)
        assert wanted in text, (name, arguments, text)
        assert "\n" not in text
    assert sorted(root.parent.rglob("*")) == before


def test_folder_lists_what_is_inside_and_a_root_may_be_a_file(root: Path) -> None:
    (root / "beside.json").unlink()
    ((listed,), _) = asked([("open", {"path": "."})], root)
    names = re.findall(r"bytes  (\S+)", text_of(listed))
    assert names == ["beside.pickle", "one.pickle"]
    calls: list[tuple[str, dict[str, Any]]] = [
        ("open", {"path": "one.pickle"}),
        ("open", {"path": "beside.pickle"}),
    ]
    (own, other), _ = asked(calls, root / "one.pickle")
    assert "Ask explain" in text_of(own)
    assert other.is_error
