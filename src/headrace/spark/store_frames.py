# pyright: basic
"""Stores as Spark DataFrames: `read_store` returns a store after a batch, `select` runs SQL on it.

The executors read the checkpoint; the application need not run. Each Spark task reads the store of one task.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from headrace.checkpoint.storage import open_storage
from headrace.config import Config
from headrace.errors import UnsuitableQueryError
from headrace.model.ids import TaskId
from headrace.query.catalog import Catalog
from headrace.query.export import export_columns, export_rows
from headrace.query.follower import Follower
from headrace.spark.sql_check import check_sql
from headrace.topology.builder import Topology

ROWS = 10_000  # rows in one Arrow batch
_TYPES = {
    "string": pa.string(), "bigint": pa.int64(), "int": pa.int32(), "smallint": pa.int16(), "double": pa.float64(),
    "float": pa.float32(), "boolean": pa.bool_(), "binary": pa.binary(),
}  # fmt: skip


def read_store(
    spark: SparkSession,
    checkpoint: str | Path,
    store: str,
    batch: int | None = None,
    *,
    topology: Topology | None = None,
    config: Config | None = None,
) -> DataFrame:
    """Returns a store as of a batch that the checkpoint still has, by default the last one.

    Columns: key, value, timestamp (if the store has them), window_start and window_end (of windows and sessions) and
    partition. Keys and values without a type in SQL are JSON. The user's own serdes need the `topology`.
    """
    follower = Follower.open(checkpoint, topology, config)
    snapshot = follower.snapshot_at(batch)
    description = snapshot.catalog.describe(store)
    schema = ", ".join(f"`{name}` {kind}" for name, kind in export_columns(description))
    read = _reader(str(checkpoint), snapshot.batch, snapshot.catalog, store)
    tasks = spark.createDataFrame([tuple(task) for task in description.tasks], "subtopology int, task int")
    return tasks.repartition(len(description.tasks), "task").mapInArrow(read, schema)


def select(spark: SparkSession, checkpoint: str | Path, store: str, sql: str, *given: Any, **options: Any) -> DataFrame:
    """Runs a query on a store, and rejects all other SQL: `sql_check.py` says what a query may contain.

    The table is called `store`, or has the name of the store in backticks. The query runs in a session of its own,
    which sees no other tables, views and settings.
    """
    own = spark.newSession()
    own.conf.set("spark.sql.runSQLOnFiles", "false")
    try:
        check_sql(own, sql, ("store", store))
        frame = read_store(own, checkpoint, store, *given, **options)
        for name in ("store", f"`{store}`"):
            frame.createOrReplaceTempView(name)
        return own.sql(sql)
    except PySparkException as error:
        why = str(error).strip().partition("\n")[0]
        raise UnsuitableQueryError(f"{why} The table is called store, or `{store}` in backticks") from error


def _reader(checkpoint: str, batch: int, catalog: Catalog, store: str) -> Any:
    columns = export_columns(catalog.describe(store))

    def read(tasks: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        storage = open_storage(checkpoint)
        schema = pa.schema([(name, _TYPES[kind]) for name, kind in columns])
        for some in tasks:
            for task in map(TaskId, *(column.to_pylist() for column in some.columns)):
                rows = export_rows(storage, batch, catalog, store, task)
                while chunk := list(islice(rows, ROWS)):
                    arrays = [pa.array(cells, field.type) for cells, field in zip(zip(*chunk), schema)]  # noqa: B905
                    yield pa.RecordBatch.from_arrays(arrays, schema=schema)

    return read
