"""What a schema accepts and what it refuses, in a real Spark session on frames with Kafka's columns."""

from __future__ import annotations

import datetime
import random
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any

import pytest
from pyspark.sql import functions as F

from airflow_provider_exactlyonce.exceptions import BadRecordError, RefusedError, SettingRefusedError
from airflow_provider_exactlyonce.streaming import KafkaSink, KafkaSource
from airflow_provider_exactlyonce.streaming.sinks.kafka.columns import HEADERS_TYPE, encode
from airflow_provider_exactlyonce.streaming.spark.typed_errors import find
from tests import cpu_seconds

SCHEMA = "id BIGINT NOT NULL, name STRING, price DECIMAL(12,2), ok BOOLEAN, at TIMESTAMP, tags ARRAY<STRING>"
COLUMNS = "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT"


def kafka_frame(spark: Any, *values: str | None) -> Any:
    rows = [
        (None, value if value is None else value.encode(), "in", 3, 40 + place) for place, value in enumerate(values)
    ]
    return spark.createDataFrame(rows, COLUMNS)


def parsed(spark: Any, *values: str | None, schema: str = SCHEMA) -> list[dict[str, Any]]:
    return [row.asDict() for row in KafkaSource("in", schema=schema).fitted(kafka_frame(spark, *values)).collect()]


def test_a_record_that_fits_is_read_with_its_types(spark: Any) -> None:
    (row,) = parsed(
        spark, '{"id": 1, "name": "ü", "price": 11.77, "ok": true, "at": "1997-01-01T00:00:00Z", "tags": ["a"]}'
    )
    assert row == {
        "id": 1,
        "name": "ü",
        "price": Decimal("11.77"),
        "ok": True,
        "at": datetime.datetime(1997, 1, 1, tzinfo=datetime.UTC).astimezone().replace(tzinfo=None),
        "tags": ["a"],
    }


def test_fields_may_be_absent_or_null_and_unknown_ones_are_ignored(spark: Any) -> None:
    for text in ('{"id": 1}', '{"id": 1, "price": null, "name": null}', ' {"other": {"x": [1], "y": "}"}, "id": 1} '):
        (row,) = parsed(spark, text)
        assert (row["id"], row["name"], row["price"]) == (1, None, None)


MISFITS = [
    (None, "it has no value"),
    ("", "it is not one JSON object"),
    ("no json", "it is not one JSON object: no json"),
    ('{"id": 1', "it is not one JSON object"),
    ('{"id": 1} trailing', "it is not one JSON object"),
    ('{"id": 1}{"id": 2}', "it is not one JSON object"),
    ('{"id": 1},{"id": 2}', "it is not one JSON object"),
    ('{"id": 1}] trailing', "it is not one JSON object"),
    ('{"id": 1}, 5] trailing', "it is not one JSON object"),
    ('{"id": 1, "other": {"x": 1}} trailing', "it is not one JSON object"),
    ('{"id": 1, "other": {"x": 1}}}', "it is not one JSON object"),
    ('[{"id": 1}]', "it is not a JSON object of the schema"),
    ("5", "it is not a JSON object of the schema"),
    ("null", "it is not a JSON object of the schema: null"),
    ("{}", "the required field id is missing or null"),
    ('{"id": null}', "the required field id is missing or null"),
    ('{"id": "x"}', "field id is not bigint: x"),
    ('{"id": 1.5}', "field id is not bigint: 1.5"),
    ('{"id": 99999999999999999999}', "field id is not bigint"),
    ('{"id": 1, "price": "dear"}', "field price is not decimal(12,2): dear"),
    ('{"id": 1, "price": 1.234}', "field price does not fit decimal(12,2): 1.234"),
    ('{"id": 1, "price": 99999999999.99}', "field price does not fit decimal(12,2)"),
    ('{"id": 1, "ok": "yes"}', "field ok is not boolean: yes"),
    ('{"id": 1, "at": "yesterday"}', "field at is not timestamp: yesterday"),
    ('{"id": 1, "tags": "a"}', "field tags is not array<string>: a"),
]


def test_records_that_do_not_fit_are_told_with_their_place_and_the_reason(spark: Any) -> None:
    records = ['{"id": 0}', *(value for value, _ in MISFITS)]
    frame = kafka_frame(spark, *records).withColumn("headers", F.lit(None).cast(HEADERS_TYPE))
    rows = KafkaSource("in", schema=SCHEMA).misfits(frame).collect()
    headers = [{name: bytes(value).decode() for name, value in row["headers"]} for row in rows]
    assert [header["exactlyonce.origin"] for header in headers] == [
        f"in-3 offset {41 + place}" for place in range(len(MISFITS))
    ]
    for header, (_, reason) in zip(headers, MISFITS, strict=True):
        assert header["exactlyonce.reason"].startswith(reason)


def test_a_record_is_refused_also_where_its_reason_can_not_show_what_stands_there(spark: Any) -> None:
    frame = kafka_frame(spark, """{"it's": [1.23]}""").withColumn("headers", F.lit(None).cast(HEADERS_TYPE))
    source = KafkaSource("in", schema="`it's` ARRAY<DECIMAL(5,1)>")
    assert source.fitted(frame, leave_out_bad=True).count() == 0
    (bad,) = source.misfits(frame).collect()
    assert bytes(bad["headers"][-1]["value"]) == b"field it's does not fit array<decimal(5,1)>: null"


def test_a_record_that_does_not_fit_is_refused_with_its_place_and_the_reason(spark: Any) -> None:
    with pytest.raises(Exception, match="exactlyonce:BadRecordError") as caught:
        parsed(spark, '{"id": 0}', '{"id": 1, "price": 1.234}')
    error = find(str(caught.value))
    assert isinstance(error, BadRecordError)
    assert str(error).startswith("in-3 offset 41: field price does not fit decimal(12,2): 1.234")


def test_a_misfit_is_found_even_when_the_job_reads_no_column(spark: Any) -> None:
    frame = spark.createDataFrame([(None, b"bad", "in", 0, 0)], COLUMNS)
    with pytest.raises(Exception, match="BadRecordError"):
        KafkaSource("in", schema=SCHEMA).fitted(frame).count()


def test_a_misfit_is_found_even_when_the_jobs_own_filter_would_drop_it(spark: Any) -> None:
    frame = spark.createDataFrame([(None, b'{"id": 1, "price": "x"}', "in", 0, 0)], COLUMNS)
    with pytest.raises(Exception, match="BadRecordError"):
        KafkaSource("in", schema=SCHEMA).fitted(frame).where("id = 2").count()


def test_a_misfit_is_found_even_when_the_jobs_filter_on_the_offset_would_drop_it(spark: Any) -> None:
    frame = spark.createDataFrame([(None, b"bad", "in", 0, 0)], COLUMNS)
    source = KafkaSource("in", schema=SCHEMA, offset_column="offset")
    with pytest.raises(Exception, match="BadRecordError"):
        source.fitted(frame).where("offset > 5").count()


def test_a_record_is_parsed_once(spark: Any) -> None:
    frame = spark.createDataFrame([], COLUMNS)
    for schema, closely in ((SCHEMA.replace("at TIMESTAMP, ", ""), 0), (SCHEMA, 1)):
        fitted = KafkaSource("in", schema=schema).fitted(frame).where("price > 1 AND name = 'a'")
        plan = fitted._jdf.queryExecution().executedPlan().toString()
        assert plan.count("from_json(") == 1 + closely


def test_fields_may_have_any_name_also_those_of_kafkas_columns(spark: Any) -> None:
    schema = "value STRING, topic STRING, offset BIGINT NOT NULL, `a.b` DECIMAL(4,1), `a``b` STRING, `it's` STRING"
    text = '{"value": "v", "topic": "t", "offset": 7, "a.b": 1.5, "a`b": "x", "it\'s": "y"}'
    (row,) = parsed(spark, text, schema=schema)
    assert tuple(row.values()) == ("v", "t", 7, Decimal("1.5"), "x", "y")


@pytest.mark.parametrize("schema", ["id BIGINT", "ratio DOUBLE", "id BIGINT, inner STRUCT<ratio: FLOAT>"])
def test_a_number_that_json_lacks_needs_quotes(spark: Any, schema: str) -> None:
    numbers = ("NaN", "Infinity", "-INF")
    texts = [f'{{"{name}": {number}}}' for number in numbers for name in ("ratio", "unnamed")]
    texts += [f'{{"ratio": "{number}"}}' for number in numbers]
    frame = spark.createDataFrame([(None, text.encode(), "in", 0, at) for at, text in enumerate(texts)], COLUMNS)
    source = KafkaSource("in", schema=schema, offset_column="at")
    assert [row["at"] for row in source.fitted(frame, leave_out_bad=True).collect()] == [6, 7, 8]


ANOTHER = "small TINYINT, at TIMESTAMP, ratio DOUBLE, half FLOAT, day DATE, text STRING, price DECIMAL(12,2)"
ROUNDED = "field text does not fit string: a number that has no quotes would be rounded"
#: What Spark would read as another value, with nothing said.
READ_AS_ANOTHER = {
    '{"small": 200}': "field small does not fit tinyint: 200",
    '{"small": -129}': "field small does not fit tinyint: -129",
    '{"at": 9223372036855}': "field at does not fit timestamp: 9223372036855",
    '{"at": -9223372036855}': "field at does not fit timestamp: -9223372036855",
    '{"at": 1764000000000000000}': "field at does not fit timestamp: 1764000000000000000",
    '{"at": "10:00"}': "field at does not fit timestamp: 10:00",
    '{"at" :\t" T9:30:00.5Z"}': "field at is not timestamp:  T9:30:00.5Z",
    "{'at': '7:05'}": "field at does not fit timestamp: 7:05",
    '{"\\u0061t": "10:00"}': "field at does not fit timestamp: 10:00",
    '{"at": "\\u0031\\u0030:00"}': "field at does not fit timestamp: 10:00",
    '{"at": "\\t10:00"}': "field at does not fit timestamp: \t10:00",
    '{"ratio": 1e400}': "field ratio does not fit double: ",
    '{"ratio": -1e400, "half": "-INF"}': "field ratio does not fit double: ",
    '{"half": 1e39}': "field half does not fit float: ",
    '{"day": "20260101"}': "field day does not fit date: 20260101",
    '{"day": "12"}': "field day does not fit date: 12",
    "{'day': '-12'}": "field day does not fit date: -12",
    '{"day": "\\u0031\uff12"}': "field day does not fit date: 1\uff12",
    '{"day": "202601"}': "field day does not fit date: 202601",
    '{"day": "2026-11-23 oops"}': "field day does not fit date: 2026-11-23 oops",
    '{"day": "2026-11-23T23:00:00Z"}': "field day does not fit date: 2026-11-23T23:00:00Z",
    '{"day": "2026-1-2 3"}': "field day does not fit date: 2026-1-2 3",
    '{"text": 0.1234567890123456789}': f"{ROUNDED} to 0",
    '{"text": 0.123456789012345681}': f"{ROUNDED} to 0",
    '{"text": 12345678901234567.89}': f"{ROUNDED} to 1",
    '{"text": {"b": [-999.99999999999999999999999]}}': ROUNDED,
    '{"text": 1e400}': f'{ROUNDED} to "Inf',
    '{"text": [123456789012345678e3]}': f"{ROUNDED} to [",
    '{"price": 1e100000000}': "it has a decimal with an exponent of five digits or more: {",
    '{"price": "1,0e9,99999999"}': "it has a decimal with an exponent of five digits or more: {",
    '{"price": "1\\u0065999999999"}': "it has a decimal with an exponent of five digits or more: {",
    '{"\\u0070rice": 1e999999999}': "it has a decimal with an exponent of five digits or more: {",
    '{"text": 1e-400}': ROUNDED,
    '{"text": 1e400, "ratio": "Infinity"}': ROUNDED,
    '{"text": [-1e400], "other": "-Infinity"}': ROUNDED,
    '{"text": 1e-400, "name": "\\u00e9"}': f"{ROUNDED} to 0.0",
    '{"text": "12", "text": 1e-400}': f"{ROUNDED} to 0.0",
    '{"text": 1.23456789e-320}': ROUNDED,
    '{"text": [120000000000000000.5], "other": 12}': ROUNDED,
    '{"text": {"a": -0.1234567890123456789}, "other": 0.12345678901234568}': ROUNDED,
    '{"text": 1.00000000000000000001, "other": 1e99999999999}': ROUNDED,
    '{"text": 1.00000000000000000001, "small": 1, "other": -1}': ROUNDED,
    '{"price" : "-1.5E-99999999"}': "it has a decimal with an exponent of five digits or more: {",
}
ITSELF = (
    *('{"day": "2026-11-23"}', '{"day": " 2026-1-2 "}', '{"day": "2026-01"}', '{"day": "2026"}', '{"day": null}'),
    *('{"day": "-0044-03-15"}', '{"day": "12026-01-02", "name": "20260101"}', '{"text": "20260101"}'),
    *('{"text": 1.10}', '{"text": 1e10}', '{"text": {"a": 1.5e3, "b": [1.20]}}', '{"text": 123456789012345678901234}'),
    *('{"text": "0.1234567890123456789"}', '{"text": "{\\"a\\": 0.1234567890123456789}"}', '{"text": "12e34567"}'),
    *('{"text": {"a": 1.10, "b": "0.12345678901234567890"}}', '{"text": 0.50, "name": 0.1234567890123456789}'),
    *(
        f'{{"text": {text}, "other": 0.30000000000000004, "geo": {{"a": 1}}}}'
        for text in (
            *('"10.0.0.1"', '"1.2.3"', '"release1.5"', '"It costs 5.50."', '"[10.0.0.1] GET /"', '"1.5"', "1e5", "0.0"),
            *(r'"{\"ip\":\"10.0.0.1\"}"', '{"a": 1.5e3, "b": [1.10, 1.5e-30]}', "0.30000000000000004"),
            *("1732354567.123456", '{"at": 1.732354567123456e+9}', "[12345678.901234567, 1e0]", "4.5e-07", "1.50e150"),
            *("0.0004567890123456789", "-0.00012345678901234567", "45e-8", "8.41e21", "8.2991717010566e+18", "0e-999"),
            *(
                '"8.2991717010566E18"',
                '"1.5E99999999999"',
                '"00.50"',
                r'"[1.5E-7,\u003c"',
                "1234567890123456.0",
                "[12345678901234567e3]",
            ),
        )
    ),
    '{"text": {"loss": "Infinity", "share": 0.1234567890123456}, "hash": "b59e1970"}',
    *('{"price": 1.5e1, "text": "Infinity"}', '{"price": 0.0e-9999}', '{"price": 5000e-3, "id": "1e99999"}'),
    *(
        '{"small": 127}',
        '{"small": -128}',
        '{"small": null}',
        '{"ratio": 1.7e308, "half": 3.4e38}',
        '{"ratio": 1e-400}',
    ),
    *(
        '{"at": 9223372036854}',
        '{"at": -9223372036854}',
        '{"at": 0}',
        '{"at": "2026"}',
        '{"at": "2026-11-23T10:00:00Z"}',
    ),
    *('{"ratio": "Infinity"}', '{"ratio": "-INF", "half": "+INF"}', '{"half": "NaN"}', '{"name": "10:00", "at": null}'),
    *('{"name": {"at": "10:00"}, "at": "2026-11-23"}', '{"name": "\\u00e4 \\"at\\": \\"10:00\\""}'),
)


NESTED = (
    "items ARRAY<STRUCT<id: INT NOT NULL, price: DECIMAL(12,2), small: TINYINT>>, times MAP<STRING, TIMESTAMP>, "
    "inner STRUCT<ratio: DOUBLE, deep: ARRAY<ARRAY<FLOAT>>, at: STRUCT<at: TIMESTAMP>>, at TIMESTAMP, "
    "days ARRAY<DATE>, texts MAP<STRING, STRING>"
)
ITEMS = "array<struct<id:int,price:decimal(12,2),small:tinyint>>"
INNER = "struct<ratio:double,deep:array<array<float>>,at:struct<at:timestamp>>"
READ_AS_ANOTHER_WITHIN = {
    '{"items": [{"id": 1, "price": 1.2}, {"id": 2, "price": 1.234}]}': f"field items does not fit {ITEMS}: [",
    '{"items": [null, {"id": 2, "price": 99999999999.99}]}': f"field items does not fit {ITEMS}: [",
    '{"items": [{"id": 1, "small": 200}]}': f'field items does not fit {ITEMS}: [{{"id":1,"small":200}}]',
    '{"items": [{"small": 1}]}': f'field items lacks what {ITEMS} requires: [{{"small":1}}]',
    '{"items": [{"id": 1}, {"id": null}]}': f"field items lacks what {ITEMS} requires: [",
    '{"times": {"a": "2026-11-23T10:00:00Z", "b": "10:00"}}': "field times does not fit map<string,timestamp>: {",
    '{"times": {"a": 9223372036855}}': 'field times does not fit map<string,timestamp>: {"a":9223372036855}',
    '{"inner": {"at": {"at":"T10:00"}}}': f"field inner does not fit {INNER}: ",
    '{"inner": {"ratio": 1e400}}': f"field inner does not fit {INNER}: ",
    '{"inner": {"deep": [[1, 2], null, [3, 1e39]]}}': f"field inner does not fit {INNER}: ",
    '{"at": "2026-11-23", "at": "10:00"}': "field at does not fit timestamp: ",
    '{"days": ["2026-11-23", "12"]}': 'field days does not fit array<date>: ["2026-11-23","12"]',
    '{"texts": {"a": "1", "b": 0.1234567890123456789}}': "field texts does not fit map<string,string>: a number that",
    '{"items": [{"id": 1, "price": 1e-100000000}]}': "it has a decimal with an exponent of five digits or more: {",
}
ITSELF_WITHIN = (
    '{"items": null, "times": null, "inner": null}',
    '{"items": [], "times": {}, "inner": {}}',
    '{"items": [null, {"id": 1}, {"id": 2, "price": 1.20, "small": -128}, {"id": 3, "price": null}]}',
    '{"times": {"10:00": "2026-11-23T10:00:00Z", "b": null, "c": 9223372036854}}',
    '{"inner": {"ratio": "Infinity", "deep": [["-INF", 3.4e38], [], null]}, "other": "10:00"}',
    '{"inner": {"at": {"at": "2026-11-23"}, "ratio": 1.5}, "at": 0, "other": ["T10", 1764000000000000000]}',
    '{"at": "10:00", "at": "2026-11-23"}',
    '{"texts": {"a": "sha256:59e19706d51d39f6", "b": "x,1e99999y", "c": "12345678-1234"}, "items": [{"id": 1}]}',
    '{"days": ["2026-11-23", null, "2026"], "texts": {"a": "12", "b": 1.50, "20260101": "1e99999"}}',
)


@pytest.mark.parametrize(
    ("schema", "another", "itself"),
    [(ANOTHER, READ_AS_ANOTHER, ITSELF), (NESTED, READ_AS_ANOTHER_WITHIN, ITSELF_WITHIN)],
    ids=["flat", "nested"],
)
def test_a_value_that_spark_would_read_as_another_one_does_not_fit(
    spark: Any, schema: str, another: Mapping[str, str], itself: Sequence[str]
) -> None:
    frame = kafka_frame(spark, *another, *itself).withColumn("headers", F.lit(None).cast(HEADERS_TYPE))
    source = KafkaSource("in", schema=schema, offset_column="place")
    fitting = sorted(row["place"] - 40 for row in source.fitted(frame, leave_out_bad=True).select("place").collect())
    assert fitting == list(range(len(another), len(another) + len(itself)))
    reasons = [bytes(row["headers"][-1]["value"]).decode() for row in source.misfits(frame).collect()]
    for reason, expected in zip(reasons, another.values(), strict=True):
        assert reason.startswith(expected)


def fitting(spark: Any, schema: str, *values: str) -> list[int]:
    source = KafkaSource("in", schema=schema, offset_column="place")
    rows = source.fitted(kafka_frame(spark, *values), leave_out_bad=True).select("place").collect()
    return sorted(row["place"] - 40 for row in rows)


def of_numbers(count: int) -> str:
    chance = random.Random(20261123)
    return f'{{"texts": {[1 + chance.random() for _ in range(100 * count)]}}}'


def of_digits(count: int) -> str:
    return f'{{"texts": ["1.5"], "long": 0.12345678901234567, "digits": "{"1" * 2_000 * count}"}}'


@pytest.mark.parametrize("schema", ["texts STRING", "texts ARRAY<STRING>"])
@pytest.mark.parametrize("record", [of_numbers, of_digits])
def test_a_record_of_many_numbers_costs_what_its_length_does(
    spark: Any, record: Callable[[int], str], schema: str
) -> None:
    short, long = [record(10)] * 10, record(100)
    fitting(spark, schema, *short)

    def used(*texts: str) -> float:
        before = cpu_seconds.used()
        assert fitting(spark, schema, *texts) == list(range(len(texts)))
        return cpu_seconds.used() - before

    assert used(long) < 4 * used(*short), "with the square of its length it takes ten times as much"


#: What a long text may be made of, as it stands in quotes.
UNITS = (
    *(" ", r"\n", "0", "1", "1,", ",", ".", "-", "-1", "e", "E+", ":", "T", "1:", "[", "{", "}", "a", "ü", "'"),
    *(r"\u0020", r"\u0030", r"\u0031", r"\u002e", r"\u002d", r"\u0065", r"\\", r"\""),
    *("1.5,", "[1.5,", "1e5:", "2026-11-23", "Infinity"),
)
FIELDS = "at TIMESTAMP, day DATE, price DECIMAL(12,2), text STRING"


@pytest.mark.parametrize(
    ("schema", "before", "after"),
    [(FIELDS, "{", "}"), (f"inner STRUCT<{FIELDS.replace(' ', ': ').replace(',: ', ', ')}>", '{"inner": {', "}}")],
    ids=["flat", "nested"],
)
def test_a_text_of_any_length_is_judged(spark: Any, schema: str, before: str, after: str) -> None:
    texts = [
        (f'{before}"{name}": "', unit, f'"{after}') for unit in UNITS for name in ("at", "day", "price", "text", "note")
    ]
    texts += [(f'{before}"text": [', unit, f"1]{after}") for unit in UNITS]
    texts += [(f'{before}"price": 1', unit, after) for unit in UNITS]
    # Of blanks 2,000 once took all of a thread's stack.
    value = F.encode(F.concat("start", F.repeat("unit", F.lit(4_000)), "end"), "UTF-8")
    records = spark.createDataFrame(texts, "start STRING, unit STRING, end STRING").select(
        F.lit(None).cast("binary").alias("key"),
        value.alias("value"),
        F.lit("in").alias("topic"),
        F.lit(0).alias("partition"),
        F.monotonically_increasing_id().alias("offset"),
        F.lit(None).cast(HEADERS_TYPE).alias("headers"),
    )
    misfits = KafkaSource("in", schema=schema).misfits(records).count()
    assert 0 < misfits <= len(texts) - 2 * len(UNITS), "a STRING fits, and what the schema does not name"


def test_what_is_nested_comes_as_it_was_written(spark: Any) -> None:
    text = '{"items": [{"id": 7, "price": 2.50, "small": -3}], "times": {"a": "2026-11-23T10:00:00Z"}}'
    (row,) = parsed(spark, text, schema=NESTED)
    assert [item.asDict() for item in row["items"]] == [{"id": 7, "price": Decimal("2.50"), "small": -3}]
    assert row["times"] == {
        "a": datetime.datetime(2026, 11, 23, 10, tzinfo=datetime.UTC).astimezone().replace(tzinfo=None)
    }


def test_a_schema_that_is_no_ddl_is_refused(spark: Any) -> None:
    with pytest.raises(RefusedError, match="'id NONSENSE': 'NONSENSE' is not a type"):
        parsed(spark, "{}", schema="id NONSENSE")


@pytest.mark.parametrize(
    ("name", "value"), [("failOnDataLoss", "maybe"), ("kafka.isolation.level", "read_uncommitted")]
)
def test_an_option_that_would_lose_records_is_refused(name: str, value: str) -> None:
    with pytest.raises(SettingRefusedError, match=f"option {name} of KafkaSource is '{value}'"):
        KafkaSource("in", options={name: value}).spark_options({"bootstrap.servers": "a:1"})


def encoded(spark: Any, sink: KafkaSink, rows: list[tuple[Any, ...]], schema: str) -> list[tuple[Any, Any]]:
    """Return keys and values as bytes; text goes to the tasks as strings, and is UTF-8 there."""
    frame = encode(sink, spark.createDataFrame(rows, schema)).selectExpr("CAST(key AS BINARY)", "CAST(value AS BINARY)")
    return [(row["key"], row["value"]) for row in frame.collect()]


def test_the_sink_writes_every_column_as_json_with_nulls_and_exact_decimals(spark: Any) -> None:
    rows = encoded(
        spark, KafkaSink("out", key="k"), [("ü", Decimal("2500315.63"), None)], "k STRING, paid DECIMAL(20,2), x INT"
    )
    assert rows == [("ü".encode(), '{"k":"ü","paid":2500315.63,"x":null}'.encode())]


def test_keys_of_other_types_are_written_as_text_and_null_keys_as_none(spark: Any) -> None:
    rows = encoded(spark, KafkaSink("out", key="k"), [(5,), (None,)], "k INT")
    assert [key for key, _ in rows] == [b"5", None]


def test_plain_key_and_value_columns_are_written_as_they_are(spark: Any) -> None:
    data = [(b"\x00\xff", b""), (None, None)]
    assert encoded(spark, KafkaSink("out"), data, "key BINARY, value BINARY") == data
    assert encoded(spark, KafkaSink("out"), [("v",)], "value STRING") == [(None, b"v")]


def test_a_key_column_that_is_not_there_is_refused(spark: Any) -> None:
    with pytest.raises(RefusedError, match=r"key='id'.*has the columns a, b"):
        encode(KafkaSink("out", key="id"), spark.createDataFrame([(1, 2)], "a INT, b INT"))


def test_the_digest_tells_null_from_empty_and_key_from_value(spark: Any) -> None:
    data = [(None, b"a"), (b"a", None), (b"", b"a"), (b"a", b""), (None, None), (b"", b"")]
    frame = encode(KafkaSink("out"), spark.createDataFrame(data, "key BINARY, value BINARY"))
    assert len({row["digest"] for row in frame.collect()}) == len(data)
