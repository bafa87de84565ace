"""What the two pipelines, their topics and tables are called: bookings -> posted -> checked."""

from __future__ import annotations

#: From the bookings to Kafka and PostgreSQL.
POSTED = "soak-posted"
#: From there to Delta.
CHECKED = "soak-checked"
PIPELINES = (POSTED, CHECKED)

BOOKINGS_TOPIC = "soak.bookings"
POSTED_TOPIC = "soak.posted"
PARTITIONS = 4

POSTGRES_TABLE = "posted"
DELTA_TABLE = "s3://bucket/checked"

VERSIONS = ("first", "second")
