"""A compiler of Protobuf schemas that does not answer."""

from __future__ import annotations

import subprocess

import pytest

from airflow_provider_exactlyonce.exceptions import BatchFailedError
from airflow_provider_exactlyonce.streaming.registry import protobuf_schemas


def test_a_compiler_that_hangs_says_nothing_of_the_schema(monkeypatch: pytest.MonkeyPatch) -> None:
    def hangs(*_: object, **options: object) -> None:
        raise subprocess.TimeoutExpired("protoc", 60.0)

    monkeypatch.setattr(subprocess, "run", hangs)
    with pytest.raises(BatchFailedError, match="protoc has said nothing of a schema for 60 s"):
        protobuf_schemas.compiled('syntax = "proto3"; message Hanging { int64 n = 1; }')
