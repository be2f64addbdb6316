"""Files in a directory or an object store: Parquet, CSV or JSON lines.

    DIRECTORY/day=2026-11-17/orders-1f3a9c02-000000000012-0_3.parquet    data: batch 12, task 0_3
    DIRECTORY/_headrace/orders-1f3a9c02-000000000012.json                the files of batch 12

The names are deterministic: a batch that is written again replaces its files with equal ones. A file whose batch has
no manifest in `_headrace` may be of a batch that is not complete, so `list_files` leaves it out: its readers see every
batch whole, or not at all.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

from headrace.checkpoint.files import format_number
from headrace.checkpoint.steps import step
from headrace.checkpoint.storage import open_object_store, parse_object_url
from headrace.connect.parquet import EXTENSIONS, Format, arrow_schema, encode_rows
from headrace.connect.postgres_sink import make_rows
from headrace.connect.sink import TOKEN, Row, RowMaker, as_names
from headrace.errors import ConfigError, SinkUnavailableError
from headrace.extras import lazy_extra
from headrace.model.sink import Sink, SinkBatch, SinkContext, SinkWriter

_obstore = lazy_extra("obstore", "files")
_stores = lazy_extra("obstore.store", "files")
_errors = lazy_extra("obstore.exceptions", "files")
MANIFESTS = "_headrace/"
# A store that is away is asked again by the delivery, which says so in the status.
RETRY = {"max_retries": 3, "retry_timeout": timedelta(seconds=10)}
TIMES = {"day": "%Y-%m-%d", "hour": "%Y-%m-%d-%H", "month": "%Y-%m"}


@dataclass(frozen=True)
class FileSink(Sink):
    """Files of rows below a directory, or below a URL such as s3://bucket/orders.

    `partition_by` puts the files into folders: by "month", "day" or "hour" of the records' timestamps, or by the named
    columns. `schema`, of pyarrow or a type with annotations, gives the types of the columns. `options` are those of
    the object store, such as endpoint, region and access_key_id; the environment gives the rest.

    >>> FileSink("/var/lib/shop/orders", format="csv", partition_by="day").label
    'orders'
    """

    guarantee = "atomic"

    directory: str = field(repr=False)
    format: Format = "parquet"
    key: str | Sequence[str] = ()
    timestamp: str | None = None
    partition_by: Literal["month", "day", "hour"] | Sequence[str] = ()
    schema: Any = None
    options: Mapping[str, str] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if self.format not in EXTENSIONS:
            raise ConfigError(f"FileSink: format is 'parquet', 'csv' or 'json', not {self.format!r}")

    @property
    def label(self) -> str:
        return self.directory.partition("?")[0].rstrip("/").rpartition("/")[2] or "files"

    def open(self, context: SinkContext) -> SinkWriter:
        return FileWriter(self, context)


def is_object_url(directory: str) -> bool:
    return "://" in directory and not directory.startswith("file://")


def open_store(directory: str, options: Mapping[str, str] | None = None) -> Any:
    """Opens a directory, which is created, or the URL of an object store."""
    if is_object_url(directory):
        return open_object_store(*parse_object_url(directory, options or {}), RETRY)
    return _stores.LocalStore(Path(directory.removeprefix("file://")).absolute(), mkdir=True, automatic_cleanup=False)


class FileWriter(SinkWriter):
    """Writes a file for each part and folder; the manifest of the batch makes them visible."""

    def __init__(self, sink: FileSink, context: SinkContext) -> None:
        self._sink, self._context = sink, context
        self._rows = RowMaker(as_names(sink.key), sink.timestamp)
        self._schema = None if sink.schema is None else arrow_schema(sink.schema, self._rows.key, sink.timestamp)
        self._store = open_store(sink.directory, sink.options)
        self._folder_of = folder_function(sink.partition_by)

    def write(self, batch: SinkBatch) -> list[list[Any]]:
        files: dict[str, tuple[bytes, int]] = {}
        for part in batch.parts:
            for folder, rows in self._group(SinkBatch(batch.number, (part,))).items():
                name = f"{self._name(batch.number)}-{part.name}.{EXTENSIONS[self._sink.format]}"
                files[folder + name] = encode_rows(rows, self._schema, self._sink.label, self._sink.format), len(rows)
        for name, (data, _) in files.items():
            self._put(name, data)
        return [[name, rows, len(data)] for name, (data, rows) in files.items()]

    def commit(self, number: int, written: Sequence[Any]) -> None:
        files = [{"path": path, "rows": rows, "bytes": size} for some in written for path, rows, size in some]
        manifest = {"owner": self._context.owner, "batch": number, "files": files}
        with step(TOKEN, self._context.at_step):
            self._put(f"{MANIFESTS}{self._name(number)}.json", json.dumps(manifest).encode(), once=True)

    def _name(self, number: int) -> str:
        # After a reset batches are numbered from 0 again: the checkpoint tells them apart.
        return f"{quote(self._context.sink, safe='')}-{self._context.checkpoint[:8]}-{format_number(number)}"

    def _group(self, batch: SinkBatch) -> dict[str, list[Row]]:
        found: dict[str, list[Row]] = {}
        for row in make_rows(self._rows, batch, "append"):
            found.setdefault(self._folder_of(row), []).append(row)
        return found

    def _put(self, name: str, data: bytes, *, once: bool = False) -> None:
        try:
            _obstore.put(self._store, name, data, mode="create" if once else "overwrite")
        except _errors.AlreadyExistsError:
            pass  # the manifest of a batch that was committed before a crash
        except _errors.BaseError as error:
            raise SinkUnavailableError(
                f"{name} was not written to {self._sink.label}: {error}",
                # The name of a folder may have the value of a field.
                summary=f"a file was not written to {self._sink.label}: {type(error).__name__}",
            ) from error


def folder_function(partition_by: str | Sequence[str]) -> Callable[[Row], str]:
    """Returns the function that says in which folder a row is, in Hive's form.

    >>> from headrace import Record
    >>> row = RowMaker().make(Record(None, {"city": "Århus"}, 1_700_000_000_000))
    >>> folder_function("hour")(row), folder_function(["city"])(row)
    ('hour=2023-11-14-22/', 'city=%C3%85rhus/')
    """
    if isinstance(partition_by, str) and partition_by in TIMES:
        pattern = f"{partition_by}={TIMES[partition_by]}/"
        return lambda row: datetime.fromtimestamp(row.record.timestamp / 1000, UTC).strftime(pattern)
    columns = as_names(partition_by)
    return lambda row: "".join(f"{name}={quote(str(row.columns.get(name)), safe='')}/" for name in columns)


def list_files(directory: str, options: Mapping[str, str] | None = None) -> list[str]:
    """Returns the files of all complete batches, in the order of the batches, relative to the directory.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     list_files(directory)
    []
    """
    store, found = open_store(directory, options), list[str]()
    names = sorted(str(entry["path"]) for some in _obstore.list(store, prefix=MANIFESTS) for entry in some)
    for name in names:
        manifest = json.loads(bytes(_obstore.get(store, name).bytes()))
        found += [file["path"] for file in manifest["files"]]
    return found
