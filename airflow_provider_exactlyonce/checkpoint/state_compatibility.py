"""Compares the state of two versions: operators, the meaning of their keys and values, and their schemas."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

from airflow_provider_exactlyonce.checkpoint.plan import OperatorPlan
from airflow_provider_exactlyonce.checkpoint.state import StatefulOperator
from airflow_provider_exactlyonce.checkpoint.versions import BUILD_ANEW, Version, VersionChange, incompatible, note

_BY_TYPE: Final = "Where the types are equal, Spark goes on with the old values and says nothing"
_TRANSFORM: Final = "transformWithState"
#: What Avro reads as.
_WIDER: Final = {
    "integer": frozenset({"long", "float", "double"}),
    "long": frozenset({"float", "double"}),
    "float": frozenset({"double"}),
}


def operators(old: Version, new: Version) -> Iterator[VersionChange] | None:
    """Compare the operators that keep state; None when one side's are not known."""
    if old.operators is None or new.operators is None:
        return None
    return _operator_differences(
        [operator.name for operator in old.operators], [operator.name for operator in new.operators]
    )


def _operator_differences(before: list[str], after: list[str]) -> Iterator[VersionChange]:
    if before == after:
        return
    aspect = "stateful operators"
    if not before:
        reason = "there was no state: what the new version would have kept of all earlier rows isn't there"
        yield incompatible(aspect, before, after, reason)
    elif not after:
        reason = "the new version keeps no state, so all of it would be dropped without a word"
        yield incompatible(aspect, before, after, reason)
    elif sorted(before) == sorted(after):
        reason = "Spark knows operators by their order in the plan"
        yield incompatible(aspect, before, after, reason, "use them in the old order")
    else:
        removed, added = Counter(before) - Counter(after), Counter(after) - Counter(before)
        words = [f"{name} is added" for name in added.elements()] + [f"{name} is gone" for name in removed.elements()]
        reason = f"{', '.join(words)}; Spark refuses operators that the state does not have, or has too many of"
        yield incompatible(aspect, before, after, reason)


def meaning(old: Version, new: Version) -> list[VersionChange] | None:
    """Compare the meaning of each operator's state."""
    if old.plan is None or new.plan is None:
        return None
    before, after = old.plan.operators, new.plan.operators
    if [operator.kind for operator in before] != [operator.kind for operator in after]:
        if old.operators is not None and new.operators is not None:
            return None  # reported as operators that differ
        return list(
            _operator_differences([operator.kind for operator in before], [operator.kind for operator in after])
        )
    findings = []
    for number, (old_operator, new_operator) in enumerate(zip(before, after, strict=True)):
        label = old_operator.kind if len(before) == 1 else f"{old_operator.kind} {number}"
        for fact in old_operator.facts:
            if old_operator.facts[fact] != new_operator.facts.get(fact, ()):
                findings += _fact(f"{label}: {fact}", fact, old_operator, new_operator)
    return findings


def _fact(aspect: str, fact: str, old: OperatorPlan, new: OperatorPlan) -> list[VersionChange]:
    before, after = old.facts[fact], new.facts.get(fact, ())
    if fact in ("left columns", "right columns"):
        if len(before) != len(after):
            return []  # the schemas tell
        return [incompatible(aspect, before, after, f"the rows in the state have other columns. {_BY_TYPE}")]
    if fact == "where" and old.facts["type"] == new.facts["type"] == ("INNER",):
        reason = "holds from the next batch on; rows that the old condition has let go are not in the state"
        return [note(aspect, before, after, reason)]
    if fact in _NOTES:
        return [note(aspect, before, after, _NOTES[fact])]
    if fact in ("group by", "columns", "on", "functions") and sorted(before) == sorted(after):
        return [incompatible(aspect, before, after, f"the order differs. {_BY_TYPE}", "use the old order")]
    reason = _REASONS.get(fact, "the state means something else")
    return [incompatible(aspect, before, after, f"{reason}. {_BY_TYPE}")]


_REASONS: Final = {
    "group by": "the state belongs to other groups",
    "functions": "the values in the state are of other functions",
    "columns": "the state knows other keys",
    "on": "the rows in the state belong to other keys",
    "where": "the rows in the state are marked as matched or not by the old condition",
    "type": "the rows in the state are kept and marked as matched for the old kind of join",
}
_ANOTHER_VARIABLE: Final = (
    "keep what is new in a state variable of its own, which begins empty (a pipeline that begins with "
    f"StateBackend.rocksdb(avro=True) may add fields); or {BUILD_ANEW}"
)
_NOTES: Final = {
    "function": "what its body does with the old state can't be seen",
    "timeout": "holds from a key's next row on",
    "rows": "rows that were let through before count",
}


def schemas(old: Version, new: Version) -> list[VersionChange] | None:
    """Compare keys and values of all stores as Spark does."""
    if old.operators is None or new.operators is None:
        return None
    if [operator.name for operator in old.operators] != [operator.name for operator in new.operators]:
        return None
    findings = []
    for before, after in zip(old.operators, new.operators, strict=True):
        label = before.name if len(old.operators) == 1 else f"{before.name} {before.id}"
        findings += _variables(label, before, after)
        for store in before.schemas:
            if store in after.schemas:
                pair = before.schemas[store], after.schemas[store]
                is_variable = before.name.startswith(_TRANSFORM)
                findings += _schema(f"{label}, {store}", *pair, is_variable=is_variable, avro=old.encoding == "avro")
    return findings


def _variables(label: str, before: StatefulOperator, after: StatefulOperator) -> list[VersionChange]:
    """Compare the variables of a transformWithState, and the stores of any other operator."""
    for name in ("timeMode", "outputMode"):
        if before.properties.get(name) != after.properties.get(name):
            reason = "Spark refuses another one for state that is there"
            return [incompatible(f"{label}: {name}", before.properties.get(name), after.properties.get(name), reason)]
    old_kinds, new_kinds = (
        {
            variable["stateName"]: f"{variable['stateVariableType']}{' with TTL' if variable.get('ttlEnabled') else ''}"
            for variable in variables
        }
        for variables in (before.properties.get("stateVariables", ()), after.properties.get("stateVariables", ()))
    )
    if not old_kinds and not new_kinds:
        if set(before.stores) != set(after.stores):
            reason = "its state is in other stores"
            return [incompatible(f"{label}: stores", before.stores, after.stores, reason)]
        return []
    findings = []
    for name, kind in old_kinds.items():
        if name not in new_kinds:
            reason = "its values are dropped, and would be gone if a later version had it again"
            findings.append(note(f"{label}: variable {name}", kind, None, reason))
        elif new_kinds[name] != kind:
            reason = "Spark refuses another kind of variable under the same name"
            way_out = f"give the variable a new name; or {BUILD_ANEW}"
            findings.append(incompatible(f"{label}: variable {name}", kind, new_kinds[name], reason, way_out))
    for name, kind in new_kinds.items():
        if name not in old_kinds:
            findings.append(note(f"{label}: variable {name}", None, kind, "it begins empty for every key"))
    return findings


def _schema(
    label: str, before: tuple[str, str], after: tuple[str, str], *, is_variable: bool, avro: bool
) -> Iterator[VersionChange]:
    for part, old_json, new_json in zip(("key", "value"), before, after, strict=True):
        old, new = json.loads(old_json), json.loads(new_json)
        if _accepts(old, new):
            continue
        if is_variable and avro and part == "value":
            yield from _evolved(f"{label}: {part}", old, new)
        else:
            reason = f"Spark refuses another {part} in state that is there"
            way_out = _ANOTHER_VARIABLE if is_variable else BUILD_ANEW
            yield incompatible(f"{label}: {part}", _readable(old), _readable(new), reason, way_out)


def _accepts(old: Any, new: Any) -> bool:
    """Tell whether Spark accepts a type in place of another: names don't matter; nullable may not become required."""
    if isinstance(old, str) or isinstance(new, str):
        return bool(old == new)
    if old["type"] != new["type"]:
        return False
    if old["type"] == "struct":
        return len(old["fields"]) == len(new["fields"]) and all(
            (old_field["nullable"] or not new_field["nullable"]) and _accepts(old_field["type"], new_field["type"])
            for old_field, new_field in zip(old["fields"], new["fields"], strict=True)
        )
    if old["type"] == "array":
        return (old["containsNull"] or not new["containsNull"]) and _accepts(old["elementType"], new["elementType"])
    if old["type"] == "map":
        return (
            (old["valueContainsNull"] or not new["valueContainsNull"])
            and _accepts(old["keyType"], new["keyType"])
            and _accepts(old["valueType"], new["valueType"])
        )
    return bool(old == new)


def _evolved(aspect: str, old: Any, new: Any) -> Iterator[VersionChange]:
    """Yield the effects of a change of a value's columns under Avro."""
    unreadable = _unreadable(old, new)
    if unreadable is not None:
        name, old_type, new_type = unreadable
        yield incompatible(f"{aspect}, {name}", old_type, new_type, "Avro can't read the old type as the new one")
        return
    reason = (
        "state is encoded in Avro: columns that are new are null in old values, and those that are gone are skipped"
    )
    yield note(aspect, _readable(old), _readable(new), reason)


def _unreadable(old: Any, new: Any) -> tuple[str, str, str] | None:
    """Return a column, and its types, that Avro can't read in its new form; None when there is none."""
    before, after = ({field["name"]: field["type"] for field in schema["fields"]} for schema in (old, new))
    for name in (name for name in before if name in after):
        old_type, new_type = before[name], after[name]
        if (
            isinstance(old_type, dict)
            and isinstance(new_type, dict)
            and old_type["type"] == new_type["type"] == "struct"
        ):
            inner = _unreadable(old_type, new_type)
            if inner is not None:
                return f"{name}.{inner[0]}", inner[1], inner[2]
        elif not _accepts(old_type, new_type) and not (
            isinstance(old_type, str) and isinstance(new_type, str) and new_type in _WIDER.get(old_type, ())
        ):
            return name, type_name(old_type), type_name(new_type)
    return None


def _readable(schema: Any) -> str:
    parts = (
        f"{field['name']} {type_name(field['type'])}{'' if field['nullable'] else ' not null'}"
        for field in schema["fields"]
    )
    return ", ".join(parts)


def type_name(kind: Any) -> str:
    """Return the short name of a type in Spark's JSON."""
    if isinstance(kind, str):
        return kind
    if kind["type"] == "struct":
        return f"struct<{_readable(kind)}>"
    if kind["type"] == "array":
        return f"array<{type_name(kind['elementType'])}>"
    if kind["type"] == "map":
        return f"map<{type_name(kind['keyType'])}, {type_name(kind['valueType'])}>"
    return str(kind["type"])
