"""Which cluster a topic is read from, and that no source goes on on another one; no cluster is asked here."""

from __future__ import annotations

import gc
import json
import weakref
from collections.abc import Callable, Iterable, Mapping
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
from typing_extensions import override

from airflow_provider_exactlyonce.exceptions import ExactlyOnceError, RefusedError
from airflow_provider_exactlyonce.kafka import reach
from airflow_provider_exactlyonce.kafka.stable_offsets import DescribedTopic, PartitionOffsets, RoutedOffsets
from airflow_provider_exactlyonce.kafka.topic_partition import TopicPartition
from airflow_provider_exactlyonce.kafka.wire import UnansweredError
from airflow_provider_exactlyonce.ledger.reader import LedgerTail
from airflow_provider_exactlyonce.ledger.records import CommitRecord, decode, encode
from airflow_provider_exactlyonce.ledger.source_clusters import SourceCluster, SourceClusters, from_environment
from airflow_provider_exactlyonce.ledger.source_topics import SourceTopics, TopicPattern
from tests.ledger_records import claim_record, commit_record

OWN, A, B = "own", "cluster-a", "cluster-b"
ORDERS, ALL = SourceTopics.of("orders"), SourceTopics.of(TopicPattern(r"eu\..*"))

Clusters = Callable[..., SourceClusters]


@pytest.fixture
def clusters(monkeypatch: pytest.MonkeyPatch) -> Clusters:
    """Give clusters whose ids are in their configurations."""
    monkeypatch.setattr(SourceCluster, "id", property(lambda cluster: cluster.config["id"]))
    ids = {"a": A, "other_a": A, "b": B, "here": OWN}

    def make(connections: Mapping[str, str]) -> SourceClusters:
        return SourceClusters({"id": OWN}, connections, lambda conn_id: {"id": ids[conn_id]})

    return make


def tail_of(claimed: Mapping[str, tuple[str, str]], *read: str) -> LedgerTail:
    commit: CommitRecord | None = commit_record(source_topic_ids=dict.fromkeys(read, "id")) if read else None
    claim = claim_record(7, source_clusters=claimed)
    return LedgerTail(cluster_id=OWN, topic_id="t", end_offset=9, claim=claim, commit=commit)


def test_each_topic_has_the_cluster_of_the_source_that_reads_it(clusters: Clusters) -> None:
    made = clusters({"orders,refunds": "a", str(ALL): "b"})
    assert [made.of(topic).conn_id for topic in ("orders", "refunds", "eu.x", "x")] == ["a", "a", "b", None]
    parts = made.by_cluster({"orders": 1, "x": 2, "eu.x": 3, "eu.y": 4})
    assert list(parts) == [made.own, made.of("orders"), made.of("eu.x")]
    assert list(parts.values()) == [{"x": 2}, {"orders": 1}, {"eu.x": 3, "eu.y": 4}]
    assert made.by_cluster({"orders": 1})[made.own] == {}
    assert made.recorded == {"orders,refunds": ("a", A), str(ALL): ("b", B)}
    assert clusters({}).recorded == {}


def test_a_connection_to_the_pipelines_own_cluster_reads_topics_that_are_here(clusters: Clusters) -> None:
    made = clusters({"orders": "here", "refunds": "a"})
    assert made.here({"orders": 1, "refunds": 2, "x": 3}) == {"x": 3, "orders": 1}


@pytest.mark.parametrize(
    ("claimed", "read", "now"),
    [
        ({}, ("orders",), {}),
        ({"orders": ("a", A)}, ("orders",), {"orders": "a"}),
        ({"orders": ("a", A)}, ("orders",), {"orders": "other_a"}),
        ({"orders,refunds": ("a", A)}, (), {"orders": "a"}),
        ({}, ("orders",), {"orders": "here"}),
        ({"orders": ("here", OWN)}, ("orders",), {}),
        ({}, ("x",), {"orders": "a"}),  # a source that is new
        ({str(ALL): ("a", A)}, (), {str(ALL): "a", "orders": "here"}),
    ],
)
def test_a_source_goes_on_where_it_was(
    clusters: Clusters, claimed: Mapping[str, tuple[str, str]], read: tuple[str, ...], now: Mapping[str, str]
) -> None:
    clusters(now).check(tail_of(claimed, *read), [ORDERS, ALL])


@pytest.mark.parametrize(
    ("claimed", "read", "now", "said"),
    [
        ({"orders": ("a", A)}, ("orders",), {"orders": "b"}, "orders is read from the cluster of connection b"),
        ({"orders": ("a", A)}, ("orders",), {}, "orders is read from this cluster now, whose id is own"),
        ({}, ("orders",), {"orders": "a"}, "run 7 has read it from this cluster, whose id was own"),
        ({}, (), {"orders": "a"}, "run 7 has read it from this cluster"),  # its first batch may be planned
        ({"orders": ("a", A)}, (), {"orders": "b"}, "run 7 has read it from the cluster of connection a"),
        ({"orders,x": ("a", A)}, ("orders", "x"), {"orders": "b"}, "whose id was cluster-a"),
        ({str(ALL): ("a", A)}, ("eu.x",), {str(ALL): "b"}, r"source topic /eu\..*/ is read"),
        ({}, ("eu.x",), {str(ALL): "b"}, "source topic eu.x is read"),
        ({str(ALL): ("a", A)}, (), {}, r"source topic /eu\..*/ is read from this cluster"),
    ],
)
def test_a_source_that_would_go_on_elsewhere_is_refused_by_name(
    clusters: Clusters, claimed: Mapping[str, tuple[str, str]], read: tuple[str, ...], now: Mapping[str, str], said: str
) -> None:
    with pytest.raises(RefusedError) as refused:
        clusters(now).check(tail_of(claimed, *read), [ORDERS, ALL])
    assert said in str(refused.value)


def test_without_a_ledger_or_a_claim_nothing_was_read_yet(clusters: Clusters) -> None:
    clusters({"orders": "a"}).check(None, [ORDERS])
    clusters({"orders": "a"}).check(LedgerTail(cluster_id=OWN, topic_id="t", end_offset=0), [ORDERS])


def test_a_claim_has_the_clusters_and_one_without_them_is_written_as_before() -> None:
    claim = claim_record(source_clusters={"orders": ("a", A)}, source_datasets={"delta:/t": ("file", "/t")})
    assert decode(encode(claim)) == claim
    assert b"source_" not in encode(claim_record())


def test_a_connection_is_found_in_the_environment_or_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EXACTLYONCE_SOURCES", raising=False)
    with pytest.raises(RefusedError, match=r'EXACTLYONCE_SOURCES is not set.*source_conn_ids=\["a"\]'):
        from_environment("a")
    config = {"bootstrap.servers": "a:1", "sasl.password": "hush"}
    monkeypatch.setenv("EXACTLYONCE_SOURCES", json.dumps({"a": config, "b": {"sasl.password": "hush"}}))
    assert from_environment("a") == config
    with pytest.raises(RefusedError, match=r"connection b .* has no bootstrap\.servers") as refused:
        from_environment("b")
    assert "hush" not in str(refused.value)
    with pytest.raises(RefusedError, match="has no connection c"):
        from_environment("c")


@pytest.mark.parametrize("kind", [ExactlyOnceError, RefusedError])
def test_a_cluster_that_is_away_or_takes_us_for_somebody_else_is_named_by_its_connection(
    monkeypatch: pytest.MonkeyPatch, kind: type[ExactlyOnceError]
) -> None:
    def refuse(config: Mapping[str, str]) -> NoReturn:
        raise trouble(config)

    def trouble(config: Mapping[str, str]) -> ExactlyOnceError:
        return kind(f"Kafka at {config['bootstrap.servers']} can't be reached: why")

    monkeypatch.setattr(reach, "trouble", trouble)
    monkeypatch.setattr(reach, "connected", refuse)
    made = SourceClusters(
        {"bootstrap.servers": "own:1"},
        {"orders": "a", "delta:/lake/refunds": ""},
        lambda conn_id: {"bootstrap.servers": f"{conn_id}:1"},
    )
    said = "the cluster of connection a, which sources are read from: Kafka at a:1 can't be reached: why"
    away = made.trouble()
    assert (type(away), str(away)) == (kind, said), "the pipeline's own, and a table, are not asked"
    for ask in (made.connect, lambda: made.of("orders").offsets, lambda: made.of("orders").client):
        with pytest.raises(kind) as raised:
            ask()
        assert str(raised.value) == said
    with pytest.raises(kind) as raised:
        _ = made.own.client
    assert str(raised.value) == "Kafka at own:1 can't be reached: why"


def test_the_connections_of_clusters_that_nobody_holds_any_more_end_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reach, "trouble", lambda config: None)
    config = {"bootstrap.servers": "127.0.0.1:1"}
    made = SourceClusters(config, {"orders": "a"}, lambda conn_id: config)
    assert made.offsets.describe(()) == {}
    asked = weakref.ref(made.of("orders").offsets)
    assert asked() is not None
    gc.disable()  # a gate replaces them as often as their cluster is away, which is sooner than a collection
    try:
        del made
        assert asked() is None
    finally:
        gc.enable()


def test_a_question_without_an_answer_names_the_cluster() -> None:
    def ask(topic: str) -> NoReturn:
        raise UnansweredError("KafkaConnectionError")

    made = SourceClusters({}, {"orders": "a"}, lambda conn_id: {})
    silent = SimpleNamespace(metadata=ask, earliest_offsets=ask, stable_offsets=ask, close=lambda: None)
    for topic, name in (("orders", "the cluster of connection a"), ("x", "this cluster")):
        cluster = made.of(topic)
        vars(cluster)["client"] = silent
        for question in (cluster.topic_id, cluster.earliest, cluster.stable):
            with pytest.raises(UnansweredError, match=f"^{name}: KafkaConnectionError$"):
                question(topic)


class Empty(PartitionOffsets):
    """A cluster without a topic."""

    def __init__(self, where: str) -> None:
        self.where = where

    @override
    def describe(self, topics: Iterable[str]) -> dict[str, DescribedTopic]:
        return {}

    @override
    def _ask(self, places: Iterable[TopicPartition], spec: Any, *, committed: bool) -> dict[TopicPartition, int]:
        return {}


@pytest.mark.parametrize("topic", ["x", "y"])
def test_a_topic_that_is_missing_is_missing_on_its_own_cluster(topic: str) -> None:
    clusters = {"x": Empty("this cluster"), "y": Empty("the cluster of connection a")}
    with pytest.raises(ExactlyOnceError, match=f"^topic {topic} does not exist on {clusters[topic].where}$"):
        RoutedOffsets(lambda name: clusters[name]).partitions([topic])
