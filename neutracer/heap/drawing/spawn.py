# SPDX-License-Identifier: Apache-2.0
"""Pictures from the drawing process.

The process is spawned, not forked: it shares nothing with a training job, and gets
the graph on its standard input. Whatever happens to it is an exception here.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import signal
import subprocess
import sys

import neutracer.heap.drawing.child as drawing_child
from neutracer.errors import NeutracerError, UnavailableError
from neutracer.heap.drawing.plan import Plan
from neutracer.render.escape import sentence

__all__ = ["NoRendererError", "render"]

# Seconds for one picture. A few hundred boxes take less than one.
_TIMEOUT = 30

_INSTALL = (
    "install Graphviz (on Debian: apt install graphviz libgraphviz-dev), then build neutracer "
    "again in its checkout: pip install --force-reinstall . or `make build`; to_dot(), to_html() "
    "and to_json() work without it"
)


class NoRendererError(NeutracerError):
    """This Graphviz has nothing that writes the format."""


def render(plan: Plan, form: str) -> bytes:
    """A picture as Graphviz makes it.

    Args:
        plan: What to draw.
        form: "svg" or "png".

    Raises:
        UnavailableError: There is no Graphviz here.
        NoRendererError: It does not write this format: that of wheels has neither cairo nor fonts.
        NeutracerError: It made no picture, or took more than 30 seconds.
    """
    module = _module_path()
    if module is None or not sys.executable:
        raise UnavailableError("drawing with Graphviz", _INSTALL)
    request = {"format": form, "seconds": _TIMEOUT, "plan": plan.to_dict()}
    return _drawn(module, json.dumps(request, sort_keys=True).encode("ascii"), _TIMEOUT)


def _module_path() -> str | None:
    """Where the compiled module is; it is never loaded here."""
    spec = importlib.util.find_spec("neutracer._graphviz")
    return spec.origin if spec else None


# What gvc says where none of its plugins writes PNG.
_NO_FORMAT = "renderer for png is unavailable"


# A notebook asks for the same picture as SVG and as HTML.
@functools.lru_cache(maxsize=4)
def _drawn(module: str, request: bytes, timeout: float) -> bytes:
    # -I and -S: no path, hook or setting of the program reaches this process.
    command = [sys.executable, "-I", "-S", drawing_child.__file__, module]
    try:
        done = subprocess.run(
            command, input=request, capture_output=True, timeout=timeout, check=False
        )
    except subprocess.TimeoutExpired:
        raise NeutracerError(
            f"the graph could not be drawn within {timeout:g} seconds; draw fewer nodes"
        ) from None
    except OSError as error:
        raise NeutracerError(f"no process could be started to draw in: {error}") from error
    return _picture(done)


def _picture(done: subprocess.CompletedProcess[bytes]) -> bytes:
    head, _, body = done.stdout.partition(b"\n")
    try:
        answer = json.loads(head)
    except ValueError:
        raise NeutracerError(f"the drawing process {_ended(done)}") from None
    if answer.get("missing"):
        reason = sentence(str(answer["error"]), 200)
        raise UnavailableError("drawing with Graphviz", f"{reason}; {_INSTALL}")
    if "error" in answer:
        reason = sentence(str(answer["error"]))
        if _NO_FORMAT in reason:
            raise NoRendererError(reason)
        raise NeutracerError(f"Graphviz made no picture: {reason}")
    return body


def _ended(done: subprocess.CompletedProcess[bytes]) -> str:
    if done.returncode < 0:
        try:
            return f"was ended by {signal.Signals(-done.returncode).name}"
        except ValueError:
            return f"was ended by signal {-done.returncode}"
    words = sentence(done.stderr.decode("utf-8", "replace").strip()[-300:])
    return f"ended with status {done.returncode}" + (f": {words}" if words else "")
