# SPDX-License-Identifier: Apache-2.0
"""What outputs and past exceptions keep, and that it goes when they are let go of."""

from __future__ import annotations

import importlib.util
import json
import sys
import types
import weakref
from typing import Any

import pytest
from forked import Imported

from neutracer.heap.holders import HoldersReport, notebook_holders, release_holders
from neutracer.render.report import dumps

LAST = ("last_exc", "last_value", "last_traceback", "last_type")


class Displayed:
    """What IPython's displayhook keeps besides the namespace."""


class Shell:
    """A shell with IPython's namespaces."""

    def __init__(self) -> None:
        out: dict[int, Any] = {}
        self.user_ns: dict[str, Any] = {"Out": out, "_oh": out, "In": [""]}
        self.user_ns_hidden: dict[str, Any] = {}
        self.displayhook = Displayed()

    def show(self, value: Any) -> None:
        """Do to a value what IPython does to the result of a cell."""
        space, hook = self.user_ns, vars(self.displayhook)
        for older, newer in (("___", "__"), ("__", "_")):
            hook[older] = space[older] = space.get(newer, "")
        hook["_"] = space["_"] = value
        number = len(space["In"])
        space["In"].append(f"cell {number}")
        space["Out"][number] = space[f"_{number}"] = value
        self.user_ns_hidden[f"_{number}"] = value


@pytest.fixture(autouse=True)
def no_past(monkeypatch: pytest.MonkeyPatch) -> None:
    """No exception of the test runner's own, and no prompt."""
    for name in LAST:
        monkeypatch.delattr(sys, name, raising=False)
    monkeypatch.delattr(sys, "ps1", raising=False)


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch) -> Shell:
    made = Shell()
    module = types.ModuleType("IPython.core.interactiveshell")
    module.InteractiveShell = types.SimpleNamespace(_instance=made)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return made


def facts(report: HoldersReport) -> list[tuple[tuple[str, ...], str, int]]:
    return [(h.names, h.kind, h.bytes) for h in report if h.kind != "input"]


def test_nothing_is_kept_without_a_notebook() -> None:
    report = notebook_holders()
    assert (len(report), report.total_bytes) == (0, 0)
    assert "No outputs or past exceptions are held." in str(report)


def test_output_keeps_its_tensor(torch: Any, shell: Shell) -> None:
    shell.show(torch.zeros(1000))
    assert facts(notebook_holders()) == [(("Out[1]", "_1", "_"), "output", 4000)]
    shell.show(1)
    shell.show(2)
    shell.show(3)
    assert facts(notebook_holders())[0] == (("Out[1]", "_1"), "output", 4000)


def test_variable_of_the_program_keeps_it_too(torch: Any, shell: Shell) -> None:
    mine = shell.user_ns["mine"] = torch.zeros(1000)
    shell.show(mine)
    (holder,) = [h for h in notebook_holders() if h.kind == "output"]
    assert (holder.bytes, holder.reachable_bytes, holder.tensors) == (0, 4000, 0)


def test_output_keeps_the_graph_behind_it(torch: Any, shell: Shell) -> None:
    def loss() -> Any:
        inner = torch.ones(1000, requires_grad=True).exp()
        return (inner * inner).sum()

    shell.show(loss())
    (holder,) = [h for h in notebook_holders() if h.kind == "output"]
    # The leaf, its exponential (which is saved once for itself), and the sum.
    assert holder.bytes == 2 * 4000 + 4


def test_variables_are_listed_with_shape_and_cell(torch: Any, shell: Shell) -> None:
    cells = (
        "a = b = torch.zeros(1000)",
        "cache = {'k': [torch.zeros(500)]}\nfunction = lambda: cache; one = 1; cell = a",
        "model = torch.nn.Linear(9, 9, bias=False)",
        "optimizer = torch.optim.SGD(model.parameters())",
        "def model2(): a = 1",
        "%not Python",
        "x = torch.zeros(5000)",
    )
    for text in cells:
        shell.user_ns["In"].append(text)
        if "not" not in text:
            exec(text, {"torch": torch}, shell.user_ns)
    shell.show(shell.user_ns.pop("x"))
    report = notebook_holders()
    found = [(v.names, v.tensor, v.bytes, v.reachable_bytes, v.cell) for v in report.variables]
    assert found == [
        (("a", "b", "cell"), "[1000] float32", 4000, 4000, 1),
        (("cache",), "", 2000, 2000, 2),
        (("model",), "", 0, 324, 3),
        (("optimizer",), "", 0, 324, 4),
    ]
    assert {variable.kind for variable in report.variables} == {"variable"}
    assert report.total_bytes == 20000
    text = " ".join(str(report).split())
    assert "a, b, cell keep 3.91 KiB in 1 tensor" in text
    assert "a, b, cell Tensor [1000] float32" in text
    released = release_holders()
    assert released.variables == ()
    assert torch.equal(shell.user_ns["a"], torch.zeros(1000))


def test_shared_tensor_goes_with_all_of_them(torch: Any, shell: Shell) -> None:
    tensor = torch.zeros(1000)
    shell.show([tensor])
    shell.show((tensor,))
    del tensor
    report = notebook_holders()
    assert [h.bytes for h in report if h.kind == "output"] == [0, 0]
    assert report.total_bytes == 4000


def test_exception_keeps_the_tensors_of_its_frames(
    torch: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def step() -> None:
        activations = torch.zeros(1000)
        raise LookupError(activations.shape)

    try:
        step()
    except LookupError as error:
        monkeypatch.setattr(sys, "last_value", error, raising=False)
        monkeypatch.setattr(sys, "last_traceback", error.__traceback__, raising=False)
    report = notebook_holders()
    assert facts(report) == [(("sys.last_value", "sys.last_traceback"), "exception", 4000)]
    assert report[0].type == "LookupError"
    assert "3.91 KiB" in str(report.findings[0].message)


def test_result_at_a_prompt_is_kept(torch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import builtins

    monkeypatch.setattr(builtins, "_", torch.zeros(1000), raising=False)
    assert facts(notebook_holders()) == []
    monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    assert facts(notebook_holders()) == [(("_",), "output", 4000)]


def test_looking_changes_nothing(torch: Any, shell: Shell) -> None:
    shell.show(torch.zeros(10))
    before = {
        key: dict(value) if isinstance(value, dict) else value
        for key, value in shell.user_ns.items()
    }
    notebook_holders()
    assert shell.user_ns == before


def test_release_frees_and_tells(torch: Any, shell: Shell) -> None:
    tensor = torch.zeros(1000)
    shell.show(tensor)
    sys.last_value = LookupError()
    shell.user_ns["mine"] = other = torch.zeros(10)
    shell.show(other)
    reference = weakref.ref(tensor)
    del tensor, other
    report = release_holders()
    assert report.released
    assert report.total_bytes == 4000
    assert reference() is None
    assert shell.user_ns["Out"] == {}
    assert shell.user_ns["In"] == ["", "cell 1", "cell 2"]
    assert shell.user_ns["_"] == ""
    assert "_1" not in shell.user_ns
    assert shell.user_ns["mine"].shape == (10,)
    assert not hasattr(sys, "last_value")
    assert facts(notebook_holders()) == []


def test_report_is_plain_data(torch: Any, shell: Shell) -> None:
    shell.show(torch.zeros(10))
    plain = json.loads(dumps(notebook_holders().to_dict()))
    assert plain["schema"] == "neutracer.holders/1"
    assert plain["holders"][0]["names"] == ["Out[1]", "_1", "_"]


REAL = """
import json, sys, tempfile, os, warnings
warnings.simplefilter("ignore")
os.environ["IPYTHONDIR"] = tempfile.mkdtemp()
from IPython.core.interactiveshell import InteractiveShell
from neutracer.heap.holders import notebook_holders, release_holders
shell = InteractiveShell.instance()
shell.InteractiveTB.set_mode("Minimal")
for cell in (
    "import torch, weakref",
    "torch.ones(1000)",
    "torch.ones(2000)",
    "1 + 1", "1 + 1", "1 + 1",
    '''
def step():
    activations = torch.ones(5000)
    step.kept = weakref.ref(activations)
    raise ValueError("no")
step()
''',
):
    shell.run_cell(cell, store_history=True)
before = {name: h.bytes for h in notebook_holders() for name in h.names}
release_holders()
import gc; gc.collect()
after = notebook_holders()
gone = shell.user_ns["step"].kept() is None
print(json.dumps([before, after.total_bytes, [h.kind for h in after], gone]))
"""


@pytest.mark.skipif(not importlib.util.find_spec("IPython"), reason="needs IPython")
def test_real_ipython_is_understood(with_torch: Imported) -> None:
    done = with_torch.run(REAL)
    assert done.returncode == 0, done.stderr
    before, after, kinds, gone = json.loads(done.stdout.splitlines()[-1])
    assert (before["Out[2]"], before["_3"]) == (4000, 8000)
    assert before["sys.last_value"] == 20000
    assert (after, kinds, gone) == (0, ["input"], True)
