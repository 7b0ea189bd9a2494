# SPDX-License-Identifier: Apache-2.0
"""Tables as data frames of pandas and of polars, where these are installed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib import import_module
from typing import Any, NamedTuple

from neutracer.errors import missing

__all__ = ["Series", "pandas_frame", "polars_frame"]


class Series(NamedTuple):
    """One column as a data frame takes it.

    Attributes:
        name: What it is called.
        numbers: One a row; with `values` their codes.
        values: What the codes stand for; None for plain numbers.
        null: The number of a row that has no value; None where each has one.
        is_flag: Numbers 0 and 1 that stand for False and True.
    """

    name: str
    numbers: memoryview
    values: Sequence[Any] | None
    null: int | None
    is_flag: bool


def _module(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError:
        raise missing(name) from None


def pandas_frame(columns: Iterable[Series]) -> Any:
    """A `pandas.DataFrame` of some columns, which are copied.

    Raises:
        UnavailableError: pandas is not installed.
    """
    pandas = _module("pandas")
    numpy = import_module("numpy")

    def filled(column: Series) -> Any:
        numbers = numpy.asarray(column.numbers)
        if column.values is not None:
            used, codes = numpy.unique(numbers, return_inverse=True)
            values = numpy.empty(len(used), dtype=object)
            for at, code in enumerate(used.tolist()):
                values[at] = None if code == column.null else column.values[code]
            return values[codes]
        if column.null is not None:
            return pandas.arrays.IntegerArray(numbers.copy(), numbers == column.null)
        if column.is_flag:
            return numbers.astype(bool)
        # Differences of unsigned numbers are never below zero.
        fits = numbers.dtype == "uint64" and not (numbers >> 63).any()
        return numbers.astype("int64") if fits else numbers.copy()

    return pandas.DataFrame({column.name: filled(column) for column in columns})


def polars_frame(table: object) -> Any:
    """A `polars.DataFrame` of what speaks Arrow's C stream interface.

    Raises:
        UnavailableError: polars is not installed.
    """
    return _module("polars").DataFrame(table)
