"""Gates of pipelines whose ledgers are longer than what is read of them: what older commits wrote, on a real broker."""

from __future__ import annotations

import pytest
from confluent_kafka import Producer

from airflow_provider_exactlyonce.ledger.gate import check
from airflow_provider_exactlyonce.ledger.gate_target import GateTarget
from tests.integration.hand_written import HandWrittenPipeline, send
from tests.waiting import eventually

MANY = 1_200


@pytest.mark.parametrize("ends", ["abort", pytest.param("commit", marks=pytest.mark.slow)])
def test_a_partition_that_only_the_oldest_commit_wrote_keeps_every_gate_closed_while_it_is_held(
    pipeline: HandWrittenPipeline, foreign: Producer, ends: str
) -> None:
    foreign.begin_transaction()
    send(foreign, pipeline.sink, {0: [(b"k", b"v")]})
    pipeline.commit({0: 1, 1: 1}, read_up_to={0: 1}, watermark=1_800_000_000_000)
    pipeline.commit_often(1, MANY)
    pipeline.commit({1: 1}, read_up_to={0: pipeline.ends[0] + 1}, watermark=1_800_000_000_001)
    gates = [
        GateTarget(commit=1),
        GateTarget(commit=MANY),
        GateTarget(offsets={pipeline.source: {0: 1}}),
        GateTarget(offsets={pipeline.source: {0: MANY}}),
        GateTarget(watermark=1_800_000_000_001),
    ]
    for target in gates:
        verdict = check(pipeline.config, pipeline.name, target)
        assert not verdict.open, target
        assert verdict.missing == f"{pipeline.sink}-0: last stable offset 0 has not passed 1"
    getattr(foreign, f"{ends}_transaction")(30)
    for target in gates:
        eventually(lambda: check(pipeline.config, pipeline.name, target).open, f"{target} is open")  # noqa: B023
