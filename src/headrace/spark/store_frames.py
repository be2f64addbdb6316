# pyright: basic
"""Stores as tables: a DataFrame of a store after a batch, read from the checkpoint by the executors."""

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
from headrace.topology.builder import Topology

ROWS = 10_000  # in one Arrow batch
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
    """A store after a batch that is kept, by default the last one; one Spark task for each task that has a part of it.

    Columns: key, value, timestamp (if the store has them), window_start and window_end (of windows and sessions) and
    partition. Keys and values without a type of SQL's are JSON. Serdes that are not Headrace's need the `topology`.
    """
    follower = Follower.open(checkpoint, topology, config)
    snapshot = follower.snapshot_at(batch)
    description = snapshot.catalog.describe(store)
    schema = ", ".join(f"`{name}` {kind}" for name, kind in export_columns(description))
    read = _reader(str(checkpoint), snapshot.batch, snapshot.catalog, store)
    tasks = spark.createDataFrame([tuple(task) for task in description.tasks], "subtopology int, task int")
    return tasks.repartition(len(description.tasks), "task").mapInArrow(read, schema)


def select(spark: SparkSession, checkpoint: str | Path, store: str, sql: str, *given: Any, **options: Any) -> DataFrame:
    """What SQL says of a store, whose table is called `store`, and by its own name in backticks."""
    frame = read_store(spark, checkpoint, store, *given, **options)
    for name in ("store", f"`{store}`"):
        frame.createOrReplaceTempView(name)
    try:
        return spark.sql(sql)
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
