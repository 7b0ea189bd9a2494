# SPDX-License-Identifier: Apache-2.0
"""The bundled snapshots, and what PyTorch printed when they were taken."""

import functools
import json
import pickle

from places import TESTS

import neutracer

DATA = TESTS / "data"
ALL = sorted(
    str(path.relative_to(DATA)).removesuffix(".pickle.xz") for path in DATA.rglob("*.pickle.xz")
)
# Programs that ran out of memory: their JSON holds the verdict, and not PyTorch's figures.
OOMS = [name for name in ALL if name.startswith("oom/")]
NAMES = [name for name in ALL if name not in OOMS]

# Recordings in which the program reset PyTorch's peaks: the peaks are in `series`.
RESET_PEAKS = ("attention_flash", "attention_math", "train_resnet_late_zero_grad")


@functools.cache
def snapshot(name: str) -> neutracer.Snapshot:
    """The snapshot, loaded once in a run; it never changes."""
    return neutracer.load(DATA / f"{name}.pickle.xz")


def begun_late(name: str, first: int) -> neutracer.Snapshot:
    """The snapshot as if recording had begun with event `first` of its only trace."""
    plain = dict(snapshot(name).to_dict())
    plain["device_traces"] = [trace[first:] for trace in plain["device_traces"]]
    return neutracer.load(pickle.dumps(plain))


@functools.cache
def expected(name: str) -> dict:
    """What stands in the JSON beside it."""
    return json.loads((DATA / f"{name}.json").read_text())


@functools.lru_cache(maxsize=8)
def pickled(name: str) -> bytes:
    """The snapshot's own pickle, unpacked."""
    import lzma

    return lzma.decompress((DATA / f"{name}.pickle.xz").read_bytes())
