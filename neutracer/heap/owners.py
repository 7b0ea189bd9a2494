# SPDX-License-Identifier: Apache-2.0
"""Who holds blocks of memory, if they belong to this process: as names of the program."""

from __future__ import annotations

import re
import sys
from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from neutracer._native import core
from neutracer.errors import UnavailableError
from neutracer.heap.alive import Found, Way, find_ways, read_autograd
from neutracer.heap.cycles import prepare_heap
from neutracer.heap.objects import Edge, Node
from neutracer.render.document import Place
from neutracer.trace.beside import library_folders
from neutracer.trace.snapshot import Snapshot
from neutracer.trace.stacks import base_name
from neutracer.trace.timeline import Timeline
from neutracer.units import format_share

#: The address and the size of a block of memory.
Block = tuple[int, int]

# ---- Names -------------------------------------------------------------------------------

# A way of `why_alive` says each reference. Here it is the expression that a programmer would
# write for it, `model.layers[3]._forward_hooks[102]`, and arrows where there is none.

# Names that are shown from the beginning of a longer path and from its end.
_ENDS = (9, 5)

# Where torch.nn.Module keeps what it shows as attributes.
_OF_MODULES = ("_modules", "_parameters", "_buffers")

# Names behind which an attribute gets an arrow of its own.
_UNJOINED = ("closure ", "frame ", "autograd graph", "self")

_ROOT = "frame of "
_LRU_CACHE = "_lru_cache_wrapper"


@dataclass(frozen=True)
class _Name:
    """A part of a path; `index` is the position or key of a container, "" for other parts."""

    text: str
    index: str = ""
    is_position: bool = False

    @property
    def is_step(self) -> bool:
        """Whether it is no part of an expression, but said behind an arrow."""
        return not self.index and self.text[:1] not in ".["


def _names_of(way: Way) -> Iterator[_Name]:
    yield from _root_names(way)
    edges, at = way.edges, 0
    while at < len(edges):
        taken, names = _step(way, edges, at)
        yield from names
        at += taken


def _root_names(way: Way) -> Iterator[_Name]:
    root = way.nodes[0]
    if root.kind == "module":
        name = root.label.removeprefix("module ")
        if name != "__main__" or not way.edges:
            yield _Name(name)
    elif root.label.startswith(_ROOT):
        where = Place(root.label.removeprefix(_ROOT), "", 0)
        if root.place is not None:
            where = replace(where, filename=base_name(root.place.filename), line=root.place.line)
        yield _Name(f"frame {where}")
    elif root.label != "main thread":
        yield _Name(root.label)


def _step(way: Way, edges: Sequence[Edge], at: int) -> tuple[int, tuple[_Name, ...]]:
    """How many of the references from one on are one step, and its names."""
    edge = edges[at]
    source, target = way.nodes[edge.source], way.nodes[edge.target]
    following = edges[at + 1] if at + 1 < len(edges) else None
    if source.type.endswith(_LRU_CACHE):
        return 1 + (following is not None and following.kind == "value"), (_Name("(lru_cache)"),)
    if edge.kind == "attribute" and edge.name in _OF_MODULES and following is not None:
        name = following.name.strip("'")
        return 2, (_Name(f"[{name}]" if name.isdecimal() else f".{name}"),)
    if _is_of_graph(edge):
        inside = 1
        while at + inside < len(edges) and _is_of_graph(edges[at + inside]):
            inside += 1
        return inside, (_Name("autograd graph"),)
    return 1, tuple(_edge_names(edge, source, target))


# References of a tensor itself, which are no part of a graph.
_OF_TENSORS = ("._base", ".grad", "._backward_hooks", "._post_accumulate_grad_hooks")


def _is_of_graph(edge: Edge) -> bool:
    return edge.name == "grad_fn" or (edge.kind == "autograd" and edge.name not in _OF_TENSORS)


def _edge_names(edge: Edge, source: Node, target: Node) -> Iterator[_Name]:
    kind, name = edge.kind, edge.name
    if source.kind == "root" and kind == "field":
        yield _Name(name)
    elif kind in ("attribute", "instance_dict", "field", "class"):
        yield _Name(name if name.startswith(".") else f".{name}")
    elif kind == "global":
        yield _Name(f".{name}" if source.label != "module __main__" else name)
    elif kind == "value":
        yield _Name("", _key(name))
    elif kind == "item":
        yield _Name("", name, is_position=True)
    elif kind == "exception":
        if name != "tb_next" and source.kind == "exception":
            yield _Name("exception")
        if name != "tb_next":
            yield _Name("traceback" if name == "__traceback__" else name)
    elif kind == "frame":
        yield _Name(target.label.replace(_ROOT, "frame ", 1))
    elif kind in ("local", "autograd"):
        yield _Name(name)
    elif kind in ("function", "type"):
        return
    elif kind == "member":
        yield _Name("", "…", is_position=True)
    elif kind == "self":
        yield _Name("self")
    elif kind == "other" or not edge.text:
        yield _Name(target.label)
    else:
        yield _Name(edge.text)


def _key(name: str) -> str:
    """A dict's key as it is written: "z" in double quotes, an object by its type."""
    if len(name) >= 2 and name[0] == name[-1] == "'" and '"' not in name:
        return f'"{name[1:-1]}"'
    return name


def _shape(names: Sequence[_Name]) -> tuple[_Name, ...]:
    """The names without what differs between the items of one container."""
    return tuple(replace(one, index="…") if one.index else one for one in names)


def _until_item(names: Sequence[_Name]) -> tuple[_Name, ...]:
    """The names up to the last item of a container, of which the rest are parts; else all."""
    items = [at for at, one in enumerate(names) if one.index]
    return tuple(names[: items[-1] + 1] if items else names)


def _path_text(alike: Sequence[Sequence[_Name]]) -> str:
    """Paths to items of the same containers, as one."""
    names = [_common([each[at] for each in alike]) for at in range(len(alike[0]))]
    kept = []
    for at, name in enumerate(names):
        # Positions, and keys that differ, say nothing where nothing is said of the item.
        rest = [one for one in names[at:] if not one.index or _tells(one)]
        if name.index and not _tells(name) and (not rest or rest[0].is_step):
            continue
        kept.append(name)
    return _with_arrows([one for one, _ in groupby(kept)])


def _tells(name: _Name) -> bool:
    return bool(name.index) and name.index != "…" and not name.is_position


def _common(same: Sequence[_Name]) -> _Name:
    first = same[0]
    return first if all(one == first for one in same) else replace(first, index="…")


def _with_arrows(names: Sequence[_Name]) -> str:
    parts: list[str] = []
    for name in names:
        text = f"[{name.index}]" if name.index else name.text
        if parts and not name.is_step and not parts[-1].startswith(_UNJOINED):
            parts[-1] += text
        elif parts and parts[-1] == f"{text} being handled":
            continue
        elif parts and text == "(lru_cache)":
            parts[-1] += f" {text}"
        else:
            parts.append(text)
    head, tail = _ENDS
    if len(parts) > head + tail:
        parts[head:-tail] = [f"… {len(parts) - head - tail} more …"]
    return " → ".join(parts)


# ---- Holders of blocks -------------------------------------------------------------------

# Of each line so many blocks are looked at, spread over all, and so many tensors of each: views
# and saved values share a block.
_MOST_BLOCKS = 16
_MOST_TENSORS = 2

# Ways to each tensor of which the one that says most is shown.
_MOST_WAYS = 2

# Parts of the names of libraries' files, besides `library_folders`: for what a library's function
# works on the program has a name.
_FOREIGN = ("/site-packages/", "/dist-packages/", "/lib/python3.")

# A second holder is said where it has so much of a line's blocks.
_SECOND_SHARE = 0.25

# Of a line's blocks so many have the same beginning of their paths, where that is said in place of
# paths that differ.
_LINKED_SHARE = 0.75
# And one of so many at least goes through an attribute of one name twice.
_NO_ACCIDENT = 8

#: What a chain ends with that leads to different blocks by different ways.
LINKED = "→ …"

# Lines of code whose holders are asked for at the end of a trace.
_MOST_LINES = 12

# Objects that a running function makes to pass values on.
_PLAIN = ("tuple", "list", "dict", "frame")

_BITS = re.compile(r"\d+")

# Tensors that have no more than this share of their storages are slices.
_SLICED = 0.5

#: Said of a holder's tensors that are slices.
SLICES = "slices"

#: Said of blocks in which no object of Python has its memory.
NO_OBJECT = "no Python object"
#: What a chain begins with whose first object nothing of Python refers to.
UNSEEN = "a value in use or C code"
#: Said of blocks whose objects no root leads to, and nothing in use.
GARBAGE = "garbage: only Python's collector frees it"
_IN_CXX = "no name leads to it: C++ of PyTorch keeps its tensor"
#: Said of leaves that nothing but C++ keeps, where autocast keeps its casts of leaves.
AUTOCAST = "autocast's cache"
#: Said of blocks whose objects nothing but C code refers to.
IN_USE = "no name leads to it: a value in use, or C code"
_TOO_LARGE = "no Python object seen: an autograd graph is too large to follow"


def holders_of(lines: Mapping[str, Sequence[Block]]) -> dict[str, str]:
    """Who in this process holds the blocks of each of some lines, as names of the program.

    One walk of the heap answers for all lines: 0.3 microseconds per object. Nothing is allocated
    on a device, nothing is collected, and no code of the program runs.

    Args:
        lines: By line any number of blocks in use; some of each are looked at.

    Returns:
        By line its holder, "a; b" where it has two; `NO_OBJECT` where no Python object is. Empty
        without torch, or where a memory layout is unknown.
    """
    if "torch" not in sys.modules or not lines:
        return {}
    try:
        prepare_heap()
        links = read_autograd()
        wanted = {
            line: [blocks[at * len(blocks) // count] for at in range(count)]
            for line, blocks in lines.items()
            for count in (min(len(blocks), _MOST_BLOCKS),)
        }
        inside = _in_blocks(links.objects, wanted)
        targets, owners = _first_of(inside)
        parts = _parts_of(inside)
        # Whatever else refers to a tensor is looked for.
        inside.clear()
        foreign = (*_FOREIGN, *(f"{folder}/" for folder in library_folders()))
        found = find_ways(targets, _MOST_WAYS, links, foreign)
    except UnavailableError:
        return {}
    pairs = zip(targets, found, strict=True)
    bases = {id(tensor) for tensor, one in pairs if one is not None and _is_base(one)}
    slices = {line: _slices(parts, blocks, bases) for line, blocks in wanted.items()}
    del pairs
    targets.clear()
    too_large = links.unfollowed > 0
    del links
    by_block: dict[Block, list[Found | None]] = {}
    for block, one in zip(owners, found, strict=True):
        by_block.setdefault(block, []).append(one)
    return {
        line: _said([by_block.get(block, []) for block in blocks], too_large, slices[line])
        for line, blocks in wanted.items()
        if blocks
    }


def tensors_in(
    objects: list[Any], wanted: Mapping[str, Sequence[Block]]
) -> tuple[list[Any], list[Block]]:
    """Some tensors whose memory is in the blocks, and the block of each."""
    return _first_of(_in_blocks(objects, wanted))


def _in_blocks(
    objects: list[Any], wanted: Mapping[str, Sequence[Block]]
) -> list[tuple[Any, Block]]:
    """All tensors whose memory is in the blocks, each with its block."""
    blocks = sorted({block for each in wanted.values() for block in each})
    begins = [address for address, _ in blocks]
    found = []
    for at, address in enumerate(core.data_pointers(objects)):
        block = bisect_right(begins, address) - 1
        if block >= 0 and address < sum(blocks[block]):
            found.append((objects[at], blocks[block]))
    return found


def _first_of(inside: Sequence[tuple[Any, Block]]) -> tuple[list[Any], list[Block]]:
    counts: Counter[Block] = Counter()
    targets: list[Any] = []
    owners: list[Block] = []
    for tensor, block in inside:
        counts[block] += 1
        if counts[block] <= _MOST_TENSORS:
            targets.append(tensor)
            owners.append(block)
    return targets, owners


def _is_base(found: Found) -> bool:
    """Whether only its own views lead to a tensor."""
    ends = [way.edges[-1].name if way.edges else "" for way in found.ways]
    return bool(ends) and all(name == "._base" for name in ends)


@dataclass(frozen=True, slots=True)
class _Part:
    """A tensor's part of its storage; sizes in bytes."""

    tensor: int
    block: Block
    used: int
    storage: int
    whole: int


def _parts_of(inside: Sequence[tuple[Any, Block]]) -> list[_Part]:
    """The parts of tensors, by the tensors' ids."""
    found = []
    for tensor, block in inside:
        facts = core.tensor_facts(tensor)
        if facts is not None:
            # "float32", "float8_e4m3fn"; "bool" has no number, and a byte.
            bits = _BITS.search(facts["dtype"])
            size = int(bits[0]) // 8 if bits else 1
            used, whole = facts["numel"] * size, facts["storage_bytes"]
            # Memory of the program's own, of which the block is a part, is for it to cut up.
            used = used if whole <= block[1] else whole
            found.append(_Part(id(tensor), block, used, facts["storage"], whole))
    return found


def _slices(parts: Sequence[_Part], blocks: Collection[Block], bases: Collection[int]) -> str:
    """What is said where the tensors in some blocks have only a small part of them; `bases` are
    the ids of those that count for nothing."""
    wanted = set(blocks)
    of_line = [one for one in parts if one.block in wanted]
    held = sum({one.storage: one.whole for one in of_line}.values())
    used = sum(one.used for one in of_line if one.tensor not in bases)
    if not held or used > _SLICED * held:
        return ""
    return f" ({SLICES} of {format_share(used / held)} of what they keep)"


def _said(blocks: Sequence[Sequence[Found | None]], too_large: bool, slices: str) -> str:
    """Who holds these blocks: the holder of most, and the second where it has a good part. A
    graph may use all of what a slice is of."""
    nothing = _TOO_LARGE if too_large else NO_OBJECT
    alike: dict[object, list[tuple[_Name, ...]]] = {}
    counts: Counter[object] = Counter()
    for tensors in blocks:
        names, text = _of_block(tensors, nothing)
        kind: object = _shape(_until_item(names)) if names else text
        alike.setdefault(kind, []).append(names)
        counts[kind] += 1
    shown = [
        one
        for rank, (one, count) in enumerate(counts.most_common(2))
        if not rank or count >= _SECOND_SHARE * len(blocks)
    ]
    linked = _linked([names for each in alike.values() for names in each], len(blocks))
    if linked and max(counts.values()) < _LINKED_SHARE * len(blocks):
        return f"{linked} {LINKED}"
    texts = []
    for one in shown:
        if isinstance(one, str):
            texts.append(one)
            continue
        # With the part of the item where it is the same.
        same_part = len({_shape(names) for names in alike[one]}) == 1
        texts.append(_path_text(alike[one] if same_part else list(map(_until_item, alike[one]))))
    if texts and not isinstance(shown[0], str) and "autograd graph" not in texts[0]:
        texts[0] += slices
    return "; ".join(texts)


def _linked(paths: Sequence[tuple[_Name, ...]], count: int) -> str:
    """What most of `count` blocks hang on whose objects refer to each other, as those of a tree do:
    the longest beginning that so many of their paths have alike, up to where a name comes again;
    "" where none does."""
    if _NO_ACCIDENT * sum(map(_comes_again, paths)) < count:
        return ""
    begun: Counter[tuple[_Name, ...]] = Counter()
    for names in map(_shape, paths):
        begun.update(names[:end] for end in range(2, len(names)))
    most = [
        names
        for names, times in begun.items()
        if times >= _LINKED_SHARE * count and not names[-1].index and not _comes_again(names)
    ]
    return _with_arrows(max(most, key=len, default=()))


def _comes_again(names: Sequence[_Name]) -> bool:
    attributes = [one.text for one in names if one.text.startswith(".")]
    return len(set(attributes)) < len(attributes)


def _of_block(tensors: Sequence[Found | None], nothing: str) -> tuple[tuple[_Name, ...], str]:
    """The names that lead to a block's tensors, or why there are none."""
    ways = [way for one in tensors if one is not None and not one.loose for way in one.ways]
    if ways:
        best = min(ways, key=lambda way: (_is_passing(way), len(way.edges)))
        return tuple(_names_of(best)), ""
    known = [one for one in tensors if one is not None]
    if not known:
        return (), nothing
    loose = [way for one in known for way in one.ways if _is_telling(way)]
    if loose:
        best = min(loose, key=lambda way: len(way.edges))
        return (_Name(UNSEEN), *_names_of(best)), ""
    native = [one for one in known if one.native]
    if native:
        leaves = any(one.target.tensor and one.target.tensor.requires_grad for one in native)
        return (), AUTOCAST if leaves and _autocast_keeps() else _IN_CXX
    # What is in a cycle has a referrer; an operand of a running expression may have none.
    if any(one.unexplained or one.ways or not one.referrers for one in known):
        return (), IN_USE
    return (), GARBAGE


def _autocast_keeps() -> bool:
    """Whether this thread is in an autocast block, and that keeps what it has cast.

    An operator that autocast runs is told that autocast is off: the nesting tells. It is counted
    up and down at once, and only leaving a block clears the cache.
    """
    torch = sys.modules["torch"]
    nesting = torch.autocast_increment_nesting() - 1
    torch.autocast_decrement_nesting()
    return bool(nesting and torch.is_autocast_cache_enabled())


def _is_telling(way: Way) -> bool:
    """Whether a way from an object that only C code refers to begins at a callback, a generator or
    another object of the program's, and not at a value that a function works on."""
    root = way.nodes[0]
    return len(way.edges) > 1 and root.tensor is None and root.type not in _PLAIN


def holders_by_line(
    timeline: Timeline, rows: Iterable[int], lines: Collection[str]
) -> dict[str, str]:
    """Who in this process holds the blocks of some lines of a trace.

    Args:
        rows: Rows of its allocations, which are still in use.

    Returns:
        By line as `holders_of` says it, in the order of `lines`; where no Python object is, with
        what allocated it.
    """
    by_line: dict[str, list[int]] = {line: [] for line in lines}
    stacks, sizes, at = (timeline.allocations.codes(name) for name in ("stack", "size", "address"))
    texts: dict[int, str] = {}
    for row in rows:
        line = texts.get(stacks[row])
        if line is None:
            line = texts[stacks[row]] = str(timeline.places[stacks[row]])
        if line in by_line:
            by_line[line].append(row)
    found = holders_of(
        {line: [(at[row], sizes[row]) for row in rows] for line, rows in by_line.items()}
    )
    for line, holder in found.items():
        if NO_OBJECT in holder:
            library = f"{NO_OBJECT}: {_library(timeline, by_line[line])}"
            found[line] = holder.replace(NO_OBJECT, library)
    return found


def _library(timeline: Timeline, rows: Sequence[int]) -> str:
    """What keeps blocks of a line where no Python object does."""
    rules = [timeline.categories.rule(row)[0] for row in rows]
    if 2 * rules.count("workspace") > len(rows):
        return "workspaces of cuBLAS or cuDNN"
    place = timeline.places[timeline.allocations.codes("stack")[rows[0]]]
    if not place.line and place.filename:
        return place.function
    return f"C++ of {place.package or 'PyTorch'}"


def held_at_end(snap: Snapshot) -> dict[int, dict[str, str]]:
    """By device and line, who in this process holds what is in use at the end of its trace.

    The lines that hold most are asked for. The snapshot is of this process, as it is now.
    """
    found = {}
    for device in snap.devices:
        timeline = snap.timeline(device)
        freed = timeline.allocations.codes("free_event")
        held = timeline.held_by_place(len(timeline) - 1)
        lines = [str(place) for place, *_ in held[:_MOST_LINES]]
        by_line = holders_by_line(timeline, (at for at, one in enumerate(freed) if one < 0), lines)
        if by_line:
            found[device] = by_line
    return found


def _is_passing(way: Way) -> bool:
    """Whether it is just a running function's variable that is the tensor, or a view of it."""
    names = [edge.name for edge in way.edges if edge.name != "._base"]
    return way.nodes[0].label.startswith(_ROOT) and len(names) == 1
