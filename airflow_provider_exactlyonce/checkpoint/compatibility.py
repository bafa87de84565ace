"""The changes with which a new version of a pipeline can or can't go on from a savepoint of the old version.

Compares two descriptions; reads nothing, runs nothing. Spark itself compares only the types of a state's keys and
values, by position: it accepts another meaning with equal types.
"""

from __future__ import annotations

import itertools
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Final

from airflow_provider_exactlyonce.checkpoint import plan as plans
from airflow_provider_exactlyonce.checkpoint.manifest import Savepoint, backend_of
from airflow_provider_exactlyonce.checkpoint.plan import QueryPlan
from airflow_provider_exactlyonce.checkpoint.state_compatibility import meaning, operators, schemas, type_name
from airflow_provider_exactlyonce.checkpoint.versions import (
    BUILD_ANEW,
    ORDER,
    CompatibilityReport,
    Version,
    VersionChange,
    compatible,
    incompatible,
    note,
)
from airflow_provider_exactlyonce.ledger.source_topics import SourceTopics

#: In names of functions that parse, or write what can be parsed: ``jsontostructs``, ``catalystdatatoavro``.
_PARSERS: Final = "structs|datato"
_ENCODING: Final = "spark.sql.streaming.stateStore.encodingFormat"
_PROVIDER: Final = "spark.sql.streaming.stateStore.providerClass"


def of_savepoint(savepoint: Savepoint, conf: Mapping[str, str]) -> Version:
    """Return the version that a savepoint was taken of, as far as its manifest describes it.

    :param conf: the settings that its checkpoint fixes
    """
    return Version(
        pipeline=savepoint.pipeline,
        spark_version=savepoint.spark_version,
        job_hash=savepoint.job_hash,
        output_mode=savepoint.output_mode,
        topics=tuple(source.topic for source in savepoint.plan.sources) if savepoint.plan else tuple(savepoint.source),
        read=tuple(savepoint.source),
        plan=savepoint.plan,
        operators=savepoint.operators,
        state_backend=backend_of(conf, ()) if _PROVIDER in conf else None,
        encoding=conf.get(_ENCODING, "unsaferow"),
        result_schema=savepoint.result_schema,
    )


def compare(old: Version, new: Version) -> CompatibilityReport:
    """Tell whether a new version can go on from the state of an old one."""
    if old.plan is not None and not old.plan.options and new.plan is not None:
        new = replace(new, plan=_without_options(new.plan))
    if _read_on(old, new):
        old = replace(old, plan=_renamed(old, new))
    findings: list[VersionChange] = []
    unchanged = []
    for aspect, check in _CHECKS:
        differences = check(old, new)
        if differences is None:
            continue
        changes = list(differences)
        findings += changes
        if not changes:
            unchanged.append(aspect)
    findings.sort(key=lambda finding: -ORDER.index(finding.verdict))
    return CompatibilityReport(findings=tuple(findings), unchanged=tuple(unchanged))


def _renamed(old: Version, new: Version) -> QueryPlan | None:
    """Return the old plan with each source's columns under the name that they have in the new one."""
    if old.plan is None:
        return None
    body = plans.encode(old.plan)
    columns_json = json.dumps({name: body[name] for name in ("operators", "watermarks", "filters")})
    for before, after in zip(old.topics, new.topics, strict=True):
        column_prefix = rf"(?<![\w.,/-]){re.escape(json.dumps(before)[1:-1])}\."
        columns_json = re.sub(column_prefix, f"{json.dumps(after)[1:-1]}.".replace("\\", r"\\"), columns_json)
    names = dict(zip(old.topics, new.topics, strict=True))
    sources = [{**source, "topic": names.get(source["topic"], source["topic"])} for source in body["sources"]]
    return plans.decode({**body, **json.loads(columns_json), "sources": sources})


def _without_options(plan: QueryPlan) -> QueryPlan | None:
    """Return a plan as release 0.1.0 described it, without options; marked as such when it has a parser."""
    bare = re.sub(r", options\([^()]*\)", "", json.dumps(plans.encode(plan)))
    return plans.decode({**json.loads(bare), "options": re.search(_PARSERS, bare) is None})


def _pipeline(old: Version, new: Version) -> Iterator[VersionChange]:
    if old.pipeline != new.pipeline:
        reason = "a savepoint belongs to one pipeline: its ledger is named by it"
        way_out = f"check against a savepoint of {new.pipeline}, or give the job the name {old.pipeline} again"
        yield incompatible("pipeline", old.pipeline, new.pipeline, reason, way_out)


def _unknown_plan(old: Version, new: Version) -> list[VersionChange] | None:
    if old.plan is not None:
        return None
    reason = (
        "without a description of what the old version computes these could not be compared: aggregate functions, "
        "columns that they and the keys are made of, windows, watermarks, join conditions, sinks"
    )
    way_out = "start the old version with this release, take a savepoint, and check against that"
    return [note("plan", "not known", "known", reason, way_out)]


def _options(old: QueryPlan, new: QueryPlan) -> Iterator[VersionChange]:
    if not old.options and not new.options:
        reason = "the savepoint does not say with which options the old version parses: make sure they are the same"
        way_out = "start the old version with this release, take a savepoint, and check against that"
        yield note("options of parsers", "not known", "known", reason, way_out)


def _refused(old: Version, new: Version) -> list[VersionChange] | None:
    if new.refused is None:
        return None
    aspect = "output mode" if old.output_mode not in (None, new.output_mode) else "plan"
    reason, way_out = f"Spark does not run it: {new.refused}", "change the job as Spark says"
    return [incompatible(aspect, old.output_mode, new.output_mode, reason, way_out)]


def _spark(old: Version, new: Version) -> Iterator[VersionChange]:
    if old.spark_version is None or new.spark_version is None:
        yield note("Spark", old.spark_version, new.spark_version, "the savepoint does not say which Spark ran it")
        return
    before, after = _numbers(old.spark_version), _numbers(new.spark_version)
    if after < before and after[:2] != before[:2]:
        reason = "an older Spark may not read what a newer one wrote, and does not always notice"
        way_out = f"run it with Spark {old.spark_version} or newer; or {BUILD_ANEW}"
        yield incompatible("Spark", old.spark_version, new.spark_version, reason, way_out)
    elif after != before:
        reason = (
            "a newer Spark reads older checkpoints; what it plans for the same job may differ"
            if after > before
            else "an older patch release; it reads what the newer one wrote unless its release notes say otherwise"
        )
        yield note("Spark", old.spark_version, new.spark_version, reason, "try it on a copy: exactlyonce restore --to")


def _numbers(version: str) -> tuple[int, ...]:
    leading = (itertools.takewhile(str.isdecimal, part) for part in version.split("."))
    return tuple(int("".join(digits) or 0) for digits in leading)[:3]


def _backend(old: Version, new: Version) -> Iterator[VersionChange]:
    if None not in (old.state_backend, new.state_backend) and old.state_backend != new.state_backend:
        reason = "a lineage keeps its backend; the start of this job would be refused"
        way_out = f"state_backend=StateBackend.{old.state_backend}() as before, or a new name and a new home"
        yield incompatible("state backend", old.state_backend, new.state_backend, reason, way_out)
    if None not in (old.encoding, new.encoding) and old.encoding != new.encoding:
        reason = "a lineage keeps the encoding that it began with; the start of this job would be refused"
        way_out = "StateBackend.rocksdb() without avro=True as before, or a new name and a new home"
        yield incompatible("state encoding", old.encoding, new.encoding, reason, way_out)


def _partitions(old: Version, new: Version) -> list[VersionChange] | None:
    before = max((operator.partitions for operator in old.operators or ()), default=None)
    if new.partitions is None or before is None:
        return None
    if new.partitions == before:
        return []
    reason = f"Spark goes on with the {before} state partitions of the checkpoint, whatever the setting says"
    return [note("state partitions", before, new.partitions, reason, "exactlyonce rescale changes them")]


def _sources(old: Version, new: Version) -> Iterator[VersionChange]:
    before, after = Counter(old.topics), Counter(new.topics)
    if old.topics == new.topics or (old.plan is None and _names(old) == _names(new)):
        return
    if _read_on(old, new):
        reason = (
            "topics that a source reads anew are read from their beginning; Spark stops at one whose first records "
            "are gone"
        )
        yield note("sources", old.topics, new.topics, reason)
        return
    if before == after:
        reason = "Spark knows sources by their order in the plan, and would give each the offsets of another"
        yield incompatible("sources", old.topics, new.topics, reason, "use them in the old order")
        return
    added, removed = tuple((after - before).elements()), tuple((before - after).elements())
    if added and removed and len(old.topics) == len(new.topics):
        reason = "the checkpoint has offsets of topics that are read no more: Spark misses their partitions, and stops"
    elif added and removed:
        reason = "the checkpoint has offsets of other sources"
    elif added:
        reason = f"the checkpoint has offsets of {len(old.topics)} sources, and Spark refuses another number of them"
    else:
        reason = f"the checkpoint has offsets of {len(old.topics)} sources, and Spark refuses fewer"
    yield incompatible("sources", old.topics, new.topics, reason)


def _names(version: Version) -> list[str]:
    return sorted(topic for text in version.topics for topic in SourceTopics.parse(text).names)


def _read_on(old: Version, new: Version) -> bool:
    """Tell whether each source of the old version is in the new one, which reads all of its topics on."""
    if len(old.topics) != len(new.topics):
        return False
    for before, after in zip(map(SourceTopics.parse, old.topics), map(SourceTopics.parse, new.topics), strict=True):
        read = before.among(old.read)
        if before != after and not (read and all(topic in after for topic in read)):
            return False
    return True


def _source_columns(old: QueryPlan, new: QueryPlan) -> Iterator[VersionChange]:
    for before, after in zip(old.sources, new.sources, strict=False):
        if before.topic != after.topic or before.columns == after.columns:
            continue
        old_types, new_types = (dict(column.split(" ", 1) for column in source.columns) for source in (before, after))
        changed = [name for name, kind in old_types.items() if new_types.get(name, kind) != kind]
        if changed:
            old_columns, new_columns = (
                [f"{name} {types[name]}" for name in changed] for types in (old_types, new_types)
            )
            reason = "from the next batch on records are read so; one that does not fit stops the pipeline"
            yield note(f"columns of {before.topic}", old_columns, new_columns, reason)
        removed = [column for column in before.columns if column.split(" ", 1)[0] not in new_types]
        added = [column for column in after.columns if column.split(" ", 1)[0] not in old_types]
        if removed or added:
            reason = "records are read so from the next batch on"
            yield compatible(f"columns of {before.topic}", removed, added, reason)


def _filters(old: QueryPlan, new: QueryPlan) -> Iterator[VersionChange]:
    removed = [clause for clause in old.filters if clause not in new.filters]
    added = [clause for clause in new.filters if clause not in old.filters]
    if removed or added:
        yield compatible("filters", removed, added, "holds from the next batch on; what is in the state stays")


def _watermarks(old: QueryPlan, new: QueryPlan) -> Iterator[VersionChange]:
    before, after = (
        {watermark.column: watermark.delay_milliseconds for watermark in plan.watermarks} for plan in (old, new)
    )
    if before == after:
        return
    if not old.operators and not new.operators:
        yield compatible("watermark", _delays(before), _delays(after), "without state a watermark changes nothing")
        return
    for column, delay in before.items():
        if after.get(column, delay) != delay:
            yield _delay_changed(column, delay, after[column])
    removed = {column: delay for column, delay in before.items() if column not in after}
    added = {column: delay for column, delay in after.items() if column not in before}
    if removed and added:
        reason = (
            "Spark goes on from the watermark of the old column: where the new one is behind it, all its rows are late "
            "and are dropped"
        )
        yield incompatible("watermark", _delays(removed), _delays(added), reason)
    elif removed:
        reason = "state that it would have removed stays for ever, and no row is late any more"
        yield note("watermark", _delays(removed), None, reason)
    elif added:
        reason = "rows that are later than this are dropped from now on, and old state is removed"
        yield note("watermark", None, _delays(added), reason)


def _delay_changed(column: str, before: int, after: int) -> VersionChange:
    if after > before:
        reason = (
            "later rows are taken from now on; state that the shorter delay has removed is gone, so that a row of its "
            "time begins it anew"
        )
    else:
        reason = "rows that are later than this are dropped from now on; windows close earlier"
    return note("watermark", _delays({column: before}), _delays({column: after}), reason)


def _delays(watermarks: Mapping[str, int]) -> list[str]:
    return [f"{column} - {delay / 1000:g} s" for column, delay in watermarks.items()]


def _output_mode(old: Version, new: Version) -> Iterator[VersionChange] | None:
    if old.output_mode is None or new.refused is not None:
        return None
    return iter(()) if old.output_mode == new.output_mode else _output_mode_changed(old, new)


def _output_mode_changed(old: Version, new: Version) -> Iterator[VersionChange]:
    before, after = str(old.output_mode), str(new.output_mode)
    if not old.operators and not new.operators:
        yield compatible("output mode", before, after, "without state both write each row once")
    elif after == "complete":
        if old.plan is None or old.plan.watermarks:
            reason = (
                "complete promises every group since the beginning; those that the watermark has removed are missing"
            )
            yield incompatible("output mode", before, after, reason)
        else:
            reason = "every batch writes all groups from now on; readers see each again"
            yield note("output mode", before, after, reason)
    elif after == "append":
        reason = (
            "a group is written once, when the watermark has passed it; those in the state, which readers know from "
            "earlier updates, are written once more then"
        )
        yield note("output mode", before, after, reason)
    else:
        reason = "a group is written whenever it changes; readers must take the newest row of a key"
        yield note("output mode", before, after, reason)


def _sink(old: QueryPlan, new: QueryPlan) -> Iterator[VersionChange]:
    for name in sorted({*old.sink, *new.sink}):
        before, after = old.sink.get(name, ()), new.sink.get(name, ())
        if before != after:
            yield note(f"sink: {name}", before, after, _SINKS.get(name, "records differ from the next batch on"))


_SINKS: Final = {
    "topics": "output goes there from the next batch on; what is committed stays where it is, and is not copied",
    "key": "records get other keys and partitions from the next batch on: order and compaction per key begin anew",
    "kind": "output goes there from the next batch on, and its own ledger counts from there",
}


def _output_columns(old: Version, new: Version) -> list[VersionChange] | None:
    if old.result_schema is None or new.result_schema is None:
        return None
    before, after = (
        {field["name"]: type_name(field["type"]) for field in json.loads(schema)["fields"]}
        for schema in (old.result_schema, new.result_schema)
    )
    if before == after:
        return []
    removed = [f"{name} {kind}" for name, kind in before.items() if after.get(name) != kind]
    added = [f"{name} {kind}" for name, kind in after.items() if before.get(name) != kind]
    reason = "readers of the sink see other columns from the next batch on"
    return [note("output columns", removed, added, reason)]


def _user_functions(old: Version, new: Version) -> list[VersionChange] | None:
    if old.plan is None or new.plan is None or old.job_hash is None:
        return None
    names = sorted({*old.plan.user_functions, *new.plan.user_functions})
    if not names or old.job_hash == new.job_hash:
        return []
    reason = "state depends on user functions, and a plan does not show their bodies: make sure that they mean the same"
    return [note("user functions", sorted(old.plan.user_functions), sorted(new.plan.user_functions), reason)]


_Check = Callable[[Version, Version], Iterator[VersionChange] | list[VersionChange] | None]


def _plan_check(check: Callable[[QueryPlan, QueryPlan], Iterator[VersionChange]]) -> _Check:
    """Return a check of two versions that compares their plans, where both are known."""
    return lambda old, new: None if old.plan is None or new.plan is None else check(old.plan, new.plan)


_CHECKS: Final[tuple[tuple[str, _Check], ...]] = (
    ("pipeline", _pipeline),
    ("plan", _unknown_plan),
    ("options of parsers", _plan_check(_options)),
    ("plan", _refused),
    ("Spark", _spark),
    ("state backend", _backend),
    ("state partitions", _partitions),
    ("sources", _sources),
    ("source columns", _plan_check(_source_columns)),
    ("filters", _plan_check(_filters)),
    ("watermark", _plan_check(_watermarks)),
    ("stateful operators", operators),
    ("what state means", meaning),
    ("state schemas", schemas),
    ("output mode", _output_mode),
    ("sink", _plan_check(_sink)),
    ("output columns", _output_columns),
    ("user functions", _user_functions),
)
