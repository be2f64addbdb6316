"""Files that appear in a directory or in a bucket: lines, CSV, JSON lines, Parquet."""

from __future__ import annotations

import csv
import glob
import io
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field
from fnmatch import fnmatch
from itertools import islice
from pathlib import Path
from typing import Any, Literal, cast

import msgspec

from headrace.checkpoint.storage import ObjectStorage, open_object_store, parse_object_url
from headrace.connect.file_sink import RETRY
from headrace.connect.rows import RowFunction, make_record
from headrace.errors import ConfigError
from headrace.extras import import_extra
from headrace.serde.json import JSON
from headrace.serde.protocol import Serde
from headrace.topology.connectors import SourceBatch, SourcePosition, SourceReader

Format = Literal["lines", "csv", "json", "parquet"]
_FORMATS = ("lines", "csv", "json", "parquet")
_PAUSE = 0.2  # seconds between two looks for new files


@dataclass(frozen=True)
class FileSource:
    """Reads each file that appears, once, in the order of the names of those that are there.

    `files` is a directory, a pattern such as `/var/shop/*.csv`, or the same in a bucket: `s3://shop/orders/*.csv`.
    A file must be complete when it appears: write it under another name and rename it. Names that begin with a dot or
    an underscore, or end with `.tmp`, are left out. What is appended to a file later is not read.

    The values are the rows: text for `lines`, dicts for the others; those of CSV have text in them. `key_of` and
    `timestamp_of` (milliseconds) are the name of a field, or a function of the row. `after="delete"` deletes a file
    when the log has all of it; otherwise the position lists all files that are there, so keep them few. `options` are
    those of the bucket, as for `FileSink`.

    >>> FileSource("/var/shop/*.csv", format="csv", key_of="order").name
    'shop'
    """

    files: str
    _: KW_ONLY
    format: Format = "lines"
    name: str = ""
    key_of: RowFunction = None
    timestamp_of: RowFunction = None
    after: Literal["keep", "delete"] = "keep"
    options: Mapping[str, str] | None = field(default=None, repr=False)
    key: Serde[Any] = JSON
    value: Serde[Any] = JSON

    def __post_init__(self) -> None:
        if self.format not in _FORMATS:
            raise ConfigError(f"format is one of {', '.join(_FORMATS)}, not {self.format!r}")
        if self.after not in ("keep", "delete"):
            raise ConfigError(f"after is 'keep' or 'delete', not {self.after!r}")
        if not self.name:
            files = self.files.partition("?")[0].rstrip("/") if "://" in self.files else self.files.rstrip("/")
            folder = files.rpartition("/")[0] if "*" in files else files
            object.__setattr__(self, "name", folder.rstrip("/").rpartition("/")[2] or "files")

    def open(self, position: SourcePosition) -> SourceReader:
        return _FileReader(self, position or {"done": [], "file": None, "row": 0})


class _LocalFiles:
    def __init__(self, files: str) -> None:
        self._pattern = files if glob.has_magic(files) else str(Path(files) / "*")

    def names(self) -> list[str]:
        return sorted(name for name in glob.glob(self._pattern) if Path(name).is_file())  # noqa: PTH207 - any path

    def read(self, name: str) -> bytes:
        return Path(name).read_bytes()

    def delete(self, name: str) -> None:
        Path(name).unlink(missing_ok=True)


class _Objects:
    def __init__(self, url: str, options: Mapping[str, str]) -> None:
        address, found = parse_object_url(url, options)
        place, _, self._pattern = address.rpartition("/")
        if not glob.has_magic(self._pattern):  # a folder
            place, self._pattern = address.rstrip("/"), "*"
        self._storage = ObjectStorage(open_object_store(place, found, RETRY), place, found)

    def names(self) -> list[str]:
        return [name for name in self._storage.names() if fnmatch(name, self._pattern)]

    def read(self, name: str) -> bytes:
        return self._storage.read(name)

    def delete(self, name: str) -> None:
        self._storage.delete(name)


class _FileReader:
    """Position: the files that are done and still there, and the file that is being read with its rows so far."""

    def __init__(self, source: FileSource, position: dict[str, Any]) -> None:
        self._source = source
        is_bucket = "://" in source.files
        self._files = _Objects(source.files, source.options or {}) if is_bucket else _LocalFiles(source.files)
        self._done = list[str](position["done"])
        self._file: str | None = position["file"]
        self._row: int = position["row"]
        self._rows: Iterator[Any] = iter(())
        if self._file is not None:
            self._rows = islice(self._open(self._file), self._row, None)
        self._waiting = 0

    def read(self, max_records: int, timeout: float) -> SourceBatch | None:
        end = time.monotonic() + timeout
        while self._file is None and not self._next_file():
            left = end - time.monotonic()
            if left <= 0:
                return None
            time.sleep(min(left, _PAUSE))
        source = self._source
        records = [make_record(row, source.key_of, source.timestamp_of) for row in islice(self._rows, max_records)]
        self._row += len(records)
        if len(records) < max_records:
            self._done.append(cast("str", self._file))
            self._file, self._row = None, 0
        return SourceBatch(records, {"done": [*self._done], "file": self._file, "row": self._row})

    def _next_file(self) -> bool:
        there = [name for name in self._files.names() if not _is_hidden(name)]
        done = set(self._done).intersection(there)
        self._done = sorted(done)
        waiting = [name for name in there if name not in done]
        self._waiting = len(waiting)
        if not waiting:
            return False
        self._file, self._row = waiting[0], 0
        self._rows = self._open(waiting[0])
        return True

    def _open(self, name: str) -> Iterator[Any]:
        return read_rows(self._files.read(name), self._source.format, name)

    def acknowledge(self, position: SourcePosition) -> None:
        if self._source.after == "delete" and position is not None:
            for name in position["done"]:
                with suppress(FileNotFoundError):
                    self._files.delete(name)

    def lag(self) -> int | None:
        return self._waiting

    def close(self) -> None:
        pass


def _is_hidden(name: str) -> bool:
    last = name.rpartition("/")[2]
    return last.startswith((".", "_")) or last.endswith(".tmp")


def read_rows(raw: bytes, kind: Format, name: str) -> Iterator[Any]:
    r"""Iterates over the rows of a file.

    >>> list(read_rows(b"id,city\n1,Rome\n", "csv", "a.csv")), list(read_rows(b"a\nb", "lines", "a.txt"))
    ([{'id': '1', 'city': 'Rome'}], ['a', 'b'])
    """
    try:
        match kind:
            case "lines":
                yield from _lines(raw)
            case "csv":
                yield from csv.DictReader(io.StringIO(raw.decode("utf-8-sig"), newline=""), strict=True)
            case "json":
                yield from (msgspec.json.decode(line) for line in _lines(raw) if line.strip())
            case "parquet":
                yield from _parquet_rows(raw)
    except (UnicodeDecodeError, csv.Error, msgspec.DecodeError, OSError) as error:
        raise ConfigError(f"{name} cannot be read as {kind}: {error}. Remove it, or give another format=") from error


def _lines(raw: bytes) -> Iterable[str]:
    text = raw.decode()
    return (line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")) if text else ()


def _parquet_rows(raw: bytes) -> Iterator[Any]:
    file: Any = import_extra("pyarrow.parquet", "files").ParquetFile(io.BytesIO(raw))
    for batch in file.iter_batches():
        yield from batch.to_pylist()
