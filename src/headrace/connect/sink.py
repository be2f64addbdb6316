"""What sinks share: rows of records, columns of types, and the search for rejected records.

A table-like target gets a row for each record: the fields of the value, with the key in the columns that `key` names
and the timestamp in the column that `timestamp` names. A value without fields is in the column `value`. The parts of a
key of several columns are those of a tuple; a windowed key has two more, the start and the end of its window.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple, cast, get_type_hints

from headrace.model.record import Record
from headrace.model.windows import Windowed

Columns = Mapping[str, Any]  # types of columns, by name
TOKEN = "sink token"  # noqa: S105 - a step: the data is written, and the transaction that has it is not committed yet


# ----------------------------------------------------------------------------------------------------------------- rows
class Row(NamedTuple):
    """A record as a row; `is_deletion`: it has no value, so `columns` has the key alone."""

    columns: dict[str, Any]
    is_deletion: bool
    record: Record


def as_names(names: str | Sequence[str]) -> tuple[str, ...]:
    """
    >>> as_names("id"), as_names(["city", "day"])
    (('id',), ('city', 'day'))
    """
    return (names,) if isinstance(names, str) else tuple(names)


@dataclass(frozen=True, slots=True)
class RowMaker:
    """Makes rows of records.

    >>> RowMaker(("id",), "at").make(Record(7, {"amount": 2.5}, 1_000)).columns
    {'id': 7, 'amount': 2.5, 'at': datetime.datetime(1970, 1, 1, 0, 0, 1, tzinfo=datetime.timezone.utc)}
    """

    key: tuple[str, ...] = ()
    timestamp: str | None = None

    def make(self, record: Record) -> Row:
        columns = self._key_columns(record.key)
        columns |= fields_of(record.value)
        if self.timestamp is not None:
            columns[self.timestamp] = datetime.fromtimestamp(record.timestamp / 1000, UTC)
        return Row(columns, record.value is None, record)

    def make_all(self, records: Iterable[Record]) -> list[Row]:
        return [self.make(record) for record in records]

    def key_of(self, row: Row) -> tuple[Any, ...]:
        """Returns the key of a row. Raises an error if a part is missing."""
        try:
            found = tuple(row.columns[name] for name in self.key)
        except KeyError as missing:
            raise ValueError(
                f"the record has no {missing}: a key column must be the record's key, or a field"
            ) from None
        if None in found:
            raise ValueError(f"a key column is null: {', '.join(self.key)}")
        return found

    def last_rows(self, rows: Iterable[Row]) -> list[Row]:
        """Returns the last row of each key."""
        found: dict[tuple[Any, ...], Row] = {}
        for row in rows:
            key = self.key_of(row)
            found.pop(key, None)  # a later row takes its place at the end
            found[key] = row
        return list(found.values())

    def _key_columns(self, key: Any) -> dict[str, Any]:
        if not self.key or key is None:
            return {}
        if len(self.key) == 1 and not isinstance(key, dict | Windowed):
            return {self.key[0]: key}
        if isinstance(key, tuple | list | Windowed):
            parts = _key_parts(key)
            if len(parts) != len(self.key):
                raise ValueError(
                    f"the key has {len(parts)} parts, and there are {len(self.key)} key columns: {self.key}"
                )
            return dict(zip(self.key, parts, strict=True))
        return {name: value for name, value in fields_of(key).items() if name in self.key}


def _key_parts(key: Any) -> list[Any]:
    """
    >>> from headrace import Window
    >>> _key_parts(Windowed("tea", Window(0, 60_000)))
    ['tea', 0, 60000]
    """
    if isinstance(key, Windowed):
        inside, window = cast("Windowed[Any]", key)
        return [*_key_parts(inside), window.start, window.end]
    return list(cast("Sequence[Any]", key)) if isinstance(key, tuple | list) else [key]


def fields_of(value: Any) -> dict[str, Any]:
    """Returns the fields of a dict, a dataclass, a msgspec or a pydantic object; anything else is the field `value`.

    >>> fields_of({"a": 1}), fields_of(5), fields_of(None)
    ({'a': 1}, {'value': 5}, {})
    """
    if value is None:
        return {}
    if isinstance(value, dict):
        return {str(name): field for name, field in cast("dict[Any, Any]", value).items()}
    if is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    names: Sequence[str] | None = getattr(value, "__struct_fields__", None)
    if names is not None:
        return {name: getattr(value, name) for name in names}
    dump: Callable[[], dict[str, Any]] | None = getattr(value, "model_dump", None)
    return {"value": value} if dump is None else dump()


def columns_of(kind: Any, key: Sequence[str] = (), timestamp: str | None = None) -> dict[str, Any]:
    """Returns the columns of a type with annotations, or of a mapping from names to types. Other key columns are texts.

    >>> columns_of({"amount": float}, key=["id"], timestamp="at")
    {'id': <class 'str'>, 'amount': <class 'float'>, 'at': <class 'datetime.datetime'>}
    """
    given: dict[str, Any] = dict(cast("Columns", kind)) if isinstance(kind, Mapping) else get_type_hints(kind)
    found: dict[str, Any] = {name: given.get(name, str) for name in key}
    found |= given
    return found | ({timestamp: datetime} if timestamp is not None else {})


def without_none(kind: Any) -> Any:
    """Returns the type inside an optional one.

    >>> without_none(int | None), without_none(str)
    (<class 'int'>, <class 'str'>)
    """
    inside = [part for part in getattr(kind, "__args__", ()) if part is not type(None)]
    is_union = type(None) in getattr(kind, "__args__", ())
    return inside[0] if is_union and len(inside) == 1 else kind


# ------------------------------------------------------------------------------------------------------------- rejected
def find_rejected(
    rows: Sequence[Row],
    write: Callable[[Sequence[Row]], None],
    rejections: type[Exception] | tuple[type[Exception], ...],
) -> list[tuple[Record, str]]:
    """Finds the records that a target rejects, by writing ever smaller parts; what it takes stays written.

    `write` undoes what it did if it fails. The caller undoes everything afterwards.

    >>> def write(some):
    ...     for row in some:
    ...         if row.columns["value"] < 0:
    ...             raise ValueError("negative")
    >>> rows = RowMaker().make_all(Record(None, value, 0) for value in (1, -2, 3, -4))
    >>> [(record.value, why) for record, why in find_rejected(rows, write, ValueError)]
    [(-2, 'negative'), (-4, 'negative')]
    """
    try:
        write(rows)
    except rejections as error:
        if len(rows) == 1:
            return [(rows[0].record, str(error).strip())]
        middle = len(rows) // 2
        first = find_rejected(rows[:middle], write, rejections)
        return [*first, *find_rejected(rows[middle:], write, rejections)]
    return []
