"""Records in and out of a running application: produce some, wait for its results."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any, TypeVar, cast

from headrace.clients.admin import Admin
from headrace.clients.consumer import Consumer
from headrace.clients.producer import Producer
from headrace.model.record import Record
from headrace.model.windows import milliseconds
from headrace.serde.protocol import Serde

K = TypeVar("K")
V = TypeVar("V")
T = TypeVar("T")
TIMEOUT = 60_000
_LOOK = 0.05  # seconds between two looks


def produce(
    log: str,
    topic: str,
    records: Iterable[Record[K, V] | tuple[K, V] | V],
    *,
    key: Serde[K] | None = None,
    value: Serde[V] | None = None,
    partitions: int = 1,
) -> None:
    """Writes records to a topic, and returns when the log has them. A missing topic is created.

    A record is a `Record`, a `(key, value)` pair, or a value alone.

    >>> import tempfile
    >>> from headrace import serde
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     produce(f"file:{folder}", "lines", ["a", "b"], value=serde.STRING)
    ...     [record.value for record in wait_for_records(f"file:{folder}", "lines", 2, value=serde.STRING)]
    ['a', 'b']
    """
    with Admin(log) as admin:
        if topic not in admin.topics():
            admin.create_topic(topic, partitions=partitions)
    with Producer(log, key=key, value=value) as producer:
        for record in records:
            if isinstance(record, Record):
                given = cast("Record[K, V]", record)
                producer.send(topic, given.key, given.value, timestamp=given.timestamp, headers=given.headers)
            else:
                pair = cast("tuple[K | None, V]", record if isinstance(record, tuple) else (None, record))
                producer.send(topic, pair[0], pair[1])


def wait_for_records(
    log: str,
    topic: str,
    count: int,
    *,
    key: Serde[K] | None = None,
    value: Serde[V] | None = None,
    timeout: int | timedelta = TIMEOUT,
) -> list[Record[K, V]]:
    """Reads a topic from its beginning until it has `count` records, and returns them by partition and offset.

    The error of a time-out says which records there are.
    """
    found = list[Any]()
    end = time.monotonic() + milliseconds(timeout, "the timeout") / 1000
    with Consumer(log, key=key, value=value, auto_offset_reset="earliest") as consumer:
        consumer.subscribe(topic)
        while len(found) < count:
            if time.monotonic() > end:
                had = ", ".join(f"{record.key!r}: {record.value!r}" for record in found[:20]) or "none"
                raise AssertionError(f"{topic} has {len(found)} of {count} records after the timeout: {had}")
            found += consumer.poll(100)
    found.sort(key=lambda record: (record.partition, record.offset))
    return [Record(record.key, record.value, record.timestamp, record.headers) for record in found]


def assert_eventually(check: Callable[[], T], timeout: int | timedelta = TIMEOUT) -> T:
    """Calls `check` until it returns something true and raises no AssertionError, and returns that.

    >>> answers = iter([0, 0, 7])
    >>> assert_eventually(lambda: next(answers))
    7
    """
    end = time.monotonic() + milliseconds(timeout, "the timeout") / 1000
    while True:
        failed: AssertionError | None = None
        try:
            if found := check():
                return found
        except AssertionError as error:
            failed = error
        if time.monotonic() > end:
            raise failed or AssertionError("the check has not become true within the timeout")
        time.sleep(_LOOK)
