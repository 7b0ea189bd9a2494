# SPDX-License-Identifier: Apache-2.0
"""IPython magics, loaded by `%load_ext neutracer`. Importing this module does not import IPython.

`%%neutracer` records a cell, `%neutracer_report` reports on a file or on this process,
`%neutracer_holders` lists tensors kept by the notebook itself.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import re
import shlex
import sys
import time
from types import FrameType
from typing import Any, NoReturn

from neutracer.arguments import reader_name
from neutracer.errors import NeutracerError, UnavailableError
from neutracer.heap.cycles import TensorCycle
from neutracer.heap.holders import HoldersReport, notebook_holders, release_holders
from neutracer.heap.tensor_cycles import find_tensor_cycles
from neutracer.heap.watch import CycleWatch, warn_tensor_cycles
from neutracer.overview import OverviewReport, overview
from neutracer.recording.recorder import DEFAULT_MAX_ENTRIES, snapshot
from neutracer.run.cell import CellRecording, CellReport, cell_report
from neutracer.trace.snapshot import Snapshot, load

__all__ = ["Magics", "load_ipython_extension", "unload_ipython_extension"]

_CELL = "neutracer"
_LINES = ("neutracer_report", "neutracer_holders")


def load_ipython_extension(shell: Any) -> None:
    """Register the magics with IPython's shell; called by `%load_ext neutracer`."""
    magics = Magics(shell)
    shell.register_magic_function(magics.record_cell, "cell", _CELL)
    for name, function in zip(_LINES, (magics.report, magics.holders), strict=True):
        shell.register_magic_function(function, "line", name)


def unload_ipython_extension(shell: Any) -> None:
    """Remove the magics; called by `%unload_ext neutracer`."""
    known = shell.magics_manager.magics
    known["cell"].pop(_CELL, None)
    for name in _LINES:
        known["line"].pop(name, None)


class _Arguments(argparse.ArgumentParser):
    """A parser that raises instead of exiting."""

    def error(self, message: str) -> NoReturn:
        raise _wrong(f"{message}\n{self.format_usage()}")


def _wrong(message: str) -> Exception:
    """An error that IPython shows as one line, without a traceback."""
    error: Exception = importlib.import_module("IPython.core.error").UsageError(message)
    return error


def _loaded(path: str) -> Snapshot:
    try:
        return load(path)
    except FileNotFoundError:
        raise _wrong(f"{path!r} is neither a file nor a variable with a snapshot") from None
    except (NeutracerError, OSError) as error:
        reason = getattr(error, "strerror", None) or error
        raise _wrong(f"{path}: {reason}") from None


class Magics:
    """The magics of one shell."""

    def __init__(self, shell: Any) -> None:
        self._shell = shell
        self._last: Snapshot | None = None

    def record_cell(self, line: str, cell: str) -> object:
        """Run the cell, record its allocations, and show its peak and the memory still held.

        `%%neutracer [NAME] [--max-entries N]`: the report is assigned to NAME, and its
        `.snapshot` serves every other question. With a CPU-only torch it records CPU memory. It
        reports reference cycles that kept tensors.
        """
        parser = _Arguments(prog="%%neutracer", add_help=False, allow_abbrev=False)
        parser.add_argument("name", nargs="?", help="the report's name")
        parser.add_argument("--max-entries", type=int, default=DEFAULT_MAX_ENTRIES)
        options = parser.parse_args(shlex.split(line))
        if options.name is not None and not options.name.isidentifier():
            parser.error(f"not a variable name: {options.name!r}")
        imports, code = self._compiled(cell)
        exec(imports, self._shell.user_ns)
        recording, cycles = _begun(options.max_entries)
        begun = time.perf_counter_ns()
        try:
            return _run(code, self._shell.user_ns)
        finally:
            spent = (time.perf_counter_ns() - begun) // 1000
            recording.end()
            report = cell_report(recording, spent, cycles.end(), cycles.refused)
            self._last = report.snapshot
            if options.name is not None:
                self._shell.user_ns[options.name] = report
            self._show(report)

    # For IPython: a semicolon at the end of the cell suppresses its value.
    record_cell._ipython_magic_output_can_be_silenced = True  # type: ignore[attr-defined]

    def report(self, line: str) -> OverviewReport:
        """Report on a snapshot: a file, the name of a variable, or this process.

        `%neutracer_report [FILE]`. With a CPU-only torch and without a file, it reports on the
        last cell that `%%neutracer` recorded.
        """
        names = shlex.split(line)
        if len(names) > 1:
            raise _wrong("usage: %neutracer_report [FILE]")
        if names:
            known = self._shell.user_ns.get(names[0])
            if isinstance(known, CellReport):
                known = known.snapshot
            if isinstance(known, Snapshot):
                return overview(known, title=names[0])
            return overview(_loaded(names[0]), names[0])
        try:
            return overview(snapshot())
        except UnavailableError as error:
            if self._last is None:
                raise _wrong(str(error)) from None
            return overview(self._last, title="the last recorded cell")

    def holders(self, line: str) -> HoldersReport:
        """List tensors kept by variables, and by the notebook's outputs and past exceptions.

        `%neutracer_holders [--release]`: `--release` drops outputs and exceptions.
        """
        options = shlex.split(line)
        if options not in ([], ["--release"]):
            raise _wrong("usage: %neutracer_holders [--release]")
        return release_holders() if options else notebook_holders()

    def _compiled(self, cell: str) -> tuple[Any, tuple[Any, Any]]:
        """The cell's leading imports if torch is not imported yet, its other statements, and its
        last expression if it ends in one."""
        shell = self._shell
        # The cell's first line is the magic; IPython drops empty lines after it.
        above = 1 + cell[: len(cell) - len(cell.lstrip())].count("\n")
        text = "\n" * above + shell.transform_cell(cell)
        name = shell.compile.cache(text, self._number(), raw_code=f"%%{_CELL}\n{cell}")
        module = shell.transform_ast(shell.compile.ast_parse(text, filename=name))
        begins = _imports(module) if "torch" not in sys.modules else ast.Module([], [])
        imports = shell.compile(begins, name, "exec")
        last = None
        if module.body and isinstance(module.body[-1], ast.Expr):
            last = shell.compile(ast.Expression(module.body.pop().value), name, "eval")
        return imports, (shell.compile(module, name, "exec"), last)

    def _number(self) -> int:
        """The number of the running cell in its prompt."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            digits = re.fullmatch(r"In\[(\d+)\]", reader_name(frame.f_code.co_filename))
            if digits:
                return int(digits[1])
            frame = frame.f_back
        return int(self._shell.execution_count)

    def _show(self, report: CellReport) -> None:
        importlib.import_module("IPython.display").display(report)


def _imports(module: ast.Module) -> ast.Module:
    """Remove and return the leading imports of a module."""
    count = 0
    while count < len(module.body) and isinstance(module.body[count], (ast.Import, ast.ImportFrom)):
        count += 1
    begins, module.body = module.body[:count], module.body[count:]
    return ast.Module(begins, [])


def _begun(max_entries: int) -> tuple[CellRecording, _Cycles]:
    """Begin recording a cell and watching for its cycles."""
    try:
        recording = CellRecording(max_entries)
        on_cpu = recording.backend == "cpu" or not recording.follows
        cycles = _Cycles("cpu" if on_cpu else None)
        recording.begin()
    except UnavailableError as error:
        raise _wrong(str(error)) from None
    return recording, cycles


def _run(code: tuple[Any, Any], names: dict[str, Any]) -> object:
    statements, last = code
    exec(statements, names)
    return None if last is None else eval(last, names)


class _Cycles:
    """The reference cycles of a cell: those found by collections, and those left at its end."""

    def __init__(self, device: str | None) -> None:
        self._device = device
        self._watch: CycleWatch | None = None
        self.refused = ""
        try:
            self._before = {cycle.signature: cycle.count for cycle in self._waiting()}
            self._watch = warn_tensor_cycles(device)
        except UnavailableError as error:
            self.refused = str(error)

    def _waiting(self) -> list[TensorCycle]:
        return list(find_tensor_cycles(self._device, include_alive=False))

    def end(self) -> tuple[TensorCycle, ...]:
        if self._watch is None:
            return ()
        self._watch.remove()
        shapes = {cycle.signature: cycle for cycle in self._watch.cycles}
        for cycle in self._waiting():
            if cycle.count > self._before.get(cycle.signature, 0):
                known = shapes.get(cycle.signature)
                shapes[cycle.signature] = cycle if known is None else known.merged(cycle)
        return tuple(sorted(shapes.values(), key=lambda cycle: -cycle.bytes))
