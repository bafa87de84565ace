"""Generated records get the verdicts, reasons and values that former expressions and a plain reading of JSON give.

A schema's first expressions parsed each record once for every field. They are kept here as the reference.
"""

from __future__ import annotations

import datetime
import json
import math
import random
import re
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from fractions import Fraction
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pytest

from airflow_provider_exactlyonce.streaming import KafkaSource

SEED: Final = 20261123
EXACT: Final = (
    "id BIGINT NOT NULL, name STRING, price DECIMAL(12,2), ok BOOLEAN, at TIMESTAMP, tags ARRAY<STRING>, "
    "inner STRUCT<a: INT, b: STRING>"
)
WITH_FLOATS: Final = f"{EXACT}, ratio DOUBLE"
#: Of types that are decoded in blocks.
FLAT: Final = "id BIGINT NOT NULL, name STRING, price DECIMAL(12,2), ok BOOLEAN, small TINYINT"
COLUMNS: Final = (
    "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, "
    "headers ARRAY<STRUCT<key: STRING, value: BINARY>>"
)

#: Values that fit, and values that any field may have instead, as they stand in a record.
FITTING: Final[Mapping[str, tuple[str, ...]]] = {
    "id": ("0", "1", "-17", "9223372036854775807"),
    "name": ('"a"', '"ü"', '"}"', '"]}{"', r'"\"}"', '"NaN"', '"it\'s"', "null", '""'),
    "price": ("0", "1.5", "12.34", "-9999999999.99", "1.2300", "1e2", "null", "12.5e-1"),
    "ok": ("true", "false", "null"),
    "at": (
        '"2026-11-23T10:00:00Z"',
        '"2026-11-23T10:00:00.123+02:00"',
        '"2026-11-23T10:00:00"',
        '"2026-11-23T10:00:00.123456"',
    ),
    "tags": ('["a", "}"]', "[]", '["]"]', "null"),
    "inner": ('{"a": 1, "b": "}"}', "{}", '{"b": "{"}', "null"),
    "ratio": ("1", "1.5", "-2e-3", '"NaN"', '"Infinity"', "null"),
    "small": ("0", "-128", "127", "null"),
    "unnamed": ('{"x": {"y": ["}"]}}', "[[1], {}]", '"Infinity"', "1e3", '"INFO"'),
}
ANY: Final = (
    *(
        "1.0",
        "1.5",
        "1e2",
        "1E20",
        "1e400",
        "12.345",
        "-0.005",
        "10000000000",
        "99999999999.99",
        "0.1234567890123456789",
        "1e-41",
        '"1e-77"',
        '"1e+-77"',
        '"1e0x2"',
        '"1e0xFFFFFFB3"',
        '"-1E+2"',
        "5223381128739321470741650370496519104",
        '"10.0.0.1"',
        '"release1.5, [1.2.3]"',
        "0.30000000000000004",
        "1732354567.123456",
        "12345678.9012345678",
        "4.5e-07",
    ),
    *(
        "9223372036854775808",
        "123456789012345678901234567890",
        "NaN",
        "Infinity",
        "-INF",
        "-Infinity",
        "01",
        "+1",
        "1.",
    ),
    *('"12.5"', '"1"', '"NaN"', '"-INF"', '"true"', '""', "'a'", "'}'", '"a\nb"', r'"\x"', '"yesterday"'),
    *(
        '"2026-13-01T00:00:00Z"',
        '"2026-11-23"',
        "true",
        "null",
        "nil",
        "[]",
        "[1, [2]]",
        "{}",
        '{"a": "x"}',
        '{"a": [1]}',
    ),
    *("9223372036854", "9223372036855", "-9223372036855", '"10:00"', '" T10"', "128", "200", "255", "-129"),
)
#: What is wrong with a whole text.
BREAKS: Final[tuple[Callable[[random.Random, str], str], ...]] = (
    lambda chance, text: (
        text + chance.choice((" trailing", "}", " }", "]", "] trailing", ", 5] x", "[]", ",", "null", "\0"))
    ),
    lambda chance, text: text + chance.choice(("", ",", "\n", " ")) + text,
    lambda chance, text: text[: chance.randrange(len(text) + 1)],
    lambda chance, text: text[:-1] + chance.choice((', "id": 2}', ', "price": 1.234}', ', "name": {"x": 1}}', ",}")),
    lambda chance, text: chance.choice(("\n", " \t", "\r\n")) + text + chance.choice((" ", "\n\n", "\t")),
    lambda chance, text: text.replace(" ", chance.choice(("\n", "\t ", ""))),
    lambda chance, text: chance.choice(("\ufeff", "x", "//\n", ",", "\v")) + text,
    lambda chance, text: chance.choice(("[{}]", "null{}", "[]{}", "{{}}", "{}}}", "5 {}")).replace("{}", text, 1),
    lambda chance, text: text.replace('"', "'"),
    lambda chance, text: chance.choice(
        ("", " ", "\n", "null", "null}", "[]}", "{}", "{}]", "5", "5]", '"a"', "[", "{", "}")
    ),
)

#: As Spark reads one, in either kind of quotes.
STRING: Final = re.compile(r"""(["'])(?:\\.|(?!\1)[^\\])*\1""", re.DOTALL)


def text_of(chance: random.Random) -> str:
    values = {
        name: chance.choice(fitting) for name, fitting in FITTING.items() if name == "id" or chance.random() < 0.6
    }
    if chance.random() < 0.5:
        values[chance.choice(list(FITTING))] = chance.choice(ANY)
    if chance.random() < 0.05:
        del values["id"]
    fields = [f'"{name}": {value}' for name, value in values.items()]
    chance.shuffle(fields)
    return f"{{{', '.join(fields)}}}"


def records_of(count: int) -> Iterator[bytes | None]:
    chance = random.Random(SEED)
    for _ in range(count):
        text = text_of(chance)
        for break_it in chance.choices(BREAKS, k=chance.choice((0, 0, 0, 0, 1, 1, 1, 2))):
            text = break_it(chance, text)
        value = text.encode()
        if chance.random() < 0.03:
            at = chance.randrange(len(value) + 1)
            value = value[:at] + chance.choice((b"\xff", b"\xc3", b"\xed\xa0\x80")) + value[at:]
        yield None if chance.random() < 0.01 else value


def former_reason(schema: Any) -> Any:
    """Give the former expression of why a record does not fit, on a frame with its parsed value."""
    from pyspark.sql import functions as F

    text = F.col("value").cast("string")
    wrong_type = [
        F.when(
            F.col(f"parsed.`{field.name}`").isNull() & F.get_json_object(text, f"$['{field.name}']").isNotNull(),
            F.concat(
                F.lit(f"field {field.name} is not {field.dataType.simpleString()}: "),
                F.left(F.get_json_object(text, f"$['{field.name}']"), F.lit(100)),
            ),
        )
        for field in schema.fields
    ]
    no_object = F.concat(F.lit("it is not a JSON object of the schema: "), F.left(text, F.lit(200)))
    small = F.col("parsed.small") if "small" in schema.names else F.lit(0)
    wide = F.col("parsed.price")
    narrow = F.expr("try_cast(parsed.price AS DECIMAL(12,2))")
    return F.coalesce(
        F.when(F.col("value").isNull(), F.lit("it has no value (a tombstone)")),
        F.when(
            ~F.coalesce(F.json_array_length(F.concat(F.lit("["), text, F.lit("]"))) == 1, F.lit(False)),
            F.concat(F.lit("it is not one JSON object: "), F.left(text, F.lit(200))),
        ),
        F.when(F.col("parsed.corrupt").isNotNull(), F.coalesce(*wrong_type, no_object)),
        F.when(F.col("parsed.id").isNull(), F.lit("the required field id is missing or null")),
        F.when(
            wide.isNotNull() & ~F.coalesce(narrow == wide, F.lit(False)),
            F.concat(F.lit("field price does not fit decimal(12,2): "), wide.cast("string")),
        ),
        F.when(~small.between(-128, 127), F.concat(F.lit("field small does not fit tinyint: "), small.cast("string"))),
    )


Verdict = tuple[bytes | None, str | None]
"""Why a record does not fit, or else its values as JSON."""


def former_verdicts(records: Any, ddl: str) -> dict[int, Verdict]:
    from pyspark.sql import functions as F
    from pyspark.sql.types import StructType

    schema: Any = StructType.fromDDL(ddl)
    wide = ddl.replace(" NOT NULL", "").replace("(12,2)", "(38,18)").replace("TINYINT", "SMALLINT")
    reading: Any = StructType.fromDDL(f"{wide}, corrupt STRING")
    parsed = F.from_json(F.col("value").cast("string"), reading, {"columnNameOfCorruptRecord": "corrupt"})
    checked = records.withColumn("parsed", parsed).localCheckpoint()  # parsed once, as nothing is moved below it
    reason = former_reason(schema)
    fields = F.struct(
        *[F.col(f"parsed.{field.name}").cast(field.dataType).alias(field.name) for field in schema.fields]
    )
    rows = checked.select(
        "offset", reason.cast("binary").alias("reason"), F.when(reason.isNull(), F.to_json(fields)).alias("values")
    )
    return {row["offset"]: (row["reason"] and bytes(row["reason"]), row["values"]) for row in rows.collect()}


def verdicts(records: Any, ddl: str) -> dict[int, Verdict]:
    """Give what a pipeline with ``bad_records`` makes of each record."""
    from pyspark.sql import functions as F

    source = KafkaSource("in", schema=ddl, offset_column="offset")
    fitted = source.fitted(records, leave_out_bad=True)
    values = F.to_json(F.struct(*[name for name in fitted.columns if name != "offset"]))
    fit: list[tuple[int, Verdict]] = [
        (row["offset"], (None, row["values"])) for row in fitted.select("offset", values.alias("values")).collect()
    ]
    misfit: list[tuple[int, Verdict]] = [
        (int(row["key"]), (bytes(row["headers"][-1]["value"]), None)) for row in source.misfits(records).collect()
    ]
    by_offset = dict(fit + misfit)
    assert len(by_offset) == len(fit) + len(misfit), "a record both fits and does not"
    return by_offset


def was_read_as_another(former: Verdict, current: Verdict) -> bool:
    """Say whether a record is of the class that fitted by what Spark makes of a number, or of a time without a date.

    Or a field behind that one did not fit, and was named then.
    """
    reason = current[0] or b""
    if former[0] is not None and former[0].startswith((b"field price does not fit", b"field small does not fit")):
        return reason.startswith(b"field name does not fit string: a number")
    return former[0] is None and reason.startswith(
        (
            b"field ratio does not fit double: ",
            b"field at does not fit timestamp: ",
            b"field name does not fit string: a number",
        )
    )


def is_followed_by_a_bracket(value: bytes | None) -> bool:
    """Say whether a record is of the class in which a second value was not seen.

    The former expressions put a text in brackets to see a second value, and saw nothing behind a bracket of its own.
    """
    if value is None:
        return False
    text = STRING.sub('""', value.decode(errors="replace")).lstrip()
    try:
        _, end = json.JSONDecoder().raw_decode(text)
    except ValueError:
        return False
    return text[end:].lstrip().startswith("]")


def plainly_fits(value: bytes | None, fields: Mapping[str, str]) -> bool | None:
    """Judge a record without Spark, None where JSON alone does not tell."""
    if value is None:
        return False
    repeated = False

    def fields_of(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        nonlocal repeated
        repeated |= len({name for name, _ in pairs}) < len(pairs)
        return dict(pairs)

    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is not JSON")

    try:
        text = value.decode()
        parsed = json.loads(text, object_pairs_hook=fields_of, parse_float=Decimal, parse_constant=refuse)
    except UnicodeDecodeError:
        return None  # Spark replaces what is no text
    except ValueError:
        return None if "'" in text else False  # Spark reads strings in single quotes
    if repeated:
        return None
    if not isinstance(parsed, dict):
        return False
    judged = [fits(parsed.get(name), kind) for name, kind in fields.items()]
    if parsed.get("id") is None or False in judged:
        return False
    return None if None in judged else True


def fits(value: Any, kind: str) -> bool | None:
    """Judge a field's value, None where Spark has rules of its own."""
    match value:
        case None:
            return True
        case Decimal() if kind == "string":
            return math.isfinite(float(value)) and Decimal(repr(float(value))) == value
        case _ if kind == "string":
            return True
        case bool():
            return kind == "boolean"
        case int() | Decimal():
            return number_fits(value, kind)
        case str() if kind == "timestamp" and re.match(r"\d{4}-\d\d-\d\dT", value):
            return is_time(value)
        case str() if kind == "timestamp" and re.match(r"\s*(T|\d\d?:)", value):
            return False
        case str():
            return None if kind in ("decimal(12,2)", "double", "timestamp") else False
        case list() if kind == "array<string>" and all(isinstance(element, str) for element in value):
            return True
    return None if kind.startswith(("array", "struct")) else False


def number_fits(value: int | Decimal, kind: str) -> bool | None:
    match kind:
        case "bigint" | "tinyint":
            largest = 2 ** (63 if kind == "bigint" else 7)
            return isinstance(value, int) and -largest <= value < largest
        case "decimal(12,2)":
            exact = Fraction(value)
            if (exact * 10**18).denominator > 1:
                return None  # Spark's parser rounds after the eighteenth digit
            return abs(exact) < 10**10 and (exact * 100).denominator == 1
        case "timestamp":
            return -(2**63) <= value * 10**6 < 2**63 if isinstance(value, int) else None
        case "double":
            return math.isfinite(float(value))
    return False


def is_time(text: str) -> bool:
    try:
        datetime.datetime.fromisoformat(text)
    except ValueError:
        return False
    return True


def check(spark: Any, ddl: str, count: int) -> None:
    from pyspark.sql.types import StructType

    values = list(records_of(count))
    rows = [(str(at).encode(), value, "in", 0, at, None) for at, value in enumerate(values)]
    records = spark.createDataFrame(rows, COLUMNS)
    schema: Any = StructType.fromDDL(ddl)
    fields = {field.name: field.dataType.simpleString() for field in schema.fields}
    former, current = former_verdicts(records, ddl), verdicts(records, ddl)
    assert len(current) == len(former) == count

    changed = [at for at in current if current[at] != former[at]]
    unexpected = [
        (values[at], former[at], current[at])
        for at in changed
        if not was_read_as_another(former[at], current[at])
        and not (
            is_followed_by_a_bracket(values[at]) and (current[at][0] or b"").startswith(b"it is not one JSON object")
        )
    ]
    assert not unexpected
    assert changed

    judged = {at: plainly_fits(value, fields) for at, value in enumerate(values)}
    unlike = {
        (values[at], current[at])
        for at, verdict in judged.items()
        if verdict is not None and verdict != (current[at][0] is None)
    }
    assert not unlike
    for at in (at for at, verdict in judged.items() if verdict):
        plain, given = (
            {name: value for name, value in json.loads(text, parse_float=Decimal).items() if value is not None}
            for text in (values[at] or b"", current[at][1] or "")
        )
        for name in ("id", "price", "ok"):
            assert given.get(name) == plain.get(name), values[at]
    assert (
        sum(verdict is True for verdict in judged.values())
        > count / 10
        < sum(verdict is False for verdict in judged.values())
    )


def check_blocks(spark: Any, count: int, price: str) -> None:
    """Compare what blocks decode, each record for itself and all together, with what Spark's parser makes of it."""
    from pyspark.sql.types import StructType

    from airflow_provider_exactlyonce.streaming.job.json_blocks import JsonBlocks
    from airflow_provider_exactlyonce.streaming.job.json_values import JsonValues

    values = list(records_of(count))
    rows = [(None, value, "in", 0, at, None) for at, value in enumerate(values)]
    schema: Any = StructType.fromDDL(FLAT.replace("DECIMAL(12,2)", price))
    records = spark.createDataFrame(rows, COLUMNS)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(JsonBlocks, "of", lambda _: None)
        fitting = JsonValues(schema, offset_column="offset").fitted(records, leave_out_bad=True).collect()
    read = {row["offset"]: tuple(row)[:-1] for row in fitting}

    blocks = JsonBlocks.of(schema)
    assert blocks is not None
    alone = {}
    for at, value in enumerate(values):
        fits, decoded = blocks.decode(pa.array([value], pa.binary()))
        if fits[0]:
            alone[at] = tuple(column[0].as_py() for column in decoded)
    different = [(values[at], read.get(at), given) for at, given in alone.items() if read.get(at) != given]
    assert not different
    assert len(alone) > 0.4 * len(read), "the others are not in one line, or have NaN in a text"

    for size in (1, 10, 500, count):
        together, decoded = blocks.decode(pa.array(values, pa.binary())[count - size :])
        columns = [column.to_pylist() for column in decoded]
        found = {count - size + at: tuple(column[at] for column in columns) for at in np.flatnonzero(together).tolist()}
        assert found.items() <= alone.items()


def written(chance: random.Random, number: float) -> str:
    """Write a number in one of the ways of JSON, as the double has it or with a digit more or less."""
    exact = chance.choice(
        (repr(number), f"{number:.{chance.randrange(13, 18)}g}", f"{number:.{chance.randrange(2, 18)}f}")
    )
    sign, digits, power = Decimal(exact).as_tuple()
    assert isinstance(power, int)
    text = "".join(map(str, digits))
    shift = chance.randrange(len(text) + 1)
    mantissa = f"{text[:shift] or '0'}.{text[shift:]}{chance.choice(('0', '00', ''))}".rstrip(".")
    if len(mantissa) > 1 and mantissa.startswith("0") and not mantissa.startswith("0."):
        return exact
    exponent = power + len(text) - shift
    plus = chance.choice(("+", "+0", "")) if exponent >= 0 else ""
    moved = f"{'-' * sign}{mantissa}{chance.choice('eE')}{plus}{exponent}"
    return chance.choice((exact, moved))


def test_a_number_fits_a_text_however_it_is_written_unless_it_would_be_rounded(spark: Any) -> None:
    chance = random.Random(SEED)
    numbers = [
        written(chance, chance.choice((1, -1)) * chance.random() * 10.0 ** chance.randrange(-9, 16))
        for _ in range(5_000)
    ]
    assert all(isinstance(json.loads(number), float | int) for number in numbers)
    values = [
        chance.choice(('{"id": 1, "name": %s}', '{"id": 1, "name": {"a": [%s, 1.5]}}')) % number for number in numbers
    ]
    rows = [(str(at).encode(), value.encode(), "in", 0, at, None) for at, value in enumerate(values)]
    found = verdicts(spark.createDataFrame(rows, COLUMNS), "id BIGINT, name STRING")
    unlike = [
        (value, found[at])
        for at, (number, value) in enumerate(zip(numbers, values, strict=True))
        if (found[at][0] is None) != fits(json.loads(number, parse_float=Decimal), "string")
    ]
    assert not unlike
    assert 500 < sum(verdict[0] is None for verdict in found.values()) < 4_500


@pytest.mark.parametrize(
    "ddl",
    [
        pytest.param(EXACT, id="exact"),
        pytest.param(WITH_FLOATS, id="with_floats", marks=pytest.mark.slow),
        pytest.param(FLAT, id="flat", marks=pytest.mark.slow),
    ],
)
def test_generated_records_get_the_verdicts_that_they_had(spark: Any, ddl: str) -> None:
    check(spark, ddl, count=2_000)


@pytest.mark.slow
def test_many_generated_records_get_the_verdicts_that_they_had(spark: Any) -> None:
    check(spark, WITH_FLOATS, count=100_000)


@pytest.mark.parametrize("price", ["DECIMAL(12,2)", "DECIMAL(24,14)"])
def test_what_blocks_decode_is_what_spark_reads(spark: Any, price: str) -> None:
    check_blocks(spark, count=2_000, price=price)


@pytest.mark.slow
def test_what_blocks_decode_of_many_records_is_what_spark_reads(spark: Any) -> None:
    check_blocks(spark, count=100_000, price="DECIMAL(12,2)")
