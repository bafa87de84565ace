"""What sinks are made of, behind the seam of a rehearsal: file systems and databases whose calls can fail."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import psycopg
import pytest
import sqlalchemy as sa
from pyiceberg.catalog.sql import SqlCatalog

from airflow_provider_exactlyonce.streaming.sinks.delta import committer as delta_committer
from airflow_provider_exactlyonce.streaming.sinks.delta.log import DeltaLog
from airflow_provider_exactlyonce.streaming.sinks.delta.storage import open_files
from airflow_provider_exactlyonce.streaming.sinks.iceberg.catalog import IcebergTable
from airflow_provider_exactlyonce.streaming.sinks.iceberg.storage import TableFiles
from airflow_provider_exactlyonce.streaming.sinks.write_ahead_log import sink as write_ahead_log
from airflow_provider_exactlyonce.streaming.sinks.write_ahead_log.storage import open_storage
from airflow_provider_exactlyonce.testing.fault_injection import InjectedFaultError, target_call

_T = TypeVar("_T")


class FaultyStorage:
    """A storage whose calls can fail, and whose client repeats a request that got no answer."""

    STEPS = ("create", "replace", "remove", "read", "first_line", "names", "size", "keep")

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._inner, name)
        if name not in self.STEPS:
            return attribute
        return lambda *given: target_call(f"storage.{name}", lambda: attribute(*given))

    def check_exclusive(self, folder: str) -> None:
        self._inner.check_exclusive(folder)


class FaultyTable(FaultyStorage):
    """A table's directory, in which the driver copies files, too; a file that can't be opened is not opened."""

    def open(self, name: str) -> Any:
        target_call("storage.open", lambda: None)
        return self._inner.open(name)

    def open_new(self, name: str) -> Any:
        target_call("storage.open_new", lambda: None)
        return self._inner.open_new(name)


def write_ahead_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the file systems of write-ahead logs fail."""

    def opened(path: str, options: Any) -> Any:
        return FaultyStorage(open_storage(path, options))

    monkeypatch.setattr(write_ahead_log, "open_storage", opened)


def delta(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the log and the files of the Delta sink's table fail."""

    def faulty(step: str, real: Callable[..., _T]) -> Callable[..., _T]:
        return lambda *given, **named: target_call(f"storage.{step}", lambda: real(*given, **named))

    for step in ("open", "refresh", "create", "append"):
        monkeypatch.setattr(DeltaLog, step, faulty(f"log-{step}", getattr(DeltaLog, step)))
    monkeypatch.setattr(delta_committer, "open_files", lambda path, options: FaultyTable(open_files(path, options)))


def iceberg(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the catalog and the files of the Iceberg sink's table fail."""

    def faulty(step: str, real: Callable[..., _T]) -> Callable[..., _T]:
        return lambda *given, **named: target_call(f"storage.{step}", lambda: real(*given, **named))

    for step in ("open", "refresh", "create"):
        monkeypatch.setattr(IcebergTable, step, faulty(f"catalog-{step}", getattr(IcebergTable, step)))
    # A client that repeats a request repeats what it requires, too.
    monkeypatch.setattr(SqlCatalog, "commit_table", faulty("catalog-commit", SqlCatalog.commit_table))
    for step in ("replace", "remove", "remove_below", "read", "below", "size", "keep"):
        monkeypatch.setattr(TableFiles, step, faulty(step, getattr(TableFiles, step)))


class FaultyPostgres(psycopg.Connection[Any]):
    """A connection that is lost with an answer, or before a request; what it has sent takes place."""

    def execute(self, *given: Any, **named: Any) -> Any:
        try:
            return target_call("postgres.execute", lambda: super(FaultyPostgres, self).execute(*given, **named))
        except InjectedFaultError as error:
            self.close()
            raise psycopg.OperationalError(str(error)) from error


def postgres(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the connections of the PostgreSQL sink fail."""
    monkeypatch.setattr(psycopg, "connect", FaultyPostgres.connect)


def sqlalchemy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the statements and commits of the idempotent sink fail."""

    def faulty(step: str, real: Callable[..., _T]) -> Callable[..., _T]:
        def call(connection: sa.Connection, *given: Any, **named: Any) -> _T:
            try:
                return target_call(step, lambda: real(connection, *given, **named))
            except InjectedFaultError as error:
                raise sa.exc.OperationalError(step, None, error) from error

        return call

    monkeypatch.setattr(sa.Connection, "commit", faulty("database.commit", sa.Connection.commit))
    monkeypatch.setattr(sa.Connection, "execute", faulty("database.execute", sa.Connection.execute))
