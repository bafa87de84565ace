"""Records with JSON objects of a schema as values: each is parsed once, and checked closely if it may not fit."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Final, Protocol

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import (
    BooleanType,
    DecimalType,
    DoubleType,
    FloatType,
    StringType,
    StructField,
    StructType,
)

from airflow_provider_exactlyonce.exceptions import BadRecordError
from airflow_provider_exactlyonce.streaming.job import json_types
from airflow_provider_exactlyonce.streaming.job.json_blocks import JsonBlocks
from airflow_provider_exactlyonce.streaming.spark.typed_errors import CLOSE, OPEN

_PLACE: Final = ("topic", "partition", "offset")
_PARSED: Final = "parsed"
_CORRUPT: Final = "_exactlyonce_corrupt"  # beside the schema's fields
_IN_BLOCK: Final = "_exactlyonce_in_block"
_ALONE: Final = "_exactlyonce_alone"
_REASON: Final = "reason"


class _Record(Protocol):
    """A record for expressions: a lambda function's variable, or a frame's columns."""

    def __getitem__(self, name: str) -> Column: ...


class _Frame:
    def __getitem__(self, name: str) -> Column:
        return F.col(name)


_FRAME: Final = _Frame()


class JsonValues:
    """Parses records' values by a schema, with the reasons of those that do not fit.

    Most records of most schemas are decoded many at a time in Python workers, and Spark parses the others. Most of
    those certainly fit, too, and few cheap comparisons show it. The expressions for the reasons are for the rest.

    Spark compiles the expressions of a frame's columns into one method, and Java leaves a large method slow. So the
    expressions for few records are in lambda functions over an array of one record, which Spark does not compile.

    :param schema: of the stream; a field that is not nullable is required
    :param offset_column: the name of one more column with the record's offset, None for no such column
    :param topic_column: the same with the record's topic
    """

    def __init__(self, schema: StructType, offset_column: str | None = None, topic_column: str | None = None) -> None:
        self._schema = schema
        self._places = {place: name for place, name in (("offset", offset_column), ("topic", topic_column)) if name}
        kinds = set(json_types.kinds_within(schema))
        self._has_floats = not kinds.isdisjoint({FloatType, DoubleType})
        self._has_texts = StringType in kinds
        self._doubtful_time = json_types.doubtful_time(schema)
        self._endless_decimal = json_types.endless_decimal(schema)
        self._as_given = json_types.as_given(schema) if self._has_floats or self._doubtful_time else None

    def fitted(self, records: DataFrame, *, leave_out_bad: bool = False) -> DataFrame:
        """Return the schema's columns of records, and those with offset and topic.

        :param records: a frame with Spark's Kafka columns
        :param leave_out_bad: leave out records that do not fit; otherwise the task of one fails with
            :class:`BadRecordError`, the record's place and the reason
        """
        judge = self._fits if leave_out_bad else self._fits_or_raises
        decimals = [field.dataType for field in self._schema if isinstance(field.dataType, DecimalType)]
        blocks = JsonBlocks.of(self._schema) if all(json_types.wide(kind) != kind for kind in decimals) else None
        # Spark moves a filter below a projection, and would parse once more for each field that the filter names. Below
        # a generator it moves what names none of the generator's columns: so each column that a job gets names one.
        if blocks is None:
            rows = records.select(F.inline(self._parsed())).where(judge(_FRAME))
            return rows.select(*_named(self._names, self._row(_FRAME)))
        numbered = [f"{_ALONE}_{number}" for number in range(len(self._names))]
        alone = F.transform(
            F.filter(F.when(~F.col(_IN_BLOCK), self._parsed()), judge),
            lambda record: F.struct(*_named(numbered, self._row(record))),
        )
        decoded = self._decoded(records, blocks)
        rows = decoded.select("*", F.inline(F.coalesce(alone, self._nothing(numbered, records))))
        in_block = [*(f"{_IN_BLOCK}_{number}" for number in range(len(self._schema))), *self._places]
        columns = [
            F.when(F.col(_IN_BLOCK), F.col(decoded_name)).otherwise(F.col(parsed_name))
            for decoded_name, parsed_name in zip(in_block, numbered, strict=True)
        ]
        return rows.select(*_named(self._names, columns))

    def misfits(self, records: DataFrame) -> DataFrame:
        """Return the records that do not fit, as they are, with one more column ``reason``.

        :param records: a frame with Spark's Kafka columns
        """
        uncertain = F.filter(self._parsed(), lambda record: ~self._certainly_fits(record))
        reasons = F.transform(uncertain, lambda record: F.struct(self._misfit(record).alias(_REASON)))
        return records.select("*", F.inline(F.filter(reasons, lambda reason: reason[_REASON].isNotNull())))

    def _parsed(self) -> Column:
        """Return an array of one record, with its parsed value."""
        parsed = F.from_json(self._parsable(_text(_FRAME)), self._reading_schema(), self._options)
        return F.array(F.struct("value", *_PLACE, parsed.alias(_PARSED)))

    def _parsable(self, text: Column) -> Column:
        """Return a text, or one that is no object instead of one that no parser should see."""
        if self._endless_decimal is None:
            return text
        return F.when(text.rlike(self._endless_decimal), F.lit("{")).otherwise(text)

    @property
    def _options(self) -> dict[str, str]:
        # NaN without quotes is not JSON; Spark reads "NaN" with quotes as a number only if it reads both.
        return {"columnNameOfCorruptRecord": _CORRUPT, "allowNonNumericNumbers": str(self._has_floats).lower()}

    def _reading_schema(self) -> StructType:
        """Return the schema to parse with, wide enough to see whether a value would become another one."""
        fields = StructType()
        for field in self._schema.fields:
            fields.add(field.name, json_types.wide(field.dataType), nullable=True)
        return fields.add(_CORRUPT, StringType(), nullable=True)

    def _decoded(self, records: DataFrame, blocks: JsonBlocks) -> DataFrame:
        """Return records with their decoded fields; of a record that was decoded, only the places stay."""
        raw_records = records.select("value", *_PLACE)
        columns = StructType([*raw_records.schema.fields]).add(_IN_BLOCK, BooleanType())
        for number, field in enumerate(self._schema.fields):
            columns.add(f"{_IN_BLOCK}_{number}", field.dataType)
        return raw_records.mapInArrow(partial(blocks.batches, kept=tuple(self._places)), columns)

    def _row(self, record: _Record) -> list[Column]:
        """Return the columns that a job gets of a record that fits."""
        kinds = [json_types.nullable_within(field.dataType) for field in self._schema.fields]
        values = [_field(record, field).cast(kind) for field, kind in zip(self._schema.fields, kinds, strict=True)]
        return values + [record[place] for place in self._places]

    def _nothing(self, names: Iterable[str], records: DataFrame) -> Column:
        """Return an array of a row without values, for a record that is in a block."""
        kinds = [field.dataType for field in self._schema.fields]
        kinds += [records.schema[place].dataType for place in self._places]
        row = [StructField(name, kind) for name, kind in zip(names, kinds, strict=True)]
        return F.array(F.lit(None).cast(StructType(row)))

    @property
    def _names(self) -> list[str]:
        return [*self._schema.names, *self._places.values()]

    def _fits(self, record: _Record) -> Column:
        return self._unless_certain(record, lambda reason: reason.isNull())

    def _fits_or_raises(self, record: _Record) -> Column:
        """Say that a record fits; of another one the task fails."""
        start = F.concat(
            F.lit(f"{OPEN}{BadRecordError.__name__}]"), F.concat_ws("-", record["topic"], record["partition"])
        )

        def raises(reason: Column) -> Column:
            message = F.concat(start, F.lit(" offset "), record["offset"], F.lit(": "), reason, F.lit(CLOSE))
            return F.when(reason.isNull(), F.lit(True)).otherwise(F.raise_error(message).cast("boolean"))

        return self._unless_certain(record, raises)

    def _unless_certain(self, record: _Record, judge: Callable[[Column], Column]) -> Column:
        """Judge a record by why it does not fit, if it does not certainly."""
        close_check = F.forall(F.array(self._misfit(record)), judge)
        # Not OR, nor WHEN with OTHERWISE: Spark compares the two sides of those whenever it plans a batch.
        return F.coalesce(F.when(self._certainly_fits(record), F.lit(True)), close_check)

    def _misfit(self, record: _Record) -> Column:
        """Return why a record does not fit, null when it does."""
        if self._as_given is None:
            return self._misfit_of(record, None)
        as_given = F.from_json(self._parsable(_text(record)), self._as_given, self._options)
        return _once(as_given, lambda as_given: self._misfit_of(record, as_given))

    def _misfit_of(self, record: _Record, as_given: Column | None) -> Column:
        """Return why a record does not fit.

        :param as_given: the same object, parsed to what stands there where Spark may have read another value
        """
        if not self._has_texts:
            return self._first_reason(record, as_given, F.lit(None))
        fields = [(_field(record, field), field.dataType) for field in self._schema.fields]
        numbers = json_types.numbers_of(_text(record), fields)
        return _once(numbers, lambda numbers: self._first_reason(record, as_given, numbers))

    def _first_reason(self, record: _Record, as_given: Column | None, numbers: Column) -> Column:
        text, is_read = _text(record), _is_read(record)
        shown = F.left(text, F.lit(200))
        reasons = [
            F.when(record["value"].isNull(), F.lit("it has no value (a tombstone)")),
            F.when(
                ~(self._is_certainly_one_object(record) | _is_one_value(text)),
                F.concat(F.lit("it is not one JSON object: "), shown),
            ),
        ]
        if self._endless_decimal is not None:
            endless = F.concat(F.lit("it has a decimal with an exponent of five digits or more: "), shown)
            reasons.append(F.when(text.rlike(self._endless_decimal), endless))
        # One expression for all fields: each part of a plan takes time from every batch.
        fields = F.array(*[self._facts(record, index, as_given, numbers) for index in range(len(self._schema))])
        faults = F.transform(fields, lambda field: _fault_of(field, text, is_read))
        reasons.append(F.get(F.filter(faults, lambda fault: fault.isNotNull()), F.lit(0)))
        reasons.append(F.when(~is_read, F.concat(F.lit("it is not a JSON object of the schema: "), shown)))
        return F.coalesce(*reasons)

    def _facts(self, record: _Record, index: int, as_given: Column | None, numbers: Column) -> Column:
        """Return the facts of a field for the reason why its value does not fit."""
        field = self._schema[index]
        value, kind = _field(record, field), field.dataType
        stays_itself = json_types.stays_itself(value, kind)
        changes = [None if stays_itself is None else ~stays_itself]
        if as_given is not None:
            changes.append(json_types.becomes_another(value, as_given.getField(field.name), kind))
        is_shown = not json_types.is_nested(kind) and (json_types.wide(kind) != kind or isinstance(kind, StringType))
        facts = {
            "name": F.lit(field.name),
            "type": F.lit(kind.simpleString()),
            # As it was read and not as it stands there: of a name that is there twice, the last one counts.
            "as_read": (value if is_shown else F.lit(None)).cast("string"),
            "is_null": value.isNull(),
            "is_missing": None if field.nullable else value.isNull(),
            "lacks": json_types.is_missing(value, kind, True),
            "changes": json_types.either(changes),
            "is_rounded": json_types.is_rounded(numbers, index, kind),
        }
        return F.struct(*[(F.lit(False) if fact is None else fact).alias(name) for name, fact in facts.items()])

    def _certainly_fits(self, record: _Record) -> Column:
        fits = self._is_certainly_one_object(record)
        for field in self._schema.fields:
            value = _field(record, field)
            if (is_missing := json_types.is_missing(value, field.dataType, field.nullable)) is not None:
                fits &= ~is_missing
            if (stays_itself := json_types.stays_itself(value, field.dataType)) is not None:
                fits &= stays_itself
            if (is_infinite := json_types.is_infinite(value, field.dataType)) is not None:
                fits &= ~is_infinite
        if (may_be_rounded := json_types.may_be_of_a_number(record[_PARSED], self._schema)) is not None:
            fits &= ~(may_be_rounded & _text(record).rlike(json_types.LONG_NUMBER))
        if self._doubtful_time is not None:
            fits &= ~_text(record).rlike(self._doubtful_time)
        return F.coalesce(fits, F.lit(False))

    def _is_certainly_one_object(self, record: _Record) -> Column:
        """Say cheaply that nothing follows the object that was parsed; one with others inside may be one, too."""
        text, value = _text(record), record["value"]
        without_last_byte = F.substring(value, F.lit(1), F.octet_length(value) - 1).cast("string")
        is_one_object = _is_read(record) & text.startswith("{") & text.endswith("}") & ~without_last_byte.contains("}")
        for not_json in ("NaN", "Infinity", "INF") if self._has_floats else ():
            is_one_object &= ~text.contains(not_json)
        return is_one_object


def _named(names: Iterable[str], columns: Iterable[Column]) -> list[Column]:
    return [column.alias(name) for name, column in zip(names, columns, strict=True)]


def _once(value: Column, judge: Callable[[Column], Column]) -> Column:
    """Judge a value that is computed once, however often its judge names it."""
    return F.element_at(F.transform(F.array(value), judge), 1)


def _text(record: _Record) -> Column:
    return record["value"].cast("string")


def _field(record: _Record, field: StructField) -> Column:
    return record[_PARSED].getField(field.name)


def _is_read(record: _Record) -> Column:
    """Say whether the parser found an object and a value of each field's type in it."""
    return record[_PARSED].getField(_CORRUPT).isNull()


def _is_one_value(text: Column) -> Column:
    """Say whether a text is one JSON value, which takes a second parse.

    The first ignores what comes after the value. Here something follows that the text can't contain, its own hash, and
    only the text as one value lets a parser find it in second place.
    """
    digest = F.md5(text)
    pair = F.concat(F.lit("["), text, F.lit(',"'), digest, F.lit('"]'))
    return F.coalesce(F.get_json_object(pair, "$[1]") == digest, F.lit(False))


def _fault_of(field: Column, text: Column, is_read: Column) -> Column:
    """Return why a field's value does not fit, null when it does.

    :param field: what is to be known of it, by :meth:`JsonValues._facts`
    """
    path = F.concat(F.lit("$['"), field["name"], F.lit("']"))
    raw_value = F.call_function("get_json_object", text, path)
    is_lost = field["is_null"] & raw_value.isNotNull()
    message = (
        F.when(~is_read, F.when(is_lost, F.lit("field %s is not %s: %s")))
        .when(field["is_missing"], F.lit("the required field %s is missing or null"))
        .when(field["lacks"], F.lit("field %s lacks what %s requires: %s"))
        .when(field["changes"], F.lit("field %s does not fit %s: %s"))
        .when(
            field["is_rounded"],
            F.lit("field %s does not fit %s: a number that has no quotes would be rounded to %s"),
        )
    )
    shown = F.left(F.coalesce(field["as_read"], raw_value), F.lit(100))
    return F.call_function("format_string", message, field["name"], field["type"], shown)
