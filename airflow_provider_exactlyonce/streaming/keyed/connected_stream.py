"""Runs a function of a stream and of a control stream: the rules as state of a fixed number of copies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from airflow_provider_exactlyonce.state.broadcast import COPY, IS_DATA, BroadcastProcessFunction, as_keyed, columns_of
from airflow_provider_exactlyonce.streaming.keyed.keyed_stream import COPIES, copy_of, key_by


class ConnectedStream:
    """A stream with a control stream; made by :func:`connect`."""

    def __init__(self, data: DataFrame, control: DataFrame, copies: int) -> None:
        self._data = data
        self._control = control
        self._copies = copies

    def process(self, function: BroadcastProcessFunction[Any, Any, Any]) -> DataFrame:
        """Return a function's output for the rows of the data.

        :param function: an instance; a copy of it runs for each copy of the rules
        :raises RefusedError: when its declarations are invalid, or there is no copy
        """
        data, control = self._data.columns, self._control.columns
        keyed = as_keyed(function, data, control)
        datum_names, rule_names = columns_of(data, control)
        datum = _renamed(self._data, datum_names)
        rule = _renamed(self._control, rule_names)
        copy_number = copy_of(self._data, self._copies)
        all_copies = F.explode(F.array(*(F.lit(copy) for copy in range(self._copies))))
        rows = self._data.select(
            copy_number.alias(COPY), F.lit(True).alias(IS_DATA), *datum, *_nulls(self._control, rule_names)
        )
        rules = self._control.select(
            all_copies.alias(COPY), F.lit(False).alias(IS_DATA), *_nulls(self._data, datum_names), *rule
        )
        return key_by(rules.union(rows), COPY).process(keyed)


def connect(data: DataFrame, control: DataFrame, *, copies: int = COPIES) -> ConnectedStream:
    """Connect a stream with a control stream; its records reach every task.

    :param data: the stream
    :param control: the control stream, another source of the same pipeline
    :param copies: of the rules, at least one per core that works on the data; it must never change
    """
    return ConnectedStream(data, control, copies)


def _renamed(frame: DataFrame, names: Sequence[str]) -> list[Column]:
    return [frame[old].alias(new) for old, new in zip(frame.columns, names, strict=True)]


def _nulls(frame: DataFrame, names: Sequence[str]) -> list[Column]:
    return [
        F.lit(None).cast(field.dataType).alias(name) for field, name in zip(frame.schema.fields, names, strict=True)
    ]
