# SPDX-License-Identifier: Apache-2.0
"""The one place that loads compiled modules."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

__all__ = ["core", "load_hooks"]

try:
    from neutracer import _core as core
except ImportError as error:  # pragma: no cover - only in a broken installation
    raise ImportError(
        "neutracer's compiled core is missing or does not fit this Python "
        f"({error}); reinstall neutracer; in a source checkout, whose folder hides an installed "
        "one, build it with `pip install -e .` or `make build`"
    ) from error


def load_hooks(path: Path) -> ModuleType:
    """Load the shim on c10, `neutracer._torch`, from where it was built.

    It is loaded once a process: PyTorch can't let go of what it attaches.

    Args:
        path: The compiled module, built for the torch that is imported.
    """
    name = "neutracer._torch"
    if name in sys.modules:
        return sys.modules[name]
    loader = importlib.machinery.ExtensionFileLoader(name, str(path))
    spec = importlib.util.spec_from_file_location(name, path, loader=loader)
    if spec is None:
        raise ImportError(f"{path} is not a compiled module", name=name, path=str(path))
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    sys.modules[name] = module
    return module
