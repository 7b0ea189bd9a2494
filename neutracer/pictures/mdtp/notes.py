# SPDX-License-Identifier: Apache-2.0
"""The largest holes of a picture, and what keeps each of them from use."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from neutracer import units
from neutracer._native import core
from neutracer.pictures.extra import place_text
from neutracer.pictures.mdtp.scene import Scene
from neutracer.trace.devices import cache_emptier, shown_device
from neutracer.trace.layout import Layout
from neutracer.trace.places import UNKNOWN_PLACE, place_of
from neutracer.trace.stacks import NONE

__all__ = ["HoleNote", "hole_notes"]

# A hole below this share of the most that was reserved explains nothing.
_LEAST_SHARE = 0.015


@dataclass(frozen=True)
class HoleNote:
    """A hole that deserves a line.

    Attributes:
        state: When: state e + 1 is the one after event e.
        first: Position of its first byte.
        end: Position after its last byte.
        size: Its bytes.
        text: The line.
    """

    state: int
    first: int
    end: int
    size: int
    text: str


def hole_notes(scene: Scene, most: int = 2) -> list[HoleNote]:
    """The largest hole when the most was unused, and the largest that something pins
    when memory ran out (or else at the end).

    Args:
        scene: What is drawn.
        most: How many at most.
    """
    first, end = scene.shown_states
    unused = np.where(scene.settled, scene.reserved - scene.active, -1)
    least = max(1, int(scene.reserved[first:end].max() * _LEAST_SHARE))
    emptiest = first + int(np.argmax(unused[first:end]))
    when = "when the most was unused" if len(scene.timeline) else "at the moment of the snapshot"
    moments = [(emptiest, False, when)]
    if scene.ooms:
        moments.append((max(scene.ooms[-1].state - 1, first), True, "when memory ran out"))
    elif end - 1 != emptiest:
        moments.append((end - 1, True, "at the end"))
    notes: list[HoleNote] = []
    for state, only_pinned, when in moments:
        note = _largest_hole(scene, state, only_pinned, when, least)
        if note and all((note.first, note.size) != (n.first, n.size) for n in notes):
            notes.append(note)
    return notes[:most]


def _largest_hole(
    scene: Scene, state: int, only_pinned: bool, when: str, least: int
) -> HoleNote | None:
    layout = scene.timeline.at(state - 1)
    fragment = core.Fragment(scene.snapshot.native, layout.native, scene.timeline.device)
    pins = {row: pin for row, _, _, _, _, pin in fragment.segments()}
    segments = layout.segments
    streams, ones, twos = (segments.codes(n) for n in ("stream", "pool_first", "pool_second"))
    for _, segment, address, size, before, after in fragment.holes():
        pinned = pins.get(segment, NONE) != NONE
        drawn = scene.passes(streams[segment], (ones[segment], twos[segment]))
        position = scene.position(address)
        if not drawn or (only_pinned and not pinned) or position >= scene.view[3]:
            continue
        if size < least or position < scene.view[2]:
            return None
        holes = sum(1 for hole in fragment.holes() if hole[3] == size)
        others = f", one of {holes}" if holes > 1 else ""
        head = f"{units.format_bytes(size)} free{others}, {when}"
        pin = pins.get(segment, NONE)
        tail = _cached_text(scene) if pin == NONE else _pin_text(layout, pin, before, after)
        return HoleNote(state, position, position + size, size, f"{head}: {tail}")
    return None


def _cached_text(scene: Scene) -> str:
    emptier = cache_emptier(shown_device(scene.snapshot, scene.timeline.device))
    return f"a whole cached segment; nothing pins it, {emptier.rpartition('.')[2]} gives it back"


def _pin_text(layout: Layout, pin: int, before: int, after: int) -> str:
    """What keeps a hole's segment, and what bounds the hole."""
    block = layout.blocks[pin]
    size = units.format_bytes(block.size)
    place = place_of(block.stack)
    by = "" if place == UNKNOWN_PLACE else f" of {place_text(place)}"
    if pin in (before, after):
        return f"pinned by the {size} block{by} beside it"
    return f"its segment is pinned by a {size} block{by}"
