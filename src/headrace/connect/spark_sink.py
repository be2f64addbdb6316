"""Any Spark DataFrame writer: a function gets a DataFrame of a batch's records, and the number of the batch.

    slots: rows of each part ──▶ Parquet files in the checkpoint ──▶ executors: DataFrame ──▶ function(frame, batch)
           staged/SINK/000000000012-ATTEMPT

The processes that write the parts of a large batch stage them in the checkpoint, and Spark's executors read the files:
only their names pass through the driver. A small batch is written by the driver itself and becomes a local DataFrame.
When the function has returned, the staged files are deleted, with those that a crash has left.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast
from urllib.parse import quote

from headrace.checkpoint.files import format_number
from headrace.checkpoint.receipt import new_attempt
from headrace.checkpoint.steps import step
from headrace.connect.parquet import arrow_schema, encode_rows, read_parquet
from headrace.connect.postgres_sink import make_rows
from headrace.connect.sink import TOKEN, RowMaker, as_names
from headrace.errors import ConfigError, SinkUnavailableError
from headrace.extras import lazy_extra
from headrace.model.sink import Sink, SinkBatch, SinkContext, SinkWriter

_arrow = lazy_extra("pyarrow", "spark")
_parquet = lazy_extra("pyarrow.parquet", "spark")
FOLDER = "staged/"  # in the checkpoint
_ROWS = 10_000  # of an Arrow batch


@dataclass(frozen=True)
class SparkSink(Sink):
    """Calls `function(frame, batch)` with a DataFrame of the records of a batch, and the number of the batch.

    `stream.to_spark(function)` makes one. The columns are the fields of the values, with the record's key in the
    columns that `key` names, and its timestamp in the column that `timestamp` names. `schema`, of pyarrow, a type with
    annotations or a mapping from names to types, says which columns there are; without it Arrow infers them from the
    values of each batch.

    >>> SparkSink(lambda frame, batch: frame.write.mode("append").parquet("/lake/orders"), key="id").label
    'spark'
    """

    guarantee = "atomic if the function uses the batch number"
    needs_spark = True

    function: Callable[[Any, int], object] = field(repr=False)
    schema: Any = None
    key: str | Sequence[str] = ()
    timestamp: str | None = None

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise ConfigError(f"to_spark takes a function of (frame, batch), not {self.function!r}")

    @property
    def label(self) -> str:
        name = getattr(self.function, "__name__", "")
        return name if name.isidentifier() else "spark"

    def open(self, context: SinkContext) -> SinkWriter:
        return SparkWriter(self, context)


class _Part(NamedTuple):
    """What a process has written: the name of a staged file, or the file itself; and its schema, if none was given."""

    rows: int
    name: str
    data: bytes
    schema: bytes


class SparkWriter(SinkWriter):
    """Stages parts in the checkpoint, and calls the function in the driver."""

    def __init__(self, sink: SparkSink, context: SinkContext) -> None:
        self._sink, self._context = sink, context
        self._rows = RowMaker(as_names(sink.key), sink.timestamp)
        self._schema = None if sink.schema is None else arrow_schema(sink.schema, self._rows.key, sink.timestamp)
        self._folder = f"{FOLDER}{quote(context.sink, safe='')}/"
        self._has_staged = True  # an earlier life may have left files

    def write(self, batch: SinkBatch) -> _Part:
        rows = [row for row in make_rows(self._rows, batch, "append") if row.columns]
        data = encode_rows(rows, self._schema, self._sink.label)
        schema = b"" if self._schema is not None else _parquet.read_schema(io.BytesIO(data)).serialize().to_pybytes()
        if self._context.spark is not None:
            return _Part(len(rows), "", data, schema)
        name = f"{self._folder}{format_number(batch.number)}-{new_attempt()}"
        self._context.storage.create(name, data)
        return _Part(len(rows), name, b"", schema)

    def commit(self, number: int, written: Sequence[Any]) -> None:
        parts = [part for part in map(_Part._make, written) if part.rows]
        if parts:
            with step(TOKEN, self._context.at_step), _translate_errors(self._sink.label):
                self._sink.function(self._make_frame(parts), number)
        if self._has_staged or any(part.name for part in parts):
            self._delete_staged(number)
            self._has_staged = False

    def _make_frame(self, parts: Sequence[_Part]) -> Any:
        spark, schema = self._context.spark, self._schema
        if schema is None:
            schemas = [_arrow.ipc.read_schema(_arrow.py_buffer(part.schema)) for part in parts]
            schema = _arrow.unify_schemas(schemas, promote_options="permissive")
        from pyspark.sql.pandas import types as spark_types  # noqa: PLC0415 - slots need not import it

        spark_schema = cast("Any", spark_types).from_arrow_schema(schema)
        if not any(part.name for part in parts):
            tables = [fit_table(read_parquet(part.data), schema) for part in parts]
            return spark.createDataFrame(_arrow.concat_tables(tables), spark_schema)
        reader = part_reader(self._context.storage, parts, schema)
        return spark.range(0, len(parts), 1, len(parts)).mapInArrow(reader, spark_schema)

    def _delete_staged(self, number: int) -> None:
        storage = self._context.storage
        for name in storage.names(self._folder):
            if name.removeprefix(self._folder).partition("-")[0] <= format_number(number):
                storage.delete(name)


def part_reader(storage: Any, parts: Sequence[_Part], schema: Any) -> Callable[[Iterable[Any]], Iterator[Any]]:
    """Returns the function that Spark runs on the numbers of parts: it reads their files."""

    def read(numbers: Iterable[Any]) -> Iterator[Any]:
        for some in numbers:
            numbered: list[int] = some.column(0).to_pylist()
            for part in [parts[number] for number in numbered]:
                data = part.data or storage.read(part.name)
                yield from fit_table(read_parquet(data), schema).to_batches(max_chunksize=_ROWS)

    return read


def fit_table(table: Any, schema: Any) -> Any:
    """Returns a table with the columns of a schema. Those that the table lacks are null.

    >>> import pyarrow as pa
    >>> table, schema = pa.table({"a": [1]}), pa.schema([("b", pa.string()), ("a", pa.float64())])
    >>> fit_table(table, schema).to_pylist()
    [{'b': None, 'a': 1.0}]
    """
    columns = [
        table.column(column.name).cast(column.type)
        if column.name in table.column_names
        else _arrow.nulls(len(table), column.type)
        for column in schema
    ]
    return _arrow.table(columns, schema=schema.remove_metadata())


@contextmanager
def _translate_errors(sink: str) -> Generator[None]:
    """Raises `SinkUnavailableError` for errors of Spark that another attempt may cure."""
    try:
        yield
    except Exception as error:
        if not is_passing(error):
            raise
        first, what = str(error).strip().partition("\n")[0], f"Spark could not write the batch for {sink}"
        raise SinkUnavailableError(f"{what}: {first}", summary=f"{what}: {type(error).__name__}") from error


def is_passing(error: Exception) -> bool:
    """Returns True for an error of Spark that is no mistake in the function: a target may be away, or an executor lost.

    >>> from pyspark.errors import AnalysisException, SparkRuntimeException
    >>> is_passing(SparkRuntimeException("executor lost")), is_passing(AnalysisException("no such column"))
    (True, False)
    """
    from py4j.protocol import Py4JError  # noqa: PLC0415 # pyright: ignore[reportMissingTypeStubs]
    from pyspark import errors  # noqa: PLC0415

    mistakes = (
        errors.AnalysisException, errors.ArithmeticException, errors.ArrayIndexOutOfBoundsException,
        errors.DateTimeException, errors.IllegalArgumentException, errors.NumberFormatException, errors.ParseException,
        errors.PySparkAttributeError, errors.PySparkKeyError, errors.PySparkTypeError, errors.PySparkValueError,
    )  # fmt: skip
    return isinstance(error, Py4JError | errors.PySparkException) and not isinstance(error, mistakes)
