"""The protocol of a source: a system whose records are written into a topic of the log.

A source remembers nothing. It opens a reader at a position, and the reader returns batches: records, and the position
after them. The log stores the position in the transaction that stores the records, so after a crash the source is
opened behind the last record that the log has: none is lost, and none is written twice.

`headrace.connect` has the sources, and runs them. The DSL and the topology only keep them for the application.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, runtime_checkable

from headrace.model.record import Headers
from headrace.serde.protocol import Serde

# Any value that JSON has. None: the source has never been read.
SourcePosition = Any


class SourceRecord(NamedTuple):
    """A record of a source. A value of None is a tombstone. Keys and values that are bytes are written as they are.

    Without a timestamp it gets the time at which it was read; without a partition its key decides.
    """

    key: Any
    value: Any
    timestamp: int | None = None
    headers: Headers = ()
    partition: int | None = None


class SourceBatch(NamedTuple):
    """Records in the order of the source, and the position behind the last one.

    `partitions`: the topic gets more, if it has fewer. A mirror keeps those of its original.
    """

    records: Sequence[SourceRecord]
    position: SourcePosition
    partitions: int | None = None


class SourceReader(Protocol):
    """Reads a source from a position on. One thread uses it."""

    def read(self, max_records: int, timeout: float) -> SourceBatch | None:
        """Returns the next records, about `max_records` at most; None if none arrive within `timeout` seconds.

        The batch may have no records and still move the position.
        """
        ...

    def acknowledge(self, position: SourcePosition) -> None:
        """Is called when the log has everything up to a position, also right after opening: it may be forgotten."""
        ...

    def lag(self) -> int | None:
        """Returns how much is there that was not read yet, or None if the source cannot tell."""
        ...

    def close(self) -> None: ...


@runtime_checkable
class Source(Protocol):
    """A system to read from. `name` tells the sources of an application apart, and is the default name of the topic.

    `key` and `value` are the serdes with which its records are written, unless the user gives others.
    """

    @property
    def name(self) -> str: ...
    @property
    def key(self) -> Serde[Any]: ...
    @property
    def value(self) -> Serde[Any]: ...

    def open(self, position: SourcePosition) -> SourceReader:
        """Opens a reader behind `position`. An error is retried, unless it is a `ConfigError`."""
        ...


@runtime_checkable
class CountsPartitions(Protocol):
    """A source whose topic has as many partitions as the source itself has, unless the user says how many."""

    def count_partitions(self) -> int: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceSpec:
    """A source with the topic that it fills. A topic that does not exist is created with `partitions` and `config`."""

    source: Source = field(repr=False)  # it may have a password
    topic: str
    key: Serde[Any]
    value: Serde[Any]
    partitions: int | None = None
    config: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def name(self) -> str:
        return self.source.name
