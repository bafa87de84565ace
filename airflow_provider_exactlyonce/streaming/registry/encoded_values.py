"""Records with values in a schema registry's wire format: decoded in workers, bad ones found with their reason."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from airflow_provider_exactlyonce.exceptions import BadRecordError, RefusedError
from airflow_provider_exactlyonce.streaming.registry.columnar import binary
from airflow_provider_exactlyonce.streaming.registry.registry_format import Reader
from airflow_provider_exactlyonce.streaming.spark.typed_errors import mark, marking

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

#: The name of a source's decoder in a plan.
DECODING: Final = "exactlyonce_decoding"
_PLACE: Final = ("topic", "partition", "offset")


class EncodedValues:
    """Decodes records' values by their schemas, with the reasons of those that do not fit.

    :param reader: of the values
    :param schema: of the stream
    :param offset_column: the name of one more column with the record's offset, None for no such column
    :param topic_column: the same with the record's topic
    """

    def __init__(
        self,
        reader: Reader,
        schema: StructType,
        offset_column: str | None = None,
        topic_column: str | None = None,
    ) -> None:
        self._reader, self._schema = reader, schema
        self._places = {place: name for place, name in (("offset", offset_column), ("topic", topic_column)) if name}

    def fitted(self, records: DataFrame, *, leave_out_bad: bool = False) -> DataFrame:
        """Return the schema's columns of records.

        :param records: a frame with Spark's Kafka columns
        :param leave_out_bad: leave out records that do not fit, instead of raising
        """
        from pyspark.sql.types import StructType

        columns = StructType()
        for field in self._schema.fields:
            columns.add(field.name, field.dataType)
        for place, name in self._places.items():
            columns.add(name, records.schema[place].dataType)
        reader, kept = self._reader, tuple(self._places)

        def decode(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            yield from fitting(batches, reader, leave_out_bad=leave_out_bad, kept=kept)

        decode.__name__ = DECODING
        return records.select("value", *_PLACE).mapInArrow(decode, columns)

    def misfits(self, records: DataFrame) -> DataFrame:
        """Return the records that do not fit, as they are, with one more column ``reason``.

        :param records: a frame with Spark's Kafka columns
        """
        from pyspark.sql.types import StringType, StructType

        columns = StructType([*records.schema.fields]).add("reason", StringType())
        reader = self._reader
        return records.mapInArrow(lambda batches: misfitting(batches, reader), columns)


def fitting(
    batches: Iterable[pa.RecordBatch], reader: Reader, *, leave_out_bad: bool, kept: Sequence[str] = ()
) -> Iterator[pa.RecordBatch]:
    """Yield the columns of records; called in a task.

    :param batches: of a value and its place
    :param kept: what of the place follows the schema's columns
    :raises BadRecordError: marked for the driver, when a record does not fit and is not to be left out
    :raises RefusedError: marked, too, when the registry refuses this process
    """
    for batch, records, reasons in _decoded(batches, reader):
        columns = [*records.flatten(), *(batch.column(name) for name in kept)]
        if reasons and not leave_out_bad:
            position = min(reasons)
            topic, partition, offset = (batch.column(name)[position].as_py() for name in _PLACE)
            raise BadRecordError(mark(BadRecordError, f"{topic}-{partition} offset {offset}: {reasons[position]}"))
        if reasons:
            fits = np.ones(len(records), np.bool_)
            fits[list(reasons)] = False
            columns = [column.filter(pa.array(fits)) for column in columns]
        names = [*(field.name for field in records.type), *(f"_{name}" for name in kept)]
        yield pa.RecordBatch.from_arrays(columns, names)


def misfitting(batches: Iterable[pa.RecordBatch], reader: Reader) -> Iterator[pa.RecordBatch]:
    """Yield the records that do not fit, with the reason; called in a task.

    :raises RefusedError: marked for the driver, when the registry refuses this process
    """
    for batch, _, reasons in _decoded(batches, reader):
        if reasons:
            positions = sorted(reasons)
            bad = batch.take(pa.array(positions))
            yield bad.append_column("reason", pa.array([reasons[position] for position in positions]))


def _decoded(
    batches: Iterable[pa.RecordBatch], reader: Reader
) -> Iterator[tuple[pa.RecordBatch, pa.StructArray, Mapping[int, str]]]:
    """Yield batches with their records' fields, and {position: why it does not fit}."""
    with marking(RefusedError):
        decoder = reader.open()
        for batch in batches:
            yield batch, *decoder.decode(binary(batch.column("value")))
