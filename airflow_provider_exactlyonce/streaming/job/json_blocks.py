"""JSON records decoded many at a time in workers: those that certainly fit, the others are for Spark's own parser.

Arrow's parser is stricter than Spark's. What it accepts, Spark's reads as the same values, with few exceptions: those
are not given to it. So a record's verdict and values are the same, whichever of the two has read it. Of a hundred
thousand generated records a test compares them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import json as arrow_json

from airflow_provider_exactlyonce.kafka.columns import flat_rows
from airflow_provider_exactlyonce.streaming.registry.columnar import binary

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from pyspark.sql.types import DataType, StructType

#: Spark's parser refuses deeper nesting and longer numbers, Arrow's does not; neither has room in fewer bytes.
_SHORT_BYTES: Final = 1_000
_LONGEST_BYTES: Final = 50_000  # of names, for Spark's parser
_DEEPEST: Final = 900
#: Arrow's parser ends a line at the first, and reads the others as numbers.
_NOT_ASKED: Final = (b"\n", b"NaN", b"Inf")
#: Arrow reads memory that is not its own for a decimal whose first digit is too far behind the point, and dies of some
#: (apache/arrow#50964). In quotes it takes two signs before an exponent, and hexadecimal digits. All of these may be
#: escaped.
_ODD_DECIMALS: Final = (
    r':\s*"?[-+]?[0-9.]+[eE](?:-0*[1-9][0-9]+[",}\s]|[-+][-+]|[-+]?0[xX])',
    r"[.][0-9]{30}",
    r"\\u00(?:2[bBdDeE]|3[0-9]|[46]5|[57]8)",
)
#: Arrow multiplies a decimal by the power of ten of its scale modulo 2**128, and does not notice when it has come round
#: to one that the type holds.
_PRECISION_AND_SCALE_MAXIMUM: Final = 38
#: Once so many blocks were refused, a batch has too much that does not fit: the rest of it is for Spark.
_REFUSALS: Final = 32
_LEAST_BLOCK: Final = 16


def _arrow_type(kind: DataType) -> pa.DataType | None:
    from pyspark.sql import types

    if isinstance(kind, types.DecimalType):
        is_safe = kind.precision + kind.scale <= _PRECISION_AND_SCALE_MAXIMUM
        return pa.decimal128(kind.precision, kind.scale) if is_safe else None
    arrow_types: Mapping[DataType, pa.DataType] = {
        types.StringType(): pa.string(),
        types.BooleanType(): pa.bool_(),
        types.ByteType(): pa.int8(),
        types.ShortType(): pa.int16(),
        types.IntegerType(): pa.int32(),
        types.LongType(): pa.int64(),
    }
    return arrow_types.get(kind)


@dataclass(frozen=True)
class JsonBlocks:
    """Decodes values; pickled to the tasks.

    :param fields: what a value may have
    :param required: the names of those that it must have
    """

    fields: pa.Schema
    required: Set[str]

    @classmethod
    def of(cls, schema: StructType) -> Self | None:
        """Return the decoder of a stream's values, None if a field has a type that the two parsers read differently.

        :param schema: of the stream; a field that is not nullable is required
        """
        kinds = {field.name: _arrow_type(field.dataType) for field in schema.fields}
        if None in kinds.values() or len(kinds) < len(schema.fields):
            return None
        return cls(pa.schema(list(kinds.items())), {field.name for field in schema.fields if not field.nullable})

    def batches(self, batches: Iterable[pa.RecordBatch], kept: Collection[str] = ()) -> Iterator[pa.RecordBatch]:
        """Yield the batches with whether a record certainly fits, and with the fields; called in a task.

        A record that does is empty otherwise: each value costs time on its way.

        :param kept: columns that stay as they are
        """
        for batch in batches:
            fits, decoded = self.decode(batch.column("value"))
            misfits = ~fits
            input_columns = [
                column if name in kept else _masked(misfits, column)
                for name, column in zip(batch.schema.names, batch.columns, strict=True)
            ]
            columns = [*input_columns, pa.array(fits), *decoded]
            yield pa.RecordBatch.from_arrays(columns, [f"_{number}" for number in range(len(columns))])

    def decode(self, values: pa.Array) -> tuple[NDArray[np.bool_], list[pa.Array]]:
        """Return which values certainly fit, and their fields, which are null for the others.

        :param values: binary, or large binary
        """
        values = binary(values)
        readable = np.flatnonzero(_may_be_read(values, has_decimals=any(map(pa.types.is_decimal, self.fields.types))))
        blocks: list[tuple[NDArray[np.int64], pa.RecordBatch]] = []
        waiting, refused = [readable] if len(readable) else [], 0
        while waiting:
            indexes = waiting.pop()
            block = self._read(values if len(indexes) == len(values) else values.take(pa.array(indexes)))
            if block is not None:
                blocks.append((indexes, block))
            elif len(indexes) > _LEAST_BLOCK and refused < _REFUSALS:
                refused += 1
                waiting += np.array_split(indexes, 2)
        return self._gathered(len(values), blocks)

    def _read(self, values: pa.Array) -> pa.RecordBatch | None:
        """Return the fields of objects, None if one of them does not fit."""
        # All are objects by their first and last bytes, none of which Arrow ends at a line.
        lines = pc.binary_join(pa.ListArray.from_arrays(pa.array([0, len(values)], pa.int32()), values), b"\n")
        try:
            lines.cast(pa.string())  # Arrow's parser takes any bytes between quotes
            table = arrow_json.read_json(
                pa.BufferReader(lines[0].as_buffer()),
                read_options=arrow_json.ReadOptions(use_threads=False, block_size=lines.nbytes + 1),
                parse_options=arrow_json.ParseOptions(explicit_schema=self.fields, unexpected_field_behavior="ignore"),
            )
            table.validate(full=True)  # the parser lets decimals have too many digits before the point
        except pa.ArrowInvalid:
            return None
        [*batches] = table.combine_chunks().to_batches()
        # One of them had two objects: then there are more than values, since each has one.
        return batches[0] if len(batches) == 1 and batches[0].num_rows == len(values) else None

    def _gathered(
        self, count: int, blocks: Sequence[tuple[NDArray[np.int64], pa.RecordBatch]]
    ) -> tuple[NDArray[np.bool_], list[pa.Array]]:
        slots = np.full(count, -1, np.int64)
        value_count = 0
        for indexes, _ in blocks:
            slots[indexes] = np.arange(value_count, value_count + len(indexes))
            value_count += len(indexes)
        fits = np.greater_equal(slots, 0)
        decoded = pa.Table.from_batches([block for _, block in blocks], self.fields)
        if len(blocks) > 1 or value_count < count:
            decoded = decoded.take(pa.array(np.maximum(slots, 0), mask=~fits))
        for name in self.required:
            if decoded[name].null_count:
                fits &= decoded[name].is_valid().to_numpy()
        return fits, [column.combine_chunks() for column in decoded.columns]


def _may_be_read(values: pa.Array, *, has_decimals: bool) -> NDArray[np.bool_]:
    """Say which values Arrow's parser may be asked about."""
    readable = pc.and_(pc.starts_with(values, "{"), pc.ends_with(values, "}"))
    all_bytes = _bytes_of(values)
    # What should not be asked about is rare, and of all at once it is quick to tell; of a single byte even quicker.
    for text in _NOT_ASKED:
        if text[:1] in all_bytes and text in all_bytes:
            readable = pc.and_not(readable, pc.match_substring(values, text))
    if has_decimals:
        joined = pa.array([all_bytes], pa.large_binary())
        for pattern in _ODD_DECIMALS:
            if pc.match_substring_regex(joined, pattern)[0].as_py():
                readable = pc.and_not(readable, pc.match_substring_regex(values, pattern))
    lengths = pc.binary_length(values)
    longest = pc.max(lengths).as_py() or 0
    if longest >= _SHORT_BYTES:
        nested = pc.add(pc.count_substring(values, "{"), pc.count_substring(values, "["))
        numbers = pc.match_substring_regex(values, f"[-+.eE0-9]{{{_SHORT_BYTES}}}")
        bounded = pc.and_(pc.less(nested, _DEEPEST), pc.and_not(pc.less(lengths, _LONGEST_BYTES), numbers))
        readable = pc.and_(readable, pc.or_(pc.less(lengths, _SHORT_BYTES), bounded))
    mask: NDArray[np.bool_] = pc.fill_null(readable, False).to_numpy(zero_copy_only=False)
    return mask


def _masked(mask: NDArray[np.bool_], column: pa.Array) -> pa.Array:
    """Return a column with nulls where the mask is false."""
    return pc.if_else(pa.array(mask), column, None) if mask.any() else pa.nulls(len(column), column.type)


def _bytes_of(values: pa.Array) -> bytes:
    """Return the bytes of all values as they lie in memory."""
    offsets, _, _ = flat_rows(values)
    content = values.buffers()[2]
    return b"" if content is None else bytes(content.slice(int(offsets[0]), int(offsets[-1] - offsets[0])))
