"""Avro and Protobuf in and out with a real registry, judged by confluent-kafka's own (de)serializers."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from confluent_kafka.schema_registry import Schema, SchemaReference, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import message_factory

from airflow_provider_exactlyonce.streaming.registry import protobuf_schemas
from airflow_provider_exactlyonce.streaming.registry.wire_format import head, message_indexes
from tests.apicurio import Apicurio
from tests.integration.streaming.harness import World, check_ledger, read_committed
from tests.waiting import eventually

DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 2}
OLD = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "id", "type": "int"}, {"name": "k", "type": "string"}, {"name": "v", "type": DECIMAL}],
}
#: Other order, a wider id, more fields; an old reader ignores the ones that it does not know.
NEW = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "tags", "type": {"type": "array", "items": "string"}, "default": []},
        {"name": "v", "type": DECIMAL},
        {"name": "k", "type": "string"},
        {"name": "id", "type": "long"},
        {"name": "note", "type": ["null", "string"], "default": None},
    ],
}


#: As text, with a schema that it imports, which some serializers register; confluent-kafka's own registers base64.
OLD_PROTO = 'syntax = "proto3"; message Order { sint32 id = 1; string k = 2; string v = 3; }'
NEW_PROTO = """syntax = "proto3"; import "tags.proto";
message Other { bool other = 1; }
message Order { repeated Tag tags = 9; string v = 3; string k = 2; int64 id = 1; optional string note = 20; }"""
TAGS_PROTO = 'syntax = "proto3"; message Tag { string name = 1; }'


class Avro:
    """How the owner of the orders' schemas writes them in Avro, and any reader reads what becomes of them."""

    name = "avro"
    #: What makes a value that is no order of it.
    misfits: Mapping[str, Callable[[bytes], bytes | None]] = {
        "it ends in the middle of v": lambda good: good[:-1],
        "bytes follow its last field": lambda good: good + b"\0",
    }

    def __init__(self, client: SchemaRegistryClient) -> None:
        self._serializers = [AvroSerializer(client, json.dumps(schema)) for schema in (OLD, NEW)]
        self._deserialize = AvroDeserializer(client)
        self._client = client

    def encoded(self, order: dict[str, Any], context: SerializationContext, *, new: bool) -> bytes:
        return bytes(self._serializers[new](order, context) or b"")

    def decoded(self, value: bytes, context: SerializationContext) -> Any:
        return self._deserialize(value, context)

    def other(self, topic: str) -> Schema:
        """Return a schema of the record that a sink writes, with which it is not compatible."""
        fields = [{"name": "id", "type": "string"}]
        return Schema(json.dumps({"type": "record", "name": f"{topic}_value", "fields": fields}), "AVRO")

    def fields(self, schema: str) -> list[str]:
        return [field["name"] for field in json.loads(schema)["fields"]]


class Protobuf:
    """The same in Protobuf."""

    name = "protobuf"
    misfits: Mapping[str, Callable[[bytes], bytes | None]] = {
        "it ends in the middle of v": lambda good: good[:-1],
        "it ends in the middle of a tag": lambda good: good + b"\x80",
        "its message indexes [7] lead to no message of its schema": lambda good: good[:5] + b"\x02\x0e" + good[6:],
    }

    def __init__(self, client: SchemaRegistryClient) -> None:
        self._client = client
        self._old = self._class(protobuf_schemas.compiled(OLD_PROTO), "Order")
        self._serializer = ProtobufSerializer(self._old, client, {"use.deprecated.format": False})
        self._new = self._class(protobuf_schemas.compiled(NEW_PROTO, (("tags.proto", TAGS_PROTO),)), "Order")

    @staticmethod
    def _class(file: Any, name: str) -> Any:
        return message_factory.GetMessageClass(protobuf_schemas.message_named(file, name))

    def encoded(self, order: dict[str, Any], context: SerializationContext, *, new: bool) -> bytes:
        order = {**order, "v": str(order["v"])}
        if not new:
            return bytes(self._serializer(self._old(**order), context) or b"")
        self._client.register_schema("tags", Schema(TAGS_PROTO, "PROTOBUF"))
        schema = Schema(NEW_PROTO, "PROTOBUF", [SchemaReference("tags.proto", "tags", 1)])
        number = self._client.register_schema(f"{context.topic}-new", schema)
        order["tags"] = [{"name": tag} for tag in order["tags"]]
        return head(number) + message_indexes([1]) + bytes(self._new(**order).SerializeToString())

    def decoded(self, value: bytes, context: SerializationContext) -> Any:
        written = self._client.get_schema(int.from_bytes(value[1:5], "big")).schema_str
        kind = self._class(protobuf_schemas.compiled(str(written)), f"{str(context.topic).replace('-', '_')}_value")
        order: Any = ProtobufDeserializer(kind, {"use.deprecated.format": False})(value, context)
        note = order.note if order.HasField("note") else None
        return {"id": order.id, "k": order.k, "twice": Decimal(order.twice), "note": note}

    def other(self, topic: str) -> Schema:
        return Schema(f'syntax = "proto3"; message {topic}_value {{ string id = 1; }}', "PROTOBUF")

    def fields(self, schema: str) -> list[str]:
        return [field.name for field in protobuf_schemas.message_named(protobuf_schemas.compiled(schema), None).fields]


class Orders:
    """Sends orders as their schema's owner would, and reads what became of them as any reader would."""

    def __init__(self, world: World, server: Apicurio, kind: type[Avro | Protobuf]) -> None:
        self._world = world
        self.client = SchemaRegistryClient({"url": server.url})
        self.format = kind(self.client)
        self.environment: dict[str, str] = {"EXACTLYONCE_SCHEMA_REGISTRY": server.url, "TEST_FORMAT": kind.name}
        self.sent: dict[int, dict[str, Any]] = {}

    def encoded(self, number: int, *, new: bool) -> bytes:
        order: dict[str, Any] = {"id": number, "k": f"k{number % 37}", "v": Decimal(number).scaleb(-2)}
        if new:
            order |= {"note": f"note {number}", "tags": ["a"] * (number % 3)}
        self.sent[number] = {"id": number, "k": order["k"], "twice": 2 * order["v"], "note": order.get("note")}
        return self.format.encoded(order, SerializationContext(self._world.source, MessageField.VALUE), new=new)

    def send(self, records: int, *, new: Callable[[int], bool]) -> None:
        first = len(self.sent)
        self.produce(*(self.encoded(number, new=new(number)) for number in range(first, first + records)))

    def produce(self, *values: bytes | None) -> None:
        producer = Producer({**self._world.config, "enable.idempotence": True})
        for value in values:
            producer.produce(self._world.source, value=value)
        assert producer.flush(30) == 0

    def check(self) -> None:
        """Each order that was sent is in the sink once, as confluent-kafka's own deserializer reads it."""
        check_ledger(self._world)
        context = SerializationContext(self._world.sink, MessageField.VALUE)
        by_id: dict[int, Any] = {}
        for record in read_committed(self._world.config, self._world.sink):
            order = self.format.decoded(record.value or b"", context)
            assert isinstance(order, dict) and record.key == order["k"].encode()
            assert order["id"] not in by_id, f"order {order['id']} was written twice"
            by_id[order["id"]] = order
        assert by_id == self.sent


@pytest.fixture(params=[Avro, Protobuf], ids=lambda kind: kind.name)
def orders(world: World, registry_server: Apicurio, request: pytest.FixtureRequest) -> Orders:
    world.job = "registry_orders.py"
    return Orders(world, registry_server, request.param)


@pytest.mark.slow
def test_a_schema_that_is_registered_in_mid_stream_is_read_without_a_restart(world: World, orders: Orders) -> None:
    orders.send(50, new=lambda _: False)
    driver = world.start("--interval", "200 milliseconds", until="forever", environment=orders.environment)
    eventually(lambda: world.commits() >= 1, lambda: f"a commit: {driver.output()[-3000:]}")
    orders.send(50, new=lambda _: True)
    eventually(
        lambda: len(read_committed(world.config, world.sink)) == 100,
        lambda: f"all are written: {driver.output()[-3000:]}",
    )
    assert world.stop(driver) == 0
    orders.check()
    assert len(world.ledger()[1]) == 1


@pytest.mark.slow
def test_a_schema_that_the_subject_refuses_stops_the_start_with_the_registrys_words(
    world: World, orders: Orders
) -> None:
    subject = f"{world.sink}-value"
    orders.client.register_schema(subject, orders.format.other(world.sink.replace("-", "_")))
    orders.client.set_compatibility(subject, level="BACKWARD")
    driver = world.start(environment=orders.environment)
    assert driver.wait() == 64, driver.output()[-3000:]
    assert f"a schema for subject {subject}: " in driver.output()
    assert f"Incompatible artifact: {subject}" in driver.output()
    assert world.ledger() == ([], []), "nobody is fenced, nothing is claimed"


MISFITS: Mapping[str, Callable[[bytes], bytes | None]] = {
    "it has no value (a tombstone)": lambda good: None,
    "it is not in a schema registry's wire format: its first byte is 0x7b, not 0x00": lambda good: b'{"id": 1}',
    "it is not in a schema registry's wire format: 3 bytes": lambda good: good[:3],
    "the schema registry has no schema 987654": lambda good: b"\0" + (987654).to_bytes(4, "big") + good[5:],
}


@pytest.mark.slow
@pytest.mark.parametrize("guarantee", ["exactly_once", "at_least_once"])
def test_old_and_new_schemas_in_one_batch_are_written_once_and_bad_records_with_place_and_reason(
    world: World, orders: Orders, guarantee: str
) -> None:
    bad_topic = f"{world.sink}.bad"
    admin = AdminClient(dict(world.config))
    admin.create_topics([NewTopic(bad_topic, 1, 1)])[bad_topic].result(30)
    orders.send(400, new=lambda number: number % 3 == 0)
    good = orders.encoded(1, new=False)
    bad = {reason: spoil(good) for reason, spoil in {**MISFITS, **orders.format.misfits}.items()}
    orders.produce(*bad.values())
    driver = world.start(environment={**orders.environment, "TEST_BAD_RECORDS": "topic", "TEST_GUARANTEE": guarantee})
    assert driver.wait() == 0, driver.output()[-3000:]
    orders.check()
    values = {}
    for record in read_committed(world.config, bad_topic):
        headers = dict(record.headers)
        assert headers["exactlyonce.origin"].decode().startswith(f"{world.source}-")
        values[headers["exactlyonce.reason"].decode()] = record.value
    assert values == bad
    assert [commit.bad_records for commit in world.ledger()[0]] == [len(bad)]
    written = orders.client.get_latest_version(f"{world.sink}-value").schema.schema_str
    assert orders.format.fields(str(written)) == ["id", "k", "twice", "note"]


@contextmanager
def answering_registry(server: Apicurio, number: int, *answers: tuple[int, int, str]) -> Iterator[str]:
    """Give the URL of a registry that answers the first requests for a schema's id with errors.

    :param answers: status, code and message of each; all have to be asked for
    """
    left = list(answers)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path.partition("?")[0].endswith(f"/schemas/ids/{number}") and left:
                status, code, message = left.pop(0)
                self.answer(status, json.dumps({"error_code": code, "message": message}).encode())
            else:
                self.forward(None)

        def do_POST(self) -> None:
            self.forward(self.rfile.read(int(self.headers["Content-Length"])))

        def forward(self, body: bytes | None) -> None:
            headers = {"Content-Type": "application/json"} if body is not None else {}
            try:
                with urlopen(Request(f"http://127.0.0.1:{server.port}{self.path}", body, headers)) as response:
                    self.answer(response.status, response.read())
            except HTTPError as refused:
                self.answer(refused.code, refused.read())

        def answer(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as proxy:
        thread = threading.Thread(target=proxy.serve_forever)
        thread.start()
        yield server.url.replace(str(server.port), str(proxy.server_port))
        proxy.shutdown()
        thread.join()
    assert left == []


@pytest.mark.slow
def test_a_record_whose_schema_is_there_when_bad_ones_are_looked_at_again_is_not_lost(
    world: World, orders: Orders, registry_server: Apicurio
) -> None:
    admin = AdminClient(dict(world.config))
    bad_topic = f"{world.sink}.bad"
    admin.create_topics([NewTopic(bad_topic, 1, 1)])[bad_topic].result(30)
    orders.send(1, new=lambda _: True)
    number = int.from_bytes(orders.encoded(0, new=True)[1:5], "big")
    late = (404, 40403, "Schema not found")
    with answering_registry(registry_server, number, late, late) as url:
        environment = {**orders.environment, "EXACTLYONCE_SCHEMA_REGISTRY": url, "TEST_BAD_RECORDS": "topic"}
        driver = world.start(environment=environment)
        assert driver.wait() == 0, driver.output()[-3000:]
    assert "1 source records were left out, and 0 of them were bad when they were looked at again" in driver.output()
    orders.check()
    assert read_committed(world.config, bad_topic) == []


@pytest.mark.slow
def test_credentials_that_the_registry_refuses_in_a_task_end_the_driver_for_good(
    world: World, orders: Orders, registry_server: Apicurio
) -> None:
    orders.send(30, new=lambda _: True)
    number = int.from_bytes(orders.encoded(0, new=True)[1:5], "big")
    with answering_registry(registry_server, number, (401, 40101, "Unauthorized")) as url:
        driver = world.start(environment={**orders.environment, "EXACTLYONCE_SCHEMA_REGISTRY": url})
        assert driver.wait() == 64, driver.output()[-3000:]
    assert "Unauthorized" in driver.output()
    assert "check the credentials: EXACTLYONCE_SCHEMA_REGISTRY has them" in driver.output()
    assert world.commits() == 0
    assert world.start(environment=orders.environment).wait() == 0
    orders.check()


@pytest.mark.slow
def test_a_bad_record_stops_the_pipeline_before_its_batch_commits(world: World, orders: Orders) -> None:
    orders.send(30, new=lambda _: False)
    orders.produce(b"no value of a registry")
    driver = world.start(environment=orders.environment)
    assert driver.wait() == 67, driver.output()[-3000:]
    assert f"BadRecordError: {world.source}-" in driver.output()
    assert "its first byte is 0x6e, not 0x00" in driver.output()
    assert world.commits() == 0


@pytest.mark.slow
def test_a_registry_that_is_down_in_mid_stream_costs_no_record(
    world: World, orders: Orders, registry_server: Apicurio
) -> None:
    orders.send(60, new=lambda _: False)
    driver = world.start(environment=orders.environment)
    assert driver.wait() == 0, driver.output()[-3000:]
    orders.send(60, new=lambda number: number % 2 == 0)
    environment = {**orders.environment}
    environment["EXACTLYONCE_SCHEMA_REGISTRY"] = json.dumps(
        {"url": registry_server.url, "max.retries": 1, "retries.wait.ms": 10}
    )
    held = world.home.with_name("held")
    again = world.start(environment=environment, failpoints=f"after-claim:run=2:hold={held}")
    eventually(held.exists, lambda: f"the second run holds: {again.output()[-3000:]}")
    registry_server.kill()
    held.unlink()
    code = again.wait()
    registry_server.start()
    assert code == 1, again.output()[-3000:]
    assert "does not answer" in again.output()
    assert world.commits() == 1, "nothing was committed, and nothing taken for bad"
    last = world.start(environment=environment)
    assert last.wait() == 0, last.output()[-3000:]
    orders.check()
