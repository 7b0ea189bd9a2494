# SPDX-License-Identifier: Apache-2.0
"""Bootstrap in the target of `neutracer attach`.

Its source is executed there on its own, so it imports no other module of neutracer.
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

# Files in the shared folder. The process that renames the request owns it.
REQUEST, TAKEN, REPLY = "request.json", "taken.json", "reply.json"


def begin(folder: str, package: str, suffix: str) -> None:
    """Take the request, unless it was withdrawn, and answer it from a thread."""
    try:
        os.rename(os.path.join(folder, REQUEST), os.path.join(folder, TAKEN))
    except OSError:
        return
    threading.Thread(
        target=_answer, args=(folder, package, suffix), name="neutracer-attach", daemon=True
    ).start()


def reply(folder: str, answer: dict[str, Any]) -> bool:
    """Write the answer atomically; False if the command no longer waits for it."""
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
    """No neutracer for this Python."""


def _find(package: str, suffix: str) -> ModuleType:
    """This process's own neutracer, or the command's."""
    if "neutracer" not in sys.modules:
        spec = importlib.util.find_spec("neutracer")
        # A namespace package of that name does not count.
        if spec is None or spec.origin is None:
            _import_from(package, suffix)
    return importlib.import_module("neutracer.run.attached")


def _import_from(package: str, suffix: str) -> None:
    """Import the package from its path without changing `sys.path`."""
    ours = importlib.machinery.EXTENSION_SUFFIXES[0]
    if suffix != ours:
        raise _NotFoundError(
            f"it is not installed, and the command's is compiled for {suffix}, not {ours}"
        )
    spec = importlib.util.spec_from_file_location(
        "neutracer", os.path.join(package, "__init__.py"), submodule_search_locations=[package]
    )
    if spec is None or spec.loader is None or not os.path.isfile(spec.origin or ""):
        raise _NotFoundError(f"it is not installed, and {package} is not accessible")
    module = importlib.util.module_from_spec(spec)
    sys.modules["neutracer"] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules["neutracer"]
        raise
