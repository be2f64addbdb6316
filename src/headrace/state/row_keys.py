"""Which key a row of state belongs to, for every table of every kind of store.

When a task is divided, each row goes to the new task of its key. The tables of a store have different layouts (`keys`,
`buffer`). `tables_of` returns, for every table, the function that reads the key from a row's place in the table.

    store kind         table        place                                 key
    key-value, LRU     NAME         | key |                               all of it
    window             NAME         | escaped key | start | [sequence]    before the start
                       NAME/times   | time | key |                        after the time
    session            NAME         | escaped key | end | start |         before the end
                       NAME/times   | end | start | key |                 after the start
    versioned          NAME         | key |                               all of it
                       NAME/past    | escaped key | valid from |          before the time
                       NAME/times   | time | key |                        after the time
    a value table T    T/new, T new   as T                                as T, see `migration`
    subscriptions      NAME         | length | foreign key | primary key  the foreign key
    buffers            NAME         see `buffer`                          `key_of` of each buffer
"""

from __future__ import annotations

from collections.abc import Callable

from headrace.state.buffer import GraceBuffer, SuppressBuffer, UnmatchedBuffer
from headrace.state.keys import LENGTH, decode_by_end, decode_by_time, decode_duplicate, decode_session, decode_window
from headrace.state.migration import list_of_new
from headrace.state.spec import (
    BufferKind,
    KeyValueKind,
    Kind,
    LruKind,
    SessionKind,
    SubscriptionKind,
    VersionedKind,
    WindowKind,
)

KeyOf = Callable[[bytes], bytes]  # the bytes of a row's key, from its place in the table
Buffer = type[UnmatchedBuffer] | type[GraceBuffer] | type[SuppressBuffer]


def tables_of(name: str, kind: Kind, buffer: Buffer | None = None) -> dict[str, KeyOf]:
    r"""Returns the tables of a store: name → function that reads a row's key. A store of `BufferKind` needs `buffer`.

    >>> tables = tables_of("visits", WindowKind(retention=60_000, window_size=1_000))
    >>> tables["visits"](b"alice\x00\x01" + bytes(8)), tables["visits/times"](bytes(8) + b"alice")
    (b'alice', b'alice')
    """
    match kind:
        case KeyValueKind() | LruKind():
            return _with_lists(name, {name: _whole})
        case WindowKind(retain_duplicates=duplicates):
            return _with_lists(name, {name: _of_duplicate if duplicates else _of_window, f"{name}/times": _after_time})
        case SessionKind():
            return _with_lists(name, {name: _of_session, f"{name}/times": _after_end})
        case VersionedKind():
            return _with_lists(name, {name: _whole, f"{name}/past": _of_window, f"{name}/times": _after_time})
        case SubscriptionKind():
            return {name: _of_subscription}
        case BufferKind():
            if buffer is None:
                raise ValueError(f"the layout of the buffer {name!r} is not known")
            return {name: buffer.key_of}


def _with_lists(store: str, tables: dict[str, KeyOf]) -> dict[str, KeyOf]:
    """Adds the tables that list which values are new (`migration`): they have the keys of their tables."""
    lists = {list_of_new(name, store): key_of for name, key_of in tables.items() if name in (store, f"{store}/past")}
    return tables | lists


def _whole(place: bytes) -> bytes:
    return place


def _of_window(place: bytes) -> bytes:
    return decode_window(place)[0]


def _of_duplicate(place: bytes) -> bytes:
    return decode_duplicate(place)[0]


def _of_session(place: bytes) -> bytes:
    return decode_session(place)[0]


def _after_time(place: bytes) -> bytes:
    return decode_by_time(place)[1]


def _after_end(place: bytes) -> bytes:
    return decode_by_end(place)[0]


def _of_subscription(place: bytes) -> bytes:
    (length,) = LENGTH.unpack_from(place)
    return place[LENGTH.size : LENGTH.size + length]
