# SPDX-License-Identifier: Apache-2.0
"""Where the segments and blocks of a made-up snapshot are, and what they add up to."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

Strategy = st.SearchStrategy[Any]

#: What a device can have of memory.
sizes = st.one_of(
    st.integers(0, 3),
    st.integers(0, 1 << 20).map(lambda units: units * 512),
    st.sampled_from([255, 256, 65535, 65536, 2**31 - 1, 2**31, 2**32, 2**40]),
    st.integers(0, 2**40),
)

#: Further than blocks that say no address can get from one that says it.
MARGIN = 1 << 43


@st.composite
def layouts(draw: Any, records: Strategy, *, sound: bool) -> Any:
    """A snapshot's segments, beside each other and filled by their blocks; unless `sound`,
    some segments and blocks are elsewhere, and sums are others."""
    segments = draw(records)
    never = st.just(False)
    odd = never if sound else st.booleans()
    address = draw(st.sampled_from([0, 512, 1 << 31, 140 << 40, 1 << 62]))
    for segment in segments:
        segment["address"] = address - draw(st.sampled_from([0, 512])) * draw(odd) % (address + 1)
        lay_out(segment, segment["address"], [draw(odd) for _ in segment.get("blocks") or ()])
        if draw(odd):
            segment["total_size"] += draw(sizes)
            for key in ("allocated_size", "active_size", "requested_size"):
                segment.update({key: draw(sizes)} if key in segment else {})
        address += segment["total_size"] + draw(st.sampled_from([0, 0, 512]))
        blocks = segment.get("blocks")
        if isinstance(blocks, list) and all("address" in row for row in blocks) and draw(odd):
            blocks.reverse()
    return segments


def lay_out(segment: dict[str, Any], address: int, elsewhere: list[bool]) -> None:
    """Put a segment's blocks beside each other from `address` on, and its sums right.

    Blocks `elsewhere` keep an address of their own.
    """
    blocks = segment.get("blocks") or ()
    sums = {"allocated_size": 0, "active_size": 0, "requested_size": 0}
    for block, stays in zip(blocks, elsewhere, strict=True):
        if "address" in block and not (stays and outside(block, segment, blocks)):
            block["address"] = address
        address += block["size"]
        if block.get("state", "inactive") in (None, "inactive"):
            continue
        sums["active_size"] += block["size"]
        sums["allocated_size"] += block["size"] * (block["state"] == "active_allocated")
        sums["requested_size"] += block.get("requested_size", 0)
    segment["total_size"] = address - segment["address"] if blocks else segment["total_size"]
    segment.update({key: value for key, value in sums.items() if key in segment})


def outside(block: dict[str, Any], segment: dict[str, Any], blocks: Any) -> bool:
    """Whether a block is before or behind its segment, however long that becomes."""
    length = sum(row["size"] for row in blocks) + MARGIN
    into = block["address"] - segment["address"]
    return bool(into < -MARGIN or into > length)
