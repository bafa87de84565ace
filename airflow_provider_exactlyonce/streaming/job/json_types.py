"""Types of JSON records: the types to parse them as, and whether a value is as it was written."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import reduce
from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

_WIDE_SCALE: Final = 18
#: What a FLOAT or DOUBLE is with quotes; without them a number that is too large is read as infinite.
_INFINITE: Final = ("Infinity", "+Infinity", "-Infinity", "+INF", "-INF")
#: How a time begins that has no date: Spark reads it as one of today.
_WITHOUT_DATE: Final = r"(?:T|\d{1,2}:)"
_BLANK: Final = r"[\x00-\x20\x7f]"  # which Spark leaves out around a time
#: Of other texts Spark reads whole numbers as days since 1970, or as years, and drops what follows a date.
_DATE: Final = rf"^{_BLANK}*(?:\d{{4}}|[-+]?\d{{4,7}}-\d{{1,2}}(?:-\d{{1,2}})?){_BLANK}*$"
#: A number that a double may not have. Spark makes one of a number that becomes text, or stands in an object that does.
LONG_NUMBER: Final = r"[:,\[]\s*-?(?:[0-9.]+[eE][-+]?0*[0-9]{3}|[0-9]{16,}[eE]|(?=[0-9.]{17})[0-9]*[.])"
#: A text that was a number with a point or an exponent, or may have one in it.
_OF_A_NUMBER: Final = r'^(?:-?[0-9]+[.][0-9]+(?:E-?[0-9]+)?$|"-?Infinity"$|[\[{])'
#: A number as it stands in what Spark writes, alone or in an object.
_WRITTEN: Final = r'(?<=^|[:,\[])-?[0-9]+[.][0-9]+(?:E-?[0-9]+)?(?=$|[,\]}])|(?<=")-?Infinity(?=")'
#: A number with a point or an exponent as it stands in a record, also in a string of it. Others stay as they are.
_NUMBER: Final = r"-?(?<![0-9])[0-9]++(?:[.][0-9]++(?:[eE][-+]?[0-9]++)?|[eE][-+]?[0-9]++)"
#: One that is not in quotes, or looks so within a string.
_BARE_NUMBER: Final = rf"[:,\[]\s*({_NUMBER})(?=\s*[,\]}}])"
_ESCAPE: Final = r"\\u[0-9a-fA-F]{4}"  # four characters that are no number, though é has 00e9
#: A double keeps a number of so many digits, unless it is nearer to zero than this.
_KEPT_DIGITS: Final = 15
_SMALLEST_NORMAL: Final = sys.float_info.min
# Loops over alternatives are possessive: Java calls itself once more for each round of another one, and long records
# would take all of its stack. None of them takes anything that may follow it.
#: Characters of a number in quotes, which may be escaped, and have commas that Spark leaves out.
_SIGN, _DIGIT, _E = r"(?:[-+]|\\u002[bBdD])?", r"(?:[0-9,]|\\u003[0-9])", r"(?:[eE]|\\u00[46]5)"
_MORE_DIGITS: Final = rf"(?:[0,]|\\u0030)*+(?:[1-9]|\\u003[1-9]){_DIGIT}{{4,}}+"
_ENDLESS_TEXT: Final = rf"""["']\s*{_SIGN}(?:{_DIGIT}|[.]|\\u002[eE])++{_E}{_SIGN}{_MORE_DIGITS}\s*["']"""
_ENDLESS: Final = r"[-+]?[0-9.]+[eE][-+]?0*[1-9][0-9]{4,}"


def _within(kind: DataType) -> list[DataType]:
    """Return the types that a type is made of."""
    match kind:
        case StructType():
            return [field.dataType for field in kind.fields]
        case ArrayType():
            return [kind.elementType]
        case MapType():
            return [kind.valueType]
    return []


def is_nested(kind: DataType) -> bool:
    """Whether a type has others in it."""
    return bool(_within(kind))


def kinds_within(kind: DataType) -> Iterator[type[DataType]]:
    """Yield the classes of a type and of all in it."""
    yield type(kind)
    for part in _within(kind):
        yield from kinds_within(part)


def _replaced(kind: DataType, replace: Callable[[DataType], DataType]) -> DataType:
    """Return a type with each type in it that is not nested replaced, and nothing in it required."""
    match kind:
        case StructType():
            return StructType([StructField(field.name, _replaced(field.dataType, replace)) for field in kind.fields])
        case ArrayType():
            return ArrayType(_replaced(kind.elementType, replace))
        case MapType():
            return MapType(kind.keyType, _replaced(kind.valueType, replace))
    return replace(kind)


def nullable_within(kind: DataType) -> DataType:
    """Return a type with every part nullable, for Spark's parser; required parts are checked separately."""
    return _replaced(kind, lambda kind: kind)


def wide(kind: DataType) -> DataType:
    """Return the type to parse as: wider where Spark turns a value beyond the type into another value."""

    def widen(kind: DataType) -> DataType:
        if isinstance(kind, ByteType):
            return ShortType()  # 128 to 255 would be negative
        if not isinstance(kind, DecimalType):
            return kind
        fits = kind.scale <= _WIDE_SCALE and kind.precision - kind.scale <= 38 - _WIDE_SCALE
        return DecimalType(38, _WIDE_SCALE) if fits else kind

    return _replaced(kind, widen)


def as_given(schema: StructType) -> StructType:
    """Return the type to parse as: text as it was written, where Spark may read another value."""

    def as_text(kind: DataType) -> DataType:
        return StringType() if isinstance(kind, FloatType | DoubleType | DateType | TimestampType) else kind

    return StructType([StructField(field.name, _replaced(field.dataType, as_text)) for field in schema.fields])


def either(conditions: Iterable[Column | None]) -> Column | None:
    """Return whether a condition holds, None without one."""
    stated = [condition for condition in conditions if condition is not None]
    return reduce(Column.__or__, stated) if stated else None


def _any_within(value: Column, kind: DataType, judge: Callable[[Column, DataType], Column | None]) -> Column | None:
    """Return whether something of a type's parts is as judged, None where no part of that type can be."""
    match kind:
        case StructType():
            return either(judge(value.getField(field.name), field.dataType) for field in kind.fields)
        case ArrayType() | MapType():
            (part,) = _within(kind)
            if judge(value, part) is None:
                return None
            parts = value if isinstance(kind, ArrayType) else F.map_values(value)
            return F.coalesce(F.exists(parts, lambda element: _certain(judge(element, part))), F.lit(False))
    return None


def _certain(condition: Column | None) -> Column:
    assert condition is not None
    return condition


def is_missing(value: Column, kind: DataType, may_be_null: bool) -> Column | None:
    """Return whether a required value, or one in it, is null; None where nothing is required."""
    within = None
    match kind:
        case StructType():
            within = either(
                is_missing(value.getField(field.name), field.dataType, field.nullable) for field in kind.fields
            )
            within = None if within is None else value.isNotNull() & within
        case ArrayType() | MapType():
            (part,) = _within(kind)
            part_may_be_null = kind.containsNull if isinstance(kind, ArrayType) else kind.valueContainsNull
            if is_missing(value, part, part_may_be_null) is not None:
                parts = value if isinstance(kind, ArrayType) else F.map_values(value)
                has_missing = F.exists(parts, lambda element: _certain(is_missing(element, part, part_may_be_null)))
                within = F.coalesce(has_missing, F.lit(False))
    return either([None if may_be_null else value.isNull(), within])


def stays_itself(parsed: Column, kind: DataType) -> Column | None:
    """Return whether each number is as it was parsed, neither rounded nor too large; None where each certainly is.

    True for null.
    """

    def changes(parsed: Column, kind: DataType) -> Column | None:
        if is_nested(kind):
            return _any_within(parsed, kind, changes)
        if wide(kind) == kind:
            return None
        return parsed.isNotNull() & F.coalesce(parsed.try_cast(kind) != parsed, F.lit(True))

    changed = changes(parsed, kind)
    return None if changed is None else ~changed


def is_infinite(value: Column, kind: DataType) -> Column | None:
    """Return whether a float is infinite, None for a type without floats."""
    if is_nested(kind):
        return _any_within(value, kind, is_infinite)
    if not isinstance(kind, FloatType | DoubleType):
        return None
    return F.coalesce(F.abs(value) == float("inf"), F.lit(False))


def becomes_another(value: Column, given: Column, kind: DataType) -> Column | None:
    """Return whether Spark has read another value than is given, None for a type where it does not.

    :param given: as :func:`as_given` has it
    """
    match kind:
        case StructType():
            return either(
                becomes_another(value.getField(field.name), given.getField(field.name), field.dataType)
                for field in kind.fields
            )
        case ArrayType() | MapType():
            (part,) = _within(kind)
            if becomes_another(value, given, part) is None:
                return None
            arrays = (value, given) if isinstance(kind, ArrayType) else (F.map_values(value), F.map_values(given))
            differs = F.zip_with(
                *arrays, lambda element, given_element: _certain(becomes_another(element, given_element, part))
            )
            return F.coalesce(F.exists(differs, lambda element: element), F.lit(False))
        case FloatType() | DoubleType():
            return _certain(is_infinite(value, kind)) & F.coalesce(~given.isin(*_INFINITE), F.lit(True))
        case DateType():
            return value.isNotNull() & ~given.rlike(_DATE)
        case TimestampType():
            # A number counts seconds, which Spark multiplies without a check for overflow.
            seconds = F.when(given.rlike(r"^-?\d{7,}$"), given.try_cast("bigint"))
            is_another = F.coalesce(F.unix_seconds(value) != seconds, F.lit(False))
            return value.isNotNull() & (given.rlike(f"^{_BLANK}*{_WITHOUT_DATE}") | is_another)
    return None


def may_be_of_a_number(value: Column, kind: DataType) -> Column | None:
    """Return whether a text may have been a number in the record, None for a type without texts."""
    if is_nested(kind):
        return _any_within(value, kind, may_be_of_a_number)
    return F.coalesce(value.rlike(_OF_A_NUMBER), F.lit(False)) if isinstance(kind, StringType) else None


def numbers_of(text: Column, fields: Iterable[tuple[Column, DataType]]) -> Column:
    """Return the values of a record's numbers, and of those in each field's texts; for :func:`is_rounded`.

    :param text: the record
    :return: an array of arrays, the record's first; null for a record without a number that may be rounded
    """
    record_numbers = F.regexp_extract_all(F.regexp_replace(text, _ESCAPE, " "), F.lit(_NUMBER), F.lit(0))
    # A quoted Infinity is the record's own, unless one of its numbers is too large for a double.
    bare = F.regexp_extract_all(text, F.lit(_BARE_NUMBER), F.lit(1))
    is_too_large = F.exists(bare, lambda number: F.abs(number.cast("double")) == float("inf"))
    infinite = F.when(~is_too_large, F.array(F.lit("Infinity"), F.lit("-Infinity"))).otherwise(F.array())
    written = [_written_within(value, kind) for value, kind in fields]
    numbers = F.transform(
        F.array(F.concat(record_numbers, infinite), *written), lambda group: F.transform(group, _as_written)
    )
    return F.when(text.rlike(LONG_NUMBER), numbers)


def is_rounded(numbers: Column, field: int, kind: DataType) -> Column | None:
    """Return whether a field's texts have a number that the record has not, None for a type without texts.

    :param numbers: as :func:`numbers_of` has them
    """
    if StringType not in kinds_within(kind):
        return None
    return F.size(F.array_except(numbers[field + 1], numbers[0])) > 0


def _written_within(value: Column, kind: DataType) -> Column:
    """Return an array of the numbers that Spark may have written into texts of a value, null without a text."""

    def written_in_part(part: Column, kind: DataType) -> Column:
        return F.coalesce(_written_within(part, kind), F.array())

    if StringType not in kinds_within(kind):
        return F.lit(None).cast("array<string>")
    match kind:
        case StructType():
            return F.concat(*[written_in_part(value.getField(field.name), field.dataType) for field in kind.fields])
        case ArrayType() | MapType():
            (part,) = _within(kind)
            parts = value if isinstance(kind, ArrayType) else F.map_values(value)
            return F.flatten(F.transform(parts, lambda element: written_in_part(element, part)))
    return F.regexp_extract_all(value, F.lit(_WRITTEN), F.lit(0))


def _as_written(number: Column) -> Column:
    """Return a number that a double keeps as Spark writes that double, and any other one as it stands.

    A double keeps a number of few digits, of which Spark may write more, and one of those digits that Spark writes.
    """
    double = number.cast("double")
    written = double.cast("string")
    is_short = F.length(_digits(number)) <= _KEPT_DIGITS
    is_normal = F.abs(double).between(_SMALLEST_NORMAL, sys.float_info.max)
    return F.when((is_short & is_normal) | (_digits(number) == _digits(written)), written).otherwise(number)


def _digits(number: Column) -> Column:
    """Return a number's digits without the zeros around them."""
    return F.trim(F.regexp_replace(number, "[eE].*|[-.]", ""), F.lit("0"))


def doubtful_time(schema: StructType) -> str | None:
    """Return the expression of texts in which a field may have a date or time that Spark reads as another one.

    Names and values may be written with escapes, and in either kind of quotes. None for a schema without such fields.
    """
    patterns = []
    for kind, doubtful in (
        (TimestampType, rf"""["'](?:{_BLANK}|\\.)*+{_WITHOUT_DATE}|-?\d{{13}}"""),
        (
            DateType,
            rf"""["'](?!\d{{4}}-\d\d-\d\d["'])(?:{_BLANK}|\\.)*+"""
            rf"""[-+]?(?:\p{{Nd}}+(?:["']|{_BLANK}|\\)|\d{{4,7}}-)""",
        ),
    ):
        if kind in kinds_within(schema):
            patterns.append(rf"{_prefix_pattern(schema, kind)}\s*(?:{doubtful})")
    escaped = r"\\u00[0-7]" if all(map(str.isascii, schema.names)) else r"\\u"
    return "|".join([*patterns, escaped]) if patterns else None


def _prefix_pattern(schema: StructType, kind: type[DataType]) -> str:
    """Return a regular expression of the text before a value of a type."""
    if any(kind in kinds_within(field.dataType) for field in schema if is_nested(field.dataType)):
        return r"[:,\[]"
    names = [re.escape(field.name) for field in schema.fields if isinstance(field.dataType, kind)]
    return rf"[\"'](?:{'|'.join(names)})[\"']\s*:"


def endless_decimal(schema: StructType) -> str | None:
    """Return the expression of texts with a decimal for which Java would compute for minutes, None without decimals.

    Its exponent has five digits or more. Within arrays, maps and structs such a number is found if it has no quotes.
    """
    if DecimalType not in kinds_within(schema):
        return None
    names = "|".join(re.escape(field.name) for field in schema.fields if isinstance(field.dataType, DecimalType))
    patterns = []
    if names:
        name = rf"""(?:["'](?:{names})|\\u[0-9a-fA-F]{{4}}[^"'\\]*)["']\s*:"""
        patterns.append(rf"{name}\s*(?:{_ENDLESS_TEXT}|{_ENDLESS})\s*[,}}]")
    nested = [field.dataType for field in schema.fields if is_nested(field.dataType)]
    if any(DecimalType in kinds_within(kind) for kind in nested):
        prefix = r"""(?:["']\s*:|[,\[])""" if any(map(_has_array_of_decimals, nested)) else r"""["']\s*:"""
        patterns.append(rf"{prefix}\s*{_ENDLESS}\s*[,\]}}]")
    return "|".join(patterns)


def _has_array_of_decimals(kind: DataType) -> bool:
    is_array_of_decimals = isinstance(kind, ArrayType) and isinstance(kind.elementType, DecimalType)
    return is_array_of_decimals or any(map(_has_array_of_decimals, _within(kind)))
