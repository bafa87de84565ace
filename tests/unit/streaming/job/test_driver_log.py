from __future__ import annotations

import io
import logging

from airflow_provider_exactlyonce.streaming.job.driver_log import AWAY, ClusterAway


def test_a_cluster_that_is_away_is_told_once_a_minute_with_a_count_and_nothing_else_is_held_back() -> None:
    now, written = [0.0], io.StringIO()
    handler = logging.StreamHandler(written)
    handler.addFilter(ClusterAway(clock=lambda: now[0]))
    kafka, own = logging.Logger("kafka.net.manager"), logging.Logger("exactlyonce")
    for logger in (kafka, own):
        logger.addHandler(handler)
    for second in range(130):
        now[0] = float(second)
        kafka.error("Connection failed: %s", "111 ECONNREFUSED")
        own.warning("lag: %s", "no answer", extra=AWAY)
        if second % 50 == 0:
            own.info("commit %d", second)
    assert written.getvalue().splitlines() == [
        "Kafka: Connection failed: 111 ECONNREFUSED",
        "commit 0",
        "commit 50",
        "Kafka: Connection failed: 111 ECONNREFUSED (119 such messages since the last one)",
        "commit 100",
        "Kafka: Connection failed: 111 ECONNREFUSED (119 such messages since the last one)",
    ]
