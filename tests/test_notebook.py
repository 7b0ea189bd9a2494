# SPDX-License-Identifier: Apache-2.0
"""`%load_ext neutracer`: what its magics do, in an IPython of their own."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from forked import Imported
from ipython_cells import folders, outputs_in_fork, outputs_of

import neutracer
from neutracer.arguments import reader_name
from neutracer.notebook import CellRecording, cell_report

ROOT = Path(__file__).parents[1]
MIB = 1 << 20

WITHOUT_TORCH = [
    "%load_ext neutracer",
    "# fails\nget_ipython().run_cell_magic('neutracer', '', '1')",
    "%neutracer_report data/frag_default.pickle",
    "import neutracer\nsnap = neutracer.load('data/frag_default.pickle')",
    "%neutracer_report snap",
    "# fails\n%neutracer_report nothing here",
    "# fails\n%neutracer_report nothing.pickle",
    "# fails\n%neutracer_report",
    "%neutracer_holders",
    "# fails\n%neutracer_holders --all",
    "import sys; sorted(m for m in sys.modules if m in ('torch', 'matplotlib', 'numpy'))",
    "snap.timeline()",
    "neutracer.view(snap)",
    "%unload_ext neutracer",
    "# fails\nget_ipython().run_line_magic('neutracer_holders', '')",
]

IMPORTING_TORCH = [
    "%load_ext neutracer",
    "%%neutracer first\nimport sys\nimport torch\nkept = torch.zeros(2, 1024, 256)\nlen(kept)",
    "len(first.snapshot.timeline().alive('end')), first.to_dict()['schema']",
]

WITH_TORCH = [
    "import gc, torch, neutracer\n%load_ext neutracer\nkept = []\n_ = gc.collect(); gc.disable()",
    "def make(n):\n    return torch.zeros(n, 1024, 256)",
    "%%neutracer first\nkept.append(make(2))\nmake(8)\nlen(kept)",
    "first.to_dict()",
    "%%neutracer\n\nring = [torch.zeros(1024, 1024)]\nring.append(ring)\ndel ring;",
    "%%neutracer quiet\nlen(kept);",
    "# fails\nget_ipython().run_cell_magic('neutracer', 'failed', 'make(3)\\nmake(1 / 0)')",
    "failed.devices[0].peak_bytes",
    "# fails\nget_ipython().run_cell_magic('neutracer', '2wrong', '1')",
    "# fails\nget_ipython().run_cell_magic('neutracer', '--entries 3', '1')",
    "# fails\nget_ipython().run_cell_magic('neutracer', '', 'for')",
    "%neutracer_report first",
    "%neutracer_report",
    "%%neutracer nested\nneutracer.live()\nkept.append(make(1))\nneutracer.live().devices",
    "from neutracer.hooks.shim import state\nstate().active, state().threads",
    "make(4)",
    "%neutracer_holders",
    "%neutracer_holders --release",
    "weights = torch.zeros(3, 1024, 256)\nparts = {'first': weights[0]}",
    "weights",
    "1",
    "2",
    "neutracer.why_alive(weights)",
    "import pickle\nthere = pickle.loads(pickle.dumps(first))\n"
    "str(there) == str(first) and there.to_dict() == first.to_dict()"
    " and there._repr_html_() == first._repr_html_()"
    " and [e.stack for e in there.snapshot.events] == [e.stack for e in first.snapshot.events]",
]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    pytest.importorskip("IPython")
    return outputs_of(WITHOUT_TORCH, ROOT / "tests", tmp_path_factory.mktemp("home"))


@pytest.fixture(scope="module")
def cells(
    torch: Any, with_torch: Imported, tmp_path_factory: pytest.TempPathFactory
) -> list[dict[str, Any]]:
    pytest.importorskip("IPython")
    if torch.version.cuda is not None:
        pytest.skip("torch is built for CUDA: tests/gpu/test_cell.py")
    if not any(map(shutil.which, ("c++", "g++", "clang++"))):
        pytest.skip("needs a compiler for the hooks")
    home = folders(tmp_path_factory.mktemp("home"))
    return outputs_in_fork(with_torch, WITH_TORCH, ROOT / "tests", **home)


def test_a_cell_may_import_torch(tmp_path: Path) -> None:
    pytest.importorskip("IPython")
    torch = pytest.importorskip("torch")
    if torch.version.cuda is not None:
        pytest.skip("torch is built for CUDA: tests/gpu/test_cell.py")
    if not any(map(shutil.which, ("c++", "g++", "clang++"))):
        pytest.skip("needs a compiler for the hooks")
    answers = outputs_of(IMPORTING_TORCH, ROOT / "tests", tmp_path)
    assert not failures(IMPORTING_TORCH, answers)
    assert "2.0 MiB" in text_of(answers[1])
    assert text_of(answers[2]).startswith("(1, 'neutracer.cell/")


def failures(cells: list[str], answers: list[dict[str, Any]]) -> dict[int, str]:
    assert len(answers) == len(cells), answers[-1]["error"]
    return {number: a["error"] for number, a in enumerate(answers) if a["error"]}


def text_of(answer: dict[str, Any], number: int = 0) -> str:
    return str(answer["shown"][number]["text/plain"])


def html_of(answer: dict[str, Any], number: int = 0) -> str:
    return str(answer["shown"][number]["text/html"])


# ---- without torch ---------------------------------------------------------------------


def test_import_brings_no_ipython() -> None:
    script = (
        "import sys, neutracer; print(neutracer.load_ipython_extension, 'IPython' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout.endswith(" False\n"), done.stderr


def test_what_is_wrong_is_said_in_one_line(plain: list[dict[str, Any]]) -> None:
    wrong = failures(WITHOUT_TORCH, plain)
    assert sorted(wrong) == [1, 5, 6, 7, 9, 14]
    no_torch = "UsageError: torch in this process is not available: import torch first"
    assert wrong[1] == no_torch
    assert wrong[5] == "UsageError: usage: %neutracer_report [FILE]"
    assert (
        wrong[6] == "UsageError: 'nothing.pickle' is neither a file nor a variable with a snapshot"
    )
    assert wrong[7].startswith("UsageError: torch")
    assert wrong[9] == "UsageError: usage: %neutracer_holders [--release]"
    # Taken off again, the magic is unknown.
    assert "neutracer_holders" in wrong[14]


def test_report_takes_a_file_or_a_variable(plain: list[dict[str, Any]]) -> None:
    for number in (2, 4):
        assert "at its peak 71.9 % of the 2,028 MiB reserved was unused" in html_of(plain[number])
    assert "frag_default.pickle" in text_of(plain[2])
    assert "\nsnap   " in text_of(plain[4])


def test_extension_brings_no_extra_with_it(plain: list[dict[str, Any]]) -> None:
    assert text_of(plain[10]) == "[]"


def test_timeline_shows_a_curve_and_its_peak(plain: list[dict[str, Any]]) -> None:
    page = html_of(plain[11])
    assert len(page) < 20_000
    assert page.count("<path") == 3  # reserved, allocated, the moment of running out
    for words in ("590.9 MiB", "event 2,215", "train.py:155", "neutracer.view(snapshot)"):
        assert words in page


def test_view_without_a_path_shows_itself(plain: list[dict[str, Any]]) -> None:
    page = html_of(plain[12])
    assert page.startswith("<style>iframe.neutracer-page{color-scheme:light dark}")
    frame = '<iframe class="neutracer-page" sandbox="allow-scripts allow-downloads" srcdoc="'
    assert f"</style>{frame}<!DOCTYPE html>" in page
    assert len(page) < 1_000_000


# ---- with torch ------------------------------------------------------------------------


def test_cell_tells_peak_and_what_it_left(cells: list[dict[str, Any]]) -> None:
    report, value = cells[2]["shown"][0]["text/plain"], text_of(cells[2], 1)
    assert value == "1"
    assert "peak          10.0 MiB" in report
    assert "left behind    2.0 MiB" in report
    assert "make   In[2]:2" in report
    first = eval(text_of(cells[3]))
    (device,) = first["devices"]
    assert (device["name"], device["peak_bytes"], device["left_bytes"]) == (
        "cpu",
        10 * MIB,
        2 * MIB,
    )
    assert first["schema"] == "neutracer.cell/1"
    assert first["cycles"] == []


def test_cell_tells_its_reference_cycles(cells: list[dict[str, Any]]) -> None:
    report = text_of(cells[4])
    assert "a reference cycle keeps 4 MiB on cpu until the garbage collector runs" in report
    assert "list of 2[1] → list of 2" in report
    # Lines are counted as a reader does, from the magic on.
    assert "<module>   In[5]:3" in report
    assert "reference cycle" not in text_of(cells[2])


def test_semicolon_keeps_the_value_back(cells: list[dict[str, Any]]) -> None:
    (shown,) = cells[5]["shown"]
    assert "allocated no CPU memory" in shown["text/plain"]


def test_cell_that_fails_is_told_and_fails(cells: list[dict[str, Any]]) -> None:
    wrong = failures(WITH_TORCH, cells)
    assert sorted(wrong) == [6, 8, 9, 10]
    assert wrong[6] == "ZeroDivisionError: division by zero"
    assert int(text_of(cells[7])) == 3 * MIB
    assert "not a variable name: '2wrong'" in wrong[8]
    assert "--entries" in wrong[9]
    assert wrong[10].startswith("SyntaxError")


def test_report_is_of_the_last_cell_on_the_cpu(cells: list[dict[str, Any]]) -> None:
    assert "\nfirst   " in text_of(cells[11])
    assert "\nthe last recorded cell   " in text_of(cells[12])
    assert "In[2]:2" in text_of(cells[11])


def test_only_what_the_cell_switched_on_stays_on(cells: list[dict[str, Any]]) -> None:
    assert text_of(cells[14]) == "(True, 1)"


def test_holders_are_listed_and_let_go(cells: list[dict[str, Any]]) -> None:
    assert "4 MiB kept by" in text_of(cells[16])
    assert "Out[16], _16, _" in text_of(cells[16])
    assert "released from" in text_of(cells[17])


def test_a_variable_is_named_before_outputs(cells: list[dict[str, Any]]) -> None:
    """Though IPython's `___` is an older name of the same tensor."""
    told = [line.strip() for line in text_of(cells[22]).splitlines()[1:7]]
    assert told == [
        "module __main__ → weights",
        "`del weights` in module __main__, or set it to None when finished",
        "module __main__ → parts → ['first'] → ._base",
        "it is the base of a view: clone() the view and drop the view",
        "module __main__ → ___",
        "call neutracer.release_holders()",
    ]
    assert "global weights" in html_of(cells[22])


def test_report_of_a_cell_is_pickled(cells: list[dict[str, Any]]) -> None:
    assert text_of(cells[23]) == "True"


# ---- names of cells --------------------------------------------------------------------


@pytest.mark.parametrize(("devices", "words"), [(0, "no CUDA device"), (1, "no CUDA memory")])
def test_cell_without_cuda_memory_says_why(
    devices: int, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cuda = SimpleNamespace(device_count=lambda: devices)
    torch = SimpleNamespace(version=SimpleNamespace(cuda="13.0"), cuda=cuda)
    monkeypatch.setitem(sys.modules, "torch", torch)
    recording = CellRecording()
    assert recording.follows is bool(devices)
    assert words in str(cell_report(recording, 10))


def test_cells_have_the_names_that_readers_know(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {"/x/ipykernel_7/25.py": ("Cell", "In[3]")}
    shell = SimpleNamespace(compile=SimpleNamespace(format_code_name=known.get))
    module = SimpleNamespace(InteractiveShell=SimpleNamespace(_instance=shell))
    monkeypatch.setitem(sys.modules, "IPython.core.interactiveshell", module)
    assert reader_name("/x/ipykernel_7/25.py") == "In[3]"
    assert reader_name("train.py") == "train.py"


def test_view_of_a_large_page_is_a_linked_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    page = neutracer.reports.PageView("<p>x</p>" * 200_000, 'a "b" <i>.pickle')
    link = page._repr_html_()
    (path,) = tmp_path.iterdir()
    assert f'<a href="{path.name}"' in link
    assert "1.6 MB, more than the limit of 1 MB" in link
    assert path.read_text() == page.html
    assert page._repr_html_() == link
    assert len(list(tmp_path.iterdir())) == 1


def test_view_that_cannot_be_written_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    page = neutracer.reports.PageView("<p>x</p>" * 200_000, "x" * 30)
    monkeypatch.setattr("neutracer.picture.view.atomic_file", _refuse)
    assert "can&#x27;t be written here" in page._repr_html_().replace("can't", "can&#x27;t")
    assert "<a" not in page._repr_html_()


def _refuse(path: object, *inputs: object) -> object:
    raise OSError(30, "Read-only file system")


def test_hostile_title_stays_in_its_attribute() -> None:
    shown = neutracer.reports.PageView("<p>", '"><script>alert(1)</script>')._repr_html_()
    assert "<script" not in shown
    assert shown.count("<iframe") == 1
