# SPDX-License-Identifier: Apache-2.0
"""Programs in processes that have modules imported: forks of one that did nothing else."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

# Reads a program per line, and writes how the fork that ran it has ended; one that takes longer
# than any test is killed.
_SERVER = """
import gc, json, os, signal, sys, types
for name in sys.argv[1:]:
    __import__(name)
# A fork's collector, and its end, would go through all that was imported.
gc.freeze()
answers, jobs = os.fdopen(os.dup(1), "w"), os.fdopen(os.dup(0))
for line in jobs:
    program, words, folder, environment, out, err = json.loads(line)
    child = os.fork()
    if child:
        signal.signal(signal.SIGALRM, lambda *_: os.kill(child, signal.SIGKILL))
        signal.alarm(300)
        status = os.waitpid(child, 0)[1]
        signal.alarm(0)
        print(os.waitstatus_to_exitcode(status), file=answers, flush=True)
        continue
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    for number, path in enumerate((os.devnull, out, err)):
        os.dup2(os.open(path, os.O_RDWR), number)
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

_HERE = Path()


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
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with tempfile.NamedTemporaryFile() as out, tempfile.NamedTemporaryFile() as err:
            job = (program, ["-c", *words], str(cwd), environment, out.name, err.name)
            print(json.dumps(job), file=self._process.stdin, flush=True)
            code = int(self._process.stdout.readline())
            texts = [Path(file.name).read_text(encoding="utf-8") for file in (out, err)]
        return subprocess.CompletedProcess(list(words), code, *texts)

    def neutracer(
        self, *words: str, cwd: Path = _HERE, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        """The command `neutracer`."""
        return self.run(COMMAND, *words, cwd=cwd, **environment)
