"""The parameters of a read as text, from a URL or from the command line, and the query that they describe.

`build_query` is the one table of what can be read from which kind of store:

    operation   kinds                    parameters                                   query
    key         key-value, versioned     key, time (of a version)                     KeyQuery, VersionedKeyQuery
    range       key-value, versioned     low, high, descending (key-value)            RangeQuery
    prefix      key-value                prefix                                       PrefixQuery
    windows     window, session          key (optional), first, last, descending      Window…Query, Session…Query
    versions    versioned                key, first, last                             MultiVersionedKeyQuery
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from typing import Any, Literal, NamedTuple
from uuid import UUID

import orjson

from headrace.errors import SerializationError, UnsuitableQueryError
from headrace.query.catalog import StoreDescription
from headrace.query.json_values import dump_json, from_json
from headrace.query.queries import (
    FIRST,
    LAST,
    KeyQuery,
    MultiVersionedKeyQuery,
    PrefixQuery,
    Query,
    RangeQuery,
    SessionKeyQuery,
    SessionRangeQuery,
    VersionedKeyQuery,
    WindowKeyQuery,
    WindowRangeQuery,
)
from headrace.serde.protocol import Serde
from headrace.state.spec import KeyValueKind, LruKind, SessionKind, VersionedKind, WindowKind

Operation = Literal["key", "range", "prefix", "windows", "versions"]


class ReadParameters(NamedTuple):
    """The parameters of a read. Keys are text; the serde of the store's keys decides how to parse it."""

    key: str | None = None
    low: str | None = None
    high: str | None = None
    prefix: str | None = None
    first: int = FIRST
    last: int = LAST
    time: int | None = None
    descending: bool = False


def build_query(store: StoreDescription, operation: Operation, parameters: ReadParameters) -> Query[Any]:
    """Return the query that reads what the parameters describe, or raise an error that says what to ask instead."""
    _, _, _, _, first, last, time, descending = parameters
    key, low, high, prefix = (None if text is None else parse_key(text, store.key) for text in parameters[:4])
    match operation, store.spec.kind:
        case "key", KeyValueKind() | LruKind():
            return KeyQuery(key)
        case "key", VersionedKind():
            return VersionedKeyQuery(key, time)
        case "range", KeyValueKind() | LruKind():
            return RangeQuery(low, high, descending)
        case "range", VersionedKind():
            query: Query[Any] = RangeQuery(low, high)
        case "prefix", KeyValueKind() | LruKind():
            query = PrefixQuery(prefix)
        case "windows", WindowKind() if parameters.key is None:
            return WindowRangeQuery(first, last, descending)
        case "windows", WindowKind():
            return WindowKeyQuery(key, first, last, descending)
        case "windows", SessionKind() if parameters.key is None:
            query = SessionRangeQuery(first, last)
        case "windows", SessionKind():
            return SessionKeyQuery(key, first, last, descending)
        case "versions", VersionedKind() if parameters.key is not None:
            query = MultiVersionedKeyQuery(key, first, last)
        case _:
            raise UnsuitableQueryError(f"{store.name!r} is a {store.kind} store: {_suggest(operation, store)}")
    if descending:
        raise UnsuitableQueryError(f"{type(query).__name__} reads in ascending order only: leave descending= out")
    return query


def _suggest(operation: Operation, store: StoreDescription) -> str:
    if operation in ("key", "range", "prefix") and isinstance(store.spec.kind, WindowKind | SessionKind):
        return "ask for /windows?key=…"
    return f"it has no {operation}"


def parse_key(text: str, serde: Serde) -> Any:
    """Return the key that a text stands for: text for STRING, digits for UUID, base64 for BYTES, JSON for others.

    >>> from headrace import serde
    >>> parse_key("12", serde.STRING), parse_key("12", serde.LONG), parse_key("eA==", serde.BYTES)
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
                key = from_json(orjson.loads(text))
        serde.encode(key)
    except Exception as error:  # a serde may raise anything; the text is at fault
        wanted = {"UUID": "a UUID", "BYTES": "base64"}.get(serde.name, "JSON")
        raise SerializationError(f"{text[:100]!r} is no key of the serde {serde.name}: give {wanted}") from error
    else:
        return key


def format_key(key: Any, serde_name: str) -> str:
    """Return the text that `parse_key` reads as a key of the serde with that name.

    >>> format_key("a/b", "STRING"), format_key(b"x", "BYTES"), format_key([1], "JSON")
    ('a/b', 'eA==', '[1]')
    """
    match serde_name:
        case "STRING" | "UUID":
            return str(key)
        case "BYTES":
            return b64encode(key).decode()
        case _:
            return dump_json(key)
