# SPDX-License-Identifier: Apache-2.0
"""Snapshots that no allocator wrote, put to every command in this process.

A bundled recording is decoded, changed here and there (actions swapped, keys dropped, sizes,
addresses, streams and times replaced) and encoded again. Whatever a file says, a command ends
within ten seconds of the processor, with a page or with one sentence; no page has a traceback, a
negative number of bytes or a share outside 0 to 100 %.

    python tests/fuzz/structure.py --cases 20000
    python tests/fuzz/structure.py --first 1234 --cases 1 --keep /tmp/case.pickle
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import importlib.util
import io
import json
import lzma
import pickle
import random
import re
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from neutracer.cli.main import main as neutracer_main

DATA = Path(__file__).parents[1] / "data"
BASES = ("foreign_memory", "cuda_graph_pool", "weight_streaming", "multi_stream", "metadata")

#: So long a command may take, in seconds of the processor, and of the clock beside other work.
MOST_SECONDS = 10.0
MOST_WAITED_SECONDS = 60.0

_NUMBERS: tuple[Any, ...] = (
    *(-1, 0, 1, 511, 512, 1 << 20, 1 << 31, 1 << 40, 1 << 48, (1 << 48) + 1, 1 << 53),
    *((1 << 63) - 1, 1 << 63, (1 << 64) - 1, 1 << 64, -(1 << 40), -(1 << 63)),
    *(True, None, 1.5, "1", []),
)
# A picture takes as long as many pages.
_PICTURE_EVERY = 100

_ACTIONS = (
    *("alloc", "free_requested", "free_completed", "segment_alloc", "segment_free"),
    *("segment_map", "segment_unmap", "snapshot", "oom", "unheard_of"),
)
_STATES = ("inactive", "active_allocated", "active_pending_free", "active_awaiting_free")

_NEGATIVE = re.compile(r"(?<![\w.])-\d[\d,.]*\s?(?:[KMGT]i)?B\b|(?<![\w.])-\d[\d,.]* bytes")
_SHARE = re.compile(r"(-?\d[\d,]*(?:\.\d+)?)\s?%")
_SHARES = frozenset(
    ("ratio", "share", "max_fragmentation", "avg_fragmentation", "current_fragmentation")
)


def decoded(name: str) -> dict[str, Any]:
    """A bundled recording as dicts and lists."""
    plain: dict[str, Any] = pickle.loads(lzma.decompress((DATA / f"{name}.pickle.xz").read_bytes()))
    return plain


def _rows(plain: Any) -> dict[str, list[tuple[list[Any], int]]]:
    """Every segment, block and event, by what it is: the list that it is in, and where."""
    found: dict[str, list[tuple[list[Any], int]]] = {"segment": [], "block": [], "event": []}
    for number, segment in enumerate(plain.get("segments", ())):
        found["segment"].append((plain["segments"], number))
        blocks = segment.get("blocks")
        if isinstance(blocks, list):
            found["block"] += [(blocks, place) for place in range(len(blocks))]
    for trace in plain.get("device_traces", ()):
        found["event"] += [(trace, place) for place in range(len(trace))]
    return found


def _set_number(row: dict[str, Any], rng: random.Random) -> None:
    names = [name for name, value in row.items() if isinstance(value, int)]
    if not names:
        return
    name = rng.choice(names)
    value = row[name]
    ways: list[Callable[[], Any]] = [
        lambda: rng.choice(_NUMBERS),
        lambda: value * 2,
        lambda: value // 2,
        lambda: value + rng.choice((512, -512, 1, -1, 1 << 20, -(1 << 20))),
    ]
    row[name] = rng.choice(ways)()


def _change_row(rows: list[tuple[list[Any], int]], rng: random.Random) -> None:
    place, number = rng.choice(rows)
    row = place[number] = dict(place[number])
    way = rng.randrange(8)
    if way == 0 and row:
        del row[rng.choice(list(row))]
    elif way == 1:
        other = rng.choice(rows)
        for name in ("addr", "address", "stream", "time_us", "device"):
            if name in row and name in other[0][other[1]] and rng.random() < 0.5:
                row[name] = other[0][other[1]][name]
    elif way == 2 and "action" in row:
        row["action"] = rng.choice(_ACTIONS)
    elif way == 3 and "state" in row:
        row["state"] = rng.choice(_STATES)
    elif way == 4 and "is_expandable" in row:
        row["is_expandable"] = not row["is_expandable"]
    else:
        _set_number(row, rng)


def _change_list(rows: list[tuple[list[Any], int]], rng: random.Random) -> None:
    place, number = rng.choice(rows)
    way = rng.randrange(4)
    if way == 0:
        place.insert(rng.randrange(len(place) + 1), copy.deepcopy(place[number]))
    elif way == 1:
        del place[number]
    elif way == 2:
        other = rng.randrange(len(place))
        place[number], place[other] = place[other], place[number]
    else:
        end = min(number + rng.randrange(2, 30), len(place))
        part = place[number:end]
        rng.shuffle(part)
        place[number:end] = part


def _change_top(plain: dict[str, Any], rng: random.Random) -> Any:
    way = rng.randrange(6)
    traces = plain.get("device_traces") or [[]]
    if way == 0:
        plain.pop(rng.choice(list(plain)), None)
    elif way == 1:
        return [plain]
    elif way == 2:
        for event in rng.choice(traces):
            if isinstance(event.get("time_us"), int):
                event["time_us"] = rng.choice((-1, 1)) * event["time_us"] + rng.randrange(5)
    elif way == 3:
        plain["device_traces"] = [*traces, copy.deepcopy(rng.choice(traces))]
    elif way == 4:
        plain["segments"] = []
    else:
        settings = plain.setdefault("allocator_settings", {})
        if isinstance(settings, dict):
            settings[rng.choice(("max_split_size", "expandable_segments", "exact_sizes"))] = (
                rng.choice(_NUMBERS)
            )
    return plain


def mutated(plain: dict[str, Any], rng: random.Random) -> Any:
    """A copy of a recording that says what can't be, in one to four places."""
    changed: Any = copy.deepcopy(plain)
    for _ in range(rng.randint(1, 4)):
        if not isinstance(changed, dict):
            break
        rows = _rows(changed)
        kinds = [kind for kind, found in rows.items() if found]
        if not kinds or rng.random() < 0.08:
            changed = _change_top(changed, rng)
        elif rng.random() < 0.7:
            _change_row(rows[rng.choice(kinds)], rng)
        else:
            _change_list(rows[rng.choice(kinds)], rng)
    return changed


def _commands(file: str, folder: str) -> list[tuple[int, list[str]]]:
    """The commands with how often each is chosen."""
    return [
        (5, ["report", file]),
        (3, ["report", "--json", file]),
        (3, ["explain", file]),
        (1, ["explain", "--json", file]),
        (2, ["explain", "--request", "1GiB", "--capacity", "80GiB", file]),
        (2, ["diff", file, file]),
        (4, ["view", file, "-o", f"{folder}/page.html"]),
        (2, ["what-if", "--check", file]),
        (1, ["what-if", file, "--set", "expandable_segments:True"]),
    ]


def _complaints_of_text(text: str) -> Iterator[str]:
    found = _NEGATIVE.search(text)
    if found is not None:
        yield f"negative bytes: {text[max(found.start() - 60, 0) : found.end() + 20]!r}"
    for share in _SHARE.finditer(text):
        if not 0 <= float(share[1].replace(",", "")) <= 100:
            yield f"a share: {text[max(share.start() - 60, 0) : share.end() + 20]!r}"


def _complaints_of_json(value: Any, name: str = "") -> Iterator[str]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _complaints_of_json(item, key)
    elif isinstance(value, list):
        for item in value:
            yield from _complaints_of_json(item, name)
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        if name.endswith("_bytes") and value < 0:
            yield f"{name} is {value}"
        if name in _SHARES and not 0 <= value <= 1:
            yield f"{name} is {value}"


def complaints(command: list[str], folder: str) -> list[str]:
    """What is wrong with what a command did."""
    out, err = io.StringIO(), io.StringIO()
    began, spent = time.monotonic(), time.process_time()
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = neutracer_main(command)
    except BaseException:
        return [traceback.format_exc()]
    found = []
    waited, spent = time.monotonic() - began, time.process_time() - spent
    if spent > MOST_SECONDS or waited > MOST_WAITED_SECONDS:
        found.append(f"took {spent:.1f} s of the processor, {waited:.1f} of the clock")
    said = err.getvalue()
    if code not in (0, 2) or "Traceback" in said or (code == 2 and said.count("\n") != 1):
        found.append(f"exit {code}: {said[:300]}")
    page = out.getvalue()
    if code == 0 and command[0] == "view":
        page = Path(folder, "page.html").read_text("utf-8").partition("<script")[0]
        page = page.partition("</style>")[2]
    if code == 0 and "--json" in command:
        found += _complaints_of_json(json.loads(page))
    elif command[0] != "diff":
        found += _complaints_of_text(page)
    return found


def run_case(number: int, bases: list[dict[str, Any]], folder: str) -> list[str]:
    """One case: a changed recording and a command, both chosen by its number."""
    rng = random.Random(number)
    changed = mutated(rng.choice(bases), rng)
    file = f"{folder}/case.pickle"
    Path(file).write_bytes(pickle.dumps(changed, protocol=4))
    weights, commands = zip(*_commands(file, folder), strict=True)
    command = rng.choices(commands, weights)[0]
    if number % _PICTURE_EVERY == 0 and importlib.util.find_spec("matplotlib"):
        command = ["plot", file, "-o", f"{folder}/picture.png"]
    return [f"case {number}, {' '.join(command)}: {one}" for one in complaints(command, folder)]


def fuzz(first: int, cases: int, report: Callable[[str], object]) -> int:
    """Run cases by number; the complaints go to `report`. Returns how many there were."""
    bases, bad = [decoded(name) for name in BASES], 0
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for number in range(first, first + cases):
            for complaint in run_case(number, bases, folder):
                bad += 1
                report(complaint)
    return bad


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--first", type=int, default=0, help="the number of the first case")
    parser.add_argument("--cases", type=int, default=20_000)
    parser.add_argument("--keep", help="write the first case's file there, and end")
    options = parser.parse_args()
    if options.keep:
        rng = random.Random(options.first)
        changed = mutated(rng.choice([decoded(name) for name in BASES]), rng)
        Path(options.keep).write_bytes(pickle.dumps(changed, protocol=4))
        return 0
    bad = fuzz(options.first, options.cases, lambda text: print(text, flush=True))
    print(f"{options.cases:,} cases from {options.first:,} on: {bad:,} complaints")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
