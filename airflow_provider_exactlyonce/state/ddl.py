"""Reads types as they are written in Spark's DDL, without Spark: of states, and of a function's output."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from airflow_provider_exactlyonce.exceptions import RefusedError

_TYPES: Final = (
    *("BOOLEAN", "TINYINT", "SMALLINT", "INT", "BIGINT", "FLOAT", "DOUBLE", "DECIMAL", "STRING", "BINARY"),
    *("DATE", "TIMESTAMP", "TIMESTAMP_NTZ", "ARRAY", "MAP", "STRUCT"),
)
#: Spark's other names for some of them.
_SYNONYMS: Final = {
    "BYTE": "TINYINT",
    "SHORT": "SMALLINT",
    "INTEGER": "INT",
    "LONG": "BIGINT",
    "REAL": "FLOAT",
    "DEC": "DECIMAL",
    "NUMERIC": "DECIMAL",
    "TIMESTAMP_LTZ": "TIMESTAMP",
}
#: A quoted name, a text, a word, a mark.
_TOKEN: Final = re.compile(r"\s*(?:`(?:[^`]|``)+`|'(?:[^']|'')*'|\w+|[<>(),:])")
_MAX_PRECISION: Final = 38
#: What only Spark can judge: its other types and clauses, comments, and the quotation marks that a setting allows.
_BEYOND: Final = re.compile(
    r"\b(CHAR|CHARACTER|VARCHAR|VOID|INTERVAL|VARIANT|TIME|GEOMETRY|GEOGRAPHY|COLLATE|DEFAULT|GENERATED|OPTIONS)\b"
    r"|--|/\*|[\"\\]",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class DataType:
    """A type.

    :param name: Spark's simplest name for it, in capitals
    :param precision: of a DECIMAL, and its scale
    :param inner: an ARRAY's elements; a MAP's keys and values
    :param fields: of a STRUCT
    """

    name: str
    precision: tuple[int, int] = (10, 0)
    inner: tuple[DataType, ...] = ()
    fields: tuple[Field, ...] = ()

    def __str__(self) -> str:
        if self.name == "DECIMAL":
            return f"DECIMAL({self.precision[0]},{self.precision[1]})"
        if self.inner:
            return f"{self.name}<{', '.join(map(str, self.inner))}>"
        return f"STRUCT<{', '.join(map(str, self.fields))}>" if self.name == "STRUCT" else self.name


@dataclass(frozen=True)
class Field:
    """A named type.

    :param required: declared as NOT NULL
    """

    name: str
    type: DataType
    required: bool = False

    def __str__(self) -> str:
        quoted = self.name.replace("`", "``")
        return f"`{quoted}`: {self.type}{' NOT NULL' if self.required else ''}"


def parse(text: str, *, distinct: bool = True) -> DataType:
    """Return the type that a text declares: a type, or fields as of a table, which make a STRUCT.

    :param text: such as ``"DECIMAL(12,2)"`` or ``"total DECIMAL(18,2), n BIGINT NOT NULL"``
    :param distinct: no two fields may have names that differ in case only
    :raises RefusedError: when it is neither, with the place
    """
    if not isinstance(text, str):
        raise RefusedError(f"type {text!r}: say it in Spark's DDL, such as 'BIGINT'")
    reader = _DdlReader(text, distinct=distinct)
    single = len(reader.tokens) < 2 or reader.tokens[1] in ("<", "(")
    parsed = reader.type() if single else DataType("STRUCT", fields=reader.fields())
    reader.end()
    return parsed


def check_columns(text: str) -> None:
    """Check a table's columns as far as can be without Spark, which knows more types and clauses than there are here.

    :raises RefusedError: when Spark would refuse them, too
    """
    if _BEYOND.search(text):
        return
    parsed = parse(text, distinct=False)  # by a setting of Spark's, names that differ in case are two
    if parsed.name != "STRUCT":
        raise RefusedError(f"type {text!r}: names no columns, as in 'id BIGINT NOT NULL'")


class _DdlReader:
    def __init__(self, text: str, *, distinct: bool) -> None:
        self._text = text
        self._distinct = distinct
        self.tokens: list[str] = []
        position = 0
        while text[position:].strip():
            match = _TOKEN.match(text, position)
            if match is None:
                raise RefusedError(f"type {text!r}: {text[position:].strip()[:20]!r} is not DDL")
            self.tokens.append(match[0].strip())
            position = match.end()

    def type(self) -> DataType:
        word = self._next("a type")
        name = _SYNONYMS.get(word.upper(), word.upper())
        if name not in _TYPES:
            raise RefusedError(
                f"type {self._text!r}: {word!r} is not a type of states and outputs; there are "
                f"{', '.join(sorted(_TYPES))}"
            )
        if name == "DECIMAL" and self._take("("):
            precision, scale = self._number(), self._number() if self._take(",") else 0
            self._expect(")")
            if not (1 <= precision <= _MAX_PRECISION and 0 <= scale <= precision):
                raise RefusedError(f"type {self._text!r}: DECIMAL({precision},{scale}) has at most 38 digits in all")
            return DataType(name, precision=(precision, scale))
        if name not in ("ARRAY", "MAP", "STRUCT"):
            return DataType(name)
        self._expect("<")
        if name == "STRUCT":
            data_type = DataType(name, fields=self.fields())
        else:
            inner = [self.type()]
            if name == "MAP":
                self._expect(",")
                inner.append(self.type())
            data_type = DataType(name, inner=tuple(inner))
        self._expect(">")
        return data_type

    def fields(self) -> tuple[Field, ...]:
        fields = [self._field()]
        while self._take(","):
            fields.append(self._field())
        names = [field.name.lower() for field in fields]
        if self._distinct and len(set(names)) < len(names):
            raise RefusedError(f"type {self._text!r}: two of its fields have one name")
        return tuple(fields)

    def _field(self) -> Field:
        name = self._next("a field's name")
        if name.startswith("`"):
            name = name[1:-1].replace("``", "`")
        self._take(":")
        kind = self.type()
        required = self._take("NOT")
        if required:
            self._expect("NULL")
        if self._take("COMMENT"):
            self._next("a comment")
        return Field(name, kind, required)

    def end(self) -> None:
        if self.tokens:
            raise RefusedError(f"type {self._text!r}: {' '.join(self.tokens)[:40]!r} is too much")

    def _number(self) -> int:
        word = self._next("a number")
        if not word.isdecimal():
            raise RefusedError(f"type {self._text!r}: {word!r} is not a number")
        return int(word)

    def _next(self, expected: str) -> str:
        if not self.tokens:
            raise RefusedError(f"type {self._text!r}: {expected} is missing at its end")
        return self.tokens.pop(0)

    def _take(self, mark: str) -> bool:
        if self.tokens and self.tokens[0].upper() == mark:
            self.tokens.pop(0)
            return True
        return False

    def _expect(self, mark: str) -> None:
        if not self._take(mark):
            token = self.tokens[0] if self.tokens else "its end"
            raise RefusedError(f"type {self._text!r}: {mark} expected, {token} found")
