"""Redis: the last value of each key, as text or as a hash. A record that is written again changes nothing."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from headrace.connect.sink import fields_of
from headrace.errors import SinkUnavailableError
from headrace.extras import import_extra
from headrace.model.record import Record
from headrace.model.sink import Sink, SinkBatch, SinkContext, SinkWriter


@dataclass(frozen=True)
class RedisSink(Sink):
    """Values under `prefix` and the record's key; a record without a value deletes them.

    `kind="string"` stores a value as JSON (texts and bytes as they are), `kind="hash"` its fields. `expire` is the
    number of seconds after which Redis forgets a value that was not written again.

    >>> RedisSink("redis://cache:6379/0", prefix="price:").label
    'price:'
    """

    guarantee = "idempotent"

    url: str = field(repr=False)
    prefix: str = ""
    kind: Literal["string", "hash"] = "string"
    expire: int | None = None

    @property
    def label(self) -> str:
        return self.prefix or "redis"

    def open(self, context: SinkContext) -> SinkWriter:
        return RedisWriter(self)


class RedisWriter(SinkWriter):
    """Writes a batch in one transaction (MULTI), so that readers see it whole."""

    def __init__(self, sink: RedisSink) -> None:
        self._sink = sink
        self._redis: Any = import_extra("redis", "redis")
        self._client = self._redis.Redis.from_url(sink.url, socket_connect_timeout=10, socket_timeout=60)

    def write(self, batch: SinkBatch) -> None:
        try:
            with self._client.pipeline(transaction=True) as pipeline:
                for record in batch.records():
                    self._add(pipeline, record)
                pipeline.execute()
        except (
            self._redis.ConnectionError,
            self._redis.TimeoutError,
            self._redis.exceptions.BusyLoadingError,
        ) as error:
            raise SinkUnavailableError(f"Redis does not answer: {error}") from error

    def close(self) -> None:
        self._client.close()

    def _add(self, pipeline: Any, record: Record) -> None:
        name = self._sink.prefix.encode() + as_bytes(record.key)
        if record.value is None or self._sink.kind == "hash":
            pipeline.delete(name)
        if record.value is None:
            return
        if self._sink.kind == "hash":
            pipeline.hset(name, mapping={part: as_bytes(value) for part, value in fields_of(record.value).items()})
            if self._sink.expire is not None:
                pipeline.expire(name, self._sink.expire)
        else:
            pipeline.set(name, as_bytes(record.value), ex=self._sink.expire)


def as_bytes(value: Any) -> bytes:
    """Returns bytes and texts as they are, and anything else as JSON.

    >>> as_bytes("a"), as_bytes(b"b"), as_bytes({"n": 1}), as_bytes(2)
    (b'a', b'b', b'{"n":1}', b'2')
    """
    if isinstance(value, bytes):
        return value
    return value.encode() if isinstance(value, str) else msgspec.json.encode(value)
