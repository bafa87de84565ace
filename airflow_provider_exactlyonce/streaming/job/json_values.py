"""Records whose values are JSON objects of a schema: each is parsed once, and looked at closely if it may not fit."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import BooleanType, DecimalType, StringType, StructField, StructType

from airflow_provider_exactlyonce.exceptions import BadRecordError
from airflow_provider_exactlyonce.streaming.job.json_blocks import JsonBlocks
from airflow_provider_exactlyonce.streaming.spark.typed_errors import CLOSE, OPEN

_CORRUPT: Final = "_exactlyonce_corrupt"
_PARSED: Final = "_exactlyonce_parsed"
_OFFSET: Final = "_exactlyonce_offset"
_TOPIC: Final = "_exactlyonce_topic"
_IN_BLOCK: Final = "_exactlyonce_in_block"
_WIDE_SCALE: Final = 18


class JsonValues:
    """What a record's value gives by a schema, and why one does not fit.

    Most records certainly fit, and few cheap comparisons show it. The expressions that tell why one does not are for
    the others, in code of their own: Spark compiles a filter into one method, and Java leaves a large one slow.

    Most records of most schemas are decoded many at a time in Python workers before, and Spark parses the others only.

    :param schema: of the stream; a field that is not nullable is required
    :param offset_column: the name of one more column with the record's offset, None for no such column
    :param topic_column: the same with the record's topic
    :param in_blocks: whether records are to be decoded many at a time, where the schema allows it
    """

    def __init__(
        self,
        schema: StructType,
        offset_column: str | None = None,
        topic_column: str | None = None,
        *,
        in_blocks: bool = False,
    ) -> None:
        self._schema, self._offset_column, self._topic_column = schema, offset_column, topic_column
        self._blocks = JsonBlocks.of(schema) if in_blocks and all(map(_keeps_decimals, schema.fields)) else None
        self._text = F.col("value").cast("string")
        # Nested ones, too; a field of such a name only costs time.
        self._has_floats = re.search('"(float|double)"', schema.json()) is not None

    def parsed(self, records: DataFrame) -> DataFrame:
        """Return records with what the other methods' columns are about.

        :param records: a frame with Spark's Kafka columns
        """
        # NaN without quotes is not JSON; Spark reads "NaN" with quotes as a number only if it reads both.
        options = {"columnNameOfCorruptRecord": _CORRUPT, "allowNonNumericNumbers": str(self._has_floats).lower()}
        parsed = F.from_json(self._text, self._reading_schema(), options)
        # Spark moves a filter below a projection, and would parse once more for each field that the filter names. Below
        # a generator it moves what names none of the generator's columns: so each column that a job gets is one.
        generated = [parsed.alias(_PARSED), F.col("offset").alias(_OFFSET)]
        generated += [F.col("topic").alias(_TOPIC)] if self._topic_column else []
        return self._decoded(records).select("*", F.inline(F.array(F.struct(*generated))))

    def _decoded(self, records: DataFrame) -> DataFrame:
        """Return records, in blocks with what was decoded, and without its text, which then is parsed as null."""
        if self._blocks is None:
            return records
        given = records.select("value", "topic", "partition", "offset")
        columns = StructType([*given.schema.fields]).add(_IN_BLOCK, BooleanType())
        for number, field in enumerate(self._schema.fields):
            columns.add(f"{_IN_BLOCK}_{number}", field.dataType)
        return given.mapInArrow(self._blocks.batches, columns)

    def columns(self) -> list[Column]:
        """Return the schema's columns, and those with offset and topic."""
        columns = [_field(field).cast(field.dataType) for field in self._schema.fields]
        if self._blocks is not None:
            decoded = [F.col(f"{_IN_BLOCK}_{number}") for number in range(len(columns))]
            columns = [
                F.when(F.col(_IN_BLOCK), of).otherwise(parsed) for of, parsed in zip(decoded, columns, strict=True)
            ]
        columns = [column.alias(field.name) for column, field in zip(columns, self._schema.fields, strict=True)]
        places = ((_OFFSET, self._offset_column), (_TOPIC, self._topic_column))
        return columns + [F.col(place).alias(name) for place, name in places if name]

    def fits(self) -> Column:
        """Say whether a record fits."""
        return self._certainly_fits() | self._closely(lambda reason: reason.isNull())

    def fits_or_raises(self) -> Column:
        """Say that a record fits; for another one the task fails with :class:`BadRecordError`, its place and reason."""
        start = F.concat(F.lit(f"{OPEN}{BadRecordError.__name__}]"), F.concat_ws("-", "topic", "partition"))

        def judge(reason: Column) -> Column:
            message = F.concat(start, F.lit(" offset "), "offset", F.lit(": "), reason, F.lit(CLOSE))
            return F.when(reason.isNull(), F.lit(True)).otherwise(F.raise_error(message).cast("boolean"))

        return self._certainly_fits() | self._closely(judge)

    def misfit(self) -> Column:
        """Return why a record does not fit, null when it does."""
        text = self._text
        reasons = [
            F.when(F.col("value").isNull(), F.lit("it has no value (a tombstone)")),
            F.when(
                ~(self._is_certainly_one_object() | self._is_one_value()),
                F.concat(F.lit("it is not one JSON object: "), F.left(text, F.lit(200))),
            ),
            F.when(~_is_read(), self._wrong_type()),
        ]
        for field in self._schema.fields:
            if not field.nullable:
                missing = F.lit(f"the required field {field.name} is missing or null")
                reasons.append(F.when(_field(field).isNull(), missing))
            if _is_checked_decimal(field):
                message = F.lit(f"field {field.name} does not fit {field.dataType.simpleString()}: ")
                reasons.append(F.when(~_keeps_its_digits(field), F.concat(message, _field(field).cast("string"))))
        return F.coalesce(*reasons)

    def _certainly_fits(self) -> Column:
        fits = self._is_certainly_one_object()
        for field in self._schema.fields:
            if not field.nullable:
                fits &= _field(field).isNotNull()
            if _is_checked_decimal(field):
                fits &= _keeps_its_digits(field)
        parsed = F.coalesce(fits, F.lit(False))
        return parsed if self._blocks is None else F.col(_IN_BLOCK) | parsed

    def _closely(self, judge: Callable[[Column], Column]) -> Column:
        """Judge a record by why it does not fit; a lambda function is not compiled into the filter's method."""
        return F.forall(F.array(self.misfit()), judge)

    def _is_certainly_one_object(self) -> Column:
        """Say cheaply that nothing follows the object that was parsed; one with others inside may be one, too."""
        text = self._text
        all_but_the_last = F.substring("value", F.lit(1), F.octet_length("value") - 1).cast("string")
        is_one_object = _is_read() & text.startswith("{") & text.endswith("}") & ~all_but_the_last.contains("}")
        for not_json in ("NaN", "Infinity", "INF") if self._has_floats else ():
            is_one_object &= ~text.contains(not_json)
        return is_one_object

    def _is_one_value(self) -> Column:
        """Say whether the text is one JSON value, which takes a second parse.

        The first ignores what comes after the value. Here something follows that the text can't contain, its own hash,
        and only the text as one value lets a parser find it in second place.
        """
        follows = F.md5(self._text)
        both = F.concat(F.lit("["), self._text, F.lit(',"'), follows, F.lit('"]'))
        return F.coalesce(F.get_json_object(both, "$[1]") == follows, F.lit(False))

    def _wrong_type(self) -> Column:
        reasons = []
        for field in self._schema.fields:
            given = F.get_json_object(self._text, f"$['{field.name}']")
            message = F.lit(f"field {field.name} is not {field.dataType.simpleString()}: ")
            reasons.append(
                F.when(_field(field).isNull() & given.isNotNull(), F.concat(message, F.left(given, F.lit(100))))
            )
        no_object = F.concat(F.lit("it is not a JSON object of the schema: "), F.left(self._text, F.lit(200)))
        return F.coalesce(*reasons, no_object)

    def _reading_schema(self) -> StructType:
        """Return the schema to parse with: decimals wide enough to see whether they would be rounded."""
        fields = StructType()
        for field in self._schema.fields:
            wide = DecimalType(38, _WIDE_SCALE) if _is_checked_decimal(field) else field.dataType
            fields.add(field.name, wide, nullable=True)
        return fields.add(_CORRUPT, StringType(), nullable=True)


def _field(field: StructField) -> Column:
    return F.col(_PARSED).getField(field.name)


def _is_read() -> Column:
    """Say whether the parser found an object and a value of each field's type in it."""
    return F.col(_PARSED).getField(_CORRUPT).isNull()


def _keeps_decimals(field: StructField) -> bool:
    """Say whether no decimal of a field is rounded unseen."""
    return not isinstance(field.dataType, DecimalType) or _is_checked_decimal(field)


def _is_checked_decimal(field: StructField) -> bool:
    kind = field.dataType
    return (
        isinstance(kind, DecimalType) and kind.scale <= _WIDE_SCALE and kind.precision - kind.scale <= 38 - _WIDE_SCALE
    )


def _keeps_its_digits(field: StructField) -> Column:
    """Say whether a decimal is what was parsed: neither rounded nor too large; true for null."""
    wide = _field(field)
    return wide.isNull() | F.coalesce(wide.try_cast(field.dataType) == wide, F.lit(False))
