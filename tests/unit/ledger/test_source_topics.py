"""Which topics a source reads: names, patterns, and their one text."""

from __future__ import annotations

import pytest

from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.ledger.records import ledger_topic
from airflow_provider_exactlyonce.ledger.source_topics import SourceTopics, TopicPattern


@pytest.mark.parametrize("given", ["a", ["b", "a"], ("a.b-c_1",), TopicPattern(r"a\..*"), TopicPattern("a,b/c")])
def test_the_text_of_a_sources_topics_says_them_all(given: str | list[str] | TopicPattern) -> None:
    topics = SourceTopics.of(given)
    assert SourceTopics.parse(str(topics)) == topics


@pytest.mark.parametrize("given", ["", "a,b", "a/b", "a b", [], ["a", ""], ["a", "a"], "x" * 250])
def test_what_is_no_topic_is_refused(given: str | list[str]) -> None:
    with pytest.raises(RefusedError):
        SourceTopics.of(given)


@pytest.mark.parametrize(
    "expression",
    [
        *("", "(", r"\p{Lower}", r"\Qa\E", "[a[b]]", "[a&&b]", "(?<n>a)"),
        *("(?i)orders.*", "(?a)a", "(?P<n>a)", "(?#n)a", "(a)(?(1)b|c)", "orders{x}", "a{,3}", r"\\{", r"\U00000041"),
    ],
)
def test_an_expression_that_java_and_python_read_otherwise_is_refused(expression: str) -> None:
    with pytest.raises(RefusedError, match="TopicPattern"):
        TopicPattern(expression)


@pytest.mark.parametrize("expression", ["(?i:Orders).*", "a{2}b{1,}c{1,2}+", r"[{(]?\{?a", r"\(\?P|a", "(?>a)(?=b)b|a"])
def test_an_expression_that_java_and_python_read_alike_is_taken(expression: str) -> None:
    TopicPattern(expression).matches("a")


def test_a_pattern_is_of_the_whole_name_and_never_finds_ledgers_and_kafkas_own_topics() -> None:
    topics = SourceTopics.of(TopicPattern("a|.*"))
    existing = ["b", "a", ledger_topic("p"), "__consumer_offsets", "exactlyonce.ledgers"]
    assert topics.among(existing) == ["a", "b", "exactlyonce.ledgers"]
    assert SourceTopics.of(TopicPattern("a")).among(["a", "ab", "ba"]) == ["a"]


def test_each_source_gets_its_share() -> None:
    by_topic = {"a": 1, "b": 2, "c": 3}
    assert SourceTopics.of(["a", "c", "x"]).share(by_topic) == {"a": 1, "c": 3}
    assert SourceTopics.of(TopicPattern("[bc]")).share(by_topic) == {"b": 2, "c": 3}
    assert SourceTopics.of(["x", "a"]).among(()) == ["a", "x"]
