# SPDX-License-Identifier: Apache-2.0
"""This rank's digest for PyTorch's debug server (`torch.distributed.debug`, torch 2.11 on)."""

from __future__ import annotations

import ctypes
import importlib
import logging
from collections.abc import Callable
from typing import Any

from neutracer.process.ranks.digest import RankDigest

__all__ = ["HANDLER", "answer_debug_server"]

_LOGGER = logging.getLogger("neutracer")

#: The name under which each rank's worker server has it: POST /handler/neutracer.
HANDLER = "neutracer"

# A handler can't be taken back: it is registered once, and asks whoever is on.
_answers: dict[str, Callable[[], RankDigest] | None] = {}


def answer_debug_server(digest: Callable[[], RankDigest] | None) -> str:
    """Answer the debug server from now on, in this process.

    Args:
        digest: Gives the digest; None answers that no watch is on.

    Returns:
        "", or why this torch has no debug server.
    """
    is_registered = HANDLER in _answers
    _answers[HANDLER] = digest
    if is_registered or digest is None:
        return ""
    try:
        c10d = importlib.import_module("torch._C._distributed_c10d")
        # torch's table of handlers goes after the interpreter, and would free this without the
        # GIL, which ends the process: one reference more keeps it.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(_answer))
        c10d._register_handler(HANDLER, _answer)
    except (ImportError, AttributeError, RuntimeError) as error:
        del _answers[HANDLER]
        return f"this torch has no debug server: {error}"
    return ""


# On a thread of the worker server.
def _answer(request: Any, response: Any) -> None:
    digest = _answers.get(HANDLER)
    try:
        if digest is None:
            raise RuntimeError("neutracer.watch_ranks() is not on in this rank")
        response.set_content(digest().to_bytes().decode(), "application/json")
        response.set_status(200)
    except Exception as error:
        # What is raised here would end the process.
        _LOGGER.debug("no digest for the debug server", exc_info=True)
        response.set_content(str(error), "text/plain")
        response.set_status(500)
