# SPDX-License-Identifier: Apache-2.0
"""First and last uses of allocations, as a rehearsal or a recording observes them.

A snapshot keeps them as one text in `allocator_settings`. A use is dated by the number of
requests made before it, which is the same under every setting of the allocator; peaks rise at
requests only, so no peak depends on a finer date.
"""

from __future__ import annotations

import binascii
import sys
import zlib
from array import array
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

#: The key in allocator_settings of a file.
KEY = "trace_uses"

#: In `first_use_event`: the operator that made the block was its last use; and in both columns:
#: uses that no observer could see.
NEVER, UNKNOWN = -1, -2

# Names the part of the text that has reasons.
_WHY = "why"

# The core's codes of actions that are requests.
_ALLOC, _OOM = 0, 8


class Uses:
    """The uses of one device's requests, filled in as the program runs.

    Requests are counted from 1, in the order of the trace.
    """

    def __init__(self) -> None:
        # By request: the number of requests made before its first and its last use.
        self.first, self.last = array("i", [NEVER]), array("i", [0])

    def request(self) -> None:
        """The next request is made."""
        self.first.append(NEVER)
        self.last.append(len(self.last))

    def made(self, request: int) -> None:
        """The operator that makes the block has ended: its own write is no use."""
        if self.first[request] == NEVER:
            self.last[request] = len(self.last) - 1

    def use(self, request: int) -> None:
        """Something reads or writes the block."""
        if self.first[request] == NEVER:
            self.first[request] = len(self.first) - 1
        self.last[request] = len(self.last) - 1

    def lose(self, request: int) -> None:
        """Something unseen may use the block from now on."""
        self.first[request] = UNKNOWN

    def text(self, device: int) -> str:
        """What a file keeps: at most 12 bytes per request."""
        pairs = array("i")
        for request in range(1, len(self.first)):
            first, last = self.first[request], self.last[request]
            if first == UNKNOWN:
                pairs.extend((UNKNOWN, UNKNOWN))
            else:
                pairs.extend((first if first == NEVER else first - request, last - request))
        if sys.byteorder == "big":
            pairs.byteswap()
        packed = binascii.b2a_base64(zlib.compress(pairs.tobytes()), newline=False)
        return f"{device}:{packed.decode()}"


def reasons_text(reasons: Iterable[str]) -> str:
    """The part of the text that says why uses are not known; "" without reasons."""
    lines = "\n".join(reasons).encode()
    return f"{_WHY}:{binascii.b2a_base64(lines, newline=False).decode()}" if lines else ""


def unseen_uses(settings: Mapping[str, Any]) -> tuple[str, ...]:
    """Why uses in a file are not known, as clauses."""
    parts = str(settings.get(KEY, "")).split()
    packed = next((part for part in parts if part.startswith(f"{_WHY}:")), "")
    try:
        plain = binascii.a2b_base64(packed.partition(":")[2])
    except ValueError:
        return ()
    return tuple(plain.decode("utf-8", "replace").splitlines())


def use_columns(
    settings: Mapping[str, Any],
    device: int,
    actions: Iterable[int],
    alloc_events: Sequence[int] | memoryview,
) -> tuple[array[int], array[int]] | None:
    """The columns `first_use_event` and `last_use_event`; None without uses.

    Args:
        settings: The allocator_settings of the file.
        alloc_events: The event of each allocation; -1: before the trace.
    """
    text = settings.get(KEY)
    if not isinstance(text, str):
        return None
    requests = [event for event, code in enumerate(actions) if code in (_ALLOC, _OOM)]
    pairs = _pairs(text, device, len(requests))
    if pairs is None:
        return None
    number = {event: at for at, event in enumerate(requests)}
    first, last = array("i"), array("i")
    for event in alloc_events:
        at = number.get(event)
        begin, end = (UNKNOWN, UNKNOWN) if at is None else pairs[2 * at : 2 * at + 2]
        first.append(_event(requests, at, begin))
        last.append(_event(requests, at, end))
    return first, last


def _event(requests: list[int], at: int | None, offset: int) -> int:
    """The event of the request that came `offset` after request `at`."""
    if at is None or offset < 0:
        return max(offset, UNKNOWN)
    return requests[min(at + offset, len(requests) - 1)]


def _pairs(text: str, device: int, requests: int) -> array[int] | None:
    """The pairs of a device's requests; None if the text is damaged or has fewer."""
    found = (part.partition(":") for part in text.split())
    packed = next((rest for name, _, rest in found if name == str(device)), None)
    if packed is None:
        return None
    pairs = array("i")
    try:
        # A rehearsal that ran out of memory has uses of requests behind the end of its trace.
        plain = zlib.decompressobj().decompress(binascii.a2b_base64(packed), max(8 * requests, 1))
        pairs.frombytes(plain[: 8 * requests])
    except (ValueError, zlib.error):
        return None
    if sys.byteorder == "big":
        pairs.byteswap()
    return pairs if len(pairs) == 2 * requests else None
