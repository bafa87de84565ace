"""What a new version may change, aspect by aspect: two descriptions are compared, nothing runs."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_exactlyonce.checkpoint import plan as plans
from airflow_provider_exactlyonce.checkpoint.compatibility import compare
from airflow_provider_exactlyonce.checkpoint.plan import OperatorPlan, QueryPlan, SourcePlan, WatermarkPlan
from airflow_provider_exactlyonce.checkpoint.state import StatefulOperator
from airflow_provider_exactlyonce.checkpoint.versions import Verdict, Version

COMPATIBLE, NOTE, INCOMPATIBLE = Verdict


def struct(*columns: str) -> str:
    """Return Spark's JSON of columns, each ``name type``, nullable unless it ends with ``!``."""
    pairs = [column.split() for column in columns]
    fields = [
        {"name": name, "type": kind.rstrip("!"), "nullable": not kind.endswith("!"), "metadata": {}}
        for name, kind in pairs
    ]
    return json.dumps({"type": "struct", "fields": fields})


AGGREGATE = OperatorPlan(kind="aggregate", facts={"group by": ("in.k", "in.j"), "functions": ("sum(in.a)", "count(1)")})
JOIN = OperatorPlan(
    kind="stream-stream join",
    facts={
        "type": ("INNER",),
        "on": ("(in.k = other.k)",),
        "where": ("(in.t < other.t)",),
        "left columns": ("in.k", "in.t"),
        "right columns": ("other.k", "other.t"),
    },
)
PARSING = replace(AGGREGATE, facts={**AGGREGATE.facts, "group by": ("jsontostructs(in.k, struct<x:date>)",)})
SAVE = StatefulOperator(
    id=0,
    name="stateStoreSave",
    stores=("default",),
    partitions=4,
    schemas={"default": (struct("k string", "j string"), struct("sum long", "count long!"))},
)
PLAN = QueryPlan(
    sources=(SourcePlan(topic="in", columns=("k string", "j string", "a bigint")),),
    operators=(AGGREGATE,),
    watermarks=(WatermarkPlan(column="in.t", delay_milliseconds=10_000),),
    filters=("(in.a > 0)",),
    sink={"kind": ("kafka",), "topics": ("out",), "key": ("k",)},
    options=True,
)
OLD = Version(
    pipeline="p",
    spark_version="4.2.0",
    job_hash="abc",
    output_mode="update",
    topics=("in",),
    plan=PLAN,
    operators=(SAVE,),
    state_backend="rocksdb",
    result_schema=struct("k string", "s long"),
)


def with_plan(**changes: Any) -> Version:
    return replace(OLD, plan=replace(PLAN, **changes))


def with_facts(operator: OperatorPlan, **facts: tuple[str, ...]) -> Version:
    named = {name.replace("_", " "): values for name, values in facts.items()}
    return with_plan(operators=(replace(operator, facts={**operator.facts, **named}),))


def with_schemas(key: str, value: str) -> Version:
    return replace(OLD, operators=(replace(SAVE, schemas={"default": (key, value)}),))


KEY, VALUE = SAVE.schemas["default"]
BARE = replace(PLAN, operators=(), watermarks=())

ASPECTS: Mapping[str, tuple[Version, Version, Verdict, str]] = {
    "pipeline": (OLD, replace(OLD, pipeline="q"), INCOMPATIBLE, "pipeline"),
    "newer Spark": (OLD, replace(OLD, spark_version="4.3.1"), NOTE, "Spark"),
    "newer Spark of ten": (replace(OLD, spark_version="4.9.0"), replace(OLD, spark_version="4.10.0"), NOTE, "Spark"),
    "older Spark": (OLD, replace(OLD, spark_version="4.1.2"), INCOMPATIBLE, "Spark"),
    "older patch": (replace(OLD, spark_version="4.2.1-preview"), OLD, NOTE, "Spark"),
    "unknown Spark": (replace(OLD, spark_version=None), OLD, NOTE, "Spark"),
    "backend": (OLD, replace(OLD, state_backend="hashmap"), INCOMPATIBLE, "state backend"),
    "partitions": (OLD, replace(OLD, partitions=7), NOTE, "state partitions"),
    "source added": (OLD, replace(OLD, topics=("in", "more")), INCOMPATIBLE, "sources"),
    "source removed": (replace(OLD, topics=("in", "more")), OLD, INCOMPATIBLE, "sources"),
    "source renamed": (OLD, replace(OLD, topics=("new",)), INCOMPATIBLE, "sources"),
    "sources swapped": (
        replace(OLD, topics=("in", "more")),
        replace(OLD, topics=("more", "in")),
        INCOMPATIBLE,
        "sources",
    ),
    "source column added": (
        OLD,
        with_plan(sources=(SourcePlan(topic="in", columns=(*PLAN.sources[0].columns, "x int")),)),
        COMPATIBLE,
        "columns of in",
    ),
    "source column's type": (
        OLD,
        with_plan(sources=(SourcePlan(topic="in", columns=("k string", "j string", "a decimal(12,2)")),)),
        NOTE,
        "columns of in",
    ),
    "filter": (OLD, with_plan(filters=("(in.a > 1)",)), COMPATIBLE, "filters"),
    "watermark longer": (
        OLD,
        with_plan(watermarks=(WatermarkPlan(column="in.t", delay_milliseconds=1),)),
        NOTE,
        "watermark",
    ),
    "watermark shorter": (
        OLD,
        with_plan(watermarks=(WatermarkPlan(column="in.t", delay_milliseconds=99_999),)),
        NOTE,
        "watermark",
    ),
    "watermark removed": (OLD, with_plan(watermarks=()), NOTE, "watermark"),
    "watermark added": (with_plan(watermarks=()), OLD, NOTE, "watermark"),
    "watermark moved": (
        OLD,
        with_plan(watermarks=(WatermarkPlan(column="in.u", delay_milliseconds=10_000),)),
        INCOMPATIBLE,
        "watermark",
    ),
    "watermark without state": (
        replace(OLD, plan=BARE, operators=()),
        replace(OLD, plan=replace(BARE, watermarks=PLAN.watermarks), operators=()),
        COMPATIBLE,
        "watermark",
    ),
    "operator added": (replace(OLD, plan=BARE, operators=()), OLD, INCOMPATIBLE, "stateful operators"),
    "operator removed": (OLD, replace(OLD, plan=BARE, operators=()), INCOMPATIBLE, "stateful operators"),
    "operator of another kind": (
        OLD,
        replace(OLD, operators=(replace(SAVE, name="dedupe"),)),
        INCOMPATIBLE,
        "stateful operators",
    ),
    "operators swapped": (
        replace(OLD, operators=(SAVE, replace(SAVE, id=1, name="dedupe"))),
        replace(OLD, operators=(replace(SAVE, name="dedupe"), replace(SAVE, id=1))),
        INCOMPATIBLE,
        "stateful operators",
    ),
    "sum to max": (
        OLD,
        with_facts(AGGREGATE, functions=("max(in.a)", "count(1)")),
        INCOMPATIBLE,
        "aggregate: functions",
    ),
    "aggregates swapped": (
        OLD,
        with_facts(AGGREGATE, functions=("count(1)", "sum(in.a)")),
        INCOMPATIBLE,
        "aggregate: functions",
    ),
    "keys": (OLD, with_facts(AGGREGATE, group_by=("in.k", "in.x")), INCOMPATIBLE, "aggregate: group by"),
    "keys swapped": (OLD, with_facts(AGGREGATE, group_by=("in.j", "in.k")), INCOMPATIBLE, "aggregate: group by"),
    "kind of join": (
        with_plan(operators=(JOIN,)),
        with_facts(JOIN, type=("LEFT OUTER",)),
        INCOMPATIBLE,
        "stream-stream join: type",
    ),
    "join keys": (
        with_plan(operators=(JOIN,)),
        with_facts(JOIN, on=("(in.j = other.j)",)),
        INCOMPATIBLE,
        "stream-stream join: on",
    ),
    "condition of an inner join": (
        with_plan(operators=(JOIN,)),
        with_facts(JOIN, where=()),
        NOTE,
        "stream-stream join: where",
    ),
    "condition of an outer join": (
        with_facts(JOIN, type=("LEFT OUTER",)),
        with_facts(JOIN, type=("LEFT OUTER",), where=()),
        INCOMPATIBLE,
        "stream-stream join: where",
    ),
    "columns of a joined side": (
        with_plan(operators=(JOIN,)),
        with_facts(JOIN, left_columns=("in.t", "in.k")),
        INCOMPATIBLE,
        "stream-stream join: left columns",
    ),
    "key's type": (
        OLD,
        with_schemas(struct("k long", "j string"), VALUE),
        INCOMPATIBLE,
        "stateStoreSave, default: key",
    ),
    "key that may be null now": (
        with_schemas(struct("k string!", "j string"), VALUE),
        OLD,
        INCOMPATIBLE,
        "stateStoreSave, default: key",
    ),
    "value added": (
        OLD,
        with_schemas(KEY, struct("sum long", "count long!", "max long")),
        INCOMPATIBLE,
        "stateStoreSave, default: value",
    ),
    "mode refused by Spark": (
        OLD,
        replace(OLD, output_mode="append", refused="no watermark", operators=None),
        INCOMPATIBLE,
        "output mode",
    ),
    "plan refused by Spark": (OLD, replace(OLD, refused="no", operators=None), INCOMPATIBLE, "plan"),
    "mode": (OLD, replace(OLD, output_mode="append"), NOTE, "output mode"),
    "mode to complete with a watermark": (OLD, replace(OLD, output_mode="complete"), INCOMPATIBLE, "output mode"),
    "mode to complete": (
        with_plan(watermarks=()),
        replace(with_plan(watermarks=()), output_mode="complete"),
        NOTE,
        "output mode",
    ),
    "sink's topic": (OLD, with_plan(sink={**PLAN.sink, "topics": ("elsewhere",)}), NOTE, "sink: topics"),
    "sink's key": (OLD, with_plan(sink={"kind": ("kafka",), "topics": ("out",)}), NOTE, "sink: key"),
    "output columns": (OLD, replace(OLD, result_schema=struct("k string", "s double")), NOTE, "output columns"),
    "user functions": (
        with_plan(user_functions=("f",)),
        replace(with_plan(user_functions=("f",)), job_hash="def"),
        NOTE,
        "user functions",
    ),
    "a parser's options": (
        with_facts(AGGREGATE, group_by=("jsontostructs(in.k, struct<x:date>, options(mode=FAILFAST))",)),
        with_facts(AGGREGATE, group_by=("jsontostructs(in.k, struct<x:date>)",)),
        INCOMPATIBLE,
        "aggregate: group by",
    ),
    "a parser's options, of release 0.1.0": (
        replace(OLD, plan=replace(PLAN, operators=(PARSING,), options=False)),
        with_facts(PARSING, group_by=("jsontostructs(in.k, struct<x:date>, options(mode=FAILFAST, sep=\\))",)),
        NOTE,
        "options of parsers",
    ),
    "no options now, of release 0.1.0": (
        replace(OLD, plan=replace(PLAN, operators=(PARSING,), options=False)),
        with_plan(operators=(PARSING,)),
        NOTE,
        "options of parsers",
    ),
    "no description": (replace(OLD, plan=None), OLD, NOTE, "plan"),
}


@pytest.mark.parametrize("name", ASPECTS)
def test_each_aspect_has_its_verdict_and_a_reason(name: str) -> None:
    old, new, verdict, aspect = ASPECTS[name]
    report = compare(old, new)
    findings = [finding for finding in report.findings if finding.aspect == aspect]
    assert [finding.verdict for finding in findings] == [verdict], report.findings
    assert findings[0].reason
    assert (findings[0].way_out is not None) >= (verdict is INCOMPATIBLE)
    assert report.verdict is verdict, "nothing else has changed for the worse"
    assert aspect not in report.unchanged


def test_names_of_keys_and_values_do_not_matter_and_metadata_neither() -> None:
    marked = json.loads(struct("customer string", "j string!"))
    marked["fields"][0]["metadata"] = {"spark.watermarkDelayMs": 10_000}
    report = compare(OLD, with_schemas(json.dumps(marked), struct("s long", "n long!")))
    assert report.findings == ()


def transform(*variables: tuple[str, str], value: str = struct("n long"), **properties: Any) -> Version:
    operator = StatefulOperator(
        id=0,
        name="transformWithStateInPySparkExec",
        stores=("default",),
        partitions=4,
        schemas={f"default/{name}": (struct("k string"), value) for name, _ in variables},
        properties={
            "timeMode": "None",
            "stateVariables": [{"stateName": name, "stateVariableType": kind} for name, kind in variables],
            **properties,
        },
    )
    return replace(OLD, plan=replace(PLAN, operators=()), operators=(operator,))


COUNT = ("count", "ValueState")


@pytest.mark.parametrize(
    ("old", "new", "verdict"),
    [
        (transform(COUNT), transform(COUNT, ("other", "ListState")), NOTE),
        (transform(COUNT, ("other", "ListState")), transform(COUNT), NOTE),
        (transform(COUNT), transform(("count", "ListState")), INCOMPATIBLE),
        (transform(COUNT), transform(COUNT, timeMode="EventTime"), INCOMPATIBLE),
        (transform(COUNT), transform(COUNT, value=struct("n long", "m long")), INCOMPATIBLE),
    ],
    ids=["added", "removed", "kind", "time mode", "column added"],
)
def test_variables_of_a_processor_may_come_and_go_but_not_change(old: Version, new: Version, verdict: Verdict) -> None:
    assert compare(old, new).verdict is verdict


@pytest.mark.parametrize(
    ("value", "verdict"),
    [
        (struct("n long", "m long"), NOTE),
        (struct("n double"), NOTE),
        (struct("n string"), INCOMPATIBLE),
        (struct("n integer"), INCOMPATIBLE),
    ],
)
def test_avro_reads_values_with_other_columns_and_wider_types(value: str, verdict: Verdict) -> None:
    old = replace(transform(COUNT), encoding="avro")
    assert compare(old, transform(COUNT, value=value)).verdict is verdict


def test_avro_reads_what_is_nested_too() -> None:
    def nested(*columns: str) -> str:
        inner = {"name": "value", "type": json.loads(struct(*columns)), "nullable": True, "metadata": {}}
        return json.dumps({"type": "struct", "fields": [inner]})

    old = replace(transform(COUNT, value=nested("n long")), encoding="avro")
    assert compare(old, transform(COUNT, value=nested("n long", "m long"))).verdict is NOTE
    report = compare(old, transform(COUNT, value=nested("n string")))
    assert report.verdict is INCOMPATIBLE
    assert report.findings[0].aspect.endswith(", value.n")


def test_avro_reads_no_single_value_as_one_with_parts_nor_the_other_way_round() -> None:
    def column(kind: object) -> str:
        return json.dumps({"type": "struct", "fields": [{"name": "n", "type": kind, "nullable": True, "metadata": {}}]})

    array = {"type": "array", "elementType": "integer", "containsNull": True}
    for single, parted in itertools.product(
        ("integer", "long", "float", "string"), (array, json.loads(struct("a long")))
    ):
        for old, new in ((single, parted), (parted, single)):
            before = replace(transform(COUNT, value=column(old)), encoding="avro")
            report = compare(before, transform(COUNT, value=column(new)))
            assert report.verdict is INCOMPATIBLE
            assert report.findings[0].reason == "Avro can't read the old type as the new one"


def test_without_a_description_it_is_never_simply_compatible_and_says_what_could_not_be_compared() -> None:
    report = compare(replace(OLD, plan=None), OLD)
    assert report.verdict is NOTE
    assert "aggregate functions" in report.findings[0].reason
    assert not {"what state means", "watermark", "sink"} & set(report.unchanged)


def test_release_0_1_0_and_a_job_without_parsers_are_simply_compatible() -> None:
    report = compare(replace(OLD, plan=replace(PLAN, options=False)), OLD)
    assert report.verdict is COMPATIBLE
    assert "options of parsers" in report.unchanged


def test_the_worst_comes_first() -> None:
    new = replace(with_plan(filters=()), spark_version="4.3.0", pipeline="q")
    assert [finding.verdict for finding in compare(OLD, new).findings] == [INCOMPATIBLE, NOTE, COMPATIBLE]


texts = st.text("abk.() ", min_size=1, max_size=8)
lists = st.lists(texts, max_size=3).map(tuple)
columns = st.lists(
    st.tuples(texts.map(lambda text: text.replace(" ", "_")), st.sampled_from(["int", "string"])), max_size=3
)
operators = st.builds(OperatorPlan, kind=texts, facts=st.dictionaries(texts, lists, max_size=3))
described = st.builds(
    QueryPlan,
    sources=st.lists(
        st.builds(SourcePlan, topic=texts, columns=columns.map(lambda of: tuple(" ".join(column) for column in of))),
        max_size=2,
    ).map(tuple),
    operators=st.lists(operators, max_size=2).map(tuple),
    watermarks=st.lists(st.builds(WatermarkPlan, column=texts, delay_milliseconds=st.integers(0)), max_size=2).map(
        tuple
    ),
    filters=lists,
    user_functions=lists,
    sink=st.dictionaries(texts, lists, max_size=2),
)
versions = st.builds(
    Version,
    pipeline=texts,
    spark_version=st.just("4.2.0"),
    job_hash=st.just("abc"),
    output_mode=st.sampled_from(["append", "update", "complete"]),
    topics=lists,
    plan=described,
    operators=st.lists(
        st.sampled_from([SAVE, replace(SAVE, name="dedupe"), *(transform(COUNT).operators or ())]), max_size=3
    ).map(tuple),
    state_backend=st.sampled_from([None, "rocksdb", "hashmap"]),
    result_schema=st.sampled_from([None, KEY, VALUE]),
)


@given(versions)
def test_every_version_is_compatible_with_itself(version: Version) -> None:
    report = compare(version, version)
    assert report.findings == ()
    assert report.verdict is COMPATIBLE


@given(described)
def test_a_description_survives_its_json(plan: QueryPlan) -> None:
    assert plans.decode(json.loads(json.dumps(plans.encode(plan)))) == plan


def test_a_newer_releases_description_is_taken_as_none() -> None:
    assert plans.decode({**plans.encode(PLAN), "schema": plans.SCHEMA + 1}) is None


@given(versions, versions)
def test_a_report_is_as_bad_as_its_worst_finding_and_every_incompatible_one_has_a_way_out(
    old: Version, new: Version
) -> None:
    report = compare(old, new)
    worst = max((list(Verdict).index(finding.verdict) for finding in report.findings), default=0)
    assert report.verdict is list(Verdict)[worst]
    assert all(finding.way_out for finding in report.findings if finding.verdict is INCOMPATIBLE)
    assert json.loads(json.dumps(report.document()))["verdict"] == report.verdict.value


@pytest.mark.parametrize(
    ("before", "after", "read", "verdict"),
    [
        ("in", "in,more", ("in",), NOTE),
        ("in", "/in|more.*/", ("in",), NOTE),
        ("/i[.]n.*/", "/i[.].*/", ("i.n", "i.n2"), NOTE),
        ("/i.*/", "in,ix", ("in", "ix"), NOTE),
        ("in,more", "in", ("in", "more"), INCOMPATIBLE),
        ("/i.*/", "in", ("in", "ix"), INCOMPATIBLE),
        ("/i.*/", "/in/", (), INCOMPATIBLE),
        ("in", "/more.*/", ("in",), INCOMPATIBLE),
    ],
)
def test_a_source_may_read_more_topics_with_the_same_state_and_none_less(
    before: str, after: str, read: tuple[str, ...], verdict: Verdict
) -> None:
    def version(topics: str) -> Version:
        facts = {"group by": (f"{topics}.k", "begin.in.x"), "functions": (f"sum({topics}.a)",)}
        plan = replace(
            PLAN,
            sources=(SourcePlan(topic=topics, columns=("k string",)),),
            operators=(OperatorPlan(kind="aggregate", facts=facts),),
            watermarks=(WatermarkPlan(column=f"{topics}.t", delay_milliseconds=1),),
            filters=(f"({topics}.a > 0)",),
        )
        return replace(OLD, topics=(topics,), plan=plan)

    report = compare(replace(version(before), read=read), version(after))
    assert report.verdict is verdict
    if verdict is NOTE:
        assert [finding.aspect for finding in report.findings] == ["sources"]
