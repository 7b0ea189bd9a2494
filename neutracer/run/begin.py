# SPDX-License-Identifier: Apache-2.0
"""The first lines of neutracer in a process that knows nothing of it.

Their text is run there by itself, before neutracer can be imported: nothing here uses
another module of neutracer's.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import json
import os
import sys
import threading
from types import ModuleType
from typing import Any

# The files in the folder through which the two processes speak. The request is renamed by
# whoever has it: the process that it is for, or the one that takes it back.
REQUEST, TAKEN, REPLY = "request.json", "taken.json", "reply.json"


def begin(folder: str, package: str, suffix: str) -> None:
    """Take the request, if it is still there, and answer it from a thread.

    Args:
        folder: Where the request is, and its answer goes.
        package: Where the asking process has neutracer.
        suffix: What the names of its compiled modules end in.
    """
    try:
        os.rename(os.path.join(folder, REQUEST), os.path.join(folder, TAKEN))
    except OSError:
        return
    threading.Thread(
        target=_answer, args=(folder, package, suffix), name="neutracer-attach", daemon=True
    ).start()


def reply(folder: str, answer: dict[str, Any]) -> bool:
    """Answer, whole or not at all; False where nobody waits for it any more."""
    path = os.path.join(folder, REPLY)
    try:
        with open(f"{path}.tmp", "w", encoding="utf-8") as file:
            json.dump(answer, file)
        os.replace(f"{path}.tmp", path)
    except OSError:
        return False
    return True


def _answer(folder: str, package: str, suffix: str) -> None:
    try:
        module = _find(package, suffix)
    except Exception as error:
        reason = str(error)
        if not isinstance(error, _NotFoundError):
            reason = f"{type(error).__name__}: {error}"
        reply(folder, {"error": f"neutracer can't be imported there: {reason}"})
        return
    module.answer(folder)


class _NotFoundError(Exception):
    """There is no neutracer for this Python; the message says why."""


def _find(package: str, suffix: str) -> ModuleType:
    """This process's own neutracer, or that of the asking one."""
    if "neutracer" not in sys.modules:
        spec = importlib.util.find_spec("neutracer")
        # A folder of that name is none.
        if spec is None or spec.origin is None:
            _import_from(package, suffix)
    return importlib.import_module("neutracer.run.attached")


def _import_from(package: str, suffix: str) -> None:
    """Import the package where it lies; `sys.path` is not touched.

    Its modules are found through the package's own path, now and later.
    """
    ours = importlib.machinery.EXTENSION_SUFFIXES[0]
    if suffix != ours:
        raise _NotFoundError(
            f"it is not installed, and that of the command is compiled for {suffix}, not {ours}"
        )
    spec = importlib.util.spec_from_file_location(
        "neutracer", os.path.join(package, "__init__.py"), submodule_search_locations=[package]
    )
    if spec is None or spec.loader is None or not os.path.isfile(spec.origin or ""):
        raise _NotFoundError(f"it is not installed, and {package} can't be seen")
    module = importlib.util.module_from_spec(spec)
    sys.modules["neutracer"] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules["neutracer"]
        raise
