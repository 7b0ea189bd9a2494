# SPDX-License-Identifier: Apache-2.0
"""Base classes for pickling reports, and for refusing to pickle with a reason.

Example:
    >>> class Thermometer(StaysHere, instead="it is of this room: send .celsius"):
    ...     celsius = 21
    >>> import pickle
    >>> pickle.dumps(Thermometer())
    Traceback (most recent call last):
    ...
    TypeError: a Thermometer can't be pickled or copied: it is of this room: send .celsius
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any, ClassVar, NoReturn, SupportsIndex, TypeVar

Self = TypeVar("Self")


class FieldsOnly:
    """The base of a dataclass that is pickled and copied without its cached properties."""

    def __getstate__(self) -> dict[str, Any]:
        names = {field.name for field in fields(self)}  # type: ignore[arg-type]
        return {name: value for name, value in self.__dict__.items() if name in names}


class StaysHere:
    """The base of objects bound to this process, which can be neither pickled nor copied.

    A subclass gives the reason or an alternative with `instead=`.
    """

    __slots__ = ()

    _instead: ClassVar[str]

    def __init_subclass__(cls, *, instead: str = "", **options: Any) -> None:
        super().__init_subclass__(**options)
        if instead:
            cls._instead = instead

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        name = type(self).__name__
        raise TypeError(f"a{'n' if name[0] in 'AEIO' else ''} {name} {self._refusal()}")

    def _refusal(self) -> str:
        return f"can't be pickled or copied: {self._instead}"


class Unchanging(StaysHere):
    """The base of immutable views of this process's memory: they can't be pickled, and are their
    own copies."""

    __slots__ = ()

    def __copy__(self: Self) -> Self:
        return self

    def __deepcopy__(self: Self, memo: object) -> Self:
        return self

    def _refusal(self) -> str:
        return f"can't be pickled: {self._instead}"
