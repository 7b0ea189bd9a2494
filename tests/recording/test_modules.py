# SPDX-License-Identifier: Apache-2.0
"""Modules mark what their forward and backward allocate."""

from __future__ import annotations

import copy
import pickle
import signal
import threading
from typing import Any, NoReturn

import pytest
from fake_cuda import install
from without_hooks import begin_cuda, without_hooks

import neutracer
from neutracer import UnavailableError
from neutracer.hooks import modules as module_calls
from neutracer.hooks.modules import ModuleCalls, ModuleMarks, check_modules
from neutracer.hooks.shim import load

torch = pytest.importorskip("torch")
nn = torch.nn

MARK = "nn.Module: "


def not_compiled(**_: object) -> NoReturn:
    raise UnavailableError("the hooks", "they are not used here")


class Text:
    """The text that PyTorch would keep, and the order in which it was set."""

    def __init__(self) -> None:
        self.now = ""
        self.said: list[str] = []

    def write(self, text: str) -> None:
        self.now = text
        self.said.append(text.removeprefix(MARK))

    def read(self) -> str:
        return self.now


class Probe(torch.autograd.Function):
    """Notes the text in forward and in backward."""

    @staticmethod
    def forward(ctx: Any, x: Any, name: str, notes: dict[str, str], text: Text) -> Any:
        ctx.name, ctx.notes, ctx.text = name, notes, text
        notes[f"{name} forward"] = text.now.removeprefix(MARK)
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        ctx.notes[f"{ctx.name} backward"] = ctx.text.now.removeprefix(MARK)
        return grad * 2, None, None, None


class Part(nn.Module):
    def __init__(self, name: str, notes: dict[str, str], text: Text) -> None:
        super().__init__()
        self.line = nn.Linear(4, 4)
        self.name, self.notes, self.text = name, notes, text

    def forward(self, x: Any) -> Any:
        return Probe.apply(self.line(x), self.name, self.notes, self.text)


class Whole(nn.Module):
    def __init__(self, notes: dict[str, str], text: Text) -> None:
        super().__init__()
        self.first, self.second = Part("first", notes, text), Part("second", notes, text)
        self.notes, self.text = notes, text

    def forward(self, x: Any) -> Any:
        x = Probe.apply(self.first(x), "between", self.notes, self.text)
        return self.second(x)


class EventText:
    """What the compiled hooks on the allocator would mark an event with."""

    def __init__(self, hooks: Any) -> None:
        self.hooks = hooks

    @property
    def now(self) -> str:
        return str(self.hooks.get_text())

    @now.setter
    def now(self, text: str) -> None:
        self.hooks.set_text(text)


@pytest.fixture(params=["PyTorch's hooks", "compiled hooks"])
def run(request: pytest.FixtureRequest) -> Any:
    notes: dict[str, str] = {}
    text: Any = Text()
    if request.param == "compiled hooks":
        try:
            text = EventText(load())
            begin_cuda()
        except UnavailableError as error:
            without_hooks(str(error))
    model = Whole(notes, text)
    marks: Any = (
        ModuleMarks(model, text.write, text.read)
        if isinstance(text, Text)
        else ModuleCalls(text.hooks, model)
    )
    marks.attach()
    yield model, marks, text, notes
    marks.detach()
    text.now = ""


def test_forward_and_backward_have_the_path_of_their_module(run: Any) -> None:
    model, _, text, notes = run
    x = Probe.apply(torch.ones(2, 4, requires_grad=True), "before", notes, text)
    loss = Probe.apply(model(x), "loss", notes, text).sum()
    assert text.now == ""
    loss.backward()
    for way in ("forward", "backward"):
        assert notes[f"first {way}"] == "first"
        assert notes[f"second {way}"] == "second"
        assert notes[f"between {way}"] == ""
    assert notes["loss forward"] == notes["loss backward"] == ""
    assert text.now == ""


def test_every_pass_begins_without_a_module(run: Any) -> None:
    model, _, text, notes = run
    for _ in range(3):
        loss = Probe.apply(model(torch.ones(2, 4)), "loss", notes, text).sum()
        loss.backward()
        assert notes["loss backward"] == ""
        assert text.now == ""


def test_texts_of_the_program_come_back(run: Any) -> None:
    model, _, text, _ = run
    text.now = "step 7"
    model(torch.ones(2, 4)).sum().backward()
    assert text.now == "step 7"


def test_errors_in_a_module_leave_nothing_set(run: Any) -> None:
    model, _, text, _ = run
    for _ in range(2):
        with pytest.raises(RuntimeError):
            model(torch.ones(2, 5))
        assert text.now == ""


def test_checkpoints_are_marked_again(run: Any) -> None:
    from torch.utils.checkpoint import checkpoint

    model, _, _, notes = run
    x = torch.ones(2, 4, requires_grad=True)
    checkpoint(model, x, use_reentrant=False).sum().backward()
    assert notes["first backward"] == "first"
    assert notes["second backward"] == "second"


def test_nothing_stays_after_the_end(run: Any) -> None:
    model, marks, text, notes = run
    loss = model(torch.ones(2, 4)).sum()
    marks.detach()
    notes.clear()
    loss.backward()
    model(torch.ones(2, 4))
    assert set(notes.values()) == {""}
    assert len(notes) == 6
    assert text.now == ""
    marks.detach()


def test_models_can_be_copied_and_sent_meanwhile() -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    text = Text()
    marks = ModuleMarks(model, text.write, text.read)
    marks.attach()
    try:
        assert len(copy.deepcopy(model)) == len(pickle.loads(pickle.dumps(model))) == 1
        copy.deepcopy(model)(torch.ones(1, 2))
        assert text.said == []
    finally:
        marks.detach()


def test_record_marks_while_it_is_on(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = install(monkeypatch)
    monkeypatch.setattr(module_calls, "load", not_compiled)
    text = Text()
    fake.module._C._cuda_setMemoryMetadata = text.write
    fake.module._C._cuda_getMemoryMetadata = text.read
    model = nn.Sequential(nn.Linear(2, 2))
    with neutracer.record(modules=model):
        with torch.no_grad():
            model(torch.ones(1, 2))
        assert text.said == ["", "0", "", ""]
    with torch.no_grad():
        model(torch.ones(1, 2))
    assert len(text.said) == 4


def test_what_is_missing_is_said() -> None:
    class Old:
        __version__ = "2.4.0"
        _C = object()

    with pytest.raises(UnavailableError, match=r"module in torch 2\.4\.0"):
        check_modules(Old, nn.Linear(1, 1))
    with pytest.raises(TypeError, match=r"modules must be an nn\.Module or True, not int"):
        check_modules(torch, 3)


def test_every_model_that_is_called_is_known_by_its_class() -> None:
    text = Text()
    marks = ModuleMarks(True, text.write, text.read)
    marks.attach()
    try:
        with torch.no_grad():
            nn.Sequential(nn.Linear(2, 2))(torch.ones(1, 2))
            nn.Linear(2, 2)(torch.ones(1, 2))
    finally:
        marks.detach()
    assert text.said == ["Sequential", "Sequential.0", "Sequential", "", "Linear", ""]


def test_a_model_may_become_part_of_another_in_another_thread_meanwhile() -> None:
    part, text = nn.Linear(2, 2), Text()
    whole = nn.Sequential(part)
    others: list[threading.Thread] = []

    def run_whole() -> None:
        with torch.no_grad():
            whole(torch.ones(1, 2))

    def read() -> str:
        """What `part` is called changes between the look for it and its use."""
        if not others:
            others.append(threading.Thread(target=run_whole))
            others[0].start()
            others[0].join()
        return ""

    marks = ModuleMarks(True, text.write, read)
    marks.attach()
    try:
        with torch.no_grad():
            part(torch.ones(1, 2))
            part(torch.ones(1, 2))
    finally:
        marks.detach()
    whole_said = ["Sequential", "Sequential.0", "Sequential", ""]
    assert text.said[:5] == [*whole_said, "Linear"]
    assert text.said[-2:] == ["Sequential.0", ""]


class Late(Text):
    """One of the calls that set a text is where a handler of a signal raises."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self.at = at

    def write(self, text: str) -> None:
        super().write(text)
        if len(self.said) == self.at:
            signal.raise_signal(signal.SIGALRM)


@pytest.fixture
def time_is_up() -> Any:
    def handle(number: int, frame: object) -> None:
        raise TimeoutError("time is up")

    before = signal.signal(signal.SIGALRM, handle)
    yield
    signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("which", ["given", "every"])
@pytest.mark.parametrize("at", range(1, 7))
@pytest.mark.usefixtures("time_is_up")
def test_what_a_handler_of_a_signal_raises_reaches_the_program(at: int, which: str) -> None:
    """Two modules in a model that is called and gone back through: six texts are set."""
    model, text = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), Late(at)
    marks = ModuleMarks(True if which == "every" else model, text.write, text.read)
    marks.attach()
    try:
        with pytest.raises(TimeoutError, match="time is up"):
            model(torch.ones(1, 2))
        text.said, text.at = [], 0
        with torch.no_grad():
            model(torch.ones(1, 2))
    finally:
        marks.detach()
    said = [one.removeprefix("Sequential").removeprefix(".") for one in text.said]
    assert said == ["", "0", "", "1", "", ""]


def test_a_model_is_learnt_without_code_of_its_own() -> None:
    class Own(nn.Sequential):
        def named_modules(self, *args: Any, **keys: Any) -> Any:
            raise RuntimeError("not today")

    text, model = Text(), Own(nn.Linear(2, 2))
    model.same = model[0]
    marks = ModuleMarks(True, text.write, text.read)
    marks.attach()
    try:
        with torch.no_grad():
            model[0](model(torch.ones(1, 2)))
    finally:
        marks.detach()
    assert text.said == ["Own", "Own.0", "Own", "Own.0", "Own", "", "Own.0", ""]


class Compiled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(4, 4)

    def forward(self, x: Any) -> Any:
        return self.line(x).relu()


@pytest.mark.filterwarnings("ignore:Using `torch.compile:UserWarning")
@pytest.mark.filterwarnings("ignore:`torch.jit.*` is deprecated:DeprecationWarning")
def test_a_compiled_region_is_one_module_and_stays_one_graph() -> None:
    graphs = []

    def backend(graph: Any, _: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    text, part = Text(), Compiled()
    model = nn.Sequential(nn.Linear(4, 4), torch.compile(part, backend=backend))
    marks = ModuleMarks(model, text.write, text.read)
    marks.attach()
    try:
        with torch.no_grad():
            model(torch.ones(2, 4))
    finally:
        marks.detach()
        torch._dynamo.reset()
    assert len(graphs) == 1
    assert text.said == ["", "0", "", "1", "", ""]


def test_the_hooks_of_the_program_on_the_same_tensors_go_on(run: Any) -> None:
    model, _, _, notes = run
    seen: list[str] = []

    def watch(module: Any, args: Any, output: Any) -> None:
        output.register_hook(lambda grad: seen.append("mine"))

    inner = model.first.register_forward_hook(watch)
    for _ in range(2):
        model(torch.ones(2, 4)).sum().backward()
    inner.remove()
    assert seen == ["mine", "mine"]
    assert notes["first backward"] == "first"


def test_the_marks_keep_no_tensor(run: Any) -> None:
    import weakref

    model, _, _, _ = run
    output = model(torch.ones(2, 4))
    gone = weakref.ref(output)
    del output
    assert gone() is None
