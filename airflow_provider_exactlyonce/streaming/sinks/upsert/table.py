"""A table of any database that SQLAlchemy knows, and the statements that write rows over those with their key."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import sqlalchemy as sa
from sqlalchemy.dialects import mysql, postgresql, sqlite
from typing_extensions import override

from airflow_provider_exactlyonce.exceptions import BatchFailedError, RecordRefusedError, RefusedError
from airflow_provider_exactlyonce.streaming.sinks.json_text import to_json, without_json
from airflow_provider_exactlyonce.streaming.sinks.table_checks import check_complete, check_has, check_key

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

#: MySQL's and MariaDB's numbers of a CHECK that fails, of a text that is no JSON, and of what is no date or time there,
#: which their drivers take for errors of the server's operation.
_MYSQL_ROW_REFUSED: Final = (3819, 4025, 3140, 1292)


class JsonText(sa.TypeDecorator[Any]):
    """JSON as :func:`to_json` writes it. A text is JSON already, and None is SQL's NULL."""

    impl = sa.JSON
    cache_ok = True

    @override
    def bind_processor(self, dialect: sa.Dialect) -> Callable[[Any], str | None]:
        return lambda value: value if value is None or isinstance(value, str) else to_json(value)


@contextmanager
def connect(url: str) -> Iterator[sa.Connection]:
    """Open a connection that ends with its engine.

    :raises RefusedError: when the URL or its driver can't be used
    :raises BatchFailedError: when the database does not answer
    """
    try:
        # Rows are not put into the texts of errors, which are logged.
        engine = sa.create_engine(url, poolclass=sa.NullPool, hide_parameters=True)
    except (sa.exc.NoSuchModuleError, ImportError) as error:
        raise RefusedError(f"the url of an UpsertSink names a driver that is not here: {error}") from None
    except (sa.exc.ArgumentError, ValueError) as error:  # its text may be of the password
        raise RefusedError(
            f"the url of an UpsertSink can't be used: {type(error).__name__}. It is dialect+driver://user:password@host/"
            "database, with the password's own /, : and @ escaped by urllib.parse.quote_plus"
        ) from None
    if "@" in (engine.url.host or ""):
        raise RefusedError("the password in the url of an UpsertSink has an @: escape it by urllib.parse.quote_plus")
    try:
        connection = engine.connect()
    except sa.exc.SQLAlchemyError as error:
        raise BatchFailedError(f"{shown(engine)} does not answer: {error}") from error
    with connection:
        yield connection


def shown(engine: sa.Engine) -> str:
    """Return a database's URL without its password, and without its parameters: one may be among them."""
    return engine.url.set(query={}).render_as_string(hide_password=True)


def dataset(url: str, table: str) -> tuple[str, str]:
    """Return the namespace and the name that OpenLineage has for a table."""
    server = sa.make_url(url)
    scheme = {"postgresql": "postgres"}.get(server.get_backend_name(), server.get_backend_name())
    host = ":".join(str(part) for part in (server.host, server.port) if part)
    return f"{scheme}://{host}", f"{server.database}.{table}"


@contextmanager
def translated_errors(what: str, table: str) -> Iterator[None]:
    """Turn SQLAlchemy's errors into the project's.

    :raises RecordRefusedError: a row is refused for its content
    :raises BatchFailedError: everything else
    """
    try:
        yield
    except sa.exc.SQLAlchemyError as error:
        if isinstance(error, sa.exc.StatementError) and isinstance(error.orig, RecordRefusedError):
            raise RecordRefusedError(f"table {table}, {what}: {error.orig}") from error
        if isinstance(error, sa.exc.DBAPIError) and _refuses_row(error):
            raise RecordRefusedError(f"table {table} refuses a row, {what}: {error.orig}") from error
        raise BatchFailedError(f"table {table}, {what}: {error}") from error


def _refuses_row(error: sa.exc.DBAPIError) -> bool:
    if isinstance(error, (sa.exc.IntegrityError, sa.exc.DataError)):
        return True
    return error.orig is not None and bool(error.orig.args) and error.orig.args[0] in _MYSQL_ROW_REFUSED


def find(connection: sa.Connection, name: str) -> sa.Table:
    """Read a table from the catalog.

    :raises RefusedError: when there is none
    :raises BatchFailedError: when the database goes away meanwhile
    """
    schema, _, table = name.rpartition(".")
    try:
        reflected = sa.Table(table, sa.MetaData(), schema=schema or None, autoload_with=connection)
    except sa.exc.NoSuchTableError:
        raise RefusedError(f"there is no table {name} in {shown(connection.engine)}: create it") from None
    except sa.exc.SQLAlchemyError as error:
        is_gone = isinstance(error, sa.exc.DBAPIError) and error.connection_invalidated
        kind = BatchFailedError if is_gone else RefusedError
        raise kind(f"table {name} can't be looked up in {shown(connection.engine)}: {error}") from error
    for column in reflected.columns:
        if isinstance(column.type, sa.JSON):
            column.type = JsonText()
    return reflected


def check_columns(
    connection: sa.Connection, table: sa.Table, columns: StructType, key: Sequence[str], commit_column: str | None
) -> None:
    """Check that rows of these columns can be written over those with their key.

    :raises RefusedError: naming the column, or the key
    """
    for name in key:
        if name not in columns.names:
            raise RefusedError(f"the key has the column {name}, and the rows have {', '.join(columns.names)}")
    for field in columns.fields:
        kind = field.dataType.simpleString()
        check_has(table, table.columns.keys(), field.name, kind)
        if isinstance(table.columns[field.name].type, JsonText):
            if (lacking := without_json(field.dataType)) is not None:
                raise RefusedError(
                    f"column {field.name} of table {table} is JSON, which {lacking.simpleString()} in {kind} has not: "
                    "make another type of it"
                )
        elif field.dataType.typeName() in ("array", "map", "struct"):
            raise RefusedError(f"column {field.name} of table {table} must be of type JSON for {kind}")
    if commit_column:
        check_has(table, table.columns.keys(), commit_column)
    if commit_column in columns.names:
        raise RefusedError(f"the rows have commit_column={commit_column!r} themselves: the sink gives its values")
    given = (*columns.names, *([commit_column] if commit_column else []))
    required = [
        column.name
        for column in table.columns
        if not (column.nullable or column.server_default is not None or column.autoincrement is True)
    ]
    check_complete(table, required, given)
    unique = _unique_sets(sa.inspect(connection), table)
    check_key(table, key, unique)
    if connection.dialect.name in ("mysql", "mariadb"):
        _check_no_other_key(table, key, unique, given)


def _unique_sets(inspector: sa.Inspector, table: sa.Table) -> list[Any]:
    """Return the columns that are unique together; an expression, and the beginning of a text, have no name."""
    constraints = inspector.get_unique_constraints(table.name, table.schema)
    indexes = [index for index in inspector.get_indexes(table.name, table.schema) if index["unique"]]
    prefixes = {
        str(index["name"]): {*lengths}
        for index in indexes
        for name, lengths in index.get("dialect_options", {}).items()
        if name.endswith("_length")
    }
    return [
        inspector.get_pk_constraint(table.name, table.schema)["constrained_columns"],
        *(
            constraint["column_names"]
            for constraint in constraints
            if constraint.get("duplicates_index") not in prefixes
        ),
        *(
            [None if name in prefixes.get(str(index["name"]), ()) else name for name in index["column_names"]]
            for index in indexes
        ),
    ]


def _check_no_other_key(
    table: sa.Table, key: Sequence[str], unique: Iterable[Sequence[str | None]], given: Sequence[str]
) -> None:
    """Check that a row can conflict only by its key: ON DUPLICATE KEY changes whichever row it conflicts with.

    :raises RefusedError: naming the columns by which it could conflict with another row
    """
    for names in unique:
        if not names or set(names) >= set(key):
            continue
        # An expression has no name. What the server numbers, or leaves null, meets nothing.
        lacking = [table.columns[name] for name in names if name is not None and name not in given]
        if any(column.autoincrement is True or (column.nullable and not column.server_default) for column in lacking):
            continue
        over = ", ".join(name or "an expression, or the beginning of a text" for name in names)
        raise RefusedError(
            f"table {table} is unique over ({over}), too: ON DUPLICATE KEY UPDATE writes a row over another key's with "
            f"the same there. Drop the constraint, or write to a table that is unique over ({', '.join(key)}) only"
        )


def statements(
    dialect: str, table: sa.Table, columns: Sequence[str], key: Sequence[str], commit_column: str | None
) -> list[Any]:
    """Return the statements that are executed in turn with rows as their parameters.

    :param columns: the rows', with the commit's number when there is a column for it
    """
    updated = [name for name in columns if name not in key]
    if dialect in ("postgresql", "sqlite"):
        insert = (postgresql if dialect == "postgresql" else sqlite).insert(table)
        if not updated:
            return [insert.on_conflict_do_nothing(index_elements=list(key))]
        newer = None if commit_column is None else _commit_of(table, commit_column) <= insert.excluded[commit_column]
        assignments = {name: insert.excluded[name] for name in updated}
        return [insert.on_conflict_do_update(index_elements=list(key), set_=assignments, where=newer)]
    if dialect in ("mysql", "mariadb") and updated:
        return [_on_duplicate(table, updated, commit_column)]
    same_key = sa.and_(*[table.c[name] == sa.bindparam(name) for name in key])
    older = sa.true() if commit_column is None else _commit_of(table, commit_column) <= sa.bindparam(commit_column)
    bound_row = sa.select(*[sa.bindparam(name, type_=table.c[name].type).label(name) for name in columns])
    lacking = bound_row.where(~sa.exists(sa.select(sa.literal_column("1")).select_from(table).where(same_key)))
    return [table.delete().where(same_key, older), table.insert().from_select(list(columns), lacking)]


def parameters(
    rows: Iterable[Mapping[str, Any]], key: Sequence[str], commit_column: str | None, commit: int
) -> list[dict[str, Any]]:
    """Return the last row of each key, as the parameters of :func:`statements`: by the names of its columns, no others.

    :raises RecordRefusedError: when a key has a null: no constraint holds for it, so it would be inserted each time
    """
    commit_values = {} if commit_column is None else {commit_column: commit}
    last = {tuple(row[name] for name in key): row for row in rows}
    if nulls := [key_values for key_values in last if None in key_values]:
        shown_key = ", ".join(f"{name}={value!r}" for name, value in zip(key, nulls[0], strict=True))
        raise RecordRefusedError(f"commit {commit} has a row with a null in its key, which replaces none: {shown_key}")
    return [{**row, **commit_values} for row in last.values()]


def _commit_of(table: sa.Table, commit_column: str) -> Any:
    """Return the commit that wrote a row: 0 for a row from before the table had the column."""
    return sa.func.coalesce(table.c[commit_column], sa.literal_column("0"))


def _on_duplicate(table: sa.Table, updated: Sequence[str], commit_column: str | None) -> Any:
    insert = mysql.insert(table)
    if commit_column is None:
        return insert.on_duplicate_key_update({name: insert.inserted[name] for name in updated})
    newer = _commit_of(table, commit_column) <= insert.inserted[commit_column]
    # MySQL assigns in turn: the column that is compared comes last.
    ordered = [name for name in updated if name != commit_column] + [commit_column]
    return insert.on_duplicate_key_update(
        [(name, sa.func.if_(newer, insert.inserted[name], table.c[name])) for name in ordered]
    )
