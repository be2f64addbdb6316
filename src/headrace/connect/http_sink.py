"""HTTP: records in JSON, many in one POST, with an idempotency key that is the same whenever a batch is sent again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from headrace.errors import RecordsRejectedError, SinkUnavailableError, StreamsError
from headrace.extras import import_extra
from headrace.model.record import Record
from headrace.model.sink import Sink, SinkBatch, SinkContext, SinkWriter

_PASSING = {408, 425, 429}  # and 5xx: the same request may succeed later
_REJECTED = {400, 413, 415, 422}


@dataclass(frozen=True)
class HttpSink(Sink):
    """POSTs records to `url` as a JSON array of {"key", "value", "timestamp"}, at most `max_records` in a request.

    Every request has the header `Idempotency-Key`: application, sink, checkpoint, part, batch and place. A service that
    remembers it has every record once; any other has it at least once. A request that fails with 5xx or 429 is
    repeated; one that fails with 400 or 422 is rejected, and `on_rejected` decides.

    >>> HttpSink("https://hooks.example/orders", headers={"Authorization": "Bearer 123"}).label
    'hooks.example/orders'
    """

    guarantee = "at least once"

    url: str = field(repr=False)  # it may have a password
    max_records: int = 500
    headers: Mapping[str, str] | None = field(default=None, repr=False)
    timeout: float = 30.0

    @property
    def label(self) -> str:
        host, slash, path = self.url.partition("://")[2].partition("?")[0].partition("/")
        return host.rpartition("@")[2] + slash + path

    def open(self, context: SinkContext) -> SinkWriter:
        return HttpWriter(self, context)


class HttpWriter(SinkWriter):
    """A client with connections that stay open."""

    def __init__(self, sink: HttpSink, context: SinkContext) -> None:
        self._sink, self._owner = sink, f"{context.owner}/{context.checkpoint}"
        self._httpx: Any = import_extra("httpx", "http")
        self._client = self._httpx.Client(headers=dict(sink.headers or {}), timeout=sink.timeout)

    def write(self, batch: SinkBatch) -> None:
        size = self._sink.max_records
        for part in batch.parts:  # not all records at once: the requests of a part are the same whoever sends it
            for start in range(0, len(part.records), size):
                token = f"{self._owner}/{part.name}/{batch.number}/{start}"
                self._post(part.records[start : start + size], token)

    def close(self) -> None:
        self._client.close()

    def _post(self, records: Sequence[Record], token: str) -> None:
        rows = [{"key": record.key, "value": record.value, "timestamp": record.timestamp} for record in records]
        headers = {"Content-Type": "application/json", "Idempotency-Key": token}
        try:
            answer = self._client.post(self._sink.url, content=msgspec.json.encode(rows), headers=headers)
        except self._httpx.TransportError as error:
            raise SinkUnavailableError(f"{self._sink.label} does not answer: {error}") from error
        if answer.is_success:
            return
        what = f"{self._sink.label} answers {answer.status_code}"
        said = f"{what}: {answer.text[:200]}"  # an answer may quote the request
        if answer.status_code in _REJECTED:
            raise RecordsRejectedError(said, [(record, said) for record in records], what)
        is_passing = answer.status_code in _PASSING or answer.is_server_error
        raise SinkUnavailableError(said, summary=what) if is_passing else StreamsError(said, summary=what)
