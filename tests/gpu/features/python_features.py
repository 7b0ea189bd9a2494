# SPDX-License-Identifier: Apache-2.0
"""Features of Python in training programs: tracing, signals, threads, processes, the collector."""

from __future__ import annotations

import asyncio
import atexit
import contextvars
import cProfile
import faulthandler
import gc
import multiprocessing
import os
import queue
import signal
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from base import feature, model_of, train
from torch.utils.data import DataLoader, Dataset, IterableDataset


def _own_calls(frame: Any) -> bool:
    return bool(frame.f_code.co_filename == __file__)


@feature()
def cprofile(device: str) -> Any:
    model = model_of(device)
    profile = cProfile.Profile()
    found = profile.runcall(train, model, model, device)
    profile.create_stats()
    names = {key[2] for key in profile.stats}  # type: ignore[attr-defined]
    return [found, "train" in names, "forward" in names]


@feature()
def settrace(device: str) -> Any:
    lines: list[Any] = []

    def step() -> torch.Tensor:
        x = torch.ones(4, device=device)
        return x + 1

    def trace(frame: Any, event: str, argument: Any) -> Any:
        if _own_calls(frame):
            lines.append((frame.f_code.co_name, event))
            return trace
        return None

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        found = step()
    finally:
        sys.settrace(before)
    return [found, lines]


@feature()
def setprofile(device: str) -> Any:
    calls: list[Any] = []

    def profile(frame: Any, event: str, argument: Any) -> None:
        if _own_calls(frame) and event in ("call", "return"):
            calls.append((frame.f_code.co_name, event))

    def step() -> torch.Tensor:
        return torch.ones(4, device=device) * 2

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        found = step()
    finally:
        sys.setprofile(before)
    return [found, [call for call in calls if call[0] == "step"]]


@feature()
def signal_handlers(device: str) -> Any:
    seen: list[int] = []
    numbers = (signal.SIGUSR1, signal.SIGALRM, signal.SIGTERM)
    before = [signal.signal(one, lambda n, f: seen.append(n)) for one in numbers]
    try:
        for one in numbers:
            os.kill(os.getpid(), one)
            torch.ones(4, device=device).sum().item()
        signal.setitimer(signal.ITIMER_REAL, 0.02)
        end = time.monotonic() + 5
        while len(seen) < 4 and time.monotonic() < end:
            torch.ones(4, device=device).sum().item()
    finally:
        for one, handler in zip(numbers, before, strict=True):
            signal.signal(one, handler)
    return [seen, before[2] is signal.SIG_DFL]


@feature()
def exception_from_a_signal(device: str) -> Any:
    def handle(number: int, frame: Any) -> None:
        raise TimeoutError("time is up")

    before = signal.signal(signal.SIGALRM, handle)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        model = model_of(device)
        while True:
            model(torch.randn(8, 64, device=device)).sum().backward()
    except TimeoutError as error:
        return error
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@feature()
def threads(device: str) -> Any:
    results: queue.Queue[Any] = queue.Queue()

    def work(number: int) -> None:
        own = torch.Generator(device=device)
        own.manual_seed(number)
        x = torch.rand(64, 64, device=device, generator=own, requires_grad=True)
        for _ in range(20):
            x.grad = None
            (x @ x).sum().backward()
        results.put((number, x.grad))

    workers = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return sorted((results.get() for _ in workers), key=lambda found: found[0])


@feature()
def pool_of_threads(device: str) -> Any:
    local = threading.local()
    context = contextvars.ContextVar("context", default=1)

    def work(number: int) -> Any:
        local.x = torch.full((9,), number, device=device)
        with torch.no_grad():
            return local.x * context.get()

    with ThreadPoolExecutor(4) as pool:
        return list(pool.map(work, range(40)))


@feature()
def generators(device: str) -> Any:
    def batches(count: int) -> Iterator[torch.Tensor]:
        try:
            for number in range(count):
                yield torch.full((8,), float(number), device=device, requires_grad=True)
        finally:
            torch.ones(3, device=device).sum().item()

    running = batches(9)
    first = [next(running) for _ in range(3)]
    running.close()
    try:
        batches(1).throw(ValueError("thrown"))
    except ValueError as error:
        return [first, error, [batch * 2 for batch in batches(4)]]
    return None


@feature()
def coroutines(device: str) -> Any:
    async def step(number: int) -> torch.Tensor:
        x = torch.full((8,), float(number), device=device, requires_grad=True)
        await asyncio.sleep(0)
        x.square().sum().backward()
        assert x.grad is not None
        return x.grad

    async def stream() -> AsyncIterator[torch.Tensor]:
        for number in range(5):
            yield await step(number)

    async def main() -> Any:
        loop = asyncio.get_running_loop()
        seen: list[int] = []
        loop.add_signal_handler(signal.SIGUSR1, lambda: seen.append(1))
        os.kill(os.getpid(), signal.SIGUSR1)
        together = await asyncio.gather(*(step(number) for number in range(5)))
        streamed = [x async for x in stream()]
        while not seen:
            await asyncio.sleep(0.01)
        loop.remove_signal_handler(signal.SIGUSR1)
        cancelled = asyncio.create_task(asyncio.sleep(60))
        await asyncio.sleep(0)
        cancelled.cancel()
        try:
            await cancelled
        except asyncio.CancelledError:
            seen.append(2)
        return [together, streamed, seen]

    return asyncio.run(main())


class Numbers(Dataset[Any]):
    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> Any:
        return torch.full((4,), float(index)), index


class Endless(IterableDataset[Any]):
    def __iter__(self) -> Iterator[torch.Tensor]:
        for number in range(12):
            yield torch.full((3,), number)


class Broken(Numbers):
    def __getitem__(self, index: int) -> Any:
        if index == 13:
            raise ValueError("no number 13")
        return super().__getitem__(index)


def _epochs(device: str, **options: Any) -> Any:
    loader: Any = DataLoader(Numbers(), batch_size=5, shuffle=True, **options)
    return [[x.to(device) * 2, i] for _ in range(2) for x, i in loader]


@feature()
def data_loader(device: str) -> Any:
    return [_epochs(device), list(DataLoader(Endless(), batch_size=4))]


@feature()
def data_loader_with_forked_workers(device: str) -> Any:
    return _epochs(device, num_workers=2, multiprocessing_context="fork", persistent_workers=True)


@feature(quick=False)
def data_loader_with_spawned_workers(device: str) -> Any:
    return _epochs(device, num_workers=1, multiprocessing_context="spawn")


@feature(cuda=True)
def data_loader_that_pins(device: str) -> Any:
    return _epochs(device, num_workers=2, multiprocessing_context="fork", pin_memory=True)


@feature()
def data_loader_that_fails(device: str) -> Any:
    found: list[Any] = []
    for workers in (0, 2):
        try:
            list(DataLoader(Broken(), batch_size=4, num_workers=workers))
        except ValueError as error:
            found.append("no number 13" in str(error))
    return found


def _child(sent: Any) -> None:
    sent.send(sum(range(100)))


@feature()
def processes(device: str) -> Any:
    context = multiprocessing.get_context("fork")
    receiving, sending = context.Pipe()
    child = context.Process(target=_child, args=(sending,))
    child.start()
    told = receiving.recv()
    child.join()
    sleeper = context.Process(target=time.sleep, args=(60,))
    sleeper.start()
    sleeper.terminate()
    sleeper.join()
    return [told, child.exitcode, sleeper.exitcode]


@feature()
def fork_and_exit(device: str) -> Any:
    torch.ones(4, device=device)
    codes = []
    for code in (0, 5):
        child = os.fork()
        if child == 0:
            os._exit(code)
        codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    return codes


@feature()
def collector_frozen_and_off(device: str) -> Any:
    model = model_of(device)
    gc.freeze()
    first = train(model, model, device)
    gc.unfreeze()
    gc.disable()
    second = train(model, model, device)
    was = gc.isenabled()
    gc.enable()
    return [first, second, was, gc.isenabled()]


@feature()
def collector_called_often(device: str) -> Any:
    threshold = gc.get_threshold()
    gc.set_threshold(50, 2, 2)
    phases: list[str] = []
    gc.callbacks.append(lambda phase, info: phases.append(phase))
    mine = gc.callbacks[-1]
    try:
        for _ in range(20):
            cycle: list[Any] = [torch.ones(64, device=device)]
            cycle.append(cycle)
            gc.collect(0)
        model = model_of(device)
        found = train(model, model, device)
    finally:
        gc.callbacks.remove(mine)
        gc.set_threshold(*threshold)
    return [found, phases[:2], gc.get_threshold() == threshold]


@feature()
def debug_of_the_collector(device: str) -> Any:
    gc.collect()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        cycle: dict[str, Any] = {"x": torch.ones(16, device=device)}
        cycle["me"] = cycle
        del cycle
        gc.collect()
        kept = [one["x"] for one in gc.garbage if isinstance(one, dict) and "me" in one]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
    return kept


@feature()
def fault_handler(device: str) -> Any:
    with tempfile.TemporaryFile() as file:
        was = faulthandler.is_enabled()
        faulthandler.enable(file)
        faulthandler.dump_traceback(file, all_threads=False)
        torch.ones(4, device=device)
        file.seek(0)
        told = b"fault_handler" in file.read()
        faulthandler.disable()
        if was:
            faulthandler.enable()
    return told


@feature()
def at_exit_registered(device: str) -> Any:
    calls: list[int] = []
    atexit.register(calls.append, 1)
    atexit.unregister(calls.append)
    return len(calls)


@feature()
def warnings_as_errors(device: str) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = model_of(device)
        found = train(model, model, device)
        try:
            warnings.warn("mine", UserWarning, stacklevel=1)
        except UserWarning as error:
            return [found, error]
    return None


@feature()
def recursion(device: str) -> Any:
    def down(depth: int) -> torch.Tensor:
        return torch.ones(2, device=device) if depth == 0 else down(depth - 1) + 1

    def forever(x: torch.Tensor) -> Any:
        return forever(x + 1)

    try:
        forever(torch.ones(2, device=device))
    except RecursionError as error:
        return [down(200), type(error).__name__]
    return None


@feature()
def code_made_at_run_time(device: str) -> Any:
    space: dict[str, Any] = {"torch": torch, "device": device}
    for number in range(30):
        text = f"def f():\n return torch.full(({number + 1},), {number}., device=device)\n"
        exec(compile(text, f"<made {number}>", "exec"), space)
        space[f"x{number}"] = space["f"]()
        del space["f"]
    return [space[f"x{number}"] for number in range(30)]


@feature()
def contexts_that_fail(device: str) -> Any:
    class Context:
        def __enter__(self) -> torch.Tensor:
            self.x = torch.ones(4, device=device)
            return self.x

        def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
            del self.x
            raise OSError("closing failed")

    try:
        with Context() as x:
            raise ValueError(f"{float(x.sum())}")
    except OSError as error:
        return [error, error.__context__]
    return None
