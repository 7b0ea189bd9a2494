# SPDX-License-Identifier: Apache-2.0
"""The reader of Python's frames behind the hooks, in this interpreter and without torch."""

from __future__ import annotations

import asyncio
import gc
import importlib.machinery
import importlib.util
import shutil
import subprocess
import sysconfig
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from places import ROOT


@pytest.fixture(scope="module")
def module(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """csrc/torch/nt_torch_frames.cpp, compiled and imported."""
    if not shutil.which("g++"):
        pytest.skip("needs g++")
    python = sysconfig.get_path("include")
    if not (Path(python) / "Python.h").exists():
        pytest.skip("needs the headers of Python")
    path = tmp_path_factory.mktemp("frames") / "frames_module.so"
    command = ["g++", "-std=c++17", "-O2", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared"]
    command += [f"-I{ROOT / 'csrc/torch'}", f"-I{ROOT / 'csrc/core'}", "-isystem", python]
    command += [str(ROOT / "csrc/torch/nt_torch_frames.cpp")]
    command += [str(ROOT / "tests/fakes/frames_module.cpp"), "-o", str(path)]
    subprocess.run(command, check=True)
    loader = importlib.machinery.ExtensionFileLoader("frames_module", str(path))
    spec = importlib.util.spec_from_loader("frames_module", loader)
    assert spec is not None
    made = importlib.util.module_from_spec(spec)
    loader.exec_module(made)
    return made


@pytest.fixture
def compare(module: Any) -> Callable[[], None]:
    """A function that fails where frames read without Python differ from Python's."""
    if module.refused() is not None:
        pytest.skip(module.refused())

    def check() -> None:
        assert module.differ() is None

    return check


def test_code_is_described_as_python_names_it(module: Any, compare: Callable[[], None]) -> None:
    def größe() -> Any:
        return module.innermost()

    code = größe.__code__
    assert größe() == (code.co_name, code.co_filename, code.co_firstlineno)


def test_frames_agree_in_generators_and_coroutines(compare: Callable[[], None]) -> None:
    def inner() -> Iterator[int]:
        compare()
        yield 1

    def outer() -> Iterator[int]:
        compare()
        yield from inner()
        compare()

    async def numbers() -> Any:
        compare()
        yield 1

    async def program() -> None:
        await asyncio.sleep(0)
        compare()
        async for _ in numbers():
            compare()

    assert list(outer()) == [1]
    asyncio.run(program())


def test_frames_agree_where_c_calls_python(compare: Callable[[], None]) -> None:
    class Made(type):
        def __call__(cls, *arguments: Any) -> Any:
            compare()
            return super().__call__(*arguments)

    class Thing(metaclass=Made):
        def __init__(self) -> None:
            compare()

        def __eq__(self, other: object) -> bool:
            compare()
            return True

        def __hash__(self) -> int:
            compare()
            return 1

    assert {Thing(): 1}[Thing()] == 1
    assert sorted([2, 1], key=lambda number: (compare(), number)[1]) == [1, 2]
    exec("compare()", {"compare": compare})


def test_frames_agree_while_objects_die(module: Any, compare: Callable[[], None]) -> None:
    said: list[Any] = []

    class Dying:
        def __del__(self) -> None:
            said.append(module.differ())

    def holder() -> None:
        _ = Dying()

    holder()
    ring: list[Any] = [Dying()]
    ring.append(ring)
    del ring
    gc.collect()
    assert said == [None, None]


def test_frames_agree_in_deep_and_other_threads(compare: Callable[[], None]) -> None:
    def deeper(depth: int) -> None:
        if depth:
            deeper(depth - 1)
        else:
            compare()

    failures: list[BaseException] = []

    def work() -> None:
        try:
            deeper(3)
        except BaseException as error:
            failures.append(error)

    deeper(60)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert failures == []
