# SPDX-License-Identifier: Apache-2.0
"""Scripts that run in a process of their own, and tell what they saw."""

import json
import os
import subprocess
import sys
import textwrap

PRELUDE = """
import ctypes, gc, json, os, sys, warnings
warnings.simplefilter("ignore")
import torch, neutracer

MIB, GIB = 1 << 20, 1 << 30
out = {}

def table(handle):
    return {use.library: use.bytes for use in handle.by_library()}

def cudart():
    with open("/proc/self/maps") as maps:
        paths = {line.split()[-1] for line in maps if "libcudart.so" in line}
    library = ctypes.CDLL(sorted(paths)[0])
    library.cudaMalloc.argtypes = [ctypes.POINTER(ctypes.c_void_p), ctypes.c_size_t]
    return library
"""


def run(script, **env):
    """The dict `out` of a script; what it printed besides goes to the test's output."""
    text = PRELUDE + textwrap.dedent(script) + "\nprint('OUT ' + json.dumps(out))\n"
    done = subprocess.run(
        [sys.executable, "-c", text],
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=120,
    )
    print(done.stdout, done.stderr)
    assert done.returncode == 0, done.stderr[-3000:]
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("OUT ")]
    return json.loads(line[4:])
