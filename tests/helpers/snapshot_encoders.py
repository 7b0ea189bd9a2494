# SPDX-License-Identifier: Apache-2.0
"""Ways to write one value as a pickle: Python's, PyTorch's C++ pickler's, and worse ones.

Every encoder takes a value made of dicts, lists, tuples, strings, numbers, booleans and
None, and gives bytes that `pickle.loads` turns back into an equal value.
"""

from __future__ import annotations

import io
import pickle
import random
import struct
from collections.abc import Callable
from typing import Any

Encoder = Callable[[Any], bytes]


def python_encoder(protocol: int) -> Encoder:
    """Python's own pickler."""
    return lambda value: pickle.dumps(value, protocol)


def memoless_encoder(protocol: int) -> Encoder:
    """Python's own pickler without a memo: what is shared is written again."""

    def encode(value: Any) -> bytes:
        file = io.BytesIO()
        pickler = pickle.Pickler(file, protocol)
        pickler.fast = True
        pickler.dump(value)
        return file.getvalue()

    return encode


class _CppPickler:
    """Writes as PyTorch's C++ pickler does: protocol 2, strings memoized by their text,
    containers after their contents, one APPENDS or SETITEMS a container however long,
    integers of more than 32 bits always in 8 bytes."""

    def __init__(self) -> None:
        self.out = bytearray(b"\x80\x02")
        self.strings: dict[str, int] = {}
        self.containers: dict[int, int] = {}
        self.memoized = 0

    def put(self) -> int:
        index = self.memoized
        self.memoized += 1
        self.out += b"q" + bytes([index]) if index < 256 else b"r" + struct.pack("<I", index)
        return index

    def get(self, index: int) -> None:
        self.out += b"h" + bytes([index]) if index < 256 else b"j" + struct.pack("<I", index)

    def integer(self, value: int) -> None:
        if 0 <= value < 1 << 8:
            self.out += b"K" + bytes([value])
        elif 0 <= value < 1 << 16:
            self.out += b"M" + struct.pack("<H", value)
        elif -(1 << 31) <= value < 1 << 31:
            self.out += b"J" + struct.pack("<i", value)
        else:
            # Addresses are cast to int64_t there: the upper half comes out negative.
            self.out += b"\x8a\x08" + struct.pack("<Q", value & (1 << 64) - 1)

    def string(self, value: str) -> None:
        if value in self.strings:
            self.get(self.strings[value])
            return
        text = value.encode("utf-8", "surrogatepass")
        self.out += b"X" + struct.pack("<I", len(text)) + text
        self.strings[value] = self.put()

    def container(self, value: Any) -> None:
        if id(value) in self.containers:
            self.get(self.containers[id(value)])
            return
        if isinstance(value, tuple):
            self.tuple(value)
            return
        if isinstance(value, dict):
            self.out += b"}("
            for key, item in value.items():
                self.value(key)
                self.value(item)
            self.out += b"u"
        else:
            self.out += b"]("
            for item in value:
                self.value(item)
            self.out += b"e"
        self.containers[id(value)] = self.put()

    def tuple(self, value: tuple[Any, ...]) -> None:
        if len(value) == 2:
            self.value(value[0])
            self.value(value[1])
            self.out += b"\x86"
            return
        self.out += b"("
        for item in value:
            self.value(item)
        self.out += b"t"

    def value(self, value: Any) -> None:
        if value is None:
            self.out += b"N"
        elif isinstance(value, bool):
            self.out += b"\x88" if value else b"\x89"
        elif isinstance(value, int):
            self.integer(value)
        elif isinstance(value, float):
            self.out += b"G" + struct.pack(">d", value)
        elif isinstance(value, str):
            self.string(value)
        else:
            self.container(value)


def cpp_encoder(value: Any) -> bytes:
    """As PyTorch's C++ pickler writes it; integers from 2^63 on come out negative."""
    pickler = _CppPickler()
    pickler.value(value)
    return bytes(pickler.out) + b"."


class _Scrambler:
    """Takes any opcode that means the same, by chance."""

    def __init__(self, chance: random.Random, *, framed: bool, closing: bool) -> None:
        self.chance = chance
        self.framed = framed
        self.closing = closing
        self.pieces: list[bytes] = []  # one opcode each
        self.memo: dict[int, int] = {}
        self.free_indexes = list(range(chance.choice([8, 300])))
        self.kept: list[Any] = []

    def put(self, value: Any) -> None:
        """Memoizes the top of the stack, or not."""
        if self.chance.random() < 0.3 or not self.free_indexes:
            return
        # By MEMOIZE only where nothing else chooses indexes: it counts them.
        at = 0 if self.framed else self.chance.randrange(min(3, len(self.free_indexes)))
        index = self.free_indexes.pop(at)
        ways = [b"p%d\n" % index, b"r" + struct.pack("<I", index)]
        if index < 256:
            ways.append(b"q" + bytes([index]))
        if self.framed:
            ways = [b"\x94"]
        self.pieces.append(self.chance.choice(ways))
        self.memo[id(value)] = index
        self.kept.append(value)

    def got(self, value: Any) -> bool:
        index = self.memo.get(id(value))
        if index is None or self.chance.random() < 0.1:
            return False
        ways = [b"g%d\n" % index, b"j" + struct.pack("<I", index)]
        if index < 256:
            ways.append(b"h" + bytes([index]))
        self.pieces.append(self.chance.choice(ways))
        return True

    def integer(self, value: int) -> None:
        width = max(1, (value.bit_length() + 8) // 8)
        little = value.to_bytes(width, "little", signed=True)
        longer = value.to_bytes(width + 3, "little", signed=True)
        ways = [
            b"I%d\n" % value,
            b"L%dL\n" % value,
            b"\x8a" + bytes([width]) + little,
            b"\x8a" + bytes([width + 3]) + longer,
            b"\x8b" + struct.pack("<i", width) + little,
        ]
        if 0 <= value < 1 << 8:
            ways.append(b"K" + bytes([value]))
        if 0 <= value < 1 << 16:
            ways.append(b"M" + struct.pack("<H", value))
        if -(1 << 31) <= value < 1 << 31:
            ways.append(b"J" + struct.pack("<i", value))
        if value == 0:
            ways.append(b"\x8a\x00")
        self.pieces.append(self.chance.choice(ways))

    def string(self, value: str) -> None:
        if self.got(value):
            return
        text = value.encode("utf-8", "surrogatepass")
        line = pickle.dumps(value, 0)
        ways = [
            b"X" + struct.pack("<I", len(text)) + text,
            b"\x8d" + struct.pack("<Q", len(text)) + text,
            line[: line.index(b"\n") + 1],
        ]
        if len(text) < 256:
            ways.append(b"\x8c" + bytes([len(text)]) + text)
        self.pieces.append(self.chance.choice(ways))
        self.put(value)

    def noise(self) -> None:
        """Opcodes that leave the stack as it was."""
        if self.chance.random() < 0.03:
            self.pieces += self.chance.choice(
                [
                    [b"N", b"0"],
                    [b"K\x01", b"2", b"0", b"0"],
                    [b"(", b"]", b"1"],
                    [b"(", b"0"],
                    [b"(", b"K\x07", b"N", b"l", b"0"],
                    [b"C\x02ab", b"0"],
                ]
            )

    def list(self, value: list[Any]) -> None:
        if value and self.closing and self.chance.random() < 0.1:
            self.pieces.append(b"(")
            self.values(value)
            self.pieces.append(b"l")
            self.put(value)
            return
        self.pieces.append(b"]")
        self.put(value)
        rest = value
        while rest:
            count = self.chance.randint(1, len(rest))
            if count == 1 and self.chance.random() < 0.7:
                self.value(rest[0])
                self.pieces.append(b"a")
            else:
                self.pieces.append(b"(")
                self.values(rest[:count])
                self.pieces.append(b"e")
            rest = rest[count:]

    def dict(self, value: dict[Any, Any]) -> None:
        pairs = list(value.items())
        if pairs and self.closing and self.chance.random() < 0.1:
            self.pieces.append(b"(")
            self.values([part for pair in pairs for part in pair])
            self.pieces.append(b"d")
            self.put(value)
            return
        self.pieces.append(b"}")
        self.put(value)
        while pairs:
            count = self.chance.randint(1, len(pairs))
            if count == 1 and self.chance.random() < 0.7:
                self.values(pairs[0])
                self.pieces.append(b"s")
            else:
                self.pieces.append(b"(")
                self.values([part for pair in pairs[:count] for part in pair])
                self.pieces.append(b"u")
            pairs = pairs[count:]

    def tuple(self, value: tuple[Any, ...]) -> None:
        if self.chance.random() < 0.5 and len(value) <= 3:
            self.values(value)
            self.pieces.append([b")", b"\x85", b"\x86", b"\x87"][len(value)])
        else:
            self.pieces.append(b"(")
            self.values(value)
            self.pieces.append(b"t")
        self.put(value)

    def values(self, values: Any) -> None:
        for value in values:
            self.value(value)

    def value(self, value: Any) -> None:
        self.noise()
        if value is None:
            self.pieces.append(b"N")
        elif isinstance(value, bool):
            binary, text = (b"\x88", b"I01\n") if value else (b"\x89", b"I00\n")
            self.pieces.append(self.chance.choice([binary, text]))
        elif isinstance(value, int):
            self.integer(value)
        elif isinstance(value, float):
            text = b"F" + repr(value).encode() + b"\n"
            self.pieces.append(self.chance.choice([b"G" + struct.pack(">d", value), text]))
        elif isinstance(value, str):
            self.string(value)
        elif not self.got(value):
            {list: self.list, dict: self.dict, tuple: self.tuple}[type(value)](value)


def scrambled_encoder(seed: int, *, closing: bool = True) -> Encoder:
    """Any opcodes that mean the same, chosen by `seed`; half of the seeds with frames.

    Args:
        seed: Stands for the choices.
        closing: Whether LIST and DICT may stand behind what they hold. No pickler does
            that, and in a file that breaks off nobody can tell what it was to be.
    """

    def encode(value: Any) -> bytes:
        chance = random.Random(seed)
        framed = seed % 2 == 0
        scrambler = _Scrambler(chance, framed=framed, closing=closing)
        scrambler.value(value)
        pieces = [*scrambler.pieces, b"."]
        if not framed:
            # The opcode at the front tells it from text, which it may be otherwise.
            return b"\x80\x02" + b"".join(pieces)
        out = b"\x80\x05"
        while pieces:
            count = chance.randint(1, 40)
            frame = b"".join(pieces[:count])
            # Between frames opcodes may stand alone, as Python's long strings do.
            if chance.random() < 0.8:
                frame = b"\x95" + struct.pack("<Q", len(frame)) + frame
            out += frame
            pieces = pieces[count:]
        return out

    return encode


#: Every protocol, by every writer.
ENCODERS: dict[str, Encoder] = {
    **{f"protocol {number}": python_encoder(number) for number in range(6)},
    **{f"protocol {number} without memo": memoless_encoder(number) for number in (1, 2, 4)},
    "C++": cpp_encoder,
}
