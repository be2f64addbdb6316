"""Entries of a store as rows of JSON, in an order in which a page can be continued."""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import orjson

from headrace.errors import UnsuitableQueryError
from headrace.model.record import ValueAndTimestamp, VersionedRecord
from headrace.model.windows import Window, Windowed, ends_of
from headrace.query.catalog import Shelf
from headrace.query.queries import FIRST, LAST
from headrace.query.rendering import key_of, to_form
from headrace.query.views import KeyValueView, Pairs, SessionView, VersionedView, View, WindowView
from headrace.state.spec import WindowKind

Row = dict[str, Any]
NOT_GIVEN = "next= is not what an earlier page gave"
Place = tuple[Any, ...]  # where a row is, in the order of the rows


class Asked(NamedTuple):
    """What was asked of a store: texts as they were given."""

    key: str | None = None
    low: str | None = None
    high: str | None = None
    prefix: str | None = None
    first: int = FIRST
    last: int = LAST
    descending: bool = False

    @classmethod
    def of(cls, given: Mapping[str, str]) -> Asked:
        return cls(
            given.get("key"),
            given.get("from"),
            given.get("to"),
            given.get("prefix"),
            number_in(given, "from", FIRST) if "key" in given or "windows" in given else FIRST,
            number_in(given, "to", LAST) if "key" in given or "windows" in given else LAST,
            given.get("descending", "").lower() in {"1", "true", "yes"},
        )


def number_in(given: Mapping[str, str], name: str, otherwise: int) -> int:
    text = given.get(name)
    if text is None or text == "":
        return otherwise
    try:
        return int(text)
    except ValueError:
        raise UnsuitableQueryError(f"{name}={text[:40]!r} is not a number") from None


# ----------------------------------------------------------------------------------------------------------- one row
def row_of(shelf: Shelf, view: View, key: Any, time: int | None) -> Row | None:
    """The row of one key; of a versioned store as of a time."""
    match view:
        case KeyValueView():
            found = view.get(key)
        case VersionedView():
            found = view.get(key, time)
        case WindowView() | SessionView():
            raise UnsuitableQueryError(f"{shelf.name!r} is a {shelf.kind} store: ask for /windows?key=…")
    return None if found is None else {"key": to_form(key), **_valued(found)}


def _valued(value: Any) -> Row:
    match value:
        case ValueAndTimestamp(timestamp=timestamp):
            return {"value": to_form(value[0]), "timestamp": timestamp}
        case VersionedRecord(timestamp=timestamp, valid_to=valid_to):
            return {"value": to_form(value[0]), "timestamp": timestamp, "valid_to": valid_to}
        case _:
            return {"value": to_form(value)}


# --------------------------------------------------------------------------------------------------------- many rows
def range_rows(shelf: Shelf, view: View, asked: Asked, after: Place | None) -> Iterator[tuple[Place, Row]]:
    """The keys of a range or with a prefix, by their bytes; `after` is the place of the last row before."""
    encode = shelf.key.encode
    low, high = (None if text is None else key_of(text, shelf.key) for text in (asked.low, asked.high))
    if isinstance(view, VersionedView):
        _only_ascending(asked, "the keys of a versioned store")
        found = _between(view.latest(), encode, low, high)
    elif not isinstance(view, KeyValueView):
        raise UnsuitableQueryError(f"{shelf.name!r} is a {shelf.kind} store: ask for /windows")
    elif asked.prefix is not None:
        _only_ascending(asked, "the keys of a prefix")
        found = view.prefix_scan(key_of(asked.prefix, shelf.key))
    else:
        if after is not None and asked.descending:
            high = _key_at(after, shelf)
        elif after is not None:
            low = _key_at(after, shelf)
        found = view.reverse_range(low, high) if asked.descending else view.range(low, high)
    rows = (((encode(key),), {"key": to_form(key), **_valued(value)}) for key, value in found)
    return _following(rows, after, descending=asked.descending)


def _between(entries: Pairs, encode: Callable[[Any], bytes], low: Any, high: Any) -> Pairs:
    first, last = (None if key is None else encode(key) for key in (low, high))
    for key, value in entries:
        raw = encode(key)
        if last is not None and raw > last:
            return
        if first is None or raw >= first:
            yield key, value


def _key_at(place: Place, shelf: Shelf) -> Any:
    try:
        return shelf.key.decode(place[0])
    except Exception as error:  # whatever a serde raises
        raise UnsuitableQueryError(NOT_GIVEN) from error


def _only_ascending(asked: Asked, what: str) -> None:
    if asked.descending:
        raise UnsuitableQueryError(f"{what} come in ascending order only: leave descending= out")


def window_rows(shelf: Shelf, view: View, asked: Asked, after: Place | None) -> Iterator[tuple[Place, Row]]:
    """Windows or sessions, of a key or of all, by key and time."""
    encode, key = shelf.key.encode, None if asked.key is None else key_of(asked.key, shelf.key)
    match view:
        case WindowView():
            found = _windows(shelf, view, key, asked)
            place: Callable[[Any], Place] = lambda at: (encode(at.key), at.window.start)  # noqa: E731
        case SessionView():
            found = _sessions(view, key, asked)
            place = lambda at: (encode(at.key), at.window.end, at.window.start)  # noqa: E731
        case KeyValueView() | VersionedView():
            raise UnsuitableQueryError(f"{shelf.name!r} is a {shelf.kind} store: it has no windows")
    rows = (
        (
            place(at),
            {
                "key": to_form(at.key),
                "window": {"start": at.window.start, "end": at.window.end},
                **_valued(value),
            },
        )
        for at, value in found
    )
    return _following(rows, after, descending=asked.descending)


def _windows(shelf: Shelf, view: WindowView, key: Any, asked: Asked) -> Iterator[tuple[Any, Any]]:
    if asked.key is None or not isinstance(shelf.spec.kind, WindowKind):
        return (view.backward_fetch_all if asked.descending else view.fetch_all)(asked.first, asked.last)
    end_of = ends_of(shelf.spec.kind.window_size)
    found = (view.backward_fetch if asked.descending else view.fetch)(key, asked.first, asked.last)
    return ((Windowed(key, Window(start, end_of(start))), value) for start, value in found)


def _sessions(view: SessionView, key: Any, asked: Asked) -> Iterator[tuple[Any, Any]]:
    if asked.key is None:
        _only_ascending(asked, "sessions of all keys")
        return (e for e in view.all() if e[0].window.end >= asked.first and e[0].window.start <= asked.last)
    return (view.backward_find_sessions if asked.descending else view.find_sessions)(key, asked.first, asked.last)


def version_rows(shelf: Shelf, view: View, asked: Asked, after: Place | None) -> Iterator[tuple[Place, Row]]:
    """The versions of a key, oldest first."""
    if not isinstance(view, VersionedView) or asked.key is None:
        raise UnsuitableQueryError(
            f"versions are asked for by key, of a versioned store; {shelf.name!r} is {shelf.kind}"
        )
    _only_ascending(asked, "versions")
    found = view.history(key_of(asked.key, shelf.key), asked.first, asked.last)
    return _following((((record.timestamp,), _valued(record)) for record in found), after, descending=False)


def _following(
    rows: Iterator[tuple[Place, Row]], after: Place | None, *, descending: bool
) -> Iterator[tuple[Place, Row]]:
    try:
        for place, row in rows:
            if after is None or (place < after if descending else place > after):
                yield place, row
    except TypeError as error:  # what is in a token was never a place among these rows
        if after is None:
            raise
        raise UnsuitableQueryError(NOT_GIVEN) from error


# ------------------------------------------------------------------------------------------------------------- tokens
def encode_next(batch: int, place: Place) -> str:
    """Where a page ended: the batch, and the place of its last row."""
    parts = [{"b": part.hex()} if isinstance(part, bytes) else part for part in place]
    return urlsafe_b64encode(orjson.dumps([batch, parts])).decode().rstrip("=")


def decode_next(token: str) -> tuple[int, Place]:
    """
    >>> decode_next(encode_next(7, (b"key", 50)))
    (7, (b'key', 50))
    """
    try:
        batch, parts = orjson.loads(urlsafe_b64decode(token + "=" * (-len(token) % 4)))
        return int(batch), tuple(int(part) if isinstance(part, int) else bytes.fromhex(part["b"]) for part in parts)
    except (ValueError, TypeError, KeyError) as error:
        raise UnsuitableQueryError(NOT_GIVEN) from error
