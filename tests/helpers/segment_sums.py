# SPDX-License-Identifier: Apache-2.0
"""Whether the blocks of a snapshot's segments fill them, and add up to what they say."""

from __future__ import annotations

import neutracer


def blocks_fill_segments(snapshot: neutracer.Snapshot) -> bool:
    """Whether each segment is its blocks, one behind the other, with their sums."""
    blocks = list(snapshot.blocks)
    for segment in snapshot.segments:
        mine = blocks[segment.block_first : segment.block_first + segment.block_count]
        end = segment.address
        for block in mine:
            if block.address != end:
                return False
            end += block.size
        held = [block for block in mine if block.state != "inactive"]
        sums = (
            end - segment.address,
            sum(block.size for block in mine if block.state == "active_allocated"),
            sum(block.size for block in held),
            sum(block.requested_size for block in held),
        )
        said = (segment.total_size, segment.allocated_size, segment.active_size)
        if sums != (*said, segment.requested_size):
            return False
    return True
