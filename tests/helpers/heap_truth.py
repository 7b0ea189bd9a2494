# SPDX-License-Identifier: Apache-2.0
"""Runs a program, and holds each of its collections against what the walk foresaw.

    python tests/helpers/heap_truth.py COUNT -m MODULE ARGUMENT...

Collections are made frequent, finalizers are held off, and what the collector finds is kept
by gc.DEBUG_SAVEALL until it was compared; every now and then it is let go of. Of a
collection that was foreseen to find nothing nobody is told: what it found all the same is
kept as well, and makes the next one differ. Ends the program after COUNT collections that
were compared, and prints what they were.
"""

from __future__ import annotations

import collections
import contextlib
import gc
import importlib
import os
import runpy
import sys
from typing import Any

#: Without the test runner, so that any interpreter can run this.
selftest: Any = importlib.import_module("neutracer._selftest")

#: Collections of all generations, after which what was kept is freed in the next.
_KEPT_FOR = 3


class Truth:
    """What was compared so far."""

    def __init__(self, wanted: int) -> None:
        self.wanted = wanted
        self.compared = self.full = self.found = self.objects = self.differing = 0
        self._since = 0
        self._seen = self._refused = 0

    def compare(self, record: dict[str, Any]) -> None:
        """At the end of a collection: what it kept is what was foreseen."""
        status = selftest.heap_watch_status()
        since, self._seen = status["collections"] - self._seen, status["collections"]
        refused, self._refused = status["refused"] - self._refused, status["refused"]
        if not gc.get_debug() & gc.DEBUG_SAVEALL:
            self._begin_again(record)
            return
        saved = collections.Counter(map(id, gc.garbage))
        predicted = collections.Counter(record["predicted"])
        self.compared += since
        self.full += record["generation"] == 2
        self.found += bool(predicted)
        self.objects += len(record["predicted"])
        # Of a collection at the recursion limit nobody can be told; its garbage is here too.
        if saved != predicted and not refused:
            self.differing += 1
            kinds = [type(thing).__name__ for thing in gc.garbage if id(thing) not in predicted]
            print("differs:", len(saved), len(predicted), kinds[:5], file=sys.__stdout__)
        gc.garbage.clear()
        self._since += record["generation"] == 2
        if self._since >= _KEPT_FOR:
            gc.set_debug(0)
        if self.compared >= self.wanted:
            self.tell()
            os._exit(self.differing > 0)

    def _begin_again(self, record: dict[str, Any]) -> None:
        if record["generation"] == 2:
            self._since = 0
            gc.set_debug(gc.DEBUG_SAVEALL)

    def tell(self) -> None:
        """Print the counts, in one line."""
        line = f"{self.compared} compared, {self.found} of them found {self.objects} objects, "
        line += f"{self.full} of these full; {self.differing} differ, {self._refused} were not told"
        print(line, file=sys.__stdout__, flush=True)


def main() -> None:
    truth = Truth(int(sys.argv[1]))
    module, sys.argv = sys.argv[3], sys.argv[3:]
    selftest.heap_watch_add(truth.compare, hold=True)
    gc.set_debug(gc.DEBUG_SAVEALL)
    gc.set_threshold(40, 4, 4)
    with contextlib.suppress(SystemExit):
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    truth.tell()
    os._exit(truth.differing > 0)


if __name__ == "__main__":
    main()
