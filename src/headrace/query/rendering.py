"""Keys and values as JSON, and back.

What JSON has stands for itself; everything else is an object with one key that begins with `$`:

bytes                       {"$bytes": "base64"}        a UUID        {"$uuid": "…"}
an int beyond 2⁵³           {"$int": "…"}               a time        {"$time": "ISO 8601"}
NaN, Infinity, -Infinity    {"$float": "…"}             a decimal     {"$decimal": "…"}
a tuple                     {"$tuple": […]}             a dict with other keys than text, or with such a key
                                                                      {"$dict": [[key, value], …]}
Dataclasses, msgspec and pydantic objects become the objects of their fields, and stay that when they are read.

Keys as text: in addresses, on the command line, in the store browser.

Records as text, for people to look at.

A store as rows of plain columns: for tables, files and SQL.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from datetime import date, datetime
from decimal import Decimal
from math import isfinite
from typing import Any, NamedTuple, cast
from uuid import UUID

import msgspec
import orjson

from headrace.checkpoint.delta_files import read_delta
from headrace.checkpoint.ledger import read_ledger
from headrace.checkpoint.storage import Storage
from headrace.config import Config
from headrace.errors import SerializationError
from headrace.model.ids import TaskId
from headrace.model.record import Sample
from headrace.model.windows import Windowed
from headrace.query.catalog import Catalog, Shelf
from headrace.query.memory_copy import Entries
from headrace.runtime.task import serdes_of
from headrace.serde.protocol import Serde
from headrace.state.spec import KeyValueKind, SessionKind, VersionedKind, WindowKind
from headrace.topology.graph import Graph
from headrace.topology.nodes import Sink, Source

LARGEST = 2**53  # up to here every program that reads JSON has the same integers


def to_form(thing: Any) -> Any:
    """What to write as JSON.

    >>> to_form({"a": b"x", "b": (1, float("inf"))})
    {'a': {'$bytes': 'eA=='}, 'b': {'$tuple': [1, {'$float': 'inf'}]}}
    """
    match thing:
        case None | bool() | str():
            return thing
        case int():
            return int(thing) if -LARGEST <= thing <= LARGEST else {"$int": str(int(thing))}
        case float():
            return thing if isfinite(thing) else {"$float": str(thing)}
        case bytes() | bytearray():
            return {"$bytes": b64encode(thing).decode()}
        case list():
            return [to_form(item) for item in cast("list[Any]", thing)]
        case tuple():
            return {"$tuple": [to_form(item) for item in cast("tuple[Any, ...]", thing)]}
        case Mapping():
            return _dict(cast("Mapping[Any, Any]", thing))
        case UUID():
            return {"$uuid": str(thing)}
        case Decimal():
            return {"$decimal": str(thing)}
        case datetime() | date():
            return {"$time": thing.isoformat()}
        case _:
            return _object(thing)


def _dict(thing: Mapping[Any, Any]) -> Any:
    if all(isinstance(key, str) and not key.startswith("$") for key in thing):
        return {key: to_form(value) for key, value in thing.items()}
    return {"$dict": [[to_form(key), to_form(value)] for key, value in thing.items()]}


def _object(thing: Any) -> Any:
    if is_dataclass(thing) and not isinstance(thing, type):
        return _dict({field.name: getattr(thing, field.name) for field in fields(thing)})
    if isinstance(thing, msgspec.Struct):
        return _dict({name: getattr(thing, name) for name in thing.__struct_fields__})
    dump = getattr(thing, "model_dump", None)
    if dump is not None:
        return to_form(dump(mode="json"))
    return {"$repr": repr(thing)}


def from_form(form: Any) -> Any:
    """What was written.

    >>> from_form(to_form((b"x", {1: 2**60})))
    (b'x', {1: 1152921504606846976})
    """
    if isinstance(form, list):
        return [from_form(item) for item in cast("list[Any]", form)]
    if not isinstance(form, dict):
        return form
    given = cast("dict[str, Any]", form)
    match given:
        case {"$bytes": str(text)}:
            return b64decode(text, validate=True)
        case {"$int": str(text)}:
            return int(text)
        case {"$float": str(text)}:
            return float(text)
        case {"$uuid": str(text)}:
            return UUID(text)
        case {"$decimal": str(text)}:
            return Decimal(text)
        case {"$time": str(text)}:
            return datetime.fromisoformat(text)
        case {"$tuple": list()}:
            return tuple(from_form(item) for item in given["$tuple"])
        case {"$dict": list()}:
            return {from_form(key): from_form(value) for key, value in given["$dict"]}
        case _:
            return {key: from_form(value) for key, value in given.items()}


def key_of(text: str, serde: Serde) -> Any:
    """The key that a text means: of STRING the text itself, of UUID its digits, of BYTES base64, of others JSON.

    >>> from headrace import serde
    >>> key_of("12", serde.STRING), key_of("12", serde.LONG), key_of("eA==", serde.BYTES)
    ('12', 12, b'x')
    """
    try:
        match serde.name:
            case "STRING":
                key = text
            case "UUID":
                key = UUID(text)
            case "BYTES":
                key = b64decode(text, validate=True)
            case _:
                key = from_form(orjson.loads(text))
        serde.encode(key)
    except Exception as error:  # whatever a serde raises, it is the text that is wrong
        wanted = {"UUID": "a UUID", "BYTES": "base64"}.get(serde.name, "JSON")
        raise SerializationError(f"{text[:100]!r} is no key of the serde {serde.name}: give {wanted}") from error
    else:
        return key


def key_text(key: Any, serde: Serde) -> str:
    """The text that means a key.

    >>> from headrace import serde
    >>> key_text("a/b", serde.STRING), key_text(b"x", serde.BYTES), key_text([1], serde.JSON)
    ('a/b', 'eA==', '[1]')
    """
    match serde.name:
        case "STRING" | "UUID":
            return str(key)
        case "BYTES":
            return b64encode(key).decode()
        case _:
            return orjson.dumps(to_form(key)).decode()


class ShownRecord(NamedTuple):
    """A record that went into a source or out of a sink; key and value are None where the record has none."""

    topic: str
    partition: int | None  # None: the hash of its key decides
    offset: int | None  # None: it is not in the log yet, or never
    timestamp: int
    key: str | None
    value: str | None


def shown(graph: Graph, config: Config, node: str, samples: Iterable[Sample]) -> list[ShownRecord]:
    """The samples of a node, by its serdes."""
    found = graph.nodes.get(node)
    if not isinstance(found, Source | Sink):
        return []
    topics = found.topics if isinstance(found, Source) else (found.topic,)
    serdes, is_internal = serdes_of(config), any(topic in graph.internal_topics for topic in topics)
    key, value = serdes.key(found.key), (serdes.inner_value if is_internal else serdes.value)(found.value)
    return [
        ShownRecord(
            sample.topic,
            sample.partition if sample.partition >= 0 else None,
            sample.offset if sample.offset >= 0 else None,
            sample.timestamp,
            text_of(sample.key, key, cut=sample.cut),
            text_of(sample.value, value, cut=sample.cut),
        )
        for sample in samples
    ]


def text_of(raw: bytes | None, serde: Serde, *, cut: bool = False) -> str | None:
    r"""What bytes mean by a serde; if they mean nothing by it, or are cut off, the characters in them.

    >>> from headrace import serde
    >>> text_of(b"abc", serde.STRING), text_of(b'{"a": [1]}', serde.JSON), text_of(b"\x00\xff{", serde.JSON)
    ('abc', '{"a":[1]}', '\x00\ufffd{')
    """
    if raw is None:
        return None
    if not cut:
        try:
            return _written(serde.decode(raw))
        except Exception:  # noqa: BLE001, S110 - a serde of the user's may raise anything: its bytes are shown
            pass
    return raw.decode(errors="replace") + "…" * cut


def _written(thing: Any) -> str:
    match thing:
        case str():
            return thing
        case Windowed(window=window):
            return f"{_written(thing[0])} [{window.start}, {window.end})"
        case bytes():
            return thing.decode(errors="replace")
        case _:
            return orjson.dumps(to_form(thing)).decode()


Row = tuple[Any, ...]
# Types by the serde's name, in the words that Spark's SQL has for them. What has none is text: JSON.
_TYPES = {
    "STRING": "string", "LONG": "bigint", "INTEGER": "int", "SHORT": "smallint", "DOUBLE": "double", "FLOAT": "float",
    "BOOLEAN": "boolean", "BYTES": "binary", "UUID": "string",
}  # fmt: skip


class Column(NamedTuple):
    name: str
    type: str


def columns_of(shelf: Shelf) -> list[Column]:
    """Key, window, value, time: what a store of this kind has."""
    kind = shelf.spec.kind
    between: list[Column] = []
    if isinstance(kind, WindowKind | SessionKind):
        between = [Column("window_start", "bigint"), Column("window_end", "bigint")]
    after: list[Column] = []
    if isinstance(kind, VersionedKind) or (isinstance(kind, KeyValueKind | WindowKind) and kind.timestamped):
        after = [Column("timestamp", "bigint")]
    partition = Column("partition", "int")
    return [
        Column("key", _type(shelf.key)), *between, Column("value", _type(shelf.value)), *after, partition
    ]  # fmt: skip


def rows_of(storage: Storage, batch: int, catalog: Catalog, store: str, task: TaskId) -> Iterator[Row]:
    """The rows of one task after a batch; of a versioned store the latest versions."""
    standing, entries = read_ledger(storage, batch).standing(task), Entries()
    for link in standing.chain:
        delta = read_delta(storage, task, link)
        entries = entries.after(delta.changes, delta.version)
    shelf = catalog.shelf(store)
    opened = catalog.open(task, entries).store(store)
    key, value = _cell(shelf.key), _cell(shelf.value)
    part = (task.partition,)
    match shelf.spec.kind:
        case WindowKind(timestamped=True):
            return ((key(at.key), *at.window, value(v.value), v.timestamp, *part) for at, v in opened.all())
        case WindowKind() | SessionKind():
            return ((key(at.key), *at.window, value(v), *part) for at, v in opened.all())
        case VersionedKind():
            return ((key(k), value(v.value), v.timestamp, *part) for k, v in opened.latest())
        case KeyValueKind(timestamped=True):
            return ((key(k), value(v.value), v.timestamp, *part) for k, v in opened.all())
        case _:
            return ((key(k), value(v), *part) for k, v in opened.all())


def _type(serde: Serde) -> str:
    return _TYPES.get(serde.name, "string")


def _cell(serde: Serde) -> Callable[[Any], Any]:
    """How a key or value becomes what its column holds."""
    if serde.name == "UUID":
        return str
    return (lambda thing: thing) if serde.name in _TYPES else (lambda thing: orjson.dumps(to_form(thing)).decode())
