# SPDX-License-Identifier: Apache-2.0
"""`neutracer attach`: finds a process, asks it for a snapshot or a report, and shows it."""

from __future__ import annotations

import importlib.machinery
import inspect
import json
import os
import platform
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import neutracer.run.begin as remote_begin
from neutracer.errors import NeutracerError, UnavailableError
from neutracer.overview import OverviewReport, overview
from neutracer.recording.recorder import DEFAULT_MAX_ENTRIES
from neutracer.recording.sidecar import rank_text
from neutracer.render.document import Block, Copyable, Document, KeyValues
from neutracer.render.report import Report
from neutracer.run.begin import REPLY, REQUEST
from neutracer.run.following import DEFAULT_DIRECTORY, written_pairs
from neutracer.trace.snapshot import load
from neutracer.units import format_count, format_duration_us

# ---- Processes ---------------------------------------------------------------------------

# What the system tells of another process: whose it is, which Python, whether it is stopped.

# Files that a process of a Python has mapped: its library, its executable, its own modules.
_OF_PYTHON = re.compile(r"(?:lib)?python(\d)\.(\d+)|.*\.cpython-(\d)(\d+)[a-z]*-")

_YAMA = "/proc/sys/kernel/yama/ptrace_scope"


def check_reachable(pid: int) -> None:
    """See whether there is such a process, of this user, that runs.

    Raises:
        NeutracerError: There is none; the message is a sentence.
    """
    if pid == os.getpid():
        raise NeutracerError(f"process {pid} is this command itself")
    if has_ended(pid):
        if _state(pid):
            raise NeutracerError(f"process {pid} has ended, and waits for its parent to ask")
        raise NeutracerError(f"there is no process {pid}")
    status = _status(pid)
    group = status.get("Tgid", str(pid))
    if group != str(pid):
        raise NeutracerError(f"{pid} is a thread of process {group}, not a process")
    # Of a process that may not be looked into /proc itself belongs to root; this line does not.
    owner = status.get("Uid", "").split()
    if owner and int(owner[1]) != os.geteuid():
        raise NeutracerError(
            f"process {pid} belongs to {_user(int(owner[1]))}: only its own user can attach to it"
        )
    if _state(pid) in ("T", "t"):
        raise NeutracerError(f"process {pid} is stopped: 'kill -CONT {pid}' lets it go on")


def has_ended(pid: int) -> bool:
    """Whether there is no such process any more, or only what its parent has not asked for."""
    try:
        if os.name == "posix":
            os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return True
    except PermissionError:
        return False
    return _state(pid) in ("Z", "X")


def python_of(pid: int) -> tuple[int, int] | None:
    """The major and minor version of the Python that a process runs; None where nothing tells."""
    try:
        with open(f"/proc/{pid}/maps", encoding="utf-8", errors="replace") as file:
            files = {line.split(maxsplit=5)[5].rstrip() for line in file if "/" in line}
    except OSError:
        return None
    found = {match for file in files if (match := _OF_PYTHON.match(os.path.basename(file)))}
    versions = {(int(one[1] or one[3]), int(one[2] or one[4])) for one in found}
    return max(versions) if len(versions) == 1 else None


def sees(pid: int, path: str) -> bool:
    """Whether another process finds the same file or folder at an absolute path.

    Where the system does not tell, it is taken to.
    """
    root = f"/proc/{pid}/root"
    if not os.path.isdir(root):
        return True
    try:
        return os.path.samefile(path, root + path)
    except OSError:
        return False


def inner_number(pid: int) -> int:
    """The number that a process has for itself, in a container another one."""
    return int(_status(pid).get("NSpid", str(pid)).split()[-1])


def refusal(pid: int) -> str:
    """Why this process may not look into that one of the same user, and what helps."""
    try:
        with open(_YAMA, encoding="ascii") as file:
            scope = int(file.read())
    except (OSError, ValueError):
        scope = 0
    if scope:
        return (
            f"the system lets no process look into another (kernel.yama.ptrace_scope is {scope}): "
            "'sysctl kernel.yama.ptrace_scope=0' by root allows it until the next start, and for "
            "a container '--cap-add SYS_PTRACE'"
        )
    return (
        f"the system does not let this process look into process {pid}; in a container "
        "'--cap-add SYS_PTRACE' allows it"
    )


def silence(pid: int, seconds: float) -> str:
    """Why a process has not come to what it was to do."""
    try:
        check_reachable(pid)
    except NeutracerError as error:
        return str(error)
    at = {"R": "it computes in C code", "D": "it waits for a device or a disk"}
    where = at.get(_state(pid), "it waits for something, or is in C code")
    return (
        f"the main thread of process {pid} has not come back to Python in {seconds:g} s: {where}; "
        "--wait SECONDS waits longer"
    )


def _status(pid: int) -> dict[str, str]:
    """The lines of /proc/PID/status; none where there is no such file."""
    try:
        with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as file:
            lines = [line.partition(":") for line in file]
    except OSError:
        return {}
    return {name: value.strip() for name, _, value in lines}


def _state(pid: int) -> str:
    """The letter of what a process's main thread is at, as ps has it; "" where unknown."""
    return _status(pid).get("State", "")[:1]


def _user(number: int) -> str:
    try:
        import pwd

        return pwd.getpwuid(number).pw_name
    except (ImportError, KeyError):
        return f"user {number}"


# ---- Ask ---------------------------------------------------------------------------------

# Has another Python process of this machine do something, and waits for its answer (3.14 on).
#
# The two speak through a folder that only their user can read. The request is a file in it,
# which one of them renames: the process that it is for when it comes to it, or this one when it
# has waited long enough. The folder is gone when this one ends, whatever happened.

# Between two looks for an answer, in seconds.
_LOOK_S = 0.02

# An answer is no longer than this.
_MOST_BYTES = 8 << 20

# Run by the other process's main thread wherever that is: it only starts a thread, by the one
# call that takes no lock. Where the folder is gone the request was taken back.
_SCRIPT = """\
import _thread
def begin(folder={folder!r}, package={package!r}, suffix={suffix!r}):
    try:
        with open(folder + "/begin.py", encoding="utf-8") as file:
            text = file.read()
    except OSError:
        return
    names = {{"__name__": "neutracer_begin"}}
    exec(text, names)
    names["begin"](folder, package, suffix)
_thread.start_new_thread(begin, ())
"""


def ask(pid: int, request: Mapping[str, Any], *, wait_s: float, work_s: float) -> dict[str, Any]:
    """Have `neutracer.run.attached` of another process answer a request.

    Args:
        pid: The process.
        request: What it is asked, as plain data.
        wait_s: How long to wait until its main thread comes to a safe point.
        work_s: How long, after that, its work may take.

    Returns:
        Its answer.

    Raises:
        NeutracerError: It can't be asked, does not answer, or could not do it; the message
            is a sentence.
        UnavailableError: This Python can't do that.
    """
    _check_this_python()
    check_reachable(pid)
    _check_version(pid)
    folder = os.path.realpath(tempfile.mkdtemp(prefix="neutracer-attach-"))
    try:
        if not sees(pid, folder):
            raise NeutracerError(
                f"process {pid} does not see this one's {os.path.dirname(folder)}, as in a "
                f"container: run 'neutracer attach {inner_number(pid)}' where it runs"
            )
        script = _written(folder, request)
        _send(pid, script)
        _wait_until_taken(pid, folder, wait_s)
        return _answer(pid, folder, work_s)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _check_this_python() -> None:
    if not hasattr(sys, "remote_exec"):
        raise UnavailableError(
            f"attaching with Python {platform.python_version()}",
            "it needs 3.14 or later: run 'neutracer attach' with the job's Python",
        )
    if not sys.is_remote_debug_enabled():  # type: ignore[attr-defined,unused-ignore]
        raise UnavailableError(
            "attaching with this Python",
            "it was built without remote debugging, or started with "
            "PYTHON_DISABLE_REMOTE_DEBUG or -X disable-remote-debug",
        )


def _check_version(pid: int) -> None:
    there = python_of(pid)
    if there is None or there == sys.version_info[:2]:
        return
    words = "{}.{}".format(*there)
    if there < (3, 14):
        raise NeutracerError(
            f"process {pid} runs Python {words}: only 3.14 and later let in others"
        )
    raise NeutracerError(
        f"process {pid} runs Python {words}, and this is {platform.python_version()}: "
        "run 'neutracer attach' with the job's Python"
    )


def _written(folder: str, request: Mapping[str, Any]) -> str:
    """The path of the script, in the folder with all that it needs."""
    package = str(Path(__file__).absolute().parents[1])
    suffix = importlib.machinery.EXTENSION_SUFFIXES[0]
    texts = {
        REQUEST: json.dumps(dict(request)),
        "begin.py": inspect.getsource(remote_begin),
        "script.py": _SCRIPT.format(folder=folder, package=package, suffix=suffix),
    }
    for name, text in texts.items():
        with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
            file.write(text)
    return os.path.join(folder, "script.py")


def _send(pid: int, script: str) -> None:
    remote_exec: Any = sys.remote_exec  # type: ignore[attr-defined,unused-ignore]
    try:
        remote_exec(pid, script)
    except Exception as error:
        raise NeutracerError(_reason(pid, error)) from None


def _reason(pid: int, error: Exception) -> str:
    """What the interpreter's refusal means."""
    chain: list[BaseException] = [error]
    while (cause := chain[-1].__cause__ or chain[-1].__context__) is not None:
        chain.append(cause)
    if any(isinstance(one, PermissionError) for one in chain):
        return refusal(pid)
    words = " ".join(map(str, chain))
    if "not enabled in the remote" in words:
        return (
            f"process {pid} lets nobody in: it was started with PYTHON_DISABLE_REMOTE_DEBUG or "
            "-X disable-remote-debug, or its Python was built without remote debugging"
        )
    if "PyRuntime" in words:
        return f"process {pid} is not a Python program, or runs a Python before 3.14"
    return f"process {pid} can't be reached: {error}"


def _wait_until_taken(pid: int, folder: str, seconds: float) -> None:
    request = os.path.join(folder, REQUEST)
    end = time.monotonic() + seconds
    while os.path.exists(request):
        if time.monotonic() < end and not has_ended(pid):
            time.sleep(_LOOK_S)
            continue
        try:
            os.rename(request, os.path.join(folder, "withdrawn.json"))
        except FileNotFoundError:
            # It was taken just now.
            return
        told = silence(pid, seconds)
        with suppress(Exception):
            # In the place of the script, which will not be there any more: of a script that
            # it can't open a process complains.
            sys.remote_exec(pid, os.devnull)  # type: ignore[attr-defined,unused-ignore]
        raise NeutracerError(told)


def _answer(pid: int, folder: str, seconds: float) -> dict[str, Any]:
    reply = os.path.join(folder, REPLY)
    end = time.monotonic() + seconds
    while not os.path.exists(reply):
        if has_ended(pid) and not os.path.exists(reply):
            raise NeutracerError(f"process {pid} has ended before it answered")
        if time.monotonic() > end:
            raise NeutracerError(f"process {pid} has begun, and not answered in {seconds:g} s")
        time.sleep(_LOOK_S)
    try:
        with open(reply, encoding="utf-8") as file:
            answer = json.loads(file.read(_MOST_BYTES))
    except (OSError, ValueError) as error:
        raise NeutracerError(f"process {pid} has answered something else: {error}") from None
    if not isinstance(answer, dict):
        raise NeutracerError(f"process {pid} has answered something else")
    if "error" in answer:
        raise NeutracerError(f"process {pid}: {answer['error']}")
    return answer


# ---- Attach report -----------------------------------------------------------------------

# Attaches to a running program, and reports what its GPU memory does.

# How long a main thread may stay in C code.
DEFAULT_WAIT_S = 10.0

# What a report, or the beginning of a watch, takes at the very most; the hooks of a monitor
# may have to be compiled first.
_WORK_S = 300.0

# More seconds, or events, than anybody wants.
_MOST = 1_000_000_000


@dataclass(frozen=True, kw_only=True, repr=False)
class AttachReport(Report):
    """What was done in a running program.

    Attributes:
        program: What runs there.
        pid: The process's number.
        rank: Its rank, by torch.distributed or its launcher; None where there is none.
        world_size: How many ranks there are.
        host: The machine's name.
        python: The version of its Python.
        torch: The version of its torch.
        recorded_s: For how many seconds it was recorded; None if that was not requested.
        overview: What the snapshot that was written last shows, its trace included.
        watching: The folder for reports of out-of-memory errors, and of SIGUSR2; "" where
            nothing that was attached watches.
        metrics: Where metrics are served by what was attached; "" where they are not.
        ended: What was attached before and has ended.
        ooms_seen: Out-of-memory errors that the ended watch has seen.
        files: The snapshots that were written, each with a text and a JSON beside it.
        notes: What a reader should know.
    """

    schema = "neutracer.attach/1"

    program: str
    pid: int
    rank: int | None
    world_size: int | None
    host: str
    python: str
    torch: str
    recorded_s: float | None
    overview: OverviewReport | None
    watching: str
    metrics: str
    ended: tuple[str, ...]
    ooms_seen: int
    files: tuple[str, ...]
    notes: tuple[str, ...]

    def document(self) -> Document:
        """The report as a page."""
        rank = rank_text({"rank": self.rank, "world_size": self.world_size})
        facts = [rank] if rank else []
        facts.append(f"process {self.pid}")
        blocks: list[Block] = []
        if self.overview is not None:
            page = self.overview.document()
            facts += page.facts
            blocks += page.blocks
        blocks.append(KeyValues("This process", tuple(self._pairs())))
        return Document(os.path.basename(self.program), tuple(facts), tuple(blocks))

    def _pairs(self) -> list[tuple[str, str]]:
        pairs = []
        if self.ended:
            pairs.append(("ended", " and ".join(self.ended)))
        if self.ooms_seen:
            pairs.append(("out of memory", format_count(self.ooms_seen, "time")))
        if self.watching:
            told = f"out-of-memory errors, and 'kill -USR2 {self.pid}'; reports go to"
            pairs += [("watched", told), ("", self.watching)]
        if self.metrics:
            pairs.append(("metrics", Copyable(f"{self.metrics}/metrics")))
        if self.watching or self.metrics:
            pairs.append(("until", Copyable(f"neutracer attach {self.pid} --detach")))
        return pairs + written_pairs(self.files, self.notes)


def attach_and_report(
    pid: int,
    *,
    report: bool = False,
    watch: bool = False,
    record_s: float | None = None,
    port: int | None = None,
    detach: bool = False,
    directory: str | os.PathLike[str] = DEFAULT_DIRECTORY,
    max_entries: int = DEFAULT_MAX_ENTRIES,
    stacks: str = "python",
    wait_s: float = DEFAULT_WAIT_S,
) -> AttachReport:
    """Do something in another process of this user, which runs torch on Python 3.14 or later.

    Args:
        pid: The process.
        report: Write a report now.
        watch: Record, and write a report at each out-of-memory error, and at SIGUSR2.
        record_s: Record for so many seconds, and write a report.
        port: Serve metrics there; 0 is any free port.
        detach: End what `watch` and `port` began.
        directory: Where the files go.
        max_entries: As for `record`.
        stacks: As for `record`.
        wait_s: How long to wait until its main thread runs Python's bytecode.

    Returns:
        The report; where something was written, with what the last snapshot shows.

    Raises:
        NeutracerError: It can't be done; the message is a sentence.
        ValueError: An argument is out of its range.
    """
    if detach and (watch or record_s is not None or port is not None):
        raise ValueError("what --detach ends is not begun by the same command")
    for name, value in (("--record", record_s), ("--wait", wait_s), ("--max-entries", max_entries)):
        if value is not None and not 0 < value <= _MOST:
            raise ValueError(f"{name} is above 0, and at most {_MOST:,}")
    if port is not None and not 0 <= port <= 65_535:
        raise ValueError("--metrics is a port: 0 to 65535")
    request = {
        "report": report,
        "watch": watch,
        "record_s": record_s,
        "port": port,
        "detach": detach,
        "directory": os.path.abspath(directory),
        "max_entries": max_entries,
        "stacks": stacks,
    }
    told = ask(pid, request, wait_s=wait_s, work_s=_WORK_S + (record_s or 0.0))
    return _report(pid, told, record_s, shows=report or record_s is not None)


def _report(
    pid: int, told: Mapping[str, Any], record_s: float | None, *, shows: bool
) -> AttachReport:
    """What a process has answered, and what its last snapshot shows."""
    notes = [str(note) for note in told["notes"]]
    files = [str(file) for file in told["files"]]
    shown = None
    if shows and files:
        try:
            shown = overview(load(files[-1]), files[-1])
        except (NeutracerError, OSError, ValueError) as error:
            notes.append(f"{os.path.basename(files[-1])}: {error}")
    if record_s is not None:
        length = format_duration_us(record_s * 1e6)
        notes.append(f"recorded for {length}: who allocated what was there before is unknown")
    return AttachReport(
        program=str(told["program"]),
        pid=pid,
        rank=told["rank"],
        world_size=told["world_size"],
        host=str(told["host"]),
        python=str(told["python"]),
        torch=str(told["torch"]),
        recorded_s=record_s,
        overview=shown and replace(shown, file=os.path.basename(str(told["program"]))),
        watching=str(told["watching"]),
        metrics=str(told["metrics"]),
        ended=tuple(map(str, told["ended"])),
        ooms_seen=int(told["ooms_seen"]),
        files=tuple(files),
        notes=tuple(notes),
        findings=() if shown is None else shown.findings,
    )
