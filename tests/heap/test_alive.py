# SPDX-License-Identifier: Apache-2.0
"""Why something is alive: the chains, by whom they begin and how they are named."""

from __future__ import annotations

import ctypes
import functools
import gc
import json
import sys
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from neutracer.heap.alive import AliveReport, why_alive
from neutracer.render.report import dumps

HERE = Path(__file__).name
ME = f"module {__name__}"


class Thing:
    """Something that can be referred to, weakly too."""

    part: Any


KEPT: dict[str, Any] = {}
TRAINER = Thing()


@pytest.fixture(autouse=True)
def empty() -> Iterator[None]:
    yield
    KEPT.clear()
    vars(TRAINER).clear()


def chains(reference: weakref.ref[Any], most: int = 3) -> tuple[str, ...]:
    """The chains of an object that nobody but its real holders holds.

    Results go to variables before they are asserted: pytest keeps each value of an
    assertion in a variable of its own, which is a holder like any other.
    """
    return why_alive(reference(), most).chains


def kept(value: Any, key: str = "it") -> weakref.ref[Any]:
    KEPT[key] = value
    return weakref.ref(value)


def test_module_global_is_named() -> None:
    TRAINER.part = {"weight": [Thing()]}
    found = chains(weakref.ref(TRAINER.part["weight"][0]))
    assert found == (f"{ME} → TRAINER → .part → ['weight'] → [0]",)


def test_call_itself_is_no_holder() -> None:
    report = why_alive(Thing())
    assert (report.chains, report.reachable, report.findings) == ((), False, ())
    text = " ".join(str(report).split())
    assert "it is freed when you drop yours" in text


def test_variable_of_the_caller_is_named() -> None:
    thing = Thing()
    (chain,) = why_alive(thing).chains
    name = "test_variable_of_the_caller_is_named"
    # The function's qualified name, and the line that it stands at.
    line = sys._getframe().f_lineno - 3
    assert chain == f"frame of {name}, {HERE}:{line} → local thing"


def test_asking_functions_own_variable_comes_last() -> None:
    thing = KEPT["it"] = Thing()
    KEPT["again"] = thing
    module_first = [chain.partition(" ")[0] for chain in why_alive(thing).chains]
    assert module_first == ["module", "module", "frame"]


def test_frames_of_a_notebook_are_no_holders() -> None:
    space: dict[str, Any] = {"why_alive": why_alive}
    text = "def run_cell(thing):\n    return call(thing)\n"
    path = "/lib/IPython/core/interactiveshell.py"
    exec(compile(text, path, "exec"), space)
    space["call"] = lambda given: why_alive(given, 20)
    (chain,) = space["run_cell"](Thing()).chains
    assert "<lambda>" in chain
    assert chain.endswith("local given")


def test_keyword_argument_is_no_holder() -> None:
    report = why_alive(obj=Thing(), max_paths=2)
    assert (report.chains, report.findings) == ((), ())


def test_variable_of_another_thread_is_named() -> None:
    ready, done = threading.Event(), threading.Event()
    found: list[weakref.ref[Any]] = []

    def work() -> None:
        secret = Thing()
        found.append(weakref.ref(secret))
        ready.set()
        done.wait()

    thread = threading.Thread(target=work, name="loader-7")
    thread.start()
    ready.wait()
    try:
        (chain,) = chains(found[0])
    finally:
        done.set()
        thread.join()
    assert chain.startswith("frame of ")
    assert f"work in thread loader-7, {HERE}:" in chain
    assert chain.endswith(" → local secret")


def test_thread_local_value_is_named() -> None:
    local = threading.local()
    local.part = Thing()
    KEPT["local"] = local
    reference = weakref.ref(local.part)
    del local
    (chain,) = chains(reference)
    assert chain.startswith(f"{ME} → KEPT → ['local'] → ")
    assert chain.endswith("['part']")


def test_closure_is_named() -> None:
    def outer() -> Any:
        part = Thing()
        return lambda: part

    KEPT["function"] = outer()
    found = chains(weakref.ref(KEPT["function"]()))
    assert found == (f"{ME} → KEPT → ['function'] → closure part",)


def test_cache_is_named_with_its_advice() -> None:
    @functools.lru_cache
    def make(number: int) -> Thing:
        return Thing()

    KEPT["make"] = make
    reference = weakref.ref(make(3))
    del make
    report = why_alive(reference())
    assert report.chains[0].startswith(f"{ME} → KEPT → ['make'] → ")
    assert "cache_clear()" in str(report.findings[0].advice[0])


def test_suspended_generator_is_named() -> None:
    def numbers() -> Iterator[int]:
        part = Thing()
        KEPT["part"] = weakref.ref(part)
        yield 1
        del part

    KEPT["generator"] = numbers()
    next(KEPT["generator"])
    assert chains(KEPT["part"]) == (f"{ME} → KEPT → ['generator'] → local part",)


def test_exception_is_named_with_its_advice() -> None:
    def fail() -> None:
        part = Thing()
        KEPT["part"] = weakref.ref(part)
        raise LookupError

    try:
        fail()
    except LookupError as error:
        KEPT["error"] = error
    report = why_alive(KEPT["part"]())
    assert report.chains[0] == (
        f"{ME} → KEPT → ['error'] → __traceback__ → tb_next → tb_frame → local part"
    )
    assert "clear_frames" in str(report.findings[0].advice[0])


def test_exception_being_handled_is_named() -> None:
    def fail() -> None:
        part = Thing()
        KEPT["part"] = weakref.ref(part)
        raise LookupError

    try:
        fail()
    except LookupError:
        found = chains(KEPT["part"])
    assert found[0].startswith("main thread → ")
    assert "exception being handled" in found[0]
    assert found[0].endswith("local part")


def test_last_exception_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    error = LookupError()
    error.part = Thing()  # type: ignore[attr-defined]
    reference = weakref.ref(error.part)  # type: ignore[attr-defined]
    monkeypatch.setattr(sys, "last_value", error, raising=False)
    del error
    report = why_alive(reference())
    assert report.chains == ("module sys → last_value → .part",)
    assert "release_holders" in str(report.findings[0].advice[0])


def test_weakly_keyed_value_is_named() -> None:
    key = Thing()
    KEPT["key"], KEPT["map"] = key, weakref.WeakKeyDictionary({key: Thing()})
    reference = weakref.ref(KEPT["map"][key])
    assert chains(reference) == (f"{ME} → KEPT → ['map'] → .data → [<weak Thing>]",)


def test_string_in_a_list_is_named() -> None:
    KEPT["names"] = ["".join(["only", "here"])]
    report = why_alive(KEPT["names"][0])
    assert report.chains == (f"{ME} → KEPT → ['names'] → [0]",)


def test_value_of_an_untracked_dict_is_named() -> None:
    KEPT["sizes"] = {"one": float("1.25")}
    report = why_alive(KEPT["sizes"]["one"])
    assert report.chains == (f"{ME} → KEPT → ['sizes'] → ['one']",)


def test_value_in_use_of_a_running_loop_is_named() -> None:
    found = []
    for thing in iter([Thing(), Thing()]):
        reference = weakref.ref(thing)
        del thing
        found.append(chains(reference)[0])
    assert "list_iterator" in found[0]


def test_call_by_way_of_c_is_no_holder() -> None:
    (report,) = map(why_alive, [Thing()])
    # The list of the arguments is a real holder, a value in use.
    assert "list_iterator" in report.chains[0] or not report.reachable
    report = functools.partial(why_alive, Thing())()
    assert report.unexplained_references == 0


def test_variable_that_is_borrowed_hides_no_holder() -> None:
    # From 3.14 on a parameter may be borrowed from the caller's variable.
    def inner(parameter: object) -> Any:
        return why_alive(parameter)

    def outer(parameter: object) -> Any:
        return [parameter, inner(parameter)][1]

    thing = Thing()
    address = ctypes.c_void_p(id(thing))
    before = outer(thing).unexplained_references
    ctypes.pythonapi.Py_IncRef(address)
    try:
        held = outer(thing)
    finally:
        ctypes.pythonapi.Py_DecRef(address)
    # 3.10 does not say what the frames that run are computing.
    assert before == 0 or sys.version_info < (3, 11)
    assert held.unexplained_references == before + 1
    assert any("inner" in chain for chain in map(str, outer(thing).chains))


def test_garbage_is_kept_by_nothing() -> None:
    gc.disable()
    try:
        thing = Thing()
        thing.part = thing
        reference = weakref.ref(thing)
        del thing
        report = why_alive(reference())
    finally:
        gc.enable()
    assert not report.reachable
    assert report.chains == ()
    assert [finding.kind for finding in report.findings] == ["held_by_garbage"]


def test_several_chains_have_different_referrers() -> None:
    thing = Thing()
    KEPT["one"], KEPT["two"] = [thing], (thing,)
    TRAINER.part = thing
    reference = weakref.ref(thing)
    del thing
    assert set(chains(reference)) == {
        f"{ME} → TRAINER → .part",
        f"{ME} → KEPT → ['one'] → [0]",
        f"{ME} → KEPT → ['two'] → [0]",
    }
    assert len(chains(reference, 2)) == 2


def test_number_of_chains_is_checked() -> None:
    for wrong in (0, -1, 101):
        with pytest.raises(ValueError, match="max_paths"):
            why_alive(Thing(), wrong)


def test_graph_joins_the_chains() -> None:
    thing = Thing()
    KEPT["one"], KEPT["two"] = [thing], [thing]
    reference = weakref.ref(thing)
    del thing
    report = why_alive(reference())
    nodes, edges = report.graph.nodes, report.graph.edges
    assert [node.label for node in nodes].count("Thing") == 1
    assert [node.label for node in nodes].count(ME) == 1
    assert sum(nodes[edge.target].label == "Thing" for edge in edges) == 2
    assert sum(nodes[edge.source].label == ME for edge in edges) == 1


def test_report_is_plain_data() -> None:
    reference = kept(Thing())
    report = why_alive(reference())
    KEPT.clear()
    assert reference() is None
    plain = json.loads(dumps(report.to_dict()))
    assert plain["schema"] == "neutracer.alive/1"
    assert plain["chains"] == list(report.chains)
    assert isinstance(report, AliveReport)


def test_nobody_of_the_program_runs() -> None:
    called: list[str] = []

    class Loud:
        def __getattr__(self, name: str) -> Any:
            called.append(name)
            raise AttributeError(name)

        def __eq__(self, other: object) -> bool:
            called.append("__eq__")
            return False

        def __hash__(self) -> int:
            called.append("__hash__")
            return 1

        def __repr__(self) -> str:
            called.append("__repr__")
            return "Loud"

    loud = Loud()
    KEPT["loud"] = {loud: [loud]}
    called.clear()
    report = why_alive(loud)
    text = str(report)
    assert called == []
    assert "Loud" in text


# ---- what torch holds --------------------------------------------------------------------


def test_parameter_is_reached_through_its_model(torch: Any) -> None:
    KEPT["model"] = torch.nn.Linear(2, 2)
    (chain,) = why_alive(KEPT["model"].weight).chains
    assert chain == f"{ME} → KEPT → ['model'] → ._parameters → ['weight']"


def test_tensor_that_only_a_graph_keeps_is_named(torch: Any) -> None:
    def forward() -> tuple[Any, weakref.ref[Any]]:
        inner = torch.ones(5, requires_grad=True).exp()
        return (inner * inner).sum(), weakref.ref(inner)

    KEPT["loss"], reference = forward()
    report = why_alive(reference())
    assert report.chains[0].startswith(
        f"{ME} → KEPT → ['loss'] → .grad_fn → .next_functions[0] → ._saved_"
    )
    assert report.cxx_references == 0
    assert "loss.item()" in str(report.findings[0].advice[0])
    assert report.target == "Tensor [5] float32 cpu"
    assert report.bytes == 20


def test_base_of_a_view_is_named(torch: Any) -> None:
    base = torch.zeros(6)
    KEPT["view"] = base.view(2, 3)
    reference = weakref.ref(base)
    del base
    assert chains(reference) == (f"{ME} → KEPT → ['view'] → ._base",)


@pytest.mark.filterwarnings("ignore")
def test_tensor_that_cxx_holds_says_so(torch: Any) -> None:
    tensor = torch.zeros(7)
    # A dict of C++, which Python does not see into.
    KEPT["script"] = torch.jit.script({"one": tensor})
    reference = weakref.ref(tensor)
    del tensor
    report = why_alive(reference())
    assert not report.reachable
    assert report.cxx_references == 1
    assert "in C++" in report.findings[-1].message


def test_object_that_c_holds_says_so(torch: Any) -> None:
    future = torch.futures.Future()
    future.set_result(Thing())
    reference = weakref.ref(future.value())
    report = why_alive(reference())
    assert not report.reachable
    assert report.unexplained_references >= 1
    assert [finding.kind for finding in report.findings] == ["held_by_native_code"]


def test_class_body_has_its_variable_named() -> None:
    class Body:
        part = Thing()
        found = chains(weakref.ref(part))

    assert Body.found[0].endswith("→ local part")


def test_each_name_in_one_dict_is_a_chain() -> None:
    kept = {"first": [object()]}
    kept["second"] = kept["first"]
    held = why_alive(kept["first"])
    ends = [chain.rpartition(" → ")[2] for chain in held.chains]
    assert {"['first']", "['second']"} <= set(ends)
    assert len(set(held.chains)) == len(held.chains)


def test_a_name_that_two_dicts_share_is_not_guessed_from() -> None:
    value = [object()]
    one, other = {"a": value, "b": value}, {"a": value, "c": value}
    held = why_alive(one["a"], max_paths=20)
    assert not any("other" in chain and "['b']" in chain for chain in held.chains)
    assert not any("one" in chain and "['c']" in chain for chain in held.chains)
    del other


def test_keys_of_a_dict_run_no_code() -> None:
    class Key(str):
        def __str__(self) -> str:
            raise AssertionError("the program's code ran")

        __repr__ = __str__

    tensor = [object()]
    names = {"plain": tensor, "other": tensor, Key("own"): tensor}
    assert "plain" in str(why_alive(tensor, max_paths=10))
    assert len(names) == 3
