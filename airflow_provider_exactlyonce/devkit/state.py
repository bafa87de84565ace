"""The file with which another process, or a start after a crash, finds a broker again."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from airflow_provider_exactlyonce.devkit.configuration import HOST
from airflow_provider_exactlyonce.devkit.errors import DevkitError
from airflow_provider_exactlyonce.devkit.process import ProcessIdentity
from airflow_provider_exactlyonce.files import replacing

STATE_NAME: Final = "broker.json"
SCHEMA_VERSION: Final = 1


@dataclass(frozen=True, kw_only=True)
class BrokerState:
    """A broker process and where it listens."""

    process: ProcessIdentity
    port: int
    cluster_id: str

    @property
    def bootstrap_servers(self) -> str:
        """The address for clients."""
        return f"{HOST}:{self.port}"

    def save(self, data_directory: Path) -> None:
        """Write the state file, whole or not at all."""
        with replacing(data_directory / STATE_NAME, durable=False, mode=0o644) as file:
            file.write(json.dumps({"schema": SCHEMA_VERSION, **asdict(self)}).encode())

    @classmethod
    def load_living(cls, data_directory: Path) -> BrokerState | None:
        """Return the broker that runs on this data, None when there is none.

        A file left by a killed broker is no broker, and neither is a process that merely has its id.

        :raises DevkitError: when the file is of another version
        """
        path = data_directory / STATE_NAME
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
            if document["schema"] != SCHEMA_VERSION:
                raise DevkitError(f"{path} has schema {document['schema']!r}, this version knows {SCHEMA_VERSION}")
            process = ProcessIdentity(**document["process"])
            state = cls(process=process, port=int(document["port"]), cluster_id=str(document["cluster_id"]))
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError) as error:
            raise DevkitError(f"{path} is damaged ({error!r}); remove it once no broker runs on this data") from error
        return state if process.is_alive() else None

    @staticmethod
    def remove(data_directory: Path) -> None:
        """Forget the broker of this data."""
        (data_directory / STATE_NAME).unlink(missing_ok=True)
