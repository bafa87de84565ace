"""A row with names, as Spark's ``Row``, for where there is no Spark and where there are too many of them for it."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache, partial
from typing import Any, ClassVar


class Record(tuple[Any, ...]):
    """A tuple whose values have names too: ``record.price``, ``record["price"]`` and ``record[3]`` are one value.

    The function that :func:`record_maker` returns makes it, or :meth:`of`.
    """

    __slots__ = ()
    __fields__: ClassVar[tuple[str, ...]] = ()

    @staticmethod
    def of(values: Mapping[str, Any]) -> Record:
        """Return a record with the values of a mapping."""
        return record_maker(tuple(values))(values.values())

    def __getattr__(self, name: str) -> Any:
        if name not in self.__fields__:
            raise AttributeError(f"{name}: there are {', '.join(self.__fields__)}")
        return super().__getitem__(self.__fields__.index(name))  # one that no named tuple takes, such as _id

    def __getitem__(self, item: Any) -> Any:
        if isinstance(item, str):
            if item not in self.__fields__:
                raise KeyError(f"{item}: there are {', '.join(self.__fields__)}")
            item = self.__fields__.index(item)
        return super().__getitem__(item)

    def asDict(self) -> dict[str, Any]:  # noqa: N802  # as Spark's Row
        """Return the values by their names."""
        return dict(zip(self.__fields__, self, strict=True))

    def __repr__(self) -> str:
        return f"Record({', '.join(f'{name}={value!r}' for name, value in self.asDict().items())})"


@lru_cache(maxsize=1000)
def record_maker(names: tuple[str, ...]) -> Callable[[Iterable[Any]], Record]:
    """Return a function from values to a record with these names; it costs as much as a named tuple."""
    named_tuple = namedtuple("Record", names, rename=True)  # type: ignore[misc]  # whose attributes need no look-up
    return partial(tuple.__new__, type("Record", (Record, named_tuple), {"__slots__": (), "__fields__": names}))
