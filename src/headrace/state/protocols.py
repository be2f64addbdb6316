"""The stores as users see them: one protocol for each kind, and its read-only form.

    KeyValueStore[K, V]     key -> value                            ReadOnlyKeyValueStore[K, V]
    WindowStore[K, V]       (key, window start) -> value            ReadOnlyWindowStore[K, V]
    SessionStore[K, V]      (key, session start, end) -> value      ReadOnlySessionStore[K, V]
    VersionedStore[K, V]    key -> values by timestamp              ReadOnlyVersionedStore[K, V]

A processor gets a store that it can write, from `context.store(...)`. A global store that another processor fills,
`app.store(...)` and `read_store(...)` are read-only.

Times are milliseconds. An absent value is None, and a None value deletes. A method that returns many entries returns an
iterator in the order of the keys' bytes, and the windows of a key by time; later writes do not show in an iterator.
A timestamped store has `ValueAndTimestamp[V]` as its values.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NoReturn, Protocol, overload

from typing_extensions import TypeVar

from headrace.model.record import ValueAndTimestamp, VersionedRecord
from headrace.model.windows import Windowed
from headrace.serde.protocol import Serde

K = TypeVar("K", default=Any)
V = TypeVar("V", default=Any)
K_contra = TypeVar("K_contra", contravariant=True, default=Any)
V_co = TypeVar("V_co", covariant=True, default=Any)


# -------------------------------------------------------------------------------------------------------- key-value
class ReadOnlyKeyValueStore(Protocol[K, V_co]):
    """Key → value, for reading.

    >>> from headrace import StreamsBuilder, serde
    >>> from headrace.testing import TopologyTestDriver
    >>> builder = StreamsBuilder()
    >>> prices = builder.table("prices", key=serde.STRING, value=serde.LONG, store="prices")
    >>> def dearest(store: ReadOnlyKeyValueStore[str, ValueAndTimestamp[int]]) -> str:
    ...     return max(store.all(), key=lambda entry: entry[1].value)[0]
    >>> with TopologyTestDriver(builder.build()) as driver:
    ...     driver.input_topic("prices", key=serde.STRING, value=serde.LONG).pipe_key_values([("tea", 2), ("rum", 9)])
    ...     dearest(driver.store("prices"))
    'rum'
    """

    @property
    def name(self) -> str: ...

    def get(self, key: K) -> V_co | None: ...

    def range(self, low: K | None = None, high: K | None = None) -> Iterator[tuple[K, V_co]]:
        """Entries from `low` to `high`, both included; None is an open end."""
        ...

    def reverse_range(self, low: K | None = None, high: K | None = None) -> Iterator[tuple[K, V_co]]: ...

    def prefix_scan(self, prefix: Any, serde: Serde[Any] | None = None) -> Iterator[tuple[K, V_co]]:
        """Entries whose key bytes begin with the bytes of `prefix`, which `serde` or the key serde encodes."""
        ...

    def all(self) -> Iterator[tuple[K, V_co]]: ...

    def reverse_all(self) -> Iterator[tuple[K, V_co]]: ...

    @property
    def approximate_size(self) -> int: ...


class KeyValueStore(ReadOnlyKeyValueStore[K, V], Protocol[K, V]):
    """Key → value: what `context.store(name)` returns for `Stores.key_value`, `timestamped_key_value` and `lru`.

    >>> from headrace import Processor, ProcessorContext, Record, Stores, Topology, serde
    >>> from headrace.testing import TopologyTestDriver
    >>> counts = Stores.key_value("counts", key=serde.STRING, value=serde.LONG)
    >>> class Count(Processor[str, str, str, int]):
    ...     def init(self, context: ProcessorContext[str, int]) -> None:
    ...         self.counts: KeyValueStore[str, int] = context.store(counts)
    ...     def process(self, record: Record[str, str]) -> None:
    ...         self.counts.put(record.key, (self.counts.get(record.key) or 0) + 1)
    >>> topology = Topology().add_source("in", "words", key=serde.STRING, value=serde.STRING)
    >>> topology = topology.add_processor("count", Count, "in").add_store(counts, "count")
    >>> with TopologyTestDriver(topology) as driver:
    ...     driver.input_topic("words", key=serde.STRING, value=serde.STRING).pipe_key_values([("a", ""), ("a", "")])
    ...     list(driver.store(counts).all())
    [('a', 2)]
    """

    def put(self, key: K, value: V | None) -> None: ...

    def put_if_absent(self, key: K, value: V | None) -> V | None:
        """The value that the key has already; if it has none, puts the new one and returns None."""
        ...

    def put_all(self, pairs: Iterable[tuple[K, V | None]]) -> None: ...

    def delete(self, key: K) -> V | None:
        """Deletes the key and returns the value that it had."""
        ...


# ----------------------------------------------------------------------------------------------------------- window
class ReadOnlyWindowStore(Protocol[K, V_co]):
    """(Key, window start) → value, for reading.

    >>> from headrace import StreamsBuilder, TimeWindows, ValueAndTimestamp, serde
    >>> from headrace.testing import TopologyTestDriver
    >>> builder = StreamsBuilder()
    >>> words = builder.stream("words", key=serde.STRING, value=serde.STRING).group_by_key()
    >>> counts = words.windowed_by(TimeWindows.of(10)).count(store="counts")
    >>> with TopologyTestDriver(builder.build()) as driver:
    ...     driver.input_topic("words", key=serde.STRING, value=serde.STRING, start=0, advance=6).pipe_key_values(
    ...         [("a", ""), ("a", ""), ("a", "")])
    ...     store: ReadOnlyWindowStore[str, ValueAndTimestamp[int]] = driver.store("counts")
    ...     store.fetch("a", 0), [start for start, _ in store.fetch("a", 0, 100)]
    (ValueAndTimestamp(value=2, timestamp=6), [0, 10])
    """

    @property
    def name(self) -> str: ...

    @overload
    def fetch(self, key: K, first: int) -> V_co | None: ...
    @overload
    def fetch(self, key: K, first: int, last: int) -> Iterator[tuple[int, V_co]]: ...
    def fetch(self, key: K, first: int, last: int | None = None) -> Any:
        """The value of the window that starts at `first`; with `last`, (start, value) of all from `first` to `last`."""
        ...

    def backward_fetch(self, key: K, first: int, last: int) -> Iterator[tuple[int, V_co]]: ...

    def fetch_all(self, first: int, last: int) -> Iterator[tuple[Windowed[K], V_co]]:
        """The windows of all keys that start from `first` to `last`, by key, then start."""
        ...

    def backward_fetch_all(self, first: int, last: int) -> Iterator[tuple[Windowed[K], V_co]]: ...

    def all(self) -> Iterator[tuple[Windowed[K], V_co]]: ...

    def backward_all(self) -> Iterator[tuple[Windowed[K], V_co]]: ...


class WindowStore(ReadOnlyWindowStore[K, V], Protocol[K, V]):
    """(Key, window start) → value: what `context.store(name)` returns for `Stores.window`.

    >>> from headrace import Stores, serde
    >>> Stores.window("visits", retention=60_000, window_size=10_000, key=serde.STRING, value=serde.LONG).name
    'visits'
    """

    def put(self, key: K, value: V | None, start: int) -> None: ...


# ---------------------------------------------------------------------------------------------------------- session
class ReadOnlySessionStore(Protocol[K, V_co]):
    """(Key, session start, session end) → value, for reading.

    >>> from headrace import SessionWindows, StreamsBuilder, serde
    >>> from headrace.testing import TopologyTestDriver
    >>> builder = StreamsBuilder()
    >>> clicks = builder.stream("clicks", key=serde.STRING, value=serde.STRING).group_by_key()
    >>> counts = clicks.windowed_by(SessionWindows.of(10)).count(store="sessions")
    >>> with TopologyTestDriver(builder.build()) as driver:
    ...     driver.input_topic("clicks", key=serde.STRING, value=serde.STRING, start=0, advance=6).pipe_key_values(
    ...         [("ada", ""), ("ada", "")])
    ...     store: ReadOnlySessionStore[str, int] = driver.store("sessions")
    ...     [(session.window.start, session.window.end, count) for session, count in store.fetch("ada")]
    [(0, 6, 2)]
    """

    @property
    def name(self) -> str: ...

    def find_sessions(self, key: K, earliest_end: int, latest_start: int) -> Iterator[tuple[Windowed[K], V_co]]:
        """The sessions of a key that end at `earliest_end` or later and start at `latest_start` or earlier."""
        ...

    def backward_find_sessions(
        self, key: K, earliest_end: int, latest_start: int
    ) -> Iterator[tuple[Windowed[K], V_co]]: ...

    def fetch(self, key: K) -> Iterator[tuple[Windowed[K], V_co]]: ...

    def backward_fetch(self, key: K) -> Iterator[tuple[Windowed[K], V_co]]: ...

    def fetch_session(self, key: K, start: int, end: int) -> V_co | None: ...

    def all(self) -> Iterator[tuple[Windowed[K], V_co]]: ...


class SessionStore(ReadOnlySessionStore[K, V], Protocol[K, V]):
    """(Key, session start, session end) → value: what `context.store(name)` returns for `Stores.session`.

    >>> from headrace import Stores, serde
    >>> Stores.session("visits", retention=60_000, key=serde.STRING, value=serde.LONG).name
    'visits'
    """

    def put(self, session: Windowed[K], value: V | None) -> None: ...

    def remove(self, session: Windowed[K]) -> None: ...


# -------------------------------------------------------------------------------------------------------- versioned
class ReadOnlyVersionedStore(Protocol[K_contra, V_co]):
    """Key → values by timestamp, for reading.

    >>> from headrace import Materialized, StreamsBuilder, serde
    >>> from headrace.testing import TopologyTestDriver
    >>> builder = StreamsBuilder()
    >>> prices = builder.table(
    ...     "prices", key=serde.STRING, value=serde.LONG, store=Materialized("prices", history=1000))
    >>> with TopologyTestDriver(builder.build()) as driver:
    ...     driver.input_topic("prices", key=serde.STRING, value=serde.LONG, start=0, advance=10).pipe_key_values(
    ...         [("tea", 2), ("tea", 3)])
    ...     store: ReadOnlyVersionedStore[str, int] = driver.store("prices")
    ...     store.get("tea"), store.get("tea", as_of=5)
    (VersionedRecord(value=3, timestamp=10, valid_to=None), VersionedRecord(value=2, timestamp=0, valid_to=None))
    """

    @property
    def name(self) -> str: ...

    def get(self, key: K_contra, as_of: int | None = None) -> VersionedRecord[V_co] | None:
        """The latest version of a key, or the version that was valid at a time."""
        ...

    def history(self, key: K_contra, first: int, last: int) -> Iterator[VersionedRecord[V_co]]:
        """The versions that were valid at some time from `first` to `last`, oldest first."""
        ...


class VersionedStore(ReadOnlyVersionedStore[K_contra, V], Protocol[K_contra, V]):
    """Key → values by timestamp: what `context.store(name)` returns for `Stores.versioned`.

    >>> from headrace import Stores, serde
    >>> Stores.versioned("prices", history=60_000, key=serde.STRING, value=serde.LONG).name
    'prices'
    """

    def put(self, key: K_contra, value: V | None, timestamp: int) -> int:
        """Returns when the new version ends: -1 for the latest one, -2⁶³ if it is older than the history."""
        ...

    def delete(self, key: K_contra, timestamp: int) -> VersionedRecord[V] | None: ...


# ----------------------------------------------------------------------------------------------------------- checks
def refuse_null_key(store: str, method: str) -> NoReturn:
    """Raise the error of a store method that was given None as a key."""
    raise TypeError(f"{method} of store {store!r} was given None as a key: filter records without a key out")


def checked_pair(store: str, value: Any) -> ValueAndTimestamp[Any] | None:
    """The value that a timestamped store takes: a `ValueAndTimestamp`. A pair without a value deletes."""
    if not isinstance(value, ValueAndTimestamp):
        raise TypeError(f"store {store!r} is timestamped: put ValueAndTimestamp(value, timestamp), not {value!r}")
    return None if value.value is None else value  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
