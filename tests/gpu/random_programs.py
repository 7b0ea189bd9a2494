# SPDX-License-Identifier: Apache-2.0
"""Random programs for PyTorch's caching allocator, run for real under many settings.

A program is a list of operations that its seed alone decides; nothing here needs torch.
`run_programs.py` carries them out. A request that fails leaves its place empty and the
program goes on the same, so that what is asked of the allocator is the same under every
setting. Called with two numbers, this prints a digest of each seed between them.
"""

import collections
import hashlib
import json
import random
import sys
from typing import ClassVar

MIB, GIB = 1 << 20, 1 << 30

SETTINGS = (
    "",
    "max_split_size_mb:64",
    "max_split_size_mb:256",
    "roundup_power2_divisions:4",
    "roundup_power2_divisions:[256:1,512:2,1024:4,>:8]",
    "garbage_collection_threshold:0.6",
    "garbage_collection_threshold:0.8,max_split_size_mb:128",
    "expandable_segments:True",
    "expandable_segments:True,roundup_power2_divisions:8",
    "max_split_size_mb:32,max_non_split_rounding_mb:64",
    "large_segment_size_mb:40",
    "expandable_segments:True,garbage_collection_threshold:0.5",
    "expandable_segments:True,roundup_power2_divisions:[1:8,4:4,64:2,>:1]",
    "large_segment_size_mb:12,max_split_size_mb:100,max_non_split_rounding_mb:32",
    "per_process_memory_fraction:0.005",
    "expandable_segments:True,large_segment_size_mb:64",
    "expandable_segments:True,max_split_size_mb:64",
    "roundup_power2_divisions:[1:4,16:8,64:1,>:2],max_split_size_mb:48",
)

# What sort of program a seed gives, in turn. The last sort fills the device, so that no
# other process may hold memory of it: those run one at a time.
SORTS = (
    "plain",
    "capped",
    "streams",
    "edges",
    "pools",
    "graphs",
    "late",
    "growing",
    "races",
    "restored",
    "pools_capped",
    "edges_capped",
)
DEVICE_SEEDS = range(900, 903)
DEVICE_SETTINGS = (0, 1, 7, 9)


def sort_of(seed):
    return "device" if 900 <= seed < 1000 else SORTS[seed % len(SORTS)]


def settings_of(seed, count=6):
    """The settings a seed is run under, the default one first."""
    if sort_of(seed) == "device":
        return list(DEVICE_SETTINGS)
    chance = random.Random(f"settings {seed}")
    return [0, *sorted(chance.sample(range(1, len(SETTINGS)), count - 1))]


class Writer:
    """Writes one program: keeps what is live, so that every operation makes sense."""

    EDGES = (512, MIB, 2 * MIB, 10 * MIB, 12 * MIB, 20 * MIB, 32 * MIB, 40 * MIB, 48 * MIB)
    EDGES += (64 * MIB, 84 * MIB, 96 * MIB, 100 * MIB, 128 * MIB, 148 * MIB, 256 * MIB)
    NEAR = (0, 0, 0, -513, -512, -1, 1, 512, MIB, MIB + 512, -MIB, 2 * MIB, -2 * MIB)
    RANGES: ClassVar = {
        "wide": (0, 28.3, 1200 * MIB),
        "small": (0, 21.5, 60 * MIB),
        "medium": (16, 25.5, 500 * MIB),
        "large": (22.5, 28.7, 1500 * MIB),
        "edges": (0, 28, 1300 * MIB),
    }

    def __init__(self, seed):
        self.chance = random.Random(f"program {seed}")
        self.sort = sort_of(seed)
        self.ops = []
        self.live = {}  # slot: bytes
        self.next = 0
        self.stream_count = 1
        profile = "edges" if "edges" in self.sort else None
        self.profile = profile or self.chance.choice(("wide", "small", "medium", "large"))
        low, high, self.target = self.RANGES[self.profile]
        self.low, self.high = low, high
        self.shapes = [self.draw() for _ in range(self.chance.randint(4, 12))]
        self.repeats = self.chance.choice((0.0, 0.3, 0.8))
        self.order = self.chance.choice(("any", "oldest", "newest", "burst"))
        self.grown = 1 << self.chance.randint(10, 20)
        self.pools, self.graphs = [], []

    def draw(self):
        if self.profile == "edges" and self.chance.random() < 0.7:
            return max(1, self.chance.choice(self.EDGES) + self.chance.choice(self.NEAR))
        return int(2 ** self.chance.uniform(self.low, self.high))

    def size(self):
        if self.sort == "growing" and self.chance.random() < 0.6:
            self.grown = int(self.grown * self.chance.uniform(1.0, 1.12)) + 1
            if self.grown > 400 * MIB:
                self.grown = 1 << self.chance.randint(10, 20)
            return self.grown
        if self.chance.random() < self.repeats:
            return self.chance.choice(self.shapes)
        return self.draw()

    def add(self, *op):
        self.ops.append(op)

    def alloc(self, stream=None, size=None):
        size = size or self.size()
        if stream is None:
            stream = self.chance.randrange(self.stream_count)
        slot, self.next = self.next, self.next + 1
        self.add("alloc", slot, size, stream)
        self.live[slot] = size
        return slot

    def free(self, slot):
        del self.live[slot]
        self.add("free", slot)

    def free_some(self):
        slots = list(self.live)
        if self.order == "burst" and self.chance.random() < 0.05:
            for slot in slots[self.chance.randrange(len(slots)) :]:
                self.free(slot)
        elif self.order == "oldest" and self.chance.random() < 0.8:
            self.free(slots[0])
        elif self.order == "newest" and self.chance.random() < 0.8:
            self.free(slots[-1])
        else:
            self.free(self.chance.choice(slots))

    def step(self, stream=None):
        """One request, or frees where much is live."""
        used = sum(self.live.values())
        if self.live and (
            used > self.target or self.chance.random() < 0.25 + 0.3 * used / self.target
        ):
            self.free_some()
        else:
            self.alloc(stream)
            while sum(self.live.values()) > 1.6 * self.target and len(self.live) > 1:
                self.free(next(iter(self.live)))

    def write(self):
        count = self.chance.randint(250, 800)
        sort = self.sort
        if sort == "device":
            self.profile, self.low, self.high = "large", 24, 29.5
            self.target, count = 2600 * MIB, self.chance.randint(200, 350)
            self.add("record")
            self.add("fill", 3 * GIB)
        elif "capped" in sort or self.chance.random() < 0.35:
            cap = int(self.target * self.chance.uniform(0.5, 1.4))
            unit = self.chance.choice((20 * MIB, 2 * MIB, 2 * MIB, 1))
            self.add("cap", max(cap // unit * unit, 24 * MIB))
        if sort in ("streams", "races"):
            self.stream_count = self.chance.randint(2, 4)
        elif self.chance.random() < (0.5 if "pools" in sort else 0.2):
            self.stream_count = 2
        if sort == "late":
            for _ in range(count // 3):
                self.step()
            self.add("settings")
        if sort != "device":
            self.add("record")
        empties = self.chance.choice((0.0, 0.004, 0.02))
        for k in range(count):
            if self.chance.random() < empties:
                self.add("empty")
            elif sort in ("streams", "races") and self.live and self.chance.random() < 0.2:
                self.use(sort == "races")
            elif "pools" in sort and self.chance.random() < 0.03:
                self.pool(k)
            elif sort in ("graphs", "restored") and self.chance.random() < 0.015:
                self.graph(k)
            else:
                self.step()
        if self.chance.random() < 0.3:
            for slot in list(self.live):
                self.free(slot)
            self.add("empty")
        return self.ops

    def use(self, is_race):
        """A block that another stream uses is freed: it is pending for a while."""
        slot = self.chance.choice(list(self.live))
        stream = self.chance.randrange(self.stream_count)
        self.add(
            "use", slot, stream, self.chance.choice((0, 10**5, 10**6, 10**7)) if is_race else 0
        )
        if self.chance.random() < 0.7:
            self.free(slot)
        if not is_race or self.chance.random() < 0.1:
            self.add("sync")

    def pool(self, name):
        """Some steps in a private pool; now and then one that was used before."""
        if self.pools and self.chance.random() < 0.5:
            name = self.chance.choice(self.pools)
        else:
            self.pools.append(name)
        self.add("enter", name)
        for _ in range(self.chance.randint(1, 25)):
            if self.live and self.chance.random() < 0.1:
                self.use(False)
            else:
                self.step()
        self.add("leave")
        if self.chance.random() < 0.3:
            self.pools.remove(name)
            self.add("drop", name)

    def graph(self, name):
        """A capture; its pool may be an older graph's, and be put back as it was once."""
        shared = None
        if self.graphs and self.chance.random() < 0.4:
            shared = self.chance.choice(self.graphs)
        outer, self.live = self.live, {}
        self.add("capture", name, shared)
        for _ in range(self.chance.randint(2, 30)):
            if outer and self.chance.random() < 0.05:
                slot = self.chance.choice(list(outer))
                del outer[slot]
                self.add("free", slot)
            else:
                self.step(-1)
        self.add("end")
        if shared is None:
            self.graphs.append(name)
        if self.sort == "restored":
            kept = list(self.live)
            self.add("save", name)
            for slot in kept:
                self.add("free", slot)
            if self.chance.random() < 0.5:
                self.live = {}
                self.add("capture", f"{name} again", name)
                for _ in range(self.chance.randint(2, 20)):
                    self.step(-1)
                self.add("end")
                for slot in list(self.live):
                    self.free(slot)
            self.add("restore", name)
            self.chance.shuffle(kept)
            for slot in kept:
                self.add("delete", slot)
            self.live = {}
        elif self.chance.random() < 0.5:
            for slot in list(self.live):
                self.free(slot)
        if self.chance.random() < 0.3:
            self.add("drop_graph", name)
            self.graphs = [g for g in self.graphs if g != name]
        self.live = {**outer, **self.live}


def program(seed):
    """The operations of a seed."""
    return Writer(seed).write()


def digest(seed):
    return hashlib.sha256(json.dumps(program(seed)).encode()).hexdigest()[:16]


def main():
    for seed in range(int(sys.argv[1]), int(sys.argv[2]) + 1):
        kinds = collections.Counter(op[0] for op in program(seed))
        print(seed, sort_of(seed), digest(seed), settings_of(seed), dict(kinds))


if __name__ == "__main__":
    main()
