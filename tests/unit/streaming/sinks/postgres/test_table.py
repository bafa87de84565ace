"""What a server's errors mean while a table is looked up; the server is played."""

from __future__ import annotations

from typing import Any, cast

import psycopg
import pytest
from pyspark.sql.types import StringType

from airflow_provider_exactlyonce.exceptions import BatchFailedError, RefusedError
from airflow_provider_exactlyonce.streaming.sinks.postgres.table import PostgresColumn, find


class Server:
    """Answers the first so many queries with a row, and the next with an error."""

    def __init__(self, error: psycopg.Error, answered: int) -> None:
        self.error, self.answered = error, answered

    def execute(self, query: str, arguments: Any) -> Any:
        if self.answered == 0:
            raise self.error
        self.answered -= 1
        return self

    def fetchone(self) -> Any:
        return 1, "public", "orders", "r", False


@pytest.mark.parametrize("answered", [0, 1, 2])
@pytest.mark.parametrize("error", [psycopg.errors.AdminShutdown("shut down"), psycopg.OperationalError("closed")])
def test_a_server_that_goes_away_is_no_refusal(error: psycopg.Error, answered: int) -> None:
    with pytest.raises(BatchFailedError, match=r"looking orders up"):
        find(cast(Any, Server(error, answered)), "orders", ["INSERT"])


@pytest.mark.parametrize(
    "error",
    [psycopg.errors.InvalidName("invalid name syntax"), psycopg.errors.FeatureNotSupported("cross-database")],
)
def test_a_text_that_is_no_name_is_refused(error: psycopg.Error) -> None:
    with pytest.raises(RefusedError, match="can't be looked up"):
        find(cast(Any, Server(error, 0)), "a.b.c", ["INSERT"])


@pytest.mark.parametrize(("base", "holds"), [("text", True), ("varchar", True), ("name", False)])
def test_a_type_that_cuts_texts_without_an_error_holds_none(base: str, *, holds: bool) -> None:
    column = PostgresColumn("v", base, base, False, False, -1, False, False, False, None)
    assert (column.refuses(StringType()) is None) is holds
