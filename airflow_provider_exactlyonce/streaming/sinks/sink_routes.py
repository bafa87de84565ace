"""From a query's result to one column per sink, so that one plan, run once, serves them all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.streaming.sinks.row_digest import row_digest
from airflow_provider_exactlyonce.streaming.sinks.spi import Share

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

_ALL: Final = ("*",)
_PREFIX: Final = "_exactlyonce_"
#: Whether a row is in the Kafka sink's share, when that is not the whole result.
KAFKA_COLUMN: Final = f"{_PREFIX}kafka"
DIGEST_FIELD: Final = f"{_PREFIX}digest"


def column_of(position: int) -> str:
    """Return the name of the column with a sink's rows: a struct of them and :data:`DIGEST_FIELD`, null for others."""
    return f"{_PREFIX}{position}"


@dataclass(frozen=True, kw_only=True, repr=False)
class SinkRoutes:
    """Which rows of a query's result each sink gets.

    :param kafka: the Kafka sink's share, None when no sink is Kafka
    :param others: the other sinks', in declared order
    """

    kafka: Share | None
    others: Sequence[Share]

    def __repr__(self) -> str:
        return f"Shares(kafka={self.kafka!r}, others={self.others!r})"  # pipelines' versions are made of this text

    @property
    def declared(self) -> object:
        """The routes' part in the pipeline's version; a Kafka sink that gets everything is only itself."""
        if not self.others and self.kafka == Share(self.kafka.sink if self.kafka else None):
            return self.kafka.sink
        return self

    @property
    def facts(self) -> Mapping[str, tuple[str, ...]]:
        """The properties that readers notice, and a new version of the job may change."""
        kafka = dict(self.kafka.sink.facts) if self.kafka is not None else {}
        if not self.others:
            return kafka
        sink_facts = {f"sink {route.sink.name}": _share_facts(route) for route in self.others}
        return {**kafka, "sinks": tuple(sink_facts), **sink_facts}

    @property
    def names(self) -> list[str]:
        """The Kafka sink's topics, and the other sinks' names."""
        topics = self.kafka.sink.topics if self.kafka is not None else []
        return [*topics, *(route.sink.name for route in self.others)]

    @property
    def carried(self) -> list[str]:
        """The columns of :meth:`of` that are not the Kafka sink's."""
        condition = [KAFKA_COLUMN] if self.kafka is not None and self.kafka.where is not None else []
        return [*condition, *(column_of(position) for position in range(len(self.others)))]

    def check(self, result: DataFrame) -> None:
        """Check that the shares fit the result, and that each sink takes the columns of its share.

        :raises RefusedError: when one does not
        """
        for share in self.others:
            share.sink.check_columns(_checked(result, share).schema)

    def kafka_rows(self, result: DataFrame) -> DataFrame:
        """Return the Kafka sink's rows alone.

        :raises RefusedError: when its share does not fit the result
        """
        return result if self.kafka is None else _checked(result, self.kafka)

    def other_rows(self, result: DataFrame) -> dict[str, DataFrame]:
        """Return the rows of each of the other sinks by its name.

        :raises RefusedError: when a share does not fit the result
        """
        return {share.sink.name: _checked(result, share) for share in self.others}

    def of(self, result: DataFrame) -> DataFrame:
        """Return the result as one column for each of the other sinks, and the Kafka sink's columns.

        :param result: the result of the pipeline's function
        :raises RefusedError: when a share does not fit it
        """
        from pyspark.sql import functions as F

        columns = {
            column_of(position): _share_column(share, _checked(result, share).schema)
            for position, share in enumerate(self.others)
        }
        if self.kafka is None:
            return result.select(*[column.alias(name) for name, column in columns.items()])
        if self.kafka.where is not None:
            columns[KAFKA_COLUMN] = F.coalesce(F.expr(self.kafka.where), F.lit(False))
        if not columns and self.kafka.select == _ALL:
            return result
        _checked(result, self.kafka)
        selected = [f"`{name}`" for name in result.columns] if self.kafka.select == _ALL else self.kafka.select
        return result.select(
            *[F.expr(text) for text in selected], *[column.alias(name) for name, column in columns.items()]
        )


def _share_facts(share: Share) -> tuple[str, ...]:
    facts = [f"{key}={','.join(values)}" for key, values in sorted(share.sink.facts.items())]
    return (*facts, f"where={share.where}", f"select={','.join(share.select)}")


def _share_column(share: Share, columns: StructType) -> Column:
    from pyspark.sql import functions as F

    rows = F.expr(f"struct({', '.join(share.select)})")
    values = [rows.getField(field.name) for field in columns.fields]
    digest = row_digest(values, [field.dataType for field in columns.fields]).alias(DIGEST_FIELD)
    whole = F.struct(*[value.alias(name) for value, name in zip(values, columns.names, strict=True)], digest)
    return whole if share.where is None else F.when(F.expr(share.where), whole)


def _checked(result: DataFrame, share: Share) -> DataFrame:
    from pyspark.errors import AnalysisException

    parameter = "where" if share.where is not None else "select"
    try:
        rows = result if share.where is None else result.where(share.where)
        parameter = "select"
        rows = rows.selectExpr(*share.select)
    except AnalysisException as error:
        raise RefusedError(
            f"Share({parameter}={getattr(share, parameter)!r}) does not fit the result, which has the columns "
            f"{', '.join(result.columns)}: {str(error).splitlines()[0]}"
        ) from error
    if len(set(rows.columns)) < len(rows.columns):
        raise RefusedError(f"Share(select={share.select!r}): two columns have one name; give one of them an alias")
    return rows
