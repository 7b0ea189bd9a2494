# SPDX-License-Identifier: Apache-2.0
"""Settings and versions as their users write them, and what the core makes of them."""

from __future__ import annotations

import re

from neutracer._native import core
from neutracer.errors import SettingsError

__all__ = ["canonical", "takes_share", "version_number"]


def canonical(settings: str) -> str:
    """The shortest text that stands for the same settings.

    Args:
        settings: A PYTORCH_CUDA_ALLOC_CONF text.

    Raises:
        SettingsError: PyTorch would not accept it, or it asks for an allocator that is not
            PyTorch's native one; `.position` is where.

    Example:
        >>> canonical("expandable_segments : True, max_split_size_mb:512")
        'expandable_segments:True,max_split_size_mb:512'
    """
    if not isinstance(settings, str):
        kind = type(settings).__name__
        raise TypeError(f"settings are a text for PYTORCH_CUDA_ALLOC_CONF, not {kind}")
    parsed = core.parse_settings(settings)
    if not parsed["native_backend"]:
        raise SettingsError(
            "the model is of PyTorch's native allocator; of other backends nobody records "
            "what they do",
            max(settings.find("backend"), 0),
        )
    return str(parsed["text"])


def takes_share(settings: str) -> bool:
    """Whether settings limit the process to a share of its device."""
    return float(core.parse_settings(settings)["per_process_memory_fraction"]) < 1.0


def version_number(text: str | None) -> int:
    """The core's number of a version of PyTorch; 0 for None, which is the newest known.

    Raises:
        ValueError: It is no version.

    Example:
        >>> version_number("2.11.0+cu130")
        2011
    """
    if text is None:
        return 0
    found = re.match(r"(\d{1,3})\.(\d{1,3})(\D|$)", text)
    if found is None:
        raise ValueError(f"a version of torch is written as 2.11, not {text!r}")
    return int(found[1]) * 1000 + int(found[2])
