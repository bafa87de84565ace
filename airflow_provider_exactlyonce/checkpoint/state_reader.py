"""Opens state with Spark's own reader: a query can continue from any state that it can read."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_exactlyonce.checkpoint.manifest import Savepoint
from airflow_provider_exactlyonce.checkpoint.state import DEFAULT_STORE, StatefulOperator
from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.storage.opening import hadoop_url
from airflow_provider_exactlyonce.streaming import file_systems

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

STATE_FORMAT_VERSION: Final = "spark.sql.streaming.stateStore.checkpointFormatVersion"
_JOIN: Final = "symmetricHashJoin"


def read_state(
    checkpoint: Path, savepoint: Savepoint, spark: SparkSession | None = None
) -> tuple[list[dict[str, Any]], list[str]]:
    """Count the rows of every operator and store.

    :param checkpoint: where the savepoint's checkpoint lies; the paths in its state's metadata must be its own
    :param spark: the session to use, None to make one here that ends with the call
    :returns: [{operator, name, store, rows}] and a sentence for each store that can't be read
    :raises RefusedError: when pyspark is not installed
    """
    counts: list[dict[str, Any]] = []
    errors: list[str] = []
    with nullcontext(spark) if spark else local_session("exactlyonce savepoint verify", checkpoint) as session:
        for operator in savepoint.operators:
            for store, _, options in views(operator):
                try:
                    rows = read_view(
                        session, checkpoint, savepoint.batch, operator, options, state_format=savepoint.state_format
                    ).count()
                except Exception as error:
                    errors.append(
                        f"operator {operator.id} ({operator.name}), {store}: Spark can't read it: {cause(error)}"
                    )
                else:
                    counts.append({"operator": operator.id, "name": operator.name, "store": store, "rows": rows})
    return counts, errors


def cause(error: Exception) -> str:
    """Return the innermost of the JVM's exceptions, without its stack."""
    lines = str(error).splitlines() or [type(error).__name__]
    causes = [line.strip() for line in lines if line.startswith(("Caused by: ", ": "))]
    return causes[-1].removeprefix("Caused by").lstrip(": ") if causes else lines[0]


def read_view(
    session: SparkSession,
    checkpoint: Path,
    batch: int,
    operator: StatefulOperator,
    options: Mapping[str, str],
    *,
    state_format: int,
) -> DataFrame:
    """Return an operator's state as of a batch, by Spark's reader.

    :param checkpoint: the paths in its state's metadata must be its own
    :param options: of one of the operator's :func:`views`
    :param state_format: Spark's checkpoint format of the state, 1 or 2
    """
    session.conf.set(STATE_FORMAT_VERSION, str(state_format))
    _ = session.streams.active  # in a session that has not run a query, it makes the endpoint that state is opened with
    reader = session.read.format("statestore").option("batchId", batch).option("operatorId", operator.id)
    return reader.options(**options).load(hadoop_url(checkpoint))


def views(operator: StatefulOperator) -> Iterator[tuple[str, str | None, dict[str, str]]]:
    """Yield the parts that Spark's reader opens one at a time: (name, kind of a state variable or None, options)."""
    variables = operator.properties.get("stateVariables")
    if variables is not None:
        timers = [variable for variable in variables if variable["stateVariableType"] == "TimerState"]
        for variable in variables:
            if variable not in timers:
                yield variable["stateName"], variable["stateVariableType"], {"stateVarName": variable["stateName"]}
        if timers:
            yield "timers", None, {"readRegisteredTimers": "true"}
    elif operator.name == _JOIN and operator.stores == (DEFAULT_STORE,):
        for side in ("left", "right"):
            yield side, None, {"joinSide": side}
    else:
        for store in operator.stores:
            yield store, None, {"storeName": store}


@contextmanager
def local_session(name: str, place: Path) -> Iterator[SparkSession]:
    """Give a session of this process, for commands that read or write state, and stop it at the end.

    :param name: the application's name
    :param place: where the state is
    :raises RefusedError: when pyspark is not installed
    """
    try:
        from pyspark.sql import SparkSession
    except ImportError:
        raise RefusedError(
            "pyspark is not installed, so the state can't be opened: install airflow-provider-exactlyonce[spark]; a "
            "savepoint can be verified without it: --no-state"
        ) from None
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = (
        SparkSession.builder.master("local[*]")
        .appName(name)
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "ERROR")
    )
    for setting, value in file_systems.session_settings(place).items():
        builder = builder.config(setting, value)
    session = builder.getOrCreate()
    try:
        file_systems.give_access(session, place)
        yield session
    finally:
        session.stop()
