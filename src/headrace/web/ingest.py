"""Records by HTTP: a source that other programs POST to, and that answers when the log has the records.

    POST /records          one JSON value, or with `content-type: application/x-ndjson` one in each line
    202 {"records": 2}     they are in the log
    400, 401, 413, 429     malformed JSON, no token, too large, too many wrong tokens
    503                    the log does not answer, or too many requests wait: send it again

A client that gets no answer does not know whether its records are in the log. If it sends them again with the same
`Idempotency-Key`, they are written once: the position of the source has the last keys.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Collection
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Any

import orjson
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headrace.connect.rows import RowFunction, make_record
from headrace.errors import ConfigError, StreamsError
from headrace.serde.json import JSON
from headrace.serde.protocol import Serde
from headrace.topology.connectors import SourceBatch, SourcePosition, SourceReader, SourceRecord
from headrace.web.access import AccessPolicy, Authenticator
from headrace.web.connections import ConnectionLimits
from headrace.web.responses import NDJSON, error_response, handle_error, json_response
from headrace.web.server import Listener, load_certificate

_LAST_TIMESTAMP = 1 << 63  # ms


@dataclass(frozen=True)
class HttpSource:
    """Listens for POST requests with JSON, and answers 202 when the log has the records.

    Requests need `Authorization: Bearer TOKEN`. `key_of` and `timestamp_of` (milliseconds) are the name of a field,
    or a function of the value. `max_bytes` is the most that a request may have, and `waiting` the number of requests
    that may wait for the log. The last `remembered` idempotency keys are known.

    >>> HttpSource("clicks", token="secret", port=8090, key_of="user").name
    'clicks'
    """

    name: str
    _: KW_ONLY
    token: str = field(repr=False)
    host: str = "127.0.0.1"
    port: int = 0
    hosts: Collection[str] = ()
    certificate: str | Path | None = None
    private_key: str | Path | None = None
    key_of: RowFunction = None
    timestamp_of: RowFunction = None
    max_bytes: int = 1024 * 1024
    waiting: int = 1000
    timeout: float = 30.0  # seconds until 503
    remembered: int = 256
    key: Serde[Any] = JSON
    value: Serde[Any] = JSON

    def __post_init__(self) -> None:
        if not self.token:
            raise ConfigError("an HttpSource needs a token: whoever has it may write")

    def open(self, position: SourcePosition) -> SourceReader:
        return HttpReader(self, position or [])


@dataclass(eq=False, slots=True)
class _Post:
    """A request that waits for the log."""

    records: list[SourceRecord]
    key: str | None
    done: threading.Event = field(default_factory=threading.Event)
    status: int = 503


class HttpReader:
    """The web server of a source. Position: the last idempotency keys."""

    def __init__(self, source: HttpSource, position: list[str]) -> None:
        self._source = source
        self._keys: list[str] = list(position)
        self._posts: queue.Queue[_Post] = queue.Queue(source.waiting)
        self._taken: list[_Post] = []
        context = load_certificate(source.certificate, source.private_key)
        self._listener = Listener("headrace ingest", source.host, source.port, context, ConnectionLimits())
        app = Starlette(
            routes=[Route("/records", self._post, methods=["POST"])],
            exception_handlers={StreamsError: handle_error, Exception: handle_error},
        )
        self._listener.serve(
            AccessPolicy(
                app, host=source.host, hosts=source.hosts, authenticator=Authenticator(source.token),
                body_bytes=source.max_bytes,
            ),
            {},
        )  # fmt: skip
        self._listener.start()
        self.url = self._listener.url

    async def _post(self, request: Request) -> Response:
        is_lines = request.headers.get("content-type", "").startswith(NDJSON)
        try:
            records = parse_body(self._source, await request.body(), is_lines=is_lines)
        except ValueError as error:
            return error_response(400, "Malformed", str(error))
        post = _Post(records, request.headers.get("idempotency-key"))
        try:
            self._posts.put_nowait(post)
        except queue.Full:
            return _away("too many requests wait for the log")
        await asyncio.to_thread(post.done.wait, self._source.timeout)
        if post.status != 202:
            return _away("the log did not answer in time")
        return json_response({"records": len(records)}, 202)

    def read(self, max_records: int, timeout: float) -> SourceBatch | None:
        taken: list[_Post] = []
        count = 0
        try:
            while count < max_records:
                taken.append(self._posts.get(timeout=timeout) if not taken and timeout else self._posts.get_nowait())
                count += len(taken[-1].records)
        except queue.Empty:
            if not taken:
                return None
        self._taken, records = taken, list[SourceRecord]()
        for post in taken:
            if post.key is None:
                records += post.records
            elif post.key not in self._keys:
                records += post.records
                self._keys = [*self._keys, post.key][-self._source.remembered :]
        return SourceBatch(records, self._keys)

    def acknowledge(self, position: SourcePosition) -> None:
        taken, self._taken = self._taken, []
        for post in taken:
            post.status = 202
            post.done.set()

    def lag(self) -> int | None:
        return self._posts.qsize()

    def close(self) -> None:
        """Answers 503 to all who wait, and stops to listen."""
        waiting = self._taken
        while not self._posts.empty():
            waiting.append(self._posts.get_nowait())
        for post in waiting:
            post.done.set()
        self._listener.stop()
        self._listener.close()


def parse_body(source: HttpSource, body: bytes, *, is_lines: bool) -> list[SourceRecord]:
    """Makes the records of a request. Raises ValueError for one that cannot be written: it must not stop the source.

    >>> parse_body(HttpSource("clicks", token="t", key_of="user"), b'{"user": 7}', is_lines=False)
    [SourceRecord(key=7, value={'user': 7}, timestamp=None, headers=(), partition=None)]
    """
    lines = body.splitlines() if is_lines else [body]
    try:
        values = [orjson.loads(line) for line in lines if line.strip()]
        records = [make_record(value, source.key_of, source.timestamp_of) for value in values]
    except ConfigError as error:
        raise ValueError(str(error)) from error
    for record in records:
        at = record.timestamp
        if at is not None and (type(at) is not int or not 0 <= at < _LAST_TIMESTAMP):
            raise ValueError(f"a timestamp is a number of milliseconds, not {str(at)[:50]}")
        _check_encoding("key", source.key, record.key)
        _check_encoding("value", source.value, record.value)
    if not records:
        raise ValueError("the request has no record")
    return records


def _check_encoding(part: str, serde: Serde[Any], value: Any) -> None:
    try:
        if value is not None:
            serde.encode(value)
    except Exception as error:
        raise ValueError(f"the {part} {str(value)[:50]} cannot be written with {serde!r}: {error}") from error


def _away(message: str) -> Response:
    response = error_response(503, "Unavailable", f"{message}: send it again, with the same Idempotency-Key")
    response.headers["retry-after"] = "1"
    return response
