# SPDX-License-Identifier: Apache-2.0
"""The questions about snapshots as tools of a Model Context Protocol server, read-only."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import ToolAnnotations

import neutracer
from neutracer.cli.parts import device_size, log_text, without_history_warning
from neutracer.errors import NeutracerError
from neutracer.integrations.sql import query as run_query
from neutracer.oom.bill import bill_at
from neutracer.oom.messages import messages_report
from neutracer.rank.reduce import listed
from neutracer.render.document import Document, Figure, Table, clean, shorten_right
from neutracer.render.text import WIDTH, fitting, layout, line_text
from neutracer.trace.beside import sidecar_paths
from neutracer.trace.marks import turns_of
from neutracer.trace.snapshot import Snapshot
from neutracer.units import format_count

# An answer is below 4 kB, the line that says how to get more among them.
_MOST_BYTES = 3_900
_MORE_BYTES = 80
_MOST_COLUMNS = 1_000

# Snapshots that stay open: those of a comparison.
_MOST_OPEN = 2

_MOST_REHEARSAL_S = 300

_INSTRUCTIONS = (
    "Explains the GPU memory of PyTorch programs from snapshots. Begin with open on a file or "
    "folder; then explain (it ran out of memory), leak (it grows), report (anything else). Each "
    "answer begins with its verdict; the last line of a longer one names the offset of the rest."
)


class Tools:
    """The tools of a server. Each answers with text, from line `offset` on."""

    def __init__(self, roots: Iterable[str | os.PathLike[str]]) -> None:
        """Made by `server`.

        Args:
            roots: The files and folders that may be read.
        """
        self._roots = [Path(root).resolve() for root in roots]
        self._opened: dict[tuple[str, int, int], Snapshot] = {}

    def open(self, path: str, offset: int = 0) -> str:
        """What a file is and which tool to ask next, or which snapshots a folder has.

        Args:
            path: A snapshot, a job's log, or a folder; relative paths begin at the first root.
        """
        real = self._path(path)
        if os.path.isdir(real):
            return _page(self._folder(real), offset)
        if _has_messages(real):
            return "a log with out-of-memory messages of PyTorch; ask explain"
        return _page(_contents(self._snapshot(path)), offset)

    def report(self, path: str, device: int | None = None, offset: int = 0) -> str:
        """A snapshot on one page: verdict, totals, the bill of the peak, findings. Of a folder, the
        ranks of a job compared: outliers, and which ran out of memory first."""
        real = self._path(path)
        if os.path.isdir(real):
            return _page(neutracer.ranks(self._files(real)).document(), offset)
        return _page(neutracer.report(self._snapshot(path), device=device).document(), offset)

    def explain(
        self,
        path: str,
        capacity: str | None = None,
        request: str | None = None,
        event: int | None = None,
        device: int | None = None,
        offset: int = 0,
    ) -> str:
        """Why an allocation failed: the cause, the line of code, changes that were replayed.

        Args:
            path: A snapshot, or a log with PyTorch's message.
            capacity: The size of the device, like "24GiB", where the file does not say.
            request: Ask whether so much, like "2GiB", would fit, instead.
            event: The out-of-memory event; default: the last.
        """
        real = self._path(path)
        if _has_messages(real):
            with log_text(real) as lines:
                found = messages_report(lines or (), os.path.basename(real))
            assert found is not None
            return _page(found.document(), offset)
        asked: dict[str, Any] = {"device": device, "event": event, "request": request}
        why = neutracer.explain(self._snapshot(path), device_size(capacity), **asked)
        page = why.document()
        # Below its verdict the changes that were replayed, which the bill and the rest would put
        # on a second page.
        blocks = sorted(page.blocks, key=lambda one: getattr(one, "title", "") != "Tried")
        return _page(replace(page, blocks=tuple(blocks)), offset)

    def bill(
        self, path: str, event: int | None = None, device: int | None = None, offset: int = 0
    ) -> str:
        """Where every byte was: terms that add up to the limit, by line of code, split into what
        stands, what piled up and what this round took.

        Args:
            event: After this event of the trace; default: the last failure, else the peak.
        """
        snap = self._snapshot(path)
        number = snap.device(device)
        timeline = snap.timeline(number)
        at, when = event, f"after event {event}"
        if at is None and "oom" in timeline.events["action"]:
            bill, when = neutracer.explain(snap, device=number).bill, "at the last failure"
        else:
            at, when = (timeline.peak().event, "at the peak") if at is None else (at, when)
            bill = bill_at(snap, number, at)
        block = replace(bill.block(), title=f"The bill {when}")
        rows = tuple((Figure.bytes(one.bytes), str(one.place)) for one in bill.lines)
        return _page(Document("", (), (block, Table("All lines", rows))), offset)

    def holders(
        self,
        path: str,
        by: str = "place",
        event: int | None = None,
        device: int | None = None,
        offset: int = 0,
    ) -> str:
        """Who holds the allocated bytes, the most first.

        Args:
            by: "place", "line", "function", "stack", "module" or "category".
            event: After this event of the trace; default: the peak of allocated.
        """
        lines = [f"bytes\tshare\tblocks\t{by}"]
        for one in self._snapshot(path).timeline(device).holders(event, by, None):
            key = one.key if isinstance(one.key, str) else " < ".join(map(str, one.key))
            lines.append(f"{one.bytes}\t{one.share:.1%}\t{one.count}\t{clean(key)}")
        return _page(lines, offset)

    def what_if(
        self,
        path: str,
        settings: Sequence[str] = (),
        capacity: str | None = None,
        fraction: float | None = None,
        batch: float = 1.0,
        device: int | None = None,
        offset: int = 0,
    ) -> str:
        """The trace replayed under other settings of the allocator, on another card, or with
        another batch; without settings, the best of a few dozen.

        Args:
            settings: Values of PYTORCH_CUDA_ALLOC_CONF, like "expandable_segments:True".
            capacity: The memory available to the process, like "24GiB".
            fraction: Under set_per_process_memory_fraction.
            batch: With a batch so many times as large.
        """
        size = device_size(capacity)
        where: dict[str, Any] = {"capacity": size, "fraction": fraction, "device": device}
        plan = neutracer.what_if(self._snapshot(path), *settings, batch=batch, **where)
        return _page(plan.document(), offset)

    def diff(self, before: str, after: str, device: int | None = None, offset: int = 0) -> str:
        """What the second of two snapshots holds more or less than the first, by line."""
        pair = self._snapshot(before), self._snapshot(after)
        return _page(neutracer.diff(*pair, device=device).document(), offset)

    def phases(
        self, path: str, phase: str | None = None, device: int | None = None, offset: int = 0
    ) -> str:
        """What each phase that the program marked used, left behind and piled up.

        Args:
            phase: Only this phase, or one turn: "sleep[2]".
        """
        snap = self._snapshot(path)
        return _page(neutracer.phases(snap, phase=phase, device=device).document(), offset)

    def leak(
        self,
        paths: list[str],
        capacity: str | None = None,
        device: int | None = None,
        offset: int = 0,
    ) -> str:
        """Whether memory grows step after step, how fast, from which line, and when it is full.

        Args:
            paths: One snapshot with a trace, or several of one program in their order.
            capacity: The memory available to the process, like "24GiB".
        """
        snaps: Any = [self._snapshot(path) for path in paths]
        source = snaps[0] if len(snaps) == 1 else snaps
        trend = neutracer.leak_trend(source, capacity=device_size(capacity), device=device)
        return _page(trend.document(), offset)

    def sql(self, path: str, query: str, device: int | None = None, offset: int = 0) -> str:
        """One SELECT (DuckDB) over the tables segments, blocks, events, annotations (what the end
        and the trace of the snapshot have) and allocations (address, size, alloc_event, free_event,
        category, place: one row per allocation of `device`; alloc_event -1: before the trace;
        free_event -1: never in the trace, -2: before it). DESCRIBE events lists its columns.
        Nothing can be written or read besides; a statement ends after 10 s."""
        self._snapshot(path)
        return _page(run_query(self._path(path), query, device), offset)

    def rehearse(
        self,
        program: str,
        arguments: Sequence[str] = (),
        card: str = "NVIDIA H200",
        capacity: str | None = None,
        offset: int = 0,
    ) -> str:
        """RUNS the program, on fake tensors: predicts the memory of a training script without a
        GPU. Whatever else the script does, it does.

        Args:
            program: A Python script below a root; it runs in the first root.
            arguments: Its arguments.
            card: Like "A100" or "RTX 4090".
            capacity: The memory available to PyTorch, like "24GiB".
        """
        script = self._path(program)
        limit = [] if capacity is None else [f"--capacity={capacity}"]
        with tempfile.TemporaryDirectory() as folder:
            kept = ["-o", os.path.join(folder, "rehearsed.pickle")]
            command = [sys.executable, "-m", "neutracer", "rehearse", f"--device={card}"]
            root = self._roots[0] if self._roots[0].is_dir() else self._roots[0].parent
            done = subprocess.run(
                [*command, *limit, *kept, script, *arguments],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                encoding="utf-8",
                errors="replace",
                cwd=root,
                timeout=_MOST_REHEARSAL_S,
                check=False,
            )
        if done.returncode == 2:
            raise ValueError((done.stderr.splitlines() or ["the rehearsal failed"])[-1])
        return _page(done.stdout.splitlines(), offset)

    # ---- Files ---------------------------------------------------------------------------

    def _path(self, path: str) -> str:
        """The real path of a file or folder below a root.

        Raises:
            ValueError: It is outside, directly or by a link, or does not exist.
        """
        joined = [root.parent if root.is_file() else root for root in self._roots]
        found = [os.path.realpath(folder / path) for folder in joined]
        real = next((one for one in found if os.path.exists(one) and self._holds(one)), found[0])
        if not self._holds(real):
            roots = ", ".join(map(str, self._roots))
            raise ValueError(f"{path!r} is outside of what this server may read: {roots}")
        if not os.path.isfile(real) and not os.path.isdir(real):
            raise ValueError(f"{path!r}: there is no such file or folder")
        # A root that is a file has its own JSON beside it, but not another by a link.
        beside = {one: os.path.realpath(one) for one in sidecar_paths(real)}
        if any(one != link and not self._holds(link) for one, link in beside.items()):
            raise ValueError(f"{path!r}: the JSON beside it is outside of what may be read")
        return real

    def _holds(self, real: str) -> bool:
        return any(Path(real).is_relative_to(root) for root in self._roots)

    def _files(self, folder: str) -> list[str]:
        """The snapshots below a folder, without links that lead out of the roots."""
        names = [name for name in listed([folder])[0] if self._holds(os.path.realpath(name))]
        return [self._path(name) for name in names]

    def _folder(self, folder: str) -> list[str]:
        names = self._files(folder)
        sizes = [(os.path.getsize(name), os.path.relpath(name, folder)) for name in names]
        ask = ["Ask report of the folder to compare them as ranks of a job."] if names[1:] else []
        head = format_count(len(names), "snapshot")
        return [head, *(f"{size:,} bytes  {clean(name)}" for size, name in sizes), *ask]

    def _snapshot(self, path: str) -> Snapshot:
        """A snapshot below a root, which stays open until the file changes."""
        real = self._path(path)
        if os.path.isdir(real):
            raise ValueError(f"{path!r} is a folder: open lists the snapshots in it")
        state = os.stat(real)
        key = real, state.st_mtime_ns, state.st_size
        if key not in self._opened:
            snap = neutracer.load(real)
            while len(self._opened) >= _MOST_OPEN:
                del self._opened[next(iter(self._opened))]
            self._opened[key] = snap
        return self._opened[key]


def _has_messages(path: str) -> bool:
    with log_text(path) as lines:
        return lines is not None and messages_report(lines, "") is not None


def _contents(snap: Snapshot) -> list[str]:
    """What is in a snapshot, and what can be asked of it."""
    ooms = sum(action == "oom" for action in snap.events["action"])
    device = snap.devices[0] if snap.devices else None
    phases = dict.fromkeys(turn.phase for turn in turns_of(snap, device))
    ask = "explain, then bill" if ooms else "phases, then leak" if phases else "report, then leak"
    lines = [
        f"{os.path.basename(snap.origin)}: {repr(snap)[1:-1]}",
        f"devices: {', '.join(map(str, snap.devices))}",
        f"requests that ran out of memory: {ooms}",
        *([f"phases: {', '.join(phases)}"] if phases else []),
        *([snap.partial] if snap.partial else []),
        *(flaw.message for flaw in snap.flaws),
        f"Ask {ask}.",
    ]
    return list(map(clean, lines))


# ---- Answers -----------------------------------------------------------------------------


def _page(page: Document | list[str], offset: int) -> str:
    """The lines of a page from one on, below 4 kB."""
    lines = layout(page, WIDTH) if isinstance(page, Document) else page
    texts = [shorten_right(line_text(line), _MOST_COLUMNS) for line in lines]
    if offset and not 0 <= offset < len(texts):
        raise ValueError(f"there is no line {offset}: the answer has {len(texts)}")
    rest = texts[offset:]
    if fitting(rest, _MOST_BYTES) == len(rest):
        return "\n".join(rest)
    count = fitting(rest, _MOST_BYTES - _MORE_BYTES)
    missing = format_count(len(rest) - count, "more line")
    return "\n".join([*rest[:count], f"… {missing}: offset={offset + count}"])


def server(roots: Sequence[str | os.PathLike[str]], *, rehearse: bool = False) -> MCPServer[Any]:
    """The server, whose `run("stdio")` serves one client until its input ends.

    Args:
        roots: The only files and folders that its tools read.
        rehearse: Also have the tool that runs programs.

    Example:
        >>> server(["tests/data"]).name
        'neutracer'
    """
    made: MCPServer[Any] = MCPServer(
        "neutracer",
        instructions=_INSTRUCTIONS,
        version=neutracer.__version__,
        log_level="ERROR",
    )
    tools, lock = Tools(roots), threading.Lock()
    names = ("open", "report", "explain", "bill", "holders", "what_if", "diff", "phases", "leak")
    for name in (*names, "sql", *(("rehearse",) if rehearse else ())):
        reads = name != "rehearse"
        made.add_tool(
            _guarded(getattr(tools, name), lock),
            annotations=ToolAnnotations(
                read_only_hint=reads,
                destructive_hint=not reads,
                idempotent_hint=reads,
                open_world_hint=not reads,
            ),
            # A structured answer would say the same text again.
            structured_output=False,
        )
    return made


def _guarded(tool: Callable[..., str], lock: threading.Lock) -> Callable[..., str]:
    """A tool that runs alone and fails in one sentence."""

    @functools.wraps(tool)
    def answer(**arguments: Any) -> str:
        try:
            with lock, without_history_warning():
                return tool(**arguments)
        except subprocess.TimeoutExpired:
            raise ToolError(f"the program was ended after {_MOST_REHEARSAL_S} s") from None
        except MemoryError:
            raise ToolError("this needs more memory than is free: see --max-memory") from None
        except (NeutracerError, OSError, ValueError) as error:
            raise ToolError(shorten_right(clean(str(error)), _MOST_COLUMNS)) from None

    return answer
