# SPDX-License-Identifier: Apache-2.0
"""Digests: their form, and a real store with those of a thousand ranks."""

from __future__ import annotations

import json
import random
import time

import pytest
from waiting import pace

from neutracer.errors import UnavailableError
from neutracer.rank.digest import MOST_BINS, MOST_STEPS, Held, RankDigest, RankStore, opened_store
from neutracer.rank.watch import report_of


def full(rank: int, world: int = 1024) -> RankDigest:
    """A digest in which everything is said, as long as any will be."""
    chance = random.Random(rank)
    size = 60 << 30
    begin = 1_800_000_000_000_000 + rank
    return RankDigest(
        source="store",
        rank=rank,
        world_size=world,
        job="f3b1c9d2-5a0e-4c7e-9d57-0f4cf0f1f1aa",
        attempt=0,
        host=f"node{rank // 8}",
        pid=100_000 + rank,
        program="/srv/project/train.py",
        torch="2.11.0+cu130",
        written_s=1_800_000_100.25,
        reason="interval",
        device=f"cuda:{rank % 8}",
        total_bytes=140 << 30,
        allocated_bytes=size,
        reserved_bytes=size,
        peak_allocated_bytes=size + (9 << 30) * (rank == 700),
        peak_reserved_bytes=size,
        largest_hole_bytes=chance.randrange(1 << 30),
        other_bytes=1 << 30,
        libraries={"NCCL": 900 << 20, "cuBLAS": 33 << 20},
        verdict="steady",
        categories={name: chance.randrange(1 << 34) for name in ("parameter", "activation")},
        places=tuple(
            Held(f"forward (transformers modeling.py:{at}, from train.py:42)", 1 << 30, 99)
            for at in range(10)
        ),
        parameters=tuple((1 << 20 << at % 8, at) for at in range(64)),
        step_us=tuple(begin + at * 1_000_000 for at in range(MOST_STEPS)),
        step_peak_bytes=tuple(chance.randrange(size) for _ in range(MOST_STEPS)),
        steps=5000,
        begin_us=begin,
        end_us=begin + 10**9,
        curve=tuple(chance.randrange(size) for _ in range(MOST_BINS)),
        where="forward (train.py:42)",
        where_s=0.5,
        interval_s=10.0,
    )


def test_digest_survives_its_bytes() -> None:
    one = full(3)
    assert RankDigest.from_bytes(one.to_bytes()) == one
    assert len(one.to_bytes()) < 16 << 10


@pytest.mark.parametrize(
    "raw",
    [b"", b"[]", b"{}", b'{"schema": 1}', b"\xff\x00", b"[" * 100_000, b" " * (2 << 20)],
)
def test_what_is_no_digest_is_refused(raw: bytes) -> None:
    with pytest.raises(ValueError):
        RankDigest.from_bytes(raw)


def test_wrong_kinds_are_left_out() -> None:
    plain = json.loads(full(3).to_bytes())
    wrong = {name: {"x": [None]} for name in plain if name not in ("schema", "source")}
    read = RankDigest.from_bytes(json.dumps({**plain, **wrong}).encode())
    assert (read.rank, read.curve, read.places, read.parameters) == (None, (), (), ())
    wrong = {name: "x" for name in plain if name not in ("schema", "source")}
    read = RankDigest.from_bytes(json.dumps({**plain, **wrong}).encode())
    assert (read.steps, read.categories, read.host) == (0, {}, "x")


def test_thousand_ranks_are_read_in_a_second() -> None:
    distributed = pytest.importorskip("torch.distributed")
    if not distributed.is_available():
        pytest.skip("this torch has no torch.distributed")
    server = distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    writer = opened_store("127.0.0.1", server.port)
    length = sum(writer.write(full(rank)) for rank in range(1024))
    assert length < 20 << 20
    reader = opened_store("127.0.0.1", server.port)
    spent = []
    # The time of this thread: the store's server runs in this process too. A busy machine makes
    # some of the times longer, and none shorter.
    while len(spent) < 3 and min(spent, default=1.0) >= 1.0:
        now, begin = pace(), time.thread_time()
        digests = reader.read()
        report = report_of(digests, 1_800_000_101.0)
        spent.append((time.thread_time() - begin) / now)
        assert len(report.rows) == 1024
        assert [odd.rank for odd in report.odd] == [700]
    assert min(spent) < 1.0, spent
    # A rank's next digest takes the place of its last one.
    writer.write(full(5))
    assert len(reader.read()) == 1024


class Silent:
    """A store whose server does not answer any more."""

    def __getattr__(self, name: str) -> object:
        def fail(*args: object) -> object:
            raise RuntimeError("Connection reset by peer")

        return fail


def test_store_that_does_not_answer_raises_and_does_not_wait() -> None:
    with pytest.raises(RuntimeError, match="reset"):
        RankStore(Silent()).write(full(0))


def test_address_where_nobody_answers_is_told() -> None:
    pytest.importorskip("torch")
    with pytest.raises(UnavailableError, match="it does not answer"):
        opened_store("127.0.0.1", 1)
