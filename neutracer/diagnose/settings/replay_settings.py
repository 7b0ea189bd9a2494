# SPDX-License-Identifier: Apache-2.0
"""Settings and versions as their users write them, and what the core makes of them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from neutracer._native import core
from neutracer.arguments import text as checked_text
from neutracer.errors import SettingsError
from neutracer.render.document import Copyable

if TYPE_CHECKING:
    from neutracer.trace.snapshot import Snapshot

__all__ = [
    "canonical",
    "expandable_advice",
    "refuse_others",
    "takes_share",
    "version_number",
    "wanted_settings",
]


def canonical(settings: str) -> str:
    """The shortest text with the same meaning.

    Args:
        settings: A PYTORCH_CUDA_ALLOC_CONF text.

    Raises:
        SettingsError: PyTorch would not accept it, or it asks for an allocator that is not
            PyTorch's native one; `.position` is where.

    Example:
        >>> canonical("expandable_segments : True, max_split_size_mb:512")
        'expandable_segments:True,max_split_size_mb:512'
    """
    parsed = _parsed(settings)
    if not parsed["native_backend"]:
        raise SettingsError(
            "the model is of PyTorch's native allocator; nobody records what other backends do",
            max(settings.find("backend"), 0),
        )
    return str(parsed["text"])


def _parsed(settings: str) -> dict[str, Any]:
    """The core's reading of a text for PYTORCH_CUDA_ALLOC_CONF."""
    if not isinstance(settings, str):
        kind = type(settings).__name__
        raise TypeError(f"settings must be a text for PYTORCH_CUDA_ALLOC_CONF, not {kind}")
    try:
        return core.parse_settings(settings)
    except UnicodeEncodeError as error:
        bad = settings[error.start]
        raise SettingsError(f"{bad!r} is half of a character", error.start) from None


def takes_share(settings: str) -> bool:
    """Whether settings limit the process to a share of its device."""
    return float(_parsed(settings)["per_process_memory_fraction"]) < 1.0


def expandable_advice(recorded: str) -> str:
    """The advice to set expandable segments, and nothing else, in place of what is set.

    Args:
        recorded: The settings in force, as text; "" is the default.

    Example:
        >>> expandable_advice("max_split_size_mb:64")
        'try PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True instead of max_split_size_mb:64'
    """
    text = "try PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
    return Copyable(f"{text} instead of {recorded}" if recorded else text)


def version_number(text: str | None) -> int:
    """The core's number of a version of PyTorch; 0 for None, which is the newest known.

    Raises:
        TypeError: It is no text.
        ValueError: It is no version.

    Example:
        >>> version_number("2.11.0+cu130")
        2011
    """
    if text is None:
        return 0
    found = re.match(r"(\d{1,3})\.(\d{1,3})(\D|$)", checked_text("torch_version", text))
    if found is None:
        raise ValueError(f"a version of torch is written as 2.11, not {text!r}")
    return int(found[1]) * 1000 + int(found[2])


def wanted_settings(settings: tuple[str, ...], is_size_given: bool) -> list[str]:
    """The default and the given settings, each once, in the shortest spelling.

    Raises:
        SettingsError: PyTorch would not accept one.
        ValueError: One asks for a share of a device whose size nobody gave.
    """
    wanted = {text: canonical(text) for text in ("", *settings)}
    shares = [text for text in wanted if takes_share(text)]
    if shares and not is_size_given:
        asked = f"{shares[0]!r} asks for a share of the device"
        raise ValueError(f"{asked}: capacity= (or --capacity) says how large it is")
    return list(wanted.values())


def refuse_others(snap: Snapshot) -> None:
    """Raises a ValueError for what is not the work of PyTorch's native CUDA allocator."""
    if not snap.settings_in_force["native_backend"]:
        raise ValueError(
            "this program ran under another allocator than PyTorch's native one, which "
            "records nothing that could be replayed"
        )
    if snap.is_pinned:
        raise ValueError(
            "this is the host's pinned memory, which has an allocator of its own: only what "
            "PyTorch's native CUDA allocator did can be replayed"
        )
    if snap.is_cpu:
        raise ValueError(
            "this is the memory of the CPU, which PyTorch takes from the system block by block, "
            "without a cache: only what its native CUDA allocator did can be replayed"
        )
