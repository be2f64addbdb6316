"""The table of one store: the changes of this batch in memory, over the committed state of the engine."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from operator import gt, itemgetter, lt
from typing import Any, Literal, Protocol

from headrace.state.engine import OrderedKeys, ordered_keys
from headrace.state.keys import successor


class Reader(Protocol):
    """What a table needs of an engine."""

    def get(self, key: bytes) -> bytes | None: ...
    def scan(self, low: bytes, high: bytes | None, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]: ...


UNKNOWN: Any = object()
NOTHING: Any = object()
REMEMBERED = 131_072  # clean values in one generation of a table; two generations are kept


def nothing_at_hand(_key: bytes, default: Any) -> Any:
    return default


class Table:
    """Bytes → decoded values.

    With `share`, values cannot be changed in place, so the table keeps the objects themselves, across batches too.
    Otherwise it encodes a value at `put` and decodes it at every `get`, so that user code cannot change a stored value
    in place. With `hold`, the table keeps the object until the batch ends, and the caller must not change it.
    """

    # These run millions of times a batch, so they are closures over plain dicts, made once. `put` of a table that keeps
    # objects is the dict's own method. Only `scan` sorts.
    get: Callable[[bytes], Any]
    put: Callable[[bytes, Any], None]
    put_kept: Callable[[bytes, Any], None]  # puts a value in the form that the table keeps: shared object, or bytes
    recent: Callable[[bytes, Any], Any]  # the value that this batch put, else the second argument; see `has_recent`

    def __init__(
        self,
        prefix: bytes,
        engine: Reader,
        encode: Callable[[Any], bytes],
        decode: Callable[[bytes], Any],
        *,
        share: bool,
        hold: bool = False,
        remembered: int = REMEMBERED,
        encode_all: Callable[[Sequence[Any]], list[bytes]] | None = None,
    ) -> None:
        self.prefix, self._engine, self.encode, self.decode = prefix, engine, encode, decode
        self.share, self._hold, self._remembered = share, hold and not share, remembered
        self._encode_all = encode_all or self._encode_each
        self._changed: dict[bytes, Any] = {}  # by this batch: objects if they are shared or held, else bytes
        self._clean: dict[bytes, Any] = {}  # as committed: objects if they are shared, else bytes; None if absent
        self._older: dict[bytes, Any] = {}  # the generation before `_clean`
        self._last: Any = None  # the last key that is stored, or NOTHING; None: not looked for yet
        self._order: OrderedKeys | None = None  # the changed keys, from the first scan of a batch on
        self.is_observed = False
        if share:
            self.get, self.put = self._get_shared(), self._changed.__setitem__
        elif hold:
            self.get, self.put = self._get_held(), self._changed.__setitem__
        else:
            self.get, self.put = self._get_encoded(), self._put_encoded()
        self.put_kept = self._changed.__setitem__
        self.has_recent = share or hold  # whether `recent` knows every value that this batch has put
        self.recent = self._changed.get if self.has_recent else nothing_at_hand

    def observe(self, seen: Callable[[Literal["read", "write"], bytes, Any], None]) -> None:
        """Calls `seen` at every read and write. Call this before stores and operators take the table's methods."""
        get, put, put_kept, recent, scan = self.get, self.put, self.put_kept, self.recent, self.scan

        def observed_get(key: bytes) -> Any:
            value = get(key)
            seen("read", key, value)
            return value

        def observed_put(key: bytes, value: Any) -> None:
            put(key, value)
            seen("write", key, value)

        def observed_put_kept(key: bytes, value: Any) -> None:
            put_kept(key, value)
            seen("write", key, self.decode(value) if isinstance(value, bytes) and not self.share else value)

        def observed_recent(key: bytes, default: Any) -> Any:
            value = recent(key, UNKNOWN)
            if value is UNKNOWN:
                return default
            seen("read", key, value)
            return value

        def observed_scan(
            low: bytes = b"", high: bytes | None = None, *, reverse: bool = False
        ) -> Iterator[tuple[bytes, Any]]:
            for key, value in scan(low, high, reverse=reverse):
                seen("read", key, value)
                yield key, value

        self.get, self.put, self.put_kept, self.recent = observed_get, observed_put, observed_put_kept, observed_recent
        self.scan, self.is_observed = observed_scan, True

    # ------------------------------------------------------------------------------------------ one key
    def _get_shared(self) -> Callable[[bytes], Any]:
        find, load = self._changed.get, self._load

        def get(key: bytes) -> Any:
            value = find(key, UNKNOWN)
            return load(key) if value is UNKNOWN else value

        return get

    def _get_held(self) -> Callable[[bytes], Any]:
        find, load, decode = self._changed.get, self._load, self.decode

        def get(key: bytes) -> Any:
            value = find(key, UNKNOWN)
            if value is not UNKNOWN:
                return value
            raw = load(key)
            return None if raw is None else decode(raw)

        return get

    def _get_encoded(self) -> Callable[[bytes], Any]:
        find, load, decode = self._changed.get, self._load, self.decode

        def get(key: bytes) -> Any:
            raw = find(key, UNKNOWN)
            if raw is UNKNOWN:
                raw = load(key)
            return None if raw is None else decode(raw)

        return get

    def _put_encoded(self) -> Callable[[bytes, Any], None]:
        changed, encode = self._changed, self.encode

        def put(key: bytes, value: Any) -> None:
            changed[key] = None if value is None else encode(value)

        return put

    def has(self, key: bytes) -> bool:
        """Whether the key has a value, without decoding it."""
        held = self._changed.get(key, UNKNOWN)
        return (self._load(key) if held is UNKNOWN else held) is not None

    def committed(self, key: bytes) -> Any:
        """The value as of the last commit, without the changes of this batch."""
        held = self._load(key)
        return held if held is None or self.share else self.decode(held)

    def _load(self, key: bytes) -> Any:
        """Loads the committed value of a key for `_clean`."""
        held = self._clean.get(key, UNKNOWN)
        if held is not UNKNOWN:
            return held
        held = self._older.get(key, UNKNOWN)
        if held is UNKNOWN:
            held = self._read(key)
        if len(self._clean) >= self._remembered:
            self._older, self._clean = self._clean, {}
        self._clean[key] = held
        return held

    def _read(self, key: bytes) -> Any:
        """Reads the committed value of a key from the engine."""
        if self.is_beyond(key):
            return None
        raw = self._engine.get(self.prefix + key)
        return self.decode(raw) if raw is not None and self.share else raw

    def is_beyond(self, key: bytes) -> bool:
        """Whether the key is greater than every stored key; lookups in tables ordered by time mostly are."""
        last = self._last
        if last is None:
            stored = self._scan_stored(b"", None, reverse=True)
            last = self._last = next((key[len(self.prefix) :] for key, _ in stored), NOTHING)
        return last is NOTHING or key > last

    def _stored(self, key: bytes) -> bool:
        held = self._clean.get(key, UNKNOWN)
        return (self._engine.get(self.prefix + key) if held is UNKNOWN else held) is not None

    # ---------------------------------------------------------------------------------------- many keys
    def scan(
        self, low: bytes = b"", high: bytes | None = None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, Any]]:
        """Entries from `low` up to but excluding `high`, as they are now: later puts do not show."""
        stored = iter(()) if self.is_beyond(low) else self._scan_stored(low, high, reverse=reverse)
        changed = self._changed_between(low, high, reverse=reverse)
        return self._merged(changed, stored, gt if reverse else lt) if changed else self._as_stored(stored)

    def _scan_stored(self, low: bytes, high: bytes | None, *, reverse: bool) -> Iterator[tuple[bytes, bytes]]:
        prefix = self.prefix
        return self._engine.scan(prefix + low, successor(prefix) if high is None else prefix + high, reverse=reverse)

    def count(self) -> int:
        """The number of keys that have a value."""
        stored = sum(1 for _ in self._scan_stored(b"", None, reverse=False))
        return stored + sum((held is not None) - self._stored(key) for key, held in self._changed.items())

    @property
    def touched(self) -> int:
        """The number of keys that this batch has put."""
        return len(self._changed)

    def _changed_between(self, low: bytes, high: bytes | None, *, reverse: bool) -> list[tuple[bytes, Any]]:
        changed, order = self._changed, self._order
        if order is None:
            order = self._order = ordered_keys(changed)
        elif len(order) < len(changed):
            # A dict keeps insertion order and nothing is removed from this one, so the new keys are the last ones.
            new = len(changed) - len(order)
            if new == 1:  # joins put and scan in turn: `add` takes half the time of `update`
                order.add(next(reversed(changed)))
            else:
                order.update(islice(reversed(changed), new))
        return [(key, changed[key]) for key in order.irange(low, high, (True, False), reverse)]

    def _as_stored(self, stored: Iterator[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, Any]]:
        skip, decode = len(self.prefix), self.decode
        if not self.share:
            for key, raw in stored:
                yield key[skip:], decode(raw)
            return
        for key, raw in stored:
            value = self._clean.get(key[skip:])
            yield key[skip:], decode(raw) if value is None else value

    def _merged(
        self,
        changed: list[tuple[bytes, Any]],
        stored: Iterator[tuple[bytes, bytes]],
        before: Callable[[bytes, bytes], bool],
    ) -> Iterator[tuple[bytes, Any]]:
        encoded = not (self.share or self._hold)
        rest = self._as_stored(stored)
        entry = next(rest, None)
        for key, held in changed:
            while entry is not None and before(entry[0], key):
                yield entry
                entry = next(rest, None)
            if entry is not None and entry[0] == key:
                entry = next(rest, None)
            if held is not None:
                yield key, self.decode(held) if encoded else held
        if entry is not None:
            yield entry
            yield from rest

    # ---------------------------------------------------------------------------------- the end of a batch
    def changes(self) -> list[tuple[bytes, bytes | None]]:
        """The changes of this batch, encoded and sorted by the engine's keys."""
        prefix, changed = self.prefix, self._changed
        puts = {key: held for key, held in changed.items() if held is not None}
        keys = sorted(puts)
        values = list(map(puts.__getitem__, keys))
        encoded = self._encode_all(values) if self.share or self._hold else values
        changes: list[tuple[bytes, bytes | None]] = list(zip(map(prefix.__add__, keys), encoded, strict=True))
        if len(puts) < len(changed):
            changes += [(prefix + key, None) for key, held in changed.items() if held is None and self._stored(key)]
            changes.sort(key=itemgetter(0))
        return changes

    def _encode_each(self, values: Sequence[Any]) -> list[bytes]:
        return list(map(self.encode, values))

    def settle(self, changes: Iterable[tuple[bytes, bytes | None]]) -> None:
        """Takes the committed changes as the starting point of the next batch."""
        if self._hold:
            skip = len(self.prefix)
            self._clean.update((key[skip:], raw) for key, raw in changes)
        else:
            self._clean.update(self._changed)
        if len(self._clean) > self._remembered:
            self._older, self._clean = self._clean, {}
        self._last = None
        self.rollback()

    def rollback(self) -> None:
        """Discards the changes of this batch."""
        self._changed.clear()
        self._order = None

    def forget(self) -> None:
        """Discards everything cached, because the engine was changed underneath."""
        self.rollback()
        self._clean, self._older, self._last = {}, {}, None
