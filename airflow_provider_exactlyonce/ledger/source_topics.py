"""The topics that one source of a pipeline reads: given by name, or by a pattern.

In plans, savepoints and messages they are one text: the names with commas between them, or the pattern between slashes.
No topic has either in its name.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Self, TypeVar

from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.ledger.records import LEDGER_PREFIX

_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,249}")
#: What no pattern reads: Kafka's own topics, and all ledgers.
_NEVER: Final = rf"(?!__|{re.escape(LEDGER_PREFIX)})"

#: In Java a set of characters may have others in it, and be cut with them.
_OTHER_SETS: Final = re.compile(r"\[[^]]*(\[|&&)")
#: What is plain text for one of the two: an escaped character, and a set of characters.
_PLAIN: Final = re.compile(r"\\[^U]|\[\^?\]?[^]]*\]")
#: What only Python reads, or reads in another way.
_ONLY_PYTHONS: Final = {
    "flags are given to a group, as in (?i:orders.*)": re.compile(r"^\(\?[a-zA-Z]+\)"),
    "Java has no group of this kind": re.compile(r"\(\?[P#(]"),
    "a brace is part of a quantifier, as in {2}, {2,} and {2,3}, or is escaped": re.compile(r"\{(?!\d+(,\d*)?\})"),
    "Java has no such escape": re.compile(r"\\U"),
}

_Of = TypeVar("_Of")


@dataclass(frozen=True)
class TopicPattern:
    """All topics with a name that a regular expression matches in full, also topics that are made later.

    Kafka's own topics (``__…``) and ledgers are never among them.

    :param expression: a regular expression that Java and Python both accept
    :raises RefusedError: when it is no such expression
    """

    expression: str

    def __post_init__(self) -> None:
        try:
            if _OTHER_SETS.search(self.expression):
                raise re.error("a set of characters within another one")
            with warnings.catch_warnings():
                warnings.simplefilter("error", FutureWarning)
                re.compile(self.expression)
            text = _PLAIN.sub("", self.expression)
            if reason := next((reason for reason, form in _ONLY_PYTHONS.items() if form.search(text)), None):
                raise re.error(reason)
        except (re.error, TypeError, FutureWarning) as error:
            raise RefusedError(
                f"TopicPattern({self.expression!r}) is no regular expression that Java and Python read alike: {error}"
            ) from None
        if not self.expression:
            raise RefusedError("TopicPattern('') matches no topic: a regular expression, such as 'orders[.].*'")

    @property
    def guarded(self) -> str:
        """The expression as Spark gets it: topics that are never read do not match."""
        return f"{_NEVER}(?:{self.expression})"

    def matches(self, topic: str) -> bool:
        """Tell whether it reads a topic."""
        return re.fullmatch(self.guarded, topic) is not None


@dataclass(frozen=True)
class SourceTopics:
    """The topics of one source.

    :param names: the named topics, in their order; none with a pattern
    """

    names: tuple[str, ...] = ()
    pattern: TopicPattern | None = None

    @classmethod
    def of(cls, given: str | Iterable[str] | TopicPattern) -> Self:
        """Return the topics of a declaration.

        :raises RefusedError: when it is no topic
        """
        if isinstance(given, TopicPattern):
            return cls(pattern=given)
        names = (given,) if isinstance(given, str) else tuple(given)
        for name in names:
            if not isinstance(name, str) or not _NAME.fullmatch(name):
                raise RefusedError(f"{name!r} is no name of a topic")
        if len(set(names)) < len(names) or not names:
            raise RefusedError("one or more topics, each once")
        return cls(names=tuple(sorted(names)))

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read the text of ``str()``."""
        if text.startswith("/") and text.endswith("/"):
            return cls(pattern=TopicPattern(text[1:-1]))
        return cls(names=tuple(text.split(",")))

    def __str__(self) -> str:
        """Return the one text for them."""
        return ",".join(self.names) if self.pattern is None else f"/{self.pattern.expression}/"

    def __contains__(self, topic: object) -> bool:
        """Tell whether a topic is one of them."""
        return topic in self.names if self.pattern is None else self.pattern.matches(str(topic))

    def among(self, existing: Iterable[str]) -> list[str]:
        """Return the named topics, or the existing topics that the pattern matches."""
        return list(self.names) or sorted(topic for topic in existing if topic in self)

    def share(self, by_topic: Mapping[str, _Of]) -> dict[str, _Of]:
        """Return the part of a mapping that is of its topics."""
        return {topic: value for topic, value in by_topic.items() if topic in self}
