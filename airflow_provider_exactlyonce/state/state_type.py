"""The declared type of a state."""

from __future__ import annotations

from typing import Any, cast

from airflow_provider_exactlyonce.state import values
from airflow_provider_exactlyonce.state.ddl import DataType, parse


class StateType:
    """How a store keeps values of a type: as rows, with one field ``value`` unless fields were declared.

    :param text: the type, in Spark's DDL
    """

    def __init__(self, text: str) -> None:
        self.type: DataType = parse(text)
        self.is_row = self.type.name == "STRUCT"
        #: What the store is declared with.
        self.ddl = text if self.is_row else f"value {text}"
        self.coerce = values.coerce(self.type)
        self.copies = values.is_mutable(self.type)
        self._load = values.load(self.type)

    def copied(self, value: Any) -> Any:
        """Return a coerced value that the caller may change."""
        return self.coerce(value) if self.copies else value

    def pack(self, value: Any) -> tuple[Any, ...]:
        """Return a coerced value as a row."""
        return cast("tuple[Any, ...]", value) if self.is_row else (value,)

    def unpack(self, row: Any) -> Any:
        """Return the value of a row."""
        value = row if self.is_row else row[0]
        return value if self._load is None else self._load(value)
