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

# ---- Target process ----------------------------------------------------------------------

# Mapped files that show the Python version: library, executable and extension modules.
_OF_PYTHON = re.compile(r"(?:lib)?python(\d)\.(\d+)|.*\.cpython-(\d)(\d+)[a-z]*-")
_YAMA = "/proc/sys/kernel/yama/ptrace_scope"


def check_reachable(pid: int) -> None:
    """Raise NeutracerError unless the process exists, belongs to this user and runs."""
    if pid == os.getpid():
        raise NeutracerError(f"process {pid} is this command itself")
    if has_ended(pid):
        if _state(pid):
            raise NeutracerError(f"process {pid} has ended (its parent has not reaped it)")
        raise NeutracerError(f"there is no process {pid}")
    status = _status(pid)
    group = status.get("Tgid", str(pid))
    if group != str(pid):
        raise NeutracerError(f"{pid} is a thread of process {group}, not a process")
    # The owner of /proc/PID itself is root for an undumpable process; this line is not.
    owner = status.get("Uid", "").split()
    if owner and int(owner[1]) != os.geteuid():
        raise NeutracerError(
            f"process {pid} belongs to {_user(int(owner[1]))}: only its own user can attach to it"
        )
    if _state(pid) in ("T", "t"):
        raise NeutracerError(f"process {pid} is stopped; continue it with 'kill -CONT {pid}'")


def has_ended(pid: int) -> bool:
    """Whether the process is gone, or a zombie."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return True
    except PermissionError:
        return False
    return _state(pid) in ("Z", "X")


def python_of(pid: int) -> tuple[int, int] | None:
    """The (major, minor) version of a process's Python; None if unknown."""
    try:
        with open(f"/proc/{pid}/maps", encoding="utf-8", errors="replace") as file:
            files = {line.split(maxsplit=5)[5].rstrip() for line in file if "/" in line}
    except OSError:
        return None
    found = {match for file in files if (match := _OF_PYTHON.match(os.path.basename(file)))}
    versions = {(int(one[1] or one[3]), int(one[2] or one[4])) for one in found}
    return max(versions) if len(versions) == 1 else None


def sees(pid: int, path: str) -> bool:
    """Whether an absolute path is the same file in another process; True if unknown."""
    root = f"/proc/{pid}/root"
    if not os.path.isdir(root):
        return True
    try:
        return os.path.samefile(path, root + path)
    except OSError:
        return False


def refusal(pid: int) -> str:
    """Why ptrace of another process of this user is denied, and the remedy."""
    try:
        with open(_YAMA, encoding="ascii") as file:
            scope = int(file.read())
    except (OSError, ValueError):
        scope = 0
    if scope:
        return (
            f"the kernel forbids tracing other processes (kernel.yama.ptrace_scope is {scope}): "
            "as root, 'sysctl kernel.yama.ptrace_scope=0' allows it until the next boot; a "
            "container needs '--cap-add SYS_PTRACE'"
        )
    return f"the system denies access to process {pid}; a container needs '--cap-add SYS_PTRACE'"


def silence(pid: int, seconds: float) -> str:
    """Why a process has not taken the request."""
    try:
        check_reachable(pid)
    except NeutracerError as error:
        return str(error)
    at = {"R": "it computes in C code", "D": "it waits for a device or a disk"}
    where = at.get(_state(pid), "it is waiting, or in C code")
    return (
        f"the main thread of process {pid} has not returned to Python in {seconds:g} s: {where}; "
        "--wait SECONDS waits longer"
    )


def _status(pid: int) -> dict[str, str]:
    """The fields of /proc/PID/status; empty if there is no such file."""
    try:
        with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as file:
            lines = [line.partition(":") for line in file]
    except OSError:
        return {}
    return {name: value.strip() for name, _, value in lines}


def _state(pid: int) -> str:
    """The main thread's state letter, as in ps; "" if unknown."""
    return _status(pid).get("State", "")[:1]


def _user(number: int) -> str:
    try:
        import pwd

        return pwd.getpwuid(number).pw_name
    except (ImportError, KeyError):
        return f"user {number}"


# ---- Request -----------------------------------------------------------------------------

# The two processes share a folder readable only by their user, which this one removes at the end.
# The request is a file that is renamed either by the target, when it starts on it, or by this
# process, to withdraw it after a timeout.

_POLL_S = 0.02
_MOST_BYTES = 8 << 20  # Of an answer.

# Runs in the target's main thread at any bytecode, so it only starts a thread, by the one call
# that takes no lock. A missing folder means that the request was withdrawn.
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
    """Send a request to `neutracer.run.attached` in another process; returns its answer.

    Its main thread has `wait_s` to reach a safe point, and `work_s` for the work after that.
    """
    check_reachable(pid)
    _check_version(pid)
    _check_this_python()
    folder = os.path.realpath(tempfile.mkdtemp(prefix="neutracer-attach-"))
    try:
        if not sees(pid, folder):
            raise NeutracerError(
                f"process {pid} has another {os.path.dirname(folder)}, as in a container: "
                f"run 'neutracer attach {_status(pid).get('NSpid', str(pid)).split()[-1]}' there"
            )
        script = _write_script(folder, request)
        try:
            sys.remote_exec(pid, script)  # type: ignore[attr-defined,unused-ignore]
        except Exception as error:
            raise NeutracerError(_reason(pid, error)) from None
        _wait_until_taken(pid, folder, wait_s)
        return _answer(pid, folder, work_s)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _check_this_python() -> None:
    if not hasattr(sys, "remote_exec"):
        raise UnavailableError(
            f"attaching with Python {platform.python_version()}",
            "it needs 3.14 or later; run 'neutracer attach' with the job's Python",
        )
    if not sys.is_remote_debug_enabled():  # type: ignore[attr-defined,unused-ignore]
        raise UnavailableError(
            "attaching with this Python",
            "it was built without remote debugging, or started with "
            "PYTHON_DISABLE_REMOTE_DEBUG or -X disable-remote-debug",
        )


def _check_version(pid: int) -> None:
    there = python_of(pid)
    if there is None or there == sys.version_info[:2] >= (3, 14):
        return
    version = "{}.{}".format(*there)
    if there < (3, 14):
        raise NeutracerError(older(pid, f"Python {version}"))
    raise NeutracerError(
        f"process {pid} runs Python {version}, and this is {platform.python_version()}: "
        "run 'neutracer attach' with the job's Python"
    )


def older(pid: int, what: str) -> str:
    """Why a process with an older Python can't be attached to, and what reaches it instead."""
    return (
        f"process {pid} runs {what}: attaching needs 3.14 or later. Under `neutracer run` "
        f"it writes a report at 'kill -USR2 {pid}', which ends any other program; after "
        "neutracer.serve_metrics(token=TOKEN) a snapshot at 'curl -X POST -H \"Authorization: "
        "Bearer TOKEN\" http://127.0.0.1:9435/snapshot'"
    )


def _write_script(folder: str, request: Mapping[str, Any]) -> str:
    """Write the request and the script to the folder; returns the script's path."""
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


def _reason(pid: int, error: Exception) -> str:
    """Explain an error of `sys.remote_exec`."""
    chain: list[BaseException] = [error]
    while (cause := chain[-1].__cause__ or chain[-1].__context__) is not None:
        chain.append(cause)
    if any(isinstance(one, PermissionError) for one in chain):
        return refusal(pid)
    text = " ".join(map(str, chain))
    if "not enabled in the remote" in text:
        return (
            f"process {pid} has no remote debugging: it was started with "
            "PYTHON_DISABLE_REMOTE_DEBUG or -X disable-remote-debug, or its Python was built "
            "without it"
        )
    if "PyRuntime" in text:
        return older(pid, "another program, or a Python before 3.14")
    return f"process {pid} can't be reached: {error}"


def _wait_until_taken(pid: int, folder: str, seconds: float) -> None:
    request = os.path.join(folder, REQUEST)
    end = time.monotonic() + seconds
    while os.path.exists(request):
        if time.monotonic() < end and not has_ended(pid):
            time.sleep(_POLL_S)
            continue
        try:
            os.rename(request, os.path.join(folder, "withdrawn.json"))
        except FileNotFoundError:
            return  # It was taken just now.
        reason = silence(pid, seconds)
        with suppress(Exception):
            # Replaces the pending script: the target would print an error for a missing file.
            sys.remote_exec(pid, os.devnull)  # type: ignore[attr-defined,unused-ignore]
        raise NeutracerError(reason)


def _answer(pid: int, folder: str, seconds: float) -> dict[str, Any]:
    reply = os.path.join(folder, REPLY)
    end = time.monotonic() + seconds
    while not os.path.exists(reply):
        if has_ended(pid) and not os.path.exists(reply):
            raise NeutracerError(f"process {pid} ended before it answered")
        if time.monotonic() > end:
            raise NeutracerError(f"process {pid} started, but did not answer in {seconds:g} s")
        time.sleep(_POLL_S)
    try:
        with open(reply, encoding="utf-8") as file:
            answer = json.loads(file.read(_MOST_BYTES))
    except (OSError, ValueError) as error:
        raise NeutracerError(f"process {pid} sent an invalid answer: {error}") from None
    if not isinstance(answer, dict):
        raise NeutracerError(f"process {pid} sent an invalid answer")
    if "error" in answer:
        raise NeutracerError(f"process {pid}: {answer['error']}")
    return answer


# ---- Attach report -----------------------------------------------------------------------

DEFAULT_WAIT_S = 10.0
_WORK_S = 300.0  # Timeout of the work, which may include compiling the hooks.
_MOST = 1_000_000_000  # Seconds, or events.


@dataclass(frozen=True, kw_only=True, repr=False)
class AttachReport(Report):
    """The result of attaching to a running program.

    Attributes:
        program: The script or module.
        pid: The process id.
        rank: Its rank in torch.distributed or its launcher, or None.
        world_size: The number of ranks.
        host: The machine's name.
        python: Its Python version.
        torch: Its PyTorch version.
        recorded_s: Seconds recorded; None if not requested.
        overview: The report on the last snapshot written.
        watching: The folder for reports of out-of-memory errors and SIGUSR2; "" if the
            attached watch is off.
        metrics: The URL of the attached metrics server; "" if it is off.
        ended: The parts ended by --detach.
        ooms_seen: Out-of-memory errors counted by the ended watch.
        files: The snapshots written, each with a text and a JSON beside it.
        notes: Remarks.
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
            events = f"out-of-memory errors, and 'kill -USR2 {self.pid}'; reports go to"
            pairs += [("watched", events), ("", self.watching)]
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
    """Attach to another process of this user that runs torch on Python 3.14 or later."""
    if detach and (watch or record_s is not None or port is not None):
        raise ValueError("--detach can't be combined with --watch, --record or --metrics")
    for name, value in (("--record", record_s), ("--wait", wait_s), ("--max-entries", max_entries)):
        if value is not None and not 0 < value <= _MOST:
            raise ValueError(f"{name} must be above 0 and at most {_MOST:,}")
    if port is not None and not 0 <= port <= 65_535:
        raise ValueError("--metrics must be a port: 0 to 65535")
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
    answer = ask(pid, request, wait_s=wait_s, work_s=_WORK_S + (record_s or 0.0))
    return _report(pid, answer, record_s, shows=report or record_s is not None)


def _report(
    pid: int, answer: Mapping[str, Any], record_s: float | None, *, shows: bool
) -> AttachReport:
    notes = [str(note) for note in answer["notes"]]
    files = [str(file) for file in answer["files"]]
    shown = None
    if shows and files:
        try:
            shown = overview(load(files[-1]), files[-1])
        except (NeutracerError, OSError, ValueError) as error:
            notes.append(f"{os.path.basename(files[-1])}: {error}")
    if record_s is not None:
        length = format_duration_us(record_s * 1e6)
        notes.append(f"recorded for {length}: older blocks have no stacks")
    names = ("program", "host", "python", "torch", "watching", "metrics")
    texts: dict[str, Any] = {name: str(answer[name]) for name in names}
    return AttachReport(
        **texts,
        pid=pid,
        rank=answer["rank"],
        world_size=answer["world_size"],
        recorded_s=record_s,
        overview=shown and replace(shown, file=os.path.basename(texts["program"])),
        ended=tuple(map(str, answer["ended"])),
        ooms_seen=int(answer["ooms_seen"]),
        files=tuple(files),
        notes=tuple(notes),
        findings=() if shown is None else shown.findings,
    )
