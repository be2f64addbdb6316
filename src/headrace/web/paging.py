"""Pages of a store's rows: rows as JSON, in an order in which the next page continues after the last row.

A page ends with a token, `next`, which holds the batch and the sort key of the page's last row. Rows are sorted by key
(windows by key and start, sessions by key, end and start, versions by timestamp), so a later batch may serve the next
page without repeating or skipping a key.
"""

from __future__ import annotations

import time
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple, cast

import orjson

from headrace.errors import UnsuitableQueryError
from headrace.query.catalog import StoreDescription
from headrace.query.execution import StoreEntry
from headrace.query.follower import Snapshot
from headrace.query.json_values import to_json
from headrace.query.queries import MultiVersionedKeyQuery, Query, RangeQuery, SessionKeyQuery, SessionRangeQuery
from headrace.state.spec import VersionedKind
from headrace.web.dashboard_json import Limits
from headrace.web.responses import encode_json

Row = dict[str, Any]
SortKey = tuple[Any, ...]
Rows = Iterator[tuple[SortKey, Row]]
BLOCK = 64 * 1024  # bytes that a stream of lines sends at once
BAD_TOKEN = "next= is not the token of an earlier page"  # noqa: S105 - not a password


class PageToken(NamedTuple):
    """Where a page ended: its batch, and the sort key of its last row."""

    batch: int
    last: SortKey


def make_row(store: StoreDescription, entry: StoreEntry) -> Row:
    """Return an entry as JSON; a row has the fields that the kind of the store has."""
    row: Row = {"key": to_json(entry.key)}
    if entry.window is not None:
        row["window"] = {"start": entry.window.start, "end": entry.window.end}
    row["value"] = to_json(entry.value)
    if entry.timestamp is not None:
        row["timestamp"] = entry.timestamp
    if isinstance(store.spec.kind, VersionedKind):
        row["valid_to"] = entry.valid_to
    return row


def read_rows(snapshot: Snapshot, store: StoreDescription, query: Query[Any], after: SortKey | None) -> Rows:
    """Read the rows of a query, from the one after a sort key on."""
    descending: bool = getattr(query, "descending", False)
    is_range = isinstance(cast("object", query), RangeQuery) and not isinstance(store.spec.kind, VersionedKind)
    if after is not None and is_range:
        key = _decode_key(store, after)  # a range need not be read from its beginning
        query = replace(cast("RangeQuery[Any, Any]", query), **{"high" if descending else "low": key})
    try:
        for entry in snapshot.entries(store.name, query):
            at = _sort_key(store, query, entry)
            if after is None or (at < after if descending else at > after):
                yield at, make_row(store, entry)
    except TypeError as error:  # the token's sort key is not of this query's rows
        if after is None:
            raise
        raise UnsuitableQueryError(BAD_TOKEN) from error


def _sort_key(store: StoreDescription, query: Query[Any], entry: StoreEntry) -> SortKey:
    if isinstance(query, MultiVersionedKeyQuery):
        return (entry.timestamp,)
    key = store.key.encode(entry.key)
    if entry.window is None:
        return (key,)
    start, end = entry.window
    return (key, end, start) if isinstance(query, SessionKeyQuery | SessionRangeQuery) else (key, start)


def _decode_key(store: StoreDescription, after: SortKey) -> Any:
    try:
        return store.key.decode(after[0])
    except Exception as error:  # a serde may raise anything
        raise UnsuitableQueryError(BAD_TOKEN) from error


def make_page(rows: Rows, limits: Limits, limit: int, batch: int) -> dict[str, Any]:
    """Return rows up to a limit of rows, bytes and seconds, and the token of the next page."""
    deadline, size, found = time.monotonic() + limits.seconds, 0, list[orjson.Fragment]()
    for at, row in rows:
        raw = encode_json(row)
        size += len(raw)
        found.append(orjson.Fragment(raw))
        if len(found) >= limit or size > limits.page_bytes or time.monotonic() > deadline:
            return {"rows": found, "next": encode_token(PageToken(batch, at))}
    return {"rows": found, "next": None}


def stream_lines(rows: Rows, limits: Limits, limit: int) -> Iterator[bytes]:
    """Yield blocks of lines, one row a line. A stream that exceeds its limits ends with a line that says so."""
    deadline, total, block = time.monotonic() + limits.seconds, 0, bytearray()
    for number, (_, row) in enumerate(rows):
        if number >= limit:
            break
        block += encode_json(row) + b"\n"
        if len(block) >= BLOCK:
            yield bytes(block)
            total += len(block)
            block.clear()
            if total > limits.stream_bytes or time.monotonic() > deadline:
                message = "the response reached its limit of bytes or seconds: ask for a range"
                yield encode_json({"error": "Truncated", "message": message}) + b"\n"
                return
    yield bytes(block)


def encode_token(token: PageToken) -> str:
    """Return a token as text for a URL."""
    fields = [{"b": field.hex()} if isinstance(field, bytes) else field for field in token.last]
    return urlsafe_b64encode(orjson.dumps([token.batch, fields])).decode().rstrip("=")


def decode_token(text: str) -> PageToken:
    """Return the token that a text holds.

    >>> decode_token(encode_token(PageToken(7, (b"key", 50))))
    PageToken(batch=7, last=(b'key', 50))
    """
    try:
        batch, fields = orjson.loads(urlsafe_b64decode(text + "=" * (-len(text) % 4)))
        last = tuple(int(field) if isinstance(field, int) else bytes.fromhex(field["b"]) for field in fields)
        return PageToken(int(batch), last)
    except (ValueError, TypeError, KeyError) as error:
        raise UnsuitableQueryError(BAD_TOKEN) from error
