# SPDX-License-Identifier: Apache-2.0
"""Long traces whose events change their form, against the oracle in plain Python.

The reader holds an event against those before it: what is told apart here is whether it
sees where one differs.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
from comparable import comparable, wrapped
from reference_reader import columns, described
from snapshot_encoders import ENCODERS

import neutracer

ACTIONS = ("alloc", "free_requested", "free_completed")


def number(chance: random.Random) -> int:
    """A number of any width that an event's field can have, in bytes and signs."""
    bits = chance.choice((0, 7, 8, 15, 16, 31, 32, 47, 48, 55, 59, 60, 62, 63, 64))
    return chance.randrange(1 << bits)


def events(seed: int, changes: float) -> list[dict[str, Any]]:
    """Events like the one before them, but for changes of form now and then."""
    chance = random.Random(seed)
    frames = [
        {"name": f"f{i}", "filename": "a.py", "line": number(chance) % 2**62} for i in range(4)
    ]
    stacks = [chance.choices(frames, k=count) for count in (1, 2, 3, 3, 40)]
    row: dict[str, Any] = {"action": "alloc", "addr": 512, "size": 512, "stream": 0, "time_us": 1}
    rows = []
    for _ in range(400):
        row = {**row, "action": chance.choice(ACTIONS), "addr": row["addr"] ^ 512}
        row["time_us"] += 1
        if chance.random() < changes:
            key = chance.choice(("addr", "size", "stream", "time_us"))
            row[key] = row["time_us"] if key == "time_us" else 0
            # Sizes that a device can have, and times that rise.
            row[key] += number(chance) % 2 ** {"size": 48, "time_us": 44}.get(key, 62)
        if chance.random() < changes:
            row["pool_id"] = (number(chance) % 2**62, number(chance) % 300)
        if chance.random() < changes:
            row["compile_context"] = chance.choice(("N/A", "0/0", "a longer context than most"))
        if chance.random() < changes:
            row["user_metadata"] = "m" * chance.randrange(40)
        if chance.random() < changes:
            row.pop(chance.choice(("pool_id", "user_metadata", "compile_context")), None)
        row.pop("frames", None)
        if chance.random() < 0.9:
            shared = chance.choice(stacks)
            row["frames"] = shared if chance.random() < 0.5 else list(shared)
        if chance.random() < changes:
            # The order of keys is part of the form.
            row = dict(chance.sample(sorted(row.items(), key=lambda pair: pair[0]), len(row)))
        if chance.random() < changes / 4:
            row["unknown"] = chance.choice((1, "text", None, [1], 1.5))
        rows.append(row)
    return rows


@pytest.mark.parametrize("encoding", sorted(ENCODERS))
@pytest.mark.parametrize("changes", [0.0, 0.02, 0.3])
def test_forms_that_change_are_seen(encoding: str, changes: float) -> None:
    for seed in range(2):
        value = {
            "segments": [],
            "device_traces": [events(seed, changes), events(seed + 9, changes)],
        }
        read = wrapped(value) if encoding == "C++" else value
        found = described(neutracer.load(ENCODERS[encoding](value)))
        assert comparable(found) == comparable(columns(read))
