# SPDX-License-Identifier: Apache-2.0
"""All features by name, and programs that fail, each a whole one."""

from __future__ import annotations

import importlib

__all__ = ["ENDINGS", "load_all"]

_MODULES = (
    "autograd_features",
    "python_features",
    "torch_features",
    "cuda_features",
    "library_features",
)


def load_all() -> None:
    """Import the modules, which fill `base.FEATURES`."""
    for name in _MODULES:
        importlib.import_module(name)


_BEGIN = "import sys, torch\ndevice = '{device}'\nx = torch.ones(4, device=device)\n"

#: Programs by name; {device} stands for the device. What they print, their exit code and what
#: they say on standard error are to be the same under every watcher.
ENDINGS = {
    "ends_well": "print(float(x.sum()))",
    "exit_code": "print('mine')\nsys.exit(7)",
    "exit_with_words": "sys.exit('words')",
    "uncaught": "def step():\n    return 1 / 0\nstep()",
    "uncaught_in_forward": "torch.nn.Linear(3, 3).to(device)(x)",
    "uncaught_in_backward": (
        "class F(torch.autograd.Function):\n"
        "    @staticmethod\n"
        "    def forward(ctx, x): return x * 1\n"
        "    @staticmethod\n"
        "    def backward(ctx, g): raise LookupError('in backward')\n"
        "F.apply(x.requires_grad_()).sum().backward()"
    ),
    "chained": (
        "try:\n    raise KeyError('first')\n"
        "except KeyError as e:\n    raise OSError('second') from e"
    ),
    "interrupt": "raise KeyboardInterrupt",
    "interrupt_by_signal": (
        "import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(30)"
    ),
    "terminated": "import os, signal, time\nos.kill(os.getpid(), signal.SIGTERM)\ntime.sleep(30)",
    "terminated_and_handled": (
        "import os, signal, time\n"
        "signal.signal(signal.SIGTERM, lambda *a: (print('saving'), sys.exit(4)))\n"
        "os.kill(os.getpid(), signal.SIGTERM)\ntime.sleep(30)"
    ),
    "killed": "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)",
    "aborted": "import os\nos.abort()",
    "left_at_once": "import os\nprint('gone', flush=True)\nos._exit(5)",
    "at_exit": (
        "import atexit\n"
        "atexit.register(lambda: print('at exit', float(x.sum())))\n"
        "atexit.register(lambda: 1 / 0)"
    ),
    "error_in_thread": (
        "import threading\n"
        "t = threading.Thread(target=lambda: 1 / 0, name='mine')\nt.start()\nt.join()\nprint('on')"
    ),
    "error_in_del": "class C:\n    def __del__(self): 1 / 0\nC()\nprint('on')",
    "own_hook": "sys.excepthook = lambda *a: print('hooked', a[0].__name__)\n1 / 0",
    "daemon_threads": (
        "import threading, time\n"
        "def work():\n    while True:\n        (x * 2).sum()\n        time.sleep(0)\n"
        "threading.Thread(target=work, daemon=True).start()\ntime.sleep(0.2)\nprint('on')"
    ),
    "warned": "import warnings\nwarnings.warn('careful')\nprint('on')",
}
#: Those that only a CUDA device shows.
CUDA_ENDINGS = {
    "out_of_memory": "torch.empty(1 << 45, dtype=torch.uint8, device=device)",
    "out_of_memory_twice": (
        "for _ in range(2):\n"
        "    try:\n        torch.empty(1 << 45, dtype=torch.uint8, device=device)\n"
        "    except torch.OutOfMemoryError:\n        print('caught')\nsys.exit(6)"
    ),
    "out_of_memory_in_two_threads": (
        "import threading\nready = threading.Barrier(2)\n"
        "def work():\n"
        "    ready.wait()\n"
        "    try:\n        torch.empty(1 << 45, dtype=torch.uint8, device=device)\n"
        "    except torch.OutOfMemoryError:\n        print('caught')\n"
        "ts = [threading.Thread(target=work) for _ in range(2)]\n"
        "[t.start() for t in ts]\n[t.join() for t in ts]"
    ),
    "no_caching": (
        "try:\n    torch.empty(1 << 45, dtype=torch.uint8, device=device)\n"
        "except RuntimeError as e:\n    print(type(e).__name__)\nsys.exit(3)"
    ),
    "malloc_async": (
        "try:\n    torch.empty(1 << 45, dtype=torch.uint8, device=device)\n"
        "except RuntimeError as e:\n    print(type(e).__name__)\nsys.exit(3)"
    ),
    "device_assert": (
        "i = torch.tensor([99], device=device)\ntry:\n    x[i].sum().item()\n"
        "except RuntimeError as e:\n    print('assert', 'device-side' in str(e))\nsys.exit(2)"
    ),
}
#: Variables that an ending is run with.
ENVIRONMENTS = {
    "no_caching": {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"},
    "malloc_async": {"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"},
}


def ending(name: str, device: str) -> str:
    """The text of a program that ends in its own way."""
    text = {**ENDINGS, **CUDA_ENDINGS}[name]
    return _BEGIN.replace("{device}", device) + text + "\n"
