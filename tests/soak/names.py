"""What the two pipelines, their topics and tables are called, and where they are: bookings -> posted -> checked."""

from __future__ import annotations

from pathlib import Path

#: From the bookings to Kafka and PostgreSQL.
POSTED = "soak-posted"
#: From there to Delta.
CHECKED = "soak-checked"
PIPELINES = (POSTED, CHECKED)

BOOKINGS_TOPIC = "soak.bookings"
POSTED_TOPIC = "soak.posted"
PARTITIONS = 4

POSTGRES_TABLE = "posted"
POSTGRES_CONNECTION = "postgres_default"
DELTA_TABLE = "s3://bucket/checked"
STORE_CONNECTION = "soak_store"

VERSIONS = ("first", "second")
#: In Spark's words.
DRIVER_HEAP = "768m"
INTERVAL = "5 seconds"
_JOBS = Path(__file__).with_name("jobs")


def home(folder: Path, pipeline: str) -> Path:
    """Return a pipeline's home."""
    return folder / "homes" / pipeline


def version_file(folder: Path, pipeline: str, version: str) -> Path:
    """Return where the job of a version is."""
    return folder / "versions" / version / f"{pipeline.removeprefix('soak-')}.py"


def write_versions(folder: Path) -> None:
    """Write the job of each version of each pipeline: they differ in a comment, and so are different versions."""
    for pipeline in PIPELINES:
        for version in VERSIONS:
            file = version_file(folder, pipeline, version)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(f"{(_JOBS / file.name).read_text()}\n# {version}\n")
