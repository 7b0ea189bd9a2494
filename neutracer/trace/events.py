# SPDX-License-Identifier: Apache-2.0
"""The tables of what happened: trace events, and the ranges that the program named."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from neutracer._native import core
from neutracer.arguments import number_pair
from neutracer.trace.stacks import NONE, ForwardTexts, Stacks
from neutracer.trace.table import Column, Table, constant

__all__ = ["annotation_table", "event_range", "event_table", "said_of_trace"]

_STAGES = ("START", "END")


def event_table(
    c: Mapping[str, core.Column],
    traces: Sequence[tuple[int, int]],
    actions: Sequence[str],
    strings: Sequence[str],
    stacks: Stacks,
) -> Table:
    """The table of a snapshot's events, device by device.

    Args:
        c: The core's columns; those of keys that the file does not have are not there.
        traces: By device, the first row of its events, and their number.
        actions: The names of the actions, by code.
        strings: The snapshot's strings, by id.
        stacks: The snapshot's stacks.
    """
    count = len(c["action"])

    def optional(name: str, code: str, absent: int) -> Callable[[], Any]:
        return (lambda: c[name]) if name in c else constant(code, absent, count)

    columns = {
        "device": Column(lambda: _devices(traces)),
        "action": Column(lambda: c["action"], names=actions),
        "addr": Column(lambda: c["addr"]),
        "size": Column(lambda: c["size"]),
        "stream": Column(lambda: c["stream"]),
        "time_us": Column(optional("time_us", "q", 0)),
        "device_free": Column(optional("device_free", "Q", 0)),
        "pool_first": Column(optional("pool_first", "Q", 0)),
        "pool_second": Column(optional("pool_second", "Q", 0)),
        "compile_context": Column(optional("compile_context", "I", NONE), strings, NONE),
        "user_metadata": Column(optional("user_metadata", "I", NONE), strings, NONE),
        "internal_metadata": Column(optional("internal_metadata", "I", NONE), strings, NONE),
        "forward_frames": Column(
            optional("forward", "I", NONE), ForwardTexts(stacks) if "forward" in c else (), NONE
        ),
        "stack": Column(lambda: c["stack"], null=NONE),
    }
    return Table("event", columns, count, stacks, {"pool_id": ("pool_first", "pool_second")})


def _devices(traces: Sequence[tuple[int, int]]) -> Any:
    """The device of each event, as numbers."""
    devices = constant("i", 0, 0)()
    for device, (_, events) in enumerate(traces):
        devices += constant("i", device, events)()
    return devices


def annotation_table(c: Mapping[str, core.Column], strings: Sequence[str], stacks: Stacks) -> Table:
    """The table of a snapshot's annotations; they have no stacks."""
    columns = {
        "stage": Column(lambda: c["stage"], names=_STAGES),
        "name": Column(lambda: c["name"], names=strings, null=NONE),
        "device": Column(lambda: c["device"]),
        "time_us": Column(lambda: c["time_us"]),
    }
    return Table("annotation", columns, len(c["stage"]), stacks)


def said_of_trace(settings: Mapping[str, Any], key: str, device: int) -> bool | None:
    """What the settings say of a device's trace; None where they say nothing.

    Args:
        settings: The allocator's, as the file has them.
        key: Of a dict by the device's number, a list, or one value for all.
        device: The device.
    """
    said = settings.get(key)
    if isinstance(said, dict):
        said = said.get(str(device))
    elif isinstance(said, list):
        said = said[device] if device < len(said) else None
    return None if said is None else bool(said)


def event_range(events: range | slice | tuple[int, int], count: int) -> tuple[int, int]:
    """The first event of a range and the one after its last.

    Raises:
        ValueError: It has gaps, or is not among the `count` events there are.
        TypeError: It is neither a range, a slice nor a pair of numbers.
    """
    if isinstance(events, slice):
        events = range(*events.indices(count))
    if isinstance(events, range):
        if events.step != 1:
            raise ValueError("a range of events must have a step of 1")
        events = (events.start, max(events.start, events.stop))
    first, end = number_pair("events", events, whole=True)
    if not 0 <= first <= end <= count:
        raise ValueError(f"events {first} to {end} are not among the {count} there are")
    return first, end
