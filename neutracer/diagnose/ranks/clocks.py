# SPDX-License-Identifier: Apache-2.0
"""Clocks of several hosts put on one: by the steps, which ranks begin together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from neutracer.process.ranks.digest import RankDigest
from neutracer.units import format_duration_us

__all__ = ["Clocks", "clocks_of"]

# With fewer steps in common nothing can be aligned.
_FEWEST = 3

# So many steps, spread evenly over those in common, say how well two clocks agree.
_COMPARED = 64

# Steps that one rank may have recorded before another one's first.
_MOST_SHIFT = 64

# Steps whose beginnings differ by more than this share of a step are no common events.
_MOST_SPREAD = 0.25

# Steps that agree to this share of one need no look at other shifts.
_EXACT = 0.02


@dataclass(frozen=True)
class Clocks:
    """How far the hosts' clocks are ahead of the first host's.

    Attributes:
        ahead_us: Microseconds by host; a host that is not in it could not be aligned.
        within_us: How exactly that is known; 0 where there is one host only.
        hosts: How many there are.
    """

    ahead_us: dict[str, int]
    within_us: int
    hosts: int

    @property
    def unaligned(self) -> int:
        """Hosts whose clocks are taken as they are."""
        return self.hosts - len(self.ahead_us)

    def common(self, one: RankDigest, time_us: int) -> int:
        """A time of a rank's clock by the first host's."""
        return time_us - self.ahead_us.get(one.host, 0)

    def said(self) -> str:
        """The same as a sentence; "" for one host."""
        if self.hosts < 2:
            return ""
        most = max(map(abs, self.ahead_us.values()), default=0)
        if len(self.ahead_us) < 2:
            return (
                f"The clocks of the {self.hosts} hosts are taken as they are: their ranks have no "
                "steps in common to align them by."
            )
        rest = f"; {self.unaligned} could not be aligned" if self.unaligned else ""
        return (
            f"The clocks of {len(self.ahead_us)} hosts were aligned by their steps, to within "
            f"{format_duration_us(self.within_us)}; they differed by up to "
            f"{format_duration_us(most)}{rest}."
        )


def clocks_of(digests: Iterable[RankDigest]) -> Clocks:
    """The clocks of the hosts, by the ranks with the most steps on each."""
    best: dict[str, RankDigest] = {}
    hosts: set[str] = set()
    for one in digests:
        hosts.add(one.host)
        if len(one.step_us) > len(best.get(one.host, _NONE).step_us) and one.step_us[0]:
            best[one.host] = one
    named = sorted(best)
    if len(hosts) < 2 or not named:
        first = next(iter(hosts), "")
        return Clocks({first: 0}, 0, len(hosts))
    first = named[0]
    ahead, within = {first: 0}, 0
    for host in named[1:]:
        one, other = best[first], best[host]
        # Where both have all steps, the first is the first of both.
        whole = bool(one.history_complete and other.history_complete)
        found = _offset(one.step_us, other.step_us, 0 if whole else _MOST_SHIFT)
        if found is not None:
            ahead[host], spread = found
            within = max(within, spread)
    return Clocks(ahead, within, len(hosts))


_NONE = RankDigest(source="")


def _agreement(mine: Sequence[int], theirs: Sequence[int]) -> tuple[float, float] | None:
    """How much the differences of two rows of times differ, and their median."""
    count = min(len(mine), len(theirs))
    if count < _FEWEST:
        return None
    gaps = [theirs[at] - mine[at] for at in range(0, count, -(-count // _COMPARED))]
    middle = median(gaps)
    return median(abs(gap - middle) for gap in gaps), middle


def _offset(base: Sequence[int], other: Sequence[int], shifts: int) -> tuple[int, int] | None:
    """How far another clock is ahead, and how exactly; None where nothing says.

    One of the two may have begun to record up to `shifts` steps later. Of the shifts at which the
    beginnings of the steps agree best, the one with the least difference of the clocks counts:
    steps of equal length agree at any shift.
    """
    if len(base) < _FEWEST:
        return None
    step = median(b - a for a, b in pairwise(base))
    tried = []
    most = min(shifts, max(max(len(base), len(other)) - _FEWEST, 0))
    # From none on, outwards: within half a step no other can have a lesser difference.
    for shift in sorted(range(-most, most + 1), key=abs):
        found = _agreement(base[max(shift, 0) :], other[max(-shift, 0) :])
        if found is None:
            continue
        tried.append(found)
        if shift == 0 and found[0] <= _EXACT * step and abs(found[1]) < step / 2:
            break
    if not tried:
        return None
    least = min(spread for spread, _ in tried)
    good = [(abs(middle), spread, middle) for spread, middle in tried if spread <= 2 * least + 1000]
    _, spread, middle = min(good)
    if spread > _MOST_SPREAD * step:
        return None
    return round(middle), max(round(spread), 1)
