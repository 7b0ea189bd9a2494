# SPDX-License-Identifier: Apache-2.0
"""A slice of `make fuzz-structure`: changed recordings, each put to a command."""

from __future__ import annotations

import structure


def test_no_file_breaks_a_command() -> None:
    found: list[str] = []
    structure.fuzz(1, 150, found.append)
    assert not found, "\n".join(found)
