"""Readers of a source's values in its tasks, by the schemas of a registry."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import pyarrow as pa

from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.streaming.registry import avro_types, connection, protobuf_schemas, protobuf_types
from airflow_provider_exactlyonce.streaming.registry.avro_decoder import AvroDecoder
from airflow_provider_exactlyonce.streaming.registry.connection import Registry, RegistryAddress
from airflow_provider_exactlyonce.streaming.registry.protobuf_decoder import ProtobufDecoder
from airflow_provider_exactlyonce.streaming.registry.wire_format import Decoder, WireDecoder


@dataclass(frozen=True)
class AvroReader:
    """Reads values of any schemas that the registry knows as one of its own; pickled to the tasks.

    :param schema: that it reads them as, JSON
    :param address: of the registry
    """

    schema: str
    address: RegistryAddress

    @functools.lru_cache  # noqa: B019  # a process has few, and its look-ups serve all of its tasks
    def open(self) -> WireDecoder:
        """Return the decoder of the values, the same one in all tasks of a process."""
        reader = avro_types.parse(self.schema)

        def decoder(number: int, schema: str, referred: Mapping[str, str]) -> Decoder:
            named: dict[str, avro_types.AvroType] = {}
            for text in referred.values():
                named |= avro_types.named_types(avro_types.parse(text, named))
            return AvroDecoder(avro_types.parse(schema, named), reader)

        return _wire_decoder(avro_types.arrow_type(reader), connection.connect(self.address), "AVRO", decoder)


@dataclass(frozen=True)
class ProtobufReader:
    """Reads Protobuf values of any schemas that the registry knows as some columns; pickled to the tasks.

    :param columns: that it reads them as
    :param address: of the registry
    """

    columns: tuple[protobuf_types.Column, ...]
    address: RegistryAddress

    @functools.lru_cache  # noqa: B019  # as above
    def open(self) -> WireDecoder:
        """Return the decoder of the values, the same one in all tasks of a process."""

        def decoder(number: int, schema: str, referred: Mapping[str, str]) -> Decoder:
            return ProtobufDecoder(protobuf_schemas.compiled(schema, tuple(referred.items())), self.columns, number)

        protobuf_schemas.check_compiler()
        kind = protobuf_types.struct_of(self.columns)
        return _wire_decoder(kind, connection.connect(self.address), "PROTOBUF", decoder)


def _wire_decoder(
    kind: pa.StructType, registry: Registry, name: str, decoder: Callable[[int, str, Mapping[str, str]], Decoder]
) -> WireDecoder:
    def find(number: int) -> Decoder | str | None:
        schema = registry.schema(number)
        if schema is None:
            return None
        if schema.schema_type != name:
            return f"schema {number} of the registry is {schema.schema_type}, not {name}"
        referred = registry.referred(schema)
        try:
            return decoder(number, str(schema.schema_str), referred)
        except RefusedError as error:
            return f"schema {number} of the registry can't be read: {error}"

    return WireDecoder(kind, find)
