"""A pipeline's home: its one directory.

::

    <home>/home.json                      identity of the home
    <home>/current                        which lineage is in use
    <home>/lineages/<id>/lineage.json     what the lineage remembers of its ledger
    <home>/lineages/<id>/checkpoint/      Spark's checkpoint, Spark's query id is <id>
    <home>/savepoints/
    <home>/control/lease.json, status.json, intent.json, commands/, logs/
"""

from __future__ import annotations

import json
import uuid
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from airflow_provider_exactlyonce.control import documents
from airflow_provider_exactlyonce.exceptions import RefusedError

SCHEMA: Final = 1


@dataclass(frozen=True, kw_only=True)
class Lineage:
    """What a lineage remembers of the ledger it belongs to.

    :param id: Spark's query id
    :param cluster_id: the Kafka cluster of the ledger, None before the first claim
    :param ledger_topic_id: the ledger topic's id, None before the first claim
    :param last_commit: number of the last commit that the driver has seen, 0 for none
    """

    id: str
    cluster_id: str | None = None
    ledger_topic_id: str | None = None
    last_commit: int = 0


class Home:
    """Reads and writes the documents of one pipeline's home.

    :param location: a local path or a ``file:`` URI
    :raises RefusedError: when the location is of another kind
    """

    def __init__(self, location: str | Path) -> None:
        self.path: Final = _local_path(str(location))
        self.control: Final = self.path / "control"
        self.lease: Final = self.control / "lease.json"
        self.status: Final = self.control / "status.json"
        self.intent: Final = self.control / "intent.json"
        self.commands: Final = self.control / "commands"
        self.logs: Final = self.control / "logs"

    def __repr__(self) -> str:
        return f"Home({str(self.path)!r})"

    def identity(self) -> str | None:
        """Return the home's id, None when the directory is no home (yet)."""
        body = documents.read(self.path / "home.json")
        return str(body["id"]) if body else None

    def pipeline(self) -> str | None:
        """Return the name of the pipeline whose home this is."""
        body = documents.read(self.path / "home.json")
        return str(body["pipeline"]) if body else None

    def current(self) -> Lineage | None:
        """Return the lineage in use, None when there is none yet.

        :raises RefusedError: when the pointer is there and its lineage isn't
        """
        pointer = documents.read(self.path / "current")
        if pointer is None:
            return None
        body = documents.read(self.path / "lineages" / pointer["lineage"] / "lineage.json")
        if body is None:
            raise RefusedError(
                f"{self.path / 'current'} points to lineage {pointer['lineage']}, whose lineage.json is missing or torn; "
                "put it back from a copy of the home"
            )
        return Lineage(**{key: value for key, value in body.items() if key != "schema"})

    def checkpoint(self, lineage_id: str) -> Path:
        """Return Spark's checkpoint directory of a lineage."""
        return self.path / "lineages" / lineage_id / "checkpoint"

    def create(self, pipeline: str) -> Lineage:
        """Make the home and its first lineage; goes on where an earlier call was killed.

        The pointer is written last: before it, the directory counts as empty.
        """
        if self.identity() is None:
            body = {"schema": SCHEMA, "id": str(uuid.uuid4()), "pipeline": pipeline}
            documents.write(self.path / "home.json", body)
        lineage = Lineage(id=str(uuid.uuid4()))
        checkpoint = self.checkpoint(lineage.id)
        checkpoint.mkdir(parents=True, mode=0o700)
        (checkpoint / "metadata").write_text(json.dumps({"id": lineage.id}, separators=(",", ":")))
        self.remember(lineage)
        documents.write(self.path / "current", {"schema": SCHEMA, "lineage": lineage.id})
        return lineage

    def remember(self, lineage: Lineage, *, durable: bool = True) -> None:
        """Write what the lineage remembers."""
        body: dict[str, Any] = {"schema": SCHEMA, **asdict(lineage)}
        documents.write(self.path / "lineages" / lineage.id / "lineage.json", body, durable=durable)


def advanced(lineage: Lineage, *, last_commit: int) -> Lineage:
    """Return the lineage as it is after a commit."""
    return replace(lineage, last_commit=last_commit)


def _local_path(location: str) -> Path:
    parts = urlsplit(location)
    if parts.scheme not in ("", "file"):
        raise RefusedError(f"checkpoint={location!r}: homes are local paths or file: URIs; {parts.scheme}: is not read")
    return Path(parts.path if parts.scheme else location).expanduser().resolve()
