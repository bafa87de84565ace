"""How much larger a broker's codec may make records."""

from __future__ import annotations

import random

import pytest

from airflow_provider_exactlyonce.kafka.broker_compression import growth
from airflow_provider_exactlyonce.kafka.compression import ATTRIBUTES, BLOCK_BYTES, Compression


@pytest.mark.parametrize("codec", [name for name in ATTRIBUTES if name != "none"])
def test_nothing_grows_more_than_a_codec_may_make_it_grow(codec: str) -> None:
    for length in (0, 1, 1_000, BLOCK_BYTES, 3 * BLOCK_BYTES + 5):
        noise = random.Random(length).randbytes(length)
        assert len(Compression(codec).compress(memoryview(noise))) <= length + growth(codec, length)


@pytest.mark.parametrize("kind", ["producer", "uncompressed"])
def test_a_topic_without_a_codec_of_its_own_makes_nothing_grow(kind: str) -> None:
    assert growth(kind, 1_000_000) == 0
