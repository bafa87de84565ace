"""A digest of the rows that a sink is given: with it a batch that is run again is compared with the committed one."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column
    from pyspark.sql.types import DataType


def row_digest(values: Sequence[Column], kinds: Sequence[DataType]) -> Column:
    """Return Spark's xxhash64 over the values of a row, and over which of them are null.

    :param kinds: the types of the values
    """
    from pyspark.sql import functions as F

    pairs = zip(values, kinds, strict=True)
    return F.xxhash64(*[part for value, kind in pairs for part in (_hashable(value, kind), F.isnull(value))])


def _hashable(value: Column, kind: DataType) -> Column:
    """Return a value that Spark can hash: of a map, which has no order, its entries in the order of their keys.

    A value without a map stays as it is, and so do its digests in ledgers. Spark hashes one value after the other and
    leaves out nulls, so an entry records whether its value is null: else the next key's could be taken for it.
    """
    from pyspark.sql import functions as F
    from pyspark.sql.types import ArrayType, MapType, StructType

    if isinstance(kind, MapType):

        def entry(map_entry: Column) -> Column:
            inner = map_entry.getField("value")
            return F.struct(map_entry.getField("key"), F.isnull(inner), _hashable(inner, kind.valueType))

        # By all of an entry: from other writers' files Spark reads maps that have a key twice.
        return F.sort_array(F.transform(F.map_entries(value), entry))
    if isinstance(kind, ArrayType) and _has_map(kind):
        return F.transform(value, lambda element: _hashable(element, kind.elementType))
    if isinstance(kind, StructType) and _has_map(kind):
        fields = [_hashable(value.getField(field.name), field.dataType) for field in kind.fields]
        return F.when(F.isnotnull(value), F.struct(*fields))
    return value


def _has_map(kind: DataType) -> bool:
    from pyspark.sql.types import ArrayType, MapType, StructType

    if isinstance(kind, ArrayType):
        return _has_map(kind.elementType)
    if isinstance(kind, StructType):
        return any(_has_map(field.dataType) for field in kind.fields)
    return isinstance(kind, MapType)
