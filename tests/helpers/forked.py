# SPDX-License-Identifier: Apache-2.0
"""Programs in processes that have modules imported: forks of one that did nothing else."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from waiting import PATIENCE, wait_for

# Reads a program per line, and writes how the fork that ran it has ended; one that takes longer
# than any test is killed. Of one that is only started it writes the process's number; a line with
# that number asks how it has ended, if it has.
_SERVER = """
import gc, json, os, signal, sys, types
for name in sys.argv[1:]:
    __import__(name)
# A fork's collector, and its end, would go through all that was imported.
gc.freeze()
answers, jobs = os.fdopen(os.dup(1), "w"), os.fdopen(os.dup(0))
for line in jobs:
    job = json.loads(line)
    if isinstance(job, int):
        ended, status = os.waitpid(job, os.WNOHANG)
        code = os.waitstatus_to_exitcode(status) if ended else None
        print(json.dumps(code), file=answers, flush=True)
        continue
    program, words, folder, environment, out, err, is_waited_for = job
    child = os.fork()
    if child and not is_waited_for:
        print(child, file=answers, flush=True)
        continue
    if child:
        signal.signal(signal.SIGALRM, lambda *_: os.kill(child, signal.SIGKILL))
        signal.alarm(300)
        status = os.waitpid(child, 0)[1]
        signal.alarm(0)
        print(os.waitstatus_to_exitcode(status), file=answers, flush=True)
        continue
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    if not is_waited_for:
        os.setsid()
    for number, path in enumerate((os.devnull, out, err)):
        os.dup2(os.open(path, os.O_RDWR | os.O_APPEND), number)
    answers.close()
    jobs.close()
    os.chdir(folder)
    os.environ.update(environment)
    sys.argv = words
    own, sys.modules["__main__"] = sys.modules["__main__"], types.ModuleType("__main__")
    exec(compile(program, "<program>", "exec"), vars(sys.modules["__main__"]))
    break
"""

#: The command `neutracer`.
COMMAND = "import sys; from neutracer.cli.main import main; sys.exit(main(sys.argv[1:]))"

_SCRIPT = "import runpy, sys; runpy.run_path(sys.argv.pop(1), run_name='__main__')"

_HERE = Path()


class Started:
    """A fork that runs; what is asked of a `subprocess.Popen`."""

    def __init__(self, process: Imported, pid: int) -> None:
        self._process = process
        self._code: int | None = None
        self.pid = pid

    def poll(self) -> int | None:
        if self._code is None:
            self._code = self._process._answer(self.pid)
        return self._code

    def wait(self, seconds: float = PATIENCE) -> int:
        assert wait_for(lambda: self.poll() is not None, seconds)
        assert self._code is not None
        return self._code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def end(self) -> None:
        """Kill it, and what it has started."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.wait()


class Imported:
    """The process that is forked.

    Args:
        modules: What it has imported.
        environment: Its environment; by default this one's.
    """

    def __init__(self, *modules: str, environment: dict[str, str] | None = None) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", _SERVER, *modules],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )

    def __enter__(self) -> Imported:
        return self

    def __exit__(self, *_: Any) -> None:
        self._process.communicate()

    def run(
        self, program: str, *words: str, cwd: Path = _HERE, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        """A program, with words for its `sys.argv` and more variables, run to its end in a
        folder."""
        with tempfile.NamedTemporaryFile() as out, tempfile.NamedTemporaryFile() as err:
            job = (program, ["-c", *words], str(cwd), environment, out.name, err.name, True)
            code = self._answer(job)
            texts = [Path(file.name).read_text(encoding="utf-8") for file in (out, err)]
        return subprocess.CompletedProcess(list(words), code, *texts)

    def start(self, script: Path, said: Path, **environment: str) -> Started:
        """A script with more variables, begun; what it prints comes to a file that exists."""
        job = (_SCRIPT, ["-c", str(script)], ".", environment, str(said), str(said), False)
        return Started(self, self._answer(job))

    def _answer(self, job: object) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(job), file=self._process.stdin, flush=True)
        return json.loads(self._process.stdout.readline())

    def neutracer(
        self, *words: str, cwd: Path = _HERE, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        """The command `neutracer`."""
        return self.run(COMMAND, *words, cwd=cwd, **environment)
