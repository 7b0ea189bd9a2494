# SPDX-License-Identifier: Apache-2.0
"""The exceptions and warnings of neutracer.

Exceptions are `NeutracerError`s, and also subclasses of the matching built-in class
(`ValueError`, `RuntimeError`). Invalid arguments raise plain `ValueError` or `TypeError`.

Example:
    >>> try:
    ...     raise SnapshotError("not a pickle", 12)
    ... except ValueError as error:
    ...     print(error)
    not a pickle (at byte 12)
"""

from __future__ import annotations

import typing

__all__ = [
    "HistoryWarning",
    "LimitError",
    "NeutracerError",
    "RehearsalError",
    "SettingsError",
    "SnapshotError",
    "TensorCycleWarning",
    "UnavailableError",
]


class NeutracerError(Exception):
    """The base of neutracer's exceptions."""


class SnapshotError(NeutracerError, ValueError):
    """A file or a buffer that can't be read as a snapshot.

    Attributes:
        reason: The error in one sentence, without the offset.
        offset: Its byte in the (decompressed) input, or None.
    """

    def __init__(self, reason: str, offset: int | None = None) -> None:
        super().__init__(reason, offset)
        self.reason = reason
        self.offset = offset

    def __str__(self) -> str:
        # At its first byte, the whole input is meant.
        if not self.offset:
            return self.reason
        return f"{self.reason} (at byte {self.offset:,})"


class LimitError(SnapshotError):
    """An input that would exceed its limit of memory, depth or time."""


class UnavailableError(NeutracerError, RuntimeError):
    """A dependency of this call is missing on this machine.

    Attributes:
        what: The dependency, as a noun: "torch", "a CUDA device".
        install: How to install it: "install it with 'pip install torch'"; "" if impossible.
    """

    def __init__(self, what: str, install: str = "") -> None:
        super().__init__(what, install)
        self.what = what
        self.install = install

    def __str__(self) -> str:
        sentence = f"{self.what} is not available"
        return f"{sentence}: {self.install}" if self.install else sentence


# The supported releases of optional packages, as in pyproject.toml.
_RELEASES = {
    "duckdb": "duckdb>=1.5,<3",
    "fsspec": "fsspec>=2023.9",
    "matplotlib": "matplotlib>=3.7",
    "mcp": "mcp>=2,<3",
    "prometheus_client": "prometheus-client>=0.19",
    "pyarrow": "pyarrow>=15",
    "resvg-py": "resvg-py>=0.5",
    "rich": "rich>=13",
    "shtab": "shtab>=1.7.2",
    "zstandard": "zstandard>=0.22",
}


def pip_install(package: str) -> str:
    """The command that installs an optional package.

    Example:
        >>> print(pip_install("torch"))
        pip install torch
        >>> print(pip_install("matplotlib"))
        pip install 'matplotlib>=3.7'
    """
    requirement = f"'{_RELEASES[package]}'" if package in _RELEASES else package
    return f"pip install {requirement}"


def missing(package: str, what: str = "") -> UnavailableError:
    """The error for an optional package that is not installed.

    Example:
        >>> print(missing("torch"))
        torch is not available: install it with 'pip install torch'
    """
    command = pip_install(package)
    quote = '"' if "'" in command else "'"
    return UnavailableError(what or package, f"install it with {quote}{command}{quote}")


class RehearsalError(NeutracerError, RuntimeError):
    """A rehearsal that stopped before the program's last step.

    Attributes:
        reason: The reason in one sentence, with the program's line.
        snapshot: The rehearsal up to there.
    """

    def __init__(self, reason: str, snapshot: typing.Any = None) -> None:
        super().__init__(reason, snapshot)
        self.reason = reason
        self.snapshot = snapshot

    def __str__(self) -> str:
        return self.reason


class SettingsError(NeutracerError, ValueError):
    """An allocator settings string that PyTorch would not accept.

    Attributes:
        reason: The error in one sentence, without the position.
        position: Its character in the string, from 0, or None.
    """

    def __init__(self, reason: str, position: int | None = None) -> None:
        super().__init__(reason, position)
        self.reason = reason
        self.position = position

    def __str__(self) -> str:
        if self.position is None:
            return self.reason
        return f"{self.reason} (at character {self.position})"


class TensorCycleWarning(UserWarning):
    """A reference cycle keeps tensors until the garbage collector runs."""


class HistoryWarning(UserWarning):
    """An incomplete trace: its ring wrapped, or only a part of the file was read."""
