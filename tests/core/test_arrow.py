# SPDX-License-Identifier: Apache-2.0
"""arrow_stream(): the Arrow C stream interface, held against pyarrow."""

from __future__ import annotations

import gc
import sys
import threading
from array import array

import pytest

from neutracer import _core

NULL = 0xFFFFFFFF


class Table:
    """What consumers take: an object with the stream interface."""

    def __init__(self, *columns, rows):
        self.columns, self.rows = columns, rows

    def __arrow_c_stream__(self, requested_schema=None):
        return _core.arrow_stream(self.columns, self.rows)


@pytest.fixture
def pa():
    return pytest.importorskip("pyarrow")


@pytest.mark.parametrize(
    ("code", "name"),
    [("B", "uint8"), ("i", "int32"), ("I", "uint32"), ("q", "int64"), ("Q", "uint64")],
)
def test_numbers_are_not_copied(pa, code, name):
    numbers = array(code, [1, 2, 250])
    column = pa.table(Table(("n", numbers, 0, None, None), rows=3)).column("n").chunk(0)
    assert str(column.type) == name
    assert column.to_pylist() == [1, 2, 250]
    assert column.buffers()[1].address == numbers.buffer_info()[0]


def test_first_row_shifts_the_column(pa):
    numbers = array("Q", range(10))
    table = pa.table(Table(("n", numbers, 4, None, None), rows=3))
    assert table.column("n").to_pylist() == [4, 5, 6]


def test_null_code_becomes_null(pa):
    numbers = array("I", [NULL, 1, NULL, *range(20)])
    column = pa.table(Table(("n", numbers, 0, None, NULL), rows=23)).column("n")
    assert column.null_count == 2
    assert column.to_pylist() == [None, 1, None, *range(20)]
    column.validate(full=True)


def test_strings_are_a_dictionary(pa):
    names = ["alloc", "", "\N{SNOWMAN}"]
    columns = [
        ("narrow", array("B", [0, 2, 1]), 0, names, None),
        ("wide", array("I", [2, NULL, 0]), 0, names, NULL),
    ]
    table = pa.table(Table(*columns, rows=3))
    assert table.column("narrow").to_pylist() == ["alloc", "\N{SNOWMAN}", ""]
    assert table.column("wide").to_pylist() == ["\N{SNOWMAN}", None, "alloc"]
    for column in table.columns:
        column.validate(full=True)
        # pandas takes no unsigned codes.
        assert str(column.type.index_type).startswith("int")


def test_codes_above_127_keep_their_strings(pa):
    names = [f"action {code}" for code in range(256)]
    codes = array("B", [127, 128, 255])
    column = pa.table(Table(("a", codes, 0, names, None), rows=3)).column("a")
    assert column.to_pylist() == ["action 127", "action 128", "action 255"]


def test_surrogates_are_spelt_out(pa):
    column = pa.table(Table(("a", array("B", [0]), 0, ["x\udc80"], None), rows=1)).column("a")
    assert column.to_pylist() == ["x\\udc80"]


def test_empty_tables_are_tables(pa):
    table = pa.table(Table(("n", array("Q"), 0, None, None), rows=0))
    assert (table.num_rows, table.column_names) == (0, ["n"])
    assert pa.table(Table(rows=0)).num_columns == 0


def test_column_outlives_its_table(pa):
    numbers = array("Q", [1, 2, 3])
    table = pa.table(Table(("n", numbers, 0, None, None), ("m", numbers, 1, None, None), rows=2))
    kept = table.column("m")
    del table
    gc.collect()
    with pytest.raises(BufferError):
        numbers.append(4)
    assert kept.to_pylist() == [2, 3]
    del kept
    gc.collect()
    numbers.append(4)


def test_release_from_another_thread(pa):
    numbers = array("Q", [1, 2, 3])
    tables = [pa.table(Table(("n", numbers, 0, None, None), rows=3))]
    thread = threading.Thread(target=tables.clear)
    thread.start()
    thread.join()
    numbers.append(4)


def test_stream_gives_its_batch_once(pa):
    reader = pa.RecordBatchReader.from_stream(Table(("n", array("Q", [5]), 0, None, None), rows=1))
    assert reader.schema.names == ["n"]
    assert [batch.num_rows for batch in reader] == [1]
    with pytest.raises(StopIteration):
        reader.read_next_batch()


def test_capsule_not_taken_lets_go():
    numbers = array("Q", [1])
    capsule = _core.arrow_stream([("n", numbers, 0, None, None)], 1)
    with pytest.raises(BufferError):
        numbers.append(2)
    del capsule
    numbers.append(2)


def test_references_come_back(pa):
    numbers, names = array("I", [0, 1]), ["a", "b"]
    before = sys.getrefcount(numbers), sys.getrefcount(names), sys.getrefcount(names[0])
    for _ in range(10):
        pa.table(Table(("n", numbers, 0, names, NULL), rows=2))
        _core.arrow_stream([("n", numbers, 0, names, NULL)], 2)
    gc.collect()
    assert (sys.getrefcount(numbers), sys.getrefcount(names), sys.getrefcount(names[0])) == before


@pytest.mark.parametrize(
    ("column", "rows", "error"),
    [
        (("n", array("Q", [1]), 0, None, None), 2, ValueError),
        (("n", array("Q", [1]), 2, None, None), 0, ValueError),
        (("n", array("Q", [1]), -1, None, None), 1, ValueError),
        (("n", array("Q", [1]), 0, None, None), -1, ValueError),
        (("n", array("Q", [1]), 1, None, None), sys.maxsize, ValueError),
        (("n", array("f", [1]), 0, None, None), 1, ValueError),
        (("n", array("B", [3]), 0, ["a"], None), 1, ValueError),
        (("n", array("I", [NULL]), 0, ["a"], None), 1, ValueError),
        (("n", array("Q", [0]), 0, ["a"], None), 1, ValueError),
        (("n", array("B", [0]), 0, [b"a"], None), 1, TypeError),
        (("n", array("B", [0]), 0, 7, None), 1, TypeError),
        (("n", array("B", [0]), 0, None, "x"), 1, TypeError),
        (("n", "text", 0, None, None), 1, TypeError),
        ((7, array("B", [0]), 0, None, None), 1, TypeError),
        (("n", array("B", [0])), 1, TypeError),
        (["n"], 1, TypeError),
    ],
)
def test_columns_that_do_not_fit_are_refused(column, rows, error):
    with pytest.raises(error):
        _core.arrow_stream([column], rows)
    # A refused column keeps nothing.
    if isinstance(column, tuple) and isinstance(column[1], array):
        column[1].append(column[1].pop())
