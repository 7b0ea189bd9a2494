# SPDX-License-Identifier: Apache-2.0
"""The watch of the collector: subscribers, other callbacks, threads, forks, the end."""

from __future__ import annotations

import collections
import gc
import subprocess
import sys
import textwrap
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import isolation
import pytest
from compiled import needs_selftest, selftest
from places import TESTS

pytestmark = needs_selftest

Records = list[dict[str, Any]]


class Node:
    """Anything with attributes."""

    def __init__(self) -> None:
        self.me = self


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No collection but those the test asks for, no watch and no callback left behind."""
    added: list[int] = []
    add = selftest.heap_watch_add

    def noted(*arguments: Any, **options: Any) -> int:
        added.append(add(*arguments, **options))
        return added[-1]

    monkeypatch.setattr(selftest, "heap_watch_add", noted)
    isolation.set_aside()
    gc.disable()
    callbacks = gc.callbacks[:]
    numbers = selftest.heap_watch_status()["watches_left"]
    try:
        yield
        status = selftest.heap_watch_status()
        assert status["watches_left"] == numbers
        assert status["records_left"] == 0
        assert gc.callbacks == callbacks
    finally:
        for number in added:
            selftest.heap_watch_remove(number)
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


def listed() -> list[str]:
    return [getattr(callback, "__name__", "") for callback in gc.callbacks]


def run(script: str) -> tuple[int, str, str]:
    """Exit status, output and errors of a script in a process of its own."""
    head = "import gc, os, sys\nfrom neutracer import _selftest as selftest\n"
    head += "class Node:\n    def __init__(self): self.me = self\n"
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", head + textwrap.dedent(script)],
        capture_output=True,
        text=True,
        cwd=TESTS,
        timeout=120,
    )
    return done.returncode, done.stdout, done.stderr


def test_tells_each_collection_that_finds_something() -> None:
    records: Records = []
    watch = selftest.heap_watch_add(records.append)
    before = selftest.heap_watch_status()
    gc.collect(0)
    Node()
    gc.collect(0)
    Node()
    gc.collect(2)
    selftest.heap_watch_remove(watch)
    Node()
    gc.collect()
    assert [record["generation"] for record in records] == [0, 2]
    assert all(record["collected"] == record["count"] for record in records)
    assert [record["survivors"] for record in records] == [[], []]
    after = selftest.heap_watch_status()
    grown = {name: after[name] - before[name] for name in ("collections", "described", "refused")}
    assert grown == {"collections": 3, "described": 2, "refused": 0}
    assert after["spent_ns"] - before["spent_ns"] >= sum(r["pause_ns"] for r in records) > 0
    assert after["longest_ns"] >= max(record["pause_ns"] for record in records)


def test_sees_automatic_collections() -> None:
    records: Records = []
    watch = selftest.heap_watch_add(records.append)
    threshold = gc.get_threshold()
    gc.set_threshold(100, 2, 2)
    gc.enable()
    kept = []
    for _ in range(500):
        Node()
        kept.append([])
    gc.disable()
    gc.set_threshold(*threshold)
    selftest.heap_watch_remove(watch)
    assert {record["generation"] for record in records} >= {0, 1}
    assert sum(record["collected"] for record in records) >= 400


def test_uninterested_subscriber_hears_nothing() -> None:
    watch = selftest.heap_watch_add(None)
    before = selftest.heap_watch_status()
    Node()
    gc.collect()
    after = selftest.heap_watch_status()
    selftest.heap_watch_remove(watch)
    assert after["predicted"] - before["predicted"] > 0
    assert after["described"] == before["described"]


def test_subscribers_share_one_callback() -> None:
    first: Records = []
    second: Records = []
    one = selftest.heap_watch_add(first.append)
    two = selftest.heap_watch_add(second.append)
    assert listed().count("neutracer_watch") == 1
    Node()
    gc.collect()
    assert selftest.heap_watch_remove(one)
    assert not selftest.heap_watch_remove(one)
    assert listed().count("neutracer_watch") == 1
    Node()
    gc.collect()
    assert selftest.heap_watch_is_on(two)
    assert not selftest.heap_watch_is_on(one)
    assert selftest.heap_watch_remove(two)
    assert (len(first), len(second)) == (1, 2)


def test_removal_frees_the_receiver() -> None:
    class Receiver:
        def __call__(self, record: dict[str, Any]) -> None: ...

    receiver = Receiver()
    gone = weakref.ref(receiver)
    watch = selftest.heap_watch_add(receiver)
    del receiver
    assert gone() is not None
    selftest.heap_watch_remove(watch)
    assert gone() is None


def test_receiver_may_remove_its_own_watch() -> None:
    calls: list[bool] = []
    watch = 0

    def receive(record: dict[str, Any]) -> None:
        calls.append(selftest.heap_watch_remove(watch))

    watch = selftest.heap_watch_add(receive)
    for _ in range(3):
        Node()
        gc.collect()
    assert calls == [True]
    assert "neutracer_watch" not in listed()


def test_receiver_may_remove_and_add_others() -> None:
    later: Records = []
    added: list[int] = []

    def receive(record: dict[str, Any]) -> None:
        selftest.heap_watch_remove(other)
        if not added:
            added.append(selftest.heap_watch_add(later.append))

    watch = selftest.heap_watch_add(receive)
    other = selftest.heap_watch_add(later.append)
    Node()
    gc.collect()
    assert later == []  # removed before its turn; the new one begins with the next
    Node()
    gc.collect()
    assert len(later) == 1
    selftest.heap_watch_remove(watch)
    selftest.heap_watch_remove(added[0])


def test_collecting_in_the_receiver_does_nothing() -> None:
    counts: list[int] = []

    def receive(record: dict[str, Any]) -> None:
        Node()
        counts.append(gc.collect())

    watch = selftest.heap_watch_add(receive)
    Node()
    gc.collect()
    selftest.heap_watch_remove(watch)
    assert counts == [0]


def test_exception_of_a_receiver_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    reported: list[str] = []
    records: Records = []
    monkeypatch.setattr(sys, "unraisablehook", lambda told: reported.append(repr(told.exc_value)))

    def fail(record: dict[str, Any]) -> None:
        raise ValueError("from the receiver")

    one = selftest.heap_watch_add(fail)
    two = selftest.heap_watch_add(records.append)
    Node()
    gc.collect()
    selftest.heap_watch_remove(one)
    selftest.heap_watch_remove(two)
    assert reported == ["ValueError('from the receiver')"]
    assert len(records) == 1


def test_failure_to_describe_is_counted() -> None:
    records: Records = []
    before = selftest.heap_watch_status()["refused"]
    failing = selftest.heap_watch_add(records.append, fail=True)
    watch = selftest.heap_watch_add(records.append)
    Node()
    gc.collect()
    status = selftest.heap_watch_status()
    selftest.heap_watch_remove(failing)
    selftest.heap_watch_remove(watch)
    assert status["refused"] - before == 1
    assert status["refusal"] == "asked to fail"
    assert len(records) == 1


def test_resurrected_objects_are_survivors() -> None:
    kept: list[Any] = []

    class Returning(Node):
        def __del__(self) -> None:
            kept.append(self)

    records: Records = []
    watch = selftest.heap_watch_add(records.append)
    made = Returning()
    made.payload = [made]  # type: ignore[attr-defined]
    other = Node()
    del made, other
    gc.collect()
    selftest.heap_watch_remove(watch)
    expected = {id(kept[0]), id(kept[0].payload)}
    if sys.version_info < (3, 11):
        expected.add(id(kept[0].__dict__))
    assert set(records[0]["survivors"]) == expected
    assert records[0]["count"] > len(expected)
    kept.clear()
    gc.collect()


def test_uncollectable_objects_are_survivors() -> None:
    records: Records = []
    watch = selftest.heap_watch_add(records.append)
    gc.set_debug(gc.DEBUG_SAVEALL)
    Node()
    gc.collect()
    selftest.heap_watch_remove(watch)
    assert set(records[0]["survivors"]) == set(map(id, gc.garbage))


# ---- beside other callbacks ------------------------------------------------------------


def test_works_after_callbacks_that_came_later() -> None:
    """A later callback that takes hold of garbage at "start" does not mislead the watch."""
    records: Records = []
    phases: list[str] = []
    saved: list[Any] = []
    made = Node()
    weak = weakref.ref(made)

    def take_hold(phase: str, info: dict[str, int]) -> None:
        phases.append(phase)
        if phase == "start":
            saved.append(weak())

    watch = selftest.heap_watch_add(records.append)
    gc.callbacks.append(take_hold)
    del made
    gc.collect()
    assert records == []
    assert saved[0] is not None
    assert phases == ["start", "stop"]
    assert listed()[-2:] == ["take_hold", "neutracer_watch"]
    saved.clear()
    weak = weakref.ref(Node())  # dead: the hold ends
    gc.collect()
    assert len(records) == 1
    assert phases == ["start", "stop"] * 2
    selftest.heap_watch_remove(watch)
    gc.callbacks.remove(take_hold)


def test_two_that_want_to_be_last_settle() -> None:
    records: Records = []
    calls: collections.Counter[str] = collections.Counter()

    def greedy(phase: str, info: dict[str, int]) -> None:
        calls[phase] += 1
        if gc.callbacks[-1] is not greedy and gc.callbacks.count(greedy) == 1:
            gc.callbacks.append(greedy)

    def modest(phase: str, info: dict[str, int]) -> None:
        calls["modest"] += 1

    watch = selftest.heap_watch_add(records.append)
    gc.callbacks += [greedy, modest]
    for _ in range(10):
        Node()
        gc.collect()
    assert len(records) == 10
    assert calls["modest"] == 20
    assert listed().count("neutracer_watch") <= 2
    selftest.heap_watch_remove(watch)
    while greedy in gc.callbacks:
        gc.callbacks.remove(greedy)
    gc.callbacks.remove(modest)


def test_removal_skips_no_other_callback() -> None:
    calls: list[str] = []
    records: Records = []

    def before(phase: str, info: dict[str, int]) -> None:
        calls.append(f"before {phase}")
        if phase == "stop":
            selftest.heap_watch_remove(watch)

    def after(phase: str, info: dict[str, int]) -> None:
        calls.append(f"after {phase}")

    gc.callbacks.append(before)
    watch = selftest.heap_watch_add(records.append)
    gc.callbacks.append(after)
    Node()
    gc.collect()
    gc.callbacks.remove(before)
    gc.callbacks.remove(after)
    assert calls == ["before start", "after start", "before stop", "after stop"]
    assert records == []


def test_cleared_callbacks_show_in_the_status() -> None:
    records: Records = []
    callbacks = gc.callbacks[:]
    one = selftest.heap_watch_add(records.append)
    assert selftest.heap_watch_status()["listed"]
    gc.callbacks.clear()
    status = selftest.heap_watch_status()
    assert (status["subscribers"], status["listed"]) == (1, False)
    Node()
    gc.collect()
    assert records == []
    gc.callbacks += callbacks
    two = selftest.heap_watch_add(records.append)
    Node()
    gc.collect()
    assert len(records) == 2
    selftest.heap_watch_remove(one)
    selftest.heap_watch_remove(two)


def test_cleared_in_mid_collection_delivers_nothing_late() -> None:
    records: Records = []
    callbacks = gc.callbacks[:]

    class Clears(Node):
        def __del__(self) -> None:
            gc.callbacks.clear()

    watch = selftest.heap_watch_add(records.append)
    Clears()
    gc.collect()
    gc.callbacks += callbacks
    again = selftest.heap_watch_add(records.append)
    Node()
    gc.collect()
    selftest.heap_watch_remove(watch)
    selftest.heap_watch_remove(again)
    assert len(records) == 2
    assert {record["generation"] for record in records} == {2}


def test_watch_added_inside_a_collection_begins() -> None:
    records: Records = []
    numbers: list[int] = []

    class Adds(Node):
        def __del__(self) -> None:
            numbers.append(selftest.heap_watch_add(records.append))

    Adds()
    gc.collect()
    assert records == []
    Node()
    gc.collect()
    assert len(records) == 1
    selftest.heap_watch_remove(numbers[0])


def test_calls_by_others_are_harmless() -> None:
    records: Records = []
    watch = selftest.heap_watch_add(records.append)
    call = gc.callbacks[-1]
    for wrong in ((), ("start",), (1, 2), ("start", {}, 3)):
        with pytest.raises(TypeError, match="only the garbage collector"):
            call(*wrong)
    call("stop", {})
    call("start", {"generation": 77})
    call("start", {})
    call("other", {"generation": -1})
    selftest.heap_watch_remove(watch)


# ---- threads, forks, the end -----------------------------------------------------------


def test_threads_are_seen_exactly() -> None:
    compared: list[bool] = []

    def compare(record: dict[str, Any]) -> None:
        saved = collections.Counter(map(id, gc.garbage))
        compared.append(saved == collections.Counter(record["predicted"]))
        gc.garbage.clear()

    def work() -> None:
        kept: list[Any] = []
        for i in range(3_000):
            node = Node()
            node.row = [{"i": i}, node]  # type: ignore[attr-defined]
            kept.append([i])

    watch = selftest.heap_watch_add(compare, hold=True)
    threshold = gc.get_threshold()
    gc.set_debug(gc.DEBUG_SAVEALL)
    gc.set_threshold(200, 4, 4)
    gc.enable()
    # While one collection is compared no other begins: how many there are in so many rounds
    # depends on how the threads take turns.
    for _ in range(10):
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if len(compared) > 50:
            break
    gc.disable()
    gc.set_threshold(*threshold)
    selftest.heap_watch_remove(watch)
    assert len(compared) > 50
    assert all(compared)


needs_fork = pytest.mark.skipif(not hasattr(__import__("os"), "fork"), reason="needs fork")


@needs_fork
def test_child_begins_anew() -> None:
    status, out, err = run(
        """
        records = []
        selftest.heap_watch_add(records.append)
        Node(); gc.collect()
        child = os.fork()
        if child == 0:
            records.clear()
            before = selftest.heap_watch_status()
            Node(); gc.collect()
            after = selftest.heap_watch_status()
            right = before["collections"] == 0 and after["collections"] == 1
            os._exit(0 if right and len(records) == 1 else 1)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), len(records))
        """
    )
    assert (status, out) == (0, "0 1\n"), err


@needs_fork
def test_fork_in_a_finalizer_delivers_once() -> None:
    status, out, err = run(
        """
        child = None
        records = []
        class Forks(Node):
            def __del__(self):
                global child
                child = os.fork()
        selftest.heap_watch_add(records.append)
        Forks(); gc.collect()
        if child == 0:
            left = selftest.heap_watch_status()["records_left"]
            os._exit(len(records) + left)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), len(records))
        """
    )
    assert (status, out) == (0, "0 1\n"), err


@needs_fork
def test_fork_in_a_receiver_ends_the_round() -> None:
    status, out, err = run(
        """
        child = None
        records = []
        def forks(record):
            global child
            child = os.fork()
        selftest.heap_watch_add(forks)
        selftest.heap_watch_add(records.append)
        Node(); gc.collect()
        if child == 0:
            left = selftest.heap_watch_status()["records_left"]
            os._exit(len(records) + left)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), len(records))
        """
    )
    assert (status, out) == (0, "0 1\n"), err


def test_last_collection_is_still_seen() -> None:
    status, out, err = run(
        """
        import atexit
        def receive(record):
            print("found", record["count"] > 0, flush=True)
        atexit.register(lambda: print("atexit", flush=True))
        gc.collect()
        selftest.heap_watch_add(receive)
        Node()
        """
    )
    assert (status, out, err) == (0, "atexit\nfound True\n", "")


def test_teardown_of_modules_is_silent() -> None:
    status, out, err = run(
        """
        import threading
        class Late:
            def __del__(self):
                kept = [Node() for _ in range(5_000)]
        selftest.heap_watch_add(lambda record: len([str(record)]) and threading.local())
        gc.set_threshold(20, 2, 2)
        late = Late()
        late.me = [late, lambda: late]
        other = sys.modules["late"] = Late()
        """
    )
    assert (status, out, err) == (0, "", "")


def test_subinterpreters_have_their_own() -> None:
    status, out, err = run(
        """
        try:
            import _interpreters as interpreters
            made = interpreters.create("legacy")
        except ImportError:
            import _xxsubinterpreters as interpreters
            made = interpreters.create(isolated=False)
        code = '''
        import gc
        from neutracer import _selftest as selftest
        records = []
        watch = selftest.heap_watch_add(records.append)
        items = []; items.append(items); del items
        gc.collect()
        print(len(records), selftest.heap_watch_status()["collections"], flush=True)
        '''
        records = []
        selftest.heap_watch_add(records.append)
        interpreters.run_string(made, "\\n".join(line.strip() for line in code.splitlines()))
        print(len(records), flush=True)
        Node(); gc.collect()
        print(len(records), flush=True)
        interpreters.destroy(made)
        Node(); gc.collect()
        print(len(records), selftest.heap_watch_status()["watches_left"], flush=True)
        """
    )
    assert (status, out) == (0, "1 1\n0\n1\n2 1\n"), err


def test_unknown_layout_refuses_a_watch(tmp_path: Path) -> None:
    status, out, err = run(
        """
        gc.get_threshold = lambda: (1, 2, 3)
        try:
            selftest.heap_watch_add(print)
        except RuntimeError as error:
            print("thresholds" in str(error), gc.callbacks)
        """
    )
    assert (status, out, err) == (0, "True []\n", "")
