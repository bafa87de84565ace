"""A row with names, as Spark's ``Row``, for where there is no Spark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self


class Record(tuple[Any, ...]):
    """A tuple whose values have names too: ``record.price``, ``record["price"]`` and ``record[3]`` are one value.

    :param names: of the values, in their order
    """

    __fields__: tuple[str, ...]

    def __new__(cls, names: Sequence[str], values: Sequence[Any]) -> Self:
        """Make a record; tuples are filled here."""
        one = super().__new__(cls, values)
        one.__fields__ = tuple(names)
        return one

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        """Return a record with the values of a mapping."""
        return cls(tuple(values), tuple(values.values()))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name not in self.__fields__:
            raise AttributeError(f"{name}: there are {', '.join(self.__fields__)}")
        return self[self.__fields__.index(name)]

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
